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
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, NoReturn, TypeVar

from ..system.child import run_undisturbed
from ..system.renamed import keep_names

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
    owner = os.getpid()
    reading, said = -1, b""
    started: list[int] = []  # known even where a handler raises as soon as the fork is done
    try:
        with _block_signals() as before:  # an exception of a handler would lose the number of the process
            reading, writing = os.pipe()
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)  # of native threads, as NumPy's: they hold nothing
                try:
                    # Native threads take signals too, and what their handlers raise in Python's fork would be lost.
                    run_undisturbed(lambda: started.append(os.fork() or _answer(function, writing, before, patience_s)))
                except OSError:  # no more processes or memory
                    return otherwise()
                finally:
                    os.close(writing)
        said = _read(reading, patience_s)
    finally:
        with _block_signals():
            if reading >= 0:
                os.close(reading)
            if started and os.getpid() == owner:  # and not in a process that was forked from here
                _end(started[0], killed=not said)
    try:
        result, error = pickle.loads(said)
    except Exception:  # it died before it had said all
        return otherwise()
    if error is not None:
        raise error
    answer: Result = result
    return answer


@contextlib.contextmanager
def _block_signals() -> Iterator[set[int]]:
    """Let signals wait, and yield those that waited before."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        yield {int(number) for number in before}
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _end(child: int, *, killed: bool) -> None:
    with contextlib.suppress(ProcessLookupError, ChildProcessError):  # who ignores SIGCHLD has nothing to wait for
        if killed:
            os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


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


def _read(reading: int, patience_s: float) -> bytes:
    """Return all that comes until the other end is closed; nothing where that takes too long."""
    deadline = time.monotonic() + patience_s
    pieces: list[bytes] = []
    waiting = select.poll()
    waiting.register(reading, select.POLLIN)
    while waiting.poll(max(0.0, deadline - time.monotonic()) * 1000):
        piece = os.read(reading, 1 << 16)
        if not piece:
            return b"".join(pieces)
        pieces.append(piece)
    return b""


if not TYPE_CHECKING:
    __getattr__ = keep_names(__name__, apart=run_in_fork)
