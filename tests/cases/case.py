"""The form of a case: its thread, the question, the cause, and the remedy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from cudnn_backend_py import Graph

__all__ = ["CHANGES", "NEWEST", "Case", "Change", "Complaint", "Speaker"]

NEWEST = "9.28.0"  # as a cure: the version that a case without one is asked of

Complaint = Literal["not supported", "crash", "supported", "refused by us"]

Speaker = Literal["innermost reason", "any reason", "our headline"]

Change = Literal[
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

CHANGES: tuple[Change, ...] = Change.__args__  # type: ignore[attr-defined]


@dataclass(frozen=True, kw_only=True)
class Case:
    """One public thread, rebuilt.

    Attributes
    ----------
    name, source, title
        A short name, the thread's URL, and the user's complaint in our words.
    graph, target, version
        What was asked: a builder of the graph, a described target (``l40s``, ``sm80``), an installed cuDNN such as
        "9.19.0" (None: the newest). The complaint still shows there.
    complaint
        The outcome. "crash": the process ends. "refused by us": the builder raises GraphError.
    cause, cause_words
        What is wrong, and words a headline that has found it must contain, in any case.
    says
        Part of cuDNN's innermost reason, as it says it; of our error if we refuse; the signal's name of a crash.
    said_in
        Where `says` is found, if not there: in a reason further out, or in our headline where cuDNN says nothing.
    cure, cures
        What helps, and the kinds of change that do.
    fixed, fixed_target, fixed_version
        The cure applied: graph (None: the same graph), target and version (None: the same). Supported.
    build
        Whether the complaint shows only when a plan is built.
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
    says: str
    said_in: Speaker = "innermost reason"
    cure: str
    cures: tuple[Change, ...]
    fixed: Callable[[], Graph] | None = None
    fixed_target: str | None = None
    fixed_version: str | None = None
    build: bool = False
