"""View a call's tensors as sequences of tokens, so that one plan can run calls of many shapes.

Dense tensors whose heads are inside their rows ([b, s, h, d] in memory) are sequences as they are, and so are packed
tokens. Heads before rows ([b, h, s, d] in memory) are b * h sequences of one head, where heads have nothing of their
own; otherwise they are copied. Imports nothing of torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from ..graph.attention import Attention
from ..graph.attention.problem import TensorLayout
from ..graph.attention.shape_class import ShapeClassBounds, find_broadcast_dims
from .arguments import ALIGNMENT, OperatorOptions, get_data_type, has_supported_strides, is_fp8
from .graphs import make_attention_problem

__all__ = [
    "TOKEN_TENSORS",
    "SequenceView",
    "make_attention_problem_of_call",
    "make_sequence_view_of_call",
    "must_avoid_decoding_kernels",
]

TOKEN_TENSORS = {False: ("q", "k", "v", "o"), True: ("q", "k", "v", "o", "do", "dq", "dk", "dv")}
_PER_HEAD_TENSORS = ("bias", "alibi_slopes", "sink")  # what heads have of their own


class SequenceView(NamedTuple):
    """A call's tensors as sequences of tokens, with the properties that all calls of one plan share.

    Parameters
    ----------
    related_plans
        What it has in common with calls of other batches and lengths.
    batch, max_q, max_kv, total_q, total_kv
        As in :class:`~cudnn_backend_py.execution.shape_class_plan.Sequences`.
    least_q
        What the bound of Q must be at least: above `max_q` where kernels for decoding do not serve the call.
    multipliers
        By tensor: elements from one token (packed) or one sequence (dense) to the next.
    copied
        Tensors that have to be laid out as [b, s, h, d] first (or, if they are written, back from there).
    heads_folded
        Heads that became sequences; 1 if none did.
    """

    related_plans: tuple[Any, ...]
    batch: int
    max_q: int
    max_kv: int
    least_q: int
    total_q: int | None
    total_kv: int | None
    multipliers: dict[str, int]
    copied: tuple[str, ...]
    heads_folded: int
    strides: dict[str, tuple[int, int]]  # from head to head, and from token to token
    options: OperatorOptions

    @property
    def needed_bounds(self) -> ShapeClassBounds:
        """The smallest bounds on batch and sequence lengths with which a plan can run the call."""
        return ShapeClassBounds(self.batch, self.least_q, self.max_kv)


def make_sequence_view_of_call(backward: bool, named: Mapping[str, Any], options: OperatorOptions) -> SequenceView:
    """View the tensors of a call, which was checked before, as sequences of tokens."""
    q, k, v, table, stats = (named[name] for name in ("q", "k", "v", "block_table", "stats"))
    packed = q.dim() == 3
    batch, max_q, max_kv = _get_shape_class_bounds_of_call(named, options)
    moved = [name for name in TOKEN_TENSORS[backward] if table is None or name not in ("k", "v")]
    folded = 1 if packed or table is not None else _count_heads_to_fold(named, moved, backward)
    heads = 1 if folded > 1 else q.shape[1]
    strides, multipliers, copied = {}, {}, []
    for name in moved:
        found = _read_sequence_strides(named[name], packed, folded, backward and name in ("q", "dq"))
        if found is None:
            copied.append(name)
            found = _make_packed_strides(named[name], packed)
        head, token, multipliers[name] = found
        strides[name] = head, token
    if stats is not None:
        if not (stats.t() if packed else stats if folded > 1 else stats.transpose(1, 2)).is_contiguous():
            copied.append("stats")
        multipliers["stats"] = heads if packed else max_q * heads
    may_decode = _can_use_decoding_kernels(named, options) and not must_avoid_decoding_kernels(backward, options, max_q)
    least_q = 2 if max_q == 1 and not may_decode else max_q
    options = _select_options_shared_by_calls_of_plan(backward, options, max_q)
    related_plans = (
        *(backward, options, q.dtype, q.device, folded > 1, q.shape[1], k.shape[1], v.shape[1], q.shape[-1]),
        *(
            v.shape[-1],
            *strides.values(),
            *[named.get(name) is None for name in (*_PER_HEAD_TENSORS, "dbias", "stats")],
        ),
        None if named["bias"] is None else find_broadcast_dims(named["bias"].shape, max_q, max_kv),
        None if table is None else (k.shape, k.stride(), v.shape, v.stride()),
    )
    return SequenceView(
        related_plans,
        batch * folded,
        max_q,
        max_kv,
        least_q,
        q.shape[0] if packed else None,
        k.shape[0] if packed and table is None else None,
        multipliers,
        tuple(copied),
        folded,
        strides,
        options,
    )


def _get_shape_class_bounds_of_call(named: Mapping[str, Any], options: OperatorOptions) -> ShapeClassBounds:
    """Return a call's number of sequences, and its maximum numbers of queries and keys per sequence."""
    q, k, table = named["q"], named["k"], named["block_table"]
    packed = q.dim() == 3
    batch = named["cu_seqlens_q"].shape[0] - 1 if packed else q.shape[0]
    max_q = max(options.max_q or 1, 1) if packed else q.shape[2]
    if table is not None:
        whole = table.shape[1] * k.shape[2]
        return ShapeClassBounds(batch, max_q, max(whole if options.max_kv is None else min(whole, options.max_kv), 1))
    return ShapeClassBounds(batch, max_q, max(options.max_kv or max_q, 1) if packed else k.shape[2])


def _can_use_decoding_kernels(named: Mapping[str, Any], options: OperatorOptions) -> bool:
    """Return whether cuDNN's kernels for single queries (decoding) support a call and compute it correctly.

    Of ragged sequences with grouped heads they do not write all statistics.
    """
    grouped_stats = named["stats"] is not None and named["k"].shape[1] != named["q"].shape[1]
    return not (is_fp8(named["q"]) or named["sink"] is not None or options.dropout or grouped_stats)


def must_avoid_decoding_kernels(backward: bool, options: OperatorOptions, max_q: int) -> bool:
    """Return whether cuDNN's decoding kernels must not be used, as their results are not deterministic.

    They split the keys of a query among blocks, and results of equal calls differ in the last bits: so seen with 9.19.0
    on an H100, 239 keys and head dims of 80, 96 and 160.
    """
    return options.deterministic and not backward and max_q == 1


def _select_options_shared_by_calls_of_plan(backward: bool, options: OperatorOptions, max_q: int) -> OperatorOptions:
    """Return the options that all calls of one plan share, without options that have no effect."""
    if options.bottom_right and max_q == 1:  # the last token sees every key
        options = options._replace(right_bound=None)
    if options.left_bound is None and options.right_bound is None:
        options = options._replace(bottom_right=False)
    deterministic = options.deterministic and backward
    return options._replace(max_q=None, max_kv=None, shapes="", deterministic=deterministic)


def make_attention_problem_of_call(backward: bool, named: Mapping[str, Any], reading: SequenceView) -> Attention:
    """Return a call's attention problem, with the strides over heads and tokens that all related plans use.

    Raises
    ------
    GraphError
        What :class:`Attention` refuses.
    """
    r, (q, k, v, table) = reading, (named[name] for name in ("q", "k", "v", "block_table"))
    layouts = {}
    for name, (head, token) in r.strides.items():
        x = named[name]
        heads, dim = (1 if r.heads_folded > 1 else x.shape[1]), x.shape[-1]
        most = r.max_q if name.removeprefix("d") in ("q", "o") else r.max_kv
        layouts[name] = TensorLayout((r.batch, heads, most, dim), (most * token, head, token, 1), get_data_type(x))
    pages: dict[str, Any] = {}
    if table is not None:
        for name, x in (("k", k), ("v", v)):
            layouts[name] = TensorLayout(
                (r.batch, x.shape[1], r.max_kv, x.shape[3]), tuple(x.stride()), get_data_type(x)
            )
        pages = {"page_size": k.shape[2], "pages_k": k.shape[0], "pages_v": v.shape[0]}
    heads = 1 if r.heads_folded > 1 else q.shape[1]
    if named["stats"] is not None:
        layouts["stats"] = TensorLayout((r.batch, heads, r.max_q, 1), (r.max_q * heads, 1, heads, 1), None)
    for name in (*_PER_HEAD_TENSORS, "dbias"):
        if named.get(name) is not None:
            layouts[name] = TensorLayout(tuple(named[name].shape), tuple(named[name].stride()), None)
    return replace(make_attention_problem(layouts, r.options, backward=backward), padding=True, **pages)


def _count_heads_to_fold(named: Mapping[str, Any], moved: list[str], backward: bool) -> int:
    """Return how many heads can be treated as separate sequences; 1 if heads must stay together."""
    heads = named["q"].shape[1]
    plain = all(named.get(name) is None for name in _PER_HEAD_TENSORS) and all(
        named[x].shape[1] == heads for x in moved
    )
    is_tight = not backward or named["q"].stride(1) == named["q"].shape[2] * named["q"].shape[3]
    return heads if plain and heads > 1 and is_tight and all(_can_fold_heads(named[name]) for name in moved) else 1


def _can_fold_heads(x: Any) -> bool:
    """Return whether all heads of all batches in [b, h, s, d] are at equal distances in memory."""
    b, h, s, d = x.shape
    batch, head, row, _ = x.stride()
    if not has_supported_strides(x) or x.data_ptr() % ALIGNMENT or (s > 1 and row != d):
        return False
    return bool((b == 1 or batch == h * head) and (s == 1 or head > row))


def _read_sequence_strides(x: Any, packed: bool, folded: int, is_tight: bool) -> tuple[int, int, int] | None:
    """Return x's strides over heads, tokens and ragged offsets; None if x must be copied for sequences.

    Where it `is_tight` nothing may be between its tokens and sequences: the kernels of the backward pass take the
    offsets of Q and of its gradient for the same.
    """
    if not has_supported_strides(x) or x.data_ptr() % ALIGNMENT:
        return None
    dim = x.shape[-1]
    if packed:
        heads, head, token = x.shape[1], x.stride(1), x.stride(0)
        if heads == 1:
            head = dim
        if x.shape[0] == 1:
            token = heads * head
        return None if is_tight and token != heads * dim else (head, token, token)
    (_, heads, tokens, _), (sequence, head, token, _) = x.shape, x.stride()
    if folded > 1:
        return dim, (dim if tokens == 1 else token), head
    if heads == 1:
        head = dim
    if tokens == 1:
        token = heads * head
    if x.shape[0] == 1:
        sequence = tokens * token
    if head > token or (is_tight and (token, sequence) != (heads * dim, tokens * token)):
        return None
    return head, token, sequence


def _make_packed_strides(x: Any, packed: bool) -> tuple[int, int, int]:
    """Return strides over heads, tokens and ragged offsets for a packed copy of x."""
    heads, dim = x.shape[1], x.shape[-1]
    return dim, heads * dim, heads * dim * (1 if packed else x.shape[2])
