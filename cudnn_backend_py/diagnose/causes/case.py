"""A refused graph with the variations that are judged, and texts for its headline."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import islice
from typing import NamedTuple

from ...errors import CudnnBackendError, CudnnStatusError
from ...generated.enums import BehaviorNote, DescriptorType
from ...graph.data_types import get_data_type_word
from ...graph.ir import BLOCK_SCALES, Graph, Tensor, packed_strides
from ...graph.strides import channels_last
from ...known_issues import find_issues_failing_before_execution, find_known_issues
from ...plans.candidate import parse_refused_candidates
from ...plans.engine import OperationGraph
from ...plans.plan import build_plan
from ...plans.refusals import Reason, read_error_reasons
from ...rewrite.changes import Change, iterate_changes, join_names
from ...rewrite.changes.change import MAX_NAMED_TENSORS
from ...rewrite.shapes import has_one_channel
from ...rewrite.unusual import Deviation
from ...system.version import VersionTuple
from ...target import Target, open_target
from ..fork import run_in_fork
from ..verdict import ANOTHER_FORM, Basis, Candidate, Cause, RemedyCheck
from .options import AttentionOptions, read_attention_options
from .phrases import is_about_other_architecture, is_vague, name_data_types_given_as_numbers
from .refused_part import RefusedOptions, find_refused_options

__all__ = [
    "ARCHITECTURE_TARGETS",
    "FORM_CHANGES",
    "MAX_TARGETS_IN_REMEDY",
    "BuildResult",
    "PlanBuildBudget",
    "RefusalCase",
    "blame_change",
    "blame_result_preserving_change",
    "compute_build_attempt_cost",
    "describe_found_and_needed_values",
    "format_most_readable_reason_quote",
    "format_reason_quote",
    "format_reason_statement",
    "is_known_to_fail_building",
    "is_supported",
    "order_reasons",
    "try_build",
]

# Described targets, one of each architecture: where else a graph is judged.
ARCHITECTURE_TARGETS = ("sm90", "sm100", "sm80", "sm89", "sm120", "sm86")

_MAX_VARIATIONS = 40  # about variations, for one cause: some 0.3 s
_EXTRA_VARIATIONS = 48  # next to them about a graph that is no attention: they cost less
_MAX_SPLITS = 6  # of a graph, that are judged
MAX_TARGETS_IN_REMEDY = 3  # other architectures that support the graph
_MAX_OPTION_VARIATIONS = 32  # about options of attention, next to them


def is_supported(graph: Graph, target: Target, modes: Sequence[str]) -> bool:
    """Return whether some engine config supports the graph, without collecting reasons."""
    try:
        question = OperationGraph(graph, target)
        return any(True for _ in question.configs(modes, judging=True))
    except CudnnBackendError:
        return False


def is_known_to_fail_building(graph: Graph, target: Target) -> bool:
    """Return whether a known issue says that no plan of the graph can be built although its support check passes."""
    found = find_issues_failing_before_execution(graph, target.sm, target.library.version)
    return any(fault.is_measured and not fault.depends_on for fault in found)


_MAX_TRIED_PLANS = 4  # of a variation, of each mode, that are tried


class BuildResult(NamedTuple):
    """Whether a plan could be built, and its cost relative to a plan that fails to compile."""

    found: bool = False
    cost: int = 0


_COMPILED_PLAN_COST = 7  # the cost of a plan that compiles, which takes up to a second; one that does not takes 0.1 s


def compute_build_attempt_cost(*, built: bool, behavior_notes: Iterable[str]) -> int:
    """Return the cost of an attempt to build a plan: 1, or more if it succeeded by compiling kernels."""
    return _COMPILED_PLAN_COST if built and BehaviorNote.RUNTIME_COMPILATION.name in behavior_notes else 1


def try_build(graph: Graph, target: Target, modes: Sequence[str]) -> BuildResult:
    """Try to build a plan of the graph, without collecting reasons; return whether it succeeded, and its cost.

    A variation that cuDNN refuses costs some 5 ms, one that does not compile 0.1 s, one that does up to a second.
    """
    try:
        question = OperationGraph(graph, target)
        configs = list(question.configs(modes, _MAX_TRIED_PLANS, judging=True))
    except CudnnBackendError:
        return BuildResult()
    for failed, config in enumerate(configs):
        try:
            build_plan(config).close()
        except CudnnBackendError:
            continue
        notes = (note.name for note in config.behavior_notes)
        return BuildResult(True, failed + compute_build_attempt_cost(built=True, behavior_notes=notes))
    return BuildResult(False, len(configs))


class PlanBuildBudget:
    """The number of plans that may still be built for variations; a count, not a time, gives equal results everywhere.

    Parameters
    ----------
    left
        Plans that do not compile, after which no other variation is begun. One that does compile counts as seven.
    """

    def __init__(self, left: int = 15) -> None:
        self.left = left

    def subtract_build_cost(self, built: BuildResult) -> None:
        """Subtract the cost of an attempt to build a plan."""
        self.left -= built.cost


def _collect_refusals(graph: Graph, target: Target, modes: Sequence[str]) -> list[Candidate] | None:
    """Return the refused candidates, or one with the reasons of a refused operation graph; None if it is supported.

    None also where the graph is invalid.
    """
    found: list[Candidate] = []
    try:
        question = OperationGraph(graph, target)
        for mode in modes:
            answer = question.heuristics(mode, reasons=True, judging=True)
            if answer.configs:
                return None
            found += [one for one in parse_refused_candidates(mode, answer.answer.text) if one.engine is not None]
    except CudnnStatusError as error:  # of the operation graph itself
        return [Candidate("", None, {}, "refused", read_error_reasons(error))]
    except CudnnBackendError:
        return None
    return found


def _list_innermost_texts(refused: Iterable[Candidate]) -> set[str]:
    return {candidate.reasons[0].text for candidate in refused if candidate.reasons}


KNOWN_ISSUE_MARK = "known issue: "  # before the codes of issues that a changed graph has


def join_known_issue_codes(graph: Graph, sm: int, version: VersionTuple) -> str:
    """Join the codes of a graph's known issues that no run-time value decides."""
    return ", ".join(issue.code for issue in find_known_issues(graph, sm, version) if not issue.depends_on)


def format_known_issues(graph: Graph, sm: int, version: VersionTuple) -> str:
    """Return text to append to a remedy: the known issues of a changed graph."""
    codes = join_known_issue_codes(graph, sm, version)
    return codes and f" ({KNOWN_ISSUE_MARK}{codes})"


def join_remedies(remedies: Iterable[str]) -> str:
    """Join alternatives, each of which may be several: each once, and last those with a known issue."""
    each = dict.fromkeys(one for remedy in remedies for one in remedy.split("; or ") if one)
    return "; or ".join(sorted(each, key=lambda one: KNOWN_ISSUE_MARK in one))


@dataclass
class RefusalCase:
    """A refused graph and its judged variations, at most 40.

    With ``measure`` False no variation is judged: for graphs whose variations crash cuDNN. With a ``budget`` a plan of
    each variation is built, each in a forked process; ``step`` is called before each. Variations are numbered from 1,
    in the order in which they are judged, which is always the same: ``count`` is called with the number before each.
    The numbers in ``crashing_variations`` ended a process and count as refused. Exact changes that help become
    ``claims``, by title, which the interpreter checks afterwards; titles in ``wrong_claims`` failed that check.
    ``is_changed`` is set of a graph with a change, of which no second one is searched.
    """

    refused: Sequence[Candidate]
    graph: Graph
    target: Target
    modes: Sequence[str]
    measure: bool = True
    variations_left: int = _MAX_VARIATIONS
    budget: PlanBuildBudget | None = None
    step: Callable[[str], object] = str
    count: Callable[[int], object] = int
    crashing_variations: frozenset[int] = frozenset()
    wrong_claims: frozenset[str] = frozenset()
    claims: dict[str, Change] = field(default_factory=dict)
    judged_variations: int = 0
    is_changed: bool = False
    unusual: tuple[RefusedOptions | None, dict[str, Deviation]] | None = (
        None  # what was found of them, by :mod:`.unusual`
    )

    def __post_init__(self) -> None:
        if self.variations_left == _MAX_VARIATIONS and not self.is_attention:
            self.variations_left += _EXTRA_VARIATIONS

    @property
    def remedy_check(self) -> RemedyCheck:
        """Whether the remedy was checked by building a plan, or only by cuDNN's support check."""
        return "support check" if self.budget is None else "built"

    @cached_property
    def options(self) -> AttentionOptions | None:
        """The options of the graph's attention problem; None if cuDNN refuses the rebuilt graph for other reasons.

        That is, where it refuses the same problem, built again, for other reasons than the graph.
        """
        found = read_attention_options(self.graph, self.target.library.version) if self.measure else None
        again = None if found is None else found.graph(found.found)
        if found is None or again is None:
            return None
        refused = _collect_refusals(again, self.target, self.modes)
        same = refused is not None and _list_innermost_texts(refused) == _list_innermost_texts(self.refused)
        return found if same else None

    @cached_property
    def refused_options(self) -> RefusedOptions | None:
        """The refused options of attention, alone or in combination; None where unknown."""
        options = self.options
        if options is None:
            return None
        left = _MAX_OPTION_VARIATIONS

        def is_variation_supported(kept: frozenset[str]) -> bool | None:
            nonlocal left
            graph = options.graph(kept)
            if graph is None or left <= 0:
                return None
            left -= 1
            return self.passes_support_check(graph)

        return find_refused_options(options.found, options.needs, is_variation_supported)

    def supports(self, graph: Graph, target: Target | None = None) -> bool:
        """Return whether cuDNN supports a variation, also for another target; False beyond the limit of variations."""
        return self.judge_variation(graph, target) is True

    def judge_variation(self, graph: Graph, target: Target | None = None) -> bool | None:
        """Return whether cuDNN supports a variation, also for another target; None beyond the limit of variations."""
        if not self._use_up_variation_if_allowed():
            return None
        if self.budget is None:
            return self.passes_support_check(graph, target)
        self.step(f"plan, of variation {_MAX_VARIATIONS - self.variations_left} of the graph")
        return self._is_plan_built(graph, target or self.target)

    def passes_support_check(self, graph: Graph, target: Target | None = None) -> bool:
        """Return whether a variation passes its support check; it does not count towards the limit of 40."""
        where = target or self.target
        return self.has_supported_config(graph, where) and not is_known_to_fail_building(graph, where)

    def has_supported_config(self, graph: Graph, target: Target | None = None) -> bool:
        """Return whether an engine config of a variation passes, even if no plan of it is known to build."""
        self.judged_variations += 1
        self.count(self.judged_variations)
        if self.judged_variations in self.crashing_variations:
            return False
        return is_supported(graph, target or self.target, self.modes)

    @property
    def may_have_second_cause(self) -> bool:
        """Whether a change is searched that clears cuDNN's reasons although the graph is still refused."""
        return self.measure and self.budget is None and not self.is_changed

    @property
    def is_operation_graph_refused(self) -> bool:
        """Whether cuDNN refuses the operation graph itself, before any engine is queried."""
        return all(candidate.engine is None for candidate in self.refused)

    def judge_changed_graph(self, graph: Graph) -> RefusalCase | None:
        """Return the case of a variation that is refused too; None if it is supported, invalid or crashes cuDNN."""
        self.judged_variations += 1
        self.count(self.judged_variations)
        if self.judged_variations in self.crashing_variations:
            return None
        refused = _collect_refusals(graph, self.target, self.modes)
        if refused is None:
            return None
        return replace(self, refused=refused, graph=graph, unusual=None, is_changed=True)

    def has_engine_with_other_reasons(self, other: RefusalCase) -> bool:
        """Return whether cuDNN refuses another graph, with all configs of an engine, for none of its reasons here."""
        specific = {reason.text for reason in self.specific_reasons}
        engines = {one.engine for one in other.refused}
        for engine in {one.engine for one in self.refused}:
            own = _list_innermost_texts(one for one in self.refused if one.engine == engine) & specific
            kept = engines if engine is None else engines & {engine}
            new = _list_innermost_texts(one for one in other.refused if one.engine in kept)
            if own and new and own.isdisjoint(new):
                return True
        return False

    def _use_up_variation_if_allowed(self) -> bool:
        self.variations_left -= 1
        return self.measure and self.variations_left >= 0 and (self.budget is None or self.budget.left > 0)

    def find_remedy(self, *kinds: str, keep: Callable[[Change], bool] = lambda _: True) -> Change | None:
        """Return the first change of these kinds that gives a single graph which cuDNN supports."""
        for change in iterate_changes(self.graph, kinds) if self.measure else ():
            if self.variations_left <= 0:
                return None
            if keep(change) and len(change.graphs) == 1 and self._is_supported_after(change):
                return change
        return None

    def drop_tensors_that_need_no_change(self, change: Change) -> Change:
        """Return a change that helps less the tensors without which it helps as well."""
        for name in change.tensors if change.narrow is not None and self.budget is None else ():
            rest = [other for other in change.tensors if other != name]
            smaller = change.narrow(rest) if rest and change.narrow is not None else None
            if smaller is None or len(smaller.graphs) != 1 or self.is_known_issue_added(*smaller.graphs):
                continue
            if self._is_supported_after(smaller):
                change = smaller
        return change

    def is_known_issue_added(self, *changed: Graph) -> bool:
        """Return whether changed graphs may have a known issue that the graph does not have."""
        return any(not self._list_issue_codes(graph) <= self._own_issue_codes for graph in changed)

    def format_known_issues(self, graph: Graph) -> str:
        """Return text to append to a remedy: the known issues of a changed graph."""
        return format_known_issues(graph, self.target.sm, self.target.library.version)

    @cached_property
    def _own_issue_codes(self) -> set[str]:
        return self._list_issue_codes(self.graph)

    def _list_issue_codes(self, graph: Graph) -> set[str]:
        return {issue.code for issue in find_known_issues(graph, self.target.sm, self.target.library.version)}

    def _is_supported_after(self, change: Change) -> bool:
        """Return whether cuDNN supports the graphs of a change; if so, store an exact change for verification."""
        return (
            change.title not in self.wrong_claims
            and all(map(self.supports, change.graphs))
            and self.store_result_preserving_change(change)
        )

    def store_result_preserving_change(self, change: Change) -> bool:
        """Store a change for verification if it is exact; always return True."""
        if change.effect == "exact":
            self.claims[change.title] = change
        return True

    def find_remedies(self, *kinds: str) -> list[Change]:
        """Return all changes of these kinds that make cuDNN support the graph."""
        found = []
        for change in iterate_changes(self.graph, kinds) if self.measure else ():
            if self.variations_left <= 0:
                break
            if len(change.graphs) == 1 and self._is_supported_after(change):
                found.append(change)
        return found

    def find_exact_change(self) -> Change | None:
        """Return a change that makes the graph supported with the same results; None for attention graphs."""
        kinds = ("alignment", "layout", "pad_channels", "dims")
        return None if self.is_attention else self.find_remedy(*kinds, keep=lambda change: change.effect == "exact")

    def find_supported_split_in_two_graphs(self) -> Change | None:
        """Return the first split of the graph in two that cuDNN supports."""
        made = (change for change in iterate_changes(self.graph, ("split",)) if change.graphs)
        for change in islice(made, _MAX_SPLITS) if self.measure else ():
            if self._is_supported_after(change):
                return change
        return None

    @cached_property
    def is_attention(self) -> bool:
        """Whether the graph has an attention operation or two matmuls; with block scales, also a softmax."""
        kinds = [op.kind for op in self.graph.ops]
        rows = (DescriptorType.OPERATION_REDUCTION, DescriptorType.OPERATION_SOFTMAX)
        if any(kind in BLOCK_SCALES for kind in kinds) and not any(kind in rows for kind in kinds):
            return False
        whole = (DescriptorType.OPERATION_SDPA_FWD, DescriptorType.OPERATION_SDPA_BWD)
        return kinds.count(DescriptorType.OPERATION_MATMUL) > 1 or any(kind in whole for kind in kinds)

    @cached_property
    def reasons(self) -> list[Reason]:
        """The distinct innermost reasons, see :func:`order_reasons`; those of other architectures' kernels last."""
        found = order_reasons(self.refused)
        return sorted(found, key=lambda reason: is_about_other_architecture(reason.text, self.target.sm))

    @cached_property
    def specific_reasons(self) -> list[Reason]:
        """The reasons about this graph on this architecture; if there are none, all reasons."""
        own = [one for one in self.reasons if not is_about_other_architecture(one.text, self.target.sm)]
        return [one for one in own if not is_vague(one.text)] or own or self.reasons

    @cached_property
    def supporting_architectures(self) -> list[str]:
        """The other architectures on which this cuDNN supports the graph, those of which plans were built first.

        Where plans are built, one is for each of the first three, which remedies name; the others pass the check.
        """
        built: list[str] = []
        checked: list[str] = []
        for name in ARCHITECTURE_TARGETS if self.measure else ():
            other = open_target(name, on=self.target.library)
            try:
                if other.sm == self.target.sm or not self.passes_support_check(self.graph, other):
                    continue
                if self.budget is None or len(built) >= MAX_TARGETS_IN_REMEDY:
                    checked.append(f"sm_{other.sm}")
                elif self._is_plan_built(self.graph, other):
                    built.append(f"sm_{other.sm}")
            finally:
                other.close()
        return built + checked

    def _is_plan_built(self, graph: Graph, target: Target) -> bool:
        """Return whether a plan of a variation can be built, and subtract its cost from the budget."""
        assert self.budget is not None
        if target is not self.target:
            self.step(f"plan, for sm_{target.sm}")
        found = run_in_fork(lambda: try_build(graph, target, self.modes), lambda: BuildResult(False, 1))
        self.budget.subtract_build_cost(found)
        return found.found


def order_reasons(refused: Iterable[Candidate]) -> list[Reason]:
    """Return the distinct innermost reasons: those nested deepest in other errors first, vague ones last."""
    chains = [candidate.reasons for candidate in refused if candidate.reasons]
    chains.sort(key=lambda chain: (is_vague(chain[0].text), -len(chain)))
    return list(dict.fromkeys(chain[0] for chain in chains))


# headlines


#: Kinds of change that write the same in another form, and what that says about the graph as it is.
FORM_CHANGES = {
    "flatten": "",  # the headline names the dims or strides that differ
    "lengths": "lengths of sequences have other dims than (n, 1, 1, 1)",
    "bias_dims": "a bias of these dims, or its gradient, does not fit",
    "explicit_padding": "the convolution pads the sides of its image differently",
    "composite": ANOTHER_FORM,
    "view": "an operation only changes the view of memory",
    "unified": ANOTHER_FORM,
}
_COMPUTE_TYPE_TITLE = re.compile(r"(?:(.+): )?computation in (.+) -> (.+)")
_HEADS_TITLE = re.compile(r"heads of (.+), as many as (.+) has")  # of the change of that name
_PADDING_TITLE = re.compile(r"(?P<what>.*): (?P<old>\d+) -> \d+ \(a multiple of (?P<multiple>\d+)\)")


def describe_found_and_needed_values(graph: Graph, change: Change) -> str:
    """Describe a change by values found and needed: "bias is float32, float16 is needed"."""
    if change.kind == "ragged_stats":
        return f"{', '.join(change.tensors)} has no ragged offsets, and the sequences are ragged"
    ranks = _find_largest_tensor_rank_per_graph(graph, change.graph)
    if change.kind == "flatten" and ranks[0] > 2 and has_one_channel(graph) and not has_one_channel(change.graph):
        return "all tensors have one channel (dim 1), more are needed"
    if change.kind == "flatten" and ranks[0] != ranks[1]:
        return f"tensors have {ranks[0]} dims, {ranks[1]} are needed"
    if change.kind == "flatten":
        dims = list(max((tensor.dims for tensor in graph.tensors), key=math.prod))
        return f"dims {dims} are not supported, rows and columns as 1 x 1 images are"
    if said := FORM_CHANGES.get(change.kind):
        return f"{said}: {change.title}"
    if heads := _HEADS_TITLE.fullmatch(change.title):
        found = ", ".join(f"{name} has {old} heads" for name, old, *_ in map(str.split, heads[1].split(", ")))
        return f"{found}, a divisor of those of {heads[2]} is needed"
    if padded := _PADDING_TITLE.match(change.title):
        return f"{padded['what']} is {padded['old']}, a multiple of {padded['multiple']} is needed"
    if change.kind == "dims":
        return re.sub(r"(\] )-> (\[[^]]*\])", r"\1where \2 is needed", change.title)
    if computed := _COMPUTE_TYPE_TITLE.match(change.title):
        verb = f"{computed[1]} computes" if computed[1] else "operations compute"
        return f"{verb} in {computed[2]}, {computed[3]} is needed"
    groups: dict[tuple[str, str, str], list[Tensor]] = {}
    after = {tensor.name: tensor for tensor in change.graph.tensors}
    for tensor in graph.tensors:
        if tensor.name in change.tensors and tensor.name in after:
            for what, found, needed in _list_tensor_differences(tensor, after[tensor.name]):
                groups.setdefault((what, found, needed), []).append(tensor)
    parts = []
    for (what, found, needed), tensors in groups.items():
        has = "has" if len(tensors) == 1 else "have"
        if len(tensors) > MAX_NAMED_TENSORS:
            tensors.sort(key=lambda tensor: tensor.virtual)  # not all are named: those in memory first
        verb = "supported" if what == "strides" else "needed"  # the engine may take others, too
        parts.append(
            f"{join_names(tensors)} {has} {what} {found}, {needed} is {verb}"
            f"{_format_other_tensors_with_layout(graph, change, needed)}"
        )
    return "; ".join(parts[:3]) or change.title


def _find_largest_tensor_rank_per_graph(old: Graph, new: Graph) -> tuple[int, ...]:
    """Return the largest number of dims of a tensor in each of two graphs."""
    return tuple(max(tensor.rank for tensor in graph.tensors) for graph in (old, new))


def _format_other_tensors_with_layout(graph: Graph, change: Change, layout: str) -> str:
    """Return text that names the tensors which a change leaves alone, as they have the needed layout; or empty text."""
    memory = [t for t in graph.tensors if not t.virtual and t.rank >= _MIN_IMAGE_RANK and t.name not in change.tensors]
    same = [t for t in memory if layout in ("NHWC", "NCHW") and _name_layout(t) == layout]
    return f", as {join_names(same)} {'has' if len(same) == 1 else 'have'}" if same else ""


_MIN_IMAGE_RANK = 4  # dims from which on there are pixels


def _list_tensor_differences(old: Tensor, new: Tensor) -> Iterator[tuple[str, str, str]]:
    if old.rank != new.rank:
        yield "dims", str(list(old.dims)), str(list(new.dims))
        return
    if old.dims != new.dims:
        for axis, (one, other) in enumerate(zip(old.dims, new.dims, strict=True)):
            if one != other:
                yield f"dim {axis}", str(one), str(other)
        return
    if old.strides != new.strides:
        words = (_name_layout(old), _name_layout(new))
        if words in (("NCHW", "NHWC"), ("NHWC", "NHWC")):
            yield "layout", *words
        else:
            yield "strides", _format_strides(old), _format_strides(new)
    if old.data_type is not new.data_type:
        yield "data type", get_data_type_word(old.data_type), get_data_type_word(new.data_type)
    if old.alignment != new.alignment:
        yield "alignment", f"{old.alignment} byte{'' if old.alignment == 1 else 's'}", str(new.alignment)
    if old.reordering is not new.reordering:
        yield "reordering", old.reordering.name, new.reordering.name
    for name, one, other in (("virtual", old.virtual, new.virtual), ("by value", old.by_value, new.by_value)):
        if one != other:
            yield name, str(one), str(other)


def _format_strides(tensor: Tensor) -> str:
    word = {"NCHW": "row-major", "NHWC": ""}.get(_name_layout(tensor), _name_layout(tensor))
    return f"{list(tensor.strides)} ({word})" if word else f"{list(tensor.strides)}"


def _name_layout(tensor: Tensor) -> str:
    """Name a layout: NHWC, NCHW (four dims or more), row-major or column-major."""
    row_major = tensor.strides == packed_strides(tensor.dims)
    if tensor.rank >= 4:
        return "NHWC" if tensor.strides == channels_last(tensor.dims) else "NCHW" if row_major else ""
    return "row-major" if row_major else "column-major" if tensor.strides[-1] > tensor.strides[-2:][0] else ""


SILENT_TEXT = "said nothing more"  # how this package's own text in place of an empty one ends


def format_reason_statement(reason: Reason) -> str:
    """Return a reason's text on one line, without the source location that cuDNN adds."""
    return " ".join(reason.statement.split()).partition(" at: ")[0].rstrip(".")


def format_reason_quote(reason: Reason) -> str:
    """Return the reason's statement for a headline; empty for a bare C++ condition."""
    words = format_reason_statement(reason)
    numbers = name_data_types_given_as_numbers(words)
    return f" (cuDNN: {words}{f'; {numbers}' if numbers else ''})" if _is_prose_message(words) else ""


_CODE_WORD = re.compile(
    r"\b[a-z]+_[a-z]+_[a-z_]+\b|::|->"
)  # names of variables inside cuDNN, such as live_entrance_nodes


def _is_prose_message(words: str) -> bool:
    silent = words.endswith(SILENT_TEXT) or _CODE_WORD.search(words) is not None
    return not silent and re.match(r"[A-Za-z][\w'/()-]* [\w'/()<>=-]+ ", words) is not None


def format_most_readable_reason_quote(case: RefusalCase, reason: Reason) -> str:
    """Return the quoted reason; if it is not a sentence, quote the first other reason about this graph that is one."""
    return format_reason_quote(reason) or next(filter(None, map(format_reason_quote, case.specific_reasons)), "")


def blame_result_preserving_change(case: RefusalCase, reason: Reason) -> Cause | None:
    """Return the cause proven by an exact change; see :meth:`RefusalCase.find_exact_change`."""
    change = case.find_exact_change()
    codes = {"alignment": "alignment", "layout": "layout"}
    return None if change is None else blame_change(codes.get(change.kind, "shape"), case, change, reason)


# What reasons say that are about a cause, by its code; those of other codes are quoted next to any cause.
_WORDS_OF_CAUSES = {
    "architecture": r"(?i)capability|architecture|ampere|hopper|blackwell|rubin|device|\b(?:sm|arch)_?\d",
    "data-type": r"(?i)type|precision|fp\d+|f\d\d?\b|int\d+|float|half|double|_T\b|QMMA|e4m3|e5m2|I/O",
}


def format_reason_quote_for_cause_code(code: str, reason: Reason) -> str:
    """Return the quoted reason; empty if it does not mention what causes with this code are about.

    A reason that demands an architecture is not quoted for another form of the same, which lifts the demand.
    """
    said, words = format_reason_statement(reason), _WORDS_OF_CAUSES.get(code)
    if FORM_CHANGES.get(code) == ANOTHER_FORM and re.search(_WORDS_OF_CAUSES["architecture"], said):
        return ""
    return format_reason_quote(reason) if words is None or re.search(words, said) else ""


def blame_change(code: str, case: RefusalCase, change: Change, reason: Reason | None = None) -> Cause:
    """Return the cause proven by a successful change, of the tensors that need it."""
    change = case.drop_tensors_that_need_no_change(change)
    headline = describe_found_and_needed_values(case.graph, change) + (
        format_reason_quote_for_cause_code(code, reason) if reason else ""
    )
    detail = "with only this changed, cuDNN supports the graph"
    remedy = change.advice + case.format_known_issues(change.graph)
    return Cause(code, headline, Basis.MEASURED, detail, remedy)
