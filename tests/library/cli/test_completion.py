"""Completion with the installed cuDNN versions."""

from __future__ import annotations

from click.shell_completion import get_completion_class

from cudnn_backend_py.cli.commands import main
from cudnn_backend_py.versions.store import list_installed
from tests.support.child import OLDER_VERSION


def test_installed_versions_are_completed_the_newest_first() -> None:
    chosen = get_completion_class("bash")
    assert chosen is not None
    completion = chosen(main, {}, "cudnn-backend", "_CUDNN_BACKEND_COMPLETE")
    for line in ("explain g.json --cudnn", "matrix g.json --cudnn", "cudnn remove"):
        found = [one.value for one in completion.get_completions(line.split(), "9.")]
        installed = list_installed()
        assert set(found) == {name for one in installed for name in (one.version_with_cuda, one.name)}
        assert found[0] == installed[-1].version_with_cuda
        assert f"{OLDER_VERSION}+cu12" in found
