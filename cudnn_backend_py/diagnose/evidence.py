"""Graphs that ran on real GPUs: published results for attention, this project's own for other graphs."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from ..frozen import FrozenValue
from ..generated.enums import DataType, PointwiseMode
from ..graph import Graph, graph_to_json
from ..graph.attention import sdpa_backward, sdpa_forward
from ..graph.attention.known_issue import AttentionUse
from ..graph.attention.recognize import read_attention
from ..graph.strides import channels_last
from ..system.version import VersionTuple, format_version_numbers
from .verdict import Candidate

if TYPE_CHECKING:
    from ..graph import GraphBuilder  # and in a function: attention needs none

__all__ = [
    "OPERATION_RUNS_FILE",
    "PUBLISHED_RESULTS",
    "PublishedResult",
    "VerifiedGraphRun",
    "describe_nearest_published_result",
    "make_graph_key_without_sizes",
]

_HALF, _BF16, _FLOAT, _FP8 = DataType.HALF, DataType.BFLOAT16, DataType.FLOAT, DataType.FP8_E4M3

_NO_OPTIONS: Mapping[str, Any] = {}


class PublishedResult(FrozenValue, kw_only=True):
    """A published result of a graph on a real GPU.

    Parameters
    ----------
    result
        The published result that it belongs to; some name several graphs.
    gpu, target
        The GPU, and the described GPU that is judged instead.
    sm, version
        Its architecture, and the cuDNN version.
    backward, options
        The graph of attention: the direction, and fields of :class:`~cudnn_backend_py.graph.attention.Attention`.
    operations
        Adds the operations of another graph to a builder.
    supported
        Whether it ran.
    tag
        The first engine config, or the one that ran, or only its engine; empty where that is not published.
    modes, offers
        The heuristics modes, and configs that a mode offers and that pass the support check.
    build, fails, kernels
        Whether the result is of a built plan, whether the first config does not build, and how many kernels of the plan
        are compiled at run time.
    unjudgeable, disagrees
        Why the result cannot be judged on a described GPU, or why the judgment differs; empty where it agrees.
    source, known_by
        Where it is published, and how it is known there.
    """

    result: str
    gpu: str
    target: str = ""
    sm: int
    version: VersionTuple
    options: Mapping[str, Any] = _NO_OPTIONS
    backward: bool = False
    operations: Callable[[GraphBuilder], object] | None = None
    supported: bool = True
    tag: str = ""
    modes: tuple[str, ...] = ("A", "FALLBACK")
    offers: tuple[tuple[str, str], ...] = ()
    build: bool = False
    fails: bool = False
    kernels: int | None = None
    unjudgeable: str = ""
    disagrees: str = ""
    source: str
    known_by: str

    def __hash__(self) -> int:  # a dict of options has none
        return hash((self.result, self.gpu, self.version, self.source))

    @property
    def is_attention(self) -> bool:
        return bool(self.options)

    @property
    def version_name(self) -> str:
        """The name of the version that judges it; precompiled engines of convolutions are in the full wheel."""
        return format_version_numbers(self.version) + ("" if self.operations is None else "-full")

    def graph(self) -> Graph:
        """Return the graph that ran."""
        if self.operations is not None:
            from ..graph import GraphBuilder

            builder = GraphBuilder(self.result)
            self.operations(builder)
            return builder.graph()
        make = sdpa_backward if self.backward else sdpa_forward
        return make(**self.options, version=self.version, sm=self.sm, allow_hazards=True)


def _make_attention_fields(batch: int, heads: int, seq_q: int, head_dim: int, **more: Any) -> dict[str, Any]:
    return {"batch": batch, "heads": heads, "seq_q": seq_q, "head_dim": head_dim, **more}


def _add_convolution(
    g: GraphBuilder, batch: int, channels: int, size: int, taps: int, *, kind: DataType, groups: int = 1
) -> None:
    """Add a convolution with as many results as channels, channels last."""
    image, filters = (batch, channels, size, size), (channels, channels // groups, taps, taps)
    x = g.tensor("x", image, kind, strides=channels_last(image))
    w = g.tensor("w", filters, kind, strides=channels_last(filters))
    g.convolution(x, w, padding=taps // 2, virtual=False, strides=channels_last(image), data_type=kind)


def _add_convolution_bias_relu(g: GraphBuilder) -> None:
    image, filters, result = (8, 3, 32, 32), (32, 3, 3, 3), (8, 32, 30, 30)
    placed: dict[str, Any] = {"strides": channels_last(result), "data_type": _FLOAT}
    x = g.tensor("x", image, _FLOAT, strides=channels_last(image))
    y = g.convolution(x, g.tensor("w", filters, _FLOAT, strides=channels_last(filters)), **placed)
    y = g.pointwise(PointwiseMode.ADD, y, g.tensor("b", (1, 32, 1, 1), _FLOAT), **placed)
    g.pointwise(PointwiseMode.RELU_FWD, y, virtual=False, **placed)


def _add_convolution_weight_gradient(g: GraphBuilder) -> None:
    image, result = (64, 32, 26, 26), (64, 64, 26, 26)
    x = g.tensor("x", image, _FLOAT, strides=channels_last(image))
    dy = g.tensor("dy", result, _FLOAT, strides=channels_last(result))
    g.convolution_backward_filter(
        x, dy, (3, 3), padding=1, virtual=False, strides=channels_last((64, 32, 3, 3)), data_type=_FLOAT
    )


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
_FROM_LOG, _FROM_CSV, _FROM_RULE, _FROM_REPORT = (
    "the tag of a plan in a thread",
    "a row of a published CSV",
    "the rule of a project that tested it",
    "a report; its sizes are not published and chosen here",
)
_CSV = "GB200 and GB300, benchmarks"
_CSV_FP8 = "GB200 and GB300, 8-bit backward, head dims 192 and 128"
_TENSORRT_PLUGIN = "a public record of a TensorRT plugin: plan=eng10_k24=7 cudnn_version=92000"
_TENSORFLOW_LOG = "a public log of TensorFlow: Trying algorithm eng..., Loaded cuDNN version ..."
_SUPPORT_MATRIX = "https://docs.nvidia.com/deeplearning/cudnn/backend/latest/reference/support-matrix.html"

PUBLISHED_RESULTS = (
    PublishedResult(
        result="L20, forward",
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
        result="RTX 5090 with 9.24, forward",
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
        result="RTX 5090 with 9.20, forward",
        gpu="RTX 5090",
        target="rtx-5090",
        sm=120,
        version=(9, 20, 0),
        options=_make_attention_fields(1, 8, 128, 128),
        tag="eng8_k24=3",
        offers=(("A", "eng8_k24=3"), ("A", "eng11_k24=3")),
        source=f"{_FRONTEND_ISSUES}620",
        known_by=_FROM_LOG,
    ),
    *(
        PublishedResult(
            result="GB300, decoding",
            gpu="GB300",
            target="b300",
            sm=103,
            version=(9, 20, 0),
            options=_make_attention_fields(1, 16, 1, 128, seq_kv=seq_kv, kv_heads=8, data_type=_BF16, stats=True),
            tag="eng10_k24=7",
            source=_TENSORRT_PLUGIN,
            known_by=_FROM_LOG,
        )
        for seq_kv in (512, 4096, 40960)
    ),
    PublishedResult(
        result="A100, head dim 256, forward",
        gpu="A100",
        target="a100-80gb",
        sm=80,
        version=(9, 26, 0),
        options=_make_attention_fields(2, 8, 512, 256),
        source=f"{_FRONTEND_ISSUES}863",
        known_by=_FROM_LOG,
    ),
    PublishedResult(
        result="A100, head dim 256, backward",
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
            result=f"{gpu}, ragged deterministic backward",
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
        result="B200, ragged backward, head dims 192 and 128",
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
            result=f"{gpu}, attention",
            gpu=gpu,
            target=target,
            sm=sm,
            version=(9, 24, 0),
            options=_make_attention_fields(1, 4, 256, 64),
            supported=False,
            source=_SUPPORT_MATRIX,
            known_by=_FROM_RULE,
        )
        for gpu, target, sm in (("V100", "v100", 70), ("T4", "t4", 75))
    ),
    *(
        PublishedResult(
            result=result,
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
        for result, options, backward in (
            (_CSV, _make_attention_fields(2, 128, 32768, 192, **_LATENT_ATTENTION, causal=True), False),
            (_CSV, _make_attention_fields(2, 128, 32768, 192, **_LATENT_ATTENTION, causal=True), True),
            (
                "GB200 and GB300, deterministic backward, head dims 192 and 128",
                _make_attention_fields(2, 128, 32768, 192, **_LATENT_ATTENTION, causal=True, deterministic=True),
                True,
            ),
            (_CSV_FP8, _make_attention_fields(2, 128, 32768, 192, **_LATENT_ATTENTION_FP8, causal=True), True),
            (_CSV_FP8, _make_attention_fields(2, 128, 32768, 192, **_LATENT_ATTENTION_FP8, causal=True, mx=True), True),
            (_CSV, _make_attention_fields(2, 64, 32768, 128, kv_heads=8, data_type=_BF16, causal=True), False),
            (_CSV, _make_attention_fields(2, 64, 32768, 128, kv_heads=8, data_type=_BF16, causal=True), True),
        )
    ),
    PublishedResult(
        result="L20, decoding",
        gpu="L20",
        target="l40s",
        sm=89,
        version=(9, 26, 0),
        options=_make_attention_fields(1, 4, 1, 64, seq_kv=256),
        tag="eng8_k24=1_k27=0_k38=0_k40=2_k41=1",
        source=f"{_FRONTEND_ISSUES}1148",
        known_by=_FROM_LOG,
    ),
    *(
        PublishedResult(
            result="GB300, decoding with maximum and sum",
            gpu="GB300",
            target="b300",
            sm=103,
            version=(9, 20, 0),
            options=_make_attention_fields(
                1, 16, 1, 128, seq_kv=seq_kv, kv_heads=8, data_type=_BF16, max=True, sum_exp=True
            ),
            tag="" if fails else "eng3_k24=7",
            build=True,
            fails=fails,
            source=_TENSORRT_PLUGIN,
            known_by=_FROM_LOG,
        )
        for seq_kv, fails in ((512, True), (1024, True), (1025, False), (40960, False))
    ),
    *(
        PublishedResult(
            result="B300, attention of Wan2.2",
            gpu="B300",
            target="b300",
            sm=103,
            version=(9, 20, 0),
            options=_make_attention_fields(1, 40, 32760, 128, seq_kv=seq_kv, data_type=_BF16),
            tag=tag,
            source="a public record of Wan2.2 with torch's attention on a B300",
            known_by=_FROM_LOG,
        )
        for seq_kv, tag in ((32760, "eng10_k24=36"), (512, "eng10_k24=7"))
    ),
    *(
        PublishedResult(
            result="B200, ragged forward, engine by declared length",
            gpu="B200",
            target="b200",
            sm=100,
            version=(9, 27, 0),
            options=_make_attention_fields(4, 32, length, 128, kv_heads=8, data_type=_BF16, ragged=True, causal=True),
            tag=engine,
            source=f"{_FRONTEND_ISSUES}1087",
            known_by=_FROM_LOG,
        )
        for length, engine in ((128, "eng8"), (129, "eng10"))
    ),
    PublishedResult(
        result="B200, paged decoding",
        gpu="B200",
        target="b200",
        sm=100,
        version=(9, 26, 0),
        options=_make_attention_fields(32, 8, 1, 64, seq_kv=1024, data_type=_BF16, padding=True, page_size=16),
        source=f"{_FRONTEND_ISSUES}1107",
        known_by=_FROM_REPORT,
    ),
    PublishedResult(
        result="A100, ragged backward, head dims 192 and 128",
        gpu="A100",
        target="a100-80gb",
        sm=80,
        version=(9, 22, 0),
        options=_make_attention_fields(2, 8, 512, 192, **_LATENT_ATTENTION, **_RAGGED_OPTIONS),
        backward=True,
        supported=False,
        source=f"{_TRANSFORMER_ENGINE}1821",
        known_by=_FROM_RULE,
    ),
    *(
        PublishedResult(
            result="B300 before 9.11, code of another architecture",
            gpu="B300",
            target="b300",
            sm=103,
            version=version,
            options=_make_attention_fields(1, 4, 512, 128, data_type=_BF16),
            backward=backward,
            build=True,
            fails=True,
            source="https://github.com/jax-ml/jax/issues/30242",
            known_by=_FROM_REPORT,
        )
        for version, backward in (((9, 9, 0), False), ((9, 10, 2), True))
    ),
    *(
        PublishedResult(
            result="RTX 5090, depthwise convolution compiled at run time",
            gpu="a GPU of sm_120",
            target="rtx-5090",
            sm=120,
            version=version,
            operations=partial(_add_convolution, batch=1, channels=64, size=56, taps=3, kind=_HALF, groups=64),
            build=True,
            kernels=kernels,
            source=f"{_FRONTEND_ISSUES}1066",
            known_by=_FROM_REPORT,
        )
        for version, kernels in (((9, 9, 0), 0), ((9, 10, 2), 1))
    ),
    PublishedResult(
        result="RTX 5090, grouped 8-bit convolution with 8 channels a group",
        gpu="RTX 5090",
        target="rtx-5090",
        sm=120,
        version=(9, 28, 0),
        operations=partial(_add_convolution, batch=2, channels=32, size=16, taps=3, kind=_FP8, groups=4),
        modes=("A",),
        supported=False,
        source="https://github.com/openxla/xla/pull/45534",
        known_by=_FROM_REPORT,
    ),
    PublishedResult(
        result="A100, convolution with bias and ReLU",
        gpu="A100",
        target="a100-40gb",
        sm=80,
        version=(9, 19, 0),
        operations=_add_convolution_bias_relu,
        offers=(("A", "eng0"),),
        source=_TENSORFLOW_LOG,
        known_by=_FROM_REPORT,
    ),
    PublishedResult(
        result="A100, weight gradient of a convolution",
        gpu="A100",
        target="a100-40gb",
        sm=80,
        version=(9, 19, 0),
        operations=_add_convolution_weight_gradient,
        modes=("B", "FALLBACK"),
        offers=(("B", "eng0"), ("FALLBACK", "eng0")),
        source=_TENSORFLOW_LOG,
        known_by=_FROM_REPORT,
    ),
    *(
        PublishedResult(
            result=f"RTX 3060, engine {engine} of a convolution",
            gpu="RTX 3060",
            target="rtx-3090",
            sm=86,
            version=(9, 17, 0),
            operations=partial(_add_convolution, batch=8, channels=16, size=32, taps=3, kind=_FLOAT),
            offers=(("A", f"eng{engine}"),),
            disagrees="cuDNN refuses this engine on a described GPU without a reason; others support the graph",
            source=_TENSORFLOW_LOG,
            known_by=_FROM_REPORT,
        )
        for engine in (3, 4)
    ),
    *(
        PublishedResult(
            result=result,
            gpu=gpu,
            sm=sm,
            version=version,
            unjudgeable=reason,
            source=source,
            known_by=_FROM_REPORT,
        )
        for result, gpu, sm, version, reason, source in (
            (
                *("Rubin, attention", "Rubin", 107, (9, 24, 0)),
                *("no properties of a Rubin GPU are published", "https://github.com/pytorch/pytorch/issues/192558"),
            ),
            (
                *("GTX 1050 Ti, convolution", "GTX 1050 Ti", 61, (9, 10, 2)),
                *("no properties of this GPU are recorded", _TENSORFLOW_LOG),
            ),
            *(
                (
                    *(f"{gpu}, ragged attention with 9.17", gpu, sm, (9, 17, 0)),
                    *("cudnn-frontend refuses it before it queries cuDNN, so that no result exists", _NODE_SOURCE),
                )
                for gpu, sm in (("A100", 80), ("L40S", 89))
            ),
        )
    ),
)


class VerifiedGraphRun(FrozenValue):
    """A graph that ran on a real GPU with results that agree with the interpreter.

    ``form`` is :func:`make_graph_key_without_sizes` of the graph, ``tag`` its engine config, ``source`` a record of
    this repository.
    """

    form: str
    gpu: str
    sm: int
    version: VersionTuple
    tag: str
    source: str


def describe_nearest_published_result(
    graph: Graph,
    sm: int,
    version: VersionTuple,
    first: Candidate | None,
    rows: Iterable[PublishedResult] = PUBLISHED_RESULTS,
) -> str:
    """Return a sentence on a real GPU's result for such a graph, of the nearest cuDNN version; empty if none exists.

    It is a result of the same graph apart from sizes: for attention the same direction, form, head dims and options,
    for other graphs the same :func:`make_graph_key_without_sizes`. Of several, that of the nearest version.
    """
    if (use := read_attention(graph)) is None:
        found = _find_result_of_nearest_version(
            _read_verified_graph_runs().get((sm, make_graph_key_without_sizes(graph)), ()), version
        )
        return "" if found is None else _describe_result(found, True, first, "it ran there with right results")
    key = _make_attention_key_without_sizes(use)
    alike = (
        row
        for row in rows
        if row.is_attention
        and (row.sm, row.backward) == (sm, use.backward)
        and row.options["head_dim"] == use.problem.head_dim
        and _make_published_result_key(row) == key
    )
    nearest = _find_result_of_nearest_version(alike, version)
    return "" if nearest is None else _describe_result(nearest, nearest.supported, first, "it ran there")


@cache
def _make_published_result_key(row: PublishedResult) -> tuple[Any, ...] | None:
    """Build the graph of a published result and return its attention key; None if it is not read as attention."""
    use = read_attention(row.graph())
    return None if use is None else _make_attention_key_without_sizes(use)


_Result = TypeVar("_Result", PublishedResult, VerifiedGraphRun)


def _find_result_of_nearest_version(rows: Iterable[_Result], version: VersionTuple) -> _Result | None:
    """Return the result with the cuDNN version nearest to `version`; None if there are no results."""

    def measure_version_distance(row: _Result) -> list[int]:
        return [abs(one - other) for one, other in zip(row.version, version, strict=True)]

    return min(rows, key=measure_version_distance, default=None)


def _describe_result(
    row: PublishedResult | VerifiedGraphRun, supported: bool, first: Candidate | None, ran: str
) -> str:
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


def _make_attention_key_without_sizes(use: AttentionUse) -> tuple[Any, ...]:
    """Return a key that is equal for two attention graphs which differ only in sizes and layouts.

    For 8-bit types cuDNN has only deterministic backward passes.
    """
    p = use.problem
    options = {name: getattr(p, name) for name in p.field_names if name not in _SIZES_AND_LAYOUTS}
    options |= {name: options[name] is not None for name in _OPTIONS_OF_ANY_SIZE}
    options |= {"dropout": p.dropout > 0, "deterministic": p.deterministic and not p.is_fp8}
    return (use.backward, use.form, p.seq_q == 1, p.kv_heads == p.heads, tuple(options.items()))


def make_graph_key_without_sizes(graph: Graph) -> str:
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
def _read_verified_graph_runs() -> Mapping[tuple[int, str], list[VerifiedGraphRun]]:
    """Return the runs of graphs by architecture and form; ``tools/records/operation_runs.py`` writes the file."""
    runs: dict[tuple[int, str], list[VerifiedGraphRun]] = {}
    for row in json.loads(OPERATION_RUNS_FILE.read_text(encoding="utf-8")):
        runs.setdefault((row["sm"], row["form"]), []).append(
            VerifiedGraphRun(**{**row, "version": tuple(row["version"])})
        )
    return runs
