"""Queries as values, which include everything that can change a verdict."""

from __future__ import annotations

import json
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Any

from ..graph import Graph, graph_to_json
from ..plans.build import make_selection
from ..plans.engine import heur_mode
from ..target import Profile, find_profile
from ..versions.judging_environment import JudgingEnvironment, read_judging_environment
from .verdict import SCHEMA_VERSION

__all__ = ["GPU", "Query", "describe_device", "graph_text", "read_device", "read_target"]

GPU = "gpu"


@dataclass(frozen=True)
class Query:
    """A graph, and the target, version and settings it is judged for.

    Target and version are read when the question is made: a file or an installation that changes later does not change
    the question.

    Parameters
    ----------
    target
        A described GPU (``sm90``), the path of a device JSON, a profile, or ``gpu`` for the one of this machine.
    version
        An installed cuDNN such as ``9.19.0``; None for the library this process would load; or a
        :class:`JudgingEnvironment`, which names the exact files.
    modes, build, execute, causes, shapes, every_engine, code, engine
        As for :func:`explain`.

    Attributes
    ----------
    profile
        The description of the GPU, None for the one of this machine.
    setup
        The library files, and the environment variables that cuDNN reads.

    Raises
    ------
    UsageError
        ``unknown-target``, ``unknown-enumerator``, ``engine-tag``.
    GraphError
        What :func:`~cudnn_backend_py.target.profiles.load_profile` refuses about a device JSON.
    EnvironmentNotReady
        ``cudnn-version-not-installed``, ``installed-files-changed``.
    """

    graph: Graph
    target: str | Profile = GPU
    version: str | JudgingEnvironment | None = None
    modes: tuple[str, ...] = ("A", "FALLBACK")
    build: bool | None = None
    execute: bool = False
    causes: bool = True
    shapes: bool = False
    every_engine: bool = False
    code: str | None = None
    engine: int | str | None = None
    profile: Profile | None = field(init=False, repr=False, compare=False)
    setup: JudgingEnvironment = field(init=False, repr=False)
    device: str = field(init=False, repr=False)  # of `profile`, which has no hash

    def __post_init__(self) -> None:
        for mode in self.modes:
            heur_mode(mode)
        make_selection("A", self.engine, None, None)  # which checks it
        profile = read_target(self.target)
        setup = self.version if isinstance(self.version, JudgingEnvironment) else read_judging_environment(self.version)
        values = {
            "target": self.target.name if isinstance(self.target, Profile) else self.target,
            "version": setup.version,
            "profile": profile,
            "setup": setup,
            "device": describe_device(profile),
        }
        for name, value in values.items():
            object.__setattr__(self, name, value)

    def key(self) -> str | None:
        """Return a SHA-256 of everything that can change the verdict; None if some of it is unknown.

        It covers graph, target, library files, environment variables, options, and the form of a verdict. The GPU of
        this machine may be another one later, so questions about it have no key, and those about code write files.
        """
        if self.profile is None or self.code is not None or not self.setup.is_known:
            return None
        import hashlib  # which only stored answers need

        options: list[Any] = [self.modes, self.build, self.execute, self.causes, self.shapes, self.every_engine]
        options += [] if self.engine is None else [self.engine]
        parts = [SCHEMA_VERSION, graph_text(self.graph), self.device, self.setup.key(), *options]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()

    def message(self) -> dict[str, Any]:
        """Return the query as plain data for a judging process, with all files and settings already read."""
        names = ("build", "execute", "causes", "shapes", "every_engine", "code", "engine")
        return {
            "graph": graph_text(self.graph),
            "device": self.device,
            "modes": list(self.modes),
            **{name: getattr(self, name) for name in names},
        }


def read_target(target: str | Profile) -> Profile | None:
    """Return the profile of a described GPU, given as profile, name or path of a JSON file; None for ``gpu``.

    Raises
    ------
    UsageError
        ``unknown-target``.
    GraphError
        What :func:`~cudnn_backend_py.target.profiles.load_profile` refuses about a device JSON.
    """
    if isinstance(target, Profile):
        return target
    return None if target == GPU else find_profile(target)


def describe_device(profile: Profile | None) -> str:
    """Return name, title and properties of a profile as JSON; an empty text for this machine's GPU."""
    return "" if profile is None else json.dumps([profile.name, profile.title, dict(profile.properties)])


def read_device(text: str) -> Profile | None:
    """Return the profile from :func:`describe_device`'s text."""
    if not text:
        return None
    name, title, properties = json.loads(text)
    return Profile(name, title, (), properties, {}, {})


class _GraphTextCache:
    """JSON texts of the most recently queried graphs.

    By identity: graphs that are equal in Python may differ for cuDNN, as 0.0 and -0.0, or 1 and 1.0, do.
    """

    def __init__(self, kept: int) -> None:
        self._kept = kept
        self._texts: OrderedDict[int, tuple[Graph, str]] = OrderedDict()  # the graph keeps its id taken

    def __call__(self, graph: Graph) -> str:
        known = self._texts.get(id(graph))
        if known is not None and known[0] is graph:
            return known[1]
        text = json.dumps(graph_to_json(graph))
        self._texts[id(graph)] = (graph, text)
        if len(self._texts) > self._kept:
            self._texts.popitem(last=False)
        return text


graph_text = _GraphTextCache(256)
