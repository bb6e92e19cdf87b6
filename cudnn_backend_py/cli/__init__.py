"""The command ``cudnn-backend``."""

from .commands import main

__all__ = ["main"]
