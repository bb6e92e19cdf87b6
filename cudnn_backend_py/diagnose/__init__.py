"""Verdicts: what cuDNN says about a graph, read, explained and rendered."""

from .ask import Judge, Question, judge
from .explain import control_graph, explain
from .render import render_text
from .support import SupportTable, attention_rows, support_table
from .support_page import render_page
from .verdict import Basis, Candidate, Cause, Control, Outcome, Stage, Verdict
from .words import Reason, Refusal, read_refusals

__all__ = [
    "Basis",
    "Candidate",
    "Cause",
    "Control",
    "Judge",
    "Outcome",
    "Question",
    "Reason",
    "Refusal",
    "Stage",
    "SupportTable",
    "Verdict",
    "attention_rows",
    "control_graph",
    "explain",
    "judge",
    "read_refusals",
    "render_page",
    "render_text",
    "support_table",
]
