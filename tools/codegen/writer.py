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

_PYTHON_TYPES = {
    "HANDLE": "Any",
    "BOOLEAN": "bool",
    "INT64": "int",
    "INT32": "int",
    "FLOAT": "float",
    "DOUBLE": "float",
    "VOID_PTR": "int",
    "CHAR": "str",
    "FRACTION": "tuple[int, int]",
}


def generate_all_files(model: GeneratedModel) -> dict[str, str]:
    """Return every generated file by name, formatted and with its hash."""
    sources = {
        "__init__.py": _write_package_module,
        "attributes.py": _write_attributes_module,
        "descriptors.py": _write_descriptors_module,
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
    """The type of enums of integers: their members are made without the checks that ``EnumType`` makes of each.

    These took a seventh of the time of importing the package for a first plan.
    """

    @classmethod
    def __prepare__(metacls, *_given: Any, **_options: Any) -> dict[str, Any]:  # type: ignore[override]
        return {}

    def __new__(metacls, name: str, bases: tuple[type, ...], body: dict[str, Any], /, **options: Any) -> _CudnnEnumType:
        numbers = {key: value for key, value in body.items() if type(value) is int and key[0] != "_"}
        rest = EnumType.__prepare__(name, bases)
        for key, value in body.items():
            if key not in numbers:
                rest[key] = value
        made = super().__new__(metacls, name, bases, rest, **options)
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

_PROTOTYPES_CODE = '''"""Every function, struct and callback type of cudnn_graph.h, as data."""

from __future__ import annotations

from typing import NamedTuple


class Parameter(NamedTuple):
    """A parameter of a function or a field of a struct, with its C type."""

    name: str
    c_type: str


class Function(NamedTuple):
    """The prototype of a C function, with the cuDNN version that added it."""

    name: str
    returns: str
    parameters: tuple[Parameter, ...]
    since: tuple[int, int, int] | None
    deprecated: bool = False


def _parameters(**types: str) -> tuple[Parameter, ...]:
    return tuple(Parameter(name, c_type) for name, c_type in types.items())


'''


def _write_prototypes_module(model: GeneratedModel) -> str:
    header = model.header
    structs = ", ".join(f"{name!r}: {_format_parameters(fields)}" for name, fields in header.structs.items())
    return "\n".join(
        [
            _PROTOTYPES_CODE,
            f"FUNCTIONS = {_write_functions(header.functions)}",
            f"CALLBACKS = {_write_functions(header.callbacks)}",
            f"STRUCTS = {{{structs}}}",
        ]
    )


def _write_functions(functions: Iterable[Any]) -> str:
    rows = []
    for f in functions:
        deprecated = ", deprecated=True" if f.deprecated else ""
        rows.append(f"Function({f.name!r}, {f.returns!r}, {_format_parameters(f.parameters)}, {f.since}{deprecated})")
    return f"{{function.name: function for function in ({', '.join(rows)},)}}"


def _format_parameters(parameters: Iterable[Any]) -> str:
    """Return the parameters as the text of a call, with their names as keywords."""
    return f"_parameters({', '.join(f'{p.name}={p.c_type!r}' for p in parameters)})"


# ------------------------------------------------------------------- attributes.py and descriptors.py

_ATTRIBUTES_CODE = '''"""Element types, counts and direction of every attribute of every descriptor type."""

from __future__ import annotations

from functools import partial
from typing import Literal, NamedTuple

from .enums import {enums}

_A = AttributeName
_T = AttributeType
_D = DescriptorType


class AttributeFacts(NamedTuple):
    """One attribute: its element types (preferred first), counts, direction and history.

    ``max_count`` is ``None`` where the header gives no bound; ``element`` lists the descriptor types that fit
    where the element is a descriptor.
    """

    attribute: AttributeName
    field: str
    types: tuple[AttributeType, ...]
    min_count: int
    max_count: int | None
    role: Literal["input", "output", "both"]
    required: bool
    since: tuple[int, int, int]
    element: tuple[DescriptorType, ...]


def _facts(
    role: Literal["input", "output", "both"],
    required: bool,
    attribute: _A,
    field: str,
    *taken: _T | _D,
    count: tuple[int, int | None] = (1, 1),
) -> AttributeFacts:
    types = [item for item in taken if isinstance(item, _T)]
    element = [item for item in taken if isinstance(item, _D)]
    if element:
        types.append(_T.BACKEND_DESCRIPTOR)
    return AttributeFacts(
        attribute, field, tuple(types), count[0], count[1], role, required, attribute.since, tuple(element)
    )


_required = partial(_facts, "input", True)
_optional = partial(_facts, "input", False)
_output = partial(_facts, "output", False)
_both = partial(_facts, "both", False)

'''


def _write_attributes_module(model: GeneratedModel) -> str:
    of_type = ", ".join(f"_T.{name}: {enum}" for name, enum in model.enum_of_type.items())
    names = {"AttributeName", "AttributeType", "CudnnEnum", "DescriptorType", *model.enum_of_type.values()}
    operations = tuple(d.kind for d in model.descriptors if d.kind.startswith("OPERATION_"))
    rows = "".join(
        f"_D.{d.kind}: ({''.join(_format_attribute_facts(a, operations) + ', ' for a in d.attributes)}),\n"
        for d in model.descriptors
    )
    return "\n".join(
        [
            _ATTRIBUTES_CODE.replace("{enums}", _format_imports(names)),
            f"_OPERATIONS = ({', '.join(f'_D.{kind}' for kind in operations)},)",
            f"ATTRIBUTES: dict[DescriptorType, tuple[AttributeFacts, ...]] = {{{rows}}}",
            "ATTRIBUTE_FACTS: dict[AttributeName, AttributeFacts] = "
            "{facts.attribute: facts for rows in ATTRIBUTES.values() for facts in rows}",
            "ATTRIBUTE_OWNER: dict[AttributeName, tuple[DescriptorType, ...]] = "
            "{facts.attribute: (kind,) for kind, rows in ATTRIBUTES.items() for facts in rows}",
            f"ENUM_OF_TYPE: dict[AttributeType, type[CudnnEnum]] = {{{of_type}}}",
        ]
    )


def _format_imports(names: Iterable[str]) -> str:
    """Return an import list in the order and layout of ruff's isort rule."""
    return "(" + "".join(f"\n    {name}," for name in sorted(names)) + "\n)"


def _format_attribute_facts(attribute: Attribute, operations: tuple[str, ...]) -> str:
    """Return an attribute's row in the generated table, such as ``_required(_A.NAME, 'field', _T.INT64)``."""
    kinds = "*_OPERATIONS" if attribute.element == operations else ", ".join(f"_D.{kind}" for kind in attribute.element)
    taken = [f"_T.{name}" for name in attribute.types if name != "BACKEND_DESCRIPTOR"] + [kinds] * bool(kinds)
    count = "" if attribute.count == (1, 1) else f", count={attribute.count}"
    role = {"input": "_required" if attribute.required else "_optional"}.get(attribute.role, f"_{attribute.role}")
    return f"{role}(_A.{attribute.name}, {attribute.field!r}, {', '.join(taken)}{count})"


_DESCRIPTORS_CODE = '''"""One frozen value class per descriptor type, with the facts of its attributes."""

from __future__ import annotations

from typing import Any, ClassVar

from ..frozen import FrozenValue
from .attributes import ATTRIBUTES, AttributeFacts
from .enums import {enums}

_D = DescriptorType
DESCRIPTORS: dict[DescriptorType, type[DescriptorValue]] = {}


class DescriptorValue(FrozenValue, kw_only=True):
    """Base of the value classes: a descriptor's attributes as plain data, without a C object."""

    kind: ClassVar[DescriptorType]
    attributes: ClassVar[tuple[AttributeFacts, ...]]

    def __init_subclass__(cls, kind: DescriptorType) -> None:
        super().__init_subclass__()
        cls.kind, cls.attributes = kind, ATTRIBUTES[kind]
        DESCRIPTORS[kind] = cls

'''


def _write_descriptors_module(model: GeneratedModel) -> str:
    classes = {descriptor.kind: descriptor.name for descriptor in model.descriptors}
    bodies = [_write_descriptor_class(descriptor, model, classes) for descriptor in model.descriptors]
    annotated = " ".join(word for body in bodies for word in body.replace("[", " ").replace(",", " ").split())
    used = {e for e in model.enum_of_type.values() if e in annotated.split()} | {"DescriptorType"}
    return "\n".join([_DESCRIPTORS_CODE.replace("{enums}", _format_imports(used)), *bodies])


def _write_descriptor_class(descriptor: DescriptorModel, model: GeneratedModel, classes: dict[str, str]) -> str:
    count = len(descriptor.attributes)
    lines = [
        f"\n\nclass {descriptor.name}(DescriptorValue, kind=_D.{descriptor.kind}):",
        f'    """{descriptor.source.c_name}, since cuDNN {_format_version(descriptor.since)}; '
        f'{count} attribute{"s"[: count != 1]}."""\n',
    ]
    settable = [a for a in descriptor.attributes if a.role != "output"]
    for attribute in sorted(settable, key=lambda a: not a.required):
        annotation = _format_annotation(attribute, model, classes)
        optional = "" if attribute.required else " | None = None" if annotation != "Any" else " = None"
        lines.append(f"    {attribute.field}: {annotation}{optional}")
    return "\n".join(lines) + "\n"


def _format_annotation(attribute: Attribute, model: GeneratedModel, classes: dict[str, str]) -> str:
    names: list[str] = []
    for kind in attribute.types:
        if kind == "BACKEND_DESCRIPTOR":
            names.append(classes[attribute.element[0]] if len(attribute.element) == 1 else "DescriptorValue")
        else:
            names.append(_PYTHON_TYPES.get(kind) or model.enum_of_type[kind])
    single = " | ".join(dict.fromkeys(names))
    return single if attribute.count[1] == 1 or attribute.types == ("CHAR",) else f"tuple[{single}, ...]"


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
