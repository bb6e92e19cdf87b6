"""Tuning: time candidates, compare their results, remember the fastest."""

from .search import autotune, tune

__all__ = ["autotune", "tune"]
