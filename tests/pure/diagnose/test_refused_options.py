"""The search for options that make cuDNN refuse a problem, tested with fake support checks instead of cuDNN."""

from __future__ import annotations

import itertools
import random

import pytest

from cudnn_backend_py.diagnose.causes.refused_part import RefusedOptions, find_refused_options

OPTION_NAMES = ("a", "b", "c", "d", "e")


class FakeSupportCheck:
    """A fake support check: it refuses every set of options that contains a refused set, and records its queries."""

    def __init__(self, *sets: str) -> None:
        self.sets = [set(one) for one in sets]
        self.queries: list[frozenset[str]] = []

    def __call__(self, kept: frozenset[str]) -> bool:
        self.queries.append(kept)
        return not any(one <= kept for one in self.sets)


@pytest.mark.parametrize(
    ("refused", "sets", "cures", "alone"),
    [
        (("a",), (("a",),), ("a",), None),
        (("ab",), (("a", "b"),), ("a", "b"), True),
        (("abc",), (("a", "b", "c"),), ("a", "b", "c"), True),
        (("a", "b"), (("a",), ("b",)), (), None),
        (("ab", "ac"), (("a", "c"), ("a", "b")), ("a",), True),
        (("a", "bc"), (("a",), ("b", "c")), (), True),
        (("ab", "cd"), (("c", "d"), ("a", "b")), (), True),
    ],
)
def test_refused_sets_of_options_are_found(
    refused: tuple[str, ...], sets: tuple[tuple[str, ...], ...], cures: tuple[str, ...], alone: bool | None
) -> None:
    run_query = FakeSupportCheck(*refused)
    assert find_refused_options(OPTION_NAMES, {}, run_query) == RefusedOptions(sets, cures, alone)
    assert len(run_query.queries) == len(set(run_query.queries)) <= 4 * len(OPTION_NAMES)


def test_options_are_not_blamed_for_a_problem_refused_without_any() -> None:
    run_query = FakeSupportCheck("")
    assert find_refused_options(OPTION_NAMES, {}, run_query) == RefusedOptions(((),))
    assert run_query.queries == [frozenset()]


def test_options_refused_only_together_are_reported_together() -> None:
    """Options "a" and "e" are refused only together, so they are reported as one set."""
    found = find_refused_options(OPTION_NAMES, {}, FakeSupportCheck("ae"))
    assert found is not None
    assert found.sets == (("a", "e"),)


@pytest.mark.parametrize(("refused", "sets"), [("ab", (("b",),)), ("a", (("a",),)), ("bc", (("b", "c"),))])
def test_an_option_is_judged_only_with_the_option_it_requires(refused: str, sets: tuple[tuple[str, ...], ...]) -> None:
    """Option "b" needs option "a": it is judged only with "a", but the reported set need not contain "a"."""
    run_query = FakeSupportCheck(refused)
    found = find_refused_options("abc", {"b": ("a",)}, run_query)
    assert found is not None
    assert found.sets == sets
    assert all("a" in kept for kept in run_query.queries if "b" in kept)


def test_contradictory_support_checks_give_no_refused_option() -> None:
    """Option "a" is refused alone, but leaving out "b" helps."""

    def run_query(kept: frozenset[str]) -> bool:
        return kept not in ({"a"}, {"a", "b", "c"}, {"a", "b"})

    assert find_refused_options("abc", {}, run_query) is None


def test_an_option_that_works_with_another_is_not_blamed_alone() -> None:
    """Option "a" is refused alone and supported with "b", as ragged offsets are with ragged statistics."""

    def run_query(kept: frozenset[str]) -> bool:
        return not ("a" in kept and "b" not in kept) and not {"a", "c"} <= kept

    assert find_refused_options("abc", {"b": ("a",)}, run_query) == RefusedOptions((("a", "c"),), ("a", "c"), True)


@pytest.mark.parametrize("unknown", [frozenset(), frozenset("ab")])
def test_unknown_outcomes_give_no_refused_option(unknown: frozenset[str]) -> None:
    refuses = FakeSupportCheck("ab")
    assert find_refused_options("abc", {}, lambda kept: None if kept == unknown else refuses(kept)) is None


def test_an_unknown_outcome_of_one_option_alone_is_not_reported() -> None:
    refuses = FakeSupportCheck("ab")
    found = find_refused_options("abc", {}, lambda kept: None if kept == {"a"} else refuses(kept))
    assert found == RefusedOptions((("a", "b"),), ("a", "b"), None)


def test_every_reported_set_of_options_is_refused_and_minimal() -> None:
    rng = random.Random(1)
    pairs = [set(one) for size in (1, 2, 3) for one in itertools.combinations(OPTION_NAMES, size)]
    for _ in range(300):
        refused = rng.sample(pairs, rng.choice((1, 1, 2, 3)))
        smallest = [one for one in refused if not any(other < one for other in refused)]
        found = find_refused_options(OPTION_NAMES, {}, FakeSupportCheck(*map("".join, refused)))
        assert found is not None
        assert all(set(one) in smallest for one in found.sets), (refused, found)
        singles = [one for one in smallest if len(one) == 1]
        if singles and not found.remedies:
            assert set(found.sets[0]) in singles, (refused, found)
