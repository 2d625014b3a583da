"""Ranks that stop: what each rank is doing, who waits for whom, and the first failure behind it."""
