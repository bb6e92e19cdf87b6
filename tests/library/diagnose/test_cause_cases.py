"""Supported graphs with unsupported changes: the headline names each change, and the printed remedy undoes it."""

from __future__ import annotations

import re

import pytest

from cudnn_backend_py.diagnose import explain
from cudnn_backend_py.diagnose.verdict import Basis, Outcome
from tests.support.cause_cases import CAUSE_CASES, RefusalCauseCase, get_supported_graph


def _get_case_name(case: RefusalCauseCase) -> str:
    return f"{case.base}: {' '.join(case.words)}"


@pytest.mark.parametrize("case", CAUSE_CASES, ids=_get_case_name)
def test_headline_names_the_cause_added_to_a_supported_graph(case: RefusalCauseCase) -> None:
    graph = case.graph()
    assert graph != get_supported_graph(case.base)
    verdict = explain(graph, case.target)
    assert verdict.outcome is Outcome.NOT_SUPPORTED
    assert verdict.cause is not None
    assert verdict.cause.basis is Basis.MEASURED
    missing = [word for word in case.words if not re.search(word, verdict.cause.headline, re.IGNORECASE)]
    assert missing == [], verdict.cause.headline
    assert verdict.cause.remedy
    assert verdict.cause.asked == "support check"


def test_the_graphs_are_supported_without_the_added_cause() -> None:
    bases = {(case.base, case.target) for case in CAUSE_CASES}
    refused = [key for key in sorted(bases) if not explain(get_supported_graph(key[0]), key[1], causes=False).supported]
    assert refused == []
