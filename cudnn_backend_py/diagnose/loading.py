"""Load cuDNN in a thread while Python modules are imported, as both take equally long."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib import import_module

from ..native import library

__all__ = ["load_library_in_thread"]


# The dynamic loader opens one library at a time, so the compiled modules that judging needs are imported before.
_COMPILED_MODULES = (
    *("_bisect", "_blake2", "_bz2", "_contextvars", "_ctypes", "_decimal", "_hashlib", "_heapq", "_json", "_lzma"),
    *("_opcode", "_posixsubprocess", "_random", "_sha2", "_sha512", "_socket", "_struct", "array", "binascii", "fcntl"),
    *("math", "resource", "select", "zlib"),
)


@contextmanager
def load_library_in_thread() -> Iterator[None]:
    """Load cuDNN in a thread during a block; the next call that needs cuDNN raises load errors."""

    def load() -> None:
        with suppress(Exception):
            library()

    for name in _COMPILED_MODULES:
        with suppress(ImportError):  # another Python has other ones
            import_module(name)
    thread = threading.Thread(target=load, daemon=True)
    thread.start()
    yield
    thread.join()
