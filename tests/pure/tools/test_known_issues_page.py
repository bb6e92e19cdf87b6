"""The page of known issues contains every row of the table."""

from __future__ import annotations

from cudnn_backend_py.known_issues import FAULTS
from tools.records.known_issues_page import render_known_issues_page


def test_page_has_every_known_issue_once() -> None:
    text = render_known_issues_page()
    for row in FAULTS:
        assert text.count(f"\n| `{row.code}`") == 1
        assert row.source in text or not row.source.startswith("https://")
    headings = [line for line in text.splitlines() if line.startswith("## ")]
    assert len(headings) == len(set(headings)) > 5
