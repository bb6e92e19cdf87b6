"""Graphs of one operation with edge-case inputs, to compare the interpreter's results with cuDNN's.

A case is a graph and its inputs. Unary pointwise operations get all numbers of a 16-bit type. Binary ones get all pairs
of 256 numbers, with infinities, NaN, zeros, denormals and the largest numbers. In a reduction, each row is an edge
case.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from cudnn_backend_py import DataType, Graph
from cudnn_backend_py.graph import Tensor
from cudnn_backend_py.graph.formats import is_integer, round_to_data_type
from tests.support import typical_graphs
from tests.support.edges import norms, others, pointwise, pools, products, reductions
from tests.support.edges.case import EDGE_CASES, REFUSED_EDGE_CASES, Array, EdgeCase
from tests.support.edges.numbers import list_edge_numbers

__all__ = [
    "CASE_MODULES",
    "EDGE_CASES",
    "REFUSED_EDGE_CASES",
    "EdgeCase",
    "list_edge_numbers",
    "list_operation_categories",
    "make_edge_case_inputs",
]

T = DataType
CASE_MODULES = (pointwise, reductions, pools, norms, products, others)  # each module adds its cases when it is imported


def make_edge_case_inputs(case: EdgeCase, graph: Graph) -> dict[str, Array]:
    """Return the inputs of a graph, those of the case and random others, rounded to their types."""
    given, written = case.given(), {tensor.uid for tensor in graph.outputs}
    made: dict[str, Array] = {}
    for place, tensor in enumerate(graph.variant_pack_tensors):
        if tensor.uid in written or tensor.by_value or tensor.scratch:
            continue
        value = given.get(tensor.name)
        made[tensor.name] = _make_random_values(tensor, place) if value is None else value
    return made


def _make_random_values(tensor: Tensor, seed: int) -> Array:
    random = np.random.default_rng([12, seed])
    if is_integer(tensor.data_type) or tensor.data_type is T.BOOLEAN:
        return random.integers(0, 2 if tensor.data_type is T.BOOLEAN else 4, tensor.dims)
    if tensor.name.endswith(("var", "scale")):
        return round_to_data_type(random.uniform(0.5, 2.0, tensor.dims), tensor.data_type)
    return round_to_data_type(random.normal(size=tensor.dims), tensor.data_type)


def list_operation_categories() -> Iterator[str]:
    """Yield each operation family, the first word of the cases' names."""
    yield from dict.fromkeys(name.split("/")[0] for name in EDGE_CASES)


# cases that cuDNN 9.19 refuses on an H200, and cases that are removed


def _is_edge_case_refused_by_cudnn(name: str) -> bool:
    family, words, *kinds = name.split("/")
    mode, *more = words.split()
    if family == "reduction":
        to = kinds[0].split()[1]
        if "matmul" in more:
            return mode in ("AVG", "NORM1", "NORM2", "MUL_NO_ZEROS")
        return mode not in ("ADD", "MIN", "MAX", "AMAX") or to != "FLOAT" or more[2] in ("1x128", "4x1x1x1")
    if family == "convert":
        wide = words in ("INT64", "DOUBLE") and kinds[0] not in ("INT64" if words == "INT64" else "DOUBLE",)
        return wide or kinds[0] in ("FP8_E8M0", "UINT32")
    if family == "pointwise":
        wide = kinds[0] in ("INT64", "DOUBLE") and mode != "GEN_INDEX"
        other = more == ["weighted"] or mode == "FLOOR_MOD" or (mode == "GEN_INDEX" and more[1] == "INT32")
        return wide or other or words == "CMP_GT into BOOLEAN"
    if family == "natural":
        return "h100" not in typical_graphs.TYPICAL_GRAPHS[words].supported or words in _KINDS_NEWER_THAN_9_19
    pads = ("ZERO_PAD", "EDGE_VAL_PAD")
    return (
        mode == "SCATTER" or (mode == "MAXPOOL" and any(pad in more for pad in pads)) or (family == "rng" and not more)
    )


_KINDS_NEWER_THAN_9_19 = (
    *("diagonal band mask", "experts, scattered", "rng", "rope fwd", "rope bwd", "sdpa bwd", "slice", "softmax"),
    *("moe grouped matmul bwd", "transpose"),
)
_CASES_WITH_KNOWN_ISSUES = ("natural/concat", "convolution/integers", "rng/attention UNIFORM", "rng/attention NORMAL")
for _name in list(EDGE_CASES):
    if "BOOLEAN" in _name and "into" not in _name and "virtual" not in _name:
        del EDGE_CASES[_name]  # a buffer of booleans is refused
    elif _name.startswith(_CASES_WITH_KNOWN_ISSUES) or ("backward" in _name and "packed" in _name):
        del EDGE_CASES[_name]  # has a known issue (docs/operations.md), or needs inputs that the case lacks
    elif _is_edge_case_refused_by_cudnn(_name):
        REFUSED_EDGE_CASES[_name] = EDGE_CASES.pop(_name)
