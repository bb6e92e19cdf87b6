"""A progress bar for terminals: what is done, of how much, for how long; where standard error is none, nothing."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from ..printable import printable

__all__ = ["progress_bar"]

Step = Callable[[float, str], None]


@contextmanager
def progress_bar(
    total: float, doing: str = "", *, shown: bool = True, patience_s: float = 0.0, still: bool = False
) -> Iterator[tuple[Step, Callable[[], None]]]:
    """Yield two functions: one shows how much is done and what is being done, the other takes that away for a text.

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
        Draw it when told, and not from a thread ten times a second: for what is timed meanwhile.
    """

    def nothing(done: float = 0.0, text: str = "") -> None: ...

    if not shown:
        yield nothing, nothing
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from .table import open_console

    console = open_console(stderr=True, soft_wrap=False)
    if not console.is_interactive:
        yield nothing, nothing
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
