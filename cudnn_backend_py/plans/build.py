"""``build``: return the plan of a graph from this process or from disk, or build it once.

A plan is looked for in this process, then on disk (:mod:`~cudnn_backend_py.plans.cache`), where one that was tuned
comes before the heuristics' choice, and built only if it is in neither.

Several plans are built in as many threads as the process has processors (:func:`build_plans`): building releases
Python's lock, and cuDNN's threads do not wait for each other. Measured with cuDNN 9.28 and 9.19 on four attention plans
for an H100, each about 0.55 s of processor time: in nine of ten samples three or four of four threads were runnable
at once. Where only one processor was free, 1, 2 and 4 threads took 2.2, 2.5 and 2.5 s (9.28) and 2.3, 2.5 and 2.5 s
(9.19; medians of five), so there threads gain nothing and cost a tenth.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

from ..errors import CudnnStatusError, UsageError
from ..generated.enums import HeurMode, KnobType
from ..graph import Graph
from ..graph.ir import check_graph, check_graph_writes_memory
from ..native import current_device, library
from ..target import Profile, Target, find_profile, open_target
from .choice import EngineChoice, Knobs
from .engine import EngineConfig, heur_mode
from .plan import Plan, build_plan
from .select import Selection, make_cache_key_options_of_tuned_plan, select

if TYPE_CHECKING:
    from .cache import PlanCache

__all__ = ["build", "build_plans", "forget_plans", "make_selection", "parse_knobs", "shared_target"]

MAX_KEPT_PLANS = 128


def build(
    graph: Graph,
    target: Target | Profile | str | None = None,
    *,
    mode: HeurMode | str = HeurMode.A,
    engine: int | str | None = None,
    knobs: Knobs | None = None,
    selection: Selection | None = None,
    cache: bool | PlanCache = True,
) -> Plan:
    """Return the :class:`Plan` of a graph, built if it is not cached.

    The same question gives the same :class:`Plan` object while that is alive and not closed; two threads that ask at
    the same time build once. The last 128 plans are kept alive. :func:`~cudnn_backend_py.plan` returns the same as an
    ``Executable``, which is called with buffers.

    Parameters
    ----------
    target
        A described GPU (``"h100"``), whose plan can be saved here and loaded there; None for the GPU of this process.
    mode
        Heuristics mode whose first engine config that can be built is taken; with A, a tuned plan of the cache comes
        before it. Not asked with a `selection`, which names its own.
    engine, knobs
        Global index of the engine to take, and knob values of it, by enumerator, name or number. Or, as `engine` alone,
        the tag of an engine config, such as ``"eng2_k24=7"``, as ``explain`` writes it.
    selection
        What the engine config may need and must promise; `engine` and `knobs` replace those of it.
    cache
        True for the user's cache folder (``CUDNN_BACKEND_PLAN_CACHE`` names another, set to nothing turns it off), or
        a cache of the caller. False builds again, and keeps nothing.

    Returns
    -------
    Plan
        A finalized execution plan of cuDNN: to save, to look at, or to execute. Shared by all who ask the same: do not
        close it.

    Raises
    ------
    GraphError
        ``graph-writes-nothing``.
    NotSupported
        ``nothing-selected``: every engine config and why it was refused.
    CudnnStatusError
        What cuDNN refuses about the graph, or if none of the configs can be built, about the first of them.
    EnvironmentNotReady
        As :func:`~cudnn_backend_py.open_target`; where nothing can be built because of the environment, its fault
        (``nvrtc-too-old``, ``nvrtc-builtins-missing`` ...).
    UsageError
        As :class:`Selection`; ``cache-folder-not-private``.

    Warns
    -----
    PlanCacheWarning
        For a cached plan that could not be used, or a plan that could not be kept.

    Examples
    --------
    >>> from cudnn_backend_py import attention
    >>> graph = attention.sdpa_forward(batch=1, heads=2, seq_q=128, head_dim=64, causal=True)
    >>> build(graph, "h100", cache=False).target.sm
    90
    """
    check_graph(graph)
    check_graph_writes_memory(graph)
    chosen = shared_target(target)
    wanted = make_selection(mode, engine, knobs, selection)
    if cache is False:
        return _build_first_buildable_config(graph, chosen, wanted)
    from .cache import default_cache, make_plan_key  # what reads and writes files; importing it takes a millisecond

    disk = default_cache() if cache is True else cache
    if not chosen.profile.properties.get("multiProcessorCount"):
        disk = None  # before cuDNN 9.8 the GPU here is not described, so plans of two kinds of GPU look the same
    key = make_plan_key(graph, chosen, {"selection": wanted.to_dict()})

    def find_or_build_plan() -> Plan:
        found = None if disk is None else _find_cached_plan(disk, graph, chosen, wanted, key)
        if found is None:
            found = _build_first_buildable_config(graph, chosen, wanted)
            if disk is not None:
                disk.put(key, found)
        return found

    whose = id(chosen.handle) if chosen.is_live else chosen.name
    return _plans_and_targets.plans.get((key, whose, None if disk is None else disk.folder), find_or_build_plan)


def build_plans(configs: Sequence[EngineConfig], *, workers: int | None = None) -> list[Plan | CudnnStatusError]:
    """Build the plans of several engine configs in parallel, such as all candidates of one graph. Caches none of them.

    Parameters
    ----------
    workers
        Threads; as many as the process has processors if not given, in this thread if that is one.

    Returns
    -------
    list
        For each config its plan, or the error with which cuDNN refused to build it.
    """
    threads = min(workers or len(os.sched_getaffinity(0)), len(configs))
    if threads <= 1:
        return [_build_plan_or_return_error(config) for config in configs]
    from concurrent.futures import ThreadPoolExecutor  # one plan needs none, and it imports much

    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(_build_plan_or_return_error, configs))


def _build_plan_or_return_error(config: EngineConfig) -> Plan | CudnnStatusError:
    try:
        return build_plan(config)
    except CudnnStatusError as error:
        return error


def parse_knobs(choices: Iterable[str]) -> dict[KnobType, int]:
    """Return knob values from text such as ``TILE_M=2`` or, by number, ``40=2`` and ``k40=2``.

    Raises
    ------
    UsageError
        ``knob-choice``.
    """
    knobs: dict[KnobType, int] = {}
    for choice in choices:
        name, _, value = choice.partition("=")
        number = name.removeprefix("k")
        try:
            knobs[KnobType(int(number)) if number.isdecimal() else KnobType[name.upper()]] = int(value)
        except (KeyError, ValueError):
            raise UsageError(
                f"knob choice {choice!r} must be KNOB=VALUE, where KNOB is a known knob and VALUE a whole number",
                code="knob-choice",
                where=f"knobs are {', '.join(f'{knob.name} ({int(knob)})' for knob in KnobType)}",
            ) from None
    return knobs


def make_selection(
    mode: HeurMode | str, engine: int | str | None, knobs: Knobs | None, selection: Selection | None
) -> Selection:
    """Return the selection of an engine, given by its index or by the tag of an engine config, with knob values.

    Raises
    ------
    UsageError
        ``engine-tag``; as :class:`Selection`.
    """
    changes: dict[str, Any] = {}
    if isinstance(engine, str):
        choice = EngineChoice.parse(engine)
        changes = {"engine": choice.engine, "knobs": choice.knobs}
    elif engine is not None:
        changes = {"engine": engine, "knobs": {}}
    if knobs is not None:
        changes["knobs"] = knobs
    wanted = selection or Selection(modes=(heur_mode(mode),))
    return replace(wanted, **changes) if changes else wanted


def _find_cached_plan(disk: PlanCache, graph: Graph, target: Target, wanted: Selection, key: str) -> Plan | None:
    """Return a cached plan: the tuned one if heuristics mode A comes first and it exists, else that of `key`."""
    from .cache import make_plan_key

    found = None
    if wanted.modes[0] is HeurMode.A:
        found = disk.get(
            make_plan_key(graph, target, make_cache_key_options_of_tuned_plan(wanted, target)), target, graph=graph
        )
    return found or disk.get(key, target, graph=graph)


def _build_first_buildable_config(graph: Graph, target: Target, wanted: Selection) -> Plan:
    """Build the first config that can be built, as only a build shows whether its kernels compile."""
    chosen = select(graph, target, wanted)
    first: CudnnStatusError | None = None
    for config in (chosen.config, *chosen.alternatives):
        try:
            return build_plan(config)
        except CudnnStatusError as error:
            first = first or error
    assert first is not None
    from ..native.environment_problems import find_problem_explaining_refusal  # only for a refusal

    fault = find_problem_explaining_refusal(target.library, target, built=True)
    raise first if fault is None else fault.to_exception() from first


# This process


def forget_plans() -> None:
    """Forget the plans of this process, so that :func:`build` reads the disk again; plans in use stay valid."""
    _plans_and_targets.plans = _ProcessPlanCache()


class _ProcessPlanCache:
    """Plans of this process by key: recently used ones are kept alive, and each is built by one thread at a time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._alive: WeakValueDictionary[Hashable, Plan] = WeakValueDictionary()
        self._recent: OrderedDict[Hashable, Plan] = OrderedDict()
        self._building: WeakValueDictionary[Hashable, _KeyLock] = WeakValueDictionary()

    def get(self, key: Hashable, make: Callable[[], Plan]) -> Plan:
        """Return the plan of a key, built by the first thread that requests it."""
        with self._lock:
            found = self._find_alive_plan(key)
            if found is not None:
                return found
            turn = self._building.get(key)
            if turn is None:
                turn = self._building[key] = _KeyLock()
        with turn.lock:
            with self._lock:
                found = self._find_alive_plan(key)
            if found is None:
                found = make()
                with self._lock:
                    self._remember(key, found)
        return found

    def _find_alive_plan(self, key: Hashable) -> Plan | None:
        found = self._alive.get(key)
        if found is None:
            return None
        handle = found.target.handle
        if found.descriptor.closed or (handle is not None and handle.closed):
            del self._alive[key]
            self._recent.pop(key, None)
            return None
        self._remember(key, found)
        return found

    def _remember(self, key: Hashable, plan: Plan) -> None:
        self._alive[key] = self._recent[key] = plan
        self._recent.move_to_end(key)
        if len(self._recent) > MAX_KEPT_PLANS:
            self._recent.popitem(last=False)


class _KeyLock:
    """A lock that supports weak references, so that it disappears when no thread waits for it."""

    def __init__(self) -> None:
        self.lock = threading.Lock()


class _SharedPlansAndTargets:
    """The plans and open targets shared by all callers in a process."""

    def __init__(self) -> None:
        self.plans = _ProcessPlanCache()
        self.targets: dict[Hashable, Target] = {}
        self.lock = threading.Lock()


_plans_and_targets = _SharedPlansAndTargets()


def _reset_plans_after_fork() -> None:
    global _plans_and_targets
    _plans_and_targets = (
        _SharedPlansAndTargets()
    )  # handles do not survive a fork, and locks may be held by threads that are not here


os.register_at_fork(after_in_child=_reset_plans_after_fork)


def shared_target(target: Target | Profile | str | None = None) -> Target:
    """Return the open target of a name or profile, shared by all callers of this process: do not close it.

    For the GPU here that is one target for each CUDA device, so that plans of one graph are found again.

    Raises
    ------
    EnvironmentNotReady
        As :func:`~cudnn_backend_py.open_target`.
    UsageError
        ``unknown-target``.
    """
    if isinstance(target, Target):
        return target
    what: Profile | None = None
    key: Hashable
    if target is None or target == "gpu":
        key = ("gpu", current_device() if library().driver.kind == "real" else None)
    else:
        what = target if isinstance(target, Profile) else find_profile(target)
        key = (what.name, what.json())
    with _plans_and_targets.lock:
        found = _plans_and_targets.targets.get(key)
        if found is None or any(held is not None and held.closed for held in (found.handle, found.device)):
            found = _plans_and_targets.targets[key] = open_target(what)
        return found
