"""Creating and destroying descriptors leaks no memory: in any order, in any thread, at exit, after exceptions.

The full million rounds are ``python -m benchmarks million-rounds``; CUDNN_BACKEND_ROUNDS sets their number here.
"""

from __future__ import annotations

import gc
import json
import os
import random
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from cudnn_backend_py import (
    Attr,
    CudnnBackendError,
    DataType,
    Descriptor,
    DescriptorType,
    Graph,
    OperationGraph,
    UsageError,
    capi,
    library,
    open_target,
)
from cudnn_backend_py.graph.attention import sdpa_forward
from tests.support.child import run_code, run_python
from tests.support.descriptor_counts import DescriptorCount, count_descriptors

ROUNDS = int(os.environ.get("CUDNN_BACKEND_ROUNDS", "100000"))
MIB = 1 << 20


def make_tensor(uid: int = 1) -> Descriptor:
    made = Descriptor(DescriptorType.TENSOR).set(Attr.TENSOR_DATA_TYPE, DataType.HALF)
    made.set(Attr.TENSOR_UNIQUE_ID, uid).set(Attr.TENSOR_BYTE_ALIGNMENT, 16)
    return made.set(Attr.TENSOR_DIMENSIONS, (2, 8, 64)).set(Attr.TENSOR_STRIDES, (512, 64, 1)).finalize()


def make_attention_graph() -> Graph:
    return sdpa_forward(batch=1, heads=2, seq_q=128, head_dim=64, causal=True, stats=True)


def test_creating_and_closing_many_descriptors_leaks_no_memory() -> None:
    """Without destruction of descriptors, 100,000 rounds leak about 200 MiB; 1 MiB is allowed."""
    command = ["-m", "benchmarks", "million-rounds", "--rounds", str(ROUNDS)]
    done = run_python(command, timeout_s=60 + ROUNDS / 1000, check=True)
    measured = json.loads(done.stdout)
    assert measured["rounds"] == ROUNDS
    assert measured["growth_bytes_after_first_tenth"] < MIB, measured


def query_engine_configs_of_a_graph() -> None:
    """Build, query and drop a graph; descriptors alive afterwards are a leak."""
    target = open_target("sm90")
    question = OperationGraph(make_attention_graph(), target)
    found = question.heuristics("A")
    assert found.configs
    for config in found.configs:
        _ = config.engine, config.knobs, config.behavior_notes, config.numerical_notes
    question.knobs(found.configs[0].engine)


def close_descriptors_in_random_order() -> None:
    made = [make_tensor(uid) for uid in range(1, 200)]
    random.Random(1).shuffle(made)
    for descriptor in made:
        descriptor.close()


def set_invalid_attribute_values() -> None:
    for _ in range(100):
        made = Descriptor(DescriptorType.TENSOR)
        with pytest.raises(UsageError):
            made.set(Attr.TENSOR_UNIQUE_ID, "no")


def collect_descriptors_in_reference_cycles() -> None:
    for uid in range(1, 100):
        cycle: list[object] = [make_tensor(uid)]
        cycle.append(cycle)
        del cycle
    gc.collect()


def use_descriptors_in_many_threads() -> None:
    def call_repeatedly(number: int) -> None:
        for _ in range(50):
            with make_tensor(number + 1) as made:
                assert made.get(Attr.TENSOR_UNIQUE_ID) == number + 1

    with ThreadPoolExecutor(16) as pool:
        list(pool.map(call_repeatedly, range(16)))


def close_descriptors_in_another_thread() -> None:
    for uid in range(1, 50):
        made = make_tensor(uid)
        closer = threading.Thread(target=made.close)
        closer.start()
        closer.join()
        assert made.closed


def assert_no_descriptor_alive(live: DescriptorCount) -> None:
    gc.collect()
    assert live.created > 0
    assert live.undestroyed_count == 0


SCENARIOS: list[Callable[[], None]] = [
    query_engine_configs_of_a_graph,
    close_descriptors_in_random_order,
    set_invalid_attribute_values,
    collect_descriptors_in_reference_cycles,
    use_descriptors_in_many_threads,
    close_descriptors_in_another_thread,
]


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
def test_no_scenario_leaves_a_descriptor_alive(scenario: Callable[[], None]) -> None:
    gc.collect()
    with count_descriptors() as live:
        scenario()
        assert_no_descriptor_alive(live)


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
def test_the_leak_check_fails_if_descriptors_are_not_destroyed(scenario: Callable[[], None]) -> None:
    """If descriptors are not destroyed, the check must fail in every scenario."""
    gc.collect()
    with count_descriptors(destroy=False) as live:
        scenario()
        with pytest.raises(AssertionError):
            assert_no_descriptor_alive(live)


def test_child_descriptors_live_exactly_as_long_as_their_parent() -> None:
    with count_descriptors() as live:
        x, y = make_tensor(1), make_tensor(2)
        matmul = Descriptor(DescriptorType.MATMUL).set(Attr.MATMUL_COMP_TYPE, DataType.FLOAT).finalize()
        operation = Descriptor(DescriptorType.OPERATION_MATMUL).set(Attr.OPERATION_MATMUL_DESC, matmul)
        operation.set(Attr.OPERATION_MATMUL_ADESC, x).set(Attr.OPERATION_MATMUL_BDESC, y)
        for child in (x, y, matmul):
            child.close()
        assert live.undestroyed_count == 4
        operation.set(Attr.OPERATION_MATMUL_ADESC, make_tensor(3))
        assert live.undestroyed_count == 4  # the replaced child is gone, the new one stays
        operation.close()
        assert live.undestroyed_count == 0


def test_closing_a_descriptor_used_by_another_thread_is_safe() -> None:
    """A read while another thread closes the descriptor returns the value or raises descriptor-closed."""
    for _ in range(200):
        made = make_tensor(7)
        start = threading.Barrier(2)
        seen: list[object] = []

        def read_uid(made: Descriptor = made, start: threading.Barrier = start, seen: list[object] = seen) -> None:
            start.wait()
            for _ in range(20):
                try:
                    seen.append(made.get(Attr.TENSOR_UNIQUE_ID))
                except UsageError as error:
                    seen.append(error.code)

        reader = threading.Thread(target=read_uid)
        reader.start()
        start.wait()
        made.close()
        reader.join()
        assert set(seen) <= {7, "descriptor-closed"}


EXIT_PROGRAM = """
from cudnn_backend_py import *
from tests.library.native.test_lifetime import make_attention_graph, make_tensor
import threading
kept = [make_tensor(uid) for uid in range(1, 100)]
kept.append(kept)
target = open_target("sm90")
graph = OperationGraph(make_attention_graph(), target)
configs = graph.heuristics("A").configs
plan = build_plan(configs[0])
log = capture_log()
log.__enter__()
idle = threading.Thread(target=threading.Event().wait, daemon=True)
idle.start()
{last}
"""


@pytest.mark.parametrize(
    ("last", "code"), [("", 0), ("raise SystemExit(3)", 3), ("import os; os._exit(4)", 4)], ids=["end", "exit", "_exit"]
)
def test_a_process_with_open_descriptors_exits_cleanly(last: str, code: int) -> None:
    done = run_python(["-c", EXIT_PROGRAM.format(last=last)])
    assert (done.code, done.stderr) == (code, "")


def test_a_forked_child_that_ends_leaves_the_parent_working() -> None:
    done = run_code(
        """
import os
from tests.library.native.test_lifetime import *
made = make_tensor(5)
child = os.fork()
if child == 0:
    made.close()
    raise SystemExit(7)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
from cudnn_backend_py import Attr
assert made.get(Attr.TENSOR_UNIQUE_ID) == 5
print(bool(OperationGraph(make_attention_graph(), open_target("sm90")).heuristics("A").configs))
"""
    )
    assert done.stdout.strip() == "True"
    assert done.stderr == ""


def test_a_forked_child_destroys_no_descriptor_of_its_parent() -> None:
    """A cuDNN lock that another thread held at the fork is never released in the child."""
    done = run_code(
        """
import os
from cudnn_backend_py import Descriptor, DescriptorType, library
from tests.support.descriptor_counts import count_descriptors
with count_descriptors() as live:
    made = [Descriptor(DescriptorType.TENSOR) for _ in range(10)]
    child = os.fork()
    if child == 0:
        made.clear()
        mine = [Descriptor(DescriptorType.TENSOR) for _ in range(3)]
        mine.clear()
        os._exit(live.destroyed)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    made.clear()
    print(live.destroyed)
"""
    )
    assert done.stdout.split() == ["3", "10"]


class InterruptingFunction:
    """A substitute for a C function that raises KeyboardInterrupt once, before or after calling it."""

    def __init__(self, name: str, *, after: bool) -> None:
        self.name, self.after = name, after
        self.call = getattr(library(), name)

    def __call__(self, *arguments: Any) -> Any:
        vars(library())[self.name] = self.call
        status = self.call(*arguments) if self.after else 0
        if status == 0:
            raise KeyboardInterrupt
        return status

    def __enter__(self) -> None:
        vars(library())[self.name] = self

    def __exit__(self, *_exception: object) -> None:
        vars(library())[self.name] = self.call


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_an_interrupted_creation_leaves_no_descriptor_alive(after: bool) -> None:
    gc.collect()
    with count_descriptors() as live:
        with InterruptingFunction("cudnnBackendCreateDescriptor", after=after), pytest.raises(KeyboardInterrupt):
            Descriptor(DescriptorType.TENSOR)
        gc.collect()
        assert (live.created, live.undestroyed_count) == (int(after), 0)


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("verb", ["SetAttribute", "Finalize", "Initialize"])
def test_an_interrupted_descriptor_can_only_be_closed(verb: str, after: bool) -> None:
    with count_descriptors() as live:
        child = make_tensor(9)
        made = Descriptor(DescriptorType.OPERATION_RESHAPE)

        def change_descriptor() -> None:
            if verb == "SetAttribute":
                made.set(Attr.OPERATION_RESHAPE_XDESC, child)
            elif verb == "Finalize":
                made.finalize()
            else:
                made.initialize()

        if verb == "Finalize":
            made.set(Attr.OPERATION_RESHAPE_XDESC, child).set(Attr.OPERATION_RESHAPE_YDESC, make_tensor(2))
        with InterruptingFunction(f"cudnnBackend{verb}", after=after), pytest.raises(KeyboardInterrupt):
            change_descriptor()
        child.close()
        for call in (change_descriptor, made.finalize, lambda: made.get(Attr.OPERATION_RESHAPE_XDESC)):
            with pytest.raises(UsageError) as caught:
                call()
            assert caught.value.code in ("descriptor-interrupted", "descriptor-closed")
        if verb != "Initialize":
            assert live.undestroyed_count >= 2  # objects that cuDNN may refer to live as long as it
        made.close()
        del caught
        gc.collect()
        assert live.undestroyed_count == 0


def test_a_log_callback_cannot_change_the_descriptor_that_is_being_changed() -> None:
    refused: list[str] = []
    made = Descriptor(DescriptorType.MATMUL)

    def change_in_callback(*_: object) -> None:
        try:
            made.set(Attr.MATMUL_COMP_TYPE, DataType.HALF)
        except UsageError as error:
            refused.append(error.code)

    capi.cudnnSetCallback(0b1110, change_in_callback)
    made.finalize()
    capi.cudnnSetCallback(0, None)
    assert "descriptor-interrupted" in refused
    assert set(refused) <= {"descriptor-interrupted", "descriptor-finalized"}


def test_threads_can_change_one_descriptor_concurrently() -> None:
    """Calls on one descriptor in several threads work or raise our errors, and nothing leaks."""
    gc.collect()
    with count_descriptors() as live:
        for number in range(60):
            made = make_tensor(5) if number % 2 else Descriptor(DescriptorType.TENSOR).set(Attr.TENSOR_UNIQUE_ID, 5)
            start = threading.Barrier(4)
            calls = (
                lambda made=made: made.set(Attr.TENSOR_DIMENSIONS, (2, 8, 64)),
                lambda made=made: made.get(Attr.TENSOR_UNIQUE_ID),
                lambda made=made: made.finalize(),
                lambda made=made: made.close(),
            )
            seen: list[object] = []

            def call_repeatedly(call: Any, start: threading.Barrier = start, seen: list[object] = seen) -> None:
                start.wait()
                for _ in range(5):
                    try:
                        call()
                    except CudnnBackendError as error:
                        seen.append(error.code)

            threads = [threading.Thread(target=call_repeatedly, args=(call,)) for call in calls]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert set(seen) <= {"descriptor-closed", "descriptor-finalized", "cudnn-status"}
        del made, calls, threads, thread
        gc.collect()
        assert live.undestroyed_count == 0
