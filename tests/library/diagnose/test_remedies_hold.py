"""Remedies are taken at their word: every change, target and version in the printed text of a verdict is asked."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from itertools import chain, permutations

import pytest

from cudnn_backend_py import Graph, GraphError
from cudnn_backend_py.diagnose import Judge, Question, Verdict, render_text
from cudnn_backend_py.diagnose.causes.options import Options, read_options
from cudnn_backend_py.diagnose.surveys.attention import attention_rows
from cudnn_backend_py.graph.rewrite.changes import changes
from cudnn_backend_py.native import library
from cudnn_backend_py.versions import store
from tests.library.diagnose.test_attention_support import TABLES

ROWS = attention_rows()
HERE = {library().version_text, *(item.short for item in store.list_installed())}
VERSIONS = [name for name in TABLES if name in HERE]
EVERY = 7  # of the refused cells of an older version, whose every cell is asked with the newest
EFFECT = re.compile(r" \((?:exact|idea|changes numerics)\)$")


@pytest.fixture(scope="module")
def judge() -> Iterator[Judge]:
    with Judge() as one:
        yield one


def advice_of(verdict: Verdict) -> str:
    """Return what the printed verdict says is to be done."""
    lines = render_text(verdict).splitlines()
    return next((line.removeprefix("what to do:").strip() for line in lines if line.startswith("what to do:")), "")


def graphs_of(question: Question, said: str) -> list[Graph]:
    """Return the graphs that a remedy speaks of: with one or another change, or without some options of attention."""
    offered = {change.title: change.graph for change in changes(question.graph)}
    titles = [EFFECT.sub("", one) for one in re.split(r" or (?=with)", said)]
    if set(titles) <= offered.keys():
        return [offered[title] for title in titles]
    version = tuple(map(int, (question.version or library().version_text).split(".")))
    options = read_options(question.graph, version)  # type: ignore[arg-type]
    assert options is not None, said
    gone = options_of(options, said)
    left = [[key for key in options.found if not options.whole([key]) & set(some)] for some in gone]
    graphs = [options.graph(kept) for kept in left]
    assert None not in graphs, said
    return [graph for graph in graphs if graph is not None]


def options_of(options: Options, said: str) -> list[tuple[str, ...]]:
    """Return the options that a remedy leaves out: each by itself, or all together."""
    named = [key for key, option in options.found.items() if (option.instead or option.name) in said]
    for word in (" or ", " and "):
        for keys in chain.from_iterable(permutations(named, number) for number in range(len(named), 0, -1)):
            chosen = [options.found[key] for key in keys]
            dropped = word.join(option.name for option in chosen if not option.instead)
            parts = [option.instead for option in chosen if option.instead]
            if word.join([*parts, *([f"without {dropped}, which computes something else"] if dropped else [])]) == said:
                return [keys] if word == " and " else [(key,) for key in keys]
    raise AssertionError(said)


def check_advice(judge: Judge, question: Question, verdict: Verdict) -> int:
    """Ask whether each remedy of the printed verdict holds; return how many it names."""
    said = advice_of(verdict)
    if not said or said.endswith(" [not asked]"):
        return 0
    depth = "a plan of it was built" if question.build else "passes its support check, not built"
    assert said.endswith(f" [{depth}]"), said
    said = said.removesuffix(f" [{depth}]")
    asked: list[Question] = []
    for part in said.split("; or "):
        if part.startswith(("judge for ", "sm_")):
            asked += [replace(question, target=name.replace("_", "")) for name in re.findall(r"\bsm_\d+\b", part)]
        elif part.startswith("use cuDNN "):
            asked += [replace(question, version=name) for name in re.findall(r"^use cuDNN (\S+)", part)]
        else:
            asked += [replace(question, graph=graph) for graph in graphs_of(question, part)]
    assert asked, said
    for one in asked:
        assert judge.ask(replace(one, causes=False)).supported, said
    return len(asked)


def refused_cells(version: str) -> list[tuple[str, str, str]]:
    table = TABLES[version]
    return [
        (name, form, target)
        for name, row in table.cells.items()
        for form, cells in row.items()
        for target, cell in cells.items()
        if cell.answer == "no"
    ]


def question_of(cell: tuple[str, str, str], version: str, *, build: bool = False) -> Question | None:
    """Return the question of a cell, None where this package writes its graph no more."""
    name, form, target = cell
    own = None if version == library().version_text else version
    try:
        graph = ROWS[name].graph(form, tuple(map(int, version.split("."))))  # type: ignore[arg-type]
    except GraphError:
        return None
    return Question(graph, target, own, build=build)


@pytest.mark.parametrize("version", VERSIONS)
def test_remedies_of_the_tables_hold(judge: Judge, version: str) -> None:
    cells = refused_cells(version)
    step = 1 if version == library().version_text else EVERY
    count = 0
    for cell in cells[::step]:
        question = question_of(cell, version)
        if question is None:
            continue
        verdict = judge.ask(question)
        assert not verdict.supported, cell
        count += check_advice(judge, question, verdict)
    print(f"cuDNN {version}: {len(cells[::step])} of {len(cells)} refused verdicts, {count} remedies asked")
    assert count > len(cells[::step]) // 3


@pytest.mark.parametrize("cell", refused_cells(library().version_text)[::40], ids=", ".join)
def test_remedies_of_the_tables_hold_when_built(judge: Judge, cell: tuple[str, str, str]) -> None:
    question = question_of(cell, library().version_text, build=True)
    assert question is not None
    verdict = judge.ask(question)
    assert not verdict.supported
    check_advice(judge, question, verdict)
