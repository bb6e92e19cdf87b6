"""``plan``: a graph as an :class:`Executable`, or attention as an :class:`AnyShapeAttention`, ready to be called."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, overload

from ..errors import UsageError
from ..generated.enums import HeurMode
from ..graph import Graph
from ..plans.cache import PlanCache
from ..plans.select import Selection
from ..target import Profile, Target

if TYPE_CHECKING:
    from ..graph.attention import Attention
    from .any_shape import AnyShapeAttention, Shapes
    from .executable import Executable

from ..plans.build import build, shared_target
from ..plans.choice import Knobs

__all__ = ["plan"]


@overload
def plan(
    graph: Graph,
    target: Target | Profile | str | None = ...,
    *,
    mode: HeurMode | str = ...,
    engine: int | str | None = ...,
    knobs: Knobs | None = ...,
    selection: Selection | None = ...,
    cache: bool | PlanCache = ...,
    workspace: Any = ...,
    check: bool = ...,
    stream: Any = ...,
    shapes: Literal["exact"] = ...,
) -> Executable: ...


@overload
def plan(
    graph: Attention,
    target: Target | Profile | str | None = ...,
    *,
    workspace: Any = ...,
    shapes: Shapes = ...,
    backward: bool = ...,
) -> AnyShapeAttention: ...


def plan(
    graph: Graph | Attention,
    target: Target | Profile | str | None = None,
    *,
    mode: HeurMode | str = HeurMode.A,
    engine: int | str | None = None,
    knobs: Knobs | None = None,
    selection: Selection | None = None,
    cache: bool | PlanCache = True,
    workspace: Any = None,
    check: bool = True,
    stream: Any = None,
    shapes: Shapes = "exact",
    backward: bool = False,
) -> Executable | AnyShapeAttention:
    """Return an :class:`Executable`: the plan of a graph, ready to be called with buffers.

    :func:`build` returns the :class:`~cudnn_backend_py.plans.plan.Plan` alone, also for a described GPU.

    Parameters
    ----------
    graph
        A graph, or a problem of :class:`~cudnn_backend_py.graph.attention.Attention`.
        The problem gives an :class:`~cudnn_backend_py.execution.any_shape.AnyShapeAttention`, called with tensors of
        any batch and length; of the options it takes `target`, `workspace`, `shapes` and `backward`.
    shapes
        What a new batch or length costs. "exact": a plan of its own, built when it is met. "any": nothing, within the
        bounds of a class of shapes. "adaptive": the same, and plans are built in the background: a larger class serves
        until then, and a shape that comes back gets its exact plan, so earlier calls can change the last bits of a
        result. If no class serves a problem (``why_exact`` has the reason), each shape has its own plan.
    backward
        Which pass of a problem.
    target, mode, engine, knobs, selection, cache
        As for :func:`build`.
    workspace, check, stream
        As for :class:`~cudnn_backend_py.execution.executable.Executable`.

    Returns
    -------
    Executable
        Called with buffers, it runs the plan. Its ``plan`` is the :class:`~cudnn_backend_py.plans.plan.Plan` that
        :func:`build` returns.

    Raises
    ------
    EnvironmentNotReady
        ``no-gpu``; ``plan-without-device`` for a described target.
    UsageError
        ``shapes-of-a-graph`` for a graph with other shapes than its own; ``wrong-argument``.
    CudnnBackendError
        As :func:`build`.
    """
    from .executable import Executable

    if not isinstance(graph, Graph):
        from .any_shape import AnyShapeAttention

        return AnyShapeAttention(graph, shared_target(target), backward=backward, shapes=shapes, workspace=workspace)
    if shapes != "exact":
        raise UsageError(
            f"a graph has fixed shapes, so shapes={shapes!r} does not apply to it",
            code="shapes-of-a-graph",
            fix="give the attention problem: plan(attention.Attention(...), shapes='any')",
        )
    found = build(graph, target, mode=mode, engine=engine, knobs=knobs, selection=selection, cache=cache)
    return Executable(found, workspace=workspace, check=check, stream=stream)
