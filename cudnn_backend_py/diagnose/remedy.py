"""Remedies: changes with which cuDNN supports a refused graph, and how far they were searched for."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from ..graph import Graph, graph_to_json
from ..printable import format_in_angle_brackets
from ..rewrite.change_sequence import EFFECTS
from ..rewrite.changes import Effect
from ..system.notebook import HtmlDisplay
from .verdict import Verdict

if TYPE_CHECKING:
    from ..interpreter.compare import Comparison

__all__ = ["Remedies", "Remedy", "SearchExtent"]


@dataclass(frozen=True, repr=False)
class Remedy(HtmlDisplay):
    """One or two changes that make cuDNN support the graph.

    Parameters
    ----------
    title, steps
        What changes, as a whole and step by step: the tensor, the value found, the new value.
    effect
        ``exact``, ``changes numerics`` or ``idea``, as of :class:`~.changes.Change`; the weakest of the steps.
    graph, graphs
        The patched graph; where it is split, the first part, and all of them in the order they run.
    target, version
        What the verdict is for: those judged, or the change itself.
    kinds
        The kind of each step, one of :data:`~.changes.KINDS`.
    tensors
        Names of the tensors that change.
    verified
        Whether cuDNN was queried, and supports it.
    verdict
        What it said; of several parts, of the first.
    members
        For each step, which of the graphs before it was changed, counted from 0.
    comparison
        Of an exact change of the graph: what the interpreter's results for the graph and for the patched ones showed,
        see :func:`~cudnn_backend_py.interpreter.compare.compare`.
    """

    title: str
    effect: Effect
    steps: tuple[str, ...]
    graph: Graph
    target: str
    version: str | None
    verified: bool
    verdict: Verdict | None
    graphs: tuple[Graph, ...] = ()
    kinds: tuple[str, ...] = ()
    tensors: tuple[str, ...] = ()
    members: tuple[int, ...] = ()
    comparison: Comparison | None = None

    @property
    def effect_with_check(self) -> str:
        """The effect on the results, with a note on whether the results of an exact change were compared."""
        if self.comparison is None:
            return self.effect
        if self.comparison.state == "same":
            return f"{self.effect}, compared"
        return f"{self.effect} by its rule, not compared: {self.comparison.words}"

    def __repr__(self) -> str:
        where = f"{self.target}, cuDNN {self.version}" if self.version else self.target
        return format_in_angle_brackets(
            f"Remedy {self.effect}, {'' if self.verified else 'not '}verified on {where}: {self.title}"
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the remedy as plain data."""
        return {
            "title": self.title,
            "effect": self.effect,
            "comparison": self.comparison and asdict(self.comparison),
            "steps": list(self.steps),
            "kinds": list(self.kinds),
            "tensors": list(self.tensors),
            "target": self.target,
            "version": self.version,
            "verified": self.verified,
            "graphs": [graph_to_json(graph) for graph in self.graphs or (self.graph,)],
            "verdict": None if self.verdict is None else self.verdict.to_dict(),
        }

    @property
    def size(self) -> tuple[int, int, int, int]:
        """Sort key of remedies, smallest first: effect, steps, graphs, tensors."""
        elsewhere = {"target": 1, "version": 2}.get(self.kinds[-1], 0) if self.kinds else 0
        return (max(EFFECTS.index(self.effect), elsewhere), len(self.steps), len(self.graphs), len(self.tensors))


@dataclass(frozen=True)
class SearchExtent:
    """How far a search for remedies got.

    Parameters
    ----------
    checked, changes
        Changes of one step that were checked, and how many there are; None where the search ended before that was
        known.
    checked_pairs, pairs
        The same of changes of two steps, which are checked only where no single one leaves the results as they are.
    stopped
        Why the search ended before all that it looks at was checked; empty where it did not.
    """

    checked: int = 0
    changes: int | None = None
    checked_pairs: int = 0
    pairs: int | None = None
    stopped: str = ""

    @property
    def finished(self) -> bool:
        """Whether the search was complete, so that "no change was found" is an answer."""
        return not self.stopped

    def __str__(self) -> str:
        pairs = _format_checked_count(self.checked_pairs, self.pairs)
        return f"{_format_checked_count(self.checked, self.changes)} changes and {pairs} pairs of changes were checked"

    def to_dict(self) -> dict[str, Any]:
        """Return the extent as plain data."""
        return {"finished": self.finished, **asdict(self)}


def _format_checked_count(checked: int, count: int | None) -> str:
    return str(checked) if count is None else f"{checked} of {count}"


class Remedies(HtmlDisplay, list[Remedy]):
    """The remedies for one graph, shown next to it in notebooks, and how far the search got."""

    def __init__(self, graph: Graph, found: Iterable[Remedy], extent: SearchExtent | None = None) -> None:
        super().__init__(found)
        self.graph = graph
        self.extent = extent or SearchExtent()
