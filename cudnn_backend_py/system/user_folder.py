"""The package's folder in the user's cache."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["get_user_folder", "measure_folder_bytes"]


def get_user_folder(name: str) -> Path:
    """Return the path of a subfolder of the package's cache folder, by the XDG specification."""
    cache = os.environ.get("XDG_CACHE_HOME", "")
    return Path(cache if cache.strip() else os.path.expanduser("~/.cache"), "cudnn-backend-py", name)


def measure_folder_bytes(folder: Path) -> int:
    """Return the total size in bytes of all files in a folder and its subfolders; 0 if it does not exist."""
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file() and not file.is_symlink())
