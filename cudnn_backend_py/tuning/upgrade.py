"""Run and time graphs with different plans in two cuDNN versions, and compare the results."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from queue import SimpleQueue

from ..diagnose.judges import GPU
from ..diagnose.surveys.upgrade import Change, PlanTimes, Upgrade
from ..errors import CudnnBackendError
from ..graph import Graph
from ..graph.attention.recognize import read_attention
from .timed_plans import PlanTimer
from .trial.runner import Runner

__all__ = ["select_changes_to_time", "time_changed_graphs"]

_TURN_COUNT, _ROUNDS_PER_TURN = 6, 5  # of both versions, one after the other: the shortest median of each counts
_MAX_COMPARED_ELEMENTS = (
    1 << 24
)  # elements of a tensor, up to which numbers are compared: the interpreter takes seconds for more
_REMEASURE_RATIO = 1.025  # a ratio farther from 1 than half of what is flagged is measured again,
_MAX_MEASUREMENTS = (
    5  # so often in all, each time by other processes: where buffers are moves times of 5 us by up to 16 %
)
_PARALLEL_GRAPHS = 4  # graphs whose plans are built at a time, and whose numbers are compared at a time
_NOT_COMPARED = "not compared"
_RUN_LIMIT_S = 600.0  # that a graph may take while its numbers are compared

TimePair = tuple[float | None, float | None]


def time_changed_graphs(
    found: Upgrade,
    graphs: Mapping[str, Graph],
    *,
    step: Callable[[str], object] = str,
    at_once: int = _PARALLEL_GRAPHS,
    until: float = math.inf,
    keep: Callable[[Callable[[], Upgrade]], object] = id,
) -> Upgrade:
    """Run and time graphs with different plans in two cuDNN versions, and compare the results.

    Plans of several graphs are built at a time; then each graph is timed alone, by both versions in turns. Where one is
    more than 2.5 % faster, that is done again by other processes, and the shortest time of each version counts. Numbers
    are compared last, of several graphs at a time, but for graphs too large for the interpreter.

    Parameters
    ----------
    found
        What :func:`~cudnn_backend_py.diagnose.surveys.upgrade.compare_versions` found, of which the target ``gpu`` is
        run.
    graphs
        The graphs by name.
    step
        Called with the graph that is run next.
    at_once
        How many graphs are built, or run while nothing is timed, at a time.
    until
        The time of ``time.monotonic()`` from which on nothing is begun: graphs that were not timed are named in the
        answer, numbers that were not compared are said to be so.
    keep
        Called after each graph, with a function that returns the answer so far.
    """
    plans = {
        one.graph: tuple("first" if plan is None else plan.tag for plan in one.plans)
        for one in select_changes_to_time(found)
    }
    wanted = list(plans)
    times: dict[str, PlanTimes] = {}

    def make_current_comparison() -> Upgrade:
        changes = (
            replace(one, times=times[one.graph]) if one.target == GPU and one.graph in times else one
            for one in found.changes
        )
        return replace(
            found, changes=tuple(changes), untimed_graphs=tuple(name for name in wanted if name not in times)
        )

    for name, us in _time_all_graphs(wanted, graphs, found.places, at_once, until, step):
        times[name] = PlanTimes(*us, _NOT_COMPARED, _NOT_COMPARED)
        keep(make_current_comparison)
    timed = [name for name in times if _compute_largest_tensor_size(graphs[name]) <= _MAX_COMPARED_ELEMENTS]
    for name, (old, new) in _compare_results_of_all_graphs(timed, graphs, plans, found.places, at_once, until, step):
        times[name] = replace(times[name], old_state=old, new_state=new)
        keep(make_current_comparison)
    return make_current_comparison()


def select_changes_to_time(found: Upgrade) -> list[Change]:
    """Return the changes to run on this GPU: those where both versions have a plan, but not the same."""
    return [
        one
        for one in found.changes
        if one.target == GPU and one.old.supported and one.new.supported and not one.has_same_plan
    ]


def _time_all_graphs(
    names: Sequence[str],
    graphs: Mapping[str, Graph],
    versions: tuple[str | None, str | None],
    at_once: int,
    until: float,
    step: Callable[[str], object],
) -> Iterator[tuple[str, TimePair]]:
    """Yield each graph's times with both cuDNN versions' first plans, again whenever they are measured again.

    Plans are built by new processes each time: what NVRTC compiled before in a process changes its code. What finds no
    room next to others is built again alone.
    """
    us: dict[str, TimePair] = {}
    with ThreadPoolExecutor(at_once) as pool:
        for _ in range(_MAX_MEASUREMENTS):
            left = [name for name in names if name not in us or _must_measure_times_again(us[name])]
            for size in (at_once, 1):
                crowded = []
                for some in (left[at : at + size] for at in range(0, len(left), size)):
                    if time.monotonic() >= until:
                        return
                    with ExitStack() as held:
                        pairs = [_start_plan_timers_of_both_versions(versions, held) for _ in some]
                        built = list(pool.map(_build_plans_with_both_versions, [graphs[name] for name in some], pairs))
                        for name, pair, both in zip(some, pairs, built, strict=True):
                            if not both and size > 1:
                                crowded.append(name)
                                continue
                            step(name)
                            found = _time_both_versions(*pair) if both else (None, None)
                            us[name] = _update_minimum_times(us.get(name, found), found)
                            yield name, us[name]
                left = crowded


def _start_plan_timers_of_both_versions(
    versions: tuple[str | None, str | None], held: ExitStack
) -> tuple[PlanTimer, PlanTimer]:
    old, new = versions
    return held.enter_context(PlanTimer(old)), held.enter_context(PlanTimer(new))


def _must_measure_times_again(us: TimePair) -> bool:
    """Return whether two times differ enough to be measured again, as timings vary between processes."""
    old, new = us
    return old is not None and new is not None and not 1 / _REMEASURE_RATIO <= new / old <= _REMEASURE_RATIO


def _update_minimum_times(us: TimePair, others: TimePair) -> TimePair:
    old, new = (min((one for one in side if one is not None), default=None) for side in zip(us, others, strict=True))
    return old, new


def _compare_results_of_all_graphs(
    names: Iterable[str],
    graphs: Mapping[str, Graph],
    plans: Mapping[str, Iterable[str]],
    versions: tuple[str | None, str | None],
    at_once: int,
    until: float,
    step: Callable[[str], object],
) -> Iterator[tuple[str, tuple[str, str]]]:
    """Yield, for each graph, whether the results of its plans in each of the two cuDNN versions are right."""
    limit_s = max(1.0, min(_RUN_LIMIT_S, until - time.monotonic()))
    with ExitStack() as held, ThreadPoolExecutor(at_once) as pool:
        free: SimpleQueue[tuple[Runner, Runner]] = SimpleQueue()
        for _ in range(at_once):
            before, after = (held.enter_context(Runner(version=version, limit_s=limit_s)) for version in versions)
            free.put((before, after))

        def run_both_plans(name: str) -> tuple[str, tuple[str, str]]:
            runners = free.get()
            try:
                if time.monotonic() < until:
                    step(name)
                    old, new = (
                        _run_and_get_trial_state(runner, graphs[name], tag)
                        for runner, tag in zip(runners, plans[name], strict=True)
                    )
                if time.monotonic() >= until:  # one of them may have been ended
                    return name, (_NOT_COMPARED, _NOT_COMPARED)
            finally:
                free.put(runners)
            return name, (old, new)

        yield from pool.map(run_both_plans, names)


def _run_and_get_trial_state(runner: Runner, graph: Graph, tag: str) -> str:
    try:
        return runner.run(graph, configs=tag, time=False).state
    except CudnnBackendError:  # there are no numbers for such a graph, or no process
        return _NOT_COMPARED


def _compute_largest_tensor_size(graph: Graph) -> int:
    """Return the number of elements of a graph's largest tensor, including attention's scores."""
    found = [math.prod(tensor.dims) for tensor in graph.tensors]
    if (use := read_attention(graph)) is not None:
        p = use.problem
        found.append(p.batch * p.heads * p.seq_q * p.seq_kv)
    return max(found)


def _build_plans_with_both_versions(graph: Graph, pair: Sequence[PlanTimer]) -> bool:
    """Build the first plan of both versions; return whether both succeeded."""
    with ThreadPoolExecutor(2) as pool:
        old, new = pool.map(lambda one: one.build(graph), pair)
    return bool(old.configs and new.configs)


def _time_both_versions(before: PlanTimer, after: PlanTimer) -> TimePair:
    """Return the microseconds of both versions' latest plans with a warm L2 cache; None if a plan is missing."""
    turns = [
        [_compute_median_warm_time(one.measure(_ROUNDS_PER_TURN)) for one in (before, after)]
        for _ in range(_TURN_COUNT)
    ]
    shortest: TimePair = (None, None)
    for old, new in turns:
        shortest = _update_minimum_times(shortest, (old, new))
    return shortest


def _compute_median_warm_time(times: list[dict[str, list[float]]]) -> float | None:
    return statistics.median(times[0]["warm"]) if times else None
