"""Supported engine configs of forty graphs on a target: ``python -m tools.records.agreement TARGET FILE``.

``tests/gpu/diagnose/data`` has the files for described GPUs; a test compares them with the real GPU.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from cudnn_backend_py import explain
from cudnn_backend_py.target import Profile
from tests.support.varied_graphs import VARIED_GRAPHS


def judge_graphs_of_many_kinds(target: str | Profile | None) -> dict[str, Any]:
    """Return for each graph the outcome and, by heuristics mode, the supported engine configs in cuDNN's order."""
    found = {}
    for name, make in VARIED_GRAPHS.items():
        verdict = explain(make(), target)
        configs: dict[str, list[str]] = {mode: [] for mode in verdict.modes}
        for candidate in verdict.candidates:
            if candidate.state == "supported":
                knobs = ",".join(
                    f"{key.removeprefix('CUDNN_KNOB_TYPE_')}={value}" for key, value in candidate.knobs.items()
                )
                configs[candidate.mode].append(f"engine {candidate.engine} {knobs}".strip())
        refused = {
            f"{candidate.mode} engine {candidate.engine}": str(candidate.reasons[0])
            for candidate in verdict.candidates
            if candidate.state == "refused" and candidate.reasons
        }
        found[name] = {"outcome": str(verdict.outcome), "configs": configs, "refused": refused}
    return found


if __name__ == "__main__":
    from cudnn_backend_py import library

    Path(sys.argv[2]).write_text(
        json.dumps(
            {"cudnn": library().version_text, "target": sys.argv[1], "graphs": judge_graphs_of_many_kinds(sys.argv[1])},
            indent=1,
        )
        + "\n"
    )
