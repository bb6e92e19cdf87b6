"""Interleaved timing on torch's current stream: medians with quartiles."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

from ...execution import timing
from ...execution.timing import FLUSHES_AHEAD, Batch, GpuClock, make_repeated_batch, rotate_items
from ...tuning.statistics import Timing

__all__ = [
    "KEEP_BUSY_US",
    "make_batch_in_context",
    "make_call_in_context",
    "measure_gpu_times",
    "measure_host_times",
    "summarize_microseconds",
]

KEEP_BUSY_US = 1500.0  # more than a torch operator and its backward pass take on the host
_MAX_CYCLES_PER_US = 2000  # of the clocks of GPUs


def summarize_microseconds(timing: Timing) -> dict[str, float]:
    """Return the median, quartiles and count of a timing, rounded."""
    return {name: round(value, 3) for name, value in asdict(timing).items()}


def measure_gpu_times(
    contenders: Mapping[str, Callable[[], Any]], rounds: int, *, ahead_us: float = 0.0
) -> dict[str, Timing]:
    """Measure the GPU times of implementations in turns, with a cold L2 cache; return them in the given order.

    Parameters
    ----------
    ahead_us
        How long the GPU is kept busy before each call, at least, so that the host has queued all of its work before
        the GPU comes to it: more than the call's host time. The flushes alone are enough for a plan.
    """
    import torch

    stream = torch.cuda.current_stream().cuda_stream
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for call in contenders.values():
        for _ in range(3):
            call()
    with GpuClock(torch.cuda.current_device(), runs=1) as clock:
        for number in range(rounds):
            for name in rotate_items(list(contenders), number):
                if ahead_us:
                    torch.cuda._sleep(int(ahead_us * _MAX_CYCLES_PER_US))
                times[name] += clock.time_runs(contenders[name], stream, flushes=FLUSHES_AHEAD)
    return {name: Timing.from_times(found) for name, found in times.items()}


def measure_host_times(contenders: Mapping[str, Batch], batches: int, calls: int) -> dict[str, Timing]:
    """Return host microseconds per call, measured by ``execution.timing.time_host_calls``."""
    import torch

    times = timing.time_host_calls(contenders, batches, calls, torch.cuda.synchronize)
    return {name: Timing.from_times(found) for name, found in times.items()}


def make_batch_in_context(context: Callable[[], Any], call: Callable[[], Any]) -> Batch:
    """Return a batch function that repeats a call inside a new context manager for each batch."""
    timed = make_repeated_batch(call)

    def run(batch: int, calls: int) -> float:
        with context():
            return timed(batch, calls)

    return run


def make_call_in_context(context: Callable[[], Any], call: Callable[[], Any]) -> Callable[[], Any]:
    """Return a function that makes one call inside a new context manager."""

    def run() -> None:
        with context():
            call()

    return run
