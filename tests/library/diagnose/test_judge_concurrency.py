"""The judge with threads, event loops, forks, pools and interruptions: no answer belongs to another query."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
import subprocess
from collections.abc import Iterator
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path

import pytest

from cudnn_backend_py.diagnose import Judge, Outcome, Query, judge, matrix, whatif
from cudnn_backend_py.diagnose.fork import run_in_fork
from cudnn_backend_py.system.child import make_module_command
from examples import flash_forward, forum_two_matmul
from tests.pure.system.test_child import (
    Interruption,
    count_open_files,
    interrupt_after_seconds,
    list_child_pids,
    wait_until_count_equals,
)
from tests.support.child import ROOT, run_code
from tests.torture.judge import find_expected_verdict_summaries, make_distinct_queries


def judge_queries_and_list_outcomes(
    queries: tuple[Query, ...], run_query: object = judge
) -> list[tuple[str, int, Outcome]]:
    """Run the queries, and return graph name, architecture and outcome of each verdict."""
    assert callable(run_query)
    found = [run_query(question) for question in queries]
    return [(verdict.graph, verdict.sm, verdict.outcome) for verdict in found]


def list_expected_query_outcomes(queries: tuple[Query, ...]) -> list[tuple[str, int, Outcome]]:
    known = find_expected_verdict_summaries()
    return [(known[question][0], known[question][2], known[question][3]) for question in queries]


@pytest.fixture(scope="module")
def shared_judge() -> Iterator[Judge]:
    with Judge(limit_s=120) as shared:
        yield shared


def test_the_answer_to_an_interrupted_query_is_not_given_to_the_next(shared_judge: Judge) -> None:
    queries = make_distinct_queries()
    for number in range(4):
        shared_judge.run_query(queries[number])
        with pytest.raises(Interruption), interrupt_after_seconds(0.001):
            shared_judge.run_query(Query(flash_forward.graph(), "sm90"))  # takes much longer
        assert judge_queries_and_list_outcomes(
            queries[number : number + 3], shared_judge.run_query
        ) == list_expected_query_outcomes(queries[number : number + 3])


def test_open_files_and_processes_do_not_increase(shared_judge: Judge) -> None:
    shared_judge.run_query(make_distinct_queries()[0])
    before = count_open_files(), len(list_child_pids())
    interrupted = 0
    for number in range(200):
        try:
            with interrupt_after_seconds(0.0002 * (1 + number % 40)):
                shared_judge.run_query(make_distinct_queries()[number % 8])
        except Interruption:
            interrupted += 1
    assert interrupted > 150
    shared_judge.run_query(make_distinct_queries()[0])
    wait_until_count_equals(lambda: (count_open_files(), len(list_child_pids())), before)
    assert judge_queries_and_list_outcomes(
        make_distinct_queries(), shared_judge.run_query
    ) == list_expected_query_outcomes(make_distinct_queries())


def test_threads_share_a_judge(shared_judge: Judge) -> None:
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(shared_judge.run_query, make_distinct_queries() * 2))
    assert [verdict.graph for verdict in found] == [question.graph.name for question in make_distinct_queries() * 2]
    assert [verdict.sm for verdict in found] == [
        sm for _, sm, _ in list_expected_query_outcomes(make_distinct_queries() * 2)
    ]


def test_the_judge_of_a_thread_ends_with_the_thread() -> None:
    before = list_child_pids()
    with ThreadPoolExecutor(1) as pool:
        pool.submit(judge, make_distinct_queries()[0]).result()
        assert len(list_child_pids() - before) == 1
    assert list_child_pids() <= before


def test_cancelled_tasks_and_a_closed_event_loop_are_handled() -> None:
    before = list_child_pids()

    async def run_query(question: Query, limit_s: float | None) -> str:
        try:
            verdict = await asyncio.wait_for(asyncio.to_thread(judge, question), limit_s)
        except TimeoutError:
            return "cancelled"
        assert verdict.graph == question.graph.name
        return "answered"

    async def run_queries_concurrently() -> list[str]:
        return await asyncio.gather(
            *(run_query(question, 0.01) for question in make_distinct_queries()[:2]),
            run_query(make_distinct_queries()[2], None),
        )

    for _ in range(2):
        assert asyncio.run(run_queries_concurrently()) == ["cancelled", "cancelled", "answered"]
        assert list_child_pids() <= before


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_process_pools_get_right_verdicts(method: str, shared_judge: Judge) -> None:
    queries = make_distinct_queries()[4:8]
    judge(queries[0])  # the parent has its own child, which a forked process must not use
    with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context(method)) as pool:
        coming = [pool.submit(judge_queries_and_list_outcomes, (question,)) for question in queries * 2]
        assert judge_queries_and_list_outcomes(queries) == list_expected_query_outcomes(queries)
        assert [answer for future in coming for answer in future.result()] == list_expected_query_outcomes(queries * 2)
    assert judge_queries_and_list_outcomes(queries) == list_expected_query_outcomes(queries)


def test_a_matrix_runs_in_a_pool_of_forked_processes(tmp_path: Path) -> None:
    graphs = {question.graph.name: question.graph for question in make_distinct_queries()[:8]}
    pool: Executor
    with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("fork")) as pool:
        found = matrix(graphs, ["sm80", "sm90"], [None], executor=pool, cache=tmp_path, progress=False)
    outcomes = {(graph, target): cell.outcome for (graph, target, _), cell in found.cells.items()}
    assert outcomes == {
        (name, target): Outcome.SUPPORTED if name.startswith("supported") else Outcome.NOT_SUPPORTED
        for name in graphs
        for target in ("sm80", "sm90")
    }


FORK_PROGRAM = """
import os, sys
from cudnn_backend_py.diagnose import judge
from tests.torture.judge import make_distinct_queries

queries = make_distinct_queries()
judge(queries[0])
if (child := os.fork()) == 0:
    assert judge(queries[1]).graph == queries[1].graph.name
    sys.exit()  # with what the interpreter does at its end
assert judge(queries[2]).graph == queries[2].graph.name
assert os.waitpid(child, 0)[1] == 0
assert judge(queries[3]).graph == queries[3].graph.name
"""


def test_a_forked_process_uses_its_own_children() -> None:
    run_code(FORK_PROGRAM)


XDIST_TEST_FILE = """
import pytest
from cudnn_backend_py.testing import assert_not_supported, assert_supported
from tests.torture.judge import make_distinct_queries

@pytest.mark.parametrize("number", range(6))
def test_each(number):
    question = make_distinct_queries()[number + 4]
    check = assert_supported if question.graph.name.startswith("supported") else assert_not_supported
    assert check(question.graph, question.target).graph == question.graph.name
"""


def test_workers_of_pytest_xdist_get_right_verdicts(tmp_path: Path) -> None:
    (tmp_path / "test_small.py").write_text(XDIST_TEST_FILE)
    command = make_module_command("pytest", "-q", "-n", "2", "-p", "no:cacheprovider", str(tmp_path))
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert "6 passed" in done.stdout, done.stdout


def test_a_child_that_does_not_start_gives_no_verdict_on_cudnn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "ctypes.py").write_text("raise SystemExit('no ctypes today')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with Judge() as broken:
        verdict = broken.run_query(Query(flash_forward.graph(), "sm90"))
    assert (verdict.outcome, verdict.stage, verdict.exit_code) == (Outcome.NOT_JUDGED, "environment", 2)
    assert verdict.cause is not None
    assert verdict.cause.code == "judge-did-not-start"
    assert verdict.cause.headline == "the process that queries cuDNN ended with exit code 70 before it judged anything"
    assert "no ctypes today" in verdict.cause.detail
    assert "crashed" not in verdict.cause.headline
    with pytest.raises(OSError, match="judge-did-not-start"):
        whatif(forum_two_matmul.graph(), "sm90")


def test_an_idle_child_that_died_is_replaced(shared_judge: Judge) -> None:
    shared_judge.run_query(make_distinct_queries()[0])
    [child] = next(iter(shared_judge._processes.idle.values()))[-1:]
    os.kill(child._process.pid, signal.SIGKILL)
    child._process.wait()
    assert judge_queries_and_list_outcomes(
        make_distinct_queries()[:2], shared_judge.run_query
    ) == list_expected_query_outcomes(make_distinct_queries()[:2])


def test_run_in_fork_leaves_no_process() -> None:
    before = count_open_files(), list_child_pids()
    assert run_in_fork(lambda: 3, lambda: 4) == 3
    assert run_in_fork(lambda: os.kill(os.getpid(), signal.SIGSEGV) or 3, lambda: 4) == 4
    for step in range(40):
        try:
            with interrupt_after_seconds(0.0005 * (1 + step)):
                run_in_fork(lambda: sum(range(300_000)), lambda: 0)
        except Interruption:
            pass
    assert (count_open_files(), list_child_pids()) == before


def test_run_in_fork_works_if_children_are_not_waited_for() -> None:
    code = (
        "import signal; signal.signal(signal.SIGCHLD, signal.SIG_IGN)\n"
        "from cudnn_backend_py.diagnose.fork import run_in_fork\n"
        "print(run_in_fork(lambda: 3, lambda: 4))"
    )
    assert run_code(code).stdout == "3\n"
