"""Facts of this machine and process, as ``cudnn-backend info`` shows them and a record of figures begins with."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from .errors import EnvironmentNotReady
from .native import library, load_driver
from .native.fast_call import compiled_library
from .system.version import __version__, cuda_version_text
from .target import list_profiles, read_device
from .versions import store as versions

__all__ = ["collect_info", "start_record", "write_record"]


def collect_info() -> dict[str, Any]:
    """Return what ``cudnn-backend info`` shows; what cannot be had is said in its place."""
    driver = load_driver()
    facts: dict[str, Any] = {"cudnn_backend_py": __version__, "python": sys.version.split()[0]}
    try:
        lib = library()
    except EnvironmentNotReady as error:
        facts["cudnn"] = f"not found; {error.sections.get('where', '')}".replace("\n", "; ")
    else:
        facts |= {
            "cudnn": lib.version_text,
            "path": lib.path,
            "found by": lib.place.how,
            "built for CUDA": cuda_version_text(lib.cuda_version),
            "nvrtc": lib.nvrtc.path or f"not found; {lib.nvrtc.found}".replace("\n", "; "),
        }
    facts["driver"] = f"{driver.kind}, {driver.path or 'no file'}" + (f" ({driver.note})" if driver.note else "")
    facts["driver version"] = driver.version or "none"
    facts["compiled call"] = "not built: calls take the longer way" if compiled_library() is None else "built"
    facts["gpus"] = [read_device(index)["deviceName"] for index in range(driver.devices)] or "none in this process"
    try:
        facts["cudnn versions installed"] = [item.version for item in versions.list_installed()] or "none"
    except ImportError as error:
        facts["cudnn versions installed"] = f"not known: {error}"
    facts["known targets"] = [f"{profile.name} (sm_{profile.sm})" for profile in list_profiles()]
    return facts


# Records


def start_record(kind: str, facts: Iterable[str] = ("cudnn_backend_py", "python", "cudnn")) -> dict[str, Any]:
    """Return how every record of figures begins: schema, date, commit, machine, these facts of :func:`collect_info`.

    The commit is that of the working folder; ``CUDNN_BACKEND_COMMIT`` says it where the sources travel without git.
    """
    known = collect_info()
    return {
        "schema": f"cudnn-backend-py/{kind}",
        "version": 1,
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "commit": os.environ.get("CUDNN_BACKEND_COMMIT") or _commit(),
        "machine": platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "environment": {name: known[name] for name in facts if name in known},
    }


def write_record(record: Mapping[str, Any], path: Path | None) -> str:
    """Return a record as JSON, written to `path` where one is given; its folder is made."""
    text = json.dumps(record, indent=1)
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n", encoding="utf-8")
    return text


def _commit() -> str:
    try:
        found = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=False)
    except OSError:  # there is no git
        return "unknown"
    return found.stdout.strip() or "unknown"
