"""The forward pass as in FlashAttention-2: tile by tile over K and V, with a running maximum and sum."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Unpack

import numpy as np
from numpy.typing import ArrayLike

from .checks import Floats
from .problem import Options, ScoreTiles, repeat_heads

__all__ = ["ForwardResults", "forward"]


@dataclass(frozen=True, eq=False)
class ForwardResults:
    """The results of the forward pass in float64: O and statistics.

    Attributes
    ----------
    o
        [b, h, s_q, d_v].
    stats
        [b, h, s_q, 1]: natural log of the sum of exponentials, ``max + log(sum_exp)``, before dropout.
    max
        [b, h, s_q, 1]: largest score of the row that takes part; the sink counts.
    sum_exp
        [b, h, s_q, 1]: sum of ``exp(score - max)``; the sink counts.
    """

    o: Floats
    stats: Floats
    max: Floats
    sum_exp: Floats


def forward(q: ArrayLike, k: ArrayLike, v: ArrayLike, *, tile: int = 128, **options: Unpack[Options]) -> ForwardResults:
    """Return O = dropout(softmax(mask(modify(scale * Q @ K^T) + bias + alibi))) @ V, in float64.

    A row in which nothing takes part has o = 0, stats = max = -inf and sum_exp = 0. If there is a sink and the row
    is no padding (``i < seq_len_q``), the sink takes part: o = 0, stats = max = sink and sum_exp = 1.

    Parameters
    ----------
    q, k, v
        [b, h, s_q, d], [b, h_k, s_kv, d], [b, h_v, s_kv, d_v] of floating-point numbers; h is a multiple of h_k and
        of h_v.
    tile
        Columns worked on at a time. It changes the result by rounding only.
    options
        See :class:`~cudnn_backend_py.interpreter.reference.Options`.

    Raises
    ------
    GraphError
        ``reference-shape``, ``reference-type`` or ``reference-option``, naming the tensors and sizes.

    Notes
    -----
    Dao, "FlashAttention-2: Faster Attention with Better Parallelism and Work Partitioning", algorithm 1.
    """
    p = ScoreTiles(q, k, v, **options)
    batch, heads, seq_q, _ = p.dims
    o = np.zeros((batch, heads, seq_q, p.v.shape[3]))
    # The sink is a first column without a value: exp(sink - max) is 1.
    running_max = np.full((batch, heads, seq_q, 1), -np.inf)
    if p.sink is not None:
        running_max = np.where(p.mask.find_rows_within_q_lengths(), p.sink, running_max)
    running_sum = np.where(running_max > -np.inf, 1.0, 0.0)

    for rows, cols in p.iterate_tiles(tile):
        score = p.modify_scores(p.compute_scaled_scores(rows, cols), rows, cols)
        keep = p.mask.make_keep_mask(rows, cols)
        if keep is not None:
            score = np.where(keep, score, -np.inf)
        old_max = running_max[:, :, rows]
        new_max = np.maximum(old_max, score.max(axis=3, keepdims=True))
        base = replace_negative_infinity_by_zero(new_max)
        exps = score - base
        np.exp(exps, out=exps)
        shrink = np.exp(old_max - base)
        running_max[:, :, rows] = new_max
        running_sum[:, :, rows] = shrink * running_sum[:, :, rows] + exps.sum(axis=3, keepdims=True)
        part = p.apply_dropout(exps, rows, cols) @ repeat_heads(p.v[:, :, cols], heads)
        o[:, :, rows] = shrink * o[:, :, rows] + part

    empty = running_sum == 0
    divisor = np.where(empty, 1.0, running_sum)
    return ForwardResults(
        o=o / divisor,
        stats=np.where(empty, -np.inf, running_max + np.log(divisor)),
        max=running_max,
        sum_exp=running_sum,
    )


def replace_negative_infinity_by_zero(x: Floats) -> Floats:
    """Return the numbers with -inf replaced by 0, so that -inf minus the result is -inf and not NaN."""
    return np.where(x == -np.inf, 0.0, x)
