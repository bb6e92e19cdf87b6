"""Assertions on verdicts for any test framework; ``pytest_plugin`` offers them as fixtures."""

from __future__ import annotations

import re

from ..diagnose import Outcome, Verdict
from ..diagnose.judges import Judge, Query, judge
from ..diagnose.other_versions import add_version_remedy
from ..diagnose.report.summary import format_summary
from ..errors import CudnnBackendError
from ..graph import Graph

__all__ = ["assert_not_supported", "assert_supported"]


def assert_supported(
    graph: Graph, target: str = "gpu", version: str | None = None, build: bool = False, *, limit_s: float = 60.0
) -> Verdict:
    """Assert that cuDNN supports `graph`, and return the verdict.

    Parameters
    ----------
    target
        A described GPU (``sm90``), the path of a device JSON, or ``gpu`` for the one of this machine.
    version
        An installed cuDNN such as ``9.19.0``; None for the library this process would load.
    build
        Request a plan, too: compilation can fail where the support check passed.
    limit_s
        Seconds the question may take. It is queried in a child process, which later questions share.

    Raises
    ------
    AssertionError
        With the verdict as text, if the graph is not supported, and also if that could not be judged.
    UsageError
        ``unknown-target``.
    EnvironmentNotReady
        ``cudnn-version-not-installed``.
    """
    __tracebackhide__ = True
    question, verdict = _judge(graph, target, version, build, limit_s)
    if not verdict.supported:
        raise AssertionError(_format_verdict(verdict, question, limit_s))
    return verdict


def assert_not_supported(
    graph: Graph,
    target: str = "gpu",
    cause: str | None = None,
    version: str | None = None,
    build: bool = False,
    *,
    limit_s: float = 60.0,
) -> Verdict:
    """Assert that cuDNN does not support `graph`, and return the verdict.

    Parameters
    ----------
    cause
        The code its cause must have, such as ``shared-memory-per-block-insufficient``; any if None.
    target, version, build, limit_s
        As for :func:`assert_supported`.

    Raises
    ------
    AssertionError
        With the verdict as text, if the graph is supported, if it is refused for another cause, and also if that
        could not be judged.
    UsageError, EnvironmentNotReady
        As for :func:`assert_supported`.
    """
    __tracebackhide__ = True
    question, verdict = _judge(graph, target, version, build, limit_s)
    if verdict.outcome is not Outcome.NOT_SUPPORTED:
        raise AssertionError(f"expected: not supported\n{_format_verdict(verdict, question, limit_s)}")
    found = verdict.cause.code if verdict.cause is not None else "none"
    if cause not in (None, found):
        raise AssertionError(f"expected cause: {cause}, found: {found}\n{_format_verdict(verdict, question, limit_s)}")
    return verdict


def _judge(graph: Graph, target: str, version: str | None, build: bool, limit_s: float) -> tuple[Query, Verdict]:
    """Return the query and its verdict; errors are raised without traceback frames of this package."""
    __tracebackhide__ = True
    try:
        question = Query(graph, target, version, build=build or None)
        return question, judge(question, limit_s=limit_s)
    except CudnnBackendError as error:
        raise error.with_traceback(None) from None


def _format_verdict(verdict: Verdict, question: Query, limit_s: float) -> str:
    with Judge(limit_s=limit_s) as others:
        text = format_summary(add_version_remedy(verdict, question, others)).rstrip()
    return re.sub(r"\s+\((?:--cudnn|-v)\b[^)]*\)", "", text)  # options of the command line
