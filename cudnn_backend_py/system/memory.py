"""Memory available to this process, to check sizes before allocation."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from pathlib import Path

from .interruption import suppress_errors

__all__ = ["explain_insufficient_memory", "find_available_bytes"]

_CGROUP = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")
_MEMINFO = "/proc/meminfo"


def find_available_bytes() -> int | None:
    """Return how many bytes can be allocated without swapping, within the limits of machine, container and process.

    None where the system does not say.
    """
    return min(_iterate_memory_limits(), default=None)


def explain_insufficient_memory(needed: int, what: str) -> str:
    """Return a message if `what` needs more bytes than are available, else an empty text."""
    there = find_available_bytes()
    if there is None or needed <= there:
        return ""
    return f"{what} needs {needed / 1e9:.1f} GB of memory, {there / 1e9:.1f} GB are available"


def _iterate_memory_limits() -> Iterator[int]:
    with suppress_errors(OSError, ValueError):
        for line in Path(_MEMINFO).read_text(encoding="ascii").splitlines():
            if line.startswith("MemAvailable:"):
                yield int(line.split()[1]) * 1024
    for place in _CGROUP:
        with suppress_errors(OSError, ValueError):  # ValueError: "max" is no limit
            yield int(Path(place).read_text(encoding="ascii"))
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit != resource.RLIM_INFINITY:
        yield limit
