"""Run commands in this process with a pipe or a terminal of given width as output."""

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

__all__ = ["CommandOutput", "run_command_at_width"]

_ESCAPE_SEQUENCE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class CommandOutput:
    """Exit code and output of a command, without colours and cursor movement."""

    def __init__(self, code: int, out: str, err: str) -> None:
        self.code = code
        self.out, self.err = (_ESCAPE_SEQUENCE.sub("", text).replace("\r\n", "\n") for text in (out, err))


def run_command_at_width(call: Callable[[], object], width: int | None, *, terminal: bool) -> CommandOutput:
    """Call a command's function and return its exit code and output.

    Parameters
    ----------
    width
        Columns of the terminal, or for a pipe the value of ``COLUMNS``; None unsets the variable.
    """
    columns = {} if terminal or width is None else {"COLUMNS": str(width)}
    kept = {name: text for name, text in os.environ.items() if name not in ("COLUMNS", "LINES", "NO_COLOR")}
    opened = _open_output_terminal(width or 0) if terminal else _open_output_file()
    other = _open_output_terminal(width or 0) if terminal else _open_output_file()
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
        return CommandOutput(code, read_out(), read_err())


@contextlib.contextmanager
def _open_output_file() -> Iterator[tuple[TextIO, Callable[[], str]]]:
    with tempfile.TemporaryFile("w+", encoding="utf-8") as stream:

        def read_output() -> str:
            stream.seek(0)
            return stream.read()

        yield stream, read_output  # type: ignore[misc]


@contextlib.contextmanager
def _open_output_terminal(width: int) -> Iterator[tuple[TextIO, Callable[[], str]]]:
    ours, theirs = os.openpty()
    termios.tcsetwinsize(theirs, (25, width))
    pieces: list[bytes] = []

    def read_terminal() -> None:
        with contextlib.suppress(OSError):  # end of the terminal
            while piece := os.read(ours, 1 << 16):
                pieces.append(piece)

    thread = threading.Thread(target=read_terminal, daemon=True)
    thread.start()
    stream = os.fdopen(theirs, "w", encoding="utf-8")

    def read_output() -> str:
        stream.close()
        thread.join(60)
        return b"".join(pieces).decode("utf-8", "replace")

    try:
        yield stream, read_output
    finally:
        os.close(ours)
