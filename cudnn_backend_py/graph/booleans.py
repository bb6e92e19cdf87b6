"""The memory format of ``BOOLEAN`` tensors, which differs from that of frameworks."""

from __future__ import annotations

from ..generated.enums import DataType
from .ir import Graph

__all__ = ["BOOLEANS_IN_MEMORY", "PACK_BOOLEANS", "describe_boolean_memory_format"]

BOOLEANS_IN_MEMORY = "booleans-in-memory"
PACK_BOOLEANS = "pack them (numpy.packbits with bitorder='little'), or keep booleans inside the graph"
_LIE = (
    "eight elements are in a byte, the first in its lowest bit (measured with 9.19.0 and 9.28.0 on sm_90; the code for "
    "sm_80 and sm_100 is alike). In a buffer with a byte for each, as of torch.bool, a mask is misread, and a result "
    "fills the first eighth"
)


def describe_boolean_memory_format(graph: Graph) -> str:
    """Return a note on the memory format of a graph's BOOLEAN tensors; empty if none is in memory."""
    found = [
        repr(tensor.name)
        for tensor in graph.variant_pack_tensors
        if tensor.data_type is DataType.BOOLEAN and not tensor.by_value
    ]
    if not found:
        return ""
    return f"mind BOOLEAN tensors in memory ({BOOLEANS_IN_MEMORY}): of {', '.join(found)} {_LIE}; {PACK_BOOLEANS}"
