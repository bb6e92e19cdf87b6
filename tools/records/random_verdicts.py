"""Record verdicts on random graphs without a GPU: ``python -m tools.records.random_verdicts SUBJECT FILE``.

``engines`` checks every engine for graphs that the heuristics refuse, ``versions`` compares the outcomes of several
cuDNN versions, and ``code`` reads the architecture of built plans. ``--help`` lists the options.
"""

from __future__ import annotations

import argparse
import json
import re
import time
from collections import Counter
from collections.abc import Iterator, Sequence
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


def make_random_graphs(count: int, first: int) -> Iterator[tuple[str, Graph]]:
    """Yield names and random graphs of each family in turn, with operations that the oldest version has."""
    families = [name for name in GRAPH_FAMILIES if name != "mode"]
    for seed in range(first, first + count):
        family = families[seed % len(families)]
        yield f"{family} {seed}", make_random_graph(seed, family, version=_OLDEST_VERSION)


def _remove_numbers_from_cause(verdict: Verdict) -> str:
    """Return the first sentence of the cause without numbers, to count equal causes."""
    text = verdict.cause.headline if verdict.cause is not None else ""
    return re.sub(r"\d+", "N", text)[:120]


def check_engines_of_refused_graphs(graphs: Sequence[tuple[str, Graph]], targets: Sequence[str]) -> dict[str, Any]:
    """Check every engine for graphs that heuristics refuse, on each target."""
    outcomes: Counter[str] = Counter()
    configs, found, engine_count = 0, [], Counter[int]()
    for name, graph in graphs:
        for target in targets:
            verdict = judge(Query(graph, target, causes=False))
            outcomes[f"{target} {verdict.outcome}"] += 1
            if verdict.outcome is not Outcome.NOT_SUPPORTED:
                continue
            every = judge(Query(graph, target, causes=False, every_engine=True), limit_s=_VERDICT_TIME_LIMIT_S)
            numbers = re.match(r"(?:all )?([\d,]+) configs of (\d+) engines", every.every_engine)
            if numbers is None:
                outcomes[f"{target} every engine not judged"] += 1
                continue
            configs += int(numbers[1].replace(",", ""))
            engine_count[int(numbers[2])] += 1
            tags = [one.tag for one in every.candidates if one.mode == EVERY_ENGINE and one.state == "supported"]
            if tags:
                found.append({"graph": name, "target": target, "configs": tags})
    return {"outcomes": outcomes, "refused graphs checked": engine_count.total(), "configs": configs, "found": found}


def compare_outcomes_of_versions(
    graphs: Sequence[tuple[str, Graph]], targets: Sequence[str], versions: Sequence[str]
) -> dict[str, Any]:
    """Compare outcomes between successive cuDNN versions; return changes with their cause and known issues."""
    transitions, judged = [], Counter[str]()
    for name, graph in graphs:
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


def check_architecture_of_kernels(
    graphs: Sequence[tuple[str, Graph]], targets: Sequence[str], most: int
) -> dict[str, Any]:
    """Build plans for supported graphs, up to ``most``, and read the GPU architecture of their code."""
    counts: Counter[str] = Counter()
    cannot_load = []
    for number, (name, graph) in enumerate(graphs):
        target = targets[number % len(targets)]
        verdict = judge(Query(graph, target, causes=False, build=True), limit_s=_VERDICT_TIME_LIMIT_S)
        built = next((one for one in verdict.candidates if one.state == "built"), None)
        refused = [one for one in verdict.candidates if one.state == "cannot load"]
        cannot_load += [{"graph": name, "target": target, "config": one.tag} for one in refused]
        if built is None:
            counts[f"{target} {'cannot load' if refused else 'no plan: ' + str(verdict.outcome)}"] += 1
            continue
        code = "+".join(sorted({kernel.architecture for kernel in built.kernels or ()}))
        counts[f"{target} built: {code or 'no code in the plan'}"] += 1
        if sum(count for key, count in counts.items() if " built: " in key) >= most:
            break
    return {"plans": counts, "cannot load": cannot_load}


def main() -> None:
    """Judge random graphs for the chosen subject, and write the record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("subject", choices=["engines", "versions", "code"])
    parser.add_argument("file", type=Path)
    parser.add_argument("--count", type=int, default=200, help="number of graphs, or of plans for 'code'")
    parser.add_argument("--first", type=int, default=0, help="seed of the first graph")
    parser.add_argument("--target", action="append", help="described GPU; repeatable")
    parser.add_argument(
        "--version", action="append", default=[], help="installed cuDNN version; repeatable, oldest first"
    )
    given = parser.parse_args()
    began = time.monotonic()
    if given.subject == "code":
        graphs = list(make_random_graphs(10 * given.count, given.first))
        answer = check_architecture_of_kernels(graphs, given.target or ALL_TARGETS, given.count)
    else:
        graphs = list(make_random_graphs(given.count, given.first))
        targets = given.target or TARGETS
        if given.subject == "engines":
            answer = check_engines_of_refused_graphs(graphs, targets)
        else:
            answer = compare_outcomes_of_versions(graphs, targets, given.version)
    record = {
        "schema": "cudnn-backend-py/random-verdicts",
        "subject": given.subject,
        "cudnn": given.version or [judge(Query(graphs[0][1], "sm90", causes=False)).cudnn],
        "graphs": given.count,
        "seconds": round(time.monotonic() - began),
        **answer,
    }
    given.file.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    try:
        main()
    except CudnnBackendError as error:
        raise SystemExit(str(error)) from None
