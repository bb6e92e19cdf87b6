"""`ChangeSequence`: a sequence of changes of a graph, with the graphs that replace the original."""

from __future__ import annotations

from collections.abc import Sequence

from ..frozen import FrozenValue
from ..graph.ir import Graph, Tensor
from ..graph.replace import replace_tensors, try_to_make_graph
from .changes import Change, Effect, iterate_changes

__all__ = ["EFFECTS", "ChangeSequence", "find_change_sequence"]

#: The effects of changes, that of the least consequence first.
EFFECTS: tuple[Effect, ...] = ("exact", "changes numerics", "idea")


class ChangeSequence(FrozenValue):
    """Consecutive changes of a graph; the resulting graphs together compute the same as the original.

    Parameters
    ----------
    steps
        The changes, in order.
    members
        For each step, which of the graphs before it was changed, counted from 0.
    graphs
        The graphs that are left, in the order in which they run. A tensor in memory of several of them, such as one
        that one writes and a later one reads, has the same uid and the same description in all.
    """

    steps: tuple[Change, ...]
    members: tuple[int, ...]
    graphs: tuple[Graph, ...]

    @classmethod
    def from_change(cls, change: Change) -> ChangeSequence:
        """Return the sequence that consists of one change."""
        return cls((change,), (0,), change.graphs)

    def apply_change(self, member: int, change: Change) -> ChangeSequence | None:
        """Return the sequence extended by a change of one of its graphs; None if the graphs no longer fit together.

        A tensor in memory of several graphs gets its new strides, type and alignment in all of them; its dims cannot
        change.
        """
        graphs = try_to_make_graph(lambda: _change_one_graph(self.graphs, member, change))
        return None if graphs is None else ChangeSequence((*self.steps, change), (*self.members, member), graphs)

    @property
    def title(self) -> str:
        """The titles of the changes, joined in order."""
        return "; then ".join(step.title for step in self.steps)

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kind of each change, in order."""
        return tuple(step.kind for step in self.steps)

    @property
    def effect(self) -> Effect:
        """The combined effect of all changes on the results."""
        return max((step.effect for step in self.steps), key=EFFECTS.index)

    @property
    def tensors(self) -> tuple[str, ...]:
        """Names of the changed tensors."""
        return tuple(dict.fromkeys(name for step in self.steps for name in step.tensors))


def find_change_sequence(
    graph: Graph, kinds: Sequence[str], titles: Sequence[str], members: Sequence[int]
) -> ChangeSequence | None:
    """Return the sequence of changes with these kinds and titles; None if the graph has no such changes."""
    found: ChangeSequence | None = None
    for kind, title, member in zip(kinds, titles, members, strict=True):
        before = graph if found is None else found.graphs[member]
        change = next((one for one in iterate_changes(before, (kind,)) if one.title == title), None)
        if change is None or not change.graphs:
            return None
        found = ChangeSequence.from_change(change) if found is None else found.apply_change(member, change)
        if found is None:
            return None
    return found


def _change_one_graph(graphs: tuple[Graph, ...], member: int, change: Change) -> tuple[Graph, ...] | None:
    """Return the graphs after a change of one of them; tensors that it shares change in the other graphs as well."""
    if not change.graphs:
        return None
    others = [one for at, one in enumerate(graphs) if at != member]
    shared = {tensor.uid for one in others for tensor in one.tensors if not tensor.virtual}
    passed = {tensor.uid for one in graphs for tensor in one.outputs} & shared
    new: dict[int, Tensor] = {}
    for old in graphs[member].tensors:
        if old.virtual or old.uid not in shared:
            continue
        described = {tensor for one in change.graphs for tensor in one.tensors if tensor.uid == old.uid}
        if not described and old.uid not in passed:
            continue
        if len(described) != 1:
            return None
        tensor = described.pop()
        if tensor.virtual or (tensor.name, tensor.dims) != (old.name, old.dims):
            return None
        if tensor != old:
            new[tensor.uid] = tensor
    fitting = tuple(replace_tensors(one, new) if new else one for one in graphs)
    return (*fitting[:member], *change.graphs, *fitting[member + 1 :])
