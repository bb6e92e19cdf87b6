"""A judging process: load cuDNN and import modules at the same time, then answer queries."""

from __future__ import annotations

from ..system.gc_pause import collect_garbage_rarely
from ..system.serving import serve
from .loading import load_library_in_thread

__all__ = ["serve_judge"]


def serve_judge() -> None:
    """In a child process: answer the queries that a :class:`~cudnn_backend_py.diagnose.judges.Judge` sends."""
    collect_garbage_rarely()
    with load_library_in_thread():
        from .judging_answers import can_judge_query_in_fork, judge_and_report_query
    serve(judge_and_report_query, can_judge_query_in_fork)
