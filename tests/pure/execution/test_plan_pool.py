"""The pool of plans without a GPU: which plans are evicted, when, and where plans are built."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import pytest

from cudnn_backend_py.errors import UsageError
from cudnn_backend_py.execution import plan_pool
from cudnn_backend_py.execution.plan_pool import PlanPool, Slot


class Fake:
    """A plan for the pool; `gone` collects the names of destroyed ones."""

    def __init__(self, name: str, gone: list[str]) -> None:
        self.name, self._gone = name, gone
        self.device, self.streams, self.captured = 0, {7}, False

    def __del__(self) -> None:
        self._gone.append(self.name)


class Driver:
    """A driver with the streams of an imaginary GPU."""

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
def driver(monkeypatch: pytest.MonkeyPatch) -> Driver:
    made = Driver()
    monkeypatch.setattr(plan_pool, "Fence", made.fence)
    monkeypatch.setattr(plan_pool, "is_capturing", lambda stream: stream in made.capturing)
    monkeypatch.setattr(plan_pool, "relaxed_capture", nullcontext)
    monkeypatch.setattr(plan_pool, "on_device", lambda _: nullcontext())
    return made


@pytest.fixture
def gone() -> list[str]:
    return []


@pytest.fixture
def pool(driver: Driver) -> Iterator[PlanPool]:
    made = PlanPool(most=2)
    yield made
    assert made.wait(5)


def put(pool: PlanPool, gone: list[str], *names: str) -> list[Slot]:
    return [pool.get_or_build(name, lambda name=name: Fake(name, gone)) for name in names]  # type: ignore[misc]


def test_a_plan_is_built_once(pool: PlanPool, gone: list[str]) -> None:
    first, again = put(pool, gone, "a", "a")
    assert first is again
    assert pool.find("a") is first
    assert pool.find("b") is None


def test_threads_that_request_one_plan_build_it_once(pool: PlanPool, gone: list[str]) -> None:
    started, found, made = threading.Event(), [], []

    def make() -> Fake:
        started.wait(5)
        made.append(1)
        return Fake("a", gone)

    threads = [threading.Thread(target=lambda: found.append(pool.get_or_build("a", make))) for _ in range(4)]
    for thread in threads:
        thread.start()
    started.set()
    for thread in threads:
        thread.join()
    assert len(made) == 1
    assert len({id(held) for held in found}) == 1


def test_the_least_recently_used_plan_is_evicted(pool: PlanPool, gone: list[str]) -> None:
    a, b = put(pool, gone, "a", "b")
    a.used = pool.now
    b.used = pool.now - 1
    put(pool, gone, "c")
    assert gone == ["b"]
    assert b.plan is None
    assert pool.find("b") is None
    assert a.plan is not None


def test_an_evicted_plan_is_built_again(pool: PlanPool, gone: list[str]) -> None:
    [a] = put(pool, gone, "a")
    put(pool, gone, "b", "c")
    [again] = put(pool, gone, "a")
    assert again is not a
    assert again.plan.name == "a"


def test_a_plan_stays_until_its_streams_have_finished(pool: PlanPool, driver: Driver, gone: list[str]) -> None:
    driver.is_done = False
    put(pool, gone, "a", "b", "c")
    assert gone == []
    driver.is_done = True
    put(pool, gone, "d")
    assert sorted(gone) == ["a", "b"]
    assert driver.fences == 0


def test_a_plan_stays_while_a_thread_is_about_to_call_it(pool: PlanPool, driver: Driver, gone: list[str]) -> None:
    [a] = put(pool, gone, "a")
    about_to_call = a.plan
    put(pool, gone, "b", "c")
    assert (gone, driver.fences) == ([], 0)  # its streams are checked when no launch can follow
    del about_to_call
    put(pool, gone, "d")
    assert sorted(gone) == ["a", "b"]


def test_a_captured_stream_is_not_queried(pool: PlanPool, driver: Driver, gone: list[str]) -> None:
    driver.capturing = {7}
    put(pool, gone, "a", "b", "c")
    assert (gone, driver.fences) == ([], 0)
    driver.capturing = set()
    put(pool, gone, "d")
    assert sorted(gone) == ["a", "b"]


def test_a_plan_of_a_cuda_graph_is_never_evicted(pool: PlanPool, gone: list[str]) -> None:
    [a] = put(pool, gone, "a")
    a.plan.captured = True
    put(pool, gone, "b", "c", "d", "e")
    assert a.plan.name == "a"
    assert pool.find("a") is a
    assert gone == ["b", "c"]
    assert len(pool) == 3


def test_clearing_evicts_all_plans(pool: PlanPool, gone: list[str]) -> None:
    a, _ = put(pool, gone, "a", "b")
    a.plan.captured = True
    pool.clear()
    assert sorted(gone) == ["a", "b"]
    assert len(pool) == 0


def test_no_plan_is_built_in_a_capture_but_existing_ones_are_found(
    pool: PlanPool, driver: Driver, gone: list[str]
) -> None:
    [a] = put(pool, gone, "a")
    driver.capturing = {3}
    with pytest.raises(UsageError, match="plan-in-capture") as caught:
        pool.get_or_build("b", lambda: Fake("b", gone), 3)
    assert "before the capture" in caught.value.sections["fix"]
    assert pool.get_or_build("a", lambda: Fake("a", gone), 3) is a
    assert pool.get_or_build("b", lambda: Fake("b", gone), 4).plan.name == "b"


def test_a_plan_is_built_in_the_background(pool: PlanPool, gone: list[str]) -> None:
    threads = []

    def make() -> Fake:
        threads.append(threading.current_thread())
        return Fake("a", gone)

    pool.build_soon("a", make, 0)
    assert pool.wait(5)
    held = pool.find("a")
    assert held is not None
    assert held.plan.name == "a"
    assert threads[0] is not threading.main_thread()
    pool.build_soon("a", make, 0)
    assert pool.wait(5)
    assert len(threads) == 1


def test_a_failed_background_build_is_not_repeated(pool: PlanPool, gone: list[str]) -> None:
    tries = []

    def fail() -> Fake:
        tries.append(1)
        raise UsageError("no", code="no")

    for _ in range(2):
        pool.build_soon("a", fail, 0)
        assert pool.wait(5)
    assert (len(tries), pool.find("a")) == (1, None)
    pool.build_soon("b", lambda: Fake("b", gone), 0)  # the thread is still alive
    assert pool.wait(5)
    assert pool.find("b") is not None


def test_a_failure_leaves_the_next_caller_to_try(pool: PlanPool, gone: list[str]) -> None:
    def fail() -> Fake:
        raise UsageError("no", code="no")

    with pytest.raises(UsageError):
        pool.get_or_build("a", fail)
    assert pool.get_or_build("a", lambda: Fake("a", gone)).plan.name == "a"


def test_too_many_jobs_are_dropped(driver: Driver, gone: list[str]) -> None:
    pool, go = PlanPool(most=200), threading.Event()
    pool.build_soon("first", lambda: (go.wait(5), Fake("first", gone))[1], 0)
    for name in map(str, range(200)):
        pool.build_soon(name, lambda name=name: Fake(name, gone), 0)  # type: ignore[misc]
    go.set()
    assert pool.wait(5)
    assert 60 <= len(pool) <= 66


class OtherOwner:
    """A second owner that runs plans without the pool."""

    def __init__(self) -> None:
        self.ran: set[str] = set()
        self.forgotten: list[str] = []

    def has_run(self, plan: Any) -> bool:
        ran = plan.name in self.ran
        self.ran.discard(plan.name)
        return ran

    def forget(self, plan: Any) -> None:
        self.forgotten.append(plan.name)


def test_another_owner_of_plans_is_queried_and_notified(pool: PlanPool, gone: list[str]) -> None:
    owner = OtherOwner()
    pool.add_watcher(owner)
    put(pool, gone, "a", "b")
    owner.ran = {"a"}
    put(pool, gone, "c")
    assert owner.forgotten == ["b"]
    assert pool.find("a") is not None
    put(pool, gone, "d")
    assert owner.forgotten == ["b", "a"]
    pool.clear()
    assert sorted(owner.forgotten) == ["a", "b", "c", "d"]


def test_failures_in_the_background_are_recorded(pool: PlanPool) -> None:
    def refuse() -> Any:
        raise UsageError("no", code="wrong-argument")

    assert not pool.has_failed("a")
    pool.build_soon("a", refuse, 0)
    assert pool.wait(5)
    assert pool.has_failed("a")
