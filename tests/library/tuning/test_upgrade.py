"""An upgrade report lists the plans to time; for a described GPU, no plan is timed."""

from __future__ import annotations

from dataclasses import replace

from cudnn_backend_py.diagnose.surveys.upgrade import Effect, compare_versions
from cudnn_backend_py.graph.attention import sdpa_forward
from cudnn_backend_py.tuning.upgrade import select_changes_to_time
from tests.support.child import OLDER_VERSION
from tools.campaign.graphs import make_random_graph


def test_upgrade_times_only_plans_with_changed_kernel_code() -> None:
    """Sum, norm and resample have equal code in both versions; only the engine number of the resample changed."""
    graphs = {
        "sum": make_random_graph(910003, "reduction", version=(9, 14, 0)),
        "attention": sdpa_forward(batch=2, heads=4, seq_q=256, head_dim=64),
        "norm": make_random_graph(910021, "norm", version=(9, 14, 0)),
        "odd": sdpa_forward(batch=2, heads=4, seq_q=256, head_dim=20),
        "resample": make_random_graph(910024, "resample", version=(9, 14, 0)),
    }
    found = compare_versions(graphs, ["a100"], OLDER_VERSION, "default", progress=False)
    assert select_changes_to_time(found) == []  # of the GPU of this machine
    here = replace(found, changes=tuple(replace(one, target="gpu") for one in found.changes))
    assert [one.graph for one in select_changes_to_time(here)] == ["attention"]
    by = {one.graph: one for one in here.changes}
    assert {name for name, one in by.items() if one.has_same_code} == {"sum", "norm", "resample"}
    assert (by["sum"].effect, by["norm"].effect) == (Effect.UNCHANGED, Effect.UNCHANGED)
    assert [item.what for item in by["resample"].differences] == ["configs", "first plan"]
    old = by["sum"].old
    unreported = replace(old, candidates=tuple(replace(one, kernels=None) for one in old.candidates))
    hidden = replace(here, changes=(replace(by["sum"], old=unreported, new=unreported), by["norm"]))
    assert [one.graph for one in select_changes_to_time(hidden)] == ["sum"]
