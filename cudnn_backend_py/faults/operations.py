"""Faults of other operations than attention: convolutions, matmuls, norms, pointwise operations.

``source`` says who reported them; ``evidence`` what was measured for this package, where it was.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from fractions import Fraction
from typing import Any

from ..generated.enums import (
    DataType,
    DescriptorType,
    MoeGroupedMatmulMode,
    NormFwdPhase,
    NormMode,
    PointwiseMode,
    ResampleMode,
    SignalMode,
    TensorReordering,
)
from ..graph.attention.fault import Fault
from ..graph.builder import GraphBuilder
from ..graph.data_types import FP8_TYPES, HALF_TYPES
from ..graph.ir import Graph, Pointwise
from ..graph.strides import channels_last
from ..system.version import Window
from . import look

__all__ = ["OTHER_OPERATIONS"]


# Conditions that several rows share, or that need more than a line


def _half_convolution_3d(graph: Graph) -> bool:
    """A forward convolution of row-major [n, c, d, h, w] in 16 bits with more than one tap."""
    return any(
        item.forward
        and item.image.rank == 5
        and item.image.data_type in HALF_TYPES
        and look.is_row_major(item.image)
        and max(item.weights.dims[2:], default=1) > 1
        for item in look.convolutions(graph)
    )


def _float_convolution_3d(graph: Graph) -> bool:
    """A forward convolution of [n, c, d, h, w] in float32."""
    return any(
        item.forward and item.image.rank == 5 and item.image.data_type is DataType.FLOAT
        for item in look.convolutions(graph)
    )


def _large_depthwise_convolution(graph: Graph) -> bool:
    """A depthwise convolution over 2^31 elements or more."""
    return any(item.depthwise and math.prod(item.image.dims) >= 1 << 31 for item in look.convolutions(graph))


def _int8_convolution_with_relu(graph: Graph) -> bool:
    """A forward convolution of int8, channels last, with an addition and a ReLU."""
    convolved = any(
        item.forward and item.image.data_type is DataType.INT8 and item.image.strides[1] == 1
        for item in look.convolutions(graph)
    )
    added = any(look.of_mode(graph, PointwiseMode.ADD))
    return convolved and added and any(look.of_mode(graph, PointwiseMode.RELU_FWD))


_SCALE_AND_BIAS = [PointwiseMode.MUL, PointwiseMode.ADD]


def _before_weight_gradients(graph: Graph) -> Iterator[list[PointwiseMode]]:
    """Yield for each weight gradient the first two of the pointwise operations that make its image."""
    first: dict[int, list[PointwiseMode]] = {}
    for op in graph.ops:  # in an order in which nothing is read before it is written
        if isinstance(op, Pointwise) and op.y is not None:
            before = [] if op.x is None else first.get(op.x.uid, [])
            first[op.y.uid] = [*before, op.mode][:2]
    for op in look.of_kind(graph, DescriptorType.OPERATION_CONVOLUTION_BACKWARD_FILTER):
        yield first.get(op.fields["x"].uid, [])


def _weight_gradient_of_part_of_a_norm(graph: Graph) -> bool:
    """A weight gradient of pointwise operations that do not begin with a scale and a bias."""
    return any(modes and modes != _SCALE_AND_BIAS for modes in _before_weight_gradients(graph))


def _weight_gradient_of_a_norm(graph: Graph) -> bool:
    """A weight gradient of a scale, a bias and what follows them."""
    return any(modes == _SCALE_AND_BIAS for modes in _before_weight_gradients(graph))


def _bilinear_half(graph: Graph) -> bool:
    """Bilinear resampling in 16 bits."""
    resampled = look.of_kind(graph, DescriptorType.OPERATION_RESAMPLE_FWD)
    return any(
        op.fields["x"].data_type in HALF_TYPES and op.fields["resample"].fields["mode"] is ResampleMode.BILINEAR
        for op in resampled
    )


def _fused_matmul_with_gaps(graph: Graph) -> bool:
    """A matmul with pointwise operations, of which some tensor in memory has gaps."""
    fused = look.the_matmul(graph) is not None and len(graph.ops) > 1
    return fused and any(look.has_gaps(tensor) for tensor in look.in_memory(graph))


def _fp8_matmul_of_few_rows(graph: Graph) -> bool:
    """A matmul of 8-bit floats with few rows in each batch."""
    op = look.the_matmul(graph)
    return op is not None and op.a.data_type in FP8_TYPES and op.a.rank > 2 and op.a.dims[-2] <= 64


def _block_scaled_matmul(graph: Graph) -> bool:
    """A matmul of two tensors that are scaled back before it."""
    op = look.the_matmul(graph)
    scaled = {item.fields["y"].uid for item in look.of_kind(graph, DescriptorType.OPERATION_BLOCK_SCALE_DEQUANTIZE)}
    return op is not None and {op.a.uid, op.b.uid} <= scaled


def _block_scaled_matmul_with_factor(graph: Graph) -> bool:
    """Such a matmul, and a multiplication of what it gives by one element."""
    op = look.the_matmul(graph)
    return (
        op is not None
        and _block_scaled_matmul(graph)
        and any(
            {op.c.uid} < {tensor.uid for tensor in (by.x, by.b) if tensor is not None}
            and any(tensor is not None and set(tensor.dims) == {1} for tensor in (by.x, by.b))
            for by in look.of_mode(graph, PointwiseMode.MUL)
        )
    )


def _norm_block_scaled(graph: Graph) -> bool:
    """A norm whose result is block-scaled in the same graph."""
    written = {op.fields["y"].uid for op in look.of_kind(graph, DescriptorType.OPERATION_NORM_FORWARD)}
    quantized = look.of_kind(graph, DescriptorType.OPERATION_BLOCK_SCALE_QUANTIZE)
    return any(op.fields["x"].uid in written for op in quantized)


def _gathered_by_32_bits(graph: Graph) -> bool:
    """A matmul of experts that gathers its rows by indices of 32 bits."""
    experts = look.of_kind(graph, DescriptorType.OPERATION_MOE_GROUPED_MATMUL)
    return any(
        op.fields["mode"] is MoeGroupedMatmulMode.GATHER and op.fields["token_index"].data_type is DataType.INT32
        for op in experts
    )


def _fp8_expert_matmul(graph: Graph) -> bool:
    """A matmul per group of tokens in 8-bit floats."""
    experts = look.of_kind(graph, DescriptorType.OPERATION_MOE_GROUPED_MATMUL)
    return any(op.fields["token"].data_type in FP8_TYPES for op in experts)


# What reproductions share


def _convolution(data_type: DataType, image: tuple[int, ...], weights: tuple[int, ...], *, last: bool = False) -> Graph:
    """Return one forward convolution, row-major or channels last."""
    g = GraphBuilder("convolution", io_type=data_type)
    x, w = (
        g.tensor(name, dims, strides=channels_last(dims) if last else "packed")
        for name, dims in (("x", image), ("w", weights))
    )
    g.convolution(x, w, padding=weights[2] // 2, name="y", virtual=False)
    return g.graph()


def _volume(data_type: DataType, taps: int, *, last: bool = False) -> Graph:
    return _convolution(data_type, (2, 32, 8, 16, 16), (32, 32, taps, taps, taps), last=last)


def _int8(*, relu: bool) -> Graph:
    """Return an int8 convolution with scale, residual, bias and, if wanted, ReLU, channels last."""
    g = GraphBuilder("int8 convolution", io_type=DataType.INT8)

    def tensor_strides(dims: tuple[int, ...]) -> tuple[int, ...]:
        return channels_last(dims)

    image, filters, result, channel = (2, 32, 16, 16), (64, 32, 3, 3), (2, 64, 16, 16), (1, 64, 1, 1)
    x, w, z = (
        g.tensor(name, dims, strides=tensor_strides(dims))
        for name, dims in (("x", image), ("w", filters), ("z", result))
    )
    scale, bias = (
        g.tensor(name, channel, DataType.FLOAT, strides=tensor_strides(channel)) for name in ("scale", "bias")
    )
    inner: dict[str, Any] = {"strides": tensor_strides(result)}
    y = g.convolution(x, w, padding=1, compute_type=DataType.INT32, data_type=DataType.INT32, **inner)
    y = g.pointwise(PointwiseMode.MUL, y, scale, **inner)
    y = g.pointwise(PointwiseMode.ADD, y, z, **inner)
    if relu:
        y = g.pointwise(PointwiseMode.ADD, y, bias, **inner)
        g.pointwise(PointwiseMode.RELU_FWD, y, name="y", virtual=False, **inner)
    else:
        g.pointwise(PointwiseMode.ADD, y, bias, name="y", virtual=False, **inner)
    return g.graph()


def _weight_gradient(*modes: PointwiseMode) -> Graph:
    """Return the weight gradient of a convolution of what pointwise operations make of an image, channels last."""
    g = GraphBuilder("weight gradient")
    x, dy = (g.tensor(name, (4, 64, 16, 16), strides="channels_last") for name in ("x", "dy"))
    for mode in modes:
        channels = () if mode is PointwiseMode.RELU_FWD else (g.tensor(mode.name, (1, 64, 1, 1)),)
        x = g.pointwise(mode, x, *channels, data_type=DataType.HALF)
    g.convolution_backward_filter(x, dy, (3, 3), padding=1, name="dw", virtual=False)
    return g.graph()


def _upsampling(data_type: DataType) -> Graph:
    """Return an image of twice the size, by bilinear interpolation."""
    g, half = GraphBuilder("upsampling", io_type=data_type), Fraction(1, 2)
    x = g.tensor("x", (4, 32, 28, 28), strides="channels_last")
    window: dict[str, Any] = {"window": 2, "stride": half, "padding": half, "post_padding": 1}
    g.resample(ResampleMode.BILINEAR, x, **window, name="y", virtual=False)
    return g.graph()


def _float32_product_of_other_rank(graph: Graph) -> bool:
    """A matmul of float32 into memory, of tensors that have neither 3 dims nor the 4 that are refused."""
    op = look.the_matmul(graph)
    return (
        op is not None
        and op.c.rank not in (3, 4)
        and not op.c.virtual
        and all(tensor.data_type is DataType.FLOAT for tensor in (op.a, op.b, op.c))
        and all(tensor.uid != op.c.uid for other in graph.ops for tensor in other.inputs().values())
    )


def _product(data_type: DataType, *, rows: int = 128, gap: int = 0, relu: bool = False) -> Graph:
    """Return a batch of matmuls, with a gap after each row of the first operand, and a ReLU if wanted."""
    g = GraphBuilder("product", io_type=data_type)
    inner, columns = 256, 128
    a = g.tensor("a", (4, rows, inner), strides=(rows * (inner + gap), inner + gap, 1))
    b = g.tensor("b", (4, inner, columns), strides=(inner * columns, 1, inner))
    result: dict[str, Any] = {"name": "y", "virtual": False, "data_type": DataType.HALF}
    if relu:
        g.pointwise(PointwiseMode.RELU_FWD, g.matmul(a, b), **result)
    else:
        g.matmul(a, b, **result)
    return g.graph()


def _float_product(*batch: int) -> Graph:
    """Return a matmul of float32 matrices with these dims before them."""
    g = GraphBuilder("float32 product", io_type=DataType.FLOAT)
    g.matmul(g.tensor("a", (*batch, 64, 32)), g.tensor("b", (*batch, 32, 48)), name="y", virtual=False)
    return g.graph()


def _block_scaled(*, factor: bool) -> Graph:
    """Return a matmul of mxfp8 tensors, times one number if wanted."""
    g = GraphBuilder("block scaled", io_type=DataType.FP8_E4M3)
    size, block = 256, 32

    def side(name: str, transposed: bool) -> Any:
        dims, blocks = (1, size, size), [1, size, size // block]
        strides, scale_strides = (size * size, size, 1), (size * size // block, size // block, 1)
        if transposed:
            blocks = [1, size // block, size]
            strides, scale_strides = (size * size, 1, size), (size * size // block, 1, size // block)
        scales = g.tensor(
            f"scale_{name}",
            (blocks[0], blocks[1], blocks[2]),
            DataType.FP8_E8M0,
            strides=scale_strides,
            reordering=TensorReordering.F8_128x4,
        )
        y = g.tensor(f"{name}_float", dims, DataType.FLOAT, virtual=True)
        g.operation(
            DescriptorType.OPERATION_BLOCK_SCALE_DEQUANTIZE,
            x=g.tensor(name, dims, strides=strides),
            scale=scales,
            y=y,
            block_size=block,
            math_prec=DataType.FLOAT,
        )
        return y

    a, b = side("a", False), side("b", True)
    result: dict[str, Any] = {"name": "y", "virtual": False, "data_type": DataType.BFLOAT16}
    if factor:
        g.pointwise(PointwiseMode.MUL, g.matmul(a, b), g.tensor("factor", (1, 1, 1), DataType.FLOAT), **result)
    else:
        g.matmul(a, b, **result)
    return g.graph()


def _norm(*, quantized: bool) -> Graph:
    """Return an RMS norm, block-scaled if wanted."""
    g = GraphBuilder("norm", io_type=DataType.BFLOAT16)
    dims, one = (1024, 512, 1, 1), (1, 512, 1, 1)
    y = g.tensor("y", dims, virtual=quantized)
    g.operation(
        DescriptorType.OPERATION_NORM_FORWARD,
        mode=NormMode.RMS_NORM,
        phase=NormFwdPhase.INFERENCE,
        x=g.tensor("x", dims),
        scale=g.tensor("weight", one, DataType.FLOAT),
        epsilon=g.scalar(1e-5),
        y=y,
    )
    if quantized:
        g.operation(
            DescriptorType.OPERATION_BLOCK_SCALE_QUANTIZE,
            x=y,
            y=g.tensor("quantized", dims, DataType.FP8_E4M3),
            scale=g.tensor("scales", (1024, 16, 1, 1), DataType.FP8_E8M0, reordering=TensorReordering.F8_128x4),
            block_size=32,
            math_prec=DataType.FLOAT,
        )
    return g.graph()


def _signal(*, wanted: bool) -> Graph:
    """Return a matmul with or without a signal when it is done."""
    g = GraphBuilder("signal")
    result: dict[str, Any] = {"data_type": DataType.HALF, "virtual": wanted}
    c = g.matmul(g.tensor("a", (1, 128, 64)), g.tensor("b", (1, 64, 128)), **result)
    if wanted:
        flag, y = g.tensor("flag", (1, 1, 1), DataType.INT32), g.tensor("y", (1, 128, 128))
        g.operation(DescriptorType.OPERATION_SIGNAL, mode=SignalMode.SET, value=7, flag=flag, x=c, y=y)
    return g.graph()


def _experts(data_type: DataType) -> Graph:
    """Return one matmul per group of tokens."""
    g = GraphBuilder("experts", io_type=data_type)
    g.operation(
        DescriptorType.OPERATION_MOE_GROUPED_MATMUL,
        mode=MoeGroupedMatmulMode.NONE,
        math_prec=DataType.FLOAT,
        token=g.tensor("token", (1, 64, 32)),
        weight=g.tensor("weight", (4, 32, 16)),
        first_token_offset=g.tensor("offsets", (4, 1, 1), DataType.INT32),
        output=g.tensor("output", (1, 64, 16), DataType.HALF),
    )
    return g.graph()


def _gathered(index_type: DataType) -> Graph:
    """Return a matmul for each expert over rows that are gathered."""
    g = GraphBuilder("gathered")
    token, weight = g.tensor("token", (1, 64, 32)), g.tensor("weight", (4, 32, 16), strides=(512, 1, 32))
    first, index = g.tensor("first", (4, 1, 1), DataType.INT32), g.tensor("index", (1, 128, 1), index_type)
    mode = MoeGroupedMatmulMode.GATHER
    g.moe_grouped_matmul(token, weight, first, mode=mode, token_index=index, name="y", virtual=False)
    return g.graph()


_NO_PLAN = "measured with 9.19.0 on sm_90, deviceless with 9.16.0 to 9.22.0 and 9.24.0 to 9.28.0"

OTHER_OPERATIONS: tuple[Fault, ...] = (
    Fault(
        "convolution-3d-half",
        what="a forward convolution over three dims in 16 bits, row-major, with more than one tap",
        effect="wrong results",
        fix="use 9.15.0 or later, or lay the tensors out channels last",
        source="https://github.com/pytorch/pytorch/pull/166480",
        versions=Window(since=(9, 8, 0), until=(9, 15, 0)),
        graph=_half_convolution_3d,
        reproductions={"bfloat16": lambda: _volume(DataType.BFLOAT16, 3), "half": lambda: _volume(DataType.HALF, 3)},
        unlike=lambda: _volume(DataType.HALF, 1),
        cure=lambda: _volume(DataType.HALF, 3, last=True),
    ),
    Fault(
        "convolution-3d-tf32",
        what="a forward convolution over three dims of float32 tensors",
        effect="wrong results by engines that compute in TF32; reported of 9.10.2 to 9.15",
        fix="use 9.16.0 or later, or an engine without tensor cores (true float32)",
        source="https://github.com/pytorch/pytorch/pull/167024",
        versions=Window(since=(9, 10, 2), until=(9, 16, 0)),
        graph=_float_convolution_3d,
        reproductions={"": lambda: _volume(DataType.FLOAT, 3)},
        unlike=lambda: _volume(DataType.HALF, 3, last=True),
    ),
    Fault(
        "convolution-depthwise-large",
        what="a depthwise convolution of a tensor of 2^31 elements and more",
        effect="wrong results",
        fix="use 9.15.0 or later, split the batch, or use 9.10.2",
        source="https://github.com/pytorch/pytorch/pull/168364",
        versions=Window(since=(9, 11, 0), until=(9, 15, 0)),
        graph=_large_depthwise_convolution,
        reproductions={"": lambda: _convolution(DataType.HALF, (64, 64, 1024, 1024), (64, 1, 1, 1))},
        unlike=lambda: _convolution(DataType.HALF, (8, 64, 1024, 1024), (64, 1, 1, 1)),
    ),
    Fault(
        "depthwise-sequence-of-shapes",
        what="a depthwise convolution",
        effect="wrong results where depthwise convolutions of other spatial dims ran before it in the same process",
        fix="use 9.24.0 or later",
        source="https://github.com/NVIDIA/cudnn-frontend/issues/442",
        versions=Window(until=(9, 24, 0)),
        graph=lambda graph: any(item.depthwise for item in look.convolutions(graph)),
        depends_on="what ran before in the process",
        reproductions={"": lambda: _convolution(DataType.HALF, (4, 64, 56, 56), (64, 1, 3, 3))},
        unlike=lambda: _convolution(DataType.HALF, (4, 64, 56, 56), (64, 64, 3, 3)),
    ),
    Fault(
        "depthwise-not-repeatable",
        what="a depthwise forward convolution",
        effect="engine 5 gives other results from run to run",
        fix="use 9.24.0 or later, or an engine other than 5",
        source="https://github.com/pytorch/pytorch/pull/188318",
        sm=(86,),
        versions=Window(since=(9, 23, 1), until=(9, 24, 0)),
        graph=lambda graph: any(item.depthwise and item.forward for item in look.convolutions(graph)),
        reproductions={"": lambda: _convolution(DataType.HALF, (4, 64, 56, 56), (64, 1, 3, 3))},
        unlike=lambda: _convolution(DataType.HALF, (4, 64, 56, 56), (64, 64, 3, 3)),
    ),
    Fault(
        "convolution-large-filter",
        what="a forward convolution whose filter has more than 2^31 - 1 elements",
        effect="offsets overflow 32 bits: an illegal address, or NaN without any error",
        fix="use 9.24.0 or later, or split the filter",
        source="https://github.com/NVIDIA/cudnn-frontend/issues/442",
        versions=Window(until=(9, 24, 0)),
        graph=lambda graph: any(
            item.forward and math.prod(item.weights.dims) >= 1 << 31 for item in look.convolutions(graph)
        ),
        reproductions={"": lambda: _convolution(DataType.HALF, (1, 16384, 4, 4), (16384, 16384, 3, 3))},
        unlike=lambda: _convolution(DataType.HALF, (1, 8192, 4, 4), (16384, 8192, 3, 3)),
    ),
    Fault(
        "convolution-int8-relu",
        what="a forward convolution of int8 tensors, channels last, with scale, bias and ReLU in one graph",
        effect="the process ends by a segmentation fault when the plan runs",
        fix="leave the ReLU to a graph of its own, or lay the tensors out as NCHW",
        source="https://github.com/NVIDIA/cudnn-frontend/issues/422",
        graph=_int8_convolution_with_relu,
        reproductions={"": lambda: _int8(relu=True)},
        unlike=lambda: _int8(relu=False),
        cure=lambda: _int8(relu=False),
    ),
    Fault(
        "weight-gradient-prologue",
        what="a weight gradient of pointwise operations on an image other than a scale, a bias and what follows them",
        effect="the process ends by a segmentation fault while engines are chosen",
        fix="leave the operations to a graph of their own",
        source="tests/library/graph/test_faults.py",
        evidence=(
            "measured with 9.19.0 and 9.28.0 on sm_100 and sm_103, deviceless, with all engines: a ReLU, a bias, both; "
            "with 9.28.0 a scale, and a scale and a ReLU, too"
        ),
        sm=(100, 103),
        versions=Window(since=(9, 19, 0)),
        graph=_weight_gradient_of_part_of_a_norm,
        step="check",
        reproductions={
            "": lambda: _weight_gradient(PointwiseMode.ADD, PointwiseMode.RELU_FWD),
            "relu": lambda: _weight_gradient(PointwiseMode.RELU_FWD),
        },
        unlike=lambda: _weight_gradient(PointwiseMode.MUL, PointwiseMode.ADD),
        cure=_weight_gradient,
    ),
    Fault(
        "weight-gradient-normed",
        what="a weight gradient of an image, a scale, a bias and what follows them",
        effect="the process ends by a segmentation fault while engines are chosen",
        fix="use 9.28.0 or later, or leave the operations to a graph of their own",
        source="tests/gpu/graph/test_faults.py",
        evidence=(
            "measured with 9.19.0 on sm_100, deviceless, with all engines; 9.28.0 answers; the versions between were "
            "not asked"
        ),
        sm=(100, 103),
        versions=Window(since=(9, 19, 0), until=(9, 28, 0)),
        graph=_weight_gradient_of_a_norm,
        step="check",
        reproductions={"": lambda: _weight_gradient(*_SCALE_AND_BIAS, PointwiseMode.RELU_FWD)},
        unlike=lambda: _weight_gradient(PointwiseMode.RELU_FWD),
        cure=_weight_gradient,
    ),
    Fault(
        "bilinear-16-bits",
        what="BILINEAR resampling of 16-bit tensors",
        effect="engines pass their support check and no plan of theirs compiles",
        fix="use float32",
        source="tests/library/graph/test_faults.py",
        evidence=_NO_PLAN,
        graph=_bilinear_half,
        step="build",
        reproductions={
            "": lambda: _upsampling(DataType.HALF),
            "bfloat16": lambda: _upsampling(DataType.BFLOAT16),
        },
        unlike=lambda: _upsampling(DataType.FLOAT),
        cure=lambda: _upsampling(DataType.FLOAT),
    ),
    Fault(
        "float32-matmul-dims",
        what="a matmul of float32 tensors of 2 dims, or of 5 and more, with nothing behind it",
        effect="engine 1 passes its support check and no plan of it compiles, and no other engine is proposed",
        fix="give the tensors 3 dims: a leading dim of 1, or all leading dims as one",
        source="tests/library/graph/test_faults.py",
        evidence=(
            "measured deviceless with all engines of 9.10.2, 9.14.0 and 9.28.0: 2 and 5 to 8 dims, any sizes and "
            "layouts; 9.10.2 refuses it on sm_120 and sm_121, as all do before sm_80, of 4 dims or of other types"
        ),
        sm=(80, 86, 87, 89, 90, 100, 103, 110, 120, 121),
        engines=(1,),
        graph=_float32_product_of_other_rank,
        step="build",
        reproductions={"": _float_product, "batches": lambda: _float_product(2, 1, 2)},
        unlike=lambda: _float_product(1),
        cure=lambda: _float_product(4),
    ),
    Fault(
        "matmul-on-two-gpus",
        what="a matmul",
        effect="one plan that runs on several GPUs gives wrong results where cuBLASLt of CUDA 12.9 and later serves it",
        fix="use 9.10.1 or later, or a plan for each GPU",
        source="https://docs.nvidia.com/deeplearning/cudnn/backend/latest/release-notes.html",
        versions=Window(until=(9, 10, 1)),
        graph=lambda graph: look.the_matmul(graph) is not None,
        depends_on="the GPUs that the plan runs on",
        reproductions={"": lambda: _product(DataType.HALF)},
        unlike=lambda: _convolution(DataType.HALF, (4, 64, 56, 56), (64, 64, 3, 3)),
    ),
    Fault(
        "matmul-with-gaps",
        what="a matmul with other operations on tensors that have gaps in memory",
        effect="wrong results by engine 11",
        fix="use 9.24.0 or later, tensors without gaps, or an engine other than 11",
        source="https://github.com/NVIDIA/cudnn-frontend/issues/442",
        versions=Window(until=(9, 24, 0)),
        graph=_fused_matmul_with_gaps,
        reproductions={"": lambda: _product(DataType.HALF, gap=8, relu=True)},
        unlike=lambda: _product(DataType.HALF, gap=8),
        cure=lambda: _product(DataType.HALF, relu=True),
    ),
    Fault(
        "fp8-matmul-of-few-rows",
        what="a batch of matmuls in 8-bit floats with at most 64 rows",
        effect="a misaligned address, seen only later, or a plan that is refused when it runs",
        fix="use 9.23.1 or later",
        source="https://github.com/flashinfer-ai/flashinfer/issues/3566",
        sm=(120, 121),
        versions=Window(until=(9, 23, 1)),
        graph=_fp8_matmul_of_few_rows,
        reproductions={"": lambda: _product(DataType.FP8_E4M3, rows=16)},
        unlike=lambda: _product(DataType.FP8_E4M3),
    ),
    Fault(
        "block-scaled-matmul-factor",
        what="a matmul of block-scaled tensors whose result is multiplied by one number",
        effect="the plan is built and the factor is not applied",
        fix="use 9.13.0 or later, or multiply in a graph of its own",
        source="https://github.com/openxla/xla/pull/32525",
        sm=(100, 101, 103, 107, 110, 120, 121),
        versions=Window(since=(9, 7, 0), until=(9, 13, 0)),
        graph=_block_scaled_matmul_with_factor,
        reproductions={"": lambda: _block_scaled(factor=True)},
        unlike=lambda: _block_scaled(factor=False),
        cure=lambda: _block_scaled(factor=False),
    ),
    Fault(
        "block-scaled-matmul-threads",
        what="a matmul of block-scaled tensors",
        effect="EXECUTION_FAILED_CUBLAS where plans run on several GPUs from threads",
        fix="use 9.10.1 or later, or one thread",
        source="https://github.com/openxla/xla/pull/34309",
        sm=(100, 101, 103, 107, 110, 120, 121),
        versions=Window(since=(9, 7, 0), until=(9, 10, 0)),
        graph=_block_scaled_matmul,
        depends_on="the GPUs and threads",
        reproductions={"": lambda: _block_scaled(factor=False)},
        unlike=lambda: _product(DataType.HALF),
    ),
    Fault(
        "block-scale-types-of-9-10",
        what="tensors of 4-bit floats or of exponents (FP4_E2M1, FP8_E8M0)",
        effect="this version numbers the block-scale data types otherwise: they are read as other types",
        fix="use 9.10.1 or later",
        source="https://docs.nvidia.com/deeplearning/cudnn/backend/latest/release-notes.html",
        versions=Window(since=(9, 10, 0), until=(9, 10, 1)),
        graph=lambda graph: any(tensor.data_type in (DataType.FP4_E2M1, DataType.FP8_E8M0) for tensor in graph.tensors),
        reproductions={"": lambda: _block_scaled(factor=False)},
        unlike=lambda: _product(DataType.FP8_E4M3),
    ),
    Fault(
        "norm-block-scaled",
        what="a layer or RMS norm whose result is block-scaled in the same graph",
        effect="wrong results",
        fix="use 9.10.1 or later, or quantize in a graph of its own",
        source="https://github.com/NVIDIA/TransformerEngine/pull/1700",
        sm=(100, 101, 103, 107, 110, 120, 121),
        versions=Window(since=(9, 7, 0), until=(9, 10, 0)),
        graph=_norm_block_scaled,
        reproductions={"": lambda: _norm(quantized=True)},
        unlike=lambda: _norm(quantized=False),
        cure=lambda: _norm(quantized=False),
    ),
    Fault(
        "signal",
        what="a signal",
        effect="some graphs with one are supported in some processes and refused in others",
        fix="leave the signal out, and order the kernels by a stream or an event",
        source="tests/torture/graphs.py",
        evidence="measured with 9.28.0, deviceless, in random graphs asked in two processes each",
        versions=Window(since=(9, 28, 0)),
        graph=lambda graph: any(look.of_kind(graph, DescriptorType.OPERATION_SIGNAL)),
        step="check",
        reproductions={"": lambda: _signal(wanted=True)},
        unlike=lambda: _signal(wanted=False),
        cure=lambda: _signal(wanted=False),
    ),
    Fault(
        "moe-gather-32-bits",
        what="a grouped matmul of experts that gathers its rows by INT32 indices",
        effect="the indices are read as 64 bits each: an illegal address, or the rows of other tokens",
        fix="use INT64 indices, or 9.21.0 or later",
        source="tests/gpu/graph/test_faults.py",
        evidence="measured with 9.19.0 on sm_90; kernels of 9.18.0 and 9.20.0 read 64 bits too, those of 9.21.0 do not",
        versions=Window(since=(9, 18, 0), until=(9, 21, 0)),
        graph=_gathered_by_32_bits,
        reproductions={"": lambda: _gathered(DataType.INT32)},
        unlike=lambda: _gathered(DataType.INT64),
        cure=lambda: _gathered(DataType.INT64),
    ),
    Fault(
        "moe-matmul-fp8",
        what="a grouped matmul of experts in 8-bit floats",
        effect="only the first group is computed, the others stay zero",
        fix="use 9.21.0 or later",
        source="https://github.com/flashinfer-ai/flashinfer/issues/3792",
        sm=(120,),
        versions=Window(since=(9, 18, 0), until=(9, 21, 0)),
        graph=_fp8_expert_matmul,
        reproductions={"": lambda: _experts(DataType.FP8_E4M3)},
        unlike=lambda: _experts(DataType.HALF),
    ),
)
