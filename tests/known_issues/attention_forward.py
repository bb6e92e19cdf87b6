"""Examples of known issues of forward attention, and of attention in both directions."""

from __future__ import annotations

import dataclasses
from typing import Any

from cudnn_backend_py.generated.enums import DataType, DescriptorType, RngDistribution
from cudnn_backend_py.graph.attention.forward import build_composite_forward
from cudnn_backend_py.graph.attention.problem import Attention
from cudnn_backend_py.graph.ir import Graph, Operation, Pointwise

from .attention_graphs import make_attention_backward, make_attention_forward
from .example import BASE_OPTIONS, Examples, Reproduction

__all__ = ["ATTENTION_FORWARD"]


def _change_tensor(graph: Graph, name: str, **changes: Any) -> Graph:
    """Return the graph with one tensor changed in all pointwise operations that use it."""
    old = graph.tensor(name)
    new = dataclasses.replace(old, **changes)
    ops = []
    for op in graph.ops:
        ports: dict[str, Any] = {port: new for port, tensor in op.ports() if tensor.uid == old.uid}
        ops.append(dataclasses.replace(op, **ports) if isinstance(op, Pointwise) else op)
    return Graph(tuple(ops), graph.name)


_RAGGED_DECODING_OPTIONS: dict[str, Any] = {
    "seq_q": 1,
    "seq_kv": 512,
    "ragged": True,
    "ragged_stats": True,
    "stats": True,
}
_SINK_OPTIONS: dict[str, Any] = {"sink": True, "dsink": True}
_OVERLAPPING_LAYOUT = {"q": (128, 64, 128, 1), "k": "bshd", "v": "bshd", "o": "bshd"}


def _make_forward_with_scale(value: float) -> Graph:
    return build_composite_forward(Attention(**BASE_OPTIONS | {"scale": value, "right_bound": 0, "stats": True}), None)


def _make_forward_with_dropout_mask(distribution: RngDistribution, **facts: Any) -> Graph:
    """Return a forward pass that generates its dropout mask with a random distribution, and stores the mask."""
    graph = build_composite_forward(
        Attention(**BASE_OPTIONS | {"dropout": 0.25, "rng_dump": True, "stats": True}), None
    )
    ops = []
    for op in graph.ops:
        if isinstance(op, Operation) and op.kind is DescriptorType.OPERATION_RNG:
            rng = dataclasses.replace(op.fields["rng"], fields={"distribution": distribution, **facts})
            op = dataclasses.replace(op, fields={**op.fields, "rng": rng})
        ops.append(op)
    return Graph(tuple(ops), graph.name)


ATTENTION_FORWARD: dict[str, Examples] = {
    "attention-of-9-10": Examples(
        reproductions={"": Reproduction(False, {})},
        unaffected=Reproduction(False, {"data_type": DataType.FP8_E4M3}),
    ),
    "window-of-9-14": Examples(
        reproductions={"": Reproduction(False, {"seq_kv": 2048, "left_bound": 64})},
        unaffected=Reproduction(False, {"seq_kv": 2048, "left_bound": 64, "causal": True}),
        fixed=Reproduction(False, {"seq_kv": 2048, "left_bound": 64, "causal": True}),
    ),
    "long-keys-in-cuda-graphs": Examples(
        reproductions={"": Reproduction(False, {"seq_kv": 2048}), "backward": Reproduction(True, {"seq_kv": 2048})},
        unaffected=Reproduction(False, {"seq_kv": 2048, "causal": True}),
        fixed=Reproduction(False, {"seq_kv": 2048, "causal": True}),
    ),
    "dropout-heuristics": Examples(
        reproductions={"": Reproduction(False, {"dropout": 0.25})},
        unaffected=Reproduction(False, {"dropout_mask": True}),
    ),
    "decoding-on-blackwell": Examples(
        reproductions={"": Reproduction(False, {"seq_q": 1, "seq_kv": 512})},
        unaffected=Reproduction(False, {"seq_q": 2, "seq_kv": 512}),
    ),
    "decoding-ragged-stats": Examples(
        reproductions={
            "": Reproduction(
                False, {"seq_q": 1, "seq_kv": 300, "kv_heads": 1, "stats": True, "ragged_stats": True, "ragged": True}
            )
        },
        unaffected=Reproduction(False, {"seq_q": 1, "seq_kv": 300, "kv_heads": 1, "stats": True, "ragged": True}),
        fixed=Reproduction(False, {"seq_q": 1, "seq_kv": 300, "kv_heads": 1, "stats": True, "ragged": True}),
    ),
    "decoding-causal-groups": Examples(
        reproductions={"": Reproduction(False, {"seq_q": 1, "seq_kv": 512, "kv_heads": 1, "causal": True})},
        unaffected=Reproduction(False, {"seq_q": 1, "seq_kv": 512, "kv_heads": 1}),
        fixed=Reproduction(False, {"seq_q": 1, "seq_kv": 512, "kv_heads": 1}),
    ),
    "sink-of-ragged-sequences": Examples(
        reproductions={"": Reproduction(True, _SINK_OPTIONS | {"ragged": True, "ragged_stats": True, "head_dim": 96})},
        unaffected=Reproduction(True, _SINK_OPTIONS | {"ragged": True, "ragged_stats": True, "head_dim": 128}),
        fixed=Reproduction(True, _SINK_OPTIONS | {"head_dim": 96, "padding": True}),
    ),
    "code-of-sm-100": Examples(
        reproductions={"": Reproduction(False, {}), "backward": Reproduction(True, {})},
        unaffected=Reproduction(False, {"data_type": DataType.FP8_E4M3}),
    ),
    "ragged-length-0": Examples(
        reproductions={"": Reproduction(False, {"ragged": True}), "backward": Reproduction(True, {"ragged": True})},
        unaffected=Reproduction(False, {"padding": True}),
    ),
    "batch-of-65536": Examples(
        reproductions={"": Reproduction(False, {"batch": 65536}), "heads": Reproduction(False, {"heads": 65536})},
        unaffected=Reproduction(False, {"batch": 65535}),
        fixed=Reproduction(False, {"batch": 65535}),
    ),
    "ragged-attention-of-9-1": Examples(
        reproductions={"": Reproduction(False, {"ragged": True})},
        unaffected=Reproduction(False, {"padding": True}),
    ),
    "stats-of-large-scores": Examples(
        reproductions={"": Reproduction(False, {"stats": True})},
        unaffected=Reproduction(False, {}),
    ),
    "paged-tail-not-finite": Examples(
        reproductions={"": Reproduction(False, {"padding": True, "page_size": 16})},
        unaffected=Reproduction(False, {"padding": True}),
        fixed=Reproduction(False, {}),
    ),
    "paged-attention-on-ada": Examples(
        reproductions={"": Reproduction(False, {"padding": True, "page_size": 16})},
        unaffected=Reproduction(False, {"padding": True}),
        fixed=Reproduction(False, {"padding": True}),
    ),
    "long-keys-hang": Examples(
        reproductions={
            "": Reproduction(
                False, {"seq_q": 8192, "seq_kv": 131072, "causal": True, "alignment": "bottom_right", "head_dim": 128}
            )
        },
        unaffected=Reproduction(False, {"seq_q": 8192, "seq_kv": 131072, "causal": True, "head_dim": 128}),
    ),
    "forward-stats-layout": Examples(
        reproductions={"": Reproduction(False, {"stats": True, "layout": {"stats": (256, 1, 2, 1)}})},
        unaffected=Reproduction(False, {"stats": True}),
        fixed=Reproduction(False, {"stats": True}),
    ),
    "stats-not-float": Examples(
        reproductions={
            "": lambda: _change_tensor(make_attention_forward(stats=True), "stats", data_type=DataType.HALF)
        },
        unaffected=lambda: make_attention_forward(stats=True),
        fixed=lambda: make_attention_forward(stats=True),
    ),
    "float32-in-one-operation": Examples(
        reproductions={"": Reproduction(False, {"data_type": DataType.FLOAT}, "unified", (9, 24, 0))},
        unaffected=Reproduction(False, {}, "unified", (9, 24, 0)),
        fixed=Reproduction(False, {}, "unified", (9, 24, 0)),
    ),
    "block-mask-first-block": Examples(
        reproductions={"": Reproduction(False, {"block_mask": True}, "unified", (9, 14, 0))},
        unaffected=Reproduction(False, {}, "unified", (9, 14, 0)),
        fixed=Reproduction(False, {"bias": (1, 1, 128, 128)}),
    ),
    "eight-bit-bias": Examples(
        reproductions={
            "": lambda: _change_tensor(make_attention_forward(bias=(1, 2, 128, 128)), "bias", data_type=DataType.INT8),
            "float": lambda: _change_tensor(
                make_attention_forward(bias=(1, 2, 128, 128)), "bias", data_type=DataType.FP8_E4M3
            ),
        },
        unaffected=lambda: make_attention_forward(bias=(1, 2, 128, 128)),
        fixed=lambda: make_attention_forward(bias=(1, 2, 128, 128)),
    ),
    "ragged-decoding-build": Examples(
        reproductions={"": Reproduction(False, _RAGGED_DECODING_OPTIONS, "unified", (9, 26, 0))},
        unaffected=Reproduction(False, _RAGGED_DECODING_OPTIONS | {"seq_q": 2}, "unified", (9, 26, 0)),
        fixed=Reproduction(False, _RAGGED_DECODING_OPTIONS | {"seq_q": 2}, "unified", (9, 26, 0)),
    ),
    "ragged-offsets-of-32-bits": Examples(
        reproductions={"": Reproduction(False, {"batch": 64, "heads": 16, "seq_q": 32768, "ragged": True})},
        unaffected=Reproduction(
            False, {"batch": 64, "heads": 16, "seq_q": 32768, "ragged": True, "offset_type": DataType.INT64}
        ),
        fixed=Reproduction(
            False, {"batch": 64, "heads": 16, "seq_q": 32768, "ragged": True, "offset_type": DataType.INT64}
        ),
    ),
    "infinite-masks": Examples(
        reproductions={"": lambda: make_attention_forward(causal=True)},
        unaffected=lambda: build_composite_forward(Attention(**BASE_OPTIONS | {"causal": True}), (9, 8, 0)),
        fixed=lambda: build_composite_forward(Attention(**BASE_OPTIONS | {"causal": True}), (9, 8, 0)),
    ),
    "overlapping-sequences": Examples(
        reproductions={"": Reproduction(False, {"layout": _OVERLAPPING_LAYOUT})},
        unaffected=Reproduction(False, {"layout": "bshd"}),
        fixed=Reproduction(False, {"layout": "bshd"}),
    ),
    "boolean-bias": Examples(
        reproductions={
            "": lambda: _change_tensor(
                make_attention_forward(bias=(1, 2, 128, 128)), "bias", data_type=DataType.BOOLEAN
            ),
            "backward": lambda: _change_tensor(
                make_attention_backward(bias=(1, 2, 128, 128)), "bias", data_type=DataType.BOOLEAN
            ),
        },
        unaffected=lambda: make_attention_forward(bias=(1, 2, 128, 128)),
        fixed=lambda: make_attention_forward(bias=(1, 2, 128, 128)),
    ),
    "bias-inner-stride": Examples(
        reproductions={
            "": lambda: _change_tensor(
                make_attention_forward(bias=(1, 2, 128, 128)), "bias", strides=(2 * 128 * 256, 128 * 256, 256, 2)
            )
        },
        unaffected=lambda: make_attention_forward(bias=(1, 2, 128, 128)),
        fixed=lambda: make_attention_forward(bias=(1, 2, 128, 128)),
    ),
    "kernel-cache-of-attention": Examples(
        reproductions={"": Reproduction(False, {})},
        unaffected=Reproduction(True, {}),
    ),
    "override-shapes-of-attention": Examples(
        reproductions={"": Reproduction(False, {}), "unified": Reproduction(False, {}, "unified")},
        unaffected=Reproduction(False, {"ragged": True}),
    ),
    "scale-not-above-0": Examples(
        reproductions={"": lambda: _make_forward_with_scale(-0.125), "zero": lambda: _make_forward_with_scale(0.0)},
        unaffected=lambda: _make_forward_with_scale(0.125),
        fixed=lambda: _make_forward_with_scale(0.125),
    ),
    "dropout-distribution": Examples(
        reproductions={
            "": lambda: _make_forward_with_dropout_mask(
                RngDistribution.UNIFORM, uniform_dist_minimum=-2.0, uniform_dist_maximum=3.0
            ),
            "normal": lambda: _make_forward_with_dropout_mask(
                RngDistribution.NORMAL, normal_dist_mean=5.0, normal_dist_standard_deviation=0.1
            ),
        },
        unaffected=lambda: _make_forward_with_dropout_mask(RngDistribution.BERNOULLI, bernoulli_dist_probability=0.75),
        fixed=lambda: _make_forward_with_dropout_mask(RngDistribution.BERNOULLI, bernoulli_dist_probability=0.75),
    ),
}
