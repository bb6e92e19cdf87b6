"""``python -m cudnn_backend_py.why``: run a torch program, and report why its attention did not use cuDNN."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click

from ..command_line import Seconds, program_command
from ..errors import CudnnBackendError
from ..frontend.__main__ import make_program_starter
from ..frontend.as_cudnn import patch_torch_with_described_gpu
from ..printable import escape_workflow_commands, make_lines_printable
from ..system.after_import import call_after_import
from ..system.atomic_file import write_atomically
from ..system.nearest import suggest_most_similar_name
from ..system.short_traceback import shorten_traceback
from ..target.profiles import find_profile
from .calls import Machine
from .report import WhyReport

__all__ = ["main", "read_command_line"]

_HELP = """\
Run SCRIPT, a notebook, or the module after -m, and report for each call of torch's attention why cuDNN was or was
not used. The program's exit code is kept; the report goes to standard error.

\b
python -m cudnn_backend_py.why train.py --epochs 3
python -m cudnn_backend_py.why --output why.html -m package.train
python -m cudnn_backend_py.why --target h100 train.py
"""


_FORMATS = ("text", "json", "html")


def _require_known_report_format(word: str | None) -> str | None:
    if word is not None and word not in _FORMATS:
        known = f"{', '.join(_FORMATS)}{suggest_most_similar_name(word, _FORMATS)}"
        raise click.BadParameter(f"{word!r} is not one of {known}")
    return word


@program_command(_HELP)
@click.option("--target", metavar="NAME", help="A described GPU (l40s, sm89, a JSON file); torch has that GPU, too.")
@click.option("--output", metavar="FILE", help="Write it here, not to standard error.")
@click.option(
    "--format",
    "style",
    metavar=f"[{'|'.join(_FORMATS)}]",
    callback=lambda context, option, value: _require_known_report_format(value),
    help="The format: text, json; if not given, by the suffix of --output, else text.",
)
@click.option("--ask/--no-ask", default=True, show_default=True, help="Also judge the graphs with cuDNN.")
@click.option("--measure", is_flag=True, help="On a GPU: time each kind of call with each backend.")
@click.option(
    "--budget",
    type=Seconds(),
    default=60.0,
    show_default=True,
    metavar="SECONDS",
    help="For judging and measuring, after the program.",
)
def _make_program_runner(
    target: str | None,
    output: str | None,
    style: str | None,
    ask: bool,
    measure: bool,
    budget: float,
    program: tuple[str, ...],
) -> Callable[[], None]:
    start = make_program_starter(program)
    where = None if output is None else Path(output).absolute()
    form = style or {".json": "json", ".html": "html"}.get(where.suffix if where else "", "text")
    if where is not None and not where.parent.is_dir():
        raise click.UsageError(f"--output needs an existing folder, there is no folder {where.parent}")
    profile = None if target is None else find_profile(target)
    options = {"profile": profile, "run_query": ask, "measure": measure, "budget_s": budget}
    return lambda: _run_program_and_watch_calls(start, target, where, form, options)


def _run_program_and_watch_calls(
    start: Callable[[], Any], target: str | None, where: Path | None, form: str, options: dict[str, Any]
) -> None:
    if target is not None:
        patch_torch_with_described_gpu(target)
    process, watches = os.getpid(), []

    def watch_program() -> None:
        from .watch import AttentionCallWatch

        watches.append(AttentionCallWatch(as_cuda=target is not None))
        watches[0].start()

    forget = call_after_import("torch", watch_program)
    try:
        _run_until_gpu_values_needed(start, target)
    finally:
        forget()
        if os.getpid() == process:  # a forked child may come here, too
            _write_report(watches, target, where, form, options)


def _run_until_gpu_values_needed(start: Callable[[], Any], target: str | None) -> None:
    """Run the program; for a described GPU, stop it where it reads values that only a real GPU computes."""
    try:
        start()
    except BaseException as error:
        if target is None or type(error).__name__ != "UnknownValuesError":
            shorten_traceback(error, ["torch"])
            raise
        print(f"reached a point that needs a GPU: {error}", file=sys.stderr)


def _write_report(
    watches: list[Any], target: str | None, where: Path | None, form: str, options: dict[str, Any]
) -> None:
    from .findings import fill_report

    report = WhyReport(machine=Machine((0, 0, 0), None, None), findings=(), target=target or "")
    try:
        if watches:
            watches[0].stop()
            fill_report(report, watches[0], **options)
        else:
            report.unseen = ("anything: the program did not import torch",)
        text = {"text": report.__str__, "json": report.to_json, "html": report.to_html}[form]()
        if where is None:
            sys.stderr.write(
                make_lines_printable(text) if form == "text" else escape_workflow_commands(text, markup=True)
            )
        else:
            write_atomically(where, text)
            print(f"why not cuDNN? {where}", file=sys.stderr)
    except (CudnnBackendError, OSError, ValueError) as error:  # the program's own ending matters more
        with contextlib.suppress(OSError, ValueError):  # ValueError: the program closed its standard error
            print(f"why not cuDNN? There is no report: {error}", file=sys.stderr)


def read_command_line(arguments: Sequence[str] | None, name: str) -> Callable[[], None] | None:
    """Return a function that runs the program of a command line; None after printing the help.

    Raises
    ------
    click.ClickException
        Of a wrong command line, or a program that is not there.
    UsageError
        ``unknown-target``.
    """
    run = _make_program_runner.main(arguments, prog_name=name, standalone_mode=False)
    return run if callable(run) else None


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the program of the command line; its exceptions propagate."""
    try:
        run = read_command_line(arguments, "python -m cudnn_backend_py.why")
    except click.ClickException as error:
        error.show()
        raise SystemExit(error.exit_code) from None
    except CudnnBackendError as error:
        print(error.render(), file=sys.stderr)
        raise SystemExit(2) from None
    if run is not None:
        run()


if __name__ == "__main__":
    main()
