"""The command ``reasons`` knows a message of cuDNN without its status from the files of the library."""

from __future__ import annotations

from click.testing import CliRunner

from cudnn_backend_py.cli.commands import main


def test_reasons_command_knows_messages_of_the_library() -> None:
    done = CliRunner().invoke(main, ["reasons", "Scale tensor must be 4-dimensional"])
    assert done.exit_code == 0
    assert done.stdout.startswith("An operation, a tensor or an attribute is not valid")
    assert CliRunner().invoke(main, ["reasons", "The garden must be 4-dimensional"]).exit_code == 1
