"""Run pip: list the versions of a wheel, and download one while its size is watched."""

from __future__ import annotations

import atexit
import contextlib
import functools
import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import EnvironmentNotReady
from ..system.child import poll_process
from ..system.uninterrupted import run_uninterrupted

if TYPE_CHECKING:
    from rich.progress import Progress

__all__ = ["download", "find_wheel_size", "list_index_versions", "read_download_size_from_pip_log"]

_PAUSE_S = 0.1  # between two looks at pip
_SIZE_UNITS = {"bytes": 1, "kB": 10**3, "MB": 10**6, "GB": 10**9}
# Others would make pip do something else: look with another Python, fetch more, write elsewhere, be quiet.
_PIP_SETTINGS = frozenset(
    f"PIP_{name}"
    for name in (
        *("CONFIG_FILE", "INDEX_URL", "EXTRA_INDEX_URL", "NO_INDEX", "FIND_LINKS", "TRUSTED_HOST", "KEYRING_PROVIDER"),
        *("CERT", "CLIENT_CERT", "PROXY", "TIMEOUT", "DEFAULT_TIMEOUT", "RETRIES", "RESUME_RETRIES"),
        *("CACHE_DIR", "NO_CACHE_DIR", "USE_FEATURE", "USE_DEPRECATED"),
    )
)

_UV_SETTINGS = {
    "PIP_INDEX_URL": ("UV_DEFAULT_INDEX", "UV_INDEX_URL"),
    "PIP_EXTRA_INDEX_URL": ("UV_INDEX", "UV_EXTRA_INDEX_URL"),
    "PIP_FIND_LINKS": ("UV_FIND_LINKS",),
    "PIP_NO_INDEX": ("UV_NO_INDEX",),
    "PIP_TRUSTED_HOST": ("UV_INSECURE_HOST",),
}


def _get_pip_command(*arguments: str) -> list[str]:
    # -P, -E: no pip.py of the working folder or of PYTHONPATH is run. -u: its text is read while it works.
    return [
        *(sys.executable, "-P", "-E", "-u", *_find_pip(), *arguments),
        *("--disable-pip-version-check", "--no-input", "--no-color"),
    ]


def _find_pip() -> tuple[str, str] | tuple[str]:
    """Return the command that runs pip: the environment's own pip, one bundled with Python, or one from uv."""
    return ("-m", "pip") if _has_pip() else (str((_find_bundled_pip() or _make_pip_folder()) / "pip"),)


def _has_pip() -> bool:
    return importlib.util.find_spec("pip") is not None


def _find_bundled_pip() -> Path | None:
    """Return the pip wheel that this Python installs into new virtual environments."""
    folders = (sysconfig.get_config_var("WHEEL_PKG_DIR"), f"{sysconfig.get_path('stdlib')}/ensurepip/_bundled")
    return next((wheel for folder in folders if folder for wheel in Path(folder).glob("pip-*.whl")), None)


@functools.cache
def _make_pip_folder() -> Path:
    """Return a folder with pip from uv; it is removed when this process ends, or by the next one if it was killed.

    Raises
    ------
    EnvironmentNotReady
        ``pip-missing``.
    """
    for left in Path(tempfile.gettempdir()).glob("cudnn-backend-pip-*-*"):
        process = left.name.split("-")[3]
        if process.isdecimal() and not Path("/proc", process).exists():
            shutil.rmtree(left, ignore_errors=True)
    folder = Path(tempfile.mkdtemp(prefix=f"cudnn-backend-pip-{os.getpid()}-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    said = "there is no uv either"
    if uv := os.environ.get("UV") or shutil.which("uv"):  # `uv run` says where it is
        command = [uv, "pip", "install", "--python", sys.executable, "--target", str(folder), "--no-deps", "pip"]
        # Not in the working folder: whose settings are there says not where code comes from.
        done = subprocess.run(command, cwd="/", stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
        if done.returncode == 0:
            return folder
        said = f"uv did not get one:\n{_find_error_lines(done.stderr)}"
    raise EnvironmentNotReady(
        f"{sys.executable} has no pip, which downloads the cuDNN wheels",
        code="pip-missing",
        cause=f"this Python brings none for new environments, and {said}",
        fix=f"{sys.executable} -m ensurepip (with uv: uv pip install pip)",
    )


def _make_pip_environment() -> dict[str, str]:
    """Return this environment with only those pip settings that name package sources.

    In an environment without pip, which uv makes, uv's settings mean those of pip that are not set.
    """
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("PIP_") or name in _PIP_SETTINGS
    }
    environment.pop("COLUMNS", None)  # with 0, pip prints no list of versions
    if _has_pip():
        return environment
    for name, theirs in _UV_SETTINGS.items():
        if value := next((os.environ[one] for one in theirs if os.environ.get(one)), ""):
            items = (re.sub(r"^[A-Za-z0-9_.-]+=", "", item) for item in re.split(r"[\s,]+", value))  # NAME=ADDRESS
            environment.setdefault(name, " ".join(items))
    if certificates := os.environ.get("SSL_CERT_FILE"):
        environment.setdefault("PIP_CERT", certificates)
    return environment


def list_index_versions(project: str) -> tuple[list[str], str]:
    """Return the cuDNN 9 versions that pip finds for this platform, or none and pip's error text."""
    done = subprocess.run(
        _get_pip_command("index", "versions", project),
        env=_make_pip_environment(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )
    listed = re.search(r"^Available versions: (.*)$", done.stdout, re.MULTILINE)
    if not listed:
        return [], _find_error_lines(done.stderr)
    return [one for one in listed[1].split(", ") if re.fullmatch(r"9(\.[0-9]{1,9}){3}", one)], ""


def _find_error_lines(output: str) -> str:
    """Return pip's errors, or its last output line if it reports none."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("ERROR")]
    return "\n".join(errors or lines[-1:]) or "nothing"


@contextlib.contextmanager
def _start_download(
    requirement: str, staging: Path, *held: int
) -> Iterator[tuple[subprocess.Popen[bytes], list[str], Path]]:
    """Start pip to download one wheel into ``staging``; yield its process, command and log.

    It inherits the descriptors `held`. It is ended with this.
    """
    temporary, log = staging / "tmp", staging / "pip.log"
    temporary.mkdir()
    command = _get_pip_command(
        *("download", "--no-deps", "--only-binary=:all:", "--progress-bar=off"),
        *(f"--dest={staging / 'wheel'}", requirement),
    )
    # pip writes the growing wheel below TMPDIR: ours, so that it can be watched and is cleaned up.
    environment = {**_make_pip_environment(), "TMPDIR": str(temporary)}
    streams: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stderr": subprocess.STDOUT}
    with (
        log.open("wb") as output,
        subprocess.Popen(command, env=environment, stdout=output, pass_fds=held, **streams) as process,
    ):
        try:
            yield process, command, log
        finally:
            run_uninterrupted(process.kill)
            run_uninterrupted(process.wait)


def download(requirement: str, staging: Path, bars: Progress, lock: int) -> Path:
    """Download one wheel into ``staging``; pip checks the index's hash.

    pip holds the lock as well: where this process is killed, no one else takes the folder before pip has ended.
    """
    task = bars.add_task(f"downloading {requirement}", total=None)
    with _start_download(requirement, staging, lock) as (process, command, log):
        while poll_process(process) is None:
            bars.update(
                task, completed=_find_largest_wheel_size(staging), total=read_download_size_from_pip_log(_read_log(log))
            )
            time.sleep(_PAUSE_S)
    wheels = list((staging / "wheel").glob("*.whl"))
    if process.returncode != 0 or len(wheels) != 1:
        raise EnvironmentNotReady(
            f"pip could not download {requirement}: its exit status is {process.returncode}",
            code="wheel-download-failed",
            where=shlex.join(command),
            cause=f"pip said:\n{_find_error_lines(_read_log(log))}",
        )
    [wheel] = wheels
    size_bytes = wheel.stat().st_size
    bars.update(task, completed=size_bytes, total=size_bytes)
    return wheel


def find_wheel_size(requirement: str, staging: Path) -> int | None:
    """Return the size of a wheel, by starting its download and stopping once pip announces the size.

    None if the index does not report.
    """
    with _start_download(requirement, staging) as (process, _, log):
        while (size_bytes := read_download_size_from_pip_log(_read_log(log))) is None and poll_process(process) is None:
            time.sleep(_PAUSE_S)
        return size_bytes or _find_largest_wheel_size(staging) or None


def _read_log(log: Path) -> str:
    return log.read_text(encoding="utf-8", errors="replace")


def _find_largest_wheel_size(folder: Path) -> int:
    sizes_bytes = [0]
    for parent, _, names in os.walk(folder):
        for name in names:
            if name.endswith(".whl"):
                with contextlib.suppress(FileNotFoundError):  # pip moves it meanwhile
                    sizes_bytes.append(os.stat(os.path.join(parent, name)).st_size)
    return max(sizes_bytes)


def read_download_size_from_pip_log(log: str) -> int | None:
    """Return the rounded size of the wheel that pip announces: ``Downloading NAME.whl (18.5 MB)``."""
    match = re.search(r"\.whl \(([0-9.]+) (bytes|kB|MB|GB)\)", log)
    return round(float(match[1]) * _SIZE_UNITS[match[2]]) if match else None
