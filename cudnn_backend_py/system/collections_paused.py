"""No garbage collection while modules are imported: they make no garbage, and look for it among all objects there are.

With PyTorch imported before, one full collection takes longer than importing :mod:`cudnn_backend_py.frontend`.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["collections_paused"]


@contextmanager
def collections_paused() -> Iterator[None]:
    """Collect no garbage inside the block; afterwards as before."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
