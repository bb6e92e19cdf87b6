"""Public cases that were not used to tune this package: most headlines are right, none misleads."""

from __future__ import annotations

import pytest

from cudnn_backend_py import library
from cudnn_backend_py.diagnose import Judge, Query, Verdict
from cudnn_backend_py.known_issues import FAULTS
from tests.cases.public import PUBLIC_CASES, PublicStatementCase, contains_all_words

# Shares of right headlines when the cases were counted; an answer may become better, not worse.
MIN_RIGHT_SHARE = {
    ("attention", "work"): 0.96,
    ("attention", "sealed"): 0.88,
    ("other", "work"): 0.93,
    ("other", "sealed"): 0.7,
}

# Known issues that depend on more than the graph, and name it: they do not contradict support of a graph.
CONDITIONAL_ISSUE_CODES = [f"({fault.code}" for fault in FAULTS if fault.depends_on]


def get_verdict_text(verdict: Verdict) -> str:
    cause = verdict.cause
    said = () if cause is None else (cause.headline, cause.detail, cause.remedy)
    return " ".join((*said, *verdict.hazards)).lower()


def is_headline_right_for_case(case: PublicStatementCase, verdict: Verdict) -> bool:
    """Return whether the headline is true and has the required words."""
    headline = "" if verdict.cause is None else verdict.cause.headline
    if case.truth == "supported":
        return verdict.supported and all(
            any(name in one for name in CONDITIONAL_ISSUE_CODES) for one in verdict.hazards
        )
    if case.truth == "accepted and wrong":
        return bool(verdict.hazards) and contains_all_words(" ".join(verdict.hazards), case.headline_words)
    return not verdict.supported and contains_all_words(headline, case.headline_words)


def test_the_public_cases_have_different_names() -> None:
    assert len({case.name for case in PUBLIC_CASES}) == len(PUBLIC_CASES) > 100


@pytest.mark.parametrize(("area", "half"), list(MIN_RIGHT_SHARE))
def test_headlines_are_right_and_do_not_mislead(area: str, half: str) -> None:
    cases = [case for case in PUBLIC_CASES if (case.area, case.half) == (area, half)]
    own, wrong, misleading = library().version_text, [], []
    with Judge() as judge:
        for case in cases:
            version = None if case.version == own else case.version
            verdict = judge.run_query(Query(case.make_graph(), case.target, version, build=case.build))
            wrong += [] if is_headline_right_for_case(case, verdict) else [case.name]
            misleading += [case.name for words in case.must_not_say if words.lower() in get_verdict_text(verdict)]
    print(f"{area}, {half}: {len(cases) - len(wrong)} of {len(cases)} headlines are right")
    assert misleading == []
    assert 1 - len(wrong) / len(cases) >= MIN_RIGHT_SHARE[area, half], wrong if half == "work" else len(wrong)
