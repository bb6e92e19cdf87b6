"""``verify``: query all graphs on one or two GPUs, build and run some, and try known issues, in limited time."""

from __future__ import annotations

import resource
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from math import prod
from typing import Any

from ..diagnose.verdict import Outcome
from ..errors import CudnnBackendError
from ..graph import Graph
from ..known_issues import find_issues_failing_before_execution
from ..system.version import __version__, parse_version_numbers
from ..target import Profile
from ..tuning.trial.runner import Runner
from .answers import BuiltPlan, LibraryAndGpuProperties, VerdictAndConfigs, VerificationChild
from .compare import ASPECTS, find_differing_library_or_gpu_facts, list_differences_of_answers
from .graphs import FAMILIES, VerificationGraph, hash_verification_graphs, make_verification_graphs
from .reproductions import Reproduction, read_known_issue_reproductions

__all__ = ["SCHEMA", "SCHEMA_VERSION", "GraphAnswers", "RunOutcome", "Verification", "verify"]

SCHEMA, SCHEMA_VERSION = "cudnn-backend-py/verification", 1
LIVE, DESCRIBED, OTHER = "live", "described", "other"
_BUILT_PER_FAMILY, _RUN_PER_FAMILY = 4, 3
_MOST_ELEMENTS = 1 << 20  # of all tensors of a graph that is run: the interpreter computes in float64
_RUN_S = 20.0  # for one graph
KNOWN_ISSUE = "known issue"

Step = Callable[[float, str], object]


@dataclass(slots=True)
class GraphAnswers:
    """A graph with cuDNN's verdict and engine configs on each GPU (real or described), by the GPU's role."""

    case: VerificationGraph
    answers: dict[str, VerdictAndConfigs] = field(default_factory=dict)
    built: dict[str, BuiltPlan] = field(default_factory=dict)

    @property
    def differences(self) -> list[str]:
        """The aspects in which cuDNN's results on the two GPUs differ; empty if there is only one GPU."""
        if len(self.answers) < 2:
            return []
        one, other = self.answers.values()
        return list_differences_of_answers(one, other, list(self.built.values()) if len(self.built) > 1 else ())


@dataclass(frozen=True, slots=True)
class RunOutcome:
    """The outcome of running a graph on the GPU: the state of :class:`~cudnn_backend_py.tuning.trial.Trial`."""

    name: str
    state: str
    tag: str = ""


@dataclass(slots=True)
class Verification:
    """The result of a verification: what cuDNN said to every graph on each GPU, and the differences.

    Attributes
    ----------
    sides
        What answered, by the name of the side: ``live`` and ``described``; ``described`` alone without a GPU; and
        ``described`` and ``other`` where two described GPUs are compared.
    compared
        Runs of some graphs next to the interpreter.
    known_issues
        Runs of graphs that have a known issue of this architecture and version; ``wrong`` and ``failed`` show it.
    left_out
        What the time did not suffice for, by the name of the part.
    """

    sides: Mapping[str, LibraryAndGpuProperties]
    rows: list[GraphAnswers]
    compared: list[RunOutcome] = field(default_factory=list)
    known_issues: list[RunOutcome] = field(default_factory=list)
    left_out: dict[str, int] = field(default_factory=dict)
    seconds: float = 0.0
    host_bytes: int = 0

    @property
    def is_compared(self) -> bool:
        """Whether results of two GPUs were compared."""
        return len(self.sides) > 1

    @property
    def is_complete(self) -> bool:
        """Whether all graphs were queried within the time limit."""
        return "queries" not in self.left_out

    @property
    def agreeing_count(self) -> int:
        """The number of graphs with the same result on both GPUs, in every compared aspect."""
        return sum(not row.differences for row in self.rows)

    @property
    def differing_outcome_count(self) -> int:
        """The number of graphs that only one GPU supports, or that are refused with different statuses."""
        return sum("outcome" in row.differences for row in self.rows)

    @property
    def summary(self) -> str:
        """The result of the verification in one line."""
        if self.is_compared:
            return f"{self.agreeing_count} of {len(self.rows)} agree"
        counts = Counter(row.answers[DESCRIBED].outcome for row in self.rows)
        return f"{len(self.rows)} graphs: {', '.join(f'{count} {outcome}' for outcome, count in counts.items())}"

    def families(self) -> dict[str, dict[str, int]]:
        """Return for each family its number of graphs, and how many differ in each aspect."""
        found: dict[str, dict[str, int]] = {}
        for family in FAMILIES:
            rows = [row for row in self.rows if row.case.family == family]
            counts = Counter(aspect for row in rows for aspect in row.differences)
            built = sum(bool(row.built) for row in rows)
            agreeing_count = sum(not row.differences for row in rows)
            found[family] = {"graphs": len(rows), "built": built, "agree": agreeing_count}
            found[family] |= {aspect: counts[aspect] for aspect in ASPECTS}
        return found

    def to_dict(self) -> dict[str, Any]:
        """Return the verification as plain data for JSON; of the machine, it names only GPU and driver."""
        facts = list(self.sides.values())
        graphs = [
            {
                "name": row.case.name,
                "family": row.case.family,
                **{name: asdict(answer) for name, answer in row.answers.items()},
                **({"built": {name: asdict(item) for name, item in row.built.items()}} if row.built else {}),
                **({"differences": row.differences} if self.is_compared else {}),
            }
            for row in self.rows
        ]
        return {
            "schema": SCHEMA,
            "version": SCHEMA_VERSION,
            "cudnn_backend_py": __version__,
            "date": datetime.now(UTC).strftime("%Y-%m-%d"),
            "graphs_sha256": hash_verification_graphs([row.case for row in self.rows]),
            "sides": {name: asdict(side) for name, side in self.sides.items()},
            "differing_facts": dict(find_differing_library_or_gpu_facts(*facts)) if self.is_compared else {},
            "summary": self.summary,
            "families": self.families() if self.is_compared else {},
            "interpreter": [asdict(item) for item in self.compared],
            "known_issues": [asdict(item) for item in self.known_issues],
            "left_out": self.left_out,
            "seconds": round(self.seconds, 1),
            "host_bytes": self.host_bytes,
            "graphs": graphs,
        }


def verify(
    described: Profile | None = None,
    other: Profile | None = None,
    *,
    live: bool = False,
    versions: Sequence[str | None] = (None, None),
    limit_s: float = 300.0,
    cases: Sequence[VerificationGraph] | None = None,
    step: Step = lambda _share, _text: None,
) -> Verification:
    """Query cuDNN about every graph for one or two GPUs, real or described, and compare the results.

    Parameters
    ----------
    described
        The described GPU; with `live` it is the GPU of this machine, described by its own properties, if not given.
    other
        Another described GPU, which the first one is compared with; not with `live`.
    live
        Whether there is a GPU to compare with.
    versions
        An installed cuDNN for each side; None for the one that this process would load.
    limit_s
        Seconds for all of it: what is built and run is less where they do not suffice.
    cases
        Other graphs.
    step
        Called with the share that is done and what is being done.

    Raises
    ------
    EnvironmentNotReady
        As :meth:`VerificationChild.read_properties`.
    """
    began = time.monotonic()
    cases = make_verification_graphs() if cases is None else cases
    with ExitStack() as held:
        sides: dict[str, VerificationChild] = {}
        facts: dict[str, LibraryAndGpuProperties] = {}

        def add_verification_child(name: str, profile: Profile | None) -> None:
            sides[name] = held.enter_context(VerificationChild(profile, versions[len(sides)]))
            step(0.0, f"loading cuDNN: {name}")
            facts[name] = sides[name].read_properties()

        if live:
            add_verification_child(LIVE, None)
            device = dict(facts[LIVE].device) | {"pciDeviceId": 0, "cudaDeviceId": 0}
            add_verification_child(
                DESCRIBED, described or Profile("gpu", str(device["deviceName"]), (), device, {}, {})
            )
        else:
            add_verification_child(DESCRIBED, described)
            if other is not None:
                add_verification_child(OTHER, other)
        found = Verification(facts, [GraphAnswers(case) for case in cases])
        work = _VerificationRun(found, sides, began + limit_s, step)
        work.query()
        work.build()
    if live:
        work.run()
        work.run_known_issue_reproductions()
    found.seconds = time.monotonic() - began
    found.host_bytes = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
    return found


class _VerificationRun:
    """Performs the steps of a verification in order; each step ends early if the time is used up."""

    def __init__(
        self, found: Verification, sides: Mapping[str, VerificationChild], deadline: float, step: Step
    ) -> None:
        self.found, self.sides, self.deadline, self.step = found, sides, deadline, step
        facts = next(iter(found.sides.values()))
        self.sm, self.version = facts.sm, parse_version_numbers(facts.cudnn)

    def is_out_of_time(self, part: str, share: float, name: str, left: int, needed_s: float = 0.0) -> bool:
        """Report the current step as progress; return whether too little time is left for it."""
        self.step(share, f"{part}: {name}")
        if late := time.monotonic() + needed_s > self.deadline:
            self.found.left_out[part] = left
        return late

    def query(self) -> None:
        """Query cuDNN about every graph for every GPU."""
        rows = self.found.rows
        for number, row in enumerate(rows):
            if self.is_out_of_time("queries", 0.4 * number / len(rows), row.case.name, len(rows) - number):
                del rows[number:]
                return
            ends = find_issues_failing_before_execution(row.case.graph, self.sm, (*self.version, 0, 0)[:3])  # type: ignore[arg-type]
            for name, side in self.sides.items():
                known = VerdictAndConfigs(outcome=Outcome.NOT_JUDGED, why=KNOWN_ISSUE)
                row.answers[name] = known if ends else side.query(row.case.graph)

    def build(self) -> None:
        """Build, for every GPU, the described GPU's first engine config for some graphs of each family."""
        chosen = self._select_first_of_each_family(_BUILT_PER_FAMILY, lambda row: bool(row.answers[DESCRIBED].first))
        for number, row in enumerate(chosen):
            if self.is_out_of_time("building", 0.4 + 0.2 * number / len(chosen), row.case.name, len(chosen) - number):
                return
            tag = row.answers[DESCRIBED].first
            row.built = {name: side.build(row.case.graph, tag) for name, side in self.sides.items()}

    def run(self) -> None:
        """Run some graphs of each family on the GPU, and compare the results with the NumPy interpreter."""
        chosen = self._select_first_of_each_family(
            _RUN_PER_FAMILY, lambda row: bool(row.answers[LIVE].first) and _is_small_enough_to_interpret(row.case.graph)
        )
        with Runner(limit_s=_RUN_S) as runner:
            for number, row in enumerate(chosen):
                share, left = 0.6 + 0.2 * number / len(chosen), len(chosen) - number
                if self.is_out_of_time("running", share, row.case.name, left, _RUN_S):
                    return
                self.found.compared.append(_run_graph(runner, row.case.name, row.case.graph, "uniform", "first"))

    def run_known_issue_reproductions(self) -> None:
        """Run the graphs of known issues of this architecture and version, each in a child process."""
        tried = [
            one
            for one in read_known_issue_reproductions()
            if one.issue.affects_version((*self.version, 0, 0)[:3], self.sm)  # type: ignore[arg-type]
        ]
        with Runner(limit_s=_RUN_S) as runner:
            for number, one in enumerate(tried):
                share, left = 0.8 + 0.2 * number / len(tried), len(tried) - number
                if self.is_out_of_time("known issues", share, one.name, left, _RUN_S * len(one.data)):
                    return
                self.found.known_issues.append(_run_reproduction_in_child(runner, one))

    def _select_first_of_each_family(self, count: int, wanted: Callable[[GraphAnswers], bool]) -> list[GraphAnswers]:
        """Return, from each family, the first `count` graphs that the function `wanted` accepts."""
        taken: Counter[str] = Counter()
        chosen = []
        for row in self.found.rows:
            if taken[row.case.family] < count and wanted(row):
                taken[row.case.family] += 1
                chosen.append(row)
        return chosen


def _is_small_enough_to_interpret(graph: Graph) -> bool:
    """Return whether the interpreter computes a graph in about a second."""
    return sum(prod(tensor.dims) for tensor in graph.tensors) <= _MOST_ELEMENTS


def _run_reproduction_in_child(runner: Runner, one: Reproduction) -> RunOutcome:
    first: RunOutcome | None = None
    for kind in one.data:
        ran = _run_graph(runner, one.name, one.graph, kind, one.configs)
        first = first or ran
        if ran.state in ("wrong", "failed"):
            return ran
        if ran.state == "refused":
            break
    return first or RunOutcome(one.name, "not run")


def _run_graph(runner: Runner, name: str, graph: Graph, data: str, configs: str) -> RunOutcome:
    try:
        trial = runner.run(graph, data=data, configs=configs, time=False)
    except CudnnBackendError as error:
        return RunOutcome(name, error.code)
    worst = next((item for item in trial.configs if item.state == trial.state), None)
    return RunOutcome(name, trial.state, worst.tag if worst is not None else "")
