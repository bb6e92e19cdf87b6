"""Click commands, groups and types: help fits narrow terminals, and misspelt words get suggestions."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import click

from .printable import printable
from .system.nearest import suggest_most_similar_name
from .system.streams import get_stream_width

__all__ = ["Choice", "Command", "Group", "Seconds", "program_command"]

_NARROWEST, _WIDEST = 30, 80


class Choice(click.Choice):  # type: ignore[type-arg]  # click 8.1 has no arguments of types
    """A parameter type that accepts one of several words."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the word; for any other word, the error lists the choices and suggests the nearest one."""
        if value not in self.choices:
            known = ", ".join(self.choices)
            self.fail(
                f"{value!r} is not one of {known}{suggest_most_similar_name(str(value), self.choices)}", param, ctx
            )
        return value


class Seconds(click.FloatRange):
    """A parameter type for a time in seconds, at least 0; nan is refused."""

    name = "number of seconds"

    def __init__(self, *, more_than_0: bool = False) -> None:
        super().__init__(min=0, min_open=more_than_0)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the time in seconds."""
        seconds = super().convert(value, param, ctx)
        if math.isnan(seconds):
            self.fail(f"{value!r} is not a valid {self.name}.", param, ctx)
        return seconds


class _Formatter(click.HelpFormatter):
    """A help formatter with narrow term columns, to leave room for explanations."""

    def write_dl(self, rows: Iterable[tuple[str, str]], col_max: int = 30, col_spacing: int = 2) -> None:
        """Write terms and their explanations."""
        super().write_dl([*rows], min(col_max, max(self.width // 2 - 4, 10)), col_spacing)


class _Context(click.Context):
    formatter_class = _Formatter


class _SuggestingCommand(click.Command):
    """A command that suggests the nearest option for an unknown one."""

    context_class = _Context

    def get_short_help_str(self, limit: int = 0) -> str:
        """Return the whole first sentence of the help; terminals cut what is too long."""
        return super().get_short_help_str(10_000)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the command line; for an unknown option, the error suggests the nearest one."""
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            shown = [one for one in self.get_params(ctx) if not getattr(one, "hidden", False)]
            known = [name.lstrip("-") for one in shown for name in one.opts if name.startswith("--")]
            asked = suggest_most_similar_name(error.option_name.lstrip("-"), known, prefix="--")
            raise click.UsageError(f"No such option {error.option_name!r}{asked}", ctx) from None


class Command(_SuggestingCommand):
    """A command of this package; its errors suggest the nearest option."""


def program_command(
    text: str, *, help_names: Sequence[str] = ("-h", "--help"), options_metavar: str = "[OPTIONS]"
) -> Callable[[Callable[..., Any]], click.Command]:
    """Return a decorator for a command that runs a Python program.

    The function gets the program and its arguments, unparsed, as ``program``.
    """
    settings = {
        "ignore_unknown_options": True,
        "allow_interspersed_args": False,
        "help_option_names": list(help_names),
    }
    words = "SCRIPT|NOTEBOOK|-m MODULE [ARGUMENTS]..."

    def decorate(function: Callable[..., Any]) -> click.Command:
        function = click.argument("program", nargs=-1, type=click.UNPROCESSED, metavar=words)(function)
        return click.command(cls=Command, help=text, context_settings=settings, options_metavar=options_metavar)(
            function
        )

    return decorate


class Group(_SuggestingCommand, click.Group):
    """A group of commands.

    Parameters
    ----------
    sections
        The names of commands by the heading they stand under in the help; one heading for all if not given.
    """

    command_class = Command

    def __init__(self, *arguments: Any, sections: Mapping[str, Sequence[str]] | None = None, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self.sections = sections

    def make_context(self, *arguments: Any, **options: Any) -> click.Context:
        """Parse the command line; help is as wide as the terminal, at most 80 columns."""
        columns = get_stream_width(sys.stdout)
        options.setdefault("terminal_width", max(min(columns, _WIDEST) - 2, _NARROWEST))
        return super().make_context(*arguments, **options)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands by section, each with its first sentence."""
        shown = [name for name in self.list_commands(ctx) if not self.commands[name].hidden]
        width = max(map(len, shown))
        for title, names in (self.sections or {"Commands": shown}).items():
            with formatter.section(title):
                rows = [(name, self.commands[name].get_short_help_str()) for name in names]
                formatter.write_dl([(f"{name:<{width}}", text) for name, text in rows], col_max=width)

    def resolve_command(self, ctx: click.Context, args: list[str]) -> tuple[Any, Any, list[str]]:
        """Return the named command; the error for another name suggests the nearest one."""
        word = args[0]
        if self.get_command(ctx, word) is None and not ctx.resilient_parsing and not word.startswith("-"):
            known = [name for name in self.list_commands(ctx) if not self.commands[name].hidden]
            asked = suggest_most_similar_name(word, known)
            if not asked and "explain" in known and os.path.isfile(word):
                asked = f"; did you mean explain {printable(word)}?"
            raise click.UsageError(f"No such command {word!r}{asked}", ctx)
        return super().resolve_command(ctx, args)


Group.group_class = Group
