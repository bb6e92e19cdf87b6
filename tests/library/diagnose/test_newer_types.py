"""Verdicts on graphs with data types that are newer than cuDNN."""

from __future__ import annotations

import pytest

from tests.support.child import make_cudnn_environment, run_code

VERDICT_PROGRAM = """
from cudnn_backend_py import DataType, GraphBuilder, explain
from cudnn_backend_py.generated.enums import PointwiseMode
for data_type in (DataType.BYTE_BOOLEAN, DataType.FP8_E5M3):
    g = GraphBuilder()
    x = g.tensor("x", (1, 16, 16), data_type=DataType.FLOAT)
    g.pointwise(PointwiseMode.IDENTITY, x, data_type=data_type, virtual=False)
    verdict = explain(g.graph(), "sm90")
    print(verdict.outcome, verdict.cause.code, verdict.cause.text if hasattr(verdict.cause, "text") else "")
"""


@pytest.mark.parametrize("version", ["9.14.0", "9.24.0"])
def test_a_graph_of_a_newer_data_type_is_not_supported(version: str) -> None:
    """The graphs must not reach cuDNN, as 9.14 to 9.24 would crash."""
    lines = run_code(VERDICT_PROGRAM, environment=make_cudnn_environment(version)).stdout.splitlines()
    assert [line.split(" enumerator")[0] for line in lines] == ["not supported"] * 2
