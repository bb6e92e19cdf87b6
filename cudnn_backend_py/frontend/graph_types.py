"""``cudnn.graph_types``: kinds of nodes and tensors at the import path of cudnn-frontend 1.32."""

from __future__ import annotations

from .enums import NodeType
from .tensors import tensor as Tensor

__all__ = ["NodeType", "Tensor"]
