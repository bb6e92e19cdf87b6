"""Equivalent graphs with reshaped tensors: merged axes, lengths, biases, padded images. Pure functions."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterator

from ..generated.enums import (
    DataType,
    DescriptorType,
    PointwiseMode,
    ReduceTensorOp,
    ResampleMode,
    TensorReordering,
)
from ..generated.operations import CONVOLUTIONS
from ..graph.ir import BLOCK_SCALES, Graph, Matmul, Op, Operation, Parameters, Pointwise, Reduction, Tensor
from ..graph.replace import (
    iterate_all_ops,
    iterate_unused_uids,
    make_packed_tensor,
    replace_tensors,
    replace_tensors_in_ops,
)
from ..graph.shapes import compute_scale_dims
from ..graph.strides import channels_last, is_row_major, packed_strides
from .relations import Dims, find_dim_relation, name_operation_in_errors

__all__ = [
    "add_batch_dim",
    "add_missing_norm_tensors",
    "add_spatial_dim",
    "compute_dims_with_more_channels_per_group",
    "compute_input_by_matmul",
    "compute_scale_dims_of_blocks",
    "find_broadcast_biases",
    "find_corrected_dims",
    "find_equivalent_view",
    "find_length_and_offset_dims_to_set",
    "insert_relu_before",
    "insert_unary_operation_before",
    "merge_leading_axes",
    "pad_image",
    "reshape_rows_to_matrix",
    "set_convolution_dims",
    "set_dims",
]

_D, _P, _R = DescriptorType, PointwiseMode, ReduceTensorOp
_ATTENTION = (_D.OPERATION_SDPA_FWD, _D.OPERATION_SDPA_BWD)
_MATRIX = 2
_RANK = 4  # of attention
_CONTRACTED = 128  # a size of K that all kernels take


# leading axes


def merge_leading_axes(graph: Graph, rank: int) -> tuple[Graph, list[Tensor]] | None:
    """Merge leading axes so that tensors have `rank` dims; return the graph and the tensors that need a copy.

    An input that is broadcast along some of these axes, and not along others, is repeated in its copy. None where there
    are no more axes than that, where a result has other leading dims, or an operation gives its axes a meaning.
    """
    ranks = {tensor.rank for tensor in graph.tensors}
    if len(ranks) != 1 or min(ranks) <= rank:
        return None
    if any(
        not isinstance(op, Matmul | Pointwise | Reduction) and op.kind is not _D.OPERATION_SOFTMAX for op in graph.ops
    ):
        return None
    gone = min(ranks) - rank
    whole = next(tensor for op in graph.ops for tensor in op.outputs().values()).dims[: gone + 1]
    written = {tensor.uid for op in graph.ops for tensor in op.outputs().values()}
    new, copied = {}, []
    for tensor in graph.tensors:
        leading = tensor.dims[: gone + 1]
        repeated = leading != whole and math.prod(leading) > 1
        broadcast = all(one in (1, dim) for one, dim in zip(leading, whole, strict=True))
        if repeated and (tensor.uid in written or not broadcast):
            return None
        strides = None if repeated else _merge_strides_of_leading_axes(tensor, gone)
        dims = (math.prod(whole if repeated else leading), *tensor.dims[gone + 1 :])
        new[tensor.uid] = dataclasses.replace(tensor, dims=dims, strides=strides or packed_strides(dims))
        if strides is None and not tensor.virtual:
            copied.append(tensor)
    return Graph(tuple(_replace_tensors_and_shift_axis(op, new, gone) for op in graph.ops), graph.name), copied


def _merge_strides_of_leading_axes(tensor: Tensor, gone: int) -> tuple[int, ...] | None:
    """Return strides with the leading axes merged; None if impossible or if the tensor is virtual."""
    leading = zip(tensor.dims[: gone + 1], tensor.strides, strict=False)
    steps = [(dim, stride) for dim, stride in leading if dim > 1] or [(1, tensor.strides[gone])]
    fits = all(outer[1] == inner[0] * inner[1] for outer, inner in itertools.pairwise(steps))
    return (steps[-1][1], *tensor.strides[gone + 1 :]) if fits and not tensor.virtual else None


def _replace_tensors_and_shift_axis(op: Op, new: dict[int, Tensor], gone: int) -> Op:
    if isinstance(op, Pointwise) and op.axis is not None:
        ports = {port: new[tensor.uid] for port, tensor in op.ports()}
        return dataclasses.replace(op, axis=max(0, op.axis - gone), **ports)  # type: ignore[arg-type]
    return replace_tensors_in_ops((op,), new)[0]


def add_batch_dim(graph: Graph) -> Graph | None:
    """Return a graph of matrices with a batch dim of 1 added, in the same memory; None for other graphs."""
    if any(tensor.rank != _MATRIX for tensor in graph.tensors):
        return None
    if any(not isinstance(op, Matmul | Pointwise | Reduction) for op in graph.ops):
        return None
    new = {
        tensor.uid: dataclasses.replace(tensor, dims=(1, *tensor.dims), strides=(tensor.span_elements, *tensor.strides))
        for tensor in graph.tensors
    }
    return Graph(tuple(_replace_tensors_and_shift_axis(op, new, -1) for op in graph.ops), graph.name)


_RESAMPLE = (_D.OPERATION_RESAMPLE_FWD, _D.OPERATION_RESAMPLE_BWD)


def add_spatial_dim(graph: Graph) -> Graph | None:
    """Return poolings or convolutions over one dim as ones over two, the first of size 1; None for other graphs.

    In the same memory.
    """
    windows = [op for op in graph.ops if isinstance(op, Operation) and op.kind in (*_RESAMPLE, *CONVOLUTIONS)]
    others = [op for op in graph.ops if op not in windows and not (isinstance(op, Pointwise) and op.axis is None)]
    if not windows or others or any(tensor.rank != _ONE_SPATIAL_DIM_RANK for tensor in graph.tensors):
        return None
    if any(_read_window(op).fields.get("mode") in (ResampleMode.BILINEAR, ResampleMode.NEAREST) for op in windows):
        return None
    new = {}
    for tensor in graph.tensors:
        (n, c, w), (step_n, step_c, step_w) = tensor.dims, tensor.strides
        strides = (step_n, step_c, w * step_w, step_w)
        new[tensor.uid] = dataclasses.replace(tensor, dims=(n, c, 1, w), strides=strides)
    ops = []
    for op in replace_tensors_in_ops(graph.ops, new):
        if isinstance(op, Operation):
            op = Operation(op.type, op.name, {**op.fields, _name_window(op): _add_dim_to_window(_read_window(op))})
        ops.append(op)
    return Graph(tuple(ops), graph.name)


_ONE_SPATIAL_DIM_RANK = 3  # batch, channels, and the dim


def _name_window(op: Operation) -> str:
    return "convolution" if op.kind in CONVOLUTIONS else "resample"


def _read_window(op: Operation) -> Parameters:
    window: Parameters = op.fields[_name_window(op)]
    return window


def _add_dim_to_window(window: Parameters) -> Parameters:
    """Return parameters of a pooling or convolution with a leading spatial dim, along which the window has size 1."""
    sizes = dict.fromkeys(("window_dims", "strides", "filter_strides", "dilations"), 1)
    neutral = {**sizes, "pre_paddings": 0, "post_paddings": 0}
    wider = {name: (value, *window.fields[name]) for name, value in neutral.items() if name in window.fields}
    return Parameters(window.kind, {**window.fields, **wider, "spatial_dims": 2})


def reshape_rows_to_matrix(graph: Graph) -> Iterator[Graph]:
    """Yield a reduction or broadcast of rows or columns with tensors as [rows, columns, 1, 1], in the same memory.

    Their strides are those of channels last. For graphs of pointwise operations and reductions with tensors
    that are row-major and have all or none of their first axes, and all or none of the others. Of tensors with equal
    dims only where they have one channel.
    """
    ops = [op for op in graph.ops if isinstance(op, Reduction) or (isinstance(op, Pointwise) and op.axis is None)]
    sizes = {tensor.dims for tensor in graph.tensors if math.prod(tensor.dims) > 1}
    reduces = any(isinstance(op, Reduction) for op in ops)
    if len(ops) < len(graph.ops) or (len(sizes) < 2 and not reduces and not has_one_channel(graph)):
        return
    ranks = {tensor.rank for tensor in graph.tensors}
    if len(ranks) != 1 or not all(is_row_major(t.dims, t.strides) for t in graph.tensors if not t.virtual):
        return
    whole = max((tensor.dims for tensor in graph.tensors), key=math.prod)
    for split in range(1, len(whole)):
        new = {tensor.uid: _view_as_matrix(tensor, whole, split) for tensor in graph.tensors}
        known = {uid: tensor for uid, tensor in new.items() if tensor is not None}
        if len(known) == len(new) and any(known[t.uid] != t for t in graph.tensors):
            yield replace_tensors(graph, known)
            return


def has_one_channel(graph: Graph) -> bool:
    """Return whether all tensors of several elements have size 1 in their second dim."""
    return all(tensor.dims[1:2] == (1,) for tensor in graph.tensors if max(tensor.dims) > 1)


def _view_as_matrix(tensor: Tensor, whole: tuple[int, ...], split: int) -> Tensor | None:
    """Return the tensor as [rows, columns, 1, 1]; None if it broadcasts along a part of the merged axes."""
    sides = ((tensor.dims[:split], whole[:split]), (tensor.dims[split:], whole[split:]))
    if any(own != full and math.prod(own) > 1 for own, full in sides):
        return None
    dims = (math.prod(tensor.dims[:split]), math.prod(tensor.dims[split:]), 1, 1)
    return dataclasses.replace(tensor, dims=dims, strides=channels_last(dims))


# lengths and offsets of sequences


def find_length_and_offset_dims_to_set(graph: Graph) -> dict[int, tuple[int, ...]]:
    """Return, by uid, the dims (n, 1, 1, 1) for sequence lengths and ragged offsets that have other dims."""
    found: dict[int, tuple[int, ...]] = {}
    for op in iterate_all_ops(graph):
        tensors = [tensor for port, tensor in op.inputs().items() if "seq_len" in port or port.endswith("_override")]
        tensors += [tensor.ragged_offset for _, tensor in op.ports() if tensor.ragged_offset is not None]
        for tensor in tensors:
            count = math.prod(tensor.dims)
            if tensor.dims != (count, 1, 1, 1) and max(tensor.dims) == count:
                found[tensor.uid] = (count, 1, 1, 1)
    return found


def set_dims(graph: Graph, dims: dict[int, tuple[int, ...]]) -> Graph:
    """Return the graph with the given dims, by uid; tensors of another rank become row-major."""
    new = {}
    for tensor in (
        tensor for op in iterate_all_ops(graph) for _, one in op.ports() for tensor in (one, one.ragged_offset)
    ):
        if tensor is None or tensor.uid not in dims:
            continue
        wanted = dims[tensor.uid]
        same = len(wanted) == tensor.rank
        plain = dataclasses.replace(tensor, dims=wanted, strides=packed_strides(wanted))
        new[tensor.uid] = make_packed_tensor(tensor, wanted) if same else plain
    return replace_tensors(graph, new)


# biases


def find_broadcast_biases(graph: Graph) -> Iterator[tuple[Tensor, tuple[int, ...], list[Tensor]]]:
    """Yield each broadcast bias, the dims of the scores it is added to, and the gradients with the bias's dims."""
    by_dims: dict[tuple[int, ...], list[Tensor]] = {}
    for tensor in _find_bias_gradients(graph):
        by_dims.setdefault(tensor.dims, []).append(tensor)
    for op in iterate_all_ops(graph):
        if not isinstance(op, Pointwise) or op.mode is not _P.ADD or op.x is None or op.b is None or op.y is None:
            continue
        for bias in (op.x, op.b):
            whole = op.y.dims
            if bias.virtual or bias.by_value or bias.dims == whole or bias.rank != 4 or math.prod(bias.dims) == 1:
                continue
            yield bias, whole, by_dims.get(bias.dims, [])


def _find_bias_gradients(graph: Graph) -> Iterator[Tensor]:
    """Yield the tensors in memory that may be gradients of biases: sums, or an attention operation's dbias."""
    for op in graph.ops:
        if isinstance(op, Reduction) and op.operator is _R.ADD and not op.y.virtual:
            yield op.y
        elif isinstance(op, Operation) and op.kind in _ATTENTION and "dbias" in op.fields:
            yield op.fields["dbias"]


# convolutions


def pad_image(graph: Graph, op: Operation) -> tuple[Operation, Tensor] | None:
    """Return a convolution without padding, and its enlarged image, which the caller pads in memory.

    None where it is padded the same on both sides, or its image is virtual or read elsewhere.
    """
    image = op.fields[CONVOLUTIONS[op.kind][0]]
    parameters = op.fields["convolution"]
    before, after = (tuple(parameters.fields.get(name, ())) for name in ("pre_paddings", "post_paddings"))
    if before == after or len(before) != len(after) or len(before) != image.rank - 2 or image.virtual:
        return None
    if sum(image.uid == tensor.uid for one in graph.users([image.uid]) for _, tensor in one.ports()) != 1:
        return None
    spatial = (dim + left + right for dim, left, right in zip(image.dims[2:], before, after, strict=True))
    none = (0,) * len(before)
    plain = Parameters(parameters.kind, {**parameters.fields, "pre_paddings": none, "post_paddings": none})
    larger = make_packed_tensor(image, (*image.dims[:2], *spatial))
    port = CONVOLUTIONS[op.kind][0]
    return Operation(op.type, op.name, {**op.fields, "convolution": plain, port: larger}), larger


# channels of groups


def compute_dims_with_more_channels_per_group(
    graph: Graph, op: Operation, per_group: int
) -> dict[int, tuple[int, ...]] | None:
    """Return, by uid, the new dims of tensors if a convolution gets more input channels per group.

    None where the convolution has no groups, or the same channels are read from its result.
    """
    image, weights, response = (op.fields[port] for port in CONVOLUTIONS[op.kind])
    if image.rank != weights.rank or image.rank < _RANK - 1:
        return None
    groups, rest = divmod(image.dims[1], weights.dims[1])
    if groups < 2 or rest:
        return None
    grown = {image.uid: image}
    waiting = [image]
    while waiting:  # as far as they reach
        for one in graph.users([waiting.pop().uid]):
            tensors = [t for _, t in one.ports() if t.rank == image.rank and t.dims[1] == image.dims[1]]
            if isinstance(one, Pointwise):
                new = [tensor for tensor in tensors if tensor.uid not in grown]
                grown.update({tensor.uid: tensor for tensor in new})
                waiting += new
    if response.uid in grown:
        return None
    dims = {uid: (t.dims[0], groups * per_group, *t.dims[2:]) for uid, t in grown.items()}
    dims[weights.uid] = (weights.dims[0], per_group, *weights.dims[2:])
    return dims


def set_convolution_dims(graph: Graph, dims: dict[int, tuple[int, ...]], image: Tensor) -> Graph:
    """Return the graph with the given dims, by uid, in channels-last order if the image has it."""
    wide = set_dims(graph, dims)
    if image.strides != channels_last(image.dims):  # one channel per group says nothing of the order
        return wide
    last = {t.uid: dataclasses.replace(t, strides=channels_last(t.dims)) for t in wide.tensors if t.uid in dims}
    return replace_tensors(wide, last)


# dims that follow from others


def find_corrected_dims(op: Op) -> dict[int, Dims]:
    """Return by uid the dims that an operation requires of its tensors, where they have other dims."""
    with name_operation_in_errors(op):
        found = find_dim_relation(op).compute_required_dims({tensor.uid: tensor.dims for _, tensor in op.ports()})
    tensors = {tensor.uid: tensor for _, tensor in op.ports()}
    fitting = {uid: dims for uid, dims in found.items() if len(dims) == tensors[uid].rank and min(dims) > 0}
    return {uid: dims for uid, dims in fitting.items() if dims != tensors[uid].dims}


def compute_scale_dims_of_blocks(graph: Graph, *, tiled: bool) -> dict[int, tuple[int, ...]]:
    """Return, by uid, the dims that block scales in F8_128x4 order should have, where they have others.

    Parameters
    ----------
    tiled
        Whether dims are rounded up to whole tiles, as that order needs; plain order has one scale for each block.
    """
    found = {}
    for op in graph.ops:
        if op.kind not in BLOCK_SCALES or not isinstance(op, Operation):
            continue
        x, scale = op.fields["x"], op.fields["scale"]
        if scale.reordering is not TensorReordering.F8_128x4 or scale.rank != x.rank:
            continue
        given = op.fields.get("block_size", 1)
        block = max(given, default=1) if isinstance(given, tuple) else given
        along = max(range(x.rank), key=lambda axis: x.dims[axis] / scale.dims[axis])  # blocks are along this axis
        if scale.dims[along] >= x.dims[along] or along < scale.rank - 2:
            continue
        dims = compute_scale_dims(x.dims, [block if axis == along else 1 for axis in range(x.rank)], tiled=tiled)
        if dims != scale.dims:
            found[scale.uid] = dims
    return found


# operations that only describe memory in another way


def find_equivalent_view(op: Operation) -> tuple[Tensor, int] | None:
    """Return a transpose's or slice's input as a strided view equal to the result, and the view's first element.

    Also from which of its elements on; None for other operations, or where the tensor is virtual.
    """
    fields = op.fields
    x, y = fields.get("x"), fields.get("y")
    if not (isinstance(x, Tensor) and isinstance(y, Tensor)) or x.virtual or x.by_value or not y.virtual:
        return None
    if op.kind is _D.OPERATION_TRANSPOSE:
        axes = fields["permutation"]
        dims, strides, start = tuple(x.dims[a] for a in axes), tuple(x.strides[a] for a in axes), 0
    elif op.kind is _D.OPERATION_SLICE:
        steps = fields.get("strides") or (1,) * x.rank
        strides = tuple(stride * step for stride, step in zip(x.strides, steps, strict=True))
        dims = y.dims
        start = sum(first * stride for first, stride in zip(fields["start_indices"], x.strides, strict=True))
    else:
        return None
    if dims != y.dims or x.data_type is not y.data_type:
        return None
    return dataclasses.replace(x, dims=dims, strides=strides), start


def insert_relu_before(graph: Graph, op: Op, image: Tensor) -> Graph:
    """Return the graph with a ReLU inserted between a tensor and one operation that reads it."""
    name = f"{image.name}_relu"
    made = dataclasses.replace(image, name=name, uid=next(iterate_unused_uids(graph)))
    return insert_unary_operation_before(graph, op, Pointwise(name=name, mode=_P.RELU_FWD, x=image, y=made))


def insert_unary_operation_before(graph: Graph, op: Op, new: Pointwise) -> Graph:
    """Return the graph with a unary operation inserted between a tensor and an operation reading it."""
    assert new.x is not None
    assert new.y is not None
    at = graph.ops.index(op)
    reading = replace_tensors_in_ops((op,), {new.x.uid: new.y})
    return Graph((*graph.ops[:at], new, *reading, *graph.ops[at + 1 :]), graph.name, graph.is_subgraph)


# operations and tensors that a graph lacks


def compute_input_by_matmul(graph: Graph, name: str) -> Graph | None:
    """Return the graph with an input as the virtual result of a matmul; None if the input is no stack of matrices."""
    x = graph.tensor(name)
    if x.rank != _MATRIX + 1 or x.by_value or x.virtual:
        return None
    batch, rows, columns = x.dims
    uids = iterate_unused_uids(graph)
    sides = {"a": (batch, rows, _CONTRACTED), "b": (batch, _CONTRACTED, columns)}
    a, b = (
        dataclasses.replace(x, name=f"{x.name}.{side}", uid=next(uids), dims=dims, strides=packed_strides(dims))
        for side, dims in sides.items()
    )
    c = dataclasses.replace(x, virtual=True)
    rest = replace_tensors_in_ops(graph.ops, {x.uid: c})
    return Graph((Matmul(name=f"{x.name}.matmul", a=a, b=b, c=c), *rest), graph.name)


def add_missing_norm_tensors(graph: Graph, op: Operation, names: list[str]) -> Graph | None:
    """Return the graph with missing tensors of a norm added: epsilon, statistics, scale, bias; None if impossible."""
    uids, x = iterate_unused_uids(graph), op.fields.get("x")
    pairs = {"mean": "inv_variance", "inv_variance": "mean", "scale": "bias", "bias": "scale", "dbias": "dscale"}
    given = {}
    for name in names:
        like = op.fields.get(pairs.get(name, ""))
        if name == "epsilon" and x is not None:
            ones = (1,) * x.rank
            given[name] = Tensor(
                name=name, uid=next(uids), dims=ones, strides=ones, data_type=DataType.FLOAT, by_value=True, value=1e-5
            )
        elif isinstance(like, Tensor):
            given[name] = dataclasses.replace(like, name=f"{like.name}_{name}", uid=next(uids))
        else:
            return None
    whole = Operation(op.type, op.name, {**op.fields, **given})
    return Graph(tuple(whole if one is op else one for one in graph.ops), graph.name)
