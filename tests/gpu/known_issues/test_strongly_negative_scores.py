"""Attention with scores far below 0 in every row is right, or wrong as the known issue table states."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from cudnn_backend_py import open_target
from tests.support.figures import append_measurement_to_run_record
from tools.records.deep_scores import make_very_low_scores_cases, run_cases_in_children

from ...support.gpu_requirements import are_expectations_measured_on_this_gpu, skip_if_support_not_measured_on_this_gpu

CASE_STEP = 7  # of the cases: python -m tools.records.deep_scores runs all


@pytest.fixture(scope="module")
def attention_results() -> list[dict[str, Any]]:
    """Return the results of cases with every mask, shape and form."""
    target = open_target()
    cases = make_very_low_scores_cases(target.library.version)
    target.close()
    items = list(run_cases_in_children(cases[::CASE_STEP]))
    append_measurement_to_run_record("deep scores", outcomes=dict(Counter(item["outcome"] for item in items)))
    return items


def test_every_wrong_attention_result_has_a_known_issue(attention_results: list[dict[str, Any]]) -> None:
    unnamed = [
        item for item in attention_results if item["outcome"] not in ("agrees", "refused") and not item["faults"]
    ]
    assert unnamed == []


def test_attention_with_strongly_negative_scores_is_mostly_right(attention_results: list[dict[str, Any]]) -> None:
    outcomes = Counter(item["outcome"] for item in attention_results)
    if not outcomes["agrees"]:
        skip_if_support_not_measured_on_this_gpu("no attention of these types is supported")
    if not are_expectations_measured_on_this_gpu():
        del outcomes["refused"]
        assert outcomes["agrees"] > outcomes.total() / 2, outcomes
        return
    assert outcomes["agrees"] > len(attention_results) / 2, outcomes
