"""The command ``target verify``: compare judgements for a described GPU with those on the real GPU."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import click

from ..command_line import Command
from ..terminal import BorderlessTextTable, progress_bar
from .options import TargetParameter, add_target_option, make_seconds_option
from .output import (
    NOT_JUDGED_EXIT_CODE,
    OutputFile,
    add_escaped_row,
    format_json,
    print_lines,
    print_or_write_table,
    write_or_print_report,
)
from .wheels import add_version_options

if TYPE_CHECKING:
    from ..verification.verify import Verification

__all__ = ["verify_target"]

_OUTPUT_HELP = "Write the answers here, as JSON; named after architecture and version if not given."
_MAX_ROWS = 20  # of the table of differences


@click.command("verify", cls=Command)
@add_target_option()
@click.option("--as", "other", type=TargetParameter(), help="Compare with this described GPU (h200, a JSON file).")
@make_seconds_option("--limit", "limit_s", more_than_0=True, default=300, help="Total time limit.")
@click.option("--output", type=OutputFile(), help=_OUTPUT_HELP)
@click.option("--contribute", is_flag=True, help="Also print the text for the issue form of hardware evidence.")
@add_version_options
def verify_target(target: str | None, other: str | None, limit_s: float, output: str | None, contribute: bool) -> None:
    """Compare a described GPU with the real one.

    cuDNN judges 300 graphs twice: for the GPU of this machine, and for its description in a process without a GPU.
    Outcomes, engine configs and their order, workspace, and the code of some plans are compared. Some graphs are run
    and compared with NumPy, and known issues are tried, in child processes. The JSON file holds every answer and
    nothing about the machine but GPU and driver. With --target nothing is run, and only --as is compared. Exit code
    0 if all outcomes agree, 1 if some differ, 2 if the graphs could not be judged.
    """
    if contribute and target is not None:
        raise click.UsageError(
            "--contribute needs results of the GPU of this machine, and those of a described GPU are no evidence: "
            "leave --target out"
        )
    from ..target import find_profile
    from ..verification.verify import verify as run_verification

    first, second = (None if name is None else find_profile(name) for name in (target, other))
    described, compared = (second, None) if target is None else (first, second)
    with progress_bar(1.0) as (step, _):
        found = run_verification(described, compared, live=target is None, limit_s=limit_s, step=step)
    facts = next(iter(found.sides.values()))
    path = output or f"verification-sm{facts.sm}-cudnn-{facts.cudnn}.json"
    write_or_print_report(format_json(found.to_dict()), path)
    _print_target_comparison(found)
    print_lines(f"{found.summary}; every answer is in {path}")
    if contribute:
        from ..verification.contribution import Contribution

        write_or_print_report(json.dumps(Contribution.from_verification(found).to_dict()) + "\n", None)
    raise SystemExit(NOT_JUDGED_EXIT_CODE if not found.is_complete else found.differing_outcome_count > 0)


def _print_target_comparison(found: Verification) -> None:
    from ..verification.compare import ASPECTS, find_first_difference

    if found.is_compared:
        table = BorderlessTextTable("family", "graphs", "agree", "built", *(f"{aspect} differs" for aspect in ASPECTS))
        for family, counts in found.families().items():
            add_escaped_row(table, family, *(str(counts[name]) for name in ("graphs", "agree", "built", *ASPECTS)))
        print_or_write_table(table, None)
        _print_library_and_gpu_differences(found)
        one, other = found.sides
        rows = [(row, aspect) for row in found.rows for aspect in row.differences]
        rows.sort(key=lambda pair: ASPECTS.index(pair[1]))
        if rows:
            table = BorderlessTextTable("graph", "differs in", one, other)
            for row, aspect in rows[:_MAX_ROWS]:
                values = find_first_difference(row.answers[one], row.answers[other], aspect)
                add_escaped_row(table, row.case.name, aspect, *values)
            print_or_write_table(table, None)
        if len(rows) > _MAX_ROWS:
            print_lines(f"and {len(rows) - _MAX_ROWS} more differences")
    for title, runs in (("compared with NumPy", found.compared), ("known issues tried", found.known_issues)):
        if runs:
            states = {
                state: sum(item.state == state for item in runs) for state in dict.fromkeys(r.state for r in runs)
            }
            print_lines(f"{title}: {', '.join(f'{count} {state}' for state, count in states.items())}")
    for item in found.compared:
        if item.state in ("wrong", "failed"):
            print_lines(f"  {item.state}: {item.name} by {item.tag}")
    for part, count in found.left_out.items():
        print_lines(f"time limit reached before {part}: {count} left out")


def _print_library_and_gpu_differences(found: Verification) -> None:
    from ..verification.compare import find_differing_library_or_gpu_facts

    one, other = found.sides
    facts = find_differing_library_or_gpu_facts(*found.sides.values())
    if facts:
        table = BorderlessTextTable("fact", one, other)
        for name, values in facts.items():
            add_escaped_row(table, name, *map(str, values))
        print_or_write_table(table, None)
