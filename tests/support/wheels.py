"""Tiny wheels with the layout of cuDNN's: for unpacking, checking and installing; nothing in them is ever loaded."""

from __future__ import annotations

import base64
import hashlib
import zipfile
from pathlib import Path

__all__ = ["FULL_FILES", "GRAPH_LIBRARY", "JIT_FILES", "LIBRARY", "NVRTC_FILES", "make_wheel", "record_hash"]

LIBRARY = "nvidia/cudnn_jit/lib/libcudnn.so.9"
GRAPH_LIBRARY = "nvidia/cudnn_jit/lib/libcudnn_graph.so.9"
JIT_FILES = {LIBRARY: b"the library", GRAPH_LIBRARY: b"the graph library" * 1000}
FULL_FILES = {"nvidia/cudnn/lib/libcudnn.so.9": b"the full library"}
NVRTC_FILES = {"nvidia/cuda_nvrtc/lib/libnvrtc.so.12": b"nvrtc"}


def record_hash(content: bytes) -> str:
    return "sha256=" + base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()


def make_wheel(
    folder: Path,
    project: str = "nvidia-cudnn-jit-cu12",
    version: str = "9.19.0.56",
    files: dict[str, bytes] = JIT_FILES,
    recorded: dict[str, str | None] | None = None,
) -> Path:
    """Write a wheel; ``recorded`` overrides the hashes in its RECORD, None leaves the file out of it."""
    stem = f"{project.replace('-', '_')}-{version}"
    information = {
        f"{stem}.dist-info/METADATA": b"Metadata-Version: 2.1\nName: %b\nVersion: %b\n"
        % (project.encode(), version.encode()),
        f"{stem}.dist-info/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    contents = {**files, **information}
    hashes = {name: record_hash(content) for name, content in contents.items()} | (recorded or {})
    lines = [f"{name},{value}," for name, value in hashes.items() if value is not None]
    folder.mkdir(parents=True, exist_ok=True)
    wheel = folder / f"{stem}-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, content in contents.items():
            archive.writestr(name, content)
        archive.writestr(f"{stem}.dist-info/RECORD", "\n".join([*lines, f"{stem}.dist-info/RECORD,,", ""]))
    return wheel
