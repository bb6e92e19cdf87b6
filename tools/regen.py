"""Write every page and expected output that is derived from other files: part of ``make regen``."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Mapping

import cudnn_backend_py.frontend
from cudnn_backend_py.diagnose.report.attention_page import render_page
from cudnn_backend_py.diagnose.surveys.attention import SupportTable
from tests.compat.surface import read_facts, render
from tools.records.hardware_evidence_page import hardware_evidence_page
from tools.records.known_issues_page import render_known_issues_page
from tools.records.measurements_page import measurements_page
from tools.records.operations_page import operations_page
from tools.records.reproductions import reproductions_json
from tools.records.speed_page import make_page
from tools.repository import ROOT, child_environment
from tools.website.picture import draw

__all__ = ["PAGES", "PROGRAMS"]


def attention_support() -> str:
    """Return the page of the stored support tables."""
    paths = sorted(ROOT.glob("tests/library/diagnose/data/attention-support-*.json"))
    tables = [SupportTable.from_json(path.read_text(encoding="utf-8")) for path in paths]
    return render_page(tables, files=[path.relative_to(ROOT).as_posix() for path in paths])


def frontend_names() -> str:
    """Return the page that compares cudnn-frontend's names with ours."""
    return render(read_facts(), cudnn_backend_py.frontend)


PAGES: Mapping[str, Callable[[], str]] = {
    "cudnn_backend_py/verification/reproductions.json": reproductions_json,
    "docs/assets/forum.svg": draw,
    "docs/attention-speed.md": make_page,
    "docs/attention-support.md": attention_support,
    "docs/hardware-evidence.md": hardware_evidence_page,
    "docs/known-issues.md": render_known_issues_page,
    "docs/frontend-names.md": frontend_names,
    "docs/measurements.md": measurements_page,
    "docs/operations.md": operations_page,
}
# Programs that write further files: outputs of commands, the outputs of the notebook, the compiled CUDA kernel.
PROGRAMS = (
    "tests.pure.cli.test_commands",
    "tests.library.cli.test_run_output",
    "tools.records.notebook",
    "tools.codegen.ptx",
)


if __name__ == "__main__":
    for name, make in PAGES.items():
        (ROOT / name).write_text(make(), encoding="utf-8")
    for program in PROGRAMS:
        subprocess.run([sys.executable, "-m", program], cwd=ROOT, env=child_environment(), check=True)
