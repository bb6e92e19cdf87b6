"""Verdicts: cuDNN's answers about a graph, explained and rendered."""

from typing import TYPE_CHECKING

from ..system.lazy_import import make_lazy_getattr

if TYPE_CHECKING:
    from ..importers.graphs import LoggedGraph, read_graphs
    from ..known_issues import KnownIssue, find_known_issues
    from ..native.environment_problems import EnvironmentProblem, check_environment
    from ..plans.refusals import Reason, Refusal, read_refusals
    from .explanation import control_graph
    from .judges import Judge, Query, judge
    from .linting import Finding, lint
    from .logs import report_log
    from .named_version import explain
    from .remedies import whatif
    from .remedy import Remedy
    from .report.archive import write_repro
    from .report.text import render_text
    from .surveys.attention import SupportTable, attention_rows, support_table
    from .surveys.inputs import available_versions
    from .surveys.matrix import Cell, Matrix, matrix
    from .surveys.since import Since, since
    from .verdict import Basis, Candidate, Cause, Control, Outcome, Stage, Verdict

__all__ = [
    "Basis",
    "Candidate",
    "Cause",
    "Cell",
    "Control",
    "EnvironmentProblem",
    "Finding",
    "Judge",
    "KnownIssue",
    "LoggedGraph",
    "Matrix",
    "Outcome",
    "Query",
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
    "find_known_issues",
    "judge",
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

# What a question needs none of: a process that is started to answer one imports little.
__getattr__ = make_lazy_getattr(
    __name__,
    Basis="verdict",
    Candidate="verdict",
    Cause="verdict",
    Control="verdict",
    Outcome="verdict",
    Stage="verdict",
    Verdict="verdict",
    EnvironmentProblem=".native.environment_problems",
    check_environment=".native.environment_problems",
    control_graph="explanation",
    explain="named_version",
    Finding="linting",
    lint="linting",
    Judge="judges",
    Query="judges",
    judge="judges",
    KnownIssue=".known_issues",
    find_known_issues=".known_issues",
    LoggedGraph=".importers.graphs",
    read_graphs=".importers.graphs",
    Reason=".plans.refusals",
    Refusal=".plans.refusals",
    read_refusals=".plans.refusals",
    Remedy="remedy",
    whatif="remedies",
    report_log="logs",
    write_repro="report.archive",
    render_text="report.text",
    SupportTable="surveys.attention",
    attention_rows="surveys.attention",
    support_table="surveys.attention",
    Cell="surveys.matrix",
    Matrix="surveys.matrix",
    available_versions="surveys.inputs",
    matrix="surveys.matrix",
    Since="surveys.since",
    since="surveys.since",
)
