"""Example graphs of a known issue (with it, without it, and fixed), and the function that builds them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from cudnn_backend_py import Graph, attention
from cudnn_backend_py.graph.attention.problem import Implementation
from cudnn_backend_py.system.version import VersionTuple

__all__ = ["BASE_OPTIONS", "Examples", "GraphMaker", "Reproduction", "make_example_graph"]

BASE_OPTIONS: dict[str, Any] = {"batch": 2, "heads": 2, "seq_q": 128, "head_dim": 64}  # defaults of a reproduction


class Reproduction(NamedTuple):
    """An attention graph with a known issue: options added to ``BASE_OPTIONS``, and arguments of its builder."""

    backward: bool
    options: Mapping[str, Any]
    implementation: Implementation = "composite"
    version: VersionTuple | None = None


GraphMaker = Callable[[], Graph]


@dataclass(frozen=True, slots=True, kw_only=True)
class Examples:
    """Example graphs of one known issue: with it, without it, and fixed by its remedy.

    Parameters
    ----------
    reproductions
        Graphs that have the issue, by name; the first is usually called "".
    unaffected
        A graph that does not have it, as similar as possible. Rows that builders refuse have none.
    fixed
        The graph after the change that `fix` of the row describes, if there is one.
    """

    reproductions: Mapping[str, Reproduction | GraphMaker]
    unaffected: Reproduction | GraphMaker | None = None
    fixed: Reproduction | GraphMaker | None = None


def make_example_graph(made: Reproduction | GraphMaker | None, version: VersionTuple | None = None) -> Graph:
    """Build the graph of an example, for the cuDNN version that it names, or else for `version`."""
    assert made is not None
    if not isinstance(made, Reproduction):
        return made()
    make = attention.sdpa_backward if made.backward else attention.sdpa_forward
    problem = attention.Attention(**{**BASE_OPTIONS, **made.options})
    return make(problem, implementation=made.implementation, version=made.version or version, allow_hazards=True)
