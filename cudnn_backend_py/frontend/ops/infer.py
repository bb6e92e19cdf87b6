"""Shape inference as in cudnn-frontend for a graph under construction: types, dims and strides."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from ...graph.strides import channels_last, copy_stride_order
from ...system.version import format_version_numbers
from ..enums import data_type, scalar_type
from ..errors import make_attribute_not_set_error, make_invalid_value_error, make_not_supported_error
from ..tensors import tensor
from .node import Emitter, Node, broadcast_dims, check_data_type, fill_data_type, pack_strides

if TYPE_CHECKING:
    from ..context import Context

__all__ = [
    "OpNode",
    "check_data_type",
    "fill_dims_and_strides",
    "infer_matmul",
    "infer_pointwise",
    "require_version",
]

NOT_SET = data_type.NOT_SET


class OpNode(Node):
    """A node with one operation; ``needs`` are its required inputs, :meth:`infer_shapes` fills in its outputs."""

    needs: tuple[str, ...] = ()

    def check(self, context: Context) -> None:
        """Raise if an input is missing.

        Raises
        ------
        FrontendValueError
            ``frontend-attribute`` if an input that is needed is None.
        """
        missing = [port for port in self.needs if port not in self.inputs]
        if missing:
            raise make_attribute_not_set_error(
                f"{self.tag.lower()} {self.name!r} has no {', '.join(missing)}",
                where="None was given for it",
                fix="give a tensor of the graph",
            )

    def infer(self, context: Context) -> None:
        """Fill in types, then the rank of scalars, then dims and strides, in cudnn-frontend's order."""
        for item in self.iterate_tensors():
            fill_data_type(item, context)
        self._expand_scalars()
        self.infer_shapes()

    def infer_shapes(self) -> None:
        """Fill in dims and strides of outputs that the user did not set."""

    def _expand_scalars(self) -> None:
        """Give scalar inputs with a compile-time value the rank of the other tensors, with all dims 1."""
        scalars = [item for item in self.inputs.values() if _is_compile_time_scalar(item)]
        if not scalars:
            return
        others = [len(item.dim) for item in self.inputs.values() if not _is_compile_time_scalar(item)]
        if not others and not any(item.dim for item in self.outputs.values()):
            raise make_attribute_not_set_error(
                f"every input of {self.tag.lower()} {self.name!r} is a number, so the dims of its result cannot "
                "be inferred",
                fix="call set_dim([...]) and set_stride([...]) on the result",
            )
        rank = next((rank for rank in others if rank), 1)
        if rank == 1:
            rank = next((len(item.dim) for item in self.outputs.values() if item.dim), 1)
        for item in scalars:
            item.dim = [1] * rank
            item.stride = [1] * rank


def _is_compile_time_scalar(item: tensor) -> bool:
    return item.value is not None or item.scalar_type is scalar_type.COMPILE_TIME_CONST


def require_version(to: Emitter, version: tuple[int, int], what: str) -> None:
    """Raise if the loaded cuDNN is too old for an operation.

    Raises
    ------
    cudnnGraphNotSupportedError
        ``frontend-not-supported``.
    """
    if to.context.version < version:
        raise make_not_supported_error(
            f"{what} is not supported by cuDNN {format_version_numbers(to.context.version)}",
            fix=f"use cuDNN {version[0]}.{version[1]} or later",
        )


def fill_dims_and_strides(item: tensor, dims: Sequence[int] | None, strides: Sequence[int] | None = None) -> None:
    """Set a tensor's missing dims and strides (default: channels last); raise if the dims are unknown.

    Raises
    ------
    FrontendValueError
        ``frontend-attribute`` if dims are neither set nor given.
    """
    if not item.dim:
        if dims is None:
            raise make_attribute_not_set_error(
                f"dims of {item.name!r} are not set and cannot be inferred from its operation",
                fix="call set_dim([...]) on it",
            )
        item.dim = list(dims)
    if not item.stride:
        item.stride = list(channels_last(item.dim) if strides is None else strides)


def infer_matmul(name: str, inputs: Mapping[str, tensor], c: tensor) -> None:
    """Fill in dims and strides of a matmul's result.

    Raises
    ------
    FrontendRuntimeError
        ``frontend-value`` if A and B differ in their number of dims.
    FrontendValueError
        ``frontend-attribute`` if their dims do not fit.
    """
    a, b = inputs["A"].dim, inputs["B"].dim
    headline = f"dims of the matmul {name!r} mismatch: A is {a}, B is {b}"
    apart = any(1 not in pair and len(set(pair)) > 1 for pair in zip(a[:-2], b[:-2], strict=False))
    if min(len(a), len(b)) >= 2 and (a[-1] != b[-2] or (len(a) == len(b) and apart)):
        raise make_attribute_not_set_error(
            headline, fix="give A [..., M, K] and B [..., K, N], the others the same or 1"
        )
    if not c.dim and (len(a) != len(b) or len(a) < 2):
        raise make_invalid_value_error(headline, fix="give both the same number of dims, at least 2")
    batch = [max(pair) for pair in zip(a[:-2], b[:-2], strict=False)]
    if not c.dim:
        c.dim = [*batch, a[-2], b[-1]]
    fill_dims_and_strides(c, None, pack_strides(c.dim))


def infer_pointwise(name: str, inputs: Sequence[tensor], out: tensor) -> None:
    """Fill in dims and strides of an elementwise operation's result.

    Raises
    ------
    FrontendValueError
        ``frontend-attribute`` if they do not follow from the inputs.
    """
    if not out.dim:
        shapes = [item.dim for item in inputs if item.dim]
        if not shapes:
            raise make_attribute_not_set_error(
                f"no input of pointwise {name!r} has dims",
                fix="call set_dim([...]) and set_stride([...]) on an input",
            )
        out.dim = broadcast_dims(*shapes)
    if out.stride:
        return
    same = next((item for item in reversed(inputs) if item.dim == out.dim), None)  # the last, as cudnn-frontend
    if same is not None:
        out.stride = list(same.stride)
    elif out.virtual:
        fill_dims_and_strides(out, None, copy_stride_order(out.dim, inputs[0].stride))
    else:
        raise make_attribute_not_set_error(
            f"strides of output {out.name!r} cannot be inferred: no input has its dims {out.dim}",
            fix="call set_stride([...]) on the output",
        )
