"""From a graph to engine configs: operation graph, heuristics, engines, knobs and notes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, closing, nullcontext, suppress
from functools import cached_property
from typing import TYPE_CHECKING, Any

from ..errors import REASON_LINE, CudnnBackendError, CudnnStatusError, UsageError
from ..frozen import FrozenValue
from ..generated.enums import (
    AttributeName as Attr,
)
from ..generated.enums import (
    BehaviorNote,
    DescriptorType,
    HeurMode,
    KnobType,
    NumericalNote,
)
from ..graph.ir import Graph, check_graph_writes_memory
from ..native import Descriptor, ErrorText, Library, build
from ..target import Target, open_target
from .choice import EngineChoice, Knobs
from .lower import lower

if TYPE_CHECKING:
    from ..native import Log

__all__ = ["EngineConfig", "Heuristics", "Knob", "OperationGraph", "heur_mode"]


def _capture_log_of_this_thread(lib: Library) -> AbstractContextManager[Log]:
    from ..native import capture_log  # only where reasons are wanted

    return capture_log(this_thread_only=True, on=lib)


def heur_mode(mode: HeurMode | str) -> HeurMode:
    """Return the heuristics mode called `mode` (``A``, ``B``, ``FALLBACK``).

    Raises
    ------
    UsageError
        ``unknown-enumerator``.
    """
    if isinstance(mode, HeurMode):
        return mode
    known = [name for name in HeurMode.__members__ if name != "MODES_COUNT"]
    if mode.upper() not in known:
        from ..system.nearest import suggest_most_similar_name  # for this error alone

        raise UsageError(
            f"no heuristics mode is called {mode!r}, known are {', '.join(known)}"
            f"{suggest_most_similar_name(mode, known)}",
            code="unknown-enumerator",
        )
    return HeurMode[mode.upper()]


class Knob(FrozenValue):
    """A knob of an engine: its range and step. C: ``CUDNN_BACKEND_KNOB_INFO_DESCRIPTOR``."""

    type: KnobType | int
    minimum: int
    maximum: int
    stride: int


class EngineConfig:
    """An engine with its knob choices for one operation graph; properties are read from cuDNN on demand.

    C: ``CUDNN_BACKEND_ENGINECFG_DESCRIPTOR``.

    Parameters
    ----------
    origin
        Where it comes from: the name of the heuristics mode that proposed it (``A``), the library
        that selects it (``cudnn-frontend``), or another way (``named``).
    """

    def __init__(self, descriptor: Descriptor, graph: OperationGraph, origin: str = "named") -> None:
        self.descriptor = descriptor
        self.graph = graph
        self.origin = origin

    @property
    def mode(self) -> HeurMode | None:
        """The heuristics mode that proposed the config; None for a config made otherwise."""
        return HeurMode.__members__.get(self.origin)

    @cached_property
    def _engine(self) -> Descriptor:
        engine: Descriptor = self.descriptor.get(Attr.ENGINECFG_ENGINE)
        return engine

    @cached_property
    def engine(self) -> int:
        """The global index of the engine."""
        return int(self._engine.get(Attr.ENGINE_GLOBAL_INDEX))

    @cached_property
    def knobs(self) -> dict[KnobType | int, int]:
        """The knob choices, by knob type."""
        choices = self.descriptor.get(Attr.ENGINECFG_KNOB_CHOICES)
        return {choice.get(Attr.KNOB_CHOICE_KNOB_TYPE): choice.get(Attr.KNOB_CHOICE_KNOB_VALUE) for choice in choices}

    @cached_property
    def behavior_notes(self) -> tuple[BehaviorNote, ...]:
        """The engine's behavior notes: runtime compilation, CUDA graph support, required layouts."""
        return tuple(self._engine.get(Attr.ENGINE_BEHAVIOR_NOTE))

    @cached_property
    def numerical_notes(self) -> tuple[NumericalNote, ...]:
        """The engine's numerical notes: tensor cores, reduced precision, nondeterminism."""
        return tuple(self._engine.get(Attr.ENGINE_NUMERICAL_NOTE))

    @cached_property
    def workspace_bytes(self) -> int:
        """The config's workspace in bytes, known before a plan is built. Since cuDNN 9.2."""
        return int(self.descriptor.get(Attr.ENGINECFG_WORKSPACE_SIZE))

    @cached_property
    def shared_memory_bytes(self) -> int:
        """The config's shared memory per block in bytes. Since cuDNN 9.2."""
        return int(self.descriptor.get(Attr.ENGINECFG_SHARED_MEMORY_USED))

    @property
    def choice(self) -> EngineChoice:
        """The engine and its knob values."""
        return EngineChoice(self.engine, self.knobs)

    @property
    def tag(self) -> str:
        """A short text of engine and knob choices such as ``eng2_k24=7``, to compare and to log."""
        return self.choice.tag

    def __repr__(self) -> str:
        return f"<EngineConfig {self.tag}>"


class Heuristics(FrozenValue):
    """cuDNN's answer to a heuristics query.

    ``candidates`` were considered, ``configs`` survived their support check, in cuDNN's order, and ``answer`` has the
    reasons of the others: cuDNN's last-error text if none survived, else what it logs, where that was requested.
    """

    mode: HeurMode
    candidates: int
    configs: list[EngineConfig]
    answer: ErrorText


_SUPPORT_CHECKS_LOGGER = "_engine_config_support_checks"


_FIRST_SM_WITH_TF32 = 80
_FIRST_SM_WITH_SELECTIONS = 100  # a first plan for older GPUs does without the module of the rows
_libraries_queried_with_tf32: set[int] = set()  # ids of libraries, which live as long as the process


def _query_heuristics_once_for_tf32_gpu(lib: Library) -> None:
    """Query cuDNN once for a GPU with TF32, as its first query decides on TF32 for all later ones.

    At the first question of a process cuDNN 9.14 to 9.28 note whether its GPU has TF32. Where that was an older one,
    no TF32 kernel is proposed for any GPU later: float32 products and convolutions are refused, or get fewer configs.
    """
    if id(lib) in _libraries_queried_with_tf32:
        return
    from ..graph.builder import GraphBuilder  # only where an old GPU is judged

    g = GraphBuilder("first question")
    g.matmul(g.tensor("a", (1, 64, 64)), g.tensor("b", (1, 64, 64)), virtual=False)
    with suppress(CudnnBackendError), closing(open_target(f"sm{_FIRST_SM_WITH_TF32}", on=lib)) as target:
        OperationGraph(g.graph(), target).heuristics(judging=True)
    _libraries_queried_with_tf32.add(id(lib))


class OperationGraph:
    """A graph finalized by cuDNN, and queries for its engines and engine configs on a target.

    C: ``CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR``.

    Parameters
    ----------
    dynamic_shapes
        Let plans share kernels over shapes, through a kernel cache.
        C: ``CUDNN_ATTR_OPERATIONGRAPH_IS_DYNAMIC_SHAPE_ENABLED`` (since 9.4). Known issues of this and of
        `override_shapes`: :func:`~cudnn_backend_py.known_issues.find_known_issues` with `sharing`.
    override_shapes
        Let an execution give other dims and strides.
        C: ``CUDNN_ATTR_OPERATIONGRAPH_IS_OVERRIDE_SHAPE_ENABLED`` (since 9.18).
    must_write
        Refuse a graph that writes no tensor in memory. cuDNN itself accepts it.

    Raises
    ------
    GraphError
        ``graph-writes-nothing``.
    CudnnStatusError
        What cuDNN refuses about an operation or the graph.
    UsageError
        ``attribute-newer-than-library``, ``descriptor-newer-than-library``.
    """

    def __init__(
        self,
        graph: Graph,
        target: Target,
        *,
        dynamic_shapes: bool = False,
        override_shapes: bool = False,
        must_write: bool = True,
    ) -> None:
        if must_write:
            check_graph_writes_memory(graph)
        self.graph = graph
        self.target = target
        lib = target.library
        if target.device is not None and target.sm < _FIRST_SM_WITH_TF32:
            _query_heuristics_once_for_tf32_gpu(lib)
        values = lower(graph)
        built: dict[int, Descriptor] = {}
        ops = [build(value, on=lib, built=built) for value in values]
        self.descriptor = Descriptor(DescriptorType.OPERATIONGRAPH, on=lib).set(Attr.OPERATIONGRAPH_OPS, ops)
        if target.handle is not None:
            self.descriptor.set(Attr.OPERATIONGRAPH_HANDLE, target.handle)
        if dynamic_shapes:
            self.descriptor.set(Attr.OPERATIONGRAPH_IS_DYNAMIC_SHAPE_ENABLED, True)
        if override_shapes:
            self.descriptor.set(Attr.OPERATIONGRAPH_IS_OVERRIDE_SHAPE_ENABLED, True)
        self.descriptor.finalize()

    def heuristics(
        self,
        mode: HeurMode | str = HeurMode.A,
        *,
        reasons: bool = False,
        sm_count: int | None = None,
        judging: bool = False,
    ) -> Heuristics:
        """Query cuDNN's heuristics for engine configs.

        C: ``CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR``, ``CUDNN_ATTR_ENGINEHEUR_RESULTS``. An empty list is an answer;
        the reasons are in ``answer``.

        Parameters
        ----------
        reasons
            Also learn why candidates were refused where others survived. The last-error text is empty then, so
            cuDNN's log of the query is captured and read.
        sm_count
            Multiprocessors the plan may use. C: ``CUDNN_ATTR_ENGINEHEUR_SM_COUNT_TARGET``.
        judging
            Return an empty list also where an environment problem explains it: for callers that report the problem.

        Raises
        ------
        CudnnStatusError
            What cuDNN refuses.
        EnvironmentNotReady
            The list is empty because cuDNN cannot judge here: NVRTC is missing, for example.
        """
        chosen = heur_mode(mode)
        lib = self.target.library
        question = Descriptor(DescriptorType.ENGINEHEUR, on=lib)
        question.set(Attr.ENGINEHEUR_OPERATION_GRAPH, self.descriptor).set(Attr.ENGINEHEUR_MODE, chosen)
        if self.target.device is not None:
            question.set(Attr.ENGINEHEUR_DEVICEPROP, self.target.device)
        if sm_count is not None:
            question.set(Attr.ENGINEHEUR_SM_COUNT_TARGET, sm_count)
        with lib.collect_messages() as answer:
            question.finalize()
            candidates = question.count(Attr.ENGINEHEUR_RESULTS, judging=True)
            with _capture_log_of_this_thread(lib) if reasons else nullcontext() as log:
                found = question.get(Attr.ENGINEHEUR_RESULTS, judging=True) if candidates else ()
        if not found and not judging:
            from ..native.environment_problems import (
                raise_problem_explaining_empty_config_list,  # only for an empty list
            )

            raise_problem_explaining_empty_config_list(lib, self.target)
        if log and len(found) < candidates and not answer.text:
            checks = [record.body for record in log.records if (record.function or "").endswith(_SUPPORT_CHECKS_LOGGER)]
            answer = ErrorText("\n".join(checks))
        configs = [EngineConfig(descriptor, self, chosen.name) for descriptor in found]
        return Heuristics(chosen, candidates, configs, answer)

    def selected(self) -> EngineConfig | None:
        """Return the engine config that cudnn-frontend selects without heuristics; None for most graphs.

        The rows are those of :data:`~cudnn_backend_py.graph.attention.selections.SELECTIONS`; the config's ``origin``
        is the library.

        Raises
        ------
        NotSupported
            If cuDNN refuses it.
        """
        if self.target.sm < _FIRST_SM_WITH_SELECTIONS:
            return None
        from ..graph.attention.selections import find_engine_selection

        found = find_engine_selection(self.graph, self.target.library.version, self.target.sm)
        return None if found is None else self.config(found.engine, dict(found.knobs), origin=found.by)

    def configs(
        self, modes: Iterable[HeurMode | str], most: int | None = None, *, judging: bool = False
    ) -> Iterator[EngineConfig]:
        """Yield the supported engine configs: those of the heuristics, then the one that cudnn-frontend selects.

        Parameters
        ----------
        most
            Configs of each mode.
        judging
            As in :meth:`heuristics`.
        """
        for mode in modes:
            yield from self.heuristics(mode, judging=judging).configs[:most]
        with suppress(CudnnStatusError):
            if (config := self.selected()) is not None:
                yield config

    @property
    def engine_count(self) -> int:
        """The number of engines cuDNN has for this kind of graph; indices run from 0.

        C: ``CUDNN_ATTR_OPERATIONGRAPH_ENGINE_GLOBAL_COUNT``.
        """
        return int(self.descriptor.get(Attr.OPERATIONGRAPH_ENGINE_GLOBAL_COUNT))

    def engine(self, index: int) -> Descriptor:
        """Return the finalized engine descriptor of a global index.

        Raises
        ------
        NotSupported
            If the engine does not support the graph. That it is no verdict: the config's check is.
        """
        engine = Descriptor(DescriptorType.ENGINE, on=self.target.library)
        engine.set(Attr.ENGINE_OPERATION_GRAPH, self.descriptor).set(Attr.ENGINE_GLOBAL_INDEX, index)
        if self.target.device is not None:
            engine.set(Attr.ENGINE_DEVICEPROP, self.target.device)
        return engine.finalize()

    def knobs(self, index: int) -> tuple[Knob, ...]:
        """Return the knobs of an engine with their ranges."""
        infos: Iterable[Descriptor] = self.engine(index).get(Attr.ENGINE_KNOB_INFO)
        return tuple(
            Knob(
                info.get(Attr.KNOB_INFO_TYPE),
                info.get(Attr.KNOB_INFO_MINIMUM_VALUE),
                info.get(Attr.KNOB_INFO_MAXIMUM_VALUE),
                info.get(Attr.KNOB_INFO_STRIDE),
            )
            for info in infos
        )

    def config(self, engine: int, knobs: Knobs | None = None, *, origin: str = "named") -> EngineConfig:
        """Return the engine config with these knob choices; cuDNN chooses the others.

        Parameters
        ----------
        origin
            What the config's ``origin`` shall say: who proposed it.

        Raises
        ------
        NotSupported
            With the reasons why this engine does not support the graph.
        """
        lib = self.target.library
        config = Descriptor(DescriptorType.ENGINECFG, on=lib).set(Attr.ENGINECFG_ENGINE, self.engine(engine))
        choices: list[Any] = []
        for knob, value in (knobs or {}).items():
            choice = Descriptor(DescriptorType.KNOB_CHOICE, on=lib)
            choice.set(Attr.KNOB_CHOICE_KNOB_TYPE, knob).set(Attr.KNOB_CHOICE_KNOB_VALUE, value)
            choices.append(choice.finalize())
        if choices:
            config.set(Attr.ENGINECFG_KNOB_CHOICES, choices)
        return EngineConfig(config.finalize(), self, origin)

    def read_refusal(self, engine: int, knobs: Knobs | None = None) -> str:
        """Return cuDNN's reasons against an engine config; empty if it is supported.

        The config is finalized again and cuDNN's log is captured, as the last-error text of a config is empty.
        """
        with _capture_log_of_this_thread(self.target.library) as log, suppress(CudnnStatusError):
            self.config(engine, knobs)
        return "\n".join(line[0].strip() for record in log.records for line in re.finditer(REASON_LINE, record.body))
