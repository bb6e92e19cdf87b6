"""``matrix``: verdicts on graphs, targets and versions, judged in child processes.

Every answer is kept on disk as it comes, so a run that was stopped asks nothing twice.
"""

from __future__ import annotations

import hashlib
import threading
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor, as_completed
from contextlib import closing
from dataclasses import asdict, dataclass, field
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from ...errors import CudnnBackendError, UsageError
from ...graph import Graph
from ...printable import format_in_angle_brackets, format_repr
from ...system.notebook import HtmlDisplay
from ...system.private_folder import KeyedRecordFolder, PrivateFolder, get_user_folder
from ...system.typed_data import convert_to_type, read_fields
from ...versions.judging_environment import JudgingEnvironment
from ..fork import TIMEOUT_REMARK
from ..judges import TIMEOUT_CODE, Judge, Query, judge
from ..report.summary import format_error_summary, format_summary
from ..verdict import CRASH_CODE, ENGINES_MISSING_CODE, Outcome, Verdict
from .inputs import (
    available_versions,
    count_cores,
    read_graphs,
    read_judging_environments,
    read_targets,
)

__all__ = ["Cell", "Matrix", "MatrixCellCache", "find_cache_folder", "matrix"]

SCHEMA = "cudnn-backend-py/matrix"
SCHEMA_VERSION = 1

_CACHE_SCHEMA = "cudnn-backend-py/kept-answer 1"
_BATCH_SIZE = 32


@dataclass(frozen=True, slots=True)
class Cell:
    """A verdict on one graph, target and cuDNN version.

    Attributes
    ----------
    outcome
        Supported, not supported, or could not be judged.
    cause, headline
        Code and sentence of the cause; empty if supported, or if cuDNN gave no reason.
    engines
        The engines that support the graph, in cuDNN's order.
    stage
        How far the verdict came, one of ``STAGES``.
    known issues, remarks
        Known issues of such graphs, and what else does not change the answer, as of a :class:`Verdict`.
    summary
        The lines that ``explain`` prints of the verdict; not part of ``to_dict`` of a matrix.
    """

    outcome: Outcome
    cause: str = ""
    headline: str = ""
    engines: tuple[int, ...] = ()
    stage: str = ""
    hazards: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()
    summary: tuple[str, ...] = field(default=(), compare=False)

    @property
    def crashed(self) -> bool:
        """Whether cuDNN crashed or timed out instead of answering."""
        return self.cause in (CRASH_CODE, TIMEOUT_CODE)

    @property
    def letter(self) -> str:
        """``S`` supported, ``-`` not supported, ``!`` crashed or timed out, ``?`` not judged."""
        if self.outcome is Outcome.NOT_JUDGED:
            return "!" if self.crashed else "?"
        return "S" if self.outcome is Outcome.SUPPORTED else "-"

    @classmethod
    def from_verdict(cls, verdict: Verdict) -> Cell:
        """Return the cell of a verdict."""
        taken = [item.engine for item in verdict.candidates if item.state in ("supported", "built")]
        engines = tuple(engine for engine in dict.fromkeys(taken) if engine is not None)
        code, headline = "", ""
        if not verdict.supported:
            cause = verdict.cause
            code, headline = ("", "cuDNN gave no reason") if cause is None else (cause.code, cause.headline)
        lines = tuple(format_summary(verdict).splitlines())
        return cls(verdict.outcome, code, headline, engines, verdict.stage, verdict.hazards, verdict.remarks, lines)

    @classmethod
    def from_error(cls, error: CudnnBackendError, stage: str) -> Cell:
        """Return the cell of a graph that an error at this stage kept from being judged."""
        lines = tuple(format_error_summary(error))
        return cls(Outcome.NOT_JUDGED, error.code, error.headline, stage=stage, summary=lines)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Cell:
        """Return the cell with these fields; other keys are ignored.

        Raises
        ------
        UsageError
            ``matrix-schema`` if it is damaged.
        """
        return convert_to_type(cls, data, "a cell", code="matrix-schema", more=True)


@dataclass(frozen=True, slots=True, repr=False)
class Matrix(HtmlDisplay):
    """The verdicts on every graph, target and version; ``cells`` is keyed by these three names.

    ``judged_count`` is the number of cells that this run judged; the other verdicts were stored by earlier runs.
    """

    graphs: tuple[str, ...]
    targets: tuple[str, ...]
    versions: tuple[str, ...]
    cells: Mapping[tuple[str, str, str], Cell]
    judged_count: int = field(default=0, compare=False)

    @property
    def exit_code(self) -> int:
        """0 all supported, 1 some not supported, 2 some not judged."""
        outcomes = {cell.outcome for cell in self.cells.values()}
        if Outcome.NOT_JUDGED in outcomes:
            return 2
        return int(Outcome.NOT_SUPPORTED in outcomes)

    def __repr__(self) -> str:
        names = (("graph", self.graphs), ("target", self.targets), ("version", self.versions))
        counts = ", ".join(f"{len(items)} {name}{'s' if len(items) != 1 else ''}" for name, items in names)
        outcomes = Counter(cell.outcome for cell in self.cells.values())
        return format_in_angle_brackets(
            f"Matrix of {counts}: " + ", ".join(f"{outcomes[one]} {one}" for one in Outcome if outcomes[one])
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the matrix as plain data."""
        return {
            "schema": SCHEMA,
            "version": SCHEMA_VERSION,
            "graphs": list(self.graphs),
            "targets": list(self.targets),
            "versions": list(self.versions),
            "cells": [
                {"graph": graph, "target": target, "version": version, **_cell_to_dict(cell)}
                for (graph, target, version), cell in self.cells.items()
            ],
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Matrix:
        """Return the matrix from ``to_dict``'s data, also after a round trip through JSON.

        Raises
        ------
        UsageError
            ``matrix-schema`` if it is none, or of another version, or a part is missing.
        """
        found = (data.get("schema"), data.get("version")) if isinstance(data, Mapping) else data
        if found != (SCHEMA, SCHEMA_VERSION):
            raise UsageError(
                "the data is not the output of 'cudnn-backend matrix': its schema and version are "
                f"{format_repr(found)}, "
                f"{(SCHEMA, SCHEMA_VERSION)} is needed",
                code="matrix-schema",
            )
        plain = read_fields(_MATRIX_FIELDS, data, "the matrix", code="matrix-schema")
        names = [read_fields(_CELL_KEY_FIELDS, item, "a cell", code="matrix-schema") for item in plain["cells"]]
        cells = [Cell.from_dict(item) for item in plain["cells"]]
        keys = [(one["graph"], one["target"], one["version"]) for one in names]
        return cls(plain["graphs"], plain["targets"], plain["versions"], dict(zip(keys, cells, strict=True)))


_MATRIX_FIELDS = dict.fromkeys(("graphs", "targets", "versions"), tuple[str, ...]) | {"cells": tuple[Any, ...]}
_CELL_KEY_FIELDS = dict.fromkeys(("graph", "target", "version"), str)


def _cell_to_dict(cell: Cell) -> dict[str, Any]:
    plain = {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(cell).items()}
    del plain["summary"]
    return plain


def find_cache_folder() -> Path:
    """Return the folder in which the verdicts of matrices are cached."""
    return get_user_folder("answers")


def matrix(
    graphs: Mapping[str, Graph] | Iterable[Graph],
    targets: Iterable[str],
    versions: Mapping[str, str | None] | Iterable[str | None] | None = None,
    *,
    build: bool = False,
    executor: Executor | None = None,
    workers: int | None = None,
    cache: Path | None = None,
    fresh: bool = False,
    progress: bool = True,
    limit_s: float = 60.0,
) -> Matrix:
    """Judge every graph for every target with every cuDNN version.

    Parameters
    ----------
    graphs
        By name; or as they are, and then each goes by its own name.
    targets
        Described GPUs (``sm90``, a device JSON), or ``gpu`` for the one of this machine.
    versions
        ``9.19.0`` for an installed one or for the one this process would load, None or ``default`` for the latter;
        ``9.19.0-jit`` or ``9.19.0-full`` for one wheel of an installed one; or a mapping of the names they are to go by
        to these. :func:`available_versions` if not given.
    build
        Also build a plan of each: some 0.3 s for each answer.
    executor
        Where batches of questions go instead of to child processes of this one: any
        :class:`concurrent.futures.Executor`, such as a ``ProcessPoolExecutor`` or Dask's ``client.get_executor()``.
        Its workers need this package, and the very library files that were read here: the same file system.
    workers
        Questions at a time, without an executor; the number of cores if not given.
    cache
        Folder of kept answers; :func:`find_cache_folder` if not given.
    fresh
        Judge again what is kept there.
    progress
        Whether to show a bar on standard error.
    limit_s
        Seconds one question may take_query.

    Returns
    -------
    Matrix
        A version that crashes or runs out of time has cells that could not be judged, and does not stop the others.

    Raises
    ------
    UsageError
        ``matrix-empty``, ``matrix-graph-names``, ``unknown-target``.
    EnvironmentNotReady
        ``cudnn-version-not-installed``, ``cache-folder-not-private``, ``cache-folder-unusable``.

    Notes
    -----
    Loads cuDNN: in child processes only. Graphs, device JSONs, library files and environment variables are read once,
    at the beginning; if library files change meanwhile, the cells that are still open could not be judged
    (``cudnn-files-changed``). An answer is kept for exactly what was read; so is the answer that a wheel lacks engines.
    Anything else that could not be judged is judged again the next time, and so is everything about ``gpu``,
    which may be another one by then. After a KeyboardInterrupt the answers so far are kept.
    """
    named = read_graphs(graphs)
    profiles = read_targets(targets)
    setups = read_judging_environments(available_versions() if versions is None else versions)
    for what, given in (("graphs", named), ("targets", profiles), ("versions", setups)):
        if not given:
            raise UsageError(
                f"there are no {what} to judge", code="matrix-empty", fix=f"give at least one of the {what}"
            )
    questions = {
        (graph, target, version): Query(named[graph], profile, setup, build=build or None)
        for version, setup in setups.items()
        for graph in named
        for target, profile in profiles.items()
    }
    keys = {triple: question.key() or str(triple) for triple, question in questions.items()}
    wanted = {keys[triple]: question for triple, question in questions.items()}
    answers = MatrixCellCache(cache, fresh=fresh)
    found = {key: cell for key, question in wanted.items() if (cell := answers.find(question)) is not None}
    todo = [(key, question) for key, question in wanted.items() if key not in found]
    if executor is None:
        coming = _judge_in_child_processes(todo, workers or count_cores(), limit_s, answers.store)
    else:
        coming = _judge_in_executor(executor, todo, limit_s, answers.store)
    from ...terminal import progress_bar  # imports rich

    with closing(coming), progress_bar(len(wanted), "judging", shown=progress) as (step, _):
        step(len(found), "judging")
        for key, cell in coming:
            found[key] = cell
            step(len(found), "judging")
    cells = {triple: found[keys[triple]] for triple in _list_query_combinations(named, tuple(profiles), setups)}
    return Matrix(tuple(named), tuple(profiles), tuple(setups), cells, len(todo))


def _list_query_combinations(
    graphs: Iterable[str], targets: Sequence[str], versions: Iterable[str]
) -> list[tuple[str, str, str]]:
    kept = list(versions)
    return [(graph, target, version) for graph in graphs for target in targets for version in kept]


# MatrixArguments

KeyedQuery = tuple[str, Query]  # with its key
KeyedCell = tuple[str, Cell]
StoreCell = Callable[[Query, Cell], None]


def _judge_cell(run_query: Callable[[Query], Verdict], question: Query) -> Cell:
    try:
        return Cell.from_verdict(run_query(question))
    except CudnnBackendError as error:
        return Cell.from_error(error, "environment")


def _group_by_judging_environment(asked: Iterable[KeyedQuery]) -> dict[JudgingEnvironment, deque[KeyedQuery]]:
    groups: dict[JudgingEnvironment, deque[KeyedQuery]] = defaultdict(deque)
    for one in asked:
        groups[one[1].setup].append(one)
    return groups


def _judge_query_batch(questions: Sequence[Query], limit_s: float) -> list[Cell]:
    """Judge a batch of queries in an executor's process; return one matrix cell per query."""
    return [_judge_cell(lambda question: judge(question, limit_s=limit_s), question) for question in questions]


def _judge_in_executor(
    executor: Executor, todo: Iterable[KeyedQuery], limit_s: float, keep: StoreCell
) -> Generator[KeyedCell, None, None]:
    """Judge queries in an executor, and yield each query's key and matrix cell as it completes."""
    futures = {}
    for group in _group_by_judging_environment(todo).values():
        listed = list(group)
        for start in range(0, len(listed), _BATCH_SIZE):
            batch = listed[start : start + _BATCH_SIZE]
            futures[executor.submit(_judge_query_batch, [question for _, question in batch], limit_s)] = batch
    try:
        for future in as_completed(futures):
            batch = futures[future]
            for (key, question), cell in zip(batch, future.result(), strict=True):
                keep(question, cell)
                yield key, cell
    finally:
        for future in futures:
            future.cancel()


def _judge_in_child_processes(
    todo: Sequence[KeyedQuery], workers: int, limit_s: float, keep: StoreCell
) -> Generator[KeyedCell, None, None]:
    """Judge queries in child processes, and yield each query's key and matrix cell as it completes, unordered."""
    shelf = _QueryQueue(todo)
    answers: SimpleQueue[KeyedCell | None] = SimpleQueue()

    def store_and_queue_cell(key: str, question: Query, cell: Cell) -> None:
        keep(question, cell)
        answers.put((key, cell))

    def judge_batch() -> None:
        try:
            _run_worker(shelf, store_and_queue_cell, limit_s)
        finally:
            answers.put(None)

    count = min(workers, len(todo))
    with ThreadPoolExecutor(max(1, count)) as pool:
        running = [pool.submit(judge_batch) for _ in range(count)]
        ended = 0
        try:
            while ended < count:
                answer = answers.get()
                if answer is None:
                    ended += 1
                else:
                    yield answer
        finally:
            shelf.clear()
        for future in running:
            future.result()


def _run_worker(shelf: _QueryQueue, notify: Callable[[str, Query, Cell], None], limit_s: float) -> None:
    """Judge queries until the queue is empty, in one child process at a time, ordered by cuDNN setup."""
    with Judge(limit_s=limit_s) as children:
        last: Query | None = None
        while (asked := shelf.take_query(last)) is not None:
            key, question = asked
            if last is not None and question.setup != last.setup:
                children.close()
            last = question
            notify(key, question, _judge_cell(children.run_query, question))


class _QueryQueue:
    """Queue of queries by cuDNN setup. A worker keeps its setup if it can, as its child has loaded that cuDNN."""

    def __init__(self, todo: Iterable[KeyedQuery]) -> None:
        self._lock = threading.Lock()
        self._open_queries = _group_by_judging_environment(todo)
        self._worker_counts: Counter[JudgingEnvironment] = Counter()

    def take_query(self, last: Query | None) -> KeyedQuery | None:
        """Return a query, preferably with the setup of the query `last`; None if the queue is empty."""
        with self._lock:
            if last is not None:
                self._worker_counts[last.setup] -= 1
            open_ones = [setup for setup, left in self._open_queries.items() if left]
            if not open_ones:
                return None
            if last is not None and self._open_queries[last.setup]:
                setup = last.setup
            else:
                setup = min(open_ones, key=lambda one: (self._worker_counts[one], -len(self._open_queries[one])))
            self._worker_counts[setup] += 1
            return self._open_queries[setup].popleft()

    def clear(self) -> None:
        """Drop the remaining queries."""
        with self._lock:
            self._open_queries.clear()


# Kept answers


def make_cached_cell_folder(folder: Path) -> KeyedRecordFolder:
    """Return the folder of cached verdicts, with one file per query key."""
    private = PrivateFolder(
        folder,
        title="folder of cached answers",
        reason="its files are trusted as cuDNN's answers",
        code="cache-folder-not-private",
    )
    return KeyedRecordFolder(private, schema=_CACHE_SCHEMA, suffix="answer", max_bytes=None)


class MatrixCellCache:
    """A cache of matrix cells (verdicts) in a folder, one small file per query; with `fresh`, only written to."""

    def __init__(self, folder: Path | None, *, fresh: bool = False) -> None:
        self._fresh = fresh
        self._files = make_cached_cell_folder(folder or find_cache_folder())
        self._files.create()
        self._by = _hash_source_of_this_package()

    def get_or_judge(self, question: Query, children: Judge) -> Cell:
        """Return the cached verdict on a query, or judge it and cache the verdict."""
        cell = self.find(question)
        if cell is None:
            cell = _judge_cell(children.run_query, question)
            self.store(question, cell)
        return cell

    def find(self, question: Query) -> Cell | None:
        """Return the cached cell of a query, if the same code of this package stored it, else None."""
        key = None if self._fresh else question.key()
        record = None if key is None else self._files.read(key)
        if record is None or record.get("by") != self._by:
            return None
        return Cell.from_dict(record["cell"])

    def store(self, question: Query, cell: Cell) -> None:
        """Store the cell of a query, unless the query has no key.

        What could not be judged is written only where the reason is in the key: engines that the files lack. A
        crash may come from the memory or the limits of this moment, and a busy machine may cut the search for a cause
        short.
        """
        key = question.key()
        unfinished = any(remark.startswith(TIMEOUT_REMARK) for remark in cell.remarks)
        if key is None or unfinished or (cell.outcome is Outcome.NOT_JUDGED and cell.cause != ENGINES_MISSING_CODE):
            return
        labels = {"graph": question.graph.name, "target": question.target, "cudnn": question.version}
        self._files.write(key, {"by": self._by, **labels, "cell": asdict(cell)})


def _hash_source_of_this_package() -> str:
    """Return a hash of this package's code; verdicts that other code cached are not reused.

    Judging processes run the code that is on disk when they start, so it is read again for each survey.
    """
    root = Path(__file__).parents[2]
    digest = hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        digest.update(path.relative_to(root).as_posix().encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()
