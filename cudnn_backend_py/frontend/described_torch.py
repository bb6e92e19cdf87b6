"""A GPU for torch that is not there: "cuda" tensors are meta tensors, so that programs run up to their numbers.

Small tensors keep their values beside them (their *shadow*, an ordinary CPU tensor on which every operation is done
as well), since programs make lengths and offsets on the GPU and read them back. A number that is read from a tensor
without a shadow is 1, a mask without one chooses all; a larger array that is read back ends the program with
:class:`NumbersNeeded`.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import math
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any, cast

import torch
from torch.fx.experimental import _config as sizes
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack
from torch.utils._device import DeviceContext, _device_constructors

__all__ = ["NumbersNeeded", "install"]

SHADOW_ELEMENTS = 1 << 14
CUDA = torch.device("cuda:0")
META = torch.device("meta")
CPU = torch.device("cpu")
DLPACK_CUDA = 2

_inside = threading.local()
_addresses = itertools.count(1)
_device = torch._C.TensorBase.device
_to_cpu = frozenset({"cpu", "numpy", "tolist", "__array__"})
_to_number = frozenset({"item", "__bool__", "__int__", "__float__", "__index__", "equal", "allclose", "is_nonzero"})
_fills = frozenset({"normal_", "uniform_", "random_", "fill_", "zero_", "bernoulli_", "exponential_"})
_factories = frozenset({"rand", "randn", "empty", "zeros", "ones", "full"})


class NumbersNeeded(BaseException):
    """A program reads an array which only a GPU could have computed."""


def _is_meta(value: Any) -> bool:
    kind = isinstance(value, torch.Tensor) and _device.__get__(value).type
    return bool(kind == "meta")


def _shadow(tensor: torch.Tensor) -> torch.Tensor | None:
    return tensor.__dict__.get("_compat_shadow")


def _set_shadow(tensor: torch.Tensor, shadow: torch.Tensor | None) -> None:
    tensor.__dict__["_compat_shadow"] = shadow


def _is_cuda(value: Any) -> bool:
    if isinstance(value, torch.device):
        return bool(value.type == "cuda")
    return isinstance(value, str) and (value == "cuda" or value.startswith("cuda:"))


def _map(value: Any, change: Callable[[Any], Any]) -> Any:
    if isinstance(value, (list, tuple)) and not isinstance(value, torch.Size):
        changed = [_map(item, change) for item in value]
        return type(value)(*changed) if hasattr(value, "_fields") else type(value)(changed)
    if isinstance(value, slice):
        return slice(change(value.start), change(value.stop), change(value.step))
    return change(value)


def _leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, (list, tuple)):
        for item in value:
            yield from _leaves(item)
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _leaves(item)
    elif isinstance(value, slice):
        yield from (value.start, value.stop, value.step)
    else:
        yield value


class _NoShadow(Exception):
    """A large tensor takes part: its values are not known."""


def _as_cpu(value: Any) -> Any:
    if _is_meta(value):
        shadow = _shadow(value)
        if shadow is None:
            raise _NoShadow
        return shadow
    return CPU if _is_cuda(value) or (isinstance(value, torch.device) and value.type == "meta") else value


def _as_meta(value: Any) -> Any:
    return META if _is_cuda(value) else value


def _emptied(value: Any) -> Any:
    return torch.empty_like(value, device=META) if isinstance(value, torch.Tensor) else value


def _size(value: Any) -> Any:
    """Return a size as a number where a program gives it as a tensor."""
    known = _is_meta(value) and value.dim() == 0 and _shadow(value) is not None
    return int(_as_cpu(value)) if known else value


_start = threading.Thread.start


def _start_with_cuda(self: threading.Thread) -> None:
    """Start a thread that has the GPU, too: torch keeps what answers for it by thread."""
    run = self.run

    def run_with_cuda() -> None:
        with _CudaAsMeta():
            run()

    if self.ident is None:  # else it was started before, which is the error that comes
        self.run = run_with_cuda  # type: ignore[method-assign]
    _start(self)


def _bounds(index: Any) -> Any:
    """Return an index whose slices have numbers for bounds."""
    if isinstance(index, tuple):
        return tuple(_bounds(item) for item in index)
    return _map(index, _size) if isinstance(index, slice) else index


def _default_device() -> Any:
    """Return the device of ``torch.set_default_device`` or of a ``with torch.device(...)``; None for neither."""
    contexts = (mode.device for mode in _get_current_function_mode_stack() if isinstance(mode, DeviceContext))
    return next(contexts, None)


class _CudaAsMeta(TorchFunctionMode):  # type: ignore[misc]
    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        depth = getattr(_inside, "depth", 0)
        _inside.depth = depth + 1
        try:
            return self._answer(func, args, dict(kwargs or {}))
        finally:
            _inside.depth = depth

    def _answer(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        name = getattr(func, "__name__", "")
        if func is torch.device:
            return func(*args, **kwargs)
        if name == "cuda" and args and isinstance(args[0], torch.Tensor):
            func, args, kwargs, name = torch.Tensor.to, (args[0], CUDA), {}, "to"
        if name == "pin_memory":
            return args[0]
        kwargs.pop("pin_memory", None)
        if func in _device_constructors() and kwargs.get("device") is None and _is_cuda(_default_device()):
            kwargs["device"] = CUDA
        leaves = list(_leaves((args, kwargs)))
        touches_meta = any(
            _is_meta(leaf) or _is_cuda(leaf) or (isinstance(leaf, torch.device) and leaf == META) for leaf in leaves
        )
        if not touches_meta:
            return func(*args, **kwargs)
        if name in _to_cpu or (name == "to" and self._goes_to_cpu(args, kwargs)):
            return self._read(func, args, kwargs)
        if name == "__iter__":
            return iter(self._compute(torch.Tensor.unbind, args, {}))
        if name in _to_number or (name == "__format__" and args[0].dim() == 0):
            return self._number(func, args, kwargs)
        return self._compute(func, args, kwargs)

    @staticmethod
    def _goes_to_cpu(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        return any(
            leaf == "cpu" or (isinstance(leaf, torch.device) and leaf.type == "cpu")
            for leaf in (*args[1:], *kwargs.values())
            if isinstance(leaf, (str, torch.device))
        )

    @staticmethod
    def _read(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        shadow = _shadow(args[0]) if _is_meta(args[0]) else args[0]
        if shadow is None:
            raise NumbersNeeded(f"{func.__name__} of a tensor of shape {tuple(args[0].shape)}")
        return func(shadow.clone(), *args[1:], **kwargs)

    @staticmethod
    def _number(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        try:
            return func(*_map(args, _as_cpu), **{key: _map(item, _as_cpu) for key, item in kwargs.items()})
        except _NoShadow:
            one = torch.ones((), dtype=args[0].dtype)
            return func(one, *args[1:], **kwargs) if func.__name__ not in ("equal", "allclose") else True

    def _compute(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        name = getattr(func, "__name__", "")
        shadow = self._shadow_of(func, args, kwargs)
        meta_kwargs = {key: _map(item, _as_meta) for key, item in kwargs.items() if key != "generator"}
        if name in _factories:
            args = _map(args, _size)
        if name in ("__getitem__", "__setitem__"):
            args = (args[0], _bounds(args[1]), *args[2:])
        if name in ("tensor", "as_tensor"):
            result = torch.empty_like(shadow, device=META)
        elif name in _fills and args and _is_meta(args[0]):
            result = args[0]
        elif name == "__setitem__":
            with contextlib.suppress(NotImplementedError, RuntimeError):
                func(*_map(args, _as_meta), **meta_kwargs)
            result = None
        else:
            result = self._on_meta(func, _map(args, _as_meta), meta_kwargs, shadow)
        self._attach(result, shadow, args)
        return result

    @staticmethod
    def _on_meta(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], shadow: Any) -> Any:
        """Return what `func` gives without numbers; a size that depends on them is the shadow's, else the largest.

        Raises
        ------
        NumbersNeeded
            Where there is no largest one.
        """
        try:
            return func(*args, **kwargs)
        except NotImplementedError:
            if shadow is not _UNKNOWN:
                return _map(shadow, _emptied)
            if not hasattr(sizes, "meta_nonzero_assume_all_nonzero"):  # torch 2.4
                raise
        except RuntimeError as error:
            if "a meta tensor" in str(error) and shadow is not _UNKNOWN:  # repeat_interleave
                return _map(shadow, _emptied)
            if "expected device meta" in str(error):
                words = str(error).replace("expected device meta", f"expected device {CUDA}")
                raise RuntimeError(words) from None
            raise
        with sizes.patch(meta_nonzero_assume_all_nonzero=True):
            try:
                return func(*args, **kwargs)
            except NotImplementedError:
                raise NumbersNeeded(f"the size of what {getattr(func, '__name__', func)} gives") from None

    @staticmethod
    def _shadow_of(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Return what `func` gives on the shadows, ``_UNKNOWN`` where a large tensor takes part or would come out."""
        if not any(_is_meta(leaf) for leaf in _leaves((args, kwargs))) and _asks_for_much(func, args, kwargs):
            return _UNKNOWN
        try:
            return func(*_map(args, _as_cpu), **{key: _map(item, _as_cpu) for key, item in kwargs.items()})
        except Exception:
            return _UNKNOWN

    @staticmethod
    def _attach(result: Any, shadow: Any, args: tuple[Any, ...]) -> None:
        if result is None and shadow is _UNKNOWN and args and _is_meta(args[0]):
            _set_shadow(args[0], None)
        results, shadows = list(_leaves(result)), list(_leaves(shadow))
        if len(results) != len(shadows):
            shadows = [_UNKNOWN] * len(results)
        for one, value in zip(results, shadows, strict=True):
            if _is_meta(one):
                keep = isinstance(value, torch.Tensor) and value.numel() <= SHADOW_ELEMENTS
                _set_shadow(one, value if keep else None)


_UNKNOWN = object()


def _asks_for_much(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Return whether a factory, such as ``torch.randn``, or a copy from the CPU makes a large tensor."""
    for leaf in _leaves((args, kwargs)):
        if isinstance(leaf, torch.Tensor):
            return bool(leaf.numel() > SHADOW_ELEMENTS)
    name = getattr(func, "__name__", "")
    if name in ("tensor", "as_tensor", "arange", "linspace"):
        return False
    sizes = kwargs.get("size", args)
    if name in ("full", "randint"):
        sizes = next((item for item in (sizes, *args) if item is not args and isinstance(item, (list, tuple))), ())
    return math.prod(leaf for leaf in _leaves(sizes) if isinstance(leaf, int)) > SHADOW_ELEMENTS


# What a tensor says of itself


def _outside(tensor: torch.Tensor) -> bool:
    return bool(not getattr(_inside, "depth", 0) and _device.__get__(tensor).type == "meta")


def _plain(getter: Callable[[torch.Tensor], Any]) -> Callable[[torch.Tensor], Any]:
    def get(tensor: torch.Tensor) -> Any:
        with torch._C.DisableTorchFunction():
            return getter(tensor)

    return get


def _tensor_device(tensor: torch.Tensor) -> torch.device:
    return CUDA if _outside(tensor) else _device.__get__(tensor)


def _tensor_is_cuda(tensor: torch.Tensor) -> bool:
    return _device.__get__(tensor).type in (("meta", "cuda") if _outside(tensor) else ("cuda",))


def _tensor_is_meta(tensor: torch.Tensor) -> bool:
    return not _outside(tensor) and _device.__get__(tensor).type == "meta"


_base_data_ptr = torch._C.TensorBase.data_ptr


def _tensor_data_ptr(tensor: torch.Tensor) -> int:
    with torch._C.DisableTorchFunction():
        if _device.__get__(tensor).type != "meta":
            return int(_base_data_ptr(tensor))
        if "_compat_address" not in tensor.__dict__:
            tensor.__dict__["_compat_address"] = 0x700000000000 + next(_addresses) * (1 << 32)
        return int(tensor.__dict__["_compat_address"])


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


class _Managed(ctypes.Structure):
    _fields_ = (("tensor", _DLTensor), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p))


_base_dlpack = torch.Tensor.__dlpack__
_base_dlpack_device = torch.Tensor.__dlpack_device__
_base_cuda_array = torch.Tensor.__cuda_array_interface__
_keep: list[Any] = []
_capsule = ctypes.pythonapi.PyCapsule_New
_capsule.restype = ctypes.py_object
_capsule.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]


def _dlpack_type(dtype: torch.dtype) -> tuple[int, int]:
    """Return DLPack's type code and the bits of one element, as torch exports them."""
    probe = ctypes.pythonapi.PyCapsule_GetPointer
    probe.restype, probe.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    capsule = _base_dlpack(torch.empty(1, dtype=dtype))
    tensor = _Managed.from_address(probe(capsule, b"dltensor")).tensor
    return tensor.code, tensor.bits


def _tensor_dlpack(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
    with torch._C.DisableTorchFunction():
        if _device.__get__(tensor).type != "meta":
            return _base_dlpack(tensor, *args, **kwargs)
        address = _tensor_data_ptr(tensor)
        code, bits = _dlpack_type(tensor.dtype)
        dims = (ctypes.c_int64 * max(tensor.dim(), 1))(*tensor.shape)
        strides = (ctypes.c_int64 * max(tensor.dim(), 1))(*tensor.stride())
        view = _DLTensor(address, DLPACK_CUDA, 0, tensor.dim(), code, bits, 1, dims, strides, 0)
        managed = _Managed(view, None, None)
        _keep.append((managed, dims, strides))
        return _capsule(ctypes.addressof(managed), b"dltensor", None)


def _tensor_dlpack_device(tensor: torch.Tensor) -> Any:
    with torch._C.DisableTorchFunction():
        return (DLPACK_CUDA, 0) if _device.__get__(tensor).type == "meta" else _base_dlpack_device(tensor)


def _tensor_cuda_array(tensor: torch.Tensor) -> dict[str, Any]:
    with torch._C.DisableTorchFunction():
        if _device.__get__(tensor).type != "meta":
            return cast(dict[str, Any], _base_cuda_array.__get__(tensor))
        size = tensor.element_size()
        like = cast(dict[str, Any], torch.empty(1, dtype=tensor.dtype).numpy().__array_interface__)
        strides = None if tensor.is_contiguous() else tuple(step * size for step in tensor.stride())
        data = (_tensor_data_ptr(tensor) if tensor.numel() else 0, False)
        return {
            "typestr": like["typestr"],
            "shape": tuple(tensor.shape),
            "strides": strides,
            "data": data,
            "version": 2,
        }


_base_from_dlpack = torch.from_dlpack


def _from_dlpack(source: Any, **options: Any) -> torch.Tensor:
    return source if _is_meta(source) else _base_from_dlpack(source, **options)


_base_load = torch.load


def _load(file: Any, map_location: Any = None, *args: Any, **options: Any) -> Any:
    if _is_cuda(map_location):
        return _to_cuda(_base_load(file, CPU, *args, **options))
    return _base_load(file, map_location, *args, **options)


def _to_cuda(value: Any) -> Any:
    if isinstance(value, dict):
        return type(value)((key, _to_cuda(item)) for key, item in value.items())
    if type(value) in (list, tuple):
        return type(value)(map(_to_cuda, value))
    return value.to(CUDA) if isinstance(value, torch.Tensor) else value


# torch.cuda


class _Stream:
    cuda_stream = 0
    device = CUDA

    def __init__(self, *args: Any, **kwargs: Any) -> None: ...

    def __enter__(self) -> _Stream:
        return self

    def __exit__(self, *args: object) -> None: ...

    def synchronize(self) -> None: ...

    def query(self) -> bool:
        return True

    def is_capturing(self) -> bool:
        return False

    def wait_stream(self, stream: object) -> None: ...

    def record_event(self, event: Any = None) -> Any:
        return event or _Event()

    def wait_event(self, event: object) -> None: ...


class _Runtime:
    """Stands for ``torch.cuda.cudart()``, of which programs call what begins and ends a profile."""

    def __getattr__(self, name: str) -> Callable[..., int]:
        return lambda *args: 0


class _Event:
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...

    def record(self, stream: object = None) -> None: ...

    def synchronize(self) -> None: ...

    def query(self) -> bool:
        return True

    def elapsed_time(self, other: object) -> float:
        return 1.0


class _Graph:
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...

    def replay(self) -> None: ...

    def reset(self) -> None: ...


class _Profile:
    """Stands for ``torch.profiler.profile``, whose recordings are empty here."""

    def __init__(self, *args: Any, **kwargs: Any) -> None: ...

    def __enter__(self) -> _Profile:
        return self

    def __exit__(self, *args: object) -> None: ...

    def start(self) -> None: ...

    def stop(self) -> None: ...

    def step(self) -> None: ...

    def export_chrome_trace(self, path: str) -> None: ...

    def events(self) -> list[Any]:
        return _Rows()

    def key_averages(self, *args: Any, **kwargs: Any) -> list[Any]:
        return _Rows()


class _Rows(list[Any]):
    def table(self, *args: Any, **kwargs: Any) -> str:
        return ""


class _Properties:
    def __init__(self, properties: Mapping[str, Any]) -> None:
        self.name = properties["deviceName"]
        self.major, self.minor = divmod(properties["deviceVer"] // 10, 10)
        self.multi_processor_count = properties["multiProcessorCount"]
        self.total_memory = properties["totalGlobalMem"]
        self.L2_cache_size = properties["l2CacheSize"]
        self.shared_memory_per_block_optin = properties["maxSharedMemoryPerBlockOptin"]
        self.warp_size = 32
        self.shared_memory_per_block = properties["maxSharedMemoryPerBlock"]
        self.regs_per_multiprocessor = properties["maxRegistersPerSM"]
        self.max_threads_per_multi_processor = properties["maxThreadsPerSM"]
        self.memory_bus_width = properties["memoryBusWidth"]
        self.is_integrated = self.is_multi_gpu_board = 0

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(
            f"the description of {self.__dict__.get('name')} has no {name}: no GPU is here to be asked"
        )


class _Generator(torch.Generator):  # type: ignore[misc]
    def __new__(cls, device: Any = None) -> Any:
        return super().__new__(cls, CPU)


def _nothing() -> Callable[..., None]:
    """Return a function that does nothing: another one at each call, since torch tells functions apart."""
    return lambda *args, **kwargs: None


def _compile(model: Any = None, **options: Any) -> Any:
    """Stand for ``torch.compile``: dynamo cannot trace tensors of a GPU that is not there: all runs as written."""
    return (lambda model: model) if model is None else model


#: Functions of torch.cuda with nothing to do here.
_IDLE = ("_sleep", "seed", "seed_all", "set_per_process_memory_fraction", "reset_max_memory_allocated",
         "reset_max_memory_cached", "reset_accumulated_memory_stats", "set_sync_debug_mode")  # fmt: skip


def _accelerator() -> dict[str, Any]:
    """Return what torch.accelerator (2.6) answers, of what this torch has of it."""
    answers: dict[str, Any] = {
        "is_available": lambda: True,
        "device_count": lambda: 1,
        "current_accelerator": lambda check_available=False: torch.device("cuda"),
        "current_device_index": lambda: 0,
        "current_device_idx": lambda: 0,
        "current_stream": lambda device=None: _Stream(),
        **{name: _nothing() for name in ("synchronize", "set_device_index", "set_device_idx", "set_stream")},
    }
    has = vars(getattr(torch, "accelerator", None) or object)
    return {name: answer for name, answer in answers.items() if name in has}


def _refuse_driver(name: str) -> Any:
    """Say what is wrong where torch asks its compiled part for the driver of a GPU, which a build for the CPU lacks."""
    if name.startswith(("_cuda", "_nccl", "_cudart")):
        raise AttributeError(f"torch._C has no {name}: the GPU is described, and cannot be asked for that")
    raise AttributeError(f"module 'torch._C' has no attribute {name!r}")


def install(properties: Mapping[str, Any], cudnn_version: Callable[[], int]) -> None:
    """Let torch pretend that the described GPU is here, for the rest of this process.

    Parameters
    ----------
    properties
        cuDNN's description of the device: the JSON object of a described target.
    cudnn_version
        What ``torch.backends.cudnn.version()`` answers, asked late.
    """
    one = _Properties(properties)
    answers: dict[str, Any] = {
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "init": _nothing(),
        "_lazy_init": _nothing(),
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "set_device": _nothing(),
        "get_device_name": lambda device=None: one.name,
        "get_device_capability": lambda device=None: (one.major, one.minor),
        "get_device_properties": lambda device=None: one,
        "get_arch_list": lambda: [f"sm_{one.major}{one.minor}"],
        "synchronize": _nothing(),
        "empty_cache": _nothing(),
        "ipc_collect": _nothing(),
        "mem_get_info": lambda device=None: (one.total_memory, one.total_memory),
        "memory_allocated": lambda device=None: 0,
        "max_memory_allocated": lambda device=None: 0,
        "memory_reserved": lambda device=None: 0,
        "reset_peak_memory_stats": _nothing(),
        "get_rng_state": lambda device=None: torch.empty(0),
        "set_rng_state": _nothing(),
        "manual_seed": _nothing(),
        "manual_seed_all": _nothing(),
        "Stream": _Stream,
        "ExternalStream": type("ExternalStream", (_Stream,), {}),
        "Event": _Event,
        "CUDAGraph": _Graph,
        "current_stream": lambda device=None: _Stream(),
        "default_stream": lambda device=None: _Stream(),
        "set_stream": _nothing(),
        "stream": lambda stream=None: _Stream(),
        "device": type("device", (_Stream,), {"idx": 0}),
        "graph": lambda *args, **kwargs: _Stream(),
        "is_current_stream_capturing": lambda: False,
        "cudart": _Runtime,
        "can_device_access_peer": lambda device, peer: False,
        "max_memory_reserved": lambda device=None: 0,
        "make_graphed_callables": lambda callables, *args, **kwargs: callables,
        "memory_stats": lambda device=None: {},
        "memory_summary": lambda device=None, abbreviated=False: "",
        "memory_snapshot": lambda *args, **kwargs: [],
        **{name: _nothing() for name in _IDLE},
    }
    for name, answer in answers.items():
        setattr(torch.cuda, name, answer)
    for name, answer in _accelerator().items():
        setattr(torch.accelerator, name, answer)
    for name in ("range_push", "range_pop", "mark"):
        setattr(torch.cuda.nvtx, name, _nothing())
    torch.backends.cudnn.version = cudnn_version
    torch.profiler.profile = _Profile
    torch.compile, torch.nn.Module.compile = _compile, _nothing()
    torch.version.cuda = torch.version.cuda or "13.0"
    torch.Generator = _Generator
    tensor = torch.Tensor
    tensor.device = property(_plain(_tensor_device))
    tensor.is_cuda = property(_plain(_tensor_is_cuda))
    tensor.is_meta = property(_plain(_tensor_is_meta))
    tensor.data_ptr = _tensor_data_ptr
    tensor.__dlpack__ = _tensor_dlpack
    tensor.__dlpack_device__ = _tensor_dlpack_device
    tensor.__cuda_array_interface__ = property(_plain(_tensor_cuda_array))
    tensor.record_stream = _nothing()
    torch.load = _load
    torch.from_dlpack = torch.utils.dlpack.from_dlpack = _from_dlpack
    torch.utils.dlpack.to_dlpack = _tensor_dlpack
    vars(torch._C)["__getattr__"] = _refuse_driver
    _CudaAsMeta().__enter__()
    threading.Thread.start = _start_with_cuda  # type: ignore[method-assign]
