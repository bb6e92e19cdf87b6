"""Published results of real GPUs: described GPUs give the same answers in each installed version."""

from __future__ import annotations

from functools import cache

import pytest

from cudnn_backend_py import attention, explain
from cudnn_backend_py.diagnose import Judge, Query, render_text
from cudnn_backend_py.diagnose.evidence import PUBLISHED_RESULTS, PublishedResult, describe_nearest_result
from cudnn_backend_py.generated.enums import DataType
from cudnn_backend_py.system.version import version_text
from cudnn_backend_py.target import find_profile
from cudnn_backend_py.versions.store import find_installed


@cache
def shared_judge() -> Judge:
    return Judge()


def get_result_name(row: PublishedResult) -> str:
    direction = "backward" if row.backward else "forward"
    return f"{row.gpu}-{version_text(row.version)}-{direction}-{row.options['head_dim']}"


@pytest.mark.parametrize("row", PUBLISHED_RESULTS, ids=get_result_name)
def test_a_described_gpu_agrees_with_the_real_gpu(row: PublishedResult) -> None:
    name = version_text(row.version)
    if find_installed(name) is None:
        pytest.skip(f"cuDNN {name} is not installed")
    verdict = shared_judge().run_query(Query(row.graph(), row.target, name, causes=False))
    assert verdict.supported == row.supported
    if row.tag:
        assert verdict.first is not None
        assert verdict.first.tag == row.tag


def test_published_results_have_sources_and_targets_of_their_architecture() -> None:
    assert len(PUBLISHED_RESULTS) > 25
    for row in PUBLISHED_RESULTS:
        assert row.source
        assert row.known_by
        assert find_profile(row.target).sm == row.sm


def test_the_nearest_published_result_is_reported() -> None:
    graph = attention.sdpa_forward(batch=1, heads=4, seq_q=256, head_dim=64, version=(9, 24, 0))
    verdict = explain(graph, "rtx-5090", shapes=True)
    assert verdict.seen.startswith("RTX 5090 with cuDNN 9.24.0: ")
    assert f"seen on:     {verdict.seen}" in render_text(verdict)
    rows = [row for row in PUBLISHED_RESULTS if row.sm == 120]
    assert describe_nearest_result(graph, 120, (9, 24, 0), verdict.first, rows).endswith("1148)")
    other = attention.sdpa_forward(batch=1, heads=4, seq_q=256, head_dim=96, data_type=DataType.BFLOAT16)
    assert describe_nearest_result(other, 120, (9, 24, 0), verdict.first, rows) == ""
