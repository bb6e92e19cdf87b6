"""The short form of a verdict: at most 8 lines of 100 columns, with everything needed to act."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import TYPE_CHECKING

from ...plans.candidate import CANNOT_LOAD
from ...printable import make_lines_printable, printable
from ..verdict import STAGES_AFTER_CHECK, Outcome, Verdict

if TYPE_CHECKING:
    from rich.console import Group

    from ...errors import CudnnBackendError

__all__ = ["format_error_summary", "format_graph_line", "format_summary", "render_summary", "shorten_text"]

MAX_COLUMNS = 100
MAX_LINES = 8
# Rows that share the lines left, in order.
_MOST_LINES = {"cause": 2, "remedy": 2, "fix": 2, "versions": 2, "issue": 3, "lint": 3}
_LONG_NAME = 24  # characters
_LABEL_COLUMNS = 9
_MIN_NAME_COLUMNS = 8  # of the graph's name in the first line
_ELLIPSIS = " ... (-v)"
_OPERATION_PATTERN = re.compile(r"\s*((?:(?! : ).)+?) = (\w+)\(.*")
_TENSOR_PATTERN = re.compile(r"\s*(\S+) : (\w+\[[^\]]*\])(?: \((.*)\))?")


def render_summary(verdict: Verdict) -> Group:
    """Return the short form for rich: outcome, cause, remedy, known issues, graph in one line, engine configs."""
    from rich.console import Group
    from rich.text import Text

    from .text import OUTCOME_STYLES

    rows = list(_make_summary_lines(verdict))
    head, *rest = rows
    parts = [Text(head, OUTCOME_STYLES[verdict.outcome], no_wrap=True)]
    parts += [Text.assemble((line[:_LABEL_COLUMNS], "bold"), line[_LABEL_COLUMNS:]) for line in rest]
    return Group(*parts)


def format_summary(verdict: Verdict) -> str:
    """Return the short form as plain text."""
    return make_lines_printable("".join(f"{line}\n" for line in _make_summary_lines(verdict)))


def format_error_summary(error: CudnnBackendError) -> list[str]:
    """Return the lines of an error that kept a graph from being judged."""
    rows = [(name, str(error.sections[name])) for name in ("where", "fix") if error.sections.get(name)]
    lines = [
        line
        for label, text in (("cause", error.headline), *rows)
        for line in _format_row(label, _clean_text(text), lines=2)
    ]
    return [Outcome.NOT_JUDGED.value.upper(), *lines]


def _make_summary_lines(verdict: Verdict) -> Iterator[str]:
    yield _make_first_line(verdict)
    rows = dict(_list_summary_rows(verdict))
    names = _find_long_names(verdict.graph_text)
    texts = {label: _clean_text(text) for label, text in rows.items()}
    lines = dict.fromkeys(rows, 1)
    for label, most in _MOST_LINES.items():
        needed = len(_wrap_text(texts.get(label, "")))
        if needed > most:  # long names alone would fill the row
            texts[label] = _shorten_names(texts[label], names)
            needed = len(_wrap_text(texts[label]))
        free = MAX_LINES - 1 - sum(lines.values())
        if label in rows:
            lines[label] += max(0, min(free, needed - 1, most - 1))
    for label, text in texts.items():
        yield from _format_row(label, text, lines[label])


def _make_first_line(verdict: Verdict) -> str:
    """Return outcome, graph, GPU and version in one line; what does not fit is left out, the version never."""
    only = " by FALLBACK only" if verdict.only_fallback is not None else verdict.support_note
    lines = [
        line
        for origin in dict.fromkeys((only, ""))
        for line in _list_first_lines(verdict, f"{verdict.outcome.value.upper()}{origin}{verdict.build_note}: ")
    ]
    return shorten_text(next((line for line in lines if len(line) <= MAX_COLUMNS), lines[-1]))


def _list_first_lines(verdict: Verdict, start: str) -> Iterator[str]:
    """Yield forms of the first line with this start: the name is shortened first, then left out, then the GPU."""
    brief, end = verdict.target_title.removeprefix("NVIDIA "), f", cuDNN {verdict.cudnn}"
    sm = f" (sm_{verdict.sm})" if verdict.sm else ""
    for most in (len(verdict.graph), _MIN_NAME_COLUMNS):
        for place in (verdict.target_title, brief):
            left = max(most, MAX_COLUMNS - len(f"{start}graph '' on {place}{sm}{end}"))
            name = verdict.graph if len(verdict.graph) <= left else f"{verdict.graph[: left - 3]}..."
            yield f"{start}graph {name!r} on {place}{sm}{end}"
    yield f"{start}{brief}{sm}{end}"
    yield f"{start}{brief}{end}"
    if verdict.sm:
        yield f"{start}sm_{verdict.sm}{end}"


def _list_summary_rows(verdict: Verdict) -> Iterator[tuple[str, str]]:
    """Yield the label and the text of each row below the first."""
    cause, known = verdict.cause, verdict.hazards
    if cause is not None:
        yield "cause", cause.headline
        if cause.remedy:
            yield "remedy" if cause.asked else "fix", cause.advice
        if cause.versions:
            yield "versions", cause.versions
    elif verdict.only_fallback is not None and verdict.only_fallback.remedy:
        yield "remedy", verdict.only_fallback.advice
    if known and (verdict.outcome is not Outcome.NOT_SUPPORTED or verdict.stage in STAGES_AFTER_CHECK):
        yield "issue", _format_count_and_first(known)
    if verdict.lint:
        yield "lint", _format_count_and_first(verdict.lint)
    yield "graph", format_graph_line(verdict.graph_text)
    if (configs := _format_configs(verdict)) is not None:
        yield "configs", configs


def _find_long_names(graph_text: str) -> list[str]:
    """Return the names of tensors and operations of a graph that are too long for a row, the longest first."""
    found: set[str] = set()
    for line in graph_text.splitlines():
        for pattern in (_OPERATION_PATTERN, _TENSOR_PATTERN):
            if (match := pattern.fullmatch(line)) is not None:
                found.update(name for name in match[1].split(", ") if len(name) > _LONG_NAME)
    return sorted(found, key=len, reverse=True)


def _shorten_names(text: str, names: Sequence[str]) -> str:
    """Return a text where the middle of long names is left out, except of names that would become equal."""
    short = {name: f"{name[: _LONG_NAME // 3]}..{name[-_LONG_NAME // 2 :]}" for name in names}
    for name in names:
        if list(short.values()).count(short[name]) == 1:
            text = re.sub(rf"(?<![\w.]){re.escape(name)}(?![\w.])", lambda _, name=name: short[name], text)  # type: ignore[misc]
    return text


def _format_count_and_first(texts: Sequence[str]) -> str:
    """Return the first text; if there are several, precede it by its number and their count: "1 of 3: text"."""
    return (f"1 of {len(texts)}: " if len(texts) > 1 else "") + texts[0]


def _clean_text(text: str) -> str:
    return " ".join(make_lines_printable(printable(" ".join(text.split()))).split())


def _wrap_text(text: str) -> list[str]:
    return textwrap.wrap(text, MAX_COLUMNS - _LABEL_COLUMNS, break_on_hyphens=False) or [""]


def _format_row(label: str, text: str, lines: int) -> Iterator[str]:
    """Yield a label and a text in at most `lines` lines; longer text is cut, as -v shows all of it."""
    wrapped = _wrap_text(text)
    if len(wrapped) > lines:
        last = shorten_text(" ".join(wrapped[lines - 1 :]), MAX_COLUMNS - _LABEL_COLUMNS)
        wrapped = [*wrapped[: lines - 1], last]
    for number, line in enumerate(wrapped):
        yield f"{label if number == 0 else '':<{_LABEL_COLUMNS}}{shorten_text(line, MAX_COLUMNS - _LABEL_COLUMNS)}"


def shorten_text(text: str, columns: int = MAX_COLUMNS) -> str:
    """Return a text, shortened at the end of a word if it does not fit."""
    text = " ".join(make_lines_printable(printable(text)).split())
    if len(text) <= columns:
        return text
    kept = text[: columns - len(_ELLIPSIS)]
    return (kept.rpartition(" ")[0] or kept) + _ELLIPSIS


def format_graph_line(text: str) -> str:
    """Return the graph in one line: inputs, operations and outputs."""
    tensors: dict[str, tuple[str, str]] = {}
    operations: list[str] = []
    results: set[str] = set()
    for line in text.splitlines():
        if (operation := _OPERATION_PATTERN.fullmatch(line)) is not None:
            operations.append(operation[2])
            results.update(operation[1].split(", "))
        elif (tensor := _TENSOR_PATTERN.fullmatch(line)) is not None:
            tensors[tensor[1]] = tensor[2], tensor[3] or ""
    inputs = {name: kind for name, (kind, rest) in tensors.items() if name not in results and "value" not in rest}
    outputs = {name: kind for name, (kind, _) in tensors.items() if name in results}
    chain = ", ".join(
        f"{count} {name}" if count > 1 else name
        for name, count in ((name, len(list(same))) for name, same in groupby(operations))
    )
    short = chain if len(operations) == 1 else f"{len(operations)} operations"
    forms = (
        (_format_tensors_by_kind(inputs), chain, _format_tensors_by_kind(outputs)),
        (_format_tensors_by_kind(inputs), short, _format_tensors_by_kind(outputs)),
        (_format_tensors_by_kind(inputs), short, f"{len(outputs)} outputs"),
        (f"{len(inputs)} inputs", short, _format_tensors_by_kind(outputs)),
        (f"{len(inputs)} inputs", short, f"{len(outputs)} outputs"),
    )
    lines = [" -> ".join(form) for form in forms]
    return next((line for line in lines if len(line) <= MAX_COLUMNS - _LABEL_COLUMNS), lines[-1])


def _format_tensors_by_kind(kinds: dict[str, str]) -> str:
    """Return tensor names with type and dims; equal types and dims of neighbours are written once."""
    groups = groupby(kinds.items(), key=lambda item: item[1])
    return ", ".join(f"{', '.join(name for name, _ in same)} {kind}" for kind, same in groups)


def _format_configs(verdict: Verdict) -> str | None:
    """Return how many engine configs are supported and which comes first; None where cuDNN listed none."""
    if verdict.every_engine:
        counts = verdict.every_engine
        if verdict.supported:
            return f"{counts.partition(';')[0]}; -v: their tags"
        if len(counts) <= MAX_COLUMNS - _LABEL_COLUMNS:
            return counts
        pattern = r"; one knob at a time: engine ([\d, ]+)"
        return re.sub(pattern, lambda found: f"; of {found[1].count(',') + 1} one knob at a time", counts) + " (-v)"
    if not verdict.candidates:
        return "cuDNN listed no engine config (-v: its reasons)" if verdict.reasons else None
    good = sum(one.state in ("supported", "built") for one in verdict.candidates)
    total = len(verdict.candidates)
    if foreign := [one.tag for one in verdict.candidates if one.state == CANNOT_LOAD]:
        other = "no other can be built" if verdict.first is None else f"{verdict.first.tag} was built"
        return f"code of {', '.join(foreign[:2])} is for another architecture; {other}"
    if failed := sum(one.state == "build failed" for one in verdict.candidates):
        more = "" if verdict.first is None else f", then {verdict.first.tag} was built"
        return f"{failed} of {total} pass the support check, and no plan of them can be built{more}"
    if verdict.first is None:
        return f"{total} of {total} engine configs refused (-v: cuDNN's reasons)"
    passed = "supported" if verdict.built else "pass the support check"
    first = f"{good} of {total} {passed}, first {verdict.first.tag or 'an engine without a name'}"
    hints = ("; -v: why others are refused", "; -v: the others", "") if good < total else ("",)
    return next((first + hint for hint in hints if len(first + hint) <= MAX_COLUMNS - _LABEL_COLUMNS), first)
