"""Read the arguments of surveys: graphs, targets, and cuDNN versions with the files and variables to load them."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Mapping

from ...errors import UsageError
from ...graph import Graph
from ...graph.ir import check_graph
from ...native.version_store import VersionRequest
from ...system.version import format_version_numbers, is_same_version, parse_leading_numbers, parse_version_numbers
from ...target import Profile
from ...versions.judging_environment import (
    JudgingEnvironment,
    find_library_outside_version_store,
    list_libraries_outside_version_store,
    query_cudnn_version_of_environment,
    read_judging_environment,
)
from ...versions.store import find_installed, list_judging_versions
from ..query import GPU, read_target

__all__ = [
    "DEFAULT_VERSION",
    "available_versions",
    "choose_wheels",
    "count_cores",
    "find_exact_version_name",
    "find_version_number",
    "find_version_this_process_loads",
    "read_graphs",
    "read_judging_environments",
    "read_targets",
]

DEFAULT_VERSION = "default"  # name of the cuDNN this process would load


def available_versions() -> tuple[str, ...]:
    """Return every cuDNN version that graphs can be judged with, oldest first, including the default library's."""
    names = {one.version_with_cuda for one in list_judging_versions()}
    names |= {
        f"{format_version_numbers(one.version[:3])}+cu{one.cuda}" for one in list_libraries_outside_version_store()
    }
    return tuple(sorted(names, key=parse_leading_numbers))


def find_version_number(name: str) -> str:
    """Return the cuDNN version for a name; for ``default`` that of the cuDNN this process would load."""
    if name.startswith("latest"):
        return find_exact_version_name(name)
    return (find_version_this_process_loads() or name) if name == DEFAULT_VERSION else name


def choose_wheels(names: Iterable[str], wheels: Mapping[str, str]) -> dict[str, str | None]:
    """Return for each version name the wheel to judge with: the one that `wheels` gives for it, else the name itself.

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
    wanted = VersionRequest.parse(name)
    if (own := find_library_outside_version_store(name)) is not None:
        numbers, cuda = own.version, own.cuda
    elif (there := find_installed(name)) is not None:
        numbers, cuda = parse_version_numbers(there.version), there.cuda
    else:
        return name
    exact = format_version_numbers(numbers if len(wanted.numbers) > 3 else numbers[:3])
    return f"{exact}+cu{cuda}" + (f"-{wanted.flavor}" if wanted.flavor else "")


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
    named = versions if isinstance(versions, Mapping) else {version or DEFAULT_VERSION: version for version in versions}
    environ = dict(os.environ)
    return {
        name: read_judging_environment(None if version == DEFAULT_VERSION else version, environ)
        for name, version in named.items()
    }


def find_version_this_process_loads() -> str | None:
    """Return the version of the cuDNN this process would load, such as ``9.28.0+cu12``; None if there is none."""
    return query_cudnn_version_of_environment(read_judging_environment(None))


def count_cores() -> int:
    """Return the number of processor cores available to this process."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
