"""``cudnn.graph_types``: kinds of nodes, and tensors, under the names that cudnn-frontend 1.32 has them."""

from __future__ import annotations

from .enums import NodeType
from .tensors import tensor as Tensor

__all__ = ["NodeType", "Tensor"]
