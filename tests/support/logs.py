"""Logs for tests: write captured records as log files, and compare graphs without facts that logs omit."""

from __future__ import annotations

import gzip
from collections.abc import Iterable
from dataclasses import fields
from pathlib import Path
from typing import Any

from cudnn_backend_py import Graph
from cudnn_backend_py.graph import Op, Operation, Parameters, Tensor
from cudnn_backend_py.importers.cudnn_json import drop_fields_at_default
from cudnn_backend_py.native.log import LogRecord

__all__ = ["LOG_FOLDER", "format_log_file", "make_comparable_graph", "read_log_text"]

LOG_FOLDER = Path(__file__).parents[1] / "pure" / "importers" / "data" / "logs"
_FIELDS_NOT_LOGGED = ("name", "value", "scratch")


def read_log_text(name: str) -> str:
    """Return the text of a log in tests/pure/importers/data/logs."""
    path = LOG_FOLDER / name
    data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    return data.decode()


def format_log_file(records: Iterable[LogRecord]) -> str:
    """Return captured records as the text of a cuDNN log file."""
    parts = []
    for record in records:
        letter = record.severity.name[0]
        first, *rest = record.text.splitlines()
        parts.append("\n".join([f"\n{letter}! {first}", *(f"{letter.lower()}! {line}" for line in rest), "\n"]))
    return "\n".join(parts)


def make_comparable_graph(graph: Graph) -> frozenset[Any]:
    """Return a comparable form of a graph without names, order, host scalar values and explicit defaults."""
    return frozenset(map(_make_comparable_value, graph.ops))


def _make_comparable_value(value: Any) -> Any:
    if isinstance(value, Tensor):
        return tuple(
            (item.name, _make_comparable_value(getattr(value, item.name)))
            for item in fields(value)
            if item.name not in _FIELDS_NOT_LOGGED
        )
    if isinstance(value, Graph):
        return make_comparable_graph(value)
    if isinstance(value, (Parameters, Operation)):
        found = drop_fields_at_default(value.kind, value.fields)
        return value.kind, frozenset((key, _make_comparable_value(item)) for key, item in found.items())
    if isinstance(value, Op):
        return type(value), tuple(
            (item.name, _make_comparable_value(getattr(value, item.name)))
            for item in fields(value)
            if item.name != "name"
        )  # type: ignore[arg-type]
    return tuple(map(_make_comparable_value, value)) if isinstance(value, tuple) else value
