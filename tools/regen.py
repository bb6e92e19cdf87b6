"""Write all generated pages and expected outputs: a part of ``make regen``."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Mapping

import cudnn_backend_py.frontend
from cudnn_backend_py.diagnose.report.attention_page import render_page
from cudnn_backend_py.diagnose.surveys.attention import SupportTable
from tests.compat.surface import read_stored_public_api, render_name_differences_page
from tools.records.hardware_evidence_page import make_hardware_evidence_page
from tools.records.known_issues_page import render_known_issues_page
from tools.records.measurements_page import make_measurements_page
from tools.records.operation_runs import make_operation_runs_json
from tools.records.operations_page import make_operations_page
from tools.records.reproductions import make_known_issue_reproductions_json
from tools.records.speed_page import make_speed_page
from tools.repository import ROOT, make_child_environment
from tools.website.picture import draw_readme_picture

__all__ = ["FILE_WRITING_PROGRAMS", "PAGE_WRITERS"]


def make_attention_support_page() -> str:
    """Return the page of the stored support tables."""
    paths = sorted(ROOT.glob("tests/library/diagnose/data/attention-support-*.json"))
    tables = [SupportTable.from_json(path.read_text(encoding="utf-8")) for path in paths]
    return render_page(tables, files=[path.relative_to(ROOT).as_posix() for path in paths])


def make_frontend_names_page() -> str:
    """Return the page that compares cudnn-frontend's names with ours."""
    return render_name_differences_page(read_stored_public_api(), cudnn_backend_py.frontend)


PAGE_WRITERS: Mapping[str, Callable[[], str]] = {
    "cudnn_backend_py/diagnose/operation_runs.json": make_operation_runs_json,
    "cudnn_backend_py/verification/reproductions.json": make_known_issue_reproductions_json,
    "docs/assets/forum.svg": draw_readme_picture,
    "docs/attention-speed.md": make_speed_page,
    "docs/attention-support.md": make_attention_support_page,
    "docs/hardware-evidence.md": make_hardware_evidence_page,
    "docs/known-issues.md": render_known_issues_page,
    "docs/frontend-names.md": make_frontend_names_page,
    "docs/measurements.md": make_measurements_page,
    "docs/operations.md": make_operations_page,
}
# Programs that write other files: outputs of commands, outputs of the notebook, the compiled CUDA kernel.
FILE_WRITING_PROGRAMS = (
    "tests.pure.cli.test_commands",
    "tests.library.cli.test_run_output",
    "tools.records.notebook",
    "tools.codegen.ptx",
)


if __name__ == "__main__":
    for name, make in PAGE_WRITERS.items():
        (ROOT / name).write_text(make(), encoding="utf-8")
    for program in FILE_WRITING_PROGRAMS:
        subprocess.run([sys.executable, "-m", program], cwd=ROOT, env=make_child_environment(), check=True)
