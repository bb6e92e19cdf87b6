"""Judge the published results of real GPUs again: ``python -m tools.records.published_results FILE``.

Each is judged with its own cuDNN version; one that is not installed leaves its results unjudged.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path

from cudnn_backend_py.diagnose import Judge, Outcome, Query
from cudnn_backend_py.diagnose.evidence import PUBLISHED_RESULTS, PublishedResult
from cudnn_backend_py.diagnose.verdict import Candidate, Verdict
from cudnn_backend_py.errors import EnvironmentNotReady
from cudnn_backend_py.plans.candidate import CANNOT_LOAD

__all__ = ["AGREES", "DISAGREES", "NOT_INSTALLED", "UNJUDGEABLE", "judge_published_results"]

AGREES, DISAGREES, UNJUDGEABLE, NOT_INSTALLED = "agrees", "disagrees", "unjudgeable", "its cuDNN is not installed"
_WORST_FIRST = (DISAGREES, NOT_INSTALLED, UNJUDGEABLE, AGREES)
_TIME_LIMIT_S = 300.0


def judge_published_results(judge: Judge | None = None) -> dict[str, tuple[str, str]]:
    """Return for each published result whether it agrees, and why not; the worst of the graphs that it names."""
    own = judge or Judge(limit_s=_TIME_LIMIT_S)
    found: dict[str, tuple[str, str]] = {}
    for row in PUBLISHED_RESULTS:
        answer = _judge_published_result(own, row)
        before = found.get(row.result, answer)
        found[row.result] = min(before, answer, key=lambda one: _WORST_FIRST.index(one[0]))
    return found


def _judge_published_result(judge: Judge, row: PublishedResult) -> tuple[str, str]:
    if row.unjudgeable:
        return UNJUDGEABLE, row.unjudgeable
    try:
        question = Query(row.graph(), row.target, row.version_name, row.modes, build=row.build, causes=False)
    except EnvironmentNotReady:
        return NOT_INSTALLED, row.version_name
    difference = _describe_difference_from_published(row, judge.run_query(question))
    return (DISAGREES, difference) if difference else (AGREES, "")


def _describe_difference_from_published(row: PublishedResult, verdict: Verdict) -> str:
    """Return how a verdict differs from a published result; empty where it does not."""
    if verdict.outcome is Outcome.NOT_JUDGED or verdict.supported != row.supported:
        return f"the verdict is: {verdict.outcome}"
    if row.fails and verdict.candidates[0].state not in ("build failed", CANNOT_LOAD):
        return f"the first config {verdict.candidates[0].tag} is: {verdict.candidates[0].state}"
    first = verdict.first
    if row.tag and (first is None or not _has_tag(first, row.tag)):
        return f"the first config is {first and first.tag}, not {row.tag}"
    if row.kernels is not None and (first is None or len(first.kernels or ()) != row.kernels):
        return f"the plan does not have {row.kernels} kernels that are compiled at run time"
    passed = [one for one in verdict.candidates if one.state in ("supported", "built")]
    for mode, tag in row.offers:
        if not any(one.mode == mode and _has_tag(one, tag) for one in passed):
            return f"mode {mode} offers no {tag} that passes"
    return ""


def _has_tag(candidate: Candidate, tag: str) -> bool:
    """Return whether a config has a tag, or the engine that the tag consists of."""
    return candidate.tag == tag or candidate.tag.startswith(f"{tag}_")


def main() -> None:
    """Judge all published results, and write a record with the counts."""
    found = judge_published_results()
    expected = {row.result: row.disagrees for row in PUBLISHED_RESULTS if row.disagrees}
    record = {
        "schema": "cudnn-backend-py/published-results",
        "results": len(found),
        "graphs": sum(not row.unjudgeable for row in PUBLISHED_RESULTS),
        "counts": Counter(state for state, _ in found.values()),
        "all": [
            {
                "result": name,
                "state": state,
                "reason": "; ".join(filter(None, (reason, expected.get(name)))),
                "cudnn": sorted({row.version_name for row in PUBLISHED_RESULTS if row.result == name}),
                "sources": sorted({row.source for row in PUBLISHED_RESULTS if row.result == name}),
            }
            for name, (state, reason) in found.items()
        ],
    }
    Path(sys.argv[1]).write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
