"""The benchmarks over many shapes, without a GPU: their shapes, acceptance criteria and reports."""

from __future__ import annotations

import math
from typing import Any

import pytest

from benchmarks import shape_classes, torch_calls
from benchmarks.endurance import any_shape, capture_soak
from benchmarks.judge import compare_record_with_limits
from benchmarks.model import run as model
from cudnn_backend_py import OperationGraph, open_target
from cudnn_backend_py.cli.compare import comparison as grid
from cudnn_backend_py.cli.compare.problems import DIRECTIONS, build_attention_graph, format_attention_problem
from cudnn_backend_py.execution import plan_pool
from cudnn_backend_py.graph.attention.shape_class import choose_shape_class_bounds


def make_timing_record(median: float, spread: float = 0.1) -> dict[str, float]:
    return {"median_us": median, "low_us": median - spread, "high_us": median + spread, "samples": 9}


def get_result_of_each_criterion(made: dict[str, Any], accepted: Any) -> dict[str, bool | None]:
    return {item["name"]: item["passed"] for item in compare_record_with_limits(made, accepted)}


# the shapes


def test_the_shape_grid_covers_the_attention_options() -> None:
    shapes = list(grid.make_attention_grid())
    assert len({format_attention_problem(shape) for shape in shapes}) == len(shapes) > 25
    assert {(shape.head_dim, shape.causal) for shape in shapes} == {(d, c) for d in (64, 128) for c in (True, False)}
    assert {shape.seq_q for shape in shapes} == set(grid.SEQUENCE_LENGTHS)
    assert any(shape.kv_heads != shape.heads for shape in shapes)
    assert any(shape.batch == 1 and shape.seq_q <= 1024 for shape in grid.make_attention_grid((128,), (128,)))


def test_random_shapes_are_distinct_and_bounded() -> None:
    shapes = shape_classes.make_random_shapes(200)
    assert len({format_attention_problem(shape) for shape in shapes}) == 200
    assert shapes == shape_classes.make_random_shapes(200)
    assert all(shape.batch * shape.seq_q <= 1.5 * shape_classes.MAX_TOKENS for shape in shapes)
    assert min(shape.seq_q for shape in shapes) < 128 < 4096 < max(shape.seq_q for shape in shapes)


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_cudnn_supports_random_shapes(direction: Any) -> None:
    target = open_target("h200")
    for shape in shape_classes.make_random_shapes(5):
        assert (
            OperationGraph(build_attention_graph(shape, direction, target.library.version, target.sm), target)
            .heuristics("A")
            .configs
        )
    target.close()


def test_the_largest_shape_class_contains_all_random_shapes() -> None:
    shapes, classes = any_shape.make_random_shapes(100_000), any_shape.find_shape_class_bounds()
    assert len(set(shapes)) == len(shapes) == 100_000
    assert all(one <= most for shape in shapes for one, most in zip(shape, classes[0], strict=True))
    assert {(choose_shape_class_bounds(b, s, s).batch, choose_shape_class_bounds(b, s, s).q) for b, s in shapes} <= set(
        classes
    )
    assert 2 * len(classes) < plan_pool._MAX_PLANS, "the pool must hold the plans of both passes"
    most = any_shape.BATCHES * any_shape.LENGTHS
    assert len(any_shape.make_random_shapes(most + 1)) == most


# acceptance and report


def test_the_fastest_calling_methods_and_ties_are_listed() -> None:
    assert grid.find_fastest(
        {"a": make_timing_record(10.0), "b": make_timing_record(10.1), "c": make_timing_record(12.0)}
    ) == [
        "a",
        "b",
    ]
    assert grid.find_fastest({}) == []


def test_the_shape_grid_is_reported_as_markdown() -> None:
    times = {"ours, exact": make_timing_record(10.0), "torch flash": make_timing_record(12.0)}
    row = {"shape": "b1", "direction": "forward", "plans": {"ours, exact": "eng2_k24=7"}, "gpu": times, "host": {}}
    facts = {"cudnn": "9.19.0", "python": "3.12"}
    record = {"rows": [row | {"fastest": grid.find_fastest(times)}], "environment": facts, "gpu_name": "H200"}
    text = grid.format_markdown(record | {"torch": "2.11", "date": "2026-11-22"})
    assert "| b1 | forward | **10.0** | 12.0 | ours, exact `eng2_k24=7` |" in text
    assert "cuDNN 9.19.0, torch 2.11" in text
    assert grid.make_time_table(record).row_count == 1


def test_shape_classes_are_accepted_by_median_and_p90_times() -> None:
    us = {
        "exact": make_timing_record(10.0),
        "any": make_timing_record(11.0),
        "exact operator": make_timing_record(10.0),
        "adaptive": make_timing_record(10.1),
    }
    rows = [{"direction": direction, "us": us} for direction in DIRECTIONS for _ in range(10)]
    assert set(get_result_of_each_criterion({"rows": rows}, shape_classes.ACCEPTANCE_LIMITS).values()) == {True}
    slow = {**us, "any": make_timing_record(16.0), "adaptive": make_timing_record(10.5)}
    rows = [{"direction": direction, "us": slow} for direction in DIRECTIONS]
    assert set(get_result_of_each_criterion({"rows": rows}, shape_classes.ACCEPTANCE_LIMITS).values()) == {False}
    assert set(get_result_of_each_criterion({"rows": []}, shape_classes.ACCEPTANCE_LIMITS).values()) == {None}


def test_growing_memory_is_not_accepted() -> None:
    def make_memory_samples(step: int) -> list[dict[str, int]]:
        return [{"resident_bytes": 10**9 + step * n, "gpu_bytes": 10**9 + step * n} for n in range(20)]

    good = {
        "first_call_ms": {"median": 0.1, "p99": 0.5},
        "largest_relative_error": 2.6e-4,
        "points": make_memory_samples(0),
    }
    good["compared"] = 200
    forward = get_result_of_each_criterion(good, any_shape.ACCEPTANCE_LIMITS)
    assert [name for name, found in forward.items() if found is None] == [
        "host time of the first backward pass of a shape, median, ms",
        "host time of the first backward pass of a shape, p99, ms",
    ]
    slow = get_result_of_each_criterion(
        good | {"first_backward_ms": {"median": 0.16, "p99": 0.5}}, any_shape.ACCEPTANCE_LIMITS
    )
    assert list(slow.values())[2:4] == [False, True]
    good["first_backward_ms"] = {"median": 0.1, "p99": 0.5}
    assert set(get_result_of_each_criterion(good, any_shape.ACCEPTANCE_LIMITS).values()) == {True}
    grown = get_result_of_each_criterion(good | {"points": make_memory_samples(1 << 20)}, any_shape.ACCEPTANCE_LIMITS)
    assert [name for name, found in grown.items() if not found] == [
        "host memory after the first tenth, bytes more",
        "GPU memory after the first tenth, bytes more",
    ]
    value = compare_record_with_limits(good, any_shape.ACCEPTANCE_LIMITS)[-1]["value"]
    assert value == 0.26, "small errors must be reported too"
    unknown = get_result_of_each_criterion(good | {"compared": 0}, any_shape.ACCEPTANCE_LIMITS)
    assert list(unknown.values())[-1] is None, "without comparisons the criterion must be undecided"


def test_every_cuda_graph_replay_must_be_checked() -> None:
    good = {"largest_relative_error": 0.001, "replays": 10, "counted": 10, "build_in_capture": "plan-in-capture"}
    good["asked"] = 10
    good["points"] = [{"resident_bytes": 1, "gpu_bytes": 1}] * 2
    assert set(get_result_of_each_criterion(good, capture_soak.ACCEPTANCE_LIMITS).values()) == {True}
    bad = get_result_of_each_criterion(
        good | {"counted": 9, "build_in_capture": "it was built"}, capture_soak.ACCEPTANCE_LIMITS
    )
    assert list(bad.values()).count(False) == 2
    ended = get_result_of_each_criterion(good | {"asked": 20}, capture_soak.ACCEPTANCE_LIMITS)
    assert [name for name, right in ended.items() if not right] == ["replays there was no time for"]


def test_operators_are_accepted_by_comparing_host_times_with_torch() -> None:
    peers = {
        "ours": make_timing_record(10.0),
        "torch cudnn": make_timing_record(19.0),
        "torch flash": make_timing_record(17.0),
    }
    us = {f"dense, b1: {way}": dict(peers) for way in torch_calls.PASS_NAMES}
    us["packed, b4: no gradients"] = {
        "ours": make_timing_record(20.0),
        "torch varlen": make_timing_record(60.0),
        "C loop": make_timing_record(15.0),
    }
    found = get_result_of_each_criterion({"us": us}, torch_calls.ACCEPTANCE_LIMITS)
    assert len(found) == 8
    assert set(found.values()) == {True}
    us["dense, b1: backward"]["ours"] = make_timing_record(18.0)
    assert [
        name
        for name, good in get_result_of_each_criterion({"us": us}, torch_calls.ACCEPTANCE_LIMITS).items()
        if not good
    ] == ["dense, backward: ours / torch flash"]
    assert set(get_result_of_each_criterion({"us": {}}, torch_calls.ACCEPTANCE_LIMITS).values()) == {None}


# the model


def make_epoch_record(step: float, first: float, losses: list[float]) -> dict[str, Any]:
    times = {"first_step_ms": first, "step_ms": step, "host_ms": step, "seconds": first}
    return {**times, "steps": 2, "tokens_per_second": 10, "losses": losses}


def make_training_record(step: float, first: float, losses: list[float]) -> dict[str, Any]:
    epochs: dict[str, Any] = {name: make_epoch_record(step, first, losses) for name in model.EPOCH_NAMES}
    epochs["same weights"] = {"losses": [round(losses[0], 1)], "gradients": [[losses[1] / round(losses[0], 1)]]}
    served = {"prefill_ms": 1.0, "first_decode_ms": 1.0, "decode_ms": 1.0, "tokens_per_second": 9, "loss": losses[0]}
    return {"packed": epochs, "padded": epochs, "serving": served, "serving, captured": served}


def test_the_model_is_accepted_by_comparison_with_torch_flash() -> None:
    made: dict[str, Any] = {"parameters": 1, "makers": {"torch flash": make_training_record(10.0, 1.0, [5.0, 4.0])}}
    assert set(get_result_of_each_criterion(made, model.ACCEPTANCE_LIMITS).values()) == {None}
    made["makers"] |= {
        "ours, adaptive": make_training_record(9.0, 1.0, [5.01, 4.0]),
        "torch cudnn": make_training_record(9.0, 9.0, [5.0, 4.0]),
    }
    assert set(get_result_of_each_criterion(made, model.ACCEPTANCE_LIMITS).values()) == {True}
    assert model.make_model_table(made).row_count == 20
    made["makers"]["ours, adaptive"] = make_training_record(11.0, 8.0, [6.0, 4.0])
    assert set(get_result_of_each_criterion(made, model.ACCEPTANCE_LIMITS).values()) == {False}
    made["makers"]["ours, adaptive"] = make_training_record(9.0, 1.0, [5.0, math.nan])
    assert not get_result_of_each_criterion(made, model.ACCEPTANCE_LIMITS)[
        "packed: losses apart from those of torch flash"
    ]


def test_a_provider_stopped_by_its_time_limit_is_not_compared_further() -> None:
    """A stopped first epoch has no measured time; for torch's cuDNN, its time limit is a lower bound."""
    made: dict[str, Any] = {"parameters": 1, "makers": {"torch flash": make_training_record(10.0, 1.0, [5.0, 4.0])}}
    made["makers"] |= {
        "ours, adaptive": make_training_record(9.0, 1.0, [5.0, 4.0]),
        "torch cudnn": make_training_record(9.0, 9.0, [5.0, 4.0]),
    }
    made["makers"]["torch cudnn"] |= {
        "serving": {"loss": 7.0},
        "packed": make_training_record(9.0, 9.0, [5.0, 9.0])["padded"],
    }
    made["makers"]["torch cudnn"]["packed"]["first epoch"] |= {"steps": 1, "losses": [5.0]}
    found = get_result_of_each_criterion(made, model.ACCEPTANCE_LIMITS)
    assert found["packed: first epoch, ours, adaptive / torch cudnn"]
    assert found["packed: losses apart from those of torch flash"]
    assert found["serving: losses apart from those of torch flash"]
    made["makers"]["ours, adaptive"]["packed"]["first epoch"]["steps"] = 0
    assert (
        get_result_of_each_criterion(made, model.ACCEPTANCE_LIMITS)["packed: first epoch, ours, adaptive / torch cudnn"]
        is None
    )


def test_missing_measurements_are_reported() -> None:
    made: dict[str, Any] = {"parameters": 1, "makers": {"cudnn-frontend": {"not measured": "it is not installed"}}}
    assert set(get_result_of_each_criterion(made, model.ACCEPTANCE_LIMITS).values()) == {None}
    assert model.make_model_table(made).row_count == 20
