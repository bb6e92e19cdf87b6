"""A record of a run of tests, where there is no pytest: nothing is written, and what is missing is said."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_without_pytest_nothing_is_recorded(tmp_path: Path) -> None:
    code = (
        f"import sys; sys.path.insert(0, {str(ROOT)!r})\n"
        "from pathlib import Path\n"
        "from cudnn_backend_py.testing.record import record_run\n"
        f"record_run(Path({str(tmp_path / 'logs')!r}), [])\n"
    )
    # -S leaves out what is installed, and -I what the environment adds.
    done = subprocess.run([sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, check=False)
    assert "pytest-missing: pytest, which runs the tests, is not installed" in done.stderr
    assert not (tmp_path / "logs").exists()
