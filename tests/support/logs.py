"""Logs for tests: captured records as log files, and graphs compared without facts that logs omit."""

from __future__ import annotations

import gzip
from collections.abc import Iterable
from dataclasses import fields
from pathlib import Path
from typing import Any

from cudnn_backend_py import Graph
from cudnn_backend_py.graph import Op, Operation, Parameters, Tensor
from cudnn_backend_py.importers.cudnn_json import drop_defaults
from cudnn_backend_py.native.log import LogRecord

__all__ = ["LOGS", "graph_as_logged", "log_file_text", "log_text"]

LOGS = Path(__file__).parents[1] / "pure" / "importers" / "data" / "logs"
_NOT_LOGGED = ("name", "value", "scratch")


def log_text(name: str) -> str:
    """Return the text of a log in tests/pure/importers/data/logs."""
    path = LOGS / name
    data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    return data.decode()


def log_file_text(records: Iterable[LogRecord]) -> str:
    """Return captured records as the text of a cuDNN log file."""
    parts = []
    for record in records:
        letter = record.severity.name[0]
        first, *rest = record.text.splitlines()
        parts.append("\n".join([f"\n{letter}! {first}", *(f"{letter.lower()}! {line}" for line in rest), "\n"]))
    return "\n".join(parts)


def graph_as_logged(graph: Graph) -> frozenset[Any]:
    """Return a comparable form of a graph without names, order, host scalar values and explicit defaults."""
    return frozenset(map(_value_as_logged, graph.ops))


def _value_as_logged(value: Any) -> Any:
    if isinstance(value, Tensor):
        return tuple(
            (item.name, _value_as_logged(getattr(value, item.name)))
            for item in fields(value)
            if item.name not in _NOT_LOGGED
        )
    if isinstance(value, Graph):
        return graph_as_logged(value)
    if isinstance(value, (Parameters, Operation)):
        found = drop_defaults(value.kind, value.fields)
        return value.kind, frozenset((key, _value_as_logged(item)) for key, item in found.items())
    if isinstance(value, Op):
        return type(value), tuple(
            (item.name, _value_as_logged(getattr(value, item.name))) for item in fields(value) if item.name != "name"
        )  # type: ignore[arg-type]
    return tuple(map(_value_as_logged, value)) if isinstance(value, tuple) else value
