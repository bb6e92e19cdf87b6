"""Check graphs of any kind with the interpreter in a child process while the program continues.

A thread takes the buffers of a call from the GPU once they are there, and a process of low priority says what is wrong
with them, by the bound of :mod:`~cudnn_backend_py.tuning.trial.bound`. The program waits for neither; at the end it
waits for what is left, no longer than it is reported to.
"""

from __future__ import annotations

import os
import queue
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import CudnnBackendError, GraphError
from ..graph.formats import is_integer
from ..interpreter.data import make_inputs
from ..system.child import ONE_THREAD, RestartingChildProcess
from ..system.serving import AnswerWriter, serve
from ..tuning.trial.expectation import compute_expectation
from .case import Case, load_case
from .part import InterpretableCase, reduce_case_for_interpreter

__all__ = ["BackgroundCaseChecker", "interpret_and_find_wrong_outputs", "serve_case_checks"]

LIMIT_S = 60.0  # for one call
MOST_WAITING = 8  # calls whose buffers are held


class BackgroundCaseChecker:
    """Checks calls in a background thread, one after the other, with the interpreter in a child process.

    Parameters
    ----------
    report
        Called in the thread with each case that is wrong.
    within
        Makes the context of the thread's work.
    """

    def __init__(
        self, notify: Callable[[Case], object], within: Callable[[], AbstractContextManager[None]] = nullcontext
    ) -> None:
        self._tell, self._within = notify, within
        self._waiting: queue.SimpleQueue[tuple[Callable[[], Case], Callable[[float], object]] | None]
        self._waiting = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._child = RestartingChildProcess(f"{__name__}:{serve_case_checks.__name__}", _make_environment)
        self._added = self._done = 0
        self.judged = 0
        self.unjudged: dict[str, int] = {}

    @property
    def waiting_count(self) -> int:
        """The number of calls waiting to be checked."""
        return self._added - self._done

    @property
    def is_full(self) -> bool:
        """Whether the maximum number of calls is waiting."""
        return self.waiting_count >= MOST_WAITING

    def add(self, read: Callable[[], Case], spend: Callable[[float], object] = lambda _: None) -> None:
        """Queue a call to check: the background thread calls `read`, which waits for the GPU and returns the case.

        `spend` is reported the seconds of the thread, which the program's threads may have waited for.
        """
        self._added += 1
        self._waiting.put((read, spend))
        if self._thread is None:
            self._thread = threading.Thread(target=self._run_worker, name="cudnn-backend-audit", daemon=True)
            self._thread.start()

    def finish(self, patience_s: float) -> None:
        """Wait at most `patience_s` seconds for the queued calls, count those unchecked, and end the child process."""
        thread, deadline = self._thread, time.monotonic() + patience_s
        if thread is not None:
            self._waiting.put(None)
            thread.join(max(0.0, deadline - time.monotonic()))
            if self.waiting_count:
                self._count_unjudged_calls(
                    f"the program ended, and {patience_s:g} s were too short to finish", self.waiting_count
                )
        self._child.end()

    def _count_unjudged_calls(self, why: str, count: int = 1) -> None:
        self.unjudged[why] = self.unjudged.get(why, 0) + count

    def _run_worker(self) -> None:
        with tempfile.TemporaryDirectory(prefix="cudnn-backend-audit-") as folder, self._within():  # of mode 0700
            while (asked := self._waiting.get()) is not None:
                read, spend = asked
                began = time.thread_time()
                try:
                    self._judge_case(read(), Path(folder) / "case.npz")
                except Exception as error:  # whatever it is, the program goes on
                    self._count_unjudged_calls(f"{type(error).__name__}: {error}")
                spend(time.thread_time() - began)
                self._done += 1

    def _judge_case(self, case: Case, path: Path) -> None:
        path.write_bytes(case.to_bytes())
        early: dict[str, Any] = {}
        for said in self._child.run_query({"case": str(path), "seed": self._done}, LIMIT_S):
            if "why" in said:
                self._count_unjudged_calls(said["why"])
            else:
                early = said
        if self._child.ending:
            self._count_unjudged_calls(
                f"the interpreter takes longer than {LIMIT_S:g} s, or ended: {self._child.ending}"
            )
        else:
            self.judged += 1
        if early.get("wrong"):
            self._tell(replace(case, wrong=tuple(early["wrong"]), found=tuple(early["found"])))


def _make_environment() -> dict[str, str]:
    return {**os.environ, **ONE_THREAD, "CUDNN_BACKEND_AUDIT": ""}


def serve_case_checks() -> None:
    """In a child process: check the cases that the parent sends."""
    os.nice(10)
    serve(_check_requested_case)


def _check_requested_case(asked: dict[str, Any], say: AnswerWriter) -> None:
    case = load_case(asked["case"])
    lost = _find_non_finite_outputs(case)
    if lost:
        say(wrong=list(lost), found=list(lost.values()))
    try:
        found = interpret_and_find_wrong_outputs(reduce_case_for_interpreter(case, asked["seed"]))
    except CudnnBackendError as error:
        say(why=f"the interpreter cannot: {error.headline}")
        return
    say(wrong=list(found), found=list(found.values()))


def interpret_and_find_wrong_outputs(part: InterpretableCase) -> dict[str, str]:
    """Interpret part of a case, and return a text for each wrong output, by output name.

    Raises
    ------
    GraphError
        What the interpreter refuses.
    """
    expected = compute_expectation(part.graph, "uniform", make_inputs(part.graph, "uniform", 0, part.given), 0, None)
    if not expected:
        raise GraphError(
            "all results of the graph depend on random numbers, so their right values are unknown", code="audit-random"
        )
    compared = [item.compare(part.results[name]) for name, item in expected.items() if name in part.results]
    where = f" ({part.what})" if part.what else ""
    return {item.output: f"{item}{where}" for item in compared if not item.is_right}


def _find_non_finite_outputs(case: Case) -> dict[str, str]:
    """Return the outputs with infinite or NaN elements, if all inputs are finite."""
    graph = case.graph
    assert graph is not None
    if not all(np.isfinite(np.asarray(x, np.float64)).all() for x in case.given().values()):
        return {}
    kinds = {tensor.name: tensor.data_type for tensor in graph.outputs}
    found = {}
    for name, numbers in case.results().items():
        if is_integer(kinds[name]):
            continue
        bad = ~np.isfinite(numbers)
        if bad.any():
            place = ",".join(map(str, np.unravel_index(int(bad.argmax()), bad.shape)))
            found[name] = f"{name}: {int(bad.sum())} of {bad.size} elements are NaN or infinite, the first at [{place}]"
    return found
