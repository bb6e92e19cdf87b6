"""Load the compiled C library, if it was built, and make Python functions and methods of its functions."""

from __future__ import annotations

import ctypes
import sys
from functools import cache
from typing import Any

from ..system.interruption import reraise_interruption
from .find import find_compiled_libraries

__all__ = [
    "ANY_ARGUMENTS",
    "MANY_ARGUMENTS",
    "NO_ARGUMENTS",
    "ONE_ARGUMENT",
    "SLOW_ATTRIBUTE",
    "get_function_address",
    "load_compiled_library",
    "make_builtin_function",
    "make_capsule",
    "make_method",
]

STRUCT_VERSION = 8  # of the structures; the compiled file has the same

_FAST_ATTRIBUTE, SLOW_ATTRIBUTE = "_fast", "_call_in_python"  # attributes that C looks up

_pointer = ctypes.c_void_p
_PYTHON_API_FUNCTIONS = {
    "item": "PyTuple_GetItem",
    "release": "Py_DecRef",
    "clear": "PyErr_Clear",
    "save": "PyEval_SaveThread",
    "restore": "PyEval_RestoreThread",
    "call": "PyObject_CallFunction",
    "pointer": "PyCapsule_GetPointer",
    "number": "PyLong_FromLong",
    "retain": "Py_IncRef",
    "next": "PyDict_Next",
    "address": "PyLong_AsUnsignedLongLong",
    "attribute": "PyObject_GetAttr",
    "method": "PyObject_VectorcallMethod",
    "size": "PyTuple_Size",
    "thread": "PyThread_get_thread_ident",
    "lock": "PyGILState_Ensure",
    "unlock": "PyGILState_Release",
    "known": "PyGILState_GetThisThreadState",
    "fetch": "PyErr_Fetch",
    "raise": "PyErr_Restore",
    "unraisable": "PyErr_WriteUnraisable",
    "running": "Py_IsInitialized",
    "capsule": "PyCapsule_New",
    "later": "Py_AddPendingCall",
}
_TYPE_OFFSET = object.__basicsize__ - ctypes.sizeof(_pointer)  # an object ends with its type


class _PythonApi(ctypes.Structure):
    _fields_ = tuple((name, _pointer) for name in (*_PYTHON_API_FUNCTIONS, "none", "fast", "slow", "type_at"))


def get_function_address(function: Any) -> int | None:
    """Return the address of a C function."""
    return ctypes.cast(function, _pointer).value


_python_api = _PythonApi(
    *(get_function_address(getattr(ctypes.pythonapi, name)) for name in _PYTHON_API_FUNCTIONS.values()),
    id(None),
    id(_FAST_ATTRIBUTE),
    id(SLOW_ATTRIBUTE),
    _TYPE_OFFSET,
)


def _return_true() -> bool:
    return True


@cache
def load_compiled_library() -> Any:
    """Return the compiled functions; None if they were not built or Python runs without the GIL.

    That lock is what keeps two threads out of one row of addresses, and a dict as it is while it is read.
    """
    if not getattr(sys, "_is_gil_enabled", _return_true)():  # since Python 3.13
        return None
    for path in find_compiled_libraries("_fast_call"):
        try:
            library = ctypes.PyDLL(str(path))
            version = ctypes.c_int.in_dll(library, "cudnn_backend_py_fast_call_version").value
        except (OSError, ValueError) as error:
            reraise_interruption(error)
            continue
        if version == STRUCT_VERSION and _pointer.from_address(id(None) + _TYPE_OFFSET).value == id(type(None)):
            library.cudnn_backend_py_connect(ctypes.byref(_python_api))
            loop = library.cudnn_backend_py_loop
            loop.argtypes, loop.restype = [*[_pointer] * 4, ctypes.c_int64], ctypes.c_int64
            library.cudnn_backend_py_listen.argtypes = [ctypes.py_object]
            library.cudnn_backend_py_raise.restype = ctypes.py_object
            return library
    return None


class _PyMethodDef(ctypes.Structure):
    """``PyMethodDef`` of Python's stable ABI."""

    _fields_ = (("name", ctypes.c_char_p), ("function", _pointer), ("flags", ctypes.c_int), ("doc", ctypes.c_char_p))


NO_ARGUMENTS, ONE_ARGUMENT = 4, 8  # METH_NOARGS, METH_O
MANY_ARGUMENTS, ANY_ARGUMENTS = 0x80, 0x80 | 2  # METH_FASTCALL, METH_FASTCALL | METH_KEYWORDS

_new_capsule = ctypes.PYFUNCTYPE(ctypes.py_object, _pointer, _pointer, _pointer)(("PyCapsule_New", ctypes.pythonapi))
_new_method = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.py_object, _pointer)(("PyDescr_NewMethod", ctypes.pythonapi))
_new_function = ctypes.PYFUNCTYPE(ctypes.py_object, _pointer, ctypes.py_object, _pointer)(
    ("PyCFunction_NewEx", ctypes.pythonapi)
)


@cache
def _make_method_def(name: str, flags: int, function: str = "", doc: str | None = None) -> _PyMethodDef:
    address = get_function_address(load_compiled_library()[f"cudnn_backend_py_{function or name}"])
    return _PyMethodDef(name.encode(), address, flags, None if doc is None else doc.encode())


def make_capsule(structure: ctypes.Structure, *keeps: object) -> tuple[Any, ...]:
    """Return the capsule that a compiled function gets as self, followed by the objects it keeps alive."""
    return _new_capsule(ctypes.addressof(structure), _CAPSULE_NAMES[type(structure).__name__], None), structure, *keeps


_CAPSULE_NAMES = {
    "_LaunchStruct": b"run",
    "_PlanCallWithTupleStruct": b"call",
    "_PlanCallWithDictStruct": b"mapping",
    "_DestructorStruct": b"end",
}  # of capsules, as in C


def make_builtin_function(name: str, flags: int, subject: tuple[Any, ...]) -> Any:
    """Return a compiled function as a builtin function of Python, called without ctypes."""
    return _new_function(ctypes.addressof(_make_method_def(name, flags)), subject, None)


def make_method(kind: type, name: str, flags: int, function: str, doc: str) -> Any:
    """Return a compiled function as a method of a class."""
    return _new_method(kind, ctypes.addressof(_make_method_def(name, flags, function, doc)))
