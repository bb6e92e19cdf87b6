"""Render matrix, range of versions, baseline comparison, upgrade and remedies as text."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from difflib import unified_diff

from rich.console import Group, RenderableType
from rich.text import Text

from ...graph import Graph
from ...printable import printable
from ...system.streams import format_markdown_table
from ...terminal import BorderlessTextTable, render_as_text
from ..remedy import Remedies, Remedy
from ..surveys.attention import SupportTable
from ..surveys.baseline import CheckedVerdict
from ..surveys.inputs import DEFAULT_VERSION
from ..surveys.matrix import Cell, Matrix
from ..surveys.since import Since
from ..surveys.upgrade import Difference, Effect, Upgrade
from ..verdict import ENGINES_MISSING_CODE, STAGES_AFTER_CHECK, Outcome, Verdict
from .text import make_indented_lines, make_line

__all__ = [
    "format_verdict_matrix_markdown",
    "render_as_text",
    "render_baseline_check",
    "render_remedies",
    "render_support_table",
    "render_supporting_version_range",
    "render_verdict_matrix",
    "render_version_comparison",
]

_MAX_VERSION_COLUMNS = 8  # versions in one table: so many fit into eighty columns
_LETTER_STYLES = {"S": "green", "-": "red", "?": "yellow", "!": "bold magenta"}
_LETTER_MEANINGS = {"S": "supported", "-": "not supported", "?": "could not be judged", "!": "cuDNN crashed or hung"}


def render_verdict_matrix(matrix: Matrix) -> Group:
    """Return a table of targets and versions for each graph; numbers in cells refer to the causes below."""
    parts: list[RenderableType] = []
    everywhere = set.intersection(*(set(cell.remarks) for cell in matrix.cells.values())) if matrix.cells else set()
    for graph in matrix.graphs:
        parts += [*_render_matrix_of_graph(matrix, graph, everywhere), Text("")]
    lacking = dict.fromkeys(
        version for (*_, version), cell in matrix.cells.items() if cell.cause == ENGINES_MISSING_CODE
    )
    remarks = (Text.assemble(("remark: ", "bold yellow"), make_line(one)) for one in sorted(everywhere))
    return Group(
        *parts,
        _render_outcome_letter_legend(list(matrix.cells.values())),
        *remarks,
        *_format_full_wheel_commands(lacking),
    )


def render_support_table(table: SupportTable) -> Group:
    """Return a table with a row for each kind of attention graph; numbers in cells refer to the reasons below."""
    reasons: dict[str, int] = {}
    rows = BorderlessTextTable("attention", "written as", *table.targets, title=f"cuDNN {table.cudnn}")
    for name, forms in table.cells.items():
        for form, cells in forms.items():
            texts = []
            for target in table.targets:
                cell = cells[target]
                number = reasons.setdefault(cell.reason, len(reasons) + 1) if cell.reason else ""
                engines = f"engine {', '.join(map(str, cell.engines))}" if cell.engines else ""
                texts.append(" ".join(map(str, filter(None, (cell.answer, number, engines)))))
            rows.add_row(name, form, *texts)
    return Group(rows, *(make_line(f"{number}: {reason}") for reason, number in reasons.items()))


def format_verdict_matrix_markdown(matrix: Matrix) -> str:
    """Return the tables of :func:`render_verdict_matrix` as Markdown."""
    lines = []
    for graph in matrix.graphs:
        rows, marks, causes = _assign_marks_to_causes(matrix, graph)
        cells = {(target, version): cell for (name, target, version), cell in matrix.cells.items() if name == graph}
        lines += [f"## {_escape_markdown(graph)}", ""]
        lines += format_markdown_table(
            map(_escape_markdown, ("target", *matrix.versions)),
            (
                [
                    _escape_markdown(target),
                    *("" if cell is None else _format_cell_with_cause_mark(cell, marks).plain for cell in row),
                ]
                for target, row in rows.items()
            ),
        )
        notes = [f"{mark}: {headline}" for mark, headline in causes.items()]
        notes += [remark.plain for remark in _render_matrix_remarks(cells)]
        lines += ["", *(f"* {_escape_markdown(one)}" for one in notes), ""]
    return "\n".join([*lines, _render_outcome_letter_legend(list(matrix.cells.values())).plain]) + "\n"


def _escape_markdown(text: str) -> str:
    """Return a text in one line, with characters escaped that Markdown would interpret."""
    return re.sub(r"([\\`*_<>\[\]])", r"\\\1", " ".join(printable(text).split()))


def _format_full_wheel_commands(lacking: Iterable[str]) -> list[Text]:
    """Return a line about how to install the engines that some versions lack."""
    names = dict.fromkeys(version.removesuffix("-jit") for version in lacking if version != DEFAULT_VERSION)
    wheels = [f"cudnn-backend cudnn install {name} --full" for name in names]
    return (
        [make_line(f"full wheels, with engines that might support what these refuse: {'; '.join(wheels)}")]
        if wheels
        else []
    )


def _render_matrix_of_graph(matrix: Matrix, graph: str, everywhere: Collection[str]) -> list[RenderableType]:
    """Return the table of a graph, its causes, and the remarks that do not apply to every cell."""
    rows, marks, causes = _assign_marks_to_causes(matrix, graph)
    tables: list[RenderableType] = [make_line(graph, "bold")]
    for first in range(0, len(matrix.versions), _MAX_VERSION_COLUMNS):
        part = slice(first, first + _MAX_VERSION_COLUMNS)
        table = BorderlessTextTable("target", *map(printable, matrix.versions[part]))
        for target, row in rows.items():
            shown = (Text("") if cell is None else _format_cell_with_cause_mark(cell, marks) for cell in row[part])
            table.add_row(make_line(target), *shown)
        tables += [table, Text("")]
    told = (make_line(f"{mark:<4}", _LETTER_STYLES[mark[0]]).append(make_line(text)) for mark, text in causes.items())
    cells = {(target, version): cell for (name, target, version), cell in matrix.cells.items() if name == graph}
    return [*tables, *told, *_render_matrix_remarks(cells, everywhere)]


def _assign_marks_to_causes(
    matrix: Matrix, graph: str
) -> tuple[dict[str, list[Cell | None]], dict[tuple[str, str], str], dict[str, str]]:
    """Return a graph's cells by target, the mark of each (letter, cause), and each mark's text.

    Causes that differ only in the architecture they name first have one mark, and a text that names all of them.
    """
    rows = {
        target: [matrix.cells.get((graph, target, version)) for version in matrix.versions] for target in matrix.targets
    }
    found = [cell for row in rows.values() for cell in row if cell is not None]
    marks: dict[tuple[str, str], str] = {}
    alike: dict[tuple[str, tuple[str, ...]], list[str]] = {}  # architectures by letter and the rest of the cause
    for letter, headline in dict.fromkeys((cell.letter, cell.headline) for cell in found if cell.headline):
        named = re.search(r"\bsm_\d+\b", headline)
        parts = (headline,) if named is None else tuple(re.split(rf"\b{named[0]}\b", headline))
        architectures = alike.setdefault((letter, parts), [])
        architectures += [] if named is None else [named[0]]
        marks[letter, headline] = f"{letter}{list(alike).index((letter, parts)) + 1}"
    texts = {
        f"{letter}{number}": _join_alternatives(names).join(parts)
        for number, ((letter, parts), names) in enumerate(alike.items(), 1)
    }
    return rows, marks, texts


def _join_alternatives(names: Sequence[str]) -> str:
    """Return names as text such as "a, b or c"; empty if there are none."""
    *first, last = names or [""]
    return f"{', '.join(first)} or {last}" if first else last


def _format_cell_with_cause_mark(cell: Cell, marks: Mapping[tuple[str, str], str]) -> Text:
    return Text(marks.get((cell.letter, cell.headline), cell.letter), _LETTER_STYLES[cell.letter])


def _render_matrix_remarks(cells: Mapping[tuple[str, str], Cell], told: Collection[str] = ()) -> Iterator[Text]:
    """Yield a line for each known issue and remark, with the cells it applies to.

    But not for what is `told` elsewhere.
    """
    where: dict[tuple[str, str], list[tuple[str, str]]] = {}
    for place, cell in cells.items():
        refused = cell.outcome is Outcome.NOT_SUPPORTED and cell.stage not in STAGES_AFTER_CHECK
        hazards = () if refused else cell.hazards
        for label, said in (("known issue", hazards), ("remark", cell.remarks)):
            for one in (text for text in said if text not in told):
                where.setdefault((label, one), []).append(place)
    for (label, one), places in sorted(where.items(), key=lambda item: item[0][0]):
        yield Text.assemble((f"{label}{_format_targets_and_versions(places, cells)}: ", "bold yellow"), make_line(one))


def _format_targets_and_versions(places: Sequence[tuple[str, str]], cells: Mapping[tuple[str, str], Cell]) -> str:
    """Return text that names the targets and versions of these cells; empty if they are all cells."""
    if len(places) == len(cells):
        return ""
    targets, versions = (list(dict.fromkeys(names)) for names in zip(*places, strict=True))
    if len(places) == len(targets) * len(versions):
        return printable(f" ({', '.join(targets)}; cuDNN {', '.join(versions)})")
    return printable(f" ({'; '.join(f'{target}, cuDNN {version}' for target, version in places)})")


def _render_outcome_letter_legend(cells: Sequence[Cell]) -> Text:
    present = {cell.letter for cell in cells}
    return Text("   ".join(f"{letter} {text}" for letter, text in _LETTER_MEANINGS.items() if letter in present), "dim")


def render_remedies(verdict: Verdict, graph: Graph, remedies: Remedies, *, again: str = "") -> Group:
    """Return the verdict on the graph, and each remedy as a diff.

    Parameters
    ----------
    again
        The command that continues a search which was not finished.
    """
    where = f"graph {verdict.graph!r} on {verdict.target_title}, cuDNN {verdict.cudnn}"
    parts: list[RenderableType] = [
        make_line(f"{verdict.outcome.value.upper()}{verdict.support_note}{verdict.build_note}: {where}", "bold")
    ]
    if verdict.cause is not None:
        parts.append(make_line(f"cause: {verdict.cause.headline}"))
        if verdict.cause.code == ENGINES_MISSING_CODE or verdict.has_version_remedy:
            parts.append(make_line(f"remedy: {verdict.cause.advice}"))
    for label, said in (("known issue", verdict.hazards), ("remark", verdict.remarks)):
        parts += [Text.assemble((f"{label}: ", "bold yellow"), make_line(one)) for one in said]
    if verdict.supported:
        parts.append(make_line(_explain_that_no_change_is_needed(verdict)))
    elif not remedies.extent.finished:
        parts.append(make_line(f"the search was not finished: {remedies.extent.stopped}; {remedies.extent}", "yellow"))
        parts += [make_line(f"continue with: {again}")] if again else []
    elif not remedies:
        other, rest = (" other", "") if verdict.has_version_remedy else ("", ", none with another version")
        line = f"no{other} change was found with which it is supported: {remedies.extent}{rest}"
        parts.append(make_line(line, "yellow"))
    for number, remedy in enumerate(remedies, 1):
        note = f"  [{remedy.effect_with_check}; {_describe_remedy_check(remedy)}]"
        parts.append(Text.assemble(f"\n{number}. ", make_line(remedy.title, "bold"), note))
        before = str(graph).splitlines()
        after = [one for part in remedy.graphs or (remedy.graph,) for one in str(part).splitlines()]
        for one in list(unified_diff(before, after, lineterm="", n=0))[2:]:
            style = {"+": "green", "-": "red"}.get(one[0], "dim")
            parts += [] if one.startswith("@@") else [make_line(f"   {one}", style)]
    return Group(*parts)


def _explain_that_no_change_is_needed(verdict: Verdict) -> str:
    """Return the line for a graph that needs no change; if only FALLBACK supports it, with the modes to try."""
    how = "a plan of it was built" if verdict.stage in ("plan", "execute") else "it passes its support check"
    if verdict.only_fallback is None:
        return f"nothing needs to be changed: {how}{verdict.support_note}"
    others = [mode for mode in verdict.modes if mode != "FALLBACK"]
    return f"nothing needs to be changed: {how}; for a program without FALLBACK: --mode {' --mode '.join(others)}"


def _describe_remedy_check(remedy: Remedy) -> str:
    """Return how thoroughly a remedy was checked."""
    if remedy.verdict is None:
        return "not judged"
    return "judged and built" if remedy.verdict.stage == "plan" else "passes its support check, not built"


def render_supporting_version_range(since: Since) -> Group:
    """Return the range of supporting versions in one sentence, its gaps, and the verdict of each judged version."""
    judged = len(since.asked) - len(since.unjudged)
    at_latest = " at the latest" if since.open_before else ""
    at_least = " at least" if since.open_after else ""
    until = " on" if since.last == since.versions[-1] else f" to {since.last}{at_least}"
    span = (
        f"supported from {since.first}{at_latest}{until}"
        if since.first is not None
        else f"supported by none of the {judged} versions that could judge"
        if since.unjudged
        else f"supported by none of the {judged} versions that were queried"
    )
    refused = f"; refused by {since.first_after}, the next version judged" if since.first_after else ""
    if since.repaired:
        span = f"accepted from {since.first} to {since.last}, with a known issue"
        refused = f"; {since.first_after} refuses it, which repairs that issue and is no regression"
    style = "green" if since.sound is not None else "red"
    lines: list[RenderableType] = [
        Text.assemble(make_line(f"graph {since.graph!r} on {since.target}: "), make_line(span + refused, style))
    ]
    if since.first == since.versions[0]:
        older = _describe_missing_versions(since.missing_before)
        more = older or "; 'cudnn-backend cudnn list --available' names older ones"
        lines.append(Text(f"{since.first} is the oldest version judged: support may be older{more}", "dim"))
    elif since.first is not None:
        before = since.versions[since.versions.index(since.first) - 1]
        lines.append(
            Text(
                f"{before} is the version judged before {since.first}: support may have begun in between"
                f"{_describe_missing_versions(since.missing_before)}",
                "dim",
            )
        )
    if between := _describe_missing_versions(since.missing_after):
        lines.append(Text(f"support may have ended between {since.last} and {since.first_after}{between}", "dim"))
    lines += [Text.assemble(("repaired issue: ", "bold"), make_line(issue)) for issue in since.repaired]
    if since.repaired:
        sound = f"{since.sound} supports the graph without it" if since.sound else "no version supports it without it"
        lines.append(Text(f"{sound}; do not go back to {since.last}", "yellow"))
    if since.gaps:
        lines.append(Text(f"not monotone: {', '.join(since.gaps)} between them refuse it", "yellow"))
    if since.unjudged:
        lines.append(Text(f"could not judge: {', '.join(since.unjudged)}", "yellow"))
    if since.inferred_versions:
        lines.append(
            Text(f"not judged: {', '.join(since.inferred_versions)}; assumed: support begins and ends once", "dim")
        )
    table = BorderlessTextTable("version", "", "cause")
    for version, cell in since.asked.items():
        table.add_row(
            make_line(version), Text(cell.outcome.value, _LETTER_STYLES[cell.letter]), make_line(cell.headline)
        )
    lacking = [version for version, cell in since.asked.items() if cell.cause == ENGINES_MISSING_CODE]
    remarks = _render_matrix_remarks({(since.target, version): cell for version, cell in since.asked.items()})
    return Group(*lines, table, *remarks, *_format_full_wheel_commands(lacking))


def _describe_missing_versions(minors: Sequence[str]) -> str:
    """Return the versions that are not judged, and the option that installs those needed; empty if there are none."""
    if not minors:
        return ""
    names = minors[0] + f" to {minors[-1]}" * (len(minors) > 1)
    count = len(minors).bit_length()
    which = f"up to {count} of these, some 60 MB each," if count > 1 else "it, some 60 MB,"
    return f": not judged is {names}; --install installs {which} and judges again"


def render_baseline_check(checked: Sequence[CheckedVerdict], updated: str | None = None) -> Group:
    """Return the comparison with a baseline: for each changed verdict the lines of ``explain``, then the counts.

    `updated` is the baseline file that the changes were written into: of those only the first line is shown.
    """
    changed = [one for one in checked if one.changed]
    recordable = [one for one in changed if one.can_be_recorded]
    new, unjudged = sum(not one.expected for one in recordable), len(changed) - len(recordable)
    counts = f"{len(checked)} {'verdict' if len(checked) == 1 else 'verdicts'} checked, {len(recordable) - new} changed"
    counts += f", {new} new" if new else ""
    counts += f"; {updated} is updated" if recordable and updated is not None else ""
    if unjudged:
        counts += f"; {unjudged} could not be judged" + (f", and {updated} keeps what it had" if updated else "")
    if not changed:
        return Group(make_line(counts, "green"))
    parts: list[RenderableType] = []
    for one in changed:
        head, *rest = one.format_change_lines()
        parts.append(make_line(head, _LETTER_STYLES[one.cell.letter]))
        if updated is None or not one.can_be_recorded:
            parts += [*map(make_line, rest), make_line("")]
    parts.append(make_line(counts, "red" if updated is None else "yellow"))
    if updated is None and new:
        parts.append(make_line("fix: 'cudnn-backend check --update FILE' writes verdicts that FILE does not have yet"))
    from ..causes.find import DEVICE_NEEDED_CODE  # only here

    unjudged_cells = (one.cell for one in changed if one.is_unexpectedly_unjudged)
    if any(cell.stage == "environment" and cell.cause != DEVICE_NEEDED_CODE for cell in unjudged_cells):
        parts.append(make_line("fix: 'cudnn-backend doctor' shows what prevents verdicts, each with its fix"))
    return Group(*parts)


def render_version_comparison(found: Upgrade) -> Group:
    """Return the change of each graph between two cuDNN versions, lost support first, and a line of counts."""
    parts: list[RenderableType] = []
    for one in sorted(found.changes, key=lambda one: (not one.lost_support, not one.is_worse)):
        if one.effect is Effect.UNCHANGED:
            continue
        style = "red" if one.is_worse else _EFFECT_STYLES[one.effect]
        effect = "same first plan; listed configs differ" if one.changes_only_engine_config_lists else one.effect.value
        if one.lost_support:
            effect = f"support lost{_format_cause_headline(one.new)}"
        parts.append(Text.assemble(make_line(f"{one.graph} on {one.target}: "), (effect, style)))
        if one.effect is Effect.NOT_JUDGED:
            parts += [
                make_indented_lines(f"{verdict.cudnn}: {verdict.outcome.value}{_format_cause_headline(verdict)}", 4)
                for verdict in (one.old, one.new)
            ]
        for item in one.differences:
            parts += [make_line(f"  {item.what}"), *_format_verdict_difference(item)]
        if one.changes_only_compiled_code:
            parts.append(make_line("  only the compiled code of the first plan differs", "dim"))
        if one.has_same_code and not one.changes_only_engine_config_lists:
            parts.append(make_line("  the compiled code of the first plan is the same", "dim"))
        if (times := one.times) is not None and not {"time", "numbers"} & {item.what for item in one.differences}:
            old, new = ("no time" if us is None else f"{us:.1f} us" for us in (times.old_us, times.new_us))
            parts.append(make_line(f"  run by both: {times.old_state}, {old} -> {new}", "dim"))
    counts = ", ".join(f"{count} {kind.value}" for kind, count in found.counts.items() if count)
    numbers = (
        (sum(one.lost_support for one in found.changes), "lost support"),
        (sum(one.changes_only_engine_config_lists for one in found.changes), "only in the listed configs"),
    )
    if notes := ", ".join(f"{count} {kind}" for count, kind in numbers if count):
        counts += f" ({notes})"
    style = "green" if found.exit_code == 0 else "red" if found.exit_code == 1 else "yellow"
    old = _format_full_version_name(found.old, (one.old for one in found.changes))
    new = _format_full_version_name(found.new, (one.new for one in found.changes))
    parts.append(make_line(f"cuDNN {old} -> {new}: {len(found.changes)} judged, {counts}", style))
    parts += [make_indented_lines(limit, 0, "dim") for limit in found.limits]
    return Group(*parts)


def _format_full_version_name(name: str, verdicts: Iterable[Verdict]) -> str:
    """Return the name of a version; ``default`` or 9.19 is followed by the full version."""
    whole = name.count(".") > 1
    told = next((one.cudnn for one in verdicts if one.outcome is not Outcome.NOT_JUDGED and not whole), "")
    return f"{name} ({told})" if told else name


_EFFECT_STYLES = {Effect.CHANGED: "yellow", Effect.CODE_UNKNOWN: "dim", Effect.NOT_JUDGED: "magenta"}


def _format_cause_headline(verdict: Verdict) -> str:
    return f": {verdict.cause.headline}" if verdict.cause is not None else ""


def _format_verdict_difference(item: Difference) -> list[Text]:
    """Return lines with the old and the new value of a difference; for lists, only the items that differ."""
    if item.what not in ("configs", "faults"):
        return [make_indented_lines(f"- {item.old}", 4, "red"), make_indented_lines(f"+ {item.new}", 4, "green")]
    old, new = item.old.split(", "), item.new.split(", ")
    if set(old) == set(new):
        return [make_indented_lines(f"the same {len(old)} in another order, first {new[0]}", 4)]
    told = (
        ("-", "red", [one for one in old if one not in new]),
        ("+", "green", [one for one in new if one not in old]),
    )
    return [make_indented_lines(f"{sign} {', '.join(some)}", 4, style) for sign, style, some in told if some]
