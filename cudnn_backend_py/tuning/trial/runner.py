"""Trials in child processes: a crash, hang or lost CUDA context affects only one engine config."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike

from ... import errors
from ...errors import CudnnBackendError
from ...graph import Graph, graph_from_json, graph_to_json
from ...system.child import RestartingChildProcess
from ...system.serving import AnswerWriter, serve
from ...versions.judging_environment import make_version_environment
from .reproduce import make_command_line
from .trial import STATES, ConfigTrial, Trial, run_graph

__all__ = ["Runner", "serve_trials"]

_MAX_CRASHES = 16  # of one graph, before the rest of its configs is given up


class Runner:
    """Runs graphs one by one in a child process, which is started on demand and restarted after a crash.

    A context manager. Not for several threads.

    Parameters
    ----------
    limit_s
        Seconds a graph may take, all of its configs together.
    version
        An installed cuDNN such as ``9.19.0``; None for the library this process would load.
    environment
        Of the process, where it is not that of the version.
    """

    def __init__(
        self, *, limit_s: float = 600.0, version: str | None = None, environment: Mapping[str, str] | None = None
    ) -> None:
        self._limit_s = limit_s
        self._child = RestartingChildProcess(
            f"{__name__}:{serve_trials.__name__}", lambda: environment or make_version_environment(version)
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()

    def close(self) -> None:
        """End the child process."""
        self._child.end()

    def run(
        self,
        graph: Graph,
        *,
        data: str = "uniform",
        seed: int = 0,
        target: str | None = None,
        configs: int | str = "first",
        time: bool = True,
        given: Mapping[str, ArrayLike] | None = None,
        source: str | None = None,
        step: Callable[[str], object] = str,
    ) -> Trial:
        """Run the trial of a graph in the child process, like :func:`~cudnn_backend_py.tuning.trial.run_graph`.

        A config in which the process dies, runs out of time, or loses the GPU has failed, in its last words; those
        after it are run by a new process.

        Raises
        ------
        CudnnBackendError
            As ``run_graph``; ``child-not-started``, ``answer-damaged``.
        """
        with tempfile.TemporaryDirectory() as folder:
            asked: dict[str, Any] = {
                "graph": graph_to_json(graph),
                "options": {
                    "data": data if not data.endswith(".npz") else os.path.abspath(data),
                    "seed": seed,
                    "target": target,
                    "configs": configs,
                    "time": time,
                    "source": source if source is not None else "",
                },
            }
            if given:
                path = Path(folder) / "given.npz"
                np.savez(path, **{name: np.asarray(value) for name, value in given.items()})  # type: ignore[arg-type]
                asked["given"] = str(path)
            return self._run_configs_despite_crashes(asked, graph, step)

    def _run_configs_despite_crashes(self, asked: dict[str, Any], graph: Graph, step: Callable[[str], object]) -> Trial:
        found: dict[str, ConfigTrial] = {}
        skip: dict[str, str] = {}
        while True:
            trial, ended = self._query_child({**asked, "skip": skip}, found, step)
            if ended:
                tag, words = ended
                if not tag or len(skip) >= _MAX_CRASHES:
                    return self._make_unfinished_trial(asked, graph, found, words)
                skip[tag] = words
                continue
            assert trial is not None
            for item in trial.configs:
                if item.state != "not run" or trial.described:
                    found.setdefault(item.tag, item)
                    skip.setdefault(item.tag, item.words)
            if trial.lost:
                self.close()
                if any(item.tag not in found for item in trial.configs) and len(skip) < _MAX_CRASHES + len(found):
                    continue
            return _replace_configs(trial, [found.get(item.tag, item) for item in trial.configs])

    def _query_child(
        self, asked: Mapping[str, Any], found: dict[str, ConfigTrial], step: Callable[[str], object]
    ) -> tuple[Trial | None, tuple[str, str] | None]:
        """Return the trial; if the process ended first, return None, the config it was running, and its last output."""
        child, at = self._child, ""
        for said in child.run_query(asked, self._limit_s):
            if "step" in said:
                step(said["step"])
                at = said["step"].removeprefix("running ") if said["step"].startswith("running ") else at
            elif "config" in said:
                item = ConfigTrial.from_dict(said["config"])
                if item.state != "not run":
                    found.setdefault(item.tag, item)
                at = ""
            elif "refused" in said:
                raise _restore_error_from_answer(said["refused"])
            elif "trial" in said:
                trial = Trial.from_dict(said["trial"])
        if child.ending:
            words = f"{child.ending}: {child.last_words}" if child.last_words else child.ending
            return None, (at, words)
        return trial, None

    def _make_unfinished_trial(
        self, asked: Mapping[str, Any], graph: Graph, found: Mapping[str, ConfigTrial], words: str
    ) -> Trial:
        """Return the trial of a graph if its process ended while it was not running an engine config."""
        options = asked["options"]
        named = [key for key in ("data", "seed", "configs", "target") if options[key] is not None]
        line = make_command_line(options["source"] or None, graph, *(f"--{key}={options[key]}" for key in named))
        blank = Trial(
            graph=graph.name,
            target=options["target"] or "gpu",
            sm=0,
            cudnn="",
            data=options["data"],
            seed=options["seed"],
            state="failed",
            words=words,
            reproduce=line,
        )
        return replace(_replace_configs(blank, list(found.values())), state="failed")


def _replace_configs(trial: Trial, configs: list[ConfigTrial]) -> Trial:
    states = [item.state for item in configs]
    worst = next((state for state in STATES if state in states), trial.state)
    return replace(trial, configs=tuple(configs), state=worst)


def _restore_error_from_answer(said: Mapping[str, Any]) -> CudnnBackendError:
    kind = getattr(errors, said["type"], CudnnBackendError)
    if not issubclass(kind, CudnnBackendError) or kind in (errors.CudnnStatusError, errors.NotSupportedStatus):
        kind = CudnnBackendError
    headline, code, sections = (said[key] for key in ("headline", "code", "sections"))
    return kind(headline, code=code, **sections)


def serve_trials() -> None:
    """In a child process: run the graphs that the parent sends."""
    serve(_run_requested_graph)


def _run_requested_graph(asked: dict[str, Any], say: AnswerWriter) -> None:
    given = None
    if "given" in asked:
        with np.load(asked["given"], allow_pickle=False) as held:
            given = {name: held[name] for name in held.files}
    options = asked["options"]
    try:
        trial = run_graph(
            graph_from_json(asked["graph"]),
            **{**options, "source": options["source"] or None},
            given=given,
            skip=asked["skip"],
            step=lambda text: say(step=text),
            done=lambda item: say(config=item.to_dict()),
        )
    except CudnnBackendError as error:
        sections = {key: text for key, text in error.sections.items() if isinstance(text, str) and key != "cudnn"}
        facts = {"type": type(error).__name__, "headline": error.headline, "code": error.code, "sections": sections}
        say(refused=facts)
        return
    say(trial=trial.to_dict())
