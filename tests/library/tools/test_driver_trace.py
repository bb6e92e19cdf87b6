"""The driver trace writes each CUDA driver call with its result, even if the function was not found by its name."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.child import ROOT

DRIVER = """
#include <string.h>
int cuDeviceGetAttribute(int *value, int attribute, int device) { *value = 100 * attribute + device; return 0; }
int cuGetProcAddress_v2(const char *name, void **found, int version, unsigned long flags, int *status) {
    *found = strcmp(name, "cuDeviceGetAttribute") ? 0 : (void *)cuDeviceGetAttribute;
    return *found ? 0 : 500;
}
"""
PROGRAM = """
import ctypes
driver, value, found = ctypes.CDLL("libcuda.so.1"), ctypes.c_int(), ctypes.c_void_p()
assert driver.cuDeviceGetAttribute(ctypes.byref(value), 16, 2) == 0
assert value.value == 1602
assert driver.cuGetProcAddress_v2(b"cuDeviceGetAttribute", ctypes.byref(found), 12000, 0, None) == 0
assert ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_int, ctypes.c_int)(found.value)(
    ctypes.addressof(value), 7, 0) == 0
assert value.value == 700
assert driver.cuGetProcAddress_v2(b"cuOther", ctypes.byref(found), 12000, 0, None) == 500
"""


@pytest.mark.skipif(shutil.which("cc") is None, reason="did not run: there is no C compiler")
def test_driver_calls_are_written_with_their_results(tmp_path: Path) -> None:
    (tmp_path / "driver.c").write_text(DRIVER)
    build = ["cc", "-shared", "-fPIC"]
    subprocess.run([*build, "-o", tmp_path / "libcuda.so.1", tmp_path / "driver.c"], check=True)
    trace = [*build, "-Wall", "-Werror", "-O2", "-o", tmp_path / "trace.so", ROOT / "tools" / "driver_trace.c", "-ldl"]
    subprocess.run(trace, check=True)
    variables = {
        "DRIVER_TRACE": tmp_path / "calls.txt",
        "LD_PRELOAD": tmp_path / "trace.so",
        "LD_LIBRARY_PATH": tmp_path,
    }
    environment = {**os.environ, **{name: str(path) for name, path in variables.items()}}
    subprocess.run([sys.executable, "-c", PROGRAM], env=environment, check=True)
    lines = (tmp_path / "calls.txt").read_text().splitlines()
    named = [line.partition(" ")[2] for line in lines]
    assert [line.partition("(")[0] for line in named] == [
        *("cuDeviceGetAttribute", "cuGetProcAddress_v2", "cuDeviceGetAttribute", "cuGetProcAddress_v2")
    ]
    assert "16, 2," in named[0]
    assert named[0].endswith("= 0 -> 1602")
    assert named[2].endswith("= 0 -> 700")
    assert named[3].startswith("cuGetProcAddress_v2(cuOther,")
    assert named[3].endswith("= 500")
