"""Install the real cuDNN 9.19.0 from pip's package index into a temporary store; needs the network, about 20 MB."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from cudnn_backend_py.errors import EnvironmentNotReady
from cudnn_backend_py.versions import store as versions


@pytest.fixture(scope="module")
def store_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cudnn-cache")


@pytest.fixture(scope="module")
def installed_cudnn(store_root: Path) -> versions.InstalledCudnn:
    return versions.install("9.19.0", cuda="12", root=store_root, progress=False)


def test_install_uses_the_jit_wheel(installed_cudnn: versions.InstalledCudnn, store_root: Path) -> None:
    assert (installed_cudnn.version, installed_cudnn.short_version) == ("9.19.0.56", "9.19.0")
    assert (installed_cudnn.cuda, installed_cudnn.flavor) == ("12", "jit")
    assert installed_cudnn.path == store_root / "9.19.0.56-cu12"
    assert {path.name for path in installed_cudnn.library.parent.iterdir()} == {
        "libcudnn.so.9",
        "libcudnn_graph.so.9",
        "libcudnn_engines_runtime_compiled.so.9",
    }
    assert installed_cudnn.nvrtc is not None
    assert installed_cudnn.nvrtc.name == "libnvrtc.so.12"
    files_bytes = sum(path.stat().st_size for path in (installed_cudnn.path / "nvidia").rglob("*") if path.is_file())
    assert installed_cudnn.size_bytes == files_bytes
    assert versions.list_installed(store_root) == [installed_cudnn]


def test_installed_cudnn_9_19_loads_in_a_child_process(installed_cudnn: versions.InstalledCudnn) -> None:
    program = (
        "import ctypes, os\n"
        "ctypes.CDLL(os.environ['CUDNN_BACKEND_NVRTC'])\n"
        "cudnn = ctypes.CDLL(os.environ['CUDNN_BACKEND_LIBRARY'])\n"
        "cudnn.cudnnGetVersion.restype = ctypes.c_size_t\n"
        "print(cudnn.cudnnGetVersion())\n"
    )
    child = subprocess.run(
        [sys.executable, "-c", program],
        env=versions.make_environment_of_installed_cudnn(installed_cudnn),
        capture_output=True,
        text=True,
        check=True,
    )
    assert child.stdout == "91900\n"


def test_an_unknown_patch_version_lists_the_nearest_versions(
    installed_cudnn: versions.InstalledCudnn, store_root: Path
) -> None:
    with pytest.raises(EnvironmentNotReady) as caught:
        versions.install("9.19.7", cuda="12", root=store_root, progress=False)
    assert caught.value.code == "cudnn-version-not-found"
    assert caught.value.sections["fix"].startswith("take one of the nearest: 9.19.1, 9.19.0, ")
    assert versions.list_installed(store_root) == [installed_cudnn]
