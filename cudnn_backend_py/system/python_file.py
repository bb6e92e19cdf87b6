"""Recognition of Python files, as no other files are executed."""

from __future__ import annotations

import os

__all__ = ["is_python_file"]


def is_python_file(path: str | os.PathLike[str]) -> bool:
    """Return whether a file may be executed: its name, and its target's name if it is a link, end in ``.py``."""
    return all(os.fspath(name).endswith(".py") for name in (path, os.path.realpath(path)))
