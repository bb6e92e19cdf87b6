"""Collect cuDNN's refusal reasons from random graphs, judged for described GPUs.

``python -m tools.records.reasons --minutes 5 --version 9.19.0`` adds the reasons to
``docs/tables/reasons.json``; the site has an entry for each of them.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cudnn_backend_py import GraphError
from cudnn_backend_py.diagnose import Judge, Query, Verdict
from cudnn_backend_py.graph.replace import iterate_all_ops
from cudnn_backend_py.plans.refusals import Reason
from cudnn_backend_py.system.version import parse_version_numbers
from tests.support.randomly_changed_graphs import iterate_random_mutants
from tools.website.reasons import make_reason_search_key

__all__ = ["REASONS_TABLE_PATH", "collect_reasons_of_random_graphs", "judge_random_graphs", "list_reasons"]

REASONS_TABLE_PATH = Path(__file__).parents[2] / "docs" / "tables" / "reasons.json"
TARGETS = ("sm80", "sm86", "sm89", "sm90", "sm100", "sm103", "sm120")
TABLE_SCHEMA = "cudnn-backend-py/reasons"


def list_reasons(verdict: Verdict) -> set[Reason]:
    """Return all of cuDNN's reasons in a verdict."""
    found = {reason for candidate in verdict.candidates for reason in candidate.reasons}
    return {reason for reason in found | set(verdict.reasons) if reason.status.startswith("CUDNN_STATUS_")}


def judge_random_graphs(seed: int, version: str | None = None) -> Iterator[tuple[Query, Verdict]]:
    """Yield queries of random graphs with their verdicts, without end."""
    rng = random.Random(seed)
    with Judge(limit_s=60.0) as judge:
        for drawn in iterate_random_mutants(rng):
            if not isinstance(drawn, GraphError):
                question = Query(drawn, rng.choice(TARGETS), version)
                yield question, judge.run_query(question)


def collect_reasons_of_random_graphs(table: dict[str, Any], seed: int, version: str | None, seconds: float) -> int:
    """Add reasons of random graphs to the table until the time is over; return the number of queries."""
    rows = {make_reason_search_key(row["text"]): row for row in table["reasons"]}
    end = time.monotonic() + seconds
    queries = 0
    for question, verdict in judge_random_graphs(seed, version):
        queries += 1
        kinds = {op.kind.name.removeprefix("OPERATION_") for op in iterate_all_ops(question.graph)}
        for reason in list_reasons(verdict):
            fresh = {
                "status": reason.status,
                "text": reason.text,
                "operations": sorted(kinds),
                "versions": [],
                "sm": [],
            }
            row = rows.setdefault(make_reason_search_key(reason.text), fresh)
            row["operations"] = sorted(kinds & set(row["operations"]))
            row["versions"] = sorted({*row["versions"], verdict.cudnn.partition("+")[0]}, key=parse_version_numbers)
            row["sm"] = sorted({*row["sm"], verdict.sm})
        if time.monotonic() > end:
            break
    table["asked"] += queries
    table["reasons"] = sorted(rows.values(), key=lambda row: (row["status"], row["text"]))
    return queries


def main() -> None:
    """Collect reasons for the given time, and store them."""
    parser = argparse.ArgumentParser(description="Collect cuDNN's reasons.")
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--version", default=None, help="installed cuDNN version; by default that of the environment")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, default=REASONS_TABLE_PATH)
    options = parser.parse_args()
    empty: dict[str, Any] = {"schema": TABLE_SCHEMA, "version": 1, "asked": 0, "reasons": []}
    table = json.loads(options.output.read_text()) if options.output.exists() else empty
    queries = collect_reasons_of_random_graphs(table, options.seed, options.version, 60 * options.minutes)
    options.output.parent.mkdir(parents=True, exist_ok=True)
    lines = ",\n".join("  " + json.dumps(row) for row in table.pop("reasons"))
    head = json.dumps(table, indent=1).removesuffix("\n}")
    options.output.write_text(f'{head},\n "reasons": [\n{lines}\n ]\n}}\n')
    print(f"{queries} questions")


if __name__ == "__main__":
    main()
