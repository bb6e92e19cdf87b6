"""The attention builder imports only the known issues that it refuses; warnings import the whole table."""

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


def test_builder_refuses_exactly_the_issues_marked_as_refused() -> None:
    assert [issue.code for issue in FAULTS if issue.refused] == [issue.code for issue in HAZARDS]


def test_refusing_a_graph_does_not_import_the_known_issue_table() -> None:
    statement = "from cudnn_backend_py.errors import GraphError; from cudnn_backend_py.graph import attention"
    assert run_code(LOOK.format(statement=statement)).stdout == "attention-hazard False\n"


def test_importing_attention_from_the_package_imports_all_known_issues() -> None:
    statement = "from cudnn_backend_py import GraphError, attention"
    assert run_code(LOOK.format(statement=statement)).stdout == "attention-hazard True\n"
