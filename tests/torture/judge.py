"""Interrupt queries to the judge at any moment: a verdict may be missing, but must not belong to another query."""

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
from tests.torture.harness import Broken

STEPS = 100  # of a round
RARE = 20  # every so many something happens
NUMBERS = range(1, 9)
UNANSWERED = ("cudnn-timed-out", "cudnn-crashed", "judge-did-not-start")


class Interruption(BaseException):
    """An exception that ``except Exception`` does not catch."""


INTERRUPTIONS: tuple[type[BaseException], ...] = (
    *(Interruption, KeyboardInterrupt, GeneratorExit, SystemExit),
    *(TimeoutError, BrokenPipeError, ValueError, asyncio.CancelledError),
)
Answer = tuple[str, str, int, Outcome, int]


def attack(seed: int, _folder: Path) -> Counter[str]:
    """Run queries, some interrupted, and compare each answer with an undisturbed judge's."""
    expected()
    with Judge() as one:
        return _Round(random.Random(seed), one).run()


def _supported(size: int) -> Graph:
    g = GraphBuilder(f"supported {size}", io_type=DataType.HALF)
    g.pointwise(PointwiseMode.RELU_FWD, g.tensor("x", (1, size, 64)), name="y", virtual=False)
    return g.graph()


def _refused(number: int) -> Graph:
    return dataclasses.replace(forum_two_matmul.graph(), name=f"refused {number}")


@cache
def questions() -> tuple[Query, ...]:
    """Return questions with answers that are distinguished: by name, architecture, outcome and candidates."""
    graphs = [_supported(number) if number % 4 else _refused(number) for number in NUMBERS]
    return tuple(Query(graph, target, modes=("FALLBACK",)) for graph in graphs for target in ("sm80", "sm90"))


@cache
def expected() -> dict[Query, Answer]:
    """Return the answers of an undisturbed judge."""
    with Judge() as calm:
        return {question: _answer(calm.run_query(question)) for question in questions()}


def _answer(verdict: Verdict) -> Answer:
    return verdict.graph, verdict.graph_text, verdict.sm, verdict.outcome, len(verdict.candidates)


class _Round:
    """One seed's steps on one judge."""

    def __init__(self, chance: random.Random, one: Judge) -> None:
        self.chance = chance
        self.judge = one
        self.counts: Counter[str] = Counter()

    def run(self) -> Counter[str]:
        rare = [
            *(self.interrupted, self.interrupted, self.interrupted_often, self.interrupted_often),
            *(self.interrupted_twice, self.out_of_time, self.killed),
            *(self.forked, self.forked_meanwhile, self.by_threads, self.by_tasks),
        ]
        for number in range(STEPS):
            if number % RARE == RARE - 1:
                self.chance.choice(rare)()
            else:
                self.check(*self.asked(self.judge.run_query))
        return self.counts

    def asked(self, run_query: Callable[[Query], Verdict]) -> tuple[Query, Verdict]:
        question = self.chance.choice(questions())
        self.counts["questions"] += 1
        return question, run_query(question)

    def check(self, question: Query, verdict: Verdict, *, whole: bool = True) -> None:
        """Compare an answer; there may be none if its process was ended."""
        if verdict.graph != question.graph.name or verdict.graph_text != str(question.graph):
            raise Broken(f"asked about {question.graph.name}, answered about {verdict.graph}")
        if not whole and verdict.cause is not None and verdict.cause.code in UNANSWERED:
            self.counts["questions that could not be judged"] += 1
            return
        if _answer(verdict) != expected()[question]:
            cause = verdict.cause and verdict.cause.headline
            raise Broken(f"expected {expected()[question]}, found {_answer(verdict)}: {cause}")
        self.counts["answered, rightly"] += 1

    def moment(self) -> float:
        """Return a random delay: before, in or after a query, also while a process starts."""
        return float(10 ** self.chance.uniform(-5, self.chance.choice((-3, -1.5, -0.2))))

    def interrupted(self, moment: float | None = None) -> None:
        """A signal handler raises at a random moment."""
        kind = self.chance.choice(INTERRUPTIONS)
        self._expect(kind, lambda: self.check(*self.asked(self.judge.run_query)), moment or self.moment(), 0.0)

    def interrupted_often(self) -> None:
        """Interruptions one after the other, mostly while processes start."""
        for _ in range(40):
            self.interrupted(float(10 ** self.chance.uniform(-5, -1.5)))

    def interrupted_twice(self) -> None:
        """A second exception while the first propagates and the process is being ended."""
        kind = self.chance.choice(INTERRUPTIONS)
        again = float(10 ** self.chance.uniform(-5, -2.5))
        self._expect(kind, lambda: self.check(*self.asked(self.judge.run_query)), self.moment(), again)

    def _expect(self, kind: type[BaseException], act: Callable[[], object], first: float, again: float) -> None:
        def raises(_number: int, _frame: FrameType | None) -> None:
            if again:  # a last one
                signal.signal(signal.SIGALRM, raises_last)
                signal.setitimer(signal.ITIMER_REAL, again)
            raise kind

        def raises_last(_number: int, _frame: FrameType | None) -> None:
            raise kind

        try:
            with _alarm(raises, first):
                act()
        except kind as error:
            if isinstance(error, CudnnBackendError):
                raise
            self.counts["interrupted by a signal"] += 1

    def out_of_time(self) -> None:
        hurried = Judge(limit_s=self.moment())
        hurried._idle = self.judge._idle  # its processes, with another limit
        self.check(*self.asked(hurried.run_query), whole=False)
        self.counts["limits"] += 1

    def killed(self) -> None:
        """The queried process is killed."""
        idle = [child._process.pid for children in self.judge._idle.values() for child in children]

        def kills(_number: int, _frame: FrameType | None) -> None:
            for pid in idle:
                os.kill(pid, self.chance.choice((signal.SIGKILL, signal.SIGSEGV, signal.SIGRTMIN + 3)))

        with _alarm(kills, self.moment()):
            self.check(*self.asked(self.judge.run_query), whole=False)
        self.judge.close()  # where they were killed too late for this question, the next one has others
        self.counts["kills"] += 1

    def forked(self) -> None:
        """A forked process queries the same judge, and so does the parent."""
        child = os.fork()
        if child == 0:
            _exit_with(lambda: self.check(*self.asked(self.judge.run_query)))
        self.check(*self.asked(self.judge.run_query))
        self._reap(child)
        self.counts["questions"] += 1
        self.counts["answered, rightly"] += 1

    def forked_meanwhile(self) -> None:
        """A handler forks during a query: the fork gets no answer or the right one, the parent gets its own."""
        children = []
        parent = os.getpid()

        def forks(_number: int, _frame: FrameType | None) -> None:
            if child := os.fork():
                children.append(child)

        try:
            with _alarm(forks, self.moment()):
                question, verdict = self.asked(self.judge.run_query)
        except UsageError as error:
            if os.getpid() == parent or error.code != "child-not-usable":
                raise
            os._exit(0)
        except BaseException:
            if os.getpid() == parent:
                raise
            os._exit(1)
        if os.getpid() != parent:
            _exit_with(lambda: self.check(question, verdict))
        self.check(question, verdict)
        for child in children:
            self._reap(child)

    def _reap(self, child: int) -> None:
        if code := os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]):
            raise Broken(f"a forked process ended with {code}")
        self.counts["forks"] += 1

    def by_threads(self) -> None:
        """Threads share the judge while the main thread is interrupted."""
        with ThreadPoolExecutor(2) as pool:
            chosen = [self.chance.choice(questions()) for _ in range(6)]
            coming = [(question, pool.submit(self.judge.run_query, question)) for question in chosen]
            self.interrupted()
            for question, answer in coming:
                self.check(question, answer.result())
        self.counts["questions"] += len(chosen)
        self.counts["questions of threads"] += len(chosen)

    def by_tasks(self) -> None:
        """Tasks query in threads of the event loop; some are cancelled."""
        chosen = [self.chance.choice(questions()) for _ in range(2)]
        limits = [self.chance.choice((None, self.moment())) for _ in chosen]

        async def run_query(question: Query, limit_s: float | None) -> None:
            try:
                self.check(question, await asyncio.wait_for(asyncio.to_thread(judge, question), limit_s))
            except TimeoutError:
                self.counts["tasks cancelled"] += 1

        async def ask_all() -> None:
            await asyncio.gather(*map(run_query, chosen, limits))

        asyncio.run(ask_all())
        self.counts["questions"] += len(chosen)


@contextlib.contextmanager
def _alarm(handler: Callable[[int, FrameType | None], Any], seconds: float) -> Iterator[None]:
    """Call a handler after a delay, if the block has not ended."""
    before = signal.signal(signal.SIGALRM, handler)
    try:
        signal.setitimer(signal.ITIMER_REAL, seconds)
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _exit_with(check: Callable[[], None]) -> None:
    """End a forked process, with 0 if the check holds."""
    code = 1
    try:
        check()
        code = 0
    finally:
        os._exit(code)
