"""Run a plan: buffers, by-value scalars, workspace, stream, variant pack.

NumPy arrays are copied to the GPU and back, so that a script needs no framework. Everything else is taken where it
is: DLPack, ``__cuda_array_interface__``, or an address.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import UsageError
from ..generated.enums import AttributeName as Attr
from ..generated.enums import DescriptorType
from ..graph.data_types import DATA_TYPES
from ..graph.formats import make_strided_view
from ..graph.ir import Tensor
from ..native import Descriptor, Handle
from ..native.cuda import Memory
from ..plans.plan import Plan
from .arguments import Arguments
from .checks import locate_buffer, make_scalar_array
from .stream_state import get_live_handle

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["VariantPack", "execute", "run_on_zeros", "variant_pack"]


# What a NumPy array may hold for a data type; types NumPy lacks travel as integers of their size, or as ml_dtypes.
# Types of less than a byte are packed in memory, which a NumPy array of the tensor's dims is not.
_NUMPY_TYPES = {
    kind: tuple(dict.fromkeys((facts.array, facts.storage))) for kind, facts in DATA_TYPES.items() if facts.array
}


@dataclass(slots=True)
class VariantPack:
    """A finalized variant pack with the objects it keeps alive: host scalars and the caller's buffers.

    C: ``CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR``.
    """

    descriptor: Descriptor
    holds: list[Any] = field(default_factory=list)


def variant_pack(plan: Plan, buffers: Mapping[str | int, Any], *, workspace_ptr: int = 0) -> VariantPack:
    """Return a variant pack over device buffers.

    Parameters
    ----------
    buffers
        For each tensor in memory, by name or uid: an object with DLPack or ``__cuda_array_interface__``, or a device
        address; a number for a by-value tensor (left out if the graph holds its value).
    workspace_ptr
        Device address of at least ``plan.workspace_bytes`` bytes.

    Raises
    ------
    UsageError
        ``unknown-buffer``, ``missing-buffer``, ``buffer-twice``, ``buffer-not-on-device``,
        ``buffer-of-another-device``, ``buffer-type``, ``buffer-too-small``, ``buffer-misaligned``,
        ``by-value-type``, ``by-value-size``, ``workspace-missing``.
    """
    arguments = Arguments(plan.graph)
    by_name = arguments.resolve(buffers, also=tuple(tensor for tensor in arguments.held if tensor.scratch))
    device = None if plan.target.handle is None else plan.target.handle.device
    if plan.workspace_bytes and not workspace_ptr:
        raise UsageError(
            f"the plan needs a workspace of {plan.workspace_bytes} bytes, got none",
            code="workspace-missing",
            fix="give workspace_ptr=, the address of as many bytes of GPU memory",
        )
    uids, pointers, holds = [], [], []
    for tensor in plan.graph.variant_pack_tensors:
        if tensor.by_value:
            array = make_scalar_array(tensor, by_name.get(tensor.name, tensor.value))
            holds.append(array)
            pointers.append(int(array.ctypes.data))
        else:
            holds.append(by_name[tensor.name])
            pointers.append(locate_buffer(tensor, by_name[tensor.name], device).ptr)
        uids.append(tensor.uid)
    pack = Descriptor(DescriptorType.VARIANT_PACK, on=plan.target.library)
    pack.set(Attr.VARIANT_PACK_UNIQUE_IDS, uids).set(Attr.VARIANT_PACK_DATA_POINTERS, pointers)
    pack.set(Attr.VARIANT_PACK_WORKSPACE, workspace_ptr or None)
    return VariantPack(pack.finalize(), holds)


def execute(
    plan: Plan,
    buffers: Mapping[str | int, Any],
    *,
    workspace_ptr: int | None = None,
    stream: int | None = None,
) -> None:
    """Run a plan on the GPU of this process.

    C: ``cudnnBackendExecute``. With device buffers only, the call returns before the device has finished; with any
    NumPy array it waits, and outputs given as NumPy arrays have been filled.

    Parameters
    ----------
    buffers
        As for :func:`variant_pack`; a NumPy array is copied to the device and, if the graph writes that tensor, back.
        Its memory must be laid out as the tensor's strides say, or be C-contiguous with the tensor's dims, in which
        case it is rearranged; for a ragged tensor it may be its memory, one-dimensional. Scratch tensors that are
        not given are allocated for the call.
    workspace_ptr
        Device address of the workspace; allocated for the call if not given.
    stream
        Address of a CUDA stream; the handle's own if not given.

    Raises
    ------
    EnvironmentNotReady
        ``plan-without-device`` for a plan of a described target.
    UsageError
        As :func:`variant_pack`; ``array-shape``, ``array-type`` for NumPy arrays.
    CudnnStatusError
        What cuDNN refuses at launch.
    """
    handle = get_live_handle(plan)
    by_name = Arguments(plan.graph).resolve(buffers)
    with Memory(handle.device or 0) as memory:
        placed: dict[str | int, Any] = {}
        back: list[tuple[Tensor, NDArray[Any], int]] = []
        written = {tensor.uid for tensor in plan.graph.outputs}
        for tensor in plan.graph.variant_pack_tensors:
            buffer = by_name.get(tensor.name)
            if buffer is None and tensor.scratch:
                placed[tensor.uid] = memory.allocate(tensor.span_bytes)
                continue
            if tensor.by_value or not isinstance(buffer, np.ndarray):
                if buffer is not None:
                    placed[tensor.uid] = buffer
                continue
            image = _make_memory_image(tensor, buffer)
            address = memory.copy_to_device(image)
            placed[tensor.uid] = address
            if tensor.uid in written:
                back.append((tensor, buffer, address))
        if workspace_ptr is None:
            workspace_ptr = memory.allocate(plan.workspace_bytes)
        pack = variant_pack(plan, placed, workspace_ptr=workspace_ptr)
        with _use_stream(handle, stream):
            plan.descriptor.execute(handle, pack.descriptor)
            if memory:
                memory.synchronize(handle.stream)
        for tensor, array, address in back:
            image = np.empty(array.size if _is_ragged_memory(tensor, array) else tensor.span_elements, array.dtype)
            memory.copy_to_host(address, image)
            _copy_image_to_array(tensor, array, image)


@contextmanager
def _use_stream(handle: Handle, stream: int | None) -> Iterator[None]:
    """Set a handle's stream for a block, then restore it, as other callers may share the handle."""
    if stream is None:
        yield
        return
    before = handle.stream
    handle.set_stream(stream)
    try:
        yield
    finally:
        handle.set_stream(before)


def run_on_zeros(plan: Plan) -> None:
    """Run a plan once on zeroed memory and wait, to see whether it can be launched and finishes.

    Raises
    ------
    EnvironmentNotReady
        ``plan-without-device``.
    CudnnStatusError
        What cuDNN refuses at launch.
    CudnnBackendError
        ``cuda-driver``: the kernel failed; the CUDA context of this process may be lost.
    """
    handle = get_live_handle(plan)
    with Memory(handle.device or 0) as memory:
        buffers: dict[str | int, Any] = {
            tensor.uid: 0 if tensor.by_value else memory.zeros(tensor.span_bytes)
            for tensor in plan.graph.variant_pack_tensors
            if not (tensor.by_value and tensor.value is not None)
        }
        execute(plan, buffers, workspace_ptr=memory.zeros(plan.workspace_bytes))
        memory.synchronize(handle.stream)


def _check_array(tensor: Tensor, array: NDArray[Any]) -> None:
    accepted = _NUMPY_TYPES.get(tensor.data_type, ())
    if array.dtype.name not in accepted or not array.dtype.isnative:
        raise UsageError(
            f"array {tensor.name!r} is {array.dtype.name}{'' if array.dtype.isnative else ' in foreign byte order'}, "
            f"{tensor.data_type.name} takes {' or '.join(accepted) or 'no NumPy array'}",
            code="array-type",
            fix=None if accepted else "give device memory with packed elements, the first one in the lowest bits",
        )
    if array.shape != tensor.dims and not _is_ragged_memory(tensor, array):
        raise UsageError(f"array {tensor.name!r} has shape {array.shape}, {tensor.dims} is needed", code="array-shape")


def _is_ragged_memory(tensor: Tensor, array: NDArray[Any]) -> bool:
    """Return whether an array is the whole memory of a ragged tensor, with its sequences one after the other."""
    return tensor.ragged_offset is not None and array.ndim == 1


def _make_memory_image(tensor: Tensor, array: NDArray[Any]) -> NDArray[Any]:
    """Return the bytes of device memory for an array, with its elements placed by the tensor's strides."""
    _check_array(tensor, array)
    if _is_ragged_memory(tensor, array):
        return np.ascontiguousarray(array)
    image = np.zeros(tensor.span_elements, dtype=array.dtype)
    make_strided_view(image, tensor.dims, tensor.strides)[...] = array
    return image


def _copy_image_to_array(tensor: Tensor, array: NDArray[Any], image: NDArray[Any]) -> None:
    array[...] = image if _is_ragged_memory(tensor, array) else make_strided_view(image, tensor.dims, tensor.strides)
