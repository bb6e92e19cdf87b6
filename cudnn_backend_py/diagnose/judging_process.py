"""The program of a judging process: it loads cuDNN and imports what judging needs at the same time, then answers."""

from __future__ import annotations

import gc

from ..system.serving import serve
from .loading import loading_library

__all__ = ["serve_judge"]

_YOUNG_OBJECTS = 100_000  # before garbage is looked for: what judging imports is none, and is not half as many


def serve_judge() -> None:
    """In a child process: answer the queries that a :class:`~cudnn_backend_py.diagnose.judges.Judge` sends."""
    gc.set_threshold(_YOUNG_OBJECTS)
    with loading_library():
        from .judging_answers import answer_query, can_answer_in_fork
    serve(answer_query, can_answer_in_fork)
