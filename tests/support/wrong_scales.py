"""Simulate a wrong scale or mode of one operation in the interpreter, and make graphs that reveal it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from cudnn_backend_py import DataType, DescriptorType, Graph, GraphBuilder, PointwiseMode
from cudnn_backend_py.generated.enums import NormMode, ReduceTensorOp, ResampleMode
from cudnn_backend_py.graph import Op, Tensor, attention
from cudnn_backend_py.interpreter import OPERATIONS, pointwise
from cudnn_backend_py.interpreter.run import Run

__all__ = [
    "SCALE_FACTORS",
    "WRONG_MODES",
    "WRONG_SCALES",
    "WrongScale",
    "use_wrong_pointwise_mode_in_interpreter",
    "use_wrong_scale_in_interpreter",
]

D, P, T = DescriptorType, PointwiseMode, DataType
IN_MEMORY: dict[str, Any] = {"virtual": False}
FLOAT_TYPES = (T.FLOAT, T.HALF, T.BFLOAT16)
WrongScale = tuple[Callable[[DataType], Graph], DescriptorType, tuple[DataType, ...]]


@contextmanager
def use_wrong_scale_in_interpreter(kind: DescriptorType, factor: float) -> Iterator[None]:
    """Make the interpreter multiply the first result of a kind of operation by a factor."""
    right = OPERATIONS[kind]

    def compute_with_scaled_result(run: Run, op: Op) -> None:
        first = next(iter(op.outputs().values())).uid
        write = run.write_value

        def write_scaled(tensor: Tensor, values: ArrayLike) -> None:
            write(tensor, np.asarray(values) * (factor if tensor.uid == first else 1.0))

        run.write_value = write_scaled  # type: ignore[method-assign]
        try:
            right(run, op)
        finally:
            del run.write_value  # type: ignore[method-assign]

    OPERATIONS[kind] = compute_with_scaled_result
    try:
        yield
    finally:
        OPERATIONS[kind] = right


@contextmanager
def use_wrong_pointwise_mode_in_interpreter(mode: PointwiseMode, other: PointwiseMode) -> Iterator[None]:
    """Make the interpreter compute another pointwise mode in place of `mode`."""
    tables: tuple[dict[PointwiseMode, Any], ...] = (pointwise.UNARY, pointwise.BINARY, pointwise.BACKWARD)
    (table,) = (table for table in tables if mode in table)
    right = table[mode]
    table[mode] = table[other]
    try:
        yield
    finally:
        table[mode] = right


def _make_convolution_graph(kind: DataType) -> Graph:
    """Return a convolution with bias and ReLU."""
    g = GraphBuilder("convolution", io_type=kind)
    x, w = (
        g.tensor(name, dims, strides="channels_last") for name, dims in (("x", (4, 32, 8, 8)), ("w", (32, 32, 3, 3)))
    )
    y = g.convolution(x, w, padding=1)
    z = g.pointwise(P.ADD, y, g.tensor("bias", (1, 32, 1, 1)), strides=y.strides)
    g.pointwise(P.RELU_FWD, z, strides=y.strides, **IN_MEMORY)
    return g.graph()


def _make_filter_gradient_graph(kind: DataType) -> Graph:
    g = GraphBuilder("filter gradient", io_type=kind)
    x, dy = (g.tensor(name, (4, 32, 8, 8), strides="channels_last") for name in ("x", "dy"))
    g.convolution_backward_filter(x, dy, (3, 3), padding=1, strides="channels_last", **IN_MEMORY)
    return g.graph()


def _make_matmul_graph(kind: DataType) -> Graph:
    """Return a matmul with a bias, and for FP8 with a scale, so that results use the range of the type."""
    g = GraphBuilder("matmul", io_type=kind)
    b = g.tensor("b", (2, 64, 256), strides=(64 * 256, 1, 64))
    c = g.matmul(g.tensor("a", (2, 128, 64)), b)
    g.pointwise(P.MUL, c, g.tensor("scale", (1, 1, 1), T.FLOAT), **IN_MEMORY)
    return g.graph()


def _make_norm_graph(kind: DataType) -> Graph:
    g = GraphBuilder("norm", io_type=kind)
    x = g.tensor("x", (128, 256, 1, 1))
    scale, bias = (g.tensor(name, (1, 256, 1, 1), T.FLOAT) for name in ("scale", "bias"))
    g.norm_forward(NormMode.LAYER_NORM, x, scale, bias, training=True, **IN_MEMORY)
    return g.graph()


def _make_pool_graph(kind: DataType) -> Graph:
    g = GraphBuilder("pool", io_type=kind)
    x = g.tensor("x", (4, 32, 16, 16), strides="channels_last")
    g.resample(ResampleMode.AVGPOOL_INCLUDE_PADDING, x, window=2, stride=2, **IN_MEMORY)
    return g.graph()


def _make_reduction_graph(kind: DataType) -> Graph:
    g = GraphBuilder("reduction", io_type=kind)
    x = g.tensor("x", (8192, 32))
    g.reduction(ReduceTensorOp.ADD, x, (8192, 1), data_type=T.FLOAT, **IN_MEMORY)
    return g.graph()


def _make_pointwise_graph(kind: DataType) -> Graph:
    g = GraphBuilder("pointwise", io_type=kind)
    x, b = (g.tensor(name, (4, 64, 128)) for name in ("x", "b"))
    g.pointwise(P.ADD, x, b, **IN_MEMORY)
    return g.graph()


def _make_moe_matmul_graph(kind: DataType) -> Graph:
    g = GraphBuilder("experts", io_type=kind)
    token, weight = g.tensor("token", (1, 256, 64)), g.tensor("weight", (8, 64, 128), strides=(64 * 128, 1, 64))
    g.moe_grouped_matmul(token, weight, g.tensor("offsets", (8, 1, 1), T.INT32), **IN_MEMORY)
    return g.graph()


def _make_attention_graph(kind: DataType) -> Graph:
    return attention.sdpa_forward(batch=1, heads=2, seq_q=128, head_dim=128, data_type=kind)


WRONG_SCALES: dict[str, WrongScale] = {
    "convolution": (_make_convolution_graph, D.OPERATION_CONVOLUTION_FORWARD, FLOAT_TYPES),
    "filter gradient": (_make_filter_gradient_graph, D.OPERATION_CONVOLUTION_BACKWARD_FILTER, FLOAT_TYPES),
    "matmul": (_make_matmul_graph, D.OPERATION_MATMUL, (*FLOAT_TYPES, T.FP8_E4M3, T.FP8_E5M2)),
    "norm": (_make_norm_graph, D.OPERATION_NORM_FORWARD, FLOAT_TYPES),
    "pool": (_make_pool_graph, D.OPERATION_RESAMPLE_FWD, (T.FLOAT, T.HALF)),
    "reduction": (_make_reduction_graph, D.OPERATION_REDUCTION, FLOAT_TYPES),
    "pointwise": (_make_pointwise_graph, D.OPERATION_POINTWISE, FLOAT_TYPES),
    "experts": (_make_moe_matmul_graph, D.OPERATION_MOE_GROUPED_MATMUL, (T.HALF, T.BFLOAT16)),
    "attention": (_make_attention_graph, D.OPERATION_MATMUL, (T.HALF, T.BFLOAT16, T.FP8_E4M3)),
}
"""By the family: the graph, the operation that is wrong, and the types that cuDNN 9.19 has it in."""

SCALE_FACTORS = {
    T.FLOAT: (1.01,),
    T.HALF: (1.01, 1.001),
    T.BFLOAT16: (1.01, 1.001),
    T.FP8_E4M3: (1.01,),
    T.FP8_E5M2: (1.01,),
}
"""What is found of each type: float32 operands of tensor cores are rounded to 11 bits, all to the same side."""


def _make_graph_of_pointwise_mode(mode: PointwiseMode) -> Graph:
    g = GraphBuilder("one", io_type=T.FLOAT)
    x = g.tensor("x", (4, 64, 128))
    b = {} if mode in pointwise.UNARY else {"b": g.tensor("b", (4, 64, 128))}
    g.pointwise(P.MUL, g.pointwise(mode, x, **b), g.tensor("scale", (1, 1, 1)), **IN_MEMORY)
    return g.graph()


def _make_causal_attention_graph() -> Graph:
    return attention.sdpa_forward(batch=1, heads=2, seq_q=128, head_dim=64, causal=True, implementation="composite")


WRONG_MODES: dict[str, tuple[Callable[[], Graph], PointwiseMode, PointwiseMode]] = {
    "GELU as its approximation": (
        lambda: _make_graph_of_pointwise_mode(P.GELU_FWD),
        P.GELU_FWD,
        P.GELU_APPROX_TANH_FWD,
    ),
    "the smaller for the larger": (lambda: _make_graph_of_pointwise_mode(P.MAX), P.MAX, P.MIN),
    "a causal mask off by one": (_make_causal_attention_graph, P.CMP_GE, P.CMP_GT),
}
"""By the wrong result: the graph, the mode that the interpreter computes wrongly, and the mode it computes instead."""
