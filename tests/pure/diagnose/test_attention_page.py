"""The page of attention support names no version that was not tested."""

from __future__ import annotations

import re

import pytest

from cudnn_backend_py.diagnose.report.attention_page import _SupportPage
from cudnn_backend_py.diagnose.surveys.attention import SupportTable
from tests.support.child import ROOT

TABLES = [
    SupportTable.from_json((ROOT / f"tests/library/diagnose/data/attention-support-{version}.json").read_text())
    for version in ("9.14.0", "9.19.0", "9.28.0")
]


@pytest.mark.parametrize(
    ("first", "last", "text"),
    [
        (0, 2, "yes"),
        (2, 2, "yes with 9.28.0"),
        (1, 2, "yes with 9.19.0 and 9.28.0"),
        (0, 1, "yes with 9.14.0 and 9.19.0"),
    ],
)
def test_an_answer_names_exactly_the_tested_versions(first: int, last: int, text: str) -> None:
    assert _SupportPage(TABLES)._format_version_range_support(first, last, ("yes", ())) == text


def test_the_page_claims_no_range_of_versions() -> None:
    page = (ROOT / "docs/attention-support.md").read_text(encoding="utf-8")
    assert "yes with 9.28.0" in page
    assert re.findall(r"\b(?:yes|no\S*|wrong\S*) (?:from|until|in) 9\.\d", page) == []
