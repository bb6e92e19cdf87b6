"""Faults that random graphs found in convolutions, poolings, norms and experts, measured for this package."""

from __future__ import annotations

from ...generated.enums import DataType, DescriptorType, MoeGroupedMatmulMode, NormMode, PointwiseMode
from ...system.version import Window
from ..builder import GraphBuilder
from ..ir import Graph, Pointwise
from ..strides import column_major
from . import look
from .fault import Fault

__all__ = ["RANDOM_CONVOLUTIONS"]

_D, _P = DescriptorType, PointwiseMode
_ASKED = "tests/library/graph/test_faults.py"
_ROWS = (NormMode.LAYER_NORM, NormMode.RMS_NORM, NormMode.ADA_LAYER_NORM)


def _activation_gradient_of_a_norm(graph: Graph) -> bool:
    """A norm of rows in float32 and an activation's gradient that reads it, and nothing else."""
    if len(graph.ops) != 2:
        return False
    gradients = [op for op in graph.ops if isinstance(op, Pointwise) and op.mode.name.endswith("_BWD")]
    return bool(gradients) and any(
        op.fields["mode"] in _ROWS and op.fields["x"].data_type is DataType.FLOAT and op.fields["y"].virtual
        for op in look.of_kind(graph, _D.OPERATION_NORM_FORWARD)
    )


def _experts_and_matmul(graph: Graph) -> bool:
    """A matmul of experts and another matmul."""
    return bool(look.matmuls(graph)) and any(look.of_kind(graph, _D.OPERATION_MOE_GROUPED_MATMUL))


# What they are shown with


def _normed(mode: PointwiseMode) -> Graph:
    """Return a layer norm, and an elementwise operation of it and a tensor in memory."""
    g = GraphBuilder("normed", io_type=DataType.FLOAT)
    dims, per = (32, 32, 1, 1), (1, 32, 1, 1)
    y = g.norm_forward(NormMode.LAYER_NORM, g.tensor("x", dims), g.tensor("scale", per), g.tensor("bias", per)).y
    other = g.tensor("other", dims)
    if mode is _P.RELU_BWD:
        g.pointwise(mode, other, dy=y, virtual=False, name="out")
    else:
        g.pointwise(mode, y, other, virtual=False, name="out")
    return g.graph()


def _experts(*, matmul: bool = False) -> Graph:
    """Return a matmul of four experts, and another one of its result or not."""
    g = GraphBuilder("experts", io_type=DataType.HALF)
    weight = g.tensor("weight", (4, 64, 64), strides=column_major((4, 64, 64)))
    first = g.tensor("first", (4, 1, 1), DataType.INT32)
    token = g.tensor("token", (1, 32, 64))
    y = g.moe_grouped_matmul(token, weight, first, mode=MoeGroupedMatmulMode.NONE, virtual=matmul, name="y")
    if matmul:
        g.matmul(y, g.tensor("b", (1, 64, 32)), virtual=False, name="c")
    return g.graph()


RANDOM_CONVOLUTIONS: tuple[Fault, ...] = (
    Fault(
        "norm-activation-gradient",
        what="a norm of rows in float32, and the gradient of an activation that reads its result from no memory",
        effect="the process ends by a segmentation fault while engines are chosen",
        fix="use 9.24.0 or later, which refuses the graph, or leave the gradient to a graph of its own",
        source=_ASKED,
        evidence=(
            "measured deviceless with 9.16.0 to 9.22.0 on sm_90, layer, RMS and ada-layer norms, and on sm_80, sm_89, "
            "sm_100 and sm_120 with 9.19.0; 9.24.0 to 9.28.0 refuse it"
        ),
        versions=Window(until=(9, 24, 0)),
        graph=_activation_gradient_of_a_norm,
        step="check",
        reproductions={"": lambda: _normed(_P.RELU_BWD)},
        unlike=lambda: _normed(_P.MUL),
        cure=lambda: _normed(_P.MUL),
    ),
    Fault(
        "experts-and-matmul",
        what="a matmul of experts, and another matmul in the same graph",
        effect="the process ends by a segmentation fault while engines are chosen",
        fix="leave the other matmul to a graph of its own",
        source=_ASKED,
        evidence="measured deviceless with 9.18.0 to 9.28.0 on sm_90: before it, after it, and after an activation",
        versions=Window(since=(9, 18, 0)),
        graph=_experts_and_matmul,
        step="check",
        reproductions={"": lambda: _experts(matmul=True)},
        unlike=_experts,
        cure=_experts,
    ),
)
