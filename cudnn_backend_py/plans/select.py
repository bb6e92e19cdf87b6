"""Select an engine config by requirements, and collect the reasons against the others."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar, cast

from ..errors import CudnnStatusError, NotSupported, UsageError
from ..frozen import FrozenValue
from ..generated.enums import BehaviorNote, CudnnEnum, DataType, HeurMode, KnobType, NumericalNote
from ..graph import Graph, Matmul
from ..target import Target, open_target
from .choice import EngineChoice
from .engine import EngineConfig, Heuristics, OperationGraph

if TYPE_CHECKING:
    from ..graph.attention.selections import EngineSelection
    from .candidate import Candidate  # and in functions: most graphs have no refused config to be read

__all__ = [
    "NothingSelected",
    "Selection",
    "SelectionResult",
    "candidates",
    "find_exceeded_limit",
    "make_cache_key_options_of_tuned_plan",
    "make_combined_config_filter",
    "select",
]

_NOTE_ENUMS: dict[str, type[CudnnEnum]] = {
    "wanted_behavior": BehaviorNote,
    "unwanted_behavior": BehaviorNote,
    "wanted_numerical": NumericalNote,
    "unwanted_numerical": NumericalNote,
    "modes": HeurMode,
}
_LIMIT_NAMES = {"workspace_bytes": "workspace", "shared_memory_bytes": "shared memory per block"}
_Enum = TypeVar("_Enum", bound=CudnnEnum)
_Filter = Callable[[EngineConfig], str | None]


def _find_enum_member_by_name(kind: type[_Enum], name: str | int) -> _Enum:
    """Return the enum member with this name or number; return a member unchanged.

    Raises
    ------
    UsageError
        ``unknown-enumerator``.
    """
    if isinstance(name, kind):
        return name
    if type(name) is int and name in kind._value2member_map_:
        return kind(name)
    known = kind.__members__
    found = known.get(str(name).upper())
    if found is None:
        known_text = f"{min(kind)} to {max(kind)}" if type(name) is int else ", ".join(known)
        raise UsageError(f"{name!r} is not a {kind.__name__}, known are {known_text}", code="unknown-enumerator")
    return found


class Selection(FrozenValue, kw_only=True):
    """Requirements for an engine config, such as its notes, workspace, engine and knobs.

    Enumerators may be given as names (``"TENSOR_CORE"``), one alone without a tuple, and knobs as a mapping.

    Parameters
    ----------
    wanted_behavior, unwanted_behavior
        Behavior notes the engine must have, and must not have.
    wanted_numerical, unwanted_numerical
        Numerical notes likewise.
    workspace_bytes, shared_memory_bytes
        The most a config may need: bytes of workspace, bytes of shared memory per block.
    deterministic
        Take configs only that give the same bits in every run. cuDNN's note ``NONDETERMINISTIC`` does not report it of
        attention backward (measured: the kernels that sum dQ atomically have no such note), so there the graph has
        to be the deterministic one, and on sm_10x the config that cudnn-frontend selects
        (:data:`~cudnn_backend_py.graph.attention.selections.SELECTIONS`).
    engine
        Global index of the only engine to take. Without knobs the heuristics' configs of it are taken, and if there
        are none, the config whose knobs cuDNN chooses.
    knobs
        Knob values of that engine; the heuristics are not asked then.
    modes
        Heuristics modes, queried in this order; the first that leaves a config decides. The config that a library
        selects without them comes last.

    Raises
    ------
    UsageError
        ``unknown-enumerator``; ``selection-limit`` for a limit or an index that is no int of 0 or more;
        ``selection-knobs`` for knobs without an engine or values that are no int.
    """

    wanted_behavior: tuple[BehaviorNote, ...] = ()
    unwanted_behavior: tuple[BehaviorNote, ...] = ()
    wanted_numerical: tuple[NumericalNote, ...] = ()
    unwanted_numerical: tuple[NumericalNote, ...] = ()
    workspace_bytes: int | None = None
    shared_memory_bytes: int | None = None
    deterministic: bool = False
    engine: int | None = None
    knobs: tuple[tuple[KnobType, int], ...] | Mapping[KnobType | str, int] = ()
    modes: tuple[HeurMode, ...] = (HeurMode.A, HeurMode.FALLBACK)

    def __post_init__(self) -> None:
        for name, kind in _NOTE_ENUMS.items():
            given = getattr(self, name)
            several = (given,) if isinstance(given, (str, CudnnEnum)) else given
            members = tuple(dict.fromkeys(_find_enum_member_by_name(kind, item) for item in several))
            object.__setattr__(self, name, members if name == "modes" else tuple(sorted(members)))
        for name in ("workspace_bytes", "shared_memory_bytes", "engine"):
            value = getattr(self, name)
            if value is not None and (type(value) is not int or value < 0):
                raise UsageError(f"{name} must be an int of 0 or more, got {value!r}", code="selection-limit")
        object.__setattr__(self, "knobs", tuple(sorted(self._read_knobs())))
        if self.knobs and self.engine is None:
            raise UsageError(
                "knobs are given without an engine", code="selection-knobs", fix="name their engine as well"
            )

    def _read_knobs(self) -> Iterator[tuple[KnobType, int]]:
        given = self.knobs
        for knob, value in given.items() if isinstance(given, Mapping) else given:
            if type(value) is not int:
                raise UsageError(f"knob {knob!r} is {value!r}, an int is needed", code="selection-knobs")
            yield _find_enum_member_by_name(KnobType, knob), value

    def to_dict(self) -> dict[str, Any]:
        """Return the settings that differ from the defaults as plain data."""
        plain: dict[str, Any] = {}
        for name, default in self.field_defaults.items():  # every field has one
            value = getattr(self, name)
            if value == default:
                continue
            if name == "knobs":
                value = {knob.name: number for knob, number in value}
            elif name in _NOTE_ENUMS:
                value = [member.name for member in value]
            plain[name] = value
        return plain

    @property
    def knob_values(self) -> dict[KnobType, int]:
        """The required knob values, by knob type."""
        return dict(cast(Iterable[tuple[KnobType, int]], self.knobs))


class NothingSelected(NotSupported):
    """Raised if no engine config is left: the heuristics listed none, or the selection excludes all of them.

    Attributes
    ----------
    refused
        All configs that cuDNN or the selection refused.
    last_error
        cuDNN's last-error texts; empty where it gave none.
    """

    refused: tuple[Candidate, ...] = ()
    last_error: str = ""


class Candidates:
    """Engine configs that pass a selection, best first, and the refused configs with their reasons.

    ``refused`` is read from cuDNN's text when requested.
    """

    def __init__(self) -> None:
        self.configs: list[EngineConfig] = []
        self.deselected: list[Candidate] = []
        self.by_status: list[Candidate] = []  # where cuDNN answered with a status
        self.answers: list[tuple[OperationGraph, Heuristics]] = []  # of each mode that was queried
        self.texts: list[str] = []  # cuDNN's error texts of single configs

    @property
    def origins(self) -> list[str]:
        """The origin of each config: its heuristics mode, ``named`` by the caller, or ``cudnn-frontend``."""
        return [config.origin for config in self.configs]

    @cached_property
    def refused(self) -> tuple[Candidate, ...]:
        """The configs excluded by the selection, then those refused by cuDNN, without duplicates."""
        from .candidate import parse_refused_candidates

        found = [*self.deselected, *self.by_status]
        for mode, text in self._error_texts:
            found += parse_refused_candidates(mode, text)
        return tuple({(item.tag, item.reason): item for item in reversed(found)}.values())[::-1]

    @cached_property
    def _error_texts(self) -> list[tuple[str, str]]:
        """cuDNN's error text for each heuristics mode; if it is empty, the reasons that cuDNN logs for a new query."""
        texts = []
        for question, answer in self.answers:
            if not answer.answer.text and len(answer.configs) < answer.candidates:
                answer = question.heuristics(answer.mode, reasons=True, judging=True)
            texts.append((answer.mode.name, answer.answer.text))
        return texts

    @property
    def error_text(self) -> str:
        """cuDNN's distinct error texts; empty where it gave none."""
        texts = [*self.texts, *(text for _, text in self._error_texts)]
        return "\n".join(dict.fromkeys(text.strip() for text in texts if text.strip()))


class SelectionResult(FrozenValue, uncompared=("found",)):
    """The selected engine config, the alternatives, and the refused configs with their reasons."""

    config: EngineConfig
    alternatives: tuple[EngineConfig, ...]
    found: Candidates

    def __repr__(self) -> str:
        return f"SelectionResult(config={self.config!r}, alternatives={self.alternatives!r})"

    @property
    def refused(self) -> tuple[Candidate, ...]:
        """All refused configs, each with its reason."""
        return self.found.refused


def select(
    graph: Graph | OperationGraph,
    target: Target | str | None = None,
    selection: Selection | None = None,
    **options: Any,
) -> SelectionResult:
    """Select the engine config of a graph.

    Parameters
    ----------
    graph
        The graph, or one that cuDNN finalized already (`target` is not needed then).
    target
        A described target, or None for the GPU of this process.
    selection, options
        What to choose by; options are fields of :class:`Selection` and replace those of `selection`.

    Raises
    ------
    NothingSelected
        ``nothing-selected``: a :class:`NotSupported` that lists every config and why it was refused;
        ``engine-unknown``.
    UsageError
        As :class:`Selection`.

    Examples
    --------
    >>> from cudnn_backend_py import attention
    >>> from cudnn_backend_py.plans.select import select
    >>> graph = attention.sdpa_forward(batch=1, heads=2, seq_q=512, head_dim=64, causal=True)
    >>> select(graph, "h100", shared_memory_bytes=100_000).config.shared_memory_bytes <= 100_000
    True
    """
    wanted = selection or Selection()
    if options:
        wanted = replace(wanted, **options)
    question = graph if isinstance(graph, OperationGraph) else OperationGraph(graph, open_target(target))
    found = candidates(question, wanted, every_mode=False)
    if not found.configs:
        raise make_nothing_selected_error(question, wanted, found)
    first, *others = found.configs
    return SelectionResult(first, tuple(others), found)


def make_cache_key_options_of_tuned_plan(selection: Selection | None, target: Target) -> dict[str, Any]:
    """Return the cache key options under which the tuned plan for a selection and a target is stored.

    They leave out the heuristics modes, as tuning queries several. They contain the GPU's name, as the key of a plan
    does not distinguish an H100 from an H200, but the fastest config of one need not be that of the other.
    """
    wanted = {} if selection is None else selection.to_dict()
    wanted.pop("modes", None)
    return {"tuned": True, "selection": wanted, "gpu": target.profile.properties.get("deviceName")}


def candidates(question: OperationGraph, selection: Selection, *, every_mode: bool = True) -> Candidates:
    """Return the engine configs that pass a selection, in order of preference, without duplicates.

    Parameters
    ----------
    every_mode
        Ask all modes of the selection, not only as many as it takes to find a config.
    """
    found = Candidates()
    seen: set[EngineChoice] = set()
    refuse = make_combined_config_filter(question, selection)
    for config in _list_configs(question, selection, found, every_mode):
        if config.choice in seen:
            continue
        seen.add(config.choice)
        reason = refuse(config)
        if reason is None:
            found.configs.append(config)
        else:
            from .candidate import Candidate

            found.deselected.append(Candidate.from_excluded_config(config, reason))
    return found


def _list_configs(
    question: OperationGraph, selection: Selection, found: Candidates, every_mode: bool
) -> Iterator[EngineConfig]:
    """Yield the configs that a selection names or its heuristics modes list; add cuDNN's refusals to `found`."""
    if selection.knobs and selection.engine is not None:
        yield from _try_engine_choice(question, EngineChoice(selection.engine, selection.knob_values), "named", found)
        return
    if selection.deterministic:
        yield from _yield_config_selected_by_frontend(question, found)
    for mode in selection.modes:
        if found.configs and not every_mode:
            return
        try:
            answer = question.heuristics(mode, judging=True)
        except CudnnStatusError as error:
            _add_refused_config(found, mode.name, None, error)
            continue
        found.answers.append((question, answer))
        yield from answer.configs
    if not selection.deterministic:
        yield from _yield_config_selected_by_frontend(question, found)
    if selection.engine is not None and not found.configs:
        yield from _try_engine_choice(question, EngineChoice(selection.engine), "named", found)


def _yield_config_selected_by_frontend(question: OperationGraph, found: Candidates) -> Iterator[EngineConfig]:
    """Yield the engine config that cudnn-frontend selects without heuristics, if there is one."""
    try:
        if (config := question.selected()) is not None:
            yield config
    except CudnnStatusError as error:
        found.texts.append(error.last_error)


def _try_engine_choice(
    question: OperationGraph, choice: EngineChoice, origin: str, found: Candidates
) -> Iterator[EngineConfig]:
    try:
        yield question.config(choice.engine, choice.knobs, origin=origin)
    except CudnnStatusError as error:
        text = error.last_error or question.read_refusal(choice.engine, choice.knobs)
        _add_refused_config(found, origin, choice, error, text, _describe_invalid_knobs(question, choice))


def _describe_invalid_knobs(question: OperationGraph, choice: EngineChoice) -> str:
    """Return text on the knobs that the engine does not have, or not with this value; empty if there are none."""
    if choice.engine >= question.engine_count:
        return ""
    try:
        known = {knob.type: knob for knob in question.knobs(choice.engine)}
    except CudnnStatusError:  # the engine itself refuses the graph
        return ""
    said = []
    for knob, value in choice.knobs.items():
        if (info := known.get(knob)) is None:
            names = ", ".join(map(_name_knob, known)) or "none"
            said.append(f"engine {choice.engine} has no knob {_name_knob(knob)}, its knobs are {names}")
        elif value not in range(info.minimum, info.maximum + 1, info.stride or 1):
            steps = f" in steps of {info.stride}" if info.stride > 1 else ""
            span = f"{info.minimum} to {info.maximum}{steps}"
            said.append(f"knob {_name_knob(knob)} is {value}, engine {choice.engine} takes {span}")
    return "; ".join(said)


def _name_knob(knob: KnobType | int) -> str:
    return f"{knob.name} (k{int(knob)})" if isinstance(knob, KnobType) else f"k{knob}"


def _add_refused_config(
    found: Candidates, origin: str, choice: EngineChoice | None, error: CudnnStatusError, text: str = "", own: str = ""
) -> None:
    """Add a refused config with the reason `own`, then those of cuDNN's last-error text, or of `text` without one."""
    from .candidate import Candidate
    from .refusals import Reason, read_error_reasons, read_refusals

    text = error.last_error or text
    engine, knobs = (None, {}) if choice is None else (choice.engine, choice.c_knobs)
    reasons = tuple(reason for refusal in read_refusals(text) for reason in refusal.reasons)
    reasons = (*([Reason("", own)] if own else ()), *(reasons or read_error_reasons(error)))
    found.by_status.append(Candidate(origin, engine, knobs, "refused", reasons))
    found.texts.append(text)


# Filters


def make_combined_config_filter(question: OperationGraph, selection: Selection) -> Callable[[EngineConfig], str | None]:
    """Return a function that returns the reason to exclude a config, or None if the selection allows it."""
    filters = list(_make_config_filters(question, selection))
    return lambda config: next((reason for refuse in filters if (reason := refuse(config)) is not None), None)


def _make_config_filters(question: OperationGraph, selection: Selection) -> Iterator[_Filter]:
    """Yield functions that return the reason to exclude a config, or None; cheap checks come first."""
    if (engine := selection.engine) is not None:
        yield lambda config: None if config.engine == engine else f"it is engine {config.engine}, {engine} is wanted"
    for kind in ("behavior", "numerical"):
        wanted, unwanted = (getattr(selection, f"{side}_{kind}") for side in ("wanted", "unwanted"))
        if wanted or unwanted:
            yield _make_note_filter(kind, wanted, unwanted)
    limits = {name: limit for name in _LIMIT_NAMES if (limit := getattr(selection, name)) is not None}
    if limits:
        yield lambda config: find_exceeded_limit(config, **limits)
    if selection.deterministic:
        yield _make_note_filter("numerical", (), (NumericalNote.NONDETERMINISTIC,))
        yield _make_determinism_filter(question)


def _make_note_filter(kind: str, wanted: Iterable[CudnnEnum], unwanted: Iterable[CudnnEnum]) -> _Filter:
    def find_exclusion_reason(config: EngineConfig) -> str | None:
        held = getattr(config, f"{kind}_notes")
        notes = ", ".join(getattr(note, "name", str(note)) for note in held) or "none"
        missing = [note.name for note in wanted if note not in held]
        if missing:
            return f"its {kind} notes are {notes}; {', '.join(missing)} is wanted"
        extra = [note.name for note in unwanted if note in held]
        return f"its {kind} notes are {notes}; {', '.join(extra)} is not wanted" if extra else None

    return find_exclusion_reason


def find_exceeded_limit(config: EngineConfig, **limits: int | None) -> str | None:
    """Describe the first limit that a config exceeds, with both numbers; None if it exceeds none.

    Parameters
    ----------
    limits
        Bytes allowed, by the names ``workspace_bytes`` and ``shared_memory_bytes``; None for no limit.
    """
    for name, what in _LIMIT_NAMES.items():
        limit = limits.get(name)
        if limit is not None and (needed := getattr(config, name)) > limit:
            return f"it needs {needed} bytes of {what}, {limit} are allowed"
    return None


def _make_determinism_filter(question: OperationGraph) -> _Filter:
    whole = _explain_nondeterminism(question)
    known = _find_frontend_engine_selection(question)

    def find_exclusion_reason(config: EngineConfig) -> str | None:
        if whole is not None or known is None:
            return whole
        if config.engine == known.engine and config.knobs.items() >= dict(known.knobs).items():
            return None
        tag = EngineChoice(known.engine, dict(known.knobs)).tag
        return f"on sm_{question.target.sm} attention backward is known to be deterministic with {tag}"

    return find_exclusion_reason


def _is_attention_backward(graph: Graph) -> bool:
    from ..graph.attention.recognize import read_attention

    use = read_attention(graph)
    return use is not None and use.backward


def _find_frontend_engine_selection(question: OperationGraph) -> EngineSelection | None:
    from ..graph.attention.selections import find_engine_selection

    return find_engine_selection(question.graph, question.target.library.version, question.target.sm)


def _explain_nondeterminism(question: OperationGraph) -> str | None:
    """Return why no config of an attention backward graph is deterministic; None if that depends on the config."""
    graph, version, sm = question.graph, question.target.library.version, question.target.sm
    if not _is_attention_backward(graph):
        return None
    from ..graph.attention import deterministic_config

    is_blackwell = 100 <= sm < 120
    lacking = f"cuDNN {question.target.library.build_text} has no deterministic attention backward for sm_{sm}"
    if is_blackwell and deterministic_config(version, sm) is None:
        return lacking
    if len(graph.ops) == 1:
        return "the one SDPA backward operation sums dQ in no fixed order; the deterministic graph is the composite one"
    read = {tensor.uid for op in graph.ops for tensor in op.inputs().values()}
    for op in graph.ops:
        if isinstance(op, Matmul) and not op.c.virtual and op.c.data_type is DataType.FLOAT and op.c.uid in read:
            return f"dQ is summed in {op.c.name!r} in no fixed order; build the graph with deterministic=True"
    return (
        f"{lacking} with the options of this graph"
        if is_blackwell and _find_frontend_engine_selection(question) is None
        else None
    )


# Nothing left


def make_nothing_selected_error(question: OperationGraph, selection: Selection, found: Candidates) -> NothingSelected:
    """Return the error for an empty result, with counts of configs refused by cuDNN and by the selection."""
    from ..native.environment_problems import find_problem_explaining_refusal  # only for a refusal

    target = question.target
    refused = found.refused
    ours = len(found.deselected)
    wanted = ", ".join(f"{name} {value}" for name, value in selection.to_dict().items())
    theirs = len(refused) - ours
    who = [f"{count} refused by {name}" for count, name in ((theirs, "cuDNN"), (ours, "the selection")) if count]
    fault = None if ours else find_problem_explaining_refusal(target.library, target)
    headline = "" if fault is None else f"; {fault.headline}"
    unknown_engine = selection.engine is not None and selection.engine >= question.engine_count
    error = NothingSelected(
        f"cuDNN {target.library.build_text} has no engine {selection.engine} for {question.graph.name!r}, "
        f"only 0 to {question.engine_count - 1}"
        if unknown_engine
        else f"no engine config of {question.graph.name!r} is left on {target.name} (sm_{target.sm}), "
        f"cuDNN {target.library.build_text}: {', '.join(who) or 'the heuristics listed none'}{headline}",
        code="engine-unknown" if unknown_engine else "nothing-selected",
        cudnn=found.error_text,
        where=f"selected by {wanted}" if wanted else None,
        cause=None
        if unknown_engine
        else "\n".join(map(str, refused)) or "the heuristics listed no engine config, and cuDNN gave no reason",
        fix="select an engine that explain(graph) lists, or none"
        if unknown_engine
        else fault.repair
        if fault is not None
        else "relax the requirements that excluded them, or query more heuristics modes"
        if ours
        else "explain(graph) searches for the cause",
    )
    error.refused, error.last_error = refused, found.error_text
    return error
