"""Real complaints from public threads: the headline names the cause, and a verified cure of a known kind is found."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from cudnn_backend_py import GraphError
from cudnn_backend_py.diagnose import Judge, Question, whatif
from tests.cases import Case, part_a, part_b

CASES = [case for case in (*part_a.CASES, *part_b.CASES) if case.complaint != "supported"]
CURABLE = [case for case in CASES if case.cures and case.complaint != "refused by us"]
NEWEST = ("9.28.0", None)
NAMED, CURED = 0.9, 0.8


@pytest.fixture(scope="module")
def judge() -> Iterator[Judge]:
    with Judge() as one:
        yield one


def version_of(case: Case) -> str | None:
    return None if case.version in NEWEST else case.version


def headline_of(case: Case, judge: Judge) -> str:
    try:
        graph = case.graph()
    except GraphError as error:
        return error.render()
    cause = judge.ask(Question(graph, case.target, version_of(case), build=case.build)).cause
    return cause.headline if cause is not None else ""


def test_there_are_enough_cases() -> None:
    assert len({case.source for case in CASES}) >= 40


def test_headlines_name_the_cause(judge: Judge) -> None:
    missed = {}
    for case in CASES:
        headline = headline_of(case, judge)
        if not all(word.lower() in headline.lower() for word in case.cause_words):
            missed[case.name] = (case.cause_words, headline)
    print(*missed.items(), sep="\n")
    assert 1 - len(missed) / len(CASES) >= NAMED, missed


def test_cures_are_found_and_verified() -> None:
    missed = {}
    for case in CURABLE:
        found = whatif(case.graph(), case.target, version=version_of(case), budget_s=20, build=case.build)
        assert all(remedy.verified and remedy.verdict is not None and remedy.verdict.supported for remedy in found)
        if not any(set(remedy.kinds) & set(case.cures) for remedy in found):
            missed[case.name] = (case.cures, [remedy.title for remedy in found])
    print(*missed.items(), sep="\n")
    assert 1 - len(missed) / len(CURABLE) >= CURED, missed
