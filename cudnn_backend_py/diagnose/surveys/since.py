"""``since``: the range of versions that support a graph."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any

from ...errors import UsageError
from ...graph import Graph
from ...graph.ir import check_graph
from ...printable import format_in_angle_brackets
from ...system.notebook import HtmlDisplay
from ...system.version import JIT_SINCE, parse_leading_numbers
from ..judges import Judge
from ..query import GPU, Query, read_target
from ..verdict import Outcome
from .inputs import DEFAULT_VERSION, available_versions, find_version_this_process_loads, read_judging_environments
from .matrix import Cell, MatrixCellCache

__all__ = ["Since", "since"]

SupportCheck = Callable[[str], bool | None]
_MOST_VERSIONS_WITHOUT_BISECTION = 16  # some 0.8 s each: some graphs are refused again by versions in between


@dataclass(frozen=True, slots=True, repr=False)
class Since(HtmlDisplay):
    """The first and last cuDNN version that supports a graph on a target, of ``versions`` (oldest first).

    Attributes
    ----------
    first, last
        None if none of ``asked`` supports it.
    first_after
        The first version after ``last`` that was queried and refuses it; None if there is none.
    asked
        The verdicts by version. Of the others nothing is known: bisection assumes that support begins and ends once.
    """

    graph: str
    target: str
    versions: tuple[str, ...]
    asked: Mapping[str, Cell]

    def __repr__(self) -> str:
        span = f"{self.first} to {self.last}" if self.first else "no version"
        return format_in_angle_brackets(
            f"Since {self.graph!r} on {self.target}: {span}, {len(self.asked)} of {len(self.versions)} judged"
        )

    @property
    def first(self) -> str | None:
        return next(iter(self._list_supporting_versions()), None)

    @property
    def last(self) -> str | None:
        return next(reversed(self._list_supporting_versions()), None)

    @property
    def first_after(self) -> str | None:
        if self.last is None:
            return None
        later = self.versions[self.versions.index(self.last) + 1 :]
        return next((one for one in later if self._has_outcome(one, Outcome.NOT_SUPPORTED)), None)

    @property
    def gaps(self) -> tuple[str, ...]:
        """Versions between first and last that refuse the graph, so that support is not monotone."""
        if self.first is None or self.last is None:
            return ()
        span = self.versions[self.versions.index(self.first) : self.versions.index(self.last) + 1]
        return tuple(one for one in span if self._has_outcome(one, Outcome.NOT_SUPPORTED))

    @property
    def repaired(self) -> tuple[str, ...]:
        """Known issues of the last supporting version that are gone in the next one, which refuses the graph."""
        if self.last is None or self.first_after is None:
            return ()
        later = self._list_known_issues(self.first_after)
        return tuple(issue for issue in self._list_known_issues(self.last) if issue not in later)

    @property
    def sound(self) -> str | None:
        """The newest version that supports the graph and has no issue in ``repaired``; None if there is none."""
        repaired = set(self.repaired)
        return next(
            (
                one
                for one in self._list_supporting_versions()[::-1]
                if repaired.isdisjoint(self._list_known_issues(one))
            ),
            None,
        )

    @property
    def monotone(self) -> bool:
        """Whether support has no gaps, as bisection assumes."""
        return not self.gaps

    @property
    def unjudged(self) -> tuple[str, ...]:
        """Versions that were tried but gave no verdict, as when engines are missing."""
        return tuple(one for one in self.versions if self._has_outcome(one, Outcome.NOT_JUDGED))

    @property
    def open_before(self) -> tuple[str, ...]:
        """Unjudged versions just before the first supporting one: support may have begun with one of them."""
        return (
            ()
            if self.first is None
            else self._list_leading_unjudged_versions(reversed(self.versions[: self.versions.index(self.first)]))
        )

    @property
    def open_after(self) -> tuple[str, ...]:
        """Unjudged versions just after the last supporting one: support may have ended later."""
        return (
            ()
            if self.last is None
            else self._list_leading_unjudged_versions(self.versions[self.versions.index(self.last) + 1 :])
        )

    @property
    def missing_before(self) -> tuple[str, ...]:
        """Minor versions just before ``first`` that are not among the versions: support may have begun with one."""
        if self.first is None:
            return ()
        place = self.versions.index(self.first)
        return self._list_missing_versions(self.versions[place - 1] if place else "", self.first)

    @property
    def missing_after(self) -> tuple[str, ...]:
        """Minor versions just after ``last`` that are not among the versions: support may have ended with one."""
        return () if self.last is None else self._list_missing_versions(self.last, self.first_after or "")

    @property
    def inferred_versions(self) -> tuple[str, ...]:
        """Versions that were not judged: their verdict is inferred by bisection."""
        return tuple(one for one in self.versions if one not in self.asked)

    @property
    def exit_code(self) -> int:
        """0 if there is a ``sound`` version, else 1; 2 if no version supports the graph and one gave no verdict."""
        if self.first is not None:
            return int(self.sound is None)
        if any(cell.outcome is Outcome.NOT_JUDGED and not cell.crashed for cell in self.asked.values()):
            return 2
        return 1 if any(cell.outcome is Outcome.NOT_SUPPORTED for cell in self.asked.values()) else 2

    def to_dict(self) -> dict[str, Any]:
        """Return the range of versions as plain data."""
        return {
            "graph": self.graph,
            "target": self.target,
            "first": self.first,
            "last": self.last,
            "first_after": self.first_after,
            "repaired": list(self.repaired),
            "sound": self.sound,
            "monotone": self.monotone,
            "unjudged": list(self.unjudged),
            "open_before": list(self.open_before),
            "open_after": list(self.open_after),
            "versions": list(self.versions),
            "asked": {version: asdict(cell) for version, cell in self.asked.items()},
        }

    def _list_missing_versions(self, older: str, newer: str) -> tuple[str, ...]:
        """Return the minor versions between two; those from the first with a JIT wheel on if `older` is empty."""
        before = parse_leading_numbers(older)[:2] if older else (JIT_SINCE[0], JIT_SINCE[1] - 1)
        after = parse_leading_numbers(newer)[:2]
        if len(before) < 2 or len(after) < 2 or before[0] != after[0]:
            return ()
        there = {parse_leading_numbers(version)[:2] for version in self.versions}
        minors = ((after[0], minor) for minor in range(before[1] + 1, after[1]))
        return tuple(f"{major}.{minor}" for major, minor in minors if (major, minor) not in there)

    def _list_known_issues(self, version: str) -> tuple[str, ...]:
        return self.asked[version].hazards

    def _has_outcome(self, version: str, outcome: Outcome) -> bool:
        return version in self.asked and self.asked[version].outcome is outcome

    def _list_leading_unjudged_versions(self, versions: Iterable[str]) -> tuple[str, ...]:
        """Return the leading versions that gave no verdict, up to the first that gave one or crashed."""
        asked = (one for one in versions if one in self.asked)
        return tuple(takewhile(lambda one: self.asked[one].letter == "?", asked))

    def _list_supporting_versions(self) -> list[str]:
        return [one for one in self.versions if self._has_outcome(one, Outcome.SUPPORTED)]


def since(
    graph: Graph,
    target: str,
    versions: Mapping[str, str | None] | Iterable[str | None] | None = None,
    *,
    build: bool = False,
    every: bool = False,
    fresh: bool = False,
    cache: Path | None = None,
    limit_s: float = 60.0,
) -> Since:
    """Return the first and last cuDNN version that supports a graph on a target.

    Up to 16 versions are all judged; of more, only with ``every``. Else the oldest and the newest are judged, then by
    bisection the edges between them, which assumes that support begins once and ends once; where both ends refuse,
    versions between are judged until one supports the graph. A version that cannot judge is passed over.

    Parameters
    ----------
    target, versions, build, fresh, cache, limit_s
        As for :func:`matrix`; the order of ``versions`` does not matter.

    Raises
    ------
    UsageError
        ``matrix-empty``, ``unknown-target``.
    EnvironmentNotReady
        ``cudnn-version-not-installed``.
    """
    check_graph(graph)
    given = read_judging_environments(available_versions() if versions is None else versions)
    setups = {
        (find_version_this_process_loads() or DEFAULT_VERSION) if name == DEFAULT_VERSION else name: setup
        for name, setup in given.items()
    }
    if not setups:
        raise UsageError(
            "there are no cuDNN versions to judge", code="matrix-empty", fix="give at least one installed version"
        )
    profile = read_target(target) or GPU
    ordered = sorted(setups, key=parse_leading_numbers)
    answers = MatrixCellCache(cache, fresh=fresh)
    asked: dict[str, Cell] = {}
    with Judge(limit_s=limit_s) as children:

        def is_supported_by(version: str) -> bool | None:
            if version not in asked:
                question = Query(graph, profile, setups[version], build=build or None)
                asked[version] = answers.get_or_judge(question, children)
            outcome = asked[version].outcome
            return None if outcome is Outcome.NOT_JUDGED else outcome is Outcome.SUPPORTED

        if every or len(ordered) <= _MOST_VERSIONS_WITHOUT_BISECTION:
            for version in ordered:
                is_supported_by(version)
        else:
            _bisect_supporting_version_range(list(ordered), is_supported_by)
    return Since(graph.name, target, tuple(ordered), {one: asked[one] for one in ordered if one in asked})


def _bisect_supporting_version_range(versions: list[str], supports: SupportCheck) -> None:
    """Bisect to the first and last version that support a graph; `versions` are sorted, oldest first."""
    while versions and supports(versions[0]) is None:
        versions.pop(0)
    while versions and supports(versions[-1]) is None:
        versions.pop()
    if not versions:
        return
    oldest, newest = supports(versions[0]), supports(versions[-1])
    if oldest != newest:
        _bisect_to_support_change(versions, supports)
    elif not oldest:
        inside = next(
            (index for index in _iterate_indices_in_bisection_order(len(versions)) if supports(versions[index])), None
        )
        if inside is not None:
            _bisect_to_support_change(versions[: inside + 1], supports)
            _bisect_to_support_change(versions[inside:], supports)


def _bisect_to_support_change(versions: list[str], supports: SupportCheck) -> None:
    """Bisect to two neighbouring versions of which one supports the graph; the ends of `versions` differ in that."""
    while len(versions) > 2:
        middle = len(versions) // 2
        answer = supports(versions[middle])
        if answer is None:
            versions = versions[:middle] + versions[middle + 1 :]
        else:
            versions = versions[middle:] if answer == supports(versions[0]) else versions[: middle + 1]


def _iterate_indices_in_bisection_order(count: int) -> Iterator[int]:
    """Yield the indices of a list in probing order: the middle, the quarters, the eighths, ..."""
    parts = 2
    seen = set()
    while parts <= 2 * count:
        for numerator in range(1, parts, 2):
            index = count * numerator // parts
            if index not in seen:
                seen.add(index)
                yield index
        parts *= 2
