"""The builder of attention imports only the refused rows; the whole known issue table is imported for warnings."""

from __future__ import annotations

from cudnn_backend_py.graph.attention import HAZARDS
from cudnn_backend_py.known_issues import FAULTS
from tests.support.child import run_code

LOOK = """
import sys, warnings
{statement}
try:
    attention.sdpa_forward(batch=1, heads=1, seq_q=8, head_dim=64, layout={{"q": (1024, 1024, 128, 2)}})
except GraphError as error:
    print(error.code, "cudnn_backend_py.known_issues" in sys.modules)
"""


def test_every_refused_row_belongs_to_the_builder() -> None:
    assert [fault.code for fault in FAULTS if fault.refused] == [fault.code for fault in HAZARDS]


def test_the_builder_refuses_without_the_table() -> None:
    statement = "from cudnn_backend_py.errors import GraphError; from cudnn_backend_py.graph import attention"
    assert run_code(LOOK.format(statement=statement)).stdout == "attention-hazard False\n"


def test_the_public_name_imports_the_table() -> None:
    statement = "from cudnn_backend_py import GraphError, attention"
    assert run_code(LOOK.format(statement=statement)).stdout == "attention-hazard True\n"
