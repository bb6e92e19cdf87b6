"""Programs for cudnn-frontend run to their end on the GPU: the notebooks' own cells, and our examples."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from tests.support.child import ROOT, run_python
from tests.support.seed_cells import PLACES, cells_of, find_seed, program

NO_TORCH = "did not run: torch is not installed, and the program's tensors are torch's"
EXAMPLES = sorted(path.name for path in (ROOT / "examples").glob("frontend_*.py"))


def need_torch() -> None:
    if importlib.util.find_spec("torch") is None:
        pytest.skip(NO_TORCH)


@pytest.mark.parametrize("seed", [0, 1])
def test_notebook_runs_to_its_end(seed: int, tmp_path: Path) -> None:
    """Every cell, both halves; its own assert_close calls are the assertions."""
    need_torch()
    path = find_seed(seed)
    if path is None:
        pytest.skip(f"did not run: notebook {seed:03} is not at hand (looked in {PLACES})")
    cells = cells_of(path.read_text(encoding="utf-8"))
    assert sum("assert_close" in cell for cell in cells) == 2
    script = tmp_path / f"notebook_{seed:03}.py"
    script.write_text(program([*cells, "print('to the end with', cudnn.__file__)"]), encoding="utf-8")
    done = run_python(["-m", "cudnn_backend_py.frontend", str(script)], timeout_s=300)
    assert done.code == 0, done.stderr
    assert f"to the end with {ROOT / 'cudnn_backend_py' / 'frontend'}" in done.stdout


@pytest.mark.parametrize("name", EXAMPLES)
def test_example_agrees_with_torch(name: str) -> None:
    need_torch()
    done = run_python([str(ROOT / "examples" / name)], timeout_s=300)
    assert done.code == 0, done.stderr
    assert "agrees with torch" in done.stdout
