"""Child process side of :mod:`~cudnn_backend_py.system.child`: answers queries, with few imports."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import select
import signal
import stat
from collections.abc import Callable
from typing import IO, Any, Protocol

from ..errors import CudnnBackendError

__all__ = ["LIFELINE", "PATIENCE_S", "AnswerWriter", "let_system_kill_process_with_parent", "serve"]

LIFELINE = "CUDNN_BACKEND_LIFELINE"  # the variable with the pipe of the parent
PATIENCE_S = 5.0  # for a killed child to be gone, and of a child whose parent is gone


def let_system_kill_process_with_parent() -> None:
    """Let the system kill this child process when its parent ends, if the parent has passed a pipe."""
    named = os.environ.pop(LIFELINE, "")
    with contextlib.suppress(OSError, ValueError):  # where the system cannot, as where there are no such signals
        lifeline = int(named)
        if not stat.S_ISFIFO(os.fstat(lifeline).st_mode):
            return
        os.set_inheritable(lifeline, False)
        own = os.getpid()
        fcntl.fcntl(lifeline, fcntl.F_SETOWN, -own if os.getpgrp() == own else own)  # with what it forks
        fcntl.fcntl(lifeline, fcntl.F_SETSIG, signal.SIGKILL)
        fcntl.fcntl(lifeline, fcntl.F_SETFL, os.O_ASYNC)
        if select.select([lifeline], [], [], 0)[0]:  # it was gone before
            os.kill(own, signal.SIGKILL)


class AnswerWriter(Protocol):
    """A function that writes its keyword arguments to the parent as one line of the answer."""

    def __call__(self, **line: Any) -> None: ...


def serve(
    answer: Callable[[dict[str, Any], AnswerWriter], None],
    wants_fork: Callable[[dict[str, Any], AnswerWriter], bool] = lambda _asked, _say: False,
) -> None:
    """In a child process: answer the parent's queries until the parent closes the pipe.

    An exception is reported to the parent, which raises it. Where the parent is gone, a question that takes more than
    its time ends the process.

    Parameters
    ----------
    wants_fork
        Says of a question whether a forked process is to answer it, of whose work nothing is left here. How that one
        ends, this one does.
    """
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # what the parent ignores or blocks came along
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGALRM])
    questions, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(0), "wb")
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    with questions, contextlib.suppress(BrokenPipeError, ConnectionResetError), answers:
        for line in questions:
            question = json.loads(line)
            say = _make_answer_writer(answers, question["number"])
            forked, told = -1, False
            signal.setitimer(signal.ITIMER_REAL, question["limit_s"] + PATIENCE_S)
            try:
                if wants_fork(question["asked"], say) and (forked := os.fork()):
                    _exit_like_forked_process(forked)
                    continue
                if forked == 0:  # which has no timer of its own
                    signal.setitimer(signal.ITIMER_REAL, question["limit_s"] + PATIENCE_S)
                answer(question["asked"], say)
            except (BrokenPipeError, ConnectionResetError):  # no one listens
                return
            except Exception as error:
                more = error.render() if isinstance(error, CudnnBackendError) else ""
                say(failed=f"{type(error).__name__}: {error}", more=more)
                told = True
            else:
                say(done=True)
                told = True
            finally:
                if forked == 0:
                    os._exit(not told)
                signal.setitimer(signal.ITIMER_REAL, 0)


def _exit_like_forked_process(forked: int) -> None:
    """Wait for a forked process; if it failed, end this process with the same signal or exit code."""
    code = os.waitstatus_to_exitcode(os.waitpid(forked, 0)[1])
    if code < 0:
        os.kill(os.getpid(), -code)
    elif code:
        os._exit(code)


def _make_answer_writer(answers: IO[bytes], number: int) -> AnswerWriter:
    def write_line(**line: Any) -> None:
        answers.write(json.dumps(line | {"number": number}).encode() + b"\n")
        answers.flush()

    return write_line
