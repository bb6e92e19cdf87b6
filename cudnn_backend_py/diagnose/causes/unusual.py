"""Find unusual properties that are refused alone or in combination, for graphs other than attention.

As for options of attention, "without X it works" does not say that X is refused: each unusual thing is undone, and also
judged with all others undone.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain

from ...graph import Graph
from ...rewrite.change_sequence import EFFECTS
from ...rewrite.changes import Change
from ...rewrite.unusual import (
    OTHER_RESULTS,
    Deviation,
    find_operations_causing_unusual_properties,
    find_unusual_properties,
    undo_unusual_properties,
)
from ..verdict import Basis, Cause
from .case import RefusalCase, format_reason_quote, format_reason_statement, join_remedies
from .operations import explain_two_graphs
from .refused_part import RefusedOptions, SupportQuery, find_refused_options

__all__ = ["are_only_operations_refused", "blame_unusual_properties", "names_every_refused_property_set"]

_MAX_VARIATIONS = 48  # about one graph: some 5 ms each
_MAX_UNUSUAL_PROPERTIES = 16  # unusual things that are looked at
_MAX_REMEDIES = 3
_CODE_BY_PROPERTY = {
    "data type": "data-type",
    "compute type": "data-type",
    "layout": "layout",
    "alignment": "alignment",
    "order": "layout",
    "parameter": "parameter",
    "memory": "virtual",
    "broadcast": "shape",
    "size": "shape",
    "operation": "operation",
}
# What cuDNN's reasons call what a thing is about, and headlines do.
_PATTERN_BY_PROPERTY = {
    "data type": r"(?i)type|precision|fp\d+|int\d+|float|half|double|_T\b",
    "compute type": r"(?i)comput|math_?prec|accum|type",
    "layout": r"(?i)layout|stride|pack|nhwc|nchw|contiguous|major",
    "alignment": r"(?i)align",
    "order": r"(?i)reorder|F8_128x4",
    "parameter": r"(?i)alpha|beta|mode|group|stride|dilation|padding|nan|block|operator|reduc",
    "memory": r"(?i)virtual|in memory",
    "broadcast": r"(?i)broadcast|dim|shape",
    "size": r"(?i)multiple|channel|dim|size|shape|%",
    "operation": r"(?i)node|operation|pattern|fusion|GEMM",
}


def blame_unusual_properties(case: RefusalCase) -> Cause | None:
    """Return the cause that names refused unusual properties, alone or in combination; None if unknown.

    Problem
        Any; for a graph that is no attention.
    Evidence
        The graph with all of them undone is supported; with one of them alone it is refused, or with all but one
        supported.
    Remedy
        Each that remedies, undone.
    Since
        Any version.
    """
    found = _find_refused_properties(case)
    if found is None:
        return None
    blame, options = found
    sets = [[options[key] for key in one] for one in blame.sets]
    if all(one.aspect == "memory" for kept in sets for one in kept) and case.supporting_architectures:
        return None  # without an output it is another graph: architectures that support it as it is say more
    extra = [one[0] for one in sets if len(one) == 1 and one[0].aspect == "operation"]
    if len(extra) == len(sets) and (cut := explain_two_graphs(case)):
        return cut
    parts = [_describe_refused_properties(case, one, blame) for one in sets if one[0] not in extra or len(extra) == 1]
    if len(extra) > 1:
        names = ", ".join(one.what.removeprefix("operation ") for one in extra)
        parts.append(f"operations {names} do not fit into this graph")
    headline = "; and also ".join(parts) + _quote_first_message_on_properties(case, sets[0])
    aspects = [one.aspect for one in sets[0]]
    if set(blame.remedies) & set(blame.options):
        detail = "with only that property made usual, cuDNN supports the graph"
    else:
        detail = "judged without the graph's other unusual properties: refused with each of these, supported without"
    return Cause(
        _CODE_BY_PROPERTY[aspects[0]],
        headline,
        Basis.MEASURED,
        detail,
        _format_property_replacements(case, blame, options, sets),
    )


def names_every_refused_property_set(case: RefusalCase, headline: str) -> bool:
    """Return whether a headline names the tensors and properties of every refused set."""
    found = _find_refused_properties(case)
    if found is None:
        return True
    blame, options = found
    return all(
        _is_property_named(headline, one)
        for keys in blame.sets
        for one in _select_properties_to_report([options[key] for key in keys])
    )


def are_only_operations_refused(case: RefusalCase) -> bool:
    """Return whether only operations are refused, so that leaving them out is the only remedy."""
    found = _find_refused_properties(case)
    return found is not None and all(found[1][key].aspect == "operation" for keys in found[0].sets for key in keys)


def _select_properties_to_report(one: list[Deviation]) -> list[Deviation]:
    """Select the unusual properties to report of those refused together: operations only if there are no others."""
    return [item for item in one if item.aspect != "operation"] or one


def _is_property_named(headline: str, one: Deviation) -> bool:
    text = headline.partition(" (cuDNN: ")[0]
    after = r" \(" if one.aspect == "operation" else r"(?![\w.])"  # many are called as what they write
    named = any(re.search(rf"(?<![\w.]){re.escape(name)}{after}", text) for name in one.names)
    word = (
        one.key.rpartition(" ")[0].replace("_", " ") if one.aspect == "parameter" else _PATTERN_BY_PROPERTY[one.aspect]
    )
    return named and (one.aspect == "operation" or re.search(word, text) is not None)


def _find_refused_properties(case: RefusalCase) -> tuple[RefusedOptions, dict[str, Deviation]] | None:
    """Return the refused unusual properties by key, judged once per graph; None if there are none or if unknown."""
    if not case.measure or case.budget is not None or case.is_attention:
        return None
    if case.unusual is None:
        options = {one.key: one for one in find_unusual_properties(case.graph)[:_MAX_UNUSUAL_PROPERTIES]}
        case.unusual = (_find_refused_property_sets(case, options), options)
    blame, options = case.unusual
    return (blame, options) if blame is not None and blame.options else None


def _find_refused_property_sets(case: RefusalCase, options: dict[str, Deviation]) -> RefusedOptions | None:
    answers: dict[frozenset[str], bool | None] = {frozenset(options): False}
    deadly = False  # where one variation kills cuDNN, more do, and each costs another process

    def judge_with_properties(kept: frozenset[str]) -> bool | None:
        nonlocal deadly
        if kept not in answers:
            graph = undo_unusual_properties(case.graph, [one for key, one in options.items() if key not in kept])
            layouts = {name for key in kept if options[key].aspect == "layout" for name in options[key].names}
            if graph is not None and layouts & _find_resized_tensors(case.graph, graph):
                graph = None  # the new dims have packed strides, so that layout is undone too
            late = deadly or len(answers) > _MAX_VARIATIONS
            answers[kept] = None if graph is None or late else case.passes_support_check(graph)
            deadly = deadly or case.judged_variations in case.crashing_variations
        return answers[kept]

    if not options:
        return None
    blame = _find_smallest_refused_sets(case, options, judge_with_properties)
    if blame is not None:  # an operation alone may be refused because its inputs are then in memory
        others = [one for one in blame.sets if options[one[0]].aspect != "operation"]
        if 0 < len(others) < len(blame.sets) and judge_with_properties(frozenset(options) - {*chain(*others)}) is True:
            blame = replace(blame, sets=tuple(others))
    cures = [key for key in options if judge_with_properties(frozenset(options) - {key}) is True]
    of_it = [key for key in cures if options[key].aspect != "operation"]
    extra = blame is not None and all(options[key].aspect == "operation" for key in blame.options)
    if of_it and (blame is None or extra):  # whole patterns are known of which no part is
        return RefusedOptions((tuple(of_it[:1]),), tuple(cures))
    kept = [key for key in cures if OTHER_RESULTS not in options[key].title]  # without others it is another graph
    return blame or (RefusedOptions((tuple((kept or cures)[:1]),), tuple(cures)) if cures else None)


def _find_resized_tensors(graph: Graph, changed: Graph) -> set[str]:
    """Return the names of tensors that have other dims in a changed graph."""
    dims = {tensor.name: tensor.dims for tensor in graph.tensors}
    return {tensor.name for tensor in changed.tensors if dims.get(tensor.name, tensor.dims) != tensor.dims}


def _find_smallest_refused_sets(
    case: RefusalCase, options: dict[str, Deviation], run_query: SupportQuery
) -> RefusedOptions | None:
    needs = find_operations_causing_unusual_properties(case.graph, list(options.values()))
    if run_query(frozenset()) is True:
        return find_refused_options(options, needs, run_query)
    operations = [key for key in options if options[key].aspect == "operation"]
    alone = ([key] for key in reversed(options) if not needs.get(key))
    for natural in (operations, *alone):  # that the rest of the graph cannot be without
        if natural and run_query(frozenset(natural)) is True:
            rest = [key for key in options if key not in natural]
            return find_refused_options(rest, needs, lambda kept, natural=natural: run_query(kept | {*natural}))  # type: ignore[misc]
    return None


def _describe_refused_properties(case: RefusalCase, one: Sequence[Deviation], blame: RefusedOptions) -> str:
    """Describe one refused set for a headline."""
    if len(one) == 1:
        (only,) = one
        if only.aspect == "operation":
            return f"{only.what} does not fit into this graph"
        if only.aspect == "parameter":
            return f"{only.what}: not supported in this graph on sm_{case.target.sm}, with {only.usual} it is"
        return only.describe_needed_value()
    beside = ", though each alone is" if blame.alone else ""
    first, *rest = [item for item in one if item.aspect != "operation"] + [i for i in one if i.aspect == "operation"]
    if first.aspect not in ("operation", "parameter") and all(item.aspect == "operation" for item in rest):
        return f"{first.describe_needed_value()} together with {' and '.join(item.what for item in rest)}"
    return f"{' and '.join(item.what for item in one)}: not supported together on sm_{case.target.sm}{beside}"


def _quote_first_message_on_properties(case: RefusalCase, one: Sequence[Deviation]) -> str:
    """Return a quote of the first cuDNN message that mentions one of these properties; empty if there is none."""
    patterns = [_PATTERN_BY_PROPERTY[item.aspect] for item in one]
    fitting = (
        reason
        for reason in case.specific_reasons
        if any(re.search(pattern, format_reason_statement(reason)) for pattern in patterns)
    )
    return next(filter(None, map(format_reason_quote, fitting)), "")


def _format_property_replacements(
    case: RefusalCase, blame: RefusedOptions, options: dict[str, Deviation], sets: Sequence[Sequence[Deviation]]
) -> str:
    """Return text that lists replacements of refused properties, first those that preserve the results."""

    found = [options[key] for key in blame.remedies if options[key].title not in case.wrong_claims]
    found = [one for one in found if OTHER_RESULTS not in one.title] or found
    remedies: list[str] = []
    for one in sorted(found, key=lambda one: EFFECTS.index(one.effect)):
        changed, issues = undo_unusual_properties(case.graph, [one]), ""
        if changed is not None:
            if case.is_known_issue_added(changed):
                continue
            case.store_result_preserving_change(Change("usual", one.title, one.effect, (), (changed,)))
            issues = case.format_known_issues(changed)
        remedies.append(one.format_change_that_undoes_it() + issues)
        if len(remedies) == _MAX_REMEDIES:
            break
    if remedies:
        return join_remedies(remedies)
    together = [one[0] for one in sets]
    if any(OTHER_RESULTS in one.title for one in together):
        return ""
    changed = undo_unusual_properties(case.graph, together)
    helps = changed is not None and case.passes_support_check(changed) and not case.is_known_issue_added(changed)
    return "; and ".join(dict.fromkeys(one.format_change_that_undoes_it() for one in together)) if helps else ""
