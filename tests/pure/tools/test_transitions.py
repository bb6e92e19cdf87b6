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
from tools.campaign.edge_graphs import list_edge_graphs
from tools.records.transitions import DOCUMENTED_CHANGES, explain_transition
from tools.repository import ROOT

RECORDS = [
    f"transitions-{graphs}-described-cudnn-{version}.json"
    for version in ("9.14.0", "9.28.0")
    for graphs in ("edges", "random")
]
SIZES: dict[str, Any] = {"batch": 2, "heads": 2, "seq_q": 128, "head_dim": 64, "allow_hazards": True}


def explain(graph: Graph, sm: int, supporting: str, refusing: str) -> str:
    return explain_transition(graph, sm, Version.from_text(supporting), Version.from_text(refusing))


def make_reduction_of_matrix() -> Graph:
    g = GraphBuilder("sum of rows")
    g.reduction(ReduceTensorOp.ADD, g.tensor("x", (8, 64)), (8, 1), virtual=False)
    return g.graph()


def test_an_operation_of_a_newer_version_is_a_rule() -> None:
    graph = attention.sdpa_forward(**SIZES, padding=True, implementation="unified", version=(9, 28, 0))
    assert explain(graph, 90, "9.17.0", "9.14.0").startswith("rule: CUDNN_ATTR_OPERATION_SDPA_FWD_SEQ_LEN_")


def test_a_config_that_a_library_selects_is_a_rule() -> None:
    graph = attention.sdpa_backward(**SIZES, deterministic=True)
    assert explain(graph, 100, "9.19.0", "9.17.0").startswith("rule: cudnn-frontend selects engine 5 for deterministic")
    assert explain(graph, 100, "9.20.0", "9.19.0") == ""


def test_a_refusal_by_a_known_issue_of_the_heuristics_is_named() -> None:
    graph = attention.sdpa_backward(**SIZES, implementation="unified", version=(9, 22, 0))
    assert explain(graph, 100, "9.22.0", "9.23.0") == "known issue unified-backward-without-knob"
    assert explain(graph, 90, "9.22.0", "9.23.0") == ""


def test_a_refusal_of_what_was_accepted_wrongly_is_a_known_issue() -> None:
    name = "FP8_E4M3 matmul 96x128x128, blocks of 32, tiled"
    graph = dict(list_edge_graphs((9, 9, 0)))[name]
    assert explain(graph, 100, "9.24.0", "9.25.0") == "known issue block-scales-no-whole-tiles"


def test_other_changes_are_documented() -> None:
    graph = make_reduction_of_matrix()
    assert explain(graph, 90, "9.19.0", "9.20.0").startswith("documented change: 9.20 refuses pointwise operations")
    assert explain(graph, 90, "9.20.0", "9.19.0") == ""
    assert explain(graph, 90, "9.22.0", "9.23.0") == ""
    page = (ROOT / "docs" / "limits.md").read_text(encoding="utf-8")
    assert all(f"* {change.text}\n" in page for change in DOCUMENTED_CHANGES)


@pytest.mark.parametrize("name", RECORDS)
def test_every_recorded_change_is_explained(name: str) -> None:
    record = read_record(name)
    assert len(record["all"]) == record["transitions"] == sum(record["became"].values()) > 20
    assert all(re.match("rule: |known issue |documented change: ", one["became"]) for one in record["all"])


def test_the_page_of_measurements_has_the_counts_of_the_records() -> None:
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
