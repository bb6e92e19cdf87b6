"""Compiled code that checks buffers, fills a variant pack and launches a plan; if it is absent, ctypes is used.

What ``fast_call.c`` does could be done from here, function by function, and is where it is missing: each call of ctypes
costs more than what most of these functions do.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from ..errors import CudnnStatusError
from ..frozen import FrozenValue
from ..generated.enums import AttributeName as Attr
from ..generated.enums import AttributeType
from .compiled import (
    ANY_ARGUMENTS,
    MANY_ARGUMENTS,
    NO_ARGUMENTS,
    ONE_ARGUMENT,
    SLOW_ATTRIBUTE,
    get_function_address,
    load_compiled_library,
    make_builtin_function,
    make_capsule,
    make_method,
)
from .cuda import get_current_context, in_context, load_context_functions, load_driver_function, make_driver_error
from .libcudnn import Library

__all__ = [
    "NEEDS_PYTHON",
    "STREAM_CHANGED",
    "BufferRequirement",
    "DlpackExchange",
    "HandleState",
    "Kernel",
    "Launch",
    "PlanCallWithDict",
    "PlanCallWithTuple",
    "VariantPackFiller",
    "install_compiled_call_method",
    "load_compiled_library",
]

NEEDS_PYTHON, STREAM_CHANGED = -1, -2
FUNCTIONS = (
    "cudnnBackendInitialize",
    "cudnnBackendSetAttribute",
    "cudnnBackendFinalize",
    "cudnnBackendExecute",
    "cudnnSetStream",
    "cuLaunchKernel",
)
EXECUTE, SET_STREAM, PREPARE = 3, 4, 5

_pointer, _int = ctypes.c_void_p, ctypes.c_int


class VariantPackFiller(ctypes.Structure):
    """The C struct that compiled code needs to fill variant packs for certain uids."""

    _fields_ = (
        *((name, _pointer) for name in ("initialize", "set", "finalize")),
        *((name, _int) for name in ("uids_name", "pointers_name", "workspace_name", "int64_type", "pointer_type")),
        ("count", _int),
        ("uids", _pointer),
    )

    @classmethod
    def from_uids(cls, library: Library, uids: Sequence[int]) -> VariantPackFiller:
        """Return the struct to fill variant packs for these uids."""
        row = (ctypes.c_int64 * len(uids))(*uids)
        made = cls(
            *(get_function_address(library.get_unchecked_function(name)) for name in FUNCTIONS[:3]),
            Attr.VARIANT_PACK_UNIQUE_IDS,
            Attr.VARIANT_PACK_DATA_POINTERS,
            Attr.VARIANT_PACK_WORKSPACE,
            AttributeType.INT64,
            AttributeType.VOID_PTR,
            len(uids),
            ctypes.addressof(row),
        )
        made.keeps = row
        return made


class HandleState(ctypes.Structure):
    """A thread's handle, its current stream, and the CUDA context in which it was made.

    Whoever gives the handle another stream writes that here.
    """

    _fields_ = (
        *((name, ctypes.c_uint64) for name in ("handle", "stream", "context")),
        *((name, _pointer) for name in ("get_current", "push", "pop")),
    )

    @classmethod
    def from_handle(cls, handle: ctypes.c_void_p) -> HandleState:
        """Return the state of a handle made in the current context; the native handle stays alive with it."""
        made = cls(handle.value, 0, get_current_context(), *map(get_function_address, load_context_functions()))
        made.keeps = handle
        return made


class Kernel(ctypes.Structure):
    """A kernel of this package that runs on the stream before a plan, and the addresses of its parameters."""

    _fields_ = (
        ("launch", _pointer),
        ("function", _pointer),
        ("parameters", ctypes.POINTER(_pointer)),
        ("blocks", ctypes.c_uint32),
        ("threads", ctypes.c_uint32),
    )


class _LaunchStruct(ctypes.Structure):
    _fields_ = (
        ("execute", _pointer),
        ("set_stream", _pointer),
        ("handle", ctypes.POINTER(HandleState)),
        *((name, _pointer) for name in ("stream", "plan", "pack")),
        ("fail", _pointer),
        ("prepare", ctypes.POINTER(Kernel)),
        ("failed", ctypes.c_int32),
    )


class _BufferRequirementStruct(ctypes.Structure):
    _fields_ = (
        ("bytes", ctypes.c_int64),
        ("misaligned", ctypes.c_uint64),
        ("bits", ctypes.c_int32),
        ("codes", ctypes.c_uint32),
    )


class _PlanCallWithTupleStruct(ctypes.Structure):
    _fields_ = (
        ("run", _LaunchStruct),
        ("pack", ctypes.POINTER(VariantPackFiller)),
        ("wanted", ctypes.POINTER(_BufferRequirementStruct)),
        ("row", _pointer),
        *((name, _pointer) for name in ("type", "read", "fetch", "current_stream", "workspace")),
        *((name, ctypes.c_int32) for name in ("device", "given")),
        ("thread", ctypes.c_ulong),
        ("filled", ctypes.c_int32),
    )


class _TensorKeyStruct(ctypes.Structure):
    _fields_ = (("key", _pointer), ("uid", ctypes.c_int64), ("place", ctypes.c_int32), ("on_host", ctypes.c_int32))


class _WorkspaceTensorStruct(ctypes.Structure):
    _fields_ = (("offset", ctypes.c_uint64), ("place", ctypes.c_int32))


class _PlanCallWithDictStruct(ctypes.Structure):
    _fields_ = (
        ("pack", ctypes.POINTER(VariantPackFiller)),
        *((name, _pointer) for name in ("execute", "plan", "to", "type", "int_type", "read")),
        *((name, _pointer) for name in ("get_current", "get_stream", "is_capturing", "context")),
        ("entries", ctypes.POINTER(_TensorKeyStruct)),
        ("scratch", ctypes.POINTER(_WorkspaceTensorStruct)),
        ("row", _pointer),
        *((name, ctypes.c_uint64) for name in ("wanted", "base", "workspace", "own_offset")),
        *((name, ctypes.c_uint32) for name in ("entry_count", "scratch_count")),
        *((name, ctypes.c_int32) for name in ("has_base", "has_own", "filled", "busy")),
    )


#: What a graph tensor requires of its buffer: bytes from the first element to the last one, alignment in bytes, bits of
#: an element (0 for any), and codes of DLPack's types that will do (none for any).
BufferRequirement = tuple[int, int, int, frozenset[int]]


class DlpackExchange(FrozenValue):
    """Addresses of a framework's DLPack exchange functions in C, for one Python type of tensor.

    ``fetch`` is none of DLPack's: it has what ``read`` will read on its way from memory, of many objects at once.
    """

    type: type
    read: int
    fetch: int | None
    current_stream: int


def install_compiled_call_method(kind: type) -> None:
    """Replace a class's ``__call__`` by compiled code, which serves objects with a ``_fast`` that is not None.

    ``_fast`` is the :attr:`PlanCallWithTuple.compiled_self` of a call, or None. Compiled code runs if the thread that
    owns the call gives its buffers by position; the former ``__call__`` does everything else.
    """
    if load_compiled_library() is None:
        return
    before = kind.__call__
    setattr(kind, SLOW_ATTRIBUTE, before)
    doc = f"__call__($self, /, *buffers, **named)\n--\n\n{before.__doc__}"
    made = make_method(kind, "__call__", ANY_ARGUMENTS, "run", doc)
    kind.__call__ = made  # type: ignore[method-assign]


class Launch:
    """A plan with a thread's handle on a stream, ready to be launched.

    Parameters
    ----------
    handle
        Whoever else gives the handle a stream writes it there.
    may_need_context_switch
        Whether the context of another GPU may be current when it is launched.
    """

    __slots__ = ("_execute", "_handle", "handle", "library", "may_need_context_switch", "plan", "stream")

    def __init__(
        self,
        library: Library,
        handle: HandleState,
        stream: int,
        plan: ctypes.c_void_p,
        *,
        may_need_context_switch: bool = True,
    ) -> None:
        self.library, self.handle, self.stream, self.plan = library, handle, stream, plan
        self.may_need_context_switch = may_need_context_switch
        self._execute = library.get_unchecked_function("cudnnBackendExecute")
        self._handle = _pointer(handle.handle)

    @property
    def function_and_leading_arguments(self) -> tuple[Any, tuple[Any, Any]]:
        """The function ``cudnnBackendExecute`` and its arguments before the variant pack: handle and plan."""
        return self._execute, (self._handle, self.plan)

    def run(self, pack: Any) -> None:
        """Launch the plan with a variant pack in the handle's CUDA context; return before the GPU has finished.

        C: ``cudnnSetStream`` if the handle was last given another one, ``cudnnBackendExecute``.

        Raises
        ------
        CudnnStatusError
            What cuDNN refuses, told of the function that did.
        """
        handle = self.handle
        if self.may_need_context_switch and get_current_context() != handle.context:
            with in_context(handle.context):
                self._run(pack)
        else:
            self._run(pack)

    def _run(self, pack: Any) -> None:
        if self.handle.stream != self.stream:
            if status := self.library.get_unchecked_function("cudnnSetStream")(self._handle, _pointer(self.stream)):
                self._raise_status_error(SET_STREAM, status)
            self.handle.stream = self.stream
        if status := self._execute(self._handle, self.plan, pack.pointer):
            self._raise_status_error(EXECUTE, status)

    def _raise_status_error(self, function: int, status: int) -> None:
        self.library.raise_stored_exception()
        if function == PREPARE:
            raise make_driver_error(FUNCTIONS[function], status)
        raise self.library.make_status_error(status, FUNCTIONS[function])

    def bind(self, pack: Any) -> Callable[[], None]:
        """Return a function without arguments that does what :meth:`run` does, and keeps the pack alive."""
        if load_compiled_library() is None:
            return partial(self.run, pack)
        bound: Callable[[], None] = make_builtin_function(
            "launch", NO_ARGUMENTS, make_capsule(self.make_launch_struct(pack))
        )
        return bound

    def make_launch_struct(self, pack: Any, prepare: Kernel | None = None) -> _LaunchStruct:
        """Return the C struct to launch the plan with a variant pack, and before it the kernel `prepare` if given."""
        fail = self._raise_status_error
        run = _LaunchStruct(
            get_function_address(self._execute),
            get_function_address(self.library.get_unchecked_function("cudnnSetStream")),
            ctypes.pointer(self.handle),
            self.stream,
            self.plan.value,
            pack.pointer.value,
            id(fail),
            None if prepare is None else ctypes.pointer(prepare),
        )
        run.keeps = (self, pack, fail, prepare)
        return run


class PlanCallWithTuple:
    """A plan on one stream that compiled code calls with a tuple of buffers, all of one framework.

    One thread at a time may call it. Holds what it launches and its variant pack, not the buffers.

    Parameters
    ----------
    pack
        Of the filler's uids; filled again when buffers change. cuDNN has read it when a launch returns.
    wanted
        For each buffer; None for no checks but that it is on the device.
    tail
        Addresses of the tensors after those that are given.
    """

    def __init__(
        self,
        launch: Launch,
        pack: Any,
        filler: VariantPackFiller,
        exchange: DlpackExchange | None,
        *,
        given: int,
        wanted: Sequence[BufferRequirement] | None,
        tail: Sequence[int],
        workspace: int,
        device: int,
        query_stream: bool,
        prepare: Kernel | None = None,
    ) -> None:
        row = (ctypes.c_uint64 * (given + len(tail)))(*[0] * given, *tail)
        table = None
        if wanted is not None:
            table = (_BufferRequirementStruct * given)(
                *(
                    _BufferRequirementStruct(span_bytes, alignment - 1, bits, _make_dlpack_type_code_mask(codes))
                    for span_bytes, alignment, bits, codes in wanted
                )
            )
        run = launch.make_launch_struct(pack, prepare)
        self._call = _PlanCallWithTupleStruct(
            run,
            ctypes.pointer(filler),
            table and ctypes.cast(table, ctypes.POINTER(_BufferRequirementStruct)),
            ctypes.addressof(row),
            *(
                (None,) * 4
                if exchange is None
                else (id(exchange.type), exchange.read, exchange.fetch, exchange.current_stream)
            ),
            workspace,
            device,
            given,
        )
        self._row, self._given = row, given
        if not query_stream:
            self._call.current_stream = None
        self._kept_objects = (run, run.keeps, filler, exchange, table)
        self._call.thread = threading.get_ident()
        self.address = ctypes.addressof(self._call)
        #: For :func:`install_compiled_call_method`.
        self.compiled_self = make_capsule(self._call, row, *self._kept_objects)
        #: Launches with a tuple of as many buffers as are given; answers 0, NEEDS_PYTHON, STREAM_CHANGED or a status.
        self.go: Callable[[tuple[Any, ...]], int] = make_builtin_function("call", ONE_ARGUMENT, self.compiled_self)

    def replace_internal_addresses(self, tail: Sequence[int], workspace: int) -> None:
        """Replace the addresses of the buffers that the caller does not give."""
        self._row[self._given :] = list(tail)
        self._call.workspace = workspace
        self._call.filled = 0

    @property
    def failed_function(self) -> str:
        """The name of the C function that returned the last status."""
        return FUNCTIONS[self._call.run.failed]


class PlanCallWithDict:
    """A plan that compiled code calls with a dict from tensors or uids to buffers or addresses.

    Any thread may call it; one that comes while another is in the launch is reported NEEDS_PYTHON. Holds the variant
    pack and the keys, not the buffers.

    Parameters
    ----------
    pack
        Of the filler's uids; filled again when addresses change.
    exchange
        Of the one Python type buffers may have; None where all are addresses.
    keys
        The objects that mean a tensor, ints for its uid, and its place in the row.
    on_host
        Places of tensors that may be in host memory.
    row
        The addresses of what is not given; the others are filled in at each call.
    scratch
        Places of tensors that are in the workspace, and their bytes from its start.
    own_offset
        Where the plan's own workspace begins in the one that is given; None: it needs none.
    reports_captures
        Whether a call whose stream is being captured is reported NEEDS_PYTHON, too.
    """

    MAX_PLACES = 64  # bits of a mask

    def __init__(
        self,
        library: Library,
        plan: ctypes.c_void_p,
        pack: Any,
        filler: VariantPackFiller,
        exchange: DlpackExchange | None,
        keys: Sequence[tuple[Any, int]],
        *,
        on_host: frozenset[int],
        row: Sequence[int],
        scratch: Sequence[tuple[int, int]] = (),
        own_offset: int | None = None,
        reports_captures: bool = False,
    ) -> None:
        table = (_TensorKeyStruct * len(keys))(
            *(
                _TensorKeyStruct(None, key, place, place in on_host)
                if type(key) is int
                else _TensorKeyStruct(id(key), -1, place, place in on_host)
                for key, place in keys
            )
        )
        placed = (_WorkspaceTensorStruct * len(scratch))(
            *(_WorkspaceTensorStruct(offset, place) for place, offset in scratch)
        )
        addresses = (ctypes.c_uint64 * len(row))(*row)
        self._mapping = _PlanCallWithDictStruct(
            ctypes.pointer(filler),
            get_function_address(library.get_unchecked_function("cudnnBackendExecute")),
            plan.value,
            pack.pointer.value,
            None if exchange is None else id(exchange.type),
            id(int),
            None if exchange is None else exchange.read,
            get_function_address(load_context_functions()[0]),
            get_function_address(library.get_unchecked_function("cudnnGetStream")),
            get_function_address(load_driver_function("cuStreamIsCapturing")) if reports_captures else None,
            get_current_context() or None,
            ctypes.cast(table, ctypes.POINTER(_TensorKeyStruct)),
            ctypes.cast(placed, ctypes.POINTER(_WorkspaceTensorStruct)),
            ctypes.addressof(addresses),
            sum(1 << place for place in {place for _, place in keys}),
            0,
            0,
            own_offset or 0,
            len(keys),
            len(scratch),
            bool(scratch) or own_offset is not None,
            own_offset is not None,
        )
        self._library = library
        self.exchange = exchange
        #: Launches with the address of a handle, a dict and a workspace: 0, NEEDS_PYTHON or a code of :meth:`error`.
        self.go: Callable[[int | None, Any, Any], int] = make_builtin_function(
            "call_mapping",
            MANY_ARGUMENTS,
            make_capsule(self._mapping, pack, filler, keys, table, placed, addresses),
        )

    def bind_current_context(self) -> None:
        """Bind launches to the current CUDA context; calls in another context are left to Python code."""
        self._mapping.context = get_current_context() or None

    def error(self, status: int) -> CudnnStatusError:
        """Return the exception for an error code that a compiled call has returned."""
        return self._library.make_status_error(status & 0xFFFF, FUNCTIONS[status >> 16])


def _make_dlpack_type_code_mask(codes: frozenset[int]) -> int:
    return sum(1 << code for code in {min(code, 31) for code in codes})
