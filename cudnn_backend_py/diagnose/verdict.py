"""The verdict as data; text, JSON and exit code are renderings of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

from .words import Reason

__all__ = ["Basis", "Candidate", "Cause", "Control", "Outcome", "Verdict"]

SCHEMA = "cudnn-backend-py/verdict"
SCHEMA_VERSION = 1


class Outcome(StrEnum):
    """The answer. ``NOT_JUDGED`` says nothing about the graph."""

    SUPPORTED = "supported"
    NOT_SUPPORTED = "not supported"
    NOT_JUDGED = "could not be judged"


class Basis(StrEnum):
    """How a cause is known: cuDNN was asked about a variation, a rule reads its words, or it is a guess."""

    MEASURED = "measured"
    RULE = "rule"
    GUESS = "guess"


@dataclass(frozen=True, slots=True)
class Candidate:
    """One engine config cuDNN considered.

    ``state`` is ``supported``, ``refused`` (by the config check), ``built`` or ``build failed``; ``reasons`` are
    cuDNN's words, innermost first.
    """

    mode: str
    engine: int | None
    knobs: Mapping[str, int]
    state: str
    reasons: tuple[Reason, ...] = ()
    workspace_bytes: int | None = None
    behavior_notes: tuple[str, ...] = ()
    numerical_notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Cause:
    """Why, in one line: tensor or limit, value found, value needed; ``basis`` says how that is known."""

    code: str
    headline: str
    basis: Basis
    detail: str = ""
    remedy: str = ""


@dataclass(frozen=True, slots=True)
class Control:
    """The control graph, known to be supported, asked first in the same process, on the same target."""

    graph: str
    supported: bool
    reasons: tuple[Reason, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What cuDNN says about a graph on a target, and why.

    ``stage`` is how far it came: environment, operation graph, heuristics, or plan.
    """

    outcome: Outcome
    stage: str
    graph: str
    graph_text: str
    target: str
    target_title: str
    sm: int
    live: bool
    cudnn: str
    library: str
    driver: str
    modes: tuple[str, ...]
    control: Control | None = None
    candidates: tuple[Candidate, ...] = ()
    reasons: tuple[Reason, ...] = ()
    cause: Cause | None = None
    environment: tuple[str, ...] = ()
    limits: tuple[str, ...] = field(default_factory=tuple)

    @property
    def supported(self) -> bool:
        """Whether some engine config takes the graph."""
        return self.outcome is Outcome.SUPPORTED

    @property
    def exit_code(self) -> int:
        """0 supported, 1 not supported, 2 could not be judged."""
        return {Outcome.SUPPORTED: 0, Outcome.NOT_SUPPORTED: 1, Outcome.NOT_JUDGED: 2}[self.outcome]

    def to_dict(self) -> dict[str, Any]:
        """Return the verdict as plain data."""
        return {"schema": SCHEMA, "version": SCHEMA_VERSION, **asdict(self)}
