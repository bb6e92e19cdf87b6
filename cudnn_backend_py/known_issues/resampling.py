"""Known issues of pooling and bilinear resampling."""

from __future__ import annotations

from collections.abc import Iterator

from ..generated.enums import DataType, DescriptorType, ResampleMode
from ..graph.attention.known_issue import KnownIssue
from ..graph.data_types import HALF_TYPES
from ..graph.ir import Graph, Operation
from ..graph.strides import channels_last
from . import graph_queries
from .crashes import get_crash_versions, make_crash_predicate
from .sources import MEASURED_ON_GPU, MEASURED_WITHOUT_GPU

__all__ = ["RESAMPLING"]


def _has_16_bit_bilinear_resampling(graph: Graph) -> bool:
    """Whether a graph has bilinear resampling in 16 bits."""
    resampled = graph_queries.find_operations_of_kind(graph, DescriptorType.OPERATION_RESAMPLE_FWD)
    return any(
        op.fields["x"].data_type in HALF_TYPES and op.fields["resample"].fields["mode"] is ResampleMode.BILINEAR
        for op in resampled
    )


_NO_PLAN = "measured with 9.19.0 on sm_90, deviceless with 9.16.0 to 9.22.0 and 9.24.0 to 9.28.0"


def _has_only_bfloat16_pool(graph: Graph) -> bool:
    """Whether the graph is a single pooling of bfloat16 over two dims, channels last."""
    pools = list(graph_queries.find_operations_of_kind(graph, DescriptorType.OPERATION_RESAMPLE_FWD))
    return len(pools) == len(graph.ops) == 1 and any(
        x.data_type is DataType.BFLOAT16 and x.rank == 4 and x.strides == channels_last(x.dims)
        for x in (pools[0].fields["x"],)
    )


def _has_pool_of_computed_image(graph: Graph) -> bool:
    """Whether a pooling reads the result of another operation in the graph."""
    written = {tensor.uid for op in graph.ops for tensor in op.outputs().values()}
    return any(
        op.fields["x"].uid in written
        for op in graph_queries.find_operations_of_kind(graph, DescriptorType.OPERATION_RESAMPLE_FWD)
    )


def _has_gradient_of_pooling_over_one_dim(graph: Graph) -> bool:
    """Whether a graph has the gradient of a pooling over one dim."""
    return any(
        op.fields["dy"].rank == 3
        for op in graph_queries.find_operations_of_kind(graph, DescriptorType.OPERATION_RESAMPLE_BWD)
    )


def _find_pools(graph: Graph, mode: ResampleMode | None = None) -> Iterator[Operation]:
    """Yield the forward resampling operations of a mode; without a mode, all but BILINEAR."""
    for op in graph_queries.find_operations_of_kind(graph, DescriptorType.OPERATION_RESAMPLE_FWD):
        found = op.fields["resample"].fields["mode"]
        if found is mode or (mode is None and found is not ResampleMode.BILINEAR):
            yield op


def _has_average_pool_windows_past_image_end(graph: Graph) -> bool:
    """Whether an average pooling that counts its padding has windows past the end of a row-major image.

    The kernels end each window at the size of the image plus the padding before it, whatever the padding after it,
    and divide by the number of elements that remain.
    """
    for op in graph_queries.find_operations_of_kind(
        graph, DescriptorType.OPERATION_RESAMPLE_FWD, DescriptorType.OPERATION_RESAMPLE_BWD
    ):
        image, response = (op.fields.get("x") or op.fields["dx"], op.fields.get("y") or op.fields["dy"])
        facts = op.fields["resample"].fields
        if facts["mode"] is ResampleMode.AVGPOOL_INCLUDE_PADDING and graph_queries.is_row_major_but_not_channels_last(
            image
        ):
            sides = zip(facts["window_dims"], facts["strides"], facts["pre_paddings"], strict=True)
            for size, windows, (window, stride, before) in zip(image.dims[2:], response.dims[2:], sides, strict=True):
                if (windows - 1) * stride + window - before > size + before:
                    return True
    return False


RESAMPLING: tuple[KnownIssue, ...] = (
    KnownIssue(
        "bilinear-16-bits",
        what="BILINEAR resampling of 16-bit tensors",
        effect="engines pass their support check and no plan of theirs compiles",
        fix="use float32",
        source=MEASURED_WITHOUT_GPU,
        evidence=_NO_PLAN,
        graph=_has_16_bit_bilinear_resampling,
        step="build",
    ),
    KnownIssue(
        "pooling-of-bfloat16",
        what="a pooling of bfloat16 alone, over two dims, channels last",
        effect="engine 3 of 9.19 and 2 of 9.28 write 32 bits for each element: wrong, and beyond the end of the result",
        fix="take another engine, or use float16 or float32",
        source=MEASURED_ON_GPU,
        evidence="measured with 9.19.0 and 9.28.0 on sm_90: all of 41 graphs; the other engine of each is right",
        sm=(90,),
        engines=(2, 3),
        graph=_has_only_bfloat16_pool,
        depends_on="the engine",
    ),
    KnownIssue(
        "pooling-behind-elementwise",
        what="a pooling of what elementwise operations make in the same graph",
        effect="the result is NaN, or not written",
        fix="pool in a graph of its own",
        source=MEASURED_ON_GPU,
        evidence="measured with 9.19.0 and 9.28.0 on sm_90: all of 73 random graphs",
        graph=_has_pool_of_computed_image,
    ),
    KnownIssue(
        "pooling-gradient-over-one-dim",
        what="the gradient of a pooling over one dim",
        effect="a misaligned address where channels are last; a plan of row-major images is refused when it runs",
        fix="describe the tensors with an additional dim of 1",
        source=MEASURED_ON_GPU,
        evidence="measured with 9.19.0 and 9.28.0 on sm_90, all modes: 24 of 24",
        graph=_has_gradient_of_pooling_over_one_dim,
    ),
    KnownIssue(
        "pooling-over-one-dim",
        what="a pooling over one dim",
        effect="NaN, or not written, where channels are last; a plan of row-major images is refused when it runs",
        fix="describe the tensors with an additional dim of 1",
        source=MEASURED_ON_GPU,
        evidence="measured with 9.19.0 and 9.28.0 on sm_90: float16, bfloat16, float32 and INT8, all modes, 21 of 21",
        sm=(90,),
        graph=lambda graph: any(op.fields["x"].rank == 3 for op in _find_pools(graph)),
    ),
    KnownIssue(
        "bilinear-three-dims",
        what="BILINEAR resampling over three dims",
        effect="most elements are NaN or not written",
        fix="resample two dims and the third in graphs of their own",
        source=MEASURED_ON_GPU,
        evidence="measured with 9.19.0 and 9.28.0 on sm_90, float32: 8 of 8; a dim of 1 does not help",
        sm=(90,),
        graph=lambda graph: any(op.fields["x"].rank == 5 for op in _find_pools(graph, ResampleMode.BILINEAR)),
    ),
    KnownIssue(
        "bilinear-one-dim",
        what="BILINEAR resampling over one dim",
        effect="the process ends by a division by zero while engines are chosen",
        fix="describe the tensors with an additional dim of 1",
        source=MEASURED_WITHOUT_GPU,
        evidence="measured deviceless with 9.16.0 to 9.28.0 on sm_90",
        graph=make_crash_predicate("bilinear-one-dim"),
        step="check",
    ),
    KnownIssue(
        "max-pool-gradient-of-both",
        what="the gradient of max pooling, channels last, computed from image and result instead of an index",
        effect="the process ends by a segmentation fault while engines are chosen",
        fix="give it the index tensor that the forward pass writes, or use 9.20.0 or later, which refuses the graph",
        source=MEASURED_WITHOUT_GPU,
        evidence="measured deviceless with 9.16.0 and 9.19.0 on sm_90; 9.20.0 and later refuse it",
        versions=get_crash_versions("max-pool-gradient-of-both"),
        graph=make_crash_predicate("max-pool-gradient-of-both"),
        step="check",
    ),
    KnownIssue(
        "max-pool-gradient-one-dim",
        what="the gradient of max pooling over one dim, channels last",
        effect=(
            "the process ends by a division by zero while a plan is built, where what is after the one stride in "
            "memory is 0; elsewhere the kernel is written for a stride of that"
        ),
        fix="describe the tensors with an additional dim of 1",
        source=MEASURED_WITHOUT_GPU,
        evidence=(
            "measured deviceless with 9.14.0, 9.16.0, 9.19.0, 9.21.0, 9.24.0, 9.26.0 and 9.28.0 on sm_90, 9.19.0 and "
            "9.28.0 on sm_80 and sm_100 too: float16, bfloat16, float32 and INT8; averages and row-major images are "
            "built"
        ),
        graph=make_crash_predicate("max-pool-gradient-one-dim"),
        step="build",
    ),
    KnownIssue(
        "average-pool-padded-behind",
        what=(
            "AVGPOOL_INCLUDE_PADDING of row-major images (NCHW), or its gradient, with windows that reach further into "
            "the padding after than there is before"
        ),
        effect="such windows are divided by fewer elements than they have: 1.5 or 2.25 times the expected values",
        fix="lay the images out as channels last, or pad them evenly",
        source=MEASURED_ON_GPU,
        evidence=(
            "measured with 9.19.0 on sm_90: forward 6 of 6, 16 and 32 bits, padded more before 6 of 6 right; gradients "
            "2 of 2, bfloat16 over three dims and float16 over two, each element as if windows ended at the size and "
            "the padding before it; 2 forward whose padding after no window reaches are right"
        ),
        sm=(90,),
        engines=(1,),
        graph=_has_average_pool_windows_past_image_end,
    ),
)
