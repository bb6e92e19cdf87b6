"""Known issues of attention in 8-bit floats."""

from __future__ import annotations

from ..generated.enums import DataType
from ..graph.attention.known_issue import AttentionUse, KnownIssue
from ..system.version import VersionRange
from .graph_queries import is_decoding
from .sources import BLACKWELL, FRONTEND_SURFACE, MEASURED_ON_GPU, MEASURED_WITHOUT_GPU

__all__ = ["ATTENTION_EIGHT_BIT"]


def _is_fp8_with_long_keys_and_bfloat16_output(use: AttentionUse) -> bool:
    """Whether an 8-bit forward pass with bfloat16 output has 4096 keys or more, over which it may be split."""
    p = use.problem
    plain = p.left_bound is None and p.right_bound is None and p.page_size is None
    plain = plain and not (p.ragged or p.dropout or p.dropout_mask)
    into_bfloat16 = p.is_fp8 and p.output_type is DataType.BFLOAT16
    return not use.backward and into_bfloat16 and plain and p.seq_q > 1 and p.seq_kv >= 4096


def _is_block_scaled_decoding(use: AttentionUse) -> bool:
    """Whether block-scaled attention has one query per sequence, without a sink and without pages."""
    p = use.problem
    return is_decoding(use) and p.mx and not p.sink and p.page_size is None


def _is_fp8_decoding_without_stats(use: AttentionUse) -> bool:
    p = use.problem
    return is_decoding(use) and p.is_fp8 and not p.mx and not p.stats


def _has_large_block_scaled_head_dims(use: AttentionUse) -> bool:
    """Whether block-scaled attention has head dims above 192 for Q and K, or 128 for V."""
    p = use.problem
    return not use.backward and p.mx and p.seq_q > 1 and (p.head_dim > 192 or p.head_dim_v > 128)


def _is_ragged_fp8_forward(use: AttentionUse) -> bool:
    return not use.backward and use.problem.is_fp8 and use.problem.ragged


def _is_fp8_backward_with_partial_key_tile(use: AttentionUse) -> bool:
    """Whether the keys of an 8-bit backward pass without lengths and mask do not fill whole tiles of 128."""
    p = use.problem
    return use.backward and p.is_fp8 and not p.padding and p.right_bound is None and p.seq_kv % 128 != 0


ATTENTION_EIGHT_BIT: tuple[KnownIssue, ...] = (
    KnownIssue(
        "fp8-attention-of-9-10",
        what="attention in 8-bit floats",
        effect="known issues, not named further; NVIDIA's own callers refuse it with this version",
        fix="use 9.10.1 or later",
        source=FRONTEND_SURFACE,
        versions=VersionRange(since=(9, 10, 0), until=(9, 10, 1)),
        attention=lambda use: use.problem.is_fp8,
    ),
    KnownIssue(
        "mxfp8-infinities",
        what="attention with block-scaled 8-bit floats",
        effect="Inf and NaN in the results",
        fix="use 9.23.2 or later",
        source="https://github.com/NVIDIA/TransformerEngine/pull/3173",
        sm=BLACKWELL,
        versions=VersionRange(since=(9, 23, 0), until=(9, 23, 2)),
        attention=lambda use: use.problem.mx,
    ),
    KnownIssue(
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
        versions=VersionRange(since=(9, 24, 0), until=(9, 25, 0)),
        attention=_is_fp8_with_long_keys_and_bfloat16_output,
    ),
    KnownIssue(
        "fp8-window-of-sequences",
        what="a left bound with padding or ragged sequences and an fp8 data type",
        effect="the forward pass does not end, for some lengths and bounds; seen with 9.25 and 9.27",
        fix="leave the left bound or the lengths out, or use float16 or bfloat16",
        source="https://github.com/NVIDIA/cudnn-frontend/pull/1069",
        sm=(90,),
        versions=VersionRange(since=(9, 25, 0)),
        attention=lambda use: (
            not use.backward
            and use.problem.is_fp8
            and use.problem.left_bound is not None
            and (use.problem.padding or use.problem.ragged)
        ),
    ),
    KnownIssue(
        "mxfp8-one-query",
        what="a forward pass with block-scaled 8-bit floats and s_q of 1, without sink and pages",
        effect="the process ends by a segmentation fault while a plan is built",
        fix="repeat the query row (s_q of 2), or use float16 or bfloat16",
        source="https://github.com/NVIDIA/cudnn-frontend/blob/main/python/cudnn/sdpa/fwd/backend_guard.py",
        evidence=(
            "measured with 9.24.0 and 9.26.0 to 9.28.0 on sm_100, deviceless; NVIDIA says so of 9.26 to 9.28 on sm_107"
        ),
        sm=(100, 103, 107),
        versions=VersionRange(since=(9, 24, 0)),
        attention=_is_block_scaled_decoding,
        step="build",
    ),
    KnownIssue(
        "mxfp8-wide-heads",
        what="a forward pass with block-scaled 8-bit floats and head dims above 192 of Q or 128 of V",
        effect="the support check passes and no plan can be built",
        fix="use float16 or bfloat16, or head dims up to 192 and 128",
        source="https://github.com/NVIDIA/cudnn-frontend/pull/897",
        evidence=(
            "measured with 9.24.0, 9.26.0 and 9.27.0 (512) and 9.28.0 (192 and 192 to 512) on sm_100 and "
            "sm_103, deviceless"
        ),
        sm=BLACKWELL,
        versions=VersionRange(since=(9, 24, 0)),
        attention=_has_large_block_scaled_head_dims,
        step="build",
    ),
    KnownIssue(
        "mxfp8-backward",
        what="a backward pass with block-scaled 8-bit floats",
        effect="the support check passes and no plan that heuristics propose can be built",
        fix="use attention.deterministic_config, or float16 or bfloat16",
        source=MEASURED_WITHOUT_GPU,
        evidence=(
            "measured with 9.24.0, 9.26.0, 9.27.0 and 9.28.0 on sm_100, deviceless, with head dims of 64, 96 and 128"
        ),
        sm=(100,),
        versions=VersionRange(since=(9, 24, 0)),
        attention=lambda use: use.backward and use.problem.mx,
        step="build",
    ),
    KnownIssue(
        "mxfp8-other-architectures",
        what="attention with block-scaled 8-bit floats on other architectures than sm_10x",
        effect="where the support check passes, no plan can be built, or cuDNN crashes while it builds one",
        fix="use an sm_10x GPU, or float16 or bfloat16",
        source=MEASURED_WITHOUT_GPU,
        evidence=(
            "measured with 9.24.0 and 9.28.0, deviceless: backward on sm_80 to sm_90, sm_120 and sm_121, forward on "
            "sm_90; forward on sm_120 crashes; cudnn-frontend refuses both. With 9.22.0 backward on sm_80 and forward "
            "on sm_90"
        ),
        sm=(80, 86, 87, 89, 90, 120, 121),
        versions=VersionRange(since=(9, 22, 0)),
        attention=lambda use: use.problem.mx,
        step="build",
    ),
    KnownIssue(
        "fp8-one-query",
        what="a forward pass in 8-bit floats, not block-scaled, with s_q of 1 and without stats",
        effect="the support check passes and no plan can be built: up to s_kv of 512 always, above it often",
        fix="write stats, or repeat the query row (s_q of 2), or use float16 or bfloat16",
        source=MEASURED_WITHOUT_GPU,
        evidence=(
            "measured with 9.14.0, 9.17.0, 9.19.0, 9.20.0 and 9.22.0 to 9.28.0 on sm_100 and sm_103, deviceless, "
            "composite and unified; with s_kv of 4096 no plan of 1 x 64 heads from 9.17.0, a plan of 1 x 74 from 9.19.0"
        ),
        sm=(100, 103),
        versions=VersionRange(since=(9, 14, 0)),
        attention=_is_fp8_decoding_without_stats,
        step="build",
    ),
    KnownIssue(
        "fp8-paged-prefill",
        what="a forward pass in 8-bit floats with paged K and V and s_q above 1",
        effect="results are off with kernels compiled by CUDA 12.9 and before; FlashInfer's tests expect it",
        fix="use a cuDNN for CUDA 13, or leave the pages out",
        source="https://github.com/flashinfer-ai/flashinfer/pull/2963",
        sm=(100, 103),
        versions=VersionRange(since=(9, 17, 1)),
        attention=lambda use: use.problem.is_fp8
        and not use.backward
        and use.problem.page_size is not None
        and use.problem.seq_q > 1,
    ),
    KnownIssue(
        "fp8-ragged-no-query",
        what="a forward pass of ragged sequences with an fp8 data type",
        effect="a sequence without a query ends the CUDA context: an illegal instruction",
        fix="use 9.28.0 or later, or padding instead of ragged sequences, or leave such sequences out",
        source=MEASURED_ON_GPU,
        evidence=(
            "measured with 9.19.0 on sm_90: 6 of 6 graphs of E4M3, 1 of 5 of E5M2; 9.28.0 is right in 4 of 4; the "
            "versions between were not measured"
        ),
        sm=(90,),
        versions=VersionRange(until=(9, 28, 0)),
        attention=_is_ragged_fp8_forward,
        depends_on="lengths of 0",
    ),
    KnownIssue(
        "fp8-backward-key-tail",
        what="a backward pass with an fp8 data type, without padding and not causal, s_kv no multiple of 128",
        effect=(
            "the tile after the last keys is not masked: its scores are 0 and its probabilities exp(-stats), which "
            "the largest of dP, dK and dV count: infinite or far too large where stats are below 0"
        ),
        fix="use 9.28.0 or later, or padding (seq_len_q, seq_len_kv)",
        source=MEASURED_ON_GPU,
        evidence=(
            "measured with 9.19.0 on sm_90: wrong with 9 sizes from 8 to 320, right with 128 and 256; 9.28.0 is right; "
            "the versions between were not measured"
        ),
        sm=(90,),
        versions=VersionRange(until=(9, 28, 0)),
        attention=_is_fp8_backward_with_partial_key_tile,
        depends_on="stats far below 0",
    ),
)
