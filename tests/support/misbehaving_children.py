"""Child processes that do not answer correctly; each function is one."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cudnn_backend_py.system.child import Say, serve


def honest() -> None:
    def answer(request: Mapping[str, Any], say: Say) -> None:
        say(first=request["word"])
        say(second=request["word"])

    serve(answer)


def late() -> None:
    """Answer the first request as if there had been one before."""

    def answer(request: Mapping[str, Any], say: Say) -> None:
        os.write(_answers(), b'{"number": 0, "first": "of an earlier question"}\n')

    serve(answer)


def damaged() -> None:
    def answer(request: Mapping[str, Any], say: Say) -> None:
        os.write(_answers(), request["word"].encode("latin-1") + b"\n")

    serve(answer)


def endless() -> None:
    """Write a line without end."""

    def answer(request: Mapping[str, Any], say: Say) -> None:
        while True:
            os.write(_answers(), bytes(1 << 20))

    serve(answer)


def chatty() -> None:
    """Write unrequested text on stdout and stderr."""

    def answer(request: Mapping[str, Any], say: Say) -> None:
        print(request["word"], "on stdout", flush=True)
        print(request["word"], "on stderr", file=sys.stderr, flush=True)
        if request["word"] == "die":
            os.kill(os.getpid(), signal.SIGRTMIN + 3)

    serve(answer)


def raising() -> None:
    def answer(request: Mapping[str, Any], say: Say) -> None:
        raise KeyError(request["word"])

    serve(answer)


def forking() -> None:
    """Count the requests that are answered here; a forked process answers those that are not for this one."""
    count = 0

    def answer(request: Mapping[str, Any], say: Say) -> None:
        nonlocal count
        count += 1
        say(count=count)
        if request["word"] == "raise":
            raise KeyError("in a fork")
        if request["word"] == "exit":
            raise SystemExit(3)
        if request["word"] == "die":
            os.kill(os.getpid(), signal.SIGRTMIN + 3)

    serve(answer, lambda request, _say: request["word"] != "here")


def dead() -> None:
    raise SystemExit("no child today")


def _answers() -> int:
    """Return the descriptor for answers: the last socket."""
    return max(fd for fd in map(int, os.listdir("/proc/self/fd")) if _is_socket(fd))


def _is_socket(descriptor: int) -> bool:
    try:
        return os.readlink(f"/proc/self/fd/{descriptor}").startswith("socket:")
    except OSError:  # the descriptor of the directory listing itself
        return False


def linger() -> None:
    """Answer nothing for ten minutes, nor does a forked process; their process ids are in the file named by $LINGER."""
    forked = os.fork()
    if forked:
        Path(os.environ["LINGER"]).write_text(f"{os.getpid()} {forked}\n")
    time.sleep(600)
