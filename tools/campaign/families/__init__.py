"""Generators of random graphs, one file for each group of operations."""
