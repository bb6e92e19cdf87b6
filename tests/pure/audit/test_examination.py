"""Re-examination of a stored audit case: bisection of cuDNN versions, the report and the reproduction program."""

from __future__ import annotations

import ast
import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from cudnn_backend_py import UsageError
from cudnn_backend_py.audit.examination import (
    CaseReport,
    VersionResult,
    _CaseExamination,
    bisect_to_first_differing_version,
)
from cudnn_backend_py.audit.look import audit_from_environment
from cudnn_backend_py.audit.report import AuditReport, StoredCase
from cudnn_backend_py.audit.reproduction import draft_known_issue, make_reproduction_program

from .test_case import make_case


@pytest.mark.parametrize("first_other", [0, 1, 5, 11, 12])
def test_first_differing_version_is_found_with_few_judgements(first_other: int) -> None:
    """Results change at version ``first_other``: it and the version before it are judged, at most five in all."""
    judged: list[int] = []

    def has_changed_result(name: str) -> bool:
        judged.append(int(name))
        return int(name) >= first_other

    bisect_to_first_differing_version([str(number) for number in range(12)], has_changed_result)
    assert len(judged) == len(set(judged)) <= 5
    if first_other < 12:
        assert first_other in judged
        assert first_other == 0 or first_other - 1 in judged
    else:
        assert judged == [11]
    bisect_to_first_differing_version([], has_changed_result)


def make_audit_result_of_version(
    version: str, wrong: tuple[str, ...] = (), right: tuple[str, ...] = ()
) -> VersionResult:
    return VersionResult(
        version, version, wrong, right, ("y",) if wrong else (), "", "y: error 9 of the bound" if wrong else ""
    )


def make_case_report(*of: VersionResult, **fields: object) -> CaseReport:
    return CaseReport(case=make_case(), file="case.npz", asked=list(of), **fields)  # type: ignore[arg-type]


def test_audit_case_report_lists_results_by_version() -> None:
    found = make_case_report(
        make_audit_result_of_version("9.19.0", ("eng1_k2=1",), ("eng0",)),
        make_audit_result_of_version("9.28.0", (), ("eng1",)),
        engine=1, since="9.19.0",
        until="9.28.0", faults=("elementwise-two-dims",), data="integers", program="case.py",
    )  # fmt: skip
    text = str(found)
    assert "cuDNN 9.19.0: 1 wrong (eng1_k2=1); 1 right (eng0); y: error 9 of the bound" in text
    assert (
        "verdict: engine 1 of cuDNN 9.19.0 is wrong; not from 9.28.0 on, of those that were queried; 9.28.0 right"
        in text
    )
    assert "known issue: elementwise-two-dims" in text
    assert found.exit_code == 1
    assert make_case_report(make_audit_result_of_version("9.28.0", (), ("eng1",))).exit_code == 0
    assert make_case_report(make_audit_result_of_version("9.28.0")).exit_code == 2
    assert found.to_dict()["asked"][0]["state"] == "wrong"


def test_audit_case_report_may_say_that_torch_is_wrong() -> None:
    found = CaseReport(
        case=make_case(backend="torch's flash"), file="x", asked=[make_audit_result_of_version("9.19.0", (), ("eng1",))]
    )
    assert "cuDNN is right wherever it was queried; the result is that of torch's flash" in str(found)


def test_reproduction_program_is_self_contained(tmp_path: Path) -> None:
    """The program contains the graph and the input data, so it runs without the case file."""
    one = make_case()
    assert one.graph is not None
    path = tmp_path / "shown.py"
    path.write_text(make_reproduction_program(one.graph, "uniform", "eng1", one.given(), one, 'a "wrong" \\ result'))
    read = f"import runpy; m = runpy.run_path({str(path)!r}); print(m['graph']().name, m['given']()['x'].sum())"
    done = subprocess.run([sys.executable, "-c", read], capture_output=True, text=True, check=True)
    name, total = done.stdout.split()
    assert name == "activation"
    assert float(total) == pytest.approx(float(np.sum(one.given()["x"], dtype=np.float32)), rel=1e-5)
    path.write_text(make_reproduction_program(one.graph, "integers", "eng1", None, one, "wrong"))
    read = f"import runpy; m = runpy.run_path({str(path)!r}); print(m['DATA'], m['given']())"
    done = subprocess.run([sys.executable, "-c", read], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "integers {}"


def test_reproduction_program_executes_no_text_of_an_audit_case() -> None:
    one = make_case(wrong=('"""\nraise SystemExit(99)\n"""',), cudnn="9.19.0")
    tree = ast.parse(make_reproduction_program(one.graph, "uniform", "eng1", None, one, "wrong"))  # type: ignore[arg-type]
    assert not any(isinstance(statement, ast.Raise) for statement in tree.body)


def test_the_library_named_in_an_audit_case_is_not_loaded(tmp_path: Path) -> None:
    """A case file may come from another machine, and the library that it names must not be loaded."""
    library = tmp_path / "libcudnn.so.9"
    library.touch()
    one = make_case(library=str(library), cudnn="9.1.99")
    found = CaseReport(case=one, file="case.npz")
    assert _CaseExamination(one, found, None, 0.0, str)._find_original_library_name() == ""
    assert f"--cudnn {library} runs it" in found.left[0]


def test_drafted_known_issue_matches_its_graph_and_versions(tmp_path: Path) -> None:
    one, found = (
        make_case(),
        make_case_report(
            make_audit_result_of_version("9.19.0", ("eng1",)), engine=1, since="9.19.0", until="9.28.0", data="uniform"
        ),
    )
    assert one.graph is not None
    path = tmp_path / "draft.py"
    path.write_text(draft_known_issue(one.graph, one, found, "y is wrong", []))
    space: dict[str, object] = {}
    exec(compile(path.read_text(), str(path), "exec"), space)
    row = space["FAULT"]
    assert row.applies_to(None, one.graph)  # type: ignore[attr-defined]
    assert row.affects_version((9, 20, 0), 90)  # type: ignore[attr-defined]
    assert not row.affects_version((9, 28, 0), 90)  # type: ignore[attr-defined]
    assert row.engines == (1,)  # type: ignore[attr-defined]


def test_audit_report_lists_unchecked_calls() -> None:
    report = AuditReport(calls=300, elapsed_s=10.0, counted_s=0.02, host_s=0.03, gpu_s=0.05)
    report.sampled["torch"] += 3
    report.passed_over["checks had taken 2.0% of the time"] += 1
    report.unjudged["dropout"] += 1
    report.wrong.append(StoredCase(None, "the folder is full", "torch: sdpa", ("o",)))
    text = str(report)
    assert text.startswith("audit: 300 calls, 3 sampled (3 of torch), 1 wrong; it took 1.00% of 10.0 s\n")
    assert "not kept: the folder is full" in text
    assert "not checked: 1 call: checks had taken 2.0% of the time" in text
    assert "not judged: 1 call: dropout" in text
    assert report.to_dict()["wrong"][0]["file"] is None


@pytest.mark.parametrize(("said", "warns"), [("", False), ("0", False), ("often", True), ("-3", True)])
def test_invalid_environment_variable_warns_and_starts_no_audit(
    said: str, warns: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDNN_BACKEND_AUDIT", said)
    if warns:
        with pytest.warns(UserWarning, match="must be a number of calls, got .*: nothing is audited"):
            audit_from_environment()
    else:
        audit_from_environment()


def test_invalid_audit_options_are_refused() -> None:
    from cudnn_backend_py.audit import audit

    for options in (
        *({"every": 0}, {"every": 1.5}, {"every": True}, {"every": 10**400}, {"cost": 0.0}, {"cost": 2.0}),
        *({"cost": "1"}, {"cost": math.nan}, {"first": -1}, {"patience_s": math.nan}, {"seed": "x"}),
    ):
        with pytest.raises(UsageError) as error, audit(**options):  # type: ignore[arg-type]
            pass
        assert error.value.code == "audit-option", options
