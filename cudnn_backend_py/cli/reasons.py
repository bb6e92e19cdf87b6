"""The command ``reasons``: explain an error message."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from ..command_line import Command
from .options import add_format_options
from .output import format_json, print_lines, write_or_print, write_or_print_report

__all__ = ["explain_message"]


@click.command("reasons", cls=Command)
@click.argument("text", nargs=-1, required=True)
@add_format_options("text", "json")
def explain_message(text: tuple[str, ...], style: str, output: str | None) -> None:
    """Explain the error message TEXT, and what to do.

    TEXT is a message of cuDNN, torch, cudnn-frontend, JAX, TransformerEngine, onnxruntime or TensorFlow; an engine tag
    such as eng5_k14=3; a file with one, or - for standard input. Does not call cuDNN, but looks for the text in its
    files. Exit code 0 if TEXT is known, 1 if not.
    """
    from ..diagnose.framework_messages import explain_message, find_titles_of_similar_messages
    from ..diagnose.library_texts import find_library_with_message

    message = _read_message(text)
    found = explain_message(message)
    if not found and find_library_with_message(message):
        found = explain_message(message, is_reason=True)
    if style == "json":
        write_or_print_report(format_json([one.to_dict() for one in found]), output)
    elif found:
        write_or_print("\n".join("".join(f"{line}\n" for line in one.lines()) for one in found), output)
    else:
        print_lines(
            "this text is not a known error message; paste the whole message with its status and the surrounding lines"
        )
        for title in find_titles_of_similar_messages(message):
            print_lines(f"perhaps: {title}")
    raise SystemExit(not found)


def _read_message(words: tuple[str, ...]) -> str:
    """Return the text from the arguments, from the file that they name, or from standard input."""
    text = " ".join(words)
    if text == "-":
        return sys.stdin.read()
    try:
        return Path(text).read_text(encoding="utf-8", errors="replace")
    except (OSError, ValueError):  # no file of that name: the text itself
        return text
