"""Examples of known issues of backward attention."""

from __future__ import annotations

import dataclasses
from typing import Any

from cudnn_backend_py.graph.attention.backward import build_composite_backward
from cudnn_backend_py.graph.attention.problem import Attention
from cudnn_backend_py.graph.ir import Graph, Pointwise, Reduction
from cudnn_backend_py.graph.replace import replace_tensors
from cudnn_backend_py.known_issues.attention_backward import find_row_sums_of_o_times_do

from .attention_graphs import make_attention_backward
from .example import BASE_OPTIONS, Examples, Reproduction

__all__ = ["ATTENTION_BACKWARD"]


def _make_backward_with_mask_before_stats() -> Graph:
    """Return a backward pass that subtracts the statistics from masked scores."""
    graph = make_attention_backward(padding=True)
    score, minus, masked = (graph.tensor(name) for name in ("mul", "minus_stats", "padded"))
    ports: dict[str, dict[str, Any]] = {
        "column": {"x": score},
        "row": {"x": score},
        "padded": {"x": score},
        "minus_stats": {"x": masked},
        "p": {"x": minus},
    }
    ops = [dataclasses.replace(op, **ports.get(op.name, {})) if isinstance(op, Pointwise) else op for op in graph.ops]
    return Graph(tuple(ops), graph.name)


def _make_ragged_backward(*, bounds: bool = True, apart: bool = True) -> Graph:
    """Return a ragged backward pass; Q is a slice of packed Q, K and V, its gradient a separate tensor or a slice."""
    token = 3 * 2 * 64  # distance between tokens, in elements
    layout = {"q": (128 * token, 64, token, 1), **({"dq": "bshd"} if apart else {})}
    totals = {"max_total_seq_q": 256, "max_total_seq_kv": 256} if bounds else {}
    graph = make_attention_backward(ragged=True, ragged_stats=True, layout=layout, **totals)
    own = dataclasses.replace(graph.tensor("ragged_q"), name="ragged_dq", uid=max(t.uid for t in graph.tensors) + 1)
    changed = {
        tensor.uid: dataclasses.replace(tensor, ragged_offset=own)
        for tensor in graph.tensors
        if tensor.name in ("dq", "dq_accum") and tensor.ragged_offset is not None
    }
    return replace_tensors(graph, changed) if apart else graph


_BIAS_GRADIENT_OPTIONS: dict[str, Any] = {"bias": (1, 2, 128, 128), "dbias": True}


def _make_backward_with_scaled_row_sums(value: float | None) -> Graph:
    """Return a backward pass with its row sums multiplied by a number, or not multiplied for None."""
    graph = build_composite_backward(Attention(**BASE_OPTIONS), None)
    sums = find_row_sums_of_o_times_do(graph)
    assert sums is not None
    if value is not None:
        factor = graph.tensor("row_factor")
        return replace_tensors(graph, {factor.uid: dataclasses.replace(factor, value=value)})
    scratch = graph.tensor("softmax_sum")
    ops = [
        dataclasses.replace(op, y=scratch) if isinstance(op, Reduction) and op.y.uid == sums.uid else op
        for op in graph.ops
        if not (isinstance(op, Pointwise) and op.y is not None and op.y.uid == scratch.uid)
    ]
    return Graph(tuple(ops), graph.name)


ATTENTION_BACKWARD: dict[str, Examples] = {
    "bounded-total-ampere-kernels": Examples(
        reproductions={"": Reproduction(True, {"ragged": True, "max_total_seq_q": 256, "max_total_seq_kv": 256})},
        unaffected=Reproduction(True, {"ragged": True}),
        fixed=Reproduction(True, {"ragged": True}),
    ),
    "unified-backward-without-knob": Examples(
        reproductions={"": Reproduction(True, {}, "unified", (9, 23, 0))},
        unaffected=Reproduction(True, {}),
        fixed=Reproduction(True, {}),
    ),
    "backward-in-cuda-graphs": Examples(
        reproductions={"": Reproduction(True, {"seq_kv": 200})},
        unaffected=Reproduction(True, {"seq_kv": 200, "padding": True}),
        fixed=Reproduction(True, {"seq_kv": 200, "padding": True}),
    ),
    "backward-key-tail": Examples(
        reproductions={"": Reproduction(True, {"seq_kv": 192})},
        unaffected=Reproduction(True, {"seq_kv": 192, "causal": True}),
        fixed=Reproduction(True, {"seq_kv": 192, "padding": True}),
    ),
    "backward-one-query": Examples(
        reproductions={"": Reproduction(True, {"seq_q": 1, "seq_kv": 128})},
        unaffected=Reproduction(True, {"seq_q": 1, "seq_kv": 128, "padding": True}),
        fixed=Reproduction(True, {"seq_q": 1, "seq_kv": 128, "padding": True}),
    ),
    "ragged-backward-gaps": Examples(
        reproductions={"": Reproduction(True, {"ragged": True})},
        unaffected=Reproduction(False, {"ragged": True}),
    ),
    "ragged-backward-ragged-stats": Examples(
        reproductions={"": Reproduction(True, {"ragged": True, "ragged_stats": True})},
        unaffected=Reproduction(True, {"ragged": True}),
        fixed=Reproduction(True, {"ragged": True}),
    ),
    "backward-stats-layout": Examples(
        reproductions={"": Reproduction(True, {"layout": {"stats": (256, 1, 2, 1)}})},
        unaffected=Reproduction(True, {"layout": {"q": "bhsd"}}),
        fixed=Reproduction(True, {}),
    ),
    "backward-head-dims-of-9-11": Examples(
        reproductions={"": Reproduction(True, {"head_dim": 160, "head_dim_v": 96})},
        unaffected=Reproduction(True, {"head_dim": 160, "head_dim_v": 64}),
        fixed=Reproduction(True, {"head_dim": 192, "head_dim_v": 128}),
    ),
    "backward-large-head-dims": Examples(
        reproductions={"": Reproduction(True, {"head_dim": 256, "head_dim_v": 192})},
        unaffected=Reproduction(True, {"head_dim": 192, "head_dim_v": 128}),
        fixed=Reproduction(True, {"head_dim": 256, "head_dim_v": 256}),
    ),
    "backward-stats-layout-with-dbias": Examples(
        reproductions={"": Reproduction(True, _BIAS_GRADIENT_OPTIONS | {"layout": {"stats": (256, 1, 2, 1)}})},
        unaffected=Reproduction(True, {"layout": {"stats": (256, 1, 2, 1)}}),
        fixed=Reproduction(True, _BIAS_GRADIENT_OPTIONS),
    ),
    "backward-one-key": Examples(
        reproductions={"": Reproduction(True, {"seq_kv": 1})},
        unaffected=Reproduction(True, {"seq_kv": 64}),
        fixed=Reproduction(True, {"seq_kv": 64, "padding": True}),
    ),
    "backward-head-dim-256": Examples(
        reproductions={"": Reproduction(True, {"head_dim": 256})},
        unaffected=Reproduction(True, {"head_dim": 256, "deterministic": True}),
        fixed=Reproduction(True, {"head_dim": 128}),
    ),
    "bounded-total-apart": Examples(
        reproductions={"": _make_ragged_backward},
        unaffected=lambda: _make_ragged_backward(apart=False),
        fixed=lambda: _make_ragged_backward(bounds=False),
    ),
    "dbias-above-2-31": Examples(
        reproductions={
            "": Reproduction(
                True, {"heads": 8, "seq_q": 33280, "head_dim": 128, "bias": (2, 1, 33280, 33280), "dbias": True}
            )
        },
        unaffected=Reproduction(
            True, {"heads": 8, "seq_q": 8192, "head_dim": 128, "bias": (2, 1, 8192, 8192), "dbias": True}
        ),
        fixed=Reproduction(
            True, {"heads": 8, "seq_q": 8192, "head_dim": 128, "bias": (2, 1, 8192, 8192), "dbias": True}
        ),
    ),
    "padding-before-stats": Examples(
        reproductions={"": _make_backward_with_mask_before_stats},
        unaffected=lambda: build_composite_backward(Attention(**BASE_OPTIONS | {"padding": True}), (9, 8, 0)),
        fixed=lambda: build_composite_backward(Attention(**BASE_OPTIONS | {"padding": True}), (9, 8, 0)),
    ),
    "backward-row-sums": Examples(
        reproductions={
            "": lambda: _make_backward_with_scaled_row_sums(None),
            "half": lambda: _make_backward_with_scaled_row_sums(0.5),
        },
        unaffected=lambda: _make_backward_with_scaled_row_sums(1.0),
        fixed=lambda: _make_backward_with_scaled_row_sums(1.0),
    ),
    "dbias-of-shared-rows": Examples(
        reproductions={
            "": Reproduction(True, {"bias": (1, 2, 1, 128), "dbias": True}),
            "keys": Reproduction(True, {"bias": (1, 2, 128, 1), "dbias": True}),
        },
        unaffected=Reproduction(True, {"bias": (1, 1, 128, 128), "dbias": True}),
        fixed=Reproduction(True, {"bias": (1, 2, 128, 128), "dbias": True}),
    ),
}
