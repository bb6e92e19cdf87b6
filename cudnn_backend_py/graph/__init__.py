"""Graphs as plain values; nothing here touches cuDNN. Attention is imported by itself: not everyone needs it."""

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
