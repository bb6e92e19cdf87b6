"""Paged K and V on the GPU: decoding, chunks and packed prefill compared with float64."""

from __future__ import annotations

from typing import Any

import pytest

from cudnn_backend_py import UsageError
from cudnn_backend_py.torch_ops import Scales, attention, attention_varlen, attention_with_kvcache
from tests.support.torch_reference import (
    Masks,
    compute_frobenius_error,
    compute_reference_attention,
    copy_sequences_to_shuffled_pages,
    pack_tokens,
)

torch: Any = pytest.importorskip("torch", reason="did not run: torch is not installed, and these tests need it")
PAGED_CASES: dict[str, tuple[dict[str, Any], Masks]] = {
    "plain": ({}, Masks()),
    "causal": ({"causal": True}, Masks(right_bound=0, bottom_right=True)),
    "window": ({"causal": True, "left_bound": 33}, Masks(right_bound=0, left_bound=33, bottom_right=True)),
    "soft cap": ({"soft_cap": 4.0, "causal": True}, Masks(right_bound=0, bottom_right=True, soft_cap=4.0)),
    "sink": ({"causal": True, "sink": True}, Masks(right_bound=0, bottom_right=True)),
}
KV_LENGTHS = [300, 1, 64, 17, 128]


def make_int32_tensor(values: list[int]) -> Any:
    return torch.tensor(values, device="cuda", dtype=torch.int32)


def make_random_paged_inputs(
    many_kv: list[int], longest_q: int, *, heads: int = 8, kv_heads: int = 2, d: int = 64, page_size: int = 16
) -> tuple[Any, ...]:
    """Return q, k, v [b, h, s, d], the pages of k and v, and the block table."""
    torch.manual_seed(sum(many_kv) + longest_q)
    b, s = len(many_kv), max(*many_kv, 1)
    q = torch.randn(b, longest_q, heads, d, device="cuda", dtype=torch.half).transpose(1, 2)
    k, v = (torch.randn(b, kv_heads, s, d, device="cuda", dtype=torch.half) for _ in range(2))
    k_pages, table = copy_sequences_to_shuffled_pages(k, many_kv, page_size, 9, 3)
    return q, k, v, k_pages, copy_sequences_to_shuffled_pages(v, many_kv, page_size, 9, 3)[0], table


def compute_reference_result(
    q: Any, k: Any, v: Any, masks: Masks, many_q: list[int], many_kv: list[int], sink: Any = None
) -> Any:
    wide = [x.double() for x in (q, k, v)]
    return compute_reference_attention(
        *wide,
        masks,
        len_q=make_int32_tensor(many_q),
        len_kv=make_int32_tensor(many_kv),
        sink=None if sink is None else sink.double(),
    )


def add_sink_tensor(options: dict[str, Any], heads: int = 8) -> dict[str, Any]:
    """Return the options with a random sink tensor in place of their value for "sink", if they have one."""
    return options | ({"sink": torch.randn(heads, device="cuda")} if "sink" in options else {})


def check_relative_errors(found: tuple[Any, Any], want: tuple[Any, Any], limit: float = 2e-3) -> None:
    (o, stats), (want_o, lse) = found, want
    has_keys = lse != float("-inf")
    errors = compute_frobenius_error(o, want_o), compute_frobenius_error(stats[has_keys], lse[has_keys])
    assert max(errors) < limit, errors


@pytest.mark.parametrize("shapes", ["exact", "any", "adaptive"])
@pytest.mark.parametrize("chunk", [1, 2, 40])
@pytest.mark.parametrize("case", PAGED_CASES)
def test_paged_attention_with_equal_query_lengths_is_right(case: str, chunk: int, shapes: str) -> None:
    options, masks = PAGED_CASES[case]
    options = add_sink_tensor(options)
    many_kv = [n + chunk for n in KV_LENGTHS]
    q, k, v, k_pages, v_pages, table = make_random_paged_inputs(many_kv, chunk)
    o, stats = attention_with_kvcache(
        q.transpose(1, 2),
        k_pages,
        v_pages,
        table,
        make_int32_tensor(many_kv),
        **options,
        shapes=shapes,
        return_stats=True,
    )
    assert o.shape == (len(KV_LENGTHS), chunk, 8, 64)
    want = compute_reference_result(q, k, v, masks, [chunk] * len(KV_LENGTHS), many_kv, options.get("sink"))
    check_relative_errors((o.transpose(1, 2), stats.squeeze(-1)), want)


@pytest.mark.parametrize("case", PAGED_CASES)
def test_paged_attention_with_packed_queries_is_right(case: str) -> None:
    options, masks = PAGED_CASES[case]
    options = add_sink_tensor(options)
    many_q = [10, 1, 0, 17, 128]
    many_kv = [n + m for n, m in zip(KV_LENGTHS, many_q, strict=True)]
    q, k, v, k_pages, v_pages, table = make_random_paged_inputs(many_kv, 128)
    cu = make_int32_tensor([sum(many_q[:i]) for i in range(len(many_q) + 1)])
    o, stats = attention_with_kvcache(
        *(pack_tokens(q, many_q), k_pages, v_pages, table, make_int32_tensor(many_kv)),
        **options,
        cu_seqlens_q=cu,
        max_seqlen_q=128,
        return_stats=True,
    )
    want, lse = compute_reference_result(q, k, v, masks, many_q, many_kv, options.get("sink"))
    check_relative_errors((o, stats), (pack_tokens(want, many_q), pack_tokens(lse, many_q)))


@pytest.mark.parametrize("page_size", [1, 8, 16, 64, 256])
@pytest.mark.parametrize("kv_layout", ["NHD", "HND"])
def test_paged_attention_is_right_for_all_page_sizes(kv_layout: str, page_size: int) -> None:
    many_kv = [n + 3 for n in KV_LENGTHS]
    q, k, v, k_pages, v_pages, table = make_random_paged_inputs(many_kv, 3, page_size=page_size)
    if kv_layout == "HND":
        k_pages, v_pages = (x.transpose(1, 2).contiguous() for x in (k_pages, v_pages))
    found = attention_with_kvcache(
        *(q.transpose(1, 2), k_pages, v_pages, table, make_int32_tensor(many_kv)),
        causal=True,
        kv_layout=kv_layout,
        return_stats=True,
    )
    want = compute_reference_result(q, k, v, Masks(right_bound=0, bottom_right=True), [3] * len(KV_LENGTHS), many_kv)
    check_relative_errors((found[0].transpose(1, 2), found[1].squeeze(-1)), want)


def test_pages_of_k_and_v_may_share_one_buffer() -> None:
    q, k, v, k_pages, v_pages, table = make_random_paged_inputs(KV_LENGTHS, 1)
    both = torch.stack([k_pages, v_pages], 1)  # [pages, 2, tokens, h, d]
    wide_table = torch.full((len(KV_LENGTHS), table.shape[1] + 5), -1, device="cuda", dtype=torch.int32)
    wide_table[:, : table.shape[1]] = table
    for some_table in (wide_table, wide_table[:, : table.shape[1]]):
        found = attention_with_kvcache(
            *(q.transpose(1, 2), both[:, 0], both[:, 1], some_table, make_int32_tensor(KV_LENGTHS)), return_stats=True
        )
        want = compute_reference_result(q, k, v, Masks(), [1] * len(KV_LENGTHS), KV_LENGTHS)
        check_relative_errors((found[0].transpose(1, 2), found[1].squeeze(-1)), want)


@pytest.mark.parametrize("shapes", ["exact", "any"])
@pytest.mark.parametrize("n", [4, 43, 107])
def test_short_sequences_do_not_read_pages_of_other_sequences(n: int, shapes: str) -> None:
    """A tile of keys extends beyond the block table's end: pages of other sequences, here NaN, must not contribute."""
    q, k, v, k_pages, v_pages, table = make_random_paged_inputs([n], 3, heads=4, kv_heads=4)
    k_pages, v_pages = (torch.cat([torch.full_like(x, float("nan")), x]) for x in (k_pages, v_pages))
    o = attention_with_kvcache(
        q.transpose(1, 2), k_pages, v_pages, table + len(k_pages) // 2, make_int32_tensor([n]), shapes=shapes
    )
    assert compute_frobenius_error(o.transpose(1, 2), compute_reference_result(q, k, v, Masks(), [3], [n])[0]) < 2e-3


def test_output_of_sequences_without_keys_is_zero() -> None:
    many_kv = [30, 0, 1]
    q, k, v, k_pages, v_pages, table = make_random_paged_inputs(many_kv, 1)
    o = attention_with_kvcache(q.transpose(1, 2), k_pages, v_pages, table, make_int32_tensor(many_kv))
    want, _ = compute_reference_result(q, k, v, Masks(), [1] * 3, many_kv)
    assert compute_frobenius_error(o.transpose(1, 2), want) < 2e-3
    assert not o[1].any()


def test_paged_attention_writes_the_out_tensor() -> None:
    q, _, _, k_pages, v_pages, table = make_random_paged_inputs(KV_LENGTHS, 1)
    paged = (q.transpose(1, 2), k_pages, v_pages, table, make_int32_tensor(KV_LENGTHS))
    want = attention_with_kvcache(*paged)
    out = torch.zeros_like(want)
    found = attention_with_kvcache(*paged, out=out)
    assert found.data_ptr() == out.data_ptr()
    assert torch.equal(out, want)


def test_backward_pass_of_paged_attention_is_refused() -> None:
    q, _, _, k_pages, v_pages, table = make_random_paged_inputs(KV_LENGTHS, 1)
    o = attention_with_kvcache(
        q.transpose(1, 2).requires_grad_(True), k_pages, v_pages, table, make_int32_tensor(KV_LENGTHS)
    )
    with pytest.raises(UsageError, match="gradient of attention with paged K and V is not supported"):
        o.sum().backward()


def test_unsupported_arguments_are_reported() -> None:
    q, _, _, k_pages, v_pages, table = make_random_paged_inputs(KV_LENGTHS, 1)
    q, lens = q.transpose(1, 2), make_int32_tensor(KV_LENGTHS)
    call = attention_with_kvcache
    wrong: list[tuple[str, Any]] = [
        (r"block_table is int64", lambda: call(q, k_pages, v_pages, table.long(), lens)),
        (r"block_table is int32 \[4, ", lambda: call(q, k_pages, v_pages, table[:4], lens)),
        ("block_table has 1 dims", lambda: call(q, k_pages, v_pages, table[0], lens)),
        ("block_table is on|block_table is int32 .* on cpu", lambda: call(q, k_pages, v_pages, table.cpu(), lens)),
        (r"seq_len_kv is int32 \[4\]", lambda: call(q, k_pages, v_pages, table, lens[:4])),
        ("cache_seqlens has 2 dims", lambda: call(q, k_pages, v_pages, table, lens[None])),
        ("power of two", lambda: call(q, k_pages[:, :15], v_pages[:, :15], table, lens)),
        (r"v is float16", lambda: call(q, k_pages, v_pages[:5], table, lens)),
        ("q has 3 dims", lambda: call(q[0], k_pages, v_pages, table, lens)),
        ("k_cache has 3 dims", lambda: call(q, k_pages[0], v_pages, table, lens)),
        (
            "max_seqlen_q",
            lambda: call(q[:, 0], k_pages, v_pages, table, lens, cu_seqlens_q=make_int32_tensor([0, 1, 2, 3, 4, 5])),
        ),
        ("kv_layout 'DHN'", lambda: call(q, k_pages, v_pages, table, lens, kv_layout="DHN")),
        ("the pages of k have strides", lambda: call(q, k_pages.repeat(1, 1, 1, 2)[..., ::2], v_pages, table, lens)),
        ("k is bfloat16, q float16", lambda: call(q, k_pages.bfloat16(), v_pages, table, lens)),
    ]
    for words, run in wrong:
        with pytest.raises(UsageError, match=words) as caught:
            run()
        assert caught.value.code in ("torch-tensor", "torch-option")
    assert torch.isfinite(call(q, k_pages, v_pages, table, lens)).all(), "the CUDA context must stay usable"


# 8-bit floats


def quantize_to_fp8(x: Any) -> tuple[Any, Any]:
    """Return a tensor as e4m3, and the scale that dequantizes it."""
    factor = x.abs().max().float() / 448
    return (x.float() / factor).to(torch.float8_e4m3fn), factor.reshape(1)


def make_fp8_scales(q: Any, k: Any, v: Any) -> Scales:
    one = torch.ones(1, device="cuda")
    return Scales(q, k, v, one / 256, one * 256, one * 64)


@pytest.mark.parametrize("form", ["dense", "packed", "paged"])
def test_paged_attention_in_fp8_is_right(form: str) -> None:
    torch.manual_seed(4)
    b, s, heads, d = 2, 128, 4, 128
    wide = [torch.randn(b, s, heads, d, device="cuda") for _ in range(3)]
    small, factors = zip(*map(quantize_to_fp8, wide), strict=True)
    scales = make_fp8_scales(*factors)
    options: dict[str, Any] = {"scales": scales, "return_stats": True, "return_amax": True}
    if form == "dense":
        o, stats, amax_s, amax_o = attention(*(x.transpose(1, 2) for x in small), **options)
    elif form == "packed":
        o, stats, amax_s, amax_o = attention_varlen(
            *(x.flatten(0, 1) for x in small), make_int32_tensor([0, s, 2 * s]), None, s, **options
        )
        o, stats = o.view(b, s, heads, d).transpose(1, 2), stats.t().view(b, s, heads, 1).transpose(1, 2)
    else:
        pages = [x.view(b * s // 16, 16, heads, d) for x in small[1:]]
        table = make_int32_tensor(list(range(b * s // 16))).view(b, -1)
        o, stats, amax_s, amax_o = attention_with_kvcache(
            small[0], *pages, table, make_int32_tensor([s] * b), **options
        )
        o = o.transpose(1, 2)
    exact = [(x.double() * factor).transpose(1, 2) for x, factor in zip(small, factors, strict=True)]
    want, lse = compute_reference_attention(*exact, Masks())
    assert compute_frobenius_error(o.float() / 64, want, 0.05) < 0.06
    assert compute_frobenius_error(stats.squeeze(-1), lse) < 2e-2
    assert abs(float(amax_o) - float(want.abs().max())) < 0.1 * float(want.abs().max())
    assert 0 < float(amax_s) <= 1


def test_paged_attention_in_fp8_requires_scales() -> None:
    q = torch.zeros(1, 4, 64, 128, device="cuda").to(torch.float8_e4m3fn)
    one = torch.ones(1, device="cuda")
    with pytest.raises(UsageError, match="its scales are needed"):
        attention(q, q, q)
    with pytest.raises(UsageError, match="5 scales are given"):
        attention(q, q, q, scales=(one,) * 5)
    with pytest.raises(UsageError, match="scale_o is float64"):
        attention(q, q, q, scales=(*(one,) * 5, one.double()))
    with pytest.raises(UsageError, match=r"descale_q is float32 \[2\]"):
        attention(q, q, q, scales=(one.repeat(2), *(one,) * 5))
