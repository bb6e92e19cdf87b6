"""Shape classes: one ragged attention graph with upper bounds, for all batch sizes and lengths within them.

Offsets and lengths are data, so the same plan runs packed tokens, and dense tensors whose heads are inside a token.
Pure; :mod:`cudnn_backend_py.execution.shape_class_plan` runs it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from ...errors import GraphError
from ...generated.enums import DataType
from ...system.version import Version, VersionTuple
from ..ir import Graph, Tensor
from ..replace import iterate_unused_uids, replace_tensors
from . import sdpa_backward, sdpa_forward
from .builder import SINGLE_OPS_SINCE
from .known_issue import AttentionUse, Form
from .known_issues import has_bounded_total_length_issue
from .problem import Attention, Implementation

__all__ = [
    "MOST_HEADS",
    "PREPARED",
    "ShapeClassBounds",
    "TokenStrides",
    "choose_shape_class_bounds",
    "explain_missing_shape_class",
    "find_best_shape_class_bounds",
    "find_broadcast_dims",
    "find_smallest_shape_in_class",
    "make_shape_class_graph",
    "make_shape_class_graph_or_reason",
    "make_shape_class_problem",
    "read_token_strides",
    "round_up_paged_kv_bound_to_tiles",
]

#: How the names of the tensors begin that are written before each launch.
PREPARED = ("seq_len_", "ragged_", "page_table_")

_GRADIENTS = ("do", "dq", "dk", "dv")
_SINCE = Version(9, 14, 0)  # the oldest cuDNN with which classes were built for this package
_TILE = 256  # keys that a kernel loads at once, at most
_LEAST = 64  # tokens; shorter bounds are no faster
#: Heads of all sequences in a backward pass: a launch of its kernels has at most as many blocks in a dim.
MOST_HEADS = 65535


class ShapeClassBounds(NamedTuple):
    """The largest batch size and sequence lengths that the plan of one shape class can run."""

    batch: int
    q: int
    kv: int

    def contains_shape(self, batch: int, q: int, kv: int) -> bool:
        """Return whether an attention call with this batch and these lengths is within the bounds."""
        return batch <= self.batch and q <= self.q and kv <= self.kv


def choose_shape_class_bounds(batch: int, q: int, kv: int, *, decoding: bool = True) -> ShapeClassBounds:
    """Return the bounds of a call's shape class: powers of two; for batches also 1.5 times a power of two.

    Measured with 9.19.0 on an H200, d 64 and 128: finer steps of the lengths gain nothing, and each sequence beyond the
    call's costs 0.17 us forward and 0.5 us backward. A q of 1 stays where there is `decoding`: cuDNN has kernels of
    their own for it.
    """
    least = 1 if q == 1 and decoding else _LEAST
    return ShapeClassBounds(
        _round_up_to_shape_class_size(batch, halves=True),
        max(least, _round_up_to_shape_class_size(q)),
        max(_LEAST, _round_up_to_shape_class_size(kv)),
    )


def _round_up_to_shape_class_size(size: int, *, halves: bool = False) -> int:
    power = 1 << max(size - 1, 0).bit_length()
    between = power // 4 * 3
    return between if halves and size <= between else power


def find_best_shape_class_bounds(p: Attention, needed: ShapeClassBounds | None = None) -> ShapeClassBounds:
    """Return the bounds of the shape class to use for a problem; `needed` replaces its batch and lengths.

    Kernels for decoding have no 8-bit types, sinks and dropout, and write statistics of grouped heads for the first
    head of each group only.
    """
    grouped_rows = p.heads != p.kv_heads and (p.stats or p.max or p.sum_exp)
    decoding = not (p.is_fp8 or p.sink or p.dropout or grouped_rows)
    needed = needed or ShapeClassBounds(p.batch, p.seq_q, p.seq_kv)
    bounds, most = choose_shape_class_bounds(*needed, decoding=decoding), MOST_HEADS // p.heads
    if needed.batch <= most < bounds.batch:
        bounds = bounds._replace(batch=most)
    return round_up_paged_kv_bound_to_tiles(p, bounds)


def round_up_paged_kv_bound_to_tiles(p: Attention, bounds: ShapeClassBounds) -> ShapeClassBounds:
    """Return bounds with the length of paged keys rounded up to whole kernel tiles; unchanged without pages.

    Kernels load whole tiles of keys, and look up the pages of all of a tile: also after the end of the page table.
    """
    return bounds if p.page_size is None else bounds._replace(kv=-(-bounds.kv // _TILE) * _TILE)


def find_smallest_shape_in_class(p: Attention, bounds: ShapeClassBounds) -> ShapeClassBounds:
    """Return the smallest batch and lengths that :func:`find_best_shape_class_bounds` rounds up to these bounds.

    Single rows are left out where they have a class of their own.
    """
    first = ShapeClassBounds(1, 1 if bounds.q == 1 else 2, 1)
    return ShapeClassBounds(*(_find_smallest_size_in_class(p, bounds, axis, least) for axis, least in enumerate(first)))


def _find_smallest_size_in_class(p: Attention, bounds: ShapeClassBounds, axis: int, least: int) -> int:
    def round_up_size_to_class(size: int) -> int:
        return find_best_shape_class_bounds(
            p, ShapeClassBounds(*(size if at == axis else bound for at, bound in enumerate(bounds)))
        )[axis]

    return least + bisect_left(range(least, bounds[axis]), bounds[axis], key=round_up_size_to_class)


class TokenStrides(NamedTuple):
    """Strides of a tensor b, h, s, d between batch entries, tokens and heads, in elements; d is contiguous."""

    batch: int
    token: int
    head: int


def read_token_strides(dims: tuple[int, ...], strides: tuple[int, ...]) -> TokenStrides | None:
    """Return the token strides of a tensor b, h, s, d if it can be read as ragged, else None.

    It can where all heads of a token are between that token and the next one, as in b, s, h, d memory and in slices
    of packed Q, K and V: strides over tokens and heads are then the same for every batch and length. Strides over
    dims of 1 mean nothing, and are replaced by those of b, s, h, d memory.
    """
    (_, h, s, d), (batch, head, token, inner) = dims, strides
    if d > 1 and inner != 1:
        return None
    head = d if h == 1 else head
    reach = (h - 1) * head + d
    token = reach if s == 1 else token
    if head < d or token < reach or batch < 0:
        return None
    return TokenStrides(s * token if dims[0] == 1 else batch, token, head)


def make_shape_class_graph_or_reason(p: Attention, *, backward: bool, version: VersionTuple, sm: int) -> Graph | str:
    """Return the graph of the shape class that contains a problem, or as text the reason why there is none.

    What cuDNN refuses shows only when the plan is built.
    """
    for reason in _find_reasons_against_shape_class(p, backward, version):
        return reason
    try:
        return make_shape_class_graph(
            make_shape_class_problem(p, find_best_shape_class_bounds(p), backward=backward), backward, version, sm
        )
    except GraphError as error:
        return error.headline


def explain_missing_shape_class(p: Attention, *, backward: bool, version: VersionTuple, sm: int) -> str:
    """Return as text why no shape class contains a problem; empty if one does."""
    found = make_shape_class_graph_or_reason(p, backward=backward, version=version, sm=sm)
    return found if isinstance(found, str) else ""


def _find_reasons_against_shape_class(p: Attention, backward: bool, version: VersionTuple) -> Iterator[str]:
    if version < _SINCE:
        yield f"plans for many shapes need cuDNN {_SINCE} or later"
    if p.ragged:
        yield "its sequences are ragged: its plan takes every length within its bounds as it is"
    for name, wanted in (
        ("a block mask", p.block_mask),
        ("a given dropout mask", p.dropout_mask),
        ("rng_dump", p.rng_dump),
    ):
        if wanted:
            yield f"{name} has dims that follow from the lengths"
    if p.mx:
        yield "the scales of block-scaled types have dims that follow from the lengths"
    for name in ("q", "k", "v", "o", *(_GRADIENTS if backward else ())):
        if not _is_paged(p, name) and read_token_strides(p.dims(name), p.strides(name)) is None:
            yield f"the heads of a token of {name} are not adjacent in memory: its strides are {p.strides(name)}"


def make_shape_class_problem(p: Attention, bounds: ShapeClassBounds, *, backward: bool) -> Attention:
    """Return the problem of the shape class that contains `p`, with its sizes at the bounds.

    `p` says of its tensors how far tokens and heads are apart; see :func:`read_token_strides`. Offsets have 64 bits.

    Raises
    ------
    GraphError
        ``attention-layout`` for strides that cannot be read as ragged.
    """
    batch, q, kv = bounds
    return replace(
        p,
        batch=batch,
        seq_q=q,
        seq_kv=kv,
        layout=dict(_make_shape_class_layout(p, bounds, backward)),
        bias=_make_shape_class_bias_dims(p, bounds),
        padding=True,
        ragged=True,
        ragged_stats=backward or p.stats or p.max or p.sum_exp,
        stats=p.stats and not backward,
        deterministic=p.deterministic and backward,
        offset_type=DataType.INT64,
        max_total_seq_q=batch * q if backward else None,
        max_total_seq_kv=batch * kv if backward else None,
    )


def _make_shape_class_layout(
    p: Attention, bounds: ShapeClassBounds, backward: bool
) -> Iterator[tuple[str, tuple[int, int, int, int]]]:
    for name in ("q", "k", "v", "o", *(_GRADIENTS if backward else ())):
        if _is_paged(p, name):
            yield name, p.strides(name)
            continue
        found = read_token_strides(p.dims(name), p.strides(name))
        if found is None:
            raise GraphError(
                f"the heads of a token of {name} are not adjacent in memory: its strides are {p.strides(name)}",
                code="attention-layout",
            )
        length = bounds.q if name.removeprefix("d") in ("q", "o") else bounds.kv
        yield name, (length * found.token, found.head, found.token, 1)


def _is_paged(p: Attention, name: str) -> bool:
    return p.page_size is not None and name in ("k", "v")


def _make_shape_class_bias_dims(p: Attention, bounds: ShapeClassBounds) -> tuple[int, int, int, int] | None:
    if p.bias is None:
        return None
    most = (bounds.batch, p.heads, bounds.q, bounds.kv)
    is_shared = find_broadcast_dims(p.bias, p.seq_q, p.seq_kv)
    b, h, s_q, s_kv = (1 if shared else bound for shared, bound in zip(is_shared, most, strict=True))
    return b, h, s_q, s_kv


def find_broadcast_dims(bias: Sequence[int], seq_q: int, seq_kv: int) -> tuple[bool, bool, bool, bool]:
    """Return for each dim whether a bias broadcasts along it; a dim where the scores have size 1 does not count."""
    b, h, s_q, s_kv = bias
    return b == 1, h == 1, s_q == 1 < seq_q, s_kv == 1 < seq_kv


def make_shape_class_graph(p: Attention, backward: bool, version: VersionTuple, sm: int) -> Graph:
    """Return the graph of a shape class; dO and each gradient have their own ragged offsets, such as ``ragged_dq``.

    The sums of the lengths stay bounded, which keeps a backward pass's memory small, where no fault is known of that
    and the gradient of Q is as Q does.

    Raises
    ------
    GraphError
        As :func:`~cudnn_backend_py.graph.attention.sdpa_forward`.
    """
    if not backward:
        # The unified operation gets score modifiers of padded sequences wrong.
        implementation: Implementation = "auto" if p.score_modifier is None else "composite"
        return sdpa_forward(p, implementation=implementation, version=version, sm=sm)
    form: Form = "expanded" if version < SINGLE_OPS_SINCE else "single operations"
    # With bounds, the kernel takes the offsets of Q and of its gradient for the same.
    has_other_layout = p.strides("q")[1:] != p.strides("dq")[1:]
    if has_other_layout or has_bounded_total_length_issue(AttentionUse(p, True, form, version, sm)):
        p = replace(p, max_total_seq_q=None, max_total_seq_kv=None)
    graph = sdpa_backward(p, version=version, sm=sm)
    uids = iterate_unused_uids(graph)
    offsets: dict[str, Tensor] = {}
    changed: dict[int, Tensor] = {}
    for tensor in graph.tensors:
        owner = tensor.name.partition("_")[0]  # dq_accum is like dq
        if tensor.ragged_offset is not None and owner in _GRADIENTS:
            if owner not in offsets:
                offsets[owner] = replace(tensor.ragged_offset, name=f"ragged_{owner}", uid=next(uids))
            changed[tensor.uid] = replace(tensor, ragged_offset=offsets[owner])
    return replace_tensors(graph, changed)
