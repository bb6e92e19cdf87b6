"""`EdgeCase`: a graph of one operation with edge-case inputs; and the table of all cases."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from cudnn_backend_py import DataType, Graph, GraphBuilder, PointwiseMode
from cudnn_backend_py.interpreter.pointwise import BOUNDS

__all__ = [
    "CHANNELS_LAST",
    "EDGE_CASES",
    "FLOAT_TYPES",
    "IMAGE_SHAPE",
    "INTEGER_TYPES",
    "IN_MEMORY",
    "REFUSED_EDGE_CASES",
    "ROW_LENGTH",
    "SQUARE_SHAPE",
    "Array",
    "EdgeCase",
    "add_edge_case",
]

Array = NDArray[Any]
T = DataType

ROW_LENGTH = 256
SQUARE_SHAPE = (1, ROW_LENGTH, ROW_LENGTH)
IMAGE_SHAPE = (2, 32, 12, 12)
FLOAT_TYPES = (T.HALF, T.BFLOAT16, T.FLOAT)
INTEGER_TYPES = (T.INT8, T.INT32)
IN_MEMORY: dict[str, Any] = {"virtual": False}
CHANNELS_LAST: dict[str, Any] = {"strides": "channels_last"}


@dataclass(frozen=True)
class EdgeCase:
    """A graph and its edge-case inputs by tensor name; other inputs are random."""

    name: str
    make: Callable[[], Graph]
    given: Callable[[], dict[str, Array]]

    @property
    def family(self) -> str:
        """Return the operation family, the first part of the name."""
        return self.name.split("/")[0]

    @property
    def approximation_bound(self) -> float:
        """Return the interpreter's error bound for a pointwise mode that cuDNN approximates, otherwise 0."""
        mode = self.name.split("/")[1].split()[0]
        return BOUNDS.get(PointwiseMode[mode], 0.0) if mode in PointwiseMode.__members__ else 0.0

    @property
    def allowed_ulps(self) -> float:
        """Return the allowed error of a pointwise mode without approximation bound, in float32 ulps."""
        mode = self.name.split("/")[1].split()[0]
        return 1.0 if mode in _APPROXIMATED_MODES else 0.0

    @property
    def allowed_relative_error(self) -> float:
        """Return the allowed error of an operation that is not pointwise, in float32 epsilons.

        Products of float32 use TF32, which has 11 significant bits; typical graphs round intermediate results.
        """
        if self.family == "natural" or self.family == "rng":
            return 2.0**14
        if any(
            word in self.name for word in ("1e-05", "GEN_STATS", "MUL")
        ):  # norms of constants, sums of 16-bit numbers, products
            return 2.0**11
        if self.family in ("matmul", "convolution"):
            return 2.0**14 if "FP8" in self.name or self.name.endswith("FLOAT/FLOAT") or "/FLOAT" in self.name else 64.0
        return 64.0


_APPROXIMATED_MODES = (
    "ADD_SQUARE",
    "ATAN2",
    "ERF",
    "POW",
    "RECIPROCAL",
    "RSQRT",
    "SQRT",
    "RELU_FWD",
    "RELU_BWD",
    "ADD",
    "MUL",
)
EDGE_CASES: dict[str, EdgeCase] = {}
REFUSED_EDGE_CASES: dict[str, EdgeCase] = {}


def add_edge_case(
    name: str, io: DataType, write: Callable[[GraphBuilder], object], **given: Callable[[], Array]
) -> None:
    """Add an edge case to the table: its graph is built by `write`, its inputs by `given`."""

    def make_graph() -> Graph:
        g = GraphBuilder(name, io_type=io)
        write(g)
        return g.graph()

    assert name not in EDGE_CASES, name
    EDGE_CASES[name] = EdgeCase(name, make_graph, lambda: {key: value() for key, value in given.items()})
