"""Facts about this machine and process, for ``cudnn-backend doctor`` and for records of measurements."""

from __future__ import annotations

import json
import os
import platform
import re
import shlex
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from .errors import CudnnBackendError
from .native import Library, load_driver, loaded_library
from .native.environment_problems import EnvironmentProblem, check_environment, includes_nvrtc
from .native.fast_call import load_compiled_library
from .printable import printable
from .system.version import __version__, format_cuda_version_number
from .target import list_profiles, read_device
from .versions import store as versions

__all__ = [
    "collect_info",
    "find_git_commit",
    "has_blocking_problem",
    "make_measurement_record_header",
    "render_info",
    "write_record",
]


def collect_info() -> dict[str, Any]:
    """Return the facts for ``cudnn-backend doctor``; a missing fact is replaced by the reason why.

    ``environment`` lists what :func:`~cudnn_backend_py.native.environment_problems.check_environment` finds wrong, and
    what that ``prevents``: ``verdicts``, ``plans``, or neither. Takes the standard library alone.
    """
    faults = check_environment(build=True)  # before a library is loaded: one that lacks a part ends the process
    blind = {fault.code for fault in check_environment() if fault.blocks}
    driver = load_driver()
    facts: dict[str, Any] = {"cudnn_backend_py": __version__, "python": sys.version.split()[0]}
    lib = loaded_library()
    if lib is None:
        facts["cudnn"] = _explain_missing_library(faults)
    else:
        facts |= {
            "cudnn": lib.build_text,
            "path": lib.path,
            "found by": lib.place.how,
            "built for CUDA": format_cuda_version_number(lib.cuda_version),
            "nvrtc": _describe_nvrtc(lib),
        }
    facts["environment"] = [
        {
            **{key: value for key, value in asdict(fault).items() if key != "blocks"},
            "prevents": "verdicts" if fault.code in blind else "plans" if fault.blocks else "",
        }
        for fault in faults
    ]
    facts["driver"] = f"{driver.kind}, {driver.path or 'no file'}" + (f" ({driver.note})" if driver.note else "")
    facts["driver version"] = driver.version or "none"
    facts["compiled call"] = "not built: calls take the longer way" if load_compiled_library() is None else "built"
    facts["gpus"] = "none in this process"
    if driver.devices:
        names = [] if lib is None else [read_device(index)["deviceName"] for index in range(driver.devices)]
        facts["gpus"] = names or f"{driver.devices}, which cuDNN would name"
    try:
        installed = versions.list_installed()
        named = [f"{item.full_version_with_cuda} ({item.flavor})" for item in installed]
        facts["cudnn versions installed"] = named or "none"
    except (ImportError, CudnnBackendError) as error:
        facts["cudnn versions installed"] = f"not known: {error}"
    facts["known targets"] = [f"{profile.name} (sm_{profile.sm})" for profile in list_profiles()]
    return facts


def has_blocking_problem(facts: Mapping[str, Any]) -> bool:
    """Return whether a fact of :func:`collect_info` prevents verdicts or plans."""
    return any(one["prevents"] for one in facts["environment"])


def _describe_nvrtc(lib: Library) -> str:
    if includes_nvrtc(lib):
        return f"inside cuDNN, that of CUDA {format_cuda_version_number(lib.cuda_version)}"
    return lib.nvrtc.path or f"not found; {lib.nvrtc.found}".replace("\n", "; ")


def _explain_missing_library(faults: Sequence[EnvironmentProblem]) -> str:
    fault = faults[0]  # which is reported below with all of it
    return "not found" if fault.code == "cudnn-library-not-found" else f"not loaded: {fault.headline}"


def print_info() -> None:
    """Print the facts of this process as JSON, for a parent process with another environment."""
    print(json.dumps(collect_info()))


def render_info(facts: Mapping[str, Any]) -> str:
    """Return the facts as lines of text; environment problems come last, each with its fix."""
    lines = []
    for key, value in facts.items():
        if key != "environment":
            text = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
            if key == "known targets":
                text = f"{len(value)}, listed by 'cudnn-backend target list'"
            lines.append(f"{key + ':':<26}{text}")
    for problem in facts["environment"] or [{}]:
        text = "nothing wrong"
        if problem:
            prevented = {"verdicts": "cannot judge", "plans": "cannot build plans"}.get(problem["prevents"])
            weight = f"{prevented} until this is fixed" if prevented else "remark"
            text = f"{weight}: {problem['headline']} ({problem['code']})"
        lines.append(f"{'environment:':<26}{text}")
        for label in ("repair", "detail") if problem else ():
            for number, part in enumerate(problem[label].splitlines()):
                title = {"repair": "  fix:", "detail": "  details:"}[label] if number == 0 else ""
                lines.append(f"{title:<26}{' '.join(part.split())}")
    return "".join(f"{printable(line)}\n" for line in lines)


# Records


def make_measurement_record_header(
    kind: str, facts: Iterable[str] = ("cudnn_backend_py", "python", "cudnn")
) -> dict[str, Any]:
    """Return the first fields of a measurement record: schema, date, command, commit, machine, environment.

    The command is the line that measures it again; of files outside the working folder it has the names alone. The
    commit is that of the working folder, see :func:`find_git_commit`.
    """
    known = collect_info()
    return {
        "schema": f"cudnn-backend-py/{kind}",
        "version": 1,
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "command": _format_command(sys.orig_argv[1:]),
        "commit": find_git_commit(Path()),
        "machine": platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "environment": {name: known[name] for name in facts if name in known},
    }


def write_record(record: Mapping[str, Any], path: Path | None) -> str:
    """Return a record as JSON, also written to `path` if given, with its folder created."""
    text = json.dumps(record, indent=1)
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n", encoding="utf-8")
    return text


def _format_command(words: Sequence[str]) -> str:
    """Return the command line of this Python process without this machine's folders."""
    named = [re.sub(r"(?<![^=])/.*/(?=[^/])", "", word) for word in words]
    return shlex.join(named if named and named[0] == "cudnn-backend" else ["python", *named])


def find_git_commit(folder: Path) -> str:
    """Return the commit of a folder, with ``-dirty`` if files differ from it; "unknown" without git.

    Of sources that travel without git, the variable ``CUDNN_BACKEND_COMMIT`` says it.
    """
    if said := os.environ.get("CUDNN_BACKEND_COMMIT"):
        return said
    command = ["git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        found = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    except OSError:  # there is no git
        return "unknown"
    return found.stdout.strip() or "unknown"
