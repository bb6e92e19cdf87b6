"""Changes of sizes: dims padded with zeros, or smaller dims."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from ...frozen import FrozenValue
from ...generated.enums import DataType, DescriptorType, PointwiseMode, ReduceTensorOp
from ...generated.operations import CONVOLUTIONS
from ...graph.ir import Graph, Matmul, Operation, compute_convolved_size
from ...graph.replace import find_tensors
from ..dims import EqualDims, find_sets_of_equal_dims, keeps_results_when_padded, resize_dims
from ..relations import NORMS
from ..shapes import compute_dims_with_more_channels_per_group, set_convolution_dims, set_dims
from .change import (
    ATTENTION,
    Change,
    Effect,
    find_tensors_in_memory,
    join_names,
    register_change_maker,
    yield_change,
)

_D, _P, _R, _T = DescriptorType, PointwiseMode, ReduceTensorOp, DataType


class AttentionDims(FrozenValue):
    """Sets of equal dims of attention: ``d`` of Q and K, ``d_v`` of V, ``s_q``, ``s_kv``; None if not found."""

    d: EqualDims | None = None
    d_v: EqualDims | None = None
    s_q: EqualDims | None = None
    s_kv: EqualDims | None = None


def find_attention_dims(graph: Graph) -> AttentionDims:
    """Return which dims of an attention graph are head dims or sequence lengths, by its matmuls or SDPA op."""
    classes = find_sets_of_equal_dims(graph)
    for op in graph.ops:
        if isinstance(op, Operation) and op.kind in ATTENTION:
            q, k, v = (op.fields[name].uid for name in ("q", "k", "v"))
            return AttentionDims(classes.get((q, 3)), classes.get((v, 3)), classes.get((q, 2)), classes.get((k, 2)))
    matmuls = [op for op in graph.ops if isinstance(op, Matmul)]
    if len(matmuls) < 2:
        return AttentionDims()
    first, last = matmuls[0], matmuls[0].a.rank - 1
    d, s_q, s_kv = classes[first.a.uid, last], classes[first.a.uid, last - 1], classes[first.b.uid, last]
    others = [op for op in matmuls[1:] if op.a.rank == first.a.rank]
    inner = [classes[op.a.uid, last] for op in others if (op.c.uid, last) in s_kv]  # dO times V
    outer = [classes[op.b.uid, last] for op in others if (op.a.uid, last) in s_kv]  # scores times V
    d_v = next((one for one in (*inner, *outer) if one != d), None)
    return AttentionDims(d, d_v, s_q, s_kv)


@register_change_maker("pad_head_dim")
def _pad_head_dim(graph: Graph) -> Iterator[Change]:
    """Yield the graph with a head dim zero-padded to a multiple of 8, 16, 32, 64 or 128; the scale stays the same."""
    dims = find_attention_dims(graph)
    for classes in _iterate_sets_of_equal_dims_to_change(dims.d, dims.d_v):
        for multiple in (8, 16, 32, 64, 128):
            yield from _pad_dims(graph, classes, multiple, "pad_head_dim", "head dim")


_HEAD_DIMS = (256, 192, 128, 96, 64)  # that kernels are written for


@register_change_maker("smaller_head_dim")
def _reduce_head_dim(graph: Graph) -> Iterator[Change]:
    """Yield the graph with smaller head dims, largest first: of V only, of Q and K only, or of all three."""
    dims = find_attention_dims(graph)
    d, d_v = dims.d, dims.d_v
    sizes = {one: [size for size in _HEAD_DIMS if size < one.size] for one in (d, d_v) if one is not None}
    alone = [((one, size),) for one in (d_v, d) if one is not None for size in sizes[one]]
    both: list[tuple[tuple[EqualDims, int], ...]] = []
    if d is not None and d_v is not None and d != d_v:
        both = [((d, size), (d_v, other)) for size in sizes[d] for other in sizes[d_v] if other <= size]
    for chosen in (*alone, *both):
        smaller: Graph | None = graph
        names, tensors = [], []
        for one, size in chosen:
            smaller = None if smaller is None else resize_dims(smaller, [one], size)
            mine = [t for t in find_tensors_in_memory(graph) if any(t.uid == uid for uid, _ in one.axes)]
            names.append(f"of {join_names(mine)}: {one.size} -> {size}")
            tensors += [tensor.name for tensor in mine]
        if smaller is not None:
            yield Change("smaller_head_dim", f"head dim {', '.join(names)}", "idea", tuple(tensors), (smaller,))


@register_change_maker("pad_sequence")
def _pad_sequence(graph: Graph) -> Iterator[Change]:
    """Yield the graph with longer sequences; results stay exact for queries, and for keys with sequence lengths."""
    dims = find_attention_dims(graph)
    for classes in _iterate_sets_of_equal_dims_to_change(dims.s_q, dims.s_kv):
        for multiple in (8, 64, 128):
            yield from _pad_dims(graph, classes, multiple, "pad_sequence", "sequence")
    for op in graph.ops:
        if isinstance(op, Operation) and op.kind in CONVOLUTIONS:
            yield from _correct_convolution_output_dims(graph, op)


def _correct_convolution_output_dims(graph: Graph, op: Operation) -> Iterator[Change]:
    response, dims = op.fields[CONVOLUTIONS[op.kind][2]], compute_convolution_output_dims(op)
    if dims is not None and dims != response.dims and len(dims) == response.rank:
        title = f"{response.name}: dims {list(response.dims)} -> {list(dims)}, as image, filter and padding give"
        exact = op.kind is not _D.OPERATION_CONVOLUTION_FORWARD and all(
            new >= old for new, old in zip(dims, response.dims, strict=True)
        )
        effect: Effect = "exact" if exact else "idea"
        title += ", padded with zeros" if exact else ""
        new = {response.uid: dims}
        yield from yield_change("pad_sequence", title, effect, [response], lambda: set_dims(graph, new))


def compute_convolution_output_dims(op: Operation) -> tuple[int, ...] | None:
    """Return the dims of a convolution's response from image, filter and parameters; None if they do not fit."""
    image, weights, _ = (op.fields[port] for port in CONVOLUTIONS[op.kind])
    given = op.fields["convolution"].fields
    steps = ("pre_paddings", "post_paddings", "filter_strides", "dilations")
    known = [given[name] for name in steps if len(given.get(name, ())) == image.rank - 2]
    if len(known) < len(steps) or weights.rank != image.rank:
        return None
    if min(known[2], default=1) < 1:
        return None
    spatial = [compute_convolved_size(*sizes) for sizes in zip(image.dims[2:], weights.dims[2:], *known, strict=True)]
    return None if min(spatial, default=1) < 1 else (image.dims[0], weights.dims[0], *spatial)


@register_change_maker("pad_channels")
def _pad_channels(graph: Graph) -> Iterator[Change]:
    """Yield the graph with channels of convolutions, or M, N, K of a matmul, padded to a multiple of 4, 8, 16 or 32."""
    classes = find_sets_of_equal_dims(graph)
    wanted: list[tuple[str, tuple[EqualDims, ...]]] = []
    for op in graph.ops:
        if isinstance(op, Operation) and op.kind in CONVOLUTIONS:
            weights = op.fields[CONVOLUTIONS[op.kind][1]]
            if weights.rank > 1:
                found = {"input channels": classes[weights.uid, 1], "output channels": classes[weights.uid, 0]}
                wanted += [(name, (one,)) for name, one in found.items()]
    matmuls = [op for op in graph.ops if isinstance(op, Matmul)]
    if len(matmuls) == 1:
        a, b, last = matmuls[0].a, matmuls[0].b, matmuls[0].a.rank - 1
        found = {"K": classes[a.uid, last], "N": classes[b.uid, last], "M": classes[a.uid, last - 1]}
        wanted += [(name, (one,)) for name, one in found.items()]
    for op in graph.ops:
        if isinstance(op, Operation) and op.kind in NORMS and op.fields["x"].rank > 1:
            wanted.append(("channels", (classes[op.fields["x"].uid, 1],)))
    for what, chosen in wanted:
        for multiple in (4, 8, 16, 32):
            yield from _pad_dims(graph, chosen, multiple, "pad_channels", what)
    for op in graph.ops:
        if isinstance(op, Operation) and op.kind in CONVOLUTIONS:
            yield from _pad_channels_per_group(graph, op)


def _pad_channels_per_group(graph: Graph, op: Operation) -> Iterator[Change]:
    """Yield a grouped convolution with more input channels per group, the new ones padded with zeros."""
    weights = op.fields[CONVOLUTIONS[op.kind][1]]
    old = weights.dims[1] if weights.rank > 1 else 0
    multiples = {-(-old // multiple) * multiple: multiple for multiple in (2, 4, 8, 16)}  # the largest of each size
    for new, multiple in multiples.items():
        if new != old and (dims := compute_dims_with_more_channels_per_group(graph, op, new)):
            tensors = [tensor for tensor in find_tensors(graph, dims) if not tensor.virtual]
            title = f"input channels per group of {join_names(tensors)}: {old} -> {new} (a multiple of {multiple})"
            title += ", padded with zeros"
            build = partial(set_convolution_dims, graph, dims, op.fields[CONVOLUTIONS[op.kind][0]])
            yield from yield_change("pad_channels", title, "exact", tensors, build)


def _iterate_sets_of_equal_dims_to_change(*classes: EqualDims | None) -> Iterator[tuple[EqualDims, ...]]:
    """Yield the sets of equal dims to change: two sets of equal size together, then each alone."""
    given = list(dict.fromkeys(item for item in classes if item is not None))
    if len(given) == 2 and given[0].size == given[1].size:
        yield tuple(given)
    yield from ((item,) for item in given)


def _pad_dims(graph: Graph, classes: tuple[EqualDims, ...], multiple: int, kind: str, what: str) -> Iterator[Change]:
    old = classes[0].size
    new = -(-old // multiple) * multiple
    if new == old:
        return
    if any(item.fixed for item in classes):
        return
    lengths = kind == "pad_sequence" and _has_sequence_lengths(graph)
    effect: Effect = "exact" if lengths or keeps_results_when_padded(graph, classes) else "idea"
    uids = {uid for item in classes for uid, _ in item.axes}
    tensors = [tensor for tensor in find_tensors(graph, uids) if not tensor.virtual and not tensor.by_value]
    title = f"{what} of {join_names(tensors)}: {old} -> {new} (a multiple of {multiple}), padded with zeros"
    title += "" if effect == "exact" else ", which take part in the softmax or a sum"
    yield from yield_change(kind, title, effect, tensors, lambda: resize_dims(graph, classes, new))


def _has_sequence_lengths(graph: Graph) -> bool:
    """Return whether the graph has sequence lengths as inputs."""
    for op in graph.ops:
        if isinstance(op, Matmul) and (op.m_override or op.n_override or op.k_override):
            return True
        if op.kind in ATTENTION and "seq_len_kv" in dict(op.ports()):
            return True
    return False
