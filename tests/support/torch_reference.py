"""Reference attention in torch with float64, and conversions from and to packed tokens and pages."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

__all__ = [
    "Masks",
    "compute_frobenius_error",
    "compute_reference_attention",
    "compute_reference_gradients",
    "copy_sequences_to_shuffled_pages",
    "pack_tokens",
    "unpack_tokens",
]


@dataclass(frozen=True)
class Masks:
    """Masks of attention; bounds and alignment as in :class:`~cudnn_backend_py.graph.attention.Attention`."""

    left_bound: int | None = None
    right_bound: int | None = None
    bottom_right: bool = False
    soft_cap: float | None = None
    scale: float | None = None


def compute_reference_attention(
    q: Any,
    k: Any,
    v: Any,
    masks: Masks,
    *,
    len_q: Any = None,
    len_kv: Any = None,
    bias: Any = None,
    alibi_slopes: Any = None,
    sink: Any = None,
) -> tuple[Any, Any]:
    """Return O [b, h, s_q, d] and the log-sum-exp [b, h, s_q]; rows without keys are 0 and -inf."""
    import torch

    b, h, s_q, d = q.shape
    s_kv = k.shape[2]
    k, v = (x.repeat_interleave(h // x.shape[1], dim=1) for x in (k, v))
    scores = (q @ k.transpose(2, 3)) * (d**-0.5 if masks.scale is None else masks.scale)
    if masks.soft_cap is not None:
        scores = masks.soft_cap * torch.tanh(scores / masks.soft_cap)
    if bias is not None:
        scores = scores + bias
    row = torch.arange(s_q, device=q.device).view(1, 1, -1, 1)
    column = torch.arange(s_kv, device=q.device).view(1, 1, 1, -1)
    if alibi_slopes is not None:
        scores = scores + alibi_slopes.view(1, -1, 1, 1) * (column - row)
    many_q = torch.full((b,), s_q, device=q.device) if len_q is None else len_q.long()
    many_kv = torch.full((b,), s_kv, device=q.device) if len_kv is None else len_kv.long()
    many_q, many_kv = many_q.view(-1, 1, 1, 1), many_kv.view(-1, 1, 1, 1)
    keep = (row < many_q) & (column < many_kv)
    at = row + many_kv - many_q if masks.bottom_right else row
    if masks.right_bound is not None:
        keep = keep & (column <= at + masks.right_bound)
    if masks.left_bound is not None:
        keep = keep & (column + masks.left_bound > at)
    scores = scores.masked_fill(~keep, float("-inf"))
    if sink is not None:
        scores = torch.cat([scores, sink.view(1, -1, 1, 1).expand(b, -1, s_q, 1)], -1)
    lse = scores.logsumexp(-1)
    has_keys = keep.any(-1).expand(b, h, s_q)
    shift = lse.masked_fill(lse == float("-inf"), 0).unsqueeze(-1)
    o = (scores - shift).exp()[..., :s_kv] @ v
    inside = (row < many_q).expand(b, h, s_q, 1)
    return o.masked_fill(~inside, 0), lse.masked_fill(~inside.squeeze(-1) | ~has_keys, float("-inf"))


def compute_reference_gradients(inputs: dict[str, Any], d_o: Any, masks: Masks, **others: Any) -> dict[str, Any]:
    """Return ``o``, ``stats`` and the gradients of `inputs` as ``dq``, ``dk`` and so on."""
    import torch

    wide = {name: x.detach().double().requires_grad_(True) for name, x in inputs.items()}
    more = {name: x if name in ("len_q", "len_kv") or x is None else x.double() for name, x in others.items()}
    o, lse = compute_reference_attention(
        wide["q"], wide["k"], wide["v"], masks, **{n: wide[n] for n in wide if n not in "qkv"}, **more
    )
    found = torch.autograd.grad(o, list(wide.values()), d_o.double())
    named = {f"d{name}": x for name, x in zip(wide, found, strict=True)}
    return {"o": o.detach(), "stats": lse.detach(), **named}


def unpack_tokens(x: Any, lengths: list[int], longest: int) -> Any:
    """Return packed tokens [t, h, d] as [b, h, longest, d], with zeros after each sequence."""
    import torch

    b, (_, h, d) = len(lengths), x.shape
    whole = x.new_zeros((b, longest, h, d))
    inside = torch.arange(longest, device=x.device) < torch.tensor(lengths, device=x.device).view(-1, 1)
    whole[inside] = x[: sum(lengths)]
    return whole.transpose(1, 2)


def pack_tokens(x: Any, lengths: list[int]) -> Any:
    """Return [b, h, s, d] as packed tokens [t, h, d], or [b, h, s] as [h, t]."""
    import torch

    inside = torch.arange(x.shape[2], device=x.device) < torch.tensor(lengths, device=x.device).view(-1, 1)
    packed = x.transpose(1, 2)[inside]
    return packed if x.dim() == 4 else packed.t()


def copy_sequences_to_shuffled_pages(
    x: Any, lengths: list[int], page_size: int, spare: int, seed: int
) -> tuple[Any, Any]:
    """Copy sequences [b, h, s, d] to pages in shuffled order; return the pages and the block table.

    Unused pages are filled with NaN, and the last page of a sequence after its end with large numbers.
    """
    import torch

    b, h, s, d = x.shape
    width = -(-s // page_size)
    padded = x.new_full((b, width * page_size, h, d), 1e4)
    inside = torch.arange(width * page_size, device=x.device) < torch.tensor(lengths, device=x.device).view(-1, 1)
    padded[inside] = x.transpose(1, 2)[inside[:, :s]]
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(b * width + spare, generator=generator)[: b * width].to(x.device)
    pages = x.new_full((b * width + spare, page_size, h, d), float("nan"))
    pages[order] = padded.view(b * width, page_size, h, d)
    return pages, order.view(b, width).int()


def compute_frobenius_error(found: Any, want: Any, floor: float = 0.3) -> float:
    """Return the relative Frobenius error, with at least `floor` as the expected average magnitude.

    Without a floor, zero gradients, such as those with a single key, would make rounding errors look large.
    """
    wide, want = found.detach().double(), want.double()
    return float((wide - want).norm() / (want.norm() + floor * want.numel() ** 0.5)) if want.numel() else 0.0
