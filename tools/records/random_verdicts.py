"""Record verdicts on random graphs without a GPU: ``python -m tools.records.random_verdicts SUBJECT FILE``.

``engines`` checks every engine for graphs that the heuristics refuse, ``versions`` compares the outcomes of several
cuDNN versions, ``edges`` does so for graphs with edge sizes instead of random ones, and ``code`` reads the architecture
of built plans. With ``--processes``, several processes share the graphs. ``--help`` lists the options.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import cache, partial
from itertools import pairwise
from pathlib import Path
from typing import Any

from cudnn_backend_py.diagnose.judges import Judge, judge
from cudnn_backend_py.diagnose.query import Query
from cudnn_backend_py.diagnose.verdict import Outcome, Verdict
from cudnn_backend_py.errors import CudnnBackendError
from cudnn_backend_py.graph import Graph
from cudnn_backend_py.plans.candidate import EVERY_ENGINE
from cudnn_backend_py.plans.refusals import find_deepest_reason_among_configs
from cudnn_backend_py.system.version import Version, parse_version_numbers
from tools.campaign.edge_graphs import make_edge_case_graphs
from tools.campaign.graphs import GRAPH_FAMILIES, make_random_graph
from tools.records.transitions import explain_support_change

TARGETS = ("sm80", "sm89", "sm90", "sm100", "sm120")
ALL_TARGETS = ("sm75", "sm80", "sm86", "sm89", "sm90", "sm100", "sm103", "sm120", "sm121")
_OLDEST_VERSION = (9, 9, 0)
_VERDICT_TIME_LIMIT_S = 300.0
_KIND_OF_CHANGE = re.compile("rule|known issue|documented change|")


def make_random_graph_and_name(seed: int) -> tuple[str, Graph]:
    """Return a seeded random graph and its name; it has only operations that the oldest cuDNN version has."""
    families = [name for name in GRAPH_FAMILIES if name != "mode"]
    family = families[seed % len(families)]
    return f"{family} {seed}", make_random_graph(seed, family, version=_OLDEST_VERSION)


def _remove_numbers_from_cause(verdict: Verdict) -> str:
    """Return the first sentence of the cause without numbers, to count equal causes."""
    text = verdict.cause.headline if verdict.cause is not None else ""
    return re.sub(r"\d+", "N", text)[:120]


def check_engines_of_refused_graph(seed: int, targets: Sequence[str], versions: Sequence[str]) -> dict[str, Any]:
    """Check every engine for a graph on each target where the heuristics refuse it."""
    name, graph = make_random_graph_and_name(seed)
    version = versions[0] if versions else None
    outcomes, counts = Counter[str](), Counter[str]()
    found = []
    for target in targets:
        verdict = judge(Query(graph, target, version, causes=False))
        outcomes[f"{target} {verdict.outcome}"] += 1
        if verdict.outcome is not Outcome.NOT_SUPPORTED:
            continue
        query = Query(graph, target, version, causes=False, every_engine=True)
        every = judge(query, limit_s=_VERDICT_TIME_LIMIT_S)
        if not every.every_engine:
            judged = every.outcome is not Outcome.NOT_JUDGED
            counts[f"refused at the stage {every.stage}, before engines" if judged else "engines not judged"] += 1
            continue
        singly = re.search(r"; engine ([\d, ]+) one knob at a time", every.every_engine)
        engines_in_part = len(singly[1].split(",")) if singly else 0
        counts["refused graphs checked"] += 1
        counts["engines checked with all knob values"] += len(every.engines) - engines_in_part
        counts["engines checked one knob at a time"] += engines_in_part
        counts["configs"] += sum(check.configs for check in every.engines)
        counts["configs not checked"] += sum(check.unchecked for check in every.engines)
        tags = [one.tag for one in every.candidates if one.mode == EVERY_ENGINE and one.state == "supported"]
        if tags:
            found.append({"graph": name, "target": target, "configs": tags})
    return {"outcomes": outcomes, "refusals": counts, "found": found}


def make_edge_case_graph_and_name(number: int) -> tuple[str, Graph]:
    """Return the name and graph of an edge case by number."""
    return _list_edge_case_graphs_once()[number]


@cache
def _list_edge_case_graphs_once() -> list[tuple[str, Graph]]:
    return make_edge_case_graphs(_OLDEST_VERSION)


@cache
def _get_judge(version: str) -> Judge:
    """Return a judge for one version. It keeps its process; a shared judge keeps processes of only a few versions."""
    return Judge(limit_s=_VERDICT_TIME_LIMIT_S)


def compare_outcomes_of_versions(
    seed: int,
    targets: Sequence[str],
    versions: Sequence[str],
    make: Callable[[int], tuple[str, Graph]] = make_random_graph_and_name,
) -> dict[str, Any]:
    """Compare outcomes of successive cuDNN versions; return each change with its cause and explanation."""
    name, graph = make(seed)
    transitions, outcomes = [], Counter[str]()
    for target in targets:
        verdicts = {
            version: _get_judge(version).run_query(Query(graph, target, version, causes=False)) for version in versions
        }
        outcomes.update(f"{version} {verdict.outcome}" for version, verdict in verdicts.items())
        judged = [version for version in versions if verdicts[version].outcome is not Outcome.NOT_JUDGED]
        for old, new in pairwise(judged):
            if verdicts[old].supported == verdicts[new].supported:
                continue
            supporting, refusing = (old, new) if verdicts[old].supported else (new, old)
            refused = _get_judge(refusing).run_query(Query(graph, target, refusing))
            reason = find_deepest_reason_among_configs(refused.candidates)
            became = explain_support_change(
                graph, refused.sm, *(Version(*parse_version_numbers(one)) for one in (supporting, refusing))
            )
            transitions.append(
                {
                    "graph": name,
                    "target": target,
                    "old": old,
                    "new": new,
                    "change": "refused since" if supporting == old else "supported since",
                    "cause": _remove_numbers_from_cause(refused),
                    "reason": "" if reason is None else reason.statement,
                    "became": became,
                }
            )
    changes = Counter(f"{one['change']} {one['new']}: {one['became'] or 'not explained'}" for one in transitions)
    kinds = Counter(_KIND_OF_CHANGE.match(one["became"])[0] for one in transitions)  # type: ignore[index]
    return {
        "outcomes": outcomes,
        "transitions": len(transitions),
        "became": kinds,
        "changes": changes,
        "all": transitions,
    }


def check_architecture_of_kernels(seed: int, targets: Sequence[str], versions: Sequence[str]) -> dict[str, Any]:
    """Build a plan for a graph on one of the targets, and read the GPU architecture of its code."""
    name, graph = make_random_graph_and_name(seed)
    target = targets[seed % len(targets)]
    version = versions[0] if versions else None
    verdict = judge(Query(graph, target, version, causes=False, build=True), limit_s=_VERDICT_TIME_LIMIT_S)
    built = next((one for one in verdict.candidates if one.state == "built"), None)
    refused = [one for one in verdict.candidates if one.state == "cannot load"]
    cannot_load = [{"graph": name, "target": target, "config": one.tag} for one in refused]
    if built is None:
        state = "cannot load" if refused else f"no plan: {verdict.outcome}"
    else:
        code = "+".join(sorted({kernel.architecture for kernel in built.kernels or ()}))
        state = f"built: {code or 'no code in the plan'}"
    return {"built": int(built is not None), "plans": Counter([f"{target} {state}"]), "cannot load": cannot_load}


def _check_seeds_in_processes(
    check: Callable[[int], dict[str, Any]], seeds: Sequence[int], processes: int
) -> Iterator[Any]:
    """Yield the result of each seed in order, from a pool of processes if there are several."""
    if processes == 1:
        yield from map(check, seeds)
        return
    with ProcessPoolExecutor(processes, multiprocessing.get_context("spawn")) as pool:
        try:
            yield from pool.map(check, seeds)
        finally:
            pool.shutdown(cancel_futures=True)


def _add_result_to_record(record: dict[str, Any], part: dict[str, Any]) -> None:
    """Add the counts and lists of one graph's result (`part`) to the totals in `record`."""
    for key, value in part.items():
        if isinstance(value, Counter):
            record.setdefault(key, Counter()).update(value)
        else:
            record[key] = record.get(key, type(value)()) + value


_SUBJECTS: dict[str, tuple[Callable[..., dict[str, Any]], Sequence[str]]] = {
    "engines": (check_engines_of_refused_graph, TARGETS),
    "versions": (compare_outcomes_of_versions, TARGETS),
    "edges": (partial(compare_outcomes_of_versions, make=make_edge_case_graph_and_name), TARGETS),
    "code": (check_architecture_of_kernels, ALL_TARGETS),
}


def main() -> None:
    """Judge random graphs for the chosen subject, and write the record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("subject", choices=_SUBJECTS)
    parser.add_argument("file", type=Path)
    parser.add_argument("--count", type=int, default=200, help="number of graphs, or of plans for 'code'")
    parser.add_argument("--first", type=int, default=0, help="seed of the first graph")
    parser.add_argument("--target", action="append", help="described GPU; repeatable")
    parser.add_argument(
        "--version", action="append", default=[], help="installed cuDNN version; repeatable, oldest first"
    )
    parser.add_argument("--processes", type=int, default=1, help="number of processes that judge graphs")
    given = parser.parse_args()
    began = time.monotonic()
    check, targets = _SUBJECTS[given.subject]
    count = given.count * (10 if given.subject == "code" else 1)  # some graphs have no plan
    if given.subject == "edges":
        count = given.count = min(given.count, len(_list_edge_case_graphs_once()) - given.first)
    answer: dict[str, Any] = {}
    judge_graph = partial(check, targets=given.target or targets, versions=given.version)
    for part in _check_seeds_in_processes(judge_graph, range(given.first, given.first + count), given.processes):
        _add_result_to_record(answer, part)
        if answer.get("built") == given.count:
            break
    record = {
        "schema": "cudnn-backend-py/random-verdicts",
        "subject": given.subject,
        "cudnn": given.version
        or [judge(Query(make_random_graph_and_name(given.first)[1], "sm90", causes=False)).cudnn],
        "graphs": given.count,
        "first": given.first,
        "processes": given.processes,
        "seconds": round(time.monotonic() - began),
        **answer,
    }
    given.file.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    try:
        main()
    except CudnnBackendError as error:
        raise SystemExit(str(error)) from None
