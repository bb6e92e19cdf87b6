"""Tiny wheels with the layout of cuDNN's wheels, for tests of installs; their libraries are not loaded."""

from __future__ import annotations

import base64
import hashlib
import os
import zipfile
from pathlib import Path

import pytest

from cudnn_backend_py.versions import store

__all__ = [
    "FULL_FILES",
    "GRAPH_LIBRARY_FILE",
    "JIT_FILES",
    "LIBRARY_FILE",
    "NVRTC_FILES",
    "add_to_version_store",
    "compute_record_hash",
    "make_wheel",
    "make_wheel_index",
]

LIBRARY_FILE = "nvidia/cudnn_jit/lib/libcudnn.so.9"
GRAPH_LIBRARY_FILE = "nvidia/cudnn_jit/lib/libcudnn_graph.so.9"
JIT_FILES = {LIBRARY_FILE: b"the library", GRAPH_LIBRARY_FILE: b"the graph library" * 1000}
FULL_FILES = {"nvidia/cudnn/lib/libcudnn.so.9": b"the full library"}
NVRTC_FILES = {"nvidia/cuda_nvrtc/lib/libnvrtc.so.12": b"nvrtc"}


def compute_record_hash(content: bytes) -> str:
    return "sha256=" + base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()


def make_wheel(
    folder: Path,
    project: str = "nvidia-cudnn-jit-cu12",
    version: str = "9.19.0.56",
    files: dict[str, bytes] = JIT_FILES,
    recorded: dict[str, str | None] | None = None,
) -> Path:
    """Write a wheel; ``recorded`` replaces hashes in its RECORD, and None omits a file from it."""
    stem = f"{project.replace('-', '_')}-{version}"
    information = {
        f"{stem}.dist-info/METADATA": b"Metadata-Version: 2.1\nName: %b\nVersion: %b\n"
        % (project.encode(), version.encode()),
        f"{stem}.dist-info/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    contents = {**files, **information}
    hashes = {name: compute_record_hash(content) for name, content in contents.items()} | (recorded or {})
    lines = [f"{name},{value}," for name, value in hashes.items() if value is not None]
    folder.mkdir(parents=True, exist_ok=True)
    wheel = folder / f"{stem}-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, content in contents.items():
            archive.writestr(name, content)
        archive.writestr(f"{stem}.dist-info/RECORD", "\n".join([*lines, f"{stem}.dist-info/RECORD,,", ""]))
    return wheel


def make_wheel_index(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Write wheels to a folder, and make it pip's only index."""
    make_wheel(folder)
    make_wheel(folder, "nvidia-cuda-nvrtc-cu12", "12.9.86", NVRTC_FILES)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


def add_to_version_store(
    root: Path, version: str = "9.19.0.56", cuda: str = "12", wheel: Path | None = None
) -> store.InstalledCudnn:
    """Add a cuDNN version to the version store without pip."""
    root.mkdir(mode=0o700, exist_ok=True)
    if wheel is None:
        wheel = make_wheel(root.parent / "placed", f"nvidia-cudnn-jit-cu{cuda}", version)
    folder = root / f"{version}-cu{cuda}"
    store._unpack_wheel_atomically(wheel, folder, store._CUDNN_FILE, store._make_progress_display(False))
    installed = store._load_installed(folder)
    assert installed is not None
    return installed
