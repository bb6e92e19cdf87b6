"""A pytest plugin that runs flash-attn's own tests with this package's operators.

    pytest -p tests.compat.flash_attn_names FILE --samples 200 --seed 0

FILE is tests/test_flash_attn.py of flash-attn's repository; einops must be installed. The plugin provides the module
``flash_attn``. It draws `samples` parameter sets of each test function at random. A test of a function that this
package does not have is skipped with the reason.
"""

from __future__ import annotations

import itertools
import math
import random
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any, NoReturn

import pytest

from cudnn_backend_py import torch_ops

__all__ = ["pytest_addoption", "pytest_configure", "pytest_generate_tests"]


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options of the plugin."""
    parser.addoption("--samples", type=int, default=200, help="number of parameter sets per test function")
    parser.addoption("--seed", type=int, default=0, help="seed of the random parameter sets")


def pytest_configure() -> None:
    """Provide the modules that flash-attn's tests import."""
    package = ModuleType("flash_attn")
    for function in (
        *(flash_attn_func, flash_attn_kvpacked_func, flash_attn_qkvpacked_func, flash_attn_with_kvcache),
        *(flash_attn_varlen_func, flash_attn_varlen_kvpacked_func, flash_attn_varlen_qkvpacked_func),
    ):
        setattr(package, function.__name__, function)
    modules = {
        "flash_attn": package,
        "flash_attn.bert_padding": _make_module(pad_input=pad_input, unpad_input=unpad_input),
        "flash_attn.flash_attn_interface": _make_module(
            USE_TRITON_ROCM=False,
            _get_block_size_n=_skip_calling_test,
            _flash_attn_varlen_forward=_skip_calling_test,
            flash_attn_gpu=_MissingResultPlaceholder("flash-attn's extension"),
        ),
        "flash_attn.layers": ModuleType("flash_attn.layers"),
        "flash_attn.layers.rotary": _make_module(apply_rotary_emb=_skip_calling_test),
    }
    sys.modules.update(modules)


@pytest.hookimpl(tryfirst=True)
def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run each test with a random sample of its parameter sets, as one test has 304,128."""
    marks = list(metafunc.definition.iter_markers("parametrize"))
    names = [name.strip() for mark in marks for name in mark.args[0].split(",")]
    values = [[value if "," in mark.args[0] else (value,) for value in mark.args[1]] for mark in marks]
    if not marks:
        return
    rng = random.Random(f"{metafunc.config.getoption('seed')} {metafunc.function.__name__}")
    count: int = metafunc.config.getoption("samples")
    sets: list[tuple[Any, ...]]
    if math.prod(map(len, values)) <= count:
        sets = [tuple(itertools.chain(*choice)) for choice in itertools.product(*values)]
    else:
        found: dict[tuple[Any, ...], None] = {}
        while len(found) < count:
            found[tuple(itertools.chain(*(rng.choice(options) for options in values)))] = None
        sets = list(found)
    metafunc.definition.own_markers = [mark for mark in metafunc.definition.own_markers if mark.name != "parametrize"]
    metafunc.parametrize(names, sets)


def _make_module(**members: Any) -> ModuleType:
    module = ModuleType("flash_attn.part")
    module.__dict__.update(members)
    return module


def _skip_calling_test(*_: Any, **__: Any) -> NoReturn:
    pytest.skip("no counterpart: rotary embeddings, functions of flash-attn's kernels")


class _MissingResultPlaceholder:
    """Placeholder for a flash-attn result that this package does not compute; a test that reads it is skipped."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> NoReturn:
        pytest.skip(f"no counterpart: {self._name}")

    def __getitem__(self, index: object) -> NoReturn:
        pytest.skip(f"no counterpart: {self._name}")


def _make_dropout_mask_placeholder(dropout: float) -> _MissingResultPlaceholder | None:
    return _MissingResultPlaceholder("the dropout mask as a result") if dropout else None


def unpad_input(x: Any, mask: Any) -> tuple[Any, Any, Any, int, Any]:
    """Return tokens [t, ...] of x [b, s, ...] where mask [b, s] is set, and their indices, starts and lengths."""
    import torch

    lengths = mask.sum(dim=-1, dtype=torch.int32)
    indices = mask.flatten().nonzero().flatten()
    starts = torch.nn.functional.pad(lengths.cumsum(0, dtype=torch.int32), (1, 0))
    return x.flatten(0, 1)[indices], indices, starts, int(lengths.max()), lengths


def pad_input(x: Any, indices: Any, batch: int, seq: int) -> Any:
    """Return a tensor [batch, seq, ...] of zeros with the tokens x [t, ...] written at `indices`."""
    return x.new_zeros((batch * seq, *x.shape[1:])).index_put((indices,), x).unflatten(0, (batch, seq))


def _convert_flash_attn_options(
    window: Sequence[Any], causal: bool, scale: float | None, soft_cap: float, slopes: Any, deterministic: bool
) -> dict[str, Any]:
    """Convert flash-attn's options to ours: bottom-right masks, and a window that includes its left bound."""
    if slopes is not None and (slopes.dim() != 1 or not causal):
        pytest.skip("no counterpart: ALiBi slopes by sample, or without causal")
    left, right = (int(bound) for bound in window)
    return {
        "scale": scale,
        "left_bound": None if left < 0 else left + 1,
        "right_bound": 0 if causal else None if right < 0 else right,
        "alignment": "bottom_right",
        "soft_cap": soft_cap or None,
        "alibi_slopes": slopes,
        "deterministic": deterministic,
    }


def flash_attn_func(
    q: Any,
    k: Any,
    v: Any,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: Sequence[Any] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Any = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
) -> Any:
    """Return attention of [b, s, h, d]; with `return_attn_probs` also the statistics [b, h, s_q]."""
    options = _convert_flash_attn_options(window_size, causal, softmax_scale, softcap, alibi_slopes, deterministic)
    found = torch_ops.attention(
        *(x.transpose(1, 2) for x in (q, k, v)), dropout=dropout_p, return_stats=return_attn_probs, **options
    )
    if not return_attn_probs:
        return found.transpose(1, 2)
    return found[0].transpose(1, 2), found[1].squeeze(-1), _make_dropout_mask_placeholder(dropout_p)


def flash_attn_kvpacked_func(q: Any, kv: Any, *args: Any, **options: Any) -> Any:
    """Return attention of q [b, s_q, h, d] and kv [b, s_kv, 2, h, d]."""
    return flash_attn_func(q, *kv.unbind(2), *args, **options)


def flash_attn_qkvpacked_func(qkv: Any, *args: Any, **options: Any) -> Any:
    """Return attention of qkv [b, s, 3, h, d]."""
    return flash_attn_func(*qkv.unbind(2), *args, **options)


def flash_attn_varlen_func(
    q: Any,
    k: Any,
    v: Any,
    cu_seqlens_q: Any,
    cu_seqlens_k: Any,
    max_seqlen_q: int,
    max_seqlen_k: int,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: Sequence[Any] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Any = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
    block_table: Any = None,
) -> Any:
    """Return attention of packed tokens [t, h, d]; with `return_attn_probs` also the statistics [h, t]."""
    options = _convert_flash_attn_options(window_size, causal, softmax_scale, softcap, alibi_slopes, deterministic)
    if block_table is not None:
        _skip_test_with_unsupported_pages(k, cu_seqlens_k.diff(), block_table)
        return torch_ops.attention_with_kvcache(
            *(q, k, v, block_table, cu_seqlens_k.diff()),
            cu_seqlens_q=cu_seqlens_q,
            max_seqlen_q=max_seqlen_q,
            max_seqlen_k=max_seqlen_k,
            **options,
        )
    found = torch_ops.attention_varlen(
        *(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k),
        dropout=dropout_p,
        return_stats=return_attn_probs,
        **options,
    )
    return (*found, _make_dropout_mask_placeholder(dropout_p)) if return_attn_probs else found


def _skip_test_with_unsupported_pages(pages: Any, lengths: Any, block_table: Any) -> None:
    """Skip a test that needs copied pages, or lengths on the host: this package does not support these."""
    if pages.shape[-1] % 8:
        pytest.skip("no counterpart: pages are not copied, so their head dim must be a multiple of 8")
    if int(lengths.max()) > block_table.shape[1] * pages.shape[1]:
        pytest.skip("no counterpart: lengths beyond the block table are cut to it on the GPU, without an error")


def flash_attn_varlen_kvpacked_func(q: Any, kv: Any, *args: Any, **options: Any) -> Any:
    """Return attention of packed tokens q [t_q, h, d] and kv [t_kv, 2, h, d]."""
    return flash_attn_varlen_func(q, *kv.unbind(1), *args, **options)


def flash_attn_varlen_qkvpacked_func(qkv: Any, cu_seqlens: Any, max_seqlen: int, *args: Any, **options: Any) -> Any:
    """Return attention of packed tokens qkv [t, 3, h, d]."""
    return flash_attn_varlen_func(*qkv.unbind(1), cu_seqlens, cu_seqlens, max_seqlen, max_seqlen, *args, **options)


def flash_attn_with_kvcache(
    q: Any,
    k_cache: Any,
    v_cache: Any,
    k: Any = None,
    v: Any = None,
    *,
    cache_seqlens: Any = None,
    cache_batch_idx: Any = None,
    cache_leftpad: Any = None,
    block_table: Any = None,
    causal: bool = False,
    window_size: Sequence[Any] = (-1, -1),
    alibi_slopes: Any = None,
    rotary_cos: Any = None,
    num_splits: int = 0,
    **unused: Any,
) -> Any:
    """Return attention of q [b, s, h, d] on a cache, paged or [b, s_kv, h, d]."""
    del unused, num_splits
    if k is not None or v is not None or rotary_cos is not None:
        pytest.skip("no counterpart: new keys appended to the cache, rotary embeddings")
    if cache_leftpad is not None or cache_batch_idx is not None:
        pytest.skip("no counterpart: padding on the left, an index of the cache's samples")
    options = _convert_flash_attn_options(window_size, causal, None, 0.0, alibi_slopes, False)
    if block_table is not None:
        _skip_test_with_unsupported_pages(k_cache, cache_seqlens, block_table)
        return torch_ops.attention_with_kvcache(q, k_cache, v_cache, block_table, cache_seqlens, **options)
    lengths = {"seq_len_q": cache_seqlens.new_full((q.shape[0],), q.shape[1]), "seq_len_kv": cache_seqlens}
    found = torch_ops.attention(*(x.transpose(1, 2) for x in (q, k_cache, v_cache)), **lengths, **options)
    return found.transpose(1, 2)
