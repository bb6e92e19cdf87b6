"""Verdicts from child processes: what kills or hangs cuDNN becomes a line of the verdict, and the caller lives on."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Self, TypedDict

from ..engine import heur_mode
from ..errors import CudnnBackendError
from ..graph import Graph, graph_from_json, graph_to_json
from ..native import loaded_library
from ..native.find import cudnn_places
from ..target import find_profile
from ..versions import environment_for, require_installed
from .causes import suspects
from .explain import CRASHED, explain
from .known import known_hazards
from .verdict import SCHEMA_VERSION, STAGES, Basis, Cause, Outcome, Stage, Verdict

__all__ = ["TIMED_OUT", "Judge", "Question", "judge", "library_identity"]

TIMED_OUT = "cudnn-timed-out"  # code of a cause
GPU = "gpu"

_CRASHES = 8  # plans of one graph that may crash before the rest is given up
_SAID = 2000  # characters of what a dead process wrote to stderr that are kept


@dataclass(frozen=True)
class Question:
    """A graph, and what it is judged for.

    Parameters
    ----------
    target
        A described GPU (``sm90``), the path of a device JSON, or ``gpu`` for the one of this machine.
    version
        An installed cuDNN such as ``9.19.0``; None for the library this process would load.
    modes, build, execute
        As for :func:`explain`.
    """

    graph: Graph
    target: str = GPU
    version: str | None = None
    modes: tuple[str, ...] = ("A", "FALLBACK")
    build: bool = False
    execute: bool = False

    def key(self) -> str:
        """Return a SHA-256 of all that decides the answer: graph, target, cuDNN, modes, and form of a verdict."""
        target = GPU if self.target == GPU else find_profile(self.target).json()
        asked = [self.modes, self.build, self.execute]
        parts = [SCHEMA_VERSION, _graph_text(self.graph), target, library_identity(self.version), *asked]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()

    def to_dict(self) -> dict[str, Any]:
        """Return the question as plain data."""
        return {
            "graph": graph_to_json(self.graph),
            "target": self.target,
            "version": self.version,
            "modes": list(self.modes),
            "build": self.build,
            "execute": self.execute,
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Question:
        """Return the question that ``to_dict`` gave.

        Raises
        ------
        GraphError
            What ``graph_from_json`` refuses.
        """
        return cls(**{**data, "graph": graph_from_json(data["graph"]), "modes": tuple(data["modes"])})


@lru_cache(maxsize=256)
def _graph_text(graph: Graph) -> str:
    return json.dumps(graph_to_json(graph))


@lru_cache(maxsize=256)
def _read_graph(text: str) -> Graph:
    return graph_from_json(json.loads(text))


@lru_cache(maxsize=64)
def library_identity(version: str | None) -> str:
    """Return what tells a cuDNN from any other: version and wheel, or for this process' own its file and time.

    Raises
    ------
    EnvironmentNotReady
        ``cudnn-version-not-installed``.
    """
    if version is not None:
        installed = require_installed(version)
        return f"{installed.version} {installed.flavor} {installed.cuda}"
    place = next((place.path for place in cudnn_places() if place.path), None)
    if place is None or not Path(place).is_file():
        return str(place)
    facts = Path(place).resolve().stat()
    return f"{place} {facts.st_mtime_ns} {facts.st_size}"


class Judge:
    """Child processes that answer questions, one for each cuDNN version, started again when one dies.

    For one thread; a context manager, closing ends the children.

    Parameters
    ----------
    limit_s
        Seconds a question may take.
    """

    def __init__(self, *, limit_s: float = 60.0) -> None:
        self._limit_s = limit_s
        self._workers: dict[str | None, _Worker] = {}
        weakref.finalize(self, _end_all, self._workers)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()

    def close(self) -> None:
        """End the child processes; a judge nobody holds any more is closed as well."""
        _end_all(self._workers)

    def ask(self, question: Question) -> Verdict:
        """Return the verdict on a question.

        A process that dies or runs out of time is a verdict that could not be judged; where it died while building the
        plan of one engine config, the others are built nevertheless.

        Raises
        ------
        UsageError
            ``unknown-target``, ``unknown-enumerator``.
        EnvironmentNotReady
            ``cudnn-version-not-installed``.
        """
        if question.target != GPU:
            find_profile(question.target)
        for mode in question.modes:
            heur_mode(mode)
        skip: dict[str, str] = {}
        while True:
            answer = self._worker(question.version).ask(question, tuple(skip), self._limit_s)
            if isinstance(answer, Verdict):
                return _with_crashes(answer, skip)
            self._workers.pop(question.version).end()
            if not answer.tag or answer.ending == TIMED_OUT or len(skip) == _CRASHES:
                return _ended(question, answer)
            skip[answer.tag] = answer.ending

    def _worker(self, version: str | None) -> _Worker:
        if version not in self._workers:
            self._workers[version] = _Worker(environment_for(version))
        return self._workers[version]


def _end_all(workers: dict[str | None, _Worker]) -> None:
    while workers:
        workers.popitem()[1].end()


_judges = threading.local()


def judge(question: Question, *, limit_s: float = 60.0) -> Verdict:
    """Return the verdict on a question, from a child process that this thread keeps: what executors are given.

    Raises
    ------
    UsageError
        ``unknown-target``, ``unknown-enumerator``.
    EnvironmentNotReady
        ``cudnn-version-not-installed``.
    """
    kept: dict[float, Judge] = _judges.__dict__.setdefault("by_limit", {})
    return kept.setdefault(limit_s, Judge(limit_s=limit_s)).ask(question)


class _Loaded(TypedDict):
    """The cuDNN that a child has loaded."""

    version: Sequence[int]
    text: str
    path: str


@dataclass(frozen=True)
class _Ending:
    """How a child ended: a signal's name, an exit code, or ``TIMED_OUT``; in which step, and what it said."""

    ending: str
    step: str
    said: str
    library: _Loaded

    @property
    def tag(self) -> str:
        """The engine config whose plan was being built."""
        return self.step.removeprefix("plan of ") if self.step.startswith("plan of ") else ""

    @property
    def stage(self) -> str:
        """The stage the step belongs to."""
        first = self.step.partition(" mode")[0].partition(" of")[0]
        return first if first in STAGES else "environment"


class _Worker:
    """A child process that answers one question a line."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        command = [sys.executable, "-c", f"from {__name__} import _serve; _serve()"]
        self._errors = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115  # closed by end()
        self._process = subprocess.Popen(
            command, env=dict(environment), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors
        )
        self._selector = selectors.DefaultSelector()
        assert self._process.stdout is not None
        self._selector.register(self._process.stdout, selectors.EVENT_READ)
        self._pending = b""
        self._library: _Loaded = {"version": (0, 0, 0), "text": "not asked", "path": ""}

    def ask(self, question: Question, skip: tuple[str, ...], limit_s: float) -> Verdict | _Ending:
        asked = {"graph": _graph_text(question.graph), "target": question.target, "modes": question.modes}
        line = json.dumps({**asked, "build": question.build, "execute": question.execute, "skip": skip})
        step = ""
        deadline = time.monotonic() + limit_s
        with contextlib.suppress(BrokenPipeError):  # then the process has ended, as reading finds out
            assert self._process.stdin is not None
            self._process.stdin.write(line.encode() + b"\n")
            self._process.stdin.flush()
        while (answer := self._read_line(deadline)) is not None:
            if "step" in answer:
                step = answer["step"]
            elif "loaded" in answer:
                self._library = answer["loaded"]
            elif "verdict" in answer:
                return Verdict.from_dict(answer["verdict"])
            else:
                raise CudnnBackendError(answer["headline"], code="judging-failed", more=answer["more"])
        return _Ending(self._how_it_ended(), step, self._said(), self._library)

    def _read_line(self, deadline: float) -> dict[str, Any] | None:
        """Return the next line, None if the process ended or the time is over."""
        assert self._process.stdout is not None
        while b"\n" not in self._pending:
            if not self._selector.select(max(0.0, deadline - time.monotonic())):
                return None
            piece = os.read(self._process.stdout.fileno(), 1 << 20)
            if not piece:
                self._process.wait()
                return None
            self._pending += piece
        line, _, self._pending = self._pending.partition(b"\n")
        read: dict[str, Any] = json.loads(line)
        return read

    def _how_it_ended(self) -> str:
        code = self._process.poll()
        if code is None:
            return TIMED_OUT
        return f"exit code {code}" if code >= 0 else signal.Signals(-code).name

    def _said(self) -> str:
        self._errors.flush()
        self._errors.seek(0, os.SEEK_END)
        self._errors.seek(max(0, self._errors.tell() - _SAID))
        return self._errors.read().strip()

    def end(self) -> None:
        """Kill the process and let go of its pipes."""
        self._process.kill()
        self._selector.close()
        for pipe in (self._process.stdin, self._process.stdout, self._errors):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()
        self._process.wait()


def open_stdout() -> Callable[..., None]:
    """Return what writes its arguments to stdout as a JSON line; what cuDNN writes there goes to stderr from now on."""
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)

    def say(**line: Any) -> None:
        print(json.dumps(line), file=out, flush=True)

    return say


def _serve() -> None:
    """Answer each question on stdin."""
    say = open_stdout()
    told = False

    def step(text: str) -> None:
        nonlocal told
        if not told and (lib := loaded_library()) is not None:
            say(loaded=_Loaded(version=lib.version, text=lib.version_text, path=lib.path))
            told = True
        say(step=text)

    for line in sys.stdin:
        asked = json.loads(line)
        target = None if asked["target"] == GPU else asked["target"]
        try:
            verdict = explain(
                _read_graph(asked["graph"]),
                target,
                mode=asked["modes"],
                build=asked["build"],
                execute=asked["execute"],
                step=step,
                skip=asked["skip"],
            )
        except Exception as error:  # of ours: the parent raises it
            say(headline=f"{type(error).__name__}: {error}", more=getattr(error, "render", str)())
        else:
            say(verdict=verdict.to_dict())


def _with_crashes(verdict: Verdict, skip: Mapping[str, str]) -> Verdict:
    """Return the verdict with a line for each engine config whose plan killed a process before."""
    if not skip:
        return verdict
    lines = [f"crashed with {ending} while the plan of {tag} was built" for tag, ending in skip.items()]
    built = any(item.state == "built" for item in verdict.candidates)

    def with_lines(stage: Stage) -> Stage:
        if stage.name != "plan":
            return stage
        return replace(stage, state=stage.state if built else "crashed", detail="; ".join([stage.detail, *lines]))

    return replace(verdict, stages=tuple(map(with_lines, verdict.stages)))


def _ended(question: Question, ending: _Ending) -> Verdict:
    """Return the verdict where the process did not live to give one."""
    timed_out = ending.ending == TIMED_OUT
    how = "did not answer in time" if timed_out else f"crashed with {ending.ending}"
    headline = f"cuDNN {how} in {ending.step or 'the start of the process'}"
    profile = None if question.target == GPU else find_profile(question.target)
    major, minor, patch = ending.library["version"]
    hazards = [] if profile is None else known_hazards(question.graph, profile.sm, (major, minor, patch))
    remedy = "give it more time" if timed_out else "another cuDNN version, or a change of the graph, may not crash"
    if hazards and not timed_out:
        headline, remedy = f"{headline}, as is known of {hazards[0].what}", hazards[0].fix
    if suspected := suspects(question.graph):
        headline = f"{headline}; {'; '.join(suspected)}"
    code, state = (TIMED_OUT, "timed out") if timed_out else (CRASHED, "crashed")
    reached = STAGES.index(ending.stage)
    states = ["passed"] * reached + [state] + ["not reached"] * (len(STAGES) - reached - 1)
    details = {ending.stage: headline}
    return Verdict(
        outcome=Outcome.NOT_JUDGED,
        stage=ending.stage,
        graph=question.graph.name,
        graph_text=str(question.graph),
        target=profile.name if profile else GPU,
        target_title=profile.title if profile else GPU,
        sm=profile.sm if profile else 0,
        live=profile is None,
        cudnn=ending.library["text"],
        library=ending.library["path"],
        driver="not asked",
        modes=question.modes,
        cause=Cause(code, headline, Basis.MEASURED, ending.said, remedy),
        stages=tuple(Stage(name, state, details.get(name, "")) for name, state in zip(STAGES, states, strict=True)),
        hazards=tuple(map(str, hazards)),
    )
