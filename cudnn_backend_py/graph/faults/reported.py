"""Faults of attention that others reported in public, or that only a described GPU showed here.

``source`` says who; ``evidence`` what was measured for this package, where it was.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from ...generated.enums import DataType, DescriptorType, PointwiseMode
from ...system.version import Window
from ..attention.backward import composite_backward
from ..attention.forward import composite_forward
from ..attention.problem import Attention
from ..data_types import ELEMENT_BITS, FP8_TYPES, HALF_TYPES
from ..ir import Graph, Pointwise, Tensor, packed_strides
from . import look
from .fault import BASE, Fault, Reproduction, Use

__all__ = ["MEASURED_ON_GPU", "REPORTED_ATTENTION"]

_SM80_KERNELS = (80, 86, 87, 89, 120, 121)  # architectures whose attention kernels are those of sm_80
_BLACKWELL = (100, 103, 107)

MEASURED_ON_GPU = "tests/gpu/plans/test_dynamic_shapes.py"


# Conditions that several rows share, or that need more than a line


def _half_attention(use: Use) -> bool:
    """Attention in float16 or bfloat16."""
    return use.problem.data_type in HALF_TYPES


def _long_window_not_causal(use: Use) -> bool:
    """A left bound without a right one at the diagonal."""
    p = use.problem
    return p.left_bound is not None and p.right_bound != 0 and p.seq_kv > 1024


def _very_long_causal_keys(use: Use) -> bool:
    """A short causal query at the end of very many keys."""
    p = use.problem
    causal = p.right_bound == 0 and p.alignment == "bottom_right"
    return not use.backward and causal and p.seq_kv >= 131072 > p.seq_q and p.head_dim == 128 and _half_attention(use)


def _fp8_long_keys_to_bfloat16(use: Use) -> bool:
    """An 8-bit forward pass that may be split over the keys, with bfloat16 results."""
    p = use.problem
    plain = p.left_bound is None and p.right_bound is None and p.page_size is None
    plain = plain and not (p.ragged or p.dropout or p.dropout_mask)
    into_bfloat16 = p.is_fp8 and p.output_type is DataType.BFLOAT16
    return not use.backward and into_bfloat16 and plain and p.seq_q > 1 and p.seq_kv >= 4096


def _decoding(use: Use) -> bool:
    """One query per sequence, forward."""
    return not use.backward and use.problem.seq_q == 1


def _decoding_groups_with_ragged_stats(use: Use) -> bool:
    """One query per sequence, heads that share keys, packed statistics."""
    p = use.problem
    return _decoding(use) and p.stats and p.ragged_stats and p.heads > p.kv_heads


def _backward_with_key_tail(use: Use) -> bool:
    """A backward pass whose keys do not fill their tiles, and no padding says so."""
    return use.backward and not use.problem.padding and use.problem.seq_kv % 128 != 0


def _hopper_training_head_dims(use: Use) -> bool:
    """The head dims that cudnn-frontend refuses with 9.11 and 9.12."""
    p = use.problem
    return use.backward and 128 < p.head_dim <= 192 and 64 < p.head_dim_v < 128 and p.head_dim != 192


def _unequal_training_head_dims(use: Use) -> bool:
    """The head dims that TransformerEngine refuses from 9.11 on."""
    dims = (use.problem.head_dim, use.problem.head_dim_v)
    return use.backward and min(dims) >= 128 and dims[0] != dims[1] and dims != (192, 128)


def _stats_not_packed(use: Use) -> bool:
    """Dense statistics in another order than b, h, s."""
    p = use.problem
    dims, strides = p.dims("stats"), p.strides("stats")
    wanted = zip(dims, strides, packed_strides(dims), strict=True)
    return (
        (use.backward or p.stats) and not p.ragged_stats and any(dim > 1 and have != need for dim, have, need in wanted)
    )


def _stats_written(graph: Graph) -> list[Tensor]:
    """Return the logarithms of the sums of exponentials that a forward pass writes."""
    found = [
        tensor
        for op in look.of_kind(graph, DescriptorType.OPERATION_SDPA_FWD, DescriptorType.OPERATION_SOFTMAX)
        for port, tensor in op.ports()
        if port.rpartition(".")[2] == "stats"
    ]
    logs = {op.y.uid for op in look.of_mode(graph, PointwiseMode.LOG) if op.y is not None}
    sums = [op for op in look.of_mode(graph, PointwiseMode.ADD) if op.b is not None and op.b.uid in logs]
    return found + [op.y for op in sums if op.y is not None and not op.y.virtual]


def _scores(graph: Graph) -> tuple[int, ...]:
    """Return the dims of Q @ K^T where a graph is attention of many operations, nothing otherwise."""
    found = look.matmuls(graph)
    return found[0].c.dims if len(found) in (2, 5) else ()


def _biases(graph: Graph) -> list[Tensor]:
    """Return the tensors in memory that are added to the scores of attention."""
    scores = _scores(graph)
    adds = [op for op in look.of_mode(graph, PointwiseMode.ADD) if op.y is not None and op.y.dims == scores]
    for op in look.of_kind(graph, DescriptorType.OPERATION_SDPA_FWD, DescriptorType.OPERATION_SDPA_BWD):
        adds += [add for part in op.subgraphs() for add in look.of_mode(part, PointwiseMode.ADD)]
    ports = [tensor for op in adds for tensor in op.inputs().values()]
    return [tensor for tensor in ports if not (tensor.virtual or tensor.by_value) and tensor.rank == 4]


def _bias_with_inner_stride(graph: Graph) -> bool:
    return any(tensor.dims[3] > 1 and tensor.strides[3] != 1 for tensor in _biases(graph))


def _boolean_bias(graph: Graph) -> bool:
    return any(tensor.data_type is DataType.BOOLEAN for tensor in _biases(graph))


def _backward_head_dim_256(use: Use) -> bool:
    """A backward pass with the head dims that one kernel of sm_10x has, which is deterministic."""
    p = use.problem
    return use.backward and _half_attention(use) and p.head_dim == p.head_dim_v == 256 and not p.deterministic


def _offsets_too_short(use: Use) -> bool:
    """Ragged offsets of 32 bits into a tensor that may hold 2^31 elements and more."""
    p = use.problem
    sizes = [math.prod(p.dims(name)) for name in "qkvo"]
    return p.ragged and p.offset_type is DataType.INT32 and max(sizes) >= 1 << 31


def _bias_gradient_above_2_31(use: Use) -> bool:
    """A gradient of a bias that takes 2^31 bytes and more."""
    p = use.problem
    return use.backward and p.dbias and p.bias is not None and math.prod(p.bias) * ELEMENT_BITS[p.data_type] >= 1 << 34


def _infinite_masks(graph: Graph) -> bool:
    """Masks that put -inf into the scores of attention."""
    if not _scores(graph):
        return False
    selects = look.of_mode(graph, PointwiseMode.BINARY_SELECT)
    return any(op.b is not None and op.b.value == -math.inf for op in selects)


def _padded_before_stats(graph: Graph) -> bool:
    """A backward pass that masks the padding before it subtracts the statistics, and not again after that."""
    selects = {op.y.uid for op in look.of_mode(graph, PointwiseMode.BINARY_SELECT) if op.y is not None}
    exponents = {op.x.uid for op in look.of_mode(graph, PointwiseMode.EXP) if op.x is not None}
    padding = any(look.of_mode(graph, PointwiseMode.LOGICAL_AND))
    return (
        len(look.matmuls(graph)) == 5
        and padding
        and any(
            op.x is not None and op.x.uid in selects and op.y is not None and op.y.uid in exponents
            for op in look.of_mode(graph, PointwiseMode.SUB)
        )
    )


def _mx_one_query(use: Use) -> bool:
    """Block-scaled decoding without a sink and without pages."""
    p = use.problem
    return _decoding(use) and p.mx and not p.sink and p.page_size is None


def _mx_wide_heads(use: Use) -> bool:
    """Block-scaled attention with larger head dims than 192 and 128."""
    p = use.problem
    return not use.backward and p.mx and p.seq_q > 1 and (p.head_dim > 192 or p.head_dim_v > 128)


def _eight_bit_bias(graph: Graph) -> bool:
    """A bias of 8 bits, of Q that is none."""
    products = look.matmuls(graph)
    short = (DataType.INT8, DataType.UINT8, *FP8_TYPES)
    whole = len(products) > 0 and products[0].a.data_type not in FP8_TYPES
    return whole and any(tensor.data_type in short for tensor in _biases(graph))


# What reproductions share


def _forward(**options: Any) -> Graph:
    return composite_forward(Attention(**BASE | options), None)


def _backward(**options: Any) -> Graph:
    return composite_backward(Attention(**BASE | options), None)


def _changed(graph: Graph, name: str, **changes: Any) -> Graph:
    """Return a graph with a tensor of its pointwise operations changed."""
    old = graph.tensor(name)
    new = dataclasses.replace(old, **changes)
    ops = []
    for op in graph.ops:
        ports: dict[str, Any] = {port: new for port, tensor in op.ports() if tensor.uid == old.uid}
        ops.append(dataclasses.replace(op, **ports) if isinstance(op, Pointwise) else op)
    return Graph(tuple(ops), graph.name)


def _masked_before_stats() -> Graph:
    """Return a backward pass that subtracts the statistics from masked scores."""
    graph = _backward(padding=True)
    score, minus, masked = (graph.tensor(name) for name in ("mul", "minus_stats", "padded"))
    ports: dict[str, dict[str, Any]] = {
        "column": {"x": score},
        "row": {"x": score},
        "padded": {"x": score},
        "minus_stats": {"x": masked},
        "p": {"x": minus},
    }
    ops = [dataclasses.replace(op, **ports.get(op.name, {})) if isinstance(op, Pointwise) else op for op in graph.ops]
    return Graph(tuple(ops), graph.name)


_EIGHT: dict[str, Any] = {"data_type": DataType.FP8_E4M3, "head_dim": 128}
_DBIAS: dict[str, Any] = {"bias": (1, 2, 128, 128), "dbias": True}
_RAGGED_DECODING: dict[str, Any] = {"seq_q": 1, "seq_kv": 512, "ragged": True, "ragged_stats": True, "stats": True}
_SINK: dict[str, Any] = {"sink": True, "dsink": True}
_MX: dict[str, Any] = {"data_type": DataType.FP8_E4M3, "mx": True, "output_type": DataType.BFLOAT16, "head_dim": 128}
_FRONTEND_NODE = (
    "https://github.com/NVIDIA/cudnn-frontend/blob/main/include/cudnn_frontend/node/"
    "scaled_dot_product_flash_attention.h"
)
_FRONTEND_SURFACE = (
    "https://github.com/NVIDIA/cudnn-frontend/blob/05067cacebac48c00ab1ce6c9616cadae40ab74f"
    "/include/cudnn_frontend/node/sdpa_support_surface.h"
)

REPORTED_ATTENTION: tuple[Fault, ...] = (
    Fault(
        "attention-of-9-10",
        what="attention in float16 or bfloat16",
        effect="known faults, not named further; NVIDIA's own callers refuse attention with these versions",
        fix="use 9.10.2 or later",
        source=_FRONTEND_SURFACE,
        versions=Window(since=(9, 10, 0), until=(9, 10, 2)),
        attention=_half_attention,
        reproductions={"": Reproduction(False, {})},
        unlike=Reproduction(False, {"data_type": DataType.FP8_E4M3}),
    ),
    Fault(
        "fp8-attention-of-9-10",
        what="attention in 8-bit floats",
        effect="known faults, not named further; NVIDIA's own callers refuse it with this version",
        fix="use 9.10.1 or later",
        source=_FRONTEND_SURFACE,
        versions=Window(since=(9, 10, 0), until=(9, 10, 1)),
        attention=lambda use: use.problem.is_fp8,
        reproductions={"": Reproduction(False, {"data_type": DataType.FP8_E4M3})},
        unlike=Reproduction(False, {}),
    ),
    Fault(
        "window-of-9-14",
        what="a sliding window (left bound) without causal masking, s_kv above 1024",
        effect="a known fault; NVIDIA's own callers refuse it with this version",
        fix="use 9.14.1 or later, or a causal mask",
        source=_FRONTEND_SURFACE,
        versions=Window(since=(9, 14, 0), until=(9, 14, 1)),
        attention=_long_window_not_causal,
        reproductions={"": Reproduction(False, {"seq_kv": 2048, "left_bound": 64})},
        unlike=Reproduction(False, {"seq_kv": 2048, "left_bound": 64, "causal": True}),
        cure=Reproduction(False, {"seq_kv": 2048, "left_bound": 64, "causal": True}),
    ),
    Fault(
        "backward-in-cuda-graphs",
        what="a backward pass without padding, s_kv no multiple of 128",
        effect=(
            "memory beyond K and V is read: an illegal address where the plan is replayed from a CUDA graph, and NaN "
            "gradients were seen without one"
        ),
        fix="use 9.15.1 or later, or padding (seq_len_q, seq_len_kv)",
        source="https://github.com/NVIDIA/cudnn-frontend/releases/tag/v1.16.0",
        versions=Window(until=(9, 15, 1)),
        attention=_backward_with_key_tail,
        reproductions={"": Reproduction(True, {"seq_kv": 200})},
        unlike=Reproduction(True, {"seq_kv": 200, "padding": True}),
        cure=Reproduction(True, {"seq_kv": 200, "padding": True}),
    ),
    Fault(
        "dropout-heuristics",
        what="attention with random dropout",
        effect="the heuristics refuse graphs they should not, and the caller fails",
        fix="use 9.14.0 or later, or 9.10.2",
        source="https://github.com/pytorch/pytorch/pull/163903",
        versions=Window(since=(9, 11, 0), until=(9, 14, 0)),
        attention=lambda use: use.problem.dropout > 0,
        reproductions={"": Reproduction(False, {"dropout": 0.25})},
        unlike=Reproduction(False, {"dropout_mask": True}),
    ),
    Fault(
        "mxfp8-infinities",
        what="attention with block-scaled 8-bit floats",
        effect="Inf and NaN in the results",
        fix="use 9.23.2 or later",
        source="https://github.com/NVIDIA/TransformerEngine/pull/3173",
        versions=Window(since=(9, 23, 0), until=(9, 23, 2)),
        attention=lambda use: use.problem.mx,
        reproductions={
            "": Reproduction(False, {"data_type": DataType.FP8_E4M3, "mx": True, "output_type": DataType.BFLOAT16})
        },
        unlike=Reproduction(False, {"data_type": DataType.FP8_E4M3}),
    ),
    Fault(
        "fp8-split-keys",
        what=(
            "an 8-bit forward pass with bfloat16 O, s_q above 1, s_kv of 4096 and more, without bounds, "
            "pages, ragged sequences and dropout"
        ),
        effect="O is written as float16 bits: as bfloat16 it reads as all but zero",
        fix="use 9.25.0 or later, or float16 O",
        source="https://github.com/NVIDIA/cudnn-frontend/pull/414",
        sm=(
            100,
            103,
        ),
        versions=Window(since=(9, 24, 0), until=(9, 25, 0)),
        attention=_fp8_long_keys_to_bfloat16,
        reproductions={
            "": Reproduction(False, {"data_type": DataType.FP8_E4M3, "output_type": DataType.BFLOAT16, "seq_kv": 4096})
        },
        unlike=Reproduction(False, {"data_type": DataType.FP8_E4M3, "output_type": DataType.HALF, "seq_kv": 4096}),
        cure=Reproduction(False, {"data_type": DataType.FP8_E4M3, "output_type": DataType.HALF, "seq_kv": 4096}),
    ),
    Fault(
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
        versions=Window(since=(9, 19, 0), until=(9, 25, 1), except_=((9, 24, 1),)),
        attention=_decoding,
        reproductions={"": Reproduction(False, {"seq_q": 1, "seq_kv": 512})},
        unlike=Reproduction(False, {"seq_q": 2, "seq_kv": 512}),
    ),
    Fault(
        "decoding-ragged-stats",
        what="a forward pass with s_q of 1, grouped heads and ragged stats",
        effect="stats are written for the first head of each group only; O is right",
        fix="use 9.27.0 or later, or dense stats [b, h, 1, 1], which are the same bytes where every length is 1",
        source="https://github.com/NVIDIA/cudnn-frontend/issues/1083",
        versions=Window(since=(9, 24, 0), until=(9, 27, 0)),
        attention=_decoding_groups_with_ragged_stats,
        reproductions={
            "": Reproduction(
                False, {"seq_q": 1, "seq_kv": 300, "kv_heads": 1, "stats": True, "ragged_stats": True, "ragged": True}
            )
        },
        unlike=Reproduction(False, {"seq_q": 1, "seq_kv": 300, "kv_heads": 1, "stats": True, "ragged": True}),
        cure=Reproduction(False, {"seq_q": 1, "seq_kv": 300, "kv_heads": 1, "stats": True, "ragged": True}),
    ),
    Fault(
        "decoding-causal-groups",
        what="a forward pass with s_q of 1, causal, with fewer heads of K than of Q",
        effect="listed as a known issue of the version: decoding should be asked without a causal mask",
        fix="leave the causal mask out: the only query sees every key anyway",
        source="https://docs.nvidia.com/deeplearning/cudnn/backend/latest/release-notes.html",
        versions=Window(since=(9, 18, 1)),
        attention=lambda use: (
            _decoding(use) and use.problem.right_bound == 0 and use.problem.heads != use.problem.kv_heads
        ),
        reproductions={"": Reproduction(False, {"seq_q": 1, "seq_kv": 512, "kv_heads": 1, "causal": True})},
        unlike=Reproduction(False, {"seq_q": 1, "seq_kv": 512, "kv_heads": 1}),
        cure=Reproduction(False, {"seq_q": 1, "seq_kv": 512, "kv_heads": 1}),
    ),
    Fault(
        "backward-key-tail",
        what=(
            "a backward pass in 16 bits without padding and not causal, s_kv an odd multiple of 64, head dim up to 128"
        ),
        effect="dQ is NaN in rows whose logarithm of the sum of exponentials is below -88.7",
        fix="use 9.26.0 or later, or padding (seq_len_q, seq_len_kv)",
        source="https://github.com/pytorch/pytorch/issues/196678",
        sm=(90,),
        versions=Window(since=(9, 19, 0), until=(9, 26, 0)),
        attention=lambda use: (
            _backward_with_key_tail(use)
            and use.problem.seq_kv % 128 == 64
            and use.problem.right_bound != 0
            and _half_attention(use)
            and use.problem.head_dim <= 128
        ),
        reproductions={"": Reproduction(True, {"seq_kv": 192})},
        unlike=Reproduction(True, {"seq_kv": 192, "causal": True}),
        cure=Reproduction(True, {"seq_kv": 192, "padding": True}),
    ),
    Fault(
        "backward-one-query",
        what="a backward pass with s_q of 1, without padding",
        effect="dK and dV are NaN where the scores are strongly negative; seen with s_kv of 128, not with 97",
        fix="use padding (seq_len_q, seq_len_kv)",
        source="https://github.com/NVIDIA/cudnn-frontend/issues/1072",
        sm=(90,),
        versions=Window(since=(9, 25, 1)),
        attention=lambda use: use.backward and use.problem.seq_q == 1 and not use.problem.padding,
        reproductions={"": Reproduction(True, {"seq_q": 1, "seq_kv": 128})},
        unlike=Reproduction(True, {"seq_q": 1, "seq_kv": 128, "padding": True}),
        cure=Reproduction(True, {"seq_q": 1, "seq_kv": 128, "padding": True}),
    ),
    Fault(
        "sink-of-ragged-sequences",
        what="the gradient of a sink with ragged sequences, head dim of V other than 64, 128 and 256",
        effect=(
            "the statistics are read beyond their end: dsink is wrong or NaN, or the kernel reads an illegal address"
        ),
        fix="use padding instead of ragged sequences, or 9.27.0 or later with ragged_stats",
        source="https://github.com/NVIDIA/TransformerEngine/issues/3249",
        evidence="measured with 9.19.0 on sm_90: dsink is off by orders of magnitude",
        versions=Window(since=(9, 18, 0), until=(9, 26, 0)),
        attention=lambda use: (
            use.backward and use.problem.ragged and use.problem.dsink and use.problem.head_dim_v not in (64, 128, 256)
        ),
        reproductions={"": Reproduction(True, _SINK | {"ragged": True, "ragged_stats": True, "head_dim": 96})},
        unlike=Reproduction(True, _SINK | {"ragged": True, "ragged_stats": True, "head_dim": 128}),
        cure=Reproduction(True, _SINK | {"head_dim": 96, "padding": True}),
    ),
    Fault(
        "ragged-backward-gaps",
        what="a backward pass of ragged sequences",
        effect="gradients are NaN where the sequences have gaps between them: the workspace is not initialised",
        fix="use 9.18.0 or later, for which the fix was announced",
        source="https://github.com/NVIDIA/TransformerEngine/issues/2186",
        sm=(90,),
        versions=Window(until=(9, 18, 0)),
        attention=lambda use: use.backward and use.problem.ragged,
        reproductions={"": Reproduction(True, {"ragged": True})},
        unlike=Reproduction(False, {"ragged": True}),
    ),
    Fault(
        "ragged-attention-of-9-1",
        what="attention of ragged sequences",
        effect="wrong numbers",
        fix="use 9.3.0 or later",
        source="https://github.com/NVIDIA/TransformerEngine/pull/975",
        versions=Window(since=(9, 1, 0), until=(9, 3, 0)),
        attention=lambda use: use.problem.ragged,
        reproductions={"": Reproduction(False, {"ragged": True})},
        unlike=Reproduction(False, {"padding": True}),
    ),
    Fault(
        "stats-of-large-scores",
        what="a forward pass in 16 bits that writes stats",
        effect="stats are wrong where Q and K are large, so gradients are",
        fix="use 9.3.0 or later",
        source="https://github.com/pytorch/pytorch/issues/139298",
        versions=Window(until=(9, 3, 0)),
        attention=lambda use: not use.backward and use.problem.stats and _half_attention(use),
        reproductions={"": Reproduction(False, {"stats": True})},
        unlike=Reproduction(False, {}),
    ),
    Fault(
        "paged-attention-on-ada",
        what="attention with paged K and V",
        effect=(
            "a fault of cuDNN, not described: NVIDIA's own caller refuses it on these architectures in every version"
        ),
        fix="leave the pages out",
        source="https://github.com/NVIDIA/TransformerEngine/pull/2185",
        sm=(89, 120),
        versions=Window(since=(9, 4, 0)),
        attention=lambda use: use.problem.page_size is not None,
        reproductions={"": Reproduction(False, {"padding": True, "page_size": 16})},
        unlike=Reproduction(False, {"padding": True}),
        cure=Reproduction(False, {"padding": True}),
    ),
    Fault(
        "long-keys-hang",
        what="a bottom-right causal forward pass in 16 bits, s_kv of 131072 and more and above s_q, head dim 128",
        effect="the kernel does not end",
        fix="split K and V, or use another version",
        source="https://github.com/NVIDIA/TransformerEngine/issues/3285",
        sm=(103,),
        versions=Window(since=(9, 21, 0), until=(9, 22, 0)),
        attention=_very_long_causal_keys,
        reproductions={
            "": Reproduction(
                False, {"seq_q": 8192, "seq_kv": 131072, "causal": True, "alignment": "bottom_right", "head_dim": 128}
            )
        },
        unlike=Reproduction(False, {"seq_q": 8192, "seq_kv": 131072, "causal": True, "head_dim": 128}),
    ),
    Fault(
        "backward-stats-layout",
        what="a backward pass whose stats are neither ragged nor packed as b, h, s",
        effect="the Ampere-style kernels read stats at wrong places",
        fix="use 9.26.0 or later, or packed stats",
        source="https://github.com/NVIDIA/cudnn-frontend/pull/1023",
        sm=_SM80_KERNELS,
        versions=Window(until=(9, 26, 0)),
        attention=lambda use: use.backward and _stats_not_packed(use),
        reproductions={"": Reproduction(True, {"layout": {"stats": (256, 1, 2, 1)}})},
        unlike=Reproduction(True, {"layout": {"q": "bhsd"}}),
        cure=Reproduction(True, {}),
    ),
    Fault(
        "backward-head-dims-of-9-11",
        what="a backward pass with a head dim of Q from 129 to 191 and one of V from 65 to 127",
        effect="a known fault on Hopper; cudnn-frontend refuses it with these versions",
        fix="use 9.13.0 or later, or pad the head dims to 192 and 128",
        source="https://github.com/NVIDIA/cudnn-frontend/releases/tag/v1.14.1",
        sm=(90,),
        versions=Window(since=(9, 11, 0), until=(9, 13, 0)),
        attention=_hopper_training_head_dims,
        reproductions={"": Reproduction(True, {"head_dim": 160, "head_dim_v": 96})},
        unlike=Reproduction(True, {"head_dim": 160, "head_dim_v": 64}),
        cure=Reproduction(True, {"head_dim": 192, "head_dim_v": 128}),
    ),
    Fault(
        "backward-large-head-dims",
        what="a backward pass with head dims of Q and V of 128 and more that differ, other than 192 with 128",
        effect="a fault on Hopper that is not described; TransformerEngine refuses it until it is mended",
        fix="pad the smaller head dim with zeros to the larger one",
        source="https://github.com/NVIDIA/TransformerEngine/blob/d0067d0d/transformer_engine/common/fused_attn/fused_attn.cpp#L349",
        sm=(90,),
        versions=Window(since=(9, 11, 0)),
        attention=_unequal_training_head_dims,
        reproductions={"": Reproduction(True, {"head_dim": 256, "head_dim_v": 192})},
        unlike=Reproduction(True, {"head_dim": 192, "head_dim_v": 128}),
        cure=Reproduction(True, {"head_dim": 256, "head_dim_v": 256}),
    ),
    Fault(
        "backward-stats-layout-with-dbias",
        what="a backward pass with dbias whose stats are neither ragged nor packed as b, h, s",
        effect="it is served by the Ampere-style kernels, which read stats at wrong places",
        fix="use 9.26.0 or later, or packed stats",
        source="https://github.com/NVIDIA/cudnn-frontend/pull/1023",
        sm=_BLACKWELL,
        versions=Window(until=(9, 26, 0)),
        attention=lambda use: use.backward and use.problem.dbias and _stats_not_packed(use),
        reproductions={"": Reproduction(True, _DBIAS | {"layout": {"stats": (256, 1, 2, 1)}})},
        unlike=Reproduction(True, {"layout": {"stats": (256, 1, 2, 1)}}),
        cure=Reproduction(True, _DBIAS),
    ),
    Fault(
        "forward-stats-layout",
        what="a forward pass whose stats are neither ragged nor packed as b, h, s",
        effect="they are written as if they were packed: at wrong places, or beyond the buffer",
        fix="use 9.12.0 or later, or packed stats",
        source="https://github.com/NVIDIA/cudnn-frontend/pull/1023",
        versions=Window(until=(9, 12, 0)),
        attention=lambda use: not use.backward and _stats_not_packed(use),
        reproductions={"": Reproduction(False, {"stats": True, "layout": {"stats": (256, 1, 2, 1)}})},
        unlike=Reproduction(False, {"stats": True}),
        cure=Reproduction(False, {"stats": True}),
    ),
    Fault(
        "stats-not-float",
        what="a forward pass with stats of another data type than float32",
        effect=(
            "four bytes are written for each element: what lies behind a narrower buffer is overwritten, or the "
            "address is illegal"
        ),
        fix="make stats float32",
        source=_FRONTEND_NODE,
        evidence="measured with 9.19.0 on sm_90: float16 statistics hold NaN",
        graph=lambda graph: any(tensor.data_type is not DataType.FLOAT for tensor in _stats_written(graph)),
        reproductions={"": lambda: _changed(_forward(stats=True), "stats", data_type=DataType.HALF)},
        unlike=lambda: _forward(stats=True),
        cure=lambda: _forward(stats=True),
    ),
    Fault(
        "backward-one-key",
        what="a backward pass with s_kv of 1",
        effect="the release notes call it unsupported; it is accepted all the same",
        fix="pad K and V, with padding (seq_len_q, seq_len_kv)",
        source="https://docs.nvidia.com/deeplearning/cudnn/backend/latest/release-notes.html#cudnn-9-18-1",
        versions=Window(since=(9, 18, 0)),
        attention=lambda use: use.backward and use.problem.seq_kv == 1,
        reproductions={"": Reproduction(True, {"seq_kv": 1})},
        unlike=Reproduction(True, {"seq_kv": 64}),
        cure=Reproduction(True, {"seq_kv": 64, "padding": True}),
    ),
    Fault(
        "float32-in-one-operation",
        what="attention in float32 as one operation, SDPA_FWD",
        effect="a kernel for 16-bit elements runs, which writes beyond its shared memory",
        fix="use float16 or bfloat16",
        source="https://github.com/NVIDIA/cudnn-frontend/issues/424",
        attention=lambda use: (not use.backward and use.form == "unified" and use.problem.data_type is DataType.FLOAT),
        reproductions={"": Reproduction(False, {"data_type": DataType.FLOAT}, "unified", (9, 24, 0))},
        unlike=Reproduction(False, {}, "unified", (9, 24, 0)),
        cure=Reproduction(False, {}, "unified", (9, 24, 0)),
    ),
    Fault(
        "fp8-window-of-sequences",
        what="a left bound with padding or ragged sequences and an fp8 data type",
        effect="the forward pass does not end, for some lengths and bounds; seen with 9.25 and 9.27",
        fix="leave the left bound or the lengths out, or use float16 or bfloat16",
        source="https://github.com/NVIDIA/cudnn-frontend/pull/1069",
        sm=(90,),
        versions=Window(since=(9, 25, 0)),
        attention=lambda use: (
            not use.backward
            and use.problem.is_fp8
            and use.problem.left_bound is not None
            and (use.problem.padding or use.problem.ragged)
        ),
        reproductions={
            "": Reproduction(
                False, {"data_type": DataType.FP8_E4M3, "padding": True, "left_bound": 64, "right_bound": 0}
            )
        },
        unlike=Reproduction(False, {"data_type": DataType.FP8_E4M3, "padding": True, "right_bound": 0}),
        cure=Reproduction(False, {"padding": True, "left_bound": 64, "right_bound": 0}),
    ),
    Fault(
        "block-mask-first-block",
        what="attention with a block mask",
        effect=(
            "where the first block of keys of a row is masked out, memory that nobody wrote takes part: wrong "
            "numbers or NaN"
        ),
        fix="use 9.26.0 or later, or a bias instead of the block mask",
        source=_FRONTEND_SURFACE,
        sm=_BLACKWELL,
        versions=Window(since=(9, 14, 0), until=(9, 26, 0)),
        attention=lambda use: use.problem.block_mask,
        reproductions={"": Reproduction(False, {"block_mask": True}, "unified", (9, 14, 0))},
        unlike=Reproduction(False, {}, "unified", (9, 14, 0)),
        cure=Reproduction(False, {"bias": (1, 1, 128, 128)}),
    ),
    Fault(
        "mxfp8-one-query",
        what="a forward pass with block-scaled 8-bit floats and s_q of 1, without sink and pages",
        effect="the process ends by a segmentation fault while a plan is built",
        fix="repeat the query row (s_q of 2), or use float16 or bfloat16",
        source="https://github.com/NVIDIA/cudnn-frontend/blob/main/python/cudnn/sdpa/fwd/backend_guard.py",
        evidence=(
            "measured with 9.24.0 and 9.26.0 to 9.28.0 on sm_100, deviceless; NVIDIA says so of 9.26 to 9.28 on sm_107"
        ),
        sm=(100, 103, 107),
        versions=Window(since=(9, 24, 0)),
        attention=_mx_one_query,
        step="build",
        reproductions={"": Reproduction(False, _MX | {"seq_q": 1, "seq_kv": 512})},
        unlike=Reproduction(False, _MX | {"seq_q": 2, "seq_kv": 512}),
        cure=Reproduction(False, _MX | {"seq_q": 2, "seq_kv": 512}),
    ),
    Fault(
        "mxfp8-wide-heads",
        what="a forward pass with block-scaled 8-bit floats and head dims above 192 of Q or 128 of V",
        effect="the support check passes and no plan can be built",
        fix="use float16 or bfloat16, or head dims up to 192 and 128",
        source="https://github.com/NVIDIA/cudnn-frontend/pull/897",
        evidence=(
            "measured with 9.24.0, 9.26.0 and 9.27.0 (512) and 9.28.0 (192 and 192 to 512) on sm_100 and "
            "sm_103, deviceless"
        ),
        sm=_BLACKWELL,
        versions=Window(since=(9, 24, 0)),
        attention=_mx_wide_heads,
        step="build",
        reproductions={"": Reproduction(False, _MX | {"head_dim": 512})},
        unlike=Reproduction(False, _MX | {"head_dim": 192, "head_dim_v": 128}),
        cure=Reproduction(False, _MX | {"head_dim": 192, "head_dim_v": 128}),
    ),
    Fault(
        "mxfp8-backward",
        what="a backward pass with block-scaled 8-bit floats",
        effect="the support check passes and no plan that heuristics propose can be built",
        fix="use attention.deterministic_config, or float16 or bfloat16",
        source="tests/library/graph/test_faults.py",
        evidence=(
            "measured with 9.24.0, 9.26.0, 9.27.0 and 9.28.0 on sm_100, deviceless, with head dims of 64, 96 and 128"
        ),
        sm=(100,),
        versions=Window(since=(9, 24, 0)),
        attention=lambda use: use.backward and use.problem.mx,
        step="build",
        reproductions={"": Reproduction(True, _MX)},
        unlike=Reproduction(True, {"head_dim": 128}),
        cure=Reproduction(True, {"head_dim": 128}),
    ),
    Fault(
        "fp8-one-query",
        what="a forward pass in 8-bit floats, not block-scaled, with s_q of 1",
        effect="the support check passes and no plan can be built",
        fix="repeat the query row (s_q of 2), or use float16 or bfloat16",
        source="tests/library/graph/test_faults.py",
        evidence=(
            "measured with 9.14.0, 9.19.0, 9.24.0 and 9.26.0 to 9.28.0 on sm_100, deviceless, composite and unified"
        ),
        sm=(100, 103),
        versions=Window(since=(9, 14, 0)),
        attention=lambda use: _decoding(use) and use.problem.is_fp8 and not use.problem.mx,
        step="build",
        reproductions={"": Reproduction(False, _EIGHT | {"seq_q": 1, "seq_kv": 512})},
        unlike=Reproduction(False, _EIGHT | {"seq_q": 2, "seq_kv": 512}),
        cure=Reproduction(False, _EIGHT | {"seq_q": 2, "seq_kv": 512}),
    ),
    Fault(
        "eight-bit-bias",
        what="a bias of 8-bit integers or floats beside Q of 16 bits",
        effect="the process ends with an uncaught C++ exception (format_error) while a plan is built",
        fix="make the bias of the data type of Q",
        source="tests/library/graph/test_faults.py",
        evidence=(
            "measured with 9.14.0, 9.19.0, 9.24.0 and 9.26.0 to 9.28.0 on sm_90, deviceless; on sm_100 with 9.19.0 only"
        ),
        sm=(90,),
        versions=Window(since=(9, 14, 0)),
        graph=_eight_bit_bias,
        step="build",
        reproductions={
            "": lambda: _changed(_forward(bias=(1, 2, 128, 128)), "bias", data_type=DataType.INT8),
            "float": lambda: _changed(_forward(bias=(1, 2, 128, 128)), "bias", data_type=DataType.FP8_E4M3),
        },
        unlike=lambda: _forward(bias=(1, 2, 128, 128)),
        cure=lambda: _forward(bias=(1, 2, 128, 128)),
    ),
    Fault(
        "backward-head-dim-256",
        what="a backward pass with head dims of 256, not deterministic",
        effect="the support check passes and no plan that heuristics propose can be built",
        fix="use deterministic=True with attention.deterministic_config, or head dims up to 128",
        source="https://github.com/NVIDIA/cudnn-frontend/releases/tag/v1.24.1",
        evidence="measured with 9.24.0 and 9.26.0 to 9.28.0 on sm_100, deviceless",
        sm=_BLACKWELL,
        versions=Window(since=(9, 23, 0)),
        attention=_backward_head_dim_256,
        step="build",
        reproductions={"": Reproduction(True, {"head_dim": 256})},
        unlike=Reproduction(True, {"head_dim": 256, "deterministic": True}),
        cure=Reproduction(True, {"head_dim": 128}),
    ),
    Fault(
        "ragged-decoding-build",
        what="the unified forward pass of ragged sequences with ragged stats and s_q of 1",
        effect="the support check passes and the plan cuDNN ranks first does not compile",
        fix="use 9.28.0 or later, take the next plan, or repeat the query row (s_q of 2)",
        source="https://github.com/NVIDIA/cudnn-frontend/pull/1181",
        sm=(107,),
        versions=Window(since=(9, 26, 0), until=(9, 28, 0)),
        attention=lambda use: _decoding(use)
        and use.form == "unified"
        and use.problem.ragged
        and use.problem.ragged_stats,
        step="build",
        reproductions={"": Reproduction(False, _RAGGED_DECODING, "unified", (9, 26, 0))},
        unlike=Reproduction(False, _RAGGED_DECODING | {"seq_q": 2}, "unified", (9, 26, 0)),
        cure=Reproduction(False, _RAGGED_DECODING | {"seq_q": 2}, "unified", (9, 26, 0)),
    ),
    Fault(
        "bounded-total-ampere-kernels",
        what="max_total_seq_q or max_total_seq_kv in a backward pass",
        effect="a known fault of the Ampere-style kernels; cudnn-frontend leaves the bounds out",
        fix="leave max_total_seq_q and max_total_seq_kv out",
        source=_FRONTEND_NODE,
        sm=_SM80_KERNELS,
        versions=Window(since=(9, 18, 1)),
        attention=lambda use: use.backward
        and (use.problem.max_total_seq_q is not None or use.problem.max_total_seq_kv is not None),
        reproductions={"": Reproduction(True, {"ragged": True, "max_total_seq_q": 256, "max_total_seq_kv": 256})},
        unlike=Reproduction(True, {"ragged": True}),
        cure=Reproduction(True, {"ragged": True}),
    ),
    Fault(
        "dbias-above-2-31",
        what="a gradient of a bias of 2^31 bytes and more",
        effect="an illegal memory access",
        fix="split the heads or the batch",
        source="https://github.com/openxla/xla/issues/36454",
        versions=Window(since=(9, 13, 1)),
        attention=_bias_gradient_above_2_31,
        reproductions={
            "": Reproduction(
                True, {"heads": 8, "seq_q": 33280, "head_dim": 128, "bias": (2, 1, 33280, 33280), "dbias": True}
            )
        },
        unlike=Reproduction(
            True, {"heads": 8, "seq_q": 8192, "head_dim": 128, "bias": (2, 1, 8192, 8192), "dbias": True}
        ),
        cure=Reproduction(
            True, {"heads": 8, "seq_q": 8192, "head_dim": 128, "bias": (2, 1, 8192, 8192), "dbias": True}
        ),
    ),
    Fault(
        "ragged-offsets-of-32-bits",
        what="ragged offsets of 32 bits into tensors of 2^31 elements and more",
        effect="offsets that do not fit: wrong places are read and written, or the address is illegal",
        fix="use offset_type=DataType.INT64",
        source="https://github.com/NVIDIA/cudnn-frontend/issues/980",
        attention=_offsets_too_short,
        reproductions={"": Reproduction(False, {"batch": 64, "heads": 16, "seq_q": 32768, "ragged": True})},
        unlike=Reproduction(
            False, {"batch": 64, "heads": 16, "seq_q": 32768, "ragged": True, "offset_type": DataType.INT64}
        ),
        cure=Reproduction(
            False, {"batch": 64, "heads": 16, "seq_q": 32768, "ragged": True, "offset_type": DataType.INT64}
        ),
    ),
    Fault(
        "fp8-paged-prefill",
        what="a forward pass in 8-bit floats with paged K and V and s_q above 1",
        effect="results are off with kernels compiled by CUDA 12.9 and before; FlashInfer's tests expect it",
        fix="use a cuDNN for CUDA 13, or leave the pages out",
        source="https://github.com/flashinfer-ai/flashinfer/pull/2963",
        sm=(100, 103),
        versions=Window(since=(9, 17, 1)),
        attention=lambda use: use.problem.is_fp8
        and not use.backward
        and use.problem.page_size is not None
        and use.problem.seq_q > 1,
        reproductions={
            "": Reproduction(False, {"data_type": DataType.FP8_E4M3, "head_dim": 128, "padding": True, "page_size": 64})
        },
        unlike=Reproduction(False, {"data_type": DataType.FP8_E4M3, "head_dim": 128, "padding": True}),
        cure=Reproduction(False, {"data_type": DataType.FP8_E4M3, "head_dim": 128, "padding": True}),
    ),
    Fault(
        "infinite-masks",
        what="masks of -inf in the scores of attention",
        effect="rows without any key become NaN; cudnn-frontend masks with the lowest float instead",
        fix="use 9.10.0 or later, or mask with -3.4028235e38",
        source="https://github.com/NVIDIA/cudnn-frontend/blob/main/include/cudnn_frontend/node/attn_score_modifiers.h",
        versions=Window(until=(9, 10, 0)),
        graph=_infinite_masks,
        reproductions={"": lambda: _forward(causal=True)},
        unlike=lambda: composite_forward(Attention(**BASE | {"causal": True}), (9, 8, 0)),
        cure=lambda: composite_forward(Attention(**BASE | {"causal": True}), (9, 8, 0)),
    ),
    Fault(
        "padding-before-stats",
        what="a backward pass that masks the padding before it subtracts the stats, and not after",
        effect="gradients of rows beyond the lengths are NaN",
        fix="use 9.10.0 or later, or mask after stats are subtracted",
        source=_FRONTEND_NODE,
        versions=Window(until=(9, 10, 0)),
        graph=_padded_before_stats,
        reproductions={"": _masked_before_stats},
        unlike=lambda: composite_backward(Attention(**BASE | {"padding": True}), (9, 8, 0)),
        cure=lambda: composite_backward(Attention(**BASE | {"padding": True}), (9, 8, 0)),
    ),
    Fault(
        "boolean-bias",
        what="a bias of booleans",
        effect="the process ends by an arithmetic exception (SIGFPE) while engines are chosen",
        fix="make the bias of the data type of Q: 0 where a score is kept, -inf elsewhere",
        source=_FRONTEND_SURFACE,
        evidence="measured with 9.14.0, 9.19.0, 9.24.0 and 9.26.0 to 9.28.0 on sm_90 and sm_100, deviceless",
        graph=_boolean_bias,
        step="check",
        reproductions={
            "": lambda: _changed(_forward(bias=(1, 2, 128, 128)), "bias", data_type=DataType.BOOLEAN),
            "backward": lambda: _changed(_backward(bias=(1, 2, 128, 128)), "bias", data_type=DataType.BOOLEAN),
        },
        unlike=lambda: _forward(bias=(1, 2, 128, 128)),
        cure=lambda: _forward(bias=(1, 2, 128, 128)),
    ),
    Fault(
        "bias-inner-stride",
        what="a bias whose stride over s_kv is not 1",
        effect="the process ends by a segmentation fault while engines are chosen",
        fix="lay the bias out densely",
        source=_FRONTEND_NODE,
        evidence="measured with 9.19.0 and 9.24.0 on sm_100, deviceless; 9.14.0 takes it, 9.26.0 and later refuse it",
        sm=(100, 103),
        versions=Window(since=(9, 15, 0), until=(9, 26, 0)),
        graph=_bias_with_inner_stride,
        step="check",
        reproductions={
            "": lambda: _changed(_forward(bias=(1, 2, 128, 128)), "bias", strides=(2 * 128 * 256, 128 * 256, 256, 2))
        },
        unlike=lambda: _forward(bias=(1, 2, 128, 128)),
        cure=lambda: _forward(bias=(1, 2, 128, 128)),
    ),
    Fault(
        "kernel-cache-of-attention",
        what="attention with dynamic shapes and a kernel cache",
        effect=(
            "a plan from the cache runs with the dims and strides of the first one: other lengths come out wrong or "
            "are not written, more batches are not written, and for fewer batches it writes beyond the end of O"
        ),
        fix="build a plan for each shape, or a ragged plan for the largest one",
        source=MEASURED_ON_GPU,
        evidence=(
            "measured with 9.19.0 on sm_90: 39 of 50 changes of shape; right were the "
            "lengths of ragged sequences, and batches with the engines that are not proposed first"
        ),
        versions=Window(since=(9, 18, 0), until=(9, 21, 0)),
        attention=lambda use: not use.backward,
        sharing="kernel cache",
        reproductions={"": Reproduction(False, {})},
        unlike=Reproduction(True, {}),
    ),
    Fault(
        "override-shapes-of-attention",
        what="attention with override shapes, of sequences that are not ragged",
        effect=(
            "of the dims that an execution gives, the number of keys is taken; rows of Q and all strides stay those "
            "the plan was built for, and batches do with the engine that is proposed first: rows come out wrong or are "
            "not written, and memory outside of O is written. Many operations without padding are wrong even in the "
            "dims they were built for"
        ),
        fix="make the sequences ragged, which is right for more and longer ones too; or build a plan for each shape",
        source=MEASURED_ON_GPU,
        evidence=(
            "measured on sm_90 with 9.27.0, and with 9.28.0: 128 of 136 changes of shape, with the tensors in memory "
            "or all tensors overridden; ragged: 18 of 18 right"
        ),
        versions=Window(since=(9, 21, 0)),
        attention=lambda use: not use.backward and not use.problem.ragged,
        sharing="override shapes",
        reproductions={"": Reproduction(False, {}), "unified": Reproduction(False, {}, "unified")},
        unlike=Reproduction(False, {"ragged": True}),
    ),
)
