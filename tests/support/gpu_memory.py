"""GPU memory that tests may take: ``CUDNN_BACKEND_GPU_MEMORY_GB=16`` leaves that much and takes the rest away.

A marker, ``gpu_bytes(N)``, says what a test needs; where less is left it is skipped, with both numbers.
"""

from __future__ import annotations

import ctypes
import os

from cudnn_backend_py.native.cuda import Memory, on_device, run_driver

__all__ = ["VARIABLE", "limit_memory", "memory_left", "too_large"]

VARIABLE = "CUDNN_BACKEND_GPU_MEMORY_GB"


def limit() -> int | None:
    """Return the bytes that the variable says, None without it."""
    said = os.environ.get(VARIABLE, "")
    return int(float(said) * 1e9) if said else None


def memory_left(device: int = 0) -> int:
    """Return the bytes of a GPU that no one has taken. C: ``cuMemGetInfo``."""
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    with on_device(device):
        run_driver("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
    return free.value


def limit_memory(device: int = 0) -> Memory:
    """Take all memory of a GPU but that of the variable, until what is returned is freed."""
    held, wanted = Memory(device), limit()
    if wanted is not None and (rest := memory_left(device) - wanted) > 0:
        held.allocate(rest)
    return held


def too_large(needed: int, left: int) -> str:
    """Return why a test does not run that needs so many bytes; empty if it does."""
    return (
        f"did not run: it needs {needed / 1e9:.1f} GB of GPU memory, {left / 1e9:.1f} are left" if needed > left else ""
    )
