"""Random graphs, and reduction of failing graphs; an interpreter with wrong results takes the place of cuDNN."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from cudnn_backend_py import DataType, Graph, GraphBuilder, GraphError
from cudnn_backend_py.errors import UsageError
from cudnn_backend_py.generated.enums import DescriptorType, NormMode, PointwiseMode
from cudnn_backend_py.graph import graph_from_json, graph_to_json
from cudnn_backend_py.graph.replace import iterate_all_ops
from cudnn_backend_py.interpreter import convolution, interpret, pointwise
from cudnn_backend_py.interpreter.data import make_inputs
from cudnn_backend_py.rewrite.reduce import reduce_failing_graph
from cudnn_backend_py.tuning.trial.bound import compute_expected_outputs
from cudnn_backend_py.tuning.trial.expectation import compute_expectation
from tools.campaign.coverage import find_features_of_no_graph, list_graph_features
from tools.campaign.graphs import ATTENTION_FAMILIES, GRAPH_FAMILIES, make_random_graph
from tools.campaign.plan_check import compare_exact_and_perturbed_runs
from tools.campaign.runner import FAMILY_WEIGHTS, RandomGraphCampaignResult

D, P = DescriptorType, PointwiseMode
VERSION = (9, 28, 0)


# random graphs


@pytest.mark.parametrize("family", GRAPH_FAMILIES)
def test_a_random_graph_depends_only_on_its_seed(family: str) -> None:
    first, again = (make_random_graph(7, family, version=VERSION) for _ in range(2))
    assert first == again
    assert first != make_random_graph(8, family, version=VERSION)
    assert graph_from_json(graph_to_json(first)) == first


@pytest.mark.parametrize("family", GRAPH_FAMILIES)
def test_exact_and_rounding_interpreter_agree_on_random_graphs(family: str) -> None:
    for seed in range(3):
        found = compare_exact_and_perturbed_runs(make_random_graph(seed, family, version=VERSION), "uniform", seed)
        assert found.comparisons
        assert not found.descriptions_of_wrong_outputs, (seed, found.descriptions_of_wrong_outputs)


def test_every_category_of_random_graphs_has_a_sampling_weight() -> None:
    assert set(FAMILY_WEIGHTS) == set(GRAPH_FAMILIES)
    with pytest.raises(UsageError, match="no family is called 'poetry'"):
        make_random_graph(0, "poetry")


def test_random_graphs_omit_operations_newer_than_the_version() -> None:
    old = {
        op.kind for seed in range(60) for op in iterate_all_ops(make_random_graph(seed, "moves", version=(9, 19, 0)))
    }
    new = {op.kind for seed in range(60) for op in iterate_all_ops(make_random_graph(seed, "moves", version=VERSION))}
    assert D.OPERATION_SLICE in new - old
    assert old <= new


def test_random_graphs_cover_all_operation_kinds_and_modes() -> None:
    counts: Counter[str] = Counter()
    for family in GRAPH_FAMILIES:
        for seed in range(250 if family == "mode" else 60):
            counts += list_graph_features(make_random_graph(seed, family, version=VERSION))
    lacking = find_features_of_no_graph(counts)
    # A signal waits for another graph, no engine has a band; NEAREST is not interpreted.
    assert set(lacking.pop("operation")) == {"SIGNAL", "EXPAND_BAND_MATRIX", "CONTRACT_BAND_MATRIX"}
    assert lacking.pop("resample") == ["NEAREST"]
    assert not any(lacking.values()), lacking
    assert {"layout ragged", "layout with gaps", "layout permuted", "layout channels last"} <= counts.keys()
    assert {f"rank {rank}" for rank in (2, 3, 4, 5)} <= counts.keys()


# reduction of failures


def differs_with_wrong_products(graph: Graph, data: str) -> bool:
    """Return whether the interpreter's results differ from those of an interpreter with wrong products."""
    inputs = make_inputs(graph, data)
    device = interpret(graph, inputs, rounding=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(pointwise.BINARY, P.MUL, lambda x, b: x * b * 1.01)
        expected = compute_expected_outputs(graph, inputs)
    return any(not item.compare(device[name]).is_right for name, item in expected.items())


def is_valid_and_differs_with_wrong_products(graph: Graph, data: str) -> bool:
    try:
        return differs_with_wrong_products(graph, data)
    except GraphError:
        return False


@pytest.mark.parametrize("family", ["convolution", "matmul", "batch norm", "attention", "fusion"])
def test_a_failing_graph_is_reduced_to_one_wrong_multiplication(family: str) -> None:
    """The modified interpreter multiplies every pointwise product by 1.01."""
    graphs = (make_random_graph(seed, family, version=VERSION) for seed in range(80))
    graph = next(g for g in graphs if len(g.ops) > 2 and is_valid_and_differs_with_wrong_products(g, "uniform"))
    made = reduce_failing_graph(graph, "uniform", is_valid_and_differs_with_wrong_products, budget_s=60)
    assert made.complete
    assert is_valid_and_differs_with_wrong_products(made.graph, made.data)
    (op,) = made.graph.ops
    assert op.kind is D.OPERATION_POINTWISE
    assert op.parameters()["mode"] is P.MUL
    assert max(max(tensor.dims) for tensor in made.graph.tensors) <= 16
    assert made.tried <= 120


def test_graphs_without_products_do_not_reveal_wrong_products() -> None:
    for seed in range(5):
        assert not any(
            is_valid_and_differs_with_wrong_products(make_random_graph(seed, family, version=VERSION), "uniform")
            for family in ("reduction", "resample")
        )


def test_failure_minimization_shrinks_dims_windows_and_options() -> None:
    g = GraphBuilder("net", io_type=DataType.HALF)
    x, w = (
        g.tensor("x", (4, 32, 12, 10), strides="channels_last"),
        g.tensor("w", (48, 8, 3, 3), strides="channels_last"),
    )
    y = g.convolution(x, w, padding=(2, 1), post_padding=1, stride=2, dilation=(1, 2))
    z = g.pointwise(P.ADD, y, g.tensor("bias", (1, 48, 1, 1)), strides=y.strides)
    g.pointwise(P.RELU_FWD, z, parameters={"relu_lower_clip_slope": 0.1}, virtual=False, strides=y.strides)

    def has_convolution(graph: Graph, data: str) -> bool:
        kinds = {op.kind for op in graph.ops}
        try:
            interpret(graph, make_inputs(graph, data))
        except GraphError:
            return False
        return D.OPERATION_CONVOLUTION_FORWARD in kinds

    made = reduce_failing_graph(g.graph(), "hostile", has_convolution)
    (op,) = made.graph.ops
    assert made.data == "integers"
    assert count_elements(made.graph) < 40
    given = op.parameters()["convolution"].fields
    assert (given["pre_paddings"], given["filter_strides"], given["dilations"]) == ((0, 0), (1, 1), (1, 1))
    assert all(tensor.data_type is DataType.FLOAT for tensor in made.graph.tensors)


def count_elements(graph: Graph) -> int:
    return sum(int(np.prod(tensor.dims)) for tensor in graph.tensors)


def test_failure_minimization_removes_the_statistics_of_a_norm() -> None:
    g = GraphBuilder("norm")
    x, scale, bias = (
        g.tensor("x", (8, 64, 1, 1)),
        *(g.tensor(n, (1, 64, 1, 1), DataType.FLOAT) for n in ("scale", "bias")),
    )
    g.norm_forward(NormMode.LAYER_NORM, x, scale, bias, training=True, virtual=False)
    made = reduce_failing_graph(
        g.graph(), "uniform", lambda graph, _: any(o.kind is D.OPERATION_NORM_FORWARD for o in graph.ops)
    )
    assert set(dict(made.graph.ops[0].ports())) <= {"x", "scale", "y"}


def test_a_failing_graph_is_reduced_to_its_wrong_convolution(monkeypatch: pytest.MonkeyPatch) -> None:
    """The modified interpreter scales the results of convolutions only."""
    graph = next(
        g
        for g in (make_random_graph(seed, "fusion", version=VERSION) for seed in range(50))
        if any(op.kind is D.OPERATION_CONVOLUTION_FORWARD for op in g.ops)
    )
    right = convolution.OPERATIONS[D.OPERATION_CONVOLUTION_FORWARD]

    def has_wrong_convolution(graph: Graph, data: str) -> bool:
        inputs = make_inputs(graph, data)
        device = interpret(graph, inputs, rounding=True)
        with monkeypatch.context() as patch:
            from cudnn_backend_py.interpreter import OPERATIONS

            def compute_wrong_convolution(run, op):  # type: ignore[no-untyped-def]
                right(run, op)
                run._values[op.fields["y"].uid] = run._values[op.fields["y"].uid] * 1.05

            patch.setitem(OPERATIONS, D.OPERATION_CONVOLUTION_FORWARD, compute_wrong_convolution)
            expected = compute_expected_outputs(graph, inputs)
        return any(not item.compare(device[name]).is_right for name, item in expected.items())

    def is_valid_with_wrong_convolution(graph: Graph, data: str) -> bool:
        try:
            return has_wrong_convolution(graph, data)
        except GraphError:
            return False

    assert is_valid_with_wrong_convolution(graph, "uniform")
    made = reduce_failing_graph(graph, "uniform", is_valid_with_wrong_convolution)
    assert [op.kind for op in made.graph.ops if op.kind is not D.OPERATION_POINTWISE] == [
        D.OPERATION_CONVOLUTION_FORWARD
    ]
    assert len(made.graph.ops) <= 2
    assert count_elements(made.graph) < 120


def test_failure_minimization_keeps_its_budget_and_tries_no_graph_twice() -> None:
    graph = make_random_graph(3, "convolution", version=VERSION)
    judged: list[tuple[Graph, str]] = []

    def record_and_report_no_failure(graph: Graph, data: str) -> bool:
        judged.append((graph, data))
        return False

    assert reduce_failing_graph(graph, "uniform", record_and_report_no_failure, most=3).tried == 3
    assert not reduce_failing_graph(graph, "uniform", record_and_report_no_failure, budget_s=0).complete
    judged.clear()
    made = reduce_failing_graph(graph, "uniform", record_and_report_no_failure)
    assert (made.graph, made.data, made.steps) == (graph, "uniform", [])
    assert made.complete
    assert len(judged) == len(set(judged)) == made.tried


# findings


def test_results_of_random_graph_runs_are_summarized() -> None:
    campaign = RandomGraphCampaignResult()
    base = {"family": "matmul", "engine": "eng7_k1=2", "cover": {"rank 3": 1}, "seconds": {"plan": 0.5}}
    campaign.add({**base, "seed": 1, "outcomes": {"accepted": 1, "compared": 1}})
    failure = {
        "seed": 2,
        "family": "sdpa",
        "outcome": "differs",
        "faults": "",
        "words": "o: error",
        "smallest": {"text": "o"},
    }
    campaign.add({**base, "family": "sdpa", "seed": 2, "outcomes": {"accepted": 1, "differs": 1}, "failure": failure})
    campaign.add({**base, "seed": 3, "outcomes": {"refused": 1}, "refused": "no"})
    found = campaign.to_dict()
    assert found["outside attention"] == {"graphs": 2, "accepted": 1, "compared": 1, "refused": 1}
    assert found["attention"]["differs"] == 1
    assert found["unnamed failures"] == 1
    [group] = found["failures"]
    assert (group["count"], group["seed"], group["smallest"]) == (1, 2, "o")
    assert found["covered"] == {"rank 3": 2}  # a refused graph covers nothing
    assert "differs: sdpa, seed 2, no known issue" in campaign.render()
    assert set(ATTENTION_FAMILIES) <= set(GRAPH_FAMILIES)


def test_elements_that_depend_on_denormal_handling_are_not_compared() -> None:
    """A small number divided by a denormal number is infinite if the denormal is flushed to 0, and large otherwise."""
    g = GraphBuilder("over", io_type=DataType.FLOAT)
    z = g.pointwise(PointwiseMode.SOFTPLUS_FWD, g.tensor("x", (1, 2)), parameters={"softplus_beta": 2.0})
    g.pointwise(PointwiseMode.DIV, z, g.tensor("b", (1, 2)), name="y", virtual=False)
    graph = g.graph()
    inputs = {graph.tensor("x").uid: np.array([[-33.0, 1.0]]), graph.tensor("b").uid: np.array([[2e-40, 1.0]])}
    found = compute_expectation(graph, "hostile", inputs, 0, None)["y"]
    assert found.defined.tolist() == [[False, True]]
