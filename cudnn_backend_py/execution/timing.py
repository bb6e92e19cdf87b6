"""GPU time of a function, measured by CUDA events."""

from __future__ import annotations

from collections.abc import Callable
from statistics import median

from .run import cuda_call, cuda_runtime

__all__ = ["gpu_time"]


def gpu_time(run: Callable[[], object], stream: int, *, repeats: int = 20) -> float:
    """Return the median GPU time of `run`, in microseconds, between two CUDA events on `stream`.

    Raises
    ------
    EnvironmentNotReady
        ``cuda-python-missing``.
    CudnnBackendError
        ``cuda-runtime``.
    """
    runtime = cuda_runtime()
    for _ in range(3):
        run()
    pairs = [[cuda_call(runtime, "cudaEventCreate") for _ in range(2)] for _ in range(repeats)]
    try:
        for start, end in pairs:
            cuda_call(runtime, "cudaEventRecord", start, stream)
            run()
            cuda_call(runtime, "cudaEventRecord", end, stream)
        cuda_call(runtime, "cudaStreamSynchronize", stream)
        times = [float(cuda_call(runtime, "cudaEventElapsedTime", start, end)) * 1e3 for start, end in pairs]
    finally:
        for pair in pairs:
            for event in pair:
                cuda_call(runtime, "cudaEventDestroy", event)
    return median(times)
