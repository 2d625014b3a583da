"""Faults that the trainer can be told to have: see `kinds` for the table and `injection` for how they are asked for."""
