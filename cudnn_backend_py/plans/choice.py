"""``EngineChoice``: an engine and its knob values, with their text form in tags and in cuDNN's log."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from typing import Any

from ..errors import UsageError
from ..frozen import FrozenValue
from ..generated.enums import KnobType

__all__ = ["EngineChoice", "Knobs", "read_logged_choice"]

Knobs = Mapping[Any, int]  # by KnobType; what the header has not by number, or by C name

_KNOB_PATTERN = r"_k(\d{1,9}|[A-Za-z]\w*)=(-?\d{1,18})"
_TAG_PATTERN = rf"eng(\d{{1,9}})((?:{_KNOB_PATTERN})*)"
_CHOSEN_BY_CUDNN = -1  # what cuDNN logs of a knob that has no choice
_MAX_KNOBS = 100


class EngineChoice(FrozenValue):
    """An engine by its global index, and the values of its chosen knobs.

    Knobs are enumerators; one that the header has not is its number or, from a log, its C name.
    """

    engine: int
    knobs: Knobs

    def __init__(self, engine: int, knobs: Knobs | None = None) -> None:
        super().__init__(engine, {} if knobs is None else knobs)

    def __hash__(self) -> int:
        return hash((self.engine, frozenset(self.knobs.items())))

    @classmethod
    def from_log(cls, engine: int, knobs: Mapping[str, int]) -> EngineChoice:
        """Return the choice that cuDNN logs with knobs by C name, without knobs logged as -1 (chosen by cuDNN)."""
        known = _make_knobs_by_c_name()
        return cls(engine, {known.get(name, name): value for name, value in knobs.items() if value != _CHOSEN_BY_CUDNN})

    @classmethod
    def parse(cls, tag: str) -> EngineChoice:
        """Parse a tag such as ``eng2_k24=7``.

        Raises
        ------
        UsageError
            ``engine-tag``.
        """
        match = re.fullmatch(_TAG_PATTERN, tag, re.ASCII)
        if match is None:
            raise UsageError(f"{tag!r} is not an engine tag such as eng2_k24=7", code="engine-tag")
        knobs = re.findall(_KNOB_PATTERN, match[2], re.ASCII)
        return cls(int(match[1]), {_parse_knob(name): int(value) for name, value in knobs})

    @property
    def tag(self) -> str:
        """Text such as ``eng5_k14=3_k24=2``, as cudnn-frontend writes it: knobs sorted by number."""
        named = ((knob if isinstance(knob, str) else int(knob), value) for knob, value in self.knobs.items())
        ordered = sorted(named, key=lambda item: (isinstance(item[0], str), item[0]))
        return "_".join([f"eng{self.engine}", *(f"k{knob}={value}" for knob, value in ordered)])

    @property
    def c_knobs(self) -> dict[str, int]:
        """The knob values by the knobs' C names."""
        return {getattr(knob, "c_name", str(knob)): value for knob, value in self.knobs.items()}


def read_logged_choice(config: Any) -> tuple[int, dict[str, int]] | None:
    """Return engine and knobs of an engine config in cuDNN's JSON, verbatim; None if incomplete.

    Knobs that are left to cuDNN are among them: :meth:`EngineChoice.from_log` leaves them out.
    """
    if not isinstance(config, dict):
        return None
    engine, knobs = config.get("engineId"), config.get("knobChoices", {})
    if type(engine) is not int or not isinstance(knobs, dict) or len(knobs) > _MAX_KNOBS:
        return None
    return (engine, dict(knobs)) if all(type(value) is int for value in knobs.values()) else None


@cache
def _make_knobs_by_c_name() -> dict[str, KnobType]:
    return {knob.c_name: knob for knob in KnobType}


def _parse_knob(name: str) -> KnobType | int | str:
    if not name.isdecimal():
        return _make_knobs_by_c_name().get(name, name)
    return KnobType(int(name)) if int(name) in KnobType._value2member_map_ else int(name)
