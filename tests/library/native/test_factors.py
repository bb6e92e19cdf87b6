"""Factors of a convolution have the type it computes in."""

from __future__ import annotations

import pytest

from cudnn_backend_py import CudnnStatusError, DataType, GraphBuilder, open_target
from cudnn_backend_py.generated.enums import AttributeName, AttributeType
from cudnn_backend_py.native.from_values import build
from cudnn_backend_py.plans.lower import lower

ALPHA = AttributeName.OPERATION_CONVOLUTION_FORWARD_ALPHA


@pytest.mark.parametrize(
    ("kind", "element", "other"),
    [
        (DataType.DOUBLE, AttributeType.DOUBLE, AttributeType.FLOAT),
        (DataType.HALF, AttributeType.FLOAT, AttributeType.DOUBLE),
    ],
)
def test_factors_have_the_type_a_convolution_computes_in(
    kind: DataType, element: AttributeType, other: AttributeType
) -> None:
    g = GraphBuilder(
        "factors", io_type=kind, compute_type=DataType.DOUBLE if kind is DataType.DOUBLE else DataType.FLOAT
    )
    g.convolution(g.tensor("x", (1, 8, 4, 4)), g.tensor("w", (8, 8, 1, 1)), virtual=False)
    target = open_target("h200")
    operation = build(lower(g.graph())[0], on=target.library)
    assert operation.get(ALPHA, type=element) == 1.0
    with pytest.raises(CudnnStatusError):
        operation.get(ALPHA, type=other)
    target.close()
