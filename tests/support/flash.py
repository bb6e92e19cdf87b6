"""Causal attention of a fixed shape with its float64 result, for tests that execute a plan."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from cudnn_backend_py import Graph
from cudnn_backend_py.graph.attention import sdpa_forward

__all__ = ["FLASH_SHAPE", "compute_causal_attention", "make_flash_graph"]

FLASH_SHAPE = (2, 4, 512, 64)  # batch, heads, sequence, head dim


def make_flash_graph() -> Graph:
    """Return softmax(q @ k^T / 8, causal) @ v with the log-sum-exp per row."""
    batch, heads, seq, head_dim = FLASH_SHAPE
    return sdpa_forward(batch=batch, heads=heads, seq_q=seq, head_dim=head_dim, causal=True, stats=True)


def compute_causal_attention(q: NDArray[Any], k: NDArray[Any], v: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return output and log-sum-exp of causal attention in float64; q, k, v are [b, h, s, d]."""
    scores = q.astype(np.float64) @ k.astype(np.float64).swapaxes(2, 3) / np.sqrt(q.shape[3])
    scores[..., ~np.tri(*scores.shape[2:], dtype=bool)] = -np.inf
    highest = scores.max(3, keepdims=True)
    weights = np.exp(scores - highest)
    total = weights.sum(3, keepdims=True)
    return weights / total @ v.astype(np.float64), highest + np.log(total)
