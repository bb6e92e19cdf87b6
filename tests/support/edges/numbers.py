"""Edge-case numbers of each data type, and inputs of reductions and images made from them."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np

from cudnn_backend_py import DataType
from cudnn_backend_py.graph.formats import decode, get_largest_finite, get_storage_type, is_integer, round_to_data_type
from tests.support.edges.case import IMAGE_SHAPE, ROW_LENGTH, SQUARE_SHAPE, Array

__all__ = [
    "list_edge_numbers",
    "list_numbers_of_all_bit_patterns",
    "make_image_with_many_ties",
    "make_matrix_with_one_number_per_column",
    "make_matrix_with_one_number_per_row",
    "make_tensor_with_edge_cases_to_reduce",
]

T = DataType

_FINITE_EDGE_NUMBERS = (
    *(0.0, 1.0, 2.0, 3.0, 4.0, 0.25, 0.1, 1e-3, 1e-4, 1e-7, 1e-20, 1e-38, 3e-39, 1e-45),
    *(0.5, 1.5, 2.5, 3.5, 0.49999997, 0.50000006, 1.4999999, 254.5, 255.5, 2047.5, 8388607.5, 8388608.5),
    *(5.9, 9.9, 10.4, 16.0, 17.3, 87.9, 88.4, 88.8, 89.5, 103.2, 104.1, 710.0),
    *(np.pi / 2, np.pi, 100.5, 1000.0, 32767.0, 65504.0, 65519.0, 65520.0, 105615.0, 1e6),
    *(2.0**24, 2.0**24 + 2, 2.0**31, 2.0**32, 2.0**63, 1e18, 1e19, 1.9e19, 1e30, 3.4028235e38),
    *(127.0, 128.0, 255.0, 256.0, 448.0, 464.0, 480.0, 57344.0, 61440.0),
)


@cache
def list_edge_numbers(kind: DataType) -> Array:
    """Return edge-case numbers of a type, each once and with both signs; for floats also NaN and infinities."""
    if is_integer(kind):
        bounds = np.iinfo(get_storage_type(kind))
        near = [0, 1, 2, 3, 5, 7, 10, 100, 127, 128, 255, 256, 2**15, 2**24, 2**24 + 1, 2**25 + 2, 2**31 - 1, 2**31]
        numbers = {sign * number for sign in (1, -1) for number in near} | {int(bounds.min), int(bounds.max)}
        return np.array(sorted(number for number in numbers if bounds.min <= number <= bounds.max))
    top = get_largest_finite(kind)
    signed = np.array([*_FINITE_EDGE_NUMBERS, top, top / 2, np.inf])
    tiny = _list_tiny_numbers(kind)
    rounded = round_to_data_type(np.concatenate([signed, -signed, tiny, -tiny, [np.nan]]), kind)
    _, first = np.unique(rounded.view(np.int64), return_index=True)
    return rounded[np.sort(first)]


def _list_tiny_numbers(kind: DataType) -> Array:
    exponent = {T.HALF: (-24, -14), T.BFLOAT16: (-133, -126), T.FLOAT: (-149, -126), T.DOUBLE: (-1074, -1022)}
    low, normal = exponent.get(kind, (-9, -6))
    return np.ldexp(1.0, np.array([low, low + 1, normal - 1, normal, normal + 1]))


@cache
def list_numbers_of_all_bit_patterns(kind: DataType) -> Array:
    """Return 65,536 numbers: all of a 16-bit type, or one for each upper half of a 32-bit type."""
    if kind in (T.HALF, T.BFLOAT16):
        codes = np.arange(1 << 16, dtype=np.uint16)
        numbers = decode(codes, kind) if kind is T.BFLOAT16 else codes.view(np.float16).astype(np.float64)
    elif kind is T.FLOAT:
        low = np.random.default_rng(1).integers(0, 1 << 16, 1 << 16)
        codes32 = (np.arange(1 << 16) << 16 | low).astype(np.uint32)
        with np.errstate(invalid="ignore"):
            numbers = codes32.view(np.float32).astype(np.float64)
        edges = list_edge_numbers(kind)
        numbers[: len(edges)] = edges
        dense = np.random.default_rng(2)
        numbers[1024:9216] = round_to_data_type(dense.uniform(-12, 12, 8192), kind)
        numbers[9216:13312] = round_to_data_type(dense.normal(size=4096), kind)
    else:
        numbers = _make_edge_and_random_numbers(kind, 1 << 16)
    return np.asarray(numbers).reshape(SQUARE_SHAPE)


def _make_edge_and_random_numbers(kind: DataType, count: int, seed: int = 3) -> Array:
    """Return `count` numbers: the edge cases, and random numbers of many magnitudes."""
    random, edges = np.random.default_rng(seed), list_edge_numbers(kind)
    rest = count - len(edges)
    if is_integer(kind):
        bounds = np.iinfo(get_storage_type(kind))
        if bounds.max - bounds.min < count:
            return np.resize(np.arange(bounds.min, bounds.max + 1), count)
        wide = random.integers(bounds.min, bounds.max, rest, endpoint=True)
        return np.concatenate([edges, np.where(np.arange(rest) % 2, wide, wide >> (bounds.bits - 10))])[:count]
    near = random.normal(size=rest) * np.array([1.0, 10.0])[np.arange(rest) % 2]
    top = np.log2(get_largest_finite(kind))
    far = np.exp2(random.uniform(-top, top, rest)) * random.choice([-1.0, 1.0], rest)
    return np.concatenate([edges, round_to_data_type(np.where(np.arange(rest) % 3, near, far), kind)])[:count]


def make_matrix_with_one_number_per_row(kind: DataType) -> Array:
    return np.repeat(_make_edge_and_random_numbers(kind, ROW_LENGTH, 4)[:, None], ROW_LENGTH, 1).reshape(SQUARE_SHAPE)


def make_matrix_with_one_number_per_column(kind: DataType) -> Array:
    return np.repeat(_make_edge_and_random_numbers(kind, ROW_LENGTH, 5)[None], ROW_LENGTH, 0).reshape(SQUARE_SHAPE)


# sets and images


def _make_rows_to_reduce(kind: DataType, count: int, length: int) -> Array:
    """Return sets to reduce, [count, length]; the first ones are edge cases."""
    random = np.random.default_rng([count, length])
    if is_integer(kind):
        sets = random.integers(-100, 100, (count, length))
        sets[0], sets[-1] = 0, -100
        return sets
    sets = random.normal(size=(count, length))
    sets *= np.exp2(np.arange(count) % 5 - 2)[:, None]
    middle, last = length // 2, length - 1
    top, tiny = get_largest_finite(kind), _list_tiny_numbers(kind)
    edges: list[Callable[[Array], None]] = [
        lambda x: _copy_row_with_changed_values(x, {middle: np.nan}),
        lambda x: _copy_row_with_changed_values(x, {0: np.inf}),
        lambda x: _copy_row_with_changed_values(x, {last: -np.inf}),
        lambda x: _copy_row_with_changed_values(x, {0: np.inf, last: -np.inf}),
        lambda x: x.fill(-np.inf),
        lambda x: x.fill(0.0),
        lambda x: x.fill(-0.0),
        lambda x: _copy_row_with_changed_values(np.copysign(0.0, x), {}, into=x),
        lambda x: x.fill(np.nan),
        lambda x: x.fill(tiny[0]),
        lambda x: x.fill(top),
        lambda x: _copy_row_with_changed_values(np.abs(x) * -1, {}, into=x),
        lambda x: _copy_row_with_changed_values(x, {0: np.nan, 1: np.inf}),
        lambda x: _copy_row_with_changed_values(x, {0: np.inf, last: np.nan}),
        lambda x: x.fill(1.0),
    ]
    for row, edge in zip(sets, edges, strict=False):
        edge(row)
    return round_to_data_type(sets, kind)


def _copy_row_with_changed_values(row: Array, places: dict[int, float], into: Array | None = None) -> None:
    target = row if into is None else into
    target[:] = row
    for place, value in places.items():
        target[place % len(target)] = value


def make_tensor_with_edge_cases_to_reduce(kind: DataType, dims: tuple[int, ...], reduced: tuple[int, ...]) -> Array:
    """Return a tensor of `dims` with edge-case sets along the reduced axes (1 in `reduced`)."""
    axes = [axis for axis, (few, size) in enumerate(zip(reduced, dims, strict=True)) if few != size]
    kept = [axis for axis in range(len(dims)) if axis not in axes]
    order = [*kept, *axes]
    count = int(np.prod([dims[axis] for axis in kept]))
    sets = _make_rows_to_reduce(kind, count, int(np.prod(dims)) // count).reshape([dims[axis] for axis in order])
    return sets.transpose(np.argsort(order))


def make_image_with_many_ties(kind: DataType, variant: str) -> Array:
    """Return an image of small integers with many ties; variants are negative or contain NaN or -inf."""
    random = np.random.default_rng(7)
    x = random.integers(-4, 5, IMAGE_SHAPE).astype(np.float64)
    if variant == "negative":
        x = -np.abs(x) - 1
    if variant == "hostile":
        x[random.random(IMAGE_SHAPE) < 0.1] = np.nan
        x[random.random(IMAGE_SHAPE) < 0.05] = np.inf
        x[:, :, :5, :5] = -np.inf
        x[:, 16:, 2, 2] = np.nan
    return round_to_data_type(x, kind)
