"""Tensors as values, and field checks of graph values. Loads no library."""

from __future__ import annotations

import math
from functools import cache
from typing import Any

from ..errors import GraphError
from ..frozen import FrozenValue
from ..generated.enums import DIM_MAX, CudnnEnum, DataType, PointwiseMode, ReduceTensorOp, TensorReordering
from ..printable import format_in_angle_brackets, format_repr, make_lines_printable, printable
from .data_types import DATA_TYPES, ELEMENT_BITS, SHORT_TYPES, find_type, suggest_enumerator
from .rules import Rule, find_broken_rule
from .strides import packed_strides

__all__ = ["LEAST", "MOST", "Tensor", "check_name", "describe_first_wrong_field_type"]


class Tensor(FrozenValue, kw_only=True):
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
        In memory between operations of the graph only: no one outside reads it, and ``execute`` provides the memory
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
                    f"tensor {self.name!r} has {name} {format_repr(given)}, a tuple of int is needed", code="dims-type"
                )
            object.__setattr__(self, name, tuple(given))
        kind: Any = self.data_type
        if isinstance(kind, str):  # a name such as bf16
            object.__setattr__(self, "data_type", kind if (found := find_type(kind)) is None else found)
        _check_tensor(self)

    @property
    def rank(self) -> int:
        """The number of dims."""
        return len(self.dims)

    @property
    def span_elements(self) -> int:
        """The number of elements from the first to the last one in memory."""
        return 1 + sum((dim - 1) * stride for dim, stride in zip(self.dims, self.strides, strict=True))

    @property
    def span_bytes(self) -> int:
        """The bytes of device memory from the first to the last element."""
        return -(-self.span_elements * ELEMENT_BITS[self.data_type] * self.vector_count // 8)

    @property
    def type_text(self) -> str:
        """The data type and dims as text, such as ``f16[2,8,64]``."""
        return f"{SHORT_TYPES[self.data_type]}[{','.join(map(str, self.dims))}]"

    def __repr__(self) -> str:
        return format_in_angle_brackets(f"Tensor {self.name!r} uid {self.uid}: {self.type_text}")

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
        return make_lines_printable(f"{printable(self.name)} : {self.type_text} ({', '.join(marks)})")


_MAX_OFFSETS = 4  # ragged offsets of ragged offsets; one is what attention has

# Each message goes on after "tensor NAME".
_RULES: tuple[Rule[Tensor], ...] = (
    Rule(
        "data-type",
        lambda t: not isinstance(t.data_type, DataType),
        lambda t: (
            f"has data type {format_repr(t.data_type)}, a DataType is needed{suggest_enumerator(DataType, t.data_type)}"
        ),
    ),
    Rule(
        "dims-type",
        lambda t: not (_are_integers(t.dims) and _are_integers(t.strides)),
        lambda t: f"has {_describe_first_non_integer(t)}, int is needed",
    ),
    Rule(
        "rank-out-of-range",
        lambda t: not 1 <= t.rank <= DIM_MAX,
        lambda t: f"has {t.rank} dims, 1 to {DIM_MAX} are possible",
    ),
    Rule(
        "strides-rank-mismatch",
        lambda t: len(t.strides) != t.rank,
        lambda t: f"has {t.rank} dims but {len(t.strides)} strides",
        lambda t: f"give one stride per dim, in elements; packed strides for these dims are {packed_strides(t.dims)}",
    ),
    Rule(
        "dim-not-positive",
        lambda t: min(t.dims) < 1,
        lambda t: f"has a dim of {format_repr(min(t.dims))}, at least 1 is needed",
    ),
    Rule(
        "stride-negative",
        lambda t: min(t.strides) < 0,
        lambda t: f"has a stride of {format_repr(min(t.strides))}, 0 or more is needed",
    ),
    Rule(
        "tensor-size-overflow",
        lambda t: max(math.prod(t.dims), t.span_elements) * 32 >= 1 << 63,
        lambda t: f"reaches over {format_repr(t.span_elements)} elements, its size does not fit 64 bits",
    ),
    Rule(
        "uid-out-of-range",
        lambda t: isinstance(t.uid, bool) or not isinstance(t.uid, int) or not 0 <= t.uid < 1 << 63,
        lambda t: f"has uid {format_repr(t.uid)}, an int of 0 or more is needed",
    ),
    Rule(
        "alignment-not-power-of-two",
        lambda t: t.alignment < 1 or t.alignment & (t.alignment - 1) != 0,
        lambda t: f"has alignment {t.alignment}, a power of two in bytes is needed",
    ),
    Rule(
        "virtual-by-value",
        lambda t: t.virtual and t.by_value,
        lambda t: "is virtual and by value, it can be one of them",
    ),
    Rule(
        "scratch-in-memory",
        lambda t: t.scratch and (t.virtual or t.by_value),
        lambda t: "is scratch memory and cannot be virtual or by value",
    ),
    Rule(
        "ragged-offset-chain",
        lambda t: t.ragged_offset is not None and _count_chained_ragged_offsets(t) > _MAX_OFFSETS,
        lambda t: (
            f"has a ragged offset with a ragged offset of its own and so on, {_count_chained_ragged_offsets(t)} of them"
        ),
    ),
    Rule(
        "ragged-offset-multiplier",
        lambda t: t.ragged_offset_multiplier < 1 or (t.ragged_offset_multiplier > 1 and t.ragged_offset is None),
        lambda t: f"has a ragged offset multiplier of {t.ragged_offset_multiplier} "
        f"{'without a ragged offset' if t.ragged_offset is None else 'but 1 is the least'}",
    ),
    Rule(
        "value-without-by-value",
        lambda t: t.value is not None and not t.by_value,
        lambda t: "has a value but is not by value",
    ),
    Rule(
        "value-not-representable",
        lambda t: t.value is not None and not _is_representable(t.value, t.data_type),
        lambda t: f"has value {format_repr(t.value)}, which {t.data_type.name} cannot represent",
    ),
    Rule(
        "vector-out-of-range",
        lambda t: t.vector_count < 1 or (t.vector_count > 1 and not 0 <= t.vector_dim < t.rank),
        lambda t: f"has vectors of {t.vector_count} along dim {t.vector_dim}, "
        f"1 or more along one of its {t.rank} dims are needed",
    ),
)


def _check_tensor(tensor: Tensor) -> None:
    def make_error(message: str, code: str, fix: str | None = None) -> GraphError:
        sizes = f"dims    {format_repr(tensor.dims)}\nstrides {format_repr(tensor.strides)}"
        where = f"tensor {tensor.name!r}, checked before any cuDNN call\n{sizes}"
        return GraphError(f"tensor {tensor.name!r} {message}", code=code, where=where, fix=fix)

    if wrong := describe_first_wrong_field_type(tensor, but=("dims", "strides", "uid", "data_type")):
        raise make_error(f"has {wrong}", "wrong-field-type")
    check_name(tensor.name, "a tensor")
    if rule := find_broken_rule(_RULES, tensor):
        raise make_error(rule.message(tensor), rule.code, rule.fix and rule.fix(tensor))


def _is_representable(value: float, kind: DataType) -> bool:
    """Return whether a data type can hold a scalar: integers in range, 0 or 1 for booleans, any number for floats."""
    facts = DATA_TYPES[kind]
    if facts.kind == "boolean":
        return value in (0, 1)
    return facts.limits is None or (facts.limits[0] <= value <= facts.limits[1] and value == int(value))


def _are_integers(values: tuple[Any, ...]) -> bool:
    kinds = set(map(type, values))
    return kinds == {int} or all(issubclass(kind, int) and kind is not bool for kind in kinds)


def _describe_first_non_integer(tensor: Tensor) -> str:
    """Return "dims" or "strides", and the type of their first non-integer value."""
    name, values = ("strides", tensor.strides) if _are_integers(tensor.dims) else ("dims", tensor.dims)
    return f"{name} of {next(type(value).__name__ for value in values if not _are_integers((value,)))}"


def _count_chained_ragged_offsets(tensor: Tensor) -> int:
    """Return the number of ragged offsets in the chain that starts at a tensor."""
    length, offset = 0, tensor.ragged_offset
    while offset is not None:
        offset, length = offset.ragged_offset, length + 1
    return length


def check_name(name: Any, whose: str) -> None:
    """Check that the name of a graph value is text that a file can store.

    Raises
    ------
    GraphError
        ``wrong-field-type``, ``name-not-text``.
    """
    if not isinstance(name, str):
        raise GraphError(f"{whose} has name {format_repr(name)}, str is needed", code="wrong-field-type")
    try:
        name.encode()
    except UnicodeEncodeError:
        raise GraphError(
            f"{whose} has name {name!r}, which has half a surrogate pair and cannot be written to a file",
            code="name-not-text",
        ) from None


def describe_first_wrong_field_type(holder: Any, but: tuple[str, ...] = ()) -> str | None:
    """Describe the first field with a value of a wrong type, except the fields `but`; None if all are right."""
    kind: Any = type(holder)
    for name, kinds, needed, takes_bool in _list_annotated_fields(kind, but):
        value = getattr(holder, name)
        if not isinstance(value, kinds) or (isinstance(value, bool) and not takes_bool):
            enum = next((kind for kind in kinds if isinstance(kind, type) and issubclass(kind, CudnnEnum)), None)
            near = "" if enum is None else suggest_enumerator(enum, value, f"{enum.__name__}.")
            return f"{name} {format_repr(value)}, {needed} is needed{near}"
        if isinstance(value, int) and not LEAST <= value <= MOST:
            return f"{name} {format_repr(value)}, a number of 64 bits is needed"
    return None


@cache
def _list_annotated_fields(kind: Any, but: tuple[str, ...]) -> tuple[tuple[str, tuple[Any, ...], str, bool], ...]:
    """Return for each field of a value class: name, types, type text, and whether bool is allowed."""
    found = []
    for field, annotation in kind.__annotations__.items():
        if field in but:
            continue
        names = annotation.split(" | ")
        needed = [name for name in names if name != "None"]
        kinds = tuple(_ANNOTATED[name] for name in needed)
        allowed = (*kinds, type(None)) if "None" in names else kinds
        found.append((field, allowed, " or ".join(needed), "bool" in names))
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
