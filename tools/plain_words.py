"""Report unclear words and phrases in names, comments, docstrings, messages and pages.

    python -m tools.plain_words [PATH ...]    # each line with an unclear phrase, and the plain words
    python -m tools.plain_words --count       # the number of lines with each phrase

docs/glossary.md has the terms to use. The check finds only phrases that a regular expression can find.
"""

from __future__ import annotations

import re
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import click

ROOT = Path(__file__).resolve().parents[1]


class PhraseToAvoid(NamedTuple):
    """A phrase to avoid: its pattern, plain words instead, and a pattern of lines that may use it."""

    name: str
    pattern: str
    instead: str
    allowed: str = ""
    only_in: str = ""  # files to check: those with a name that ends so


def make_word_pattern(*words: str) -> str:
    """Return a pattern of whole words, also inside snake_case and CamelCase names."""
    small = "|".join(words)
    large = "|".join(w[0].upper() + w[1:] for w in words)
    return rf"(?:(?<![A-Za-z])(?:{small})|(?:{large}))(?![a-z])"


HABITS = (
    PhraseToAvoid("mend", make_word_pattern("mend", "mends", "mended", "mending"), "fix, correct"),
    PhraseToAvoid("cure", make_word_pattern("cure", "cures", "cured"), "remedy, fix"),
    PhraseToAvoid(
        "advice", make_word_pattern("advice"), "fix (a wrong call), remedy (a change that makes a graph supported)"
    ),
    PhraseToAvoid(
        "fault",
        make_word_pattern("fault", "faults"),
        "known issue, environment problem, crash, error",
        allowed=r"(?i)segmentation fault|page fault|segfault|faulthandler|default|[\"`/.]faults?[\"`.]|-faults",
    ),
    PhraseToAvoid(
        "hazard",
        make_word_pattern("hazard", "hazards"),
        "known issue",
        allowed=r'["`]hazards?["`]|allow_hazards|attention-hazard',
    ),
    PhraseToAvoid("door", make_word_pattern("door", "doors"), "entry point"),
    PhraseToAvoid("kin", make_word_pattern("kin"), "related engines"),
    PhraseToAvoid(
        "way", r"(?:(?<![A-Za-z])ways?(?=_)|(?<=_)ways?(?![a-z])|\bclass \w*Ways?\b)", "strategy, method, kind"
    ),
    PhraseToAvoid("lesson", make_word_pattern("lesson", "lessons"), "learned limit"),
    PhraseToAvoid("participle as noun", make_word_pattern("untold", "hopeless", "shaken"), "the name of the thing"),
    PhraseToAvoid(
        "told", make_word_pattern("told", "tell", "tells", "telling"), "reported, prints, message, distinguish"
    ),
    PhraseToAvoid(
        "lie",
        make_word_pattern("lie", "lies", "lay", "lain"),
        "is stored, is laid out, is at",
        allowed=r"(?i)lay (?:\w+ ){0,3}out|lay-?out",
    ),
    PhraseToAvoid(
        "stand", make_word_pattern("stand", "stands", "stood"), "is in, is at", allowed=r"(?i)stand-?alone|stand-in"
    ),
    PhraseToAvoid("behind", make_word_pattern("behind"), "after, hidden, by means of"),
    PhraseToAvoid("beside", make_word_pattern("beside", "besides"), "next to, compared with, in addition to"),
    PhraseToAvoid("whose", make_word_pattern("whose"), "with, that has"),
    PhraseToAvoid("nobody", make_word_pattern("nobody"), "not, at the verb"),
    PhraseToAvoid(
        "old adverbs",
        r"(?i)\b(?:anew|in vain|for want of|at hand|of late|as ever|hardly meant)\b",
        "again, available, without",
    ),
    PhraseToAvoid(
        "ask",
        make_word_pattern("ask", "asks", "asked", "asking"),
        "judge, query, check, request; ask the user",
        allowed=r"(?i)\buser|prompt|terminal|question|issue|you\b|[\"`]asked[\"`]|not asked|--no-ask",
    ),
    PhraseToAvoid("held against", r"(?i)\b(?:held against|holds? verdicts|that which)\b", "compared with, pins"),
    PhraseToAvoid(
        "words", r"(?i)\b(?:in (?:\w+ )?words|the words|its words|'s words|other words)\b", "message, text, reason"
    ),
    PhraseToAvoid(
        "noun clause",
        r"\b(?:Return|Yield|Returns|Yields) (?:what|those|that|whether nobody)\b",
        "a noun: Return the size of ...",
    ),
    PhraseToAvoid(
        "what is ... of", r"(?i)\b(?:of|with|by|from|for) what (?:is|are|has|was|of|it|they|the)\b", "a noun"
    ),
)
# Files that quote texts of cuDNN, recorded output or the list above.
FILES_THAT_QUOTE = (
    "cudnn_backend_py/generated/",
    "docs/glossary.md",
    "docs/tables/",
    "tools/plain_words.py",
    "tests/pure/test_plain_words.py",
    "logs/",
)


class UnclearLine(NamedTuple):
    """A line that contains a phrase to avoid."""

    path: str
    line: int
    habit: PhraseToAvoid
    text: str


def list_tracked_files(*paths: str) -> list[str]:
    """Return the paths of Python files and Markdown pages under version control, all or those in `paths`."""
    command = ["git", "ls-files", "-co", "--exclude-standard", "--", *(paths or (".",))]
    names = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\n")
    return sorted(
        {n for n in names if n.endswith((".py", ".md")) and not n.startswith(FILES_THAT_QUOTE) and (ROOT / n).is_file()}
    )


def find_unclear_phrases(path: str, text: str) -> Iterator[UnclearLine]:
    """Yield a match for each line of ``text`` and each phrase to avoid in it, except in error codes."""
    for number, line in enumerate(text.splitlines(), 1):
        plain = _ERROR_CODE_PATTERN.sub("", line)
        for habit, pattern, allowed in _COMPILED_HABITS:
            if pattern.search(plain) and not (allowed and allowed.search(line)):
                yield UnclearLine(path, number, habit, line.strip())


_ERROR_CODE_PATTERN = re.compile(
    r"([\"`])[a-z0-9]+(?:-[a-z0-9]+)+\1"
)  # codes of causes and known issues, which stay as they are
_COMPILED_HABITS = [(h, re.compile(h.pattern), re.compile(h.allowed) if h.allowed else None) for h in HABITS]


@click.command()
@click.argument("paths", nargs=-1)
@click.option("--count", is_flag=True, help="Print the number of lines with each phrase.")
def main(paths: tuple[str, ...], count: bool) -> None:
    """Print lines with unclear phrases; exit with 1 if there are any."""
    hits = [hit for name in list_tracked_files(*paths) for hit in find_unclear_phrases(name, (ROOT / name).read_text())]
    if count:
        totals = Counter(hit.habit.name for hit in hits)
        for habit in HABITS:
            click.echo(f"{totals[habit.name]:6} {habit.name}")
        click.echo(f"{len(hits):6} in all")
    else:
        for hit in hits:
            click.echo(f"{hit.path}:{hit.line}: {hit.habit.name} ({hit.habit.instead}): {hit.text}")
    raise SystemExit(bool(hits))


if __name__ == "__main__":
    main()
