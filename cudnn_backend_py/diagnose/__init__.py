"""Verdicts: what cuDNN says about a graph, read, explained and rendered."""

from .ask import Judge, Question, judge
from .environment import Fault, check_environment
from .explain import control_graph, explain
from .known import KnownHazard, known_hazards
from .lint import Finding, lint
from .loggraphs import LoggedGraph, read_graphs, report_log
from .matrix import Cell, Matrix, Since, available_versions, matrix, since
from .render import render_text
from .repro import write_repro
from .support import SupportTable, attention_rows, support_table
from .verdict import Basis, Candidate, Cause, Control, Outcome, Stage, Verdict
from .whatif import Remedy, whatif
from .words import Reason, Refusal, read_refusals

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
