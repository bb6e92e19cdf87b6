"""Audits of programs with known issues, and of programs with right results, on a GPU."""

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
from tests.support.audited_programs import RIGHT, WRONG

torch: Any = pytest.importorskip("torch", reason="did not run: torch is not installed, and the programs are torch's")


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    audited_programs._built.clear()
    yield
    audited_programs._built.clear()


@pytest.mark.parametrize("name", ["deep-scores", "negative-scale", "pooling-padded-behind"])
@pytest.mark.filterwarnings("ignore")
def test_a_wrong_result_is_found_and_its_known_issue_named(name: str, tmp_path: Path) -> None:
    """On a version with the known issue; on other versions no case is kept."""
    target = open_target()
    version, own = target.library.version, target.library.version_text
    target.close()
    wanted = WRONG[name]
    row = next(row for row in FAULTS if row.code == wanted.fault)
    with audit(folder=tmp_path / "cases", every=1) as report:
        wanted.run()
    if version not in row.versions:
        assert report.wrong == []
        return
    kept = [one for one in report.wrong if one.path]
    assert kept, str(report)
    assert stat.S_IMODE((tmp_path / "cases").stat().st_mode) == 0o700
    found = [examine(one.path, cudnn=[own], reduce_s=0.0) for one in kept if one.path]
    assert wanted.fault in {fault for one in found for fault in one.faults}, [str(one) for one in found]
    assert all(one.engine is not None for one in found if one.is_wrong)
    assert any(Path(one.program).exists() for one in found)


@pytest.mark.parametrize("name", RIGHT)
@pytest.mark.filterwarnings("ignore")
def test_no_case_is_kept_of_a_right_program(name: str, tmp_path: Path) -> None:
    with audit(folder=tmp_path / "cases", every=5, cost=1.0) as report:
        RIGHT[name]()
    assert report.wrong == [], str(report)
    assert sum(report.sampled.values()) >= 4
    assert sum(report.checked.values()) > 0
    assert not (tmp_path / "cases").exists()


def test_the_result_equals_that_of_an_unaudited_program() -> None:
    """Gradients flow through a sampled call as through other calls."""
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, 4, 128, 64, device="cuda", dtype=torch.float16).requires_grad_() for _ in range(3))
    d_o = torch.randn_like(q)

    def once() -> list[Any]:
        o = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return [o, *torch.autograd.grad(o, (q, k, v), d_o)]

    plain = once()
    with audit(every=1) as report:
        seen = once()
    assert torch.equal(plain[0], seen[0])
    for one, other in zip(plain[1:], seen[1:], strict=True):  # kernels add them up in a varying order
        torch.testing.assert_close(one, other, rtol=1e-2, atol=1e-3)
    assert report.sampled["torch"] == 1
    assert {"o", "dq", "dk", "dv"} <= set(report.checked)


def test_an_added_mismatch_is_kept_with_the_program_results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every element is made one tenth too large."""
    original = torch.nn.functional.scaled_dot_product_attention

    def moved(*args: Any, **kwargs: Any) -> Any:
        return original(*args, **kwargs) * 1.1

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", moved)
    q, k, v = (torch.randn(2, 4, 128, 64, device="cuda", dtype=torch.float16) for _ in range(3))
    with audit(folder=tmp_path / "cases", every=1) as report:
        torch.nn.functional.scaled_dot_product_attention(q, k, v)
    (kept,) = report.wrong
    assert kept.path
    found = examine(kept.path, cudnn=[load_case(kept.path).cudnn], reduce_s=0.0)
    assert found.interpreter, "the kept result is wrong by the interpreter, too"
    assert not found.is_wrong, "cuDNN itself is right"
