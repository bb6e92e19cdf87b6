"""In a judging child process: answer the queries that :mod:`~cudnn_backend_py.diagnose.judges` sends."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, TypedDict

from ..errors import CudnnBackendError
from ..graph import Graph, graph_from_json
from ..native import loaded_library
from ..system.serving import AnswerWriter
from ..target import open_target
from .explanation import control_graph, explain
from .query import read_device
from .verdict import Basis, Outcome

__all__ = ["LoadedLibrary", "can_judge_query_in_fork", "judge_and_report_query"]


class LoadedLibrary(TypedDict):
    """The cuDNN library that a judging child process has loaded."""

    version: Sequence[int]
    text: str
    path: str


@lru_cache(maxsize=256)
def _read_graph_cached(text: str) -> Graph:
    return graph_from_json(json.loads(text))


_prepared_libraries: set[str] = (
    set()
)  # devices whose control graph was queried here: forks need not load and ask all that


def can_judge_query_in_fork(asked: Mapping[str, Any], say: AnswerWriter) -> bool:
    """Return whether a forked process can answer a query; load cuDNN for the fork if so."""
    profile = read_device(asked["device"])
    if not (asked["fresh"] and asked["build"]) or profile is None:
        return False
    if asked["device"] not in _prepared_libraries:
        explain(control_graph(), profile, step=_make_step_reporter(say))
        _prepared_libraries.add(asked["device"])
    return True


def _make_step_reporter(say: AnswerWriter) -> Callable[[str], None]:
    def report_step(text: str) -> None:
        if (lib := loaded_library()) is None:
            say(step=text)
        else:
            say(step=text, loaded=LoadedLibrary(version=lib.version, text=lib.build_text, path=lib.path))

    return report_step


_QUERY_OPTIONS = ("build", "execute", "skip", "causes", "shapes", "every_engine", "code", "engine")


def judge_and_report_query(asked: Mapping[str, Any], say: AnswerWriter) -> None:
    """Judge the graph of a query, and report the steps and the verdict through `say`."""
    verdict = explain(
        _read_graph_cached(asked["graph"]),
        read_device(asked["device"]),
        mode=asked["modes"],
        step=_make_step_reporter(say),
        **{name: asked[name] for name in _QUERY_OPTIONS},
    )
    measured = verdict.cause is not None and verdict.cause.basis is Basis.MEASURED
    if verdict.live and verdict.outcome is Outcome.NOT_SUPPORTED and asked["causes"] and not measured:
        with contextlib.suppress(CudnnBackendError), contextlib.closing(open_target()) as target:
            say(device=dict(target.profile.properties))
    say(verdict=verdict.to_dict())
