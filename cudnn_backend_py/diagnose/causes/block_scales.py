"""Causes in block scales: an architecture without them, and scales with the dims of other blocks."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from ...errors import CudnnBackendError
from ...graph.data_types import get_data_type_word
from ...graph.ir import BLOCK_SCALES, Graph, Operation
from ...plans.engine import OperationGraph
from ...rewrite.changes import Change, iterate_changes
from ...rewrite.changes.change import yield_field_change
from ...rewrite.changes.layout import align_tensors_to_element_size
from ...rewrite.changes.types import change_scale_types
from ...rewrite.unusual.blocks import find_packed_strides_of_block_scales
from ...target import Target
from ..verdict import Basis, Cause
from .case import RefusalCase, describe_found_and_needed_values
from .registry import format_supporting_targets_remedy

__all__ = ["FIRST_SM_WITH_BLOCK_SCALES", "explain_block_scale", "explain_scale_dims", "has_block_scales"]

# Whose tensor cores multiply numbers with block scales, as the guides of PTX and cuBLAS say.
FIRST_SM_WITH_BLOCK_SCALES = 100


def has_block_scales(graph: Graph) -> bool:
    """Return whether an operation quantizes or dequantizes with block scales."""
    return any(op.kind in BLOCK_SCALES for op in graph.ops)


def explain_block_scale(case: RefusalCase) -> Cause | None:
    """Block scales, or their order in memory, on an architecture without them.

    Problem
        "Unsupported node in the graph", "TF32 data type is not supported", or a cuBLASLt handle that is not to be had.
    Evidence
        The same graph on other architectures, and with scales in plain order.
    Remedy
        One of those, or plain order.
    Since
        Block scales: Blackwell, cuDNN 9.7.
    """
    if case.target.sm >= FIRST_SM_WITH_BLOCK_SCALES or not has_block_scales(case.graph):
        return None
    others, change = case.supporting_architectures, None
    if not others and (change := next(change_scale_types(case.graph), None)) is not None:
        others = dataclasses.replace(case, graph=change.graph).supporting_architectures
    if not others:
        return None
    how = "as it is" if change is None else f"with {change.title}"
    support = f"{', '.join(others)} support{'s' if len(others) == 1 else ''} the graph"
    remedy, judged = format_supporting_targets_remedy(others), "the same graph was judged there"
    if change is not None:
        judged, remedy = f"the graph {how} was judged there", f"{change.title} ({change.effect}), and {remedy}"
    if (plain := case.find_remedy("reordering")) is not None:
        names, _, orders = plain.title.partition(": reordering ")
        headline = f"{names} in {orders.partition(' ->')[0]} order: not supported on sm_{case.target.sm}"
        headline += f", in plain order they are; {support} {how}"
        judged = f"the graph was judged with scales in plain order; {judged}"
        return Cause("layout", headline, Basis.MEASURED, judged, f"{plain.advice}; or {remedy}")
    scaled = [op for op in case.graph.ops if op.kind in BLOCK_SCALES and isinstance(op, Operation)]
    tensors = [op.fields[port] for op in scaled for port in ("x", "y")]
    kinds = dict.fromkeys(get_data_type_word(tensor.data_type) for tensor in tensors if not tensor.virtual)
    names = ", ".join(dict.fromkeys(op.display_name() for op in scaled))
    headline = f"block-scaled {', '.join(kinds)} ({names}) is not supported on sm_{case.target.sm}"
    headline += f"; {support}{'' if change is None else f' {how}'}"
    return Cause("architecture", headline, Basis.MEASURED, judged, remedy)


def explain_scale_dims(case: RefusalCase) -> Cause | None:
    """Block scales have other dims or strides than the blocks of their tensor, so cuDNN refuses the operation graph.

    Problem
        ``x_dim[1] > x_scale_dim[1] && x_dim[2] > x_scale_dim[2]``; "must be tightly packed".
    Evidence
        With the dims or strides of the blocks cuDNN accepts the operation graph, whether an engine supports it or not.
    Remedy
        Those dims or strides.
    Since
        9.14.
    """
    if not case.measure or not has_block_scales(case.graph) or _is_operation_graph_accepted(case.graph, case.target):
        return None
    changes = (*iterate_changes(case.graph, ("dims",)), *_pack_block_scales(case.graph))
    change = next((one for one in changes if len(one.graphs) == 1), None)
    if change is None:
        return None
    headline, remedy = describe_found_and_needed_values(case.graph, change), change.advice
    if not _is_operation_graph_accepted(change.graph, case.target):
        aligned = next(align_tensors_to_element_size(change.graph), None)
        if aligned is None or not _is_operation_graph_accepted(aligned.graph, case.target):
            return None
        headline += f"; and also {describe_found_and_needed_values(change.graph, aligned)}"
        remedy += f"; and {aligned.advice}"
    if case.passes_support_check(change.graph):
        return Cause("shape", headline, Basis.MEASURED, "with only this changed, cuDNN supports the graph", remedy)
    detail = "so cuDNN accepts the operation graph; whether an engine supports it was not asked"
    return Cause("shape", headline, Basis.MEASURED, detail, remedy, "not asked")


def _pack_block_scales(graph: Graph) -> Iterator[Change]:
    """Yield the graph with packed strides for block scales that have others."""
    packed = {scale.uid: strides for scale, strides in find_packed_strides_of_block_scales(graph)}
    wrong = [tensor for tensor in graph.tensors if packed.get(tensor.uid, tensor.strides) != tensor.strides]
    if wrong:
        title = ", ".join(f"{one.name} {list(one.strides)} -> {list(packed[one.uid])}" for one in wrong)
        yield from yield_field_change(
            "layout", f"strides of {title}", "exact", graph, wrong, strides=lambda tensor: packed[tensor.uid]
        )


def _is_operation_graph_accepted(graph: Graph, target: Target) -> bool:
    """Return whether cuDNN accepts a graph as an operation graph, for which engines can be listed."""
    try:
        OperationGraph(graph, target)
    except CudnnBackendError:
        return False
    return True
