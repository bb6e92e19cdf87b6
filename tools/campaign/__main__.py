"""``python -m tools.campaign``: a campaign of random graphs from the command line."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from .graphs import GRAPH_FAMILIES
from .runner import CampaignOptions, run_campaign

__all__ = ["main"]


def main() -> None:
    """Run a campaign, print its findings, and exit with 1 if a result is wrong without a known issue."""
    parser = argparse.ArgumentParser(prog="python -m tools.campaign", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="how long it runs")
    parser.add_argument("--most", type=int, default=1_000_000, help="graphs at most")
    parser.add_argument("--seed", type=int, default=0, help="of the first graph")
    parser.add_argument("--families", default="", help=f"separated by commas, of {', '.join(GRAPH_FAMILIES)}")
    parser.add_argument("--target", help="a described GPU, on which nothing runs")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--gpus", type=int, default=1, help="that the processes are spread over")
    parser.add_argument("--limit", type=float, default=30.0, help="seconds for one graph")
    parser.add_argument("--reduce", type=float, default=15.0, help="seconds to make one failure small")
    parser.add_argument("--data", default="", help="one kind of data: uniform, integers or hostile")
    parser.add_argument("--build", action="store_true", help="build plans for a described GPU, too")
    parser.add_argument("--no-interpreter", action="store_true", help="on a described GPU: query cuDNN alone")
    parser.add_argument("--output", type=Path, help="a line of JSON for each graph")
    parser.add_argument("--resume", type=Path, help="an earlier output file; its graphs are not judged again")
    parser.add_argument("--record", type=Path, help="what was found, as JSON")
    given = parser.parse_args()
    options = CampaignOptions(
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
    found = run_campaign(options, given.output, given.resume)
    print(found.render())
    if given.record is not None:
        given.record.write_text(json.dumps(found.to_dict(), indent=1) + "\n", encoding="utf-8")
    raise SystemExit(any(not failure["faults"] for failure in found.failures))


if __name__ == "__main__":
    main()
