"""The graphs of docs/operations.md run on this GPU, match their record, and agree with the interpreter."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from cudnn_backend_py.info import collect_info
from tests.support.figures import append_measurement_to_run_record
from tools.records.built_runs import WORKER_COUNT, run_typical_graph_in_child
from tools.records.operations_page import AGREES, REFUSED, read_gpu_and_version, read_gpu_run_outcomes

from ...support.gpu_requirements import get_current_sm, get_minimum_expected_count_on_this_gpu
from ...support.typical_graphs import KINDS_FOR_OTHER_GPUS, TYPICAL_GRAPHS


@pytest.fixture(scope="module")
def outcomes_by_graph() -> dict[str, dict[str, Any]]:
    """Return the outcome of every graph on this GPU."""
    with ThreadPoolExecutor(WORKER_COUNT) as pool:
        found = dict(zip(TYPICAL_GRAPHS, pool.map(run_typical_graph_in_child, TYPICAL_GRAPHS), strict=True))
    append_measurement_to_run_record("graphs of operations", seen={name: item["said"] for name, item in found.items()})
    return found


def test_supported_graphs_agree_with_the_interpreter(outcomes_by_graph: dict[str, dict[str, Any]]) -> None:
    others = {name: item for name, item in outcomes_by_graph.items() if item["said"] not in (AGREES, REFUSED)}
    assert others == {}
    assert sum(item["said"] == AGREES for item in outcomes_by_graph.values()) >= get_minimum_expected_count_on_this_gpu(
        "graphs of operations that agree"
    )


def test_outcomes_equal_the_record_of_this_gpu_and_version(outcomes_by_graph: dict[str, dict[str, Any]]) -> None:
    where = read_gpu_and_version(collect_info())
    record = read_gpu_run_outcomes().get(where)
    if record is None:
        pytest.skip(f"did not run: no record of {where}; python -m tools.records.built_runs logs/operations-NAME.json")
    both = record.keys() & outcomes_by_graph.keys()
    assert {name: outcomes_by_graph[name]["said"] for name in both} == {name: record[name]["said"] for name in both}


@pytest.mark.parametrize("name", [name for name, case in TYPICAL_GRAPHS.items() if case.kind in KINDS_FOR_OTHER_GPUS])
def test_operation_kinds_for_other_gpus_are_not_supported_on_hopper(
    outcomes_by_graph: dict[str, dict[str, Any]], name: str
) -> None:
    """cuDNN refuses operations of other GPUs before launch; kinds newer than the library are reported as newer."""
    if get_current_sm() != 90:
        pytest.skip(
            f"did not run: {TYPICAL_GRAPHS[name].kind.name} may run here, "
            f"it needs {KINDS_FOR_OTHER_GPUS[TYPICAL_GRAPHS[name].kind]}"
        )
    assert outcomes_by_graph[name]["said"] == REFUSED
    words = outcomes_by_graph[name]["words"]
    assert "CUDNN_STATUS_NOT_SUPPORTED" in words or words.startswith("descriptor-newer-than-library"), words
