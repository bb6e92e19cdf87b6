"""Evidence from a GPU becomes rows and a cell of the page; what is damaged or made up is refused with its field."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cudnn_backend_py.errors import UsageError
from cudnn_backend_py.verification.answers import Answer, SideFacts
from cudnn_backend_py.verification.contribution import Contribution
from cudnn_backend_py.verification.graphs import FAMILIES, make_cases
from cudnn_backend_py.verification.verify import GraphRow, RunOutcome, Verification
from tools.hardware_evidence import add, main, read_evidence, read_table, rows_of
from tools.records.hardware_evidence_page import hardware_evidence_page

SUPPORTED = Answer(outcome="supported", configs={"A": ["eng0"]}, workspace={"A": [0]})
REFUSED = Answer(outcome="not supported", configs={"A": []}, workspace={"A": []})


def verification(driver: int | None = 13000) -> Verification:
    """Return answers of a second machine's GPU; the outcome of the first matmul differs."""
    device = {"deviceVer": 800, "deviceName": "NVIDIA A100-SXM4-80GB"}
    facts = SideFacts(cudnn="9.19.0", cuda=13000, driver=driver, absent=[], device=device)
    rows = [GraphRow(case, {"live": SUPPORTED, "described": SUPPORTED}) for case in make_cases()]
    rows[0].answers["described"] = REFUSED
    runs = [
        RunOutcome("matmul 0", "right", "eng0"),
        RunOutcome("matmul 1", "wrong", "eng0"),
        RunOutcome("attention forward 0", "right"),
    ]
    return Verification({"live": facts, "described": facts}, rows, runs, [RunOutcome("decoding-dropout", "refused")])


def contribution() -> dict[str, Any]:
    return json.loads(json.dumps(Contribution.from_verification(verification()).to_dict()))


def test_evidence_becomes_rows_and_cells(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    issue = f"### The last line\n\n```json\n{json.dumps(contribution())}\n```\n\n### The table\n\n_No response_\n"
    file, table = tmp_path / "issue.md", tmp_path / "table.json"
    file.write_text(issue)
    assert main(["check", str(file)]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert len(rows) == len(FAMILIES) + 3
    table.write_text("[]")
    add(rows_of(read_evidence(issue)), table)
    before = table.read_text()
    add(rows_of(read_evidence(issue)), table)
    assert table.read_text() == before
    page = hardware_evidence_page(read_table(table))
    (line,) = [line for line in page.splitlines() if line.startswith("| sm_80 |")]
    date = contribution()["date"]
    assert line.startswith(f"| sm_80 | 9.19.0, CUDA 13 | 69 of 70 same, 1 of 2 right; {date} | 70 of 70 same; {date} |")
    assert line.endswith(f"| 1 tried; {date} |")
    assert "| sm_90 | | | |" in page


def planted(*path: str, value: Any) -> Callable[[dict[str, Any]], None]:
    def plant(data: dict[str, Any]) -> None:
        for name in path[:-1]:
            data = data[name]
        data[path[-1]] = value

    return plant


@pytest.mark.parametrize(
    ("plant", "field"),
    [
        (planted("schema", value="other"), "schema"),
        (planted("date", value="today"), "date"),
        (planted("gpu", value="A100](https://example.com)"), "gpu"),
        (planted("sm", value="80"), "sm"),
        (planted("cudnn", value="9.19.0 | x"), "cudnn"),
        (planted("families", "matmul", "graphs", value=7000), "graphs of families"),
        (planted("families", "matmul", "outcome", value=71), "counts of families"),
        (planted("families", "matmul", "more", value=1), "counts of families"),
        (planted("families", "other", value={}), "families"),
        (planted("runs", "matmul", "right", value=-1), "counts of runs"),
        (planted("known_issues", value={"a|b": "right"}), "known_issues"),
        (planted("host", value="mine"), "host"),
    ],
)
def test_damaged_evidence_is_refused(plant: Callable[[dict[str, Any]], None], field: str) -> None:
    data = contribution()
    plant(data)
    with pytest.raises(UsageError, match=field) as refused:
        Contribution.from_dict(data)
    assert refused.value.code == "evidence-damaged"


def test_no_json_is_refused(tmp_path: Path) -> None:
    (tmp_path / "issue.md").write_text("nothing")
    assert main(["check", str(tmp_path / "issue.md")]) == 1
    (tmp_path / "issue.md").write_text("{" * 60_000 + "}")
    assert main(["check", str(tmp_path / "issue.md")]) == 1


def test_described_answers_are_no_evidence() -> None:
    with pytest.raises(UsageError, match="no-evidence"):
        Contribution.from_verification(verification(driver=None))


def test_table_of_evidence_is_whole() -> None:
    rows = read_table()
    assert rows == sorted(rows)
    assert all(0 <= row.agree <= row.results for row in rows)
