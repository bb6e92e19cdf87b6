"""Random attention graphs, forward and backward, in composite or unified form, with every option."""

from __future__ import annotations

from typing import Any

from cudnn_backend_py.errors import GraphError
from cudnn_backend_py.generated.enums import DataType
from cudnn_backend_py.graph import Graph
from cudnn_backend_py.graph.attention import Attention, SoftCap, sdpa_backward, sdpa_forward
from cudnn_backend_py.graph.data_types import FP8_TYPES
from cudnn_backend_py.known_issues import AttentionUse, Form, find_measured_issues

from ..random_builder import RandomGraphBuilder

__all__ = [
    "make_composite_attention",
    "make_composite_attention_backward",
    "make_unified_attention",
    "make_unified_attention_backward",
]

_T = DataType
_MAX_TRIES = 60


def make_composite_attention(d: RandomGraphBuilder) -> Graph:
    """Return random forward attention as matmuls, softmax and so on; since 9.21, parts may be single operations."""
    return _make_first_valid_graph(d, backward=False, unified=False)


def make_composite_attention_backward(d: RandomGraphBuilder) -> Graph:
    """Return a random attention backward pass as matmuls, pointwise operations and reductions."""
    return _make_first_valid_graph(d, backward=True, unified=False)


def make_unified_attention(d: RandomGraphBuilder) -> Graph:
    """Return random forward attention as one unified SDPA operation."""
    return _make_first_valid_graph(d, backward=False, unified=True)


def make_unified_attention_backward(d: RandomGraphBuilder) -> Graph:
    """Return a random attention backward pass as one unified SDPA operation."""
    return _make_first_valid_graph(d, backward=True, unified=True)


def _make_first_valid_graph(d: RandomGraphBuilder, *, backward: bool, unified: bool) -> Graph:
    """Draw random attention options until their graph can be built and has no known issue; return this graph."""
    make = sdpa_backward if backward else sdpa_forward
    newer = unified or (d.is_version_at_least(9, 21, 0) and d.make_random_bool(0.5))
    version = (d.version or (9, 99, 0)) if newer else None
    shape: Form = "unified" if unified else "single operations" if newer else "expanded"
    error: GraphError | None = None
    for _ in range(_MAX_TRIES):
        try:
            problem = _make_random_problem(d, backward=backward, unified=unified)
            graph = make(
                problem, implementation="unified" if unified else "composite", version=version, allow_hazards=True
            )
        except GraphError as refused:
            error = refused
            continue
        if not any(find_measured_issues(AttentionUse(problem, backward, shape, d.version, 90))):
            return Graph(graph.ops, d.g.name)
    raise error or GraphError("known issues concern every problem drawn", code="attention-hazard")


def _make_random_problem(d: RandomGraphBuilder, *, backward: bool, unified: bool) -> Attention:
    """Return an attention problem with few random options, so that cuDNN supports most of the problems."""
    # Before this version, the operation supports few options but lengths and pages.
    plain = unified and not d.is_version_at_least(9, 21, 0)
    is_fp8 = d.make_random_bool(0.12) and (not unified or d.is_version_at_least(9, 25, 0))
    heads = d.choose(1, 2, 2, 4)
    o: dict[str, Any] = {"batch": d.choose(1, 1, 2, 3), "heads": heads}
    o["kv_heads"] = heads if d.make_random_bool(0.6) else d.choose(*(n for n in (1, 2, 4) if heads % n == 0))
    o["seq_q"] = d.choose_weighted({64: 3, 128: 3, 192: 1, 256: 0.5, 100: 1, 72: 1, 16: 1})
    o["seq_kv"] = (
        o["seq_q"] if d.make_random_bool(0.5) else d.choose_weighted({64: 3, 128: 3, 192: 1, 256: 0.5, 100: 1, 72: 1})
    )
    if d.make_random_bool(0.06 if backward else 0.1):
        o["seq_q"] = d.choose(1, 1, 2, 5)  # cuDNN has separate kernels for decoding (few queries)
    o["head_dim"] = d.choose_weighted({64: 6, 128: 4, 32: 2, 96: 1, 80: 0.7, 40: 0.5})
    o["head_dim_v"] = o["head_dim"] if d.make_random_bool(0.88) else d.choose(64, 128)
    o["data_type"] = d.choose(*FP8_TYPES) if is_fp8 else d.choose(_T.HALF, _T.BFLOAT16)
    if is_fp8:
        o["head_dim"] = o["head_dim_v"] = 128 if backward else d.choose(64, 128)
    if d.make_random_bool(0.12):
        o["scale"] = d.choose("tensor", 0.3) if unified else d.choose("tensor", "none", 0.3)
    o["stats"] = backward or d.make_random_bool(0.6)
    _add_random_length_options(d, o, backward=backward)
    if not plain:
        _add_random_mask_options(d, o)
        _add_random_score_options(d, o, backward=backward, is_fp8=is_fp8)
        _add_random_dropout_options(d, o, backward=backward, unified=unified)
    if backward:
        o["deterministic"] = not unified and d.make_random_bool(0.15)
    elif not plain and d.make_random_bool(0.1):
        o |= {"stats": d.make_random_bool(0.3), "max": d.make_random_bool(0.8), "sum_exp": d.make_random_bool(0.8)}
    if unified and not backward and d.make_random_bool(0.04):
        o["block_mask"] = True
    return Attention(**o)


def _add_random_mask_options(d: RandomGraphBuilder, o: dict[str, Any]) -> None:
    if d.make_random_bool(0.4):
        o["right_bound"] = 0 if d.make_random_bool(0.75) else d.make_random_int(1, max(1, o["seq_kv"] // 2))
    if d.make_random_bool(0.2):
        o["left_bound"] = d.make_random_int(1, o["seq_kv"])
    if ("right_bound" in o or "left_bound" in o) and d.make_random_bool(0.35):
        o["alignment"] = "bottom_right"


def _add_random_length_options(d: RandomGraphBuilder, o: dict[str, Any], *, backward: bool) -> None:
    kind = d.choose_weighted({"plain": 6, "padding": 2, "ragged": 2, "paged": 0 if backward else 1})
    o["padding"] = kind != "plain"
    if kind == "ragged":
        o |= {"ragged": True, "ragged_stats": d.make_random_bool(0.4), "offset_type": d.choose(_T.INT32, _T.INT64)}
        if backward and d.make_random_bool(0.3):
            o |= {"max_total_seq_q": o["batch"] * o["seq_q"], "max_total_seq_kv": o["batch"] * o["seq_kv"]}
    elif kind == "paged":
        o["page_size"] = d.choose(16, 64, 128)
    else:
        o["layout"] = d.choose("bshd", "bshd", "bhsd", "sbhd", {"q": "bhsd", "v": "sbhd", "do": "bhsd"})
        same = o["kv_heads"] == o["heads"] and o["head_dim"] == o["head_dim_v"] and o["seq_q"] == o["seq_kv"]
        if same and d.make_random_bool(0.2):
            o["layout"] = "packed"


def _add_random_score_options(d: RandomGraphBuilder, o: dict[str, Any], *, backward: bool, is_fp8: bool) -> None:
    if d.make_random_bool(0.18):
        o["bias"] = (d.choose(1, o["batch"]), d.choose(1, o["heads"]), o["seq_q"], o["seq_kv"])
        o["dbias"] = backward and not is_fp8 and d.make_random_bool(0.5)
    o["alibi"] = d.make_random_bool(0.1)
    if d.make_random_bool(0.1) and not is_fp8:
        o["score_modifier"] = SoftCap(d.choose(0.5, 2.0, 15.0))
    if d.make_random_bool(0.12):
        o["sink"] = True
        o["dsink"] = backward and d.make_random_bool(0.7)


def _add_random_dropout_options(d: RandomGraphBuilder, o: dict[str, Any], *, backward: bool, unified: bool) -> None:
    if unified and backward and not d.is_version_at_least(9, 28, 0):
        return
    if d.make_random_bool(0.15):
        if backward or unified or d.make_random_bool(0.7):
            o["dropout"] = d.choose(0.1, 0.25, 0.5)
            o["rng_dump"] = not backward and d.make_random_bool(0.3)
            o["seed_type"] = d.choose(_T.INT32, _T.INT64)
        else:
            o["dropout_mask"] = True
