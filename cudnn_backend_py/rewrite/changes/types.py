"""Changes of data types: of tensors in memory, of virtual tensors, and of computation."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from functools import partial

from ...generated.enums import DataType, DescriptorType, PointwiseMode, ReduceTensorOp
from ...generated.operations import CONVOLUTIONS
from ...graph.data_types import DATA_TYPES, FP8_TYPES, HALF_TYPES, get_data_type_word
from ...graph.ir import BLOCK_SCALES, Graph, Matmul, Op, Operation, Pointwise, Reduction, Tensor
from ...graph.replace import (
    bypass_ops,
    drop_operation_fields,
    iterate_all_ops,
    keep_only_ops,
    replace_tensors,
    try_to_make_graph,
)
from ..unusual.deviation import is_logical_operation
from .change import (
    ATTENTION,
    Change,
    Effect,
    find_tensors_in_memory,
    find_written_uids,
    join_names,
    register_change_maker,
    yield_change,
    yield_field_change,
    yield_narrowable_changes,
)

_D, _P, _R, _T = DescriptorType, PointwiseMode, ReduceTensorOp, DataType
_FLOATS = (_T.FLOAT, _T.DOUBLE, *HALF_TYPES, *FP8_TYPES)
_BYTES = (_T.INT8, _T.UINT8)  # integers of other types are often indices, lengths or seeds
_INTEGERS = (*_BYTES, _T.INT32, _T.INT64)


@register_change_maker("data_type")
def _change_data_types(graph: Graph) -> Iterator[Change]:
    """Yield the graph with another data type for the tensors in memory of one type, or for one of a rare type."""
    memory, operands = find_tensors_in_memory(graph), _find_operands_requiring_equal_types(graph)
    yield from _compute_integers_in_int32(graph)
    yield from change_scale_types(graph)
    yield from _change_to_most_frequent_type(graph, memory)
    forms = _list_forms_without_fp8_scales(graph) if any(t.data_type in FP8_TYPES for t in memory) else []
    for old, facts in DATA_TYPES.items():
        groups = _group_tensors_to_change_from_type(graph, memory, old) if facts.others else []
        for new in facts.others:
            effect: Effect = "exact" if {old, new} == {_T.INT32, _T.INT64} else "changes numerics"
            for group in groups:
                chosen = _add_virtual_tensors_of_same_type(graph, group, old, new)
                given = forms if old in FP8_TYPES else [("", graph)]
                make = partial(_change_types_of_tensors, given, old, new, effect)
                yield from yield_narrowable_changes(make, chosen, operands)


def _change_types_of_tensors(
    forms: list[tuple[str, Graph]], old: DataType, new: DataType, effect: Effect, chosen: list[Tensor]
) -> Iterator[Change]:
    """Yield the forms of a graph with these tensors of another type."""
    title = f"{join_names(chosen)}: {get_data_type_word(old)} -> {get_data_type_word(new)}"
    for without, graph in forms:
        computes = old is _T.DOUBLE and any(_find_compute_type(op) is old for op in graph.ops)
        said = f"{title}{', and computation, too' if computes else ''}{without}"
        yield from yield_change("data_type", said, effect, chosen, partial(_change_type, graph, chosen, old, new))


def _list_forms_without_fp8_scales(graph: Graph) -> list[tuple[str, Graph]]:
    """Return the graph and what is left without the scales that only 8-bit floats need, with the words for that.

    Not the graph itself where operations take scales with 8-bit floats alone, and of attention.
    """
    unscaled = try_to_make_graph(lambda: _drop_fp8_scales(graph)) or graph
    kept = {tensor.uid for tensor in unscaled.tensors}
    dropped = [tensor for tensor in find_tensors_in_memory(graph) if tensor.uid not in kept]
    if not dropped:
        return [("", graph)]
    needs_8_bits = any(op.kind in (*BLOCK_SCALES, *ATTENTION) for op in graph.ops)
    is_attention = sum(isinstance(op, Matmul) for op in graph.ops) > 1
    own = [] if needs_8_bits or is_attention else [("", graph)]
    return [*own, (f", without {join_names(dropped)}", unscaled)]


def _group_tensors_to_change_from_type(graph: Graph, memory: list[Tensor], old: DataType) -> list[list[Tensor]]:
    """Return groups of tensors of this type that change together, such as all large ones, or each tensor alone."""
    scales = {op.fields["scale"].uid for op in graph.ops if isinstance(op, Operation) and op.kind in BLOCK_SCALES}
    same = [tensor for tensor in memory if tensor.data_type is old and tensor.uid not in scales]
    if not same:
        return []
    if old in (_T.INT32, _T.INT64):
        inputs = ((port, t) for op in iterate_all_ops(graph) for port, t in op.inputs().items())
        random = {t.uid for port, t in inputs if "seed" in port or "offset" in port}
        offsets = {t.ragged_offset.uid for t in memory if t.ragged_offset is not None}
        chosen = [[t for t in same if t.uid in random], [t for t in same if t.uid in offsets]]
        groups = [*(group for group in chosen if group), same]
    else:
        written, operands = find_written_uids(graph), _find_operands_requiring_equal_types(graph)
        big = [tensor for tensor in same if tensor.uid in operands or not _is_scalar_or_per_row_float32(tensor)]
        groups = [[t for t in big if t.uid in operands], big]
        groups += [[t for t in big if t.uid not in written], [t for t in big if t.uid in written]]
        groups += [[t] for t in (big if old is _T.FLOAT else same) if t.uid not in operands]
    unique: dict[tuple[int, ...], list[Tensor]] = {}
    for group in filter(None, groups):
        unique.setdefault(tuple(tensor.uid for tensor in group), group)
    return list(unique.values())


def _find_operands_requiring_equal_types(graph: Graph) -> set[int]:
    """Return the uids of operands that must have equal types: of matmuls, convolutions and attention."""
    found: set[int] = set()
    for op in graph.ops:
        if isinstance(op, Matmul):
            found |= {op.a.uid, op.b.uid}
        elif op.kind in CONVOLUTIONS or op.kind in ATTENTION:
            found |= {tensor.uid for port, tensor in op.inputs().items() if port in _MULTIPLIED}
    return found


_MULTIPLIED = {"x", "w", "dy", "q", "k", "v", "d_o"}


def _is_scalar_or_per_row_float32(tensor: Tensor) -> bool:
    """Return whether a tensor is a scalar or has one number per row; such tensors stay float32."""
    return tensor.data_type is _T.FLOAT and (math.prod(tensor.dims) == 1 or (tensor.rank > 2 and tensor.dims[-1] == 1))


def _change_to_most_frequent_type(graph: Graph, memory: list[Tensor]) -> Iterator[Change]:
    """Yield the graph where tensors of a rarer floating-point type, or integer operands, get the most frequent one."""
    operands = _find_operands_requiring_equal_types(graph)
    floats = [
        tensor
        for tensor in memory
        if tensor.data_type in _FLOATS and (tensor.uid in operands or not _is_scalar_or_per_row_float32(tensor))
    ]
    counted = {kind: sum(t.data_type is kind for t in floats) for kind in {t.data_type for t in floats}}
    if not counted:
        return
    usual = max(counted, key=lambda kind: (counted[kind], kind))
    odd = [tensor for tensor in floats if tensor.data_type is not usual]
    odd += [t for t in memory if t.data_type in _BYTES or (t.uid in operands and t.data_type in _INTEGERS)]
    for chosen in [[tensor] for tensor in odd] + ([odd] if len(odd) > 1 else []):
        found = ", ".join(f"{t.name} {get_data_type_word(t.data_type)}" for t in chosen[:6])
        rest = {tensor.data_type for tensor in floats if tensor not in chosen}
        title = f"{found} -> {get_data_type_word(usual)}, as {'the others' if rest == {usual} else 'most others'}"
        yield from yield_field_change("data_type", title, "changes numerics", graph, chosen, data_type=usual)


def _add_virtual_tensors_of_same_type(graph: Graph, group: list[Tensor], old: DataType, new: DataType) -> list[Tensor]:
    """Return the group and, if it is all tensors in memory of type `old`, the virtual ones that must change too."""
    if len(group) < sum(
        t.data_type is old and not _is_scalar_or_per_row_float32(t) for t in find_tensors_in_memory(graph)
    ):
        return group
    virtual = [t for t in graph.tensors if t.virtual and t.data_type is old and old is not _T.FLOAT]
    if old is _T.FLOAT and new in HALF_TYPES:
        virtual += [t for op in graph.ops if isinstance(op, Matmul) for t in (op.a, op.b) if t.virtual]
    return [*group, *virtual]


def _change_type(graph: Graph, chosen: list[Tensor], old: DataType, new: DataType) -> Graph | None:
    if old is _T.DOUBLE:
        graph = Graph(tuple(_set_compute_type(op, _T.DOUBLE, _T.FLOAT) for op in graph.ops), graph.name)
    kept = {tensor.uid: tensor for tensor in graph.tensors}
    changed = {t.uid: dataclasses.replace(kept[t.uid], data_type=new) for t in chosen if t.uid in kept}
    return replace_tensors(graph, changed)


def _drop_fp8_scales(graph: Graph) -> Graph:
    """Return the graph without the scale factors, block scales and amax outputs that only 8-bit floats need."""
    leave: dict[int, Tensor] = {}
    ops: list[Op] = []
    for op in graph.ops:
        if op.kind is _D.OPERATION_BLOCK_SCALE_DEQUANTIZE:
            leave[id(op)] = op.inputs()["x"]
        scales = isinstance(op, Pointwise) and op.mode is _P.MUL and op.b is not None and _is_device_scalar(op.b)
        if scales and isinstance(op, Pointwise) and op.x is not None:
            leave[id(op)] = op.x
        if isinstance(op, Operation) and op.kind in ATTENTION:
            op = drop_operation_fields(
                op, [name for name in op.fields if name.startswith(("descale", "scale_", "amax"))]
            )
        if not (isinstance(op, Reduction) and op.operator is _R.AMAX):
            ops.append(op)
    plain = keep_only_ops(graph, ops)
    return (bypass_ops(plain, leave) or plain) if leave else plain


def _is_device_scalar(tensor: Tensor) -> bool:
    return not tensor.virtual and not tensor.by_value and math.prod(tensor.dims) == 1


@register_change_maker("intermediate_type")
def _change_intermediate_types(graph: Graph) -> Iterator[Change]:
    """Yield the graph with another type for virtual tensors and for computation."""
    yield from _match_operand_types(graph)
    yield from _store_virtual_numbers_in_float(graph)
    if doubles := [t for t in graph.tensors if t.virtual and t.data_type is _T.DOUBLE]:
        title = f"virtual tensor{'s' if doubles[1:] else ''} {join_names(doubles)}: float64 -> float32"
        yield from yield_field_change(
            "intermediate_type", title, "changes numerics", graph, doubles, data_type=_T.FLOAT
        )
    virtual = [t for t in graph.tensors if t.virtual and t.data_type in (_T.FLOAT, *HALF_TYPES)]
    for new in (_T.FLOAT, *HALF_TYPES):
        chosen = [tensor for tensor in virtual if tensor.data_type is not new]
        title = f"virtual tensors {join_names(chosen)} -> {get_data_type_word(new)}"
        yield from yield_field_change("intermediate_type", title, "changes numerics", graph, chosen, data_type=new)
        for tensor in chosen if new is _T.FLOAT and len(chosen) > 1 else ():
            title = f"virtual tensor {tensor.name}: {get_data_type_word(tensor.data_type)} -> {get_data_type_word(new)}"
            yield from yield_field_change(
                "intermediate_type", title, "changes numerics", graph, [tensor], data_type=new
            )
    yield from _change_compute_types(graph)


def _store_virtual_numbers_in_float(graph: Graph) -> Iterator[Change]:
    """Yield the graph where a virtual integer, boolean or 8-bit tensor computed from floating-point ones is float32."""
    for op in graph.ops:
        inputs = [tensor for tensor in op.inputs().values() if tensor.data_type in _FLOATS]
        kinds = (*_INTEGERS, *FP8_TYPES, *(() if is_logical_operation(op) else (_T.BOOLEAN,)))
        for tensor in op.outputs().values() if inputs else ():
            if tensor.virtual and tensor.data_type in kinds:
                title = f"virtual tensor {tensor.name}: {get_data_type_word(tensor.data_type)} -> float32"
                fields = {"data_type": _T.FLOAT}
                yield from yield_field_change("intermediate_type", title, "changes numerics", graph, [tensor], **fields)


def _match_operand_types(graph: Graph) -> Iterator[Change]:
    """Yield the graph where a matmul's virtual operand gets the data type of the matmul's other operand."""
    for op in graph.ops:
        if not isinstance(op, Matmul) or op.a.data_type is op.b.data_type:
            continue
        for one, other in ((op.a, op.b), (op.b, op.a)):
            if one.virtual:
                new = get_data_type_word(other.data_type)
                title = (
                    f"virtual tensor {one.name}: {get_data_type_word(one.data_type)} -> {new}, the type of {other.name}"
                )
                fields = {"data_type": other.data_type}
                yield from yield_field_change("intermediate_type", title, "changes numerics", graph, [one], **fields)


def _change_compute_types(graph: Graph) -> Iterator[Change]:
    """Yield the graph computed in float32 instead of half, double or (in comparisons) boolean."""
    new = _T.FLOAT
    for old in sorted((*HALF_TYPES, _T.DOUBLE, _T.BOOLEAN)):
        found = [
            op for op in graph.ops if _find_compute_type(op) is old and (old is not _T.BOOLEAN or _is_comparison(op))
        ]
        if not found:
            continue
        title = f"computation in {get_data_type_word(old)} -> {get_data_type_word(new)}"
        ids = {id(op) for op in found}
        ops = tuple(_set_compute_type(op, old, new) if id(op) in ids else op for op in graph.ops)
        yield from yield_change(
            "intermediate_type",
            f"{found[0].name}: {title}" if len(found) == 1 else title,
            "changes numerics",
            (),
            lambda ops=ops: Graph(ops, graph.name),  # type: ignore[misc]
        )


def _is_comparison(op: Op) -> bool:
    return isinstance(op, Pointwise) and op.mode.name.startswith("CMP_")


def _compute_integers_in_int32(graph: Graph) -> Iterator[Change]:
    """Yield the graph with products of 8-bit integers computed in int32."""
    for old in (_T.FLOAT, _T.INT8):
        chosen = [op for op in graph.ops if _find_compute_type(op) is old and _is_integer_product(op)]
        if not chosen:
            continue
        factors = [tensor for op in chosen for tensor in op.inputs().values()]
        title = f"{join_names(factors)} are int8 and computed in {get_data_type_word(old)} -> computed in int32"
        ids = {id(op) for op in chosen}
        ops = tuple(_set_compute_type(op, old, _T.INT32) if id(op) in ids else op for op in graph.ops)
        yield from yield_change("data_type", title, "exact", (), lambda ops=ops: Graph(ops, graph.name))  # type: ignore[misc]


_SCALE_TYPES = {32: _T.FP8_E8M0, 16: _T.FP8_E4M3}  # of MXFP8 and NVFP4, by the size of their blocks


def change_scale_types(graph: Graph) -> Iterator[Change]:
    """Yield the graph with block scales of the standard type for their block size (32: E8M0, 16: E4M3)."""
    wrong: dict[DataType, list[Tensor]] = {}
    for op in graph.ops:
        if isinstance(op, Operation) and op.kind in BLOCK_SCALES:
            sizes, scale = op.fields.get("block_size", ()), op.fields["scale"]
            new = _SCALE_TYPES.get(max(sizes, default=0) if isinstance(sizes, tuple) else sizes)
            if new is not None and scale.data_type is not new:
                wrong.setdefault(new, []).append(scale)
    for new, scales in wrong.items():
        found = ", ".join(f"{t.name} {get_data_type_word(t.data_type)}" for t in scales)
        title = f"block scales {found} -> {get_data_type_word(new)}"
        yield from yield_field_change("data_type", title, "changes numerics", graph, scales, data_type=new)


def _is_integer_product(op: Op) -> bool:
    multiplies = isinstance(op, Matmul) or op.kind in CONVOLUTIONS
    return multiplies and all(tensor.data_type in (_T.INT8, _T.UINT8) for tensor in op.inputs().values())


def _find_compute_type(op: Op) -> DataType | None:
    if isinstance(op, Operation):
        convolution = op.fields.get("convolution")
        return None if convolution is None else convolution.fields.get("comp_type")
    return getattr(op, "compute_type", None)


def _set_compute_type(op: Op, old: DataType, new: DataType) -> Op:
    if _find_compute_type(op) is not old:
        return op
    if not isinstance(op, Operation):
        return dataclasses.replace(op, compute_type=new)  # type: ignore[type-var]
    convolution = op.fields["convolution"]
    changed = type(convolution)(convolution.kind, {**convolution.fields, "comp_type": new})
    return Operation(op.type, op.name, {**op.fields, "convolution": changed})
