"""GPU times of launches by CUDA events, with cold and warm L2 cache, and interleaved host times of calls."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from statistics import median
from typing import Self, TypeVar

from ..native.cuda import Memory, Timer, query_l2_bytes

__all__ = [
    "FLUSHES_AHEAD",
    "Batch",
    "GpuClock",
    "make_repeated_batch",
    "measure_gpu_time",
    "rotate_items",
    "time_host_calls",
    "without_garbage_collection",
]

FLUSHES_AHEAD = 8  # flushes before a sample: some 0.2 ms, in which the host queues the launch of a plan
_WARM_UP_BATCHES = 3

Item = TypeVar("Item")
#: Makes calls, given the number of its batch and how many calls; returns the nanoseconds they took on the host.
Batch = Callable[[int, int], float]


class GpuClock:
    """Times launches on one GPU between CUDA events.

    The L2 cache is cold after a flush, which writes memory of twice its size. Meanwhile the host gets ahead, so that
    the GPU does not wait for launches. A context manager; closing frees the memory.

    Parameters
    ----------
    device
        The GPU's ordinal.
    runs
        How many runs a sample has.

    Raises
    ------
    CudnnBackendError
        ``cuda-driver``.
    """

    def __init__(self, device: int, runs: int = 2) -> None:
        self.l2_bytes = query_l2_bytes(device)
        self._flush_bytes = max(2 * self.l2_bytes, 1 << 22)
        self._flush_address = 0  # allocated by the first flush
        self._memory, self._timer, self._runs = Memory(device), Timer(device, runs + 1), runs

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Free the clock's memory; may be repeated."""
        self._timer.close()
        self._memory.free()

    def time_runs(self, launch: Callable[[], object], stream: int, *, flushes: int = 1) -> list[float]:
        """Return the microseconds of consecutive runs; only the first one starts with a cold L2 cache.

        Parameters
        ----------
        flushes
            How often the L2 cache is flushed before the first run, which is warm if this is 0; :data:`FLUSHES_AHEAD`
            also lets the host queue the launches.
        """
        if flushes:
            self._flush_address = self._flush_address or self._memory.allocate(self._flush_bytes)
        for _ in range(flushes):
            self._memory.clear(self._flush_address, self._flush_bytes, stream)
        self._timer.record(0, stream)
        for run in range(self._runs):
            launch()
            self._timer.record(run + 1, stream)
        return [self._timer.measure_microseconds(run, run + 1) for run in range(self._runs)]


def measure_gpu_time(run: Callable[[], object], stream: int, *, device: int = 0, repeats: int = 20) -> float:
    """Return the median GPU time of `run`, in microseconds, with a warm L2 cache.

    Raises
    ------
    CudnnBackendError
        ``cuda-driver``.
    """
    for _ in range(_WARM_UP_BATCHES):
        run()
    with GpuClock(device, repeats) as clock:
        return median(clock.time_runs(run, stream, flushes=0))


def time_host_calls(
    contenders: Mapping[str, Batch], batches: int, calls: int, wait: Callable[[], object]
) -> dict[str, list[float]]:
    """Return host microseconds per call, one value per batch; the first three batches warm up.

    The contenders take turns, and no garbage is collected. `wait` waits for the GPU, before each batch and at the end.
    """
    times: dict[str, list[float]] = {name: [] for name in contenders}
    with without_garbage_collection():
        for number in range(batches):
            for name in rotate_items(list(contenders), number):
                wait()
                nanoseconds = contenders[name](number, calls)
                if number >= _WARM_UP_BATCHES:
                    times[name].append(nanoseconds / calls / 1e3)
        wait()
    return times


def make_repeated_batch(call: Callable[[], object]) -> Batch:
    """Return a batch function that repeats the same call."""

    def run(_batch: int, calls: int) -> float:
        start = time.perf_counter_ns()
        for _ in range(calls):
            call()
        return time.perf_counter_ns() - start

    return run


def rotate_items(items: Sequence[Item], by: int) -> list[Item]:
    """Return the items rotated by some positions, so that each contender starts some of the rounds."""
    by %= max(1, len(items))
    return [*items[by:], *items[:by]]


@contextmanager
def without_garbage_collection() -> Iterator[None]:
    """Collect garbage now, then disable collection for a block."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
