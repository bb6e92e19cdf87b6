"""Judge the typical graphs of tests/support/typical_graphs.py by architecture and cuDNN version, without a GPU.

``python -m tools.records.operation_support 9.14.0-full 9.19.0-full default`` judges with these versions, which need
all engines, and writes ``docs/tables/operation-support.json``; ``make regen`` writes its
table in docs/operations.md.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cudnn_backend_py.diagnose import Matrix, Outcome, matrix
from cudnn_backend_py.diagnose.surveys.inputs import find_version_number

__all__ = ["NOT_MEASURED", "SUPPORT_TABLE_PATH", "describe_supporting_versions", "read_support_table"]

SUPPORT_TABLE_PATH = Path(__file__).parents[2] / "docs" / "tables" / "operation-support.json"
NOT_MEASURED = "not measured yet"
JUDGED_TARGETS = ("sm80", "sm86", "sm89", "sm90", "sm100", "sm103", "sm120")


def read_support_table() -> Matrix:
    """Return the stored verdicts of all graphs, by architecture and cuDNN version."""
    return Matrix.from_dict(json.loads(SUPPORT_TABLE_PATH.read_text(encoding="utf-8")))


def describe_supporting_versions(found: Matrix, graphs: Sequence[str], target: str) -> str:
    """Return a table cell: the cuDNN versions in which a target supports at least one of the graphs."""
    graphs = [graph for graph in graphs if graph in found.graphs]
    if not graphs:
        return NOT_MEASURED
    outcomes = [{found.cells[graph, target, version].outcome for graph in graphs} for version in found.versions]
    yes = [version for version, said in zip(found.versions, outcomes, strict=True) if Outcome.SUPPORTED in said]
    unknown = any(Outcome.SUPPORTED not in said and Outcome.NOT_JUDGED in said for said in outcomes)
    if len(yes) == len(found.versions):
        return "yes"
    listed = f"from {yes[0]}" if yes and yes == list(found.versions[-len(yes) :]) else ", ".join(yes)
    return (listed or "no") + (" (other versions not judged)" if unknown else "")


def _remove_known_issues_and_remarks(found: Matrix) -> dict[str, Any]:
    data, left = found.to_dict(), ("hazards", "remarks")
    return data | {"cells": [{key: cell[key] for key in cell if key not in left} for cell in data["cells"]]}


def main() -> None:
    """Judge all graphs and store the verdicts."""
    from tests.support.typical_graphs import TYPICAL_GRAPHS

    parser = argparse.ArgumentParser(description="Judge every kind of operation.")
    parser.add_argument("versions", nargs="+")
    versions = {find_version_number(name).partition("-")[0]: name for name in parser.parse_args().versions}
    found = matrix({name: case.make() for name, case in TYPICAL_GRAPHS.items()}, JUDGED_TARGETS, versions)
    data = _remove_known_issues_and_remarks(found)
    rows = ",\n".join(json.dumps(cell, ensure_ascii=False) for cell in data.pop("cells"))
    head = json.dumps(data, indent=1).removesuffix("\n}")
    SUPPORT_TABLE_PATH.write_text(f'{head},\n "cells": [\n{rows}\n]}}\n', encoding="utf-8")


if __name__ == "__main__":
    main()
