"""Glossary terms are few and distinct; texts avoid the phrases listed in `tools/plain_words.py`."""

from __future__ import annotations

import re
from collections import Counter

import pytest

from tools.plain_words import HABITS, ROOT, PhraseToAvoid, find_unclear_phrases, list_tracked_files

GLOSSARY = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in GLOSSARY.splitlines()
    if line.startswith("| ") and not line.startswith(("| term |", "| level |")) and len(line.strip("|").split("|")) == 3
]
TERMS = {name.strip(): meaning for cell, meaning, _ in ROWS for name in cell.split(",")}
FOLDERS = (
    *sorted(path.parent.relative_to(ROOT).as_posix() for path in ROOT.glob("cudnn_backend_py/*/__init__.py")),
    *(f"tests/{name}" for name in ("browser", "cases", "compat", "gpu", "known_issues", "site", "support", "torture")),
    *(path.parent.relative_to(ROOT).as_posix() for path in sorted(ROOT.glob("tests/pure/*/__init__.py"))),
    *(path.parent.relative_to(ROOT).as_posix() for path in sorted(ROOT.glob("tests/library/*/__init__.py"))),
    *("docs", "examples", "benchmarks", "tools"),
)
# A line with each habit, and a similar one without it.
LINES = {
    "mend": ("mend the call", "amend the call"),
    "cure": ("the cure is to pad", "a secure folder"),
    "advice": ("ADVICE = advice", "advise the user"),
    "fault": ("a known fault of cuDNN", "the process ends with a segmentation fault"),
    "hazard": ("hazards = find(graph)", '{"hazards": []}'),
    "door": ("class Door:", "indoors"),
    "kin": ("the kin of an engine", "one kind of engine"),
    "way": ("def find_way(graph):", "the other way round"),
    "lesson": ("lessons = {}", "lessen the load"),
    "participle as noun": ("hopeless = [change]", "shake the tree"),
    "told": ("def tell_user():", "a total of two"),
    "lie": ("the elements lie in memory", "lay out the elements"),
    "stand": ("the versions stand in a list", "a stand-alone program"),
    "behind": ("the plan behind it", "hindsight"),
    "beside": ("the wheel beside it", "next to it"),
    "whose": ("a graph whose dims are known", "who is it"),
    "nobody": ("what nobody reads", "no body"),
    "old adverbs": ("build it anew", "build it again"),
    "ask": ("ask cuDNN", "ask the user"),
    "held against": ("verdicts held against a baseline", "verdicts compared with a baseline"),
    "words": ("cuDNN's words", "wordless"),
    "noun clause": ("Return what the GPU is", "Return the GPU"),
    "what is ... of": ("the size of what is read", "see what is read"),
}


def test_glossary_has_at_most_forty_sorted_terms() -> None:
    assert 30 <= len(TERMS) <= 40
    for table in GLOSSARY.split("## ")[1:3]:
        terms = [row[0] for row in ROWS if f"| {row[0]} |" in table]
        assert terms == sorted(terms, key=str.lower)


def test_glossary_terms_have_distinct_meanings() -> None:
    assert [meaning for meaning, count in Counter(row[1] for row in ROWS).items() if count > 1] == []
    assert all(meaning for _, meaning, _ in ROWS)


@pytest.fixture(scope="module")
def package_and_page_text() -> str:
    """Return the text of the package and of all documentation pages, in lower case."""
    names = list_tracked_files("cudnn_backend_py", "docs", "README.md")
    return "\n".join((ROOT / name).read_text(encoding="utf-8") for name in names).lower()


@pytest.mark.parametrize("term", TERMS)
def test_glossary_term_is_used(term: str, package_and_page_text: str) -> None:
    assert re.search(rf"\b{re.escape(term.lower())}", package_and_page_text)


@pytest.mark.parametrize("habit", HABITS, ids=lambda habit: habit.name)
def test_an_unclear_phrase_is_found_and_similar_text_is_not(habit: PhraseToAvoid) -> None:
    with_habit, without = LINES[habit.name]
    assert habit in [hit.habit for hit in find_unclear_phrases("page.md", with_habit)]
    assert habit not in [hit.habit for hit in find_unclear_phrases("page.md", without)]


def list_lines_with_unclear_phrases(*paths: str) -> list[str]:
    return [
        f"{hit.path}:{hit.line}: {hit.habit.name}: {hit.text}"
        for name in list_tracked_files(*paths)
        for hit in find_unclear_phrases(name, (ROOT / name).read_text(encoding="utf-8"))
    ]


# Numbers of lines with a habit that are left in each folder: they may only fall.
LEFT: dict[str, int] = {
    "others": 32,
    "benchmarks": 6,
    "cudnn_backend_py/audit": 44,
    "cudnn_backend_py/cli": 53,
    "cudnn_backend_py/diagnose": 308,
    "cudnn_backend_py/execution": 14,
    "cudnn_backend_py/frontend": 59,
    "cudnn_backend_py/graph": 26,
    "cudnn_backend_py/importers": 21,
    "cudnn_backend_py/interpreter": 5,
    "cudnn_backend_py/known_issues": 23,
    "cudnn_backend_py/native": 36,
    "cudnn_backend_py/plans": 22,
    "cudnn_backend_py/rewrite": 4,
    "cudnn_backend_py/system": 32,
    "cudnn_backend_py/target": 2,
    "cudnn_backend_py/testing": 11,
    "cudnn_backend_py/torch_ops": 5,
    "cudnn_backend_py/tuning": 44,
    "cudnn_backend_py/versions": 7,
    "cudnn_backend_py/why": 57,
    "docs": 20,
    "tests/cases": 4,
    "tests/compat": 3,
    "tests/gpu": 10,
    "tests/library/audit": 4,
    "tests/library/benchmarks": 3,
    "tests/library/cli": 15,
    "tests/library/diagnose": 29,
    "tests/library/frontend": 2,
    "tests/library/importers": 4,
    "tests/library/plans": 1,
    "tests/library/testing": 2,
    "tests/library/why": 1,
    "tests/pure/audit": 3,
    "tests/pure/cli": 10,
    "tests/pure/diagnose": 19,
    "tests/pure/frontend": 3,
    "tests/pure/importers": 4,
    "tests/pure/interpreter": 4,
    "tests/pure/rewrite": 1,
    "tests/pure/system": 3,
    "tests/pure/tuning": 5,
    "tests/pure/versions": 1,
    "tests/pure/why": 11,
    "tests/support": 6,
    "tools": 16,
}


@pytest.mark.parametrize("folder", FOLDERS)
def test_folder_has_no_more_unclear_phrases_than_recorded(folder: str) -> None:
    found = list_lines_with_unclear_phrases(folder)
    assert len(found) <= LEFT.get(folder, 0), found[-20:]


def test_files_outside_counted_folders_gain_no_unclear_phrases() -> None:
    others = [
        line
        for line in list_lines_with_unclear_phrases()
        if not line.startswith(tuple(f"{folder}/" for folder in FOLDERS))
    ]
    assert len(others) <= LEFT["others"], others[-20:]
