"""Graphs that show known issues of cuDNN: ``reproductions.json``, which ``tools/records/reproductions.py`` writes."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from ..graph import Graph, graph_from_json
from ..known_issues import FAULTS, KnownIssue

__all__ = ["FILE", "Reproduction", "read_known_issue_reproductions"]

FILE = Path(__file__).with_name("reproductions.json")
_DATA = ("uniform", "integers", "hostile")


@dataclass(frozen=True, slots=True)
class Reproduction:
    """A graph that reproduces a known issue when it runs.

    Attributes
    ----------
    configs
        The engine configs that are run, as ``cudnn-backend run`` takes them.
    data
        Kinds of data, tried until one shows it.
    """

    issue: KnownIssue
    graph: Graph
    configs: str
    data: tuple[str, ...] = _DATA

    @property
    def name(self) -> str:
        """The code of the known issue."""
        return self.issue.code


def read_known_issue_reproductions() -> list[Reproduction]:
    """Read the graphs that reproduce known issues of cuDNN, from the file of this package's release."""
    graphs = json.loads(FILE.read_text(encoding="utf-8"))
    return [
        Reproduction(issue, graph_from_json(graphs[issue.code]), f"eng{issue.engines[0]}" if issue.engines else "first")
        for issue in FAULTS
        if issue.code in graphs
    ]
