"""The fields of a case, a user's report of a refusal or crash: its source, query, cause and remedy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from cudnn_backend_py import Graph

__all__ = ["NEWEST_VERSION", "REMEDY_KINDS", "Complaint", "MessageSource", "RemedyKind", "ReportedGraph"]

NEWEST_VERSION = "9.28.0"  # as a remedy: the version that judges a case without one

Complaint = Literal["not supported", "crash", "supported", "refused by us"]

MessageSource = Literal["innermost reason", "any reason", "our headline"]

RemedyKind = Literal[
    "data_type",
    "alignment",
    "layout",
    "pad_head_dim",
    "pad_sequence",
    "pad_channels",
    "mask",
    "drop_stats",
    "drop_dropout",
    "drop_bias",
    "split",
    "unified",
    "composite",
    "intermediate_type",
    "virtual",
    "target",
    "version",
    "scale",
    "drop_operation",
    "heads",
]

REMEDY_KINDS: tuple[RemedyKind, ...] = RemedyKind.__args__  # type: ignore[attr-defined]


@dataclass(frozen=True, kw_only=True)
class ReportedGraph:
    """A graph from a public thread, with its cause and remedy.

    Attributes
    ----------
    name, source, title
        A short name, the thread's URL, and a summary of the user's complaint.
    graph, target, version
        The query: a builder of the graph, a described target (``l40s``, ``sm80``), an installed cuDNN such as
        "9.19.0" (None: the newest). The complaint still appears with them.
    complaint
        The outcome. "crash": the process ends. "refused by us": the builder raises GraphError.
    cause, cause_words
        The cause, and words (case-insensitive) that a headline must contain if it names the cause.
    expected_message
        Part of cuDNN's innermost reason, verbatim; of our error if we refuse; the signal's name of a crash.
    message_source
        Where `expected_message` is found, if not there: in an outer reason, or in our headline if cuDNN gives none.
    remedy, remedy_kinds
        The remedy as text, and the kinds of change that are remedies.
    fixed_graph, fixed_target, fixed_version
        The remedy applied: graph (None: the same graph), target and version (None: the same). Supported.
    build
        Whether the complaint appears only when a plan is built.
    """

    name: str
    source: str
    title: str
    graph: Callable[[], Graph]
    target: str
    version: str | None = None
    complaint: Complaint = "not supported"
    cause: str
    cause_words: tuple[str, ...]
    expected_message: str
    message_source: MessageSource = "innermost reason"
    remedy: str
    remedy_kinds: tuple[RemedyKind, ...]
    fixed_graph: Callable[[], Graph] | None = None
    fixed_target: str | None = None
    fixed_version: str | None = None
    build: bool = False
