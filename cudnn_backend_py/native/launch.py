"""The shortest way from addresses to a running plan: variant packs kept by the addresses inside them.

A finalized variant pack cannot be changed, so new addresses need a new one; the same addresses do not. Everything
else a launch needs is bound once: the plan, the order of uids, the C functions.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Sequence
from typing import Any

from ..errors import UsageError
from ..generated.enums import AttributeName as Attr
from ..generated.enums import AttributeType, DescriptorType
from .descriptor import Descriptor, Handle
from .library import DescriptorPointer, Library

__all__ = ["Launcher", "int64_rows"]

PACKS_KEPT = 64


class _Pack:
    """A finalized variant pack; destroyed with its last reference, so a thread that runs it keeps it alive."""

    __slots__ = ("_destroy", "holds", "pointer")

    def __init__(self, pointer: DescriptorPointer, library: Library, holds: object = None) -> None:
        self.pointer = pointer
        self._destroy = library.cudnnBackendDestroyDescriptor
        self.holds = holds

    def __del__(self, finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        if not finalizing():  # at interpreter exit nothing is destroyed
            self._destroy(self.pointer)


class Launcher:
    """A plan with the order in which addresses of its tensors are given.

    Owns: the variant packs it keeps, :data:`PACKS_KEPT` at most, the least recently made goes first. Holds the plan.
    Threads may share one: a pack in use is held by its caller.

    Parameters
    ----------
    plan
        A finalized ``CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR``.
    uids
        Unique ids of the tensors in memory, in the order their addresses will be given.
    """

    def __init__(self, plan: Descriptor, uids: Sequence[int], *, kept: int = PACKS_KEPT) -> None:
        plan.check_usable(DescriptorType.EXECUTION_PLAN)
        self._plan = plan
        self._library = lib = plan.library
        self._owner = plan.owner
        self._execute = lib.cudnnBackendExecute
        self._set = lib.cudnnBackendSetAttribute
        self.uids = tuple(uids)
        self._count = len(self.uids)
        self._uids = (ctypes.c_int64 * self._count)(*self.uids)
        self._addresses = ctypes.c_void_p * self._count
        self._kept = kept
        self._packs: dict[tuple[int, ...], _Pack] = {}

    def run(self, handle: Handle, key: tuple[int, ...]) -> None:
        """Launch on the handle's stream; returns before the device has finished.

        C: ``cudnnBackendExecute``.

        Parameters
        ----------
        key
            The workspace's address (0 for none), then one address per uid: of device memory, or of host memory for
            by-value tensors.
        """
        pack = self._packs.get(key)
        if pack is None:
            pack = self.keep(key)
        owner = handle.owner
        if owner.device != self._owner.device:
            raise UsageError(
                f"this plan is bound to GPU {self._owner.device}, the handle to GPU {owner.device}",
                code="handle-of-another-device",
            )
        self._execute(owner.pointer, self._owner.pointer, pack.pointer)

    def knows(self, key: tuple[int, ...]) -> bool:
        """Return whether a variant pack of these addresses is kept."""
        return key in self._packs

    def keep(self, key: tuple[int, ...]) -> _Pack:
        """Return a new pack of these addresses and keep it."""
        pack = self.pack(key)
        packs = self._packs
        while len(packs) >= self._kept:
            try:
                packs.pop(next(iter(packs)), None)
            except (StopIteration, RuntimeError):  # another thread was faster
                break
        packs[key] = pack
        return pack

    def pack(
        self,
        key: tuple[int, ...],
        overrides: tuple[Sequence[int], Sequence[Sequence[int]], Sequence[Sequence[int]]] | None = None,
    ) -> _Pack:
        """Return a new variant pack of these addresses, with other dims and strides for some uids.

        C: ``CUDNN_ATTR_VARIANT_PACK_*``; overrides are (uids, dims, strides), since cuDNN 9.18, for graphs with
        ``CUDNN_ATTR_OPERATIONGRAPH_IS_OVERRIDE_SHAPE_ENABLED``.
        """
        lib = self._library
        pointer = DescriptorPointer()
        lib.cudnnBackendCreateDescriptor(DescriptorType.VARIANT_PACK, ctypes.byref(pointer))
        made = _Pack(pointer, lib)
        put, count = self._set, self._count
        put(pointer, Attr.VARIANT_PACK_UNIQUE_IDS, AttributeType.INT64, count, self._uids)
        put(pointer, Attr.VARIANT_PACK_DATA_POINTERS, AttributeType.VOID_PTR, count, self._addresses(*key[1:]))
        if key[0]:
            put(pointer, Attr.VARIANT_PACK_WORKSPACE, AttributeType.VOID_PTR, 1, ctypes.byref(ctypes.c_void_p(key[0])))
        if overrides is not None:
            made.holds = self._override(pointer, *overrides)
        lib.cudnnBackendFinalize(pointer)
        return made

    def _override(
        self,
        pointer: DescriptorPointer,
        uids: Sequence[int],
        dims: Sequence[Sequence[int]],
        strides: Sequence[Sequence[int]],
    ) -> object:
        if not len(uids) == len(dims) == len(strides):
            raise UsageError(
                f"{len(uids)} uids, {len(dims)} dims and {len(strides)} strides were given, equally many are needed",
                code="wrong-element-count",
            )
        numbers = (ctypes.c_int64 * len(uids))(*uids)
        self._set(pointer, Attr.VARIANT_PACK_OVERRIDE_UNIQUE_IDS, AttributeType.INT64, len(uids), numbers)
        rows = int64_rows(dims), int64_rows(strides)
        for attribute, vector in zip(
            (Attr.VARIANT_PACK_OVERRIDE_SHAPES, Attr.VARIANT_PACK_OVERRIDE_STRIDES), rows, strict=True
        ):
            address = ctypes.c_void_p(ctypes.addressof(vector))
            self._set(pointer, attribute, AttributeType.VOID_PTR, 1, ctypes.byref(address))
        return rows

    def run_once(self, handle: Handle, pack: _Pack) -> None:
        """Launch a pack that is not kept."""
        self._execute(handle.owner.pointer, self._owner.pointer, pack.pointer)

    def populate(self, handle: Handle, key: tuple[int, ...], cuda_graph: int) -> None:
        """Add the plan's nodes to an empty CUDA graph. C: ``cudnnBackendPopulateCudaGraph`` (since 9.5)."""
        pack = self._packs.get(key) or self.keep(key)
        self._library.cudnnBackendPopulateCudaGraph(handle.owner.pointer, self._owner.pointer, pack.pointer, cuda_graph)

    def update(self, handle: Handle, key: tuple[int, ...], cuda_graph: int) -> None:
        """Give such a CUDA graph new addresses. C: ``cudnnBackendUpdateCudaGraph`` (since 9.5)."""
        pack = self._packs.get(key) or self.keep(key)
        self._library.cudnnBackendUpdateCudaGraph(handle.owner.pointer, self._owner.pointer, pack.pointer, cuda_graph)

    def close(self) -> None:
        """Destroy the packs that are kept; those in use by other threads go when they are done."""
        self._packs.clear()


class _Vector(ctypes.Structure):
    """``std::vector`` as libstdc++ and libc++ lay it out: begin, end, end of capacity."""

    _fields_ = (("begin", ctypes.c_void_p), ("end", ctypes.c_void_p), ("capacity", ctypes.c_void_p))


class _Rows(_Vector):
    """A vector of vectors that keeps its elements alive."""


def int64_rows(rows: Sequence[Sequence[int]]) -> ctypes.Structure:
    """Return a ``std::vector<std::vector<int64_t>>`` for cuDNN to read; it must outlive that."""
    arrays = [(ctypes.c_int64 * len(row))(*row) for row in rows]
    inner = (_Vector * len(arrays))()
    for vector, array in zip(inner, arrays, strict=True):
        _point(vector, array)
    outer = _Rows()
    _point(outer, inner)
    outer.keeps = (inner, arrays)
    return outer


def _point(vector: _Vector, array: ctypes.Array[Any]) -> None:
    begin = ctypes.addressof(array)
    vector.begin, vector.end = begin, begin + ctypes.sizeof(array)
    vector.capacity = vector.end
