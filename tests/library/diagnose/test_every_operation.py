"""Typical graphs of every operation: the verdict of cuDNN 9.28, and the graph read from its log."""

from __future__ import annotations

import pytest

from cudnn_backend_py import (
    CudnnStatusError,
    GraphBuilder,
    NotSupported,
    OperationGraph,
    build_plan,
    capture_log,
    explain,
    open_target,
)
from cudnn_backend_py.importers.graphs import read_graphs
from tests.support.logs import make_comparable_graph
from tests.support.typical_graphs import BLOCK_SCALED_ENGINES, TYPICAL_GRAPHS, add_bilinear_upsampling

TARGET_NAMES = ("a100", "h100", "b200")


def count_supported_engine_configs(name: str, target: str) -> tuple[int, str]:
    """Return the number of supported engine configs, and cuDNN's message about the refused ones."""
    try:
        graph = OperationGraph(TYPICAL_GRAPHS[name].make(), open_target(target))
        found = [graph.heuristics(mode) for mode in ("A", "FALLBACK")]
    except NotSupported as error:
        return 0, str(error)
    return sum(len(item.configs) for item in found), "\n".join(item.answer.text for item in found)


@pytest.mark.parametrize("name", [name for name, case in TYPICAL_GRAPHS.items() if case.supported])
def test_support_matches_the_operations_page(name: str) -> None:
    for target in TYPICAL_GRAPHS[name].supported:
        count, words = count_supported_engine_configs(name, target)
        assert count > 0, f"{target}: {words}"


@pytest.mark.parametrize("name", [name for name, case in TYPICAL_GRAPHS.items() if not case.supported])
def test_refusals_have_the_message_on_the_operations_page(name: str) -> None:
    for target in TARGET_NAMES:
        count, words = count_supported_engine_configs(name, target)
        assert count == 0, target
        assert TYPICAL_GRAPHS[name].refused in words, target


@pytest.mark.parametrize("name", TYPICAL_GRAPHS)
def test_each_graph_is_read_back_from_its_log(name: str) -> None:
    graph = TYPICAL_GRAPHS[name].make()
    with capture_log(this_thread_only=True) as log:
        OperationGraph(graph, open_target("b200"))
    (found,) = read_graphs(log.records)
    assert found.graph is not None, found.fault
    assert make_comparable_graph(found.graph) == make_comparable_graph(graph)


COMPILED_GRAPHS = ("matmul", "norm", "pool", "quantized", "experts", "upsampling", "rope")


@pytest.mark.parametrize(
    "name",
    [name for name in TYPICAL_GRAPHS if TYPICAL_GRAPHS[name].supported and any(map(name.count, COMPILED_GRAPHS))],
)
def test_a_plan_is_compiled_for_an_absent_gpu(name: str) -> None:
    graph = OperationGraph(TYPICAL_GRAPHS[name].make(), open_target(TYPICAL_GRAPHS[name].supported[-1]))
    configs = [config for mode in ("A", "FALLBACK") for config in graph.heuristics(mode).configs]
    plan = build_plan(configs[0])
    assert plan.graph.name == name


@pytest.mark.parametrize("name", BLOCK_SCALED_ENGINES)
def test_block_scaled_graphs_have_the_engines_on_the_operations_page(name: str) -> None:
    graph = OperationGraph(TYPICAL_GRAPHS[name].make(), open_target("b200"))
    configs = [config for mode in ("A", "FALLBACK") for config in graph.heuristics(mode).configs]
    assert (len(configs), tuple(sorted({config.engine for config in configs}))) == BLOCK_SCALED_ENGINES[name]
    verdict = explain(TYPICAL_GRAPHS[name].make(), "b200", build=True)
    assert verdict.outcome == "supported"
    assert verdict.stage == "plan"
    assert explain(TYPICAL_GRAPHS[name].make(), "h100").outcome != "supported"


def test_upsampling_in_16_bits_is_supported_and_does_not_compile() -> None:
    g = GraphBuilder("upsampling")
    add_bilinear_upsampling(g)
    configs = OperationGraph(g.graph(), open_target("h100")).heuristics("A").configs
    assert configs
    with pytest.raises(CudnnStatusError, match="INTERNAL_ERROR_COMPILATION_FAILED"):
        build_plan(configs[0])
