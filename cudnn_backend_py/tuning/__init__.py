"""Tuning: time engine configs, compare their results, and remember the fastest."""

from .search import autotune, tune

__all__ = ["autotune", "tune"]
