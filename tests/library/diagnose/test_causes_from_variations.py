"""Causes of refused graphs other than attention, found by judging changed sizes, types, operations and targets.

The values needed are found here by brute force, and every printed remedy is judged.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest

from cudnn_backend_py import DataType, Graph, PointwiseMode
from cudnn_backend_py.diagnose import Judge, Query, Verdict
from cudnn_backend_py.diagnose.causes.case import RefusalCase
from cudnn_backend_py.diagnose.causes.find import find_cause
from cudnn_backend_py.diagnose.verdict import Basis
from cudnn_backend_py.generated.enums import NormMode
from cudnn_backend_py.graph.attention import sdpa_forward
from cudnn_backend_py.graph.replace import replace_tensors
from cudnn_backend_py.target import use_target
from tests.library.diagnose.test_rules import change_tensor
from tests.support.refused_graphs import (
    make_block_scaled_matmul,
    make_convolution_graph,
    make_convolution_with_statistics,
    make_matmul_with_pointwise,
    make_max_pool,
    make_norm_backward,
    make_weight_gradient_with_fused_input,
)
from tools.records.remedies import EFFECT_PATTERN, find_change_with_title

T, P = DataType, PointwiseMode
E4M3, E5M2 = T.FP8_E4M3, T.FP8_E5M2


@pytest.fixture(scope="module")
def shared_judge() -> Iterator[Judge]:
    with Judge() as one:
        yield one


def judge_and_get_headline(shared_judge: Judge, graph: Graph, target: str) -> str:
    """Return the headline of a refused graph, after all its remedies have been judged."""
    question = Query(graph, target)
    verdict = shared_judge.run_query(question)
    assert not verdict.supported
    assert verdict.cause is not None
    assert judge_and_count_printed_remedies(shared_judge, question, verdict) > 0, verdict.cause
    return verdict.cause.headline


def judge_and_count_printed_remedies(shared_judge: Judge, question: Query, verdict: Verdict) -> int:
    """Judge every remedy that a verdict prints; return their number."""
    assert verdict.cause is not None
    queries: list[Query] = []
    for part in verdict.cause.remedy.split("; or "):
        if part.startswith("judge for "):
            queries += [replace(question, target=f"sm{sm}") for sm in re.findall(r"\bsm_(\d+)\b", part)]
        else:
            change = find_change_with_title(question.graph, EFFECT_PATTERN.sub("", part))
            assert change is not None, part
            queries += [replace(question, graph=graph) for graph in change.graphs]
    for one in queries:
        assert shared_judge.run_query(replace(one, causes=False)).supported, verdict.cause.remedy
    return len(queries)


@pytest.mark.parametrize(("kind", "per_group"), list(itertools.product((E4M3, E5M2), (1, 2, 3))))
def test_too_few_channels_per_group_are_reported_with_the_type(
    shared_judge: Judge, kind: DataType, per_group: int
) -> None:
    def make_grouped_convolution(channels: int, data_type: DataType = kind) -> Graph:
        return make_convolution_graph(data_type, T.BFLOAT16, 16 * channels, channels, 32)

    enough = next(
        one
        for one in range(per_group, 17)
        if shared_judge.run_query(Query(make_grouped_convolution(one), "sm120")).supported
    )
    said = judge_and_get_headline(shared_judge, make_grouped_convolution(per_group), "sm120")
    assert f"input channels per group of w, x is {per_group}, a multiple of {enough} is needed" in said
    assert re.search(r"supported with w, x: fp8 \(e\dm\d\) -> ", said)


@pytest.mark.parametrize("target", ["sm70", "sm75"])
@pytest.mark.parametrize(
    "graph",
    [make_convolution_graph(T.BFLOAT16, T.BFLOAT16), make_convolution_graph(T.BFLOAT16, T.BFLOAT16, 32, 32, 16)],
    ids=["64 channels", "32 channels"],
)
def test_a_type_that_only_other_architectures_support_is_reported(
    shared_judge: Judge, graph: Graph, target: str
) -> None:
    name = {"sm70": "v100", "sm75": "t4"}[target]
    said = judge_and_get_headline(shared_judge, graph, name)
    assert said.startswith("w, x, y have data type bfloat16, float16 or float32 is needed; "), said
    assert f"sm_{target[2:]} does not support the graph as it is, sm_90" in said


@pytest.mark.parametrize("after", [(P.ADD,), (P.ADD, P.RELU_FWD), (P.ADD, P.GELU_FWD)])
@pytest.mark.parametrize("size", [64, 128])
def test_operations_that_cannot_be_fused_after_a_matmul_are_reported(
    shared_judge: Judge, after: Sequence[PointwiseMode], size: int
) -> None:
    graph = make_matmul_with_pointwise(T.HALF, after, size)
    said = judge_and_get_headline(shared_judge, graph, "t4")
    assert "after c (matmul): not supported in one graph with it" in said
    assert "sm_75 does not support the graph as it is, sm_90" in said


@pytest.mark.parametrize("before", [(P.MUL, P.ADD), (P.MUL,), (P.RELU_FWD,)])
@pytest.mark.parametrize("channels", [32, 64])
def test_operations_that_cannot_be_fused_before_a_weight_gradient_are_reported(
    shared_judge: Judge, before: Sequence[PointwiseMode], channels: int
) -> None:
    graph = make_weight_gradient_with_fused_input(T.HALF, before, channels)
    said = judge_and_get_headline(shared_judge, graph, "sm90")
    assert re.search(r"v0 \(\w+\).* before convolution_backward_filter\d .*: not supported in one graph with it", said)
    whole = shared_judge.run_query(
        Query(make_weight_gradient_with_fused_input(T.HALF, (*before, P.RELU_FWD), channels), "sm90")
    ).supported
    assert ("supported with a ReLU" in said) == (whole and before[-1] is not P.RELU_FWD)


@pytest.mark.parametrize("target", ["sm80", "sm90", "sm100"])
def test_a_type_and_fused_operations_are_both_reported(shared_judge: Judge, target: str) -> None:
    """On sm_100, some variations of the graph crash cuDNN; the cause is found from the others."""
    graph = make_weight_gradient_with_fused_input(T.BFLOAT16, (P.MUL, P.ADD, P.RELU_FWD))
    said = judge_and_get_headline(shared_judge, graph, target)
    assert "not supported in one graph with it" in said or "supported as two graphs" in said
    assert "bfloat16 -> float16" in said or "bfloat16, float16 is needed" in said


@pytest.mark.parametrize("target", ["sm75", "sm80", "sm89", "sm90"])
def test_block_scales_need_a_newer_architecture_or_plain_order(shared_judge: Judge, target: str) -> None:
    said = judge_and_get_headline(shared_judge, make_block_scaled_matmul(128, 128, 128), target)
    order = f"a_scale, b_scale in F8_128x4 order: not supported on sm_{target[2:]}, in plain order they are; sm_100"
    assert said.startswith("block-scaled fp8 (e4m3)" if target == "sm75" else order)
    assert target != "sm75" or "is not supported on sm_75; sm_" in said


@pytest.mark.parametrize(("m", "n", "k"), [(128, 128, 160), (100, 128, 128), (128, 72, 96), (100, 72, 160)])
def test_block_scales_need_whole_tiles(shared_judge: Judge, m: int, n: int, k: int) -> None:
    assert shared_judge.run_query(Query(make_block_scaled_matmul(m, n, k, whole=True), "sm100")).supported
    said = judge_and_get_headline(shared_judge, make_block_scaled_matmul(m, n, k), "sm100")
    needed = make_block_scaled_matmul(m, n, k, whole=True)
    for name in ("a_scale", "b_scale"):
        old, new = make_block_scaled_matmul(m, n, k).tensor(name).dims, needed.tensor(name).dims
        assert old == new or f"{name} {list(old)} where {list(new)} is needed" in said


@pytest.mark.parametrize("mode", [NormMode.LAYER_NORM, NormMode.INSTANCE_NORM])
def test_a_missing_mean_of_norm_backward_is_reported(shared_judge: Judge, mode: NormMode) -> None:
    cause = shared_judge.run_query(Query(make_norm_backward(mode, mean=False), "sm90")).cause
    assert cause is not None
    assert cause.headline.endswith(f"(norm_backward with {mode.name}) has no mean, which it needs")
    with_it = shared_judge.run_query(Query(make_norm_backward(mode, mean=True), "sm90")).cause
    assert with_it is None or "has no mean" not in with_it.headline


@pytest.mark.parametrize(("window", "stride", "pad"), [(2, 2, 0), (3, 2, 1), (3, 1, 1), (5, 3, 2)])
def test_wrong_dims_of_a_pooling_result_are_reported(shared_judge: Judge, window: int, stride: int, pad: int) -> None:
    right = (32 + 2 * pad - window) // stride + 1
    assert shared_judge.run_query(Query(make_max_pool(32, right, window, stride, pad), "sm90")).supported
    for wrong in (right - 1, right + 1):
        said = judge_and_get_headline(shared_judge, make_max_pool(32, wrong, window, stride, pad), "sm90")
        assert f"dims of y [2, 32, {wrong}, {wrong}] are not supported, [2, 32, {right}, {right}] are" in said


@pytest.mark.parametrize(("head_dim", "head_dim_v"), [(128, 64), (64, 128), (96, 64)])
def test_a_wrong_head_dim_of_o_is_reported(shared_judge: Judge, head_dim: int, head_dim_v: int) -> None:
    graph = sdpa_forward(
        batch=2, heads=2, seq_q=128, head_dim=head_dim, head_dim_v=head_dim_v, implementation="unified",
        version=(9, 28, 0), allow_hazards=True,
    )  # fmt: skip
    dims = (2, 2, 128, head_dim)
    wrong = change_tensor(graph, "o", dims=dims, strides=(256 * head_dim, head_dim, 2 * head_dim, 1))
    said = judge_and_get_headline(shared_judge, wrong, "sm90")
    assert f"o {list(dims)} where [2, 2, 128, {head_dim_v}] is needed" in said


def test_variation_that_crashes_cudnn_is_left_out() -> None:
    """When several variations are queried, the first attempt crashes on one, and the second continues without it."""
    graph = make_weight_gradient_with_fused_input(T.BFLOAT16, (P.MUL, P.ADD, P.RELU_FWD))
    with use_target("sm100") as target:
        case = RefusalCase((), graph, target, ("A",), crashing_variations=frozenset({1, 3}))
        plain = make_convolution_graph(T.HALF, T.HALF)
        assert [case.supports(plain) for _ in range(4)] == [False, True, False, True]
        cause = find_cause([], graph, target, ("A", "FALLBACK"))
    assert cause is not None
    assert cause.basis is Basis.MEASURED


@pytest.mark.parametrize(("block", "k"), [(32, 128), (32, 256)])
@pytest.mark.parametrize("kind", [T.FLOAT, T.HALF])
def test_type_of_block_scales_is_reported(shared_judge: Judge, kind: DataType, block: int, k: int) -> None:
    graph = make_block_scaled_matmul(128, 128, k, block)
    for name in ("a_scale", "b_scale"):
        scale = graph.tensor(name)
        graph = replace_tensors(graph, {scale.uid: replace(scale, data_type=kind)})
    said = judge_and_get_headline(shared_judge, graph, "sm100")
    assert said.startswith("a_scale, b_scale have data type float"), said
    assert "supported with fp8_e8m0, or with reordering F8_128x4 -> NONE" in said


@pytest.mark.parametrize("kind", [T.HALF, T.BFLOAT16])
@pytest.mark.parametrize("target", ["v100", "t4"])
def test_making_an_output_virtual_is_not_proposed_if_another_gpu_supports_the_graph(
    shared_judge: Judge, target: str, kind: DataType
) -> None:
    said = judge_and_get_headline(shared_judge, make_convolution_with_statistics(kind), target)
    assert "virtual" not in said
    assert re.search(r"^sm_7\d does not support the graph \(convolution_forward, gen_stats of .*\), sm_90", said), said
