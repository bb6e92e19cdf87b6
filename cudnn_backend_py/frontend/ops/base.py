"""``OpsBase``: base class of the mixins, such as ``PointwiseOps``, with methods that add nodes to a ``pygraph``."""

from __future__ import annotations

from typing import TypeVar

from ...printable import format_repr
from ..context import Context
from ..recorded import GraphRecord
from ..tensors import tensor
from .node import Node

__all__ = ["OpsBase"]

AnyNode = TypeVar("AnyNode", bound=Node)


class OpsBase:
    """A graph under construction; ``_nodes`` are its nodes in the order they were added."""

    _nodes: list[Node]
    record: GraphRecord
    context: Context

    def _add_node(self, node: AnyNode) -> AnyNode:
        """Append a node and return it.

        Raises
        ------
        TypeError
            If an input is no ``cudnn.tensor``.
        """
        for port, item in node.inputs.items():
            if not isinstance(item, tensor):
                raise TypeError(
                    f"{port} of {node.tag.lower()} {node.name!r} is {format_repr(item)}, a cudnn.tensor is needed"
                )
        self._nodes.append(node)
        return node
