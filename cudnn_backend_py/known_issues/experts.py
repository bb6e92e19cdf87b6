"""Known issues of grouped matrix multiplication of experts (MoE)."""

from __future__ import annotations

from ..generated.enums import DataType, DescriptorType, MoeGroupedMatmulMode
from ..graph.attention.known_issue import KnownIssue
from ..graph.data_types import FP8_TYPES
from ..graph.ir import Graph
from ..system.version import VersionRange
from . import graph_queries
from .crashes import get_crash_versions, make_crash_predicate
from .sources import MEASURED_ON_GPU, MEASURED_WITHOUT_GPU

__all__ = ["EXPERTS"]


def _has_gather_by_32_bit_indices(graph: Graph) -> bool:
    """Whether an expert matmul gathers its rows by 32-bit indices."""
    experts = graph_queries.find_operations_of_kind(graph, DescriptorType.OPERATION_MOE_GROUPED_MATMUL)
    return any(
        op.fields["mode"] is MoeGroupedMatmulMode.GATHER and op.fields["token_index"].data_type is DataType.INT32
        for op in experts
    )


def _has_fp8_expert_matmul(graph: Graph) -> bool:
    """Whether an expert matmul reads tokens in 8-bit floats."""
    experts = graph_queries.find_operations_of_kind(graph, DescriptorType.OPERATION_MOE_GROUPED_MATMUL)
    return any(op.fields["token"].data_type in FP8_TYPES for op in experts)


def _has_operand_after_expert_matmul(graph: Graph) -> bool:
    """Whether an expert matmul is followed by an operand in memory other than one number per row."""
    experts = graph_queries.find_operations_of_kind(graph, DescriptorType.OPERATION_MOE_GROUPED_MATMUL)
    return any(
        not (operand.virtual or operand.by_value) and not operand.dims[1] > operand.dims[2] == 1
        for op in graph_queries.find_dependent_pointwise(graph, (one.fields["output"] for one in experts))
        for operand in op.inputs().values()
        if operand.rank == 3
    )


def _has_scatter_mode_expert_matmul(graph: Graph) -> bool:
    """Whether an expert matmul scatters its rows."""
    experts = graph_queries.find_operations_of_kind(graph, DescriptorType.OPERATION_MOE_GROUPED_MATMUL)
    return any(op.fields["mode"] is MoeGroupedMatmulMode.SCATTER for op in experts)


EXPERTS: tuple[KnownIssue, ...] = (
    KnownIssue(
        "moe-gather-32-bits",
        what="a grouped matmul of experts that gathers its rows by INT32 indices",
        effect="the indices are read as 64 bits each: an illegal address, or the rows of other tokens",
        fix="use INT64 indices, or 9.21.0 or later",
        source=MEASURED_ON_GPU,
        evidence="measured with 9.19.0 on sm_90; kernels of 9.18.0 and 9.20.0 read 64 bits too, those of 9.21.0 do not",
        versions=VersionRange(since=(9, 18, 0), until=(9, 21, 0)),
        graph=_has_gather_by_32_bit_indices,
    ),
    KnownIssue(
        "moe-matmul-fp8",
        what="a grouped matmul of experts in 8-bit floats",
        effect="only the first group is computed, the others stay zero",
        fix="use 9.21.0 or later",
        source="https://github.com/flashinfer-ai/flashinfer/issues/3792",
        sm=(120,),
        versions=VersionRange(since=(9, 18, 0), until=(9, 21, 0)),
        graph=_has_fp8_expert_matmul,
    ),
    KnownIssue(
        "experts-and-matmul",
        what="a matmul of experts, and another matmul in the same graph",
        effect="the process ends by a segmentation fault while engines are chosen",
        fix="move the other matmul to a separate graph",
        source=MEASURED_WITHOUT_GPU,
        evidence="measured deviceless with 9.18.0 to 9.28.0 on sm_90: before it, after it, and after an activation",
        versions=get_crash_versions("experts-and-matmul"),
        graph=make_crash_predicate("experts-and-matmul"),
        step="check",
    ),
    KnownIssue(
        "experts-operand",
        what="a matmul of experts, and an elementwise operation after it with an operand of columns or of one element",
        effect="engine 7 reads other elements of it, or memory after it: results are wrong or NaN",
        fix="take engine 4, which 9.28.0 proposes first, or leave the operation to a graph of its own",
        source=MEASURED_ON_GPU,
        evidence=(
            "measured on sm_90: with 9.19.0 operands [1, 1, n], [1, rows, n] and [1, 1, 1]; with 9.28.0 the second of "
            "them; numbers by value and [1, rows, 1] are right"
        ),
        versions=VersionRange(since=(9, 18, 0)),
        sm=(90,),
        engines=(7,),
        graph=_has_operand_after_expert_matmul,
    ),
    KnownIssue(
        "experts-scatter",
        what="a matmul of experts that scatters its rows",
        effect=(
            "where the places of an expert's rows are not in order, only the first 8 of a tile go where they should: "
            "the others stay unwritten, and memory after the result is written"
        ),
        fix="scatter the rows in a kernel of your own",
        source=MEASURED_ON_GPU,
        evidence="measured with 9.28.0 on sm_90; 9.21.0 is the first to take it there; in order, and 8 rows, are right",
        versions=VersionRange(since=(9, 21, 0)),
        sm=(90,),
        depends_on="token_index",
        graph=_has_scatter_mode_expert_matmul,
    ),
)
