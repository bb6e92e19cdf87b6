"""Install a real cuDNN 9.19.0 from pip's index into a temporary store. Needs the network; about 20 MB."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from cudnn_backend_py.errors import EnvironmentNotReady
from cudnn_backend_py.versions import store as versions


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cudnn-cache")


@pytest.fixture(scope="module")
def installed(root: Path) -> versions.InstalledCudnn:
    return versions.install("9.19.0", cuda="12", root=root, progress=False)


def test_install_uses_the_jit_wheel(installed: versions.InstalledCudnn, root: Path) -> None:
    assert (installed.version, installed.short) == ("9.19.0.56", "9.19.0")
    assert (installed.cuda, installed.flavor) == ("12", "jit")
    assert installed.path == root / "9.19.0.56-cu12"
    assert {path.name for path in installed.library.parent.iterdir()} == {
        "libcudnn.so.9",
        "libcudnn_graph.so.9",
        "libcudnn_engines_runtime_compiled.so.9",
    }
    assert installed.nvrtc is not None
    assert installed.nvrtc.name == "libnvrtc.so.12"
    files_bytes = sum(path.stat().st_size for path in (installed.path / "nvidia").rglob("*") if path.is_file())
    assert installed.size_bytes == files_bytes
    assert versions.list_installed(root) == [installed]


def test_installed_library_loads_in_a_child_and_is_9_19(installed: versions.InstalledCudnn) -> None:
    program = (
        "import ctypes, os\n"
        "ctypes.CDLL(os.environ['CUDNN_BACKEND_NVRTC'])\n"
        "cudnn = ctypes.CDLL(os.environ['CUDNN_BACKEND_LIBRARY'])\n"
        "cudnn.cudnnGetVersion.restype = ctypes.c_size_t\n"
        "print(cudnn.cudnnGetVersion())\n"
    )
    child = subprocess.run(
        [sys.executable, "-c", program],
        env=versions.child_environment(installed),
        capture_output=True,
        text=True,
        check=True,
    )
    assert child.stdout == "91900\n"


def test_unknown_patch_lists_the_real_neighbours(installed: versions.InstalledCudnn, root: Path) -> None:
    with pytest.raises(EnvironmentNotReady) as caught:
        versions.install("9.19.7", cuda="12", root=root, progress=False)
    assert caught.value.code == "cudnn-version-not-found"
    nearest = caught.value.sections["fix"].splitlines()[1].split(", ")
    assert [one.rpartition(".")[0] for one in nearest[:2]] == ["9.19.1", "9.19.0"]
    assert versions.list_installed(root) == [installed]
