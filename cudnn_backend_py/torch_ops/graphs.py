"""Graphs of the operators: the attention problem that tensors and options describe. Imports nothing of torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .. import faults  # noqa: F401  # the builders warn of them
from ..graph.attention import Attention, SoftCap, sdpa_backward, sdpa_forward
from ..graph.ir import Graph
from ..system.version import VersionTuple
from .arguments import Layout, Options

__all__ = ["attention_graph", "make_problem"]


def attention_graph(
    tensors: Mapping[str, Layout],
    options: Options,
    *,
    backward: bool,
    version: VersionTuple,
    sm: int,
) -> Graph:
    """Return the graph of a pass over such tensors, by their names in :class:`Attention`; ``stats`` if wanted."""
    make = sdpa_backward if backward else sdpa_forward
    return make(make_problem(tensors, options, backward=backward), version=version, sm=sm)


def make_problem(tensors: Mapping[str, Layout], options: Options, *, backward: bool) -> Attention:
    """Return the problem of a pass over dense tensors [b, h, s, d] of just these dims and strides.

    Raises
    ------
    GraphError
        What :class:`Attention` refuses.
    """
    q, k, v = (tensors[name] for name in "qkv")
    assert q.data_type is not None  # checked with the tensors
    moved = ("q", "k", "v", "o", "stats", *(("do", "dq", "dk", "dv") if backward else ()))
    layout: dict[str, Any] = {name: x.strides for name, x in tensors.items() if name in moved}
    bias: Any = tensors["bias"].dims if "bias" in tensors else None
    return Attention(
        batch=q.dims[0],
        heads=q.dims[1],
        seq_q=q.dims[2],
        head_dim=q.dims[3],
        seq_kv=k.dims[2],
        head_dim_v=v.dims[3],
        kv_heads=k.dims[1],
        v_heads=v.dims[1],
        data_type=q.data_type,
        layout=layout,
        scale=options.scale,
        left_bound=options.left_bound,
        right_bound=options.right_bound,
        alignment="bottom_right" if options.bottom_right else "top_left",
        padding="seq_len_q" in tensors,
        bias=bias,
        dbias="dbias" in tensors,
        alibi="alibi_slopes" in tensors,
        score_modifier=None if options.soft_cap is None else SoftCap(options.soft_cap),
        dropout=options.dropout,
        sink="sink" in tensors,
        dsink="dsink" in tensors,
        stats="stats" in tensors and not backward,
        deterministic=options.deterministic and backward,
    )
