"""Packed tokens on the GPU, forward and backward, with lengths at the kernels' limits, compared with float64."""

from __future__ import annotations

from typing import Any

import pytest

from cudnn_backend_py import UsageError
from cudnn_backend_py.torch_ops import attention, attention_varlen
from tests.support.torch_reference import (
    Masks,
    compute_frobenius_error,
    compute_reference_gradients,
    pack_tokens,
    unpack_tokens,
)

torch: Any = pytest.importorskip("torch", reason="did not run: torch is not installed, and these tests need it")
SEQUENCE_LENGTHS = {
    "mixed": ([100, 1, 0, 257, 64], [100, 1, 0, 257, 64]),
    "one": ([333], [333]),
    "empty first and last": ([0, 50, 0], [0, 50, 0]),
    "ones": ([1] * 7, [1] * 7),
    "other keys": ([100, 1, 0, 30, 5], [20, 300, 8, 0, 1]),
}
PACKED_CASES: dict[str, tuple[dict[str, Any], Masks]] = {
    "plain": ({}, Masks()),
    "causal": ({"causal": True}, Masks(right_bound=0, bottom_right=True)),
    "causal, top left": ({"causal": True, "alignment": "top_left"}, Masks(right_bound=0)),
    "window": ({"causal": True, "left_bound": 33}, Masks(right_bound=0, left_bound=33, bottom_right=True)),
    "band": ({"right_bound": 9, "left_bound": 33}, Masks(right_bound=9, left_bound=33, bottom_right=True)),
    "soft cap": ({"soft_cap": 4.0, "causal": True}, Masks(right_bound=0, bottom_right=True, soft_cap=4.0)),
    "scale": ({"scale": 0.3}, Masks(scale=0.3)),
}


def make_cumulative_lengths(lengths: list[int]) -> Any:
    return torch.tensor([sum(lengths[:i]) for i in range(len(lengths) + 1)], device="cuda", dtype=torch.int32)


def make_int32_tensor(lengths: list[int]) -> Any:
    return torch.tensor(lengths, device="cuda", dtype=torch.int32)


def make_random_packed_inputs(
    many_q: list[int], many_kv: list[int], heads: int, kv_heads: int, d: int, kind: str
) -> tuple[Any, ...]:
    torch.manual_seed(11)
    dims = ((sum(many_q), heads), (sum(many_kv), kv_heads), (sum(many_kv), kv_heads), (sum(many_q), heads))
    found = [torch.randn(*n, d, device="cuda", dtype=getattr(torch, kind)) for n in dims]
    return (*[x.requires_grad_(True) for x in found[:3]], found[3])


def check_packed_attention_results(
    inputs: dict[str, Any],
    d_o: Any,
    found: list[Any],
    masks: Masks,
    many_q: list[int],
    many_kv: list[int],
    *,
    limit: float = 4e-3,
    **others: Any,
) -> None:
    """Check O, statistics and the gradients of `inputs` (in that order) against float64."""
    most_q, most_kv = max(many_q), max(many_kv)
    wide = {
        name: unpack_tokens(x.detach(), many_q, most_q)
        if name == "q"
        else unpack_tokens(x.detach(), many_kv, most_kv)
        if name in "kv"
        else x
        for name, x in inputs.items()
    }
    lens = {"len_q": make_int32_tensor(many_q), "len_kv": make_int32_tensor(many_kv)}
    want = compute_reference_gradients(wide, unpack_tokens(d_o, many_q, most_q), masks, **lens, **others)
    o, stats, *grads = found
    errors = {"o": compute_frobenius_error(o, pack_tokens(want["o"], many_q))}
    lse = pack_tokens(want["stats"], many_q)
    has_keys = lse != float("-inf")
    errors["stats"] = compute_frobenius_error(stats[has_keys], lse[has_keys])
    for name, x in zip(inputs, grads, strict=True):
        whole = want[f"d{name}"]
        errors[f"d{name}"] = compute_frobenius_error(
            x, pack_tokens(whole, many_q) if name == "q" else pack_tokens(whole, many_kv) if name in "kv" else whole
        )
    assert max(errors.values()) < limit, errors


@pytest.mark.parametrize("heads", [(4, 4, 64), (8, 2, 128), (4, 1, 64)], ids=str)
@pytest.mark.parametrize("lengths", SEQUENCE_LENGTHS)
@pytest.mark.parametrize("case", PACKED_CASES)
def test_packed_attention_agrees_with_float64(case: str, lengths: str, heads: tuple[int, int, int]) -> None:
    options, masks = PACKED_CASES[case]
    many_q, many_kv = SEQUENCE_LENGTHS[lengths]
    q, k, v, d_o = make_random_packed_inputs(many_q, many_kv, *heads, "float16")
    packed = (
        q,
        k,
        v,
        make_cumulative_lengths(many_q),
        None if many_q is many_kv else make_cumulative_lengths(many_kv),
        max(many_q),
        max(many_kv),
    )
    o, stats = attention_varlen(*packed, **options, return_stats=True)
    assert (o.shape, stats.shape) == (q.shape, (q.shape[1], q.shape[0]))
    grads = torch.autograd.grad(o, (q, k, v), d_o)
    check_packed_attention_results({"q": q, "k": k, "v": v}, d_o, [o, stats, *grads], masks, many_q, many_kv)


@pytest.mark.parametrize("shapes", ["exact", "any", "adaptive"])
@pytest.mark.parametrize("kind", ["float16", "bfloat16"])
def test_attention_sink_and_its_gradient_are_right(kind: str, shapes: str) -> None:
    many = [70, 0, 1, 129]
    q, k, v, d_o = make_random_packed_inputs(many, many, 8, 2, 64, kind)
    sink = torch.randn(8, device="cuda", requires_grad=True)
    o, stats = attention_varlen(
        q, k, v, make_cumulative_lengths(many), None, 129, causal=True, sink=sink, shapes=shapes, return_stats=True
    )
    inputs = {"q": q, "k": k, "v": v, "sink": sink}
    grads = torch.autograd.grad(o, list(inputs.values()), d_o)
    limit = 4e-3 if kind == "float16" else 3e-2
    check_packed_attention_results(inputs, d_o, [o, stats, *grads], Masks(right_bound=0), many, many, limit=limit)


def test_packed_attention_with_alibi_is_right() -> None:
    many = [70, 200, 1]
    q, k, v, d_o = make_random_packed_inputs(many, many, 4, 4, 64, "float16")
    slopes = 2.0 ** -torch.arange(1, 5, device="cuda", dtype=torch.float32)
    o, stats = attention_varlen(
        q, k, v, make_cumulative_lengths(many), None, 200, causal=True, alibi_slopes=slopes, return_stats=True
    )
    grads = torch.autograd.grad(o, (q, k, v), d_o)
    inputs = {"q": q, "k": k, "v": v}
    check_packed_attention_results(
        inputs, d_o, [o, stats, *grads], Masks(right_bound=0), many, many, alibi_slopes=slopes
    )


def test_attention_bias_and_its_gradient_are_right() -> None:
    many = [70, 128, 1]
    q, k, v, d_o = make_random_packed_inputs(many, many, 4, 4, 64, "float16")
    bias = torch.randn(1, 4, 128, 128, device="cuda", dtype=torch.half, requires_grad=True)
    o, stats = attention_varlen(q, k, v, make_cumulative_lengths(many), None, 128, bias=bias, return_stats=True)
    inputs = {"q": q, "k": k, "v": v, "bias": bias}
    grads = torch.autograd.grad(o, list(inputs.values()), d_o)
    check_packed_attention_results(inputs, d_o, [o, stats, *grads], Masks(), many, many)


def test_slices_of_one_buffer_are_used_in_place() -> None:
    many = [100, 28]
    whole = torch.randn(128, 3, 4, 64, device="cuda", dtype=torch.half, requires_grad=True)
    q, k, v = whole.unbind(1)
    d_o = torch.randn(128, 4, 64, device="cuda", dtype=torch.half)
    o, stats = attention_varlen(q, k, v, make_cumulative_lengths(many), None, 100, causal=True, return_stats=True)
    (grad,) = torch.autograd.grad(o, whole, d_o)
    inputs = {"q": q, "k": k, "v": v}
    check_packed_attention_results(inputs, d_o, [o, stats, *grad.unbind(1)], Masks(right_bound=0), many, many)


def test_tokens_after_the_last_sequence_are_not_written() -> None:
    many, spare = [40, 60], 28
    torch.manual_seed(5)
    q, k, v, d_o = (torch.randn(128, 4, 64, device="cuda", dtype=torch.half) for _ in range(4))
    for x in (q, k, v, d_o):
        x[100:] = float("nan")
    named = {name: x.requires_grad_(True) for name, x in zip("qkv", (q, k, v), strict=True)}
    sink = torch.randn(4, device="cuda", requires_grad=True)
    out = torch.full_like(q, 7).detach()
    with torch.no_grad():
        attention_varlen(q, k, v, make_cumulative_lengths(many), None, 60, sink=sink, out=out)
    assert (out[100:] == 7).all()
    o, stats = attention_varlen(q, k, v, make_cumulative_lengths(many), None, 60, sink=sink, return_stats=True)
    *grads, d_sink = torch.autograd.grad(o, (q, k, v, sink), d_o)
    inputs = {name: x[:-spare] for name, x in named.items()} | {"sink": sink}
    found = [o[:100], stats[:, :100], *(x[:100] for x in grads), d_sink]
    check_packed_attention_results(inputs, d_o[:100], found, Masks(), many, many)


def test_packed_attention_agrees_with_dense_attention() -> None:
    b, s = 3, 128
    torch.manual_seed(2)
    q, k, v = (torch.randn(b, s, 4, 64, device="cuda", dtype=torch.half) for _ in range(3))
    packed = attention_varlen(
        *(x.flatten(0, 1) for x in (q, k, v)), make_cumulative_lengths([s] * b), None, s, causal=True
    )
    dense = attention(*(x.transpose(1, 2) for x in (q, k, v)), causal=True, shapes="exact")
    assert compute_frobenius_error(packed.view(b, s, 4, 64).transpose(1, 2), dense) < 1e-3


def test_the_backward_pass_uses_the_dropout_of_the_forward_pass() -> None:
    many = [200, 57, 1]
    q, k, _, _ = make_random_packed_inputs(many, many, 4, 4, 64, "float16")
    v = torch.cat([torch.eye(n, 64, device="cuda", dtype=torch.half) for n in many])
    v = v.unsqueeze(1).expand(-1, 4, -1).contiguous().requires_grad_(True)
    o = attention_varlen(q, k, v, make_cumulative_lengths(many), None, 200, dropout=0.5)
    (dv,) = torch.autograd.grad(o, v, (o > 0).half())
    kept, whole = float((dv.double() * v.detach()).sum()), float(o.detach().double().sum())
    assert abs(kept - whole) < 0.02 * whole
    assert 0.4 < float((o[:200, :, :64] == 0).float().mean()) < 0.6


def test_deterministic_backward_is_repeatable() -> None:
    many = [200, 57, 1, 300]
    q, k, v, d_o = make_random_packed_inputs(many, many, 8, 2, 64, "float16")
    runs = [
        torch.autograd.grad(
            attention_varlen(q, k, v, make_cumulative_lengths(many), None, 300, causal=True, deterministic=True),
            (q, k, v),
            d_o,
        )
        for _ in range(4)
    ]
    assert all(torch.equal(mine, other) for run in runs[1:] for mine, other in zip(run, runs[0], strict=True))


def test_calls_without_tokens_are_accepted() -> None:
    q, k, v, _ = make_random_packed_inputs([0, 0], [0, 0], 4, 4, 64, "float16")
    o, stats = attention_varlen(q, k, v, make_cumulative_lengths([0, 0]), None, 0, return_stats=True)
    assert (o.shape, stats.shape) == ((0, 4, 64), (4, 0))
    assert torch.autograd.grad(o.sum(), q)[0].shape == q.shape


def test_unsupported_arguments_are_reported() -> None:
    many = [10, 20]
    q, k, v, _ = (x.detach() for x in make_random_packed_inputs(many, many, 4, 4, 64, "float16"))
    cu = make_cumulative_lengths(many)
    wrong: list[tuple[str, Any]] = [
        ("max_seqlen_q is missing", lambda: attention_varlen(q, k, v, cu)),
        ("max_seqlen_q must be an int, got a tensor", lambda: attention_varlen(q, k, v, cu, None, cu.max())),
        ("max_q is 1.5", lambda: attention_varlen(q, k, v, cu, None, 1.5)),
        ("max_q is -1", lambda: attention_varlen(q, k, v, cu, None, -1)),
        ("q has 4 dims", lambda: attention_varlen(q[None], k, v, cu, None, 20)),
        ("cu_seqlens_q has 2 dims", lambda: attention_varlen(q, k, v, cu[None], None, 20)),
        ("cu_seqlens_q is list", lambda: attention_varlen(q, k, v, [0, 10, 30], None, 20)),
        (r"cu_seqlens_q is int64 \[3\]", lambda: attention_varlen(q, k, v, cu.long(), None, 20)),
        (r"cu_seqlens_q is int32 \[3\] on cpu", lambda: attention_varlen(q, k, v, cu.cpu(), None, 20)),
        (r"cu_seqlens_k is int32 \[2\]", lambda: attention_varlen(q, k, v, cu, cu[:2], 20)),
        ("cu_seqlens_k is needed", lambda: attention_varlen(q, k[:9], v[:9], cu, None, 20)),
        (r"k is float16 \[30, 4, 32\]", lambda: attention_varlen(q, k[..., :32], v, cu, None, 20)),
        (r"v is float16 \[29, 4, 64\]", lambda: attention_varlen(q, k, v[:29], cu, cu, 20)),
        ("v is bfloat16, q float16", lambda: attention_varlen(q, k, v.bfloat16(), cu, None, 20)),
        ("sink is float16", lambda: attention_varlen(q, k, v, cu, None, 20, sink=q[0, :, 0])),
        ("left_bound is 0", lambda: attention_varlen(q, k, v, cu, None, 20, left_bound=0)),
        ("right_bound is -1", lambda: attention_varlen(q, k, v, cu, None, 20, right_bound=-1)),
        ("causal=True needs", lambda: attention_varlen(q, k, v, cu, None, 20, causal=True, right_bound=1)),
        ("soft_cap is 0", lambda: attention_varlen(q, k, v, cu, None, 20, soft_cap=0.0)),
        ("dropout is 1.0", lambda: attention_varlen(q, k, v, cu, None, 20, dropout=1.0)),
        ("scale is 'a'", lambda: attention_varlen(q, k, v, cu, None, 20, scale="a")),
        ("scale is tensor", lambda: attention_varlen(q, k, v, cu, None, 20, scale=torch.ones(1))),
        ("alignment 'left'", lambda: attention_varlen(q, k, v, cu, None, 20, alignment="left")),
        ("scales are only for 8-bit floats", lambda: attention_varlen(q, k, v, cu, None, 20, scales=(1,) * 6)),
        ("return_amax needs", lambda: attention_varlen(q, k, v, cu, None, 20, return_amax=True)),
    ]
    for words, call in wrong:
        with pytest.raises(UsageError, match=words) as caught:
            call()
        assert caught.value.code in ("torch-tensor", "torch-option")
    assert torch.isfinite(attention_varlen(q, k, v, cu, None, 20)).all(), "the CUDA context must stay usable"
