"""``time_changes``: run what another cuDNN changed by both versions, compare the numbers, and time them in turns."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
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
_AT_ONCE = 3  # graphs whose numbers are compared at a time, before anything is timed


def time_changes(
    found: Upgrade,
    graphs: Mapping[str, Graph],
    *,
    step: Callable[[str], object] = str,
    at_once: int = _AT_ONCE,
) -> Upgrade:
    """Return a comparison with the times and numbers of what both versions support, but for plans of the same code.

    Numbers are compared first, several graphs at a time, but for graphs too large for the interpreter; then each graph
    is timed alone, by both versions in turns.

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
        How many graphs are run at a time while nothing is timed.
    """
    old, new = found.places
    wanted = [
        one.graph
        for one in found.changes
        if one.target == GPU and not one.same_code and one.old.supported and one.new.supported
    ]
    wanted = list(dict.fromkeys(wanted))
    states = dict(zip(wanted, _run_all(wanted, graphs, (old, new), at_once, step), strict=True))
    times = {}
    with TimedPlans(old) as before, TimedPlans(new) as after:
        for name in wanted:
            step(name)
            times[name] = Times(*_time_both(graphs[name], before, after), *states[name])
    changes = (
        replace(one, times=times[one.graph]) if one.target == GPU and one.graph in times else one
        for one in found.changes
    )
    return replace(found, changes=tuple(changes))


def _run_all(
    names: Iterable[str],
    graphs: Mapping[str, Graph],
    versions: tuple[str | None, str | None],
    at_once: int,
    step: Callable[[str], object],
) -> Iterator[tuple[str, str]]:
    """Yield what the numbers of each graph come to, by both versions."""
    with ExitStack() as held, ThreadPoolExecutor(at_once) as pool:
        free: SimpleQueue[tuple[Runner, Runner]] = SimpleQueue()
        for _ in range(at_once):
            before, after = (held.enter_context(Runner(version=version)) for version in versions)
            free.put((before, after))

        def run(name: str) -> tuple[str, str]:
            if _largest(graphs[name]) > _MOST:
                return "not compared", "not compared"
            step(name)
            runners = free.get()
            try:
                old, new = (runner.run(graphs[name], time=False).state for runner in runners)
            finally:
                free.put(runners)
            return old, new

        yield from pool.map(run, names)


def _largest(graph: Graph) -> int:
    """Return the elements of the largest tensor of a graph, the scores of attention included."""
    found = [math.prod(tensor.dims) for tensor in graph.tensors]
    if (use := read_attention(graph)) is not None:
        p = use.problem
        found.append(p.batch * p.heads * p.seq_q * p.seq_kv)
    return max(found)


def _time_both(graph: Graph, before: TimedPlans, after: TimedPlans) -> tuple[float | None, float | None]:
    """Return the microseconds of the first plans of both versions with a warm L2 cache, None where there is none."""
    with ThreadPoolExecutor(2) as pool:
        built = list(pool.map(lambda one: one.build(graph).configs, (before, after)))
    if not all(built):
        return None, None
    turns = [[_median(one.time(_ROUNDS)) for one in (before, after)] for _ in range(_TURNS)]
    old, new = (min((us for us in side if us is not None), default=None) for side in zip(*turns, strict=True))
    return old, new


def _median(times: list[dict[str, list[float]]]) -> float | None:
    return statistics.median(times[0]["warm"]) if times else None
