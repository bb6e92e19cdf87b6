"""Find the cause of a refusal: apply rules to cuDNN's reasons, starting with the engine config that passed most checks.

A measured cause is taken before any that is not. Where no rule knows the phrase, options, changes and architectures are
tried; what is left is quoted.
"""

from __future__ import annotations

import dataclasses
import mmap
import re
import struct
from collections.abc import Callable, Sequence
from enum import Enum
from functools import partial

from ...errors import CudnnBackendError
from ...graph.guard import call_and_report_errors, collect_error_reports, report_error_line
from ...graph.ir import Graph, Op, Parameters
from ...graph.replace import replace_tensors_in_ops
from ...graph.strides import has_overlapping_elements
from ...plans.engine import OperationGraph
from ...plans.refusals import Reason, find_deepest_reason_among_configs
from ...rewrite.changes import AttentionDims, Change, find_attention_dims, iterate_changes
from ...rewrite.unusual import OTHER_RESULTS, find_unusual_properties
from ...target import Target
from ..fork import run_in_fork
from ..linting import format_danger_elsewhere
from ..verdict import Basis, Candidate, Cause, RemedyCheck
from .attention import blame_refused_attention_options
from .block_scales import FIRST_SM_WITH_BLOCK_SCALES, explain_block_scale, explain_scale_dims, has_block_scales
from .building import explain_build_failure
from .case import (
    FORM_CHANGES,
    PlanBuildBudget,
    RefusalCase,
    blame_change,
    describe_found_and_needed_values,
    format_reason_statement,
    join_known_issue_codes,
    join_remedies,
)
from .claims import verify_changes_preserve_results
from .operations import explain_no_product, explain_two_graphs
from .other_types import NEEDED_TYPE_PATTERN, name_other_supported_types
from .phrases import (
    find_change_kinds_suggested_by_reason,
    find_queried_device_properties,
    find_rules_for_reason,
    is_vague,
)
from .registry import (
    PHRASE_RULES,
    RULES,
    format_architecture_support,
    format_supporting_targets_remedy,
    get_rule_name,
)
from .rules import (
    explain_architecture,
    explain_convolution_dims,
    explain_misalignment,
    explain_overlap,
    explain_pattern_removed,
)
from .two_causes import blame_change_and_other_cause
from .unusual import are_only_operations_refused, blame_unusual_properties, names_every_refused_property_set

__all__ = [
    "DEVICE_NEEDED_CODE",
    "UNJUDGED_CAUSE_CODES",
    "find_build_failure_cause",
    "find_cause",
    "find_graph_refusal_cause",
    "list_suspicious_properties",
    "name_refused_operations",
]

_MAX_CRASHING_VARIATIONS = 6  # variations that may kill a process, which is then judged again without them
_VARIATION_NUMBER = struct.Struct("q")
_SEARCH_TITLE = "the search for the cause among variations of the graph"

# Causes that say nothing about the graph.
DEVICE_NEEDED_CODE = "device-needed"
UNJUDGED_CAUSE_CODES = frozenset({"driver-library-unusable", DEVICE_NEEDED_CODE})


def find_cause(
    refused: Sequence[Candidate],
    graph: Graph,
    target: Target,
    modes: Sequence[str],
    *,
    measure: bool = True,
    build: bool = False,
    step: Callable[[str], object] = str,
) -> Cause | None:
    """Return why a graph was refused; None if cuDNN gave no reason.

    Parameters
    ----------
    refused
        The refused candidates with their reasons.
    measure
        Whether cuDNN may be queried about variations of the graph, forty at most. They are queried in
        a forked process, as some kill cuDNN; so never of a GPU in this process, whose context a fork does not have.
    build
        Whether a variation counts only if a plan of it can be built; how many are is bounded by a
        :class:`.case.PlanBuildBudget`. If that measures no cause, variations count that pass their support check.
    step
        Called with each variation that is built, before it is.
    """
    case = _make_refusal_case(refused, graph, target, modes, measure, build, step)
    cause = _apply_message_rules(case)
    if cause is not None:
        return _add_remedy_check_note(case, cause)
    case, cause = _find_cause_by_build_or_support_check(case, _find_most_certain_cause)
    return _add_remedy_check_note(case, _blame_missing_device_or_keep_cause(case, cause))


def _find_cause_by_build_or_support_check(
    case: RefusalCase, find: Callable[[RefusalCase], Cause | None]
) -> tuple[RefusalCase, Cause | None]:
    """Search for the cause; where plans measure none, variations need only pass their support check.

    The plan budget may end a search before the variation that shows the cause. Returns the case that was used, too.
    """
    cause = _find_cause_in_fork(case, find)
    if case.budget is None or (cause is not None and cause.basis is Basis.MEASURED):
        return case, cause
    unbuilt = dataclasses.replace(case, budget=None, unusual=None)
    other = _find_cause_in_fork(unbuilt, find)
    return (unbuilt, other) if other is not None and other.basis is Basis.MEASURED else (case, cause)


def find_build_failure_cause(
    failed: Sequence[Candidate],
    graph: Graph,
    target: Target,
    modes: Sequence[str],
    *,
    measure: bool = True,
    step: Callable[[str], object] = str,
) -> Cause:
    """Return why no plan of a graph can be built, although engine configs passed their support check.

    Parameters
    ----------
    failed
        Those candidates, with the reasons why their plans cannot be built.
    measure, step
        As for :func:`find_cause`; the search is bounded by a :class:`.case.PlanBuildBudget`.
    """
    case = _make_refusal_case(failed, graph, target, modes, measure, True, step)
    found = _find_cause_in_fork(case, lambda one: _apply_rule(explain_build_failure, one))
    headline = f"engine configs passed their support check ({len(failed)}), and no plan of them can be built"
    cause = _add_remedy_check_note(case, found)
    return cause or Cause("no-plan-builds", headline, Basis.MEASURED, "the control graph's plan can be built here")


def _make_refusal_case(
    refused: Sequence[Candidate],
    graph: Graph,
    target: Target,
    modes: Sequence[str],
    measure: bool,
    build: bool,
    step: Callable[[str], object],
) -> RefusalCase:
    may = measure and not target.is_live
    return RefusalCase(refused, graph, target, modes, may, budget=PlanBuildBudget() if build else None, step=step)


def _add_remedy_check_note(case: RefusalCase, cause: Cause | None) -> Cause | None:
    """Return the cause with a note on how its remedy was checked, unless its text already says so.

    The remedy also names known issues on the architectures that it recommends, and the headline says which
    architectures cuDNN calls Blackwell.
    """
    if cause is None:
        return None
    if case.target.sm // 10 == _CONSUMER_BLACKWELL_FAMILY and re.search(r"only .*\bBlackwell", cause.headline):
        cause = dataclasses.replace(
            cause, headline=f"{cause.headline}; sm_{case.target.sm} is a Blackwell, cuDNN means sm_10x by the name"
        )
    if not cause.remedy:
        return cause
    cause = dataclasses.replace(cause, remedy=cause.remedy + _format_issues_on_other_architectures(case, cause.remedy))
    if cause.asked or cause.code in UNJUDGED_CAUSE_CODES:
        return cause
    return dataclasses.replace(cause, asked=case.remedy_check if cause.basis is Basis.MEASURED else "not asked")


_CONSUMER_BLACKWELL_FAMILY = 12  # tens of sm_120 and sm_121


def _format_issues_on_other_architectures(case: RefusalCase, remedy: str) -> str:
    """Return text to append to a remedy: what is known or dangerous about the graph on architectures that it names."""
    others = {int(number) for number in re.findall(r"\bsm_(\d+)", remedy)} - {case.target.sm}
    version = case.target.library.version
    found = {sm: join_known_issue_codes(case.graph, sm, version) for sm in sorted(others)}
    texts = [f"known issue on sm_{sm}: {codes}" for sm, codes in found.items() if codes]
    if others and not texts:
        return format_danger_elsewhere(case.graph, remedy)
    return f" ({'; '.join(texts)})" if texts else ""


def find_graph_refusal_cause(
    reasons: Sequence[Reason],
    graph: Graph,
    target: Target,
    modes: Sequence[str],
    *,
    measure: bool = True,
    build: bool = False,
    step: Callable[[str], object] = str,
) -> Cause | None:
    """Return why cuDNN refused the operation graph itself; None if no rule matches its error text."""
    refused = [Candidate("", None, {}, "refused", tuple(reasons))]
    case = _make_refusal_case(refused, graph, target, modes, measure, build, step)
    cause = _add_remedy_check_note(*_find_cause_by_build_or_support_check(case, _find_graph_refusal_cause_without_fork))
    return cause and dataclasses.replace(cause, code="operation-graph-refused")


def _find_cause_in_fork(case: RefusalCase, find: Callable[[RefusalCase], Cause | None]) -> Cause | None:
    """Search for the cause in a forked process; after a crash, repeat without the variation that caused it.

    Without querying cuDNN where that does not help.
    """

    def find_cause_and_error_reports(one: RefusalCase) -> tuple[Cause | None, list[str], dict[str, Change]]:
        with collect_error_reports() as lines:
            found = find(one)
            return found and name_other_supported_types(one, found), lines, one.claims

    late: list[str] = []
    deadly: frozenset[int] = frozenset()
    with mmap.mmap(-1, _VARIATION_NUMBER.size) as shared:  # with the forked process
        while True:
            one = dataclasses.replace(
                case, crashing_variations=deadly, claims={}, count=partial(_VARIATION_NUMBER.pack_into, shared, 0)
            )
            found = run_in_fork(
                partial(find_cause_and_error_reports, one), lambda: None, what=_SEARCH_TITLE, late=late.append
            )
            (number,) = _VARIATION_NUMBER.unpack_from(shared)
            if found is not None or late or number in (0, *deadly) or len(deadly) == _MAX_CRASHING_VARIATIONS:
                break
            deadly |= {number}
    cause, lines, claims = found or (find(dataclasses.replace(case, measure=False)), [], {})
    for line in [*late, *lines]:
        report_error_line(line)
    if cause is not None and claims:
        cause, wrong = verify_changes_preserve_results(case.graph, cause, claims)
        if wrong:
            return _find_cause_in_fork(dataclasses.replace(case, wrong_claims=case.wrong_claims | wrong), find)
    return cause


def _apply_message_rules(case: RefusalCase) -> Cause | None:
    """Return the cause of the first rule that needs only cuDNN's message."""
    return next((cause for rule in RULES if (cause := _apply_rule(rule, case)) is not None), None)


def _apply_rule(rule: Callable[..., Cause | None], *given: RefusalCase | Reason) -> Cause | None:
    """Return the cause that a rule finds; None if the rule raises an error, so that the next rule is tried."""
    return call_and_report_errors(f"the rule {get_rule_name(rule)}", None, rule, *given)


def _find_graph_refusal_cause_without_fork(case: RefusalCase) -> Cause | None:
    if nearest := _apply_rule(explain_misalignment, case) or _apply_rule(explain_overlap, case):
        return nearest
    if case.reasons and (contradiction := _apply_rule(explain_convolution_dims, case, case.reasons[0])):
        return contradiction
    said = _apply_phrase_rules(case)
    is_open = said is None or said.code == "data-type" or said.basis is not Basis.MEASURED
    if is_open and (scales := _apply_rule(explain_scale_dims, case)):
        return scales
    if nearer := _blame_unusual_properties_unless_in_cause(case, said):
        return nearer
    if said is not None and said.basis is Basis.MEASURED:
        return said
    return _apply_rule(_blame_single_change, case) or _apply_rule(_blame_change_and_other_cause, case) or said


def _blame_change_and_other_cause(case: RefusalCase) -> Cause | None:
    return blame_change_and_other_cause(case, _find_cause_of_changed_graph)


def _find_cause_of_changed_graph(case: RefusalCase) -> Cause | None:
    """Return why cuDNN refuses a changed graph, of which it may accept the operation graph."""
    if case.is_operation_graph_refused:
        return _find_graph_refusal_cause_without_fork(case)
    return _apply_message_rules(case) or _find_most_certain_cause(case)


def _blame_unusual_properties_unless_in_cause(case: RefusalCase, said: Cause | None) -> Cause | None:
    """Return the refused unusual properties as the cause, unless a measured cause already covers them; else None."""
    measured = said if said is not None and said.basis is Basis.MEASURED else None
    if measured and call_and_report_errors(
        "the check of the reported properties", True, names_every_refused_property_set, case, measured.headline
    ):
        return None
    found = _apply_rule(blame_unusual_properties, case)
    if found is None or measured is None or not measured.remedy or measured.remedy in found.remedy:
        return found
    if not found.remedy or OTHER_RESULTS in found.remedy:
        return None
    if OTHER_RESULTS in measured.remedy:
        return found
    remedies = (measured.remedy, found.remedy)  # what rules find is more often exact
    if "(idea)" not in found.remedy:
        return dataclasses.replace(found, remedy=join_remedies(remedies[::-1]))
    if "(idea)" in measured.remedy or not are_only_operations_refused(case):
        return dataclasses.replace(found, remedy=join_remedies(remedies))
    without = found.remedy.partition("; or ")[0].removesuffix(" (idea)")  # all that helps is to leave operations out
    headline = f"{measured.headline}; supported {without}"
    return dataclasses.replace(measured, headline=headline, remedy=join_remedies(remedies))


def _name_missing_matmul_in_cause(case: RefusalCase, cause: Cause | None) -> Cause | None:
    """Name the missing matmul in the cause if the only remedy found removes an operation that needs a matmul."""
    if cause is None or not cause.remedy.startswith("without the operation"):
        return cause
    for reason in case.reasons:
        lacking = explain_no_product(case, reason) if "no_product" in find_rules_for_reason(reason.text) else None
        if lacking is not None:
            remedies = [cause.remedy, *([lacking.remedy] if lacking.has_judged_remedy else [])]
            return dataclasses.replace(cause, headline=lacking.headline, remedy="; or ".join(remedies))
    return cause


def _find_most_certain_cause(case: RefusalCase) -> Cause | None:
    """Return the most certain cause: measured by a rule, proven by a change, or named by cuDNN."""
    return _name_missing_matmul_in_cause(case, _find_measured_or_named_cause(case))


def _find_measured_or_named_cause(case: RefusalCase) -> Cause | None:
    for rule in (explain_misalignment, explain_overlap, explain_block_scale):
        if nearest := _apply_rule(rule, case):
            return nearest
    said = _apply_phrase_rules(case)
    if nearer := _blame_unusual_properties_unless_in_cause(case, said):
        return _add_alternative_changes_to_cause(case, nearer)
    if said is not None and said.basis is Basis.MEASURED:
        return _add_alternative_changes_to_cause(case, said)
    found = (
        _apply_rule(blame_refused_attention_options, case)
        or _apply_rule(explain_pattern_removed, case)
        or _apply_rule(_blame_single_change, case)
        or _apply_rule(_blame_architecture, case)
        or _apply_rule(_blame_change_and_architecture, case)
        or _apply_rule(_blame_change_and_other_cause, case)
    )
    return (
        _add_alternative_changes_to_cause(case, found)
        if found is not None
        else said or blame_most_specific_reason(case)
    )


def _add_alternative_changes_to_cause(case: RefusalCase, cause: Cause) -> Cause:
    """Add other changes that make cuDNN support the graph to the cause; leave causes of attention graphs unchanged.

    Problem
        A type, or operations in one graph, that cuDNN supports by themselves.
    Evidence
        The graph in two; with other types; on other architectures.
    Remedy
        Each of these.
    Since
        Any version.
    """
    return call_and_report_errors(
        "the search for other changes that help", cause, _add_alternative_changes_to_measured_cause, case, cause
    )


_COMBINABLE_CAUSE_CODES = (
    "data-type",
    "operation",
    "shape",
)  # codes of causes that may be refused only together with something else


def _add_alternative_changes_to_measured_cause(case: RefusalCase, cause: Cause) -> Cause:
    if case.is_attention:
        return _add_remedy_of_switching_determinism(case, cause)
    if cause.basis is not Basis.MEASURED or cause.code not in _COMBINABLE_CAUSE_CODES:
        return cause
    said, remedies = [], [cause.remedy]
    if cause.code == "data-type":
        cause, order = _name_order_of_elements_that_helps(case, cause)
        remedies = [*order, *remedies]
        alone = case.find_supported_split_in_two_graphs() or case.find_remedy(
            "drop_operation", keep=lambda one: _preserves_results(one) and not case.is_known_issue_added(*one.graphs)
        )
        said += [f"supported {'as ' if alone.kind == 'split' else ''}{alone.title}"] if alone else []
        remedies += [alone.advice] if alone else []
    if cause.code != "data-type" and (
        change := case.find_remedy(
            "data_type", keep=lambda one: cause.code == "operation" or _changes_several_tensors(one)
        )
    ):
        change = case.drop_tensors_that_need_no_change(change)
        said.append(f"supported with {change.title}")
        remedies.append(change.advice)
    if cause.code == "operation" and (change := case.find_remedy("whole_pattern")):
        said.append(f"supported {change.title}")
        remedies.append(f"{change.title} ({change.effect})")
    if "sm_" not in cause.headline and (others := case.supporting_architectures):
        said.append(format_architecture_support(case, others, graph="the graph as it is"))
        remedies.append(format_supporting_targets_remedy(others))
    said = [one for one in said if one not in cause.headline]
    return dataclasses.replace(cause, headline="; ".join([cause.headline, *said]), remedy=join_remedies(remedies))


def _name_order_of_elements_that_helps(case: RefusalCase, cause: Cause) -> tuple[Cause, list[str]]:
    """If tensors of a refused type are supported in another order in memory, name both; return that remedy, too."""
    found = NEEDED_TYPE_PATTERN.match(cause.headline)
    names = set() if found is None else {*found["names"].split(", ")}
    change = case.find_remedy("reordering", keep=lambda one: {*one.tensors} <= names) if names else None
    if found is None or change is None:
        return cause, []
    new, orders = found["new"], change.title.partition(": ")[2].partition(",")[0]
    both = cause.headline.replace(f", {new} is needed", f": supported with {new}, or with {orders}", 1)
    return dataclasses.replace(cause, headline=both), [change.title]


def _add_remedy_of_switching_determinism(case: RefusalCase, cause: Cause) -> Cause:
    """If switching deterministic dQ on or off makes the graph supported, add that to a cause about head dims."""
    if cause.basis is not Basis.MEASURED or cause.code not in ("head-dim", "shape"):
        return cause
    change = case.find_remedy("deterministic")
    if change is None:
        return cause
    limit, mark, quote = cause.headline.partition(" (cuDNN: ")
    headline = f"{limit}; supported with {change.title.partition(':')[0]}{mark}{quote}"
    return dataclasses.replace(
        cause, headline=headline, remedy="; or ".join(filter(None, (change.title, cause.remedy)))
    )


def _preserves_results(change: Change) -> bool:
    """Return whether a change preserves the results, with removed parts computed outside."""
    return OTHER_RESULTS not in change.title


def _changes_several_tensors(change: Change) -> bool:
    return len(change.tensors) > 1


def _apply_phrase_rules(case: RefusalCase) -> Cause | None:
    """Return the first measured cause among the rules for the reasons' phrases, else the first cause."""
    first: Cause | None = None
    tried: set[str] = set()
    for reason in case.specific_reasons:
        for name in find_rules_for_reason(str(reason)):
            # The rule for architectures is applied last, as a change of the graph is a better remedy.
            if name in tried or name == get_rule_name(explain_architecture):
                continue
            tried.add(name)
            cause = _apply_rule(PHRASE_RULES[name], case, reason)
            if cause is not None and cause.basis is Basis.MEASURED:
                return cause
            first = first or cause
    return first


def _blame_missing_device_or_keep_cause(case: RefusalCase, other: Cause | None) -> Cause | None:
    """Return the given cause, or a new one if an engine was refused only because there is no device to query.

    Problem
        "No GPC available" or a cuBLASLt handle that cannot be created, for a described target. The graph may be
        supported on the GPU itself.
    Evidence
        On an H100 with cuDNN 9.19 these engines are offered live and refused so without a device; everything else is
        equal. What the other engines lack is said with it.
    Remedy
        Ask on the GPU.
    Since
        Seen with 9.19 and 9.28.
    """
    if case.target.is_live or (has_block_scales(case.graph) and case.target.sm < FIRST_SM_WITH_BLOCK_SCALES):
        return other
    for candidate in case.refused:
        for reason in candidate.reasons:
            what = find_queried_device_properties(str(reason), case.target.sm)
            if what is not None and not (what.startswith("a cuBLASLt") and _has_unknown_block_scales(case.graph)):
                headline = f"engine {candidate.engine} needs a GPU, to query {what}"
                detail = "so this refusal says nothing about the graph; the other candidates were refused for it"
                remedy = "judge on a machine with the GPU"
                asked: RemedyCheck = ""
                if other is not None:
                    headline = f"{headline}; of the others: {other.headline}"
                if other is not None and other.basis is Basis.MEASURED and other.remedy:
                    remedy, asked = f"{remedy}; or {other.remedy}", other.asked or case.remedy_check
                return Cause("device-needed", headline, Basis.RULE, detail, remedy, asked)
    return other


def name_refused_operations(graph: Graph, target: Target, headline: str) -> str:
    """Return the operations that cuDNN failed to finalize, with their modes; empty if they are not known.

    Of several operations of the kind, those are named that cuDNN also refuses in a graph of their own.

    Problem
        "cudnnBackendFinalize answered NOT_SUPPORTED for CUDNN_BACKEND_RESAMPLE_DESCRIPTOR".
    Evidence
        The operations of that kind, or with such parameters, in the graph.
    Remedy
        None known.
    Since
        Any version.
    """
    found = re.search(r"CUDNN_BACKEND_(\w+)_DESCRIPTOR", headline)
    if found is None:
        return ""
    ops = [op for op in graph.ops if found[1] == op.kind.name or found[1].lower() in op.parameters()]
    ops += [op for op in graph.ops if not ops and op.kind.name.removeprefix("OPERATION_") == found[1]]
    if len(ops) > 1:
        ops = [op for op in ops if _is_operation_refused_alone(op, target, headline)] or ops
    shown = []
    for op in ops[:2]:
        modes = [f"{name} {value.name}" for name, value in _list_enum_parameters(op)]
        shown.append(f"{op.name} ({' '.join([op.display_name(), *modes])})")
    return " and ".join(shown)


def _is_operation_refused_alone(op: Op, target: Target, headline: str) -> bool:
    """Return whether cuDNN refuses a graph of one operation, all tensors in memory, with the same headline."""
    stored = {t.uid: dataclasses.replace(t, virtual=False) for _, t in op.ports()}
    try:
        OperationGraph(Graph(replace_tensors_in_ops((op,), stored), op.name), target)
    except CudnnBackendError as error:
        return error.headline == headline
    return False


def _list_enum_parameters(op: Op) -> list[tuple[str, Enum]]:
    """Return the parameters of an operation that are enums, including those of a resampling."""
    given = op.parameters()
    inner = given.get("resample")
    fields = {**given, **(dict(inner.fields) if isinstance(inner, Parameters) else {})}
    return [(name, value) for name, value in fields.items() if isinstance(value, Enum) and "mode" in name]


def _has_unknown_block_scales(graph: Graph) -> bool:
    """Return whether the graph has block scales with a block size that no cuBLASLt format has."""
    return any(one.key.startswith("blocks ") for one in find_unusual_properties(graph))


# Kinds that are tried where no rule knows the phrase.
_VALUE_CHANGE_KINDS = ("virtual", "dims", "pad_head_dim", "pad_channels", "data_type", "scale")
_CHEAP_CHANGE_KINDS = ("alignment", "layout", *FORM_CHANGES, *_VALUE_CHANGE_KINDS)


def list_suspicious_properties(graph: Graph) -> list[str]:
    """Return unusual properties of the graph's tensors, which are the most likely reasons for a crash of cuDNN."""
    lines = []
    for tensor in graph.tensors:
        zero = [axis for axis, dim in enumerate(tensor.dims) if dim > 1 and tensor.strides[axis] == 0]
        if zero and not tensor.by_value:
            lines.append(
                f"{tensor.name} has a stride of 0 over dim {', '.join(map(str, zero))}: {list(tensor.strides)}"
            )
        elif has_overlapping_elements(tensor.dims, tensor.strides):
            lines.append(f"{tensor.name} has strides {list(tensor.strides)}, so that elements overlap")
    s_q = call_and_report_errors("the search for attention sequences", AttentionDims(), find_attention_dims, graph).s_q
    if s_q is not None and s_q.size == 1:
        lines.append("the sequence of queries has a length of 1")
    return lines


def _blame_single_change(case: RefusalCase) -> Cause | None:
    """If no rule matches the reason, return the cause proven by a single change.

    Problem
        Any; the change reports.
    Evidence
        The graph with that change.
    Remedy
        That change.
    Since
        Any version.
    """
    found = case.find_remedy(*_CHEAP_CHANGE_KINDS, keep=lambda change: change.effect == "exact") or case.find_remedy(
        "intermediate_type"
    )
    if found is None and not case.is_attention and (said := explain_two_graphs(case)):
        return said
    # An output that becomes virtual is another graph: any architecture that supports it as it is says more.
    change = found or case.find_remedy(
        *_CHEAP_CHANGE_KINDS, keep=lambda one: one.effect != "exact" and one.kind != "virtual"
    )
    if change is None:
        return None
    code = {"pad_head_dim": "head-dim", "pad_channels": "shape", "data_type": "data-type", "scale": "virtual"}
    name = code.get(change.kind, change.kind).replace("_", "-")
    return blame_change(name, case, change, case.specific_reasons[0] if case.specific_reasons else None)


def _blame_architecture(case: RefusalCase) -> Cause | None:
    """If no rule matches the reason, return the cause that only other architectures support the graph."""
    named = [
        one
        for one in case.reasons
        if not is_vague(one.text) and get_rule_name(explain_architecture) in find_rules_for_reason(str(one))
    ]
    reasons = [*named, *case.specific_reasons]
    return explain_architecture(case, reasons[0]) if reasons else None


_KINDS_ELSEWHERE = ("intermediate_type", "data_type", "layout", "dims", "flatten")
_MAX_CHANGES_ELSEWHERE = 12  # that are judged on other architectures, six of them each


def _blame_change_and_architecture(case: RefusalCase) -> Cause | None:
    """If neither a change nor another architecture helps, return the cause that both are needed.

    Problem
        Any, such as a virtual tensor of a type that no engine takes, on an architecture without engines for the graph.
    Evidence
        The graph with one change on other architectures.
    Remedy
        That change, and one of them.
    Since
        Any version.
    """
    hinted = [kind for reason in case.specific_reasons for kind in find_change_kinds_suggested_by_reason(reason.text)]
    kinds = sorted(_KINDS_ELSEWHERE, key=lambda kind: hinted.index(kind) if kind in hinted else len(hinted))
    judged: list[Graph] = []
    for change in iterate_changes(case.graph, kinds) if case.measure else ():
        if len(change.graphs) != 1 or change.graph in judged:  # the same strides have several names
            continue
        if len(judged) == _MAX_CHANGES_ELSEWHERE:
            break
        judged.append(change.graph)
        others = dataclasses.replace(case, graph=change.graph).supporting_architectures
        if others:
            contrast = describe_found_and_needed_values(case.graph, change)
            headline = f"{format_architecture_support(case, others, how=' with another change')}: {contrast}"
            remedy = f"{format_supporting_targets_remedy(others)}; and {change.advice}"
            return Cause(
                "architecture", headline, Basis.MEASURED, "the graph with this change was judged there", remedy
            )
    return None


def _blame_missing_engine(case: RefusalCase) -> Cause | None:
    """If heuristics listed no engine config, return the cause that cuDNN has no engine for an operation; else None.

    Problem
        Heuristics without any engine config, and without a reason.
    Evidence
        The list is empty in every mode, and other architectures refuse the graph, too.
    Remedy
        None known.
    Since
        Seen with GROUP_NORM, 9.28.
    """
    if case.refused:
        return None
    shown = []
    for op in case.graph.ops[:4]:
        mode = op.parameters().get("mode")
        shown.append(f"{op.name} ({op.display_name()}{f' with {mode.name}' if isinstance(mode, Enum) else ''})")
    nowhere = case.measure and not case.supporting_architectures and case.variations_left > 0
    where = f"sm_{case.target.sm}{', nor on the other architectures that were judged' if nowhere else ''}"
    headline = f"cuDNN proposes no engine for {', '.join(shown)} on {where}; it gives no reason"
    return Cause("refused", headline, Basis.RULE, f"modes {', '.join(case.modes)} were queried")


def blame_most_specific_reason(case: RefusalCase) -> Cause | None:
    """If no better rule applies, return cuDNN's most specific reason as the cause.

    Problem
        Candidates refused for the architecture say the least about the graph. The one with the longest chain of
        reasons came furthest, and says the most.
    Evidence
        The innermost reason of one candidate, quoted.
    Remedy
        None known.
    Since
        Any version.
    """
    innermost = [candidate.reasons[0] for candidate in case.refused if candidate.reasons]
    if not innermost:
        return _blame_missing_engine(case)
    specific = [item for item in case.refused if item.reasons and item.reasons[0] in case.specific_reasons]
    reason = find_deepest_reason_among_configs(specific or case.refused)
    assert reason is not None
    count = sum(1 for other in innermost if other.text == reason.text)
    which = (
        f"of {count} of {len(case.refused)} engine configs" if len(case.refused) > 1 else "of the only engine config"
    )
    headline = f"no cause found; the most specific reason {which}: {format_reason_statement(reason)}"
    is_about_architectures = get_rule_name(explain_architecture) in find_rules_for_reason(str(reason))
    if is_about_architectures and case.measure and not case.supporting_architectures:
        headline += "; yet this version does not support the graph on other architectures either"
    return Cause("refused", headline, Basis.GUESS, "the most specific of cuDNN's reasons, quoted")
