"""The same graph with tensors of other shapes: fewer axes, lengths, biases, padded images. Knows nothing of cuDNN."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterator

from ...generated.enums import DescriptorType, PointwiseMode, ReduceTensorOp
from ...generated.operations import CONVOLUTIONS
from ..ir import Graph, Matmul, Op, Operation, Parameters, Pointwise, Reduction, Tensor
from ..strides import channels_last, packed_strides
from .tensors import all_ops, repack, replace_tensors, replace_tensors_in

__all__ = [
    "as_rows_and_columns",
    "bias_tensors",
    "flattened",
    "lengths_of_other_rank",
    "with_dims",
    "with_padded_image",
]

_D, _P, _R = DescriptorType, PointwiseMode, ReduceTensorOp
_ATTENTION = (_D.OPERATION_SDPA_FWD, _D.OPERATION_SDPA_BWD)
_RANK = 4  # what attention and most kernels of several operations read


# leading axes


def flattened(graph: Graph, rank: int = _RANK) -> tuple[Graph, list[Tensor]] | None:
    """Return the graph with its leading axes as one, so that tensors have `rank` dims, and those that need a copy.

    None where there are no more axes than that, or they are not the same everywhere: some operand has one of them and
    not the others, or an operation is of a kind whose axes have meanings.
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
    new, copied = {}, []
    for tensor in graph.tensors:
        leading = tensor.dims[: gone + 1]
        if leading != whole and math.prod(leading) > 1:
            return None
        strides = _merged_strides(tensor, gone)
        dims = (math.prod(leading), *tensor.dims[gone + 1 :])
        new[tensor.uid] = dataclasses.replace(tensor, dims=dims, strides=strides or packed_strides(dims))
        if strides is None and not tensor.virtual:
            copied.append(tensor)
    return Graph(tuple(_shifted(op, new, gone) for op in graph.ops), graph.name), copied


def _merged_strides(tensor: Tensor, gone: int) -> tuple[int, ...] | None:
    """Return the strides with the first axes as one; None where no single stride does, or the tensor is virtual."""
    leading = zip(tensor.dims[: gone + 1], tensor.strides, strict=False)
    steps = [(dim, stride) for dim, stride in leading if dim > 1] or [(1, tensor.strides[gone])]
    fits = all(outer[1] == inner[0] * inner[1] for outer, inner in itertools.pairwise(steps))
    return (steps[-1][1], *tensor.strides[gone + 1 :]) if fits and not tensor.virtual else None


def _shifted(op: Op, new: dict[int, Tensor], gone: int) -> Op:
    if isinstance(op, Pointwise) and op.axis is not None:
        ports = {port: new[tensor.uid] for port, tensor in op.ports()}
        return dataclasses.replace(op, axis=max(0, op.axis - gone), **ports)  # type: ignore[arg-type]
    return replace_tensors_in((op,), new)[0]


def as_rows_and_columns(graph: Graph) -> Iterator[Graph]:
    """Yield a graph that reduces rows or columns with tensors [rows, columns, 1, 1], channels last: the same memory.

    For graphs of pointwise operations and reductions whose tensors lie row-major and have all or none of their first
    axes, and all or none of the others.
    """
    ops = [op for op in graph.ops if isinstance(op, Reduction) or (isinstance(op, Pointwise) and op.axis is None)]
    if len(ops) < len(graph.ops) or not any(isinstance(op, Reduction) for op in ops):
        return
    ranks = {tensor.rank for tensor in graph.tensors}
    if len(ranks) != 1 or any(t.strides != packed_strides(t.dims) for t in graph.tensors if not t.virtual):
        return
    whole = max((tensor.dims for tensor in graph.tensors), key=math.prod)
    for split in range(1, len(whole)):
        new = {tensor.uid: _in_two(tensor, whole, split) for tensor in graph.tensors}
        known = {uid: tensor for uid, tensor in new.items() if tensor is not None}
        if len(known) == len(new) and any(known[t.uid] != t for t in graph.tensors):
            yield replace_tensors(graph, known)
            return


def _in_two(tensor: Tensor, whole: tuple[int, ...], split: int) -> Tensor | None:
    """Return the tensor as [rows, columns, 1, 1], None where it has some of the axes of a side and not others."""
    sides = ((tensor.dims[:split], whole[:split]), (tensor.dims[split:], whole[split:]))
    if any(own != full and math.prod(own) > 1 for own, full in sides):
        return None
    dims = (math.prod(tensor.dims[:split]), math.prod(tensor.dims[split:]), 1, 1)
    return dataclasses.replace(tensor, dims=dims, strides=channels_last(dims))


# lengths and offsets of sequences


def lengths_of_other_rank(graph: Graph) -> dict[int, tuple[int, ...]]:
    """Return by uid the dims (n, 1, 1, 1) for lengths and ragged offsets of other dims."""
    found: dict[int, tuple[int, ...]] = {}
    for op in all_ops(graph):
        tensors = [tensor for port, tensor in op.inputs().items() if "seq_len" in port or port.endswith("_override")]
        tensors += [tensor.ragged_offset for _, tensor in op.ports() if tensor.ragged_offset is not None]
        for tensor in tensors:
            count = math.prod(tensor.dims)
            if tensor.dims != (count, 1, 1, 1) and max(tensor.dims) == count:
                found[tensor.uid] = (count, 1, 1, 1)
    return found


def with_dims(graph: Graph, dims: dict[int, tuple[int, ...]]) -> Graph:
    """Return the graph with tensors of other dims, by uid; row-major where the rank is another."""
    new = {}
    for tensor in (tensor for op in all_ops(graph) for _, one in op.ports() for tensor in (one, one.ragged_offset)):
        if tensor is None or tensor.uid not in dims:
            continue
        wanted = dims[tensor.uid]
        same = len(wanted) == tensor.rank
        plain = dataclasses.replace(tensor, dims=wanted, strides=packed_strides(wanted))
        new[tensor.uid] = repack(tensor, wanted) if same else plain
    return replace_tensors(graph, new)


# biases


def bias_tensors(graph: Graph) -> Iterator[tuple[Tensor, tuple[int, ...], list[Tensor]]]:
    """Yield each bias with dims of 1, the dims of the scores it is added to, and the gradients of its dims."""
    for op in all_ops(graph):
        if not isinstance(op, Pointwise) or op.mode is not _P.ADD or op.x is None or op.b is None or op.y is None:
            continue
        for bias in (op.x, op.b):
            whole = op.y.dims
            if bias.virtual or bias.by_value or bias.dims == whole or bias.rank != 4 or math.prod(bias.dims) == 1:
                continue
            yield bias, whole, [tensor for tensor in _sums(graph) if tensor.dims == bias.dims]


def _sums(graph: Graph) -> Iterator[Tensor]:
    """Yield the gradients of biases in memory: sums of what has the dims of the scores, or an operation's dbias."""
    for op in graph.ops:
        if isinstance(op, Reduction) and op.operator is _R.ADD and not op.y.virtual:
            yield op.y
        elif isinstance(op, Operation) and op.kind in _ATTENTION and "dbias" in op.fields:
            yield op.fields["dbias"]


# convolutions


def with_padded_image(graph: Graph, op: Operation) -> tuple[Graph, Tensor] | None:
    """Return the graph with the image of a convolution padded in memory instead, and that image.

    None where it is padded the same on both sides, or its image is virtual or read elsewhere.
    """
    image = op.fields[CONVOLUTIONS[op.kind][0]]
    parameters = op.fields["convolution"]
    before, after = (tuple(parameters.fields.get(name, ())) for name in ("pre_paddings", "post_paddings"))
    if before == after or len(before) != len(after) or len(before) != image.rank - 2 or image.virtual:
        return None
    if sum(image.uid == tensor.uid for one in graph.ops for _, tensor in one.ports()) != 1:
        return None
    spatial = (dim + left + right for dim, left, right in zip(image.dims[2:], before, after, strict=True))
    none = (0,) * len(before)
    plain = Parameters(parameters.kind, {**parameters.fields, "pre_paddings": none, "post_paddings": none})
    larger = repack(image, (*image.dims[:2], *spatial))
    port = CONVOLUTIONS[op.kind][0]
    changed = Operation(op.type, op.name, {**op.fields, "convolution": plain, port: larger})
    return Graph(tuple(changed if one is op else one for one in graph.ops), graph.name), image
