"""Files of the plan cache: never half-written, private, limited in size; changed bytes are detected."""

from __future__ import annotations

import os
import random
import stat
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cudnn_backend_py import EnvironmentNotReady, UsageError
from cudnn_backend_py.plans.cache import PlanCache, PlanCacheWarning, default_cache, open_plan_files
from cudnn_backend_py.system.private_folder import KeyedRecordFolder, PrivateFolder
from tests.support.child import ROOT, run_python

PLAN_KEY, OTHER_PLAN_KEY = "a" * 64, "b" * 64
ENTRY_DATA: dict[str, Any] = {"tag": "eng2_k24=7", "evidence": {"us": 1.5}, "graph": {"name": "é"}, "plan": "code"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "plans"


@pytest.fixture
def entry_folder(folder: Path) -> KeyedRecordFolder:
    return open_plan_files(folder, 1 << 20)


def list_file_names(folder: Path) -> list[str]:
    return sorted(item.name for item in folder.iterdir())


def test_written_entries_are_read_and_the_folder_is_private(entry_folder: KeyedRecordFolder, folder: Path) -> None:
    assert entry_folder.read(PLAN_KEY) is None
    assert not folder.exists()
    entry_folder.write(PLAN_KEY, ENTRY_DATA)
    assert entry_folder.read(PLAN_KEY) == {"key": PLAN_KEY, **ENTRY_DATA}
    assert entry_folder.read(OTHER_PLAN_KEY) is None
    assert list_file_names(folder) == [".lock", f"{PLAN_KEY}.plan"]
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert {stat.S_IMODE(item.stat().st_mode) for item in folder.iterdir()} == {0o600}
    assert entry_folder.clear() == 1
    assert entry_folder.clear() == 0
    assert entry_folder.read(PLAN_KEY) is None


def test_files_are_private_under_any_umask(entry_folder: KeyedRecordFolder, folder: Path) -> None:
    old = os.umask(0)
    try:
        entry_folder.write(PLAN_KEY, ENTRY_DATA)
    finally:
        os.umask(old)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert {stat.S_IMODE(item.stat().st_mode) for item in folder.iterdir()} == {0o600}


def test_entries_with_a_changed_bit_are_ignored(entry_folder: KeyedRecordFolder) -> None:
    """One bit is flipped in each byte of an entry: first line, hash, JSON, last newline."""
    entry_folder.write(PLAN_KEY, ENTRY_DATA)
    path = entry_folder.path(PLAN_KEY)
    good = path.read_bytes()
    chance = random.Random(1)
    for place in range(len(good)):
        wrong = bytearray(good)
        wrong[place] ^= 1 << chance.randrange(8)
        path.write_bytes(wrong)
        with pytest.warns(PlanCacheWarning, match="is ignored"):
            assert entry_folder.read(PLAN_KEY) is None
    path.write_bytes(good)
    assert entry_folder.read(PLAN_KEY) is not None


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda good: good[:-1], "changed"),
        (lambda good: good + b" ", "changed"),
        (lambda good: b"", "does not begin"),
        (lambda good: b"\0" * len(good), "does not begin"),
        (lambda good: good.replace(b"plan 1 ", b"plan 2 "), "does not begin"),
    ],
    ids=["short", "long", "empty", "zeros", "other schema"],
)
def test_damaged_entries_are_ignored_and_overwritten(
    entry_folder: KeyedRecordFolder, change: Callable[[bytes], bytes], words: str
) -> None:
    entry_folder.write(PLAN_KEY, ENTRY_DATA)
    entry_folder.path(PLAN_KEY).write_bytes(change(entry_folder.path(PLAN_KEY).read_bytes()))
    with pytest.warns(PlanCacheWarning, match=words):
        assert entry_folder.read(PLAN_KEY) is None
    entry_folder.write(PLAN_KEY, ENTRY_DATA)
    assert entry_folder.read(PLAN_KEY) is not None


def test_an_entry_stored_under_another_key_is_ignored(entry_folder: KeyedRecordFolder) -> None:
    entry_folder.write(PLAN_KEY, ENTRY_DATA)
    entry_folder.path(PLAN_KEY).rename(entry_folder.path(OTHER_PLAN_KEY))
    with pytest.warns(PlanCacheWarning, match="another key"):
        assert entry_folder.read(OTHER_PLAN_KEY) is None


def test_entries_writable_by_other_users_are_ignored(entry_folder: KeyedRecordFolder) -> None:
    entry_folder.write(PLAN_KEY, ENTRY_DATA)
    entry_folder.path(PLAN_KEY).chmod(0o666)
    with pytest.warns(PlanCacheWarning, match="other users can write the file"):
        assert entry_folder.read(PLAN_KEY) is None


def test_symbolic_links_and_pipes_in_place_of_an_entry_are_ignored(
    entry_folder: KeyedRecordFolder, tmp_path: Path
) -> None:
    entry_folder.write(PLAN_KEY, ENTRY_DATA)
    entry_folder.path(PLAN_KEY).rename(tmp_path / "elsewhere")
    entry_folder.path(PLAN_KEY).symlink_to(tmp_path / "elsewhere")
    os.mkfifo(entry_folder.path(OTHER_PLAN_KEY), 0o600)
    for key in (PLAN_KEY, OTHER_PLAN_KEY):
        with pytest.warns(PlanCacheWarning):
            assert entry_folder.read(key) is None
    entry_folder.write(PLAN_KEY, ENTRY_DATA)
    assert not entry_folder.path(PLAN_KEY).is_symlink()


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o1777, 0o702])
def test_a_folder_accessible_to_other_users_is_refused(
    entry_folder: KeyedRecordFolder, folder: Path, mode: int
) -> None:
    entry_folder.write(PLAN_KEY, ENTRY_DATA)
    folder.chmod(mode)
    for use in (
        lambda: entry_folder.read(PLAN_KEY),
        lambda: entry_folder.write(PLAN_KEY, ENTRY_DATA),
        entry_folder.clear,
        lambda: [*entry_folder.read_all()],
    ):
        with pytest.raises(EnvironmentNotReady, match=f"mode {mode:04o}, needed is 0700") as caught:
            use()
        assert caught.value.code == "cache-folder-not-private"


def test_a_symbolic_link_to_a_folder_is_refused(entry_folder: KeyedRecordFolder, folder: Path, tmp_path: Path) -> None:
    entry_folder.write(PLAN_KEY, ENTRY_DATA)
    (tmp_path / "link").symlink_to(folder)
    with pytest.raises(EnvironmentNotReady, match="symbolic link") as caught:
        open_plan_files(tmp_path / "link", 1 << 20).read(PLAN_KEY)
    assert caught.value.code == "cache-folder-not-private"


def test_a_folder_of_another_user_is_refused(folder: Path) -> None:
    foreign = folder if os.geteuid() == 0 else Path("/etc")
    if foreign is folder:
        folder.mkdir(0o700)
        os.chown(folder, 12345, -1)
    with pytest.raises(EnvironmentNotReady, match="belongs to user id") as caught:
        open_plan_files(foreign, 1 << 20).read(PLAN_KEY)
    assert caught.value.code == "cache-folder-not-private"


def test_a_folder_that_cannot_be_created_gives_a_warning(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    entry_folder = open_plan_files(tmp_path / "file" / "plans", 1 << 20)
    with pytest.warns(PlanCacheWarning, match="is not kept"):
        entry_folder.write(PLAN_KEY, ENTRY_DATA)
    with pytest.warns(PlanCacheWarning, match="is ignored"):
        assert entry_folder.read(PLAN_KEY) is None


@pytest.mark.parametrize("key", ["", "a", "A" * 64, "../" + "a" * 61, "a" * 64 + "\n", "a" * 65])
def test_a_key_that_is_not_a_sha256_is_refused(entry_folder: KeyedRecordFolder, key: str) -> None:
    with pytest.raises(UsageError) as caught:
        entry_folder.read(key)
    assert caught.value.code == "plan-cache-key"


def test_a_plan_cache_record_that_contains_a_python_set_is_refused(entry_folder: KeyedRecordFolder) -> None:
    with pytest.raises(UsageError) as caught:
        entry_folder.write(PLAN_KEY, {"evidence": {"times": {1, 2}}})
    assert caught.value.code == "plan-cache-evidence"


def test_the_least_recently_used_entries_are_removed_first(folder: Path) -> None:
    size = 4096
    entry_folder = open_plan_files(folder, 3 * (size + 512))
    keys = [f"{number:064x}" for number in range(5)]
    for number, key in enumerate(keys[:3]):
        entry_folder.write(key, {"plan": "x" * size})
        os.utime(entry_folder.path(key), (number, number))
    assert entry_folder.read(keys[0]) is not None  # the oldest is now the most recently used
    entry_folder.write(keys[3], {"plan": "x" * size})
    assert [entry_folder.path(key).exists() for key in keys] == [True, False, True, True, False]
    entry_folder.write(keys[4], {"plan": "x" * size})
    assert [entry_folder.path(key).exists() for key in keys] == [True, False, False, True, True]
    with pytest.warns(PlanCacheWarning, match="at most"):
        entry_folder.write(PLAN_KEY, {"plan": "x" * 4 * size})
    assert not entry_folder.path(PLAN_KEY).exists()


def test_clear_keeps_other_files_of_the_folder(entry_folder: KeyedRecordFolder, folder: Path) -> None:
    entry_folder.write(PLAN_KEY, ENTRY_DATA)
    (folder / "notes.txt").write_text("mine")
    entry_folder.clear()
    assert list_file_names(folder) == [".lock", "notes.txt"]


def test_the_environment_variable_sets_the_folder_or_disables_the_cache(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDNN_BACKEND_PLAN_CACHE", str(folder))
    named = default_cache()
    assert named is not None
    assert named.folder == folder
    monkeypatch.setenv("CUDNN_BACKEND_PLAN_CACHE", "")
    assert default_cache() is None
    assert PlanCache(folder).folder == folder
    monkeypatch.delenv("CUDNN_BACKEND_PLAN_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    user = default_cache()
    assert user is not None
    assert user.folder == tmp_path / "cudnn-backend-py" / "plans"
    assert not user.folder.exists()
    assert user.entries() == ()


# Errors of the system


@pytest.mark.parametrize("name", ["~nosuchuser/plans", "a\0b", "\ud800", 5])
def test_an_impossible_folder_name_is_refused(name: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="cannot be the plan cache") as caught:
        PlanCache(name)
    assert caught.value.code == "cache-folder-name"
    if isinstance(name, str) and "~" in name:
        monkeypatch.setenv("CUDNN_BACKEND_PLAN_CACHE", name)
        with pytest.raises(UsageError, match="nosuchuser"):
            default_cache()


@pytest.mark.parametrize("max_bytes", [-1, 1.5, "1", None, True])
def test_a_size_limit_that_is_not_a_whole_number_is_refused(folder: Path, max_bytes: Any) -> None:
    with pytest.raises(UsageError) as caught:
        PlanCache(folder, max_bytes=max_bytes)
    assert caught.value.code == "plan-cache-bound"


def make_deeply_nested_list() -> list[Any]:
    made: list[Any] = []
    for _ in range(100_000):
        made = [made]
    return made


@pytest.mark.parametrize("evidence", [{"deep": make_deeply_nested_list()}, {"set": {1}}, {(1, 2): 3}])
def test_a_plan_cache_record_that_json_cannot_represent_is_refused(
    entry_folder: KeyedRecordFolder, evidence: dict[Any, Any]
) -> None:
    with pytest.raises(UsageError) as caught:
        entry_folder.write(PLAN_KEY, {"evidence": evidence})
    assert caught.value.code == "plan-cache-evidence"


def test_a_file_in_place_of_the_folder_cannot_be_cleared_or_listed(
    entry_folder: KeyedRecordFolder, folder: Path
) -> None:
    folder.write_text("mine")
    for use in (entry_folder.clear, lambda: [*entry_folder.read_all()]):
        with pytest.raises(EnvironmentNotReady, match="Not a directory") as caught:
            use()
        assert caught.value.code == "cache-folder-unusable"


def test_entries_that_vanish_during_clearing_are_not_counted(
    entry_folder: KeyedRecordFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    for key in (PLAN_KEY, OTHER_PLAN_KEY):
        entry_folder.write(key, ENTRY_DATA)
    unlink = os.unlink

    def unlink_vanished_entry(name: str, **options: Any) -> None:
        if name == f"{PLAN_KEY}.plan":
            unlink(name, **options)
        unlink(name, **options)

    monkeypatch.setattr(os, "unlink", unlink_vanished_entry)
    assert entry_folder.clear() == 1
    assert [*entry_folder.read_all()] == []


def test_a_folder_with_the_name_of_an_entry_is_ignored_and_kept(entry_folder: KeyedRecordFolder, folder: Path) -> None:
    entry_folder.write(OTHER_PLAN_KEY, ENTRY_DATA)
    entry_folder.path(PLAN_KEY).mkdir()
    open_before = len(os.listdir("/proc/self/fd"))
    with pytest.warns(PlanCacheWarning, match="not a regular file"):
        assert entry_folder.read(PLAN_KEY) is None
    assert len(os.listdir("/proc/self/fd")) == open_before
    assert entry_folder.clear() == 1
    assert list_file_names(folder) == [".lock", f"{PLAN_KEY}.plan"]


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_a_failing_write_leaves_no_file(
    entry_folder: KeyedRecordFolder, folder: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    entry_folder.write(OTHER_PLAN_KEY, ENTRY_DATA)

    def raise_error(*_arguments: Any, **_options: Any) -> None:
        raise error

    monkeypatch.setattr(os, "replace", raise_error)
    if isinstance(error, OSError):
        with pytest.warns(PlanCacheWarning, match="No space left"):
            entry_folder.write(PLAN_KEY, ENTRY_DATA)
    else:
        with pytest.raises(KeyboardInterrupt):
            entry_folder.write(PLAN_KEY, ENTRY_DATA)
    assert list_file_names(folder) == [".lock", f"{OTHER_PLAN_KEY}.plan"]


def test_interrupted_writers_do_not_exceed_the_size_limit(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Old entries are removed before a new one is written, so the limit holds even if the writer dies then."""
    entry_folder = open_plan_files(folder, 10_000)
    replace = os.replace

    def replace_and_raise_interrupt(*arguments: Any, **options: Any) -> None:
        replace(*arguments, **options)
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", replace_and_raise_interrupt)
    for number in range(8):
        with pytest.raises(KeyboardInterrupt):
            entry_folder.write(f"{number:064x}", {"plan": "x" * 3000})
        assert sum(item.stat().st_size for item in folder.iterdir()) <= 10_000


def test_clear_removes_the_partial_file_of_a_killed_writer(entry_folder: KeyedRecordFolder, folder: Path) -> None:
    entry_folder.write(PLAN_KEY, ENTRY_DATA)
    (folder / ".writing").write_text("half")
    assert entry_folder.clear() == 1
    assert list_file_names(folder) == [".lock"]


def test_a_removed_lock_file_is_created_again(entry_folder: KeyedRecordFolder, folder: Path) -> None:
    """After its lock file is removed, a writer locks the new file, as other writers do."""
    entry_folder.write(PLAN_KEY, ENTRY_DATA)
    private = PrivateFolder(folder, title="test", reason="test", code="cache-not-private")
    with private.open() as opened, opened.lock(), open(folder / ".lock") as old:
        (folder / ".lock").unlink()
        with opened.lock(0.0) as new:
            assert not os.path.samestat(os.fstat(old.fileno()), os.fstat(new))
            assert os.path.samestat((folder / ".lock").stat(), os.fstat(new))


def test_parent_folders_are_private_under_any_umask(tmp_path: Path) -> None:
    old = os.umask(0)
    try:
        open_plan_files(tmp_path / "a" / "b" / "plans", 1 << 20).write(PLAN_KEY, ENTRY_DATA)
    finally:
        os.umask(old)
    assert [stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "a", tmp_path / "a" / "b")] == [0o700] * 2


# Several processes

WRITER_PROGRAM = """
import sys
from cudnn_backend_py.plans.cache import open_plan_files
import warnings; warnings.simplefilter("error")
files = open_plan_files(sys.argv[1], 400_000)
print("ready", flush=True)
for turn in range(int(sys.argv[2])):
    for key in sys.argv[3:]:
        files.write(key, {"plan": key[0] * 50_000, "turn": turn})
        found = files.read(key)
        assert found is None or found["plan"] == key[0] * 50_000, found
"""


def start_cache_writer(folder: Path, turns: int, *keys: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", WRITER_PROGRAM, str(folder), str(turns), *keys]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_concurrent_writers_share_a_folder(folder: Path) -> None:
    """Three processes use one shared key and keys of their own; the folder is too small for all entries."""
    keys = [digit * 64 for digit in "0123456789"]
    running = [start_cache_writer(folder, 12, PLAN_KEY, *keys[first::3]) for first in range(3)]
    for process in running:
        _, errors = process.communicate(timeout=60)
        assert process.returncode == 0, errors
    entry_folder = open_plan_files(folder, 400_000)
    found = [record["key"] for record, _ in entry_folder.read_all()]
    assert len(found) == 7  # as many as fit
    assert sum(item.stat().st_size for item in folder.iterdir()) <= 400_000


KILLED_WRITER_PROGRAM = """
import os, random, signal, sys, warnings
from cudnn_backend_py.plans.cache import open_plan_files
warnings.simplefilter("error")  # nothing is ever half written
files = open_plan_files(sys.argv[1], 400_000)
keys = sys.argv[2:]
chance, replace = random.Random(1), os.replace

def replace_or_die(*arguments, **options):
    if chance.random() < 0.3:
        os.kill(os.getpid(), signal.SIGKILL)
    replace(*arguments, **options)

left = 0
for number in range(30):
    child = os.fork()
    if not child:
        chance.seed(number)
        os.replace = replace_or_die
        while True:
            for key in keys:
                files.write(key, {"plan": key[0] * 50_000})
    os.waitpid(child, 0)
    for key in keys:
        found = files.read(key)
        assert found is None or found["plan"] == key[0] * 50_000
    names = set(os.listdir(files.folder)) if files.folder.exists() else set()
    assert names <= {".lock", ".writing", *(f"{key}.plan" for key in keys)}, names
    left += ".writing" in names
print(left)
"""


def test_killed_writers_leave_a_usable_cache(entry_folder: KeyedRecordFolder, folder: Path) -> None:
    """Killed writers leave at most one partial file, and the next writer overwrites it."""
    done = run_python(["-c", KILLED_WRITER_PROGRAM, str(folder), PLAN_KEY, OTHER_PLAN_KEY], check=True)
    assert int(done.stdout) == 30, "every writer was killed while it wrote"
    entry_folder.write(PLAN_KEY, ENTRY_DATA)
    assert entry_folder.read(PLAN_KEY) == {"key": PLAN_KEY, **ENTRY_DATA}
    assert ".writing" not in list_file_names(folder)


def test_the_partial_file_of_a_killed_writer_is_overwritten(entry_folder: KeyedRecordFolder, folder: Path) -> None:
    entry_folder.write(PLAN_KEY, ENTRY_DATA)
    (folder / ".writing").write_text("half")
    entry_folder.write(OTHER_PLAN_KEY, ENTRY_DATA)
    assert list_file_names(folder) == [".lock", f"{PLAN_KEY}.plan", f"{OTHER_PLAN_KEY}.plan"]


def test_writers_wait_only_a_limited_time_for_the_lock(
    entry_folder: KeyedRecordFolder, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import fcntl

    entry_folder.write(PLAN_KEY, ENTRY_DATA)
    monkeypatch.setattr("cudnn_backend_py.system.private_folder._LOCK_WAIT_S", 0.05)
    with open(folder / ".lock") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.warns(PlanCacheWarning, match="another process holds"):
            entry_folder.write(OTHER_PLAN_KEY, ENTRY_DATA)
        assert entry_folder.read(PLAN_KEY) is not None
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        entry_folder.write(OTHER_PLAN_KEY, ENTRY_DATA)
