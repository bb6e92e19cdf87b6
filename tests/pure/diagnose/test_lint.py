"""lint: legal but slow, dangerous or probably unintended graphs; each finding has an example, good graphs have none."""

from __future__ import annotations

import ast
import inspect
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cudnn_backend_py import DataType, Graph, GraphBuilder, PointwiseMode, attention
from cudnn_backend_py.diagnose import linting
from cudnn_backend_py.diagnose.linting import Finding, lint
from cudnn_backend_py.generated.enums import ReduceTensorOp, TensorReordering
from cudnn_backend_py.graph.replace import make_packed_tensor, replace_tensors
from tests.support.attention_cases import make_random_attention_problem
from tests.support.varied_graphs import VARIED_GRAPHS

HALF, FLOAT = DataType.HALF, DataType.FLOAT


def make_matmul_graph(dims: tuple[int, ...] = (1, 64, 64), **of_a: Any) -> Graph:
    g = GraphBuilder("matmul", io_type=HALF)
    a, b = g.tensor("a", dims, **of_a), g.tensor("b", (1, 64, 64))
    g.matmul(a, b, name="c", virtual=False)
    return g.graph()


def make_attention_graph(**options: Any) -> Graph:
    sizes: dict[str, Any] = {"batch": 1, "heads": 2, "seq_q": 64, "seq_kv": 128, "head_dim": 64}
    return attention.sdpa_forward(attention.Attention(**sizes | options), allow_hazards=True)


def list_codes_tensors_and_severities(graph: Graph) -> list[tuple[str, str, str]]:
    return [(finding.code, finding.tensor, finding.severity) for finding in lint(graph)]


def make_graph_with_output_strides(strides: tuple[int, ...], dims: tuple[int, ...] = (1, 64, 64)) -> Graph:
    g = GraphBuilder("output", io_type=HALF)
    x = g.tensor("x", dims)
    g.pointwise(PointwiseMode.RELU_FWD, x, name="y", virtual=False, strides=strides)
    return g.graph()


def test_a_misaligned_stride_of_a_matmul_is_reported_as_slow() -> None:
    assert list_codes_tensors_and_severities(make_matmul_graph(strides=(64 * 68, 68, 1))) == [
        ("stride-not-16-bytes", "a", "slow")
    ]
    assert list_codes_tensors_and_severities(make_matmul_graph(strides=(64 * 72, 72, 1))) == []


def test_a_misaligned_stride_of_attention_is_reported_as_dangerous() -> None:
    assert list_codes_tensors_and_severities(make_attention_graph(layout={"q": (64 * 136, 68, 136, 1)})) == [
        ("stride-not-16-bytes", "q", "dangerous")
    ]
    finding = lint(make_attention_graph(layout={"q": (64 * 136, 68, 136, 1)}))[0]
    assert "68 elements (136 bytes)" in finding.headline
    refused = attention.sdpa_forward(batch=2, heads=4, seq_q=256, head_dim=68)  # cuDNN refuses it, and computes nothing
    codes = list_codes_tensors_and_severities(refused)
    assert {severity for code, _, severity in codes if code == "stride-not-16-bytes"} == {"slow"}
    assert "multiples of 8 elements" in finding.fix


def test_a_misaligned_stride_of_refused_attention_is_reported_as_slow() -> None:
    assert {severity for _, _, severity in list_codes_tensors_and_severities(make_attention_graph(head_dim=20))} == {
        "slow"
    }


def test_a_tensor_without_a_contiguous_dim_is_reported() -> None:
    assert list_codes_tensors_and_severities(make_matmul_graph(strides=(64 * 128, 128, 2))) == [
        ("no-dense-dim", "a", "slow")
    ]
    spread = {"q": (64 * 256, 128, 256, 2)}
    assert list_codes_tensors_and_severities(make_attention_graph(layout=spread)) == [
        ("no-dense-dim", "q", "dangerous")
    ]
    assert list_codes_tensors_and_severities(make_matmul_graph(strides=(4096, 1, 64))) == [], (
        "a transposed matrix is dense"
    )


def make_block_scaled_matmul(scale_dims: tuple[int, ...]) -> Graph:
    g = GraphBuilder("scaled", io_type=DataType.FP8_E4M3)
    order = TensorReordering.F8_128x4
    products = []
    for name in "ab":
        x = g.tensor(name, (1, 64, 64))
        scales = g.tensor(f"scales_{name}", scale_dims, DataType.FP8_E8M0, reordering=order)
        products.append(g.block_scale_dequantize(x, scales, 32, data_type=FLOAT))
    g.matmul(*products, name="c", virtual=False, data_type=DataType.BFLOAT16)
    return g.graph()


def test_block_scales_of_partial_tiles_are_reported_as_dangerous() -> None:
    code = "scales-not-whole-tiles"
    assert list_codes_tensors_and_severities(make_block_scaled_matmul((1, 64, 2))) == [
        (code, "scales_a", "dangerous"),
        (code, "scales_b", "dangerous"),
    ]
    for whole in ((1, 128, 4), (1, 4, 128)):
        assert list_codes_tensors_and_severities(make_block_scaled_matmul(whole)) == []


def test_scales_of_attention_are_whole_tiles_or_reported() -> None:
    options: dict[str, Any] = {"data_type": DataType.FP8_E4M3, "output_type": DataType.BFLOAT16, "mx": True}
    graph = make_attention_graph(seq_q=200, seq_kv=200, head_dim=128, **options)
    assert list_codes_tensors_and_severities(graph) == []
    scales = next(tensor for tensor in graph.tensors if tensor.name == "descale_v")
    short = replace_tensors(graph, {scales.uid: make_packed_tensor(scales, (1, 2, 7, 128))})
    assert short is not None
    assert list_codes_tensors_and_severities(short) == [("scales-not-whole-tiles", "descale_v", "dangerous")]


def test_an_alignment_below_16_bytes_is_reported() -> None:
    assert list_codes_tensors_and_severities(make_matmul_graph(alignment=8)) == [("alignment-below-16", "a", "slow")]
    assert list_codes_tensors_and_severities(make_matmul_graph(alignment=32)) == []


@pytest.mark.parametrize("strides", [(4096, 0, 1), (4096, 32, 1), (4096, 1, 1)])
def test_an_overlapping_output_is_reported_as_dangerous(strides: tuple[int, ...]) -> None:
    assert list_codes_tensors_and_severities(make_graph_with_output_strides(strides)) == [
        ("overlapping-strides", "y", "dangerous")
    ]


@pytest.mark.parametrize(
    ("strides", "dims"),
    [((4096, 64, 1), (1, 64, 64)), ((4096, 1, 64), (1, 64, 64)), ((0, 64, 1), (1, 64, 64)), ((9, 2, 3), (1, 3, 2))],
)
def test_output_without_overlap_has_no_finding(strides: tuple[int, ...], dims: tuple[int, ...]) -> None:
    assert list_codes_tensors_and_severities(make_graph_with_output_strides(strides, dims)) == []


def make_attention_of_single_operations(*, keys: tuple[int, ...], scores: DataType) -> Graph:
    g = GraphBuilder("by_hand", io_type=HALF)
    q, k, v = g.tensor("q", (1, 1, 64, 64)), g.tensor("k", (1, 1, 64, 64), strides=keys), g.tensor("v", (1, 1, 64, 64))
    s = g.matmul(q, k, name="s", data_type=scores)
    top = g.reduction(ReduceTensorOp.MAX, s, (1, 1, 64, 1))
    exp = g.pointwise(PointwiseMode.EXP, g.pointwise(PointwiseMode.SUB, s, top))
    p = g.pointwise(PointwiseMode.DIV, exp, g.reduction(ReduceTensorOp.ADD, exp, (1, 1, 64, 1)), data_type=HALF)
    g.matmul(p, v, name="o", virtual=False)
    return g.graph()


TRANSPOSED, PLAIN = (4096, 4096, 1, 64), (4096, 4096, 64, 1)


def test_untransposed_keys_of_square_attention_are_reported() -> None:
    assert list_codes_tensors_and_severities(make_attention_of_single_operations(keys=PLAIN, scores=FLOAT)) == [
        ("keys-not-transposed", "k", "suspicious")
    ]
    assert list_codes_tensors_and_severities(make_attention_of_single_operations(keys=TRANSPOSED, scores=FLOAT)) == []
    assert list_codes_tensors_and_severities(make_attention_graph(seq_kv=64)) == [], "K^T as it should be"


def test_a_softmax_of_16_bit_scores_is_reported() -> None:
    assert list_codes_tensors_and_severities(make_attention_of_single_operations(keys=TRANSPOSED, scores=HALF)) == [
        ("softmax-in-16-bits", "s", "suspicious")
    ]


def test_findings_are_sorted_by_severity() -> None:
    graph = make_attention_graph(layout={"q": (64 * 136, 68, 136, 1)}, seq_kv=64)
    assert [finding.severity for finding in lint(graph)] == ["dangerous"]
    both = make_attention_of_single_operations(keys=PLAIN, scores=HALF)
    assert [finding.severity for finding in lint(both)] == ["suspicious", "suspicious"]


def test_text_of_a_finding_names_the_tensor() -> None:
    finding = Finding("code", "a", "slow", "a is odd", "so it is", "make it even")
    assert str(finding) == "slow: a is odd (code); make it even"


def test_lint_reports_nothing_for_good_graphs() -> None:
    noisy = {"matmul f16 odd k", "flash f16 d 20"}
    assert {name for name, make in VARIED_GRAPHS.items() if lint(make())} == noisy
    for number in range(40):
        backward = bool(number % 2)
        problem = make_random_attention_problem(np.random.default_rng(number), backward=backward, tiny=False)
        make = attention.sdpa_backward if backward else attention.sdpa_forward
        assert lint(make(problem, allow_hazards=True)) == []


@pytest.mark.parametrize(("between", "findings"), [(DataType.BFLOAT16, 1), (FLOAT, 0)])
def test_rounding_between_float32_operations_is_reported(between: DataType, findings: int) -> None:
    g = GraphBuilder("rounded", io_type=DataType.BFLOAT16)
    x = g.tensor("x", (8, 32, 4, 4))
    moved = g.pointwise(PointwiseMode.ADD, x, g.scalar(1.0, data_type=FLOAT), name="moved", data_type=between)
    g.pointwise(PointwiseMode.RELU_FWD, moved, name="y", virtual=False)
    assert (
        list_codes_tensors_and_severities(g.graph())
        == [("rounded-between-operations", "moved", "suspicious")] * findings
    )


def test_an_explicit_conversion_is_not_reported() -> None:
    g = GraphBuilder("converted", io_type=FLOAT)
    narrow = g.pointwise(PointwiseMode.IDENTITY, g.tensor("x", (8, 32)), name="narrow", data_type=HALF)
    g.pointwise(PointwiseMode.RELU_FWD, narrow, name="y", virtual=False)
    assert list_codes_tensors_and_severities(g.graph()) == []


@pytest.mark.parametrize(("channels", "groups"), [(32, 1), (16, 2), (8, 4), (1, 32)])
def test_grouped_convolutions_are_reported_unless_depthwise(channels: int, groups: int) -> None:
    g = GraphBuilder("conv", io_type=HALF)
    x, w = g.tensor("x", (8, 32, 8, 8), strides="channels_last"), g.tensor("w", (64, channels, 3, 3))
    g.convolution(x, w, name="y", virtual=False)
    found = [finding.headline for finding in lint(g.graph()) if finding.code == "grouped-convolution"]
    headline = f"'x' has 32 channels and 'w' {channels}: a convolution of {groups} groups"
    assert found == [headline] * (channels not in (1, 32))


def test_the_strides_of_tensors_stored_in_blocks_are_not_reported() -> None:
    g = GraphBuilder("blocks", io_type=HALF)
    for order, findings in ((TensorReordering.NONE, 1), (TensorReordering.F8_128x4, 0)):
        for strides, code in (((128 * 128, 128, 2), "no-dense-dim"), ((128 * 68, 68, 1), "stride-not-16-bytes")):
            graph = make_matmul_graph(dims=(1, 128, 64), strides=strides, reordering=order)
            assert list_codes_tensors_and_severities(graph) == [(code, "a", "slow")] * findings
    x = g.tensor("x", (1, 128, 64))
    g.pointwise(PointwiseMode.RELU_FWD, x, virtual=False, strides=(64, 1, 1), reordering=TensorReordering.F8_128x4)
    assert list_codes_tensors_and_severities(g.graph()) == []


def test_findings_refer_to_known_issues_and_to_no_file() -> None:
    codes = {issue.code for issue in attention.HAZARDS}
    for strides, code in (((64 * 136, 68, 136, 1), "unaligned-strides"), ((64 * 256, 128, 256, 2), "inner-stride")):
        [finding] = lint(make_attention_graph(layout={"q": strides}))
        assert code in codes
        assert finding.detail.endswith(f": the known issue {code}")


def test_the_lint_page_lists_every_code_and_severity() -> None:
    page = (Path(__file__).parents[3] / "docs" / "diagnosis.md").read_text(encoding="utf-8").partition("\n## Lint\n")[2]
    rows = dict(re.findall(r"^\| `([a-z0-9-]+)` \| (.*?) \|", page.partition("\n## ")[0], re.MULTILINE))
    made: dict[str, set[str]] = {}
    for node in ast.walk(ast.parse(inspect.getsource(linting))):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Finding":
            code, _, severity, *_ = node.args
            found = {one.value for one in ast.walk(severity) if isinstance(one, ast.Constant)}
            name = code.value if isinstance(code, ast.Constant) else "graph-writes-nothing"  # the code of an error
            made[str(name)] = found & {"dangerous", "suspicious", "slow"}
    assert {code: set(re.findall("dangerous|suspicious|slow", text)) for code, text in rows.items()} == made
