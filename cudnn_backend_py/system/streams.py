"""Properties of terminals, and tables printed without rich, which takes long to import."""

from __future__ import annotations

import os
from collections.abc import Container, Iterable
from typing import TextIO

__all__ = ["UNFOLDED", "USUAL_LINES", "format_markdown_table", "get_stream_width", "is_terminal", "prints_plain_text"]

UNFOLDED = 1 << 20  # columns: wider than any line
USUAL_LINES = 25  # of a terminal that does not know
_USUAL_COLUMNS = 80
_NARROWEST = 20  # columns: in fewer the terminal folds lines
_TERMINAL_VARIABLES = ("FORCE_COLOR", "TTY_COMPATIBLE")  # by which rich takes any stream for a terminal, or none


def is_terminal(stream: TextIO | None) -> bool:
    """Return whether a stream is a terminal, whatever variables such as FORCE_COLOR make rich believe."""
    try:
        return stream is not None and stream.isatty()
    except ValueError:  # closed
        return False


def prints_plain_text(stream: TextIO | None) -> bool:
    """Return whether a stream is no terminal, so that rich would print plain text on it.

    False where only rich can answer.
    """
    if any(name in os.environ for name in _TERMINAL_VARIABLES):
        return False
    try:
        return stream is None or not stream.isatty()
    except ValueError:  # closed
        return False


def get_stream_width(stream: TextIO | None) -> int:
    """Return the line width of a stream.

    As ``COLUMNS`` says if that is a whole number of 1 or more; else as the terminal says, and 80 where it does not
    know; ``UNFOLDED`` if the stream is no terminal. Never fewer than 20.
    """
    said = os.environ.get("COLUMNS", "").strip()
    if said.isascii() and said.isdecimal() and said.strip("0"):
        wanted = int(said) if len(said) < len(str(UNFOLDED)) else UNFOLDED
    elif stream is None or not is_terminal(stream):
        wanted = UNFOLDED
    else:
        try:
            wanted = os.get_terminal_size(stream.fileno()).columns or _USUAL_COLUMNS
        except (OSError, ValueError):
            wanted = _USUAL_COLUMNS
    return max(wanted, _NARROWEST)


def format_markdown_table(
    headings: Iterable[str], rows: Iterable[Iterable[str]], right: Container[str] = ()
) -> list[str]:
    """Return the lines of a table as Markdown; columns with headings in `right` are aligned to the right."""
    heads = list(headings)
    first, *rest = [[" ".join(cell.split()).replace("|", "\\|") for cell in row] for row in (heads, *rows)]
    rule = ["---:" if head in right else "---" for head in heads]
    return [f"| {' | '.join(first)} |", f"|{'|'.join(rule)}|", *(f"| {' | '.join(row)} |" for row in rest)]
