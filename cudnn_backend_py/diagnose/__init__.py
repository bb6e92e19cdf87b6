"""Verdicts: what cuDNN says about a graph, read, explained and rendered."""

from .explain import control_graph, explain
from .render import render_text
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
    "Verdict",
    "control_graph",
    "explain",
    "read_refusals",
    "render_text",
]
