"""Check exact remedies of random refused graphs: all their graphs are supported, and the results stay the same.

A round judges graphs on one target with one cuDNN version, some of them with an unusual feature. The package compares a
remedy with its graph before it reports it; here both are interpreted again with other data and, if that is fast enough,
with their real sizes.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from cudnn_backend_py import Graph, GraphError
from cudnn_backend_py.diagnose import Judge, Outcome, Query, whatif
from cudnn_backend_py.diagnose.remedy import Remedy
from cudnn_backend_py.graph import graph_to_json
from cudnn_backend_py.graph.guard import collect_error_reports
from cudnn_backend_py.graph.replace import replace_tensors, try_to_make_graph
from cudnn_backend_py.graph.strides import make_strides_in_order
from cudnn_backend_py.interpreter.compare import compare
from cudnn_backend_py.rewrite.change_sequence import find_change_sequence
from cudnn_backend_py.rewrite.dims import find_sets_of_equal_dims, resize_dims
from cudnn_backend_py.system.version import parse_version_numbers
from tests.support.randomly_changed_graphs import iterate_random_mutants
from tests.torture.harness import VERSIONS, BrokenGuarantee
from tools.campaign.graphs import make_random_graph

__all__ = ["run_random_round"]

GRAPHS_PER_ROUND = 24
TARGETS = ("sm80", "sm86", "sm89", "sm90", "sm100", "sm120")


def run_random_round(seed: int, folder: Path) -> Counter[str]:
    """Search for remedies of refused graphs with one cuDNN version on one target."""
    rng = random.Random(f"remedies {seed}")
    version, target = VERSIONS[seed % len(VERSIONS)], rng.choice(TARGETS)
    counts: Counter[str] = Counter()
    drawn = make_random_graphs(rng, version)
    with Judge() as judge:
        while counts["graphs"] < GRAPHS_PER_ROUND:
            graph = next(drawn)
            counts["graphs"] += 1
            question = Query(graph, target, version, causes=False)
            if judge.run_query(question).outcome is not Outcome.NOT_SUPPORTED:
                continue
            counts["refused"] += 1
            with collect_error_reports() as lines:
                found = whatif(graph, target, version=version, judge=judge, limit=8)
            if lines:
                raise _make_broken_guarantee(question, "\n".join(lines))
            for remedy in found:
                counts["remedies"] += 1
                counts += _check_remedy(judge, question, remedy, seed)
    return counts


def make_random_graphs(rng: random.Random, version: str | None) -> Iterator[Graph]:
    """Yield an endless stream of random graphs: valid ones, and small ones with unusual features."""
    numbers = None if version is None else parse_version_numbers(version)[:3]
    made = iterate_random_mutants(rng)
    while True:
        if rng.random() < 0.3:
            graph = next(made)
            if isinstance(graph, GraphError) or len(graph.ops) > 40:
                continue
        else:
            graph = make_random_graph(rng.randrange(1 << 30), version=numbers)  # type: ignore[arg-type]
            for _ in range(rng.randint(1, 2)):
                graph = _add_unusual_feature_to_graph(graph, rng)
        yield graph


def _add_unusual_feature_to_graph(graph: Graph, rng: random.Random) -> Graph:
    """Return the graph with a feature that kernels rarely support, or unchanged if the result would be invalid."""
    tensors = [tensor for tensor in graph.tensors if not tensor.virtual and not tensor.by_value]
    chosen = rng.sample(tensors, rng.randint(1, len(tensors)))
    what = rng.choice(("alignment", "order", "gaps", "size", "size"))
    if what == "size":
        classes = [
            one for one in dict.fromkeys(find_sets_of_equal_dims(graph).values()) if one.size > 1 and not one.fixed
        ]
        if not classes:
            return graph
        one = rng.choice(classes)
        return resize_dims(graph, [one], one.size + rng.choice((-1, 1, 2, 3, 4))) or graph
    new = {}
    for tensor in chosen:
        order = list(range(tensor.rank))
        rng.shuffle(order)
        fields = {
            "alignment": {"alignment": rng.choice((1, 2, 4))},
            "order": {"strides": make_strides_in_order(tensor.dims, order)},
            "gaps": {"strides": tuple(stride * 2 for stride in tensor.strides)},
        }[what]
        new[tensor.uid] = replace(tensor, **fields)  # type: ignore[arg-type]
    return try_to_make_graph(lambda: replace_tensors(graph, new)) or graph


def _check_remedy(judge: Judge, question: Query, remedy: Remedy, seed: int) -> Counter[str]:
    """Check that every graph of a remedy is supported, and that an exact remedy computes the same results."""
    for one in remedy.graphs:
        query = replace(question, graph=one, target=remedy.target, version=remedy.version)
        if not judge.run_query(query).supported:
            raise _make_broken_guarantee(question, f"{remedy.title}: cuDNN does not support {one.name!r}")
    if remedy.effect != "exact" or not remedy.members:
        return Counter({f"remedies, {remedy.kinds[0] if not remedy.members else remedy.effect}": 1})
    assert remedy.comparison is not None
    counts = Counter({"exact": 1, f"exact, of {len(remedy.steps)} steps and {len(remedy.graphs)} graphs": 1})
    counts += Counter({f"exact, {kind}": 1 for kind in remedy.kinds})
    solution = find_change_sequence(question.graph, remedy.kinds, remedy.steps, remedy.members)
    if solution is None or solution.graphs != remedy.graphs:
        raise _make_broken_guarantee(question, f"{remedy.title}: applying its steps does not give its graphs")
    if remedy.comparison.state == "not compared":
        return counts + Counter({"not compared": 1, f"not compared: {remedy.comparison.words[:60]}": 1})
    again = compare(question.graph, solution, seed + 1000, shrink=False)
    other = again.state == "not compared"
    if other:
        again = compare(question.graph, solution, seed + 2000)
    if again.state != "same":
        raise _make_broken_guarantee(question, f"{remedy.title}: {again.state}, {again.words}")
    return counts + Counter({"compared again, same": 1, f"compared again, {'other data' if other else 'own sizes'}": 1})


def _make_broken_guarantee(question: Query, what: str) -> BrokenGuarantee:
    query = f"{question.target}, cuDNN {question.version}"
    return BrokenGuarantee(f"{what}\n{query}\n{json.dumps(graph_to_json(question.graph))}")
