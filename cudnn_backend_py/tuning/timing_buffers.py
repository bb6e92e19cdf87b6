"""Buffers of a graph on the GPU, with which its plans are run and timed."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..execution.arguments import Arguments
from ..execution.buffers import read_device_buffer
from ..execution.run import VariantPack, variant_pack
from ..execution.timing import GpuClock
from ..graph import Graph, Tensor
from ..graph.formats import get_storage_type, make_strided_view
from ..native.cuda import Memory
from ..plans.plan import Plan
from ..target import Target
from .agreement import has_numpy_element_per_value
from .inputs import make_missing_inputs

__all__ = ["TimingBuffers"]

_GUARD_BYTE = 0xA5  # what no one may write over


class TimingBuffers:
    """The buffers of a graph on the GPU, and a clock to time its plans.

    Parameters
    ----------
    buffers
        Device buffers of the caller, by name or uid.
    inputs
        What the other tensors hold before a run, by uid: memory as an array, or a number of a by-value tensor. Made up
        if not given; tensors that are written and not among them hold zeros.
    guard_bytes
        How many bytes after each tensor of its own no one may write.
    """

    def __init__(
        self,
        graph: Graph,
        target: Target,
        buffers: Mapping[str | int, Any] | None = None,
        inputs: Mapping[int, Any] | None = None,
        *,
        guard_bytes: int = 0,
    ) -> None:
        assert target.handle is not None
        self.graph, self.handle = graph, target.handle
        device = target.handle.device or 0
        self.memory, self._clock = Memory(device), GpuClock(device)
        self._workspace, self._workspace_bytes = 0, 0
        self._guard = np.full(guard_bytes, _GUARD_BYTE, np.uint8)
        self._guarded: dict[str, int] = {}  # where it begins
        try:
            self.buffers = self._allocate_buffers(buffers or {}, inputs)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Free the memory of buffers and clock."""
        self._clock.close()
        self.memory.free()

    def _allocate_buffers(
        self, given: Mapping[str | int, Any], inputs: Mapping[int, Any] | None
    ) -> dict[str | int, Any]:
        """Return a device buffer or number for every tensor: the caller's, or a new one."""
        arguments = Arguments(self.graph)
        placed: dict[str | int, Any] = {}
        for name, buffer in arguments.match(given).items():
            if name not in arguments.by_value:
                read_device_buffer(buffer, name)  # refuses host memory
            placed[arguments[name].uid] = buffer
        made = make_missing_inputs(self.graph, given=placed) if inputs is None else inputs
        by_value = {tensor.uid for tensor in arguments.by_value.values()}
        for uid, value in made.items():
            in_memory = isinstance(value, np.ndarray) and uid not in by_value
            placed[uid] = self._allocate_tensor_with_guard(self.graph.tensor(uid), value) if in_memory else value
        for tensor in self.graph.variant_pack_tensors:
            if tensor.uid not in placed and not tensor.by_value:
                placed[tensor.uid] = self._allocate_tensor_with_guard(tensor, None)
        return placed

    def _allocate_tensor_with_guard(self, tensor: Tensor, image: NDArray[Any] | None) -> int:
        """Allocate memory followed by a guard region, fill it with `image` or zeros, and return its address."""
        if not self._guard.size:
            return self.memory.zeros(tensor.span_bytes) if image is None else self.memory.copy_to_device(image)
        held = np.zeros(tensor.span_bytes, np.uint8) if image is None else image.reshape(-1).view(np.uint8)
        address = self.memory.copy_to_device(np.concatenate([held, self._guard]))
        self._guarded[tensor.name] = address + held.size
        return address

    def find_overwritten_guards(self) -> list[str]:
        """Return the names of the tensors with overwritten guard regions."""
        found, now = [], np.empty_like(self._guard)
        for name, address in self._guarded.items():
            self.memory.copy_to_host(address, now)
            if (now != self._guard).any():
                found.append(name)
        return found

    def pack(self, plan: Plan) -> VariantPack:
        """Return the variant pack of a plan, with a large enough workspace."""
        if plan.workspace_bytes > self._workspace_bytes:
            self._workspace = self.memory.allocate(plan.workspace_bytes)
            self._workspace_bytes = plan.workspace_bytes
        return variant_pack(plan, self.buffers, workspace_ptr=self._workspace)

    def launch(self, plan: Plan, pack: VariantPack) -> None:
        """Launch a plan once."""
        plan.descriptor.execute(self.handle, pack.descriptor)

    def run(self, plan: Plan, pack: VariantPack) -> None:
        """Run a plan and wait for it."""
        self.launch(plan, pack)
        self.memory.synchronize(self.handle.stream)

    def run_and_read(self, plan: Plan, pack: VariantPack, *, before: int = 0) -> dict[str, NDArray[Any]]:
        """Fill the outputs with the byte `before`, run a plan, and return the outputs as arrays."""
        outputs = {tensor.uid: tensor for tensor in self.graph.outputs}.values()
        for tensor in outputs:
            if math.prod(tensor.dims) == tensor.span_elements:  # nothing else is between its elements
                self.memory.fill(self._get_buffer_address(tensor), tensor.span_bytes, before, self.handle.stream)
        self.run(plan, pack)
        return {tensor.name: self._read_strided(tensor) for tensor in outputs}

    def _get_buffer_address(self, tensor: Tensor) -> int:
        return read_device_buffer(self.buffers[tensor.uid], tensor.name).ptr

    def read(self, tensor: Tensor) -> NDArray[Any]:
        """Return a tensor as an array up to its last element; as bytes if its elements are not NumPy elements."""
        if has_numpy_element_per_value(tensor.data_type):
            image = np.empty(tensor.span_elements, get_storage_type(tensor.data_type))
        else:
            image = np.empty(tensor.span_bytes, np.uint8)
        self.memory.copy_to_host(self._get_buffer_address(tensor), image)
        return image

    def _read_strided(self, tensor: Tensor) -> NDArray[Any]:
        image = self.read(tensor)
        if not has_numpy_element_per_value(tensor.data_type):
            return image
        return make_strided_view(image, tensor.dims, tensor.strides)

    def time_runs(self, plan: Plan, pack: VariantPack, *, flushes: int = 1) -> tuple[float, float]:
        """Return the microseconds of a run with a cold L2 cache, and of another one right after.

        Parameters
        ----------
        flushes
            How often the L2 cache is flushed before, see :class:`GpuClock`.
        """
        cold, warm = self._clock.time_runs(partial(self.launch, plan, pack), self.handle.stream, flushes=flushes)
        return cold, warm

    @property
    def l2_bytes(self) -> int:
        """The size of the GPU's L2 cache."""
        return self._clock.l2_bytes
