"""cudnn-frontend's support checks for attention, made before cuDNN is queried, with its exception types.

``AttentionRequest`` is a call of the user as a value; ``check`` compares it with the rules of cudnn-frontend 1.32, in
its order, which decides what is said where several apply. ``uses_unified_sdpa`` is its choice between many operations
and one.
"""

from __future__ import annotations

from collections.abc import Callable, Container
from contextlib import suppress
from copy import copy
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from ...errors import CudnnBackendError
from ...graph.attention import deterministic_config
from ...graph.data_types import HALF_TYPES
from ...graph.strides import packed_strides
from ...plans.choice import EngineChoice
from ...system.version import Version, VersionTuple, format_version_numbers
from ...target import list_profiles
from ..enums import attention_implementation, data_type, diagonal_alignment, tensor_reordering
from ..errors import cudnnGraphNotSupportedError, make_attribute_not_set_error, make_not_supported_error
from ..tensors import tensor

if TYPE_CHECKING:
    from ..context import Context

__all__ = [
    "AttentionRequest",
    "check_attention_request",
    "check_softmax_outputs",
    "choose_engine",
    "find_reason_against_unified_sdpa",
    "is_deterministic",
    "uses_unified_sdpa",
]

_NARROW_FLOAT_TYPES = (data_type.HALF, data_type.BFLOAT16, data_type.FP8_E4M3, data_type.FP8_E5M2)

Kind = Literal["half", "fp8", "mxfp8"]

_MX_BLOCK_SIZE = 32
_RAGGED_ONLY_MESSAGE = (
    "max_total_seq_len_q and max_total_seq_len_kv are only supported with packed layout (ragged offsets)"
)


@dataclass(kw_only=True, eq=False)
class AttentionRequest:
    """The arguments of one attention node, which the support rules check.

    Its tensors may have no dims yet; once they have, ``AttentionNode.problem`` describes it as an attention problem.
    ``tensors`` has inputs and outputs by their names in :class:`~cudnn_backend_py.graph.attention.Attention` (``q``,
    ``do``, ``seq_len_kv``, ``dropout_seed``, ``descale_q`` ...); all else is what the arguments came to.
    """

    name: str
    kind: Kind
    backward: bool
    tensors: dict[str, tensor]
    scale: float | None = None
    alibi: bool = False
    padding: bool = False
    alignment: diagonal_alignment = diagonal_alignment.TOP_LEFT
    left_bound: int | None = None
    right_bound: int | None = None
    dropout: float | None = None
    stats: bool = False
    max_seq_kv: int | None = None
    max_total_seq_q: int | None = None
    max_total_seq_kv: int | None = None
    deterministic: bool = False
    implementation: attention_implementation = attention_implementation.AUTO
    compute: data_type = data_type.NOT_SET
    score_mod: Callable[..., Any] | None = field(default=None, repr=False)
    score_mod_bprop: Callable[..., Any] | None = field(default=None, repr=False)
    unfuse_fma: bool = False
    stats_log2: bool = False

    def get(self, name: str) -> tensor | None:
        """Return a tensor of the node by name, None if it is absent."""
        return self.tensors.get(name)

    def has(self, *names: str) -> bool:
        """Return whether the node has one of these tensors."""
        return any(name in self.tensors for name in names)

    def has_types(self, kinds: Container[data_type]) -> bool:
        """Return whether q, k, v and o have one of these types, ignoring tensors without a type."""
        given = (self.tensors[name].data_type for name in ("q", "k", "v", "o") if name in self.tensors)
        return all(kind == data_type.NOT_SET or kind in kinds for kind in given)

    def size(self, name: str, axis: int) -> int:
        """Return the size of one dim of a tensor."""
        return self.tensors[name].dim[axis]

    @property
    def s_q(self) -> int:
        return self.size("q", 2)

    @property
    def s_kv(self) -> int:
        """Longest sequence of K and V: `max_seq_kv` if given, else the size in K, V or another tensor."""
        if self.max_seq_kv is not None:
            return self.max_seq_kv
        for name in ("k", "v"):
            if not self.has(f"page_table_{name}"):
                return self.size(name, 2)
        for name in ("bias", "rng_dump"):
            if self.has(name):
                return self.size(name, 3)
        return min(self.size(f"page_table_{name}", 2) * self.size(name, 2) for name in ("k", "v"))

    @property
    def is_paged(self) -> bool:
        return self.has("page_table_k", "page_table_v")

    @property
    def is_ragged(self) -> bool:
        """Whether Q, K, V or O is ragged; in an fp8 backward pass also gradients and statistics."""
        names = ["q", "k", "v", "o"]
        if self.backward and self.kind != "half":
            names += ["stats", "do", "dq", "dk", "dv"]
        return any(self.has(name) and self.tensors[name].ragged_offset is not None for name in names)

    @property
    def has_offset_multiplier(self) -> bool:
        """Whether a ragged offset counts units of more than one element."""
        return any(item.ragged_offset_multiplier != 1 for item in self.tensors.values() if item.ragged_offset)

    @property
    def has_packed_stats(self) -> bool:
        """Whether the statistics are stored in [b, h, s] order, are ragged, or have no strides yet."""
        stats = self.tensors["stats"]
        if stats.ragged_offset is not None or not stats.stride:
            return True
        return tuple(stats.stride) == packed_strides(tuple(stats.dim))

    @property
    def has_lengths(self) -> tuple[bool, bool]:
        """Whether the sequence lengths of Q and of K and V are given, as lengths or as running sums."""
        return self.has("seq_len_q", "cu_seq_len_q"), self.has("seq_len_kv", "cu_seq_len_kv")

    @property
    def uses_dropout(self) -> bool:
        return self.dropout is not None or self.has("dropout_mask")

    @property
    def is_bottom_right(self) -> bool:
        """Whether a causal mask starts at the bottom right corner."""
        return self.right_bound is not None and self.alignment == diagonal_alignment.BOTTOM_RIGHT


class _RuleChecker:
    """Raises the exceptions of cudnn-frontend if a condition is true; the error names the attention node."""

    def __init__(self, request: AttentionRequest) -> None:
        which = "backward" if request.backward else "forward"
        self.where = f"attention node {request.name!r} ({request.kind}, {which}), checked before any cuDNN call"

    def refuse_unsupported(self, condition: bool, headline: str, fix: str | None = None) -> None:
        if condition:
            raise make_not_supported_error(headline, where=self.where, fix=fix)

    def refuse_unset_attribute(self, condition: bool, headline: str, fix: str | None = None) -> None:
        if condition:
            raise make_attribute_not_set_error(headline, where=self.where, fix=fix)


def check_attention_request(request: AttentionRequest, context: Context) -> None:
    """Raise if cudnn-frontend would refuse the node.

    Raises
    ------
    cudnnGraphNotSupportedError
        Combinations that are not supported, on this architecture or with this version of cuDNN.
    FrontendValueError
        Something is missing, set twice, or a bound out of range.
    """
    try:
        _check_request(request, context)
    except cudnnGraphNotSupportedError as error:
        if "fix" not in error.sections and (others := _list_passing_architectures(request, context)):
            error.sections["fix"] = f"take a GPU with {' or '.join(others[:3])}, on which it passes this check"
        raise


def _list_passing_architectures(request: AttentionRequest, context: Context) -> list[str]:
    """Return the architectures of described GPUs on which cudnn-frontend would not refuse the node."""
    passing = []
    for sm in sorted({profile.sm for profile in list_profiles()}):
        other = copy(context)
        other.sm_version = sm
        with suppress(CudnnBackendError):
            _check_request(request, other)
            passing.append(f"sm_{sm}")
    return passing


def _check_request(request: AttentionRequest, context: Context) -> None:
    say = _RuleChecker(request)
    if not request.backward:
        _check_forward(request, context, say)
    elif request.kind == "half":
        _check_backward(request, context, say)
    else:
        _check_backward_fp8(request, context, say)


def uses_unified_sdpa(request: AttentionRequest, context: Context) -> bool:
    """Return whether the node becomes one SDPA operation: with UNIFIED, or with AUTO if that is possible."""
    if request.backward:
        return False
    if request.implementation == attention_implementation.AUTO:
        return find_reason_against_unified_sdpa(request, context) is None
    return request.implementation == attention_implementation.UNIFIED


def is_blackwell_backward_with_head_dim_256(request: AttentionRequest, context: Context) -> bool:
    """Return whether the node is a backward pass with head dim 256 on sm_10x, supported since cuDNN 9.23."""
    wide = request.backward and request.size("q", 3) == request.size("v", 3) == 256
    return wide and context.sm // 10 == 10 and context.version >= (9, 23, 0)


def is_deterministic(request: AttentionRequest, context: Context) -> bool:
    """Return whether deterministic kernels are used: if requested, and always for some passes on sm_10x."""
    if request.kind == "half" and is_blackwell_backward_with_head_dim_256(request, context):
        return True
    if request.kind == "half" or not request.backward or context.sm // 10 != 10:
        return request.deterministic
    small = request.size("q", 3) <= 192 and request.size("v", 3) <= 128
    return request.deterministic or request.kind == "mxfp8" or small


def choose_engine(request: AttentionRequest, context: Context) -> EngineChoice | None:
    """Return the engine config of a deterministic backward pass on sm_10x, which heuristics do not list; else None.

    Raises
    ------
    cudnnGraphNotSupportedError
        For a block mask on sm_10x before cuDNN 9.26, which gets it wrong (``block-mask-first-block``).
    """
    if request.has("block_mask") and context.sm // 10 == 10 and context.version < (9, 26, 0):
        raise make_not_supported_error(
            f"a block mask on sm_{context.sm} requires cuDNN 9.26.0, the loaded library is {context.version}: "
            "earlier versions read uninitialized memory where the first block of keys is masked",
            fix="cudnn-backend cudnn install 9.26.0, or a bias instead of the block mask",
        )
    if not request.backward or context.sm // 10 != 10 or not is_deterministic(request, context):
        return None
    if request.kind != "half" and request.size("q", 3) == 256:
        return None  # no kernel has these, and cudnn-frontend queries the heuristics
    known = deterministic_config(context.version, context.sm, request.size("q", 3))
    return None if known is None else EngineChoice(*known)


def find_reason_against_unified_sdpa(request: AttentionRequest, context: Context) -> str | None:
    """Return the first reason why a forward pass cannot be one SDPA operation, None if it can."""
    version: Version = context.version
    has = request.has
    needs: tuple[tuple[bool, VersionTuple | None, str], ...] = (
        (True, (9, 13, 1), "it"),
        (context.is_dynamic_shape_enabled, None, "dynamic shapes"),
        (not request.has_types(_NARROW_FLOAT_TYPES), None, "elements of other types than fp16, bf16 and fp8"),
        (has("block_mask"), (9, 14, 0), "a block mask"),
        (has("page_table_k", "page_table_v", "seq_len_q", "seq_len_kv"), (9, 15, 0), "page tables and lengths"),
        (has("bias", "dropout_seed", "dropout_offset", "sink"), (9, 21, 0), "bias, seed, offset and sink"),
        (has("dropout_mask", "dropout_scale"), None, "a given dropout mask"),
        (has("descale_q", "amax_o"), (9, 25, 0), "fp8 scales"),
        (has("cu_seq_len_q", "cu_seq_len_kv"), (9, 24, 0), "running sums of lengths"),
        (has("cu_seq_len_q") != has("cu_seq_len_kv"), (9, 25, 0), "running sums of lengths on one side only"),
        (request.has_offset_multiplier, (9, 24, 0), "a ragged offset multiplier"),
        (has("rng_dump", "max", "sum_exp"), (9, 21, 0), "rng_dump, max and sum_exp"),
        (request.alibi, (9, 21, 0), "ALiBi"),
        (request.padding, (9, 15, 0), "a padding mask"),
        (request.left_bound is not None or request.right_bound is not None, (9, 21, 0), "left and right bounds"),
        (request.alignment != diagonal_alignment.TOP_LEFT, (9, 21, 0), "bottom-right alignment"),
        (request.dropout is not None, (9, 22, 0), "dropout"),
        (request.dropout is not None and request.stats, None, "dropout together with statistics"),
        (request.max_seq_kv is not None, (9, 15, 0), "a maximum sequence length"),
        (request.score_mod is not None, (9, 21, 0), "a score modifier"),
        (request.kind != "half", (9, 25, 0), "types other than fp16 and bf16"),
        (request.compute not in (data_type.NOT_SET, data_type.FLOAT), None, "compute types other than FLOAT"),
        (context.compute_type != data_type.FLOAT, None, "graph compute types other than FLOAT"),
    )
    for wanted, since, what in needs:
        if wanted and since is None:
            return f"the unified SDPA operation is not supported with {what}"
        if wanted and since is not None and version < since:
            return (
                f"the unified SDPA operation is not supported with {what} before cuDNN "
                f"{format_version_numbers(since)}, this is {format_version_numbers(version)}"
            )
    return None


def check_softmax_outputs(request: AttentionRequest, context: Context) -> None:
    """Raise if cuDNN before 9.21 cannot write the requested combination of softmax statistics."""
    given = (request.stats, request.has("max"), request.has("sum_exp"))
    fits = given in ((False, False, False), (True, False, False), (False, True, True))
    _RuleChecker(request).refuse_unsupported(
        context.version < (9, 21, 0) and not fits,
        "before cuDNN 9.21 softmax writes statistics alone, max and sum_exp together, or nothing; the combination of "
        f"stats {given[0]}, max {given[1]}, sum_exp {given[2]} is invalid",
    )


# rules of every pass


def _check_shape(request: AttentionRequest, say: _RuleChecker, *names: str, is_output: bool = False) -> None:
    for name in names:
        item = request.tensors[name]
        fits = (0, 4) if is_output else (4,)
        say.refuse_unset_attribute(
            len(item.dim) not in fits, f"the dim for {name} is invalid: {item.dim}, it must have the 4 dims b, h, s, d"
        )
        say.refuse_unset_attribute(
            len(item.stride) not in fits, f"the stride for {name} is invalid: {item.stride}, it must have 4 strides"
        )
        last = item.stride[3] if item.stride else 1
        say.refuse_unsupported(
            last != 1,
            f"the stride for the last dimension should be 1 for {name}, it is {last}",
            fix="store the elements of a head contiguously",
        )


def _check_output(request: AttentionRequest, say: _RuleChecker, *names: str) -> None:
    """Check the dims and strides that the user set on output tensors; missing ones are inferred later."""
    _check_shape(request, say, *names, is_output=True)


def _check_heads(request: AttentionRequest, say: _RuleChecker) -> None:
    heads, of_k, of_v = (request.size(name, 1) for name in ("q", "k", "v"))
    say.refuse_unsupported(
        min(of_k, of_v) < 1 or heads % of_k != 0 or heads % of_v != 0,
        f"for group-query attention, number of heads of K ({of_k}) and V ({of_v}) must divide that of Q ({heads})",
    )


def _check_scale(request: AttentionRequest, say: _RuleChecker) -> None:
    say.refuse_unset_attribute(
        request.scale is not None and request.has("scale"),
        "attn_scale with tensor and value cannot be set at the same time",
    )


def _check_bias(request: AttentionRequest, say: _RuleChecker) -> None:
    bias = request.get("bias")
    say.refuse_unsupported(
        bias is not None and bias.data_type == data_type.BOOLEAN, "bias mask data type cannot be boolean, not supported"
    )


def _check_padding(request: AttentionRequest, say: _RuleChecker, *, modifier_may: bool = True) -> None:
    lengths = request.has_lengths
    say.refuse_unset_attribute(
        request.padding and not all(lengths), "padding mask requires seq_len_q and seq_len_kv to be set"
    )
    modified = modifier_may and request.score_mod is not None
    say.refuse_unset_attribute(
        not request.padding and not modified and any(lengths),
        "seq_len_q and seq_len_kv need to be set only if padding mask is enabled",
        fix="use_padding_mask=True",
    )


def _check_dropout(request: AttentionRequest, say: _RuleChecker) -> None:
    say.refuse_unset_attribute(
        request.dropout is not None and request.has("dropout_mask"),
        "using both, custom dropout mask and dropout probability, is ill-formed",
    )
    say.refuse_unset_attribute(request.dropout == 1.0, "dropout probability cannot be 1, its scale would be infinite")


def _check_known_bugs(request: AttentionRequest, version: Version, say: _RuleChecker) -> None:
    say.refuse_unsupported(
        version in ((9, 10, 0), (9, 10, 1)),
        f"SDPA in FP16/BF16 is not supported on cuDNN {format_version_numbers(version)} due to known bugs",
        fix="use cuDNN 9.10.2 or newer",
    )
    say.refuse_unsupported(
        version == (9, 14, 0)
        and request.s_kv > 1024
        and request.left_bound is not None
        and request.right_bound is None,
        f"cuDNN 9.14.0 has a known bug: a left bound without a right one, s_kv {request.s_kv} above 1024, "
        "not supported",
        fix="use cuDNN 9.14.1 or newer",
    )


def _check_ragged_sink(request: AttentionRequest, version: Version, say: _RuleChecker) -> None:
    say.refuse_unsupported(
        request.is_ragged and request.has("sink") and version < (9, 26, 0),
        "SDPA backward with ragged offsets and a sink token is not supported below cuDNN 9.26.0, which reads "
        "statistics beyond their end (sink-of-ragged-sequences)",
        fix="use cuDNN 9.26.0 or newer, or padding instead of ragged sequences",
    )


def _check_stats_layout(request: AttentionRequest, version: Version, since: VersionTuple, say: _RuleChecker) -> None:
    if version < since and request.has("stats") and not request.has_packed_stats:
        stats = request.tensors["stats"]
        say.refuse_unsupported(
            True,
            f"stats that are neither ragged nor packed as b, h, s are not supported below cuDNN "
            f"{format_version_numbers(since)}, their strides are {stats.stride}",
            fix=f"give them the strides {list(packed_strides(tuple(stats.dim)))}",
        )


def _check_score_modifier(request: AttentionRequest, say: _RuleChecker) -> None:
    masked = request.alibi or request.padding or request.left_bound is not None or request.right_bound is not None
    say.refuse_unsupported(
        request.score_mod is not None and masked,
        "attention score mod is enabled, so other subgraphs (ALiBi, padding, bounds) are not supported",
    )


def _check_alibi(request: AttentionRequest, say: _RuleChecker) -> None:
    say.refuse_unsupported(
        request.alibi and request.right_bound != 0,
        f"when alibi mask is used, diagonal_band_right_bound needs to be set to 0, it is {request.right_bound}",
    )


def _check_bottom_right(request: AttentionRequest, version: Version, say: _RuleChecker) -> None:
    """Check the conditions of bottom-right alignment that both passes share."""
    corner, s_q, s_kv = request.is_bottom_right, request.s_q, request.s_kv
    say.refuse_unsupported(
        corner and not request.padding and s_q > s_kv,
        f"bottom right causal mask does not support max_s_q > max_s_kv, got {s_q} and {s_kv}",
        fix="slice Q virtually",
    )
    say.refuse_unsupported(
        corner and (request.has("bias") or request.alibi or request.uses_dropout),
        "bottom right causal mask is only supported with is_bias=False, is_alibi=False, is_dropout=False",
    )
    say.refuse_unsupported(
        corner and version < (9, 6, 0) and (s_q % 64 != 0 or s_kv % 64 != 0),
        "bottom right causal mask is only supported with s_q and s_kv multiple of 64 below 9.6.0, "
        f"got {s_q} and {s_kv}",
    )


def _check_left_bound(request: AttentionRequest, version: Version, major: int, say: _RuleChecker) -> None:
    s_q, s_kv, left = request.s_q, request.s_kv, request.left_bound
    say.refuse_unsupported(
        left is not None
        and s_q * left == s_kv * left
        and version <= (9, 9, 0)
        and major == 9
        and request.is_bottom_right,
        "on Hopper architecture s_q equal to s_kv with a left bound and bottom right alignment is not supported "
        "for backend version 9.9 or below",
    )


def _check_sliding_window(request: AttentionRequest, say: _RuleChecker) -> None:
    say.refuse_unsupported(
        request.left_bound is not None and not request.padding and request.s_q > request.s_kv,
        f"sliding window attention is only supported with max_s_q <= max_s_kv, got {request.s_q} and {request.s_kv}",
    )


# forward


def _check_forward(request: AttentionRequest, context: Context, say: _RuleChecker) -> None:
    version, major = context.version, context.sm // 10
    _check_shape(request, say, "q", "k", "v")
    _check_output(request, say, "o")
    _check_heads(request, say)
    _check_scale(request, say)
    _check_bias(request, say)
    _check_padding(request, say)
    say.refuse_unsupported(
        request.is_ragged and not request.padding and request.score_mod is None,
        "ragged offsets are only supported with padding mask",
        fix="use_padding_mask=True, seq_len_q=, seq_len_kv=",
    )
    _check_stats_layout(request, version, (9, 12, 0), say)
    _check_cumulative_lengths(request, version, say)
    _check_dropout(request, say)
    _check_bottom_right(request, version, say)
    say.refuse_unsupported(
        version < (9, 6, 0)
        and request.left_bound is not None
        and request.is_bottom_right
        and request.s_q != request.s_kv,
        "sliding window attention with bottom right causal mask is not supported with s_q != s_kv below 9.6.0",
    )
    if request.kind == "mxfp8":
        _check_mx_scales(request, say)
    if request.kind == "half":
        _check_forward_half_precision(request, version, context.sm, say)
    else:
        _check_forward_fp8(request, version, major, say)
    _check_implementation(request, context, say)
    say.refuse_unset_attribute(
        version < (9, 13, 0) and request.has("sink"), "SDPA with sink_token is not supported before 9.13"
    )
    if request.kind == "mxfp8":
        _check_mx_forward(version, major, say)


def _check_cumulative_lengths(request: AttentionRequest, version: Version, say: _RuleChecker) -> None:
    for side in ("q", "kv"):
        say.refuse_unset_attribute(
            request.has(f"seq_len_{side}") and request.has(f"cu_seq_len_{side}"),
            f"seq_len_{side} and cu_seq_len_{side} cannot both be set: invalid",
        )
    say.refuse_unset_attribute(
        request.has_lengths[0] != request.has_lengths[1],
        "a length of Q and one of K and V must be provided together, as lengths or as running sums",
    )
    totals = request.max_total_seq_q is not None or request.max_total_seq_kv is not None
    say.refuse_unsupported(totals and not request.is_ragged, _RAGGED_ONLY_MESSAGE)
    say.refuse_unsupported(
        request.stats_log2 and request.stats and version < (9, 27, 0),
        f"stats_use_log2 is not supported before cuDNN 9.27, this is {format_version_numbers(version)}",
        fix="use cuDNN 9.27 or newer, or multiply Stats by log2(e)",
    )


def _check_implementation(request: AttentionRequest, context: Context, say: _RuleChecker) -> None:
    if request.implementation == attention_implementation.UNIFIED:
        lacks = find_reason_against_unified_sdpa(request, context)
        say.refuse_unsupported(lacks is not None, lacks or "", fix="implementation=cudnn.attention_implementation.AUTO")
    elif not uses_unified_sdpa(request, context) and (
        request.has("cu_seq_len_q", "cu_seq_len_kv") or request.has_offset_multiplier
    ):
        what = "a ragged offset multiplier" if request.has_offset_multiplier else "running sums of lengths (cu_seq_len)"
        lacks = find_reason_against_unified_sdpa(request, context)
        say.refuse_unsupported(True, f"the composite SDPA node does not support {what}, not supported; {lacks}")
    elif not uses_unified_sdpa(request, context) and not request.has_types((*_NARROW_FLOAT_TYPES, data_type.FLOAT)):
        say.refuse_unsupported(
            True, "attention is not supported with elements of other types than fp16, bf16, fp8 and fp32"
        )
    elif not uses_unified_sdpa(request, context) and request.has("block_mask"):
        asked = request.implementation == attention_implementation.COMPOSITE
        say.refuse_unsupported(asked, "the composite SDPA node does not support a block mask, not supported")
        say.refuse_unsupported(
            not asked, "no suitable implementation of attention: the composite one has no block mask"
        )


def _check_forward_fp8(request: AttentionRequest, version: Version, major: int, say: _RuleChecker) -> None:
    say.refuse_unsupported(version < (9, 1, 0), "sdpa fp8 forward operation is not supported before cudnn 9.1.0")
    say.refuse_unsupported(version == (9, 10, 0), "sdpa fp8 forward operation is not supported on cudnn 9.10.0")
    say.refuse_unsupported(major < 9, "sdpa fp8 forward operation is only supported on Hopper architecture and newer")
    say.refuse_unsupported(request.has("bias"), "SDPA FP8 does not support bias, not supported")
    _check_alibi(request, say)
    if request.kind == "mxfp8":
        _check_sliding_window(request, say)
    _check_fp8_dims(request, version, major, say)
    corner = request.is_bottom_right
    say.refuse_unsupported(
        corner and version < (9, 7, 0), "bottom right causal masking in fp8 is not supported below cuDNN 9.7.0"
    )
    say.refuse_unsupported(
        corner and major < 10,
        "bottom right causal masking in fp8 is only supported on Blackwell architecture and newer",
    )
    _check_fp8_output(request, ("o",), version, major, say)


def _check_fp8_dims(request: AttentionRequest, version: Version, major: int, say: _RuleChecker) -> None:
    d_qk, d_v = request.size("q", 3), request.size("v", 3)
    found = f"got d_qk {d_qk} and d_v {d_v}"
    if major >= 10:
        wide = "" if request.backward else " from cuDNN 9.19 on, both 256 from 9.26 on, or both above 256, up to 512"
        say.refuse_unsupported(
            not _are_head_dims_valid_on_blackwell(request, version),
            f"hidden_dim should be a multiple of 16 less than or equal to 128, or d_qk 192 with d_v 128{wide}, {found}",
        )
    elif request.backward:
        say.refuse_unsupported(d_qk != 128 or d_v != 128, f"hidden_dim should be equal to 128, {found}")
    else:
        say.refuse_unsupported(
            d_qk > 256 or d_qk % 16 != 0 or d_v > 256 or d_v % 16 != 0,
            f"hidden_dim should be less than or equal to 256 and multiple of 16, {found}",
            _suggest_padding(request, 16, 256),
        )


def _are_head_dims_valid_on_blackwell(request: AttentionRequest, version: Version) -> bool:
    """Return whether 8-bit attention on Blackwell supports these head dims."""
    widths = request.size("q", 3), request.size("v", 3)
    if any(width % 16 for width in widths):
        return False
    if request.backward:
        return max(widths) <= 128 or widths == (192, 128) or (request.kind == "mxfp8" and widths == (256, 256))
    return (
        max(widths) <= 128
        or (widths == (192, 128) and version >= (9, 19, 0))
        or (widths == (256, 256) and version >= (9, 26, 0))
        or all(256 < width <= 512 for width in widths)
    )


def _check_fp8_output(
    request: AttentionRequest, names: tuple[str, ...], version: Version, major: int, say: _RuleChecker
) -> None:
    wide = [name for name in names if request.tensors[name].data_type.backend in HALF_TYPES]
    say.refuse_unsupported(
        bool(wide) and (version < (9, 13, 0) or major < 10),
        f"sdpa fp8 with HALF/BFLOAT16 output ({', '.join(wide)}) is only supported on Blackwell architecture with "
        "cuDNN version 9.13.0 and newer",
    )


def _check_forward_half_precision(request: AttentionRequest, version: Version, sm: int, say: _RuleChecker) -> None:
    major, s_q = sm // 10, request.s_q
    d_qk, d_v = request.size("q", 3), request.size("v", 3)
    left, right = request.left_bound, request.right_bound
    widest, old = max(d_qk, d_v), version <= (9, 9, 0)
    _check_known_bugs(request, version, say)
    _check_score_modifier(request, say)
    say.refuse_unsupported(
        d_qk % 8 != 0 or d_v % 8 != 0,
        f"hidden_dim should be multiple of 8, got {d_qk} and {d_v}",
        _suggest_padding(request, 8, 256),
    )
    _check_alibi(request, say)
    say.refuse_unsupported(
        left is not None and left <= 0 and version < (9, 10, 0),
        f"left bound (sliding window length) should be greater than zero, it is {left}: invalid",
    )
    _check_sliding_window(request, say)
    _check_left_bound(request, version, major, say)
    say.refuse_unsupported(
        version < (9, 10, 2) and left is not None and (right is None or request.uses_dropout or request.has("bias")),
        "left and right bounds are only supported with is_dropout=False, is_bias=False and a right bound below 9.10.2",
    )
    say.refuse_unset_attribute(
        right is not None and right < 0, f"right bound needs to be larger than or equal to zero, it is {right}: invalid"
    )
    decode = s_q == 1
    say.refuse_unsupported(
        decode and major == 10 and widest > 128 and old,
        "decode only mode, s_q == 1, is not supported for blackwell architecture with d_qk or d_v > 128 for backend "
        "version 9.9 or below",
    )
    say.refuse_unsupported(
        decode and old and right is not None,
        "decode only mode, s_q == 1, is not supported with masking (right_bound) for backend version 9.9 or below",
    )
    say.refuse_unsupported(
        decode and request.has("sink"), "decode only mode, s_q == 1, is not supported with sink_token"
    )
    _check_page_tables(request, version, widest, say)
    say.refuse_unsupported(major < 8, f"SDPA in FP16/BF16 requires SM80 (Ampere) or newer, sm_{sm} is not supported")
    for of, name, limit, until in (
        (8, "ampere", 128, (9, 9, 0)),
        (9, "hopper", 256, (9, 9, 0)),
        (10, "blackwell", 128, (9, 8, 99)),
    ):
        say.refuse_unsupported(
            major == of and version <= until and widest > limit,
            f"head_dim should be less than or equal to {limit} for backend version {until[0]}.{until[1]} or below on "
            f"{name} architecture, it is {widest}",
        )
    say.refuse_unsupported(request.is_paged and version < (9, 5, 0), "below cuDNN 9.5.0 paged caches are not supported")
    say.refuse_unsupported(
        request.is_ragged and sm < 90 and version < (9, 18, 1),
        f"THD (ragged offset) is only supported in Hopper and above below cuDNN 9.18.1, this is sm_{sm}",
    )


def _check_page_tables(request: AttentionRequest, version: Version, widest: int, say: _RuleChecker) -> None:
    paged = request.is_paged
    say.refuse_unsupported(
        paged and widest > 128 and version <= (9, 9, 0),
        "paged attention is only supported with d_qk and d_v <= 128 for backend version 9.9 or below",
    )
    say.refuse_unsupported(
        paged and request.is_ragged and version < (9, 7, 0),
        "paged caches are not supported in combination with ragged offsets below cuDNN 9.7.0",
    )
    say.refuse_unsupported(
        paged and not all(request.has_lengths),
        "paged caches can only be used in combination with padding mask and sequence lengths of Q and KV, "
        "else they are not supported",
    )
    limit = request.max_seq_kv
    say.refuse_unsupported(
        not paged and limit is not None, "a max kv sequence length is not supported without paged attention"
    )
    for name in ("bias", "rng_dump"):
        say.refuse_unsupported(
            limit is not None and request.has(name) and request.size(name, 3) != limit,
            f"the max kv sequence length {limit} is incompatible with the sequence length of {name}, not supported",
        )
    tables = [request.get("page_table_k"), request.get("page_table_v")]
    say.refuse_unsupported(
        version < (9, 10, 2) and any(table is not None and table.ragged_offset is not None for table in tables),
        "packed page tables are only supported with cudnn version 9.10.2 and above",
    )


# block scales


def _check_mx_scale_tensor(
    request: AttentionRequest, say: _RuleChecker, name: str, of: str, axis: int, blocks: int
) -> None:
    """Check an E8M0 scale tensor's type and memory order, and its dims against those of tensor `of`."""
    item = request.tensors[name]
    say.refuse_unset_attribute(
        item.data_type != data_type.FP8_E8M0,
        f"MXFP8 SDPA requires {name} to have FP8_E8M0 data type, it has {item.data_type.name}",
    )
    say.refuse_unset_attribute(
        item.reordering != tensor_reordering.F8_128x4,
        f"MXFP8 SDPA requires {name} to have F8_128x4 reordering, it has {item.reordering.name}",
    )
    say.refuse_unset_attribute(len(item.dim) != 4, f"the dim for {name} is invalid: {item.dim}")
    say.refuse_unset_attribute(
        item.dim[:2] != request.tensors[of].dim[:2],
        f"MXFP8 SDPA: {name} batch/head dimensions must match those of {of}, got {item.dim[:2]} and "
        f"{request.tensors[of].dim[:2]}",
    )
    say.refuse_unset_attribute(
        item.dim[axis] < blocks,
        f"MXFP8 SDPA: {name} dimension {axis} is too small (expected >= {blocks}, got {item.dim[axis]})",
    )


def _count_mx_blocks(size: int) -> int:
    return -(-size // _MX_BLOCK_SIZE)


def _check_mx_forward(version: Version, major: int, say: _RuleChecker) -> None:
    say.refuse_unsupported(version < (9, 21, 0), "MXFP8 SDPA requires cuDNN 9.21.0 or later, not supported")
    say.refuse_unsupported(major != 10, "MXFP8 SDPA is only supported on Blackwell Data Center architectures")


def _check_mx_scales(request: AttentionRequest, say: _RuleChecker) -> None:
    d_blocks = _count_mx_blocks(request.size("q", 3))
    for name in ("q", "k"):
        _check_mx_scale_tensor(request, say, f"descale_{name}", name, 3, d_blocks)
        stride = request.tensors[f"descale_{name}"].stride
        say.refuse_unsupported(
            stride[-1:] != [1],
            f"MXFP8 SDPA requires descale_{name} to have contiguous scales (stride[3] == 1), got {stride}",
        )
    _check_mx_scale_tensor(request, say, "descale_v", "v", 2, _count_mx_blocks(request.s_kv))


def _check_mx_backward(request: AttentionRequest, version: Version, say: _RuleChecker) -> None:
    say.refuse_unsupported(version < (9, 21, 0), "MXFP8 SDPA requires cuDNN 9.21.0 or later, not supported")
    d_qk, d_v = _count_mx_blocks(request.size("q", 3)), _count_mx_blocks(request.size("v", 3))
    s_q, s_kv = _count_mx_blocks(request.s_q), _count_mx_blocks(request.s_kv)
    rows: tuple[tuple[str, str, int, int], ...] = (
        ("descale_q", "q", 3, d_qk),
        ("descale_q_t", "q", 2, s_q),
        ("descale_k", "k", 3, d_qk),
        ("descale_k_t", "k", 2, s_kv),
        ("descale_v", "v", 2, s_kv),
        ("descale_do", "do", 3, d_v),
        ("descale_do_t", "do", 2, s_q),
    )
    for name, of, axis, blocks in rows:
        _check_mx_scale_tensor(request, say, name, of, axis, blocks)


# backward


def _check_backward(request: AttentionRequest, context: Context, say: _RuleChecker) -> None:
    version, major = context.version, context.sm // 10
    _check_shape(request, say, "q", "k", "v", "o", "stats", "do")
    _check_output(request, say, "dq", "dk", "dv")
    s_q, s_kv = request.s_q, request.size("v", 2)
    say.refuse_unsupported(s_q == 1 and s_kv == 1, "s_q = s_kv = 1 is not supported")
    _check_known_bugs(request, version, say)
    _check_backward_dims(request, version, major, say)
    _check_score_modifier(request, say)
    _check_heads(request, say)
    _check_scale(request, say)
    _check_alibi(request, say)
    _check_bias(request, say)
    _check_padding(request, say)
    say.refuse_unsupported(
        (request.max_total_seq_q is not None or request.max_total_seq_kv is not None) and not request.is_ragged,
        _RAGGED_ONLY_MESSAGE,
    )
    _check_bottom_right(request, version, say)
    _check_backward_bounds(request, version, major, say)
    _check_dropout(request, say)
    _check_ragged_sink(request, version, say)
    _check_stats_layout(request, version, (9, 26, 0), say)
    _check_backward_kernel_limits(request, version, major, say)
    say.refuse_unset_attribute(
        request.has("dsink") and not request.has("sink"), "if dSink_token is set, sink_token needs to be set"
    )


def _check_backward_dims(request: AttentionRequest, version: Version, major: int, say: _RuleChecker) -> None:
    d_qk, d_v = request.size("q", 3), request.size("v", 3)
    found = f"got d_qk {d_qk} and d_v {d_v}"
    odd = d_qk % 8 != 0 or d_v % 8 != 0
    if major == 9:
        say.refuse_unsupported(
            (9, 11, 0) <= version < (9, 13, 0) and 128 < d_qk < 192 and 64 < d_v < 128,
            f"num hidden_dim d_v should be equal to 128 if d_qk is above 128 with cuDNN 9.11 and 9.12, {found}",
        )
        say.refuse_unsupported(
            max(d_qk, d_v) > 256 or odd,
            f"num hidden_dim should be less than or equal to 256 and multiple of 8, {found}",
            _suggest_padding(request, 8, 256),
        )
    elif major == 10 and version >= (9, 11, 0) and d_qk == 192:
        say.refuse_unsupported(d_v != 128, f"num hidden_dim d_v should be equal to 128 if d_qk is 192, {found}")
    elif not (major == 10 and version >= (9, 23, 0) and d_qk == d_v == 256):
        say.refuse_unsupported(
            max(d_qk, d_v) > 128 or odd,
            f"num hidden_dim should be less than or equal to 128 and multiple of 8, {found}",
            _suggest_padding(request, 8, 128),
        )


def _suggest_padding(request: AttentionRequest, multiple: int, most: int) -> str | None:
    """Return the head dims to pad to with zeros, which changes no result; None if no padding makes them valid."""
    widths = request.size("q", 3), request.size("v", 3)
    padded = tuple(-(-width // multiple) * multiple for width in widths)
    if padded == widths or max(padded) > most:
        return None
    to = f"{padded[0]}" if padded[0] == padded[1] else f"{padded[0]} of Q and K, {padded[1]} of V"
    return f"pad the head dim with zeros to {to}, and keep attn_scale: the results are the same"


def _check_backward_bounds(request: AttentionRequest, version: Version, major: int, say: _RuleChecker) -> None:
    left, right = request.left_bound, request.right_bound
    loose = request.is_ragged and not request.padding
    say.refuse_unsupported(
        request.is_bottom_right and loose, "bottom right causal mask with ragged offsets is only supported with padding"
    )
    say.refuse_unset_attribute(
        left is not None and left <= 0,
        f"left bound (sliding window length) should be greater than zero, it is {left}: invalid",
    )
    _check_left_bound(request, version, major, say)
    _check_sliding_window(request, say)
    if version >= (9, 10, 2):
        say.refuse_unsupported(
            (left is not None or right is not None) and loose,
            "left and right bounds with ragged offsets are only supported with padding mask",
        )
    else:
        say.refuse_unsupported(
            left is not None and (right is None or request.uses_dropout or request.has("bias") or loose),
            "left and right bounds are only supported with is_dropout=False, is_bias=False and a right bound below "
            "9.10.2",
        )
    say.refuse_unset_attribute(
        right is not None and right < 0, f"right bound needs to be larger than or equal to zero, it is {right}: invalid"
    )


def _check_backward_kernel_limits(request: AttentionRequest, version: Version, major: int, say: _RuleChecker) -> None:
    """Check determinism, ragged statistics and dBias for the architecture and version."""
    dbias, ragged = request.has("dbias"), request.is_ragged
    s_q, s_kv = request.s_q, request.size("v", 2)
    on_10 = request.deterministic and major == 10
    say.refuse_unsupported(
        on_10 and version < (9, 18, 0),
        "deterministic algorithm is not supported on blackwell architecture with cudnn version below 9.18.0",
    )
    say.refuse_unsupported(
        on_10 and (dbias or request.has("rng_dump") or request.uses_dropout or request.alibi),
        "deterministic algorithm is not supported on blackwell architecture with dbias, dropout or alibi",
    )
    small_thd = version >= (9, 18, 1) and ragged and major in (8, 12)
    say.refuse_unsupported(
        small_thd and request.deterministic,
        "deterministic algorithm is not supported for bprop thd on SM8X and SM12X",
    )
    say.refuse_unsupported(
        small_thd and request.tensors["stats"].ragged_offset is not None,
        "packed/ragged stats are not supported for bprop thd on SM8X and SM12X",
    )
    say.refuse_unsupported(
        version < (9, 5, 0) and dbias and request.padding,
        "below cuDNN 9.5.0 dBias with variable sequence lengths is not supported",
    )
    say.refuse_unsupported(
        version < (9, 5, 0) and dbias and (s_q % 64 != 0 or s_kv % 64 != 0),
        f"below cuDNN 9.5.0 dBias is not supported with s_q or s_kv no multiple of 64, got {s_q} and {s_kv}",
    )
    grouped = len({request.size(name, 1) for name in ("q", "k", "v")}) > 1
    say.refuse_unsupported(
        version < (9, 6, 0) and ragged and grouped,
        "below cuDNN 9.6.0 group-query attention with ragged offset is not supported",
    )
    say.refuse_unsupported(major == 10 and ragged and dbias, "dbias with ragged offsets is not supported for SM10X")


def _check_backward_fp8(request: AttentionRequest, context: Context, say: _RuleChecker) -> None:
    version, major = context.version, context.sm // 10
    say.refuse_unsupported(version < (9, 1, 0), "sdpa fp8 backward operation is not supported before cudnn 9.1.0")
    say.refuse_unsupported(version == (9, 10, 0), "sdpa fp8 backward operation is not supported on cudnn 9.10.0")
    say.refuse_unsupported(major < 9, "sdpa fp8 backward operation is only supported on Hopper architecture and newer")
    _check_shape(request, say, "q", "k", "v", "o", "stats", "do")
    _check_output(request, say, "dq", "dk", "dv")
    say.refuse_unsupported(
        major == 9 and request.is_ragged, "sdpa fp8 backward with THD is not supported on Hopper architecture"
    )
    say.refuse_unsupported(request.s_q == 1 and request.size("v", 2) == 1, "s_q = s_kv = 1 is not supported")
    _check_fp8_dims(request, version, major, say)
    _check_heads(request, say)
    _check_scale(request, say)
    totals = request.max_total_seq_q is not None or request.max_total_seq_kv is not None
    say.refuse_unsupported(totals and not request.is_ragged, _RAGGED_ONLY_MESSAGE)
    _check_ragged_sink(request, version, say)
    _check_padding(request, say, modifier_may=False)
    _check_dropout(request, say)
    _check_fp8_bottom_right(request, version, major, say)
    _check_sliding_window(request, say)
    deterministic = is_deterministic(request, context) and major == 10
    say.refuse_unsupported(
        deterministic and version < (9, 19, 0),
        "the fp8 deterministic algorithm is not supported on Blackwell with cuDNN version below 9.19.0",
    )
    say.refuse_unsupported(
        deterministic and request.dropout is not None,
        "the fp8 deterministic algorithm is not supported on Blackwell when dropout is enabled",
    )
    _check_fp8_output(request, ("dq", "dk", "dv"), version, major, say)
    if request.kind == "mxfp8":
        _check_mx_backward(request, version, say)
    say.refuse_unset_attribute(
        request.has("dsink") and not request.has("sink"),
        "if dSink_token output is requested, sink_token input must also be set",
    )


def _check_fp8_bottom_right(request: AttentionRequest, version: Version, major: int, say: _RuleChecker) -> None:
    corner, s_q, s_kv = request.is_bottom_right, request.s_q, request.size("k", 2)
    say.refuse_unsupported(
        corner and version < (9, 7, 0), "below cuDNN version 9.7.0 bottom right causal masking is not supported"
    )
    say.refuse_unsupported(
        corner and major < 10,
        "bottom right causal masking in fp8 is only supported on Blackwell architecture and newer",
    )
    say.refuse_unsupported(
        corner and s_q > s_kv, f"bottom right causal mask does not support s_q > s_kv, got {s_q} and {s_kv}"
    )
    say.refuse_unsupported(
        corner and request.dropout is not None, "bottom right causal mask is only supported with is_dropout=False"
    )
    say.refuse_unsupported(
        corner and (s_q % 64 != 0 or s_kv % 64 != 0),
        f"bottom right causal mask is only supported with s_q and s_kv multiple of 64, got {s_q} and {s_kv}",
    )
