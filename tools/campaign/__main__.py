"""Command line of a campaign of random graphs: ``python -m tools.campaign``."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from .graphs import GRAPH_FAMILIES
from .runner import RandomGraphCampaignOptions, run_random_graphs_for_a_time

__all__ = ["main"]


def main() -> None:
    """Run a campaign, print its findings, and exit with 1 if a result is wrong without a known issue."""
    parser = argparse.ArgumentParser(prog="python -m tools.campaign", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="run time in seconds")
    parser.add_argument("--most", type=int, default=1_000_000, help="largest number of graphs")
    parser.add_argument("--seed", type=int, default=0, help="seed of the first graph")
    parser.add_argument("--families", default="", help=f"families separated by commas: {', '.join(GRAPH_FAMILIES)}")
    parser.add_argument("--target", help="described GPU to judge for; no kernel runs")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--gpus", type=int, default=1, help="number of GPUs that the processes share")
    parser.add_argument("--limit", type=float, default=30.0, help="time limit of one graph in seconds")
    parser.add_argument("--reduce", type=float, default=15.0, help="time limit for reducing one failure, in seconds")
    parser.add_argument("--data", default="", help="use only this kind of input data: uniform, integers or hostile")
    parser.add_argument("--build", action="store_true", help="for a described GPU: also build plans")
    parser.add_argument("--no-interpreter", action="store_true", help="for a described GPU: do not run the interpreter")
    parser.add_argument("--output", type=Path, help="file for one JSON line per graph")
    parser.add_argument("--resume", type=Path, help="output of an earlier campaign; its graphs are not judged again")
    parser.add_argument("--record", type=Path, help="file for the results as JSON")
    given = parser.parse_args()
    options = RandomGraphCampaignOptions(
        seconds=given.seconds,
        most=given.most,
        seed=given.seed,
        families=tuple(filter(None, given.families.split(","))),
        target=given.target,
        processes=given.processes,
        gpus=given.gpus,
        limit_s=given.limit,
        reduce_s=given.reduce,
        data=given.data,
        build=given.build,
        interpret=not given.no_interpreter,
    )
    found = run_random_graphs_for_a_time(options, given.output, given.resume)
    print(found.render())
    if given.record is not None:
        given.record.write_text(json.dumps(found.to_dict(), indent=1) + "\n", encoding="utf-8")
    raise SystemExit(any(not failure["faults"] for failure in found.failures))


if __name__ == "__main__":
    main()
