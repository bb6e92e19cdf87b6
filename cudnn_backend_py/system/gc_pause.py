"""Fewer garbage collections during imports, which create no garbage but trigger full scans.

With PyTorch imported before, one full collection takes longer than importing :mod:`cudnn_backend_py.frontend`, and a
collection of the young objects right after the import a tenth of it: they are put with the old ones instead.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["collect_garbage_rarely", "pause_garbage_collection"]

_YOUNG_OBJECTS = 100_000  # what a command or a judging process imports is no garbage, and is not half as many


def collect_garbage_rarely() -> None:
    """Let Python look for garbage only after many new objects, for a process that begins with imports."""
    gc.set_threshold(_YOUNG_OBJECTS)


@contextmanager
def pause_garbage_collection() -> Iterator[None]:
    """Pause garbage collection during a block, then move the new objects into the oldest generation.

    Where a program has frozen objects itself, generations stay as they are: they would be thawed, too.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            if not gc.get_freeze_count():
                gc.freeze()
                gc.unfreeze()
            gc.enable()
