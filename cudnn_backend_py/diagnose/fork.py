"""``run_in_fork``: call a function in a forked process, so that a crash does not end the caller."""

from __future__ import annotations

import contextlib
import faulthandler
import os
import pickle
import resource
import select
import signal
import struct
import threading
import time
import warnings
from collections.abc import Callable
from io import FileIO
from typing import NoReturn, TypeVar

from ..graph.guard import report_error_line
from ..system.uninterrupted import run_uninterrupted

__all__ = ["TIMEOUT_REMARK", "run_in_fork"]

#: How a line of a verdict begins that reports what could not be checked in time: the cause may be a less certain one.
TIMEOUT_REMARK = "time ran out"

_CPU_LIMIT_S = 20  # that a forked process may use, less what it forks itself
_WALL_SECONDS_PER_CPU_SECOND = (
    30  # seconds of the clock for each of the processor: other programs may use it, or cuDNN wait for ever
)

_LENGTH_PREFIX = struct.Struct("q")  # of what follows

Result = TypeVar("Result")


def run_in_fork(
    function: Callable[[], Result],
    otherwise: Callable[[], Result],
    *,
    what: str = "a variation of the graph",
    late: Callable[[str], object] = report_error_line,
) -> Result:
    """Run `function` in a forked process and return its result; if it crashes, return `otherwise()` instead.

    The time is that of the processor, so that a busy machine gives the same answers; the clock ends only a process
    that waits. Either is reported, so that a process that took too long is not mistaken for an answer.

    Next to other threads, one of which may hold a lock that a fork would never see given back, it is called here.

    Parameters
    ----------
    function
        Its result, or the exception it raises, is pickled. It must not use a CUDA context of this process.
    otherwise
        What is called where there was no fork, or it was killed by a signal or gave no answer in time.
    what
        What takes too long, for the line that reports it.
    late
        Called with that line, which begins with :data:`TIMEOUT_REMARK`.

    Notes
    -----
    A fork of a process that has loaded cuDNN takes some 10 ms.
    """
    if threading.active_count() > 1:
        return function()
    fork = _ForkedProcess(lambda writing, before: _write_result(function, writing, before))
    try:
        try:
            run_uninterrupted(fork.start_process)
            fork.read_result(_CPU_LIMIT_S * _WALL_SECONDS_PER_CPU_SECOND)
        finally:
            fork.end_process()
    except BaseException:
        fork.end_process()  # again: the end itself may be what a handler broke off
        raise
    if not fork.said:
        if fork.late:
            late(f"{TIMEOUT_REMARK}: {what} did not answer in {_CPU_LIMIT_S * _WALL_SECONDS_PER_CPU_SECOND} s")
        elif fork.ending == signal.SIGXCPU:
            late(f"{TIMEOUT_REMARK}: {what} took more than {_CPU_LIMIT_S} s of the processor")
        return otherwise()
    result, error = pickle.loads(fork.said)
    if error is not None:
        raise error
    answer: Result = result
    return answer


class _ForkedProcess:
    """A forked process, its result pipe, and the received bytes.

    That is nothing where there was no fork, or it died before it had said all.

    Attributes
    ----------
    late
        Whether the answer did not come in time.
    ending
        The signal that ended the process; 0 if none did.
    """

    def __init__(self, work: Callable[[int, set[int]], NoReturn]) -> None:
        self.said = b""
        self.late = False
        self.ending = 0
        self._reading: FileIO | None = None
        self._work = work
        self._owner, self._child = os.getpid(), 0

    def start_process(self) -> None:
        """Fork in a separate thread, where a signal handler's exception cannot lose the process id or the pipe."""
        before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())  # until the child has no handlers
        try:
            reading, writing = os.pipe()
            self._reading = FileIO(reading, "r")
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)  # of native threads, as NumPy's: they hold nothing
                try:
                    self._child = os.fork() or self._work(writing, {int(number) for number in before})
                finally:
                    os.close(writing)
        except OSError:  # no more processes, memory or files
            return
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def read_result(self, patience_s: float) -> None:
        """Read the result until the pipe is closed; discard it after the time limit."""
        if self._reading is None:
            return
        deadline = time.monotonic() + patience_s
        pieces: list[bytes] = []
        waiting = select.poll()
        waiting.register(self._reading, select.POLLIN)
        while waiting.poll(max(0.0, deadline - time.monotonic()) * 1000):
            if not (piece := self._reading.read(1 << 16)):
                said = b"".join(pieces)
                if said[: _LENGTH_PREFIX.size] == _LENGTH_PREFIX.pack(max(0, len(said) - _LENGTH_PREFIX.size)):
                    self.said = said[_LENGTH_PREFIX.size :]
                return
            pieces.append(piece)
        self.late = True

    def end_process(self) -> None:
        """End the process and close the pipe; harmless when repeated."""
        if self._child and os.getpid() == self._owner:  # and not in a process that was forked from here
            with contextlib.suppress(ProcessLookupError, ChildProcessError):  # who ignores SIGCHLD has none to wait for
                if not self.said:
                    os.kill(self._child, signal.SIGKILL)
                status = os.waitpid(self._child, 0)[1]
                self.ending = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
            self._child = 0
        if self._reading is not None:
            self._reading.close()


def _write_result(function: Callable[[], object], writing: int, blocked: set[int]) -> NoReturn:
    """Write the pickled result or exception, and end the process without clean-up."""
    try:
        for number in signal.valid_signals():
            if callable(signal.getsignal(number)):  # the caller's handlers are not for this process
                signal.signal(number, signal.SIG_DFL)
        signal.alarm(_CPU_LIMIT_S * _WALL_SECONDS_PER_CPU_SECOND + 1)  # if the caller is gone by then
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked - {signal.SIGALRM})
        faulthandler.disable()
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        _limit_cpu_time()
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        try:
            said = pickle.dumps((function(), None))
        except Exception as error:
            said = pickle.dumps((None, error))
        with os.fdopen(writing, "wb") as pipe:
            pipe.write(_LENGTH_PREFIX.pack(len(said)) + said)
    finally:
        os._exit(0)


def _limit_cpu_time() -> None:
    """Limit this process's CPU time (SIGXCPU ends it); a lower limit set by the user remains."""
    most = resource.getrlimit(resource.RLIMIT_CPU)[1]
    signal.signal(signal.SIGXCPU, signal.SIG_DFL)
    wanted = _CPU_LIMIT_S if most == resource.RLIM_INFINITY else min(_CPU_LIMIT_S, most)
    resource.setrlimit(resource.RLIMIT_CPU, (wanted, most))
