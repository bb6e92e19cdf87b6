"""Verification of described GPUs: none differs from itself; changed properties or libraries are reported."""

from __future__ import annotations

from dataclasses import replace

from cudnn_backend_py.target import find_profile
from cudnn_backend_py.verification.graphs import make_verification_graphs
from cudnn_backend_py.verification.verify import verify

CASES = make_verification_graphs()[:14]  # two of each family


def test_verification_of_a_described_gpu_with_itself_finds_no_differences() -> None:
    profile = find_profile("h100")
    found = verify(profile, profile, cases=CASES)
    assert found.summary == f"{len(CASES)} of {len(CASES)} agree"
    assert found.families()["matmul"]["built"] == 2
    assert all(item.why == "" for row in found.rows for item in row.built.values())
    assert found.left_out == {}


def test_verification_reports_a_changed_device_property() -> None:
    profile = find_profile("h100")
    planted = replace(profile, properties={**profile.properties, "maxSharedMemoryPerBlockOptin": 101376})
    found = verify(profile, planted, cases=CASES)
    assert found.to_dict()["differing_facts"] == {"maxSharedMemoryPerBlockOptin": (232448, 101376)}
    assert found.differing_outcome_count + sum("configs" in row.differences for row in found.rows) > 0
    assert found.agreeing_count < len(CASES)


def test_verification_reports_different_cudnn_versions() -> None:
    profile = find_profile("h100")
    found = verify(profile, profile, versions=(None, "9.14.0"), cases=CASES[:3])
    facts = found.to_dict()["differing_facts"]
    assert facts["cudnn"] == (found.sides["described"].cudnn, "9.14.0")
    assert facts["absent"] == ([], ["engines_precompiled"])


def test_verification_leaves_out_graphs_beyond_the_time_limit() -> None:
    found = verify(find_profile("h100"), cases=CASES, limit_s=1e-3)
    assert found.left_out["queries"] == len(CASES)
    assert not found.is_complete
