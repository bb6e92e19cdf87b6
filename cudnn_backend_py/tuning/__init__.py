"""Tuning: candidates timed, their results compared, the fastest remembered."""

from .search import autotune, tune

__all__ = ["autotune", "tune"]
