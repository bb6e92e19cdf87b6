"""Tests of attention features since cudnn-frontend 1.23: running sums, offset multipliers, log2 statistics."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import cudnn_backend_py.frontend as cudnn
from cudnn_backend_py import DescriptorType
from cudnn_backend_py.frontend.handles import set_default_target
from cudnn_backend_py.importers.cudnn_json import graph_from_log_json
from cudnn_backend_py.native import capture_log, library
from tests.compat.programs import ATTENTION_DIMS, GraphMaker

INT32 = cudnn.data_type.INT32
CUDNN_VERSION = library().version
skip_without_running_sums = pytest.mark.skipif(CUDNN_VERSION < (9, 24, 0), reason="did not run: it needs cuDNN 9.24")


@pytest.fixture(autouse=True)
def target_h100() -> Iterator[None]:
    set_default_target("h100")
    yield
    set_default_target(None)


def _add_attention(m: GraphMaker, multiplier: int = 1, **options: Any) -> Any:
    q, k, v = (m.add_tensor(*ATTENTION_DIMS, name=name) for name in "qkv")
    lengths = {name: m.graph.tensor([3], [1], INT32, name=name) for name in ("cu_seq_len_q", "cu_seq_len_kv")}
    made = m.graph.sdpa(
        q=q, k=k, v=v, attn_scale=0.125, **{"use_padding_mask": True, **lengths, "generate_stats": True, **options}
    )
    made[0].set_output(True)
    if made[1] is not None:
        made[1].set_output(True).set_data_type(cudnn.data_type.FLOAT)
    for item in (q, k, v, made[0]):
        if multiplier != 1:
            offsets = m.graph.tensor([3], [1], INT32, name=f"{item.name} offsets")
            item.set_ragged_offset(offsets).set_ragged_offset_multiplier(multiplier)
    return made


def _get_only_operation(m: GraphMaker) -> Any:
    (op,) = m.graph.graph().ops
    assert op.kind is DescriptorType.OPERATION_SDPA_FWD
    return op


ONE_OPERATION_CASES = {
    "running sums": ((9, 24, 0), {}),
    "running sums and a corner": ((9, 24, 0), {"use_causal_mask_bottom_right": True}),
    "a multiplier": ((9, 24, 0), {"multiplier": 256}),
    "log2": ((9, 27, 0), {"stats_use_log2": True}),
}


@pytest.mark.parametrize("case", ONE_OPERATION_CASES)
def test_attention_is_one_operation_or_the_error_names_the_needed_version(case: str) -> None:
    since, options = ONE_OPERATION_CASES[case]
    m = GraphMaker(cudnn)
    _add_attention(m, **options)
    if since > CUDNN_VERSION:
        with pytest.raises(cudnn.cudnnGraphNotSupportedError, match=rf"{since[0]}\.{since[1]}"):
            m.graph.validate()
        return
    m.graph.validate()
    fields = _get_only_operation(m).fields
    assert {name: fields[name].dims for name in ("cu_seq_len_q", "cu_seq_len_kv")} == {
        "cu_seq_len_q": (3, 1, 1, 1),
        "cu_seq_len_kv": (3, 1, 1, 1),
    }
    assert not {"seq_len_q", "seq_len_kv"} & set(fields)
    assert fields["q"].ragged_offset_multiplier == options.get("multiplier", 1)
    assert fields["softmax"].fields.get("stats_log2") == options.get("stats_use_log2")
    m.graph.build_operation_graph()
    m.graph.create_execution_plans()
    assert m.graph.get_execution_plan_count() > 0


@skip_without_running_sums
def test_ragged_offset_multipliers_are_read_back_from_cudnns_log() -> None:
    m = GraphMaker(cudnn)
    _add_attention(m, multiplier=256)
    m.graph.validate()
    with capture_log() as log:
        m.graph.build_operation_graph()
    (logged,) = log.operation_graphs()
    again = graph_from_log_json(logged)
    assert sorted(item.ragged_offset_multiplier for item in again.variant_pack_tensors) == sorted(
        item.ragged_offset_multiplier for item in m.graph.graph().variant_pack_tensors
    )


@pytest.mark.skipif(CUDNN_VERSION < (9, 23, 0), reason="did not run: it needs cuDNN 9.23")
def test_a_graph_that_its_required_engine_cannot_run_is_not_supported() -> None:
    set_default_target("b200")
    m = GraphMaker(cudnn)
    half, single = cudnn.data_type.HALF, cudnn.data_type.FLOAT
    m.graph = cudnn.pygraph(io_data_type=half, intermediate_data_type=single, compute_data_type=single, sm_version=100)
    wide = (1, 2, 128, 256)
    tensors = {name: m.add_tensor(*wide, name=name) for name in ("q", "k", "v", "o", "dO")}
    bias = {name: m.add_tensor(1, 2, 128, 128, name=name) for name in ("bias", "dBias")}
    stats = m.add_tensor(1, 2, 128, 1, kind="FLOAT", name="stats")
    for item in m.graph.sdpa_backward(**tensors, **bias, stats=stats, attn_scale=0.125):
        item.set_output(True)
    m.graph.validate()
    m.graph.build_operation_graph()
    with pytest.raises(cudnn.cudnnGraphNotSupportedError, match="it needs eng") as caught:
        m.graph.create_execution_plans([cudnn.heur_mode.A])
    assert caught.value.graph is not None


@skip_without_running_sums
def test_the_bottom_right_mask_reads_the_cumulative_sequence_lengths() -> None:
    m = GraphMaker(cudnn)
    _add_attention(m, use_causal_mask_bottom_right=True)
    m.graph.validate()
    (mask,) = _get_only_operation(m).fields["subgraph"].ops
    assert {name for name in mask.fields if "seq_len" in name} == {"cu_seq_len_q", "cu_seq_len_kv"}


MISMATCHED_ARGUMENTS: dict[str, tuple[type[Exception], str, dict[str, Any]]] = {
    "both": (ValueError, "seq_len_q and cu_seq_len_q cannot both be set", {"seq_len_q": "lengths"}),
    "one side": (ValueError, "padding mask requires", {"cu_seq_len_kv": None}),
    "no padding": (ValueError, "only if padding mask", {"use_padding_mask": False}),
    "many operations": (
        cudnn.cudnnGraphNotSupportedError,
        "composite SDPA node does not support running sums",
        {"implementation": cudnn.attention_implementation.COMPOSITE},
    ),
    "totals": (cudnn.cudnnGraphNotSupportedError, "packed layout", {"max_total_seq_len_q": 100}),
}


@pytest.mark.parametrize("case", MISMATCHED_ARGUMENTS)
def test_mismatched_arguments_are_refused(case: str) -> None:
    kind, words, options = MISMATCHED_ARGUMENTS[case]
    m = GraphMaker(cudnn)
    if options.get("seq_len_q"):
        options = {"seq_len_q": m.add_tensor(2, 1, 1, 1, kind="INT32")}
    _add_attention(m, **options)
    with pytest.raises(kind, match=words):
        m.graph.validate()


@pytest.mark.parametrize("name", ["kv_mask", "softmax_precision", "attn_scale_prefolded"])
def test_sdpa_arguments_of_frontend_kernels_are_refused_by_name(name: str) -> None:
    m = GraphMaker(cudnn)
    with pytest.raises(cudnn.cudnnGraphNotSupportedError, match=rf"{name} of sdpa needs a kernel"):
        _add_attention(m, **{name: True})
    _add_attention(m, **{name: None})


def test_grouped_reductions_need_cudnn_924() -> None:
    m = GraphMaker(cudnn)
    offsets = m.add_tensor(4, 1, 1, kind="INT32")
    m.graph.reduction(
        m.add_tensor(1, 64, 32), mode=cudnn.reduction_mode.ADD, group_offset=offsets, out_dims=[4, 1, 32]
    ).set_output(True)
    m.graph.validate()
    if CUDNN_VERSION < (9, 24, 0):
        with pytest.raises(cudnn.cudnnGraphNotSupportedError, match=r"9\.24"):
            m.graph.graph()
    else:
        (op,) = m.graph.graph().ops
        assert op.fields["group_offset"].uid == offsets.uid  # type: ignore[union-attr]


def test_the_moe_combine_mode_is_not_supported() -> None:
    m = GraphMaker(cudnn)
    m.graph.moe_grouped_matmul(
        m.add_tensor(1, 64, 32),
        m.add_tensor(4, 32, 16),
        m.add_tensor(4, 1, 1, kind="INT32"),
        mode=cudnn.moe_grouped_matmul_mode.COMBINE,
    )
    with pytest.raises(cudnn.cudnnGraphNotSupportedError, match="COMBINE"):
        m.graph.validate()


def test_the_text_of_an_exception_has_the_fix() -> None:
    m = GraphMaker(cudnn)
    m.graph.matmul(m.add_tensor(1, 64, 64, kind="INT64"), m.add_tensor(1, 64, 64, kind="INT64")).set_output(True)
    m.graph.validate()
    m.graph.build_operation_graph()
    with pytest.raises(cudnn.cudnnGraphNotSupportedError) as caught:
        m.graph.create_execution_plans()
    text = str(caught.value)
    assert text.startswith("heuristics-empty: no engine config of cuDNN supports this graph on ")
    assert "; cuDNN: " in text
    assert text.endswith("read .verdict of this exception: causes, and what would help")
    assert "\n" not in text


@pytest.mark.parametrize("wanted", ["AUTO", "UNIFIED", "COMPOSITE"])
def test_fp8_attention_is_one_operation_if_cudnn_supports_it(wanted: str) -> None:
    """AUTO selects the unified operation since cuDNN 9.25, as cudnn-frontend 1.32 does."""
    m = GraphMaker(cudnn)
    scales = m.add_scale_factors("descale_q", "descale_k", "descale_v", "descale_s", "scale_s", "scale_o")
    implementation = getattr(cudnn.attention_implementation, wanted)
    made = m.graph.sdpa_fp8(
        **m.add_fp8_tensors("q", "k", "v"),
        **scales,
        attn_scale=0.125,
        generate_stats=True,
        implementation=implementation,
    )
    for item, kind in zip(made, ("FP8_E4M3", *["FLOAT"] * 3), strict=True):
        item.set_output(True).set_data_type(getattr(cudnn.data_type, kind))
    if wanted == "UNIFIED" and CUDNN_VERSION < (9, 25, 0):
        with pytest.raises(cudnn.cudnnGraphNotSupportedError, match=r"9\.25\.0"):
            m.graph.validate()
        return
    m.graph.validate()
    one = wanted != "COMPOSITE" and CUDNN_VERSION >= (9, 25, 0)
    assert (len(m.graph.graph().ops) == 1) == one
    m.graph.build_operation_graph()
    m.graph.create_execution_plans()
    assert m.graph.get_execution_plan_count() > 0
