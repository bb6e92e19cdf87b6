"""Check a file from ``target verify --contribute``, and add its results to the table of GPU results.

``python -m tools.hardware_evidence check FILE`` prints the rows of a file; ``add FILE`` adds them to
``docs/tables/hardware-evidence.json``. The file has the line that the command prints, or the text of an issue with that
line; ``-`` is standard input.
"""

from __future__ import annotations

import json
import re
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from cudnn_backend_py.errors import CudnnBackendError, UsageError
from cudnn_backend_py.system.typed_data import convert_to_type
from cudnn_backend_py.verification.contribution import Contribution
from tools.repository import ROOT

__all__ = ["EVIDENCE_TABLE_PATH", "HardwareEvidenceRow", "make_evidence_rows", "read_contributed_results", "read_table"]

EVIDENCE_TABLE_PATH = ROOT / "docs" / "tables" / "hardware-evidence.json"
KIND_COMPARED, KIND_RUN, KIND_KNOWN_ISSUES = "live and described", "run and compared with NumPy", "known issues tried"
_MAX_ISSUE_LENGTH = 65_536  # largest number of characters in an issue


@dataclass(frozen=True, slots=True, order=True)
class HardwareEvidenceRow:
    """Number of results of one kind, graph family and GPU, and how many of them agree.

    Attributes
    ----------
    results
        Number of results; `agree` of them are as expected. What is expected depends on the kind of result: the same
        outcome on the GPU and on its description, a right output, or a known issue that was run.
    """

    sm: int
    cudnn: str
    cuda: int
    family: str
    kind: str
    gpu: str
    date: str
    results: int
    agree: int
    graphs_sha256: str


def read_contributed_results(text: str) -> Contribution:
    """Return the contributed results in a text: JSON, or an issue that contains it.

    Raises
    ------
    UsageError
        ``evidence-damaged``.
    """
    found = re.search(r"\{.*\}", text, re.DOTALL) if len(text) <= _MAX_ISSUE_LENGTH else None
    if found is None:
        raise UsageError(f"no JSON in a text of at most {_MAX_ISSUE_LENGTH} characters", code="evidence-damaged")
    try:
        data = json.JSONDecoder().raw_decode(text, found.start())[0]
    except (ValueError, RecursionError) as error:
        raise UsageError(f"the evidence is no JSON: {error}", code="evidence-damaged") from None
    return Contribution.from_dict(data)


def make_evidence_rows(given: Contribution) -> list[HardwareEvidenceRow]:
    """Return the table rows of contributed results."""

    def make_row(family: str, kind: str, results: int, agree: int) -> HardwareEvidenceRow:
        where = (given.sm, given.cudnn, given.cuda, family, kind, given.gpu, given.date)
        return HardwareEvidenceRow(*where, results, agree, given.graphs_sha256)

    rows = [
        make_row(family, KIND_COMPARED, counts["graphs"], counts["graphs"] - counts["outcome"])
        for family, counts in given.families.items()
    ]
    rows += [
        make_row(family, KIND_RUN, sum(states.values()), states.get("right", 0))
        for family, states in given.runs.items()
    ]
    if given.known_issues:
        rows.append(make_row("known issues", KIND_KNOWN_ISSUES, len(given.known_issues), len(given.known_issues)))
    return sorted(rows)


def read_table(path: Path = EVIDENCE_TABLE_PATH) -> list[HardwareEvidenceRow]:
    """Return the rows of the table.

    Raises
    ------
    UsageError
        ``evidence-damaged``.
    """
    rows: Any = json.loads(path.read_text(encoding="utf-8"))
    return [convert_to_type(HardwareEvidenceRow, row, "a row of evidence", code="evidence-damaged") for row in rows]


def add_evidence_rows_to_file(rows: list[HardwareEvidenceRow], path: Path = EVIDENCE_TABLE_PATH) -> None:
    """Add rows to the table; they replace rows of the same GPU, library and date."""
    kept = {_get_row_key(row): row for row in [*read_table(path), *rows]}
    lines = [json.dumps(asdict(row)) for row in sorted(kept.values())]
    path.write_text("[\n" + ",\n".join(lines) + "\n]\n" if lines else "[]\n", encoding="utf-8")


def _get_row_key(row: HardwareEvidenceRow) -> tuple[object, ...]:
    return row.sm, row.cudnn, row.cuda, row.family, row.kind, row.gpu, row.date


def main(words: list[str]) -> int:
    """Check a file of contributed results, or add it to the table."""
    if len(words) != 2 or words[0] not in ("check", "add"):
        print(__doc__)
        return 2
    try:
        rows = make_evidence_rows(
            read_contributed_results(sys.stdin.read() if words[1] == "-" else Path(words[1]).read_text("utf-8"))
        )
    except CudnnBackendError as error:
        print(error)
        return 1
    for row in rows:
        print(json.dumps(asdict(row)))
    if words[0] == "add":
        add_evidence_rows_to_file(rows)
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
