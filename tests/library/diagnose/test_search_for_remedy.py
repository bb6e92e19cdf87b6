"""If no known remedy works for a refused graph, `explain` searches for changes as `--whatif` does."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from cudnn_backend_py import DataType, Graph, GraphBuilder, PointwiseMode, attention
from cudnn_backend_py.diagnose import Judge, Query, Verdict
from cudnn_backend_py.diagnose.remedies import search_and_add_remedy
from cudnn_backend_py.diagnose.report.summary import format_summary
from cudnn_backend_py.diagnose.verdict import Basis
from cudnn_backend_py.generated.enums import ReduceTensorOp
from tests.support.full_cudnn_graphs import GRAPHS_OF_FULL_CUDNN
from tests.support.typical_graphs import add_bilinear_upsampling


def test_a_refusal_without_a_remedy_gets_the_smallest_change() -> None:
    graph = attention.sdpa_backward(batch=1, heads=2, seq_q=512, head_dim=512, version=(9, 28, 0), allow_hazards=True)
    with Judge() as judge:
        question = Query(graph, "sm90")
        refused = judge.run_query(question)
        assert refused.cause is not None
        assert not refused.cause.remedy
        cause = search_and_add_remedy(refused, question, judge).cause
    assert cause is not None
    assert cause.headline == refused.cause.headline
    assert cause.remedy.startswith("head dim of ")
    assert cause.advice.endswith(" [passes its support check, not built]")


def make_strides_with_channels_last(dims: tuple[int, ...]) -> tuple[int, ...]:
    channels, *spatial = dims[1:]
    inner = [channels * math.prod(spatial[axis + 1 :]) for axis in range(len(spatial))]
    return (math.prod(dims[1:]), 1, *inner)


def make_scaled_1d_convolution() -> Graph:
    """Return a 1-d convolution of channels-last data that is scaled, shifted and rectified before."""
    g = GraphBuilder("scaled", io_type=DataType.HALF, intermediate_type=DataType.FLOAT)
    dims = {"x": (2, 16, 38), "factor": (1, 16, 1), "shift": (1, 16, 1), "w": (8, 16, 1)}
    x, factor, shift, w = (
        g.tensor(name, size, strides=make_strides_with_channels_last(size)) for name, size in dims.items()
    )
    strides = make_strides_with_channels_last(dims["x"])
    scaled = g.pointwise(PointwiseMode.MUL, x, factor, name="mul", strides=strides)
    shifted = g.pointwise(PointwiseMode.ADD, scaled, shift, name="add", strides=strides)
    relu = g.pointwise(PointwiseMode.RELU_FWD, shifted, name="relu", strides=strides, data_type=DataType.HALF)
    dims_y = (2, 8, 39)
    g.convolution(
        relu, w, name="y", padding=0, post_padding=1, strides=make_strides_with_channels_last(dims_y), virtual=False
    )
    return g.graph()


def test_a_scaled_convolution_over_one_dim_is_offered_over_two_dims() -> None:
    graph = make_scaled_1d_convolution()
    with Judge() as judge:
        question = Query(graph, "sm100")
        cause = search_and_add_remedy(judge.run_query(question), question, judge).cause
    assert cause is not None
    assert cause.remedy.startswith("two spatial dims, the first of them 1: x [2, 16, 38] -> [2, 16, 1, 38]")


def make_grouped_convolution_with_reduction() -> Graph:
    """Return a grouped convolution and a reduction of its result: cuDNN supports it without the reduction."""
    g = GraphBuilder("grouped", io_type=DataType.BFLOAT16, intermediate_type=DataType.FLOAT)
    dims = {"x": (4, 64, 1, 15), "w": (64, 8, 1, 3), "bias": (1, 64, 1, 1)}
    x, w, bias = (g.tensor(name, size, strides=make_strides_with_channels_last(size)) for name, size in dims.items())
    strides = make_strides_with_channels_last((4, 64, 1, 13))
    y = g.convolution(x, w, name="conv", strides=strides)
    less = g.pointwise(PointwiseMode.SUB, y, bias, name="sub", strides=strides)
    total = (4, 64, 1, 1)
    strides = make_strides_with_channels_last(total)
    g.reduction(ReduceTensorOp.AMAX, less, total, name="r", virtual=False, data_type=DataType.FLOAT, strides=strides)
    return g.graph()


def test_the_headline_is_the_same_whether_plans_of_variations_are_built() -> None:
    """The search that builds plans reaches the number of plans it may build before the variation that helps."""
    graph = make_grouped_convolution_with_reduction()
    with Judge() as judge:
        checked = judge.run_query(Query(graph, "sm89")).cause
        question = Query(graph, "sm89", build=True)
        refused = judge.run_query(question)
        found = search_and_add_remedy(refused, question, judge)
    assert checked is not None
    assert refused.cause is not None
    assert found.cause is not None
    assert checked.basis is Basis.MEASURED
    assert checked.headline == refused.cause.headline
    texts = [" ".join(format_summary(verdict).split()) for verdict in (refused, found)]
    assert "[passes its support check, not built]" in texts[0]
    assert "[a plan of it was built]" in texts[1]
    assert found.cause.remedy.startswith("without the operation r (reduce_amax)")


def test_a_search_without_success_reports_how_many_changes_were_checked() -> None:
    graph = attention.sdpa_forward(batch=1, heads=2, seq_q=512, head_dim=20)
    with Judge() as judge:
        question = Query(graph, "sm75")
        verdict = search_and_add_remedy(judge.run_query(question), question, judge)
    assert verdict.cause is not None
    assert not verdict.cause.remedy
    assert verdict.limits[-1].endswith(" pairs of changes were checked, none helps")


def make_matmul_with_index_comparison(compute_type: DataType) -> Graph:
    """Return a product, zero where two indices differ."""
    g = GraphBuilder("comparison", io_type=DataType.BFLOAT16, intermediate_type=DataType.FLOAT)
    product = g.matmul(g.tensor("a", (1, 16, 64)), g.tensor("b", (1, 64, 64)), name="product")
    index: dict[str, Any] = {"compute_type": DataType.INT32, "data_type": DataType.INT32}
    row, column = (g.pointwise(PointwiseMode.GEN_INDEX, product, axis=axis, **index) for axis in (1, 2))
    compared = g.pointwise(PointwiseMode.CMP_NEQ, row, b=column, compute_type=compute_type, data_type=DataType.BOOLEAN)
    g.pointwise(PointwiseMode.BINARY_SELECT, product, b=product, t=compared, name="y", virtual=False)
    return g.graph()


def replace_fields_of_verdict_cause(verdict: Verdict, **fields: object) -> Verdict:
    assert verdict.cause is not None
    return replace(verdict, cause=replace(verdict.cause, **fields))  # type: ignore[arg-type]


def test_equivalent_graph_changes_are_proposed_first() -> None:
    graph = make_matmul_with_index_comparison(DataType.BOOLEAN)
    with Judge() as judge:
        question = Query(graph, "sm100")
        idea = {"remedy": "without the operation y (idea)", "asked": "support check"}
        cause = search_and_add_remedy(
            replace_fields_of_verdict_cause(judge.run_query(question), **idea), question, judge
        ).cause
        assert judge.run_query(Query(make_matmul_with_index_comparison(DataType.FLOAT), "sm100")).supported
    assert cause is not None
    first, _, last = cause.remedy.partition("; or ")
    assert first.endswith("computation in boolean -> float32 (changes numerics)")
    assert last == idea["remedy"]


def test_an_unverified_suggestion_is_replaced_by_a_judged_change() -> None:
    graph = make_matmul_with_index_comparison(DataType.BOOLEAN)
    with Judge() as judge:
        question = Query(graph, "sm100")
        refused = replace_fields_of_verdict_cause(judge.run_query(question), remedy="ask somebody", asked="not asked")
        cause = search_and_add_remedy(refused, question, judge).cause
    assert cause is not None
    assert cause.remedy.endswith("computation in boolean -> float32 (changes numerics)")
    assert cause.asked == "support check"


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("gen stats", "put it into the graph of the matmul before or after it, which is not known here"),
        (
            "bn backward weights",
            "put it after a data gradient of a convolution, the batch norm once more, and RELU_BWD with its result in "
            "memory, in one graph",
        ),
    ],
)
def test_a_suggestion_about_another_graph_is_kept_unchanged(name: str, remedy: str) -> None:
    with Judge() as judge:
        question = Query(GRAPHS_OF_FULL_CUDNN[name](), "sm90")
        refused = judge.run_query(question)
        verdict = search_and_add_remedy(refused, question, judge)
    assert verdict.cause == refused.cause
    assert verdict.cause is not None
    assert verdict.cause.label == "suggestion"
    assert verdict.cause.remedy == remedy
    assert verdict.limits[-1].endswith(" pairs of changes were checked, none helps")


def test_plans_of_a_remedy_for_a_failed_build_are_built() -> None:
    g = GraphBuilder("bilinear", io_type=DataType.BFLOAT16)
    add_bilinear_upsampling(g)
    with Judge() as judge:
        question = Query(g.graph(), "sm89")
        refused = judge.run_query(question)
        assert refused.stage == "plan"
        cause = search_and_add_remedy(refused, question, judge).cause
    assert cause is not None
    assert ": bfloat16 -> float32 (changes numerics)" in cause.remedy
    assert cause.asked == "built"
