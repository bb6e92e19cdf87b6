"""docs/operations.md matches the graphs of tests/support/typical_graphs.py and the records of GPU runs."""

from __future__ import annotations

import inspect
import re

import numpy as np
import pytest

import cudnn_backend_py.frontend as cudnn
from cudnn_backend_py import DescriptorType, GraphBuilder
from cudnn_backend_py.diagnose import Matrix, Outcome
from cudnn_backend_py.diagnose.surveys.matrix import Cell
from cudnn_backend_py.graph import graph_from_json, graph_to_json
from cudnn_backend_py.interpreter import OPERATIONS, interpret
from tests.support.interpreting import make_typical_inputs
from tests.support.records import make_test_parameters_or_skip
from tests.support.typical_graphs import FRONTEND_METHODS, KINDS_FOR_OTHER_GPUS, OPERATION_KINDS, TYPICAL_GRAPHS
from tools.records.operation_support import describe_supporting_versions, read_support_table
from tools.records.operations_page import AGREES, REFUSED, UNMEASURED, make_operations_page, read_gpu_run_outcomes

HOPPER = ("H100", "H200", "GH200")


def test_page_marks_a_graph_without_gpu_record_as_unmeasured(monkeypatch: pytest.MonkeyPatch) -> None:
    """The page of a new operation can be written without a GPU."""
    monkeypatch.setitem(TYPICAL_GRAPHS, "an invented graph", TYPICAL_GRAPHS["matmul"])
    page = make_operations_page()
    cells = {line.count(UNMEASURED) for line in page.splitlines() if line.startswith("| an invented graph |")}
    assert cells == {len(read_gpu_run_outcomes())}
    assert describe_supporting_versions(read_support_table(), ["an invented graph"], "sm90") == UNMEASURED


def test_typical_graphs_are_supported_in_the_stored_verdicts() -> None:
    found = read_support_table()
    assert set(found.graphs) <= set(TYPICAL_GRAPHS), "python -m tools.records.operation_support"
    assert len(found.versions) >= 3
    names = {"a100": "sm80", "h100": "sm90", "b200": "sm100"}
    said = {
        (name, target): found.cells[name, names[target], found.versions[-1]].outcome
        for name, case in TYPICAL_GRAPHS.items()
        for target in case.supported
        if name in found.graphs
    }
    assert {key for key, outcome in said.items() if outcome is not Outcome.SUPPORTED} == set()


@pytest.mark.parametrize(
    ("outcomes", "cell"),
    [
        ("SSS", "yes"),
        ("-SS", "from 9.19.0"),
        ("SS-", "9.14.0, 9.19.0"),
        ("---", "no"),
        ("?SS", "from 9.19.0 (other versions not judged)"),
    ],
)
def test_support_cell_lists_the_cudnn_versions(outcomes: str, cell: str) -> None:
    said = {"S": Outcome.SUPPORTED, "-": Outcome.NOT_SUPPORTED, "?": Outcome.NOT_JUDGED}
    versions = ("9.14.0", "9.19.0", "9.28.0")
    cells = {("g", "sm80", one): Cell(said[mark]) for one, mark in zip(versions, outcomes, strict=True)}
    assert describe_supporting_versions(Matrix(("g",), ("sm80",), versions, cells), ["g"], "sm80") == cell


def test_every_operation_kind_has_a_sample_graph_and_is_interpreted() -> None:
    assert {case.kind for case in TYPICAL_GRAPHS.values()} == set(OPERATION_KINDS) == set(OPERATIONS)


@pytest.mark.parametrize("name", TYPICAL_GRAPHS)
def test_builder_method_documents_its_cudnn_descriptor(name: str) -> None:
    case = TYPICAL_GRAPHS[name]
    assert case.kind in {op.kind for op in case.make().ops}
    assert case.kind.c_name in str(inspect.getdoc(getattr(GraphBuilder, case.method)))


@pytest.mark.parametrize("name", TYPICAL_GRAPHS)
def test_sample_graph_survives_a_json_round_trip(name: str) -> None:
    graph = TYPICAL_GRAPHS[name].make()
    assert graph_from_json(graph_to_json(graph)) == graph


@pytest.mark.parametrize("name", TYPICAL_GRAPHS)
def test_the_interpreter_runs_the_sample_graph(name: str) -> None:
    graph = TYPICAL_GRAPHS[name].make()
    inputs = make_typical_inputs(graph)
    exact, rounded = (interpret(graph, inputs, rounding=rounding) for rounding in (False, True))
    assert set(exact) == {tensor.name for tensor in graph.outputs}
    for tensor in graph.outputs:
        assert exact[tensor.name].shape == rounded[tensor.name].shape == tensor.dims
        missing = np.isnan(exact[tensor.name].astype(float))
        np.testing.assert_array_equal(missing, np.isnan(rounded[tensor.name].astype(float)))
        assert missing.mean() < 0.5, tensor.name


@pytest.mark.parametrize("kind", FRONTEND_METHODS, ids=lambda kind: kind.name)
def test_pygraph_has_the_frontend_names_of_an_operation(kind: DescriptorType) -> None:
    assert all(callable(getattr(cudnn.pygraph, name)) for name in FRONTEND_METHODS[kind])


def test_operations_refused_on_a_gpu_are_listed_as_for_other_gpus() -> None:
    found = [
        item for graphs in read_gpu_run_outcomes().values() for item in graphs.items() if item[0] in TYPICAL_GRAPHS
    ]
    ran = {TYPICAL_GRAPHS[name].kind for name, item in found if item["said"] == AGREES}
    refused = {TYPICAL_GRAPHS[name].kind for name, _ in found} - ran
    assert refused <= set(KINDS_FOR_OTHER_GPUS)
    assert not any("h100" in case.supported for case in TYPICAL_GRAPHS.values() if case.kind in refused)


@pytest.mark.parametrize("where", make_test_parameters_or_skip("operations-", read_gpu_run_outcomes()))
@pytest.mark.parametrize("name", [name for name, case in TYPICAL_GRAPHS.items() if case.kind in KINDS_FOR_OTHER_GPUS])
def test_operations_listed_for_non_hopper_gpus_are_refused_on_hopper(name: str, where: str) -> None:
    found = read_gpu_run_outcomes()[where].get(name)
    if found is None or not where.startswith(HOPPER):
        return
    assert found["said"] == REFUSED
    assert "CUDNN_STATUS_NOT_SUPPORTED" in found["words"] or "needs cuDNN 9.22" in found["words"]


@pytest.mark.parametrize("where", make_test_parameters_or_skip("operations-", read_gpu_run_outcomes()))
def test_recorded_graphs_agree_with_the_interpreter_or_are_refused(where: str) -> None:
    """Check the records of GPU runs; `tests/gpu/interpreter/test_typical_graphs.py` repeats the runs on a GPU."""
    graphs = read_gpu_run_outcomes()[where]
    assert set(graphs) <= set(TYPICAL_GRAPHS)
    assert [name for name, found in graphs.items() if found["said"] not in (AGREES, REFUSED)] == []
    for found in graphs.values():
        assert found["words"] if found["said"] == REFUSED else found["outputs"]


def test_every_table_row_has_as_many_cells_as_its_header() -> None:
    """A vertical bar in a cuDNN message must be escaped."""
    tables = re.findall(r"(?:^\|.*\n)+", make_operations_page(), re.MULTILINE)
    assert len(tables) >= 5
    for table in tables:
        head, *rows = (len(re.findall(r"(?<!\\)\|", line)) for line in table.splitlines())
        assert rows == [head] * len(rows), table[:200]
