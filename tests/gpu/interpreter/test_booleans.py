"""In every plan, booleans in memory are packed eight to a byte, the first in the lowest bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from cudnn_backend_py import DataType, Graph, GraphBuilder, OperationGraph, PointwiseMode, build_plan, execute
from cudnn_backend_py.interpreter import interpret
from cudnn_backend_py.interpreter.data import convert_numbers_to_memory_image, read_numbers_from_memory_image
from cudnn_backend_py.native.cuda import Memory
from cudnn_backend_py.plans.build import shared_target
from tests.support.gpu_requirements import skip_if_support_not_measured_on_this_gpu


def make_boolean_graph(which: str, dims: tuple[int, ...]) -> Graph:
    g = GraphBuilder(which, io_type=DataType.FLOAT)
    a, b = g.tensor("a", dims), g.tensor("b", dims)
    kept: dict[str, Any] = {"name": "y", "virtual": False}
    if which == "written":
        g.pointwise(PointwiseMode.CMP_GT, a, b, compute_type=DataType.FLOAT, **kept)
        return g.graph()
    mask = g.tensor("mask", dims, DataType.BOOLEAN)
    if which == "read":
        g.pointwise(PointwiseMode.BINARY_SELECT, a, b, mask, **kept)
        return g.graph()
    greater = g.pointwise(PointwiseMode.CMP_GT, a, b, compute_type=DataType.FLOAT)
    g.pointwise(PointwiseMode.LOGICAL_AND, greater, mask, **kept)
    return g.graph()


@pytest.mark.parametrize("dims", [(8, 64, 64), (4, 8, 16), (1, 1, 8)])
@pytest.mark.parametrize("which", ["written", "read", "read and written"])
def test_packed_booleans_are_right(which: str, dims: tuple[int, ...]) -> None:
    graph, target = make_boolean_graph(which, dims), shared_target()
    rng = np.random.default_rng(3)
    values = {name: rng.standard_normal(dims) for name in ("a", "b")}
    if which != "written":
        values["mask"] = rng.integers(0, 2, dims).astype(np.float64)
    values = {name: np.float32(value).astype(np.float64) for name, value in values.items()}
    wanted = interpret(graph, values)["y"]
    result = graph.tensor("y")
    configs = OperationGraph(graph, target).heuristics("A").configs
    if not configs:
        skip_if_support_not_measured_on_this_gpu("booleans in memory")
    assert configs
    for config in configs[:4]:
        plan = build_plan(config)
        with Memory(plan.target.handle.device or 0) as memory:  # type: ignore[union-attr]
            given = {
                name: memory.copy_to_device(convert_numbers_to_memory_image(graph.tensor(name), value))
                for name, value in values.items()
            }
            image = np.full(result.span_bytes, 0xAA, np.uint8)
            address = memory.copy_to_device(image)
            execute(plan, {**given, "y": address})
            memory.synchronize(plan.target.handle.stream)  # type: ignore[union-attr]
            memory.copy_to_host(address, image)
        kind = np.uint8 if result.data_type is DataType.BOOLEAN else np.float32
        np.testing.assert_array_equal(read_numbers_from_memory_image(result, image.view(kind)), wanted)
