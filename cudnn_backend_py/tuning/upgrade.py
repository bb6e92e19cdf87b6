"""``time_changes``: run what another cuDNN changed by both versions, compare the numbers, and time them in turns."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from ..diagnose.judges import GPU
from ..diagnose.surveys.upgrade import Change, Times, Upgrade
from ..graph import Graph
from .trial.runner import Runner
from .trial.trial import Trial

__all__ = ["time_changes"]

_ROUNDS = 3  # of both versions, one after the other: the shortest time of each counts


def time_changes(found: Upgrade, graphs: Mapping[str, Graph], *, step: Callable[[str], object] = str) -> Upgrade:
    """Return a comparison with the times and numbers of what both versions support, but for plans of the same code.

    Parameters
    ----------
    found
        What :func:`~cudnn_backend_py.diagnose.surveys.upgrade.compare_versions` found, of which the target ``gpu`` is
        run.
    graphs
        The graphs by name.
    step
        Called with the graph that is run next.
    """
    old, new = found.places
    with Runner(version=old) as before, Runner(version=new) as after:

        def run(change: Change) -> Change:
            if change.target != GPU or change.same_code or not (change.old.supported and change.new.supported):
                return change
            step(change.graph)
            trials = [(before.run(graphs[change.graph]), after.run(graphs[change.graph])) for _ in range(_ROUNDS)]
            by_old, by_new = ([pair[side] for pair in trials] for side in (0, 1))
            times = Times(_shortest(by_old), _shortest(by_new), _worst(by_old), _worst(by_new))
            return replace(change, times=times)

        return replace(found, changes=tuple(map(run, found.changes)))


def _shortest(trials: list[Trial]) -> float | None:
    times = [item.warm.median_us for trial in trials for item in trial.configs if item.warm is not None]
    return min(times, default=None)


def _worst(trials: list[Trial]) -> str:
    return next((trial.state for trial in trials if trial.state != "right"), "right")
