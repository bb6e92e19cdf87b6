"""The cuDNN calls of one ``explain``, made by a program that uses only ctypes: no tool in Python can take less time.

    python bare_calls.py CALLS

CALLS is a file with what :func:`record_calls` returned. The program imports nothing of this package.
"""

from __future__ import annotations

import ctypes
import json
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cudnn_backend_py.graph import Graph

__all__ = ["record_calls"]

DESCRIPTOR_TYPE = 15  # CUDNN_TYPE_BACKEND_DESCRIPTOR
# Bytes of the attribute types that are no int: HANDLE, BOOLEAN, INT64, DOUBLE, VOID_PTR, the above, CHAR, FRACTION.
SIZES = {0: 8, 2: 1, 3: 8, 5: 8, 6: 8, DESCRIPTOR_TYPE: 8, 24: 1, 26: 16}
TEXT_BYTES = 1 << 16


def record_calls(graph: Graph, target: str) -> dict[str, Any]:
    """Run ``explain`` in a process without a loaded cuDNN, and return its cuDNN calls as plain data."""
    from cudnn_backend_py.diagnose import explain
    from cudnn_backend_py.native import libcudnn

    calls: list[list[Any]] = []
    load = libcudnn.Library._load_function

    def load_recorded_function(self: libcudnn.Library, cdll: ctypes.CDLL, name: str) -> Any:
        function = load(self, cdll, name)
        record = _RECORDERS.get(name)
        return function if record is None else _RecordedFunction(function, record, calls)

    libcudnn.Library._load_function = load_recorded_function  # type: ignore[method-assign]
    explain(graph, target, shapes=True)
    library = libcudnn.library()
    return {"library": library.path, "driver": str(library.driver.path), "calls": calls}


class _RecordedFunction:
    """A C function that also records its calls; its attributes are those of the function."""

    def __init__(self, function: Any, record: Callable[..., list[Any]], calls: list[list[Any]]) -> None:
        self.__dict__.update(function=function, record=record, calls=calls)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.function, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self.function, name, value)

    def __delattr__(self, name: str) -> None:
        delattr(self.function, name)

    def __call__(self, *arguments: Any) -> Any:
        call = self.record(*arguments)  # before a buffer is written
        answer = self.function(*arguments)
        if call[0] == "create":
            call.append(ctypes.c_void_p.from_address(_get_address(arguments[1])).value)
        self.calls.append(call)
        return answer


def _get_number(value: Any) -> int:
    return int(getattr(value, "value", value))


def _get_address(pointer: Any) -> int:
    if pointer is None or isinstance(pointer, int):
        return pointer or 0
    if isinstance(pointer, ctypes.c_void_p):
        return pointer.value or 0
    if hasattr(pointer, "_obj"):  # byref
        return ctypes.addressof(pointer._obj)
    return ctypes.cast(pointer, ctypes.c_void_p).value or 0


def _read_values(kind: int, count: int, values: Any) -> list[int] | str | None:
    """Return the values of an attribute: addresses of descriptors, or bytes as hex digits."""
    if isinstance(values, bytes):
        return values.hex()
    address = _get_address(values)
    if not address:
        return None
    if kind == DESCRIPTOR_TYPE:
        return list((ctypes.c_size_t * count).from_address(address))
    return ctypes.string_at(address, count * SIZES.get(kind, 4)).hex()


def _make_attribute_call_record(
    how: str, descriptor: Any, attribute: Any, kind: Any, count: Any, *rest: Any
) -> list[Any]:
    numbers = [_get_number(one) for one in (attribute, kind, count)]
    return [how, _get_address(descriptor), *numbers, _read_values(numbers[1], numbers[2], rest[-1])]


_RECORDERS: dict[str, Callable[..., list[Any]]] = {
    "cudnnBackendCreateDescriptor": lambda kind, _: ["create", _get_number(kind)],
    "cudnnBackendSetAttribute": lambda *arguments: _make_attribute_call_record("set", *arguments),
    "cudnnBackendGetAttribute": lambda *arguments: _make_attribute_call_record("get", *arguments),
    "cudnnBackendFinalize": lambda descriptor: ["finalize", _get_address(descriptor)],
    "cudnnGetLastErrorString": lambda *_: ["explain"],
}


def replay_cudnn_calls(recorded: dict[str, Any]) -> None:
    """Make recorded calls; each recorded address is replaced by the descriptor last created for it."""
    ctypes.CDLL(recorded["driver"], mode=ctypes.RTLD_GLOBAL)
    cudnn = ctypes.CDLL(recorded["library"])
    pointer, number = ctypes.c_void_p, ctypes.c_int
    cudnn.cudnnBackendSetAttribute.argtypes = [pointer, number, number, ctypes.c_int64, pointer]
    cudnn.cudnnBackendGetAttribute.argtypes = [pointer, number, number, ctypes.c_int64, pointer, pointer]
    descriptors: dict[int, ctypes.c_void_p] = {}
    text, found = ctypes.create_string_buffer(TEXT_BYTES), ctypes.c_int64()

    def make_values(values: list[int] | str | None) -> Any:
        if isinstance(values, str):
            return ctypes.create_string_buffer(bytes.fromhex(values))
        return values and (pointer * len(values))(*(descriptors[one].value for one in values))

    for name, *arguments in recorded["calls"]:
        if name == "create":
            kind, old = arguments
            descriptors[old] = pointer()
            cudnn.cudnnBackendCreateDescriptor(kind, ctypes.byref(descriptors[old]))
        elif name == "set":
            old, *numbers, values = arguments
            cudnn.cudnnBackendSetAttribute(descriptors[old], *numbers, make_values(values))
        elif name == "get":
            old, *numbers, values = arguments
            cudnn.cudnnBackendGetAttribute(descriptors[old], *numbers, ctypes.byref(found), make_values(values))
        elif name == "finalize":
            cudnn.cudnnBackendFinalize(descriptors[arguments[0]])
        else:
            cudnn.cudnnGetLastErrorString(text, ctypes.c_size_t(TEXT_BYTES))


if __name__ == "__main__":
    with open(sys.argv[1], encoding="utf-8") as file:
        replay_cudnn_calls(json.load(file))
