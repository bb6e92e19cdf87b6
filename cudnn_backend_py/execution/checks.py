"""Checks of buffers and by-value scalars against the tensors of a graph."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import TYPE_CHECKING, Any

from ..errors import UsageError
from ..generated.enums import DataType
from ..graph.booleans import PACK_BOOLEANS
from ..graph.data_types import DATA_TYPES, ELEMENT_BITS
from ..graph.ir import Tensor
from ..native.cuda import query_pointer
from ..native.fast_call import BufferRequirement
from .buffers import DL_TYPES, DeviceBuffer, get_dlpack_type_code, read_device_buffer

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = [
    "check_buffer",
    "compute_scratch_offsets",
    "get_buffer_requirements",
    "locate_buffer",
    "locate_workspace",
    "make_scalar_array",
]


# The NumPy types of host scalars; the bits of a bfloat16 are made from a float64.
_SCALAR_TYPES = {
    kind: "float64" if kind is DataType.BFLOAT16 else facts.storage
    for kind, facts in DATA_TYPES.items()
    if facts.dlpack and facts.kind != "boolean"
}


SCRATCH_ALIGNMENT = 128  # bytes, of each scratch tensor in front of a plan's workspace


def compute_scratch_offsets(tensors: Iterable[Tensor]) -> tuple[dict[int, int], int]:
    """Return the byte offset of each scratch tensor, by uid, and the total bytes; a plan's workspace follows."""
    offsets: dict[int, int] = {}
    size = 0
    for item in tensors:
        if item.scratch:
            offsets[item.uid] = size
            size += -(-item.span_bytes // SCRATCH_ALIGNMENT) * SCRATCH_ALIGNMENT
    return offsets, size


def make_scalar_array(tensor: Tensor, value: Any) -> NDArray[Any]:
    """Return the number for a by-value tensor as a host array.

    Raises
    ------
    UsageError
        ``by-value-type``, ``by-value-size``.
    """
    import numpy as np  # many programs give no number

    from ..graph.formats import encode

    kind = _SCALAR_TYPES.get(tensor.data_type)
    if kind is None:
        raise UsageError(
            f"by-value tensor {tensor.name!r} is {tensor.data_type.name}, which cannot be given from the host",
            code="by-value-type",
            fix=f"use one of {', '.join(one.name for one in _SCALAR_TYPES)}",
        )
    given = np.asarray(value)
    if given.size != 1:
        raise UsageError(
            f"by-value tensor {tensor.name!r} takes one number, got {given.size} numbers", code="by-value-size"
        )
    with np.errstate(over="ignore", invalid="ignore"):
        array = given.astype(kind) if given.dtype.kind in "biuf" else np.empty(0, kind)
    fits = array.size == 1 and (array.dtype.kind == "f" or bool(np.all(array == given)))
    if not fits:
        raise UsageError(
            f"by-value tensor {tensor.name!r} is {tensor.data_type.name}, which cannot hold {value!r}",
            code="by-value-type",
        )
    return encode(array, DataType.BFLOAT16) if tensor.data_type is DataType.BFLOAT16 else array


def locate_buffer(tensor: Tensor, source: Any, device: int | None) -> DeviceBuffer:
    """Return the address of a buffer, checked against its tensor and against what CUDA knows about the address.

    Parameters
    ----------
    device
        The GPU that will read it; None asks CUDA nothing.

    Raises
    ------
    UsageError
        ``buffer-not-understood``, ``buffer-not-on-device``, ``buffer-of-another-device``, ``null-pointer``, and those
        of :func:`check_buffer`.
    """
    buffer, name = read_device_buffer(source, tensor.name), tensor.name
    check_buffer(tensor, buffer)
    if device is not None:
        facts = query_pointer(buffer.ptr)
        if facts.kind == "unknown":
            raise UsageError(
                f"buffer {name!r} is at {buffer.ptr:#x}, which is not GPU memory",
                code="buffer-not-on-device",
                fix="give device memory that is still allocated",
            )
        if facts.kind == "device" and facts.device not in (None, device):
            raise UsageError(
                f"buffer {name!r} is on GPU {facts.device}, the plan runs on GPU {device}",
                code="buffer-of-another-device",
            )
        if buffer.size_bytes is None and facts.bytes_left is not None:
            buffer = DeviceBuffer(buffer.ptr, facts.bytes_left)
            check_buffer(tensor, buffer)
    return buffer


def locate_workspace(source: Any, needed_bytes: int) -> int:
    """Return the device address of a workspace of at least the given bytes.

    Raises
    ------
    UsageError
        ``workspace-missing`` for None, ``buffer-too-small``, and those of :func:`.buffers.device_buffer`.
    """
    if source is None:
        raise UsageError(
            f"the workspace function returned None, but {needed_bytes} bytes are needed", code="workspace-missing"
        )
    buffer = read_device_buffer(source, "workspace")
    if buffer.size_bytes is not None and buffer.size_bytes < needed_bytes:
        raise UsageError(
            f"the workspace must have {needed_bytes} bytes, got {buffer.size_bytes}", code="buffer-too-small"
        )
    return buffer.ptr


def check_buffer(tensor: Tensor, buffer: DeviceBuffer) -> None:
    """Check alignment, type and size of a device buffer against its tensor, as the compiled call does.

    Raises
    ------
    UsageError
        ``buffer-misaligned``, ``buffer-type``, ``buffer-too-small``.
    """
    name = tensor.name
    span_bytes, alignment, bits, codes = get_buffer_requirements(tensor)
    if buffer.ptr % alignment:
        raise UsageError(
            f"buffer {name!r} is at address {buffer.ptr:#x}, but its address must be a multiple of {alignment}",
            code="buffer-misaligned",
        )
    if bits and buffer.element_bits not in (None, bits):
        raise UsageError(
            f"buffer {name!r} has elements of {buffer.element_bits} bits ({buffer.type_text}), "
            f"{tensor.data_type.name} has {bits}",
            code="buffer-type",
        )
    if (
        codes
        and buffer.element_bits is not None
        and buffer.kind is not None
        and get_dlpack_type_code(buffer.kind) not in codes
    ):
        packed = tensor.data_type is DataType.BOOLEAN
        raise UsageError(
            f"buffer {name!r} holds {buffer.type_text}, {tensor.data_type.name} is needed"
            + ", of which eight are in a byte" * packed,
            code="buffer-type",
            fix=PACK_BOOLEANS
            if packed
            else "convert it, or view it as unsigned integers of the same size to pass raw bits",
        )
    if buffer.size_bytes is not None and buffer.size_bytes < span_bytes:
        raise UsageError(
            f"buffer {name!r} has {buffer.size_bytes} bytes, {span_bytes} are needed for {tensor.type_text} "
            f"with strides {tensor.strides}",
            code="buffer-too-small",
        )


def get_buffer_requirements(tensor: Tensor) -> BufferRequirement:
    """Return the bytes, alignment and type that a buffer of a tensor needs."""
    # A ragged tensor's dims are bounds; how far its sequences reach is in its offsets.
    span_bytes = 0 if tensor.ragged_offset is not None else tensor.span_bytes
    return span_bytes, tensor.alignment, *_get_needed_dlpack_type(tensor.data_type)


@cache
def _get_needed_dlpack_type(data_type: DataType) -> tuple[int, frozenset[int]]:
    """Return an element's bits and the DLPack type codes a buffer may have; 0 bits and no codes allow any type.

    Types of less than a byte are packed, so elements of a buffer may be anything but booleans for booleans.
    """
    bits, every = ELEMENT_BITS[data_type], frozenset(range(32))
    if bits < 8:
        return 0, every - {get_dlpack_type_code("bool")} if data_type is DataType.BOOLEAN else frozenset()
    kind = DATA_TYPES[data_type].dlpack.rstrip("0123456789")
    known = frozenset(map(get_dlpack_type_code, DL_TYPES))
    return bits, every - (known - {get_dlpack_type_code(kind), get_dlpack_type_code("uint")} if kind else frozenset())
