"""Cases from public threads: cuDNN's message still appears, its cause is reported, and its remedy works."""

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


def _case_name(case: Case) -> str:
    return case.name


@pytest.fixture(scope="module")
def judge() -> Iterator[Judge]:
    with Judge(limit_s=120) as judge:
        yield judge


def _query_version(judge_case: str | None) -> str | None:
    """Return the version for the query, or None for the library of this environment."""
    return None if judge_case == library().version_text else judge_case


JudgeFunction = Callable[[str], Verdict]


@pytest.fixture(scope="module")
def judge_case_once(judge: Judge) -> JudgeFunction:
    """Return a function that judges the case of a name once."""
    cases = {case.name: case for case in CASES}

    @cache
    def judge_case(name: str) -> Verdict:
        case = cases[name]
        return judge.run_query(Query(case.graph(), case.target, _query_version(case.version), build=case.build))

    return judge_case


def _message_text(verdict: Verdict, where: Speaker) -> str:
    """Return cuDNN's messages, how its process ended, or this package's headline."""
    if where == "our headline":
        return verdict.cause.headline if verdict.cause else ""
    of_each = slice(1) if where == "innermost reason" else slice(None)
    reasons = [*verdict.reasons, *(reason for item in verdict.candidates for reason in item.reasons[of_each])]
    return "\n".join([*(reason.text for reason in reasons), *(item.detail for item in verdict.stages)])


def test_the_cases_come_from_enough_public_threads() -> None:
    assert len(cudnn_threads.CASES) >= 24
    assert len(framework_threads.CASES) >= 24
    assert len(COMPLAINTS) >= 40
    assert len({case.source for case in CASES}) == len({case.name for case in CASES}) == len(CASES)


@pytest.mark.parametrize("case", CASES, ids=_case_name)
def test_each_case_is_complete(case: Case) -> None:
    assert case.source.startswith("https://")
    assert case.title
    assert case.cause
    assert bool(case.cause_words) == (case in COMPLAINTS)
    assert case.remedy
    assert set(case.remedies) <= set(CHANGES)
    assert (case in FIXED) or not case.remedies


@pytest.mark.parametrize("case", ASKED, ids=_case_name)
def test_the_message_of_the_thread_appears(judge_case_once: JudgeFunction, case: Case) -> None:
    verdict = judge_case_once(case.name)
    partial = verdict.cause is not None and verdict.cause.code == ENGINES_ABSENT  # refused by a JIT wheel's engines
    outcome = Outcome.NOT_SUPPORTED if partial else verdict.outcome
    assert outcome is OUTCOMES[case.complaint], verdict.cause
    assert case.says in _message_text(verdict, case.said_in)


@pytest.mark.parametrize("case", REFUSED, ids=_case_name)
def test_the_refusal_of_this_package_is_raised(case: Case) -> None:
    with pytest.raises(GraphError) as refused:
        case.graph()
    assert case.says in refused.value.headline


@pytest.mark.parametrize("case", FIXED, ids=_case_name)
def test_the_remedy_makes_the_graph_supported(judge: Judge, case: Case) -> None:
    graph = (case.fixed or case.graph)()
    version = _query_version(case.fixed_version or case.version)
    verdict = judge.run_query(Query(graph, case.fixed_target or case.target, version, build=case.build))
    assert verdict.supported, verdict.cause


def _headline_of(case: Case, judge_case_once: JudgeFunction) -> str:
    try:
        cause = judge_case_once(case.name).cause
    except GraphError as error:
        return error.render()
    return cause.headline if cause is not None else ""


def test_headlines_name_the_cause(judge_case_once: JudgeFunction) -> None:
    missed = {}
    for case in COMPLAINTS:
        headline = _headline_of(case, judge_case_once)
        if not all(word.lower() in headline.lower() for word in case.cause_words):
            missed[case.name] = (case.cause_words, headline)
    print(*missed.items(), sep="\n")
    assert 1 - len(missed) / len(COMPLAINTS) >= NAMED, missed


def test_remedies_are_found_and_verified(judge: Judge) -> None:
    missed = {}
    for case in WITH_REMEDY:
        graph, version = case.graph(), _query_version(case.version)
        found = whatif(graph, case.target, version=version, build=case.build, judge=judge)
        assert all(remedy.verified and remedy.verdict is not None and remedy.verdict.supported for remedy in found)
        if not any(set(remedy.kinds) & set(case.remedies) for remedy in found):
            missed[case.name] = (case.remedies, [remedy.title for remedy in found])
    print(*missed.items(), sep="\n")
    assert 1 - len(missed) / len(WITH_REMEDY) >= CURED, missed
