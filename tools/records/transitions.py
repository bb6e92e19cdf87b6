"""What a changed outcome between two cuDNN versions is: a rule, a known issue, or a documented change."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from cudnn_backend_py.generated.enums import DataType, DescriptorType
from cudnn_backend_py.graph import Graph
from cudnn_backend_py.graph.attention.known_issue import AttentionUse
from cudnn_backend_py.graph.attention.recognize import read_attention
from cudnn_backend_py.graph.attention.selections import find_engine_selection
from cudnn_backend_py.graph.data_types import FP8_TYPES
from cudnn_backend_py.graph.ir import Pointwise, Reduction
from cudnn_backend_py.known_issues import find_known_issues
from cudnn_backend_py.known_issues.graph_queries import find_matmuls, find_operations_of_kind
from cudnn_backend_py.plans.lower import find_newer_features
from cudnn_backend_py.system.version import Version, VersionTuple, format_version_numbers
from cudnn_backend_py.why.frontend_rules import describe_frontend_decision

__all__ = ["DOCUMENTED_CHANGES", "DocumentedSupportChange", "explain_support_change"]

_REFUSES = "refuses it: "


@dataclass(frozen=True)
class DocumentedSupportChange:
    """A change of support that docs/limits.md documents.

    Parameters
    ----------
    text
        The sentence of the page.
    after, by
        The last version before the change that was judged, and the first one with it.
    supports
        Whether graphs are supported since, or refused since.
    sm
        The architectures.
    attention, graph
        The condition, one of the two.
    """

    text: str
    after: VersionTuple
    by: VersionTuple
    supports: bool
    sm: tuple[int, ...]
    attention: Callable[[AttentionUse], bool] | None = None
    graph: Callable[[Graph], bool] | None = None

    def explains(self, graph: Graph, sm: int, supporting: VersionTuple, refusing: VersionTuple) -> bool:
        """Return whether the change is between the two versions, and applies to the graph."""
        old, new = (refusing, supporting) if self.supports else (supporting, refusing)
        if sm not in self.sm or not old <= self.after < self.by <= new:
            return False
        if self.graph is not None:
            return self.graph(graph)
        use = read_attention(graph)
        return use is not None and self.attention is not None and self.attention(use)


def _is_unified_backward(use: AttentionUse) -> bool:
    return use.backward and use.form == "unified"


def _has_only_elementwise_operations_on_two_dims(graph: Graph) -> bool:
    kinds = all(isinstance(op, Pointwise | Reduction) for op in graph.ops)
    return kinds and max(tensor.rank for tensor in graph.tensors) <= 2


def _is_fp8(use: AttentionUse) -> bool:
    return use.problem.data_type in FP8_TYPES and not use.problem.mx


def _is_block_scaled_matmul(graph: Graph) -> bool:
    scaled = find_operations_of_kind(graph, DescriptorType.OPERATION_BLOCK_SCALE_DEQUANTIZE)
    return len(find_matmuls(graph)) == 1 and any(scaled)


def _is_matmul_without_scales(graph: Graph) -> bool:
    return len(find_matmuls(graph)) == 1 and not _is_block_scaled_matmul(graph)


DOCUMENTED_CHANGES = (
    DocumentedSupportChange(
        "9.10.2 supports matmuls of more K and alignments on sm_10x and sm_12x; 9.9 refuses them.",
        *((9, 9, 0), (9, 10, 2), True, (100, 103, 120, 121)),
        graph=_is_matmul_without_scales,
    ),
    DocumentedSupportChange(
        "9.14 supports matmuls of more K and alignments on sm_8x and sm_90; 9.10 refuses them.",
        *((9, 10, 2), (9, 14, 0), True, (80, 86, 89, 90)),
        graph=_is_matmul_without_scales,
    ),
    DocumentedSupportChange(
        "9.14 accepts block-scaled matmuls with other block sizes and scales in any order; 9.10 refuses them.",
        *((9, 10, 2), (9, 14, 0), True, (80, 86, 89, 90, 100, 103, 120, 121)),
        graph=_is_block_scaled_matmul,
    ),
    DocumentedSupportChange(
        "9.10.2 supports forward passes with head dims above 128 on sm_8x and sm_12x; 9.9 refuses them.",
        *((9, 9, 0), (9, 10, 2), True, (80, 86, 89, 120, 121)),
        attention=lambda use: not use.backward and use.problem.head_dim > 128,
    ),
    DocumentedSupportChange(
        "9.14 supports sinks, and the row maximum and sum as results of a forward pass; 9.10 refuses them.",
        *((9, 10, 2), (9, 14, 0), True, (80, 86, 89, 90, 100, 103, 120, 121)),
        attention=lambda use: use.problem.sink or use.problem.max or use.problem.sum_exp,
    ),
    DocumentedSupportChange(
        "9.14 refuses dropout with a seed of int32 in backward passes on sm_10x; 9.10 accepts it.",
        *((9, 10, 2), (9, 14, 0), False, (100, 103)),
        attention=lambda use: use.backward and use.problem.dropout > 0 and use.problem.seed_type is DataType.INT32,
    ),
    DocumentedSupportChange(
        "9.22 supports the backward pass as one operation on sm_10x; 9.20 has no engine for it.",
        *((9, 20, 0), (9, 22, 0), True, (100, 103)),
        attention=_is_unified_backward,
    ),
    DocumentedSupportChange(
        "9.28 supports the backward pass as one operation on sm_8x, sm_90 and sm_12x too; 9.27 only on sm_10x.",
        *((9, 27, 0), (9, 28, 0), True, (80, 86, 89, 90, 100, 103, 120, 121)),
        attention=_is_unified_backward,
    ),
    DocumentedSupportChange(
        "9.17 supports attention with 8-bit floats on sm_12x; 9.14 refuses it.",
        *((9, 14, 0), (9, 17, 0), True, (120, 121)),
        attention=lambda use: not use.backward and _is_fp8(use),
    ),
    DocumentedSupportChange(
        "9.19 supports ragged backward passes on sm_8x and sm_12x, and ragged 8-bit attention on sm_12x; 9.17 not.",
        *((9, 17, 0), (9, 19, 0), True, (80, 86, 89, 120, 121)),
        attention=lambda use: use.problem.ragged and (use.backward or _is_fp8(use)),
    ),
    DocumentedSupportChange(
        "9.20 refuses pointwise operations and reductions of tensors with two dims; 9.19 accepts them.",
        *((9, 19, 0), (9, 20, 0), False, (80, 86, 89, 90, 100, 103, 120, 121)),
        graph=_has_only_elementwise_operations_on_two_dims,
    ),
)


def explain_support_change(graph: Graph, sm: int, supporting: Version, refusing: Version) -> str:
    """Return the reason for a graph's changed outcome; empty if the tables have none.

    It is ``rule: ...``, ``known issue CODE``, or ``documented change: ...``.

    Parameters
    ----------
    supporting, refusing
        The two versions, one right after the other, of which one supports the graph and one refuses it.
    """
    if newer := find_newer_features(graph, refusing):
        return f"rule: {newer[0].c_name} since cuDNN {format_version_numbers(newer[0].since)}"
    selection = find_engine_selection(graph, supporting, sm)
    if selection is not None and find_engine_selection(graph, refusing, sm) is None:
        return f"rule: {selection.by} selects engine {selection.engine} for {selection.what}, {selection.versions}"
    if codes := _find_issues_explaining_support_change(graph, sm, supporting, refusing):
        return f"known issue {codes[0]}"
    if reason := _find_frontend_rule_refusing_graph(graph, sm, supporting, refusing):
        return f"rule: cudnn-frontend 1.32 refuses it: {reason}"
    changes = (one.text for one in DOCUMENTED_CHANGES if one.explains(graph, sm, supporting, refusing))
    return next((f"documented change: {text}" for text in changes), "")


def _find_issues_explaining_support_change(graph: Graph, sm: int, supporting: Version, refusing: Version) -> list[str]:
    """Return issues of an accepted graph that the refusing version does not have, and issues that refuse a graph."""
    with_support, without = (
        {issue.code: issue for issue in find_known_issues(graph, sm, version) if not issue.depends_on}
        for version in (supporting, refusing)
    )
    refused = [code for code, issue in without.items() if issue.step == "check" and code not in with_support]
    return refused or [code for code in with_support if code not in without]


def _find_frontend_rule_refusing_graph(graph: Graph, sm: int, supporting: Version, refusing: Version) -> str:
    """Return the rule by which cudnn-frontend refuses attention with the refusing version alone; else empty."""
    use = read_attention(graph)
    if use is None:
        return ""
    answers = [
        describe_frontend_decision(use.problem, version, sm, backward=use.backward)
        for version in (supporting, refusing)
    ]
    accepted, refused = (not answer.startswith(_REFUSES) for answer in answers)
    return answers[1].removeprefix(_REFUSES) if accepted and not refused else ""
