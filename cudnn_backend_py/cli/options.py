"""Options shared by commands, each defined once, and their shell completion."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem

from ..command_line import Choice, Seconds
from .output import OutputFile

if TYPE_CHECKING:
    from ..native.version_store import VersionRequest

__all__ = [
    "BUILD_HELP",
    "GRAPH_FILE_PARAMETER",
    "InstalledVersionParameter",
    "TargetParameter",
    "add_format_options",
    "add_graph_option",
    "add_mode_option",
    "add_repeatable_version_option",
    "add_target_option",
    "format_graph_option",
    "make_seconds_option",
    "parse_engine_option",
]

BUILD_HELP = "Also build a plan: compilation can fail where the check passed."

# The format that the ending of a file means, where the command has it.
_FORMAT_BY_SUFFIX = {".json": "json", ".html": "html", ".xml": "junit", ".md": "markdown", ".svg": "svg", ".png": "png"}
_FORMAT_BY_SUFFIX |= {
    ".mmd": "mermaid",
    ".dot": "dot",
    ".gv": "dot",
    ".gz": "archive",
    ".tgz": "archive",
    ".zip": "archive",
}


def _complete_by_prefix(known: Iterable[str], incomplete: str) -> list[CompletionItem]:
    return [CompletionItem(name) for name in known if name.startswith(incomplete)]


class _TextParameter(click.ParamType):  # type: ignore[type-arg]  # click 8.1 has no arguments of types
    """A command-line parameter that accepts any text."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the text."""
        return value


class _GraphFileParameter(_TextParameter):
    name = "graph"

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """Complete file names."""
        return [CompletionItem(incomplete, type="file")]


class TargetParameter(_TextParameter):
    """A parameter that names a GPU or a JSON file; the command checks it."""

    name = "name"

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """Complete described GPUs and architectures, else files."""
        from ..target import list_profiles

        names = [name for one in list_profiles() for name in (one.name, *one.aliases)]
        found = _complete_by_prefix(sorted({*names, "gpu"}), incomplete)
        return found or [CompletionItem(incomplete, type="file")]


class InstalledVersionParameter(_TextParameter):
    """A parameter that names an installed cuDNN version, or a path where a command accepts one.

    Parameters
    ----------
    stored
        Whether ``latest`` is the newest version of the version store; else the environment's cuDNN counts, too, and
        where there is none at all, the newest one that can be installed.
    """

    name = "version"

    def __init__(self, *, stored: bool = False) -> None:
        self.stored = stored

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the text, or for ``latest`` the version that it names."""
        if not str(value).startswith("latest"):
            return value
        from ..native.version_store import VersionRequest

        return _find_latest_version(VersionRequest.parse(value), self.stored)

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """Complete installed versions, newest first."""
        from ..versions import store

        newest = reversed(store.list_installed())
        return _complete_by_prefix(
            dict.fromkeys(name for one in newest for name in (one.version_with_cuda, one.name)), incomplete
        )


def _find_latest_version(request: VersionRequest, stored: bool) -> str:
    """Return the newest cuDNN version with the CUDA major and wheel that the user requested."""
    from ..diagnose.surveys.inputs import available_versions
    from ..system.version import parse_leading_numbers
    from ..versions import store

    installed = [one for one in store.list_judging_versions() if request.flavor in (None, one.flavor)]
    names = [one.version_with_cuda for one in installed]
    if not stored and request.flavor is None:
        names = list(available_versions())
    names = [name for name in names if request.cuda is None or name.endswith(f"+cu{request.cuda}")]
    preferred = f"+cu{store.find_default_cuda()}"
    newest = max(names, key=lambda name: (parse_leading_numbers(name), name.endswith(preferred)), default=None)
    if newest is None:
        newest = store.find_newest_available(flavor=request.flavor, cuda=request.cuda)
    return f"{newest}-{request.flavor}" if request.flavor else newest


GRAPH_FILE_PARAMETER = _GraphFileParameter()


def add_format_options(*choices: str) -> Callable[[Any], Any]:
    """Add ``--format`` and ``--output``; the function is given `style` and `output`.

    Without ``--format`` it is what the name of the output file ends with, where the command has that, or the first.
    """

    def decorate(function: Any) -> Any:
        @functools.wraps(function)
        def choose_format(*arguments: Any, style: str | None, output: str | None, **options: Any) -> Any:
            ending = Path(output).suffix if output else ""
            form = _FORMAT_BY_SUFFIX.get(ending)
            if style is None and ending and form not in choices and (form or "text" not in choices):
                text = f"{output!r}: no format has the suffix {ending}; --format must be {', '.join(choices)}"
                raise click.BadParameter(text, param_hint="--output")
            style = style or (form if form in choices else choices[0])
            return function(*arguments, style=style, output=output, **options)

        text = f"The format: {', '.join(choices)}; if not given, by the suffix of --output, else {choices[0]}."
        style = click.option("--format", "style", type=Choice(choices), metavar="FORMAT", help=text)
        output = click.option("--output", type=OutputFile(), help="Write it here, not to standard output.")
        return style(output(choose_format))

    return decorate


def add_target_option(
    default: str | None = None, *, many: bool = False, other: str = "", required: bool = False
) -> Callable[[Any], Any]:
    """Add ``--target``: the function gets `target`, or with `many` the tuple `targets`; `other` extends the help."""
    text = "A described GPU (l40s, sm89, a JSON file)"
    text += ("; repeatable" if many else "") + f"; {other or 'the GPU of this machine if not given'}."
    name = "targets" if many else "target"
    settings: dict[str, Any] = {} if many or required else {"default": default}
    return click.option(
        "--target", name, type=TargetParameter(), multiple=many, required=required, help=text, **settings
    )


def add_graph_option(other: str = "needed where it has several") -> Callable[[Any], Any]:
    """Add ``--graph``: the function gets `number`, which selects one graph of a cuDNN log."""
    text = f"Number of a graph in a log, from 1; {other}."
    return click.option("--graph", "number", type=click.IntRange(min=1), metavar="N", help=text)


def format_graph_option(number: int | None) -> list[str]:
    """Return ``--graph=N`` as a list, empty for None."""
    return [] if number is None else [f"--graph={number}"]


def add_repeatable_version_option(other: str) -> Callable[[Any], Any]:
    """Add ``--cudnn`` for commands with several versions: the function gets the tuple `versions`."""
    return click.option(
        *("--cudnn", "versions"),
        multiple=True,
        type=InstalledVersionParameter(),
        help=f"Judge with this installed cuDNN, or latest; repeatable; {other}.",
    )


def make_seconds_option(*names: str, more_than_0: bool = False, **settings: Any) -> Callable[[Any], Any]:
    """Return an option for a time in seconds."""
    return click.option(*names, type=Seconds(more_than_0=more_than_0), show_default=True, metavar="SECONDS", **settings)


def parse_engine_option(engine: str | None) -> int | str | None:
    """Return the value of ``--engine``: an index as a number, else the tag of an engine config."""
    return int(engine) if engine is not None and engine.isdecimal() else engine


def add_mode_option(function: Any) -> Any:
    """Add ``--mode``: the function gets the tuple `modes`."""
    return click.option(
        "--mode", "modes", multiple=True, metavar="MODE", help="Heuristics mode: A, B, FALLBACK; repeatable."
    )(function)
