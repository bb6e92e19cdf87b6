"""Compare 200 random graphs between two cuDNN versions: ``python -m tools.records.upgraded OLD NEW FILE``.

Graphs reported as unchanged are judged again with both versions by separate code, and compared byte by byte.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from cudnn_backend_py.diagnose.surveys.upgrade import Change, Effect, compare_versions
from cudnn_backend_py.graph import Graph, save_graph
from cudnn_backend_py.versions.judging_environment import make_version_environment
from tests.support.child import run_python
from tools.campaign.graphs import GRAPH_FAMILIES, make_random_graph

GRAPH_COUNT = 200
JUDGED_TARGET = "h100"


def make_random_graphs(count: int = GRAPH_COUNT) -> dict[str, Graph]:
    """Return random graphs by name, of every family in turn, with operations that the oldest version has."""
    families = [name for name in GRAPH_FAMILIES if name != "mode"]
    named = ((families[seed % len(families)], seed) for seed in range(count))
    return {f"{family} {seed}": make_random_graph(seed, family, version=(9, 14, 0)) for family, seed in named}


CHILD_PROGRAM = """
import base64, json, struct, sys
from cudnn_backend_py import explain, load_graph

def instructions(elf):
    table, (size, count, names) = struct.unpack_from("<Q", elf, 40)[0], struct.unpack_from("<HHH", elf, 58)
    sections = [struct.unpack_from("<IIQQQQ", elf, table + size * number) for number in range(count)]
    named = [(elf[sections[names][4] + one[0] :].partition(b"\\0")[0], one) for one in sections]
    return [elf[at : at + length].hex() for name, (_, _, _, _, at, length) in named if name.startswith(b".text.")]

plans = []
modes = ("A", "B", "FALLBACK")
verdict = explain(load_graph(sys.argv[1]), "h100", mode=modes, build=True, causes=False, plans=plans)
kernels = json.loads(plans[0].json())["engine"]["payload"]["kernels"] if plans else []
tags = [(c.mode, c.tag) for c in verdict.candidates if c.state in ("supported", "built", "build failed")]
code = [instructions(base64.b64decode(k["cubin"])) for k in kernels]
print(json.dumps([verdict.outcome, tags, code, [h for h in verdict.hazards]]))
"""


def run_with_version(version: str, path: Path) -> str:
    """Judge a graph file with a cuDNN version; return JSON of the verdict, supported configs and kernel code."""
    environment = make_version_environment(None if version == "default" else version)
    return run_python(["-c", CHILD_PROGRAM, str(path)], environment=environment, check=True).stdout


def find_graphs_with_changed_outcome(random_graphs: Mapping[str, Graph], old: str, new: str, folder: Path) -> list[str]:
    """Return the names of graphs with different output from two versions."""
    path, found = folder / "graph.json", []
    for name, graph in random_graphs.items():
        save_graph(graph, path)
        if run_with_version(old, path) != run_with_version(new, path):
            found.append(name)
    return found


def summarize_outcome_change(change: Change) -> dict[str, object]:
    """Return how a graph's outcome changed between two versions, without the engine configs."""
    return {
        "effect": change.effect,
        "differs": [item.what for item in change.differences],
        "same code": change.has_same_code,
    }


def main() -> None:
    """Compare the random graphs between the two versions, and write the record."""
    old, new, file = sys.argv[1:]
    began = time.monotonic()
    all_graphs = make_random_graphs()
    found = compare_versions(all_graphs, [JUDGED_TARGET], old, new, progress=False)
    seconds = round(time.monotonic() - began, 1)
    unchanged = {one.graph: all_graphs[one.graph] for one in found.changes if one.effect is Effect.UNCHANGED}
    with tempfile.TemporaryDirectory() as folder:
        others = find_graphs_with_changed_outcome(unchanged, old, new, Path(folder))
    data = {
        "schema": "cudnn-backend-py/upgrade-record",
        "target": JUDGED_TARGET,
        "old": found.changes[0].old.cudnn,
        "new": found.changes[0].new.cudnn,
        "seconds": seconds,
        "counts": {kind.value: count for kind, count in found.counts.items()},
        "unchanged, not the same byte by byte": others,
        "differs": Counter(item.what for one in found.changes for item in one.differences),
        "changes": {one.graph: summarize_outcome_change(one) for one in found.changes},
    }
    Path(file).write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
