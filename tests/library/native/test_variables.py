"""Environment variables that cuDNN, NVRTC and cuBLASLt read, recorded by a preloaded ``getenv``."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from cudnn_backend_py.native.variables import LOG_VARIABLES, list_library_variables
from tests.support.child import OLDER_VERSION, make_older_cudnn_environment, run_python

GETENV_RECORDER_SOURCE = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

extern char **environ;

static char *record(const char *name, void *caller) {
    Dl_info who;
    const char *file = dladdr(caller, &who) && who.dli_fname ? who.dli_fname : "?";
    FILE *out = fopen(RECORD, "a");
    if (out) {
        fprintf(out, "%s\t%s\n", file, name);
        fclose(out);
    }
    size_t length = strlen(name);
    for (char **one = environ; one && *one; one++)
        if (!strncmp(*one, name, length) && (*one)[length] == '=') return *one + length + 1;
    return NULL;
}
char *getenv(const char *name) { return record(name, __builtin_return_address(0)); }
char *secure_getenv(const char *name) { return record(name, __builtin_return_address(0)); }
"""

PROGRAM = """
from cudnn_backend_py import DataType, GraphBuilder, OperationGraph, build_plan, open_target
from cudnn_backend_py.graph import attention
g = GraphBuilder("product", io_type=DataType.HALF)
g.matmul(g.tensor("a", (2, 64, 64)), g.tensor("b", (2, 64, 64)), virtual=False)
for graph in (g.graph(), attention.sdpa_forward(batch=1, heads=2, seq_q=128, head_dim=64, causal=True)):
    for target in ("sm80", "sm90", "sm100"):
        question = OperationGraph(graph, open_target(target))
        question.heuristics("FALLBACK")
        build_plan(question.heuristics("A").configs[0])
"""
# Read, but without an effect on an answer: the working folder, and a name that LLVM looks up in its self-test.
IGNORED_VARIABLES = {"PWD", "bar", "HOME", "TMPDIR"}


@pytest.mark.parametrize("version", ["own", OLDER_VERSION])
def test_every_environment_variable_cudnn_reads_is_in_the_query(version: str, tmp_path: Path) -> None:
    if (compiler := shutil.which("cc")) is None:
        pytest.skip("did not run: it needs a C compiler (apt-get install gcc)")
    source, recorder, record = tmp_path / "recorder.c", tmp_path / "recorder.so", tmp_path / "record"
    source.write_text(GETENV_RECORDER_SOURCE)
    define = f'-DRECORD="{record}"'
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", define, "-o", recorder, source, "-ldl"], check=True)
    environment = dict(os.environ) if version == "own" else make_older_cudnn_environment()
    run_python(["-c", PROGRAM], environment={**environment, "LD_PRELOAD": str(recorder)}, check=True)
    read = {tuple(line.split("\t")) for line in record.read_text().splitlines()}
    names = {name for file, name in read if Path(file).name.startswith(("libcudnn", "libnvrtc", "libcublas"))}
    assert {"NVIDIA_TF32_OVERRIDE", "CUDNN_LOGLEVEL_DBG"} < names
    covered = {name for name, _ in list_library_variables(dict.fromkeys(names, "1"))}
    assert names - covered - IGNORED_VARIABLES - set(LOG_VARIABLES) == set()


def test_path_and_log_environment_variables_are_not_in_the_query() -> None:
    others = {"CUDNN_HOME": "/x", "CUDNN_VERSION": "9.1", "CUDNN_BACKEND_CACHE": "/y", "CUDNN_LOGLEVEL_DBG": "3"}
    assert list_library_variables({**others, "CUDNN_A_LATER_ONE": "1", "PATH": "/bin"}) == (("CUDNN_A_LATER_ONE", "1"),)
