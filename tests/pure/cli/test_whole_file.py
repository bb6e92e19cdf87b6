"""Tests that output files are written completely or left unchanged."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner

from cudnn_backend_py import save_graph
from cudnn_backend_py.cli.commands import main
from cudnn_backend_py.system.atomic_file import write_atomically
from tests.support.reporting import make_two_matmuls


@contextmanager
def limit_file_size(size: int) -> Iterator[None]:
    """Limit the size of files that this process can write, which has the effect of a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_failed_write_leaves_the_file_unchanged(tmp_path: Path) -> None:
    path = tmp_path / "mine.txt"
    path.write_text("mine")
    with pytest.raises(OSError, match=r"mine\.txt") as error, limit_file_size(1000):
        write_atomically(path, "x" * 5000)
    assert error.value.filename == str(path)
    assert path.read_text() == "mine"
    with pytest.raises(OSError, match=r"other\.txt"), limit_file_size(1000):
        write_atomically(tmp_path / "other.txt", "x" * 5000)
    assert [item.name for item in tmp_path.iterdir()] == ["mine.txt"]


def test_a_command_that_cannot_write_names_the_file_and_leaves_it_unchanged(tmp_path: Path) -> None:
    graph, drawn = tmp_path / "graph.json", tmp_path / "graph.svg"
    save_graph(make_two_matmuls(), graph)
    words = ["graph", "draw", str(graph), "--output", str(drawn)]
    assert CliRunner().invoke(main, words).exit_code == 0
    whole = drawn.read_bytes()
    with limit_file_size(1000):
        done = CliRunner().invoke(main, words)
    assert done.exit_code == 2
    assert f"system-error: the operating system reports: [Errno 27] File too large: '{drawn}'" in done.stderr
    assert drawn.read_bytes() == whole
    assert len(list(tmp_path.iterdir())) == 2


def test_writing_keeps_permissions_and_symbolic_links(tmp_path: Path) -> None:
    path, link = tmp_path / "mine.txt", tmp_path / "link.txt"
    path.write_text("mine")
    path.chmod(0o640)
    link.symlink_to(path)
    write_atomically(path, "new")
    assert (path.read_text(), path.stat().st_mode & 0o777) == ("new", 0o640)
    write_atomically(link, b"newer")
    assert link.is_symlink()
    assert path.read_text() == "newer"
    write_atomically(os.devnull, "nothing")
    assert not os.path.isfile(os.devnull)
    write_atomically(tmp_path / ("n" * 255), "long")
    assert (tmp_path / ("n" * 255)).stat().st_mode & 0o777 == 0o666 & ~_get_current_umask()


def _get_current_umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
