"""The fixed graphs with which described GPUs are verified, and the classes of differences between two verdicts."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from cudnn_backend_py.verification.answers import BuiltPlan, LibraryAndGpuProperties, VerdictAndConfigs
from cudnn_backend_py.verification.compare import (
    find_differing_library_or_gpu_facts,
    find_first_difference,
    list_differences_of_answers,
)
from cudnn_backend_py.verification.graphs import FAMILIES, hash_verification_graphs, make_verification_graphs
from cudnn_backend_py.verification.reproductions import read_known_issue_reproductions

# Of the graphs as they were first released: results of other graphs cannot be compared with earlier ones.
DIGEST = "84b9239b5e22043bec5aca15437efe50be997e418fd107d2bc7fd5452591657c"


def test_verification_graphs_are_unchanged() -> None:
    cases = make_verification_graphs()
    assert len(cases) == 300
    assert len({case.name for case in cases}) == 300
    assert {case.family for case in cases[: len(FAMILIES)]} == set(FAMILIES)
    assert hash_verification_graphs(cases) == DIGEST


def test_the_digest_of_the_verification_graphs_changes_if_a_graph_changes() -> None:
    cases = make_verification_graphs()
    assert hash_verification_graphs([replace(cases[0], graph=cases[1].graph), *cases[1:]]) != DIGEST


def test_every_reproduction_has_its_known_issue() -> None:
    found = read_known_issue_reproductions()
    counts = Counter(one.name for one in found)
    assert len(found) > 50
    assert set(counts.values()) == {1}
    assert all(one.issue.applies_to(None, one.graph) for one in found if one.issue.graph is not None)


ANSWER = VerdictAndConfigs(
    outcome="supported",
    configs={"A": ["eng0", "eng1_k2=3"], "FALLBACK": ["eng4"]},
    workspace={"A": [0, 256], "FALLBACK": [0]},
)
PLANTED: dict[str, tuple[dict[str, Any], list[str]]] = {
    "nothing": ({}, []),
    "outcome": ({"outcome": "not supported", "configs": {}, "workspace": {}}, ["outcome", "first config", "configs"]),
    "status": ({"why": "NOT_SUPPORTED"}, ["outcome"]),
    "one less": (
        {"configs": {"A": ["eng0"], "FALLBACK": ["eng4"]}, "workspace": {"A": [0], "FALLBACK": [0]}},
        ["configs"],
    ),
    "order": (
        {
            "configs": {"A": ["eng1_k2=3", "eng0"], "FALLBACK": ["eng4"]},
            "workspace": {"A": [256, 0], "FALLBACK": [0]},
        },
        ["first config", "order"],
    ),
    "workspace": ({"workspace": {"A": [0, 512], "FALLBACK": [0]}}, ["workspace"]),
}


@pytest.mark.parametrize("planted", PLANTED)
def test_differences_between_verdicts_are_classified(planted: str) -> None:
    changes, wanted = PLANTED[planted]
    other = replace(ANSWER, **changes)
    assert list_differences_of_answers(ANSWER, other) == wanted
    shown = [find_first_difference(ANSWER, other, aspect) for aspect in wanted]
    assert all(left != right for left, right in shown)


def test_different_kernels_are_classified_as_a_code_difference() -> None:
    built = BuiltPlan(tag="eng0", workspace=0, kernels=["a"])
    assert list_differences_of_answers(ANSWER, ANSWER, [built, replace(built, kernels=["b"])]) == ["code"]
    assert list_differences_of_answers(ANSWER, ANSWER, [built, built]) == []


def test_differing_cudnn_and_device_properties_are_listed() -> None:
    one = LibraryAndGpuProperties(
        cudnn="9.19.0", cuda=13000, driver=13000, absent=[], device={"deviceVer": 900, "warpSize": 32}
    )
    other = replace(one, cudnn="9.20.0", driver=None, device={"deviceVer": 800, "warpSize": 32})
    assert find_differing_library_or_gpu_facts(one, other) == {"cudnn": ("9.19.0", "9.20.0"), "deviceVer": (900, 800)}
