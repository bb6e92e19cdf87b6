"""Native descriptors made from descriptor values: the type of a convolution's factors, and unknown fields."""

from __future__ import annotations

import pytest

from cudnn_backend_py import CudnnStatusError, DataType, DescriptorType, GraphBuilder, UsageError, open_target
from cudnn_backend_py.generated.attributes import DescriptorValue
from cudnn_backend_py.generated.enums import AttributeName, AttributeType
from cudnn_backend_py.native.descriptors_from_values import build
from cudnn_backend_py.plans.lower import lower

ALPHA = AttributeName.OPERATION_CONVOLUTION_FORWARD_ALPHA


@pytest.mark.parametrize(
    ("kind", "element", "other"),
    [
        (DataType.DOUBLE, AttributeType.DOUBLE, AttributeType.FLOAT),
        (DataType.HALF, AttributeType.FLOAT, AttributeType.DOUBLE),
        (DataType.INT32, AttributeType.FLOAT, AttributeType.DOUBLE),
    ],
)
def test_alpha_has_the_compute_type_of_the_convolution(
    kind: DataType, element: AttributeType, other: AttributeType
) -> None:
    read, computed = (DataType.INT8, kind) if kind is DataType.INT32 else (kind, DataType.FLOAT)
    g = GraphBuilder("factors", io_type=read, compute_type=kind if kind is DataType.DOUBLE else computed)
    x, w = (g.tensor(name, dims) for name, dims in (("x", (1, 32, 4, 4)), ("w", (32, 32, 1, 1))))
    g.convolution(x, w, data_type=kind, virtual=False)
    target = open_target("h200")
    operation = build(lower(g.graph())[0], on=target.library)
    assert operation.get(ALPHA, type=element) == 1.0
    with pytest.raises(CudnnStatusError):
        operation.get(ALPHA, type=other)
    target.close()


def test_a_descriptor_value_with_an_unknown_field_is_refused() -> None:
    target = open_target("h200")
    with pytest.raises(
        UsageError, match="CUDNN_BACKEND_MATMUL_DESCRIPTOR has no field padding; its fields are "
    ) as caught:
        build(DescriptorValue(kind=DescriptorType.MATMUL, fields={"padding": 1.0}), on=target.library)
    assert caught.value.code == "unknown-field"
    target.close()
