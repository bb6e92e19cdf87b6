"""The public ``explain``: judge with a chosen cuDNN version, in this process or in a child process."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Sequence

from ..errors import UsageError
from ..generated.enums import HeurMode
from ..graph import Graph
from ..native import library, loaded_library
from ..native.find import find_installed_version
from ..plans.engine import heur_mode
from ..plans.plan import Plan
from ..target import Profile, Target
from . import explanation
from .verdict import DEFAULT_MODES, Verdict

__all__ = ["explain"]


def explain(
    graph: Graph,
    target: str | Profile | Target | None = None,
    *,
    version: str | None = None,
    mode: HeurMode | str | Sequence[HeurMode | str] = DEFAULT_MODES,
    build: bool | None = None,
    execute: bool = False,
    plans: list[Plan] | None = None,
    step: Callable[[str], object] = str,
    skip: Collection[str] = (),
    causes: bool = True,
    shapes: bool = False,
    every_engine: bool = False,
    code: str | None = None,
    engine: int | str | None = None,
) -> Verdict:
    """Return cuDNN's verdict on `graph` with the reasons of every candidate.

    Parameters
    ----------
    version
        An installed cuDNN version such as ``9.27``, ``9.26.0+cu13`` or ``latest``; the library of this process if not
        given. It is judged in a child process where another version is loaded in this one; where none is, it is loaded
        here, and later calls without a version use it.
    target, mode, build, execute, plans, step, skip, causes, shapes, every_engine, code, engine
        As for :func:`cudnn_backend_py.diagnose.explanation.explain`.

    Raises
    ------
    EnvironmentNotReady
        ``cudnn-version-not-installed``.
    UsageError
        ``unknown-target``, ``unknown-enumerator``, ``engine-tag``, ``cudnn-version-malformed``;
        ``child-only-verdict`` for `plans`, or an open target, with a version that only a child process can load.
        Anything else is a verdict, not an exception.
    """
    if version is None or _load_version_unless_other_is_loaded(version):
        return explanation.explain(
            graph,
            target,
            mode=mode,
            build=build,
            execute=execute,
            plans=plans,
            step=step,
            skip=skip,
            causes=causes,
            shapes=shapes,
            every_engine=every_engine,
            code=code,
            engine=engine,
        )
    if plans is not None or isinstance(target, Target):
        raise UsageError(
            f"cuDNN {version} is judged in a child process, which cannot return plans or use an open target",
            code="child-only-verdict",
            fix="give the name of a target and leave plans= out, or judge in a new process that loads only that cuDNN",
        )
    from .judges import judge
    from .query import GPU, Query

    named = [mode] if isinstance(mode, (HeurMode, str)) else list(mode)
    modes = tuple(heur_mode(item).name for item in named)
    place = GPU if target is None else target
    return judge(Query(graph, place, version, modes, build, execute, causes, shapes, every_engine, code, engine))


def _load_version_unless_other_is_loaded(version: str) -> bool:
    """Load an installed cuDNN version into this process; return False if another one is already loaded."""
    loaded = loaded_library()
    if loaded is None:
        library(version=version)
        return True
    path = find_installed_version(version)
    return path is not None and os.path.realpath(path) == os.path.realpath(loaded.path)
