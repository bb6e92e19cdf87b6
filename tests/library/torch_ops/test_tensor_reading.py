"""How the torch operators read a call's tensors as sequences, tested with tensors that have a layout but no data."""

from __future__ import annotations

from typing import Any

import pytest

from cudnn_backend_py import OperationGraph, UsageError, open_target
from cudnn_backend_py.graph.attention.shape_class import make_shape_class_graph, make_shape_class_problem
from cudnn_backend_py.torch_ops.arguments import (
    SCALES,
    TENSORS,
    OperatorOptions,
    check_kv_pages_need_no_copy,
    check_options,
    check_tensors,
)
from cudnn_backend_py.torch_ops.sequence_view import (
    SequenceView,
    make_attention_problem_of_call,
    make_sequence_view_of_call,
)
from tests.support.torch_substitute import DTYPES, Tensor

DEFAULT_OPTIONS = OperatorOptions(None, 0.0, None, None, False, None, False)
B, H, HK, S_Q, S_KV, D = 3, 8, 2, 200, 300, 64
TENSOR_NAMES = (
    *TENSORS[:-1],
    "dropout_seed",
    "dropout_offset",
    "stats",
    "do",
    "dq",
    "dk",
    "dv",
    "dbias",
    "dsink",
    *SCALES,
)


def make_meta_tensor(*dims: int, kind: str = "float16", strides: Any = None) -> Tensor:
    return Tensor(dims, strides, dtype=DTYPES[kind], device="cuda")


def make_bshd_tensor(b: int, h: int, s: int, d: int) -> Tensor:
    return make_meta_tensor(b, s, h, d).transpose(1, 2)


def make_dense_tensors(make: Any, *, kv_heads: int = HK, backward: bool = False, batch: int = B) -> dict[str, Any]:
    """Return the tensors of a dense attention call by name; `make` creates each one in its layout."""
    found = dict.fromkeys(TENSOR_NAMES)
    found |= {"q": make(batch, H, S_Q, D), "o": make(batch, H, S_Q, D)}
    found |= {name: make(batch, kv_heads, S_KV, D) for name in "kv"}
    heads_first = found["q"].stride(1) >= found["q"].stride(2)
    stats = (
        make_meta_tensor(batch, H, S_Q, 1, kind="float32")
        if heads_first
        else make_meta_tensor(batch, S_Q, H, 1, kind="float32")
    )
    found["stats"] = stats if heads_first else stats.transpose(1, 2)
    return found | (make_gradients_of_attention_tensors(found) if backward else {})


def make_gradients_of_attention_tensors(found: dict[str, Any]) -> dict[str, Any]:
    return {f"d{name}": found[name]._copy_with_changes() for name in ("q", "k", "v", "o")}


def make_packed_tensors(*, backward: bool = False, tokens: int = 500) -> dict[str, Any]:
    found = dict.fromkeys(TENSOR_NAMES)
    found |= {
        "q": make_meta_tensor(tokens, H, D),
        "o": make_meta_tensor(tokens, H, D),
        "k": make_meta_tensor(600, HK, D),
        "v": make_meta_tensor(600, HK, D),
    }
    found |= {name: make_meta_tensor(B + 1, kind="int32") for name in ("cu_seqlens_q", "cu_seqlens_k")}
    found["stats"] = make_meta_tensor(tokens, H, kind="float32").t()
    return found | (make_gradients_of_attention_tensors(found) if backward else {})


def make_paged_tensors(*, chunk: int = 1, page: int = 16) -> dict[str, Any]:
    found = dict.fromkeys(TENSOR_NAMES)
    pages = make_meta_tensor(40, page, HK, D).transpose(1, 2)
    found |= {
        "q": make_bshd_tensor(B, H, chunk, D),
        "o": make_bshd_tensor(B, H, chunk, D),
        "k": pages,
        "v": pages._copy_with_changes(),
    }
    found |= {"block_table": make_meta_tensor(B, 13, kind="int32"), "seq_len_kv": make_meta_tensor(B, kind="int32")}
    return found


def count_configs_of_shape_class_graph(
    reading: SequenceView, named: dict[str, Any], target: Any, *, backward: bool
) -> int:
    """Return the number of engine configs that cuDNN proposes for the shape class of a call."""
    problem = make_shape_class_problem(
        make_attention_problem_of_call(backward, named, reading), reading.needed_bounds, backward=backward
    )
    graph = make_shape_class_graph(problem, backward, target.library.version, target.sm)
    names = {tensor.name for tensor in graph.variant_pack_tensors}
    assert {f"ragged_{name}" for name in reading.multipliers} <= names
    return len(OperationGraph(graph, target).heuristics("A").configs)


@pytest.fixture(scope="module")
def h200_target() -> Any:
    target = open_target("h200")
    yield target
    target.close()


@pytest.mark.parametrize("backward", [False, True], ids=["forward", "backward"])
def test_bshd_tensors_are_read_in_place(h200_target: Any, backward: bool) -> None:
    named = make_dense_tensors(make_bshd_tensor, backward=backward)
    reading = make_sequence_view_of_call(backward, named, DEFAULT_OPTIONS)
    assert (reading.batch, reading.max_q, reading.max_kv, reading.heads_folded, reading.copied) == (B, 200, 300, 1, ())
    assert reading.multipliers["q"] == S_Q * H * D
    assert reading.multipliers["v"] == S_KV * HK * D
    assert reading.multipliers["stats"] == S_Q * H
    assert make_attention_problem_of_call(backward, named, reading).heads == H
    assert count_configs_of_shape_class_graph(reading, named, h200_target, backward=backward)


@pytest.mark.parametrize("backward", [False, True], ids=["forward", "backward"])
def test_heads_of_bhsd_tensors_are_folded_into_the_batch(h200_target: Any, backward: bool) -> None:
    named = make_dense_tensors(make_meta_tensor, kv_heads=H, backward=backward)
    named |= {"seq_len_q": make_meta_tensor(B, kind="int32"), "seq_len_kv": make_meta_tensor(B, kind="int32")}
    reading = make_sequence_view_of_call(backward, named, DEFAULT_OPTIONS._replace(right_bound=0))
    assert (reading.batch, reading.heads_folded, reading.copied) == (B * H, H, ())
    assert make_attention_problem_of_call(backward, named, reading).heads == 1
    assert (reading.multipliers["q"], reading.multipliers["stats"]) == (S_Q * D, S_Q)
    assert count_configs_of_shape_class_graph(reading, named, h200_target, backward=backward)


@pytest.mark.parametrize("reason", ["grouped heads", "bias", "sink"])
def test_bhsd_tensors_with_heads_that_cannot_be_folded_are_copied(h200_target: Any, reason: str) -> None:
    named = make_dense_tensors(make_meta_tensor, kv_heads=HK if reason == "grouped heads" else H)
    if reason == "bias":
        named["bias"] = make_meta_tensor(1, H, S_Q, S_KV)
    if reason == "sink":
        named["sink"] = make_meta_tensor(H, kind="float32")
    reading = make_sequence_view_of_call(False, named, DEFAULT_OPTIONS)
    assert reading.heads_folded == 1
    assert reading.copied == ("q", "k", "v", "o", "stats")
    assert count_configs_of_shape_class_graph(reading, named, h200_target, backward=False)


def test_layouts_cudnn_cannot_read_are_copied(h200_target: Any) -> None:
    named = make_dense_tensors(make_bshd_tensor)
    named["k"] = make_meta_tensor(B, HK, S_KV, D, strides=(0, 0, D, 1))  # expanded
    named["v"] = make_meta_tensor(
        B, HK, S_KV, D, strides=(HK * S_KV * D, S_KV * D, 1, S_KV)
    )  # d not make_dense_tensors
    reading = make_sequence_view_of_call(False, named, DEFAULT_OPTIONS)
    assert reading.copied == ("k", "v")
    assert reading.multipliers["k"] == S_KV * HK * D
    assert count_configs_of_shape_class_graph(reading, named, h200_target, backward=False)


@pytest.mark.parametrize("backward", [False, True], ids=["forward", "backward"])
def test_packed_tokens_are_read_in_place(h200_target: Any, backward: bool) -> None:
    options = DEFAULT_OPTIONS._replace(max_q=120, max_kv=250, right_bound=0, bottom_right=True)
    named = make_packed_tensors(backward=backward)
    reading = make_sequence_view_of_call(backward, named, options)
    assert (reading.batch, reading.max_q, reading.max_kv) == (B, 120, 250)
    assert (reading.total_q, reading.total_kv) == (500, 600)
    assert (reading.multipliers["q"], reading.multipliers["k"], reading.multipliers["stats"]) == (H * D, HK * D, H)
    assert make_attention_problem_of_call(backward, named, reading).alignment == "bottom_right"
    assert count_configs_of_shape_class_graph(reading, named, h200_target, backward=backward)


@pytest.mark.parametrize("chunk", [1, 20])
def test_paged_k_and_v_are_read_in_place(h200_target: Any, chunk: int) -> None:
    named = make_paged_tensors(chunk=chunk)
    reading = make_sequence_view_of_call(False, named, DEFAULT_OPTIONS._replace(right_bound=0, bottom_right=True))
    assert (reading.max_q, reading.max_kv) == (chunk, 13 * 16)
    assert set(reading.multipliers) == {"q", "o"}
    problem = make_attention_problem_of_call(False, named, reading)
    assert problem.page_size == 16
    # The last token attends to every key: no mask is requested.
    assert (problem.right_bound is None) == (chunk == 1)
    assert count_configs_of_shape_class_graph(reading, named, h200_target, backward=False)


def test_decoding_with_sinks_uses_a_plan_for_two_queries(h200_target: Any) -> None:
    assert make_sequence_view_of_call(False, make_paged_tensors(), DEFAULT_OPTIONS).needed_bounds.q == 1
    named = make_paged_tensors() | {"sink": make_meta_tensor(H, kind="float32")}
    reading = make_sequence_view_of_call(False, named, DEFAULT_OPTIONS)
    assert (reading.max_q, reading.needed_bounds.q) == (1, 2)
    assert count_configs_of_shape_class_graph(reading, named, h200_target, backward=False)


def test_calls_of_different_batches_and_lengths_share_plans() -> None:
    many = [
        make_sequence_view_of_call(False, make_dense_tensors(make_bshd_tensor, batch=b), DEFAULT_OPTIONS).related_plans
        for b in (1, 2, 7)
    ]
    assert len(set(many)) == 1
    assert (
        make_sequence_view_of_call(False, make_packed_tensors(), DEFAULT_OPTIONS._replace(max_q=9)).related_plans
        == make_sequence_view_of_call(
            False, make_packed_tensors(tokens=7), DEFAULT_OPTIONS._replace(max_q=3)
        ).related_plans
    )
    others = [
        make_sequence_view_of_call(
            False, make_dense_tensors(make_bshd_tensor, kv_heads=H), DEFAULT_OPTIONS
        ).related_plans,
        make_sequence_view_of_call(
            False, make_dense_tensors(make_bshd_tensor), DEFAULT_OPTIONS._replace(right_bound=0)
        ).related_plans,
        make_sequence_view_of_call(
            True, make_dense_tensors(make_bshd_tensor, backward=True), DEFAULT_OPTIONS
        ).related_plans,
        make_sequence_view_of_call(
            False, make_dense_tensors(make_bshd_tensor) | {"bias": make_meta_tensor(1, H, S_Q, S_KV)}, DEFAULT_OPTIONS
        ).related_plans,
        make_sequence_view_of_call(
            False, make_dense_tensors(make_bshd_tensor) | {"bias": make_meta_tensor(B, H, S_Q, S_KV)}, DEFAULT_OPTIONS
        ).related_plans,
        make_sequence_view_of_call(
            False, make_dense_tensors(make_bshd_tensor) | {"sink": make_meta_tensor(H, kind="float32")}, DEFAULT_OPTIONS
        ).related_plans,
        make_sequence_view_of_call(
            False, make_dense_tensors(make_bshd_tensor) | {"stats": None}, DEFAULT_OPTIONS
        ).related_plans,
        make_sequence_view_of_call(False, make_paged_tensors(), DEFAULT_OPTIONS).related_plans,
    ]
    assert len({many[0], *others}) == 1 + len(others)


def test_calls_with_key_length_one_share_plans_with_longer_lengths() -> None:
    def get_shape_class_plans(s_kv: int, bias_keys: int) -> tuple[Any, ...]:
        named = make_dense_tensors(make_bshd_tensor) | {"bias": make_meta_tensor(1, H, S_Q, bias_keys)}
        named |= {name: make_bshd_tensor(B, HK, s_kv, D) for name in ("k", "v")}
        return make_sequence_view_of_call(False, named, DEFAULT_OPTIONS).related_plans

    assert get_shape_class_plans(1, 1) == get_shape_class_plans(S_KV, S_KV) != get_shape_class_plans(S_KV, 1)


def test_the_longest_key_sequence_is_bounded_by_the_pages() -> None:
    assert make_sequence_view_of_call(False, make_paged_tensors(), DEFAULT_OPTIONS._replace(max_kv=100)).max_kv == 100
    assert (
        make_sequence_view_of_call(False, make_paged_tensors(), DEFAULT_OPTIONS._replace(max_kv=1000)).max_kv == 13 * 16
    )


INVALID_TENSORS: list[tuple[dict[str, Any], str]] = [
    ({"k": make_meta_tensor(B, HK, S_KV, 32)}, r"k is float16 \[3, 2, 300, 32\] on cuda, float16 \[3, 2, 300, 64\]"),
    ({"v": make_meta_tensor(B, HK, 299, D)}, r"v is float16 \[3, 2, 299, 64\]"),
    ({"seq_len_q": make_meta_tensor(B + 1, kind="int32")}, r"seq_len_q is int32 \[4\] on cuda, int32 \[3\]"),
    ({"sink": make_meta_tensor(H, kind="float16")}, "sink is float16"),
    ({"alibi_slopes": make_meta_tensor(H - 1, kind="float32")}, r"alibi_slopes is float32 \[7\]"),
    ({"bias": make_meta_tensor(S_Q, S_KV)}, "bias has 2 dims"),
    ({"bias": make_meta_tensor(1, 1, 1, 1, kind="float32")}, "bias is float32"),
    ({"o": make_meta_tensor(B, H, S_Q, 32)}, r"o is float16 \[3, 8, 200, 32\]"),
    ({"sink": [1.0]}, "sink is list, a tensor is needed"),
]


@pytest.mark.parametrize(("changed", "words"), INVALID_TENSORS, ids=[words for _, words in INVALID_TENSORS])
def test_invalid_tensors_are_refused(changed: dict[str, Any], words: str) -> None:
    check_tensors(make_dense_tensors(make_bshd_tensor))
    with pytest.raises(UsageError, match=words) as caught:
        check_tensors(make_dense_tensors(make_bshd_tensor) | changed)
    assert caught.value.code == "torch-tensor"


def test_invalid_pages_are_refused() -> None:
    check_tensors(make_paged_tensors())
    with pytest.raises(UsageError, match="a page has 24 tokens, a power of two is needed"):
        check_tensors(make_paged_tensors(page=24))
    scattered = make_meta_tensor(40, HK, 16, D, strides=(HK * 16 * D, 16 * D, 1, 16))
    check_kv_pages_need_no_copy(make_paged_tensors())
    with pytest.raises(UsageError, match="the pages of k have strides"):
        check_kv_pages_need_no_copy(make_paged_tensors() | {"k": scattered})
    with pytest.raises(UsageError, match=r"block_table is int32 \[2, 13\]"):
        check_tensors(make_paged_tensors() | {"block_table": make_meta_tensor(2, 13, kind="int32")})


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"scale": float("nan")}, "scale is nan"),
        ({"soft_cap": -1.0}, "soft_cap is -1.0"),
        ({"dropout": True}, "dropout is True"),
        ({"left_bound": 0}, "left_bound is 0, an int of 1 or more"),
        ({"right_bound": 1.0}, "right_bound is 1.0"),
        ({"max_q": -1}, "max_q is -1"),
        ({"shapes": "all"}, "shapes must be one of exact, any, adaptive, got 'all'"),
    ],
)
def test_invalid_options_are_refused(changed: dict[str, Any], words: str) -> None:
    check_options(DEFAULT_OPTIONS)
    with pytest.raises(UsageError, match=words) as caught:
        check_options(DEFAULT_OPTIONS._replace(**changed))
    assert caught.value.code == "torch-option"
