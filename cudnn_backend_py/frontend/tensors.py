"""``tensor``: the mutable tensor of a graph under construction."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from typing import Any, Self

from .arguments import check_instance, to_float32, to_int, to_int_list
from .enums import data_type, scalar_type, tensor_reordering, to_data_type
from .errors import make_attribute_not_set_error, make_invalid_value_error

__all__ = ["tensor", "to_float32_hex"]

_RUNTIME_SCALAR = scalar_type.RUNTIME_PARAM


def to_float32_hex(value: float | None) -> str | None:
    """Return a number in the form of cudnn-frontend's graph JSON: the hex digits of its four float32 bytes."""
    return None if value is None else struct.pack(">f", to_float32("value", value)).hex().upper()


def _value_to_json(value: float | int | None) -> dict[str, Any] | None:
    """Return a scalar's value in cudnn-frontend's JSON: a C++ type number (1 for int32, 3 for float) and the value."""
    if value is None:
        return None
    return {"index": 1, "value": value} if isinstance(value, int) else {"index": 3, "value": to_float32_hex(value)}


class tensor:
    """A tensor of a graph under construction, changed by its ``set_`` methods, which return the tensor itself.

    They raise RuntimeError if the graph is already finalized.

    Dims and strides are lists, strides in elements; an empty list is one that is not known yet. A graph gives each of
    its tensors a ``uid``, which another tensor can only take over by :meth:`set_uid`. ``alignment_value`` and
    ``ragged_offset_multiplier`` are promises about contents: what every value is a multiple of, and how many elements
    one ragged offset counts (cuDNN 9.24). ``in_memory`` is of a virtual tensor that has memory nonetheless, such as a
    slice that is read where the whole is. ``owner`` is a weak reference to the graph, None before it is in one.
    """

    __slots__ = (
        "__weakref__",
        "alignment",
        "alignment_value",
        "by_value",
        "data_type",
        "dim",
        "dim_given",
        "in_memory",
        "name",
        "owner",
        "ragged_offset",
        "ragged_offset_multiplier",
        "reordering",
        "scalar_type",
        "stride",
        "stride_given",
        "uid",
        "uid_given",
        "value",
        "vector_count",
        "vector_dimension",
        "virtual",
    )

    def __init__(
        self,
        dim: Iterable[int] = (),
        stride: Iterable[int] = (),
        data_type: data_type = data_type.NOT_SET,
        is_virtual: bool = False,
        is_pass_by_value: bool = False,
        ragged_offset: tensor | None = None,
        reordering_type: tensor_reordering = tensor_reordering.NONE,
        name: str = "",
        uid: int = 0,
        *,
        pass_by_value: float | int | None = None,
        uid_assigned: bool = False,
        dim_assigned: bool = False,
        stride_assigned: bool = False,
        ragged_offset_multiplier: int = 1,
        alignment_value: int = 1,
        scalar_type: scalar_type | None = None,
        owner: Callable[[], Any] | None = None,
    ) -> None:
        self.dim = to_int_list("dim", dim)
        self.stride = to_int_list("stride", stride)
        self.data_type = data_type
        self.virtual = bool(is_virtual)
        self.by_value = bool(is_pass_by_value)
        self.in_memory = False
        self.value = pass_by_value
        self.scalar_type = _RUNTIME_SCALAR if scalar_type is None else scalar_type
        self.ragged_offset = ragged_offset
        self.reordering = reordering_type
        self.name = name
        self.uid = uid
        self.uid_given = uid_assigned or uid != 0
        self.alignment = 16
        self.alignment_value = to_int("alignment_value", alignment_value)
        self.ragged_offset_multiplier = to_int("ragged_offset_multiplier", ragged_offset_multiplier)
        self.dim_given = dim_assigned or bool(self.dim)
        self.stride_given = stride_assigned or bool(self.stride)
        self.owner = owner
        self.vector_count = 1
        self.vector_dimension = -1

    def __repr__(self) -> str:
        told = (
            *("name", "data_type", "dim", "stride", "is_virtual", "is_pass_by_value", "pass_by_value", "uid"),
            *("uid_assigned", "dim_assigned", "stride_assigned", "reordering_type", "ragged_offset"),
            *("ragged_offset_multiplier", "alignment_value", "scalar_type"),
        )
        return f"Tensor({', '.join(f'{name}={getattr(self, name)!r}' for name in told)})"

    def to_json(self) -> dict[str, Any]:
        """Return the tensor as plain data, in cudnn-frontend's terms."""
        return {
            "name": self.name,
            "dim": self.dim,
            "stride": self.stride,
            "data_type": None if self.data_type == data_type.NOT_SET else self.data_type.name,
            "is_virtual": self.virtual,
            "is_pass_by_value": self.by_value,
            "pass_by_value": _value_to_json(self.value),
            "reordering_type": self.reordering.name,
            "uid": self.uid,
            "uid_assigned": self.uid_given,
            "alignment": self.alignment,
            "ragged_offset_multiplier": self.ragged_offset_multiplier,
            **({} if self.vector_count == 1 else {"vector": [self.vector_count, self.vector_dimension]}),
            **({} if self.ragged_offset is None else {"ragged_offset_uid": self.ragged_offset.uid}),
        }

    def set_dim(self, dim: Iterable[int]) -> Self:
        """Set the sizes, a list, tuple or ``torch.Size``."""
        return self._set_fields("set_dim", dim=to_int_list("dim", dim), dim_given=True)

    def set_stride(self, stride: Iterable[int]) -> Self:
        """Set the strides in elements."""
        return self._set_fields("set_stride", stride=to_int_list("stride", stride), stride_given=True)

    def set_name(self, name: str) -> Self:
        """Set the name; a renamed tensor moves to the end of the graph's list, as in cudnn-frontend."""
        is_other = check_instance("name", name, str, "a text") != self.name
        self._set_fields("set_name", name=name)
        if is_other and (graph := self._get_owner_graph()) is not None:
            graph.record.move_to_end(self)
        return self

    def set_uid(self, uid: int) -> Self:
        """Set the uid; a tensor of the graph that got the same uid automatically is given a new one.

        Raises
        ------
        ValueError
            If a program gave it to another tensor of the graph.
        """
        self._notify_graph_before_change("set_uid", uid=to_int("uid", uid))
        graph = self._get_owner_graph()
        if graph is not None:
            graph.record.claim_uid(self, to_int("uid", uid))
        return self._set_fields("set_uid", uid=to_int("uid", uid), uid_given=True)

    def set_data_type(self, dtype: Any = data_type.NOT_SET, *, data_type: Any = None) -> Self:
        """Set the type of the elements: a ``cudnn.data_type`` or a torch dtype."""
        return self._set_fields("set_data_type", data_type=to_data_type(dtype if data_type is None else data_type))

    _set_data_type = set_data_type

    def set_output(self, value: bool) -> Self:
        """Make the tensor an output in memory, or a virtual tensor."""
        return self._set_fields("set_output", virtual=not value)

    def set_is_virtual(self, value: bool) -> Self:
        """Make the tensor virtual or not."""
        return self._set_fields("set_is_virtual", virtual=bool(value))

    def set_is_pass_by_value(self, value: bool) -> Self:
        """Make the tensor a scalar passed by the address of host memory, or not."""
        return self._set_fields("set_is_pass_by_value", by_value=bool(value))

    def set_ragged_offset(self, ragged_offset: tensor | None) -> Self:
        """Set the ragged offset tensor, which holds the position of each sequence's first element.

        Raises
        ------
        RuntimeError
            If its own offsets are this tensor, or lead back to it.
        """
        if ragged_offset is not None:
            link: tensor | None = check_instance("ragged_offset", ragged_offset, tensor, "a cudnn.tensor")
            while link is not None and link is not self:
                link = link.ragged_offset
            if link is self:
                raise make_invalid_value_error(
                    f"the ragged_offset of tensor {self.name!r} is {ragged_offset.name!r}, which refers back to it",
                    fix="give a separate INT32 or INT64 tensor with batch + 1 elements",
                )
        return self._set_fields("set_ragged_offset", ragged_offset=ragged_offset)

    def set_ragged_offset_multiplier(self, multiplier: int) -> Self:
        """Set the number of elements per unit of the ragged offsets; needs cuDNN 9.24."""
        count = to_int("ragged_offset_multiplier", multiplier)
        return self._set_fields("set_ragged_offset_multiplier", ragged_offset_multiplier=count)

    def set_alignment_value(self, value: int) -> Self:
        """Promise that every value is a multiple of `value`; cuDNN's graphs do not use this.

        Raises
        ------
        ValueError
            If it is below 1.
        """
        if to_int("alignment_value", value) < 1:
            raise make_attribute_not_set_error(f"alignment_value must be >= 1, got {value}", fix="give a positive int")
        return self._set_fields("set_alignment_value", alignment_value=to_int("alignment_value", value))

    def validate(self) -> None:
        """Check dims and strides.

        Raises
        ------
        TypeError
            For a kind of scalar that is none.
        ValueError
            If one is missing, they differ in length, or the tensor is both virtual and by value.
        """
        check_instance(f"scalar_type of {self.name!r}", self.scalar_type, scalar_type, "a cudnn.scalar_type")
        sizes = {"dims": self.dim, "strides": self.stride}
        missing = " and ".join(f"{what} not set" for what, given in sizes.items() if not given)
        if missing or len(self.dim) != len(self.stride):
            raise make_attribute_not_set_error(
                f"tensor {self.name!r} must have as many strides as dims, got {self.dim} and {self.stride}: "
                f"{missing or 'there is a mismatch of lengths'}",
                fix="call set_dim(...) and set_stride(...) with equally many numbers",
            )
        if self.virtual and self.by_value:
            raise make_attribute_not_set_error(
                f"tensor {self.name!r} can't be both virtual and by value (pass_by_value)",
                fix="call set_output(True), after which it is not virtual",
            )

    def set_reordering_type(self, reordering_type: tensor_reordering | None) -> Self:
        """Set the order of elements in memory, None for the plain order."""
        order = tensor_reordering.NONE if reordering_type is None else reordering_type
        check_instance("reordering_type", order, tensor_reordering, "a cudnn.tensor_reordering")
        return self._set_fields("set_reordering_type", reordering=order)

    def set_alignment(self, alignment: int) -> Self:
        """Set the alignment of the address in bytes."""
        return self._set_fields("set_alignment", alignment=to_int("alignment", alignment))

    def set_vector_count_and_dimension(self, count: int, dimension: int) -> Self:
        """Set how many elements are packed into one vector, and the dimension along which they are packed."""
        both = {"vector_count": to_int("count", count), "vector_dimension": to_int("dimension", dimension)}
        return self._set_fields("set_vector_count_and_dimension", **both)

    def get_dim(self) -> list[int]:
        """Return the dims; those of a result are inferred where possible."""
        return list(self.dim if self._are_sizes_set_by_user(self.dim) else self.infer_dims_and_strides()[0])

    def get_stride(self) -> list[int]:
        """Return the strides in elements, inferred as in :meth:`get_dim`."""
        return list(self.stride if self._are_sizes_set_by_user(self.stride) else self.infer_dims_and_strides()[1])

    def _set_fields(self, method: str, **values: Any) -> Self:
        self._notify_graph_before_change(method, **values)
        for name, value in values.items():
            setattr(self, name, value)
        return self

    def _notify_graph_before_change(self, method: str, **values: Any) -> None:
        """Notify the tensor's graph before a change; the graph may raise an error."""
        changes = any(getattr(self, name) != value for name, value in values.items() if not name.endswith("_given"))
        if changes and (graph := self._get_owner_graph()) is not None:
            graph.record.notify_graph_of_change(f"{method} of tensor {self.name!r} changes", self)

    def _get_owner_graph(self) -> Any:
        return None if self.owner is None else self.owner()

    def _are_sizes_set_by_user(self, sizes: list[int]) -> bool:
        graph = self._get_owner_graph()
        return bool(sizes) and (graph is None or self not in graph.record.shown_results)

    def infer_dims_and_strides(self) -> tuple[list[int], list[int]]:
        """Return the dims and strides inferred so far, empty where unknown."""
        graph = self._get_owner_graph()
        return ([], []) if graph is None else graph.infer_dims_and_strides(self)

    def get_name(self) -> str:
        """Return the name."""
        return self.name

    def get_uid(self) -> int:
        """Return the uid, 0 if there is none yet."""
        return self.uid

    def get_data_type(self) -> data_type:
        """Return the type of the elements."""
        return self.data_type

    def get_is_virtual(self) -> bool:
        """Return whether the tensor exists only inside the graph."""
        return self.virtual

    def get_is_pass_by_value(self) -> bool:
        """Return whether the tensor is a scalar passed by the address of host memory."""
        return self.by_value

    def get_has_compile_time_constant(self) -> bool:
        """Return whether the tensor's value is fixed in the plan."""
        return self.scalar_type is scalar_type.COMPILE_TIME_CONST

    def get_ragged_offset(self) -> tensor | None:
        """Return the ragged offset tensor, which holds the position of each sequence's first element."""
        return self.ragged_offset

    def get_ragged_offset_multiplier(self) -> int:
        """Return the number of elements per unit of the ragged offsets."""
        return self.ragged_offset_multiplier

    def get_reordering_type(self) -> tensor_reordering:
        """Return the order of elements in memory."""
        return self.reordering

    def get_alignment(self) -> int:
        """Return the alignment of the address in bytes."""
        return self.alignment

    def get_vector_count(self) -> int:
        """Return the number of elements packed into one vector."""
        return self.vector_count

    def get_vector_dimension(self) -> int:
        """Return the dimension along which elements are packed into vectors."""
        return self.vector_dimension

    # cudnn-frontend's names of the attributes, to read

    @property
    def is_virtual(self) -> bool:
        """Whether the tensor exists only inside the graph."""
        return self.virtual

    @property
    def is_pass_by_value(self) -> bool:
        """Whether the tensor is a scalar passed by the address of host memory."""
        return self.by_value

    @property
    def pass_by_value(self) -> float | int | None:
        """The scalar's value, if it is part of the graph."""
        return self.value

    @property
    def reordering_type(self) -> tensor_reordering | None:
        """The order of elements in memory, None for the plain order."""
        return None if self.reordering == tensor_reordering.NONE else self.reordering

    @property
    def uid_assigned(self) -> bool:
        """Whether a program set the uid."""
        return self.uid_given

    @property
    def dim_assigned(self) -> bool:
        """Whether a program set the dims."""
        return self.dim_given

    @property
    def stride_assigned(self) -> bool:
        """Whether a program set the strides."""
        return self.stride_given
