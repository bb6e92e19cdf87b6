"""Baseline files of verdicts, and the changes that a check against them finds; no library is loaded."""

from __future__ import annotations

import json
import tomllib
import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cudnn_backend_py.diagnose.report.ci import make_github_annotations, make_junit_xml
from cudnn_backend_py.diagnose.report.tables import render_as_text, render_baseline_check
from cudnn_backend_py.diagnose.surveys.baseline import (
    Baseline,
    CheckedVerdict,
    ExpectedVerdict,
    _update_expected_verdict_tables,
    compare_with_baseline,
    compute_baseline_exit_code,
    read_baseline,
)
from cudnn_backend_py.diagnose.surveys.matrix import Cell, Matrix
from cudnn_backend_py.diagnose.verdict import Outcome
from cudnn_backend_py.errors import UsageError

SUPPORTED_CELL = Cell(Outcome.SUPPORTED, engines=(2, 1), stage="heuristics")
REFUSED_CELL = Cell(Outcome.NOT_SUPPORTED, "refused", "head dim 20 is no multiple of 8", stage="heuristics")
CRASHED_CELL = Cell(Outcome.NOT_JUDGED, "cudnn-crashed", "cuDNN crashed with SIGSEGV", stage="heuristics")
LOST_CELL = Cell(Outcome.NOT_JUDGED, "cudnn-not-found", "no libcudnn.so.9 can be loaded", stage="environment")
GRAPH_TARGET_VERSION = ("g", "sm90", "9.19.0")


def make_baseline(expected: ExpectedVerdict | None) -> Baseline:
    rows = {} if expected is None else {GRAPH_TARGET_VERSION: expected}
    return Baseline(Path("b.toml"), {"g": "g.json"}, ("sm90",), ("9.19.0",), False, ("cause",), rows)


def compare_verdict_with_baseline(expected: ExpectedVerdict | None, cell: Cell) -> CheckedVerdict:
    [one] = compare_with_baseline(
        make_baseline(expected), Matrix(("g",), ("sm90",), ("9.19.0",), {GRAPH_TARGET_VERSION: cell})
    )
    return one


@pytest.mark.parametrize(
    ("expected", "cell", "code", "why"),
    [
        (ExpectedVerdict(Outcome.SUPPORTED), SUPPORTED_CELL, 0, ""),
        (ExpectedVerdict(Outcome.SUPPORTED, engines=(2, 1)), SUPPORTED_CELL, 0, ""),
        (ExpectedVerdict(Outcome.NOT_SUPPORTED), REFUSED_CELL, 0, ""),
        (ExpectedVerdict(Outcome.NOT_SUPPORTED, "refused"), REFUSED_CELL, 0, ""),
        (ExpectedVerdict(Outcome.NOT_JUDGED, "cudnn-crashed"), CRASHED_CELL, 0, ""),
        (ExpectedVerdict(Outcome.SUPPORTED, engines=(1,)), SUPPORTED_CELL, 1, "was engines 1, now engines 2 1"),
        (ExpectedVerdict(Outcome.NOT_SUPPORTED, "refused"), SUPPORTED_CELL, 1, "was not supported, now supported"),
        (
            ExpectedVerdict(Outcome.SUPPORTED),
            REFUSED_CELL,
            1,
            "was supported, now not supported: head dim 20 is no multiple of 8",
        ),
        (
            ExpectedVerdict(Outcome.NOT_SUPPORTED, "architecture"),
            REFUSED_CELL,
            1,
            "the cause was architecture, now refused: head dim 20 is no multiple of 8",
        ),
        (None, SUPPORTED_CELL, 1, "supported, and nothing is expected of it in b.toml"),
        (
            ExpectedVerdict(Outcome.SUPPORTED),
            CRASHED_CELL,
            2,
            "was supported, now could not be judged: cuDNN crashed with SIGSEGV",
        ),
    ],
)
def test_changed_verdicts_are_reported(expected: ExpectedVerdict | None, cell: Cell, code: int, why: str) -> None:
    one = compare_verdict_with_baseline(expected, cell)
    assert (one.why, one.changed, compute_baseline_exit_code([one])) == (why, bool(why), code)


def test_the_worst_change_decides_the_exit_code_of_a_check() -> None:
    same = compare_verdict_with_baseline(ExpectedVerdict(Outcome.SUPPORTED), SUPPORTED_CELL)
    changed = compare_verdict_with_baseline(ExpectedVerdict(Outcome.SUPPORTED), REFUSED_CELL)
    unjudged = compare_verdict_with_baseline(ExpectedVerdict(Outcome.SUPPORTED), CRASHED_CELL)
    assert [compute_baseline_exit_code(some) for some in ([], [same], [same, changed], [unjudged, changed])] == [
        0,
        0,
        1,
        2,
    ]


def test_reports_of_a_check_contain_the_changed_verdicts() -> None:
    results = [
        compare_verdict_with_baseline(ExpectedVerdict(Outcome.SUPPORTED), SUPPORTED_CELL),
        compare_verdict_with_baseline(ExpectedVerdict(Outcome.SUPPORTED), REFUSED_CELL),
        compare_verdict_with_baseline(ExpectedVerdict(Outcome.SUPPORTED), CRASHED_CELL),
    ]
    text = render_as_text(render_baseline_check(results))
    assert "3 verdicts checked, 2 changed" in text
    assert "head dim 20 is no multiple of 8" in text
    root = ET.fromstring(make_junit_xml(one.make_test_case() for one in results).encode())
    assert (root.get("tests"), root.get("failures"), root.get("errors")) == ("3", "1", "1")
    lines = make_github_annotations((one.make_test_case() for one in results), files={"g": "graphs/g.json"})
    assert [line.split("::")[1].split(",")[0] for line in lines] == ["error file=graphs/g.json"] * 2


def test_the_baseline_update_report_counts_changed_verdicts() -> None:
    unexpected = [
        compare_verdict_with_baseline(None, SUPPORTED_CELL),
        compare_verdict_with_baseline(ExpectedVerdict(Outcome.SUPPORTED), LOST_CELL),
    ]
    text = render_as_text(render_baseline_check(unexpected, "b.toml"))
    explained = replace(REFUSED_CELL, summary=("NOT SUPPORTED", "cause    head dim 20", "graph    g"))
    refused = compare_verdict_with_baseline(ExpectedVerdict(Outcome.SUPPORTED), explained)
    assert "graph    g" in render_as_text(render_baseline_check([refused]))
    assert "graph    g" not in render_as_text(render_baseline_check([refused], "b.toml"))
    assert (
        "2 verdicts checked, 0 changed, 1 new; b.toml is updated; 1 could not be judged, and b.toml keeps what it had"
        in text
    )
    assert "is updated" not in render_as_text(render_baseline_check([], "b.toml")) + render_as_text(
        render_baseline_check(unexpected)
    )


def test_a_first_check_names_the_option_that_writes_the_verdicts() -> None:
    new = compare_verdict_with_baseline(None, SUPPORTED_CELL)
    assert "fix: 'cudnn-backend check --update FILE' writes" in render_as_text(render_baseline_check([new]))
    known = compare_verdict_with_baseline(ExpectedVerdict(Outcome.SUPPORTED), REFUSED_CELL)
    assert "--update" not in render_as_text(render_baseline_check([known]))
    assert "--update" not in render_as_text(render_baseline_check([new], "b.toml"))


def test_check_report_names_the_doctor_command_if_it_is_needed() -> None:
    lost, crashed = compare_verdict_with_baseline(None, LOST_CELL), compare_verdict_with_baseline(None, CRASHED_CELL)
    assert render_as_text(render_baseline_check([lost, lost])).count("fix: 'cudnn-backend doctor'") == 1
    assert "doctor" not in render_as_text(render_baseline_check([crashed]))


def test_an_updated_baseline_keeps_its_text_and_is_read_unchanged(tmp_path: Path) -> None:
    path = tmp_path / "b.toml"
    name = 'a "graph"\n\\ with é = [x]'
    rows = {
        (name, "sm90", "default"): ExpectedVerdict(Outcome.SUPPORTED, engines=(7, 0)),
        (name, "sm90", "9.19.0"): ExpectedVerdict(Outcome.NOT_SUPPORTED, ""),
    }
    whole = Baseline(path, {name: "a b.json"}, ("sm90",), ("default", "9.19.0"), True, ("cause", "engines"), rows)
    mine = f"""\
# why we have this
schema = "cudnn-backend-py/check"
version = 1
targets = ["sm90"]  # the only one
versions = ["default", "9.19.0"]
build = true
pin = ["cause", "engines"]
[graphs]  # ours
{json.dumps(name)} = "a b.json"
"""
    path.write_text(_update_expected_verdict_tables(mine, {}), encoding="utf-8")
    assert path.read_text(encoding="utf-8") == mine
    path.write_text(
        _update_expected_verdict_tables(_update_expected_verdict_tables(mine, rows), rows), encoding="utf-8"
    )
    assert path.read_text(encoding="utf-8").startswith(mine)
    assert read_baseline(path) == whole


def test_updating_a_baseline_keeps_its_comments(tmp_path: Path) -> None:
    text = (
        BASELINE_TOML.replace("]\n", ', "sm80", "sm89"]\n', 1)
        + """
# over the first
[[expected]]  # after its head
graph = "g"
target = "sm90"
version = "default"
outcome = "supported"  # once
engines = [1, 2]

# over the second
[[expected]]
# inside the second
graph = "g"
target = 'sm80'
version = "default"
outcome = "supported"
# at the end
"""
    )
    rows = {
        ("g", "sm90", "default"): ExpectedVerdict(Outcome.NOT_SUPPORTED, "crash"),
        ("g", "sm80", "default"): ExpectedVerdict(Outcome.SUPPORTED),
        ("g", "sm89", "default"): ExpectedVerdict(Outcome.SUPPORTED, engines=(7,)),
    }
    written = _update_expected_verdict_tables(text, rows)
    path = tmp_path / "b.toml"
    path.write_text(written, encoding="utf-8")
    assert read_baseline(path).expected == rows
    changed = text.replace(
        'outcome = "supported"  # once\nengines = [1, 2]', 'outcome = "not supported"  # once\ncause = "crash"'
    )
    new = '\n[[expected]]\ngraph = "g"\ntarget = "sm89"\nversion = "default"\noutcome = "supported"\nengines = [7]\n'
    assert written == changed + new
    assert _update_expected_verdict_tables(written, rows) == written
    none = _update_expected_verdict_tables(written, {})
    assert "[[expected]]" not in none
    assert none.startswith(BASELINE_TOML[:20])


def test_updating_a_baseline_writes_inline_expectations_as_tables(tmp_path: Path) -> None:
    row = '{graph = "g", target = "sm90", version = "default", outcome = "supported"}'
    path = tmp_path / "b.toml"
    rows = {("g", "sm90", "default"): ExpectedVerdict(Outcome.NOT_SUPPORTED)}
    for inline in ("expected = []\n", f"expected = [{row}]\n"):
        path.write_text(
            _update_expected_verdict_tables(BASELINE_TOML.replace("[graphs]", f"{inline}[graphs]"), rows),
            encoding="utf-8",
        )
        assert read_baseline(path).expected == rows


def test_a_baseline_needs_only_graphs_and_targets(tmp_path: Path) -> None:
    path = tmp_path / "b.toml"
    path.write_text(BASELINE_TOML)
    found = read_baseline(path)
    assert (found.versions, found.build, found.pin, found.expected) == (("default",), False, ("cause",), {})
    assert found.list_cell_keys() == [("g", "sm90", "default")]


BASELINE_TOML = """
schema = "cudnn-backend-py/check"
version = 1
targets = ["sm90"]
[graphs]
g = "g.json"
"""
EXPECTED_ROW_TOML = '\n[[expected]]\ngraph = "g"\ntarget = "sm90"\nversion = "default"\noutcome = "supported"\n'


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("no toml", "cannot be read as TOML"),
        ("", "schema and version are"),
        (BASELINE_TOML.replace("version = 1", "version = true"), "schema and version are"),
        (BASELINE_TOML.replace("version = 1", "version = 1.0"), "schema and version are"),
        (BASELINE_TOML + "x = " + "[" * 100_000, "cannot be read as TOML: maximum recursion depth"),
        (BASELINE_TOML + "x = " + "9" * 5000, "cannot be read as TOML: Exceeds the limit"),
        (BASELINE_TOML + EXPECTED_ROW_TOML + 'engines = "12"\n', "engines must be a list of integers"),
        (BASELINE_TOML + EXPECTED_ROW_TOML + "engines = [true]\n", "engines must be a list of integers"),
        (BASELINE_TOML + EXPECTED_ROW_TOML + "cause = 3\n", "cause must each be text"),
        (BASELINE_TOML + EXPECTED_ROW_TOML + "reason = 3\n", "the key reason is unknown"),
        (BASELINE_TOML + EXPECTED_ROW_TOML.replace('"g"', "[1]"), "graph, target, version"),
        (BASELINE_TOML.replace("version = 1", "version = 2"), "schema and version are"),
        (BASELINE_TOML.replace('g = "g.json"', ""), "a table of names and files is needed"),
        (BASELINE_TOML.replace('g = "g.json"', "g = 1"), "a table of names and files is needed"),
        (BASELINE_TOML.replace('["sm90"]', '"sm90"'), "targets is 'sm90'"),
        (BASELINE_TOML.replace('["sm90"]', "[]"), "targets is"),
        (BASELINE_TOML.replace("version = 1", "version = 1\nbuild = 1"), "build is 1"),
        (BASELINE_TOML.replace("version = 1", 'version = 1\npin = ["stage"]'), "pin is"),
        (BASELINE_TOML.replace("version = 1", "version = 1\ntarget = 1"), "it has target"),
        (BASELINE_TOML.replace("version = 1", "version = 1\nexpected = 1"), "expected is 1"),
        (BASELINE_TOML + EXPECTED_ROW_TOML.replace("supported", "fine"), "'fine' is not a valid Outcome"),
        (BASELINE_TOML + EXPECTED_ROW_TOML.replace('graph = "g"', ""), "KeyError"),
        (BASELINE_TOML + EXPECTED_ROW_TOML + EXPECTED_ROW_TOML, "two expectations"),
    ],
)
def test_an_invalid_baseline_is_refused(text: str, what: str, tmp_path: Path) -> None:
    path = tmp_path / "b.toml"
    path.write_text(text)
    with pytest.raises(UsageError, match="check-file") as caught:
        read_baseline(path)
    assert what in str(caught.value)


def test_unlisted_expected_verdict_is_reported_and_removed(tmp_path: Path) -> None:
    path = tmp_path / "b.toml"
    path.write_text(BASELINE_TOML + EXPECTED_ROW_TOML.replace("default", "9.19.0"))
    baseline = read_baseline(path)
    matrix = Matrix(("g",), ("sm90",), ("default",), {("g", "sm90", "default"): SUPPORTED_CELL})
    new, stale = compare_with_baseline(baseline, matrix)
    assert (new.version, stale.version, compute_baseline_exit_code([stale])) == ("default", "9.19.0", 2)
    assert stale.why == "cannot be judged: b.toml expects this verdict and does not list its graph, target or version"
    assert make_github_annotations([stale.make_test_case()])[0].startswith("::error title=g on sm90")
    written = _update_expected_verdict_tables(
        path.read_text(), {("g", "sm90", "default"): ExpectedVerdict(Outcome.SUPPORTED)}
    )
    assert "9.19.0" not in written


def test_a_missing_baseline_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="check-file"):
        read_baseline(tmp_path / "none.toml")


def test_the_example_in_the_docstring_is_a_valid_baseline(tmp_path: Path) -> None:
    import cudnn_backend_py.diagnose.surveys.baseline as module

    example = (module.__doc__ or "").partition("::\n")[2]
    data: dict[str, Any] = tomllib.loads(example)
    path = tmp_path / "b.toml"
    path.write_text(example, encoding="utf-8")
    assert read_baseline(path).expected == {
        (row["graph"], row["target"], row["version"]): ExpectedVerdict(Outcome(row["outcome"]))
        for row in data["expected"]
    }
