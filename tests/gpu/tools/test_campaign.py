"""Random graphs on this GPU: cuDNN is right, and an introduced error is found and its graph made smaller."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from cudnn_backend_py import DescriptorType, Graph, GraphBuilder, PointwiseMode, open_target
from cudnn_backend_py.interpreter import pointwise
from cudnn_backend_py.rewrite.reduce import reduce_failing_graph
from cudnn_backend_py.target import Target
from tools.campaign.graphs import GRAPH_FAMILIES, make_random_graph
from tools.campaign.plan_check import build_plan_or_get_refusal, run_and_compare
from tools.campaign.runner import RandomGraphCampaignOptions, run_random_graphs_for_a_time

from ...support.gpu_requirements import get_minimum_expected_count_on_this_gpu, skip_if_support_not_measured_on_this_gpu


@pytest.fixture(scope="module")
def gpu() -> Iterator[Target]:
    target = open_target()
    yield target
    target.close()


def is_cudnn_result_reported_wrong(graph: Graph, data: str, target: Target) -> bool:
    got = build_plan_or_get_refusal(graph, target)
    if got.plan is None:
        return False
    try:
        return bool(run_and_compare(got.plan, graph, data, 0, got.get_arithmetic())[0].descriptions_of_wrong_outputs)
    finally:
        got.plan.close()


@pytest.mark.parametrize("family", ["convolution", "matmul", "norm", "reduction", "attention"])
def test_cudnn_computes_random_graphs_right(gpu: Target, family: str) -> None:
    graphs = [make_random_graph(seed, family, version=gpu.library.version) for seed in range(6)]
    offered = sum(build_plan_or_get_refusal(graph, gpu, build=False).engine != "" for graph in graphs)
    if not offered:
        skip_if_support_not_measured_on_this_gpu(f"no random {family} graph has an engine")
    assert offered >= get_minimum_expected_count_on_this_gpu("random graphs of a family with an engine")
    assert not [graph.name for graph in graphs if is_cudnn_result_reported_wrong(graph, "uniform", gpu)]


def test_a_planted_wrong_scale_is_found_and_its_graph_reduced(gpu: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the interpreter multiply every matmul result by 1.01; cuDNN, which is right, must be reported as wrong."""
    g = GraphBuilder("planted")
    x = g.tensor("x", (4, 32, 8, 8), strides="channels_last")
    w, per = g.tensor("w", (32, 32, 3, 3), strides="channels_last"), (1, 32, 1, 1)
    y = g.convolution(x, w, padding=1)
    z = g.pointwise(PointwiseMode.MUL, y, g.tensor("scale", per), strides=y.strides)
    z = g.pointwise(PointwiseMode.ADD, z, g.tensor("bias", per), strides=y.strides)
    g.pointwise(PointwiseMode.RELU_FWD, z, virtual=False, strides=y.strides)
    assert not is_cudnn_result_reported_wrong(g.graph(), "uniform", gpu)
    monkeypatch.setitem(pointwise.BINARY, PointwiseMode.MUL, lambda x, b: x * b * 1.01)
    assert is_cudnn_result_reported_wrong(g.graph(), "uniform", gpu)
    made = reduce_failing_graph(
        g.graph(), "uniform", lambda graph, data: is_cudnn_result_reported_wrong(graph, data, gpu), budget_s=30
    )
    (op,) = made.graph.ops
    assert op.kind is DescriptorType.OPERATION_POINTWISE
    assert op.parameters()["mode"] is PointwiseMode.MUL


def test_a_random_graph_campaign_runs_in_child_processes(gpu: Target) -> None:
    found = run_random_graphs_for_a_time(RandomGraphCampaignOptions(seconds=300, most=30, processes=2, reduce_s=5))
    assert found.sum_counts()["graphs"] == 30
    assert found.sum_counts()["compared"] >= get_minimum_expected_count_on_this_gpu(
        "graphs of a campaign that are compared"
    )
    assert not [failure for failure in found.failures if not failure["faults"]]
    assert set(found.counts) <= set(GRAPH_FAMILIES)
