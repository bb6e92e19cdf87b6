"""Available memory: the smallest limit of the system counts."""

from __future__ import annotations

import pytest

from cudnn_backend_py.system import memory
from cudnn_backend_py.system.memory import available_bytes, memory_error


def test_memory_error_uses_the_smallest_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    there = available_bytes()
    assert there is not None
    assert 1 << 20 < there < 1 << 50
    monkeypatch.setattr(memory, "_memory_limits", lambda: iter((9, 4, 7)))
    assert memory_error(4, "it") == ""
    assert "it needs 0.0 GB" in memory_error(5, "it")
    monkeypatch.setattr(memory, "_memory_limits", lambda: iter(()))
    assert memory_error(1 << 80, "it") == ""
