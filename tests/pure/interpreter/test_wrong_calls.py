"""Wrong calls of builder methods: the error names the tensors, the value found, and the value needed."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from cudnn_backend_py import DataType, GraphBuilder, GraphError, PointwiseMode
from cudnn_backend_py.generated.enums import MoeGroupedMatmulMode, NormMode, ReduceTensorOp, ResampleMode
from tests.support.typical_graphs import TYPICAL_GRAPHS

BuilderCall = Callable[[GraphBuilder], Any]


def add_image_tensor(g: GraphBuilder, channels: int = 32) -> Any:
    return g.tensor("x", (2, channels, 8, 8), strides="channels_last")


def add_tensor(g: GraphBuilder, name: str, *dims: int, kind: DataType = DataType.HALF) -> Any:
    return g.tensor(name, dims, kind)


def add_per_channel_tensor(g: GraphBuilder, name: str, channels: int = 32) -> Any:
    return g.tensor(name, (1, channels, 1, 1), DataType.FLOAT)


def add_moe_grouped_matmul(g: GraphBuilder, **options: Any) -> Any:
    offsets = options.pop("offsets", ((8, 1, 1), DataType.INT32))
    weight = add_tensor(g, "weight", 8, options.pop("k", 64), 128)
    return g.moe_grouped_matmul(add_tensor(g, "token", 1, 256, 64), weight, g.tensor("offsets", *offsets), **options)


def add_qkv_tensors(g: GraphBuilder, *shapes: tuple[int, ...]) -> list[Any]:
    return [g.tensor(name, dims) for name, dims in zip("qkv", shapes, strict=True)]


def add_batch_norm(g: GraphBuilder, **options: Any) -> Any:
    return g.norm_forward(
        NormMode.BATCH_NORM,
        add_image_tensor(g),
        add_per_channel_tensor(g, "scale"),
        add_per_channel_tensor(g, "bias"),
        training=True,
        **options,
    )


WRONG_CALLS: dict[str, tuple[BuilderCall, str, str]] = {
    "channels in no groups": (
        lambda g: g.convolution(add_image_tensor(g), add_tensor(g, "w", 64, 10, 3, 3)),
        "operation-shape",
        "32 channels are no multiple of the 10 per group of 'w' | [2, 32, 8, 8] | [64, 10, 3, 3]",
    ),
    "weights of another rank": (
        lambda g: g.convolution(add_image_tensor(g), add_tensor(g, "w", 64, 32, 3)),
        "wrong-argument",
        "'x' [2, 32, 8, 8] has 2 spatial dims, 'w' 1 | weights [k, c / groups, taps ..]",
    ),
    "too many paddings": (
        lambda g: g.convolution(add_image_tensor(g), add_tensor(g, "w", 64, 32, 3, 3), padding=(1, 1, 1)),
        "wrong-argument",
        "'x' [2, 32, 8, 8] has 2 spatial dims | padding (1, 1, 1) | one number applies to all spatial dims",
    ),
    "a filter larger than the image": (
        lambda g: g.convolution(add_image_tensor(g), add_tensor(g, "w", 64, 32, 11, 11)),
        "dim-not-positive",
        "[11, 11] taps of 'w' | are more than 'x' has with its padding | [2, 32, 8, 8]",
    ),
    "a gradient of another batch": (
        lambda g: g.convolution_backward_filter(
            add_image_tensor(g), add_tensor(g, "dy", 3, 64, 8, 8), (3, 3), padding=1
        ),
        "operation-shape",
        "dy 'dy' has dims [3, 64, 8, 8], [2, 64, 8, 8] is needed",
    ),
    "dims of the filter instead of its taps": (
        lambda g: g.convolution_backward_filter(add_image_tensor(g), add_tensor(g, "dy", 2, 64, 8, 8), (64, 32, 3, 3)),
        "wrong-argument",
        "'x' [2, 32, 8, 8] has 2 spatial dims, the filter 4",
    ),
    "another K": (
        lambda g: g.matmul(add_tensor(g, "a", 2, 8, 16), add_tensor(g, "b", 2, 17, 4)),
        "matmul-inner-dim-mismatch",
        "K is 16 in 'a' but 17 in 'b'",
    ),
    "a matrix without batch": (
        lambda g: g.matmul(add_tensor(g, "a", 2, 8, 16), add_tensor(g, "b", 16, 4)),
        "matmul-rank-mismatch",
        "'a' has 3 dims, 'b' 2 | equal ranks of at least 2 are needed | [2, 8, 16] | [16, 4]",
    ),
    "another batch": (
        lambda g: g.matmul(add_tensor(g, "a", 2, 8, 16), add_tensor(g, "b", 3, 16, 4)),
        "matmul-batch-mismatch",
        "dim 0 is 2 in 'a', 3 in 'b'",
    ),
    "no broadcast": (
        lambda g: g.pointwise(PointwiseMode.ADD, add_tensor(g, "a", 2, 8, 16), add_tensor(g, "b", 2, 8, 15)),
        "pointwise-not-broadcastable",
        "'b' (b) does not broadcast to 'add': every dim must be 1 or equal | [2, 8, 16] | [2, 8, 15]",
    ),
    "no second operand": (
        lambda g: g.pointwise(PointwiseMode.ADD, add_tensor(g, "a", 2, 8)),
        "pointwise-ports",
        "ADD takes b, x, y, got x, y | fix: | give b",
    ),
    "a second operand of an activation": (
        lambda g: g.pointwise(PointwiseMode.RELU_FWD, add_tensor(g, "a", 2, 8), add_tensor(g, "b", 2, 8)),
        "pointwise-ports",
        "RELU_FWD takes x, y | leave out b",
    ),
    "a number as operand": (
        lambda g: g.pointwise(PointwiseMode.MUL, add_tensor(g, "a", 2, 8), 0.5),  # type: ignore[arg-type]
        "wrong-field-type",
        "b= is 0.5, Tensor is needed | scalar(value)",
    ),
    "an array as operand": (
        lambda g: g.matmul(add_tensor(g, "a", 2, 8, 16), np.zeros((2, 16, 4))),  # type: ignore[arg-type]
        "wrong-field-type",
        "b= is a ndarray [2, 16, 4], Tensor is needed | data are given at execution",
    ),
    "an axis that is not there": (
        lambda g: g.pointwise(PointwiseMode.GEN_INDEX, add_tensor(g, "a", 2, 8, 16), axis=5),
        "pointwise-axis",
        "axis 5 is not one of the 3 dims | a [2, 8, 16]",
    ),
    "a reduction to another rank": (
        lambda g: g.reduction(ReduceTensorOp.ADD, add_tensor(g, "a", 2, 8, 16), (2, 16)),
        "reduction-shape-mismatch",
        "every dim of 'reduce_add' must divide that of 'a': [2, 16] of [2, 8, 16]",
    ),
    "a scale of other channels": (
        lambda g: g.norm_forward(
            NormMode.LAYER_NORM,
            add_tensor(g, "x", 8, 64, 1, 1),
            add_per_channel_tensor(g, "scale", 63),
            add_per_channel_tensor(g, "bias", 64),
        ),
        "operation-shape",
        "scale 'scale' does not broadcast to 'x': dims must be 1 or equal | [8, 64, 1, 1] | [1, 63, 1, 1]",
    ),
    "inference without statistics": (
        lambda g: g.norm_forward(
            NormMode.BATCH_NORM,
            add_image_tensor(g),
            add_per_channel_tensor(g, "scale"),
            add_per_channel_tensor(g, "bias"),
        ),
        "missing-field",
        "BATCH_NORM inference needs mean= and inv_variance=",
    ),
    "a running mean alone": (
        lambda g: add_batch_norm(g, running_mean=add_per_channel_tensor(g, "rm")),
        "missing-field",
        "running_mean= is given alone, but running mean and variance must be given together",
    ),
    "a running mean of other channels": (
        lambda g: add_batch_norm(
            g, running_mean=add_per_channel_tensor(g, "rm", 31), running_var=add_per_channel_tensor(g, "rv")
        ),
        "operation-shape",
        "running mean 'rm' has dims [1, 31, 1, 1], [1, 32, 1, 1] is needed",
    ),
    "a gradient without statistics": (
        lambda g: g.norm_backward(
            NormMode.LAYER_NORM,
            add_tensor(g, "dy", 8, 64, 1, 1),
            add_tensor(g, "x", 8, 64, 1, 1),
            add_per_channel_tensor(g, "scale", 64),
        ),
        "missing-field",
        "needs inv_variance= or epsilon=, but neither is given",
    ),
    "a window of one dim": (
        lambda g: g.resample(ResampleMode.MAXPOOL, add_image_tensor(g), window=(3,), stride=2),
        "wrong-argument",
        "'x' [2, 32, 8, 8] has 2 spatial dims, window_dims (3), strides (2, 2)",
    ),
    "parts of other sizes": (
        lambda g: g.concatenate([add_tensor(g, "a", 2, 8, 16), add_tensor(g, "b", 2, 9, 16)], axis=2),
        "operation-shape",
        "input[1] 'b' has dims [2, 9, 16], [2, 8, 16] is needed",
    ),
    "an axis after the last": (
        lambda g: g.concatenate([add_tensor(g, "a", 2, 8, 16), add_tensor(g, "b", 2, 8, 16)], axis=3),
        "wrong-argument",
        "axis is 3, 0 to 2 is needed for 'a' [2, 8, 16]",
    ),
    "pairs instead of slices": (
        lambda g: g.slice(add_tensor(g, "a", 2, 8), [(0, 2), (0, 9)]),  # type: ignore[list-item]
        "wrong-field-type",
        "slices= has (0, 2), slice(start, stop) is needed for each dim of 'a' [2, 8]",
    ),
    "one slice of two dims": (
        lambda g: g.slice(add_tensor(g, "a", 2, 8), slice(0, 1)),  # type: ignore[arg-type]
        "wrong-argument",
        "slices [slice(0, 1, None)] do not fit 'a' [2, 8]: each of its 2 dims needs one slice, with a positive step",
    ),
    "an axis twice": (
        lambda g: g.transpose(add_tensor(g, "a", 2, 8, 16), (0, 2, 2)),
        "wrong-argument",
        "permutation (0, 2, 2) of 'a' [2, 8, 16]: each of 0 to 2 is needed once",
    ),
    "another number of elements": (
        lambda g: g.reshape(add_tensor(g, "a", 2, 8, 16), (2, 100)),
        "operation-shape",
        "'a' has 256 elements, 'reshape' 200",
    ),
    "a probability of 2": (
        lambda g: g.rng(
            (2, 8),
            add_tensor(g, "s", 1, kind=DataType.INT64),
            add_tensor(g, "o", 1, kind=DataType.INT64),
            probability=2,
        ),
        "wrong-argument",
        "probability= is 2, 0 to 1 is needed",
    ),
    "a seed that is no whole number": (
        lambda g: g.rng(
            (2, 8),
            add_tensor(g, "s", 1, kind=DataType.FLOAT),
            add_tensor(g, "o", 1, kind=DataType.INT64),
            probability=0.5,
        ),
        "wrong-argument",
        "seed 's' is FLOAT, INT64 or INT32 is needed",
    ),
    "weights of another K": (
        lambda g: add_moe_grouped_matmul(g, k=65),
        "operation-shape",
        "K is 64 in 'token' but 65 in 'weight'",
    ),
    "offsets of seven experts": (
        lambda g: add_moe_grouped_matmul(g, offsets=((7, 1, 1), DataType.INT32)),
        "operation-shape",
        "first token offset 'offsets' has dims [7, 1, 1], [8, 1, 1] is needed: one number for each expert",
    ),
    "offsets that are no whole numbers": (
        lambda g: add_moe_grouped_matmul(g, offsets=((8, 1, 1), DataType.FLOAT)),
        "wrong-argument",
        "first token offset 'offsets' is FLOAT, INT32 or INT64 is needed",
    ),
    "a gather without indices": (
        lambda g: add_moe_grouped_matmul(g, mode=MoeGroupedMatmulMode.GATHER),
        "missing-field",
        "mode GATHER needs token_index",
    ),
    "scales of too many blocks": (
        lambda g: g.block_scale_dequantize(
            add_tensor(g, "x", 1, 128, 128, kind=DataType.FP8_E4M3),
            add_tensor(g, "s", 1, 128, 5, kind=DataType.FP8_E8M0),
            32,
        ),
        "operation-shape",
        "scale 's' has dims [1, 128, 5], which fit no blocks of [32] in 'x' | [1, 128, 128]",
    ),
    "angles of two dims": (
        lambda g: g.rope_forward(
            add_tensor(g, "q", 2, 4, 128, 64), add_tensor(g, "angles", 128, 64, kind=DataType.FLOAT)
        ),
        "operation-shape",
        "'q' has 4 dims and 'angles' 2, but each must have 4: [b, h, s, d] and [s, 1, 1, rope_dim]",
    ),
    "angles of another length": (
        lambda g: g.rope_forward(
            add_tensor(g, "q", 2, 4, 128, 64), add_tensor(g, "angles", 127, 1, 1, 64, kind=DataType.FLOAT)
        ),
        "operation-shape",
        "freqs 'angles' has dims [127, 1, 1, 64], [128, 1, 1, 64] is needed",
    ),
    "a band of the wrong width": (
        lambda g: g.expand_band_matrix(
            add_tensor(g, "band", 2, 4, 128, 16), 128, lower_bandwidth=16, upper_bandwidth=0
        ),
        "operation-shape",
        "x 'band' has dims [2, 4, 128, 16], [2, 4, 128, 17] is needed",
    ),
    "a band below nothing": (
        lambda g: g.contract_band_matrix(add_tensor(g, "s", 2, 4, 128, 128), lower_bandwidth=-1, upper_bandwidth=0),
        "wrong-argument",
        "lower_bandwidth is -1 and upper_bandwidth 0, 0 or more is needed",
    ),
    "heads in no groups": (
        lambda g: g.sdpa_forward(*add_qkv_tensors(g, (2, 4, 8, 64), (2, 3, 8, 64), (2, 3, 8, 64))),
        "operation-shape",
        "4 heads of 'q' are no multiple of the 3 and 3 of keys and values",
    ),
    "values of another length": (
        lambda g: g.sdpa_forward(*add_qkv_tensors(g, (2, 4, 8, 64), (2, 4, 8, 64), (2, 4, 7, 64))),
        "operation-shape",
        "'k' has 8 positions, 'v' 7",
    ),
    "statistics of another width": (
        lambda g: g.sdpa_backward(
            *(add_tensor(g, name, 2, 4, 8, 64) for name in ("q", "k", "v", "o", "do")),
            add_tensor(g, "stats", 2, 4, 8, 2, kind=DataType.FLOAT),
        ),
        "operation-shape",
        "stats 'stats' has dims [2, 4, 8, 2], [2, 4, 8, 1] is needed",
    ),
    "strides of another rank": (
        lambda g: g.tensor("x", (2, 3, 4), strides=(12, 4)),
        "strides-rank-mismatch",
        "tensor 'x' has 3 dims but 2 strides | packed strides for these dims are (12, 4, 1)",
    ),
    "a layout that is none": (
        lambda g: g.tensor("x", (2, 3, 4), strides="NHWC"),  # type: ignore[arg-type]
        "dims-type",
        "tensor 'x' has strides 'NHWC', numbers, 'packed' or 'channels_last' are needed",
    ),
    "no groups at all": (
        lambda g: g.convolution_backward_filter(
            add_image_tensor(g), add_tensor(g, "dy", 2, 64, 6, 6), (3, 3), groups=0
        ),
        "wrong-argument",
        "groups= is 0, 1 or more is needed",
    ),
    "a dilation of nothing": (
        lambda g: g.convolution(add_image_tensor(g), add_tensor(g, "w", 64, 32, 3, 3), dilation=0),
        "wrong-argument",
        "dilation (0, 0) | each stride and dilation must be above 0",
    ),
    "a padding as text": (
        lambda g: g.convolution(add_image_tensor(g), add_tensor(g, "w", 64, 32, 3, 3), padding="same"),  # type: ignore[arg-type]
        "wrong-field-type",
        "padding= is 'same', int or a sequence of int is needed",
    ),
    "a stride of NumPy": (
        lambda g: g.convolution(add_image_tensor(g), add_tensor(g, "w", 64, 32, 3, 3), stride=np.float32(2)),  # type: ignore[arg-type]
        "wrong-field-type",
        "stride= is a float32 [], int or a sequence of int is needed",
    ),
    "an array as gradient": (
        lambda g: g.norm_backward(
            NormMode.RMS_NORM,
            np.zeros((2, 8)),
            add_tensor(g, "x", 2, 8),
            add_tensor(g, "s", 1, 8),
            epsilon=0.1,  # type: ignore[arg-type]
        ),
        "wrong-field-type",
        "dy= is a ndarray [2, 8], Tensor is needed | data are given at execution",
    ),
    "a number as second result": (
        lambda g: g.softmax(add_tensor(g, "x", 2, 8), stats=1),  # type: ignore[arg-type]
        "wrong-field-type",
        "stats= is 1, bool or Tensor or Mapping is needed",
    ),
    "no dims": (
        lambda g: g.tensor("x", None),  # type: ignore[arg-type]
        "wrong-field-type",
        "dims= is None, a sequence of int is needed",
    ),
    "dims of text": (
        lambda g: g.convolution_backward_data(add_tensor(g, "dy", 1, 4, 5), add_tensor(g, "w", 4, 4, 3), dims="147"),
        "wrong-field-type",
        "dims= is '147', a sequence of int is needed",
    ),
    "a slice of text": (
        lambda g: g.slice(add_tensor(g, "a", 2, 8), [slice(0, 1), slice("b")]),
        "wrong-field-type",
        "slices= has slice(None, 'b', None)",
    ),
    "an input before the first": (
        lambda g: g.concatenate([add_tensor(g, "a", 2, 8)], 0, in_place_index=-1),
        "wrong-argument",
        "in_place_index is -1, 0 to 0 is needed for 1 inputs",
    ),
    "blocks of nothing": (
        lambda g: g.block_scale_dequantize(add_tensor(g, "x", 2, 64), add_tensor(g, "s", 2, 2), 0),
        "operation-shape",
        "fit no blocks of [0] in 'x'",
    ),
    "an image of another rank": (
        lambda g: g.resample_backward(
            ResampleMode.MAXPOOL, add_tensor(g, "dy", 1, 2, 3, 3), 2, x=add_tensor(g, "x", 1, 2, 6)
        ),
        "operation-shape",
        "x 'x' has 3 dims, 'dy' has 4",
    ),
    "a number that no activation has": (
        lambda g: g.pointwise(PointwiseMode.RELU_FWD, add_tensor(g, "x", 2, 8), parameters={"slope": 0.1}),
        "unknown-field",
        "RELU_FWD has no parameter slope; parameters are relu_lower_clip",
    ),
    "a field of another operation": (
        lambda g: g.sdpa_forward(*add_qkv_tensors(g, *[(2, 4, 8, 64)] * 3), fields={"name": "o"}),
        "unknown-field",
        "has no field name",
    ),
    "a type of no known name": (
        lambda g: g.tensor("x", (2, 3), "halves"),
        "data-type",
        "tensor 'x' has data type 'halves', a DataType is needed",
    ),
}


@pytest.mark.parametrize("name", WRONG_CALLS)
def test_the_error_names_the_value_found_and_needed(name: str) -> None:
    call, code, words = WRONG_CALLS[name]
    g = GraphBuilder("wrong")
    with pytest.raises(GraphError) as caught:
        call(g)
    assert caught.value.code == code
    message = " ".join(caught.value.render().split())
    assert [part for part in words.split(" | ") if part not in message] == [], message
    assert g.ops == []


VALUES_OF_WRONG_TYPES: tuple[Any, ...] = (
    None,
    0,
    -1,
    1.5,
    "x",
    (),
    [None],
    {"dims": 3},
    {"strides": "x"},
    np.int64(1),
    np.ones(2),
)


@pytest.mark.parametrize("name", TYPICAL_GRAPHS)
def test_a_refused_argument_leaves_the_builder_unchanged(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    method = getattr(GraphBuilder, TYPICAL_GRAPHS[name].method)
    calls: list[tuple[GraphBuilder, tuple[Any, ...], dict[str, Any]]] = []

    def record_call(g: GraphBuilder, *args: Any, **options: Any) -> Any:
        calls.append((g, args, options))
        return method(g, *args, **options)

    with monkeypatch.context() as patch:
        patch.setattr(GraphBuilder, TYPICAL_GRAPHS[name].method, record_call)
        TYPICAL_GRAPHS[name].make()
    g, args, options = calls[-1]
    options = {key: value for key, value in options.items() if key not in ("name", "out")}
    parameters = inspect.signature(method).parameters.values()
    keywords = [item.name for item in parameters if item.kind is item.KEYWORD_ONLY]
    for place in (*range(len(args)), *keywords):
        for junk in VALUES_OF_WRONG_TYPES:
            spoilt = [junk if number == place else value for number, value in enumerate(args)]
            before = (*g._save_state(), set(g._names), set(g._uids))
            with contextlib.suppress(GraphError):
                method(g, *spoilt, **(options | ({place: junk} if isinstance(place, str) else {})))
                continue  # some random arguments are valid
            assert (*g._save_state(), g._names, g._uids) == before, (place, junk)


def test_the_error_for_an_unknown_tensor_option_lists_the_valid_options() -> None:
    g = GraphBuilder("wrong")
    with pytest.raises(TypeError, match=r"a result has no option dtype; its options are .*data_type.*strides"):
        g.matmul(add_tensor(g, "a", 2, 8, 16), add_tensor(g, "b", 2, 16, 4), dtype=DataType.HALF)


def test_tensors_of_two_builders_in_one_graph_are_refused() -> None:
    g, other = GraphBuilder("one"), GraphBuilder("two")
    g.pointwise(PointwiseMode.ADD, add_tensor(g, "x", 2, 4), add_tensor(other, "y", 2, 4), virtual=False)
    with pytest.raises(GraphError, match="uid 1 belongs to two tensors, 'x' and 'y'"):
        g.graph()
