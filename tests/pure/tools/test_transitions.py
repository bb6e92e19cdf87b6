"""Changes of the outcome between cuDNN versions: each has a rule, a known issue or a documented change."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

import pytest

from cudnn_backend_py import Graph, GraphBuilder, attention
from cudnn_backend_py.generated.enums import ReduceTensorOp
from cudnn_backend_py.system.version import Version
from tests.support.records import read_record
from tools.campaign.edge_graphs import make_edge_case_graphs
from tools.records.transitions import DOCUMENTED_CHANGES, explain_support_change
from tools.repository import ROOT

RECORDS = [
    f"transitions-{graphs}-described-cudnn-{version}.json"
    for version in ("9.14.0", "9.28.0")
    for graphs in ("edges", "random")
]
SIZES: dict[str, Any] = {"batch": 2, "heads": 2, "seq_q": 128, "head_dim": 64, "allow_hazards": True}


def explain(graph: Graph, sm: int, supporting: str, refusing: str) -> str:
    return explain_support_change(graph, sm, Version.from_text(supporting), Version.from_text(refusing))


def make_row_sum_reduction_graph() -> Graph:
    g = GraphBuilder("sum of rows")
    g.reduction(ReduceTensorOp.ADD, g.tensor("x", (8, 64)), (8, 1), virtual=False)
    return g.graph()


def test_support_by_a_newer_attribute_is_explained_by_a_rule() -> None:
    graph = attention.sdpa_forward(**SIZES, padding=True, implementation="unified", version=(9, 28, 0))
    assert explain(graph, 90, "9.17.0", "9.14.0").startswith("rule: CUDNN_ATTR_OPERATION_SDPA_FWD_SEQ_LEN_")


def test_an_engine_selected_by_cudnn_frontend_is_named_as_the_rule() -> None:
    graph = attention.sdpa_backward(**SIZES, deterministic=True)
    assert explain(graph, 100, "9.19.0", "9.17.0").startswith("rule: cudnn-frontend selects engine 5 for deterministic")
    assert explain(graph, 100, "9.20.0", "9.19.0") == ""


def test_a_refusal_caused_by_a_heuristics_bug_names_its_known_issue() -> None:
    graph = attention.sdpa_backward(**SIZES, implementation="unified", version=(9, 22, 0))
    assert explain(graph, 100, "9.22.0", "9.23.0") == "known issue unified-backward-without-knob"
    assert explain(graph, 90, "9.22.0", "9.23.0") == ""


def test_a_new_refusal_of_a_miscomputed_graph_names_the_known_issue() -> None:
    name = "FP8_E4M3 matmul 96x128x128, blocks of 32, tiled"
    graph = dict(make_edge_case_graphs((9, 9, 0)))[name]
    assert explain(graph, 100, "9.24.0", "9.25.0") == "known issue block-scales-no-whole-tiles"


def test_other_support_changes_have_a_documented_explanation() -> None:
    graph = make_row_sum_reduction_graph()
    assert explain(graph, 90, "9.19.0", "9.20.0").startswith("documented change: 9.20 refuses pointwise operations")
    assert explain(graph, 90, "9.20.0", "9.19.0") == ""
    assert explain(graph, 90, "9.22.0", "9.23.0") == ""
    page = (ROOT / "docs" / "limits.md").read_text(encoding="utf-8")
    assert all(f"* {change.text}\n" in page for change in DOCUMENTED_CHANGES)


@pytest.mark.parametrize("name", RECORDS)
def test_every_recorded_support_change_is_explained(name: str) -> None:
    record = read_record(name)
    assert len(record["all"]) == record["transitions"] == sum(record["became"].values()) > 20
    assert all(re.match("rule: |known issue |documented change: ", one["became"]) for one in record["all"])


def test_measurements_page_has_the_recorded_support_change_counts() -> None:
    old_edges, _, edges, random = records = [read_record(name) for name in RECORDS]
    versions = list(dict.fromkeys(old_edges["cudnn"] + edges["cudnn"]))
    counts = Counter(kind for record in records for kind in Counter(record["became"]).elements())
    text = (
        f"{edges['graphs']} graphs with edge sizes and {random['graphs']} random graphs, judged on four described GPUs "
        f"with {len(versions)} cuDNN versions, {versions[0]} to {versions[-1]}: of {counts.total()} changes of the "
        f"outcome, {counts['rule']} are rules, {counts['known issue']} known issues and {counts['documented change']} "
        "documented changes"
    )
    assert text in (ROOT / "docs" / "measurements.md").read_text(encoding="utf-8")
