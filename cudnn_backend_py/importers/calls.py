"""Rebuild descriptors from logged calls of ``cudnnBackendSetAttribute`` and ``cudnnBackendFinalize``."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from ..errors import GraphError
from ..generated.attributes import get_attributes
from ..generated.enums import DescriptorType
from ..graph.ir import Graph
from .cudnn_json import DumpEntry, LoggedDescriptor, find_logged_field, graph_from_descriptors
from .records import LruDict

__all__ = ["DESCRIPTORS", "ELEMENT", "FIELD_OF", "TRACKED", "DescriptorCalls", "parse_descriptor_dump"]

_MAX_MADE = 4096  # descriptors of a thread
_MAX_CALLS = 4 << 20  # characters of the calls of a thread
_MAX_DEPTH = 64  # spaces before a line of a dump

DESCRIPTORS = {kind.c_name: kind for kind in DescriptorType}
FIELD_OF = {facts.attribute.c_name: (kind, facts.field) for kind in DescriptorType for facts in get_attributes(kind)}
_NOT_PARTS = ("ENGINE", "EXECUTION", "VARIANT", "KNOB", "INTERMEDIATE", "LAYOUT", "KERNEL", "DEVICEPROP")
TRACKED = frozenset(kind for kind in DescriptorType if not kind.name.startswith(_NOT_PARTS))

ELEMENT = re.compile(r"^ *\[\d+\]: (?:type=(\w+); val=(.*?);?|location=.*)$", re.MULTILINE)
_COUNT = re.compile(r"^ *elementCount: type=int64_t; val=(\d{1,9});", re.MULTILINE)


@dataclass(slots=True)
class _DescriptorState:
    """The state of a logged descriptor, from its first call until another descriptor uses it."""

    made: LoggedDescriptor
    mark: int = 0  # of its dump, when it was finalized
    text: str = ""  # that dump, of an operation
    pointers: dict[tuple[str, int], str] = field(default_factory=dict)  # to other descriptors
    count: int = 0  # elements given, of which cuDNN logs the first ten


class DescriptorCalls:
    """Tracks the descriptors that one thread builds; the log omits their addresses in create and set calls.

    So a call is about the open descriptor of its type, and an address belongs to the one descriptor of its type that
    was finalized and not used yet, or to the one whose dump is that of the user's. Where two fit it stays unknown.
    """

    def __init__(self) -> None:
        self.open: dict[DescriptorType, list[_DescriptorState]] = {}
        self.unused: dict[DescriptorType, list[_DescriptorState]] = {}
        self.addresses: LruDict[str, _DescriptorState] = LruDict(_MAX_MADE)
        self.tensors: LruDict[int, LoggedDescriptor] = LruDict(_MAX_MADE)  # by their dumps
        self.size = 0

    def _count_characters_and_reset_above_limit(self, size: int, limit: int = 2 * _MAX_CALLS) -> None:
        """Count stored characters, and forget all descriptors above a limit."""
        self.size += size
        if self.size > limit:
            self.__init__()  # type: ignore[misc]

    def record_create_call(self, kind: DescriptorType) -> None:
        self._append_descriptor_and_drop_oldest(self.open, kind, _DescriptorState(LoggedDescriptor(kind)))

    def _append_descriptor_and_drop_oldest(
        self, place: dict[DescriptorType, list[_DescriptorState]], kind: DescriptorType, item: _DescriptorState
    ) -> None:
        found = place.setdefault(kind, [])
        found.append(item)
        if len(found) > _MAX_MADE:
            del found[0]

    def _get_open_descriptor(self, kind: DescriptorType) -> _DescriptorState:
        """Return the open descriptor of this type that a logged call refers to: the one created last."""
        found = self.open.get(kind)
        if not found:
            found = self.open[kind] = [_DescriptorState(LoggedDescriptor(kind, whole=False))]
        if len(found) > 1:
            for item in found:
                item.made.whole = False
        return found[-1]

    def record_set_attribute_call(self, attribute: str, text: str) -> None:
        self._count_characters_and_reset_above_limit(len(text))
        kind, name = FIELD_OF[attribute]
        item = self._get_open_descriptor(kind)
        values: list[str | LoggedDescriptor | None] = []
        for number, match in enumerate(ELEMENT.finditer(text)):
            value = match[2] or ""
            element = DESCRIPTORS.get(match[1] or "")
            if element is None:
                values.append(value)
                continue
            used = self._find_descriptor_at_address(value, element)
            values.append(used.made if used else None)
            item.pointers[name, number] = value
        item.made.attributes[name] = values
        count = _COUNT.search(text)
        if name == "ops":
            item.count = int(count[1]) if count else len(values)

    def _find_descriptor_at_address(
        self, address: str, kind: DescriptorType, mark: int | None = None
    ) -> _DescriptorState | None:
        """Return the descriptor at a logged address, None if ambiguous; `mark` is the hash of its dump, if known."""
        known = self.addresses.get(address)
        if known is not None and known.made.kind is kind and mark in (None, known.mark):
            return known
        fitting = [item for item in self.unused.get(kind, ()) if mark in (None, item.mark)]
        alike = fitting and all(item.made.attributes == fitting[-1].made.attributes for item in fitting)
        if not fitting or not (len(fitting) == 1 or (mark is not None and alike)):
            return None
        self.unused[kind] = [item for item in self.unused[kind] if item is not fitting[-1]]
        self.addresses.store(address, fitting[-1])
        return fitting[-1]

    def record_finalize_call(self, dump: DumpEntry, text: str = "") -> _DescriptorState:
        kind = dump.kind
        assert kind is not None
        item = self._get_open_descriptor(kind)
        self.open[kind] = [other for other in self.open[kind] if other is not item]
        item.mark = _hash_dump(dump)
        shown: dict[str, list[DumpEntry]] = {}
        for child in dump.children:
            shown.setdefault(find_logged_field(kind, child.key), []).append(child)
        for (name, number), address in item.pointers.items():
            children = shown.get(name, [])
            if number >= len(children):
                continue
            child = children[number]
            if child.kind is None:
                continue
            used = self._find_descriptor_at_address(address, child.kind, _hash_dump(child))
            item.made.attributes[name][number] = used.made if used else None
        if kind is DescriptorType.TENSOR:
            self.tensors.store(item.mark, item.made)
        elif kind.name.startswith("OPERATION_"):
            item.text = text
            self._count_characters_and_reset_above_limit(len(text))
        self._append_descriptor_and_drop_oldest(self.unused, kind, item)
        return item

    def record_destroy_call(self, dump: DumpEntry) -> None:
        """Forget the address of a destroyed descriptor, as it may be reused."""
        mark = _hash_dump(dump)
        gone = [key for key, item in self.addresses.items.items() if item.mark == mark]
        for key in gone:
            del self.addresses.items[key]

    def rebuild_finalized_graph(self, dump: DumpEntry, is_cut: bool) -> tuple[Graph, int]:
        """Return the graph of a finalized operation graph descriptor, and how many of its tensors have no logged calls.

        Of a dump that is cut off, the operations are those that were finalized, if they are as many as were given.
        """
        item = self.record_finalize_call(dump)
        self.unused.pop(DescriptorType.OPERATIONGRAPH, None)
        known = [self.addresses.get(address) for address in item.pointers.values()]
        left = [operation for operation in known if operation is not None]
        left += [one for kind, found in self.unused.items() if kind.name.startswith("OPERATION_") for one in found]
        shown = [child for child in dump.children if child.kind is not None and "OPERATION_" in child.kind.name]
        if is_cut:
            shown = [found for one in left if (found := parse_descriptor_dump(one.text)) is not None]
        given = item.count
        if (given or is_cut) and len(shown) != given:
            raise GraphError(
                f"the log has only {len(shown)} operations of a graph with {given or 'more'}",
                code="log-graph",
                fix="log from the start of the program",
            )
        ops: list[LoggedDescriptor | None] = []
        for child in shown:
            fitting = [operation for operation in left if operation.mark == _hash_dump(child)]
            ops.append(fitting[0].made if fitting else None)
            left = [operation for operation in left if not fitting or operation is not fitting[0]]
        for kind in [kind for kind in self.unused if kind.name.startswith("OPERATION_")]:
            self.unused[kind] = [one for one in self.unused[kind] if any(one is other for other in left)]
        whole = DumpEntry(dump.key, dump.type, dump.value, tuple(shown))
        tensors: dict[int, LoggedDescriptor | None] = {}
        _collect_dumped_tensors(whole, self.tensors, tensors)
        self._count_characters_and_reset_above_limit(0, _MAX_CALLS)
        return graph_from_descriptors(whole, tensors, ops), sum(made is None for made in tensors.values())


def _hash_dump(dump: DumpEntry) -> int:
    return hash((dump.type, dump.value, dump.children))


def _collect_dumped_tensors(
    dump: DumpEntry, known: LruDict[int, LoggedDescriptor], found: dict[int, LoggedDescriptor | None]
) -> None:
    """Add the tensors of a dump to `found`, by uid: each with the descriptor that its logged calls built, or None."""
    if dump.kind is DescriptorType.TENSOR:
        uid = next((child.value for child in dump.children if child.key == "uid"), None)
        if uid is not None and uid.isdecimal() and len(uid) < 20:
            found[int(uid)] = known.get(_hash_dump(dump))
    for child in dump.children:
        _collect_dumped_tensors(child, known, found)


def parse_descriptor_dump(text: str) -> DumpEntry | None:
    """Parse the dump of a descriptor in a log record; None if the dump is incomplete."""
    stack: list[tuple[int, str, str, str | None, list[DumpEntry]]] = []
    root: DumpEntry | None = None

    def end_deeper_entries(depth: int) -> None:
        nonlocal root
        while stack and stack[-1][0] >= depth:
            _, key, kind, value, children = stack.pop()
            made = DumpEntry(key, kind, value, tuple(children))
            if stack:
                stack[-1][4].append(made)
            else:
                root = made

    for line in text.splitlines()[1:]:
        key, is_field, rest = line.partition(": type=")
        if line.startswith(("Time:", "Process=")):
            break
        if not is_field:
            continue
        depth = len(key) - len(key.lstrip(" "))
        if depth > _MAX_DEPTH or (depth <= 4 and (stack or root is not None)):
            break
        kind, has_value, value = rest.rstrip(" \r").partition("; val=")
        end_deeper_entries(depth)
        stack.append((depth, key.strip(), kind.rstrip(":;"), value.removesuffix(";") if has_value else None, []))
    end_deeper_entries(0)
    return root if root is not None and root.key == "descriptor" and root.kind is not None else None
