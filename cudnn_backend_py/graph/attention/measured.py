"""Known issues of attention measured for this package, which the attention builder refuses.

Each on an H100 or H200 (sm_90) and some on described GPUs: wrong numbers against the float64 reference, memory not
written, an illegal address, or a process that ends; ``examples/attention_known_issues.py`` shows each.
"""

from __future__ import annotations

from collections.abc import Iterator

from ...system.version import VersionRange
from ..data_types import ELEMENT_BITS
from .known_issue import AttentionUse, KnownIssue

__all__ = ["MEASURED", "MEASURED_ATTENTION"]

MEASURED = "examples/attention_known_issues.py"  # the source of what was measured, and how to see it


# Conditions that several rows share, or that need more than a line


def _is_fp8_forward(use: AttentionUse) -> bool:
    return use.problem.is_fp8 and not use.backward


def _is_fp8_backward(use: AttentionUse) -> bool:
    return use.problem.is_fp8 and use.backward


def _has_unmasked_alibi(use: AttentionUse) -> bool:
    """Whether a backward pass with ALiBi has no mask beyond the sequence lengths."""
    p = use.problem
    band = p.alignment == "top_left" and (p.left_bound is not None or p.right_bound is not None)
    return use.backward and p.alibi and not p.padding and p.right_bound != 0 and not band


def _iterate_layouts(use: AttentionUse) -> Iterator[tuple[tuple[int, ...], tuple[int, ...], int]]:
    """Yield dims, strides and bytes per element of Q, K, V, O and the gradients."""
    p = use.problem
    assert p.output_type is not None  # set with the problem
    for name in ("q", "k", "v", "o", *(("do", "dq", "dk", "dv") if use.backward else ())):
        written = name in ("dq", "dk", "dv") or (name == "o" and not use.backward)
        yield p.dims(name), p.strides(name), ELEMENT_BITS[p.output_type if written else p.data_type] // 8


def _has_noncontiguous_head_dim(use: AttentionUse) -> bool:
    return any(dims[-1] > 1 and strides[-1] != 1 for dims, strides, _ in _iterate_layouts(use))


def _has_unaligned_strides(use: AttentionUse) -> bool:
    """Whether some stride is not a multiple of 16 bytes, although the size of the head dim is."""
    return any(
        dims[-1] * size % 16 == 0
        and any(dim > 1 and stride * size % 16 for dim, stride in zip(dims[:-1], strides[:-1], strict=True))
        for dims, strides, size in _iterate_layouts(use)
    )


_ALL = "measured with 9.19.0, 9.27.0 and 9.28.0 on sm_90"
_FIXED = "measured with 9.19.0 and 9.27.0 on sm_90; 9.28.0 is right"

MEASURED_ATTENTION: tuple[KnownIssue, ...] = (
    KnownIssue(
        "inner-stride",
        what="a stride over d that is not 1, of Q, K, V, O or a gradient",
        effect=(
            "the process ends by a segmentation fault while engines are chosen or a plan is built; dQ comes out wrong"
        ),
        fix="lay d out densely",
        source=MEASURED,
        evidence="measured with 9.19.0 and 9.28.0 on sm_90, the fault on sm_100 and sm_120 as well, deviceless",
        sm=(90, 100, 103, 120, 121),
        attention=_has_noncontiguous_head_dim,
        step="build",
        refused=True,
    ),
    KnownIssue(
        "backward-of-one-row",
        what="a backward pass with a batch, head count and s_q of 1",
        effect="the process ends by a segmentation fault while engines are chosen",
        fix="repeat the row in the batch, with padding (seq_len_q, seq_len_kv)",
        source=MEASURED,
        evidence=(
            "measured deviceless with 9.26.0, 9.27.0 and 9.28.0 on sm_80, sm_90, sm_100, with 9.28.0 on sm_89 and "
            "sm_120 too; 9.25.0 and before answer"
        ),
        sm=(80, 86, 89, 90, 100, 103, 120, 121),
        versions=VersionRange(since=(9, 26, 0)),
        attention=lambda use: use.backward and use.problem.batch == use.problem.heads == use.problem.seq_q == 1,
        step="check",
        refused=True,
    ),
    KnownIssue(
        "unaligned-strides",
        what="a stride over b, h or s that is no multiple of 16 bytes, of Q, K, V, O or a gradient",
        effect="outputs and gradients are wrong or not written, or the kernel ends with a misaligned address",
        fix="pad the strides to multiples of 16 bytes",
        source=MEASURED,
        evidence=(
            "measured with 9.19.0 and 9.28.0 on sm_90, composite and unified, ragged and paged too; for sm_80, sm_89 "
            "and sm_100 NVIDIA says so (https://github.com/NVIDIA/cudnn-frontend/issues/1571)"
        ),
        sm=(90, 80, 89, 100),
        attention=_has_unaligned_strides,
        refused=True,
    ),
    KnownIssue(
        "paged-decoding-sink",
        what="a sink with paged K and V and s_q of 1",
        effect="O, or O and the statistics, are off by 0.1 to 8 percent",
        fix="leave the pages out; with s_q of 2, which is right with 9.28.0, no plan builds with 9.19.0",
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
        refused=True,
    ),
    KnownIssue(
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
        refused=True,
    ),
    KnownIssue(
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
            lambda use: _has_unmasked_alibi(use)
            and use.problem.seq_q % 64 != 0
            and use.problem.seq_q < use.problem.seq_kv
        ),
        refused=True,
    ),
    KnownIssue(
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
        versions=VersionRange(until=(9, 28, 0)),
        attention=lambda use: _has_unmasked_alibi(use) and use.problem.seq_kv % 128 == 64,
        refused=True,
    ),
    KnownIssue(
        "row-statistics-alone",
        what="max or sum_exp alone, or next to stats, from the expanded softmax",
        effect=(
            "alone: the kernel writes through a null pointer (illegal address); next to stats: they are not written"
        ),
        fix="ask for max and sum_exp together and without stats, or give version=(9, 21, 0) or later",
        source=MEASURED,
        evidence="measured with 9.19.0 on sm_90; with 9.28.0 alone is right, next to stats is not written",
        sm=(90,),
        attention=(
            lambda use: (
                not use.backward
                and use.form == "expanded"
                and (use.problem.max or use.problem.sum_exp)
                and (
                    use.problem.stats
                    or (
                        not (use.problem.max and use.problem.sum_exp)
                        and (use.version is None or use.version < (9, 28, 0))
                    )
                )
            )
        ),
        refused=True,
    ),
    KnownIssue(
        "fp8-row-maximum",
        what="max of an fp8 forward pass",
        effect="it comes in units of log 2: 1.4427 times the row maximum",
        fix="leave max out, or divide it by log2(e)",
        source=MEASURED,
        evidence=(_ALL),
        sm=(90,),
        attention=lambda use: _is_fp8_forward(use) and use.problem.max,
        refused=True,
    ),
    KnownIssue(
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
        step="build",
        refused=True,
    ),
    KnownIssue(
        "fp8-alibi",
        what="ALiBi with an fp8 data type",
        effect="outputs and statistics are wrong; gradients were NaN once, with a right bound, and right without one",
        fix="use float16 or bfloat16",
        source=MEASURED,
        evidence=(_ALL),
        sm=(90,),
        attention=lambda use: use.problem.is_fp8 and use.problem.alibi,
        refused=True,
    ),
    KnownIssue(
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
        step="build",
        refused=True,
    ),
    KnownIssue(
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
        refused=True,
    ),
    KnownIssue(
        "fp8-backward-ragged",
        what="ragged sequences in an fp8 backward pass",
        effect="the gradients are wrong or NaN",
        fix="use padding instead of ragged sequences, or float16 or bfloat16",
        source=MEASURED,
        evidence=(_ALL),
        sm=(90,),
        attention=lambda use: _is_fp8_backward(use) and use.problem.ragged,
        refused=True,
    ),
    KnownIssue(
        "fp8-backward-heads",
        what="K and V of different head counts in an fp8 backward pass",
        effect="dV is NaN",
        fix="give K and V equally many heads",
        source=MEASURED,
        evidence="measured with 9.19.0 and 9.28.0 on sm_90",
        sm=(90,),
        attention=lambda use: _is_fp8_backward(use) and use.problem.kv_heads != use.problem.v_heads,
        refused=True,
    ),
    KnownIssue(
        "fp8-backward-tail",
        what="s_q that is no multiple of 64 in an fp8 backward pass",
        effect="dQ has two to four times the error of the other gradients",
        fix="use 9.27.0 or later, or an s_q that is a multiple of 64",
        source=MEASURED,
        evidence=(
            "measured with 9.19.0 on sm_90, with and without padding; 9.27.0 and 9.28.0 are right; the versions "
            "between were not measured"
        ),
        sm=(90,),
        versions=VersionRange(until=(9, 27, 0)),
        attention=lambda use: _is_fp8_backward(use) and use.problem.seq_q % 64 != 0,
        refused=True,
    ),
    KnownIssue(
        "fp8-sink-gradient",
        what="dsink of an fp8 backward pass",
        effect="the kernel reads or writes an illegal address",
        fix="use float16 or bfloat16",
        source=MEASURED,
        evidence="measured with 9.19.0 and 9.28.0 on sm_90",
        sm=(90,),
        attention=lambda use: _is_fp8_backward(use) and use.problem.dsink,
        refused=True,
    ),
    KnownIssue(
        "bounded-total-head-dim",
        what="max_total_seq_q with a head dim that is no multiple of 16",
        effect="dQ is wrong",
        fix="leave max_total_seq_q and max_total_seq_kv out",
        source=MEASURED,
        evidence=(_FIXED),
        sm=(90,),
        versions=VersionRange(until=(9, 28, 0)),
        attention=(
            lambda use: use.backward and use.problem.max_total_seq_q is not None and use.problem.head_dim % 16 != 0
        ),
        refused=True,
    ),
    KnownIssue(
        "dsink-dropout",
        what="dsink together with dropout",
        effect="dsink is too small by the factor 1 - dropout",
        fix="divide dsink by 1 - dropout, allowing the known issue",
        source=MEASURED,
        evidence=(_FIXED),
        sm=(90,),
        versions=VersionRange(until=(9, 28, 0)),
        attention=lambda use: use.backward and use.problem.dsink and use.problem.dropout > 0,
        refused=True,
    ),
    KnownIssue(
        "dsink-ragged",
        what="dsink of ragged sequences whose stats are not ragged",
        effect="dsink is wrong in a batch of two or more",
        fix="use padding instead of ragged sequences; ragged_stats are right from 9.27.0 on",
        source=MEASURED,
        evidence="measured with 9.27.0 and 9.28.0 on sm_90; 9.19.0 is right; the versions between were not measured",
        sm=(90,),
        versions=VersionRange(since=(9, 20, 0)),
        attention=(
            lambda use: use.backward and use.problem.dsink and use.problem.ragged and not use.problem.ragged_stats
        ),
        refused=True,
    ),
    KnownIssue(
        "dsink-ragged-stats",
        what="dsink of ragged sequences with ragged stats",
        effect="dsink is wrong, by any factor: memory that no one wrote takes part",
        fix="use 9.27.0 or later, or padding instead of ragged sequences",
        source=MEASURED,
        evidence="measured with 9.19.0 on sm_90; 9.27.0 is right; the versions between were not measured",
        sm=(90,),
        versions=VersionRange(until=(9, 27, 0)),
        attention=lambda use: use.backward and use.problem.dsink and use.problem.ragged_stats,
        refused=True,
    ),
    KnownIssue(
        "unified-backward-modifier",
        what="a score modifier in the unified backward operation",
        effect="dQ and dK lack the factor of the modifier's derivative",
        fix="use implementation='composite'",
        source=MEASURED,
        evidence="measured with 9.28.0 on sm_90, soft cap",
        sm=(90,),
        attention=lambda use: use.backward and use.form == "unified" and use.problem.score_modifier is not None,
        refused=True,
    ),
    KnownIssue(
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
        refused=True,
    ),
)
