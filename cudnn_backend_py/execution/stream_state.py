"""State kept per stream between calls: a handle, a workspace, variant packs."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Protocol

from ..errors import EnvironmentNotReady
from ..native import Handle
from ..native.cuda import on_device
from ..native.fast_call import NEEDS_PYTHON, HandleState, Launch, PlanCallWithTuple
from ..native.launch import Launcher
from ..plans.plan import Plan

__all__ = ["StreamState", "ThreadHandle", "get_live_handle", "get_thread_handle"]


def get_live_handle(plan: Plan) -> Handle:
    """Return the handle of the GPU that a plan runs on.

    Raises
    ------
    EnvironmentNotReady
        ``plan-without-device`` for a plan of a described target.
    """
    if plan.target.handle is None:
        raise EnvironmentNotReady(
            f"this plan was built for the described target {plan.target.name}, on which plans cannot run",
            code="plan-without-device",
            fix="save it and load it on a machine with the GPU, or build it there with target None",
        )
    return plan.target.handle


class ThreadHandle:
    """The handle of one thread on one GPU; streams share it, as a handle takes megabytes of GPU memory."""

    def __init__(self, plan: Plan, device: int) -> None:
        with on_device(device):
            self.handle = Handle(on=plan.target.library)
            self.state = HandleState.from_handle(self.handle.pointer)
        self.context = int(self.state.context)


_thread_state = threading.local()


def get_thread_handle(plan: Plan) -> ThreadHandle:
    handle = plan.target.handle
    assert handle is not None
    _ = handle.owner  # says so after a fork, or if the target was closed
    held: dict[int | None, ThreadHandle] = _thread_state.__dict__.setdefault("handles", {})
    if handle.device not in held:
        held[handle.device] = ThreadHandle(plan, handle.device or 0)
    return held[handle.device]


class StreamStateExecutable(Protocol):
    """The attributes and methods that a stream's state uses of its executable."""

    plan: Plan
    uids: tuple[int, ...]
    may_need_context_switch: bool

    def get_extra_addresses(self, base: int) -> tuple[int, ...]: ...

    def get_plan_workspace(self, base: int) -> int: ...


class StreamState:
    """One thread's state to run one executable on one stream: a handle, variant packs, a workspace."""

    def __init__(self, owner: StreamStateExecutable, stream: int, base: int) -> None:
        self.holder = get_thread_handle(owner.plan)
        self.stream = stream
        self.launcher = Launcher(owner.plan.descriptor, owner.uids)
        self.find = self.launcher.find
        self.launch = Launch(
            owner.plan.target.library,
            self.holder.state,
            stream,
            owner.plan.descriptor.pointer,
            may_need_context_switch=owner.may_need_context_switch,
        )
        self.fast: PlanCallWithTuple | None = None
        self.replace_workspace(owner, base)
        self.call: Callable[[tuple[Any, ...]], int] = report_python_call_needed

    def replace_workspace(self, owner: StreamStateExecutable, base: int) -> None:
        """Use the workspace at `base` for the next launches."""
        self.base = base
        self.extra_addresses = owner.get_extra_addresses(base)
        self.workspace = owner.get_plan_workspace(base)
        if self.fast is not None:
            self.fast.replace_internal_addresses(self.extra_addresses, self.workspace)


def report_python_call_needed(_buffers: tuple[Any, ...]) -> int:
    return NEEDS_PYTHON
