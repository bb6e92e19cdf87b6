"""The checked options of reference attention, and its scores, computed one tile of columns at a time."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Literal, Protocol, TypedDict

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .checks import (
    MASK_BLOCK_SIZE,
    Floats,
    check_qkv,
    read_floats,
    read_lengths,
    read_value_per_head,
    refuse_option_if,
    refuse_shape_if,
    refuse_type_if,
)
from .masks import Mask

__all__ = ["Options", "ScoreModifier", "ScoreTiles", "repeat_heads", "sum_over_grouped_heads"]

Alignment = Literal["top_left", "bottom_right"]


class ScoreModifier(Protocol):
    """An elementwise change of the scaled scores before bias and masks."""

    def forward(self, score: Floats, /) -> Floats:
        """Return the modified scores as a new array."""

    def backward(self, d_score: Floats, score: Floats, /) -> Floats:
        """Return the gradient for `score`, the input of :meth:`forward`, from the gradient `d_score` of its result."""


class Options(TypedDict, total=False):
    """The options of ``forward`` and ``backward``, listed in the order in which they apply to the scores.

    Parameters
    ----------
    scale
        Factor of the scores; 1 / sqrt(d) if None. 1.0 is no scale.
    score_modifier
        Elementwise change of the scaled scores, see :class:`ScoreModifier`.
    bias
        Added, [1 or b, 1 or h, 1 or s_q, 1 or s_kv]. An entry of -inf masks.
    alibi_slopes
        [h] or [1, h, 1, 1]: add ``slope * (j - i)``, i and j counted from 0 whatever the alignment.
    seq_len_q, seq_len_kv
        b integers: row i and column j take part where ``i < seq_len_q`` and ``j < seq_len_kv``. What the tensors hold
        beyond these lengths is never used. One that is not given is the whole sequence.
    left_bound, right_bound, alignment
        Keep column j of row i where ``j + left_bound > i`` and ``j <= i + right_bound``. With "bottom_right" i is
        counted from ``seq_len_kv - seq_len_q`` of its batch entry on.
    block_mask
        Bool, [b, h, ceil(s_q / 128), ceil(s_kv / 128)]: keep a 128 x 128 block.
    sink
        [h] or [1, h, 1, 1]: one more logit per row, which takes probability but has no value.
    dropout_mask, dropout_scale
        [b, h, s_q, s_kv], 1 to keep and 0 to drop, and a number: the normalised probabilities are multiplied by both.
    """

    scale: float | None
    left_bound: int | None
    right_bound: int | None
    alignment: Alignment
    seq_len_q: ArrayLike | None
    seq_len_kv: ArrayLike | None
    bias: ArrayLike | None
    alibi_slopes: ArrayLike | None
    score_modifier: ScoreModifier | None
    dropout_mask: ArrayLike | None
    dropout_scale: float
    sink: ArrayLike | None
    block_mask: ArrayLike | None


class ScoreTiles:
    """Checked arrays of attention in float64, with zeros in padding, and its scores by tiles of columns."""

    def __init__(
        self,
        q: ArrayLike,
        k: ArrayLike,
        v: ArrayLike,
        *,
        scale: float | None = None,
        left_bound: int | None = None,
        right_bound: int | None = None,
        alignment: Alignment = "top_left",
        seq_len_q: ArrayLike | None = None,
        seq_len_kv: ArrayLike | None = None,
        bias: ArrayLike | None = None,
        alibi_slopes: ArrayLike | None = None,
        score_modifier: ScoreModifier | None = None,
        dropout_mask: ArrayLike | None = None,
        dropout_scale: float = 1.0,
        sink: ArrayLike | None = None,
        block_mask: ArrayLike | None = None,
    ) -> None:
        self.q, self.k, self.v = read_floats("Q", q), read_floats("K", k), read_floats("V", v)
        check_qkv(self.q, self.k, self.v)
        batch, heads, seq_q, dim = self.q.shape
        seq_kv = self.k.shape[2]
        self.dims = (batch, heads, seq_q, seq_kv)
        self.scale = 1 / math.sqrt(dim) if scale is None else float(scale)
        self.score_modifier = score_modifier
        self.dropout_scale = float(dropout_scale)
        self.alibi_slopes = read_value_per_head("alibi_slopes", alibi_slopes, heads)
        self.sink = read_value_per_head("sink", sink, heads)
        self.bias = self._check_bias(bias)
        refuse_option_if(
            alignment not in ("top_left", "bottom_right"),
            f"alignment is {alignment!r}, neither 'top_left' nor 'bottom_right'",
            "name the corner the diagonal starts from",
        )
        lengths_q = read_lengths("seq_len_q", seq_len_q, batch, seq_q)
        lengths_kv = read_lengths("seq_len_kv", seq_len_kv, batch, seq_kv)
        self.mask = Mask(
            seq_q=seq_q,
            seq_kv=seq_kv,
            lengths_q=lengths_q,
            lengths_kv=lengths_kv,
            shift=lengths_kv - lengths_q if alignment == "bottom_right" else np.zeros_like(lengths_q),
            left_bound=left_bound,
            right_bound=right_bound,
            blocks=self._check_block_mask(block_mask),
        )
        self.q = np.where(self.mask.find_rows_within_q_lengths(), self.q, 0.0)
        self.k = np.where(self.mask.find_rows_within_kv_lengths(), self.k, 0.0)
        self.v = np.where(self.mask.find_rows_within_kv_lengths(), self.v, 0.0)
        self.dropout = self._compute_dropout_factors(dropout_mask)

    def _check_bias(self, bias: ArrayLike | None) -> Floats | None:
        if bias is None:
            return None
        array = read_floats("bias", bias)
        refuse_shape_if(
            any(dim not in (1, whole) for dim, whole in zip(array.shape, self.dims, strict=True)),
            f"bias dims {array.shape} do not broadcast to the scores' dims {self.dims}",
            "give each dim as 1 or as that of the scores",
        )
        return array

    def _check_block_mask(self, block_mask: ArrayLike | None) -> NDArray[np.bool_] | None:
        if block_mask is None:
            return None
        array = np.asarray(block_mask)
        refuse_type_if(
            array.dtype != np.bool_,
            f"block_mask has element type {array.dtype}, bool is needed",
            "unpack bits with unpack_block_mask",
        )
        batch, heads, seq_q, seq_kv = self.dims
        needed = (batch, heads, -(-seq_q // MASK_BLOCK_SIZE), -(-seq_kv // MASK_BLOCK_SIZE))
        refuse_shape_if(
            array.shape != needed,
            f"block_mask dims {array.shape} differ from {needed}, one entry per 128 x 128 block of {self.dims}",
            "give b, h, ceil(s_q / 128), ceil(s_kv / 128)",
        )
        return array

    def _compute_dropout_factors(self, dropout_mask: ArrayLike | None) -> Floats | None:
        """Return the dropout factors of the probabilities, with 0 in padding."""
        if dropout_mask is None:
            return None
        array = np.asarray(dropout_mask, np.float64)
        refuse_shape_if(
            array.shape != self.dims,
            f"dropout_mask dims {array.shape} differ from the scores' dims {self.dims}",
            "give b, h, s_q, s_kv",
        )
        real = self.mask.find_rows_within_q_lengths() & np.swapaxes(self.mask.find_rows_within_kv_lengths(), 2, 3)
        return np.where(real, array * self.dropout_scale, 0.0)

    def iterate_tiles(self, size: int) -> Iterator[tuple[slice, slice]]:
        """Yield rows and columns of the scores, ``size`` columns at a time, without fully masked parts."""
        refuse_option_if(size < 1, f"tile is {size}, 1 column or more is needed", "leave tile out for 128")
        for start in range(0, int(self.mask.lengths_kv.max()), size):
            cols = slice(start, min(start + size, self.dims[3]))
            rows = self.mask.find_unmasked_rows(cols)
            if rows.start < rows.stop:
                yield rows, cols

    def compute_scaled_scores(self, rows: slice, cols: slice) -> Floats:
        """Return scale * Q @ K^T, [b, h, rows, cols]."""
        keys = repeat_heads(self.k[:, :, cols], self.dims[1])
        return (self.scale * self.q[:, :, rows]) @ np.swapaxes(keys, 2, 3)

    def modify_scores(self, scaled: Floats, rows: slice, cols: slice) -> Floats:
        """Return the scores with modifier, bias and ALiBi but without masks, [b, h, rows, cols]."""
        score = scaled
        if self.score_modifier is not None:
            score = self._check_modifier_result("forward", self.score_modifier.forward(scaled), scaled)
        if self.bias is not None:
            score = score + np.broadcast_to(self.bias, self.dims)[:, :, rows, cols]
        if self.alibi_slopes is not None:
            i, j = np.arange(rows.start, rows.stop)[:, None], np.arange(cols.start, cols.stop)
            score = score + self.alibi_slopes * (j - i)
        return score

    def backpropagate_modified_scores(self, d_score: Floats, scaled: Floats) -> Floats:
        """Return the gradient of the scaled scores from the gradient of the modified ones."""
        if self.score_modifier is None:
            return d_score
        return self._check_modifier_result("backward", self.score_modifier.backward(d_score, scaled), scaled)

    @staticmethod
    def _check_modifier_result(name: str, result: Floats, scaled: Floats) -> Floats:
        refuse_shape_if(
            result.shape != scaled.shape,
            f"score_modifier.{name} returned dims {result.shape} for scores of dims {scaled.shape}",
            "change the scores element by element",
        )
        return result

    def apply_dropout(self, probability: Floats, rows: slice, cols: slice) -> Floats:
        """Return probabilities, or their gradient, times the dropout factors."""
        return probability if self.dropout is None else probability * self.dropout[:, :, rows, cols]


def repeat_heads(x: Floats, heads: int) -> Floats:
    """Repeat each head of K or V for the query heads that share it: query head n has head n // (h / h_k)."""
    return x if x.shape[1] == heads else np.repeat(x, heads // x.shape[1], axis=1)


def sum_over_grouped_heads(x: Floats, heads: int) -> Floats:
    """Sum over the query heads that share a head: the adjoint of :func:`repeat_heads`."""
    batch, all_heads, *rest = x.shape
    if all_heads == heads:
        return x
    total: Floats = x.reshape(batch, heads, all_heads // heads, *rest).sum(axis=2)
    return total
