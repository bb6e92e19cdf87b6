"""The builder's methods: inferred shapes and strides, requested results, errors for wrong shapes."""

from __future__ import annotations

import re
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import pytest

from cudnn_backend_py import DataType, GraphBuilder, GraphError, PointwiseMode
from cudnn_backend_py.generated.enums import (
    MoeGroupedMatmulMode,
    NormMode,
    ResampleMode,
    ReshapeMode,
    RngDistribution,
    SignalMode,
    TensorReordering,
)
from cudnn_backend_py.graph import Operation, Tensor

G, M, N, P, R, T = GraphBuilder, MoeGroupedMatmulMode, NormMode, PointwiseMode, ResampleMode, DataType
Make = Callable[[GraphBuilder], object]


def add_tensor(g: GraphBuilder, *dims: int, name: str = "t", kind: DataType | None = None, **options: Any) -> Tensor:
    return g.tensor(g.make_unused_name(name), dims, kind, **options)


def add_int32_tensor(g: GraphBuilder, *dims: int) -> Tensor:
    return add_tensor(g, *dims, kind=T.INT32)


HEADS = (2, 4, 6, 8)


def make_expert_offsets(g: GraphBuilder, experts: int = 3) -> Tensor:
    return add_int32_tensor(g, experts, 1, 1)


# Names of tensors in the cases; a result would have another one.
GIVEN = {"dy", "sink", *"abdfikqvwx", "s"}

# the error -> its text, with names and sizes
WRONG: dict[str, tuple[Make, str, str]] = {
    "channels of a convolution": (
        lambda g: g.convolution(add_tensor(g, 1, 6, 5, 5, name="x"), add_tensor(g, 4, 4, 3, 3, name="w")),
        "operation-shape",
        "6 channels are no multiple of the 4 per group of 'w'",
    ),
    "filters in groups": (
        lambda g: g.convolution(add_tensor(g, 1, 6, 5, 5), add_tensor(g, 4, 2, 3, 3, name="w")),
        "operation-shape",
        "'w' has 4 filters, no multiple of the 3 groups: 6 channels in groups of 2",
    ),
    "size of a gradient": (
        lambda g: g.convolution_backward_data(
            add_tensor(g, 1, 4, 5, 5, name="dy"), add_tensor(g, 4, 4, 3, 3), dims=(1, 4, 9, 9)
        ),
        "operation-shape",
        r"dy 'dy' has dims \[1, 4, 5, 5\], \[1, 4, 7, 7\] is needed",
    ),
    "rank of a gradient": (
        lambda g: g.convolution_backward_data(add_tensor(g, 1, 4, 5, 5), add_tensor(g, 4, 4, 3, 3), dims=(1, 4, 9)),
        "operation-shape",
        "has 3 dims, dy has 4",
    ),
    "groups that do not divide": (
        lambda g: g.convolution_backward_filter(add_tensor(g, 1, 6, 5), add_tensor(g, 1, 4, 5), (1,), groups=3),
        "operation-shape",
        "3 groups do not divide",
    ),
    "taps": (
        lambda g: g.convolution_backward_filter(add_tensor(g, 1, 6, 5), add_tensor(g, 1, 4, 5, name="dy"), (3,)),
        "operation-shape",
        r"dy 'dy' has dims \[1, 4, 5\], \[1, 4, 3\] is needed",
    ),
    "scale of a norm": (
        lambda g: g.norm_forward(N.BATCH_NORM, add_tensor(g, 2, 8, 4), add_tensor(g, 1, 4, 1, name="s"), training=True),
        "operation-shape",
        r"scale 's' has dims \[1, 4, 1\], \[1, 8, 1\] is needed",
    ),
    "bias of a layer norm": (
        lambda g: g.norm_forward(
            N.LAYER_NORM, add_tensor(g, 2, 8, 4, name="x"), add_tensor(g, 1, 8, 4), add_tensor(g, 1, 3, 4, name="b")
        ),
        "operation-shape",
        "bias 'b' does not broadcast to 'x'",
    ),
    "rank of a scale": (
        lambda g: g.norm_forward(N.LAYER_NORM, add_tensor(g, 2, 8, 4, name="x"), add_tensor(g, 8, 4, name="s")),
        "operation-shape",
        "scale 's' has 2 dims, 'x' has 3",
    ),
    "groups of a group norm": (
        lambda g: g.norm_forward(N.GROUP_NORM, add_tensor(g, 2, 8, 4, name="x"), add_tensor(g, 1, 8, 1), groups=3),
        "operation-shape",
        "GROUP_NORM of 'x' needs a number of groups",
    ),
    "statistics to infer with": (
        lambda g: g.norm_forward(N.BATCH_NORM, add_tensor(g, 2, 8, 4), add_tensor(g, 1, 8, 1)),
        "missing-field",
        "BATCH_NORM inference needs mean=",
    ),
    "statistics of a gradient": (
        lambda g: g.norm_backward(
            N.LAYER_NORM,
            add_tensor(g, 2, 8),
            add_tensor(g, 2, 8),
            add_tensor(g, 1, 8),
            inv_variance=add_tensor(g, 2, 8, name="v"),
        ),
        "operation-shape",
        r"inverse variance 'v' has dims \[2, 8\], \[2, 1\] is needed",
    ),
    "neither statistics nor epsilon": (
        lambda g: g.norm_backward(N.LAYER_NORM, add_tensor(g, 2, 8), add_tensor(g, 2, 8), add_tensor(g, 1, 8)),
        "missing-field",
        "needs inv_variance= or epsilon=, but neither is given",
    ),
    "gradient of another shape": (
        lambda g: g.norm_backward(
            N.RMS_NORM, add_tensor(g, 2, 9, name="dy"), add_tensor(g, 2, 8), add_tensor(g, 1, 8), epsilon=1e-5
        ),
        "operation-shape",
        r"dy 'dy' has dims \[2, 9\], \[2, 8\] is needed",
    ),
    "a gradient that is always written": (
        lambda g: g.norm_backward(
            N.RMS_NORM, add_tensor(g, 2, 8), add_tensor(g, 2, 8), add_tensor(g, 1, 8), epsilon=1e-5, dscale=False
        ),
        "missing-field",
        "dscale=False is not allowed",
    ),
    "sums of other channels": (
        lambda g: g.batch_norm_finalize(*(add_tensor(g, 1, c, 1) for c in (8, 8, 8, 4)), accum_count=9),
        "operation-shape",
        r"bias 't3' has dims \[1, 4, 1\], \[1, 8, 1\] is needed",
    ),
    "a result that there is not": (
        lambda g: g.batch_norm_finalize(*(add_tensor(g, 1, 8, 1) for _ in range(4)), accum_count=9, scale_of=True),
        "unknown-field",
        "scale_of",
    ),
    "statistics that are always written": (
        lambda g: g.gen_stats(add_tensor(g, 1, 8, 1), sum=False),
        "missing-field",
        "cuDNN writes all results of gen_stats",
    ),
    "weights of other channels": (
        lambda g: g.batch_norm_backward_weights(*(add_tensor(g, *d) for d in ((2, 8, 4), (2, 8, 4), *[(1, 4, 1)] * 3))),
        "operation-shape",
        r"mean 't2' has dims \[1, 4, 1\], \[1, 8, 1\] is needed",
    ),
    "a window that does not fit": (
        lambda g: g.resample(R.MAXPOOL, add_tensor(g, 1, 2, 3, 3), 4),
        "operation-shape",
        r"no window fits into \[1, 2, 3, 3\]",
    ),
    "a window of other dims": (
        lambda g: g.resample(R.MAXPOOL, add_tensor(g, 1, 2, 3, 3), (2, 2, 2)),
        "wrong-argument",
        r"'t' \[1, 2, 3, 3\] has 2 spatial dims",
    ),
    "an index of another shape": (
        lambda g: g.resample_backward(R.MAXPOOL, add_tensor(g, 1, 2, 3), 2, idx=add_tensor(g, 1, 2, 4, name="i")),
        "operation-shape",
        r"idx 'i' has dims \[1, 2, 4\], \[1, 2, 3\] is needed",
    ),
    "no index": (
        lambda g: g.resample_backward(R.MAXPOOL, add_tensor(g, 1, 2, 3), 2),
        "missing-field",
        "needs idx=, or x=",
    ),
    "an image of another size": (
        lambda g: g.resample_backward(R.AVGPOOL_INCLUDE_PADDING, add_tensor(g, 1, 2, 3, name="dy"), 2, dims=(1, 2, 9)),
        "operation-shape",
        r"dy 'dy' has dims \[1, 2, 3\], \[1, 2, 4\] is needed",
    ),
    "elements of a reshape": (
        lambda g: g.reshape(add_tensor(g, 2, 3, name="x"), (2, 4), name="y"),
        "operation-shape",
        "'x' has 6 elements, 'y' 8",
    ),
    "a permutation": (
        lambda g: g.transpose(add_tensor(g, 2, 3, name="x"), (1, 1)),
        "wrong-argument",
        r"permutation \(1, 1\) of 'x' \[2, 3\]",
    ),
    "an empty slice": (
        lambda g: g.slice(add_tensor(g, 2, 3, name="x"), [slice(1), slice(3, 3)]),
        "operation-shape",
        r"the slice of 'x' is empty: it has dims \[1, 0\]",
    ),
    "a slice too few": (lambda g: g.slice(add_tensor(g, 2, 3), [slice(1)]), "wrong-argument", "1 slices"),
    "inputs of a concatenation": (
        lambda g: g.concatenate([add_tensor(g, 2, 3), add_tensor(g, 3, 3, name="b")], 1),
        "operation-shape",
        r"input\[1\] 'b' has dims \[3, 3\], \[2, 3\] is needed",
    ),
    "an axis that there is not": (
        lambda g: g.concatenate([add_tensor(g, 2, 3)], 2),
        "wrong-argument",
        "axis is 2, 0 to 1 is needed",
    ),
    "a page table": (
        lambda g: g.paged_cache_load(
            add_tensor(g, 9, 2, 4, 8), add_int32_tensor(g, 2, 1, 3, 1), add_int32_tensor(g, 2, 1, 1, 1), length=16
        ),
        "operation-shape",
        r"page table 't1' has dims \[2, 1, 3, 1\], \[2, 1, 4, 1\] is needed",
    ),
    "pages of 3 dims": (
        lambda g: g.paged_cache_load(
            add_tensor(g, 9, 4, 8), add_int32_tensor(g, 2, 1, 3, 1), add_int32_tensor(g, 2, 1, 1, 1)
        ),
        "operation-shape",
        "but each must have 4: ",
    ),
    "a flag of several": (
        lambda g: g.signal(SignalMode.SET, add_tensor(g, 2, 3), add_int32_tensor(g, 2, 1), 1),
        "operation-shape",
        r"flag 't1' has dims \[2, 1\], \[1, 1\] is needed",
    ),
    "a seed of several": (
        lambda g: g.rng((2, 3), add_int32_tensor(g, 2, 1), add_int32_tensor(g, 1, 1), probability=0.5),
        "operation-shape",
        r"seed 't' has dims \[2, 1\]",
    ),
    "a probability of another distribution": (
        lambda g: g.rng((2, 3), 1, add_int32_tensor(g, 1, 1), distribution=RngDistribution.UNIFORM, probability=0.5),
        "wrong-argument",
        "UNIFORM does not use probability=",
    ),
    "no probability": (lambda g: g.rng((2, 3), 1, add_int32_tensor(g, 1, 1)), "wrong-argument", "BERNOULLI needs"),
    "scales of other blocks": (
        lambda g: g.block_scale_dequantize(add_tensor(g, 2, 64, name="x"), add_tensor(g, 2, 1, name="s"), 32),
        "operation-shape",
        r"scale 's' has dims \[2, 1\], which fit no blocks of \[32\] in 'x'",
    ),
    "an axis of no block": (
        lambda g: g.block_scale_quantize(add_tensor(g, 2, 64), 32, axis=2),
        "wrong-argument",
        "axis 2",
    ),
    "scales that are always written": (
        lambda g: g.block_scale_quantize(add_tensor(g, 2, 64), 32, scale=False),
        "missing-field",
        "scale=False is not allowed",
    ),
    "K of experts": (
        lambda g: g.moe_grouped_matmul(
            add_tensor(g, 1, 8, 4, name="a"), add_tensor(g, 3, 5, 6, name="w"), make_expert_offsets(g)
        ),
        "operation-shape",
        "K is 4 in 'a' but 5 in 'w'",
    ),
    "offsets of other experts": (
        lambda g: g.moe_grouped_matmul(add_tensor(g, 1, 8, 4), add_tensor(g, 3, 4, 6), make_expert_offsets(g, 5)),
        "operation-shape",
        r"first token offset 't2' has dims \[5, 1, 1\]",
    ),
    "experts without indices": (
        lambda g: g.moe_grouped_matmul(
            add_tensor(g, 1, 8, 4), add_tensor(g, 3, 4, 6), make_expert_offsets(g), mode=M.SCATTER
        ),
        "missing-field",
        "SCATTER needs token_index=, token_ks=, top_k=",
    ),
    "indices of other rows": (
        lambda g: g.moe_grouped_matmul(
            add_tensor(g, 1, 8, 4),
            add_tensor(g, 3, 4, 6),
            make_expert_offsets(g),
            mode=M.SCATTER,
            token_index=add_int32_tensor(g, 1, 7, 1),
            token_ks=add_int32_tensor(g, 1, 8, 1),
            top_k=2,
        ),
        "operation-shape",
        r"token index 't3' has dims \[1, 7, 1\], \[1, 8, 1\] is needed",
    ),
    "rows of a gradient": (
        lambda g: g.moe_grouped_matmul_backward(
            add_tensor(g, 1, 7, 6, name="d"), add_tensor(g, 1, 8, 4), make_expert_offsets(g)
        ),
        "operation-shape",
        r"doutput 'd' has dims \[1, 7, 6\], \[1, 8, 6\] is needed",
    ),
    "a sink": (
        lambda g: g.softmax(add_tensor(g, *HEADS), sink=add_tensor(g, 1, 3, 1, 1, name="sink")),
        "operation-shape",
        r"sink 'sink' has dims \[1, 3, 1, 1\], which do not broadcast to \[2, 4, 6, 1\]",
    ),
    "a comparison": (
        lambda g: g.diagonal_band_mask(add_tensor(g, *HEADS), P.CMP_EQ),
        "wrong-argument",
        "CMP_GE or CMP_GT",
    ),
    "a bound": (
        lambda g: g.diagonal_band_mask(
            add_tensor(g, *HEADS), P.CMP_GE, shift_right_bound=add_int32_tensor(g, 3, 1, 1, 1)
        ),
        "operation-shape",
        r"shift_right_bound 't1' has dims \[3, 1, 1, 1\]",
    ),
    "a band": (
        lambda g: g.expand_band_matrix(add_tensor(g, 1, 5, 4, name="x"), 5, lower_bandwidth=1, upper_bandwidth=1),
        "operation-shape",
        r"x 'x' has dims \[1, 5, 4\], \[1, 5, 3\] is needed",
    ),
    "rows of a band": (
        lambda g: g.contract_band_matrix(add_tensor(g, 5, 4), lower_bandwidth=1, upper_bandwidth=1, axis=0),
        "wrong-argument",
        "axis is 0",
    ),
    "angles": (
        lambda g: g.rope_forward(add_tensor(g, *HEADS), add_tensor(g, 6, 1, 1, 4, name="f")),
        "operation-shape",
        r"freqs 'f' has dims \[6, 1, 1, 4\], \[6, 1, 1, 8\] is needed",
    ),
    "positions without angles": (
        lambda g: g.rope_forward(add_tensor(g, *HEADS), add_tensor(g, 5, 1, 1, 8, name="f")),
        "operation-shape",
        r"freqs 'f' has dims \[5, 1, 1, 8\], \[6, 1, 1, 8\] is needed",
    ),
    "pairs": (
        lambda g: g.rope_backward(add_tensor(g, *HEADS), add_tensor(g, 6, 1, 1, 3), rope_dim=3),
        "operation-shape",
        "rope_dim is 3, an even number from 2 to the head dim 8 is needed",
    ),
    "head dims": (
        lambda g: g.sdpa_forward(
            add_tensor(g, *HEADS, name="q"), add_tensor(g, 2, 4, 6, 4, name="k"), add_tensor(g, *HEADS)
        ),
        "operation-shape",
        "head dim is 8 in 'q' and 4 in 'k'",
    ),
    "heads in groups": (
        lambda g: g.sdpa_forward(add_tensor(g, *HEADS, name="q"), add_tensor(g, 2, 3, 6, 8), add_tensor(g, *HEADS)),
        "operation-shape",
        "4 heads of 'q' are no multiple of the 3 and 4",
    ),
    "lengths of keys and values": (
        lambda g: g.sdpa_forward(
            add_tensor(g, *HEADS), add_tensor(g, 2, 4, 5, 8, name="k"), add_tensor(g, *HEADS, name="v")
        ),
        "operation-shape",
        "'k' has 5 positions, 'v' 6",
    ),
    "statistics of attention": (
        lambda g: g.sdpa_backward(*(add_tensor(g, *HEADS) for _ in range(5)), add_tensor(g, 2, 4, 6, 2, name="s")),
        "operation-shape",
        r"stats 's' has dims \[2, 4, 6, 2\], \[2, 4, 6, 1\] is needed",
    ),
    "a field that there is not": (
        lambda g: g.sdpa_forward(*(add_tensor(g, *HEADS) for _ in range(3)), fields={"mask": 1}),
        "unknown-field",
        "has no field mask",
    ),
    "a result of other dims": (
        lambda g: g.softmax(add_tensor(g, 2, 3), dims=(2, 4), strides=(4, 1), name="y"),
        "operation-shape",
        r"y 'y' has dims \[2, 4\], \[2, 3\] is needed",
    ),
    "a second result of other dims": (
        lambda g: g.softmax(add_tensor(g, 2, 3), stats={"dims": (2, 3), "name": "rows"}),
        "operation-shape",
        r"stats 'rows' has dims \[2, 3\], \[2, 1\] is needed",
    ),
    "what is no tensor": (lambda g: g.rope_forward(3, add_tensor(g, 1)), "wrong-field-type", "x= is 3"),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("what", WRONG)
def test_errors_for_wrong_shapes_leave_the_graph_unchanged(what: str) -> None:
    make, code, words = WRONG[what]
    g = GraphBuilder()
    with pytest.raises(GraphError, match=words) as caught:
        make(g)
    assert caught.value.code == code
    assert g.ops == []
    assert {name for name in g._names if name not in GIVEN and not re.fullmatch(r"t\d*", name)} == set()
    assert g.tensor("next", (1,)).uid == len(g._names)


def test_every_builder_method_has_an_error_case() -> None:
    own = {name for kind in GraphBuilder.__mro__ for name in vars(kind) if not name.startswith("_")}
    plain = {
        "tensor",
        "scalar",
        "make_unused_name",
        "operation",
        "graph",
        "matmul",
        "pointwise",
        "reduction",
        "convolution",
    }
    tried = {name for make, _, _ in WRONG.values() for name in make.__code__.co_names}
    assert own - plain <= tried


def test_builder_results_have_the_layout_of_their_inputs() -> None:
    g = GraphBuilder()
    last = g.tensor("x", (2, 8, 6, 6), strides="channels_last")
    y, idx = g.resample(R.MAXPOOL, last, 2, idx=True)
    assert (y.dims, y.strides, y.virtual, y.data_type) == ((2, 8, 3, 3), (72, 1, 24, 8), True, T.FLOAT)
    assert idx is not None
    assert (idx.dims, idx.strides, idx.virtual, idx.data_type) == (y.dims, y.strides, False, T.INT8)
    scale = g.tensor("scale", (1, 8, 1, 1), T.FLOAT, strides="channels_last")
    made = g.norm_forward(N.BATCH_NORM, last, scale, training=True, name="n", virtual=False)
    assert (made.y.strides, made.y.data_type) == (last.strides, T.HALF)
    assert made.mean is not None
    assert (made.mean.name, made.mean.dims, made.mean.strides) == ("n.mean", (1, 8, 1, 1), (8, 1, 8, 8))
    assert made.next_running_mean is None
    swapped = g.tensor("b", (2, 3, 4), strides=(12, 1, 3))
    assert g.concatenate([swapped, swapped], 2).strides == (24, 1, 3)
    turned = g.transpose(swapped, (0, 2, 1))
    assert (turned.dims, turned.strides, turned.data_type) == ((2, 4, 3), (12, 3, 1), T.HALF)


def test_upsampling_accepts_fractional_strides_and_paddings() -> None:
    g = GraphBuilder()
    half = Fraction(1, 2)
    y, _ = g.resample(R.BILINEAR, g.tensor("x", (1, 2, 5, 7)), 2, stride=half, padding=half, post_padding=1)
    (op,) = g.ops
    assert isinstance(op, Operation)
    assert y.dims == (1, 2, 10, 14)
    facts = op.fields["resample"].fields
    assert (facts["strides"], facts["pre_paddings"], facts["post_paddings"]) == (
        ((1, 2), (1, 2)),
        ((1, 2), (1, 2)),
        (1, 1),
    )


def test_block_scales_are_tiled_or_plain() -> None:
    g = GraphBuilder()
    x = g.tensor("x", (2, 70, 96))
    y, tiled = g.block_scale_quantize(x, 32)
    assert (y.data_type, tiled.data_type) == (T.FP8_E4M3, T.FP8_E8M0)
    assert (tiled.dims, tiled.reordering) == ((2, 128, 4), TensorReordering.F8_128x4)
    flat = g.block_scale_quantize(g.tensor("flat", (64, 96)), 32).scale
    assert (flat.dims, flat.reordering) == ((64, 3), TensorReordering.NONE)
    plain = g.block_scale_quantize(x, 16, axis=1, scale_order="plain").scale
    assert (plain.dims, plain.strides, plain.data_type) == ((2, 5, 96), (480, 1, 5), T.FP8_E4M3)
    assert plain.reordering is TensorReordering.NONE
    mine = g.tensor("mine", (2, 70, 3), T.FP8_E8M0)
    assert g.block_scale_quantize(x, 32, scale_order="plain", scale=mine).scale is mine


def test_optional_outputs_have_default_or_requested_names() -> None:
    g = GraphBuilder()
    x = g.tensor("x", (1, 2, 8, 8), T.FLOAT)
    top = g.tensor("top", (1, 2, 8, 1), T.FLOAT)
    made = g.softmax(x, stats=True, max=top, sum_exp={"name": "total", "virtual": True}, name="p")
    assert (made.stats is not None and made.stats.name, made.max) == ("p.stats", top)
    assert made.sum_exp is not None
    assert (made.sum_exp.name, made.sum_exp.virtual) == ("total", True)
    again = g.softmax(x, out=made.y)
    assert again == (made.y, None, None, None)


def test_epsilon_is_given_as_a_number_or_a_tensor() -> None:
    g = GraphBuilder()
    x, scale = g.tensor("x", (2, 8, 4)), g.tensor("s", (1, 8, 1), T.FLOAT)
    epsilon = g.scalar(None, rank=3, name="mine", data_type=T.FLOAT)
    for given in (0.5, epsilon, None):
        g.norm_forward(N.LAYER_NORM, x, scale, epsilon=given)
    values = [op.inputs().get("epsilon") for op in g.ops]
    assert values[0] is not None
    assert (values[0].value, values[0].dims, values[0].by_value) == (0.5, (1, 1, 1), True)
    assert values[1:] == [epsilon, None]


def test_modes_and_numbers_are_stored_in_operation_fields() -> None:
    g = GraphBuilder()
    x = g.tensor("x", (2, 3, 4))
    g.reshape(x, (6, 4), mode=ReshapeMode.LOGICAL)
    g.slice(x, [slice(None), slice(1, None, 2), slice(-2, None)])
    g.rng(
        (2, 3), 7, g.tensor("o", (1, 1), T.INT64), distribution=RngDistribution.NORMAL, mean=1.0, standard_deviation=2.0
    )
    reshape, part, rng = g.ops
    assert reshape.parameters()["mode"] is ReshapeMode.LOGICAL
    assert part.parameters() == {
        "start_indices": (0, 1, 2),
        "limit_indices": (2, 3, 4),
        "strides": (1, 2, 1),
    }
    assert part.outputs()["y"].dims == (2, 1, 2)
    assert rng.parameters()["seed"] == 7
    assert dict(rng.parameters()["rng"].fields) == {
        "distribution": RngDistribution.NORMAL,
        "normal_dist_mean": 1.0,
        "normal_dist_standard_deviation": 2.0,
    }


def test_batch_norm_inference_reads_its_statistics() -> None:
    g = GraphBuilder()
    one = (1, 3, 1)
    x, scale, mean, inverse = (
        g.tensor(name, dims) for name, dims in zip("xsmi", ((2, 3, 4), one, one, one), strict=True)
    )
    g.norm_forward(N.BATCH_NORM, x, scale, mean=mean, inv_variance=inverse, epsilon=None, name="y", virtual=False)
    graph = g.graph()
    assert [tensor.name for tensor in graph.outputs] == ["y"]
    assert set(graph.ops[0].inputs()) == {"x", "scale", "mean", "inv_variance"}
