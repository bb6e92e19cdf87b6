"""What rows of reported faults of attention share: conditions, and graphs of reproductions."""

from __future__ import annotations

from typing import Any

from ..graph.attention.backward import composite_backward
from ..graph.attention.fault import BASE, Use
from ..graph.attention.hazards import FRONTEND_NODE
from ..graph.attention.problem import Attention
from ..graph.data_types import HALF_TYPES
from ..graph.ir import Graph, packed_strides

__all__ = [
    "BLACKWELL",
    "FRONTEND_NODE",
    "FRONTEND_SURFACE",
    "backward",
    "decoding",
    "half_attention",
    "stats_not_packed",
]

BLACKWELL = (100, 103, 107)


def half_attention(use: Use) -> bool:
    """Attention in float16 or bfloat16."""
    return use.problem.data_type in HALF_TYPES


def decoding(use: Use) -> bool:
    """One query per sequence, forward."""
    return not use.backward and use.problem.seq_q == 1


def stats_not_packed(use: Use) -> bool:
    """Dense statistics in another order than b, h, s."""
    p = use.problem
    dims, strides = p.dims("stats"), p.strides("stats")
    wanted = zip(dims, strides, packed_strides(dims), strict=True)
    return (
        (use.backward or p.stats) and not p.ragged_stats and any(dim > 1 and have != need for dim, have, need in wanted)
    )


def backward(**options: Any) -> Graph:
    """Return a backward pass of many operations, with options over ``BASE``."""
    return composite_backward(Attention(**BASE | options), None)


FRONTEND_SURFACE = (
    "https://github.com/NVIDIA/cudnn-frontend/blob/05067cacebac48c00ab1ce6c9616cadae40ab74f"
    "/include/cudnn_frontend/node/sdpa_support_surface.h"
)
