"""The shipped PTX belongs to its source, and to the arguments that Python writes for it."""

from __future__ import annotations

import re

from cudnn_backend_py.native.find import nvrtc_places
from cudnn_backend_py.native.prepare import ROW
from tools.codegen.ptx import SOURCE, compile_ptx, ptx_header

PTX = SOURCE.with_suffix(".ptx").read_text()


def facts(ptx: str) -> dict[str, str]:
    """Return the facts that a driver and a caller rely on; each NVRTC may write the instructions differently."""
    patterns = {"version": r"\.version (\S+)", "target": r"\.target (\S+)", "entry": r"\.entry (\w+)"}
    found = {name: re.findall(pattern, ptx) for name, pattern in patterns.items()}
    return {name: " ".join(values) for name, values in found.items()} | {
        "parameters": " ".join(re.findall(r"\.param \.align 8 \.b8 \w+\[(\d+)\]", ptx))
    }


def test_ptx_was_made_of_the_source_next_to_it() -> None:
    assert PTX.startswith(ptx_header(SOURCE.read_bytes()) + "\n")


def test_another_source_has_another_mark() -> None:
    assert ptx_header(SOURCE.read_bytes() + b" ") != ptx_header(SOURCE.read_bytes())


def test_source_compiles_to_equal_ptx_with_the_available_nvrtc() -> None:
    nvrtc = next(place.path for place in nvrtc_places(12) if place.path)
    made = compile_ptx(nvrtc, SOURCE.read_bytes())
    assert facts(made) == facts(PTX)
    assert made.splitlines()[0] == PTX.splitlines()[0]


def test_ptx_reads_pythons_arguments_and_supports_all_fused_attention_gpus() -> None:
    assert facts(PTX) == {
        "version": "6.4",
        "target": "sm_75",
        "entry": "cudnn_backend_py_prepare",
        "parameters": str(ROW.size),
    }
