"""Path of the repository, and the environment for child processes, because only the package itself is installed."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["ROOT", "child_environment"]

ROOT = Path(__file__).parents[1]


def child_environment(**changes: str) -> dict[str, str]:
    """Return this environment with changes, for a child that imports from `tools` or `benchmarks`."""
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    return {**os.environ, "PYTHONPATH": path, **changes}
