"""Graphs of operations with cudnn-frontend's names, read from cuDNN's log: cudnn-frontend 1.23 builds the same graphs.

``LOGGED`` has cuDNN 9.28's log of these cases, built by cudnn-frontend for a described H100: each operation with
its attributes, tensors as type, dims and strides, ``*`` if they are by value; defaults are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest

import cudnn_backend_py.frontend as cudnn
from cudnn_backend_py.frontend.handles import set_default_target
from cudnn_backend_py.frontend.ops.node import pack_strides
from cudnn_backend_py.graph.strides import channels_last
from cudnn_backend_py.native import capture_log

DataType = cudnn.data_type
TRAINING = cudnn.norm_forward_phase.TRAINING
HEURISTICS_MODES = [cudnn.heur_mode.A, cudnn.heur_mode.FALLBACK]
IMAGE_DIMS = (8, 32, 4, 4)


@pytest.fixture(autouse=True)
def target_h100() -> Iterator[None]:
    set_default_target("h100")
    yield
    set_default_target(None)


class GraphMaker:
    """A graph, with short methods that create its tensors."""

    def __init__(self) -> None:
        self.graph = cudnn.pygraph(
            io_data_type=DataType.HALF, intermediate_data_type=DataType.FLOAT, compute_data_type=DataType.FLOAT
        )

    def add_row_major_tensor(
        self, *dims: int, kind: cudnn.data_type = DataType.NOT_SET, **options: Any
    ) -> cudnn.tensor:
        return self.graph.tensor(dims, pack_strides(dims), kind, **options)

    def add_nhwc_tensor(self, *dims: int, kind: cudnn.data_type = DataType.NOT_SET) -> cudnn.tensor:
        return self.graph.tensor(dims, channels_last(dims), kind)

    def add_by_value_scalar(self) -> cudnn.tensor:
        return self.add_row_major_tensor(1, 1, 1, 1, kind=DataType.FLOAT, is_pass_by_value=True)

    def add_per_channel_tensors(self, count: int) -> list[cudnn.tensor]:
        return [self.add_row_major_tensor(1, 32, 1, 1, kind=DataType.FLOAT) for _ in range(count)]


def _make_norm_case(
    kind: str, dims: tuple[int, ...], scale: tuple[int, ...], last: bool = False
) -> Callable[[GraphMaker], Any]:
    def add_norm(m: GraphMaker) -> Any:
        x = m.add_nhwc_tensor(*dims) if last else m.add_row_major_tensor(*dims)
        weights = [m.add_row_major_tensor(*scale, kind=DataType.FLOAT) for _ in range(2)]
        return getattr(m.graph, kind)(TRAINING, x, *weights, m.add_by_value_scalar())

    return add_norm


def _make_norm_backward_case(
    kind: str, scale: tuple[int, ...], statistics: tuple[int, ...], last: bool
) -> Callable[[GraphMaker], Any]:
    def add_norm_backward(m: GraphMaker) -> Any:
        images = [m.add_nhwc_tensor(*IMAGE_DIMS) if last else m.add_row_major_tensor(*IMAGE_DIMS) for _ in range(2)]
        weights = [m.add_row_major_tensor(*dims, kind=DataType.FLOAT) for dims in (scale, statistics, statistics)]
        return getattr(m.graph, kind)(*images, *weights)

    return add_norm_backward


def _add_swish_and_gradient(m: GraphMaker) -> cudnn.tensor:
    x = m.add_row_major_tensor(2, 8, 16)
    return m.graph.swish_backward(m.graph.swish(x, 0.3), x, swish_beta=0.7)


def _add_logical_operations(m: GraphMaker) -> cudnn.tensor:
    g, x, y = m.graph, m.add_row_major_tensor(2, 8, 16), m.add_row_major_tensor(1, 8, 16)
    more = g.cmp_gt(x, y).set_data_type(DataType.BOOLEAN)
    less = g.cmp_lt(x, y, compute_data_type=DataType.INT32).set_data_type(DataType.BOOLEAN)
    both = g.logical_and(more, less, compute_data_type=DataType.BOOLEAN).set_data_type(DataType.BOOLEAN)
    either = g.logical_or(both, more).set_data_type(DataType.BOOLEAN)
    return g.binary_select(x, y, g.logical_not(either).set_data_type(DataType.BOOLEAN))


def _add_index_comparison(m: GraphMaker) -> cudnn.tensor:
    g, x = m.graph, m.add_row_major_tensor(2, 8, 16)
    rows = g.gen_index(x, axis=1).set_data_type(DataType.INT32)
    columns = g.gen_index(x, 2, DataType.INT32).set_data_type(DataType.INT32)
    return g.binary_select(x, x, g.cmp_ge(rows, columns).set_data_type(DataType.BOOLEAN))


def _add_reduction(m: GraphMaker) -> cudnn.tensor:
    x = m.graph.relu(m.add_nhwc_tensor(4, 16, 3, 5))
    return m.graph.reduction(x, cudnn.reduction_mode.ADD).set_dim([1, 16, 1, 1]).set_data_type(DataType.FLOAT)


def _add_convolution(m: GraphMaker) -> cudnn.tensor:
    image, weight = m.add_nhwc_tensor(4, 32, 16, 16), m.add_nhwc_tensor(64, 32, 3, 3)
    return m.graph.conv_fprop(image, weight, pre_padding=[1, 0], post_padding=[0, 1], stride=[1, 1], dilation=[1, 2])


SQUARE_WINDOW: dict[str, Any] = {"padding": [1, 1], "stride": [1, 1], "dilation": [1, 1]}


def _add_convolution_dgrad(m: GraphMaker) -> cudnn.tensor:
    return m.graph.conv_dgrad(
        m.add_nhwc_tensor(4, 64, 16, 16), m.add_nhwc_tensor(64, 32, 3, 3), **SQUARE_WINDOW
    ).set_dim([4, 32, 16, 16])


def _add_filter_gradient(m: GraphMaker) -> cudnn.tensor:
    return m.graph.conv_wgrad(
        m.add_nhwc_tensor(4, 32, 16, 16), m.add_nhwc_tensor(4, 64, 16, 16), **SQUARE_WINDOW
    ).set_dim([64, 32, 3, 3])


def _add_slice(m: GraphMaker) -> cudnn.tensor:
    x = m.add_row_major_tensor(16, 32, 64, kind=DataType.FLOAT)
    return m.graph.relu(m.graph.slice(x, [slice(8, None), slice(0, 16, 2), slice(None)]))


def _add_block_scale_quantize(m: GraphMaker) -> list[cudnn.tensor]:
    y, scale = m.graph.block_scale_quantize(m.add_row_major_tensor(1, 128, 256), block_size=32, axis=2)
    scale.set_data_type(DataType.FP8_E8M0).set_reordering_type(cudnn.tensor_reordering.F8_128x4)
    return [y.set_data_type(DataType.FP8_E4M3), scale]


def _add_scale_tensor(m: GraphMaker, dims: tuple[int, ...], strides: tuple[int, ...]) -> cudnn.tensor:
    return m.graph.tensor(dims, strides, DataType.FP8_E8M0, reordering_type=cudnn.tensor_reordering.F8_128x4)


def _add_block_scaled_matmul(m: GraphMaker) -> cudnn.tensor:
    b = m.graph.tensor([1, 256, 128], [256 * 128, 1, 256], DataType.FP8_E4M3)
    left = m.graph.block_scale_dequantize(
        m.add_row_major_tensor(1, 128, 256, kind=DataType.FP8_E4M3),
        _add_scale_tensor(m, (1, 128, 8), (1024, 8, 1)),
        block_size=[1, 32],
    )
    return m.graph.matmul(
        left, m.graph.block_scale_dequantize(b, _add_scale_tensor(m, (1, 8, 128), (1024, 1, 8)), [32, 1])
    )


def _add_grouped_matmul(m: GraphMaker) -> cudnn.tensor:
    weight = m.graph.tensor([4, 64, 128], [64 * 128, 1, 64])
    return m.graph.moe_grouped_matmul(
        m.add_row_major_tensor(1, 256, 64), weight, m.add_row_major_tensor(4, 1, 1, kind=DataType.INT32)
    )


OPERATION_CASES: dict[str, Callable[[GraphMaker], Any]] = {
    "relu with numbers": lambda m: m.graph.relu(m.add_row_major_tensor(2, 8, 16), 0.1, 0.2, 6.1),
    "swish and its gradient": _add_swish_and_gradient,
    "comparison, logic, selection": _add_logical_operations,
    "positions": _add_index_comparison,
    "operands that both broadcast": lambda m: m.graph.relu(
        m.graph.add(m.add_nhwc_tensor(2, 8, 1, 4), m.add_nhwc_tensor(1, 8, 16, 1))
    ),
    "matmul with padding": lambda m: m.graph.matmul(
        m.add_row_major_tensor(4, 16, 32), m.add_row_major_tensor(4, 32, 64), padding=-1.5
    ),
    "reduction": _add_reduction,
    "convolution with two paddings": _add_convolution,
    "gradient of the image": _add_convolution_dgrad,
    "gradient of the filter": _add_filter_gradient,
    "layernorm": _make_norm_case("layernorm", IMAGE_DIMS, (1, 32, 4, 4), last=True),
    "adalayernorm": _make_norm_case("adalayernorm", (8, 32, 4, 1), (8, 1, 4, 1)),
    "rmsnorm": _make_norm_case("rmsnorm", (8, 32, 4, 1), (1, 32, 4, 1)),
    "instancenorm": _make_norm_case("instancenorm", IMAGE_DIMS, (1, 32, 1, 1), last=True),
    "batchnorm": lambda m: m.graph.batchnorm(
        m.add_nhwc_tensor(*IMAGE_DIMS), *m.add_per_channel_tensors(4), m.add_by_value_scalar(), m.add_by_value_scalar()
    ),
    "batchnorm with given statistics": lambda m: m.graph.batchnorm_inference(
        m.add_nhwc_tensor(*IMAGE_DIMS), *m.add_per_channel_tensors(4)
    ),
    "gradients of instancenorm": _make_norm_backward_case(
        "instancenorm_backward", (1, 32, 1, 1), (8, 32, 1, 1), last=True
    ),
    "gradients of batchnorm": _make_norm_backward_case("batchnorm_backward", (1, 32, 1, 1), (1, 32, 1, 1), last=True),
    "gradients of adalayernorm": _make_norm_backward_case(
        "adalayernorm_backward", (8, 1, 4, 4), (8, 32, 1, 1), last=False
    ),
    "reshape": lambda m: m.graph.reshape(m.add_row_major_tensor(2, 8, 16)).set_dim([2, 16, 8]),
    "slice": _add_slice,
    "concatenate": lambda m: m.graph.concatenate([m.add_nhwc_tensor(2, 8, 4, 4), m.add_nhwc_tensor(2, 24, 4, 4)], 1),
    "quantize": _add_block_scale_quantize,
    "dequantize": _add_block_scaled_matmul,
    "grouped matmul": _add_grouped_matmul,
    "rotation": lambda m: m.graph.rope(
        m.add_row_major_tensor(2, 4, 128, 64),
        m.add_row_major_tensor(128, 1, 1, 32, kind=DataType.FLOAT),
        0.5,
        rope_dim=32,
    ),
    "gradient of a rotation": lambda m: m.graph.rope_backward(
        m.add_row_major_tensor(2, 4, 128, 64), m.add_row_major_tensor(128, 1, 1, 64, kind=DataType.FLOAT)
    ),
}

EXPECTED_LOG = {
    "relu with numbers": """
        pointwise X=f16:2,8,16/128,16,1 Y=f16:2,8,16/128,16,1 lowerClip=0.20000000298023224
            lowerClipSlope=0.10000000149011612 mathPrec=DATA_FLOAT pointwiseMode=POINTWISE_RELU_FWD
            upperClip=6.099999904632568
    """,
    "swish and its gradient": """
        pointwise X=f16:2,8,16/128,16,1 Y=f32:2,8,16/128,16,1 beta=0.30000001192092896 mathPrec=DATA_FLOAT
            pointwiseMode=POINTWISE_SWISH_FWD
        pointwise X=f16:2,8,16/128,16,1 beta=0.699999988079071 dX=f16:2,8,16/128,16,1 dY=f32:2,8,16/128,16,1
            mathPrec=DATA_FLOAT pointwiseMode=POINTWISE_SWISH_BWD
    """,
    "comparison, logic, selection": """
        pointwise B=f16:1,8,16/128,16,1 X=f16:2,8,16/128,16,1 Y=bool:2,8,16/128,16,1 mathPrec=DATA_FLOAT
            pointwiseMode=POINTWISE_CMP_GT
        pointwise B=f16:1,8,16/128,16,1 X=f16:2,8,16/128,16,1 Y=bool:2,8,16/128,16,1 mathPrec=DATA_INT32
            pointwiseMode=POINTWISE_CMP_LT
        pointwise B=bool:2,8,16/128,16,1 X=bool:2,8,16/128,16,1 Y=bool:2,8,16/128,16,1 mathPrec=DATA_BOOLEAN
            pointwiseMode=POINTWISE_LOGICAL_AND
        pointwise B=bool:2,8,16/128,16,1 X=bool:2,8,16/128,16,1 Y=bool:2,8,16/128,16,1 mathPrec=DATA_FLOAT
            pointwiseMode=POINTWISE_LOGICAL_OR
        pointwise X=bool:2,8,16/128,16,1 Y=bool:2,8,16/128,16,1 mathPrec=DATA_FLOAT
            pointwiseMode=POINTWISE_LOGICAL_NOT
        pointwise B=f16:1,8,16/128,16,1 T=bool:2,8,16/128,16,1 X=f16:2,8,16/128,16,1 Y=f16:2,8,16/128,16,1
            mathPrec=DATA_FLOAT pointwiseMode=POINTWISE_BINARY_SELECT
    """,
    "positions": """
        pointwise X=f16:2,8,16/128,16,1 Y=i32:2,8,16/128,16,1 axis=1 mathPrec=DATA_FLOAT
            pointwiseMode=POINTWISE_GEN_INDEX
        pointwise X=f16:2,8,16/128,16,1 Y=i32:2,8,16/128,16,1 axis=2 mathPrec=DATA_INT32
            pointwiseMode=POINTWISE_GEN_INDEX
        pointwise B=i32:2,8,16/128,16,1 X=i32:2,8,16/128,16,1 Y=bool:2,8,16/128,16,1 mathPrec=DATA_FLOAT
            pointwiseMode=POINTWISE_CMP_GE
        pointwise B=f16:2,8,16/128,16,1 T=bool:2,8,16/128,16,1 X=f16:2,8,16/128,16,1 Y=f16:2,8,16/128,16,1
            mathPrec=DATA_FLOAT pointwiseMode=POINTWISE_BINARY_SELECT
    """,
    "operands that both broadcast": """
        pointwise B=f16:2,8,1,4/32,1,32,8 X=f16:1,8,16,1/128,1,8,8 Y=f32:2,8,16,4/32,1,64,8 mathPrec=DATA_FLOAT
            pointwiseMode=POINTWISE_ADD
        pointwise X=f32:2,8,16,4/32,1,64,8 Y=f16:2,8,16,4/32,1,64,8 mathPrec=DATA_FLOAT
            pointwiseMode=POINTWISE_RELU_FWD
    """,
    "matmul with padding": """
        matmul matA=f16:4,16,32/512,32,1 matB=f16:4,32,64/2048,64,1 matC=f16:4,16,64/1024,64,1 mathPrec=DATA_FLOAT
            paddingDataType=TYPE_DOUBLE paddingValue=-1.5
    """,
    "reduction": """
        pointwise X=f16:4,16,3,5/240,1,80,16 Y=f32:4,16,3,5/240,1,80,16 mathPrec=DATA_FLOAT
            pointwiseMode=POINTWISE_RELU_FWD
        reduction X=f32:4,16,3,5/240,1,80,16 Y=f32:1,16,1,1/16,1,16,16 isDeterministic=False mathPrec=DATA_FLOAT
            reductionOp=REDUCE_TENSOR_ADD
    """,
    "convolution with two paddings": """
        convolution_forward W=f16:64,32,3,3/288,1,96,32 X=f16:4,32,16,16/8192,1,512,32
            Y=f16:4,64,15,13/12480,1,832,64 alpha=1.0 beta=0.0 dilation=[1,2] mathPrec=DATA_FLOAT mode=CROSS_CORRELATION
            pad_lower=[1,0] pad_upper=[0,1] stride=[1,1]
    """,
    "gradient of the image": """
        convolution_backward_data W=f16:64,32,3,3/288,1,96,32 alpha=1.0 beta=0.0 dX=f16:4,32,16,16/8192,1,512,32
            dY=f16:4,64,16,16/16384,1,1024,64 dilation=[1,1] mathPrec=DATA_FLOAT mode=CROSS_CORRELATION pad=[1,1]
            stride=[1,1]
    """,
    "gradient of the filter": """
        convolution_backward_filter X=f16:4,32,16,16/8192,1,512,32 alpha=1.0 beta=0.0 dW=f16:64,32,3,3/288,1,96,32
            dY=f16:4,64,16,16/16384,1,1024,64 dilation=[1,1] mathPrec=DATA_FLOAT mode=CROSS_CORRELATION pad=[1,1]
            stride=[1,1]
    """,
    "layernorm": """
        norm_forward Bias=f32:1,32,4,4/512,16,4,1 InvVariance=f32:8,1,1,1/1,1,1,1 Mean=f32:8,1,1,1/1,1,1,1
            Scale=f32:1,32,4,4/512,16,4,1 X=f16:8,32,4,4/512,1,128,32 Y=f16:8,32,4,4/512,1,128,32
            epsilonDesc=f32:1,1,1,1/1,1,1,1* fmode=NORM_FWD_TRAINING mode=LAYER_NORM
    """,
    "adalayernorm": """
        norm_forward Bias=f32:8,1,4,1/4,4,1,1 InvVariance=f32:8,32,1,1/32,1,1,1 Mean=f32:8,32,1,1/32,1,1,1
            Scale=f32:8,1,4,1/4,4,1,1 X=f16:8,32,4,1/128,4,1,1 Y=f16:8,32,4,1/128,4,1,1 epsilonDesc=f32:1,1,1,1/1,1,1,1*
            fmode=NORM_FWD_TRAINING mode=ADA_LAYER_NORM
    """,
    "rmsnorm": """
        norm_forward Bias=f32:1,32,4,1/128,4,1,1 InvVariance=f32:8,1,1,1/1,1,1,1 Scale=f32:1,32,4,1/128,4,1,1
            X=f16:8,32,4,1/128,4,1,1 Y=f16:8,32,4,1/128,4,1,1 epsilonDesc=f32:1,1,1,1/1,1,1,1* fmode=NORM_FWD_TRAINING
            mode=RMS_NORM
    """,
    "instancenorm": """
        norm_forward Bias=f32:1,32,1,1/32,1,1,1 InvVariance=f32:8,32,1,1/32,1,32,32 Mean=f32:8,32,1,1/32,1,32,32
            Scale=f32:1,32,1,1/32,1,1,1 X=f16:8,32,4,4/512,1,128,32 Y=f16:8,32,4,4/512,1,128,32
            epsilonDesc=f32:1,1,1,1/1,1,1,1* fmode=NORM_FWD_TRAINING mode=INSTANCE_NORM
    """,
    "batchnorm": """
        norm_forward Bias=f32:1,32,1,1/32,1,1,1 InRunningMean=f32:1,32,1,1/32,1,1,1
            InRunningVar=f32:1,32,1,1/32,1,1,1 InvVariance=f32:1,32,1,1/32,1,32,32 Mean=f32:1,32,1,1/32,1,32,32
            OutRunningMean=f32:1,32,1,1/32,1,32,32 OutRunningVar=f32:1,32,1,1/32,1,32,32 Scale=f32:1,32,1,1/32,1,1,1
            X=f16:8,32,4,4/512,1,128,32 Y=f16:8,32,4,4/512,1,128,32 epsilonDesc=f32:1,1,1,1/1,1,1,1*
            expavgfactorDesc=f32:1,1,1,1/1,1,1,1* fmode=NORM_FWD_TRAINING mode=BATCH_NORM
    """,
    "batchnorm with given statistics": """
        norm_forward Bias=f32:1,32,1,1/32,1,1,1 InvVariance=f32:1,32,1,1/32,1,1,1 Mean=f32:1,32,1,1/32,1,1,1
            Scale=f32:1,32,1,1/32,1,1,1 X=f16:8,32,4,4/512,1,128,32 Y=f16:8,32,4,4/512,1,128,32 fmode=NORM_FWD_INFERENCE
            mode=BATCH_NORM
    """,
    "gradients of instancenorm": """
        norm_backward DBias=f32:1,32,1,1/32,1,32,32 DScale=f32:1,32,1,1/32,1,32,32 DX=f16:8,32,4,4/512,1,128,32
            DY=f16:8,32,4,4/512,1,128,32 InvVariance=f32:8,32,1,1/32,1,1,1 Mean=f32:8,32,1,1/32,1,1,1
            Scale=f32:1,32,1,1/32,1,1,1 X=f16:8,32,4,4/512,1,128,32 mode=INSTANCE_NORM
    """,
    "gradients of batchnorm": """
        norm_backward DBias=f32:1,32,1,1/32,1,32,32 DScale=f32:1,32,1,1/32,1,32,32 DX=f16:8,32,4,4/512,1,128,32
            DY=f16:8,32,4,4/512,1,128,32 InvVariance=f32:1,32,1,1/32,1,1,1 Mean=f32:1,32,1,1/32,1,1,1
            Scale=f32:1,32,1,1/32,1,1,1 X=f16:8,32,4,4/512,1,128,32 mode=BATCH_NORM
    """,
    "gradients of adalayernorm": """
        norm_backward DBias=f32:8,1,4,4/16,16,4,1 DScale=f32:8,1,4,4/16,16,4,1 DX=f16:8,32,4,4/512,16,4,1
            DY=f16:8,32,4,4/512,16,4,1 InvVariance=f32:8,32,1,1/32,1,1,1 Mean=f32:8,32,1,1/32,1,1,1
            Scale=f32:8,1,4,4/16,16,4,1 X=f16:8,32,4,4/512,16,4,1 mode=ADA_LAYER_NORM
    """,
    "reshape": """
        reshape X=f16:2,8,16/128,16,1 Y=f16:2,16,8/128,1,16 mode=RESHAPE_VIEW_ONLY
    """,
    "slice": """
        pointwise X=f32:8,8,64/2048,128,1 Y=f16:8,8,64/2048,128,1 mathPrec=DATA_FLOAT
            pointwiseMode=POINTWISE_RELU_FWD
    """,
    "concatenate": """
        concat axis=1 inplaceIndex=-1 outputDesc=f16:2,32,4,4/512,1,128,32
    """,
    "quantize": """
        block_scale_quantize X=f16:1,128,256/32768,256,1 Y=e4m3:1,128,256/32768,256,1 block_size=32
            mathPrec=DATA_FLOAT scale=e8m0:1,128,8/1024,8,1
    """,
    "dequantize": """
        block_scale_dequantize X=e4m3:1,128,256/32768,256,1 Y=f32:1,128,256/32768,256,1 block_size=[1,32]
            is_neg_scale=False mathPrec=DATA_FLOAT scale=e8m0:1,128,8/1024,8,1
        block_scale_dequantize X=e4m3:1,256,128/32768,1,256 Y=f32:1,256,128/32768,1,256 block_size=[32,1]
            is_neg_scale=False mathPrec=DATA_FLOAT scale=e8m0:1,8,128/1024,1,8
        matmul matA=f32:1,128,256/32768,256,1 matB=f32:1,256,128/32768,1,256 matC=f16:1,128,128/16384,128,1
            mathPrec=DATA_FLOAT
    """,
    "grouped matmul": """
        moe_grouped_matmul firstTokenOffset=i32:4,1,1/1,1,1 mathPrec=DATA_FLOAT mode=MOE_GROUPED_MATMUL_MODE_NONE
            output=f16:1,256,128/32768,128,1 token=f16:1,256,64/16384,64,1 weight=f16:4,64,128/8192,1,64
    """,
    # from cudnn-frontend 1.32, which added them
    "rotation": """
        rope_fwd X=f16:2,4,128,64/32768,8192,64,1 Y=f16:2,4,128,64/32768,8192,64,1 freqs=f32:128,1,1,32/32,32,32,1
            output_scale=0.5 rope_dim=32
    """,
    "gradient of a rotation": """
        rope_bwd DX=f16:2,4,128,64/32768,8192,64,1 DY=f16:2,4,128,64/32768,8192,64,1 freqs=f32:128,1,1,64/64,64,64,1
            output_scale=1.0 rope_dim=64
    """,
}

SHORT_FIELD_NAMES = {
    "HALF": "f16",
    "FLOAT": "f32",
    "BOOLEAN": "bool",
    "INT32": "i32",
    "FP8_E4M3": "e4m3",
    "FP8_E8M0": "e8m0",
}
DEFAULT_FIELDS = ("alpha1=1.0", "alpha2=1.0", "lowerClip=0.0", "lowerClipSlope=0.0", "upperClip=3.4")
FIELDS_NOT_COMPARED = ("operation", "inputDescs")  # the second contains uids


def _build_and_log_graph_of_case(case: str) -> tuple[GraphMaker, Mapping[str, Any]]:
    """Build a case with all results as outputs, float32 if unset; return it and the graph in cuDNN's log."""
    m = GraphMaker()
    made = OPERATION_CASES[case](m)
    first, *more = made if isinstance(made, list) else [made]
    first.set_output(True)
    for item in more:
        if item is not None:
            item.set_output(True)
            if item.data_type == DataType.NOT_SET:
                item.set_data_type(DataType.FLOAT)
    with capture_log() as log:
        m.graph.validate()
        m.graph.build_operation_graph()
    (logged,) = log.operation_graphs()
    return m, logged


def _iterate_operation_fields(logged: Mapping[str, Any]) -> Iterator[list[str]]:
    """Yield the fields of each operation as text: its kind first, the rest sorted."""
    tensors = {record["name"]: record for record in logged["tensors"]}
    for node in logged["nodes"]:
        found = []
        for key, value in node.items():
            if key not in FIELDS_NOT_COMPARED:
                record = tensors.get(value) if isinstance(value, str) else None
                text = _format_value_without_prefix(value) if record is None else _format_logged_tensor_as_text(record)
                found.append(f"{key}={text}")
        kind = node["operation"].removeprefix("CUDNN_BACKEND_OPERATION_").removesuffix("_DESCRIPTOR").lower()
        yield [kind, *sorted(word for word in found if not word.startswith(DEFAULT_FIELDS))]


def _format_value_without_prefix(value: Any) -> str:
    return str(value).replace("CUDNN_", "").replace(" ", "")


def _format_logged_tensor_as_text(record: Mapping[str, Any]) -> str:
    kind = SHORT_FIELD_NAMES[record["dataType"].removeprefix("CUDNN_DATA_")]
    dims, strides = (",".join(map(str, record[key])) for key in ("dim", "stride"))
    return f"{kind}:{dims}/{strides}{'*' if record['isByValue'] else ''}"


def _parse_expected_operation_fields(text: str) -> list[list[str]]:
    """Parse the expected fields of each operation: an operation starts in column 8, its next lines are indented."""
    operations: list[list[str]] = []
    for line in text.splitlines():
        if line.strip():
            if line[8] != " ":
                operations.append([])
            operations[-1] += line.split()
    return [[kind, *sorted(words)] for kind, *words in operations]


@pytest.mark.parametrize("case", OPERATION_CASES)
def test_cudnn_gets_the_same_graph_as_from_cudnn_frontend(case: str) -> None:
    _, logged = _build_and_log_graph_of_case(case)
    assert list(_iterate_operation_fields(logged)) == _parse_expected_operation_fields(EXPECTED_LOG[case])


CASES_SUPPORTED_ON_H100 = (
    "swish and its gradient",
    "matmul with padding",
    "reduction",
    "convolution with two paddings",
    "gradient of the image",
    "gradient of the filter",
    "layernorm",
    "adalayernorm",
    "rmsnorm",
    "instancenorm",
    "batchnorm",
    "gradients of instancenorm",
    "gradients of batchnorm",
    "gradients of adalayernorm",
    "slice",
    "grouped matmul",
)


@pytest.mark.parametrize("case", CASES_SUPPORTED_ON_H100)
def test_an_h100_supports_the_operation(case: str) -> None:
    m, _ = _build_and_log_graph_of_case(case)
    m.graph.create_execution_plans(HEURISTICS_MODES)
    m.graph.check_support()
    assert m.graph.get_execution_plan_count() > 0


def test_block_scaled_matmul_needs_blackwell() -> None:
    set_default_target("b200")
    m, _ = _build_and_log_graph_of_case("dequantize")
    m.graph.create_execution_plans(HEURISTICS_MODES)
    m.graph.check_support()
    set_default_target("h100")
    older, _ = _build_and_log_graph_of_case("dequantize")
    with pytest.raises(cudnn.cudnnGraphNotSupportedError):
        older.graph.create_execution_plans(HEURISTICS_MODES)


def _add_bn_finalize(m: GraphMaker) -> list[cudnn.tensor]:
    channel = [m.add_nhwc_tensor(1, 32, 1, 1, kind=DataType.FLOAT) for _ in range(6)]
    count = m.add_row_major_tensor(1, 1, 1, 1, kind=DataType.INT64, is_pass_by_value=True)
    made = m.graph.bn_finalize(*channel[:4], m.add_by_value_scalar(), count, *channel[4:], m.add_by_value_scalar())
    return [item.set_data_type(DataType.FLOAT) for item in made]


def _add_genstats(m: GraphMaker) -> list[cudnn.tensor]:
    y = m.graph.conv_fprop(m.add_nhwc_tensor(4, 32, 16, 16), m.add_nhwc_tensor(64, 32, 3, 3), **SQUARE_WINDOW)
    return [y.set_data_type(DataType.HALF), *(item.set_data_type(DataType.FLOAT) for item in m.graph.genstats(y))]


def _add_pooling(m: GraphMaker) -> list[cudnn.tensor | None]:
    y, index = m.graph.resample(m.add_nhwc_tensor(4, 32, 28, 28), [2, 2], [2, 2], [0, 0], [0, 0], generate_index=True)
    assert index is not None
    return [y, index.set_data_type(DataType.INT8)]


@pytest.mark.parametrize("make", [_add_bn_finalize, _add_genstats, _add_pooling])
def test_operations_missing_or_wrong_in_cudnn_frontend_get_plans(make: Callable[[GraphMaker], Any]) -> None:
    """Genstats computes in the type of its node; cudnn-frontend passes cuDNN a wrong type."""
    m = GraphMaker()
    for item in make(m):
        item.set_output(True)
    m.graph.build(HEURISTICS_MODES)
    assert m.graph.get_execution_plan_count() > 0


def _add_matmul_with_different_k(m: GraphMaker) -> Any:
    return m.graph.matmul(m.add_row_major_tensor(2, 8, 16), m.add_row_major_tensor(2, 24, 8))


def _add_matmul_with_different_batch(m: GraphMaker) -> Any:
    return m.graph.matmul(m.add_row_major_tensor(2, 8, 16), m.add_row_major_tensor(3, 16, 8))


def _add_bias_of_another_rank(m: GraphMaker) -> Any:
    return m.graph.bias(m.add_row_major_tensor(2, 8, 16), m.add_row_major_tensor(8, 1))


def _add_gen_index_of_a_missing_axis(m: GraphMaker) -> Any:
    return m.graph.gen_index(m.add_row_major_tensor(2, 8, 16), 7)


def _add_reduction_without_mode(m: GraphMaker) -> Any:
    return m.graph.reduction(m.add_row_major_tensor(2, 8, 16), cudnn.reduction_mode.NOT_SET).set_dim([2, 8, 1])


@pytest.mark.parametrize("make", [_add_matmul_with_different_k, _add_matmul_with_different_batch])
def test_mismatched_matmuls_are_refused_at_validation(make: Callable[[GraphMaker], Any]) -> None:
    m = GraphMaker()
    make(m).set_output(True)
    with pytest.raises(ValueError, match="mismatch"):
        m.graph.validate()


@pytest.mark.parametrize(
    "make", [_add_bias_of_another_rank, _add_gen_index_of_a_missing_axis, _add_reduction_without_mode]
)
def test_errors_that_validation_misses_are_reported_by_the_build(make: Callable[[GraphMaker], Any]) -> None:
    m = GraphMaker()
    make(m).set_output(True)
    m.graph.validate()
    with pytest.raises(RuntimeError):
        m.graph.build_operation_graph()
