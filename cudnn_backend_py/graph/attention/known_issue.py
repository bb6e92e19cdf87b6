"""`KnownIssue`: graphs that cuDNN accepts but computes wrong, with condition, versions, symptom and source."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Literal

from ...frozen import FrozenValue
from ...system.version import VersionRange, VersionTuple
from ..ir import Graph
from .problem import Attention

__all__ = ["AttentionUse", "Form", "KnownIssue", "Sharing", "Step"]

Step = Literal["check", "build", "run"]
Sharing = Literal["kernel cache", "override shapes"]
Form = Literal["expanded", "single operations", "unified"]


class AttentionUse(FrozenValue):
    """How an attention problem is run: forward or backward, unified or composite; cuDNN version and sm if known."""

    problem: Attention
    backward: bool
    form: Form
    version: VersionTuple | None = None
    sm: int | None = None


class KnownIssue(FrozenValue):
    """A graph or use of attention that cuDNN accepts but computes wrong, fails on or crashes on.

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

    code: str
    what: str
    effect: str
    fix: str
    source: str
    evidence: str = ""
    versions: VersionRange = VersionRange()
    sm: tuple[int, ...] = ()
    engines: tuple[int, ...] = ()
    attention: Callable[[AttentionUse], bool] | None = None
    graph: Callable[[Graph], bool] | None = None
    depends_on: str = ""
    refused: bool = False
    step: Step = "run"
    sharing: Sharing | None = None

    def affects_version(self, version: VersionTuple | None, sm: int | None) -> bool:
        """Return whether this cuDNN version and architecture is affected; None counts as affected."""
        return (version is None or version in self.versions) and (sm is None or not self.sm or sm in self.sm)

    def affects_engine(self, engine: int | None) -> bool:
        """Return whether an engine is affected; None (unknown) is not if ``engines`` and ``depends_on`` are set."""
        return not (self.engines and self.depends_on) if engine is None else not self.engines or engine in self.engines

    def applies_to(self, use: AttentionUse | None, graph: Graph | None) -> bool:
        """Return whether the condition applies to a use of attention or a graph."""
        if self.attention is not None:
            return use is not None and self.attention(use)
        return self.graph is not None and graph is not None and self.graph(graph)

    @property
    def is_measured(self) -> bool:
        """Whether this known issue was measured for this package; the others come from public reports."""
        return bool(self.evidence)

    @property
    def source_project(self) -> str:
        """The repository or site of the source's address, such as ``NVIDIA/cudnn-frontend``, or "this package"."""
        found = re.match(r"https://(?:github\.com/([^/]+/[^/]+)|([^/]+))", self.source)
        return "this package" if found is None else found[1] or found[2]

    @property
    def since(self) -> VersionTuple:
        """The first cuDNN version known to be affected."""
        return self.versions.since

    @property
    def until(self) -> VersionTuple | None:
        """The first cuDNN version known to be fixed, or None."""
        return self.versions.until

    @property
    def version_range_text(self) -> str:
        """The affected cuDNN versions as text."""
        return str(self.versions)

    @property
    def excludes_plans(self) -> bool:
        """Whether it says that no plan can be built, which a plan that was built disproves."""
        return "no plan can be built" in self.effect

    def __str__(self) -> str:
        source = self.source if self.source.startswith("https://") else self.evidence
        return f"{self.what} ({self.code}, {self.version_range_text}): {self.effect}; {self.fix}; {source}"
