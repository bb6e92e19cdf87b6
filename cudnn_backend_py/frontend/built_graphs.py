"""The graphs for which this process built a plan, for the line that ``python -m cudnn_backend_py.frontend`` prints."""

from __future__ import annotations

from collections import Counter

from ..printable import printable

__all__ = ["BUILT_GRAPHS", "describe_built_graphs"]

BUILT_GRAPHS: Counter[str] = Counter()  # how many, by name
_MOST_NAMED = 5


def describe_built_graphs() -> str:
    """Return how many graphs were built and their names, such as ``3 graphs were built: matmul (2), sdpa``."""
    count = BUILT_GRAPHS.total()
    if not count:
        return "no graph was built"
    named = [
        printable(name or "unnamed") + (f" ({times})" if times > 1 else "")
        for name, times in BUILT_GRAPHS.most_common(_MOST_NAMED)
    ]
    more = [f"{len(BUILT_GRAPHS) - len(named)} more names"] if len(BUILT_GRAPHS) > len(named) else []
    return f"{count} graph{'s were' if count > 1 else ' was'} built: {', '.join(named + more)}"
