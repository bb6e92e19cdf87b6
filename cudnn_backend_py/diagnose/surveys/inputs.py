"""Arguments of surveys: named graphs, targets, and cuDNN versions with the setup of their processes."""

from __future__ import annotations

import os
import subprocess
from collections import Counter
from collections.abc import Iterable, Mapping
from functools import lru_cache

from ...errors import UsageError
from ...graph import Graph
from ...graph.ir import check_graph
from ...native import library
from ...system.child import call_command
from ...system.version import is_same_version, leading_numbers
from ...target import Profile
from ...versions.setup import Setup, read_setup
from ...versions.store import InstalledCudnn, find_installed, list_judging
from ..query import GPU, read_target

__all__ = [
    "DEFAULT",
    "available_versions",
    "count_cores",
    "name_build",
    "number_of",
    "own_version",
    "places_of",
    "read_graphs",
    "read_setups",
    "read_targets",
]

DEFAULT = "default"  # name of the cuDNN this process would load


def available_versions() -> tuple[str, ...]:
    """Return every cuDNN that can judge, oldest first: the installed ones and this process's own."""
    names = {one.build for one in list_judging()} | ({own} if (own := own_version()) else set())
    return tuple(sorted(names, key=leading_numbers))


def number_of(name: str) -> str:
    """Return the version for a name such as ``default``."""
    return (own_version() or name) if name == DEFAULT else name


def places_of(names: Iterable[str], wheels: Mapping[str, str]) -> dict[str, str | None]:
    """Return the version to judge with for each name, where some versions need a certain wheel.

    Parameters
    ----------
    wheels
        By version, such as ``{"9.19.0+cu12": "9.19.0+cu12-full"}``.
    """

    def find_wheel(name: str) -> str:
        number = number_of(name)
        return next((wheel for version, wheel in wheels.items() if is_same_version(version, number)), name)

    return {name: find_wheel(name) if wheels else name for name in names}


def name_build(name: str) -> str:
    """Return ``9.19.0+cu12`` for ``9.19.0`` where that is the build that judges; other names unchanged."""
    if name == DEFAULT:
        return name
    there = find_installed(name)
    if (own := _find_own_setup(name, there, os.environ)) is not None:
        return _version_of(own) or name
    return there.build if there is not None and there.short == name else name


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
            f"{len(listed)} graphs go by {len({graph.name for graph in listed})} names, "
            f"twice there is {', '.join(map(repr, twice))}",
            code="matrix-graph-names",
            fix="give a mapping of names to graphs",
        )
    return {graph.name: graph for graph in listed}


def read_targets(targets: Iterable[str]) -> dict[str, Profile | str]:
    """Return the distinct targets for queries; profiles of described GPUs are read now."""
    return {name: read_target(name) or GPU for name in dict.fromkeys(targets)}


def read_setups(versions: Mapping[str, str | None] | Iterable[str | None]) -> dict[str, Setup]:
    """Return the setup for each version by its name, all with the variables of this moment."""
    environ = dict(os.environ)
    if isinstance(versions, Mapping):
        return {name: _read_setup(version, environ) for name, version in versions.items()}
    return {version or DEFAULT: _read_setup(version, environ) for version in versions}


def _read_setup(version: str | None, environ: Mapping[str, str]) -> Setup:
    """Return the setup of an installed version, or of this process's own cuDNN if that has more engines."""
    if version in (None, DEFAULT):
        return read_setup(None, environ)
    assert version is not None
    own = _find_own_setup(version, find_installed(version), environ)
    return read_setup(version, environ) if own is None else own


def _find_own_setup(version: str, there: InstalledCudnn | None, environ: Mapping[str, str]) -> Setup | None:
    """Return the setup of this process's own cuDNN if it is of a version that is installed as a JIT wheel at most."""
    if there is not None and there.flavor != "jit":
        return None
    own = read_setup(None, environ)
    found = _version_of(own)
    return own if found is not None and is_same_version(found, version) else None


def own_version() -> str | None:
    """Return the version of the cuDNN this process would load, such as ``9.28.0+cu12``; None if there is none."""
    return _version_of(read_setup(None))


@lru_cache
def _version_of(setup: Setup) -> str | None:
    command = call_command(f"{__name__}:_report_version")
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=setup.environment())
    return done.stdout.splitlines()[-1] if done.returncode == 0 else None


def _report_version() -> None:
    """In a child process: print the version of the cuDNN it loads, after any output of cuDNN."""
    print(f"\n{library().build_text}")


def count_cores() -> int:
    """Return the number of processor cores available to this process."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
