"""Verdicts as assertions, the pytest plugin, and records of runs on a GPU."""
