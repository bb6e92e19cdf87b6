"""The results of an audit: calls seen and checked, their cost, and the wrong cases. Independent of torch."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..printable import printable

__all__ = ["AuditReport", "StoredCase"]

SCHEMA, SCHEMA_VERSION = "cudnn-backend-py/audit", 1
_TIMES = ("counted_s", "host_s", "gpu_s", "setup_s", "elapsed_s", "waited_s")


@dataclass(frozen=True, slots=True)
class StoredCase:
    """A wrong case: its file, or why it was not stored, and its description."""

    path: Path | None
    why: str
    text: str
    wrong: tuple[str, ...]


@dataclass
class AuditReport:
    """The results of an audit.

    Attributes
    ----------
    calls, sampled, checked
        Calls seen; those that were sampled, by entry point; and the outputs compared, by name.
    passed_over
        Calls that were due and not sampled, by why.
    wrong
        The cases.
    unjudged
        Calls that were sampled and of which nothing can be said, by why.
    host_s, gpu_s, elapsed_s
        Seconds the checks took of the host and of the GPU, and how long the audit lasted.
    counted_s
        Seconds that counting took of the calls which were not sampled, as long as each takes in a loop of nothing else.
    setup_s
        Seconds of the host and the GPU that the first checks of their kinds took in this process: they load kernels.
    waited_s
        Seconds that were waited for checks at the end.
    """

    calls: int = 0
    sampled: Counter[str] = field(default_factory=Counter)
    checked: Counter[str] = field(default_factory=Counter)
    passed_over: Counter[str] = field(default_factory=Counter)
    wrong: list[StoredCase] = field(default_factory=list)
    unjudged: Counter[str] = field(default_factory=Counter)
    counted_s: float = 0.0
    host_s: float = 0.0
    gpu_s: float = 0.0
    setup_s: float = 0.0
    elapsed_s: float = 0.0
    waited_s: float = 0.0

    @property
    def cost(self) -> float:
        """The share of the time that the audit used: counting, plus checks on host and GPU; an upper bound."""
        return (self.counted_s + self.host_s + self.gpu_s) / self.elapsed_s if self.elapsed_s else 0.0

    def __str__(self) -> str:
        sampled = ", ".join(f"{count} of {entry_point}" for entry_point, count in self.sampled.items())
        lines = [
            f"audit: {_format_call_count(self.calls)}, "
            f"{sum(self.sampled.values())} sampled{sampled and f' ({sampled})'}, "
            f"{len(self.wrong)} wrong; it took {self.cost:.2%} of {self.elapsed_s:.1f} s"
            + (f", {self.setup_s:.1f} s at first checks" if self.setup_s >= 0.1 else "")
            + (f", and {self.waited_s:.1f} s at the end" if self.waited_s >= 0.1 else "")
        ]
        for one in self.wrong:
            lines += [one.text, f"  kept: {one.path}" if one.path else f"  not kept: {one.why}"]
            if one.path:
                lines.append(f"  cudnn-backend audit {one.path}")
        lines += [f"not checked: {_format_call_count(count)}: {why}" for why, count in self.passed_over.items()]
        lines += [f"not judged: {_format_call_count(count)}: {why}" for why, count in self.unjudged.items()]
        return "".join(f"{printable(line)}\n" for text in lines for line in text.split("\n"))

    def to_dict(self) -> dict[str, Any]:
        """Return the report as plain data."""
        counts = {name: dict(getattr(self, name)) for name in ("sampled", "checked", "passed_over", "unjudged")}
        times = {name: round(getattr(self, name), 6) for name in _TIMES}
        wrong = [
            {"file": None if one.path is None else str(one.path), "why": one.why, "text": one.text, "wrong": one.wrong}
            for one in self.wrong
        ]
        return {"schema": SCHEMA, "version": SCHEMA_VERSION, "calls": self.calls, **counts, "wrong": wrong, **times}

    def to_json(self) -> str:
        """Return the report as JSON."""
        return json.dumps(self.to_dict(), indent=1) + "\n"


def _format_call_count(count: int) -> str:
    return f"{count} call" + "s" * (count != 1)
