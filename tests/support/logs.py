"""Logs for tests: the file form of captured records, and graphs compared up to names and facts missing in a log."""

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

__all__ = ["LOGS", "canonical", "file_form", "log_text"]

LOGS = Path(__file__).parents[1] / "pure" / "importers" / "data" / "logs"
_NOT_LOGGED = ("name", "value", "scratch")


def log_text(name: str) -> str:
    """Return the text of a log under tests/pure/importers/data/logs."""
    path = LOGS / name
    data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    return data.decode()


def file_form(records: Iterable[LogRecord]) -> str:
    """Return records in the form of cuDNN's log files."""
    parts = []
    for record in records:
        letter = record.severity.name[0]
        first, *rest = record.text.splitlines()
        parts.append("\n".join([f"\n{letter}! {first}", *(f"{letter.lower()}! {line}" for line in rest), "\n"]))
    return "\n".join(parts)


def canonical(graph: Graph) -> frozenset[Any]:
    """Return a form of a graph without names, order, values of host scalars and explicit defaults."""
    return frozenset(map(_plain, graph.ops))


def _plain(value: Any) -> Any:
    if isinstance(value, Tensor):
        return tuple(
            (item.name, _plain(getattr(value, item.name))) for item in fields(value) if item.name not in _NOT_LOGGED
        )
    if isinstance(value, Graph):
        return canonical(value)
    if isinstance(value, (Parameters, Operation)):
        found = drop_defaults(value.kind, value.fields)
        return value.kind, frozenset((key, _plain(item)) for key, item in found.items())
    if isinstance(value, Op):
        return type(value), tuple(
            (item.name, _plain(getattr(value, item.name))) for item in fields(value) if item.name != "name"
        )  # type: ignore[arg-type]
    return tuple(map(_plain, value)) if isinstance(value, tuple) else value
