"""``write_or_print_report`` escapes CI workflow commands in reports, but writes them in annotations."""

from __future__ import annotations

import pytest

from cudnn_backend_py.cli.output import write_or_print_report


def test_ci_commands_are_escaped_in_reports_but_not_in_annotations(capfd: pytest.CaptureFixture[str]) -> None:
    write_or_print_report("<pre>\n  ::error::x\n##[error]y ##vso[z]\na::b</pre>\n", None)
    assert capfd.readouterr().out == "<pre>\n  &#58;:error::x\n&#35;#[error]y &#35;#vso[z]\na::b</pre>\n"
    write_or_print_report("::error file=x::y\n", None, annotations=True)
    assert capfd.readouterr().out == "::error file=x::y\n"
