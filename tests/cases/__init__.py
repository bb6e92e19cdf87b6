"""Graphs of real users that cuDNN refused or crashed on, each from a public thread, with their remedies.

A file holds the cases of one kind of source: ``cudnn_threads`` those of cuDNN's frontend and of NVIDIA's forum,
``framework_threads`` those of the frameworks that call cuDNN.
"""

from __future__ import annotations

from . import cudnn_threads, framework_threads
from .case import REMEDY_KINDS, ReportedGraph

__all__ = ["CASES", "REMEDY_KINDS", "ReportedGraph", "find_case"]

CASES = (*cudnn_threads.CASES, *framework_threads.CASES)


def find_case(name: str) -> ReportedGraph:
    """Return the case with this name."""
    return next(case for case in CASES if case.name == name)
