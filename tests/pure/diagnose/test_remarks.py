"""Tables, JSON, JUnit and pages report known issues and remarks about supported graphs."""

from __future__ import annotations

import dataclasses
import json
from itertools import product
from xml.etree import ElementTree

import pytest

from cudnn_backend_py.diagnose.report.ci import make_github_annotations, make_junit_xml
from cudnn_backend_py.diagnose.report.html import render_page
from cudnn_backend_py.diagnose.report.tables import (
    render_as_text,
    render_remedies,
    render_supporting_version_range,
    render_verdict_matrix,
)
from cudnn_backend_py.diagnose.surveys.matrix import Cell, Matrix
from cudnn_backend_py.diagnose.surveys.since import Since
from cudnn_backend_py.diagnose.verdict import NO_GPU_REMARK, Outcome
from cudnn_backend_py.graph.attention import sdpa_forward
from cudnn_backend_py.native.environment_problems import DRIVER_STUB_HEADLINE
from tests.support.reporting import make_verdict

SUPPORTED_CELL = Cell(Outcome.SUPPORTED, engines=(1,), stage="heuristics")
CELL_WITH_KNOWN_ISSUE = dataclasses.replace(SUPPORTED_CELL, hazards=("wrong sums",), remarks=("an old driver",))
TARGETS, VERSIONS = ("sm80", "sm90"), ("9.19.0", "9.28.0")


def make_support_matrix_of_two_by_two(*cells: Cell) -> Matrix:
    keys = [("g", *place) for place in product(TARGETS, VERSIONS)]
    return Matrix(("g",), TARGETS, VERSIONS, dict(zip(keys, cells, strict=True)))


def normalize_whitespace(text: str) -> str:
    return " ".join(text.split())


@pytest.mark.parametrize(
    ("cells", "where"),
    [
        ((CELL_WITH_KNOWN_ISSUE, SUPPORTED_CELL, SUPPORTED_CELL, SUPPORTED_CELL), " (sm80; cuDNN 9.19.0)"),
        ((CELL_WITH_KNOWN_ISSUE, SUPPORTED_CELL, CELL_WITH_KNOWN_ISSUE, SUPPORTED_CELL), " (sm80, sm90; cuDNN 9.19.0)"),
        (
            (CELL_WITH_KNOWN_ISSUE, SUPPORTED_CELL, SUPPORTED_CELL, CELL_WITH_KNOWN_ISSUE),
            " (sm80, cuDNN 9.19.0; sm90, cuDNN 9.28.0)",
        ),
    ],
)
def test_the_matrix_table_lists_the_cells_of_a_known_issue_and_a_remark(cells: tuple[Cell, ...], where: str) -> None:
    text = normalize_whitespace(render_as_text(render_verdict_matrix(make_support_matrix_of_two_by_two(*cells))))
    assert f"known issue{where}: wrong sums" in text
    assert f"remark{where}: an old driver" in text


def test_a_known_issue_of_all_cells_is_reported_once_per_graph() -> None:
    one = make_support_matrix_of_two_by_two(
        CELL_WITH_KNOWN_ISSUE, CELL_WITH_KNOWN_ISSUE, CELL_WITH_KNOWN_ISSUE, CELL_WITH_KNOWN_ISSUE
    )
    two = {("h", *place): cell for (_, *place), cell in one.cells.items()}
    text = normalize_whitespace(
        render_as_text(render_verdict_matrix(Matrix(("g", "h"), TARGETS, VERSIONS, {**one.cells, **two})))
    )
    assert text.count("known issue: wrong sums") == 2  # of each graph
    assert text.count("remark: an old driver") == 1


def test_cells_and_verdicts_keep_known_issues_and_remarks_in_json() -> None:
    matrix = make_support_matrix_of_two_by_two(CELL_WITH_KNOWN_ISSUE, SUPPORTED_CELL, SUPPORTED_CELL, SUPPORTED_CELL)
    data = json.loads(json.dumps(matrix.to_dict()))
    assert (data["cells"][0]["hazards"], data["cells"][0]["remarks"]) == (["wrong sums"], ["an old driver"])
    assert Matrix.from_dict(data) == matrix
    for cell in data["cells"]:
        del cell["hazards"], cell["remarks"]
    assert Matrix.from_dict(data) == make_support_matrix_of_two_by_two(
        SUPPORTED_CELL, SUPPORTED_CELL, SUPPORTED_CELL, SUPPORTED_CELL
    )  # in the form of earlier versions
    graph = sdpa_forward(batch=2, heads=4, seq_q=256, head_dim=64)
    given = make_verdict(
        graph, hazards=("wrong sums",), environment=("an old driver", DRIVER_STUB_HEADLINE), limits=(NO_GPU_REMARK,)
    )
    assert given.remarks == ("an old driver",)
    cell = Cell.from_verdict(given)
    assert (cell.hazards, cell.remarks) == (("wrong sums",), ("an old driver",))


def test_junit_annotations_and_page_contain_known_issues_and_remarks() -> None:
    matrix = make_support_matrix_of_two_by_two(CELL_WITH_KNOWN_ISSUE, SUPPORTED_CELL, SUPPORTED_CELL, SUPPORTED_CELL)
    outputs = list(ElementTree.fromstring(make_junit_xml(matrix).encode()).iter("system-out"))
    assert [output.text for output in outputs] == ["wrong sums\nan old driver"]
    title = "known issue%3A g on sm80%2C cuDNN 9.19.0"
    assert make_github_annotations(matrix) == [f"::warning title={title}::wrong sums"]
    assert "engine 1; known issue: wrong sums; an old driver" in render_page((), matrix=matrix)


def test_since_and_whatif_report_known_issues_and_remarks() -> None:
    span = Since("g", "sm80", VERSIONS, dict(zip(VERSIONS, (SUPPORTED_CELL, CELL_WITH_KNOWN_ISSUE), strict=True)))
    assert "known issue (sm80; cuDNN 9.28.0): wrong sums" in normalize_whitespace(
        render_as_text(render_supporting_version_range(span))
    )
    graph = sdpa_forward(batch=2, heads=4, seq_q=256, head_dim=64)
    said = {"environment": ("an old driver",), "limits": ("an engine was not asked",)}
    given = make_verdict(graph, Outcome.SUPPORTED, hazards=("wrong sums",), **said)
    text = normalize_whitespace(render_as_text(render_remedies(given, graph, [])))
    for words_said in ("known issue: wrong sums", "remark: an old driver", "remark: an engine was not asked"):
        assert words_said in text
    page = render_page([given], graphs=[graph])
    assert "an engine was not asked" in page
