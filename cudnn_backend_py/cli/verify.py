"""The command ``target verify``: does a described GPU answer as the real one does?"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import click

from ..command_line import Command
from ..terminal import WordTable, progress_bar
from .options import TargetName, with_seconds, with_target
from .output import NOT_JUDGED, OutputFile, add_row, as_json, put_table, say, write_report
from .wheels import with_version

if TYPE_CHECKING:
    from ..verification.verify import Verification

__all__ = ["verify"]

_OUTPUT = "Write the answers here, as JSON; named after architecture and version if not given."
_MOST_ROWS = 20  # of the table of differences


@click.command(cls=Command)
@with_target()
@click.option("--as", "other", type=TargetName(), help="Compare with this described GPU (h200, a JSON file).")
@with_seconds("--limit", "limit_s", more_than_0=True, default=300, help="For all of it.")
@click.option("--output", type=OutputFile(), help=_OUTPUT)
@click.option("--contribute", is_flag=True, help="Also print the text for the issue form of hardware evidence.")
@with_version
def verify(target: str | None, other: str | None, limit_s: float, output: str | None, contribute: bool) -> None:
    """Compare a described GPU with the real one.

    cuDNN judges 300 graphs twice: for the GPU of this machine, and for its description in a process without a GPU.
    Outcomes, engine configs and their order, workspace, and the code of some plans are compared. Some graphs are run
    and compared with NumPy, and known issues are tried, in child processes. The JSON file holds every answer and
    nothing about the machine but GPU and driver. With --target nothing is run, and only --as is compared. Exit code
    0 if all outcomes agree, 1 if some differ, 2 if the graphs could not be judged.
    """
    if contribute and target is not None:
        raise click.UsageError("--contribute is for the GPU of this machine: a described GPU is no evidence")
    from ..target import find_profile
    from ..verification.verify import verify as run_verification

    first, second = (None if name is None else find_profile(name) for name in (target, other))
    described, compared = (second, None) if target is None else (first, second)
    with progress_bar(1.0) as (step, _):
        found = run_verification(described, compared, live=target is None, limit_s=limit_s, step=step)
    facts = next(iter(found.sides.values()))
    path = output or f"verification-sm{facts.sm}-cudnn-{facts.cudnn}.json"
    write_report(as_json(found.to_dict()), path)
    _print(found)
    say(f"{found.summary}; every answer is in {path}")
    if contribute:
        from ..verification.contribution import Contribution

        write_report(json.dumps(Contribution.from_verification(found).to_dict()) + "\n", None)
    raise SystemExit(NOT_JUDGED if not found.is_whole else found.wrong_outcomes > 0)


def _print(found: Verification) -> None:
    from ..verification.compare import ASPECTS, first_difference

    if found.is_compared:
        table = WordTable("family", "graphs", "agree", "built", *(f"{aspect} differs" for aspect in ASPECTS))
        for family, counts in found.families().items():
            add_row(table, family, *(str(counts[name]) for name in ("graphs", "agree", "built", *ASPECTS)))
        put_table(table, None)
        _print_facts(found)
        one, other = found.sides
        rows = [(row, aspect) for row in found.rows for aspect in row.differences]
        rows.sort(key=lambda pair: ASPECTS.index(pair[1]))
        if rows:
            table = WordTable("graph", "differs in", one, other)
            for row, aspect in rows[:_MOST_ROWS]:
                values = first_difference(row.answers[one], row.answers[other], aspect)
                add_row(table, row.case.name, aspect, *values)
            put_table(table, None)
        if len(rows) > _MOST_ROWS:
            say(f"and {len(rows) - _MOST_ROWS} more differences")
    for title, runs in (("compared with NumPy", found.compared), ("known issues tried", found.known_issues)):
        if runs:
            states = {
                state: sum(item.state == state for item in runs) for state in dict.fromkeys(r.state for r in runs)
            }
            say(f"{title}: {', '.join(f'{count} {state}' for state, count in states.items())}")
    for item in found.compared:
        if item.state in ("wrong", "failed"):
            say(f"  {item.state}: {item.name} by {item.tag}")
    for part, count in found.left_out.items():
        say(f"no time for {part}: {count} left out")


def _print_facts(found: Verification) -> None:
    from ..verification.compare import differing_facts

    one, other = found.sides
    facts = differing_facts(*found.sides.values())
    if facts:
        table = WordTable("fact", one, other)
        for name, values in facts.items():
            add_row(table, name, *map(str, values))
        put_table(table, None)
