"""Read records of GPU runs in logs/; without the record, a test is skipped with the command that writes it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest

__all__ = [
    "RECORD_COMMANDS",
    "RECORD_FOLDER",
    "list_records_as_test_parameters",
    "make_test_parameters_or_skip",
    "read_record",
    "require_record",
]

RECORD_FOLDER = Path(__file__).parents[2] / "logs"
# The command that writes a record, by the prefix of its name.
RECORD_COMMANDS: Mapping[str, str] = {
    "bench-": "python -m benchmarks run --output logs/NAME",
    "deep-scores-": "python -m tools.records.deep_scores logs/NAME",
    "edges-": "python -m tools.records.edge_runs logs/NAME",
    "frontend-costs-": "python -m benchmarks frontend --output logs/NAME",
    "frontend-tests-": "python -m tests.compat compare THEIRS OURS --out logs/NAME",
    "operations-": "python -m tools.records.built_runs logs/NAME",
    "run-": "cudnn-backend run FILE --format json",
    "ten-tasks": "python -m tools.records.ten_tasks WHEEL",
    "torch-calls-": "python -m benchmarks torch-calls --output logs/NAME",
    "upgrade-": "python -m tools.records.upgraded_gpu record GRAPHS CHECKED logs/NAME SECONDS",
}


def _make_skip_reason(name: str) -> str:
    """Return the reason to skip a test: the missing record, and the command that writes it."""
    command = next(command for start, command in RECORD_COMMANDS.items() if name.startswith(start))
    return f"did not run: no record logs/{name}; {command.replace('NAME', name.replace('*', 'NAME'))}"


def require_record(pattern: str) -> None:
    """Skip the test unless a record has a name of this pattern."""
    if not list(RECORD_FOLDER.glob(pattern)):
        pytest.skip(_make_skip_reason(pattern))


def read_record(name: str) -> Any:
    """Return the content of a record; skip the test if it is missing."""
    require_record(name)
    return json.loads((RECORD_FOLDER / name).read_text(encoding="utf-8"))


def list_records_as_test_parameters(start: str) -> list[Any]:
    """Return the paths of records with this name prefix as test parameters, or one skipped case."""
    paths = sorted(RECORD_FOLDER.glob(f"{start}*.json"))
    return [pytest.param(path, id=path.stem) for path in paths] or [_make_skipped_test_parameter(start)]


def make_test_parameters_or_skip(start: str, found: Iterable[str]) -> list[Any]:
    """Return the values found in records with this prefix as test parameters, or one skipped case."""
    return list(found) or [_make_skipped_test_parameter(start)]


def _make_skipped_test_parameter(start: str) -> Any:
    return pytest.param(None, id="no record", marks=pytest.mark.skip(reason=_make_skip_reason(f"{start}*.json")))
