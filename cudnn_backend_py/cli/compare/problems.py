"""Dense attention problems to time: short names, operation counts, graphs."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from ...graph import Graph
from ...graph.attention import Attention, sdpa_backward, sdpa_forward
from ...graph.data_types import DATA_TYPES
from ...system.version import VersionTuple

__all__ = ["DIRECTIONS", "Direction", "build_attention_graph", "count_flops", "format_attention_problem"]

Direction = Literal["forward", "backward"]
DIRECTIONS: tuple[Direction, ...] = ("forward", "backward")


def format_attention_problem(p: Attention) -> str:
    """Return a short name such as ``b1 h16/4 s16384 d128 causal bf16``."""
    heads = str(p.heads) if p.kv_heads == p.heads else f"{p.heads}/{p.kv_heads}"
    seq = str(p.seq_q) if p.seq_kv == p.seq_q else f"{p.seq_q}/{p.seq_kv}"
    return f"b{p.batch} h{heads} s{seq} d{p.head_dim}{' causal' if p.causal else ''} {DATA_TYPES[p.data_type].short}"


def count_flops(p: Attention, direction: Direction) -> float:
    """Return the floating-point operations as FlashAttention counts them: half of the scores if causal."""
    one_way = 4.0 * p.batch * p.heads * p.seq_q * p.seq_kv * p.head_dim / (2 if p.causal else 1)
    return one_way * (2.5 if direction == "backward" else 1.0)


def build_attention_graph(p: Attention, direction: Direction, version: VersionTuple, sm: int) -> Graph:
    """Return the graph for a cuDNN version and an architecture; the forward pass writes statistics."""
    if direction == "backward":
        return sdpa_backward(p, version=version, sm=sm)
    return sdpa_forward(replace(p, stats=True), version=version, sm=sm)
