"""The table of known issues: each row matches its examples, and only in its cuDNN versions and architectures."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cudnn_backend_py import DataType, Graph, GraphBuilder, GraphError, PointwiseMode, UsageError, attention
from cudnn_backend_py.generated.enums import NormMode, ResampleMode
from cudnn_backend_py.graph import graph_from_json, graph_to_json
from cudnn_backend_py.graph.attention import AttentionUse, find_measured_issues, measured
from cudnn_backend_py.graph.attention.recognize import read_attention
from cudnn_backend_py.known_issues import (
    FAULTS,
    MEASURED,
    KnownIssue,
    Sharing,
    find_issues_explaining_failure,
    find_issues_of_attention_or_graph,
    find_known_issues,
    table,
)
from cudnn_backend_py.system.version import VersionRange, VersionTuple
from examples.attention_known_issues import REPRODUCTIONS, find_known_issue
from examples.attention_known_issues import make_reproduction_graph as graph_named
from tests.known_issues import BASE_OPTIONS as REPRODUCED
from tests.known_issues import EXAMPLES, Reproduction, make_example_graph
from tests.support.attention_cases import make_random_attention_problem

ROWS = {row.code: row for row in FAULTS if not row.refused}  # the others have measured reproductions
HALF, BF16, FP8 = DataType.HALF, DataType.BFLOAT16, DataType.FP8_E4M3
NEW = (9, 28, 0)
ROOT = Path(__file__).parents[3]

BASE: dict[str, Any] = {"batch": 2, "heads": 4, "seq_q": 128, "head_dim": 128}
RAGGED: dict[str, Any] = {"ragged": True}


def make_forward_graph(**options: Any) -> Graph:
    return attention.sdpa_forward(attention.Attention(**BASE | options), allow_hazards=True)


def make_backward_graph(**options: Any) -> Graph:
    return attention.sdpa_backward(attention.Attention(**BASE | options), allow_hazards=True)


def find_issue_codes(
    graph: Graph, sm: int, version: VersionTuple, sharing: Sharing | None = None, engine: int | None = None
) -> list[str]:
    return [issue.code for issue in find_known_issues(graph, sm, version, sharing, engine)]


@pytest.mark.parametrize("version", [(9, 19, 0), "9.19.0", "9.19.0.56", "9.19.0+cu12", 91900])
def test_a_version_is_accepted_in_each_notation(version: VersionTuple | str | int) -> None:
    graph = make_forward_graph(padding=True, page_size=16)
    assert [issue.code for issue in find_known_issues(graph, 89, version)] == ["paged-attention-on-ada"]


@pytest.mark.parametrize("version", ["9.19", "latest", 9.19, None, -5])
def test_a_malformed_version_is_refused(version: Any) -> None:
    with pytest.raises(UsageError, match="a version needs three numbers") as caught:
        find_known_issues(make_forward_graph(), 90, version)
    assert caught.value.code == "cudnn-version-malformed"


def test_a_gpu_name_instead_of_an_sm_number_is_refused() -> None:
    sm: Any = "h100"
    with pytest.raises(UsageError, match="sm must be a number, such as 90"):
        find_known_issues(make_forward_graph(), sm, NEW)


# The table


def test_every_row_has_effect_evidence_and_source() -> None:
    for row in FAULTS:
        assert all((row.code, row.what, row.effect, row.fix, row.source, EXAMPLES[row.code].reproductions)), row.code
        assert (row.attention is None) is not (row.graph is None), row.code
        if row.refused:
            assert row.source == MEASURED, row.code
            assert row.evidence, row.code
        else:
            assert row.source.startswith("https://") or (ROOT / row.source).is_file(), row.code
            assert row.source.startswith("https://") or row.is_measured, row.code
            assert EXAMPLES[row.code].unaffected is not None, row.code
    assert len({row.code for row in FAULTS}) == len(FAULTS)
    assert EXAMPLES.keys() == {row.code for row in FAULTS}


def test_the_text_of_an_issue_names_no_file_of_the_repository() -> None:
    assert not [row.code for row in FAULTS if "tests/" in str(row)]


def test_rows_are_hashable_and_distinct() -> None:
    assert len(set(FAULTS)) == len(FAULTS)


def test_version_ranges_of_known_issues_are_valid() -> None:
    for row in FAULTS:
        window = row.versions
        assert (9, 0, 0) <= window.since <= NEW, row.code
        assert window.until is None or window.since < window.until <= NEW, row.code
        assert all(window.since < version for version in window.except_), row.code
        assert window.until is None or all(version < window.until for version in window.except_), row.code


def test_every_condition_is_used_by_a_row() -> None:
    files = [path for path in Path(table.__file__).parent.glob("*.py") if path.name != "graph_queries.py"]
    files += (ROOT / "tests" / "known_issues").glob("*.py")
    text = "".join(path.read_text(encoding="utf-8") for path in (*files, Path(measured.__file__)))
    names = re.findall(r"^def (\w+)|^(_[A-Z]\w*)(?:: .*)? = ", text, re.MULTILINE)
    assert len(names) > 20
    assert [name for name in map("".join, names) if len(re.findall(rf"\b{name}\b", text)) < 2] == []


@pytest.mark.parametrize("code", ROWS)
def test_row_matches_only_its_graphs_versions_and_architectures(code: str) -> None:
    row = ROWS[code]
    other = make_example_graph(EXAMPLES[row.code].unaffected)
    engine = row.engines[0] if row.engines else None
    sm = row.sm[0] if row.sm else 90
    assert code not in find_issue_codes(other, sm, row.since, row.sharing, engine)
    for graph in map(make_example_graph, EXAMPLES[row.code].reproductions.values()):
        assert code in find_issue_codes(graph, sm, row.since, row.sharing, engine)
        if row.until is not None:
            assert code not in find_issue_codes(graph, sm, row.until, row.sharing, engine)
        else:
            assert code in find_issue_codes(graph, sm, (9, 99, 0), row.sharing, engine)
        if row.since > (9, 0, 0):
            assert code not in find_issue_codes(graph, sm, (row.since[0], row.since[1] - 1, 99), row.sharing, engine)
        for version in row.versions.except_:
            assert code not in find_issue_codes(graph, sm, version, row.sharing, engine)
        if row.sm:
            outside = next(sm for sm in (75, 80, 120) if sm not in row.sm)
            assert code not in find_issue_codes(graph, outside, row.since, row.sharing, engine)
        else:
            assert code in find_issue_codes(graph, 75, row.since, row.sharing, engine)


@pytest.mark.parametrize("row", FAULTS, ids=[row.code for row in FAULTS])
def test_row_matches_both_the_attention_problem_and_its_graph(row: KnownIssue) -> None:
    """The attention builder evaluates conditions on the problem; ``explain`` evaluates them on the graph."""
    for made in EXAMPLES[row.code].reproductions.values():
        graph = make_example_graph(made)
        engine = row.engines[0] if row.engines else None
        found = find_issues_of_attention_or_graph(read_attention(graph), graph, sharing=row.sharing, engine=engine)
        from_graph = {issue.code for issue in found}
        assert row.code in from_graph
        if isinstance(made, Reproduction):
            use = read_attention(graph)
            assert use is not None
            given = AttentionUse(attention.Attention(**{**REPRODUCED, **made.options}), made.backward, use.form)
            assert row.code in {issue.code for issue in find_issues_of_attention_or_graph(given, sharing=row.sharing)}
        else:
            assert row.graph is not None


def test_text_of_a_known_issue_is_complete() -> None:
    row = ROWS["mxfp8-infinities"]
    assert row.version_range_text == "cuDNN 9.23.0 to before 9.23.2"
    assert str(row) == (
        "attention with block-scaled 8-bit floats (mxfp8-infinities, cuDNN 9.23.0 to before 9.23.2): "
        "Inf and NaN in the results; use 9.23.2 or later; https://github.com/NVIDIA/TransformerEngine/pull/3173"
    )
    later = KnownIssue("a", what="b", effect="c", fix="d", source="e", versions=VersionRange((9, 1, 0)))
    assert later.version_range_text == "cuDNN 9.1.0 and later"


# Issues measured for this package


@pytest.mark.parametrize("name", REPRODUCTIONS)
def test_a_measured_known_issue_is_found_in_its_reproduction_graph(name: str) -> None:
    """The graph is read from JSON, so that only the graph itself can be examined."""
    row = find_known_issue(name)
    graph = graph_from_json(graph_to_json(graph_named(name)))
    found = [issue for issue in find_known_issues(graph, row.sm[0], row.since) if issue.source == MEASURED]
    assert [issue.code for issue in found] == [row.code]
    if row.until is not None:
        assert row.code not in find_issue_codes(graph, row.sm[0], row.until)
    assert row.code not in find_issue_codes(graph, 75, row.since)


def test_an_unaffected_graph_has_no_known_issue() -> None:
    assert find_issue_codes(make_forward_graph(causal=True, stats=True), 90, NEW) == []
    assert find_issue_codes(make_backward_graph(causal=True), 90, NEW) == []


def test_a_graph_of_two_matmuls_is_not_read_as_attention() -> None:
    g = GraphBuilder("two", io_type=HALF)
    a, b, c = (g.tensor(name, (1, 1, 64, 64)) for name in "abc")
    g.matmul(g.matmul(a, b, data_type=HALF), c, name="o", virtual=False)
    assert read_attention(g.graph()) is None
    assert find_known_issues(g.graph(), 90, NEW) == []


# Reading attention back from graphs

SIZES = ("batch", "heads", "seq_q", "head_dim", "head_dim_v", "kv_heads", "v_heads")
OPTIONS = ("data_type", "output_type", "mx", "right_bound", "padding", "ragged", "page_size", "alibi", "bias")
FORMS = [("composite", None), ("composite", NEW), ("unified", NEW)]


def assert_same_attention_problem(given: attention.Attention, use: AttentionUse) -> None:
    """Assert that the attention problem read from a graph equals the given one in all options that a graph shows."""
    read = use.problem
    names = [*SIZES, *OPTIONS, "dropout_mask", "dsink"]
    names += [] if use.backward else ["stats", "max", "sum_exp", "sink"]
    names += ["ragged_stats"] if use.backward or given.stats else []
    names += ["seq_kv"] if given.page_size is None else []  # else it is that of the page table, rounded up
    names += ["alignment"] if given.right_bound is not None else []
    assert {name: getattr(read, name) for name in names} == {name: getattr(given, name) for name in names}
    assert read.dropout == pytest.approx(given.dropout, abs=1e-6)
    tensors = ("q", "k", "v", "o", "do", "dq", "dk", "dv", "stats") if use.backward else ("q", "k", "v", "o")
    assert {name: read.strides(name) for name in tensors} == {name: given.strides(name) for name in tensors}


@pytest.mark.parametrize(("implementation", "version"), FORMS)
@pytest.mark.parametrize("is_backward", [False, True], ids=["forward", "backward"])
def test_random_attention_problems_are_read_back_from_their_graphs(
    is_backward: bool, implementation: Any, version: Any
) -> None:
    made = attention.sdpa_backward if is_backward else attention.sdpa_forward
    number_read = 0
    for number in range(60):
        given = make_random_attention_problem(
            np.random.default_rng([number, is_backward]), backward=is_backward, tiny=number % 3 == 0
        )
        try:
            graph = made(given, implementation=implementation, version=version, allow_hazards=True)
        except GraphError:
            continue  # this form does not have every option
        use = read_attention(graph)
        assert use is not None
        assert use.backward is is_backward
        assert (use.form == "unified") is (implementation == "unified")
        assert_same_attention_problem(given, use)
        number_read += 1
        if not (given.max_total_seq_q or (given.alibi and given.left_bound is not None)):  # a graph may not show these
            given_use = AttentionUse(given, is_backward, use.form)
            assert list(find_measured_issues(use)) == list(find_measured_issues(given_use))
    assert number_read >= 20


# Naming of failures


def make_broadcast_add_and_relu_graph(*, spills: bool = False) -> Graph:
    """Return a graph that adds a row to a batch of matrices, and applies ReLU to the sum or to the batch."""
    g = GraphBuilder("sums")
    x = g.tensor("x", (4, 6, 8))
    z = g.pointwise(PointwiseMode.ADD, x, g.tensor("row", (1, 1, 8)), name="z", virtual=False)
    g.pointwise(PointwiseMode.RELU_FWD, x if spills else z, name="y", virtual=False)
    return g.graph()


def find_issue_codes_explaining_failure(graph: Graph, *wrong: str, engine: int | None = 1) -> list[str]:
    return [
        issue.code for issue in find_issues_explaining_failure(graph, wrong, engine=engine, version=(9, 19, 0), sm=90)
    ]


def test_failure_is_explained_by_an_issue_upstream_of_the_wrong_tensor() -> None:
    code = "elementwise-broadcast-of-matrices"
    assert (
        find_issue_codes_explaining_failure(make_broadcast_add_and_relu_graph(), "z")
        == find_issue_codes_explaining_failure(make_broadcast_add_and_relu_graph(), "y")
        == find_issue_codes_explaining_failure(make_broadcast_add_and_relu_graph(), "z", "y")
        == [code]
    )
    assert find_issue_codes_explaining_failure(make_broadcast_add_and_relu_graph(spills=True), "z") == [code]
    assert (
        find_issue_codes_explaining_failure(make_broadcast_add_and_relu_graph(spills=True), "y")
        == find_issue_codes_explaining_failure(make_broadcast_add_and_relu_graph(spills=True), "z", "y")
        == []
    )  # y reads no row
    assert find_issue_codes_explaining_failure(make_broadcast_add_and_relu_graph(spills=True)) == [
        code
    ]  # the wrong tensor is not known


def test_failure_is_explained_only_by_an_issue_of_its_engine() -> None:
    assert find_issue_codes_explaining_failure(make_broadcast_add_and_relu_graph(), "z", engine=7) == []
    assert find_issue_codes_explaining_failure(make_broadcast_add_and_relu_graph(), "z", engine=None) == [
        "elementwise-broadcast-of-matrices"
    ]


def test_engine_specific_issue_is_found_only_for_its_engines() -> None:
    graph = make_example_graph(EXAMPLES["matmul-gelu-by-tanh"].reproductions[""])
    assert find_issue_codes(graph, 90, (9, 19, 0)) == find_issue_codes(graph, 90, (9, 19, 0), engine=7) == []
    assert find_issue_codes(graph, 90, (9, 19, 0), engine=0) == ["matmul-gelu-by-tanh"]


@pytest.mark.parametrize(
    ("form", "x", "w", "kind", "wrong"),
    [
        ("filter", (3, 8, 9, 7), (32, 8, 3, 3), DataType.HALF, True),  # as measured on engine 4
        ("filter", (3, 8, 9, 7), (32, 8, 3, 3), DataType.FLOAT, False),
        ("filter", (2, 32, 7, 7), (8, 32, 3, 3), DataType.HALF, True),
        ("filter", (2, 32, 7, 7), (32, 32, 3, 3), DataType.HALF, False),
        ("filter", (1, 64, 7, 5), (32, 64, 1, 1), DataType.HALF, True),
        ("filter", (1, 16, 7, 5), (64, 16, 1, 1), DataType.HALF, False),  # the image's size does not matter
        ("data", (2, 64, 7, 6), (8, 64, 3, 3), DataType.HALF, True),
        ("data", (2, 64, 7, 6), (16, 64, 3, 3), DataType.HALF, False),
        ("data", (2, 16, 7, 5), (8, 16, 1, 1), DataType.HALF, False),  # a filter of one tap is symmetric
        ("forward", (1, 32, 7, 5), (64, 32, 3, 3), DataType.HALF, True),
        ("forward", (2, 32, 7, 5), (64, 32, 3, 3), DataType.HALF, False),
        ("forward", (2, 8, 7, 5), (64, 8, 3, 3), DataType.FLOAT, True),
        ("forward", (2, 8, 7, 6), (64, 8, 3, 3), DataType.FLOAT, False),
    ],
)
def test_issue_of_convolutions_of_packed_images_depends_on_alignment(
    form: str, x: tuple[int, ...], w: tuple[int, ...], kind: DataType, wrong: bool
) -> None:
    g = GraphBuilder("packed", io_type=kind)
    padding, y = w[2] // 2, (x[0], w[0], *x[2:])
    tensors = {name: g.tensor(name, dims, strides="packed") for name, dims in (("x", x), ("w", w), ("dy", y))}
    options: dict[str, Any] = {"padding": padding, "virtual": False, "strides": "packed"}
    if form == "forward":
        g.convolution(tensors["x"], tensors["w"], **options)
    elif form == "data":
        g.convolution_backward_data(tensors["dy"], tensors["w"], dims=x, **options)
    else:
        g.convolution_backward_filter(tensors["x"], tensors["dy"], w[2:], **options)
    found = {issue.code for issue in find_known_issues(g.graph(), 90, (9, 28, 0), engine=4)}
    assert ("packed-images-unaligned" in found) is wrong


@pytest.mark.parametrize("backward", [False, True], ids=["forward", "gradient"])
@pytest.mark.parametrize(
    ("sizes", "window", "before", "after", "wrong"),
    [
        ((9, 4), (3, 3), (1, 1), (2, 2), True),  # the last window starts at 3, and ends at 5 and not at 6
        ((8, 13), (2, 3), (0, 0), (1, 0), False),  # no window reaches the padding at the end
        ((6, 6), (2, 3), (0, 1), (1, 1), False),
        ((12, 11), (3, 2), (2, 1), (2, 1), False),
    ],
)
def test_average_pool_issue_needs_a_window_in_the_trailing_padding(
    sizes: tuple[int, ...],
    window: tuple[int, ...],
    before: tuple[int, ...],
    after: tuple[int, ...],
    wrong: bool,
    backward: bool,
) -> None:
    """The cases without the issue gave correct results on an H200."""
    g, dims = GraphBuilder("pool"), (2, 8, *sizes)
    sides: dict[str, Any] = {"stride": 2, "padding": before, "post_padding": after, "virtual": False}
    x, mode = g.tensor("x", dims, strides="packed"), ResampleMode.AVGPOOL_INCLUDE_PADDING
    if backward:
        fewer = tuple(
            (size + sum(pad) - w) // 2 + 1 for size, w, *pad in zip(sizes, window, before, after, strict=True)
        )
        y, dy = (g.tensor(name, (2, 8, *fewer), strides="packed") for name in ("y", "dy"))
        g.resample_backward(mode, dy, window, x=x, y=y, dims=dims, **sides)
    else:
        g.resample(mode, x, window, **sides)
    found = {issue.code for issue in find_known_issues(g.graph(), 90, (9, 19, 0), engine=1)}
    assert ("average-pool-padded-behind" in found) is wrong


@pytest.mark.parametrize(
    ("operand", "kind", "of_kind", "first", "wrong"),
    [
        ((4, 8, 5, 5), HALF, HALF, False, False),
        ((4, 8, 5, 5), HALF, DataType.FLOAT, False, False),
        ((4, 8, 5, 5), DataType.FLOAT, HALF, False, True),  # read as float32
        ((4, 8, 5, 5), HALF, HALF, True, True),  # refused when it runs
        ((1, 8, 1, 1), HALF, HALF, False, True),
        ((1, 8, 1, 1), HALF, HALF, True, True),
        ((4, 1, 5, 5), BF16, BF16, False, True),
    ],
)
def test_batch_norm_operand_issue_depends_on_dims_type_and_position(
    operand: tuple[int, ...], kind: DataType, of_kind: DataType, first: bool, wrong: bool
) -> None:
    """The expected outcomes were measured on an H200."""
    g = GraphBuilder("norm", io_type=kind)
    x = g.tensor("x", (4, 8, 5, 5), strides="channels_last")
    scale, bias = (g.tensor(name, (1, 8, 1, 1), DataType.FLOAT) for name in ("scale", "bias"))
    y = g.norm_forward(NormMode.BATCH_NORM, x, scale, bias, training=True).y
    other = g.tensor("other", operand, of_kind, strides="channels_last")
    y = g.pointwise(PointwiseMode.ADD, *((other, y) if first else (y, other)))
    g.pointwise(PointwiseMode.RELU_FWD, y, virtual=False)
    assert ("batch-norm-operand" in find_issue_codes(g.graph(), 90, NEW, engine=0)) is wrong


@pytest.mark.parametrize("operand", [(1, 8, 1, 1), (16, 8, 3, 3), (16, 1, 1, 1)], ids=str)
def test_convolution_operand_issue_is_found_through_a_select_mask(operand: tuple[int, ...]) -> None:
    """The mask compares two other tensors and selects between the filter gradient and a scalar."""
    g = GraphBuilder("selected", io_type=BF16)
    x, dy = g.tensor("x", (3, 8, 12, 4)), g.tensor("dy", (3, 16, 10, 2))
    dw = g.convolution_backward_filter(x, dy, (3, 3))
    mask = g.pointwise(PointwiseMode.CMP_GT, g.tensor("leaf", dw.dims), g.tensor("operand", operand))
    g.pointwise(PointwiseMode.BINARY_SELECT, dw, g.scalar(0.125, rank=4), t=mask, virtual=False)
    found = find_issue_codes(g.graph(), 90, (9, 19, 0), engine=4)
    assert ("convolution-operand-part-of-rows" in found) is (operand == (1, 8, 1, 1))


@pytest.mark.parametrize("copy", [PointwiseMode.IDENTITY, PointwiseMode.ABS])
@pytest.mark.parametrize("by", [PointwiseMode.MUL, PointwiseMode.ADD, PointwiseMode.MAX, PointwiseMode.SUB])
def test_combining_a_matmul_with_its_copy_by_any_mode_has_an_issue(by: PointwiseMode, copy: PointwiseMode) -> None:
    g = GraphBuilder("copied", io_type=BF16)
    z = g.matmul(g.tensor("a", (4, 64, 16)), g.tensor("b", (4, 16, 32)))
    g.pointwise(by, g.pointwise(copy, z), z, virtual=False)
    wrong = "matmul-beside-its-copy" in find_issue_codes(g.graph(), 90, (9, 19, 0), engine=7)
    assert wrong is (copy is PointwiseMode.IDENTITY)
    assert "matmul-beside-its-copy" not in find_issue_codes(g.graph(), 90, NEW, engine=7)
