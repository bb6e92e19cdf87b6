"""Run rounds of torture tests with seeds and time limits, and collect counts and failures."""

from __future__ import annotations

import importlib
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

__all__ = [
    "AREAS",
    "VERSIONS",
    "BrokenGuarantee",
    "Report",
    "import_torture_round_of_area",
    "run_rounds_of_area",
    "run_torture_round",
]

AREAS = (
    *("level0", "interruptions", "graphs", "remedies", "judge", "environment"),
    *("plan_cache", "files", "serialized", "command_line", "install"),
)
VERSIONS = ("9.14.0", "9.19.0", "9.24.0", None)  # installed cuDNN versions; None is that of the environment

RoundFunction = Callable[[int, Path], Counter[str]]


class BrokenGuarantee(AssertionError):
    """Raised if the package breaks a documented guarantee; the text has the guarantee and the steps."""


@dataclass
class Report:
    """Counts and failures of the rounds of one area."""

    area: str
    rounds: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    failures: dict[int, str] = field(default_factory=dict)  # seed -> description of the failure

    def list_report_lines(self) -> Iterator[str]:
        """Yield the lines of the report: counts, and each failure with the command that repeats it."""
        yield f"{self.area}: {self.rounds} rounds, {len(self.failures)} failed"
        yield from (f"  {count:>12,}  {what}" for what, count in sorted(self.counts.items()))
        for seed, what in self.failures.items():
            yield f"  FAILED with seed {seed}: python -m tests.torture {self.area} --rounds 1 --seed {seed}"
            yield from (f"    {line}" for line in what.splitlines())


def import_torture_round_of_area(area: str) -> RoundFunction:
    """Return the function that runs one round of an area."""
    function: RoundFunction = importlib.import_module(f"tests.torture.{area}").run_random_round
    return function


def run_torture_round(area: str, seed: int) -> Counter[str]:
    """Run one round in its own folder and return its counts."""
    with tempfile.TemporaryDirectory(prefix=f"torture-{area}-") as folder:
        return import_torture_round_of_area(area)(seed, Path(folder))


def run_rounds_of_area(area: str, seeds: Sequence[int] | Iterator[int], *, until: float = float("inf")) -> Report:
    """Run rounds until all seeds are used or ``time.monotonic()`` exceeds `until`; any exception is a failure."""
    report = Report(area)
    for seed in seeds:
        try:
            report.counts += run_torture_round(area, seed)
        except Exception:
            report.failures[seed] = traceback.format_exc(limit=-4)
        report.rounds += 1
        if time.monotonic() > until:
            break
    return report
