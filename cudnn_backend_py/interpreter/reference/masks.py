"""The masks of scores: padding, diagonal bounds and block mask."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .checks import MASK_BLOCK_SIZE, Ints

__all__ = ["Mask"]


@dataclass(frozen=True, kw_only=True)
class Mask:
    """The masks of a problem, evaluated for one tile of columns at a time.

    Parameters
    ----------
    seq_q, seq_kv
        Rows and columns of the scores.
    lengths_q, lengths_kv
        [b]: row i and column j take part where ``i < lengths_q`` and ``j < lengths_kv``.
    shift
        [b]: the diagonal bounds see row i as ``row = i + shift``.
    left_bound, right_bound
        Column j takes part where ``j + left_bound > row`` and ``j <= row + right_bound``.
    blocks
        [b, h, ceil(seq_q / 128), ceil(seq_kv / 128)] bool: whether a 128 x 128 block takes part.
    """

    seq_q: int
    seq_kv: int
    lengths_q: Ints
    lengths_kv: Ints
    shift: Ints
    left_bound: int | None = None
    right_bound: int | None = None
    blocks: NDArray[np.bool_] | None = None

    def find_unmasked_rows(self, cols: slice) -> slice:
        """Return the range of rows that have unmasked scores in these columns; it may be empty."""
        start, stop = 0, int(self.lengths_q.max())
        if self.right_bound is not None:  # the first column is the first one a row reaches
            start = max(start, cols.start - self.right_bound - int(self.shift.max()))
        if self.left_bound is not None:  # the last column is the last one a row forgets
            stop = min(stop, cols.stop - 1 + self.left_bound - int(self.shift.min()))
        return slice(start, max(start, stop))

    def make_keep_mask(self, rows: slice, cols: slice) -> NDArray[np.bool_] | None:
        """Return which scores in these rows and columns are unmasked, [b, 1 or h, rows, cols]; None if all are."""
        i = np.arange(rows.start, rows.stop)[:, None]
        j = np.arange(cols.start, cols.stop)

        def reshape_to_column(per_batch: Ints) -> Ints:
            return per_batch[:, None, None]

        kept = (i < reshape_to_column(self.lengths_q)) & (j < reshape_to_column(self.lengths_kv))
        row = i + reshape_to_column(self.shift)
        if self.right_bound is not None:
            kept &= j <= row + self.right_bound
        if self.left_bound is not None:
            kept &= j + self.left_bound > row
        kept = kept[:, None]
        if self.blocks is not None:
            kept = kept & self.blocks[:, :, i // MASK_BLOCK_SIZE, j // MASK_BLOCK_SIZE]
        return None if kept.all() else kept

    def find_rows_within_q_lengths(self) -> NDArray[np.bool_]:
        """Return which rows are not padding, [b, 1, seq_q, 1]."""
        return (np.arange(self.seq_q) < self.lengths_q[:, None])[:, None, :, None]

    def find_rows_within_kv_lengths(self) -> NDArray[np.bool_]:
        """Return which rows of K and V are not padding, [b, 1, seq_kv, 1]."""
        return (np.arange(self.seq_kv) < self.lengths_kv[:, None])[:, None, :, None]
