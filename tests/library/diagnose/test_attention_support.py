"""The stored support tables of attention equal cuDNN's verdicts, and docs/attention-support.md equals the tables."""

from __future__ import annotations

import random
from dataclasses import fields

import pytest

from cudnn_backend_py import UsageError
from cudnn_backend_py.diagnose.surveys.attention import (
    BASE_OPTIONS,
    GRAPH_FORMS,
    TARGETS,
    SupportTable,
    attention_rows,
    support_table,
)
from cudnn_backend_py.graph.attention import Attention
from cudnn_backend_py.native import library
from cudnn_backend_py.versions import store as versions
from tests.support.child import OLDER_VERSION, ROOT, run_code

TABLE_FILES = {
    path.stem.rpartition("-")[2]: str(path.relative_to(ROOT))
    for path in sorted((ROOT / "tests/library/diagnose/data").glob("attention-support-*.json"))
}
TABLE_TEXTS = {version: (ROOT / name).read_text(encoding="utf-8") for version, name in TABLE_FILES.items()}
TABLES = {version: SupportTable.from_json(text) for version, text in TABLE_TEXTS.items()}
ATTENTION_ROWS = attention_rows()
SAMPLE_SIZE = 10
CRASHING_ROW = "forward: fp8, bias"
# No options of a row: the size of the problem, its name, and a type without graphs yet.
OPTIONS_WITHOUT_ROWS = {"batch", "heads", "name", "stats_log2"}


def choose_random_support_table_rows(version: str) -> list[str]:
    """Return the row that crashes some versions, and random rows of a version's support table."""
    chosen = random.Random(version).sample([name for name in ATTENTION_ROWS if name != CRASHING_ROW], SAMPLE_SIZE)
    return [CRASHING_ROW, *chosen]


def assert_equals_stored_table(table: SupportTable) -> None:
    stored = TABLES[table.cudnn]
    wrong = [
        f"{name}, {form}, {target}: {cell} is stored as {stored.cells[name][form].get(target)}"
        for name, row in table.cells.items()
        for form, cells in row.items()
        for target, cell in cells.items()
        if cell != stored.cells[name][form].get(target)
    ]
    assert not wrong, f"run 'make attention-table'\n{chr(10).join(wrong[:10])}"


def test_this_cudnn_agrees_with_its_stored_support_table() -> None:
    version = library().version_text
    assert version in TABLES, (
        f"there is no table of cuDNN {version}: set NEWEST in the Makefile and run 'make attention-table'"
    )
    table = support_table(rows=choose_random_support_table_rows(version))
    assert table.cudnn == version
    assert_equals_stored_table(table)


# CI installs one older version; other installed ones are judged, too.
INSTALLED_VERSIONS = {item.short_version: item for item in versions.list_installed()}


@pytest.mark.parametrize(
    "version", [OLDER_VERSION, *(item for item in INSTALLED_VERSIONS if item in TABLES and item != OLDER_VERSION)]
)
def test_older_cudnn_versions_agree_with_their_stored_support_tables(version: str) -> None:
    assert version in INSTALLED_VERSIONS, f"cuDNN {version} is not installed: cudnn-backend cudnn install {version}"
    rows = choose_random_support_table_rows(version)
    code = f"from cudnn_backend_py.diagnose import support_table as t; print(t(rows={rows!r}).to_json())"
    done = run_code(code, environment=versions.make_environment_of_installed_cudnn(INSTALLED_VERSIONS[version]))
    table = SupportTable.from_json(done.stdout)
    assert table.cudnn == version
    assert_equals_stored_table(table)


def test_support_table_rows_cover_every_option() -> None:
    plain = Attention(**BASE_OPTIONS)
    changed = {
        item.name
        for item in fields(Attention)
        if any(getattr(row.problem, item.name) != getattr(plain, item.name) for row in ATTENTION_ROWS.values())
    }
    assert changed == {item.name for item in fields(Attention)} - OPTIONS_WITHOUT_ROWS


@pytest.mark.parametrize("version", TABLE_FILES)
def test_the_stored_support_table_is_complete(version: str) -> None:
    text, table = TABLE_TEXTS[version], TABLES[version]
    assert table.to_json() == text, "rows, options or form have changed: run 'make attention-table'"
    assert len(text) < 150_000
    assert table.cudnn == version
    assert table.targets == TARGETS
    assert list(table.cells) == list(ATTENTION_ROWS)
    since_9_21 = int(version.split(".")[1]) >= 21
    forms = [form for form in GRAPH_FORMS if since_9_21 or form != "single operations"]
    for row in table.cells.values():
        assert list(row) == forms
        assert all(list(cells) == list(TARGETS) for cells in row.values())


@pytest.mark.parametrize("version", TABLE_FILES)
def test_every_stored_refusal_and_crash_has_a_reason(version: str) -> None:
    for cell in TABLES[version].all_cells():
        assert bool(cell.engines) == (cell.answer == "yes")
        assert bool(cell.reason) == (cell.answer != "yes")
        if cell.answer == "no":
            assert cell.reason.startswith("CUDNN_STATUS_")
        if cell.answer == "crash":
            assert cell.reason.startswith(("cuDNN crashed with SIG", "cuDNN ends the process"))
        assert cell.answer != "?"


def test_plain_attention_is_supported_everywhere() -> None:
    for table in TABLES.values():
        for name in ("forward: plain", "backward: plain"):
            assert all(cell.answer == "yes" for cell in table.cells[name]["composite"].values())


def test_the_most_specific_reason_of_the_engines_is_stored() -> None:
    row = TABLES["9.19.0"].cells["backward: dropout, int32 seed"]["composite"]
    assert "does not support seed tensor of data type != int64" in row["sm100"].reason


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"schema": "cudnn-backend-py/verdict", "version": 1}'])
def test_files_that_are_not_support_tables_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="support-table-file: this is not a support table"):
        SupportTable.from_json(text)
