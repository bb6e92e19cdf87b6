"""Scales that are no whole tiles: refused by cuDNN since 9.25, and a known issue of the versions that accept them."""

from __future__ import annotations

import pytest

from cudnn_backend_py import Graph, library
from cudnn_backend_py.diagnose import explain
from cudnn_backend_py.known_issues import find_known_issues, find_objections
from cudnn_backend_py.target import find_profile
from tests.known_issues import EXAMPLES, graph_of

CODE = "block-scales-no-whole-tiles"


def scaled() -> Graph:
    return graph_of(EXAMPLES[CODE].reproductions[""])


def test_older_versions_are_not_recommended() -> None:
    codes = [issue.code for issue in find_known_issues(scaled(), 100, (9, 24, 0))]
    assert CODE in codes
    assert CODE not in [issue.code for issue in find_known_issues(scaled(), 100, (9, 25, 0))]
    assert CODE in [issue.code for issue in find_objections(scaled(), 100, (9, 24, 0), (9, 25, 0))]
    whole = graph_of(EXAMPLES[CODE].unlike)
    assert find_objections(whole, 100, (9, 24, 0), (9, 25, 0)) == []


@pytest.mark.parametrize("target", ["b200", "rtx-5090"])
def test_refusal_names_the_dims_of_the_scales(target: str) -> None:
    if library().version < (9, 25, 0):
        pytest.skip("cuDNN accepts them")
    verdict = explain(scaled(), target)
    assert not verdict.supported
    assert verdict.cause is not None
    assert verdict.cause.headline.startswith("dims of scale_a [1, 64, 2] where [1, 128, 4] is needed")
    assert verdict.cause.advice.endswith("[passes its support check, not built]")
    unmeasured = explain(scaled(), target, causes=False).cause
    assert unmeasured is not None
    assert f"sm_{find_profile(target).sm}" not in unmeasured.headline
    assert "data type" not in unmeasured.headline
