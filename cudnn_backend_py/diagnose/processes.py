"""Processes that judge graphs; one can be started before its first query is known.

This module imports little, so that a process is started early and imports what judging needs meanwhile.
"""

from __future__ import annotations

import contextlib
from typing import Self

from ..system.child import Child
from ..versions.judging_environment import JudgingEnvironment

__all__ = ["JudgingProcesses"]

_SERVER_FUNCTION = f"{__package__}.judging_process:serve_judge"
_HIDE_GPU_VARIABLES = {"CUDA_VISIBLE_DEVICES": ""}  # of processes that are queried about described GPUs
_MAX_IDLE_PROCESSES = 4  # of other setups than the last that are kept


class JudgingProcesses:
    """Idle judging processes, shared by threads; leaving the context manager ends them."""

    def __init__(self) -> None:
        self.idle: dict[tuple[JudgingEnvironment, bool], list[Child]] = {}  # by setup, and whether they see a GPU

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()

    def start(self, setup: JudgingEnvironment, *, sees_gpu: bool) -> None:
        """Start a process before its first query is known; a failed start raises at that query."""
        with contextlib.suppress(Exception):
            self.idle.setdefault((setup, sees_gpu), []).append(_start_process(setup, sees_gpu))

    def take(self, setup: JudgingEnvironment, *, sees_gpu: bool) -> Child:
        """Return a process that no other thread uses; a new one if none is idle.

        Raises
        ------
        EnvironmentNotReady
            ``cudnn-files-changed``, ``child-not-started``.
        """
        idle = self.idle.setdefault((setup, sees_gpu), [])
        while (child := _take_idle_process(idle)) is not None:
            if child.is_usable:
                return child
            child.end()  # died since, or belongs to the parent of a forked process
        setup.check()
        return _start_process(setup, sees_gpu)

    def put_back(self, child: Child, setup: JudgingEnvironment, *, sees_gpu: bool) -> None:
        """Keep a process for the next query; end one with another setup if there are too many."""
        used = self.idle.setdefault((setup, sees_gpu), [])
        used.append(child)
        others = [idle for idle in list(self.idle.values()) if idle is not used]  # each has cuDNN in memory
        for idle in others[: max(0, sum(map(len, others)) - _MAX_IDLE_PROCESSES)]:
            if (other := _take_idle_process(idle)) is not None:
                other.end()

    def kill(self) -> None:
        """Kill the idle processes without waiting until they have ended; :meth:`close` waits."""
        for idle in list(self.idle.values()):
            for child in list(idle):
                child.kill()

    def close(self) -> None:
        """End the idle processes; the next query starts new ones."""
        self.kill()
        idle, self.idle = self.idle, {}
        for child in [child for children in idle.values() for child in children]:
            child.end()


def _start_process(setup: JudgingEnvironment, sees_gpu: bool) -> Child:
    return Child.start(_SERVER_FUNCTION, {**setup.environment(), **({} if sees_gpu else _HIDE_GPU_VARIABLES)})


def _take_idle_process(idle: list[Child]) -> Child | None:
    try:
        return idle.pop()
    except IndexError:
        return None
