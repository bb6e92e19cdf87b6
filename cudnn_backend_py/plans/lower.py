"""Convert graph values to descriptor values, without loading a library.

One :class:`~cudnn_backend_py.graph.ir.Tensor` becomes one descriptor value, whichever operations share it, and that
identity is what :func:`cudnn_backend_py.native.descriptors_from_values.build` keeps.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any

from ..generated.attributes import DescriptorValue, get_attributes
from ..generated.enums import CudnnEnum, DataType, TensorReordering
from ..generated.enums import DescriptorType as D
from ..graph.ir import ACTIVATION_NUMBERS, Graph, Matmul, Op, Operation, Parameters, Pointwise, Reduction, Tensor
from ..system.version import VersionTuple

__all__ = ["lower"]


def lower(graph: Graph) -> tuple[DescriptorValue, ...]:
    """Return the operation descriptors of a graph, in the order of its operations.

    C: the values of ``CUDNN_ATTR_OPERATIONGRAPH_OPS``.
    """
    return _Lowering().lower_ops(graph)


def find_newer_features(graph: Graph, version: VersionTuple) -> list[CudnnEnum]:
    """Return the features of a graph newer than cuDNN `version`, newest first.

    Of a descriptor, its attributes and their values that came together, one.
    """
    found: dict[str, CudnnEnum] = {}  # by C name: enumerators of two enums with one number are equal
    waiting: deque[Any] = deque(lower(graph))
    seen: set[int] = set()
    while waiting:
        value = waiting.popleft()
        if isinstance(value, tuple):
            waiting += value
        elif isinstance(value, CudnnEnum):
            found[value.c_name] = value
        elif isinstance(value, DescriptorValue) and id(value) not in seen:
            seen.add(id(value))
            found[value.kind.c_name] = value.kind
            named = {since for since in (value.kind.since,) if since > version}
            for facts in get_attributes(value.kind):
                content = value.fields.get(facts.field)
                if content is None or (isinstance(content, CudnnEnum) and content.since in named):
                    continue
                waiting.append(content)
                if facts.since not in named:
                    named.add(facts.since)
                    found[facts.attribute.c_name] = facts.attribute
    newer = [one for one in found.values() if one.since > version]
    return sorted(newer, key=lambda one: (one.since, one.c_name), reverse=True)


class _Lowering:
    """Converts operations to descriptor values; each tensor and matmul descriptor is made only once."""

    def __init__(self) -> None:
        self._tensors: dict[int, DescriptorValue] = {}
        self._matmuls: dict[tuple[DataType, float | None], DescriptorValue] = {}

    def lower_ops(self, graph: Graph) -> tuple[DescriptorValue, ...]:
        return tuple(self.lower_op(op) for op in graph.ops)

    def lower_op(self, op: Op) -> DescriptorValue:
        if isinstance(op, Matmul):
            return self._lower_matmul(op)
        if isinstance(op, Pointwise):
            return self._lower_pointwise(op)
        if isinstance(op, Reduction):
            return self._lower_reduction(op)
        assert isinstance(op, Operation)
        return self._lower_fields(op.kind, op.fields)

    def lower_tensor(self, tensor: Tensor) -> DescriptorValue:
        made = self._tensors.get(tensor.uid)
        if made is None:
            vectorized = tensor.vector_count != 1
            made = self._tensors[tensor.uid] = _make_value(
                D.TENSOR,
                unique_id=tensor.uid,
                data_type=tensor.data_type,
                byte_alignment=tensor.alignment,
                dimensions=tensor.dims,
                strides=tensor.strides,
                is_virtual=True if tensor.virtual else None,
                is_by_value=True if tensor.by_value else None,
                reordering_mode=None if tensor.reordering is TensorReordering.NONE else tensor.reordering,
                ragged_offset=self._lower_optional_tensor(tensor.ragged_offset),
                ragged_offset_multiplier=None
                if tensor.ragged_offset_multiplier == 1
                else tensor.ragged_offset_multiplier,
                vector_count=tensor.vector_count if vectorized else None,
                vectorized_dimension=tensor.vector_dim if vectorized else None,
            )
        return made

    def _lower_optional_tensor(self, tensor: Tensor | None) -> DescriptorValue | None:
        return None if tensor is None else self.lower_tensor(tensor)

    def _lower_matmul(self, op: Matmul) -> DescriptorValue:
        key = (op.compute_type, op.padding_value)
        parameters = self._matmuls.setdefault(
            key, _make_value(D.MATMUL, comp_type=op.compute_type, padding_value=op.padding_value)
        )
        return _make_value(
            D.OPERATION_MATMUL,
            a=self.lower_tensor(op.a),
            b=self.lower_tensor(op.b),
            c=self.lower_tensor(op.c),
            matmul=parameters,
            gemm_m_override=self._lower_optional_tensor(op.m_override),
            gemm_n_override=self._lower_optional_tensor(op.n_override),
            gemm_k_override=self._lower_optional_tensor(op.k_override),
        )

    def _lower_pointwise(self, op: Pointwise) -> DescriptorValue:
        numbers = {name: getattr(op, name) for name in ACTIVATION_NUMBERS}
        return _make_value(
            D.OPERATION_POINTWISE,
            pointwise=_make_value(D.POINTWISE, mode=op.mode, math_prec=op.compute_type, axis=op.axis, **numbers),
            x=self._lower_optional_tensor(op.x),
            b=self._lower_optional_tensor(op.b),
            t=self._lower_optional_tensor(op.t),
            y=self._lower_optional_tensor(op.y),
            dy=self._lower_optional_tensor(op.dy),
            dx=self._lower_optional_tensor(op.dx),
            alpha1=op.alpha1,
            alpha2=op.alpha2,
        )

    def _lower_reduction(self, op: Reduction) -> DescriptorValue:
        return _make_value(
            D.OPERATION_REDUCTION,
            reduction=_make_value(
                D.REDUCTION, operator=op.operator, comp_type=op.compute_type, is_deterministic=op.deterministic
            ),
            x=self.lower_tensor(op.x),
            y=self.lower_tensor(op.y),
        )

    def _lower_fields(self, kind: D, fields: Mapping[str, Any]) -> DescriptorValue:
        return _make_value(kind, **{name: self._lower_value(value) for name, value in fields.items()})

    def _lower_value(self, value: Any) -> Any:
        if isinstance(value, Tensor):
            return self.lower_tensor(value)
        if isinstance(value, Parameters):
            return self._lower_fields(value.kind, value.fields)
        if isinstance(value, Op):
            return self.lower_op(value)
        if isinstance(value, Graph):
            return _make_value(D.OPERATIONGRAPH, ops=self.lower_ops(value))
        if isinstance(value, tuple):
            return tuple(self._lower_value(item) for item in value)
        return value


def _make_value(kind: D, **fields: Any) -> DescriptorValue:
    """Return a descriptor value without the fields that are None."""
    return DescriptorValue(kind=kind, fields={name: value for name, value in fields.items() if value is not None})
