"""Launch a plan with a user's variant pack; where each buffer's address goes is computed once per plan."""

from __future__ import annotations

import os
import sys
import weakref
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..errors import CudnnBackendError
from ..execution.buffers import find_dlpack_exchange, get_host_address, read_device_buffer
from ..execution.checks import compute_scratch_offsets, make_scalar_array
from ..execution.stream_state import get_live_handle
from ..graph.ir import Graph, Tensor
from ..native import Handle
from ..native.cuda import (
    Memory,
    get_captured_graph,
    keep_alive_with_cuda_graph,
    make_stream_context_current,
    release_objects_of_destroyed_graphs,
)
from ..native.fast_call import NEEDS_PYTHON, PlanCallWithDict, load_compiled_library
from ..native.launch import Launcher, Overrides
from ..plans.plan import Plan
from .errors import FrontendKeyError, FrontendRuntimeError, FrontendValueError, convert_error, convert_errors
from .handles import DescribedHandle, make_not_a_handle_error
from .tensors import tensor

__all__ = ["InternalTensorPlacement", "Runner"]

MAX_CHECKED_PACKS = 16


class InternalTensorPlacement:
    """Memory layout of tensors that are not in the user's variant pack: scratch in the workspace, constants, slices.

    ``scratch_bytes`` is what :meth:`pygraph.get_workspace_size` adds to a plan's workspace. `scratch` says where
    scratch is, by uid, and how many bytes there are, where another program has laid it out.
    """

    def __init__(
        self,
        graph: Graph,
        constants: Mapping[int, Sequence[float]],
        slices: Mapping[int, tuple[int, int]],
        scratch: tuple[dict[int, int], int] | None = None,
    ) -> None:
        self.graph = graph
        self.by_uid = {item.uid: item for item in graph.tensors}
        self.tensors = tuple(item for item in self.by_uid.values() if not item.virtual)
        self.constants = dict(constants)
        read = {item.uid for item in self.tensors}  # a slice that no operation reads is none
        # uid of a slice: (uid of the whole, bytes from its start)
        self.slices = {uid: place for uid, place in slices.items() if uid in read}
        self.offsets, self.scratch_bytes = scratch or compute_scratch_offsets(self.tensors)

    def list_user_uids(self) -> list[int]:
        """Return the uids that the user's variant pack must have, including sliced tensors."""
        held = {item.uid for item in self.tensors if item.by_value and item.value is not None}
        mine = held | set(self.offsets) | set(self.constants) | set(self.slices)
        uids = [item.uid for item in self.tensors if item.uid not in mine]
        return uids + [whole for whole, _ in dict.fromkeys(self.slices.values()) if whole not in uids]


_live_runners: weakref.WeakSet[Runner] = weakref.WeakSet()


def _invalidate_runners_after_fork() -> None:
    """Make the first call in a forked child raise, as a CUDA context does not survive a fork."""
    for runner in list(_live_runners):
        runner._handle_checked = object()


os.register_at_fork(after_in_child=_invalidate_runners_after_fork)


class Runner:
    """Executes a plan with users' variant packs.

    Its keys are the workspace, then the addresses in the launcher's order of uids. Where `retains`, CUDA graphs that
    are captured from its launches keep it.
    """

    def __init__(
        self, plan: Plan, memory: InternalTensorPlacement, tensors: Mapping[tensor, Tensor], *, retains: bool = True
    ) -> None:
        self.plan = plan
        # Since 9.27 cuDNN itself has such graphs keep a plan's kernels, but not what is on the device next to it.
        self._retains = retains and (plan.target.library.version < (9, 27) or bool(memory.constants))
        self._kept_for: set[tuple[int, int]] = set()
        release_objects_of_destroyed_graphs()
        self._memory = memory
        uids = [item.uid for item in memory.tensors]
        extra = [uid for uid in memory.list_user_uids() if uid not in uids]
        self.launcher = Launcher(plan.descriptor, uids)
        self._find, self._run = self.launcher.find, self.launcher.run
        self._length = 1 + len(uids)
        # Positions: 0 is the workspace, then the tensors, then wholes that only slices of are in the graph.
        position = {uid: index for index, uid in enumerate([*uids, *extra], 1)}
        self._values = {
            item.uid: make_scalar_array(item, item.value) for item in memory.tensors if item.value is not None
        }
        self._device: Memory | None = None
        self._template = [0] * (1 + len(position))
        for uid, array in self._values.items():
            self._template[position[uid]] = array.ctypes.data
        self._scratch = [(position[uid], offset) for uid, offset in memory.offsets.items()]
        self._slices = [(position[uid], position[whole], start) for uid, (whole, start) in memory.slices.items()]
        self._constants = [(position[uid], values) for uid, values in memory.constants.items()]
        self._positions: dict[Any, int] = {uid: position[uid] for uid in memory.list_user_uids()}
        self._positions |= {
            source: self._positions[made.uid] for source, made in tensors.items() if made.uid in self._positions
        }
        self._names = names = Counter(source.name for source in tensors)
        self._positions |= {
            source.name: self._positions[made.uid]
            for source, made in tensors.items()
            if made.uid in self._positions and source.name and names[source.name] == 1
        }
        by_uid = {item.uid: item for item in memory.tensors}
        self._is_special = bool(self._scratch or self._slices or self._constants or extra)
        self._has_workspace = plan.workspace_bytes > 0
        self._handle_checked: Any = object()  # no handle yet, and not None, which is refused
        self._handle_address: int | None = None
        _live_runners.add(self)
        self._packs_to_check = MAX_CHECKED_PACKS
        self._user = [(position[uid], uid, by_uid.get(uid)) for uid in memory.list_user_uids()]
        self._mapped: PlanCallWithDict | None = None
        self._go: Callable[[Any, Any, Any], int] = _report_python_checks_needed

    @property
    def workspace_bytes(self) -> int:
        """Bytes of the user's workspace: scratch tensors and the plan's own."""
        return self._memory.scratch_bytes + self.plan.workspace_bytes

    def execute(self, pack: Mapping[Any, Any], workspace: Any, handle: Any) -> None:
        """Run the plan with a user's variant pack."""
        if handle is not self._handle_checked or handle._owner is None:  # which is closed
            if handle is None or isinstance(handle, DescribedHandle):
                self._check_pack_without_device(pack)
            self.check_handle(handle)
        try:
            status = self._go(self._handle_address, pack, workspace)
        except CudnnBackendError as error:
            raise convert_error(FrontendRuntimeError, "the launch", error) from error
        if status:
            self._execute_with_checks(pack, workspace, handle, status)

    def _execute_with_checks(self, pack: Mapping[Any, Any], workspace: Any, handle: Any, status: int) -> None:
        """Launch with all checks, and enable the compiled fast path for similar calls."""
        if status > 0 and self._mapped is not None:
            raise convert_error(FrontendRuntimeError, "the launch", self._mapped.error(status))
        key = self.resolve_addresses(pack, workspace)
        made = self._find(key)
        if made is None:
            made = self._check_and_cache_pack(pack, key)
        try:
            self._launch(handle, made)
        except CudnnBackendError as error:
            raise convert_error(FrontendRuntimeError, "the launch", error) from error
        if self._mapped is not None:
            self._mapped.bind_current_context()
        if load_compiled_library() is not None and not self._slices:
            self._enable_fast_path(pack, workspace)

    def _launch(self, handle: Handle, made: Any) -> None:
        """Launch in the context of the handle's stream; keep the plan alive if the stream is captured."""
        stream = self.launcher.query_stream(handle)
        if stream is not None:  # else cuDNN says what is wrong with the handle
            make_stream_context_current(stream, handle.device or 0)
            if self._retains and (captured := get_captured_graph(stream)) is not None:
                self._keep_plan_alive(*captured)
        self._run(handle, made)

    def _enable_fast_path(self, pack: Mapping[Any, Any], workspace: Any) -> None:
        """Let compiled code run later calls with plain addresses or buffers of the same framework."""
        kinds = {type(value) for value in (*pack.values(), workspace)}
        found = next(filter(None, map(find_dlpack_exchange, kinds)), None)
        if self._length > PlanCallWithDict.MAX_PLACES or (
            self._mapped is not None and (found is None or self._mapped.exchange is not None)
        ):
            return
        self._mapped = self.launcher.make_dict_call(
            found,
            [(key, at - 1) for key, at in self._positions.items()],
            on_host=frozenset(at - 1 for at, _, item in self._user if item is not None and item.by_value),
            row=self._template[1:],
            scratch=[(at - 1, offset) for at, offset in self._scratch],
            own_offset=self._memory.scratch_bytes if self._has_workspace else None,
            reports_captures=self._retains,
        )
        self._go = self._mapped.go

    def execute_with_overrides(
        self, pack: Mapping[Any, Any], workspace: Any, handle: Any, overrides: Overrides
    ) -> None:
        """Run the plan with other dims and strides for some uids."""
        self.check_handle(handle)
        key = self.resolve_addresses(pack, workspace)
        self._check_pack(pack, key)
        with convert_errors(FrontendRuntimeError, "the launch with other dims and strides"):
            self._launch(handle, self.launcher.pack(self.launcher.row(*key[1:]), key[0], overrides))

    def query_workspace_with_overrides(self, handle: Any, overrides: Overrides) -> int:
        """Return the workspace bytes needed for a launch with override dims and strides of some uids."""
        self.check_handle(handle)
        with convert_errors(FrontendRuntimeError, "the workspace for other dims and strides"):
            return self._memory.scratch_bytes + self.launcher.workspace_bytes(handle, overrides)

    def resolve_addresses(self, pack: Mapping[Any, Any], workspace: Any) -> tuple[int, ...]:
        """Return the addresses of workspace and buffers in the launcher's order, 0 for missing ones.

        Raises
        ------
        FrontendValueError
            What an object without an address is refused with.
        """
        addresses = self._template.copy()
        find = self._positions.get
        for name, value in pack.items():
            at = find(name)
            if at is None:
                at = find(name.uid) if type(name) is tensor else None
                if at is None:
                    continue  # cudnn-frontend ignores what the graph has no use for
            if type(value) is int:
                addresses[at] = value
            else:
                try:
                    addresses[at] = value.data_ptr()
                except AttributeError:
                    addresses[at] = _get_buffer_address(value, name)
        base = workspace if type(workspace) is int else _get_workspace_address(workspace)
        if self._is_special:
            base = self._fill_internal_addresses(addresses, base)
        if self._has_workspace:
            addresses[0] = base
        return tuple(addresses)

    def _fill_internal_addresses(self, addresses: list[int], base: int) -> int:
        """Fill in the addresses of scratch, constants and slices; return the address of the plan's workspace."""
        if self._constants and self._device is None:
            self._upload_constants()
        for at, _ in self._constants:
            addresses[at] = self._template[at]
        for at, offset in self._scratch:
            addresses[at] = base + offset if base else 0
        for at, whole, start in self._slices:
            addresses[at] = addresses[whole] + start if addresses[whole] else 0
        del addresses[self._length :]
        return base + self._memory.scratch_bytes if base else 0

    def _check_and_cache_pack(self, pack: Mapping[Any, Any], key: tuple[int, ...]) -> Any:
        self._check_pack(pack, key)
        try:
            return self.launcher.cache_pack(key, self.launcher.row(*key[1:]), key[0])
        except CudnnBackendError as error:
            raise convert_error(FrontendRuntimeError, "the variant pack", error) from error

    def _check_pack_without_device(self, pack: Mapping[Any, Any]) -> None:
        """Check, without using a device, that every tensor has a buffer, and that each buffer has an address."""
        self._check_tensor_names(pack)
        given = set()
        for name, value in pack.items():
            at = self._positions.get(name, self._positions.get(name.uid) if type(name) is tensor else None)
            if at is not None and value is not None:
                given.add(at)
                if type(value) is not int and not hasattr(value, "data_ptr"):
                    _get_buffer_address(value, name)
        absent = {uid for at, uid, _ in self._user if at not in given}
        if absent:
            self._raise_missing_buffers(absent)

    def _raise_missing_buffers(self, absent: set[int]) -> None:
        absent |= {whole for uid, (whole, _) in self._memory.slices.items() if uid in absent}
        missing = [
            f"tensor uid {uid}" + (f" ({item.name!r})" if item is not None and item.name else "")
            for _, uid, item in self._user
            if uid in absent
        ]
        what = (
            f"the variant pack is missing a buffer for {', '.join(missing)}"
            if missing
            else f"the plan requires a {self.workspace_bytes}-byte workspace but received null"
        )
        raise FrontendValueError(
            what,
            code="missing-buffer",
            fix="give each tensor in memory that is not virtual, by tensor or uid, and a workspace of "
            f"get_workspace_size() = {self.workspace_bytes} bytes",
        )

    def check_handle(self, handle: Any) -> None:
        """Check that a handle is open and belongs to the plan's device.

        Raises
        ------
        FrontendRuntimeError
            ``plan-without-device`` where the plan is of a described target; a handle that is closed or of another GPU.
        TypeError
            If it is no handle.
        """
        if handle is None or isinstance(handle, DescribedHandle):
            raise FrontendRuntimeError(
                f"this graph was built for the described target {self.plan.target.name}, on which plans cannot run",
                code="plan-without-device",
                fix="serialize() it and deserialize() it where the GPU is, or build it there",
            )
        if not isinstance(handle, Handle):
            raise make_not_a_handle_error(handle)
        with convert_errors(FrontendRuntimeError, "the handle"):
            self.launcher.check_handle(handle)
        self._handle_address = handle.owner.pointer.value
        self._handle_checked = handle

    def _check_pack(self, pack: Mapping[Any, Any], key: tuple[int, ...]) -> None:
        """Check a new variant pack: all addresses are given, and buffers are on a device.

        Buffers are looked at in the first variant packs of a plan only: a program that gives host memory does so
        from the start.
        """
        self._check_tensor_names(pack)
        if 0 in key and (0 in key[1:] or self._has_workspace):
            self._raise_missing_buffers({uid for uid, at in zip(self.launcher.uids, key[1:], strict=True) if not at})
        if self._packs_to_check:
            self._packs_to_check -= 1
            for name, value in pack.items():
                if type(value) is not int and not getattr(value, "is_cuda", True):
                    self._reject_host_buffer(name, value)

    def _check_tensor_names(self, pack: Mapping[Any, Any]) -> None:
        unknown = [name for name in pack if type(name) is str and name not in self._names]
        if unknown:
            raise FrontendKeyError(
                f"the graph has no tensor {unknown[0]!r}",
                code="unknown-buffer",
                fix=f"its tensors are {', '.join(sorted(self._names)) or 'known by uid only'}",
            )

    def _reject_host_buffer(self, name: Any, value: Any) -> None:
        """Raise if a tensor that is not by value was given a buffer in host memory."""
        uid = name.uid if isinstance(name, tensor) else name
        item = next((item for _, known, item in self._user if known == uid), None)
        if item is not None and not item.by_value:
            raise FrontendValueError(
                f"tensor {item.name!r} (uid {uid}) was given a buffer on {value.device}, CUDA memory is needed",
                code="buffer-not-on-device",
                fix="move it to the GPU, or make it a by-value scalar with set_is_pass_by_value(True)",
            )

    def _upload_constants(self) -> None:
        """Copy the graph's constants to the device, once."""
        import numpy as np  # few graphs have constants

        try:
            memory = Memory(get_live_handle(self.plan).device or 0)
            for at, values in self._constants:
                self._template[at] = memory.copy_to_device(np.asarray(values, np.float32))
        except CudnnBackendError as error:
            raise convert_error(
                FrontendRuntimeError, "the graph's constants could not be copied to the device", error
            ) from error
        self._device = memory
        finalizer: Any = weakref.finalize(self, memory.free)
        finalizer.atexit = False

    # CUDA graphs

    def populate_cuda_graph(self, pack: Mapping[Any, Any], workspace: Any, handle: Any, cuda_graph: int) -> None:
        """Add the plan's nodes to a CUDA graph."""
        self._kept_for.discard((0, int(cuda_graph)))  # another one may have had the address
        self._populate_or_update_cuda_graph(self.launcher.populate, pack, workspace, handle, cuda_graph)

    def update_cuda_graph(self, pack: Mapping[Any, Any], workspace: Any, handle: Any, cuda_graph: int) -> None:
        """Replace the buffer addresses in the plan's nodes of a CUDA graph by those of this variant pack."""
        self._populate_or_update_cuda_graph(self.launcher.update, pack, workspace, handle, cuda_graph)

    def _populate_or_update_cuda_graph(
        self, call: Any, pack: Mapping[Any, Any], workspace: Any, handle: Any, cuda_graph: int
    ) -> None:
        self.check_handle(handle)
        key = self.resolve_addresses(pack, workspace)
        made = self._find(key) or self._check_and_cache_pack(pack, key)
        with convert_errors(FrontendRuntimeError, "the CUDA graph"):
            call(handle, made, int(cuda_graph))
            if self._retains:
                self._keep_plan_alive(0, int(cuda_graph))

    def _keep_plan_alive(self, capture: int, graph: int) -> None:
        """Make a CUDA graph keep the plan and its memory alive, once per capture id and graph (id 0: no capture)."""
        if (capture, graph) not in self._kept_for:
            keep_alive_with_cuda_graph(graph, self)
            self._kept_for.add((capture, graph))


def _report_python_checks_needed(_handle: Any, _pack: Any, _workspace: Any) -> int:
    return NEEDS_PYTHON


def _get_workspace_address(workspace: Any) -> int:
    if workspace is None:
        return 0
    try:
        return int(workspace.data_ptr())
    except AttributeError:
        return _get_buffer_address(workspace, "workspace")


def _get_buffer_address(value: Any, name: Any) -> int:
    """Return the address of a buffer on the device or, for by-value scalars, in host memory."""
    what = name.name or str(name.uid) if isinstance(name, tensor) else str(name)
    numpy = sys.modules.get("numpy")  # not imported: then it is no array
    if numpy is not None and isinstance(value, numpy.ndarray):
        return get_host_address(value)
    try:
        return read_device_buffer(value, what, host=True).ptr
    except CudnnBackendError as error:
        raise FrontendValueError(error.headline, code=error.code, **error.sections) from None
