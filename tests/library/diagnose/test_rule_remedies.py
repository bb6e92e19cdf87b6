"""A remedy of a rule is judged before it is reported; a remedy that cannot be judged is only a suggestion."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from cudnn_backend_py import DataType, Graph, GraphBuilder, PointwiseMode, find_profile
from cudnn_backend_py.diagnose import Basis, Judge, Outcome, Query, other_versions, render_text
from cudnn_backend_py.diagnose.other_versions import add_version_remedy
from cudnn_backend_py.diagnose.surveys.attention import attention_rows
from cudnn_backend_py.generated.enums import ReduceTensorOp
from cudnn_backend_py.graph.attention import sdpa_forward
from cudnn_backend_py.graph.ir import Tensor
from cudnn_backend_py.graph.replace import replace_tensors
from cudnn_backend_py.native import library
from cudnn_backend_py.versions.store import list_installed
from tests.support.child import OLDER_VERSION
from tests.support.full_cudnn_graphs import GRAPHS_OF_FULL_CUDNN
from tests.support.varied_graphs import VARIED_GRAPHS

REMEDY_NAME = re.compile(r"\b9\.\d+|\bsm_\d+|: \S+ -> ")  # a version, a target, a change
GRAPHS = {**GRAPHS_OF_FULL_CUDNN, **VARIED_GRAPHS}


@pytest.fixture(scope="module")
def shared_judge() -> Iterator[Judge]:
    with Judge() as one:
        yield one


def make_graph_with_short_ragged_offsets() -> Graph:
    """Return attention on packed sequences with one ragged offset too few."""
    graph = sdpa_forward(batch=2, heads=4, seq_q=256, head_dim=64, ragged=True)
    offsets = [tensor.ragged_offset for tensor in graph.tensors if tensor.ragged_offset is not None]
    return replace_tensors(graph, {one.uid: replace(one, dims=(2, 1, 1, 1)) for one in offsets})


@pytest.mark.parametrize("build", [False, True])
def test_the_change_that_a_rule_proposes_is_judged(shared_judge: Judge, build: bool) -> None:
    verdict = shared_judge.run_query(Query(make_graph_with_short_ragged_offsets(), "sm90", build=build))
    assert verdict.cause is not None
    assert verdict.cause.remedy == "one offset more than there are sequences"
    assert verdict.cause.asked == ("built" if build else "support check")
    whole = sdpa_forward(batch=2, heads=4, seq_q=256, head_dim=64, ragged=True)
    assert shared_judge.run_query(Query(whole, "sm90", build=build)).supported


def test_a_change_that_does_not_help_is_not_reported(shared_judge: Judge) -> None:
    verdict = shared_judge.run_query(Query(make_graph_with_short_ragged_offsets(), "sm75"))
    assert verdict.cause is not None
    assert "3 entries are needed" in verdict.cause.headline
    assert (verdict.cause.remedy, verdict.cause.asked) == ("", "")


def test_leading_dims_that_do_not_help_alone_are_suggested_with_the_rest(shared_judge: Judge) -> None:
    g = GraphBuilder("rows", io_type=DataType.HALF, intermediate_type=DataType.FLOAT)
    rows = g.reduction(ReduceTensorOp.MIN, g.pointwise(PointwiseMode.GELU_FWD, g.tensor("x", (64, 64))), (64, 1))
    g.pointwise(PointwiseMode.MUL, rows, g.tensor("residual", (64, 1)), name="y", virtual=False)
    cause = shared_judge.run_query(Query(g.graph(), "sm75")).cause
    assert cause is not None
    assert cause.headline.startswith("tensors have 2 dims, 3 are needed; and also other operations read the result of")
    assert cause.remedy.startswith("a leading dim of 1: x [64, 64] -> [1, 64, 64]")
    assert "; and two graphs, " in cause.remedy
    assert cause.asked == "support check"


@pytest.mark.parametrize(("operation", "reads"), [("slice", True), ("transpose", False)])
def test_fusion_with_a_matmul_is_suggested_only_if_supported(shared_judge: Judge, operation: str, reads: bool) -> None:
    def add_operation(g: GraphBuilder, x: Tensor, **result: Any) -> Tensor:
        return g.slice(x, (slice(2), slice(32), slice(64)), **result) if reads else g.transpose(x, (0, 2, 1), **result)

    alone = GraphBuilder(operation, io_type=DataType.HALF)
    add_operation(alone, alone.tensor("x", (2, 64, 64)), name="y", virtual=False)
    cause = shared_judge.run_query(Query(alone.graph(), "sm90")).cause
    assert cause is not None
    assert "there is no matmul or convolution in the graph" in cause.headline
    assert (cause.remedy, cause.asked) == (
        ("put it into the graph of the matmul that reads y", "support check") if reads else ("", "")
    )
    fused = GraphBuilder(operation, io_type=DataType.HALF, intermediate_type=DataType.HALF)
    y = add_operation(fused, fused.tensor("x", (2, 64, 64)), name="y")
    fused.matmul(y, fused.tensor("b", (2, 64, 16)), name="c", virtual=False)
    assert shared_judge.run_query(Query(fused.graph(), "sm90")).supported == reads


def test_unjudged_remedies_name_no_version_target_or_change(shared_judge: Judge) -> None:
    names = random.Random(9).sample(sorted(GRAPHS), len(GRAPHS) // 4)
    not_judged = 0
    for version in (None, OLDER_VERSION):
        for name in names:
            verdict = shared_judge.run_query(Query(GRAPHS[name](), "sm90", version))
            cause = verdict.cause
            if cause is not None and cause.asked == "not asked":
                not_judged += 1
                same_version = cause.code == "cuda-toolkit"  # in its build for another CUDA
                assert same_version or not REMEDY_NAME.search(cause.remedy), (name, cause)
                text = render_text(verdict)
                assert "\nsuggestion:  " in text
                assert "\nremedy:" not in text
    assert not_judged >= 5


def test_a_newer_version_is_recommended_only_if_it_was_judged(shared_judge: Judge) -> None:
    question = Query(GRAPHS_OF_FULL_CUDNN["softmax"](), "sm90", "9.19.0")
    verdict = shared_judge.run_query(question)
    assert verdict.cause is not None
    assert verdict.cause.code == "descriptor-newer-than-library"
    assert "9." not in verdict.cause.remedy
    cause = add_version_remedy(verdict, question, shared_judge).cause
    assert cause is not None
    named = re.fullmatch(r"use cuDNN (\S+) \(--cudnn (\S+)\)", cause.remedy)
    if named is None:
        assert "not support it" in cause.versions or cause == verdict.cause  # none is new enough
    else:
        assert cause.asked == "support check"
        assert shared_judge.run_query(replace(question, version=named[1])).supported


@pytest.mark.parametrize("most", [1, 2])
def test_versions_beyond_the_limit_are_listed_as_not_judged(shared_judge: Judge, most: int) -> None:
    question = Query(VARIED_GRAPHS["two matmul, reordered, s 10"](), "sm89")
    others = {item.version_with_cuda for item in list_installed()} - {library().build_text}
    cause = add_version_remedy(shared_judge.run_query(question), question, shared_judge, most=most).cause
    assert cause is not None
    assert cause.code == "pattern-removed"
    found = re.match(
        r"cuDNN (\S+) does not support it either(?:: .*?)??(?:; cuDNN (\S+) does not help either)?"
        r"(?:; (.*) (?:was|were) not judged \(see .*)?$",
        cause.versions,
    )
    assert found is not None
    judged = {name for name in found.groups()[:2] if name}
    not_judged = set((found[3] or "").split(", "))
    assert len(judged) <= most
    assert len(not_judged) == len(others) - most
    assert not_judged < others


def test_a_removed_pattern_names_the_version_that_had_it_if_none_is_installed(
    shared_judge: Judge, monkeypatch: pytest.MonkeyPatch
) -> None:
    question = Query(VARIED_GRAPHS["two matmul, reordered, s 10"](), "sm89")
    verdict = shared_judge.run_query(question)
    for installed in ([], [name for name in other_versions.available_versions() if name > "9.25"]):
        monkeypatch.setattr(other_versions, "available_versions", lambda installed=installed: installed)
        cause = add_version_remedy(verdict, question, shared_judge).cause
        assert cause is not None
        assert cause.remedy.startswith("cuDNN 9.24 supported such patterns")
        assert "--cudnn 9.24 installs it" in cause.remedy


@pytest.mark.parametrize("refusing", [(), ("9.26.0+cu12",), ("9.26.0+cu12", "9.27.0+cu12")])
def test_the_newest_version_with_a_removed_pattern_is_recommended(
    refusing: tuple[str, ...], shared_judge: Judge, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Versions without the pattern do not change which one is named; their library is not loaded."""
    question = Query(VARIED_GRAPHS["two matmul, reordered, s 10"](), "sm90")
    verdict = shared_judge.run_query(question)
    installed = [name for name in other_versions.available_versions() if name < "9.25"]
    assert len(installed) >= 2
    monkeypatch.setattr(other_versions, "available_versions", lambda: [*installed, *refusing, verdict.cudnn])
    cause = add_version_remedy(verdict, question, shared_judge).cause
    assert cause is not None
    assert cause.remedy == f"use cuDNN {installed[-1]} (--cudnn {installed[-1]})"


def test_no_cudnn_version_that_crashes_is_recommended(shared_judge: Judge) -> None:
    graph = attention_rows()["forward: fp8, bias"].make_graph("composite", (9, 19, 0))
    question = Query(graph, "sm100", "9.19.0")
    verdict = shared_judge.run_query(question)
    assert verdict.outcome is Outcome.NOT_JUDGED
    assert verdict.cause is not None
    assert verdict.cause.code == "cudnn-crashed"
    cause = add_version_remedy(verdict, question, shared_judge).cause
    assert cause is not None
    named = re.fullmatch(r"use cuDNN (\S+) \(--cudnn (\S+)\)", cause.remedy)
    if named is None:
        assert cause == verdict.cause
        assert cause.asked == "not asked"
    else:
        assert shared_judge.run_query(replace(question, version=named[1])).supported


@pytest.mark.parametrize(
    ("head_dim", "device", "taken"), [(20, "sm90", True), (20, "sm75", False), (64, "sm90", False)]
)
def test_a_cause_found_on_a_described_gpu_is_used_only_for_an_equal_gpu(
    shared_judge: Judge, head_dim: int, device: str, taken: bool
) -> None:
    question = Query(sdpa_forward(batch=2, heads=4, seq_q=256, head_dim=head_dim), "sm90")
    not_judged = shared_judge.run_query(
        replace(question, graph=sdpa_forward(batch=2, heads=4, seq_q=256, head_dim=20), causes=False)
    )
    properties = find_profile(device).properties
    found = shared_judge.add_cause_from_described_gpu(question, not_judged, properties, 60)
    if taken:
        whole = shared_judge.run_query(question).cause
        assert whole is not None
        assert found.cause is not None
        assert (found.cause.headline, found.cause.remedy) == (whole.headline, whole.remedy)
        assert (found.cause.basis, found.cause.asked) == (Basis.MEASURED, "support check")
        assert "a described GPU like this one" in found.cause.detail
    else:
        assert found == not_judged
