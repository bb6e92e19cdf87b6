"""Convert operator calls to graphs: the attention problem of tensors and options. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping

from .. import known_issues  # noqa: F401  # its rows add warnings to the attention builder
from ..graph.attention import Attention, SoftCap, sdpa_backward, sdpa_forward
from ..graph.attention.problem import TensorLayout, make_dense_problem
from ..graph.ir import Graph
from ..system.version import VersionTuple
from .arguments import OperatorOptions

__all__ = ["make_attention_graph", "make_attention_problem"]


def make_attention_graph(
    tensors: Mapping[str, TensorLayout],
    options: OperatorOptions,
    *,
    backward: bool,
    version: VersionTuple,
    sm: int,
) -> Graph:
    """Return the graph of a pass over tensors named as in :class:`Attention`; it writes ``stats`` if named."""
    make = sdpa_backward if backward else sdpa_forward
    return make(make_attention_problem(tensors, options, backward=backward), version=version, sm=sm)


def make_attention_problem(
    tensors: Mapping[str, TensorLayout], options: OperatorOptions, *, backward: bool
) -> Attention:
    """Return the attention problem of a forward or backward pass, with exactly the dims and strides of the tensors.

    Raises
    ------
    GraphError
        What :class:`Attention` refuses.
    """
    assert tensors["q"].data_type is not None  # checked with the tensors
    return make_dense_problem(
        tensors,
        scale=options.scale,
        left_bound=options.left_bound,
        right_bound=options.right_bound,
        alignment="bottom_right" if options.bottom_right else "top_left",
        score_modifier=None if options.soft_cap is None else SoftCap(options.soft_cap),
        dropout=options.dropout,
        stats="stats" in tensors and not backward,
        deterministic=options.deterministic and backward,
    )
