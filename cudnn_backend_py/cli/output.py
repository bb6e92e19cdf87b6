"""Output of commands: printing, files, and exit codes 0, 1, 2 and 130."""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import click

from ..command_line import Group
from ..errors import CudnnBackendError, EnvironmentNotReady
from ..printable import escape_workflow_commands, make_lines_printable, printable
from ..system.atomic_file import write_atomically
from ..system.python_file import is_python_file
from ..system.short_traceback import TRACEBACK_VARIABLE
from ..system.streams import is_terminal

if TYPE_CHECKING:
    from rich.table import Table

__all__ = [
    "EXIT_CODES",
    "INTERRUPTED_EXIT_CODE",
    "NOT_JUDGED_EXIT_CODE",
    "MainCommandGroup",
    "OutputFile",
    "add_escaped_row",
    "format_json",
    "format_megabytes",
    "make_json_saver",
    "print_lines",
    "print_or_write_table",
    "print_warning",
    "show_progress_line",
    "warn_that_cached_verdicts_log_nothing",
    "warn_that_python_files_will_run",
    "write_or_print",
    "write_or_print_report",
]

NOT_JUDGED_EXIT_CODE = 2
INTERRUPTED_EXIT_CODE = 130
EXIT_CODES = {
    0: "yes: supported, right, unchanged; or done",
    1: "no: refused, wrong, changed",
    NOT_JUDGED_EXIT_CODE: "could not be judged, or a wrong command line",
    INTERRUPTED_EXIT_CODE: "interrupted by Ctrl-C",
}
_LOG_LEVEL_VARIABLES = ("CUDNN_LOGLEVEL_DBG", "CUDNN_LOGINFO_DBG", "CUDNN_LOGWARN_DBG", "CUDNN_LOGERR_DBG")


class MainCommandGroup(Group):
    """The group of all commands; it turns every exception into an exit code."""

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Add the exit codes to the help page."""
        with formatter.section("Exit codes"):
            formatter.write_dl([(str(code), text) for code, text in EXIT_CODES.items()])

    def make_context(self, *arguments: Any, **options: Any) -> click.Context:
        """Read the command line."""
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper):  # else None, or somebody else's: closed, captured
                stream.reconfigure(errors="backslashreplace")  # whatever the locale, nothing is beyond it
        _disable_unwritable_cudnn_log()
        with _convert_exceptions_to_exit_code():
            return super().make_context(*arguments, **options)

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command."""
        with _convert_exceptions_to_exit_code():
            return super().invoke(ctx)


def _disable_unwritable_cudnn_log() -> None:
    """Unset cuDNN's log variables where its file cannot be opened, as cuDNN 9.28 crashes then."""
    destination = os.environ.get("CUDNN_LOGDEST_DBG", "")
    asked = _list_enabled_log_variables()
    if destination == "stdout":  # which is for the report
        os.environ["CUDNN_LOGDEST_DBG"] = "stderr"
    if not asked or destination in ("", "stdout", "stderr"):
        return
    place = destination.replace("%i", str(os.getpid()))
    folder = os.path.dirname(place) or "."
    there = place if os.path.exists(place) else folder
    if os.path.isdir(folder) and not os.path.isdir(place) and os.access(there, os.W_OK):
        return
    for name in ("CUDNN_LOGDEST_DBG", *asked):
        del os.environ[name]
    print_warning(f"warning: CUDNN_LOGDEST_DBG={printable(destination)} cannot be written: cuDNN's log is not written")


def _list_enabled_log_variables() -> list[str]:
    return [name for name in _LOG_LEVEL_VARIABLES if os.environ.get(name, "0") != "0"]


def warn_that_cached_verdicts_log_nothing() -> None:
    """Warn if cuDNN's log is requested: verdicts from the cache do not call cuDNN and so log nothing."""
    if names := _list_enabled_log_variables():
        print_warning(f"warning: {names[0]} is set, and stored answers call no cuDNN: --fresh judges all again")


@contextlib.contextmanager
def _convert_exceptions_to_exit_code() -> Iterator[None]:
    """Convert exceptions to exit codes after writing pending output; exit with 2 if that fails."""
    code: int | None = None
    try:
        try:
            yield
        except (SystemExit, click.exceptions.Exit) as done:
            given = done.code if isinstance(done, SystemExit) else done.exit_code
            code = (
                0
                if given is None
                else given
                if isinstance(given, int) and given in EXIT_CODES
                else NOT_JUDGED_EXIT_CODE
            )
        _flush_streams()
    except (KeyboardInterrupt, click.Abort):
        code = INTERRUPTED_EXIT_CODE
    except click.ClickException as error:
        code = NOT_JUDGED_EXIT_CODE
        with contextlib.suppress(OSError):
            _print_usage_error(error)
    except BrokenPipeError:  # the reader, such as head, has read enough
        code = NOT_JUDGED_EXIT_CODE
    except BaseException as error:
        code = NOT_JUDGED_EXIT_CODE
        with contextlib.suppress(OSError):
            _print_error(error)
    if code is not None:
        _discard_unwritten_output()
        raise SystemExit(code) from None


def _flush_streams() -> None:
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()


def _discard_unwritten_output() -> None:
    """Discard output that cannot be written, so that it does not fail again at exit."""
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None:
                stream.flush()
        except (OSError, ValueError):  # ValueError: closed
            with contextlib.suppress(OSError, ValueError):
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _print_usage_error(error: click.ClickException) -> None:
    text = io.StringIO()
    error.show(text)
    print_warning(text.getvalue().rstrip("\n"))


def _print_error(error: BaseException) -> None:
    if TRACEBACK_VARIABLE in os.environ:
        import traceback

        print_warning("".join(traceback.format_exception(error)).rstrip("\n"))
    print_warning(_convert_to_package_error(error).render())


def _convert_to_package_error(error: BaseException) -> CudnnBackendError:
    if isinstance(error, CudnnBackendError):
        return error
    if isinstance(error, MemoryError):
        return EnvironmentNotReady("not enough memory", code="out-of-memory")
    if isinstance(error, OSError):
        return EnvironmentNotReady(
            f"the operating system reports: {error}",
            code="system-error",
            fix="check the path, its permissions and the free space",
        )
    try:
        said = f"{type(error).__name__}: {error}"
    except Exception:  # an exception of somebody else that cannot be printed
        said = type(error).__name__
    import traceback

    frames = traceback.extract_tb(error.__traceback__)
    return CudnnBackendError(
        f"the command failed with {said}",
        code="internal-error",
        where=f"{frames[-1].filename}, line {frames[-1].lineno}" if frames else None,
        cause="a bug of this package; the result is unknown",
        fix=f"set {TRACEBACK_VARIABLE}=1 to see the traceback, and report it with the command",
    )


# What is printed


def print_lines(text: str) -> None:
    """Print lines of text."""
    click.echo(make_lines_printable(text))


def print_warning(text: str) -> None:
    """Print lines of text to standard error."""
    click.echo(make_lines_printable(text), err=True)


def warn_that_python_files_will_run(paths: Iterable[str], named_in: str) -> None:
    """Warn in one line that Python files, named by another file, will be run."""
    files = [printable(path) for path in dict.fromkeys(paths) if is_python_file(path)]
    if files:
        many = len(files) > 1
        print_warning(
            f"warning: {printable(named_in)} names {', '.join(files)}, "
            f"{'Python files, which run' if many else 'a Python file, which runs'} now; "
            "a graph JSON would not be run"
        )


def format_megabytes(size_bytes: int) -> str:
    """Return a size in MB: whole above 10, ``0.1`` to ``9.9`` below, and ``<0.1`` where rounding would give 0."""
    megabytes = size_bytes / 1e6
    if 0 < megabytes < 0.05:
        return "<0.1"
    return f"{megabytes:.1f}" if 0 < megabytes < 9.95 else f"{megabytes:.0f}"


def add_escaped_row(table: Table, *texts: str) -> None:
    """Add a row of untrusted texts, with control characters escaped."""
    from rich.text import Text

    table.add_row(*(Text(make_lines_printable(printable(text))) for text in texts))


def print_or_write_table(table: Table, output: str | None, *below: str) -> None:
    """Print a table and the lines `below` it, or write both to a file."""
    if output is None:
        from ..terminal import open_console

        open_console().print(table)
        for line in below:
            print_lines(printable(line))
    else:
        from ..diagnose.report.tables import render_as_text

        write_or_print(render_as_text(table) + "".join(f"{printable(line)}\n" for line in below), output)


def format_json(data: Any) -> str:
    """Format plain data as indented JSON."""
    return json.dumps(data, indent=1) + "\n"


def write_or_print(text: str, output: str | None) -> None:
    """Write lines of text to a file, or print them."""
    if output is None:
        click.echo(make_lines_printable(text), nl=False)
    else:
        write_atomically(output, make_lines_printable(text).encode("utf-8", "backslashreplace"))


def write_or_print_report(text: str | bytes, output: str | None, *, annotations: bool = False) -> None:
    """Write JSON, HTML, XML or Markdown in UTF-8, whatever the locale.

    Bytes are written as they are, and so are `annotations`: their lines are meant as commands of a CI.
    """
    if isinstance(text, bytes):
        data = text
    else:
        data = (text if annotations else escape_workflow_commands(text, markup=True)).encode(
            "utf-8", "backslashreplace"
        )
    if output is None:
        click.echo(data, nl=False)
    else:
        write_atomically(output, data)


def make_json_saver(output: str | None, style: str) -> Callable[[Callable[[], Any]], None]:
    """Return a function that stores intermediate results as JSON in `output`, using at most a tenth of the time.

    At most once a second.
    """
    following = -1.0

    def save_json(data: Callable[[], Any]) -> None:
        nonlocal following
        began = time.monotonic()
        if style != "json" or output is None or began < following:
            return
        if os.path.exists(output) and not os.path.isfile(output):  # a pipe or a device gets the whole answer
            return
        with contextlib.suppress(OSError):  # a full disk may have room at the end
            write_atomically(output, format_json(data()))
        ended = time.monotonic()
        following = ended + max(1.0, 9 * (ended - began))

    return save_json


@contextlib.contextmanager
def show_progress_line(doing: str = "asking cuDNN") -> Iterator[Callable[[str], object]]:
    """Yield a function that shows the current step on standard error, if that is a terminal."""
    if not is_terminal(sys.stderr):
        yield str
        return
    from rich.text import Text

    from ..terminal import open_console

    shown = open_console(stderr=True)
    if not shown.is_terminal:
        yield str
        return
    with shown.status(Text(doing)) as status:
        yield lambda text: status.update(Text(printable(f"{doing}: {text}")))


class OutputFile(click.Path):
    """A parameter for an output file; its folder must exist when the command line is parsed."""

    def __init__(self) -> None:
        super().__init__(dir_okay=False, writable=True)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the path."""
        path = os.fspath(super().convert(value, param, ctx))
        folder = os.path.dirname(path) or "."
        if not os.path.isdir(folder):
            self.fail(f"there is no folder {folder!r}", param, ctx)
        if not os.path.exists(path) and not os.access(folder, os.W_OK):
            self.fail(f"the folder is not writable: {folder!r}", param, ctx)
        return path
