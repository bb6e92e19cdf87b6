"""Default data types of a graph: ``GraphContext``, which programs read, and ``Context``, with the target GPU."""

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
    """A graph's default data types for tensors in memory, for virtual tensors, and for arithmetic."""

    io_data_type: Any = None
    intermediate_data_type: Any = None
    compute_data_type: Any = None


@dataclass(kw_only=True)
class Context(GraphContext):
    """Default data types and target GPU, used to check operations, infer their shapes and lower them."""

    io_data_type: data_type = data_type.NOT_SET
    intermediate_data_type: data_type = data_type.NOT_SET
    compute_data_type: data_type = data_type.NOT_SET
    target: Target = field(repr=False)
    sm_version: int | None = field(default=None, repr=False)
    is_dynamic_shape_enabled: bool = field(default=False, repr=False)

    @property
    def io_type(self) -> data_type:
        """Default data type of tensors in memory."""
        return self.io_data_type

    @property
    def intermediate_type(self) -> data_type:
        """Default data type of virtual tensors, float32 if not set."""
        return _default_to_float(self.intermediate_data_type)

    @property
    def compute_type(self) -> data_type:
        """Default data type of arithmetic, float32 if not set."""
        return _default_to_float(self.compute_data_type)

    def read_json(self, said: Mapping[str, Any]) -> None:
        """Read the default types from a graph's JSON, and whether its kernels are shared between shapes."""
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


def _default_to_float(kind: data_type) -> data_type:
    return data_type.FLOAT if kind is data_type.NOT_SET else kind
