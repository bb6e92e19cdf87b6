"""``time_changes``: run what another cuDNN changed by both versions, time them in turns, and compare the numbers."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from itertools import zip_longest
from queue import SimpleQueue

from ..diagnose.judges import GPU
from ..diagnose.surveys.upgrade import Times, Upgrade
from ..graph import Graph
from ..graph.attention.recognize import read_attention
from .timed_plans import TimedPlans
from .trial.runner import Runner

__all__ = ["time_changes"]

_TURNS, _ROUNDS = 6, 5  # of both versions, one after the other: the shortest median of each counts
_MOST = 1 << 24  # elements of a tensor, up to which numbers are compared: the interpreter takes seconds for more
_OPEN = 1.025  # a ratio farther from 1 than half of what is flagged is measured again,
_TIMES = 3  # so often in all, each time by other processes: where buffers lie moves times of 10 us by up to 6 %
_AT_ONCE = 4  # graphs whose plans are built at a time, and whose numbers are compared at a time
_NOT_COMPARED = "not compared"
_RUN_S = 600.0  # that a graph may take while its numbers are compared

Us = tuple[float | None, float | None]


def time_changes(
    found: Upgrade,
    graphs: Mapping[str, Graph],
    *,
    step: Callable[[str], object] = str,
    at_once: int = _AT_ONCE,
    until: float = math.inf,
    keep: Callable[[Upgrade], object] = id,
) -> Upgrade:
    """Return a comparison with the times and numbers of what both versions support, but for plans of the same code.

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
        Called with the answer so far after each graph.
    """
    plans = {
        one.graph: tuple("first" if plan is None else plan.tag for plan in one.plans)
        for one in found.changes
        if one.target == GPU and not one.same_code and one.old.supported and one.new.supported
    }
    wanted = list(plans)
    times: dict[str, Times] = {}

    def so_far() -> Upgrade:
        changes = (
            replace(one, times=times[one.graph]) if one.target == GPU and one.graph in times else one
            for one in found.changes
        )
        return replace(found, changes=tuple(changes), not_timed=tuple(name for name in wanted if name not in times))

    for name, us in _time_all(wanted, graphs, found.places, at_once, until, step):
        times[name] = Times(*us, _NOT_COMPARED, _NOT_COMPARED)
        keep(so_far())
    timed = [name for name in times if _largest(graphs[name]) <= _MOST]
    for name, (old, new) in _run_all(timed, graphs, plans, found.places, at_once, until, step):
        times[name] = replace(times[name], old_state=old, new_state=new)
        keep(so_far())
    return so_far()


def _time_all(
    names: Sequence[str],
    graphs: Mapping[str, Graph],
    versions: tuple[str | None, str | None],
    at_once: int,
    until: float,
    step: Callable[[str], object],
) -> Iterator[tuple[str, Us]]:
    """Yield how long the first plans of both versions take, again whenever that is measured again.

    What finds no room beside others is built again alone.
    """
    alone, us = [], dict[str, Us]()
    with ExitStack() as held, ThreadPoolExecutor(at_once) as pool:
        old, new = versions
        pairs = [(held.enter_context(TimedPlans(old)), held.enter_context(TimedPlans(new))) for _ in range(at_once)]
        for again in range(_TIMES):
            queues: list[list[str]] = [[] for _ in pairs]  # a graph has another pair each time
            for number, name in enumerate(names):
                if not again or _is_open(us.get(name)):
                    queues[(number + again) % at_once].append(name)
            for some in zip_longest(*queues):
                if time.monotonic() >= until:
                    return
                begun = [(name, *pair) for name, pair in zip(some, pairs, strict=True) if name is not None]
                built = list(pool.map(lambda one: _build_both(graphs[one[0]], *one[1:]), begun))
                for (name, before, after), right in zip(begun, built, strict=True):
                    step(name)
                    if right:
                        us[name] = _shorter(us.get(name, (None, None)), _time_both(before, after))
                        yield name, us[name]
                    elif not again:
                        alone.append(name)
    for name in alone:
        if time.monotonic() >= until:
            return
        step(name)
        with TimedPlans(versions[0]) as before, TimedPlans(versions[1]) as after:
            yield name, _time_both(before, after) if _build_both(graphs[name], before, after) else (None, None)


def _is_open(us: Us | None) -> bool:
    """Whether a difference may be noise of one pair of processes, or more."""
    return us is not None and us[0] is not None and us[1] is not None and not 1 / _OPEN <= us[1] / us[0] <= _OPEN


def _shorter(us: Us, others: Us) -> Us:
    old, new = (min((one for one in side if one is not None), default=None) for side in zip(us, others, strict=True))
    return old, new


def _run_all(
    names: Iterable[str],
    graphs: Mapping[str, Graph],
    plans: Mapping[str, Iterable[str]],
    versions: tuple[str | None, str | None],
    at_once: int,
    until: float,
    step: Callable[[str], object],
) -> Iterator[tuple[str, tuple[str, str]]]:
    """Yield what the numbers of each graph come to, by its plans of both versions."""
    limit_s = max(1.0, min(_RUN_S, until - time.monotonic()))
    with ExitStack() as held, ThreadPoolExecutor(at_once) as pool:
        free: SimpleQueue[tuple[Runner, Runner]] = SimpleQueue()
        for _ in range(at_once):
            before, after = (held.enter_context(Runner(version=version, limit_s=limit_s)) for version in versions)
            free.put((before, after))

        def run(name: str) -> tuple[str, tuple[str, str]]:
            runners = free.get()
            try:
                if time.monotonic() < until:
                    step(name)
                    old, new = (
                        runner.run(graphs[name], configs=tag, time=False).state
                        for runner, tag in zip(runners, plans[name], strict=True)
                    )
                if time.monotonic() >= until:  # one of them may have been ended
                    return name, (_NOT_COMPARED, _NOT_COMPARED)
            finally:
                free.put(runners)
            return name, (old, new)

        yield from pool.map(run, names)


def _largest(graph: Graph) -> int:
    """Return the elements of the largest tensor of a graph, the scores of attention included."""
    found = [math.prod(tensor.dims) for tensor in graph.tensors]
    if (use := read_attention(graph)) is not None:
        p = use.problem
        found.append(p.batch * p.heads * p.seq_q * p.seq_kv)
    return max(found)


def _build_both(graph: Graph, before: TimedPlans, after: TimedPlans) -> bool:
    """Build the first plan of both versions, and say whether there are two."""
    with ThreadPoolExecutor(2) as pool:
        return all(pool.map(lambda one: one.build(graph).configs, (before, after)))


def _time_both(before: TimedPlans, after: TimedPlans) -> Us:
    """Return the microseconds of the plans built last, with a warm L2 cache; None where there is none."""
    turns = [[_median(one.time(_ROUNDS)) for one in (before, after)] for _ in range(_TURNS)]
    shortest: Us = (None, None)
    for old, new in turns:
        shortest = _shorter(shortest, (old, new))
    return shortest


def _median(times: list[dict[str, list[float]]]) -> float | None:
    return statistics.median(times[0]["warm"]) if times else None
