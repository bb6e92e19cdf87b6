"""When TransformerEngine's fused attention calls cuDNN: its conditions, as data with cuDNN versions.

They are those of its main branch, 2.20 in August 2026, for its F16 and FP8 backends and cuDNN 9.8 and later.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from ..graph.attention.problem import Attention
from ..graph.data_types import HALF_TYPES
from ..system.version import VersionRange, VersionTuple, format_version_numbers

__all__ = ["TRANSFORMER_ENGINE", "describe_transformer_engine_decision"]

TRANSFORMER_ENGINE = (2, 20)
_FIRST_VERSION = (9, 8, 0)  # of cuDNN, for which the conditions are listed
_ALWAYS = VersionRange()


@dataclass(frozen=True)
class _Call:
    """An attention problem as TransformerEngine sees it."""

    problem: Attention
    backward: bool
    sm: int
    version: VersionTuple

    @property
    def training(self) -> bool:
        return self.backward or self.problem.stats

    @property
    def causal(self) -> bool:
        return self.problem.right_bound == 0

    @property
    def padded(self) -> bool:
        return self.problem.padding or self.problem.ragged

    @property
    def paged(self) -> bool:
        return self.problem.page_size is not None

    @property
    def has_bias(self) -> bool:
        """Whether scores get a bias, ALiBi included."""
        return self.problem.bias is not None or self.problem.alibi

    @property
    def dropout(self) -> bool:
        return self.problem.dropout > 0

    @property
    def windowed(self) -> bool:
        return self.problem.left_bound is not None or self.problem.right_bound not in (None, 0)

    @property
    def head_dims(self) -> tuple[int, int]:
        return self.problem.head_dim, self.problem.head_dim_v

    @property
    def bottom_right(self) -> bool:
        return self.causal and self.problem.alignment == "bottom_right"


@dataclass(frozen=True)
class _RefusalCondition:
    """A condition under which a backend does not take a call, with the cuDNN versions for which it holds."""

    text: str
    refuses: Callable[[_Call], bool]
    versions: VersionRange = _ALWAYS


def _has_unknown_option(call: _Call) -> bool:
    p = call.problem
    return p.block_mask or p.dropout_mask or p.rng_dump or p.stats_log2 or p.scale == "tensor"


def _modifies_masked_score(call: _Call) -> bool:
    p = call.problem
    restricted = call.padded or call.paged or call.causal or call.windowed or call.has_bias or p.sink or call.dropout
    return p.score_modifier is not None and restricted


def _has_wide_heads_without_kernel(call: _Call) -> bool:
    """Whether head dims above 128 are not among the combinations that the F16 backend lists."""
    widest, version, sm, p = max(call.head_dims), call.version, call.sm, call.problem
    if widest <= 128 or (widest <= 256 and sm == 90):
        return False
    if not call.training:
        blackwell = sm >= 100 and version >= (9, 9, 0) and p.seq_q > 1 and not call.paged
        top_left = call.causal and not call.bottom_right
        others = version >= (9, 10, 2) and (call.paged or p.seq_q > 1 or not top_left)
        return not (blackwell or others)
    if call.head_dims == (192, 128):
        return not (sm >= 100 and version >= (9, 11, 0))
    since = (9, 25, 0) if p.ragged else (9, 23, 0)
    plain = not (call.has_bias or call.dropout or p.sink or call.paged)
    window = not call.windowed or call.causal
    return not (call.head_dims == (256, 256) and 100 <= sm < 110 and version >= since and plain and window)


def _has_unequal_wide_heads(call: _Call) -> bool:
    first, second = call.head_dims
    wide = min(first, second) >= 128 and first != second and (first, second) != (192, 128)
    return call.training and call.sm == 90 and wide


def _has_masked_alibi(call: _Call) -> bool:
    return call.problem.alibi and (call.padded or not call.causal or call.sm < 90)


def _has_window_without_kernel(call: _Call) -> bool:
    p = call.problem
    return call.windowed and (call.has_bias or call.dropout or p.seq_q > p.seq_kv)


def _has_window_of_long_keys(call: _Call) -> bool:
    p = call.problem
    return p.seq_kv > 1024 and p.left_bound is not None and (call.padded or not call.causal)


def _is_deterministic_training(call: _Call) -> bool:
    return call.problem.deterministic and call.training


def _has_fp8_heads_without_kernel(call: _Call) -> bool:
    if any(size % 16 for size in call.head_dims):
        return True
    if call.sm < 100:
        return call.head_dims != (128, 128) if call.training else max(call.head_dims) > 256
    if max(call.head_dims) <= 128 and not call.bottom_right:
        return False
    wide = call.version >= (9, 21, 0) and call.head_dims[0] <= 192 and call.head_dims[1] <= 128
    return not (wide and not call.padded)


_BEFORE_9_18_1 = VersionRange(until=(9, 18, 1))

_SHARED_GATES = (
    _RefusalCondition(
        "it has no such option as this graph (block mask, given dropout mask, tensor as scale)", _has_unknown_option
    ),
    _RefusalCondition("a score modifier excludes masks, padding, bias, sinks and dropout", _modifies_masked_score),
    _RefusalCondition("pages are not taken on sm_89 and sm_120", lambda call: call.paged and call.sm in (89, 120)),
    _RefusalCondition(
        "training with unequal head dims, of Q and K above 128, is not taken on sm_120",
        lambda call: call.training and call.sm == 120 and len(set(call.head_dims)) > 1 and call.head_dims[0] > 128,
    ),
    _RefusalCondition(
        "sinks of packed sequences need cuDNN 9.18.0",
        lambda call: call.problem.sink and call.problem.ragged,
        VersionRange(until=(9, 18, 0)),
    ),
    _RefusalCondition("windows exclude bias and dropout, and s_q above s_kv", _has_window_without_kernel),
    _RefusalCondition("sinks exclude determinism", lambda call: call.problem.sink and call.problem.deterministic),
    _RefusalCondition(
        "the gradient of a bias with dims 1, 1, 1, s is not taken",
        lambda call: call.problem.dbias and call.problem.bias is not None and call.problem.bias[:3] == (1, 1, 1),
    ),
)

_F16_GATES = (
    _RefusalCondition("sm_80 or newer is needed", lambda call: call.sm < 80),
    _RefusalCondition(
        "cuDNN 9.10.0 and 9.10.1 have known bugs", lambda _: True, VersionRange(since=(9, 10, 0), until=(9, 10, 2))
    ),
    _RefusalCondition("head dims must be multiples of 8", lambda call: any(size % 8 for size in call.head_dims)),
    _RefusalCondition("no kernel is listed for these head dims above 128 here", _has_wide_heads_without_kernel),
    _RefusalCondition(
        "training with these unequal head dims is not taken on sm_90",
        _has_unequal_wide_heads,
        VersionRange(since=(9, 11, 0)),
    ),
    _RefusalCondition("ALiBi needs a causal mask without padding, and sm_90 or newer", _has_masked_alibi),
    _RefusalCondition(
        "a bias excludes padding",
        lambda call: call.problem.bias is not None and call.padded and not call.bottom_right,
    ),
    _RefusalCondition(
        "a mask from the bottom right needs s_q up to s_kv",
        lambda call: call.bottom_right and call.problem.seq_q > call.problem.seq_kv,
    ),
    _RefusalCondition("packed sequences need sm_90 or newer", lambda call: call.problem.ragged and call.sm < 90),
    _RefusalCondition("sinks need cuDNN 9.13.1", lambda call: call.problem.sink, VersionRange(until=(9, 13, 1))),
    _RefusalCondition(
        "the maximum of the scores needs cuDNN 9.21.0",
        lambda call: call.problem.max or call.problem.sum_exp,
        VersionRange(until=(9, 21, 0)),
    ),
    _RefusalCondition(
        "deterministic training on sm_100 and newer needs cuDNN 9.18.1",
        lambda call: call.sm >= 100 and _is_deterministic_training(call),
        _BEFORE_9_18_1,
    ),
    _RefusalCondition(
        "deterministic training on sm_100 and newer excludes bias and dropout",
        lambda call: call.sm >= 100 and _is_deterministic_training(call) and (call.has_bias or call.dropout),
    ),
    _RefusalCondition(
        "training with both bias and dropout is not taken on sm_100 and newer",
        lambda call: call.sm >= 100 and call.training and call.has_bias and call.dropout,
    ),
    _RefusalCondition(
        "deterministic training needs sm_90, and excludes the gradient of a bias",
        lambda call: _is_deterministic_training(call) and (call.sm < 90 or call.problem.dbias),
    ),
    _RefusalCondition(
        "cuDNN 9.14.0 gets windows over more than 1024 keys wrong, except in a causal mask without padding",
        _has_window_of_long_keys,
        VersionRange(since=(9, 14, 0), until=(9, 14, 1)),
    ),
    _RefusalCondition("sm_120 needs cuDNN 9.18.1", lambda call: call.sm == 120, _BEFORE_9_18_1),
    _RefusalCondition(
        "deterministic training is not taken on sm_120",
        lambda call: call.sm == 120 and _is_deterministic_training(call),
    ),
)

_FP8_GATES = (
    _RefusalCondition("8-bit floats need sm_90 or newer, and not sm_120", lambda call: call.sm < 90 or call.sm == 120),
    _RefusalCondition(
        "cuDNN 9.10.0 has known bugs in 8-bit floats", lambda _: True, VersionRange(since=(9, 10, 0), until=(9, 10, 1))
    ),
    _RefusalCondition(
        "8-bit floats exclude bias, packed and paged sequences", lambda c: c.has_bias or c.problem.ragged or c.paged
    ),
    _RefusalCondition("MXFP8 needs sm_100 or newer", lambda call: call.problem.mx and call.sm < 100),
    _RefusalCondition("MXFP8 needs cuDNN 9.21.0", lambda call: call.problem.mx, VersionRange(until=(9, 21, 0))),
    _RefusalCondition(
        "cuDNN 9.23.0 and 9.23.1 have known bugs in MXFP8",
        lambda call: call.problem.mx,
        VersionRange(since=(9, 23, 0), until=(9, 23, 2)),
    ),
    _RefusalCondition(
        "no kernel is listed for these head dims and this mask in 8-bit floats", _has_fp8_heads_without_kernel
    ),
    _RefusalCondition(
        "windows and sinks in 8-bit floats need sm_100 or newer",
        lambda call: (call.windowed or call.problem.sink) and call.sm < 100,
    ),
    _RefusalCondition(
        "windows and sinks in 8-bit floats need cuDNN 9.21.0",
        lambda call: call.windowed or call.problem.sink,
        VersionRange(until=(9, 21, 0)),
    ),
    _RefusalCondition(
        "8-bit floats exclude the maximum of the scores", lambda call: call.problem.max or call.problem.sum_exp
    ),
    _RefusalCondition(
        "deterministic training in 8-bit floats needs cuDNN 9.19.0",
        _is_deterministic_training,
        VersionRange(until=(9, 19, 0)),
    ),
)


def describe_transformer_engine_decision(problem: Attention, version: VersionTuple, sm: int, *, backward: bool) -> str:
    """Describe what TransformerEngine's attention would do with a problem, as a predicate."""
    if version < _FIRST_VERSION:
        return f"is not known to this package for cuDNN before {format_version_numbers(_FIRST_VERSION)}"
    if problem.data_type not in HALF_TYPES and not problem.is_fp8:
        return f"does not use cuDNN: fused attention takes 16-bit and 8-bit floats, not {problem.data_type.name}"
    call = _Call(problem, backward, sm, version)
    if (gate := next(_iterate_refusing_conditions(call), None)) is not None:
        return f"does not use cuDNN: {gate.text}"
    if sm < 90:
        return "uses cuDNN where flash-attn is not installed, which it prefers below sm_90"
    return "uses cuDNN: all its conditions hold, and cuDNN is its first choice"


def _iterate_refusing_conditions(call: _Call) -> Iterator[_RefusalCondition]:
    gates = (*(_FP8_GATES if call.problem.is_fp8 else _F16_GATES), *_SHARED_GATES)
    return (gate for gate in gates if call.version in gate.versions and gate.refuses(call))
