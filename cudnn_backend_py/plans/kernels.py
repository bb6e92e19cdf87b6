"""``Kernel``: a compiled kernel, read from a plan's serialization: name, code, size, registers, memory."""

from __future__ import annotations

import base64
import json
import re
import struct
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import mmap
from ..frozen import FrozenValue

__all__ = ["Kernel", "read_cubins", "read_kernels", "read_section_table"]

_CODE_SECTIONS = (".text.", ".nv.constant", ".nv.global.init")  # names of sections that decide what a kernel does,
_ADDRESS_TABLE_BANK = (
    4  # but for global data, which code finds by the addresses in this constant bank, or is relocated to:
)
_GLOBAL_DATA_SECTIONS = (
    f".nv.constant{_ADDRESS_TABLE_BANK}",
    ".nv.global.init",
)  # mostly numbers that the compiler alone has used
_RELOCATION_SECTIONS = (".rel.text.", ".rela.text.")
_OPERAND_FORMS_WITH_BANK = (3, 5)  # forms of an instruction's operands that name a constant bank, sm_70 to sm_121,
_BARRIER_OPCODE = 0xB1D  # but for BAR, which has the number of a barrier in its place
_SECTION_TYPE_NO_BITS = 8  # type of a section that has a size and no bytes (ELF, SHT_NOBITS)
_SIZED_ENTRY = 0x04  # form of an entry of .nv.info with words of its own, here (symbol, number):
_REGISTER_COUNT_ENTRY, _STACK_SIZE_ENTRY = 0x2F, 0x12  # registers, and stack with that of the functions called
_SHARED_MEMORY_SECTION = ".nv.shared."  # of each kernel, and of the 64 bytes of
_RESERVED_SHARED_MEMORY_SECTION = ".nv.shared.reserved."  # CUDA itself, which cuobjdump does not count either


class Kernel(FrozenValue):
    """A kernel that cuDNN compiled while it built a plan.

    Attributes
    ----------
    name
        As cuDNN calls it.
    sha256
        Of its machine code and the constants it may read, so that neither a compiler's version in the file around them
        counts nor a number that was only of use to the compiler.
    code_bytes
        Size of the machine code.
    registers
        Registers of a thread; the largest of several functions. 0 if the file does not say.
    architecture
        The architecture that its machine code is for, such as ``sm_90a``; empty if the file does not say.
    shared_bytes
        Static shared memory of a block, with the 1,024 bytes that CUDA takes since sm_90; what a launch adds to it is
        not in the file. The largest of several functions.
    local_bytes
        Stack of a thread in local memory: spilled registers, and arrays that no registers hold. The largest of several
        functions.
    """

    name: str
    sha256: str
    code_bytes: int
    registers: int
    architecture: str = ""
    shared_bytes: int = 0
    local_bytes: int = 0

    @property
    def file_name(self) -> str:
        """A file name for the kernel's code, without ending: kernel name, architecture, and the start of the hash."""
        return f"{re.sub(r'[^A-Za-z0-9_-]', '_', self.name)[:150]}.{self.architecture}.{self.sha256[:8]}"

    def loads_on(self, sm: int) -> bool:
        """Return whether a GPU of an architecture loads the code; True where that is not known.

        Code runs on its own architecture and on later ones of the same major; that of ``sm_90a`` on its own alone.
        """
        match = re.fullmatch(r"sm_([0-9]+)(a?)", self.architecture)
        if match is None:
            return True
        own = int(match[1])
        return sm == own or (not match[2] and sm // 10 == own // 10 and sm > own)

    @classmethod
    def from_cubin(cls, name: str, cubin: bytes) -> Kernel:
        """Return the facts about a kernel, read from its ELF file of GPU code.

        Raises
        ------
        ValueError
            If it is no such file, or is damaged.
        """
        import hashlib  # most verdicts have no kernels

        digest, size, shared = hashlib.sha256(), 0, 0
        numbers: dict[int, int] = {}
        try:
            sections = list(_read_sections(cubin))
            reads_data = any(_may_read_global_data(section, body) for section, body, _ in sections)
            unread = () if reads_data else _GLOBAL_DATA_SECTIONS
            for section, body, section_bytes in sections:
                if section.startswith(_CODE_SECTIONS) and section not in unread:
                    digest.update(f"{len(body)} ".encode() + body)  # not their names, which hold the kernel's
                if section.startswith(".text."):
                    size += len(body)
                if section == ".nv.info":
                    numbers = _read_largest_register_count_and_stack_size(body)
                if section.startswith(_SHARED_MEMORY_SECTION) and not section.startswith(
                    _RESERVED_SHARED_MEMORY_SECTION
                ):
                    shared = max(shared, section_bytes)
        except (struct.error, IndexError, UnicodeDecodeError) as error:
            raise ValueError(f"the code of kernel {name} is damaged: {error}") from None
        return cls(
            name,
            digest.hexdigest(),
            size,
            numbers.get(_REGISTER_COUNT_ENTRY, 0),
            _read_architecture(cubin),
            shared,
            numbers.get(_STACK_SIZE_ENTRY, 0),
        )

    def __str__(self) -> str:
        of = f" of {self.architecture}" if self.architecture else ""
        return (
            f"{self.name}: {self.code_bytes} bytes of code{of}, {self.registers} registers, "
            f"{self.shared_bytes} bytes of static shared memory, "
            f"{self.local_bytes} bytes of local memory per thread (spills, arrays), {self.sha256[:12]}"
        )


def read_kernels(plan: str) -> tuple[Kernel, ...] | None:
    """Return the kernels in a plan's serialization, which :meth:`Plan.json` gives, in cuDNN's order.

    Returns
    -------
    tuple of Kernel or None
        None where some or all of its code is not in there: engines with kernels that are compiled in cuDNN's libraries.
    """
    try:
        return tuple(Kernel.from_cubin(name, cubin) for name, cubin in read_cubins(plan)) or None
    except ValueError:
        return None


def read_cubins(plan: str) -> tuple[tuple[str, bytes], ...]:
    """Return (name, cubin) of each kernel in a plan's serialization; empty unless it has the code of all.

    It holds no PTX (measured with cuDNN 9.14, 9.19 and 9.28).
    """
    try:
        found = json.loads(plan)["engine"]["payload"]["kernels"] or ()
        return tuple((str(one["kernelName"]), base64.b64decode(one["cubin"])) for one in found)
    except (KeyError, TypeError, ValueError, RecursionError):
        return ()


def _read_architecture(elf: bytes) -> str:
    """Return the architecture in the header of an ELF file of GPU code; empty for forms that are not known.

    Read of the code of sm_80 to sm_121 by NVRTC 12.9: the form of the flags changed with the version of the ABI.
    """
    (flags,) = struct.unpack_from("<I", elf, 0x30)
    form = _ARCHITECTURE_FLAGS.get(elf[8])
    if form is None:
        return ""
    shift, exact = form
    return f"sm_{flags >> shift & 0xFF}{'a' if flags & exact else ''}"


_ARCHITECTURE_FLAGS = {
    7: (0, 0x800),
    8: (8, 0x8),
}  # by version of the ABI: where the number is, and the bit of code like sm_90a


def _read_sections(elf: bytes) -> Iterator[tuple[str, bytes, int]]:
    """Yield name, bytes and size of each section of a 64-bit ELF file; some have a size but no bytes (NOBITS)."""
    for name, kind, offset, length in read_section_table(elf):
        yield name, b"" if kind == _SECTION_TYPE_NO_BITS else elf[offset : offset + length], length


def read_section_table(elf: bytes | mmap.mmap) -> Iterator[tuple[str, int, int, int]]:
    """Yield name, type, offset and size in bytes of each section of a 64-bit ELF file.

    Raises
    ------
    IndexError, UnicodeDecodeError, struct.error
        If it is no such file, or is damaged.
    """
    if elf[:5] != b"\x7fELF\x02":
        raise IndexError("not a 64-bit ELF file")
    (table,) = struct.unpack_from("<Q", elf, 0x28)
    size, count, names = struct.unpack_from("<HHH", elf, 0x3A)
    if table + size * count > len(elf):
        raise IndexError("the table of sections is cut off")
    headers = [struct.unpack_from("<IIQQQQ", elf, table + size * index) for index in range(count)]
    start = headers[names][4]
    for name, kind, _flags, _address, offset, length in headers:
        begin = start + name
        end = elf.find(b"\0", begin) if 0 <= begin < len(elf) else begin
        if end < begin:
            raise IndexError("a section's name has no end")
        yield elf[begin:end].decode(), kind, offset, length


def _may_read_global_data(section: str, body: bytes) -> bool:
    """Return whether a section may contain code that reads global data."""
    if not section.startswith(".text."):
        return section.startswith(_RELOCATION_SECTIONS) and bool(body)
    return len(body) % 16 > 0 or any(
        low >> 54 & 31 == _ADDRESS_TABLE_BANK
        and low >> 9 & 7 in _OPERAND_FORMS_WITH_BANK
        and low & 0xFFF != _BARRIER_OPCODE
        for low, _ in struct.iter_unpack("<QQ", body)
    )


def _read_largest_register_count_and_stack_size(info: bytes) -> dict[int, int]:
    """Return from ``.nv.info`` the largest register count and stack size of all functions, by kind of entry."""
    found: dict[int, int] = {}
    at = 0
    while at + 4 <= len(info):
        form, attribute, length = struct.unpack_from("<BBH", info, at)
        at += 4
        if form == _SIZED_ENTRY:
            if attribute in (_REGISTER_COUNT_ENTRY, _STACK_SIZE_ENTRY):
                found[attribute] = max(found.get(attribute, 0), struct.unpack_from("<II", info, at)[1])
            at += length
    return found
