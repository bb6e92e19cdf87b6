"""The engine configs of a graph in heuristics' order: filtered, checked, built."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from enum import Enum
from typing import TYPE_CHECKING, Any, Protocol

from ..errors import CudnnBackendError, CudnnStatusError, NotSupportedStatus
from ..plans.choice import EngineChoice
from ..plans.engine import EngineConfig, Knob, OperationGraph
from ..plans.plan import Plan, build_plan
from ..system.quick_dataclass import dataclass
from ..target import Target
from .enums import build_plan_policy, heur_mode, knob_type
from .errors import FrontendRuntimeError, cudnnGraphNotSupportedError, invalid_value, no_such_plan, status_as

if TYPE_CHECKING:
    from ..graph import Graph
    from .handles import kernel_cache

__all__ = ["PlanConfig", "PlanList", "knob"]


@dataclass(frozen=True)
class knob:
    """A knob of an engine: its range and step."""

    type: knob_type
    max_value: int
    min_value: int
    stride: int

    @staticmethod
    def of(knobs: Iterable[Knob]) -> list[knob]:
        """Return the knobs cudnn-frontend has names for."""
        names = knob_type.__members__
        known = [(names.get(getattr(item.type, "name", "")), item) for item in knobs]
        return [knob(kind, item.maximum, item.minimum, item.stride) for kind, item in known if kind is not None]


@dataclass(frozen=True)
class PlanConfig:
    """One plan of a graph: the engine, the values of its knobs, and which of cuDNN's plans it is."""

    engine_id: int
    knobs: Any = None
    cpp_index: int | None = None


class Asking(Protocol):
    """What a list of plans asks of the graph it is of."""

    target: Target
    sm_count: int | None

    @property
    def operation_graph(self) -> OperationGraph: ...

    @property
    def cache(self) -> kernel_cache | None: ...

    def graph(self) -> Graph: ...


class PlanList:
    """Engine configs of one graph; ``candidate`` is the index of the plan to execute, -1 before one is built."""

    def __init__(self, graph: Asking) -> None:
        self._graph = graph
        self._configs: list[EngineConfig] = []
        self._modes: list[str] = []  # to be asked when their configs are needed
        self._plans: dict[int, Plan] = {}
        self._barred: set[int] = set()
        self._words = ""
        self.candidate = -1
        self._pinned: int | None = None
        self.barred_names: list[str] = []
        self.workspace_limit: int | None = None
        self.shared_memory_limit: int | None = None

    def __len__(self) -> int:
        return self.count or len(self._plans)

    @property
    def count(self) -> int:
        """How many engine configs there are; none for a plan that was built elsewhere."""
        self._ask_all()
        return len(self._configs)

    def chosen(self) -> int:
        """Return the index of the plan to execute.

        Raises
        ------
        RuntimeError
            Before one is built or selected.
        """
        if self.candidate == -1:
            raise invalid_value("Plan index -1 is invalid: no plan is built", fix="build_plans()")
        return self.candidate

    def select(self, index: int) -> None:
        """Make one plan the candidate, built or not; :meth:`build` then builds it and no other."""
        self.candidate = index
        self._pinned = index

    def config(self, index: int) -> EngineConfig:
        """Return an engine config.

        Raises
        ------
        IndexError
            If there is none at that index.
        RuntimeError
            If there are none at all.
        """
        if index >= len(self._configs):
            self._ask_all()
        if not self._configs and index in self._plans:
            return self._config_of(self._plans[index])
        if not self._configs:
            raise invalid_value(
                f"Plan index {index} is invalid: the graph has no plans",
                fix="create_execution_plans(...), then build_plans()",
            )
        if not 0 <= index < len(self._configs):
            raise no_such_plan(index, len(self._configs))
        return self._configs[index]

    @staticmethod
    def _config_of(plan: Plan) -> EngineConfig:
        """Return the engine config of a plan that was built elsewhere."""
        choice = EngineChoice.parse(plan.tag)
        return OperationGraph(plan.graph, plan.target).config(choice.engine, choice.knobs)

    def name(self, index: int) -> str:
        """Return engine and knobs of a config, the knobs in the order of their numbers: ``eng2_k2=4_k24=7``."""
        engine, *knobs = self.config(index).tag.split("_")
        return "_".join([engine, *sorted(knobs, key=lambda text: int(text[1:].partition("=")[0]))])

    def ask(self, modes: Sequence[heur_mode]) -> None:
        """Append what heuristics propose in these modes; the later ones are asked when theirs are needed.

        Raises
        ------
        cudnnGraphNotSupportedError
            If they propose nothing.
        """
        if any(mode is heur_mode.OPENSOURCE for mode in modes):
            raise NotImplementedError(
                "heur_mode.OPENSOURCE stands for engines that are not cuDNN's backend; this module offers cuDNN's"
            )
        _ = self._graph.operation_graph  # refuses to be asked too early
        self._ask_all()
        before = len(self._configs)
        self._words = ""
        self._modes = [heur_mode(mode).name for mode in modes]
        while self._modes and len(self._configs) == before:
            self._ask_next()
        if not self._configs:
            raise self._refused("no engine config of cuDNN supports this graph", "heuristics-empty", built=False)

    def _ask_next(self) -> None:
        try:
            found = self._graph.operation_graph.heuristics(self._modes.pop(0), sm_count=self._graph.sm_count)
        except CudnnStatusError as error:
            words = error.sections["cudnn"]
        else:
            known = {config.tag for config in self._configs}  # each engine with its knobs once, whatever modes say it
            self._configs += [config for config in found.configs if not known or config.tag not in known]
            words = found.answer.text
        self._words = "\n".join(text for text in (self._words, words) if text)

    def _ask_all(self) -> None:
        while self._modes:
            self._ask_next()

    def _refused(
        self, headline: str, code: str, words: str | None = None, *, built: bool | None = None
    ) -> cudnnGraphNotSupportedError:
        """Return the error; where `built` says how far cuDNN came, a fault of the environment is named before it."""
        from ..target.environment import fault_behind_refusal  # reads versions and logs: only for a refusal

        fault = None if built is None else fault_behind_refusal(self._graph.target, built=built)
        error = cudnnGraphNotSupportedError(
            f"{'' if fault is None else f'{fault.headline}; '}"
            f"{headline} on {self._graph.target.name} (sm_{self._graph.target.sm}), "
            f"cuDNN {self._graph.target.library.version_text}",
            code=code if fault is None else fault.code,
            cudnn=(words if words is not None else self._words) or None,
            fix="read .verdict of this exception: causes, and what would help" if fault is None else fault.repair,
        )
        error.graph, error.target = self._graph.graph(), self._graph.target
        return error

    def require_engine(self, choice: EngineChoice) -> None:
        """Append the one engine that can run the graph.

        Raises
        ------
        cudnnGraphNotSupportedError
            If it does not.
        """
        try:
            self.add_engine(choice)
        except NotSupportedStatus as error:
            headline = f"no engine config of cuDNN supports this graph: it needs {choice.tag}, which does not,"
            raise self._refused(headline, "heuristics-empty", error.sections["cudnn"], built=False) from error

    def add_engine(self, choice: EngineChoice) -> None:
        """Append one engine with these knob values."""
        self._ask_all()
        self._configs.append(self._graph.operation_graph.config(choice.engine, choice.knobs))

    def take(self, plan: Plan) -> None:
        """Hold a plan that was built elsewhere."""
        self._configs.clear()
        self._modes.clear()
        self._plans = {0: plan}
        self.candidate = 0

    def filter_notes(self, kind: str, notes: Sequence[Any], *, keep: bool) -> None:
        """Bar configs by notes: those without one of them (`keep`), or those with one."""
        if not all(isinstance(note, Enum) for note in notes):
            raise TypeError(f"{notes!r} are no notes, a list of cudnn.behavior_note or cudnn.numerical_note is needed")
        self._ask_all()
        for index, config in enumerate(self._configs):
            held = {note.name for note in getattr(config, kind)}
            if any((note.name in held) != keep for note in notes):
                self._barred.add(index)

    def _why_barred(self, index: int) -> str | None:
        config = self.config(index)
        if index in self._barred:
            return "deselected by its notes"
        for name in self.barred_names:
            if name in (called := self.name(index)):
                return f"{called} is deselected by the name {name}"
        if self.workspace_limit is None and self.shared_memory_limit is None:
            return None
        from ..plans.select import find_excess

        return find_excess(config, workspace_bytes=self.workspace_limit, shared_memory_bytes=self.shared_memory_limit)

    def check_support(self) -> None:
        """Check that a config is left after the filters."""
        reasons = [self._why_barred(index) for index in range(len(self._configs))]
        if None not in reasons:  # not even with all modes asked?
            reasons = [self._why_barred(index) for index in range(self.count)]
        if None not in reasons:
            raise self._refused(
                "no execution plan is left that supports this graph", "plans-deselected", _lines(reasons) or None
            )

    def build_at(self, index: int) -> None:
        """Build one plan and make it the candidate.

        Raises
        ------
        cudnnGraphNotSupportedError
            If it was filtered out or cannot be built.
        """
        why = self._why_barred(index)
        if why is not None:
            raise self._refused(f"plan {index}: {why}", "plans-deselected", "")
        if index not in self._plans:
            cache = self._graph.cache
            try:
                with status_as(FrontendRuntimeError, "the kernel cache"):
                    made = None if cache is None else cache.for_graph(self._graph.operation_graph.descriptor)
                self._plans[index] = build_plan(self._configs[index], kernel_cache=made)
            except CudnnBackendError as error:
                words = getattr(error, "last_error", "") or str(error)
                raise self._refused(
                    f"plan {index} ({self._configs[index].tag}) cannot be built: {error.headline}",
                    "plan-not-built",
                    words,
                ) from error
        self.candidate = index

    def build(self, policy: build_plan_policy) -> None:
        """Build the first plan that can be built, or all of them; the first one is the candidate."""
        if self._pinned is not None:
            self.build_at(self._pinned)
            return
        if policy == build_plan_policy.HEURISTICS_CHOICE and self.candidate != -1:
            return
        first = -1
        failures: list[str] = []
        if policy != build_plan_policy.HEURISTICS_CHOICE:
            self._ask_all()
        for index in self._indices():
            try:
                self.build_at(index)
            except cudnnGraphNotSupportedError as error:
                failures.append(error.headline)
                continue
            first = index if first == -1 else first
            if policy == build_plan_policy.HEURISTICS_CHOICE:
                break
        if first == -1:
            headline = "no execution plan could be built for this graph"
            raise self._refused(headline, "plan-not-built", _lines(failures), built=True)
        self.candidate = first

    def _indices(self) -> Iterator[int]:
        """Yield the indices of all configs, those of modes that are asked meanwhile among them."""
        index = 0
        while index < len(self._configs) or index < self.count:
            yield index
            index += 1

    def is_built(self, index: int) -> bool:
        """Return whether a plan is built."""
        return index in self._plans

    def built(self, index: int) -> Plan:
        """Return a built plan.

        Raises
        ------
        RuntimeError
            If there is no such plan or it is not built.
        """
        plan = self._plans.get(index)
        if plan is None:
            self.config(index)
            raise invalid_value(f"plan {index} is not built", fix=f"build_plan_at_index({index})")
        return plan


def _lines(texts: Iterable[str | None]) -> str:
    return "\n".join(text for text in texts if text)
