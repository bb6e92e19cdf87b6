"""Memory, files and threads that this process uses."""

from __future__ import annotations

import ctypes
import gc
import os
import sys
import threading
from functools import cache
from pathlib import Path

__all__ = ["measure_resources", "read_resident_bytes"]


class _MallocInfo(ctypes.Structure):
    names = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost"
    _fields_ = tuple((name, ctypes.c_size_t) for name in names.split())


@cache
def _load_libc() -> ctypes.CDLL:
    libc = ctypes.CDLL(None)
    libc.mallinfo2.restype = _MallocInfo
    return libc


def read_resident_bytes() -> int:
    """Return the resident memory of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def measure_resources() -> dict[str, int]:
    """Return the resources in use: resident memory, bytes from malloc, Python's memory blocks, files, threads.

    First, garbage is collected and free memory returned to the system. It needs glibc 2.33 or later.
    """
    gc.collect()
    _load_libc().malloc_trim(0)
    heap = _load_libc().mallinfo2()
    return {
        "resident_bytes": read_resident_bytes(),
        "malloc_bytes": heap.uordblks + heap.hblkhd,
        "python_blocks": sys.getallocatedblocks(),
        "open_files": len(os.listdir("/proc/self/fd")),
        "threads": len(os.listdir("/proc/self/task")),
        "python_threads": threading.active_count(),
    }
