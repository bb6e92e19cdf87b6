"""Known issues of attention: each has a reproduction that the builder refuses to build."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from cudnn_backend_py import GraphError, attention
from cudnn_backend_py.graph.formats import decode, encode
from cudnn_backend_py.interpreter import interpret
from examples import attention_known_issues
from examples.attention_known_issues import (
    OTHERS,
    POISON,
    REPRODUCTIONS,
    Arrays,
    ReferenceData,
    compare_reproduction_with_reference,
    describe_error,
    get_reproduction,
    make_reproduction_graph,
    make_reproduction_problem,
)

KNOWN_ISSUE_CODES = [issue.code for issue in attention.HAZARDS]


def get_known_issue_code(name: str) -> str:
    return attention_known_issues.find_known_issue(name).code


def make_attention_use_of_reproduction(
    name: str, version: attention.Version | None = None, sm: int | None = None
) -> attention.AttentionUse:
    made = REPRODUCTIONS[name]
    form = "unified" if made.implementation == "unified" else "expanded"
    return attention.AttentionUse(make_reproduction_problem(name), made.backward, form, version, sm)  # type: ignore[arg-type]


def find_known_issue_codes(name: str, version: attention.Version | None = None, sm: int | None = None) -> list[str]:
    return [
        issue.code for issue in attention.find_measured_issues(make_attention_use_of_reproduction(name, version, sm))
    ]


def test_every_known_issue_has_a_reproduction() -> None:
    assert len(set(KNOWN_ISSUE_CODES)) == len(KNOWN_ISSUE_CODES)
    assert list(dict.fromkeys(map(get_known_issue_code, REPRODUCTIONS))) == KNOWN_ISSUE_CODES


def test_every_known_issue_has_an_effect_and_evidence() -> None:
    for issue in attention.HAZARDS:
        assert all((issue.what, issue.effect, issue.evidence, issue.fix, issue.sm)), issue.code
        assert issue.until is None or issue.since < issue.until, issue.code


@pytest.mark.parametrize("name", REPRODUCTIONS)
def test_a_reproduction_has_one_known_issue_and_is_refused_unless_allowed(name: str) -> None:
    code = get_known_issue_code(name)
    assert find_known_issue_codes(name) == [code]
    with pytest.raises(GraphError) as caught:
        make_reproduction_graph(name, allow_hazards=False)
    assert caught.value.code == "attention-hazard"
    assert f"({code})" in caught.value.render()
    made = make_reproduction_graph(name)
    assert made.ops
    assert {tensor.name for tensor in made.outputs} & {"o", "dq"}


EXAMPLES_WITH_REMEDY = [name for name in OTHERS if name.partition(":")[0] in KNOWN_ISSUE_CODES]


@pytest.mark.parametrize("name", EXAMPLES_WITH_REMEDY)
def test_the_graph_with_a_remedy_agrees_with_the_reference(name: str) -> None:
    seen = compare_reproduction_with_reference(name, make_interpreter_call_for_reproduction(name))
    # As above: dsink of rows beyond the lengths.
    assert seen == ("dsink: NaN (100%)" if name.startswith("dsink-ragged") else "agrees")


@pytest.mark.parametrize("name", REPRODUCTIONS)
def test_the_interpreted_reproduction_agrees_with_the_reference(name: str) -> None:
    """The graph itself is right, so a wrong result on a GPU is due to the kernel."""
    seen = compare_reproduction_with_reference(name, make_interpreter_call_for_reproduction(name))
    # Rows beyond the lengths have stats of -inf, and the operations, read literally, give exp(sink + inf) * 0 there.
    assert seen == ("dsink: NaN (100%)" if name == "dsink-ragged" else "agrees")


def make_interpreter_call_for_reproduction(name: str) -> Callable[[Arrays], None]:
    """Return a function that runs the graph in the interpreter and writes the rounded results to the output arrays."""
    made = make_reproduction_graph(name)
    outputs = {tensor.name: tensor for tensor in made.outputs}

    def run_interpreter(arrays: Arrays) -> None:
        inputs = {key: decode(array, made.tensor(str(key)).data_type) for key, array in arrays.items()}
        values = interpret(made, {key: value for key, value in inputs.items() if key not in outputs}, rounding=True)
        for key, tensor in outputs.items():
            # The composite form, read literally, computes the opposite of dsink, see sdpa_backward.
            sign = -1 if key == "dsink" and get_reproduction(name).implementation == "composite" else 1
            arrays[key][...] = encode(sign * values[key], tensor.data_type)

    return run_interpreter


def test_wrong_results_of_a_reproduction_are_described() -> None:
    name = "fp8-bias:backward"
    assert compare_reproduction_with_reference(name, lambda arrays: None) == "; ".join(
        f"{key}: memory not written" for key in ("dv", "dk", "dq")
    )

    def run_without_bias(arrays: Arrays) -> None:
        make_interpreter_call_for_reproduction(name)(arrays | {"bias": arrays["bias"] * 0})

    seen = compare_reproduction_with_reference(name, run_without_bias)
    assert [words.split(" error ")[0] for words in seen.split("; ")] == [
        f"{key}: relative" for key in ("dv", "dk", "dq")
    ]

    p = make_reproduction_problem(name)
    want = ReferenceData(p, True).expected["dq"]
    half = want.copy()
    half[0] = float("nan")
    assert describe_error(want, want, p) == ""
    assert describe_error(want * 1.05, want, p) == ""
    assert describe_error(want * 1.5, want, p) == "relative error 0.5"
    assert describe_error(want * 0 + POISON, want, p) == "memory not written"
    assert describe_error(half, want, p) == "NaN (50%)"


@pytest.mark.parametrize(
    ("name", "version", "sm", "expected"),
    [
        ("fp8-backward-tail", (9, 19, 0), 90, True),
        ("fp8-backward-tail", (9, 26, 9), 90, True),
        ("fp8-backward-tail", (9, 27, 0), 90, False),
        ("fp8-backward-tail", (9, 28, 0), 90, False),
        ("fp8-backward-tail", (9, 19, 0), 100, False),
        ("fp8-backward-tail", (9, 19, 0), None, True),
        ("fp8-backward-tail", None, 90, True),
        ("fp8-backward-tail", None, 80, False),
        ("dsink-ragged", (9, 19, 0), 90, False),
        ("dsink-ragged", (9, 20, 0), 90, True),
        ("dsink-ragged", (9, 28, 0), 90, True),
        ("dsink-ragged", None, None, True),
        ("dsink-ragged-stats", (9, 20, 0), 90, True),
        ("dsink-ragged-stats", (9, 27, 0), 90, False),
        ("fp8-alibi", (9, 99, 0), 90, True),
        ("fp8-alibi", (9, 99, 0), 80, False),
    ],
)
def test_known_issues_are_found_only_for_affected_versions_and_architectures(
    name: str, version: attention.Version | None, sm: int | None, expected: bool
) -> None:
    code = get_known_issue_code(name)
    assert (code in find_known_issue_codes(name, version, sm)) is expected
    made = REPRODUCTIONS[name]
    build = attention.sdpa_backward if made.backward else attention.sdpa_forward
    if not expected:
        assert build(make_reproduction_problem(name), implementation="composite", version=version, sm=sm).ops
        return
    with pytest.raises(GraphError, match="attention-hazard"):
        build(make_reproduction_problem(name), implementation="composite", version=version, sm=sm)


def test_composite_graphs_of_unified_issues_are_not_refused() -> None:
    statistics = make_reproduction_problem("row-statistics-alone")
    assert attention.sdpa_forward(statistics, implementation="composite", version=(9, 21, 0)).ops
    for name, build in (
        ("unified-modifier-padding", attention.sdpa_forward),
        ("unified-backward-modifier", attention.sdpa_backward),
    ):
        assert build(make_reproduction_problem(name), implementation="composite").ops
