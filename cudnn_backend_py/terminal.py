"""Tables of text, the consoles that print them, and a progress bar.

All consoles are made here, so that how wide they are and what may begin a line is decided once: in tables no word is
folded, and outside a terminal no line is.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.measure import measure_renderables
from rich.segment import Segment
from rich.table import Column, Table
from rich.text import Text

from .printable import escape_workflow_commands, printable
from .system.streams import UNFOLDED, USUAL_LINES, get_stream_width, is_terminal

__all__ = ["BorderlessTextTable", "open_console", "progress_bar", "render_as_text"]


class BorderlessTextTable(Table):
    """A table of text columns without borders, folded only between words so that every word can be copied.

    Where words do not fit next to each other, a line is longer than the terminal is wide, and the terminal folds it:
    what is copied from there is still whole. A column with ``no_wrap`` is never folded: paths may have spaces.
    """

    def __init__(self, *headings: str | Column, title: str | Text | None = None) -> None:
        super().__init__(*headings, title=title, box=None, pad_edge=False, padding=(0, 2, 0, 0))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield the rendered lines of the table."""
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


class _WorkflowCommandEscapingStream:
    """A stream that changes written lines so that none is a CI workflow command."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        return self._stream.write(escape_workflow_commands(text))

    def __getattr__(self, name: str) -> object:
        if name == "rich_proxied_file":  # by which rich would come to the stream itself
            raise AttributeError(name)
        return getattr(self._stream, name)


def open_console(*, stderr: bool = False, soft_wrap: bool = True) -> Console:
    """Return a console for tables and styled text as wide as its stream; markup is not interpreted.

    With `soft_wrap` long lines are left to the terminal; what is drawn again and again in place goes without.
    """
    stream = sys.stderr if stderr else sys.stdout
    return _Console(
        file=None if stream is None else _WorkflowCommandEscapingStream(stream),  # type: ignore[arg-type]  # all that rich uses of it
        stderr=stderr,
        width=get_stream_width(stream),
        height=USUAL_LINES,
        highlight=False,
        markup=False,
        soft_wrap=soft_wrap,
    )


def render_as_text(*rendered: RenderableType, width: int = UNFOLDED) -> str:
    """Return tables and styled text as plain text, as a console would print them."""
    console = Console(
        width=width, height=USUAL_LINES, color_system=None, force_jupyter=False, highlight=False, soft_wrap=True
    )
    with console.capture() as captured:
        for one in rendered:
            console.print(one, markup=False)
    return escape_workflow_commands(captured.get())


Step = Callable[[float, str], None]


@contextmanager
def progress_bar(
    total: float, doing: str = "", *, shown: bool = True, patience_s: float = 0.0, still: bool = False
) -> Iterator[tuple[Step, Callable[[], None]]]:
    """Show progress (done, total and elapsed time) on standard error; show nothing if that is not a terminal.

    Yield two functions: one shows how much is done and what is being done, the other takes that away for a text.

    It is on standard error, and leaves no trace there.

    Parameters
    ----------
    total
        How much there is to do: a count, if it is an integer, which is shown.
    shown
        Whether to show anything.
    patience_s
        Seconds in which nothing is shown: what is quick needs no bar.
    still
        Draw it only when its function is called, not ten times a second from a thread: for progress of timed work.
    """

    def do_nothing(done: float = 0.0, text: str = "") -> None: ...

    if not (shown and is_terminal(sys.stderr)):
        yield do_nothing, do_nothing
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    console = open_console(stderr=True, soft_wrap=False)
    if not console.is_interactive:
        yield do_nothing, do_nothing
        return
    began = time.monotonic()
    count = (MofNCompleteColumn(),) if isinstance(total, int) else ()
    columns = BarColumn(), *count, TimeElapsedColumn(), TextColumn("{task.description}", markup=False)
    bar = Progress(*columns, console=console, transient=True, auto_refresh=not still)
    task = bar.add_task(doing, total=total)

    def step(done: float, text: str) -> None:
        bar.update(task, completed=done, description=printable(text), refresh=still and bar.live.is_started)
        if not bar.live.is_started and time.monotonic() - began >= patience_s:
            bar.start()

    try:
        if not patience_s:
            bar.start()
        yield step, bar.stop
    finally:
        bar.stop()
