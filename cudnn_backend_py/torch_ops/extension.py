"""Build and load the compiled step of torch's operators, a C++ extension, for the installed torch.

It is a C++ extension of Python, ``compiled.cpp`` with ``call_key.h``. The first process that runs an operator has it
built by a process in the background, with the C++ compiler there is, and it is kept in a folder of the user under a
hash of all it depends on. Operators work without it: where there is no compiler, or no header of Python, they take
longer, and :func:`describe_extension` says why.
"""

from __future__ import annotations

import hashlib
import importlib.machinery
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..system.child import make_call_command
from ..system.interruption import reraise_interruption
from ..system.private_folder import OpenFolder, PrivateFolder, get_user_folder

__all__ = ["Extension", "build_extension_in_this_process", "describe_extension"]

VARIABLE = "CUDNN_BACKEND_TORCH_EXTENSION"
MODULE_NAME = "cudnn_backend_py_torch"
SOURCE = Path(__file__).with_name("compiled.cpp")
HEADERS = Path(__file__).with_name("call_key.h"), Path(__file__).parents[1] / "native" / "fast_call.h"
_MAX_FILE_BYTES = 64 << 20
_BUILD_LIMIT_S = 600.0  # to build it
_MAX_ERROR_CHARACTERS = 2000  # characters of a compiler that are kept


def is_enabled() -> bool:
    """Return whether the extension may be built and used: unless ``CUDNN_BACKEND_TORCH_EXTENSION`` is 0."""
    return os.environ.get(VARIABLE, "") != "0"


def get_extension_folder() -> PrivateFolder:
    """Return the folder of extensions: ``CUDNN_BACKEND_TORCH_EXTENSION``, else one in the user's cache folder."""
    named = os.environ.get(VARIABLE, "")
    if not named:
        named = str(get_user_folder("torch"))
    return PrivateFolder(
        named,
        title="folder of compiled extensions",
        reason="code is loaded from this folder",
        code="cache-folder-not-private",
        otherwise=f"set {VARIABLE} to a folder of this user, or to 0 to have no extension",
    )


@dataclass(frozen=True)
class Build:
    """The compiler command of the extension (without output file), and a key of all that the result depends on."""

    command: tuple[str, ...]
    key: str

    @classmethod
    def for_torch(cls, torch: Any) -> Build:
        """Return the build for the installed torch."""
        from packaging.version import Version

        root = Path(torch.__file__).parent
        includes = (
            HEADERS[-1].parent,
            root / "include",
            root / "include" / "torch" / "csrc" / "api" / "include",
            sysconfig.get_paths()["include"],
        )
        command = (
            *os.environ.get("CXX", "c++").split(),
            "-std=c++20" if Version(torch.__version__).release >= (2, 10) else "-std=c++17",
            f"-D_GLIBCXX_USE_CXX11_ABI={int(torch._C._GLIBCXX_USE_CXX11_ABI)}",
            *("-O2", "-fPIC", "-shared", "-w"),
            *(f"-I{path}" for path in includes),
            str(SOURCE),
            f"-L{root / 'lib'}",
            *("-ltorch_python", "-ltorch_cpu", "-lc10"),
        )
        about = (command, torch.__version__, torch.version.git_version, sys.version, sysconfig.get_platform())
        content = b"".join(path.read_bytes() for path in (SOURCE, *HEADERS))
        return cls(command, hashlib.sha256(json.dumps(about).encode() + content).hexdigest())

    def find_missing_tools(self) -> str:
        """Return the name of a tool that is missing to build the extension; empty if all are present."""
        compiler, headers = self.command[0], Path(sysconfig.get_paths()["include"])
        if shutil.which(compiler) is None:
            return f"there is no C++ compiler {compiler} (CXX names another)"
        return "" if (headers / "Python.h").exists() else f"there is no Python.h in {headers}"

    @property
    def file_name(self) -> str:
        return f"{self.key}.so"

    @property
    def error_file_name(self) -> str:
        return f"{self.key}.error"


class Extension:
    """The extension of this process, built in the background on first request.

    Attributes
    ----------
    module
        None until it is loaded.
    state
        What there is to say of it.
    """

    def __init__(self) -> None:
        self.module: Any = None
        self.state = "not requested yet"
        self._is_requested = threading.Lock()
        self._is_finished = threading.Event()

    def request_build(self, torch: Any, then: Callable[[Any], None]) -> None:
        """Build and load the extension once; call `then` with its module, in another thread if it must be built."""
        if not self._is_requested.acquire(blocking=False):
            return
        if not is_enabled():
            self._set_final_state(f"left out: {VARIABLE} is 0")
            return
        build, place = Build.for_torch(torch), get_extension_folder()
        if self._load_earlier_build(build, place, then):
            return
        if missing := build.find_missing_tools():
            self._set_final_state(f"it cannot be built: {missing}")
        else:
            self.state = "being built"
            threading.Thread(target=self._build, args=(build, place, then), daemon=True).start()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until the extension is loaded or has failed; return whether it is loaded."""
        self._is_finished.wait(timeout_s)
        return self.module is not None

    def _set_final_state(self, state: str) -> None:
        self.state = state
        self._is_finished.set()

    def _load_earlier_build(self, build: Build, place: PrivateFolder, then: Callable[[Any], None]) -> bool:
        """Load the extension from an earlier build; return False if it must still be built."""
        try:
            with place.open() as opened:
                with suppress(FileNotFoundError):
                    refusal = opened.read(build.error_file_name, _MAX_FILE_BYTES).decode(errors="replace")
                    self._set_final_state(
                        f"it could not be built, {place.path / build.error_file_name} says: {refusal}"
                    )
                    return True
                opened.read(build.file_name, _MAX_FILE_BYTES)  # a plain file that no one else can write
            module = load_module(place.path / build.file_name)
            then(module)
        except FileNotFoundError:
            return False
        except Exception as error:  # of the folder, the loader, another torch
            reraise_interruption(error)
            self._set_final_state(f"it cannot be loaded: {error}")
            return True
        self.module = module
        self._set_final_state("loaded")
        return True

    def _build(self, build: Build, place: PrivateFolder, then: Callable[[Any], None]) -> None:
        command = make_call_command(
            f"{__name__}:build_extension_in_this_process", str(place.path), build.key, *build.command
        )
        try:
            # A session of its own: it ends its work also where this process is interrupted.
            subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
                timeout=2 * _BUILD_LIMIT_S,
            )
        except (OSError, subprocess.SubprocessError) as error:
            self._set_final_state(f"it could not be built: {error}")
            return
        if not self._load_earlier_build(build, place, then):
            self._set_final_state(f"it could not be kept in {place.path}")


def load_module(path: Path) -> Any:
    """Load the extension module from a file."""
    loader = importlib.machinery.ExtensionFileLoader(MODULE_NAME, str(path))
    spec = importlib.util.spec_from_file_location(MODULE_NAME, path, loader=loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


def build_extension_in_this_process() -> None:
    """Build the extension in this process: ``sys.argv`` has folder, key, and the command without its output."""
    _, named, key, *command = sys.argv
    with suppress(OSError):
        os.nice(10)
    build, place = (
        Build(tuple(command), key),
        PrivateFolder(named, title="folder", reason="code is loaded from it", code="cache-folder-not-private"),
    )
    with place.open(create=True) as opened, opened.lock(_BUILD_LIMIT_S):
        if not _is_extension_built(opened, build):
            data, refusal = _compile_extension(build)
            opened.write(
                build.error_file_name if data is None else build.file_name, refusal.encode() if data is None else data
            )


def _is_extension_built(opened: OpenFolder, build: Build) -> bool:
    with suppress(FileNotFoundError):
        opened.read(build.file_name, _MAX_FILE_BYTES)
        return True
    return False


def _compile_extension(build: Build) -> tuple[bytes | None, str]:
    """Compile the extension; return its bytes, or None and the compiler's message."""
    with tempfile.TemporaryDirectory() as scratch:
        output = Path(scratch) / build.file_name
        done = subprocess.run(
            [*build.command, "-o", str(output)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_BUILD_LIMIT_S,
            check=False,
        )
        if done.returncode:
            return None, done.stderr.decode(errors="replace")[:_MAX_ERROR_CHARACTERS]
        return output.read_bytes(), ""


def describe_extension() -> str:
    """Describe in words whether the extension is loaded, being built, or failed in this process."""
    return EXTENSION.state


EXTENSION = Extension()
