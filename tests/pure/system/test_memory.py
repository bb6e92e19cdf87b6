"""Available memory: the smallest limit of the system counts."""

from __future__ import annotations

import pytest

from cudnn_backend_py.system import memory
from cudnn_backend_py.system.memory import explain_insufficient_memory, find_available_bytes


def test_needed_memory_is_compared_with_the_smallest_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    there = find_available_bytes()
    assert there is not None
    assert 1 << 20 < there < 1 << 50
    monkeypatch.setattr(memory, "_iterate_memory_limits", lambda: iter((9, 4, 7)))
    assert explain_insufficient_memory(4, "it") == ""
    assert "it needs 0.0 GB" in explain_insufficient_memory(5, "it")
    monkeypatch.setattr(memory, "_iterate_memory_limits", lambda: iter(()))
    assert explain_insufficient_memory(1 << 80, "it") == ""
