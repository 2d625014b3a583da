"""The way back: which checkpoint is still good, what to change, and the command that goes on from there."""
