"""Verdicts: what cuDNN says about a graph, read, explained and rendered."""

from ..graph.faults import KnownHazard, known_hazards
from ..graph.lint import Finding, lint
from ..importers.graphs import LoggedGraph, read_graphs
from ..plans.refusals import Reason, Refusal, read_refusals
from ..target.environment import Fault, check_environment
from .explanation import control_graph, explain
from .judges import Judge, Question, judge
from .logs import report_log
from .remedies import Remedy, whatif
from .report.archive import write_repro
from .report.text import render_text
from .surveys.attention import SupportTable, attention_rows, support_table
from .surveys.matrix import Cell, Matrix, available_versions, matrix
from .surveys.since import Since, since
from .verdict import Basis, Candidate, Cause, Control, Outcome, Stage, Verdict

__all__ = [
    "Basis",
    "Candidate",
    "Cause",
    "Cell",
    "Control",
    "Fault",
    "Finding",
    "Judge",
    "KnownHazard",
    "LoggedGraph",
    "Matrix",
    "Outcome",
    "Question",
    "Reason",
    "Refusal",
    "Remedy",
    "Since",
    "Stage",
    "SupportTable",
    "Verdict",
    "attention_rows",
    "available_versions",
    "check_environment",
    "control_graph",
    "explain",
    "judge",
    "known_hazards",
    "lint",
    "matrix",
    "read_graphs",
    "read_refusals",
    "render_text",
    "report_log",
    "since",
    "support_table",
    "whatif",
    "write_repro",
]
