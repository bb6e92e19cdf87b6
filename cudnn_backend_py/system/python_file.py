"""Python files: the only files that are executed."""

from __future__ import annotations

import os

__all__ = ["is_python_file"]


def is_python_file(path: str | os.PathLike[str]) -> bool:
    """Return whether a file may be executed: it and the target of a link must be named ``*.py``."""
    return all(os.fspath(name).endswith(".py") for name in (path, os.path.realpath(path)))
