"""Attention as operation graphs: the flash forward pattern, with causal mask and statistics."""

from __future__ import annotations

import math

from ..errors import GraphError
from ..generated.enums import DataType, PointwiseMode, ReduceTensorOp
from .builder import GraphBuilder
from .ir import Graph, Tensor

__all__ = ["sdpa_forward"]


def sdpa_forward(
    *,
    batch: int,
    heads: int,
    seq_q: int,
    seq_kv: int | None = None,
    head_dim: int,
    head_dim_v: int | None = None,
    kv_heads: int | None = None,
    data_type: DataType = DataType.HALF,
    scale: float | None = None,
    causal: bool = False,
    stats: bool = False,
    name: str = "sdpa_forward",
) -> Graph:
    """Return softmax(scale * q @ k^T) @ v as matmul, pointwise and reduction operations.

    The flash attention forward pattern of cuDNN. Tensors ``q`` [b, h, s_q, d], ``k`` [b, h_kv, d, s_kv] (transposed
    by its strides), ``v`` [b, h_kv, s_kv, d_v] and ``o`` [b, h, s_q, d_v] lie in memory as b, s, h, d; ``stats``
    [b, h, s_q, 1] is the float32 logarithm of the sum of exponentials per row.

    Parameters
    ----------
    scale
        Factor of the scores; 1 / sqrt(head_dim) if not given.
    causal
        Keep column j of row i only where j <= i (top-left aligned).
    stats
        Write the log-sum-exp per row, which the backward pass needs.

    Raises
    ------
    GraphError
        ``attention-heads`` if the query heads are no multiple of the key/value heads.
    """
    seq_kv = seq_q if seq_kv is None else seq_kv
    head_dim_v = head_dim if head_dim_v is None else head_dim_v
    kv_heads = heads if kv_heads is None else kv_heads
    if kv_heads < 1 or heads % kv_heads:
        raise GraphError(
            f"{heads} query heads cannot share {kv_heads} key/value heads: a multiple is needed",
            code="attention-heads",
        )
    g = GraphBuilder(name, io_type=data_type)

    def bshd(label: str, h: int, s: int, d: int) -> Tensor:
        return g.tensor(label, (batch, h, s, d), strides=(s * h * d, d, h * d, 1))

    q = bshd("q", heads, seq_q, head_dim)
    k = g.tensor(
        "k",
        (batch, kv_heads, head_dim, seq_kv),
        strides=(seq_kv * kv_heads * head_dim, head_dim, 1, kv_heads * head_dim),
    )
    v = bshd("v", kv_heads, seq_kv, head_dim_v)
    o = bshd("o", heads, seq_q, head_dim_v)
    factor = g.scalar(1 / math.sqrt(head_dim) if scale is None else float(scale), name="scale")

    scores = g.pointwise(PointwiseMode.MUL, g.matmul(q, k, name="qk"), factor, name="scores")
    if causal:
        row = g.pointwise(PointwiseMode.GEN_INDEX, scores, axis=2, name="row")
        column = g.pointwise(PointwiseMode.GEN_INDEX, scores, axis=3, name="column")
        keep = g.pointwise(PointwiseMode.CMP_GE, row, column, name="keep")
        minus_infinity = g.scalar(-math.inf, name="minus_infinity")
        scores = g.pointwise(PointwiseMode.BINARY_SELECT, scores, minus_infinity, keep, name="masked")
    probabilities = _softmax(g, scores, data_type, stats)
    g.matmul(probabilities, v, out=o)
    return g.graph()


def _softmax(g: GraphBuilder, scores: Tensor, data_type: DataType, stats: bool) -> Tensor:
    per_row = (*scores.dims[:-1], 1)
    top = g.reduction(ReduceTensorOp.MAX, scores, per_row, name="row_max")
    exp = g.pointwise(PointwiseMode.EXP, g.pointwise(PointwiseMode.SUB, scores, top, name="shifted"), name="exp")
    total = g.reduction(ReduceTensorOp.ADD, exp, per_row, name="row_sum")
    log_total = g.pointwise(PointwiseMode.LOG, total, name="log_sum")
    g.pointwise(PointwiseMode.ADD, top, log_total, name="stats", virtual=not stats, data_type=DataType.FLOAT)
    return g.pointwise(PointwiseMode.DIV, exp, total, name="p", data_type=data_type)
