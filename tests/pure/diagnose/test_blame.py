"""The search for refused options: compared with every set of options, for known refusals. Does not call cuDNN."""

from __future__ import annotations

import itertools
import random

import pytest

from cudnn_backend_py.diagnose.causes.refused_part import Blame, find_blame

OPTIONS = ("a", "b", "c", "d", "e")


class Refuses:
    """Refuses every set that contains one of these sets, and records its queries."""

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
def test_refused_options_are_found(
    refused: tuple[str, ...], sets: tuple[tuple[str, ...], ...], cures: tuple[str, ...], alone: bool | None
) -> None:
    run_query = Refuses(*refused)
    assert find_blame(OPTIONS, {}, run_query) == Blame(sets, cures, alone)
    assert len(run_query.queries) == len(set(run_query.queries)) <= 4 * len(OPTIONS)


def test_a_refused_plain_problem_names_no_option() -> None:
    run_query = Refuses("")
    assert find_blame(OPTIONS, {}, run_query) == Blame(((),))
    assert run_query.queries == [frozenset()]


def test_an_option_that_helps_is_not_named_alone() -> None:
    """Without "a" it works, and "a" alone works: then "a" alone is never named."""
    found = find_blame(OPTIONS, {}, Refuses("ae"))
    assert found is not None
    assert found.sets == (("a", "e"),)


@pytest.mark.parametrize(("refused", "sets"), [("ab", (("b",),)), ("a", (("a",),)), ("bc", (("b", "c"),))])
def test_option_that_needs_another_implies_it(refused: str, sets: tuple[tuple[str, ...], ...]) -> None:
    """Option "b" cannot exist without "a": it is judged with it, and named without it."""
    run_query = Refuses(refused)
    found = find_blame("abc", {"b": ("a",)}, run_query)
    assert found is not None
    assert found.sets == sets
    assert all("a" in kept for kept in run_query.queries if "b" in kept)


def test_contradictory_answers_name_no_option() -> None:
    """Option "a" is refused alone, but leaving out "b" helps."""

    def run_query(kept: frozenset[str]) -> bool:
        return kept not in ({"a"}, {"a", "b", "c"}, {"a", "b"})

    assert find_blame("abc", {}, run_query) is None


def test_option_that_is_supported_only_with_another_is_named_with_it() -> None:
    """Option "a" alone is refused and with "b" supported, as ragged offsets are with ragged statistics."""

    def run_query(kept: frozenset[str]) -> bool:
        return not ("a" in kept and "b" not in kept) and not {"a", "c"} <= kept

    assert find_blame("abc", {"b": ("a",)}, run_query) == Blame((("a", "c"),), ("a", "c"), True)


@pytest.mark.parametrize("unknown", [frozenset(), frozenset("ab")])
def test_unknown_outcomes_name_no_option(unknown: frozenset[str]) -> None:
    refuses = Refuses("ab")
    assert find_blame("abc", {}, lambda kept: None if kept == unknown else refuses(kept)) is None


def test_an_unknown_outcome_of_one_option_alone_is_not_reported() -> None:
    refuses = Refuses("ab")
    found = find_blame("abc", {}, lambda kept: None if kept == {"a"} else refuses(kept))
    assert found == Blame((("a", "b"),), ("a", "b"), None)


def test_every_set_named_is_refused_and_smallest() -> None:
    rng = random.Random(1)
    pairs = [set(one) for size in (1, 2, 3) for one in itertools.combinations(OPTIONS, size)]
    for _ in range(300):
        refused = rng.sample(pairs, rng.choice((1, 1, 2, 3)))
        smallest = [one for one in refused if not any(other < one for other in refused)]
        found = find_blame(OPTIONS, {}, Refuses(*map("".join, refused)))
        assert found is not None
        assert all(set(one) in smallest for one in found.sets), (refused, found)
        singles = [one for one in smallest if len(one) == 1]
        if singles and not found.cures:
            assert set(found.sets[0]) in singles, (refused, found)
