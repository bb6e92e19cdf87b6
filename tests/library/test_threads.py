"""Sixteen threads judge graphs at the same time, and get the same verdicts as a single thread."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from cudnn_backend_py import CudnnStatusError, Descriptor, DescriptorType, Graph, OperationGraph, explain, open_target
from cudnn_backend_py.native import capture_log, library
from tests.support.varied_graphs import VARIED_GRAPHS

THREADS = 16
TARGETS = ("sm80", "sm89", "sm90", "sm100")
NAMES = [
    name
    for name in VARIED_GRAPHS
    if name.startswith(("two matmul", "flash", "matmul", "unified", "reduce", "relu", "exp", "add", "layer norm"))
]
QUESTIONS = [(name, TARGETS[index % len(TARGETS)]) for index, name in enumerate(NAMES)]


def judge_graph_and_make_dict(name: str, target: str) -> dict[str, Any]:
    """Return the parts of a verdict that must not depend on the thread."""
    data = explain(VARIED_GRAPHS[name](), target).to_dict()
    return {
        key: data[key]
        for key in ("outcome", "stage", "graph_text", "target", "candidates", "reasons", "cause", "control")
    }


def run_in_threads(work: Callable[[int], Any], count: int) -> list[Any]:
    """Run ``work`` with each number below ``count`` in sixteen threads that start together."""
    start = threading.Barrier(THREADS)

    def wait_for_all_threads_and_work(number: int) -> Any:
        if number < THREADS:
            start.wait()
        return work(number)

    with ThreadPoolExecutor(THREADS) as pool:
        return list(pool.map(wait_for_all_threads_and_work, range(count)))


def test_the_threads_judge_at_least_sixteen_different_graphs() -> None:
    assert len({str(VARIED_GRAPHS[name]()) for name in NAMES}) >= 16
    assert {target for _, target in QUESTIONS} == set(TARGETS)


@pytest.fixture(scope="module")
def single_thread_answers() -> list[dict[str, Any]]:
    """Return the verdicts on all graphs, judged by one thread."""
    return [judge_graph_and_make_dict(*question) for question in QUESTIONS]


def test_verdicts_of_sixteen_threads_equal_serial_verdicts(single_thread_answers: list[dict[str, Any]]) -> None:
    for round_number in range(3):
        count = max(THREADS, len(QUESTIONS))
        together = run_in_threads(lambda number: judge_graph_and_make_dict(*QUESTIONS[number % len(QUESTIONS)]), count)
        for question, serial, parallel in zip(QUESTIONS, single_thread_answers, together, strict=False):
            assert parallel == serial, (question, round_number)
    assert {item["outcome"] for item in single_thread_answers} >= {"supported", "not supported"}
    assert sum(len(item["candidates"]) for item in single_thread_answers) > 60
    assert sum(len(candidate["reasons"]) for item in single_thread_answers for candidate in item["candidates"]) > 60


def test_threads_may_judge_a_known_good_graph_concurrently(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setattr(sys.modules["cudnn_backend_py.diagnose.explanation"], "_control_cache", {})
    verdicts = run_in_threads(lambda _: explain(VARIED_GRAPHS["matmul f16 64"](), "sm80"), THREADS)
    assert {(verdict.outcome, verdict.control and verdict.control.supported) for verdict in verdicts} == {
        (verdicts[0].outcome, True)
    }


def test_each_thread_gets_its_own_last_error() -> None:
    """cuDNN keeps the last error per thread: each refused call has its own message."""
    kinds = [DescriptorType.TENSOR, DescriptorType.DEVICEPROP, DescriptorType.OPERATION_MATMUL, DescriptorType.RNG]

    def finalize_empty_descriptor(number: int) -> tuple[DescriptorType, str]:
        kind = kinds[number % len(kinds)]
        with pytest.raises(CudnnStatusError) as caught:
            Descriptor(kind).finalize()
        return kind, caught.value.last_error

    serial = dict(finalize_empty_descriptor(number) for number in range(len(kinds)))
    assert len(set(serial.values())) == len(kinds)
    for kind, text in run_in_threads(finalize_empty_descriptor, 200):
        assert text == serial[kind]


def test_one_operation_graph_and_config_serve_many_threads() -> None:
    question = OperationGraph(VARIED_GRAPHS["matmul f16 64"](), open_target("sm90"))
    config = question.heuristics("A").configs[0]
    seen = run_in_threads(lambda _: (config.tag, config.behavior_notes, question.engine_count), THREADS * 4)
    assert len(set(seen)) == 1
    lists = run_in_threads(lambda _: tuple(item.tag for item in question.heuristics("A").configs), THREADS)
    assert len(set(lists)) == 1


def test_the_log_capture_of_each_thread_has_only_its_graph() -> None:
    def capture_graph(number: int) -> tuple[str, list[str]]:
        name = NAMES[number % len(NAMES)]
        graph: Graph = VARIED_GRAPHS[name]()
        with capture_log(this_thread_only=True) as log:
            OperationGraph(graph, open_target("sm90"))
        sizes = [len(item["nodes"]) if "nodes" in item else -1 for item in log.operation_graphs()]
        return name, [str(size) for size in sizes]

    serial = dict(capture_graph(number) for number in range(len(NAMES)))
    for name, sizes in run_in_threads(capture_graph, len(NAMES)):
        assert sizes == serial[name]
        assert len(sizes) == 1


def test_threads_load_the_cudnn_library_only_once() -> None:
    assert len({id(found) for found in run_in_threads(lambda _: library(), THREADS)}) == 1
