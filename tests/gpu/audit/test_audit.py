"""Audit programs with known issues, and programs with right results, on a GPU."""

from __future__ import annotations

import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cudnn_backend_py import open_target
from cudnn_backend_py.audit import audit, examine, load_case
from cudnn_backend_py.known_issues import FAULTS
from tests.support import audited_programs
from tests.support.audited_programs import CORRECT_PROGRAMS, PROGRAMS_WITH_KNOWN_ISSUES

torch: Any = pytest.importorskip("torch", reason="did not run: torch is not installed, and these tests need it")


@pytest.fixture(autouse=True)
def _release_built_plans() -> Iterator[None]:
    audited_programs._built_graph_ids.clear()
    yield
    audited_programs._built_graph_ids.clear()


@pytest.mark.parametrize("name", ["deep-scores", "negative-scale", "pooling-padded-behind"])
@pytest.mark.filterwarnings("ignore")
def test_the_audit_reports_a_wrong_result_and_its_known_issue(name: str, tmp_path: Path) -> None:
    """The audit stores a case of the wrong result only on cuDNN versions that have the known issue."""
    target = open_target()
    version, own = target.library.version, target.library.version_text
    target.close()
    wanted = PROGRAMS_WITH_KNOWN_ISSUES[name]
    row = next(row for row in FAULTS if row.code == wanted.issue_code)
    with audit(folder=tmp_path / "cases", every=1) as report:
        wanted.run()
    if version not in row.versions:
        assert report.wrong == []
        return
    kept = [one for one in report.wrong if one.path]
    assert kept, str(report)
    assert stat.S_IMODE((tmp_path / "cases").stat().st_mode) == 0o700
    found = [examine(one.path, cudnn=[own], reduce_s=0.0) for one in kept if one.path]
    assert wanted.issue_code in {fault for one in found for fault in one.faults}, [str(one) for one in found]
    assert all(one.engine is not None for one in found if one.has_wrong_result)
    assert any(Path(one.program).exists() for one in found)


@pytest.mark.parametrize("name", CORRECT_PROGRAMS)
@pytest.mark.filterwarnings("ignore")
def test_the_audit_finds_no_error_in_correct_programs(name: str, tmp_path: Path) -> None:
    with audit(folder=tmp_path / "cases", every=5, cost=1.0) as report:
        CORRECT_PROGRAMS[name]()
    assert report.wrong == [], str(report)
    assert sum(report.sampled.values()) >= 4
    assert sum(report.checked.values()) > 0
    assert not (tmp_path / "cases").exists()


def test_an_audited_program_computes_the_same_results() -> None:
    """An audited attention call has the same output and gradients as a call without audit."""
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, 4, 128, 64, device="cuda", dtype=torch.float16).requires_grad_() for _ in range(3))
    d_o = torch.randn_like(q)

    def run_forward_and_backward() -> list[Any]:
        o = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return [o, *torch.autograd.grad(o, (q, k, v), d_o)]

    plain = run_forward_and_backward()
    with audit(every=1) as report:
        seen = run_forward_and_backward()
    assert torch.equal(plain[0], seen[0])
    for one, other in zip(plain[1:], seen[1:], strict=True):  # kernels add them up in a varying order
        torch.testing.assert_close(one, other, rtol=1e-2, atol=1e-3)
    assert report.sampled["torch"] == 1
    assert {"o", "dq", "dk", "dv"} <= set(report.checked)


def test_the_audit_stores_a_case_of_an_introduced_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The test makes every element of torch's result 10 percent too large; cuDNN's own result is right."""
    original = torch.nn.functional.scaled_dot_product_attention

    def compute_attention_with_error(*args: Any, **kwargs: Any) -> Any:
        return original(*args, **kwargs) * 1.1

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", compute_attention_with_error)
    q, k, v = (torch.randn(2, 4, 128, 64, device="cuda", dtype=torch.float16) for _ in range(3))
    with audit(folder=tmp_path / "cases", every=1) as report:
        torch.nn.functional.scaled_dot_product_attention(q, k, v)
    (kept,) = report.wrong
    assert kept.path
    found = examine(kept.path, cudnn=[load_case(kept.path).cudnn], reduce_s=0.0)
    assert found.interpreter, "the kept result is wrong by the interpreter, too"
    assert not found.has_wrong_result, "cuDNN itself is right"
