"""Output of commands: reports contain no command for a CI, annotations do."""

from __future__ import annotations

import pytest

from cudnn_backend_py.cli.output import write_report


def test_reports_hold_no_command_but_annotations_do(capfd: pytest.CaptureFixture[str]) -> None:
    write_report("<pre>\n  ::error::x\n##[error]y ##vso[z]\na::b</pre>\n", None)
    assert capfd.readouterr().out == "<pre>\n  &#58;:error::x\n&#35;#[error]y &#35;#vso[z]\na::b</pre>\n"
    write_report("::error file=x::y\n", None, annotations=True)
    assert capfd.readouterr().out == "::error file=x::y\n"
