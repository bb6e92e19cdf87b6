"""``run_in_fork``: call a function in a forked process, so that what kills it does not kill the caller."""

from __future__ import annotations

import contextlib
import faulthandler
import os
import pickle
import resource
import select
import signal
import threading
import time
import warnings
from collections.abc import Callable
from io import FileIO
from typing import NoReturn, TypeVar

from ..system.child import run_undisturbed

__all__ = ["run_in_fork"]

_PATIENCE_S = 10.0

Result = TypeVar("Result")


def run_in_fork(
    function: Callable[[], Result], otherwise: Callable[[], Result], *, patience_s: float = _PATIENCE_S
) -> Result:
    """Return what `function` returns in a forked process, or what `otherwise` returns here if that process dies.

    Beside other threads, one of which may hold a lock that a fork would never see given back, it is called here.

    Parameters
    ----------
    function
        Its result, or the exception it raises, is pickled. It must not use a CUDA context of this process.
    otherwise
        What is called where there was no fork, or it was killed by a signal or gave no answer in time.
    patience_s
        Seconds that the answer may take.

    Notes
    -----
    A fork of a process that has loaded cuDNN takes some 10 ms.
    """
    if threading.active_count() > 1:
        return function()
    fork = _Fork(lambda writing, before: _answer(function, writing, before, patience_s))
    try:
        try:
            run_undisturbed(fork.begin)
            fork.listen(patience_s)
        finally:
            fork.end()
    except BaseException:
        fork.end()  # again: the end itself may be what a handler broke off
        raise
    try:
        result, error = pickle.loads(fork.said)
    except Exception:  # no fork, or it died before it had said all
        return otherwise()
    if error is not None:
        raise error
    answer: Result = result
    return answer


class _Fork:
    """A forked process, the pipe it answers through, and what it said; nothing where there was no fork."""

    def __init__(self, work: Callable[[int, set[int]], NoReturn]) -> None:
        self.said = b""
        self._reading: FileIO | None = None
        self._work = work
        self._owner, self._child = os.getpid(), 0

    def begin(self) -> None:
        """Fork. In a thread of its own: a handler's exception would lose the number of the process, or the pipe."""
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

    def listen(self, patience_s: float) -> None:
        """Read all that comes until the other end is closed; nothing is said where that takes too long."""
        if self._reading is None:
            return
        deadline = time.monotonic() + patience_s
        pieces: list[bytes] = []
        waiting = select.poll()
        waiting.register(self._reading, select.POLLIN)
        while waiting.poll(max(0.0, deadline - time.monotonic()) * 1000):
            if not (piece := self._reading.read(1 << 16)):
                self.said = b"".join(pieces)
                return
            pieces.append(piece)

    def end(self) -> None:
        """End the process and close the pipe; may be repeated."""
        if self._child and os.getpid() == self._owner:  # and not in a process that was forked from here
            with contextlib.suppress(ProcessLookupError, ChildProcessError):  # who ignores SIGCHLD has none to wait for
                if not self.said:
                    os.kill(self._child, signal.SIGKILL)
                os.waitpid(self._child, 0)
            self._child = 0
        if self._reading is not None:
            self._reading.close()


def _answer(function: Callable[[], object], writing: int, blocked: set[int], patience_s: float) -> NoReturn:
    """Write the pickled result or exception, and end the process without any clean-up."""
    try:
        for number in signal.valid_signals():
            if callable(signal.getsignal(number)):  # the caller's handlers are not for this process
                signal.signal(number, signal.SIG_DFL)
        signal.alarm(round(patience_s) + 1)  # if the caller is gone by then
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked - {signal.SIGALRM})
        faulthandler.disable()
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        try:
            said = pickle.dumps((function(), None))
        except Exception as error:
            said = pickle.dumps((None, error))
        with os.fdopen(writing, "wb") as pipe:
            pipe.write(said)
    finally:
        os._exit(0)
