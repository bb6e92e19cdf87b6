"""Measured known issues of attention: cuDNN accepts these graphs and fails, so the builder refuses them.

The rows are in this room, so that nothing else has to be there for a refusal. Layers above know more issues; what they
also check of a problem they add to :data:`FURTHER_CHECKS`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from ...errors import GraphError
from ...system.version import VersionRange, VersionTuple
from ..guard import call_and_report_errors
from ..ir import Graph
from .known_issue import AttentionUse, KnownIssue, Sharing
from .measured import MEASURED_ATTENTION

__all__ = [
    "BOUNDED_TOTAL",
    "FRONTEND_NODE",
    "FURTHER_CHECKS",
    "HAZARDS",
    "SM80_KERNELS",
    "find_matching_issues",
    "find_measured_issues",
    "has_bounded_total_length_issue",
    "is_issue_applicable",
    "raise_known_issue_error",
    "refuse_attention_with_known_issue",
]

SM80_KERNELS = (80, 86, 87, 89, 120, 121)  # architectures whose attention kernels are those of sm_80
FRONTEND_NODE = (
    "https://github.com/NVIDIA/cudnn-frontend/blob/main/include/cudnn_frontend/node/"
    "scaled_dot_product_flash_attention.h"
)

BOUNDED_TOTAL = KnownIssue(
    "bounded-total-ampere-kernels",
    what="max_total_seq_q or max_total_seq_kv in a backward pass",
    effect="a known issue of the Ampere-style kernels; cudnn-frontend leaves the bounds out",
    fix="leave max_total_seq_q and max_total_seq_kv out",
    source=FRONTEND_NODE,
    sm=SM80_KERNELS,
    versions=VersionRange(since=(9, 18, 1)),
    attention=lambda use: use.backward
    and (use.problem.max_total_seq_q is not None or use.problem.max_total_seq_kv is not None),
)

HAZARDS = tuple(issue for issue in MEASURED_ATTENTION if issue.refused)

#: What else is checked of each problem that is built.
FURTHER_CHECKS: list[Callable[[AttentionUse], None]] = []


def find_matching_issues(
    issues: Iterable[KnownIssue],
    use: AttentionUse | None,
    graph: Graph | None = None,
    *,
    version: VersionTuple | None = None,
    sm: int | None = None,
    sharing: Sharing | None = None,
    engine: int | None = None,
) -> Iterator[KnownIssue]:
    """Yield the given known issues that affect a use of attention with this cuDNN version and architecture.

    What is not known, a version or an architecture of None, may be the worst. With `sharing` those of one plan for
    many shapes, without it the others. Where the engine is not known, issues are left out of which other engines are
    free. A condition that fails costs its own row and a line of the verdict.
    """
    for issue in issues:
        if (
            issue.sharing == sharing
            and issue.affects_version(version, sm)
            and issue.affects_engine(engine)
            and is_issue_applicable(issue, use, graph)
        ):
            yield issue


def is_issue_applicable(issue: KnownIssue, use: AttentionUse | None, graph: Graph | None) -> bool:
    """Return whether the condition of a known issue applies; False if its evaluation fails."""
    return call_and_report_errors(f"the condition {issue.code}", False, issue.applies_to, use, graph)


def find_measured_issues(use: AttentionUse) -> Iterator[KnownIssue]:
    """Yield the known issues that make a builder refuse a use of attention."""
    return find_matching_issues(HAZARDS, use, version=use.version, sm=use.sm)


def has_bounded_total_length_issue(use: AttentionUse) -> bool:
    """Return whether cuDNN computes wrong results because the problem declares upper bounds on its total lengths."""
    found = find_matching_issues((*MEASURED_ATTENTION, BOUNDED_TOTAL), use, version=use.version, sm=use.sm)
    return any(issue.code.startswith("bounded-total") for issue in found)


def refuse_attention_with_known_issue(use: AttentionUse) -> None:
    """Raise if attention has a measured known issue; if not, run the checks in :data:`FURTHER_CHECKS`.

    Raises
    ------
    GraphError
        ``attention-hazard``.
    """
    for issue in find_measured_issues(use):
        raise_known_issue_error(issue, use)
    for check in FURTHER_CHECKS:
        check(use)


def raise_known_issue_error(issue: KnownIssue, use: AttentionUse) -> None:
    """Raise the error that refuses a use of attention because of a known issue."""
    what = "backward" if use.backward else "forward"
    raise GraphError(
        f"cuDNN gets this wrong: {issue.what}",
        code="attention-hazard",
        where=f"attention {what} pass, {use.form} form ({issue.code})",
        cause=f"{issue.effect}; {issue.evidence}",
        fix=f"{issue.fix}; allow_hazards=True builds the graph nevertheless",
    )
