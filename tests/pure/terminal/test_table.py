"""Tables of text: what is copied from them is whole, at any width."""

from __future__ import annotations

import subprocess
import sys

import pytest
from rich.console import Console
from rich.table import Column

from cudnn_backend_py.terminal.table import WordTable

PATH = "/a folder/with blanks/9.19.0.56-cu12"
DIGEST = "0123456789abcdef" * 4
PROSE = "NVIDIA GH200 Grace Hopper (96GB HBM3, 480GB LPDDR5X)"


@pytest.mark.parametrize("width", [1, 40, 80, 400])
def test_words_and_paths_are_whole_at_any_width(width: int) -> None:
    table = WordTable("hash", "words", Column("path", no_wrap=True))
    table.add_row(DIGEST, PROSE, PATH)
    console = Console(width=width, color_system=None)
    with console.capture() as captured:
        console.print(table, soft_wrap=True)
    printed = captured.get()
    assert DIGEST in printed
    assert PATH in printed
    assert set(PROSE.split()) <= set(printed.split())
    assert all(line == line.rstrip() for line in printed.splitlines())


def test_outside_a_terminal_no_line_is_folded() -> None:
    program = (
        "from cudnn_backend_py.terminal.table import WordTable, open_console\n"
        f"table = WordTable('a', 'b')\ntable.add_row({PROSE * 9!r}, {PATH!r})\nopen_console().print(table)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, env={})
    assert done.stdout.splitlines()[1:] == [f"{PROSE * 9}  {PATH}"]
