"""What watching costs the ranks, kept within a budget."""
