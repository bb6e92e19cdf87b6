"""Tables of text, and the consoles that print them: no word is folded, and outside a terminal no line is."""

from __future__ import annotations

import os
import sys

from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import measure_renderables
from rich.segment import Segment
from rich.table import Column, Table
from rich.text import Text

__all__ = ["UNFOLDED", "WordTable", "open_console"]

UNFOLDED = 1 << 20  # columns: wider than any line


class WordTable(Table):
    """Columns of text without lines around them. They are folded between words alone, so that every word can be copied.

    Where the words do not fit beside each other, a line is longer than the terminal is wide, and the terminal folds it:
    what is copied from there is still whole. A column with ``no_wrap`` is never folded: paths may have spaces.
    """

    def __init__(self, *headings: str | Column, title: str | Text | None = None) -> None:
        super().__init__(*headings, title=title, box=None, pad_edge=False, padding=(0, 2, 0, 0))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield the lines."""
        free = options.update(max_width=UNFOLDED)
        for column in self.columns:
            needed = measure_renderables(console, free, [column.header, *column.cells])
            column.no_wrap = column.no_wrap or needed.minimum == needed.maximum
            column.min_width = needed.maximum if column.no_wrap else needed.minimum
        width = sum((column.min_width or 0) + 2 for column in self.columns)
        wide = options.update(max_width=max(options.max_width, width))
        for line in Segment.split_lines(super().__rich_console__(console, wide)):  # type: ignore[arg-type]
            while line and not line[-1].text.strip():
                line.pop()
            if line:  # blanks at its end would be a line of their own in a narrow terminal
                line[-1] = Segment(line[-1].text.rstrip(), line[-1].style)
            yield from (*line, Segment.line())


class _Console(Console):
    def on_broken_pipe(self) -> None:
        raise BrokenPipeError  # rich would exit with code 1, which is an answer of commands


def open_console(*, stderr: bool = False) -> Console:
    """Return what prints tables and styled text, none of which is looked at for markup.

    As wide as the terminal; where there is none, as ``COLUMNS`` says, or else as wide as what is printed.
    """
    stream = sys.stderr if stderr else sys.stdout
    fits = "COLUMNS" in os.environ or (stream is not None and stream.isatty())
    return _Console(stderr=stderr, width=None if fits else UNFOLDED, highlight=False, markup=False, soft_wrap=True)
