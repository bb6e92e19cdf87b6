"""The table of faults: what cuDNN accepts and then gets wrong, or dies of, in one row each.

Rows of ``refused=True`` were measured for this package, each on an H100 (sm_90) and some on described GPUs: wrong
numbers against the float64 reference, memory not written, an illegal address, or a process that ends;
``examples/attention_hazards.py`` shows each. The others were reported in public, where ``source`` says.

A new fault is a row here; the tests take its graphs from ``reproductions`` and ``unlike``.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from ...generated.enums import DataType, DescriptorType, MoeGroupedMatmulMode
from ...generated.operations import CONVOLUTIONS
from ...system.version import Window
from ..attention.modifiers import SoftCap
from ..builder import GraphBuilder
from ..data_types import ELEMENT_BITS, FP8_TYPES, HALF_TYPES
from ..ir import Graph, Operation, packed_strides
from .fault import Fault, Reproduction, Use

__all__ = ["FAULTS", "MEASURED"]

MEASURED = "examples/attention_hazards.py"  # the source of what was measured, and how to see it

_D = DescriptorType


# Conditions that several rows share, or that need more than a line


def _forward_fp8(use: Use) -> bool:
    return use.problem.is_fp8 and not use.backward


def _backward_fp8(use: Use) -> bool:
    return use.problem.is_fp8 and use.backward


def _alibi_unmasked(use: Use) -> bool:
    """Whether nothing masks what lies beyond the sequences of a backward pass with ALiBi."""
    p = use.problem
    band = p.alignment == "top_left" and (p.left_bound is not None or p.right_bound is not None)
    return use.backward and p.alibi and not p.padding and p.right_bound != 0 and not band


def _tensors(use: Use) -> Iterator[tuple[tuple[int, ...], tuple[int, ...], int]]:
    """Yield dims, strides and bytes per element of Q, K, V, O and the gradients."""
    p = use.problem
    assert p.output_type is not None  # set with the problem
    for name in ("q", "k", "v", "o", *(("do", "dq", "dk", "dv") if use.backward else ())):
        written = name in ("dq", "dk", "dv") or (name == "o" and not use.backward)
        yield p.dims(name), p.strides(name), ELEMENT_BITS[p.output_type if written else p.data_type] // 8


def _inner_stride(use: Use) -> bool:
    return any(dims[-1] > 1 and strides[-1] != 1 for dims, strides, _ in _tensors(use))


def _unaligned_strides(use: Use) -> bool:
    """Whether a stride is no multiple of 16 bytes though the head dim is one (else cuDNN refuses)."""
    return any(
        dims[-1] * size % 16 == 0
        and any(dim > 1 and stride * size % 16 for dim, stride in zip(dims[:-1], strides[:-1], strict=True))
        for dims, strides, size in _tensors(use)
    )


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


def _backward_mixed_head_dims(use: Use) -> bool:
    """A backward pass with two large head dims that differ."""
    dims = (use.problem.head_dim, use.problem.head_dim_v)
    return use.backward and dims[0] != dims[1] and max(dims) > 128 and dims != (192, 128)


def _backward_with_stats_not_packed(use: Use) -> bool:
    """A backward pass with dense statistics in another order than b, h, s."""
    p = use.problem
    dims, strides = p.dims("stats"), p.strides("stats")
    wanted = zip(dims, strides, packed_strides(dims), strict=True)
    return use.backward and not p.ragged_stats and any(dim > 1 and have != need for dim, have, need in wanted)


def _bfloat16_convolution_3d(graph: Graph) -> bool:
    """A forward convolution of [n, c, d, h, w] in bfloat16."""
    return any(
        isinstance(op, Operation)
        and op.kind is _D.OPERATION_CONVOLUTION_FORWARD
        and op.fields["x"].data_type is DataType.BFLOAT16
        and op.fields["x"].rank == 5
        for op in graph.ops
    )


def _large_depthwise_convolution(graph: Graph) -> bool:
    """A convolution of many channels whose filter has one, over 2^31 elements or more."""
    for op in graph.ops:
        if not isinstance(op, Operation) or op.kind not in CONVOLUTIONS:
            continue
        image = op.fields.get("x") or op.fields["dx"]
        weights = op.fields.get("w") or op.fields["dw"]
        if min(image.rank, weights.rank) < 2:
            continue
        if weights.dims[1] == 1 < image.dims[1] and math.prod(image.dims) >= 1 << 31:
            return True
    return False


def _fp8_expert_matmul(graph: Graph) -> bool:
    """A matmul per group of tokens in 8-bit floats."""
    return any(
        isinstance(op, Operation)
        and op.kind is _D.OPERATION_MOE_GROUPED_MATMUL
        and op.fields["token"].data_type in FP8_TYPES
        for op in graph.ops
    )


# What reproductions share


def _convolution(data_type: DataType, image: tuple[int, ...], weights: tuple[int, ...]) -> Graph:
    """Return one forward convolution."""
    g = GraphBuilder("convolution", io_type=data_type)
    g.convolution(g.tensor("x", image), g.tensor("w", weights), name="y", virtual=False)
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


_FP8: dict[str, Any] = {"data_type": DataType.FP8_E4M3, "head_dim": 128}
_BIAS = {"bias": (1, 2, 128, 128)}
_DSINK: dict[str, Any] = {"sink": True, "dsink": True}
_BOUNDED: dict[str, Any] = {"ragged": True, "max_total_seq_q": 256, "max_total_seq_kv": 256}
_RAGGED = {"ragged": True, "ragged_stats": True}
_DECODING: dict[str, Any] = {
    "heads": 6,
    "kv_heads": 2,
    "seq_q": 1,
    "padding": True,
    "page_size": 64,
    "sink": True,
    "stats": True,
}
_CAPPED: dict[str, Any] = {"score_modifier": SoftCap(0.5)}

_ALL = "measured with 9.19.0, 9.27.0 and 9.28.0 on sm_90"
_FIXED = "measured with 9.19.0 and 9.27.0 on sm_90; 9.28.0 is right"
_FRONTEND_SURFACE = (
    "https://github.com/NVIDIA/cudnn-frontend/blob/05067cacebac48c00ab1ce6c9616cadae40ab74f"
    "/include/cudnn_frontend/node/sdpa_support_surface.h"
)

FAULTS: tuple[Fault, ...] = (
    Fault(
        "inner-stride",
        what="a stride over d that is not 1, of Q, K, V, O or a gradient",
        effect=(
            "the process ends by a segmentation fault while engines are chosen or a plan is built; dQ comes out wrong"
        ),
        fix="lay d out densely",
        source=MEASURED,
        evidence="measured with 9.19.0 and 9.28.0 on sm_90, the fault on sm_100 and sm_120 as well, deviceless",
        sm=(90, 100, 103, 120, 121),
        attention=_inner_stride,
        reproductions={
            "": Reproduction(False, {"layout": {"q": (2 * 128 * 128, 128 * 128, 128, 2)}}),
            "backward": Reproduction(True, {"layout": {"dv": (2 * 128 * 128, 128 * 128, 128, 2)}}),
            "dq": Reproduction(True, {"layout": {"dq": (2 * 128 * 128, 128 * 128, 128, 2)}}),
        },
        refused=True,
    ),
    Fault(
        "backward-of-one-row",
        what="a backward pass with a batch, head count and s_q of 1",
        effect="the process ends by a segmentation fault while engines are chosen",
        fix="repeat the row in the batch",
        source=MEASURED,
        evidence=(
            "measured deviceless with 9.26.0, 9.27.0 and 9.28.0 on sm_80, sm_90, sm_100, with 9.28.0 on sm_89 and "
            "sm_120 too; 9.25.0 and before answer"
        ),
        sm=(80, 86, 89, 90, 100, 103, 120, 121),
        versions=Window(since=(9, 26, 0)),
        attention=lambda use: use.backward and use.problem.batch == use.problem.heads == use.problem.seq_q == 1,
        reproductions={"": Reproduction(True, {"batch": 1, "heads": 1, "seq_q": 1, "seq_kv": 128})},
        refused=True,
    ),
    Fault(
        "unaligned-strides",
        what="a stride over b, h or s that is no multiple of 16 bytes, of Q, K, V, O or a gradient",
        effect="outputs and gradients are wrong or not written, or the kernel ends with a misaligned address",
        fix="pad the strides to multiples of 16 bytes",
        source=MEASURED,
        evidence="measured with 9.19.0 and 9.28.0 on sm_90, composite and unified, ragged and paged too",
        sm=(90,),
        attention=_unaligned_strides,
        reproductions={
            "": Reproduction(False, {"stats": True, "layout": {"q": (2 * 128 * 68, 128 * 68, 68, 1)}}),
            "backward": Reproduction(True, {"layout": {"v": (2 * 128 * 64 + 4, 128 * 64, 64, 1)}}),
            "address": Reproduction(True, {"layout": {"q": (2 * 128 * 64 + 4, 128 * 64, 64, 1)}}),
        },
        refused=True,
    ),
    Fault(
        "paged-decoding-sink",
        what="a sink with paged K and V and s_q of 1",
        effect="O, or O and the statistics, are off by 0.1 to 8 percent",
        fix="leave the pages out, or repeat the query row: s_q of 2 and more is right",
        source=MEASURED,
        evidence=(
            "measured with 9.19.0 and 9.28.0 on sm_90, with s_kv of 333 and 1024; which of the two is wrong depends on "
            "the version, the group size and s_kv"
        ),
        sm=(90,),
        attention=(
            lambda use: not use.backward
            and use.problem.page_size is not None
            and use.problem.sink
            and use.problem.seq_q == 1
        ),
        reproductions={
            "": Reproduction(False, _DECODING | {"seq_kv": 333}),
            "longer": Reproduction(False, _DECODING | {"seq_kv": 1024}),
        },
        refused=True,
    ),
    Fault(
        "decoding-dropout",
        what="random dropout with s_q of 1 and s_kv above 256",
        effect="an illegal address, or another mask than the seed and the offset give",
        fix="leave dropout out, as inference does",
        source=MEASURED,
        evidence=(
            "measured with 9.19.0 and 9.28.0 on sm_90; s_kv of 256 and less, where another kernel comes first, is right"
        ),
        sm=(90,),
        attention=(
            lambda use: (
                not use.backward and use.problem.dropout > 0 and use.problem.seq_q == 1 and use.problem.seq_kv > 256
            )
        ),
        reproductions={"": Reproduction(False, {"seq_q": 1, "seq_kv": 333, "dropout": 0.5})},
        refused=True,
    ),
    Fault(
        "alibi-rows",
        what=(
            "ALiBi in a backward pass without padding, with s_q that is no multiple of 64 and below s_kv, "
            "not causal nor in a top-left band"
        ),
        effect="dK and dV are NaN where exp(slope * (s_kv - s_q)) exceeds the data type: rows beyond s_q take part",
        fix="use padding (seq_len_q, seq_len_kv)",
        source=MEASURED,
        evidence="measured with 9.19.0 and 9.28.0 on sm_90, composite and unified",
        sm=(90,),
        attention=(
            lambda use: _alibi_unmasked(use) and use.problem.seq_q % 64 != 0 and use.problem.seq_q < use.problem.seq_kv
        ),
        reproductions={"": Reproduction(True, {"heads": 8, "alibi": True, "seq_q": 72, "seq_kv": 384})},
        refused=True,
    ),
    Fault(
        "alibi-columns",
        what=(
            "ALiBi in a backward pass without padding, with s_kv that is an odd multiple of 64, "
            "not causal nor in a top-left band"
        ),
        effect="dQ is NaN where exp(slope * 64) exceeds the data type: columns beyond s_kv take part",
        fix="use padding (seq_len_q, seq_len_kv)",
        source=MEASURED,
        evidence="measured with 9.19.0 on sm_90; 9.28.0 is right; the versions between were not measured",
        sm=(90,),
        versions=Window(until=(9, 28, 0)),
        attention=lambda use: _alibi_unmasked(use) and use.problem.seq_kv % 128 == 64,
        reproductions={"": Reproduction(True, {"heads": 8, "alibi": True, "seq_q": 384, "seq_kv": 64})},
        refused=True,
    ),
    Fault(
        "row-statistics-alone",
        what="max or sum_exp alone, or beside stats, from the expanded softmax",
        effect=(
            "alone: the kernel writes through a null pointer (illegal address); beside stats: they are not written"
        ),
        fix="ask for max and sum_exp together and without stats, or give version=(9, 21, 0) or later",
        source=MEASURED,
        evidence="measured with 9.19.0 on sm_90; with 9.28.0 alone is right, beside stats is not written",
        sm=(90,),
        attention=(
            lambda use: (
                not use.backward
                and use.form == "expanded"
                and (use.problem.max or use.problem.sum_exp)
                and (use.problem.stats or not (use.problem.max and use.problem.sum_exp))
            )
        ),
        reproductions={
            "": Reproduction(False, {"max": True}),
            "beside-stats": Reproduction(False, {"stats": True, "max": True, "sum_exp": True}),
        },
        refused=True,
    ),
    Fault(
        "fp8-row-maximum",
        what="max of an fp8 forward pass",
        effect="it comes in units of log 2: 1.4427 times the row maximum",
        fix="leave max out, or divide it by log2(e)",
        source=MEASURED,
        evidence=(_ALL),
        sm=(90,),
        attention=lambda use: _forward_fp8(use) and use.problem.max,
        reproductions={"": Reproduction(False, _FP8 | {"max": True, "sum_exp": True})},
        refused=True,
    ),
    Fault(
        "fp8-bias",
        what="a bias with an fp8 data type",
        effect=(
            "forward: the process ends with an uncaught C++ exception (format_error); backward: the bias is ignored"
        ),
        fix="use float16 or bfloat16",
        source=MEASURED,
        evidence=(
            "measured with 9.19.0 and 9.27.0 on sm_90; heuristics or build end the process on sm_100 to "
            "sm_120, deviceless"
        ),
        sm=(90, 100, 103, 120, 121),
        attention=lambda use: use.problem.is_fp8 and use.problem.bias is not None,
        reproductions={"": Reproduction(False, _FP8 | _BIAS), "backward": Reproduction(True, _FP8 | _BIAS)},
        refused=True,
    ),
    Fault(
        "fp8-alibi",
        what="ALiBi with an fp8 data type",
        effect="outputs and statistics are wrong; gradients were NaN once, beside a right bound",
        fix="use float16 or bfloat16",
        source=MEASURED,
        evidence=(_ALL),
        sm=(90,),
        attention=lambda use: use.problem.is_fp8 and use.problem.alibi,
        reproductions={
            "": Reproduction(False, _FP8 | {"alibi": True, "stats": True}),
            "backward": Reproduction(True, _FP8 | {"alibi": True}),
        },
        refused=True,
    ),
    Fault(
        "fp8-dropout-mask",
        what="a given dropout mask with an fp8 data type",
        effect="the outputs are wrong, or the process ends with an uncaught C++ exception (format_error)",
        fix="use float16 or bfloat16",
        source=MEASURED,
        evidence=(
            "measured with 9.19.0 and 9.27.0 on sm_90; building the plan ends the process on sm_100 and "
            "sm_120, deviceless"
        ),
        sm=(90, 100, 103, 120, 121),
        attention=lambda use: use.problem.is_fp8 and use.problem.dropout_mask,
        reproductions={"": Reproduction(False, _FP8 | {"dropout_mask": True})},
        refused=True,
    ),
    Fault(
        "fp8-dropout",
        what="random dropout with an fp8 data type",
        effect=(
            "forward: an illegal address; backward: gradients without the scales of P and dP, or an illegal address"
        ),
        fix="use float16 or bfloat16",
        source=MEASURED,
        evidence=(_ALL),
        sm=(90,),
        attention=lambda use: use.problem.is_fp8 and use.problem.dropout > 0,
        reproductions={
            "": Reproduction(False, _FP8 | {"dropout": 0.5}),
            "backward": Reproduction(True, _FP8 | {"dropout": 0.5}),
        },
        refused=True,
    ),
    Fault(
        "fp8-backward-ragged",
        what="ragged sequences in an fp8 backward pass",
        effect="the gradients are wrong or NaN",
        fix="use padding instead of ragged sequences, or float16 or bfloat16",
        source=MEASURED,
        evidence=(_ALL),
        sm=(90,),
        attention=lambda use: _backward_fp8(use) and use.problem.ragged,
        reproductions={"": Reproduction(True, _FP8 | {"ragged": True, "kv_heads": 1})},
        refused=True,
    ),
    Fault(
        "fp8-backward-heads",
        what="K and V of different head counts in an fp8 backward pass",
        effect="dV is NaN",
        fix="give K and V equally many heads",
        source=MEASURED,
        evidence="measured with 9.19.0 and 9.28.0 on sm_90",
        sm=(90,),
        attention=lambda use: _backward_fp8(use) and use.problem.kv_heads != use.problem.v_heads,
        reproductions={"": Reproduction(True, _FP8 | {"kv_heads": 1, "v_heads": 2})},
        refused=True,
    ),
    Fault(
        "fp8-backward-tail",
        what="s_q that is no multiple of 64 in an fp8 backward pass without padding",
        effect="dQ has two to four times the error of the other gradients",
        fix="use padding (seq_len_q, seq_len_kv)",
        source=MEASURED,
        evidence="measured with 9.19.0 on sm_90; 9.27.0 and 9.28.0 are right; the versions between were not measured",
        sm=(90,),
        versions=Window(until=(9, 27, 0)),
        attention=lambda use: _backward_fp8(use) and not use.problem.padding and use.problem.seq_q % 64 != 0,
        reproductions={"": Reproduction(True, _FP8 | {"seq_q": 100, "seq_kv": 128})},
        refused=True,
    ),
    Fault(
        "fp8-sink-gradient",
        what="dsink of an fp8 backward pass",
        effect="the kernel reads or writes an illegal address",
        fix="use float16 or bfloat16",
        source=MEASURED,
        evidence="measured with 9.19.0 and 9.28.0 on sm_90",
        sm=(90,),
        attention=lambda use: _backward_fp8(use) and use.problem.dsink,
        reproductions={"": Reproduction(True, _FP8 | _DSINK)},
        refused=True,
    ),
    Fault(
        "bounded-total-head-dim",
        what="max_total_seq_q with a head dim that is no multiple of 16",
        effect="dQ is wrong",
        fix="leave max_total_seq_q and max_total_seq_kv out",
        source=MEASURED,
        evidence=(_FIXED),
        sm=(90,),
        versions=Window(until=(9, 28, 0)),
        attention=(
            lambda use: use.backward and use.problem.max_total_seq_q is not None and use.problem.head_dim % 16 != 0
        ),
        reproductions={"": Reproduction(True, _BOUNDED | {"head_dim": 40})},
        refused=True,
    ),
    Fault(
        "dsink-dropout",
        what="dsink together with dropout",
        effect="dsink is too small by the factor 1 - dropout",
        fix="divide dsink by 1 - dropout, allowing the hazard",
        source=MEASURED,
        evidence=(_FIXED),
        sm=(90,),
        versions=Window(until=(9, 28, 0)),
        attention=lambda use: use.backward and use.problem.dsink and use.problem.dropout > 0,
        reproductions={"": Reproduction(True, _DSINK | {"dropout": 0.5})},
        refused=True,
    ),
    Fault(
        "dsink-ragged",
        what="dsink of ragged sequences whose stats are not ragged",
        effect="dsink is wrong in a batch of two or more",
        fix="use ragged_stats",
        source=MEASURED,
        evidence="measured with 9.27.0 and 9.28.0 on sm_90; 9.19.0 is right; the versions between were not measured",
        sm=(90,),
        versions=Window(since=(9, 20, 0)),
        attention=(
            lambda use: use.backward and use.problem.dsink and use.problem.ragged and not use.problem.ragged_stats
        ),
        reproductions={"": Reproduction(True, _DSINK | {"ragged": True})},
        refused=True,
    ),
    Fault(
        "dsink-ragged-stats",
        what="dsink of ragged sequences with ragged stats",
        effect="dsink is wrong, by any factor: memory that nobody wrote takes part",
        fix="leave the stats unragged",
        source=MEASURED,
        evidence="measured with 9.19.0 on sm_90; 9.27.0 is right; the versions between were not measured",
        sm=(90,),
        versions=Window(until=(9, 27, 0)),
        attention=lambda use: use.backward and use.problem.dsink and use.problem.ragged_stats,
        reproductions={"": Reproduction(True, _DSINK | _RAGGED | {"batch": 3, "seq_q": 384, "deterministic": True})},
        refused=True,
    ),
    Fault(
        "unified-backward-modifier",
        what="a score modifier in the unified backward operation",
        effect="dQ and dK lack the factor of the modifier's derivative",
        fix="use implementation='composite'",
        source=MEASURED,
        evidence="measured with 9.28.0 on sm_90, soft cap",
        sm=(90,),
        attention=lambda use: use.backward and use.form == "unified" and use.problem.score_modifier is not None,
        reproductions={"": Reproduction(True, _CAPPED, "unified", (9, 21, 0))},
        refused=True,
    ),
    Fault(
        "unified-modifier-padding",
        what="a score modifier in the unified operation, with padding",
        effect="the padding mask comes before the modifier, which lifts it: masked columns take probability",
        fix="use implementation='composite'",
        source=MEASURED,
        evidence="measured with 9.27.0 on sm_90, soft cap",
        sm=(90,),
        attention=(
            lambda use: use.form == "unified" and use.problem.score_modifier is not None and use.problem.padding
        ),
        reproductions={"": Reproduction(False, _CAPPED | {"padding": True}, "unified", (9, 21, 0))},
        refused=True,
    ),
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
        fix="use 9.14.1 or later",
        source=_FRONTEND_SURFACE,
        versions=Window(since=(9, 14, 0), until=(9, 14, 1)),
        attention=_long_window_not_causal,
        reproductions={"": Reproduction(False, {"seq_kv": 2048, "left_bound": 64})},
        unlike=Reproduction(False, {"seq_kv": 2048, "left_bound": 64, "causal": True}),
    ),
    Fault(
        "backward-in-cuda-graphs",
        what="a backward pass without padding, s_kv no multiple of 128",
        effect="an illegal memory access where the plan is replayed from a CUDA graph",
        fix="use 9.15.1 or later, padding, or no CUDA graph",
        source="https://github.com/NVIDIA/cudnn-frontend/releases/tag/v1.16.0",
        versions=Window(until=(9, 15, 1)),
        attention=_backward_with_key_tail,
        reproductions={"": Reproduction(True, {"seq_kv": 200})},
        unlike=Reproduction(True, {"seq_kv": 200, "padding": True}),
    ),
    Fault(
        "backward-large-head-dims",
        what="a backward pass whose head dims of Q and V differ, one of them above 128, other than 192 with 128",
        effect="a known fault on Hopper",
        fix="use 9.13.0 or later",
        source="https://github.com/NVIDIA/cudnn-frontend/releases/tag/v1.14.1",
        sm=(90,),
        versions=Window(since=(9, 11, 0), until=(9, 13, 0)),
        attention=_backward_mixed_head_dims,
        reproductions={"": Reproduction(True, {"head_dim": 256, "head_dim_v": 192})},
        unlike=Reproduction(True, {"head_dim": 192, "head_dim_v": 128}),
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
        fix="use dense stats",
        source="https://github.com/NVIDIA/cudnn-frontend/issues/1083",
        versions=Window(since=(9, 26, 0)),
        attention=_decoding_groups_with_ragged_stats,
        reproductions={
            "": Reproduction(
                False, {"seq_q": 1, "seq_kv": 300, "kv_heads": 1, "stats": True, "ragged_stats": True, "ragged": True}
            )
        },
        unlike=Reproduction(False, {"seq_q": 1, "seq_kv": 300, "kv_heads": 1, "stats": True, "ragged": True}),
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
    ),
    Fault(
        "backward-key-tail",
        what="a backward pass without padding and not causal, s_kv an odd multiple of 64",
        effect="dQ is NaN in rows whose logarithm of the sum of exponentials is below -88.7",
        fix="use 9.26.0 or later, or padding (seq_len_q, seq_len_kv)",
        source="https://github.com/pytorch/pytorch/issues/196678",
        sm=(90,),
        versions=Window(since=(9, 19, 0), until=(9, 26, 0)),
        attention=lambda use: (
            _backward_with_key_tail(use) and use.problem.seq_kv % 128 == 64 and use.problem.right_bound != 0
        ),
        reproductions={"": Reproduction(True, {"seq_kv": 192})},
        unlike=Reproduction(True, {"seq_kv": 192, "causal": True}),
    ),
    Fault(
        "backward-one-query",
        what="a backward pass with s_q of 1, without padding",
        effect="dK and dV are NaN where the scores are strongly negative",
        fix="use padding (seq_len_q, seq_len_kv)",
        source="https://github.com/NVIDIA/cudnn-frontend/issues/1072",
        sm=(90,),
        versions=Window(since=(9, 25, 1)),
        attention=lambda use: use.backward and use.problem.seq_q == 1 and not use.problem.padding,
        reproductions={"": Reproduction(True, {"seq_q": 1})},
        unlike=Reproduction(True, {"seq_q": 1, "padding": True}),
    ),
    Fault(
        "sink-of-ragged-sequences",
        what="the gradient of a sink with ragged sequences",
        effect=(
            "the statistics are read beyond their end: dsink is wrong or NaN, or the kernel reads an illegal address"
        ),
        fix="use 9.26.0 or later",
        source="https://github.com/NVIDIA/TransformerEngine/issues/3249",
        versions=Window(since=(9, 18, 0), until=(9, 26, 0)),
        attention=lambda use: use.backward and use.problem.ragged and use.problem.dsink,
        reproductions={"": Reproduction(True, {"sink": True, "dsink": True, "ragged": True})},
        unlike=Reproduction(True, {"sink": True, "dsink": True, "padding": True}),
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
        effect="wrong numbers",
        fix="use 9.11.0 or later",
        source="https://github.com/NVIDIA/TransformerEngine/pull/1776",
        sm=(89,),
        versions=Window(since=(9, 4, 0), until=(9, 11, 0)),
        attention=lambda use: use.problem.page_size is not None,
        reproductions={"": Reproduction(False, {"padding": True, "page_size": 16})},
        unlike=Reproduction(False, {"padding": True}),
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
        effect="stats are read at wrong places",
        fix="use 9.26.0 or later, or packed stats",
        source=_FRONTEND_SURFACE,
        versions=Window(until=(9, 26, 0)),
        attention=_backward_with_stats_not_packed,
        reproductions={"": Reproduction(True, {"layout": {"stats": (256, 1, 2, 1)}})},
        unlike=Reproduction(True, {"layout": {"q": "bhsd"}}),
    ),
    Fault(
        "convolution-3d-bfloat16",
        what="a forward convolution over three dims in bfloat16",
        effect="wrong results",
        fix="use 9.13.0 or later",
        source="https://github.com/pytorch/pytorch/issues/163539",
        versions=Window(since=(9, 8, 0), until=(9, 13, 0)),
        graph=_bfloat16_convolution_3d,
        reproductions={"": lambda: _convolution(DataType.BFLOAT16, (1, 8, 4, 4, 4), (8, 8, 1, 1, 1))},
        unlike=lambda: _convolution(DataType.HALF, (1, 8, 4, 4, 4), (8, 8, 1, 1, 1)),
    ),
    Fault(
        "convolution-depthwise-large",
        what="a depthwise convolution of a tensor of 2^31 elements and more",
        effect="wrong results",
        fix="split the batch, or use 9.10.2",
        source="https://github.com/pytorch/pytorch/pull/163171",
        versions=Window(since=(9, 11, 0)),
        graph=_large_depthwise_convolution,
        reproductions={"": lambda: _convolution(DataType.HALF, (64, 64, 1024, 1024), (64, 1, 1, 1))},
        unlike=lambda: _convolution(DataType.HALF, (8, 64, 1024, 1024), (64, 1, 1, 1)),
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
