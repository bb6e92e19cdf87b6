"""The path of the repository, and environment variables for child processes that import its folders."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["ROOT", "make_child_environment"]

ROOT = Path(__file__).parents[1]


def make_child_environment(**changes: str) -> dict[str, str]:
    """Return this process's environment with changes, for a child that imports `tools` or `benchmarks`."""
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    return {**os.environ, "PYTHONPATH": path, **changes}
