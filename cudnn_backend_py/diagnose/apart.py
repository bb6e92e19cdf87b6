"""``apart``: call a function in a forked process, so that what kills it does not kill the caller."""

from __future__ import annotations

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
from typing import TypeVar

__all__ = ["apart"]

_PATIENCE_S = 10.0

Result = TypeVar("Result")


def apart(function: Callable[[], Result], otherwise: Callable[[], Result]) -> Result:
    """Return what `function` returns in a forked process, or what `otherwise` returns here if that process dies.

    Beside other threads, one of which may hold a lock that a fork would never see given back, it is called here.

    Parameters
    ----------
    function
        Its result, or the exception it raises, is pickled. It must not use a CUDA context of this process.
    otherwise
        What is called where the fork was killed by a signal or gave no answer in ten seconds.

    Notes
    -----
    A fork of a process that has loaded cuDNN takes some 10 ms.
    """
    if threading.active_count() > 1:
        return function()
    reading, writing = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of native threads, such as NumPy's: they hold nothing
        child = os.fork()
    if child == 0:
        _answer(function, writing)
    os.close(writing)
    try:
        said = _read(reading)
    finally:
        os.close(reading)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    if not said:
        return otherwise()
    result, error = pickle.loads(said)
    if error is not None:
        raise error
    answer: Result = result
    return answer


def _answer(function: Callable[[], object], writing: int) -> None:
    """Write the pickled result or exception, and end the process without any clean-up."""
    try:
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


def _read(reading: int) -> bytes:
    """Return all that comes until the other end is closed; nothing where that takes too long."""
    deadline = time.monotonic() + _PATIENCE_S
    pieces: list[bytes] = []
    while select.select([reading], [], [], max(0.0, deadline - time.monotonic()))[0]:
        piece = os.read(reading, 1 << 16)
        if not piece:
            return b"".join(pieces)
        pieces.append(piece)
    return b""
