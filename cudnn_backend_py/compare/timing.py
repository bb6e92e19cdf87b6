"""Timing: contenders take turns, medians with quartiles are reported."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from ..native.cuda import Timer
from ..tuning.statistics import Timing
from .shapes import Effort

AHEAD_US = 1500.0  # more than a torch operator and its backward pass take on the host

__all__ = ["AHEAD_US", "fresh", "gpu_times", "host_times", "microseconds", "once_within", "rotate", "same", "within"]


_MOST_CYCLES_PER_US = 2000  # of the clocks of GPUs


def microseconds(timing: Timing) -> dict[str, float]:
    """Return the median, quartiles and count of a timing, rounded."""
    return {name: round(value, 3) for name, value in asdict(timing).items()}


def gpu_times(contenders: Mapping[str, Callable[[], Any]], rounds: int, *, ahead_us: float = 0.0) -> dict[str, Timing]:
    """Return the GPU times between two events, L2 flushed before each, in the order of the contenders.

    Parameters
    ----------
    ahead_us
        How long the GPU is kept busy before each call, at least, so that the host has queued all of its work before
        the GPU comes to it: more than the call's host time. The flush alone is enough for a plan.
    """
    import torch

    device, stream = torch.cuda.current_device(), torch.cuda.current_stream().cuda_stream
    flush = torch.empty(256 << 20, dtype=torch.uint8, device="cuda")
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for call in contenders.values():
        for _ in range(3):
            call()
    with Timer(device, 2 * len(contenders)) as timer:
        for number in range(rounds):
            names = rotate(list(contenders), number)
            for index, name in enumerate(names):
                if ahead_us:
                    torch.cuda._sleep(int(ahead_us * _MOST_CYCLES_PER_US))
                for _ in range(2):  # long enough that the host has queued the launch before the GPU comes to it
                    flush.zero_()
                timer.mark(2 * index, stream)
                contenders[name]()
                timer.mark(2 * index + 1, stream)
            for index, name in enumerate(names):
                times[name].append(timer.microseconds(2 * index, 2 * index + 1))
    return {name: Timing.of(found) for name, found in times.items()}


def host_times(contenders: Mapping[str, Callable[[int, int], float]], effort: Effort) -> dict[str, Timing]:
    """Return host microseconds per call; a contender gets a batch number and how many calls to make.

    It returns the nanoseconds they took. The first batches warm up.
    """
    import torch

    times: dict[str, list[float]] = {name: [] for name in contenders}
    gc.collect()
    gc.disable()
    try:
        for batch in range(effort.host_batches):
            for name in rotate(list(contenders), batch):
                torch.cuda.synchronize()
                nanoseconds = contenders[name](batch, effort.host_calls)
                if batch >= 3:
                    times[name].append(nanoseconds / effort.host_calls / 1e3)
        torch.cuda.synchronize()
    finally:
        gc.enable()
    return {name: Timing.of(found) for name, found in times.items()}


def rotate(names: list[str], by: int) -> list[str]:
    by %= len(names)
    return names[by:] + names[:by]


def same(call: Callable[[], Any]) -> Callable[[int, int], float]:
    """Return a contender that makes the same call again and again."""

    def run(_batch: int, calls: int) -> float:
        start = time.perf_counter_ns()
        for _ in range(calls):
            call()
        return time.perf_counter_ns() - start

    return run


def fresh(call: Callable[..., Any], sets: Sequence[Any]) -> Callable[[int, int], float]:
    """Return a contender that makes each call with another set of arguments."""

    def run(batch: int, calls: int) -> float:
        mine = sets[batch * calls : (batch + 1) * calls]
        start = time.perf_counter_ns()
        for arguments in mine:
            call(*arguments)
        return time.perf_counter_ns() - start

    return run


def within(context: Callable[[], Any], call: Callable[[], Any]) -> Callable[[int, int], float]:
    timed = same(call)

    def run(batch: int, calls: int) -> float:
        with context():
            return timed(batch, calls)

    return run


def once_within(context: Callable[[], Any], call: Callable[[], Any]) -> Callable[[], Any]:
    def run() -> None:
        with context():
            call()

    return run
