"""The command ``audit``: a case that an audit kept, run again by other engines and versions."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from ..printable import printable
from .output import OutputFile, say, warn, write_report

__all__ = ["add_audit"]

SCHEMA, SCHEMA_VERSION = "cudnn-backend-py/audit-examined", 1


def add_audit(main: click.Group) -> None:
    """Add the command to the group."""

    @main.command("audit")
    @click.argument("files", metavar="[FILE]...", nargs=-1)
    @click.option(
        "--cudnn", "versions", multiple=True, metavar="VERSION|PATH", help="Ask these; all installed if not given."
    )
    @click.option("--target", metavar="NAME", help="A described GPU: say what would be run there.")
    @click.option("--limit", "limit_s", type=float, default=300.0, show_default=True, help="Seconds for each case.")
    @click.option(
        "--reduce", "reduce_s", type=float, default=60.0, show_default=True, help="Of these, for the smallest form."
    )
    @click.option("--write/--no-write", default=True, show_default=True, help="Write the reproduction beside the case.")
    @click.option("--folder", metavar="FOLDER", help="Where cases are listed from.")
    @click.option("--format", "style", type=click.Choice(["text", "json"]), default="text", show_default=True)
    @click.option("--output", type=OutputFile(), help="Write it here, not to standard output.")
    def audit(
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
        """Say by which engine and cuDNN version a kept case is wrong, and whether that is a known fault.

        FILE is a case that `audit` kept; without one, those that are kept are listed. It runs again by every config of
        its own version, then by the others, each beside the interpreter. Exit code 0 if nothing is wrong again, 1 if
        something is, 2 if nothing could be said.
        """
        if not files:
            _list(folder)
            return
        _check_versions(versions)
        from ..audit.again import examine

        found = [
            examine(
                file,
                cudnn=versions,
                target=target,
                limit_s=limit_s,
                reduce_s=reduce_s,
                write=write,
                step=_teller(file),
            )
            for file in files
        ]
        if style == "json":
            cases = [one.to_dict() for one in found]
            text = (
                json.dumps({"schema": SCHEMA, "version": SCHEMA_VERSION, "cases": cases}, indent=1, default=str) + "\n"
            )
        else:
            text = "\n".join("".join(f"{printable(line)}\n" for line in str(one).splitlines()) for one in found)
        write_report(text, output)
        raise SystemExit(max(one.exit_code for one in found))


def _teller(file: str) -> Callable[[str], None]:
    return lambda text: warn(printable(f"{Path(file).name}: {text}"))


def _check_versions(versions: tuple[str, ...]) -> None:
    from ..versions.store import environment_for

    for one in versions:
        if not Path(one).exists():
            environment_for(one)


def _list(folder: str | None) -> None:
    from ..audit.case import CaseFolder, load_case

    kept = CaseFolder(folder)
    files = kept.cases()
    for path in files:
        say(printable(str(path)))
        for line in str(load_case(path)).splitlines():
            say(printable(f"  {line}"))
    if not files:
        say(f"no case is kept in {printable(str(kept.path))}")
