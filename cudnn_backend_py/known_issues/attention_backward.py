"""Known issues of backward attention."""

from __future__ import annotations

import math

from ..generated.enums import DataType, DescriptorType, PointwiseMode, ReduceTensorOp
from ..graph.attention.known_issue import AttentionUse, KnownIssue
from ..graph.attention.known_issues import BOUNDED_TOTAL, FRONTEND_NODE, SM80_KERNELS
from ..graph.data_types import ELEMENT_BITS
from ..graph.ir import Graph, Reduction, Tensor
from ..system.version import VersionRange
from . import graph_queries
from .graph_queries import has_unpacked_stats, is_half_precision_attention
from .sources import BLACKWELL, MEASURED_ON_GPU, MEASURED_WITHOUT_GPU, ON_SM90

__all__ = ["ATTENTION_BACKWARD"]


def _is_backward_with_partial_key_tile(use: AttentionUse) -> bool:
    """Whether the keys of a backward pass without padding mask do not fill whole tiles of 128."""
    return use.backward and not use.problem.padding and use.problem.seq_kv % 128 != 0


def _has_head_dims_refused_by_frontend(use: AttentionUse) -> bool:
    """Whether a backward pass has head dims that cudnn-frontend refuses with 9.11 and 9.12."""
    p = use.problem
    return use.backward and 128 < p.head_dim <= 192 and 64 < p.head_dim_v < 128 and p.head_dim != 192


def _has_unequal_training_head_dims(use: AttentionUse) -> bool:
    """Whether a backward pass has head dims that TransformerEngine refuses since 9.11."""
    dims = (use.problem.head_dim, use.problem.head_dim_v)
    return use.backward and min(dims) >= 128 and dims[0] != dims[1] and dims != (192, 128)


def _is_backward_with_head_dim_256(use: AttentionUse) -> bool:
    """Whether a backward pass that need not be deterministic has head dims of 256 in 16 bits."""
    p = use.problem
    return (
        use.backward and is_half_precision_attention(use) and p.head_dim == p.head_dim_v == 256 and not p.deterministic
    )


def _has_bias_gradient_above_2_31(use: AttentionUse) -> bool:
    """Whether a backward pass writes a bias gradient of 2^31 bytes or more."""
    p = use.problem
    return use.backward and p.dbias and p.bias is not None and math.prod(p.bias) * ELEMENT_BITS[p.data_type] >= 1 << 34


def _masks_padding_only_before_stats_subtraction(graph: Graph) -> bool:
    """Whether a backward pass masks padding only before, not after, it subtracts the statistics from the scores."""
    selects = {
        op.y.uid for op in graph_queries.find_pointwise_of_mode(graph, PointwiseMode.BINARY_SELECT) if op.y is not None
    }
    exponents = {op.x.uid for op in graph_queries.find_pointwise_of_mode(graph, PointwiseMode.EXP) if op.x is not None}
    padding = any(graph_queries.find_pointwise_of_mode(graph, PointwiseMode.LOGICAL_AND))
    return (
        len(graph_queries.find_matmuls(graph)) == 5
        and padding
        and any(
            op.x is not None and op.x.uid in selects and op.y is not None and op.y.uid in exponents
            for op in graph_queries.find_pointwise_of_mode(graph, PointwiseMode.SUB)
        )
    )


def _has_ragged_dq_with_layout_unlike_q(graph: Graph) -> bool:
    """Whether a backward pass writes a ragged float32 dQ with other ragged offsets and strides than those of Q."""
    products = graph_queries.find_matmuls(graph)
    if len(products) != 5:
        return False
    turned = {
        op.fields["y"].uid for op in graph_queries.find_operations_of_kind(graph, DescriptorType.OPERATION_RESHAPE)
    }
    q = products[0].a
    return any(
        op.a.uid not in turned
        and not op.c.virtual
        and op.c.data_type is DataType.FLOAT
        and op.c.ragged_offset is not None
        and op.c.ragged_offset is not q.ragged_offset
        and op.c.strides[1:] != q.strides[1:]
        for op in products
    )


def find_row_sums_of_o_times_do(graph: Graph) -> Tensor | None:
    """Return rowsum(dO * O) of a composite backward pass; None for other graphs."""
    if len(graph_queries.find_matmuls(graph)) != 5:
        return None
    products = {
        op.y.uid
        for op in graph_queries.find_pointwise_of_mode(graph, PointwiseMode.MUL)
        if op.y is not None and op.y.dims[3] > 1
    }
    sums = (op for op in graph.ops if isinstance(op, Reduction) and op.operator is ReduceTensorOp.ADD)
    return next((op.y for op in sums if op.y.dims[3] == 1 and op.x.uid in products), None)


def _writes_or_scales_rowsum_of_o_times_do(graph: Graph) -> bool:
    """Whether a backward pass writes rowsum(dO * O) to memory, or scales it by other than 1 without dropout."""
    sums = find_row_sums_of_o_times_do(graph)
    if sums is None:
        return False
    factors = [
        op.b.value
        for op in graph_queries.find_pointwise_of_mode(graph, PointwiseMode.MUL)
        if op.x is not None and op.b is not None and op.x.uid == sums.uid and op.b.by_value
    ]
    dropped = any(graph_queries.find_operations_of_kind(graph, DescriptorType.OPERATION_RNG))
    return not sums.virtual or (not dropped and any(value not in (None, 1.0) for value in factors))


def _has_broadcast_dbias(use: AttentionUse) -> bool:
    """Whether a backward pass writes the gradient of a bias that broadcasts along queries or keys."""
    p = use.problem
    if not use.backward or not p.dbias or p.bias is None:
        return False
    return (p.bias[2] == 1 < p.seq_q) or (p.bias[3] == 1 < p.seq_kv)


ATTENTION_BACKWARD: tuple[KnownIssue, ...] = (
    KnownIssue(
        "backward-in-cuda-graphs",
        what="a backward pass without padding, s_kv no multiple of 128",
        effect=(
            "memory beyond K and V is read: an illegal address where the plan is replayed from a CUDA graph, and NaN "
            "gradients were seen without one"
        ),
        fix="use 9.15.1 or later, or padding (seq_len_q, seq_len_kv)",
        source="https://github.com/NVIDIA/cudnn-frontend/releases/tag/v1.16.0",
        versions=VersionRange(until=(9, 15, 1)),
        attention=_is_backward_with_partial_key_tile,
    ),
    KnownIssue(
        "backward-key-tail",
        what=(
            "a backward pass in 16 bits without padding and not causal, s_kv an odd multiple of 64, head dim up to 128"
        ),
        effect="dQ is NaN in rows whose logarithm of the sum of exponentials is below -88.7",
        fix="use 9.26.0 or later, or padding (seq_len_q, seq_len_kv)",
        source="https://github.com/pytorch/pytorch/issues/196678",
        evidence="measured with 9.19.0 on sm_90: 84 of 84 graphs, float16 from scores of -20 on; random graphs find it",
        sm=(90,),
        versions=VersionRange(since=(9, 19, 0), until=(9, 26, 0)),
        attention=lambda use: (
            _is_backward_with_partial_key_tile(use)
            and use.problem.seq_kv % 128 == 64
            and use.problem.right_bound != 0
            and is_half_precision_attention(use)
            and use.problem.head_dim <= 128
        ),
    ),
    KnownIssue(
        "unified-backward-without-knob",
        what="a backward pass as one operation on sm_10x",
        effect="the heuristics propose engine 14 without its knob KERNEL_CFG, and no config of theirs passes the check",
        fix="use 9.28.0 or later, implementation='composite', or the config eng14_k24=31",
        source=MEASURED_WITHOUT_GPU,
        evidence=(
            "measured with 9.23.0, 9.24.0 and 9.27.0 on sm_100 and sm_103, deviceless: eng14_k24=31 passes the check "
            "and builds; with head dims of 256, and with 9.27.0 for ragged sequences, it passes and does not build"
        ),
        sm=(100, 103),
        versions=VersionRange(since=(9, 23, 0), until=(9, 28, 0)),
        attention=lambda use: use.backward and use.form == "unified",
        step="check",
    ),
    KnownIssue(
        "backward-one-query",
        what="a backward pass with s_q of 1, without padding and not causal",
        effect="dK and dV are NaN where the scores are strongly negative; seen with s_kv of 64 and 128, not with 97",
        fix="use padding (seq_len_q, seq_len_kv)",
        source="https://github.com/NVIDIA/cudnn-frontend/issues/1072",
        evidence="measured with 9.19.0 on sm_90: 24 of 24 graphs, float16 from scores of -20 on, bfloat16 from -120 on",
        sm=(90,),
        versions=VersionRange(since=(9, 19, 0)),
        attention=lambda use: (
            use.backward and use.problem.seq_q == 1 and not use.problem.padding and use.problem.right_bound != 0
        ),
    ),
    KnownIssue(
        "ragged-backward-gaps",
        what="a backward pass of ragged sequences",
        effect="gradients are NaN where the sequences have gaps between them: the workspace is not initialised",
        fix="use 9.18.0 or later, for which the fix was announced",
        source="https://github.com/NVIDIA/TransformerEngine/issues/2186",
        sm=(90,),
        versions=VersionRange(until=(9, 18, 0)),
        attention=lambda use: use.backward and use.problem.ragged,
    ),
    KnownIssue(
        "ragged-backward-ragged-stats",
        what="a backward pass of ragged sequences with ragged statistics",
        effect="cudnn-frontend refuses it on sm_8x and sm_12x; wrong gradients are reported of sm_120 with 9.25.0",
        fix="give the statistics dims [b, h, s_q, 1] without ragged offsets",
        source="https://github.com/NVIDIA/TransformerEngine/issues/3333",
        sm=(120,),
        versions=VersionRange(since=(9, 18, 1)),
        attention=lambda use: use.backward and use.problem.ragged and use.problem.ragged_stats,
    ),
    KnownIssue(
        "backward-stats-layout",
        what="a backward pass whose stats are neither ragged nor packed as b, h, s",
        effect="the Ampere-style kernels read stats at wrong places",
        fix="use 9.26.0 or later, or packed stats",
        source="https://github.com/NVIDIA/cudnn-frontend/pull/1023",
        sm=SM80_KERNELS,
        versions=VersionRange(until=(9, 26, 0)),
        attention=lambda use: use.backward and has_unpacked_stats(use),
    ),
    KnownIssue(
        "backward-head-dims-of-9-11",
        what="a backward pass with a head dim of Q from 129 to 191 and one of V from 65 to 127",
        effect="a known issue on Hopper; cudnn-frontend refuses it with these versions",
        fix="use 9.13.0 or later, or pad the head dims to 192 and 128",
        source="https://github.com/NVIDIA/cudnn-frontend/releases/tag/v1.14.1",
        sm=(90,),
        versions=VersionRange(since=(9, 11, 0), until=(9, 13, 0)),
        attention=_has_head_dims_refused_by_frontend,
    ),
    KnownIssue(
        "backward-large-head-dims",
        what="a backward pass with head dims of Q and V of 128 and more that differ, other than 192 with 128",
        effect="a fault on Hopper that is not described; TransformerEngine refuses it until it is fixed",
        fix="pad the smaller head dim with zeros to the larger one",
        source="https://github.com/NVIDIA/TransformerEngine/blob/d0067d0d/transformer_engine/common/fused_attn/fused_attn.cpp#L349",
        sm=(90,),
        versions=VersionRange(since=(9, 11, 0)),
        attention=_has_unequal_training_head_dims,
    ),
    KnownIssue(
        "backward-stats-layout-with-dbias",
        what="a backward pass with dbias whose stats are neither ragged nor packed as b, h, s",
        effect="it is served by the Ampere-style kernels, which read stats at wrong places",
        fix="use 9.26.0 or later, or packed stats",
        source="https://github.com/NVIDIA/cudnn-frontend/pull/1023",
        sm=BLACKWELL,
        versions=VersionRange(until=(9, 26, 0)),
        attention=lambda use: use.backward and use.problem.dbias and has_unpacked_stats(use),
    ),
    KnownIssue(
        "backward-one-key",
        what="a backward pass with s_kv of 1",
        effect="the release notes call it unsupported; it is accepted all the same",
        fix="pad K and V, with padding (seq_len_q, seq_len_kv)",
        source="https://docs.nvidia.com/deeplearning/cudnn/backend/latest/release-notes.html#cudnn-9-18-1",
        versions=VersionRange(since=(9, 18, 0)),
        attention=lambda use: use.backward and use.problem.seq_kv == 1,
    ),
    KnownIssue(
        "backward-head-dim-256",
        what="a backward pass with head dims of 256, not deterministic",
        effect="the support check passes and no plan that heuristics propose can be built",
        fix="use deterministic=True with attention.deterministic_config, or head dims up to 128",
        source="https://github.com/NVIDIA/cudnn-frontend/releases/tag/v1.24.1",
        evidence="measured with 9.24.0 and 9.26.0 to 9.28.0 on sm_100, deviceless",
        sm=BLACKWELL,
        versions=VersionRange(since=(9, 23, 0)),
        attention=_is_backward_with_head_dim_256,
        step="build",
    ),
    BOUNDED_TOTAL,
    KnownIssue(
        "bounded-total-apart",
        what="max_total_seq_q in a backward pass whose dQ has ragged offsets and strides of its own",
        effect="Q and dQ are taken to have the same offsets: dQ is wrong, or the kernel ends the CUDA context",
        fix="lay dQ out as Q, or leave max_total_seq_q and max_total_seq_kv out",
        source=MEASURED_ON_GPU,
        evidence="measured with 9.19.0 on sm_90",
        sm=(90,),
        graph=_has_ragged_dq_with_layout_unlike_q,
    ),
    KnownIssue(
        "dbias-above-2-31",
        what="a gradient of a bias of 2^31 bytes and more",
        effect="an illegal memory access",
        fix="split the heads or the batch",
        source="https://github.com/openxla/xla/issues/36454",
        versions=VersionRange(since=(9, 13, 1)),
        attention=_has_bias_gradient_above_2_31,
    ),
    KnownIssue(
        "padding-before-stats",
        what="a backward pass that masks the padding before it subtracts the stats, and not after",
        effect="gradients of rows beyond the lengths are NaN",
        fix="use 9.10.0 or later, or mask after stats are subtracted",
        source=FRONTEND_NODE,
        versions=VersionRange(until=(9, 10, 0)),
        graph=_masks_padding_only_before_stats_subtraction,
    ),
    KnownIssue(
        "backward-row-sums",
        what=(
            "a backward pass of many operations whose row sums of dO * O are multiplied by no number, or, without "
            "dropout, by another than 1"
        ),
        effect="without one their memory is not written, and dQ and dK hang on what it held; another is taken for 1",
        fix="multiply the row sums by 1",
        source=MEASURED_ON_GPU,
        evidence=f"{ON_SM90}: 18 of 18 graphs without a factor, whose rows stayed NaN",
        sm=(90,),
        graph=_writes_or_scales_rowsum_of_o_times_do,
    ),
    KnownIssue(
        "dbias-of-shared-rows",
        what="a backward pass with dbias, whose bias all rows or all keys share",
        effect="dbias is written as if each row and key had its own, far after its end: other tensors are overwritten",
        fix="give bias and dbias all rows and keys, and sum dbias over those that share one",
        source=MEASURED_ON_GPU,
        evidence=(
            "measured with 9.19.0 on sm_90: an illegal address by the graph of this shape and of a class of shapes, "
            "rows shared and keys shared, where nothing is mapped after dbias; Q, K, V or O changed in 12 of 212 "
            "passes where something is"
        ),
        sm=(90,),
        attention=_has_broadcast_dbias,
    ),
)
