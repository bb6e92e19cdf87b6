"""Child process programs that each break the protocol of requests and answers in one way."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cudnn_backend_py.system.serving import AnswerWriter, serve


def answer_correctly() -> None:
    def answer(request: Mapping[str, Any], say: AnswerWriter) -> None:
        say(first=request["word"])
        say(second=request["word"])

    serve(answer)


def answer_with_an_earlier_number() -> None:
    """Answer the first request as if it were an earlier one."""

    def answer(request: Mapping[str, Any], say: AnswerWriter) -> None:
        os.write(_find_answer_file_descriptor(), b'{"number": 0, "first": "of an earlier question"}\n')

    serve(answer)


def answer_with_damaged_json() -> None:
    def answer(request: Mapping[str, Any], say: AnswerWriter) -> None:
        os.write(_find_answer_file_descriptor(), request["word"].encode("latin-1") + b"\n")

    serve(answer)


def answer_with_an_endless_line() -> None:
    """Answer with an endless line."""

    def answer(request: Mapping[str, Any], say: AnswerWriter) -> None:
        while True:
            os.write(_find_answer_file_descriptor(), bytes(1 << 20))

    serve(answer)


def print_to_stdout_and_stderr() -> None:
    """Print text to stdout and stderr in addition to the answer."""

    def answer(request: Mapping[str, Any], say: AnswerWriter) -> None:
        print(request["word"], "on stdout", flush=True)
        print(request["word"], "on stderr", file=sys.stderr, flush=True)
        if request["word"] == "die":
            os.kill(os.getpid(), signal.SIGRTMIN + 3)

    serve(answer)


def raise_error() -> None:
    def answer(request: Mapping[str, Any], say: AnswerWriter) -> None:
        raise KeyError(request["word"])

    serve(answer)


def answer_request_count_in_fork() -> None:
    """Answer with a count of requests, in a fork unless the word is "here", to test that a fork leaves no state."""
    count = 0

    def answer(request: Mapping[str, Any], say: AnswerWriter) -> None:
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


def exit_at_start() -> None:
    raise SystemExit("no child today")


def _find_answer_file_descriptor() -> int:
    """Return the file descriptor for answers: the last socket."""
    return max(fd for fd in map(int, os.listdir("/proc/self/fd")) if _is_socket(fd))


def _is_socket(descriptor: int) -> bool:
    try:
        return os.readlink(f"/proc/self/fd/{descriptor}").startswith("socket:")
    except OSError:  # the closed descriptor of the directory listing
        return False


def hang_in_parent_and_fork() -> None:
    """Do not answer for ten minutes, in this process and a fork; write their process ids to the file $LINGER."""
    forked = os.fork()
    if forked:
        Path(os.environ["LINGER"]).write_text(f"{os.getpid()} {forked}\n")
    time.sleep(600)
