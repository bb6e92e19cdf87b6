"""The torch operators without torch or a GPU: their imports, and the graphs that they give to cuDNN."""

from __future__ import annotations

from typing import Any

import pytest

from cudnn_backend_py import DataType, GraphError, OperationGraph, open_target
from cudnn_backend_py.graph.attention.problem import TensorLayout
from cudnn_backend_py.graph.ir import packed_strides
from cudnn_backend_py.torch_ops.arguments import SCALES, TENSORS, OperatorOptions
from cudnn_backend_py.torch_ops.graphs import make_attention_graph
from cudnn_backend_py.torch_ops.operators import FORWARD, SCHEMAS
from tests.support.child import run_python

DEFAULT_OPTIONS = OperatorOptions(None, 0.0, None, None, False, None, False)
B, H, S, D = 2, 8, 256, 64
OPTIONAL_TENSORS: dict[str, tuple[tuple[int, ...], DataType]] = {
    "bias": ((1, H, S, S), DataType.HALF),
    "seq_len_q": ((B, 1, 1, 1), DataType.INT32),
    "seq_len_kv": ((B, 1, 1, 1), DataType.INT32),
    "alibi_slopes": ((1, H, 1, 1), DataType.FLOAT),
    "sink": ((1, H, 1, 1), DataType.FLOAT),
}


def make_bshd_layout(heads: int = H) -> TensorLayout:
    return TensorLayout((B, heads, S, D), (S * heads * D, D, heads * D, 1), DataType.HALF)


def make_attention_layouts(
    backward: bool, kv_heads: int = H, extra: tuple[str, ...] = (), **changed: TensorLayout
) -> dict[str, TensorLayout]:
    """Return the tensor layouts of a pass: q, k, v, o, stats, those of `extra` and, for backward, the gradients."""
    found = {name: make_bshd_layout(kv_heads if name in ("k", "v", "dk", "dv") else H) for name in ("q", "k", "v", "o")}
    if backward:
        found |= {
            "do": make_bshd_layout(),
            "dq": make_bshd_layout(),
            "dk": make_bshd_layout(kv_heads),
            "dv": make_bshd_layout(kv_heads),
        }
    rows = (B, H, S, 1)
    found["stats"] = TensorLayout(rows, packed_strides(rows), DataType.FLOAT)
    for name in extra:
        dims, kind = OPTIONAL_TENSORS[name]
        found[name] = TensorLayout(dims, packed_strides(dims), kind)
        if backward and name in ("bias", "sink"):
            found[f"d{name}"] = found[name]
    return found | changed


PACKED_QKV_LAYOUT = TensorLayout((B, H, S, D), (S * 3 * H * D, D, 3 * H * D, 1), DataType.HALF)
GRAPH_CASES: dict[str, tuple[dict[str, Any], OperatorOptions]] = {
    "plain": ({}, DEFAULT_OPTIONS),
    "causal, grouped heads": ({"kv_heads": 2}, DEFAULT_OPTIONS._replace(right_bound=0)),
    "one buffer for q, k and v": (
        {"q": PACKED_QKV_LAYOUT, "k": PACKED_QKV_LAYOUT, "v": PACKED_QKV_LAYOUT},
        DEFAULT_OPTIONS,
    ),
    "bias": ({"extra": ("bias",)}, DEFAULT_OPTIONS),
    "padding, window": ({"extra": ("seq_len_q", "seq_len_kv")}, DEFAULT_OPTIONS._replace(left_bound=64, right_bound=0)),
    "dropout": ({}, DEFAULT_OPTIONS._replace(dropout=0.1)),
    "sink": ({"extra": ("sink",)}, DEFAULT_OPTIONS._replace(right_bound=0)),
    "alibi": ({"extra": ("alibi_slopes",)}, DEFAULT_OPTIONS._replace(right_bound=0)),
    "soft cap": ({}, DEFAULT_OPTIONS._replace(soft_cap=30.0)),
    "deterministic": ({}, DEFAULT_OPTIONS._replace(deterministic=True)),
    "bottom right": ({}, DEFAULT_OPTIONS._replace(right_bound=0, bottom_right=True)),
}


@pytest.fixture(scope="module")
def h100_target() -> Any:
    target = open_target("h100")
    yield target
    target.close()


@pytest.mark.parametrize("backward", [False, True], ids=["forward", "backward"])
@pytest.mark.parametrize("case", GRAPH_CASES)
def test_attention_graph_is_supported_and_has_the_tensors_of_the_operator(
    h100_target: Any, case: str, backward: bool
) -> None:
    changes, options = GRAPH_CASES[case]
    given = make_attention_layouts(backward, **changes)
    graph = make_attention_graph(
        given, options, backward=backward, version=h100_target.library.version, sm=h100_target.sm
    )
    held = {*given, *({"dropout_seed", "dropout_offset"} if options.dropout else ())}
    in_memory = [tensor for tensor in graph.variant_pack_tensors if not tensor.scratch and tensor.value is None]
    assert {tensor.name for tensor in in_memory} == held
    strides = {tensor.name: sorted(tensor.strides) for tensor in in_memory}
    assert all(strides[name] == sorted(tensor.strides) for name, tensor in given.items())
    assert OperationGraph(graph, h100_target).heuristics("A").configs


def test_a_strided_head_dim_is_refused(h100_target: Any) -> None:
    """The graph builder may refuse a strided head dim, because the torch operators copy such tensors before."""
    scattered = TensorLayout((B, H, S, D), (S * H * D, D, H * D, 2), DataType.HALF)
    with pytest.raises(GraphError, match="attention-hazard"):
        make_attention_graph(
            make_attention_layouts(False, q=scattered), DEFAULT_OPTIONS, backward=False, version=(9, 28, 0), sm=90
        )


def test_importing_the_package_does_not_import_torch() -> None:
    done = run_python(["-c", "import sys, cudnn_backend_py.torch_ops; print('torch' in sys.modules)"])
    assert (done.stdout.strip(), done.code) == ("False", 0), done.stderr


@pytest.mark.parametrize("function", ["scaled_dot_product_attention", "attention"])
def test_absence_of_torch_is_reported(function: str) -> None:
    code = (
        f"import sys; sys.modules['torch'] = None\nfrom cudnn_backend_py.torch_ops import {function} as f\nf(1, 2, 3)"
    )
    done = run_python(["-c", code])
    assert done.code == 1
    assert "torch-missing: PyTorch is not installed" in done.stderr


def test_the_operator_schema_lists_the_tensors_in_order() -> None:
    for name, schema in SCHEMAS.items():
        arguments = [argument.split()[-1] for argument in schema.partition(" -> ")[0].strip("()").split(",")]
        begin = 0 if name == FORWARD else 3
        assert tuple(arguments[begin : begin + len(TENSORS)]) == TENSORS
        begin += len(TENSORS)
        if name == FORWARD:
            assert tuple(arguments[begin : begin + len(SCALES)]) == SCALES
            begin += len(SCALES)
        assert tuple(arguments[begin : begin + len(OperatorOptions._fields)]) == OperatorOptions._fields
