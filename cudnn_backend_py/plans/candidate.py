"""``Candidate``: an engine config with its origin and its outcome, as plain data."""

from __future__ import annotations

from collections.abc import Mapping

from ..frozen import FrozenValue
from ..generated.enums import HeurMode
from ..printable import format_in_angle_brackets
from .choice import EngineChoice
from .engine import EngineConfig
from .kernels import Kernel
from .refusals import Reason, read_refusals

__all__ = ["CANNOT_LOAD", "DESELECTED", "EVERY_ENGINE", "Candidate", "parse_refused_candidates"]

DESELECTED = "deselected"  # state of a candidate that the caller's selection refuses
CANNOT_LOAD = "cannot load"  # state of a candidate with a plan that was built, of code for another architecture
EVERY_ENGINE = "every engine"  # mode of a candidate that was found by checking all engines


class Candidate(FrozenValue, uncompared=("build_s",)):
    """An engine config that was considered for a graph: its origin, and whether it is supported or why not.

    Parameters
    ----------
    mode
        Where it came from: the heuristics mode; ``named`` by the caller, or the
        library that selects it without the heuristics (``cudnn-frontend``); ``every engine`` where all were checked.
    engine, knobs
        Global index of the engine, None where cuDNN named none, and knob values by the C names of the knobs.
    state
        ``supported``, ``refused`` (by the config check), ``cannot load`` (the code is for another architecture),
        ``deselected`` (by a
        :class:`~cudnn_backend_py.plans.select.Selection`; never in a verdict), ``built``, ``build failed``, or
        ``crashed`` (the process ended while its plan was built).
    reasons
        Why it was refused: cuDNN's own reasons, innermost first, or that of the selection, which has no status.
    workspace_bytes
        Device memory the plan needs, where it was built.
    behavior_notes, numerical_notes
        Names of cuDNN's notes about the engine.
    kernels
        What was compiled for the plan, where it was built; None where its code is in cuDNN's libraries.
    build_s
        Seconds it took to build.
    shared_memory_bytes
        All shared memory of a block, static and dynamic, where the plan was built and the engine states it.
    """

    mode: str
    engine: int | None
    knobs: Mapping[str, int]
    state: str
    reasons: tuple[Reason, ...] = ()
    workspace_bytes: int | None = None
    behavior_notes: tuple[str, ...] = ()
    numerical_notes: tuple[str, ...] = ()
    kernels: tuple[Kernel, ...] | None = None
    build_s: float | None = None
    shared_memory_bytes: int | None = None

    @classmethod
    def from_config(cls, config: EngineConfig) -> Candidate:
        """Return the candidate for a config that passed cuDNN's check, with the notes of its engine."""
        return cls(
            mode=config.origin,
            engine=config.engine,
            knobs=config.choice.c_knobs,
            state="supported",
            behavior_notes=tuple(getattr(note, "name", str(note)) for note in config.behavior_notes),
            numerical_notes=tuple(getattr(note, "name", str(note)) for note in config.numerical_notes),
        )

    @classmethod
    def from_excluded_config(cls, config: EngineConfig, why: str) -> Candidate:
        """Return the candidate for a config that the selection excludes."""
        return cls(config.origin, config.engine, config.choice.c_knobs, DESELECTED, (Reason("", why),))

    @property
    def choice(self) -> EngineChoice | None:
        """The engine and its knob values; None where cuDNN named no engine."""
        return None if self.engine is None else EngineChoice.from_log(self.engine, self.knobs)

    @property
    def tag(self) -> str:
        """Engine and knobs, such as ``eng2_k24=7``; empty where cuDNN named no engine."""
        return "" if self.choice is None else self.choice.tag

    @property
    def origin(self) -> str:
        """Where the config comes from, as words to append to "a config" in a message."""
        if self.mode in HeurMode.__members__:
            return f"of heuristics mode {self.mode}"
        return {"named": "that was named", EVERY_ENGINE: "found by checking all engines"}.get(
            self.mode, f"that {self.mode} selects"
        )

    @property
    def refused_by_cudnn(self) -> bool:
        """Whether cuDNN, rather than the selection, refused the config."""
        return self.state in ("refused", "build failed")

    @property
    def reason(self) -> str:
        """The innermost reason for the refusal, in one line."""
        return str(self.reasons[0]) if self.reasons else "cuDNN gives no reason"

    @property
    def words(self) -> str:
        """cuDNN's chain of reasons, one per line; empty if it gave none or did not refuse the config."""
        return "\n".join(map(str, self.reasons)) if self.refused_by_cudnn else ""

    def __repr__(self) -> str:
        return format_in_angle_brackets(f"Candidate {self}")

    def __str__(self) -> str:
        result = self.reason if self.reasons or self.refused_by_cudnn else self.state
        return f"{self.mode}: {self.tag or 'an engine'}: {result}"


def parse_refused_candidates(mode: str, text: str) -> list[Candidate]:
    """Return the refused candidates from cuDNN's error text for a query in `mode`, in cuDNN's order."""
    return [Candidate(mode, item.engine, item.knobs, "refused", item.reasons) for item in read_refusals(text)]
