"""Text tables keep cells complete at any width, so that they can be copied."""

from __future__ import annotations

import io
import os
import pty
import re
import subprocess
import sys
import termios

import pytest
from rich.console import Console
from rich.table import Column
from rich.text import Text

from cudnn_backend_py.system.streams import UNFOLDED, get_stream_width, prints_plain_text
from cudnn_backend_py.terminal import BorderlessTextTable, open_console, render_as_text

PATH = "/a folder/with blanks/9.19.0.56-cu12"
DIGEST = "0123456789abcdef" * 4
PROSE = "NVIDIA GH200 Grace Hopper (96GB HBM3, 480GB LPDDR5X)"


@pytest.mark.parametrize("width", [1, 40, 80, 400])
def test_words_and_paths_in_tables_are_never_split(width: int) -> None:
    table = BorderlessTextTable("hash", "words", Column("path", no_wrap=True))
    table.add_row(DIGEST, PROSE, PATH)
    console = Console(width=width, color_system=None)
    with console.capture() as captured:
        console.print(table, soft_wrap=True)
    printed = captured.get()
    assert DIGEST in printed
    assert PATH in printed
    assert set(PROSE.split()) <= set(printed.split())
    assert all(line == line.rstrip() for line in printed.splitlines())


def test_tables_outside_a_terminal_are_not_folded() -> None:
    program = (
        "from cudnn_backend_py.terminal import BorderlessTextTable, open_console\n"
        f"table = BorderlessTextTable('a', 'b')\ntable.add_row({PROSE * 9!r}, {PATH!r})\nopen_console().print(table)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, env={})
    assert done.stdout.splitlines()[1:] == [f"{PROSE * 9}  {PATH}"]


@pytest.mark.parametrize(
    ("said", "columns"),
    [
        *((text, UNFOLDED) for text in ("", "0", "000", "-5", "abc", "²", "٣", "1e3", "80.0", "\n", "9" * 5000)),
        *(("1", 20), ("20", 20), ("80", 80), (" 90 ", 90), ("500", 500), ("1048577", UNFOLDED)),
    ],
)
def test_invalid_columns_variable_is_ignored(said: str, columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", said)
    monkeypatch.setenv("LINES", said)
    written = io.StringIO()
    monkeypatch.setattr(sys, "stdout", written)
    assert get_stream_width(written) == columns
    open_console().print(Text("said"))
    assert written.getvalue() == "said\n"
    assert render_as_text(Text("said")) == "said\n"


@pytest.mark.parametrize(("given", "columns"), [(0, 80), (1, 20), (33, 33), (500, 500)])
def test_width_of_the_terminal_is_used(given: int, columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (25, given))
    with os.fdopen(theirs, "w") as stream:
        assert get_stream_width(stream) == columns
    os.close(ours)


FOREIGN = "word " * 9 + "::error::x ##[error]y " + "word " * 9 + "::set-output name=z::"


@pytest.mark.parametrize("colours", ["0", "1"])
def test_folded_tables_contain_no_ci_command(colours: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    if colours == "1":
        monkeypatch.setenv("FORCE_COLOR", "1")
        monkeypatch.delenv("NO_COLOR", raising=False)
    for width in range(1, 130):
        monkeypatch.setenv("COLUMNS", str(width))
        written = io.StringIO()
        monkeypatch.setattr(sys, "stdout", written)
        table = BorderlessTextTable("a", "::error::", title=Text(FOREIGN))
        table.add_row("::error::first", Text(FOREIGN, "red"))
        open_console().print(table)
        open_console(soft_wrap=False).print(Text(FOREIGN, "bold"), Text("::error::", "red"), justify="center")
        for text in (written.getvalue(), render_as_text(table, width=width)):
            for line in re.sub(r"\x1b\[[\d;]*m", "", text).splitlines():
                assert not line.lstrip().startswith("::"), (width, line)
                assert "##[" not in line


@pytest.mark.parametrize("variable", ["", "FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE", "NO_COLOR"])
@pytest.mark.parametrize("value", ["", "0", "1"])
def test_a_plain_stream_is_no_terminal_for_rich(variable: str, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if variable:
        monkeypatch.setenv(variable, value)
    written = io.StringIO()
    monkeypatch.setattr(sys, "stdout", written)
    if prints_plain_text(written):
        console = open_console()
        assert not console.is_terminal
        console.print(Text("text", "bold green"))
        assert written.getvalue() == "text\n"
    else:
        assert variable in ("FORCE_COLOR", "TTY_COMPATIBLE")
