"""`torch.cuda` and `torch.accelerator` for a described GPU: streams, CUDA graphs, memory, generators."""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import pickle
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

__all__ = ["CUDA_DEVICE", "Generator", "Profile", "check_ordinal", "make_no_op", "patch_torch_cuda"]

CUDA_DEVICE = torch.device("cuda:0")
_CUDA_TYPE = 1  # in c10's enumeration of devices
_STATE_BYTES = 16  # of a generator on a GPU: its seed and its offset

_thread_state = threading.local()  # the stream of this thread, and whether it is captured
_handle_addresses = itertools.count(0x500000000000, 0x100)
_pool_numbers = itertools.count(1)


def make_no_op() -> Callable[..., None]:
    """Return a new function that does nothing, as torch compares functions by identity."""
    return lambda *args, **kwargs: None


# Streams, events, graphs


class _Stream:
    """Replacement of ``torch.cuda.Stream`` with its own handle, on which all work completes at once."""

    device = CUDA_DEVICE
    device_index = 0
    device_type = _CUDA_TYPE

    def __init__(self, device: object = None, priority: int = 0, *, stream_ptr: int | None = None, **more: object):
        self.cuda_stream = next(_handle_addresses) if stream_ptr is None else stream_ptr
        self._as_parameter_ = ctypes.c_void_p(self.cuda_stream)
        self.priority = min(priority, 0)
        self._outer: list[_Stream] = []

    @property
    def stream_id(self) -> int:
        return self.cuda_stream

    native_handle = stream_id

    @staticmethod
    def priority_range() -> tuple[int, int]:
        return 0, -5

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Stream) and self.cuda_stream == other.cuda_stream

    def __hash__(self) -> int:
        return hash(self.cuda_stream)

    def __repr__(self) -> str:
        return f"<torch.cuda.Stream device={self.device} cuda_stream={self.cuda_stream:#x}>"

    def __enter__(self) -> _Stream:
        self._outer.append(_current_stream())
        _thread_state.stream = self
        return self

    def __exit__(self, *args: object) -> None:
        _thread_state.stream = self._outer.pop()

    def synchronize(self) -> None: ...

    def query(self) -> bool:
        return True

    def is_capturing(self) -> bool:
        return _is_capturing()

    def wait_stream(self, stream: object) -> None: ...

    def wait_event(self, event: object) -> None: ...

    def record_event(self, event: Any = None) -> Any:
        return event or _Event()


class _ExternalStream(_Stream):
    def __init__(self, stream_ptr: int, device: object = None, **more: object) -> None:
        super().__init__(device, stream_ptr=int(stream_ptr))


_default_stream = _Stream(stream_ptr=0)


def _current_stream(device: object = None) -> _Stream:
    found: _Stream = getattr(_thread_state, "stream", _default_stream)
    return found


def _set_stream(stream: _Stream | None) -> None:
    if stream is not None:
        _thread_state.stream = stream


def _is_capturing() -> bool:
    return getattr(_thread_state, "capturing", False)


class _Event:
    device = CUDA_DEVICE

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.cuda_event = self.event_id = next(_handle_addresses)

    def record(self, stream: object = None) -> None: ...

    def wait(self, stream: object = None) -> None: ...

    def synchronize(self) -> None: ...

    def query(self) -> bool:
        return True

    def elapsed_time(self, other: object) -> float:
        return 1.0


class _CudaGraph:
    """Replacement of ``torch.cuda.CUDAGraph``: captured work runs once, for its shapes only; replays do nothing."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._pool = _new_pool_handle()

    def capture_begin(self, *args: Any, **kwargs: Any) -> None:
        _thread_state.capturing = True

    def capture_end(self) -> None:
        _thread_state.capturing = False

    def pool(self) -> tuple[int, int]:
        return self._pool

    def instantiate(self) -> None: ...

    def replay(self) -> None: ...

    def reset(self) -> None: ...

    def enable_debug_mode(self) -> None: ...

    def debug_dump(self, path: str) -> None: ...


@contextlib.contextmanager
def _capture_graph(
    cuda_graph: Any, pool: Any = None, stream: Any = None, capture_error_mode: str = ""
) -> Iterator[None]:
    with stream or _Stream():
        cuda_graph.capture_begin()
        try:
            yield
        finally:
            cuda_graph.capture_end()


def _new_pool_handle() -> tuple[int, int]:
    return 0, next(_pool_numbers)


class _MemoryPool:
    """Replacement of ``torch.cuda.MemPool``."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.id = _new_pool_handle()


@contextlib.contextmanager
def _use_memory_pool(pool: object, device: object = None) -> Iterator[None]:
    yield


class _CudaRuntime:
    """Replacement of ``torch.cuda.cudart()``, which programs call to start and stop a profiler."""

    def __getattr__(self, name: str) -> Callable[..., int]:
        return lambda *args: 0


class Profile:
    """Replacement of ``torch.profiler.profile`` that records nothing."""

    def __init__(self, *args: Any, **kwargs: Any) -> None: ...

    def __enter__(self) -> Profile:
        return self

    def __exit__(self, *args: object) -> None: ...

    start = stop = step = export_chrome_trace = make_no_op()

    def events(self) -> list[Any]:
        return _EmptyProfilerTable()

    def key_averages(self, *args: Any, **kwargs: Any) -> list[Any]:
        return _EmptyProfilerTable()


class _EmptyProfilerTable(list[Any]):
    def table(self, *args: Any, **kwargs: Any) -> str:
        return ""


# Generators


class _GeneratorMeta(type(torch.Generator)):  # type: ignore[misc]
    def __instancecheck__(cls, value: object) -> bool:
        return isinstance(value, _torch_generator)


_torch_generator = torch.Generator


class Generator(torch.Generator, metaclass=_GeneratorMeta):  # type: ignore[misc]
    """Replacement of ``torch.Generator`` that generates on the CPU but may report the GPU as its device."""

    def __new__(cls, device: Any = None) -> Any:
        made = super().__new__(cls, torch.device("cpu"))
        made._device = torch.device("cpu" if device is None else device)
        made._offset = 0
        return made

    @property
    def device(self) -> torch.device:
        return CUDA_DEVICE if self._device.type == "cuda" else self._device

    def get_offset(self) -> int:
        return int(self._offset)

    def set_offset(self, offset: int) -> Generator:
        self._offset = offset
        return self

    def clone_state(self) -> Generator:
        other = Generator(self._device).set_offset(self._offset)
        other.set_state(self.get_state())
        return other

    graphsafe_get_state = clone_state

    def graphsafe_set_state(self, other: Generator) -> None:
        self.set_state(other.get_state())
        self._offset = other._offset


# The device and its memory


class _DeviceProperties:
    def __init__(self, properties: Mapping[str, Any]) -> None:
        self.name = properties["deviceName"]
        self.major, self.minor = divmod(properties["deviceVer"] // 10, 10)
        self.multi_processor_count = properties["multiProcessorCount"]
        self.total_memory = properties["totalGlobalMem"]
        self.L2_cache_size = properties["l2CacheSize"]
        self.shared_memory_per_block = properties["maxSharedMemoryPerBlock"]
        self.shared_memory_per_block_optin = properties["maxSharedMemoryPerBlockOptin"]
        self.shared_memory_per_multiprocessor = (
            self.shared_memory_per_block_optin + properties["reservedSharedMemoryPerBlock"]
        )
        self.warp_size = 32
        self.regs_per_multiprocessor = properties["maxRegistersPerSM"]
        self.max_threads_per_multi_processor = properties["maxThreadsPerSM"]
        self.max_threads_per_block = properties["maxThreadsPerBlock"]
        self.clock_rate = properties["smClockRateKHz"]
        self.memory_clock_rate = properties["memClockRateKHz"]
        self.memory_bus_width = properties["memoryBusWidth"]
        self.gcnArchName = self.name
        self.is_integrated = self.is_multi_gpu_board = 0

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"the description of {self.__dict__.get('name')} has no {name}: there is no GPU to query")

    def __repr__(self) -> str:
        return (
            f"_CudaDeviceProperties(name='{self.name}', major={self.major}, minor={self.minor}, "
            f"total_memory={self.total_memory >> 20}MB, multi_processor_count={self.multi_processor_count}, "
            f"L2_cache_size={self.L2_cache_size >> 20}MB)"
        )


def check_ordinal(device: int) -> None:
    """Raise if a device is not the first GPU.

    Raises
    ------
    RuntimeError
        As CUDA itself raises for a device that does not exist.
    """
    if device > 0:
        raise RuntimeError(f"CUDA error: invalid device ordinal: cuda:{device}, but only one GPU is described")


def _exchange_device(device: int) -> int:
    """Make a device current and return the previous one, for torch's device contexts."""
    check_ordinal(device)
    return 0


def _set_device(device: Any) -> None:
    check_ordinal(device if isinstance(device, int) else torch.device(device).index or 0)


def _write_memory_snapshot(filename: str = "dump_snapshot.pickle", *args: Any, **kwargs: Any) -> None:
    Path(filename).write_bytes(pickle.dumps(_empty_memory_snapshot()))


def _empty_memory_snapshot(device: object = None, **kwargs: Any) -> dict[str, Any]:
    return {"segments": [], "device_traces": [], "allocator_settings": {}, "external_annotations": []}


#: Functions of torch.cuda with nothing to do here.
_NO_OP_FUNCTIONS = (
    "_sleep",
    "check_error",
    "init",
    "_lazy_init",
    "synchronize",
    "empty_cache",
    "ipc_collect",
    "set_per_process_memory_fraction",
    "reset_peak_memory_stats",
    "reset_max_memory_allocated",
    "reset_max_memory_cached",
    "reset_accumulated_memory_stats",
    "set_sync_debug_mode",
    "_record_memory_history",
    "set_rng_state",
    "set_rng_state_all",
    "reset_peak_host_memory_stats",
    "reset_accumulated_host_memory_stats",
)

#: Functions of torch.cuda that return a number of bytes: always 0, as a described GPU has no memory in use.
_BYTE_COUNT_FUNCTIONS = (
    "memory_allocated",
    "max_memory_allocated",
    "memory_reserved",
    "max_memory_reserved",
    "memory_cached",
    "max_memory_cached",
)


def patch_torch_cuda(properties: Mapping[str, Any]) -> None:
    """Make ``torch.cuda`` and ``torch.accelerator`` report a described GPU.

    Parameters
    ----------
    properties
        cuDNN's description of the device: the JSON object of a described target.
    """
    one = _DeviceProperties(properties)
    generator = Generator(CUDA_DEVICE)
    seed = generator.manual_seed
    answers: dict[str, Any] = {
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "set_device": _set_device,
        "_exchange_device": _exchange_device,
        "_maybe_exchange_device": _exchange_device,
        "get_device_name": lambda device=None: one.name,
        "get_device_capability": lambda device=None: (one.major, one.minor),
        "get_device_properties": lambda device=None: one,
        "get_arch_list": lambda: [f"sm_{one.major}{one.minor}"],
        "get_sync_debug_mode": lambda: 0,
        "can_device_access_peer": lambda device, peer: False,
        "mem_get_info": lambda device=None: (one.total_memory, one.total_memory),
        "get_rng_state": lambda device=None: torch.zeros(_STATE_BYTES, dtype=torch.uint8, device="cpu"),
        "get_rng_state_all": lambda: [torch.zeros(_STATE_BYTES, dtype=torch.uint8, device="cpu")],
        "manual_seed": lambda number: seed(int(number)) and None,
        "manual_seed_all": lambda number: seed(int(number)) and None,
        "seed": lambda: generator.seed() and None,
        "seed_all": lambda: generator.seed() and None,
        "initial_seed": lambda: generator.initial_seed(),
        "default_generators": (generator,),
        "Stream": _Stream,
        "ExternalStream": _ExternalStream,
        "Event": _Event,
        "current_stream": _current_stream,
        "default_stream": lambda device=None: _default_stream,
        "set_stream": _set_stream,
        "stream": lambda stream=None: stream or _current_stream(),
        "StreamContext": lambda stream=None: stream or _current_stream(),
        "CUDAGraph": _CudaGraph,
        "graph": _capture_graph,
        "graph_pool_handle": _new_pool_handle,
        "is_current_stream_capturing": _is_capturing,
        "make_graphed_callables": lambda callables, *args, **kwargs: callables,
        "MemPool": _MemoryPool,
        "use_mem_pool": _use_memory_pool,
        "cudart": _CudaRuntime,
        "memory_stats": lambda device=None: Counter(),
        "memory_stats_as_nested_dict": lambda device=None: {},
        "host_memory_stats": lambda: Counter(),
        "memory_summary": lambda device=None, abbreviated=False: "",
        "memory_snapshot": lambda *args, **kwargs: [],
        "list_gpu_processes": lambda device=None: "",
        "get_per_process_memory_fraction": lambda device=None: 1.0,
        "get_allocator_backend": lambda: "native",
        "_empty_memory_snapshot": _empty_memory_snapshot,
        "_write_memory_snapshot": _write_memory_snapshot,
        **{name: lambda device=None: 0 for name in _BYTE_COUNT_FUNCTIONS},
        **{name: make_no_op() for name in _NO_OP_FUNCTIONS},
    }
    parts = [getattr(torch.cuda, name) for name in ("memory", "random", "streams", "graphs", "profiler")]
    for name, answer in answers.items():
        for module in (torch.cuda, *parts):
            if name in vars(module):
                setattr(module, name, answer)
    for name in ("range_push", "range_pop", "mark"):
        setattr(torch.cuda.nvtx, name, make_no_op())
    torch.Stream, torch.Event, torch.Generator = _Stream, _Event, Generator
    for name, answer in _make_accelerator_attributes(one).items():
        setattr(torch.accelerator, name, answer)


def _make_accelerator_attributes(one: _DeviceProperties) -> dict[str, Any]:
    """Return replacements for the attributes of ``torch.accelerator`` (torch 2.6) that this torch has."""
    answers: dict[str, Any] = {
        "is_available": lambda: True,
        "device_count": lambda: 1,
        "current_accelerator": lambda check_available=False: torch.device("cuda"),
        "current_device_index": lambda: 0,
        "current_device_idx": lambda: 0,
        "current_stream": _current_stream,
        "set_stream": _set_stream,
        "set_device_index": _set_device,
        "set_device_idx": _set_device,
        "device_index": lambda device: torch.cuda.device(device),
        "get_memory_info": lambda device=None: (one.total_memory, one.total_memory),
        "memory_stats": lambda device=None: Counter(),
        **{name: lambda device=None: 0 for name in _BYTE_COUNT_FUNCTIONS},
        **{name: make_no_op() for name in ("synchronize", "empty_cache", "empty_host_cache", *_NO_OP_FUNCTIONS)},
    }
    has = vars(getattr(torch, "accelerator", None) or object)
    return {name: answer for name, answer in answers.items() if name in has}
