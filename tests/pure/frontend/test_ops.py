"""cudnn-frontend's operations: signatures, inferred shapes, errors, and the operations that the graph gets."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from cudnn_backend_py import DataType, DescriptorType
from cudnn_backend_py.frontend.enums import (
    convolution_mode,
    data_type,
    moe_grouped_matmul_mode,
    norm_forward_phase,
    padding_mode,
    reduction_mode,
    resample_mode,
    reshape_mode,
    rng_distribution,
)
from cudnn_backend_py.frontend.errors import cudnnGraphNotSupportedError
from cudnn_backend_py.frontend.ops.linear import ConvOps, MatmulOps, MoeOps, ReductionOps
from cudnn_backend_py.frontend.ops.node import Emitter, Node, pack_strides
from cudnn_backend_py.frontend.ops.norm import NormOps
from cudnn_backend_py.frontend.ops.pointwise import PointwiseOps
from cudnn_backend_py.frontend.ops.shape import BlockScaleOps, ShapeOps
from cudnn_backend_py.frontend.recorded import GraphRecord, make_class_record_operations
from cudnn_backend_py.frontend.tensors import tensor
from cudnn_backend_py.graph import Graph, Matmul, Operation, Parameters, Pointwise
from cudnn_backend_py.graph.strides import (
    channels_last,
    copy_stride_order,
    make_column_major_strides,
    make_strides_in_order,
)

HALF, FLOAT = data_type.HALF, data_type.FLOAT
TRAINING, INFERENCE = norm_forward_phase.TRAINING, norm_forward_phase.INFERENCE


@make_class_record_operations
class OperationRecorder(PointwiseOps, MatmulOps, ReductionOps, ConvOps, MoeOps, NormOps, ShapeOps, BlockScaleOps):
    """A graph that records all operations but attention, and needs no library."""

    def __init__(self, version: tuple[int, ...] = (9, 28, 0)) -> None:
        self._nodes: list[Node] = []
        self.record = GraphRecord()
        self.context: Any = SimpleNamespace(io_type=HALF, intermediate_type=FLOAT, compute_type=FLOAT, version=version)

    def validate(self) -> None:
        for node in self._nodes:
            node.check(self.context)
            node.infer(self.context)

    def emitter(self) -> Emitter:
        self.validate()
        emitter = Emitter(self.context, "graph")
        for node in self._nodes:
            node.emit(emitter)
        return emitter

    def graph(self) -> Graph:
        return self.emitter().builder.graph()


def make_tensor(*dims: int, last: bool = False, **options: Any) -> tensor:
    """Return a tensor with row-major or channels-last strides."""
    return tensor(dims, channels_last(dims) if last else pack_strides(dims), **options)


def make_scalar_tensor(kind: data_type = FLOAT) -> tensor:
    return make_tensor(1, 1, 1, 1, data_type=kind, is_pass_by_value=True)


def make_nhwc_layout(*dims: int) -> tuple[list[int], list[int]]:
    return list(dims), list(channels_last(dims))


def make_row_major_layout(*dims: int) -> tuple[list[int], list[int]]:
    return list(dims), pack_strides(dims)


# Keywords, in their positional order; "=" marks those with a default.
STANDARD_KEYWORDS = " compute_data_type= name="
UNARY_METHODS = (
    "abs ceil cos elu erf exp floor gelu gelu_approx_tanh identity log logical_not neg reciprocal rsqrt sigmoid sin "
    "softplus sqrt tan tanh genstats"
)
METHODS_WITH_GRADIENTS = "elu gelu_approx_tanh gelu sigmoid softplus tanh"


def map_each_method_name_to_signature(names: str, signature: str) -> dict[str, str]:
    return dict.fromkeys(names.split(), signature + STANDARD_KEYWORDS)


EXPECTED_SIGNATURES = {
    **map_each_method_name_to_signature(UNARY_METHODS, "input"),
    **map_each_method_name_to_signature("add add_square div logical_and logical_or mul sub", "a b"),
    **map_each_method_name_to_signature("max min mod pow", "input0 input1"),
    **map_each_method_name_to_signature("cmp_eq cmp_ge cmp_gt cmp_le cmp_lt cmp_neq", "input comparison"),
    **{f"{name}_backward": "loss input" + STANDARD_KEYWORDS for name in METHODS_WITH_GRADIENTS.split()},
    "bias": "input bias" + STANDARD_KEYWORDS,
    "scale": "input scale" + STANDARD_KEYWORDS,
    "binary_select": "input0 input1 mask" + STANDARD_KEYWORDS,
    "gen_index": "input axis" + STANDARD_KEYWORDS,
    "relu": "input negative_slope= lower_clip= upper_clip=" + STANDARD_KEYWORDS,
    "relu_backward": "loss input negative_slope= lower_clip= upper_clip=" + STANDARD_KEYWORDS,
    "leaky_relu": "input negative_slope" + STANDARD_KEYWORDS,
    "leaky_relu_backward": "loss input negative_slope" + STANDARD_KEYWORDS,
    "swish": "input swish_beta=" + STANDARD_KEYWORDS,
    "swish_backward": "loss input compute_data_type= swish_beta= name=",
    "matmul": "A B compute_data_type= padding= name=",
    "reduction": "input mode" + STANDARD_KEYWORDS + " group_offset=",
    "reshape": "input name= reshape_mode=",
    "transpose": "input permutation" + STANDARD_KEYWORDS,
    "slice": "input slices=" + STANDARD_KEYWORDS,
    "concatenate": "inputs axis in_place_index= name=",
    "block_scale_quantize": "input block_size axis= transpose=" + STANDARD_KEYWORDS,
    "block_scale_dequantize": "input descale block_size is_negative_scale=" + STANDARD_KEYWORDS,
    "rope": "input freqs output_scale= rope_dim=" + STANDARD_KEYWORDS,  # since 1.32
    "rope_backward": "dY freqs output_scale= rope_dim=" + STANDARD_KEYWORDS,
    "moe_grouped_matmul": "token weight first_token_offset token_index= token_ks= mode= compute_data_type= top_k= "
    "name= top_k_scores=",
    "moe_grouped_matmul_bwd": "doutput token first_token_offset" + STANDARD_KEYWORDS,
    "layernorm": "norm_forward_phase input scale= bias= epsilon=" + STANDARD_KEYWORDS,
    "instancenorm": "norm_forward_phase input scale bias epsilon" + STANDARD_KEYWORDS,
    "adalayernorm": "norm_forward_phase input scale bias= epsilon=" + STANDARD_KEYWORDS,
    "rmsnorm": "norm_forward_phase input scale= bias= epsilon=" + STANDARD_KEYWORDS,
    "batchnorm": "input scale bias in_running_mean in_running_var epsilon momentum peer_stats=" + STANDARD_KEYWORDS,
    "batchnorm_inference": "input mean inv_variance scale bias" + STANDARD_KEYWORDS,
    "batchnorm_backward": "grad input scale mean inv_variance peer_stats=" + STANDARD_KEYWORDS,
    "layernorm_backward": "grad input scale= mean= inv_variance=" + STANDARD_KEYWORDS,
    "adalayernorm_backward": "grad input scale mean inv_variance" + STANDARD_KEYWORDS,
    "instancenorm_backward": "grad input scale mean= inv_variance=" + STANDARD_KEYWORDS,
    "rmsnorm_backward": "grad input scale= inv_variance= has_dbias=" + STANDARD_KEYWORDS,
}


@pytest.mark.parametrize("name", EXPECTED_SIGNATURES)
def test_parameter_names_equal_cudnn_frontends_names(name: str) -> None:
    method = getattr(OperationRecorder, name)
    parameters = list(inspect.signature(method).parameters.values())[1:]
    assert (
        " ".join(item.name + "=" * (item.default is not item.empty) for item in parameters) == EXPECTED_SIGNATURES[name]
    )
    assert method.__name__ == name
    assert method.__doc__


@pytest.mark.parametrize(
    ("strides", "wanted"),
    [
        (channels_last([2, 3, 4, 5]), [60, 1, 15, 3]),
        (channels_last([2, 3, 4]), [12, 1, 3]),
        (channels_last([2, 3]), [3, 1]),
        (channels_last([7]), [1]),
        (make_column_major_strides([2, 3, 4]), [12, 1, 3]),
        (make_column_major_strides([2, 3]), [3, 1]),
        (copy_stride_order([1, 3, 4, 5], [60, 1, 15, 3]), [60, 1, 15, 3]),
        (copy_stride_order([8, 1, 1, 1], [32, 1, 1, 1]), [1, 1, 1, 1]),
        (copy_stride_order([2, 3, 4], [4, 1]), [3, 1, 6]),
        (make_strides_in_order([2, 3, 4], [1, 2, 0]), [12, 1, 3]),
    ],
)
def test_stride_helpers_return_the_expected_strides(strides: Sequence[int], wanted: Sequence[int]) -> None:
    assert list(strides) == wanted


DimsAndStrides = tuple[list[int], list[int]]
IMAGE, ROWS = (8, 32, 4, 6), (64, 32, 1, 1)


def make_norm_case(kind: str, scale: tensor, last: bool = True) -> Callable[[OperationRecorder], list[tensor | None]]:
    def add_norm(g: OperationRecorder) -> list[tensor | None]:
        bias = make_tensor(*scale.dim)
        return getattr(g, kind)(TRAINING, make_tensor(*IMAGE, last=last), scale, bias, make_scalar_tensor())  # type: ignore[no-any-return]

    return add_norm


def make_norm_backward_case(
    kind: str, scale: tensor, **options: Any
) -> Callable[[OperationRecorder], list[tensor | None]]:
    def add_norm_backward(g: OperationRecorder) -> list[tensor | None]:
        statistics = {"inv_variance": make_tensor(8, 1, 1, 1)} | (
            {} if "rms" in kind else {"mean": make_tensor(8, 1, 1, 1)}
        )
        made = getattr(g, kind)(
            grad=make_tensor(*IMAGE), input=make_tensor(*IMAGE), scale=scale, **statistics, **options
        )
        if made[2] is not None:
            made[2].set_output(True)
        return made  # type: ignore[no-any-return]

    return add_norm_backward


def set_dims(made: tensor, *dims: int) -> tensor:
    return made.set_dim(dims)


SQUARE_WINDOW = {"padding": [1, 1], "stride": [1, 1], "dilation": [1, 1]}
INFERENCE_CASES: dict[str, tuple[Callable[[OperationRecorder], Any], list[DimsAndStrides | None]]] = {
    "add takes the layout of the operand it has the dims of": (
        lambda g: g.add(make_tensor(1, 32, 1, 1), make_tensor(*IMAGE, last=True)),
        [make_nhwc_layout(*IMAGE)],
    ),
    "add of two layouts takes that of the last operand": (
        lambda g: g.add(make_tensor(*IMAGE), make_tensor(*IMAGE, last=True)),
        [make_nhwc_layout(*IMAGE)],
    ),
    "add of what both broadcast": (
        lambda g: g.add(make_tensor(2, 8, 1, last=True), make_tensor(1, 8, 5)),
        [([2, 8, 5], [8, 1, 16])],
    ),
    "add aligns dims at the last": (
        lambda g: g.add(make_tensor(2, 8, 4), make_tensor(4)),
        [make_row_major_layout(2, 8, 4)],
    ),
    "matmul broadcasts the batch": (
        lambda g: g.matmul(make_tensor(1, 6, 8, 4), make_tensor(2, 1, 4, 5)),
        [make_row_major_layout(2, 6, 8, 5)],
    ),
    "reduction with dims": (
        lambda g: set_dims(g.reduction(make_tensor(2, 3, 4, 5), reduction_mode.ADD), 1, 3, 1, 1),
        [([1, 3, 1, 1], [3, 1, 3, 3])],
    ),
    "convolution": (
        lambda g: g.conv_fprop(
            make_tensor(4, 3, 16, 10), make_tensor(7, 3, 3, 3), padding=[1, 0], stride=[2, 1], dilation=[1, 2]
        ),
        [make_nhwc_layout(4, 7, 8, 6)],
    ),
    "convolution with two paddings": (
        lambda g: g.conv_fprop(make_tensor(4, 3, 16, 10), make_tensor(7, 3, 3, 3), [1, 0], [0, 1], [1, 1], [1, 1]),
        [make_nhwc_layout(4, 7, 15, 9)],
    ),
    "gradient of the image": (
        lambda g: set_dims(g.conv_dgrad(make_tensor(4, 7, 8, 8), make_tensor(7, 3, 3, 3), **SQUARE_WINDOW), 4, 3, 8, 8),
        [make_nhwc_layout(4, 3, 8, 8)],
    ),
    "gradient of the image by its stride": (
        lambda g: g.conv_dgrad(
            make_tensor(4, 7, 5, 8),
            make_tensor(7, 3, 3, 2),
            pre_padding=[1, 0],
            post_padding=[0, 1],
            stride=[2, 1],
            dilation=[1, 2],
        ),
        [make_nhwc_layout(4, 3, 10, 9)],
    ),
    "gradient of the filter": (
        lambda g: set_dims(g.conv_wgrad(make_tensor(4, 3, 8, 8), make_tensor(4, 7, 8, 8), **SQUARE_WINDOW), 7, 3, 3, 3),
        [make_nhwc_layout(7, 3, 3, 3)],
    ),
    "grouped matmul": (
        lambda g: g.moe_grouped_matmul(make_tensor(1, 256, 64), make_tensor(4, 64, 96), make_tensor(4, 1, 1)),
        [make_row_major_layout(1, 256, 96)],
    ),
    "grouped matmul that gathers": (
        lambda g: g.moe_grouped_matmul(
            make_tensor(1, 256, 64),
            make_tensor(4, 64, 96),
            make_tensor(4, 1, 1),
            make_tensor(1, 512, 1),
            mode=moe_grouped_matmul_mode.GATHER,
        ),
        [make_row_major_layout(1, 512, 96)],
    ),
    "gradient of a grouped matmul": (
        lambda g: g.moe_grouped_matmul_bwd(make_tensor(1, 256, 96), make_tensor(1, 256, 64), make_tensor(4, 1, 1)),
        [([4, 64, 96], [6144, 1, 64])],
    ),
    "layernorm": (
        make_norm_case("layernorm", make_tensor(1, 32, 4, 6)),
        [make_nhwc_layout(*IMAGE), ([8, 1, 1, 1], [1, 1, 1, 1]), ([8, 1, 1, 1], [1, 1, 1, 1])],
    ),
    "layernorm over c": (
        make_norm_case("layernorm", make_tensor(1, 32, 1, 1), last=False),
        [make_row_major_layout(*IMAGE), make_row_major_layout(8, 1, 4, 6), make_row_major_layout(8, 1, 4, 6)],
    ),
    "adalayernorm": (
        make_norm_case("adalayernorm", make_tensor(8, 1, 4, 6), last=False),
        [make_row_major_layout(*IMAGE), make_row_major_layout(8, 32, 1, 1), make_row_major_layout(8, 32, 1, 1)],
    ),
    "rmsnorm": (
        make_norm_case("rmsnorm", make_tensor(1, 32, 4, 6)),
        [make_nhwc_layout(*IMAGE), ([8, 1, 1, 1], [1, 1, 1, 1])],
    ),
    "instancenorm": (
        make_norm_case("instancenorm", make_tensor(1, 32, 1, 1), last=False),
        [make_row_major_layout(*IMAGE), make_nhwc_layout(8, 32, 1, 1), make_nhwc_layout(8, 32, 1, 1)],
    ),
    "batchnorm": (
        lambda g: g.batchnorm(
            make_tensor(*IMAGE),
            *[make_tensor(1, 32, 1, 1) for _ in range(4)],
            make_scalar_tensor(),
            make_scalar_tensor(),
        ),
        [make_row_major_layout(*IMAGE), *[make_nhwc_layout(1, 32, 1, 1)] * 4],
    ),
    "batchnorm without running statistics": (
        lambda g: g.batchnorm(
            make_tensor(*IMAGE),
            make_tensor(1, 32, 1, 1),
            make_tensor(1, 32, 1, 1),
            None,
            None,
            make_scalar_tensor(),
            None,
        ),
        [make_row_major_layout(*IMAGE), *[make_nhwc_layout(1, 32, 1, 1)] * 2, None, None],
    ),
    "layernorm in inference": (
        lambda g: g.layernorm(
            INFERENCE, make_tensor(*IMAGE), make_tensor(1, 32, 4, 6), make_tensor(1, 32, 4, 6), make_scalar_tensor()
        ),
        [make_row_major_layout(*IMAGE), None, None],
    ),
    "rmsnorm in inference": (
        lambda g: g.rmsnorm(INFERENCE, make_tensor(*ROWS), make_tensor(1, 32, 1, 1), epsilon=make_scalar_tensor()),
        [make_row_major_layout(*ROWS), None],
    ),
    "gradients of layernorm": (
        make_norm_backward_case("layernorm_backward", make_tensor(1, 32, 4, 6)),
        [make_row_major_layout(*IMAGE), *[make_row_major_layout(1, 32, 4, 6)] * 2],
    ),
    "gradients of rmsnorm": (
        make_norm_backward_case("rmsnorm_backward", make_tensor(1, 32, 4, 6), has_dbias=False),
        [make_row_major_layout(*IMAGE), make_row_major_layout(1, 32, 4, 6), None],
    ),
    "gradients of instancenorm": (
        make_norm_backward_case("instancenorm_backward", make_tensor(1, 32, 1, 1)),
        [make_nhwc_layout(*IMAGE), *[make_nhwc_layout(1, 32, 1, 1)] * 2],
    ),
    "gradients of batchnorm": (
        make_norm_backward_case("batchnorm_backward", make_tensor(1, 32, 1, 1)),
        [make_nhwc_layout(*IMAGE), *[make_nhwc_layout(1, 32, 1, 1)] * 2],
    ),
    "gradients of adalayernorm": (
        make_norm_backward_case("adalayernorm_backward", make_tensor(8, 1, 4, 6)),
        [make_row_major_layout(*IMAGE), *[make_row_major_layout(8, 1, 4, 6)] * 2],
    ),
    "genstats": (lambda g: g.genstats(make_tensor(*IMAGE)), [make_nhwc_layout(1, 32, 1, 1)] * 2),
    "reshape": (lambda g: set_dims(g.reshape(make_tensor(2, 8, 16)), 2, 16, 8), [make_nhwc_layout(2, 16, 8)]),
    "transpose": (
        lambda g: g.transpose(make_tensor(2, 8, 16, data_type=FLOAT), [2, 0, 1]),
        [([16, 2, 8], [1, 128, 16])],
    ),
    "slice": (
        lambda g: g.slice(make_tensor(16, 32, 64, data_type=FLOAT), [slice(8, None), slice(1, -1, 3), slice(None)]),
        [([8, 10, 64], [2048, 192, 1])],
    ),
    "concatenate": (
        lambda g: g.concatenate([make_tensor(2, 8, 3, last=True), make_tensor(2, 4, 3)], 1),
        [make_nhwc_layout(2, 12, 3)],
    ),
    "quantize and transpose along an axis from after": (
        lambda g: g.block_scale_quantize(make_tensor(2, 64, 96), 32, axis=-2, transpose=True),
        [([2, 64, 96], [64, 1, 128]), ([2, 2, 96], [2, 1, 4])],
    ),
    "quantize": (
        lambda g: g.block_scale_quantize(make_tensor(2, 64, 96), 32),
        [make_row_major_layout(2, 64, 96), make_row_major_layout(2, 64, 3)],
    ),
    "quantize and transpose": (
        lambda g: g.block_scale_quantize(make_tensor(2, 64, 96), 32, axis=1, transpose=True),
        [([2, 64, 96], [64, 1, 128]), ([2, 2, 96], [2, 1, 4])],
    ),
    "dequantize": (
        lambda g: g.block_scale_dequantize(make_tensor(2, 64, 96), make_tensor(2, 64, 3), [1, 32]),
        [make_row_major_layout(2, 64, 96)],
    ),
    "resample": (
        lambda g: g.resample(make_tensor(*IMAGE), [3, 3], [1, 1], [1, 1], [1, 0], generate_index=True),
        [make_nhwc_layout(8, 32, 4, 5)] * 2,
    ),
    "resample without index": (
        lambda g: g.resample(
            make_tensor(*IMAGE),
            [2, 2],
            [2, 2],
            [0, 0],
            [0, 0],
            resample_mode.AVGPOOL_INCLUDE_PADDING,
            padding_mode.ZERO_PAD,
            generate_index=True,
        ),
        [make_nhwc_layout(8, 32, 2, 3), None],
    ),
}


@pytest.mark.parametrize("case", INFERENCE_CASES)
def test_dims_and_strides_are_inferred(case: str) -> None:
    make, wanted = INFERENCE_CASES[case]
    g = OperationRecorder()
    made = make(g)
    g.validate()
    results = made if isinstance(made, list) else [made]
    assert [None if item is None else (item.dim, item.stride) for item in results] == wanted


def test_fields_set_by_the_user_are_kept() -> None:
    g = OperationRecorder()
    y = g.relu(make_tensor(2, 8, 16)).set_stride([1, 2, 16]).set_data_type(HALF)
    g.validate()
    assert (y.dim, y.stride, y.data_type) == ([2, 8, 16], [1, 2, 16], HALF)


def test_default_tensor_names_equal_cudnn_frontends_names() -> None:
    g = OperationRecorder()
    a, b = make_tensor(2, 8, 16), make_tensor(2, 16, 4, name="weights")
    c = g.matmul(a, b)
    d = g.relu(c, name="act")
    sums = g.genstats(d, name="gs")
    y, inverse = g.rmsnorm(TRAINING, d, d, epsilon=make_scalar_tensor())
    assert [item.name for item in (a, b, c, d, *sums)] == [
        "matmul.0::A",
        "weights",
        "matmul.0::C",
        "act::OUT_0",
        "gs::SUM",
        "gs::SQ_SUM",
    ]
    assert y is not None
    assert inverse is not None
    assert (y.name, inverse.name) == ("rmsnorm.0::Y", "rmsnorm.0::INV_VARIANCE")


def test_a_scalar_operand_gets_the_rank_of_the_tensor_operand() -> None:
    g = OperationRecorder()
    two = tensor([1], [1], FLOAT, is_pass_by_value=True)
    two.value = 2.0
    g.mul(make_tensor(2, 8, 16), two)
    g.validate()
    assert (two.dim, two.stride) == ([1, 1, 1], [1, 1, 1])


def test_layernorm_infers_scale_bias_and_epsilon() -> None:
    g = OperationRecorder()
    scale, bias, epsilon = tensor(), tensor(), tensor(is_pass_by_value=True)
    g.layernorm(TRAINING, make_tensor(*IMAGE, last=True), scale, bias, epsilon)
    g.validate()
    assert (scale.dim, scale.stride) == make_nhwc_layout(1, 32, 4, 6)
    assert (bias.dim, epsilon.dim, epsilon.stride) == (scale.dim, [1] * 4, [1] * 4)


INPUT_TENSOR = make_tensor(2, 8, 16, data_type=FLOAT, name="x")
INVALID_NODES: dict[str, tuple[type[Exception], str, Callable[[OperationRecorder], Any]]] = {
    "operands that do not broadcast": (
        ValueError,
        "do not broadcast",
        lambda g: g.add(make_tensor(2, 3, 4), make_tensor(2, 5, 4)),
    ),
    "an output without strides": (
        ValueError,
        "strides of output",
        lambda g: g.add(make_tensor(2, 1, 4), make_tensor(1, 5, 4)).set_output(True),
    ),
    "matmul of two ranks": (RuntimeError, "mismatch", lambda g: g.matmul(make_tensor(2, 8, 16), make_tensor(16, 8))),
    "matmul of two ranks that do not fit": (
        ValueError,
        "mismatch",
        lambda g: g.matmul(make_tensor(2, 8, 16), make_tensor(8, 8)),
    ),
    "matmul of two batches": (ValueError, "mismatch", lambda g: g.matmul(make_tensor(2, 8, 16), make_tensor(3, 16, 8))),
    "convolution without padding": (
        ValueError,
        "pre padding of conv_fprop 'conv_fprop.0' is not set",
        lambda g: g.conv_fprop(make_tensor(4, 3, 8, 8), make_tensor(7, 3, 3, 3), stride=[1, 1], dilation=[1, 1]),
    ),
    "convolution with one stride": (
        RuntimeError,
        "different lengths",
        lambda g: g.conv_fprop(make_tensor(4, 3, 8, 8), make_tensor(7, 3, 3, 3), [1, 1], [1], [1, 1]),
    ),
    "convolution of two ranks": (
        RuntimeError,
        r"X is \[4, 3, 8\], 4 dims are needed",
        lambda g: g.conv_fprop(make_tensor(4, 3, 8), make_tensor(7, 3, 3, 3), **SQUARE_WINDOW),
    ),
    "convolution that never moves": (
        ValueError,
        r"stride of conv_fprop 'conv_fprop.0' is \[1, 0\]",
        lambda g: g.conv_fprop(make_tensor(4, 3, 8, 8), make_tensor(7, 3, 3, 3), [1, 1], [1, 0], [1, 1]),
    ),
    "convolution of nothing": (
        ValueError,
        r"X is \[0, 3, 8, 8\]",
        lambda g: g.conv_fprop(make_tensor(0, 3, 8, 8), make_tensor(7, 3, 3, 3), **SQUARE_WINDOW),
    ),
    "image gradient of two ranks": (
        RuntimeError,
        r"W is \[7, 3, 3\], 4 dims are needed",
        lambda g: g.conv_dgrad(make_tensor(4, 7, 8, 8), make_tensor(7, 3, 3), **SQUARE_WINDOW),
    ),
    "weight gradient without dims": (
        ValueError,
        "not set",
        lambda g: g.conv_wgrad(make_tensor(4, 3, 8, 8), make_tensor(4, 7, 8, 8), **SQUARE_WINDOW),
    ),
    "reduction without dims": (ValueError, "not set", lambda g: g.reduction(INPUT_TENSOR, reduction_mode.ADD)),
    "blocks along a dim that is not there": (
        ValueError,
        "axis 3 of block_scale_quantize 'block_scale_quantize.0' is out of range",
        lambda g: g.block_scale_quantize(INPUT_TENSOR, 32, axis=3),
    ),
    "empty blocks": (RuntimeError, "not positive", lambda g: g.block_scale_quantize(INPUT_TENSOR, 0)),
    "empty blocks of scales": (
        RuntimeError,
        "not positive",
        lambda g: g.block_scale_dequantize(INPUT_TENSOR, INPUT_TENSOR, [1, 0]),
    ),
    "no phase": (
        ValueError,
        "forward phase",
        lambda g: g.layernorm(
            norm_forward_phase.NOT_SET,
            make_tensor(*IMAGE),
            make_tensor(1, 32, 4, 6),
            make_tensor(1, 32, 4, 6),
            make_scalar_tensor(),
        ),
    ),
    "half of the running statistics": (
        ValueError,
        "MOMENTUM",
        lambda g: g.batchnorm(
            make_tensor(*IMAGE), *[make_tensor(1, 32, 1, 1) for _ in range(4)], make_scalar_tensor(), None
        ),
    ),
    "no statistics": (
        ValueError,
        "MEAN, INV_VARIANCE",
        lambda g: g.instancenorm_backward(make_tensor(*IMAGE), make_tensor(*IMAGE), make_tensor(1, 32, 1, 1)),
    ),
    "reshape without dims": (ValueError, "not set", lambda g: g.reshape(INPUT_TENSOR)),
    "logical reshape to another type": (
        RuntimeError,
        "mismatch",
        lambda g: set_dims(g.reshape(make_tensor(2, 8, 16), reshape_mode=reshape_mode.LOGICAL), 2, 16, 8),
    ),
    "no permutation": (ValueError, "permutation", lambda g: g.transpose(INPUT_TENSOR, [])),
    "a wrong permutation": (RuntimeError, "invalid", lambda g: g.transpose(INPUT_TENSOR, [0, 2, 2])),
    "transpose to another type": (RuntimeError, "mismatch", lambda g: g.transpose(make_tensor(2, 8, 16), [0, 2, 1])),
    "slices of some dims": (ValueError, "1 slices for 3 dims", lambda g: g.slice(INPUT_TENSOR, [slice(1)])),
    "a slice backwards": (RuntimeError, "invalid step", lambda g: g.slice(INPUT_TENSOR, [slice(None, None, -1)] * 3)),
    "a slice to another type": (
        RuntimeError,
        "mismatch",
        lambda g: g.slice(make_tensor(2, 8, 16), [slice(1)] * 3).set_data_type(FLOAT),
    ),
    "nothing to concatenate": (RuntimeError, "no inputs", lambda g: g.concatenate([], 1)),
    "a wrong axis": (RuntimeError, "invalid axis", lambda g: g.concatenate([INPUT_TENSOR, INPUT_TENSOR], 3)),
    "no block size": (ValueError, "block size", lambda g: g.block_scale_dequantize(INPUT_TENSOR, INPUT_TENSOR, [])),
    "a dequantized output": (
        RuntimeError,
        "must be virtual",
        lambda g: g.block_scale_dequantize(INPUT_TENSOR, INPUT_TENSOR, [1, 32]).set_output(True),
    ),
    "gather without index": (
        ValueError,
        "TokenIndex",
        lambda g: g.moe_grouped_matmul(INPUT_TENSOR, INPUT_TENSOR, INPUT_TENSOR, mode=moe_grouped_matmul_mode.GATHER),
    ),
    "None as an input": (ValueError, "IN_1", lambda g: g.add(INPUT_TENSOR, None)),  # type: ignore[arg-type]
    "resample in no mode": (
        ValueError,
        "invalid mode",
        lambda g: g.resample(make_tensor(*IMAGE), [2, 2], [2, 2], [0, 0], [0, 0], resample_mode.NOT_SET),
    ),
    "resample with one stride": (
        RuntimeError,
        "different lengths",
        lambda g: g.resample(make_tensor(*IMAGE), [2, 2], [2], [0, 0], [0, 0]),
    ),
}


@pytest.mark.parametrize("case", INVALID_NODES)
def test_validation_refuses_invalid_nodes(case: str) -> None:
    kind, words, make = INVALID_NODES[case]
    g = OperationRecorder()
    make(g)
    with pytest.raises(kind, match=words):
        g.validate()


WRONG_ARGUMENTS: dict[str, Callable[[OperationRecorder], Any]] = {
    "a number for a tensor": lambda g: g.relu(3),  # type: ignore[arg-type]
    "a number for a type": lambda g: g.relu(INPUT_TENSOR, compute_data_type=3),  # type: ignore[arg-type]
    "a number for a mode": lambda g: g.reduction(INPUT_TENSOR, 1),  # type: ignore[arg-type]
    "a number for a phase": lambda g: g.rmsnorm(1, INPUT_TENSOR, INPUT_TENSOR, epsilon=INPUT_TENSOR),  # type: ignore[arg-type]
    "an unknown keyword": lambda g: g.add(INPUT_TENSOR, INPUT_TENSOR, c=INPUT_TENSOR),  # type: ignore[call-arg]
    "no epsilon": lambda g: g.rmsnorm(TRAINING, INPUT_TENSOR, INPUT_TENSOR),
    "both kinds of padding": lambda g: g.conv_fprop(INPUT_TENSOR, INPUT_TENSOR, padding=[1], pre_padding=[1]),  # type: ignore[call-overload]
    "a padding twice": lambda g: g.conv_fprop(INPUT_TENSOR, INPUT_TENSOR, [1], padding=[1]),  # type: ignore[call-overload]
    "a padding that is no list": lambda g: g.conv_fprop(INPUT_TENSOR, INPUT_TENSOR, padding=1),  # type: ignore[call-overload]
    "a text as a list": lambda g: g.transpose(INPUT_TENSOR, "021"),  # type: ignore[arg-type]
    "an int as a slice": lambda g: g.slice(INPUT_TENSOR, [1, 2, 3]),  # type: ignore[list-item]
    "a text for a padding of a matmul": lambda g: g.matmul(INPUT_TENSOR, INPUT_TENSOR, padding="1"),  # type: ignore[arg-type]
    "a number for a convolution mode": lambda g: g.conv_fprop(INPUT_TENSOR, INPUT_TENSOR, convolution_mode=1),  # type: ignore[call-overload]
}


@pytest.mark.parametrize("case", WRONG_ARGUMENTS)
def test_wrong_arguments_raise_type_errors(case: str) -> None:
    g = OperationRecorder()
    with pytest.raises(TypeError):
        WRONG_ARGUMENTS[case](g)
    assert g._nodes == []


def test_rope_infers_its_output_and_needs_cudnn_9_24() -> None:
    q, angles = make_tensor(2, 4, 16, 8, name="q"), make_tensor(16, 1, 1, 4, data_type=FLOAT)
    g = OperationRecorder((9, 24, 0))
    y = g.rope(q, angles, output_scale=0.5, rope_dim=4, name="turn")
    dx = g.rope_backward(y, make_tensor(16, 1, 1, 8, data_type=FLOAT), name="back")
    forward, backward = g.graph().ops
    assert [(item.virtual, item.name, item.dim) for item in (y, dx)] == [
        (True, "turn::OUT_0", [2, 4, 16, 8]),
        (True, "back::OUT_0", [2, 4, 16, 8]),
    ]
    assert not any(item.virtual for op in (forward, backward) for item in op.outputs().values())
    assert (forward.parameters(), backward.parameters()) == ({"output_scale": 0.5, "rope_dim": 4}, {})
    assert {port: item.name for port, item in backward.inputs().items() if port == "dy"} == {"dy": "turn::OUT_0"}
    for make in (g.rope, g.rope_backward):
        older = OperationRecorder((9, 23, 0))
        getattr(older, make.__name__)(q, angles)
        with pytest.raises(cudnnGraphNotSupportedError, match=r"not supported by cuDNN 9\.23"):
            older.graph()


# The resulting operations


def get_only_operation(graph: Graph) -> Any:
    assert len(graph.ops) == 1
    return graph.ops[0]


@pytest.mark.parametrize(
    ("make", "numbers"),
    [
        (lambda g: g.relu(INPUT_TENSOR), (None, 3.4028234663852886e38, None)),
        (lambda g: g.relu(INPUT_TENSOR, 0.1, 0.25, 6.0), (0.25, 6.0, 0.10000000149011612)),
        (lambda g: g.leaky_relu(INPUT_TENSOR, 0.5), (None, 3.4028234663852886e38, 0.5)),
        (lambda g: g.relu(INPUT_TENSOR, compute_data_type=data_type.DOUBLE), (None, 1.7976931348623157e308, None)),
        (lambda g: g.relu_backward(INPUT_TENSOR, INPUT_TENSOR, upper_clip=6.0), (None, 6.0, None)),
    ],
)
def test_relu_operations_have_the_given_clips_and_slope(
    make: Callable[[OperationRecorder], tensor], numbers: tuple[float | None, float, float | None]
) -> None:
    g = OperationRecorder()
    make(g).set_output(True)
    op = get_only_operation(g.graph())
    assert (op.relu_lower_clip, op.relu_upper_clip, op.relu_lower_clip_slope) == numbers


def test_swish_elu_and_softplus_have_the_given_parameters() -> None:
    g = OperationRecorder()
    g.softplus(g.elu(g.swish(INPUT_TENSOR, 0.5))).set_output(True)
    numbers = [(op.swish_beta, op.elu_alpha, op.softplus_beta) for op in g.graph().ops if isinstance(op, Pointwise)]
    assert numbers == [(0.5, None, None), (None, None, None), (None, None, None)]  # cuDNN assumes 1.0 by default


def test_binary_select_and_gelu_backward_have_the_right_inputs() -> None:
    g = OperationRecorder()
    a, b, mask, loss = (make_tensor(2, 8, 16, name=name) for name in ("a", "b", "mask", "loss"))
    g.gelu_backward(loss, g.binary_select(a, b, mask)).set_output(True)
    select, backward = (op.inputs() for op in g.graph().ops)
    assert {port: item.name for port, item in select.items()} == {"x": "a", "b": "b", "t": "mask"}
    assert {port: item.name for port, item in backward.items()} == {"x": "binary_select.0::OUT_0", "dy": "loss"}


def test_comparisons_use_the_data_types_of_the_graph() -> None:
    g = OperationRecorder()
    g.cmp_gt(make_tensor(2, 8), make_tensor(2, 8)).set_output(True)
    op = get_only_operation(g.graph())
    assert (op.compute_type, op.y.data_type) == (DataType.FLOAT, DataType.HALF)


def test_matmul_padding_is_set_unless_zero() -> None:
    for padding, wanted in ((0.0, None), (-1.5, -1.5)):
        g = OperationRecorder()
        g.matmul(make_tensor(2, 8, 16), make_tensor(2, 16, 4), padding=padding).set_output(True)
        op = get_only_operation(g.graph())
        assert isinstance(op, Matmul)
        assert op.padding_value == wanted


@pytest.mark.parametrize(("version", "wanted"), [((9, 10, 0), None), ((9, 11, 0), False)])
def test_reductions_set_the_deterministic_flag_from_cudnn_9_11(version: tuple[int, ...], wanted: bool | None) -> None:
    g = OperationRecorder(version)
    g.reduction(make_tensor(2, 3, 4), reduction_mode.MAX).set_dim([2, 3, 1]).set_output(True)
    assert get_only_operation(g.graph()).deterministic is wanted


def test_a_convolution_has_the_given_parameters() -> None:
    g = OperationRecorder()
    g.conv_fprop(
        make_tensor(4, 3, 16, 10),
        make_tensor(7, 3, 3, 3),
        pre_padding=[1, 0],
        post_padding=[0, 2],
        stride=[2, 1],
        dilation=[1, 3],
        convolution_mode=convolution_mode.CONVOLUTION,
    ).set_output(True)
    op = get_only_operation(g.graph())
    assert op.kind is DescriptorType.OPERATION_CONVOLUTION_FORWARD
    assert (op.fields["alpha"], op.fields["beta"]) == (1.0, 0.0)
    parameters = op.fields["convolution"]
    assert isinstance(parameters, Parameters)
    found = {name: getattr(value, "name", value) for name, value in parameters.fields.items()}
    assert found == {
        "comp_type": "FLOAT",
        "conv_mode": "CONVOLUTION",
        "dilations": (1, 3),
        "filter_strides": (2, 1),
        "post_paddings": (0, 2),
        "pre_paddings": (1, 0),
        "spatial_dims": 2,
    }


def mark_as_outputs(results: list[tensor | None]) -> None:
    for item in results:
        if item is not None:
            item.set_output(True)


def test_batchnorm_has_its_mode_phase_and_peer_statistics() -> None:
    g = OperationRecorder()
    peers = [make_tensor(2, 128, 1, 1, name=f"peer{number}") for number in range(2)]
    mark_as_outputs(
        g.batchnorm(
            make_tensor(*IMAGE),
            *[make_tensor(1, 32, 1, 1) for _ in range(4)],
            make_scalar_tensor(),
            make_scalar_tensor(),
            peer_stats=peers,
        )
    )
    op = get_only_operation(g.graph())
    assert isinstance(op, Operation)
    assert (op.fields["mode"].name, op.fields["phase"].name) == ("BATCH_NORM", "TRAINING")
    assert [item.name for item in op.fields["peer_stat"]] == ["peer0", "peer1"]
    assert {"exp_avg_factor", "input_running_var", "output_running_mean"} <= set(op.fields)


def test_an_unrequested_bias_gradient_is_not_computed() -> None:
    for requested in (False, True):
        g = OperationRecorder()
        made = g.adalayernorm_backward(
            make_tensor(*IMAGE),
            make_tensor(*IMAGE),
            make_tensor(8, 1, 4, 6),
            make_tensor(8, 32, 1, 1),
            make_tensor(8, 32, 1, 1),
        )
        mark_as_outputs(made if requested else made[:2])
        assert ("dbias" in get_only_operation(g.graph()).fields) is requested


def test_slices_of_tensors_in_memory_become_added_offsets() -> None:
    g = OperationRecorder()
    whole = make_tensor(16, 32, 64, name="whole", data_type=FLOAT)
    first = g.slice(whole, [slice(8, None), slice(None), slice(None)])
    second = g.slice(first, [slice(None), slice(3, 5), slice(2, None)])
    g.relu(second).set_output(True)
    emitter = g.emitter()
    assert emitter.slices == {
        first.uid: (whole.uid, 8 * 2048 * 4),
        second.uid: (whole.uid, (8 * 2048 + 3 * 64 + 2) * 4),
    }
    assert [op.display_name() for op in emitter.builder.graph().ops] == ["relu_fwd"]
    assert (first.alignment, second.alignment) == (16, 8)
    assert not any(item.virtual for item in emitter.builder.graph().ops[0].inputs().values())


def test_a_slice_that_is_an_output_is_an_operation_with_its_input_type() -> None:
    g = OperationRecorder()
    made = g.slice(make_tensor(2, 8, 16), [slice(1), slice(2, 4), slice(None)])  # half, in a graph of float
    g.relu(made).set_output(True)
    made.set_output(True)
    assert [op.kind for op in g.graph().ops] == [DescriptorType.OPERATION_SLICE, DescriptorType.OPERATION_POINTWISE]
    assert made.data_type == HALF


def add_virtual_slice(g: OperationRecorder) -> tensor:
    return g.slice(g.relu(INPUT_TENSOR), [slice(1), slice(2, None, 2), slice(None)])


def test_a_slice_of_a_virtual_tensor_is_an_operation() -> None:
    g = OperationRecorder()
    g.relu(add_virtual_slice(g)).set_output(True)
    op = g.graph().ops[1]
    assert op.kind is DescriptorType.OPERATION_SLICE
    assert op.parameters() == {"start_indices": (0, 2, 0), "limit_indices": (1, 8, 16), "strides": (1, 2, 1)}


@pytest.mark.parametrize(
    ("version", "make"),
    [
        ((9, 21, 0), add_virtual_slice),
        ((9, 21, 0), lambda g: g.transpose(INPUT_TENSOR, [0, 2, 1])),
        ((9, 21, 0), lambda g: set_dims(g.reshape(INPUT_TENSOR, reshape_mode=reshape_mode.LOGICAL), 2, 16, 8)),
        (
            (9, 14, 0),
            lambda g: g.moe_grouped_matmul(make_tensor(1, 256, 64), make_tensor(4, 64, 96), make_tensor(4, 1, 1)),
        ),
        (
            (9, 21, 0),
            lambda g: g.moe_grouped_matmul_bwd(make_tensor(1, 256, 96), make_tensor(1, 256, 64), make_tensor(4, 1, 1)),
        ),
    ],
)
def test_features_of_newer_libraries_are_refused(
    version: tuple[int, ...], make: Callable[[OperationRecorder], tensor]
) -> None:
    g = OperationRecorder(version)
    make(g).set_output(True).set_data_type(FLOAT)
    with pytest.raises(cudnnGraphNotSupportedError, match="not supported by cuDNN 9"):
        g.graph()
    newer = OperationRecorder((9, 22, 0))
    make(newer).set_output(True).set_data_type(FLOAT)
    assert newer.graph().ops


def test_is_negative_scale_option_is_set_from_cudnn_9_14_on() -> None:
    for version, wanted in (((9, 13, 0), None), ((9, 14, 0), True)):
        g = OperationRecorder(version)
        g.identity(
            g.block_scale_dequantize(make_tensor(2, 64, 96), make_tensor(2, 64, 3), [1, 32], is_negative_scale=True)
        ).set_output(True)
        assert g.graph().ops[0].parameters().get("neg_scale") is wanted


def test_rng_supports_bernoulli_only() -> None:
    for distribution, fits in ((rng_distribution.BERNOULLI, True), (rng_distribution.UNIFORM, False)):
        g = OperationRecorder()
        seed, offset = (make_tensor(1, 1, 1, 1, data_type=data_type.INT64) for _ in range(2))
        g.rng(seed, offset, distribution, 0.25).set_dim([1, 2, 8, 8]).set_output(True)
        if fits:
            assert get_only_operation(g.graph()).fields["rng"].fields["bernoulli_dist_probability"] == 0.25
        else:
            with pytest.raises(ValueError, match="BERNOULLI"):
                g.graph()


def test_nodes_are_serialized_to_plain_data() -> None:
    g = OperationRecorder()
    g.gen_index(INPUT_TENSOR, axis=1, name="rows")
    g.slice(INPUT_TENSOR, [slice(1), slice(2, None, 2), slice(None)], name="part")
    g.validate()
    first, second = (node.to_json() for node in g._nodes)
    assert (first["tag"], first["mode"], first["axis"]) == ("POINTWISE", "GEN_INDEX", 1)
    assert (second["tag"], second["slices"], second["slice_strides"]) == ("SLICE", [[0, 1], [2, 8], [0, 16]], [1, 2, 1])
