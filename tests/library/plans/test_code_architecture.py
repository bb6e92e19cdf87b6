"""The GPU architecture of a plan's machine code, read from the plan, decides whether a GPU can load it."""

from __future__ import annotations

import struct

import pytest

from cudnn_backend_py import attention, build, library
from cudnn_backend_py.plans.kernels import Kernel, _read_architecture

SDPA = {"batch": 1, "heads": 2, "seq_q": 256, "head_dim": 64}


@pytest.mark.parametrize(("target", "code"), [("sm80", "sm_80"), ("sm89", "sm_89"), ("sm90", "sm_90a")])
def test_kernel_code_of_a_plan_is_for_the_targets_architecture(target: str, code: str) -> None:
    plan = build(attention.sdpa_forward(**SDPA), target, cache=False)  # type: ignore[arg-type]
    kernels = plan.kernels()
    assert kernels
    assert {kernel.architecture for kernel in kernels} == {code}
    assert all(kernel.loads_on(plan.target.sm) for kernel in kernels)


def test_plans_for_each_blackwell_gpu_have_the_expected_sm_code() -> None:
    if library().version < (9, 21, 0):
        pytest.skip("did not run: it needs cuDNN 9.21, whose NVRTC knows these GPUs")
    found = {}
    for target in ("b200", "b300", "gb10"):
        kernels = build(attention.sdpa_forward(**SDPA), target, cache=False).kernels()  # type: ignore[arg-type]
        found[target] = {kernel.architecture for kernel in kernels or ()}
    assert found == {"b200": {"sm_100a"}, "b300": {"sm_103a"}, "gb10": {"sm_121"}}


@pytest.mark.parametrize(
    ("code", "sm", "loads"),
    [
        *(("sm_100a", 100, True), ("sm_100a", 103, False), ("sm_100", 103, True), ("sm_103", 100, False)),
        *(("sm_80", 89, True), ("sm_80", 90, False), ("sm_90a", 90, True), ("", 103, True)),
    ],
)
def test_code_loads_on_newer_architectures_of_the_same_major_version(code: str, sm: int, loads: bool) -> None:
    assert Kernel("k", "0" * 64, 1, 1, code).loads_on(sm) == loads


def test_an_unknown_elf_header_has_no_architecture() -> None:
    header = bytearray(0x40)
    header[:9] = b"\x7fELF\x02\x01\x01\x41\x63"
    struct.pack_into("<I", header, 0x30, 0x6006402)
    assert _read_architecture(bytes(header)) == ""
