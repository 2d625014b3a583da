"""Operations of all ranks joined and measured: skew, wait, transfer, blame, tails, bounded series."""
