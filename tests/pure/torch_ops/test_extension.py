"""Build, cache and load of the compiled step: with compilers of the test, which write
a file, fail, or do not exist; and one in C, which is loaded.
"""

from __future__ import annotations

import shutil
import stat
import sysconfig
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cudnn_backend_py.torch_ops import extension as module
from cudnn_backend_py.torch_ops.extension import NAME, SOURCE, VARIABLE, Build, Extension

COUNTING = """#!/bin/sh
echo x >> {log}
while [ "$1" != "-o" ]; do shift; done
{work}
"""
MODULE = f"""
#include <Python.h>
static PyModuleDef module = {{PyModuleDef_HEAD_INIT, "{NAME}", 0, -1, 0}};
PyMODINIT_FUNC PyInit_{NAME}(void) {{ return PyModule_Create(&module); }}
"""
TORCH = SimpleNamespace(
    __file__="/somewhere/torch/__init__.py",
    __version__="2.13.0+cpu",
    version=SimpleNamespace(git_version="0123abc"),
    _C=SimpleNamespace(_GLIBCXX_USE_CXX11_ABI=True),
)
needs_c = pytest.mark.skipif(shutil.which("cc") is None, reason="did not run: there is no C compiler")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    found = tmp_path / "extensions"
    monkeypatch.setenv(VARIABLE, str(found))
    return found


@pytest.fixture
def compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that makes a compiler with this effect, and one that counts its runs."""
    log = tmp_path / "log"

    def make(work: str) -> None:
        script = tmp_path / "compiler"
        script.write_text(COUNTING.format(log=log, work=work))
        script.chmod(0o755)
        monkeypatch.setenv("CXX", str(script))

    make.runs = lambda: log.read_text().count("x") if log.exists() else 0  # type: ignore[attr-defined]
    return make


def request(torch: Any = TORCH) -> tuple[Extension, list[Any]]:
    """Return an extension that was requested and waited for, and the uses of its module."""
    extension, given = Extension(), []
    extension.request_build(torch, given.append)
    extension.wait(60)
    return extension, given


@pytest.fixture
def in_c(tmp_path: Path, compiler: Any) -> Any:
    """A compiler that writes an empty extension module."""
    (tmp_path / "module.c").write_text(MODULE)
    include = sysconfig.get_paths()["include"]
    compiler(f'exec {shutil.which("cc")} -shared -fPIC -I{include} {tmp_path}/module.c -o "$2"')
    return compiler


@needs_c
def test_the_step_is_built_once_and_loaded_by_all(in_c: Any, folder: Path) -> None:
    for _ in range(3):
        extension, given = request()
        assert extension.state == "loaded"
        assert given == [extension.module]
        assert extension.module.__name__ == NAME
    assert in_c.runs() == 1
    (built,) = folder.glob("*.so")
    assert built.name == Build.for_torch(TORCH).file_name
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


@needs_c
def test_the_step_is_requested_once(in_c: Any, folder: Path) -> None:
    extension, given = request()
    extension.request_build(TORCH, given.append)
    assert len(given) == 1


@needs_c
def test_other_torch_is_another_build(in_c: Any, folder: Path) -> None:
    changes = {
        "__version__": "2.12.0+cu130",
        "version": SimpleNamespace(git_version="4567def"),
        "_C": SimpleNamespace(_GLIBCXX_USE_CXX11_ABI=False),
        "__file__": "/elsewhere/torch/__init__.py",
    }
    keys = {
        Build.for_torch(TORCH).key,
        *(Build.for_torch(SimpleNamespace(**{**vars(TORCH), k: x})).key for k, x in changes.items()),
    }
    assert len(keys) == 1 + len(changes)


@pytest.mark.parametrize(("version", "standard"), [("2.4.0", "-std=c++17"), ("2.13.0a0+git1", "-std=c++20")])
def test_command_equals_torchs(version: str, standard: str) -> None:
    command = Build.for_torch(SimpleNamespace(**{**vars(TORCH), "__version__": version})).command
    assert {standard, "-D_GLIBCXX_USE_CXX11_ABI=1", "-I/somewhere/torch/include", "-L/somewhere/torch/lib"} <= {
        *command
    }
    assert command[-4] == "-L/somewhere/torch/lib"
    assert str(SOURCE) in command


def test_an_error_of_the_compiler_is_reported_and_not_repeated(compiler: Any, folder: Path) -> None:
    compiler("echo 'no such header' >&2; exit 1")
    for _ in range(2):
        extension, given = request()
        assert (extension.module, given) == (None, [])
        assert "no such header" in extension.state
        assert str(folder / Build.for_torch(TORCH).error_file_name) in extension.state
    assert compiler.runs() == 1


def test_a_failure_to_load_is_reported(compiler: Any, folder: Path) -> None:
    compiler('echo "no library" > "$2"')
    extension, given = request()
    assert (extension.module, given) == (None, [])
    assert extension.state.startswith("it cannot be loaded: ")


@needs_c
def test_an_unusable_module_is_none(in_c: Any, folder: Path) -> None:
    def refuse(_module: Any) -> None:
        raise OSError("of another torch")

    extension = Extension()
    extension.request_build(TORCH, refuse)
    assert not extension.wait(60)
    assert extension.state == "it cannot be loaded: of another torch"


def test_an_absent_compiler_is_reported(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler -flag")
    extension, _ = request()
    assert extension.state == "it cannot be built: there is no C++ compiler no-such-compiler (CXX names another)"
    assert not folder.exists()


def test_an_absent_header_of_python_is_reported(monkeypatch: pytest.MonkeyPatch, compiler: Any, folder: Path) -> None:
    compiler("exit 0")
    monkeypatch.setattr(module.sysconfig, "get_paths", lambda: {"include": "/nowhere"})
    assert request()[0].state == "it cannot be built: there is no Python.h in /nowhere"


def test_the_step_can_be_disabled(monkeypatch: pytest.MonkeyPatch, compiler: Any) -> None:
    compiler("exit 0")
    monkeypatch.setenv(VARIABLE, "0")
    assert request()[0].state == f"left out: {VARIABLE} is 0"
    assert compiler.runs() == 0


@needs_c
def test_folder_that_others_can_write_is_not_loaded_from(in_c: Any, folder: Path) -> None:
    request()
    folder.chmod(0o777)
    extension, given = request()
    assert given == []
    assert "has mode 0777, needed is 0700" in extension.state


@needs_c
def test_file_that_others_can_write_is_not_loaded(in_c: Any, folder: Path) -> None:
    request()
    (folder / Build.for_torch(TORCH).file_name).chmod(0o666)
    extension, given = request()
    assert given == []
    assert "other users can write it" in extension.state
