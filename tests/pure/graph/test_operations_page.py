"""docs/operations.md is what the graphs of tests/support/built.py say, and each cell of its first table holds."""

from __future__ import annotations

import inspect

import numpy as np
import pytest

import cudnn_backend_py.frontend as cudnn
from cudnn_backend_py import DescriptorType, GraphBuilder, graph_from_json, graph_to_json
from cudnn_backend_py.graph.interpret import OPERATIONS, interpret
from tests.support.built import BUILT, FRONTEND, KINDS, PAGE, inputs_of, operations_page


def test_the_page_is_up_to_date() -> None:
    assert PAGE.read_text(encoding="utf-8") == operations_page(), "python -m tests.support.built"


def test_every_kind_has_a_builder_and_is_interpreted() -> None:
    assert {case.kind for case in BUILT.values()} == set(KINDS) == set(OPERATIONS)


@pytest.mark.parametrize("name", BUILT)
def test_the_method_writes_the_operation_and_names_its_c_descriptor(name: str) -> None:
    case = BUILT[name]
    assert case.kind in {op.kind for op in case.make().ops}
    assert case.kind.c_name in str(inspect.getdoc(getattr(GraphBuilder, case.method)))


@pytest.mark.parametrize("name", BUILT)
def test_json_gives_the_graph_back(name: str) -> None:
    graph = BUILT[name].make()
    assert graph_from_json(graph_to_json(graph)) == graph


@pytest.mark.parametrize("name", BUILT)
def test_the_interpreter_runs_it(name: str) -> None:
    graph = BUILT[name].make()
    inputs = inputs_of(graph)
    exact, rounded = (interpret(graph, inputs, rounding=rounding) for rounding in (False, True))
    assert set(exact) == {tensor.name for tensor in graph.outputs}
    for tensor in graph.outputs:
        assert exact[tensor.name].shape == rounded[tensor.name].shape == tensor.dims
        missing = np.isnan(exact[tensor.name].astype(float))
        np.testing.assert_array_equal(missing, np.isnan(rounded[tensor.name].astype(float)))
        assert missing.mean() < 0.5, tensor.name


@pytest.mark.parametrize("kind", FRONTEND, ids=lambda kind: kind.name)
def test_the_frontend_has_the_names(kind: DescriptorType) -> None:
    assert all(callable(getattr(cudnn.pygraph, name)) for name in FRONTEND[kind])
