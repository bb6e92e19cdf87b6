"""The command ``audit``: rerun a case that an audit stored, with other engines and cuDNN versions."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from ..command_line import Command
from ..printable import printable
from .options import (
    GRAPH_FILE_PARAMETER,
    add_format_options,
    add_repeatable_version_option,
    add_target_option,
    make_seconds_option,
)
from .output import format_json, show_progress_line, write_or_print_report
from .output import write_or_print as write_lines
from .wheels import install_missing_versions

__all__ = ["audit_wrong_result"]

SCHEMA, SCHEMA_VERSION = "cudnn-backend-py/audit-examined", 1


@click.command("audit", cls=Command)
@click.argument("files", metavar="[FILE]...", nargs=-1, type=GRAPH_FILE_PARAMETER)
@add_repeatable_version_option(
    "or the path of a library; every installed version if not given, where other commands take one"
)
@add_target_option(other="only list what would run there")
@make_seconds_option("--limit", "limit_s", default=300.0, help="For each case.")
@make_seconds_option("--reduce", "reduce_s", default=60.0, help="Part of --limit for reducing the case.")
@click.option("--write/--no-write", default=True, show_default=True, help="Write the reproduction next to the case.")
@click.option("--folder", metavar="FOLDER", help="The folder of kept cases.")
@add_format_options("text", "json")
def audit_wrong_result(
    files: tuple[str, ...],
    versions: tuple[str, ...],
    target: str | None,
    limit_s: float,
    reduce_s: float,
    write: bool,
    folder: str | None,
    style: str,
    output: Any,
) -> None:
    """Find the engine and cuDNN version of a stored wrong result.

    FILE is a case that `audit` kept; without one, those that are kept are listed. Whether it is a known issue is
    said, too. It runs again by every config of
    its own version, then by the others, each next to the interpreter. Exit code 0 if nothing is wrong again, 1 if
    something is, 2 if nothing could be said.
    """
    if not files:
        _list_audit_cases(folder, style, output)
        return
    install_missing_versions(version for version in versions if not Path(version).exists())
    from ..audit.examination import examine

    with show_progress_line("examining") as step:
        found = [
            examine(
                file,
                cudnn=versions,
                target=target,
                limit_s=limit_s,
                reduce_s=reduce_s,
                write=write,
                step=_make_progress_printer(file, step),
            )
            for file in files
        ]
    if style == "json":
        cases = [one.to_dict() for one in found]
        text = json.dumps({"schema": SCHEMA, "version": SCHEMA_VERSION, "cases": cases}, indent=1, default=str) + "\n"
    else:
        text = "\n".join("".join(f"{printable(line)}\n" for line in str(one).splitlines()) for one in found)
    write_or_print_report(text, output)
    raise SystemExit(max(one.exit_code for one in found))


def _make_progress_printer(file: str, step: Callable[[str], object]) -> Callable[[str], object]:
    return lambda text: step(f"{Path(file).name}: {text}")


def _list_audit_cases(folder: str | None, style: str, output: str | None) -> None:
    from ..audit.case import Case, CaseFolder, load_case
    from ..errors import CudnnBackendError

    kept = CaseFolder(folder)
    cases: dict[str, Case | CudnnBackendError] = {}
    for path in map(str, kept.cases()):
        try:
            cases[path] = load_case(path)
        except CudnnBackendError as error:  # one that is broken hides no other
            cases[path] = error
    if style == "json":
        told = ("entry_point", "place", "found", "wrong", "tag", "backend", "cudnn", "gpu", "sm", "date")
        found = [
            {"file": path, "error": str(case)}
            if isinstance(case, CudnnBackendError)
            else {"file": path, **{name: getattr(case, name) for name in told}}
            for path, case in cases.items()
        ]
        write_or_print_report(format_json({"folder": str(kept.path), "cases": found}), output)
        return
    lines = [line for path, case in cases.items() for line in (path, *(f"  {one}" for one in str(case).splitlines()))]
    lines = lines or [f"no case is kept in {kept.path}"]
    write_lines("".join(f"{printable(line)}\n" for line in lines), output)
