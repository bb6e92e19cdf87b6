"""Shape classes (one graph for all calls within its bounds): bounds, supported strides, problem and graph."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from cudnn_backend_py.errors import GraphError
from cudnn_backend_py.generated.enums import DataType
from cudnn_backend_py.graph.attention import Attention
from cudnn_backend_py.graph.attention.shape_class import (
    PREPARED,
    ShapeClassBounds,
    TokenStrides,
    choose_shape_class_bounds,
    explain_missing_shape_class,
    find_best_shape_class_bounds,
    find_smallest_shape_in_class,
    make_shape_class_graph,
    make_shape_class_problem,
    read_token_strides,
)

VERSION, SM = (9, 19, 0), 90
PROBLEM = Attention(batch=3, heads=8, kv_heads=2, seq_q=100, seq_kv=300, head_dim=64, causal=True, stats=True)
BOUNDS = ShapeClassBounds(4, 512, 1024)


def map_ragged_tensors_to_offsets(graph: Any) -> dict[str, str]:
    """Return a dict from the name of each ragged tensor to the name of its ragged offset."""
    return {x.name: x.ragged_offset.name for x in graph.tensors if x.ragged_offset is not None}


@pytest.mark.parametrize("size", [*range(1, 600), 4095, 4096, 4097, 65535, 65536])
def test_shape_class_bounds_are_close_to_the_sizes_of_a_call(size: int) -> None:
    found = choose_shape_class_bounds(size, size, size)
    assert found.contains_shape(size, size, size)
    assert found.batch <= 1.5 * size
    assert found.kv == 64 or found.kv < 2 * size


@pytest.mark.parametrize("size", [*range(1, 300), 4095, 4096, 4097, 65535, 65536])
@pytest.mark.parametrize("page_size", [None, 16])
def test_the_smallest_shape_of_a_class_gets_the_same_class_bounds(size: int, page_size: int | None) -> None:
    problem = replace(PROBLEM, kv_heads=8, page_size=page_size, padding=True)
    found = find_best_shape_class_bounds(problem, ShapeClassBounds(size, size, size))
    least = find_smallest_shape_in_class(problem, found)
    assert least.batch <= size
    assert least.q <= size
    assert least.kv <= size
    assert find_best_shape_class_bounds(problem, least) == found
    if least.kv > 1:
        assert find_best_shape_class_bounds(problem, least._replace(kv=least.kv - 1)).kv < found.kv
    if least.q > 1:
        assert find_best_shape_class_bounds(problem, least._replace(q=least.q - 1)).q < found.q
    if least.batch > 1:
        assert find_best_shape_class_bounds(problem, least._replace(batch=least.batch - 1)).batch < found.batch


def test_few_shape_classes_cover_all_batch_sizes_and_lengths() -> None:
    batches = {choose_shape_class_bounds(batch, 1, 1).batch for batch in range(1, 257)}
    lengths = {choose_shape_class_bounds(1, 2, length).kv for length in range(1, 65537)}
    assert batches == {1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256}
    assert lengths == {64 << step for step in range(11)}


def test_decoding_calls_have_separate_class_bounds() -> None:
    assert choose_shape_class_bounds(8, 1, 700) == ShapeClassBounds(8, 1, 1024)
    assert choose_shape_class_bounds(8, 2, 700).q == 64


def test_decoding_with_statistics_and_grouped_heads_has_no_separate_class_bounds() -> None:
    step = replace(PROBLEM, seq_q=1, causal=False)
    assert find_best_shape_class_bounds(step).q == 64
    assert find_best_shape_class_bounds(replace(step, stats=False)).q == 1
    assert find_best_shape_class_bounds(replace(step, kv_heads=8)).q == 1
    assert find_best_shape_class_bounds(PROBLEM) == choose_shape_class_bounds(3, 100, 300)


def test_a_shape_class_contains_calls_within_all_its_bounds() -> None:
    assert BOUNDS.contains_shape(4, 512, 1024)
    assert not BOUNDS.contains_shape(5, 1, 1)
    assert not BOUNDS.contains_shape(1, 513, 1)
    assert not BOUNDS.contains_shape(1, 1, 1025)


@pytest.mark.parametrize(
    ("dims", "strides", "found"),
    [
        ((2, 8, 100, 64), (100 * 512, 64, 512, 1), TokenStrides(51200, 512, 64)),  # b, s, h, d
        ((2, 8, 100, 64), (100 * 1536, 64, 1536, 1), TokenStrides(153600, 1536, 64)),  # a slice of packed Q, K, V
        ((2, 8, 100, 64), (51200, 6400, 64, 1), None),  # b, h, s, d
        ((2, 1, 100, 64), (6400, 6400, 64, 1), TokenStrides(6400, 64, 64)),  # one head: its stride has no meaning
        ((2, 8, 1, 64), (512, 64, 64, 1), TokenStrides(512, 512, 64)),  # one token: nor has that over tokens
        ((1, 8, 100, 64), (7, 64, 512, 1), TokenStrides(51200, 512, 64)),  # one batch entry
        ((2, 8, 100, 64), (0, 64, 512, 1), TokenStrides(0, 512, 64)),  # the same keys for every batch entry
        ((2, 8, 100, 64), (51200, 64, 512, 2), None),  # d is not dense
        ((2, 8, 100, 64), (51200, 0, 64, 1), None),  # one head for all
        ((2, 8, 100, 64), (51200, 64, 0, 1), None),  # one token for all
    ],
)
def test_strides_of_token_major_layouts_are_recognized(
    dims: tuple[int, ...], strides: tuple[int, ...], found: TokenStrides | None
) -> None:
    assert read_token_strides(dims, strides) == found


def test_a_shape_class_problem_has_the_bounds_as_sizes_and_64_bit_offsets() -> None:
    found = make_shape_class_problem(replace(PROBLEM, bias=(1, 8, 100, 300)), BOUNDS, backward=False)
    assert (found.batch, found.seq_q, found.seq_kv, found.bias) == (*BOUNDS, (1, 8, 512, 1024))
    assert (found.ragged, found.padding, found.ragged_stats, found.stats) == (True, True, True, True)
    assert found.offset_type is DataType.INT64
    assert found.strides("q") == (512 * 512, 64, 512, 1)
    assert found.strides("k") == (1024 * 128, 64, 128, 1)
    assert found.max_total_seq_q is None


def test_the_bias_of_a_shape_class_keeps_size_1_only_where_the_call_broadcasts() -> None:
    one_key = replace(PROBLEM, seq_kv=1, bias=(1, 8, 100, 1))
    assert make_shape_class_problem(one_key, BOUNDS, backward=False).bias == (1, 8, 512, 1024)
    for_all_keys = replace(PROBLEM, bias=(1, 8, 100, 1))
    assert make_shape_class_problem(for_all_keys, BOUNDS, backward=False).bias == (1, 8, 512, 1)
    one_row = replace(PROBLEM, seq_q=1, bias=(1, 1, 1, 300))
    assert make_shape_class_problem(one_row, BOUNDS, backward=False).bias == (1, 1, 512, 1024)


def list_ragged_scratch_tensors(problem: Attention, version: tuple[int, int, int], sm: int) -> set[str]:
    """Return the names of scratch tensors with ragged offsets in a backward shape-class graph."""
    graph = make_shape_class_graph(make_shape_class_problem(problem, BOUNDS, backward=True), True, version, sm)
    return {x.name for x in graph.tensors if x.scratch and x.ragged_offset is not None}


def test_backward_scratch_tensors_are_ragged_unless_known_issue() -> None:
    found = make_shape_class_problem(PROBLEM, BOUNDS, backward=True)
    assert (found.max_total_seq_q, found.max_total_seq_kv, found.stats) == (4 * 512, 4 * 1024, False)
    odd = replace(PROBLEM, head_dim=40, head_dim_v=40)
    assert list_ragged_scratch_tensors(PROBLEM, VERSION, SM) == {"dq_accum", "dk_full", "dv_full", "softmax_sum"}
    assert list_ragged_scratch_tensors(odd, VERSION, SM) == set()
    assert list_ragged_scratch_tensors(odd, (9, 28, 0), SM) == {"dq_accum", "dk_full", "dv_full", "softmax_sum"}
    assert list_ragged_scratch_tensors(PROBLEM, VERSION, 80) == set()
    apart = replace(PROBLEM, layout={"q": (100 * 1536, 64, 1536, 1), "dq": "bshd"})
    assert list_ragged_scratch_tensors(apart, VERSION, SM) == set()


def test_calls_of_one_shape_class_share_its_graph() -> None:
    other = replace(PROBLEM, batch=4, seq_q=512, seq_kv=7)
    for backward in (False, True):
        assert make_shape_class_problem(other, BOUNDS, backward=backward) == make_shape_class_problem(
            PROBLEM, BOUNDS, backward=backward
        )


def test_every_tensor_of_a_backward_graph_has_its_own_offsets() -> None:
    graph = make_shape_class_graph(make_shape_class_problem(PROBLEM, BOUNDS, backward=True), True, VERSION, SM)
    names = map_ragged_tensors_to_offsets(graph)
    assert {name: names[name] for name in ("q", "k", "v", "o", "stats", "do", "dq", "dk", "dv")} == {
        name: f"ragged_{name}" for name in ("q", "k", "v", "o", "stats", "do", "dq", "dk", "dv")
    }
    assert (names["dq_accum"], names["dk_full"], names["softmax_sum"]) == ("ragged_dq", "ragged_dk", "ragged_stats")
    uids = {x.ragged_offset.uid for x in graph.tensors if x.ragged_offset is not None}
    assert len(uids) == 9


def test_length_and_offset_tensors_of_a_shape_class_are_recognized_by_name() -> None:
    graph = make_shape_class_graph(make_shape_class_problem(PROBLEM, BOUNDS, backward=False), False, VERSION, SM)
    prepared = {x.name for x in graph.variant_pack_tensors if x.name.startswith(PREPARED)}
    assert prepared == {"seq_len_q", "seq_len_kv", "ragged_q", "ragged_k", "ragged_v", "ragged_o", "ragged_stats"}


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"ragged": True}, "ragged"),
        ({"block_mask": True}, "block mask"),
        ({"dropout_mask": True}, "dropout mask"),
        ({"layout": "bhsd"}, "heads of a token of q"),
        ({"layout": {"v": "bhsd"}}, "heads of a token of v"),
    ],
)
def test_options_that_prevent_a_shape_class_are_explained(changes: dict[str, Any], word: str) -> None:
    assert word in explain_missing_shape_class(replace(PROBLEM, **changes), backward=False, version=VERSION, sm=SM)


def test_known_issue_of_ragged_sequences_prevents_a_shape_class() -> None:
    learned = replace(PROBLEM, sink=True, dsink=True, stats=False)
    assert "dsink" in explain_missing_shape_class(learned, backward=True, version=VERSION, sm=SM)
    assert explain_missing_shape_class(learned, backward=True, version=(9, 28, 0), sm=SM) == ""


def test_cudnn_before_9_14_has_no_shape_classes() -> None:
    assert "9.14" in explain_missing_shape_class(PROBLEM, backward=False, version=(9, 10, 2), sm=SM)


@pytest.mark.parametrize("backward", [False, True])
def test_common_attention_problems_have_shape_classes(backward: bool) -> None:
    for changes in ({}, {"left_bound": 9, "alignment": "bottom_right"}, {"padding": True}, {"deterministic": True}):
        assert explain_missing_shape_class(replace(PROBLEM, **changes), backward=backward, version=VERSION, sm=SM) == ""


def test_a_shape_class_of_a_bhsd_layout_is_refused() -> None:
    with pytest.raises(GraphError, match="heads of a token of q"):
        make_shape_class_problem(replace(PROBLEM, layout="bhsd"), BOUNDS, backward=False)
