"""The package's folder in the user's cache."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["user_folder"]


def user_folder(name: str) -> Path:
    """Return a folder in the package's part of the user's cache, placed by the XDG specification."""
    cache = os.environ.get("XDG_CACHE_HOME", "")
    return Path(cache if cache.strip() else os.path.expanduser("~/.cache"), "cudnn-backend-py", name)
