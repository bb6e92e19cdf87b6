"""A described GPU for torch: "cuda" tensors are meta tensors, so programs run until they need numbers.

Small tensors keep their values next to them (their *shadow*, an ordinary CPU tensor on which every operation is done
as well), since programs make lengths and offsets on the GPU and read them back. A number that is read from a tensor
without a shadow is 1, a mask without one chooses all; a larger array that is read back ends the program with
:class:`UnknownValuesError`.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import math
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any, cast

import numpy
import torch
from torch.fx.experimental import _config as sizes
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack
from torch.utils._device import DeviceContext, _device_constructors

from ..system.interruption import reraise_interruption
from .described_autocast import select_autocast_type
from .described_cuda import CUDA_DEVICE, Profile, check_ordinal, make_no_op, patch_torch_cuda

__all__ = ["UnknownValuesError", "install"]

MAX_CPU_COPY_ELEMENTS = 1 << 14
META_DEVICE = torch.device("meta")
CPU_DEVICE = torch.device("cpu")
DLPACK_CUDA_TYPE = 2

_thread_state = threading.local()
_storage_addresses: dict[int, tuple[int, int]] = {}  # of storages: where they are, and up to how many bytes
_next_address = [0x700000000000]
_ADDRESS_ALIGNMENT = 1 << 21
_torch_device = torch._C.TensorBase.device
_VALUE_READING_METHODS = frozenset({"cpu", "numpy", "tolist", "__array__"})
_NUMBER_READING_METHODS = frozenset(
    {"item", "__bool__", "__int__", "__float__", "__index__", "equal", "allclose", "is_nonzero"}
)
_FILLING_METHODS = frozenset({"normal_", "uniform_", "random_", "fill_", "zero_", "bernoulli_", "exponential_"})
_SIZED_FACTORIES = frozenset({"rand", "randn", "empty", "zeros", "ones", "full"})


class UnknownValuesError(BaseException):
    """Raised when a program reads values that only a real GPU could have computed."""


def _is_meta(value: Any) -> bool:
    kind = isinstance(value, torch.Tensor) and _torch_device.__get__(value).type
    return bool(kind == "meta")


def _get_cpu_copy(tensor: torch.Tensor) -> torch.Tensor | None:
    return tensor.__dict__.get("_compat_shadow")


def _set_cpu_copy(tensor: torch.Tensor, shadow: torch.Tensor | None) -> None:
    tensor.__dict__["_compat_shadow"] = shadow


def _is_cuda_name(value: Any) -> bool:
    if isinstance(value, torch.device):
        return bool(value.type == "cuda")
    return isinstance(value, str) and (value == "cuda" or value.startswith("cuda:"))


def _is_device_index(value: Any) -> bool:
    """Return whether a device is given as an int, which means a GPU."""
    return isinstance(value, int) and not isinstance(value, bool)


def _convert_device_index(name: str, position: int, argument: Any) -> Any:
    """Convert a GPU number given to ``Tensor.to`` or ``Module.to`` to a device; return other arguments unchanged."""
    known = {"to": 1, "_parse_to": 0}.get(name) == position and _is_device_index(argument)
    return torch.device("cuda", argument) if known else argument


def _map_leaves(value: Any, change: Callable[[Any], Any]) -> Any:
    if isinstance(value, (list, tuple)) and not isinstance(value, torch.Size):
        changed = [_map_leaves(item, change) for item in value]
        return type(value)(*changed) if hasattr(value, "_fields") else type(value)(changed)
    if isinstance(value, slice):
        return slice(change(value.start), change(value.stop), change(value.step))
    return change(value)


def _iterate_leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, (list, tuple)):
        for item in value:
            yield from _iterate_leaves(item)
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _iterate_leaves(item)
    elif isinstance(value, slice):
        yield from (value.start, value.stop, value.step)
    else:
        yield value


class _NoCpuCopyError(Exception):
    """Raised for a tensor with unknown values: large tensors have no copy on the CPU."""


def _to_cpu_copy(value: Any) -> Any:
    if _is_meta(value):
        shadow = _get_cpu_copy(value)
        if shadow is None:
            raise _NoCpuCopyError
        return shadow
    return CPU_DEVICE if _is_cuda_name(value) or (isinstance(value, torch.device) and value.type == "meta") else value


def _to_meta_device(value: Any) -> Any:
    if not _is_cuda_name(value):
        return value
    check_ordinal(torch.device(value).index or 0)
    return META_DEVICE


def _to_meta_tensor(value: Any) -> Any:
    return torch.empty_like(value, device=META_DEVICE) if isinstance(value, torch.Tensor) else value


def _read_scalar(value: Any) -> Any:
    """Return the number in a tensor without dims, 1 if it is unknown; other values are returned unchanged."""
    if not _is_meta(value) or value.dim():
        return value
    shadow = _get_cpu_copy(value)
    return 1 if shadow is None else shadow.item()


_TENSOR_TEXT_OPTIONS = re.compile(r"(?=, (?:dtype|size|requires_grad|grad_fn)=|\)$)")


def _format_tensor(func: Any, tensor: torch.Tensor, **options: Any) -> str:
    """Return torch's text of a tensor on a GPU, with its values if they are known."""
    shadow = _get_cpu_copy(tensor)
    if shadow is None:
        return str(func(tensor, **options)).replace("device='meta'", f"device='{CUDA_DEVICE}'")
    return _TENSOR_TEXT_OPTIONS.sub(f", device='{CUDA_DEVICE}'", repr(shadow), count=1)


def _convert_tensor_size_if_known(value: Any) -> Any:
    """Convert a size given as a tensor to an int if its value is known; else return it unchanged."""
    known = _is_meta(value) and value.dim() == 0 and _get_cpu_copy(value) is not None
    return int(_to_cpu_copy(value)) if known else value


_torch_start_thread = threading.Thread.start


def _start_thread_with_described_gpu(self: threading.Thread) -> None:
    """Replacement of a thread's start, after which torch sees the described GPU in the new thread, too."""
    run = self.run

    def run_with_described_gpu() -> None:
        with _CudaAsMetaMode():
            run()

    if self.ident is None:  # else it was started before, which is the error that comes
        self.run = run_with_described_gpu  # type: ignore[method-assign]
    _torch_start_thread(self)


def _resolve_slice_bounds(index: Any) -> Any:
    """Return an index with tensors that are slice bounds replaced by ints, where their values are known."""
    if isinstance(index, tuple):
        return tuple(_resolve_slice_bounds(item) for item in index)
    return _map_leaves(index, _convert_tensor_size_if_known) if isinstance(index, slice) else index


def _get_default_device() -> Any:
    """Return the device of ``torch.set_default_device`` or ``with torch.device(...)``, None if there is neither."""
    contexts = (mode.device for mode in _get_current_function_mode_stack() if isinstance(mode, DeviceContext))
    return next(contexts, None)


def _normalize_devices(
    func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    """Return a call with device numbers replaced by devices, and ``x.cuda()`` replaced by ``x.to("cuda")``."""
    name = getattr(func, "__name__", "")
    if name == "cuda" and args and isinstance(args[0], torch.Tensor):
        where = next((item for item in (*args[1:], kwargs.get("device")) if type(item) is not bool), None)
        func, args, kwargs, name = torch.Tensor.to, (args[0], CUDA_DEVICE if where is None else where), {}, "to"
    if _is_device_index(kwargs.get("device")):
        kwargs["device"] = torch.device("cuda", kwargs["device"])
    return func, tuple(_convert_device_index(name, at, arg) for at, arg in enumerate(args)), kwargs


def _is_on_gpu(leaf: Any) -> bool:
    """Return whether an argument is a tensor on the GPU, or names the GPU."""
    return _is_meta(leaf) or _is_cuda_name(leaf) or (isinstance(leaf, torch.device) and leaf == META_DEVICE)


class _CudaAsMetaMode(TorchFunctionMode):  # type: ignore[misc]
    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        depth = getattr(_thread_state, "depth", 0)
        _thread_state.depth = depth + 1
        try:
            return self._run_call(func, args, dict(kwargs or {}))
        finally:
            _thread_state.depth = depth

    def _run_call(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run a torch call and return its result as on a machine with the described GPU."""
        if func is torch.device:
            return torch.device("cuda", *args) if args and _is_device_index(args[0]) else func(*args, **kwargs)
        func, args, kwargs = _normalize_devices(func, args, kwargs)
        name = getattr(func, "__name__", "")
        if name in ("pin_memory", "is_pinned") and not _is_meta(args[0]):
            return _mark_pinned(args[0].detach()) if name == "pin_memory" else hasattr(args[0], "_compat_pinned")
        if name == "get_device" and _is_meta(args[0]):
            return 0
        if name == "type":
            return self._convert_type(func, *args, **kwargs)
        pinned = kwargs.pop("pin_memory", False)
        if func in _device_constructors() and kwargs.get("device") is None and _is_cuda_name(_get_default_device()):
            kwargs["device"] = CUDA_DEVICE
        leaves = list(_iterate_leaves((args, kwargs)))
        if any(_is_on_gpu(leaf) for leaf in leaves):
            return self._run_on_gpu(func, args, kwargs, [leaf for leaf in leaves if _is_meta(leaf)])
        made = func(*args, **kwargs)
        return _mark_pinned(made) if pinned else made

    def _run_on_gpu(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], tensors: list[torch.Tensor]) -> Any:
        """Return the result of a call that names the GPU or has `tensors` on it."""
        name = getattr(func, "__name__", "")
        if name == "__reduce_ex__" and _is_meta(args[0]):
            return _reduce_tensor_for_pickle(args[0])
        if name in ("tensor", "as_tensor") and hasattr(args[0], "__cuda_array_interface__") and not _is_meta(args[0]):
            return _import_cuda_array(args[0].__cuda_array_interface__, kwargs.get("dtype"))
        if kwargs.get("out") is None and (kind := select_autocast_type(name, tensors)) is not None:
            args, kwargs = (
                self._cast_leaves(args, kind),
                {key: self._cast_leaves(item, kind) for key, item in kwargs.items()},
            )
        if name in _VALUE_READING_METHODS or (name == "to" and self._is_move_to_cpu(args, kwargs)):
            return self._read_values(func, args, kwargs)
        if name == "__repr__":
            return _format_tensor(func, *args, **kwargs)
        if name == "__iter__":
            return iter(self._compute_result(torch.Tensor.unbind, args, {}))
        if name in _NUMBER_READING_METHODS or (name == "__format__" and args[0].dim() == 0):
            return self._read_number(func, args, kwargs)
        return self._compute_result(func, args, kwargs)

    def _cast_leaves(self, value: Any, kind: Callable[[torch.Tensor], torch.dtype]) -> Any:
        def cast_leaf(leaf: Any) -> Any:
            known = _is_meta(leaf) and leaf.dtype != kind(leaf)
            return self._compute_result(torch.Tensor.to, (leaf, kind(leaf)), {}) if known else leaf

        return _map_leaves(value, cast_leaf)

    def _convert_type(self, func: Any, tensor: torch.Tensor, dtype: Any = None, *args: Any, **kwargs: Any) -> Any:
        """Handle ``tensor.type()`` and conversions to tensor types, on the CPU or the described GPU."""
        name = dtype if isinstance(dtype, str) else getattr(dtype, "__name__", "")
        if dtype is None:
            words = func(torch.empty(0, dtype=tensor.dtype))
            return words.replace("torch.", "torch.cuda.") if _is_meta(tensor) else words
        if isinstance(dtype, _LegacyTensorType) or name.startswith("torch.cuda."):
            kind = getattr(torch.cuda, name.rpartition(".")[2])
            return self._run_call(torch.Tensor.to, (tensor, CUDA_DEVICE, kind.dtype), {})
        if not isinstance(dtype, torch.dtype) and _is_meta(tensor):
            return self._run_call(torch.Tensor.cpu, (tensor,), {}).type(dtype)
        return self._run_call(torch.Tensor.to, (tensor, dtype), {}) if _is_meta(tensor) else func(tensor, dtype)

    @staticmethod
    def _is_move_to_cpu(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        return any(
            leaf == "cpu" or (isinstance(leaf, torch.device) and leaf.type == "cpu")
            for leaf in (*args[1:], *kwargs.values())
            if isinstance(leaf, (str, torch.device))
        )

    @staticmethod
    def _read_values(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        shadow = _get_cpu_copy(args[0]) if _is_meta(args[0]) else args[0]
        if shadow is None and args[0].numel() == 1:
            shadow = torch.ones(args[0].shape, dtype=args[0].dtype)
        if shadow is None:
            raise UnknownValuesError(
                f"the program needs {func.__name__} of a tensor of shape {tuple(args[0].shape)}, "
                "which only a GPU computes"
            )
        return func(shadow.clone(), *args[1:], **kwargs)

    @staticmethod
    def _read_number(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        try:
            return func(
                *_map_leaves(args, _to_cpu_copy),
                **{key: _map_leaves(item, _to_cpu_copy) for key, item in kwargs.items()},
            )
        except _NoCpuCopyError:
            one = torch.ones((), dtype=args[0].dtype)
            return func(one, *args[1:], **kwargs) if func.__name__ not in ("equal", "allclose") else True

    def _compute_result(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        name = getattr(func, "__name__", "")
        if (kernel := _find_program_kernel(func)) is not None:
            try:
                return func(*args, **kwargs)
            except NotImplementedError:  # only for CUDA, and without gradients
                return kernel(*args, **kwargs)
        shadow = self._compute_on_cpu_copies(func, args, kwargs)
        meta_kwargs = {key: _map_leaves(item, _to_meta_device) for key, item in kwargs.items() if key != "generator"}
        if name in _SIZED_FACTORIES:
            args = _map_leaves(args, _convert_tensor_size_if_known)
        if name in ("__getitem__", "__setitem__"):
            args = (args[0], _resolve_slice_bounds(args[1]), *args[2:])
        if name in ("tensor", "as_tensor"):
            result = torch.empty_like(shadow, device=META_DEVICE)
        elif name in _FILLING_METHODS and args and _is_meta(args[0]):
            result = args[0]
        elif name == "__setitem__":
            with contextlib.suppress(NotImplementedError, RuntimeError):
                func(*_map_leaves(args, _to_meta_device), **meta_kwargs)
            result = None
        else:
            result = self._compute_on_meta(func, _map_leaves(args, _to_meta_device), meta_kwargs, shadow)
        self._attach_cpu_copies(result, shadow, args)
        return result

    @staticmethod
    def _compute_on_meta(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], shadow: Any) -> Any:
        """Return the result of `func` on meta tensors; data-dependent sizes are those of the CPU result, else maximal.

        Raises
        ------
        UnknownValuesError
            Where there is no largest one.
        """
        try:
            return func(*args, **kwargs)
        except NotImplementedError:
            if shadow is not _UNKNOWN_VALUE:
                return _map_leaves(shadow, _to_meta_tensor)
            if not hasattr(sizes, "meta_nonzero_assume_all_nonzero"):  # torch 2.4
                raise
        except RuntimeError as error:
            if "a meta tensor" in str(error) and shadow is not _UNKNOWN_VALUE:  # repeat_interleave
                return _map_leaves(shadow, _to_meta_tensor)
            if "item() cannot be called" in str(error):  # a factor that is a tensor
                return func(
                    args[0],
                    *_map_leaves(args[1:], _read_scalar),
                    **{key: _map_leaves(item, _read_scalar) for key, item in kwargs.items()},
                )
            if "device meta" in str(error):
                words = str(error).replace("device meta", f"device {CUDA_DEVICE}")
                raise RuntimeError(words) from None
            raise
        with sizes.patch(meta_nonzero_assume_all_nonzero=True):
            try:
                return func(*args, **kwargs)
            except NotImplementedError:
                name = getattr(func, "__name__", func)
                raise UnknownValuesError(
                    f"the program needs the size of what {name} gives, which only a GPU computes"
                ) from None

    @staticmethod
    def _compute_on_cpu_copies(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Return the result of `func` on the CPU copies of small tensors; ``_UNKNOWN_VALUE`` if a tensor is large."""
        if not any(_is_meta(leaf) for leaf in _iterate_leaves((args, kwargs))) and _is_large_tensor_creation(
            func, args, kwargs
        ):
            return _UNKNOWN_VALUE
        try:
            return func(
                *_map_leaves(args, _to_cpu_copy),
                **{key: _map_leaves(item, _to_cpu_copy) for key, item in kwargs.items()},
            )
        except Exception as error:
            reraise_interruption(error)
            return _UNKNOWN_VALUE

    @staticmethod
    def _attach_cpu_copies(result: Any, shadow: Any, args: tuple[Any, ...]) -> None:
        if result is None and shadow is _UNKNOWN_VALUE and args and _is_meta(args[0]):
            _set_cpu_copy(args[0], None)
        results, shadows = list(_iterate_leaves(result)), list(_iterate_leaves(shadow))
        if len(results) != len(shadows):
            shadows = [_UNKNOWN_VALUE] * len(results)
        for one, value in zip(results, shadows, strict=True):
            if _is_meta(one):
                keep = isinstance(value, torch.Tensor) and value.numel() <= MAX_CPU_COPY_ELEMENTS
                _set_cpu_copy(one, value if keep else None)


_UNKNOWN_VALUE = object()


def _is_large_tensor_creation(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Return whether the tensor that a call creates, or copies from the CPU, is too large to keep its values."""
    for leaf in _iterate_leaves((args, kwargs)):
        if isinstance(leaf, torch.Tensor):
            return bool(leaf.numel() > MAX_CPU_COPY_ELEMENTS)
    name = getattr(func, "__name__", "")
    if name in ("tensor", "as_tensor", "arange", "linspace"):
        return False
    sizes = kwargs.get("size", args)
    if name in ("full", "randint"):
        sizes = next((item for item in (sizes, *args) if item is not args and isinstance(item, (list, tuple))), ())
    return math.prod(leaf for leaf in _iterate_leaves(sizes) if isinstance(leaf, int)) > MAX_CPU_COPY_ELEMENTS


# What a tensor says of itself


def _is_meta_as_seen_by_program(tensor: torch.Tensor) -> bool:
    return bool(not getattr(_thread_state, "depth", 0) and _torch_device.__get__(tensor).type == "meta")


def _wrap_without_overrides(getter: Callable[[torch.Tensor], Any]) -> Callable[[torch.Tensor], Any]:
    def get_without_overrides(tensor: torch.Tensor) -> Any:
        with torch._C.DisableTorchFunction():
            return getter(tensor)

    return get_without_overrides


def _get_tensor_device(tensor: torch.Tensor) -> torch.device:
    return CUDA_DEVICE if _is_meta_as_seen_by_program(tensor) else _torch_device.__get__(tensor)


def _is_cuda_tensor(tensor: torch.Tensor) -> bool:
    return _torch_device.__get__(tensor).type in (
        ("meta", "cuda") if _is_meta_as_seen_by_program(tensor) else ("cuda",)
    )


def _is_meta_tensor(tensor: torch.Tensor) -> bool:
    return not _is_meta_as_seen_by_program(tensor) and _torch_device.__get__(tensor).type == "meta"


_torch_data_ptr = torch._C.TensorBase.data_ptr


def _get_tensor_address(tensor: torch.Tensor) -> int:
    with torch._C.DisableTorchFunction():
        if _torch_device.__get__(tensor).type != "meta":
            return int(_torch_data_ptr(tensor))
        try:
            storage = tensor.untyped_storage()
        except NotImplementedError:  # a sparse tensor
            return int(_torch_data_ptr(tensor))
        return _get_made_up_address(storage) + int(tensor.storage_offset()) * int(tensor.element_size())


def _get_made_up_address(storage: torch.UntypedStorage) -> int:
    """Return a made-up unique address for a storage; it may be reused after the storage is freed."""
    address, size = _storage_addresses.get(storage._cdata, (0, -1))
    if size < storage.nbytes():
        address = _next_address[0]
        _storage_addresses[storage._cdata] = address, storage.nbytes()
        _next_address[0] += (storage.nbytes() // _ADDRESS_ALIGNMENT + 2) * _ADDRESS_ALIGNMENT
    return address


_torch_storage_data_ptr = torch.UntypedStorage.data_ptr


def _get_storage_address(storage: torch.UntypedStorage) -> int:
    return _get_made_up_address(storage) if storage.device.type == "meta" else int(_torch_storage_data_ptr(storage))


# DLPack of a tensor on the pretended device


class _DLTensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


class _DLManagedTensor(ctypes.Structure):
    _fields_ = (("tensor", _DLTensor), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p))


_torch_dlpack = torch.Tensor.__dlpack__
_torch_dlpack_device = torch.Tensor.__dlpack_device__
_torch_cuda_array = torch.Tensor.__cuda_array_interface__
_exported_tensors: list[Any] = []
_make_capsule = ctypes.pythonapi.PyCapsule_New
_make_capsule.restype = ctypes.py_object
_make_capsule.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]


def _get_dlpack_type(dtype: torch.dtype) -> tuple[int, int]:
    """Return DLPack's type code and bits per element for a dtype, as torch exports them."""
    probe = ctypes.pythonapi.PyCapsule_GetPointer
    probe.restype, probe.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    capsule = _torch_dlpack(torch.empty(1, dtype=dtype))
    tensor = _DLManagedTensor.from_address(probe(capsule, b"dltensor")).tensor
    return tensor.code, tensor.bits


def _export_dlpack(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
    with torch._C.DisableTorchFunction():
        if _torch_device.__get__(tensor).type != "meta":
            return _torch_dlpack(tensor, *args, **kwargs)
        address = _get_tensor_address(tensor)
        code, bits = _get_dlpack_type(tensor.dtype)
        dims = (ctypes.c_int64 * max(tensor.dim(), 1))(*tensor.shape)
        strides = (ctypes.c_int64 * max(tensor.dim(), 1))(*tensor.stride())
        view = _DLTensor(address, DLPACK_CUDA_TYPE, 0, tensor.dim(), code, bits, 1, dims, strides, 0)
        managed = _DLManagedTensor(view, None, None)
        _exported_tensors.append((managed, dims, strides))
        return _make_capsule(ctypes.addressof(managed), b"dltensor", None)


def _get_dlpack_device(tensor: torch.Tensor) -> Any:
    with torch._C.DisableTorchFunction():
        return (DLPACK_CUDA_TYPE, 0) if _torch_device.__get__(tensor).type == "meta" else _torch_dlpack_device(tensor)


def _get_cuda_array_interface(tensor: torch.Tensor) -> dict[str, Any]:
    with torch._C.DisableTorchFunction():
        if _torch_device.__get__(tensor).type != "meta":
            return cast(dict[str, Any], _torch_cuda_array.__get__(tensor))
        size = tensor.element_size()
        like = cast(dict[str, Any], torch.empty(1, dtype=tensor.dtype).numpy().__array_interface__)
        strides = None if tensor.is_contiguous() else tuple(step * size for step in tensor.stride())
        data = (_get_tensor_address(tensor) if tensor.numel() else 0, False)
        return {
            "typestr": like["typestr"],
            "shape": tuple(tensor.shape),
            "strides": strides,
            "data": data,
            "version": 2,
        }


_torch_from_dlpack = torch.from_dlpack


def _import_dlpack(source: Any, **options: Any) -> torch.Tensor:
    return source if _is_meta(source) else _torch_from_dlpack(source, **options)


def _import_cuda_array(facts: Mapping[str, Any], dtype: torch.dtype | None) -> torch.Tensor:
    """Return a tensor with the shape, strides and type in another library's ``__cuda_array_interface__``."""
    kind = torch.from_numpy(numpy.empty(0, facts["typestr"])).dtype
    made = torch.empty(tuple(facts["shape"]), dtype=kind, device=META_DEVICE)
    if facts.get("strides"):
        steps = [step // made.element_size() for step in facts["strides"]]
        made = torch.empty_strided(tuple(facts["shape"]), steps, dtype=kind, device=META_DEVICE)
    return made if dtype is None else made.to(dtype)


# Tensors in files


_load_state = threading.local()


def _reduce_tensor_for_pickle(tensor: torch.Tensor) -> Any:
    """Return the pickle state of a tensor on the GPU: its values if known, else its shape."""
    shadow = _get_cpu_copy(tensor)
    stand_in = torch.empty_strided(tensor.shape, (0,) * tensor.dim(), dtype=tensor.dtype) if shadow is None else shadow
    strides = tuple(tensor.stride()) if tensor.layout == torch.strided else None
    return _rebuild_tensor, (stand_in.detach(), strides, tensor.requires_grad, shadow is not None)


def _rebuild_tensor(
    values: torch.Tensor, strides: tuple[int, ...] | None, requires_grad: bool, known: bool
) -> torch.Tensor:
    if getattr(_load_state, "on_cpu", False):
        if not known:
            raise UnknownValuesError(
                f"the program needs a CPU copy of a tensor of shape {tuple(values.shape)}, which only a GPU computes"
            )
        return values.requires_grad_(requires_grad)
    made = torch.empty_like(values, device=META_DEVICE)
    if strides is not None and made.stride() != strides:
        made = torch.empty_strided(values.shape, strides, dtype=values.dtype, device=META_DEVICE)
    _set_cpu_copy(made, values if known else None)
    return made.requires_grad_(requires_grad)


_torch_load = torch.load


def _load_file(file: Any, map_location: Any = None, *args: Any, **options: Any) -> Any:
    where = map_location.get("cuda:0", "cuda") if isinstance(map_location, Mapping) else map_location
    if callable(where):
        where = where(_LoadedStorage(), "cuda:0")
        where = getattr(where, "place", where)
    _load_state.on_cpu = where is not None and not _is_cuda_name(where)
    try:
        loaded = _torch_load(file, CPU_DEVICE if where is None or _is_cuda_name(where) else where, *args, **options)
    finally:
        _load_state.on_cpu = False
    return _move_to_cuda(loaded) if _is_cuda_name(map_location) else loaded


class _LoadedStorage:
    """A storage read from a file, passed to a ``map_location`` function that may move it to the GPU."""

    place = "cpu"

    def cuda(self, *args: Any, **kwargs: Any) -> _LoadedStorage:
        self.place = "cuda"
        return self

    def cpu(self) -> _LoadedStorage:
        self.place = "cpu"
        return self


def _move_to_cuda(value: Any) -> Any:
    if isinstance(value, dict):
        return type(value)((key, _move_to_cuda(item)) for key, item in value.items())
    if type(value) in (list, tuple):
        return type(value)(map(_move_to_cuda, value))
    return value.to(CUDA_DEVICE) if isinstance(value, torch.Tensor) else value


_torch_new_parameter = torch.nn.Parameter.__new__


def _make_parameter(kind: Any, data: Any = None, requires_grad: bool = True) -> Any:
    """Make a parameter from a tensor, with the tensor's known values."""
    made = _torch_new_parameter(kind, data, requires_grad)
    if _is_meta(made) and _is_meta(data):
        _set_cpu_copy(made, _get_cpu_copy(data))
    return made


def _mark_pinned(tensor: torch.Tensor) -> torch.Tensor:
    tensor.__dict__["_compat_pinned"] = True
    return tensor


# Classes of tensors: torch.cuda.HalfTensor


class _LegacyTensorType(type):
    """Metaclass of ``torch.cuda.HalfTensor`` and similar classes, which make and recognize tensors of one type."""

    is_cuda = True
    layout = torch.strided
    dtype: torch.dtype

    def __instancecheck__(cls, value: object) -> bool:
        return isinstance(value, torch.Tensor) and value.is_cuda and value.dtype == cls.dtype

    def __call__(cls, first: Any = 0, *more: int, device: object = None) -> Any:
        if torch.is_tensor(first):
            return first.to(CUDA_DEVICE, cls.dtype)
        by_sizes = isinstance(first, (int, torch.Size))
        return (torch.empty if by_sizes else torch.tensor)(first, *more, dtype=cls.dtype, device=CUDA_DEVICE)


_torch_set_default_tensor_type = torch.set_default_tensor_type


def _set_default_tensor_type(kind: Any) -> None:
    if isinstance(kind, str) and kind.startswith("torch.cuda."):
        kind = getattr(torch.cuda, kind.rpartition(".")[2])
    if isinstance(kind, _LegacyTensorType):
        torch.set_default_dtype(kind.dtype)
        torch.set_default_device("cuda")
    else:
        torch.set_default_device(None)
        _torch_set_default_tensor_type(kind)


def _make_legacy_types() -> dict[str, _LegacyTensorType]:
    names = [name for name in vars(torch.cuda) if name.endswith("Tensor") and hasattr(torch, name)]
    return {
        name: _LegacyTensorType(name, (), {"__module__": "torch.cuda", "dtype": getattr(torch, name).dtype})
        for name in names
    }


# Nested tensors


def _reject_strided_nested_tensors(make: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a constructor of nested tensors to reject torch's strided layout, which needs a real device."""

    @functools.wraps(make)
    def reject_or_make(tensors: Any, *args: Any, **kwargs: Any) -> Any:
        device = kwargs.get("device") or next(
            (leaf.device for leaf in _iterate_leaves(tensors) if isinstance(leaf, torch.Tensor)), None
        )
        if kwargs.get("layout") in (None, torch.strided) and _is_cuda_name(device or _get_default_device()):
            raise NotImplementedError(
                "a nested tensor in the strided layout cannot be on a described GPU: give layout=torch.jagged"
            )
        return make(tensors, *args, **kwargs)

    return reject_or_make


# What torch calls of the program: backward passes, hooks and operators of its own


@contextlib.contextmanager
def _enable_described_gpu_in_program_code() -> Iterator[None]:
    """Let program code that torch calls inside an operation, such as a hook, see the described GPU."""
    depth, _thread_state.depth = getattr(_thread_state, "depth", 0), 0
    try:
        if any(isinstance(mode, _CudaAsMetaMode) for mode in _get_current_function_mode_stack()):
            yield
        else:
            with _CudaAsMetaMode():
                yield
    finally:
        _thread_state.depth = depth


def _wrap_program_code(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def call_as_program(*args: Any, **kwargs: Any) -> Any:
        with _enable_described_gpu_in_program_code():
            return function(*args, **kwargs)

    return call_as_program


_torch_push_hooks = torch._C._autograd._push_saved_tensors_default_hooks


def _push_saved_tensor_hooks(pack: Callable[..., Any], unpack: Callable[..., Any]) -> None:
    _torch_push_hooks(_wrap_program_code(pack), _wrap_program_code(unpack))


_torch_set_anomaly = torch.set_anomaly_enabled


def _enable_anomaly_without_nan_check(mode: bool, check_nan: bool = True) -> None:
    """Enable anomaly detection of a backward pass without the check for NaN, as numbers are unknown."""
    _torch_set_anomaly(mode, False)


_torch_register_kernel = torch.library.Library.impl
_program_kernels: dict[str, Callable[..., Any]] = {}
_CUDA_DISPATCH_KEYS = ("CUDA", "CompositeExplicitAutograd", "CompositeImplicitAutograd", "")


def _find_program_kernel(function: Any) -> Callable[..., Any] | None:
    """Return the program's own kernel for one of its operators; None for torch's operators."""
    packet = getattr(function, "overloadpacket", function)
    return _program_kernels.get(getattr(packet, "_qualified_op_name", ""))


def _register_kernel(self: Any, op_name: Any, fn: Any, dispatch_key: str = "", *args: Any, **kwargs: Any) -> Any:
    """Register a program's kernel of an operator; tensors on the GPU use its CUDA kernel, not its meta kernel."""
    name = op_name if isinstance(op_name, str) else op_name.name()
    name = name if "::" in name else f"{self.ns}::{name}"
    name = name.partition(".")[0]
    if dispatch_key in _CUDA_DISPATCH_KEYS and callable(fn):
        fn = _program_kernels[name] = _wrap_program_code(fn)
    elif dispatch_key == "Meta" and callable(fn):
        only_shapes = fn

        def select_kernel(*args: Any, **kwargs: Any) -> Any:
            return _program_kernels.get(name, only_shapes)(*args, **kwargs)

        fn = select_kernel

    return _torch_register_kernel(self, op_name, fn, dispatch_key, *args, **kwargs)


# Programs, and torch as a whole


def _skip_compile(model: Any = None, **options: Any) -> Any:
    """Replacement of ``torch.compile`` that runs code uncompiled, as dynamo cannot trace tensors of a described GPU."""
    return (lambda model: model) if model is None else model


def _raise_missing_attribute(name: str) -> Any:
    """Raise an error about a missing attribute of ``torch._C`` that names the described GPU as the reason."""
    if name.startswith(("_cuda", "_nccl", "_cudart")):
        raise AttributeError(f"torch._C has no {name}: it needs a real GPU, but this GPU is only described")
    raise AttributeError(f"module 'torch._C' has no attribute {name!r}")


def install(properties: Mapping[str, Any], cudnn_version: Callable[[], int]) -> None:
    """Make torch report the described GPU for the rest of this process.

    Parameters
    ----------
    properties
        cuDNN's description of the device: the JSON object of a described target.
    cudnn_version
        What ``torch.backends.cudnn.version()`` answers, asked late.
    """
    patch_torch_cuda(properties)
    torch.backends.cudnn.version = cudnn_version
    torch.profiler.profile = Profile
    torch.compile, torch.nn.Module.compile = _skip_compile, make_no_op()
    torch.jit.trace = lambda model=None, *args, **kwargs: model  # which would end the process
    torch.version.cuda = torch.version.cuda or "13.0"
    tensor = torch.Tensor
    tensor.device = property(_wrap_without_overrides(_get_tensor_device))
    tensor.is_cuda = property(_wrap_without_overrides(_is_cuda_tensor))
    tensor.is_meta = property(_wrap_without_overrides(_is_meta_tensor))
    tensor.data_ptr = _get_tensor_address
    tensor.__dlpack__ = _export_dlpack
    tensor.__dlpack_device__ = _get_dlpack_device
    tensor.__cuda_array_interface__ = property(_wrap_without_overrides(_get_cuda_array_interface))
    tensor.record_stream = make_no_op()
    torch.load = _load_file
    torch.serialization.add_safe_globals([_rebuild_tensor])
    torch.nn.Parameter.__new__ = _make_parameter
    torch.UntypedStorage.data_ptr = _get_storage_address
    for name, kind in _make_legacy_types().items():
        setattr(torch.cuda, name, kind)
    torch.set_default_tensor_type = _set_default_tensor_type
    torch.autograd._engine_run_backward = _wrap_program_code(torch.autograd._engine_run_backward)
    torch._C._autograd._push_saved_tensors_default_hooks = _push_saved_tensor_hooks
    torch.set_anomaly_enabled = _enable_anomaly_without_nan_check
    torch._C._scatter = lambda tensor, *args: (tensor.to(CUDA_DEVICE),)  # to all GPUs, which is one
    torch.library.Library.impl = _register_kernel
    torch.nested.nested_tensor = _reject_strided_nested_tensors(torch.nested.nested_tensor)
    torch.nested.as_nested_tensor = _reject_strided_nested_tensors(torch.nested.as_nested_tensor)
    torch.from_dlpack = torch.utils.dlpack.from_dlpack = _import_dlpack
    torch.utils.dlpack.to_dlpack = _export_dlpack
    vars(torch._C)["__getattr__"] = _raise_missing_attribute
    _CudaAsMetaMode().__enter__()
    threading.Thread.start = _start_thread_with_described_gpu  # type: ignore[method-assign]
