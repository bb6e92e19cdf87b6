"""Graphs that cuDNN refuses for two reasons, of which it gives one: both are named, and both remedies."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from cudnn_backend_py import DataType, DescriptorType, GraphBuilder, PointwiseMode
from cudnn_backend_py.diagnose import Judge, Query
from cudnn_backend_py.generated.enums import NanPropagation, NormMode, PaddingMode, ResampleMode
from cudnn_backend_py.graph.attention import sdpa_forward
from cudnn_backend_py.graph.ir import Parameters
from cudnn_backend_py.graph.strides import channels_last
from tests.support.refused_graphs import (
    judge_and_check_refusal,
    make_block_scaled_matmul,
    make_convolution_graph,
    make_relu,
    replace_tensor_fields,
)

T, P = DataType, PointwiseMode


@pytest.fixture(scope="module")
def shared_judge() -> Iterator[Judge]:
    with Judge() as one:
        yield one


def test_a_wrong_alignment_and_a_wrong_rank_are_both_named(shared_judge: Judge) -> None:
    cause = judge_and_check_refusal(
        shared_judge, replace_tensor_fields(make_relu((1, 32)), "y", alignment=2), "sm90"
    ).cause
    assert cause is not None
    assert cause.headline == "y has alignment 2 bytes, 4 is needed; and also tensors have 2 dims, 3 are needed"
    assert shared_judge.run_query(Query(make_relu((1, 1, 32)), "sm90")).supported


def test_a_wrong_gradient_type_and_a_graph_split_are_both_named(shared_judge: Judge) -> None:
    g = GraphBuilder("norm of relu", io_type=T.BFLOAT16)
    dims, strides = (512, 256, 1, 1), (256, 1, 256, 256)
    x, dy = (g.tensor(name, dims, strides=strides) for name in ("x", "dy"))
    scale = g.tensor("scale", (1, 256, 1, 1), T.FLOAT, strides=strides)
    mean, inv = (g.tensor(name, (512, 1, 1, 1), T.FLOAT, strides=(1, 1, 1, 1)) for name in ("mean", "inv"))
    through = g.pointwise(P.RELU_BWD, x, dy=dy, name="dr", strides=strides)
    g.norm_backward(
        NormMode.LAYER_NORM, through, x, scale, mean=mean, inv_variance=inv, dbias=True, name="dx", virtual=False
    )
    graph = g.graph()
    cause = judge_and_check_refusal(
        shared_judge, replace_tensor_fields(graph, "dx.dscale", data_type=T.HALF), "sm86"
    ).cause
    assert cause is not None
    assert "dx.dscale has data type float16, float32 is needed; and also dr (relu_bwd) before dx" in cause.headline
    assert cause.remedy == "dx.dscale: float16 -> float32 (changes numerics); and two graphs, dr in memory between them"
    other = judge_and_check_refusal(shared_judge, graph, "sm86").cause
    assert other is not None
    assert other.headline.startswith("dr (relu_bwd) before dx (norm_backward): not supported in one graph with it")


def test_offsets_of_experts_with_another_type_are_named_before_the_wheel(shared_judge: Judge) -> None:
    g = GraphBuilder("experts", io_type=T.BFLOAT16)
    dy, x = g.tensor("dy", (1, 512, 512)), g.tensor("x", (1, 512, 256))
    g.moe_grouped_matmul_backward(dy, x, g.tensor("offsets", (4, 1, 1), T.INT32), name="dw", virtual=False)
    graph = replace_tensor_fields(g.graph(), "offsets", data_type=T.DOUBLE)
    cause = judge_and_check_refusal(shared_judge, graph, "sm90").cause
    assert cause is not None
    assert cause.headline.startswith("offsets has data type double (float64), int32 is needed; and also this cuDNN is")
    assert cause.remedy.startswith("offsets: double (float64) -> int32; and use the full wheel for CUDA 13")


def test_a_layout_that_passes_its_check_without_a_plan_is_named_with_the_type_that_builds(shared_judge: Judge) -> None:
    g = GraphBuilder("bilinear", io_type=T.HALF)
    half = ((1, 2), (1, 2))
    fields = {"mode": ResampleMode.BILINEAR, "comp_type": T.FLOAT, "spatial_dims": 2, "post_paddings": (1, 1)}
    fields |= {"pre_paddings": half, "strides": half, "window_dims": (2, 2)}
    fields |= {"nan_propagation": NanPropagation.PROPAGATE_NAN, "padding_mode": PaddingMode.EDGE_VAL_PAD}
    x, y = g.tensor("x", (1, 8, 16, 5)), g.tensor("y", (1, 8, 32, 10))
    window = Parameters(DescriptorType.RESAMPLE, fields)
    g.operation(DescriptorType.OPERATION_RESAMPLE_FWD, x=x, y=y, resample=window, alpha=1.0, beta=0.0)
    cause = judge_and_check_refusal(shared_judge, g.graph(), "sm120").cause
    assert cause is not None
    assert cause.headline == (
        "x, y have layout NCHW, NHWC is needed; and also x, y have data type float16, float32 is needed"
    )
    assert shared_judge.run_query(
        Query(
            replace_tensor_fields(
                replace_tensor_fields(g.graph(), "x", data_type=T.FLOAT, strides=channels_last((1, 8, 16, 5))),
                "y",
                data_type=T.FLOAT,
                strides=channels_last((1, 8, 32, 10)),
            ),
            "sm120",
            build=True,
        )
    ).built


def test_dims_and_a_type_are_both_named_where_another_engine_keeps_its_reason(shared_judge: Judge) -> None:
    g = GraphBuilder("selected", io_type=T.FLOAT)
    x, left, other = (g.tensor(name, (16, 8, 2, 4)) for name in ("x", "left", "other"))
    chosen = g.pointwise(P.CMP_LE, left, g.tensor("right", (1, 1, 1, 4)), data_type=T.BOOLEAN, compute_type=T.FLOAT)
    angle = g.pointwise(P.ATAN2, g.pointwise(P.BINARY_SELECT, x, other, t=chosen), x)
    g.pointwise(P.ELU_FWD, angle, name="y", virtual=False, data_type=T.BFLOAT16)
    cause = judge_and_check_refusal(shared_judge, g.graph(), "sm75").cause
    assert cause is not None
    dims, kind = (
        "dims [16, 8, 2, 4] are not supported, rows and columns as 1 x 1 images are",
        "y has data type bfloat16",
    )
    assert cause.headline.startswith(f"{dims}; and also {kind}, float16 is needed")
    assert "; and y: bfloat16 -> float16 (changes numerics)" in cause.remedy


def test_the_type_of_weights_of_one_by_one_is_offered_next_to_a_concat(shared_judge: Judge) -> None:
    g = GraphBuilder("joined", io_type=T.FLOAT)
    x, w, z = (
        g.tensor(n, d, strides=channels_last(d))
        for n, d in (("x", (1, 16, 5, 9)), ("w", (32, 16, 1, 1)), ("z", (1, 16, 5, 9)))
    )
    y = g.convolution(x, w, strides=channels_last((1, 32, 5, 9)))
    g.concatenate((y, z), axis=1, virtual=False, strides=channels_last((1, 48, 5, 9)))
    cause = judge_and_check_refusal(shared_judge, g.graph(), "sm75").cause
    assert cause is not None
    assert "supported with w, x: float32 -> float16" in cause.headline


def test_a_remedy_on_another_architecture_names_what_is_dangerous_there(shared_judge: Judge) -> None:
    graph = sdpa_forward(batch=1, heads=4, seq_q=200, head_dim=128, data_type=T.FP8_E4M3, mx=True)
    graph = replace_tensor_fields(graph, "descale_q", dims=(1, 4, 200, 4), strides=(3200, 800, 4, 1))
    cause = judge_and_check_refusal(shared_judge, graph, "sm80").cause
    assert cause is not None
    assert "(dangerous there: block scales 'descale_q' [1, 4, 200, 4] (F8_128x4) are no whole tiles" in cause.remedy
    assert shared_judge.run_query(Query(graph, "sm100")).lint


def test_a_danger_that_the_remedy_removes_is_not_named(shared_judge: Judge) -> None:
    cause = judge_and_check_refusal(shared_judge, make_block_scaled_matmul(100, 256, 256), "sm80").cause
    assert cause is not None
    assert "in whole tiles of 128 x 4" in cause.remedy
    assert "dangerous there" not in cause.remedy


def test_filters_with_channels_that_do_not_divide_the_images_get_as_many(shared_judge: Judge) -> None:
    graph = make_convolution_graph(T.HALF, T.HALF, 64, 65)
    cause = judge_and_check_refusal(shared_judge, graph, "sm80").cause
    assert cause is not None
    assert cause.headline == "x has 64 channels, no multiple of the 65 of w"
    assert cause.remedy == "w: dims [64, 65, 3, 3] -> [64, 64, 3, 3]"
    assert cause.asked == "support check"


def test_rows_of_a_size_that_the_engine_of_norms_lacks_are_named_with_the_operations(shared_judge: Judge) -> None:
    g = GraphBuilder("rows", io_type=T.FLOAT)
    x, (scale, bias) = g.tensor("x", (3, 32, 200)), (g.tensor(name, (1, 1, 200)) for name in ("scale", "bias"))
    y = g.norm_forward(NormMode.LAYER_NORM, x, scale, bias).y
    g.pointwise(P.RELU_FWD, g.pointwise(P.ADD, y, x), name="relu", virtual=False)
    cause = judge_and_check_refusal(shared_judge, g.graph(), "sm103").cause
    assert cause is not None
    assert cause.headline.endswith("not supported in one graph with it where rows have 200 elements")
    assert cause.remedy.startswith("two graphs, ")
