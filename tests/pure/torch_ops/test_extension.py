"""Build, cache and loading of the C++ extension of torch's operators, with fake compilers and a trivial module."""

from __future__ import annotations

import shutil
import stat
import sysconfig
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cudnn_backend_py.torch_ops import extension as module
from cudnn_backend_py.torch_ops.extension import MODULE_NAME, SOURCE, VARIABLE, Build, Extension

COUNTING_COMPILER_SCRIPT = """#!/bin/sh
echo x >> {log}
while [ "$1" != "-o" ]; do shift; done
{work}
"""
MODULE_SOURCE = f"""
#include <Python.h>
static PyModuleDef module = {{PyModuleDef_HEAD_INIT, "{MODULE_NAME}", 0, -1, 0}};
PyMODINIT_FUNC PyInit_{MODULE_NAME}(void) {{ return PyModule_Create(&module); }}
"""
FAKE_TORCH = SimpleNamespace(
    __file__="/somewhere/torch/__init__.py",
    __version__="2.13.0+cpu",
    version=SimpleNamespace(git_version="0123abc"),
    _C=SimpleNamespace(_GLIBCXX_USE_CXX11_ABI=True),
)
requires_c_compiler = pytest.mark.skipif(shutil.which("cc") is None, reason="did not run: there is no C compiler")


@pytest.fixture
def extension_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    found = tmp_path / "extensions"
    monkeypatch.setenv(VARIABLE, str(found))
    return found


@pytest.fixture
def make_fake_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that installs a fake C++ compiler running the given shell commands; ``runs`` counts them."""
    log = tmp_path / "log"

    def install_fake_compiler(work: str) -> None:
        script = tmp_path / "compiler"
        script.write_text(COUNTING_COMPILER_SCRIPT.format(log=log, work=work))
        script.chmod(0o755)
        monkeypatch.setenv("CXX", str(script))

    install_fake_compiler.runs = lambda: log.read_text().count("x") if log.exists() else 0  # type: ignore[attr-defined]
    return install_fake_compiler


def load_extension(torch: Any = FAKE_TORCH) -> tuple[Extension, list[Any]]:
    """Request the extension, wait for it, and return it with the modules passed to the callback."""
    extension, given = Extension(), []
    extension.request_build(torch, given.append)
    extension.wait(60)
    return extension, given


@pytest.fixture
def c_compiler(tmp_path: Path, make_fake_compiler: Any) -> Any:
    """A compiler that ignores its input and compiles an empty extension module in C."""
    (tmp_path / "module.c").write_text(MODULE_SOURCE)
    include = sysconfig.get_paths()["include"]
    make_fake_compiler(f'exec {shutil.which("cc")} -shared -fPIC -I{include} {tmp_path}/module.c -o "$2"')
    return make_fake_compiler


@requires_c_compiler
def test_extension_is_built_once_and_loaded_by_every_request(c_compiler: Any, extension_folder: Path) -> None:
    for _ in range(3):
        extension, given = load_extension()
        assert extension.state == "loaded"
        assert given == [extension.module]
        assert extension.module.__name__ == MODULE_NAME
    assert c_compiler.runs() == 1
    (built,) = extension_folder.glob("*.so")
    assert built.name == Build.for_torch(FAKE_TORCH).file_name
    assert stat.S_IMODE(extension_folder.stat().st_mode) == 0o700


@requires_c_compiler
def test_second_request_does_not_repeat_the_callback(c_compiler: Any, extension_folder: Path) -> None:
    extension, given = load_extension()
    extension.request_build(FAKE_TORCH, given.append)
    assert len(given) == 1


@requires_c_compiler
def test_build_key_depends_on_the_torch_installation(c_compiler: Any, extension_folder: Path) -> None:
    changes = {
        "__version__": "2.12.0+cu130",
        "version": SimpleNamespace(git_version="4567def"),
        "_C": SimpleNamespace(_GLIBCXX_USE_CXX11_ABI=False),
        "__file__": "/elsewhere/torch/__init__.py",
    }
    keys = {
        Build.for_torch(FAKE_TORCH).key,
        *(Build.for_torch(SimpleNamespace(**{**vars(FAKE_TORCH), k: x})).key for k, x in changes.items()),
    }
    assert len(keys) == 1 + len(changes)


@pytest.mark.parametrize(("version", "standard"), [("2.4.0", "-std=c++17"), ("2.13.0a0+git1", "-std=c++20")])
def test_compiler_command_has_the_flags_of_torch(version: str, standard: str) -> None:
    command = Build.for_torch(SimpleNamespace(**{**vars(FAKE_TORCH), "__version__": version})).command
    assert {standard, "-D_GLIBCXX_USE_CXX11_ABI=1", "-I/somewhere/torch/include", "-L/somewhere/torch/lib"} <= {
        *command
    }
    assert command[-4] == "-L/somewhere/torch/lib"
    assert str(SOURCE) in command


def test_a_compiler_error_is_reported_and_the_build_not_repeated(
    make_fake_compiler: Any, extension_folder: Path
) -> None:
    make_fake_compiler("echo 'no such header' >&2; exit 1")
    for _ in range(2):
        extension, given = load_extension()
        assert (extension.module, given) == (None, [])
        assert "no such header" in extension.state
        assert str(extension_folder / Build.for_torch(FAKE_TORCH).error_file_name) in extension.state
    assert make_fake_compiler.runs() == 1


def test_an_unloadable_extension_is_reported(make_fake_compiler: Any, extension_folder: Path) -> None:
    make_fake_compiler('echo "no library" > "$2"')
    extension, given = load_extension()
    assert (extension.module, given) == (None, [])
    assert extension.state.startswith("it cannot be loaded: ")


@requires_c_compiler
def test_an_exception_of_the_callback_is_reported(c_compiler: Any, extension_folder: Path) -> None:
    def raise_os_error(_module: Any) -> None:
        raise OSError("of another torch")

    extension = Extension()
    extension.request_build(FAKE_TORCH, raise_os_error)
    assert not extension.wait(60)
    assert extension.state == "it cannot be loaded: of another torch"


def test_a_missing_compiler_is_reported(monkeypatch: pytest.MonkeyPatch, extension_folder: Path) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler -flag")
    extension, _ = load_extension()
    assert extension.state == "it cannot be built: there is no C++ compiler no-such-compiler (CXX names another)"
    assert not extension_folder.exists()


def test_a_missing_python_header_is_reported(
    monkeypatch: pytest.MonkeyPatch, make_fake_compiler: Any, extension_folder: Path
) -> None:
    make_fake_compiler("exit 0")
    monkeypatch.setattr(module.sysconfig, "get_paths", lambda: {"include": "/nowhere"})
    assert load_extension()[0].state == "it cannot be built: there is no Python.h in /nowhere"


def test_extension_can_be_disabled_by_environment_variable(
    monkeypatch: pytest.MonkeyPatch, make_fake_compiler: Any
) -> None:
    make_fake_compiler("exit 0")
    monkeypatch.setenv(VARIABLE, "0")
    assert load_extension()[0].state == f"left out: {VARIABLE} is 0"
    assert make_fake_compiler.runs() == 0


@requires_c_compiler
def test_extension_in_a_world_writable_folder_is_not_loaded(c_compiler: Any, extension_folder: Path) -> None:
    load_extension()
    extension_folder.chmod(0o777)
    extension, given = load_extension()
    assert given == []
    assert "has mode 0777, needed is 0700" in extension.state


@requires_c_compiler
def test_world_writable_extension_is_not_loaded(c_compiler: Any, extension_folder: Path) -> None:
    load_extension()
    (extension_folder / Build.for_torch(FAKE_TORCH).file_name).chmod(0o666)
    extension, given = load_extension()
    assert given == []
    assert "other users can write the file" in extension.state
