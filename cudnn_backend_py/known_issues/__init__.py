"""Known issues of cuDNN: graphs that it accepts but fails on, checked when graphs are built and judged."""

from __future__ import annotations

from ..errors import UsageError
from ..graph import Graph
from ..graph.attention.known_issue import AttentionUse, Form, KnownIssue, Sharing
from ..graph.attention.known_issues import HAZARDS, find_measured_issues, refuse_attention_with_known_issue
from ..graph.attention.recognize import read_attention
from ..system.version import Version, VersionTuple
from .find import (
    KnownIssueWarning,
    find_issues_explaining_failure,
    find_issues_of_attention_or_graph,
    silence_issue_warnings,
    warn_about_issues,
    warn_once,
)
from .table import FAULTS, FAULTS_BY_OPERATION, MEASURED

__all__ = [
    "FAULTS",
    "FAULTS_BY_OPERATION",
    "HAZARDS",
    "MEASURED",
    "AttentionUse",
    "Form",
    "KnownIssue",
    "KnownIssueWarning",
    "Sharing",
    "find_issues_against_version_change",
    "find_issues_explaining_failure",
    "find_issues_failing_before_execution",
    "find_issues_of_attention_or_graph",
    "find_known_issues",
    "find_measured_issues",
    "refuse_attention_with_known_issue",
    "silence_issue_warnings",
    "warn_about_issues",
    "warn_once",
]


def find_known_issues(
    graph: Graph, sm: int, version: VersionTuple | str | int, sharing: Sharing | None = None, engine: int | None = None
) -> list[KnownIssue]:
    """Return the known issues that affect a graph on an architecture with a cuDNN version.

    Those that are bound to the architecture come first.

    Parameters
    ----------
    graph
        Any graph; attention is recognised by its data flow, whoever wrote it.
    sm
        90 for sm_90.
    version
        ``(9, 19, 0)``, ``"9.19.0"`` or 91900.
    sharing
        How one plan is used for many shapes, for the known issues of such plans.
    engine
        Number of the engine that runs it; not known yet if not given.

    Source: :data:`FAULTS`. About 2 ms.

    Raises
    ------
    UsageError
        ``cudnn-version-malformed``, ``wrong-argument``.
    """
    if not isinstance(sm, int):
        raise UsageError(f"sm must be a number, such as 90 for sm_90; got {sm!r}", code="wrong-argument")
    try:
        used = Version.read(version)
    except ValueError as error:
        raise UsageError(str(error), code="cudnn-version-malformed") from None
    found = find_issues_of_attention_or_graph(
        read_attention(graph), graph, version=used, sm=sm, sharing=sharing, engine=engine
    )
    return sorted(found, key=lambda issue: not issue.sm)


def find_issues_against_version_change(
    graph: Graph, sm: int, version: VersionTuple, used: VersionTuple
) -> list[KnownIssue]:
    """Return the known issues of a graph that argue against changing from the used cuDNN version to `version`.

    These are the issues that certainly apply with `version`, and those that may apply with it but not with `used`.
    """
    there, here = find_known_issues(graph, sm, version), find_known_issues(graph, sm, used)
    return [issue for issue in there if not issue.depends_on or issue not in here]


def find_issues_failing_before_execution(graph: Graph, sm: int, version: VersionTuple) -> list[KnownIssue]:
    """Return the known issues that make cuDNN fail or end the process before the graph runs."""
    return [fault for fault in find_known_issues(graph, sm, version) if fault.step != "run"]
