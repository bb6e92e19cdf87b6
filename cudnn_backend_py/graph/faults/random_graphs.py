"""Faults that random graphs found: ``python -m cudnn_backend_py.tuning.campaign``, measured for this package."""

from __future__ import annotations

import math

from ...generated.enums import DataType, DescriptorType, PointwiseMode, ReduceTensorOp, ResampleMode
from ..builder import GraphBuilder
from ..ir import Graph, Matmul, Pointwise, Reduction
from . import look
from .fault import Fault

__all__ = ["RANDOM_GRAPHS"]

_D = DescriptorType
_SOURCE = "tests/gpu/graph/test_faults.py"


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


def _bfloat16_pool(graph: Graph) -> bool:
    """A pooling alone, of bfloat16."""
    pools = list(look.of_kind(graph, _D.OPERATION_RESAMPLE_FWD))
    return len(pools) == len(graph.ops) == 1 and pools[0].fields["x"].data_type is DataType.BFLOAT16


def _pool_of_computed(graph: Graph) -> bool:
    """A pooling of what elementwise operations make."""
    return any(op.fields["x"].virtual for op in look.of_kind(graph, _D.OPERATION_RESAMPLE_FWD))


def _pool_gradient_of_lines(graph: Graph) -> bool:
    """The gradient of a max pool over one dim, by its index."""
    return any(
        op.fields["dy"].rank == 3 and "idx" in op.fields for op in look.of_kind(graph, _D.OPERATION_RESAMPLE_BWD)
    )


def _int8_into_int32(graph: Graph) -> bool:
    """A convolution of INT8 whose result is INT32 in memory."""
    return any(
        item.image.data_type is DataType.INT8
        and item.forward
        and item.op.fields["y"].data_type is DataType.INT32
        and not item.op.fields["y"].virtual
        for item in look.convolutions(graph)
    )


def _bare_row_sums(graph: Graph) -> bool:
    """Gradients of attention as single operations that subtract row sums from a product as they were summed."""
    writers = {tensor.uid: op for op in graph.ops for tensor in op.outputs().values()}
    return any(
        isinstance(op, Pointwise)
        and op.mode is PointwiseMode.SUB
        and op.x is not None
        and op.b is not None
        and isinstance(writers.get(op.x.uid), Matmul)
        and isinstance(writers.get(op.b.uid), Reduction)
        for op in graph.ops
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


def _pool(kind: DataType, *, before: bool = False) -> Graph:
    """Return a pooling, of what a ReLU makes or not."""
    g = GraphBuilder("pool", io_type=kind)
    x = g.tensor("x", (2, 64, 7, 13), strides="channels_last")
    if before:
        x = g.pointwise(PointwiseMode.RELU_FWD, x, strides=x.strides)
    g.resample(ResampleMode.AVGPOOL_INCLUDE_PADDING, x, 2, virtual=False, name="y")
    return g.graph()


def _pool_gradient(sizes: tuple[int, ...]) -> Graph:
    """Return the gradient of a max pool of windows of three, two apart."""
    g = GraphBuilder("pool", io_type=DataType.FLOAT)
    less = (2, 32, *((size - 3) // 2 + 1 for size in sizes))
    dy = g.tensor("dy", less, strides="channels_last")
    idx = g.tensor("idx", less, DataType.INT8, strides="channels_last")
    dims = (2, 32, *sizes)
    g.resample_backward(ResampleMode.MAXPOOL, dy, 3, stride=2, idx=idx, dims=dims, virtual=False, name="dx")
    return g.graph()


def _integers(kind: DataType) -> Graph:
    """Return a convolution of INT8 into a type."""
    g = GraphBuilder("integers", io_type=DataType.INT8)
    x = g.tensor("x", (1, 32, 8, 8), strides="channels_last")
    w = g.tensor("w", (32, 32, 1, 1), strides="channels_last")
    g.convolution(x, w, compute_type=DataType.INT32, data_type=kind, virtual=False, name="y")
    return g.graph()


def _gradients(*, factor: bool) -> Graph:
    """Return the gradients of attention as single operations, with a factor of 1 behind the row sums or without."""
    g, dims = GraphBuilder("gradients"), (2, 4, 128, 64)
    turned = (2, 4, 64, 128), (4 * 128 * 64, 128 * 64, 1, 64)
    q, o, do = (g.tensor(name, dims) for name in ("q", "o", "do"))
    k, v = (g.tensor(name, turned[0], strides=turned[1]) for name in ("k", "v"))
    stats, rows, total = (
        g.tensor(name, (2, 4, 128, size), DataType.FLOAT, scratch=scratch)
        for name, size, scratch in (("stats", 1, False), ("rows", 1, True), ("total", 64, True))
    )
    scores = g.pointwise(PointwiseMode.MUL, g.matmul(q, k), g.scalar(0.125))
    p = g.pointwise(PointwiseMode.EXP, g.pointwise(PointwiseMode.SUB, scores, stats), data_type=DataType.HALF)
    square, column_major = (2, 4, 128, 128), (4 * 128 * 128, 128 * 128, 1, 128)
    g.matmul(g.reshape(p, square, strides=column_major), do, name="dv", virtual=False)
    products = g.pointwise(PointwiseMode.MUL, do, o)
    if factor:
        sums = g.reduction(ReduceTensorOp.ADD, products, rows.dims)
        g.pointwise(PointwiseMode.MUL, sums, g.scalar(1.0), out=rows)
    else:
        g.reduction(ReduceTensorOp.ADD, products, rows.dims, out=rows)
    ds = g.pointwise(PointwiseMode.MUL, g.pointwise(PointwiseMode.SUB, g.matmul(do, v), rows), p)
    ds = g.pointwise(PointwiseMode.MUL, ds, g.scalar(0.125), data_type=DataType.HALF)
    g.matmul(g.reshape(ds, square, strides=column_major), q, name="dk", virtual=False)
    g.matmul(ds, g.reshape(k, dims, data_type=DataType.HALF), out=total)
    g.pointwise(PointwiseMode.IDENTITY, total, name="dq", virtual=False)
    return g.graph()


RANDOM_GRAPHS: tuple[Fault, ...] = (
    Fault(
        "gradient-row-sums-bare",
        what="gradients of attention as single operations, without a factor behind the row sums of dO times O",
        effect="the row sums are taken for 0: dQ and dK are wrong",
        fix="multiply the row sums by 1.0 before they are subtracted",
        source=_SOURCE,
        evidence="measured with 9.19.0 and 9.28.0 on sm_90: engines 6 and 7; with the factor they are right",
        graph=_bare_row_sums,
        reproductions={"": lambda: _gradients(factor=False)},
        unlike=lambda: _gradients(factor=True),
        cure=lambda: _gradients(factor=True),
    ),
    Fault(
        "pooling-of-bfloat16",
        what="a pooling of bfloat16 alone",
        effect="engine 3 writes 32 bits for each element: results are wrong, and memory behind them is overwritten",
        fix="take another engine, or use float16 or float32",
        source=_SOURCE,
        evidence="measured with 9.19.0 on sm_90: 4 of 4 random graphs on engine 3; engine 2 is right",
        graph=_bfloat16_pool,
        depends_on="the engine",
        reproductions={"": lambda: _pool(DataType.BFLOAT16)},
        unlike=lambda: _pool(DataType.HALF),
        cure=lambda: _pool(DataType.HALF),
    ),
    Fault(
        "pooling-behind-elementwise",
        what="a pooling of what elementwise operations make in the same graph",
        effect="the result is NaN, or not written",
        fix="pool in a graph of its own",
        source=_SOURCE,
        evidence="measured with 9.19.0 on sm_90: 3 of 3 random graphs",
        graph=_pool_of_computed,
        reproductions={"": lambda: _pool(DataType.HALF, before=True)},
        unlike=lambda: _pool(DataType.HALF),
        cure=lambda: _pool(DataType.HALF),
    ),
    Fault(
        "pooling-gradient-over-one-dim",
        what="the gradient of a max pool over one dim, by its index",
        effect="a misaligned address",
        fix="describe the tensors with a dim of 1 more",
        source=_SOURCE,
        evidence="measured with 9.19.0 on sm_90: 2 of 2 random graphs",
        graph=_pool_gradient_of_lines,
        reproductions={"": lambda: _pool_gradient((15,))},
        unlike=lambda: _pool_gradient((7, 15)),
        cure=lambda: _pool_gradient((7, 15)),
    ),
    Fault(
        "convolution-int8-into-int32",
        what="a forward convolution of INT8 into INT32",
        effect="engines 28, which is proposed first, and 0 multiply by the bits of the float32 alpha, 0x3f800000",
        fix="write FLOAT or INT8, or take engine 71",
        source=_SOURCE,
        evidence="measured with 9.19.0 on sm_90",
        graph=_int8_into_int32,
        reproductions={"": lambda: _integers(DataType.INT32)},
        unlike=lambda: _integers(DataType.FLOAT),
        cure=lambda: _integers(DataType.FLOAT),
    ),
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
)
