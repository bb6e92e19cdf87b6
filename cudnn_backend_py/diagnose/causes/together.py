"""Causes about options of attention, refused alone or in combination, found by judging variations."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from ...graph import Graph
from ...rewrite.changes import Change, changes
from ..verdict import Basis, Cause
from .case import Case, quote, statement
from .options import Option, Options
from .refused_part import Blame, find_blame

__all__ = ["ALONE", "OPTIONS", "blame_beside", "blame_others", "options_refused"]

# Kinds of changes that leave out an option of attention.
OPTIONS = ("drop_dropout", "drop_bias", "mask", "drop_stats")

ALONE = "judged in attention without other options: refused with {}, supported without"
_TOGETHER = "judged with all of these: refused; without any one of them: supported"


def options_refused(case: Case) -> Cause | None:
    """Return the cause about refused options, alone or in combination; None where unknown or none is refused.

    Problem
        Any.
    Evidence
        The same problem with one option alone, and with all but one; for sizes, with smaller ones.
    Remedy
        Without one of them, or where all are supported.
    Since
        Any version.
    """
    blame, options = case.blame, case.options
    if blame is None or options is None:
        return _find_refused_changes(case) if options is None and case.is_attention else None
    if not blame.options:
        return None
    parts = [_describe_set(case, options, one, blame) for one in blame.sets]
    patterns = [options.found[key].pattern for key in blame.options]
    fitting = [one for one in case.specific_reasons if any(re.search(pattern, statement(one)) for pattern in patterns)]
    headline = "; and also ".join(parts) + next(filter(None, map(quote, fitting)), "")
    remedies = [_find_remedy(case, options, blame)]
    if others := case.supporting_architectures:
        headline += f"; {', '.join(others)} support{'s' if len(others) == 1 else ''} the graph"
        remedies.append(", ".join(others))
    remedy = "; or ".join(filter(None, remedies))
    single = all(len(one) == 1 for one in blame.sets)
    detail = ALONE.format("it" if len(blame.sets) == 1 else "each of them") if single else _TOGETHER
    return Cause("option", headline, Basis.MEASURED, detail, remedy)


def _find_remedy(case: Case, options: Options, blame: Blame) -> str:
    """Return the options to leave out if that was judged to help, else an empty text."""

    def helps(gone: Sequence[str]) -> bool:
        graph = options.graph([key for key in options.found if not options.whole([key]) & set(gone)])
        return graph is not None and case.supports(graph)

    if blame.cures:  # these were queried, but not built
        kept = [key for key in blame.cures if case.budget is None or helps([key])]
        return _find_replacements([options.found[key] for key in kept], " or ")
    together = [one[-1] for one in blame.sets]
    return _find_replacements([options.found[key] for key in together], " and ") if helps(together) else ""


def _find_replacements(options: Sequence[Option], word: str) -> str:
    """Return replacements of options, those with equal results first."""
    dropped = word.join(option.name for option in options if not option.instead)
    found = [option.instead for option in options if option.instead]
    return word.join([*found, *([f"without {dropped}, which computes something else"] if dropped else [])])


def _describe_set(case: Case, options: Options, keys: Sequence[str], blame: Blame) -> str:
    """Describe one refused set of options for a headline."""
    names = [options.found[key].name for key in keys]
    where = f"not supported on sm_{case.target.sm}"
    for key in keys:
        if limit := _limit(case, options, key, keys):
            beside = " together with ".join(options.found[other].name for other in keys if other != key)
            beside = f" together with {beside}" if beside else ""
            return f"{options.found[key].name}{beside}: {where}, {limit}"
    if len(keys) == 1:
        return f"{names[0]}: {where}"
    return f"{' together with '.join(names)}: {where}" + (", though each alone is" if blame.alone else "")


_STEP = 8  # of head dims


def _limit(case: Case, options: Options, key: str, keys: Sequence[str]) -> str:
    """Return the supported sizes with these options, found by judging; empty for options without a size."""
    option, kept = options.found[key], options.whole(keys)
    if not option.sizes:
        return ""

    def supported(size: int) -> bool:
        graph = options.graph(kept, **dict.fromkeys(option.sizes, size))
        return graph is not None and case.passes(graph)

    low, high = option.plain[option.sizes[0]] // _STEP, -(-option.size // _STEP)
    if option.size % _STEP and supported(high * _STEP):
        return f"{high * _STEP} is"
    if low >= high or not supported(low * _STEP):
        return ""
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if supported(middle * _STEP) else (low, middle)
    return f"at most {low * _STEP} is"


def blame_others(case: Case, key: str) -> Cause | None:
    """Return the cause where other options are refused than the one named in the reason."""
    blame = case.blame
    return None if blame is None or not blame.options or key in blame.options else options_refused(case)


def blame_beside(case: Case, key: str) -> Cause | None:
    """Return the cause where the option named in the reason is refused only in combination with others."""
    blame = case.blame
    return (
        options_refused(case) if blame is not None and any(key in one and len(one) > 1 for one in blame.sets) else None
    )


# graphs that are no attention problem known here


def _find_refused_changes(case: Case) -> Cause | None:
    """Return the refused options among those that changes of the graph remove."""
    if not case.measure:
        return None
    cures = case.find_remedies(*OPTIONS)
    if not cures:
        return None
    offered = [change.title for change in _iterate_offered(case.graph)]

    def run_query(kept: frozenset[str]) -> bool | None:
        reduced = _leave_out(case.graph, kept)
        return None if reduced is None else case.run_query(reduced)

    blame = find_blame(offered, {}, run_query)
    named = [change for change in cures if blame is not None and change.title in blame.options]
    remedy = " or ".join(f"{change.title} ({change.effect})" for change in (named or cures)[:3])
    if blame is None or not blame.options:
        names = " or ".join(_option_name(change.title) for change in cures[:3])
        headline = f"without {names} the graph is supported on sm_{case.target.sm}"
        detail = "whether it is refused alone is not known"
        return Cause("option", headline + _quote_telling(case), Basis.MEASURED, detail, remedy)
    parts = []
    for one in blame.sets:
        beside = ", though each alone is" if blame.alone and len(one) > 1 else ""
        names = " together with ".join(map(_option_name, one))
        parts.append(f"{names}: not supported in this graph on sm_{case.target.sm}{beside}")
    single = all(len(one) == 1 for one in blame.sets)
    left_out = "the graph less its other biases, masks, statistics and dropout is refused, without it supported"
    headline = "; and also ".join(parts) + _quote_telling(case)
    return Cause("option", headline, Basis.MEASURED, left_out if single else _TOGETHER, remedy)


def _iterate_offered(graph: Graph) -> Iterator[Change]:
    """Yield the changes that each leave out one option."""
    several = (" and its gradient ", "without any mask")
    return (one for one in changes(graph, OPTIONS) if not any(words in one.title for words in several) and one.graphs)


def _quote_telling(case: Case) -> str:
    return next(filter(None, map(quote, case.specific_reasons)), "")


def _leave_out(graph: Graph, kept: frozenset[str]) -> Graph | None:
    """Return the graph with only these options, using the titles of the changes that leave the others out."""
    for _ in range(8):
        change = next((one for one in _iterate_offered(graph) if one.title not in kept), None)
        if change is None:
            return graph
        graph = change.graph
    return None


def _option_name(title: str) -> str:
    return title.removeprefix("without ").removesuffix(" (the others are the same)")
