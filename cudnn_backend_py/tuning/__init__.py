"""Which engine config is the fastest: candidates timed, their results compared, the winner remembered."""

from .search import autotune, tune

__all__ = ["autotune", "tune"]
