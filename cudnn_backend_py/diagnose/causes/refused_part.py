"""Search for refused options, alone or in combination, with few judged variations.

"Without X it works" alone does not say that X is refused: leaving out Y may help as well, and X may be supported by
itself. So each option is left out once, and what that leaves is judged by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass

__all__ = ["Ask", "Blame", "find_blame"]

Ask = Callable[[frozenset[str]], bool | None]

_SETS = 3  # that are looked for: each is enough for a refusal


@dataclass(frozen=True)
class Blame:
    """The refused options found.

    Parameters
    ----------
    sets
        The refused options: each set is refused by itself, and is supported less any one of its options. An empty set:
        the plain problem is refused as well. Of several sets each is enough.
    remedies
        Options without any one of which, and with all others, the problem is supported.
    alone
        Of a set of several options: whether each of them is supported by itself; None where one was not asked.
    """

    sets: tuple[tuple[str, ...], ...]
    cures: tuple[str, ...] = ()
    alone: bool | None = None

    @property
    def options(self) -> tuple[str, ...]:
        """All options of the sets."""
        return tuple(dict.fromkeys(option for one in self.sets for option in one))


def find_blame(options: Iterable[str], needs: Mapping[str, Collection[str]], run_query: Ask) -> Blame | None:
    """Return the smallest refused sets of options; None where cuDNN's answers show none.

    Parameters
    ----------
    options
        The options of a refused problem.
    needs
        Which other options an option cannot be without, such as the gradient of a bias without the bias.
    ask
        Whether a problem with these options, and no others, is supported; None where that is not known.

    Notes
    -----
    For n options some ``3 n`` questions. More options are taken to be no easier; where answers contradict that
    in a way that matters, None is returned.
    """
    return _Search(tuple(options), needs, run_query).blame()


class _Search:
    def __init__(self, options: tuple[str, ...], needs: Mapping[str, Collection[str]], run_query: Ask) -> None:
        self.options = options
        self.needs = {one: {other for other in needs.get(one, ()) if other in options} for one in options}
        self._ask = run_query
        self._answers: dict[frozenset[str], bool | None] = {frozenset(options): False}

    def _is_supported(self, kept: Collection[str]) -> bool | None:
        key = self._with_needed(kept)
        if key not in self._answers:
            self._answers[key] = self._ask(key)
        return self._answers[key]

    def _with_needed(self, kept: Collection[str]) -> frozenset[str]:
        """Return these options and all that they need."""
        whole, waiting = set(), list(kept)
        while waiting:
            one = waiting.pop()
            if one not in whole:
                whole.add(one)
                waiting += self.needs[one]
        return frozenset(whole)

    def _without(self, kept: Collection[str], gone: str) -> frozenset[str]:
        """Return options without one, and without those that need it."""
        return frozenset(one for one in kept if gone not in self._with_needed([one]))

    def _drop_implied(self, kept: Collection[str]) -> tuple[str, ...]:
        """Return options in order, without those implied by others."""
        implied = {need for one in kept for need in self._with_needed([one]) - {one}}
        return tuple(one for one in self.options if one in kept and one not in implied)

    def blame(self) -> Blame | None:
        plain = self._is_supported(())
        if plain is not True:
            return None if plain is None else Blame(((),))
        cures = tuple(one for one in self.options if self._is_supported(self._without(self.options, one)) is True)
        sets: list[tuple[str, ...]] = []
        left = frozenset(self.options)
        while len(sets) < _SETS and self._is_supported(left) is False:
            found = self._find_refused_sets(left, () if sets else cures)
            if not found:
                break
            sets += found
            for one in found:
                left = self._without(left, one[-1])
        several = [one for named in sets if len(named) > 1 for one in named]
        answers = [self._is_supported([one]) for one in several]
        if False in answers:  # refused by itself, yet leaving out another helps: it is not that simple
            return self._with_dependents(several[answers.index(False)])
        return (
            Blame(tuple(sets), self._drop_implied(cures), None if None in answers or not answers else True)
            if sets
            else None
        )

    def _with_dependents(self, option: str) -> Blame | None:
        """Search again with an option and its dependents as a unit, which may be supported where it alone is not."""
        more = frozenset(one for one in self.options if one != option and option in self._with_needed([one]))
        if not more:
            return None
        rest = tuple(one for one in self.options if one not in more)
        return _Search(
            rest, self.needs, lambda kept: self._is_supported(kept | more if option in kept else kept)
        ).blame()

    def _find_refused_sets(self, options: frozenset[str], cures: Collection[str]) -> tuple[tuple[str, ...], ...]:
        """Return the options refused by themselves, else one refused set, with everything that remedies it."""
        core = self._with_needed(cures)
        single = self._find_refused_alone(
            [one for one in self.options if one in options and core <= self._with_needed([one])]
        )
        if single:
            return single
        found = self._find_minimal_set(options, core)
        return (self._drop_implied(found),) if found else ()

    def _find_refused_alone(self, options: Collection[str]) -> tuple[tuple[str, ...], ...]:
        """Return the options refused by themselves rather than because of what they need."""
        alone = [one for one in options if self._is_supported([one]) is False]
        return tuple((one,) for one in alone if not any(need in alone for need in self._with_needed([one]) - {one}))

    def _find_minimal_set(self, options: frozenset[str], core: frozenset[str]) -> frozenset[str]:
        """Return a minimal refused set; empty where minimality is not known.

        Those of the core are in every such set.
        """
        if core and self._is_supported(core) is False:
            return core
        left = options
        for one in self.options:
            less = self._without(left, one)
            if one not in left or one in core or not core <= less:
                continue
            answer = self._is_supported(less)
            if answer is None:
                return frozenset()
            left = left if answer else less
        return left
