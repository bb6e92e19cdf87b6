"""The page of the support tables: rows are options, columns architectures, every refusal with its reason."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from ...graph.attention import SoftCap, Use, find_measured_issues
from ...known_issues import Form
from ...printable import printable
from ...system.version import Version
from ...target import find_profile
from ..surveys.attention import BASE, FORMS, Cell, Row, SupportTable, attention_rows

__all__ = ["render_page"]

_LETTERS = dict(zip(FORMS, "csu", strict=True))
_HAZARD_FORMS: dict[str, Form] = {
    "composite": "expanded",
    "single operations": "single operations",
    "unified": "unified",
}
_SUPERSCRIPTS = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")

_HEAD = """\
# What cuDNN says to every option of attention

Which options of attention cuDNN supports, by version and architecture. Every mark is a verdict of the real cuDNN for a
described GPU, asked without a device, so what only building or running shows is not in it.

Where a row says nothing else, the problem is {base}.
`cudnn-backend attention-table --target sm90 --row causal` asks the available cuDNN.

* A cell is {versions}; one entry means all of them where they agree.
* **c** composite: many operations, which every version supports. **s** the same with single operations for masks and
  softmax, since 9.21; shown where its mark is not that of c. **u** unified: one SDPA operation.
* A letter alone: supported. {hazard}: supported, and then wrong, as the note says. A letter struck out: refused, for
  the reason in the note. {crash}: the process that asked crashed. {unknown}: could not be judged. No letter: there is
  no such graph, mostly since the operation or an attribute of it is newer than that cuDNN.
"""
_FOOT = """\
Written by `make attention-table`; do not edit. The files of the verdicts, {files},
hold the engines that support a graph, too, and the reasons why there is no such graph.
"""


def render_page(tables: Sequence[SupportTable], *, files: Sequence[str]) -> str:
    """Return the page of some tables as Markdown; `files` is where they are.

    Targets and rows are those of the newest table.
    """
    ordered = sorted(tables, key=lambda table: Version.from_text(table.cudnn))
    page = _Page(ordered)
    head = _HEAD.format(
        base=_options(BASE),
        versions=" / ".join(table.cudnn for table in ordered),
        hazard="`!`",
        crash="`†`",
        unknown="`?`",
    )
    bodies = [f"## {name.capitalize()}\n\n" + "\n".join(page.table(name)) for name in ("forward", "backward")]
    notes = [f"{number}. {text}" for text, number in page.notes.items()]
    foot = _FOOT.format(files=", ".join(map(_code, files)))
    return "\n".join([head, *(f"{body}\n" for body in bodies), "## Notes\n", *notes, "", foot])


class _Page:
    """The notes are numbered as they come."""

    def __init__(self, tables: Sequence[SupportTable]) -> None:
        self.tables = tables
        self.targets = tables[-1].targets
        self.sm = {target: find_profile(target).sm for target in self.targets}
        self.notes: dict[str, int] = {}

    def table(self, direction: str) -> Iterator[str]:
        yield f"| option | of `Attention` | {' | '.join(self.targets)} |"
        yield "|---" * (2 + len(self.targets)) + "|"
        for name, row in attention_rows().items():
            if row.direction == direction and name in self.tables[-1].cells:
                entries = (self._entries(name, row, target) for target in self.targets)
                yield f"| {name.partition(': ')[2]} | {_options(row.options)} | {' | '.join(entries)} |"

    def _entries(self, name: str, row: Row, target: str) -> str:
        entries = [self._entry(table, name, row, target) or "·" for table in self.tables]
        return entries[0] if len(set(entries)) == 1 else " / ".join(entries)

    def _entry(self, table: SupportTable, name: str, row: Row, target: str) -> str:
        cells = {form: cells[target] for form, cells in table.cells.get(name, {}).items() if target in cells}
        marks = {form: self._mark(cell, table, row, form, target) for form, cell in cells.items()}
        if marks.get("single operations") == marks.get("composite"):
            marks.pop("single operations", None)
        return " ".join(mark.replace("@", _LETTERS[form]) for form, mark in marks.items() if mark)

    def _mark(self, cell: Cell, table: SupportTable, row: Row, form: str, target: str) -> str:
        """Return the mark of a cell with @ for the letter of its form."""
        if cell.answer == "-":
            return ""
        if cell.answer == "yes":
            version = Version.from_text(table.cudnn)
            use = Use(
                row.problem,
                row.direction == "backward",
                _HAZARD_FORMS[form],
                version,
                self.sm[target],
            )
            wrong = [
                f"`{item.code}`: {item.what}: {item.effect}; {item.evidence}" for item in find_measured_issues(use)
            ]
            return "@!" + self._refer(wrong) if wrong else "@"
        sign = {"no": "~~@~~", "crash": "@†", "?": "@?"}[cell.answer]
        return sign + self._refer([_code(cell.reason)])

    def _refer(self, texts: Iterable[str]) -> str:
        numbers = [self.notes.setdefault(text, len(self.notes) + 1) for text in texts]
        return ",".join(str(number).translate(_SUPERSCRIPTS) for number in numbers)


def _code(text: str) -> str:
    """Return a text as Markdown code in one line: within more backticks than it has next to each other."""
    shown = printable(text)
    fence = "`" * (1 + max(map(len, re.findall("`+", shown)), default=0))
    return f"{fence}{shown}{fence}" if len(fence) == 1 else f"{fence} {shown} {fence}"


def _options(options: Mapping[str, Any]) -> str:
    return "`" + " ".join(_option(name, value) for name, value in options.items()) + "`" if options else ""


def _option(name: str, value: Any) -> str:
    if value is True:
        return name
    if isinstance(value, SoftCap):
        return f"{name}=SoftCap({value.cap:g})"
    return f"{name}={getattr(value, 'name', value)}".replace(" ", "")
