"""``plan``: a graph as an :class:`Executable`, ready to be called."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..generated.enums import HeurMode
from ..graph import Graph
from ..plans.cache import PlanCache
from ..plans.select import Selection
from ..target import Profile, Target

if TYPE_CHECKING:
    from .executable import Executable

from ..plans.build import build
from ..plans.choice import Knobs

__all__ = ["plan"]


def plan(
    graph: Graph,
    target: Target | Profile | str | None = None,
    *,
    mode: HeurMode | str = HeurMode.A,
    engine: int | None = None,
    knobs: Knobs | None = None,
    selection: Selection | None = None,
    cache: bool | PlanCache = True,
    workspace: Any = None,
    check: bool = True,
    stream: Any = None,
) -> Executable:
    """Return an :class:`Executable`: the plan of a graph, ready to be called with buffers.

    :func:`build` returns the :class:`~cudnn_backend_py.Plan` alone, also for a described GPU.

    Parameters
    ----------
    target, mode, engine, knobs, selection, cache
        As for :func:`build`.
    workspace, check, stream
        As for :class:`~cudnn_backend_py.execution.executable.Executable`.

    Returns
    -------
    Executable
        Called with buffers, it runs the plan. Its ``plan`` is the :class:`~cudnn_backend_py.Plan` that :func:`build`
        returns.

    Raises
    ------
    EnvironmentNotReady
        ``no-gpu``; ``plan-without-device`` for a described target.
    CudnnBackendError
        As :func:`build`.
    """
    from ..execution.executable import Executable

    found = build(graph, target, mode=mode, engine=engine, knobs=knobs, selection=selection, cache=cache)
    return Executable(found, workspace=workspace, check=check, stream=stream)
