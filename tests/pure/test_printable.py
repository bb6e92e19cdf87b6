"""Untrusted text in output is escaped: control and bidirectional characters, forged lines and CI commands."""

from __future__ import annotations

import dataclasses
import json
import sys
import unicodedata

import pytest

from cudnn_backend_py import DataType, GraphBuilder, GraphError, PointwiseMode
from cudnn_backend_py.diagnose import Outcome, render_text
from cudnn_backend_py.diagnose.logs import report_log
from cudnn_backend_py.diagnose.remedy import Remedies
from cudnn_backend_py.diagnose.report.attention_page import _format_inline_code
from cudnn_backend_py.diagnose.report.tables import render_as_text, render_remedies, render_verdict_matrix
from cudnn_backend_py.diagnose.verdict import Basis, Cause
from cudnn_backend_py.errors import CudnnStatusError, EnvironmentNotReady
from cudnn_backend_py.graph import Tensor, graph_from_json, graph_to_json
from cudnn_backend_py.plans.refusals import Reason
from cudnn_backend_py.printable import make_lines_printable, printable
from tests.support.damaged_texts import HOSTILE_TEXTS, assert_safe_to_print
from tests.support.reporting import make_support_matrix, make_two_matmuls, make_verdict


def test_control_characters_and_unusual_separators_are_escaped() -> None:
    for code in range(sys.maxunicode + 1):
        letter = chr(code)
        kind = unicodedata.category(letter)
        hidden = kind[0] == "C" or (kind[0] == "Z" and letter != " ")
        assert (printable(letter) == letter) is not hidden, f"U+{code:04X}"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a\nb\t", r"a\nb\t"),
        ("\x1b[31m", r"\x1b[31m"),
        ("\x9b", r"\x9b"),
        ("\u202e\u2066\u200f\u061c", r"\u202e\u2066\u200f\u061c"),
        ("\ud800", r"\ud800"),
        ("größe 大 😀", "größe 大 😀"),
        ("a ##[error]b ##vso[c", r"a \x23#[error]b \x23#vso[c"),
    ],
)
def test_special_characters_are_escaped(text: str, shown: str) -> None:
    assert printable(text) == shown


def test_printable_lines_keep_newlines_and_escape_ci_commands() -> None:
    assert make_lines_printable("a\n  ::error::b\r\nc::d") == "a\n  \\x3a:error::b\\r\nc::d"


@pytest.mark.parametrize("name", HOSTILE_TEXTS)
def test_text_of_a_verdict_with_hostile_names_is_printable(name: str) -> None:
    graph = make_two_matmuls(name)
    tensor = Tensor(name=name, uid=1, dims=(1,), strides=(1,), data_type=DataType.HALF)
    cause = Cause(name, name, Basis.GUESS, f"{name}\n{name}", name)
    asked = make_verdict(
        graph, Outcome.NOT_SUPPORTED, cause=cause, target=name, target_title=name, cudnn=name, limits=(name,)
    )
    candidate = dataclasses.replace(asked.candidates[0], mode=name, state=name, reasons=(Reason(name, name),))
    whole = dataclasses.replace(
        asked, candidates=(candidate,), reasons=(Reason("", name),), hazards=(name,), environment=(name,), library=name
    )
    lines = len(render_text(make_verdict(make_two_matmuls("g"), Outcome.NOT_SUPPORTED)).splitlines())
    assert str(tensor).isprintable()
    for text in (str(graph), render_text(whole), render_as_text(render_remedies(whole, graph, Remedies(graph, [])))):
        assert_safe_to_print(text)
    assert len(str(graph).splitlines()) == len(str(make_two_matmuls("g")).splitlines())
    assert len(render_text(asked).splitlines()) == lines + name.count("\n") * 2 + 1  # of the detail
    matrix = make_support_matrix(name, "the last one lacks a cell")
    assert_safe_to_print(render_as_text(render_verdict_matrix(dataclasses.replace(matrix, graphs=(name,)))))


@pytest.mark.parametrize("name", HOSTILE_TEXTS)
def test_text_of_a_graph_with_hostile_names_is_printable(name: str) -> None:
    """A line of the graph's text can begin with a name."""
    g = GraphBuilder(name, io_type=DataType.HALF)
    g.pointwise(PointwiseMode.RELU_FWD, g.tensor("x", (1, 4, 8)), name=name, virtual=False)
    made = g.graph()
    for shown in (str(made), str(made.ops[0]), str(made.ops[0].outputs()["y"])):
        assert_safe_to_print(shown)


@pytest.mark.parametrize("name", HOSTILE_TEXTS)
def test_text_of_errors_with_hostile_names_is_printable(name: str) -> None:
    for error in (
        GraphError(name, code="x", where=f"{name}\n{name}", fix=name),
        EnvironmentNotReady(name, code="x"),
        CudnnStatusError(name, status=2000, function="f", last_error=name),
    ):
        assert_safe_to_print(error.render())
        assert str(error).isprintable()
        assert error.to_dict()["headline"] == name


def test_a_long_headline_is_truncated() -> None:
    assert len(str(GraphError("x" * 1_000_000, code="x"))) < 5000


@pytest.mark.parametrize("name", HOSTILE_TEXTS)
def test_report_of_a_log_with_hostile_names_is_printable(name: str) -> None:
    data = {
        "context": {"name": name, "io_data_type": "HALF"},
        "nodes": [{"tag": "POINTWISE", "mode": "RELU_FWD", "inputs": {"IN_0": "x"}, "outputs": {"OUT_0": "y"}}],
        "tensors": {key: {"name": key + name, "dim": [4], "stride": [1]} for key in "xy"},
    }
    assert_safe_to_print(str(report_log([json.dumps(data)])))
    assert_safe_to_print(str(report_log([json.dumps({**data, "nodes": [{"tag": name}]})])))
    assert_safe_to_print(
        str(report_log(["I! CuDNN (v91900 56) function cudnnBackendFinalize() called:\ni! " + name, name]))
    )


def test_markdown_code_spans_cannot_be_closed_by_their_text() -> None:
    assert _format_inline_code("plain") == "`plain`"
    assert _format_inline_code("a `b`` c") == "``` a `b`` c ```"
    assert _format_inline_code("a\n# b") == r"`a\n# b`"


@pytest.mark.parametrize("what", ["graph", "tensor", "operation"])
def test_names_that_utf8_cannot_encode_are_refused(what: str) -> None:
    data = graph_to_json(make_two_matmuls())
    place = {"graph": data, "tensor": data["tensors"][-1], "operation": data["operations"][-1]}[what]
    old, place["name"] = place["name"], "half \ud800"
    if what == "tensor":
        data = json.loads(json.dumps(data).replace(json.dumps({"tensor": old}), json.dumps({"tensor": "half \ud800"})))
    with pytest.raises(GraphError, match=r"name-not-text: an? \w+ has name 'half .ud800'"):
        graph_from_json(data)
