"""``explain(version=)`` and ``library(version=)`` in this process and in a child process."""

from __future__ import annotations

import os

import pytest

from cudnn_backend_py import EnvironmentNotReady, UsageError, explain, library, open_target
from examples.forum_two_matmul import graph as forum
from tests.support.child import run_code

OLDER_VERSION = "9.19.0"


def test_explain_uses_a_child_if_another_version_is_loaded() -> None:
    loaded = library().build_text
    verdict = explain(forum(), "l40s", version=OLDER_VERSION)
    assert (verdict.cudnn, verdict.outcome) == (f"{OLDER_VERSION}+cu12", "not supported")
    assert verdict.cause is not None
    assert verdict.cause.code == "shared-memory-per-block-insufficient"
    assert explain(forum(), "l40s", version=loaded).cudnn == loaded
    with pytest.raises(UsageError, match="child-only-verdict"):
        explain(forum(), "l40s", version=OLDER_VERSION, plans=[])
    with pytest.raises(UsageError, match="child-only-verdict"):
        explain(forum(), open_target("l40s"), version=OLDER_VERSION)


def test_the_given_version_is_loaded_if_no_library_is_loaded() -> None:
    done = run_code(
        "from cudnn_backend_py import explain, library\n"
        "from examples.forum_two_matmul import graph\n"
        f"print(explain(graph(), 'l40s', version='{OLDER_VERSION}').cudnn, library().build_text)\n"
        f"print(library(version='{OLDER_VERSION}').build_text)",
        environment={**os.environ, "CUDNN_BACKEND_LIBRARY": ""},
    )
    assert done.stdout.split() == [f"{OLDER_VERSION}+cu12"] * 3


@pytest.mark.parametrize("version", ["9.7.99", "9.28.0+cu13"])
def test_a_version_that_is_not_installed_is_refused(version: str) -> None:
    for load in (lambda: library(version=version), lambda: explain(forum(), "l40s", version=version)):
        with pytest.raises(EnvironmentNotReady) as caught:
            load()
        assert caught.value.code == "cudnn-version-not-installed"
        assert "cudnn-backend cudnn install" in caught.value.sections["fix"]
