"""An upgrade comparison runs only plans that changed; old and new version are both this process's cuDNN."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from cudnn_backend_py.diagnose import Candidate, Query, Verdict, judge
from cudnn_backend_py.diagnose.surveys.upgrade import Change, Upgrade
from cudnn_backend_py.graph.attention import sdpa_forward
from cudnn_backend_py.tuning.upgrade import time_changed_graphs


def remove_kernel_code(candidate: Candidate) -> Candidate:
    return replace(candidate, kernels=None)


def test_upgrade_runs_only_plans_with_different_kernel_code() -> None:
    graph = sdpa_forward(batch=2, heads=4, seq_q=256, head_dim=64)
    verdict: Verdict = judge(Query(graph, "gpu", build=True))
    assert verdict.supported
    hidden = replace(verdict, candidates=tuple(map(remove_kernel_code, verdict.candidates)))
    same, open_one = Change("same", "gpu", verdict, verdict), Change("open", "gpu", hidden, hidden)
    run: list[object] = []
    found = time_changed_graphs(
        Upgrade("old", "new", (None, None), (same, open_one)), {"same": graph, "open": graph}, step=run.append
    )
    times = found.changes[1].times
    assert times is not None
    assert (times.old_state, times.new_state) == ("right", "right")
    assert None not in (times.old_us, times.new_us)
    if same.has_same_code:
        assert found.changes[0].times is None
        assert set(run) == {"open"}


def test_graphs_beyond_the_time_limit_are_listed_and_not_run() -> None:
    graph = sdpa_forward(batch=2, heads=4, seq_q=256, head_dim=64)
    verdict = judge(Query(graph, "gpu", build=True))
    hidden = replace(verdict, candidates=tuple(map(remove_kernel_code, verdict.candidates)))
    changes = tuple(Change(name, "gpu", hidden, hidden) for name in "ab")
    progress: list[Upgrade] = []
    upgrade = Upgrade("old", "new", (None, None), changes)

    def record_progress(so_far: Callable[[], Upgrade]) -> None:
        progress.append(so_far())

    none = time_changed_graphs(upgrade, dict.fromkeys("ab", graph), until=0.0, keep=record_progress)
    assert (none.changes, none.untimed_graphs, progress) == (changes, ("a", "b"), [])
    found = time_changed_graphs(upgrade, dict.fromkeys("ab", graph), keep=record_progress)
    assert progress[0].untimed_graphs == ("b",)
    assert len(progress) >= 4  # each graph timed and compared; apparent improvements are timed again
    assert not any(one.untimed_graphs for one in progress[1:])
    assert {one.times.old_state for one in progress[1].changes if one.times} == {"not compared"}
    assert {one.times.old_state for one in found.changes if one.times} == {"right"}
