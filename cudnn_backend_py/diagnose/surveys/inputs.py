"""Read the arguments of surveys: graphs, targets, and cuDNN versions with the files and variables to load them."""

from __future__ import annotations

import os
import subprocess
from collections import Counter
from collections.abc import Iterable, Mapping
from functools import lru_cache
from pathlib import Path

from ...errors import UsageError
from ...graph import Graph
from ...graph.ir import check_graph
from ...native import library
from ...native.find import LIBRARY_VARIABLE, NVRTC_VARIABLE
from ...native.version_store import VersionRequest, find_version_folder
from ...system.child import make_call_command
from ...system.version import is_same_version, parse_leading_numbers
from ...target import Profile
from ...versions.judging_environment import JudgingEnvironment, read_judging_environment
from ...versions.store import InstalledCudnn, find_installed, list_judging_versions
from ..query import GPU, read_target

__all__ = [
    "DEFAULT_VERSION",
    "available_versions",
    "choose_wheels",
    "count_cores",
    "find_exact_version_name",
    "find_own_version",
    "find_version_number",
    "read_graphs",
    "read_judging_environments",
    "read_targets",
]

DEFAULT_VERSION = "default"  # name of the cuDNN this process would load


def available_versions() -> tuple[str, ...]:
    """Return every cuDNN that can judge, oldest first, including the default library's version."""
    own = _query_version(read_judging_environment(None, _leave_out_named_version(os.environ)))
    names = {one.version_with_cuda for one in list_judging_versions()} | ({own} if own else set())
    return tuple(sorted(names, key=parse_leading_numbers))


def _leave_out_named_version(environ: Mapping[str, str]) -> dict[str, str]:
    """Return an environment without the variables for the version named by ``--cudnn``."""
    library = environ.get(LIBRARY_VARIABLE)
    is_installed = library is not None and find_version_folder(Path(library)) is not None
    named = (LIBRARY_VARIABLE, NVRTC_VARIABLE) if is_installed else ()
    return {name: value for name, value in environ.items() if name not in named}


def find_version_number(name: str) -> str:
    """Return the cuDNN version for a name; for ``default`` that of the cuDNN this process would load."""
    return (find_own_version() or name) if name == DEFAULT_VERSION else name


def choose_wheels(names: Iterable[str], wheels: Mapping[str, str]) -> dict[str, str | None]:
    """Return for each name the version to judge with, or the wheel that `wheels` gives for it.

    Parameters
    ----------
    wheels
        By version, such as ``{"9.19.0+cu12": "9.19.0+cu12-full"}``.
    """

    def find_wheel(name: str) -> str:
        number = find_version_number(name)
        return next((wheel for version, wheel in wheels.items() if is_same_version(version, number)), name)

    return {name: find_wheel(name) if wheels else name for name in names}


def find_exact_version_name(name: str) -> str:
    """Return the exact version with its CUDA major, such as ``9.19.0+cu12`` for ``9.19``; other names unchanged."""
    if name == DEFAULT_VERSION:
        return name
    there = find_installed(name)
    if (own := _find_own_environment(name, there, os.environ)) is not None:
        return _query_version(own) or name
    if there is None:
        return name
    wanted = VersionRequest.parse(name)
    exact = there.full_version_with_cuda if len(wanted.numbers) > 3 else there.version_with_cuda
    return f"{exact}-{wanted.flavor}" if wanted.flavor else exact


def read_graphs(graphs: Mapping[str, Graph] | Iterable[Graph]) -> dict[str, Graph]:
    """Return graphs by name; unnamed ones use their own names.

    Raises
    ------
    UsageError
        ``matrix-graph-names``.
    GraphError
        ``not-a-graph``.
    """
    listed = list(graphs.values() if isinstance(graphs, Mapping) else graphs)
    for graph in listed:
        check_graph(graph)
    if isinstance(graphs, Mapping):
        return dict(graphs)
    twice = [name for name, count in Counter(graph.name for graph in listed).items() if count > 1]
    if twice:
        raise UsageError(
            f"{len(listed)} graphs have only {len({graph.name for graph in listed})} names, "
            f"repeated: {', '.join(map(repr, twice))}",
            code="matrix-graph-names",
            fix="give a mapping of names to graphs",
        )
    return {graph.name: graph for graph in listed}


def read_targets(targets: Iterable[str]) -> dict[str, Profile | str]:
    """Return the distinct targets by name, with the profiles of described GPUs already read."""
    return {name: read_target(name) or GPU for name in dict.fromkeys(targets)}


def read_judging_environments(
    versions: Mapping[str, str | None] | Iterable[str | None],
) -> dict[str, JudgingEnvironment]:
    """Return, by version name, the library files and environment variables of the child process that judges."""
    environ = dict(os.environ)
    if isinstance(versions, Mapping):
        return {name: _read_version_environment(version, environ) for name, version in versions.items()}
    return {version or DEFAULT_VERSION: _read_version_environment(version, environ) for version in versions}


def _read_version_environment(version: str | None, environ: Mapping[str, str]) -> JudgingEnvironment:
    """Return the library files and variables for an installed cuDNN version, or for the one that this process loads.

    The latter if it has the same version and the installed one is a JIT wheel or missing, as a full wheel has more
    engines.
    """
    if version in (None, DEFAULT_VERSION):
        return read_judging_environment(None, environ)
    assert version is not None
    own = _find_own_environment(version, find_installed(version), environ)
    return read_judging_environment(version, environ) if own is None else own


def _find_own_environment(
    version: str, there: InstalledCudnn | None, environ: Mapping[str, str]
) -> JudgingEnvironment | None:
    """Return this process's cuDNN setup, if it has this version and no full wheel of the version is installed."""
    if there is not None and there.flavor != "jit":
        return None
    own = read_judging_environment(None, _leave_out_named_version(environ))
    found = _query_version(own)
    return own if found is not None and is_same_version(found, version) else None


def find_own_version() -> str | None:
    """Return the version of the cuDNN this process would load, such as ``9.28.0+cu12``; None if there is none."""
    return _query_version(read_judging_environment(None))


@lru_cache
def _query_version(setup: JudgingEnvironment) -> str | None:
    command = make_call_command(f"{__name__}:_print_version")
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=setup.environment())
    return done.stdout.splitlines()[-1] if done.returncode == 0 else None


def _print_version() -> None:
    """Print the version of the cuDNN that this child process loads, after any output of cuDNN."""
    print(f"\n{library().build_text}")


def count_cores() -> int:
    """Return the number of processor cores available to this process."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
