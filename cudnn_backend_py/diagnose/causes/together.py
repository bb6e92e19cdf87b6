"""Find options of attention that are refused alone or in combination, by judging variations."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from ...graph import Graph
from ...rewrite.changes import Change, iterate_changes
from ...rewrite.unusual import OTHER_RESULTS
from ..verdict import Basis, Cause
from .case import RefusalCase, blame_change, format_reason_quote, format_reason_statement
from .options import AttentionOption, AttentionOptions
from .refused_part import RefusedOptions, find_refused_options
from .registry import format_supporting_targets_remedy

__all__ = [
    "OPTION_CHANGE_KINDS",
    "REFUSED_ALONE_DETAIL",
    "blame_combined_options",
    "blame_options_if_named_one_is_supported",
    "blame_refused_attention_options",
    "format_option_name",
]

# Kinds of changes that leave out an option of attention.
OPTION_CHANGE_KINDS = ("drop_dropout", "drop_bias", "mask", "drop_stats")

REFUSED_ALONE_DETAIL = "judged in attention without other options: refused with {}, supported without"
_REFUSED_TOGETHER_DETAIL = "judged with all of these: refused; without any one of them: supported"


def blame_refused_attention_options(case: RefusalCase) -> Cause | None:
    """Return the cause with the options refused alone or in combination; None if unknown or all are supported.

    Problem
        Any.
    Evidence
        The same problem with one option alone, and with all but one; for sizes, with smaller ones.
    Remedy
        Without one of them, or where all are supported.
    Since
        Any version.
    """
    blame, options = case.refused_options, case.options
    if blame is None or options is None:
        return _blame_options_to_remove(case) if options is None and case.is_attention else None
    if not blame.options:
        return None
    parts = [_describe_refused_option_set(case, options, one, blame) for one in blame.sets]
    patterns = [options.found[key].pattern for key in blame.options]
    fitting = [
        one
        for one in case.specific_reasons
        if any(re.search(pattern, format_reason_statement(one)) for pattern in patterns)
    ]
    headline = "; and also ".join(parts) + next(filter(None, map(format_reason_quote, fitting)), "")
    remedies = [_format_options_remedy(case, options, blame)]
    if others := case.supporting_architectures:
        headline += f"; {', '.join(others)} support{'s' if len(others) == 1 else ''} the graph"
        remedies.append(format_supporting_targets_remedy(others))
    remedy = "; or ".join(filter(None, remedies))
    single = all(len(one) == 1 for one in blame.sets)
    detail = (
        REFUSED_ALONE_DETAIL.format("it" if len(blame.sets) == 1 else "each of them")
        if single
        else _REFUSED_TOGETHER_DETAIL
    )
    return Cause("option", headline, Basis.MEASURED, detail, remedy)


def _format_options_remedy(case: RefusalCase, options: AttentionOptions, blame: RefusedOptions) -> str:
    """Return a text with the options to leave out if that makes the graph supported, else an empty text."""

    def is_supported_without(gone: Sequence[str]) -> bool:
        graph = options.graph([key for key in options.found if not options.add_needed_options([key]) & set(gone)])
        return graph is not None and case.supports(graph)

    if blame.remedies:  # these were queried, but not built
        kept = [key for key in blame.remedies if case.budget is None or is_supported_without([key])]
        return _format_option_replacements([options.found[key] for key in kept], " or ")
    together = [one[-1] for one in blame.sets]
    return (
        _format_option_replacements([options.found[key] for key in together], " and ")
        if is_supported_without(together)
        else ""
    )


def _format_option_replacements(options: Sequence[AttentionOption], word: str) -> str:
    """Return text that lists replacements of options, first those that preserve the results."""
    dropped = word.join(option.name for option in options if not option.instead)
    found = [option.instead for option in options if option.instead]
    return word.join([*found, *([f"without {dropped}, {OTHER_RESULTS}"] if dropped else [])])


def _describe_refused_option_set(
    case: RefusalCase, options: AttentionOptions, keys: Sequence[str], blame: RefusedOptions
) -> str:
    """Describe one refused set of options for a headline."""
    names = [options.found[key].name for key in keys]
    where = f"not supported on sm_{case.target.sm}"
    for key in keys:
        if limit := _describe_supported_option_sizes(case, options, key, keys):
            beside = " together with ".join(options.found[other].name for other in keys if other != key)
            beside = f" together with {beside}" if beside else ""
            return f"{options.found[key].name}{beside}: {where}, {limit}"
    if len(keys) == 1:
        return f"{names[0]}: {where}"
    return f"{' together with '.join(names)}: {where}" + (", though each alone is" if blame.alone else "")


_HEAD_DIM_STEP = 8  # of head dims


def _describe_supported_option_sizes(
    case: RefusalCase, options: AttentionOptions, key: str, keys: Sequence[str]
) -> str:
    """Find the supported sizes of an option by judging; return them as text, empty for options without a size."""
    option, kept = options.found[key], options.add_needed_options(keys)
    if not option.sizes:
        return ""

    def is_supported_with(size: int) -> bool:
        graph = options.graph(kept, **dict.fromkeys(option.sizes, size))
        return graph is not None and case.passes_support_check(graph)

    low, high = option.plain[option.sizes[0]] // _HEAD_DIM_STEP, -(-option.size // _HEAD_DIM_STEP)
    if option.size % _HEAD_DIM_STEP and is_supported_with(high * _HEAD_DIM_STEP):
        return f"{high * _HEAD_DIM_STEP} is"
    if low >= high or not is_supported_with(low * _HEAD_DIM_STEP):
        return ""
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if is_supported_with(middle * _HEAD_DIM_STEP) else (low, middle)
    return f"at most {low * _HEAD_DIM_STEP} is"


def blame_options_if_named_one_is_supported(case: RefusalCase, key: str) -> Cause | None:
    """Return the cause if cuDNN refuses other options, and not the option that its reason names."""
    blame = case.refused_options
    return None if blame is None or not blame.options or key in blame.options else blame_refused_attention_options(case)


def blame_combined_options(case: RefusalCase, key: str) -> Cause | None:
    """Return the cause if the option that the reason names is refused only in combination with others."""
    blame = case.refused_options
    return (
        blame_refused_attention_options(case)
        if blame is not None and any(key in one and len(one) > 1 for one in blame.sets)
        else None
    )


# graphs that are no attention problem known here


def _blame_options_to_remove(case: RefusalCase) -> Cause | None:
    """Find which options must be removed to make the graph supported, and return them as the cause.

    The data type of one tensor comes before that: an option may be refused only for the type of what it writes.
    """
    if not case.measure:
        return None
    typed = case.find_remedy("intermediate_type", "data_type", keep=lambda one: len(one.tensors) == 1)
    if typed is not None:
        return blame_change("data-type", case, typed)
    cures = case.find_remedies(*OPTION_CHANGE_KINDS)
    if not cures:
        return None
    offered = [change.title for change in _iterate_option_removals(case.graph)]

    def judge_with_options(kept: frozenset[str]) -> bool | None:
        reduced = _remove_options(case.graph, kept)
        return None if reduced is None else case.judge_variation(reduced)

    blame = find_refused_options(offered, {}, judge_with_options)
    named = [change for change in cures if blame is not None and change.title in blame.options]
    remedy = " or ".join(f"{change.title} ({change.effect})" for change in (named or cures)[:3])
    if blame is None or not blame.options:
        names = " or ".join(format_option_name(change.title) for change in cures[:3])
        headline = f"without {names} the graph is supported on sm_{case.target.sm}"
        detail = "whether it is refused alone is not known"
        return Cause("option", headline + _format_first_specific_quote(case), Basis.MEASURED, detail, remedy)
    parts = []
    for one in blame.sets:
        beside = ", though each alone is" if blame.alone and len(one) > 1 else ""
        names = " together with ".join(map(format_option_name, one))
        parts.append(f"{names}: not supported in this graph on sm_{case.target.sm}{beside}")
    single = all(len(one) == 1 for one in blame.sets)
    left_out = (
        "without the graph's other biases, masks, statistics and dropout: refused; also without this one: supported"
    )
    headline = "; and also ".join(parts) + _format_first_specific_quote(case)
    return Cause("option", headline, Basis.MEASURED, left_out if single else _REFUSED_TOGETHER_DETAIL, remedy)


def _iterate_option_removals(graph: Graph) -> Iterator[Change]:
    """Yield a change of the graph for each option: the graph without it."""
    several = (" and its gradient ", "without any mask")
    return (
        one
        for one in iterate_changes(graph, OPTION_CHANGE_KINDS)
        if not any(words in one.title for words in several) and one.graphs
    )


def _format_first_specific_quote(case: RefusalCase) -> str:
    return next(filter(None, map(format_reason_quote, case.specific_reasons)), "")


def _remove_options(graph: Graph, kept: frozenset[str]) -> Graph | None:
    """Return the graph with only the options `kept`, each given by the title of the change that removes it."""
    for _ in range(8):
        change = next((one for one in _iterate_option_removals(graph) if one.title not in kept), None)
        if change is None:
            return graph
        graph = change.graph
    return None


def format_option_name(title: str) -> str:
    """Return the option that a change with this title removes."""
    return title.removeprefix("without ").removesuffix(" (the other outputs are the same)")
