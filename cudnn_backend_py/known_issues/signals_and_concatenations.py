"""Known issues of signals and concatenations."""

from __future__ import annotations

from ..generated.enums import DescriptorType
from ..graph.attention.known_issue import KnownIssue
from ..graph.ir import Graph
from ..system.version import VersionRange
from . import graph_queries
from .sources import MEASURED_ON_GPU

__all__ = ["OTHERS"]


def _has_concat_with_later_virtual_input(graph: Graph) -> bool:
    """Whether a concatenation has a virtual input other than its first one."""
    return any(
        tensor.virtual
        for op in graph_queries.find_operations_of_kind(graph, DescriptorType.OPERATION_CONCAT)
        for port, tensor in op.inputs().items()
        if port != "input[0]"
    )


OTHERS: tuple[KnownIssue, ...] = (
    KnownIssue(
        "signal",
        what="a signal",
        effect="some graphs with one are supported in some processes and refused in others",
        fix="leave the signal out, and order the kernels by a stream or an event",
        source="tests/torture/graphs.py",
        evidence="measured with 9.28.0, deviceless, in random graphs asked in two processes each",
        versions=VersionRange(since=(9, 28, 0)),
        graph=lambda graph: any(graph_queries.find_operations_of_kind(graph, DescriptorType.OPERATION_SIGNAL)),
        step="check",
    ),
    KnownIssue(
        "concatenation-behind",
        what="a concatenation in which a tensor that the graph computes is not the first",
        effect="it is written to the beginning of the result, without room for the others",
        fix="let what is computed be the first",
        source=MEASURED_ON_GPU,
        evidence="measured with 9.19.0 on sm_90: 4 of 4 random graphs; 3 of 3 with the computed tensor first are right",
        graph=_has_concat_with_later_virtual_input,
    ),
)
