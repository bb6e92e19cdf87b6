"""Remedies that name other architectures or libraries: their known issues, and engines that query the device."""

from __future__ import annotations

import pytest

from cudnn_backend_py import attention, library
from cudnn_backend_py.diagnose import explain
from cudnn_backend_py.diagnose.causes.case import RefusalCase
from cudnn_backend_py.diagnose.causes.find import _format_issues_on_other_architectures
from cudnn_backend_py.diagnose.causes.rules import explain_cuda_toolkit
from cudnn_backend_py.graph import Graph
from cudnn_backend_py.known_issues import find_known_issues
from cudnn_backend_py.plans.refusals import Reason
from cudnn_backend_py.target import open_target


def make_block_masked_attention() -> Graph:
    return attention.sdpa_forward(batch=1, heads=2, seq_q=256, head_dim=64, block_mask=True)


def test_attention_with_a_block_mask_is_one_unified_operation() -> None:
    assert [op.display_name() for op in make_block_masked_attention().ops] == ["sdpa_fwd"]


def test_a_remedy_lists_known_issues_of_the_architecture_it_names() -> None:
    with_issue = RefusalCase((), make_block_masked_attention(), open_target("rtx-5090"), ("A",))
    version = library().version
    codes = [one.code for one in find_known_issues(make_block_masked_attention(), 100, version) if not one.depends_on]
    said = _format_issues_on_other_architectures(with_issue, "judge for sm_100")
    assert said == (f" (known issue on sm_100: {', '.join(codes)})" if codes else "")
    assert _format_issues_on_other_architectures(with_issue, "the same on sm_120") == ""


def test_the_headline_explains_which_blackwell_cudnn_means() -> None:
    if library().version < (9, 21, 0):
        pytest.skip("the graph needs cuDNN 9.21")
    on_5090, on_hopper = (explain(make_block_masked_attention(), name).cause for name in ("rtx-5090", "h100"))
    assert on_5090 is not None
    assert on_hopper is not None
    assert on_5090.headline.endswith("sm_120 is a Blackwell, cuDNN means sm_10x by the name")
    assert "by the name" not in on_hopper.headline


def test_a_cudnn_build_for_another_cuda_is_not_a_remedy_without_a_gpu() -> None:
    reason = Reason("", "grouped matmul with cublasLt is not be compiled with cuda toolkit < 13.1")
    cause = explain_cuda_toolkit(RefusalCase((), make_block_masked_attention(), open_target("h100"), ("A",)), reason)
    assert cause is not None
    assert "on a machine with the GPU" in cause.remedy
    assert "--cuda 13 --full" in cause.remedy, "the JIT wheel has no such engine"
