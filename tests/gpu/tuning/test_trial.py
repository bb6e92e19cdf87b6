"""Checks of graphs on the GPU against the interpreter: right engines pass, and introduced errors are found."""

from __future__ import annotations

import json
import math
import shlex
from typing import Any

import pytest

from cudnn_backend_py import DataType, Graph, GraphBuilder, PointwiseMode
from cudnn_backend_py.errors import CudnnBackendError
from cudnn_backend_py.graph import attention
from cudnn_backend_py.graph.encoded import GRAPH_PREFIX, decode_graph
from cudnn_backend_py.interpreter.data import DATA_KINDS
from cudnn_backend_py.known_issues import find_issues_failing_before_execution
from cudnn_backend_py.plans.build import shared_target
from cudnn_backend_py.rewrite.reduce import ReducedFailingGraph, reduce_failing_graph
from cudnn_backend_py.tuning.trial import Trial, run_graph
from cudnn_backend_py.tuning.trial.runner import Runner
from tests.support.figures import append_measurement_to_run_record
from tests.support.gpu_requirements import skip_if_support_not_measured_on_this_gpu
from tests.support.typical_graphs import TYPICAL_GRAPHS
from tests.support.wrong_scales import (
    SCALE_FACTORS,
    WRONG_MODES,
    WRONG_SCALES,
    use_wrong_pointwise_mode_in_interpreter,
    use_wrong_scale_in_interpreter,
)

GRAPH_NAMES = ("convolution forward", "matmul", "pointwise", "reduction", "layer norm, training", "rms norm, training")


def run_trial_and_check_results(graph: Graph, **options: Any) -> Trial:
    """Run a graph that must equal the interpreter's results; skip the test if cuDNN refuses it on an unmeasured GPU."""
    trial = run_graph(graph, **options)
    if trial.state == "refused":
        skip_if_support_not_measured_on_this_gpu(trial.words)
    assert trial.state == "right", (trial.words, [(item.tag, item.state, item.words) for item in trial.configs])
    return trial


def make_scaled_matmul(factor: float) -> Graph:
    g = GraphBuilder("scaled")
    c = g.matmul(g.tensor("a", (2, 128, 64)), g.tensor("b", (2, 64, 256)))
    g.pointwise(PointwiseMode.MUL, c, g.scalar(factor, rank=3), virtual=False)
    return g.graph()


@pytest.mark.parametrize("kind", DATA_KINDS)
@pytest.mark.parametrize("name", GRAPH_NAMES)
def test_trials_report_engines_that_compute_right_as_right(name: str, kind: str) -> None:
    trial = run_trial_and_check_results(TYPICAL_GRAPHS[name].make(), data=kind, configs=3, time=False)
    assert trial.configs
    assert all(item.comparisons for item in trial.configs if item.state == "right")


def test_attention_is_right_and_timed() -> None:
    graph = attention.sdpa_forward(batch=2, heads=4, seq_q=256, head_dim=64, causal=True, stats=True)
    trial = run_trial_and_check_results(graph)
    (config,) = trial.configs
    assert config.state == "right", config.words
    assert config.cold is not None
    assert config.warm is not None
    assert 1 < config.warm.median_us < 1e5
    assert {item.output for item in config.comparisons} == {"o", "stats"}
    append_measurement_to_run_record("a trial of attention", seconds=trial.seconds, cold_us=config.cold.median_us)
    assert Trial.from_dict(json.loads(json.dumps(trial.to_dict(), allow_nan=False))) == trial


@pytest.mark.parametrize("data", ["uniform", "integers"])
def test_a_trial_finds_a_wrong_matmul_scale(data: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the interpreter compute a graph with a scale that is one percent larger than in cuDNN's graph."""
    from cudnn_backend_py.tuning.trial import trial as module

    real = module.compute_expected_outputs
    wrong = make_scaled_matmul(1.01)
    run_trial_and_check_results(make_scaled_matmul(1.0), data=data, time=False)

    def compute_expected_outputs_of_wrong_graph(graph: Graph, *arguments: Any, **options: Any) -> Any:
        return real(wrong, *arguments, **options)

    monkeypatch.setattr(module, "compute_expected_outputs", compute_expected_outputs_of_wrong_graph)
    trial = run_graph(make_scaled_matmul(1.0), data=data, time=False)
    assert trial.state == "wrong"
    assert "beyond" in trial.configs[0].words


def is_cudnn_result_reported_wrong(graph: Graph, data: str) -> bool:
    """Return whether cuDNN's result is reported as wrong; graphs known to crash cuDNN are not run."""
    target = shared_target()
    if find_issues_failing_before_execution(graph, target.sm, target.library.version):
        return False
    try:
        return run_graph(graph, data=data, time=False).state == "wrong"
    except CudnnBackendError:  # a step that leaves no graph
        return False


def reduce_wrong_graph(graph: Graph) -> ReducedFailingGraph:
    """Return the smallest reduced graph with a wrong result; large graphs get more time for the reduction."""
    made = reduce_failing_graph(
        graph, "uniform", is_cudnn_result_reported_wrong, budget_s=60 if len(graph.ops) < 5 else 300
    )
    elements = [sum(math.prod(tensor.dims) for tensor in item.tensors) for item in (graph, made.graph)]
    assert elements[1] < elements[0], made.steps
    append_measurement_to_run_record(
        "a planted fault", graph=graph.name, steps=made.steps, tried=made.tried, elements=elements
    )
    return made


@pytest.mark.parametrize(
    ("family", "kind"),
    [(name, kind) for name, (*_, kinds) in WRONG_SCALES.items() for kind in kinds],
    ids=lambda value: getattr(value, "name", str(value)),
)
def test_a_wrong_scale_in_each_operation_and_type_is_found(family: str, kind: DataType) -> None:
    """Let the interpreter scale one operation wrongly; the graph made smaller must still have the operation."""
    make, operation, _ = WRONG_SCALES[family]
    graph = make(kind)
    run_trial_and_check_results(graph, seed=1, time=False)
    for factor in SCALE_FACTORS[kind]:
        with use_wrong_scale_in_interpreter(operation, factor):
            wrong = run_graph(graph, seed=1, time=False)
        assert wrong.state == "wrong", (factor, [str(item) for item in wrong.configs[0].comparisons])
    with use_wrong_scale_in_interpreter(operation, SCALE_FACTORS[kind][0]):
        made = reduce_wrong_graph(graph)
    assert operation in {op.kind for op in made.graph.ops}
    assert len(made.graph.ops) <= (len(graph.ops) if "attention" in family else 2)


@pytest.mark.parametrize("name", WRONG_MODES)
def test_a_wrong_pointwise_mode_is_found_and_its_graph_reduced(name: str) -> None:
    """Let the interpreter compute another mode, or a mask that is off by one; the reduced graph must have the mode."""
    make, mode, other = WRONG_MODES[name]
    graph = make()
    run_trial_and_check_results(graph, seed=1, time=False)
    with use_wrong_pointwise_mode_in_interpreter(mode, other):
        assert run_graph(graph, seed=1, time=False).state == "wrong"
        made = reduce_wrong_graph(graph)
    assert mode in {op.parameters().get("mode") for op in made.graph.ops}


def test_the_printed_command_of_a_config_reproduces_its_trial() -> None:
    trial = run_trial_and_check_results(make_scaled_matmul(1.0), configs="all", time=False)
    config = trial.configs[-1]
    (word,) = (word for word in shlex.split(config.reproduce) if word.startswith(GRAPH_PREFIX))
    assert decode_graph(word) == make_scaled_matmul(1.0)
    again = run_graph(decode_graph(word), configs=config.tag, time=False)
    assert again.configs[0].comparisons == config.comparisons


def test_a_child_process_gives_the_same_trial() -> None:
    graph = TYPICAL_GRAPHS["matmul"].make()
    with Runner(limit_s=60) as runner:
        there = runner.run(graph, configs=2, time=False)
    here = run_graph(graph, configs=2, time=False)
    assert [(item.tag, item.state, item.comparisons) for item in there.configs] == [
        (item.tag, item.state, item.comparisons) for item in here.configs
    ]


def test_integer_data_are_compared_exactly() -> None:
    g = GraphBuilder("whole", io_type=DataType.HALF)
    g.matmul(g.tensor("a", (1, 64, 64)), g.tensor("b", (1, 64, 64)), data_type=DataType.FLOAT, virtual=False)
    trial = run_trial_and_check_results(g.graph(), data="integers", configs="all", time=False)
    assert trial.outputs[0].largest_bound == 0
