"""Unusual block scales: block sizes, types, orders or dims outside of the standard formats."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from ...generated.enums import (
    DataType,
    DescriptorType,
    TensorReordering,
)
from ...graph.data_types import FP8_TYPES, get_data_type_word
from ...graph.ir import BLOCK_SCALES, Graph, Matmul, Op, Operation, Tensor
from ...graph.replace import make_packed_tensor, replace_tensors_in_ops
from ...graph.strides import make_strides_in_order
from .deviation import (
    Deviation,
    find_tensors_computed_from_operation_kind,
    make_unusual_dims_property,
    make_unusual_property_of_tensors,
    set_tensor_fields,
)

__all__ = [
    "find_block_scales",
    "find_packed_strides_of_block_scales",
    "find_unusual_block_scales",
    "find_unusual_tensor_reorderings",
    "find_usual_block_scaled_type",
    "get_field_name_of_block_scaled_tensor",
]

_D, _T = DescriptorType, DataType


def find_packed_strides_of_block_scales(graph: Graph) -> Iterator[tuple[Tensor, tuple[int, ...]]]:
    """Yield each F8_128x4 block scale of a matmul, with the packed strides that kernels expect."""
    of_product = _find_matmul_scale_operations(graph)
    for op, scale, axis in find_block_scales(graph):
        if scale.reordering is TensorReordering.F8_128x4 and id(op) in of_product:
            rest = [one for one in range(scale.rank - 1, -1, -1) if one != axis]
            yield scale, make_strides_in_order(scale.dims, [axis, *rest])


def _find_matmul_scale_operations(graph: Graph) -> set[int]:
    """Return the ids of block scaling operations that produce a matmul's input or follow a matmul."""
    ops = [op for op, *_ in find_block_scales(graph)]
    read = {side.uid for one in graph.ops if isinstance(one, Matmul) for side in (one.a, one.b)} if ops else set()
    made = find_tensors_computed_from_operation_kind(graph, Matmul) if ops else set()
    return {id(op) for op in ops if op.fields["y"].uid in read or any(t.uid in made for t in op.inputs().values())}


def find_block_scales(graph: Graph) -> Iterator[tuple[Operation, Tensor, int]]:
    """Yield each operation with block scales, its tensor of scales, and the axis that is divided into blocks."""
    for op in graph.ops:
        if not isinstance(op, Operation) or op.kind not in BLOCK_SCALES:
            continue
        x, scale, sizes = op.fields["x"], op.fields["scale"], op.fields.get("block_size", 1)
        if scale.rank != x.rank:
            continue
        if isinstance(sizes, tuple):
            axes = [axis for axis, size in enumerate(sizes[-x.rank :], x.rank - min(len(sizes), x.rank)) if size > 1]
        else:
            axes = [axis for axis in range(x.rank) if scale.dims[axis] != x.dims[axis]]
            exact = [axis for axis in axes if scale.dims[axis] * sizes == x.dims[axis]]
            axes = exact if len(exact) == 1 else axes
        if len(axes) == 1:
            yield op, scale, axes[0]


# Elements of a block and type of its scale, by the types that the format has them for: NVFP4 and MXFP8.
_FORMATS = (((_T.FP4_E2M1,), (16, _T.FP8_E4M3)), (FP8_TYPES, (32, _T.FP8_E8M0)))


def _get_standard_block_scale_format(kind: DataType | None) -> tuple[int, DataType] | None:
    return next((facts for kinds, facts in _FORMATS if kind in kinds), None)


def get_field_name_of_block_scaled_tensor(op: Op) -> str:
    """Return the port (field name) of the block-scaled, low-precision tensor of an operation."""
    return "x" if op.kind is _D.OPERATION_BLOCK_SCALE_DEQUANTIZE else "y"


def find_usual_block_scaled_type(graph: Graph) -> DataType | None:
    """Return the most frequent standard type of block-scaled tensors; else the type that matches the scales."""
    ops = [op for op in graph.ops if op.kind in BLOCK_SCALES]
    small = [dict(op.ports())[get_field_name_of_block_scaled_tensor(op)] for op in ops]
    known = [tensor for tensor in small if _get_standard_block_scale_format(tensor.data_type)]
    kinds = Counter(tensor.data_type for tensor in known)
    if kinds and (len(kinds) == 1 or kinds.most_common(2)[0][1] > kinds.most_common(2)[1][1]):
        return kinds.most_common(1)[0][0]
    scales = {dict(op.ports())["scale"].data_type for op in ops}
    fitting = (kinds[0] for kinds, (_, scale) in _FORMATS if scales == {scale})
    return next(fitting, None)


def find_unusual_block_scales(graph: Graph) -> Iterator[Deviation]:
    """Yield block scales outside of the formats MXFP8 and NVFP4: block sizes, types, orders or dims."""
    usual, of_product = find_usual_block_scaled_type(graph), _find_matmul_scale_operations(graph)
    wrong: dict[tuple[DataType, DataType], list[Tensor]] = {}
    for op, scale, axis in find_block_scales(graph):
        x, y = op.fields["x"], op.fields["y"]
        small = op.fields[get_field_name_of_block_scaled_tensor(op)]
        size, kind = _get_standard_block_scale_format(usual) or (0, scale.data_type)
        sizes = op.fields.get("block_size", 0)
        block = max(sizes, default=0) if isinstance(sizes, tuple) else sizes
        name, type_text = small.name, get_data_type_word(small.data_type)
        if size and block != size:
            yield Deviation(
                f"blocks {small.uid}",
                "parameter",
                f"{name} of {type_text} has block scales for {block} elements each",
                f"{size}",
                f"{name}: blocks of {block} -> {size} elements",
                "changes numerics",
                (name, scale.name, op.name),
                lambda g, uid=y.uid, old=block, new=size, at=axis: _set_block_size(g, uid, old, new, at),  # type: ignore[misc]
            )
        if scale.data_type is not kind:
            wrong.setdefault((scale.data_type, kind), []).append(scale)
        order = TensorReordering.F8_128x4 if id(op) in of_product else TensorReordering.NONE
        if scale.reordering is not order:
            yield Deviation(
                f"order {scale.uid}",
                "order",
                f"block scales {scale.name} have reordering {scale.reordering.name}",
                order.name,
                f"{scale.name}: reordering {scale.reordering.name} -> {order.name}, scales in another order in memory",
                "idea",
                (scale.name,),
                lambda g, uid=scale.uid, new=order: set_tensor_fields(g, uid, reordering=new),  # type: ignore[misc]
            )
        wide = x if small is y else small
        dims = tuple(-(-dim // block) if at == axis and block else dim for at, dim in enumerate(wide.dims))
        if scale.reordering is order is TensorReordering.F8_128x4:
            tile = {axis: 4, **{at: 128 for at in range(x.rank - 2, x.rank) if at != axis}}
            dims = tuple(-(-dim // tile.get(at, 1)) * tile.get(at, 1) for at, dim in enumerate(dims))
        if scale.dims != dims and size == block:
            rest = [one for one in range(scale.rank - 1, -1, -1) if one != axis]
            inner = make_strides_in_order(dims, [axis, *rest]) if order is TensorReordering.F8_128x4 else None
            why = f"as {small.name} {list(small.dims)} in blocks of {block} needs"
            yield make_unusual_dims_property(scale, dims, why, "idea", inner)
    for (old, kind), scales in wrong.items():
        uid, words = scales[0].uid, (get_data_type_word(old), get_data_type_word(kind))
        yield make_unusual_property_of_tensors(
            scales, f"type {uid}", "data type", *words, "changes numerics", data_type=kind
        )


def _set_block_size(graph: Graph, uid: int, old: int, new: int, axis: int) -> Graph:
    """Return the graph with another block size for the operation that writes `uid`."""
    ops, scales = [], {}
    for op in graph.ops:
        if isinstance(op, Operation) and op.kind in BLOCK_SCALES and op.fields["y"].uid == uid:
            sizes, scale = op.fields["block_size"], op.fields["scale"]
            changed = tuple(new if one == old else one for one in sizes) if isinstance(sizes, tuple) else new
            op = Operation(op.type, op.name, {**op.fields, "block_size": changed})
            size = -(-scale.dims[axis] * old // new)
            dims = tuple(size if at == axis else dim for at, dim in enumerate(scale.dims))
            scales[scale.uid] = make_packed_tensor(scale, dims)
        ops.append(op)
    return Graph(replace_tensors_in_ops(tuple(ops), scales), graph.name)


def find_unusual_tensor_reorderings(graph: Graph) -> Iterator[Deviation]:
    """Yield tensors with a reordering (order of elements) that only block scales should have."""
    scales = {scale.uid for _, scale, _ in find_block_scales(graph)}
    for tensor in graph.tensors:
        if tensor.reordering is not TensorReordering.NONE and tensor.uid not in scales:
            yield Deviation(
                f"order {tensor.uid}",
                "order",
                f"{tensor.name} has reordering {tensor.reordering.name}",
                "NONE",
                f"{tensor.name}: reordering {tensor.reordering.name} -> NONE, elements in another order in memory",
                "exact" if tensor.virtual else "idea",
                (tensor.name,),
                lambda g, uid=tensor.uid: set_tensor_fields(g, uid, reordering=TensorReordering.NONE),  # type: ignore[misc]
            )
