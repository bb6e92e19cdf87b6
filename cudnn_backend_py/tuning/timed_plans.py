"""Build and time engine configs with one cuDNN version in a child process; without a GPU, only list them."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, Self

from ..errors import CudnnBackendError, UsageError
from ..execution.run import VariantPack
from ..execution.timing import FLUSHES_AHEAD, make_repeated_batch, rotate_items, time_host_calls
from ..generated.enums import HeurMode
from ..graph import Graph, graph_from_json, graph_to_json
from ..interpreter.data import make_inputs, make_memory_images
from ..plans.build import shared_target
from ..plans.engine import EngineConfig, OperationGraph
from ..plans.plan import Plan, build_plan
from ..plans.select import Selection, candidates, make_nothing_selected_error
from ..system.child import RestartingChildProcess
from ..system.serving import AnswerWriter, serve
from ..target import Target
from ..versions.judging_environment import make_version_environment
from .timing_buffers import TimingBuffers

__all__ = ["BuiltPlans", "PlanTimer", "serve_plan_timing_queries"]

WARM_UP_ROUNDS = 3
HOST_BATCHES, HOST_CALLS = 8, 40
QUERY_LIMIT_S = 120.0  # of a question: a version that takes longer has not answered
_HEURISTICS_MODES = (HeurMode.A, HeurMode.B, HeurMode.FALLBACK)


@dataclass(frozen=True)
class BuiltPlans:
    """Engine configs of a graph that were built, in heuristics' order; or the reason why none was built.

    Each config is a mapping with the keys ``tag`` and ``workspace_bytes``.
    """

    configs: tuple[Mapping[str, Any], ...] = ()
    refused: str = ""


class PlanTimer:
    """Builds and times plans with one cuDNN version, in a child process that is restarted if it ends.

    A context manager. Not for several threads.

    Parameters
    ----------
    version
        An installed version such as ``9.19.0``; None for the cuDNN this process would load.
    target
        A described GPU, for which configs are named and nothing is built; None for the one here.
    configs
        How many of the heuristics' engine configs are taken: the first ones, of those that can be built.
    """

    def __init__(self, version: str | None, target: str | None = None, configs: int = 1) -> None:
        environment = make_version_environment(version)
        self._child = RestartingChildProcess(f"{__name__}:{serve_plan_timing_queries.__name__}", lambda: environment)
        self._query = {"target": target, "configs": configs}
        self._child_properties: dict[str, Any] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self._child.end()

    @property
    def child_properties(self) -> Mapping[str, Any]:
        """The child's cuDNN and target: ``cudnn`` as text, ``version``, ``sm``, and the target's ``title``.

        Raises
        ------
        CudnnBackendError
            ``judging-failed`` with what it says, where it cannot have its cuDNN or the target.
        """
        if not self._child_properties:
            found = self._query_child(self._query)
            if "refused" in found:
                raise CudnnBackendError(found["refused"], code="judging-failed")
            self._child_properties = found
        return self._child_properties

    def build(self, graph: Graph) -> BuiltPlans:
        """Build the engine configs of a graph, replacing those of the previous graph."""
        found = self._query_child({**self._query, "graph": graph_to_json(graph)})
        return BuiltPlans(tuple(found.get("configs", ())), found.get("refused", ""))

    def measure(self, rounds: int, *, host_below_us: float = 0.0) -> list[dict[str, list[float]]]:
        """Time the last built configs in turns; return microseconds ``cold``, ``warm`` (L2 cache) and ``host``.

        ``cold`` and ``warm`` are GPU times right after the L2 cache was emptied and right after such a run, of each
        round; ``host`` is how long a call takes on the host, of batches of calls, measured where the median of ``cold``
        is below `host_below_us`: above it a call waits for the GPU. Empty where the process has ended.
        """
        found: list[dict[str, list[float]]] = self._query_child({"rounds": rounds, "host_below_us": host_below_us}).get(
            "times", []
        )
        return found

    def _query_child(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        if "rounds" in asked and not self._child.is_usable:
            return {}  # the process that had built them has ended
        said: dict[str, Any] = {}
        try:
            for line in self._child.run_query(asked, QUERY_LIMIT_S):
                said |= line
        except CudnnBackendError as error:
            return {"refused": str(error.sections.get("more") or error.headline).partition("\n")[0]}
        if self._child.ending:
            said = {"refused": f"its process ended: {self._child.ending}"}
        return said


def serve_plan_timing_queries() -> None:
    """In a child process: build and time engine configs."""
    serve(_PlanTimingServer().answer_query)


class _PlanTimingServer:
    """In the child process: holds the plans of the latest graph and their buffers."""

    def __init__(self) -> None:
        self._stage: TimingBuffers | None = None
        self._plans: list[tuple[Plan, VariantPack]] = []

    def answer_query(self, asked: dict[str, Any], say: AnswerWriter) -> None:
        if "rounds" in asked:
            say(times=self._time_plans(asked["rounds"], asked["host_below_us"]))
            return
        target = shared_target(asked["target"])
        if "graph" in asked:
            self._close_plans()
            self._build_configs(graph_from_json(asked["graph"]), target, asked["configs"], say)
        else:
            library = target.library
            say(cudnn=library.build_text, version=list(library.version), sm=target.sm, title=target.profile.title)

    def _close_plans(self) -> None:
        for plan, _ in self._plans:
            plan.close()
        self._plans = []
        if self._stage is not None:
            self._stage.close()
            self._stage = None

    def _build_configs(self, graph: Graph, target: Target, count: int, say: AnswerWriter) -> None:
        question, wanted = OperationGraph(graph, target), Selection(modes=_HEURISTICS_MODES)
        found = candidates(question, wanted)
        if not found.configs:
            say(refused=make_nothing_selected_error(question, wanted, found).headline)
            return
        if not target.is_live:
            say(configs=[{"tag": config.tag} for config in found.configs[:count]])
            return
        plans = _build_first_plans(found.configs, count)
        if not plans:
            say(refused=f"none of {len(found.configs)} engine configs could be built")
            return
        self._stage = _make_buffers(graph, target)
        self._plans = [(plan, self._stage.pack(plan)) for plan in plans]
        say(configs=[{"tag": plan.tag, "workspace_bytes": plan.workspace_bytes} for plan in plans])

    def _time_plans(self, rounds: int, host_below_us: float) -> list[dict[str, list[float]]]:
        stage = self._stage
        assert stage is not None
        found: list[dict[str, list[float]]] = [{"cold": [], "warm": [], "host": []} for _ in self._plans]
        for number in range(-WARM_UP_ROUNDS, rounds):
            for times, (plan, pack) in rotate_items(list(zip(found, self._plans, strict=True)), number):
                cold, warm = stage.time_runs(plan, pack, flushes=FLUSHES_AHEAD)
                if number >= 0:
                    times["cold"].append(cold)
                    times["warm"].append(warm)
        for times, (plan, pack) in zip(found, self._plans, strict=True):
            if statistics.median(times["cold"]) < host_below_us:
                batches = {"": make_repeated_batch(partial(stage.launch, plan, pack))}
                wait = partial(stage.memory.synchronize, stage.handle.stream)
                times["host"] = time_host_calls(batches, HOST_BATCHES, HOST_CALLS, wait)[""]
        return found


def _make_buffers(graph: Graph, target: Target) -> TimingBuffers:
    """Make buffers for a graph: uninitialized where possible, else with valid values such as sequence lengths."""
    try:
        return TimingBuffers(graph, target)
    except UsageError:
        return TimingBuffers(graph, target, inputs=make_memory_images(graph, make_inputs(graph)))


def _build_first_plans(configs: Sequence[EngineConfig], count: int) -> list[Plan]:
    """Return the plans of the first buildable configs, built in parallel."""
    plans: list[Plan] = []
    at = 0
    with ThreadPoolExecutor(count) as pool:
        while len(plans) < count and at < len(configs):
            some = configs[at : at + count - len(plans)]
            at += len(some)
            plans += [plan for plan in pool.map(_build_plan_or_return_none, some) if plan is not None]
    return plans


def _build_plan_or_return_none(config: EngineConfig) -> Plan | None:
    try:
        return build_plan(config)
    except CudnnBackendError:  # it passed the check and does not compile
        return None
