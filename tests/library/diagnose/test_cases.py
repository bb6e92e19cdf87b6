"""Cases of public threads: each complaint still appears in cuDNN's message, its cause is named, its remedy helps."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache

import pytest

from cudnn_backend_py import GraphError, library
from cudnn_backend_py.diagnose import Judge, Outcome, Query, Verdict, whatif
from cudnn_backend_py.diagnose.engines import ENGINES_ABSENT
from tests.cases import CASES, CHANGES, Case, cudnn_threads, framework_threads
from tests.cases.case import Speaker

OUTCOMES = {"not supported": Outcome.NOT_SUPPORTED, "crash": Outcome.NOT_JUDGED, "supported": Outcome.SUPPORTED}
ASKED = [case for case in CASES if case.complaint != "refused by us"]
REFUSED = [case for case in CASES if case.complaint == "refused by us"]
FIXED = [case for case in CASES if case.fixed or case.fixed_target or case.fixed_version]
COMPLAINTS = [case for case in CASES if case.complaint != "supported"]
WITH_REMEDY = [case for case in ASKED if case.remedies]
NAMED, CURED = 0.9, 0.8


def _name(case: Case) -> str:
    return case.name


@pytest.fixture(scope="module")
def judge() -> Iterator[Judge]:
    with Judge(limit_s=120) as judge:
        yield judge


def _version(judge_case: str | None) -> str | None:
    """Return the version for the query: None for the library of this environment."""
    return None if judge_case == library().version_text else judge_case


JudgeFunction = Callable[[str], Verdict]


@pytest.fixture(scope="module")
def run_query(judge: Judge) -> JudgeFunction:
    """Return a function that judges the case of a name once."""
    cases = {case.name: case for case in CASES}

    @cache
    def judge_case(name: str) -> Verdict:
        case = cases[name]
        return judge.run_query(Query(case.graph(), case.target, _version(case.version), build=case.build))

    return judge_case


def _said(verdict: Verdict, where: Speaker) -> str:
    """Return cuDNN's message, or how its process ended; or our headline."""
    if where == "our headline":
        return verdict.cause.headline if verdict.cause else ""
    of_each = slice(1) if where == "innermost reason" else slice(None)
    reasons = [*verdict.reasons, *(reason for item in verdict.candidates for reason in item.reasons[of_each])]
    return "\n".join([*(reason.text for reason in reasons), *(item.detail for item in verdict.stages)])


def test_there_are_enough_cases_of_different_threads() -> None:
    assert len(cudnn_threads.CASES) >= 24
    assert len(framework_threads.CASES) >= 24
    assert len(COMPLAINTS) >= 40
    assert len({case.source for case in CASES}) == len({case.name for case in CASES}) == len(CASES)


@pytest.mark.parametrize("case", CASES, ids=_name)
def test_the_case_is_complete(case: Case) -> None:
    assert case.source.startswith("https://")
    assert case.title
    assert case.cause
    assert bool(case.cause_words) == (case in COMPLAINTS)
    assert case.remedy
    assert set(case.remedies) <= set(CHANGES)
    assert (case in FIXED) or not case.remedies


@pytest.mark.parametrize("case", ASKED, ids=_name)
def test_the_complaint_appears(run_query: JudgeFunction, case: Case) -> None:
    verdict = run_query(case.name)
    partial = verdict.cause is not None and verdict.cause.code == ENGINES_ABSENT  # refused by a JIT wheel's engines
    outcome = Outcome.NOT_SUPPORTED if partial else verdict.outcome
    assert outcome is OUTCOMES[case.complaint], verdict.cause
    assert case.says in _said(verdict, case.said_in)


@pytest.mark.parametrize("case", REFUSED, ids=_name)
def test_our_refusal_is_raised(case: Case) -> None:
    with pytest.raises(GraphError) as refused:
        case.graph()
    assert case.says in refused.value.headline


@pytest.mark.parametrize("case", FIXED, ids=_name)
def test_the_remedy_helps(judge: Judge, case: Case) -> None:
    graph = (case.fixed or case.graph)()
    version = _version(case.fixed_version or case.version)
    verdict = judge.run_query(Query(graph, case.fixed_target or case.target, version, build=case.build))
    assert verdict.supported, verdict.cause


def _headline(case: Case, run_query: JudgeFunction) -> str:
    try:
        cause = run_query(case.name).cause
    except GraphError as error:
        return error.render()
    return cause.headline if cause is not None else ""


def test_headlines_name_the_cause(run_query: JudgeFunction) -> None:
    missed = {}
    for case in COMPLAINTS:
        headline = _headline(case, run_query)
        if not all(word.lower() in headline.lower() for word in case.cause_words):
            missed[case.name] = (case.cause_words, headline)
    print(*missed.items(), sep="\n")
    assert 1 - len(missed) / len(COMPLAINTS) >= NAMED, missed


def test_remedies_are_found_and_verified(judge: Judge) -> None:
    missed = {}
    for case in WITH_REMEDY:
        graph, version = case.graph(), _version(case.version)
        found = whatif(graph, case.target, version=version, build=case.build, judge=judge)
        assert all(remedy.verified and remedy.verdict is not None and remedy.verdict.supported for remedy in found)
        if not any(set(remedy.kinds) & set(case.remedies) for remedy in found):
            missed[case.name] = (case.remedies, [remedy.title for remedy in found])
    print(*missed.items(), sep="\n")
    assert 1 - len(missed) / len(WITH_REMEDY) >= CURED, missed
