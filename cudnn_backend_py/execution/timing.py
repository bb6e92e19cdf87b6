"""GPU time of a function, measured by CUDA events."""

from __future__ import annotations

from collections.abc import Callable
from statistics import median

from ..native.cuda import Timer

__all__ = ["gpu_time"]


def gpu_time(run: Callable[[], object], stream: int, *, device: int = 0, repeats: int = 20) -> float:
    """Return the median GPU time of `run`, in microseconds, between two CUDA events on `stream`.

    Raises
    ------
    CudnnBackendError
        ``cuda-driver``.
    """
    for _ in range(3):
        run()
    with Timer(device, 2 * repeats) as timer:
        for start in range(0, 2 * repeats, 2):
            timer.mark(start, stream)
            run()
            timer.mark(start + 1, stream)
        return median(timer.microseconds(start, start + 1) for start in range(0, 2 * repeats, 2))
