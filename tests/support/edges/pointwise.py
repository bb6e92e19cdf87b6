"""Edge cases of pointwise operations: every mode, every type, and conversions between types."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from cudnn_backend_py import DataType, GraphBuilder, PointwiseMode
from cudnn_backend_py.interpreter.pointwise import BACKWARD, BINARY, UNARY
from tests.support.edges.case import FLOAT_TYPES, IN_MEMORY, INTEGER_TYPES, SQUARE_SHAPE, Array, add_edge_case
from tests.support.edges.numbers import (
    list_numbers_of_all_bit_patterns,
    make_matrix_with_one_number_per_column,
    make_matrix_with_one_number_per_row,
)

__all__: list[str] = []

P, T = PointwiseMode, DataType


def _add_unary_case(mode: PointwiseMode, kind: DataType, title: str = "", **parameters: float) -> None:
    def build_unary(g: GraphBuilder) -> None:
        g.pointwise(
            mode, g.tensor("x", SQUARE_SHAPE), parameters=parameters, compute_type=T.FLOAT, data_type=kind, **IN_MEMORY
        )

    add_edge_case(
        f"pointwise/{mode.name}{title}/{kind.name}",
        kind,
        build_unary,
        x=partial(list_numbers_of_all_bit_patterns, kind),
    )


def _add_binary_case(mode: PointwiseMode, kind: DataType, title: str = "", **parameters: float) -> None:
    second = "dy" if mode.name.endswith("_BWD") else "b"

    def build_binary(g: GraphBuilder) -> None:
        ports = {second: g.tensor(second, SQUARE_SHAPE)}
        options = {"compute_type": T.FLOAT, "data_type": kind, "parameters": parameters, **IN_MEMORY}
        g.pointwise(mode, g.tensor("x", SQUARE_SHAPE), **ports, **options)

    given = {
        "x": partial(make_matrix_with_one_number_per_column, kind),
        second: partial(make_matrix_with_one_number_per_row, kind),
    }
    add_edge_case(f"pointwise/{mode.name}{title}/{kind.name}", kind, build_binary, **given)


def _add_conversion_case(source: DataType, kind: DataType) -> None:
    def build_conversion(g: GraphBuilder) -> None:
        g.pointwise(P.IDENTITY, g.tensor("x", SQUARE_SHAPE), compute_type=T.FLOAT, data_type=kind, **IN_MEMORY)

    add_edge_case(
        f"convert/{source.name}/{kind.name}",
        source,
        build_conversion,
        x=partial(list_numbers_of_all_bit_patterns, source),
    )


def _add_gen_index_case(axis: int, kind: DataType, compute: DataType) -> None:
    def build_gen_index(g: GraphBuilder) -> None:
        g.pointwise(
            P.GEN_INDEX, g.tensor("x", (1, 16, 4096)), axis=axis, compute_type=compute, data_type=kind, **IN_MEMORY
        )

    add_edge_case(f"pointwise/GEN_INDEX {axis} {compute.name}/{kind.name}", T.HALF, build_gen_index)


def _add_select_case(kind: DataType) -> None:
    def build_select(g: GraphBuilder) -> None:
        x, b, c = (g.tensor(name, SQUARE_SHAPE) for name in "xbc")
        t = g.pointwise(P.CMP_GT, c, g.tensor("zero", (1, 1, 1)), compute_type=T.FLOAT)
        g.pointwise(P.BINARY_SELECT, x, b, t, data_type=kind, **IN_MEMORY)

    given = {
        "x": partial(make_matrix_with_one_number_per_column, kind),
        "b": partial(make_matrix_with_one_number_per_row, kind),
        "c": lambda: list_numbers_of_all_bit_patterns(kind)[:, ::-1].copy(),
    }
    add_edge_case(f"pointwise/BINARY_SELECT/{kind.name}", kind, build_select, **given, zero=lambda: np.zeros((1, 1, 1)))


def _add_logical_case(mode: PointwiseMode, kind: DataType) -> None:
    """Add a logical mode on results of comparisons; BINARY_SELECT converts its result to numbers."""

    def build_logical(g: GraphBuilder) -> None:
        x, b, one, zero = (
            g.tensor(name, SQUARE_SHAPE if name in "xb" else (1, 1, 1)) for name in ("x", "b", "one", "zero")
        )
        left = g.pointwise(P.CMP_GT, x, zero, compute_type=T.FLOAT)
        right = None if mode is P.LOGICAL_NOT else g.pointwise(P.CMP_LT, b, zero, compute_type=T.FLOAT)
        g.pointwise(P.BINARY_SELECT, one, zero, g.pointwise(mode, left, right), data_type=kind, **IN_MEMORY)

    given = {
        "x": partial(make_matrix_with_one_number_per_column, kind),
        "b": partial(make_matrix_with_one_number_per_row, kind),
    }
    if mode is P.LOGICAL_NOT:
        given.pop("b")
    ends: dict[str, Callable[[], Array]] = {
        "one": lambda: np.ones((1, 1, 1)),
        "zero": lambda: np.zeros((1, 1, 1)),
    }

    add_edge_case(f"pointwise/{mode.name} of comparisons/{kind.name}", kind, build_logical, **given, **ends)


def _add_boolean_case(mode: PointwiseMode) -> None:
    dims = (1, 16, 64)

    def build_boolean(g: GraphBuilder) -> None:
        x, b = g.tensor("x", dims), None if mode in UNARY else g.tensor("b", dims)
        g.pointwise(mode, x, b, compute_type=T.BOOLEAN, data_type=T.BOOLEAN, **IN_MEMORY)

    random = np.random.default_rng(6).integers(0, 2, (2, *dims))
    add_edge_case(f"pointwise/{mode.name}/BOOLEAN", T.BOOLEAN, build_boolean, x=lambda: random[0], b=lambda: random[1])


def _add_comparison_stored_as_boolean_case() -> None:
    dims = (1, 16, 64)

    def build_comparison(g: GraphBuilder) -> None:
        g.pointwise(P.CMP_GT, g.tensor("x", dims), g.tensor("b", dims), **IN_MEMORY)

    add_edge_case("pointwise/CMP_GT into BOOLEAN/FLOAT", T.FLOAT, build_comparison)


for _kind in (*FLOAT_TYPES, *INTEGER_TYPES):
    for _mode in UNARY:
        if _mode is not P.LOGICAL_NOT:
            _add_unary_case(_mode, _kind)
    for _mode in (*BINARY, *BACKWARD, P.RELU_BWD):
        if _mode not in (P.LOGICAL_AND, P.LOGICAL_OR):
            _add_binary_case(_mode, _kind)
    _add_select_case(_kind)
for _mode in (P.ADD, P.MUL, P.MAX, P.ABS, P.NEG):
    for _kind in (T.INT64, T.UINT8, T.DOUBLE, T.FP8_E4M3, T.FP8_E5M2):
        (_add_unary_case if _mode in UNARY else _add_binary_case)(_mode, _kind)
_CLIP_OPTIONS = {"relu_lower_clip": -0.5, "relu_upper_clip": 6.0, "relu_lower_clip_slope": 0.1}
for _kind in (T.HALF, T.FLOAT):
    _add_unary_case(P.RELU_FWD, _kind, " clipped", **_CLIP_OPTIONS)
    _add_unary_case(P.RELU_FWD, _kind, " leaky", relu_lower_clip_slope=0.1)
    _add_unary_case(P.RELU_FWD, _kind, " up to 6", relu_upper_clip=6.0)
    _add_binary_case(P.RELU_BWD, _kind, " clipped", **_CLIP_OPTIONS)
    _add_binary_case(P.RELU_BWD, _kind, " leaky", relu_lower_clip_slope=0.1)
    _add_binary_case(P.RELU_BWD, _kind, " up to 6", relu_upper_clip=6.0)
    _add_unary_case(P.ELU_FWD, _kind, " 0.3", elu_alpha=0.3)
    _add_binary_case(P.ELU_BWD, _kind, " 0.3", elu_alpha=0.3)
    _add_unary_case(P.SOFTPLUS_FWD, _kind, " 0.7", softplus_beta=0.7)
    _add_unary_case(P.SOFTPLUS_FWD, _kind, " 10", softplus_beta=10.0)
    _add_binary_case(P.SOFTPLUS_BWD, _kind, " 0.7", softplus_beta=0.7)
    _add_unary_case(P.SWISH_FWD, _kind, " 0.9", swish_beta=0.9)
    _add_binary_case(P.SWISH_BWD, _kind, " 0.9", swish_beta=0.9)
    _add_binary_case(P.ADD, _kind, " weighted", alpha1=2.0, alpha2=0.5)
    _add_binary_case(P.MUL, _kind, " weighted", alpha1=2.0, alpha2=0.5)
    _add_unary_case(P.EXP, _kind, " weighted", alpha1=2.0)
for _kind in (*FLOAT_TYPES, *INTEGER_TYPES):
    for _mode in (P.LOGICAL_AND, P.LOGICAL_OR, P.LOGICAL_NOT):
        _add_logical_case(_mode, _kind)
for _mode in (P.LOGICAL_AND, P.LOGICAL_OR, P.LOGICAL_NOT, P.IDENTITY):
    _add_boolean_case(_mode)
_add_comparison_stored_as_boolean_case()
for _axis in (1, 2):
    _add_gen_index_case(_axis, T.INT32, T.INT32)
    for _kind in (T.INT32, T.FLOAT, T.HALF, T.INT8):
        _add_gen_index_case(_axis, _kind, T.FLOAT)
_SOURCE_TYPES = (*FLOAT_TYPES, T.DOUBLE, T.INT8, T.UINT8, T.INT32, T.INT64, T.FP8_E4M3, T.FP8_E5M2)
for _source in _SOURCE_TYPES:
    for _kind in (*_SOURCE_TYPES, T.FP8_E8M0, T.UINT32, T.BOOLEAN):
        if _kind is not _source:
            _add_conversion_case(_source, _kind)


# virtual tensors between two operations


def _add_virtual_tensor_of_type_case(kind: DataType, factor: float) -> None:
    def build_multiplications_via_virtual_tensor(g: GraphBuilder) -> None:
        x = g.tensor("x", SQUARE_SHAPE)
        y = g.pointwise(P.MUL, x, g.tensor("factor", (1, 1, 1)), data_type=kind)
        g.pointwise(P.MUL, y, g.tensor("back", (1, 1, 1)), data_type=T.FLOAT, **IN_MEMORY)

    given = {"x": partial(list_numbers_of_all_bit_patterns, T.FLOAT), "factor": partial(np.full, (1, 1, 1), factor)}
    add_edge_case(
        f"virtual/{kind.name} times {factor:g}/FLOAT",
        T.FLOAT,
        build_multiplications_via_virtual_tensor,
        **given,
        back=partial(np.full, (1, 1, 1), 0.5),
    )


for _kind in (T.HALF, T.BFLOAT16, T.FLOAT, T.FP8_E4M3, T.FP8_E5M2, T.INT8, T.INT32, T.BOOLEAN, T.UINT8):
    for _factor in (3.0, 1000.0):
        _add_virtual_tensor_of_type_case(_kind, _factor)
