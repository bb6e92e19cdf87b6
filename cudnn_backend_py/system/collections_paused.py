"""No garbage collection while modules are imported: they make no garbage, and look for it among all objects there are.

With PyTorch imported before, one full collection takes longer than importing :mod:`cudnn_backend_py.frontend`, and a
collection of the young objects right after the import a tenth of it: they are put with the old ones instead.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["collections_paused"]


@contextmanager
def collections_paused() -> Iterator[None]:
    """Collect no garbage inside the block; afterwards as before, with what there is in the oldest generation.

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
