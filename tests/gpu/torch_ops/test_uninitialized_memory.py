"""Results do not depend on old values in free memory: a call reads only its inputs and what it wrote itself."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from cudnn_backend_py.torch_ops import attention, attention_with_kvcache
from tests.support.torch_reference import (
    Masks,
    compute_frobenius_error,
    compute_reference_attention,
    compute_reference_gradients,
    copy_sequences_to_shuffled_pages,
)

torch: Any = pytest.importorskip("torch", reason="did not run: torch is not installed, and these tests need it")
H, D = 4, 64
LARGE_BLOCK_BYTES = 64 << 20  # bytes: more than any workspace here
# NaN of every type, and -1 as an integer; large numbers, and pages far beyond the last one; an invalid address.
FILL_BYTES = (0xFF, 0x7B, 0x5A)


def fill_free_memory(fill_byte: int) -> None:
    """Fill all free memory of torch's allocator with this byte, small blocks and large ones."""
    torch.cuda.synchronize()
    small = [torch.full((1 << 19,), fill_byte, device="cuda", dtype=torch.uint8) for _ in range(64)]
    large = [torch.full((LARGE_BLOCK_BYTES,), fill_byte, device="cuda", dtype=torch.uint8) for _ in range(4)]
    del small, large


@pytest.fixture(params=FILL_BYTES, ids=hex)
def fill_byte(request: pytest.FixtureRequest) -> Iterator[int]:
    """The byte that free GPU memory is filled with; torch's cache is emptied before and after each test."""
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    yield request.param
    torch.cuda.synchronize()
    torch.cuda.empty_cache()


@pytest.mark.parametrize(("s_q", "s_kv"), [(215, 1), (1, 215), (215, 2), (100, 100), (1, 1)])
@pytest.mark.parametrize("has_bias", [False, True])
def test_dense_results_are_independent_of_previous_memory_contents(
    fill_byte: int, s_q: int, s_kv: int, has_bias: bool
) -> None:
    torch.manual_seed(s_q)
    inputs = {
        name: torch.randn(31, s, H, D, device="cuda", dtype=torch.half).transpose(1, 2)
        for name, s in (("q", s_q), ("k", s_kv), ("v", s_kv))
    }
    d_o = torch.randn(31, s_q, H, D, device="cuda", dtype=torch.half).transpose(1, 2)
    if has_bias:
        inputs["bias"] = torch.randn(1, H, s_q, s_kv, device="cuda", dtype=torch.half)
    for x in inputs.values():
        x.requires_grad_(True)
    want = compute_reference_gradients(inputs, d_o, Masks())
    for _ in range(3):  # by Python first, then by the compiled step
        fill_free_memory(fill_byte)
        o, stats = attention(**inputs, shapes="any", return_stats=True)
        fill_free_memory(fill_byte)
        found = torch.autograd.grad(o, list(inputs.values()), d_o)
        errors = {
            "o": compute_frobenius_error(o, want["o"]),
            "stats": compute_frobenius_error(stats.squeeze(-1), want["stats"]),
        }
        errors |= {name: compute_frobenius_error(x, want[f"d{name}"]) for name, x in zip(inputs, found, strict=True)}
        assert all(value < 4e-3 for value in errors.values()), errors


@pytest.mark.parametrize("many", [[178, 1], [0, 1], [256, 255], [17] * 31], ids=["two", "none", "tile", "many"])
@pytest.mark.parametrize("rows", [1, 5])
def test_paged_results_are_independent_of_previous_memory_contents(fill_byte: int, many: list[int], rows: int) -> None:
    torch.manual_seed(sum(many))
    b, longest = len(many), max(many)
    q = torch.randn(b, rows, H, D, device="cuda", dtype=torch.half)
    k, v = (torch.randn(b, longest, H, D, device="cuda", dtype=torch.half).transpose(1, 2) for _ in range(2))
    (k_pages, table), (v_pages, _) = (copy_sequences_to_shuffled_pages(x, many, 16, 64, 7) for x in (k, v))
    lengths = torch.tensor(many, device="cuda", dtype=torch.int32)
    wide = (q.transpose(1, 2).double(), k.double(), v.double())
    want, lse = compute_reference_attention(*wide, Masks(), len_kv=lengths)
    for _ in range(3):
        fill_free_memory(fill_byte)
        o, stats = attention_with_kvcache(q, k_pages, v_pages, table, lengths, shapes="any", return_stats=True)
        has_keys = lse != float("-inf")
        assert compute_frobenius_error(o.transpose(1, 2), want) < 2e-3
        assert compute_frobenius_error(stats.squeeze(-1)[has_keys], lse[has_keys]) < 2e-3
