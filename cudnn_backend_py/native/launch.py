"""Launch plans from buffer addresses with little host time: variant packs are cached by these addresses.

A finalized variant pack cannot be changed, so new addresses need a new one; the same addresses do not. Everything
else a launch needs is bound once: the plan, the order of uids, the C functions, which answer their status unchecked
by ctypes. ``python -m benchmarks run`` measures this path.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Sequence
from contextlib import suppress
from sys import getrefcount
from typing import Any

from ..errors import UsageError
from ..generated.enums import AttributeName as Attr
from ..generated.enums import AttributeType, DescriptorType
from .descriptor import Descriptor, Handle
from .destructors import DestructorFactory
from .fast_call import FUNCTIONS, DlpackExchange, PlanCallWithDict, VariantPackFiller, load_compiled_library
from .libcudnn import Library
from .values import format_value_with_type, read_integers, read_sequence

__all__ = ["Launcher", "Overrides", "make_std_vectors_of_int64"]

MAX_CACHED_PACKS = 256

Overrides = tuple[Sequence[int], Sequence[Sequence[int]], Sequence[Sequence[int]]]

# Plain ints: enumerators cost more to hand to ctypes.
_PACK = int(DescriptorType.VARIANT_PACK)
_UIDS, _POINTERS, _WORKSPACE = (
    int(Attr.VARIANT_PACK_UNIQUE_IDS),
    int(Attr.VARIANT_PACK_DATA_POINTERS),
    int(Attr.VARIANT_PACK_WORKSPACE),
)
_INT64, _VOID_PTR = int(AttributeType.INT64), int(AttributeType.VOID_PTR)
_INT64_ONE = ctypes.c_int64(1)
_pack_address = struct.Struct("Q").pack


def _measure_refcount_of_single_reference() -> int:
    """Return the ``sys.getrefcount`` of an object that only one local variable refers to."""
    value = object()
    return getrefcount(value)


_UNSHARED_REFCOUNT = _measure_refcount_of_single_reference()


class _VariantPack:
    """A variant pack, destroyed with its last reference; a thread that runs it keeps it alive."""

    __slots__ = ("_destructor", "checked_buffer_ids", "holds", "pointer")  # Python lets them go in this order, by name

    def __init__(self, end: DestructorFactory) -> None:
        self.pointer = ctypes.c_void_p()
        self.holds: object = None  # what must live as long as it
        self.checked_buffer_ids: object = None  # for its caller: whose addresses these were
        self._destructor = end((self.pointer,), ctypes.addressof(self.pointer))


class Launcher:
    """Launches a plan with rows of buffer addresses, one per tensor in a fixed order.

    Owns: the variant packs it keeps, :data:`MAX_CACHED_PACKS` at most; the one made first goes first. Holds the plan.
    Threads may share one: a pack in use is held by its caller, and cuDNN has read it when a launch returns.

    Addresses are a row of bytes, see :meth:`row`: one per uid, of device memory, or of host memory for by-value
    tensors. A pack is found again by any key its caller chooses, such as these addresses.

    Parameters
    ----------
    plan
        A finalized ``CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR``.
    uids
        Unique ids of the tensors in memory, in the order their addresses will be given.
    """

    def __init__(self, plan: Descriptor, uids: Sequence[int], *, kept: int = MAX_CACHED_PACKS) -> None:
        if type(plan) is not Descriptor:
            raise UsageError(f"a Descriptor is needed, got {format_value_with_type(plan)}", code="wrong-argument")
        plan.check_usable(DescriptorType.EXECUTION_PLAN)
        self._library: Library = plan.library
        self._owner = plan.owner
        self._plan = plan.owner.pointer
        self.uids = tuple(read_integers(uids, "uids"))
        self._count = ctypes.c_int64(len(self.uids))
        self._uids = struct.pack(f"{len(self.uids)}q", *self.uids)
        #: Turns as many addresses as there are uids into a row.
        self.row: Callable[..., bytes] = struct.Struct(f"{len(self.uids)}Q").pack
        self._kept = kept
        self._packs: dict[tuple[int, ...], _VariantPack] = {}
        self.find = self._packs.get  # by key: the kept pack, None if there is none
        unchecked = self._library.get_unchecked_function
        self.execute = unchecked("cudnnBackendExecute")
        self._get_stream = unchecked("cudnnGetStream")
        self._create = unchecked("cudnnBackendCreateDescriptor", brief=True)
        self._initialize = unchecked("cudnnBackendInitialize", brief=True)
        self._set = unchecked("cudnnBackendSetAttribute", brief=True)
        self._finalize = unchecked("cudnnBackendFinalize", brief=True)
        self._destructor = self._library.get_destructor_type("cudnnBackendDestroyDescriptor", is_brief=True)
        self.filler = VariantPackFiller.from_uids(self._library, self.uids)
        self._compiled_fill = None if load_compiled_library() is None else load_compiled_library().cudnn_backend_py_fill

    def cache_pack(self, key: tuple[int, ...], row: bytes, workspace: int = 0) -> _VariantPack:
        """Return a new cached variant pack; a full cache drops its oldest pack, or reuses it if it is not in use."""
        packs = self._packs
        oldest = None
        if len(packs) >= self._kept:
            with suppress(StopIteration, RuntimeError):  # another thread changed the dict
                oldest = packs.pop(next(iter(packs)), None)
        if oldest is None or getrefcount(oldest) != _UNSHARED_REFCOUNT:
            oldest = self.make_empty_pack()
        pack = packs[key] = self._fill_pack(oldest, row, workspace)
        return pack

    def pack(self, row: bytes, workspace: int = 0, overrides: Overrides | None = None) -> _VariantPack:
        """Return a new variant pack for a row of addresses, with other dims and strides for some uids.

        C: ``CUDNN_ATTR_VARIANT_PACK_*``; overrides are (uids, dims, strides), since cuDNN 9.18, for graphs with
        ``CUDNN_ATTR_OPERATIONGRAPH_IS_OVERRIDE_SHAPE_ENABLED``.

        Raises
        ------
        UsageError
            ``wrong-element-count``.
        CudnnStatusError
            What cuDNN refuses.
        """
        return self._fill_pack(self.make_empty_pack(), row, workspace, overrides)

    def make_empty_pack(self) -> _VariantPack:
        """Return a new empty variant pack."""
        pack = _VariantPack(self._destructor)
        if status := self._create(_PACK, ctypes.byref(pack.pointer)):
            raise self._library.make_status_error(status, "cudnnBackendCreateDescriptor")
        return pack

    def _fill_pack(
        self, pack: _VariantPack, row: bytes, workspace: int, overrides: Overrides | None = None
    ) -> _VariantPack:
        """Reset a variant pack, set its addresses and workspace, finalize and return it."""
        if self._compiled_fill is not None and overrides is None:
            failed = ctypes.c_int()
            status = self._compiled_fill(
                ctypes.byref(self.filler), pack.pointer, row, ctypes.c_void_p(workspace), ctypes.byref(failed)
            )
            if status:
                raise self._library.make_status_error(status, FUNCTIONS[failed.value])
            return pack
        put, to, count = self._set, pack.pointer, self._count
        if status := self._initialize(to):
            raise self._library.make_status_error(status, "cudnnBackendInitialize")
        # Bytes are handed over by their address: the cheapest array ctypes knows.
        if (
            (status := put(to, _UIDS, _INT64, count, self._uids))
            or (status := put(to, _POINTERS, _VOID_PTR, count, row))
            or (workspace and (status := put(to, _WORKSPACE, _VOID_PTR, _INT64_ONE, _pack_address(workspace))))
        ):
            raise self._library.make_status_error(status, "cudnnBackendSetAttribute")
        if overrides is not None:
            pack.holds = self._set_shape_overrides(to, *overrides)
        if status := self._finalize(to):
            raise self._library.make_status_error(status, "cudnnBackendFinalize")
        return pack

    def _set_shape_overrides(
        self, to: ctypes.c_void_p, uids: Sequence[int], dims: Sequence[Sequence[int]], strides: Sequence[Sequence[int]]
    ) -> object:
        """Override dims and strides of some tensors; return the objects that must live as long as the pack."""
        named = read_integers(uids, "uids to override")
        rows = make_std_vectors_of_int64(dims), make_std_vectors_of_int64(strides)
        if not len(named) == len(rows[0].keeps[1]) == len(rows[1].keeps[1]):
            raise UsageError(
                f"{len(named)} uids, {len(rows[0].keeps[1])} dims and {len(rows[1].keeps[1])} strides were given, "
                "equal numbers are needed",
                code="wrong-element-count",
            )
        numbers = (ctypes.c_int64 * len(named))(*named)
        for attribute, kind, count, value in (
            (Attr.VARIANT_PACK_OVERRIDE_UNIQUE_IDS, _INT64, len(named), numbers),
            (Attr.VARIANT_PACK_OVERRIDE_SHAPES, _VOID_PTR, 1, ctypes.byref(rows[0])),
            (Attr.VARIANT_PACK_OVERRIDE_STRIDES, _VOID_PTR, 1, ctypes.byref(rows[1])),
        ):
            if status := self._set(to, int(attribute), kind, ctypes.c_int64(count), value):
                raise self._library.make_status_error(status, "cudnnBackendSetAttribute")
        return rows

    def run(self, handle: Handle, pack: _VariantPack) -> None:
        """Launch the plan on the handle's stream; return before the GPU has finished.

        C: ``cudnnBackendExecute``.

        Raises
        ------
        UsageError
            ``handle-after-fork``, ``descriptor-closed``.
        CudnnStatusError
            What cuDNN refuses at launch.
        """
        if status := self.execute(handle.owner.pointer, self._plan, pack.pointer):
            raise self._library.make_status_error(status, "cudnnBackendExecute")

    def query_stream(self, handle: Handle) -> int | None:
        """Return the stream of a handle, None if cuDNN does not report one. C: ``cudnnGetStream``."""
        stream = ctypes.c_void_p()
        refused = self._get_stream(handle.owner.pointer, ctypes.byref(stream))
        return None if refused else stream.value or 0

    def make_dict_call(
        self, exchange: DlpackExchange | None, keys: Sequence[tuple[Any, int]], **options: Any
    ) -> PlanCallWithDict:
        """Return a :class:`PlanCallWithDict` of the plan, with a variant pack of its own."""
        return PlanCallWithDict(
            self._library, self._plan, self.make_empty_pack(), self.filler, exchange, keys, **options
        )

    def check_handle(self, handle: Handle) -> None:
        """Check that a handle belongs to the GPU the plan was made for.

        Raises
        ------
        UsageError
            ``handle-of-another-device``.
        """
        mine, other = self._owner.device, handle.owner.device
        if mine is not None and other != mine:
            raise UsageError(
                f"this plan is bound to GPU {mine}, the handle to GPU {other}",
                code="handle-of-another-device",
                fix="make handle and graph while the same device is current",
            )

    def workspace_bytes(self, handle: Handle, overrides: Overrides) -> int:
        """Return the workspace in bytes that the plan needs if some uids have other dims and strides.

        C: ``cudnnGetExecutionPlanWorkspaceSize`` (since 9.23).

        Raises
        ------
        UsageError
            ``wrong-element-count``.
        CudnnStatusError
            What cuDNN refuses.
        """
        pack, bytes_needed = self.make_empty_pack(), ctypes.c_size_t()
        pack.holds = self._set_shape_overrides(pack.pointer, *overrides)
        if status := self._finalize(pack.pointer):
            raise self._library.make_status_error(status, "cudnnBackendFinalize")
        run_query = self._library.get_unchecked_function("cudnnGetExecutionPlanWorkspaceSize")
        if status := run_query(handle.owner.pointer, self._plan, pack.pointer, ctypes.byref(bytes_needed)):
            raise self._library.make_status_error(status, "cudnnGetExecutionPlanWorkspaceSize")
        return bytes_needed.value

    def populate(self, handle: Handle, pack: _VariantPack, cuda_graph: int) -> None:
        """Add the plan's nodes to an empty CUDA graph. C: ``cudnnBackendPopulateCudaGraph`` (since 9.5)."""
        self._call_cuda_graph_function("cudnnBackendPopulateCudaGraph", handle, pack, cuda_graph)

    def update(self, handle: Handle, pack: _VariantPack, cuda_graph: int) -> None:
        """Replace the addresses in a populated CUDA graph. C: ``cudnnBackendUpdateCudaGraph`` (since 9.5)."""
        self._call_cuda_graph_function("cudnnBackendUpdateCudaGraph", handle, pack, cuda_graph)

    def _call_cuda_graph_function(self, name: str, handle: Handle, pack: _VariantPack, cuda_graph: int) -> None:
        call = self._library.get_unchecked_function(name)
        if status := call(handle.owner.pointer, self._plan, pack.pointer, ctypes.c_void_p(cuda_graph)):
            raise self._library.make_status_error(status, name)

    def close(self) -> None:
        """Destroy the cached variant packs; those in use by other threads are destroyed after use."""
        self._packs.clear()


class _StdVector(ctypes.Structure):
    """``std::vector`` in the layout of libstdc++ and libc++: begin, end, end of capacity."""

    _fields_ = (("begin", ctypes.c_void_p), ("end", ctypes.c_void_p), ("capacity", ctypes.c_void_p))


class _StdVectorOfVectors(_StdVector):
    """A vector of vectors that keeps its elements alive."""

    keeps: tuple[Any, list[Any]]


def make_std_vectors_of_int64(rows: Sequence[Sequence[int]]) -> _StdVectorOfVectors:
    """Return a ``std::vector<std::vector<int64_t>>`` for cuDNN, to be kept until cuDNN has read it.

    Raises
    ------
    UsageError
        ``wrong-element-count``, ``wrong-element-type``, ``integer-overflow``.
    """
    numbers = [
        read_integers(row, "a row of dims or strides") for row in read_sequence(rows, "dims or strides", 0, None)
    ]
    arrays = [(ctypes.c_int64 * len(row))(*row) for row in numbers]
    inner = (_StdVector * len(arrays))()
    for vector, array in zip(inner, arrays, strict=True):
        _set_vector_range(vector, array)
    outer = _StdVectorOfVectors()
    _set_vector_range(outer, inner)
    outer.keeps = (inner, arrays)
    return outer


def _set_vector_range(vector: _StdVector, array: ctypes.Array[Any]) -> None:
    begin = ctypes.addressof(array)
    vector.begin, vector.end = begin, begin + ctypes.sizeof(array)
    vector.capacity = vector.end
