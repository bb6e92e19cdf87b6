"""Build the C code with AddressSanitizer and UndefinedBehaviorSanitizer, and run tests with it.

As a pytest plugin (``-p tests.support.address_sanitizer``) it makes the package use the library in ``SANITIZED``.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from cudnn_backend_py.native import compiled
from cudnn_backend_py.native import library as cudnn
from tests.support.child import ROOT, FinishedChild, run_python

__all__ = [
    "CXX_FLAGS",
    "C_FLAGS",
    "SANITIZER_MESSAGES",
    "build_sanitized_fast_call_library",
    "make_sanitizer_environment",
    "run_tests",
]

C_FLAGS = ("-g", "-O1", "-fPIC", "-shared", "-fno-omit-frame-pointer", "-fsanitize=address,undefined")
# Flags for C++, without checks of torch's types, because torch is not built with sanitizers.
CXX_FLAGS = "-g -fno-omit-frame-pointer -fsanitize=address,undefined -fno-sanitize=vptr"
SANITIZER_MESSAGES = ("AddressSanitizer", "runtime error:")  # texts of the sanitizers' reports
NATIVE_FOLDER = ROOT / "cudnn_backend_py" / "native"
SANITIZED_VARIABLE = "SANITIZED"

if SANITIZED_VARIABLE in os.environ:
    compiled.find_compiled_libraries = (
        lambda name: [Path(os.environ[SANITIZED_VARIABLE])] if name == "_fast_call" else []
    )


def build_sanitized_fast_call_library(folder: Path) -> Path:
    """Build ``fast_call.c`` and ``callbacks.c`` with sanitizers, and return the library's path."""
    made = folder / "_fast_call.so"
    sources = [str(NATIVE_FOLDER / name) for name in ("fast_call.c", "callbacks.c")]
    subprocess.run(["gcc", *C_FLAGS, "-Wall", "-Wextra", "-Werror", *sources, "-o", str(made)], check=True)
    return made


def make_sanitizer_environment(library: Path | None = None) -> dict[str, str]:
    """Return environment variables that load the sanitizer runtime before Python, which is not sanitized."""
    names = ("libasan.so", "libubsan.so", "libstdc++.so.6")  # libstdc++ for C++ exceptions in cuDNN
    paths = [subprocess.check_output(["gcc", f"-print-file-name={name}"], text=True).strip() for name in names]
    # Python leaks memory at its exit; cuDNN's own errors are ignored, and unwinding its stacks is slow.
    options = "detect_leaks=0:handle_segv=0:verify_asan_link_order=0:detect_odr_violation=0:abort_on_error=1"
    options += ":allocator_may_return_null=1"  # the program handles failed allocations
    lib = cudnn()
    # The sanitizer replaces dlopen, so that cuDNN's own RUNPATH has no effect.
    folders = {str(Path(path).parent) for path in (lib.path, lib.nvrtc.path, lib.cublaslt.path) if path}
    found = os.environ | {
        "LD_PRELOAD": ":".join(paths),
        "LD_LIBRARY_PATH": ":".join([*sorted(folders), os.environ.get("LD_LIBRARY_PATH", "")]),
        "ASAN_OPTIONS": options,
        "UBSAN_OPTIONS": "print_stacktrace=1",
    }
    return found if library is None else found | {SANITIZED_VARIABLE: str(library), "PYTHONMALLOC": "malloc"}


def run_tests(library: Path, *arguments: str, timeout_s: float = 600) -> FinishedChild:
    """Run tests in a child process with a sanitized library."""
    command = ["-m", "pytest", "-q", "-p", "tests.support.address_sanitizer", "-p", "no:cacheprovider", *arguments]
    return run_python(command, environment=make_sanitizer_environment(library), timeout_s=timeout_s)


if __name__ == "__main__":
    print(build_sanitized_fast_call_library(Path(sys.argv[1])))
