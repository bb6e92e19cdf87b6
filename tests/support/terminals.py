"""Commands run in this process, with a pipe or a terminal of any width."""

from __future__ import annotations

import contextlib
import os
import re
import sys
import tempfile
import termios
import threading
from collections.abc import Callable, Iterator
from typing import TextIO
from unittest import mock

__all__ = ["Ran", "run_at"]

_ESCAPE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class Ran:
    """Exit code and output of a command, without colours and cursor movement."""

    def __init__(self, code: int, out: str, err: str) -> None:
        self.code = code
        self.out, self.err = (_ESCAPE.sub("", text).replace("\r\n", "\n") for text in (out, err))


def run_at(call: Callable[[], object], width: int | None, *, terminal: bool) -> Ran:
    """Call a function that returns or raises SystemExit.

    Parameters
    ----------
    width
        Columns: of the terminal, or for a pipe the value of ``COLUMNS``; None for no such variable.
    """
    columns = {} if terminal or width is None else {"COLUMNS": str(width)}
    kept = {name: text for name, text in os.environ.items() if name not in ("COLUMNS", "LINES", "NO_COLOR")}
    opened = _terminal(width or 0) if terminal else _file()
    other = _terminal(width or 0) if terminal else _file()
    variables = mock.patch.dict(os.environ, kept | {"TERM": "xterm-256color"} | columns, clear=True)
    with variables, opened as (out, read_out), other as (err, read_err):
        code = 0
        with mock.patch.object(sys, "stdout", out), mock.patch.object(sys, "stderr", err):
            try:
                call()
            except SystemExit as done:
                code = done.code if isinstance(done.code, int) else 0 if done.code is None else 1
        for stream in (out, err):
            stream.flush()
        return Ran(code, read_out(), read_err())


@contextlib.contextmanager
def _file() -> Iterator[tuple[TextIO, Callable[[], str]]]:
    with tempfile.TemporaryFile("w+", encoding="utf-8") as stream:

        def read() -> str:
            stream.seek(0)
            return stream.read()

        yield stream, read  # type: ignore[misc]


@contextlib.contextmanager
def _terminal(width: int) -> Iterator[tuple[TextIO, Callable[[], str]]]:
    ours, theirs = os.openpty()
    termios.tcsetwinsize(theirs, (25, width))
    pieces: list[bytes] = []

    def collect() -> None:
        with contextlib.suppress(OSError):  # its end
            while piece := os.read(ours, 1 << 16):
                pieces.append(piece)

    thread = threading.Thread(target=collect, daemon=True)
    thread.start()
    stream = os.fdopen(theirs, "w", encoding="utf-8")

    def read() -> str:
        stream.close()
        thread.join(60)
        return b"".join(pieces).decode("utf-8", "replace")

    try:
        yield stream, read
    finally:
        os.close(ours)
