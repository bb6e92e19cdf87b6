"""Queries for a graph on a described target: earlier queries in the same process do not change the answers."""

from __future__ import annotations

import json
import os

import pytest

from tests.support.child import make_older_cudnn_environment, run_python

PROPOSE_PROGRAM = """
import json, sys
from cudnn_backend_py import OperationGraph, open_target
from tests.support.varied_graphs import VARIED_GRAPHS
for first in json.loads(sys.argv[1]):
    OperationGraph(VARIED_GRAPHS["matmul f16 64"](), open_target(first)).heuristics()
question = OperationGraph(VARIED_GRAPHS["matmul f32"](), open_target("a100"))
print(json.dumps([config.tag for config in question.heuristics().configs]))
"""


@pytest.mark.parametrize("version", ["9.19.0", "newest"])
def test_a_query_for_a_gpu_without_tf32_does_not_change_later_queries(version: str) -> None:
    where = make_older_cudnn_environment() if version == "9.19.0" else dict(os.environ)

    def list_configs_after_queries_for(first: list[str]) -> list[str]:
        done = run_python(["-c", PROPOSE_PROGRAM, json.dumps(first)], environment=where, check=True)
        found: list[str] = json.loads(done.stdout)
        return found

    alone = list_configs_after_queries_for([])
    assert len(alone) > 7  # cuDNN proposes none with 9.19.0, and 7 with 9.28.0, without TF32
    assert list_configs_after_queries_for(["t4"]) == list_configs_after_queries_for(["h100", "v100"]) == alone
