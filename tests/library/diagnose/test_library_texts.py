"""Texts of messages are found in the files of the installed cuDNN, with numbers and names filled in."""

from __future__ import annotations

from pathlib import Path

import pytest

from cudnn_backend_py.diagnose.framework_messages import explain_message
from cudnn_backend_py.diagnose.library_texts import find_library_with_message


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("Unsupported node in the graph.", "rule-operation"),
        ("Unsupported node in the graph. at: true", "rule-operation"),
        ("generate_mha_fort()", "rule-step"),
        ("Scale tensor must be 4-dimensional", "rule-invalid"),
        ("FORT matmul: matrix A leading dimension must be 32-bit aligned (got 16 bits per access).", "rule-alignment"),
    ],
)
def test_messages_without_a_status_are_known_from_the_library(text: str, code: str) -> None:
    found = find_library_with_message(text)
    assert found is not None
    assert found.name.startswith("libcudnn_")
    assert [one.code for one in explain_message(text, is_reason=True)] == [code]


@pytest.mark.parametrize(
    "text",
    ["", "all is well", "Unsupported node in the garden", "The batch of 4 samples was read", "error 1 2 3 4 5 6"],
)
def test_other_texts_are_not_in_the_library(text: str) -> None:
    assert find_library_with_message(text) is None


def test_damaged_library_files_have_no_messages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("libcudnn.so.9", "libcudnn_graph.so.9", "libcudnn_ops.so.9", "libcudnn_cnn.so.9"):
        (tmp_path / name).write_bytes(
            b"\x7fELF\x02" + b"\xff" * 100 if "graph" in name else b"" if "ops" in name else b"text"
        )
    monkeypatch.setenv("CUDNN_BACKEND_LIBRARY", str(tmp_path))
    assert find_library_with_message("Unsupported node in the graph.") is None
