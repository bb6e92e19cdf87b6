"""Known issues of graphs of pointwise operations and reductions."""

from __future__ import annotations

import math
from collections.abc import Iterator

from ..generated.enums import DataType, PointwiseMode
from ..graph.attention.known_issue import KnownIssue
from ..graph.ir import Graph, Pointwise, Reduction, Tensor
from ..graph.strides import is_row_major
from ..system.version import VersionRange
from . import graph_queries
from .sources import MEASURED_ON_GPU, MEASURED_WITHOUT_GPU, ON_SM90

__all__ = ["POINTWISE"]


def _is_pointwise_graph_of_rank(graph: Graph, rank: int) -> bool:
    """Return whether a graph has pointwise operations only, and only tensors of this rank in memory."""
    return all(isinstance(op, Pointwise) for op in graph.ops) and all(
        tensor.rank == rank for tensor in graph_queries.iterate_tensors_in_memory(graph)
    )


def _writes_matrix(graph: Graph) -> bool:
    """Whether a graph of pointwise operations and reductions writes a matrix of several rows."""
    written = {op.y.uid: op.y for op in graph.ops if isinstance(op, Pointwise) and op.y is not None}
    written |= {op.dx.uid: op.dx for op in graph.ops if isinstance(op, Pointwise) and op.dx is not None}
    return all(isinstance(op, (Pointwise, Reduction)) for op in graph.ops) and any(
        tensor.rank == 2 and tensor.dims[0] > 1 and not tensor.virtual for tensor in written.values()
    )


def _find_broadcast_operands(graph: Graph) -> Iterator[Tensor]:
    """Yield the broadcast inputs of a pointwise graph on batches of matrices, except single numbers."""
    whole = max((tensor.dims for tensor in graph.outputs), default=(1,))
    if _is_pointwise_graph_of_rank(graph, 3) and whole[0] > 1:
        yield from (
            tensor
            for tensor in graph_queries.iterate_tensors_in_memory(graph)
            if tensor.dims != whole and math.prod(tensor.dims) > 1
        )


_64_BIT_TYPES = (DataType.DOUBLE, DataType.INT64)


def _reads_64_bits_to_compute_in_float32(graph: Graph) -> bool:
    """Whether pointwise operations alone read float64 or int64 from memory and compute in float32."""
    ops = [op for op in graph.ops if isinstance(op, Pointwise)]
    return len(ops) == len(graph.ops) and any(
        op.compute_type is DataType.FLOAT and tensor.data_type in _64_BIT_TYPES and not tensor.virtual
        for op in ops
        for tensor in op.inputs().values()
    )


def _has_virtual_booleans_of_odd_width(graph: Graph) -> bool:
    """Whether pointwise operations alone have a virtual boolean tensor of a contiguous dim that is no multiple of 4."""
    return all(isinstance(op, Pointwise) for op in graph.ops) and any(
        tensor.virtual
        and tensor.data_type is DataType.BOOLEAN
        and any(dim > 1 and stride == 1 and dim % 4 for dim, stride in zip(tensor.dims, tensor.strides, strict=True))
        for tensor in graph.tensors
    )


def _has_row_or_column_shared_by_batch(graph: Graph) -> bool:
    """Whether pointwise operations on batches of matrices read one row or column for the whole batch."""
    return any(part.dims[0] == 1 and 1 in part.dims[1:] for part in _find_broadcast_operands(graph))


def _reads_one_scalar_per_matrix(graph: Graph) -> bool:
    """Whether pointwise operations on batches of matrices read one number per matrix."""
    return any(part.dims[0] > 1 == part.dims[1] == part.dims[2] for part in _find_broadcast_operands(graph))


def _has_strided_row_or_column(graph: Graph) -> bool:
    """Whether pointwise operations on batches of matrices read a row or column per matrix that is not row-major."""
    return any(
        part.dims[0] > 1 < math.prod(part.dims[1:]) and 1 in part.dims[1:] and not is_row_major(part.dims, part.strides)
        for part in _find_broadcast_operands(graph)
    )


def _has_non_contiguous_columns(graph: Graph) -> bool:
    """Whether pointwise operations on batches of matrices have columns that are not contiguous in memory."""
    return _is_pointwise_graph_of_rank(graph, 3) and any(
        tensor.dims[0] > 1 < tensor.dims[2] and tensor.strides[2] != 1
        for tensor in graph_queries.iterate_tensors_in_memory(graph)
    )


def _has_gen_index_along_batch_of_matrices(graph: Graph) -> bool:
    """Whether a pointwise graph generates the index along the first of three dims."""
    return all(isinstance(op, Pointwise) for op in graph.ops) and any(
        op.axis == 0 and op.x is not None and op.x.rank == 3 and op.x.dims[0] > 1
        for op in graph_queries.find_pointwise_of_mode(graph, PointwiseMode.GEN_INDEX)
    )


def _writes_images_with_channels_slowest(graph: Graph) -> bool:
    """Whether pointwise operations write images with the channels slowest in memory."""
    return all(isinstance(op, Pointwise) for op in graph.ops) and any(
        tensor.rank > 3 and min(tensor.dims[:2]) > 1 and tensor.strides[1] == max(tensor.strides)
        for tensor in graph.outputs
    )


def _reduces_channels_and_columns_alike(graph: Graph) -> bool:
    """Whether a reduction of five dims treats dims 1 and 4 alike, and dims 0, 2 and 3 differently."""
    return any(_reduces_last_dim_like_channels(op) for op in graph.ops if isinstance(op, Reduction) and op.x.rank == 5)


def _reduces_last_dim_like_channels(op: Reduction) -> bool:
    gone = [before != after for before, after in zip(op.x.dims, op.y.dims, strict=True)]
    return op.x.dims[1] > 1 < op.x.dims[4] and gone[1] == gone[4] and gone[1] not in (gone[0], gone[2], gone[3])


def _writes_column_major_matrix(graph: Graph) -> bool:
    """Whether a pointwise operation writes a matrix that is not row-major."""
    return _writes_matrix(graph) and any(
        tensor.rank == 2 and tensor.dims[1] > 1 != tensor.strides[1] for tensor in graph.outputs
    )


POINTWISE: tuple[KnownIssue, ...] = (
    KnownIssue(
        "elementwise-64-bits",
        what="elementwise operations alone that read float64 or int64 and compute in float32",
        effect="engine configs pass their support check, and no plan of them compiles",
        fix="give the operations float32 or int32",
        source=MEASURED_WITHOUT_GPU,
        evidence=(
            "measured deviceless with 9.14.0, 9.19.0 and 9.28.0 on sm_75, sm_80, sm_90 and sm_100: one operation and "
            "two, into 64 and 32 bits; float32 into 64 bits builds"
        ),
        graph=_reads_64_bits_to_compute_in_float32,
        step="build",
    ),
    KnownIssue(
        "elementwise-booleans",
        what="elementwise operations alone with a virtual boolean tensor of a contiguous dim that is no multiple of 4",
        effect="engine configs pass their support check, and no plan of them compiles",
        fix="make the dim a multiple of 4, or the virtual tensor float32",
        source=MEASURED_WITHOUT_GPU,
        evidence=(
            "measured deviceless with 9.14.0, 9.19.0, 9.24.0 and 9.28.0 on sm_80, sm_90 and sm_120: 2, 3, 5, 6, "
            "7 and 10; 4, 8, 12, 16 and 32 build, and any after a matmul"
        ),
        graph=_has_virtual_booleans_of_odd_width,
        step="build",
    ),
    KnownIssue(
        "elementwise-two-dims",
        what="elementwise operations that write a matrix of two dims with more than one row, alone or with reductions",
        effect="all rows are written over each other into the first",
        fix="describe the tensors with three dims, the first of them 1",
        source=MEASURED_ON_GPU,
        evidence="measured with 9.19.0 on sm_90: 26 of 26 random graphs; refused from 9.20.0 on",
        versions=VersionRange(until=(9, 20, 0)),
        sm=(90,),
        engines=(1,),
        graph=_writes_matrix,
    ),
    KnownIssue(
        "elementwise-two-dims-column-major",
        what="elementwise operations that write a matrix of two dims, column-major, alone or with reductions",
        effect="most of it is not written",
        fix="describe the tensors with three dims, the first of them 1, as they are in memory",
        source=MEASURED_ON_GPU,
        evidence="measured with 9.28.0 on sm_90; row-major ones are refused from 9.20.0 on",
        sm=(90,),
        engines=(1,),
        graph=_writes_column_major_matrix,
    ),
    KnownIssue(
        "elementwise-broadcast-of-matrices",
        what="elementwise operations alone on tensors of three dims, one of them a row or a column for the whole batch",
        effect="memory after that tensor is read for all but the first matrix of the batch: results are wrong",
        fix="repeat the row or column for each matrix of the batch",
        source=MEASURED_ON_GPU,
        evidence=f"{ON_SM90}: 16 of 16 random graphs",
        sm=(90,),
        engines=(1,),
        graph=_has_row_or_column_shared_by_batch,
    ),
    KnownIssue(
        "elementwise-number-for-each-matrix",
        what="elementwise operations alone on tensors of three dims, one of them a number for each matrix of the batch",
        effect="the first number is taken for all matrices",
        fix="repeat the number for each row",
        source=MEASURED_ON_GPU,
        evidence=f"{ON_SM90}: 9 of 9 random graphs",
        sm=(90,),
        engines=(1,),
        graph=_reads_one_scalar_per_matrix,
    ),
    KnownIssue(
        "elementwise-rows-with-strides",
        what="elementwise operations alone on tensors of three dims, one of them a row or column of each not packed",
        effect="it is read as if its elements followed each other: results are wrong",
        fix="pack the rows or columns",
        source=MEASURED_ON_GPU,
        evidence=f"{ON_SM90}: 5 of 5 random graphs",
        sm=(90,),
        engines=(1,),
        graph=_has_strided_row_or_column,
    ),
    KnownIssue(
        "elementwise-columns-apart",
        what="elementwise operations alone on tensors of three dims, the last not contiguous in memory",
        effect="elements are read and written in other places",
        fix="order the dims as they are in memory",
        source=MEASURED_ON_GPU,
        evidence=f"{ON_SM90}: 2 of 2 random graphs",
        sm=(90,),
        engines=(1,),
        graph=_has_non_contiguous_columns,
    ),
    KnownIssue(
        "elementwise-channels-slowest",
        what="elementwise operations alone on images that are written with the channels slowest in memory",
        effect="elements are read and written in other places, memory after them too, or an address is misaligned",
        fix="order the dims as they are in memory",
        source=MEASURED_ON_GPU,
        evidence=f"{ON_SM90}: 5 of 5 random graphs; with the batch fastest, and between channels and rows",
        sm=(90,),
        engines=(1,),
        graph=_writes_images_with_channels_slowest,
    ),
    KnownIssue(
        "index-of-matrices",
        what="the index along the first of three dims, in a graph of elementwise operations",
        effect="it is 0 everywhere",
        fix="describe the tensors with a first dim of 1 more",
        source=MEASURED_ON_GPU,
        evidence=ON_SM90,
        sm=(90,),
        engines=(1,),
        graph=_has_gen_index_along_batch_of_matrices,
    ),
    KnownIssue(
        "reduction-of-five-dims",
        what="a reduction of five dims that takes the last one as it takes the channels, and not the others",
        effect="results are wrong, and memory after them is overwritten",
        fix="reduce in two steps",
        source=MEASURED_ON_GPU,
        evidence=f"{ON_SM90}: sums and maxima; of four dims such reductions are refused",
        sm=(90,),
        engines=(1,),
        graph=_reduces_channels_and_columns_alike,
    ),
)
