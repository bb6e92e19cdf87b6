"""``write_repro``: write an archive that reproduces a verdict on another machine."""

from __future__ import annotations

import gzip
import io
import json
import os
import platform
import re
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from ...errors import UsageError
from ...graph import Graph, graph_to_json
from ...printable import printable
from ...system.atomic_file import write_atomically
from ...system.child import describe_exit_status, make_call_command, make_script_command
from ...target import Profile, use_target
from ..judges import GPU, START_FAILURE_CODE, TIMEOUT_CODE, Query, judge
from ..query import read_target
from ..verdict import CRASH_CODE, Verdict
from .cpp import make_cpp_program
from .text import render_text

__all__ = ["make_archive_name", "write_repro"]

LOG_BYTES = 1 << 20  # of cuDNN's log, from its beginning, and as many from its end
_MAX_LOG_BYTES_READ = 64 << 20
_ZIP_EPOCH = 315532800  # 1980-01-01, the first day a zip archive knows
_PACKAGE_FOLDER = Path(__file__).parents[2]
_ARCHIVE_SUFFIXES = (".tar.gz", ".tgz", ".zip")


def make_archive_name(graph: Graph, target: str | Profile = GPU) -> str:
    """Return the usual file name of a reproduction: ``forum_two_matmul-l40s.tar.gz``."""
    profile = read_target(target)
    name = GPU if profile is None else profile.name
    return f"{_make_file_name(f'{graph.name}-{name}')}.tar.gz"


def write_repro(
    graph: Graph,
    target: str | Profile = GPU,
    path: str | os.PathLike[str] | None = None,
    *,
    build: bool = True,
    version: str | None = None,
    modes: tuple[str, ...] = ("A", "FALLBACK"),
    limit_s: float = 60.0,
) -> Path:
    """Write an archive that reproduces cuDNN's answer about `graph` without further files; return its path.

    It holds the graph, the target, the verdict, cuDNN's log, the versions, a Python script that needs this package,
    and a C++ program that needs cuDNN. cuDNN is queried in child processes. User name, home folder, times and process
    numbers are left out, so the same answer gives the same bytes, as far as cuDNN's log is the same.

    Parameters
    ----------
    target
        A described GPU (``sm90``), the path of a device JSON, a profile, or ``gpu`` for the one of this machine.
    path
        Ends with ``.tar.gz``, ``.tgz`` or ``.zip``; :func:`make_archive_name` if not given. A file there is replaced.
    build
        Request plans, too.
    version
        An installed cuDNN such as ``9.19.0``; None for the library this process would load.
    limit_s
        Seconds the question may take.

    Raises
    ------
    UsageError
        ``repro-path``, ``unknown-target``, ``unknown-enumerator``.
    EnvironmentNotReady
        ``cudnn-version-not-installed``; ``no-gpu`` if there is none and `target` is ``gpu``.
    """
    archive = _check_path(Path(make_archive_name(graph, target) if path is None else path))
    profile = _find_profile(target)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        _write_text(folder / "target.json", _format_json(_format_target(profile)))
        hide = _PathRedactor(folder)
        question = Query(graph, GPU if target == GPU else profile, version, modes, build)
        environment = question.setup.environment()
        versions = _collect_environment_facts(environment, hide)
        verdict = judge(question, limit_s=limit_s)
        if verdict.cause is not None and verdict.cause.code in (CRASH_CODE, TIMEOUT_CODE, START_FAILURE_CODE):
            verdict = replace(verdict, cudnn=versions["cudnn"])  # a dead process does not say its version
        verdict = hide.redact_verdict(replace(verdict, library=Path(verdict.library).name))
        files = {
            "graph.json": _format_json(graph_to_json(graph)),
            "target.json": _format_json(_format_target(profile)),
            "verdict.json": _format_json(verdict.to_dict()),
            "verdict.txt": render_text(verdict),
            "versions.json": _format_json(versions),
            "reproduce.py": _format_script(verdict, build),
            "reproduce.cpp": make_cpp_program(graph, profile, verdict),
            "Makefile": _MAKEFILE_TEMPLATE.replace("@USE_GPU@", "1" if verdict.live else ""),
            "shim/cuda_runtime_api.h": _CUDA_RUNTIME_SHIM,
            "shim/library_types.h": _LIBRARY_TYPES_SHIM,
            "driver_stub.c": (_PACKAGE_FOLDER / "native" / "driver_stub.c").read_text(encoding="utf-8"),
        }
        for member in ("graph.json", "reproduce.py"):
            _write_text(folder / member, files[member])
        ending = _run_script_with_log(folder, environment, limit_s)
        files["cudnn.log"] = hide(_read_log(folder / "cudnn.log"))
        files["README.txt"] = _format_readme(graph, profile, verdict, build, ending)
        _write_archive(files, archive)
    return archive


def _check_path(path: Path) -> Path:
    if not path.name.endswith(_ARCHIVE_SUFFIXES):
        raise UsageError(
            f"{path} must end in {' or '.join(_ARCHIVE_SUFFIXES)}, the suffix of an archive",
            code="repro-path",
            fix=f"let it end with {', '.join(_ARCHIVE_SUFFIXES)}",
        )
    if not path.parent.is_dir():
        raise UsageError(
            f"{path} cannot be written: there is no folder {path.parent}",
            code="repro-path",
            fix="create the folder, or name a file in another one",
        )
    return path


def _find_profile(target: str | Profile) -> Profile:
    profile = read_target(target)
    if profile is not None:
        return profile
    with use_target(None) as live:
        return live.profile


def _format_target(profile: Profile) -> dict[str, Any]:
    """Return the profile as a JSON file for ``--target``."""
    return {**asdict(profile), "properties": dict(profile.properties)}


def _format_json(data: Any) -> str:
    return json.dumps(data, indent=1) + "\n"


def _write_text(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")


def _make_file_name(text: str) -> str:
    return re.sub(r"[^\w.-]+", "_", text, flags=re.ASCII).strip("._")[:100] or "graph"


# What is observed


def _run_script_with_log(folder: Path, environment: Mapping[str, str], limit_s: float) -> str:
    """Run the reproduction script with cuDNN's log in a file; return how it ended, as text."""
    command = make_script_command(folder / "reproduce.py", "--in-process")
    wanted = {"CUDNN_LOGLEVEL_DBG": "3", "CUDNN_LOGDEST_DBG": str(folder / "cudnn.log")}
    try:
        done = subprocess.run(command, env={**environment, **wanted}, capture_output=True, timeout=limit_s, check=False)
    except subprocess.TimeoutExpired:
        return f"was stopped after {limit_s:g} s"
    return f"{'crashed' if done.returncode < 0 else 'ended'} with {describe_exit_status(done.returncode)}"


def _collect_environment_facts(environment: Mapping[str, str], hide: _PathRedactor) -> dict[str, Any]:
    command = make_call_command("cudnn_backend_py.info:print_info")
    done = subprocess.run(command, env=dict(environment), capture_output=True, text=True, check=False)
    facts = json.loads(done.stdout) if done.returncode == 0 else {}
    driver = str(facts.get("driver", "not known"))
    return {
        "cudnn_backend_py": facts.get("cudnn_backend_py", "not known"),
        "cudnn": hide(facts.get("cudnn", "not known")),
        "cudnn library": Path(facts.get("path", "not known")).name,
        "built for CUDA": facts.get("built for CUDA", "not known"),
        "nvrtc": Path(facts.get("nvrtc", "not known")).name,
        "driver": driver.partition(",")[0],
        "driver version": facts.get("driver version", "not known"),
        "python": platform.python_version(),
        "os": platform.platform(),
    }


_TIME_PATTERN = re.compile(r"Time: \S+ \([^)\n]* since start\)")
_THREAD_PATTERN = re.compile(r"Process=(\d+); Thread=(\d+)")
_UNINITIALISED_PATTERN = re.compile(r"(val=INVALID_\w+) \(-?\d+\)")
_ADDRESS_PATTERN = re.compile(r"0x[0-9a-f]{8,16}\b")


def _read_log(path: Path) -> str:
    """Return cuDNN's log without parts that vary between runs, shortened if it is long."""
    if not path.is_file():
        return ""
    with path.open(encoding="utf-8", errors="replace") as stream:
        text = stream.read(_MAX_LOG_BYTES_READ)
    text = _TIME_PATTERN.sub("Time: 1980-01-01T00:00:00.000000 (0d+0h+0m+0s since start)", text)
    text = _UNINITIALISED_PATTERN.sub(r"\1 (?)", text)
    threads: dict[str, int] = {}
    text = _THREAD_PATTERN.sub(
        lambda found: f"Process=1; Thread={threads.setdefault(found[2], len(threads) + 1)}", text
    )
    addresses: dict[str, int] = {}
    text = _ADDRESS_PATTERN.sub(lambda found: f"0x{addresses.setdefault(found[0], len(addresses) + 1):012x}", text)
    return _shorten_log(text)


def _shorten_log(text: str) -> str:
    """Return at most twice ``LOG_BYTES`` of a log, cut between messages."""
    if len(text) <= 2 * LOG_BYTES:
        return text
    head = text[:LOG_BYTES].rpartition("\n\n")[0]
    tail = text[-LOG_BYTES:].partition("\n\n")[2]
    return f"{head}\n\n... {len(text) - len(head) - len(tail)} characters are left out here ...\n\n{tail}"


class _PathRedactor:
    """Removes the paths of this machine and the user's name from texts."""

    def __init__(self, folder: Path) -> None:
        home = Path.home()
        places = {str(folder): ".", str(_PACKAGE_FOLDER.parent): "<package>", sys.prefix: "<python>"}
        places |= {sys.base_prefix: "<python>", str(home): "~"}
        self._places = {place: word for place, word in places.items() if len(Path(place).parts) > 1}
        self._user = re.compile(rf"(?<=/){re.escape(home.name)}(?=/)") if home.name else None

    def __call__(self, text: str) -> str:
        for place, word in self._places.items():
            text = re.sub(rf"{re.escape(place)}(?![\w.-])", lambda _, word=word: word, text)  # type: ignore[misc]
        return self._user.sub("user", text) if self._user else text

    def redact_verdict(self, verdict: Verdict) -> Verdict:
        """Return the verdict without paths and the user's name."""
        return Verdict.from_dict(json.loads(self(json.dumps(verdict.to_dict(), ensure_ascii=False))))


# What is written


def _format_script(verdict: Verdict, build: bool) -> str:
    texts = {
        "CUDNN": repr(verdict.cudnn),
        "OUTCOME": repr(str(verdict.outcome)),
        "MODES": repr(verdict.modes),
        "BUILD": repr(build),
        "LIVE": repr(verdict.live),
    }
    return re.sub(r"@([A-Z]+)@", lambda match: texts[match[1]], _SCRIPT_TEMPLATE)


def _format_readme(graph: Graph, profile: Profile, verdict: Verdict, build: bool, ending: str) -> str:
    cause = "none: an engine supports the graph"
    if verdict.cause:
        cause = f"[{verdict.cause.basis}] {verdict.cause.headline}"
    texts = {
        "GRAPH": graph.name,
        "TARGET": f"{profile.title} (sm_{profile.sm}), {'on the GPU itself' if verdict.live else 'described, no GPU'}",
        "CUDNN": verdict.cudnn,
        "OUTCOME": f"{verdict.outcome} (exit code {verdict.exit_code}, stage {verdict.stage!r})",
        "CAUSE": cause,
        "ENDING": ending,
        "FLAGS": " --build" if build else "",
        "OTHER": "make USE_GPU= ...' make the program for the described GPU"
        if verdict.live
        else "make USE_GPU=1 ...' make the program for the GPU of the machine",
    }
    return re.sub(r"@([A-Z_]+)@", lambda match: printable(texts[match[1]]), _README_TEMPLATE)


def _write_archive(files: Mapping[str, str], archive: Path) -> None:
    """Write the archive atomically, with all members in one folder."""
    folder = archive.name.removesuffix(".gz").removesuffix(".tar").removesuffix(".tgz").removesuffix(".zip")
    members = [(f"{_make_file_name(folder)}/{name}", files[name].encode()) for name in sorted(files)]
    data = _make_zip(members) if archive.suffix == ".zip" else _make_tar(members)
    write_atomically(archive, data)


def _make_tar(members: list[tuple[str, bytes]]) -> bytes:
    buffer = io.BytesIO()
    with (
        gzip.GzipFile(filename="", mode="wb", fileobj=buffer, mtime=_ZIP_EPOCH) as squeezed,
        tarfile.open(fileobj=squeezed, mode="w") as tar,
    ):
        for name, content in members:
            member = tarfile.TarInfo(name)
            member.size, member.mtime, member.mode = len(content), _ZIP_EPOCH, 0o644
            tar.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


def _make_zip(members: list[tuple[str, bytes]]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members:
            member = zipfile.ZipInfo(name)  # of 1980-01-01
            member.external_attr, member.compress_type = 0o644 << 16, zipfile.ZIP_DEFLATED
            archive.writestr(member, content)
    return buffer.getvalue()


_README_TEMPLATE = """\
Reproduces NVIDIA cuDNN's verdict on one graph.

graph:    @GRAPH@
target:   @TARGET@
cuDNN:    @CUDNN@
answer:   @OUTCOME@
cause:    @CAUSE@

verdict.txt has cuDNN's message for every engine config, graph.json the graph, target.json the GPU it was judged for,
versions.json what judged it. cudnn.log is cuDNN's own log at level 3; a long one lacks its middle, and times, process
numbers and addresses are replaced. When it was written, 'reproduce.py --in-process' @ENDING@.

Exit codes of both programs: 0 supported, 1 not supported, 2 could not be judged.


In Python
---------
Needs the package cudnn_backend_py and cuDNN @CUDNN@; no GPU.

    python reproduce.py                   with the cuDNN that the package finds
    python reproduce.py --cudnn VERSION   with one of 'cudnn-backend cudnn install VERSION'
    python reproduce.py --in-process      in the process itself: for a debugger, and for cuDNN's log


In C++
------
Needs a C++17 compiler, make, and cuDNN with its header; not the package. CUDNN is the folder with include/ and lib/ of
cuDNN (of a wheel: site-packages/nvidia/cudnn or nvidia/cudnn_jit); leave it out if the compiler finds cuDNN by itself.
LIBS are the folders of libnvrtc and libcublasLt (site-packages/nvidia/cuda_nvrtc/lib:site-packages/nvidia/cublas/lib).
Where there are no CUDA headers, those in shim/ stand in.

    make CUDNN=/path/to/cudnn
    LD_LIBRARY_PATH=/path/to/cudnn/lib:$LIBS ./reproduce@FLAGS@

On a machine without a CUDA driver, and on no other, cuDNN needs a stand-in for libcuda.so.1 to judge:

    make stub/libcuda.so.1
    LD_LIBRARY_PATH=stub:/path/to/cudnn/lib:$LIBS ./reproduce@FLAGS@

'make clean' and '@OTHER@.
cuDNN's log: CUDNN_LOGLEVEL_DBG=3 CUDNN_LOGDEST_DBG=stdout ./reproduce@FLAGS@
"""

_MAKEFILE_TEMPLATE = """\
# README.txt says how to use this.
CUDNN ?=
USE_GPU ?= @USE_GPU@
CXXFLAGS ?= -O1 -Wall -Wextra

reproduce: reproduce.cpp
\t$(CXX) -std=c++17 $(CXXFLAGS) $(if $(USE_GPU),-DUSE_GPU) $(if $(CUDNN),-I$(CUDNN)/include) -idirafter shim \\
\t    -o $@ $< $(if $(CUDNN),-L$(CUDNN)/lib) -l:libcudnn.so.9

stub/libcuda.so.1: driver_stub.c
\tmkdir -p stub
\t$(CC) -shared -fPIC -Wl,-soname,libcuda.so.1 -o $@ $<

clean:
\trm -rf reproduce stub

.PHONY: clean
"""

_CUDA_RUNTIME_SHIM = """\
/* Stands in for the CUDA toolkit's header of this name: the types cudnn_graph.h mentions, nothing after them. */
#ifndef SHIM_CUDA_RUNTIME_API_H
#define SHIM_CUDA_RUNTIME_API_H

#include <stddef.h>

typedef struct CUstream_st *cudaStream_t;
typedef struct CUgraph_st *cudaGraph_t;

#endif
"""

_LIBRARY_TYPES_SHIM = """\
/* Stands in for the CUDA toolkit's header of this name: the type cudnn_graph.h mentions. */
#ifndef SHIM_LIBRARY_TYPES_H
#define SHIM_LIBRARY_TYPES_H

typedef enum libraryPropertyType_t { MAJOR_VERSION, MINOR_VERSION, PATCH_LEVEL } libraryPropertyType;

#endif
"""

_SCRIPT_TEMPLATE = '''\
"""Judge graph.json for the GPU of target.json; the exit code is the verdict's.

0 supported, 1 not supported, 2 could not be judged. Needs the package cudnn_backend_py.
"""

import argparse
import sys
from pathlib import Path

from cudnn_backend_py import explain, load_graph
from cudnn_backend_py.diagnose import render_text
from cudnn_backend_py.diagnose.judges import Query, judge

HERE = Path(__file__).resolve().parent
MODES = @MODES@
RECORDED_CUDNN, RECORDED_OUTCOME = @CUDNN@, @OUTCOME@


def main() -> int:
    parser = argparse.ArgumentParser(description="Judge graph.json with cuDNN; the exit code is the verdict's.")
    switch = argparse.BooleanOptionalAction
    parser.add_argument("--build", action=switch, default=@BUILD@, help="build a plan, too")
    parser.add_argument("--gpu", action=switch, default=@LIVE@, help="use the GPU here, not the described one")
    parser.add_argument("--cudnn", metavar="VERSION", help="an installed cuDNN, such as 9.19.0")
    parser.add_argument("--in-process", action="store_true", help="no child process: a crash ends this one")
    given = parser.parse_args()

    graph = load_graph(HERE / "graph.json")
    target = "gpu" if given.gpu else str(HERE / "target.json")
    if given.in_process:
        verdict = explain(graph, target, mode=MODES, build=given.build)
    else:
        verdict = judge(Query(graph, target, given.cudnn, MODES, given.build))
    print(render_text(verdict), end="")
    if (verdict.cudnn, str(verdict.outcome)) != (RECORDED_CUDNN, RECORDED_OUTCOME):
        recorded = f"{RECORDED_OUTCOME} by cuDNN {RECORDED_CUDNN}"
        print(f"recorded: {recorded}; here: {verdict.outcome} by cuDNN {verdict.cudnn}", file=sys.stderr)
    return verdict.exit_code


if __name__ == "__main__":
    sys.exit(main())
'''
