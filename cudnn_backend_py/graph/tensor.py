"""Tensors of graphs as values, and the checks of the fields of graph values. Loads no library."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from functools import cache
from typing import Any

from ..errors import GraphError
from ..generated.enums import DIM_MAX, DataType, PointwiseMode, ReduceTensorOp, TensorReordering
from ..printable import brief, printable, printable_lines, shown
from .data_types import ELEMENT_BITS, SHORT_TYPES
from .strides import packed_strides

__all__ = ["LEAST", "MOST", "Tensor", "check_name", "wrong_type"]


@dataclass(frozen=True, kw_only=True, slots=True, repr=False)
class Tensor:
    """A tensor of a graph.

    C: ``CUDNN_BACKEND_TENSOR_DESCRIPTOR``.

    Parameters
    ----------
    name
        For people; unique in a graph.
    uid
        For cuDNN and the variant pack; unique in a graph.
    dims, strides
        Sizes and strides in elements, at most 8 of them; attention tensors are ordered b, h, s, d.
    data_type
        Type of the elements.
    alignment
        What the address is a multiple of, in bytes.
    virtual
        Exists only inside the graph, never in memory.
    by_value
        A scalar given as a host value instead of a device address; ``value`` holds it if it is known already.
    reordering
        Layout of the elements inside blocks.
    ragged_offset
        The tensor with the start of each sequence, in elements, for variable-length sequences.
    ragged_offset_multiplier
        How many elements one ragged offset counts (cuDNN 9.24).
    vector_count, vector_dim
        Elements packed into one, and along which dimension, for the vectorized integer types.
    scratch
        In memory between operations of the graph only: nobody outside reads it, and ``execute`` provides the memory
        if it is not given.
    """

    name: str
    uid: int
    dims: tuple[int, ...]
    strides: tuple[int, ...]
    data_type: DataType
    alignment: int = 16
    virtual: bool = False
    by_value: bool = False
    value: float | int | None = None
    reordering: TensorReordering = TensorReordering.NONE
    ragged_offset: Tensor | None = None
    vector_count: int = 1
    vector_dim: int = -1
    scratch: bool = False
    ragged_offset_multiplier: int = 1

    def __post_init__(self) -> None:
        for name in ("dims", "strides"):
            given = getattr(self, name)
            if not isinstance(given, (tuple, list)):
                raise GraphError(
                    f"tensor {self.name!r} has {name} {shown(given)}, a tuple of int is needed", code="dims-type"
                )
            object.__setattr__(self, name, tuple(given))
        _check_tensor(self)

    @property
    def rank(self) -> int:
        """Number of dimensions."""
        return len(self.dims)

    @property
    def span_elements(self) -> int:
        """Elements from the first to the last one, the last included."""
        return 1 + sum((dim - 1) * stride for dim, stride in zip(self.dims, self.strides, strict=True))

    @property
    def span_bytes(self) -> int:
        """Bytes of device memory the tensor reaches over."""
        return -(-self.span_elements * ELEMENT_BITS[self.data_type] * self.vector_count // 8)

    @property
    def type_text(self) -> str:
        """The type as in ``f16[2,8,64]``."""
        return f"{SHORT_TYPES[self.data_type]}[{','.join(map(str, self.dims))}]"

    def __repr__(self) -> str:
        return brief(f"Tensor {self.name!r} uid {self.uid}: {self.type_text}")

    def __str__(self) -> str:
        marks = [f"uid {self.uid}", f"strides {list(self.strides)}", f"align {self.alignment}"]
        marks += [name for name in ("virtual", "by_value", "scratch") if getattr(self, name)]
        if self.value is not None:
            marks.append(f"value {self.value}")
        if self.reordering is not TensorReordering.NONE:
            marks.append(f"reordering {self.reordering.name}")
        if self.ragged_offset is not None:
            times = "" if self.ragged_offset_multiplier == 1 else f" * {self.ragged_offset_multiplier}"
            marks.append(f"ragged_offset {printable(self.ragged_offset.name)}{times}")
        if self.vector_count != 1:
            marks.append(f"vector {self.vector_count} along {self.vector_dim}")
        return printable_lines(f"{printable(self.name)} : {self.type_text} ({', '.join(marks)})")


_MAX_OFFSETS = 4  # ragged offsets of ragged offsets; one is what attention has


def _check_tensor(tensor: Tensor) -> None:
    def fault(headline: str, code: str, fix: str | None = None) -> GraphError:
        sizes = f"dims    {shown(tensor.dims)}\nstrides {shown(tensor.strides)}"
        where = f"tensor {tensor.name!r}, checked before any cuDNN call\n{sizes}"
        return GraphError(headline, code=code, where=where, fix=fix)

    if wrong := wrong_type(tensor, but=("dims", "strides", "uid", "data_type")):
        raise fault(f"tensor {tensor.name!r} has {wrong}", "wrong-field-type")
    check_name(tensor.name, "a tensor")
    if not isinstance(tensor.data_type, DataType):
        raise fault(
            f"tensor {tensor.name!r} has data type {shown(tensor.data_type)}, a DataType is needed", "data-type"
        )
    for name in ("dims", "strides"):
        for value in getattr(tensor, name):
            if isinstance(value, bool) or not isinstance(value, int):
                raise fault(f"tensor {tensor.name!r} has {name} of {type(value).__name__}, int is needed", "dims-type")
    if not 1 <= tensor.rank <= DIM_MAX:
        raise fault(f"tensor {tensor.name!r} has {tensor.rank} dims, 1 to {DIM_MAX} are possible", "rank-out-of-range")
    if len(tensor.strides) != tensor.rank:
        raise fault(
            f"tensor {tensor.name!r} has {tensor.rank} dims but {len(tensor.strides)} strides",
            "strides-rank-mismatch",
            f"give one stride per dim, in elements; packed strides for these dims are {packed_strides(tensor.dims)}",
        )
    if min(tensor.dims) < 1:
        raise fault(
            f"tensor {tensor.name!r} has a dim of {shown(min(tensor.dims))}, at least 1 is needed",
            "dim-not-positive",
        )
    if min(tensor.strides) < 0:
        raise fault(
            f"tensor {tensor.name!r} has a stride of {shown(min(tensor.strides))}, 0 or more is needed",
            "stride-negative",
        )
    span = tensor.span_elements
    if max(math.prod(tensor.dims), span) * 32 >= 1 << 63:
        raise fault(
            f"tensor {tensor.name!r} reaches over {shown(span)} elements, its size does not fit 64 bits",
            "tensor-size-overflow",
        )
    if isinstance(tensor.uid, bool) or not isinstance(tensor.uid, int) or not 0 <= tensor.uid < 1 << 63:
        raise fault(
            f"tensor {tensor.name!r} has uid {shown(tensor.uid)}, an int of 0 or more is needed",
            "uid-out-of-range",
        )
    if tensor.alignment < 1 or tensor.alignment & (tensor.alignment - 1):
        raise fault(
            f"tensor {tensor.name!r} has alignment {tensor.alignment}, a power of two in bytes is needed",
            "alignment-not-power-of-two",
        )
    if tensor.virtual and tensor.by_value:
        raise fault(f"tensor {tensor.name!r} is virtual and by value, it can be one of them", "virtual-by-value")
    if tensor.scratch and (tensor.virtual or tensor.by_value):
        raise fault(f"tensor {tensor.name!r} is scratch memory and cannot be virtual or by value", "scratch-in-memory")
    if tensor.ragged_offset is not None and (length := _chain_length(tensor)) > _MAX_OFFSETS:
        raise fault(
            f"tensor {tensor.name!r} has a ragged offset with a ragged offset of its own and so on, {length} of them",
            "ragged-offset-chain",
        )
    if tensor.ragged_offset_multiplier < 1 or (tensor.ragged_offset_multiplier > 1 and tensor.ragged_offset is None):
        raise fault(
            f"tensor {tensor.name!r} has a ragged offset multiplier of {tensor.ragged_offset_multiplier} "
            f"{'without a ragged offset' if tensor.ragged_offset is None else 'but 1 is the least'}",
            "ragged-offset-multiplier",
        )
    if tensor.value is not None and not tensor.by_value:
        raise fault(f"tensor {tensor.name!r} has a value but is not by value", "value-without-by-value")
    if tensor.vector_count < 1 or (tensor.vector_count > 1 and not 0 <= tensor.vector_dim < tensor.rank):
        raise fault(
            f"tensor {tensor.name!r} has vectors of {tensor.vector_count} along dim {tensor.vector_dim}, "
            f"1 or more along one of its {tensor.rank} dims are needed",
            "vector-out-of-range",
        )


def _chain_length(tensor: Tensor) -> int:
    """Return how many ragged offsets follow each other."""
    length, offset = 0, tensor.ragged_offset
    while offset is not None:
        offset, length = offset.ragged_offset, length + 1
    return length


def check_name(name: Any, whose: str) -> None:
    """Check that the name of a graph value is a text that a file can hold.

    Raises
    ------
    GraphError
        ``wrong-field-type``, ``name-not-text``.
    """
    if not isinstance(name, str):
        raise GraphError(f"{whose} has name {shown(name)}, str is needed", code="wrong-field-type")
    try:
        name.encode()
    except UnicodeEncodeError:
        raise GraphError(
            f"{whose} has name {name!r}, which holds half a surrogate pair: no file can hold it", code="name-not-text"
        ) from None


def wrong_type(holder: Any, but: tuple[str, ...] = ()) -> str | None:
    """Return what is wrong about the first field of a dataclass that is not of its annotated type, or None."""
    kind: Any = type(holder)
    for name, kinds, needed, takes_bool in _annotated_fields(kind, but):
        value = getattr(holder, name)
        if not isinstance(value, kinds) or (isinstance(value, bool) and not takes_bool):
            return f"{name} {shown(value)}, {needed} is needed"
        if isinstance(value, int) and not LEAST <= value <= MOST:
            return f"{name} {shown(value)}, a number of 64 bits is needed"
    return None


@cache
def _annotated_fields(kind: Any, but: tuple[str, ...]) -> tuple[tuple[str, tuple[Any, ...], str, bool], ...]:
    """Return name, types, the types in words, and whether a bool is one, of the fields of a dataclass."""
    found = []
    for item in fields(kind):
        names = str(item.type).split(" | ")
        needed = [name for name in names if name != "None"]
        kinds = tuple(_ANNOTATED[name] for name in needed if item.name not in but)
        if item.name not in but:
            allowed = (*kinds, type(None)) if "None" in names else kinds
            found.append((item.name, allowed, " or ".join(needed), "bool" in names))
    return tuple(found)


# What any integer of cuDNN holds, signed or not.
LEAST, MOST = -(1 << 63), (1 << 64) - 1


# The types that annotations of tensors and operations name.
_ANNOTATED: dict[str, type | tuple[type, ...]] = {
    "str": str,
    "int": int,
    "bool": bool,
    "float": (float, int),
    "Tensor": Tensor,
    "DataType": DataType,
    "TensorReordering": TensorReordering,
    "PointwiseMode": PointwiseMode,
    "ReduceTensorOp": ReduceTensorOp,
}
