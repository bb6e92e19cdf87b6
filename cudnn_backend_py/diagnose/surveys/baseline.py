"""``check``: compare verdicts with a baseline in a TOML file, for CI. Every change fails, with its reason.

::

    schema = "cudnn-backend-py/check"
    version = 1
    targets = ["sm80", "sm90"]
    versions = ["9.19.0", "default"]     # optional; "default" is the cuDNN this environment has
    build = false                        # optional: build plans too
    pin = ["cause"]                      # optional: what counts next to the outcome: "cause", "engines"

    [graphs]                             # files, seen from this one
    flash = "graphs/flash.json"

    [[expected]]                         # one for each graph, target and version; written by --update
    graph = "flash"
    target = "sm80"
    version = "9.19.0"
    outcome = "supported"
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, TypedDict, Unpack

from ...errors import CudnnBackendError, GraphError, UsageError
from ...graph import Graph, load_graph
from ...printable import format_in_angle_brackets
from ...system.untrusted_files import read_text
from ..judges import Judge, Query
from ..other_versions import add_version_remedy
from ..report.ci import VerdictTestCase
from ..report.summary import shorten_text
from ..verdict import CRASH_CODE, ENGINES_MISSING_CODE, Outcome, is_cause_of_version
from .inputs import DEFAULT_VERSION, choose_wheels, read_judging_environments
from .matrix import Cell, Matrix, matrix

__all__ = [
    "Baseline",
    "CheckedVerdict",
    "ExpectedVerdict",
    "check_baseline",
    "compare_with_baseline",
    "compute_baseline_exit_code",
    "read_baseline",
    "update_baseline",
]

SCHEMA = "cudnn-backend-py/check"
SCHEMA_VERSION = 1
PINNABLE_FIELDS = ("cause", "engines")

CellKey = tuple[str, str, str]


class MatrixArguments(TypedDict, total=False):
    """The arguments of :func:`matrix`."""

    executor: Executor | None
    cache: Path | None
    fresh: bool
    progress: bool
    limit_s: float


class BaselineSettings(MatrixArguments, total=False):
    """Settings for judging a baseline: arguments of the matrix, and a wheel by version, such as ``9.19.0-full``."""

    wheels: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class ExpectedVerdict:
    """The expected verdict on a graph; a cause or engines of None match any."""

    outcome: Outcome
    cause: str | None = None
    engines: tuple[int, ...] | None = None

    @property
    def text(self) -> str:
        """The expected outcome, and the expected cause and engines if the baseline names them."""
        more = [] if not self.cause else [self.cause]
        if self.engines:
            more.append(_format_engines(self.engines))
        return f"{self.outcome.value} ({', '.join(more)})" if more else self.outcome.value


@dataclass(frozen=True, slots=True)
class Baseline:
    """The content of a baseline file; ``expected`` is keyed by graph, target and version."""

    path: Path
    graphs: Mapping[str, str]
    targets: tuple[str, ...]
    versions: tuple[str, ...]
    build: bool
    pin: tuple[str, ...]
    expected: Mapping[CellKey, ExpectedVerdict]

    def list_cell_keys(self) -> list[CellKey]:
        """Return graph, target and version of every verdict that the baseline lists."""
        return [(graph, target, one) for graph in self.graphs for target in self.targets for one in self.versions]


@dataclass(frozen=True, slots=True, repr=False)
class CheckedVerdict:
    """A verdict on a graph, compared with the expected one.

    Attributes
    ----------
    name
        Name of the graph in the baseline.
    graph
        Its file, as the baseline has it.
    expected
        In words; empty if the baseline has no such line.
    why
        What changed and, if cuDNN refuses, the cause's headline; empty if nothing did.
    """

    name: str
    graph: str
    target: str
    version: str
    expected: str
    cell: Cell
    changed: bool
    why: str

    def __repr__(self) -> str:
        said = f"changed, {self.why}" if self.changed else self.cell.outcome.value
        return format_in_angle_brackets(f"CheckedVerdict {self.name!r} on {self.target}, cuDNN {self.version}: {said}")

    @property
    def is_unexpectedly_unjudged(self) -> bool:
        """Whether a graph could not be judged, and the baseline does not expect that."""
        return self.changed and self.cell.outcome is Outcome.NOT_JUDGED

    @property
    def can_be_recorded(self) -> bool:
        """Whether an update writes the verdict into the baseline: cuDNN judged, crashed or lacks engines."""
        return _can_verdict_be_recorded(self.cell)

    def format_change_lines(self) -> list[str]:
        """Return what changed, and the lines of ``explain``, of at most 100 columns each."""
        change = self.why.removesuffix(f": {self.cell.headline}" if self.cell.summary else "")
        lines = [shorten_text(f"{self.name} on {self.target}, cuDNN {self.version}: {change}"), *self.cell.summary[1:]]
        if self.cell.outcome is Outcome.NOT_SUPPORTED and not any(line.startswith("remedy") for line in lines):
            lines.insert(2, "remedy   -v searches one")
        return lines

    def to_dict(self) -> dict[str, Any]:
        """Return the comparison as plain data."""
        return asdict(self)

    def make_test_case(self) -> VerdictTestCase:
        """Return the comparison as a test case for :func:`make_junit_xml` and :func:`make_github_annotations`."""
        expected, found = self.expected or "nothing", self.cell.outcome.value
        return VerdictTestCase(
            graph=self.name,
            target=self.target,
            version=self.version,
            state="error" if self.is_unexpectedly_unjudged else "failed" if self.changed else "passed",
            code=(self.cell.cause or "verdict-changed") if self.changed else "",
            message=self.why,
            text="\n".join(
                (f"expected: {expected}", f"found: {found} at stage {self.cell.stage!r}", *self.cell.summary)
            ),
        )


def compute_baseline_exit_code(checked: Iterable[CheckedVerdict]) -> int:
    """Return 0 without changes, 1 with changes, 2 if a graph could not be judged, unless that is expected."""
    return max((2 if one.is_unexpectedly_unjudged else int(one.changed) for one in checked), default=0)


def read_baseline(path: Path) -> Baseline:
    """Read a baseline file.

    Raises
    ------
    UsageError
        ``check-file``, naming the part that is wrong.
    """
    try:
        data = tomllib.loads(read_text(path, code="check-file"))
    except GraphError as error:
        raise UsageError(error.headline, code="check-file") from None
    except (ValueError, RecursionError) as error:  # ValueError: also an integer of thousands of digits
        raise UsageError(f"{path} cannot be read as TOML: {error}", code="check-file") from None
    found = (data.get("schema"), data.get("version"))
    if found != (SCHEMA, SCHEMA_VERSION) or type(found[1]) is not int:
        raise _make_file_error(path, f"schema and version are {found}, {(SCHEMA, SCHEMA_VERSION)} is needed")
    unknown = set(data) - {"schema", "version", "graphs", "targets", "versions", "build", "pin", "expected"}
    if unknown:
        raise _make_file_error(path, f"it has {', '.join(sorted(unknown))}, which is unknown")
    graphs = data.get("graphs")
    if not isinstance(graphs, dict) or not graphs or not all(isinstance(file, str) for file in graphs.values()):
        raise _make_file_error(path, f"[graphs] is {graphs!r}, a table of names and files is needed")
    if not isinstance(build := data.get("build", False), bool):
        raise _make_file_error(path, f"build is {build!r}, true or false is needed")
    pin = _read_list_of_texts(path, data, "pin", ["cause"])
    if set(pin) - set(PINNABLE_FIELDS):
        raise _make_file_error(path, f"pin is {list(pin)}, only {list(PINNABLE_FIELDS)} can be pinned")
    return Baseline(
        path,
        graphs,
        _read_list_of_texts(path, data, "targets", None),
        _read_list_of_texts(path, data, "versions", [DEFAULT_VERSION]),
        build,
        pin,
        _read_expected_verdicts(path, data.get("expected", [])),
    )


def check_baseline(
    path: Path, *, load: Callable[[str], Graph] = load_graph, **options: Unpack[BaselineSettings]
) -> list[CheckedVerdict]:
    """Judge the graphs of a baseline, and compare the verdicts.

    Parameters
    ----------
    path
        The baseline.
    load
        Reads the file of a graph; graph JSON if not given.
    executor, cache, fresh, progress, limit_s
        As for :func:`matrix`.
    wheels
        Which wheel is to judge for some versions, such as ``{"9.19.0": "9.19.0-full"}``.

    Raises
    ------
    UsageError
        ``check-file``, ``unknown-target``.
    EnvironmentNotReady
        ``cudnn-version-not-installed``.

    Notes
    -----
    A graph that cannot be read has one entry, which could not be judged; its error is the cause.
    """
    baseline = read_baseline(path)
    return compare_with_baseline(baseline, _judge_baseline(baseline, load, options))


def update_baseline(
    path: Path, *, load: Callable[[str], Graph] = load_graph, **options: Unpack[BaselineSettings]
) -> list[CheckedVerdict]:
    """Judge the graphs of a baseline and write the verdicts into it; return the changes as :func:`check_baseline` does.

    What could not be judged keeps its old line, or none, unless cuDNN crashed or lacks engines: those are
    answers. Expected verdicts of graphs, targets and versions that are no longer listed are removed. The rest of the
    file stays as it is, comments too. Parameters and errors as for :func:`check_baseline`.
    """
    baseline = read_baseline(path)
    answered = _judge_baseline(baseline, load, options)
    expected = {}
    for triple in baseline.list_cell_keys():
        cell = answered.cells.get(triple)
        if cell is not None and _can_verdict_be_recorded(cell):
            expected[triple] = _make_expected_verdict(cell, baseline.pin)
        elif triple in baseline.expected:
            expected[triple] = baseline.expected[triple]
    new = path.with_name(f".{path.name}.new")
    try:
        new.write_text(_update_expected_verdict_tables(read_text(path, code="check-file"), expected), encoding="utf-8")
        if read_baseline(new) != replace(baseline, path=new, expected=expected):
            raise _make_file_error(
                path, "its tables [[expected]] are mixed with others: move them to the end of the file"
            )
        new.replace(path)
    finally:
        new.unlink(missing_ok=True)
    listed = {triple: one for triple, one in baseline.expected.items() if triple in baseline.list_cell_keys()}
    return compare_with_baseline(replace(baseline, expected=listed), answered)


def compare_with_baseline(baseline: Baseline, answered: Matrix) -> list[CheckedVerdict]:
    """Compare each verdict of a matrix with the baseline; expected verdicts on graphs it does not list are errors."""
    listed = baseline.list_cell_keys()
    error = UsageError(
        f"{baseline.path.name} expects this verdict and does not list its graph, target or version",
        code="check-file",
        fix="list it again, or let 'cudnn-backend check --update' remove the expected verdict",
    )
    cells = dict(answered.cells) | {
        triple: Cell.from_error(error, "file") for triple in set(baseline.expected) - set(listed)
    }
    order = [*listed, *sorted(set(baseline.expected) - set(listed))]
    return [_compare_verdict(baseline, triple, cells[triple]) for triple in order if triple in cells]


def _compare_verdict(baseline: Baseline, triple: CellKey, cell: Cell) -> CheckedVerdict:
    graph, target, version = triple
    expected = baseline.expected.get(triple)
    if cell.stage == "file":
        why = "cannot be judged"
    elif expected is None:
        why = f"{cell.outcome.value}, and nothing is expected of it in {baseline.path.name}"
    else:
        why = _describe_difference(expected, cell)
    if why and cell.headline:
        why = f"{why}: {cell.headline}"
    text = "" if expected is None else expected.text
    return CheckedVerdict(
        graph, baseline.graphs.get(graph, baseline.path.name), target, version, text, cell, bool(why), why
    )


def _describe_difference(expected: ExpectedVerdict, cell: Cell) -> str:
    if cell.outcome is not expected.outcome:
        return f"was {expected.outcome.value}, now {cell.outcome.value}"
    if expected.cause is not None and cell.cause != expected.cause:
        return f"the cause was {expected.cause or 'not known'}, now {cell.cause or 'not known'}"
    if expected.engines is not None and cell.engines != expected.engines:
        return f"was {_format_engines(expected.engines)}, now {_format_engines(cell.engines)}"
    return ""


def _format_engines(engines: Sequence[int]) -> str:
    return f"engines {' '.join(map(str, engines))}" if engines else "no engine"


def _can_verdict_be_recorded(cell: Cell) -> bool:
    return cell.outcome is not Outcome.NOT_JUDGED or cell.cause in (CRASH_CODE, ENGINES_MISSING_CODE)


def _judge_baseline(baseline: Baseline, load: Callable[[str], Graph], options: BaselineSettings) -> Matrix:
    files = {name: baseline.path.parent / file for name, file in baseline.graphs.items()}
    graphs: dict[str, Graph] = {}
    broken: dict[str, Cell] = {}
    for name, file in files.items():
        try:
            graphs[name] = _load_baseline_graph(baseline, name, file, load)
        except CudnnBackendError as error:
            broken[name] = Cell.from_error(error, "file")
    settings: dict[str, Any] = dict(options)
    places = choose_wheels(baseline.versions, settings.pop("wheels", {}))
    cells: dict[CellKey, Cell] = {}
    if graphs:
        cells |= matrix(graphs, baseline.targets, places, build=baseline.build, **settings).cells
        _add_version_remedies(baseline, cells, graphs, places)
    cells |= {(name, baseline.targets[0], baseline.versions[0]): cell for name, cell in broken.items()}
    return Matrix(tuple(baseline.graphs), baseline.targets, baseline.versions, cells)


def _add_version_remedies(
    baseline: Baseline, cells: dict[CellKey, Cell], graphs: Mapping[str, Graph], places: Mapping[str, str | None]
) -> None:
    """Judge with other versions where a verdict is not the expected one, and its cause depends on the version."""
    setups = read_judging_environments(places)
    with Judge() as judge:  # which starts no process until it is needed
        for (name, target, version), cell in cells.items():
            expected = baseline.expected.get((name, target, version))
            if is_cause_of_version(cell.cause) and (expected is None or _describe_difference(expected, cell)):
                question = Query(graphs[name], target, setups[version], build=baseline.build or None)
                verdict = add_version_remedy(judge.run_query(question), question, judge)
                cells[name, target, version] = replace(cell, summary=Cell.from_verdict(verdict).summary)


def _load_baseline_graph(baseline: Baseline, name: str, file: Path, load: Callable[[str], Graph]) -> Graph:
    if not file.is_file():
        raise UsageError(
            f"{baseline.path} names {baseline.graphs[name]} as the file of graph {name!r}, but there is no file {file}",
            code="check-file",
            fix="put the file there, or name another under [graphs]: paths begin at the folder of the baseline",
        )
    return load(str(file))


def _make_expected_verdict(cell: Cell, pin: Sequence[str]) -> ExpectedVerdict:
    refused = cell.outcome is not Outcome.SUPPORTED
    return ExpectedVerdict(
        cell.outcome,
        cell.cause if refused and "cause" in pin else None,
        cell.engines if not refused and "engines" in pin else None,
    )


# The file


def _make_file_error(path: Path, what: str) -> UsageError:
    return UsageError(
        f"{path} is not a baseline: {what}",
        code="check-file",
        fix="give it schema, version, targets and [graphs], then let 'cudnn-backend check --update' write the rest",
    )


def _read_list_of_texts(path: Path, data: Mapping[str, Any], name: str, default: list[str] | None) -> tuple[str, ...]:
    value = data.get(name, default)
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value) or not (value or default):
        raise _make_file_error(path, f"{name} is {value!r}, a list of texts is needed")
    return tuple(dict.fromkeys(value))


def _read_expected_verdicts(path: Path, rows: Any) -> dict[CellKey, ExpectedVerdict]:
    if not isinstance(rows, list):
        raise _make_file_error(path, f"expected is {rows!r}, tables [[expected]] are needed")
    found: dict[CellKey, ExpectedVerdict] = {}
    for row in rows:
        try:
            triple, expected = _read_expected_verdict(row)
        except (KeyError, TypeError, ValueError) as error:
            raise _make_file_error(path, f"[[expected]] has {row!r}: {error!r}") from None
        if triple in found:
            raise _make_file_error(path, f"it has two expectations for {triple}")
        found[triple] = expected
    return found


def _read_expected_verdict(row: Mapping[str, Any]) -> tuple[CellKey, ExpectedVerdict]:
    known = ("graph", "target", "version", "outcome", "cause", "engines")
    if unknown := set(row) - set(known):
        raise ValueError(f"the key {', '.join(sorted(unknown))} is unknown; the keys are {', '.join(known)}")
    triple = (row["graph"], row["target"], row["version"])
    cause, engines = row.get("cause"), row.get("engines")
    if not all(isinstance(text, str) for text in (*triple, row["outcome"], "" if cause is None else cause)):
        raise TypeError(f"graph, target, version, outcome and cause must each be text, got {dict(row)}")
    if engines is not None and not (isinstance(engines, list) and all(type(one) is int for one in engines)):
        raise TypeError(f"engines must be a list of integers, got {engines!r}")
    return triple, ExpectedVerdict(Outcome(row["outcome"]), cause, None if engines is None else tuple(engines))


def _update_expected_verdict_tables(text: str, expected: Mapping[CellKey, ExpectedVerdict]) -> str:
    """Return the text of a baseline file with its ``[[expected]]`` tables updated; comments and equal tables stay.

    Rows that are changed keep their place, new ones stand at the end, and those of which nothing is expected go.
    """
    import tomlkit
    from tomlkit.items import AoT

    document = tomlkit.parse(text)
    there = document.get("expected", [])
    left = dict(expected)
    for row in list(there) if isinstance(there, AoT) else ():  # a list in one line is written as tables
        triple, old = _read_expected_verdict(row.unwrap())
        wanted = left.pop(triple, None)
        if wanted is None:
            there.remove(row)
        elif wanted != old:
            _update_toml_table(row, _expected_verdict_to_dict(wanted))
    if not there or not isinstance(there, AoT):
        document.pop("expected", None)
    rows = tomlkit.aot()
    for (graph, target, version), wanted in left.items():
        rows.append(
            tomlkit.item({"graph": graph, "target": target, "version": version} | _expected_verdict_to_dict(wanted))
        )
    kept = tomlkit.dumps(document)
    return f"{kept.rstrip()}\n\n{tomlkit.dumps({'expected': rows})}" if left else kept


def _expected_verdict_to_dict(row: ExpectedVerdict) -> dict[str, Any]:
    """Return an expected verdict as plain data, without graph, target and version, and without None values."""
    engines = None if row.engines is None else list(row.engines)
    plain = {"outcome": row.outcome.value, "cause": row.cause, "engines": engines}
    return {name: value for name, value in plain.items() if value is not None}


def _update_toml_table(row: Any, wanted: Mapping[str, Any]) -> None:
    """Update a tomlkit table; new keys come before the blank lines and comments at its end.

    To tomlkit those are part of the table. To its author they stand over the next one.
    """
    for name in ("outcome", "cause", "engines"):
        if name not in wanted:
            row.pop(name, None)
        elif name in row:
            row[name] = wanted[name]
    body = row.value.body
    end = max(index for index, (key, _) in enumerate(body) if key is not None) + 1
    tail = body[end:]
    del body[end:]
    row.update({name: value for name, value in wanted.items() if name not in row})
    body.extend(tail)
