"""Work on a graph grows linearly with its size, not quadratically: function calls are counted for many graphs."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from cudnn_backend_py import Graph, interpret
from cudnn_backend_py.diagnose.linting import lint
from cudnn_backend_py.diagnose.report.drawing import draw_graph
from cudnn_backend_py.graph import graph_from_json, graph_to_json
from cudnn_backend_py.known_issues import FAULTS, find_known_issues
from cudnn_backend_py.plans.lower import find_newer_features
from cudnn_backend_py.rewrite.changes import iterate_changes
from cudnn_backend_py.rewrite.override import override
from cudnn_backend_py.rewrite.unusual import find_unusual_properties
from tests.known_issues import EXAMPLES
from tests.support.growth import GROWING_GRAPHS, count_calls, measure_relative_growth, repeat_graph
from tests.support.typical_graphs import TYPICAL_GRAPHS

MAX_RELATIVE_GROWTH = 1.3  # allows more than linear growth for lists that are sorted and truncated


def compute_all_proposed_changes(graph: Graph) -> None:
    for _ in iterate_changes(graph):
        pass


def interpret_graph(graph: Graph) -> None:
    written = {tensor.uid for tensor in graph.outputs}
    read = [t for t in graph.tensors if not t.virtual and t.uid not in written and t.value is None]
    interpret(graph, {tensor.name: np.ones(tensor.dims) for tensor in read})


def override_first_dim(graph: Graph) -> None:
    first = graph.tensors[0]
    override(graph, dims={first.name: (2, *first.dims[1:])})


WORK_ON_GRAPHS: dict[str, Callable[[Graph], object]] = {
    "text": str,
    "known issues": lambda graph: list(find_known_issues(graph, 90, (9, 28, 0))),
    "lint": lint,
    "changes": compute_all_proposed_changes,
    "deviations": find_unusual_properties,
    "JSON": lambda graph: graph_from_json(graph_to_json(graph)),
    "drawing": draw_graph,
    "newer parts": lambda graph: find_newer_features(graph, (9, 0, 0)),
    "other types": lambda graph: override(graph, types={"*": "bf16"}),
    "tensors by name": lambda graph: [graph.tensor(tensor.name) for tensor in graph.tensors],
}
WORK_ON_GROWING_GRAPHS = WORK_ON_GRAPHS | {"interpreting": interpret_graph, "other dims": override_first_dim}


WORK_ON_OPERATION_KINDS = ("known issues", "lint", "changes", "deviations", "newer parts")
KNOWN_ISSUE_EXAMPLES = {
    f"{row.code}:{name}": (row.graph, make)
    for row in FAULTS
    for name, make in EXAMPLES[row.code].reproductions.items()
    if row.graph is not None and callable(make)
}


@pytest.mark.parametrize("shape", GROWING_GRAPHS)
def test_work_grows_linearly_with_the_size_of_the_graph(shape: str) -> None:
    found = {
        step: measure_relative_growth(GROWING_GRAPHS[shape], run, 28, 112)
        for step, run in WORK_ON_GROWING_GRAPHS.items()
    }
    assert {step: more for step, more in found.items() if more >= MAX_RELATIVE_GROWTH} == {}


@pytest.mark.parametrize("name", TYPICAL_GRAPHS)
def test_work_grows_linearly_for_every_kind_of_operation(name: str) -> None:
    graph = TYPICAL_GRAPHS[name].make()
    found = {
        step: measure_relative_growth(lambda size: repeat_graph(graph, size), WORK_ON_GRAPHS[step], 3, 12)
        for step in WORK_ON_OPERATION_KINDS
    }
    assert {step: more for step, more in found.items() if more >= MAX_RELATIVE_GROWTH} == {}


@pytest.mark.parametrize("name", KNOWN_ISSUE_EXAMPLES)
def test_conditions_of_known_issues_take_linear_time(name: str) -> None:
    condition, make = KNOWN_ISSUE_EXAMPLES[name]
    assert measure_relative_growth(lambda size: repeat_graph(make(), size), condition, 6, 24) < MAX_RELATIVE_GROWTH


@pytest.mark.parametrize("shape", GROWING_GRAPHS)
def test_building_a_graph_takes_linear_time(shape: str) -> None:
    few, many = (count_calls(lambda size=size: GROWING_GRAPHS[shape](size)) for size in (56, 280))  # type: ignore[misc]
    assert many / few < MAX_RELATIVE_GROWTH * 5
