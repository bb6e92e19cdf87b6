"""The C code under AddressSanitizer and UndefinedBehaviorSanitizer, with hostile input."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.address_sanitizer import (
    C_FLAGS,
    NATIVE_FOLDER,
    SANITIZER_MESSAGES,
    build_sanitized_fast_call_library,
    make_sanitizer_environment,
    run_tests,
)
from tests.support.child import run_python


def has_sanitizers(build_folder: Path) -> bool:
    """Return whether gcc and its sanitizer libraries are installed."""
    if shutil.which("gcc") is None:
        return False
    (build_folder / "nothing.c").write_text("")
    command = ["gcc", *C_FLAGS, str(build_folder / "nothing.c"), "-o", str(build_folder / "nothing.so")]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


@pytest.fixture(scope="module")
def build_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("sanitized")
    if not has_sanitizers(made):
        pytest.skip("did not run: gcc has no sanitizers here")
    return made


def test_hostile_calls_cause_no_sanitizer_report(build_folder: Path) -> None:
    names = ("test_fast_call.py", "test_hostile_calls.py", "test_interruptions.py")
    done = run_tests(
        build_sanitized_fast_call_library(build_folder), *(f"tests/library/native/{name}" for name in names)
    )
    said = done.stdout + done.stderr
    assert not any(word in said for word in SANITIZER_MESSAGES), said[-5000:]
    assert done.code == 0, said[-5000:]


ERRORS = {
    "heap-buffer-overflow": "char *p = malloc(8); memset(p, 1, 8); free_later(p); return p[8];",
    "runtime error": "int one = 0x7fffffff; return keep(one) + one;",
}
PROGRAM = """
#include <stdlib.h>
#include <string.h>
void *volatile kept;
static void free_later(void *p) { kept = p; }
static int keep(int x) { volatile int y = x; return y; }
int provoke(void) { (void)free_later; (void)keep; %s }
"""


@pytest.mark.parametrize("error", ERRORS)
def test_deliberate_errors_are_detected(build_folder: Path, error: str) -> None:
    """Deliberate errors in C code give the reports that the other tests search for."""
    source, made = build_folder / "error.c", build_folder / f"{error.split()[0]}.so"
    source.write_text(PROGRAM % ERRORS[error])
    subprocess.run(["gcc", *C_FLAGS, str(source), "-o", str(made)], check=True)
    done = run_python(
        ["-c", f"import ctypes; ctypes.CDLL({str(made)!r}).provoke()"], environment=make_sanitizer_environment()
    )
    assert error in done.stderr
    assert any(word in done.stderr for word in SANITIZER_MESSAGES)


STUB = """
import ctypes, sys
from tests.library.native import test_hostile_calls as tests
from pathlib import Path
tests.find_driver_stub = lambda: Path(sys.argv[1])
tests.test_functions_of_the_driver_stub_accept_null()
"""


def test_the_driver_stub_causes_no_sanitizer_report(build_folder: Path) -> None:
    made = build_folder / "stub.so"
    subprocess.run(["gcc", *C_FLAGS, str(NATIVE_FOLDER / "driver_stub.c"), "-o", str(made)], check=True)
    done = run_python(["-c", STUB, str(made)], environment=make_sanitizer_environment())
    assert (done.code, done.stderr) == (0, "")
