"""Attention that cuDNN accepts and then gets wrong: a table of measured hazards, each refused here unless allowed.

Every row was seen on an H100 (sm_90): wrong numbers against the float64 reference, memory not written, an illegal
address, or a process that ends. ``examples/attention_hazards.py`` shows each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

from ...errors import GraphError
from ...system.version import VersionTuple as Version
from ..ir import ELEMENT_BITS
from .problem import Attention

__all__ = ["HAZARDS", "Form", "Hazard", "Use", "check_hazards", "find_hazards"]

Form = Literal["expanded", "single operations", "unified"]


@dataclass(frozen=True)
class Use:
    """How a problem is to be run: direction, form of the graph, cuDNN version and architecture, if they are known."""

    problem: Attention
    backward: bool
    form: Form
    version: Version | None = None
    sm: int | None = None


@dataclass(frozen=True)
class Hazard:
    """Something cuDNN accepts and gets wrong."""

    code: str
    what: str
    effect: str
    evidence: str
    fix: str
    applies: Callable[[Use], bool]
    since: Version = (9, 0, 0)
    until: Version | None = None  # the first version known to be right
    sm: tuple[int, ...] = (90,)  # architectures it was seen on

    def hits(self, use: Use) -> bool:
        """Return whether the use is one of those; what is not known of it may be the worst."""
        version, sm = use.version, use.sm
        if version is not None and (version < self.since or (self.until is not None and version >= self.until)):
            return False
        return (sm is None or sm in self.sm) and self.applies(use)


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


_ALL = "measured with 9.19.0, 9.27.0 and 9.28.0 on sm_90"
_FIXED = "measured with 9.19.0 and 9.27.0 on sm_90; 9.28.0 is right"

HAZARDS: tuple[Hazard, ...] = (
    Hazard(
        "inner-stride",
        "a stride over d that is not 1, of Q, K, V, O or a gradient",
        "the process ends by a segmentation fault while engines are chosen or a plan is built; dQ comes out wrong",
        "measured with 9.19.0 and 9.28.0 on sm_90, the fault on sm_100 and sm_120 as well, deviceless",
        "lay d out densely",
        _inner_stride,
        sm=(90, 100, 103, 120, 121),
    ),
    Hazard(
        "backward-of-one-row",
        "a backward pass with a batch, head count and s_q of 1",
        "the process ends by a segmentation fault while engines are chosen",
        "measured deviceless with 9.26.0, 9.27.0 and 9.28.0 on sm_80, sm_90, sm_100, with 9.28.0 on sm_89 and sm_120 "
        "too; 9.25.0 and before answer",
        "repeat the row in the batch",
        lambda use: use.backward and use.problem.batch == use.problem.heads == use.problem.seq_q == 1,
        since=(9, 26, 0),
        sm=(80, 86, 89, 90, 100, 103, 120, 121),
    ),
    Hazard(
        "unaligned-strides",
        "a stride over b, h or s that is no multiple of 16 bytes, of Q, K, V, O or a gradient",
        "outputs and gradients are wrong or not written, or the kernel ends with a misaligned address",
        "measured with 9.19.0 and 9.28.0 on sm_90, composite and unified, ragged and paged too",
        "pad the strides to multiples of 16 bytes",
        _unaligned_strides,
    ),
    Hazard(
        "paged-decoding-sink",
        "a sink with paged K and V and s_q of 1",
        "O, or O and the statistics, are off by 0.1 to 8 percent",
        "measured with 9.19.0 and 9.28.0 on sm_90, with s_kv of 333 and 1024; which of the two is wrong depends on "
        "the version, the group size and s_kv",
        "leave the pages out, or repeat the query row: s_q of 2 and more is right",
        lambda use: not use.backward
        and use.problem.page_size is not None
        and use.problem.sink
        and use.problem.seq_q == 1,
    ),
    Hazard(
        "decoding-dropout",
        "random dropout with s_q of 1 and s_kv above 256",
        "an illegal address, or another mask than the seed and the offset give",
        "measured with 9.19.0 and 9.28.0 on sm_90; s_kv of 256 and less, where another kernel comes first, is right",
        "leave dropout out, as inference does",
        lambda use: (
            not use.backward and use.problem.dropout > 0 and use.problem.seq_q == 1 and use.problem.seq_kv > 256
        ),
    ),
    Hazard(
        "alibi-rows",
        "ALiBi in a backward pass without padding, with s_q that is no multiple of 64 and below s_kv, "
        "not causal nor in a top-left band",
        "dK and dV are NaN where exp(slope * (s_kv - s_q)) exceeds the data type: rows beyond s_q take part",
        "measured with 9.19.0 and 9.28.0 on sm_90, composite and unified",
        "use padding (seq_len_q, seq_len_kv)",
        lambda use: _alibi_unmasked(use) and use.problem.seq_q % 64 != 0 and use.problem.seq_q < use.problem.seq_kv,
    ),
    Hazard(
        "alibi-columns",
        "ALiBi in a backward pass without padding, with s_kv that is an odd multiple of 64, "
        "not causal nor in a top-left band",
        "dQ is NaN where exp(slope * 64) exceeds the data type: columns beyond s_kv take part",
        "measured with 9.19.0 on sm_90; 9.28.0 is right; the versions between were not measured",
        "use padding (seq_len_q, seq_len_kv)",
        lambda use: _alibi_unmasked(use) and use.problem.seq_kv % 128 == 64,
        until=(9, 28, 0),
    ),
    Hazard(
        "row-statistics-alone",
        "max or sum_exp alone, or beside stats, from the expanded softmax",
        "alone: the kernel writes through a null pointer (illegal address); beside stats: they are not written",
        "measured with 9.19.0 on sm_90; with 9.28.0 alone is right, beside stats is not written",
        "ask for max and sum_exp together and without stats, or give version=(9, 21, 0) or later",
        lambda use: (
            not use.backward
            and use.form == "expanded"
            and (use.problem.max or use.problem.sum_exp)
            and (use.problem.stats or not (use.problem.max and use.problem.sum_exp))
        ),
    ),
    Hazard(
        "fp8-row-maximum",
        "max of an fp8 forward pass",
        "it comes in units of log 2: 1.4427 times the row maximum",
        _ALL,
        "leave max out, or divide it by log2(e)",
        lambda use: _forward_fp8(use) and use.problem.max,
    ),
    Hazard(
        "fp8-bias",
        "a bias with an fp8 data type",
        "forward: the process ends with an uncaught C++ exception (format_error); backward: the bias is ignored",
        "measured with 9.19.0 and 9.27.0 on sm_90; heuristics or build end the process on sm_100 to sm_120, deviceless",
        "use float16 or bfloat16",
        lambda use: use.problem.is_fp8 and use.problem.bias is not None,
        sm=(90, 100, 103, 120, 121),
    ),
    Hazard(
        "fp8-alibi",
        "ALiBi with an fp8 data type",
        "outputs and statistics are wrong; gradients were NaN once, beside a right bound",
        _ALL,
        "use float16 or bfloat16",
        lambda use: use.problem.is_fp8 and use.problem.alibi,
    ),
    Hazard(
        "fp8-dropout-mask",
        "a given dropout mask with an fp8 data type",
        "the outputs are wrong, or the process ends with an uncaught C++ exception (format_error)",
        "measured with 9.19.0 and 9.27.0 on sm_90; building the plan ends the process on sm_100 and sm_120, deviceless",
        "use float16 or bfloat16",
        lambda use: use.problem.is_fp8 and use.problem.dropout_mask,
        sm=(90, 100, 103, 120, 121),
    ),
    Hazard(
        "fp8-dropout",
        "random dropout with an fp8 data type",
        "forward: an illegal address; backward: gradients without the scales of P and dP, or an illegal address",
        _ALL,
        "use float16 or bfloat16",
        lambda use: use.problem.is_fp8 and use.problem.dropout > 0,
    ),
    Hazard(
        "fp8-backward-ragged",
        "ragged sequences in an fp8 backward pass",
        "the gradients are wrong or NaN",
        _ALL,
        "use padding instead of ragged sequences, or float16 or bfloat16",
        lambda use: _backward_fp8(use) and use.problem.ragged,
    ),
    Hazard(
        "fp8-backward-heads",
        "K and V of different head counts in an fp8 backward pass",
        "dV is NaN",
        "measured with 9.19.0 and 9.28.0 on sm_90",
        "give K and V equally many heads",
        lambda use: _backward_fp8(use) and use.problem.kv_heads != use.problem.v_heads,
    ),
    Hazard(
        "fp8-backward-tail",
        "s_q that is no multiple of 64 in an fp8 backward pass without padding",
        "dQ has two to four times the error of the other gradients",
        "measured with 9.19.0 on sm_90; 9.27.0 and 9.28.0 are right; the versions between were not measured",
        "use padding (seq_len_q, seq_len_kv)",
        lambda use: _backward_fp8(use) and not use.problem.padding and use.problem.seq_q % 64 != 0,
        until=(9, 27, 0),
    ),
    Hazard(
        "fp8-sink-gradient",
        "dsink of an fp8 backward pass",
        "the kernel reads or writes an illegal address",
        "measured with 9.19.0 and 9.28.0 on sm_90",
        "use float16 or bfloat16",
        lambda use: _backward_fp8(use) and use.problem.dsink,
    ),
    Hazard(
        "bounded-total-head-dim",
        "max_total_seq_q with a head dim that is no multiple of 16",
        "dQ is wrong",
        _FIXED,
        "leave max_total_seq_q and max_total_seq_kv out",
        lambda use: use.backward and use.problem.max_total_seq_q is not None and use.problem.head_dim % 16 != 0,
        until=(9, 28, 0),
    ),
    Hazard(
        "dsink-dropout",
        "dsink together with dropout",
        "dsink is too small by the factor 1 - dropout",
        _FIXED,
        "divide dsink by 1 - dropout, allowing the hazard",
        lambda use: use.backward and use.problem.dsink and use.problem.dropout > 0,
        until=(9, 28, 0),
    ),
    Hazard(
        "dsink-ragged",
        "dsink of ragged sequences whose stats are not ragged",
        "dsink is wrong in a batch of two or more",
        "measured with 9.27.0 and 9.28.0 on sm_90; 9.19.0 is right; the versions between were not measured",
        "use ragged_stats",
        lambda use: use.backward and use.problem.dsink and use.problem.ragged and not use.problem.ragged_stats,
        since=(9, 20, 0),
    ),
    Hazard(
        "dsink-ragged-stats",
        "dsink of ragged sequences with ragged stats",
        "dsink is wrong, by any factor: memory that nobody wrote takes part",
        "measured with 9.19.0 on sm_90; 9.27.0 is right; the versions between were not measured",
        "leave the stats unragged",
        lambda use: use.backward and use.problem.dsink and use.problem.ragged_stats,
        until=(9, 27, 0),
    ),
    Hazard(
        "unified-backward-modifier",
        "a score modifier in the unified backward operation",
        "dQ and dK lack the factor of the modifier's derivative",
        "measured with 9.28.0 on sm_90, soft cap",
        "use implementation='composite'",
        lambda use: use.backward and use.form == "unified" and use.problem.score_modifier is not None,
    ),
    Hazard(
        "unified-modifier-padding",
        "a score modifier in the unified operation, with padding",
        "the padding mask comes before the modifier, which lifts it: masked columns take probability",
        "measured with 9.27.0 on sm_90, soft cap",
        "use implementation='composite'",
        lambda use: use.form == "unified" and use.problem.score_modifier is not None and use.problem.padding,
    ),
)


def find_hazards(use: Use) -> Iterator[Hazard]:
    """Yield the hazards a use of attention runs into."""
    return (hazard for hazard in HAZARDS if hazard.hits(use))


def check_hazards(use: Use) -> None:
    """Refuse a use of attention that cuDNN is known to get wrong.

    Raises
    ------
    GraphError
        ``attention-hazard``.
    """
    for hazard in find_hazards(use):
        what = "backward" if use.backward else "forward"
        raise GraphError(
            f"cuDNN gets this wrong: {hazard.what}",
            code="attention-hazard",
            where=f"attention {what} pass, {use.form} form ({hazard.code})",
            cause=f"{hazard.effect}; {hazard.evidence}",
            fix=f"{hazard.fix}; allow_hazards=True builds the graph nevertheless",
        )
