"""YaRN angles of rotary embeddings for contexts longer than in training, for ``graph.rope``.

The method is YaRN's (Peng et al. 2023, arXiv:2309.00071): pairs of elements that turn often within the trained length
keep their frequency, those that turn seldom get it divided by the scaling factor, and in between it is blended. Names
and parameters are those of cudnn-frontend; needs PyTorch.
"""

from __future__ import annotations

import math
from typing import Any

__all__ = ["compute_yarn_freqs", "compute_yarn_inv_freq", "yarn_get_mscale"]


def yarn_get_mscale(scaling_factor: float, mscale_factor: float = 1.0) -> float:
    """Return YaRN's factor for cosines and sines: 1 for scaling factors up to 1."""
    return 1.0 + 0.1 * mscale_factor * math.log(scaling_factor) if scaling_factor > 1.0 else 1.0


def compute_yarn_inv_freq(
    head_dim: int,
    *,
    base: float = 10000.0,
    scaling_factor: float = 1.0,
    original_max_position: int = 4096,
    beta_fast: float = 32.0,
    beta_slow: float = 1.0,
    device: Any = "cuda",
    dtype: Any = None,
) -> Any:
    """Return the angle per position of each pair of elements: a tensor of ``head_dim / 2``, float32 by default.

    Pairs that turn `beta_fast` times or more in `original_max_position` tokens keep their frequency, those that turn
    `beta_slow` times or less have it divided by `scaling_factor`.

    Raises
    ------
    ValueError
        If `head_dim` is odd.
    """
    import torch

    if head_dim % 2:
        raise ValueError(f"head_dim is {head_dim}, it must be even, as pairs of elements are rotated")
    pairs = torch.arange(head_dim // 2, device=device, dtype=dtype or torch.float32)
    plain = 1.0 / base ** (2 * pairs / head_dim)
    if scaling_factor <= 1.0:
        return plain

    def compute_pair_index_for_rotations(times: float) -> float:
        return head_dim * math.log(original_max_position / (2 * math.pi * times)) / (2 * math.log(base))

    first = max(math.floor(compute_pair_index_for_rotations(beta_fast)), 0)
    last = min(math.ceil(compute_pair_index_for_rotations(beta_slow)), head_dim - 1)
    kept = 1 - ((pairs - first) / ((last - first) or 1e-3)).clamp(0, 1)
    return plain / scaling_factor * (1 - kept) + plain * kept


def compute_yarn_freqs(
    max_seq_len: int,
    head_dim: int,
    *,
    base: float = 10000.0,
    scaling_factor: float = 1.0,
    original_max_position: int = 4096,
    beta_fast: float = 32.0,
    beta_slow: float = 1.0,
    mscale_factor: float = 1.0,
    mscale_all_dim_factor: float = 0.0,
    device: Any = "cuda",
    dtype: Any = None,
) -> tuple[Any, float]:
    """Return angles [max_seq_len, 1, 1, head_dim] for ``graph.rope``, and its ``output_scale``.

    The second half of the columns, which is not read, is 0. The scale is that of `mscale_factor` over that of
    `mscale_all_dim_factor`.
    """
    import torch

    per_position = compute_yarn_inv_freq(
        head_dim,
        base=base,
        scaling_factor=scaling_factor,
        original_max_position=original_max_position,
        beta_fast=beta_fast,
        beta_slow=beta_slow,
        device=device,
        dtype=dtype,
    )
    angles = torch.zeros(max_seq_len, 1, 1, head_dim, device=device, dtype=per_position.dtype)
    angles[:, 0, 0, : head_dim // 2] = torch.outer(
        torch.arange(max_seq_len, device=device, dtype=per_position.dtype), per_position
    )
    scale = yarn_get_mscale(scaling_factor, mscale_factor) / yarn_get_mscale(scaling_factor, mscale_all_dim_factor)
    return angles, scale
