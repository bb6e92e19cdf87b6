"""`KnownIssue`: something cuDNN accepts and then gets wrong: which graphs, where, what happens, and the source."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from ...system.version import VersionTuple, Window
from ..ir import Graph
from .problem import Attention

__all__ = ["Form", "KnownIssue", "Sharing", "Step", "Use"]

Step = Literal["check", "build", "run"]
Sharing = Literal["kernel cache", "override shapes"]
Form = Literal["expanded", "single operations", "unified"]


@dataclass(frozen=True)
class Use:
    """How a problem is run: direction, form of the graph, cuDNN version and architecture, if they are known."""

    problem: Attention
    backward: bool
    form: Form
    version: VersionTuple | None = None
    sm: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownIssue:
    """Something that cuDNN accepts and then gets wrong, with a condition on one use of attention or on a graph.

    Graphs that show it are in ``tests/known_issues``, under its code.

    Parameters
    ----------
    code
        Its name, which stays.
    what, effect, fix
        Which graphs, what happens, what to do.
    source
        Who reports it: an address, or the program that shows it.
    evidence
        What was measured for this package; empty for what others reported.
    attention, graph
        The condition, one of the two: on attention, which is recognized in any graph; or on the graph itself.
    versions, sm, engines
        Where it holds. Architectures and engines are those on which it was seen; empty if it is bound to none.
    depends_on
        What no graph shows and decides at run time, such as lengths of 0 or what ran before; empty for most.
    refused
        Whether ``sdpa_forward`` and ``sdpa_backward`` refuse it unless told otherwise.
    step
        Where it shows: the support check or the compilation ends the process or fails, or the results are wrong.
    sharing
        How one plan is used for many shapes, if that is what goes wrong; such a row is about no other plan.
    """

    code: str = field(kw_only=False)
    what: str
    effect: str
    fix: str
    source: str
    evidence: str = ""
    versions: Window = field(default_factory=Window)
    sm: tuple[int, ...] = ()
    engines: tuple[int, ...] = ()
    attention: Callable[[Use], bool] | None = None
    graph: Callable[[Graph], bool] | None = None
    depends_on: str = ""
    refused: bool = False
    step: Step = "run"
    sharing: Sharing | None = None

    def holds_in(self, version: VersionTuple | None, sm: int | None) -> bool:
        """Return whether it holds in a version on an architecture; one that is not known may be affected."""
        return (version is None or version in self.versions) and (sm is None or not self.sm or sm in self.sm)

    def holds_by(self, engine: int | None) -> bool:
        """Return whether it holds by an engine; where that is not known, whether no other engine is free of it."""
        return not (self.engines and self.depends_on) if engine is None else not self.engines or engine in self.engines

    def concerns(self, use: Use | None, graph: Graph | None) -> bool:
        """Return whether a use of attention, or a graph, is one of those it is about."""
        if self.attention is not None:
            return use is not None and self.attention(use)
        return self.graph is not None and graph is not None and self.graph(graph)

    @property
    def measured(self) -> bool:
        """Whether it was measured for this package; the others were reported in public."""
        return bool(self.evidence)

    @property
    def reporter(self) -> str:
        """Who says so, in a word: the project that the source belongs to."""
        found = re.match(r"https://(?:github\.com/([^/]+/[^/]+)|([^/]+))", self.source)
        return "this package" if found is None else found[1] or found[2]

    @property
    def since(self) -> VersionTuple:
        """The first version known to have it."""
        return self.versions.since

    @property
    def until(self) -> VersionTuple | None:
        """The first version known to be right, None if none is."""
        return self.versions.until

    @property
    def window(self) -> str:
        """The versions as text."""
        return str(self.versions)

    def __str__(self) -> str:
        return f"{self.what}: {self.effect} ({self.code}, {self.window}); {self.fix}; {self.source}"
