"""Data of the generated files: the header combined with facts.toml, and a list of contradictions."""

from __future__ import annotations

import keyword
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from os.path import commonprefix
from pathlib import Path
from typing import Any

from cudnn_backend_py.system.version import VersionTuple, parse_version_numbers

from .header import DocumentedAttribute, Enumerator, EnumType, Header

FIRST_VERSION = (9, 0, 0)
ATTRIBUTE_ASPECTS = ("types", "count", "role", "required", "element")
OPERATION_FACT_NAMES = ("writes", "defaults", "logged", "fixed", "undumped")


@dataclass(frozen=True)
class EnumMember:
    """An enumerator with its Python name."""

    name: str
    source: Enumerator
    since: VersionTuple


@dataclass(frozen=True)
class EnumModel:
    """An enum class of the generated code."""

    name: str
    c_name: str
    prefix: str
    suffix: str
    members: tuple[EnumMember, ...]

    def make_c_name(self, member: EnumMember) -> str:
        """Return the C name from prefix and suffix."""
        return f"{self.prefix}{member.name}{self.suffix}"


@dataclass(frozen=True)
class Attribute:
    """All facts of one attribute, each with its source."""

    name: str
    field: str
    types: tuple[str, ...]
    count: tuple[int, int | None]
    role: str
    required: bool
    element: tuple[str, ...]
    since: VersionTuple | None
    documented: bool
    filled: tuple[str, ...]
    corrected: tuple[str, ...]
    change_reasons: tuple[str, ...]


@dataclass(frozen=True)
class DescriptorModel:
    """A descriptor type of the generated code."""

    kind: str
    name: str
    source: Enumerator
    since: VersionTuple | None
    attributes: tuple[Attribute, ...]
    uses: dict[str, Any]  # by the names in OPERATION_FACT_NAMES: field names, or values or paths by name


@dataclass
class GeneratedModel:
    """Data of all generated files, and all problems found."""

    header: Header
    enums: list[EnumModel] = field(default_factory=list)
    descriptors: list[DescriptorModel] = field(default_factory=list)
    enum_of_type: dict[str, str] = field(default_factory=dict)
    pointwise_modes: dict[str, list[str]] = field(default_factory=dict)
    undefined: dict[str, str] = field(default_factory=dict)
    undocumented: list[str] = field(default_factory=list)
    renamed: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


class FactsFile:
    """The hand-written facts in facts.toml, with a record of the entries that were used."""

    def __init__(self, path: Path) -> None:
        self.data: dict[str, Any] = tomllib.loads(path.read_text())
        self.entries: list[dict[str, Any]] = self.data.pop("facts")
        self.operations: list[dict[str, Any]] = self.data.pop("operations")
        self.pointwise_modes: dict[str, list[str]] = self.data.pop("pointwise_modes")
        self.used: set[tuple[str, str]] = set()

    def name(self, table: str, key: str) -> str | None:
        """Return the entry of a key in a table of facts.toml, and record that the entry was used."""
        found: str | None = self.data[table].get(key)
        if found is not None:
            self.used.add((table, key))
        return found

    def since(self, member: Enumerator) -> VersionTuple | None:
        """Return the first version of an enumerator: from these facts, otherwise from the header."""
        for pattern, version in self.data["enumerator_since"].items():
            if fnmatchcase(member.c_name, pattern):
                major, minor, patch = parse_version_numbers(version)
                if (major, minor, patch) != member.since:
                    self.used.add(("enumerator_since", pattern))
                return major, minor, patch
        return member.since

    def find_entries(self, attribute: str) -> Iterator[tuple[int, dict[str, Any]]]:
        """Yield the index and the content of each facts.toml entry that matches an attribute, in file order."""
        for index, entry in enumerate(self.entries):
            if any(fnmatchcase(attribute, pattern) for pattern in entry["attributes"]):
                yield index, entry

    def find_operation_facts(self, kind: str) -> dict[str, Any]:
        """Return facts about the fields of an operation or parameter descriptor, by name of the fact."""
        found: dict[str, Any] = {}
        for entry in self.operations:
            if any(fnmatchcase(kind, pattern) for pattern in entry["descriptors"]):
                for use in OPERATION_FACT_NAMES:
                    if use in entry:
                        found[use] = entry[use] if isinstance(entry[use], list) else found.get(use, {}) | entry[use]
        return found

    def list_unused_entries(self, changed: set[int]) -> Iterator[str]:
        """Yield a message for each entry of facts.toml that matches nothing in the header."""
        for table, names in self.data.items():
            for key in names:
                if (table, key) not in self.used:
                    yield f"facts.toml: [{table}] {key} has no effect"
        for index, entry in enumerate(self.entries):
            if index not in changed:
                yield f"facts.toml: the entry for {', '.join(entry['attributes'])} has no effect"


def build_model(header: Header, facts: FactsFile) -> GeneratedModel:
    """Build the model of the whole header; contradictions are listed in ``problems``."""
    model = GeneratedModel(header)
    for enum in header.enums:
        model.enums.append(_make_enum_model(enum, facts, model.problems))
    classes = {enum.c_name: enum.name for enum in model.enums}
    kinds = [
        _strip_descriptor_prefix(member.c_name, facts) for member in header.enum("cudnnBackendDescriptorType_t").members
    ]
    types = header.enum("cudnnBackendAttributeType_t").members
    for member in types:
        enum_of = next((classes[word] for word in member.remark.split() if word in classes), None)
        if enum_of:
            model.enum_of_type[_get_type_name(member)] = enum_of
    builder = _DescriptorModelBuilder(model, facts, kinds, set(map(_get_type_name, types)))
    builder.run()
    _check_operation_facts(model)
    model.pointwise_modes = facts.pointwise_modes
    known = {member.name for enum in model.enums if enum.name == "PointwiseMode" for member in enum.members}
    for name in sorted({name for names in facts.pointwise_modes.values() for name in names} - known):
        model.problems.append(f"facts.toml: [pointwise_modes] {name} is no pointwise mode")
    for entry in facts.operations:
        for pattern in entry["descriptors"]:
            if not any(fnmatchcase(kind, pattern) for kind in kinds):
                model.problems.append(f"facts.toml: the operations {pattern} have no effect")
    for table, letters in ("documented_as", "ATTR"), ("type_documented_as", "TYPE"):
        for said, meant in facts.data[table].items():
            model.renamed.append(f"CUDNN_{letters}_{said}, meant is CUDNN_{letters}_{meant}")
    model.problems.extend(facts.list_unused_entries(builder.changed))
    return model


def _get_type_name(member: Enumerator) -> str:
    return member.c_name.removeprefix("CUDNN_TYPE_")


def _strip_descriptor_prefix(c_name: str, facts: FactsFile) -> str:
    prefix = facts.name("enum_prefixes", "cudnnBackendDescriptorType_t") or ""
    suffix = facts.name("enum_suffixes", "cudnnBackendDescriptorType_t") or ""
    return c_name.removeprefix(prefix).removesuffix(suffix)


def _make_enum_model(enum: EnumType, facts: FactsFile, problems: list[str]) -> EnumModel:
    name = enum.c_name.removeprefix("cudnn").removeprefix("Backend").removesuffix("_t")
    common = commonprefix([member.c_name for member in enum.members])
    prefix = facts.name("enum_prefixes", enum.c_name) or common[: common.rindex("_") + 1]
    suffix = facts.name("enum_suffixes", enum.c_name) or ""
    members = []
    for member in enum.members:
        declared = facts.name("enumerator_names", member.c_name)
        if declared is None and not (member.c_name.startswith(prefix) and member.c_name.endswith(suffix)):
            problems.append(f"{member.c_name} is outside the prefix {prefix} and is not declared")
        short = declared or member.c_name.removeprefix(prefix).removesuffix(suffix)
        if not short.isidentifier() or keyword.iskeyword(short):
            problems.append(f"{member.c_name} has no usable Python name ({short!r})")
        since = facts.since(member)
        if since is None:
            problems.append(f"{member.c_name}: neither the header nor facts.toml says since when")
        members.append(EnumMember(short, member, since or FIRST_VERSION))
    if len({member.name for member in members}) != len(members):
        problems.append(f"{enum.c_name} has two members of one name")
    return EnumModel(name, enum.c_name, prefix, suffix, tuple(members))


def _check_operation_facts(model: GeneratedModel) -> None:
    """Report facts about fields, enumerators or parameter descriptors that do not exist."""
    fields = {d.kind: {a.field: a for a in d.attributes} for d in model.descriptors}
    members = {enum.name: {member.name for member in enum.members} for enum in model.enums}
    for descriptor in model.descriptors:
        kind, uses = descriptor.kind, descriptor.uses
        if kind.startswith("OPERATION_") and not uses.get("writes"):
            model.problems.append(f"{descriptor.source.c_name}: which fields it writes is unknown")
        paths = [path for path in uses.get("logged", {}).values() if path]
        named = {name for use in OPERATION_FACT_NAMES if use != "logged" for name in uses.get(use, ())}
        for path in sorted({*paths, *named}):
            holder, _, name = path.rpartition(".")
            elements = fields[kind][holder].element if holder in fields[kind] else (kind,)
            if (holder and holder not in fields[kind]) or not all(name in fields[element] for element in elements):
                model.problems.append(f"facts.toml: {kind} has no {path}")
        for name, value in {**uses.get("defaults", {}), **uses.get("fixed", {})}.items():
            if isinstance(value, str) and name in fields[kind]:
                enum = model.enum_of_type.get(fields[kind][name].types[0], "")
                if value not in members.get(enum, ()):
                    model.problems.append(f"facts.toml: {name} of {kind} is no {value}")


class _DescriptorModelBuilder:
    """Assigns every attribute to its descriptor type and collects its facts."""

    def __init__(self, model: GeneratedModel, facts: FactsFile, kinds: list[str], types: set[str]) -> None:
        self.model = model
        self.facts = facts
        self.types = types
        self.kinds = kinds
        self.changed: set[int] = set()
        self.prefixes = {kind: (facts.name("attribute_prefixes", kind) or kind) + "_" for kind in kinds}
        self.documented = self._read_documentation()

    def _read_documentation(self) -> dict[str, dict[str, DocumentedAttribute]]:
        """Return the documented attributes by descriptor type, under the enum's name if the comment's differs."""
        found: dict[str, dict[str, DocumentedAttribute]] = {}
        for c_name, block in self.model.header.documented.items():
            names = {name.removeprefix("CUDNN_ATTR_"): entry for name, entry in block.items()}
            kind = _strip_descriptor_prefix(c_name, self.facts)
            found[kind] = {self.facts.name("documented_as", name) or name: e for name, e in names.items()}
        return found

    def run(self) -> None:
        """Add all descriptor types with their attributes to the model."""
        placed: dict[str, list[Attribute]] = {kind: [] for kind in self.kinds}
        seen = set()
        for member in self.model.header.enum("cudnnBackendAttributeName_t").members:
            name = member.c_name.removeprefix("CUDNN_ATTR_")
            owner = self._find_descriptor_of_attribute(name)
            if owner is None:
                self.model.problems.append(f"{member.c_name} belongs to no descriptor type")
                continue
            seen.add((owner, name))
            placed[owner].append(self._make_attribute(owner, name, member))
        self._record_undefined_attributes(seen)
        for source, kind in zip(
            self.model.header.enum("cudnnBackendDescriptorType_t").members, self.kinds, strict=True
        ):
            self.model.descriptors.append(self._make_descriptor_model(kind, source, placed[kind]))

    def _find_descriptor_of_attribute(self, name: str) -> str | None:
        declared = self.facts.name("owners", name)
        fitting = [kind for kind in self.kinds if name.startswith(self.prefixes[kind])]
        return declared or max(fitting, key=lambda kind: len(self.prefixes[kind]), default=None)

    def _record_undefined_attributes(self, seen: set[tuple[str, str]]) -> None:
        for kind, block in self.documented.items():
            for name in block:
                if (kind, name) not in seen:
                    self.model.undefined[name] = kind

    def _make_descriptor_model(self, kind: str, source: Enumerator, attributes: list[Attribute]) -> DescriptorModel:
        words = [self.facts.name("class_words", word) or word.capitalize() for word in kind.split("_")]
        fields = [attribute.field for attribute in attributes]
        if not attributes:
            self.model.problems.append(f"{source.c_name} has no attributes")
        if len(set(fields)) != len(fields):
            self.model.problems.append(f"{source.c_name} has two attributes with one field name")
        since = self.facts.since(source)
        return DescriptorModel(
            kind, "".join(words), source, since, tuple(attributes), self.facts.find_operation_facts(kind)
        )

    def _make_attribute(self, kind: str, name: str, member: Enumerator) -> Attribute:
        says = self.documented[kind].get(name)
        if says is None:
            self.model.undocumented.append(name)
        known: dict[str, Any] = {aspect: getattr(says, aspect) for aspect in ATTRIBUTE_ASPECTS if says}
        known["types"] = self._correct_type_names(known.get("types"))
        original = {aspect: known.get(aspect) for aspect in ATTRIBUTE_ASPECTS}
        change_reasons = []
        for index, entry in self.facts.find_entries(name):
            given = {
                aspect: _convert_fact_value(aspect, entry[aspect]) for aspect in ATTRIBUTE_ASPECTS if aspect in entry
            }
            if any(known.get(aspect) != value for aspect, value in given.items()):
                self.changed.add(index)
                change_reasons.append(entry["why"])
            known |= given
        known["role"] = known.get("role") or "input"
        known["element"] = self._expand_descriptor_types(known.get("element"))
        original["element"] = self._expand_descriptor_types(original["element"])
        missing = [aspect for aspect in ("types", "count", "required") if known.get(aspect) is None]
        if missing:
            self.model.problems.append(f"{member.c_name}: {' and '.join(missing)} unknown")
            known |= {"types": known["types"] or ("VOID_PTR",), "count": known.get("count") or (1, 1)}
        attribute = Attribute(
            name=name,
            field=self._make_field_name(kind, name, known["element"]),
            since=self.facts.since(member),
            documented=says is not None,
            filled=tuple(
                a for a in ATTRIBUTE_ASPECTS if _is_changed_attribute_property(a, original, known) and not original[a]
            ),
            corrected=tuple(
                a for a in ATTRIBUTE_ASPECTS if _is_changed_attribute_property(a, original, known) and original[a]
            ),
            change_reasons=tuple(change_reasons),
            types=known["types"],
            count=known["count"],
            role=known["role"],
            required=bool(known.get("required")) and known["role"] != "output",
            element=known["element"],
        )
        self._check_attribute(attribute, member)
        return attribute

    def _correct_type_names(self, types: tuple[str, ...] | None) -> tuple[str, ...] | None:
        if types is None:
            return None
        return tuple(self.facts.name("type_documented_as", name) or name for name in types)

    def _expand_descriptor_types(self, element: tuple[str, ...] | None) -> tuple[str, ...]:
        if element == ("OPERATION_*",):
            return tuple(kind for kind in self.kinds if kind.startswith("OPERATION_"))
        return element or ()

    def _make_field_name(self, kind: str, name: str, element: tuple[str, ...]) -> str:
        declared = self.facts.name("fields", name)
        rest = name.removeprefix(self.prefixes[kind])
        if declared is None and rest == "DESC" and len(element) == 1:
            return element[0].lower()
        for ending in ("_DESCS", "_DESC", "DESC"):
            if rest.endswith(ending):
                rest = rest.removesuffix(ending)
                break
        return declared or rest.lower()

    def _check_attribute(self, attribute: Attribute, member: Enumerator) -> None:
        problems = self.model.problems
        unknown = {*attribute.types} - self.types | {*attribute.element} - {*self.kinds}
        problems += [f"{member.c_name}: nothing is called {name}" for name in sorted(unknown)]
        if "BACKEND_DESCRIPTOR" in attribute.types and not attribute.element:
            problems.append(f"{member.c_name}: which descriptor types fit is unknown")
        if attribute.since is None:
            problems.append(f"{member.c_name}: the header does not say since when")
        if not attribute.field.isidentifier() or keyword.iskeyword(attribute.field):
            problems.append(f"{member.c_name} has no usable field name ({attribute.field!r})")


def _convert_fact_value(aspect: str, value: Any) -> Any:
    if aspect == "count":
        return value[0], value[1] or None
    return tuple(value) if isinstance(value, list) else value


def _is_changed_attribute_property(aspect: str, original: dict[str, Any], known: dict[str, Any]) -> bool:
    if aspect == "role" and original["role"] is None and known["role"] == "input":
        return False
    return bool(original[aspect] != known.get(aspect))
