"""What runs inside a rank. Needs only the standard library and the torch that is there."""
