"""Interrupt a judge at random moments: a query may fail, but never returns the verdict of another query."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
import random
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any

from cudnn_backend_py import CudnnBackendError, DataType, Graph, GraphBuilder, PointwiseMode, UsageError
from cudnn_backend_py.diagnose import Judge, Outcome, Query, Verdict, judge
from examples import forum_two_matmul
from tests.torture.harness import BrokenGuarantee

STEPS_PER_ROUND = 100  # queries and events per round
EVENT_INTERVAL_STEPS = 20  # number of steps between two events
GRAPH_NUMBERS = range(1, 9)
UNANSWERED_CODES = ("cudnn-timed-out", "cudnn-crashed", "judge-did-not-start")


class Interruption(BaseException):
    """An exception that ``except Exception`` does not catch."""


INTERRUPTIONS: tuple[type[BaseException], ...] = (
    *(Interruption, KeyboardInterrupt, GeneratorExit, SystemExit),
    *(TimeoutError, BrokenPipeError, ValueError, asyncio.CancelledError),
)
VerdictSummary = tuple[str, str, int, Outcome, int]


def run_random_round(seed: int, _folder: Path) -> Counter[str]:
    """Run queries, some of them interrupted; each verdict must equal the verdict of an uninterrupted judge."""
    find_expected_verdict_summaries()
    with Judge() as one:
        return _InterruptedJudgeRound(random.Random(seed), one).run_steps()


def _make_supported_graph(size: int) -> Graph:
    g = GraphBuilder(f"supported {size}", io_type=DataType.HALF)
    g.pointwise(PointwiseMode.RELU_FWD, g.tensor("x", (1, size, 64)), name="y", virtual=False)
    return g.graph()


def _make_refused_graph(number: int) -> Graph:
    return dataclasses.replace(forum_two_matmul.graph(), name=f"refused {number}")


@cache
def make_distinct_queries() -> tuple[Query, ...]:
    """Return queries with answers that differ in name, architecture, outcome or candidates."""
    graphs = [_make_supported_graph(number) if number % 4 else _make_refused_graph(number) for number in GRAPH_NUMBERS]
    return tuple(Query(graph, target, modes=("FALLBACK",)) for graph in graphs for target in ("sm80", "sm90"))


@cache
def find_expected_verdict_summaries() -> dict[Query, VerdictSummary]:
    """Return a summary of the verdict on each query, given by a judge that is not interrupted."""
    with Judge() as calm:
        return {question: _summarize_verdict(calm.run_query(question)) for question in make_distinct_queries()}


def _summarize_verdict(verdict: Verdict) -> VerdictSummary:
    return verdict.graph, verdict.graph_text, verdict.sm, verdict.outcome, len(verdict.candidates)


class _InterruptedJudgeRound:
    """The random steps of one round on one judge."""

    def __init__(self, chance: random.Random, one: Judge) -> None:
        self.chance = chance
        self.judge = one
        self.counts: Counter[str] = Counter()

    def run_steps(self) -> Counter[str]:
        rare = [
            *(self.interrupt_query, self.interrupt_query, self.interrupt_many_queries, self.interrupt_many_queries),
            *(self.interrupt_query_twice, self.judge_with_short_time_limit, self.kill_child_during_query),
            *(self.judge_in_fork, self.fork_during_query, self.judge_in_threads, self.judge_in_asyncio_tasks),
        ]
        for number in range(STEPS_PER_ROUND):
            if number % EVENT_INTERVAL_STEPS == EVENT_INTERVAL_STEPS - 1:
                self.chance.choice(rare)()
            else:
                self.check_query_verdict(*self.run_random_query(self.judge.run_query))
        return self.counts

    def run_random_query(self, run_query: Callable[[Query], Verdict]) -> tuple[Query, Verdict]:
        question = self.chance.choice(make_distinct_queries())
        self.counts["queries"] += 1
        return question, run_query(question)

    def check_query_verdict(self, question: Query, verdict: Verdict, *, whole: bool = True) -> None:
        """Check that a verdict is the expected one or, with `whole` False, that the query was not judged."""
        if verdict.graph != question.graph.name or verdict.graph_text != str(question.graph):
            raise BrokenGuarantee(f"the query is for graph {question.graph.name}, the answer for {verdict.graph}")
        if not whole and verdict.cause is not None and verdict.cause.code in UNANSWERED_CODES:
            self.counts["queries that could not be judged"] += 1
            return
        if _summarize_verdict(verdict) != find_expected_verdict_summaries()[question]:
            cause = verdict.cause and verdict.cause.headline
            raise BrokenGuarantee(
                f"expected {find_expected_verdict_summaries()[question]}, found {_summarize_verdict(verdict)}: {cause}"
            )
        self.counts["right answers"] += 1

    def make_random_delay_s(self) -> float:
        """Return a random delay in seconds that ends before, during or after a query, or while a process starts."""
        return float(10 ** self.chance.uniform(-5, self.chance.choice((-3, -1.5, -0.2))))

    def interrupt_query(self, moment: float | None = None) -> None:
        """Raise an exception in a signal handler at a random moment of a query."""
        kind = self.chance.choice(INTERRUPTIONS)
        self._run_action_interrupted_by_exception(
            kind,
            lambda: self.check_query_verdict(*self.run_random_query(self.judge.run_query)),
            moment or self.make_random_delay_s(),
            0.0,
        )

    def interrupt_many_queries(self) -> None:
        """Interrupt 40 queries, mostly while child processes start."""
        for _ in range(40):
            self.interrupt_query(float(10 ** self.chance.uniform(-5, -1.5)))

    def interrupt_query_twice(self) -> None:
        """Raise a second exception while the first one is handled and the child process is being ended."""
        kind = self.chance.choice(INTERRUPTIONS)
        again = float(10 ** self.chance.uniform(-5, -2.5))
        self._run_action_interrupted_by_exception(
            kind,
            lambda: self.check_query_verdict(*self.run_random_query(self.judge.run_query)),
            self.make_random_delay_s(),
            again,
        )

    def _run_action_interrupted_by_exception(
        self, kind: type[BaseException], act: Callable[[], object], first: float, again: float
    ) -> None:
        def raise_exception(_number: int, _frame: FrameType | None) -> None:
            if again:  # the last exception
                signal.signal(signal.SIGALRM, raise_last_exception)
                signal.setitimer(signal.ITIMER_REAL, again)
            raise kind

        def raise_last_exception(_number: int, _frame: FrameType | None) -> None:
            raise kind

        try:
            with _run_handler_after(raise_exception, first):
                act()
        except kind as error:
            if isinstance(error, CudnnBackendError):
                raise
            self.counts["interrupted by a signal"] += 1

    def judge_with_short_time_limit(self) -> None:
        hurried = Judge(limit_s=self.make_random_delay_s())
        hurried._processes = self.judge._processes  # use those of the other judge, with a shorter limit
        self.check_query_verdict(*self.run_random_query(hurried.run_query), whole=False)
        self.counts["short time limits"] += 1

    def kill_child_during_query(self) -> None:
        """Kill the child process that runs the query."""
        idle = [child._process.pid for children in self.judge._processes.idle.values() for child in children]

        def kill_child(_number: int, _frame: FrameType | None) -> None:
            for pid in idle:
                os.kill(pid, self.chance.choice((signal.SIGKILL, signal.SIGSEGV, signal.SIGRTMIN + 3)))

        with _run_handler_after(kill_child, self.make_random_delay_s()):
            self.check_query_verdict(*self.run_random_query(self.judge.run_query), whole=False)
        self.judge.close()  # if the kill came after this query, the next one needs new processes
        self.counts["killed child processes"] += 1

    def judge_in_fork(self) -> None:
        """Use the same judge in a forked process, and in the parent at the same time."""
        child = os.fork()
        if child == 0:
            _run_check_and_exit(lambda: self.check_query_verdict(*self.run_random_query(self.judge.run_query)))
        self.check_query_verdict(*self.run_random_query(self.judge.run_query))
        self._wait_for_fork(child)
        self.counts["queries"] += 1
        self.counts["right answers"] += 1

    def fork_during_query(self) -> None:
        """Fork in a signal handler during a query: the parent gets the right answer, the child the same or none."""
        children = []
        parent = os.getpid()

        def fork_and_judge(_number: int, _frame: FrameType | None) -> None:
            if child := os.fork():
                children.append(child)

        try:
            with _run_handler_after(fork_and_judge, self.make_random_delay_s()):
                question, verdict = self.run_random_query(self.judge.run_query)
        except UsageError as error:
            if os.getpid() == parent or error.code != "child-not-usable":
                raise
            os._exit(0)
        except BaseException:
            if os.getpid() == parent:
                raise
            os._exit(1)
        if os.getpid() != parent:
            _run_check_and_exit(lambda: self.check_query_verdict(question, verdict))
        self.check_query_verdict(question, verdict)
        for child in children:
            self._wait_for_fork(child)

    def _wait_for_fork(self, child: int) -> None:
        if code := os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]):
            raise BrokenGuarantee(f"a forked process ended with exit code {code}")
        self.counts["forks"] += 1

    def judge_in_threads(self) -> None:
        """Use one judge from several threads, and interrupt the main thread at the same time."""
        with ThreadPoolExecutor(2) as pool:
            chosen = [self.chance.choice(make_distinct_queries()) for _ in range(6)]
            coming = [(question, pool.submit(self.judge.run_query, question)) for question in chosen]
            self.interrupt_query()
            for question, answer in coming:
                self.check_query_verdict(question, answer.result())
        self.counts["queries"] += len(chosen)
        self.counts["queries of threads"] += len(chosen)

    def judge_in_asyncio_tasks(self) -> None:
        """Run queries as asyncio tasks in threads, and cancel some."""
        chosen = [self.chance.choice(make_distinct_queries()) for _ in range(2)]
        limits = [self.chance.choice((None, self.make_random_delay_s())) for _ in chosen]

        async def run_query(question: Query, limit_s: float | None) -> None:
            try:
                self.check_query_verdict(question, await asyncio.wait_for(asyncio.to_thread(judge, question), limit_s))
            except TimeoutError:
                self.counts["tasks cancelled"] += 1

        async def run_all_queries() -> None:
            await asyncio.gather(*map(run_query, chosen, limits))

        asyncio.run(run_all_queries())
        self.counts["queries"] += len(chosen)


@contextlib.contextmanager
def _run_handler_after(handler: Callable[[int, FrameType | None], Any], seconds: float) -> Iterator[None]:
    """Call a signal handler after some seconds, unless the block has ended by then."""
    before = signal.signal(signal.SIGALRM, handler)
    try:
        signal.setitimer(signal.ITIMER_REAL, seconds)
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _run_check_and_exit(check: Callable[[], None]) -> None:
    """Run a check and end the forked process, with exit code 0 if it passes."""
    code = 1
    try:
        check()
        code = 0
    finally:
        os._exit(code)
