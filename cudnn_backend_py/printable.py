"""Make untrusted texts safe for text output: names, log lines, cuDNN's error text.

A terminal obeys control characters, bidirectional marks turn what is read around, a newline in a name makes a line of
its own, and a CI takes a line that begins with ``::`` for a command. So what Python does not call printable is shown
as in ``repr`` (``\\x1b``, ``\\u202e``), and the beginning of such a command is broken. JSON, JUnit and HTML have
escapes of their own.
"""

from __future__ import annotations

import re

__all__ = [
    "escape_workflow_commands",
    "format_in_angle_brackets",
    "format_repr",
    "make_lines_printable",
    "mask_memory_addresses",
    "printable",
]

# Commands of GitHub and Azure: anywhere in a line, and at its beginning. Compiled where one may be, not at import.
_COMMAND = r"(?i)#(?=#(\[|vso\[))"
_COLOUR = r"\x1b\[[\d;:]*m"
_LINE_COMMAND = rf"(?m)^((?:[^\S\n]|{_COLOUR})*):(?=(?:{_COLOUR})*:)"


def printable(text: str) -> str:
    """Return a text in one line with control characters escaped, such as ``\\n`` for a newline."""
    if not text.isprintable():
        text = "".join(
            letter if letter.isprintable() else letter.encode("unicode_escape").decode("ascii") for letter in text
        )
    return re.sub(_COMMAND, r"\\x23", text) if "##" in text else text


def format_in_angle_brackets(text: str, most: int = 118) -> str:
    """Format a ``repr`` in angle brackets: one line, cut after `most` characters."""
    line = printable(text)
    return f"<{line}>" if len(line) <= most else f"<{line[: most - 1]}…>"


def format_repr(value: object, most: int = 200) -> str:
    """Return the ``repr`` of a value for an error message, shortened if long; its type if ``repr`` raises an error."""
    try:
        text = repr(value)
    except Exception:  # Python writes no int of more than 4300 digits
        return f"an int of {value.bit_length()} bits" if isinstance(value, int) else f"a {type(value).__name__}"
    return text if len(text) <= most else f"{text[:most]}... ({len(text)} characters)"


def make_lines_printable(text: str) -> str:
    """Escape control characters and CI workflow commands in a text, but keep its newlines."""
    return escape_workflow_commands("\n".join(printable(line) for line in text.split("\n")))


def escape_workflow_commands(text: str, *, markup: bool = False) -> str:
    """Return a text, possibly coloured, with its CI workflow commands escaped.

    This belongs after layout, where lines are written: centring and folding make new beginnings of lines. With `markup`
    the first character is an entity of HTML, XML and Markdown, else ``\\x3a`` or ``\\x23``.
    """
    colon, number = ("&#58;", "&#35;") if markup else (r"\\x3a", r"\\x23")
    if "::" in text or "\x1b" in text:
        text = re.sub(_LINE_COMMAND, rf"\1{colon}", text)
    return re.sub(_COMMAND, number, text) if "##" in text else text


_ADDRESS = r"0x[0-9a-fA-F]{6,16}\b"


def mask_memory_addresses(words: str) -> str:
    """Return a text with ``0x…`` in place of memory addresses, which differ between processes."""
    return re.sub(_ADDRESS, "0x…", words) if "0x" in words else words
