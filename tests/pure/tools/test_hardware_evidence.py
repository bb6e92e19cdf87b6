"""Contributed GPU results become rows and cells of a page; damaged or invented results are refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cudnn_backend_py.errors import UsageError
from cudnn_backend_py.verification.answers import LibraryAndGpuProperties, VerdictAndConfigs
from cudnn_backend_py.verification.contribution import Contribution
from cudnn_backend_py.verification.graphs import FAMILIES, make_verification_graphs
from cudnn_backend_py.verification.verify import GraphAnswers, RunOutcome, Verification
from tools.hardware_evidence import (
    add_evidence_rows_to_file,
    main,
    make_evidence_rows,
    read_contributed_results,
    read_table,
)
from tools.records.hardware_evidence_page import make_hardware_evidence_page

SUPPORTED = VerdictAndConfigs(outcome="supported", configs={"A": ["eng0"]}, workspace={"A": [0]})
REFUSED = VerdictAndConfigs(outcome="not supported", configs={"A": []}, workspace={"A": []})


def make_gpu_verification_results(driver: int | None = 13000) -> Verification:
    """Return a verification in which a graph's verdict on a described A100 differs from that on the real A100."""
    device = {"deviceVer": 800, "deviceName": "NVIDIA A100-SXM4-80GB"}
    facts = LibraryAndGpuProperties(cudnn="9.19.0", cuda=13000, driver=driver, absent=[], device=device)
    rows = [GraphAnswers(case, {"live": SUPPORTED, "described": SUPPORTED}) for case in make_verification_graphs()]
    rows[0].answers["described"] = REFUSED
    runs = [
        RunOutcome("matmul 0", "right", "eng0"),
        RunOutcome("matmul 1", "wrong", "eng0"),
        RunOutcome("attention forward 0", "right"),
    ]
    return Verification({"live": facts, "described": facts}, rows, runs, [RunOutcome("decoding-dropout", "refused")])


def make_contributed_evidence_json() -> dict[str, Any]:
    return json.loads(json.dumps(Contribution.from_verification(make_gpu_verification_results()).to_dict()))


def test_contributed_gpu_evidence_becomes_table_rows_and_cells(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    evidence = json.dumps(make_contributed_evidence_json())
    issue = f"### The last line\n\n```json\n{evidence}\n```\n\n### The table\n\n_No response_\n"
    file, table = tmp_path / "issue.md", tmp_path / "table.json"
    file.write_text(issue)
    assert main(["check", str(file)]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert len(rows) == len(FAMILIES) + 3
    table.write_text("[]")
    add_evidence_rows_to_file(make_evidence_rows(read_contributed_results(issue)), table)
    before = table.read_text()
    add_evidence_rows_to_file(make_evidence_rows(read_contributed_results(issue)), table)
    assert table.read_text() == before
    page = make_hardware_evidence_page(read_table(table))
    (line,) = [line for line in page.splitlines() if line.startswith("| sm_80 |")]
    date = make_contributed_evidence_json()["date"]
    assert line.startswith(f"| sm_80 | 9.19.0, CUDA 13 | 69 of 70 same, 1 of 2 right; {date} | 70 of 70 same; {date} |")
    assert line.endswith(f"| 1 tried; {date} |")
    assert "| sm_90 | | | |" in page


def make_field_setter(*path: str, value: Any) -> Callable[[dict[str, Any]], None]:
    def set_field_value(data: dict[str, Any]) -> None:
        for name in path[:-1]:
            data = data[name]
        data[path[-1]] = value

    return set_field_value


@pytest.mark.parametrize(
    ("change", "field"),
    [
        (make_field_setter("schema", value="other"), "schema"),
        (make_field_setter("date", value="today"), "date"),
        (make_field_setter("gpu", value="A100](https://example.com)"), "gpu"),
        (make_field_setter("sm", value="80"), "sm"),
        (make_field_setter("cudnn", value="9.19.0 | x"), "cudnn"),
        (make_field_setter("families", "matmul", "graphs", value=7000), "graphs of families"),
        (make_field_setter("families", "matmul", "outcome", value=71), "counts of families"),
        (make_field_setter("families", "matmul", "more", value=1), "counts of families"),
        (make_field_setter("families", "other", value={}), "families"),
        (make_field_setter("runs", "matmul", "right", value=-1), "counts of runs"),
        (make_field_setter("known_issues", value={"a|b": "right"}), "known_issues"),
        (make_field_setter("host", value="mine"), "host"),
    ],
)
def test_error_names_the_damaged_field_of_contributed_evidence(
    change: Callable[[dict[str, Any]], None], field: str
) -> None:
    data = make_contributed_evidence_json()
    change(data)
    with pytest.raises(UsageError, match=field) as refused:
        Contribution.from_dict(data)
    assert refused.value.code == "evidence-damaged"


def test_a_github_issue_without_valid_json_is_refused(tmp_path: Path) -> None:
    (tmp_path / "issue.md").write_text("nothing")
    assert main(["check", str(tmp_path / "issue.md")]) == 1
    (tmp_path / "issue.md").write_text("{" * 60_000 + "}")
    assert main(["check", str(tmp_path / "issue.md")]) == 1


def test_verification_results_without_a_gpu_driver_are_refused() -> None:
    with pytest.raises(UsageError, match="no-evidence"):
        Contribution.from_verification(make_gpu_verification_results(driver=None))


def test_stored_gpu_evidence_is_sorted_and_counts_are_consistent() -> None:
    rows = read_table()
    assert rows == sorted(rows)
    assert all(0 <= row.agree <= row.results for row in rows)
