"""Graphs as inference and training libraries build them: tensors by uid, plans by engine and knobs, many types."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import cudnn_backend_py.frontend as cudnn
from cudnn_backend_py.frontend.handles import set_default_target
from cudnn_backend_py.native import library

DataType = cudnn.data_type
HEURISTICS_MODES = [cudnn.heur_mode.A, cudnn.heur_mode.FALLBACK]
CUDNN_VERSION = library().version
M, N, K = 64, 128, 256


@pytest.fixture(params=["h100", "b200"])
def target(request: pytest.FixtureRequest) -> Any:
    set_default_target(request.param)
    yield request.param
    set_default_target(None)


def make_empty_bfloat16_graph(**options: Any) -> cudnn.pygraph:
    kinds = {
        "io_data_type": DataType.BFLOAT16,
        "intermediate_data_type": DataType.FLOAT,
        "compute_data_type": DataType.FLOAT,
    }
    return cudnn.pygraph(**kinds | options, handle=cudnn.create_handle())


def add_row_major_tensor(g: cudnn.pygraph, uid: int, dims: list[int], kind: Any, **more: Any) -> Any:
    return g.tensor(dim=dims, stride=[dims[1] * dims[2], dims[2], 1], data_type=kind, uid=uid, **more)


def add_column_major_tensor(g: cudnn.pygraph, uid: int, dims: list[int], kind: Any, **more: Any) -> Any:
    return g.tensor(dim=dims, stride=[dims[1] * dims[2], 1, dims[1]], data_type=kind, uid=uid, **more)


def add_matmul(g: cudnn.pygraph) -> None:
    made = g.matmul(
        add_row_major_tensor(g, 1, [1, M, K], DataType.BFLOAT16),
        add_column_major_tensor(g, 2, [1, K, N], DataType.BFLOAT16),
        name="mm",
    )
    made.set_name("c_final").set_output(True).set_data_type(DataType.BFLOAT16).set_uid(3)


def add_scaled_fp8_matmul(g: cudnn.pygraph) -> None:
    """Add an fp8 matmul, and multiply its result by two scaling factors."""
    made = g.matmul(
        add_row_major_tensor(g, 1, [2, M, K], DataType.FP8_E4M3),
        add_column_major_tensor(g, 2, [2, K, N], DataType.FP8_E4M3),
    )
    for uid in (4, 5):
        made = g.mul(
            a=made, b=add_row_major_tensor(g, uid, [1, 1, 1], DataType.FLOAT), compute_data_type=DataType.FLOAT
        )
    made.set_output(True).set_data_type(DataType.BFLOAT16).set_uid(3)


def _add_block_scaled_matmul(g: cudnn.pygraph, kind: Any, scale: Any, size: int, experts: bool) -> None:
    order = cudnn.tensor_reordering.F8_128x4
    m, batch = 256, 4 if experts else 1
    a = add_row_major_tensor(g, 1, [1, m, 512], kind)
    b = add_column_major_tensor(g, 2, [batch, 512, N], kind)
    a_scale = add_row_major_tensor(g, 4, [1, m, 512 // size], scale, reordering_type=order)
    b_scale = add_column_major_tensor(g, 5, [batch, 512 // size, N], scale, reordering_type=order)
    left = g.block_scale_dequantize(a, a_scale, block_size=[1, size])
    right = g.block_scale_dequantize(b, b_scale, block_size=[size, 1])
    for item in (left, right):
        item.set_data_type(DataType.FLOAT)
    if experts:
        first = g.tensor(dim=[4, 1, 1], stride=[1, 1, 1], data_type=DataType.INT32, uid=6)
        made = g.moe_grouped_matmul(
            token=left, weight=right, first_token_offset=first, compute_data_type=DataType.FLOAT
        )
    else:
        made = g.matmul(left, right, compute_data_type=DataType.FLOAT)
    made.set_output(True).set_data_type(DataType.BFLOAT16).set_uid(3)


def add_expert_matmul(g: cudnn.pygraph) -> None:
    first = g.tensor(dim=[4, 1, 1], stride=[1, 1, 1], data_type=DataType.INT32, uid=6)
    a, b = (
        add_row_major_tensor(g, 1, [1, 192, K], DataType.BFLOAT16),
        add_column_major_tensor(g, 2, [4, K, N], DataType.BFLOAT16),
    )
    made = g.moe_grouped_matmul(token=a, weight=b, first_token_offset=first, compute_data_type=DataType.FLOAT)
    made = g.mul(a=made, b=add_row_major_tensor(g, 7, [1, 1, 1], DataType.FLOAT), compute_data_type=DataType.FLOAT)
    made.set_uid(3).set_output(True).set_data_type(DataType.BFLOAT16)


def _add_int32_tensor(g: cudnn.pygraph, uid: int, count: int = 4) -> Any:
    return g.tensor(dim=[count, 1, 1, 1], stride=[1, 1, 1, 1], data_type=DataType.INT32, uid=uid)


def _add_packed_token_tensor(g: cudnn.pygraph, uid: int, heads: int, tokens: int) -> Any:
    """Return a tensor of packed tokens: its batch stride is one token, and ragged offsets give the sequence starts."""
    return g.tensor(
        dim=[4, heads, tokens, 128], stride=[heads * 128, 128, heads * 128, 1], data_type=DataType.BFLOAT16, uid=uid
    )


def add_prefill_attention(g: cudnn.pygraph) -> None:
    q, k, v = (_add_packed_token_tensor(g, uid, heads, 128) for uid, heads in ((1, 8), (2, 2), (3, 2)))
    for item, uid in ((q, 50), (k, 53), (v, 54)):
        item.set_ragged_offset(_add_int32_tensor(g, uid, 5))
    _add_attention(
        g,
        q,
        k,
        v,
        _add_int32_tensor(g, 51, 5),
        seq_len_q=_add_int32_tensor(g, 100),
        seq_len_kv=_add_int32_tensor(g, 101),
    )


def add_prefill_attention_with_cumulative_lengths(g: cudnn.pygraph) -> None:
    """Add prefill attention; the ragged offsets are the running sums of the lengths times a multiplier."""
    q, k, v = (_add_packed_token_tensor(g, uid, heads, 128) for uid, heads in ((1, 8), (2, 2), (3, 2)))
    for item, uid, heads in ((q, 50, 8), (k, 53, 2), (v, 54, 2)):
        item.set_ragged_offset(_add_int32_tensor(g, uid, 5)).set_ragged_offset_multiplier(heads * 128)
    sums = {"cu_seq_len_q": _add_int32_tensor(g, 100, 5), "cu_seq_len_kv": _add_int32_tensor(g, 101, 5)}
    _add_attention(g, q, k, v, _add_int32_tensor(g, 51, 5), 8 * 128, **sums)


def add_paged_prefill_attention(g: cudnn.pygraph) -> None:
    q = _add_packed_token_tensor(g, 1, 8, 128).set_ragged_offset(_add_int32_tensor(g, 50, 5))
    k, v = (_add_paged_tensor(g, uid) for uid in (2, 3))
    lengths = {"seq_len_q": _add_int32_tensor(g, 100), "seq_len_kv": _add_int32_tensor(g, 101)}
    _add_attention(g, q, k, v, _add_int32_tensor(g, 51, 5), **lengths, **_make_page_table_options(g))


def add_paged_prefill_with_cumulative_lengths(g: cudnn.pygraph) -> None:
    """Add paged prefill with running sums of the query lengths, and plain lengths of keys and values."""
    q = (
        _add_packed_token_tensor(g, 1, 8, 128)
        .set_ragged_offset(_add_int32_tensor(g, 50, 5))
        .set_ragged_offset_multiplier(8 * 128)
    )
    k, v = (_add_paged_tensor(g, uid) for uid in (2, 3))
    lengths = {"cu_seq_len_q": _add_int32_tensor(g, 100, 5), "seq_len_kv": _add_int32_tensor(g, 101)}
    _add_attention(g, q, k, v, _add_int32_tensor(g, 51, 5), 8 * 128, **lengths, **_make_page_table_options(g))


def _add_paged_tensor(g: cudnn.pygraph, uid: int) -> Any:
    return g.tensor(dim=[40, 2, 16, 128], stride=[2 * 16 * 128, 16 * 128, 128, 1], data_type=DataType.BFLOAT16, uid=uid)


def _make_page_table_options(g: cudnn.pygraph) -> dict[str, Any]:
    tables = {
        f"paged_attention_{name}_table": g.tensor(
            dim=[4, 1, 8, 1], stride=[8, 8, 1, 1], data_type=DataType.INT32, uid=200 + at
        )
        for at, name in enumerate("kv", 1)
    }
    return {**tables, "paged_attention_max_seq_len_kv": 128}


def _add_attention(g: cudnn.pygraph, q: Any, k: Any, v: Any, offset: Any, multiplier: int = 1, **options: Any) -> None:
    o, stats = g.sdpa(
        q=q,
        k=k,
        v=v,
        attn_scale=0.088,
        generate_stats=True,
        use_padding_mask=True,
        use_causal_mask_bottom_right=True,
        **options,
    )
    o.set_ragged_offset(offset).set_ragged_offset_multiplier(multiplier)
    o.set_uid(1000).set_output(True).set_dim([4, 8, 128, 128]).set_stride([128 * 8 * 128, 128, 8 * 128, 1])
    stats.set_uid(1001).set_output(True).set_data_type(DataType.FLOAT).set_dim([4, 8, 128, 1])
    stats.set_stride([128 * 8, 1, 8, 1])


def add_paged_decode_attention(g: cudnn.pygraph) -> None:
    q = g.tensor(dim=[4, 8, 1, 128], stride=[1024, 128, 1024, 1], data_type=DataType.BFLOAT16, uid=1)
    k, v = (_add_paged_tensor(g, uid) for uid in (2, 3))
    o, _ = g.sdpa(
        q=q,
        k=k,
        v=v,
        seq_len_q=_add_int32_tensor(g, 100),
        seq_len_kv=_add_int32_tensor(g, 101),
        use_padding_mask=True,
        is_inference=True,
        attn_scale=0.088,
        **_make_page_table_options(g),
    )
    o.set_uid(1000).set_output(True).set_dim([4, 8, 1, 128]).set_stride([1024, 128, 1024, 1])


def add_attention_with_soft_cap(g: cudnn.pygraph) -> None:
    """Add attention with a score modifier that reads a by-value tensor."""
    q, k, v = (
        g.tensor(dim=[2, 4, 128, 64], stride=[4 * 128 * 64, 64, 256, 1], data_type=DataType.BFLOAT16) for _ in "qkv"
    )
    cap = g.tensor(dim=[1, 1, 1, 1], stride=[1, 1, 1, 1], data_type=DataType.FLOAT, is_pass_by_value=True)

    def cap_scores(inner: Any, score: Any) -> Any:
        small = inner.tanh(
            inner.div(a=score, b=cap, compute_data_type=DataType.FLOAT), compute_data_type=DataType.FLOAT
        )
        return inner.mul(a=small, b=cap, compute_data_type=DataType.FLOAT)

    o, _ = g.sdpa(q=q, k=k, v=v, is_inference=True, attn_scale=0.125, score_mod=cap_scores)
    o.set_output(True).set_dim([2, 4, 128, 64]).set_stride([4 * 128 * 64, 64, 256, 1])


# By name: the graph, the first cuDNN, whether only Blackwell has it.
GRAPH_MAKERS: dict[str, tuple[Callable[[cudnn.pygraph], None], tuple[int, int, int], bool]] = {
    "product": (add_matmul, (9, 8, 0), False),
    "scaled fp8": (add_scaled_fp8_matmul, (9, 8, 0), False),
    "experts": (add_expert_matmul, (9, 21, 0), False),
    "mxfp8": (
        lambda g: _add_block_scaled_matmul(g, DataType.FP8_E4M3, DataType.FP8_E8M0, 32, experts=False),
        (9, 14, 0),
        True,
    ),
    "nvfp4": (
        lambda g: _add_block_scaled_matmul(g, DataType.FP4_E2M1, DataType.FP8_E4M3, 16, experts=False),
        (9, 14, 0),
        True,
    ),
    "experts, mxfp8": (
        lambda g: _add_block_scaled_matmul(g, DataType.FP8_E4M3, DataType.FP8_E8M0, 32, experts=True),
        (9, 21, 0),
        True,
    ),
    "prefill": (add_prefill_attention, (9, 8, 0), False),
    "prefill by tokens": (add_prefill_attention_with_cumulative_lengths, (9, 24, 0), False),
    "prefill of pages": (add_paged_prefill_attention, (9, 8, 0), False),
    "prefill of pages by tokens": (add_paged_prefill_with_cumulative_lengths, (9, 25, 0), False),
    "decode": (add_paged_decode_attention, (9, 8, 0), False),
    "soft cap": (add_attention_with_soft_cap, (9, 21, 0), False),
}


def build_operation_graph_and_create_plans(g: cudnn.pygraph) -> None:
    g.validate()
    g.build_operation_graph()
    g.create_execution_plans(HEURISTICS_MODES)


@pytest.mark.parametrize("name", GRAPH_MAKERS)
def test_attention_and_matmul_graphs_of_other_libraries_get_plans(name: str, target: str) -> None:
    write, since, only_blackwell = GRAPH_MAKERS[name]
    g = make_empty_bfloat16_graph()
    write(g)
    if since > CUDNN_VERSION or (only_blackwell and target == "h100"):
        with pytest.raises((cudnn.cudnnGraphNotSupportedError, RuntimeError, ValueError)):
            build_operation_graph_and_create_plans(g)
        return
    build_operation_graph_and_create_plans(g)
    g.check_support()
    assert g.get_execution_plan_count() > 0
    given = set(g._get_variant_pack_uids_sorted())
    assert {item.uid for item in g._list_used_tensors() if item.uid_given and not item.virtual} <= given


def test_a_plan_is_rebuilt_from_its_engine_and_knobs(target: str) -> None:
    """As a tuner does, create a plan for a second, equal graph from engine and knobs alone."""
    g = make_empty_bfloat16_graph()
    add_matmul(g)
    build_operation_graph_and_create_plans(g)
    named = [g.get_engine_and_knobs_at_index(at) for at in range(g.get_execution_plan_count())]
    for engine, knobs in (named[0], named[-1]):
        other = make_empty_bfloat16_graph()
        add_matmul(other)
        other.validate()
        other.build_operation_graph()
        other.create_execution_plan(engine, {cudnn.knob_type(int(kind)): int(value) for kind, value in knobs.items()})
        other.check_support()
        assert other.get_execution_plan_count() == 1
        assert other.get_engine_and_knobs_at_index(0) == (engine, knobs)
        assert other.get_workspace_size_plan_at_index(0) >= 0


def test_an_engine_is_deselected_by_its_name(target: str) -> None:
    g = make_empty_bfloat16_graph()
    add_scaled_fp8_matmul(g)
    build_operation_graph_and_create_plans(g)
    first = g.get_plan_name_at_index(0)
    g.deselect_engines([first])
    if g.get_execution_plan_count() > 1:
        g.check_support()
    with pytest.raises(cudnn.cudnnGraphNotSupportedError, match="deselected by the name"):
        g.build_plan_at_index(0)
