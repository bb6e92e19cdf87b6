"""Known issues of matrix multiplication."""

from __future__ import annotations

from ..generated.enums import DataType, DescriptorType, PointwiseMode
from ..graph.attention.known_issue import KnownIssue
from ..graph.data_types import FP8_TYPES, HALF_TYPES
from ..graph.ir import Graph, Matmul, Pointwise
from ..system.version import VersionRange
from . import graph_queries
from .crashes import get_crash_versions, make_crash_predicate
from .sources import MEASURED_ON_GPU, MEASURED_WITHOUT_GPU

__all__ = ["MATMUL"]


def _has_fused_matmul_and_tensor_with_gaps(graph: Graph) -> bool:
    """Whether a graph with one matmul and other operations has a tensor in memory with gaps."""
    fused = graph_queries.find_only_matmul(graph) is not None and len(graph.ops) > 1
    return fused and any(
        graph_queries.has_memory_gaps(tensor) for tensor in graph_queries.iterate_tensors_in_memory(graph)
    )


def _is_fp8_matmul_of_few_rows(graph: Graph) -> bool:
    """Whether a graph has an 8-bit matmul with at most 64 rows per batch."""
    op = graph_queries.find_only_matmul(graph)
    return op is not None and op.a.data_type in FP8_TYPES and op.a.rank > 2 and op.a.dims[-2] <= 64


def _is_block_scaled_matmul(graph: Graph) -> bool:
    """Whether a graph has a matmul of two dequantized block-scaled tensors."""
    op = graph_queries.find_only_matmul(graph)
    scaled = {
        item.fields["y"].uid
        for item in graph_queries.find_operations_of_kind(graph, DescriptorType.OPERATION_BLOCK_SCALE_DEQUANTIZE)
    }
    return op is not None and {op.a.uid, op.b.uid} <= scaled


def _is_half_precision_matmul(graph: Graph) -> bool:
    """Whether a graph has a matmul of 16-bit floats and writes a 16-bit result."""
    op = graph_queries.find_only_matmul(graph)
    outputs = (
        tensor
        for tensor in graph_queries.iterate_tensors_in_memory(graph)
        if any(tensor in one.outputs().values() for one in graph.ops)
    )
    return (
        op is not None
        and op.a.data_type in HALF_TYPES
        and op.b.data_type in HALF_TYPES
        and any(tensor.data_type in HALF_TYPES for tensor in outputs)
    )


def _has_block_scales_in_partial_tiles(graph: Graph) -> bool:
    """Whether a matmul's block scales are stored in tiles, but do not fill a whole number of them."""
    scales = (
        op.fields["scale"]
        for op in graph_queries.find_operations_of_kind(graph, DescriptorType.OPERATION_BLOCK_SCALE_DEQUANTIZE)
    )
    return graph_queries.find_only_matmul(graph) is not None and any(
        map(graph_queries.holds_block_scales_in_partial_tiles, scales)
    )


def _has_block_scaled_matmul_times_scalar(graph: Graph) -> bool:
    """Whether the result of a block-scaled matmul is multiplied by a one-element tensor."""
    op = graph_queries.find_only_matmul(graph)
    return (
        op is not None
        and _is_block_scaled_matmul(graph)
        and any(
            {op.c.uid} < {tensor.uid for tensor in (by.x, by.b) if tensor is not None}
            and any(tensor is not None and set(tensor.dims) == {1} for tensor in (by.x, by.b))
            for by in graph_queries.find_pointwise_of_mode(graph, PointwiseMode.MUL)
        )
    )


def _writes_bfloat16_from_float16(graph: Graph) -> bool:
    """Whether a matmul or convolution of float16 tensors writes bfloat16 to memory."""
    products = (
        op for op in graph.ops if isinstance(op, Matmul) or op.kind is DescriptorType.OPERATION_CONVOLUTION_FORWARD
    )
    return any(
        {tensor.data_type for tensor in op.inputs().values()} == {DataType.HALF}
        and any(tensor.data_type is DataType.BFLOAT16 and not tensor.virtual for tensor in op.outputs().values())
        for op in products
    )


def _is_float32_matmul_of_rank_not_3_or_4(graph: Graph) -> bool:
    """Whether a float32 matmul into memory has tensors with a rank other than 3 or 4."""
    op = graph_queries.find_only_matmul(graph)
    return (
        op is not None
        and op.c.rank not in (3, 4)
        and not op.c.virtual
        and all(tensor.data_type is DataType.FLOAT for tensor in (op.a, op.b, op.c))
        and all(tensor.uid != op.c.uid for other in graph.ops for tensor in other.inputs().values())
    )


def _is_float32_matmul(graph: Graph) -> bool:
    """Whether a graph has a matmul of float32."""
    op = graph_queries.find_only_matmul(graph)
    return op is not None and op.a.data_type is op.b.data_type is DataType.FLOAT and op.compute_type is DataType.FLOAT


def _has_only_float32_matmul_into_16_bits(graph: Graph) -> bool:
    """Whether the graph is a single matmul of float32 into 16 bits."""
    op = graph_queries.find_only_matmul(graph)
    return op is not None and len(graph.ops) == 1 and op.a.data_type is DataType.FLOAT and op.c.data_type in HALF_TYPES


def _has_gelu_of_matmul(graph: Graph) -> bool:
    """Whether a GELU follows a matmul directly."""
    op = graph_queries.find_only_matmul(graph)
    return op is not None and any(
        by.x is not None and by.x.uid == op.c.uid
        for by in graph_queries.find_pointwise_of_mode(graph, PointwiseMode.GELU_FWD)
    )


def _has_clipped_relu_of_matmul(graph: Graph) -> bool:
    """Whether a ReLU with a clip or a slope follows a matmul directly."""
    op = graph_queries.find_only_matmul(graph)
    return op is not None and any(
        by.x is not None
        and by.x.uid == op.c.uid
        and bool(by.relu_lower_clip or by.relu_lower_clip_slope or by.relu_upper_clip is not None)
        for by in graph_queries.find_pointwise_of_mode(graph, PointwiseMode.RELU_FWD)
    )


def _reads_matmul_result_and_its_copy(graph: Graph) -> bool:
    """Whether a pointwise operation reads both a matmul's result and an IDENTITY copy of it."""
    op = graph_queries.find_only_matmul(graph)
    copies = {
        by.y.uid
        for by in graph_queries.find_pointwise_of_mode(graph, PointwiseMode.IDENTITY)
        if op and by.x and by.y and by.x.uid == op.c.uid
    }
    read = ({tensor.uid for tensor in by.inputs().values()} for by in graph.ops if isinstance(by, Pointwise))
    return op is not None and any(op.c.uid in uids and copies & uids for uids in read)


def _has_matmul_of_row_and_tensor_with_gaps(graph: Graph) -> bool:
    """Whether a matmul's first operand has one row, and its second operand has gaps."""
    op = graph_queries.find_only_matmul(graph)
    return op is not None and op.a.dims[-2] == 1 and not op.b.virtual and graph_queries.has_memory_gaps(op.b)


_selects_vector_product = make_crash_predicate("vector-product-select")


def _has_binary_select_of_matvec_in_big_graph(graph: Graph) -> bool:
    """Whether BINARY_SELECT reads a matrix-vector product in a graph of more than three pointwise operations."""
    return _selects_vector_product(graph) and sum(isinstance(op, Pointwise) for op in graph.ops) > 3


MATMUL: tuple[KnownIssue, ...] = (
    KnownIssue(
        "float32-matmul-dims",
        what="a matmul of float32 tensors of 2 dims, or of 5 and more, with nothing after it",
        effect="engine 1 passes its support check and no plan of it compiles, and no other engine is proposed",
        fix="give the tensors 3 dims: a leading dim of 1, or all leading dims as one",
        source=MEASURED_WITHOUT_GPU,
        evidence=(
            "measured deviceless with all engines of 9.10.2, 9.14.0 and 9.28.0: 2 and 5 to 8 dims, any sizes and "
            "layouts; 9.10.2 refuses it on sm_120 and sm_121, as all do before sm_80, of 4 dims or of other types"
        ),
        sm=(80, 86, 87, 89, 90, 100, 103, 110, 120, 121),
        engines=(1,),
        graph=_is_float32_matmul_of_rank_not_3_or_4,
        step="build",
    ),
    KnownIssue(
        "bfloat16-product-on-turing",
        what="a matmul or convolution of float16 tensors into bfloat16",
        effect="engine configs pass their support check, and no plan of them compiles",
        fix="write float16 or float32",
        source=MEASURED_WITHOUT_GPU,
        evidence=(
            "measured deviceless: matmuls with all engines of 9.9.0, 9.10.2, 9.17.0, 9.19.0 and 9.28.0 and the JIT "
            "wheels of 9.14.0 and 9.24.0, convolutions with the JIT wheels of 9.14.0, 9.19.0 and 9.24.0; into float16 "
            "and float32 they build"
        ),
        sm=(75,),
        graph=_writes_bfloat16_from_float16,
        step="build",
    ),
    KnownIssue(
        "matmul-on-two-gpus",
        what="a matmul",
        effect="one plan that runs on several GPUs gives wrong results where cuBLASLt of CUDA 12.9 and later serves it",
        fix="use 9.10.1 or later, or a plan for each GPU",
        source="https://docs.nvidia.com/deeplearning/cudnn/backend/latest/release-notes.html",
        versions=VersionRange(until=(9, 10, 1)),
        graph=lambda graph: graph_queries.find_only_matmul(graph) is not None,
        depends_on="the GPUs that the plan runs on",
    ),
    KnownIssue(
        "matmul-with-gaps",
        what="a matmul with other operations on tensors that have gaps in memory",
        effect="wrong results by engine 11",
        fix="use 9.24.0 or later, tensors without gaps, or an engine other than 11",
        source="https://github.com/NVIDIA/cudnn-frontend/issues/442",
        versions=VersionRange(until=(9, 24, 0)),
        graph=_has_fused_matmul_and_tensor_with_gaps,
    ),
    KnownIssue(
        "fp8-matmul-of-few-rows",
        what="a batch of matmuls in 8-bit floats with at most 64 rows",
        effect="a misaligned address, seen only later, or a plan that is refused when it runs",
        fix="use 9.23.1 or later",
        source="https://github.com/flashinfer-ai/flashinfer/issues/3566",
        sm=(120, 121),
        versions=VersionRange(until=(9, 23, 1)),
        graph=_is_fp8_matmul_of_few_rows,
    ),
    KnownIssue(
        "half-matmul-split-k",
        what="a matmul in 16 bits",
        effect="plans of engine 7 that split K (the knob SPLIT_K_SLC), which the heuristics may list first, are wrong",
        fix="use 9.23.1 or later, or a config without SPLIT_K_SLC",
        source="https://github.com/flashinfer-ai/flashinfer/pull/3974",
        sm=(90,),
        engines=(7,),
        versions=VersionRange(since=(9, 23, 0), until=(9, 23, 1)),
        graph=_is_half_precision_matmul,
    ),
    KnownIssue(
        "block-scales-no-whole-tiles",
        what="a matmul of block-scaled tensors with scales (F8_128x4) that are no whole tiles of 128 x 4",
        effect="it is accepted and built, and the kernel reads past the scales and ends the CUDA context",
        fix="give the scales dims of whole tiles: blocks a multiple of 4, rows or columns one of 128",
        source="https://github.com/JuliaGPU/CUDA.jl/pull/3230",
        sm=(100, 101, 103, 107, 110, 120, 121),
        versions=VersionRange(since=(9, 7, 0), until=(9, 25, 0)),
        graph=_has_block_scales_in_partial_tiles,
    ),
    KnownIssue(
        "block-scaled-matmul-factor",
        what="a matmul of block-scaled tensors whose result is multiplied by one number",
        effect="the plan is built and the factor is not applied",
        fix="use 9.13.0 or later, or multiply in a graph of its own",
        source="https://github.com/openxla/xla/pull/32525",
        sm=(100, 101, 103, 107, 110, 120, 121),
        versions=VersionRange(since=(9, 7, 0), until=(9, 13, 0)),
        graph=_has_block_scaled_matmul_times_scalar,
    ),
    KnownIssue(
        "block-scaled-matmul-threads",
        what="a matmul of block-scaled tensors",
        effect="EXECUTION_FAILED_CUBLAS where plans run on several GPUs from threads",
        fix="use 9.10.1 or later, or one thread",
        source="https://github.com/openxla/xla/pull/34309",
        sm=(100, 101, 103, 107, 110, 120, 121),
        versions=VersionRange(since=(9, 7, 0), until=(9, 10, 0)),
        graph=_is_block_scaled_matmul,
        depends_on="the GPUs and threads",
    ),
    KnownIssue(
        "block-scale-types-of-9-10",
        what="tensors of 4-bit floats or of exponents (FP4_E2M1, FP8_E8M0)",
        effect="this version numbers the block-scale data types otherwise: they are read as other types",
        fix="use 9.10.1 or later",
        source="https://docs.nvidia.com/deeplearning/cudnn/backend/latest/release-notes.html",
        versions=VersionRange(since=(9, 10, 0), until=(9, 10, 1)),
        graph=lambda graph: any(tensor.data_type in (DataType.FP4_E2M1, DataType.FP8_E8M0) for tensor in graph.tensors),
    ),
    KnownIssue(
        "matmul-of-float32-in-tf32",
        what="a matmul of float32 by engine 0",
        effect="operands are rounded to TF32, and no numerical note of the engine says so",
        fix="take another engine, and read its notes",
        source=MEASURED_ON_GPU,
        evidence="measured with 9.19.0 on sm_90: 10 of 10 random graphs with numbers that TF32 does not hold",
        sm=(90,),
        engines=(0,),
        graph=_is_float32_matmul,
        depends_on="the engine",
    ),
    KnownIssue(
        "matmul-of-float32-into-half",
        what="a matmul alone of float32 into 16 bits by engine 0",
        effect="it writes 32 bits for each element: results are wrong, and memory after them is overwritten",
        fix="take another engine, or write float32",
        source=MEASURED_ON_GPU,
        evidence="measured with 9.19.0 on sm_90: float16 and bfloat16",
        sm=(90,),
        engines=(0,),
        graph=_has_only_float32_matmul_into_16_bits,
        depends_on="the engine",
    ),
    KnownIssue(
        "matmul-gelu-by-tanh",
        what="a GELU right after a matmul by engine 0",
        effect="it is the approximation by tanh, off by up to 5e-4",
        fix="take another engine",
        source=MEASURED_ON_GPU,
        evidence="measured with 9.19.0 on sm_90: float16, bfloat16 and float32; GELU_APPROX_TANH_FWD gives the same",
        sm=(90,),
        engines=(0,),
        graph=_has_gelu_of_matmul,
        depends_on="the engine",
    ),
    KnownIssue(
        "matmul-relu-without-slope",
        what="a ReLU with a clip, lower or upper, or a slope right after a matmul by engine 0",
        effect="it is a ReLU without them: 0 below 0, and as it is above",
        fix="take another engine",
        source=MEASURED_ON_GPU,
        evidence="measured with 9.19.0 on sm_90, each of the three",
        sm=(90,),
        engines=(0,),
        graph=_has_clipped_relu_of_matmul,
        depends_on="the engine",
    ),
    KnownIssue(
        "matmul-beside-its-copy",
        what="a matmul, and an elementwise operation that reads both its result and an IDENTITY of that",
        effect="engines 4 and 7 read something else for one of the two: results are wrong, or NaN",
        fix="leave the IDENTITY out, or use 9.28.0 or later",
        source=MEASURED_ON_GPU,
        evidence=(
            "measured with 9.19.0 on sm_90, bfloat16: MUL, ADD, MAX and SUB, alone and before a maximum with a column, "
            "16 of 16 plans; an ABS instead of the IDENTITY is right, 16 of 16, and 9.28.0, 16 of 16; the versions "
            "between were not measured"
        ),
        versions=VersionRange(until=(9, 28, 0)),
        sm=(90,),
        engines=(4, 7),
        graph=_reads_matmul_result_and_its_copy,
    ),
    KnownIssue(
        "matmul-of-one-row-with-gaps",
        what="a matmul whose first operand has one row, and whose second has gaps",
        effect="engine 8, and 2 where rows are not aligned, read the second operand as if it had none",
        fix="take another engine, or pack the second operand",
        source=MEASURED_ON_GPU,
        evidence="measured with 9.28.0 on sm_90: 14 of 15 graphs; 9.19.0 is right and has no engine 8, 9.21.0 has one",
        versions=VersionRange(since=(9, 21, 0)),
        sm=(90,),
        engines=(8, 2),
        graph=_has_matmul_of_row_and_tensor_with_gaps,
        depends_on="the engine",
    ),
    KnownIssue(
        "vector-product-select",
        what="a matrix-vector product followed by BINARY_SELECT with a full-size mask",
        effect="the process ends by a segmentation fault while engines are chosen",
        fix="use 9.28.0 or later, or move the selection to a separate graph",
        source=MEASURED_WITHOUT_GPU,
        evidence=(
            "measured deviceless with 9.21.0, 9.22.0, 9.24.0 to 9.27.0 on sm_90, 9.24.0 on sm_80 and sm_100 too: 16 "
            "and 32 bits and INT8, rows and columns, masks of all types; booleans only by the eight; 9.16.0 to 9.20.0 "
            "and 9.28.0 answer"
        ),
        versions=get_crash_versions("vector-product-select"),
        graph=_selects_vector_product,
        step="check",
    ),
    KnownIssue(
        "vector-product-select-among-many",
        what="the product of a matrix and a vector, and four or more operations after it, one BINARY_SELECT by a mask",
        effect="the process ends by a segmentation fault while engine 8 builds its plan; it comes after the others",
        fix="take another engine, or move the selection to a separate graph",
        source=MEASURED_WITHOUT_GPU,
        evidence=(
            "measured deviceless with 9.28.0 on sm_80, sm_90 and sm_100: 16 and 32 bits, masks in memory and computed, "
            "wherever that engine answers: with one operation more in some graphs, with five more in others; without "
            "BINARY_SELECT it builds"
        ),
        versions=VersionRange(since=(9, 28, 0)),
        engines=(8,),
        graph=_has_binary_select_of_matvec_in_big_graph,
        step="build",
    ),
)
