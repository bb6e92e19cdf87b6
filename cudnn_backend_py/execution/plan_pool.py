"""``PlanPool``: a bounded number of ready plans, built at once or in the background.

The least recently used goes. It is destroyed when no one is about to call it and the streams it ran on have come past
its last launch; one that a CUDA graph holds never goes. No plan is built while the stream of a call is captured, and
what is built or destroyed here leaves captures of other threads valid.
"""

from __future__ import annotations

import atexit
import os
import queue
import threading
from collections.abc import Callable, Collection, Hashable
from contextlib import suppress
from sys import getrefcount
from typing import Any, Protocol

from ..errors import UsageError
from ..native.cuda import Fence, is_capturing, on_device, relax_stream_capture_mode

__all__ = ["PlanPool", "PlanPoolEntry", "get_shared_pool", "refuse_build_during_capture"]

_MAX_PLANS = 256
_NO_JOB = ("", lambda: None, 0)
_MAX_QUEUED_BUILDS = 64  # builds in the background; more are left out, and requested again


class PooledPlan(Protocol):
    """The interface of a plan in a pool: its GPU, the streams it ran on, and whether a CUDA graph uses it."""

    device: int
    streams: Collection[int]
    captured: bool


class PlanPoolEntry:
    """A pool's entry for one plan: callers read the plan from it at each call, and record the time of use.

    Attributes
    ----------
    plan
        None once it had to go.
    used
        The pool's ``now`` at the last call.
    """

    __slots__ = ("key", "plan", "used")

    def __init__(self, key: Hashable, plan: PooledPlan, used: int) -> None:
        self.key, self.used = key, used
        self.plan: Any = plan


class LookupFreeRunner(Protocol):
    """Interface of an object that runs a pool's plans without a lookup, and reports to the pool which ones it ran."""

    def has_run(self, plan: Any) -> bool:
        """Return whether a plan ran since the last call of this method."""

    def forget(self, plan: Any) -> None:
        """Drop a plan, and return when no launch of it is in progress."""


class PlanPool:
    """A cache of plans by key that drops the least recently used ones. Threads may share a pool.

    Parameters
    ----------
    most
        How many plans it keeps, those of CUDA graphs and those about to go left out.

    Attributes
    ----------
    now
        A clock that goes on with each plan that is added.
    """

    def __init__(self, most: int = _MAX_PLANS) -> None:
        self.now = 0
        self._max_plans = most
        self._lock = threading.RLock()
        self._slots: dict[Hashable, PlanPoolEntry] = {}
        self._building: dict[Hashable, threading.Lock] = {}
        self._evicted: list[_EvictedPlan] = []
        self._direct_runners: list[LookupFreeRunner] = []
        self._background = _BackgroundBuilder(self)

    def __len__(self) -> int:
        return len(self._slots)

    def find(self, key: Hashable) -> PlanPoolEntry | None:
        """Return the pool's entry for the plan with this key; None if it has none."""
        return self._slots.get(key)

    def list_keys(self) -> list[Any]:
        """Return the keys of the plans in the pool."""
        with self._lock:
            return list(self._slots)

    def get_or_build(self, key: Hashable, make: Callable[[], Any], stream: int = 0) -> PlanPoolEntry:
        """Return the pool's entry for the plan with this key, built if necessary; concurrent requests build it once.

        Parameters
        ----------
        stream
            Address of the stream that the plan is to run on.

        Raises
        ------
        UsageError
            ``plan-in-capture``; the capture stays valid.
        CudnnBackendError
            What `make` raises.
        """
        found = self._slots.get(key)
        if found is not None:
            return found
        refuse_build_during_capture(stream)
        with self._lock:
            turn = self._building.setdefault(key, threading.Lock())
        with turn:
            found = self._slots.get(key)
            if found is None:
                with relax_stream_capture_mode():
                    found = self._add_plan(key, make())
        with self._lock:
            self._building.pop(key, None)
        return found

    def build_in_background(self, key: Hashable, make: Callable[[], Any], device: int) -> None:
        """Build a plan in the background unless it is in the pool; a plan that failed to build is not tried again.

        Parameters
        ----------
        device
            Ordinal of the GPU that is current while it is made.
        """
        if key not in self._slots:
            self._background.request_build(key, make, device)

    def has_failed(self, key: Hashable) -> bool:
        """Return whether building a plan in the background failed."""
        return self._background.has_failed(key)

    def register_lookup_free_runner(self, direct_runner: LookupFreeRunner) -> None:
        """Register an object that runs plans without a lookup, so that the pool can query what ran and evict plans."""
        with self._lock:
            self._direct_runners.append(direct_runner)

    def wait(self, seconds: float = 60.0) -> bool:
        """Wait for the background builds; return whether all have finished."""
        return self._background.wait(seconds)

    def clear(self) -> None:
        """Drop all plans, including those of CUDA graphs, which must not be replayed afterwards."""
        with self._lock:
            for held in list(self._slots.values()):
                held.plan.captured = False
                self._evict(held)
            self._destroy_finished_plans()

    def _add_plan(self, key: Hashable, plan: Any) -> PlanPoolEntry:
        with self._lock:
            self.now += 1
            found = self._slots[key] = PlanPoolEntry(key, plan, self.now)
            mine = [held for held in self._slots.values() if not held.plan.captured]
            if len(mine) > self._max_plans:
                for held in mine:
                    if any(direct_runner.has_run(held.plan) for direct_runner in self._direct_runners):
                        held.used = self.now
            for held in sorted(mine, key=_get_last_use_time)[: max(0, len(mine) - self._max_plans)]:
                self._evict(held)
            self._destroy_finished_plans()
            return found

    def _evict(self, held: PlanPoolEntry) -> None:
        del self._slots[held.key]
        for direct_runner in self._direct_runners:
            direct_runner.forget(held.plan)
        self._evicted.append(_EvictedPlan(held))

    def _destroy_finished_plans(self) -> None:
        """Destroy the evicted plans that have no work left on the device."""
        self._evicted = [item for item in self._evicted if not item.destroy_if_idle()]


def _get_last_use_time(held: PlanPoolEntry) -> int:
    return held.used


class _EvictedPlan:
    """An evicted plan, destroyed once no caller uses it and its streams have passed its last launch."""

    def __init__(self, held: PlanPoolEntry) -> None:
        self._plan, held.plan = held.plan, None
        self._fence: Fence | None = None

    def destroy_if_idle(self) -> bool:
        """Destroy the plan if possible; return whether it is destroyed."""
        if self._plan.captured:  # meanwhile, by a call that was on its way
            return False
        if self._fence is None:
            streams = list(self._plan.streams)
            if getrefcount(self._plan) > _UNSHARED_REFCOUNT or any(map(is_capturing, streams)):
                return False
            with on_device(self._plan.device):
                self._fence = Fence(streams)
        with on_device(self._plan.device), relax_stream_capture_mode():
            if not self._fence.is_passed():
                return False
            self._fence.close()
            self._plan = None
        return True


def _get_unshared_reference_count() -> int:
    """Return ``sys.getrefcount`` of an unshared attribute value in this Python version."""

    class RefcountProbe:
        value = None

    RefcountProbe.value = object()  # type: ignore[assignment]
    return getrefcount(RefcountProbe.value)


_UNSHARED_REFCOUNT = _get_unshared_reference_count()


def refuse_build_during_capture(stream: int) -> None:
    """Raise if a stream is being captured, as no plan can be built during a capture.

    Raises
    ------
    UsageError
        ``plan-in-capture``.
    """
    if is_capturing(stream):
        raise UsageError(
            "no plan is built for these shapes, and none can be built while a CUDA graph is captured",
            code="plan-in-capture",
            fix="make the same call once before the capture, on any stream; this capture stays valid",
        )


class _BackgroundBuilder:
    """One thread that builds plans, started on first use and stopped before Python exits."""

    def __init__(self, pool: PlanPool) -> None:
        self._pool = pool
        self._jobs: queue.Queue[tuple[Hashable, Callable[[], Any], int]] = queue.Queue(_MAX_QUEUED_BUILDS)
        self._requested: set[Hashable] = set()
        self._failed: set[Hashable] = set()
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._is_ending = False

    def request_build(self, key: Hashable, make: Callable[[], Any], device: int) -> None:
        with self._changed:
            if key in self._requested or key in self._failed:
                return
            with suppress(queue.Full):
                self._jobs.put_nowait((key, make, device))
                self._requested.add(key)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run_worker, name="cudnn-backend-plans", daemon=True)
                self._thread.start()
                atexit.register(self._stop)

    def has_failed(self, key: Hashable) -> bool:
        return key in self._failed

    def wait(self, seconds: float) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: not self._requested, seconds)

    def _stop(self) -> None:
        """Let the thread finish its current plan: libraries must not be unloaded while it runs."""
        self._is_ending = True
        with suppress(queue.Full):
            self._jobs.put_nowait(_NO_JOB)
        if self._thread is not None:
            self._thread.join()

    def _run_worker(self) -> None:
        while True:
            key, make, device = self._jobs.get()
            if self._is_ending:
                return
            try:
                with on_device(device), relax_stream_capture_mode():
                    self._pool.get_or_build(key, make)
            except Exception:  # who calls next time gets it from `get_or_build`
                self._failed.add(key)
            finally:
                with self._changed:
                    self._requested.discard(key)
                    self._changed.notify_all()


_shared_pools: list[PlanPool] = []
_shared_pools_lock = threading.Lock()


def get_shared_pool() -> PlanPool:
    """Return the pool of this process."""
    with _shared_pools_lock:
        if not _shared_pools:
            _shared_pools.append(PlanPool())
        return _shared_pools[0]


def _replace_pools_after_fork() -> None:
    _pools_of_parent.extend(_shared_pools)  # CUDA does not survive a fork: nothing of it is destroyed
    _shared_pools.clear()


_pools_of_parent: list[PlanPool] = []
os.register_at_fork(after_in_child=_replace_pools_after_fork)
