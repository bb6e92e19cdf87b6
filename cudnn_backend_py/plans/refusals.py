"""Parse cuDNN's last-error text into refused engine configs, each with its chain of reasons."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from types import NoneType
from typing import Protocol

from ..errors import REASON_LINE, CudnnStatusError, GraphError
from ..frozen import FrozenValue
from ..printable import mask_memory_addresses
from ..system.untrusted_files import parse_json
from .choice import EngineChoice, read_logged_choice

__all__ = ["Reason", "Refusal", "find_deepest_reason_among_configs", "read_error_reasons", "read_refusals"]

_REASON_PATTERN = re.compile(REASON_LINE)
_CONFIG_PATTERN = re.compile(r'^\s*(?:engineConfig: type=json; val=)?(?P<json>\{.*"engineId".*)$')
_SEPARATOR_PATTERN = re.compile(r"^\s*=== error stack \(\d+/\d+\) ===\s*$")

_Config = tuple[int, int | None, dict[str, int]]  # engine, architecture, knobs


class Reason(FrozenValue):
    """One line of cuDNN's explanation: a status, a statement, and the failed expression if given.

    Addresses in it are masked, as :func:`mask_memory_addresses` does.
    """

    status: str
    text: str

    def __post_init__(self) -> None:
        object.__setattr__(self, "text", mask_memory_addresses(self.text))

    @property
    def statement(self) -> str:
        """What the line states: its text before `` at: ``."""
        return self.text.partition(" at: ")[0].strip()

    @property
    def expression(self) -> str | None:
        """The C++ condition for which cuDNN refused the config, after `` at: `` in the line; None without one."""
        return self.text.partition(" at: ")[2].strip() or None

    def __str__(self) -> str:
        return f"{self.status}: {self.text}" if self.status else self.text


_NO_KNOBS: Mapping[str, int] = {}


class Refusal(FrozenValue):
    """A refused engine config with its reasons, innermost first; ``engine`` is None where cuDNN named no config."""

    engine: int | None
    sm: int | None
    knobs: Mapping[str, int] = _NO_KNOBS
    reasons: tuple[Reason, ...] = ()

    @property
    def choice(self) -> EngineChoice | None:
        """The engine and its knob values; None where cuDNN named no config."""
        return None if self.engine is None else EngineChoice.from_log(self.engine, self.knobs)

    @property
    def innermost(self) -> Reason | None:
        """The first reason, which is the most specific one; None if there are no reasons."""
        return self.reasons[0] if self.reasons else None


def read_refusals(text: str) -> list[Refusal]:
    """Return the refusals in a last-error text, in cuDNN's order.

    Lines that are neither a config nor a reason stay with the reason above them, and a config that is cut off is the
    first reason of a refusal without engine, so nothing is lost but the separators of the log.
    """
    refusals: list[Refusal] = []
    config: _Config | None = None
    reasons: list[Reason] = []

    def store_refusal() -> None:
        if config is not None or reasons:
            engine, sm, knobs = config or (None, None, {})
            refusals.append(Refusal(engine, sm, knobs, tuple(reasons)))
        reasons.clear()

    for line in text.splitlines():
        if match := _CONFIG_PATTERN.match(line):
            store_refusal()
            config = _parse_config(match["json"])
            if config is None:
                reasons.append(Reason("", line.strip()))
        elif match := _REASON_PATTERN.match(line):
            reasons.append(Reason(match["status"], match["text"].strip()))
        elif line.strip() and not _SEPARATOR_PATTERN.match(line):
            if reasons:
                last = reasons.pop()
                reasons.append(Reason(last.status, f"{last.text}\n{line.strip()}"))
            else:
                reasons.append(Reason("", line.strip()))
    store_refusal()
    return refusals


def _parse_config(text: str) -> _Config | None:
    """Parse an engine config in cuDNN's error text into engine, sm and knobs; None if incomplete."""
    try:
        config = parse_json(text.strip().removesuffix(";"), "an engine config", code="log-graph")
    except GraphError:
        return None
    found = read_logged_choice(config)
    sm = config.get("smVersion") if found else None
    if found is None or type(sm) not in (int, NoneType):
        return None
    return found[0], None if sm is None else sm // 10, found[1]


def read_error_reasons(error: CudnnStatusError) -> tuple[Reason, ...]:
    """Return the reasons in an exception's last-error text; only its status if cuDNN gave no text."""
    parsed = tuple(reason for refusal in read_refusals(error.last_error) for reason in refusal.reasons)
    name = getattr(error.status, "c_name", str(int(error.status)))
    if not parsed:
        return (Reason(name, f"{error.function} said nothing more"),)
    if not parsed[0].status:
        return (Reason(name, parsed[0].text), *parsed[1:])
    return parsed


class _RefusedConfig(Protocol):
    @property
    def reasons(self) -> tuple[Reason, ...]: ...


_UNSPECIFIC_STATUS = "CUDNN_STATUS_NOT_SUPPORTED"


def find_deepest_reason_among_configs(refused: Iterable[_RefusedConfig]) -> Reason | None:
    """Return the innermost reason of the engine config with the longest chain of reasons, which passed most checks.

    The chain is cuDNN's call stack, so an engine that looked only at the architecture has a short one. Of equally long
    ones a plain NOT_SUPPORTED says less than NOT_SUPPORTED with a kind, and then the first in cuDNN's order counts.
    """
    chains = [item.reasons for item in refused if item.reasons]
    if not chains:
        return None
    return max(chains, key=lambda chain: (len(chain), chain[0].status != _UNSPECIFIC_STATUS))[0]
