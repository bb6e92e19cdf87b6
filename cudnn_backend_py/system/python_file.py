"""Python files: the only files that are run."""

from __future__ import annotations

import os

__all__ = ["is_python_file"]


def is_python_file(path: str | os.PathLike[str]) -> bool:
    """Return whether a file may be run: it and, of a link, the file it leads to are named ``*.py``, exactly."""
    return all(os.fspath(name).endswith(".py") for name in (path, os.path.realpath(path)))
