"""Rules about the operations of a graph: which do not fit together, and which must be in graphs of their own."""

from __future__ import annotations

import dataclasses
import math
from functools import partial

from ...generated.enums import DescriptorType
from ...generated.operations import CONVOLUTIONS
from ...graph.ir import Matmul, Operation, Pointwise, Reduction
from ...graph.replace import try_to_make_graph
from ...plans.refusals import Reason
from ...rewrite.changes import iterate_changes
from ...rewrite.changes.change import find_read_uids, find_written_uids
from ...rewrite.changes.forms import find_reductions_before_other_operations
from ...rewrite.shapes import compute_input_by_matmul
from ...rewrite.unusual import find_unusual_properties
from ..verdict import Basis, Cause
from .case import (
    FORM_CHANGES,
    RefusalCase,
    blame_change,
    blame_result_preserving_change,
    format_most_readable_reason_quote,
    format_reason_quote,
)
from .phrases import is_vague
from .registry import format_architecture_support, format_supporting_targets_remedy, register_phrase_rule
from .together import blame_refused_attention_options

__all__ = ["explain_no_product", "explain_two_graphs"]

_PRODUCT_OPERATIONS = (
    *CONVOLUTIONS,
    DescriptorType.OPERATION_MOE_GROUPED_MATMUL,
    DescriptorType.OPERATION_MOE_GROUPED_MATMUL_BWD,
)


@register_phrase_rule
def explain_no_product(case: RefusalCase, reason: Reason) -> Cause | None:
    """The engines that cuDNN lists need a matmul or a convolution, and there is none.

    Problem
        ``(mmaNodeCount == 0) && !is_pointwise_fusion``.
    Evidence
        cuDNN's condition, the operations of the graph, and the graph with a matmul before them, also on other
        architectures: this one may lack what the operations need.
    Remedy
        The operation in the graph of the product it belongs to.
    Since
        Any version.
    """
    others = [op for op in case.graph.ops if not isinstance(op, Matmul | Pointwise | Reduction)]
    if not others or any(isinstance(op, Matmul) or op.kind in _PRODUCT_OPERATIONS for op in case.graph.ops):
        return None
    names = ", ".join(f"{op.name} ({op.display_name()})" for op in others[:4])
    headline = f"there is no matmul or convolution in the graph, which the engines listed for it with {names} need"
    remedy = "put it into the graph of the matmul before or after it"
    if any(op.kind is DescriptorType.OPERATION_BN_BWD_WEIGHTS for op in others):
        remedy = (
            "put it after a data gradient of a convolution, the batch norm once more, and RELU_BWD with its result in "
            "memory, in one graph"
        )
    cause = Cause("operation", headline, Basis.RULE, reason.text, remedy)
    read = find_read_uids(case.graph) - find_written_uids(case.graph)
    inputs = [tensor.name for tensor in case.graph.tensors if tensor.uid in read]
    for name in inputs if case.measure else ():
        if whole := try_to_make_graph(partial(compute_input_by_matmul, case.graph, name)):
            remedy = f"put it into the graph of the matmul that writes {name}"
            break
    else:
        return cause
    if case.passes_support_check(whole):
        return dataclasses.replace(cause, remedy=remedy, asked="support check")
    if not (supporting := dataclasses.replace(case, graph=whole).supporting_architectures):
        return cause
    how = " in the graph of a matmul, and there is none in this graph"
    headline = format_architecture_support(case, supporting, graph=names, how=how)
    remedy = f"{format_supporting_targets_remedy(supporting)}, and {remedy}"
    return Cause(
        "architecture", headline, Basis.RULE, "the graph with a matmul was judged there", remedy, "support check"
    )


def explain_two_graphs(case: RefusalCase, reason: Reason | None = None) -> Cause | None:
    """Operations before or after a matmul, norm or similar must be in a separate graph.

    Problem
        Any; for a graph that is no attention.
    Evidence
        The graph as two, both supported; the cut that leaves least in memory.
    Remedy
        Those two graphs.
    Since
        Any version.
    """
    cut = None if case.is_attention else case.find_supported_split_in_two_graphs()
    if cut is None:
        return None
    before, after = ({op.name for op in graph.ops} for graph in cut.graphs)
    main = next((op for op in case.graph.ops if not isinstance(op, Pointwise | Reduction)), case.graph.ops[0])
    others = [op for op in case.graph.ops if op.name in (after if main.name in before else before)]
    where = "after" if main.name in before else "before"
    nearest = others[:4] if where == "after" else others[:-5:-1]
    names = ", ".join(f"{op.name} ({op.display_name()})" for op in nearest)
    names += f" and {len(others) - 4} more" if len(others) > 4 else ""
    said = [one for one in (*([reason] if reason else []), *case.specific_reasons) if not is_vague(one.text)]
    quoted = next(filter(None, map(format_reason_quote, said)), "")
    headline = f"{names} {where} {main.name} ({main.display_name()}): not supported in one graph with it"
    rows = next((one for one in case.reasons if "VEC_COLS % VEC_COLS_PER_LDG" in one.text), None)
    if rows is not None and "scale" in (ports := dict(main.ports())):
        headline += f" where rows have {math.prod(ports['scale'].dims)} elements"
        quoted = format_reason_quote(rows)
    detail = "each of the two graphs was judged by itself"
    issues = "".join(dict.fromkeys(map(case.format_known_issues, cut.graphs)))
    return Cause("operation", headline + quoted, Basis.MEASURED, detail, cut.title + issues)


@register_phrase_rule
def explain_read_reduction(case: RefusalCase, reason: Reason) -> Cause | None:
    """Operations read the result of a reduction, which must be the last operation of its graph.

    Problem
        ``node->getConsumerNodes().size() != 0``.
    Evidence
        A graph for each such reduction, with tensors of another rank where an engine needs it.
    Remedy
        Those graphs.
    Since
        Any version.
    """
    ends = [case.graph.ops[number] for number in find_reductions_before_other_operations(case.graph)]
    if not ends or case.is_attention:
        return None
    names = " and ".join(f"{op.name} ({op.display_name()})" for op in ends)
    headline = f"other operations read the result of {names}: a reduction must be the last operation of its graph"
    for change in iterate_changes(case.graph, ("split",)) if case.measure else ():
        parts = [dataclasses.replace(case, graph=part) for part in change.graphs]
        if not parts or any(find_reductions_before_other_operations(one.graph) for one in parts):
            continue
        more = [None if one.supports(one.graph) else one.find_remedy("flatten") for one in parts]
        if all(step or one.passes_support_check(one.graph) for one, step in zip(parts, more, strict=True)):
            steps = [(number, step.advice) for number, step in enumerate(more, 1) if step]
            if len(steps) > 1:
                forms = [f"in them {one}" for one in dict.fromkeys(step.partition(": ")[0] for _, step in steps)]
            else:
                forms = [f"in graph {number} {step}" for number, step in steps]
            remedy = "; and ".join([change.title, *forms])
            return Cause("operation", headline, Basis.MEASURED, "each of the graphs was judged by itself", remedy)
    return Cause("operation", headline, Basis.RULE, reason.text)


def _explain_need_for_other_value_and_two_graphs(case: RefusalCase, reason: Reason) -> Cause | None:
    """A property of one tensor is unusual, and operations must be in a separate graph; neither change alone helps.

    Problem
        Any, such as a weight gradient of float16 of a norm after other operations.
    Evidence
        The graph with the usual value, as two.
    Remedy
        That value, and two graphs.
    Since
        Any version.
    """
    if case.is_attention or not case.measure:
        return None
    for one in find_unusual_properties(case.graph)[:_MAX_PROPERTIES_WITH_SPLIT]:
        changed = one.undo(case.graph) if one.aspect != "operation" and one.effect != "idea" else None
        if changed is None:
            continue
        if case.passes_support_check(changed):
            return None  # the property alone is refused, which another rule says
        if not (cut := explain_two_graphs(dataclasses.replace(case, graph=changed), reason)):
            continue
        headline = f"{one.describe_needed_value()}; and also {cut.headline}"
        return dataclasses.replace(
            cut, headline=headline, remedy=f"{one.format_change_that_undoes_it()}; and {cut.remedy}"
        )
    return None


_MAX_PROPERTIES_WITH_SPLIT = 6  # each is judged with every split


@register_phrase_rule
def explain_operation(case: RefusalCase, reason: Reason) -> Cause | None:
    """An operation does not match any pattern of the engines.

    Problem
        "Unsupported reduction op in the graph", "Not supported node in flash fprop", "Unsupported node".
    Evidence
        The graph without one operation after the other.
    Remedy
        Leave it out, or split the graph there.
    Since
        Any version.
    """
    if found := blame_refused_attention_options(case):  # nearer, and some graphs without an operation kill cuDNN
        return found
    same = case.find_remedy(
        *FORM_CHANGES, keep=lambda change: change.effect == "exact"
    )  # nearer than to leave something out
    if same is not None:
        return blame_change("operation", case, same, reason)
    if near := blame_result_preserving_change(case, reason):
        return near
    inner = None if case.is_attention else case.find_remedy("intermediate_type")
    if inner is not None:
        return blame_change("data-type", case, inner, reason)
    if said := explain_two_graphs(case, reason) or _explain_need_for_other_value_and_two_graphs(case, reason):
        return said
    dropped = case.find_remedies("drop_operation")
    named = (change.title.removeprefix("without the operation").removeprefix("s") for change in dropped)
    names = [text.partition(", which")[0].strip() for text in named]
    names = list(dict.fromkeys(names))[:3]
    quoted = format_most_readable_reason_quote(case, reason)
    if names:
        verb = "do not fit together" if len(names) > 1 else "does not fit into this graph"
        headline = f"operation{'s' if len(names) > 1 else ''} {' and '.join(names)} {verb}{quoted}"
        detail = f"{dropped[0].title}, cuDNN supports the graph"
        return Cause("operation", headline, Basis.MEASURED, detail, f"{dropped[0].title} ({dropped[0].effect})")
    if len(case.graph.ops) == 1 and quoted:
        only = case.graph.ops[0]
        return Cause(
            "operation",
            f"operation {only.name} ({only.display_name()}) is not supported with these tensors{quoted}",
            Basis.RULE,
            reason.text,
        )
    usual = (DescriptorType.OPERATION_RESHAPE, DescriptorType.OPERATION_RNG)
    unusual = [op for op in case.graph.ops if isinstance(op, Operation) and op.kind not in usual]
    if not unusual or not quoted:
        return None
    listed = ", ".join(f"{op.name} ({op.display_name()})" for op in unusual[:4])
    return Cause(
        "operation", f"an operation does not match the pattern, perhaps {listed}{quoted}", Basis.RULE, reason.text
    )
