"""Read the address of a buffer from DLPack, ``__cuda_array_interface__`` or an int, without copying."""

from __future__ import annotations

import ctypes
from typing import Any

from ..errors import UsageError
from ..frozen import FrozenValue
from ..graph.strides import packed_strides
from ..native.cuda import on_device
from ..native.fast_call import DlpackExchange

__all__ = [
    "DL_TYPES",
    "DeviceBuffer",
    "find_dlpack_exchange",
    "get_buffer_address",
    "get_dlpack_type_code",
    "get_host_address",
    "read_device_buffer",
    "read_dims_and_strides",
    "read_dlpack_facts",
    "register_c_tensor_reader",
]

DL_LEGACY_STREAM = 1
DL_CPU, DL_CUDA, DL_CUDA_HOST, DL_CUDA_MANAGED = 1, 2, 3, 13


class DeviceBuffer(FrozenValue):
    """Address, size, element type and GPU of a device buffer; None for facts that its source does not give.

    ``size_bytes`` spans the first to the last element.
    """

    ptr: int
    size_bytes: int | None = None
    element_bits: int | None = None
    type_text: str = ""
    device: int | None = None

    @property
    def kind(self) -> str | None:
        """``float``, ``bfloat``, ``int``, ``uint``, ``complex`` or ``bool``; None if unknown."""
        if not self.type_text:
            return None
        word = self.type_text.rstrip("0123456789")
        return _INTERFACE_KINDS.get(word[1:]) if word[:1] in "<>|=" else word if word in DL_TYPES else None


class _DLDevice(ctypes.Structure):
    _fields_ = (("kind", ctypes.c_int32), ("ordinal", ctypes.c_int32))


class _DLDataType(ctypes.Structure):
    _fields_ = (("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16))


class _DLTensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device", _DLDevice),
        ("ndim", ctypes.c_int32),
        ("dtype", _DLDataType),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


_get_capsule_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_get_capsule_pointer.restype = ctypes.c_void_p
_get_capsule_pointer.argtypes = [ctypes.py_object, ctypes.c_char_p]

_INTERFACE_KINDS = {"f": "float", "i": "int", "u": "uint", "c": "complex", "b": "bool"}
DL_TYPES = ("int", "uint", "float", "opaque", "bfloat", "complex", "bool")


class _DLPackExchangeApi(ctypes.Structure):
    """``DLPackExchangeAPI`` of DLPack 1.3: the C functions that a framework offers."""

    _fields_ = (
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("previous", ctypes.c_void_p),
        ("allocate", ctypes.c_void_p),
        ("export", ctypes.c_void_p),
        ("adopt", ctypes.c_void_p),
        ("read", ctypes.c_void_p),
        ("current_stream", ctypes.c_void_p),
    )


def find_dlpack_exchange(kind: type) -> DlpackExchange | None:
    """Return DLPack's C functions for a Python type; None if its framework has none (torch has them since 2.10)."""
    capsule = vars(kind).get("__dlpack_c_exchange_api__")  # the type's own: it is for no other
    if capsule is None:
        return None
    found = ctypes.cast(
        _get_capsule_pointer(capsule, b"dlpack_exchange_api"), ctypes.POINTER(_DLPackExchangeApi)
    ).contents
    if found.major != 1 or not found.read or not found.current_stream:
        return None
    read, fetch = _compiled_readers.get(kind, (found.read, None))
    return DlpackExchange(kind, read, fetch, found.current_stream)


_compiled_readers: dict[type, tuple[int, int]] = {}


def register_c_tensor_reader(kind: type, read: int, fetch: int) -> None:
    """Register C functions that read objects of a Python type faster than its framework's DLPack functions."""
    _compiled_readers[kind] = read, fetch


class TensorFacts(FrozenValue):
    """Dims, strides in elements, type (such as ``float16``) and location of a tensor, read by DLPack."""

    dims: tuple[int, ...]
    strides: tuple[int, ...]
    type_text: str
    on_host: bool


def get_host_address(array: Any) -> int:
    """Return the host address of a NumPy array's data."""
    return int(array.ctypes.data)


def get_buffer_address(source: Any, name: str) -> int:
    """Return the device address of a buffer; integer addresses and torch tensors are not checked.

    Raises
    ------
    UsageError
        As :func:`device_buffer`, for what is neither.
    """
    if type(source) is int:
        return source
    try:
        return int(source.data_ptr())
    except AttributeError:
        return read_device_buffer(source, name).ptr


def read_device_buffer(source: Any, name: str, *, host: bool = False) -> DeviceBuffer:
    """Return the device buffer of `source`; with `host`, host memory is accepted as well.

    Raises
    ------
    UsageError
        ``buffer-not-on-device`` for host memory, ``buffer-not-understood`` for anything else, ``null-pointer``.
    """
    if isinstance(source, int) and not isinstance(source, bool):
        buffer = DeviceBuffer(source)
    elif hasattr(source, "__dlpack__"):
        buffer = _read_dlpack(source, name, host)
    elif hasattr(source, "__cuda_array_interface__"):
        buffer = _read_array_interface(source)
    else:
        raise UsageError(
            f"buffer {name!r} is a {type(source).__name__}, which has no DLPack and no __cuda_array_interface__, "
            "and is no address",
            code="buffer-not-understood",
            fix="give a tensor in GPU memory, such as one of torch, CuPy or JAX, or its address as an int",
        )
    if buffer.ptr <= 0:
        raise UsageError(
            f"buffer {name!r} has the invalid address {buffer.ptr}, one above 0 is needed",
            code="null-pointer",
            fix="give allocated GPU memory; an empty tensor has none",
        )
    return buffer


def _read_dlpack(source: Any, name: str, host: bool) -> DeviceBuffer:
    kind, _ = source.__dlpack_device__()
    on_host = int(kind) not in (DL_CUDA, DL_CUDA_MANAGED)
    if on_host and not host:
        raise UsageError(
            f"buffer {name!r} is in host memory (DLPack device {int(kind)}), CUDA memory is needed",
            code="buffer-not-on-device",
            fix="move it to the GPU, or give a NumPy array to be copied",
        )
    tensor = _read_dl_tensor(source, on_host)
    rank = tensor.ndim
    shape = tensor.shape[:rank]
    strides = tensor.strides[:rank] if tensor.strides else None
    bits = tensor.dtype.bits * tensor.dtype.lanes
    size = _count_span_elements(shape, strides) * bits // 8
    place = None if on_host else tensor.device.ordinal
    return DeviceBuffer((tensor.data or 0) + tensor.byte_offset, size, bits, _format_type(tensor), place)


def read_dlpack_facts(source: Any) -> TensorFacts:
    """Return dims, strides and type of a DLPack object."""
    kind, _ = source.__dlpack_device__()
    on_host = int(kind) in (DL_CPU, DL_CUDA_HOST)
    tensor = _read_dl_tensor(source, on_host)
    rank = tensor.ndim
    dims = tuple(tensor.shape[:rank])
    strides = tuple(tensor.strides[:rank]) if tensor.strides else packed_strides(dims)[:rank]
    return TensorFacts(dims, strides, _format_type(tensor), int(kind) == DL_CPU)


def read_dims_and_strides(source: Any) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return dims and strides, in elements, of a torch tensor or another DLPack object."""
    try:
        return tuple(source.shape), source.stride()
    except (AttributeError, TypeError):  # not torch's
        facts = read_dlpack_facts(source)
        return facts.dims, facts.strides


def _read_dl_tensor(source: Any, on_host: bool) -> Any:
    """Return the ``DLTensor`` of an object; it is valid while `source` is alive."""
    detached = source.detach() if hasattr(source, "detach") else source
    capsule = detached.__dlpack__() if on_host else _make_device_capsule(detached)
    tensor: Any = ctypes.cast(_get_capsule_pointer(capsule, b"dltensor"), ctypes.POINTER(_DLTensor)).contents
    tensor.capsule = capsule  # stays unconsumed, owns the DLTensor, and frees it with this value
    return tensor


def _format_type(tensor: Any) -> str:
    code = tensor.dtype.code
    return f"{DL_TYPES[code] if code < len(DL_TYPES) else code}{tensor.dtype.bits}"


def _make_device_capsule(source: Any) -> Any:
    """Return the DLPack capsule of a device array without waiting; for JAX, the default stream waits for it."""
    try:
        return source.__dlpack__(stream=-1)
    except BufferError:  # torch, for a GPU that is not the current one
        _, ordinal = source.__dlpack_device__()
        with on_device(ordinal):
            return source.__dlpack__(stream=-1)
    except RuntimeError:
        return source.__dlpack__(stream=DL_LEGACY_STREAM)


def get_dlpack_type_code(kind: str) -> int:
    """Return DLPack's type code of a type's name such as ``float``."""
    return DL_TYPES.index(kind)


def _read_array_interface(source: Any) -> DeviceBuffer:
    interface = source.__cuda_array_interface__
    type_text = interface["typestr"]
    item_bytes = int(type_text[2:])
    strides = interface.get("strides")
    elements = None if strides is None else [stride // item_bytes for stride in strides]
    size = _count_span_elements(interface["shape"], elements) * item_bytes
    return DeviceBuffer(int(interface["data"][0]), size, item_bytes * 8, type_text)


def _count_span_elements(shape: Any, strides: Any) -> int:
    """Return the number of elements from the first to the last one; `strides` None means row-major."""
    count: int = 1
    for dim in shape:
        count *= dim
    if strides is None or count == 0:
        return count
    return 1 + sum(int(dim - 1) * int(stride) for dim, stride in zip(shape, strides, strict=True))
