"""SHA-256 of files: cached by the file's signature (size and times), and read again when that changes."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from cudnn_backend_py.system.integrity import (
    FileChangedError,
    compute_file_sha256,
    get_remembered_sha256,
    make_file_signature,
)


def test_the_hash_of_an_unchanged_file_is_cached(tmp_path: Path) -> None:
    file = tmp_path / "libcudnn.so.9"
    file.write_bytes(b"first")
    path, before = str(file), make_file_signature(file.stat())
    assert get_remembered_sha256(path, before) is None
    assert (
        compute_file_sha256(path, before) == hashlib.sha256(b"first").hexdigest() == get_remembered_sha256(path, before)
    )
    file.write_bytes(b"second")
    after = make_file_signature(file.stat())
    assert after != before
    assert get_remembered_sha256(path, after) is None


def test_hashing_refuses_a_file_with_a_changed_size_or_time(tmp_path: Path) -> None:
    file = tmp_path / "libcudnn.so.9"
    file.write_bytes(b"first")
    before = make_file_signature(file.stat())
    file.write_bytes(b"another")
    with pytest.raises(FileChangedError, match="changed while it was read"):
        compute_file_sha256(str(file), before)
    assert get_remembered_sha256(str(file), before) is None
    assert compute_file_sha256(str(file)) == hashlib.sha256(b"another").hexdigest()
