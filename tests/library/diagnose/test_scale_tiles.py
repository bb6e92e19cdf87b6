"""Block scales that are not whole tiles: cuDNN refuses them since 9.25, and older versions have a known issue."""

from __future__ import annotations

import pytest

from cudnn_backend_py import DataType, Graph, GraphBuilder, TensorReordering, library
from cudnn_backend_py.diagnose import explain
from cudnn_backend_py.known_issues import find_issues_against_version_change, find_known_issues
from cudnn_backend_py.target import find_profile
from tests.known_issues import EXAMPLES, make_example_graph

ISSUE_CODE = "block-scales-no-whole-tiles"


def make_block_scaled_graph() -> Graph:
    return make_example_graph(EXAMPLES[ISSUE_CODE].reproductions[""])


def test_versions_with_the_block_scale_issue_are_not_recommended() -> None:
    codes = [issue.code for issue in find_known_issues(make_block_scaled_graph(), 100, (9, 24, 0))]
    assert ISSUE_CODE in codes
    assert ISSUE_CODE not in [issue.code for issue in find_known_issues(make_block_scaled_graph(), 100, (9, 25, 0))]
    assert ISSUE_CODE in [
        issue.code
        for issue in find_issues_against_version_change(make_block_scaled_graph(), 100, (9, 24, 0), (9, 25, 0))
    ]
    whole = make_example_graph(EXAMPLES[ISSUE_CODE].unaffected)
    assert find_issues_against_version_change(whole, 100, (9, 24, 0), (9, 25, 0)) == []


@pytest.mark.parametrize("target", ["b200", "rtx-5090"])
def test_the_refusal_names_the_dims_of_the_scales(target: str) -> None:
    if library().version < (9, 25, 0):
        pytest.skip("cuDNN accepts them")
    verdict = explain(make_block_scaled_graph(), target)
    assert not verdict.supported
    assert verdict.cause is not None
    assert verdict.cause.headline.startswith("dims of scale_a [1, 64, 2] where [1, 128, 4] is needed")
    assert verdict.cause.advice.endswith("[passes its support check, not built]")
    unmeasured = explain(make_block_scaled_graph(), target, causes=False).cause
    assert unmeasured is not None
    assert f"sm_{find_profile(target).sm}" not in unmeasured.headline
    assert "data type" not in unmeasured.headline


def test_wrong_scales_and_an_old_architecture_are_reported_together() -> None:
    """The graph is supported only with both changes: right scales and a newer architecture."""
    g = GraphBuilder("wrong scales", io_type=DataType.FP8_E4M3)
    scales = {"data_type": DataType.FP8_E4M3, "reordering": TensorReordering.F8_128x4}
    a = g.block_scale_dequantize(g.tensor("a", (1, 128, 128)), g.tensor("sa", (1, 128, 4), **scales), 32)
    b, sb = (
        g.tensor("b", (1, 128, 128), strides=(16384, 1, 128)),
        g.tensor("sb", (1, 4, 128), strides=(512, 1, 4), **scales),
    )
    g.matmul(a, g.block_scale_dequantize(b, sb, 32), name="c", virtual=False, data_type=DataType.BFLOAT16)
    cause = explain(g.graph(), "sm75").cause
    assert cause is not None
    assert cause.headline.startswith(
        "block-scaled fp8 (e4m3) (block_scale_dequantize) is not supported on sm_75; sm_100"
    )
    assert cause.remedy.startswith(
        "block scales sa fp8 (e4m3), sb fp8 (e4m3) -> fp8_e8m0 (changes numerics), and judge for sm_100"
    )


def test_wrong_scale_dims_and_the_sm_are_both_the_cause() -> None:
    if library().version < (9, 25, 0):
        pytest.skip("cuDNN accepts the dims")
    cause = explain(make_block_scaled_graph(), "h100").cause
    assert cause is not None
    assert cause.headline.startswith("sm_90 does not support the graph, sm_100, sm_120 do with other dims: dims of ")
    assert cause.remedy.startswith("judge for sm_100 or sm_120, with this cuDNN; and dims of ")
