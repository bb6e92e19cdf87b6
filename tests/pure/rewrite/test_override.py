"""Overrides of a graph's dims, types, attributes and options by name; dims that depend on others follow."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from cudnn_backend_py import DataType, DescriptorType, Graph
from cudnn_backend_py.generated.enums import ConvolutionMode
from cudnn_backend_py.graph import Operation, Parameters, Tensor, attention
from cudnn_backend_py.interpreter import interpret
from cudnn_backend_py.rewrite.override import describe_attention_scale, find_type, override
from tests.support.interpreting import assert_graph_error
from tests.support.typical_graphs import TYPICAL_GRAPHS

Dims = dict[str, tuple[int, ...]]
NCHW: dict[str, Any] = {"dims": (3, 3, 3, 3), "strides": (27, 9, 3, 1), "data_type": DataType.HALF}

FOLLOWING: list[tuple[str, Dims, dict[str, str], Dims]] = [
    ("convolution forward", {"x": (8, 64, 14, 14)}, {}, {"w": (64, 64, 3, 3), "relu_fwd": (8, 64, 14, 14)}),
    ("convolution forward", {"x": (0, 0, 15, 0)}, {"conv.stride": "2"}, {"relu_fwd": (4, 64, 8, 14)}),
    ("convolution forward", {"w": (16, 32, 5, 5)}, {}, {"bias": (1, 16, 1, 1), "relu_fwd": (4, 16, 26, 26)}),
    ("convolution backward data", {"dy": (8, 32, 7, 7)}, {}, {"w": (32, 32, 3, 3), "dgrad": (8, 32, 14, 14)}),
    ("convolution backward filter", {"x": (8, 16, 14, 14)}, {}, {"dy": (8, 64, 14, 14), "wgrad": (64, 16, 3, 3)}),
    ("matmul", {"a": (4, 256, 32)}, {}, {"b": (4, 32, 256), "gelu_fwd": (4, 256, 256)}),
    ("layer norm, training", {"x": (128, 512, 1, 1)}, {}, {"scale": (1, 512, 1, 1), "norm.mean": (128, 1, 1, 1)}),
    ("batch norm, training", {"x": (2, 64, 8, 8)}, {}, {"running_var": (1, 64, 1, 1), "norm": (2, 64, 8, 8)}),
    ("resample fwd", {"x": (2, 64, 8, 8)}, {}, {"pool": (2, 64, 4, 4), "pool.idx": (2, 64, 4, 4)}),
    ("concat", {"x": (2, 16, 8, 8)}, {}, {"z": (2, 64, 8, 8), "concat": (2, 128, 8, 8)}),
    ("slice", {"a": (2, 64, 32)}, {}, {"b": (2, 32, 64), "mm": (2, 32, 64)}),
    ("moe grouped matmul", {"token": (1, 128, 32)}, {}, {"weight": (8, 32, 128), "moe": (1, 128, 128)}),
    ("softmax", {"q": (1, 2, 64, 32)}, {}, {"k": (1, 2, 32, 128), "mm1": (1, 2, 64, 64)}),
    ("sdpa fwd", {"q": (1, 2, 64, 32)}, {}, {"k": (1, 2, 128, 32), "sdpa.stats": (1, 2, 64, 1)}),
    ("MXFP8 matmul", {"a": (1, 128, 512)}, {}, {"scale_a": (1, 128, 16), "scale_b": (1, 16, 256)}),
]


@pytest.mark.parametrize(("name", "dims", "settings", "wanted"), FOLLOWING)
def test_overriding_a_dim_changes_dependent_dims(name: str, dims: Dims, settings: dict[str, str], wanted: Dims) -> None:
    """The interpreter, which checks shapes, can run the changed graph."""
    from cudnn_backend_py.interpreter.data import make_inputs

    graph = override(TYPICAL_GRAPHS[name].make(), dims=dims, settings=settings)
    assert {key: graph.tensor(key).dims for key in wanted} == wanted
    results = interpret(graph, make_inputs(graph))
    assert all(np.isfinite(values).any() for values in results.values())


def test_a_graph_without_requested_changes_stays_unchanged() -> None:
    """An invalid graph is not corrected, so that cuDNN can refuse it."""
    x, w = (Tensor(**NCHW, name=name, uid=uid) for uid, name in enumerate("xw"))
    y = Tensor(**NCHW, name="y", uid=2)  # 1 by 1 would be valid
    numbers = dict.fromkeys(("pre_paddings", "post_paddings"), (0, 0))
    numbers |= dict.fromkeys(("filter_strides", "dilations"), (1, 1))
    facts = {"comp_type": DataType.FLOAT, "conv_mode": ConvolutionMode.CROSS_CORRELATION, "spatial_dims": 2, **numbers}
    fields = {"x": x, "w": w, "y": y, "convolution": Parameters(DescriptorType.CONVOLUTION, facts)}
    graph = Graph(
        (Operation(DescriptorType.OPERATION_CONVOLUTION_FORWARD, "conv", {**fields, "alpha": 1.0, "beta": 0.0}),)
    )
    assert override(graph) == graph
    assert override(graph, types={"x": "bf16"}).tensor("y") == y
    assert override(graph, settings={"conv.alpha": "2"}).tensor("y").dims == (3, 3, 1, 1)


def test_new_dims_keep_the_stride_order_and_the_ragged_offsets() -> None:
    graph = override(TYPICAL_GRAPHS["convolution forward"].make(), dims={"x": (2, 8, 4, 4)})
    assert graph.tensor("x").strides == (128, 1, 32, 8)
    ragged = attention.sdpa_forward(batch=3, heads=2, seq_q=64, head_dim=64, ragged=True)
    longer = override(ragged, dims={"q": (5, 2, 64, 64)})
    assert longer.tensor("ragged_q").dims == (6, 1, 1, 1)
    assert longer.tensor("q").ragged_offset == longer.tensor("ragged_q")


def test_data_types_are_set_by_any_of_their_names() -> None:
    graph = TYPICAL_GRAPHS["matmul"].make()
    assert override(graph, types={"a": "bf16"}).tensor("a").data_type is DataType.BFLOAT16
    everything = override(graph, types={"*": "bfloat16"})
    assert {tensor.data_type for tensor in everything.tensors if not tensor.virtual} == {DataType.BFLOAT16}
    for name in ("half", "HALF", "float16", "f16"):
        assert find_type(name) is DataType.HALF


def make_sdpa_forward(**options: Any) -> Graph:
    return attention.sdpa_forward(**{"batch": 2, "heads": 2, "seq_q": 64, "head_dim": 64} | options)


@pytest.mark.parametrize(
    ("settings", "options"),
    [
        ({"causal": ""}, {"causal": True}),
        ({"seq_q": "128"}, {"seq_q": 128}),
        ({"heads": "8", "kv_heads": "2"}, {"heads": 8, "kv_heads": 2}),
        ({"dropout": "0.5", "data_type": "bf16"}, {"dropout": 0.5, "data_type": DataType.BFLOAT16}),
        ({"page_size": "16", "padding": "yes"}, {"page_size": 16, "padding": True}),
        ({"ragged": "true", "stats": "true"}, {"ragged": True, "stats": True}),
        ({"bias": "1,2,64,64"}, {"bias": (1, 2, 64, 64)}),
        ({"scale": "0.3"}, {"scale": 0.3}),
        ({"implementation": "unified"}, {"implementation": "unified"}),
    ],
)
def test_attention_is_rebuilt_with_the_new_options(settings: dict[str, str], options: dict[str, Any]) -> None:
    made, wanted = override(make_sdpa_forward(), settings=settings), make_sdpa_forward(**options)
    assert made.ops == wanted.ops


def test_rebuilt_attention_keeps_its_other_options() -> None:
    graph = make_sdpa_forward(scale=0.3, causal=True, data_type=DataType.BFLOAT16)
    assert describe_attention_scale(override(graph, settings={"seq_q": "32"})) == 0.3
    back = override(override(graph, settings={"causal": "false"}), settings={"causal": "true"})
    assert back.ops == graph.ops
    turned = override(graph, settings={"direction": "backward"})
    assert {tensor.name for tensor in turned.outputs} >= {"dq", "dk", "dv"}


def test_operation_attributes_and_scalar_values_are_set() -> None:
    graph = override(TYPICAL_GRAPHS["matmul"].make(), settings={"gelu_fwd.mode": "relu_fwd", "mm.compute_type": "f16"})
    assert [str(op).split()[2].partition("(")[0] for op in graph.ops][-1] == "relu_fwd"
    wide = override(
        TYPICAL_GRAPHS["convolution forward"].make(), settings={"conv.padding": "2,1", "conv.dilation": "2"}
    )
    conv = next(op for op in wide.ops if isinstance(op, Operation))
    assert conv.fields["convolution"].fields["pre_paddings"] == (2, 1)
    assert conv.fields["convolution"].fields["dilations"] == (2, 2)
    softmax = TYPICAL_GRAPHS["softmax"].make()
    name = next(tensor.name for tensor in softmax.tensors if tensor.by_value)
    assert override(softmax, settings={name: "0.5"}).tensor(name).value == 0.5


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"dims": {"x": (1, 2)}}, "has 4 dims"),
        (
            {"dims": {"x": (4, 32, 28, 28), "w": (64, 16, 3, 3)}},
            "requested as 16, but another requested dim, which must be equal, is 32",
        ),
        ({"dims": {"x": (4, 32, 28, 28), "relu_fwd": (4, 64, 3, 3)}}, "is inferred as"),
        ({"dims": {"x": (4, 32, 1, 1), "w": (64, 32, 9, 9)}}, "would have dims"),
        ({"types": {"x": "nope"}}, "not a data type"),
        ({"settings": {"nope.stride": "1"}}, "no operation named 'nope'"),
        ({"settings": {"conv.nope": "1"}}, "no field called 'nope'"),
        ({"settings": {"conv.stride": "1,2,3"}}, "2 are needed"),
        ({"settings": {"relu_fwd.mode": "nope"}}, "not a PointwiseMode"),
        ({"settings": {"causal": ""}}, "no setting causal"),
        ({"settings": {"conv.stride": "0"}}, "the dims of 'conv' cannot be inferred from its tensors and numbers"),
        ({"settings": {"conv.stride": "1.5"}}, "setting 'conv.stride': '1.5' is not a whole number"),
        ({"settings": {"conv.stride": "nan"}}, "'nan' is not a whole number"),
    ],
)
def test_impossible_overrides_are_refused(changes: dict[str, Any], match: str) -> None:
    assert_graph_error("override", match, lambda: override(TYPICAL_GRAPHS["convolution forward"].make(), **changes))


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"nope": "1"}, "no option 'nope'"),
        ({"causal": "perhaps"}, "setting 'causal': 'perhaps' is neither true"),
        ({"direction": "up"}, "direction must be forward or backward, got 'up'"),
    ],
)
def test_invalid_options_of_attention_are_refused(settings: dict[str, str], match: str) -> None:
    assert_graph_error("override", match, lambda: override(make_sdpa_forward(), settings=settings))
    capped = make_sdpa_forward(score_modifier=attention.SoftCap(20.0))
    assert_graph_error("override", "score modifier", lambda: override(capped, settings={"causal": ""}))
