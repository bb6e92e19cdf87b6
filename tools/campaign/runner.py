"""Run random graphs in child processes for a given time, and collect failures and coverage.

Each child has its own CUDA context. If a child crashes, hangs or loses its context, its graph is recorded and another
child replaces it. The result of each graph is appended to a file, so that a later campaign can resume it without
judging these graphs again.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, Any

from cudnn_backend_py.errors import CudnnBackendError
from cudnn_backend_py.system.child import ONE_THREAD, TIMED_OUT, RestartingChildProcess
from tools.repository import make_child_environment

from .coverage import find_features_of_no_graph
from .graphs import ATTENTION_FAMILIES, GRAPH_FAMILIES

__all__ = ["FAMILY_WEIGHTS", "RandomGraphCampaignOptions", "RandomGraphCampaignResult", "run_random_graphs_for_a_time"]

FAMILY_WEIGHTS = {
    "convolution": 9, "matmul": 7, "pointwise": 6, "mode": 6, "reduction": 4, "norm": 5, "norm backward": 4,
    "batch norm": 3, "resample": 5, "moves": 2, "experts": 2, "fusion": 5, "rope": 1, "block scale": 1,
    "attention": 7, "attention backward": 6, "sdpa": 6, "sdpa backward": 6,
}  # fmt: skip
"""How often a graph is of each family."""

_WORKER_FUNCTION = "tools.campaign.worker:main"
_FIRST_GRAPH_EXTRA_S = 60.0  # additional time for the first graph of a child, which loads cuDNN
_MAX_TEXT_LENGTH = 300


@dataclass(frozen=True, kw_only=True)
class RandomGraphCampaignOptions:
    """Options of a campaign: its time, seed, graph families, target, child processes and limits.

    Attributes
    ----------
    seconds, most
        Limits of the campaign: seconds, and number of graphs.
    seed
        Seed of the first graph; each further one has the next.
    families
        Names of :data:`GRAPH_FAMILIES`; by default all that the target may support.
    target
        Described GPU, on which no kernel runs; None for the GPUs of this machine.
    processes, gpus
        Child processes, and the number of GPUs they share.
    limit_s, reduce_s
        Seconds for one graph, and for the reduction of one failure.
    data
        One kind of data for all graphs.
    build, interpret
        On a described target: also build the plans; also run the interpreter in both its modes.
    """

    seconds: float = 60.0
    most: int = 1_000_000
    seed: int = 0
    families: Sequence[str] = ()
    target: str | None = None
    processes: int = 1
    gpus: int = 1
    limit_s: float = 30.0
    reduce_s: float = 15.0
    data: str = ""
    build: bool = False
    interpret: bool = True


@dataclass
class RandomGraphCampaignResult:
    """Result of a campaign: counts by family, coverage, and failures with their smallest graphs."""

    counts: dict[str, Counter[str]] = field(default_factory=dict)
    coverage: Counter[str] = field(default_factory=Counter)
    engines: Counter[str] = field(default_factory=Counter)
    seconds: Counter[str] = field(default_factory=Counter)
    failures: list[dict[str, Any]] = field(default_factory=list)
    refusals: Counter[str] = field(default_factory=Counter)
    spent_s: float = 0.0

    def add(self, record: Mapping[str, Any]) -> None:
        """Add the outcome of one graph, as its child process reports it, to the counts."""
        counts = self.counts.setdefault(record["family"], Counter())
        counts["graphs"] += 1
        counts.update(record["outcomes"])
        if record["outcomes"].get("accepted"):
            self.coverage.update(record["cover"])
            self.engines[f"{record['family']}: {record['engine'].partition('_')[0]}"] += 1
        for name, spent in record["seconds"].items():
            self.seconds[name] += spent
        if record.get("refused"):
            self.refusals[f"{record['family']}: {record['refused'][:120]}"] += 1
        if record.get("failure"):
            self.failures.append(dict(record["failure"]))

    def sum_counts(self, *, attention: bool | None = None) -> Counter[str]:
        """Return the counts of all families, or only of those with or without attention."""
        found: Counter[str] = Counter()
        for family, counts in self.counts.items():
            if attention is None or (family in ATTENTION_FAMILIES) == attention:
                found.update(counts)
        return found

    def to_dict(self) -> dict[str, Any]:
        """Return the campaign's counts, grouped failures and coverage as plain data, to write as JSON."""
        return {
            "seconds": round(self.spent_s, 1),
            "outside attention": dict(self.sum_counts(attention=False)),
            "attention": dict(self.sum_counts(attention=True)),
            "families": {family: dict(counts) for family, counts in sorted(self.counts.items())},
            "unnamed failures": sum(not failure.get("faults") for failure in self.failures),
            "named failures": dict(Counter(f["faults"] for f in self.failures if f.get("faults")).most_common()),
            "failures": list(self._group_failures()),
            "covered": dict(sorted(self.coverage.items())),
            "not covered": find_features_of_no_graph(self.coverage),
            "engines": dict(self.engines.most_common()),
            "seconds by part": {name: round(spent, 1) for name, spent in self.seconds.items()},
        }

    def _group_failures(self) -> Iterator[dict[str, Any]]:
        """Yield groups of similar failures without a known issue: the count, and the first one's smallest graph."""
        unnamed = [failure for failure in self.failures if not failure.get("faults")]
        for alike, count in Counter(map(self._make_similarity_key, unnamed)).most_common():
            first = next(failure for failure in unnamed if self._make_similarity_key(failure) == alike)
            smallest = str(first.get("smallest", {}).get("text", ""))
            yield {
                "alike": alike,
                "count": count,
                "seed": first["seed"],
                "words": str(first.get("words", ""))[:_MAX_TEXT_LENGTH],
                "smallest": smallest,
            }

    @staticmethod
    def _make_similarity_key(failure: Mapping[str, Any]) -> str:
        """Return a key that is equal for failures that probably have the same cause."""
        words = str(failure.get("words", "")).lstrip("['").partition(":")[0]
        engine = failure.get("engine", "").partition("_")[0]
        return f"{failure['outcome']}, {failure['family']}, {failure.get('data', 'any')} data, {engine}, {words[:40]}"

    def render(self) -> str:
        """Return the campaign as text."""
        columns = ("graphs", "accepted", "refused", "compared", "differs", "not run", "not compared", "lost", "crashed")
        lines = [f"{'family':20}" + "".join(f"{name:>13}" for name in columns)]
        rows = [
            *sorted(self.counts.items()),
            ("outside attention", self.sum_counts(attention=False)),
            ("attention", self.sum_counts(attention=True)),
        ]
        lines += [f"{name:20}" + "".join(f"{counts[column]:13}" for column in columns) for name, counts in rows]
        by_subject: dict[str, list[str]] = {}
        for name, count in sorted(self.coverage.items()):
            subject, _, item = name.partition(" ")
            by_subject.setdefault(subject, []).append(f"{item} {count}")
        lines += [f"{subject}: {', '.join(items)}" for subject, items in by_subject.items()]
        lines += [
            f"no {subject}: {', '.join(names)}"
            for subject, names in find_features_of_no_graph(self.coverage).items()
            if names
        ]
        lines += [f"seconds: {', '.join(f'{name} {spent:.0f}' for name, spent in self.seconds.items())}"]
        named = Counter(failure["faults"] for failure in self.failures if failure["faults"])
        others = Counter(self._make_similarity_key(failure) for failure in self.failures if not failure["faults"])
        lines += [f"{count:5} of the known issue {name}" for name, count in named.most_common()]
        lines += [f"{count:5} without a known issue: {name}" for name, count in others.most_common()]
        for failure in self.failures:
            lines.append(
                f"-- {failure['outcome']}: {failure['family']}, seed {failure['seed']}, "
                + (failure["faults"] or "no known issue")
            )
            lines += [f"   {line}" for line in str(failure.get("words", ""))[:_MAX_TEXT_LENGTH].splitlines()]
            lines += [f"   {line}" for line in failure.get("smallest", {}).get("text", "").splitlines()]
        return "\n".join(lines)


def run_random_graphs_for_a_time(
    options: RandomGraphCampaignOptions, output: Path | None = None, resume: Path | None = None
) -> RandomGraphCampaignResult:
    """Run random graphs for the given time, and return the results.

    Parameters
    ----------
    output
        File for a line of JSON per graph.
    resume
        File of an earlier campaign: its graphs count and are not judged again; it may be `output` itself.

    Raises
    ------
    CudnnBackendError
        The error of the first child of each process if it cannot start at all.
    """
    campaign, done, began = RandomGraphCampaignResult(), set(), time.monotonic()
    for line in resume.read_text(encoding="utf-8").splitlines() if resume is not None and resume.exists() else ():
        record = json.loads(line)
        done.add(record["seed"])
        campaign.add(record)
    tasks = _make_random_seeds_and_families(options, done)
    lock = threading.Lock()
    troubles: list[CudnnBackendError] = []
    until = began + options.seconds
    with open(output or os.devnull, "a", encoding="utf-8") as kept:

        def run_worker(number: int) -> None:
            try:
                _run_graphs_until_deadline(options, number, tasks, lock, campaign, kept, until)
            except CudnnBackendError as error:
                troubles.append(error)

        threads = [threading.Thread(target=run_worker, args=(number,)) for number in range(options.processes)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    campaign.spent_s = time.monotonic() - began
    if troubles and not campaign.counts:
        raise troubles[0]
    return campaign


def _make_random_seeds_and_families(options: RandomGraphCampaignOptions, done: set[int]) -> Iterator[tuple[int, str]]:
    families = list(options.families or (name for name in GRAPH_FAMILIES if name != "block scale"))
    weights = [FAMILY_WEIGHTS[name] for name in families]
    for seed in itertools.count(options.seed):
        if seed - options.seed >= options.most:
            return
        family = random.Random(f"family {seed}").choices(families, weights)[0]
        if seed not in done:
            yield seed, family


def _run_graphs_until_deadline(
    options: RandomGraphCampaignOptions,
    number: int,
    tasks: Iterator[tuple[int, str]],
    lock: threading.Lock,
    campaign: RandomGraphCampaignResult,
    kept: IO[str],
    until: float,
) -> None:
    """Run graphs in one child process after the other until the deadline."""
    with RestartingChildProcess(_WORKER_FUNCTION, lambda: _make_worker_environment(options, number)) as child:
        while time.monotonic() < until:
            with lock:
                task = next(tasks, None)
            if task is None:
                return
            for _ in range(2):
                limit_s = options.limit_s + options.reduce_s + (0 if child.is_usable else _FIRST_GRAPH_EXTRA_S)
                record = _run_graph(child, options, *task, limit_s=limit_s)
                spoiled = record.pop("spoiled", False)
                if spoiled or "lost" in record["outcomes"] or "lost" in record:
                    child.end()
                if not spoiled:  # spoiled: an earlier graph broke the child; another child runs this graph again
                    break
            with lock:
                campaign.add(record)
                kept.write(json.dumps(record) + "\n")
                kept.flush()


def _make_worker_environment(options: RandomGraphCampaignOptions, number: int) -> dict[str, str]:
    environment = make_child_environment(**ONE_THREAD)
    if options.target is None and options.gpus > 1:
        environment["CUDA_VISIBLE_DEVICES"] = str(number % options.gpus)
    return environment


def _run_graph(
    child: RestartingChildProcess, options: RandomGraphCampaignOptions, seed: int, family: str, limit_s: float
) -> dict[str, Any]:
    """Run one graph in a child process, and return its record."""
    record: dict[str, Any] = {
        "seed": seed,
        "family": family,
        "outcomes": Counter(),
        "seconds": {},
        "cover": {},
        "engine": "",
    }
    failure: dict[str, Any] = {}
    trying: dict[str, Any] | None = None
    about: dict[str, Any] = {}
    request = {"seed": seed, "family": family, **asdict(options), "families": []}
    request["seed"] = seed
    try:
        for line in child.run_query(request, limit_s):
            about |= {key: line[key] for key in ("about", "faults") if key in line}
            for name, spent in line.get("seconds", {}).items():
                record["seconds"][name] = round(record["seconds"].get(name, 0.0) + spent, 4)
            if "cover" in line:
                record |= {"cover": line["cover"], "engine": line["engine"]}
            if "smaller" in line:
                failure["smallest"] = {key: line[key] for key in ("text", "words", "engine", "data")}
                failure["graph"] = line["smaller"]
            if "spoiled" in line:
                record["spoiled"] = True
            if "trying" in line:
                trying = line["trying"]
            if "lost" in line:
                record["lost"] = line["lost"]
                failure["lost by"] = trying
            if "reduced" in line:
                failure["reduced"] = line["reduced"]
            outcome = line.get("outcome")
            if outcome is None:
                continue
            record["outcomes"][outcome] = 1  # count a graph once, for any number of kinds of input data
            if outcome == "refused":
                record["refused"] = line["words"].splitlines()[-1] if line["words"] else ""
            if outcome in ("differs", "lost", "not run", "not compared", "not interpreted"):
                keys = ("outcome", "data", "words", "faults", "largest")
                failure |= {key: line[key] for key in keys if key in line}
    except CudnnBackendError as error:
        record["outcomes"]["not compared"] = 1
        failure = {"outcome": "failed", "words": f"{error}\n{getattr(error, 'more', '')}"[-2000:]} | failure
    if child.ending:
        outcome = TIMED_OUT if child.ending == TIMED_OUT else "crashed"
        if "differs" in record["outcomes"]:  # during its reduction
            failure["reduced"] = {"ended": child.ending, "by": trying}
        else:
            record["outcomes"][outcome] = 1
            failure = {**failure, "outcome": outcome, "ended": child.ending, "last words": child.last_words[-500:]}
    if failure:
        record["failure"] = {
            "seed": seed,
            "family": family,
            "engine": record["engine"],
            "faults": "",
            **about,
            **failure,
        }
    record["outcomes"] = dict(record["outcomes"])
    return record
