"""Decisions of tuning on plain data: statistics, choice, agreement, budget, inputs, the table. Needs no GPU."""

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
from cudnn_backend_py.tuning.inputs import made_up_inputs
from cudnn_backend_py.tuning.statistics import MIN_ROUNDS, Budget, Timing, choose, evidence_table, find_slow

# statistics and choice


def around(median: float, spread: float = 0.1, samples: int = 20) -> Timing:
    return Timing(median, median - spread, median + spread, samples)


def both(cold: Timing, warm: Timing | None = None) -> dict[Any, Timing]:
    return {"cold": cold, "warm": warm or cold}


def test_timing_is_median_and_quartiles_so_one_outlier_moves_nothing() -> None:
    quiet = Timing.of([10.0, 11.0, 12.0, 13.0, 14.0])
    assert quiet == Timing(12.0, 11.0, 13.0, 5)
    assert quiet.spread_us == 1.0
    assert Timing.of([10.0, 11.0, 12.0, 13.0, 9000.0]).median_us == 12.0


def test_faster_within_the_spread_or_the_noise_is_not_faster() -> None:
    assert around(9.0).beats(around(10.0))
    assert not around(9.9).beats(around(10.0))  # spreads of 0.1 each
    assert not around(98.5, 0.0).beats(around(100.0, 0.0))  # less than two percent
    assert not around(10.0).beats(around(9.0))


def test_the_fastest_that_beats_the_first_wins() -> None:
    timings = {"first": both(around(10.0)), "b": both(around(8.0)), "c": both(around(7.0))}
    assert choose(timings, "first") == "c"


def test_the_first_stays_if_none_beats_it_beyond_the_spread() -> None:
    timings = {"first": both(around(10.0, 1.0)), "b": both(around(9.5, 1.0))}
    assert choose(timings, "first") == "first"
    assert choose({"first": both(around(10.0))}, "first") == "first"


def test_a_certain_leader_replaces_an_uncertain_one() -> None:
    timings = {"first": both(around(10.0)), "wild": both(around(7.9, 3.0)), "calm": both(around(8.0))}
    assert choose(timings, "first") == "calm"


def test_a_gain_with_a_cold_cache_that_loses_with_a_warm_one_is_not_a_gain() -> None:
    timings = {"first": both(around(10.0), around(5.0)), "b": both(around(8.0), around(6.0))}
    assert choose(timings, "first", "cold") == "first"
    assert choose({**timings, "b": both(around(8.0), around(5.1))}, "first", "cold") == "b"


def test_the_state_of_the_cache_is_considered() -> None:
    timings = {
        "first": both(around(10.0), around(5.0)),
        "b": both(around(10.0), around(4.0)),
        "c": both(around(9.0), around(5.0)),
    }
    assert choose(timings, "first", "cold") == "c"
    assert choose(timings, "first", "warm") == "b"


def test_too_few_samples_decide_nothing() -> None:
    timings = {"first": both(around(10.0)), "b": both(around(5.0, samples=MIN_ROUNDS - 1))}
    assert choose(timings, "first") == "first"


def test_only_candidates_slow_in_both_states_are_dropped_never_the_first() -> None:
    timings = {
        "first": both(around(40.0)),
        "best": both(around(10.0)),
        "near": both(around(14.0)),
        "far": both(around(20.0)),
        "warm only": both(around(20.0), around(10.0)),
    }
    assert find_slow(timings, "first") == {"far"}


def test_budget_is_spent_by_the_clock() -> None:
    now = [100.0]
    budget = Budget(10.0, clock=lambda: now[0])
    assert budget.allows(10.0)
    assert not budget.allows(6.5, share=0.6)
    now[0] += 4.0
    assert budget.spent == 4.0
    assert budget.allows(6.0)
    assert budget.allows(2.0, share=0.6)
    assert not budget.allows(6.1)


# agreement

KINDS = (DataType.FLOAT, DataType.HALF, DataType.BFLOAT16, DataType.FP8_E4M3, DataType.FP8_E5M2)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_rounding_agrees_and_a_wrong_row_does_not(kind: DataType) -> None:
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


def test_a_completely_wrong_result_has_its_error() -> None:
    one = np.ones((4, 8), np.float32)
    difference = compare(one, one * 1.5, DataType.FLOAT)
    assert difference.relative == pytest.approx(0.5)
    assert difference.describe_excess(0.1) == "the difference is 5.00e-01 of the result, 1.00e-01 is allowed"
    assert difference.describe_excess(0.6) is None


def test_rows_may_differ_by_a_multiple() -> None:
    assert Difference(0.01, ROW_FACTOR * 0.01, 0).describe_excess(0.01) is None
    assert "a row differs" in str(Difference(0.01, ROW_FACTOR * 0.011, 0).describe_excess(0.01))


def test_infinities_and_nan_have_to_match_in_place() -> None:
    first = np.array([[1.0, -np.inf, np.nan, np.inf]], np.float32)
    assert compare(first, first.copy(), DataType.FLOAT) == Difference(0.0, 0.0, 0)
    other = np.array([[1.0, np.inf, 2.0, np.inf]], np.float32)
    assert compare(first, other, DataType.FLOAT).patterns == 2
    assert (
        compare(first, other, DataType.FLOAT).describe_excess(1.0)
        == "2 elements are infinite or NaN in one result only"
    )


def test_a_wrong_zero_is_infinitely_wrong() -> None:
    zero = np.zeros((2, 2), np.float32)
    assert compare(zero, zero + 1, DataType.FLOAT).relative == math.inf
    assert compare(zero, zero, DataType.FLOAT).describe_excess(0.0) is None


def test_rows_of_one_element_are_compared_together() -> None:
    stats = np.linspace(-1, 1, 64, dtype=np.float32).reshape(1, 2, 32, 1)
    moved = stats + np.float32(1e-4)
    assert compare(stats, moved, DataType.FLOAT).worst_row < 1e-3  # a row of one zero would be infinitely wrong


def test_integers_have_to_be_equal_and_strided_results_are_read_in_place() -> None:
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
        made = made_up_inputs(graph)
        given = {tensor.uid: tensor for tensor in graph.variant_pack_tensors if tensor.uid in made}
        arrays = {
            tensor.name: np.lib.stride_tricks.as_strided(
                made[uid], tensor.dims, tuple(stride * made[uid].itemsize for stride in tensor.strides)
            )
            for uid, tensor in given.items()
        }
        assert set(np.ravel(arrays["seq_len_kv"])) == {64}
        results = interpret(graph, {name: decode(x, _type(graph, name)) for name, x in arrays.items()})
        for tensor in graph.outputs:
            assert np.isfinite(results[tensor.name]).all()
            assert np.abs(results[tensor.name]).max() > 0


def _type(graph: Any, name: str) -> DataType:
    return next(tensor.data_type for tensor in graph.tensors if tensor.name == name)


def test_ragged_offsets_are_those_of_full_sequences() -> None:
    graph = attention.sdpa_forward(batch=3, heads=2, seq_q=16, head_dim=64, ragged=True)
    made = made_up_inputs(graph)
    offsets = next(tensor for tensor in graph.variant_pack_tensors if tensor.name == "ragged_q")
    assert made[offsets.uid].tolist() == [0, 2048, 4096, 6144]
    assert made[offsets.uid].dtype == np.int32


def test_pages_are_in_order() -> None:
    graph = attention.sdpa_forward(
        batch=2, heads=2, seq_q=1, seq_kv=64, head_dim=64, page_size=16, padding=True, version=(9, 28, 0)
    )
    made = made_up_inputs(graph)
    table = next(tensor for tensor in graph.variant_pack_tensors if tensor.name == "page_table_v")
    assert made[table.uid].tolist() == list(range(8))


def test_scales_are_one_and_given_inputs_are_kept() -> None:
    graph = attention.sdpa_forward(batch=1, heads=2, seq_q=64, head_dim=64, data_type=DataType.FP8_E4M3)
    by_name = {tensor.name: tensor for tensor in graph.variant_pack_tensors}
    made = made_up_inputs(graph, given=[by_name["q"].uid])
    assert by_name["q"].uid not in made
    assert made[by_name["descale_q"].uid].tolist() == [1.0]
    assert not {tensor.uid for tensor in graph.outputs} & set(made)


def test_an_integer_of_unknown_meaning_has_to_be_given() -> None:
    g = GraphBuilder("gather")
    index = g.tensor("index", (1, 8, 8), data_type=DataType.INT32)
    g.pointwise(PointwiseMode.IDENTITY, index, name="out", virtual=False)
    with pytest.raises(UsageError, match="tuning-input"):
        made_up_inputs(g.graph())
    assert made_up_inputs(g.graph(), given=[index.uid]) == {}


# the table

EVIDENCE: dict[str, Any] = {
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


def test_table_is_sorted_by_time_with_the_refused_last() -> None:
    out = Console(file=io.StringIO(), width=160)
    out.print(evidence_table(EVIDENCE))
    text = out.file.getvalue()  # type: ignore[attr-defined]
    lines = [line for line in text.splitlines() if "eng" in line and "engine" not in line]
    assert [line.split()[0] for line in lines] == ["eng2", "eng1", "eng3"]
    assert "8.00 ± 0.50" in lines[0]
    assert "winner" in lines[0]
    assert "first" in lines[1]
    assert "refused: it needs [9] bytes" in lines[2]
