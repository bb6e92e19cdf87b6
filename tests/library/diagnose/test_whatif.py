"""Remedies found by judging: the smallest change first, each verified, and no crash of cuDNN reaches the caller."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from cudnn_backend_py import DataType, Graph, GraphBuilder, PointwiseMode, UsageError
from cudnn_backend_py.diagnose import Judge, explain
from cudnn_backend_py.diagnose.remedies import whatif
from cudnn_backend_py.diagnose.remedy import Remedy
from cudnn_backend_py.errors import EnvironmentNotReady
from cudnn_backend_py.rewrite.changes import KINDS
from tests.cases import find_case
from tests.library.diagnose.test_rules import change_tensor, make_backward, make_convolution_relu, make_forward
from tests.support.child import measure_children_cpu_s
from tests.support.varied_graphs import VARIED_GRAPHS

CPU_LIMIT_S = 40.0  # limit of processor time for any machine, however busy; the time is printed


@pytest.fixture(scope="module")
def shared_judge() -> Iterator[Judge]:
    with Judge() as one:
        yield one


def find_and_check_remedies(shared_judge: Judge, graph: Graph, target: str, **options: object) -> list[Remedy]:
    """Return the remedies that whatif finds, after judging each; print the time taken."""
    start = measure_children_cpu_s()
    found = whatif(graph, target, judge=shared_judge, **options)  # type: ignore[arg-type]
    took_s = measure_children_cpu_s() - start
    print(f"{graph.name} on {target}: {took_s:.2f} s, {[remedy.title for remedy in found]}")
    assert took_s < CPU_LIMIT_S
    for remedy in found:
        assert remedy.verified
        assert remedy.verdict is not None
        assert remedy.verdict.supported
        assert remedy.graph is remedy.graphs[0]
        assert len(remedy.steps) == len(remedy.kinds)
        assert set(remedy.kinds) <= set(KINDS)
        assert remedy.title
    assert [remedy.size for remedy in found] == sorted(remedy.size for remedy in found)
    return found


EXPECTED_FIRST_REMEDIES: dict[str, tuple[Callable[[], Graph], str, str, str, str]] = {
    "head dim": (lambda: make_forward(head_dim=100, causal=True), "sm90", "pad_head_dim", "exact", "100 -> 104"),
    "float attention": (
        lambda: make_backward(data_type=DataType.FLOAT),
        "sm90",
        "data_type",
        "changes numerics",
        "float16",
    ),
    "images": (make_convolution_relu, "sm90", "layout", "exact", "NHWC"),
    "misaligned": (
        lambda: change_tensor(make_forward(), "q", alignment=1),
        "sm90",
        "alignment",
        "exact",
        "q 1 -> 2 bytes",
    ),
    "mixed types": (
        lambda: change_tensor(make_forward(), "p", data_type=DataType.FLOAT),
        "sm90",
        "intermediate_type",
        "",
        "p: float32",
    ),
}


@pytest.mark.parametrize("name", EXPECTED_FIRST_REMEDIES)
def test_whatif_lists_the_smallest_remedy_first(shared_judge: Judge, name: str) -> None:
    make, target, kind, effect, words = EXPECTED_FIRST_REMEDIES[name]
    graph = make()
    found = find_and_check_remedies(shared_judge, graph, target)
    remedy = next(remedy for remedy in found if remedy.kinds == (kind,))
    assert remedy.effect == effect or not effect
    assert words in remedy.title
    assert remedy.graph != graph
    if effect == "exact":
        assert found[0] is remedy
    assert explain(remedy.graph, target).supported


def test_other_architecture_is_the_remedy_of_two_fused_matmuls(shared_judge: Judge) -> None:
    graph = VARIED_GRAPHS["two matmul, reordered, s 10"]()
    found = find_and_check_remedies(shared_judge, graph, "sm89", version="9.19.0")
    assert {remedy.target for remedy in found if remedy.kinds == ("target",)} >= {"sm90"}
    assert all(remedy.version == "9.19.0" for remedy in found if remedy.kinds == ("target",))


def test_older_version_is_the_remedy_of_a_removed_pattern(shared_judge: Judge) -> None:
    graph = VARIED_GRAPHS["two matmul, reordered, s 10"]()
    found = find_and_check_remedies(shared_judge, graph, "sm90")
    versions = [remedy for remedy in found if remedy.kinds == ("version",)]
    assert versions
    assert versions[0].graph == graph
    assert versions[0].version == versions[0].verdict.cudnn  # type: ignore[union-attr]


def test_graph_is_split_if_no_engine_supports_the_whole(shared_judge: Judge) -> None:
    case = find_case("layer norm and product")
    remedy = next(
        remedy
        for remedy in find_and_check_remedies(shared_judge, case.graph(), case.target)
        if remedy.kinds == ("split",)
    )
    assert len(remedy.graphs) == 2
    assert all(explain(part, case.target).supported for part in remedy.graphs)


def test_supported_graph_needs_no_remedy(shared_judge: Judge) -> None:
    assert find_and_check_remedies(shared_judge, make_forward(), "sm90") == []


def test_a_variation_that_crashes_cudnn_is_left_out(shared_judge: Judge) -> None:
    """A dO with strides of 0, as torch's gradient of a sum, crashes the process that judges the graph."""
    graph = change_tensor(
        make_backward(batch=1, heads=16, seq_q=1, seq_kv=1 << 16, layout="bhsd"), "do", strides=(0, 0, 0, 0)
    )
    found = find_and_check_remedies(shared_judge, graph, "h100")
    assert found[0].kinds == ("layout",)
    assert found[0].tensors == ("do",)


def test_plans_of_a_remedy_can_be_built(shared_judge: Judge) -> None:
    found = find_and_check_remedies(shared_judge, make_forward(head_dim=100), "sm90", build=True, limit=1)
    assert [remedy.kinds for remedy in found] == [("pad_head_dim",)]
    assert found[0].verdict is not None
    assert any(candidate.state == "built" for candidate in found[0].verdict.candidates)


def test_a_remedy_of_two_changes_is_found_if_one_does_not_help(shared_judge: Judge) -> None:
    g = GraphBuilder("sigmoid", io_type=DataType.HALF)
    x = g.tensor("x", (1, 4, 32, 32), alignment=1)
    g.pointwise(PointwiseMode.SIGMOID_FWD, x, name="y", virtual=False)
    kinds = [remedy.kinds for remedy in find_and_check_remedies(shared_judge, g.graph(), "sm86")]
    assert ("alignment", "layout") in kinds or ("layout", "alignment") in kinds


def test_a_remedy_with_a_larger_change_than_needed_is_left_out(shared_judge: Judge) -> None:
    """Since head dim 256 -> 128 helps, a reduction to 96 in one or two steps is not listed."""
    graph = make_backward(head_dim=256)
    found = find_and_check_remedies(shared_judge, graph, "l40s")
    assert [remedy.graph.tensor("q").dims[3] for remedy in found if remedy.graph != graph] == [128]


def test_whatif_refuses_unknown_arguments() -> None:
    with pytest.raises(UsageError, match="unknown-target"):
        whatif(make_forward(), "sm1")
    with pytest.raises(EnvironmentNotReady, match="cudnn-version-not-installed"):
        whatif(make_forward(), "sm90", version="9.0.1")
