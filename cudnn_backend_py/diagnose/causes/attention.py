"""Rules about attention: head dims, types, options and pairs of them."""

from __future__ import annotations

import re

from ...graph.data_types import HALF_TYPES, LOW_PRECISION_TYPES
from ...graph.ir import Graph
from ...plans.refusals import Reason
from ...rewrite.changes import Change, describe, head_dims
from ...rewrite.dims import DimClass, resize
from ..verdict import Basis, Cause
from .case import Case, blame_change, blame_near, quote, statement, type_word
from .rules import _is_named, judge_for, name_dims, word_rule
from .together import ALONE, blame_beside, blame_others, options_refused

__all__ = ["options_refused"]


@word_rule
def head_dim(case: Case, reason: Reason) -> Cause | None:
    """The head dim is not a multiple of what the kernels support, or too large.

    Fault
        "Embedding dim per head ... is not a multiple of 8", "is not less than equal to 128", "Only D=128".
    Evidence
        The graph with the next multiple, or with the limit, and nothing else changed.
    Remedy
        Zeros up to the next multiple; for a limit another architecture or a newer cuDNN.
    Since
        Any version; limits differ: forward 128 until 9.0, 256 for Hopper and later.
    """
    dims = head_dims(case.graph)
    both = [one for one in (dims.d, dims.d_v) if one is not None]
    if not both:
        return None
    texts = [found.text for found in case.reasons]
    multiple = re.search(r"multiple of (\d+)|% (\d+) != 0", reason.text)
    limits = {int(n) for text in texts for n in re.findall(r"(?:equal to|<=|Only D=|to be) ?(\d+)", text)}
    limits |= {int(n) for n in re.findall(r"(?:equal to|<=|Only D=|to be|d_qk >|d_v >) ?(\d+)", reason.text)}
    size = max(one.size for one in both)
    if limits and not multiple:
        alone = case.cure("smaller_head_dim", keep=lambda change: change.title.count("->") == 1)
        if alone is not None:
            what, found, limit = re.split(r": | -> ", alone.title)
            rest = [one for one in both if one.size != int(limit) and not _is_about(alone, case.graph, one)]
            beside = f" beside {rest[0].size} of {name_dims(case.graph, rest)[12:-3]}" if rest else ""
            headline = f"{what} is {found}, at most {limit} is supported{beside} on sm_{case.target.sm}"
            detail = f"with {alone.title}, and nothing else changed, cuDNN supports the graph"
            remedy = f"{alone.title} ({alone.effect})"
            return Cause("head-dim", headline + quote(reason), Basis.MEASURED, detail, remedy)
    change = case.cure("pad_head_dim")
    if change is None and (said := blame_others(case, "head dim")):
        return said
    wrong = [one for one in both if one.size == size]
    if change is not None or (multiple and size % int(multiple[1] or multiple[2])):
        wrong = [one for one in both if multiple and one.size % int(multiple[1] or multiple[2])] or wrong
        needed = f"a multiple of {multiple[1] or multiple[2]} is needed" if multiple else "another is needed"
        if change is not None and not multiple and (to := re.search(r"-> (\d+)", change.title)):
            needed = f"{to[1]} is supported on sm_{case.target.sm}"
        headline = f"{name_dims(case.graph, wrong)} {wrong[0].size}, {needed}"
        if change is None:
            blamed = case.blame is not None and ("head dim",) in case.blame.sets
            basis, detail = (Basis.MEASURED, ALONE.format("it")) if blamed else (Basis.RULE, "")
            remedy = "" if case.measure else "pad the head dim with zeros"
            return Cause("head-dim", headline + quote(reason), basis, detail, remedy)
        names = ", ".join(change.tensors)
        detail = (
            f"with {change.title.partition(': ')[2]} of {names}, and nothing else changed, cuDNN supports the graph"
        )
        return Cause("head-dim", headline + quote(reason), Basis.MEASURED, detail, f"{change.title} ({change.effect})")
    if change is None and limits and (together := blame_beside(case, "head dim")):
        return together
    for limit in sorted(limits, reverse=True):
        smaller = resize(case.graph, both, limit) if limit < size else None
        headline = f"{name_dims(case.graph, wrong)} {size}, at most {limit} is supported on sm_{case.target.sm}"
        if smaller is not None and case.supports(smaller):
            detail = f"with a head dim of {limit}, and nothing else changed, cuDNN supports the graph"
            return Cause("head-dim", headline + quote(reason), Basis.MEASURED, detail, judge_for(case.elsewhere))
    if limits and size > max(limits):
        headline = f"{name_dims(case.graph, wrong)} {size}, at most {max(limits)} is supported on sm_{case.target.sm}"
        return Cause("head-dim", headline + quote(reason), Basis.RULE)
    return None


def _is_about(change: Change, graph: Graph, one: DimClass) -> bool:
    """Return whether a change of dims is one of these."""
    names = {graph.tensor(uid).name for uid, _ in one.axes}
    return not names.isdisjoint(change.tensors)


@word_rule
def low_precision(case: Case, reason: Reason) -> Cause | None:
    """8-bit (or smaller) floats on an architecture, or in a form, that has no kernels for them.

    Fault
        "MHA only supports FP16/BF16 I/O for selected engine config", "FP8 Flash Attention is not supported for sm_80",
        "QMMA kernels are only executable on specific architectures", "FP8 input with F16 output is only supported on
        Blackwell".
    Evidence
        The same graph on other architectures; where none supports it, the graph in half precision.
    Remedy
        A newer architecture, or half precision.
    Since
        fp8 attention: Hopper with 9.0, sm_120 with later versions.
    """
    small = [tensor for tensor in case.graph.tensors if tensor.data_type in LOW_PRECISION_TYPES and not tensor.virtual]
    if not small:
        return None
    found = f"{describe(small)} {'has' if len(small) == 1 else 'have'} data type {type_word(small[0].data_type)}"
    wide = [t for t in case.graph.outputs if t.data_type in HALF_TYPES]
    found += f" and the output {describe(wide)} {type_word(wide[0].data_type)}" if wide else ""
    if said := blame_others(case, "data type") or blame_beside(case, "data type"):
        return said
    if near := blame_near(case, reason):
        return near
    others = case.elsewhere
    if others:
        needed = f"with which this graph is supported on {', '.join(others)}, not on sm_{case.target.sm}"
        headline = f"{found}, {needed}{quote(reason)}"
        return Cause("data-type", headline, Basis.MEASURED, "the same graph was asked about there", judge_for(others))
    change = case.cure("data_type")
    if change is not None:
        return blame_change("data-type", case, change, reason)
    return Cause("data-type", f"{found}, which sm_{case.target.sm} does not take{quote(reason)}", Basis.RULE)


@word_rule
def option(case: Case, reason: Reason) -> Cause | None:
    """An option of attention (ragged, paged, dropout, bias, mask, statistics) that the engine does not support.

    Fault
        "Paged Attention supported with only ...", "Flash Attention with ragged offset can only be run with sm_90",
        "Block mask is only supported on Blackwell", "ragged (THD) layouts require a ragged (packed) Stats tensor".
    Evidence
        The graph without that option; the same graph on other architectures.
    Remedy
        Without the option, or where it is supported.
    Since
        Any version.
    """
    found = options_refused(case)
    if found is not None or not case.is_attention:  # the biases of other graphs are operations
        return found
    named = [tensor for tensor in case.graph.tensors if _is_named(tensor, reason.text)]
    what = f"{describe(named)}: " if named else ""
    words = statement(reason)
    others = case.elsewhere
    if others:
        headline = f"{what}{words}; sm_{case.target.sm} was asked, the graph is supported on {', '.join(others)}"
        return Cause("option", headline, Basis.MEASURED, "the same graph was asked about there")
    return Cause("option", f"{what}{words}", Basis.RULE, reason.text)
