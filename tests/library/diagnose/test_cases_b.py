"""The cases of the frameworks' threads: each complaint still shows, in cuDNN's words, and each cure helps."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from cudnn_backend_py import GraphError
from cudnn_backend_py.diagnose import Judge, Question, Verdict
from tests.cases import CHANGES, Case
from tests.cases.part_b import CASES, NEWEST

REFUSED = [case for case in CASES if case.complaint == "refused by us"]
ASKED = [case for case in CASES if case not in REFUSED]
CURED = [case for case in CASES if case.cures]


def _name(case: Case) -> str:
    return case.name


@pytest.fixture(scope="module")
def judge() -> Iterator[Judge]:
    with Judge(limit_s=30) as judge:
        yield judge


def _said(verdict: Verdict) -> str:
    """Return all that cuDNN said, or how its process ended."""
    innermost = [item.reasons[0].text for item in verdict.candidates if item.reasons]
    return "\n".join([*innermost, *(item.text for item in verdict.reasons), *(item.detail for item in verdict.stages)])


def _version(asked: str | None) -> str | None:
    """Return the version to ask for: the newest is the library of this environment."""
    return None if asked == NEWEST else asked


def test_there_are_enough_and_each_is_a_thread_of_its_own() -> None:
    assert len(CASES) >= 24
    assert len({case.source for case in CASES}) == len({case.name for case in CASES}) == len(CASES)
    assert all(change in CHANGES for case in CASES for change in case.cures)


@pytest.mark.parametrize("case", ASKED, ids=_name)
def test_the_complaint_shows(judge: Judge, case: Case) -> None:
    verdict = judge.ask(Question(case.graph(), case.target, _version(case.version), build=case.build))
    outcome = "could not be judged" if case.complaint == "crash" else case.complaint
    assert verdict.outcome == outcome, verdict.cause
    assert case.says in _said(verdict)


@pytest.mark.parametrize("case", REFUSED, ids=_name)
def test_we_refuse_it(case: Case) -> None:
    with pytest.raises(GraphError) as refused:
        case.graph()
    assert case.says in refused.value.headline


@pytest.mark.parametrize("case", CURED, ids=_name)
def test_the_cure_helps(judge: Judge, case: Case) -> None:
    assert case.fixed is not None or case.fixed_target or case.fixed_version
    graph = (case.fixed or case.graph)()
    version = _version(case.fixed_version or case.version)
    verdict = judge.ask(Question(graph, case.fixed_target or case.target, version))
    assert verdict.supported, verdict.cause
