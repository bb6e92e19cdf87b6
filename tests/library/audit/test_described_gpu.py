"""Examine a recorded case for a described GPU with two cuDNN versions: every step except execution."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from cudnn_backend_py import find_profile
from cudnn_backend_py import frontend as cudnn
from cudnn_backend_py.audit import examine
from cudnn_backend_py.audit.case import CaseFolder
from cudnn_backend_py.cli.commands import main
from cudnn_backend_py.frontend.graphs import make_launch_arguments
from tests.pure.audit.test_case import make_case


@pytest.fixture
def stored_case(tmp_path: Path) -> Path:
    path, _ = CaseFolder(tmp_path / "audit").store(make_case())
    assert path is not None
    return path


def test_examining_a_case_lists_the_plan_of_each_cudnn_version(stored_case: Path) -> None:
    said: list[str] = []
    found = examine(stored_case, target="h100", cudnn=["9.24"], step=said.append)
    assert found.interpreter is not None
    assert "[2,3,4] is 7" in found.interpreter[0]
    assert len(found.asked) == 2
    assert all("not run" in one.other and not one.state for one in found.asked), found.asked
    assert {one.version[:4] for one in found.asked} == {"9.24", found.asked[0].version[:4]}
    assert found.exit_code == 2
    assert "interpreting" in said
    assert sorted(path.name for path in stored_case.parent.glob("case-*")) == [stored_case.name], (
        "nothing is written of what is not shown"
    )


def test_the_audit_command_lists_and_examines_cases(stored_case: Path) -> None:
    listed = CliRunner().invoke(main, ["audit", "--folder", str(stored_case.parent)])
    assert listed.exit_code == 0
    assert str(stored_case) in listed.output
    assert "activation by eng1" in listed.output
    empty = CliRunner().invoke(main, ["audit", "--folder", str(stored_case.parent / "none")])
    assert "no case is kept" in empty.output
    done = CliRunner().invoke(main, ["audit", "--target=h100", "--cudnn=9.24", "--format=json", str(stored_case)])
    assert done.exit_code == 2
    (one,) = json.loads(done.stdout)["cases"]
    assert one["case"]["wrong"] == ["y"]
    assert [item["state"] for item in one["asked"]] == ["", ""]
    wrong = CliRunner().invoke(main, ["audit", "--cudnn=1.2.3", str(stored_case)])
    assert wrong.exit_code == 2
    assert "cudnn-version-not-found" in wrong.stderr


def test_a_frontend_execution_is_recorded_with_its_plan_and_addresses() -> None:
    graph = cudnn.pygraph(
        io_data_type=cudnn.data_type.HALF,
        intermediate_data_type=cudnn.data_type.FLOAT,
        compute_data_type=cudnn.data_type.FLOAT,
        device_property=cudnn.create_device_properties(find_profile("h100").json()),
    )
    x = graph.tensor(name="x", dim=[1, 96, 24], stride=[2304, 24, 1])
    y = graph.relu(input=x).set_output(True)
    graph.build([cudnn.heur_mode.A])
    plan, where, stream = make_launch_arguments(graph, {x: 4096, y: 8192}, 1 << 20)
    assert sorted(where.values()) == [4096, 8192]
    assert {plan.graph.tensor(uid).name for uid in where} == {"x", plan.graph.outputs[0].name}
    assert stream == 0
    assert plan.tag.startswith("eng")
