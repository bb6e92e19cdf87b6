"""The page of attention support tables: one option per row, with the reasons of refusals."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from ...graph.attention import AttentionUse, SoftCap, find_measured_issues
from ...known_issues import Form
from ...printable import printable
from ...system.version import Version
from ...target import find_profile
from ..surveys.attention import BASE_OPTIONS, AttentionRow, SupportCell, SupportTable, attention_rows

__all__ = ["render_page"]

_ISSUE_FORMS: dict[str, Form] = {
    "composite": "expanded",
    "single operations": "single operations",
    "unified": "unified",
}
_ANSWER_TEXTS = {"yes": "yes", "no": "no", "crash": "crashes", "?": "not judged"}
_SUPERSCRIPTS = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")

_PAGE_HEAD = """\
# Attention: support by option

Find an option of attention and read which cuDNN versions and architectures support it. Tested: {targets}; cuDNN
{versions}. An answer without an architecture holds for all of these, one without a version for all these versions.
Versions between them were not tested: `cudnn-backend matrix --since GRAPH` finds the first one.
`cudnn-backend attention-table --target sm90 --row causal` judges with your cuDNN.

"Many operations" are graphs of matmul, softmax and so on (`implementation="composite"`); "one operation" is cuDNN's
SDPA operation (`"unified"`). A cell is empty if these versions have no such operation or attribute. "Wrong" means
that cuDNN accepts the graph and computes it wrong. Small numbers refer to the [reasons](#reasons).

Each problem is {base} with the arguments of its row. cuDNN checked the
graphs for described GPUs; their plans were not built.
"""
_PAGE_FOOT = """\
As data, with the engines that support each graph: {files}.
"""
SupportState = tuple[str, tuple[str, ...]]  # a text of _ANSWER_TEXTS or "wrong", and the reasons


def render_page(tables: Sequence[SupportTable], *, files: Sequence[str]) -> str:
    """Return the page of some tables as Markdown, with links to their `files`.

    Targets and rows are those of the newest table.
    """
    ordered = sorted(tables, key=lambda table: Version.from_text(table.cudnn))
    page = _SupportPage(ordered)
    head = _PAGE_HEAD.format(
        base=_format_options(BASE_OPTIONS),
        targets=", ".join(page.targets),
        versions=", ".join(page.versions),
    )
    bodies = [f"## {name.capitalize()} pass\n\n" + "\n".join(page.make_table(name)) for name in ("forward", "backward")]
    notes = [f"{number}. {text}" for text, number in page.notes.items()]
    foot = _PAGE_FOOT.format(files=", ".join(map(_format_inline_code, files)))
    return "\n".join([head, *(f"{body}\n" for body in bodies), "## Reasons\n", *notes, "", foot])


class _SupportPage:
    """The rows of the page, and the reasons in order of first use."""

    def __init__(self, tables: Sequence[SupportTable]) -> None:
        self.tables = tables
        self.versions = [table.cudnn for table in tables]
        self.targets = tables[-1].targets
        self.sm = {target: find_profile(target).sm for target in self.targets}
        self.notes: dict[str, int] = {}

    def make_table(self, direction: str) -> Iterator[str]:
        """Yield the lines of the table for a direction."""
        yield "| option | arguments of `Attention` | many operations | one operation |"
        yield "|---|---|---|---|"
        for name, row in attention_rows().items():
            if row.direction == direction and name in self.tables[-1].cells:
                many, one = self._format_cell(name, row, "composite"), self._format_cell(name, row, "unified")
                if self._is_support_different_by_graph_form(name, row):
                    single = self._format_cell(name, row, "single operations")
                    many += f"; with single operations for masks and softmax: {single}"
                yield f"| {name.partition(': ')[2]} | {_format_options(row.options)} | {many} | {one} |"

    def _is_support_different_by_graph_form(self, name: str, row: AttentionRow) -> bool:
        """Whether composite graphs are supported differently from graphs with single mask and softmax operations."""
        for table in self.tables:
            for target in self.targets:
                state, other = (
                    self._find_support_state(table, name, row, form, target)
                    for form in ("single operations", "composite")
                )
                if state is not None and (other is None or state[0] != other[0]):
                    return True
        return False

    def _format_cell(self, name: str, row: AttentionRow, form: str) -> str:
        """Return a table cell: the support of one form of graph, grouped by architecture."""
        texts = {target: self._format_versions(name, row, form, target) for target in self.targets}
        groups: dict[str, list[str]] = {}
        for target, text in texts.items():
            groups.setdefault(text, []).append(target)
        if len(groups) == 1:
            return next(iter(groups))
        return "; ".join(f"{', '.join(targets)}: {text or 'no such graph'}" for text, targets in groups.items())

    def _format_versions(self, name: str, row: AttentionRow, form: str, target: str) -> str:
        """Return the support on one architecture, grouped by ranges of cuDNN versions."""
        states = [self._find_support_state(table, name, row, form, target) for table in self.tables]
        runs: list[tuple[int, int, SupportState]] = []
        for number, state in enumerate(states):
            if state is None:
                continue
            if runs and runs[-1][1] == number - 1 and runs[-1][2][0] == state[0]:
                first, _, (text, reasons) = runs.pop()
                state = (text, tuple(dict.fromkeys(reasons + state[1])))
                runs.append((first, number, state))
            else:
                runs.append((number, number, state))
        if len(runs) == 1 and runs[0][2][0] == "no":  # older versions have no such graph
            return self._format_support(runs[0][2])
        return ", ".join(self._format_version_range_support(*run) for run in runs)

    def _format_version_range_support(self, first: int, last: int, state: SupportState) -> str:
        tested = self.versions[first : last + 1]
        support = self._format_support(state)
        return support if tested == self.versions else f"{support} with {' and '.join(tested)}"

    def _format_support(self, state: SupportState) -> str:
        text, reasons = state
        return text + self._format_reason_reference(reasons)

    def _find_support_state(
        self, table: SupportTable, name: str, row: AttentionRow, form: str, target: str
    ) -> SupportState | None:
        cell: SupportCell | None = table.cells.get(name, {}).get(form, {}).get(target)
        if cell is None or cell.answer == "-":
            return None
        if cell.answer != "yes":
            return _ANSWER_TEXTS[cell.answer], (_format_inline_code(cell.reason),)
        use = AttentionUse(
            row.problem,
            row.direction == "backward",
            _ISSUE_FORMS[form],
            Version.from_text(table.cudnn),
            self.sm[target],
        )
        wrong = tuple(f"`{one.code}`: {one.what}: {one.effect}" for one in find_measured_issues(use))
        return ("wrong" if wrong else "yes"), wrong

    def _format_reason_reference(self, texts: Iterable[str]) -> str:
        numbers = [self.notes.setdefault(text, len(self.notes) + 1) for text in texts]
        return ",".join(str(number).translate(_SUPERSCRIPTS) for number in numbers)


def _format_inline_code(text: str) -> str:
    """Return a text as inline Markdown code, with enough backticks around it."""
    shown = printable(text)
    fence = "`" * (1 + max(map(len, re.findall("`+", shown)), default=0))
    return f"{fence}{shown}{fence}" if len(fence) == 1 else f"{fence} {shown} {fence}"


def _format_options(options: Mapping[str, Any]) -> str:
    return "`" + " ".join(_format_option(name, value) for name, value in options.items()) + "`" if options else ""


def _format_option(name: str, value: Any) -> str:
    if value is True:
        return name
    if isinstance(value, SoftCap):
        return f"{name}=SoftCap({value.cap:g})"
    return f"{name}={getattr(value, 'name', value)}".replace(" ", "")
