"""docs/verdict.md lists the fields, stages, outcomes and exit codes of a verdict."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

import pytest

from cudnn_backend_py.diagnose import Basis, Candidate, Cause, Control, Outcome, Reason, Stage, Verdict
from cudnn_backend_py.diagnose.verdict import SCHEMA, SCHEMA_VERSION, STAGE_NAMES

VERDICT_PAGE = (Path(__file__).parents[3] / "docs" / "verdict.md").read_text(encoding="utf-8")


def read_page_section(name: str) -> str:
    return VERDICT_PAGE.partition(f"## {name}\n")[2].partition("\n## ")[0]


@pytest.mark.parametrize("kind", [Verdict, Candidate, Stage, Reason, Cause, Control], ids=lambda kind: kind.__name__)
def test_page_lists_the_fields_of_each_class_in_order(kind: type) -> None:
    first_cells = re.findall(r"^\| (`.*?`) \|", read_page_section(kind.__name__), re.MULTILINE)
    computed = ["tag"] if kind is Candidate else []
    assert re.findall(r"`(\w+)`", " ".join(first_cells)) == [*computed, *(item.name for item in fields(kind))]


def test_page_lists_the_stages_in_order() -> None:
    assert tuple(re.findall(r"`([a-z ]+)`", read_page_section("Stage").partition("| `state`")[0]))[1:] == STAGE_NAMES


def test_page_lists_schema_outcomes_and_cause_basis_values() -> None:
    assert f'"schema": "{SCHEMA}"' in VERDICT_PAGE
    assert f'"version": {SCHEMA_VERSION}' in VERDICT_PAGE
    assert all(f"`{outcome.value}`" in read_page_section("Verdict") for outcome in Outcome)
    assert all(f"`{basis.value}`" in read_page_section("Cause") for basis in Basis)


@pytest.mark.parametrize("code", range(3))
def test_page_lists_the_exit_codes(code: int) -> None:
    assert f"| {code} | {list(Outcome)[code].value} |" in read_page_section("Exit codes")
