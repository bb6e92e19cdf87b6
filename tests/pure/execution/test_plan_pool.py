"""The plan pool without a GPU: which plans it evicts and when, and in which thread it builds plans."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import pytest

from cudnn_backend_py.errors import UsageError
from cudnn_backend_py.execution import plan_pool
from cudnn_backend_py.execution.plan_pool import PlanPool, PlanPoolEntry


class FakePlan:
    """A fake plan; appends its name to ``destroyed`` when it is destroyed."""

    def __init__(self, name: str, destroyed: list[str]) -> None:
        self.name, self._gone = name, destroyed
        self.device, self.streams, self.captured = 0, {7}, False

    def __del__(self) -> None:
        self._gone.append(self.name)


class FakeDriver:
    """A fake CUDA driver with the streams and fences that the pool uses."""

    def __init__(self) -> None:
        self.capturing: set[int] = set()
        self.is_done = True
        self.fences = 0

    def fence(self, streams: list[int]) -> Any:
        driver = self
        driver.fences += 1

        class Fence:
            def is_passed(self) -> bool:
                return driver.is_done

            def close(self) -> None:
                driver.fences -= 1

        assert streams == [7]
        return Fence()


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> FakeDriver:
    made = FakeDriver()
    monkeypatch.setattr(plan_pool, "Fence", made.fence)
    monkeypatch.setattr(plan_pool, "is_capturing", lambda stream: stream in made.capturing)
    monkeypatch.setattr(plan_pool, "relax_stream_capture_mode", nullcontext)
    monkeypatch.setattr(plan_pool, "on_device", lambda _: nullcontext())
    return made


@pytest.fixture
def destroyed() -> list[str]:
    return []


@pytest.fixture
def pool(driver: FakeDriver) -> Iterator[PlanPool]:
    made = PlanPool(most=2)
    yield made
    assert made.wait(5)


def add_plans(pool: PlanPool, destroyed: list[str], *names: str) -> list[PlanPoolEntry]:
    return [pool.get_or_build(name, lambda name=name: FakePlan(name, destroyed)) for name in names]  # type: ignore[misc]


def test_a_plan_is_built_once(pool: PlanPool, destroyed: list[str]) -> None:
    first, again = add_plans(pool, destroyed, "a", "a")
    assert first is again
    assert pool.find("a") is first
    assert pool.find("b") is None


def test_threads_that_request_one_plan_build_it_once(pool: PlanPool, destroyed: list[str]) -> None:
    started, found, made = threading.Event(), [], []

    def build_plan() -> FakePlan:
        started.wait(5)
        made.append(1)
        return FakePlan("a", destroyed)

    threads = [threading.Thread(target=lambda: found.append(pool.get_or_build("a", build_plan))) for _ in range(4)]
    for thread in threads:
        thread.start()
    started.set()
    for thread in threads:
        thread.join()
    assert len(made) == 1
    assert len({id(held) for held in found}) == 1


def test_the_least_recently_used_plan_is_evicted(pool: PlanPool, destroyed: list[str]) -> None:
    a, b = add_plans(pool, destroyed, "a", "b")
    a.used = pool.now
    b.used = pool.now - 1
    add_plans(pool, destroyed, "c")
    assert destroyed == ["b"]
    assert b.plan is None
    assert pool.find("b") is None
    assert a.plan is not None


def test_an_evicted_plan_is_built_again(pool: PlanPool, destroyed: list[str]) -> None:
    [a] = add_plans(pool, destroyed, "a")
    add_plans(pool, destroyed, "b", "c")
    [again] = add_plans(pool, destroyed, "a")
    assert again is not a
    assert again.plan.name == "a"


def test_a_plan_is_destroyed_after_its_streams_have_finished(
    pool: PlanPool, driver: FakeDriver, destroyed: list[str]
) -> None:
    driver.is_done = False
    add_plans(pool, destroyed, "a", "b", "c")
    assert destroyed == []
    driver.is_done = True
    add_plans(pool, destroyed, "d")
    assert sorted(destroyed) == ["a", "b"]
    assert driver.fences == 0


def test_a_plan_referenced_by_a_thread_is_not_destroyed(
    pool: PlanPool, driver: FakeDriver, destroyed: list[str]
) -> None:
    [a] = add_plans(pool, destroyed, "a")
    about_to_call = a.plan
    add_plans(pool, destroyed, "b", "c")
    assert (destroyed, driver.fences) == ([], 0)  # its streams are checked when no launch can follow
    del about_to_call
    add_plans(pool, destroyed, "d")
    assert sorted(destroyed) == ["a", "b"]


def test_no_fence_is_recorded_on_a_capturing_stream(pool: PlanPool, driver: FakeDriver, destroyed: list[str]) -> None:
    driver.capturing = {7}
    add_plans(pool, destroyed, "a", "b", "c")
    assert (destroyed, driver.fences) == ([], 0)
    driver.capturing = set()
    add_plans(pool, destroyed, "d")
    assert sorted(destroyed) == ["a", "b"]


def test_a_plan_of_a_cuda_graph_is_never_evicted(pool: PlanPool, destroyed: list[str]) -> None:
    [a] = add_plans(pool, destroyed, "a")
    a.plan.captured = True
    add_plans(pool, destroyed, "b", "c", "d", "e")
    assert a.plan.name == "a"
    assert pool.find("a") is a
    assert destroyed == ["b", "c"]
    assert len(pool) == 3


def test_clearing_evicts_all_plans(pool: PlanPool, destroyed: list[str]) -> None:
    a, _ = add_plans(pool, destroyed, "a", "b")
    a.plan.captured = True
    pool.clear()
    assert sorted(destroyed) == ["a", "b"]
    assert len(pool) == 0


def test_only_existing_plans_are_returned_during_capture(
    pool: PlanPool, driver: FakeDriver, destroyed: list[str]
) -> None:
    [a] = add_plans(pool, destroyed, "a")
    driver.capturing = {3}
    with pytest.raises(UsageError, match="plan-in-capture") as caught:
        pool.get_or_build("b", lambda: FakePlan("b", destroyed), 3)
    assert "before the capture" in caught.value.sections["fix"]
    assert pool.get_or_build("a", lambda: FakePlan("a", destroyed), 3) is a
    assert pool.get_or_build("b", lambda: FakePlan("b", destroyed), 4).plan.name == "b"


def test_a_plan_is_built_in_the_background(pool: PlanPool, destroyed: list[str]) -> None:
    threads = []

    def build_plan() -> FakePlan:
        threads.append(threading.current_thread())
        return FakePlan("a", destroyed)

    pool.build_in_background("a", build_plan, 0)
    assert pool.wait(5)
    held = pool.find("a")
    assert held is not None
    assert held.plan.name == "a"
    assert threads[0] is not threading.main_thread()
    pool.build_in_background("a", build_plan, 0)
    assert pool.wait(5)
    assert len(threads) == 1


def test_a_failed_background_build_is_not_repeated(pool: PlanPool, destroyed: list[str]) -> None:
    tries = []

    def raise_usage_error() -> FakePlan:
        tries.append(1)
        raise UsageError("no", code="no")

    for _ in range(2):
        pool.build_in_background("a", raise_usage_error, 0)
        assert pool.wait(5)
    assert (len(tries), pool.find("a")) == (1, None)
    pool.build_in_background("b", lambda: FakePlan("b", destroyed), 0)  # the thread is still alive
    assert pool.wait(5)
    assert pool.find("b") is not None


def test_the_next_caller_builds_again_after_a_failed_build(pool: PlanPool, destroyed: list[str]) -> None:
    def raise_usage_error() -> FakePlan:
        raise UsageError("no", code="no")

    with pytest.raises(UsageError):
        pool.get_or_build("a", raise_usage_error)
    assert pool.get_or_build("a", lambda: FakePlan("a", destroyed)).plan.name == "a"


def test_background_builds_beyond_the_queue_limit_are_dropped(driver: FakeDriver, destroyed: list[str]) -> None:
    pool, go = PlanPool(most=200), threading.Event()
    pool.build_in_background("first", lambda: (go.wait(5), FakePlan("first", destroyed))[1], 0)
    for name in map(str, range(200)):
        pool.build_in_background(name, lambda name=name: FakePlan(name, destroyed), 0)  # type: ignore[misc]
    go.set()
    assert pool.wait(5)
    assert 60 <= len(pool) <= 66


class FakeWatcher:
    """A fake watcher that the pool calls before it evicts a plan, and notifies afterwards."""

    def __init__(self) -> None:
        self.ran: set[str] = set()
        self.forgotten: list[str] = []

    def has_run(self, plan: Any) -> bool:
        ran = plan.name in self.ran
        self.ran.discard(plan.name)
        return ran

    def forget(self, plan: Any) -> None:
        self.forgotten.append(plan.name)


def test_a_pool_watcher_is_queried_before_and_notified_after_an_eviction(pool: PlanPool, destroyed: list[str]) -> None:
    owner = FakeWatcher()
    pool.register_lookup_free_runner(owner)
    add_plans(pool, destroyed, "a", "b")
    owner.ran = {"a"}
    add_plans(pool, destroyed, "c")
    assert owner.forgotten == ["b"]
    assert pool.find("a") is not None
    add_plans(pool, destroyed, "d")
    assert owner.forgotten == ["b", "a"]
    pool.clear()
    assert sorted(owner.forgotten) == ["a", "b", "c", "d"]


def test_a_failed_background_build_is_recorded(pool: PlanPool) -> None:
    def raise_wrong_argument() -> Any:
        raise UsageError("no", code="wrong-argument")

    assert not pool.has_failed("a")
    pool.build_in_background("a", raise_wrong_argument, 0)
    assert pool.wait(5)
    assert pool.has_failed("a")
