"""Public statements about graphs and environments: the query, the truth, and claims that an answer must not make.

Each was collected from its source before anything was changed for it, and assigned at random to one of two halves:
``work`` may be examined, ``sealed`` is only counted. Words are required in any case; ``a|b`` is either. ``truth`` is
``refused``, ``accepted and wrong`` or ``supported``, according to the source and the graph.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cudnn_backend_py import Graph
from cudnn_backend_py.graph.serial import graph_from_json

__all__ = ["PUBLIC_CASES", "PublicStatementCase", "contains_all_words"]

CASES_FILE = Path(__file__).parent / "data" / "public.json"


@dataclass(frozen=True, kw_only=True)
class PublicStatementCase:
    """A public statement about a graph: the query, the truth, and what an answer must and must not say."""

    name: str
    area: str
    half: str
    source: str
    says: str
    truth: str
    headline_words: list[str]
    cure: str
    cure_kinds: list[str]
    cure_words: list[str]
    must_not_say: list[str]
    target: str
    version: str
    build: bool
    graph: dict[str, Any]

    def make_graph(self) -> Graph:
        """Build the graph that the public statement is about."""
        return graph_from_json(self.graph)


def contains_all_words(text: str, words: list[str]) -> bool:
    """Return whether a text contains all words, ignoring case."""
    return all(any(one.strip() in text.lower() for one in word.lower().split("|")) for word in words)


PUBLIC_CASES = [
    PublicStatementCase(**case)
    for case in json.loads(CASES_FILE.read_text(encoding="utf-8"))["cases"]
    if "graph" in case
]
