"""Read cuDNN's words: the last-error text of a heuristics query, as refusals with their chains of reasons."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

__all__ = ["Reason", "Refusal", "read_refusals"]

_REASON = re.compile(r"^\s*(?:Warning|Error): (?P<status>CUDNN_STATUS_\w+); Reason: (?P<text>.*)$")
_CONFIG = re.compile(r'^\s*(?:engineConfig: type=json; val=)?(?P<json>\{"engineId".*\});?\s*$')


@dataclass(frozen=True, slots=True)
class Reason:
    """One line of cuDNN's explanation: a status, what it says, and the expression that failed, if it names one."""

    status: str
    text: str

    @property
    def statement(self) -> str:
        """What comes before `` at: ``."""
        return self.text.partition(" at: ")[0].strip()

    @property
    def expression(self) -> str | None:
        """What comes after `` at: ``: the C++ condition that was met."""
        return self.text.partition(" at: ")[2].strip() or None

    def __str__(self) -> str:
        return f"{self.status}: {self.text}" if self.status else self.text


@dataclass(frozen=True, slots=True)
class Refusal:
    """One refused engine config and why, innermost reason first; ``engine`` None where cuDNN named no config."""

    engine: int | None
    sm: int | None
    knobs: Mapping[str, int] = field(default_factory=dict)
    reasons: tuple[Reason, ...] = ()

    @property
    def innermost(self) -> Reason | None:
        """The most specific reason."""
        return self.reasons[0] if self.reasons else None


def read_refusals(text: str) -> list[Refusal]:
    """Return the refusals in a last-error text, in cuDNN's order.

    Lines that are neither a config nor a reason stay with the reason above them, so nothing is lost.
    """
    refusals: list[Refusal] = []
    config: dict[str, object] | None = None
    reasons: list[Reason] = []

    def flush() -> None:
        if config is not None or reasons:
            refusals.append(_refusal(config, tuple(reasons)))
        reasons.clear()

    for line in text.splitlines():
        if match := _CONFIG.match(line):
            flush()
            config = _parse(match["json"])
        elif match := _REASON.match(line):
            reasons.append(Reason(match["status"], match["text"].strip()))
        elif line.strip() and not line.lstrip().startswith("==="):
            if reasons:
                last = reasons.pop()
                reasons.append(Reason(last.status, f"{last.text}\n{line.strip()}"))
            else:
                reasons.append(Reason("", line.strip()))
    flush()
    return refusals


def _parse(text: str) -> dict[str, object]:
    try:
        value = json.loads(text)
    except json.JSONDecodeError:
        return {}
    return value if isinstance(value, dict) else {}


def _refusal(config: Mapping[str, object] | None, reasons: tuple[Reason, ...]) -> Refusal:
    config = config or {}
    engine, sm, knobs = config.get("engineId"), config.get("smVersion"), config.get("knobChoices")
    return Refusal(
        engine if isinstance(engine, int) else None,
        sm // 10 if isinstance(sm, int) else None,
        {str(key): int(value) for key, value in knobs.items()} if isinstance(knobs, dict) else {},
        reasons,
    )
