"""The backward pass as in FlashAttention-2: tile by tile, with P recomputed from Q, K and Stats."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Unpack

import numpy as np
from numpy.typing import ArrayLike

from .checks import Floats, check_outputs, read_floats
from .forward_pass import replace_negative_infinity_by_zero
from .problem import Options, ScoreTiles, repeat_heads, sum_over_grouped_heads

__all__ = ["BackwardResults", "backward"]


@dataclass(frozen=True, eq=False)
class BackwardResults:
    """The gradients of attention's inputs in float64, for a given gradient dO of its output.

    Attributes
    ----------
    dq, dk, dv
        Of the dims of Q, K and V; heads that share a K or V head are summed.
    dbias
        Of the bias' dims, summed over the dims it broadcasts; None without bias.
    dsink
        [1, h, 1, 1]; None without sink.
    """

    dq: Floats
    dk: Floats
    dv: Floats
    dbias: Floats | None
    dsink: Floats | None


def backward(
    q: ArrayLike,
    k: ArrayLike,
    v: ArrayLike,
    o: ArrayLike,
    d_o: ArrayLike,
    stats: ArrayLike,
    *,
    tile: int = 128,
    **options: Unpack[Options],
) -> BackwardResults:
    """Return the gradients of attention in float64. Fully masked rows contribute nothing.

    Parameters
    ----------
    q, k, v
        As in the forward pass.
    o, stats
        Of the forward pass: [b, h, s_q, d_v], and [b, h, s_q, 1] in natural log.
    d_o
        Gradient of O, of its dims.
    tile, options
        As in the forward pass.

    Raises
    ------
    GraphError
        ``reference-shape``, ``reference-type`` or ``reference-option``, naming the tensors and sizes.

    Notes
    -----
    Dao, "FlashAttention-2: Faster Attention with Better Parallelism and Work Partitioning", algorithm 2. With
    D = rowsum(dO * O): the gradient of a score is P * (dP - D), where dP = (dO @ V^T) * dropout. The sink is a score
    whose value is 0, so that its dP is 0 and its gradient is -P_sink * D.
    """
    p = ScoreTiles(q, k, v, **options)
    o, d_o, stats = read_floats("O", o), read_floats("dO", d_o), read_floats("Stats", stats)
    check_outputs(p.q, p.v, o, d_o, stats)
    real = p.mask.find_rows_within_q_lengths()
    d_o = np.where(real, d_o, 0.0)
    alive = real & (stats != -np.inf)
    row_sum = (d_o * np.where(alive, o, 0.0)).sum(axis=3, keepdims=True)
    stats = replace_negative_infinity_by_zero(np.where(real, stats, 0.0))
    heads = p.dims[1]
    dq, dk, dv = np.zeros_like(p.q), np.zeros_like(p.k), np.zeros_like(p.v)
    dbias = None if p.bias is None else np.zeros_like(p.bias)

    for rows, cols in p.iterate_tiles(tile):
        scaled = p.compute_scaled_scores(rows, cols)
        prob = p.modify_scores(scaled, rows, cols) - stats[:, :, rows]
        keep = p.mask.make_keep_mask(rows, cols)
        if keep is not None:
            prob = np.where(keep, prob, -np.inf)
        np.exp(prob, out=prob)

        d_out = d_o[:, :, rows]
        dv[:, :, cols] = sum_over_grouped_heads(
            np.swapaxes(p.apply_dropout(prob, rows, cols), 2, 3) @ d_out, dv.shape[1]
        )
        d_prob = p.apply_dropout(d_out @ np.swapaxes(repeat_heads(p.v[:, :, cols], heads), 2, 3), rows, cols)
        d_score = prob * (d_prob - row_sum[:, :, rows])
        if dbias is not None:
            _add_tile_to_broadcast_gradient(dbias, d_score, rows, cols)
        d_score = p.scale * p.backpropagate_modified_scores(d_score, scaled)
        dq[:, :, rows] += d_score @ repeat_heads(p.k[:, :, cols], heads)
        dk[:, :, cols] = sum_over_grouped_heads(np.swapaxes(d_score, 2, 3) @ p.q[:, :, rows], dk.shape[1])

    dsink = None
    if p.sink is not None:
        dsink = -(np.exp(p.sink - stats) * row_sum).sum(axis=(0, 2), keepdims=True)
    return BackwardResults(dq, dk, dv, dbias, dsink)


def _add_tile_to_broadcast_gradient(total: Floats, part: Floats, rows: slice, cols: slice) -> None:
    """Add a tile of score gradients to a tensor that broadcasts to the scores, summing over its broadcast dims."""
    single = tuple(axis for axis, dim in enumerate(total.shape) if dim == 1)
    everything = slice(None)
    place = total[:, :, everything if 2 in single else rows, everything if 3 in single else cols]
    place += part.sum(axis=single, keepdims=True)
