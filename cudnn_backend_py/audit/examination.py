"""``examine``: run a stored case again with other engines, configs and cuDNN versions, and the interpreter."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from ..errors import CudnnBackendError
from ..graph import Graph
from ..known_issues import find_issues_explaining_failure, find_issues_of_attention_or_graph
from ..native.find import find_cudnn_places
from ..plans.choice import EngineChoice
from ..rewrite.reduce import reduce_failing_graph
from ..system.version import VersionTuple, parse_leading_numbers, parse_version_numbers
from ..tuning.trial.runner import Runner
from ..tuning.trial.trial import ConfigTrial, Trial
from ..versions.judging_environment import make_version_environment
from ..versions.store import list_installed, list_judging_versions
from .case import Case, load_case
from .judging import interpret_and_find_wrong_outputs
from .look import VARIABLE
from .part import InterpretableCase, reduce_case_for_interpreter
from .reproduction import draft_known_issue, make_reproduction_program

__all__ = ["CaseReport", "VersionResult", "bisect_to_first_differing_version", "examine"]

LIBRARY = "CUDNN_BACKEND_LIBRARY"
LIMIT_S, REDUCE_S = 300.0, 60.0
_MADE_UP = ("integers", "uniform")
Step = Callable[[str], object]


@dataclass(frozen=True, slots=True)
class VersionResult:
    """The results of running a case with each engine config of one cuDNN version.

    Attributes
    ----------
    version, library
        The version, or the text for what could not be queried; and how it was named.
    wrong, right
        Tags of configs, those proposed first at the front.
    outputs
        Names of what is wrong by any of them.
    other
        How many configs were refused or failed, as text.
    words
        What is wrong by the first of them, or why nothing ran.
    """

    version: str
    library: str
    wrong: tuple[str, ...]
    right: tuple[str, ...]
    outputs: tuple[str, ...]
    other: str
    words: str

    @property
    def state(self) -> str:
        """``wrong`` if any config is wrong, ``right`` if all that ran are right, empty if none ran."""
        return "wrong" if self.wrong else "right" if self.right else ""


@dataclass(kw_only=True)
class CaseReport:
    """The result of examining a case: which engine and cuDNN versions are wrong, and a matching known issue.

    Attributes
    ----------
    case, file, part
        What was examined; of attention that is too large to be interpreted whole, which part of it.
    interpreter
        What is wrong with the results that the program got, by the interpreter; None where it cannot say.
    asked
        What each version did that was queried, the case's own first.
    engine, versions_with_wrong_results, versions_with_right_results
        The engine that is wrong (its number, None if unknown), and the versions in which it, or any, is and is not.
    since, until
        The first version known to be wrong, and the first after that is not: right, or the graph is refused. Of those
        that were queried.
    faults
        Codes of the known issues that say why; empty if none does.
    smallest, data
        The smallest form that fails in the same way, and the kind of made-up data it fails with; the case's own graph
        and empty where only the kept buffers show it.
    program, draft
        Files: the program that shows it, and the row for the table of faults where it is new.
    left
        What could not be done in the time, or at all.
    """

    case: Case
    file: str
    part: str = ""
    interpreter: tuple[str, ...] | None = None
    asked: list[VersionResult] = field(default_factory=list)
    engine: int | None = None
    since: str = ""
    until: str = ""
    faults: tuple[str, ...] = ()
    smallest: Graph | None = None
    data: str = ""
    program: str = ""
    draft: str = ""
    left: list[str] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def versions_with_wrong_results(self) -> tuple[str, ...]:
        """Versions in which a config gives a wrong result."""
        return tuple(one.version for one in self.asked if one.state == "wrong")

    @property
    def versions_with_right_results(self) -> tuple[str, ...]:
        """Versions in which all configs that ran give right results."""
        return tuple(one.version for one in self.asked if one.state == "right")

    @property
    def has_wrong_result(self) -> bool:
        """Whether a config of any tried version gives a wrong result."""
        return bool(self.versions_with_wrong_results)

    @property
    def exit_code(self) -> int:
        """1 if the case is wrong again, 0 if all results are right, 2 if it could not be decided."""
        return 1 if self.has_wrong_result else 0 if self.versions_with_right_results else 2

    def to_dict(self) -> dict[str, Any]:
        """Return the report as plain data, without buffers."""
        case = asdict(replace(self.case, graph=None, images={}))
        for name in ("graph", "images"):
            case.pop(name)
        plain = {
            name: getattr(self, name)
            for name in (
                "file",
                "part",
                "interpreter",
                "engine",
                "since",
                "until",
                "faults",
                "data",
                "program",
                "draft",
                "left",
            )
        }
        asked = [asdict(one) | {"state": one.state} for one in self.asked]
        return {
            "case": case,
            **plain,
            "asked": asked,
            "seconds": round(self.seconds, 1),
            "wrong": self.has_wrong_result,
        }

    def __str__(self) -> str:
        lines = [str(self.case), *([f"  examined: {self.part}"] if self.part else []), ""]
        if self.interpreter is not None:
            said = self.interpreter or ("its results are right, by the bound of the whole graph",)
            lines += [f"the program's own result: {item}" for item in said]
        for one in self.asked:
            lines.append(f"cuDNN {one.version}: {_describe_config_results(one)}{one.words and f'; {one.words}'}")
        lines.append(self._describe_verdict())
        if self.faults:
            lines.append(f"known issue: {', '.join(self.faults)}")
        elif self.has_wrong_result:
            lines.append("known issue: none" + (f"; a row for the table is in {self.draft}" if self.draft else ""))
        if self.program:
            shown = f"made-up data ({self.data})" if self.data else "the kept buffers"
            lines.append(f"reproduction: python {self.program} ({shown})")
        lines += [f"not done: {item}" for item in self.left]
        return "\n".join(lines) + "\n"

    def _describe_verdict(self) -> str:
        if not self.has_wrong_result:
            if not self.versions_with_right_results:
                return "verdict: nothing could be run"
            if self.case.backend not in ("", "torch's cudnn"):
                return f"verdict: cuDNN is right wherever it was queried; the result is that of {self.case.backend}"
            return "verdict: not wrong again"
        by = "" if self.engine is None else f"engine {self.engine} "
        words = f"verdict: {by}of cuDNN {', '.join(self.versions_with_wrong_results)} is wrong"
        if self.until:
            words += f"; not from {self.until} on, of those that were queried"
        if self.versions_with_right_results:
            words += f"; {', '.join(self.versions_with_right_results)} right"
        return words


def _describe_config_results(one: VersionResult) -> str:
    parts = [f"{len(one.wrong)} wrong ({', '.join(one.wrong[:4])})"] if one.wrong else []
    parts += [f"{len(one.right)} right ({', '.join(one.right[:4])})"] if one.right else []
    parts += [one.other] if one.other else []
    return "; ".join(parts) or "nothing ran"


def examine(
    file: str | os.PathLike[str],
    *,
    cudnn: Sequence[str] = (),
    target: str | None = None,
    limit_s: float = LIMIT_S,
    reduce_s: float = REDUCE_S,
    write: bool = True,
    step: Step = str,
) -> CaseReport:
    """Find the engine and cuDNN versions for which a case is wrong, and a matching known issue.

    The case's own version runs all configs that heuristics propose, on the kept buffers, each next to the interpreter;
    then the newest and the oldest of the others, and between these as few as report where it begins and ends. Each
    version has a child process of its own, so that what crashes is a line of the result.

    Parameters
    ----------
    cudnn
        Installed versions, or paths of libcudnn; all installed ones if none is given.
    target
        A described GPU: what would be run there is said, and nothing is run.
    limit_s
        Seconds for all of it; what they do not suffice for is said.
    reduce_s
        Seconds of these for the smallest form that fails in the same way.
    write
        Whether the reproduction, and the row of a fault that is new, are written next to the case.
    step
        Called with what is done next.

    Raises
    ------
    UsageError
        ``audit-case``.
    """
    began = time.monotonic()
    case = load_case(file)
    found = CaseReport(case=case, file=os.fspath(file))
    work = _CaseExamination(case, found, target, began + limit_s, step)
    if case.graph is None:
        found.left.append(f"running it again: {case.without}")
    else:
        found.part = work.part.what
        work.check_with_interpreter()
        work.run_with_original_and_other_versions(cudnn)
        work.find_wrong_engine_and_known_issue()
        work.reduce(reduce_s)
        if write and found.has_wrong_result:
            work.write(Path(file))
    found.seconds = time.monotonic() - began
    return found


class _CaseExamination:
    """Examines one case: runs it with other cuDNN versions and configs, reduces it, and writes a reproduction."""

    def __init__(self, case: Case, found: CaseReport, target: str | None, deadline: float, step: Step) -> None:
        self.case, self.found, self.target, self.deadline, self.step = case, found, target, deadline, step
        self.tag = ""
        self._part: InterpretableCase | None = None if case.graph is None else reduce_case_for_interpreter(case)

    @property
    def part(self) -> InterpretableCase:
        assert self._part is not None
        return self._part

    @property
    def graph(self) -> Graph:
        return self.part.graph

    def remaining_s(self) -> float:
        return self.deadline - time.monotonic()

    def check_with_interpreter(self) -> None:
        """Compare the program's results with the interpreter's."""
        self.step("interpreting")
        try:
            self.found.interpreter = tuple(interpret_and_find_wrong_outputs(self.part).values())
        except CudnnBackendError as error:
            self.found.left.append(f"comparing the program's own result: {error.headline}")

    # versions

    def run_with_original_and_other_versions(self, named: Sequence[str]) -> None:
        """Run the case with the cuDNN version that gave the wrong result, then with other versions."""
        own = self.run_with_version(self._find_original_library_name())
        if own is None:
            return
        others = [
            name
            for name in (named or [item.name for item in list_judging_versions()])
            if not self._is_original_version(name)
        ]
        numbers = parse_leading_numbers(own.version)
        known = sorted((number, name) for name in others if (number := parse_leading_numbers(name)))
        for name in others:
            if not parse_leading_numbers(name):
                self.run_with_version(name)

        def differs_from_original(name: str) -> bool:
            one = self.run_with_version(name)
            return one is not None and one.state != own.state

        bisect_to_first_differing_version([name for number, name in known if number > numbers], differs_from_original)
        bisect_to_first_differing_version(
            [name for number, name in reversed(known) if number < numbers], differs_from_original
        )
        self._set_range_of_wrong_result_versions()

    def _find_original_library_name(self) -> str:
        """Return the path or version of the cuDNN that gave the wrong result; empty if that one is not found here.

        A path is loaded only where this Python would look by itself: the file may be of somebody else.
        """
        if any(place.path and _is_same_file(place.path, self.case.library) for place in find_cudnn_places()):
            return self.case.library
        there = [item.name for item in list_installed() if self._is_original_version(item.name)]
        if not there:
            told = f"; --cudnn {self.case.library} runs it" if os.path.exists(self.case.library) else ""
            self.found.left.append(
                f"running cuDNN {self.case.cudnn} itself: it is neither installed nor found here{told}"
            )
        return there[-1] if there else ""

    def _set_range_of_wrong_result_versions(self) -> None:
        told = ((parse_leading_numbers(one.version), one.version, one.state) for one in self.found.asked)
        asked = sorted(one for one in told if one[0])
        wrong = [at for at, (_, _, state) in enumerate(asked) if state == "wrong"]
        if wrong:
            self.found.since = asked[wrong[0]][1]
            self.found.until = asked[wrong[-1] + 1][1] if wrong[-1] + 1 < len(asked) else ""

    def _is_original_version(self, name: str) -> bool:
        if os.path.exists(name) and os.path.exists(self.case.library):
            return _is_same_file(name, self.case.library)
        return parse_leading_numbers(name)[:3] == parse_version_numbers(self.case.cudnn)[:3]

    def run_with_version(self, name: str) -> VersionResult | None:
        """Run the case with a cuDNN version and store the result; return None at the time limit."""
        if self.remaining_s() < 5.0:
            self.found.left.append(f"asking {name or 'the case’s own version'}: the time is over")
            return None
        self.step(f"running cuDNN {name}")
        try:
            trials = self._run_configs(name, self.graph, limit_s=self.remaining_s(), tag=self.case.tag)
        except CudnnBackendError as error:
            one = VersionResult(name or self.case.cudnn, name, (), (), (), "", f"{error.code}: {error.headline}")
        else:
            one = _make_version_result(name, trials)
        self.found.asked.append(one)
        return one

    def _run_configs(
        self, name: str, graph: Graph, *, limit_s: float, tag: str = "", data: str = "", configs: str = "all"
    ) -> list[Trial]:
        """Run a graph with a cuDNN version, using the configs of the heuristics and of the case."""
        with Runner(limit_s=limit_s, environment=_make_environment(name)) as runner:
            options: dict[str, Any] = {"data": data or "uniform", "given": None if data else self.part.given}
            options |= {"target": self.target, "time": False}
            trials = [runner.run(graph, configs=configs, **options)]
            if tag and all(item.tag != tag for item in trials[0].configs):
                trials.append(runner.run(graph, configs=tag, **options))
            return trials

    # the fault

    def find_wrong_engine_and_known_issue(self) -> None:
        """Find the engine that gives wrong results, and a matching known issue."""
        found = self.found
        bad = next((one for one in found.asked if one.state == "wrong"), None)
        if bad is None:
            return
        own = self.case.tag if self.case.tag in bad.wrong else bad.wrong[0]
        self.tag, found.engine = own, EngineChoice.parse(own).engine
        numbers = parse_leading_numbers(bad.version) or (9, 0, 0)
        version: VersionTuple = (numbers[0], numbers[1], numbers[2])
        met = find_issues_explaining_failure(
            self.graph, bad.outputs, engine=found.engine, version=version, sm=self.case.sm
        )
        found.faults = tuple(fault.code for fault in met)

    # the reproduction

    def reduce(self, reduce_s: float) -> None:
        """Find random data that also makes the case fail, then reduce the graph while it still fails."""
        found = self.found
        found.smallest = self.graph
        bad = next((one for one in found.asked if one.state == "wrong"), None)
        if bad is None or found.engine is None:
            return
        outputs, tags = (
            set(bad.outputs),
            (f"eng{found.engine}", self.tag),
        )  # with knobs of its own choice, if it has any
        deadline = min(self.deadline, time.monotonic() + reduce_s)

        def still_fails(graph: Graph, data: str) -> bool:
            for tag in tags if time.monotonic() < deadline else ():
                try:
                    trials = self._run_configs(bad.library, graph, limit_s=30.0, data=data, configs=tag)
                except CudnnBackendError:
                    continue
                wrong = {
                    item.output for one in trials for config in one.configs for item in _find_wrong_outputs(config)
                }
                if wrong & outputs:
                    self.tag = tag
                    return True
            return False

        self.step("looking for made-up data that show it")
        found.data = next((kind for kind in _MADE_UP if still_fails(self.graph, kind)), "")
        if not found.data:
            return
        self.step("making it smaller")
        made = reduce_failing_graph(
            self.graph, found.data, still_fails, budget_s=max(0.0, deadline - time.monotonic()), most=60
        )
        found.smallest, found.data = made.graph, made.data

    def write(self, file: Path) -> None:
        """Write the reproduction next to the case, and a draft entry for the table of known issues."""
        found = self.found
        bad = next(one for one in found.asked if one.state == "wrong")
        assert found.smallest is not None
        program = file.with_suffix(".py")
        given = None if found.data else self.part.given
        text = make_reproduction_program(
            found.smallest, found.data or "uniform", self.tag, given, self.case, bad.words, str(file)
        )
        _write_private_file(program, text)
        found.program = str(program)
        known = list(find_issues_of_attention_or_graph(None, self.graph, version=None, sm=self.case.sm))
        if not found.faults:
            draft = file.with_suffix(".fault.py")
            near = [fault.code for fault in known]
            _write_private_file(draft, draft_known_issue(found.smallest, self.case, found, bad.words, near))
            found.draft = str(draft)


def bisect_to_first_differing_version(names: Sequence[str], is_other: Callable[[str], bool]) -> None:
    """Bisect cuDNN versions, in the given order, to the first for which `is_other` is true; stop if the last is not."""
    if not names or not is_other(names[-1]):
        return
    low, high = -1, len(names) - 1  # the one before names[low + 1] is as the own, names[high] is otherwise
    while high - low > 1:
        middle = (low + high) // 2
        if is_other(names[middle]):
            high = middle
        else:
            low = middle


def _write_private_file(path: Path, text: str) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
    with open(descriptor, "w", encoding="utf-8") as file:
        file.write(text)


def _make_environment(name: str) -> dict[str, str]:
    """Return the environment variables of a child process that loads the named cuDNN: a version or a path."""
    if os.path.exists(name):
        found = {**os.environ, LIBRARY: str(Path(name).resolve())}
    else:
        found = make_version_environment(name or None)
    return found | {VARIABLE: ""}


def _is_same_file(one: str, other: str) -> bool:
    return os.path.exists(one) and os.path.exists(other) and os.path.samefile(one, other)


def _find_wrong_outputs(config: ConfigTrial) -> list[Any]:
    return [item for item in config.comparisons if not item.is_right] if config.state == "wrong" else []


def _make_version_result(name: str, trials: Sequence[Trial]) -> VersionResult:
    configs = [config for trial in trials for config in trial.configs]
    wrong = [config for config in configs if config.state == "wrong"]
    rest = [config for config in configs if config.state not in ("wrong", "right")]
    outputs = dict.fromkeys(item.output for config in wrong for item in _find_wrong_outputs(config))
    counts = {state: sum(config.state == state for config in rest) for state in dict.fromkeys(c.state for c in rest)}
    words = wrong[0].words if wrong else "" if any(c.state == "right" for c in configs) else trials[0].words
    if not configs and not words:
        words = trials[0].state
    failed = next((config.words for config in rest if config.state == "failed"), "")
    return VersionResult(
        version=trials[0].cudnn or name,
        library=name,
        wrong=tuple(config.tag for config in wrong),
        right=tuple(config.tag for config in configs if config.state == "right"),
        outputs=tuple(outputs),
        other=", ".join(f"{count} {state}" for state, count in counts.items())
        + (f" ({failed[:120]})" if failed else ""),
        words=words[:400],
    )
