"""Edge cases of operations: every mode and data type has some; recorded GPU results agree with the interpreter."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from cudnn_backend_py import DataType, PointwiseMode
from cudnn_backend_py.generated.enums import ReduceTensorOp
from cudnn_backend_py.known_issues import FAULTS
from tests.support.edges import EDGE_CASES, REFUSED_EDGE_CASES, make_edge_case_inputs
from tools.records.edge_runs import RANDOM_PROBLEMS_PER_FAMILY, list_random_problem_names, make_record_of_edge_cases

from ...support.records import RECORD_COMMANDS, list_records_as_test_parameters

_PADDING = re.compile(r"'padding': \[(\d)\], 'post_padding': \[(\d)\]")  # over one dim
TYPES = (DataType.HALF, DataType.BFLOAT16, DataType.FLOAT, DataType.INT8, DataType.INT32)


def list_edge_case_modes_and_types(family: str) -> set[tuple[str, str]]:
    """Return pairs of mode and data type in the edge cases of an operation family."""
    names = (name.split("/") for name in (*EDGE_CASES, *REFUSED_EDGE_CASES) if name.startswith(f"{family}/"))
    return {(words.split()[0], types.split()[0]) for _, words, types in names}


@pytest.mark.parametrize("mode", PointwiseMode, ids=lambda mode: mode.name)
def test_every_pointwise_mode_has_edge_cases_in_every_data_type(mode: PointwiseMode) -> None:
    wanted = TYPES if mode is not PointwiseMode.GEN_INDEX else (DataType.HALF, *TYPES[2:])
    assert {(mode.name, kind.name) for kind in wanted} <= list_edge_case_modes_and_types("pointwise")


@pytest.mark.parametrize("operator", ReduceTensorOp, ids=lambda operator: operator.name)
def test_every_reduction_has_edge_cases_in_every_data_type(operator: ReduceTensorOp) -> None:
    assert {(operator.name, kind.name) for kind in TYPES} <= list_edge_case_modes_and_types("reduction")


@pytest.mark.parametrize("name", [name for name in (*EDGE_CASES, *REFUSED_EDGE_CASES) if name.startswith("natural/")])
def test_every_typical_graph_has_data_for_all_its_inputs(name: str) -> None:
    case = (EDGE_CASES | REFUSED_EDGE_CASES)[name]
    graph = case.make()
    written = {tensor.uid for op in graph.ops for tensor in op.outputs().values()}
    read = {t.name for t in graph.variant_pack_tensors if t.uid not in written and t.value is None}
    assert read <= make_edge_case_inputs(case, graph).keys()


def test_edge_case_record_has_outcomes_and_differing_elements() -> None:
    one, other = list(EDGE_CASES)[:2]
    refused = next(iter(REFUSED_EDGE_CASES))
    problem = {
        "title": "t",
        "outcome": "differs",
        "engines": ["eng1"],
        "shares": {"HALF": 2.34567},
        "words": ["y: 2.3"],
    }
    made = make_record_of_edge_cases(
        [
            {"name": one, "outcome": "agrees", "engines": ["eng0", "eng2"], "elements": 7},
            {"name": other, "outcome": "differs", "engines": ["eng1"], "elements": 5, "words": ["y: NaN 3 of 5"]},
            {"name": refused, "outcome": "refused", "words": "in cuDNN's message"},
            {"name": "random/norm/0", **problem, "refused": ["a", "b"]},
        ]
    )
    assert made["elements"] == 12
    assert made["cases"] == {one: "agrees eng0 eng2", other: "differs eng1 ['y: NaN 3 of 5']", refused: "refused"}
    assert made["random"] == {"random/norm/0": {**problem, "shares": {"HALF": 2.35}, "passed over": 2}}


@pytest.mark.parametrize("path", list_records_as_test_parameters("edges-"))
def test_recorded_edge_cases_agree_or_are_refused_as_expected(path: Path) -> None:
    record: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    cases: dict[str, str] = record["cases"]
    contradicted = [name for name in EDGE_CASES if not cases.get(name, "agrees eng").startswith("agrees eng")]
    contradicted += [name for name in REFUSED_EDGE_CASES if cases.get(name, "refused") not in ("refused", "no plan")]
    assert contradicted == [], "a case without a record is not measured yet"
    assert len(cases.keys() & {*EDGE_CASES, *REFUSED_EDGE_CASES}) > 0.9 * len(cases), (
        f"stale: {RECORD_COMMANDS['edges-']}"
    )
    assert record["elements"] > 4e7


@pytest.mark.parametrize("path", list_records_as_test_parameters("edges-"))
def test_recorded_differences_of_random_graphs_are_known_issues(path: Path) -> None:
    record: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    found = record["random"]
    assert set(found) == set(list_random_problem_names(RANDOM_PROBLEMS_PER_FAMILY))
    assert max(share for item in found.values() if "faults" not in item for share in item["shares"].values()) <= 1
    others = [item for item in found.values() if item["outcome"] != "agrees"]
    assert all(item["faults"] for item in others), others
    assert {code for item in others for code in item["faults"]} <= {row.code for row in FAULTS}
    titles = [item["title"] for item in found.values()]
    assert sum(name.startswith("random/convolution/") and "faults" not in item for name, item in found.items()) > 290
    uneven = [found for title in titles if (found := _PADDING.search(title)) and found[1] != found[2]]
    assert uneven, "convolutions over one dim, padded unevenly"
