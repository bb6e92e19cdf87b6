"""Changes that rewrite a graph as an equivalent one: cuDNN refuses the first graph and supports the second."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from cudnn_backend_py import DataType, Graph, GraphBuilder, PointwiseMode, library
from cudnn_backend_py.diagnose import Judge, Query, whatif
from cudnn_backend_py.diagnose.causes.case import FORM_CHANGES
from cudnn_backend_py.diagnose.verdict import Basis
from cudnn_backend_py.generated.enums import ReduceTensorOp
from cudnn_backend_py.graph import Operation
from cudnn_backend_py.graph.attention import sdpa_backward, sdpa_forward
from cudnn_backend_py.graph.ir import Parameters, packed_strides
from cudnn_backend_py.rewrite.changes import iterate_changes
from tests.library.diagnose.test_rules import make_backward
from tests.pure.rewrite.test_form_changes import make_padded_convolution, make_reduction, set_dims_of_sequence_lengths

F16 = DataType.HALF
P, R = PointwiseMode, ReduceTensorOp
ATTENTION_SIZES: dict[str, Any] = {"batch": 2, "heads": 4, "seq_q": 256, "head_dim": 64, "allow_hazards": True}
UNIFIED_OPTIONS: dict[str, Any] = {**ATTENTION_SIZES, "implementation": "unified", "version": (9, 28, 0)}


def make_attention_of_single_operations(*leading: int, statistics: bool = False) -> Graph:
    rank, row = len(leading) + 2, (*leading, 256, 1)
    g = GraphBuilder("by_hand", io_type=F16)
    k = g.tensor("k", (*leading, 64, 256), strides=(*packed_strides((*leading, 64, 256))[:-2], 1, 64))
    s = g.matmul(g.tensor("q", (*leading, 256, 64)), k)
    s = g.pointwise(P.DIV, s, g.scalar(8.0, rank=rank))
    top = g.reduction(R.MAX, s, row)
    exp = g.pointwise(P.EXP, g.pointwise(P.SUB, s, top))
    total = g.reduction(R.ADD, exp, row)
    if statistics:
        g.pointwise(P.ADD, top, g.pointwise(P.LOG, total), name="stats", virtual=False)
    p = g.pointwise(P.DIV, exp, total, data_type=F16)
    g.matmul(p, g.tensor("v", (*leading, 256, 64)), name="o", virtual=False)
    return g.graph()


def make_matmul_graph(*leading: int) -> Graph:
    g = GraphBuilder("product", io_type=F16)
    g.matmul(g.tensor("a", (*leading, 64, 32)), g.tensor("b", (*leading, 32, 48)), name="y", virtual=False)
    return g.graph()


def make_int8_convolution() -> Graph:
    g = GraphBuilder("int8", io_type=DataType.INT8)
    x, w, y = ((1, 32, 8, 8), (32, 32, 3, 3), (1, 32, 6, 6))
    last = {dims: (dims[1] * dims[2] * dims[3], 1, dims[1] * dims[3], dims[1]) for dims in (x, w, y)}
    op = make_padded_convolution((0, 0), (0, 0)).ops[0]
    assert isinstance(op, Operation)
    inner = op.fields["convolution"]
    operands = {name: g.tensor(name, dims, strides=last[dims]) for name, dims in (("x", x), ("w", w), ("y", y))}
    computed = Parameters(inner.kind, {**inner.fields, "comp_type": DataType.INT8})
    return Graph((Operation(op.type, "conv", {**op.fields, **operands, "convolution": computed}),), "int8")


# graph, target, version, kind, part of the title
REFUSED_FORMS: dict[str, tuple[Callable[[], Graph], str, str | None, str, str]] = {
    "five dims": (
        lambda: make_attention_of_single_operations(2, 3, 4, statistics=True),
        "sm90",
        None,
        "flatten",
        "5 dims -> 4",
    ),
    "product of heads": (lambda: make_matmul_graph(2, 2), "sm90", None, "flatten", "4 dims -> 3"),
    "product of a batch": (lambda: make_matmul_graph(1, 2), "sm100", None, "flatten", "4 dims -> 3"),
    "product of five dims": (lambda: make_matmul_graph(2, 1, 2), "sm90", None, "flatten", "5 dims -> 3"),
    "rows and columns": (
        lambda: make_reduction((128, 64, 1, 1), (1, 64, 1, 1)),
        "sm80",
        None,
        "flatten",
        "[64, 1, 64, 64]",
    ),
    "softmax by hand": (
        lambda: make_attention_of_single_operations(2, 4),
        "sm90",
        None,
        "composite",
        "written by hand",
    ),
    "lengths": (
        lambda: set_dims_of_sequence_lengths(sdpa_forward(**UNIFIED_OPTIONS, padding=True), 2),
        "sm90",
        None,
        "lengths",
        "[2, 1, 1, 1]",
    ),
    "bias": (lambda: make_backward(bias=(1, 4, 256, 1), dbias=True), "sm100", None, "bias_dims", "[1, 4, 256, 256]"),
    "bias, unified": (
        lambda: sdpa_backward(**UNIFIED_OPTIONS, bias=(1, 4, 1, 256), dbias=True),
        "sm100",
        None,
        "bias_dims",
        "[1, 4, 256, 256]",
    ),
    "unified backward": (
        lambda: sdpa_backward(**UNIFIED_OPTIONS, causal=True),
        "sm90",
        "9.24.0",
        "composite",
        "SDPA_BWD",
    ),
    "int8": (make_int8_convolution, "sm80", None, "data_type", "computed in int8 -> computed in int32"),
}


@pytest.fixture(scope="module")
def shared_judge() -> Iterator[Judge]:
    with Judge(limit_s=120) as shared_judge:
        yield shared_judge


@pytest.mark.parametrize("name", REFUSED_FORMS)
def test_a_refused_graph_is_supported_in_another_form(shared_judge: Judge, name: str) -> None:
    make, target, version, kind, words = REFUSED_FORMS[name]
    graph = make()
    verdict = shared_judge.run_query(Query(graph, target, version))
    assert not verdict.supported
    change = next(change for change in iterate_changes(graph, (kind,)) if words in change.title)
    assert change.effect == "exact"
    after = shared_judge.run_query(Query(change.graph, target, version))
    assert after.supported, after.cause
    assert verdict.cause is not None
    assert verdict.cause.basis is Basis.MEASURED, verdict.cause
    text = f"{verdict.cause.headline} {verdict.cause.remedy}"
    assert words in text or "bias of dims" in text, verdict.cause


@pytest.mark.parametrize("name", ["five dims", "softmax by hand", "lengths"])
def test_whatif_finds_the_supported_equivalent_graph(shared_judge: Judge, name: str) -> None:
    make, target, version, kind, words = REFUSED_FORMS[name]
    found = whatif(make(), target, version=version, judge=shared_judge)
    assert any(remedy.kinds == (kind,) and words in remedy.title for remedy in found), found
    assert set(FORM_CHANGES) >= {"flatten", "composite", "lengths"}


def test_an_equivalent_graph_that_does_not_compile_is_not_a_remedy(shared_judge: Judge) -> None:
    verdict = shared_judge.run_query(Query(make_matmul_graph(2, 1, 2), "sm90"))
    changes = iterate_changes(make_matmul_graph(2, 1, 2), ("data_type",))
    in_float32 = next(one for one in changes if "float16 -> float32" in one.title and len(one.tensors) == 3)
    assert shared_judge.run_query(Query(in_float32.graph, "sm90", causes=False)).supported
    assert verdict.cause is not None
    assert "float32" not in f"{verdict.cause.headline} {verdict.cause.remedy}"
    assert "float32" not in f"{[one.title for one in whatif(make_matmul_graph(2, 1, 2), 'sm90', judge=shared_judge)]}"


def test_padding_of_an_image_keeps_a_convolution_supported(shared_judge: Judge) -> None:
    graph = make_padded_convolution((0, 0), (2, 2), data_type=F16)
    change = next(iterate_changes(graph, ("explicit_padding",)))
    answers = [shared_judge.run_query(Query(one, "sm80")).outcome for one in (graph, change.graph)]
    assert answers[0] is answers[1]


def test_a_type_number_in_a_quoted_message_is_shown_with_its_name(shared_judge: Judge) -> None:
    """cuDNN calls bfloat16 "compute type 9": the quoted message stays unchanged, with the name next to it."""
    op = make_int8_convolution().ops[0]
    assert isinstance(op, Operation)
    inner = op.fields["convolution"]
    computed = Parameters(inner.kind, {**inner.fields, "comp_type": DataType.BFLOAT16})
    graph = Graph((Operation(op.type, "conv", {**op.fields, "convolution": computed}),), "bfloat16")
    cause = shared_judge.run_query(Query(graph, "sm90", None)).cause
    assert cause is not None
    assert "compute type 9. Supported" in cause.headline, library().version_text
    assert "compute type 9 is BFLOAT16" in cause.headline
