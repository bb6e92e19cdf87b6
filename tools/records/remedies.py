"""Check printed remedies: each change, target or version that a verdict names must make the graph supported.

``python -m tools.records.remedies`` checks every refused verdict of the attention tables, and writes a record.
"""

from __future__ import annotations

import argparse
import random
import re
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import chain, permutations
from pathlib import Path
from typing import Any

from cudnn_backend_py import Graph, GraphError
from cudnn_backend_py.diagnose import Query, Verdict, judge, render_text
from cudnn_backend_py.diagnose.causes.options import AttentionOptions, read_attention_options
from cudnn_backend_py.diagnose.surveys.attention import GRAPH_FORMS, TARGETS, SupportTable, attention_rows
from cudnn_backend_py.info import make_measurement_record_header, write_record
from cudnn_backend_py.native import library
from cudnn_backend_py.rewrite.changes import Change, iterate_changes
from tools.repository import ROOT

__all__ = [
    "EFFECT_PATTERN",
    "TableCell",
    "check_remedies",
    "find_change_with_title",
    "list_refused_cells",
    "list_support_table_cells",
    "make_query_of_table_cell",
    "read_remedy",
]

TableCell = tuple[str, str, str]
"""Row, form and target of a table."""

JudgeFunction = Callable[[Query], Verdict]

ATTENTION_ROWS = attention_rows()
EFFECT_PATTERN = re.compile(r" \((?:exact|idea|changes numerics|exact, results not compared)\)$")
_KNOWN_ISSUE_PATTERN = re.compile(r" \(known issue: [^)]*\)$")  # that a changed graph has
_NAMED_REMEDY_PATTERN = re.compile(r"\b9\.\d+|\bsm_\d+|: \S+ -> ")  # a version, a target, a change
_SUPPORT_TABLE_FOLDER = ROOT / "tests/library/diagnose/data"


def read_remedy(verdict: Verdict) -> str:
    """Return the remedy or suggestion in the printed verdict."""
    lines = render_text(verdict).splitlines()
    said = [line.partition(":")[2].strip() for line in lines if line.startswith(("remedy:", "suggestion:"))]
    return said[0] if said else ""


def build_remedy_graphs(question: Query, said: str) -> list[Graph]:
    """Return the graphs that a remedy's text offers: one for each change, or one for each set of removed options."""
    said = _KNOWN_ISSUE_PATTERN.sub("", said)
    titles = [EFFECT_PATTERN.sub("", one) for one in re.split(r" or (?=with)", said)]
    offered = [find_change_with_title(question.graph, title) for title in titles]
    if None not in offered:
        return [change.graph for change in offered if change is not None]
    version = tuple(map(int, (question.setup.version or library().version_text).split(".")))
    options = read_attention_options(question.graph, version)  # type: ignore[arg-type]
    assert options is not None, said
    gone = list_options_to_remove(options, said)
    left = [[key for key in options.found if not options.add_needed_options([key]) & set(some)] for some in gone]
    graphs = [options.graph(kept) for kept in left]
    assert None not in graphs, said
    return [graph for graph in graphs if graph is not None]


def find_change_with_title(graph: Graph, title: str) -> Change | None:
    """Return the change of a graph with a title, also one of some tensors of a change; None if there is none."""
    names = title.partition(":")[0].split(", ")
    for change in iterate_changes(graph):
        part = None if change.narrow is None else change.narrow(names)
        for one in (change, part):
            if one is not None and one.title == title and one.graphs:
                return one
    return None


def list_options_to_remove(options: AttentionOptions, said: str) -> list[tuple[str, ...]]:
    """Return the sets of attention options that a remedy's text says to remove; each set alone is a remedy."""
    named = [key for key, option in options.found.items() if (option.instead or option.name) in said]
    for word in (" or ", " and "):
        for keys in chain.from_iterable(permutations(named, number) for number in range(len(named), 0, -1)):
            chosen = [options.found[key] for key in keys]
            dropped = word.join(option.name for option in chosen if not option.instead)
            parts = [option.instead for option in chosen if option.instead]
            if word.join([*parts, *([f"without {dropped}, which computes something else"] if dropped else [])]) == said:
                return [keys] if word == " and " else [(key,) for key in keys]
    raise AssertionError(said)


def check_remedies(run_query: JudgeFunction, question: Query, verdict: Verdict) -> int:
    """Check that each remedy printed in a verdict makes its graph supported; return the number of queries."""
    said = read_remedy(verdict)
    if not said:
        return 0
    if said.endswith(" [not judged]"):
        assert not _NAMED_REMEDY_PATTERN.search(said), said
        return 0
    depth = (
        "a plan of it was built" if question.build or verdict.stage == "plan" else "passes its support check, not built"
    )
    assert said.endswith(f" [{depth}]"), said
    said = said.removesuffix(f" [{depth}]")
    queries: list[Query] = []
    for part in said.split("; or "):
        if part.startswith(("judge for ", "sm_")):
            queries += [replace(question, target=name.replace("_", "")) for name in re.findall(r"\bsm_\d+\b", part)]
        elif part.startswith("use cuDNN "):
            queries += [replace(question, version=name) for name in re.findall(r"^use cuDNN (\S+)", part)]
        else:
            queries += [replace(question, graph=graph) for graph in build_remedy_graphs(question, part)]
    assert queries, said
    for one in queries:
        assert run_query(replace(one, causes=False)).supported, said
    return len(queries)


def list_refused_cells(table: SupportTable) -> list[TableCell]:
    """Return the cells (graph, form and target) of a stored support table that cuDNN refuses."""
    return [
        (name, form, target)
        for name, row in table.cells.items()
        for form, cells in row.items()
        for target, cell in cells.items()
        if cell.answer == "no"
    ]


def list_support_table_cells() -> list[TableCell]:
    """Return every cell of the attention support table: each row's graph, in each form, for each target."""
    return [(name, form, target) for name in ATTENTION_ROWS for form in GRAPH_FORMS for target in TARGETS]


def make_query_of_table_cell(cell: TableCell, version: str, *, build: bool | None = None) -> Query | None:
    """Return the query of a table cell, or None if the package refuses to build its graph."""
    name, form, target = cell
    own = None if version == library().version_text else version
    try:
        graph = ATTENTION_ROWS[name].make_graph(form, tuple(map(int, version.split("."))))  # type: ignore[arg-type]
    except GraphError:
        return None
    return Query(graph, target, own, build=build)


# check of a whole version


def _select_cells_to_check(version: str) -> list[TableCell]:
    """Return the refused cells of a version's stored table, or all cells if no table is stored."""
    stored = _SUPPORT_TABLE_FOLDER / f"attention-support-{version}.json"
    if stored.is_file():
        return list_refused_cells(SupportTable.from_json(stored.read_text(encoding="utf-8")))
    return list_support_table_cells()


def _check_remedies_of_cell(cell: TableCell, version: str, *, build: bool) -> tuple[str, int, str]:
    """Check the remedies of a support-table cell; return "holds" or why not, the number of queries, and any failure."""
    question = make_query_of_table_cell(cell, version, build=build)
    if question is None:
        return "no such graph", 0, ""
    verdict = judge(question)
    if verdict.outcome != "not supported":
        return verdict.outcome.value, 0, ""
    said = read_remedy(verdict)
    try:
        count = check_remedies(judge, question, verdict)
    except AssertionError:
        return "does not hold", 0, f"{', '.join(cell)}: {said}"
    return "holds" if count else f"not asked: {said}" if said else "no remedy", count, ""


def check_remedies_of_version(version: str, *, build: bool, sample: int | None, workers: int) -> dict[str, Any]:
    """Check the remedies of all refused support-table cells of a version, or of a seeded sample; return counts."""
    cells = _select_cells_to_check(version)
    if sample is not None:
        cells = random.Random(f"{version} {build}").sample(cells, min(sample, len(cells)))
    start = time.monotonic()
    with ThreadPoolExecutor(workers) as pool:
        results = list(pool.map(lambda cell: _check_remedies_of_cell(cell, version, build=build), cells))
    states = Counter(state.partition(":")[0] for state, _, _ in results)
    return {
        "cudnn": version,
        "build": build,
        "asked about": len(cells),
        "of": len(_select_cells_to_check(version)),
        "verdicts": dict(states.most_common()),
        "remedies asked": sum(count for _, count, _ in results),
        "does not hold": [said for _, _, said in results if said],
        "not asked": dict(Counter(state for state, *_ in results if state.startswith("not asked:")).most_common()),
        "seconds": round(time.monotonic() - start),
    }


def _check_remedies_of_versions(arguments: argparse.Namespace) -> Iterator[dict[str, Any]]:
    for version in arguments.versions:
        if not arguments.only_built:
            yield check_remedies_of_version(version, build=False, sample=arguments.sample, workers=arguments.workers)
        if arguments.built:
            yield check_remedies_of_version(version, build=True, sample=arguments.built, workers=arguments.workers)


def main(given: Sequence[str] | None = None) -> int:
    """Check the remedies of the given versions, and write a record."""
    parser = argparse.ArgumentParser(prog="python -m tools.records.remedies", description=main.__doc__)
    parser.add_argument("versions", nargs="+", help="installed cuDNN versions, such as 9.19.0")
    parser.add_argument("--sample", type=int, help="number of cells per version; by default all")
    parser.add_argument("--built", type=int, default=0, help="number of cells to judge also with built plans")
    parser.add_argument("--only-built", action="store_true", help="judge only with built plans")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args(given)
    record = make_measurement_record_header("remedies")
    record["rounds"] = []
    for one in _check_remedies_of_versions(arguments):
        record["rounds"].append(one)
        text = write_record(record, arguments.output)
    print(text)
    return int(any(one["does not hold"] for one in record["rounds"]))


if __name__ == "__main__":
    sys.exit(main())
