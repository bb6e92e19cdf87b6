"""Find known issues for ``explain``, the attention builder, the frontend and plans, and warn about them."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from ..graph.attention.known_issue import AttentionUse, KnownIssue, Sharing
from ..graph.attention.known_issues import (
    FURTHER_CHECKS,
    find_matching_issues,
    is_issue_applicable,
    raise_known_issue_error,
)
from ..graph.attention.recognize import read_attention
from ..graph.ir import Graph, Op
from ..graph.replace import try_to_make_graph
from ..system.version import VersionTuple
from .table import FAULTS

__all__ = [
    "KnownIssueWarning",
    "find_issues_explaining_failure",
    "find_issues_of_attention_or_graph",
    "refuse_or_warn_about_known_issues",
    "silence_issue_warnings",
    "warn_about_issues",
    "warn_once",
]


class KnownIssueWarning(UserWarning):
    """Warns that a graph being built has a known issue with this cuDNN version and architecture."""


_warned: set[tuple[type[KnownIssueWarning], str]] = set()  # with codes of issues
_silent: ContextVar[bool] = ContextVar("silent", default=False)


@contextmanager
def silence_issue_warnings() -> Iterator[None]:
    """Suppress warnings of known issues in a block: for graphs that are built for a verdict and never run."""
    token = _silent.set(True)
    try:
        yield
    finally:
        _silent.reset(token)


def find_issues_of_attention_or_graph(
    use: AttentionUse | None,
    graph: Graph | None = None,
    *,
    version: VersionTuple | None = None,
    sm: int | None = None,
    sharing: Sharing | None = None,
    engine: int | None = None,
) -> Iterator[KnownIssue]:
    """Return the known issues that affect attention or a graph with this cuDNN version and architecture.

    See :func:`~cudnn_backend_py.graph.attention.known_issues.find_matching_issues`.
    """
    return find_matching_issues(FAULTS, use, graph, version=version, sm=sm, sharing=sharing, engine=engine)


def find_issues_explaining_failure(
    graph: Graph, wrong: Iterable[str], *, engine: int | None, version: VersionTuple, sm: int
) -> list[KnownIssue]:
    """Return the known issues that explain the wrong outputs of a run; empty unless they explain all of them.

    An issue explains a wrong output only if its condition also holds for the operations that compute that output, and
    if it was seen on the engine that ran. Conditions on attention are checked for the whole graph.

    Parameters
    ----------
    wrong
        Names of the wrong outputs; empty if they are not known, as for a kernel that failed.
    engine
        The number of the engine.
    """
    met = list(find_issues_of_attention_or_graph(read_attention(graph), graph, version=version, sm=sm, engine=engine))
    found: list[KnownIssue] = []
    for name in dict.fromkeys(wrong):
        part = _extract_graph_computing_tensor(graph, name)
        says = [issue for issue in met if issue.graph is None or part is None or is_issue_applicable(issue, None, part)]
        if not says:
            return []
        found += [issue for issue in says if issue not in found]
    return found if wrong else met


def _extract_graph_computing_tensor(graph: Graph, name: str) -> Graph | None:
    """Return the graph of the operations that compute a tensor; None if they form no valid graph."""
    needed = {tensor.uid for tensor in graph.tensors if tensor.name == name}
    ops: list[Op] = []
    for op in reversed(graph.ops):
        if any(tensor.uid in needed for tensor in op.outputs().values()):
            ops.append(op)
            needed |= {tensor.uid for tensor in op.inputs().values()}
    return try_to_make_graph(lambda: Graph(tuple(reversed(ops)), graph.name)) if ops else None


def warn_about_issues(issues: Iterable[KnownIssue], category: type[KnownIssueWarning] = KnownIssueWarning) -> None:
    """Warn about known issues, once per issue and process."""
    for issue in issues:
        said = issue.evidence or issue.source
        warn_once(
            issue.code,
            f"cuDNN gets this wrong ({issue.code}): {issue.what}. {issue.effect}; {said}. Fix: {issue.fix}",
            category,
        )


def warn_once(code: str, text: str, category: type[KnownIssueWarning]) -> None:
    """Warn with a text about a known issue, once per issue code and process."""
    if (category, code) not in _warned and not _silent.get():
        _warned.add((category, code))
        warnings.warn(text, category, stacklevel=4)


def refuse_or_warn_about_known_issues(use: AttentionUse) -> None:
    """Raise if attention has a known issue that builders refuse; warn about its other known issues.

    The warning, :class:`KnownIssueWarning`, needs the version and, where the issue is bound to some, the architecture.
    Issues that others reported and that depend on values at run time are listed in verdicts, without a warning.

    Raises
    ------
    GraphError
        ``attention-hazard``.
    """
    found = list(find_issues_of_attention_or_graph(use, version=use.version, sm=use.sm))
    for issue in found:
        if issue.refused:
            raise_known_issue_error(issue, use)
    if use.version is not None:
        certain = (issue for issue in found if issue.evidence or not issue.depends_on)
        warn_about_issues(issue for issue in certain if use.sm is not None or not issue.sm)


FURTHER_CHECKS.append(refuse_or_warn_about_known_issues)
