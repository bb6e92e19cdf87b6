"""Command line of the torture tests: ``python -m tests.torture [AREA ...] [--minutes M | --rounds N] [--seed S]``."""

from __future__ import annotations

import argparse
import itertools
import time

from tests.torture.harness import AREAS, run_rounds_of_area


def main() -> int:
    """Run the areas one after the other, each for its share of the time; exit with 1 if there was a failure."""
    parser = argparse.ArgumentParser(prog="python -m tests.torture", description=__doc__)
    parser.add_argument(
        "areas", nargs="*", metavar="AREA", help=f"areas to test: {', '.join(AREAS)}; all if none is given"
    )
    parser.add_argument("--minutes", type=float, default=5.0, help="total time of all areas in minutes")
    parser.add_argument("--rounds", type=int, help="number of rounds per area, instead of a time limit")
    parser.add_argument(
        "--seed", type=int, default=0, help="seed of the first round; later rounds have the following numbers"
    )
    chosen = parser.parse_args()
    areas = chosen.areas or AREAS
    if unknown := set(areas) - set(AREAS):
        parser.error(f"there is no area {', '.join(sorted(unknown))}")
    failed = 0
    for area in areas:
        if chosen.rounds is not None:
            report = run_rounds_of_area(area, range(chosen.seed, chosen.seed + chosen.rounds))
        else:
            share = chosen.minutes * 60 / len(areas)
            report = run_rounds_of_area(area, itertools.count(chosen.seed), until=time.monotonic() + share)
        print("\n".join(report.list_report_lines()), flush=True)
        failed += len(report.failures)
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
