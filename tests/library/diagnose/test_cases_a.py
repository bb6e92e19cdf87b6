"""Public complaints, rebuilt: cuDNN still answers as the threads tell, and takes what cures them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from cudnn_backend_py import Graph, library
from cudnn_backend_py.diagnose import Judge, Outcome, Question, Verdict
from cudnn_backend_py.diagnose.engines import ENGINES_ABSENT
from tests.cases import CHANGES, Case
from tests.cases.part_a import CASES

OUTCOMES = {"not supported": Outcome.NOT_SUPPORTED, "crash": Outcome.NOT_JUDGED, "supported": Outcome.SUPPORTED}


@pytest.fixture(scope="module")
def asked() -> Iterator[Judge]:
    with Judge(limit_s=120) as one:
        yield one


def _answer(asked: Judge, case: Case, graph: Graph, target: str, version: str | None) -> Verdict:
    own = None if version == library().version_text else version
    return asked.ask(Question(graph, target, own, build=case.build))


def _words(verdict: Verdict) -> list[str]:
    """Return all that the verdict says."""
    reasons = [*verdict.reasons, *(reason for each in verdict.candidates for reason in each.reasons)]
    headline = [verdict.cause.headline] if verdict.cause else []
    return [*(reason.text for reason in reasons), *map(str, verdict.stages), *headline]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_complaint_shows(asked: Judge, case: Case) -> None:
    verdict = _answer(asked, case, case.graph(), case.target, case.version)
    partial = verdict.cause is not None and verdict.cause.code == ENGINES_ABSENT  # refused by a jit wheel's engines
    outcome = Outcome.NOT_SUPPORTED if partial else verdict.outcome
    assert outcome is OUTCOMES[case.complaint], verdict.cause
    assert any(case.says in text for text in _words(verdict)), _words(verdict)


CURED = [case for case in CASES if case.fixed or case.fixed_target or case.fixed_version]


@pytest.mark.parametrize("case", CURED, ids=lambda case: case.name)
def test_the_cure_helps(asked: Judge, case: Case) -> None:
    graph = (case.fixed or case.graph)()
    verdict = _answer(asked, case, graph, case.fixed_target or case.target, case.fixed_version or case.version)
    assert verdict.supported, verdict.cause


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_case_is_told(case: Case) -> None:
    assert case.source.startswith("https://")
    assert case.title
    assert case.cause
    assert case.cause_words
    assert case.cure
    assert set(case.cures) <= set(CHANGES)
    assert (case in CURED) or not case.cures


def test_no_thread_is_told_twice() -> None:
    assert len({case.source for case in CASES}) == len({case.name for case in CASES}) == len(CASES)
