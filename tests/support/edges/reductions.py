"""Edge cases of reductions: each reduced set is one edge case."""

from __future__ import annotations

from typing import Any

from cudnn_backend_py import DataType, GraphBuilder
from cudnn_backend_py.generated.enums import (
    ReduceTensorOp,
)
from tests.support.edges.case import IN_MEMORY, add_edge_case
from tests.support.edges.numbers import make_tensor_with_edge_cases_to_reduce

__all__: list[str] = []

R, T = ReduceTensorOp, DataType


def _add_reduction_case(
    mode: ReduceTensorOp, kind: DataType, to: DataType, dims: tuple[int, ...], result: tuple[int, ...], layout: str
) -> None:
    options: Any = {"strides": layout}

    def build_reduction(g: GraphBuilder) -> None:
        g.reduction(mode, g.tensor("x", dims, **options), result, data_type=to, **options, **IN_MEMORY)

    shape = "x".join(map(str, dims)) + " to " + "x".join(map(str, result)) + (" last" if layout != "packed" else "")
    add_edge_case(
        f"reduction/{mode.name} {shape}/{kind.name} {to.name}",
        kind,
        build_reduction,
        x=lambda: make_tensor_with_edge_cases_to_reduce(kind, dims, result),
    )


_REDUCTION_SHAPES = (
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
        for _dims, _result, _layout in _REDUCTION_SHAPES:
            _add_reduction_case(_operator, _source, _kind, _dims, _result, _layout)


def _add_reduction_after_matmul_case(mode: ReduceTensorOp, dims: tuple[int, ...]) -> None:
    def build_matmul_and_reduction(g: GraphBuilder) -> None:
        c = g.matmul(g.tensor("a", (2, 64, 32)), g.tensor("b", (2, 32, 128)))
        g.reduction(mode, c, dims, data_type=T.FLOAT, **IN_MEMORY)

    add_edge_case(
        f"reduction/{mode.name} of a matmul to {'x'.join(map(str, dims))}/HALF FLOAT",
        T.HALF,
        build_matmul_and_reduction,
    )


for _operator in R:
    for _dims in ((2, 64, 1), (2, 1, 128), (1, 1, 1)):
        _add_reduction_after_matmul_case(_operator, _dims)
