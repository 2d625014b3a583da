"""Where every second of every rank's steps went."""
