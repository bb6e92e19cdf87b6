"""logs/deep-scores-*.json (attention scores far below 0, run on a GPU): each wrong result has a known issue."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cudnn_backend_py.known_issues import find_known_issues
from tests.support.records import list_records_as_test_parameters
from tools.records.deep_scores import VeryLowScoresCase, make_very_low_scores_cases


@pytest.mark.parametrize("path", list_records_as_test_parameters("deep-scores-"))
def test_recorded_wrong_results_are_known_issues_of_backward_graphs(path: Path) -> None:
    record: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    version: Any = tuple(map(int, record["environment"]["cudnn"].split(".")))
    cases: dict[str, VeryLowScoresCase] = {case.name: case for case in make_very_low_scores_cases(version)}
    assert sum(record["outcomes"].values()) <= len(cases), "cases may have been added since"
    assert len(record["wrong"]) == record["outcomes"]["differs"] > 0
    for item in record["wrong"]:
        case = cases[item["name"]]
        assert case.backward
        codes = {issue.code for issue in find_known_issues(case.graph(version), 90, version)}
        assert codes & {"backward-key-tail", "backward-one-query"}, item["name"]
