"""Coverage of random graphs: counts of operations, modes, types, layouts, ranks and options."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from cudnn_backend_py.generated.enums import (
    CudnnEnum,
    DescriptorType,
    NormMode,
    PointwiseMode,
    ReduceTensorOp,
    ResampleMode,
)
from cudnn_backend_py.graph import Graph, Pointwise, Reduction, Tensor
from cudnn_backend_py.graph.data_types import SHORT_TYPES
from cudnn_backend_py.graph.replace import iterate_all_ops
from cudnn_backend_py.graph.strides import channels_last, packed_strides

__all__ = ["find_features_of_no_graph", "list_graph_features"]

_ENUM_FIELDS = {"mode": "mode", "phase": "phase", "distribution": "distribution", "padding_mode": "padding"}
_EXPECTED_FEATURES: dict[str, Iterable[Any]] = {
    "operation": [kind for kind in DescriptorType if kind.name.startswith("OPERATION_")],
    "pointwise": list(PointwiseMode),
    "reduction": list(ReduceTensorOp),
    "norm": list(NormMode),
    "resample": list(ResampleMode),
}


def list_graph_features(graph: Graph) -> Counter[str]:
    """Return the features of a graph by subject, such as ``"pointwise RELU_FWD"``, each counted once."""
    found: set[str] = set()
    for op in iterate_all_ops(graph):
        found.add(f"operation {_name_operation(op.kind)}")
        if isinstance(op, Pointwise):
            found.add(f"pointwise {op.mode.name}")
        elif isinstance(op, Reduction):
            found.add(f"reduction {op.operator.name}")
        else:
            family = _name_operation(op.kind).split("_")[0].lower()
            for key, value in op.parameters().items():
                found |= _list_mode_features(family, key, value)
    for tensor in graph.tensors:
        if not tensor.by_value:
            where = "virtual" if tensor.virtual else "in memory"
            found |= {f"type {SHORT_TYPES[tensor.data_type]} {where}", f"rank {tensor.rank}"}
        if not tensor.virtual and not tensor.by_value and max(tensor.dims) > 1:
            found.add(f"layout {_describe_layout(tensor)}")
    return Counter(found)


def _list_mode_features(family: str, key: str, value: Any) -> set[str]:
    if isinstance(value, CudnnEnum) and key in _ENUM_FIELDS:
        return {f"{family} {value.name}"}
    fields: Mapping[str, Any] = getattr(value, "fields", {})
    return {
        f"{family} {item.name}" for name, item in fields.items() if isinstance(item, CudnnEnum) and name in _ENUM_FIELDS
    }


def _describe_layout(tensor: Tensor) -> str:
    if tensor.ragged_offset is not None:
        return "ragged"
    if tensor.strides == packed_strides(tensor.dims):
        return "row-major"
    if tensor.rank > 2 and tensor.strides == channels_last(tensor.dims):
        return "channels last"
    return "with gaps" if tensor.span_elements > _count_elements(tensor.dims) else "permuted"


def _count_elements(dims: tuple[int, ...]) -> int:
    product = 1
    for dim in dims:
        product *= dim
    return product


def _name_operation(kind: DescriptorType) -> str:
    return kind.name.removeprefix("OPERATION_")


def find_features_of_no_graph(counts: Mapping[str, int]) -> dict[str, list[str]]:
    """Return, by subject (such as "operation"), the members of its enum that no counted graph has."""
    found = {}
    for subject, whole in _EXPECTED_FEATURES.items():
        names = dict.fromkeys(_name_operation(item) if subject == "operation" else item.name for item in whole)
        found[subject] = [name for name in names if not counts.get(f"{subject} {name}")]
    return found
