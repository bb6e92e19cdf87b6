"""Time the engine configs of a graph on the GPU, check that results agree, and cache the fastest with its timings."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from numpy.typing import NDArray

from ..errors import CudnnBackendError, CudnnStatusError, EnvironmentNotReady, UsageError
from ..execution.run import VariantPack
from ..execution.timing import rotate_items
from ..generated.enums import HeurMode
from ..graph import Graph
from ..plans.build import forget_plans, shared_target
from ..plans.cache import PlanCache, default_cache, make_plan_key
from ..plans.engine import EngineConfig, OperationGraph, heur_mode
from ..plans.neighbours import find_neighbouring_configs
from ..plans.plan import Plan, build_plan
from ..plans.select import Selection, candidates, make_cache_key_options_of_tuned_plan, make_nothing_selected_error
from ..printable import format_in_angle_brackets
from ..target import Target
from .agreement import Difference, compare, get_tolerance
from .statistics import (
    MIN_ROUNDS,
    CacheState,
    TimeBudget,
    Timing,
    choose_fastest_candidate,
    find_slow_candidates,
    make_timing_table,
)
from .timing_buffers import TimingBuffers

__all__ = ["Tuned", "autotune", "tune"]

SCHEMA, SCHEMA_VERSION = "cudnn-backend-py/tuning", 1
Progress = Callable[[str, float], None]
MAX_ROUNDS, WARM_UP_ROUNDS = 60, 2
CHECKING_BUDGET_SHARE = 0.2  # share of the budget at which requesting configs ends
BUILDING_BUDGET_SHARE = 0.6  # share at which building and running end


@dataclass
class _Candidate:
    config: EngineConfig
    state: str = "late"  # then "failed", "different", "timed"
    reason: str = "the time budget ended before this config was tried"
    plan: Plan | None = None
    pack: VariantPack | None = None
    build_s: float | None = None
    differences: dict[str, Difference] = field(default_factory=dict)
    times: dict[CacheState, list[float]] = field(default_factory=lambda: {"cold": [], "warm": []})

    def discard(self, state: str, reason: str) -> None:
        self.state, self.reason, self.pack = state, reason, None
        if self.plan is not None:
            self.plan.close()
            self.plan = None

    def time_plan_once(self, stage: TimingBuffers) -> None:
        """Time the plan once with a cold L2 cache, and once more right after with a warm one."""
        assert self.plan is not None
        assert self.pack is not None
        cold, warm = stage.time_runs(self.plan, self.pack)
        self.times["cold"].append(cold)
        self.times["warm"].append(warm)

    def summarize_times(self) -> dict[CacheState, Timing]:
        return {state: Timing.from_times(times) for state, times in self.times.items()}

    def to_dict(self) -> dict[str, Any]:
        """Return the candidate and its results as plain data."""
        plain: dict[str, Any] = {"tag": self.config.tag, "mode": self.config.origin, "state": self.state}
        if self.reason:
            plain["reason"] = self.reason
        if self.build_s is not None:
            plain["build_s"] = round(self.build_s, 4)
        if self.plan is not None:
            plain["workspace_bytes"] = self.plan.workspace_bytes
        if self.differences:
            plain["differences"] = {
                name: {key: value if math.isfinite(value) else None for key, value in asdict(difference).items()}
                for name, difference in self.differences.items()
            }
        if self.times["cold"]:
            plain |= {state: asdict(timing) for state, timing in self.summarize_times().items()}
        return plain


def _build_and_compare_candidates(
    stage: TimingBuffers,
    all_of_them: list[_Candidate],
    budget: TimeBudget,
    tolerance: float | Mapping[str, float] | None,
    report: Progress,
) -> list[_Candidate]:
    """Build the candidates, run each once, and keep those with the results of the first one."""
    ready: list[_Candidate] = []
    first: dict[str, NDArray[Any]] = {}
    longest = 0.0
    for index, candidate in enumerate(all_of_them):
        if ready and not budget.has_time_for(longest, BUILDING_BUDGET_SHARE):
            break
        report(f"building {candidate.config.tag}", BUILDING_BUDGET_SHARE * index / len(all_of_them))
        began = time.perf_counter()
        try:
            candidate.plan = build_plan(candidate.config)
            candidate.build_s = time.perf_counter() - began
            candidate.pack = stage.pack(candidate.plan)
            results = stage.run_and_read(candidate.plan, candidate.pack)
        except CudnnStatusError as error:
            candidate.discard("failed", f"{error.headline}: {error.last_error.strip() or 'no last-error text'}")
            continue
        except CudnnBackendError as error:
            if error.code != "cuda-driver":
                raise
            raise CudnnBackendError(
                f"engine config {candidate.config.tag} failed on the GPU: {error.headline}",
                code="tuning-candidate-crashed",
                cause="the CUDA context of this process may be lost",
                fix="start a new process, without engines=True or with a selection that excludes this config",
            ) from error
        longest = max(longest, time.perf_counter() - began)
        first = first or results
        if reason := _describe_different_results(stage.graph, candidate, first, results, tolerance):
            candidate.discard("different", reason)
            continue
        candidate.state, candidate.reason = "timed", ""
        ready.append(candidate)
    return ready


def _describe_different_results(
    graph: Graph,
    candidate: _Candidate,
    first: Mapping[str, NDArray[Any]],
    results: Mapping[str, NDArray[Any]],
    tolerance: float | Mapping[str, float] | None,
) -> str | None:
    """Describe how a candidate's results differ from the first candidate's beyond tolerance; None if they agree."""
    if first is results:
        return None
    whys = []
    for tensor in {tensor.uid: tensor for tensor in graph.outputs}.values():
        difference = compare(first[tensor.name], results[tensor.name], tensor.data_type)
        candidate.differences[tensor.name] = difference
        if why := difference.describe_excess(get_tolerance(tensor, tolerance)):
            whys.append(f"{tensor.name}: {why}")
    return "; ".join(whys) or None


def _time_candidates_in_rounds(
    stage: TimingBuffers, ready: list[_Candidate], budget: TimeBudget, report: Progress
) -> int:
    """Time the candidates in rounds until budget or rounds are used up; return the number of rounds."""
    for candidate in ready:
        for _ in range(WARM_UP_ROUNDS):
            candidate.time_plan_once(stage)
        candidate.times = {"cold": [], "warm": []}
    racing, rounds, longest = list(ready), 0, 0.0
    while rounds < MAX_ROUNDS and (rounds == 0 or budget.has_time_for(longest)):
        began = time.perf_counter()
        for candidate in rotate_items(racing, rounds):
            candidate.time_plan_once(stage)
        longest = max(longest, time.perf_counter() - began)
        rounds += 1
        report(
            f"round {rounds} of {MAX_ROUNDS}, {len(racing)} candidates",
            BUILDING_BUDGET_SHARE + 0.4 * rounds / MAX_ROUNDS,
        )
        if rounds == MIN_ROUNDS:
            out = find_slow_candidates(
                {item.config.tag: item.summarize_times() for item in racing}, racing[0].config.tag
            )
            racing = [item for item in racing if item.config.tag not in out]
    return rounds


@dataclass(frozen=True, repr=False)
class Tuned:
    """The fastest plan of a graph, and the measurements that show it, as plain data."""

    plan: Plan
    evidence: dict[str, Any] = field(repr=False)

    def __repr__(self) -> str:
        return format_in_angle_brackets(f"Tuned {self.gain:.2f} times the first choice: {self.plan!r}")

    def _repr_html_(self) -> str | None:
        from ..diagnose.report.notebook import render_tables_for_notebook

        return render_tables_for_notebook(make_timing_table(self.evidence))

    @property
    def gain(self) -> float:
        """The speedup compared with the heuristics' first choice; 1.0 if that is the fastest."""
        return float(self.evidence["gain"])


def autotune(
    graph: Graph,
    target: Target | str | None = None,
    *,
    buffers: Mapping[str | int, Any] | None = None,
    modes: Sequence[HeurMode | str] = ("A", "B", "FALLBACK"),
    engines: bool = False,
    max_candidates: int = 32,
    budget_s: float = 30.0,
    tolerance: float | Mapping[str, float] | None = None,
    by: CacheState = "cold",
    cache: bool | PlanCache = True,
    progress: bool | Progress = False,
    selection: Selection | None = None,
) -> Tuned:
    """Find the fastest plan of a graph on the GPU of this process.

    Every candidate runs once on the same inputs; those whose results differ from the first's are discarded. The
    others are timed between CUDA events in interleaved rounds, each right after a buffer larger than the L2 cache
    was written (cold) and once more (warm). The heuristics' first choice stays unless another beats it beyond the
    spread of both.

    Parameters
    ----------
    graph, target
        The graph, and a live target (the GPU of this process if not given).
    buffers
        Device buffers by name or uid, as for :func:`~cudnn_backend_py.execution.variant_pack`; outputs among them are
        overwritten. What is not given is made up: see :func:`~cudnn_backend_py.tuning.inputs.make_missing_inputs`.
    modes
        Heuristics modes whose configs are tried, in this order; they replace those of `selection`.
    engines
        Also try all engines with knob values near those of the heuristics' configs. They pass cuDNN's check, but
        no one proposed them: a kernel that fails takes the CUDA context with it.
    max_candidates
        The most configs tried.
    budget_s
        Seconds it may take; one build that has begun, and one round of timing, are finished.
    tolerance
        Largest relative Frobenius norm of a difference, for all outputs or by name;
        :data:`~cudnn_backend_py.tuning.agreement.TOLERANCES` by data type if not given.
    by
        Whether times with a cold or a warm L2 cache decide. The winner is not slower in the other.
    cache
        Put the winner with its evidence into the default plan cache, or the one given, for ``plan(...)`` to find.
    progress
        True for a progress bar, or a function of a text and the share that is done.
    selection
        What the configs may need and must promise.

    Raises
    ------
    EnvironmentNotReady
        ``tuning-without-device`` for a described target, ``no-gpu``.
    NothingSelected
        If no config is left to try.
    UsageError
        ``tuning-option``, ``tuning-input``, and what buffers may be refused for.
    CudnnBackendError
        ``tuning-failed`` if no candidate could be built; ``tuning-candidate-crashed``.
    """
    _check_options(max_candidates, budget_s, by)
    budget = TimeBudget(budget_s)
    instead = "tune on the GPU itself; for a described target select(...) or `build` chooses without timing"
    try:
        live = shared_target(target)
    except EnvironmentNotReady as error:
        if error.code != "no-gpu":
            raise
        said = "there is no GPU in this process, and plans are timed on one"
        raise EnvironmentNotReady(said, code=error.code, fix=instead) from None
    if not live.is_live:
        raise EnvironmentNotReady(
            f"{live.name} is a described target, but plans can only be timed on a GPU",
            code="tuning-without-device",
            fix=instead,
        )
    wanted = replace(selection or Selection(), modes=tuple(map(heur_mode, modes)))
    tried, refused = _gather_candidates(OperationGraph(graph, live), wanted, engines, max_candidates, budget)
    stage = TimingBuffers(graph, live, buffers)
    try:
        from ..terminal import progress_bar  # imports rich

        with progress_bar(1.0, "asking cuDNN", shown=progress is True, still=True) as (step, _):
            report = progress if callable(progress) else lambda text, done: step(done, text)
            ready = _build_and_compare_candidates(stage, tried, budget, tolerance, report)
            if not ready:
                raise CudnnBackendError(
                    f"none of {len(tried)} engine configs of {graph.name!r} could be built and run",
                    code="tuning-failed",
                    cause="\n".join(f"{item.config.tag}: {item.reason}" for item in tried),
                )
            rounds = _time_candidates_in_rounds(stage, ready, budget, report)
    finally:
        stage.close()
    timings = {item.config.tag: item.summarize_times() for item in ready}
    first = ready[0].config.tag
    chosen = choose_fastest_candidate(timings, first, by)
    evidence = {
        "schema": SCHEMA,
        "version": SCHEMA_VERSION,
        "graph": graph.name,
        "cudnn": live.library.build_text,
        "device": live.profile.title,
        "sm": live.sm,
        "made_up_inputs": not buffers,
        "first": first,
        "winner": chosen,
        "by": by,
        "gain": timings[first][by].median_us / timings[chosen][by].median_us,
        "rounds": rounds,
        "budget_s": budget_s,
        "seconds": round(budget.spent_s, 3),
        "l2_bytes": stage.l2_bytes,
        "candidates": [item.to_dict() for item in tried] + refused,
    }
    plan = _keep_fastest_plan(chosen, ready)
    _cache_plan(graph, live, plan, evidence, cache, selection)
    return Tuned(plan, evidence)


def _keep_fastest_plan(tag: str, ready: list[_Candidate]) -> Plan:
    """Return the plan of the fastest candidate and close the plans of the others."""
    kept = None
    for item in ready:
        item.pack = None
        assert item.plan is not None
        if item.config.tag == tag:
            kept = item.plan
        else:
            item.plan.close()
    assert kept is not None
    return kept


def _check_options(max_candidates: int, budget_s: float, by: str) -> None:
    for name, value in (("max_candidates", max_candidates), ("budget_s", budget_s)):
        if not value > 0:
            raise UsageError(f"{name} must be above 0, got {value!r}", code="tuning-option")
    if by not in ("cold", "warm"):
        raise UsageError(f"by must be 'cold' or 'warm', got {by!r}", code="tuning-option")


def _gather_candidates(
    question: OperationGraph, wanted: Selection, engines: bool, limit: int, budget: TimeBudget
) -> tuple[list[_Candidate], list[dict[str, Any]]]:
    """Return the engine configs to time, most promising first, and a record of the refused ones."""
    found = candidates(question, wanted)
    tried = [_Candidate(config) for config in found.configs]
    if engines and not wanted.knobs and wanted.engine is None:
        for config in find_neighbouring_configs(
            question, found.configs, wanted, lambda: budget.has_time_for(0, CHECKING_BUDGET_SHARE)
        ):
            if len(tried) >= limit:
                break
            tried.append(_Candidate(config))
    if not tried:
        raise make_nothing_selected_error(question, wanted, found)
    refused = [
        {"tag": item.tag, "mode": item.mode, "state": "refused", "reason": item.reason} for item in found.refused
    ]
    return tried[:limit], refused


def _cache_plan(
    graph: Graph,
    target: Target,
    plan: Plan,
    evidence: dict[str, Any],
    cache: bool | PlanCache,
    selection: Selection | None,
) -> None:
    if cache is False:
        return
    kept = default_cache() if cache is True else cache
    if kept is not None and target.profile.properties.get("multiProcessorCount"):  # before cuDNN 9.8 it is not known
        kept.put(make_plan_key(graph, target, make_cache_key_options_of_tuned_plan(selection, target)), plan, evidence)
        forget_plans()  # what this process built untuned would be found before it


# For people


def tune(graph: Graph, *, json_path: str | None = None, **options: Any) -> Tuned:
    """Tune a graph for the command ``cudnn-backend plan tune``, with a progress bar and a table on standard output.

    Parameters
    ----------
    json_path
        File for the evidence as JSON.
    options
        As for :func:`autotune`.
    """
    import json
    from pathlib import Path

    from ..terminal import open_console

    tuned = autotune(graph, **{"progress": True} | options)
    if json_path is not None:
        Path(json_path).write_text(json.dumps(tuned.evidence, indent=1) + "\n", encoding="utf-8")
    console = open_console()
    console.print(make_timing_table(tuned.evidence))
    same = tuned.evidence["winner"] == tuned.evidence["first"]
    verdict = "the heuristics' first choice stays" if same else f"{tuned.gain:.3f} x as fast as the first choice"
    console.print(f"{tuned.evidence['winner']}: {verdict} ({tuned.evidence['rounds']} rounds)")
    return tuned
