"""A baseline of expected verdicts is written, and compared with equal and changed verdicts of the real cuDNN."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cudnn_backend_py.diagnose.surveys.baseline import (
    check_baseline,
    compute_baseline_exit_code,
    read_baseline,
    update_baseline,
)
from cudnn_backend_py.graph import save_graph
from cudnn_backend_py.graph.attention import sdpa_forward
from examples.attention_known_issues import make_reproduction_graph
from tests.support.child import OLDER_VERSION

BASELINE_HEADER = f"""
schema = "cudnn-backend-py/check"
version = 1
targets = ["sm80", "sm90"]
versions = ["{OLDER_VERSION}"]
pin = ["cause", "engines"]
"""


@pytest.fixture
def baseline_file(tmp_path: Path) -> Path:
    (tmp_path / "graphs").mkdir()
    graphs = {
        "plain": sdpa_forward(batch=2, heads=4, seq_q=256, head_dim=64),
        "odd": sdpa_forward(batch=2, heads=4, seq_q=256, head_dim=20),
        "crash": make_reproduction_graph("inner-stride:backward"),
    }
    lines = [BASELINE_HEADER, "[graphs]"]
    for name, graph in graphs.items():
        save_graph(graph, tmp_path / "graphs" / f"{name}.json")
        lines.append(f'{name} = "graphs/{name}.json"')
    path = tmp_path / "verdicts.toml"
    path.write_text("\n".join(lines))
    return path


def test_a_baseline_is_written_and_then_detects_changed_verdicts(baseline_file: Path, tmp_path: Path) -> None:
    options: dict[str, Any] = {"cache": tmp_path / "answers", "progress": False}
    first = update_baseline(baseline_file, **options)
    assert all(one.changed for one in first)
    written = read_baseline(baseline_file)
    outcomes = {(graph, target): row.outcome.value for (graph, target, _), row in written.expected.items()}
    assert outcomes == {
        ("plain", "sm80"): "supported",
        ("plain", "sm90"): "supported",
        ("odd", "sm80"): "not supported",
        ("odd", "sm90"): "not supported",
        ("crash", "sm80"): "supported",
        ("crash", "sm90"): "could not be judged",
    }
    assert written.expected["plain", "sm90", OLDER_VERSION].engines

    same = check_baseline(baseline_file, **options)
    assert not any(one.changed for one in same)
    assert compute_baseline_exit_code(same) == 0

    save_graph(sdpa_forward(batch=2, heads=4, seq_q=256, head_dim=20), baseline_file.parent / "graphs" / "plain.json")
    changed = [one for one in check_baseline(baseline_file, **options) if one.changed]
    assert [(one.name, one.target, one.graph) for one in changed] == [
        ("plain", "sm80", "graphs/plain.json"),
        ("plain", "sm90", "graphs/plain.json"),
    ]
    assert all(one.why.startswith("was supported, now not supported: ") for one in changed)
    assert all("multiple of 8" in one.why for one in changed)
    assert compute_baseline_exit_code(changed) == 1

    save_graph(make_reproduction_graph("inner-stride:backward"), baseline_file.parent / "graphs" / "plain.json")
    broken = check_baseline(baseline_file, **options)
    assert compute_baseline_exit_code(broken) == 2
    assert [one.target for one in broken if one.is_unexpectedly_unjudged] == ["sm90"]


def test_a_baseline_update_omits_cells_that_timed_out(baseline_file: Path, tmp_path: Path) -> None:
    baseline_file.write_text(BASELINE_HEADER.replace('"sm80", ', "") + '[graphs]\nplain = "graphs/plain.json"\n')
    options: dict[str, Any] = {"cache": tmp_path / "answers", "progress": False}
    assert compute_baseline_exit_code(update_baseline(baseline_file, limit_s=0.001, **options)) == 2
    assert read_baseline(baseline_file).expected == {}
    [one] = check_baseline(baseline_file, **options)
    assert one.why.endswith("supported, and nothing is expected of it in verdicts.toml")


def test_a_broken_graph_file_is_one_entry_and_the_others_are_judged(baseline_file: Path, tmp_path: Path) -> None:
    options: dict[str, Any] = {"cache": tmp_path / "answers", "progress": False}
    baseline_file.write_text(
        BASELINE_HEADER.replace('"sm80", ', "")
        + '[graphs]\nodd = "graphs/odd.json"\nnone = "none.json"\nbad = "graphs/bad.json"\n'
    )
    (baseline_file.parent / "graphs" / "bad.json").write_text("{")
    results = update_baseline(baseline_file, **options)
    assert list(read_baseline(baseline_file).expected) == [("odd", "sm90", OLDER_VERSION)]
    assert [(one.name, one.cell.cause) for one in results][1:] == [("none", "check-file"), ("bad", "graph-json")]
    again = check_baseline(baseline_file, **options)
    assert [one.changed for one in again] == [False, True, True]
    assert compute_baseline_exit_code(again) == 2
    odd = results[0].format_change_lines()
    assert (
        odd[0] == f"odd on sm90, cuDNN {OLDER_VERSION}: not supported, and nothing is expected of it in verdicts.toml"
    )
    assert [line.split()[0] for line in odd if not line.startswith(" ")][1:] == ["cause", "remedy", "graph", "configs"]
    assert max(map(len, odd)) <= 100
