"""Graphs of the table of faults: what has a fault, what has not, and what is mended."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

from cudnn_backend_py import Graph, attention
from cudnn_backend_py.graph.attention.fault import BASE, MakesGraph, Reproduction
from cudnn_backend_py.system.version import VersionTuple

__all__ = ["graph_of", "told"]


def graph_of(made: Reproduction | MakesGraph | None, version: VersionTuple | None = None) -> Graph:
    """Return the graph of a reproduction or a cure, in the form of a version where it is bound to none."""
    assert made is not None
    if not isinstance(made, Reproduction):
        return made()
    make = attention.sdpa_backward if made.backward else attention.sdpa_forward
    problem = attention.Attention(**{**BASE, **made.options})
    return make(problem, implementation=made.implementation, version=made.version or version, allow_hazards=True)


def told(build: Callable[[], Any], code: str) -> list[type[Warning]]:
    """Return the categories of the warnings that name a fault."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        build()
    return [item.category for item in caught if f"({code})" in str(item.message)]
