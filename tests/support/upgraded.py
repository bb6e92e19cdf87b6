"""``python -m tests.support.upgraded OLD NEW FILE``: a record of 200 random graphs by two versions, on an H100."""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from pathlib import Path

from cudnn_backend_py.diagnose.surveys.upgrade import Change, compare_versions
from cudnn_backend_py.graph import Graph
from cudnn_backend_py.tuning.campaign.graphs import FAMILIES, random_graph

COUNT = 200
TARGET = "h100"


def graphs(count: int = COUNT) -> dict[str, Graph]:
    """Return random graphs of every family in turn, of what the oldest version has."""
    families = [name for name in FAMILIES if name != "mode"]
    named = ((families[seed % len(families)], seed) for seed in range(count))
    return {f"{family} {seed}": random_graph(seed, family, version=(9, 14, 0)) for family, seed in named}


def summary(change: Change) -> dict[str, object]:
    """Return what a change comes to, without the configs."""
    return {
        "effect": change.effect,
        "differs": [item.what for item in change.differences],
        "same code": change.same_code,
    }


def main() -> None:
    """Write the record."""
    old, new, file = sys.argv[1:]
    began = time.monotonic()
    found = compare_versions(graphs(), [TARGET], old, new, progress=False)
    data = {
        "schema": "cudnn-backend-py/upgrade-record",
        "target": TARGET,
        "old": found.changes[0].old.cudnn,
        "new": found.changes[0].new.cudnn,
        "seconds": round(time.monotonic() - began, 1),
        "counts": {kind.value: count for kind, count in found.counts.items()},
        "differs": Counter(item.what for one in found.changes for item in one.differences),
        "changes": {one.graph: summary(one) for one in found.changes},
    }
    Path(file).write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
