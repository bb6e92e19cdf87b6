"""Published results of real GPUs, as data: graph, engine config and source."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from ..generated.enums import DataType
from ..graph import Graph
from ..graph.attention import sdpa_backward, sdpa_forward
from ..graph.attention.known_issue import AttentionUse
from ..graph.attention.recognize import read_attention
from ..system.version import VersionTuple, version_text
from .verdict import Candidate

__all__ = ["PUBLISHED_RESULTS", "PublishedResult", "describe_nearest_result"]

_HALF, _BF16, _FP8 = DataType.HALF, DataType.BFLOAT16, DataType.FP8_E4M3


@dataclass(frozen=True, kw_only=True)
class PublishedResult:
    """A published result of attention on a real GPU.

    Parameters
    ----------
    gpu, target
        The GPU, and the described one that stands in for it.
    sm, version
        Its architecture, and the cuDNN version.
    backward, options
        The graph: the direction, and fields of :class:`~cudnn_backend_py.graph.attention.Attention`.
    supported
        Whether it ran.
    tag
        The first engine config, or the one that ran; empty where that is not published.
    source, known_by
        Where it is published, and how it is known there.
    """

    gpu: str
    target: str
    sm: int
    version: VersionTuple
    options: dict[str, Any] = field(hash=False)
    backward: bool = False
    supported: bool = True
    tag: str = ""
    source: str
    known_by: str

    def graph(self) -> Graph:
        """Return the graph that ran."""
        make = sdpa_backward if self.backward else sdpa_forward
        return make(**self.options, version=self.version, sm=self.sm, allow_hazards=True)


def _make_attention_fields(batch: int, heads: int, seq_q: int, head_dim: int, **more: Any) -> dict[str, Any]:
    return {"batch": batch, "heads": heads, "seq_q": seq_q, "head_dim": head_dim, **more}


_FRONTEND_ISSUES = "https://github.com/NVIDIA/cudnn-frontend/issues/"
_BENCHMARKS = (
    "https://github.com/NVIDIA/cudnn-frontend/tree/3929da2ef4c1dba1bb8acb68727b9134f26f40c0"
    "/benchmark/sdpa_benchmark_training/results"
)
_NODE_SOURCE = "https://pypi.org/project/nvidia-cudnn-frontend/1.32.0: node/scaled_dot_product_flash_attention.h"
_TRANSFORMER_ENGINE = "https://github.com/NVIDIA/TransformerEngine/pull/"
_LATENT_ATTENTION = {"head_dim_v": 128, "data_type": _BF16}
_LATENT_ATTENTION_FP8 = {"head_dim_v": 128, "data_type": _FP8, "output_type": _BF16}
_RAGGED_OPTIONS = {"ragged": True, "ragged_stats": True}
_SM80_TAG = "eng8_k24=1_k27=0_k38=0_k40=3_k41=1"
_FROM_LOG, _FROM_CSV, _FROM_RULE = (
    "the tag of a plan in a thread",
    "a row of a published CSV",
    "the rule of a project that tested it",
)

PUBLISHED_RESULTS = (
    PublishedResult(
        gpu="L20",
        target="l40s",
        sm=89,
        version=(9, 26, 0),
        options=_make_attention_fields(1, 4, 256, 64),
        tag=_SM80_TAG,
        source=f"{_FRONTEND_ISSUES}1148",
        known_by=_FROM_LOG,
    ),
    PublishedResult(
        gpu="RTX 5090",
        target="rtx-5090",
        sm=120,
        version=(9, 24, 0),
        options=_make_attention_fields(1, 4, 256, 64),
        tag=_SM80_TAG,
        source=f"{_FRONTEND_ISSUES}1148",
        known_by=_FROM_LOG,
    ),
    PublishedResult(
        gpu="RTX 5090",
        target="rtx-5090",
        sm=120,
        version=(9, 20, 0),
        options=_make_attention_fields(1, 8, 128, 128),
        tag="eng8_k24=3",
        source=f"{_FRONTEND_ISSUES}620",
        known_by=_FROM_LOG,
    ),
    *(
        PublishedResult(
            gpu="GB300",
            target="b300",
            sm=103,
            version=(9, 20, 0),
            options=_make_attention_fields(1, 16, 1, 128, seq_kv=seq_kv, kv_heads=8, data_type=_BF16, stats=True),
            tag="eng10_k24=7",
            source="a public record of a TensorRT plugin: plan=eng10_k24=7 cudnn_version=92000",
            known_by=_FROM_LOG,
        )
        for seq_kv in (512, 4096, 40960)
    ),
    PublishedResult(
        gpu="A100",
        target="a100-80gb",
        sm=80,
        version=(9, 26, 0),
        options=_make_attention_fields(2, 8, 512, 256),
        source=f"{_FRONTEND_ISSUES}863",
        known_by=_FROM_LOG,
    ),
    PublishedResult(
        gpu="A100",
        target="a100-80gb",
        sm=80,
        version=(9, 26, 0),
        options=_make_attention_fields(2, 8, 512, 256),
        backward=True,
        supported=False,
        source=f"{_FRONTEND_ISSUES}874",
        known_by=_FROM_LOG,
    ),
    *(
        PublishedResult(
            gpu=gpu,
            target=target,
            sm=sm,
            version=(9, 22, 0),
            options=_make_attention_fields(2, 8, 512, 128, **_RAGGED_OPTIONS, deterministic=True),
            backward=True,
            supported=supported,
            source=_NODE_SOURCE,
            known_by=_FROM_RULE,
        )
        for gpu, target, sm, supported in (
            ("A100", "a100-80gb", 80, False),
            ("RTX 5090", "rtx-5090", 120, False),
            ("H200", "h200", 90, True),
        )
    ),
    PublishedResult(
        gpu="B200",
        target="b200",
        sm=100,
        version=(9, 17, 0),
        options=_make_attention_fields(2, 8, 512, 192, **_LATENT_ATTENTION, **_RAGGED_OPTIONS),
        backward=True,
        source=f"{_TRANSFORMER_ENGINE}2285",
        known_by=_FROM_RULE,
    ),
    *(
        PublishedResult(
            gpu=gpu,
            target=target,
            sm=sm,
            version=(9, 24, 0),
            options=_make_attention_fields(1, 4, 256, 64),
            supported=False,
            source="https://docs.nvidia.com/deeplearning/cudnn/backend/latest/reference/support-matrix.html",
            known_by=_FROM_RULE,
        )
        for gpu, target, sm in (("V100", "v100", 70), ("T4", "t4", 75))
    ),
    *(
        PublishedResult(
            gpu=gpu,
            target=target,
            sm=sm,
            version=(9, 22, 0),
            options=options,
            backward=backward,
            source=_BENCHMARKS,
            known_by=_FROM_CSV,
        )
        for gpu, target, sm in (("GB200", "gb200", 100), ("GB300", "b300", 103))
        for options, backward in (
            (_make_attention_fields(2, 128, 32768, 192, **_LATENT_ATTENTION, causal=True), False),
            (_make_attention_fields(2, 128, 32768, 192, **_LATENT_ATTENTION, causal=True), True),
            (_make_attention_fields(2, 128, 32768, 192, **_LATENT_ATTENTION, causal=True, deterministic=True), True),
            (_make_attention_fields(2, 128, 32768, 192, **_LATENT_ATTENTION_FP8, causal=True), True),
            (_make_attention_fields(2, 128, 32768, 192, **_LATENT_ATTENTION_FP8, causal=True, mx=True), True),
            (_make_attention_fields(2, 64, 32768, 128, kv_heads=8, data_type=_BF16, causal=True), False),
            (_make_attention_fields(2, 64, 32768, 128, kv_heads=8, data_type=_BF16, causal=True), True),
        )
    ),
)


def describe_nearest_result(
    graph: Graph,
    sm: int,
    version: VersionTuple,
    first: Candidate | None,
    rows: Iterable[PublishedResult] = PUBLISHED_RESULTS,
) -> str:
    """Return the nearest result of a real GPU of the architecture as a sentence; empty where there is none.

    That is one of attention in the same direction, types and head dims, of the version that is nearest.
    """
    here = [row for row in rows if row.sm == sm]
    use = read_attention(graph) if here else None
    if use is None:
        return ""
    kind = _make_attention_kind_key(use)
    alike = [row for row in here if _make_published_kind_key(row) == kind]
    if not alike:
        return ""
    nearest = min(alike, key=lambda row: [abs(one - other) for one, other in zip(row.version, version, strict=True)])
    if not nearest.supported:
        result = "refused there"
    elif nearest.tag and first is not None:
        result = "the same first config" if nearest.tag == first.tag else f"config {nearest.tag} there"
    else:
        result = "it ran there"
    return f"{nearest.gpu} with cuDNN {version_text(nearest.version)}: {result} ({nearest.source})"


def _make_attention_kind_key(use: AttentionUse) -> tuple[Any, ...]:
    p = use.problem
    types = (p.data_type, p.mx)
    return (use.backward, *types, p.head_dim, p.head_dim_v, p.seq_q == 1, p.ragged, p.deterministic and not p.is_fp8)


def _make_published_kind_key(row: PublishedResult) -> tuple[Any, ...]:
    o = row.options
    types = (o.get("data_type", _HALF), o.get("mx", False))
    dims = (o["head_dim"], o.get("head_dim_v", o["head_dim"]))
    return (row.backward, *types, *dims, o["seq_q"] == 1, o.get("ragged", False), o.get("deterministic", False))
