"""The shipped PTX matches its source and the arguments that Python writes for it."""

from __future__ import annotations

import re

from cudnn_backend_py.native.find import find_nvrtc_places
from cudnn_backend_py.native.prepare_kernel import ARGUMENT_ROW
from tools.codegen.ptx import CUDA_SOURCE, compile_ptx, make_ptx_header

PTX = CUDA_SOURCE.with_suffix(".ptx").read_text()


def read_ptx_properties(ptx: str) -> dict[str, str]:
    """Return the properties that driver and caller rely on; instructions may differ between NVRTC versions."""
    patterns = {"version": r"\.version (\S+)", "target": r"\.target (\S+)", "entry": r"\.entry (\w+)"}
    found = {name: re.findall(pattern, ptx) for name, pattern in patterns.items()}
    return {name: " ".join(values) for name, values in found.items()} | {
        "parameters": " ".join(re.findall(r"\.param \.align 8 \.b8 \w+\[(\d+)\]", ptx))
    }


def test_the_ptx_was_compiled_from_the_source_next_to_it() -> None:
    assert PTX.startswith(make_ptx_header(CUDA_SOURCE.read_bytes()) + "\n")


def test_a_changed_source_gets_another_ptx_header() -> None:
    assert make_ptx_header(CUDA_SOURCE.read_bytes() + b" ") != make_ptx_header(CUDA_SOURCE.read_bytes())


def test_source_compiles_to_equal_ptx_with_the_available_nvrtc() -> None:
    nvrtc = next(place.path for place in find_nvrtc_places(12) if place.path)
    made = compile_ptx(nvrtc, CUDA_SOURCE.read_bytes())
    assert read_ptx_properties(made) == read_ptx_properties(PTX)
    assert made.splitlines()[0] == PTX.splitlines()[0]


def test_the_ptx_has_the_expected_target_and_parameter_size() -> None:
    assert read_ptx_properties(PTX) == {
        "version": "6.4",
        "target": "sm_75",
        "entry": "cudnn_backend_py_prepare",
        "parameters": str(ARGUMENT_ROW.size),
    }
