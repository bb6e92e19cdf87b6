"""Measure how a cuDNN upgrade changes times on this machine's GPU, and confirm it in new processes.

``python -m tools.records.upgraded_gpu graphs FOLDER`` writes 48 random graphs and 8 of attention at training
lengths; ``cudnn-backend diff OLD NEW --time --format json --output CHECKED FOLDER/*.json`` is the command under
test; ``python -m tools.records.upgraded_gpu record FOLDER CHECKED FILE SECONDS`` repeats its timings in new
processes, and writes the record.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from cudnn_backend_py.diagnose.surveys.inputs import read_judging_environments
from cudnn_backend_py.diagnose.surveys.upgrade import SLOWDOWN_LIMIT
from cudnn_backend_py.graph import Graph, load_graph, save_graph
from cudnn_backend_py.graph.attention import sdpa_backward, sdpa_forward
from cudnn_backend_py.info import make_measurement_record_header, write_record
from cudnn_backend_py.plans.build import shared_target
from cudnn_backend_py.tuning.upgrade import TimePair, _time_all_graphs
from tools.records.upgraded import make_random_graphs

GRAPH_COUNT = 48
ATTENTION_SIZES = ((512, 64, True), (2048, 64, False), (2048, 128, True), (8192, 128, True))  # length, head dim, causal
TOKENS, WIDTH, AT_ONCE = 16384, 2048, 4


def make_random_and_attention_graphs() -> dict[str, Graph]:
    """Return random graphs and attention graphs by name."""
    found = make_random_graphs(GRAPH_COUNT)
    for seq, dim, causal in ATTENTION_SIZES:
        sizes: dict[str, Any] = {"batch": TOKENS // seq, "heads": WIDTH // dim, "seq_q": seq, "head_dim": dim}
        found[f"forward s{seq} d{dim}"] = sdpa_forward(**sizes, causal=causal)
        found[f"backward s{seq} d{dim}"] = sdpa_backward(**sizes, causal=causal)
    return {name: replace(graph, name=name) for name, graph in found.items()}


def compute_new_to_old_time_ratio(us: TimePair | None) -> float | None:
    """Return the time of the new version relative to the old one."""
    return None if us is None or us[0] is None or us[1] is None else us[1] / us[0]


def get_rounded_time_ratio(name: str, ratios: Mapping[str, float | None]) -> float | None:
    """Return the ratio of a graph with three decimals, None if it was not measured."""
    found = ratios.get(name)
    return None if found is None else round(found, 3)


def find_graphs_with_changed_time(ratios: Mapping[str, float | None]) -> list[str]:
    """Return the names of graphs with a time change of more than 5 %."""
    return [name for name, one in ratios.items() if one is not None and not 1 / SLOWDOWN_LIMIT <= one <= SLOWDOWN_LIMIT]


def time_graphs_in_new_processes(
    names: Iterable[str], random_graphs: Mapping[str, Graph], versions: tuple[str | None, str | None], until: float
) -> dict[str, float | None]:
    """Return by graph the ratio of new to old time, measured in new processes."""
    return {
        name: compute_new_to_old_time_ratio(us)
        for name, us in _time_all_graphs(list(names), random_graphs, versions, AT_ONCE, until, str)
    }


def time_graphs_and_make_upgrade_record(folder: Path, checked: Mapping[str, Any], seconds: float) -> dict[str, Any]:
    """Time graphs again in new processes, those with changed times first, until the time is over; return the record."""
    until = time.monotonic() + seconds
    old, new = (
        setup.version for setup in read_judging_environments([str(checked["old"]), str(checked["new"])]).values()
    )
    random_graphs = {graph.name: graph for graph in map(load_graph, folder.glob("*.json"))}
    timed = {one["graph"]: one["times"] for one in checked["changes"] if one["times"] is not None}
    first = {name: compute_new_to_old_time_ratio((times["old_us"], times["new_us"])) for name, times in timed.items()}
    changed = find_graphs_with_changed_time(first)
    names = sorted(first, key=lambda name: name not in changed)
    again = time_graphs_in_new_processes(names, random_graphs, (old, new), until)
    same = time_graphs_in_new_processes(names, random_graphs, (old, old), until)
    changes = {
        one["graph"]: {
            "effect": one["effect"],
            "differs": [item["what"] for item in one["differences"]],
            "same code": one["same_code"],
            "times": one["times"],
            "new / old": [get_rounded_time_ratio(one["graph"], ratios) for ratios in (first, again)],
            "old / old": get_rounded_time_ratio(one["graph"], same),
        }
        for one in checked["changes"]
    }
    return {
        **make_measurement_record_header("upgrade-gpu-record"),
        "gpu_name": shared_target().profile.title,
        "versions": [checked["changes"][0][which]["cudnn"] for which in ("old", "new")],
        "counts": checked["counts"],
        "limits": checked["limits"],
        "timed": len(timed),
        "same code, timed": [name for name in timed if changes[name]["same code"]],
        "flagged": changed,
        "flagged by the second pass": find_graphs_with_changed_time(again),
        "second pass": len(again),
        "flagged, old against itself": find_graphs_with_changed_time(same),
        "old against itself": len(same),
        "changes": changes,
    }


def main() -> None:
    """Write the random graphs, or measure and write the record, as the first command-line argument says."""
    what, folder, *more = sys.argv[1:]
    if what == "graphs":
        Path(folder).mkdir()
        for name, graph in make_random_and_attention_graphs().items():
            save_graph(graph, Path(folder) / f"{name.replace(' ', '-')}.json")
        return
    checked, file, seconds = more
    record = time_graphs_and_make_upgrade_record(
        Path(folder), json.loads(Path(checked).read_text(encoding="utf-8")), float(seconds)
    )
    write_record(record, Path(file))
    print({name: record[name] for name in record if name != "changes"})


if __name__ == "__main__":
    main()
