"""Graphs that ran on real GPUs: published results for attention, this project's own for other graphs."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from ..generated.enums import DataType
from ..graph import Graph, graph_to_json
from ..graph.attention import sdpa_backward, sdpa_forward
from ..graph.attention.known_issue import AttentionUse
from ..graph.attention.recognize import read_attention
from ..system.version import VersionTuple, format_version_numbers
from .verdict import Candidate

__all__ = [
    "OPERATION_RUNS_FILE",
    "PUBLISHED_RESULTS",
    "OperationRun",
    "PublishedResult",
    "describe_nearest_result",
    "make_form_key",
]

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


@dataclass(frozen=True)
class OperationRun:
    """A graph that ran on a real GPU with results that agree with the interpreter.

    ``form`` is :func:`make_form_key` of the graph, ``tag`` its engine config, ``source`` a record in this repository.
    """

    form: str
    gpu: str
    sm: int
    version: VersionTuple
    tag: str
    source: str


def describe_nearest_result(
    graph: Graph,
    sm: int,
    version: VersionTuple,
    first: Candidate | None,
    rows: Iterable[PublishedResult] = PUBLISHED_RESULTS,
) -> str:
    """Return a sentence on a real GPU's result for such a graph, of the nearest cuDNN version; empty if none exists.

    It is a result of the same graph apart from sizes: for attention the same direction, form, head dims and options,
    for other graphs the same :func:`make_form_key`. Of several, the one whose version is nearest.
    """
    if (use := read_attention(graph)) is None:
        found = _find_result_of_nearest_version(
            _read_verified_graph_runs().get((sm, make_form_key(graph)), ()), version
        )
        return "" if found is None else _describe_result(found, True, first, "it ran there with right results")
    key = _make_attention_key(use)
    alike = (
        row
        for row in rows
        if (row.sm, row.backward) == (sm, use.backward)
        and row.options["head_dim"] == use.problem.head_dim
        and _make_published_result_key(row) == key
    )
    nearest = _find_result_of_nearest_version(alike, version)
    return "" if nearest is None else _describe_result(nearest, nearest.supported, first, "it ran there")


@cache
def _make_published_result_key(row: PublishedResult) -> tuple[Any, ...] | None:
    """Build the graph of a published result and return its attention key; None if it is not read as attention."""
    use = read_attention(row.graph())
    return None if use is None else _make_attention_key(use)


_Result = TypeVar("_Result", PublishedResult, OperationRun)


def _find_result_of_nearest_version(rows: Iterable[_Result], version: VersionTuple) -> _Result | None:
    """Return the result whose cuDNN version is nearest to `version`; None if there are no results."""

    def measure_distance(row: _Result) -> list[int]:
        return [abs(one - other) for one, other in zip(row.version, version, strict=True)]

    return min(rows, key=measure_distance, default=None)


def _describe_result(row: PublishedResult | OperationRun, supported: bool, first: Candidate | None, ran: str) -> str:
    same = supported and bool(row.tag) and first is not None and row.tag == first.tag
    result = ran if supported else "it was refused there"
    if same:
        result += ", the same first config"
    elif supported and row.tag:
        result += f", config there: {row.tag}"
    where = f"{row.gpu} with cuDNN {format_version_numbers(row.version)}"
    return f"{where}, the same graph apart from sizes: {result} ({row.source})"


_SIZES_AND_LAYOUTS = frozenset(
    [
        "batch",
        "heads",
        "kv_heads",
        "v_heads",
        "seq_q",
        "seq_kv",
        "layout",
        "scale",
        "offset_type",
        "seed_type",
        "pages_k",
        "pages_v",
        "name",
    ]
)
_OPTIONS_OF_ANY_SIZE = (
    *("left_bound", "right_bound", "max_total_seq_q", "max_total_seq_kv"),
    *("page_size", "bias", "score_modifier"),
)


def _make_attention_key(use: AttentionUse) -> tuple[Any, ...]:
    """Return a key that is equal for two attention graphs which differ only in sizes and layouts.

    For 8-bit types cuDNN has only deterministic backward passes.
    """
    p = use.problem
    options = {one.name: getattr(p, one.name) for one in fields(p) if one.name not in _SIZES_AND_LAYOUTS}
    options |= {name: options[name] is not None for name in _OPTIONS_OF_ANY_SIZE}
    options |= {"dropout": p.dropout > 0, "deterministic": p.deterministic and not p.is_fp8}
    return (use.backward, use.form, p.seq_q == 1, p.kv_heads == p.heads, tuple(options.items()))


def make_form_key(graph: Graph) -> str:
    """Return a hash of a graph without names and sizes: equal for the same operations, attributes, types and layouts.

    Dims of 1 count, as they are broadcast, and the order of strides.
    """
    data = graph_to_json(graph)
    numbers: dict[str, int] = {}

    def replace_names(value: Any) -> Any:
        if isinstance(value, dict):
            if isinstance(name := value.get("tensor"), str):
                return numbers.setdefault(name, len(numbers))
            return {key: replace_names(item) for key, item in value.items() if key != "name"}
        return [replace_names(item) for item in value] if isinstance(value, list) else value

    operations = replace_names(data["operations"])
    tensors = {tensor["name"]: tensor for tensor in data["tensors"]}
    kinds = [_describe_tensor_without_sizes(tensors[name]) for name in list(numbers)]
    text = json.dumps([operations, [replace_names(kind) for kind in kinds]], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _describe_tensor_without_sizes(tensor: dict[str, Any]) -> dict[str, Any]:
    dims, strides = tensor["dims"], tensor["strides"]
    order = sorted((axis for axis, dim in enumerate(dims) if dim > 1), key=lambda axis: (-strides[axis], axis))
    rest = {key: value for key, value in tensor.items() if key not in ("name", "uid", "dims", "strides", "value")}
    return {**rest, "broadcast": [dim == 1 for dim in dims], "order": order}


OPERATION_RUNS_FILE = Path(__file__).with_name("operation_runs.json")


@cache
def _read_verified_graph_runs() -> Mapping[tuple[int, str], list[OperationRun]]:
    """Return the runs of graphs by architecture and form; ``tools/records/operation_runs.py`` writes the file."""
    runs: dict[tuple[int, str], list[OperationRun]] = {}
    for row in json.loads(OPERATION_RUNS_FILE.read_text(encoding="utf-8")):
        runs.setdefault((row["sm"], row["form"]), []).append(OperationRun(**{**row, "version": tuple(row["version"])}))
    return runs
