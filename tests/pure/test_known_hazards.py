"""Known hazards: every row has a graph it is about and one it is not, and is looked for in its versions only."""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cudnn_backend_py import DataType, DescriptorType, Graph, GraphBuilder, GraphError, Parameters, attention
from cudnn_backend_py.generated.enums import ConvolutionMode, MoeGroupedMatmulMode
from cudnn_backend_py.graph import faults as known
from cudnn_backend_py.graph import graph_from_json, graph_to_json
from cudnn_backend_py.graph.attention import HAZARDS, Use, find_hazards
from cudnn_backend_py.graph.attention.recognize import read_attention
from cudnn_backend_py.graph.faults import CONDITIONS, MEASURED, KnownHazard, known_hazards, reported_hazards
from examples.attention_hazards import REPRODUCTIONS, graph_of, hazard_of
from tests.support.attention_cases import draw

ROWS = {row.code: row for row in reported_hazards()}
HALF, BF16, FP8 = DataType.HALF, DataType.BFLOAT16, DataType.FP8_E4M3
NEW = (9, 28, 0)

BASE: dict[str, Any] = {"batch": 2, "heads": 4, "seq_q": 128, "head_dim": 128}
RAGGED: dict[str, Any] = {"ragged": True}


def forward(**options: Any) -> Graph:
    return attention.sdpa_forward(attention.Attention(**BASE | options), allow_hazards=True)


def backward(**options: Any) -> Graph:
    return attention.sdpa_backward(attention.Attention(**BASE | options), allow_hazards=True)


def convolution(
    data_type: DataType, image: tuple[int, ...], weights: tuple[int, ...], result: tuple[int, ...]
) -> Graph:
    g = GraphBuilder("convolution", io_type=data_type)
    spatial = len(image) - 2
    parameters = Parameters(
        DescriptorType.CONVOLUTION,
        {
            "comp_type": DataType.FLOAT,
            "conv_mode": ConvolutionMode.CROSS_CORRELATION,
            "spatial_dims": spatial,
            "dilations": (1,) * spatial,
            "filter_strides": (1,) * spatial,
            "pre_paddings": (0,) * spatial,
            "post_paddings": (0,) * spatial,
        },
    )
    g.operation(
        DescriptorType.OPERATION_CONVOLUTION_FORWARD,
        x=g.tensor("x", image),
        w=g.tensor("w", weights),
        y=g.tensor("y", result),
        convolution=parameters,
        alpha=1.0,
        beta=0.0,
    )
    return g.graph()


def experts(data_type: DataType) -> Graph:
    g = GraphBuilder("experts", io_type=data_type)
    g.operation(
        DescriptorType.OPERATION_MOE_GROUPED_MATMUL,
        mode=MoeGroupedMatmulMode.NONE,
        math_prec=DataType.FLOAT,
        token=g.tensor("token", (1, 64, 32)),
        weight=g.tensor("weight", (4, 32, 16)),
        first_token_offset=g.tensor("offsets", (4, 1, 1), DataType.INT32),
        output=g.tensor("output", (1, 64, 16), HALF),
    )
    return g.graph()


Made = Callable[[], Graph]

# For each row a graph it is about and one it is not about, as little apart as possible.
PAIRS: dict[str, tuple[Made, Made]] = {
    "attention-of-9-10": (forward, lambda: forward(data_type=FP8)),
    "fp8-attention-of-9-10": (lambda: forward(data_type=FP8), forward),
    "window-of-9-14": (
        lambda: forward(seq_kv=2048, left_bound=64),
        lambda: forward(seq_kv=2048, left_bound=64, causal=True),
    ),
    "backward-in-cuda-graphs": (lambda: backward(seq_kv=200), lambda: backward(seq_kv=200, padding=True)),
    "backward-large-head-dims": (
        lambda: backward(head_dim=256, head_dim_v=192),
        lambda: backward(head_dim=192, head_dim_v=128),
    ),
    "dropout-heuristics": (lambda: forward(dropout=0.25), lambda: forward(dropout_mask=True)),
    "mxfp8-infinities": (lambda: forward(data_type=FP8, mx=True, output_type=BF16), lambda: forward(data_type=FP8)),
    "fp8-split-keys": (
        lambda: forward(data_type=FP8, output_type=BF16, seq_kv=4096),
        lambda: forward(data_type=FP8, output_type=HALF, seq_kv=4096),
    ),
    "decoding-on-blackwell": (lambda: forward(seq_q=1, seq_kv=512), lambda: forward(seq_q=2, seq_kv=512)),
    "decoding-ragged-stats": (
        lambda: forward(seq_q=1, seq_kv=300, kv_heads=2, stats=True, ragged_stats=True, **RAGGED),
        lambda: forward(seq_q=1, seq_kv=300, kv_heads=2, stats=True, **RAGGED),
    ),
    "decoding-causal-groups": (
        lambda: forward(seq_q=1, seq_kv=512, kv_heads=2, causal=True),
        lambda: forward(seq_q=1, seq_kv=512, kv_heads=2),
    ),
    "backward-key-tail": (lambda: backward(seq_kv=192), lambda: backward(seq_kv=192, causal=True)),
    "backward-one-query": (lambda: backward(seq_q=1), lambda: backward(seq_q=1, padding=True)),
    "sink-of-ragged-sequences": (
        lambda: backward(sink=True, dsink=True, **RAGGED),
        lambda: backward(sink=True, dsink=True, padding=True),
    ),
    "ragged-backward-gaps": (lambda: backward(**RAGGED), lambda: forward(**RAGGED)),
    "ragged-attention-of-9-1": (lambda: forward(**RAGGED), lambda: forward(padding=True)),
    "stats-of-large-scores": (lambda: forward(stats=True), forward),
    "paged-attention-on-ada": (lambda: forward(padding=True, page_size=16), lambda: forward(padding=True)),
    "long-keys-hang": (
        lambda: forward(seq_q=8192, seq_kv=131072, causal=True, alignment="bottom_right"),
        lambda: forward(seq_q=8192, seq_kv=131072, causal=True),
    ),
    "backward-stats-layout": (
        lambda: backward(layout={"stats": (512, 1, 4, 1)}),
        lambda: backward(layout={"q": "bhsd"}),
    ),
    "convolution-3d-bfloat16": (
        lambda: convolution(BF16, (1, 8, 4, 4, 4), (8, 8, 1, 1, 1), (1, 8, 4, 4, 4)),
        lambda: convolution(HALF, (1, 8, 4, 4, 4), (8, 8, 1, 1, 1), (1, 8, 4, 4, 4)),
    ),
    "convolution-depthwise-large": (
        lambda: convolution(HALF, (64, 64, 1024, 1024), (64, 1, 1, 1), (64, 64, 1024, 1024)),
        lambda: convolution(HALF, (8, 64, 1024, 1024), (64, 1, 1, 1), (8, 64, 1024, 1024)),
    ),
    "moe-matmul-fp8": (lambda: experts(FP8), lambda: experts(HALF)),
}


def codes(graph: Graph, sm: int, version: known.Version) -> list[str]:
    return [hazard.code for hazard in known_hazards(graph, sm, version)]


# The table


def test_every_row_says_what_is_known_and_who_says_so() -> None:
    rows = tomllib.loads((Path(known.__file__).parent / "known_hazards.toml").read_text())["hazard"]
    needed = {"code", "what", "effect", "fix", "source", "since", "condition"}
    for row in rows:
        assert needed <= set(row) <= needed | {"until", "except", "sm"}, row["code"]
        assert all(row[name] for name in row), row["code"]
        assert row["source"].startswith("https://"), row["code"]
        assert row["condition"] in CONDITIONS, row["code"]
    assert len({row["code"] for row in rows}) == len(rows)
    assert not {row["code"] for row in rows} & {hazard.code for hazard in HAZARDS}


def test_windows_are_windows() -> None:
    for row in ROWS.values():
        assert (9, 0, 0) <= row.since <= NEW, row.code
        assert row.until is None or row.since < row.until <= NEW, row.code
        assert all(row.since < version and (row.until is None or version < row.until) for version in row.excepted)


def test_every_condition_is_of_some_row() -> None:
    assert {row.condition for row in ROWS.values()} == set(CONDITIONS)


def test_every_row_has_its_graphs() -> None:
    assert set(PAIRS) == set(ROWS)


@pytest.mark.parametrize("code", ROWS)
def test_row_is_found_in_its_graph_its_versions_and_on_its_architectures_only(code: str) -> None:
    row = ROWS[code]
    graph, other = (make() for make in PAIRS[code])
    sm = row.sm[0] if row.sm else 90
    assert code in codes(graph, sm, row.since)
    assert code not in codes(other, sm, row.since)
    if row.until is not None:
        assert code not in codes(graph, sm, row.until)
    else:
        assert code in codes(graph, sm, (9, 99, 0))
    if row.since > (9, 0, 0):
        assert code not in codes(graph, sm, (row.since[0], row.since[1] - 1, 99))
    for version in row.excepted:
        assert code not in codes(graph, sm, version)
    if row.sm:
        assert code not in codes(graph, 75, row.since)
    else:
        assert code in codes(graph, 75, row.since)


def test_words_of_a_hazard() -> None:
    row = ROWS["mxfp8-infinities"]
    assert row.window == "cuDNN 9.23.0 to before 9.23.2"
    assert str(row) == (
        "attention with block-scaled 8-bit floats: Inf and NaN in the results (mxfp8-infinities, cuDNN 9.23.0 to "
        "before 9.23.2); use 9.23.2 or later; https://github.com/NVIDIA/TransformerEngine/pull/3173"
    )
    assert KnownHazard("a", "b", "c", "d", "e", (9, 1, 0)).window == "cuDNN 9.1.0 and later"


# What was measured for this package


@pytest.mark.parametrize("name", REPRODUCTIONS)
def test_measured_hazard_is_recognised_in_its_graph(name: str) -> None:
    """From the graph's JSON, so that nothing but the graph itself can tell."""
    row = hazard_of(name)
    graph = graph_from_json(graph_to_json(graph_of(name)))
    found = [hazard for hazard in known_hazards(graph, row.sm[0], row.since) if hazard.source == MEASURED]
    assert [hazard.code for hazard in found] == [row.code]
    if row.until is not None:
        assert row.code not in codes(graph, row.sm[0], row.until)
    assert row.code not in codes(graph, 75, row.since)


def test_a_sound_graph_has_no_hazard() -> None:
    assert codes(forward(causal=True, stats=True), 90, NEW) == []
    assert codes(backward(causal=True), 90, NEW) == []


def test_a_graph_that_is_no_attention_is_not_read() -> None:
    g = GraphBuilder("two", io_type=HALF)
    a, b, c = (g.tensor(name, (1, 1, 64, 64)) for name in "abc")
    g.matmul(g.matmul(a, b, data_type=HALF), c, name="o", virtual=False)
    assert read_attention(g.graph()) is None
    assert known_hazards(g.graph(), 90, NEW) == []


# Reading attention back from graphs

SIZES = ("batch", "heads", "seq_q", "head_dim", "head_dim_v", "kv_heads", "v_heads")
OPTIONS = ("data_type", "output_type", "mx", "right_bound", "padding", "ragged", "page_size", "alibi", "bias")
FORMS = [("composite", None), ("composite", NEW), ("unified", NEW)]


def same(given: attention.Attention, use: Use) -> None:
    """Assert that what was read is what was given, as far as a graph shows it."""
    read = use.problem
    names = [*SIZES, *OPTIONS, "dropout_mask", "dsink"]
    names += [] if use.backward else ["stats", "max", "sum_exp", "sink"]
    names += ["ragged_stats"] if use.backward or given.stats else []
    names += ["seq_kv"] if given.page_size is None else []  # else the page table tells it, rounded up
    names += ["alignment"] if given.right_bound is not None else []
    assert {name: getattr(read, name) for name in names} == {name: getattr(given, name) for name in names}
    assert read.dropout == pytest.approx(given.dropout, abs=1e-6)
    tensors = ("q", "k", "v", "o", "do", "dq", "dk", "dv", "stats") if use.backward else ("q", "k", "v", "o")
    assert {name: read.strides(name) for name in tensors} == {name: given.strides(name) for name in tensors}


@pytest.mark.parametrize(("implementation", "version"), FORMS)
@pytest.mark.parametrize("is_backward", [False, True], ids=["forward", "backward"])
def test_random_attention_is_read_back(is_backward: bool, implementation: Any, version: Any) -> None:
    made = attention.sdpa_backward if is_backward else attention.sdpa_forward
    number_read = 0
    for number in range(60):
        given = draw(np.random.default_rng([number, is_backward]), backward=is_backward, tiny=number % 3 == 0)
        try:
            graph = made(given, implementation=implementation, version=version, allow_hazards=True)
        except GraphError:
            continue  # this form has not every option
        use = read_attention(graph)
        assert use is not None
        assert use.backward is is_backward
        assert (use.form == "unified") is (implementation == "unified")
        same(given, use)
        number_read += 1
        if not (given.max_total_seq_q or (given.alibi and given.left_bound is not None)):  # a graph may not show these
            given_use = Use(given, is_backward, use.form)
            assert list(find_hazards(use)) == list(find_hazards(given_use))
    assert number_read >= 20
