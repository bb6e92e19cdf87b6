"""Faults that random graphs found: ``python -m cudnn_backend_py.tuning.campaign``, measured for this package."""

from __future__ import annotations

import math

from ...generated.enums import DataType, DescriptorType, MoeGroupedMatmulMode, PointwiseMode
from ..builder import GraphBuilder
from ..ir import Graph, Pointwise
from ..strides import column_major
from . import look
from .fault import Fault

__all__ = ["RANDOM_GRAPHS"]

_D = DescriptorType
_SOURCE = "cudnn_backend_py/tuning/campaign"


def _elementwise(graph: Graph, rank: int) -> bool:
    """Return whether there are elementwise operations only, on tensors of this many dims."""
    return all(isinstance(op, Pointwise) for op in graph.ops) and all(
        tensor.rank == rank for tensor in look.in_memory(graph)
    )


def _two_dims(graph: Graph) -> bool:
    """Elementwise operations on matrices of more than one row."""
    return _elementwise(graph, 2) and any(tensor.dims[0] > 1 for tensor in graph.outputs)


def _one_for_a_batch(graph: Graph) -> bool:
    """Elementwise operations on batches of matrices, one of which is read by all of the batch."""
    batch = max((tensor.dims[0] for tensor in graph.outputs), default=1)
    return (
        _elementwise(graph, 3)
        and batch > 1
        and any(tensor.dims[0] == 1 < math.prod(tensor.dims) for tensor in look.in_memory(graph))
    )


def _computed_behind(graph: Graph) -> bool:
    """A concatenation with a computed tensor that is not its first."""
    return any(
        tensor.virtual
        for op in look.of_kind(graph, _D.OPERATION_CONCAT)
        for port, tensor in op.inputs().items()
        if port != "input[0]"
    )


def _gathered(graph: Graph) -> bool:
    """A matmul of experts that gathers its tokens."""
    return any(
        op.fields.get("mode") is MoeGroupedMatmulMode.GATHER
        for op in look.of_kind(graph, _D.OPERATION_MOE_GROUPED_MATMUL)
    )


# What they are shown with


def _activation(dims: tuple[int, ...]) -> Graph:
    g = GraphBuilder("activation")
    g.pointwise(PointwiseMode.RELU_FWD, g.tensor("x", dims), name="y", virtual=False)
    return g.graph()


def _sum(dims: tuple[int, ...], bias: tuple[int, ...]) -> Graph:
    g = GraphBuilder("sum")
    g.pointwise(PointwiseMode.ADD, g.tensor("x", dims), g.tensor("bias", bias), name="y", virtual=False)
    return g.graph()


def _joined(*, behind: bool) -> Graph:
    """Return a convolution whose result stands beside a tensor that is there already."""
    g = GraphBuilder("joined")
    x = g.tensor("x", (1, 32, 8, 8), strides="channels_last")
    w = g.tensor("w", (32, 32, 1, 1), strides="channels_last")
    y = g.convolution(x, w, data_type=DataType.HALF)
    z = g.tensor("z", (1, 32, 8, 8), strides="channels_last")
    g.concatenate([z, y] if behind else [y, z], 1, in_place_index=0 if behind else 1, name="whole", virtual=False)
    return g.graph()


def _experts(*, gathered: bool) -> Graph:
    """Return a product for each of four experts."""
    g = GraphBuilder("experts")
    token, offset = g.tensor("token", (1, 64, 32)), g.tensor("first_token_offset", (4, 1, 1), DataType.INT32)
    weight = g.tensor("weight", (4, 32, 64), strides=column_major((4, 32, 64)))
    index = g.tensor("token_index", (1, 64, 1), DataType.INT32) if gathered else None
    mode = MoeGroupedMatmulMode.GATHER if gathered else MoeGroupedMatmulMode.NONE
    g.moe_grouped_matmul(token, weight, offset, mode=mode, token_index=index, name="y", virtual=False)
    return g.graph()


RANDOM_GRAPHS: tuple[Fault, ...] = (
    Fault(
        "elementwise-two-dims",
        what="elementwise operations alone on tensors of two dims, with more than one row",
        effect="only the first row is written",
        fix="describe the tensors with three dims, the first of them 1",
        source=_SOURCE,
        evidence="measured with 9.19.0 on sm_90: 6 of 6 random graphs",
        graph=_two_dims,
        reproductions={"": lambda: _activation((96, 24))},
        unlike=lambda: _activation((1, 96, 24)),
        cure=lambda: _activation((1, 96, 24)),
    ),
    Fault(
        "elementwise-broadcast-of-matrices",
        what="elementwise operations alone on tensors of three dims, one of them with a first dim of 1",
        effect="memory behind that tensor is read for all but the first matrix of the batch: results are wrong",
        fix="repeat the tensor for each matrix, or describe the batch as rows of one matrix",
        source=_SOURCE,
        evidence="measured with 9.19.0 on sm_90: 7 of 7 random graphs",
        graph=_one_for_a_batch,
        reproductions={"": lambda: _sum((16, 32, 24), (1, 1, 24))},
        unlike=lambda: _sum((16, 32, 24), (16, 1, 24)),
        cure=lambda: _sum((16, 32, 24), (16, 1, 24)),
    ),
    Fault(
        "concatenation-behind",
        what="a concatenation in which a tensor that the graph computes is not the first",
        effect="it is written to the beginning of the result, without room for the others",
        fix="let what is computed be the first",
        source=_SOURCE,
        evidence="measured with 9.19.0 on sm_90: 4 of 4 random graphs; 3 of 3 with the computed tensor first are right",
        graph=_computed_behind,
        reproductions={"": lambda: _joined(behind=True)},
        unlike=lambda: _joined(behind=False),
        cure=lambda: _joined(behind=False),
    ),
    Fault(
        "experts-gathered",
        what="a matmul of experts that gathers its tokens",
        effect="an illegal address",
        fix="gather the tokens in memory before",
        source=_SOURCE,
        evidence="measured with 9.19.0 on sm_90: 4 of 4 random graphs",
        graph=_gathered,
        reproductions={"": lambda: _experts(gathered=True)},
        unlike=lambda: _experts(gathered=False),
        cure=lambda: _experts(gathered=False),
    ),
)
