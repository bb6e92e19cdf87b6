"""Faults by which fused graphs end the process while engines are chosen, found by random graphs without a GPU."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

from ..generated.enums import DataType, PointwiseMode, ReduceTensorOp
from ..graph.attention.fault import Fault
from ..graph.builder import GraphBuilder
from ..graph.ir import Graph, Op, Pointwise, Reduction, Tensor
from ..graph.strides import channels_last, column_major
from ..system.version import Window
from . import look
from .crashes import crashes, versions_of_crash

__all__ = ["RANDOM_CRASHES"]

_T, _P = DataType, PointwiseMode
_SOURCE = "tests/library/graph/test_faults.py"
_NORMED = [_P.MUL, _P.ADD, _P.RELU_FWD]
_selects_vector_product = crashes("vector-product-select")


def _modes_before(writers: Mapping[int, Op], tensor: Tensor) -> Iterator[PointwiseMode]:
    """Yield the modes of the elementwise operations that make a tensor, the last first, by the writers of all."""
    op = writers.get(tensor.uid)
    while isinstance(op, Pointwise):
        yield op.mode
        op = None if op.x is None else writers.get(op.x.uid)


def _normed_and_reduced(graph: Graph) -> bool:
    """A forward convolution of a float16 image, scaled, biased and through a ReLU; its result changed, then reduced.

    A sum for each image is no such reduction.
    """
    sums = [
        op
        for op in graph.ops
        if isinstance(op, Reduction)
        and op.operator is not ReduceTensorOp.MUL
        and not op.y.dims[0] > max(op.y.dims[1:]) == 1
    ]
    writers = {item.uid: op for op in graph.ops for item in op.outputs().values()} if sums else {}
    if not any(isinstance(writers.get(op.x.uid), Pointwise) for op in sums):
        return False
    return any(
        item.forward
        and item.image.data_type is _T.HALF
        and list(islice(_modes_before(writers, item.image), len(_NORMED) + 1)) == _NORMED[::-1]
        for item in look.convolutions(graph)
    )


def _vector_selected_among_many(graph: Graph) -> bool:
    """The same with four elementwise operations or more, of which 9.28.0 leaves fewer to other engines."""
    return _selects_vector_product(graph) and sum(isinstance(op, Pointwise) for op in graph.ops) > 3


# What they are shown with


def _normed_convolution(*behind: PointwiseMode) -> Graph:
    """Return the sum of a convolution of a normed image, and of what elementwise operations make of it."""
    g, dims = GraphBuilder("normed", io_type=_T.HALF), (2, 32, 8, 8)
    x = g.tensor("x", dims, strides="channels_last")
    of_image: dict[str, Any] = {"strides": channels_last(dims)}
    scale, bias = (g.tensor(name, (1, 32, 1, 1), strides="channels_last") for name in ("scale", "bias"))
    normed = g.pointwise(_P.ADD, g.pointwise(_P.MUL, x, scale, **of_image), bias, **of_image)
    image = g.pointwise(_P.RELU_FWD, normed, data_type=_T.HALF, **of_image)
    y = g.convolution(image, g.tensor("w", (32, 32, 1, 1), strides="channels_last"))
    for mode in behind:
        y = g.pointwise(mode, y, strides=y.strides)
    g.reduction(ReduceTensorOp.ADD, y, dims=(1, 1, 1, 1), data_type=_T.FLOAT, virtual=False, name="sum")
    return g.graph()


def _product(*, rows: int = 1, select: bool = True, behind: int = 0) -> Graph:
    """Return the product of a few rows and a matrix, what a mask selects of it and of another, and ReLUs behind it."""
    g, whole = GraphBuilder("product", io_type=_T.HALF), (1, rows, 32)
    c = g.matmul(g.tensor("a", (1, rows, 64)), g.tensor("b", (1, 64, 32), strides=column_major((1, 64, 32))))
    if select:
        c = g.pointwise(_P.BINARY_SELECT, c, g.tensor("other", whole), t=g.tensor("t", whole), virtual=behind > 0)
    else:
        c = g.pointwise(_P.IDENTITY, c, virtual=behind > 0)
    for left in reversed(range(behind)):
        c = g.pointwise(_P.RELU_FWD, c, virtual=left > 0)
    return g.graph()


RANDOM_CRASHES: tuple[Fault, ...] = (
    Fault(
        "normed-convolution-reduced",
        what=(
            "a forward convolution of float16 of an image with a scale, a bias and a ReLU before it, elementwise "
            "operations on its result, and their sum, least or largest"
        ),
        effect="the process ends by a segmentation fault while engines are chosen",
        fix="leave the scale, the bias and the ReLU, or the reduction, to a graph of its own",
        source=_SOURCE,
        evidence=(
            "measured deviceless with 9.14.0 to 9.28.0 on sm_80, sm_86 and sm_89; float32 and bfloat16, other "
            "operations before it, none behind it, and a product instead of a sum are answered"
        ),
        sm=(80, 86, 89),
        graph=_normed_and_reduced,
        step="check",
        reproductions={"": lambda: _normed_convolution(_P.RELU_FWD)},
        unlike=_normed_convolution,
        cure=_normed_convolution,
    ),
    Fault(
        "vector-product-select",
        what="the product of a matrix and a vector, and BINARY_SELECT by a whole mask behind it",
        effect="the process ends by a segmentation fault while engines are chosen",
        fix="use 9.28.0 or later, or select in a graph of its own",
        source=_SOURCE,
        evidence=(
            "measured deviceless with 9.21.0, 9.22.0, 9.24.0 to 9.27.0 on sm_90, 9.24.0 on sm_80 and sm_100 too: 16 "
            "and 32 bits and INT8, rows and columns, masks of all types; booleans only by the eight; 9.16.0 to 9.20.0 "
            "and 9.28.0 answer"
        ),
        versions=versions_of_crash("vector-product-select"),
        graph=_selects_vector_product,
        step="check",
        reproductions={"": _product},
        unlike=lambda: _product(rows=2),
        cure=lambda: _product(select=False),
    ),
    Fault(
        "vector-product-select-among-many",
        what="the product of a matrix and a vector, and four or more operations behind it, one BINARY_SELECT by a mask",
        effect="the process ends by a segmentation fault while engine 8 builds its plan; it comes behind the others",
        fix="take another engine, or select in a graph of its own",
        source=_SOURCE,
        evidence=(
            "measured deviceless with 9.28.0 on sm_80, sm_90 and sm_100: 16 and 32 bits, masks in memory and computed, "
            "wherever that engine answers: with one operation more in some graphs, with five more in others; without "
            "BINARY_SELECT it builds"
        ),
        versions=Window(since=(9, 28, 0)),
        engines=(8,),
        graph=_vector_selected_among_many,
        step="build",
        reproductions={"": lambda: _product(behind=4)},
        unlike=lambda: _product(select=False, behind=4),
        cure=lambda: _product(select=False, behind=4),
    ),
)
