"""Statistics of timed engine configs: medians, spread, choice of the fastest, table of results.

All of it is about plain data and graphs; it needs no GPU and no cuDNN.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

if TYPE_CHECKING:
    from rich.table import Table

__all__ = [
    "MIN_ROUNDS",
    "CacheState",
    "TimeBudget",
    "Timing",
    "choose_fastest_candidate",
    "find_slow_candidates",
    "make_timing_table",
]

CacheState = Literal["cold", "warm"]

# A gain of less than this share is none. In the 80 comparisons of a plan with itself that one run of the bench makes
# (an H200, logs/bench-h200-cudnn-9.19.0.json), with other buffers and another workspace, differences beyond the spread
# come up to 1.8 percent.
RELATIVE_NOISE = 0.02
MIN_ROUNDS = 5  # fewer samples decide nothing


# Statistics and choice


@dataclass(frozen=True, slots=True)
class Timing:
    """GPU times in microseconds: median, lower and upper quartile, number of samples."""

    median_us: float
    low_us: float
    high_us: float
    samples: int

    @classmethod
    def from_times(cls, times_us: list[float]) -> Timing:
        """Return the statistics of one or more times."""
        low, median, high = (float(value) for value in np.percentile(times_us, (25, 50, 75)))
        return cls(median, low, high, len(times_us))

    @property
    def spread_us(self) -> float:
        """Half of the distance between the quartiles."""
        return (self.high_us - self.low_us) / 2

    def beats(self, other: Timing) -> bool:
        """Return whether this timing is faster by more than both spreads, and by more than :data:`RELATIVE_NOISE`.

        What is chosen by tuning and what the bench accepts are both decided by this.
        """
        noise = max(self.spread_us + other.spread_us, RELATIVE_NOISE * other.median_us)
        return other.median_us - self.median_us > noise


CandidateTimings = Mapping[str, Mapping[CacheState, Timing]]


def choose_fastest_candidate(timings: CandidateTimings, first: str, by: CacheState = "cold") -> str:
    """Return the tag of the fastest candidate that is clearly faster than `first`; else `first`.

    A candidate is taken only if it beats `first` beyond the spread in `by`, is not beaten by it in the other state of
    the L2 cache, and both were timed :data:`MIN_ROUNDS` times or more.
    """
    other: CacheState = "warm" if by == "cold" else "cold"
    mark = timings[first]
    for tag in sorted(timings, key=lambda tag: timings[tag][by].median_us):
        mine = timings[tag]
        enough = min(mine[by].samples, mark[by].samples) >= MIN_ROUNDS
        if enough and mine[by].beats(mark[by]) and not mark[other].beats(mine[other]):
            return tag
    return first


def find_slow_candidates(timings: CandidateTimings, first: str, factor: float = 1.5) -> set[str]:
    """Return the candidates to stop timing: slower than the best by `factor`, with both cold and warm cache."""
    states: tuple[CacheState, CacheState] = ("cold", "warm")
    best = {state: min(timing[state].median_us for timing in timings.values()) for state in states}
    return {
        tag
        for tag, timing in timings.items()
        if tag != first and all(timing[state].low_us > factor * best[state] for state in best)
    }


class TimeBudget:
    """A time budget in seconds, which starts when the object is created."""

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.seconds = seconds
        self._clock = clock
        self._start = clock()

    @property
    def spent_s(self) -> float:
        """The seconds since the budget was created."""
        return self._clock() - self._start

    def has_time_for(self, seconds: float, share: float = 1.0) -> bool:
        """Return whether an action of this duration would end within this share of the budget."""
        return self.spent_s + seconds <= self.seconds * share


def make_timing_table(evidence: Mapping[str, Any]) -> Table:
    """Return a text table of the timed candidates, fastest first."""
    from rich.text import Text

    from ..terminal import BorderlessTextTable

    by = evidence["by"]
    table = BorderlessTextTable(title=f"{evidence['graph']} on {evidence['device']}, cuDNN {evidence['cudnn']}")
    for name in ("engine config", "mode", "cold us", "warm us", "workspace", "build s", "remark"):
        table.add_column(name, justify="right" if name[-2:] in ("us", " s") or name == "workspace" else "left")
    timed = [item for item in evidence["candidates"] if by in item]
    rest = [item for item in evidence["candidates"] if by not in item]
    for item in sorted(timed, key=lambda item: item[by]["median_us"]) + rest:
        remarks = [word for word in ("winner", "first") if item["tag"] == evidence[word] and by in item]
        if item["state"] != "timed":
            remarks.append(f"{item['state']}: {item['reason'].splitlines()[0]}")
        cells = (
            item["tag"],
            item["mode"],
            *(_format_time_cell(item.get(state)) for state in ("cold", "warm")),
            str(item.get("workspace_bytes", "")),
            f"{item['build_s']:.2f}" if "build_s" in item else "",
            ", ".join(remarks),
        )
        table.add_row(*map(Text, cells))
    return table


def _format_time_cell(timing: Mapping[str, float] | None) -> str:
    if timing is None:
        return ""
    return f"{timing['median_us']:.2f} ± {(timing['high_us'] - timing['low_us']) / 2:.2f}"
