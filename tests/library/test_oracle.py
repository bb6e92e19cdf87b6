"""The graph cuDNN finalizes is the graph that was written, up to renaming, and the comparison can fail."""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from cudnn_backend_py import DataType, Graph, GraphBuilder, PointwiseMode, Target, open_target
from cudnn_backend_py.graph import Matmul, Pointwise, Reduction, sdpa_forward
from cudnn_backend_py.graph.ir import Op, pointwise_ports
from tests.support.child import ROOT
from tests.support.graphs import sdpa
from tests.support.oracle import as_logged, assert_same_graph, logged_graph
from tests.support.zoo import ZOO

EXAMPLES = [
    path.stem for path in sorted((ROOT / "examples").glob("*.py")) if "def graph(" in path.read_text(encoding="utf-8")
]


@pytest.fixture(scope="module")
def h100() -> Iterator[Target]:
    target = open_target("h100-sxm")
    yield target
    target.close()


@pytest.mark.parametrize("name", EXAMPLES)
def test_examples_are_what_cudnn_finalizes(h100: Target, name: str) -> None:
    graph = importlib.import_module(f"examples.{name}").graph()
    assert_same_graph(graph, logged_graph(graph, h100))


def test_every_example_with_a_graph_is_covered() -> None:
    assert {"flash_forward", "forum_two_matmul"} <= set(EXAMPLES)
    assert set(EXAMPLES) <= {path.stem for path in Path(ROOT / "examples").glob("*.py")}


@pytest.mark.parametrize("name", ZOO)
def test_varied_graphs_are_what_cudnn_finalizes(h100: Target, name: str) -> None:
    graph = ZOO[name]()
    assert_same_graph(graph, logged_graph(graph, h100))


@pytest.mark.parametrize("mode", PointwiseMode, ids=lambda mode: mode.name)
def test_every_pointwise_mode_is_what_cudnn_finalizes(h100: Target, mode: PointwiseMode) -> None:
    g = GraphBuilder("pointwise", io_type=DataType.FLOAT)
    ports = pointwise_ports(mode)
    x, b, dy = (g.tensor(name, (2, 4, 8)) if name in ports else None for name in ("x", "b", "dy"))
    t = g.tensor("t", (2, 4, 8), DataType.BOOLEAN) if "t" in ports else None
    assert x is not None
    kind = DataType.BOOLEAN if mode.name.startswith(("CMP_", "LOGICAL_")) else DataType.FLOAT
    axis = 1 if mode is PointwiseMode.GEN_INDEX else None
    g.pointwise(mode, x, b, t, dy=dy, axis=axis, name="y", virtual=False, data_type=kind)
    graph = g.graph()
    assert_same_graph(graph, logged_graph(graph, h100))


def test_subgraphs_ragged_tensors_and_overrides_are_what_cudnn_finalizes(h100: Target) -> None:
    assert_same_graph(Graph((sdpa(),)), logged_graph(Graph((sdpa(),)), h100))
    g = GraphBuilder("ragged", io_type=DataType.HALF)
    offset = g.tensor("offset", (3, 1, 1, 1), DataType.INT32)
    lengths = g.tensor("lengths", (2, 1, 1, 1), DataType.INT32)
    q = g.tensor("q", (2, 4, 128, 64), ragged_offset=offset)
    k = g.tensor("k", (2, 4, 64, 128))
    g.matmul(q, k, name="s", virtual=False, m_override=lengths, n_override=lengths)
    assert_same_graph(g.graph(), logged_graph(g.graph(), h100))


def flash() -> Graph:
    return sdpa_forward(batch=2, heads=4, seq_q=128, head_dim=64, causal=True, stats=True)


def change(graph: Graph, index: int, **fields: object) -> Graph:
    ops: list[Op] = list(graph.ops)
    ops[index] = dataclasses.replace(ops[index], **fields)  # type: ignore[type-var]
    return Graph(tuple(ops), graph.name)


def swap_operands(graph: Graph) -> Graph:
    index = next(i for i, op in enumerate(graph.ops) if isinstance(op, Pointwise) and op.mode is PointwiseMode.CMP_GE)
    op = graph.ops[index]
    assert isinstance(op, Pointwise)
    return change(graph, index, x=op.b, b=op.x)


def change_tensor(graph: Graph, name: str, **fields: object) -> Graph:
    old = graph.tensor(name)
    new = dataclasses.replace(old, **fields)  # type: ignore[arg-type]
    ops = []
    for op in graph.ops:
        assert isinstance(op, (Matmul, Pointwise, Reduction))
        ops.append(dataclasses.replace(op, **{port: new for port, tensor in op.ports() if tensor == old}))
    return Graph(tuple(ops), graph.name)


def relink(graph: Graph) -> Graph:
    """Return the graph with the subtraction reading the scores before the mask, which have the same shape and type."""
    index = next(i for i, op in enumerate(graph.ops) if isinstance(op, Pointwise) and op.mode is PointwiseMode.SUB)
    return change(graph, index, x=graph.tensor("scores"))


@pytest.mark.parametrize(
    ("changed", "part"),
    [
        (lambda graph: change_tensor(graph, "q", strides=(32768, 8192, 64, 1)), "tensors"),
        (lambda graph: change_tensor(graph, "qk", data_type=DataType.BFLOAT16), "tensors"),
        (lambda graph: change_tensor(graph, "v", alignment=8), "tensors"),
        (lambda graph: change(graph, 1, mode=PointwiseMode.DIV), "operations"),
        (lambda graph: change(graph, 0, compute_type=DataType.HALF), "operations"),
        (swap_operands, "links"),
        (relink, "links"),
    ],
    ids=["stride", "data type", "alignment", "mode", "compute type", "swapped operands", "link"],
)
def test_a_changed_graph_is_noticed(h100: Target, changed: object, part: str) -> None:
    logged = logged_graph(flash(), h100)
    assert_same_graph(flash(), logged)
    with pytest.raises(AssertionError, match=f"^{part} differ"):
        assert_same_graph(changed(flash()), logged)  # type: ignore[operator]


def test_renaming_is_not_noticed(h100: Target) -> None:
    graph = flash()
    renamed = as_logged(graph)
    numbers = {tensor["name"]: str(7000 + index) for index, tensor in enumerate(reversed(renamed["tensors"]))}
    for tensor in renamed["tensors"]:
        tensor["name"] = numbers[tensor["name"]]
    for node in renamed["nodes"]:
        for key, value in node.items():
            node[key] = numbers.get(value, value) if isinstance(value, str) else value
    renamed["nodes"].reverse()
    assert_same_graph(graph, renamed)
    assert_same_graph(graph, logged_graph(graph, h100))
