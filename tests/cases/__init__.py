"""Graphs of real users that cuDNN refused or crashed on, each from a public thread, with their remedies.

A file holds the cases of one kind of source: ``cudnn_reports`` those of cuDNN's frontend and of NVIDIA's forum,
``framework_reports`` those of the frameworks that call cuDNN.
"""

from __future__ import annotations

from . import cudnn_reports, framework_reports
from .case import REMEDY_KINDS, ReportedGraph

__all__ = ["CASES", "REMEDY_KINDS", "ReportedGraph", "find_case"]

CASES = (*cudnn_reports.CASES, *framework_reports.CASES)


def find_case(name: str) -> ReportedGraph:
    """Return the case with this name."""
    return next(case for case in CASES if case.name == name)
