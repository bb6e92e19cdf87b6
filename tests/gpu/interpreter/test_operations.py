"""Compare operations on the GPU: edge cases with the interpreter, random problems also with PyTorch."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from tests.support.edges import EDGE_CASES, REFUSED_EDGE_CASES
from tests.support.figures import append_measurement_to_run_record
from tools.records.edge_runs import RANDOM_PROBLEMS_PER_FAMILY, list_random_problem_names, run_cases_in_children

from ...support.gpu_requirements import are_expectations_measured_on_this_gpu, skip_if_support_not_measured_on_this_gpu

OPERATION_FAMILIES = ("convolution", "norm")

RecordsByCase = dict[str, dict[str, Any]]


@pytest.fixture(scope="module")
def edge_case_results() -> RecordsByCase:
    """Return the results of every edge case, on each engine that cuDNN has for it."""
    found = {record["name"]: record for record in run_cases_in_children([*EDGE_CASES, *REFUSED_EDGE_CASES])}
    append_measurement_to_run_record(
        "edges of operations",
        outcomes=dict(Counter(f"{name.split('/')[0]}: {record['outcome']}" for name, record in found.items())),
        engines=dict(Counter(engine for record in found.values() for engine in record.get("engines", ()))),
        elements=sum(record.get("elements", 0) for record in found.values()),
    )
    return found


@pytest.fixture(scope="module")
def random_problem_results() -> RecordsByCase:
    """Return the results of every random problem."""
    found = {
        record["name"]: record
        for record in run_cases_in_children(list_random_problem_names(RANDOM_PROBLEMS_PER_FAMILY))
    }
    for family in OPERATION_FAMILIES:
        those = [record for name, record in found.items() if name.split("/")[1] == family]
        append_measurement_to_run_record(
            f"random problems, {family}",
            outcomes=dict(Counter(record["outcome"] for record in those)),
            passed_over=sum(len(record["refused"]) for record in those if "refused" in record),
            engines=dict(Counter(engine for record in those for engine in record.get("engines", ()))),
            largest=_find_largest_error_per_data_type(those),
        )
    return found


def _find_largest_error_per_data_type(records: list[dict[str, Any]]) -> dict[str, float]:
    """Return the largest error of each data type, as a share of the allowed error."""
    found: dict[str, float] = {}
    for record in records:
        for kind, share in record.get("shares", {}).items():
            found[kind] = max(found.get(kind, 0.0), share)
    return found


@pytest.mark.parametrize("name", EDGE_CASES)
def test_cudnn_agrees_with_the_interpreter_on_edge_cases(edge_case_results: RecordsByCase, name: str) -> None:
    if edge_case_results[name]["outcome"] in ("refused", "no plan"):
        skip_if_support_not_measured_on_this_gpu(edge_case_results[name].get("words", ""))
    assert edge_case_results[name]["outcome"] == "agrees", edge_case_results[name]


@pytest.mark.parametrize("name", REFUSED_EDGE_CASES)
def test_cudnn_refuses_the_edge_cases_listed_as_refused(edge_case_results: RecordsByCase, name: str) -> None:
    """On GPUs with measurements cuDNN must refuse these cases; on other GPUs it may support them."""
    expected = ("refused", "no plan") if are_expectations_measured_on_this_gpu() else ("refused", "no plan", "agrees")
    assert edge_case_results[name]["outcome"] in expected, edge_case_results[name]


@pytest.mark.parametrize("number", range(RANDOM_PROBLEMS_PER_FAMILY))
def test_a_random_convolution_agrees_with_pytorch_and_the_interpreter(
    random_problem_results: RecordsByCase, number: int
) -> None:
    record = random_problem_results[f"random/convolution/{number}"]
    if record["outcome"] == "refused":
        skip_if_support_not_measured_on_this_gpu(record["words"])
    assert record["outcome"] == "agrees" or record.get("faults") == ["gradient-padded-unevenly"], record


@pytest.mark.parametrize("number", range(RANDOM_PROBLEMS_PER_FAMILY))
def test_a_random_norm_agrees_with_pytorch_and_the_interpreter(
    random_problem_results: RecordsByCase, number: int
) -> None:
    record = random_problem_results[f"random/norm/{number}"]
    if record["outcome"] == "refused":
        skip_if_support_not_measured_on_this_gpu(record["words"])
    assert record["outcome"] == "agrees", record
