"""Attention through cudnn-frontend's methods: the graphs equal those of ``attention``, and cuDNN accepts them.

``test_attention_graphs.py`` shows that those equal cudnn-frontend's own.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

import cudnn_backend_py.frontend as cudnn
from cudnn_backend_py import Graph
from cudnn_backend_py.frontend.handles import set_default_target
from cudnn_backend_py.graph.attention import Attention
from tests.library.diagnose.test_attention_graphs import (
    LISTINGS,
    OPTIONS_BY_LISTING,
    PROBLEM_SIZES,
    VERSIONS,
    build_graph_with_options_of_listing,
)
from tests.support.frontend_attention import FLOAT, HALF, INT32, RecordingGraph, call_frontend_attention
from tests.support.logged_graph_comparison import convert_graph_to_linked_items, find_difference_of_linked_items

A, FALLBACK = cudnn.heur_mode.A, cudnn.heur_mode.FALLBACK


@pytest.mark.parametrize("key", LISTINGS)
def test_an_sdpa_call_gives_the_graph_of_the_attention_problem(key: str) -> None:
    options = PROBLEM_SIZES | {"stats": " fwd " in key} | OPTIONS_BY_LISTING[key]
    unified = options.pop("implementation", "composite") == "unified"
    recorder = RecordingGraph(VERSIONS[LISTINGS[key].version])
    call_frontend_attention(recorder, Attention(**options), backward=" bwd " in key, unified=unified)
    assert (
        find_difference_of_linked_items(
            convert_graph_to_linked_items(build_graph_with_options_of_listing(key)),
            convert_graph_to_linked_items(recorder.graph()),
        )
        is None
    )


@pytest.fixture
def target_h100() -> Iterator[None]:
    set_default_target("h100")
    yield
    set_default_target(None)


def make_empty_graph_of_type(kind: cudnn.data_type = HALF) -> cudnn.pygraph:
    return cudnn.pygraph(io_data_type=kind, intermediate_data_type=FLOAT, compute_data_type=FLOAT)


def make_qkv(g: cudnn.pygraph, s: int = 256, d: int = 64, names: str = "qkv") -> list[cudnn.tensor]:
    return [g.tensor(dim=[2, 4, s, d], stride=[4 * s * d, d, 4 * d, 1], name=name) for name in names]


def count_plans(g: cudnn.pygraph) -> int:
    g.validate()
    g.build_operation_graph()
    g.create_execution_plans([A, FALLBACK])
    g.check_support()
    return g.get_execution_plan_count()


def apply_softcap(g: Any, score: cudnn.tensor, cap: cudnn.tensor) -> cudnn.tensor:
    return g.mul(a=g.tanh(input=g.div(a=score, b=cap)), b=cap)


def apply_causal_mask(g: Any, score: cudnn.tensor, otherwise: cudnn.tensor) -> cudnn.tensor:
    """Mask with pointwise operations, as cudnn-frontend's own tests do."""
    row, column = g.gen_index(input=score, axis=2), g.gen_index(input=score, axis=3)
    keep = g.cmp_ge(
        input=row.set_data_type(INT32),
        comparison=column.set_data_type(INT32),
        compute_data_type=cudnn.data_type.BOOLEAN,
    )
    return g.binary_select(input0=score, input1=otherwise, mask=keep.set_data_type(cudnn.data_type.BOOLEAN))


def add_by_value_tensor(g: cudnn.pygraph, name: str) -> cudnn.tensor:
    return g.tensor(dim=[1] * 4, stride=[1] * 4, data_type=FLOAT, is_pass_by_value=True, name=name)


@pytest.mark.parametrize("implementation", cudnn.attention_implementation)
def test_a_score_modifier_is_planned_in_both_implementations(
    target_h100: None, implementation: cudnn.attention_implementation
) -> None:
    g = make_empty_graph_of_type()
    q, k, v = make_qkv(g)
    cap = add_by_value_tensor(g, "cap")
    o, stats = g.sdpa(
        q, k, v, generate_stats=True, score_mod=lambda g, x: apply_softcap(g, x, cap), implementation=implementation
    )
    o.set_output(True)
    stats.set_output(True)
    assert count_plans(g) > 0
    assert cap.get_uid() in {tensor.uid for tensor in g.graph().variant_pack_tensors}


def test_a_score_modifier_reads_tensors_of_the_outer_graph(target_h100: None) -> None:
    """Uids in the modifier's graph start at 1, so some of them equal uids of the outer graph."""
    for count in range(8):
        g = make_empty_graph_of_type()
        q, k, v = make_qkv(g)
        low = add_by_value_tensor(g, "low")

        def modify_score(inner: Any, score: cudnn.tensor, count: int = count, low: cudnn.tensor = low) -> cudnn.tensor:
            for _ in range(count):
                score = inner.add(a=score, b=score)
            return inner.mul(a=score, b=low)

        o, _ = g.sdpa(q, k, v, is_inference=True, score_mod=modify_score)
        o.set_output(True)
        g.validate()
        g.build_operation_graph()
        assert low.get_uid() in {tensor.uid for tensor in g.graph().variant_pack_tensors}
        assert low.owner is q.owner


def test_masks_written_as_score_modifiers_are_planned_for_backward(target_h100: None) -> None:
    g = make_empty_graph_of_type()
    q, k, v, o, d_o = make_qkv(g, names="qkvop")
    stats = g.tensor(dim=[2, 4, 256, 1], stride=[1024, 256, 1, 1], data_type=FLOAT)
    low, zero = add_by_value_tensor(g, "low"), add_by_value_tensor(g, "zero")
    gradients = g.sdpa_backward(
        q,
        k,
        v,
        o,
        d_o,
        stats,
        attn_scale=0.125,
        score_mod=lambda g, x: apply_causal_mask(g, x, low),
        score_mod_bprop=lambda g, x: apply_causal_mask(g, x, zero),
    )
    for item in gradients:
        assert item is not None
        item.set_output(True)
    assert count_plans(g) > 0
    selects = [op for op in g.graph().ops if op.display_name() == "binary_select"]
    assert len(selects) == 2


def test_one_graph_may_contain_two_attention_nodes() -> None:
    recorder = RecordingGraph((9, 19, 0))
    problem = Attention(**PROBLEM_SIZES, stats=True, causal=True)
    for _ in range(2):
        call_frontend_attention(recorder, problem, backward=False, unified=False)
    graph: Graph = recorder.graph()
    assert len(graph.ops) == 2 * len(build_graph_with_options_of_listing("9.19 fwd causal TL").ops)
    assert len({tensor.name for tensor in graph.tensors}) == len(graph.tensors)


def test_a_graph_with_a_known_issue_is_built_and_warned_about_once(target_h100: None) -> None:
    code = "unaligned-strides"
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(2):
            g = make_empty_graph_of_type()
            q, k, v = (
                g.tensor(dim=[2, 4, 256, 64], stride=[4 * 256 * 65 + 1, 65, 4 * 65, 1], name=name) for name in "qkv"
            )
            o, _stats = g.sdpa(q, k, v, generate_stats=False, attn_scale=0.125)
            assert o is not None
            o.set_output(True)
            g.validate()
            g.graph()
    assert sum(code in str(item.message) for item in caught) == 1


def test_workspace_of_the_backward_pass_equals_that_of_cudnn_frontend(target_h100: None) -> None:
    """The expected size was measured with cudnn-frontend: b 2, h 6, s 384 and 512, d 64 and 128, two cuDNN versions."""
    g = make_empty_graph_of_type()
    sizes = {"q": (384, 64), "k": (512, 64), "v": (512, 128), "o": (384, 128), "do": (384, 128)}
    q, k, v, o, d_o = (
        g.tensor(dim=[2, 6, s, d], stride=[6 * s * d, d, 6 * d, 1], name=name) for name, (s, d) in sizes.items()
    )
    stats = g.tensor(dim=[2, 6, 384, 1], stride=[6 * 384, 384, 1, 1], data_type=FLOAT)
    for item in g.sdpa_backward(q, k, v, o, d_o, stats, attn_scale=0.125, use_causal_mask=True):
        assert item is not None
        item.set_output(True)
    assert count_plans(g) > 0
    g.build_plans()
    assert g.get_workspace_size() == 1198336


@pytest.mark.parametrize(("sm", "version", "refused"), [(100, (9, 25, 1), True), (103, (9, 14, 0), True),
                                                        (100, (9, 26, 0), False), (90, (9, 19, 0), False)])  # fmt: skip
def test_a_block_mask_on_sm_10x_needs_cudnn_926(sm: int, version: tuple[int, ...], refused: bool) -> None:
    set_default_target("b200")
    try:
        g = cudnn.pygraph(io_data_type=cudnn.data_type.BFLOAT16, compute_data_type=cudnn.data_type.FLOAT)
        q = g.tensor(dim=[1, 2, 256, 128])
        mask = g.tensor(dim=[1, 2, 2, 1], data_type=cudnn.data_type.UINT8)
        g.sdpa(q, q, q, generate_stats=False, block_mask=mask)
        context: Any = SimpleNamespace(sm=sm, version=version)
        if refused:
            with pytest.raises(cudnn.cudnnGraphNotSupportedError, match=r"requires cuDNN 9\.26\.0"):
                g._nodes[-1].choose_engine(context)
        else:
            assert g._nodes[-1].choose_engine(context) is None
    finally:
        set_default_target(None)


def test_a_key_tensor_computed_in_the_graph_is_refused(target_h100: None) -> None:
    """Attention reads K transposed; cudnn-frontend reports that no engine supports it."""
    g = make_empty_graph_of_type()
    q, k, v = make_qkv(g)
    o, _ = g.sdpa(q=q, k=g.relu(k, name="positive"), v=v, attn_scale=0.1, generate_stats=False)
    o.set_output(True)
    with pytest.raises(
        cudnn.cudnnGraphNotSupportedError, match=r"'positive::OUT_0' .* in two ways, with different dims"
    ):
        g.build_operation_graph()
