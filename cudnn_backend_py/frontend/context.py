"""``Context``: facts about the graph for its operations; ``GraphContext``: those that programs read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ..system.version import Version
from ..target import Target
from .enums import data_type

__all__ = ["Context", "GraphContext"]


@dataclass
class GraphContext:
    """Default types of a graph: of tensors in memory, of virtual ones, and of arithmetic."""

    io_data_type: Any = None
    intermediate_data_type: Any = None
    compute_data_type: Any = None


@dataclass(kw_only=True)
class Context(GraphContext):
    """The facts used to check, infer and emit nodes."""

    io_data_type: data_type = data_type.NOT_SET
    intermediate_data_type: data_type = data_type.NOT_SET
    compute_data_type: data_type = data_type.NOT_SET
    target: Target = field(repr=False)
    sm_version: int | None = field(default=None, repr=False)
    is_dynamic_shape_enabled: bool = field(default=False, repr=False)

    @property
    def io(self) -> data_type:
        """Type of tensors in memory."""
        return self.io_data_type

    @property
    def intermediate(self) -> data_type:
        """Type of virtual tensors, float32 by default."""
        return _or_float(self.intermediate_data_type)

    @property
    def compute(self) -> data_type:
        """Type of arithmetic, float32 by default."""
        return _or_float(self.compute_data_type)

    def take(self, said: Mapping[str, Any]) -> None:
        """Read the types from a graph's JSON, and whether its kernels are shared over shapes."""
        for name in ("io_data_type", "intermediate_data_type", "compute_data_type"):
            kind = said.get(name)
            if isinstance(kind, str) and kind in data_type.__members__:
                setattr(self, name, data_type[kind])
        self.is_dynamic_shape_enabled |= said.get("is_dynamic_shape_enabled") is True

    @property
    def version(self) -> Version:
        """The version of the loaded cuDNN."""
        return self.target.library.version

    @property
    def sm(self) -> int:
        """The architecture, 90 for sm_90."""
        return self.sm_version or self.target.sm


def _or_float(kind: data_type) -> data_type:
    return data_type.FLOAT if kind is data_type.NOT_SET else kind
