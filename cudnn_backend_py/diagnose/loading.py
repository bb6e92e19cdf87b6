"""Load cuDNN while what uses it is imported: either takes as long."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from ..native import library

__all__ = ["loading_library"]


@contextmanager
def loading_library() -> Iterator[None]:
    """Load cuDNN in another thread during a block. If it cannot be loaded, whoever needs it is told why."""

    def load() -> None:
        with suppress(Exception):
            library()

    thread = threading.Thread(target=load, daemon=True)
    thread.start()
    yield
    thread.join()
