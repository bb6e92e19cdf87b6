"""Record the cuDNN calls of this process, and write a C program that makes the same calls.

Functions, argument values and descriptors are recorded during a ``with`` block. In the program, descriptors and the
handle are variables; all other values are bytes.
"""

from __future__ import annotations

import struct
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from cudnn_backend_py.generated.enums import AttributeName, AttributeType, DataType, DescriptorType
from cudnn_backend_py.graph import Graph
from cudnn_backend_py.native import library
from cudnn_backend_py.native.libcudnn import Library
from cudnn_backend_py.plans.build import build
from cudnn_backend_py.target import Target

__all__ = ["CallRecorder", "compile_program", "make_c_program_for_graph", "record_calls"]


class CallRecorder:
    """Records the cuDNN calls of a block as C statements."""

    def __init__(self) -> None:
        self.slots: dict[int, int] = {}
        self.count = 0
        self.lines: list[str] = []

    def make_c_program(self, functions: str) -> str:
        """Return the source of a C program: declarations that the recorded statements need, and ``functions``."""
        return _C_PROGRAM_TEMPLATE.replace("SLOTS", str(self.count)) + functions

    def wrap_function(self, bound: Any, name: str) -> Any:
        """Return a function that calls `bound` and records the call."""

        def call(*arguments: Any) -> Any:
            plain = [getattr(argument, "_obj", argument) for argument in arguments]
            writer = getattr(self, name, None)
            given = writer(*plain) if writer is not None and not name.endswith("CreateDescriptor") else None
            try:
                return bound(*arguments)
            finally:
                if name == "cudnnBackendCreateDescriptor":
                    given = self._record_descriptor_creation(*plain)
                if given is not None:
                    self.lines.append(given)

        return call

    def get_c_name(self, pointer: Any) -> str:
        """Return the C expression for the descriptor at an address."""
        return f"d[{self.slots[getattr(pointer, 'value', pointer)]}]"

    def _record_descriptor_creation(self, kind: int, made: Any) -> str:
        self.slots[made.value] = self.count
        self.count += 1
        return f"create({int(kind)}, &d[{self.count - 1}]);"

    def cudnnBackendDestroyDescriptor(self, pointer: Any) -> str:  # noqa: N802  # names of the functions
        return f"destroy({self.get_c_name(pointer)});"

    def cudnnBackendFinalize(self, pointer: Any) -> str:  # noqa: N802
        return f"finalize({self.get_c_name(pointer)});"

    def cudnnBackendSetAttribute(self, pointer: Any, attribute: int, kind: int, count: int, array: Any) -> str:  # noqa: N802
        if kind == AttributeType.HANDLE:
            given = "&handle"
        elif kind == AttributeType.BACKEND_DESCRIPTOR:
            given = "(void *[]){" + ", ".join(map(self.get_c_name, array)) + "}"
        else:
            given = "(unsigned char[]){" + ", ".join(map(str, bytes(array))) + "}"
        return f"set({self.get_c_name(pointer)}, {int(attribute)}, {int(kind)}, {int(count)}, {given});"

    def cudnnBackendGetAttribute(self, pointer: Any, attribute: int, kind: int, count: int, _: Any, array: Any) -> str:  # noqa: N802
        given = "room"
        if array is None:
            given = "0"
        elif kind == AttributeType.BACKEND_DESCRIPTOR:
            given = "(void *[]){" + ", ".join(map(self.get_c_name, array)) + "}"
        return f"get({self.get_c_name(pointer)}, {int(attribute)}, {int(kind)}, {int(count)}, &held, {given});"

    def cudnnGetLastErrorString(self, _buffer: Any, size: int) -> str:  # noqa: N802
        return f"say(room, {size});"

    def cudnnSetCallback(self, mask: int, _data: Any, _function: Any) -> str:  # noqa: N802
        return f"listen({mask}, 0, heard);"

    def cudnnGetCallback(self, *_: Any) -> str:  # noqa: N802
        return "listener(&mask, &data, &function);"


@contextmanager
def record_calls() -> Iterator[CallRecorder]:
    """Record the cuDNN calls of this process in the block."""
    bind, recorder, lib = Library._make_checked_function, CallRecorder(), library()

    def delete_bound_cudnn_functions() -> None:
        for name in [name for name in vars(lib) if name.startswith("cudnn")]:
            delattr(lib, name)  # ctypes binds the function again at its next use

    delete_bound_cudnn_functions()
    Library._make_checked_function = lambda self, name: recorder.wrap_function(bind(self, name), name)  # type: ignore[method-assign]
    try:
        yield recorder
    finally:
        Library._make_checked_function = bind  # type: ignore[method-assign]
        delete_bound_cudnn_functions()


def make_c_program_for_graph(graph: Graph, open_device: Callable[[], Target], names: Sequence[str]) -> tuple[str, int]:
    """Return a C program that opens cuDNN, then builds and runs a graph's plan, and the plan's workspace bytes.

    It has ``load(path of libcudnn)``, ``open()``, ``plan()`` and ``run(pointers of the named tensors, workspace)``; all
    but ``plan`` return 0. Other tensors of the graph are host scalars in float32.
    """
    with record_calls() as recorder:
        made = build(graph, open_device(), cache=False)
        lines, plan = list(recorder.lines), recorder.get_c_name(made.descriptor.pointer)
        workspace = made.workspace_bytes
        made.close()
    tensors = graph.variant_pack_tensors
    scalars, pointers = [], []
    for tensor in tensors:
        if tensor.name in names:
            pointers.append(f"named[{list(names).index(tensor.name)}]")
        else:
            assert tensor.data_type is DataType.FLOAT
            value = ", ".join(map(str, struct.pack("f", tensor.value)))
            scalars.append(f"static _Alignas(4) unsigned char scalar{tensor.uid}[] = {{{value}}};")
            pointers.append(f"scalar{tensor.uid}")
    pack = DescriptorType.VARIANT_PACK
    rows = (
        (AttributeName.VARIANT_PACK_DATA_POINTERS, AttributeType.VOID_PTR, len(tensors), "pointers"),
        (AttributeName.VARIANT_PACK_UNIQUE_IDS, AttributeType.INT64, len(tensors), "uids"),
        (AttributeName.VARIANT_PACK_WORKSPACE, AttributeType.VOID_PTR, 1, "&workspace"),
    )
    values = {
        "SCALARS": "\n".join(scalars),
        "LINES": "\n".join(lines),
        "POINTERS": ", ".join(pointers),
        "UIDS": ", ".join(str(tensor.uid) for tensor in tensors),
        "PACK": str(int(pack)),
        "SETS": " ".join(f"set(pack, {int(name)}, {int(kind)}, {n}, {value});" for name, kind, n, value in rows),
        "PLAN": plan,
    }
    functions = _C_FIRST_RESULT_TEMPLATE
    for name, value in values.items():
        functions = functions.replace(name, value)
    return recorder.make_c_program(functions), workspace


def compile_program(text: str, folder: Path) -> Path:
    """Compile a program with gcc in this folder and return its shared library."""
    source, shared = folder / "calls.c", folder / "calls.so"
    source.write_text(text, encoding="utf-8")
    subprocess.run(["gcc", "-O1", "-shared", "-fPIC", "-o", str(shared), str(source), "-ldl"], check=True)
    return shared


_C_PROGRAM_TEMPLATE = """
#include <dlfcn.h>
#include <stdint.h>
static int (*create)(int, void **), (*destroy)(void *), (*finalize)(void *), (*open_handle)(void **);
static int (*set)(void *, int, int, int64_t, const void *), (*get)(void *, int, int, int64_t, int64_t *, void *);
static int (*execute)(void *, void *, void *);
static int (*listen)(unsigned, void *, void *), (*listener)(unsigned *, void **, void **);
static void (*say)(char *, int64_t);
static char room[1 << 22];
static void *d[SLOTS], *handle;
static int64_t held;
static unsigned mask;
static void *data, *function;
static void heard(int severity, void *user, const void *info, const char *text) {}
int load(const char *path) {
    void *lib = dlopen(path, RTLD_NOW);
    if (!lib) return 1;
    create = dlsym(lib, "cudnnBackendCreateDescriptor"); destroy = dlsym(lib, "cudnnBackendDestroyDescriptor");
    finalize = dlsym(lib, "cudnnBackendFinalize"); set = dlsym(lib, "cudnnBackendSetAttribute");
    get = dlsym(lib, "cudnnBackendGetAttribute"); listen = dlsym(lib, "cudnnSetCallback");
    listener = dlsym(lib, "cudnnGetCallback"); say = dlsym(lib, "cudnnGetLastErrorString");
    open_handle = dlsym(lib, "cudnnCreate"); execute = dlsym(lib, "cudnnBackendExecute");
    return !(create && destroy && finalize && set && get && listen && listener && say && open_handle && execute);
}
"""
_C_FIRST_RESULT_TEMPLATE = """
SCALARS
int open(void) { return open_handle(&handle); }
void plan(void) {
LINES
}
int run(void **named, void *workspace) {
    void *pack, *pointers[] = {POINTERS};
    int64_t uids[] = {UIDS};
    create(PACK, &pack); SETS
    finalize(pack);
    return execute(handle, PLAN, pack);
}
"""
