"""Reductions at their edges: each reduced set is an edge case."""

from __future__ import annotations

from typing import Any

from cudnn_backend_py import DataType, GraphBuilder
from cudnn_backend_py.generated.enums import (
    ReduceTensorOp,
)
from tests.support.edges.case import OUT, add
from tests.support.edges.numbers import as_sets

__all__: list[str] = []

R, T = ReduceTensorOp, DataType


def _reduction(
    mode: ReduceTensorOp, kind: DataType, to: DataType, dims: tuple[int, ...], result: tuple[int, ...], layout: str
) -> None:
    options: Any = {"strides": layout}

    def write(g: GraphBuilder) -> None:
        g.reduction(mode, g.tensor("x", dims, **options), result, data_type=to, **options, **OUT)

    shape = "x".join(map(str, dims)) + " to " + "x".join(map(str, result)) + (" last" if layout != "packed" else "")
    add(f"reduction/{mode.name} {shape}/{kind.name} {to.name}", kind, write, x=lambda: as_sets(kind, dims, result))


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

    add(f"reduction/{mode.name} of a matmul to {'x'.join(map(str, dims))}/HALF FLOAT", T.HALF, write)


for _operator in R:
    for _dims in ((2, 64, 1), (2, 1, 128), (1, 1, 1)):
        _after_product(_operator, _dims)
