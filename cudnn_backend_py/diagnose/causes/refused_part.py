"""Find the options that cuDNN refuses, alone or in combination, by judging few variations.

"Without X it works" alone does not say that X is refused: leaving out Y may help as well, and X may be supported by
itself. So each option is left out once, and what that leaves is judged by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping

from ...frozen import FrozenValue

__all__ = ["RefusedOptions", "SupportQuery", "find_refused_options"]

SupportQuery = Callable[[frozenset[str]], bool | None]

_MAX_REFUSED_SETS = 3  # that are looked for: each is enough for a refusal


class RefusedOptions(FrozenValue):
    """The sets of options that cuDNN refuses, and the options that make the problem supported if left out.

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
    remedies: tuple[str, ...] = ()
    alone: bool | None = None

    @property
    def options(self) -> tuple[str, ...]:
        """All options that are part of a refused set."""
        return tuple(dict.fromkeys(option for one in self.sets for option in one))


def find_refused_options(
    options: Iterable[str], needs: Mapping[str, Collection[str]], run_query: SupportQuery
) -> RefusedOptions | None:
    """Return the smallest refused sets of options; None if cuDNN's answers identify no set.

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
    return _RefusedOptionSearch(tuple(options), needs, run_query).find_refused_sets()


class _RefusedOptionSearch:
    def __init__(self, options: tuple[str, ...], needs: Mapping[str, Collection[str]], run_query: SupportQuery) -> None:
        self.options = options
        self.needs = {one: {other for other in needs.get(one, ()) if other in options} for one in options}
        self._ask = run_query
        self._answers: dict[frozenset[str], bool | None] = {frozenset(options): False}

    def _is_supported_with(self, kept: Collection[str]) -> bool | None:
        key = self._add_needed_options(kept)
        if key not in self._answers:
            self._answers[key] = self._ask(key)
        return self._answers[key]

    def _add_needed_options(self, kept: Collection[str]) -> frozenset[str]:
        """Return these options and all others that they require."""
        whole, waiting = set(), list(kept)
        while waiting:
            one = waiting.pop()
            if one not in whole:
                whole.add(one)
                waiting += self.needs[one]
        return frozenset(whole)

    def _remove_option(self, kept: Collection[str], gone: str) -> frozenset[str]:
        """Return the options without one of them and without those that require it."""
        return frozenset(one for one in kept if gone not in self._add_needed_options([one]))

    def _drop_implied_options(self, kept: Collection[str]) -> tuple[str, ...]:
        """Return options in order, without those that other options of the set require anyway."""
        implied = {need for one in kept for need in self._add_needed_options([one]) - {one}}
        return tuple(one for one in self.options if one in kept and one not in implied)

    def find_refused_sets(self) -> RefusedOptions | None:
        plain = self._is_supported_with(())
        if plain is not True:
            return None if plain is None else RefusedOptions(((),))
        cures = tuple(
            one for one in self.options if self._is_supported_with(self._remove_option(self.options, one)) is True
        )
        sets: list[tuple[str, ...]] = []
        left = frozenset(self.options)
        while len(sets) < _MAX_REFUSED_SETS and self._is_supported_with(left) is False:
            found = self._find_refused_option_sets(left, () if sets else cures)
            if not found:
                break
            sets += found
            for one in found:
                left = self._remove_option(left, one[-1])
        several = [one for named in sets if len(named) > 1 for one in named]
        answers = [self._is_supported_with([one]) for one in several]
        if False in answers:  # refused by itself, yet leaving out another helps: it is not that simple
            return self._search_with_dependent_options(several[answers.index(False)])
        return (
            RefusedOptions(
                tuple(sets), self._drop_implied_options(cures), None if None in answers or not answers else True
            )
            if sets
            else None
        )

    def _search_with_dependent_options(self, option: str) -> RefusedOptions | None:
        """Search again with an option and all that require it treated as one option, as it may be supported only so."""
        more = frozenset(one for one in self.options if one != option and option in self._add_needed_options([one]))
        if not more:
            return None
        rest = tuple(one for one in self.options if one not in more)
        return _RefusedOptionSearch(
            rest, self.needs, lambda kept: self._is_supported_with(kept | more if option in kept else kept)
        ).find_refused_sets()

    def _find_refused_option_sets(self, options: frozenset[str], cures: Collection[str]) -> tuple[tuple[str, ...], ...]:
        """Return each option that is refused alone; if none is, one minimal set of options refused in combination."""
        core = self._add_needed_options(cures)
        single = self._find_options_refused_alone(
            [one for one in self.options if one in options and core <= self._add_needed_options([one])]
        )
        if single:
            return single
        found = self._find_minimal_refused_set(options, core)
        return (self._drop_implied_options(found),) if found else ()

    def _find_options_refused_alone(self, options: Collection[str]) -> tuple[tuple[str, ...], ...]:
        """Return the options refused alone, without those that only require a refused option."""
        alone = [one for one in options if self._is_supported_with([one]) is False]
        return tuple(
            (one,) for one in alone if not any(need in alone for need in self._add_needed_options([one]) - {one})
        )

    def _find_minimal_refused_set(self, options: frozenset[str], core: frozenset[str]) -> frozenset[str]:
        """Return a minimal refused set; empty if it could not be proven minimal.

        Those of the core are in every such set.
        """
        if core and self._is_supported_with(core) is False:
            return core
        left = options
        for one in self.options:
            less = self._remove_option(left, one)
            if one not in left or one in core or not core <= less:
                continue
            answer = self._is_supported_with(less)
            if answer is None:
                return frozenset()
            left = left if answer else less
        return left
