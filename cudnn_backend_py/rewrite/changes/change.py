"""`Change`: one step from a graph to another, and the registry of the functions that make changes, by kind."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

from ...errors import GraphError
from ...generated.enums import DescriptorType
from ...graph.guard import call_and_report_errors, iterate_and_report_errors
from ...graph.ir import Graph, Op, Operation, Tensor
from ...graph.replace import (
    iterate_all_ops,
    replace_tensors,
    try_to_make_graph,
)
from ...printable import format_in_angle_brackets
from ...system.notebook import HtmlDisplay

__all__ = [
    "ATTENTION",
    "CHANGES",
    "MAX_NAMED_TENSORS",
    "Change",
    "Effect",
    "Maker",
    "find_operations",
    "find_read_uids",
    "find_tensors_in_memory",
    "find_written_uids",
    "iterate_changes",
    "join_names",
    "register_change_maker",
    "yield_change",
    "yield_field_change",
    "yield_narrowable_changes",
    "yield_valid_change",
]

Effect = Literal["exact", "changes numerics", "idea"]
MAX_NAMED_TENSORS = 6  # in a title; the rest is counted
ATTENTION = (DescriptorType.OPERATION_SDPA_FWD, DescriptorType.OPERATION_SDPA_BWD)


@dataclass(frozen=True, repr=False, eq=False)
class Change(HtmlDisplay):
    """One change of a graph: its kind, its title, the effect on the results, and the changed graph.

    Parameters
    ----------
    kind
        One of :data:`KINDS`.
    title
        What changes: the tensor, the value found, the new value.
    effect
        ``exact``: the results are the same, where the caller does what the title says; ``changes numerics``: the same
        up to other rounding; ``idea``: something else is computed, so it is for the caller to say whether it will do.
    tensors
        Names of the tensors that change.
    made
        The changed graph; of a ``split`` its parts, in the order they run. Or a function that makes them, or returns
        None where no such graph can be made.
    narrow
        For a change of several tensors that is also one of some of them: returns that change, by their names.
    """

    kind: str
    title: str
    effect: Effect
    tensors: tuple[str, ...]
    made: tuple[Graph, ...] | Callable[[], tuple[Graph, ...] | None]
    narrow: Callable[[Collection[str]], Change | None] | None = None

    @cached_property
    def graphs(self) -> tuple[Graph, ...]:
        """The changed graph, or several graphs if it was split; empty if the change is impossible. Built on demand."""
        make = self.made
        if not callable(make):
            return make
        return call_and_report_errors(f"the change {self.kind}", None, lambda: try_to_make_graph(make)) or ()

    @property
    def graph(self) -> Graph:
        """The changed graph; the first one of a split graph.

        Raises
        ------
        GraphError
            ``change-impossible``: no such graph can be made.
        """
        if not self.graphs:
            raise GraphError(
                f"the graph would be invalid after the change {self.title!r}, so it cannot be made",
                code="change-impossible",
            )
        return self.graphs[0]

    @property
    def advice(self) -> str:
        """The text of the change for the user: its title, and its effect if the results differ."""
        return self.title if self.effect == "exact" else f"{self.title} ({self.effect})"

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the finished graphs instead of the function that makes them, which cannot be pickled."""
        return Change, (self.kind, self.title, self.effect, self.tensors, self.graphs)

    def __repr__(self) -> str:
        return format_in_angle_brackets(f"Change {self.kind}, {self.effect}: {self.title}")


Maker = Callable[[Graph], Iterator[Change]]
CHANGES: dict[str, Maker] = {}


def register_change_maker(name: str) -> Callable[[Maker], Maker]:
    """Return a decorator that registers a generator of changes under the name of their kind."""

    def add_maker(maker: Maker) -> Maker:
        CHANGES[name] = maker
        return maker

    return add_maker


def iterate_changes(graph: Graph, kinds: Collection[str] | None = None) -> Iterator[Change]:
    """Yield the one-step changes of a graph by kind; in each kind, those that keep the results come first.

    There may be several for each operation, so a changed graph is made when it is first read: see
    :attr:`Change.graphs`, which is empty where the graph cannot be made.

    Parameters
    ----------
    kinds
        Which of :data:`KINDS`, in this order; all of them if not given.
    """
    for kind in CHANGES if kinds is None else kinds:
        maker = CHANGES.get(kind)  # a target or a version is no change of the graph
        titles = set()
        made = () if maker is None else iterate_and_report_errors(f"the change {kind}", maker, graph)
        for change in made:
            if change.title not in titles:
                titles.add(change.title)
                yield change


def yield_valid_change(
    kind: str, title: str, effect: Effect, tensors: Iterable[Tensor], build: Callable[[], Graph | None]
) -> Iterator[Change]:
    """Yield the change if its graph is valid; build the graph at once."""
    yield from (change for change in yield_change(kind, title, effect, tensors, build) if change.graphs)


def yield_change(
    kind: str, title: str, effect: Effect, tensors: Iterable[Tensor], build: Callable[[], Graph | None]
) -> Iterator[Change]:
    """Yield a change that builds its graph on first use; its ``graphs`` are empty if that fails."""

    def build_graphs() -> tuple[Graph, ...] | None:
        graph = build()
        return None if graph is None else (graph,)

    yield Change(kind, title, effect, tuple(tensor.name for tensor in tensors), build_graphs)


def yield_field_change(
    kind: str, title: str, effect: Effect, graph: Graph, old: list[Tensor], **fields: Any
) -> Iterator[Change]:
    """Yield the change that sets fields of some tensors to a value, or to a function's result for each tensor."""

    def replace_tensor(tensor: Tensor) -> Tensor:
        return dataclasses.replace(
            tensor, **{name: value(tensor) if callable(value) else value for name, value in fields.items()}
        )

    if old:
        yield from yield_change(
            kind, title, effect, old, lambda: replace_tensors(graph, {t.uid: replace_tensor(t) for t in old})
        )


def yield_narrowable_changes(
    make: Callable[[list[Tensor]], Iterator[Change]], chosen: list[Tensor], together: Collection[int]
) -> Iterator[Change]:
    """Yield the changes that `make` yields for tensors, each with :attr:`Change.narrow` for some of them.

    Parameters
    ----------
    together
        Uids of tensors of which all or none change.
    """
    linked = {tensor.name for tensor in chosen if tensor.uid in together}

    def narrow(names: Collection[str]) -> Change | None:
        kept = [tensor for tensor in chosen if tensor.name in names]
        split = linked and linked - {*names} not in (set(), linked)
        return None if split or not kept else next(yield_narrowable_changes(make, kept, together), None)

    yield from (dataclasses.replace(change, narrow=narrow) for change in make(chosen))


def join_names(tensors: Iterable[Tensor]) -> str:
    """Join tensor names for a title; for more than 6 tensors, join 5 names and add how many are left."""
    names = [tensor.name for tensor in tensors]
    if len(names) <= MAX_NAMED_TENSORS:
        return ", ".join(names)
    shown = MAX_NAMED_TENSORS - 1
    return f"{', '.join(names[:shown])} and {len(names) - shown} more"


def find_tensors_in_memory(graph: Graph) -> list[Tensor]:
    """Return the tensors in the caller's buffers: neither virtual nor by value."""
    return [tensor for tensor in graph.tensors if not tensor.virtual and not tensor.by_value]


def find_written_uids(graph: Graph) -> set[int]:
    """Return the uids that operations write, including those of sub-graphs."""
    return {tensor.uid for op in iterate_all_ops(graph) for tensor in op.outputs().values()}


def find_read_uids(graph: Graph) -> set[int]:
    """Return the uids that operations read, including those of sub-graphs."""
    return {tensor.uid for op in iterate_all_ops(graph) for tensor in op.inputs().values()}


def find_operations(ops: Iterable[Op], kind: DescriptorType) -> Iterator[Operation]:
    """Return the operations of a kind."""
    return (op for op in ops if isinstance(op, Operation) and op.kind is kind)
