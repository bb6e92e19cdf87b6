"""CPU kernels of the package's torch operators, to test the operators without a GPU."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any, NamedTuple

import pytest

from cudnn_backend_py.torch_ops import arguments
from cudnn_backend_py.torch_ops.arguments import SCALES, TENSORS, OperatorOptions
from cudnn_backend_py.torch_ops.operators import _allocate_contiguous, _allocate_output, _allocate_stats, load_torch

__all__ = ["register_cpu_attention_kernels"]


@contextmanager
def register_cpu_attention_kernels() -> Iterator[list[str]]:
    """Register CPU kernels and disable the device check in the block; yield a list of the passes that ran."""
    torch, ran = load_torch(), []

    def forward(*given: Any) -> Any:
        ran.append("forward")
        return _run_forward(torch, *given)

    def backward(*given: Any) -> Any:
        ran.append("backward")
        return _run_backward(torch, *given)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(arguments, "_check_device", lambda _: None)
        library = torch.library.Library("cudnn_backend", "IMPL")
        library.impl("sdpa_forward", forward, "CPU")
        library.impl("sdpa_backward", backward, "CPU")
        try:
            yield ran
        finally:
            library._destroy()


class _DenseScoresAndInputs(NamedTuple):
    """Values of a dense forward pass that the backward pass needs; heads of K and V are repeated."""

    scores: Any  # scores after the soft cap and masks
    slope: Any  # derivative of the soft cap
    k: Any
    v: Any
    scale: float


def _compute_scores(torch: Any, named: dict[str, Any], options: OperatorOptions) -> _DenseScoresAndInputs:
    q, k, v, bias, len_q, len_kv, slopes = (
        named[name] for name in ("q", "k", "v", "bias", "seq_len_q", "seq_len_kv", "alibi_slopes")
    )
    (b, h, s_q, d), s_kv = q.shape, k.shape[2]
    k, v = (x.repeat_interleave(h // x.shape[1], 1) for x in (k, v))
    scale = d**-0.5 if options.scale is None else options.scale
    scores, slope = q @ k.mT * scale, 1.0
    if options.soft_cap is not None:
        capped = torch.tanh(scores / options.soft_cap)
        scores, slope = options.soft_cap * capped, 1 - capped.square()
    if bias is not None:
        scores = scores + bias
    row, column = torch.arange(s_q).view(1, 1, -1, 1), torch.arange(s_kv).view(1, 1, 1, -1)
    if slopes is not None:
        scores = scores + slopes.view(1, -1, 1, 1).to(scores.dtype) * (column - row)
    many_q, many_kv = (
        torch.full((b, 1, 1, 1), whole) if many is None else many.view(b, 1, 1, 1)
        for many, whole in ((len_q, s_q), (len_kv, s_kv))
    )
    keep = (row < many_q) & (column < many_kv)
    at = row + many_kv - many_q if options.bottom_right else row
    if options.right_bound is not None:
        keep = keep & (column <= at + options.right_bound)
    if options.left_bound is not None:
        keep = keep & (column + options.left_bound > at)
    return _DenseScoresAndInputs(scores.masked_fill(~keep, -math.inf), slope, k, v, scale)


def _compute_dense_forward(torch: Any, named: dict[str, Any], options: OperatorOptions) -> tuple[Any, Any]:
    """Return O and the statistics of a dense problem; rows without keys are 0."""
    made, sink = _compute_scores(torch, named, options), named["sink"]
    stats = made.scores.logsumexp(-1, keepdim=True)
    if sink is not None:
        stats = torch.logaddexp(stats, sink.view(1, -1, 1, 1).to(stats.dtype).expand_as(stats))
    return (made.scores - stats).exp().nan_to_num() @ made.v, stats


def _compute_dense_gradients(torch: Any, named: dict[str, Any], options: OperatorOptions) -> dict[str, Any]:
    """Return the gradients of a dense problem, by input."""
    made, q, d_o = _compute_scores(torch, named, options), named["q"], named["do"]
    stats = named["stats"].to(q.dtype)
    p = (made.scores - stats).exp().nan_to_num()
    common = (d_o * named["o"]).sum(-1, keepdim=True)
    d_s = p * (d_o @ made.v.mT - common)
    d_raw = d_s * made.slope * made.scale
    found = {"q": d_raw @ made.k, "k": d_raw.mT @ q, "v": p.mT @ d_o}
    for name in "kv":
        b, heads, s, d = named[name].shape
        found[name] = found[name].view(b, heads, -1, s, d).sum(2)
    if named["bias"] is not None:
        found["bias"] = d_s.sum_to_size(named["bias"].shape)
    if named["sink"] is not None:
        share = (named["sink"].view(1, -1, 1, 1) - stats).exp() * common
        found["sink"] = -share.nan_to_num().sum((0, 2, 3)).float()
    return found


def _read_pages(torch: Any, named: dict[str, Any]) -> dict[str, Any]:
    """Return the inputs of a paged problem, with dense keys and values instead of pages."""
    table, found = named["block_table"].long(), dict(named)
    for name in "kv":
        pages = named[name][table]  # b, n, h, tokens, d
        found[name] = pages.transpose(1, 2).flatten(2, 3).nan_to_num()
    return found


def _split_sequences(named: dict[str, Any]) -> Iterator[tuple[dict[str, Any], slice, slice]]:
    """Yield each sequence of packed tokens as a dense problem, with the slices of its queries and keys."""
    starts_q = named["cu_seqlens_q"].tolist()
    is_paged = named["block_table"] is not None
    starts_k = None if is_paged else named["cu_seqlens_k"].tolist()
    for index, (first, last) in enumerate(pairwise(starts_q)):
        rows, keys = slice(first, last), slice(0, 0)
        one = dict(named) | {"cu_seqlens_q": None, "cu_seqlens_k": None}
        for name in ("q", "do", "o"):
            if one.get(name) is not None:
                one[name] = named[name][rows].transpose(0, 1).unsqueeze(0)
        if one.get("stats") is not None:
            one["stats"] = named["stats"][:, rows].unsqueeze(0).unsqueeze(-1)
        if is_paged:
            one |= {"block_table": named["block_table"][index : index + 1]}
            one = _read_first_keys_from_pages(one, int(named["seq_len_kv"][index]))
        else:
            assert starts_k is not None
            keys = slice(starts_k[index], starts_k[index + 1])
            for name in "kv":
                one[name] = named[name][keys].transpose(0, 1).unsqueeze(0)
        yield one, rows, keys


def _read_first_keys_from_pages(one: dict[str, Any], many: int) -> dict[str, Any]:
    import torch

    one = _read_pages(torch, one)
    return one | {name: one[name][:, :, :many] for name in "kv"} | {"seq_len_kv": None, "block_table": None}


def _run_forward(torch: Any, *given: Any) -> tuple[Any, Any, Any]:
    count = len(TENSORS)
    named, options = dict(zip(TENSORS, given, strict=False)), OperatorOptions(*given[count + len(SCALES) : -1])
    q, v = named["q"], named["v"]
    o, stats = _allocate_output(q, v.shape[-1]), _allocate_stats(q)
    if q.dim() == 3:
        for one, rows, _ in _split_sequences(named):
            found, logs = _compute_dense_forward(torch, one, options)
            o[rows] = found[0].transpose(0, 1)
            stats[:, rows] = logs[0, ..., 0].float()
    else:
        if named["block_table"] is not None:
            named = _read_pages(torch, named)
        found, logs = _compute_dense_forward(torch, named, options)
        o.copy_(found)
        stats.copy_(logs)
    return o, stats if given[-1] else q.new_empty((0,), dtype=torch.float32), q.new_empty((0,), dtype=torch.float32)


def _run_backward(torch: Any, *given: Any) -> tuple[Any, ...]:
    names = ("do", "o", "stats", *TENSORS)
    named, wants = dict(zip(names, given, strict=False)), dict(zip(("bias", "sink"), given[-2:], strict=True))
    options = OperatorOptions(*given[len(names) : -2])
    made = {name: _allocate_output(named[name], named[name].shape[-1]) for name in "qkv"}
    made |= {
        name: _allocate_contiguous(named[name]).zero_() if want else named["q"].new_empty(0)
        for name, want in wants.items()
    }
    if named["q"].dim() == 3:
        for one, rows, keys in _split_sequences(named):
            found = _compute_dense_gradients(torch, one, options)
            for name, where in (("q", rows), ("k", keys), ("v", keys)):
                made[name][where] = found[name][0].transpose(0, 1)
            for name, want in wants.items():
                if want:
                    made[name] += found[name]
    else:
        found = _compute_dense_gradients(torch, named, options)
        for name in ("q", "k", "v", *(name for name, want in wants.items() if want)):
            made[name].copy_(found[name])
    return tuple(made.values())
