"""The command ``target verify``: its output file, its exit codes, and the private data that it leaves out."""

from __future__ import annotations

import getpass
import json
import socket
from pathlib import Path

import pytest
from click.testing import CliRunner

from cudnn_backend_py.cli.commands import main
from cudnn_backend_py.verification.graphs import make_verification_graphs
from cudnn_backend_py.verification.verify import SCHEMA

SAMPLE_CASES = make_verification_graphs()[:14]  # two of each family


def test_target_verify_writes_every_verdict_and_no_private_data(tmp_path: Path) -> None:
    path = tmp_path / "answers.json"
    done = CliRunner().invoke(main, ["target", "verify", "--target", "h100", "--output", str(path)])
    assert done.exit_code == 0, done.output
    assert done.stdout.startswith("300 graphs: ")
    text = path.read_text(encoding="utf-8")
    data = json.loads(text)
    assert data["schema"] == SCHEMA
    assert list(data["sides"]) == ["described"]
    assert len(data["graphs"]) == 300
    assert "pciDeviceId" not in text
    private = (getpass.getuser(), socket.gethostname(), str(Path.home()), str(tmp_path))
    assert [word for word in private if word in text] == []


def test_target_verify_compares_described_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cudnn_backend_py.verification.verify.make_verification_graphs", lambda: SAMPLE_CASES)
    output = ["--output", str(tmp_path / "answers.json")]
    done = CliRunner().invoke(main, ["target", "verify", "--target", "h100", "--as", "sm75", *output])
    assert done.exit_code == 1, done.output
    assert "deviceVer" in done.stdout
    assert f"of {len(SAMPLE_CASES)} agree; every answer is in " in done.stdout


def test_target_verify_needs_a_gpu_or_a_target() -> None:
    done = CliRunner().invoke(main, ["target", "verify"])
    if "verification" not in done.stdout:
        assert done.exit_code == 2
        assert "no-gpu" in done.stderr
        assert "--target" in done.stderr


def test_verdicts_for_a_described_gpu_cannot_be_contributed() -> None:
    done = CliRunner().invoke(main, ["target", "verify", "--target", "h100", "--contribute"])
    assert done.exit_code == 2
    assert "no evidence" in done.stderr
