"""One-step changes of a graph: what its author could do differently, each as a new graph. Pure.

Each kind has its function, found in :data:`CHANGES` under the kind's name. A function yields only what applies: of an
aligned graph no alignment is changed.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from ...generated.enums import (
    DataType,
    DescriptorType,
    PointwiseMode,
    ReduceTensorOp,
    TensorReordering,
)
from ...generated.operations import CONVOLUTIONS
from ..data_types import DATA_TYPES, ELEMENT_BITS, FP8_TYPES, HALF_TYPES, SHORT_TYPES
from ..guard import iterate_guarded
from ..ir import Graph, Matmul, Op, Operation, Pointwise, Reduction, Tensor, convolved_size
from ..strides import channels_last, ordered_strides, packed_strides
from .dims import BLOCK_SCALES, NORMS, DimClass, dim_classes, is_exact, resize
from .fusion import (
    add_row_statistics,
    as_composite,
    as_composite_backward,
    as_unified,
    expand_softmax,
    scale_scores,
)
from .shapes import (
    as_rows_and_columns,
    find_biases,
    find_lengths_of_other_rank,
    flatten_leading,
    pad_image,
    pooled_dims,
    relu_before,
    set_dims,
    sizes_of_attention,
    view_of,
    whole_scales,
    widen_groups,
)
from .tensors import (
    all_ops,
    attempt,
    bypass,
    drop_fields,
    free_uids,
    keep_ops,
    repack,
    replace_tensors,
    replace_tensors_in,
)

__all__ = ["CHANGES", "KINDS", "Change", "Effect", "HeadDims", "changes", "describe", "head_dims", "response_dims"]

_D, _P, _R, _T = DescriptorType, PointwiseMode, ReduceTensorOp, DataType

Effect = Literal["exact", "changes numerics", "idea"]

_FLOATS = (_T.FLOAT, _T.DOUBLE, *HALF_TYPES, *FP8_TYPES)
_NEEDED_BYTES = 16  # what engines load at once
_ATTENTION = (_D.OPERATION_SDPA_FWD, _D.OPERATION_SDPA_BWD)


@dataclass(frozen=True)
class Change:
    """One change of a graph.

    Parameters
    ----------
    kind
        One of :data:`KINDS`.
    title
        What changes: the tensor, the value found, the new value.
    effect
        ``exact``: the results are the same, where the caller does what the title says; ``changes numerics``: the same
        up to other rounding; ``idea``: something else is computed, so it is for the caller to say whether it will do.
    tensors
        Names of the tensors that change.
    graphs
        The changed graph; of a ``split`` its parts, in the order they run.
    """

    kind: str
    title: str
    effect: Effect
    tensors: tuple[str, ...]
    graphs: tuple[Graph, ...]

    @property
    def graph(self) -> Graph:
        """The changed graph, of several the first."""
        return self.graphs[0]


Maker = Callable[[Graph], Iterator[Change]]
CHANGES: dict[str, Maker] = {}


def _kind(name: str) -> Callable[[Maker], Maker]:
    def register(maker: Maker) -> Maker:
        CHANGES[name] = maker
        return maker

    return register


def changes(graph: Graph, kinds: Collection[str] | None = None) -> Iterator[Change]:
    """Yield the one-step changes of a graph, exact ones of each kind first.

    Parameters
    ----------
    kinds
        Which of :data:`KINDS`, in this order; all of them if not given.
    """
    for kind in CHANGES if kinds is None else kinds:
        maker = CHANGES.get(kind)  # a target or a version is no change of the graph
        titles = set()
        made = () if maker is None else iterate_guarded(f"the change {kind}", maker, graph)
        for change in made:
            if change.title not in titles:
                titles.add(change.title)
                yield change


def _make(
    kind: str, title: str, effect: Effect, tensors: Iterable[Tensor], make: Callable[[], Graph | None]
) -> Iterator[Change]:
    """Yield the change if its graph can be made."""
    graph = attempt(make)
    if graph is not None:
        yield Change(kind, title, effect, tuple(tensor.name for tensor in tensors), (graph,))


def _replace(kind: str, title: str, effect: Effect, graph: Graph, old: list[Tensor], **fields: Any) -> Iterator[Change]:
    """Yield the change of one or more fields of some tensors, to one value or, called with the tensor, its own."""

    def new(tensor: Tensor) -> Tensor:
        return dataclasses.replace(
            tensor, **{name: value(tensor) if callable(value) else value for name, value in fields.items()}
        )

    if old:
        yield from _make(kind, title, effect, old, lambda: replace_tensors(graph, {t.uid: new(t) for t in old}))


def describe(tensors: Iterable[Tensor]) -> str:
    """Return the names of tensors as in a title: all of a few, else how many more there are."""
    names = [tensor.name for tensor in tensors]
    return ", ".join(names) if len(names) <= 6 else f"{', '.join(names[:5])} and {len(names) - 5} more"


def _in_memory(graph: Graph) -> list[Tensor]:
    return [tensor for tensor in graph.tensors if not tensor.virtual and not tensor.by_value]


def _written(graph: Graph) -> set[int]:
    return {tensor.uid for op in all_ops(graph) for tensor in op.outputs().values()}


def _read(graph: Graph) -> set[int]:
    return {tensor.uid for op in all_ops(graph) for tensor in op.inputs().values()}


def _find(ops: Iterable[Op], kind: DescriptorType) -> Iterator[Operation]:
    return (op for op in ops if isinstance(op, Operation) and op.kind is kind)


# how tensors lie in memory


@_kind("alignment")
def _alignment(graph: Graph) -> Iterator[Change]:
    """Addresses that are multiples of 16 bytes; the caller's buffers must be."""
    low = [tensor for tensor in _in_memory(graph) if tensor.alignment < _NEEDED_BYTES and math.prod(tensor.dims) > 1]
    found = ", ".join(f"{tensor.name} {tensor.alignment}" for tensor in low[:6])
    title = f"alignment of {found} -> {_NEEDED_BYTES} bytes"
    yield from _replace("alignment", title, "exact", graph, low, alignment=_NEEDED_BYTES)


@_kind("layout")
def _layout(graph: Graph) -> Iterator[Change]:
    """Strides: channels last for convolutions, else row-major or the innermost dim contiguous."""
    plain_order = [tensor for tensor in graph.tensors if tensor.reordering is TensorReordering.NONE]
    tensors = [tensor for tensor in plain_order if not tensor.by_value and math.prod(tensor.dims) > 1]
    tensors.sort(key=lambda tensor: not _overlaps(tensor))
    memory = [tensor for tensor in tensors if not tensor.virtual]
    for tensor in memory:
        if _overlaps(tensor):
            yield from _strides(graph, [tensor], _gapless, "strides -> without overlap")
    yield from _strides(graph, memory, _gapless, "strides -> without gaps")
    # A reshape reads its tensors in the order of their strides: another order would be another reshape.
    reshaped = {t.uid for op in graph.ops if op.kind is _D.OPERATION_RESHAPE for _, t in op.ports()}
    plain = [tensor for tensor in tensors if tensor.ragged_offset is None and tensor.uid not in reshaped]
    if not any(isinstance(op, Matmul) or op.kind in _ATTENTION for op in graph.ops):
        title = "strides -> channels last (NHWC)"
        yield from _strides(graph, [t for t in plain if t.rank >= 4], lambda t: channels_last(t.dims), title)
    if any(op.kind in CONVOLUTIONS for op in graph.ops):
        return
    memory = [tensor for tensor in plain if not tensor.virtual]
    for tensor in memory:
        yield from _strides(graph, [tensor], lambda t: packed_strides(t.dims), "strides -> row-major")
        yield from _strides(graph, [tensor], _innermost_contiguous, "strides -> innermost dim contiguous")
    for op in graph.ops:
        if isinstance(op, Matmul) and op.b in memory:
            yield from _strides(graph, [op.b], _column_major, "strides -> contracted dim contiguous")
    yield from _strides(graph, memory, lambda t: packed_strides(t.dims), "strides of all -> row-major", least=2)
    rows = [tensor for tensor in memory if tensor.dims[-1] > 1]
    yield from _strides(graph, rows, _rows_of_16_bytes, "strides -> rows of a multiple of 16 bytes")
    title = "strides, also of virtual tensors, -> row-major"
    yield from _strides(graph, plain, lambda t: packed_strides(t.dims), title)


def _overlaps(tensor: Tensor) -> bool:
    """Return whether several elements lie at one address."""
    return tensor.span_elements < math.prod(tensor.dims)


def _gapless(tensor: Tensor) -> tuple[int, ...]:
    return repack(tensor, tensor.dims).strides


def _strides(
    graph: Graph, tensors: list[Tensor], wanted: Callable[[Tensor], tuple[int, ...]], title: str, least: int = 1
) -> Iterator[Change]:
    wrong = [tensor for tensor in tensors if _differ(tensor, wanted(tensor))]
    if len(wrong) < least:
        return
    shown = f"{list(wrong[0].strides)} -> {list(wanted(wrong[0]))}" if len(wrong) == 1 else ""
    what = f"{describe(wrong)}: {title}" + (f", {shown}" if shown else "")
    yield from _replace("layout", what, "exact", graph, wrong, strides=wanted)


def _differ(tensor: Tensor, strides: tuple[int, ...]) -> bool:
    """Return whether the strides mean another layout: those of dims of 1 do not count."""
    return any(dim > 1 and one != other for dim, one, other in zip(tensor.dims, tensor.strides, strides, strict=True))


def _innermost_contiguous(tensor: Tensor) -> tuple[int, ...]:
    return _by_order(tensor, last=tensor.rank - 1)


def _column_major(tensor: Tensor) -> tuple[int, ...]:
    return _by_order(tensor, last=tensor.rank - 2)


def _by_order(tensor: Tensor, last: int) -> tuple[int, ...]:
    order = sorted(range(tensor.rank), key=lambda axis: (axis != last, tensor.strides[axis], -axis))
    return ordered_strides(tensor.dims, order)


def _rows_of_16_bytes(tensor: Tensor) -> tuple[int, ...]:
    order = sorted(range(tensor.rank), key=lambda axis: (-tensor.strides[axis], axis))
    multiple = max(1, _NEEDED_BYTES * 8 // ELEMENT_BITS[tensor.data_type])
    strides, size = [0] * tensor.rank, 1
    for position, axis in enumerate(reversed(order)):
        strides[axis] = size
        size *= tensor.dims[axis]
        if position == 0:
            size = -(-size // multiple) * multiple
    return tuple(strides)


@_kind("reordering")
def _reordering(graph: Graph) -> Iterator[Change]:
    """Elements in plain order."""
    for tensor in graph.tensors:
        if tensor.reordering is not TensorReordering.NONE:
            title = f"{tensor.name}: reordering {tensor.reordering.name} -> NONE"
            effect: Effect = "exact" if tensor.virtual else "idea"
            yield from _replace("reordering", title, effect, graph, [tensor], reordering=TensorReordering.NONE)


# padding


@dataclass(frozen=True)
class HeadDims:
    """The dims of an attention graph: ``d`` of Q and K, ``d_v`` of V, ``s_q``, ``s_kv``, None what was not found."""

    d: DimClass | None = None
    d_v: DimClass | None = None
    s_q: DimClass | None = None
    s_kv: DimClass | None = None


def head_dims(graph: Graph) -> HeadDims:
    """Return the dims of an attention graph, found from its matmuls or its SDPA operation."""
    classes = dim_classes(graph)
    for op in graph.ops:
        if isinstance(op, Operation) and op.kind in _ATTENTION:
            q, k, v = (op.fields[name].uid for name in ("q", "k", "v"))
            return HeadDims(classes.get((q, 3)), classes.get((v, 3)), classes.get((q, 2)), classes.get((k, 2)))
    matmuls = [op for op in graph.ops if isinstance(op, Matmul)]
    if len(matmuls) < 2:
        return HeadDims()
    first, last = matmuls[0], matmuls[0].a.rank - 1
    d, s_q, s_kv = classes[first.a.uid, last], classes[first.a.uid, last - 1], classes[first.b.uid, last]
    others = [op for op in matmuls[1:] if op.a.rank == first.a.rank]
    inner = [classes[op.a.uid, last] for op in others if (op.c.uid, last) in s_kv]  # dO times V
    outer = [classes[op.b.uid, last] for op in others if (op.a.uid, last) in s_kv]  # scores times V
    d_v = next((one for one in (*inner, *outer) if one != d), None)
    return HeadDims(d, d_v, s_q, s_kv)


@_kind("pad_head_dim")
def _pad_head_dim(graph: Graph) -> Iterator[Change]:
    """A head dim of the next multiple of 8 to 128, the rest zeros; the scale stays that of the old one."""
    dims = head_dims(graph)
    for classes in _distinct(dims.d, dims.d_v):
        for multiple in (8, 16, 32, 64, 128):
            yield from _pad(graph, classes, multiple, "pad_head_dim", "head dim")


_HEAD_DIMS = (256, 192, 128, 96, 64)  # that kernels are written for


@_kind("smaller_head_dim")
def _smaller_head_dim(graph: Graph) -> Iterator[Change]:
    """A smaller head dim, the largest first: that of V alone, that of Q and K alone, both."""
    dims = head_dims(graph)
    d, d_v = dims.d, dims.d_v
    sizes = {one: [size for size in _HEAD_DIMS if size < one.size] for one in (d, d_v) if one is not None}
    alone = [((one, size),) for one in (d_v, d) if one is not None for size in sizes[one]]
    both: list[tuple[tuple[DimClass, int], ...]] = []
    if d is not None and d_v is not None and d != d_v:
        both = [((d, size), (d_v, other)) for size in sizes[d] for other in sizes[d_v] if other <= size]
    for chosen in (*alone, *both):
        smaller: Graph | None = graph
        names, tensors = [], []
        for one, size in chosen:
            smaller = None if smaller is None else resize(smaller, [one], size)
            mine = [t for t in _in_memory(graph) if any(t.uid == uid for uid, _ in one.axes)]
            names.append(f"of {describe(mine)}: {one.size} -> {size}")
            tensors += [tensor.name for tensor in mine]
        if smaller is not None:
            yield Change("smaller_head_dim", f"head dim {', '.join(names)}", "idea", tuple(tensors), (smaller,))


@_kind("pad_sequence")
def _pad_sequence(graph: Graph) -> Iterator[Change]:
    """Longer sequences; exact for queries, and for keys where the real lengths are given."""
    dims = head_dims(graph)
    for classes in _distinct(dims.s_q, dims.s_kv):
        for multiple in (8, 64, 128):
            yield from _pad(graph, classes, multiple, "pad_sequence", "sequence")
    for op in graph.ops:
        if isinstance(op, Operation) and op.kind in CONVOLUTIONS:
            yield from _fitting_response(graph, op)


def _fitting_response(graph: Graph, op: Operation) -> Iterator[Change]:
    response, dims = op.fields[CONVOLUTIONS[op.kind][2]], response_dims(op)
    if dims is not None and dims != response.dims and len(dims) == response.rank:
        title = f"{response.name}: dims {list(response.dims)} -> {list(dims)}, as image, filter and padding give"
        exact = op.kind is not _D.OPERATION_CONVOLUTION_FORWARD and all(
            new >= old for new, old in zip(dims, response.dims, strict=True)
        )
        effect: Effect = "exact" if exact else "idea"
        title += ", padded with zeros" if exact else ""
        new = {response.uid: dims}
        yield from _make("pad_sequence", title, effect, [response], lambda: _set_dims(graph, new))


def _set_dims(graph: Graph, dims: Mapping[int, tuple[int, ...]]) -> Graph:
    """Return the graph with other dims for the tensors of these uids."""
    return replace_tensors(graph, {t.uid: repack(t, dims[t.uid]) for t in graph.tensors if t.uid in dims})


def response_dims(op: Operation) -> tuple[int, ...] | None:
    """Return the dims a convolution gives its response, from image, filter and parameters; None if none fit."""
    image, weights, _ = (op.fields[port] for port in CONVOLUTIONS[op.kind])
    given = op.fields["convolution"].fields
    steps = ("pre_paddings", "post_paddings", "filter_strides", "dilations")
    known = [given[name] for name in steps if len(given.get(name, ())) == image.rank - 2]
    if len(known) < len(steps) or weights.rank != image.rank:
        return None
    if min(known[2], default=1) < 1:
        return None
    spatial = [convolved_size(*sizes) for sizes in zip(image.dims[2:], weights.dims[2:], *known, strict=True)]
    return None if min(spatial, default=1) < 1 else (image.dims[0], weights.dims[0], *spatial)


@_kind("pad_channels")
def _pad_channels(graph: Graph) -> Iterator[Change]:
    """Channels of convolutions, or M, N and K of matrix products, of the next multiple of 4, 8, 16 or 32."""
    classes = dim_classes(graph)
    wanted: list[tuple[str, tuple[DimClass, ...]]] = []
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
            yield from _pad(graph, chosen, multiple, "pad_channels", what)
    for op in graph.ops:
        if isinstance(op, Operation) and op.kind in CONVOLUTIONS:
            yield from _pad_groups(graph, op)


def _pad_groups(graph: Graph, op: Operation) -> Iterator[Change]:
    """Yield a grouped convolution with more input channels per group, the new ones zeros."""
    weights = op.fields[CONVOLUTIONS[op.kind][1]]
    old = weights.dims[1] if weights.rank > 1 else 0
    for multiple in (4, 8, 16):
        new = -(-old // multiple) * multiple
        found = attempt(lambda new=new: widen_groups(graph, op, new)) if new != old else None  # type: ignore[misc]
        if found is not None:
            changed, tensors = found
            names = tuple(tensor.name for tensor in tensors)
            title = f"input channels per group of {describe(tensors)}: {old} -> {new} (a multiple of {multiple})"
            yield Change("pad_channels", f"{title}, padded with zeros", "exact", names, (changed,))


def _distinct(*classes: DimClass | None) -> Iterator[tuple[DimClass, ...]]:
    """Yield the dims of one size together, and each alone."""
    given = list(dict.fromkeys(item for item in classes if item is not None))
    if len(given) == 2 and given[0].size == given[1].size:
        yield tuple(given)
    yield from ((item,) for item in given)


def _pad(graph: Graph, classes: tuple[DimClass, ...], multiple: int, kind: str, what: str) -> Iterator[Change]:
    old = classes[0].size
    new = -(-old // multiple) * multiple
    if new == old:
        return
    changed = resize(graph, classes, new)
    if changed is None:
        return
    lengths = kind == "pad_sequence" and _has_lengths(graph)
    effect: Effect = "exact" if lengths or is_exact(graph, classes) else "idea"
    uids = {uid for item in classes for uid, _ in item.axes}
    tensors = [tensor for tensor in _in_memory(graph) if tensor.uid in uids]
    title = f"{what} of {describe(tensors)}: {old} -> {new} (a multiple of {multiple}), padded with zeros"
    title += "" if effect == "exact" else ", which take part in the softmax or a sum"
    yield Change(kind, title, effect, tuple(tensor.name for tensor in tensors), (changed,))


def _has_lengths(graph: Graph) -> bool:
    """Return whether the graph is told the real lengths of its sequences."""
    for op in graph.ops:
        if isinstance(op, Matmul) and (op.m_override or op.n_override or op.k_override):
            return True
        if op.kind in _ATTENTION and "seq_len_kv" in dict(op.ports()):
            return True
    return False


# data types


@_kind("data_type")
def _data_type(graph: Graph) -> Iterator[Change]:
    """Tensors in memory of another type: all of one type, or one that differs from the others."""
    memory = _in_memory(graph)
    yield from _integer_products(graph)
    yield from _scale_types(graph)
    yield from _odd_types(graph, memory)
    for old, facts in DATA_TYPES.items():
        for new in facts.others:
            effect: Effect = "exact" if old is _T.INT32 or new is _T.INT32 else "changes numerics"
            for chosen in _groups_of_type(graph, memory, old):
                title = f"{describe(chosen)}: {SHORT_TYPES[old]} -> {SHORT_TYPES[new]}"
                yield from _make(
                    "data_type",
                    title,
                    effect,
                    chosen,
                    lambda chosen=chosen, old=old, new=new: _retype(graph, chosen, old, new),  # type: ignore[misc]
                )


def _groups_of_type(graph: Graph, memory: list[Tensor], old: DataType) -> list[list[Tensor]]:
    """Return the tensors of a type that change together: all big ones, and each alone."""
    same = [tensor for tensor in memory if tensor.data_type is old]
    if old in (_T.INT32, _T.INT64):
        random = [t for op in all_ops(graph) for port, t in op.inputs().items() if "seed" in port or "offset" in port]
        offsets = [t.ragged_offset for t in memory if t.ragged_offset is not None]
        chosen = [[t for t in same if t in random], [t for t in same if t in offsets]]
        groups = [*(group for group in chosen if group), same]
    else:
        big = [tensor for tensor in same if not _is_statistic(tensor)]
        written, operands = _written(graph), _operands(graph)
        groups = [big, [t for t in big if t.uid not in written], [t for t in big if t.uid in written]]
        groups += [[t] for t in (big if old is _T.FLOAT else same) if t.uid not in operands]
    unique: list[list[Tensor]] = []
    for group in groups:
        if group and group not in unique:
            unique.append(group)
    return unique


def _operands(graph: Graph) -> set[int]:
    """Return what is multiplied with another tensor, whose type has to be that of the other."""
    found: set[int] = set()
    for op in graph.ops:
        if isinstance(op, Matmul):
            found |= {op.a.uid, op.b.uid}
        elif op.kind in CONVOLUTIONS or op.kind in _ATTENTION:
            found |= {tensor.uid for port, tensor in op.inputs().items() if port in _MULTIPLIED}
    return found


_MULTIPLIED = {"x", "w", "dy", "q", "k", "v", "d_o"}


def _is_statistic(tensor: Tensor) -> bool:
    """Return whether a tensor holds numbers per row or scalars, which stay float32."""
    return tensor.data_type is _T.FLOAT and (math.prod(tensor.dims) == 1 or (tensor.rank > 2 and tensor.dims[-1] == 1))


def _odd_types(graph: Graph, memory: list[Tensor]) -> Iterator[Change]:
    """Yield the type of the majority for a tensor of another floating-point type."""
    floats = [tensor for tensor in memory if tensor.data_type in _FLOATS and not _is_statistic(tensor)]
    counted = {kind: sum(t.data_type is kind for t in floats) for kind in {t.data_type for t in floats}}
    if len(counted) < 2:
        return
    usual = max(counted, key=lambda kind: (counted[kind], kind))
    odd = [tensor for tensor in floats if tensor.data_type is not usual]
    for chosen in [[tensor] for tensor in odd] + ([odd] if len(odd) > 1 else []):
        found = ", ".join(f"{t.name} {SHORT_TYPES[t.data_type]}" for t in chosen[:6])
        title = f"{found} -> {SHORT_TYPES[usual]}, as the others"
        yield from _replace("data_type", title, "changes numerics", graph, chosen, data_type=usual)


def _retype(graph: Graph, chosen: list[Tensor], old: DataType, new: DataType) -> Graph | None:
    """Return the graph with these tensors of another type, virtual ones of the old type with them if all change."""
    memory = [t for t in _in_memory(graph) if t.data_type is old and not _is_statistic(t)]
    if len(chosen) >= len(memory):
        chosen = chosen + [t for t in graph.tensors if t.virtual and t.data_type is old and old is not _T.FLOAT]
    if len(chosen) >= len(memory) and old is _T.FLOAT and new in HALF_TYPES:
        chosen = chosen + [t for op in graph.ops if isinstance(op, Matmul) for t in (op.a, op.b) if t.virtual]
    if old in FP8_TYPES:
        graph = _drop_fp8_scales(graph)
    if old is _T.DOUBLE:
        graph = Graph(tuple(_set_compute_type(op, _T.DOUBLE, _T.FLOAT) for op in graph.ops), graph.name)
    kept = {tensor.uid: tensor for tensor in graph.tensors}
    changed = {t.uid: dataclasses.replace(kept[t.uid], data_type=new) for t in chosen if t.uid in kept}
    return replace_tensors(graph, changed)


def _drop_fp8_scales(graph: Graph) -> Graph:
    """Return the graph without the factors, block scales and maxima that only 8-bit floats need."""
    leave: dict[int, Tensor] = {}
    ops: list[Op] = []
    for op in graph.ops:
        if op.kind is _D.OPERATION_BLOCK_SCALE_DEQUANTIZE:
            leave[id(op)] = op.inputs()["x"]
        scales = isinstance(op, Pointwise) and op.mode is _P.MUL and op.b is not None and _is_device_scalar(op.b)
        if scales and isinstance(op, Pointwise) and op.x is not None:
            leave[id(op)] = op.x
        if isinstance(op, Operation) and op.kind in _ATTENTION:
            op = drop_fields(op, [name for name in op.fields if name.startswith(("descale", "scale_", "amax"))])
        if not (isinstance(op, Reduction) and op.operator is _R.AMAX):
            ops.append(op)
    plain = keep_ops(graph, ops)
    return (bypass(plain, leave) or plain) if leave else plain


def _is_device_scalar(tensor: Tensor) -> bool:
    return not tensor.virtual and not tensor.by_value and math.prod(tensor.dims) == 1


@_kind("intermediate_type")
def _intermediate_type(graph: Graph) -> Iterator[Change]:
    """Virtual tensors and computation in another type."""
    yield from _operand_types(graph)
    virtual = [t for t in graph.tensors if t.virtual and t.data_type in (_T.FLOAT, *HALF_TYPES)]
    for new in (_T.FLOAT, *HALF_TYPES):
        chosen = [tensor for tensor in virtual if tensor.data_type is not new]
        title = f"virtual tensors {describe(chosen)} -> {SHORT_TYPES[new]}"
        yield from _replace("intermediate_type", title, "changes numerics", graph, chosen, data_type=new)
        for tensor in chosen if new is _T.FLOAT and len(chosen) > 1 else ():
            title = f"virtual tensor {tensor.name}: {SHORT_TYPES[tensor.data_type]} -> {SHORT_TYPES[new]}"
            yield from _replace("intermediate_type", title, "changes numerics", graph, [tensor], data_type=new)
    yield from _compute_types(graph)


def _operand_types(graph: Graph) -> Iterator[Change]:
    """Yield the type of the other operand for a virtual operand of a matmul."""
    for op in graph.ops:
        if not isinstance(op, Matmul) or op.a.data_type is op.b.data_type:
            continue
        for one, other in ((op.a, op.b), (op.b, op.a)):
            if one.virtual:
                new = SHORT_TYPES[other.data_type]
                title = f"virtual tensor {one.name}: {SHORT_TYPES[one.data_type]} -> {new}, the type of {other.name}"
                fields = {"data_type": other.data_type}
                yield from _replace("intermediate_type", title, "changes numerics", graph, [one], **fields)


def _compute_types(graph: Graph) -> Iterator[Change]:
    found = {_compute_type(op) for op in graph.ops}
    new = _T.FLOAT
    for old in sorted(kind for kind in (*HALF_TYPES, _T.DOUBLE) if kind in found):
        yield from _make(
            "intermediate_type",
            f"computation in {SHORT_TYPES[old]} -> {SHORT_TYPES[new]}",
            "changes numerics",
            (),
            lambda old=old: Graph(tuple(_set_compute_type(op, old, new) for op in graph.ops), graph.name),  # type: ignore[misc]
        )


def _integer_products(graph: Graph) -> Iterator[Change]:
    """Yield products of 8-bit integers computed in int32."""
    for old in (_T.FLOAT, _T.INT8):
        chosen = [op for op in graph.ops if _compute_type(op) is old and _multiplies_integers(op)]
        if not chosen:
            continue
        factors = [tensor for op in chosen for tensor in op.inputs().values()]
        word = DATA_TYPES[old].word or old.name.lower()
        title = f"{describe(factors)} are int8 and computed in {word} -> computed in int32"
        ops = tuple(_set_compute_type(op, old, _T.INT32) if op in chosen else op for op in graph.ops)
        yield from _make("data_type", title, "exact", (), lambda ops=ops: Graph(ops, graph.name))  # type: ignore[misc]


_SCALE_TYPES = {32: _T.FP8_E8M0, 16: _T.FP8_E4M3}  # of MXFP8 and NVFP4, by the size of their blocks


def _scale_types(graph: Graph) -> Iterator[Change]:
    """Yield block scales of a type that they have in a format of so large blocks."""
    wrong: dict[DataType, list[Tensor]] = {}
    for op in graph.ops:
        if isinstance(op, Operation) and op.kind in BLOCK_SCALES:
            sizes, scale = op.fields.get("block_size", ()), op.fields["scale"]
            new = _SCALE_TYPES.get(max(sizes, default=0) if isinstance(sizes, tuple) else sizes)
            if new is not None and scale.data_type not in _SCALE_TYPES.values():
                wrong.setdefault(new, []).append(scale)
    for new, scales in wrong.items():
        found = ", ".join(f"{t.name} {SHORT_TYPES[t.data_type]}" for t in scales)
        title = f"block scales {found} -> {SHORT_TYPES[new]}"
        yield from _replace("data_type", title, "changes numerics", graph, scales, data_type=new)


def _multiplies_integers(op: Op) -> bool:
    multiplies = isinstance(op, Matmul) or op.kind in CONVOLUTIONS
    return multiplies and all(tensor.data_type in (_T.INT8, _T.UINT8) for tensor in op.inputs().values())


def _compute_type(op: Op) -> DataType | None:
    if isinstance(op, Operation):
        convolution = op.fields.get("convolution")
        return None if convolution is None else convolution.fields.get("comp_type")
    return getattr(op, "compute_type", None)


def _set_compute_type(op: Op, old: DataType, new: DataType) -> Op:
    if _compute_type(op) is not old:
        return op
    if not isinstance(op, Operation):
        return dataclasses.replace(op, compute_type=new)  # type: ignore[type-var]
    convolution = op.fields["convolution"]
    changed = type(convolution)(convolution.kind, {**convolution.fields, "comp_type": new})
    return Operation(op.type, op.name, {**op.fields, "convolution": changed})


# virtual or in memory, by value or not


@_kind("virtual")
def _virtual(graph: Graph) -> Iterator[Change]:
    """A tensor between operations in memory instead of virtual, or the other way."""
    between = _written(graph) & _read(graph)
    top = {tensor.uid for op in graph.ops for _, tensor in op.ports()}
    for tensor in graph.tensors:
        if tensor.uid not in between & top:
            continue
        if tensor.virtual:
            title = f"{tensor.name}: virtual -> in memory"
            yield from _replace("virtual", title, "exact", graph, [tensor], virtual=False)
        elif tensor.ragged_offset is None:
            title = f"{tensor.name}: in memory -> virtual (nobody outside reads it)"
            effect: Effect = "exact" if tensor.scratch else "idea"  # an output, as far as the graph tells
            yield from _replace("virtual", title, effect, graph, [tensor], virtual=True, scratch=False)
    yield from _with_identity(graph)


def _with_identity(graph: Graph) -> Iterator[Change]:
    """Yield an output written by an identity of a virtual float tensor, where the operation itself wrote it."""
    for op in graph.ops:
        if not isinstance(op, Matmul) or op.c.virtual or op.c.scratch or op.c.by_value or op.c.data_type is _T.FLOAT:
            continue
        title = f"{op.c.name}: written by the matmul -> written by an identity of a virtual f32 tensor"
        yield from _make("virtual", title, "exact", [op.c], lambda op=op: _identity_after(graph, op))  # type: ignore[misc]


def _identity_after(graph: Graph, op: Matmul) -> Graph:
    name, uid = f"{op.c.name}_f32", next(free_uids(graph))
    middle = dataclasses.replace(op.c, name=name, uid=uid, virtual=True, data_type=_T.FLOAT)
    product = dataclasses.replace(op, c=middle, name=name)
    out = Pointwise(name=op.c.name, mode=_P.IDENTITY, x=middle, y=op.c)
    return Graph((*(product if one is op else one for one in graph.ops), out), graph.name)


@_kind("scale")
def _scale(graph: Graph) -> Iterator[Change]:
    """A number by value instead of in memory, or the other way; one instead of a tensor of ones."""
    written = _written(graph)
    for tensor in graph.tensors:
        if math.prod(tensor.dims) != 1 or tensor.virtual or tensor.uid in written:
            continue
        if tensor.by_value:
            title = f"{tensor.name}: by value -> in memory"
            yield from _replace("scale", title, "exact", graph, [tensor], by_value=False, value=None)
        elif tensor.data_type in _FLOATS:
            title = f"{tensor.name}: in memory -> by value"
            yield from _replace("scale", title, "exact", graph, [tensor], by_value=True)


# leaving something out


@_kind("drop_stats")
def _drop_stats(graph: Graph) -> Iterator[Change]:
    """Without an output that only the backward pass or a check needs."""
    read = _read(graph)
    for op in graph.ops:
        for port, tensor in op.outputs().items():
            if tensor.virtual or tensor.uid in read or port not in ("y", "c"):
                continue
            others = [one for one in graph.outputs if one.uid != tensor.uid]
            if others and _is_side_output(op, tensor):
                yield from _drop_output(graph, op, tensor, "drop_stats")
    yield from _fields_left_out(graph, "drop_stats", ("stats",), "without output stats (the others are the same)")
    for op in graph.ops:
        if isinstance(op, Operation) and isinstance(op.fields.get("softmax"), Operation):
            yield from _operation_changed(
                graph, op, ("softmax",), "drop_stats", "without the softmax statistics", "exact"
            )
    for op in _find(graph.ops, _D.OPERATION_SOFTMAX):
        names = [name for name in ("stats", "max", "sum_exp") if name in op.fields]
        if names:
            title = f"without output {', '.join(op.fields[name].name for name in names)} (the others are the same)"
            yield from _operation_changed(graph, op, names, "drop_stats", title, "exact")


def _drop_output(graph: Graph, op: Op, tensor: Tensor, kind: str) -> Iterator[Change]:
    title = f"without output {tensor.name} (the others are the same)"
    rest = [one for one in graph.ops if one is not op]
    yield from _make(kind, title, "exact", [tensor], lambda: keep_ops(graph, rest))


def _is_side_output(op: Op, tensor: Tensor) -> bool:
    return isinstance(op, Reduction | Pointwise) and (tensor.dims[-1] == 1 or math.prod(tensor.dims) == 1)


def _operation_changed(
    graph: Graph, op: Operation, names: Collection[str], kind: str, title: str, effect: Effect
) -> Iterator[Change]:
    """Yield the graph with some fields of an operation left out."""
    fields = [op.fields[name] for name in names if name in op.fields]
    tensors = [field for field in fields if isinstance(field, Tensor)]

    def make() -> Graph:
        new = drop_fields(op, names)
        return Graph(tuple(new if one is op else one for one in graph.ops), graph.name, graph.is_subgraph)

    yield from _make(kind, title, effect, tensors, make)


def _fields_left_out(
    graph: Graph, kind: str, names: tuple[str, ...], title: str, effect: Effect = "exact"
) -> Iterator[Change]:
    for op in graph.ops:
        if isinstance(op, Operation) and op.kind in _ATTENTION and any(name in op.fields for name in names):
            yield from _operation_changed(graph, op, names, kind, title, effect)


@_kind("drop_dropout")
def _drop_dropout(graph: Graph) -> Iterator[Change]:
    """Without dropout: for inference, or to be done outside."""
    fields = ("dropout_seed", "dropout_offset", "dropout_probability", "dropout_rng_dump")
    yield from _fields_left_out(graph, "drop_dropout", fields, "without dropout", "idea")
    masks = [op.fields["y"] for op in _find(graph.ops, _D.OPERATION_RNG)]
    masks += [t for t in _in_memory(graph) if "dropout" in t.name and t.rank == 4 and min(t.dims[-2:]) > 1]
    uids = {tensor.uid for tensor in masks}
    leave: dict[int, Tensor] = {}
    for op in graph.ops:
        if not (isinstance(op, Pointwise) and op.mode is _P.MUL and op.x is not None and op.b is not None):
            continue
        if op.b.uid in uids or op.x.uid in uids:
            leave[id(op)] = op.x if op.b.uid in uids else op.b
        elif "dropout" in op.b.name:
            leave[id(op)] = op.x
    if leave and uids:
        yield from _make("drop_dropout", "without dropout", "idea", masks, lambda: bypass(graph, leave))


@_kind("drop_bias")
def _drop_bias(graph: Graph) -> Iterator[Change]:
    """Without an additive bias of the scores or of a product, or without its gradient."""
    for op in graph.ops:
        for tensor in op.outputs().values():
            if "bias" in tensor.name and not tensor.virtual and not isinstance(op, Operation):
                yield from _drop_output(graph, op, tensor, "drop_bias")
    yield from _fields_left_out(graph, "drop_bias", ("dbias",), "without output dbias (the others are the same)")
    gradients = [op for op in graph.ops for t in op.outputs().values() if "bias" in t.name and not t.virtual]
    kept = [op for op in graph.ops if op not in gradients]
    if gradients and kept and (rest := attempt(lambda: keep_ops(graph, kept))) is not None:
        for change in _drop_bias(rest):
            names = [t for op in gradients for t in op.outputs().values()]
            yield dataclasses.replace(change, title=f"{change.title} and its gradient {describe(names)}")
    for op in all_ops(graph):
        if isinstance(op, Pointwise) and op.mode is _P.ADD and op.x is not None and op.b is not None:
            for one, other in ((op.b, op.x), (op.x, op.b)):
                if not one.virtual and math.prod(one.dims) > 1:
                    title = f"without the bias {one.name}"
                    leave = {id(op): other}
                    yield from _make("drop_bias", title, "idea", [one], lambda leave=leave: bypass(graph, leave))  # type: ignore[misc]


@_kind("mask")
def _mask(graph: Graph) -> Iterator[Change]:
    """Without a mask of the scores, or one aligned at the top left."""
    found: dict[int, Tensor] = {}
    names: dict[int, str] = {}
    for op in all_ops(graph):
        names[id(op)] = op.name
        lowest = isinstance(op, Pointwise) and op.mode is _P.BINARY_SELECT and op.b is not None and _is_lowest(op.b)
        if lowest and isinstance(op, Pointwise) and op.x is not None:
            found[id(op)] = op.x
        if op.kind is _D.OPERATION_DIAGONAL_BAND_MASK:
            found[id(op)] = dict(op.ports())["x"]
    for number, x in found.items():
        leave, title = {number: x}, f"without the mask {names[number]}"
        yield from _make("mask", title, "idea", [x], lambda leave=leave: bypass(graph, leave))  # type: ignore[misc]
    if len(found) > 1:
        yield from _make("mask", "without any mask", "idea", found.values(), lambda: bypass(graph, found))
    yield from _fields_left_out(graph, "mask", ("block_mask",), "without the block mask", "idea")
    for op in _find(graph.ops, _D.OPERATION_DIAGONAL_BAND_MASK):
        if "seq_len_kv" in op.fields:
            lengths = ("seq_len_kv", "seq_len_q")
            yield from _operation_changed(graph, op, lengths, "mask", f"{op.name}: aligned at the top left", "idea")


def _is_lowest(tensor: Tensor) -> bool:
    return tensor.by_value and (tensor.value is None or tensor.value <= -1e4)


@_kind("drop_operation")
def _drop_operation(graph: Graph) -> Iterator[Change]:
    """Without one operation, or all of a kind at the beginning: tells which one does not fit."""
    for op in all_ops(graph):
        outputs = list(op.outputs().values())
        if isinstance(op, Matmul) or op.kind in _ATTENTION or op.kind in CONVOLUTIONS or not outputs:
            continue
        same = [tensor for tensor in op.inputs().values() if tensor.dims == outputs[0].dims]
        title = f"without the operation {op.name} ({_kind_of(op)})"
        if same and len(outputs) == 1:
            first = next((tensor for tensor in same if tensor.virtual), same[0])
            leave = {id(op): first}
            yield from _make("drop_operation", title, "idea", outputs, lambda leave=leave: bypass(graph, leave))  # type: ignore[misc]
        ends = [tensor for tensor in outputs if tensor.virtual or tensor.uid in _read(graph)]
        if len(graph.ops) > 1 and not ends and op in graph.ops:
            given = [tensor for tensor in op.inputs().values() if tensor.virtual]
            yield from _done_outside(graph, [op], given, f"{title}, which is done outside")
    entrances: dict[str, list[Op]] = {}
    for op in graph.ops:
        product = isinstance(op, Matmul) or op.kind in CONVOLUTIONS or op.kind in _ATTENTION
        if not product and not any(tensor.virtual for tensor in op.inputs().values()):
            entrances.setdefault(_kind_of(op), []).append(op)
    for name, ops in entrances.items():
        made = [tensor for op in ops for tensor in op.outputs().values()]
        title = f"without the operations {', '.join(op.name for op in ops)} ({name}), which are done outside"
        if len(ops) < len(graph.ops):
            yield from _done_outside(graph, ops, made, title)


def _kind_of(op: Op) -> str:
    return f"pointwise {op.verb()}" if isinstance(op, Pointwise) else op.verb()


def _done_outside(graph: Graph, ops: list[Op], shared: list[Tensor], title: str) -> Iterator[Change]:
    new = {tensor.uid: dataclasses.replace(tensor, virtual=False) for tensor in shared}
    rest = tuple(op for op in graph.ops if op not in ops)
    if rest:
        yield from _make(
            "drop_operation", title, "idea", shared, lambda: keep_ops(graph, replace_tensors_in(rest, new))
        )


# other graphs for the same


@_kind("heads")
def _heads(graph: Graph) -> Iterator[Change]:
    """Heads of K and V repeated in memory, as many as Q has."""
    if len([op for op in graph.ops if isinstance(op, Matmul)]) > 2:
        return  # gradients are summed over the group
    new: dict[int, tuple[int, ...]] = {}
    for op in graph.ops:
        fields = dict(op.ports())
        pairs = [(op.a, op.b)] if isinstance(op, Matmul) else []
        if op.kind is _D.OPERATION_SDPA_FWD:
            pairs = [(fields["q"], fields["k"]), (fields["q"], fields["v"])]
        for many, few in pairs:
            if many.rank == few.rank == 4 and 1 <= few.dims[1] < many.dims[1] and not few.virtual:
                new[few.uid] = (few.dims[0], many.dims[1], *few.dims[2:])
    few_heads = [tensor for tensor in graph.tensors if tensor.uid in new]
    if few_heads:
        title = ", ".join(f"{t.name} {t.dims[1]} -> {new[t.uid][1]}" for t in few_heads)
        title = f"heads repeated in memory: {title}"
        yield from _make("heads", title, "exact", few_heads, lambda: _set_dims(graph, new))


@_kind("unified")
def _unified(graph: Graph) -> Iterator[Change]:
    """Composite attention as the one SDPA operation."""
    yield from _make("unified", "composite graph -> the one SDPA operation", "exact", (), lambda: as_unified(graph))


@_kind("composite")
def _composite(graph: Graph) -> Iterator[Change]:
    """The SDPA operation, or the single SOFTMAX operation, as many operations."""
    title = "the SDPA operation -> matmuls, pointwise operations and reductions"
    yield from _make("composite", title, "exact", (), lambda: as_composite(graph))
    title = "the SDPA_BWD operation -> matmuls, pointwise operations and reductions"
    yield from _make("composite", title, "exact", (), lambda: as_composite_backward(graph))
    title = "a softmax written by hand -> with the statistics of its rows, as the kernels of attention read it"
    yield from _make("composite", title, "exact", (), lambda: add_row_statistics(graph))
    title = "K (or Q) scaled before the matmul -> the scores scaled after it"
    yield from _make("composite", title, "changes numerics", (), lambda: scale_scores(graph))
    title = "the softmax operation -> reductions and pointwise operations"
    yield from _make("composite", title, "exact", (), lambda: expand_softmax(graph))


# other shapes for the same


@_kind("flatten")
def _flatten(graph: Graph) -> Iterator[Change]:
    """Leading axes as one, so that tensors have 4 dims; what is reduced as rows and columns."""
    found = flatten_leading(graph)
    if found is not None:
        changed, copied = found
        old = max(tensor.rank for tensor in graph.tensors)
        title = f"tensors of {old} dims -> 4, leading axes as one"
        title += f" ({describe(copied)} copied: no single stride does)" if copied else ""
        yield Change("flatten", title, "exact", tuple(t.name for t in _in_memory(graph)), (changed,))
    memory = _in_memory(graph)
    for rows in as_rows_and_columns(graph):
        new = {tensor.name: rows.tensor(tensor.name) for tensor in memory[:6]}
        shown = ", ".join(f"{t.name} {list(t.dims)} -> {list(new[t.name].dims)}" for t in memory[:6])
        largest = max(new.values(), key=lambda tensor: math.prod(tensor.dims))
        title = f"rows and columns as images of 1 x 1, channels last (strides {list(largest.strides)}): {shown}"
        yield Change("flatten", title, "exact", tuple(t.name for t in memory), (rows,))


@_kind("lengths")
def _lengths(graph: Graph) -> Iterator[Change]:
    """Lengths and offsets of sequences with dims (n, 1, 1, 1)."""
    dims = find_lengths_of_other_rank(graph)
    offsets = [t.ragged_offset for op in all_ops(graph) for _, t in op.ports() if t.ragged_offset is not None]
    wrong = {t.uid: t for t in (*graph.tensors, *offsets) if t.uid in dims}
    if wrong:
        found = ", ".join(f"{t.name} {list(t.dims)} -> {list(dims[t.uid])}" for t in wrong.values())
        title = f"dims of lengths: {found}"
        yield from _make("lengths", title, "exact", wrong.values(), lambda: set_dims(graph, dims))


@_kind("bias_dims")
def _bias_dims(graph: Graph) -> Iterator[Change]:
    """A bias repeated in memory along dims in which it broadcasts; its gradient is then summed by the caller."""
    for bias, whole, gradients in find_biases(graph):
        last, heads = (*bias.dims[:2], *whole[2:]), (1, *whole[1:])
        for dims in dict.fromkeys((last, heads, whole)):
            if dims == bias.dims or any(old not in (1, new) for old, new in zip(bias.dims, dims, strict=True)):
                continue
            both = [bias, *gradients]
            title = f"dims of {describe(both)}: {list(bias.dims)} -> {list(dims)}, the bias repeated in memory"
            title += ", its gradient summed afterwards" if gradients else ""
            new = {tensor.uid: dims for tensor in both}
            yield from _make("bias_dims", title, "exact", both, lambda new=new: set_dims(graph, new))  # type: ignore[misc]


@_kind("dims")
def _dims(graph: Graph) -> Iterator[Change]:
    """Dims that follow from those of other tensors: results of attention, and block scales in whole tiles."""
    for op in graph.ops:
        if isinstance(op, Operation) and op.kind in _ATTENTION:
            yield from _dims_of(graph, sizes_of_attention(op), "idea", "as Q, K and V give")
        if isinstance(op, Operation) and op.kind is _D.OPERATION_RESAMPLE_FWD:
            yield from _dims_of(graph, pooled_dims(op), "idea", "as image, window, stride and padding give")
    yield from _dims_of(graph, whole_scales(graph), "exact", "whole tiles of 128 x 4, the rest of which nobody reads")


def _dims_of(graph: Graph, dims: dict[int, tuple[int, ...]], effect: Effect, why: str) -> Iterator[Change]:
    wrong = [tensor for tensor in graph.tensors if tensor.uid in dims]
    if wrong:
        found = ", ".join(f"{t.name} {list(t.dims)} -> {list(dims[t.uid])}" for t in wrong)
        yield from _make("dims", f"dims of {found}, {why}", effect, wrong, lambda: set_dims(graph, dims))


@_kind("view")
def _view(graph: Graph) -> Iterator[Change]:
    """A tensor in memory described with the strides of its transpose, or of a slice, instead of the operation."""
    for op in graph.ops:
        if not isinstance(op, Operation) or len(graph.ops) < 2:
            continue
        found = view_of(op)
        if found is None:
            continue
        seen, start = found
        title = f"{seen.name}: read with dims {list(seen.dims)} and strides {list(seen.strides)}"
        title += f" from element {start} on" if start else ""
        title += f", instead of the operation {op.name} ({op.verb()})"
        rest = tuple(one for one in graph.ops if one is not op)
        new = {op.fields["y"].uid: seen}
        yield from _make(
            "view",
            title,
            "exact",
            [op.fields["x"]],
            lambda rest=rest, new=new: Graph(replace_tensors_in(rest, new), graph.name),  # type: ignore[misc]
        )


@_kind("whole_pattern")
def _whole_pattern(graph: Graph) -> Iterator[Change]:
    """A ReLU between what scales an image and the convolution that reads it, as kernels know the pattern."""
    made = {t.uid: op for op in graph.ops if isinstance(op, Pointwise) for t in op.outputs().values()}
    for op in graph.ops:
        image = op.inputs().get("x") if op.kind in CONVOLUTIONS else None
        if image is None or image.uid not in made or made[image.uid].mode not in (_P.MUL, _P.ADD):
            continue
        title = f"with a ReLU (relu_fwd) of {image.name} before {op.name}, which sets negative values to 0"
        yield from _make("whole_pattern", title, "idea", [image], lambda op=op, t=image: relu_before(graph, op, t))  # type: ignore[misc]


@_kind("explicit_padding")
def _explicit_padding(graph: Graph) -> Iterator[Change]:
    """The image of a convolution padded in memory, where the convolution pads its sides differently."""
    for op in graph.ops:
        if not (isinstance(op, Operation) and op.kind in CONVOLUTIONS):
            continue
        found = pad_image(graph, op)
        if found is not None:
            changed, image = found
            dims = changed.tensor(image.name).dims
            backward = op.kind is _D.OPERATION_CONVOLUTION_BACKWARD_DATA
            verb = "cut off afterwards" if backward else "padded with zeros in memory"
            title = f"{image.name}: dims {list(image.dims)} -> {list(dims)}, {verb}, not by the convolution"
            yield Change("explicit_padding", title, "exact", (image.name,), (changed,))


@_kind("split")
def _split(graph: Graph) -> Iterator[Change]:
    """Two graphs instead of one, what they share in memory; those that share least first."""
    cuts = []
    for position in range(1, len(graph.ops)):
        before, after = graph.ops[:position], graph.ops[position:]
        written = {t.uid: t for op in before for t in op.outputs().values()}
        shared = [t for op in after for t in op.inputs().values() if t.uid in written]
        cuts.append((list(dict.fromkeys(shared)), before, after))
    for shared, before, after in sorted(cuts, key=lambda cut: sum(math.prod(t.dims) for t in cut[0])):
        new = {t.uid: dataclasses.replace(t, virtual=False, scratch=False) for t in shared}
        first = attempt(lambda b=before, n=new: _part(graph, b, n, 1))  # type: ignore[misc]
        second = attempt(lambda a=after, n=new: _part(graph, a, n, 2))  # type: ignore[misc]
        if first is not None and second is not None:
            title = f"two graphs, {describe(shared) or 'nothing'} in memory between them"
            yield Change("split", title, "exact", tuple(t.name for t in shared), (first, second))


def _part(graph: Graph, ops: tuple[Op, ...], new: dict[int, Tensor], number: int) -> Graph:
    return Graph(replace_tensors_in(ops, new), f"{graph.name}_{number}")


KINDS: tuple[str, ...] = (*CHANGES, "target", "version")
