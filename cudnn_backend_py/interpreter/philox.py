"""The random mask of cuDNN's fused attention: Philox4x32 with seven rounds.

Established from masks dumped on an H100 (cuDNN 9.19 and 9.27), by black-box analysis. Philox is from Salmon, Moraes,
Dror and Shaw, "Parallel Random Numbers: As Easy as 1, 2, 3" (SC11).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["dropout_mask"]

Words = NDArray[np.uint64]

_PHILOX_ROUNDS = 7
_MULTIPLIERS = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
_KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
_LOW_MASK, _HALF_BITS = np.uint64(0xFFFFFFFF), np.uint64(32)
_MASK64 = (1 << 64) - 1


def _compute_philox(counter: tuple[Words, Words, Words, Words], key: int) -> tuple[Words, Words, Words, Words]:
    """Return the four 32-bit words that Philox gives for each counter; the arguments broadcast."""
    c0, c1, c2, c3 = counter
    keys = [key & 0xFFFFFFFF, key >> 32]
    for _ in range(_PHILOX_ROUNDS):
        p0, p1 = _MULTIPLIERS[0] * c0, _MULTIPLIERS[1] * c2
        k0, k1 = map(np.uint64, keys)
        c0, c1, c2, c3 = (p1 >> _HALF_BITS) ^ c1 ^ k0, p1 & _LOW_MASK, (p0 >> _HALF_BITS) ^ c3 ^ k1, p0 & _LOW_MASK
        keys = [(word + step) & 0xFFFFFFFF for word, step in zip(keys, _KEY_STEPS, strict=True)]
    return c0, c1, c2, c3


def _make_random_16_bit_numbers(seed: int, offset: int, dims: tuple[int, int, int, int]) -> NDArray[np.uint32]:
    """Return the 16-bit random number of every score.

    Rows and columns are cut into 16 x 16 tiles, numbered column by column: the tile is words 2 and 3 of the counter.
    Words 0 and 1 are offset, row in a group of 8 (halved), head and column in a group of 8. A block of four words
    serves the 2 x 2 groups of 8 of a tile, and each word two rows, low half first.
    """
    b, h, s_q, s_kv = dims
    rows, columns = -(-s_q // 16), -(-s_kv // 16)

    def make_broadcast_index(size: int, place: int) -> Words:
        shape = [1] * 5
        shape[place] = size
        return np.arange(size, dtype=np.uint64).reshape(shape)

    head, row_tile, row_pair, column_tile, column = (
        make_broadcast_index(size, place) for place, size in enumerate((b * h, rows, 4, columns, 8))
    )
    count = ((np.uint64(offset) + row_pair) >> np.uint64(2)) + np.uint64(8) * head + column
    tile = row_tile + np.uint64(rows) * column_tile
    words = _compute_philox((count & _LOW_MASK, count >> _HALF_BITS, tile & _LOW_MASK, tile >> _HALF_BITS), seed)
    stacked = np.stack(np.broadcast_arrays(*words), -1).astype(np.uint32)
    halves = np.stack([stacked & 0xFFFF, stacked >> 16], -1)
    # axes: head, row tile, row pair, column tile, column, row group, column group, row parity
    split = halves.reshape(b * h, rows, 4, columns, 8, 2, 2, 2).transpose(0, 1, 5, 2, 7, 3, 6, 4)
    return split.reshape(b, h, rows * 16, columns * 16)[:, :, :s_q, :s_kv]


def dropout_mask(seed: Any, offset: Any, dims: tuple[int, ...], probability: float) -> NDArray[np.float64]:
    """Return the dropout mask [b, h, s_q, s_kv] of cuDNN's attention kernels: 1 keeps, with `probability`.

    Parameters
    ----------
    seed, offset
        The numbers in ``dropout_seed`` and ``dropout_offset``; negative ones count modulo 2**64.
    dims
        b, h, s_q, s_kv. The mask of a shape does not depend on s_kv, apart from how far it goes.
    probability
        Of keeping. The resolution is 1 / 65536: an element is kept where its 16-bit number is at most
        65536 * probability.
    """
    b, h, s_q, s_kv = dims
    numbers = _make_random_16_bit_numbers(int(seed) & _MASK64, int(offset) & _MASK64, (b, h, s_q, s_kv))
    kept: NDArray[np.bool_] = numbers <= 65536.0 * float(np.float32(probability))
    return kept.astype(np.float64)
