"""``Context``: facts an operation may know of the graph it is in."""

from __future__ import annotations

from dataclasses import dataclass, field

from ..system.version import Version
from ..target import Target
from .enums import data_type

__all__ = ["Context"]


@dataclass
class Context:
    """What nodes are checked, inferred and emitted with."""

    io: data_type
    intermediate: data_type
    compute: data_type
    target: Target = field(repr=False)
    sm_version: int | None = None
    is_dynamic_shape_enabled: bool = False

    @property
    def version(self) -> Version:
        """The loaded cuDNN."""
        return self.target.library.version

    @property
    def sm(self) -> int:
        """The architecture, 90 for sm_90."""
        return self.sm_version or self.target.sm
