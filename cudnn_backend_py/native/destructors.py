"""Destructors: Python objects that call a C function when their last reference is gone.

Where the package was compiled no code of Python runs for that, so that no signal's handler can raise in the middle,
where an exception is lost.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
from collections.abc import Callable
from functools import cache
from typing import Any

from .callbacks import get_stored_exceptions
from .compiled import MANY_ARGUMENTS, get_function_address, load_compiled_library, make_builtin_function, make_capsule
from .cuda import load_driver_function, relax_stream_capture_mode, restore_context

__all__ = ["DestructorFactory", "make_destructor_type"]

#: Takes what a native object needs, and the address of the pointer to it, in memory that is among that. Returns an
#: object with whose end the native object ends: the one the pointer leads to then, if any.
DestructorFactory = Callable[[tuple[object, ...], int], object]


class _DestructorStruct(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("destroy", "exchange", "get_current", "set_current")),
        ("is_brief", ctypes.c_int),
    )


def make_destructor_type(
    destroy: Any, *, is_brief: bool = False, beside_captures: bool = False, keeps_context: bool = False
) -> DestructorFactory:
    """Return a factory of objects that call `destroy` when their last reference is gone.

    Never at interpreter exit, and never in a forked child: its copy may be of a moment in which another thread held a
    lock of cuDNN, and no thread is left there to give that back.

    Parameters
    ----------
    destroy
        A ctypes function of the pointer; its answer is not looked at.
    is_brief
        Whether `destroy` keeps Python's lock.
    beside_captures
        Whether destroying could spoil a capture of a CUDA stream that goes on, and must not.
    keeps_context
        Whether `destroy` changes the current CUDA context, which must stay.
    """
    if load_compiled_library() is None:
        return lambda keeps, address: _make_exception_storing_destructor_type()(
            (keeps, address, destroy, beside_captures, keeps_context, os.getpid())
        )
    end = _DestructorStruct(
        get_function_address(destroy),
        get_function_address(load_driver_function("cuThreadExchangeStreamCaptureMode")) if beside_captures else None,
        get_function_address(load_driver_function("cuCtxGetCurrent")) if keeps_context else None,
        get_function_address(load_driver_function("cuCtxSetCurrent")) if keeps_context else None,
        is_brief,
    )
    _kept_structs.append((end, destroy))
    made: DestructorFactory = make_builtin_function("hold", MANY_ARGUMENTS, make_capsule(end))
    return made


_kept_structs: list[object] = []  # for ever, as native objects may


class _PythonDestructor(tuple[Any, ...]):
    """A destructor in Python, for installations without the compiled library.

    A tuple is made by C as a whole: no handler of a signal can leave an object that ends with a part of it missing.
    """

    __slots__ = ()

    def destroy_native(
        self, finalizing: Callable[[], bool] = sys.is_finalizing, getpid: Callable[[], int] = os.getpid
    ) -> None:
        """Destroy the native object, if there is one."""
        _, address, destroy, beside_captures, keeps_context, process = self
        if finalizing() or getpid() != process:
            return
        pointer = ctypes.c_void_p.from_address(address)
        if pointer:
            with contextlib.ExitStack() as stack:
                if keeps_context:
                    stack.enter_context(restore_context())
                if beside_captures:
                    stack.enter_context(relax_stream_capture_mode())
                destroy(pointer)


@cache
def _make_exception_storing_destructor_type() -> type[_PythonDestructor]:
    _PythonDestructor.__del__ = get_stored_exceptions().wrap_to_store_exceptions(_PythonDestructor.destroy_native)  # type: ignore[attr-defined]
    return _PythonDestructor
