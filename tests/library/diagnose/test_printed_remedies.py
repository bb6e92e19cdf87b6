"""Printed remedies work: every change, target and version in the text of a verdict is judged."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from cudnn_backend_py.diagnose import Judge, Outcome
from cudnn_backend_py.native import library
from cudnn_backend_py.versions import store
from tests.library.diagnose.test_attention_support import TABLES
from tools.records.remedies import (
    TableCell,
    check_remedies,
    list_refused_cells,
    list_support_table_cells,
    make_query_of_table_cell,
)

AVAILABLE_VERSIONS = {library().version_text, *(item.short_version for item in store.list_installed())}
VERSIONS_WITH_TABLE = [name for name in TABLES if name in AVAILABLE_VERSIONS]
EVERY, EVERY_OF_NEWEST = 7, 6  # of the refused cells of an older version, and of the newest
VERSION_WITHOUT_TABLE = "9.24.0"
SAMPLE_SIZE = 80  # of all cells of that version; logs/remedies.json has all, and those of the tables
REFUSED_CELLS = {version: list_refused_cells(TABLES[version]) for version in VERSIONS_WITH_TABLE}


@pytest.fixture(scope="module")
def shared_judge() -> Iterator[Judge]:
    with Judge() as one:
        yield one


@pytest.mark.parametrize("version", VERSIONS_WITH_TABLE)
def test_remedies_for_refusals_in_the_support_tables_work(shared_judge: Judge, version: str) -> None:
    cells = REFUSED_CELLS[version]
    step = EVERY_OF_NEWEST if version == library().version_text else EVERY
    count = 0
    for cell in cells[::step]:
        question = make_query_of_table_cell(cell, version)
        if question is None:
            continue
        verdict = shared_judge.run_query(question)
        assert not verdict.supported, cell
        count += check_remedies(shared_judge.run_query, question, verdict)
    print(f"cuDNN {version}: {len(cells[::step])} of {len(cells)} refused verdicts, {count} remedies judged")
    assert count > len(cells[::step]) // 3


@pytest.mark.skipif(
    VERSION_WITHOUT_TABLE not in AVAILABLE_VERSIONS,
    reason=f"did not run: cuDNN {VERSION_WITHOUT_TABLE} is not installed",
)
def test_remedies_for_a_version_without_a_support_table_work(shared_judge: Judge) -> None:
    refused, count = 0, 0
    for cell in random.Random(VERSION_WITHOUT_TABLE).sample(list_support_table_cells(), SAMPLE_SIZE):
        question = make_query_of_table_cell(cell, VERSION_WITHOUT_TABLE)
        verdict = None if question is None else shared_judge.run_query(question)
        if question is not None and verdict is not None and verdict.outcome is Outcome.NOT_SUPPORTED:
            refused += 1
            count += check_remedies(shared_judge.run_query, question, verdict)
    assert refused > SAMPLE_SIZE // 8
    assert count > refused // 3


@pytest.mark.parametrize("cell", REFUSED_CELLS[library().version_text][::40], ids=", ".join)
def test_plans_of_remedies_for_refusals_in_support_tables_are_built(shared_judge: Judge, cell: TableCell) -> None:
    question = make_query_of_table_cell(cell, library().version_text, build=True)
    assert question is not None
    verdict = shared_judge.run_query(question)
    assert not verdict.supported
    check_remedies(shared_judge.run_query, question, verdict)
