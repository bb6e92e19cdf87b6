"""Child processes with wrong answers, one function each."""

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
    def answer(asked: Mapping[str, Any], say: Say) -> None:
        say(first=asked["word"])
        say(second=asked["word"])

    serve(answer)


def late() -> None:
    """Answer the first query with a wrong number."""

    def answer(asked: Mapping[str, Any], say: Say) -> None:
        os.write(_answers(), b'{"number": 0, "first": "of an earlier question"}\n')

    serve(answer)


def damaged() -> None:
    def answer(asked: Mapping[str, Any], say: Say) -> None:
        os.write(_answers(), asked["word"].encode("latin-1") + b"\n")

    serve(answer)


def endless() -> None:
    """Write a line without end."""

    def answer(asked: Mapping[str, Any], say: Say) -> None:
        while True:
            os.write(_answers(), bytes(1 << 20))

    serve(answer)


def chatty() -> None:
    """Write unrequested output on stdout and stderr."""

    def answer(asked: Mapping[str, Any], say: Say) -> None:
        print(asked["word"], "on stdout", flush=True)
        print(asked["word"], "on stderr", file=sys.stderr, flush=True)
        if asked["word"] == "die":
            os.kill(os.getpid(), signal.SIGRTMIN + 3)

    serve(answer)


def raising() -> None:
    def answer(asked: Mapping[str, Any], say: Say) -> None:
        raise KeyError(asked["word"])

    serve(answer)


def forking() -> None:
    """Answer by a forked process where required, and count the queries answered here."""
    count = 0

    def answer(asked: Mapping[str, Any], say: Say) -> None:
        nonlocal count
        count += 1
        say(count=count)
        if asked["word"] == "raise":
            raise KeyError("in a fork")
        if asked["word"] == "exit":
            raise SystemExit(3)
        if asked["word"] == "die":
            os.kill(os.getpid(), signal.SIGRTMIN + 3)

    serve(answer, lambda asked, _say: asked["word"] != "here")


def dead() -> None:
    raise SystemExit("no child today")


def _answers() -> int:
    """Return the descriptor for answers: the last socket."""
    return max(fd for fd in map(int, os.listdir("/proc/self/fd")) if _is_socket(fd))


def _is_socket(descriptor: int) -> bool:
    try:
        return os.readlink(f"/proc/self/fd/{descriptor}").startswith("socket:")
    except OSError:  # that of the list itself
        return False


def linger() -> None:
    """Answer nothing for ten minutes, also in a forked process; their ids are in the file $LINGER."""
    forked = os.fork()
    if forked:
        Path(os.environ["LINGER"]).write_text(f"{os.getpid()} {forked}\n")
    time.sleep(600)
