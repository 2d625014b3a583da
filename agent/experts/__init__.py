"""Experts: how evenly tokens are dealt out over experts and ranks, and what unevenness costs."""
