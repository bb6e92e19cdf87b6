"""Sixteen threads judge at the same time and get the answers of a single thread."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from cudnn_backend_py import CudnnStatusError, Descriptor, DescriptorType, Graph, OperationGraph, explain, open_target
from cudnn_backend_py.native import capture_log, library
from tests.support.zoo import ZOO

THREADS = 16
TARGETS = ("sm80", "sm89", "sm90", "sm100")
NAMES = [
    name
    for name in ZOO
    if name.startswith(("two matmul", "flash", "matmul", "unified", "reduce", "relu", "exp", "add", "layer norm"))
]
QUESTIONS = [(name, TARGETS[index % len(TARGETS)]) for index, name in enumerate(NAMES)]


def answer(name: str, target: str) -> dict[str, Any]:
    """Return all parts of a verdict about the graph itself."""
    data = explain(ZOO[name](), target).to_dict()
    return {
        key: data[key]
        for key in ("outcome", "stage", "graph_text", "target", "candidates", "reasons", "cause", "control")
    }


def at_once(work: Callable[[int], Any], count: int) -> list[Any]:
    """Run `work` of 0, 1, ... in sixteen threads that start together."""
    start = threading.Barrier(THREADS)

    def begin(number: int) -> Any:
        if number < THREADS:
            start.wait()
        return work(number)

    with ThreadPoolExecutor(THREADS) as pool:
        return list(pool.map(begin, range(count)))


def test_there_are_at_least_sixteen_different_graphs() -> None:
    assert len({str(ZOO[name]()) for name in NAMES}) >= 16
    assert {target for _, target in QUESTIONS} == set(TARGETS)


@pytest.fixture(scope="module")
def alone() -> list[dict[str, Any]]:
    """Return the answers of one thread."""
    return [answer(*question) for question in QUESTIONS]


def test_verdicts_of_sixteen_threads_agree_with_the_serial_ones(alone: list[dict[str, Any]]) -> None:
    for round_number in range(3):
        count = max(THREADS, len(QUESTIONS))
        together = at_once(lambda number: answer(*QUESTIONS[number % len(QUESTIONS)]), count)
        for question, serial, parallel in zip(QUESTIONS, alone, together, strict=False):
            assert parallel == serial, (question, round_number)
    assert {item["outcome"] for item in alone} >= {"supported", "not supported"}
    assert sum(len(item["candidates"]) for item in alone) > 60
    assert sum(len(candidate["reasons"]) for item in alone for candidate in item["candidates"]) > 60


def test_control_graph_is_judged_by_many_threads_at_first(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setattr(sys.modules["cudnn_backend_py.diagnose.explanation"], "_controls", {})
    verdicts = at_once(lambda _: explain(ZOO["matmul f16 64"](), "sm80"), THREADS)
    assert {(verdict.outcome, verdict.control and verdict.control.supported) for verdict in verdicts} == {
        (verdicts[0].outcome, True)
    }


def test_errors_stay_in_the_thread_that_made_them() -> None:
    """The last-error text is per thread: each of two refusals has its own message."""
    kinds = [DescriptorType.TENSOR, DescriptorType.DEVICEPROP, DescriptorType.OPERATION_MATMUL, DescriptorType.RNG]

    def refuse(number: int) -> tuple[DescriptorType, str]:
        kind = kinds[number % len(kinds)]
        with pytest.raises(CudnnStatusError) as caught:
            Descriptor(kind).finalize()
        return kind, caught.value.last_error

    serial = dict(refuse(number) for number in range(len(kinds)))
    assert len(set(serial.values())) == len(kinds)
    for kind, text in at_once(refuse, 200):
        assert text == serial[kind]


def test_one_operation_graph_and_config_serve_many_threads() -> None:
    question = OperationGraph(ZOO["matmul f16 64"](), open_target("sm90"))
    config = question.heuristics("A").configs[0]
    seen = at_once(lambda _: (config.tag, config.behavior_notes, question.engine_count), THREADS * 4)
    assert len(set(seen)) == 1
    lists = at_once(lambda _: tuple(item.tag for item in question.heuristics("A").configs), THREADS)
    assert len(set(lists)) == 1


def test_captures_of_many_threads_get_their_own_thread() -> None:
    def judge(number: int) -> tuple[str, list[str]]:
        name = NAMES[number % len(NAMES)]
        graph: Graph = ZOO[name]()
        with capture_log(this_thread_only=True) as log:
            OperationGraph(graph, open_target("sm90"))
        sizes = [len(item["nodes"]) if "nodes" in item else -1 for item in log.operation_graphs()]
        return name, [str(size) for size in sizes]

    serial = dict(judge(number) for number in range(len(NAMES)))
    for name, sizes in at_once(judge, len(NAMES)):
        assert sizes == serial[name]
        assert len(sizes) == 1


def test_library_is_loaded_once() -> None:
    assert len({id(found) for found in at_once(lambda _: library(), THREADS)}) == 1
