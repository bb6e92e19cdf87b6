"""Cases from public threads: cuDNN's message still appears, its cause is reported, and its remedy works."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache

import pytest

from cudnn_backend_py import GraphError, library
from cudnn_backend_py.diagnose import Judge, Outcome, Query, Verdict, whatif
from cudnn_backend_py.diagnose.engines import ENGINES_MISSING_CODE
from tests.cases import CASES, REMEDY_KINDS, ReportedGraph, cudnn_reports, framework_reports
from tests.cases.case import MessageSource

OUTCOME_BY_COMPLAINT = {
    "not supported": Outcome.NOT_SUPPORTED,
    "crash": Outcome.NOT_JUDGED,
    "supported": Outcome.SUPPORTED,
}
JUDGED_CASES = [case for case in CASES if case.complaint != "refused by us"]
CASES_REFUSED_BY_PACKAGE = [case for case in CASES if case.complaint == "refused by us"]
CASES_WITH_FIXED_QUERY = [case for case in CASES if case.fixed_graph or case.fixed_target or case.fixed_version]
REFUSED_OR_CRASHING_CASES = [case for case in CASES if case.complaint != "supported"]
# One for each set of remedies: a search takes two seconds.
CASES_WITH_REMEDY = [*{case.remedy_kinds: case for case in JUDGED_CASES if case.remedy_kinds}.values()]
NAMED, CURED = 0.9, 0.8


def _get_case_name(case: ReportedGraph) -> str:
    return case.name


@pytest.fixture(scope="module")
def shared_judge() -> Iterator[Judge]:
    with Judge(limit_s=120) as shared_judge:
        yield shared_judge


def _get_query_version(judge_case: str | None) -> str | None:
    """Return the version for the query, or None for the library of this environment."""
    return None if judge_case == library().version_text else judge_case


JudgeFunction = Callable[[str], Verdict]


@pytest.fixture(scope="module")
def judge_case_once(shared_judge: Judge) -> JudgeFunction:
    """Return a function that judges the case with a given name, and keeps its verdict."""
    cases = {case.name: case for case in CASES}

    @cache
    def judge_case(name: str) -> Verdict:
        case = cases[name]
        return shared_judge.run_query(
            Query(case.graph(), case.target, _get_query_version(case.version), build=case.build)
        )

    return judge_case


def _get_message_text(verdict: Verdict, where: MessageSource) -> str:
    """Return the texts that may contain the reported message: cuDNN's messages and stages, or our headline."""
    if where == "our headline":
        return verdict.cause.headline if verdict.cause else ""
    of_each = slice(1) if where == "innermost reason" else slice(None)
    reasons = [*verdict.reasons, *(reason for item in verdict.candidates for reason in item.reasons[of_each])]
    return "\n".join([*(reason.text for reason in reasons), *(item.detail for item in verdict.stages)])


def test_the_cases_come_from_enough_public_reports() -> None:
    assert len(cudnn_reports.CASES) >= 24
    assert len(framework_reports.CASES) >= 24
    assert len(REFUSED_OR_CRASHING_CASES) >= 40
    assert len({case.source for case in CASES}) == len({case.name for case in CASES}) == len(CASES)


@pytest.mark.parametrize("case", CASES, ids=_get_case_name)
def test_each_reported_graph_case_is_complete(case: ReportedGraph) -> None:
    assert case.source.startswith("https://")
    assert case.title
    assert case.cause
    assert bool(case.cause_words) == (case in REFUSED_OR_CRASHING_CASES)
    assert case.remedy
    assert set(case.remedy_kinds) <= set(REMEDY_KINDS)
    assert (case in CASES_WITH_FIXED_QUERY) or not case.remedy_kinds


@pytest.mark.parametrize("case", JUDGED_CASES, ids=_get_case_name)
def test_the_verdict_has_the_message_of_the_public_report(judge_case_once: JudgeFunction, case: ReportedGraph) -> None:
    verdict = judge_case_once(case.name)
    partial = (
        verdict.cause is not None and verdict.cause.code == ENGINES_MISSING_CODE
    )  # refused by a JIT wheel's engines
    outcome = Outcome.NOT_SUPPORTED if partial else verdict.outcome
    assert outcome is OUTCOME_BY_COMPLAINT[case.complaint], verdict.cause
    assert case.expected_message in _get_message_text(verdict, case.message_source)


@pytest.mark.parametrize("case", CASES_REFUSED_BY_PACKAGE, ids=_get_case_name)
def test_graphs_that_this_package_refuses_raise_the_message(case: ReportedGraph) -> None:
    with pytest.raises(GraphError) as refused:
        case.graph()
    assert case.expected_message in refused.value.headline


@pytest.mark.parametrize("case", CASES_WITH_FIXED_QUERY, ids=_get_case_name)
def test_the_remedy_makes_the_graph_supported(shared_judge: Judge, case: ReportedGraph) -> None:
    graph = (case.fixed_graph or case.graph)()
    version = _get_query_version(case.fixed_version or case.version)
    verdict = shared_judge.run_query(Query(graph, case.fixed_target or case.target, version, build=case.build))
    assert verdict.supported, verdict.cause


def _get_headline(case: ReportedGraph, judge_case_once: JudgeFunction) -> str:
    try:
        cause = judge_case_once(case.name).cause
    except GraphError as error:
        return error.render()
    return cause.headline if cause is not None else ""


def test_headlines_name_the_cause(judge_case_once: JudgeFunction) -> None:
    missed = {}
    for case in REFUSED_OR_CRASHING_CASES:
        headline = _get_headline(case, judge_case_once)
        if not all(word.lower() in headline.lower() for word in case.cause_words):
            missed[case.name] = (case.cause_words, headline)
    print(*missed.items(), sep="\n")
    assert 1 - len(missed) / len(REFUSED_OR_CRASHING_CASES) >= NAMED, missed


def test_remedies_are_found_and_verified(shared_judge: Judge) -> None:
    missed = {}
    for case in CASES_WITH_REMEDY:
        graph, version = case.graph(), _get_query_version(case.version)
        found = whatif(graph, case.target, version=version, build=case.build, judge=shared_judge)
        assert all(remedy.verified and remedy.verdict is not None and remedy.verdict.supported for remedy in found)
        if not any(set(remedy.kinds) & set(case.remedy_kinds) for remedy in found):
            missed[case.name] = (case.remedy_kinds, [remedy.title for remedy in found])
    print(*missed.items(), sep="\n")
    assert 1 - len(missed) / len(CASES_WITH_REMEDY) >= CURED, missed
