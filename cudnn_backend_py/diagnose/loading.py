"""Load cuDNN in a thread while Python modules are imported, as both take equally long.

The dynamic loader opens one library at a time, so the compiled modules among the imports are imported before.
"""

from __future__ import annotations

import bisect as _bisect  # noqa: F401  # compiled
import contextvars as _contextvars  # noqa: F401
import decimal as _decimal  # noqa: F401  # of fractions
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from ..native import library

__all__ = ["load_library_in_thread"]


@contextmanager
def load_library_in_thread() -> Iterator[None]:
    """Load cuDNN in a thread during a block; the next call that needs cuDNN raises load errors."""

    def load() -> None:
        with suppress(Exception):
            library()

    thread = threading.Thread(target=load, daemon=True)
    thread.start()
    yield
    thread.join()
