"""Unusual operations: extra ones next to a product or a norm, and intermediate tensors stored in memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ...generated.enums import DescriptorType, PointwiseMode
from ...generated.operations import CONVOLUTIONS
from ...graph.data_types import get_data_type_word
from ...graph.ir import Graph, Op, Pointwise, Tensor
from ...graph.replace import bypass_ops, can_bypass_op, keep_only_ops, replace_tensors_in_ops
from ..relations import NORMS
from .deviation import OTHER_RESULTS, Deviation, find_tensors_in_memory, get_operation_key, set_tensor_fields
from .types import FINALIZED

__all__ = ["MAIN_OPERATIONS", "find_operations_except_main_one", "find_stored_intermediates"]

_D = DescriptorType


def find_stored_intermediates(graph: Graph) -> Iterator[Deviation]:
    """Yield tensors in memory that one operation writes and another reads."""
    written = {tensor.uid for op in graph.ops for tensor in op.outputs().values()}
    read = {tensor.uid: op for op in graph.ops for tensor in op.inputs().values()}
    makers = {tensor.uid: op for op in graph.ops for tensor in op.outputs().values()}
    for tensor in find_tensors_in_memory(graph):
        if tensor.uid in written and tensor.uid in read and tensor.ragged_offset is None:
            yield Deviation(
                f"memory {tensor.uid}",
                "memory",
                f"{tensor.name} is in memory, between {makers[tensor.uid].name} and {read[tensor.uid].name}",
                "virtual",
                f"{tensor.name}: in memory -> virtual (no one outside reads it)",
                "exact" if tensor.scratch else "idea",
                (tensor.name,),
                lambda g, uid=tensor.uid: set_tensor_fields(g, uid, virtual=True, scratch=False),  # type: ignore[misc]
            )


#: Operations that a graph has one of, with pointwise operations and reductions before and after it.
MAIN_OPERATIONS = (
    *CONVOLUTIONS,
    *NORMS,
    _D.OPERATION_MATMUL,
    _D.OPERATION_RESAMPLE_FWD,
    _D.OPERATION_RESAMPLE_BWD,
    _D.OPERATION_MOE_GROUPED_MATMUL,
    _D.OPERATION_MOE_GROUPED_MATMUL_BWD,
    *FINALIZED,
)


def format_operation_kind(op: Op) -> str:
    """Return the kind of an operation, such as "pointwise mul"."""
    return f"pointwise {op.display_name()}" if isinstance(op, Pointwise) else op.display_name()


def format_operation_removal(op: Op, *, is_bypassed: bool) -> str:
    """Return the text for removing an operation from a graph, with the effect of this on the result.

    Bypassed, an operation passes on an input instead. Then the caller can do the first operation of a graph before it
    and the last one after it, but none in the middle.
    """
    if is_bypassed and is_copy(op):
        return f"without the operation {op.name} ({format_operation_kind(op)}), which only copies"
    is_first = not any(tensor.virtual for tensor in op.inputs().values())
    is_last = not any(tensor.virtual for tensor in op.outputs().values())
    if is_first or is_last:
        effect = "which is done outside" + (_format_type_of_result_without(op) if is_bypassed and is_last else "")
    else:
        effect = OTHER_RESULTS if is_bypassed else "which is done outside, like its inputs"
    return f"without the operation {op.name} ({format_operation_kind(op)}), {effect}"


def _format_type_of_result_without(op: Op) -> str:
    """Return text to append where the graph without its last operation writes that one's input in another type."""
    result = next(iter(op.outputs().values()))
    given = next((one for one in op.inputs().values() if one.virtual and one.dims == result.dims), result)
    other = given.data_type is not result.data_type
    return f", with {given.name} written as {get_data_type_word(result.data_type)}" if other else ""


def is_copy(op: Op) -> bool:
    """Return whether an operation is an IDENTITY into the same type and dims."""
    if not isinstance(op, Pointwise) or op.mode is not PointwiseMode.IDENTITY or op.x is None or op.y is None:
        return False
    return op.x.data_type is op.y.data_type and op.x.dims == op.y.dims


def find_operations_except_main_one(graph: Graph) -> Iterator[Deviation]:
    """Yield, as unusual, each operation except the graph's main one (such as a matmul, convolution or norm)."""
    scaled = _D.OPERATION_BLOCK_SCALE_DEQUANTIZE  # no product reads such numbers without
    main = next((op for op in graph.ops if op.kind in MAIN_OPERATIONS), graph.ops[0])
    for op in reversed(graph.ops):
        if op is main or op.kind is scaled:
            continue
        passed = _find_input_replacing_result(op)
        is_bypassed = passed is not None and can_bypass_op(graph, op, passed)
        yield Deviation(
            f"operation {get_operation_key(op)}",
            "operation",
            f"operation {op.name} ({format_operation_kind(op)})",
            "",
            format_operation_removal(op, is_bypassed=is_bypassed),
            "exact" if is_bypassed and is_copy(op) else "idea",
            (op.name,),
            lambda g, op=op: _remove_operation(g, get_operation_key(op)),  # type: ignore[misc]
        )


def _remove_operation(graph: Graph, key: int) -> Graph | None:
    """Return the graph without an operation: bypassed, or done by the caller before or after the graph."""
    op = next((one for one in graph.ops if get_operation_key(one) == key), None)
    if op is None or len(graph.ops) == 1:
        return graph
    if (passed := _bypass_operation(graph, op)) is not None:
        return passed
    outputs = list(op.outputs().values())
    read = {tensor.uid for one in graph.ops for tensor in one.inputs().values()}
    is_last = not any(tensor.uid in read for tensor in outputs)
    shared = [t for t in op.inputs().values() if t.virtual] if is_last else outputs
    new = {tensor.uid: replace(tensor, virtual=False) for tensor in shared}
    rest = tuple(one for one in graph.ops if one is not op)
    return keep_only_ops(graph, replace_tensors_in_ops(rest, new))


def _bypass_operation(graph: Graph, op: Op) -> Graph | None:
    """Return the graph where an operation's input replaces its output; None if no input fits."""
    passed = _find_input_replacing_result(op)
    return None if passed is None else bypass_ops(graph, {id(op): passed})


def _find_input_replacing_result(op: Op) -> Tensor | None:
    """Return an input of an operation with the dims of its only result, preferably a virtual one."""
    outputs = list(op.outputs().values())
    same = [tensor for tensor in op.inputs().values() if tensor.dims == outputs[0].dims and not tensor.by_value]
    return next((tensor for tensor in same if tensor.virtual), same[0]) if len(outputs) == 1 and same else None
