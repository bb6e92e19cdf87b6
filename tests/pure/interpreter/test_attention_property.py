"""Random attention problems: the interpreted graph equals the reference, and every option occurs."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from cudnn_backend_py import GraphError, attention
from cudnn_backend_py.graph.attention import Attention
from cudnn_backend_py.interpreter import interpret
from tests.support.attention_cases import (
    AttentionCase,
    add_expected_results,
    make_attention_case,
    make_random_attention_problem,
    map_options_to_value_text,
)

CASE_COUNT = 500
CHUNK_COUNT = 10


def assert_interpreted_case_equals_reference(
    case: AttentionCase, implementation: str, version: tuple[int, int, int] | None
) -> None:
    graph = case.graph(implementation, version, allow_hazards=True)
    found = interpret(graph, case.make_inputs_of_graph(graph))
    for name, want in case.expected.items():
        got = case.unpack_output(name, found[name])
        where = case.make_mask_of_defined_elements(name)
        if name == "dsink" and implementation == "composite":
            got = -got
            if not case.valid_rows.all():
                continue
        scale = max(1.0, float(np.abs(want[where]).max(initial=0.0)))
        np.testing.assert_allclose(got[where] / scale, want[where] / scale, rtol=0, atol=1e-11, err_msg=name)


@pytest.mark.parametrize("chunk", range(CHUNK_COUNT))
@pytest.mark.parametrize("backward", [False, True], ids=["forward", "backward"])
def test_interpreted_graph_equals_the_reference(backward: bool, chunk: int) -> None:
    for number in range(chunk, CASE_COUNT, CHUNK_COUNT):
        rng = np.random.default_rng([number, backward])
        problem = make_random_attention_problem(rng, backward=backward, tiny=True)
        case = add_expected_results(make_attention_case(problem, rng, backward=backward))
        try:
            assert_interpreted_case_equals_reference(case, "composite", None)
            assert_interpreted_case_equals_reference(case, "composite", (9, 28, 0))
            if (
                not problem.dropout_mask
                and problem.scale != "none"
                and not problem.deterministic
                and not (problem.mx or (backward and problem.is_fp8))
            ):
                assert_interpreted_case_equals_reference(case, "unified", (9, 28, 0))
        except Exception as error:
            error.add_note(f"case {number}: {problem}")
            raise


def count_option_values_of_random_problems() -> dict[str, Counter[str]]:
    """Count how often each value of an option occurs in the random problems, by direction."""
    counted: dict[str, Counter[str]] = {}
    for backward in (False, True):
        for number in range(CASE_COUNT):
            problem = make_random_attention_problem(
                np.random.default_rng([number, backward]), backward=backward, tiny=True
            )
            for option, value in map_options_to_value_text(problem).items():
                counted.setdefault(option, Counter())[f"{'backward' if backward else 'forward'}: {value}"] += 1
    return counted


def test_every_option_occurs_in_the_random_problems(capsys: pytest.CaptureFixture[str]) -> None:
    counted = count_option_values_of_random_problems()
    with capsys.disabled():
        print()
        for option, values in counted.items():
            print(f"  {option:<16}", ", ".join(f"{value} {count}" for value, count in sorted(values.items())))
    both = {"forward", "backward"}
    for option, wanted in EXPECTED_OPTION_VALUES.items():
        for value in wanted:
            found = {way for way in both if counted[option][f"{way}: {value}"]}
            assert found == both - OPTIONS_OF_ONE_DIRECTION.get((option, value), set()), (option, value)


YES_OR_NO = ("yes", "no")
EXPECTED_OPTION_VALUES: dict[str, tuple[str, ...]] = {
    "data type": ("HALF", "BFLOAT16", "FP8_E4M3", "FP8_E5M2", "mx FP8_E4M3", "mx FP8_E5M2"),
    "heads": ("MHA", "GQA", "MQA", "GQA, V's own"),
    "head dims": ("equal", "different"),
    "layout": ("bshd", "bhsd", "sbhd", "packed", "by tensor", "strides"),
    "scale": ("default", "number", "tensor", "none"),
    "left bound": ("none", "top_left", "bottom_right"),
    "right bound": ("none", "0 top_left", "0 bottom_right", "> 0 top_left", "> 0 bottom_right"),
    "lengths": ("full", "padding", "ragged", "paged"),
    "ragged offsets": ("none", "INT32", "INT64"),
    "bias": ("none", "broadcast", "full"),
    "dropout": ("none", "Philox INT32", "Philox INT64", "mask"),
    "score modifier": ("none", "SoftCap"),
    **dict.fromkeys(("alibi", "sink", "rng_dump", "ragged_stats"), YES_OR_NO),
    **dict.fromkeys(("dsink", "dbias", "deterministic", "max_total_seq", "stats", "max", "sum_exp"), YES_OR_NO),
}
# Options that one direction does not have.
OPTIONS_OF_ONE_DIRECTION = {
    ("lengths", "paged"): {"backward"},
    ("dropout", "mask"): {"backward"},
    **{(name, "yes"): {"forward"} for name in ("dsink", "dbias", "deterministic", "max_total_seq")},
    **{(name, "yes"): {"backward"} for name in ("max", "sum_exp")},
    ("stats", "no"): {"backward"},
}


def test_unified_operation_has_no_deterministic_mode() -> None:
    """The unified operation sums dQ in an undefined order."""
    with pytest.raises(GraphError, match="no deterministic mode"):
        attention.sdpa_backward(
            batch=1, heads=2, seq_q=128, head_dim=64, deterministic=True, implementation="unified", version=(9, 28, 0)
        )


def test_block_mask_of_the_unified_operation_is_applied() -> None:
    """The random problems have no block mask, as only the unified forward operation supports one."""
    for number in range(20):
        rng = np.random.default_rng([number, 5])
        sizes = {"batch": 2, "heads": 2, "seq_q": 140, "seq_kv": int(rng.integers(100, 1200)), "head_dim": 4}
        problem = Attention(**sizes, causal=bool(number % 2), block_mask=True, stats=True)
        assert_interpreted_case_equals_reference(
            add_expected_results(make_attention_case(problem, rng, backward=False)), "unified", (9, 28, 0)
        )
