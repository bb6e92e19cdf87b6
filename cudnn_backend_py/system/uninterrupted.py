"""Call a function in a thread that no Python signal handler interrupts."""

from __future__ import annotations

import _thread
import os
from collections.abc import Callable
from typing import TypeVar

from ..errors import UsageError

__all__ = ["make_child_not_usable_error", "run_uninterrupted"]

_ALIVE_S = 1.0  # between two looks whether this is another process

Result = TypeVar("Result")


def run_uninterrupted(function: Callable[[], Result]) -> Result:
    """Call a function in another thread, where no Python signal handler can interrupt it.

    What a handler raises here meanwhile is raised when the function is done, or before it begins. One of ``threading``
    is left half-started where its start is interrupted, and counted for ever.
    """
    results: list[Result] = []
    errors: list[BaseException] = []
    claim, done = _thread.allocate_lock(), _thread.allocate_lock()
    done.acquire()

    def run_function() -> None:
        try:
            if claim.acquire(False):
                results.append(function())
        except BaseException as error:
            errors.append(error)
        finally:
            done.release()

    owner = os.getpid()

    def wait_for_thread() -> None:
        while not (results or errors or done.acquire(timeout=_ALIVE_S)):
            if os.getpid() != owner:  # forked by a handler: the thread stayed with the parent
                raise make_child_not_usable_error()

    try:
        try:
            _thread.start_new_thread(run_function, ())
        except RuntimeError:  # the interpreter ends and starts no thread
            return function()
        wait_for_thread()
    except BaseException:
        if not claim.acquire(False):  # it has begun: who called must find it done
            wait_for_thread()
        raise
    if errors:
        raise errors.pop()
    return results.pop()


def make_child_not_usable_error() -> UsageError:
    """Return the exception for a child process that cannot be queried any more, or not by this process."""
    return UsageError(
        "the child process cannot be queried: a query was interrupted, or this process was forked meanwhile",
        code="child-not-usable",
        fix="repeat the call, which starts a new child process",
    )
