"""Exceptions of Python callbacks called from C: stored per thread while C runs, raised after it returns.

An exception cannot pass through a C function. cuDNN's log callback calls Python: a logger or callback of the user may
raise there, and so may a signal's handler, wherever it finds Python running. Such an exception is kept, and every call
of a C function of cuDNN ends in :meth:`StoredExceptions.raise_stored_exception` where one is stored. As long as it
is stored in a thread, the callback calls no Python there, so that there is never a second one.

``callbacks.c`` keeps whatever comes, since no Python runs between the call and the keeping. Without it the callback is
one of ctypes: what is raised before or after its ``try`` is taken from ``sys.unraisablehook``, where ctypes reports it.
"""

from __future__ import annotations

import ctypes
import sys
import threading
from collections.abc import Callable
from functools import cache
from types import CodeType
from typing import Any

from .compiled import load_compiled_library

__all__ = ["LogCallback", "StoredExceptions", "get_stored_exceptions"]


class DebugInfo(ctypes.Structure):
    """``cudnnDebug_t``: the source of a log message."""

    _fields_ = (
        ("cudnn_version", ctypes.c_uint),
        ("status", ctypes.c_int),
        ("time_sec", ctypes.c_uint),
        ("time_usec", ctypes.c_uint),
        ("time_delta", ctypes.c_uint),
        ("handle", ctypes.c_void_p),
        ("stream", ctypes.c_void_p),
        ("pid", ctypes.c_ulonglong),
        ("tid", ctypes.c_ulonglong),
        ("device", ctypes.c_int),
        ("reserved", ctypes.c_int * 15),
    )


LogCallback = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_void_p, ctypes.POINTER(DebugInfo), ctypes.c_void_p)

MessageReceiver = Callable[
    [int, int | None, Any, int], None
]  # of severity, user data, debug info, address of the message


class StoredExceptions:
    """Exceptions of callbacks, stored by the compiled library until the C function has returned.

    Attributes
    ----------
    pending_count
        How many there are in all threads; whoever called C looks here first.
    """

    def __init__(self, compiled: Any) -> None:
        self._compiled = compiled
        self.pending_count = ctypes.c_int.in_dll(compiled, "cudnn_backend_py_waiting")
        self._is_receiving = ctypes.c_int.in_dll(compiled, "cudnn_backend_py_inside")
        self.raise_stored_exception: Callable[[], None] = compiled.cudnn_backend_py_raise

    def may_be_pending(self) -> bool:
        """Return whether an exception is stored, or a callback that may raise one is running."""
        return bool(self.pending_count.value or self._is_receiving.value)

    def make_log_callback(self, receiver: MessageReceiver) -> Any:
        """Return the C callback that calls `receiver`; there is one per process, and it is never freed."""

        def receive_message(severity: int, user_data: int, info: int, message: int) -> None:
            receiver(severity, user_data or None, ctypes.pointer(DebugInfo.from_address(info)), message)

        self._compiled.cudnn_backend_py_listen(receive_message)
        return LogCallback(ctypes.cast(self._compiled.cudnn_backend_py_receive, ctypes.c_void_p).value or 0)

    def wrap_to_store_exceptions(self, function: Callable[..., None]) -> Callable[..., None]:
        """Return `function` with its exceptions stored instead of raised, as its C caller cannot catch them."""
        return function


class _PythonStoredExceptions(StoredExceptions):
    """Exceptions of callbacks, stored in Python because there is no compiled library."""

    def __init__(self) -> None:
        self.pending_count = ctypes.c_int()
        self._lock = threading.Lock()
        self._thread = threading.local()
        self._guards: set[CodeType] = set()
        self.raise_stored_exception = self._raise_stored

    def may_be_pending(self) -> bool:
        return True  # also where a native object ends

    def _raise_stored(self) -> None:
        kept = self._thread.__dict__.pop("kept", None)
        if kept is not None:
            with self._lock:
                self.pending_count.value -= 1
            self._thread.inside = False
            raise kept

    def _store(self, error: BaseException) -> None:
        if "kept" not in self._thread.__dict__:
            self._thread.kept = error
            with self._lock:
                self.pending_count.value += 1

    def make_log_callback(self, receiver: MessageReceiver) -> Any:
        def receive_message(severity: int, user_data: int | None, info: Any, message: int) -> None:
            here = self._thread.__dict__
            if here.get("inside") or "kept" in here:
                return
            try:
                here["inside"] = True
                receiver(severity, user_data, info, message)
            except BaseException as error:
                self._store(error)
            finally:
                here["inside"] = False

        self._catch_unraisable(receive_message)
        return LogCallback(receive_message)

    def wrap_to_store_exceptions(self, function: Callable[..., None]) -> Callable[..., None]:
        def call_and_store(*arguments: Any) -> None:
            try:
                function(*arguments)
            except BaseException as error:
                self._store(error)

        self._catch_unraisable(call_and_store)
        return call_and_store

    def _catch_unraisable(self, function: Callable[..., None]) -> None:
        """Also store exceptions that a callback raises outside its ``try``, which ctypes passes to a hook."""
        self._guards.add(function.__code__)
        if getattr(sys.unraisablehook, "__self__", None) is not self:
            self._former_hook = sys.unraisablehook
            sys.unraisablehook = self._store_or_forward_unraisable

    def _store_or_forward_unraisable(self, unraisable: Any) -> None:
        if getattr(unraisable.object, "__code__", None) in self._guards:
            self._store(unraisable.exc_value or unraisable.exc_type())
        else:
            self._former_hook(unraisable)


@cache
def get_stored_exceptions() -> StoredExceptions:
    """Return the store of callback exceptions of this process."""
    compiled = load_compiled_library()
    return _PythonStoredExceptions() if compiled is None else StoredExceptions(compiled)
