"""Install with forged and damaged wheels, random kills, concurrent installs and damaged installed files.

The real pip runs with a folder of tiny wheels as its only index: no network is used, and no installed file is loaded.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import shutil
import signal
import stat
import subprocess
import sys
import time
import warnings
import zipfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from cudnn_backend_py.errors import EnvironmentNotReady
from cudnn_backend_py.versions import store as versions
from tests.support.child import ROOT
from tests.support.wheels import (
    GRAPH_LIBRARY_FILE,
    JIT_FILES,
    LIBRARY_FILE,
    NVRTC_FILES,
    compute_record_hash,
    make_wheel,
)
from tests.torture.harness import BrokenGuarantee

__all__ = [
    "FORGERIES",
    "check_damaged_installations",
    "check_forged_wheels",
    "kill_install_processes",
    "kill_unpacking_processes",
    "run_random_round",
]

VERSION = "9.19.0.56"
INSTALLED_FOLDER_NAME = f"{VERSION}-cu12"
WHEEL = f"nvidia_cudnn_jit_cu12-{VERSION}-py3-none-any.whl"
LARGE_FILES = {LIBRARY_FILE: b"the library" * 20_000, GRAPH_LIBRARY_FILE: b"the graph library" * 200_000}
ROUNDS_PER_WHOLE_INSTALL = 4  # whole installs are killed in one round in four

_fork_context = multiprocessing.get_context("fork")


def run_random_round(seed: int, folder: Path) -> Counter[str]:
    """Run one round: forged wheels, damaged files, killed unpacking; every fourth round also kills whole installs."""
    chance = random.Random(seed)
    counts = check_forged_wheels(chance, folder / "forged")
    counts += check_damaged_installations(chance, folder / "damaged")
    counts += kill_unpacking_processes(chance, folder / "unpacked")
    if seed % ROUNDS_PER_WHOLE_INSTALL == 0:
        counts += kill_install_processes(chance, folder / "killed")
    return counts


def _install_wheel(root: Path, wheel: Path) -> None:
    """Install a wheel into the version store without pip."""
    with versions._lock_store(root) as (changed, _):
        versions._unpack_wheel_atomically(
            wheel, changed / INSTALLED_FOLDER_NAME, versions._CUDNN_FILE, versions._make_progress_display(False)
        )


def _list_version_store_content(root: Path) -> set[str]:
    return set(os.listdir(root)) - {".lock"} if root.exists() else set()


# Forged and damaged wheels


def _add_file_to_wheel(wheel: Path, name: str, content: bytes = b"x", kind: int = 0) -> None:
    """Add a file and its RECORD line to a wheel, a change that only the hash in the package index reveals."""
    with zipfile.ZipFile(wheel) as archive:
        contents = {item.filename: archive.read(item) for item in archive.infolist()}
    record = next(one for one in contents if one.endswith("/RECORD"))
    contents[record] += f'"{name}",{compute_record_hash(content)},{len(content)}\n'.encode()
    with zipfile.ZipFile(wheel, "w") as archive:
        for one, data in contents.items():
            archive.writestr(one, data)
        item = zipfile.ZipInfo(name)
        item.external_attr = (kind | 0o644) << 16
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # zipfile warns about a duplicate name
            archive.writestr(item, content)


def _patch_wheel(wheel: Path, change: Callable[[bytearray], None]) -> None:
    data = bytearray(wheel.read_bytes())
    change(data)
    wheel.write_bytes(data)


def _make_zip_directory_entry_change(
    offset: int, value: bytes, name: bytes = LIBRARY_FILE.encode()
) -> Callable[[bytearray], None]:
    """Return a function that changes bytes of a file's entry in the central directory, at an offset."""

    def change_zip_directory(data: bytearray) -> None:
        start = data.rindex(name) - 46
        data[start + offset : start + offset + len(value)] = value

    return change_zip_directory


def _write_zip_bomb(wheel: Path) -> None:
    """Write a wheel with a file that unpacks to more bytes than its header states."""
    make_wheel(wheel.parent)
    content = bytes(1 << 24)
    with zipfile.ZipFile(wheel, "a", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("nvidia/bomb", content)
    _patch_wheel(wheel, _make_zip_directory_entry_change(24, (100).to_bytes(4, "little"), b"nvidia/bomb"))


def _write_too_many_files(wheel: Path) -> None:
    with zipfile.ZipFile(wheel, "a") as archive:
        for number in range(10_001):
            archive.writestr(f"nvidia/{number}", b"")


def _write_huge_record(wheel: Path) -> None:
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(LIBRARY_FILE, b"the library")
        archive.writestr(f"nvidia_cudnn_jit_cu12-{VERSION}.dist-info/RECORD", bytes(1 << 25))


def _make_writer_of_wheel_with_recorded_hash(**recorded: str | None) -> Callable[[random.Random, Path], object]:
    return lambda chance, wheel: make_wheel(wheel.parent, recorded={LIBRARY_FILE: recorded["library"]})


FORGERIES: dict[str, Callable[[random.Random, Path], object]] = {
    "leads out": lambda chance, wheel: _add_file_to_wheel(
        wheel, chance.choice(["../evil", "nvidia/../../evil", "nvidia/a/../b"])
    ),
    "absolute": lambda chance, wheel: _add_file_to_wheel(wheel, chance.choice(["/tmp/evil", "//tmp/evil"])),
    "backslash": lambda chance, wheel: _add_file_to_wheel(wheel, "nvidia/..\\..\\evil"),
    "control characters": lambda chance, wheel: _add_file_to_wheel(
        wheel, f"nvidia/a{chr(chance.choice((1, 10, 27, 0x202E)))}b"
    ),
    "odd name": lambda chance, wheel: _add_file_to_wheel(
        wheel, chance.choice(["nvidia//a", "nvidia/./a", "nvidia/a/."])
    ),
    "long name": lambda chance, wheel: _add_file_to_wheel(wheel, "nvidia/" + "a" * chance.randrange(256, 2000)),
    "deep name": lambda chance, wheel: _add_file_to_wheel(wheel, "nvidia/" + "a/" * chance.randrange(600, 900) + "b"),
    "link": lambda chance, wheel: _add_file_to_wheel(wheel, "nvidia/link", b"/etc", stat.S_IFLNK),
    "device": lambda chance, wheel: _add_file_to_wheel(
        wheel, "nvidia/pipe", b"", chance.choice((stat.S_IFIFO, stat.S_IFBLK))
    ),
    "duplicate": lambda chance, wheel: _add_file_to_wheel(wheel, LIBRARY_FILE, b"another library"),
    "file and folder": lambda chance, wheel: _add_file_to_wheel(wheel, f"{LIBRARY_FILE}/inside"),
    "second library": lambda chance, wheel: _add_file_to_wheel(wheel, "nvidia/cudnn/lib/libcudnn.so.9"),
    "encrypted": lambda chance, wheel: _patch_wheel(wheel, _make_zip_directory_entry_change(8, b"\x01\x00")),
    "odd method": lambda chance, wheel: _patch_wheel(
        wheel, _make_zip_directory_entry_change(10, chance.choice((b"\x0c", b"\x63")))
    ),
    "size of gigabytes": lambda chance, wheel: _patch_wheel(
        wheel, _make_zip_directory_entry_change(24, b"\xff\xff\xff\x7f")
    ),
    "overlapping": lambda chance, wheel: _patch_wheel(wheel, _make_zip_directory_entry_change(20, b"\xff\xff\xff\x7f")),
    "elsewhere": lambda chance, wheel: _patch_wheel(wheel, _make_zip_directory_entry_change(42, chance.randbytes(3))),
    "bomb": lambda chance, wheel: _write_zip_bomb(wheel),
    "huge count": lambda chance, wheel: _write_too_many_files(wheel),
    "huge RECORD": lambda chance, wheel: _write_huge_record(wheel),
    "no RECORD": lambda chance, wheel: zipfile.ZipFile(wheel, "w").close(),
    "RECORD of another": lambda chance, wheel: make_wheel(wheel.parent, version="9.19.0.57").rename(wheel),
    "hash missing": _make_writer_of_wheel_with_recorded_hash(library=None),
    "hash of another kind": _make_writer_of_wheel_with_recorded_hash(library="md5=x"),
    "hash wrong": _make_writer_of_wheel_with_recorded_hash(library=compute_record_hash(b"other")),
    "file missing": lambda chance, wheel: make_wheel(wheel.parent, recorded={"nvidia/gone": "sha256=x"}),
    "no library": lambda chance, wheel: make_wheel(wheel.parent, files={GRAPH_LIBRARY_FILE: b"x"}),
    "no files": lambda chance, wheel: make_wheel(wheel.parent, files={}),
    "no zip": lambda chance, wheel: wheel.write_bytes(chance.randbytes(chance.randrange(2000))),
}


def check_forged_wheels(chance: random.Random, folder: Path) -> Counter[str]:
    """Check that forged wheels are refused and leave no files, and damaged ones are refused or unpack unchanged."""
    counts: Counter[str] = Counter()
    root = folder / "cache"
    for kind, forgery in FORGERIES.items():
        wheel = make_wheel(folder / "wheels")
        forgery(chance, wheel)
        if _try_to_install(root, wheel):
            raise BrokenGuarantee(f"a forged wheel was installed: {kind}")
        counts[f"forged, refused: {kind}"] += 1
    good = make_wheel(folder / "wheels").read_bytes()
    for _ in range(60):
        wheel.write_bytes(_damage_bytes(chance, good))
        if _try_to_install(root, wheel):
            files = {name: (root / INSTALLED_FOLDER_NAME / name).read_bytes() for name in JIT_FILES}
            if files != JIT_FILES or _list_version_store_content(root) != {INSTALLED_FOLDER_NAME}:
                raise BrokenGuarantee("a damaged wheel was installed with other files")
            shutil.rmtree(root / INSTALLED_FOLDER_NAME)
            counts["damaged outside the checked parts, installed"] += 1
        else:
            counts["damaged, refused"] += 1
    if found := [path for path in folder.rglob("*") if "evil" in path.name]:
        raise BrokenGuarantee(f"a wheel wrote files outside its folder: {found}")
    return counts


def _try_to_install(root: Path, wheel: Path) -> bool:
    try:
        _install_wheel(root, wheel)
    except EnvironmentNotReady as error:
        if error.code != "wheel-damaged":
            raise
        if _list_version_store_content(root):
            raise BrokenGuarantee(
                f"a refused wheel left files: {_list_version_store_content(root)}: {error}"
            ) from error
        return False
    return True


def _damage_bytes(chance: random.Random, good: bytes) -> bytes:
    data = bytearray(good)
    for _ in range(chance.choice((1, 1, 3, 20))):
        kind, place = chance.randrange(4), chance.randrange(max(1, len(data)))
        if kind < 2:
            data[place : place + 1] = chance.randbytes(1)
        elif kind == 2:
            del data[place : place + chance.randrange(1, 200)]
        else:
            data[place:place] = chance.randbytes(chance.randrange(1, 200))
    return bytes(data)


# Damaged files of an installed version


def _flip_bit(chance: random.Random, path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
    path.write_bytes(data)


def _flip_bit_and_restore_times(chance: random.Random, path: Path) -> None:
    """Flip a bit and restore the file times, so that size and time do not reveal the change."""
    status = path.stat()
    _flip_bit(chance, path)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


UNDETECTED_DAMAGE = "flipped, times set back"
DAMAGE_BY_NAME: dict[str, Callable[[random.Random, Path], object]] = {
    "flipped": lambda chance, path: (_flip_bit(chance, path), os.utime(path, ns=(1, 1))),
    UNDETECTED_DAMAGE: _flip_bit_and_restore_times,
    "cut": lambda chance, path: os.truncate(path, chance.randrange(path.stat().st_size)),
    "empty": lambda chance, path: os.truncate(path, 0),
    "grown": lambda chance, path: path.write_bytes(path.read_bytes() + b"x"),
    "missing": lambda chance, path: path.unlink(),
    "a link": lambda chance, path: (path.rename(path.parents[4] / "elsewhere"), path.symlink_to("/etc/passwd")),
    "a folder": lambda chance, path: (path.unlink(), path.mkdir()),
    "record missing": lambda chance, path: (path.parents[3] / "installed.json").unlink(),
    "record cut": lambda chance, path: os.truncate(path.parents[3] / "installed.json", chance.randrange(300)),
    "record odd": lambda chance, path: (path.parents[3] / "installed.json").write_text(chance.choice(_INVALID_RECORDS)),
}
_INVALID_RECORDS = (
    *("[]", "null", "[" * 100_000, '{"files": {}}', '{"files": 3}', '"', "1" * 5000, '{"files": {"a": null}}'),
    json.dumps({"project": "nvidia-cudnn-jit-cu12", "version": VERSION, "files": {"../../x": {"sha256": ""}}}),
    json.dumps({"project": [], "version": {}, "files": {"nvidia/x": {"sha256": 1, "size_bytes": 1e400}}}),
)


def check_damaged_installations(chance: random.Random, folder: Path) -> Counter[str]:
    """Check that verifying finds all damage to files, using them all kinds but one, and that installing repairs it."""
    counts: Counter[str] = Counter()
    wheel = make_wheel(folder / "wheels")
    root = folder / "cache"
    for kind, change in DAMAGE_BY_NAME.items():
        _install_wheel(root, wheel)
        installed = versions.require_installed(VERSION, root=root)
        versions.make_environment_of_installed_cudnn(installed)
        change(chance, root / INSTALLED_FOLDER_NAME / chance.choice(list(JIT_FILES)))
        [found] = versions.check_installed_versions([VERSION], root=root)
        if found.state != "damaged" or not found.differences or VERSION not in found.repair:
            raise BrokenGuarantee(f"{kind}: {found}")
        try:
            versions.make_environment_of_installed_cudnn(versions.require_installed(VERSION, root=root))
        except EnvironmentNotReady as error:
            if error.code != "installed-files-changed":
                raise
        else:
            if kind != UNDETECTED_DAMAGE:
                raise BrokenGuarantee(f"{kind}: damaged files were used without an error")
        _install_wheel(root, wheel)
        versions.verify(versions.require_installed(VERSION, root=root))
        counts["damaged installations found and repaired"] += 1
        shutil.rmtree(root)
    return counts


# Killed installs


def kill_unpacking_processes(chance: random.Random, folder: Path) -> Counter[str]:
    """Kill a process that installs and removes a wheel, and check that the version is then intact or absent."""
    counts: Counter[str] = Counter()
    wheel = make_wheel(folder / "wheels", files=LARGE_FILES)
    root = folder / "cache"
    for _ in range(12):
        child = _fork_context.Process(target=_install_and_remove, args=(root, wheel))
        child.start()
        time.sleep(chance.uniform(0.0, 0.3))
        child.kill()
        child.join()
        if child.exitcode != -signal.SIGKILL:
            raise BrokenGuarantee(f"the unpacking process was not killed but ended with exit code {child.exitcode}")
        counts["unpackings killed"] += 1
        counts["unpackings killed with a staging folder"] += any(
            name.startswith(".staging") for name in _list_version_store_content(root)
        )
        for installed in versions.list_installed(root):
            versions.verify(installed)
            counts["intact versions after a kill"] += 1
        if (
            _list_version_store_content(root)
            - {INSTALLED_FOLDER_NAME}
            - {name for name in _list_version_store_content(root) if name.startswith(".staging-")}
        ):
            raise BrokenGuarantee(f"a killed install left unexpected files: {_list_version_store_content(root)}")
    _install_wheel(root, wheel)
    _check_only_version_is_intact(root)
    return counts


def _install_and_remove(root: Path, wheel: Path) -> None:
    while True:
        _install_wheel(root, wheel)
        versions.remove(VERSION, root=root)


def _check_only_version_is_intact(root: Path) -> None:
    if _list_version_store_content(root) - {"nvrtc-cu12"} != {INSTALLED_FOLDER_NAME}:
        raise BrokenGuarantee(f"unexpected files in the version store: {_list_version_store_content(root)}")
    [installed] = versions.list_installed(root)
    versions.verify(installed)


INSTALL_PROGRAM = """
import sys
from pathlib import Path
from cudnn_backend_py import versions
versions._find_environment_nvrtc = lambda cuda: None  # so that NVRTC is installed too
installed = versions.install(sys.argv[2], cuda="12", root=Path(sys.argv[1]), progress=False)
versions.verify(installed)
"""


def kill_install_processes(chance: random.Random, folder: Path) -> Counter[str]:
    """Kill one of two installs of a version, and check that the other and the next one succeed."""
    counts: Counter[str] = Counter()
    index = folder / "index"
    make_wheel(index, files=LARGE_FILES)
    make_wheel(index, "nvidia-cuda-nvrtc-cu12", "12.9.86", NVRTC_FILES)
    root = folder / "cache"
    first, second = _start_install(root, index), _start_install(root, index)
    try:
        time.sleep(chance.uniform(0.2, 6.0))
        first.kill()
        first.wait()
        counts["installs killed" if first.returncode else "installs that ended before the kill"] += 1
        for installed in versions.list_installed(root):
            versions.verify(installed)
        _, said = second.communicate(timeout=300)
    finally:
        for process in (first, second):
            process.kill()
            process.communicate()
    if second.returncode:
        raise BrokenGuarantee(f"the other install ended with exit code {second.returncode}: {said[-2000:]!r}")
    third = _start_install(root, index)
    _, said = third.communicate(timeout=300)
    if third.returncode:
        raise BrokenGuarantee(f"the next install ended with exit code {third.returncode}: {said[-2000:]!r}")
    _check_only_version_is_intact(root)
    counts["installs next to and after a killed one"] += 2
    return counts


def _start_install(root: Path, index: Path) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "PIP_CONFIG_FILE": os.devnull, "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(index)}
    # Environment variables that would mislead pip if it read them.
    environment |= {"PIP_TARGET": str(root), "PIP_DEST": str(root), "PIP_QUIET": "3", "PIP_PYTHON": "/nonexistent"}
    command = [sys.executable, "-c", INSTALL_PROGRAM, str(root), VERSION]
    return subprocess.Popen(command, env=environment, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
