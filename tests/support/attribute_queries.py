"""Test with plain ctypes which attributes libcudnn accepts, in a child process that may crash.

This file uses no part of the package, because it checks the package's facts. As a script it reads one JSON query per
line and writes one line per answer.
"""

from __future__ import annotations

import ctypes
import json
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

VOID_PTR, FLOAT, DOUBLE, BACKEND_DESCRIPTOR = 6, 4, 5, 15
TENSOR, TENSOR_IS_BY_VALUE, BOOLEAN = 17, 908, 2


@dataclass(frozen=True)
class AttributeQuery:
    """A query whether a new descriptor accepts an attribute with this type and element count.

    ``element`` is the descriptor type of the elements, if they are descriptors. With ``addresses``, a VOID_PTR array
    has the address of zeroed memory instead of zeros. With ``by_value``, the tensor is a host scalar.
    """

    kind: int
    attribute: int
    type: int
    count: int = 1
    element: int = TENSOR
    addresses: bool = False
    by_value: bool = False


@dataclass(frozen=True)
class AttributeAnswer:
    """The status and last-error text of a query, or ``died`` if the process crashed."""

    status: int
    last_error: str
    died: bool = False


def find_library() -> Path:
    """Return the path of libcudnn.so.9 from the wheel installed for this Python."""
    found = [path for entry in sys.path for path in Path(entry).glob("nvidia/cudnn/lib/libcudnn.so.9")]
    if not found:
        raise FileNotFoundError("no nvidia/cudnn/lib/libcudnn.so.9 next to this Python")
    return found[0]


def run_queries(questions: Iterable[AttributeQuery]) -> list[AttributeAnswer]:
    """Return the answers to queries; a new child continues after each query that crashes."""
    waiting = list(questions)
    answers: list[AttributeAnswer] = []
    while waiting:
        lines = _answer_queries_in_child(waiting)
        answers += [AttributeAnswer(*json.loads(line)) for line in lines]
        waiting = waiting[len(lines) :]
        if waiting:
            answers.append(AttributeAnswer(0, "", died=True))
            waiting = waiting[1:]
    return answers


def _answer_queries_in_child(questions: Sequence[AttributeQuery]) -> list[str]:
    text = "".join(json.dumps(asdict(question)) + "\n" for question in questions)
    child = [sys.executable, str(Path(__file__).resolve())]
    done = subprocess.run(child, input=text, capture_output=True, text=True, check=False)
    lines = done.stdout.splitlines()
    if done.returncode > 0:  # a Python error of this script, not a crash of cuDNN
        raise RuntimeError(done.stderr)
    return lines


class _CtypesCudnnLibrary:
    def __init__(self) -> None:
        self.lib = ctypes.CDLL(str(find_library()))
        self.lib.cudnnBackendCreateDescriptor.argtypes = [ctypes.c_int, ctypes.c_void_p]
        self.lib.cudnnBackendDestroyDescriptor.argtypes = [ctypes.c_void_p]
        self.lib.cudnnBackendSetAttribute.argtypes = [
            ctypes.c_void_p, ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_void_p,
        ]  # fmt: skip

    def create_descriptor(self, kind: int) -> int | None:
        descriptor = ctypes.c_void_p()
        self.lib.cudnnBackendCreateDescriptor(kind, ctypes.byref(descriptor))
        return descriptor.value

    def last_error(self) -> str:
        text = ctypes.create_string_buffer(65536)
        self.lib.cudnnGetLastErrorString(text, len(text))
        return text.value.decode()

    def make_attribute_elements(self, question: AttributeQuery, owned: list[int]) -> ctypes.Array:
        room = max(question.count, 8)
        if question.type == BACKEND_DESCRIPTOR:
            owned += [self.create_descriptor(question.element) or 0 for _ in range(room)]
            return (ctypes.c_uint64 * room)(*owned)
        if question.type == FLOAT:
            return (ctypes.c_float * room)(*[1.0] * room)
        if question.type == DOUBLE:
            return (ctypes.c_double * room)(*[1.0] * room)
        if question.type == VOID_PTR:
            target = ctypes.addressof(_ZERO_BUFFER) if question.addresses else 0
            return (ctypes.c_uint64 * room)(*[target] * room)
        return (ctypes.c_int64 * (2 * room))(*[1] * (2 * room))  # a fraction has two numbers

    def answer_query(self, question: AttributeQuery) -> tuple[int, str]:
        self.last_error()
        owned: list[int] = []
        elements = self.make_attribute_elements(question, owned)
        descriptor = self.create_descriptor(question.kind)
        if question.by_value:
            true = ctypes.c_bool(True)
            self.lib.cudnnBackendSetAttribute(descriptor, TENSOR_IS_BY_VALUE, BOOLEAN, 1, ctypes.byref(true))
        status = self.lib.cudnnBackendSetAttribute(
            descriptor, question.attribute, question.type, question.count, elements
        )
        answer = status, self.last_error()
        for used in (descriptor, *owned):
            self.lib.cudnnBackendDestroyDescriptor(used)
        return answer


_ZERO_BUFFER = (ctypes.c_int64 * 64)()


def main() -> None:
    """Answer the queries read from standard input."""
    cudnn = _CtypesCudnnLibrary()
    for line in sys.stdin:
        print(json.dumps(cudnn.answer_query(AttributeQuery(**json.loads(line)))), flush=True)


if __name__ == "__main__":
    main()
