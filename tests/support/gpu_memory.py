"""A limit of GPU memory for tests: with ``CUDNN_BACKEND_GPU_MEMORY_GB=16``, each test process can use 16 GB.

The first process allocates the memory above the sum of all limits, and each process limits PyTorch's allocator.
The marker ``gpu_bytes(N)`` states the bytes that a test needs; with less free memory the test is skipped.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os

from cudnn_backend_py.native.cuda import Memory, call_driver, on_device

__all__ = [
    "MEMORY_LIMIT_VARIABLE",
    "find_memory_skip_reason",
    "get_free_memory",
    "limit_torch_memory",
    "occupy_memory_above_limit",
]

MEMORY_LIMIT_VARIABLE = "CUDNN_BACKEND_GPU_MEMORY_GB"


def read_memory_limit() -> int | None:
    """Return the limit in bytes from the environment variable, None if it is not set."""
    said = os.environ.get(MEMORY_LIMIT_VARIABLE, "")
    return int(float(said) * 1e9) if said else None


def query_memory(device: int = 0) -> tuple[int, int]:
    """Return the free and the total memory of a GPU in bytes. C: ``cuMemGetInfo``."""
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    with on_device(device):
        call_driver("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
    return free.value, total.value


def get_free_memory(device: int = 0) -> int:
    """Return the bytes of GPU memory that a test can use: the free memory, but at most the limit."""
    free, _ = query_memory(device)
    return min(free, read_memory_limit() or free)


def limit_torch_memory(device: int = 0) -> None:
    """Let PyTorch's allocator use at most the limit in this process; without PyTorch or a limit, do nothing."""
    if (limit := read_memory_limit()) is not None and importlib.util.find_spec("torch"):
        import torch

        torch.cuda.set_per_process_memory_fraction(min(limit / query_memory(device)[1], 1.0), device)


def occupy_memory_above_limit(processes: int, device: int = 0) -> Memory:
    """Allocate the memory of a GPU above the limits of `processes`; freeing the returned memory ends the limit."""
    held, limit = Memory(device), read_memory_limit()
    if limit is not None and (rest := query_memory(device)[0] - limit * processes) > 0:
        held.allocate(rest)
    return held


def find_memory_skip_reason(needed: int, left: int) -> str:
    """Return the reason to skip a test that needs more memory than is left, or an empty text."""
    return (
        f"did not run: it needs {needed / 1e9:.1f} GB of GPU memory, {left / 1e9:.1f} are left" if needed > left else ""
    )
