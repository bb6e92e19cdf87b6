"""Limit the share of a program's running time that the checks of an audit use. Does not import torch.

A sample is allowed once the time that has passed pays for it: for counting calls, for all that samples took before, and
for what one of its kind takes on average. All together stays within the share, but for one sample that takes longer
than usual; and a quarter of the share is for samples, however much counting takes.
The first sample of a kind in a process loads kernels, which takes a second where the others take milliseconds: it is
counted apart.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

__all__ = ["UNKNOWN_S", "Budget", "SampleCost"]

LEAST = 0.25  # of the share is left to samples
UNKNOWN_S = 0.01  # what a sample of a kind is taken to need before there was one


@dataclass(slots=True)
class _SampleKindCost:
    """How many calls were checked in one kind of check and the seconds they took, without the slow first one."""

    count: int = 0
    seconds: float = 0.0


_kinds: dict[str, _SampleKindCost] = {}
_lock = threading.Lock()


class Budget:
    """The share of the time since :meth:`start` that an audit may use; pauses do not count.

    Attributes
    ----------
    counted_s
        Seconds that calls took to be counted.
    host_s, gpu_s, setup_s
        Seconds that samples took of the host and the GPU, and the first ones of their kinds of both.
    """

    def __init__(self, share: float, clock: Callable[[], float] = time.perf_counter) -> None:
        self.share, self._clock = share, clock
        self.counted_s = self.host_s = self.gpu_s = self.setup_s = 0.0
        self._passed = 0.0
        self._since: float | None = None

    def start(self) -> None:
        """Start or resume counting time."""
        self._since = self._clock()

    def pause(self) -> None:
        """Stop counting time until :meth:`start`."""
        self._passed, self._since = self.elapsed_s, None

    @property
    def elapsed_s(self) -> float:
        """The seconds between :meth:`start` and now, without pauses."""
        return self._passed if self._since is None else self._passed + self._clock() - self._since

    def find_elapsed_s_when_samples_are_affordable(self, *kinds: str) -> float:
        """Return the elapsed time, in seconds, at which the budget allows one more sample of each given kind."""
        known = [_kinds.get(kind) for kind in kinds]
        typical = sum(one.seconds / one.count if one is not None and one.count else UNKNOWN_S for one in known)
        passed = self.elapsed_s
        left = self.share - self.counted_s / passed if passed else self.share
        return (self.host_s + self.gpu_s + typical) / max(left, LEAST * self.share)

    def add_call_counting_seconds(self, seconds: float) -> None:
        """Add the seconds that an audit spent on counting the program's calls to the time it used."""
        with _lock:
            self.counted_s += seconds

    def start_sample(self, kind: str) -> SampleCost:
        """Count one more checked call of a kind, and return the object to which the caller adds its seconds."""
        with _lock:
            is_first = kind not in _kinds
            known = _kinds.setdefault(kind, _SampleKindCost())
            known.count += not is_first
        return SampleCost(self, kind, is_first)

    def add_seconds(self, seconds: float) -> None:
        """Add host seconds to the time that the audit used, but not to the cost of any single checked call."""
        with _lock:
            self.host_s += seconds


@dataclass(frozen=True, slots=True)
class SampleCost:
    """The cost of checking one call: adds its host and GPU seconds to the budget and to the total of its kind."""

    budget: Budget
    kind: str
    is_first: bool

    def add_seconds(self, seconds: float, *, on_gpu: bool = False) -> None:
        """Add seconds of this sample to the budget, from any thread."""
        budget = self.budget
        with _lock:
            if self.is_first:
                budget.setup_s += seconds
                return
            _kinds[self.kind].seconds += seconds
            if on_gpu:
                budget.gpu_s += seconds
            else:
                budget.host_s += seconds
