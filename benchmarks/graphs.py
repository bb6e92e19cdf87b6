"""Graphs judged by several benchmarks."""

from __future__ import annotations

from cudnn_backend_py.generated.enums import DataType, TensorReordering
from cudnn_backend_py.graph import Graph, GraphBuilder

__all__ = ["make_two_matmuls"]


def make_two_matmuls() -> Graph:
    """Return o = (q @ k) @ v with a virtual product in F16x16 reordering, which most targets refuse."""
    g = GraphBuilder("two_matmuls", io_type=DataType.HALF)
    q, v = (g.tensor(name, (1, 1, 10, 64), alignment=2) for name in "qv")
    k = g.tensor("k", (1, 1, 64, 10), strides=(640, 640, 1, 64), alignment=2)
    s = g.matmul(q, k, data_type=DataType.HALF, alignment=2, reordering=TensorReordering.F16x16)
    g.matmul(s, v, name="o", virtual=False, alignment=2)
    return g.graph()
