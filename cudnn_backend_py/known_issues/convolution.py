"""Known issues of convolutions and their gradients."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import reduce
from itertools import islice
from operator import or_
from typing import Any

from ..generated.enums import DataType, DescriptorType, PointwiseMode, ReduceTensorOp
from ..graph.attention.known_issue import KnownIssue
from ..graph.data_types import ELEMENT_BITS, FP8_TYPES, HALF_TYPES
from ..graph.ir import Graph, Op, Pointwise, Reduction, Tensor
from ..graph.strides import is_row_major
from ..system.version import VersionRange
from . import graph_queries
from .sources import MEASURED_ON_GPU, MEASURED_WITHOUT_GPU

__all__ = ["CONVOLUTION"]


def _has_16_bit_convolution_3d(graph: Graph) -> bool:
    """Whether a graph has a forward convolution of row-major [n, c, d, h, w] in 16 bits with more than one tap."""
    return any(
        item.forward
        and item.image.rank == 5
        and item.image.data_type in HALF_TYPES
        and is_row_major(item.image.dims, item.image.strides)
        and max(item.weights.dims[2:], default=1) > 1
        for item in graph_queries.find_convolutions(graph)
    )


def _has_float_convolution_3d(graph: Graph) -> bool:
    """Whether a graph has a forward convolution of [n, c, d, h, w] in float32."""
    return any(
        item.forward and item.image.rank == 5 and item.image.data_type is DataType.FLOAT
        for item in graph_queries.find_convolutions(graph)
    )


def _has_large_depthwise_convolution(graph: Graph) -> bool:
    """Whether a graph has a depthwise convolution of an image with 2^31 elements or more."""
    return any(
        item.depthwise and math.prod(item.image.dims) >= 1 << 31 for item in graph_queries.find_convolutions(graph)
    )


def _has_int8_convolution_with_relu(graph: Graph) -> bool:
    """Whether a graph has a forward convolution of int8, channels last, an addition and a ReLU."""
    convolved = any(
        item.forward and item.image.data_type is DataType.INT8 and item.image.strides[1] == 1
        for item in graph_queries.find_convolutions(graph)
    )
    added = any(graph_queries.find_pointwise_of_mode(graph, PointwiseMode.ADD))
    return convolved and added and any(graph_queries.find_pointwise_of_mode(graph, PointwiseMode.RELU_FWD))


_SCALE_AND_BIAS = [PointwiseMode.MUL, PointwiseMode.ADD]


def _iterate_pointwise_modes_before_wgrads(graph: Graph) -> Iterator[list[PointwiseMode]]:
    """Yield for each weight gradient the modes of the first two pointwise operations that compute its input image."""
    first: dict[int, list[PointwiseMode]] = {}
    for op in graph.ops:  # in an order in which nothing is read before it is written
        if isinstance(op, Pointwise) and op.y is not None:
            before = [] if op.x is None else first.get(op.x.uid, [])
            first[op.y.uid] = [*before, op.mode][:2]
    for op in graph_queries.find_operations_of_kind(graph, DescriptorType.OPERATION_CONVOLUTION_BACKWARD_FILTER):
        yield first.get(op.fields["x"].uid, [])


def _has_wgrad_input_not_starting_with_scale_and_bias(graph: Graph) -> bool:
    """Whether a weight gradient's input image is computed by operations that do not begin with scale and bias."""
    return any(modes and modes != _SCALE_AND_BIAS for modes in _iterate_pointwise_modes_before_wgrads(graph))


def _has_weight_gradient_after_scale_and_bias(graph: Graph) -> bool:
    """Whether a weight gradient's input image is computed by a scale and a bias first."""
    return any(modes == _SCALE_AND_BIAS for modes in _iterate_pointwise_modes_before_wgrads(graph))


def _writes_fp8_result_of_fused_pointwise(graph: Graph) -> bool:
    """Whether pointwise operations in a graph with a matmul or convolution write an 8-bit float result."""
    product = any(graph_queries.find_matmuls(graph)) or any(graph_queries.find_convolutions(graph))
    return product and any(
        isinstance(op, Pointwise) and tensor.data_type in FP8_TYPES and not tensor.virtual
        for op in graph.ops
        for tensor in op.outputs().values()
    )


def _has_int8_convolution_into_int32(graph: Graph) -> bool:
    """Whether a forward convolution of INT8 writes an INT32 result to memory."""
    return any(
        item.image.data_type is DataType.INT8
        and item.forward
        and item.op.fields["y"].data_type is DataType.INT32
        and not item.op.fields["y"].virtual
        for item in graph_queries.find_convolutions(graph)
    )


_FILTER = DescriptorType.OPERATION_CONVOLUTION_BACKWARD_FILTER
_LATER = "the versions between were not measured"


def _compute_pointwise_ancestor_bitmasks(elementwise: Sequence[Pointwise]) -> dict[int, int]:
    """Return for each tensor's uid a bit mask of the pointwise operations that compute it, directly or not."""
    makers: dict[int, int] = {}
    for number, op in enumerate(elementwise):  # in an order in which nothing is read before it is written
        bits = 1 << number
        for tensor in op.inputs().values():
            bits |= makers.get(tensor.uid, 0)
        makers.update({tensor.uid: bits for tensor in op.outputs().values()})
    return makers


def _get_convolution_parameters(item: graph_queries.Convolution) -> dict[str, Any]:
    return dict(item.op.parameters()["convolution"].fields)


def _get_output_or_its_gradient(item: graph_queries.Convolution) -> Tensor:
    found: Tensor = item.op.fields.get("y") or item.op.fields["dy"]
    return found


def _has_operand_broadcast_along_some_row_dims(graph: Graph) -> bool:
    """Whether an operand after a convolution varies along only some of the dims that form the result's rows.

    Rows are batch and spatial dims; for the gradient of a filter, channels and taps are the columns. Operations on
    tensors other than the result are fused like those after it.
    """
    elementwise = [op for op in graph.ops if isinstance(op, Pointwise)]
    makers: dict[int, int] | None = None
    partly: dict[tuple[int, tuple[int, ...]], int] = {}  # a bit for each operation with such an operand
    for item in graph_queries.find_convolutions(graph):
        result = next(iter(item.op.outputs().values()))
        together = range(1, result.rank) if item.op.kind is _FILTER else (0, *range(2, result.rank))
        rank, wide = result.rank, tuple(axis for axis in together if result.dims[axis] > 1)
        if (rank, wide) not in partly:
            found = [
                any(_varies_along_some_axes_only(one, rank, wide) for one in op.inputs().values()) for op in elementwise
            ]
            partly[rank, wide] = sum(1 << number for number, yes in enumerate(found) if yes)
        if not partly[rank, wide]:
            continue
        makers = _compute_pointwise_ancestor_bitmasks(elementwise) if makers is None else makers
        before = reduce(or_, (makers.get(tensor.uid, 0) for tensor in item.op.inputs().values()))
        if partly[rank, wide] & ~before:
            return True
    return False


def _varies_along_some_axes_only(operand: Tensor, rank: int, wide: tuple[int, ...]) -> bool:
    """Return whether a tensor has more than one element along some, but not all, of these axes."""
    return operand.rank == rank and len({operand.dims[axis] > 1 for axis in wide}) == 2


def _has_per_row_operand_after_strided_dgrad(graph: Graph) -> bool:
    """Whether a strided data gradient is followed by an operand that varies along rows but not channels."""
    ranks = {
        operand.rank
        for op in graph.ops
        if isinstance(op, Pointwise)
        for operand in op.inputs().values()
        if operand.rank > 1 and operand.dims[1] == 1 < math.prod(operand.dims)
    }
    return any(
        item.image.rank in ranks
        for item in graph_queries.find_convolutions(graph)
        if item.op.kind is DescriptorType.OPERATION_CONVOLUTION_BACKWARD_DATA
        and max(_get_convolution_parameters(item)["filter_strides"]) > 1
    )


def _has_conv_gradient_with_unequal_padding(graph: Graph) -> bool:
    """Whether a gradient of a convolution has unequal padding before and after."""
    return any(
        not item.forward
        and tuple(_get_convolution_parameters(item)["pre_paddings"])
        != tuple(_get_convolution_parameters(item)["post_paddings"])
        for item in graph_queries.find_convolutions(graph)
    )


def _has_row_major_tensor_of_unaligned_size(graph: Graph) -> bool:
    """Whether the first of a convolution's two row-major tensors has a size that is not a multiple of 128 bytes.

    The engines lay both out again, channels last, one right after the other in the workspace: the second of them, the
    filter or, of the filter's gradient, the image, begins where the first ends, and is read from the 128 bytes before.
    """
    for item in graph_queries.find_convolutions(graph):
        first = item.image if item.forward else _get_output_or_its_gradient(item)
        second = item.image if item.op.kind is _FILTER else item.weights
        size = math.prod(first.dims) * ELEMENT_BITS[first.data_type] // 8
        moved = all(
            graph_queries.is_row_major_but_not_channels_last(one) and one.dims[1] > 1 < math.prod(one.dims[2:])
            for one in (first, second)
        )
        if moved and size % 128:
            return True
    return False


def _has_row_major_forward_convolution(graph: Graph) -> bool:
    """Whether a graph has a forward convolution of row-major images."""
    return any(
        item.forward and graph_queries.is_row_major_but_not_channels_last(item.image)
        for item in graph_queries.find_convolutions(graph)
    )


def _has_only_forward_conv_into_float16(graph: Graph) -> bool:
    """Whether the graph is a single forward convolution into float16."""
    return len(graph.ops) == 1 and any(
        item.forward and item.op.fields["y"].data_type is DataType.HALF
        for item in graph_queries.find_convolutions(graph)
    )


def _has_convolution_of_virtual_row_major_image(graph: Graph) -> bool:
    """Whether a convolution's row-major image is computed by operations in the graph."""
    return any(
        item.image.virtual and graph_queries.is_row_major_but_not_channels_last(item.image)
        for item in graph_queries.find_convolutions(graph)
    )


def _has_filter_gradient_fused_on_both_sides(graph: Graph) -> bool:
    """Whether a filter gradient has fused operations both before and after it."""
    return any(
        op.fields["x"].virtual and op.fields["dw"].virtual
        for op in graph_queries.find_operations_of_kind(graph, _FILTER)
    )


def _has_unstrided_filter_gradient_of_size_3(graph: Graph) -> bool:
    """Whether a filter gradient has three taps along each dim and stride 1."""
    return any(
        item.op.kind is _FILTER
        and set(item.weights.dims[2:]) == {3}
        and set(_get_convolution_parameters(item)["filter_strides"]) == {1}
        for item in graph_queries.find_convolutions(graph)
    )


def _has_fused_convolution_of_2_byte_alignment(graph: Graph) -> bool:
    """Whether a convolution or gradient with other operations reads a tensor aligned to less than 4 bytes."""
    return len(graph.ops) > 1 and any(
        tensor.alignment < 4 and not tensor.virtual
        for item in graph_queries.find_convolutions(graph)
        for tensor in item.op.inputs().values()
    )


def _has_only_filter_gradient_in_bfloat16(graph: Graph) -> bool:
    """Whether the graph is a single filter gradient in bfloat16."""
    return len(graph.ops) == 1 and any(
        op.fields["dw"].data_type is DataType.BFLOAT16 for op in graph_queries.find_operations_of_kind(graph, _FILTER)
    )


_NORMED = [PointwiseMode.MUL, PointwiseMode.ADD, PointwiseMode.RELU_FWD]


def _iterate_producer_modes(writers: Mapping[int, Op], tensor: Tensor) -> Iterator[PointwiseMode]:
    """Yield the modes of the pointwise operations that compute a tensor, the last operation first."""
    op = writers.get(tensor.uid)
    while isinstance(op, Pointwise):
        yield op.mode
        op = None if op.x is None else writers.get(op.x.uid)


def _has_scale_bias_relu_conv_before_reduction(graph: Graph) -> bool:
    """Whether a scaled, biased float16 image is convolved after ReLU, and a pointwise operation and a reduction follow.

    A sum for each image does not count.
    """
    sums = [
        op
        for op in graph.ops
        if isinstance(op, Reduction)
        and op.operator is not ReduceTensorOp.MUL
        and not op.y.dims[0] > max(op.y.dims[1:]) == 1
    ]
    writers = {item.uid: op for op in graph.ops for item in op.outputs().values()} if sums else {}
    if not any(isinstance(writers.get(op.x.uid), Pointwise) for op in sums):
        return False
    return any(
        item.forward
        and item.image.data_type is DataType.HALF
        and list(islice(_iterate_producer_modes(writers, item.image), len(_NORMED) + 1)) == _NORMED[::-1]
        for item in graph_queries.find_convolutions(graph)
    )


CONVOLUTION: tuple[KnownIssue, ...] = (
    KnownIssue(
        "convolution-3d-half",
        what="a forward convolution over three dims in 16 bits, row-major, with more than one tap",
        effect="wrong results",
        fix="use 9.15.0 or later, or lay the tensors out channels last",
        source="https://github.com/pytorch/pytorch/pull/166480",
        versions=VersionRange(since=(9, 8, 0), until=(9, 15, 0)),
        graph=_has_16_bit_convolution_3d,
    ),
    KnownIssue(
        "convolution-3d-tf32",
        what="a forward convolution over three dims of float32 tensors",
        effect="wrong results by engines that compute in TF32; reported of 9.10.2 to 9.15",
        fix="use 9.16.0 or later, or an engine without tensor cores (true float32)",
        source="https://github.com/pytorch/pytorch/pull/167024",
        versions=VersionRange(since=(9, 10, 2), until=(9, 16, 0)),
        graph=_has_float_convolution_3d,
    ),
    KnownIssue(
        "convolution-depthwise-large",
        what="a depthwise convolution of a tensor of 2^31 elements and more",
        effect="wrong results",
        fix="use 9.15.0 or later, split the batch, or use 9.10.2",
        source="https://github.com/pytorch/pytorch/pull/168364",
        versions=VersionRange(since=(9, 11, 0), until=(9, 15, 0)),
        graph=_has_large_depthwise_convolution,
    ),
    KnownIssue(
        "depthwise-sequence-of-shapes",
        what="a depthwise convolution",
        effect="wrong results where depthwise convolutions of other spatial dims ran before it in the same process",
        fix="use 9.24.0 or later",
        source="https://github.com/NVIDIA/cudnn-frontend/issues/442",
        versions=VersionRange(until=(9, 24, 0)),
        graph=lambda graph: any(item.depthwise for item in graph_queries.find_convolutions(graph)),
        depends_on="what ran before in the process",
    ),
    KnownIssue(
        "depthwise-not-repeatable",
        what="a depthwise forward convolution",
        effect="engine 5 gives other results from run to run",
        fix="use 9.24.0 or later, or an engine other than 5",
        source="https://github.com/pytorch/pytorch/pull/188318",
        sm=(86,),
        versions=VersionRange(since=(9, 23, 1), until=(9, 24, 0)),
        graph=lambda graph: any(item.depthwise and item.forward for item in graph_queries.find_convolutions(graph)),
    ),
    KnownIssue(
        "convolution-large-filter",
        what="a forward convolution whose filter has more than 2^31 - 1 elements",
        effect="offsets overflow 32 bits: an illegal address, or NaN without any error",
        fix="use 9.24.0 or later, or split the filter",
        source="https://github.com/NVIDIA/cudnn-frontend/issues/442",
        versions=VersionRange(until=(9, 24, 0)),
        graph=lambda graph: any(
            item.forward and math.prod(item.weights.dims) >= 1 << 31 for item in graph_queries.find_convolutions(graph)
        ),
    ),
    KnownIssue(
        "convolution-int8-relu",
        what="a forward convolution of int8 tensors, channels last, with scale, bias and ReLU in one graph",
        effect="the process ends by a segmentation fault when the plan runs",
        fix="leave the ReLU to a graph of its own, or lay the tensors out as NCHW",
        source="https://github.com/NVIDIA/cudnn-frontend/issues/422",
        graph=_has_int8_convolution_with_relu,
    ),
    KnownIssue(
        "weight-gradient-prologue",
        what="a weight gradient of pointwise operations on an image other than a scale, a bias and what follows them",
        effect="the process ends by a segmentation fault while engines are chosen",
        fix="leave the operations to a graph of their own",
        source=MEASURED_WITHOUT_GPU,
        evidence=(
            "measured with 9.19.0 and 9.28.0 on sm_100 and sm_103, deviceless, with all engines: a ReLU, a bias, both; "
            "with 9.28.0 a scale, and a scale and a ReLU, too"
        ),
        sm=(100, 103),
        versions=VersionRange(since=(9, 19, 0)),
        graph=_has_wgrad_input_not_starting_with_scale_and_bias,
        step="check",
    ),
    KnownIssue(
        "weight-gradient-normed",
        what="a weight gradient of an image, a scale, a bias and what follows them",
        effect="the process ends by a segmentation fault while engines are chosen",
        fix="use 9.28.0 or later, or leave the operations to a graph of their own",
        source=MEASURED_ON_GPU,
        evidence=(
            "measured with 9.19.0 on sm_100, deviceless, with all engines; 9.28.0 answers; the versions between were "
            "not asked"
        ),
        sm=(100, 103),
        versions=VersionRange(since=(9, 19, 0), until=(9, 28, 0)),
        graph=_has_weight_gradient_after_scale_and_bias,
        step="check",
    ),
    KnownIssue(
        "fp8-not-held",
        what="a result of 8-bit floats after a convolution by engine 8",
        effect="numbers beyond the largest become NaN, and infinity in FP8_E5M2, and are not held at the largest",
        fix="take another engine, or write 16 bits",
        source=MEASURED_ON_GPU,
        evidence="measured with 9.28.0 on sm_90; engines 2, 4 and 7 hold them",
        versions=VersionRange(since=(9, 21, 0)),
        sm=(90,),
        engines=(8,),
        graph=_writes_fp8_result_of_fused_pointwise,
        depends_on="the engine, and numbers beyond the largest",
    ),
    KnownIssue(
        "convolution-int8-into-int32",
        what="a forward convolution of INT8 into INT32",
        effect="engines 28, which is proposed first, and 0 multiply by the bits of the float32 alpha, 0x3f800000",
        fix="write FLOAT or INT8, or take engine 71",
        source=MEASURED_ON_GPU,
        evidence="measured with 9.19.0 on sm_90; a factor given as INT32 is kept as the float of the same bits",
        sm=(90,),
        engines=(0, 28),
        graph=_has_int8_convolution_into_int32,
    ),
    KnownIssue(
        "convolution-operand-part-of-rows",
        what=(
            "a convolution or a gradient of one, and an elementwise operation after it, or on other tensors, with an "
            "operand that has some of the batch and spatial dims and not all of them; of a filter's gradient, some of "
            "channels and taps"
        ),
        effect="engines 4 and 7 read other elements of it: results are wrong, or a misaligned address",
        fix="repeat the operand along the dims it lacks, or leave the operation to a graph of its own",
        source=MEASURED_ON_GPU,
        evidence=(
            "measured with 9.19.0 and 9.28.0 on sm_90, float16 and float32: operands of a batch, an image, a channel "
            "of a filter, all of them wrong, 46 of 46 random graphs too, one of them on another tensor; of nothing, of "
            "channels, of rows and whole, right"
        ),
        sm=(90,),
        engines=(4, 7),
        graph=_has_operand_broadcast_along_some_row_dims,
    ),
    KnownIssue(
        "strided-gradient-operand-of-rows",
        what=(
            "the data gradient of a convolution with a stride, and an elementwise operation after it with an operand "
            "that has batch and spatial dims, and no channels"
        ),
        effect="engine 1 reads other elements of it",
        fix="repeat the operand for each channel, or take another engine",
        source=MEASURED_ON_GPU,
        evidence=f"measured with 9.28.0 on sm_90: 2 of 2 random graphs; {_LATER}",
        sm=(90,),
        engines=(1,),
        depends_on="the engine",
        graph=_has_per_row_operand_after_strided_dgrad,
    ),
    KnownIssue(
        "gradient-padded-unevenly",
        what="a gradient of a convolution with other padding before than after",
        effect="engines 1, 18 and 20 of a filter's gradient and 50 of the data's are wrong, often in every element",
        fix="take another engine, or pad the image first",
        source=MEASURED_ON_GPU,
        evidence="measured with 9.19.0 on sm_90, float16 and float32, one and two dims, both layouts",
        sm=(90,),
        engines=(1, 18, 20, 50),
        depends_on="the engine",
        graph=_has_conv_gradient_with_unequal_padding,
    ),
    KnownIssue(
        "packed-images-unaligned",
        what=(
            "a convolution or a gradient of one, of row-major tensors (NCHW), whose image, or of gradients whose "
            "response, has no multiple of 128 bytes"
        ),
        effect=(
            "engine 4 of 9.28 and engines 70 and 78 of 9.19 lay tensors out again in the workspace, one right after "
            "the other, and read the second from an address that is a multiple of 128: wrong in every element"
        ),
        fix="lay the tensors out as channels last, or choose sizes of a multiple of 128 bytes, or take another engine",
        source=MEASURED_ON_GPU,
        evidence=(
            "measured on sm_90: of 129 convolutions, by size, type and channels, the 24 whose first tensor has another "
            "number of bytes, and no other; a filter of one tap, which is the same both ways, is right"
        ),
        sm=(90,),
        engines=(4, 70, 78),
        depends_on="the engine",
        graph=_has_row_major_tensor_of_unaligned_size,
    ),
    KnownIssue(
        "fused-convolution-alignment",
        what="a convolution with other operations, forward or backward, of a tensor aligned to 2 bytes",
        effect="engines 1 and 7 pass the support check, and no plan of them compiles",
        fix="align it to 4 bytes",
        source=MEASURED_WITHOUT_GPU,
        evidence=(
            "measured deviceless with 9.14.0, 9.19.0, 9.24.0 and 9.28.0: float16 and bfloat16, image or filter, each "
            "direction, on sm_80, sm_86, sm_87, sm_89, sm_120 and sm_121; aligned to 4 bytes, and on sm_75, sm_90, "
            "sm_100 and sm_103 aligned to 2, they build"
        ),
        sm=(80, 86, 87, 89, 120, 121),
        engines=(1, 7),
        graph=_has_fused_convolution_of_2_byte_alignment,
        step="build",
    ),
    KnownIssue(
        "packed-images-engine-7",
        what="a forward convolution of row-major images (NCHW)",
        effect="engine 7 is wrong in every element",
        fix="lay the images out as channels last, or take another engine",
        source=MEASURED_ON_GPU,
        evidence=(
            "measured on sm_90 with 9.28.0, where it is proposed for 8, 16 and 32 bits, and with 9.19.0, where it is "
            "for 8 bits: of its kernel configurations (KERNEL_CFG) 26, 27, 29 and 30 are wrong, 21 and 22 right"
        ),
        sm=(90,),
        engines=(7,),
        depends_on="the engine",
        graph=_has_row_major_forward_convolution,
    ),
    KnownIssue(
        "packed-images-behind",
        what="a convolution of row-major images (NCHW) that elementwise operations make in the same graph",
        effect="engine 4 is wrong in every element, or does not end",
        fix="lay the images out as channels last, or leave the operations to a graph of their own",
        source=MEASURED_ON_GPU,
        evidence=f"measured with 9.28.0 on sm_90; no plan of 9.19.0 compiles; {_LATER}",
        sm=(90,),
        engines=(4,),
        depends_on="the engine",
        graph=_has_convolution_of_virtual_row_major_image,
    ),
    KnownIssue(
        "convolution-minus-infinity",
        what="a forward convolution alone, into float16",
        effect="engine 47 writes 0 for every result of -inf, as of those below -65504; infinity is written as it is",
        fix="take another engine, or write a type that holds the results",
        source=MEASURED_ON_GPU,
        evidence="measured with 9.19.0 on sm_90, over two and three dims, both layouts; no gradient has it",
        sm=(90,),
        engines=(47,),
        depends_on="results of -inf",
        graph=_has_only_forward_conv_into_float16,
    ),
    KnownIssue(
        "filter-gradient-between",
        what="the gradient of a filter with elementwise operations before and after it",
        effect="engine 1, the only one, writes NaN",
        fix="leave the operations after it to a graph of their own",
        source=MEASURED_ON_GPU,
        evidence="measured with 9.19.0 and 9.28.0 on sm_90, over two and three dims; without those before it is right",
        sm=(90,),
        graph=_has_filter_gradient_fused_on_both_sides,
    ),
    KnownIssue(
        "filter-gradient-transformed",
        what="the gradient of a filter of three taps along each dim",
        effect="engine 17 transforms its operands, off by 2^-17 of the result, and has no numerical note that says so",
        fix="take another engine where whole numbers have to stay whole",
        source=MEASURED_ON_GPU,
        evidence="measured with 9.19.0 on sm_90, float16 and float32; of those with notes none is further off",
        sm=(90,),
        engines=(17,),
        depends_on="the engine",
        graph=_has_unstrided_filter_gradient_of_size_3,
    ),
    KnownIssue(
        "filter-gradient-split",
        what="the gradient of a filter alone, in bfloat16",
        effect=(
            "where a config of engine 47 splits the sums (SPLIT_K above 1), those of the first part are rounded to the "
            "type of the result before the others are added, and no numerical note says so"
        ),
        fix="take a config with SPLIT_K of 1 or another engine, or write float32",
        source=MEASURED_ON_GPU,
        evidence=(
            "measured with 9.19.0 on sm_90: 13 of 13 plans with SPLIT_K of 2 to 4, each element of one as if the first "
            "64 of 96 terms were rounded; 3 with SPLIT_K of 1 are right, and float32; float16 has the numerical note "
            "REDUCED_PRECISION_REDUCTION, and is within it"
        ),
        sm=(90,),
        engines=(47,),
        depends_on="the engine's SPLIT_K",
        graph=_has_only_filter_gradient_in_bfloat16,
    ),
    KnownIssue(
        "normed-convolution-reduced",
        what=(
            "a forward convolution of float16 of an image with a scale, a bias and a ReLU before it, elementwise "
            "operations on its result, and their sum, least or largest"
        ),
        effect="the process ends by a segmentation fault while engines are chosen",
        fix="leave the scale, the bias and the ReLU, or the reduction, to a graph of its own",
        source=MEASURED_WITHOUT_GPU,
        evidence=(
            "measured deviceless with 9.14.0 to 9.28.0 on sm_80, sm_86 and sm_89; float32 and bfloat16, other "
            "operations before it, none after it, and a product instead of a sum are answered"
        ),
        sm=(80, 86, 89),
        graph=_has_scale_bias_relu_conv_before_reduction,
        step="check",
    ),
)
