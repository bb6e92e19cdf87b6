"""lint, known issues and changes of unusual graphs; no cuDNN is needed."""

from __future__ import annotations

import dataclasses
import logging
import random
import sys
from collections.abc import Iterator

import pytest

from cudnn_backend_py import DataType, DescriptorType, Graph, GraphBuilder, GraphError, PointwiseMode
from cudnn_backend_py.diagnose import lint
from cudnn_backend_py.diagnose.causes.find import list_suspicious_properties
from cudnn_backend_py.graph import Matmul, Operation, Pointwise
from cudnn_backend_py.graph.attention import recognize as build_attention_graph
from cudnn_backend_py.graph.attention import sdpa_forward
from cudnn_backend_py.graph.guard import (
    call_and_report_errors,
    collect_error_reports,
    iterate_and_report_errors,
    report_error_line,
)
from cudnn_backend_py.graph.replace import replace_tensors
from cudnn_backend_py.known_issues import find, find_known_issues
from cudnn_backend_py.rewrite.changes import (
    CHANGES,
    Change,
    compute_convolution_output_dims,
    find_attention_dims,
    iterate_changes,
)
from cudnn_backend_py.rewrite.dims import find_sets_of_equal_dims
from cudnn_backend_py.rewrite.fusion import expand_softmax, expand_to_composite_attention
from tests.support.graphs import CONVOLUTION_FIELDS, make_convolution, make_relu, make_sdpa, make_tensor
from tests.support.operations import OPERATION_GRAPHS
from tests.support.randomly_changed_graphs import iterate_random_mutants

LARGEST_INT64 = (1 << 63) - 1


def make_graph_of_rank(rank: int) -> Graph:
    """Return a graph of fused attention and a convolution, all with tensors of this rank."""
    dims = (2,) * rank
    made = {name: make_tensor(name, *dims) for name in "qkvoxwy"}
    attention = Operation(DescriptorType.OPERATION_SDPA_FWD, "sdpa", {name: made[name] for name in "qkvo"})
    return Graph((attention, make_convolution(**{name: made[name] for name in "xwy"})), f"rank {rank}")


def make_matmul_with_largest_uids() -> Graph:
    """Return a matmul of tensors with the largest possible uids."""
    g = GraphBuilder("largest uids", first_uid=LARGEST_INT64 - 2)
    g.matmul(g.tensor("a", (1, 8, 8)), g.tensor("b", (1, 8, 8)), name="c", virtual=False)
    return g.graph()


def lint_graph_and_list_proposed_changes(graph: Graph) -> list[Change]:
    """Run all checks that need no cuDNN, assert that none fails, and return the changes."""
    with collect_error_reports() as failed:
        assert not any(finding.code == "lint-failed" for finding in lint(graph))
        find_known_issues(graph, 90, (9, 19, 0))
        list_suspicious_properties(graph)
        found = list(iterate_changes(graph))
    assert failed == []
    return found


@pytest.mark.parametrize(
    "graph",
    [make_matmul_with_largest_uids(), *map(make_graph_of_rank, range(1, 9))],
    ids=lambda one: one.name,
)
def test_lint_and_proposed_changes_accept_unusual_graphs(graph: Graph) -> None:
    lint_graph_and_list_proposed_changes(graph)


def test_changes_name_only_tensors_of_the_graph() -> None:
    graph = make_matmul_with_largest_uids()
    names, uids = {one.name for one in graph.tensors}, {one.uid for one in graph.tensors}
    found = lint_graph_and_list_proposed_changes(graph)
    added = [one for change in found for graph in change.graphs for one in graph.tensors if one.uid not in uids]
    assert {one.name for one in added} == {"c_f32"}
    assert {one.uid for one in added} == {1}
    assert all(set(change.tensors) <= names for change in found)


@pytest.mark.parametrize("seed", range(3))
def test_lint_and_proposed_changes_accept_random_graphs(seed: int) -> None:
    made = iterate_random_mutants(random.Random(seed))
    counted = 0
    while counted < 30:
        graph = next(made)
        if isinstance(graph, GraphError):
            continue
        counted += 1
        if len(graph.ops) < 25:
            names = {one.name for one in graph.tensors}
            assert all(set(change.tensors) <= names for change in lint_graph_and_list_proposed_changes(graph))


def test_axis_equivalence_classes_contain_only_existing_axes() -> None:
    g = GraphBuilder("reshape")
    g.operation(DescriptorType.OPERATION_RESHAPE, x=g.tensor("x", (1, 128, 64)), y=g.tensor("y", (128, 64)))
    graph = g.graph()
    classes = find_sets_of_equal_dims(graph)
    x, y = graph.tensor("x"), graph.tensor("y")
    assert set(classes) >= {(x.uid, 0), (x.uid, 2), (y.uid, 1)}
    assert (y.uid, 2) not in classes
    assert classes[x.uid, 2].fixed  # its partner is missing, so its class of axes is unknown
    assert find_attention_dims(make_graph_of_rank(2)).d is None
    assert expand_to_composite_attention(Graph((make_graph_of_rank(3).ops[0],))) is None


def test_response_dims_of_invalid_convolutions_are_none() -> None:
    parameters = dict(CONVOLUTION_FIELDS)
    for name, value in (("dilations", (1,)), ("filter_strides", (0, 1)), ("pre_paddings", ())):
        odd = Graph((make_convolution(),)).ops[0].fields["convolution"]  # type: ignore[attr-defined]
        odd = type(odd)(odd.kind, parameters | {name: value})
        assert compute_convolution_output_dims(make_convolution(convolution=odd)) is None
    assert compute_convolution_output_dims(make_convolution()) == (1, 16, 4, 4)


def test_two_operations_with_equal_names_are_distinguished() -> None:
    """The change removes only the bias addition, although another operation has the same name."""
    x, y, z, bias = (make_tensor(name, 4, 8, virtual=name == "y") for name in ("x", "y", "z", "bias"))
    first = make_relu(x, y, "same")
    second = Pointwise(name="same", mode=PointwiseMode.ADD, x=y, b=bias, y=z)
    found = [
        change for change in lint_graph_and_list_proposed_changes(Graph((first, second))) if change.kind == "drop_bias"
    ]
    assert [change.title for change in found] == ["without the bias bias"]
    assert [op.display_name() for op in found[0].graph.ops] == ["relu_fwd"]


def test_an_infinite_attention_bound_is_read_as_unknown() -> None:
    """The bound of a mask is a by-value tensor, and its value may be infinite."""
    graph = sdpa_forward(batch=1, heads=2, seq_q=128, head_dim=64, right_bound=3, left_bound=5, causal=False)
    bound = next(one for one in graph.tensors if one.by_value and one.value == 3)
    endless = {bound.uid: dataclasses.replace(bound, value=float("inf"), data_type=DataType.FLOAT)}
    use = build_attention_graph.read_attention(replace_tensors(graph, endless))
    assert use is not None
    assert use.problem.right_bound == 1


# failures inside the checks


def raise_key_error(*_: object) -> Iterator[object]:
    raise KeyError((3, 2))
    yield


FAILURE_MESSAGE_END = "of this package failed with KeyError ((3, 2)): please report it"


def test_an_internal_failure_is_reported_once_and_other_checks_continue() -> None:
    with collect_error_reports() as lines:
        assert call_and_report_errors("the rule x", 7, raise_key_error) != 7  # a generator fails when it is read
        assert list(iterate_and_report_errors("the change y", raise_key_error)) == []
        assert list(iterate_and_report_errors("the change y", raise_key_error)) == []
        assert call_and_report_errors("the rule z", 7, lambda: {}["no"]) == 7
    assert lines == [
        f"the change y {FAILURE_MESSAGE_END}",
        "the rule z of this package failed with KeyError ('no'): please report it",
    ]


def test_internal_failures_that_are_not_collected_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        report_error_line("one line")
    assert caplog.messages == ["one line"]


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, TimeoutError, BlockingIOError])
def test_interruptions_and_timeouts_of_checks_reach_the_caller(error: type[BaseException]) -> None:
    def raise_error() -> None:
        raise error

    with pytest.raises(error):
        call_and_report_errors("the rule x", None, raise_error)


def test_a_failing_kind_of_change_does_not_stop_other_kinds(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = OPERATION_GRAPHS["padded matmul"]()
    before = [change.title for change in iterate_changes(graph) if change.kind != "scale"]
    monkeypatch.setitem(CHANGES, "scale", raise_key_error)
    with collect_error_reports() as lines:
        assert [change.title for change in iterate_changes(graph)] == before
    assert lines == [f"the change scale {FAILURE_MESSAGE_END}"]


def test_a_failing_condition_does_not_stop_the_other_known_issues(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = sdpa_forward(batch=1, heads=2, seq_q=128, head_dim=64, stats=True)
    before = find_known_issues(graph, 90, (9, 10, 0))
    assert len(before) > 0
    code = before[0].code
    rows = [dataclasses.replace(one, attention=lambda _: {}[3, 2]) if one.code == code else one for one in find.FAULTS]
    monkeypatch.setattr(find, "FAULTS", rows)
    with collect_error_reports() as lines:
        left = find_known_issues(graph, 90, (9, 10, 0))
    assert left == [one for one in before if one.code != code]
    assert lines == [f"the condition {code} {FAILURE_MESSAGE_END}"]


def test_a_failing_lint_check_is_reported_as_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    module = sys.modules["cudnn_backend_py.diagnose.linting"]  # the package's attribute is the function
    monkeypatch.setattr(module, "_LINT_CHECKS", (raise_key_error, *module._LINT_CHECKS))
    found = lint(
        Graph(
            (
                Matmul(
                    name="c", a=make_tensor("a", 8, 8, alignment=4), b=make_tensor("b", 8, 8), c=make_tensor("c", 8, 8)
                ),
            )
        )
    )
    assert {(one.code, one.headline) for one in found} >= {
        ("lint-failed", f"the check raise_key_error {FAILURE_MESSAGE_END}")
    }
    assert "alignment-below-16" in {one.code for one in found}


def test_read_attention_reports_a_failure_and_returns_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build_attention_graph, "_read_graph", lambda _: {}[3, 2])
    with collect_error_reports() as lines:
        assert build_attention_graph.read_attention(Graph((make_sdpa(),))) is None
    assert lines == [f"the reading of attention {FAILURE_MESSAGE_END}"]


def test_an_expanded_softmax_uses_unused_uids() -> None:
    g = GraphBuilder("softmax", io_type=DataType.FLOAT, first_uid=LARGEST_INT64 - 1)
    x, y = g.tensor("x", (2, 4, 8, 8)), g.tensor("y", (2, 4, 8, 8))
    g.operation(DescriptorType.OPERATION_SOFTMAX, x=x, y=y)
    made = expand_softmax(g.graph())
    assert made is not None
    assert sorted(one.uid for one in made.tensors)[:6] == [1, 2, 3, 4, 5, 6]


def test_no_proposed_change_drops_the_only_output_of_a_graph() -> None:
    g = GraphBuilder("bias alone", io_type=DataType.HALF)
    s = g.matmul(g.tensor("a", (1, 8, 8)), g.tensor("b", (1, 8, 8)))
    g.pointwise(PointwiseMode.RELU_FWD, s, name="dbias", virtual=False)
    with collect_error_reports() as lines:
        assert [change for change in iterate_changes(g.graph()) if change.kind == "drop_bias"] == []
    assert lines == []
