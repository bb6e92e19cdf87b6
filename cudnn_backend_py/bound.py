"""``Executable``: a plan with everything bound ahead, the shortest way from buffers to a running kernel.

What a call costs is measured by ``cudnn-backend bench``. Same buffers: their addresses find a finalized variant pack.
New buffers: the oldest pack is filled anew. Same buffers for sure: :meth:`Executable.bind`, a call without arguments.
Checks are made for buffers that were not seen before, and for no others.
"""

from __future__ import annotations

import os
import sys
import threading
import weakref
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Literal

import numpy as np

from .buffers import DeviceBuffer, device_buffer
from .errors import EnvironmentNotReady, UsageError
from .execution import DeviceMemory, check_buffer, execute, scalar_array, scratch_offsets
from .graph.ir import Tensor
from .native import Handle
from .native.cuda import CudaGraphHandle, pointer_facts
from .native.launch import Launcher
from .plans import Plan

__all__ = ["Bound", "CudaGraph", "Executable"]

Workspace = Callable[[int], Any] | Literal["torch"] | Any
SCALARS_KEPT = 64


class _ThreadHandle:
    """The handle of one thread on one GPU, and the stream it was last given."""

    def __init__(self, plan: Plan) -> None:
        self.handle = Handle(on=plan.target.library)
        self.pointer = self.handle.pointer
        self.stream = 0

    def use(self, stream: int) -> None:
        """Run on this stream from now on."""
        self.handle.set_stream(stream)
        self.stream = stream


_thread = threading.local()
_live: weakref.WeakSet[Executable] = weakref.WeakSet()


def _thread_handle(plan: Plan) -> _ThreadHandle:
    handle = plan.target.handle
    assert handle is not None
    _ = handle.owner  # says so after a fork, or if the target was closed
    held: dict[int, _ThreadHandle] = _thread.__dict__.setdefault("handles", {})
    if handle.device not in held:
        held[handle.device] = _ThreadHandle(plan)
    return held[handle.device]


def _after_fork() -> None:
    """CUDA does not survive a fork: let the child find out at its first call, by an exception."""
    _thread.__dict__.clear()
    for executable in list(_live):
        executable.forget_threads()


os.register_at_fork(after_in_child=_after_fork)


class _Lane:
    """What one thread needs to run one executable: a handle, and variant packs by the caller's addresses."""

    def __init__(self, owner: Executable) -> None:
        self.holder = _thread_handle(owner.plan)
        self.launcher = Launcher(owner.plan.descriptor, owner.uids)
        self.find = self.launcher.find
        self.execute = self.launcher.execute
        self.plan = owner.plan.descriptor.pointer
        self.workspaces: dict[int, int] = {}  # by stream


class Executable:
    """A plan ready to be called with buffers, by position, by name or by uid; returns before the device has finished.

    Threads may share it: each gets a handle and, without a workspace of the caller, device memory per stream. Host
    numbers of by-value tensors can be given by name at each call.

    Parameters
    ----------
    plan
        Built for, or loaded on, the GPU of this process.
    workspace
        None: device memory of its own (cuda-python), one piece per stream. "torch": torch's caching allocator at each
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
        if plan.target.handle is None:
            raise EnvironmentNotReady(
                f"this plan was made for the described target {plan.target.name}, which cannot run",
                code="plan-without-device",
                fix="save it and load it where the GPU is, or build it there with target None",
            )
        self.plan = plan
        tensors = plan.graph.variant_pack_tensors
        written = {tensor.uid for tensor in plan.graph.outputs}
        given = [
            tensor for tensor in tensors if not tensor.scratch and not (tensor.by_value and tensor.value is not None)
        ]
        self._given = [tensor for tensor in given if tensor.uid not in written]
        self._given += [tensor for tensor in given if tensor.uid in written]
        self.names = tuple(tensor.name for tensor in self._given)
        self.uids = tuple(tensor.uid for tensor in tensors)
        self._count = len(self.names)
        self._offsets, self._scratch_bytes = scratch_offsets(tensors)
        self.workspace_bytes = self._scratch_bytes + plan.workspace_bytes
        self._scalars = {
            tensor.uid: scalar_array(tensor, tensor.value) for tensor in tensors if tensor.value is not None
        }
        self._by_value = {tensor.name: tensor for tensor in tensors if tensor.by_value}
        self._numbers: dict[tuple[int, float | int], Any] = {}
        self._by_key: dict[str | int, Tensor] = {tensor.name: tensor for tensor in tensors}
        self._by_key |= {tensor.uid: tensor for tensor in tensors}
        self._check = check
        self._allocate = self._allocator(workspace)
        self._stream = _stream_getter(stream)
        self._asks_buffers = stream is None
        self._local = threading.local()
        self._memory_lock = threading.Lock()
        self._own_memory()
        _live.add(self)

    def __repr__(self) -> str:
        return f"<Executable {self.plan.tag} of {self.plan.graph.name!r}: {', '.join(self.names)}>"

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
        if named or len(buffers) != self._count:
            self.run(self._named(buffers, named))
            return
        try:
            lane: _Lane = self._local.lane
        except AttributeError:
            lane = self._new_lane(buffers)
        stream = self._stream()
        try:
            key = (stream, *[buffer.data_ptr() for buffer in buffers])
        except AttributeError:
            self.run(self._named(buffers, {}))
            return
        holder = lane.holder
        if stream != holder.stream:
            holder.use(stream)
        if self._allocate is not None:
            self._run_allocated(lane, key, buffers)
            return
        pack = lane.find(key)
        if pack is None:
            pack = self._new_pack(lane, key, dict(zip(self.names, buffers, strict=True)))
        if status := lane.execute(holder.pointer, lane.plan, pack.pointer):
            self._fail(status)

    def run(self, buffers: Mapping[str | int, Any]) -> None:
        """Run with buffers by name or uid; NumPy arrays are copied to the device and back."""
        by_name = self._normal(buffers)
        if any(isinstance(by_name[name], np.ndarray) and name not in self._by_value for name in by_name):
            stream = self._stream_for(by_name.values())
            copied: dict[str | int, Any] = dict(by_name.items())
            execute(self.plan, copied, stream=stream or None)
            return
        lane = self._lane(by_name.values())
        pack, _held = self._pack_for(lane, by_name)
        if status := lane.execute(lane.holder.pointer, lane.plan, pack.pointer):
            self._fail(status)

    def bind(self, *buffers: Any, **named: Any) -> Bound:
        """Return a call without arguments on these buffers, the stream that is current now, and this thread's handle.

        It holds the buffers. Raises what a call would.
        """
        by_name = self._normal(self._named(buffers, named))
        lane = self._lane(by_name.values())
        pack, held = self._pack_for(lane, by_name)
        return Bound(self, lane, pack, lane.holder.stream, (by_name, held))

    def cuda_graph(self, *buffers: Any, **named: Any) -> CudaGraph:
        """Return a CUDA graph of the plan on these buffers, made by cuDNN itself.

        C: ``cudnnBackendPopulateCudaGraph`` (since 9.5); the engine must have the behaviour note
        SUPPORTS_CUDA_GRAPH_NATIVE_API.

        Raises
        ------
        NotSupported
            If the engine has no such graph; capture the stream then.
        """
        return CudaGraph(self, self._normal(self._named(buffers, named)))

    def close(self) -> None:
        """Let go of variant packs and workspaces; work on the device must have finished."""
        self._local = threading.local()
        self._free()
        self._own_memory()

    def _own_memory(self) -> None:
        self._memory = DeviceMemory()
        finalizer: Any = weakref.finalize(self, self._memory.free)
        finalizer.atexit = False
        self._free = finalizer

    def forget_threads(self) -> None:
        """Forget the handles of threads, whose CUDA context is gone after a fork."""
        self._local = threading.local()

    def _fail(self, status: int) -> None:
        raise self.plan.target.library.status_error(status, "cudnnBackendExecute")

    # buffers by name

    def _named(self, buffers: tuple[Any, ...], named: Mapping[str, Any]) -> dict[str | int, Any]:
        if len(buffers) > self._count:
            raise UsageError(
                f"{len(buffers)} buffers were given, the plan takes {self._count}",
                code="unknown-buffer",
                where=f"in this order: {', '.join(self.names)}",
            )
        by_name: dict[str | int, Any] = dict(zip(self.names, buffers, strict=False))
        for name, buffer in named.items():
            if name in by_name:
                raise UsageError(f"tensor {name!r} was given twice, by position and by name", code="buffer-twice")
            by_name[name] = buffer
        return by_name

    def _normal(self, buffers: Mapping[str | int, Any]) -> dict[str, Any]:
        """Return the buffers by name, none missing, none unknown."""
        by_name: dict[str, Any] = {}
        for key, buffer in buffers.items():
            tensor = self._by_key.get(key)
            if tensor is None:
                raise UsageError(
                    f"the graph has no tensor {key!r} in memory", code="unknown-buffer", where=f"it has {self._names()}"
                )
            if tensor.name in by_name:
                raise UsageError(f"tensor {tensor.name!r} was given twice, by name and by uid", code="buffer-twice")
            by_name[tensor.name] = buffer
        missing = [name for name in self.names if by_name.get(name) is None]
        if missing:
            raise UsageError(f"no buffer was given for {', '.join(missing)}", code="missing-buffer")
        return by_name

    def _names(self) -> str:
        return ", ".join(tensor.name for tensor in self.plan.graph.variant_pack_tensors)

    # lanes, streams, workspaces

    def _lane(self, buffers: Any) -> _Lane:
        try:
            lane: _Lane = self._local.lane
        except AttributeError:
            lane = self._new_lane(buffers)
        stream = self._stream()
        if stream != lane.holder.stream:
            lane.holder.use(stream)
        return lane

    def _new_lane(self, buffers: Any) -> _Lane:
        self._stream_for(buffers)
        lane = self._local.lane = _Lane(self)
        return lane

    def _stream_for(self, buffers: Any) -> int:
        """Return the stream to run on; the first buffers decide whose current stream that is."""
        if self._asks_buffers:
            found = next((getter for buffer in buffers if (getter := _framework_stream(buffer)) is not None), None)
            if found is not None:
                self._stream = found
                self._asks_buffers = False
        return self._stream()

    def _allocator(self, workspace: Workspace) -> Callable[[int], Any] | None:
        if workspace is None:
            return None
        if workspace == "torch":
            return _torch_memory
        if callable(workspace) and not hasattr(workspace, "data_ptr"):
            chosen: Callable[[int], Any] = workspace
            return chosen
        return lambda _size: workspace

    def _own_workspace(self, lane: _Lane) -> int:
        """Return this thread's workspace for its current stream, allocated at its first use."""
        stream = lane.holder.stream
        base = lane.workspaces.get(stream)
        if base is None:
            with self._memory_lock:
                base = self._memory.allocate(self.workspace_bytes)
            lane.workspaces[stream] = base
        return base

    def _workspace(self, lane: _Lane) -> tuple[int, Any]:
        """Return the workspace's address, and what holds it."""
        if not self.workspace_bytes:
            return 0, None
        if self._allocate is None:
            return self._own_workspace(lane), None
        held = self._allocate(self.workspace_bytes)
        if held is None:
            raise UsageError(
                f"the workspace hook returned None, {self.workspace_bytes} bytes are needed", code="workspace-missing"
            )
        buffer = device_buffer(held, "workspace")
        if buffer.size_bytes is not None and buffer.size_bytes < self.workspace_bytes:
            raise UsageError(
                f"the workspace has {buffer.size_bytes} bytes, {self.workspace_bytes} are needed",
                code="buffer-too-small",
            )
        return buffer.ptr, held

    # variant packs

    def _run_allocated(self, lane: _Lane, key: tuple[int, ...], buffers: tuple[Any, ...]) -> None:
        base, _held = self._workspace(lane)
        key = (base, *key)
        pack = lane.find(key)
        if pack is None:
            pack = self._new_pack(lane, key, dict(zip(self.names, buffers, strict=True)), base)
        if status := lane.execute(lane.holder.pointer, lane.plan, pack.pointer):
            self._fail(status)

    def _pack_for(self, lane: _Lane, by_name: Mapping[str, Any]) -> tuple[Any, Any]:
        """Return the pack of these buffers, and what holds the workspace."""
        base, held = self._workspace(lane)
        places = [self._place(by_name[name], name) for name in by_name]
        key = (base, lane.holder.stream, len(by_name), *map(hash, by_name), *places)
        pack = lane.find(key)
        if pack is None:
            pack = self._new_pack(lane, key, by_name, base)
        return pack, held

    def _place(self, buffer: Any, name: str) -> int:
        tensor = self._by_value.get(name)
        if tensor is not None:
            return int(self._number(tensor, buffer).ctypes.data)
        if type(buffer) is int:
            return buffer
        try:
            return int(buffer.data_ptr())
        except AttributeError:
            return device_buffer(buffer, name).ptr

    def _number(self, tensor: Tensor, value: Any) -> Any:
        """Return a host array of one number, the same one for the same number: packs point to it."""
        try:
            key = (tensor.uid, value)
            array = self._numbers.get(key)
        except TypeError:  # an array of one number
            key = (tensor.uid, np.asarray(value).item())
            array = self._numbers.get(key)
        if array is None:
            array = scalar_array(tensor, value)
            if len(self._numbers) >= SCALARS_KEPT:
                # Packs hold the arrays they point to, so this forgets numbers and frees none in use.
                self._numbers.clear()
            self._numbers[key] = array
        return array

    def _new_pack(self, lane: _Lane, key: tuple[int, ...], by_name: Mapping[str, Any], base: int | None = None) -> Any:
        """Check the buffers and make their variant pack."""
        if base is None:
            base, _ = self._workspace(lane)
        arrays = {
            tensor.uid: self._scalars[tensor.uid] for tensor in self._by_value.values() if tensor.value is not None
        }
        places: dict[int, int] = {uid: base + offset for uid, offset in self._offsets.items()}
        for name, buffer in by_name.items():
            tensor = self._by_key[name]
            if tensor.by_value:
                arrays[tensor.uid] = self._number(tensor, buffer)
            elif self._check:
                places[tensor.uid] = self._checked(tensor, buffer)
            else:
                places[tensor.uid] = self._place(buffer, name)
        places |= {uid: int(array.ctypes.data) for uid, array in arrays.items()}
        workspace = base + self._scratch_bytes if self.plan.workspace_bytes else 0
        pack = lane.launcher.keep(key, (workspace, *(places[uid] for uid in self.uids)))
        pack.holds = arrays
        return pack

    def _checked(self, tensor: Tensor, source: Any) -> int:
        """Return where a buffer lies, after checking that it is device memory the tensor fits in."""
        buffer = device_buffer(source, tensor.name)
        facts = pointer_facts(buffer.ptr)
        name = tensor.name
        if facts.kind == "unknown":
            raise UsageError(
                f"buffer {name!r} lies at {buffer.ptr:#x}, which is no memory of a GPU",
                code="buffer-not-on-device",
                fix="give device memory that is still allocated",
            )
        handle = self.plan.target.handle
        mine = 0 if handle is None else handle.device
        if facts.kind == "device" and facts.device not in (None, mine):
            raise UsageError(
                f"buffer {name!r} lies on GPU {facts.device}, the plan runs on GPU {mine}",
                code="buffer-of-another-device",
            )
        if buffer.size_bytes is None and facts.bytes_left is not None:
            buffer = DeviceBuffer(buffer.ptr, facts.bytes_left)
        check_buffer(tensor, buffer)
        return buffer.ptr


class Bound:
    """A call without arguments: one plan, one set of buffers, one stream, the handle of the thread that bound it."""

    __slots__ = ("_executable", "_go", "_holder", "_pack", "_stream", "holds")

    def __init__(self, executable: Executable, lane: _Lane, pack: Any, stream: int, holds: Any) -> None:
        self._executable = executable
        self._holder = lane.holder
        self._stream = stream
        self._pack = pack
        self.holds = holds
        self._go = partial(lane.execute, lane.holder.pointer, lane.plan, pack.pointer)

    @property
    def native(self) -> tuple[Any, tuple[Any, Any, Any]]:
        """``cudnnBackendExecute`` as a ctypes function, and its arguments: handle, plan, variant pack."""
        return self._go.func, self._go.args

    def __call__(self) -> None:
        """Launch; returns before the device has finished.

        Raises
        ------
        CudnnStatusError
            What cuDNN refuses at launch.
        """
        holder = self._holder
        if holder.stream != self._stream:
            holder.use(self._stream)
        if status := self._go():
            raise self._executable.plan.target.library.status_error(status, "cudnnBackendExecute")


class CudaGraph:
    """A CUDA graph cuDNN made of a plan: launched again and again, given other buffers without being made anew."""

    def __init__(self, executable: Executable, by_name: Mapping[str, Any]) -> None:
        self._executable = executable
        lane = executable._lane(by_name.values())
        self._held: list[Any] = []
        self._graph = CudaGraphHandle()
        finalizer: Any = weakref.finalize(self, self._graph.close)
        finalizer.atexit = False
        pack = self._pack(lane, by_name)
        lane.launcher.populate(lane.holder.handle, pack, self._graph.graph.value or 0)
        self._graph.instantiate()
        self._stream = lane.holder.stream
        self._again()

    def _again(self) -> None:
        self._go = self._graph.bound(self._stream)

    def _pack(self, lane: _Lane, by_name: Mapping[str, Any]) -> Any:
        pack, held = self._executable._pack_for(lane, by_name)
        self._held = [pack, held, by_name]
        return pack

    @property
    def address(self) -> int:
        """Address of the ``cudaGraph_t``, to add to a graph of one's own as a child."""
        return self._graph.graph.value or 0

    def update(self, *buffers: Any, **named: Any) -> None:
        """Give the graph other buffers. C: ``cudnnBackendUpdateCudaGraph``, ``cuGraphExecUpdate``."""
        executable = self._executable
        by_name = executable._normal(executable._named(buffers, named))
        lane = executable._lane(by_name.values())
        lane.launcher.update(lane.holder.handle, self._pack(lane, by_name), self.address)
        self._graph.update()
        self._again()

    def launch(self, stream: int | None = None) -> None:
        """Run it on a stream, on the one that was current when it was made by default.

        Raises
        ------
        CudnnBackendError
            ``cuda-driver``.
        """
        if stream is not None:
            self._graph.launch(stream)
        elif self._go():
            self._graph.launch(self._stream)

    __call__ = launch

    def close(self) -> None:
        """Destroy the graph; work on the device goes on."""
        self._graph.close()
        self._held.clear()


def _default_stream() -> int:
    return 0


def _stream_getter(stream: Any) -> Callable[[], int]:
    if stream is None:
        return _default_stream
    if callable(stream) and not hasattr(stream, "cuda_stream"):
        getter: Callable[[], int] = stream
        return getter
    address = stream if isinstance(stream, int) else getattr(stream, "cuda_stream", getattr(stream, "ptr", None))
    if address is None:
        raise UsageError(
            f"stream is {stream!r}, an address, an object with cuda_stream or ptr, or a function is needed",
            code="wrong-argument",
        )
    return partial(int, address)


def _framework_stream(buffer: Any) -> Callable[[], int] | None:
    """Return what answers the current stream of the framework a buffer is of, None where there is none to ask."""
    family = type(buffer).__module__.partition(".")[0]
    if family == "torch" and getattr(buffer, "is_cuda", False):
        current: Callable[[int], int] = sys.modules["torch"]._C._cuda_getCurrentRawStream
        return partial(current, buffer.get_device())
    if family == "cupy":
        stream = sys.modules["cupy"].cuda.get_current_stream
        return lambda: int(stream().ptr)
    return None


def _torch_memory(size_bytes: int) -> Any:
    torch = sys.modules["torch"]
    return torch.empty(size_bytes, dtype=torch.uint8, device="cuda")
