"""``Executable``: a plan prepared for repeated calls with the lowest host time.

What a call costs is measured by ``python -m benchmarks run``. Same buffers for sure: :meth:`Executable.bind`, a call
without arguments.

Where this package was built with a C compiler and the buffers' framework has DLPack's C functions (torch since 2.10),
one compiled function reads and checks the buffers, fills its variant pack if one is new, and launches
(:mod:`.native.fast_call`). Everything else is done here: the addresses of the same buffers find a finalized variant
pack, for new ones the oldest pack is filled again. Checks are then made once for the same objects at the same
addresses; new torch tensors that are like the last ones that were checked (type, shape, strides, GPU) are not looked at
again but for their addresses.
"""

from __future__ import annotations

import os
import sys
import threading
import weakref
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from ..errors import UsageError
from ..graph.ir import Tensor
from ..native.cuda import Memory
from ..native.fast_call import STREAM_CHANGED, PlanCallWithTuple, install_compiled_call_method, load_compiled_library
from ..plans.plan import Plan
from ..printable import format_in_angle_brackets
from ..system.notebook import HtmlDisplay
from .arguments import Arguments
from .buffers import find_dlpack_exchange, get_buffer_address
from .checks import compute_scratch_offsets, get_buffer_requirements, locate_buffer, locate_workspace, make_scalar_array
from .stream_state import StreamState, _thread_state, get_live_handle

if TYPE_CHECKING:
    from .cuda_graph import CudaGraph  # and in functions, as the next: few calls need them

__all__ = ["Bound", "Executable", "allocate_torch_memory", "find_stream_getter"]

Workspace = Callable[[int], Any] | Literal["torch"] | Any
MAX_CACHED_SCALARS = 64


_live_executables: weakref.WeakSet[Executable] = weakref.WeakSet()


def _discard_executables_gpu_state_after_fork() -> None:
    """Make the first call in a forked child raise, since a CUDA context does not survive a fork."""
    _thread_state.__dict__.clear()
    for executable in list(_live_executables):
        executable.discard_gpu_resources_after_fork()


os.register_at_fork(after_in_child=_discard_executables_gpu_state_after_fork)


class Executable(HtmlDisplay):
    """A plan that is called with buffers by position, name or uid; calls return before the device has finished.

    Threads may share it: each gets a handle and, without a workspace of the caller, device memory per stream. Host
    numbers of by-value tensors can be given by name at each call.

    Parameters
    ----------
    plan
        Built for, or loaded on, the GPU of this process.
    workspace
        None: device memory of its own, one piece per stream. "torch": torch's caching allocator at each
        call. A function of the size in bytes: called at each call, what it returns is held until the launch. A buffer
        or an address: used for every call, so that only one stream at a time may run. It holds scratch tensors too.
    check
        Whether buffers not seen before are checked: address, device, alignment, type, size.
    stream
        Address of a CUDA stream, an object with one (``cuda_stream``, ``ptr``), or a function that returns one. None:
        torch's or CuPy's current stream where the buffers are theirs, otherwise the default stream.

    Attributes
    ----------
    names
        The tensors in the order in which buffers are given by position: inputs, then outputs. Scratch tensors and
        by-value tensors whose number the graph holds are not among them.
    workspace_bytes
        Bytes of workspace a call needs.
    device, streams
        The GPU's ordinal, and addresses of the streams it ran on.
    captured
        Whether its caller says that a CUDA graph holds a call: a pool keeps it then.

    Raises
    ------
    EnvironmentNotReady
        ``plan-without-device`` for a plan of a described target.

    Examples
    --------
    ::

        run = cudnn_backend_py.plan(graph)
        run(q, k, v, o)                  # or run(q=q, k=k, v=v, o=o)
        step = run.bind(q, k, v, o)
        step()
    """

    def __init__(self, plan: Plan, *, workspace: Workspace = None, check: bool = True, stream: Any = None) -> None:
        self.device = self._device = get_live_handle(plan).device or 0
        self.streams: set[int] = set()
        self.captured = False
        self.plan = plan
        self.may_need_context_switch = plan.target.library.driver.devices > 1
        self._arguments = Arguments(plan.graph)
        self._given, self._held = self._arguments.given, self._arguments.held
        self.names = self._arguments.names
        self.uids = tuple(tensor.uid for tensor in self._given + self._held)
        self._count = len(self.names)
        # How many buffers by position need no second look: numbers have no address.
        self._unchecked_buffer_count = -1 if any(tensor.by_value for tensor in self._given) else self._count
        self._alignment_mask = max([1, *(tensor.alignment for tensor in self._given)]) - 1
        self._last_signatures: list[Any] | None = None
        self._offsets, self._scratch_bytes = compute_scratch_offsets(self._held)
        self.workspace_bytes = self._scratch_bytes + plan.workspace_bytes
        self._scalars = {
            tensor.uid: make_scalar_array(tensor, tensor.value)
            for tensor in self._held
            if tensor.uid not in self._offsets
        }
        self._by_value = self._arguments.by_value
        self._scalar_arrays: dict[tuple[int, float | int], Any] = {}
        self._check = check
        self._given_workspace: tuple[int, Any] | None = None
        self._allocate = self._make_allocator(workspace)
        self._uses_torch_workspace = isinstance(workspace, str)
        self._stream = _make_stream_getter(stream)
        self._framework_decides = self._needs_buffers = stream is None
        self._chosen_stream = self._stream if callable(stream) else None
        self._local = threading.local()
        self._fast: Any = None  # of the state that was used last, in whichever thread
        self._create_device_memory()
        _live_executables.add(self)

    def __repr__(self) -> str:
        return format_in_angle_brackets(
            f"Executable {self.plan.tag} of {self.plan.graph.name!r}: {', '.join(self.names)}"
        )

    # calls

    def __call__(self, *buffers: Any, **named: Any) -> None:
        """Run with buffers by position, in the order of ``names``, or by name.

        Raises
        ------
        UsageError
            ``missing-buffer``, ``unknown-buffer``, ``buffer-twice``, ``null-pointer``, ``buffer-not-on-device``,
            ``buffer-of-another-device``, ``buffer-misaligned``, ``buffer-type``, ``buffer-too-small``,
            ``buffer-not-understood``, ``by-value-type``; all before anything is launched.
        CudnnStatusError
            What cuDNN refuses at launch.
        """
        if named or len(buffers) != self._unchecked_buffer_count:
            ordered = self._order_buffers(buffers, named)
            if ordered is None:
                self.run(self._arguments.merge(buffers, named))
                return
            buffers = ordered
        try:
            state: StreamState = self._local.state
        except AttributeError:
            state = self.get_stream_state(buffers)
        if self._chosen_stream is not None and self._chosen_stream() != state.stream:
            state = self.get_stream_state(buffers)
        if self._allocate is not None:
            _held = self._request_workspace(state)
        if status := state.call(buffers):
            self._call_with_checks(state, buffers, status)

    def _call_with_checks(self, state: StreamState, buffers: tuple[Any, ...], status: int) -> None:
        """Run a call with all checks, including those that the fast path leaves out."""
        if status == STREAM_CHANGED:
            state = self.get_stream_state(buffers)
            _held = self._request_workspace(state)
            status = state.call(buffers)
        if status >= 0:
            if status and state.fast is not None:
                raise self.plan.target.library.make_status_error(status, state.fast.failed_function)
            return
        try:
            addresses = (*[buffer.data_ptr() for buffer in buffers],)
        except AttributeError:  # not torch's
            self.run(self._arguments.merge(buffers, {}))
            return
        if state.stream != self._stream():
            state = self.get_stream_state(buffers)
            _held = self._request_workspace(state)
        key = addresses if self._allocate is None else (state.base, *addresses)
        pack = state.find(key)
        if pack is None or (self._check and pack.checked_buffer_ids != [*map(id, buffers)]):
            pack = self._check_and_find_variant_pack(state, key, addresses, buffers, pack)
        state.launch.run(pack)
        if state.fast is None:
            self._enable_fast_path(state, buffers)

    def _enable_fast_path(self, state: StreamState, buffers: tuple[Any, ...]) -> None:
        """Let the next calls on a stream use compiled code, if it can read buffers of this type."""
        functions = find_dlpack_exchange(type(buffers[0])) if buffers and load_compiled_library() is not None else None
        if functions is None:
            return
        state.fast = PlanCallWithTuple(
            state.launch,
            state.launcher.make_empty_pack(),
            state.launcher.filler,
            functions,
            given=self._count,
            wanted=[get_buffer_requirements(tensor) for tensor in self._given] if self._check else None,
            tail=state.extra_addresses,
            workspace=state.workspace,
            device=self._device,
            query_stream=self._framework_decides,
        )
        state.call = state.fast.go
        self._cache_thread_stream_state(state)

    def _cache_thread_stream_state(self, state: StreamState) -> None:
        """Keep a stream's state for this thread's next calls, unless their buffers may select another stream."""
        if self._needs_buffers:  # the next buffers may say whose current stream it is
            return
        self._local.state = state
        asks = self._chosen_stream is not None or self._allocate is not None
        self._fast = None if asks or state.fast is None else state.fast.compiled_self

    def run(self, buffers: Mapping[str | int, Any]) -> None:
        """Run with buffers by name or uid; NumPy arrays are copied to the device and back."""
        by_name = self._arguments.resolve(buffers)
        if any(isinstance(by_name[name], np.ndarray) and name not in self._by_value for name in by_name):
            stream = self._get_stream(by_name.values())
            from .run import execute

            copied: dict[str | int, Any] = dict(by_name.items())
            execute(self.plan, copied, stream=stream or None)
            return
        state = self.get_stream_state(by_name.values())
        pack, _held = self.get_variant_pack(state, by_name)
        state.launch.run(pack)

    def bind(self, *buffers: Any, **named: Any) -> Bound:
        """Return a function without arguments that runs on these buffers, the current stream and this thread's handle.

        It keeps the buffers alive. Raises what a call would. A graph of :meth:`cuda_graph` does the same with less
        host time, if the engine supports it.
        """
        by_name = self.resolve(buffers, named)
        state = self.get_stream_state(by_name.values())
        pack, held = self.get_variant_pack(state, by_name)
        return Bound._bind(self, state, pack, (by_name, held))

    def cuda_graph(self, *buffers: Any, **named: Any) -> CudaGraph:
        """Return a CUDA graph of the plan on these buffers, made by cuDNN itself.

        C: ``cudnnBackendPopulateCudaGraph`` (since 9.5); the engine must have the behaviour note
        SUPPORTS_CUDA_GRAPH_NATIVE_API.

        Raises
        ------
        NotSupported
            If the engine has no such graph; capture the stream then.
        """
        from .cuda_graph import CudaGraph

        return CudaGraph(self, self.resolve(buffers, named))

    def close(self) -> None:
        """Release variant packs and workspaces; work on the device must have finished."""
        self._local, self._fast = threading.local(), None
        self._free()
        self._create_device_memory()

    def _create_device_memory(self) -> None:
        self._memory = Memory(self._device)
        finalizer: Any = weakref.finalize(self, self._memory.free)
        finalizer.atexit = False
        self._free = finalizer

    def discard_gpu_resources_after_fork(self) -> None:
        """Forget handles and memory in a forked child, which has no access to their CUDA context."""
        self._free.detach()
        self._local, self._fast = threading.local(), None
        self._create_device_memory()

    # buffers by name

    def _order_buffers(self, buffers: tuple[Any, ...], named: Mapping[str, Any]) -> tuple[Any, ...] | None:
        """Return all buffers in the order of ``names`` if they need no further check, else None."""
        if len(buffers) + len(named) != self._unchecked_buffer_count:
            return None
        try:
            return (*buffers, *[named[name] for name in self.names[len(buffers) :]])
        except KeyError:
            return None

    def resolve(self, buffers: tuple[Any, ...], named: Mapping[str, Any]) -> dict[str, Any]:
        """Return all buffers of a call by the names of their tensors."""
        return self._arguments.resolve(self._arguments.merge(buffers, named))

    # states, streams, workspaces

    def get_stream_state(self, buffers: Any) -> StreamState:
        """Return this thread's state for the current stream."""
        stream = self._get_stream(buffers)
        states: dict[int, StreamState] = self._local.__dict__.setdefault("states", {})
        state = states.get(stream)
        if state is None:
            base = 0
            if self._given_workspace is not None:
                base, _ = self._given_workspace
            elif self._allocate is None:
                base = self._memory.allocate(self.workspace_bytes)
            state = states[stream] = StreamState(self, stream, base)
            self.streams.add(stream)
        self._cache_thread_stream_state(state)
        return state

    def _get_stream(self, buffers: Any) -> int:
        """Return the stream to run on; the framework of the first buffers decides."""
        if self._needs_buffers:
            found = next((getter for buffer in buffers if (getter := find_stream_getter(buffer)) is not None), None)
            if found is not None:
                self._stream = found
                self._needs_buffers = False
        return self._stream()

    def _make_allocator(self, workspace: Workspace) -> Callable[[int], Any] | None:
        """Return the allocator that provides a workspace for each call; None if the workspace stays the same."""
        if workspace is None:
            return None
        if isinstance(workspace, str):
            if workspace == "torch":
                return partial(allocate_torch_memory, self._device)
            raise UsageError(
                f"workspace must be 'torch', a function, a buffer or None, got {workspace!r}", code="wrong-argument"
            )
        if callable(workspace) and not hasattr(workspace, "data_ptr"):
            chosen: Callable[[int], Any] = workspace
            return chosen
        self._given_workspace = locate_workspace(workspace, self.workspace_bytes), workspace
        return None

    def _request_workspace(self, state: StreamState) -> Any:
        """Allocate this call's workspace by the caller's function; return the object that keeps it alive, or None."""
        if self._allocate is None or not self.workspace_bytes:
            return None
        held = self._allocate(self.workspace_bytes)
        base = held.data_ptr() if self._uses_torch_workspace else locate_workspace(held, self.workspace_bytes)
        if base != state.base:
            state.replace_workspace(self, base)
        return held

    # variant packs

    def get_extra_addresses(self, base: int) -> tuple[int, ...]:
        """Return the addresses of tensors that the caller does not give: scratch tensors and host scalars."""
        return tuple(
            base + self._offsets[tensor.uid]
            if tensor.uid in self._offsets
            else int(self._scalars[tensor.uid].ctypes.data)
            for tensor in self._held
        )

    @property
    def allocates_workspace(self) -> bool:
        """Whether a workspace is allocated for each call."""
        return self._allocate is not None

    @property
    def scratch(self) -> tuple[list[int | None], int]:
        """Workspace offsets of tensors that the caller does not give (None for host scalars), and the total bytes."""
        return [self._offsets.get(tensor.uid) for tensor in self._held], self._scratch_bytes

    def get_plan_workspace(self, base: int) -> int:
        """Return the address after the scratch tensors of a workspace at `base`, 0 if cuDNN needs no workspace."""
        return base + self._scratch_bytes if self.plan.workspace_bytes else 0

    def _check_and_find_variant_pack(
        self, state: StreamState, key: tuple[int, ...], addresses: tuple[int, ...], buffers: tuple[Any, ...], pack: Any
    ) -> Any:
        """Check torch tensors at new addresses; return their variant pack, created if `pack` is None."""
        if self._check:
            self._check_tensors(addresses, buffers)
        if pack is None:
            launcher = state.launcher
            pack = launcher.cache_pack(key, launcher.row(*addresses, *state.extra_addresses), state.workspace)
        pack.checked_buffer_ids = [*map(id, buffers)]
        return pack

    def _check_tensors(self, addresses: tuple[int, ...], buffers: tuple[Any, ...]) -> None:
        """Check torch tensors; only their alignment if type, dims, strides and GPU are as at the last check."""
        kinds = [_make_tensor_signature(buffer) for buffer in buffers]
        if kinds == self._last_signatures:
            wrong = self._alignment_mask
            for address in addresses:
                if address & wrong or not address:
                    break
            else:
                return
        for tensor, buffer in zip(self._given, buffers, strict=True):
            locate_buffer(tensor, buffer, self._device)
        self._last_signatures = kinds

    def get_variant_pack(self, state: StreamState, by_name: Mapping[str, Any]) -> tuple[Any, Any]:
        """Return the variant pack of these buffers, and the object that keeps the workspace alive."""
        held = self._request_workspace(state)
        places: dict[int, int] = {}
        numbers: list[Any] = []
        for name, buffer in by_name.items():
            tensor = self._arguments[name]
            if tensor.by_value:
                numbers.append(self._get_shared_scalar_array(tensor, buffer))
                places[tensor.uid] = int(numbers[-1].ctypes.data)
            else:
                places[tensor.uid] = get_buffer_address(buffer, name)
        extra_addresses = zip(self._held, state.extra_addresses, strict=True)
        row = [places[tensor.uid] for tensor in self._given]
        row += [places.get(tensor.uid, place) for tensor, place in extra_addresses]
        key = (state.workspace, *row)
        pack = state.find(key)
        seen = {name: _make_identity_key(by_name[name]) for name in self.names}
        if self._check and (pack is None or pack.checked_buffer_ids != seen):
            for name, buffer in by_name.items():
                if name not in self._by_value:
                    locate_buffer(self._arguments[name], buffer, self._device)
        if pack is None:
            pack = state.launcher.cache_pack(key, state.launcher.row(*row), state.workspace)
        pack.holds, pack.checked_buffer_ids = numbers, seen
        return pack, held

    def _get_shared_scalar_array(self, tensor: Tensor, value: Any) -> Any:
        """Return the host array of a scalar; equal values share an array, to which variant packs point."""
        try:
            key = (tensor.uid, value)
            array = self._scalar_arrays.get(key)
        except TypeError:  # an array of one number
            key = (tensor.uid, np.asarray(value).item())
            array = self._scalar_arrays.get(key)
        if array is None:
            array = make_scalar_array(tensor, value)
            if len(self._scalar_arrays) >= MAX_CACHED_SCALARS:
                # Packs hold the arrays they point to, so this forgets numbers and frees none in use.
                self._scalar_arrays.clear()
            self._scalar_arrays[key] = array
        return array


install_compiled_call_method(Executable)


class Bound(partial[None]):
    """A plan bound to buffers, a stream and the handle of the binding thread, called without arguments.

    Returns before the device has finished; raises ``CudnnStatusError`` for what cuDNN refuses at launch.

    Attributes
    ----------
    native
        ``cudnnBackendExecute`` as a ctypes function, and its arguments: handle, plan, variant pack.
    stream
        Address of the CUDA stream.
    holds
        What must live as long as it: the buffers, and the workspace if its hook made one.
    """

    stream: int
    native: tuple[Any, tuple[Any, Any, Any]]
    holds: Any

    @classmethod
    def _bind(cls, executable: Executable, state: StreamState, pack: Any, holds: Any) -> Bound:
        made = cls(state.launch.bind(pack))
        function, before = state.launch.function_and_leading_arguments
        made.native = function, (*before, pack.pointer)
        made.stream = state.stream
        made.holds = (executable, state, pack, holds)
        return made


def _get_default_stream() -> int:
    return 0


def _make_stream_getter(stream: Any) -> Callable[[], int]:
    if stream is None:
        return _get_default_stream
    if callable(stream) and not hasattr(stream, "cuda_stream"):
        getter: Callable[[], int] = stream
        return getter
    address = stream if isinstance(stream, int) else getattr(stream, "cuda_stream", getattr(stream, "ptr", None))
    if address is None:
        raise UsageError(
            f"stream must be an address, an object with cuda_stream or ptr, or a function, got {stream!r}",
            code="wrong-argument",
        )
    return partial(int, address)


def find_stream_getter(buffer: Any) -> Callable[[], int] | None:
    """Return the function that reads the current stream of the buffer's framework; None without one."""
    family = type(buffer).__module__.partition(".")[0]
    if family == "torch" and getattr(buffer, "is_cuda", False):
        current: Callable[[int], int] = sys.modules["torch"]._C._cuda_getCurrentRawStream
        return partial(current, buffer.get_device())
    if family == "cupy":
        stream = sys.modules["cupy"].cuda.get_current_stream
        return lambda: int(stream().ptr)
    return None


def allocate_torch_memory(device: int, size_bytes: int) -> Any:
    torch = sys.modules["torch"]
    return torch.empty(size_bytes, dtype=torch.uint8, device=device)


def _make_tensor_signature(tensor: Any) -> Any:
    """Return type, dims, strides and GPU of a torch tensor; a unique value for other objects."""
    try:
        return tensor.dtype, tensor.shape, tensor.stride(), tensor.get_device()
    except (AttributeError, TypeError):
        return object()


def _make_identity_key(buffer: Any) -> int:
    """Return a cache key for a buffer: its ``id``; for an address, the address."""
    return buffer if type(buffer) is int else id(buffer)
