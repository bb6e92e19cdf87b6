"""Shape inference of a graph under construction, as cudnn-frontend does it: types, dims and strides."""

from __future__ import annotations

from collections.abc import Sequence
from operator import index
from typing import TYPE_CHECKING, Any

from ...graph.strides import channels_last
from ...system.version import version_text
from ..enums import data_type, scalar_type
from ..errors import attribute_not_set, not_supported
from ..tensors import tensor
from .node import Emitter, Node, check_type, fill_type

if TYPE_CHECKING:
    from ..context import Context

__all__ = [
    "OpNode",
    "check_type",
    "fill",
    "integers",
    "require_version",
]

NOT_SET = data_type.NOT_SET


class OpNode(Node):
    """A node of one operation: names the inputs it ``needs``, infers what its outputs lack in :meth:`infer_shapes`."""

    needs: tuple[str, ...] = ()

    def check(self, context: Context) -> None:
        """Refuse to go on without an input.

        Raises
        ------
        FrontendValueError
            ``frontend-attribute`` if an input that is needed is None.
        """
        missing = [port for port in self.needs if port not in self.inputs]
        if missing:
            raise attribute_not_set(
                f"{self.tag.lower()} {self.name!r} has no {', '.join(missing)}",
                where="None was given for it",
                fix="give a tensor of the graph",
            )

    def infer(self, context: Context) -> None:
        """Fill in types, then the rank of scalars, then dims and strides, in cudnn-frontend's order."""
        for item in self.tensors():
            fill_type(item, context)
        self._expand_scalars()
        self.infer_shapes()

    def infer_shapes(self) -> None:
        """Fill in dims and strides of outputs that the user did not set."""

    def _expand_scalars(self) -> None:
        """Give scalars whose value belongs to the graph the rank of the other tensors."""
        scalars = [item for item in self.inputs.values() if _has_value(item)]
        if not scalars:
            return
        others = [len(item.dim) for item in self.inputs.values() if not _has_value(item)]
        rank = next((rank for rank in others if rank), 1)
        if rank == 1:
            rank = next((len(item.dim) for item in self.outputs.values() if item.dim), 1)
        for item in scalars:
            item.dim = [1] * rank
            item.stride = [1] * rank


def _has_value(item: tensor) -> bool:
    return item.value is not None or item.scalar_type is scalar_type.COMPILE_TIME_CONST


def require_version(to: Emitter, version: tuple[int, int], what: str) -> None:
    """Refuse what the loaded cuDNN is too old for.

    Raises
    ------
    cudnnGraphNotSupportedError
        ``frontend-not-supported``.
    """
    if to.context.version < version:
        raise not_supported(
            f"{what} is not supported by cuDNN {version_text(to.context.version)}",
            fix=f"use cuDNN {version[0]}.{version[1]} or later",
        )


def integers(name: str, values: Any) -> list[int]:
    """Return a list of integers; a TypeError says which argument is none."""
    if isinstance(values, (str, bytes)) or not isinstance(values, Sequence):
        raise TypeError(f"{name} is {values!r}, a list of int is needed")
    return [whole(name, item) for item in values]


def whole(name: str, value: Any) -> int:
    """Return an integer; a TypeError says which argument is none."""
    if not hasattr(value, "__index__"):
        raise TypeError(f"{name} is {value!r}, an int is needed")
    return index(value)


def fill(item: tensor, dims: Sequence[int] | None, strides: Sequence[int] | None = None) -> None:
    """Set what the user did not set: dims, and strides, by default channels last; None leaves them alone.

    Raises
    ------
    FrontendValueError
        ``frontend-attribute`` if dims are neither set nor given.
    """
    if not item.dim:
        if dims is None:
            raise attribute_not_set(
                f"dims of {item.name!r} are not set and cannot be inferred from its operation", fix="set_dim([...])"
            )
        item.dim = list(dims)
    if not item.stride:
        item.stride = list(channels_last(item.dim) if strides is None else strides)
