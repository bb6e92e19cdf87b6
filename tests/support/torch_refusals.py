"""Calls that this package's torch operators refuse, for real, fake and meta tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from cudnn_backend_py.torch_ops import (
    Scales,
    attention,
    attention_varlen,
    attention_with_kvcache,
    scaled_dot_product_attention,
)

__all__ = ["REFUSED_CALLS", "MakeTensors", "OperatorCall"]

MakeTensors = Callable[..., Any]  # make(*dims, kind="float16")
OperatorCall = tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]

B, H, S, D = 2, 4, 16, 64


def _make_attention_call_maker(**changes: Any) -> Callable[[MakeTensors], OperatorCall]:
    """Return a function that makes a call of `attention` with changed dims, types or options."""

    def make_call(make: MakeTensors) -> OperatorCall:
        given = {name: _make_tensor_if_dims_given(make, value) for name, value in changes.items()}
        q, k, v = (given.pop(name, None) for name in "qkv")
        plain = [make(B, H, S, D) if x is None else x for x in (q, k, v)]
        return attention, tuple(plain), given

    return make_call


def _make_varlen_call_maker(
    cu: Any = (B + 1, "int32"), longest: Any = S, **changes: Any
) -> Callable[[MakeTensors], OperatorCall]:
    def make_call(make: MakeTensors) -> OperatorCall:
        given = {name: _make_tensor_if_dims_given(make, value) for name, value in changes.items()}
        q, k, v = (given.pop(name, None) for name in "qkv")
        plain = [make(B * S, H, D) if x is None else x for x in (q, k, v)]
        return attention_varlen, (*plain, _make_tensor_if_dims_given(make, cu), None, longest), given

    return make_call


def _make_paged_call_maker(**changes: Any) -> Callable[[MakeTensors], OperatorCall]:
    def make_call(make: MakeTensors) -> OperatorCall:
        usual = {
            "q": (B, 1, H, D),
            "k_cache": (9, 16, 2, D),
            "v_cache": (9, 16, 2, D),
            "block_table": (B, 4, "int32"),
            "cache_seqlens": (B, "int32"),
        }
        given = {name: _make_tensor_if_dims_given(make, value) for name, value in (usual | changes).items()}
        return attention_with_kvcache, tuple(given.pop(name) for name in usual), given

    return make_call


def _make_torch_sdpa_call_maker(**changes: Any) -> Callable[[MakeTensors], OperatorCall]:
    """Return a function that makes a call of torch's scaled_dot_product_attention."""

    def make_call(make: MakeTensors) -> OperatorCall:
        given = {name: _make_tensor_if_dims_given(make, value) for name, value in changes.items()}
        tensors = tuple(given.pop(name) if name in given else make(B, H, S, D) for name in ("query", "key", "value"))
        return scaled_dot_product_attention, tensors, given

    return make_call


def _make_tensor_if_dims_given(make: MakeTensors, value: Any) -> Any:
    if not isinstance(value, tuple) or isinstance(value, Scales):
        return value
    *dims, last = value
    return make(*dims, kind=last) if isinstance(last, str) else make(*value)


def _list_refused_calls() -> Iterator[tuple[str, Callable[[MakeTensors], OperatorCall]]]:
    for name in "qkv":
        yield f"{name}: another batch", _make_attention_call_maker(**{name: (B + 1, H, S, D)})
        yield f"{name}: another type", _make_attention_call_maker(**{name: (B, H, S, D, "bfloat16")})
        yield f"{name}: float32", _make_attention_call_maker(**{name: (B, H, S, D, "float32")})
        yield f"{name}: 3 dims", _make_attention_call_maker(**{name: (H, S, D)})
        yield f"packed {name}: another type", _make_varlen_call_maker(**{name: (B * S, H, D, "bfloat16")})
        yield f"packed {name}: 4 dims", _make_varlen_call_maker(**{name: (B, S, H, D)})
    for name in "kv":
        yield f"{name}: another length", _make_attention_call_maker(**{name: (B, H, S + 1, D)})
        yield f"{name}: 3 heads", _make_attention_call_maker(**{name: (B, 3, S, D)})
        yield f"packed {name}: 3 heads", _make_varlen_call_maker(**{name: (B * S, 3, D)})
        yield f"paged {name}: 3 heads", _make_paged_call_maker(**{f"{name}_cache": (9, 16, 3, D)})
        yield f"paged {name}: 3 dims", _make_paged_call_maker(**{f"{name}_cache": (9, 16, D)})
        yield f"paged {name}: another page", _make_paged_call_maker(**{f"{name}_cache": (9, 32, 2, D)})
    yield "k: another head dim", _make_attention_call_maker(k=(B, H, S, D // 2))
    yield "packed k: other tokens", _make_varlen_call_maker(k=(B * S + 1, H, D))
    yield "packed v: other tokens", _make_varlen_call_maker(v=(B * S + 1, H, D))
    for d in (7, 12, 60):
        yield (
            f"paged: head dim {d}",
            _make_paged_call_maker(q=(B, 1, H, d), k_cache=(9, 16, 2, d), v_cache=(9, 16, 2, d)),
        )
    for kind in ("int64", "float32"):
        yield f"lengths: {kind}", _make_attention_call_maker(seq_len_q=(B, kind), seq_len_kv=(B, kind))
        yield f"packed: {kind}", _make_varlen_call_maker(cu=(B + 1, kind))
        yield f"paged lengths: {kind}", _make_paged_call_maker(cache_seqlens=(B, kind))
        yield f"block table: {kind}", _make_paged_call_maker(block_table=(B, 4, kind))
    yield "lengths: another batch", _make_attention_call_maker(seq_len_q=(B + 1, "int32"), seq_len_kv=(B + 1, "int32"))
    yield "lengths: one", _make_attention_call_maker(seq_len_q=(B, "int32"))
    yield "lengths: a list", _make_attention_call_maker(seq_len_q=[S, S], seq_len_kv=[S, S])
    yield "packed: cu_seqlens of 2 dims", _make_varlen_call_maker(cu=(B, 2, "int32"))
    yield "packed: no longest", _make_varlen_call_maker(longest=None)
    yield "packed: a negative longest", _make_varlen_call_maker(longest=-1)
    yield "packed: a fraction", _make_varlen_call_maker(longest=1.5)
    yield "paged: another batch", _make_paged_call_maker(block_table=(B + 1, 4, "int32"))
    yield "paged: lengths of another batch", _make_paged_call_maker(cache_seqlens=(B + 1, "int32"))
    yield "paged: no power of two", _make_paged_call_maker(k_cache=(9, 12, 2, D), v_cache=(9, 12, 2, D))
    yield "paged: layout", _make_paged_call_maker(kv_layout="NDH")
    for function, name in (
        (_make_attention_call_maker, "dense"),
        (_make_varlen_call_maker, "packed"),
        (_make_paged_call_maker, "paged"),
    ):
        for heads in ((H + 1,), (B, H), (1,)):
            yield f"{name}: ALiBi {heads}", function(alibi_slopes=(*heads, "float32"))
            yield f"{name}: sink {heads}", function(sink=(*heads, "float32"))
        yield f"{name}: ALiBi of float16", function(alibi_slopes=(H, "float16"))
        yield f"{name}: sink of float16", function(sink=(H, "float16"))
        for option, values in {
            "scale": (float("nan"), float("inf"), "1", True, [1.0]),
            "soft_cap": (0.0, -1.0, float("inf"), float("nan"), "1"),
            "left_bound": (0, -1, 1.5, "1", float("nan")),
            "right_bound": (-1, 0.5, "1", float("nan")),
            "alignment": ("middle", 3),
            "shapes": ("some", 3),
        }.items():
            for value in values:
                yield f"{name}: {option} {value!r}", function(**{option: value})
        yield f"{name}: causal with a right bound", function(causal=True, right_bound=3)
        yield f"{name}: scales of half", function(scales=Scales(1, 1, 1, 1, 1, 1))
        yield f"{name}: amax of half", function(return_amax=True)
    for function, name in ((_make_attention_call_maker, "dense"), (_make_varlen_call_maker, "packed")):
        for value in (1.0, -0.1, float("nan"), 2):
            yield f"{name}: dropout {value!r}", function(dropout=value)
        for bias in ((S,), (S, S), (H, S, S), (B, H, S, S + 1), (B, H, S + 1, S), (B + 1, H, S, S), (B, H + 1, S, S)):
            yield f"{name}: bias {bias}", function(bias=bias)
        yield f"{name}: bias of float32", function(bias=(B, H, S, S, "float32"))
    for out in ((B, H, S), (B, H, S, D + 8), (B + 1, H, S, D)):
        yield f"out {out}", _make_attention_call_maker(out=out)
    yield from _list_refused_torch_sdpa_calls()


def _list_refused_torch_sdpa_calls() -> Iterator[tuple[str, Callable[[MakeTensors], OperatorCall]]]:
    for name in ("query", "key", "value"):
        for kind in ("float32", "float64", "int32", "bool", "bfloat16"):
            yield f"torch {name}: {kind}", _make_torch_sdpa_call_maker(**{name: (B, H, S, D, kind)})
        for dims in ((D,), (3, H, S, D), (B, 3, S, D), (B + 1, 1, S, D)):
            yield f"torch {name}: {dims}", _make_torch_sdpa_call_maker(**{name: dims})
        for other in (None, 1.0, [[1.0]]):
            yield f"torch {name}: {other!r}", _make_torch_sdpa_call_maker(**{name: other})
    for name in ("key", "value"):
        yield f"torch {name}: another length", _make_torch_sdpa_call_maker(**{name: (B, H, S + 1, D)})
        for heads in (3, 5, 8):
            yield (
                f"torch {name}: {heads} heads in groups",
                _make_torch_sdpa_call_maker(enable_gqa=True, **{name: (B, heads, S, D)}),
            )
        for d in (D // 2, D + 1, D + 8):
            if name == "key":
                yield f"torch key: head dim {d}", _make_torch_sdpa_call_maker(key=(B, H, S, d))
    for heads in (3, 5, 8):
        dims = (B, heads, S, D)
        yield (
            f"torch: {heads} heads of keys and values in groups",
            _make_torch_sdpa_call_maker(enable_gqa=True, key=dims, value=dims),
        )
        yield f"torch: {heads} heads of keys and values", _make_torch_sdpa_call_maker(key=dims, value=dims)
    for dims in ((S + 1,), (S, S + 1), (S + 1, S), (H + 1, S, S), (B, H + 1, S, S), (B + 1, 1, S, S), (1, B, H, S, S)):
        for kind in ("bool", "float16", "float32"):
            yield f"torch mask {dims} {kind}", _make_torch_sdpa_call_maker(attn_mask=(*dims, kind))
    for kind in ("int64", "int32", "uint8", "float64", "bfloat16"):
        yield f"torch mask of {kind}", _make_torch_sdpa_call_maker(attn_mask=(S, S, kind))
    for mask in (True, 1.0, [[True]]):
        yield f"torch mask {mask!r}", _make_torch_sdpa_call_maker(attn_mask=mask)
    for dropout in (-0.1, 1.1, float("nan"), "0.1", None):
        yield f"torch dropout {dropout!r}", _make_torch_sdpa_call_maker(dropout_p=dropout)
    for scale in ("1", float("nan"), float("inf"), True):
        yield f"torch scale {scale!r}", _make_torch_sdpa_call_maker(scale=scale)
    for heads, groups in ((6, 4), (2, 3), (7, 2), (4, 8), (9, 6), (5, 2)):
        given = {"query": (B, heads, S, D), "key": (B, groups, S, D), "value": (B, groups, S, D)}
        yield f"torch: {heads} query heads in {groups} groups", _make_torch_sdpa_call_maker(enable_gqa=True, **given)
        yield f"torch: {heads} query heads, {groups} of keys and values", _make_torch_sdpa_call_maker(**given)
    for batches in ((2, 3, 2), (2, 2, 3), (3, 2, 2), (4, 2, 1), (1, 2, 3), (2, 1, 3)):
        dims = [(batch, H, S, D) for batch in batches]
        yield (
            f"torch: batches {batches}",
            _make_torch_sdpa_call_maker(**dict(zip(("query", "key", "value"), dims, strict=True))),
        )
    for rank in (2, 3, 5):
        lead = (2, 3, 4)[: rank - 2]
        for name in ("key", "value"):
            dims = (*lead, S + 1, D)
            yield f"torch {name}: another length, {rank} dims", _make_torch_sdpa_call_maker(**{name: dims})
        yield f"torch key: another head dim, {rank} dims", _make_torch_sdpa_call_maker(key=(*lead, S, D + 8))


#: Refused calls by a description of the error.
REFUSED_CALLS = dict(_list_refused_calls())
