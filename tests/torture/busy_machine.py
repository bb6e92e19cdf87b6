"""Compare verdicts on a quiet and on a busy machine: explain the same graphs in one process, then in six at once.

``python -m tests.torture.busy_machine`` uses random graphs, most of them refused, some with built plans, and prints the
differences.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from cudnn_backend_py.diagnose import Judge, Outcome, Query, Verdict
from cudnn_backend_py.diagnose.fork import TIMEOUT_REMARK
from tests.torture.harness import VERSIONS
from tests.torture.remedies import TARGETS, make_random_graphs

__all__ = ["compare_verdicts_of_idle_and_busy_machine", "make_random_queries"]

QUERY_LIMIT_S = 600.0
_MIN_REFUSED_SHARE = 0.8  # smallest share of refused graphs


def make_random_queries(count: int, seed: int, built: float = 0.2) -> list[Query]:
    """Return queries of random graphs, four in five of them refused; a share `built` of all also builds plans."""
    rng = random.Random(f"busy {seed}")
    drawn = {version: make_random_graphs(rng, version) for version in VERSIONS}
    found: list[Query] = []
    others = 0
    with Judge() as judge:
        while len(found) < count:
            version = rng.choice(VERSIONS)
            question = Query(next(drawn[version]), rng.choice(TARGETS), version, build=rng.random() < built)
            refused = judge.run_query(Query(question.graph, question.target, version, causes=False))
            if refused.outcome is not Outcome.NOT_SUPPORTED:
                if others >= count * (1 - _MIN_REFUSED_SHARE):
                    continue
                others += 1
            found.append(question)
    return found


def explain_in_parallel(queries: Sequence[Query], processes: int) -> list[Verdict]:
    """Return the verdict on each query, judged by this many processes in parallel."""
    with Judge(limit_s=QUERY_LIMIT_S) as judge, ThreadPoolExecutor(processes) as pool:
        return list(pool.map(judge.run_query, queries))


def compare_verdicts_of_idle_and_busy_machine(
    alone: Sequence[Verdict], busy: Sequence[Verdict]
) -> tuple[Counter[str], list[str]]:
    """Return counts, and a line for each pair of verdicts that differ without a report of a time limit."""
    counts: Counter[str] = Counter()
    lines = []
    for one, other in zip(alone, busy, strict=True):
        counts[one.outcome.value] += 1
        counts["measured"] += one.cause is not None and one.cause.basis == "measured"
        counts["with a remedy"] += one.cause is not None and one.cause.remedy != ""
        late = [any(line.startswith(TIMEOUT_REMARK) for line in verdict.limits) for verdict in (one, other)]
        counts["timed out on the quiet machine"] += late[0]
        counts["timed out on the busy machine"] += late[1]
        if _summarize_verdict(one) == _summarize_verdict(other):
            counts["the same"] += 1
        elif not any(late):
            lines.append(
                f"{one.graph!r} on {one.target}, cuDNN {one.cudnn}:\n"
                f"  {_summarize_verdict(one)}\n  {_summarize_verdict(other)}"
            )
    return counts, lines


def _summarize_verdict(verdict: Verdict) -> tuple[object, ...]:
    return verdict.outcome, verdict.stage, verdict.cause, verdict.only_fallback


def main(given: Sequence[str] | None = None) -> int:
    """Explain random graphs one at a time and several at a time, and print the differences."""
    parser = argparse.ArgumentParser(prog="python -m tests.torture.busy_machine", description=main.__doc__)
    parser.add_argument("--graphs", type=int, default=200)
    parser.add_argument("--processes", type=int, default=6)
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args(given)
    queries = make_random_queries(chosen.graphs, chosen.seed)
    times = [time.monotonic()]
    answers = []
    for processes in (1, chosen.processes):
        answers.append(explain_in_parallel(queries, processes))
        times.append(time.monotonic())
        print(f"{len(queries)} graphs, {processes} at a time: {times[-1] - times[-2]:.0f} s", flush=True)
    counts, lines = compare_verdicts_of_idle_and_busy_machine(*answers)
    counts["built"] = sum(question.build for question in queries)
    print("\n".join([*(f"{count:>6}  {what}" for what, count in sorted(counts.items())), *lines]))
    print(f"{len(lines)} differ")
    return int(bool(lines))


if __name__ == "__main__":
    sys.exit(main())
