"""Changes to an equivalent graph: with other operations, other tensor shapes, or split into two graphs."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from functools import partial
from itertools import accumulate, pairwise

from ...generated.enums import DataType, DescriptorType, PointwiseMode, ReduceTensorOp
from ...generated.operations import CONVOLUTIONS
from ...graph.ir import Graph, Matmul, Op, Operation, Pointwise, Reduction, Tensor
from ...graph.replace import (
    find_tensors,
    iterate_all_ops,
    iterate_unused_uids,
    replace_tensors,
    replace_tensors_in_ops,
    try_to_make_graph,
)
from ..fusion import (
    add_softmax_log_sum_exp,
    expand_softmax,
    expand_to_composite_attention,
    expand_to_composite_attention_backward,
    fuse_to_unified_attention,
    is_computed_in_float32,
    move_attention_scale_to_scores,
)
from ..shapes import (
    add_batch_dim,
    add_spatial_dim,
    compute_scale_dims_of_blocks,
    find_broadcast_biases,
    find_corrected_dims,
    find_equivalent_view,
    find_length_and_offset_dims_to_set,
    insert_relu_before,
    merge_leading_axes,
    pad_image,
    reshape_rows_to_matrix,
    set_dims,
)
from .change import (
    ATTENTION,
    Change,
    Effect,
    find_operations,
    find_tensors_in_memory,
    join_names,
    register_change_maker,
    yield_change,
    yield_valid_change,
)

_D, _P, _R, _T = DescriptorType, PointwiseMode, ReduceTensorOp, DataType
_ATTENTION_RANK = 4  # batch, heads, rows, columns


@register_change_maker("heads")
def _repeat_kv_heads_in_memory(graph: Graph) -> Iterator[Change]:
    """Yield the graph with heads of K and V repeated in memory to the number of Q's heads."""
    if len([op for op in graph.ops if isinstance(op, Matmul)]) > 2:
        return  # gradients are summed over the group
    new: dict[int, tuple[int, ...]] = {}
    for op in graph.ops:
        fields = dict(op.ports())
        pairs = [(op.a, op.b)] if isinstance(op, Matmul) else []
        if op.kind is _D.OPERATION_SDPA_FWD:
            pairs = [(fields["q"], fields["k"]), (fields["q"], fields["v"])]
        for many, few in pairs:
            fits = many.rank == few.rank == 4 and few.dims[1] < many.dims[1] and many.dims[1] % few.dims[1] == 0
            if fits and not few.virtual:
                new[few.uid] = (few.dims[0], many.dims[1], *few.dims[2:])
    few_heads = [tensor for tensor in graph.tensors if tensor.uid in new]
    if few_heads:
        title = ", ".join(f"{t.name} {t.dims[1]} -> {new[t.uid][1]}" for t in few_heads)
        title = f"heads repeated in memory: {title}"
        yield from yield_valid_change("heads", title, "exact", few_heads, lambda: set_dims(graph, new))


@register_change_maker("unified")
def _fuse_attention(graph: Graph) -> Iterator[Change]:
    """Yield composite attention as one SDPA operation."""
    effect: Effect = "exact" if is_computed_in_float32(graph) else "changes numerics"
    yield from yield_valid_change(
        "unified", "composite graph -> the one SDPA operation", effect, (), lambda: fuse_to_unified_attention(graph)
    )


@register_change_maker("composite")
def _expand_attention_or_softmax(graph: Graph) -> Iterator[Change]:
    """Yield the graph with an SDPA or SOFTMAX operation expanded, or with scaling moved after the first matmul."""
    title = "the SDPA operation -> matmuls, pointwise operations and reductions"
    yield from yield_valid_change("composite", title, "exact", (), lambda: expand_to_composite_attention(graph))
    title = "the SDPA_BWD operation -> matmuls, pointwise operations and reductions"
    yield from yield_valid_change(
        "composite", title, "exact", (), lambda: expand_to_composite_attention_backward(graph)
    )
    title = "a softmax written by hand -> with the statistics of its rows, as the kernels of attention read it"
    yield from yield_valid_change("composite", title, "exact", (), lambda: add_softmax_log_sum_exp(graph))
    title = "K (or Q) scaled before the matmul -> the scores scaled after it"
    yield from yield_valid_change(
        "composite", title, "changes numerics", (), lambda: move_attention_scale_to_scores(graph)
    )
    title = "the softmax operation -> reductions and pointwise operations"
    yield from yield_valid_change("composite", title, "exact", (), lambda: expand_softmax(graph))


# other shapes for the same


@register_change_maker("flatten")
def _merge_leading_axes(graph: Graph) -> Iterator[Change]:
    """Yield the graph with other ranks: leading axes merged, one of size 1 added, or a matrix as 1 x 1 images."""
    products = sum(isinstance(op, Matmul) for op in graph.ops)
    rank = 3 if products == 1 else 4  # attention is more than one
    found = merge_leading_axes(graph, rank)
    if found is not None:
        changed, copied = found
        old = max(tensor.rank for tensor in graph.tensors)
        title = f"tensors of {old} dims -> {rank}, leading axes as one"
        sizes = {tensor.uid: math.prod(tensor.dims) for tensor in changed.tensors}
        repeated = [tensor for tensor in copied if sizes[tensor.uid] != math.prod(tensor.dims)]
        copied = [tensor for tensor in copied if tensor not in repeated]
        title += f" ({join_names(copied)} copied: no single stride does)" if copied else ""
        title += f" ({join_names(repeated)} repeated in memory)" if repeated else ""
        yield Change("flatten", title, "exact", tuple(t.name for t in find_tensors_in_memory(graph)), (changed,))
    memory = [tensor for tensor in graph.tensors if not tensor.virtual]  # numbers passed by value have dims, too
    batched = add_batch_dim(graph)
    if batched is not None:
        shown = ", ".join(f"{t.name} {list(t.dims)} -> {[1, *t.dims]}" for t in memory[:6])
        yield Change("flatten", f"a leading dim of 1: {shown}", "exact", tuple(t.name for t in memory), (batched,))
    for rows in reshape_rows_to_matrix(graph):
        new = {tensor.name: rows.tensor(tensor.name) for tensor in memory[:6]}
        shown = ", ".join(filter(None, (_format_layout_change(t, new[t.name]) for t in memory[:6])))
        title = f"rows and columns as 1 x 1 images, channels last: {shown}"
        yield Change("flatten", title, "exact", tuple(t.name for t in memory), (rows,))
    if (wider := add_spatial_dim(graph)) is not None:
        shown = ", ".join(f"{t.name} {list(t.dims)} -> {list(wider.tensor(t.uid).dims)}" for t in memory[:6])
        title = f"two spatial dims, the first of them 1: {shown}"
        yield Change("flatten", title, "exact", tuple(t.name for t in memory), (wider,))


def _format_layout_change(old: Tensor, new: Tensor) -> str:
    """Return the dims of a matrix and of the image that replaces it, or the strides if only these differ."""
    if old.dims != new.dims:
        return f"{old.name} {list(old.dims)} -> {list(new.dims)}"
    if old.strides != new.strides:
        return f"{old.name} strides {list(old.strides)} -> {list(new.strides)}"
    return ""


@register_change_maker("lengths")
def _reshape_length_and_offset_tensors(graph: Graph) -> Iterator[Change]:
    """Yield the graph with sequence lengths and ragged offsets reshaped to (n, 1, 1, 1)."""
    dims = find_length_and_offset_dims_to_set(graph)
    offsets = [t.ragged_offset for op in iterate_all_ops(graph) for _, t in op.ports() if t.ragged_offset is not None]
    wrong = {t.uid: t for t in (*graph.tensors, *offsets) if t.uid in dims}
    if wrong:
        found = ", ".join(f"{t.name} {list(t.dims)} -> {list(dims[t.uid])}" for t in wrong.values())
        title = f"dims of lengths: {found}"
        yield from yield_valid_change("lengths", title, "exact", wrong.values(), lambda: set_dims(graph, dims))


@register_change_maker("ragged_stats")
def _make_stats_ragged(graph: Graph) -> Iterator[Change]:
    """Yield the graph with attention statistics packed by ragged offsets, like the queries."""
    for op in find_operations(graph.ops, _D.OPERATION_SDPA_BWD):
        q, stats = op.fields["q"], op.fields["stats"]
        if q.ragged_offset is None or stats.ragged_offset is not None or stats.rank != _ATTENTION_RANK:
            continue
        offset = dataclasses.replace(
            q.ragged_offset, name=f"{stats.name}_ragged_offset", uid=next(iterate_unused_uids(graph))
        )
        _, heads, rows, _ = stats.dims
        packed = dataclasses.replace(stats, ragged_offset=offset, strides=(heads * rows, 1, heads, 1))
        title = f"{stats.name}: without ragged offsets -> packed as {q.name} is, with ragged offsets"
        yield from yield_change(
            "ragged_stats",
            title,
            "exact",
            [stats],
            lambda packed=packed: replace_tensors(graph, {packed.uid: packed}),  # type: ignore[misc]
        )


@register_change_maker("bias_dims")
def _repeat_broadcast_bias_in_memory(graph: Graph) -> Iterator[Change]:
    """Yield the graph with a bias repeated in memory along broadcast dims; the caller sums its gradient."""
    for bias, whole, gradients in find_broadcast_biases(graph):
        last, heads = (*bias.dims[:2], *whole[2:]), (1, *whole[1:])
        for dims in dict.fromkeys((last, heads, whole)):
            if dims == bias.dims or any(old not in (1, new) for old, new in zip(bias.dims, dims, strict=True)):
                continue
            both = [bias, *gradients]
            title = f"dims of {join_names(both)}: {list(bias.dims)} -> {list(dims)}, the bias repeated in memory"
            title += ", its gradient summed afterwards" if gradients else ""
            new = {tensor.uid: dims for tensor in both}
            yield from yield_change("bias_dims", title, "exact", both, lambda new=new: set_dims(graph, new))  # type: ignore[misc]


@register_change_maker("dims")
def _correct_inconsistent_dims(graph: Graph) -> Iterator[Change]:
    """Yield the graph with wrong dims corrected: results of attention, pooling and MoE matmul, or block scales."""
    given = {
        **dict.fromkeys(ATTENTION, "Q, K and V"),
        _D.OPERATION_RESAMPLE_FWD: "image, window, stride and padding",
        _D.OPERATION_PAGED_CACHE_LOAD: "the cache and its table of pages",
        _D.OPERATION_MOE_GROUPED_MATMUL: "tokens and weights",
        _D.OPERATION_MOE_GROUPED_MATMUL_BWD: "tokens and gradient",
    }
    for op in graph.ops:
        if op.kind in given:
            wrong = try_to_make_graph(lambda op=op: find_corrected_dims(op))  # type: ignore[misc]
            yield from _change_dims(graph, wrong or {}, "idea", f"as {given[op.kind]} give")
            yield from _change_dims(
                graph, _find_query_dims_with_output_heads(op), "idea", "heads as the other tensors have"
            )
            yield from _give_query_heads_to_kv(graph, op)
    tiled = compute_scale_dims_of_blocks(graph, tiled=True)
    yield from _change_dims(graph, tiled, "exact", "in whole tiles of 128 x 4")


def _find_query_dims_with_output_heads(op: Op) -> dict[int, tuple[int, ...]]:
    """Return, by uid, Q's dims with O's head count, if that is a multiple of K's count and Q's own is not."""
    q, k, o = (dict(op.ports()).get(name) for name in ("q", "k", "o"))
    if q is None or k is None or o is None or not q.rank == k.rank == o.rank == _ATTENTION_RANK:
        return {}
    fits = q.dims[1] % k.dims[1] == 0 or o.dims[1] % k.dims[1] != 0
    return {} if fits else {q.uid: (q.dims[0], o.dims[1], *q.dims[2:])}


def _give_query_heads_to_kv(graph: Graph, op: Op) -> Iterator[Change]:
    """Yield the graph with Q's number of heads for K and V where theirs does not divide it."""
    ports = dict(op.ports())
    q, others = ports.get("q"), [ports[name] for name in ("k", "v") if name in ports]
    wrong = [one for one in others if q is not None and one.rank == q.rank > 1 and q.dims[1] % one.dims[1]]
    if q is not None and wrong:
        heads, dims = q.dims[1], {one.uid: (one.dims[0], q.dims[1], *one.dims[2:]) for one in wrong}
        found = ", ".join(f"{one.name} {one.dims[1]} -> {heads}" for one in wrong)
        title = f"heads of {found}, as many as {q.name} has"
        yield from yield_change("dims", title, "idea", wrong, lambda: set_dims(graph, dims))


def _change_dims(graph: Graph, dims: dict[int, tuple[int, ...]], effect: Effect, why: str) -> Iterator[Change]:
    wrong = find_tensors(graph, dims)
    if wrong:
        found = ", ".join(f"{t.name} {list(t.dims)} -> {list(dims[t.uid])}" for t in wrong)
        yield from yield_change("dims", f"dims of {found}, {why}", effect, wrong, lambda: set_dims(graph, dims))


@register_change_maker("view")
def _replace_operation_by_view(graph: Graph) -> Iterator[Change]:
    """Yield the graph where a strided view of a tensor in memory replaces a transpose or slice."""
    for op in graph.ops:
        if not isinstance(op, Operation) or len(graph.ops) < 2:
            continue
        found = find_equivalent_view(op)
        if found is None:
            continue
        seen, start = found
        title = f"{seen.name}: read with dims {list(seen.dims)} and strides {list(seen.strides)}"
        title += f" from element {start} on" if start else ""
        title += f", instead of the operation {op.name} ({op.display_name()})"
        yield from yield_change(
            "view", title, "exact", [op.fields["x"]], partial(_replace_operation_result_by_view, graph, op, seen)
        )


def _replace_operation_result_by_view(graph: Graph, op: Operation, seen: Tensor) -> Graph:
    rest = tuple(one for one in graph.ops if one is not op)
    return Graph(replace_tensors_in_ops(rest, {op.fields["y"].uid: seen}), graph.name)


@register_change_maker("whole_pattern")
def _add_relu_before_convolution(graph: Graph) -> Iterator[Change]:
    """Yield the graph with a ReLU between the image's scaling and the convolution, as kernels expect."""
    made = {t.uid: op for op in graph.ops if isinstance(op, Pointwise) for t in op.outputs().values()}
    for op in graph.ops:
        image = op.inputs().get("x") if op.kind in CONVOLUTIONS else None
        if image is None or image.uid not in made or made[image.uid].mode not in (_P.MUL, _P.ADD):
            continue
        title = f"with a ReLU (relu_fwd) of {image.name} before {op.name}, which sets negative values to 0"
        yield from yield_change("whole_pattern", title, "idea", [image], partial(insert_relu_before, graph, op, image))


@register_change_maker("explicit_padding")
def _pad_image_in_memory(graph: Graph) -> Iterator[Change]:
    """Yield the graph with a convolution's image padded in memory, if its pre-padding and post-padding differ."""
    for op in graph.ops:
        if not (isinstance(op, Operation) and op.kind in CONVOLUTIONS):
            continue
        found = pad_image(graph, op)
        if found is not None:
            changed, larger = found
            image = op.fields[CONVOLUTIONS[op.kind][0]]
            backward = op.kind is _D.OPERATION_CONVOLUTION_BACKWARD_DATA
            verb = "cut off afterwards" if backward else "padded with zeros in memory"
            title = f"{image.name}: dims {list(image.dims)} -> {list(larger.dims)}, {verb}, not by the convolution"
            yield from yield_change(
                "explicit_padding",
                title,
                "exact",
                [image],
                lambda op=op, changed=changed: Graph(  # type: ignore[misc]
                    tuple(changed if one is op else one for one in graph.ops), graph.name
                ),
            )


@register_change_maker("split")
def _split_graph(graph: Graph) -> Iterator[Change]:
    """Yield graphs that share tensors in memory: one for each reduction, then pairs with the least shared memory."""
    ends = find_reductions_before_other_operations(graph)
    if len(ends) > 1:
        yield _make_split_change(graph, [end + 1 for end in ends])
    shares = _count_elements_crossing_each_split(graph)
    for position in sorted(shares, key=lambda one: (shares[one], one))[:_CUTS]:
        yield _make_split_change(graph, [position])


def find_reductions_before_other_operations(graph: Graph) -> list[int]:
    """Return the positions of reductions with results that other operations of the graph read."""
    read = {tensor.uid for op in graph.ops for tensor in op.inputs().values()}
    return [number for number, op in enumerate(graph.ops) if isinstance(op, Reduction) and op.y.uid in read]


def _make_split_change(graph: Graph, positions: list[int]) -> Change:
    """Return the change that splits the operations of a graph at positions."""
    shared: dict[int, Tensor] = {}
    for position in positions:
        written = {t.uid for op in graph.ops[:position] for t in op.outputs().values()}
        shared |= {t.uid: t for op in graph.ops[position:] for t in op.inputs().values() if t.uid in written}
    tensors = list(shared.values())
    count = "two" if len(positions) == 1 else str(len(positions) + 1)
    title = f"{count} graphs, {join_names(tensors) or 'nothing'} in memory between them"
    names = tuple(tensor.name for tensor in tensors)
    return Change("split", title, "exact", names, partial(_split_graph_at, graph, positions, tensors))


_CUTS = 16  # of a graph that are offered


def _count_elements_crossing_each_split(graph: Graph) -> dict[int, int]:
    """Return for each split position the number of elements that are written before it and read after it."""
    change = [0] * (len(graph.ops) + 1)
    made = {tensor.uid: place for place, op in enumerate(graph.ops) for tensor in op.outputs().values()}
    last: dict[int, tuple[int, Tensor]] = {}
    for place, op in enumerate(graph.ops):
        last.update({tensor.uid: (place, tensor) for tensor in op.inputs().values()})
    for uid, (place, tensor) in last.items():
        if made.get(uid, place) < place:
            change[made[uid] + 1] += math.prod(tensor.dims)
            change[place + 1] -= math.prod(tensor.dims)
    sums = list(accumulate(change))
    return {place: sums[place] for place in range(1, len(graph.ops))}


def _split_graph_at(graph: Graph, positions: list[int], shared: list[Tensor]) -> tuple[Graph, ...]:
    """Return the operations of a graph before, between and after positions, each as a graph."""
    new = {t.uid: dataclasses.replace(t, virtual=False, scratch=False) for t in shared}
    bounds = [0, *positions, len(graph.ops)]
    return tuple(
        _make_graph_of_split_part(graph, graph.ops[begin:end], new, number)
        for number, (begin, end) in enumerate(pairwise(bounds), 1)
    )


def _make_graph_of_split_part(graph: Graph, ops: tuple[Op, ...], new: dict[int, Tensor], number: int) -> Graph:
    return Graph(replace_tensors_in_ops(ops, new), f"{graph.name}_{number}")
