"""Display of graphs and reports in notebooks and prompts: HTML and SVG with escaped names, a one-line repr."""

from __future__ import annotations

import pickle
from typing import Any
from xml.etree import ElementTree

import pytest

from benchmarks.tables import make_ragged_table
from cudnn_backend_py import Graph, GraphBuilder, PointwiseMode, attention
from cudnn_backend_py.cli.compare.figures import RecordTables
from cudnn_backend_py.diagnose import Outcome
from cudnn_backend_py.diagnose.remedy import Remedies, Remedy
from cudnn_backend_py.diagnose.surveys.attention import SupportTable
from cudnn_backend_py.diagnose.surveys.baseline import CheckedVerdict
from cudnn_backend_py.diagnose.surveys.matrix import Cell
from cudnn_backend_py.diagnose.surveys.since import Since
from cudnn_backend_py.diagnose.surveys.upgrade import Change as VersionChange
from cudnn_backend_py.diagnose.surveys.upgrade import Upgrade
from cudnn_backend_py.plans.candidate import Candidate
from cudnn_backend_py.plans.record import PlanRecord
from cudnn_backend_py.plans.refusals import Reason
from cudnn_backend_py.rewrite.changes import Change
from cudnn_backend_py.tuning.trial.trial import ConfigTrial, Trial
from tests.pure.diagnose.test_page import ParsedPage
from tests.support.reporting import make_support_matrix, make_two_matmuls, make_verdict

# A possible name: markup, terminal escapes, and long.
HOSTILE_NAME = "</script></style><script>hit()</script><img src=x onerror=hit()>\x1b[31m\u202e\n" * 3


def make_graph_with_markup_in_names() -> Graph:
    g = GraphBuilder(HOSTILE_NAME)
    g.pointwise(PointwiseMode.RELU_FWD, g.tensor(HOSTILE_NAME, (1, 8, 8)), name=HOSTILE_NAME + "y", virtual=False)
    return g.graph()


HOSTILE_GRAPH = make_graph_with_markup_in_names()
HOSTILE_REMEDY = Remedy(
    HOSTILE_NAME,
    "exact",
    (HOSTILE_NAME,),
    HOSTILE_GRAPH,
    HOSTILE_NAME,
    "9.28.0",
    True,
    make_verdict(HOSTILE_GRAPH),
    (HOSTILE_GRAPH,),
    ("align",),
    (HOSTILE_NAME,),
)
HOSTILE_CHANGE = Change("align", HOSTILE_NAME, "exact", (HOSTILE_NAME,), (HOSTILE_GRAPH,))
HOSTILE_CELL = Cell(Outcome.NOT_SUPPORTED, HOSTILE_NAME, HOSTILE_NAME, stage="engine config")
RECORD_FIGURES = {"schema": HOSTILE_NAME, "date": "today", "gpu_name": HOSTILE_NAME, "seconds": 1.0}
RECORD_TIMES = {"ragged": {HOSTILE_NAME: {"median_us": 1.0, "low_us": 0.5, "high_us": 2.0}}}

VALUES_WITH_HTML: dict[str, Any] = {
    "verdict": make_verdict(HOSTILE_GRAPH, target_title=HOSTILE_NAME),
    "matrix": make_support_matrix(HOSTILE_NAME, "plain"),
    "change": HOSTILE_CHANGE,
    "remedy": HOSTILE_REMEDY,
    "remedies": Remedies(HOSTILE_GRAPH, [HOSTILE_REMEDY, HOSTILE_REMEDY]),
    "since": Since(HOSTILE_NAME, HOSTILE_NAME, ("9.14.0", "9.28.0"), {"9.28.0": HOSTILE_CELL}),
    "record": RecordTables(RECORD_FIGURES | RECORD_TIMES, lambda record: [make_ragged_table(record)]),
}
VALUES_WITH_REPR: dict[str, Any] = VALUES_WITH_HTML | {
    "graph": HOSTILE_GRAPH,
    "tensor": HOSTILE_GRAPH.tensors[0],
    "operation": HOSTILE_GRAPH.ops[0],
    "candidate": Candidate("A", 0, {}, "refused", (Reason("CUDNN_STATUS_NOT_SUPPORTED", HOSTILE_NAME),)),
    "plan record": PlanRecord("9.28.0", HOSTILE_NAME, 90, HOSTILE_NAME, {"ops": [HOSTILE_NAME]}, HOSTILE_NAME),
    "support table": SupportTable("9.28.0", (HOSTILE_NAME, HOSTILE_NAME), {}),
    "upgrade": Upgrade("9.14.0", "9.28.0", (None, None), ()),
    "change of versions": VersionChange(
        HOSTILE_NAME, HOSTILE_NAME, make_verdict(HOSTILE_GRAPH), make_verdict(HOSTILE_GRAPH)
    ),
    "checked": CheckedVerdict(HOSTILE_NAME, HOSTILE_NAME, HOSTILE_NAME, "9.28.0", "", HOSTILE_CELL, True, HOSTILE_NAME),
    "trial": Trial(
        graph=HOSTILE_NAME,
        target=HOSTILE_NAME,
        sm=90,
        cudnn="9.28.0",
        data="uniform",
        seed=0,
        state="refused",
        words=HOSTILE_NAME,
    ),
    "config": ConfigTrial(tag=HOSTILE_NAME, mode="A", state="failed", words=HOSTILE_NAME),
}
del VALUES_WITH_REPR["remedies"]  # a list: its members are


@pytest.mark.parametrize("name", VALUES_WITH_HTML)
def test_markup_in_graph_names_is_escaped_in_html(name: str) -> None:
    shown = VALUES_WITH_HTML[name]._repr_html_()
    fragment = ParsedPage(shown)
    assert fragment.elements[0] == ("div", {"class": "cbp fragment"})
    assert {"script", "img", "a"}.isdisjoint(tag for tag, _ in fragment.elements)
    assert [tag for tag, _ in fragment.elements].count("style") == 1
    assert not [given for _, given in fragment.elements if any(key.startswith("on") for key in given)]
    assert "<script>hit()" in fragment.text
    assert "\x1b" not in shown


@pytest.mark.parametrize("name", VALUES_WITH_REPR)
def test_repr_of_every_public_type_is_one_short_line(name: str) -> None:
    text = repr(VALUES_WITH_REPR[name])
    assert text.isprintable()
    assert len(text) <= 120
    assert text[0] + text[-1] == "<>"


def test_repr_summarizes_a_graph_tensor_verdict_or_matrix() -> None:
    graph = make_two_matmuls()
    assert repr(graph) == "<Graph 'two_matmuls': 2 operations, 5 tensors>"
    assert repr(graph.tensor("q")) == "<Tensor 'q' uid 1: f16[1,10,64]>"
    assert repr(graph.ops[0]).startswith("<Matmul s = matmul(q, k")
    assert repr(make_verdict(graph)) == (
        "<Verdict not supported: 'two_matmuls' on l40s, cuDNN 9.28.0: tensor 's' is in order F16x16, NONE is needed>"
    )
    assert repr(make_support_matrix("a", "b")).startswith("<Matrix of 2 graphs, 3 targets, 5 versions: ")


def test_a_graph_is_displayed_as_svg() -> None:
    shown = HOSTILE_GRAPH._repr_svg_()
    assert shown is not None
    assert ElementTree.fromstring(shown).tag.endswith("svg")
    g = GraphBuilder("long")
    x = g.tensor("x", (1, 8, 8))
    for _ in range(250):
        x = g.pointwise(PointwiseMode.RELU_FWD, x)
    g.pointwise(PointwiseMode.RELU_FWD, x, virtual=False)
    assert g.graph()._repr_svg_() is None


def test_html_of_a_verdict_does_not_contain_the_library_folder() -> None:
    shown = make_verdict(make_two_matmuls(), library="/home/somebody/cudnn/lib/libcudnn.so.9")._repr_html_() or ""
    assert "<dd>libcudnn.so.9</dd>" in shown
    assert "somebody" not in shown


def test_html_of_a_change_draws_subgraphs_of_operations() -> None:
    graph = attention.sdpa_forward(batch=1, heads=2, seq_q=64, head_dim=64, causal=True, implementation="unified")
    fragment = ParsedPage(Change("align", "t", "exact", (), (graph,))._repr_html_() or "")
    inside = sum(1 for op in graph.ops for _ in op.subgraphs())
    assert len(fragment.find_elements_of_class("graph")) == 1 + inside


def test_html_of_remedies_shows_the_graph_changes() -> None:
    before, after = make_two_matmuls(), make_two_matmuls(ordered=False)
    remedy = Remedy("plain", "exact", ("plain",), after, "l40s", None, True, None, (after,))
    shown = ParsedPage(Remedies(before, [remedy])._repr_html_() or "")
    assert len(shown.find_elements_of_class("drop")) == len(shown.find_elements_of_class("add")) == 1
    assert len(shown.find_elements_of_class("graph")) == 1
    alone = ParsedPage(remedy._repr_html_() or "")
    assert "stays as it is" not in alone.text
    assert len(alone.find_elements_of_class("graph")) == 1
    none = Remedies(before, ())
    assert "No change was found" in ParsedPage(none._repr_html_() or "").text
    assert none == []
    assert pickle.loads(pickle.dumps(Remedies(before, [remedy]))) == [remedy]
