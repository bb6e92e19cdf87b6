"""Faults of elementwise operations, reductions and products that random graphs found, measured for this package."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from ..generated.enums import DataType, PointwiseMode, ReduceTensorOp
from ..graph.attention.fault import Fault
from ..graph.builder import GraphBuilder
from ..graph.data_types import FP8_TYPES, HALF_TYPES
from ..graph.ir import Graph, Pointwise, Reduction, Tensor
from ..graph.strides import channels_last, packed_strides
from ..system.version import Window
from . import look

__all__ = ["RANDOM_ELEMENTWISE"]

_SOURCE = "tests/gpu/graph/test_faults.py"
_T, _P, _R = DataType, PointwiseMode, ReduceTensorOp


def _is_elementwise(graph: Graph, rank: int) -> bool:
    """Return whether there are elementwise operations only, on tensors of this many dims."""
    return all(isinstance(op, Pointwise) for op in graph.ops) and all(
        tensor.rank == rank for tensor in look.in_memory(graph)
    )


def _two_dims(graph: Graph) -> bool:
    """A matrix of more than one row that an elementwise operation writes, in a graph of those and of reductions."""
    written = {op.y.uid: op.y for op in graph.ops if isinstance(op, Pointwise) and op.y is not None}
    written |= {op.dx.uid: op.dx for op in graph.ops if isinstance(op, Pointwise) and op.dx is not None}
    return all(isinstance(op, (Pointwise, Reduction)) for op in graph.ops) and any(
        tensor.rank == 2 and tensor.dims[0] > 1 and not tensor.virtual for tensor in written.values()
    )


def _parts(graph: Graph) -> Iterator[Tensor]:
    """Yield what elementwise operations on batches of matrices read that is neither a batch of them nor one number."""
    whole = max((tensor.dims for tensor in graph.outputs), default=(1,))
    if _is_elementwise(graph, 3) and whole[0] > 1:
        yield from (tensor for tensor in look.in_memory(graph) if tensor.dims != whole and math.prod(tensor.dims) > 1)


def _one_for_a_batch(graph: Graph) -> bool:
    """Elementwise operations on batches of matrices, with a row or column that is read for all of the batch."""
    return any(part.dims[0] == 1 and 1 in part.dims[1:] for part in _parts(graph))


def _number_for_each(graph: Graph) -> bool:
    """Elementwise operations on batches of matrices, with one number for each matrix."""
    return any(part.dims[0] > 1 == part.dims[1] == part.dims[2] for part in _parts(graph))


def _part_with_strides(graph: Graph) -> bool:
    """Elementwise operations on batches of matrices, with a row or column of each that do not follow one another."""
    return any(
        part.dims[0] > 1 < math.prod(part.dims[1:]) and 1 in part.dims[1:] and not look.is_row_major(part)
        for part in _parts(graph)
    )


def _last_axis_apart(graph: Graph) -> bool:
    """Elementwise operations on batches of matrices, whose columns do not lie beside each other in memory."""
    return _is_elementwise(graph, 3) and any(
        tensor.dims[0] > 1 < tensor.dims[2] and tensor.strides[2] != 1 for tensor in look.in_memory(graph)
    )


def _index_of_matrices(graph: Graph) -> bool:
    """The index along the first of three dims, in a graph of elementwise operations."""
    return all(isinstance(op, Pointwise) for op in graph.ops) and any(
        op.axis == 0 and op.x is not None and op.x.rank == 3 and op.x.dims[0] > 1
        for op in look.of_mode(graph, _P.GEN_INDEX)
    )


def _batch_is_not_slowest(graph: Graph) -> bool:
    """Elementwise operations on images, written with the channels slowest in memory."""
    return all(isinstance(op, Pointwise) for op in graph.ops) and any(
        tensor.rank > 3 and min(tensor.dims[:2]) > 1 and tensor.strides[1] == max(tensor.strides)
        for tensor in graph.outputs
    )


def _channels_and_columns(graph: Graph) -> bool:
    """A reduction of five dims that takes the last one as it takes the channels, and not the others."""
    return any(_is_split(op) for op in graph.ops if isinstance(op, Reduction) and op.x.rank == 5)


def _is_split(op: Reduction) -> bool:
    gone = [before != after for before, after in zip(op.x.dims, op.y.dims, strict=True)]
    return op.x.dims[1] > 1 < op.x.dims[4] and gone[1] == gone[4] and gone[1] not in (gone[0], gone[2], gone[3])


def _float_product(graph: Graph) -> bool:
    """A matmul of float32."""
    op = look.the_matmul(graph)
    return op is not None and op.a.data_type is op.b.data_type is _T.FLOAT and op.compute_type is _T.FLOAT


def _float_into_half(graph: Graph) -> bool:
    """A matmul alone of float32 into 16 bits."""
    op = look.the_matmul(graph)
    return op is not None and len(graph.ops) == 1 and op.a.data_type is _T.FLOAT and op.c.data_type in HALF_TYPES


def _gelu_of_product(graph: Graph) -> bool:
    """A GELU right after a matmul."""
    op = look.the_matmul(graph)
    return op is not None and any(by.x is not None and by.x.uid == op.c.uid for by in look.of_mode(graph, _P.GELU_FWD))


def _leaky_product(graph: Graph) -> bool:
    """A ReLU with a clip or a slope right after a matmul."""
    op = look.the_matmul(graph)
    return op is not None and any(
        by.x is not None
        and by.x.uid == op.c.uid
        and bool(by.relu_lower_clip or by.relu_lower_clip_slope or by.relu_upper_clip is not None)
        for by in look.of_mode(graph, _P.RELU_FWD)
    )


def _product_beside_copy(graph: Graph) -> bool:
    """A matmul, and an elementwise operation that reads both what it gives and an IDENTITY of that."""
    op = look.the_matmul(graph)
    copies = {by.y.uid for by in look.of_mode(graph, _P.IDENTITY) if op and by.x and by.y and by.x.uid == op.c.uid}
    read = ({tensor.uid for tensor in by.inputs().values()} for by in graph.ops if isinstance(by, Pointwise))
    return op is not None and any(op.c.uid in uids and copies & uids for uids in read)


def _two_dims_turned(graph: Graph) -> bool:
    """A matrix that an elementwise operation writes, column-major."""
    return _two_dims(graph) and any(
        tensor.rank == 2 and tensor.dims[1] > 1 != tensor.strides[1] for tensor in graph.outputs
    )


def _row_times_gaps(graph: Graph) -> bool:
    """A matmul whose first operand has one row, and whose second has gaps."""
    op = look.the_matmul(graph)
    return op is not None and op.a.dims[-2] == 1 and not op.b.virtual and look.has_gaps(op.b)


def _eight_bits_by_product(graph: Graph) -> bool:
    """A result of 8-bit floats of elementwise operations after a matmul or a convolution."""
    product = any(look.matmuls(graph)) or any(look.convolutions(graph))
    return product and any(
        isinstance(op, Pointwise) and tensor.data_type in FP8_TYPES and not tensor.virtual
        for op in graph.ops
        for tensor in op.outputs().values()
    )


# What they are shown with


def _activation(dims: tuple[int, ...], strides: tuple[int, ...] | None = None) -> Graph:
    g, like = GraphBuilder("activation"), strides or packed_strides(dims)
    g.pointwise(_P.RELU_FWD, g.tensor("x", dims, strides=like), name="y", virtual=False, strides=like)
    return g.graph()


def _sum(dims: tuple[int, ...], bias: tuple[int, ...], strides: Sequence[int] | None = None) -> Graph:
    g = GraphBuilder("sum")
    b = g.tensor("bias", bias, strides=packed_strides(bias) if strides is None else tuple(strides))
    g.pointwise(_P.ADD, g.tensor("x", dims), b, name="y", virtual=False)
    return g.graph()


def _index(axis: int) -> Graph:
    g = GraphBuilder("index", io_type=_T.FLOAT)
    x = g.tensor("x", (4, 6, 8))
    g.pointwise(_P.ADD, g.pointwise(_P.GEN_INDEX, x, axis=axis), x, name="y", virtual=False)
    return g.graph()


def _summed(to: tuple[int, ...]) -> Graph:
    g = GraphBuilder("summed")
    x = g.tensor("x", (8, 2, 3, 8, 2), strides="channels_last")
    g.reduction(_R.ADD, x, to, name="y", virtual=False, data_type=_T.FLOAT, strides=channels_last(to))
    return g.graph()


def _leaky(**numbers: float) -> Graph:
    """Return a matmul and a ReLU, with a clip, a slope or without."""
    g = GraphBuilder("leaky", io_type=_T.BFLOAT16)
    z = g.matmul(g.tensor("a", (2, 16, 128)), g.tensor("b", (2, 128, 8)))
    g.pointwise(_P.RELU_FWD, z, name="y", virtual=False, parameters=numbers)
    return g.graph()


def _product(
    kind: DataType, result: DataType, *, gelu: bool = False, rows: int = 16, strides: tuple[int, int, int] | None = None
) -> Graph:
    """Return a matmul into a type, with a GELU if wanted."""
    g, b = GraphBuilder("product", io_type=kind), (2, 128, 8)
    left, right = g.tensor("a", (2, rows, 128)), g.tensor("b", b, strides=strides or packed_strides(b))
    if gelu:
        g.pointwise(_P.GELU_FWD, g.matmul(left, right), name="y", virtual=False, data_type=result)
    else:
        g.matmul(left, right, name="y", virtual=False, data_type=result)
    return g.graph()


def _squared(*, copied: bool) -> Graph:
    """Return the larger of a column and the square of a matmul, which reads a copy of one factor if wanted."""
    g = GraphBuilder("squared", io_type=_T.BFLOAT16)
    z = g.matmul(g.tensor("a", (4, 64, 16)), g.tensor("b", (4, 16, 32)))
    square = g.pointwise(_P.MUL, g.pointwise(_P.IDENTITY, z) if copied else z, z)
    g.pointwise(_P.MAX, square, g.tensor("row", (4, 64, 1)), name="y", virtual=False)
    return g.graph()


def _scaled(kind: DataType) -> Graph:
    """Return a convolution times 1000, in a type."""
    g = GraphBuilder("scaled")
    x, w = (
        g.tensor(name, dims, strides="channels_last") for name, dims in (("x", (1, 32, 8, 8)), ("w", (32, 32, 1, 1)))
    )
    y = g.convolution(x, w)
    g.pointwise(_P.MUL, y, g.scalar(1000.0, rank=4), name="y", virtual=False, data_type=kind, strides=y.strides)
    return g.graph()


_BOTH = "measured with 9.19.0 and 9.28.0 on sm_90"
_SM = (90,)

RANDOM_ELEMENTWISE: tuple[Fault, ...] = (
    Fault(
        "elementwise-two-dims",
        what="elementwise operations that write a matrix of two dims with more than one row, alone or with reductions",
        effect="all rows are written over each other into the first",
        fix="describe the tensors with three dims, the first of them 1",
        source=_SOURCE,
        evidence="measured with 9.19.0 on sm_90: 26 of 26 random graphs; refused from 9.20.0 on",
        versions=Window(until=(9, 20, 0)),
        sm=_SM,
        engines=(1,),
        graph=_two_dims,
        reproductions={"": lambda: _activation((96, 24))},
        unlike=lambda: _activation((1, 96, 24)),
        cure=lambda: _activation((1, 96, 24)),
    ),
    Fault(
        "elementwise-two-dims-column-major",
        what="elementwise operations that write a matrix of two dims, column-major, alone or with reductions",
        effect="most of it is not written",
        fix="describe the tensors with three dims, the first of them 1, as they lie in memory",
        source=_SOURCE,
        evidence="measured with 9.28.0 on sm_90; row-major ones are refused from 9.20.0 on",
        sm=_SM,
        engines=(1,),
        graph=_two_dims_turned,
        reproductions={"": lambda: _activation((32, 24), (1, 32))},
        unlike=lambda: _activation((1, 24, 32)),
        cure=lambda: _activation((1, 24, 32)),
    ),
    Fault(
        "elementwise-broadcast-of-matrices",
        what="elementwise operations alone on tensors of three dims, one of them a row or a column for the whole batch",
        effect="memory behind that tensor is read for all but the first matrix of the batch: results are wrong",
        fix="repeat the row or column for each matrix of the batch",
        source=_SOURCE,
        evidence=f"{_BOTH}: 16 of 16 random graphs",
        sm=_SM,
        engines=(1,),
        graph=_one_for_a_batch,
        reproductions={"": lambda: _sum((16, 32, 24), (1, 1, 24))},
        unlike=lambda: _sum((16, 32, 24), (1, 32, 24)),
        cure=lambda: _sum((16, 32, 24), (16, 1, 24)),
    ),
    Fault(
        "elementwise-number-for-each-matrix",
        what="elementwise operations alone on tensors of three dims, one of them a number for each matrix of the batch",
        effect="the first number is taken for all matrices",
        fix="repeat the number for each row",
        source=_SOURCE,
        evidence=f"{_BOTH}: 9 of 9 random graphs",
        sm=_SM,
        engines=(1,),
        graph=_number_for_each,
        reproductions={"": lambda: _sum((4, 6, 8), (4, 1, 1))},
        unlike=lambda: _sum((4, 6, 8), (4, 6, 1)),
        cure=lambda: _sum((4, 6, 8), (4, 6, 1)),
    ),
    Fault(
        "elementwise-rows-with-strides",
        what="elementwise operations alone on tensors of three dims, one of them a row or column of each not packed",
        effect="it is read as if its elements followed each other: results are wrong",
        fix="pack the rows or columns",
        source=_SOURCE,
        evidence=f"{_BOTH}: 5 of 5 random graphs",
        sm=_SM,
        engines=(1,),
        graph=_part_with_strides,
        reproductions={
            "": lambda: _sum((4, 6, 8), (4, 1, 8), (16, 16, 1)),
            "columns": lambda: _sum((4, 6, 8), (4, 6, 1), (12, 2, 1)),
        },
        unlike=lambda: _sum((4, 6, 8), (4, 1, 8)),
        cure=lambda: _sum((4, 6, 8), (4, 1, 8)),
    ),
    Fault(
        "elementwise-columns-apart",
        what="elementwise operations alone on tensors of three dims whose last does not lie together in memory",
        effect="elements are read and written in other places",
        fix="order the dims as they lie in memory",
        source=_SOURCE,
        evidence=f"{_BOTH}: 2 of 2 random graphs",
        sm=_SM,
        engines=(1,),
        graph=_last_axis_apart,
        reproductions={"": lambda: _activation((4, 6, 8), (1, 32, 4))},
        unlike=lambda: _activation((4, 6, 8), (8, 32, 1)),
        cure=lambda: _activation((6, 8, 4)),
    ),
    Fault(
        "elementwise-channels-slowest",
        what="elementwise operations alone on images that are written with the channels slowest in memory",
        effect="elements are read and written in other places, memory behind them too, or an address is misaligned",
        fix="order the dims as they lie in memory",
        source=_SOURCE,
        evidence=f"{_BOTH}: 5 of 5 random graphs; with the batch fastest, and between channels and rows",
        sm=_SM,
        engines=(1,),
        graph=_batch_is_not_slowest,
        reproductions={"": lambda: _activation((8, 2, 2, 4), (1, 64, 32, 8))},
        unlike=lambda: _activation((8, 2, 2, 4), (16, 1, 8, 2)),
        cure=lambda: _activation((2, 8, 2, 4), (64, 1, 32, 8)),
    ),
    Fault(
        "index-of-matrices",
        what="the index along the first of three dims, in a graph of elementwise operations",
        effect="it is 0 everywhere",
        fix="describe the tensors with a first dim of 1 more",
        source=_SOURCE,
        evidence=_BOTH,
        sm=_SM,
        engines=(1,),
        graph=_index_of_matrices,
        reproductions={"": lambda: _index(0)},
        unlike=lambda: _index(1),
        cure=lambda: _index(1),
    ),
    Fault(
        "reduction-of-five-dims",
        what="a reduction of five dims that takes the last one as it takes the channels, and not the others",
        effect="results are wrong, and memory behind them is overwritten",
        fix="reduce in two steps",
        source=_SOURCE,
        evidence=f"{_BOTH}: sums and maxima; of four dims such reductions are refused",
        sm=_SM,
        engines=(1,),
        graph=_channels_and_columns,
        reproductions={"": lambda: _summed((8, 1, 3, 8, 1)), "others": lambda: _summed((1, 2, 1, 1, 2))},
        unlike=lambda: _summed((8, 1, 3, 8, 2)),
        cure=lambda: _summed((8, 1, 3, 8, 2)),
    ),
    Fault(
        "matmul-of-float32-in-tf32",
        what="a matmul of float32 by engine 0",
        effect="operands are rounded to TF32, and no numerical note of the engine says so",
        fix="take another engine, and read its notes",
        source=_SOURCE,
        evidence="measured with 9.19.0 on sm_90: 10 of 10 random graphs with numbers that TF32 does not hold",
        sm=_SM,
        engines=(0,),
        graph=_float_product,
        depends_on="the engine",
        reproductions={"": lambda: _product(_T.FLOAT, _T.FLOAT)},
        unlike=lambda: _product(_T.HALF, _T.FLOAT),
        cure=lambda: _product(_T.HALF, _T.FLOAT),
    ),
    Fault(
        "matmul-of-float32-into-half",
        what="a matmul alone of float32 into 16 bits by engine 0",
        effect="it writes 32 bits for each element: results are wrong, and memory behind them is overwritten",
        fix="take another engine, or write float32",
        source=_SOURCE,
        evidence="measured with 9.19.0 on sm_90: float16 and bfloat16",
        sm=_SM,
        engines=(0,),
        graph=_float_into_half,
        depends_on="the engine",
        reproductions={
            "": lambda: _product(_T.FLOAT, _T.HALF),
            "bfloat16": lambda: _product(_T.FLOAT, _T.BFLOAT16),
        },
        unlike=lambda: _product(_T.HALF, _T.HALF),
        cure=lambda: _product(_T.HALF, _T.HALF),
    ),
    Fault(
        "matmul-gelu-by-tanh",
        what="a GELU right after a matmul by engine 0",
        effect="it is the approximation by tanh, off by up to 5e-4",
        fix="take another engine",
        source=_SOURCE,
        evidence="measured with 9.19.0 on sm_90: float16, bfloat16 and float32; GELU_APPROX_TANH_FWD gives the same",
        sm=_SM,
        engines=(0,),
        graph=_gelu_of_product,
        depends_on="the engine",
        reproductions={"": lambda: _product(_T.HALF, _T.HALF, gelu=True)},
        unlike=lambda: _product(_T.HALF, _T.HALF),
        cure=lambda: _product(_T.HALF, _T.HALF),
    ),
    Fault(
        "matmul-relu-without-slope",
        what="a ReLU with a clip, lower or upper, or a slope right after a matmul by engine 0",
        effect="it is a ReLU without them: 0 below 0, and as it is above",
        fix="take another engine",
        source=_SOURCE,
        evidence="measured with 9.19.0 on sm_90, each of the three",
        sm=_SM,
        engines=(0,),
        graph=_leaky_product,
        depends_on="the engine",
        reproductions={
            "": lambda: _leaky(relu_lower_clip_slope=0.1),
            "upper": lambda: _leaky(relu_upper_clip=0.5),
            "lower": lambda: _leaky(relu_lower_clip=0.25),
        },
        unlike=_leaky,
        cure=_leaky,
    ),
    Fault(
        "matmul-beside-its-copy",
        what="a matmul, and an elementwise operation that reads both its result and an IDENTITY of that",
        effect="engines 4 and 7 read something else for one of the two: results are wrong, or NaN",
        fix="leave the IDENTITY out, or use 9.28.0 or later",
        source=_SOURCE,
        evidence=(
            "measured with 9.19.0 on sm_90, bfloat16: MUL, ADD, MAX and SUB, alone and before a maximum with a column, "
            "16 of 16 plans; an ABS instead of the IDENTITY is right, 16 of 16, and 9.28.0, 16 of 16; the versions "
            "between were not measured"
        ),
        versions=Window(until=(9, 28, 0)),
        sm=_SM,
        engines=(4, 7),
        graph=_product_beside_copy,
        reproductions={"": lambda: _squared(copied=True)},
        unlike=lambda: _squared(copied=False),
        cure=lambda: _squared(copied=False),
    ),
    Fault(
        "matmul-of-one-row-with-gaps",
        what="a matmul whose first operand has one row, and whose second has gaps",
        effect="engine 8, and 2 where rows are not aligned, read the second operand as if it had none",
        fix="take another engine, or pack the second operand",
        source=_SOURCE,
        evidence="measured with 9.28.0 on sm_90: 14 of 15 graphs; 9.19.0 is right and has no engine 8, 9.21.0 has one",
        versions=Window(since=(9, 21, 0)),
        sm=_SM,
        engines=(8, 2),
        graph=_row_times_gaps,
        depends_on="the engine",
        reproductions={"": lambda: _product(_T.HALF, _T.HALF, rows=1, strides=(1280, 1, 160))},
        unlike=lambda: _product(_T.HALF, _T.HALF, rows=2, strides=(1280, 1, 160)),
        cure=lambda: _product(_T.HALF, _T.HALF, rows=1, strides=(1024, 1, 128)),
    ),
    Fault(
        "fp8-not-held",
        what="a result of 8-bit floats after a convolution by engine 8",
        effect="numbers beyond the largest become NaN, and infinity in FP8_E5M2, and are not held at the largest",
        fix="take another engine, or write 16 bits",
        source=_SOURCE,
        evidence="measured with 9.28.0 on sm_90; engines 2, 4 and 7 hold them",
        versions=Window(since=(9, 21, 0)),
        sm=_SM,
        engines=(8,),
        graph=_eight_bits_by_product,
        depends_on="the engine, and numbers beyond the largest",
        reproductions={"": lambda: _scaled(_T.FP8_E4M3)},
        unlike=lambda: _scaled(_T.BFLOAT16),
        cure=lambda: _scaled(_T.BFLOAT16),
    ),
)
