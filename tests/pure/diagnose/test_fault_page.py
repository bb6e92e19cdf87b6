"""docs/faults.md says what the table says."""

from __future__ import annotations

from pathlib import Path

from cudnn_backend_py.diagnose.report.fault_page import render_fault_page
from cudnn_backend_py.faults import FAULTS

PAGE = Path(__file__).parents[3] / "docs" / "faults.md"


def test_page_is_written_from_the_table() -> None:
    assert PAGE.read_text(encoding="utf-8") == render_fault_page()


def test_page_has_every_row_under_some_operation() -> None:
    text = render_fault_page()
    for row in FAULTS:
        assert text.count(f"\n| `{row.code}`") == 1
        assert row.source in text
    headings = [line for line in text.splitlines() if line.startswith("## ")]
    assert len(headings) == len(set(headings)) > 5
