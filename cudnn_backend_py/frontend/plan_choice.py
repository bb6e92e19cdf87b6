"""``PlanChoice``: the methods of ``pygraph`` that filter plans and report engines, knobs and notes."""

from __future__ import annotations

import os
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import suppress
from operator import index
from typing import Any, Self

from ..generated.enums import CudaGraphRetention, KnobType
from ..plans.choice import EngineChoice
from ..plans.engine import OperationGraph
from ..printable import format_repr
from .enums import behavior_note, cuda_graph_retention, is_frontend_knob_type, knob_type, numerical_note
from .errors import FrontendRuntimeError, FrontendValueError, convert_errors, cudnnGraphNotSupportedError
from .plan_list import PlanConfig, PlanList, knob
from .runner import Runner

__all__ = ["PlanChoice", "make_engine_choice", "to_cuda_graph_retention"]


class PlanChoice:
    """Mixin of ``pygraph`` with the methods that filter its plans and report engines, knobs and notes."""

    _plans: PlanList
    _retention: cuda_graph_retention | None
    _current: Runner | None

    @property
    def operation_graph(self) -> OperationGraph:
        """The finalized operation graph."""
        raise NotImplementedError

    @abstractmethod
    def _require_plans(self) -> None: ...

    # filters

    def deselect_workspace_greater_than(self, workspace_limit: int) -> Self:
        """Exclude plans that need more workspace than this number of bytes."""
        self._plans.workspace_limit = _require_int(workspace_limit, "number of bytes")
        return self

    def deselect_shared_mem_greater_than(self, shared_memory: int) -> Self:
        """Exclude plans that need more shared memory per block than this number of bytes."""
        self._plans.shared_memory_limit = _require_int(shared_memory, "number of bytes")
        return self

    def deselect_engines(self, engine_names: Sequence[str]) -> Self:
        """Exclude plans with one of these texts in their name, such as ``eng3`` or ``k24=7``."""
        names = list(engine_names)
        if isinstance(engine_names, str) or not all(isinstance(name, str) for name in names):
            raise TypeError(f"engine_names must be a list of str, got {format_repr(engine_names)}")
        self._plans.barred_names += names
        if self._plans.deselect_excluded_candidate():
            self._current = None
        return self

    def select_behavior_notes(self, notes: Sequence[behavior_note]) -> Self:
        """Keep only plans with all of these behavior notes."""
        self._plans.exclude_by_notes("behavior_notes", notes, keep=True)
        return self

    def deselect_behavior_notes(self, notes: Sequence[behavior_note]) -> Self:
        """Exclude plans with any of these behavior notes."""
        self._plans.exclude_by_notes("behavior_notes", notes, keep=False)
        return self

    def select_numeric_notes(self, notes: Sequence[numerical_note]) -> Self:
        """Keep only plans with all of these numerical notes."""
        self._plans.exclude_by_notes("numerical_notes", notes, keep=True)
        return self

    def deselect_numeric_notes(self, notes: Sequence[numerical_note]) -> Self:
        """Exclude plans with any of these numerical notes."""
        self._plans.exclude_by_notes("numerical_notes", notes, keep=False)
        return self

    # questions

    @property
    def plans(self) -> list[PlanConfig]:
        """Engine and knobs of each plan, in build order."""
        return [PlanConfig(*self.get_engine_and_knobs_at_index(index), index) for index in range(self._plans.count)]

    def backend_plan_entries(self) -> list[PlanConfig]:
        """Return :attr:`plans`, querying the heuristics if necessary; empty if cuDNN refuses the graph."""
        with suppress(cudnnGraphNotSupportedError):
            self._require_plans()
        return self.plans

    @property
    def selected_engine(self) -> None:
        """The cudnn-frontend kernel that runs the graph: always None, as cuDNN's engines run it."""

    def get_cuda_graph_retention(self) -> cuda_graph_retention:
        """Return the retention set for the graph or, if none, by ``CUDNN_CUDA_GRAPH_RETENTION``; default: PER_GRAPH."""
        if self._retention is not None:
            return self._retention
        named = os.environ.get("CUDNN_CUDA_GRAPH_RETENTION", "").upper()
        return cuda_graph_retention.__members__.get(named, cuda_graph_retention.PER_GRAPH)

    def _get_cuda_graph_retention_of_plans(self) -> CudaGraphRetention | None:
        """Return the CUDA graph retention to build plans with, None if not set or before cuDNN 9.28."""
        if self._retention is None or self.operation_graph.target.library.version < (9, 28):
            return None
        return CudaGraphRetention[self._retention.name]

    def get_execution_plan_count(self) -> int:
        """Return the number of engine configs, built or not."""
        return len(self._plans)

    def get_plan_name_at_index(self, index: int) -> str:
        """Return a plan's name: its engine, then its knobs ordered by number, like ``eng2_k2=4_k24=7``."""
        return self._plans.get_name(index)

    def get_engine_and_knobs_at_index(self, index: int) -> tuple[int, dict[knob_type, int]]:
        """Return engine and knob values of a plan."""
        config = self._plans.get_config(index)
        names = ((getattr(item, "name", ""), value) for item, value in config.knobs.items())
        return config.engine, {knob_type[name]: value for name, value in names if name in knob_type.__members__}

    def get_engine_count(self) -> int:
        """Return the number of cuDNN's engines for this graph."""
        with convert_errors(FrontendRuntimeError, "the engine count"):
            return self.operation_graph.engine_count

    def get_knobs_for_engine(self, engine: int) -> list[knob]:
        """Return the knobs of an engine with their ranges."""
        engine = _require_int(engine, "number of an engine")
        with convert_errors(FrontendRuntimeError, f"engine {engine}", fix="get_engine_count() says how many there are"):
            return knob.from_backend(self.operation_graph.knobs(engine))

    def get_behavior_notes(self) -> list[behavior_note]:
        """Return the behavior notes of the plan that :meth:`execute` runs."""
        return self.get_behavior_notes_for_plan_at_index(self._plans.get_chosen_index())

    def get_behavior_notes_for_plan_at_index(self, index: int) -> list[behavior_note]:
        """Return the behavior notes of a plan."""
        return [behavior_note[note.name] for note in self._plans.get_config(index).behavior_notes]


def _require_int(value: int, what: str) -> int:
    try:
        return index(value)
    except TypeError:
        raise TypeError(f"{format_repr(value)} is no {what}, an int is needed") from None


def to_cuda_graph_retention(given: Any) -> cuda_graph_retention | None:
    """Convert an argument to a ``cuda_graph_retention``, None to None; raise if it is not one.

    Raises
    ------
    TypeError
        If it is none.
    """
    try:
        return None if given is None else cuda_graph_retention(given)
    except ValueError:
        raise TypeError(
            f"cuda_graph_retention is {format_repr(given)}, a cudnn.cuda_graph_retention is needed"
        ) from None


def make_engine_choice(engine_id: int, knobs: Mapping[knob_type, int] | None) -> EngineChoice:
    """Return the ``EngineChoice`` for an engine number and knob values that a user gave, after checking them.

    Raises
    ------
    TypeError
        For what is no number of an engine, or knobs that are no mapping of ``cudnn.knob_type`` to int.
    ValueError
        For an engine of cudnn-frontend's own.
    RuntimeError
        For a knob that no engine of cuDNN has.
    """
    from .engines.engine_ids import CPP_OSS_ENGINE_ID_BASE, is_python_engine  # only where an engine is named

    engine_id = _require_int(engine_id, "number of an engine")
    given = {} if knobs is None else knobs
    if not isinstance(given, Mapping):
        raise TypeError(f"knobs are {format_repr(knobs)}, {{cudnn.knob_type: int}} is needed")
    chosen = {
        _to_backend_knob(item): _require_int(value, f"value of {format_repr(item)}") for item, value in given.items()
    }
    if is_python_engine(engine_id):
        raise FrontendValueError(
            f"engine {engine_id} is one of cudnn-frontend's own; cuDNN's numbers are below {CPP_OSS_ENGINE_ID_BASE}",
            code="frontend-not-offered",
            fix="get_engine_count() says how many engines cuDNN has for the graph",
        )
    return EngineChoice(engine_id, chosen)


def _to_backend_knob(item: knob_type) -> KnobType:
    try:
        named = knob_type(item)
    except ValueError:
        raise TypeError(f"{format_repr(item)} is no knob, a cudnn.knob_type is needed") from None
    found = KnobType.__members__.get(named.name)
    if found is None:
        status = "NOT_SUPPORTED" if is_frontend_knob_type(named) else "INVALID_VALUE"
        raise FrontendRuntimeError(
            f"no engine of cuDNN has the knob {named.name} "
            f"(in cudnn-frontend: convert_to_backend_knob_type, CUDNN_STATUS_{status})",
            code="frontend-value",
            fix="get_knobs_for_engine() lists the knobs of an engine",
        )
    return found
