"""Naive NumPy oracles, one per operation, written from the rules in the documentation and from nothing else."""
