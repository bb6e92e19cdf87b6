"""Parser of cudnn_graph.h: enums, prototypes, structs, and the attributes documented in its comments.

From comments it reads facts (names, numbers, types, versions, required or optional), not descriptions.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from cudnn_backend_py.system.version import VersionTuple

_COMMENT_PATTERN = re.compile(r"/\*.*?\*/", re.S)
_SINCE_PATTERN = re.compile(r"@since cuDNN (\d+)\.(\d+)\.(\d+)")
_ENUM_PATTERN = re.compile(r"typedef enum \{(.*?)\}\s*(\w+)\s*(CUDNN_DEPRECATED)?\s*;", re.S)
_ENUMERATOR_PATTERN = re.compile(r"(\w+)(\s+CUDNN_DEPRECATED_ENUM)?\s*=\s*(-?\w+)")
_FUNCTION_PATTERN = re.compile(
    r"(CUDNN_DEPRECATED\s+)?((?:const\s+)?\w+\s*\**)\s*CUDNNWINAPI\s+(\w+)\s*\(([^)]*)\)\s*;"
)
_CALLBACK_PATTERN = re.compile(r"typedef\s+(\w+)\s*\(\s*\*\s*(\w+)\s*\)\s*\(([^)]*)\)\s*;")
_STRUCT_PATTERN = re.compile(r"typedef struct \w+ \{(.*?)\}\s*(\w+)\s*;", re.S)
_DEFINE_PATTERN = re.compile(r"^#define (CUDNN_\w+) +(\(1U << \w+\)|\d+)\s*$", re.M)
_ATTRIBUTE_ENTRY_PATTERN = re.compile(r"^(?:- (CUDNN_ATTR_\w+)(.*)|  (CUDNN_ATTR_\w+))$", re.M)
_TYPE_PATTERN = re.compile(r"CUDNN_TYPE_(\w+)")
_DESCRIPTOR_KIND_PATTERN = re.compile(r"CUDNN_BACKEND_(\w+|OPERATION_\*)_DESCRIPTOR")


@dataclass(frozen=True)
class Enumerator:
    """One name of an enum, with its number."""

    c_name: str
    value: int
    since: VersionTuple | None
    deprecated: bool
    remark: str = ""
    block: str = ""


@dataclass(frozen=True)
class EnumType:
    """One ``typedef enum``."""

    c_name: str
    members: tuple[Enumerator, ...]


@dataclass(frozen=True)
class NamedDeclaration:
    """A parameter or a struct field."""

    name: str
    c_type: str


@dataclass(frozen=True)
class Prototype:
    """One function, or a callback type."""

    name: str
    returns: str
    parameters: tuple[NamedDeclaration, ...]
    since: VersionTuple | None
    deprecated: bool


@dataclass(frozen=True)
class DocumentedAttribute:
    """Facts about one attribute in a comment block; ``None`` for each fact that is not stated."""

    types: tuple[str, ...] | None = None
    count: tuple[int, int | None] | None = None
    role: str | None = None
    required: bool | None = None
    element: tuple[str, ...] | None = None


@dataclass(frozen=True)
class Header:
    """Enums, prototypes, structs and documented attributes read from cudnn_graph.h."""

    version: VersionTuple
    enums: tuple[EnumType, ...]
    functions: tuple[Prototype, ...]
    callbacks: tuple[Prototype, ...]
    structs: dict[str, tuple[NamedDeclaration, ...]]
    defines: dict[str, int]
    documented: dict[str, dict[str, DocumentedAttribute]] = field(default_factory=dict)

    def enum(self, c_name: str) -> EnumType:
        """Return the enum with this C name."""
        return next(enum for enum in self.enums if enum.c_name == c_name)


def parse_header(text: str) -> Header:
    """Parse the whole header; raise ValueError if a declaration is not recognized."""
    enums = tuple(_read_enums(text))
    plain = re.sub(r"^#.*?(?<!\\)$", "", _COMMENT_PATTERN.sub(" ", text), flags=re.M)
    values = {member.c_name: member.value for enum in enums for member in enum.members}
    header = Header(
        version=read_header_version(text),
        enums=enums,
        functions=tuple(_read_functions(text, plain)),
        callbacks=tuple(_read_callback(match) for match in _CALLBACK_PATTERN.finditer(plain)),
        structs={name: _read_fields(body) for body, name in _STRUCT_PATTERN.findall(plain)},
        defines={name: _read_define(value, values) for name, value in _DEFINE_PATTERN.findall(text)},
    )
    _reject_unread_declarations(plain)
    kinds = header.enum("cudnnBackendDescriptorType_t")
    return replace(
        header,
        documented={kind.c_name: read_documented_attributes(kind.block) for kind in kinds.members},
    )


def read_header_version(text: str) -> VersionTuple:
    """Read the version from the header's text."""
    found = {part: int(number) for part, number in re.findall(r"#define CUDNN_GRAPH_(\w+) (\d+)", text)}
    return found["MAJOR"], found["MINOR"], found["PATCH"]


def _read_define(value: str, values: dict[str, int]) -> int:
    shift = re.fullmatch(r"\(1U << (\w+)\)", value)
    return 1 << values[shift[1]] if shift else int(value)


def _read_since_version(comment: str) -> VersionTuple | None:
    found = _SINCE_PATTERN.search(comment)
    return (int(found[1]), int(found[2]), int(found[3])) if found else None


def _find_comment_before(text: str, position: int) -> str:
    """Return the documentation comment that ends directly before a position."""
    start = text.rfind("/**", 0, position)
    between = _COMMENT_PATTERN.sub("", text[start:position]) if start >= 0 else "none"
    return "" if between.strip() else text[start:position]


def _read_enums(text: str) -> Iterator[EnumType]:
    values: dict[str, int] = {}
    for match in _ENUM_PATTERN.finditer(text):
        body, c_name, deprecated = match.groups()
        whole = bool(deprecated) or "@deprecated" in _find_comment_before(text, match.start())
        members = [replace(m, deprecated=m.deprecated or whole) for m in _read_enumerators(body, values)]
        yield EnumType(c_name, tuple(members))


def _read_enumerators(body: str, values: dict[str, int]) -> list[Enumerator]:
    members: list[Enumerator] = []
    block = ""
    for piece in re.split(r"(/\*.*?\*/)", body, flags=re.S):
        if piece.startswith("/**<"):
            members[-1] = _add_remark(members[-1], piece)
        elif piece.startswith("/**"):
            block = piece
        elif not piece.startswith("/*"):
            for code in filter(None, map(str.strip, piece.split(","))):
                members.append(_read_enumerator(code, block, values))
                values[members[-1].c_name] = members[-1].value
                block = ""
    return members


def _read_enumerator(code: str, block: str, values: dict[str, int]) -> Enumerator:
    match = _ENUMERATOR_PATTERN.fullmatch(code)
    if not match:
        raise ValueError(f"cannot read the enumerator {code!r}")
    name, deprecated, value = match.groups()
    number = values[value] if value in values else int(value, 0)
    return Enumerator(name, number, _read_since_version(block), bool(deprecated) or "@deprecated" in block, "", block)


def _add_remark(member: Enumerator, remark: str) -> Enumerator:
    return replace(
        member,
        remark=remark,
        since=_read_since_version(remark) or member.since,
        deprecated=member.deprecated or "@deprecated" in remark,
    )


def _read_functions(text: str, plain: str) -> Iterator[Prototype]:
    for match in _FUNCTION_PATTERN.finditer(plain):
        deprecated, returns, name, parameters = match.groups()
        place = re.search(rf"^[^\n]*CUDNNWINAPI\s+{name}\(", text, re.M)
        if place is None:
            raise ValueError(f"{name} is declared in an unknown layout")
        comment = _find_comment_before(text, place.start())
        yield Prototype(
            name,
            _normalize_c_type(returns),
            _read_parameters(parameters),
            _read_since_version(comment),
            bool(deprecated) or "@deprecated" in comment,
        )


def _read_callback(match: re.Match[str]) -> Prototype:
    return Prototype(match[2], _normalize_c_type(match[1]), _read_parameters(match[3]), None, False)


def _read_parameters(text: str) -> tuple[NamedDeclaration, ...]:
    if text.strip() in ("", "void"):
        return ()
    return tuple(_read_declaration(part) for part in text.split(","))


def _read_fields(body: str) -> tuple[NamedDeclaration, ...]:
    return tuple(_read_declaration(part) for part in body.split(";") if part.strip())


def _read_declaration(text: str) -> NamedDeclaration:
    match = re.fullmatch(r"\s*(.*?)(\w+)\s*(\[\d+\])?\s*", text, re.S)
    if not match or not match[1].strip():
        raise ValueError(f"cannot read the declaration {text!r}")
    return NamedDeclaration(match[2], _normalize_c_type(match[1]) + (match[3] or ""))


def _normalize_c_type(text: str) -> str:
    """Normalise a C type: single blanks, ``T *``, no top-level const of a value."""
    words = " ".join(text.replace("*", " * ").split())
    words = re.sub(r"\* (?=\*)", "*", words)
    return words.removesuffix(" const")


def _reject_unread_declarations(plain: str) -> None:
    """Raise if the header has a declaration that no function above reads."""
    rest = plain
    for pattern in (_ENUM_PATTERN, _STRUCT_PATTERN, _CALLBACK_PATTERN, _FUNCTION_PATTERN):
        rest = pattern.sub("", rest)
    rest = re.sub(r'extern "C" \{|^\s*\}\s*$|^\s*#.*$', "", rest, flags=re.M)
    known = re.compile(r"(typedef\s+)?(struct\s+\w+|void)\s*(\*?\s*\w+(\s+CUDNN_DEPRECATED)?)?")
    for statement in filter(None, map(str.strip, rest.split(";"))):
        if not known.fullmatch(statement):
            raise ValueError(f"cannot place this part of the header: {statement[:200]!r}")


def read_documented_attributes(block: str) -> dict[str, DocumentedAttribute]:
    """Read the attribute list of a descriptor's comment block, in either of its two layouts."""
    text = re.sub(r"^ *\*? ?", "", block, flags=re.M)
    start = re.search(r"^(Supported a|A)ttributes\b.*:$", text, re.M)
    if start is None:
        return {}
    text = re.split(r"^(?:Finalization:|Notes? |Note:|@since)", text[start.end() :], maxsplit=1, flags=re.M)[0]
    entries = list(_ATTRIBUTE_ENTRY_PATTERN.finditer(text))
    ends = [entry.start() for entry in entries[1:]] + [len(text)]
    found: dict[str, DocumentedAttribute] = {}
    says = ""
    for entry, end in reversed(list(zip(entries, ends, strict=True))):
        # Consecutive names share the description after the last one.
        own = f"{entry[2] or ''} {text[entry.end() : end]}"
        says = own if own.strip() else says
        found[entry[1] or entry[3]] = _read_attribute_entry(" ".join(says.split()))
    return dict(reversed(found.items()))


def _read_attribute_entry(text: str) -> DocumentedAttribute:
    types = tuple(dict.fromkeys(_TYPE_PATTERN.findall(text)))
    kinds = tuple(dict.fromkeys(_DESCRIPTOR_KIND_PATTERN.findall(text))) if "BACKEND_DESCRIPTOR" in types else ()
    output = re.search(r"(Read|Get)-only attribute", text)
    return DocumentedAttribute(
        types=types or None,
        count=_read_element_count(text),
        role="output" if output else None,
        required=_read_whether_required(text),
        element=kinds or None,
    )


def _read_whether_required(text: str) -> bool | None:
    if re.search(r"Optional attribute|attribute is optional|Default (value )?is|Read-only|Get-only", text):
        return False
    if re.search(r"Required only|required for|Required to be set before finalization if", text):
        return False
    if re.search(r"Required attribute|attribute is required\.|Required to be set", text):
        return True
    return None


_COUNT_PATTERNS: tuple[tuple[str, tuple[int, int | None]], ...] = (
    (r"at most CUDNN_MAX_DIMS - 2|1\.\.CUDNN_MAX_DIMS - 2", (1, 6)),
    (r"at most CUDNN_MAX_DIMS|1\.\.CUDNN_MAX_DIMS", (1, 8)),
    (r"\b0\+ elements", (0, None)),
    (r"\b1\+ elements|one or more elements|many elements|elementCount elements", (1, None)),
    (r"\b(1|one) element", (1, 1)),
)


def _read_element_count(text: str) -> tuple[int, int | None] | None:
    return next((count for pattern, count in _COUNT_PATTERNS if re.search(pattern, text)), None)
