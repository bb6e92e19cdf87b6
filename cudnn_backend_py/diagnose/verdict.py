"""The verdict as data, from which text, JSON and exit code are made."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from enum import StrEnum
from typing import Any, Literal

from ..errors import UsageError
from ..frozen import FrozenValue
from ..generated.enums import HeurMode
from ..native.environment_problems import DRIVER_STUB_HEADLINE
from ..plans.candidate import EVERY_ENGINE, Candidate
from ..plans.refusals import Reason
from ..printable import format_in_angle_brackets, format_repr, mask_memory_addresses
from ..system.notebook import HtmlDisplay
from ..system.typed_data import convert_to_type

__all__ = [
    "CRASH_CODE",
    "DEFAULT_MODES",
    "ENGINES_MISSING_CODE",
    "NEWER_THAN_LIBRARY_SUFFIX",
    "NO_GPU_ENGINE_REMARKS",
    "NO_GPU_REMARK",
    "PATTERN_REMOVED_CODE",
    "STAGE_NAMES",
    "Basis",
    "Candidate",
    "Cause",
    "Control",
    "EngineCheck",
    "Outcome",
    "RemedyCheck",
    "Stage",
    "Verdict",
    "is_cause_of_version",
]

SCHEMA = "cudnn-backend-py/verdict"
SCHEMA_VERSION = 1

DEFAULT_MODES = (HeurMode.A, HeurMode.FALLBACK)  # of the heuristics
CRASH_CODE = "cudnn-crashed"  # codes of causes
ENGINES_MISSING_CODE = "engines-absent"
PATTERN_REMOVED_CODE = "pattern-removed"
NEWER_THAN_LIBRARY_SUFFIX = "-newer-than-library"  # how codes of causes end that another cuDNN may not have

#: The limit of every verdict for a described GPU; the others are remarks about one graph, library or machine.
NO_GPU_REMARK = "judged without a GPU: problems that only execution shows are unknown"
#: Limits of such verdicts on graphs of some operations, by what the C names of the operations begin with.
NO_GPU_ENGINE_REMARKS = {
    ("OPERATION_MATMUL", "OPERATION_CONVOLUTION"): (
        "judged without a GPU: mode A may propose other knob choices than on the GPU, and engines that request its "
        "cluster occupancy (cga_count == 0) may be missing"
    ),
    ("OPERATION_CONVOLUTION",): (
        "judged without a GPU: engines 3 and 4 of convolutions may be refused (core_engine.getStatus()) although the "
        "GPU runs them: an RTX 3060 did with 9.17.0"
    ),
}

# What a graph passes on its way to a result, in order.
STAGE_NAMES = ("environment", "graph", "operation graph", "heuristics", "engine config", "plan", "execute")
STAGES_AFTER_CHECK = STAGE_NAMES[5:]  # that a graph reaches only if an engine config passes its support check


class Outcome(StrEnum):
    """Whether cuDNN supports a graph. ``NOT_JUDGED`` is not a refusal: engines that could support it are missing."""

    SUPPORTED = "supported"
    NOT_SUPPORTED = "not supported"
    NOT_JUDGED = "could not be judged"


class Basis(StrEnum):
    """How a cause is known: judged variations, a rule for cuDNN's text, or a guess."""

    MEASURED = "measured"
    RULE = "rule"
    GUESS = "guess"


RemedyCheck = Literal["", "not asked", "support check", "built"]

_REMEDY_CHECK_NOTES = {
    "": "",
    "not asked": " [not judged]",
    "support check": " [passes its support check, not built]",
    "built": " [a plan of it was built]",
}


def _may_remedy_change_results(remedy: str) -> bool:
    """Return whether a remedy may compute something else; dims that the other tensors determine are corrected."""
    return remedy.endswith((" (idea)", "which computes something else")) and not remedy.endswith(" give (idea)")


ANOTHER_FORM = "supported only in another form"  # begins the headline of such a cause


class Cause(FrozenValue):
    """The cause of a refusal in one line: tensor or limit, value found, value needed. ``basis``: how it is known.

    Addresses in it are masked, as in a :class:`Reason`. ``asked`` says how far cuDNN was queried about the changes,
    targets and versions that ``remedy`` names; it is empty where it names none. ``versions`` says what other cuDNN
    versions do with the graph, if they were queried and none is a remedy.
    """

    code: str
    headline: str
    basis: Basis
    detail: str = ""
    remedy: str = ""
    asked: RemedyCheck = ""
    versions: str = ""

    @property
    def advice(self) -> str:
        """The remedy, and how thoroughly it was checked; empty without one."""
        return self.remedy and self.remedy + _REMEDY_CHECK_NOTES[self.asked]

    @property
    def label(self) -> str:
        """The word for the remedy: "remedy", or "suggestion" if it was not judged."""
        return "suggestion" if self.asked == "not asked" else "remedy"

    @property
    def has_judged_remedy(self) -> bool:
        """Whether cuDNN was queried about the remedy."""
        return bool(self.remedy) and self.asked in ("support check", "built")

    @property
    def changes_results_with_every_remedy(self) -> bool:
        """Whether each change that the remedy names computes something else."""
        return all(map(_may_remedy_change_results, self.remedy.split("; or ")))

    @property
    def has_only_weak_remedies(self) -> bool:
        """Whether each change that the remedy names needs another architecture or computes something else."""
        return bool(self.remedy) and all(
            one.startswith("sm_") or "judge for sm_" in one or _may_remedy_change_results(one)
            for one in self.remedy.split("; or ")
        )

    def __post_init__(self) -> None:
        for name in ("headline", "detail", "versions"):
            object.__setattr__(self, name, mask_memory_addresses(getattr(self, name)))


def is_cause_of_version(code: str) -> bool:
    """Return whether another cuDNN version may decide differently where this is the code of the cause."""
    return code in (PATTERN_REMOVED_CODE, CRASH_CODE, ENGINES_MISSING_CODE) or code.endswith(NEWER_THAN_LIBRARY_SUFFIX)


class Control(FrozenValue):
    """The result of judging the control graph, known to be supported, first in the same process on the same target."""

    graph: str
    supported: bool
    reasons: tuple[Reason, ...] = ()


class EngineCheck(FrozenValue):
    """The result of checking all configs of one engine: how many, and cuDNN's most frequent reason against them.

    ``passed`` of the ``configs`` checked pass the support check, and ``tags`` has them all; ``unchecked`` more crashed
    cuDNN or hung.
    """

    engine: int
    configs: int
    passed: int
    unchecked: int = 0
    reason: Reason | None = None
    tags: tuple[str, ...] = ()

    def __str__(self) -> str:
        text = f"engine {self.engine}: {self.configs:,} checked, {self.passed:,} passed"
        if self.tags:
            more = len(self.tags) - _MAX_SHOWN_TAGS
            text += f": {', '.join(self.tags[:_MAX_SHOWN_TAGS])}" + f" and {more:,} more in the JSON" * (more > 0)
        text += f", {self.unchecked:,} not checked" if self.unchecked else ""
        return text + (f"; most often refused with {' '.join(str(self.reason).split())}" if self.reason else "")


_MAX_SHOWN_TAGS = 4


class Stage(FrozenValue):
    """The result of one stage of judging, named in ``STAGE_NAMES``.

    ``state`` is ``passed``, ``refused``, ``crashed``, ``timed out``, ``not reached`` or ``not asked``.
    """

    name: str
    state: str
    detail: str = ""

    def __str__(self) -> str:
        return f"{self.name} {self.state}" + (f": {self.detail}" if self.detail else "")


_NO_FRAMEWORKS: Mapping[str, str] = {}


class Verdict(HtmlDisplay, FrozenValue, kw_only=True):
    """cuDNN's answer about a graph on a target, with reasons.

    ``stage`` is the last stage reached, one of ``STAGE_NAMES``; ``stages`` has the result of each. ``only_fallback`` is
    set where only FALLBACK supports the graph: the cause why the other modes refuse it.
    ``shapes`` says of supported attention whether one plan can serve every batch and length. ``every_engine`` says how
    many configs of how many engines were checked, where that was requested, and ``engines`` has the result of each
    engine. ``seen`` names the nearest result of a real GPU of the architecture, of the same graph apart from sizes.
    ``lint`` has the dangerous findings of :func:`~cudnn_backend_py.diagnose.linting.lint` on a supported graph.
    ``frameworks`` says what torch, TransformerEngine and cudnn-frontend would do with attention, each by a predicate;
    only ``cudnn-backend explain`` fills it, in JSON, HTML and with ``-v``.
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
    limits: tuple[str, ...] = ()
    stages: tuple[Stage, ...] = ()
    hazards: tuple[str, ...] = ()
    only_fallback: Cause | None = None
    shapes: str = ""
    every_engine: str = ""
    seen: str = ""
    lint: tuple[str, ...] = ()
    engines: tuple[EngineCheck, ...] = ()
    frameworks: Mapping[str, str] = _NO_FRAMEWORKS

    @property
    def built(self) -> bool:
        """Whether a plan was built."""
        return any(item.state == "built" for item in self.candidates)

    @property
    def first(self) -> Candidate | None:
        """The engine config of the plan that was built, else the first that supports the graph; None if none does."""
        taken = [item for item in self.candidates if item.state in ("supported", "built")]
        return next((item for item in taken if item.state == "built"), taken[0] if taken else None)

    @property
    def build_note(self) -> str:
        """The text ", not built" where the support check passed but no plan was built; else empty."""
        return ", not built" if self.supported and not self.built else ""

    @property
    def support_note(self) -> str:
        """Text on where the supported config comes from, if not named and not from the chosen modes; else empty."""
        if self.supported and self.first is not None and self.first.mode not in (*HeurMode.__members__, "named"):
            owner = self.first.mode
            return f" by a config {self.first.origin}" if owner == EVERY_ENGINE else f" by {owner}'s config"
        if self.only_fallback is None:
            return ""
        others = ", ".join(mode for mode in self.modes if mode != "FALLBACK")
        return f" by FALLBACK only, mode {others} refuses ({self.only_fallback.headline})"

    @property
    def remarks(self) -> tuple[str, ...]:
        """Remarks that do not change the outcome, about the environment and about parts not judged.

        Known issues are ``hazards``. What holds of every verdict without a GPU is none, nor what the cause says.
        """
        said = () if self.cause is None else (self.cause.headline,)
        usual = {NO_GPU_REMARK, *NO_GPU_ENGINE_REMARKS.values(), DRIVER_STUB_HEADLINE, *said}
        return tuple(remark for remark in (*self.environment, *self.limits) if remark not in usual)

    @property
    def may_differ_by_version(self) -> bool:
        """Whether another cuDNN version may decide differently, as when engines are missing."""
        return self.cause is not None and is_cause_of_version(self.cause.code)

    @property
    def has_version_remedy(self) -> bool:
        """Whether the remedy is another cuDNN version, judged, as its cause is one that depends on the version."""
        judged = self.cause is not None and self.cause.has_judged_remedy
        return judged and self.outcome is Outcome.NOT_SUPPORTED and self.may_differ_by_version

    @property
    def lacks_remedy(self) -> bool:
        """Whether cuDNN refuses a valid graph and the cause names no remedy."""
        if self.outcome is not Outcome.NOT_SUPPORTED or self.cause is None:
            return False
        if self.cause.asked == "not asked":
            return not self.may_differ_by_version
        if self.cause.remedy:
            return self.cause.changes_results_with_every_remedy
        return self.stage != "graph" or self.may_differ_by_version  # other graphs of that stage are invalid

    @property
    def lacks_good_remedy(self) -> bool:
        """Whether the cause names no remedy, or only such as are hard to follow.

        These need another architecture, compute something else, or write the whole graph in another form.
        """
        if self.lacks_remedy or self.cause is None:
            return self.lacks_remedy
        return self.cause.has_only_weak_remedies or self.cause.headline.startswith(ANOTHER_FORM)

    @property
    def supported(self) -> bool:
        """Whether some engine config supports the graph."""
        return self.outcome is Outcome.SUPPORTED

    @property
    def exit_code(self) -> int:
        """0 supported, 1 not supported, 2 could not be judged."""
        return {Outcome.SUPPORTED: 0, Outcome.NOT_SUPPORTED: 1, Outcome.NOT_JUDGED: 2}[self.outcome]

    def __repr__(self) -> str:
        why = "" if self.cause is None else f": {self.cause.headline}"
        return format_in_angle_brackets(
            f"Verdict {self.outcome}: {self.graph!r} on {self.target}, cuDNN {self.cudnn}{why}"
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the verdict as plain data; each candidate also has its ``tag``."""
        candidates = [{"tag": item.tag, **asdict(item)} for item in self.candidates]
        return {"schema": SCHEMA, "version": SCHEMA_VERSION, **asdict(self), "candidates": candidates}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Verdict:
        """Return the verdict from ``to_dict``'s data, also after a round trip through JSON.

        Raises
        ------
        UsageError
            ``verdict-schema`` if it is none, of another version, or damaged.
        """
        if not isinstance(data, Mapping) or (data.get("schema"), data.get("version")) != (SCHEMA, SCHEMA_VERSION):
            found = (data.get("schema"), data.get("version")) if isinstance(data, Mapping) else data
            raise UsageError(
                f"the data is not a saved verdict: its schema and version are {format_repr(found)}, "
                f"{(SCHEMA, SCHEMA_VERSION)} is needed",
                code="verdict-schema",
            )
        rest = {key: value for key, value in data.items() if key not in ("schema", "version")}
        if isinstance(candidates := rest.get("candidates"), (list, tuple)):
            rest["candidates"] = [
                {key: value for key, value in item.items() if key != "tag"} if isinstance(item, Mapping) else item
                for item in candidates
            ]
        return convert_to_type(cls, rest, "the verdict", code="verdict-schema")
