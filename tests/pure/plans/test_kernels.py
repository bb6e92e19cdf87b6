"""Kernel names, code sizes, registers and hashes, read from ELF files that the tests write."""

from __future__ import annotations

import base64
import json
import struct

import pytest

from cudnn_backend_py.plans.kernels import Kernel, read_kernels


def make_elf(sections: dict[str, bytes]) -> bytes:
    """Return a 64-bit ELF file with these sections; those of shared memory have a size and no bytes."""
    names = b"\0" + b"".join(name.encode() + b"\0" for name in [*sections, ".shstrtab"])
    bodies = [*sections.items(), (".shstrtab", names)]
    at, body, headers = 64, b"", [struct.pack("<IIQQQQIIQQ", *[0] * 10)]
    for name, data in bodies:
        start = names.index(b"\0" + name.encode() + b"\0") + 1
        has_bytes = not name.startswith(".nv.shared.")
        kind = 1 if has_bytes else 8
        headers.append(struct.pack("<IIQQQQIIQQ", start, kind, 0, 0, at + len(body), len(data), 0, 0, 1, 0))
        body += data if has_bytes else b""
    head = b"\x7fELF\x02".ljust(0x28, b"\0") + struct.pack("<Q", at + len(body)) + b"\0" * 10
    return head + struct.pack("<HHH", 64, len(headers), len(bodies)) + body + b"".join(headers)


def make_nv_info(registers: tuple[int, ...], stacks: tuple[int, ...]) -> bytes:
    """Return a .nv.info section: one entry without data, then the register count and the stack of each function."""
    return struct.pack("<BBH", 3, 0x1B, 255) + b"".join(
        struct.pack("<BBHII", 4, kind, 8, number, count)
        for kind, counts in ((0x2F, registers), (0x11, (999, 999)), (0x12, stacks))
        for number, count in enumerate(counts)
    )


def make_plan_json(*kernels: dict[str, str]) -> str:
    return json.dumps({"engine": {"engineId": 1, "payload": {"kernels": list(kernels)}}})


def make_kernel_json(name: str, cubin: bytes) -> dict[str, str]:
    return {"kernelName": name, "cubin": base64.b64encode(cubin).decode()}


def make_instruction(form: int, bank: int, code: int = 0x182) -> bytes:
    """Return an instruction with this operand form (some forms read a constant bank) and this bank number."""
    return struct.pack("<QQ", code | form << 9 | bank << 54, 0)


KERNEL_SECTIONS = {
    ".text.k": make_instruction(1, 0) * 2,
    ".nv.info": make_nv_info((40, 168), (24, 8)),
    ".nv.constant0.k": b"\5" * 16,
    ".nv.shared.k": bytes(1024),
    ".nv.shared.reserved.0": bytes(2048),
}


def test_kernel_name_size_registers_and_memory_are_read() -> None:
    (found,) = read_kernels(make_plan_json(make_kernel_json("k", make_elf(KERNEL_SECTIONS)))) or ()
    assert (found.name, found.code_bytes, found.registers) == ("k", 32, 168)
    assert (found.shared_bytes, found.local_bytes) == (1024, 24)
    assert str(found) == (
        "k: 32 bytes of code, 168 registers, 1024 bytes of static shared memory, 24 bytes of local memory per thread "
        f"(spills, arrays), {found.sha256[:12]}"
    )


def test_cubin_file_name_of_a_hostile_kernel_name_has_no_path() -> None:
    found = Kernel.from_cubin("../a b" + "x" * 300, make_elf(KERNEL_SECTIONS))
    assert found.file_name.startswith("___a_bxxx")
    assert "/" not in found.file_name
    assert len(found.file_name) < 200


@pytest.mark.parametrize(
    ("changed", "same"),
    [
        ({".text.k": make_instruction(1, 1) * 2}, False),
        ({".nv.constant0.k": b"\6" * 16}, False),
        ({".nv.constant0.k": b"\5" * 12}, False),
        ({".nv.global.init": b"\7", ".nv.constant4": bytes(8)}, True),
        ({".note.nv.tkinfo": b"another compiler"}, True),
    ],
)
def test_kernel_hash_covers_only_code_and_constants(changed: dict[str, bytes], same: bool) -> None:
    one, other = (
        Kernel.from_cubin("k", make_elf(KERNEL_SECTIONS)),
        Kernel.from_cubin("k", make_elf(KERNEL_SECTIONS | changed)),
    )
    assert (one.sha256 == other.sha256) is same


@pytest.mark.parametrize(
    "reading",
    [
        {".text.k": make_instruction(5, 4)},
        {".text.k": make_instruction(1, 0) + make_instruction(3, 4)},
        {".text.k": bytes(24)},
        {".rela.text.k": bytes(24)},
        {".rel.text.k": bytes(16)},
    ],
)
def test_kernel_hash_covers_global_data_that_the_code_may_read(reading: dict[str, bytes]) -> None:
    found = [
        Kernel.from_cubin("k", make_elf(KERNEL_SECTIONS | reading | {".nv.global.init": data})).sha256
        for data in (b"1", b"2")
    ]
    assert found[0] != found[1]


@pytest.mark.parametrize(("form", "bank", "code"), [(4, 4, 0x182), (7, 4, 0x182), (5, 3, 0x182), (5, 4, 0x11D)])
def test_kernel_hash_ignores_global_data_that_no_operand_accesses(form: int, bank: int, code: int) -> None:
    """The only instruction has an immediate operand, reads another constant bank, or has a barrier number."""
    made = KERNEL_SECTIONS | {".text.k": make_instruction(form, bank, code)}
    found = [Kernel.from_cubin("k", make_elf(made | {".nv.global.init": data})).sha256 for data in (b"1", b"2")]
    assert found[0] == found[1]


def test_hash_is_independent_of_the_kernel_name() -> None:
    renamed = {
        name.replace("k", "knob_7") if "info" not in name else name: body for name, body in KERNEL_SECTIONS.items()
    }
    assert (
        Kernel.from_cubin("k", make_elf(KERNEL_SECTIONS)).sha256
        == Kernel.from_cubin("knob_7", make_elf(renamed)).sha256
    )


@pytest.mark.parametrize(
    "text",
    [
        json.dumps({"engine": {"engineId": 41}}),
        make_plan_json(),
        make_plan_json(make_kernel_json("k", make_elf(KERNEL_SECTIONS)), {"kernelName": "of a library"}),
        make_plan_json(make_kernel_json("k", b"no ELF file")),
        make_plan_json(make_kernel_json("k", make_elf(KERNEL_SECTIONS)[:80])),
        make_plan_json({"kernelName": "k", "cubin": "%%%"}),
    ],
)
def test_plans_with_missing_or_damaged_code_have_no_kernels(text: str) -> None:
    assert read_kernels(text) is None
