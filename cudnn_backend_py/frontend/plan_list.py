"""The engine configs of a graph in the order of the heuristics: filtered, checked, built."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, Protocol

from ..errors import CudnnBackendError, CudnnStatusError, NotSupportedStatus
from ..plans.choice import EngineChoice
from ..plans.engine import EngineConfig, Knob, OperationGraph
from ..plans.plan import Plan, build_plan
from ..printable import format_repr
from ..target import Target
from .arguments import to_list
from .built_graphs import BUILT_GRAPHS
from .enums import behavior_note, build_plan_policy, heur_mode, knob_type, numerical_note
from .errors import (
    FrontendIndexError,
    FrontendRuntimeError,
    PlanExcluded,
    convert_errors,
    cudnnGraphNotSupportedError,
    get_headline,
    make_invalid_value_error,
    make_kernel_not_offered_error,
    make_missing_plan_error,
)

if TYPE_CHECKING:
    from ..generated.enums import CudaGraphRetention
    from ..graph import Graph
    from .handles import kernel_cache

__all__ = ["PlanConfig", "PlanList", "knob"]

_NOTE_TYPES: dict[str, type[Enum]] = {"behavior_notes": behavior_note, "numerical_notes": numerical_note}


@dataclass(frozen=True)
class knob:
    """A knob of an engine: its range and step."""

    type: knob_type
    max_value: int
    min_value: int
    stride: int

    @staticmethod
    def from_backend(knobs: Iterable[Knob]) -> list[knob]:
        """Convert cuDNN's knobs, except those without a name in cudnn-frontend."""
        names = knob_type.__members__
        known = [(names.get(getattr(item.type, "name", "")), item) for item in knobs]
        return [knob(kind, item.maximum, item.minimum, item.stride) for kind, item in known if kind is not None]


@dataclass(frozen=True)
class PlanConfig:
    """One plan of a graph: engine, knob values, and the corresponding cuDNN plan."""

    engine_id: int
    knobs: Any = None
    cpp_index: int | None = None


class PlanListOwner(Protocol):
    """The attributes and methods that a ``PlanList`` needs of the graph that owns it."""

    name: str
    target: Target
    sm_count: int | None

    @property
    def operation_graph(self) -> OperationGraph: ...

    @property
    def cache(self) -> kernel_cache | None: ...

    def _get_cuda_graph_retention_of_plans(self) -> CudaGraphRetention | None: ...

    def graph(self) -> Graph: ...


class PlanList:
    """Engine configs of one graph; ``candidate`` is the index of the plan to execute, -1 before one is built."""

    def __init__(self, graph: PlanListOwner) -> None:
        self._graph: PlanListOwner = weakref.proxy(graph)  # whose plans these are: it goes when its last user does
        self._configs: list[EngineConfig] = []
        self._modes: list[str] = []  # to be queried when their configs are needed
        self._plans: dict[int, Plan] = {}
        self._cudnn_messages = ""
        self.candidate = -1
        self._pinned: int | None = None
        self._notes: list[tuple[str, str, bool]] = []  # kind and name of a note, and whether a plan has to have it
        self.barred_names: list[str] = []
        self.workspace_limit: int | None = None
        self.shared_memory_limit: int | None = None

    def __len__(self) -> int:
        return self.count or len(self._plans)

    @property
    def count(self) -> int:
        """The number of engine configs; 0 for a loaded plan."""
        self._query_remaining_heuristics_modes()
        return len(self._configs)

    def get_chosen_index(self) -> int:
        """Return the index of the plan to execute.

        Raises
        ------
        RuntimeError
            Before one is built or selected.
        """
        if self.candidate == -1:
            raise make_invalid_value_error("Plan index -1 is invalid: no plan is built", fix="call build_plans() first")
        return self.candidate

    def select_candidate(self, index: int) -> None:
        """Make one plan the candidate, built or not; :meth:`build` then builds only that one."""
        self.candidate = index
        self._pinned = index

    def get_config(self, index: int) -> EngineConfig:
        """Return the engine config at an index.

        Raises
        ------
        IndexError
            If there is none at that index, or none at all.
        """
        if not hasattr(index, "__index__"):
            raise make_missing_plan_error(index, len(self))
        if index >= len(self._configs):
            self._query_remaining_heuristics_modes()
        if not self._configs and index in self._plans:
            return self._make_config_of_loaded_plan(self._plans[index])
        if not self._configs:
            raise FrontendIndexError(
                f"Plan index {index} is invalid: the graph has no plans",
                code="frontend-value",
                fix="call create_execution_plans(...), then build_plans()",
            )
        if not 0 <= index < len(self._configs):
            raise make_missing_plan_error(index, len(self._configs))
        return self._configs[index]

    @staticmethod
    def _make_config_of_loaded_plan(plan: Plan) -> EngineConfig:
        """Return the engine config of a loaded plan."""
        choice = EngineChoice.parse(plan.tag)
        return OperationGraph(plan.graph, plan.target).config(choice.engine, choice.knobs)

    def get_name(self, index: int) -> str:
        """Return a config's name: its engine, then its knobs ordered by number, like ``eng2_k2=4_k24=7``."""
        return self.get_config(index).tag

    def query_heuristics(self, modes: Sequence[heur_mode]) -> None:
        """Append the engine configs that heuristics list in these modes; later modes are queried only if needed.

        OPENSOURCE means engines that are not cuDNN's: next to other modes it adds none.

        Raises
        ------
        cudnnGraphNotSupportedError
            If they propose nothing, or for OPENSOURCE alone.
        TypeError
            For what is no mode.
        """
        named = [_to_heuristics_mode(mode) for mode in to_list("heuristics", modes, "a list of cudnn.heur_mode")]
        names = [mode.name for mode in named if mode is not heur_mode.OPENSOURCE]
        if named and not names:
            raise make_kernel_not_offered_error(
                "heur_mode.OPENSOURCE alone selects only kernels of cudnn-frontend's own"
            )
        _ = self._graph.operation_graph  # refuses to be queried too early
        self._query_remaining_heuristics_modes()
        before = len(self._configs)
        self._cudnn_messages = ""
        self._modes = names
        while self._modes and len(self._configs) == before:
            self._query_next_heuristics_mode()
        if not self._configs:
            raise self._make_refusal_error(
                "no engine config of cuDNN supports this graph", "heuristics-empty", built=False
            )

    def _query_next_heuristics_mode(self) -> None:
        try:
            found = self._graph.operation_graph.heuristics(
                self._modes.pop(0), sm_count=self._graph.sm_count, judging=True
            )
        except CudnnStatusError as error:
            words = error.sections["cudnn"]
        else:
            known = {config.tag for config in self._configs}  # each engine with its knobs once, whatever modes say it
            self._configs += [config for config in found.configs if not known or config.tag not in known]
            words = found.answer.text
        self._cudnn_messages = "\n".join(text for text in (self._cudnn_messages, words) if text)

    def _query_remaining_heuristics_modes(self) -> None:
        while self._modes:
            self._query_next_heuristics_mode()

    def _make_refusal_error(
        self,
        headline: str,
        code: str,
        words: str | None = None,
        *,
        built: bool | None = None,
        advice: str = "read .verdict of this exception: causes, and what would help",
    ) -> cudnnGraphNotSupportedError:
        """Return the error for a refused graph; an environment problem that explains the refusal is named first."""
        from ..diagnose.engines import explain_missing_engines, find_missing_engine_libraries
        from ..native.environment_problems import (
            find_problem_explaining_refusal,  # reads versions and logs: only for a refusal
        )

        target, graph = self._graph.target, self._graph.graph()
        fault = None if built is None else find_problem_explaining_refusal(target.library, target, built=built)
        if built is False and (absent := find_missing_engine_libraries(graph, target)):
            headline = f"{explain_missing_engines(None, absent, target.library).headline}, judged"
        error = cudnnGraphNotSupportedError(
            f"{'' if fault is None else f'{fault.headline}; '}"
            f"{headline} on {target.name} (sm_{target.sm}), cuDNN {target.library.build_text}",
            code=code if fault is None else fault.code,
            cudnn=(words if words is not None else self._cudnn_messages) or None,
            fix=advice if fault is None else fault.repair,
        )
        error.graph, error.target = graph, target
        return error

    def add_sole_usable_engine(self, choice: EngineChoice) -> None:
        """Append the only engine that can run the graph.

        Raises
        ------
        cudnnGraphNotSupportedError
            If it does not.
        """
        try:
            self.add_engine(choice)
        except NotSupportedStatus as error:
            headline = f"no engine config of cuDNN supports this graph: it needs {choice.tag}, which does not,"
            raise self._make_refusal_error(
                headline, "heuristics-empty", error.sections["cudnn"], built=False
            ) from error

    def add_engine(self, choice: EngineChoice) -> None:
        """Append one engine with these knob values."""
        self._query_remaining_heuristics_modes()
        self._configs.append(self._graph.operation_graph.config(choice.engine, choice.knobs))

    def use_loaded_plan(self, plan: Plan) -> None:
        """Replace all configs and plans by a loaded plan."""
        self._configs.clear()
        self._modes.clear()
        self._plans = {0: plan}
        self.candidate = 0

    def exclude_by_notes(self, kind: str, notes: Sequence[Any], *, keep: bool) -> None:
        """Exclude all configs with one of these notes or, with `keep`, all that lack one, even if added later."""
        known = _NOTE_TYPES[kind].__members__
        names = [note.name for note in notes if isinstance(note, Enum) and note.name in known]
        if len(names) < len(notes):
            raise TypeError(
                f"{format_repr(notes)} are not valid notes, a list of cudnn.{_NOTE_TYPES[kind].__name__} is needed"
            )
        self._notes += [(kind, name, keep) for name in names]

    def _find_exclusion_reason(self, index: int) -> str | None:
        config = self.get_config(index)
        for kind, note, wanted in self._notes:
            if (note in (held.name for held in getattr(config, kind))) != wanted:
                return "deselected by its notes"
        named = self._find_reason_to_exclude_by_name(index)
        if named is not None:
            return named
        if self.workspace_limit is None and self.shared_memory_limit is None:
            return None
        from ..plans.select import find_exceeded_limit

        return find_exceeded_limit(
            config, workspace_bytes=self.workspace_limit, shared_memory_bytes=self.shared_memory_limit
        )

    def _find_reason_to_exclude_by_name(self, index: int) -> str | None:
        for name in self.barred_names:
            if name in (called := self.get_name(index)):
                return f"{called} is deselected by the name {name}"
        return None

    def check_support(self) -> None:
        """Check that a config or the loaded plan remains after the filters."""
        reasons = [self._find_exclusion_reason(index) for index in range(len(self._configs))]
        if None not in reasons:  # not even with all modes asked?
            reasons = [self._find_exclusion_reason(index) for index in range(len(self))]
        if None not in reasons:
            raise self._make_refusal_error(
                "no execution plan supports this graph",
                "plans-deselected",
                _join_nonempty_lines(reasons) or None,
                advice="choose other plans of graph.plans, or remove a filter",
            )

    def check_not_excluded(self, index: int, *, to_build: bool = False) -> None:
        """Check that the filters allow a plan; a built plan stays usable unless it was deselected by name.

        Raises
        ------
        PlanExcluded
            If one bars it.
        """
        limits = (self.workspace_limit, self.shared_memory_limit)
        if not self._notes and not self.barred_names and limits == (None, None):
            return
        runs_on = index in self._plans and not to_build
        why = self._find_reason_to_exclude_by_name(index) if runs_on else self._find_exclusion_reason(index)
        if why is not None:
            raise PlanExcluded(
                f"plan {index}: {why}",
                code="plans-deselected",
                fix="choose another of graph.plans, or remove the filter",
            )

    def deselect_excluded_candidate(self) -> bool:
        """Return whether filters exclude the candidate; if so, reset it to the plan that the user selected, or none."""
        if not self._is_candidate_excluded():
            return False
        self.candidate = -1 if self._pinned is None else self._pinned
        return True

    def _is_candidate_excluded(self) -> bool:
        return self.candidate != -1 and self._find_exclusion_reason(self.candidate) is not None

    def build_plan_at(self, index: int) -> None:
        """Build one plan and make it the candidate.

        Raises
        ------
        cudnnGraphNotSupportedError
            If it was filtered out or cannot be built.
        """
        self._build_plan(index)
        self.candidate, self._pinned = index, None

    def _build_plan(self, index: int) -> None:
        config = self.get_config(index)
        self.check_not_excluded(index, to_build=True)
        if index in self._plans:
            return
        cache = self._graph.cache
        try:
            with convert_errors(FrontendRuntimeError, "the kernel cache"):
                made = None if cache is None else cache.get_or_make_descriptor(self._graph.operation_graph.descriptor)
            retention = self._graph._get_cuda_graph_retention_of_plans()
            built = build_plan(config, kernel_cache=made, retention=retention)
        except CudnnBackendError as error:
            words = getattr(error, "last_error", "") or str(error)
            raise self._make_refusal_error(
                f"plan {index} ({config.tag}) cannot be built: {get_headline(error)}", "plan-not-built", words
            ) from error
        if not self._plans:
            BUILT_GRAPHS[self._graph.name] += 1
        self._plans[index] = built

    def build(self, policy: build_plan_policy) -> None:
        """Build the first plan that can be built, or all; the first built plan is executed unless another was chosen.

        A selected plan is built in any case, or it is said why not.
        """
        every = policy != build_plan_policy.HEURISTICS_CHOICE
        if every:
            self._query_remaining_heuristics_modes()
        elif self._pinned is not None:
            self._build_plan(self._pinned)
            return
        elif self.candidate != -1 and not self._is_candidate_excluded():
            return
        built: list[int] = []
        failures: list[str] = []
        for index in self._iterate_indices():
            try:
                self._build_plan(index)
            except cudnnGraphNotSupportedError as error:
                if index == self._pinned:
                    raise
                failures.append(error.headline)
                continue
            built.append(index)
            if not every:
                break
        if not built:
            headline = "no execution plan could be built for this graph"
            raise self._make_refusal_error(headline, "plan-not-built", _join_nonempty_lines(failures), built=True)
        if self.candidate == -1 or self._is_candidate_excluded():
            self.candidate = built[0]

    def _iterate_indices(self) -> Iterator[int]:
        """Yield the indices of all configs, querying further modes as needed."""
        index = 0
        while index < len(self._configs) or index < len(self):
            yield index
            index += 1

    def list_runnable_indices(self) -> list[int]:
        """Return the indices of the built plans that may run: those not deselected by name."""
        return sorted(index for index in self._plans if self._find_reason_to_exclude_by_name(index) is None)

    @property
    def has_built_plan(self) -> bool:
        """Whether a plan is built or loaded."""
        return bool(self._plans)

    def is_built(self, index: int) -> bool:
        """Return whether the plan at an index is built."""
        return index in self._plans

    def get_built_plan(self, index: int) -> Plan:
        """Return the built plan at an index.

        Raises
        ------
        RuntimeError
            If there is no such plan or it is not built.
        """
        plan = self._plans.get(index)
        if plan is None:
            self.get_config(index)
            raise make_invalid_value_error(f"plan {index} is not built", fix=f"call build_plan_at_index({index}) first")
        return plan


def _to_heuristics_mode(mode: Any) -> heur_mode:
    try:
        return heur_mode(mode)
    except ValueError:
        raise TypeError(f"{format_repr(mode)} is not a heuristics mode, a cudnn.heur_mode is needed") from None


def _join_nonempty_lines(texts: Iterable[str | None]) -> str:
    return "\n".join(text for text in texts if text)
