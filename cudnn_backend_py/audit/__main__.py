"""``python -m cudnn_backend_py.audit``: run a program and check samples of its attention and graph calls."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click

from ..command_line import program_command
from ..errors import CudnnBackendError
from ..frontend.__main__ import make_program_starter
from ..printable import make_lines_printable
from ..system.atomic_file import write_atomically
from .look import COST, EVERY, audit

__all__ = ["main"]

_HELP = """\
Run SCRIPT, a notebook, or the module after -m, and check samples of its calls of attention and of graphs. The program's
exit code is kept; the report goes to standard error.

\b
python -m cudnn_backend_py.audit train.py --epochs 3
python -m cudnn_backend_py.audit --every 10 --output audit.json -m package.train
"""


@program_command(_HELP)
@click.option("--every", default=EVERY, show_default=True, help="One call in so many is checked, after the first 16.")
@click.option("--cost", default=COST, show_default=True, help="The part of the time that checks may take.")
@click.option("--folder", metavar="FOLDER", help="Where cases are kept.")
@click.option("--output", metavar="FILE", help="Write it here, not to standard error, and as JSON.")
def _parse_command(
    every: int, cost: float, folder: str | None, output: str | None, program: tuple[str, ...]
) -> Callable[[], None]:
    start = make_program_starter(program)
    where = None if output is None else Path(output).absolute()
    if where is not None and not where.parent.is_dir():
        raise click.UsageError(
            f"--output {output}: there is no folder {where.parent}; create it, or name a file in another folder"
        )
    return lambda: _run_program_with_audit(start, {"every": every, "cost": cost, "folder": folder}, where)


def _run_program_with_audit(start: Callable[[], Any], options: dict[str, Any], where: Path | None) -> None:
    report = None
    try:
        with audit(**options) as report:
            start()
    finally:
        if report is not None and where is not None:
            try:
                write_atomically(where, report.to_json())
            except OSError as error:  # the program's own ending matters more
                sys.stderr.write(make_lines_printable(f"there is no report of the audit: {error}\n{report}"))
        elif report is not None:
            sys.stderr.write(make_lines_printable(str(report)))


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the program named on the command line and audit its calls; let its exceptions propagate."""
    try:
        run = _parse_command.main(arguments, prog_name="python -m cudnn_backend_py.audit", standalone_mode=False)
        if callable(run):
            run()
    except click.ClickException as error:
        error.show()
        raise SystemExit(error.exit_code) from None
    except CudnnBackendError as error:
        if error.code not in ("audit-option", "audit-without-torch", "notebook"):
            raise
        print(error.render(), file=sys.stderr)
        raise SystemExit(2) from None


if __name__ == "__main__":
    main()
