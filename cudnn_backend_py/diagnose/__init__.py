"""Verdicts: what cuDNN says about a graph, read, explained and rendered."""

from .explain import control_graph, explain
from .render import render_text
from .support import SupportTable, attention_rows, support_table
from .support_page import render_page
from .verdict import Basis, Candidate, Cause, Control, Outcome, Verdict
from .words import Reason, Refusal, read_refusals

__all__ = [
    "Basis",
    "Candidate",
    "Cause",
    "Control",
    "Outcome",
    "Reason",
    "Refusal",
    "SupportTable",
    "Verdict",
    "attention_rows",
    "control_graph",
    "explain",
    "read_refusals",
    "render_page",
    "render_text",
    "support_table",
]
