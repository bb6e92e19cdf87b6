"""What commands write: reports without CI workflow commands, and sizes."""

from __future__ import annotations

import pytest

from cudnn_backend_py.cli.output import format_megabytes, write_or_print_report


def test_ci_commands_are_escaped_in_reports_but_not_in_annotations(capfd: pytest.CaptureFixture[str]) -> None:
    write_or_print_report("<pre>\n  ::error::x\n##[error]y ##vso[z]\na::b</pre>\n", None)
    assert capfd.readouterr().out == "<pre>\n  &#58;:error::x\n&#35;#[error]y &#35;#vso[z]\na::b</pre>\n"
    write_or_print_report("::error file=x::y\n", None, annotations=True)
    assert capfd.readouterr().out == "::error file=x::y\n"


@pytest.mark.parametrize(
    ("size_bytes", "text"),
    [(0, "0"), (3, "<0.1"), (75_000, "0.1"), (2_000_000, "2.0"), (9_960_000, "10"), (1_302_400_000, "1302")],
)
def test_small_sizes_are_not_shown_as_0_mb(size_bytes: int, text: str) -> None:
    assert format_megabytes(size_bytes) == text
