"""Checks of the arrays given to the reference attention, before any arithmetic."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ...errors import GraphError

__all__ = [
    "MASK_BLOCK_SIZE",
    "Floats",
    "Ints",
    "check_outputs",
    "check_qkv",
    "read_floats",
    "read_ints",
    "read_lengths",
    "read_value_per_head",
    "refuse_option_if",
    "refuse_shape_if",
    "refuse_type_if",
]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

MASK_BLOCK_SIZE = 128  # rows and columns of one entry of a block mask
ERROR_LOCATION = "attention reference, checked before any arithmetic"


def refuse_shape_if(condition: bool, headline: str, fix: str) -> None:
    """Raise a GraphError with code ``reference-shape`` if the condition is true."""
    if condition:
        raise GraphError(headline, code="reference-shape", where=ERROR_LOCATION, fix=fix)


def refuse_type_if(condition: bool, headline: str, fix: str) -> None:
    """Raise a GraphError with code ``reference-type`` if the condition is true."""
    if condition:
        raise GraphError(headline, code="reference-type", where=ERROR_LOCATION, fix=fix)


def refuse_option_if(condition: bool, headline: str, fix: str) -> None:
    """Raise a GraphError with code ``reference-option`` if the condition is true."""
    if condition:
        raise GraphError(headline, code="reference-option", where=ERROR_LOCATION, fix=fix)


def read_floats(name: str, value: ArrayLike) -> Floats:
    """Return an array as float64, after checking that it is floating-point with dims b, h, s, d."""
    array = np.asarray(value)
    refuse_type_if(
        array.dtype.kind != "f",
        f"{name} has element type {array.dtype}, a NumPy floating-point type is needed",
        "convert bfloat16 and fp8 bits to float32 first",
    )
    refuse_shape_if(array.ndim != 4, f"{name} must have 4 dims, got {array.ndim}: {array.shape}", "give b, h, s, d")
    refuse_shape_if(
        0 in array.shape, f"{name} dims {array.shape} hold a 0, 1 or more is needed", "leave out the empty tensor"
    )
    return array.astype(np.float64)


def read_ints(name: str, value: ArrayLike, count: int) -> Ints:
    """Return an integer array as a vector, after checking that it has `count` elements along the first axis."""
    array = np.asarray(value)
    refuse_type_if(
        array.dtype.kind not in "iu", f"{name} has element type {array.dtype}, integers are needed", "use int32"
    )
    refuse_shape_if(
        array.size != count or array.shape[:1] != (count,),
        f"{name} dims {array.shape} do not hold {count} values",
        f"give dims ({count},) or ({count}, 1, 1, 1)",
    )
    return array.reshape(-1).astype(np.int64)


def read_lengths(name: str, value: ArrayLike | None, batch: int, full: int) -> Ints:
    """Return one sequence length per batch entry, from 0 to ``full``, the default."""
    if value is None:
        return np.full(batch, full, np.int64)
    lengths = read_ints(name, value, batch)
    wrong = lengths[(lengths < 0) | (lengths > full)]
    refuse_shape_if(
        wrong.size > 0, f"{name} holds {wrong[:4].tolist()}, 0 to {full} is needed", "count rows of the dim s"
    )
    return lengths


def read_value_per_head(name: str, value: ArrayLike | None, heads: int) -> Floats | None:
    """Return one real number per query head as [1, h, 1, 1]."""
    if value is None:
        return None
    array = np.asarray(value, np.float64)
    refuse_shape_if(
        array.shape not in ((heads,), (1, heads, 1, 1)),
        f"{name} dims {array.shape} differ from (1, {heads}, 1, 1)",
        f"give one number for each of the {heads} heads of Q",
    )
    return array.reshape(1, heads, 1, 1)


def check_qkv(q: NDArray[Any], k: NDArray[Any], v: NDArray[Any]) -> None:
    """Refuse Q, K and V with mismatched dims."""
    for name, other in (("K", k), ("V", v)):
        pair = f"dims {q.shape} of Q and {other.shape} of {name}"
        refuse_shape_if(
            q.shape[0] != other.shape[0],
            f"Q has batch {q.shape[0]}, {name} has batch {other.shape[0]}: {pair}",
            "give Q, K and V the same batch",
        )
        refuse_shape_if(
            q.shape[1] % other.shape[1] != 0,
            f"Q has {q.shape[1]} heads, no multiple of the {other.shape[1]} heads of {name}: {pair}",
            f"give {name} a number of heads that divides {q.shape[1]}",
        )
    refuse_shape_if(
        k.shape[2] != v.shape[2],
        f"K has sequence {k.shape[2]}, V has sequence {v.shape[2]}: dims {k.shape} of K and {v.shape} of V",
        "give K and V the same sequence",
    )
    refuse_shape_if(
        q.shape[3] != k.shape[3],
        f"Q has head dim {q.shape[3]}, K has head dim {k.shape[3]}: dims {q.shape} of Q and {k.shape} of K",
        "give Q and K the same head dim",
    )


def check_outputs(q: NDArray[Any], v: NDArray[Any], o: NDArray[Any], d_o: NDArray[Any], stats: NDArray[Any]) -> None:
    """Refuse O, dO and Stats with dims that do not match Q and V."""
    whole = (*q.shape[:3], v.shape[3])
    refuse_shape_if(
        o.shape != whole,
        f"O dims {o.shape} differ from {whole}, the b, h, s of Q dims {q.shape} and the d of V dims {v.shape}",
        "give the O of the forward pass of these Q, K and V",
    )
    refuse_shape_if(d_o.shape != o.shape, f"O dims {o.shape} differ from dO dims {d_o.shape}", "give dO the dims of O")
    rows = (*q.shape[:3], 1)
    refuse_shape_if(
        stats.shape != rows,
        f"Stats dims {stats.shape} differ from {rows}, one number per row of Q dims {q.shape}",
        "give the Stats of the forward pass, max + log(sum_exp)",
    )
