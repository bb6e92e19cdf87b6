"""Rules about attention: head dims, types, options and pairs of options."""

from __future__ import annotations

import re
from collections.abc import Callable

from ...frozen import FrozenValue
from ...generated.enums import DataType
from ...graph.data_types import HALF_TYPES, LOW_PRECISION_TYPES, get_data_type_word
from ...graph.ir import Graph
from ...plans.refusals import Reason
from ...rewrite.changes import Change, find_attention_dims, join_names
from ...rewrite.dims import EqualDims, resize_dims
from ..verdict import Basis, Cause
from .case import (
    RefusalCase,
    blame_change,
    blame_result_preserving_change,
    format_reason_quote,
    format_reason_statement,
)
from .registry import format_supporting_targets_remedy, register_phrase_rule
from .rules import _is_tensor_named, format_head_dim_names
from .together import (
    REFUSED_ALONE_DETAIL,
    blame_combined_options,
    blame_options_if_named_one_is_supported,
    blame_refused_attention_options,
)

__all__ = ["blame_refused_attention_options"]


@register_phrase_rule
def explain_head_dim(case: RefusalCase, reason: Reason) -> Cause | None:
    """The head dim is too large, or not a multiple of what the kernels support.

    Problem
        "Embedding dim per head ... is not a multiple of 8", "is not less than equal to 128", "Only D=128".
    Evidence
        The graph with the next multiple, or with the limit, and nothing else changed.
    Remedy
        Zeros up to the next multiple; for a limit another architecture or a newer cuDNN.
    Since
        Any version; limits differ: forward 128 until 9.0, 256 for Hopper and later.
    """
    dims = find_attention_dims(case.graph)
    both = [one for one in (dims.d, dims.d_v) if one is not None]
    if not both:
        return None
    limits = {int(n) for one in case.reasons for n in re.findall(r"(?:equal to|<=|Only D=|to be) ?(\d+)", one.text)}
    limits |= {int(n) for n in re.findall(r"(?:equal to|<=|Only D=|to be|d_qk >|d_v >) ?(\d+)", reason.text)}
    multiple = re.search(r"multiple of (\d+)|% (\d+) != 0", reason.text)
    refused = _RefusedHeadDims(case, reason, both, limits, int(multiple[1] or multiple[2]) if multiple else None)
    return next(filter(None, (explain(refused) for explain in _HEAD_DIM_EXPLANATIONS)), None)


class _RefusedHeadDims(FrozenValue):
    """The refused head dims, with the limits and the required multiple that cuDNN's messages name."""

    case: RefusalCase
    reason: Reason
    dims: list[EqualDims]
    limits: set[int]
    multiple: int | None

    @property
    def size(self) -> int:
        """The larger of the head dims."""
        return max(one.size for one in self.dims)

    @property
    def largest(self) -> list[EqualDims]:
        """The largest head dims: of Q and K, of V, or both if they are equal."""
        return [one for one in self.dims if one.size == self.size]

    @property
    def wrong(self) -> list[EqualDims]:
        """The head dims that are not the required multiple; if all are, the largest ones."""
        return [one for one in self.dims if self.multiple and one.size % self.multiple] or self.largest

    def blame(self, dims: list[EqualDims], needed: str, basis: Basis, detail: str = "", remedy: str = "") -> Cause:
        """Return a cause that names these head dims, their common size, and the needed one."""
        headline = f"{format_head_dim_names(self.case.graph, dims)} {dims[0].size}, {needed}"
        return Cause("head-dim", headline + format_reason_quote(self.reason), basis, detail, remedy)

    def format_upper_limit(self, limit: int) -> str:
        """Return the upper limit of a head dim, for a headline."""
        return f"at most {limit} is supported on sm_{self.case.target.sm}"


def _explain_by_reducing_one_head_dim(refused: _RefusedHeadDims) -> Cause | None:
    """Return the cause if reducing one of the two head dims makes the graph supported."""
    case = refused.case
    if not refused.limits or refused.multiple:
        return None
    alone = case.find_remedy("smaller_head_dim", keep=lambda change: change.title.count("->") == 1)
    if alone is None:
        return None
    what, found, limit = re.split(r": | -> ", alone.title)
    rest = [one for one in refused.dims if one.size != int(limit) and not _concerns_head_dims(alone, case.graph, one)]
    next_to = f" next to {rest[0].size} of {format_head_dim_names(case.graph, rest)[12:-3]}" if rest else ""
    quote = format_reason_quote(refused.reason)
    headline = f"{what} is {found}, at most {limit} is supported{next_to} on sm_{case.target.sm}{quote}"
    detail = f"with {alone.title}, and nothing else changed, cuDNN supports the graph"
    return Cause("head-dim", headline, Basis.MEASURED, detail, f"{alone.title} ({alone.effect})")


def _explain_by_padding(refused: _RefusedHeadDims) -> Cause | None:
    """Return the cause if padding the head dims with zeros makes the graph supported."""
    change = refused.case.find_remedy("pad_head_dim")
    if change is None:
        return None
    needed = "another is needed"
    if refused.multiple:
        needed = f"a multiple of {refused.multiple} is needed"
    elif to := re.search(r"-> (\d+)", change.title):
        needed = f"{to[1]} is supported on sm_{refused.case.target.sm}"
    padded = f"{change.title.partition(': ')[2]} of {', '.join(change.tensors)}"
    detail = f"with {padded}, and nothing else changed, cuDNN supports the graph"
    return refused.blame(refused.wrong, needed, Basis.MEASURED, detail, f"{change.title} ({change.effect})")


def _explain_by_required_multiple(refused: _RefusedHeadDims) -> Cause | None:
    """Return the cause if a head dim is not the multiple that cuDNN's message names."""
    case = refused.case
    if not refused.multiple or refused.size % refused.multiple == 0:
        return None
    alone = case.refused_options is not None and ("head dim",) in case.refused_options.sets
    basis, detail = (Basis.MEASURED, REFUSED_ALONE_DETAIL.format("it")) if alone else (Basis.RULE, "")
    remedy = "" if case.measure else "pad the head dim with zeros"
    return refused.blame(refused.wrong, f"a multiple of {refused.multiple} is needed", basis, detail, remedy)


def _explain_by_verified_limit(refused: _RefusedHeadDims) -> Cause | None:
    """Return the cause if the graph is supported with its head dim reduced to a limit that cuDNN names."""
    case = refused.case
    for limit in sorted(refused.limits, reverse=True):
        smaller = resize_dims(case.graph, refused.dims, limit) if limit < refused.size else None
        if smaller is not None and case.supports(smaller):
            detail = f"with a head dim of {limit}, and nothing else changed, cuDNN supports the graph"
            elsewhere = format_supporting_targets_remedy(case.supporting_architectures)
            return refused.blame(refused.largest, refused.format_upper_limit(limit), Basis.MEASURED, detail, elsewhere)
    return None


def _explain_by_stated_limit(refused: _RefusedHeadDims) -> Cause | None:
    """Return the cause if a head dim exceeds all limits that cuDNN's messages name."""
    most = max(refused.limits, default=refused.size)
    return refused.blame(refused.largest, refused.format_upper_limit(most), Basis.RULE) if refused.size > most else None


# Tried in this order; those that query cuDNN least come first.
_HEAD_DIM_EXPLANATIONS: tuple[Callable[[_RefusedHeadDims], Cause | None], ...] = (
    _explain_by_reducing_one_head_dim,
    _explain_by_padding,
    lambda refused: blame_options_if_named_one_is_supported(refused.case, "head dim"),
    _explain_by_required_multiple,
    lambda refused: blame_combined_options(refused.case, "head dim") if refused.limits else None,
    _explain_by_verified_limit,
    _explain_by_stated_limit,
)


def _concerns_head_dims(change: Change, graph: Graph, one: EqualDims) -> bool:
    """Return whether a change concerns one of these head dims."""
    names = {graph.tensor(uid).name for uid, _ in one.axes}
    return not names.isdisjoint(change.tensors)


@register_phrase_rule
def explain_low_precision(case: RefusalCase, reason: Reason) -> Cause | None:
    """8-bit or smaller floats, on an architecture or in a kind of graph for which there are no kernels.

    Problem
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
    memory = [tensor for tensor in case.graph.tensors if not tensor.virtual]
    small = [t for t in memory if t.data_type in LOW_PRECISION_TYPES and t.data_type is not DataType.FP8_E8M0]
    if not small:
        return None
    kinds = dict.fromkeys(tensor.data_type for tensor in small)
    named = (
        f"{join_names([t for t in small if t.data_type is kind])} data type {get_data_type_word(kind)}"
        for kind in kinds
    )
    found = " and ".join(named).replace(" data type", f" {'has' if len(small) == 1 else 'have'} data type", 1)
    wide = [t for t in case.graph.outputs if t.data_type in HALF_TYPES]
    found += f" and the output {join_names(wide)} {get_data_type_word(wide[0].data_type)}" if wide else ""
    if said := blame_options_if_named_one_is_supported(case, "data type") or blame_combined_options(case, "data type"):
        return said
    if near := blame_result_preserving_change(case, reason):
        return near
    others = case.supporting_architectures
    if others:
        needed = f"with which this graph is supported on {', '.join(others)}, not on sm_{case.target.sm}"
        headline = f"{found}, {needed}{format_reason_quote(reason)}"
        return Cause(
            "data-type",
            headline,
            Basis.MEASURED,
            "the same graph was judged there",
            format_supporting_targets_remedy(others),
        )
    change = case.find_remedy("data_type")
    if change is not None:
        return blame_change("data-type", case, change, reason if _TYPE_WORDS.search(reason.text) else None)
    if not _TYPE_WORDS.search(reason.text):
        return Cause(
            "refused", f"cuDNN: {format_reason_statement(reason)}", Basis.RULE, "quoted; nothing else was measured"
        )
    return Cause(
        "data-type", f"{found}; cuDNN refuses it on sm_{case.target.sm}{format_reason_quote(reason)}", Basis.RULE
    )


# Reasons about types or architectures, as opposed to reasons about, for example, the dims of scales.
_TYPE_WORDS = re.compile(r"(?i)fp8|fp16|bf16|QMMA|e4m3|e5m2|mxfp8|nvfp4|data ?type|supported|architecture")


@register_phrase_rule
def explain_option(case: RefusalCase, reason: Reason) -> Cause | None:
    """An option of attention (ragged, paged, dropout, bias, mask, statistics) that the engine does not support.

    Problem
        "Paged Attention supported with only ...", "Flash Attention with ragged offset can only be run with sm_90",
        "Block mask is only supported on Blackwell", "ragged (THD) layouts require a ragged (packed) Stats tensor".
    Evidence
        The graph without that option; the same graph on other architectures.
    Remedy
        Without the option, or where it is supported.
    Since
        Any version.
    """
    found = blame_refused_attention_options(case)
    if found is not None or not case.is_attention:  # the biases of other graphs are operations
        return found
    named = [tensor for tensor in case.graph.tensors if _is_tensor_named(tensor, reason.text)]
    what = f"{join_names(named)}: " if named else ""
    words = format_reason_statement(reason)
    others = case.supporting_architectures
    if others:
        headline = f"{what}{words}; sm_{case.target.sm} was queried, the graph is supported on {', '.join(others)}"
        return Cause("option", headline, Basis.MEASURED, "the same graph was judged there")
    return Cause("option", f"{what}{words}", Basis.RULE, reason.text)
