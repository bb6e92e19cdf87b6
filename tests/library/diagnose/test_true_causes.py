"""Graphs with one or two errors: the headline names each error, and the printed remedy helps.

``versions`` of a cause says what the newest cuDNN of this environment does with a graph that an older one refuses.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from cudnn_backend_py import DataType, Graph, GraphBuilder, PointwiseMode
from cudnn_backend_py.diagnose import Judge, Outcome, Query, Verdict
from cudnn_backend_py.diagnose.other_versions import add_newest_version_verdict, add_version_remedy
from cudnn_backend_py.diagnose.remedies import add_remedy_with_same_cudnn_version
from cudnn_backend_py.diagnose.report.summary import format_summary
from cudnn_backend_py.generated.enums import (
    DescriptorType,
    NormMode,
    ReduceTensorOp,
    ResampleMode,
    TensorReordering,
)
from cudnn_backend_py.graph.attention import sdpa_backward, sdpa_forward
from cudnn_backend_py.graph.ir import Matmul, Pointwise
from cudnn_backend_py.graph.replace import iterate_all_ops
from cudnn_backend_py.graph.strides import packed_strides
from cudnn_backend_py.native import library
from cudnn_backend_py.rewrite.changes import iterate_changes
from cudnn_backend_py.versions.store import list_judging_versions, parse_version_numbers
from examples import batch_norm, layer_norm, mha_fprop, moe_layer, rope_attention
from tests.support.full_cudnn_graphs import GRAPHS_OF_FULL_CUDNN
from tests.support.refused_graphs import (
    judge_and_check_refusal,
    make_block_scaled_matmul,
    make_convolution_graph,
    make_relu,
    replace_tensor_fields,
)

T, P, R = DataType, PointwiseMode, ReduceTensorOp
OLDER = next((one.version_with_cuda for one in list_judging_versions() if one.version_with_cuda.startswith("9.14")), "")


@pytest.fixture(scope="module")
def shared_judge() -> Iterator[Judge]:
    with Judge() as one:
        yield one


def make_matmul(**types: DataType) -> Graph:
    g = GraphBuilder("product", io_type=T.HALF)
    a = g.tensor("a", (2, 64, 64), data_type=types.get("a", T.HALF))
    g.matmul(a, g.tensor("b", (2, 64, 64)), name="c", virtual=False)
    return g.graph()


def make_reduction(operator: ReduceTensorOp) -> Graph:
    g = GraphBuilder("reduced", io_type=T.FLOAT)
    x = g.tensor("x", (4, 3, 16, 16), strides="channels_last")
    g.reduction(operator, x, (1, 3, 1, 1), name="y", virtual=False)
    return g.graph()


def test_an_integer_operand_is_blamed_for_its_type_and_not_for_its_alignment(shared_judge: Judge) -> None:
    graph = replace_tensor_fields(make_matmul(), "a", data_type=T.INT32, alignment=2)
    cause = judge_and_check_refusal(shared_judge, graph, "sm90").cause
    assert cause is not None
    assert "a has data type int32, float16 is needed" in cause.headline
    assert cause.remedy.startswith("a int32 -> float16")
    assert shared_judge.run_query(Query(replace_tensor_fields(graph, "a", data_type=T.HALF), "sm90")).supported


def test_pointwise_operations_on_two_dims_need_a_third_dim(shared_judge: Judge) -> None:
    cause = judge_and_check_refusal(shared_judge, make_relu((1, 32)), "sm90").cause
    assert cause is not None
    assert cause.remedy == "a leading dim of 1: x [1, 32] -> [1, 1, 32], y [1, 32] -> [1, 1, 32]"


def test_overlapping_elements_of_a_tensor_are_reported(shared_judge: Judge) -> None:
    graph = replace_tensor_fields(make_convolution_graph(T.HALF, T.HALF), "x", strides=(16384, 1, 1024, 32))
    cause = judge_and_check_refusal(shared_judge, graph, "sm90").cause
    assert cause is not None
    assert cause.headline == "elements of x overlap in memory: dims [2, 64, 16, 16], strides [16384, 1, 1024, 32]"
    assert "-> [16384, 1, 1024, 64]" in cause.remedy


def test_a_norm1_reduction_has_an_exact_replacement(shared_judge: Judge) -> None:
    cause = judge_and_check_refusal(shared_judge, make_reduction(R.NORM1), "sm80").cause
    assert cause is not None
    assert cause.remedy == "y: reduction NORM1 -> ABS, then ADD"
    assert "(idea)" not in cause.remedy


def test_a_norm2_reduction_is_computed_from_squares(shared_judge: Judge) -> None:
    cause = judge_and_check_refusal(shared_judge, make_reduction(R.NORM2), "sm80").cause
    assert cause is not None
    assert cause.remedy.startswith("y: reduction NORM2 -> MUL of x by itself, then ADD (the root")
    assert cause.has_judged_remedy


@pytest.mark.parametrize("target", ["sm80", "sm100"])
def test_floor_mod_is_computed_from_operations_that_engines_have(shared_judge: Judge, target: str) -> None:
    g = GraphBuilder("rest", io_type=T.FLOAT)
    strides = (1024, 1, 64, 16)
    x = g.tensor("x", (16, 16, 16, 4), strides=strides)
    g.pointwise(P.FLOOR_MOD, x, g.tensor("b", (1, 16, 1, 1)), name="y", virtual=False, strides=strides)
    cause = judge_and_check_refusal(shared_judge, g.graph(), target).cause
    assert cause is not None
    assert cause.headline.startswith("y has mode FLOOR_MOD: not supported in this graph")
    assert cause.remedy == "y: FLOOR_MOD -> x - floor(x / b) * b by DIV, FLOOR, MUL and SUB"


def test_a_mul_no_zeros_reduction_has_no_exact_replacement(shared_judge: Judge) -> None:
    cause = judge_and_check_refusal(shared_judge, make_reduction(R.MUL_NO_ZEROS), "sm80").cause
    assert cause is not None
    assert "which computes something else (idea)" in cause.remedy


def test_wrong_scales_are_named_before_the_type_of_the_data(shared_judge: Judge) -> None:
    right = make_block_scaled_matmul(128, 128, 128)
    scales = {name: {"data_type": T.FP8_E4M3} for name in ("a_scale", "b_scale")}
    wrong = replace_tensor_fields(
        replace_tensor_fields(right, "a_scale", dims=(1, 128, 11), **scales["a_scale"]), "b_scale", **scales["b_scale"]
    )
    cause = judge_and_check_refusal(shared_judge, wrong, "sm90").cause
    assert cause is not None
    for words in ("sm_90 does not support the graph", "a_scale [1, 128, 11] where [1, 128, 4] is needed", "fp8_e8m0"):
        assert words in cause.headline
    assert "sm_100" in cause.remedy
    assert shared_judge.run_query(Query(right, "sm100")).supported


def test_a_wrong_number_of_heads_is_named(shared_judge: Judge) -> None:
    options: dict[str, Any] = {"batch": 2, "seq_q": 128, "head_dim": 64, "implementation": "unified"}
    graph = sdpa_forward(heads=12, version=library().version, **options)
    q = graph.tensor("q")
    cause = judge_and_check_refusal(
        shared_judge, replace_tensor_fields(graph, "q", dims=(2, 11, *q.dims[2:])), "sm90"
    ).cause
    assert cause is not None
    assert "dims of q [2, 11, 128, 64] where [2, 12, 128, 64] is needed" in cause.headline


@pytest.mark.skipif(not OLDER, reason="did not run: no cuDNN 9.14 is installed")
def test_only_the_compute_type_is_blamed_if_the_data_type_is_supported(shared_judge: Judge) -> None:
    g = GraphBuilder("computed in integers", io_type=T.HALF, compute_type=T.INT32)
    dims, strides = (2, 8, 4, 8), "channels_last"
    x, y = (g.tensor(name, dims, strides=strides) for name in "xy")
    g.pointwise(P.MUL, x, y, name="z", virtual=False, strides=strides)
    graph = g.graph()
    cause = judge_and_check_refusal(shared_judge, graph, "sm86", OLDER).cause
    assert cause is not None
    assert cause.headline.startswith("z (mul) computes in int32, float32 is needed")
    assert "float16" not in cause.headline


def test_integers_that_no_plan_reads_are_named_with_the_compute_type(shared_judge: Judge) -> None:
    g = GraphBuilder("integers", io_type=T.INT64, compute_type=T.INT32)
    x, y = (g.tensor(name, (2, 8, 4, 8), strides="channels_last") for name in "xy")
    g.pointwise(P.MUL, x, y, name="z", virtual=False)
    cause = judge_and_check_refusal(shared_judge, g.graph(), "sm86", OLDER).cause
    assert cause is not None
    assert "x, y, z have data type int64, float32 is needed; and also z (mul) computes in int32" in cause.headline


def test_a_type_change_leaves_logical_operations_computing_in_booleans(shared_judge: Judge) -> None:
    g = GraphBuilder("compared", io_type=T.INT64)
    x, y = (g.tensor(name, (8, 8, 4, 16), strides="channels_last") for name in "xy")
    less = g.pointwise(P.CMP_LT, x, y, data_type=T.BOOLEAN, compute_type=T.FLOAT, strides=x.strides)
    g.pointwise(
        P.LOGICAL_NOT, less, name="z", virtual=False, data_type=T.BOOLEAN, compute_type=T.BOOLEAN, strides=x.strides
    )
    cause = judge_and_check_refusal(shared_judge, g.graph(), "sm75").cause
    assert cause is not None
    assert cause.headline.startswith("x, y have data type int64, ")
    assert "logical_not" not in cause.headline


def test_bias_and_scale_of_a_norm_change_their_type_together(shared_judge: Judge) -> None:
    g = GraphBuilder("normed", io_type=T.BFLOAT16)
    per = (1, 1024, 1, 1)
    x, scale, bias = g.tensor("x", (64, 1024, 1, 1)), g.tensor("scale", per), g.tensor("bias", per)
    g.norm_forward(NormMode.LAYER_NORM, x, scale, bias, name="y", virtual=False, training=True)
    cause = judge_and_check_refusal(shared_judge, g.graph(), "sm75").cause
    assert cause is not None
    changes = [one for one in cause.remedy.split("; or ") if "bfloat16 -> " in one]
    assert changes
    assert all("scale" in one and "bias" in one for one in changes)


@pytest.mark.skipif(not OLDER, reason="did not run: no cuDNN 9.14 is installed")
def test_the_installed_cudnn_is_offered_as_a_remedy(shared_judge: Judge) -> None:
    g = GraphBuilder("sliced", io_type=T.HALF)
    a = g.slice(g.tensor("a", (2, 32, 64)), [slice(0, 2), slice(0, 16), slice(0, 64)])
    g.matmul(a, g.tensor("b", (2, 64, 64)), name="c", virtual=False)
    question = Query(g.graph(), "sm90", OLDER)
    cause = add_version_remedy(shared_judge.run_query(question), question, shared_judge).cause
    assert cause is not None
    assert cause.code == "descriptor-newer-than-library"
    if library().version >= (9, 22, 0):
        assert cause.remedy == f"use cuDNN {library().build_text} (--cudnn {library().build_text})"
        assert shared_judge.run_query(Query(question.graph, "sm90")).supported


@pytest.mark.skipif(not OLDER, reason="did not run: no cuDNN 9.14 is installed")
@pytest.mark.parametrize(
    ("name", "words"),
    [("wgrad f64", "supports it"), ("matmul f64", "cannot judge it either: "), ("concat", "does not support it: ")],
)
def test_a_verdict_of_a_jit_wheel_adds_the_result_of_the_full_library(
    shared_judge: Judge, name: str, words: str
) -> None:
    question = Query(GRAPHS_OF_FULL_CUDNN[name](), "sm90", OLDER)
    verdict = shared_judge.run_query(question)
    assert verdict.cause is not None
    if verdict.cause.code != "engines-absent":
        pytest.skip("did not run: this cuDNN 9.14 is a full wheel")
    answer = add_version_remedy(verdict, question, shared_judge)
    assert answer.cause is not None
    assert answer.cause.versions.startswith(f"cuDNN {library().build_text} {words}")
    assert f"versions cuDNN {library().build_text} {words[:11]}" in format_summary(answer)


@pytest.mark.skipif(not OLDER, reason="did not run: no cuDNN 9.14 is installed")
def test_a_refusal_without_remedy_says_why_the_newest_version_refuses_too(shared_judge: Judge) -> None:
    question = Query(make_reduction(R.MUL), "sm75", OLDER)
    verdict = judge_and_check_refusal(shared_judge, question.graph, "sm75", OLDER)
    assert verdict.cause is not None
    without = replace(verdict, cause=replace(verdict.cause, remedy="", versions=""))
    answer = add_newest_version_verdict(without, question, shared_judge).cause
    assert answer is not None
    assert answer.versions.startswith(f"cuDNN {library().build_text} ")
    assert add_newest_version_verdict(replace(without, cause=answer), question, shared_judge).cause is answer


def test_a_wrong_type_and_an_old_architecture_are_both_named(shared_judge: Judge) -> None:
    graph = sdpa_forward(batch=1, heads=2, seq_q=64, head_dim=64, version=library().version, implementation="composite")
    scores = next(op.c for op in graph.ops if isinstance(op, Matmul))
    cause = judge_and_check_refusal(
        shared_judge, replace_tensor_fields(graph, scores.name, data_type=T.DOUBLE), "sm75"
    ).cause
    assert cause is not None
    assert cause.headline.startswith("sm_75 does not support the graph, ")
    assert f"{scores.name} has data type double (float64), float32 is needed" in cause.headline
    assert shared_judge.run_query(Query(graph, "sm90")).supported


@pytest.mark.skipif(not OLDER, reason="cuDNN 9.14 is not installed")
def test_the_full_wheel_is_offered_only_if_it_can_judge_without_the_gpu(shared_judge: Judge) -> None:
    install, newest = f"cudnn-backend cudnn install {OLDER} --full", library().build_text
    expected = {
        "bn finalize": f"use cuDNN {newest} (--cudnn {newest}); or {install} (1 GB), then explain again",
        "matmul f64": "a, b, c: data type double (float64) -> float32 (changes numerics), with which this wheel "
        f"supports the graph; or judge on a machine with the GPU and the full wheel ({install})",
    }
    for name, remedy in expected.items():
        question = Query(GRAPHS_OF_FULL_CUDNN[name](), "sm90", OLDER)
        cause = add_version_remedy(
            judge_and_check_refusal(shared_judge, question.graph, "sm90", OLDER), question, shared_judge
        ).cause
        assert cause is not None
        assert cause.code == "engines-absent"
        assert cause.remedy == remedy


def test_no_full_wheel_of_cuda_12_is_offered_for_an_engine_of_cuda_13(shared_judge: Judge) -> None:
    for one in list_judging_versions():
        if one.flavor == "full" or one.cuda != "12" or parse_version_numbers(one.version) < (9, 22):
            continue
        question = Query(GRAPHS_OF_FULL_CUDNN["moe backward"](), "sm90", one.version_with_cuda)
        cause = add_version_remedy(
            judge_and_check_refusal(shared_judge, question.graph, "sm90", one.version_with_cuda), question, shared_judge
        ).cause
        assert cause is not None
        assert "9.28" not in library().version_text or cause.remedy.startswith("use the full wheel for CUDA 13")
        assert "--full" not in cause.remedy.replace("--cuda 13 --full", "") or cause.versions.endswith("supports it")


@pytest.mark.skipif(not OLDER, reason="cuDNN 9.14 is not installed")
def test_wrong_strides_and_an_architecture_are_both_named(shared_judge: Judge) -> None:
    g = GraphBuilder("two matmuls", io_type=T.HALF)
    q, v = (g.tensor(name, (1, 1, 10, 64)) for name in ("q", "v"))
    k = g.tensor("k", (1, 1, 64, 10), strides=(640, 640, 64, 1))
    scores = g.matmul(q, k, name="s", data_type=T.HALF)
    g.matmul(scores, v, name="o", virtual=False)
    cause = judge_and_check_refusal(shared_judge, g.graph(), "sm121", OLDER).cause
    assert cause is not None
    assert cause.headline.startswith("sm_121 does not support the graph, sm_90, sm_100, sm_80 do with another change: ")
    assert "k has strides [640, 640, 64, 1], [640, 640, 1, 64] is supported" in cause.headline
    assert "k: strides -> contracted dim contiguous, [640, 640, 64, 1] -> [640, 640, 1, 64]" in cause.remedy


def judge_with_older(judge: Judge, graph: Graph, target: str, version: str) -> Verdict:
    """Return the verdict of an older version as ``cudnn-backend explain`` prints it."""
    query = Query(graph, target, version)
    return add_remedy_with_same_cudnn_version(add_version_remedy(judge.run_query(query), query, judge), query, judge)


@pytest.mark.skipif(not OLDER, reason="did not run: no cuDNN 9.14 is installed")
def test_a_change_that_helps_with_the_used_version_needs_no_newer_one(shared_judge: Judge) -> None:
    g = GraphBuilder("product", io_type=T.HALF)
    a, b = (g.tensor(name, (1, 16, 64)) for name in "ab")
    g.matmul(g.transpose(a, (0, 2, 1)), b, name="c", virtual=False)
    cause = judge_with_older(shared_judge, g.graph(), "sm80", OLDER).cause
    assert cause is not None
    assert cause.headline.startswith("CUDNN_BACKEND_OPERATION_TRANSPOSE_DESCRIPTOR needs cuDNN 9.22.0")
    assert cause.remedy.startswith("a: read with dims [1, 64, 16] and strides [1024, 1, 64]")


@pytest.mark.skipif(not OLDER, reason="did not run: no cuDNN 9.14 is installed")
def test_a_change_that_helps_with_a_jit_wheel_comes_before_the_full_wheel(shared_judge: Judge) -> None:
    g = GraphBuilder("transposed convolution", io_type=T.FLOAT)
    dy, w = g.tensor("dy", (1, 64, 16, 16)), g.tensor("w", (64, 32, 3, 3))
    dx = g.convolution_backward_data(dy, w, padding=1, stride=2, dims=(1, 32, 32, 32), name="dx")
    g.pointwise(P.RELU_FWD, dx, name="y", virtual=False)
    verdict = judge_with_older(shared_judge, g.graph(), "sm90", OLDER)
    assert verdict.outcome is Outcome.NOT_JUDGED
    assert verdict.cause is not None
    change, _, full = verdict.cause.remedy.partition(", with which this wheel supports the graph; or ")
    assert "channels last (NHWC)" in change
    assert full.startswith("cudnn-backend cudnn install 9.14.0+cu12 --full")


def test_no_split_is_needed_where_one_property_is_refused(shared_judge: Judge) -> None:
    g = GraphBuilder("pointwise", io_type=T.HALF)
    x = g.tensor("x", (2, 16, 16, 8), strides="channels_last")
    row = g.tensor("row", (2, 16, 16, 1), strides="channels_last")
    least = g.pointwise(P.MIN, g.pointwise(P.NEG, g.pointwise(P.COS, x)), row)
    g.pointwise(P.DIV, least, g.scalar(0.375), name="y", virtual=False)
    cause = judge_and_check_refusal(shared_judge, g.graph(), "sm89").cause
    assert cause is not None
    assert cause.headline.startswith("dims of row [2, 16, 16, 1] are not supported, [2, 16, 16, 8] are")
    assert "graphs" not in cause.remedy


@pytest.mark.skipif(not OLDER, reason="did not run: no cuDNN 9.14 is installed")
def test_of_two_dims_that_disagree_those_unlike_the_image_are_wrong(shared_judge: Judge) -> None:
    graph = replace_tensor_fields(batch_norm.graph(), "bias", dims=(1, 65, 1, 1))
    cause = judge_and_check_refusal(shared_judge, graph, "sm90", OLDER).cause
    assert cause is not None
    assert cause.headline.startswith("dims of bias [1, 65, 1, 1] are not supported, [1, 64, 1, 1] are")


def test_interleaved_strides_are_not_called_overlap(shared_judge: Judge) -> None:
    graph = make_convolution_graph(T.HALF, T.HALF, channels=8, per_group=8)
    graph = replace_tensor_fields(graph, "x", strides=(4096, 2, 151, 9))  # 2 * c + 9 * w hits no place twice
    cause = judge_and_check_refusal(shared_judge, graph, "sm80").cause
    assert cause is not None
    assert "interleave its dims" in cause.headline
    assert "overlap in memory" not in cause.headline


def test_an_index_with_a_column_for_each_expert_is_named(shared_judge: Judge) -> None:
    graph = replace_tensor_fields(moe_layer.graph(), "index", dims=(1, 512, 8))
    cause = judge_and_check_refusal(shared_judge, graph, "sm80").cause
    assert cause is not None
    assert cause.headline.startswith("dims of index [1, 512, 8] are not supported, [1, 512, 1] are")


def test_each_type_that_helps_is_named_and_the_widest_first(shared_judge: Judge) -> None:
    graph = replace_tensor_fields(layer_norm.graph(), "scale", data_type=T.DOUBLE)
    cause = judge_and_check_refusal(shared_judge, graph, "sm75").cause
    assert cause is not None
    assert cause.headline.startswith("scale has data type double (float64), float16 or float32 is needed")
    assert cause.remedy.startswith("scale: double (float64) -> float32")
    for kind in (T.HALF, T.FLOAT):
        assert shared_judge.run_query(Query(replace_tensor_fields(graph, "scale", data_type=kind), "sm75")).supported


def test_another_form_is_offered_after_a_version_that_needs_none(shared_judge: Judge) -> None:
    graph = sdpa_backward(batch=1, heads=2, seq_q=64, head_dim=128, implementation="unified", version=(9, 28, 0))
    query = Query(graph, "sm80", "9.24.0")
    cause = add_newest_version_verdict(shared_judge.run_query(query), query, shared_judge).cause
    assert cause is not None
    assert cause.headline.startswith("supported only in another form: the SDPA_BWD operation -> ")
    assert "ARCH_10X" not in cause.headline  # sm_100 is refused with the same words
    if library().version >= (9, 28, 0):
        assert cause.remedy.startswith(f"use cuDNN {library().build_text}")


def test_statistics_of_a_wrong_length_are_named_and_not_left_out(shared_judge: Judge) -> None:
    graph = sdpa_forward(
        batch=2, heads=4, seq_q=64, head_dim=64, stats=True, causal=True, implementation="unified", version=(9, 28, 0)
    )
    if library().version < (9, 21, 0):
        pytest.skip("did not run: the softmax of the operation is new in cuDNN 9.21")
    cause = judge_and_check_refusal(
        shared_judge, replace_tensor_fields(graph, "stats", dims=(2, 4, 71, 1)), "sm90"
    ).cause
    assert cause is not None
    assert cause.headline.startswith("dims of stats [2, 4, 71, 1] where [2, 4, 64, 1] is needed")
    assert "without" not in cause.remedy


def test_scales_that_are_not_packed_are_named_before_the_type_of_the_data(shared_judge: Judge) -> None:
    graph = make_block_scaled_matmul(128, 128, 128, whole=True)
    [scale, *_] = [tensor for tensor in graph.tensors if tensor.reordering is TensorReordering.F8_128x4]
    *outer, last = scale.strides
    loose = (*(stride + 8 for stride in outer[:1]), *outer[1:], last)
    cause = judge_and_check_refusal(
        shared_judge, replace_tensor_fields(graph, scale.name, strides=loose), "sm100"
    ).cause
    assert cause is not None
    assert f"{scale.name} has strides {list(loose)}, {list(scale.strides)}" in cause.headline


def test_a_ragged_offset_of_wrong_dims_is_named_alone(shared_judge: Judge) -> None:
    graph = sdpa_forward(batch=8, heads=2, seq_q=64, head_dim=64, ragged=True, version=library().version)
    offset = graph.tensor("v").ragged_offset
    assert offset is not None
    wrong = replace(offset, dims=(9, 1, 1, 8), strides=(8, 8, 8, 1))
    cause = judge_and_check_refusal(shared_judge, replace_tensor_fields(graph, "v", ragged_offset=wrong), "sm90").cause
    assert cause is not None
    assert cause.headline == f"dims of the ragged offset {offset.name} are [9, 1, 1, 8], [9, 1, 1, 1] is needed"


@pytest.mark.skipif(not OLDER, reason="did not run: no cuDNN 9.14 is installed")
@pytest.mark.parametrize("kind", [T.BOOLEAN, T.FP8_E4M3, T.INT32])
def test_the_type_of_selected_scores_is_blamed_and_not_the_mask(shared_judge: Judge, kind: DataType) -> None:
    graph = mha_fprop.graph()
    [selected, *_] = [op.y for op in graph.ops if isinstance(op, Pointwise) and op.mode is P.BINARY_SELECT]
    assert selected.virtual
    wrong = replace_tensor_fields(graph, selected.name, data_type=kind)
    cause = judge_and_check_refusal(shared_judge, wrong, "sm80", OLDER).cause
    assert cause is not None
    assert cause.headline.startswith(f"{selected.name} has data type ")
    assert "float32 is needed" in cause.headline
    assert "without" not in cause.remedy
    assert shared_judge.run_query(Query(graph, "sm80", OLDER)).supported


@pytest.mark.parametrize("target", ["sm75", "sm80"])
def test_strides_of_one_cache_of_pages_are_named_alone(shared_judge: Judge, target: str) -> None:
    options: dict[str, Any] = {"batch": 2, "heads": 4, "seq_q": 1, "seq_kv": 128, "head_dim": 64, "page_size": 16}
    graph = sdpa_forward(**options, padding=True, version=library().version, implementation="composite")
    loaded = next(op.outputs()["y"] for op in graph.ops if op.kind is DescriptorType.OPERATION_PAGED_CACHE_LOAD)
    wrong = tuple(stride + 8 if stride == 1 else stride for stride in loaded.strides)
    cause = judge_and_check_refusal(
        shared_judge, replace_tensor_fields(graph, loaded.name, strides=wrong), target
    ).cause
    assert cause is not None
    assert f"{list(wrong)}" in cause.headline
    assert loaded.name in cause.headline
    assert "paged_cache_load" not in cause.headline
    assert f"{list(wrong)} -> {list(loaded.strides)}" in cause.remedy
    assert ("sm_75 does not support the graph" in cause.headline) is (target == "sm75")


def test_rows_of_pages_follow_from_the_table_of_pages(shared_judge: Judge) -> None:
    options: dict[str, Any] = {"batch": 2, "heads": 4, "seq_q": 1, "seq_kv": 128, "head_dim": 64, "page_size": 16}
    graph = sdpa_forward(**options, padding=True, version=library().version, implementation="composite")
    pages = graph.tensor("k").dims
    wrong = replace_tensor_fields(graph, "k", dims=(*pages[:2], 23, pages[3]))
    cause = judge_and_check_refusal(shared_judge, wrong, "sm90").cause
    assert cause is not None
    assert cause.remedy.startswith(f"dims of k {[*pages[:2], 23, pages[3]]} -> {list(pages)}, as the cache and")
    assert "without" not in cause.remedy


@pytest.mark.skipif(not OLDER, reason="did not run: no cuDNN 9.14 is installed")
def test_another_version_is_offered_rather_than_operations_outside_the_graph(shared_judge: Judge) -> None:
    question = Query(replace_tensor_fields(rope_attention.graph(), "v", data_type=T.FP8_E4M3), "sm103", OLDER)
    verdict = add_version_remedy(shared_judge.run_query(question), question, shared_judge)
    cause = add_remedy_with_same_cudnn_version(verdict, question, shared_judge).cause
    assert cause is not None
    assert cause.remedy.startswith("use cuDNN ")
    assert "v fp8 (e4m3) -> float16" in cause.remedy
    assert "without" not in cause.remedy


@pytest.mark.parametrize("target", ["sm80", "sm90", "sm120"])
def test_a_wheel_for_another_cuda_is_offered_with_the_architectures_of_its_engine(
    shared_judge: Judge, target: str
) -> None:
    g = GraphBuilder("experts", io_type=T.BFLOAT16)
    dy, x = g.tensor("dy", (1, 512, 512)), g.tensor("x", (1, 512, 256))
    g.moe_grouped_matmul_backward(dy, x, g.tensor("offsets", (4, 1, 1), T.INT32), name="dw", virtual=False)
    cause = judge_and_check_refusal(shared_judge, g.graph(), target).cause
    assert cause is not None
    assert not cause.has_judged_remedy
    assert ("GPU of sm_90 to sm_110" in cause.headline) is (target != "sm90")
    assert cause.remedy.startswith("use a GPU of sm_90" if target != "sm90" else "use the full wheel for CUDA 13")


def test_a_copy_is_left_out_without_another_result() -> None:
    g = GraphBuilder("copied", io_type=T.HALF)
    c = g.matmul(g.tensor("a", (1, 64, 64)), g.tensor("b", (1, 64, 64)))
    copy = g.pointwise(P.IDENTITY, c, name="copy")
    assert c.data_type is copy.data_type
    g.pointwise(P.SWISH_FWD, copy, name="y", virtual=False)
    changes = list(iterate_changes(g.graph(), ("drop_operation",)))
    [change] = [one for one in changes if "operation copy" in one.title]
    assert change.title == "without the operation copy (pointwise identity), which only copies"
    assert change.effect == "exact"


def test_heads_that_do_not_divide_the_heads_of_q_are_named(shared_judge: Judge) -> None:
    graph = sdpa_forward(batch=4, heads=12, seq_q=128, head_dim=64, version=library().version, implementation="unified")
    v = graph.tensor("v")
    wrong = replace_tensor_fields(graph, "v", dims=(4, 11, *v.dims[2:]))
    cause = judge_and_check_refusal(shared_judge, wrong, "sm120").cause
    assert cause is not None
    assert cause.headline.startswith("v has 11 heads, a divisor of those of q is needed")
    assert cause.remedy == "heads of v 11 -> 12, as many as q has (idea)"


def test_float64_operations_are_offered_in_float32_with_their_computation(shared_judge: Judge) -> None:
    g = GraphBuilder("doubles", io_type=T.DOUBLE, compute_type=T.DOUBLE)
    x, other = g.tensor("x", (2, 32, 64)), g.tensor("other", (2, 32, 64))
    y = g.pointwise(P.ADD, x, other, data_type=T.DOUBLE)
    g.pointwise(P.RELU_FWD, y, name="y", virtual=False)
    cause = judge_and_check_refusal(shared_judge, g.graph(), "sm90").cause
    assert cause is not None
    assert "computation" in cause.remedy
    assert "; or computation" not in cause.remedy
    changed = replace_tensor_fields(
        replace_tensor_fields(g.graph(), "x", data_type=T.FLOAT), "other", data_type=T.FLOAT
    )
    assert not shared_judge.run_query(Query(changed, "sm90")).supported


def test_weights_of_a_batch_norm_alone_are_sent_to_the_only_pattern_that_has_them(shared_judge: Judge) -> None:
    """`tests/support/typical_graphs.py` has that pattern, which cuDNN supports."""
    g = GraphBuilder("weights", io_type=T.HALF)
    images = {name: g.tensor(name, (2, 64, 7, 12)) for name in ("x", "dy")}
    floats, halves = ("mean", "invstd", "bn_scale", "dbn_scale", "dbn_bias"), ("eq_dy_scale", "eq_x_scale", "eq_bias")
    numbers = {name: g.tensor(name, (1, 64, 1, 1), T.FLOAT) for name in floats}
    numbers |= {name: g.tensor(name, (1, 64, 1, 1)) for name in halves}
    g.operation(DescriptorType.OPERATION_BN_BWD_WEIGHTS, math_prec=T.FLOAT, **images, **numbers)
    cause = judge_and_check_refusal(shared_judge, g.graph(), "sm86").cause
    assert cause is not None
    assert cause.headline.startswith("there is no matmul or convolution in the graph")
    assert cause.remedy.startswith("put it after a data gradient of a convolution")


def test_repeated_dims_are_given_with_their_strides(shared_judge: Judge) -> None:
    g = GraphBuilder("selected", io_type=T.HALF)
    strides = (256, 1, 32, 4)
    x = g.tensor("x", (2, 4, 8, 8), strides=strides)
    g.pointwise(P.ATAN2, x, g.tensor("bias", (1, 1, 1, 8)), name="y", virtual=False, strides=strides)
    cause = judge_and_check_refusal(shared_judge, g.graph(), "sm121").cause
    assert cause is not None
    assert "bias: dims [1, 1, 1, 8] -> [2, 4, 8, 8] with strides [256, 1, 32, 4], repeated" in cause.remedy


def test_an_alignment_that_is_supported_is_not_called_needed(shared_judge: Judge) -> None:
    graph = replace_tensor_fields(batch_norm.graph(), "y.next_mean", alignment=4)
    cause = judge_and_check_refusal(shared_judge, graph, "sm100").cause
    assert cause is not None
    assert cause.headline == "y.next_mean has alignment 4 bytes, 16 is supported"


def test_a_change_that_keeps_a_known_issue_says_so_and_comes_last(shared_judge: Judge) -> None:
    g = GraphBuilder("pooled", io_type=T.FLOAT)
    x = g.pointwise(P.SWISH_FWD, g.tensor("x", (4, 8, 4, 6, 4)), name="swish")
    g.resample(ResampleMode.MAXPOOL, x, 2, stride=1, name="y", virtual=False)
    cause = judge_and_check_refusal(shared_judge, g.graph(), "sm121").cause
    assert cause is not None
    first, last = cause.remedy.split("; or ")
    assert first.startswith("without the operation swish")
    change, mark, _ = last.partition(" (known issue: ")
    assert mark
    assert change == "x, swish, y: strides -> channels last (NHWC)"


@pytest.mark.parametrize(("dims", "shown"), [((2, 1, 2, 4), "[2, 8, 1, 1]"), ((8, 1, 8, 8, 4), "[8, 256, 1, 1]")])
def test_tensors_of_one_channel_are_offered_with_more(shared_judge: Judge, dims: tuple[int, ...], shown: str) -> None:
    g = GraphBuilder("one channel", io_type=T.HALF)
    strides = (packed_strides(dims)[0], 1, *packed_strides(dims)[2:])
    x = g.tensor("x", dims, strides=strides)
    g.pointwise(P.RSQRT, g.pointwise(P.ABS, x), name="y", virtual=False, strides=strides)
    cause = judge_and_check_refusal(shared_judge, g.graph(), "sm80").cause
    assert cause is not None
    assert cause.headline == "all tensors have one channel (dim 1), more are needed"
    assert f"x {list(dims)} -> {shown}" in cause.remedy


@pytest.mark.skipif(not OLDER, reason="did not run: no cuDNN 9.14 is installed")
def test_an_operation_that_no_version_supports_here_is_done_outside(shared_judge: Judge) -> None:
    g = GraphBuilder("rope of Q alone", io_type=T.HALF)
    dims = (1, 4, 64, 128)
    q = g.rope_forward(g.tensor("q", dims), g.tensor("freqs", (64, 1, 1, 128), T.FLOAT), name="turned", virtual=False)
    g.sdpa_forward(q, g.tensor("k", dims), g.tensor("v", dims), name="o", virtual=False)
    question = Query(g.graph(), "sm90", OLDER)
    verdict = add_version_remedy(shared_judge.run_query(question), question, shared_judge)
    cause = add_remedy_with_same_cudnn_version(verdict, question, shared_judge).cause
    assert cause is not None
    assert cause.remedy == "without the operation turned (rope_fwd), which is done outside (idea)"


def test_two_broadcast_operands_that_are_refused_alone_are_both_named(shared_judge: Judge) -> None:
    g = GraphBuilder("selected", io_type=T.FLOAT)
    strides = (768, 1, 256, 32, 4)
    x, bias = g.tensor("x", (4, 4, 3, 8, 8), strides=strides), g.tensor("bias", (1, 1, 1, 1, 8))
    t = g.pointwise(P.CMP_NEQ, x, bias, data_type=T.BOOLEAN, compute_type=T.FLOAT)
    other = g.tensor("other", (1, 1, 1, 1, 8))
    g.pointwise(P.BINARY_SELECT, x, other, t=t, name="y", virtual=False, strides=strides)
    cause = judge_and_check_refusal(shared_judge, g.graph(), "sm89").cause
    assert cause is not None
    assert "bias [1, 1, 1, 1, 8]" in cause.headline
    assert "other [1, 1, 1, 1, 8]" in cause.headline
    assert cause.has_judged_remedy


@pytest.mark.skipif(not OLDER, reason="did not run: no cuDNN 9.14 is installed")
def test_a_newer_operation_is_named_before_a_tensor_that_this_version_refuses(shared_judge: Judge) -> None:
    graph = replace_tensor_fields(rope_attention.graph(), "o", alignment=1)
    question = Query(graph, "sm100", OLDER)
    cause = add_version_remedy(shared_judge.run_query(question), question, shared_judge).cause
    assert cause is not None
    assert cause.headline == (
        "CUDNN_BACKEND_OPERATION_ROPE_FWD_DESCRIPTOR needs cuDNN 9.24.0, the loaded library is 9.14.0"
    )
    assert "o has alignment 1 byte, 2 is needed" in cause.versions
    assert ", and there: alignment of o 1 -> 2" in cause.remedy


def test_dims_are_named_where_no_strides_help(shared_judge: Judge) -> None:
    g = GraphBuilder("batched", io_type=T.BFLOAT16)
    a, b = g.tensor("a", (2, 2, 64, 64)), g.tensor("b", (1, 2, 64, 64))
    g.pointwise(P.ATAN2, g.matmul(a, b), g.tensor("residual", (2, 2, 64, 64)), name="y", virtual=False)
    cause = judge_and_check_refusal(shared_judge, g.graph(), "sm121").cause
    assert cause is not None
    assert cause.headline.startswith("tensors have 4 dims, 3 are needed")
    assert cause.remedy == "tensors of 4 dims -> 3, leading axes as one (b repeated in memory)"


def test_dims_and_a_type_that_the_architecture_lacks_are_both_named(shared_judge: Judge) -> None:
    g = GraphBuilder("batched", io_type=T.FP8_E4M3)
    a = g.tensor("a", (2, 2, 64, 64))
    b = g.tensor("b", (2, 2, 64, 64), strides=(8192, 4096, 1, 64))
    g.pointwise(P.RELU_FWD, g.matmul(a, b), name="y", virtual=False, data_type=T.BFLOAT16)
    cause = judge_and_check_refusal(shared_judge, g.graph(), "sm80").cause
    assert cause is not None
    assert "tensors have 4 dims, 3 are needed" in cause.headline
    assert "sm_80 does not support the graph, sm_90, " in cause.headline
    assert {*cause.remedy.split("; and ")} == {
        "judge for sm_90 or sm_100 or sm_89, with this cuDNN",
        "tensors of 4 dims -> 3, leading axes as one",
    }


def test_dims_of_a_weight_gradient_are_named_before_the_missing_engine(shared_judge: Judge) -> None:
    graph = replace_tensor_fields(GRAPHS_OF_FULL_CUDNN["moe backward"](), "dweight", dims=(8, 65, 128))
    if library().version < (9, 22, 0):
        pytest.skip("did not run: the operation is new in cuDNN 9.22")
    cause = judge_and_check_refusal(shared_judge, graph, "sm120").cause
    assert cause is not None
    assert cause.headline.startswith(
        "dims of dweight [8, 65, 128] where [8, 64, 128] is needed, as tokens and gradient"
    )


def test_a_type_and_an_order_that_help_are_both_named_and_neither_is_needed(shared_judge: Judge) -> None:
    graph = make_block_scaled_matmul(128, 128, 128, whole=True)
    scales = [tensor.name for tensor in graph.tensors if tensor.reordering is TensorReordering.F8_128x4]
    for name in scales:
        graph = replace_tensor_fields(graph, name, data_type=T.FP8_E4M3)
    cause = judge_and_check_refusal(shared_judge, graph, "sm120").cause
    assert cause is not None
    assert "supported with fp8_e8m0, or with reordering F8_128x4 -> NONE" in cause.headline
    assert "is needed" not in cause.headline
    assert f"{', '.join(scales)}: reordering F8_128x4 -> NONE, elements in another order in memory" in cause.remedy
    for name in scales:
        graph = replace_tensor_fields(graph, name, reordering=TensorReordering.NONE)
    assert shared_judge.run_query(Query(graph, "sm120")).supported


@pytest.mark.parametrize("target", ["sm80", "sm100"])
def test_an_operation_that_needs_a_matmul_is_also_judged_with_one(shared_judge: Judge, target: str) -> None:
    g = GraphBuilder("quantized", io_type=T.HALF)
    x = g.pointwise(P.RELU_FWD, g.tensor("x", (1, 128, 128)), name="relu")
    fields = {"data_type": T.FP8_E8M0, "reordering": TensorReordering.F8_128x4}
    scale = g.tensor("scale", (1, 128, 4), **fields)
    y = g.tensor("y", (1, 128, 128), T.FP8_E4M3)
    g.operation(DescriptorType.OPERATION_BLOCK_SCALE_QUANTIZE, x=x, y=y, scale=scale, math_prec=T.FLOAT, block_size=32)
    cause = judge_and_check_refusal(shared_judge, g.graph(), target).cause
    assert cause is not None
    into = "put it into the graph of the matmul that writes x"
    if target == "sm100":
        assert cause.headline.startswith("there is no matmul or convolution in the graph")
        assert cause.remedy.endswith(f"; or {into}")
    else:
        assert cause.headline.startswith("sm_80 does not support block_scale_quantize")
        assert "sm_100, sm_120 do in the graph of a matmul" in cause.headline
        assert cause.remedy.endswith(f"; or judge for sm_100 or sm_120, with this cuDNN, and {into}")
    assert cause.has_judged_remedy


def test_only_tensors_that_need_another_type_are_named(shared_judge: Judge) -> None:
    g = GraphBuilder("product", io_type=T.FLOAT)
    product = g.matmul(g.tensor("a", (2, 32, 64)), g.tensor("b", (2, 64, 32)))
    g.pointwise(P.IDENTITY, product, name="y", virtual=False)
    cause = judge_and_check_refusal(shared_judge, g.graph(), "sm75").cause
    assert cause is not None
    assert cause.headline.startswith("a, b have data type float32, float16 is needed")
    assert cause.remedy.startswith("a, b: float32 -> float16 (changes numerics)")


@pytest.mark.skipif(not OLDER, reason="did not run: no cuDNN 9.14 is installed")
def test_no_full_wheel_is_offered_for_block_scales_on_an_architecture_without_them(shared_judge: Judge) -> None:
    graph = make_block_scaled_matmul(128, 128, 128, whole=True)
    query = Query(graph, "sm86", OLDER)
    verdict = add_version_remedy(judge_and_check_refusal(shared_judge, graph, "sm86", OLDER), query, shared_judge)
    assert verdict.cause is not None
    if verdict.cause.code != "engines-absent":
        pytest.skip("did not run: this cuDNN 9.14 is a full wheel")
    assert verdict.cause.remedy.endswith("with which this wheel supports the graph")
    assert "judge for sm_100" in verdict.cause.remedy
    assert "--full" not in verdict.cause.remedy


def make_patches(channels: int, gap: int) -> Graph:
    """Return a convolution of patches with channels-last weights, with `gap` elements between filters."""
    g = GraphBuilder("patches", io_type=T.FLOAT)
    x = g.tensor("x", (1, channels, 56, 56), strides=(56 * 56 * channels, 1, 56 * channels, channels))
    rows = 14 * channels
    w = g.tensor("w", (64, channels, 14, 14), strides=(14 * rows + gap, 1, rows, channels))
    g.convolution(x, w, stride=14, name="y", virtual=False)
    return g.graph()


@pytest.mark.parametrize("channels", [3, 8])
def test_a_gap_is_blamed_alone_though_other_channels_would_also_remove_it(shared_judge: Judge, channels: int) -> None:
    cause = judge_and_check_refusal(shared_judge, make_patches(channels, 8), "sm80").cause
    assert cause is not None
    assert cause.headline.startswith("w has strides")
    assert "together" not in cause.headline
    assert "channels of" not in cause.remedy


def test_channels_and_filters_that_disagree_are_named_with_the_change_of_each(shared_judge: Judge) -> None:
    g = GraphBuilder("disagree", io_type=T.HALF)
    x, w = g.tensor("x", (2, 8, 16, 16)), g.tensor("w", (16, 8, 3, 3))
    y = g.convolution(x, w, padding=1, name="y", virtual=False)
    graph = replace_tensor_fields(g.graph(), y.name, dims=(2, 32, 16, 16), strides=(32 * 256, 256, 16, 1))
    cause = judge_and_check_refusal(shared_judge, graph, "sm90").cause
    assert cause is not None
    assert cause.headline.startswith("y has 32 channels, the filters of w give 16, one each")
    assert "y: dims [2, 32, 16, 16] -> [2, 16, 16, 16]" in cause.remedy
    assert "w: dims [16, 8, 3, 3] -> [32, 8, 3, 3]" in cause.remedy


def test_the_order_of_scales_is_blamed_where_plain_order_is_supported(shared_judge: Judge) -> None:
    graph = make_block_scaled_matmul(128, 128, 128, whole=True)
    cause = judge_and_check_refusal(shared_judge, graph, "sm90").cause
    assert cause is not None
    assert "in F8_128x4 order: not supported on sm_90, in plain order they are; sm_100" in cause.headline
    assert "reordering F8_128x4 -> NONE" in cause.remedy


def test_plain_order_of_scales_has_no_padding_to_tiles() -> None:
    graph = make_block_scaled_matmul(100, 128, 128, whole=True)
    padded = next(tensor for tensor in graph.tensors if tensor.reordering is TensorReordering.F8_128x4)
    change = next(iterate_changes(graph, ("reordering",)))
    plain = next(tensor for tensor in change.graph.tensors if tensor.name == padded.name)
    assert padded.dims[-2] == 128
    assert (plain.dims[-2], plain.reordering) == (100, TensorReordering.NONE)
    assert f"{padded.name} without padding to tiles {list(padded.dims)} -> {list(plain.dims)}" in change.title


def test_wrong_dims_of_a_convolution_are_named_before_its_parameters(shared_judge: Judge) -> None:
    g = GraphBuilder("wide filter", io_type=T.HALF)
    x, w = g.tensor("x", (1, 64, 32, 32)), g.tensor("w", (64, 64, 3, 3))
    g.convolution(x, w, padding=1, stride=2, name="y", virtual=False)
    graph = replace_tensor_fields(g.graph(), "w", dims=(64, 64, 3, 9), strides=(64 * 27, 27, 9, 1))
    cause = judge_and_check_refusal(shared_judge, graph, "sm90").cause
    assert cause is not None
    assert cause.headline.startswith("y has dims [1, 64, 16, 16], [1, 64, 16, 13] is needed")
    assert "stride" not in cause.headline


def test_wrong_dims_of_the_scores_are_named_and_no_other_form(shared_judge: Judge) -> None:
    version = library().version
    graph = sdpa_forward(
        batch=2, heads=4, seq_q=128, head_dim=64, stats=True, causal=True, implementation="unified", version=version
    )
    scores = next(op for op in iterate_all_ops(graph) if op.kind is DescriptorType.OPERATION_SOFTMAX).fields["x"]
    dims = (2, 4, 128, 129)
    assert scores.dims == (2, 4, 128, 128)
    wide = replace_tensor_fields(graph, scores.name, dims=dims, strides=packed_strides(dims))
    cause = judge_and_check_refusal(shared_judge, wide, "sm90").cause
    assert cause is not None
    assert cause.headline.startswith(f"dims of {scores.name}")


def test_two_operands_are_blamed_and_not_an_operation_that_alone_reads_booleans_in_memory(shared_judge: Judge) -> None:
    g = GraphBuilder("two small operands", io_type=T.HALF)
    dims = (4, 4, 2, 2)
    x, leaf = (g.tensor(name, dims, strides=(16, 1, 8, 4)) for name in ("x", "leaf"))
    small = {"strides": (2, 1, 2, 1)}
    bias, other = g.tensor("bias", (1, 1, 1, 2), **small), g.tensor("other", (1, 1, 1, 2), T.FLOAT, **small)
    first, second = (g.pointwise(P.CMP_LE, leaf, one, compute_type=T.FLOAT) for one in (bias, g.scalar(0.25)))
    both = g.pointwise(P.LOGICAL_AND, first, second, compute_type=T.BOOLEAN)
    y = g.pointwise(P.SWISH_FWD, g.pointwise(P.BINARY_SELECT, x, other, both))
    g.reduction(ReduceTensorOp.ADD, y, dims=(1, 4, 1, 1), name="sum", virtual=False, data_type=T.FLOAT)
    cause = judge_and_check_refusal(shared_judge, g.graph(), "sm120").cause
    assert cause is not None
    assert "dims of bias [1, 1, 1, 2]" in cause.headline
    assert "dims of other [1, 1, 1, 2]" in cause.headline
    assert "does not fit" not in cause.headline
    assert cause.has_judged_remedy


def test_a_matmul_that_would_not_help_a_reshape_is_not_offered(shared_judge: Judge) -> None:
    g = GraphBuilder("reshape", io_type=T.HALF)
    g.operation(DescriptorType.OPERATION_RESHAPE, x=g.tensor("x", (16, 16, 16)), y=g.tensor("y", (16, 256)))
    cause = judge_and_check_refusal(shared_judge, g.graph(), "sm75").cause
    assert cause is not None
    assert cause.headline.endswith("need, and one alone does not help")
    assert not cause.remedy


@pytest.mark.skipif(not OLDER, reason="did not run: no cuDNN 9.14 is installed")
def test_no_change_is_offered_that_leads_to_a_known_issue(shared_judge: Judge) -> None:
    g = GraphBuilder("two dims", io_type=T.FLOAT)
    y = g.pointwise(P.RSQRT, g.pointwise(P.ABS, g.tensor("x", (24, 32))))
    g.reduction(ReduceTensorOp.MIN, y, dims=(1, 32), name="least", virtual=False)
    cause = judge_and_check_refusal(shared_judge, g.graph(), "sm90", OLDER).cause
    assert cause is not None
    assert "rows and columns as 1 x 1 images" in cause.remedy
    assert "without the operation" not in cause.remedy


@pytest.mark.skipif(not OLDER, reason="did not run: no cuDNN 9.14 is installed")
def test_a_matrix_that_is_reduced_to_a_number_is_offered_as_images(shared_judge: Judge) -> None:
    g = GraphBuilder("all", io_type=T.BFLOAT16)
    y = g.pointwise(P.ELU_FWD, g.tensor("x", (64, 32)))
    g.reduction(ReduceTensorOp.ADD, y, dims=(1, 1), name="sum", virtual=False, data_type=T.FLOAT)
    cause = judge_and_check_refusal(shared_judge, g.graph(), "sm90").cause
    assert cause is not None
    assert "x [64, 32] -> [64, 32, 1, 1], sum [1, 1] -> [1, 1, 1, 1]" in cause.remedy


def test_no_type_is_offered_that_the_graph_is_then_refused_for(shared_judge: Judge) -> None:
    g = GraphBuilder("rope of Q alone", io_type=T.BFLOAT16)
    q, k, v = (g.tensor(name, (1, 1, 128, 128)) for name in ("q", "k", "v"))
    turned = g.tensor("turned", (1, 1, 128, 128))
    freqs = g.tensor("freqs", (1, 1, 128, 128), T.FLOAT)
    g.operation(DescriptorType.OPERATION_ROPE_FWD, x=q, y=turned, freqs=freqs)
    o = g.tensor("o", (1, 1, 128, 128))
    g.operation(DescriptorType.OPERATION_SDPA_FWD, q=turned, k=k, v=v, o=o)
    cause = judge_and_check_refusal(shared_judge, g.graph(), "sm100").cause
    assert cause is not None
    assert "float32" not in cause.headline
    assert "instead" not in cause.remedy


def test_a_reduction_is_blamed_and_not_an_operation_without_which_it_is_not_read(shared_judge: Judge) -> None:
    g = GraphBuilder("norm by hand", io_type=T.FLOAT)
    x, scale = g.tensor("x", (2, 32, 128)), g.tensor("scale", (1, 1, 128))
    mean = g.reduction(ReduceTensorOp.AVG, g.pointwise(P.MUL, x, x), dims=(2, 32, 1), name="mean")
    inverse = g.pointwise(P.RSQRT, g.pointwise(P.ADD, mean, g.scalar(1e-3, rank=3)))
    g.pointwise(P.MUL, g.pointwise(P.MUL, x, inverse), scale, name="y", virtual=False)
    cause = judge_and_check_refusal(shared_judge, g.graph(), "sm86").cause
    assert cause is not None
    assert "mean (reduce_avg)" in cause.headline
    assert "pointwise mul" not in cause.headline


@pytest.mark.skipif(not OLDER, reason="did not run: no older cuDNN is installed")
def test_the_newest_version_is_offered_where_each_remedy_has_the_same_known_issue(shared_judge: Judge) -> None:
    graph = sdpa_backward(
        batch=1, heads=4, seq_q=1, seq_kv=16, head_dim=128, implementation="unified", allow_hazards=True
    )
    question = Query(graph, "sm90", "9.24.0")
    cause = add_newest_version_verdict(shared_judge.run_query(question), question, shared_judge).cause
    assert cause is not None
    assert cause.remedy.startswith("use cuDNN ")
    assert [one.count("(known issue: backward-one-query)") for one in cause.remedy.split("; or ")] == [1, 1]
