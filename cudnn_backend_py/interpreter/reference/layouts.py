"""Conversion between dense b, h, s, d arrays and ragged or paged ones; ALiBi slopes; unpacking of block masks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .checks import Ints, read_ints, read_lengths, refuse_option_if, refuse_shape_if, refuse_type_if

__all__ = ["alibi_slopes", "gather_pages", "ragged_pack", "ragged_unpack", "unpack_block_mask"]


def ragged_pack(
    dense: NDArray[Any], lengths: ArrayLike, offsets: ArrayLike, strides: Sequence[int], size: int
) -> NDArray[Any]:
    """Pack the sequences of a dense tensor into one buffer, each at its ragged offset.

    Parameters
    ----------
    dense
        [b, h, s, d] of a floating-point type.
    lengths
        b integers: how many of the s rows of each batch entry are real.
    offsets
        b + 1 integers, in elements: where each batch entry starts; the last one is where they end and is not used.
    strides
        Over b, h, s, d, in elements; that over b is not used.
    size
        Elements of the buffer.

    Returns
    -------
    numpy.ndarray
        [size] of the same type: element h, i, d of batch entry n is at
        ``offsets[n] + h * strides[1] + i * strides[2] + d * strides[3]``; NaN where nothing is.
    """
    dense = np.asarray(dense)
    refuse_type_if(
        dense.dtype.kind != "f",
        f"dense has element type {dense.dtype}, a NumPy floating-point type is needed: there are NaN between sequences",
        "convert the dense tensor first and the buffer afterwards",
    )
    refuse_shape_if(dense.ndim != 4, f"dense must have 4 dims, got {dense.ndim}: {dense.shape}", "give b, h, s, d")
    buffer = np.full(size, np.nan, dense.dtype)
    for entry, length, index in _iterate_ragged_positions(dense.shape, lengths, offsets, strides, size):
        buffer[index] = dense[entry, :, :length]
    return buffer


def ragged_unpack(
    buffer: NDArray[Any], offsets: ArrayLike, lengths: ArrayLike, dims: Sequence[int], strides: Sequence[int]
) -> NDArray[Any]:
    """Return [b, h, s, d] from a ragged buffer: the inverse of :func:`ragged_pack`, with 0 beyond the lengths."""
    buffer = np.asarray(buffer)
    refuse_shape_if(buffer.ndim != 1, f"buffer must have 1 dim, got {buffer.ndim}: {buffer.shape}", "give it flat")
    refuse_shape_if(len(dims) != 4, f"dims {tuple(dims)} hold {len(dims)} numbers, 4 are needed", "give b, h, s, d")
    dense = np.zeros(tuple(dims), buffer.dtype)
    for entry, length, index in _iterate_ragged_positions(dense.shape, lengths, offsets, strides, buffer.size):
        dense[entry, :, :length] = buffer[index]
    return dense


def _iterate_ragged_positions(
    dims: Sequence[int], lengths: ArrayLike, offsets: ArrayLike, strides: Sequence[int], size: int
) -> Iterator[tuple[int, int, Ints]]:
    """Yield each batch entry, its length, and the positions of its elements [h, length, d] in the buffer."""
    batch, heads, seq, dim = dims
    refuse_shape_if(
        len(strides) != 4, f"strides {tuple(strides)} hold {len(strides)} numbers, 4 are needed", "give b, h, s, d"
    )
    all_lengths = read_lengths("lengths", lengths, batch, seq)
    starts = read_ints("offsets", offsets, batch + 1)
    _, over_h, over_s, over_d = strides
    for entry in range(batch):
        length = int(all_lengths[entry])
        h, s, d = np.ogrid[:heads, :length, :dim]
        index = starts[entry] + h * over_h + s * over_s + d * over_d
        low, high = (int(index.min()), int(index.max())) if index.size else (0, 0)
        refuse_shape_if(
            index.size > 0 and (low < 0 or high >= size),
            f"batch entry {entry} of offset {starts[entry]} and length {length} reaches elements {low} to {high}, "
            f"the buffer has {size}",
            f"compare offsets with strides {tuple(strides)}: both count elements",
        )
        yield entry, length, index


def gather_pages(container: NDArray[Any], table: NDArray[Any], seq_kv: int) -> NDArray[Any]:
    """Return dense K or V, gathered from the pages of its container.

    Parameters
    ----------
    container
        [pages, h, page_size, d].
    table
        [b, 1, n, 1] integers: page n of the sequence is page ``table[b, 0, n, 0]`` of the container.
    seq_kv
        Tokens wanted, at most n * page_size; pages beyond are not looked at.

    Returns
    -------
    numpy.ndarray
        [b, h, seq_kv, d].
    """
    container, table = np.asarray(container), np.asarray(table)
    refuse_shape_if(
        container.ndim != 4,
        f"container must have 4 dims, got {container.ndim}: {container.shape}",
        "give pages, h, page_size, d",
    )
    refuse_shape_if(
        table.ndim != 4 or table.shape[1] != 1 or table.shape[3] != 1,
        f"table dims {table.shape} differ from (b, 1, n, 1)",
        "give one page number per page_size tokens of a sequence",
    )
    refuse_type_if(
        table.dtype.kind not in "iu", f"table has element type {table.dtype}, integers are needed", "use int32"
    )
    pages, heads, page_size, dim = container.shape
    held = table.shape[2] * page_size
    refuse_shape_if(
        not 0 < seq_kv <= held,
        f"seq_kv is {seq_kv}, table dims {table.shape} and pages of {page_size} hold 1 to {held}",
        "give a table with ceil(seq_kv / page_size) entries per sequence",
    )
    wanted = table[:, 0, : -(-seq_kv // page_size), 0]
    wrong = wanted[(wanted < 0) | (wanted >= pages)]
    refuse_shape_if(
        wrong.size > 0,
        f"table names pages {wrong[:4].tolist()}, the container has 0 to {pages - 1}",
        "fill the table up to seq_kv",
    )
    whole = container[wanted].swapaxes(1, 2)  # b, h, n, page_size, d
    dense: NDArray[Any] = whole.reshape(len(wanted), heads, -1, dim)[:, :, :seq_kv]
    return dense


def alibi_slopes(heads: int) -> NDArray[np.float32]:
    """Return ALiBi's slopes for a number of heads, [1, heads, 1, 1].

    A power of two of heads has 2^(-8/n), 2^(-16/n), ... Any other number has those of the next lower power of two n,
    and then every other slope of 2n heads.

    Notes
    -----
    Press, Smith and Lewis, "Train Short, Test Long: Attention with Linear Biases Enables Input Length Extrapolation".
    """
    refuse_option_if(heads < 1, f"heads is {heads}, 1 or more is needed", "give the heads of Q")
    power = 1 << (heads.bit_length() - 1)
    whole = -8 * np.arange(1, power + 1) / power
    between = -8 * np.arange(1, 2 * (heads - power), 2) / (2 * power)
    slopes: NDArray[np.float32] = np.exp2(np.concatenate([whole, between])).astype(np.float32)
    return slopes.reshape(1, heads, 1, 1)


def unpack_block_mask(bits: NDArray[np.uint8], blocks: int) -> NDArray[np.bool_]:
    """Return a packed block mask with one bool per block.

    Parameters
    ----------
    bits
        [b, h, ceil(s_q / 128), ceil(blocks / 8)] uint8. Block n of a row is bit n % 8 of byte n // 8, the lowest bit
        first ("little" bit order).
    blocks
        ceil(s_kv / 128); bits beyond are not looked at.

    Returns
    -------
    numpy.ndarray
        [b, h, ceil(s_q / 128), blocks] bool.
    """
    bits = np.asarray(bits)
    refuse_type_if(
        bits.dtype != np.uint8, f"bits have element type {bits.dtype}, uint8 is needed", "pack 8 blocks a byte"
    )
    refuse_shape_if(
        bits.ndim != 4 or bits.shape[3] != -(-blocks // 8),
        f"bits dims {bits.shape} do not end in ceil(blocks / 8) = {-(-blocks // 8)} for {blocks} blocks",
        "give b, h, ceil(s_q / 128), ceil(ceil(s_kv / 128) / 8)",
    )
    return np.unpackbits(bits, axis=3, count=blocks, bitorder="little").astype(np.bool_)
