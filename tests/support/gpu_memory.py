"""A limit of GPU memory for tests: with ``CUDNN_BACKEND_GPU_MEMORY_GB=16``, all but 16 GB are allocated first.

A marker, ``gpu_bytes(N)``, says what a test needs; where less is left it is skipped, with both numbers.
"""

from __future__ import annotations

import ctypes
import os

from cudnn_backend_py.native.cuda import Memory, call_driver, on_device

__all__ = ["MEMORY_LIMIT_VARIABLE", "find_memory_skip_reason", "get_free_memory", "limit_memory"]

MEMORY_LIMIT_VARIABLE = "CUDNN_BACKEND_GPU_MEMORY_GB"


def read_memory_limit() -> int | None:
    """Return the limit in bytes from the environment variable, None if it is not set."""
    said = os.environ.get(MEMORY_LIMIT_VARIABLE, "")
    return int(float(said) * 1e9) if said else None


def get_free_memory(device: int = 0) -> int:
    """Return the free memory of a GPU in bytes. C: ``cuMemGetInfo``."""
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    with on_device(device):
        call_driver("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
    return free.value


def limit_memory(device: int = 0) -> Memory:
    """Allocate all memory of a GPU above the limit; freeing the returned memory ends the limit."""
    held, wanted = Memory(device), read_memory_limit()
    if wanted is not None and (rest := get_free_memory(device) - wanted) > 0:
        held.allocate(rest)
    return held


def find_memory_skip_reason(needed: int, left: int) -> str:
    """Return the reason to skip a test that needs more memory than is left, or an empty text."""
    return (
        f"did not run: it needs {needed / 1e9:.1f} GB of GPU memory, {left / 1e9:.1f} are left" if needed > left else ""
    )
