"""Writer of the generated files, from the model."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from cudnn_backend_py.system.version import format_version_numbers

from .model import FIRST_VERSION, OPERATION_FACT_NAMES, Attribute, DescriptorModel, EnumModel, GeneratedModel

CODEGEN_COMMAND = "python -m tools.codegen"
_HASH_MARK = "seal: sha256:"


def generate_all_files(model: GeneratedModel) -> dict[str, str]:
    """Return every generated file by name, formatted and with its hash."""
    sources = {
        "__init__.py": _write_package_module,
        "attributes.py": _write_attributes_module,
        "enums.py": _write_enums_module,
        "operations.py": _write_operations_module,
        "prototypes.py": _write_prototypes_module,
    }
    out = {name: _format_python_module(name, source(model), model) for name, source in sources.items()}
    out["REPORT.md"] = insert_hash(make_header_upgrade_report(model), "<!-- {} -->")
    out["graph.schema.json"] = insert_hash(_make_graph_schema(model), '  "$comment": "{}",')
    return out


def _make_graph_schema(model: GeneratedModel) -> str:
    """Return the JSON schema of graph files: the template next to this file with the members of its enums."""
    first, rest = (Path(__file__).parent / "graph.schema.json").read_text(encoding="utf-8").split("\n", 1)
    for enum in model.enums:
        names = json.dumps([member.name for member in enum.members])
        rest = rest.replace(f'"enum": "{enum.name}"', f'"enum": {names}')
    sources = f"cudnn_graph.h {_format_version(model.header.version)} and tools/codegen/graph.schema.json"
    banner = f"Generated from {sources} by {CODEGEN_COMMAND}"
    return f'{first}\n  "description": "{banner}. Do not edit.",\n{rest}'


def insert_hash(text: str, comment: str = "# {}") -> str:
    """Insert the hash of a text as its second line."""
    first, rest = text.split("\n", 1)
    digest = hashlib.sha256(f"{first}\n{rest}".encode()).hexdigest()
    return f"{first}\n{comment.format(_HASH_MARK + digest)}\n{rest}"


def _format_python_module(name: str, body: str, model: GeneratedModel) -> str:
    banner = (
        f"# Generated from cudnn_graph.h {_format_version(model.header.version)} and facts.toml. Do not edit.\n"
        f"# Command: {CODEGEN_COMMAND}\n"
    )
    done = subprocess.run(
        [
            sys.executable,
            "-P",
            "-m",
            "ruff",
            "format",
            "--stdin-filename",
            f"cudnn_backend_py/generated/{name}",
            "-",
        ],
        input=banner + body,
        text=True,
        capture_output=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"ruff format refused {name}: {done.stderr}")
    return insert_hash(done.stdout)


def _format_version(version: Iterable[int] | None) -> str:
    return "not said" if version is None else format_version_numbers(version)


def _write_package_module(model: GeneratedModel) -> str:
    return '"""Machine-written facts about the cuDNN backend API; see REPORT.md for where each comes from."""\n'


# ------------------------------------------------------------------------------------------- enums.py

_ENUMS_CODE = '''
# What others call a data type, and its name in cuDNN.
USUAL_DATA_TYPES = {
    "FP16": "HALF",
    "FLOAT16": "HALF",
    "FP32": "FLOAT",
    "FLOAT32": "FLOAT",
    "FP64": "DOUBLE",
    "FLOAT64": "DOUBLE",
    "BF16": "BFLOAT16",
    "E4M3": "FP8_E4M3",
    "E5M2": "FP8_E5M2",
}


class _CudnnEnumType(EnumType):
    """The type of enums of integers: made without what ``EnumType`` does and checks for each enum and member.

    That took a quarter of the time of importing the package for a first plan. An enum inherits what ``EnumType`` gave
    its base, but for the containers of members.
    """

    @classmethod
    def __prepare__(metacls, *_given: Any, **_options: Any) -> dict[str, Any]:  # type: ignore[override]
        return {}

    def __new__(metacls, name: str, bases: tuple[type, ...], body: dict[str, Any], /, **options: Any) -> _CudnnEnumType:
        if type(bases[0]) is not metacls or bases[0]._member_map_:  # not from `CudnnEnum`
            rest = EnumType.__prepare__(name, bases)
            for key, value in body.items():
                rest[key] = value
            return super().__new__(metacls, name, bases, rest, **options)
        numbers = {key: body.pop(key) for key, value in [*body.items()] if type(value) is int and key[0] != "_"}
        containers = {key: type(value)() for key, value in bases[0].__dict__.items() if type(value) in (dict, list)}
        made = type.__new__(metacls, name, bases, body | containers, **options)
        by_value, by_name, names = made._value2member_map_, made._member_map_, made._member_names_
        for key, value in numbers.items():
            member = by_value.get(value)
            if member is None:  # else it is an alias
                member = by_value[value] = int.__new__(made, value)  # type: ignore[arg-type]
                member.__dict__.update(_value_=value, _name_=key, __objclass__=made, _sort_order_=len(names))
                names.append(key)
            by_name[key] = member
            type.__setattr__(made, key, member)
        made.__dict__.get("_hashable_values_", []).extend(by_value)  # of Python 3.13
        return made

    if not TYPE_CHECKING:  # type checkers know all members

        def __getattr__(cls, name):  # of what is no attribute; Python 3.11 finds members here, too
            try:
                return cls._member_map_[name]
            except KeyError:
                near = None if name.startswith("_") or not cls._member_map_ else cls.find_nearest(name)
            hint = "" if near is None else f"; did you mean {near.name}?"
            raise AttributeError(f"{cls.__name__} has no member {name}{hint}", name=name)


class CudnnEnum(IntEnum, metaclass=_CudnnEnumType):
    """Base of cuDNN's enums: members know their C name, first cuDNN version and deprecation.

    ``prefix`` and ``suffix`` surround the names of members in C; ``c_type`` is the key in ``ENUMS``.
    """

    _affixes: tuple[str, str]

    def __init_subclass__(cls, c_type: str = "", prefix: str = "", suffix: str = "") -> None:
        cls._affixes = prefix, suffix
        if c_type:
            ENUMS[c_type] = cls

    @classmethod
    def find_nearest(cls, name: object) -> Self | None:
        """Return the member with the nearest name to a misspelt name or a C name, in any case; None if none is near."""
        from difflib import get_close_matches  # for errors alone

        if type(name) is not str:
            return None
        known = {text.upper(): member for own, member in cls.__members__.items() for text in (own, member.c_name)}
        if cls.__name__ == "DataType":
            known |= {usual: cls[own] for usual, own in USUAL_DATA_TYPES.items()}
        found = get_close_matches(name[:100].upper(), known, n=1)
        return known[found[0]] if found else None

    @property
    def c_name(self) -> str:
        """The C name, with the header's misspellings."""
        prefix, suffix = self._affixes
        spelling = f"{prefix}{self._name_}{suffix}"
        return _IRREGULAR.get(spelling, spelling)

    @property
    def since(self) -> tuple[int, int, int]:
        """The cuDNN version that added it; 9.0.0 if it is older."""
        return _SINCE.get(self.c_name, (9, 0, 0))

    @property
    def deprecated(self) -> bool:
        """Whether the header marks it as deprecated; for an alias, look up its C name in ``DEPRECATED``."""
        return self.c_name in DEPRECATED
'''


def _write_enums_module(model: GeneratedModel) -> str:
    members = [(enum, member) for enum in model.enums for member in enum.members]
    irregular = {e.make_c_name(m): m.source.c_name for e, m in members if e.make_c_name(m) != m.source.c_name}
    since = {m.source.c_name: m.since for _, m in members if m.since != FIRST_VERSION}  # the most common version
    deprecated = sorted(m.source.c_name for _, m in members if m.source.deprecated)
    defines = {n: v for n, v in model.header.defines.items() if not n.startswith("CUDNN_GRAPH_")}
    parts = [
        '"""Every enum and constant of cudnn_graph.h."""\n',
        "from __future__ import annotations\n",
        "from enum import EnumType, IntEnum\nfrom typing import TYPE_CHECKING, Any, Self\n",
        f"HEADER_VERSION = {model.header.version}",
        *(f"{name.removeprefix('CUDNN_')} = {value}" for name, value in defines.items()),
        f"_IRREGULAR = {irregular!r}",
        f"_SINCE: dict[str, tuple[int, int, int]] = {since!r}",
        f"DEPRECATED = frozenset({tuple(deprecated)!r})",
        "ENUMS: dict[str, type[CudnnEnum]] = {}\n",
        _ENUMS_CODE,
        *(_write_enum_class(enum) for enum in model.enums),
    ]
    return "\n".join(parts)


def _write_enum_class(enum: EnumModel) -> str:
    lines = [f"    {member.name} = {member.source.value}" for member in enum.members]
    affixes = f'prefix="{enum.prefix}"' + (f', suffix="{enum.suffix}"' if enum.suffix else "")
    head = f'class {enum.name}(CudnnEnum, c_type="{enum.c_name}", {affixes}):\n    """C enum {enum.c_name}."""\n\n'
    return "\n\n" + head + "\n".join(lines) + "\n\n"


# -------------------------------------------------------------------------------------- prototypes.py

_PROTOTYPES_CODE = '''"""Every function of cudnn_graph.h, as data."""

from __future__ import annotations

#: By name: C type of the result, those of the parameters, and the cuDNN version that added the function.
FUNCTIONS: dict[str, tuple[str, tuple[str, ...], tuple[int, int, int] | None]] = '''


def _write_prototypes_module(model: GeneratedModel) -> str:
    rows = (
        f"{f.name!r}: ({f.returns!r}, {tuple(p.c_type for p in f.parameters)}, {f.since})"
        for f in model.header.functions
    )
    return f"{_PROTOTYPES_CODE}{{{', '.join(rows)}}}"


# ------------------------------------------------------------------------------------- attributes.py

_ATTRIBUTES_CODE = '''"""Element types, counts and direction of every attribute of every descriptor type.

The facts of a descriptor type are made when they are first read: a program reads those of few.
"""

from __future__ import annotations

from functools import cache
from typing import Any, Literal

from ..frozen import FrozenValue
from .enums import {enums}

_T = AttributeType


class AttributeFacts(FrozenValue):
    """One attribute: its descriptor type, element types (preferred first), counts, direction and history.

    ``max_count`` is ``None`` where the header gives no bound; ``element`` lists the descriptor types that fit
    where the element is a descriptor.
    """

    owner: DescriptorType
    attribute: AttributeName
    field: str
    types: tuple[AttributeType, ...]
    min_count: int
    max_count: int | None
    role: Literal["input", "output", "both"]
    required: bool
    since: tuple[int, int, int]
    element: tuple[DescriptorType, ...]


class DescriptorValue(FrozenValue, kw_only=True):
    """A descriptor's attributes as plain data, without a C object.

    ``fields`` has the values of the attributes that are set, by :attr:`AttributeFacts.field`.
    """

    kind: DescriptorType
    fields: dict[str, Any]


@cache
def get_attributes(kind: DescriptorType) -> tuple[AttributeFacts, ...]:
    """Return the attributes of a descriptor type, in the header's order."""
    return tuple(_make_facts(kind, *row) for row in _ROWS[kind.name])


@cache
def get_attribute_facts(attribute: AttributeName) -> AttributeFacts:
    """Return the facts of an attribute."""
    owner = DescriptorType[_map_attributes_to_owners()[attribute.name]]
    return next(facts for facts in get_attributes(owner) if facts.attribute is attribute)


@cache
def _map_attributes_to_owners() -> dict[str, str]:
    return {row[1]: owner for owner, rows in _ROWS.items() for row in rows}


def _make_facts(
    owner: DescriptorType,
    use: Literal["required", "optional", "output", "both"],
    name: str,
    field: str,
    types: str,
    element: str = "",
    count: tuple[int, int | None] = (1, 1),
) -> AttributeFacts:
    attribute = AttributeName[name]
    kinds = [kind for kind in _ROWS if kind.startswith("OPERATION_")] if element == "OPERATION_*" else element.split()
    return AttributeFacts(
        owner=owner,
        attribute=attribute,
        field=field,
        types=tuple(AttributeType[one] for one in (*types.split(), *["BACKEND_DESCRIPTOR"] * bool(kinds))),
        min_count=count[0],
        max_count=count[1],
        role="input" if use == "required" or use == "optional" else use,
        required=use == "required",
        since=attribute.since,
        element=tuple(DescriptorType[one] for one in kinds),
    )


'''


def _write_attributes_module(model: GeneratedModel) -> str:
    of_type = ", ".join(f"_T.{name}: {enum}" for name, enum in model.enum_of_type.items())
    names = {"AttributeName", "AttributeType", "CudnnEnum", "DescriptorType", *model.enum_of_type.values()}
    operations = tuple(d.kind for d in model.descriptors if d.kind.startswith("OPERATION_"))
    rows = "".join(
        f"{d.kind!r}: ({''.join(f'{_make_attribute_row(a, operations)!r}, ' for a in d.attributes)}),\n"
        for d in model.descriptors
    )
    return "\n".join(
        [
            _ATTRIBUTES_CODE.replace("{enums}", _format_imports(names)),
            f"_ROWS: dict[str, tuple[tuple[Any, ...], ...]] = {{{rows}}}",
            f"ENUM_OF_TYPE: dict[AttributeType, type[CudnnEnum]] = {{{of_type}}}",
        ]
    )


def _format_imports(names: Iterable[str]) -> str:
    """Return an import list in the order and layout of ruff's isort rule."""
    return "(" + "".join(f"\n    {name}," for name in sorted(names)) + "\n)"


def _make_attribute_row(attribute: Attribute, operations: tuple[str, ...]) -> tuple[Any, ...]:
    """Return an attribute's row in the generated table: the arguments of ``_make_facts`` after `owner`."""
    use = {"input": "required" if attribute.required else "optional"}.get(attribute.role, attribute.role)
    types = " ".join(kind for kind in attribute.types if kind != "BACKEND_DESCRIPTOR")
    element = "OPERATION_*" if attribute.element == operations else " ".join(attribute.element)
    row = (use, attribute.name, attribute.field, types)
    if attribute.count != (1, 1):
        return (*row, element, attribute.count)
    return (*row, element) if element else row


# -------------------------------------------------------------------------------------- operations.py

_OPERATION_CODE = '''"""Facts about operations that the header lacks: outputs, default values, names in cuDNN's log."""

from __future__ import annotations

from typing import Any

from .enums import {enums}

_D, _P = DescriptorType, PointwiseMode
'''


_TABLE_NAMES = {
    "writes": "OUTPUT_PORTS: dict[DescriptorType, frozenset[str]]",
    "defaults": "DEFAULTS: dict[DescriptorType, dict[str, Any]]",
    "logged": "LOGGED_NAMES: dict[DescriptorType, dict[str, str]]",
    "fixed": "FIXED_VALUES: dict[DescriptorType, dict[str, Any]]",
    "undumped": "UNDUMPED_FIELDS: dict[DescriptorType, tuple[str, ...]]",
}


def _write_operations_module(model: GeneratedModel) -> str:
    names = {"DescriptorType", "PointwiseMode"}
    tables: dict[str, list[str]] = {use: [] for use in OPERATION_FACT_NAMES}
    for descriptor in model.descriptors:
        for use, given in descriptor.uses.items():
            if isinstance(given, list):
                value = f"frozenset({{{', '.join(map(repr, given))}}})" if use == "writes" else repr(tuple(given))
            else:
                enums = _find_enums_of_fields(descriptor, given, model) if use != "logged" else {}
                names |= set(enums.values())
                pairs = ((k, f"{enums[k]}.{item}" if k in enums else repr(item)) for k, item in given.items())
                value = "{" + ", ".join(f"{name!r}: {item}" for name, item in pairs) + "}"
            tables[use].append(f"_D.{descriptor.kind}: {value}")
    convolutions = ", ".join(_format_convolution_fields(model))
    modes = {kind: ", ".join(f"_P.{name}" for name in members) for kind, members in model.pointwise_modes.items()}
    return "\n".join(
        [
            _OPERATION_CODE.replace("{enums}", _format_imports(names)),
            *(f"{_TABLE_NAMES[use]} = {{{', '.join(rows)}}}" for use, rows in tables.items()),
            f"CONVOLUTIONS: dict[DescriptorType, tuple[str, str, str]] = {{{convolutions}}}",
            *(f"{kind.upper()}_MODES = frozenset({{{members}}})" for kind, members in modes.items()),
            'BACKWARD_MODES = frozenset(mode for mode in PointwiseMode if mode.name.endswith("_BWD"))',
        ]
    )


def _format_convolution_fields(model: GeneratedModel) -> Iterator[str]:
    """Yield a convolution's fields for image, weights and response: x, w and y, or their gradients."""
    for descriptor in model.descriptors:
        if descriptor.kind.startswith("OPERATION_CONVOLUTION_"):
            fields = {attribute.field for attribute in descriptor.attributes}
            yield f"_D.{descriptor.kind}: {tuple(f'd{name}' if f'd{name}' in fields else name for name in 'xwy')!r}"


def _find_enums_of_fields(descriptor: DescriptorModel, given: dict[str, Any], model: GeneratedModel) -> dict[str, str]:
    """Return, by field, the enum of each field that has an enumerator as value."""
    types = {attribute.field: attribute.types[0] for attribute in descriptor.attributes}
    return {name: model.enum_of_type[types[name]] for name, value in given.items() if isinstance(value, str)}


# ------------------------------------------------------------------------------------------ REPORT.md


def make_header_upgrade_report(model: GeneratedModel) -> str:
    """Return the Markdown report on how much of cudnn_graph.h the package covers, with corrections of its comments."""
    attributes = [a for d in model.descriptors for a in d.attributes]
    placed = {a.name for a in attributes}
    all_attributes = len(model.header.enum("cudnnBackendAttributeName_t").members)
    enumerators = sum(len(enum.members) for enum in model.header.enums)
    written = sum(len(enum.members) for enum in model.enums)
    from_header = [a for a in attributes if not a.filled and not a.corrected]
    corrected = [a for a in attributes if a.corrected]
    filled = [a for a in attributes if a.filled and a.documented and not a.corrected]
    facts_only = [a for a in attributes if not a.documented and not a.corrected]
    lines = [
        "# Facts of cudnn_graph.h",
        "",
        "Coverage of the header by this package, with corrections and additions to the header's comments.",
        f"Header {_format_version(model.header.version)}; generated by `{CODEGEN_COMMAND}`.",
        "",
        "| kind | in the header | covered | not covered |",
        "|---|---|---|---|",
        _format_report_row("enums", len(model.header.enums), len(model.enums)),
        _format_report_row("enumerators", enumerators, written),
        _format_report_row("functions", len(model.header.functions), len(model.header.functions)),
        _format_report_row("descriptor types", len(model.header.documented), len(model.descriptors)),
        _format_report_row("attributes", all_attributes, len(placed)),
        "",
        "| source | attributes |",
        "|---|---|",
        f"| the header's comment | {len(from_header)} |",
        f"| the header's comment, completed by facts.toml | {len(filled)} |",
        f"| facts.toml, the header is silent | {len(facts_only)} |",
        f"| facts.toml, the header is corrected | {len(corrected)} |",
        "",
        *_format_report_section("Problems", model.problems),
        *_format_report_section("Documented, but not defined in the header", _list_undefined_attributes(model)),
        *_format_report_section(
            "Defined, but not documented in the header", [f"CUDNN_ATTR_{n}" for n in model.undocumented]
        ),
        *_format_report_table("Corrections of the header", [(a, a.corrected) for a in corrected]),
        *_format_report_table("Additions to the header's comments", [(a, a.filled) for a in filled]),
        *_format_report_table("Attributes without types in the header", [(a, a.filled) for a in facts_only]),
        *_format_report_section(
            "Without a version in the header, or with a later version", _list_differing_first_versions(model)
        ),
    ]
    return "\n".join(lines).rstrip("\n") + "\n"


def _format_report_row(what: str, found: int, covered: int) -> str:
    return f"| {what} | {found} | {covered} | {found - covered} |"


def _format_report_section(title: str, items: Iterable[str]) -> list[str]:
    return [f"## {title}", "", *([f"* {item}" for item in sorted(items)] or ["None."]), ""]


def _format_report_table(title: str, rows: list[tuple[Attribute, tuple[str, ...]]]) -> list[str]:
    lines = [f"## {title}", "", "| attribute | what | now | why |", "|---|---|---|---|"]
    for attribute, aspects in sorted(rows, key=lambda row: row[0].name):
        now = "; ".join(f"{aspect} {_format_attribute_property(attribute, aspect)}" for aspect in aspects)
        why = "; ".join(attribute.change_reasons)
        lines.append(f"| CUDNN_ATTR_{attribute.name} | {', '.join(aspects)} | {now} | {why} |")
    return [*lines, ""]


def _format_attribute_property(attribute: Attribute, aspect: str) -> str:
    value = getattr(attribute, aspect)
    if aspect == "count":
        low, high = value
        return f"{low}" if low == high else f"{low}..{high or ''}"
    return ", ".join(value) if isinstance(value, tuple) else str(value)


def _list_undefined_attributes(model: GeneratedModel) -> list[str]:
    return model.renamed + [f"CUDNN_ATTR_{name} (at {kind})" for name, kind in model.undefined.items()]


def _list_differing_first_versions(model: GeneratedModel) -> list[str]:
    return [
        f"{m.source.c_name}, facts.toml says {_format_version(m.since)}"
        for enum in model.enums
        for m in enum.members
        if m.source.since != m.since
    ]
