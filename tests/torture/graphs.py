"""Judge random graphs of every kind of operation: each gets a verdict, even if cuDNN or a rule of the package fails.

A round judges about forty graphs for described GPUs with one cuDNN version. Checks without cuDNN (lint, known issues,
changes) also run in this process.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from pathlib import Path

from cudnn_backend_py import DescriptorType, Graph, GraphError
from cudnn_backend_py.diagnose import Judge, Outcome, Query, Verdict, lint, render_text, whatif
from cudnn_backend_py.diagnose.report.html import render_verdict_html
from cudnn_backend_py.graph import graph_to_json
from cudnn_backend_py.graph.guard import collect_error_reports
from cudnn_backend_py.graph.replace import iterate_all_ops
from cudnn_backend_py.known_issues import find_known_issues
from cudnn_backend_py.rewrite.changes import iterate_changes
from cudnn_backend_py.target import find_profile
from tests.support.randomly_changed_graphs import iterate_random_mutants
from tests.torture.harness import VERSIONS, BrokenGuarantee

__all__ = ["run_random_round"]

GRAPHS_PER_ROUND = 60
TARGETS = ("sm75", "sm80", "sm86", "sm89", "sm90", "sm100", "sm103", "sm120")
QUERY_LIMIT_S = 60.0


def run_random_round(seed: int, folder: Path) -> Counter[str]:
    """Judge graphs with one cuDNN version; in every tenth round, judge all graphs in two processes."""
    rng = random.Random(seed)
    version = VERSIONS[seed % len(VERSIONS)]
    counts: Counter[str] = Counter()
    made = iterate_random_mutants(rng)
    with Judge(limit_s=QUERY_LIMIT_S) as judge, Judge(limit_s=QUERY_LIMIT_S) as other:
        while counts["graphs"] < GRAPHS_PER_ROUND:
            drawn = next(made)
            if isinstance(drawn, GraphError):
                counts["refused when they were made"] += 1
                continue
            graph = drawn
            question = Query(graph, rng.choice(TARGETS), version, build=rng.random() < 0.01)
            counts += _judge_and_check_verdict(judge, question, shown=rng.random() < 0.2)
            counts += _check_lint_and_issues_without_cudnn(graph, question, rng)
            if seed // len(VERSIONS) % 10 == 0:
                counts += _check_two_processes_agree(judge, other, question)
        if seed // len(VERSIONS) % 10 == 5:
            counts += _check_remedies(graph, version, folder)
    return counts


def _make_broken_guarantee(question: Query, what: str) -> BrokenGuarantee:
    asked = f"{question.target}, cuDNN {question.version}, build={question.build}"
    return BrokenGuarantee(f"{what}\n{asked}\n{json.dumps(graph_to_json(question.graph))}")


def _judge_and_check_verdict(judge: Judge, question: Query, *, shown: bool) -> Counter[str]:
    """Judge a graph, and check that the verdict is consistent."""
    try:
        verdict = judge.run_query(question)
    except Exception as error:
        raise _make_broken_guarantee(question, f"no verdict: {type(error).__name__}: {error}") from error
    code = "" if verdict.cause is None else verdict.cause.code
    if code == "judging-failed":
        raise _make_broken_guarantee(question, f"judging failed: {verdict.cause}")
    if failed := [line for line in verdict.limits if "of this package failed" in line]:
        raise _make_broken_guarantee(question, "\n".join(failed))
    silent = verdict.stage == "heuristics" and not verdict.candidates  # cuDNN returned no configs and no reason
    if verdict.outcome is not Outcome.SUPPORTED and not (verdict.cause or verdict.reasons or silent):
        raise _make_broken_guarantee(question, f"{verdict.outcome} without a cause")
    if Verdict.from_dict(json.loads(json.dumps(verdict.to_dict()))) != verdict:
        raise _make_broken_guarantee(question, "the verdict changes when it is written to JSON and read again")
    if shown and verdict.outcome.value.upper() not in render_text(verdict):
        raise _make_broken_guarantee(question, "the verdict text does not report the outcome")
    counts = Counter({"graphs": 1, verdict.outcome.value: 1, f"cuDNN {verdict.cudnn}": 1})
    counts |= Counter({op.kind.name.lower(): 1 for op in iterate_all_ops(question.graph)})
    counts["built"] += any(item.state == "built" for item in verdict.candidates)
    for name in ("cudnn-crashed", "cudnn-timed-out"):
        counts[name] += code == name or any(item.state == "crashed" for item in verdict.candidates)
    counts["refused at graph, by this package"] += verdict.stage == "graph"
    counts[f"cause {code}"] += bool(code)
    return +counts


def _check_lint_and_issues_without_cudnn(graph: Graph, question: Query, rng: random.Random) -> Counter[str]:
    """Check that lint, known issues and changes of a graph, which need no cuDNN, are found without an error."""
    names = {tensor.name for tensor in graph.tensors}
    with collect_error_reports() as lines:
        known_issues = find_known_issues(graph, find_profile(question.target).sm, (9, 19, 0))
        found = lint(graph)
        tried = list(iterate_changes(graph)) if rng.random() < 0.05 and len(graph.ops) < 30 else []
    if lines or any(finding.code == "lint-failed" for finding in found):
        raise _make_broken_guarantee(question, "\n".join([*lines, *map(str, found)]))
    for change in tried:
        if not set(change.tensors) <= names:
            raise _make_broken_guarantee(
                question, f"{change.title} names {set(change.tensors) - names}, which the graph has not"
            )
    return Counter({"known issues": len(known_issues), "findings of lint": len(found), "changes": len(tried)})


def _check_two_processes_agree(judge: Judge, other: Judge, question: Query) -> Counter[str]:
    """Check that two processes give the same verdict on a query."""
    first, second = judge.run_query(question), other.run_query(question)
    if "cudnn-crashed" in (code := {one.cause.code for one in (first, second) if one.cause}) and len(code) > 1:
        return Counter({"crashes of one process of two": 1})
    if first != second and any(op.kind is DescriptorType.OPERATION_SIGNAL for op in question.graph.ops):
        return Counter(
            {"signals to which cuDNN says another thing in another process": 1}
        )  # cuDNN 9.28 is not deterministic here
    if first != second:
        one, two = (json.dumps(verdict.to_dict(), indent=1).splitlines() for verdict in (first, second))
        differing = [f"{a}\n{b}" for a, b in zip(one, two, strict=False) if a != b]
        raise _make_broken_guarantee(question, "two processes differ:\n" + "\n".join(differing[:5]))
    return Counter({"judged in two processes": 1})


def _check_remedies(graph: Graph, version: str | None, folder: Path) -> Counter[str]:
    """Check that the remedies of a graph can be found, written as JSON and shown as HTML pages."""
    remedies = whatif(graph, "sm90", version=version)
    for remedy in remedies:
        json.dumps(remedy.to_dict())
        if remedy.verdict is not None:
            Path(folder, "page.html").write_text(
                render_verdict_html(remedy.verdict), encoding="utf-8", errors="surrogatepass"
            )
    return Counter({"searches for remedies": 1, "remedies": len(remedies)})
