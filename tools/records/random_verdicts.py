"""Record verdicts on random graphs without a GPU: ``python -m tools.records.random_verdicts SUBJECT FILE``.

``engines`` checks every engine for graphs that the heuristics refuse, ``versions`` compares the outcomes of several
cuDNN versions, and ``code`` reads the architecture of built plans. With ``--processes``, several processes share the
graphs. ``--help`` lists the options.
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
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

from cudnn_backend_py.diagnose.judges import judge
from cudnn_backend_py.diagnose.query import Query
from cudnn_backend_py.diagnose.verdict import Outcome, Verdict
from cudnn_backend_py.errors import CudnnBackendError
from cudnn_backend_py.graph import Graph
from cudnn_backend_py.plans.candidate import EVERY_ENGINE
from tools.campaign.graphs import GRAPH_FAMILIES, make_random_graph

TARGETS = ("sm80", "sm89", "sm90", "sm100", "sm120")
ALL_TARGETS = ("sm75", "sm80", "sm86", "sm89", "sm90", "sm100", "sm103", "sm120", "sm121")
_OLDEST_VERSION = (9, 9, 0)
_VERDICT_TIME_LIMIT_S = 300.0


def make_named_graph(seed: int) -> tuple[str, Graph]:
    """Return a name and a random graph of a family that depends on the seed, with operations of the oldest version."""
    families = [name for name in GRAPH_FAMILIES if name != "mode"]
    family = families[seed % len(families)]
    return f"{family} {seed}", make_random_graph(seed, family, version=_OLDEST_VERSION)


def _remove_numbers_from_cause(verdict: Verdict) -> str:
    """Return the first sentence of the cause without numbers, to count equal causes."""
    text = verdict.cause.headline if verdict.cause is not None else ""
    return re.sub(r"\d+", "N", text)[:120]


def check_engines_of_refused_graph(seed: int, targets: Sequence[str], versions: Sequence[str]) -> dict[str, Any]:
    """Check every engine for a graph on each target where the heuristics refuse it."""
    name, graph = make_named_graph(seed)
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


def compare_outcomes_of_versions(seed: int, targets: Sequence[str], versions: Sequence[str]) -> dict[str, Any]:
    """Compare outcomes between successive cuDNN versions; return changes with their cause and known issues."""
    name, graph = make_named_graph(seed)
    transitions, judged = [], Counter[str]()
    for target in targets:
        verdicts = {version: judge(Query(graph, target, version)) for version in versions}
        judged.update(f"{version} {verdict.outcome}" for version, verdict in verdicts.items())
        for old, new in pairwise(versions):
            before, after = verdicts[old], verdicts[new]
            if Outcome.NOT_JUDGED in (before.outcome, after.outcome) or before.supported == after.supported:
                continue
            refused = after if before.supported else before
            transitions.append(
                {
                    "graph": name,
                    "target": target,
                    "old": old,
                    "new": new,
                    "change": "refused since" if before.supported else "supported since",
                    "cause": _remove_numbers_from_cause(refused),
                    "known issues of the other version": [
                        text.split(":")[0][:80] for text in (before if before.supported else after).hazards
                    ],
                }
            )
    changes = Counter(f"{one['change']} {one['new']}: {one['cause']}" for one in transitions)
    return {"outcomes": judged, "transitions": len(transitions), "changes": changes, "all": transitions}


def check_architecture_of_kernels(seed: int, targets: Sequence[str], versions: Sequence[str]) -> dict[str, Any]:
    """Build a plan for a graph on one of the targets, and read the GPU architecture of its code."""
    name, graph = make_named_graph(seed)
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


def _judge_seeds(check: Callable[[int], dict[str, Any]], seeds: Sequence[int], processes: int) -> Iterator[Any]:
    """Yield the result of each seed in order, from a pool of processes if there are several."""
    if processes == 1:
        yield from map(check, seeds)
        return
    with ProcessPoolExecutor(processes, multiprocessing.get_context("spawn")) as pool:
        try:
            yield from pool.map(check, seeds)
        finally:
            pool.shutdown(cancel_futures=True)


def _add_result(record: dict[str, Any], part: dict[str, Any]) -> None:
    """Add the counts and lists of one graph to those of a record."""
    for key, value in part.items():
        if isinstance(value, Counter):
            record.setdefault(key, Counter()).update(value)
        else:
            record[key] = record.get(key, type(value)()) + value


_SUBJECTS = {
    "engines": (check_engines_of_refused_graph, TARGETS),
    "versions": (compare_outcomes_of_versions, TARGETS),
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
    answer: dict[str, Any] = {}
    judge_graph = partial(check, targets=given.target or targets, versions=given.version)
    for part in _judge_seeds(judge_graph, range(given.first, given.first + count), given.processes):
        _add_result(answer, part)
        if answer.get("built") == given.count:
            break
    record = {
        "schema": "cudnn-backend-py/random-verdicts",
        "subject": given.subject,
        "cudnn": given.version or [judge(Query(make_named_graph(given.first)[1], "sm90", causes=False)).cudnn],
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
