"""Queries of the real libcudnn about single attributes through plain ctypes, in a child process that may crash.

It uses no part of the package, because it checks the package's facts. As a script it reads
one JSON query per line and answers each with a line.
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
class Query:
    """Query whether a new descriptor of this kind accepts this attribute with this type and count.

    ``element`` is the descriptor type of the elements, if they are descriptors; ``addresses`` fills a
    VOID_PTR array with the address of zeroed memory instead of zeros; ``by_value`` makes a tensor by-value.
    """

    kind: int
    attribute: int
    type: int
    count: int = 1
    element: int = TENSOR
    addresses: bool = False
    by_value: bool = False


@dataclass(frozen=True)
class Answer:
    """Status and last-error text, or ``died`` if the process crashed."""

    status: int
    last_error: str
    died: bool = False


def library() -> Path:
    """Return libcudnn.so.9 of the wheel installed next to this Python."""
    found = [path for entry in sys.path for path in Path(entry).glob("nvidia/cudnn/lib/libcudnn.so.9")]
    if not found:
        raise FileNotFoundError("no nvidia/cudnn/lib/libcudnn.so.9 next to this Python")
    return found[0]


def run_query(questions: Iterable[Query]) -> list[Answer]:
    """Answer every query, with a new child after each one that crashes it."""
    waiting = list(questions)
    answers: list[Answer] = []
    while waiting:
        lines = _run(waiting)
        answers += [Answer(*json.loads(line)) for line in lines]
        waiting = waiting[len(lines) :]
        if waiting:
            answers.append(Answer(0, "", died=True))
            waiting = waiting[1:]
    return answers


def _run(questions: Sequence[Query]) -> list[str]:
    text = "".join(json.dumps(asdict(question)) + "\n" for question in questions)
    child = [sys.executable, str(Path(__file__).resolve())]
    done = subprocess.run(child, input=text, capture_output=True, text=True, check=False)
    lines = done.stdout.splitlines()
    if done.returncode > 0:  # a Python error, not a signal: the helper itself is wrong
        raise RuntimeError(done.stderr)
    return lines


class _Library:
    def __init__(self) -> None:
        self.lib = ctypes.CDLL(str(library()))
        self.lib.cudnnBackendCreateDescriptor.argtypes = [ctypes.c_int, ctypes.c_void_p]
        self.lib.cudnnBackendDestroyDescriptor.argtypes = [ctypes.c_void_p]
        self.lib.cudnnBackendSetAttribute.argtypes = [
            ctypes.c_void_p, ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_void_p,
        ]  # fmt: skip

    def create(self, kind: int) -> int | None:
        descriptor = ctypes.c_void_p()
        self.lib.cudnnBackendCreateDescriptor(kind, ctypes.byref(descriptor))
        return descriptor.value

    def last_error(self) -> str:
        text = ctypes.create_string_buffer(65536)
        self.lib.cudnnGetLastErrorString(text, len(text))
        return text.value.decode()

    def elements(self, question: Query, owned: list[int]) -> ctypes.Array:
        room = max(question.count, 8)
        if question.type == BACKEND_DESCRIPTOR:
            owned += [self.create(question.element) or 0 for _ in range(room)]
            return (ctypes.c_uint64 * room)(*owned)
        if question.type == FLOAT:
            return (ctypes.c_float * room)(*[1.0] * room)
        if question.type == DOUBLE:
            return (ctypes.c_double * room)(*[1.0] * room)
        if question.type == VOID_PTR:
            target = ctypes.addressof(_ZEROS) if question.addresses else 0
            return (ctypes.c_uint64 * room)(*[target] * room)
        return (ctypes.c_int64 * (2 * room))(*[1] * (2 * room))  # a fraction needs two

    def answer(self, question: Query) -> tuple[int, str]:
        self.last_error()
        owned: list[int] = []
        elements = self.elements(question, owned)
        descriptor = self.create(question.kind)
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


_ZEROS = (ctypes.c_int64 * 64)()


def main() -> None:
    """Answer the queries on standard input."""
    cudnn = _Library()
    for line in sys.stdin:
        print(json.dumps(cudnn.answer(Query(**json.loads(line)))), flush=True)


if __name__ == "__main__":
    main()
