"""Unusual sizes: dims that contradict other tensors, odd or very large dims, broadcasts."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

from ...generated.enums import (
    DescriptorType,
    MoeGroupedMatmulMode,
    NormMode,
)
from ...generated.operations import CONVOLUTIONS
from ...graph.ir import Graph, Matmul, Operation, Pointwise, Tensor
from ...graph.shapes import has_offset_of_last_expert_end
from ..dims import find_sets_of_equal_dims, resize_dims
from ..relations import NORMS
from .deviation import IMAGE, Deviation, make_unusual_dims_property

__all__ = ["find_broadcast_operands", "find_inconsistent_dims", "find_unusual_norm_dims", "find_unusual_sizes"]

_D = DescriptorType


def find_unusual_norm_dims(graph: Graph) -> Iterator[Deviation]:
    """Yield tensors of a norm with dims that do not agree with its other tensors."""
    for op in graph.ops:
        for ports in _SAME_DIMS if op.kind in NORMS else ():
            own = [tensor for port, tensor in op.ports() if port in ports]
            whole = _find_dims_that_tensors_should_share(own, next(iter(op.inputs().values())).dims)
            for tensor in own:
                if tensor.dims != whole and tensor.rank == len(whole):
                    others = ", ".join(one.name for one in own if one.dims == whole)
                    yield make_unusual_dims_property(
                        tensor, whole, f"as {others} {'has' if ',' not in others else 'have'}", "idea"
                    )
        if isinstance(op, Operation) and op.kind in NORMS:
            yield from _find_wrong_statistics_dims(op)


def _find_dims_that_tensors_should_share(tensors: list[Tensor], image: tuple[int, ...]) -> tuple[int, ...]:
    """Return the dims that tensors should share: those that fit the image, then the most frequent, then the largest."""
    counts = Counter(tensor.dims for tensor in tensors)

    def rank_dims(dims: tuple[int, ...]) -> tuple[bool, int, int]:
        fits = len(dims) == len(image) and all(own in (1, other) for own, other in zip(dims, image, strict=True))
        return fits, counts[dims], math.prod(dims)

    return max(counts, key=rank_dims, default=())


def _find_wrong_statistics_dims(op: Operation) -> Iterator[Deviation]:
    """Yield mean and inverse variance of a norm with dims that its mode does not produce."""
    x, scale, mode = op.fields["x"], op.fields.get("scale"), op.fields["mode"]
    if mode is NormMode.BATCH_NORM:
        dims = (1, *x.dims[1:2], *(1,) * (x.rank - 2))
    elif mode is NormMode.INSTANCE_NORM:
        dims = (*x.dims[:2], *(1,) * (x.rank - 2))
    elif mode in (NormMode.LAYER_NORM, NormMode.RMS_NORM) and scale is not None and scale.rank == x.rank:
        dims = tuple(1 if one > 1 else dim for one, dim in zip(scale.dims, x.dims, strict=True))
    else:
        return
    for port in ("mean", "inv_variance"):
        tensor = op.fields.get(port)
        if isinstance(tensor, Tensor) and tensor.dims != dims and tensor.rank == x.rank:
            found = make_unusual_dims_property(tensor, dims, f"as {op.name} ({mode.name}) gives", "idea")
            yield replace(found, what=f"dims of {tensor.name} {list(tensor.dims)} ({op.name} with {mode.name})")


def find_inconsistent_dims(graph: Graph) -> Iterator[Deviation]:
    """Yield tensors of pooling, MoE matmul and M, N, K overrides with dims that contradict the operation's others."""
    for op in graph.ops:
        ports = dict(op.ports())
        needed: dict[str, tuple[int, ...]] = {}
        if isinstance(op, Operation) and op.kind in (_D.OPERATION_RESAMPLE_FWD, _D.OPERATION_RESAMPLE_BWD):
            image = ports.get("x", ports.get("dx"))
            small = None if image is None else _compute_pooled_dims(op, image)
            needed = dict.fromkeys(("y", "dy", "idx"), small) if small else {}
        if op.kind is _D.OPERATION_MOE_GROUPED_MATMUL and {len(t.dims) for t in ports.values()} == {3}:
            token, weight, output = ports["token"], ports["weight"], ports["output"]
            depth, offsets = max(token.dims[2], weight.dims[1]), ports["first_token_offset"].dims[0]
            offsets -= has_offset_of_last_expert_end(offsets, weight.dims[0])
            experts = max(weight.dims[0], offsets)
            needed = {"token": (*token.dims[:2], depth), "weight": (experts, depth, output.dims[2])}
            if "token_index" in ports:
                gathers = op.parameters().get("mode") is MoeGroupedMatmulMode.GATHER
                needed["token_index"] = (1, output.dims[1] if gathers else token.dims[1], 1)
            if offsets < experts:
                needed["first_token_offset"] = (experts, 1, 1)
        if isinstance(op, Matmul):
            lengths = (op.c.dims[0], *(1,) * (op.c.rank - 1))
            needed = dict.fromkeys(("m_override", "n_override", "k_override"), lengths)
        for port, dims in needed.items():
            if port in ports and ports[port].dims != dims and ports[port].rank == len(dims):
                yield make_unusual_dims_property(ports[port], dims, f"as the others of {op.name} give", "idea")


def _compute_pooled_dims(op: Operation, image: Tensor) -> tuple[int, ...] | None:
    given = op.fields["resample"].fields
    parts = [given.get(name, ()) for name in ("window_dims", "pre_paddings", "post_paddings", "strides")]
    if any(len(part) != image.rank - 2 or any(type(one) is not int for one in part) for part in parts):
        return None
    if 0 in parts[-1]:
        return None
    sizes = zip(image.dims[2:], *parts, strict=True)
    return (*image.dims[:2], *((size + low + high - window) // step + 1 for size, window, low, high, step in sizes))


_SAME_DIMS = (("x", "y", "dy", "dx"), ("scale", "bias", "dscale", "dbias"), ("mean", "inv_variance"))


def find_broadcast_operands(graph: Graph) -> Iterator[Deviation]:
    """Yield operands of pointwise operations that broadcast, except scalars and vectors."""
    for op in graph.ops:
        outputs = list(op.outputs().values())
        if not isinstance(op, Pointwise) or not outputs:
            continue
        whole = outputs[0].dims
        for tensor in op.inputs().values():
            partly = tensor.rank == len(whole) and tensor.dims != whole and not _is_vector(tensor)
            if partly and not tensor.virtual and not tensor.by_value:
                yield make_unusual_dims_property(tensor, whole, "repeated in memory", "exact", outputs[0].strides)


def _is_vector(tensor: Tensor) -> bool:
    """Return whether a tensor has a single number, or one per channel or column."""
    along = [axis for axis, dim in enumerate(tensor.dims) if dim > 1]
    return not along or along == ([1] if tensor.rank >= IMAGE else [tensor.rank - 1])


_SIZES = 8  # channels, rows and columns are multiples of that


_LARGEST = 1 << 15


def find_unusual_sizes(graph: Graph) -> Iterator[Deviation]:
    """Yield channels, rows and columns that are not multiples of 8, and very large dims."""
    classes = dict.fromkeys(find_sets_of_equal_dims(graph).values())
    tensors = {tensor.uid: tensor for tensor in graph.tensors}
    pixels = IMAGE - any(op.kind in CONVOLUTIONS for op in graph.ops)  # there is a convolution over one dim
    for one in classes:
        axes = [(tensors[uid], axis) for uid, axis in sorted(one.axes) if uid in tensors]
        inner = [(tensor, axis) for tensor, axis in axes if _is_channel_or_matrix_axis(tensor, axis, pixels)]
        if one.fixed or not inner:
            continue
        odd, large = one.size > 1 and one.size % _SIZES != 0, one.size > _LARGEST
        if not odd and not large:
            continue
        size = _LARGEST if large else -(-one.size // _SIZES) * _SIZES
        shown = list(dict.fromkeys(tensor for tensor, _ in inner if not tensor.virtual))[:4]
        if not shown:
            continue
        axis = next(axis for tensor, axis in inner if tensor is shown[0])
        names = tuple(tensor.name for tensor in shown)
        word = "channels" if shown[0].rank >= pixels else f"dim {axis}"
        verb = "are" if word == "channels" else "is"
        needed = f"{size} at most" if large else f"a multiple of {_SIZES}"
        padded = "" if large else ", padded with zeros"
        yield Deviation(
            f"size {min(one.axes)}",
            "size",
            f"{word} of {', '.join(names)} {verb} {one.size}",
            needed,
            f"{word} of {', '.join(names)}: {one.size} -> {size}{padded}",
            "idea",
            names,
            lambda g, one=one, new=size: _resize_dims_equal_to_axis(g, min(one.axes), new),  # type: ignore[misc]
        )


def _resize_dims_equal_to_axis(graph: Graph, axis: tuple[int, int], size: int) -> Graph | None:
    found = find_sets_of_equal_dims(graph).get(axis)
    return graph if found is None else resize_dims(graph, [found], size)


def _is_channel_or_matrix_axis(tensor: Tensor, axis: int, pixels: int) -> bool:
    return axis == 1 if tensor.rank >= pixels else axis > 0
