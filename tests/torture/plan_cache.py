"""Test the plan cache with damaged entries, killed writers, a size limit and a full disk."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import random
import resource
import signal
import subprocess
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from cudnn_backend_py.errors import CudnnBackendError
from cudnn_backend_py.plans.cache import PlanCache, PlanCacheWarning, make_plan_key, open_plan_files
from cudnn_backend_py.system.private_folder import KeyedRecordFolder
from tests.torture.harness import BrokenGuarantee

__all__ = ["fill_disk", "kill_cache_writers", "run_random_round"]

CACHE_LIMIT_BYTES = 20_000_000
LARGEST_ENTRY_BYTES = 2_000_000  # size of the largest entry; its file is hardly larger
WRITER_COUNT = 8
PLAN_KEYS = [f"{number:064x}" for number in range(40)]
ROUNDS_PER_REAL_PLAN = 10  # one round in ten also uses plans of cuDNN

_fork_context = multiprocessing.get_context("fork")


def run_random_round(seed: int, folder: Path) -> Counter[str]:
    """Run one round: damage entries, kill writers at the size limit, fill a disk; every tenth uses real plans too."""
    chance = random.Random(seed)
    counts = damage_cache_entries(chance, folder / "damage")
    with _mount_small_disk(folder / "stampede", 4 * CACHE_LIMIT_BYTES) as (place, kind):
        counts += kill_cache_writers(chance, place / "plans", 1.0)
        counts[f"killed writers on {kind}"] += 1
    counts += fill_disk(chance, folder / "full")
    if seed % ROUNDS_PER_REAL_PLAN == 0:
        counts += damage_records_of_cudnn_plans(chance, folder / "real")
    return counts


# Damage


def _make_checkable_cache_record(chance: random.Random, key: str, most: int = 4000) -> dict[str, Any]:
    """Return data for a cache entry with a checkable text: it has the stated size and repeats the end of the key."""
    size = chance.randrange(1, most)
    return {"size": size, "plan": (key[-4:] * (size // 4 + 1))[:size]}


def _is_record_intact(key: str, record: dict[str, Any]) -> bool:
    size = record["size"]
    return record["key"] == key and bool(record["plan"] == (key[-4:] * (size // 4 + 1))[:size])


def _flip_bits(chance: random.Random, data: bytes) -> bytes:
    changed = bytearray(data)
    for _ in range(chance.choice((1, 1, 2, 50))):
        changed[chance.randrange(len(changed))] ^= 1 << chance.randrange(8)
    return bytes(changed)


def _swap_byte_ranges(chance: random.Random, data: bytes) -> bytes:
    first, second = sorted(chance.sample(range(len(data) + 1), 2))
    return data[second:] + data[first:second] + data[:first]


CONTENT_DAMAGE: dict[str, Callable[[random.Random, bytes], bytes]] = {
    "flip": _flip_bits,
    "cut": lambda chance, data: data[: chance.randrange(len(data))],
    "cut in front": lambda chance, data: data[chance.randrange(1, len(data)) :],
    "grow": lambda chance, data: data + chance.randbytes(chance.randrange(1, 100)),
    "move": _swap_byte_ranges,
    "zeros": lambda chance, data: bytes(len(data)),
    "schema": lambda chance, data: data.replace(b"plan 1 ", b"plan %d " % chance.randrange(2, 99), 1),
    "hash only": lambda chance, data: data[: data.index(b"\n") + 1],
}
FILE_REPLACEMENTS = ("swap", "link", "pipe", "folder", "open to others", "gone")


def damage_cache_entries(chance: random.Random, folder: Path) -> Counter[str]:
    """Damage one entry after the other, and check that a read returns the written data or nothing."""
    counts: Counter[str] = Counter()
    files = open_plan_files(folder, 1 << 20)
    for _ in range(60):
        one, other = chance.sample(PLAN_KEYS, 2)
        for key in (one, other):
            files.write(key, _make_checkable_cache_record(chance, key))
        kind = chance.choice((*CONTENT_DAMAGE, *FILE_REPLACEMENTS))
        before = files.path(one).read_bytes()
        if kind in CONTENT_DAMAGE:
            files.path(one).write_bytes(CONTENT_DAMAGE[kind](chance, before))
            touched = files.path(one).read_bytes() != before
        else:
            _replace_entry_file(kind, files.path(one), files.path(other))
            touched = True
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", PlanCacheWarning)
            for key in (one, other):
                found = files.read(key)
                if found is not None and not _is_record_intact(key, found):
                    raise BrokenGuarantee(f"{kind}: the cache returned a damaged entry")
                if key == one and touched and found is not None:
                    raise BrokenGuarantee(f"{kind}: the cache did not detect the damage")
            listed = [record["key"] for record, _ in files.read_all()]
        if touched and one in listed:
            raise BrokenGuarantee(f"{kind}: the cache listed a damaged entry")
        if files.path(one).is_dir() and not files.path(one).is_symlink():
            files.path(one).rmdir()
        counts["damaged entries"] += 1
    files.clear()
    if set(os.listdir(folder)) != {".lock"}:
        raise BrokenGuarantee(f"clearing the cache left files: {os.listdir(folder)}")
    return counts


def _replace_entry_file(kind: str, one: Path, other: Path) -> None:
    if kind == "swap":
        aside = one.with_name("aside")
        one.rename(aside)
        other.rename(one)
        aside.rename(other)
        return
    if kind == "open to others":
        one.chmod(0o666)
        return
    one.unlink()
    if kind == "link":
        one.symlink_to(other)
    elif kind == "pipe":
        os.mkfifo(one, 0o600)
    elif kind == "folder":
        one.mkdir()


def damage_records_of_cudnn_plans(chance: random.Random, folder: Path) -> Counter[str]:
    """Change a field in the stored entry of a real plan, and check that the cache never returns another plan."""
    from cudnn_backend_py import build
    from cudnn_backend_py.diagnose.explanation import control_graph

    counts: Counter[str] = Counter()
    graph = control_graph()
    cache = PlanCache(folder)
    plan = build(graph, "h100", cache=False)
    target = plan.target
    key = make_plan_key(graph, target, {})
    cache.put(key, plan)
    files = open_plan_files(folder, 1 << 28)
    good = files.read(key)
    if good is None:
        raise BrokenGuarantee("the cache does not return a plan that was stored")
    values = (None, 7, "", "{}", [], {"a": 1}, True, -1e300, "\ud800", "x" * 1000)
    for field in ("cudnn", "target", "sm", "tag", "evidence", "graph", "plan"):
        changed = {name: value for name, value in good.items() if name != "key"}
        if chance.random() < 0.2:
            del changed[field]
        else:
            changed[field] = chance.choice(values)
        files.write(key, changed)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", PlanCacheWarning)
            found = cache.get(key, target)
            cache.entries()
            cache.evidence(key)
        if found is not None and found.json() != plan.json():
            raise BrokenGuarantee(f"a record with a changed {field} gave another plan")
        counts["damaged real plans"] += 1
    return counts


# Many writers at the size limit


def kill_cache_writers(chance: random.Random, folder: Path, seconds: float) -> Counter[str]:
    """Kill and restart random writer processes while another process records the used disk space."""
    largest, done = (
        _fork_context.Value("q", 0, lock=False),
        _fork_context.Value("q", 0, lock=False),
    )  # without locks, because a killed process would keep its lock
    stop = _fork_context.Event()
    watcher = _fork_context.Process(target=_record_largest_cache_size, args=(folder, largest, stop))
    watcher.start()
    counts: Counter[str] = Counter()
    writers = [_start_cache_writer(chance, folder, done) for _ in range(WRITER_COUNT)]
    try:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            time.sleep(chance.expovariate(50))
            place = chance.randrange(WRITER_COUNT)
            writers[place].kill()
            writers[place].join()
            if writers[place].exitcode != -signal.SIGKILL:
                raise BrokenGuarantee(
                    f"a writer ended by itself with {writers[place].exitcode}: see what it wrote to stderr"
                )
            counts["writers killed"] += 1
            writers[place] = _start_cache_writer(chance, folder, done)
    finally:
        for writer in writers:
            writer.kill()
            writer.join()
        stop.set()
        watcher.join()
    counts["operations of writers"] += done.value
    files = open_plan_files(folder, CACHE_LIMIT_BYTES)
    files.write(PLAN_KEYS[0], _make_checkable_cache_record(chance, PLAN_KEYS[0]))
    names = set(os.listdir(folder))
    if not names <= {".lock", *(f"{key}.plan" for key in PLAN_KEYS)}:
        raise BrokenGuarantee(f"unexpected files in the cache: {sorted(names)}")
    found = [record for record, _ in files.read_all()]
    if len(found) != len(names) - 1 or not all(_is_record_intact(record["key"], record) for record in found):
        raise BrokenGuarantee(f"{len(names) - 1} entries, of which {len(found)} are intact")
    at_most = CACHE_LIMIT_BYTES + WRITER_COUNT * (LARGEST_ENTRY_BYTES + 1000)
    if largest.value > at_most or watcher.exitcode:
        raise BrokenGuarantee(f"{largest.value} bytes on the disk, but the limit is {at_most}")
    counts["largest MB on the disk, summed over rounds"] += round(largest.value / 1e6)
    if largest.value > CACHE_LIMIT_BYTES + LARGEST_ENTRY_BYTES + 1000:
        counts["rounds with more bytes than the limit and one entry"] += 1
    return counts


def _start_cache_writer(chance: random.Random, folder: Path, done: Any) -> Any:
    writer = _fork_context.Process(target=_write_and_read_entries, args=(folder, chance.getrandbits(32), done))
    writer.start()
    return writer


def _write_and_read_entries(folder: Path, seed: int, done: Any) -> None:
    warnings.simplefilter("error")  # fail on warnings of damaged or locked files
    chance = random.Random(seed)
    files = open_plan_files(folder, CACHE_LIMIT_BYTES)
    count = 0
    while True:
        key = chance.choice(PLAN_KEYS)
        what = chance.random()
        if what < 0.7:
            files.write(key, _make_checkable_cache_record(chance, key, LARGEST_ENTRY_BYTES))
        elif what < 0.99:
            found = files.read(key)
            assert found is None or _is_record_intact(key, found)
        else:
            files.clear()
        count += 1
        done.value += 1  # without a lock, a few are not counted


def _record_largest_cache_size(folder: Path, largest: Any, stop: Any) -> None:
    """Record the largest size of the cache: used space of its own file system, or without one, the sum of its files."""
    own = os.path.ismount(folder.parent)
    while not stop.is_set():
        if own:
            status = os.statvfs(folder.parent)
            used = (status.f_blocks - status.f_bfree) * status.f_frsize
        else:
            used = sum(_list_file_sizes(folder))
        largest.value = max(largest.value, used)
        time.sleep(0.0002)


def _list_file_sizes(folder: Path) -> Iterator[int]:
    seen = set()
    with contextlib.suppress(FileNotFoundError), os.scandir(folder) as items:
        for item in items:
            with contextlib.suppress(FileNotFoundError):
                status = item.stat(follow_symlinks=False)
                if status.st_ino not in seen:
                    yield status.st_size
                seen.add(status.st_ino)


# A full disk


@contextlib.contextmanager
def _mount_small_disk(place: Path, size: int) -> Iterator[tuple[Path, str]]:
    """Yield a folder on a file system of `size` bytes if this user may mount one, otherwise a plain folder."""
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={size},mode=0700", "none", str(place)]
    mounted = os.geteuid() == 0 and subprocess.run(command, capture_output=True, check=False).returncode == 0
    try:
        yield place, "a small file system" if mounted else "a plain folder"
    finally:
        if mounted:
            subprocess.run(["umount", str(place)], check=True)


def fill_disk(chance: random.Random, place: Path) -> Counter[str]:
    """Write until the disk is full, and check that stored entries are intact and no half-written file is left.

    This is done on a small file system if possible, and always in a child process with a limit on its file sizes.
    """
    counts: Counter[str] = Counter()
    with _mount_small_disk(place, 1 << 20) as (folder, kind):
        if os.path.ismount(folder):
            counts += _write_entries_until_refused(chance, open_plan_files(folder / "plans", CACHE_LIMIT_BYTES))
            counts[f"filled {kind}"] += 1
    child = _fork_context.Process(
        target=_fill_cache_under_file_size_limit, args=(place / "limited", chance.getrandbits(32))
    )
    child.start()
    child.join()
    if child.exitcode:
        raise BrokenGuarantee(f"writing beyond the file size limit ended with exit code {child.exitcode}")
    counts["filled up to RLIMIT_FSIZE"] += 1
    return counts


def _write_entries_until_refused(chance: random.Random, files: KeyedRecordFolder) -> Counter[str]:
    refused = 0
    kept: dict[str, dict[str, Any]] = {}
    for key in PLAN_KEYS:
        record = _make_checkable_cache_record(chance, key, 200_000)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            files.write(key, record)
        if caught:
            refused += 1
        else:
            kept[key] = record
        if (names := set(os.listdir(files.folder))) - {".lock"} != {f"{one}.plan" for one in kept}:
            raise BrokenGuarantee(f"wrong files after {len(caught)} warnings: {sorted(names)}")
    if not refused:
        raise BrokenGuarantee("the disk was not filled")
    if any(files.read(key) != {"key": key, **record} for key, record in kept.items()):
        raise BrokenGuarantee("an entry was lost or changed by a full disk")
    files.clear()
    files.write(PLAN_KEYS[0], {"room": "again"})
    return Counter({"writes refused by a full disk": refused})


def _fill_cache_under_file_size_limit(folder: Path, seed: int) -> None:
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
    try:
        _write_entries_until_refused(random.Random(seed), open_plan_files(folder, CACHE_LIMIT_BYTES))
    except (BrokenGuarantee, CudnnBackendError) as error:
        print(error, flush=True)
        os._exit(1)
