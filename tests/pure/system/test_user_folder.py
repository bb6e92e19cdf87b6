"""``get_user_folder``: the path of the user's cache folder by the XDG specification."""

from __future__ import annotations

from pathlib import Path

import pytest

from cudnn_backend_py.system.private_folder import get_user_folder


@pytest.mark.parametrize(("said", "cache"), [(None, "~/.cache"), ("", "~/.cache"), ("  ", "~/.cache"), ("/x", "/x")])
def test_user_folder_follows_the_xdg_specification(
    said: str | None, cache: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    if said is not None:
        monkeypatch.setenv("XDG_CACHE_HOME", said)
    assert get_user_folder("plans") == Path(cache).expanduser() / "cudnn-backend-py" / "plans"
