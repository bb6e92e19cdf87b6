"""Compile prepare.cu to ``native/prepare.ptx`` by NVRTC, for every architecture and driver that cuDNN 9 supports.

``python -m tools.codegen.ptx`` writes the file if prepare.cu has changed.
"""

from __future__ import annotations

import ctypes
import hashlib
import re
from pathlib import Path

from cudnn_backend_py.native.find import find_nvrtc_places

__all__ = ["CUDA_SOURCE", "compile_ptx", "make_ptx_header"]

CUDA_SOURCE = Path(__file__).parents[2] / "cudnn_backend_py" / "native" / "prepare.cu"
_ARCHITECTURE_OPTION = b"--gpu-architecture=compute_75"
_OLDEST_PTX_VERSION = ".version 6.4"  # first PTX version for that architecture; NVRTC writes its newest version


def make_ptx_header(source: bytes) -> str:
    """Return the first line of the PTX: a comment with the hash of the CUDA source."""
    return f"// {CUDA_SOURCE.name} {hashlib.sha256(source).hexdigest()}"


def compile_ptx(nvrtc: str, source: bytes) -> str:
    """Return the PTX of a CUDA source, with the header line. C: ``nvrtcCompileProgram``, ``nvrtcGetPTX``."""
    library, program, size = ctypes.CDLL(nvrtc), ctypes.c_void_p(), ctypes.c_size_t()
    library.nvrtcCreateProgram(ctypes.byref(program), source, CUDA_SOURCE.name.encode(), 0, None, None)
    status = library.nvrtcCompileProgram(program, 1, (ctypes.c_char_p * 1)(_ARCHITECTURE_OPTION))
    what = "PTX" if status == 0 else "ProgramLog"
    library[f"nvrtcGet{what}Size"](program, ctypes.byref(size))
    text = ctypes.create_string_buffer(size.value)
    library[f"nvrtcGet{what}"](program, text)
    library.nvrtcDestroyProgram(ctypes.byref(program))
    if status:
        raise SystemExit(text.value.decode())
    lines = [line for line in text.value.decode().splitlines() if line and not line.startswith("//")]
    return (
        "\n".join(
            [make_ptx_header(source), *(re.sub(r"^\.version [\d.]+$", _OLDEST_PTX_VERSION, line) for line in lines)]
        )
        + "\n"
    )


if __name__ == "__main__":
    source, ptx = CUDA_SOURCE.read_bytes(), CUDA_SOURCE.with_suffix(".ptx")
    if not ptx.read_text().startswith(make_ptx_header(source)):
        ptx.write_text(compile_ptx(next(place.path for place in find_nvrtc_places(12) if place.path), source))
