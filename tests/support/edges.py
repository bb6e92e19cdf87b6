"""Graphs of one operation and the numbers at its edges: what the interpreter says there is compared with cuDNN.

A case is a graph and what it reads. Pointwise operations of one operand get every code of a 16-bit type; those of two
get every pair of 256 numbers, infinities, NaN, zeros, denormals and the largest numbers among them; each row that a
reduction adds up is an edge of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cudnn_backend_py import DataType, DescriptorType, Graph, GraphBuilder, Parameters, PointwiseMode, attention
from cudnn_backend_py.generated.enums import (
    NanPropagation,
    NormMode,
    PaddingMode,
    ReduceTensorOp,
    ResampleMode,
    RngDistribution,
)
from cudnn_backend_py.graph import Operation, Tensor
from cudnn_backend_py.graph.formats import decode, is_integer, largest, round_to, storage_type
from cudnn_backend_py.graph.interpret.pointwise import BACKWARD, BINARY, BOUNDS, UNARY
from tests.support import built
from tests.support.built import bilinear_upsampling

__all__ = ["CASES", "Edge", "edge_numbers", "inputs_of"]

Array = NDArray[Any]
N, P, R, S, T = NormMode, PointwiseMode, ReduceTensorOp, ResampleMode, DataType

SIZE = 256
SQUARE = (1, SIZE, SIZE)
FLOATS = (T.HALF, T.BFLOAT16, T.FLOAT)
INTEGERS = (T.INT8, T.INT32)
OUT: dict[str, Any] = {"virtual": False}
LAST: dict[str, Any] = {"strides": "channels_last"}


@dataclass(frozen=True)
class Edge:
    """A graph, and by name of a tensor what it reads there; what is not named is random."""

    name: str
    make: Callable[[], Graph]
    given: Callable[[], dict[str, Array]]

    @property
    def family(self) -> str:
        """The first word of the name."""
        return self.name.split("/")[0]

    @property
    def approximate(self) -> float:
        """For a mode that cuDNN approximates, the bound that the interpreter states."""
        mode = self.name.split("/")[1].split()[0]
        return BOUNDS.get(PointwiseMode[mode], 0.0) if mode in PointwiseMode.__members__ else 0.0

    @property
    def inexact(self) -> float:
        """By how many units in the last place of float32 other pointwise modes may be off."""
        mode = self.name.split("/")[1].split()[0]
        return 1.0 if mode in _INEXACT else 0.0

    @property
    def share(self) -> float:
        """By how many units of float32 of its largest number an output of other operations may be off.

        Products of float32 are made of TF32, which keeps 11 bits, and the natural graphs round in between.
        """
        if self.family == "natural" or self.family == "rng":
            return 2.0**14
        if any(word in self.name for word in ("1e-05", "GEN_STATS", "MUL")):  # equal numbers, sums of 16 bits, products
            return 2.0**11
        if self.family in ("matmul", "convolution"):
            return 2.0**14 if "FP8" in self.name or self.name.endswith("FLOAT/FLOAT") or "/FLOAT" in self.name else 64.0
        return 64.0


_INEXACT = ("ADD_SQUARE", "ATAN2", "ERF", "POW", "RECIPROCAL", "RSQRT", "SQRT", "RELU_FWD", "RELU_BWD", "ADD", "MUL")
CASES: dict[str, Edge] = {}
REFUSED: dict[str, Edge] = {}


def _add(name: str, io: DataType, write: Callable[[GraphBuilder], object], **given: Callable[[], Array]) -> None:
    def make() -> Graph:
        g = GraphBuilder(name, io_type=io)
        write(g)
        return g.graph()

    assert name not in CASES, name
    CASES[name] = Edge(name, make, lambda: {key: value() for key, value in given.items()})


# numbers

_PLAIN = (
    *(0.0, 1.0, 2.0, 3.0, 4.0, 0.25, 0.1, 1e-3, 1e-4, 1e-7, 1e-20, 1e-38, 3e-39, 1e-45),
    *(0.5, 1.5, 2.5, 3.5, 0.49999997, 0.50000006, 1.4999999, 254.5, 255.5, 2047.5, 8388607.5, 8388608.5),
    *(5.9, 9.9, 10.4, 16.0, 17.3, 87.9, 88.4, 88.8, 89.5, 103.2, 104.1, 710.0),
    *(np.pi / 2, np.pi, 100.5, 1000.0, 32767.0, 65504.0, 65519.0, 65520.0, 105615.0, 1e6),
    *(2.0**24, 2.0**24 + 2, 2.0**31, 2.0**32, 2.0**63, 1e18, 1e19, 1.9e19, 1e30, 3.4028235e38),
    *(127.0, 128.0, 255.0, 256.0, 448.0, 464.0, 480.0, 57344.0, 61440.0),
)


@cache
def edge_numbers(kind: DataType) -> Array:
    """Return numbers of a type at its edges, each one once, signs included; NaN and infinities of floats."""
    if is_integer(kind):
        bounds = np.iinfo(storage_type(kind))
        near = [0, 1, 2, 3, 5, 7, 10, 100, 127, 128, 255, 256, 2**15, 2**24, 2**24 + 1, 2**25 + 2, 2**31 - 1, 2**31]
        numbers = {sign * number for sign in (1, -1) for number in near} | {int(bounds.min), int(bounds.max)}
        return np.array(sorted(number for number in numbers if bounds.min <= number <= bounds.max))
    top = largest(kind)
    signed = np.array([*_PLAIN, top, top / 2, np.inf])
    tiny = _tiny(kind)
    rounded = round_to(np.concatenate([signed, -signed, tiny, -tiny, [np.nan]]), kind)
    _, first = np.unique(rounded.view(np.int64), return_index=True)
    return rounded[np.sort(first)]


def _tiny(kind: DataType) -> Array:
    exponent = {T.HALF: (-24, -14), T.BFLOAT16: (-133, -126), T.FLOAT: (-149, -126), T.DOUBLE: (-1074, -1022)}
    low, normal = exponent.get(kind, (-9, -6))
    return np.ldexp(1.0, np.array([low, low + 1, normal - 1, normal, normal + 1]))


@cache
def _all_codes(kind: DataType) -> Array:
    """Return 65,536 numbers: all of a 16-bit type, and of a longer one its edges and one of each 16-bit prefix."""
    if kind in (T.HALF, T.BFLOAT16):
        codes = np.arange(1 << 16, dtype=np.uint16)
        numbers = decode(codes, kind) if kind is T.BFLOAT16 else codes.view(np.float16).astype(np.float64)
    elif kind is T.FLOAT:
        low = np.random.default_rng(1).integers(0, 1 << 16, 1 << 16)
        codes32 = (np.arange(1 << 16) << 16 | low).astype(np.uint32)
        with np.errstate(invalid="ignore"):
            numbers = codes32.view(np.float32).astype(np.float64)
        edges = edge_numbers(kind)
        numbers[: len(edges)] = edges
        dense = np.random.default_rng(2)
        numbers[1024:9216] = round_to(dense.uniform(-12, 12, 8192), kind)
        numbers[9216:13312] = round_to(dense.normal(size=4096), kind)
    else:
        numbers = _many(kind, 1 << 16)
    return np.asarray(numbers).reshape(SQUARE)


def _many(kind: DataType, count: int, seed: int = 3) -> Array:
    """Return edges, and random numbers of many sizes up to `count`."""
    random, edges = np.random.default_rng(seed), edge_numbers(kind)
    rest = count - len(edges)
    if is_integer(kind):
        bounds = np.iinfo(storage_type(kind))
        if bounds.max - bounds.min < count:
            return np.resize(np.arange(bounds.min, bounds.max + 1), count)
        wide = random.integers(bounds.min, bounds.max, rest, endpoint=True)
        return np.concatenate([edges, np.where(np.arange(rest) % 2, wide, wide >> (bounds.bits - 10))])[:count]
    near = random.normal(size=rest) * np.array([1.0, 10.0])[np.arange(rest) % 2]
    top = np.log2(largest(kind))
    far = np.exp2(random.uniform(-top, top, rest)) * random.choice([-1.0, 1.0], rest)
    return np.concatenate([edges, round_to(np.where(np.arange(rest) % 3, near, far), kind)])[:count]


def _rows(kind: DataType) -> Array:
    return np.repeat(_many(kind, SIZE, 4)[:, None], SIZE, 1).reshape(SQUARE)


def _columns(kind: DataType) -> Array:
    return np.repeat(_many(kind, SIZE, 5)[None], SIZE, 0).reshape(SQUARE)


# pointwise


def _unary(mode: PointwiseMode, kind: DataType, title: str = "", **parameters: float) -> None:
    def write(g: GraphBuilder) -> None:
        g.pointwise(mode, g.tensor("x", SQUARE), parameters=parameters, compute_type=T.FLOAT, data_type=kind, **OUT)

    _add(f"pointwise/{mode.name}{title}/{kind.name}", kind, write, x=partial(_all_codes, kind))


def _pairs(mode: PointwiseMode, kind: DataType, title: str = "", **parameters: float) -> None:
    second = "dy" if mode.name.endswith("_BWD") else "b"

    def write(g: GraphBuilder) -> None:
        ports = {second: g.tensor(second, SQUARE)}
        options = {"compute_type": T.FLOAT, "data_type": kind, "parameters": parameters, **OUT}
        g.pointwise(mode, g.tensor("x", SQUARE), **ports, **options)

    given = {"x": partial(_columns, kind), second: partial(_rows, kind)}
    _add(f"pointwise/{mode.name}{title}/{kind.name}", kind, write, **given)


def _cast(source: DataType, kind: DataType) -> None:
    def write(g: GraphBuilder) -> None:
        g.pointwise(P.IDENTITY, g.tensor("x", SQUARE), compute_type=T.FLOAT, data_type=kind, **OUT)

    _add(f"convert/{source.name}/{kind.name}", source, write, x=partial(_all_codes, source))


def _index(axis: int, kind: DataType, compute: DataType) -> None:
    def write(g: GraphBuilder) -> None:
        g.pointwise(P.GEN_INDEX, g.tensor("x", (1, 16, 4096)), axis=axis, compute_type=compute, data_type=kind, **OUT)

    _add(f"pointwise/GEN_INDEX {axis} {compute.name}/{kind.name}", T.HALF, write)


def _select(kind: DataType) -> None:
    def write(g: GraphBuilder) -> None:
        x, b, c = (g.tensor(name, SQUARE) for name in "xbc")
        t = g.pointwise(P.CMP_GT, c, g.tensor("zero", (1, 1, 1)), compute_type=T.FLOAT)
        g.pointwise(P.BINARY_SELECT, x, b, t, data_type=kind, **OUT)

    given = {"x": partial(_columns, kind), "b": partial(_rows, kind), "c": lambda: _all_codes(kind)[:, ::-1].copy()}
    _add(f"pointwise/BINARY_SELECT/{kind.name}", kind, write, **given, zero=lambda: np.zeros((1, 1, 1)))


def _logic(mode: PointwiseMode, kind: DataType) -> None:
    """Logic on booleans that comparisons made, and that choose between numbers."""

    def write(g: GraphBuilder) -> None:
        x, b, one, zero = (g.tensor(name, SQUARE if name in "xb" else (1, 1, 1)) for name in ("x", "b", "one", "zero"))
        left = g.pointwise(P.CMP_GT, x, zero, compute_type=T.FLOAT)
        right = None if mode is P.LOGICAL_NOT else g.pointwise(P.CMP_LT, b, zero, compute_type=T.FLOAT)
        g.pointwise(P.BINARY_SELECT, one, zero, g.pointwise(mode, left, right), data_type=kind, **OUT)

    given = {"x": partial(_columns, kind), "b": partial(_rows, kind)}
    if mode is P.LOGICAL_NOT:
        given.pop("b")
    ends: dict[str, Callable[[], Array]] = {
        "one": lambda: np.ones((1, 1, 1)),
        "zero": lambda: np.zeros((1, 1, 1)),
    }

    def make_with() -> None:
        _add(f"pointwise/{mode.name} of comparisons/{kind.name}", kind, write, **given, **ends)

    make_with()


def _booleans(mode: PointwiseMode) -> None:
    dims = (1, 16, 64)

    def write(g: GraphBuilder) -> None:
        x, b = g.tensor("x", dims), None if mode in UNARY else g.tensor("b", dims)
        g.pointwise(mode, x, b, compute_type=T.BOOLEAN, data_type=T.BOOLEAN, **OUT)

    random = np.random.default_rng(6).integers(0, 2, (2, *dims))
    _add(f"pointwise/{mode.name}/BOOLEAN", T.BOOLEAN, write, x=lambda: random[0], b=lambda: random[1])


def _compare_to_memory() -> None:
    dims = (1, 16, 64)

    def write(g: GraphBuilder) -> None:
        g.pointwise(P.CMP_GT, g.tensor("x", dims), g.tensor("b", dims), **OUT)

    _add("pointwise/CMP_GT into BOOLEAN/FLOAT", T.FLOAT, write)


for _kind in (*FLOATS, *INTEGERS):
    for _mode in UNARY:
        if _mode is not P.LOGICAL_NOT:
            _unary(_mode, _kind)
    for _mode in (*BINARY, *BACKWARD, P.RELU_BWD):
        if _mode not in (P.LOGICAL_AND, P.LOGICAL_OR):
            _pairs(_mode, _kind)
    _select(_kind)
for _mode in (P.ADD, P.MUL, P.MAX, P.ABS, P.NEG):
    for _kind in (T.INT64, T.UINT8, T.DOUBLE, T.FP8_E4M3, T.FP8_E5M2):
        (_unary if _mode in UNARY else _pairs)(_mode, _kind)
_CLIPS = {"relu_lower_clip": -0.5, "relu_upper_clip": 6.0, "relu_lower_clip_slope": 0.1}
for _kind in (T.HALF, T.FLOAT):
    _unary(P.RELU_FWD, _kind, " clipped", **_CLIPS)
    _unary(P.RELU_FWD, _kind, " leaky", relu_lower_clip_slope=0.1)
    _unary(P.RELU_FWD, _kind, " up to 6", relu_upper_clip=6.0)
    _pairs(P.RELU_BWD, _kind, " clipped", **_CLIPS)
    _pairs(P.RELU_BWD, _kind, " leaky", relu_lower_clip_slope=0.1)
    _pairs(P.RELU_BWD, _kind, " up to 6", relu_upper_clip=6.0)
    _unary(P.ELU_FWD, _kind, " 0.3", elu_alpha=0.3)
    _pairs(P.ELU_BWD, _kind, " 0.3", elu_alpha=0.3)
    _unary(P.SOFTPLUS_FWD, _kind, " 0.7", softplus_beta=0.7)
    _unary(P.SOFTPLUS_FWD, _kind, " 10", softplus_beta=10.0)
    _pairs(P.SOFTPLUS_BWD, _kind, " 0.7", softplus_beta=0.7)
    _unary(P.SWISH_FWD, _kind, " 0.9", swish_beta=0.9)
    _pairs(P.SWISH_BWD, _kind, " 0.9", swish_beta=0.9)
    _pairs(P.ADD, _kind, " weighted", alpha1=2.0, alpha2=0.5)
    _pairs(P.MUL, _kind, " weighted", alpha1=2.0, alpha2=0.5)
    _unary(P.EXP, _kind, " weighted", alpha1=2.0)
    for _mode in (P.LOGICAL_AND, P.LOGICAL_OR, P.LOGICAL_NOT):
        _logic(_mode, _kind)
for _mode in (P.LOGICAL_AND, P.LOGICAL_OR, P.LOGICAL_NOT, P.IDENTITY):
    _booleans(_mode)
_compare_to_memory()
for _axis in (1, 2):
    _index(_axis, T.INT32, T.INT32)
    for _kind in (T.INT32, T.FLOAT, T.HALF, T.INT8):
        _index(_axis, _kind, T.FLOAT)
_SOURCES = (*FLOATS, T.DOUBLE, T.INT8, T.UINT8, T.INT32, T.INT64, T.FP8_E4M3, T.FP8_E5M2)
for _source in _SOURCES:
    for _kind in (*_SOURCES, T.FP8_E8M0, T.UINT32, T.BOOLEAN):
        if _kind is not _source:
            _cast(_source, _kind)


# reductions


def _sets(kind: DataType, count: int, length: int) -> Array:
    """Return sets to reduce, [count, length], the first ones at the edges."""
    random = np.random.default_rng([count, length])
    if is_integer(kind):
        sets = random.integers(-100, 100, (count, length))
        sets[0], sets[-1] = 0, -100
        return sets
    sets = random.normal(size=(count, length))
    sets *= np.exp2(np.arange(count) % 5 - 2)[:, None]
    middle, last = length // 2, length - 1
    top, tiny = largest(kind), _tiny(kind)
    edges: list[Callable[[Array], None]] = [
        lambda x: _put(x, {middle: np.nan}),
        lambda x: _put(x, {0: np.inf}),
        lambda x: _put(x, {last: -np.inf}),
        lambda x: _put(x, {0: np.inf, last: -np.inf}),
        lambda x: x.fill(-np.inf),
        lambda x: x.fill(0.0),
        lambda x: x.fill(-0.0),
        lambda x: _put(np.copysign(0.0, x), {}, into=x),
        lambda x: x.fill(np.nan),
        lambda x: x.fill(tiny[0]),
        lambda x: x.fill(top),
        lambda x: _put(np.abs(x) * -1, {}, into=x),
        lambda x: _put(x, {0: np.nan, 1: np.inf}),
        lambda x: _put(x, {0: np.inf, last: np.nan}),
        lambda x: x.fill(1.0),
    ]
    for row, edge in zip(sets, edges, strict=False):
        edge(row)
    return round_to(sets, kind)


def _put(row: Array, places: dict[int, float], into: Array | None = None) -> None:
    target = row if into is None else into
    target[:] = row
    for place, value in places.items():
        target[place % len(target)] = value


def _as_sets(kind: DataType, dims: tuple[int, ...], reduced: tuple[int, ...]) -> Array:
    """Return a tensor of `dims` whose sets along the axes that are 1 in `reduced` are at the edges."""
    axes = [axis for axis, (few, size) in enumerate(zip(reduced, dims, strict=True)) if few != size]
    kept = [axis for axis in range(len(dims)) if axis not in axes]
    order = [*kept, *axes]
    count = int(np.prod([dims[axis] for axis in kept]))
    sets = _sets(kind, count, int(np.prod(dims)) // count).reshape([dims[axis] for axis in order])
    return sets.transpose(np.argsort(order))


def _reduction(
    mode: ReduceTensorOp, kind: DataType, to: DataType, dims: tuple[int, ...], result: tuple[int, ...], layout: str
) -> None:
    options: Any = {"strides": layout}

    def write(g: GraphBuilder) -> None:
        g.reduction(mode, g.tensor("x", dims, **options), result, data_type=to, **options, **OUT)

    shape = "x".join(map(str, dims)) + " to " + "x".join(map(str, result)) + (" last" if layout != "packed" else "")
    _add(f"reduction/{mode.name} {shape}/{kind.name} {to.name}", kind, write, x=lambda: _as_sets(kind, dims, result))


_SHAPES = (
    ((64, 128), (64, 1), "packed"),
    ((64, 1000), (64, 1), "packed"),
    ((4096, 33), (4096, 1), "packed"),
    ((64, 128), (1, 1), "packed"),
    ((64, 128), (1, 128), "packed"),
    ((4, 32, 8, 8), (1, 32, 1, 1), "channels_last"),
    ((4, 32, 8, 8), (4, 1, 8, 8), "channels_last"),
    ((4, 32, 8, 8), (4, 1, 1, 1), "channels_last"),
    ((64, 1), (64, 1), "packed"),
)
for _operator in R:
    for _source, _kind in (
        (T.HALF, T.FLOAT),
        (T.HALF, T.HALF),
        (T.BFLOAT16, T.FLOAT),
        (T.BFLOAT16, T.BFLOAT16),
        (T.FLOAT, T.FLOAT),
        (T.INT8, T.FLOAT),
        (T.INT32, T.FLOAT),
    ):
        for _dims, _result, _layout in _SHAPES:
            _reduction(_operator, _source, _kind, _dims, _result, _layout)


def _after_product(mode: ReduceTensorOp, dims: tuple[int, ...]) -> None:
    def write(g: GraphBuilder) -> None:
        c = g.matmul(g.tensor("a", (2, 64, 32)), g.tensor("b", (2, 32, 128)))
        g.reduction(mode, c, dims, data_type=T.FLOAT, **OUT)

    _add(f"reduction/{mode.name} of a matmul to {'x'.join(map(str, dims))}/HALF FLOAT", T.HALF, write)


for _operator in R:
    for _dims in ((2, 64, 1), (2, 1, 128), (1, 1, 1)):
        _after_product(_operator, _dims)


# pools

IMAGE = (2, 32, 12, 12)


def _image(kind: DataType, variant: str) -> Array:
    """Return an image of small integers, many of them equal; with NaN, with regions of -inf, or negative."""
    random = np.random.default_rng(7)
    x = random.integers(-4, 5, IMAGE).astype(np.float64)
    if variant == "negative":
        x = -np.abs(x) - 1
    if variant == "hostile":
        x[random.random(IMAGE) < 0.1] = np.nan
        x[random.random(IMAGE) < 0.05] = np.inf
        x[:, :, :5, :5] = -np.inf
        x[:, 16:, 2, 2] = np.nan
    return round_to(x, kind)


def _pool(
    mode: ResampleMode,
    kind: DataType,
    variant: str,
    *,
    idx: bool = False,
    padding: PaddingMode | None = None,
    nan: NanPropagation = NanPropagation.PROPAGATE_NAN,
    sides: tuple[Any, Any, Any, Any] = (3, 2, 1, 1),
    layout: str = "channels_last",
) -> None:
    window, stride, before, after = sides
    strides: Any = layout

    def write(g: GraphBuilder) -> None:
        g.resample(
            mode,
            g.tensor("x", IMAGE, strides=strides),
            window,
            stride=stride,
            padding=before,
            post_padding=after,
            padding_mode=padding,
            nan_propagation=nan,
            idx=idx,
            data_type=kind,
            **OUT,
        )

    words = [mode.name, variant, "idx" if idx else "", "" if padding is None else padding.name, nan.name, layout]
    shown = " ".join([*(word for word in words if word), "window", *map(str, sides)]).replace("/", ":")
    _add(f"pool/{shown}/{kind.name}", kind, write, x=lambda: _image(kind, variant))


_UNEVEN = ((2, 3), (2, 2), (0, 1), (1, 2))
for _kind in (T.HALF, T.FLOAT):
    for _nan in NanPropagation:
        for _variant in ("equal", "hostile"):
            for _with in (True, False):
                _pool(S.MAXPOOL, _kind, _variant, idx=_with, nan=_nan)
    for _padding in (PaddingMode.NEG_INF_PAD, PaddingMode.ZERO_PAD, PaddingMode.EDGE_VAL_PAD):
        _pool(S.MAXPOOL, _kind, "negative", idx=True, padding=_padding)
        _pool(S.MAXPOOL, _kind, "negative", idx=False, padding=_padding, sides=_UNEVEN)
    _pool(S.MAXPOOL, _kind, "equal", idx=True, sides=_UNEVEN)
    _pool(S.MAXPOOL, _kind, "hostile", layout="packed")
    for _mode2 in (S.AVGPOOL_INCLUDE_PADDING, S.AVGPOOL_EXCLUDE_PADDING):
        for _sides in ((3, 2, 1, 1), _UNEVEN, (2, 2, 0, 0)):
            _pool(_mode2, _kind, "equal", sides=_sides)
        _pool(_mode2, _kind, "hostile")
        _pool(_mode2, _kind, "hostile", nan=NanPropagation.NOT_PROPAGATE_NAN)
        _pool(_mode2, _kind, "equal", layout="packed")
_pool(S.MAXPOOL, T.INT8, "equal")
_add("pool/BILINEAR up/FLOAT", T.FLOAT, bilinear_upsampling)


def _ramp() -> Array:
    return np.broadcast_to(np.arange(28.0)[:, None] + 32 * np.arange(28.0), (4, 32, 28, 28))


_add("pool/BILINEAR ramp/FLOAT", T.FLOAT, bilinear_upsampling, x=_ramp)


def _pool_backward(mode: ResampleMode, kind: DataType, sides: tuple[Any, Any, Any, Any], layout: str) -> None:
    window, stride, before, after = sides
    strides: Any = layout

    def write(g: GraphBuilder) -> None:
        f = GraphBuilder("forward", io_type=kind)
        dims = f.resample(mode, f.tensor("x", IMAGE), window, stride=stride, padding=before, post_padding=after).y.dims
        more: dict[str, Any] = {}
        if mode is S.MAXPOOL and layout != "packed":
            more["idx"] = g.tensor("idx", dims, T.INT8, strides=strides)
        elif mode is S.MAXPOOL:
            more |= {"x": g.tensor("x", IMAGE), "y": g.tensor("y", dims)}
        dy = g.tensor("dy", dims, strides=strides)
        more |= {"stride": stride, "padding": before, "post_padding": after, "data_type": kind}
        more |= {} if "x" in more else {"dims": IMAGE}
        g.resample_backward(mode, dy, window, **more, **OUT)

    def idx() -> Array:
        from cudnn_backend_py.graph.interpret import interpret

        g = GraphBuilder("forward", io_type=T.FLOAT)
        x = g.tensor("x", IMAGE)
        made = g.resample(mode, x, window, stride=stride, padding=before, post_padding=after, idx=True, **OUT).idx
        assert made is not None
        return interpret(g.graph(), {"x": _image(T.FLOAT, "equal")})[made.name]

    given: dict[str, Callable[[], Array]] = {}
    if mode is S.MAXPOOL and layout != "packed":
        given["idx"] = idx
    words = " ".join(["backward", mode.name, layout, "window", *map(str, sides)])
    _add(f"pool/{words}/{kind.name}", kind, write, **given)


for _kind in (T.HALF, T.FLOAT):
    for _sides in ((3, 2, 1, 1), _UNEVEN, (2, 2, 0, 0)):
        for _mode2 in (S.MAXPOOL, S.AVGPOOL_INCLUDE_PADDING, S.AVGPOOL_EXCLUDE_PADDING):
            for _layout in ("channels_last", "packed"):
                _pool_backward(_mode2, _kind, _sides, _layout)


# norms


def _norm_sets(kind: DataType, dims: tuple[int, ...], reduced: tuple[int, ...], hostile: bool) -> Array:
    """Return x whose sets are random, constant, zero, tiny or huge; hostile ones hold NaN and infinities."""
    if hostile:
        made = _as_sets(kind, dims, reduced)
        return np.where(np.isfinite(made) & (np.abs(made) > 1e4), 3.0, made)
    axes = [axis for axis, (few, size) in enumerate(zip(reduced, dims, strict=True)) if few != size]
    kept = [axis for axis in range(len(dims)) if axis not in axes]
    order = [*kept, *axes]
    count = int(np.prod([dims[axis] for axis in kept]))
    sets = np.random.default_rng(8).normal(size=(count, int(np.prod(dims)) // count)) * 0.5 + 0.25
    sets[0], sets[1] = 0.0, 3.0
    sets[2] *= 1e-3
    sets[3] = sets[3] * 100 + 1000
    return round_to(sets.reshape([dims[axis] for axis in order]).transpose(np.argsort(order)), kind)


def _norm(mode: NormMode, kind: DataType, *, training: bool, hostile: bool, epsilon: float = 0.1) -> None:
    by_channel = mode in (N.BATCH_NORM, N.INSTANCE_NORM)
    layout: Any = "channels_last" if by_channel else "packed"
    dims = {N.ADA_LAYER_NORM: (4, 64, 256)}.get(mode, (8, 32, 16, 16) if by_channel else (64, 256, 1, 1))
    scale = {N.ADA_LAYER_NORM: (4, 1, 256)}.get(mode, (1, 32, 1, 1) if by_channel else (1, 256, 1, 1))
    sets = {N.ADA_LAYER_NORM: (4, 64, 1), N.BATCH_NORM: (1, 32, 1, 1), N.INSTANCE_NORM: (8, 32, 1, 1)}
    reduced = sets.get(mode, (64, 1, 1, 1))
    weights = kind if mode is N.ADA_LAYER_NORM else T.FLOAT

    def write(g: GraphBuilder) -> None:
        x = g.tensor("x", dims, strides=layout)
        a, b = (g.tensor(name, scale, weights, strides=layout) for name in ("scale", "bias"))
        more: dict[str, Any] = {}
        if mode is N.BATCH_NORM:
            for name in ("running_mean", "running_var"):
                more[name] = g.tensor(name, scale, T.FLOAT, strides=layout)
            more["momentum"] = 0.25
        g.norm_forward(
            mode,
            x,
            a,
            None if mode is N.RMS_NORM else b,
            training=training,
            epsilon=epsilon,
            data_type=kind,
            **more,
            **OUT,
        )

    words = f"{mode.name} {'training' if training else 'inference'}{' hostile' if hostile else ''} {epsilon:g}"
    _add(f"norm/{words}/{kind.name}", kind, write, x=lambda: _norm_sets(kind, dims, reduced, hostile))


for _norm_mode in (N.LAYER_NORM, N.RMS_NORM, N.ADA_LAYER_NORM, N.INSTANCE_NORM, N.BATCH_NORM):
    for _kind in FLOATS:
        for _training in (True, False):
            if _norm_mode is N.BATCH_NORM and not _training:
                continue
            _norm(_norm_mode, _kind, training=_training, hostile=False)
            if _training:
                _norm(_norm_mode, _kind, training=True, hostile=True)
                _norm(_norm_mode, _kind, training=True, hostile=False, epsilon=1e-5)


def _norm_backward(mode: NormMode, kind: DataType) -> None:
    by_channel = mode in (N.BATCH_NORM, N.INSTANCE_NORM)
    layout: Any = "channels_last" if by_channel else "packed"
    dims = (8, 32, 16, 16) if by_channel else (64, 256, 1, 1)
    scale = (1, 32, 1, 1) if by_channel else (1, 256, 1, 1)
    sets = {N.BATCH_NORM: (1, 32, 1, 1), N.INSTANCE_NORM: (8, 32, 1, 1)}.get(mode, (64, 1, 1, 1))

    def write(g: GraphBuilder) -> None:
        x, dy = (g.tensor(name, dims, strides=layout) for name in ("x", "dy"))
        names = ("inv_variance",) if mode is N.RMS_NORM else ("mean", "inv_variance")
        saved = {name: g.tensor(name, sets, T.FLOAT, strides=layout) for name in names}
        weights = g.tensor("scale", scale, T.FLOAT, strides=layout)
        g.norm_backward(mode, dy, x, weights, **saved, data_type=kind, **OUT)

    inverse = partial(np.full, sets, 2.0)
    hostile = partial(_norm_sets, kind, dims, sets, True)
    _add(f"norm/{mode.name} backward hostile/{kind.name}", kind, write, x=hostile, inv_variance=inverse)
    _add(f"norm/{mode.name} backward hostile gradient/{kind.name}", kind, write, dy=hostile, inv_variance=inverse)


for _norm_mode in (N.LAYER_NORM, N.RMS_NORM, N.INSTANCE_NORM, N.BATCH_NORM):
    for _kind in (T.HALF, T.FLOAT):
        _norm_backward(_norm_mode, _kind)


def _finalize(g: GraphBuilder) -> None:
    names = ("sum", "sqsum", "scale", "bias", "running_mean", "running_var")
    total, squares, scale, bias, mean, var = (g.tensor(name, (1, 32, 1, 1), T.FLOAT, **LAST) for name in names)
    g.batch_norm_finalize(
        total, squares, scale, bias, accum_count=16, epsilon=0.1, momentum=0.25, running_mean=mean, running_var=var
    )


def _sqsum() -> Array:
    return np.random.default_rng(9).uniform(100, 200, (1, 32, 1, 1))


_add("norm/BN_FINALIZE/FLOAT", T.FLOAT, _finalize, sqsum=_sqsum)


def _gen_stats(g: GraphBuilder) -> None:
    x, w = g.tensor("x", IMAGE, **LAST), g.tensor("w", (64, 32, 1, 1), **LAST)
    g.gen_stats(g.convolution(x, w, **OUT))


_add("norm/GEN_STATS/HALF", T.HALF, _gen_stats)


# convolutions at their edges


def _convolution(kind: DataType, turned: bool, hostile: bool) -> None:
    from cudnn_backend_py.generated.enums import ConvolutionMode as C

    def write(g: GraphBuilder) -> None:
        to = kind
        x, w = g.tensor("x", IMAGE, **LAST), g.tensor("w", (64, 32, 3, 3), **LAST)
        mode = C.CONVOLUTION if turned else C.CROSS_CORRELATION
        g.convolution(x, w, padding=(1, 0), post_padding=(1, 2), mode=mode, data_type=to, **OUT)

    def weights() -> Array:
        w = np.random.default_rng(10).integers(-2, 3, (64, 32, 3, 3)).astype(np.float64)
        if hostile:
            w[0, 0, 0, 0], w[1, 3, 2, 2], w[2, 1, 1, 1] = np.inf, np.nan, -np.inf
        return round_to(w, kind)

    words = f"{'turned' if turned else 'straight'}{' hostile' if hostile else ''}"
    image = partial(_image, kind, "equal")
    _add(f"convolution/{words}/{kind.name}", kind, write, x=image, w=weights)


for _kind in FLOATS:
    for _turned in (False, True):
        _convolution(_kind, _turned, False)
    _convolution(_kind, False, True)


def _integer_convolution(g: GraphBuilder) -> None:
    x, w = g.tensor("x", (2, 32, 12, 12), **LAST), g.tensor("w", (64, 32, 3, 3), **LAST)
    g.convolution(x, w, padding=1, compute_type=T.INT32, data_type=T.INT32, **OUT)


_add("convolution/integers/INT8", T.INT8, _integer_convolution)


# products


def _product(kind: DataType, to: DataType, compute: DataType, hostile: bool) -> None:
    dims = (2, 64, 64)

    def write(g: GraphBuilder) -> None:
        a, b = g.tensor("a", dims), g.tensor("b", dims, strides=(64 * 64, 1, 64))
        c = g.matmul(a, b, compute_type=compute, data_type=compute)
        g.pointwise(P.IDENTITY, c, data_type=to, **OUT)

    def numbers(seed: int) -> Array:
        random = np.random.default_rng([13, seed])
        if is_integer(kind):
            return random.integers(-128, 128, dims)
        values = random.normal(size=dims)
        if hostile:
            edges, places = edge_numbers(kind), random.permutation(64)[:8]
            for place in places:
                values[0, place, random.integers(64)] = edges[random.integers(len(edges))]
            values[1] = random.permutation(np.resize(edges[np.isfinite(edges)], 64 * 64)).reshape(64, 64)
            values[1, :32] = np.where(np.abs(values[1, :32]) < 1e-3, values[1, :32], 0.0)
        return round_to(values, kind)

    words = f"matmul/{'hostile ' if hostile else ''}{kind.name} to {to.name}/{compute.name}"
    _add(words, kind, write, a=partial(numbers, 0), b=partial(numbers, 1))


for _hostile in (False, True):
    for _kind, _to in ((T.HALF, T.HALF), (T.HALF, T.FLOAT), (T.BFLOAT16, T.BFLOAT16), (T.FLOAT, T.FLOAT)):
        if not (_hostile and _kind is T.FLOAT):  # in TF32 the largest number is infinite
            _product(_kind, _to, T.FLOAT, _hostile)
    for _kind in (T.FP8_E4M3, T.FP8_E5M2):
        if not (_hostile and _kind is T.FP8_E5M2):  # its products reach further than the 14 bits that sums keep
            _product(_kind, T.FLOAT, T.FLOAT, _hostile)
_product(T.INT8, T.INT32, T.INT32, False)
_product(T.INT8, T.FLOAT, T.INT32, False)


# what is not in memory between two operations


def _virtual(kind: DataType, factor: float) -> None:
    def write(g: GraphBuilder) -> None:
        x = g.tensor("x", SQUARE)
        y = g.pointwise(P.MUL, x, g.tensor("factor", (1, 1, 1)), data_type=kind)
        g.pointwise(P.MUL, y, g.tensor("back", (1, 1, 1)), data_type=T.FLOAT, **OUT)

    given = {"x": partial(_all_codes, T.FLOAT), "factor": partial(np.full, (1, 1, 1), factor)}
    _add(f"virtual/{kind.name} times {factor:g}/FLOAT", T.FLOAT, write, **given, back=partial(np.full, (1, 1, 1), 0.5))


for _kind in (T.HALF, T.BFLOAT16, T.FLOAT, T.FP8_E4M3, T.FP8_E5M2, T.INT8, T.INT32, T.BOOLEAN, T.UINT8):
    for _factor in (3.0, 1000.0):
        _virtual(_kind, _factor)


# one natural graph of each kind


def _natural(name: str) -> None:
    make = built.BUILT[name].make

    def given() -> dict[str, Array]:
        return {str(key): value for key, value in built.inputs_of(make()).items()}

    CASES[f"natural/{name}"] = Edge(f"natural/{name}", make, given)


for _name in built.BUILT:
    _natural(_name)


# experts


def _offsets() -> Array:
    return np.array([16, 16, 80, 80, 81, 200, 256, 256]).reshape(8, 1, 1)


def _experts(mode: str, kind: DataType) -> None:
    from cudnn_backend_py.generated.enums import MoeGroupedMatmulMode as M

    def write(g: GraphBuilder) -> None:
        tokens = 128 if mode == "GATHER" else 256
        more: dict[str, Any] = {} if mode == "NONE" else {"mode": M[mode]}
        if mode != "NONE":
            more["token_index"] = g.tensor("token_index", (1, 256, 1), T.INT32)
        if mode == "SCATTER":
            more |= {"token_ks": g.tensor("token_ks", (1, 256, 1), T.INT32), "top_k": 2}
        g.moe_grouped_matmul(
            token=g.tensor("token", (1, tokens, 64)),
            weight=g.tensor("weight", (8, 64, 128), strides=(64 * 128, 1, 64)),
            first_token_offset=g.tensor("offsets", (8, 1, 1), T.INT32),
            data_type=kind,
            **more,
            **OUT,
        )

    random = np.random.default_rng(11)
    given: dict[str, Callable[[], Array]] = {"offsets": _offsets}
    if mode == "GATHER":
        given["token_index"] = lambda: random.integers(0, 128, (1, 256, 1))
    if mode == "SCATTER":
        order = random.permutation(256).reshape(1, 256, 1)
        given |= {"token_index": lambda: order // 2, "token_ks": lambda: order % 2}
    _add(f"experts/{mode}/{kind.name}", kind, write, **given)


for _kind in (T.HALF, T.BFLOAT16):
    for _name in ("NONE", "GATHER", "SCATTER"):
        _experts(_name, _kind)


# random numbers


def _rng(distribution: RngDistribution, numbers: dict[str, float]) -> None:
    def write(g: GraphBuilder) -> None:
        seed, offset = (g.tensor(name, (1, 1, 1, 1), T.INT64) for name in ("seed", "offset"))
        g.rng((2, 4, 128, 128), seed, offset, distribution=distribution, data_type=T.FLOAT, **numbers, **OUT)

    one: dict[str, Callable[[], Array]] = {
        "seed": lambda: np.full((1, 1, 1, 1), 123456),
        "offset": lambda: np.full((1, 1, 1, 1), 1),
    }
    _add(f"rng/{distribution.name}/FLOAT", T.FLOAT, write, **one)


_rng(RngDistribution.BERNOULLI, {"probability": 0.75})
_rng(RngDistribution.UNIFORM, {"minimum": -1.0, "maximum": 3.0})
_rng(RngDistribution.NORMAL, {"mean": 1.0, "standard_deviation": 2.0})


def _attention_rng(distribution: RngDistribution, numbers: dict[str, float]) -> None:
    """Attention is where cuDNN has random numbers: with `rng_dump` it writes what it drew."""
    name = f"rng/attention {distribution.name}/HALF"

    def make() -> Graph:
        whole = attention.sdpa_forward(batch=1, heads=2, seq_q=128, head_dim=64, dropout=0.25, rng_dump=True)
        fields = {"distribution": distribution, **numbers}
        ops = [
            replace(op, fields={**op.fields, "rng": Parameters(DescriptorType.RNG, fields)})
            if isinstance(op, Operation) and op.kind is DescriptorType.OPERATION_RNG
            else op
            for op in whole.ops
        ]
        return Graph(tuple(ops), name)

    seed = partial(np.full, (1, 1, 1, 1), 1234)
    CASES[name] = Edge(name, make, lambda: {"dropout_seed": seed(), "dropout_offset": seed()})


_attention_rng(RngDistribution.BERNOULLI, {"bernoulli_dist_probability": 0.75})
_attention_rng(RngDistribution.UNIFORM, {"uniform_dist_minimum": -1.0, "uniform_dist_maximum": 3.0})
_attention_rng(RngDistribution.NORMAL, {"normal_dist_mean": 1.0, "normal_dist_standard_deviation": 2.0})


def inputs_of(case: Edge, graph: Graph) -> dict[str, Array]:
    """Return what a graph reads, as numbers that its types hold."""
    given, written = case.given(), {tensor.uid for tensor in graph.outputs}
    made: dict[str, Array] = {}
    for place, tensor in enumerate(graph.variant_pack_tensors):
        if tensor.uid in written or tensor.by_value or tensor.scratch:
            continue
        value = given.get(tensor.name)
        made[tensor.name] = _random(tensor, place) if value is None else value
    return made


def _random(tensor: Tensor, seed: int) -> Array:
    random = np.random.default_rng([12, seed])
    if is_integer(tensor.data_type) or tensor.data_type is T.BOOLEAN:
        return random.integers(0, 2 if tensor.data_type is T.BOOLEAN else 4, tensor.dims)
    if tensor.name.endswith(("var", "scale")):
        return round_to(random.uniform(0.5, 2.0, tensor.dims), tensor.data_type)
    return round_to(random.normal(size=tensor.dims), tensor.data_type)


def families() -> Iterator[str]:
    """Yield the first word of the names of cases, each one once."""
    yield from dict.fromkeys(name.split("/")[0] for name in CASES)


# what cuDNN 9.19 refuses on an H200, and what is another matter than edges


def _is_refused(name: str) -> bool:
    family, words, *kinds = name.split("/")
    mode, *more = words.split()
    if family == "reduction":
        to = kinds[0].split()[1]
        if "matmul" in more:
            return mode in ("AVG", "NORM1", "NORM2", "MUL_NO_ZEROS")
        return mode not in ("ADD", "MIN", "MAX", "AMAX") or to != "FLOAT" or more[2] in ("1x128", "4x1x1x1")
    if family == "convert":
        wide = words in ("INT64", "DOUBLE") and kinds[0] not in ("INT64" if words == "INT64" else "DOUBLE",)
        return wide or kinds[0] in ("FP8_E8M0", "UINT32")
    if family == "pointwise":
        wide = kinds[0] in ("INT64", "DOUBLE") and mode != "GEN_INDEX"
        other = more == ["weighted"] or mode == "FLOOR_MOD" or (mode == "GEN_INDEX" and more[1] == "INT32")
        return wide or other or words == "CMP_GT into BOOLEAN"
    if family == "natural":
        return "h100" not in built.BUILT[words].supported or words in _NEWER
    pads = ("ZERO_PAD", "EDGE_VAL_PAD")
    return (
        mode == "SCATTER" or (mode == "MAXPOOL" and any(pad in more for pad in pads)) or (family == "rng" and not more)
    )


_NEWER = (
    *("diagonal band mask", "experts, scattered", "rng", "rope fwd", "rope bwd", "sdpa bwd", "slice", "softmax"),
    *("moe grouped matmul bwd", "transpose"),
)
_APART = (
    *(
        "natural/paged cache load",
        "natural/concat",
        "natural/reshape",
        "natural/max pool backward, row-major",
        "natural/experts, gathered",
    ),
    *("experts/GATHER", "convolution/integers", "rng/attention UNIFORM", "rng/attention NORMAL"),
)
for _name in list(CASES):
    if "BOOLEAN" in _name and "into" not in _name and "virtual" not in _name:
        del CASES[_name]  # booleans in memory are refused as buffers
    elif _name.startswith(_APART) or ("backward" in _name and "packed" in _name):
        del CASES[_name]  # each of them a fault, in docs/operations.md, or a graph that needs more than is given here
    elif _is_refused(_name):
        REFUSED[_name] = CASES.pop(_name)
