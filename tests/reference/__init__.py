"""Naive NumPy oracles, one for each operation, written only from the rules in docs."""
