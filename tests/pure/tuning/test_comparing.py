"""Decisions of tuning on plain data: statistics, winner, comparison of results, time budget, inputs, table. No GPU."""

from __future__ import annotations

import io
import math
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from cudnn_backend_py import DataType, GraphBuilder, PointwiseMode, UsageError
from cudnn_backend_py.graph import attention
from cudnn_backend_py.graph.formats import decode, encode
from cudnn_backend_py.interpreter import interpret
from cudnn_backend_py.tuning.agreement import ROW_FACTOR, TOLERANCES, Difference, compare
from cudnn_backend_py.tuning.inputs import make_missing_inputs
from cudnn_backend_py.tuning.statistics import (
    MIN_ROUNDS,
    TimeBudget,
    Timing,
    choose_fastest_candidate,
    find_slow_candidates,
    make_timing_table,
)

# statistics and choice


def make_timing(median: float, spread: float = 0.1, samples: int = 20) -> Timing:
    return Timing(median, median - spread, median + spread, samples)


def make_cold_and_warm_timings(cold: Timing, warm: Timing | None = None) -> dict[Any, Timing]:
    return {"cold": cold, "warm": warm or cold}


def test_timing_uses_median_and_quartiles_and_ignores_one_outlier() -> None:
    quiet = Timing.from_times([10.0, 11.0, 12.0, 13.0, 14.0])
    assert quiet == Timing(12.0, 11.0, 13.0, 5)
    assert quiet.spread_us == 1.0
    assert Timing.from_times([10.0, 11.0, 12.0, 13.0, 9000.0]).median_us == 12.0


def test_a_time_within_spread_or_noise_does_not_beat_another() -> None:
    assert make_timing(9.0).beats(make_timing(10.0))
    assert not make_timing(9.9).beats(make_timing(10.0))  # spreads of 0.1 each
    assert not make_timing(98.5, 0.0).beats(make_timing(100.0, 0.0))  # less than two percent
    assert not make_timing(10.0).beats(make_timing(9.0))


def test_the_fastest_candidate_that_beats_the_first_wins() -> None:
    timings = {
        "first": make_cold_and_warm_timings(make_timing(10.0)),
        "b": make_cold_and_warm_timings(make_timing(8.0)),
        "c": make_cold_and_warm_timings(make_timing(7.0)),
    }
    assert choose_fastest_candidate(timings, "first") == "c"


def test_the_first_candidate_wins_if_no_other_beats_it_beyond_the_spread() -> None:
    timings = {
        "first": make_cold_and_warm_timings(make_timing(10.0, 1.0)),
        "b": make_cold_and_warm_timings(make_timing(9.5, 1.0)),
    }
    assert choose_fastest_candidate(timings, "first") == "first"
    assert choose_fastest_candidate({"first": make_cold_and_warm_timings(make_timing(10.0))}, "first") == "first"


def test_a_candidate_with_small_spread_wins_over_one_with_large_spread() -> None:
    timings = {
        "first": make_cold_and_warm_timings(make_timing(10.0)),
        "wild": make_cold_and_warm_timings(make_timing(7.9, 3.0)),
        "calm": make_cold_and_warm_timings(make_timing(8.0)),
    }
    assert choose_fastest_candidate(timings, "first") == "calm"


def test_a_candidate_slower_with_a_warm_cache_does_not_win() -> None:
    timings = {
        "first": make_cold_and_warm_timings(make_timing(10.0), make_timing(5.0)),
        "b": make_cold_and_warm_timings(make_timing(8.0), make_timing(6.0)),
    }
    assert choose_fastest_candidate(timings, "first", "cold") == "first"
    assert (
        choose_fastest_candidate(
            {**timings, "b": make_cold_and_warm_timings(make_timing(8.0), make_timing(5.1))}, "first", "cold"
        )
        == "b"
    )


def test_the_winner_depends_on_the_requested_cache_state() -> None:
    timings = {
        "first": make_cold_and_warm_timings(make_timing(10.0), make_timing(5.0)),
        "b": make_cold_and_warm_timings(make_timing(10.0), make_timing(4.0)),
        "c": make_cold_and_warm_timings(make_timing(9.0), make_timing(5.0)),
    }
    assert choose_fastest_candidate(timings, "first", "cold") == "c"
    assert choose_fastest_candidate(timings, "first", "warm") == "b"


def test_a_candidate_with_too_few_samples_does_not_win() -> None:
    timings = {
        "first": make_cold_and_warm_timings(make_timing(10.0)),
        "b": make_cold_and_warm_timings(make_timing(5.0, samples=MIN_ROUNDS - 1)),
    }
    assert choose_fastest_candidate(timings, "first") == "first"


def test_only_candidates_slow_with_cold_and_warm_cache_are_dropped() -> None:
    timings = {
        "first": make_cold_and_warm_timings(make_timing(40.0)),
        "best": make_cold_and_warm_timings(make_timing(10.0)),
        "near": make_cold_and_warm_timings(make_timing(14.0)),
        "far": make_cold_and_warm_timings(make_timing(20.0)),
        "warm only": make_cold_and_warm_timings(make_timing(20.0), make_timing(10.0)),
    }
    assert find_slow_candidates(timings, "first") == {"far"}


def test_budget_counts_elapsed_time() -> None:
    now = [100.0]
    budget = TimeBudget(10.0, clock=lambda: now[0])
    assert budget.has_time_for(10.0)
    assert not budget.has_time_for(6.5, share=0.6)
    now[0] += 4.0
    assert budget.spent_s == 4.0
    assert budget.has_time_for(6.0)
    assert budget.has_time_for(2.0, share=0.6)
    assert not budget.has_time_for(6.1)


# agreement

FLOAT_TYPES = (DataType.FLOAT, DataType.HALF, DataType.BFLOAT16, DataType.FP8_E4M3, DataType.FP8_E5M2)


@pytest.mark.parametrize("kind", FLOAT_TYPES, ids=lambda kind: kind.name)
def test_rounded_results_agree_and_a_wrong_row_is_detected(kind: DataType) -> None:
    numbers = np.random.default_rng(3).standard_normal((2, 3, 512, 64))
    exact = encode(numbers, kind)
    rounded = encode(decode(exact, kind) * (1 + 1e-4), kind)
    assert compare(exact, exact, kind) == Difference(0.0, 0.0, 0)
    assert compare(exact, rounded, kind).describe_excess(TOLERANCES[kind]) is None
    numbers[1, 2, 7] = -numbers[1, 2, 7]
    wrong = compare(exact, encode(numbers, kind), kind)
    assert wrong.relative < 0.06
    assert wrong.worst_row == pytest.approx(2.0, rel=0.2)
    assert wrong.describe_excess(TOLERANCES[kind]) is not None


def test_the_difference_of_two_results_is_relative_to_their_size() -> None:
    one = np.ones((4, 8), np.float32)
    difference = compare(one, one * 1.5, DataType.FLOAT)
    assert difference.relative == pytest.approx(0.5)
    assert difference.describe_excess(0.1) == "the difference is 5.00e-01 of the result, 1.00e-01 is allowed"
    assert difference.describe_excess(0.6) is None


def test_one_row_of_a_result_may_differ_by_a_multiple_of_the_tolerance() -> None:
    assert Difference(0.01, ROW_FACTOR * 0.01, 0).describe_excess(0.01) is None
    assert "a row differs" in str(Difference(0.01, ROW_FACTOR * 0.011, 0).describe_excess(0.01))


def test_infinities_and_nan_must_be_at_the_same_elements() -> None:
    first = np.array([[1.0, -np.inf, np.nan, np.inf]], np.float32)
    assert compare(first, first.copy(), DataType.FLOAT) == Difference(0.0, 0.0, 0)
    other = np.array([[1.0, np.inf, 2.0, np.inf]], np.float32)
    assert compare(first, other, DataType.FLOAT).patterns == 2
    assert (
        compare(first, other, DataType.FLOAT).describe_excess(1.0)
        == "2 elements are infinite or NaN in one result only"
    )


def test_a_nonzero_result_instead_of_zeros_has_an_infinite_error() -> None:
    zero = np.zeros((2, 2), np.float32)
    assert compare(zero, zero + 1, DataType.FLOAT).relative == math.inf
    assert compare(zero, zero, DataType.FLOAT).describe_excess(0.0) is None


def test_rows_of_one_element_are_compared_together() -> None:
    stats = np.linspace(-1, 1, 64, dtype=np.float32).reshape(1, 2, 32, 1)
    moved = stats + np.float32(1e-4)
    assert compare(stats, moved, DataType.FLOAT).worst_row < 1e-3  # a row of one zero would be infinitely wrong


def test_integers_in_strided_views_must_be_equal() -> None:
    image = np.arange(24, dtype=np.int32)
    view = np.lib.stride_tricks.as_strided(image, (2, 3), (48, 4))
    assert compare(view, view.copy(), DataType.INT32).describe_excess(0.0) is None
    other = view.copy()
    other[1, 2] += 1
    assert compare(view, other, DataType.INT32).describe_excess(0.0) is not None


# inputs


def test_generated_inputs_of_attention_give_finite_results() -> None:
    options: dict[str, Any] = {"batch": 2, "heads": 2, "seq_q": 64, "head_dim": 32, "causal": True, "padding": True}
    for graph in (
        attention.sdpa_forward(**options, stats=True, bias=(1, 2, 64, 64)),
        attention.sdpa_backward(**options),
    ):
        made = make_missing_inputs(graph)
        given = {tensor.uid: tensor for tensor in graph.variant_pack_tensors if tensor.uid in made}
        arrays = {
            tensor.name: np.lib.stride_tricks.as_strided(
                made[uid], tensor.dims, tuple(stride * made[uid].itemsize for stride in tensor.strides)
            )
            for uid, tensor in given.items()
        }
        assert set(np.ravel(arrays["seq_len_kv"])) == {64}
        results = interpret(graph, {name: decode(x, get_data_type(graph, name)) for name, x in arrays.items()})
        for tensor in graph.outputs:
            assert np.isfinite(results[tensor.name]).all()
            assert np.abs(results[tensor.name]).max() > 0


def get_data_type(graph: Any, name: str) -> DataType:
    return next(tensor.data_type for tensor in graph.tensors if tensor.name == name)


def test_generated_ragged_offsets_describe_full_sequences() -> None:
    graph = attention.sdpa_forward(batch=3, heads=2, seq_q=16, head_dim=64, ragged=True)
    made = make_missing_inputs(graph)
    offsets = next(tensor for tensor in graph.variant_pack_tensors if tensor.name == "ragged_q")
    assert made[offsets.uid].tolist() == [0, 2048, 4096, 6144]
    assert made[offsets.uid].dtype == np.int32


def test_generated_page_tables_number_the_pages_in_order() -> None:
    graph = attention.sdpa_forward(
        batch=2, heads=2, seq_q=1, seq_kv=64, head_dim=64, page_size=16, padding=True, version=(9, 28, 0)
    )
    made = make_missing_inputs(graph)
    table = next(tensor for tensor in graph.variant_pack_tensors if tensor.name == "page_table_v")
    assert made[table.uid].tolist() == list(range(8))


def test_generated_scales_are_1_and_given_inputs_are_not_generated() -> None:
    graph = attention.sdpa_forward(batch=1, heads=2, seq_q=64, head_dim=64, data_type=DataType.FP8_E4M3)
    by_name = {tensor.name: tensor for tensor in graph.variant_pack_tensors}
    made = make_missing_inputs(graph, given=[by_name["q"].uid])
    assert by_name["q"].uid not in made
    assert made[by_name["descale_q"].uid].tolist() == [1.0]
    assert not {tensor.uid for tensor in graph.outputs} & set(made)


def test_integer_inputs_of_unknown_meaning_must_be_given() -> None:
    g = GraphBuilder("gather")
    index = g.tensor("index", (1, 8, 8), data_type=DataType.INT32)
    g.pointwise(PointwiseMode.IDENTITY, index, name="out", virtual=False)
    with pytest.raises(UsageError, match="tuning-input"):
        make_missing_inputs(g.graph())
    assert make_missing_inputs(g.graph(), given=[index.uid]) == {}


# the table

TUNING_EVIDENCE: dict[str, Any] = {
    "graph": "sdpa [x]",
    "device": "a GPU",
    "cudnn": "9.28.0",
    "by": "cold",
    "first": "eng1",
    "winner": "eng2",
    "candidates": [
        {"tag": "eng1", "mode": "A", "state": "timed"}
        | {
            "cold": {"median_us": 12.0, "low_us": 11.0, "high_us": 13.0},
            "warm": {"median_us": 9.0} | dict.fromkeys(("low_us", "high_us"), 9.0),
        },
        {"tag": "eng2", "mode": "A", "state": "timed", "build_s": 1.5, "workspace_bytes": 256}
        | {
            "cold": {"median_us": 8.0, "low_us": 7.5, "high_us": 8.5},
            "warm": {"median_us": 6.0} | dict.fromkeys(("low_us", "high_us"), 6.0),
        },
        {"tag": "eng3", "mode": "FALLBACK", "state": "refused", "reason": "it needs [9] bytes\nand more"},
    ],
}


def test_the_table_is_sorted_by_time_with_refused_candidates_last() -> None:
    out = Console(file=io.StringIO(), width=160)
    out.print(make_timing_table(TUNING_EVIDENCE))
    text = out.file.getvalue()  # type: ignore[attr-defined]
    lines = [line for line in text.splitlines() if "eng" in line and "engine" not in line]
    assert [line.split()[0] for line in lines] == ["eng2", "eng1", "eng3"]
    assert "8.00 ± 0.50" in lines[0]
    assert "winner" in lines[0]
    assert "first" in lines[1]
    assert "refused: it needs [9] bytes" in lines[2]
