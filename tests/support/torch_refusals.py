"""Calls of torch's operators that are refused, as functions of what makes a tensor: for real, fake and meta tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from cudnn_backend_py.torch_ops import Scales, attention, attention_varlen, attention_with_kvcache

__all__ = ["REFUSED", "Call", "Make"]

Make = Callable[..., Any]  # make(*dims, kind="float16")
Call = tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]

B, H, S, D = 2, 4, 16, 64


def _dense(**changes: Any) -> Callable[[Make], Call]:
    """Return a call of `attention` with other dims, types or options; a tuple is dims and perhaps a type."""

    def call(make: Make) -> Call:
        given = {name: _made(make, value) for name, value in changes.items()}
        q, k, v = (given.pop(name, None) for name in "qkv")
        plain = [make(B, H, S, D) if x is None else x for x in (q, k, v)]
        return attention, tuple(plain), given

    return call


def _packed(cu: Any = (B + 1, "int32"), longest: Any = S, **changes: Any) -> Callable[[Make], Call]:
    def call(make: Make) -> Call:
        given = {name: _made(make, value) for name, value in changes.items()}
        q, k, v = (given.pop(name, None) for name in "qkv")
        plain = [make(B * S, H, D) if x is None else x for x in (q, k, v)]
        return attention_varlen, (*plain, _made(make, cu), None, longest), given

    return call


def _paged(**changes: Any) -> Callable[[Make], Call]:
    def call(make: Make) -> Call:
        usual = {
            "q": (B, 1, H, D),
            "k_cache": (9, 16, 2, D),
            "v_cache": (9, 16, 2, D),
            "block_table": (B, 4, "int32"),
            "cache_seqlens": (B, "int32"),
        }
        given = {name: _made(make, value) for name, value in (usual | changes).items()}
        return attention_with_kvcache, tuple(given.pop(name) for name in usual), given

    return call


def _made(make: Make, value: Any) -> Any:
    if not isinstance(value, tuple) or isinstance(value, Scales):
        return value
    *dims, last = value
    return make(*dims, kind=last) if isinstance(last, str) else make(*value)


def _cases() -> Iterator[tuple[str, Callable[[Make], Call]]]:
    for name in "qkv":
        yield f"{name}: another batch", _dense(**{name: (B + 1, H, S, D)})
        yield f"{name}: another type", _dense(**{name: (B, H, S, D, "bfloat16")})
        yield f"{name}: float32", _dense(**{name: (B, H, S, D, "float32")})
        yield f"{name}: 3 dims", _dense(**{name: (H, S, D)})
        yield f"packed {name}: another type", _packed(**{name: (B * S, H, D, "bfloat16")})
        yield f"packed {name}: 4 dims", _packed(**{name: (B, S, H, D)})
    for name in "kv":
        yield f"{name}: another length", _dense(**{name: (B, H, S + 1, D)})
        yield f"{name}: 3 heads", _dense(**{name: (B, 3, S, D)})
        yield f"packed {name}: 3 heads", _packed(**{name: (B * S, 3, D)})
        yield f"paged {name}: 3 heads", _paged(**{f"{name}_cache": (9, 16, 3, D)})
        yield f"paged {name}: 3 dims", _paged(**{f"{name}_cache": (9, 16, D)})
        yield f"paged {name}: another page", _paged(**{f"{name}_cache": (9, 32, 2, D)})
    yield "k: another head dim", _dense(k=(B, H, S, D // 2))
    yield "packed k: other tokens", _packed(k=(B * S + 1, H, D))
    yield "packed v: other tokens", _packed(v=(B * S + 1, H, D))
    for d in (7, 12, 60):
        yield f"paged: head dim {d}", _paged(q=(B, 1, H, d), k_cache=(9, 16, 2, d), v_cache=(9, 16, 2, d))
    for kind in ("int64", "float32"):
        yield f"lengths: {kind}", _dense(seq_len_q=(B, kind), seq_len_kv=(B, kind))
        yield f"packed: {kind}", _packed(cu=(B + 1, kind))
        yield f"paged lengths: {kind}", _paged(cache_seqlens=(B, kind))
        yield f"block table: {kind}", _paged(block_table=(B, 4, kind))
    yield "lengths: another batch", _dense(seq_len_q=(B + 1, "int32"), seq_len_kv=(B + 1, "int32"))
    yield "lengths: one", _dense(seq_len_q=(B, "int32"))
    yield "lengths: a list", _dense(seq_len_q=[S, S], seq_len_kv=[S, S])
    yield "packed: cu_seqlens of 2 dims", _packed(cu=(B, 2, "int32"))
    yield "packed: no longest", _packed(longest=None)
    yield "packed: a negative longest", _packed(longest=-1)
    yield "packed: a fraction", _packed(longest=1.5)
    yield "paged: another batch", _paged(block_table=(B + 1, 4, "int32"))
    yield "paged: lengths of another batch", _paged(cache_seqlens=(B + 1, "int32"))
    yield "paged: no power of two", _paged(k_cache=(9, 12, 2, D), v_cache=(9, 12, 2, D))
    yield "paged: layout", _paged(kv_layout="NDH")
    for function, name in ((_dense, "dense"), (_packed, "packed"), (_paged, "paged")):
        for heads in ((H + 1,), (B, H), (1,)):
            yield f"{name}: ALiBi {heads}", function(alibi_slopes=(*heads, "float32"))
            yield f"{name}: sink {heads}", function(sink=(*heads, "float32"))
        yield f"{name}: ALiBi of float16", function(alibi_slopes=(H, "float16"))
        yield f"{name}: sink of float16", function(sink=(H, "float16"))
        for option, values in {
            "scale": (float("nan"), float("inf"), "1", True),
            "soft_cap": (0.0, -1.0, float("inf")),
            "left_bound": (0, -1, 1.5),
            "right_bound": (-1, 0.5),
            "alignment": ("middle",),
            "shapes": ("some",),
        }.items():
            for value in values:
                yield f"{name}: {option} {value!r}", function(**{option: value})
        yield f"{name}: causal with a right bound", function(causal=True, right_bound=3)
        yield f"{name}: scales of half", function(scales=Scales(1, 1, 1, 1, 1, 1))
        yield f"{name}: amax of half", function(return_amax=True)
    for function, name in ((_dense, "dense"), (_packed, "packed")):
        for value in (1.0, -0.1, float("nan"), 2):
            yield f"{name}: dropout {value!r}", function(dropout=value)
        for bias in ((S,), (S, S), (H, S, S), (B, H, S, S + 1), (B, H, S + 1, S), (B + 1, H, S, S), (B, H + 1, S, S)):
            yield f"{name}: bias {bias}", function(bias=bias)
        yield f"{name}: bias of float32", function(bias=(B, H, S, S, "float32"))
    for out in ((B, H, S), (B, H, S, D + 8), (B + 1, H, S, D)):
        yield f"out {out}", _dense(out=out)


#: By what is wrong.
REFUSED = dict(_cases())
