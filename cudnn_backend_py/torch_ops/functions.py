"""The functions that users call: dense attention, packed tokens, paged K and V."""

from __future__ import annotations

from typing import Any, Literal

from ..errors import UsageError
from ..execution.any_shape import POLICIES, Shapes
from .arguments import TENSORS, Scales, check_dims, check_scales, get_required_head_dim_multiple, get_type_name, is_fp8
from .compiled import DENSE, PACKED, PAGED, PAGED_PACKED, SELF_PACKED, STEP
from .operators import attend, load_torch
from .strategies import forget_plans

__all__ = [
    "Alignment",
    "attention",
    "attention_varlen",
    "attention_with_kvcache",
    "clear_plans",
    "default_shapes",
    "set_shapes",
]

Alignment = Literal["top_left", "bottom_right"]
_default_shape_policy: list[Shapes] = ["any"]  # the policy of calls without `shapes`


def attention(
    q: Any,
    k: Any,
    v: Any,
    *,
    bias: Any = None,
    seq_len_q: Any = None,
    seq_len_kv: Any = None,
    alibi_slopes: Any = None,
    sink: Any = None,
    scale: float | None = None,
    causal: bool = False,
    left_bound: int | None = None,
    right_bound: int | None = None,
    alignment: Alignment = "top_left",
    soft_cap: float | None = None,
    dropout: float = 0.0,
    deterministic: bool | None = None,
    scales: Scales | None = None,
    shapes: Shapes | None = None,
    out: Any = None,
    return_stats: bool = False,
    return_amax: bool = False,
) -> Any:
    """Compute attention with the options of :class:`~cudnn_backend_py.graph.attention.Attention`.

    Gradients flow to `q`, `k`, `v`, and to `bias` and `sink` where they need one. It runs on torch's current stream;
    workspace comes from torch's allocator. Under autocast `q`, `k`, `v` and `bias` are taken in its type.

    Parameters
    ----------
    q, k, v
        [b, h, s, d] float16 or bfloat16 on one GPU, in any layout with d dense; or 8-bit floats, with `scales`. Head
        dims that are no multiples of 8 are padded with zeros (8-bit floats: refused unless multiples of 16).
    bias
        [b or 1, h or 1, s_q or 1, s_kv or 1] of q's type, added to the scaled scores.
    seq_len_q, seq_len_kv
        [b] (or [b, 1, 1, 1]) int32: the real lengths, for padded sequences; both or neither. Rows beyond are 0.
    alibi_slopes, sink
        [h] (or [1, h, 1, 1]) float32.
    left_bound, right_bound, causal, alignment
        Key j takes part in row i where ``j <= i + right_bound`` and ``j + left_bound > i``; causal is a right bound of
        0. With "bottom_right" the last row sees what the last key allows, otherwise the first rows are aligned.
    soft_cap
        Scores become ``soft_cap * tanh(score / soft_cap)``.
    dropout
        Probability; seed and offset are drawn from torch's generator of that GPU.
    deterministic
        Equal calls give equal bits. Otherwise the backward pass may add with atomics, and single queries may use
        kernels that split the keys. The default is torch's switch, ``torch.are_deterministic_algorithms_enabled()``.
    scales
        The factors of 8-bit floats, needed with them. They have no gradient here.
    shapes
        The plan of a call. "any": that of a class of shapes, built at the first call of the class. "exact": one of the
        shape's own, built at the first call of the shape. With both, the plan depends on the call alone. "adaptive":
        the class plan, or that of a larger class while it is built in the background, and later the exact plan of a
        shape that keeps coming back; so earlier calls can change the last bits of a result. With `deterministic` or
        `dropout`, "adaptive" is "any". The default is what :func:`set_shapes` set, at first "any".
    out
        Written in place of a new tensor: [b, h, s_q, d_v] of q's type. No gradient flows through it.
    return_stats
        Also return the log of the sum of exponentials, [b, h, s_q, 1] float32; no gradient flows through it.
    return_amax
        Also return ``amax_s`` and ``amax_o`` of 8-bit floats, float32 [1] each.

    Returns
    -------
    Tensor or tuple
        O [b, h, s_q, d_v], laid out as `q`; then statistics and amaxes where they are requested.

    Raises
    ------
    EnvironmentNotReady
        ``torch-missing``.
    UsageError
        ``torch-tensor``, ``torch-option``; ``plan-in-capture`` where a plan would be built while a CUDA graph is
        captured, which then goes on.
    GraphError
        What :class:`~cudnn_backend_py.graph.attention.Attention` refuses, ``attention-hazard``.
    NotSupported
        What cuDNN refuses.
    """
    torch = load_torch()
    if (
        not torch.compiler.is_compiling()
        and STEP.call is not None
        and _has_default_options(dropout, scales, out, return_amax)
    ):
        found = STEP.call(
            DENSE,
            q,
            k,
            v,
            bias,
            seq_len_q,
            seq_len_kv,
            None,
            None,
            None,
            alibi_slopes,
            sink,
            None,
            scale,
            dropout,
            left_bound,
            _get_right_bound(causal, right_bound),
            _is_bottom_right(alignment),
            soft_cap,
            torch._C._get_deterministic_algorithms() if deterministic is None else deterministic,
            None,
            None,
            _default_shape_policy[0] if shapes is None else shapes,
            return_stats,
        )
        if found is not None:
            return found
    _check_four_dims(q=q, k=k, v=v)
    q, k, v, bias = _cast_for_autocast(torch, q, k, v, bias)
    return _call_attention_operators(
        torch,
        (
            q,
            k,
            v,
            bias,
            _flatten_to_one_dim(seq_len_q),
            _flatten_to_one_dim(seq_len_kv),
            None,
            None,
            None,
            _flatten_to_one_dim(alibi_slopes),
            _flatten_to_one_dim(sink),
        ),
        scales,
        (scale, dropout, causal, left_bound, right_bound, alignment, soft_cap, deterministic, None, None, shapes),
        out,
        return_stats,
        return_amax,
    )


def attention_varlen(
    q: Any,
    k: Any,
    v: Any,
    cu_seqlens_q: Any,
    cu_seqlens_k: Any = None,
    max_seqlen_q: int | None = None,
    max_seqlen_k: int | None = None,
    *,
    bias: Any = None,
    alibi_slopes: Any = None,
    sink: Any = None,
    scale: float | None = None,
    causal: bool = False,
    left_bound: int | None = None,
    right_bound: int | None = None,
    alignment: Alignment = "bottom_right",
    soft_cap: float | None = None,
    dropout: float = 0.0,
    deterministic: bool | None = None,
    scales: Scales | None = None,
    shapes: Shapes | None = None,
    out: Any = None,
    return_stats: bool = False,
    return_amax: bool = False,
) -> Any:
    """Compute attention of sequences packed one after the other, with gradients as in :func:`attention`.

    Nothing is read back from the GPU. The plan is that of a class of shapes, for any number of sequences, tokens and
    lengths within its bounds; with ``shapes="exact"`` the bounds are those of the call.

    Parameters
    ----------
    q, k, v
        [t, h, d]: the tokens of all sequences, such as slices of one buffer [t, 3, h, d].
    cu_seqlens_q, cu_seqlens_k
        [b + 1] int32 on the GPU: where each sequence begins, and where the last one ends. Sequences may be empty.
        Tokens after the end are not read, and their results are undefined. Without `cu_seqlens_k` keys are as
        queries do.
    max_seqlen_q, max_seqlen_k
        At least the longest sequence, as ints; a longer sequence is cut off without a word. `max_seqlen_k` is
        `max_seqlen_q` if not given.
    bias
        [b or 1, h or 1, max_seqlen_q or 1, max_seqlen_k or 1].
    alignment
        As in other operators on packed tokens the last query of a sequence sees its last key, unless this is
        "top_left". Bounds count as in :func:`attention`: a window of n tokens to the left is a `left_bound` of n + 1.
    return_stats
        Also return the log of the sum of exponentials, [h, t] float32.

    The others are those of :func:`attention`.

    Returns
    -------
    Tensor or tuple
        O [t, h, d_v]; then statistics and amaxes where they are requested.

    Raises
    ------
    EnvironmentNotReady, UsageError, GraphError, NotSupported
        As :func:`attention`.
    """
    torch = load_torch()
    if (
        not torch.compiler.is_compiling()
        and STEP.call is not None
        and _has_default_options(dropout, scales, out, return_amax)
    ):
        is_self = cu_seqlens_k is None or cu_seqlens_k is cu_seqlens_q
        found = STEP.call(
            SELF_PACKED if is_self else PACKED,
            q,
            k,
            v,
            bias,
            None,
            None,
            cu_seqlens_q,
            cu_seqlens_q if is_self else cu_seqlens_k,
            None,
            alibi_slopes,
            sink,
            None,
            scale,
            dropout,
            left_bound,
            _get_right_bound(causal, right_bound),
            _is_bottom_right(_normalize_alignment(alignment) if is_self else alignment),
            soft_cap,
            torch._C._get_deterministic_algorithms() if deterministic is None else deterministic,
            max_seqlen_q,
            max_seqlen_q if max_seqlen_k is None else max_seqlen_k,
            _default_shape_policy[0] if shapes is None else shapes,
            return_stats,
        )
        if found is not None:
            return found
    check_dims(3, "t, h and d", q=q, k=k, v=v)
    check_dims(1, "[b + 1]", cu_seqlens_q=cu_seqlens_q)
    if max_seqlen_q is None:
        raise UsageError(
            "max_seqlen_q is missing: give the longest sequence length, which is not read back from the GPU",
            code="torch-option",
        )
    _check_lengths_are_not_tensors(torch, max_seqlen_q=max_seqlen_q, max_seqlen_k=max_seqlen_k)
    if cu_seqlens_k is None or cu_seqlens_k is cu_seqlens_q:
        if k.size(0) != q.size(0):
            raise UsageError(f"q has {q.size(0)} tokens and k {k.size(0)}: cu_seqlens_k is needed", code="torch-option")
        cu_seqlens_k, alignment = cu_seqlens_q, _normalize_alignment(alignment)
    longest_k = max_seqlen_q if max_seqlen_k is None else max_seqlen_k
    q, k, v, bias = _cast_for_autocast(torch, q, k, v, bias)
    return _call_attention_operators(
        torch,
        (
            q,
            k,
            v,
            bias,
            None,
            None,
            cu_seqlens_q,
            cu_seqlens_k,
            None,
            _flatten_to_one_dim(alibi_slopes),
            _flatten_to_one_dim(sink),
        ),
        scales,
        (
            *(scale, dropout, causal, left_bound, right_bound, alignment, soft_cap, deterministic),
            *(max_seqlen_q, longest_k, shapes),
        ),
        out,
        return_stats,
        return_amax,
    )


def attention_with_kvcache(
    q: Any,
    k_cache: Any,
    v_cache: Any,
    block_table: Any,
    cache_seqlens: Any,
    *,
    cu_seqlens_q: Any = None,
    max_seqlen_q: int | None = None,
    max_seqlen_k: int | None = None,
    kv_layout: Literal["NHD", "HND"] = "NHD",
    alibi_slopes: Any = None,
    sink: Any = None,
    scale: float | None = None,
    causal: bool = False,
    left_bound: int | None = None,
    right_bound: int | None = None,
    alignment: Alignment = "bottom_right",
    soft_cap: float | None = None,
    deterministic: bool | None = None,
    scales: Scales | None = None,
    shapes: Shapes | None = None,
    out: Any = None,
    return_stats: bool = False,
    return_amax: bool = False,
) -> Any:
    """Compute attention over K and V stored in pages: decoding, prefill, or prefill in chunks.

    The keys of the queries have been written to the pages before; nothing is appended here. Nothing is read back from
    the GPU, and there is no backward pass.

    Parameters
    ----------
    q
        [b, s, h, d]: s tokens of each sequence; or, with `cu_seqlens_q`, packed tokens [t, h, d].
    k_cache, v_cache
        The pages, [pages, tokens of a page, h, d] ("NHD") or [pages, h, tokens of a page, d] ("HND"), with any strides
        but d dense; the tokens of a page are a power of two. What is after the end of a sequence in its last page
        must be finite, such as zeros or what was there before: kernels load it and multiply it by zero.
    block_table
        [b, n] int32: the pages of each sequence, in order. What is beyond the length is not read.
    cache_seqlens
        [b] int32: the tokens of each sequence in the pages, those of the queries included. A length beyond the room of
        the block table counts as that room.
    cu_seqlens_q, max_seqlen_q
        As in :func:`attention_varlen`.
    max_seqlen_k
        At least the longest of `cache_seqlens`; what the block table has room for if not given.
    alignment
        The last query of a sequence sees its last key, unless this is "top_left".
    return_stats
        Also return the log of the sum of exponentials, [b, h, s, 1] or [h, t] float32.

    The others are those of :func:`attention`.

    Returns
    -------
    Tensor or tuple
        O [b, s, h, d_v] or [t, h, d_v]; then statistics and amaxes where they are requested.

    Raises
    ------
    EnvironmentNotReady, UsageError, GraphError, NotSupported
        As :func:`attention`.
    """
    torch = load_torch()
    packed = cu_seqlens_q is not None
    if deterministic is None:
        deterministic = torch.are_deterministic_algorithms_enabled()
    if (
        not torch.compiler.is_compiling()
        and STEP.call is not None
        and _has_default_options(0.0, scales, out, return_amax)
    ):
        found = _run_paged_attention_by_compiled_launcher(
            (q, k_cache, v_cache, cache_seqlens, cu_seqlens_q, block_table, alibi_slopes, sink),
            (
                scale,
                0.0,
                left_bound,
                _get_right_bound(causal, right_bound),
                _is_bottom_right(alignment),
                soft_cap,
                deterministic,
            ),
            (
                max_seqlen_q if packed else None,
                max_seqlen_k,
                _default_shape_policy[0] if shapes is None else shapes,
                return_stats,
            ),
            kv_layout,
        )
        if found is not None:
            return found if packed else _transpose_outputs_to_bshd(found)
    if packed:
        check_dims(3, "t, h and d (with cu_seqlens_q)", q=q)
        check_dims(1, "[b + 1]", cu_seqlens_q=cu_seqlens_q)
        if max_seqlen_q is None:
            raise UsageError("cu_seqlens_q needs max_seqlen_q, the longest of the new sequences", code="torch-option")
    else:
        check_dims(4, "b, s, h and d (or cu_seqlens_q)", q=q)
    check_dims(4, "pages, their tokens, h and d", k_cache=k_cache, v_cache=v_cache)
    check_dims(2, "[b, n]", block_table=block_table)
    check_dims(1, "[b]", cache_seqlens=cache_seqlens)
    _check_lengths_are_not_tensors(torch, max_seqlen_q=max_seqlen_q, max_seqlen_k=max_seqlen_k)
    if kv_layout not in ("NHD", "HND"):
        raise UsageError(f"kv_layout {kv_layout!r} is neither NHD nor HND", code="torch-option")
    if kv_layout == "NHD":
        k_cache, v_cache = k_cache.transpose(1, 2), v_cache.transpose(1, 2)
    if torch.is_autocast_enabled("cuda") and not is_fp8(k_cache):
        q = q.to(k_cache.dtype)  # the pages stay as they are
    found = _call_attention_operators(
        torch,
        (
            *(q if packed else q.transpose(1, 2), k_cache, v_cache, None, None, cache_seqlens),
            *(cu_seqlens_q, None, block_table, _flatten_to_one_dim(alibi_slopes), _flatten_to_one_dim(sink)),
        ),
        scales,
        (
            *(scale, 0.0, causal, left_bound, right_bound, alignment, soft_cap, deterministic),
            *(max_seqlen_q if packed else None, max_seqlen_k, shapes),
        ),
        out if out is None or packed else _transpose_to_bhsd(out),
        return_stats,
        return_amax,
    )
    return found if packed else _transpose_outputs_to_bshd(found)


def default_shapes() -> Shapes:
    """Return the default of `shapes`: one plan for each shape, for any shape of a class, or adaptively both."""
    return _default_shape_policy[0]


def set_shapes(shapes: Shapes) -> Shapes:
    """Set the default of `shapes` for calls that do not pass it (initially "any"), and return the previous one.

    Raises
    ------
    UsageError
        ``torch-option``.
    """
    if shapes not in POLICIES:
        raise UsageError(f"shapes must be one of {', '.join(POLICIES)}, got {shapes!r}", code="torch-option")
    former, _default_shape_policy[0] = _default_shape_policy[0], shapes
    return former


def clear_plans() -> None:
    """Discard all plans of the operators after the GPU has finished; no other thread may be using them."""
    torch = load_torch()
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()
    forget_plans()


def _call_attention_operators(
    torch: Any,
    tensors: tuple[Any, ...],
    scales: Scales | None,
    options: tuple[Any, ...],
    out: Any,
    return_stats: bool,
    return_amax: bool,
) -> Any:
    """Check the arguments that the operators do not receive, call them, and return the requested outputs."""
    scale, dropout, causal, left, right, alignment, soft_cap, deterministic, max_q, max_kv, shapes = options
    q = tensors[0]
    factors, head_dim = check_scales(q, scales), tensors[2].shape[-1]
    if tensors[_BLOCK_TABLE_INDEX] is None and not is_fp8(q):  # pages are used where they are
        tensors, scale = _pad_head_dims(torch, tensors, scale)
        q = tensors[0]
    if out is not None and tensors[2].shape[-1] != head_dim:
        raise UsageError(f"the head dim of v is {head_dim}: out= needs a multiple of 8", code="torch-option")
    if alignment not in ("top_left", "bottom_right"):
        raise UsageError(f"alignment {alignment!r} is neither top_left nor bottom_right", code="torch-option")
    if causal and right not in (None, 0):
        raise UsageError(f"causal=True needs right_bound 0 or None, got {right}", code="torch-option")
    if return_amax and not factors:
        raise UsageError(f"return_amax needs 8-bit floats, q is {get_type_name(q)}", code="torch-option")
    if deterministic is None:
        deterministic = torch.are_deterministic_algorithms_enabled()
    # In memory: seed, a hole, offset, a hole; both must be at multiples of 16 bytes.
    rng = torch.randint(0, 2**62, (4,), device=q.device, dtype=torch.int64) if dropout else None
    o, stats, amax = attend(
        torch,
        (*tensors, rng),
        factors,
        (
            *(scale, dropout, left, 0 if causal else right, alignment == "bottom_right", soft_cap, deterministic),
            *(max_q, max_kv, _default_shape_policy[0] if shapes is None else shapes),
        ),
        wants_stats=return_stats,
        out=out,
    )
    if tensors[2].shape[-1] != head_dim:
        o = o[..., :head_dim]
    if not (return_stats or return_amax):
        return o
    return (o, *((stats,) if return_stats else ()), *((amax[:1], amax[4:5]) if return_amax else ()))


_BLOCK_TABLE_INDEX = TENSORS.index("block_table")


def _pad_head_dims(torch: Any, tensors: tuple[Any, ...], scale: Any) -> tuple[tuple[Any, ...], Any]:
    """Return the tensors with head dims padded to multiples of 8, and the scale for the unpadded head dim."""
    q, k, v, *rest = tensors
    d, step = q.shape[-1], get_required_head_dim_multiple(q)
    if d % step and k.shape[-1] == d:
        q, k, scale = (
            _pad_last_dim(torch, q, -d % step),
            _pad_last_dim(torch, k, -d % step),
            d**-0.5 if scale is None else scale,
        )
    if v.shape[-1] % step:
        v = _pad_last_dim(torch, v, -v.shape[-1] % step)
    return (q, k, v, *rest), scale


def _pad_last_dim(torch: Any, x: Any, missing: Any) -> Any:
    """Return a tensor with zeros appended along its last dim; the order of its dims in memory stays the same."""
    if x.dim() == 4 and x.stride(1) < x.stride(2):
        return torch.nn.functional.pad(x.transpose(1, 2), (0, missing)).transpose(1, 2)
    return torch.nn.functional.pad(x, (0, missing))


def _check_four_dims(**tensors: Any) -> None:
    check_dims(4, "b, h, s and d", "flatten the dims before the heads into one", **tensors)


def _check_lengths_are_not_tensors(torch: Any, **lengths: Any) -> None:
    """Check that maximum lengths are ints, not tensors; their values are checked with the other options."""
    for name, value in lengths.items():
        if isinstance(value, torch.Tensor):
            raise UsageError(
                f"{name} must be an int, got a tensor", code="torch-option", fix="keep it on the host, or take .item()"
            )


def _normalize_alignment(alignment: Alignment) -> Alignment:
    """Return "top_left" for "bottom_right", for a call with as many queries as keys, where both are equal."""
    return "top_left" if alignment == "bottom_right" else alignment


def _flatten_to_one_dim(x: Any) -> Any:
    """Flatten a tensor with one number per head or sequence to one dim."""
    return x if x is None or not hasattr(x, "dim") or x.dim() == 1 else x.reshape(-1)


# The compiled step, which leaves what it was never taught to the checks. Its arguments are written out where calls are
# the shortest: to unpack two tuples takes a third longer than to pass 24 arguments.


def _has_default_options(dropout: Any, scales: Any, out: Any, return_amax: Any) -> bool:
    return not dropout and scales is None and out is None and not return_amax


def _get_right_bound(causal: Any, right_bound: Any) -> Any:
    return right_bound if not causal else "causal" if right_bound else 0


def _is_bottom_right(alignment: Any) -> Any:
    return alignment == "bottom_right" if alignment in ("top_left", "bottom_right") else alignment


def _run_paged_attention_by_compiled_launcher(
    tensors: tuple[Any, ...], options: tuple[Any, ...], rest: tuple[Any, ...], kv_layout: Any
) -> Any:
    q, k, v, lengths, starts, table, alibi_slopes, sink = tensors
    packed = starts is not None
    if STEP.call is None or kv_layout not in ("NHD", "HND"):
        return None
    try:
        if q.dim() != 4 - packed or k.dim() != 4 or v.dim() != 4:
            return None
    except AttributeError:  # no tensors
        return None
    q = q if packed else q.transpose(1, 2)
    if kv_layout == "NHD":
        k, v = k.transpose(1, 2), v.transpose(1, 2)
    operator = PAGED_PACKED if packed else PAGED
    tensors = (q, k, v, None, None, lengths, starts, None, table, alibi_slopes, sink, None)
    return STEP.call(operator, *tensors, *options, *rest)


def _transpose_outputs_to_bshd(found: Any) -> Any:
    """Return the outputs with the first one transposed to [b, s, h, d]."""
    if isinstance(found, tuple):
        return (found[0].transpose(1, 2), *found[1:])
    return found.transpose(1, 2)


def _transpose_to_bhsd(out: Any) -> Any:
    check_dims(4, "b, s, h and d", out=out)
    return out.transpose(1, 2)


def _cast_for_autocast(torch: Any, q: Any, k: Any, v: Any, bias: Any) -> tuple[Any, Any, Any, Any]:
    """Return the tensors cast to the autocast type if autocast is on; 8-bit floats are not cast."""
    if not torch.is_autocast_enabled("cuda") or is_fp8(q):
        return q, k, v, bias
    kind = torch.get_autocast_dtype("cuda")
    return q.to(kind), k.to(kind), v.to(kind), None if bias is None else bias.to(kind)
