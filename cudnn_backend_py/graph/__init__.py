"""Operation graphs as plain Python values, made without calling cuDNN; attention is in ``graph.attention``."""

from typing import TYPE_CHECKING

from ..system.lazy_import import make_lazy_getattr

if TYPE_CHECKING:
    from .builder import GraphBuilder
    from .ir import Graph, Matmul, Op, Operation, Parameters, Pointwise, Reduction, Tensor, packed_strides
    from .serial import graph_from_json, graph_to_json, load_graph, save_graph

__all__ = [
    "Graph",
    "GraphBuilder",
    "Matmul",
    "Op",
    "Operation",
    "Parameters",
    "Pointwise",
    "Reduction",
    "Tensor",
    "graph_from_json",
    "graph_to_json",
    "load_graph",
    "packed_strides",
    "save_graph",
]

__getattr__ = make_lazy_getattr(
    __name__,
    Graph="ir",
    GraphBuilder="builder",
    Matmul="ir",
    Op="ir",
    Operation="ir",
    Parameters="ir",
    Pointwise="ir",
    Reduction="ir",
    Tensor="ir",
    graph_from_json="serial",
    graph_to_json="serial",
    load_graph="serial",
    packed_strides="ir",
    save_graph="serial",
)
