"""JUnit XML and GitHub annotations: counts, escaped text, equal output for equal results. Loads no library."""

from __future__ import annotations

import dataclasses
from xml.etree import ElementTree

import pytest

from cudnn_backend_py.diagnose import Outcome
from cudnn_backend_py.diagnose.report.ci import (
    VerdictTestCase,
    list_test_cases,
    make_github_annotations,
    make_junit_xml,
)
from cudnn_backend_py.printable import make_lines_printable
from tests.support.reporting import HOSTILE_NAME, make_support_matrix, make_two_matmuls, make_verdict

VERDICTS = [make_verdict(make_two_matmuls("first"), outcome) for outcome in Outcome] + [
    make_verdict(make_two_matmuls(HOSTILE_NAME))
]
ESCAPED_HOSTILE_NAME = HOSTILE_NAME.replace("\x00", "\ufffd").replace("\ud800", "\ufffd")


def test_junit_has_the_counts_and_names_of_verdicts() -> None:
    root = ElementTree.fromstring(make_junit_xml(VERDICTS).encode())
    counts = {"tests": "4", "failures": "2", "errors": "1", "skipped": "0"}
    assert root.tag == "testsuites"
    assert root.attrib == {"name": "cudnn-backend", **counts}
    suites = [(suite.attrib["name"], suite.attrib["tests"], suite.attrib["failures"]) for suite in root]
    assert suites == [("first", "3", "1"), (ESCAPED_HOSTILE_NAME, "1", "1")]
    first = [case.attrib for case in root[0]]
    assert first[0] == {"classname": "cudnn-backend.first", "name": "l40s, cuDNN 9.28.0"}
    assert [[child.tag for child in case] for case in root[0]] == [[], ["failure"], ["error"]]


def test_junit_contains_cause_and_verdict() -> None:
    [failure] = ElementTree.fromstring(make_junit_xml(VERDICTS[1:2]).encode()).iter("failure")
    assert failure.attrib == {"message": "tensor 's' is in order F16x16, NONE is needed", "type": "reordered"}
    assert failure.text is not None
    assert failure.text.startswith("NOT SUPPORTED: graph 'first' on NVIDIA L40S")
    assert "no <b>such</b> pattern at: a && b" in failure.text


def test_junit_has_a_test_case_for_each_support_matrix_cell() -> None:
    matrix = make_support_matrix("a", HOSTILE_NAME)
    root = ElementTree.fromstring(make_junit_xml(matrix, suite="nightly").encode())
    outcomes = [cell.outcome for cell in matrix.cells.values()]
    assert len(list(root.iter("testcase"))) == len(outcomes) == 29
    assert len(list(root.iter("failure"))) == outcomes.count(Outcome.NOT_SUPPORTED)
    assert len(list(root.iter("error"))) == outcomes.count(Outcome.NOT_JUDGED)
    assert {item.attrib["type"] for item in root.iter("failure")} == {"head-dim", "not-supported"}
    assert root.attrib["name"] == "nightly"


def test_a_failed_verdict_test_case_is_written_to_junit() -> None:
    case = VerdictTestCase(
        graph="g", target="t", version="v", state="failed", code="changed", message="was supported", text="why"
    )
    assert list(list_test_cases([case])) == [case]
    [failure] = ElementTree.fromstring(make_junit_xml([case]).encode()).iter("failure")
    assert (failure.attrib, failure.text) == ({"message": "was supported", "type": "changed"}, "why")


def test_known_issues_are_junit_output_and_github_warnings() -> None:
    item = dataclasses.replace(VERDICTS[0], hazards=("a known issue", "another"))
    [output] = ElementTree.fromstring(make_junit_xml([item]).encode()).iter("system-out")
    assert output.text == "a known issue\nanother"
    title = "known issue%3A first on l40s%2C cuDNN 9.28.0"
    assert make_github_annotations([item]) == [f"::warning title={title}::{line}" for line in item.hazards]


def test_annotations_contain_file_graph_and_cause() -> None:
    assert make_github_annotations(VERDICTS[:3], files={"first": "graphs/a,b:c%.json"}) == [
        "::error file=graphs/a%2Cb%3Ac%25.json,title=first on l40s%2C cuDNN 9.28.0"
        "::tensor 's' is in order F16x16, NONE is needed [reordered]",
        "::error file=graphs/a%2Cb%3Ac%25.json,title=first on l40s%2C cuDNN 9.28.0"
        "::cuDNN crashed with SIGSEGV in plan of eng7_k24=3 [cudnn-crashed]",
    ]


@pytest.mark.parametrize("given", ["a\nb\r\n::error::c", "100% : , ::", HOSTILE_NAME, "\u2028::warning::x"])
def test_an_annotation_of_hostile_text_is_one_workflow_command(given: str) -> None:
    case = VerdictTestCase(graph=given, target=given, version=given, state="failed", code=given, message=given)
    [line] = make_github_annotations([case], files={given: given})
    assert line.isprintable()
    head, properties, message = line.split("::", 2)
    assert (head, properties.split(" ")[0]) == ("", "error")
    assert [part.split("=")[0] for part in properties.removeprefix("error ").split(",")] == ["file", "title"]
    assert message.replace("%0A", "\n").replace("%25", "%") == make_lines_printable(f"{given} [{given}]")


@pytest.mark.parametrize("results", [VERDICTS, make_support_matrix("a", "b")], ids=["verdicts", "matrix"])
def test_equal_results_give_equal_junit_and_annotations(results: object) -> None:
    assert make_junit_xml(results) == make_junit_xml(results)  # type: ignore[arg-type]
    assert make_github_annotations(results) == make_github_annotations(results)  # type: ignore[arg-type]


def test_no_results_give_an_empty_junit_report() -> None:
    root = ElementTree.fromstring(make_junit_xml([]).encode())
    assert root.attrib["tests"] == "0"
    assert list(root) == []
    assert make_github_annotations([]) == []
