"""Known issues of forward attention, and of attention in both directions."""

from __future__ import annotations

import math

from ..generated.enums import DataType, DescriptorType, PointwiseMode, RngDistribution
from ..graph.attention.known_issue import AttentionUse, KnownIssue
from ..graph.attention.known_issues import FRONTEND_NODE
from ..graph.data_types import FP8_TYPES
from ..graph.ir import Graph, Tensor
from ..system.version import VersionRange
from . import graph_queries
from .graph_queries import has_unpacked_stats, is_decoding, is_half_precision_attention
from .sources import BLACKWELL, FRONTEND_SURFACE, MEASURED_ON_GPU, MEASURED_WITHOUT_GPU, ON_SM90

__all__ = ["ATTENTION_FORWARD"]


_DYNAMIC_SHAPES = "tests/gpu/known_issues/test_dynamic_shapes.py"


def _has_long_window_without_causal_mask(use: AttentionUse) -> bool:
    """Whether attention has a left bound and more than 1024 keys, but no causal right bound."""
    p = use.problem
    return p.left_bound is not None and p.right_bound != 0 and p.seq_kv > 1024


def _has_long_kv_without_top_left_causal_mask(use: AttentionUse) -> bool:
    """Whether attention has more than 1024 keys, but not a plain causal mask aligned at the top left."""
    p = use.problem
    causal = p.right_bound == 0 and p.left_bound is None and p.alignment == "top_left" and not p.padding
    return p.seq_kv > 1024 and not causal and is_half_precision_attention(use)


def _has_very_long_kv_with_causal_mask(use: AttentionUse) -> bool:
    """Whether fewer than 131072 queries attend, with a bottom-right causal mask, to 131072 keys or more."""
    p = use.problem
    causal = p.right_bound == 0 and p.alignment == "bottom_right"
    return (
        not use.backward
        and causal
        and p.seq_kv >= 131072 > p.seq_q
        and p.head_dim == 128
        and is_half_precision_attention(use)
    )


_SIXTEEN_BITS = 1 << 16  # what a dim of a kernel grid, y or z, is below


def _is_grouped_decoding_with_ragged_stats(use: AttentionUse) -> bool:
    """Whether a forward pass has one query per sequence, grouped heads and ragged statistics."""
    p = use.problem
    return is_decoding(use) and p.stats and p.ragged_stats and p.heads > p.kv_heads


def _find_written_stats(graph: Graph) -> list[Tensor]:
    """Return the log-sum-exp tensors that a forward pass writes to memory."""
    found = [
        tensor
        for op in graph_queries.find_operations_of_kind(
            graph, DescriptorType.OPERATION_SDPA_FWD, DescriptorType.OPERATION_SOFTMAX
        )
        for port, tensor in op.ports()
        if port.rpartition(".")[2] == "stats"
    ]
    logs = {op.y.uid for op in graph_queries.find_pointwise_of_mode(graph, PointwiseMode.LOG) if op.y is not None}
    sums = [
        op
        for op in graph_queries.find_pointwise_of_mode(graph, PointwiseMode.ADD)
        if op.b is not None and op.b.uid in logs
    ]
    return found + [op.y for op in sums if op.y is not None and not op.y.virtual]


def _find_score_dims(graph: Graph) -> tuple[int, ...]:
    """Return the dims of Q @ K^T of composite attention; an empty tuple for other graphs."""
    found = graph_queries.find_matmuls(graph)
    return found[0].c.dims if len(found) in (2, 5) else ()


def _find_biases(graph: Graph) -> list[Tensor]:
    """Return the tensors in memory that attention adds to its scores."""
    scores = _find_score_dims(graph)
    adds = [
        op
        for op in graph_queries.find_pointwise_of_mode(graph, PointwiseMode.ADD)
        if op.y is not None and op.y.dims == scores
    ]
    for op in graph_queries.find_operations_of_kind(
        graph, DescriptorType.OPERATION_SDPA_FWD, DescriptorType.OPERATION_SDPA_BWD
    ):
        adds += [
            add for part in op.subgraphs() for add in graph_queries.find_pointwise_of_mode(part, PointwiseMode.ADD)
        ]
    ports = [tensor for op in adds for tensor in op.inputs().values()]
    return [tensor for tensor in ports if not (tensor.virtual or tensor.by_value) and tensor.rank == 4]


def _has_bias_with_noncontiguous_last_dim(graph: Graph) -> bool:
    return any(tensor.dims[3] > 1 and tensor.strides[3] != 1 for tensor in _find_biases(graph))


def _has_overlapping_q_k_v_or_do(use: AttentionUse) -> bool:
    """Whether elements of Q, K, V or dO share memory, except by a stride of 0 or in ragged tensors."""
    p = use.problem
    names = () if p.ragged else ("q", *(() if p.page_size else ("k", "v")), *(("do",) if use.backward else ()))
    return any(_has_overlapping_elements(p.dims(name), p.strides(name)) for name in names)


def _has_overlapping_elements(dims: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    axes = sorted((stride, dim) for dim, stride in zip(dims, strides, strict=True) if dim > 1)
    reach = 0
    for stride, dim in axes:
        if 0 < stride <= reach:
            return axes[0][0] > 0
        reach += stride * (dim - 1)
    return False


def _has_boolean_bias(graph: Graph) -> bool:
    return any(tensor.data_type is DataType.BOOLEAN for tensor in _find_biases(graph))


def _has_32_bit_offsets_for_2_31_elements(use: AttentionUse) -> bool:
    """Whether ragged offsets have 32 bits, but a tensor may have 2^31 elements or more."""
    p = use.problem
    sizes = [math.prod(p.dims(name)) for name in "qkvo"]
    return p.ragged and p.offset_type is DataType.INT32 and max(sizes) >= 1 << 31


def _has_mask_with_negative_infinity(graph: Graph) -> bool:
    """Whether a mask puts -inf into the scores of attention."""
    if not _find_score_dims(graph):
        return False
    selects = graph_queries.find_pointwise_of_mode(graph, PointwiseMode.BINARY_SELECT)
    return any(op.b is not None and op.b.value == -math.inf for op in selects)


def _has_8_bit_bias(graph: Graph) -> bool:
    """Whether the bias has an 8-bit type, but Q has a type other than FP8."""
    products = graph_queries.find_matmuls(graph)
    short = (DataType.INT8, DataType.UINT8, *FP8_TYPES)
    whole = len(products) > 0 and products[0].a.data_type not in FP8_TYPES
    return whole and any(tensor.data_type in short for tensor in _find_biases(graph))


def _has_scale_of_0_or_less(graph: Graph) -> bool:
    """Whether a forward pass multiplies the scores by zero or a negative number."""
    factors = [
        op.fields["scale"]
        for op in graph_queries.find_operations_of_kind(graph, DescriptorType.OPERATION_SDPA_FWD)
        if "scale" in op.fields
    ]
    products = graph_queries.find_matmuls(graph)
    softmax = any(graph_queries.find_pointwise_of_mode(graph, PointwiseMode.EXP)) or any(
        graph_queries.find_operations_of_kind(graph, DescriptorType.OPERATION_SOFTMAX)
    )
    if softmax and len(products) == 2:
        scaled = (
            op
            for op in graph_queries.find_pointwise_of_mode(graph, PointwiseMode.MUL)
            if op.x is not None and op.b is not None
        )
        factors += [op.b for op in scaled if op.x is not None and op.x.uid == products[0].c.uid]
    return any(factor.by_value and factor.value is not None and factor.value <= 0 for factor in factors)


def _has_non_binary_random_mask(graph: Graph) -> bool:
    """Whether attention uses random numbers other than zeros and ones."""
    return len(graph_queries.find_matmuls(graph)) > 1 and any(
        op.fields["rng"].fields.get("distribution", RngDistribution.BERNOULLI) is not RngDistribution.BERNOULLI
        for op in graph_queries.find_operations_of_kind(graph, DescriptorType.OPERATION_RNG)
    )


ATTENTION_FORWARD: tuple[KnownIssue, ...] = (
    KnownIssue(
        "attention-of-9-10",
        what="attention in float16 or bfloat16",
        effect="known issues, not named further; NVIDIA's own callers refuse attention with these versions",
        fix="use 9.10.2 or later",
        source=FRONTEND_SURFACE,
        versions=VersionRange(since=(9, 10, 0), until=(9, 10, 2)),
        attention=is_half_precision_attention,
    ),
    KnownIssue(
        "window-of-9-14",
        what="a sliding window (left bound) without causal masking, s_kv above 1024",
        effect="a known issue; NVIDIA's own callers refuse it with this version",
        fix="use 9.14.1 or later, or a causal mask",
        source=FRONTEND_SURFACE,
        versions=VersionRange(since=(9, 14, 0), until=(9, 14, 1)),
        attention=_has_long_window_without_causal_mask,
    ),
    KnownIssue(
        "long-keys-in-cuda-graphs",
        what="attention of more than 1024 keys without a plain causal mask",
        effect="an illegal address where the plan is replayed from a CUDA graph, as reported to TransformerEngine",
        fix="use 9.15.0 or later, or a causal mask",
        source="https://github.com/NVIDIA/TransformerEngine/pull/2344",
        versions=VersionRange(since=(9, 13, 0), until=(9, 15, 0)),
        attention=_has_long_kv_without_top_left_causal_mask,
        depends_on="whether the plan runs from a CUDA graph",
    ),
    KnownIssue(
        "dropout-heuristics",
        what="attention with random dropout",
        effect="the heuristics refuse graphs they should not, and the caller fails",
        fix="use 9.14.0 or later, or 9.10.2",
        source="https://github.com/pytorch/pytorch/pull/163903",
        versions=VersionRange(since=(9, 11, 0), until=(9, 14, 0)),
        attention=lambda use: use.problem.dropout > 0,
    ),
    KnownIssue(
        "decoding-on-blackwell",
        what="a forward pass with s_q of 1",
        effect="O is wrong, finite and without any error",
        fix="use 9.25.1 or later, or 9.24.1",
        source="https://github.com/pytorch/pytorch/issues/193893",
        sm=(
            100,
            101,
            103,
            107,
            110,
        ),
        versions=VersionRange(since=(9, 19, 0), until=(9, 25, 1), except_=((9, 24, 1),)),
        attention=is_decoding,
    ),
    KnownIssue(
        "decoding-ragged-stats",
        what="a forward pass with s_q of 1, grouped heads and ragged stats",
        effect="stats are written for the first head of each group only; O is right",
        fix="use 9.27.0 or later, or dense stats [b, h, 1, 1], which are the same bytes where every length is 1",
        source="https://github.com/NVIDIA/cudnn-frontend/issues/1083",
        evidence="measured with 9.19.0 on sm_90; reported of 9.24.0 and later",
        versions=VersionRange(since=(9, 19, 0), until=(9, 27, 0)),
        attention=_is_grouped_decoding_with_ragged_stats,
    ),
    KnownIssue(
        "decoding-causal-groups",
        what="a forward pass with s_q of 1, causal, with fewer heads of K than of Q",
        effect="listed as a known issue of the version: decoding should be queried without a causal mask",
        fix="leave the causal mask out: the only query sees every key anyway",
        source="https://docs.nvidia.com/deeplearning/cudnn/backend/latest/release-notes.html",
        versions=VersionRange(since=(9, 18, 1)),
        attention=lambda use: (
            is_decoding(use) and use.problem.right_bound == 0 and use.problem.heads != use.problem.kv_heads
        ),
    ),
    KnownIssue(
        "sink-of-ragged-sequences",
        what="the gradient of a sink with ragged sequences, head dim of V other than 64, 128 and 256",
        effect=(
            "the statistics are read beyond their end: dsink is wrong or NaN, or the kernel reads an illegal address"
        ),
        fix="use padding instead of ragged sequences, or 9.27.0 or later with ragged_stats",
        source="https://github.com/NVIDIA/TransformerEngine/issues/3249",
        evidence="measured with 9.19.0 on sm_90: dsink is off by orders of magnitude",
        versions=VersionRange(since=(9, 18, 0), until=(9, 26, 0)),
        attention=lambda use: (
            use.backward and use.problem.ragged and use.problem.dsink and use.problem.head_dim_v not in (64, 128, 256)
        ),
    ),
    KnownIssue(
        "code-of-sm-100",
        what="attention in 16 bits on sm_103 and sm_110",
        effect="the plan of the first config, engine 3, is built of code for sm_100a, which these GPUs do not load",
        fix="use 9.14.0 or later, or the config of engine 1",
        source=MEASURED_WITHOUT_GPU,
        evidence="measured deviceless with 9.9.0 and 9.10.2; 9.14.0 compiles for sm_103a",
        sm=(103, 110),
        versions=VersionRange(until=(9, 11, 0)),
        attention=is_half_precision_attention,
        depends_on="the engine config",
        step="build",
    ),
    KnownIssue(
        "ragged-length-0",
        what="attention with ragged sequences",
        effect="a sequence of length 0 gives NaN: in rows of O without any key, and in gradients",
        fix="use 9.25.0 or later, or leave such sequences out",
        source="https://github.com/NVIDIA/cudnn-frontend/issues/943",
        versions=VersionRange(until=(9, 25, 0)),
        attention=lambda use: use.problem.ragged,
        depends_on="lengths of 0",
    ),
    KnownIssue(
        "batch-of-65536",
        what="attention with a batch, or heads, of 65536 and more",
        effect="the plan is built and its execution fails",
        fix="split the batch: up to 65535",
        source="https://github.com/pytorch/pytorch/pull/181235",
        attention=lambda use: max(use.problem.batch, use.problem.heads) >= _SIXTEEN_BITS,
    ),
    KnownIssue(
        "ragged-attention-of-9-1",
        what="attention of ragged sequences",
        effect="wrong numbers",
        fix="use 9.3.0 or later",
        source="https://github.com/NVIDIA/TransformerEngine/pull/975",
        versions=VersionRange(since=(9, 1, 0), until=(9, 3, 0)),
        attention=lambda use: use.problem.ragged,
    ),
    KnownIssue(
        "stats-of-large-scores",
        what="a forward pass in 16 bits that writes stats",
        effect="stats are wrong where Q and K are large, so gradients are",
        fix="use 9.3.0 or later",
        source="https://github.com/pytorch/pytorch/issues/139298",
        versions=VersionRange(until=(9, 3, 0)),
        attention=lambda use: not use.backward and use.problem.stats and is_half_precision_attention(use),
    ),
    KnownIssue(
        "paged-tail-not-finite",
        what="attention with paged K and V",
        effect=(
            "O is NaN where the last page of a sequence holds NaN or an infinity after its end, which is multiplied "
            "by 0; padding without pages does the same"
        ),
        fix="fill pages with zeros before they are used, or give sequences of one length without pages",
        source=MEASURED_ON_GPU,
        evidence="measured with 9.19.0 on sm_90",
        sm=(90,),
        attention=lambda use: use.problem.page_size is not None,
        depends_on="what is after the end of a sequence in its last page",
    ),
    KnownIssue(
        "paged-attention-on-ada",
        what="attention with paged K and V",
        effect=(
            "NVIDIA's TransformerEngine uses no cuDNN for it on these architectures, on sm_89 because of a numerical "
            "problem; no version is known to be free of it"
        ),
        fix="leave the pages out",
        source="https://github.com/NVIDIA/TransformerEngine/pull/1776",
        sm=(89, 120),
        versions=VersionRange(since=(9, 4, 0)),
        attention=lambda use: use.problem.page_size is not None,
    ),
    KnownIssue(
        "long-keys-hang",
        what="a bottom-right causal forward pass in 16 bits, s_kv of 131072 and more and above s_q, head dim 128",
        effect="the kernel does not end",
        fix="split K and V, or use another version",
        source="https://github.com/NVIDIA/TransformerEngine/issues/3285",
        sm=(103,),
        versions=VersionRange(since=(9, 21, 0), until=(9, 22, 0)),
        attention=_has_very_long_kv_with_causal_mask,
    ),
    KnownIssue(
        "forward-stats-layout",
        what="a forward pass whose stats are neither ragged nor packed as b, h, s",
        effect="they are written as if they were packed: at wrong places, or beyond the buffer",
        fix="use 9.12.0 or later, or packed stats",
        source="https://github.com/NVIDIA/cudnn-frontend/pull/1023",
        versions=VersionRange(until=(9, 12, 0)),
        attention=lambda use: not use.backward and has_unpacked_stats(use),
    ),
    KnownIssue(
        "stats-not-float",
        what="a forward pass with stats of another data type than float32",
        effect=(
            "four bytes are written for each element: what is after a narrower buffer is overwritten, or the "
            "address is illegal"
        ),
        fix="make stats float32",
        source=FRONTEND_NODE,
        evidence="measured with 9.19.0 on sm_90: float16 statistics hold NaN",
        graph=lambda graph: any(tensor.data_type is not DataType.FLOAT for tensor in _find_written_stats(graph)),
    ),
    KnownIssue(
        "float32-in-one-operation",
        what="attention in float32 as one operation, SDPA_FWD",
        effect="a kernel for 16-bit elements runs, which writes beyond its shared memory",
        fix="use float16 or bfloat16",
        source="https://github.com/NVIDIA/cudnn-frontend/issues/424",
        attention=lambda use: (not use.backward and use.form == "unified" and use.problem.data_type is DataType.FLOAT),
    ),
    KnownIssue(
        "block-mask-first-block",
        what="attention with a block mask",
        effect=(
            "where the first block of keys of a row is masked out, memory that no one wrote takes part: wrong "
            "numbers or NaN"
        ),
        fix="use 9.26.0 or later, or a bias instead of the block mask",
        source=FRONTEND_SURFACE,
        sm=BLACKWELL,
        versions=VersionRange(since=(9, 14, 0), until=(9, 26, 0)),
        attention=lambda use: use.problem.block_mask,
    ),
    KnownIssue(
        "eight-bit-bias",
        what="a bias of 8-bit integers or floats next to Q of 16 bits",
        effect="the process ends with an uncaught C++ exception (format_error) while a plan is built",
        fix="make the bias of the data type of Q",
        source=MEASURED_WITHOUT_GPU,
        evidence=(
            "measured with 9.14.0, 9.19.0, 9.24.0 and 9.26.0 to 9.28.0 on sm_90, deviceless; on sm_100 with 9.19.0 only"
        ),
        sm=(90,),
        versions=VersionRange(since=(9, 14, 0)),
        graph=_has_8_bit_bias,
        step="build",
    ),
    KnownIssue(
        "ragged-decoding-build",
        what="the unified forward pass of ragged sequences with ragged stats and s_q of 1",
        effect="the support check passes and the plan cuDNN ranks first does not compile",
        fix="use 9.28.0 or later, take the next plan, or repeat the query row (s_q of 2)",
        source="https://github.com/NVIDIA/cudnn-frontend/pull/1181",
        sm=(107,),
        versions=VersionRange(since=(9, 26, 0), until=(9, 28, 0)),
        attention=lambda use: is_decoding(use)
        and use.form == "unified"
        and use.problem.ragged
        and use.problem.ragged_stats,
        step="build",
    ),
    KnownIssue(
        "ragged-offsets-of-32-bits",
        what="ragged offsets of 32 bits into tensors of 2^31 elements and more",
        effect="offsets that do not fit: wrong places are read and written, or the address is illegal",
        fix="use offset_type=DataType.INT64",
        source="https://github.com/NVIDIA/cudnn-frontend/issues/980",
        attention=_has_32_bit_offsets_for_2_31_elements,
    ),
    KnownIssue(
        "infinite-masks",
        what="masks of -inf in the scores of attention",
        effect="rows without any key become NaN; cudnn-frontend masks with the lowest float instead",
        fix="use 9.10.0 or later, or mask with -3.4028235e38",
        source="https://github.com/NVIDIA/cudnn-frontend/blob/main/include/cudnn_frontend/node/attn_score_modifiers.h",
        versions=VersionRange(until=(9, 10, 0)),
        graph=_has_mask_with_negative_infinity,
    ),
    KnownIssue(
        "overlapping-sequences",
        what="Q, K, V or dO whose elements share memory, such as a batch stride of one token, without ragged offsets",
        effect="every sequence after the first is read from inside the one before: the result is as it was described",
        fix="describe the stride of a whole sequence, or give ragged offsets",
        source="https://github.com/flashinfer-ai/flashinfer/issues/3800",
        attention=_has_overlapping_q_k_v_or_do,
    ),
    KnownIssue(
        "boolean-bias",
        what="a bias of booleans",
        effect="the process ends by an arithmetic exception (SIGFPE) while engines are chosen",
        fix="make the bias of the data type of Q: 0 where a score is kept, -inf elsewhere",
        source=FRONTEND_SURFACE,
        evidence="measured with 9.14.0, 9.19.0, 9.24.0 and 9.26.0 to 9.28.0 on sm_90 and sm_100, deviceless",
        graph=_has_boolean_bias,
        step="check",
    ),
    KnownIssue(
        "bias-inner-stride",
        what="a bias whose stride over s_kv is not 1",
        effect="the process ends by a segmentation fault while engines are chosen",
        fix="lay the bias out densely",
        source=FRONTEND_NODE,
        evidence="measured with 9.19.0 and 9.24.0 on sm_100, deviceless; 9.14.0 takes it, 9.26.0 and later refuse it",
        sm=(100, 103),
        versions=VersionRange(since=(9, 15, 0), until=(9, 26, 0)),
        graph=_has_bias_with_noncontiguous_last_dim,
        step="check",
    ),
    KnownIssue(
        "kernel-cache-of-attention",
        what="attention with dynamic shapes and a kernel cache",
        effect=(
            "a plan from the cache runs with the dims and strides of the first one: other lengths come out wrong or "
            "are not written, more batches are not written, and for fewer batches it writes beyond the end of O"
        ),
        fix="build a plan for each shape, or a ragged plan for the largest one",
        source=_DYNAMIC_SHAPES,
        evidence=(
            "measured with 9.19.0 on sm_90: 39 of 50 changes of shape; right were the "
            "lengths of ragged sequences, and batches with the engines that are not proposed first"
        ),
        versions=VersionRange(since=(9, 18, 0), until=(9, 21, 0)),
        attention=lambda use: not use.backward,
        sharing="kernel cache",
    ),
    KnownIssue(
        "override-shapes-of-attention",
        what="attention with override shapes, of sequences that are not ragged",
        effect=(
            "of the dims that an execution gives, the number of keys is taken; rows of Q and all strides stay those "
            "the plan was built for, and batches do with the engine that is proposed first: rows come out wrong or are "
            "not written, and memory outside of O is written. Many operations without padding are wrong even in the "
            "dims they were built for"
        ),
        fix="make the sequences ragged, which is right for more and longer ones too; or build a plan for each shape",
        source=_DYNAMIC_SHAPES,
        evidence=(
            "measured on sm_90 with 9.27.0, and with 9.28.0: 128 of 136 changes of shape, with the tensors in memory "
            "or all tensors overridden; ragged: 18 of 18 right"
        ),
        versions=VersionRange(since=(9, 21, 0)),
        attention=lambda use: not use.backward and not use.problem.ragged,
        sharing="override shapes",
    ),
    KnownIssue(
        "scale-not-above-0",
        what="a forward pass whose scores are multiplied by 0 or less",
        effect=(
            "masks and the row maximum are taken before the factor: O is NaN and the statistics infinite in rows in "
            "which something is masked, with fp8 in all, and where scores are 88 apart"
        ),
        fix="multiply Q by the sign; the backward pass is right",
        source=MEASURED_ON_GPU,
        evidence=f"{ON_SM90}, composite and unified, also from a tensor in memory, which no graph shows",
        sm=(90,),
        depends_on="masks, and how far scores are apart",
        graph=_has_scale_of_0_or_less,
    ),
    KnownIssue(
        "dropout-distribution",
        what="attention whose random numbers are UNIFORM or NORMAL",
        effect="they are zeros and ones as of BERNOULLI, with a probability that no one gave: often all of them are 0",
        fix="use BERNOULLI, or give the mask",
        source=MEASURED_ON_GPU,
        evidence=f"{ON_SM90}, with two distributions of each",
        sm=(90,),
        graph=_has_non_binary_random_mask,
    ),
)
