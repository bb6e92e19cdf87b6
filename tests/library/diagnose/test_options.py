"""Reports of refused attention options (one, a pair, or a size limit), compared with judging every subset."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import pytest

from cudnn_backend_py import DataType, Graph, GraphError, library
from cudnn_backend_py.diagnose import explain
from cudnn_backend_py.diagnose.causes.case import RefusalCase, is_supported
from cudnn_backend_py.diagnose.causes.options import read_attention_options
from cudnn_backend_py.diagnose.fork import run_in_fork
from cudnn_backend_py.diagnose.verdict import Basis, Verdict
from cudnn_backend_py.graph.attention import SoftCap, sdpa_backward, sdpa_forward
from cudnn_backend_py.target import use_target
from tests.library.diagnose.test_rules import make_backward, make_forward

FP8 = DataType.FP8_E4M3
HEURISTICS_MODES = ("A", "FALLBACK")

REPORTED_OPTIONS: dict[str, tuple[Callable[[], Graph], str, tuple[str, ...], tuple[str, ...]]] = {
    "pair": (
        lambda: make_backward(dropout=0.1, deterministic=True),
        "sm100",
        ("dropout together with a deterministic dQ", "not supported on sm_100, though each alone is", "sm_90"),
        ("tile size", "sm_100 does not support"),
    ),
    "pair with a gradient": (
        lambda: make_backward(dropout=0.1, bias=(1, 4, 256, 256), dbias=True),
        "sm103",
        ("dropout together with the gradient of the bias (dbias)", "though each alone is"),
        ("the bias together",),
    ),
    "pair with ragged offsets": (
        lambda: make_backward(ragged=True, ragged_stats=True, bias=(1, 4, 256, 256), dbias=True),
        "sm120",
        ("ragged offsets together with the gradient of the bias (dbias)", "sm_90 supports"),
        (),
    ),
    "one alone, and a pair": (
        lambda: make_backward(dropout=0.1, deterministic=True, seed_type=DataType.INT32),
        "sm100",
        ("a seed of type int32: not supported on sm_100; and also dropout together with a deterministic dQ",),
        ("operation rng",),
    ),
    "one of two": (
        lambda: make_backward(score_modifier=SoftCap(30.0), causal=True, dropout=0.1),
        "sm86",
        ("the score modifier (soft cap): not supported on sm_86",),
        ("together",),
    ),
    "limit": (
        lambda: make_backward(head_dim=256, ragged=True),
        "sm120",
        ("a head dim of 256: not supported on sm_120, at most 128 is",),
        ("ragged offsets",),
    ),
    "dims of a bias": (
        lambda: make_backward(bias=(1, 4, 256, 1), dbias=True),
        "sm100",
        ("a bias of dims [1, 4, 256, 1] together with the gradient of the bias",),
        ("on SM80",),
    ),
}


@pytest.mark.parametrize("name", REPORTED_OPTIONS)
def test_refused_attention_options_are_reported(name: str) -> None:
    make, target, words, never = REPORTED_OPTIONS[name]
    cause = explain(make(), target).cause
    assert cause is not None
    assert (cause.code, cause.basis) == ("option", Basis.MEASURED), cause
    assert not [word for word in words if word not in cause.headline], cause.headline
    assert not [word for word in never if word in cause.headline], cause.headline
    assert cause.detail.startswith("judged ")
    assert cause.remedy


def test_a_headline_has_cudnns_specific_reason_and_the_refused_option() -> None:
    """cuDNN's message has the dims needed for a bias gradient: they stay in the headline, despite other remedies."""
    graph = sdpa_backward(
        batch=2, heads=4, seq_q=256, head_dim=64, bias=(1, 4, 256, 1), dbias=True, allow_hazards=True,
        implementation="unified", version=(9, 28, 0),
    )  # fmt: skip
    cause = explain(graph, "sm100").cause
    assert cause is not None
    assert "cuDNN: Bias gradient tensor dimensions must be (b or 1, h_q or 1, s_q, s_kv)" in cause.headline


def test_no_option_is_blamed_if_plain_attention_is_refused() -> None:
    verdict = explain(make_forward(causal=True, stats=True), "t4")
    with use_target("t4") as target:
        case = RefusalCase(verdict.candidates, make_forward(causal=True, stats=True), target, HEURISTICS_MODES)
        assert case.refused_options is not None
        assert case.refused_options.sets == ((),)
    assert verdict.cause is not None
    assert verdict.cause.code == "architecture"


def test_a_graph_refused_for_other_reasons_has_no_refused_option() -> None:
    graph = make_backward(dropout=0.1, deterministic=True)
    with use_target("sm100") as target:
        assert RefusalCase((), graph, target, HEURISTICS_MODES).options is None
        assert (
            RefusalCase(explain(graph, "sm100").candidates, graph, target, HEURISTICS_MODES, measure=False).options
            is None
        )


@pytest.mark.parametrize("form", ["expanded", "single operations", "unified"])
def test_rebuilding_a_graph_with_all_options_changes_nothing(form: str) -> None:
    """A graph that is read into options and built again has the same operations and tensors, in every form."""
    options: dict[str, Any] = {"causal": True, "kv_heads": 2, "stats": True, "bias": (1, 4, 256, 256), "head_dim": 96}
    graph = make_forward(
        implementation="unified" if form == "unified" else "composite",
        version=None if form == "expanded" else (9, 28, 0),
        **options,
    )
    found = read_attention_options(graph, library().version)
    assert found is not None
    again = found.graph(found.found)
    assert again is not None
    assert [op.kind for op in again.ops] == [op.kind for op in graph.ops]
    memory = [(item.dims, item.strides, item.data_type) for item in graph.variant_pack_tensors if not item.by_value]
    built = [(item.dims, item.strides, item.data_type) for item in again.variant_pack_tensors if not item.by_value]
    assert sorted(built) == sorted(memory)
    plain = found.graph(())
    assert plain is not None
    assert {item.name for item in plain.variant_pack_tensors} >= {"q", "k", "v", "o"}
    assert not {"bias", "stats"} & {item.name for item in plain.tensors if not item.virtual}


# every subset, judged

COMMON_OPTIONS: dict[str, dict[str, Any]] = {
    "right bound": {"causal": True},
    "ragged": {"ragged": True},
    "bias": {"bias": (1, 4, 256, 256)},
    "modifier": {"score_modifier": SoftCap(30.0)},
    "dropout": {"dropout": 0.1},
    "sink": {"sink": True},
    "heads": {"kv_heads": 2},
    "head dim": {"head_dim": 256},
}
OPTIONS_BY_DIRECTION: dict[str, dict[str, dict[str, Any]]] = {
    "forward": {
        "paged": {"padding": True, "page_size": 64},
        "max": {"max": True, "sum_exp": True},
        "block mask": {"block_mask": True},
        "data type": {"data_type": FP8},
    },
    "backward": {
        "dbias": {"bias": (1, 4, 256, 256), "dbias": True},
        "dsink": {"sink": True, "dsink": True},
        "deterministic": {"deterministic": True},
    },
}
# Implied options: the maximum and the sum belong together, and lengths with ragged or paged tensors.
IMPLIED_OPTIONS = {"sum_exp": "max", "padding": "ragged"}


def make_random_attention_problems(count: int) -> Iterator[tuple[str, tuple[str, ...], str, str]]:
    rng = random.Random(7)
    for _ in range(count):
        direction = rng.choice(("forward", "backward"))
        chosen = rng.sample(sorted(COMMON_OPTIONS | OPTIONS_BY_DIRECTION[direction]), rng.choice((2, 2, 3)))
        forms = ("expanded", "single operations", "unified") if direction == "forward" else ("expanded",)
        yield direction, tuple(sorted(chosen)), rng.choice(forms), rng.choice(("sm80", "sm90", "sm100", "sm120"))


def build_graph(direction: str, options: Sequence[str], form: str) -> Graph:
    fields: dict[str, Any] = {"batch": 2, "heads": 4, "seq_q": 256, "head_dim": 64, "allow_hazards": True}
    for option in options:
        fields |= (COMMON_OPTIONS | OPTIONS_BY_DIRECTION[direction])[option]
    fields["implementation"] = "unified" if form == "unified" else "composite"
    fields["version"] = None if form == "expanded" else library().version
    return (sdpa_forward if direction == "forward" else sdpa_backward)(**fields)


def is_attention_problem_supported(direction: str, options: Sequence[str], form: str, target: str) -> bool | None:
    """Return whether cuDNN supports the attention problem; None if the builder refuses it."""
    try:
        graph = build_graph(direction, options, form)
    except GraphError:
        return None
    with use_target(target) as opened:
        return is_supported(graph, opened, HEURISTICS_MODES)


def find_smallest_refused_option_sets(
    direction: str, options: tuple[str, ...], form: str, target: str
) -> list[set[str]]:
    """Return the minimal sets of options that cuDNN refuses; none if it supports all options together."""
    found: list[set[str]] = []
    if is_attention_problem_supported(direction, options, form, target) is not False:
        return found
    for size in range(len(options) + 1):
        for subset in itertools.combinations(options, size):
            covered = any(one <= set(subset) for one in found)
            if not covered and is_attention_problem_supported(direction, subset, form, target) is False:
                found.append(set(subset))
    return found


def find_reported_option_sets_in_fork(verdict: Verdict, graph: Graph, target: str) -> list[set[str]] | None:
    def find_reported_option_sets() -> list[set[str]] | None:
        with use_target(target) as opened:
            blame = RefusalCase(verdict.candidates, graph, opened, HEURISTICS_MODES).refused_options
        return None if blame is None else [{IMPLIED_OPTIONS.get(key, key) for key in one} for one in blame.sets]

    return run_in_fork(find_reported_option_sets, lambda: None)


def test_reported_options_are_a_smallest_refused_subset() -> None:
    """Compare random problems: the options that a report names must be among the smallest refused subsets."""
    right, wrong, unknown = 0, [], 0
    for problem in make_random_attention_problems(120):
        truth = run_in_fork(partial(find_smallest_refused_option_sets, *problem), list)
        if not truth:
            continue  # supported, no such graph, or cuDNN crashes
        direction, options, form, target = problem
        graph = build_graph(direction, options, form)
        verdict = explain(graph, target)
        if not verdict.candidates:
            continue  # refused by this package
        found = find_reported_option_sets_in_fork(verdict, graph, target)
        if found is None:
            unknown += 1
        elif all(one in truth for one in found):
            right += 1
        else:
            wrong.append((*problem, truth, found))
    print(f"{right} right, {unknown} not known, wrong: {wrong}")
    assert right >= 15, unknown
    assert len(wrong) <= 0.05 * right, wrong
    assert unknown <= 0.1 * right
