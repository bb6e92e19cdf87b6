"""Facts read from compiled code: from ELF files written here, section by section."""

from __future__ import annotations

import base64
import json
import struct

import pytest

from cudnn_backend_py.plans.kernels import Kernel, read_kernels


def elf(sections: dict[str, bytes]) -> bytes:
    """Return a 64-bit ELF file with these sections."""
    names = b"\0" + b"".join(name.encode() + b"\0" for name in [*sections, ".shstrtab"])
    bodies = [*sections.items(), (".shstrtab", names)]
    at, body, headers = 64, b"", [struct.pack("<IIQQQQIIQQ", *[0] * 10)]
    for name, data in bodies:
        start = names.index(b"\0" + name.encode() + b"\0") + 1
        headers.append(struct.pack("<IIQQQQIIQQ", start, 1, 0, 0, at + len(body), len(data), 0, 0, 1, 0))
        body += data
    head = b"\x7fELF\x02".ljust(0x28, b"\0") + struct.pack("<Q", at + len(body)) + b"\0" * 10
    return head + struct.pack("<HHH", 64, len(headers), len(bodies)) + body + b"".join(headers)


def info(*registers: int) -> bytes:
    """Return a section .nv.info: an entry without words, then the registers of some functions."""
    return struct.pack("<BBH", 3, 0x1B, 255) + b"".join(
        struct.pack("<BBHII", 4, 0x2F, 8, number, count) for number, count in enumerate(registers)
    )


def plan(*kernels: dict[str, str]) -> str:
    return json.dumps({"engine": {"engineId": 1, "payload": {"kernels": list(kernels)}}})


def in_plan(name: str, cubin: bytes) -> dict[str, str]:
    return {"kernelName": name, "cubin": base64.b64encode(cubin).decode()}


def instruction(form: int, bank: int, code: int = 0x182) -> bytes:
    """Return an instruction with operands of a form that may name a constant bank, and such a bank."""
    return struct.pack("<QQ", code | form << 9 | bank << 54, 0)


CODE = {".text.k": instruction(1, 0) * 2, ".nv.info": info(40, 168), ".nv.constant0.k": b"\5" * 16}


def test_name_size_and_registers_are_read() -> None:
    (found,) = read_kernels(plan(in_plan("k", elf(CODE)))) or ()
    assert (found.name, found.code_bytes, found.registers) == ("k", 32, 168)
    assert str(found) == f"k: 32 bytes of code, 168 registers, {found.sha256[:12]}"


@pytest.mark.parametrize(
    ("changed", "same"),
    [
        ({".text.k": instruction(1, 1) * 2}, False),
        ({".nv.constant0.k": b"\6" * 16}, False),
        ({".nv.constant0.k": b"\5" * 12}, False),
        ({".nv.global.init": b"\7", ".nv.constant4": bytes(8)}, True),
        ({".note.nv.tkinfo": b"another compiler"}, True),
    ],
)
def test_hash_covers_only_code_and_constants(changed: dict[str, bytes], same: bool) -> None:
    one, other = Kernel.from_cubin("k", elf(CODE)), Kernel.from_cubin("k", elf(CODE | changed))
    assert (one.sha256 == other.sha256) is same


@pytest.mark.parametrize(
    "reading",
    [
        {".text.k": instruction(5, 4)},
        {".text.k": instruction(1, 0) + instruction(3, 4)},
        {".text.k": bytes(24)},
        {".rela.text.k": bytes(24)},
        {".rel.text.k": bytes(16)},
    ],
)
def test_global_data_counts_if_code_may_read_it(reading: dict[str, bytes]) -> None:
    found = [Kernel.from_cubin("k", elf(CODE | reading | {".nv.global.init": data})).sha256 for data in (b"1", b"2")]
    assert found[0] != found[1]


@pytest.mark.parametrize(("form", "bank", "code"), [(4, 4, 0x182), (7, 4, 0x182), (5, 3, 0x182), (5, 4, 0x11D)])
def test_a_number_that_looks_like_a_bank_is_not_one(form: int, bank: int, code: int) -> None:
    """An immediate number, another bank, and the number of a barrier."""
    made = CODE | {".text.k": instruction(form, bank, code)}
    found = [Kernel.from_cubin("k", elf(made | {".nv.global.init": data})).sha256 for data in (b"1", b"2")]
    assert found[0] == found[1]


def test_hash_is_independent_of_the_name() -> None:
    renamed = {name.replace("k", "knob_7") if "info" not in name else name: body for name, body in CODE.items()}
    assert Kernel.from_cubin("k", elf(CODE)).sha256 == Kernel.from_cubin("knob_7", elf(renamed)).sha256


@pytest.mark.parametrize(
    "text",
    [
        json.dumps({"engine": {"engineId": 41}}),
        plan(),
        plan(in_plan("k", elf(CODE)), {"kernelName": "of a library"}),
        plan(in_plan("k", b"no ELF file")),
        plan(in_plan("k", elf(CODE)[:80])),
        plan({"kernelName": "k", "cubin": "%%%"}),
    ],
)
def test_hash_of_incomplete_code_is_not_reported(text: str) -> None:
    assert read_kernels(text) is None
