"""Texts of others as text output may show them: names, device names, lines of a log, cuDNN's words.

A terminal obeys control characters, bidirectional marks turn what is read around, a newline in a name makes a line of
its own, and a CI takes a line that begins with ``::`` for a command. So what Python does not call printable is shown
as in ``repr`` (``\\x1b``, ``\\u202e``), and the beginning of such a command is broken. JSON, JUnit and HTML have
escapes of their own.
"""

from __future__ import annotations

import re

__all__ = ["printable", "printable_lines"]

# Workflow commands of GitHub (of a line's beginning, and the old form anywhere) and of Azure.
_COMMAND = re.compile(r"^(\s*):(?=:)|#(?=#\[|#vso\[)")


def printable(text: str) -> str:
    """Return a text in one line: with ``\\n`` for a newline, and so on."""
    if not text.isprintable():
        text = "".join(
            letter if letter.isprintable() else letter.encode("unicode_escape").decode("ascii") for letter in text
        )
    return text


def printable_lines(text: str) -> str:
    """Return a text with its newlines, each line as :func:`printable` has it and no command of a CI."""
    return "\n".join(_COMMAND.sub(_broken, printable(line)) for line in text.split("\n"))


def _broken(command: re.Match[str]) -> str:
    return "\\x23" if command[0] == "#" else f"{command[1]}\\x3a"
