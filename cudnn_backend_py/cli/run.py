"""The command ``run``: run graphs on random data and compare the results with the interpreter."""

from __future__ import annotations

import json
import math
import os
import shlex
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from ..command_line import Command
from ..errors import CudnnBackendError, EnvironmentNotReady, GraphError
from ..graph import Graph
from ..printable import printable
from ..system.untrusted_files import read_text
from ..terminal import progress_bar
from .graph_file import read_graphs_and_errors
from .options import (
    GRAPH_FILE_PARAMETER,
    add_format_options,
    add_graph_option,
    add_target_option,
    format_graph_option,
    make_seconds_option,
)
from .output import (
    NOT_JUDGED_EXIT_CODE,
    print_lines,
    print_warning,
    warn_that_python_files_will_run,
    write_or_print,
    write_or_print_report,
)
from .wheels import add_version_options, format_loaded_version_option

if TYPE_CHECKING:
    from ..tuning.trial import ConfigTrial, Trial
    from ..tuning.trial.runner import Runner

__all__ = ["run_graphs"]

SCHEMA, SCHEMA_VERSION = "cudnn-backend-py/run", 1
_PROGRESS_DELAY_S = 2.0  # before a progress bar is shown
_STATE_WIDTH = 12  # of the word for a state
_OPTIONS_NOT_IN_BATCH_LINES = ("--full", "--jit", "--format", "--output", "--batch")  # not in a line of a batch file
_VERSION_OPTION = "--cudnn"


@dataclass(frozen=True)
class _RunRequest:
    """One graph file to run, with its options and its kind of data."""

    file: str
    dims: tuple[str, ...]
    types: tuple[str, ...]
    settings: tuple[str, ...]
    data: str
    options: Mapping[str, Any]
    cudnn: str | None = None  # an installed version, where it is another one than of the process that runs the others

    @property
    def command_line(self) -> list[str]:
        """Arguments of the command line, without the cuDNN version."""
        return ["run", self.file, *format_graph_option(self.options["number"]), *self.graph_options, *self.run_options]

    @property
    def run_options(self) -> list[str]:
        """Command-line options that control the run."""
        told = self.options
        target = [] if told["target"] is None else [f"--target={told['target']}"]
        words = [*target, f"--data={self.data}", f"--seed={told['seed']}", f"--configs={told['configs']}"]
        return [*words, "--time" if told["timed"] else "--no-time"]

    @property
    def graph_options(self) -> list[str]:
        """Command-line options that change the graph."""
        words = [f"--dims={item}" for item in self.dims]
        words += [f"--type={item}" for item in self.types]
        return words + [f"--set={item}" for item in self.settings]

    def read_graphs(self) -> Iterator[tuple[str, Graph | GraphError]]:
        """Yield the name of each graph with the graph after the requested changes, or with the error."""
        from ..rewrite.override import override

        dims = {name: _parse_sizes(text) for name, text in _split_name_value_pairs(self.dims, "--dims")}
        types = dict(_split_name_value_pairs(self.types, "--type"))
        settings = dict(_split_name_value_pairs(self.settings, "--set", alone=True))
        for number, graph in read_graphs_and_errors(self.file, self.options["number"]):
            source = shlex.join(
                [self.file, *format_graph_option(number), *format_loaded_version_option(), *self.graph_options]
            )
            if not isinstance(graph, GraphError):
                try:
                    graph = override(graph, dims=dims, types=types, settings=settings)
                except GraphError as error:
                    graph = error
            yield source, graph


def _split_name_value_pairs(texts: tuple[str, ...], option: str, *, alone: bool = False) -> Iterator[tuple[str, str]]:
    for text in texts:
        name, equals, value = text.partition("=")
        if not name or (not equals and not alone):
            raise click.BadParameter(f"{text!r} is not of the form NAME=VALUE", param_hint=option)
        yield name, value


def _parse_sizes(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.replace("x", ",").split(","))
    except ValueError:
        raise click.BadParameter(
            f"{text!r} is not a list of whole numbers such as 4,64,56,56", param_hint="--dims"
        ) from None


def _parse_configs(ctx: click.Context, parameter: click.Parameter, value: str) -> int | str:
    return int(value) if value.isdecimal() else value


@click.command("run", cls=Command)
@add_version_options
@click.argument("graph_files", metavar="GRAPH...", nargs=-1, type=GRAPH_FILE_PARAMETER)
@click.option("--batch", "batches", multiple=True, metavar="FILE", help="Read one set of arguments per line from FILE.")
@add_graph_option("all if not given")
@click.option("--dims", multiple=True, metavar="NAME=SIZES", help="Replace dims: x=4,64,56,56; 0 keeps a dim.")
@click.option(
    "--type", "types", multiple=True, metavar="NAME=TYPE", help="Replace a data type: w=bf16; * for all tensors."
)
@click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="NAME[=VALUE]",
    help="An attribute (conv.stride=2), a number (scale=0.5), or an option of attention (causal, seq_q=512).",
)
@click.option(
    "--data",
    "kinds",
    multiple=True,
    default=("uniform",),
    show_default=True,
    metavar="KIND",
    help="uniform, integers, hostile, or an .npz file by tensor names; repeatable.",
)
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Seed of the random data.")
@click.option(
    "--configs",
    default="first",
    show_default=True,
    callback=_parse_configs,
    help="Engine configs: first, all, a number, or one tag.",
)
@click.option("--time/--no-time", "timed", default=True, show_default=True, help="Time configs with right results.")
@add_target_option(other="only list what would run there")
@make_seconds_option("--limit", "limit_s", more_than_0=True, default=600, help="For each graph.")
@add_format_options("text", "json", "junit")
@click.pass_context
def run_graphs(ctx: click.Context, /, **params: Any) -> None:
    """Run GRAPH on random data, and check the results.

    What each engine config writes is compared with the interpreter. GRAPH is as for explain, a log with several
    graphs, or what a line to reproduce names. Each runs in a child process, so that a crash of cuDNN is a result.
    Exit code 0 if all that ran is right, 1 if something is wrong or not supported, 2 if that could not be said: a
    failure, a GPU that is only described, a graph that cannot be interpreted.
    """
    style, output = params["style"], params["output"]
    cases = [*_make_run_requests(params), *(case for file in params["batches"] for case in _read_batch_file(ctx, file))]
    if not cases:
        raise click.UsageError("nothing to run: name a graph file, or --batch")
    trials: list[Trial] = []
    with progress_bar(len(cases), patience_s=_PROGRESS_DELAY_S) as (step, hide):
        for trial in _run_requests(cases, params["limit_s"], step):
            trials.append(trial)
            if style == "text" and output is None:
                hide()
                print_lines(_format_trial(trial))
    if style == "text":
        lines = [_format_trial(trial) for trial in trials] if output is not None else []
        lines += [_format_summary(trials)] if len(trials) > 1 else []
        write_or_print("".join(f"{line}\n" for line in lines), output)
    elif style == "json":
        report = {"schema": SCHEMA, "version": SCHEMA_VERSION, "trials": [trial.to_dict() for trial in trials]}
        write_or_print_report(json.dumps(report, indent=1) + "\n", output)
    else:
        write_or_print_report(_format_junit_report(trials), output)
    if output is not None:
        print_warning(f"{printable(output)}: {_format_summary(trials)}")
    raise SystemExit(max((trial.exit_code for trial in trials), default=NOT_JUDGED_EXIT_CODE))


def _make_run_requests(params: Mapping[str, Any], cudnn: str | None = None) -> list[_RunRequest]:
    options = {key: params[key] for key in ("number", "seed", "configs", "timed", "target")}
    return [
        _RunRequest(file, params["dims"], params["types"], params["settings"], kind, options, cudnn)
        for file in params["graph_files"]
        for kind in params["kinds"]
    ]


def _read_batch_file(ctx: click.Context, path: str) -> Iterator[_RunRequest]:
    """Yield a request for each line of a batch file; options missing there come from the command line."""
    for number, line in enumerate(read_text(path, code="graph-file").splitlines(), 1):
        try:
            words = shlex.split(line, comments=True)
        except ValueError as error:
            raise click.UsageError(f"{path}, line {number}: the line cannot be split into words: {error}") from None
        if not words:
            continue
        for word in words:
            if word.partition("=")[0] in _OPTIONS_NOT_IN_BATCH_LINES:
                raise click.UsageError(
                    f"{path}, line {number}: {word} applies to the whole batch: move it from this line to the "
                    "command line"
                )
        words, cudnn = _split_off_version_option(words, f"{path}, line {number}")
        try:
            inner = ctx.command.make_context("run", words, parent=ctx.parent)
        except click.UsageError as error:
            raise click.UsageError(f"{path}, line {number}: {error.format_message()}") from None
        told = {
            key: value
            for key, value in inner.params.items()
            if inner.get_parameter_source(key) is ParameterSource.COMMANDLINE
        }
        params = {**ctx.params, **told, "graph_files": inner.params["graph_files"]}
        for key in ("graph_files", "kinds"):
            params[key] = tuple(_resolve_path_in_batch_file(path, file) for file in params[key])
        warn_that_python_files_will_run(params["graph_files"], path)
        yield from _make_run_requests(params, cudnn)


def _resolve_path_in_batch_file(batch: str, file: str) -> str:
    """Return the path of a file named in a batch file; it may be relative to the batch file's folder."""
    there = Path(batch).parent / file
    return str(there) if not os.path.exists(file) and there.is_file() else file


def _split_off_version_option(words: list[str], where: str) -> tuple[list[str], str | None]:
    """Split off ``--cudnn`` from a batch file's line: return the other arguments and the version, or None."""
    left: list[str] = []
    version: str | None = None
    rest = iter(words)
    for word in rest:
        name, equals, value = word.partition("=")
        if name != _VERSION_OPTION:
            left.append(word)
            continue
        version = value if equals else next(rest, "")
        if not version or version.startswith("-"):
            raise click.UsageError(f"{where}: {_VERSION_OPTION} needs a version, such as {_VERSION_OPTION}=9.19")
    return left, version


def _run_requests(cases: list[_RunRequest], limit_s: float, step: Callable[[int, str], object]) -> Iterator[Trial]:
    from ..tuning.trial.runner import Runner

    with Runner(limit_s=limit_s) as runner:
        for place, case in enumerate(cases):
            step(place, case.file[:60])
            if case.cudnn is not None:
                yield from _run_with_other_cudnn(case.cudnn, case, limit_s)
                continue
            try:
                graphs = list(case.read_graphs())
            except GraphError as error:
                yield _make_failed_trial(case, error)
                continue
            for source, graph in graphs:
                if isinstance(graph, GraphError):
                    yield _make_failed_trial(case, graph, source=source)
                else:
                    yield _run_graph_trials(runner, case, source, graph, partial(step, place))


def _run_graph_trials(
    runner: Runner, case: _RunRequest, source: str, graph: Graph, step: Callable[[str], object]
) -> Trial:
    told = case.options
    try:
        return runner.run(
            graph,
            data=case.data,
            seed=told["seed"],
            target=told["target"],
            configs=told["configs"],
            time=told["timed"],
            source=source,
            step=lambda text: step(f"{graph.name}: {text}"),
        )
    except EnvironmentNotReady:
        raise
    except CudnnBackendError as error:
        return _make_failed_trial(case, error, graph.name, source)


def _run_with_other_cudnn(version: str, case: _RunRequest, limit_s: float) -> Iterator[Trial]:
    """Yield the trials of a case with another cuDNN, run in a process that loads it."""
    from ..system.child import describe_exit_status, make_call_command, run_command
    from ..tuning.trial import Trial
    from ..versions.judging_environment import make_version_environment

    words = [*case.command_line, f"--limit={limit_s}", "--format=json"]
    command = make_call_command("cudnn_backend_py.cli.commands:main", *words)
    try:
        environment = make_version_environment(version)
    except CudnnBackendError as error:
        yield _make_failed_trial(case, error)
        return
    done = run_command(command, environment, captured=True)
    try:
        told = json.loads(done.stdout)["trials"]
    except (ValueError, KeyError, TypeError):
        said = done.stderr.decode(errors="replace").strip()[-2000:] or describe_exit_status(done.returncode)
        yield _make_failed_trial(case, CudnnBackendError(f"with cuDNN {version}: {said}", code="answer-damaged"))
        return
    yield from map(Trial.from_dict, told)


def _make_failed_trial(
    case: _RunRequest, error: CudnnBackendError, name: str | None = None, source: str | None = None
) -> Trial:
    """Return the trial of a graph that could not be run; `source` names it."""
    from ..tuning.trial import Trial

    more = [error.sections[key] for key in ("where", "fix") if error.sections.get(key)]
    words = case.command_line if source is None else ["run", *shlex.split(source), *case.run_options]
    return Trial(
        graph=name or case.file[:60],
        target=case.options["target"] or "gpu",
        sm=0,
        cudnn="",
        data=case.data,
        seed=case.options["seed"],
        state="failed",
        words=f"{error.code}: {error.headline}" + (f" ({'; '.join(more)})" if more else ""),
        reproduce=shlex.join(
            ["cudnn-backend", *words, *([] if case.cudnn is None else [f"{_VERSION_OPTION}={case.cudnn}"])]
        ),
    )


# what is said


def _format_trial(trial: Trial) -> str:
    where = f"{trial.target}, cuDNN {trial.cudnn}" if trial.cudnn else trial.target
    lines = [
        f"{trial.state.upper():<{_STATE_WIDTH}} {trial.graph} [{trial.data}, seed {trial.seed}] on {where}"
        f"{_format_outputs(trial)}"
    ]
    if trial.words:
        lines += [f"    {line}" for line in trial.words.splitlines()]
    if trial.described and trial.configs:
        lines.append(f"    would run {', '.join(item.tag for item in trial.configs)}")
        lines.append(f"    reads {', '.join(f'{name} {kind}' for name, kind in trial.inputs)}")
        lines.append(f"    writes {', '.join(f'{item.name} {item.type}' for item in trial.outputs)}")
    for item in trial.configs:
        if item.state in ("wrong", "failed"):
            lines.append(f"    {item.state} {item.tag}: {item.words}")
            lines.append(f"      again: {item.reproduce}")
    if not trial.failures and trial.state == "failed":
        lines.append(f"      again: {trial.reproduce}")
    return "\n".join(printable(line) for line in lines)


def _format_outputs(trial: Trial) -> str:
    ran = [item for item in trial.configs if item.state not in ("refused", "not run")]
    if not ran:
        return ""
    right = sum(item.state == "right" for item in ran)
    parts = [f": {right} of {len(ran)} configs right"]
    errors = [compared.largest for item in ran for compared in item.comparisons if math.isfinite(compared.largest)]
    parts += [f"largest error {max(errors):.2g} of its bound"] if errors else []
    timed = [item for item in ran if item.warm is not None]
    if timed:
        parts.append(_format_fastest_config(timed))
    return ", ".join(parts)


def _format_fastest_config(timed: list[ConfigTrial]) -> str:
    best = min(timed, key=lambda item: item.warm.median_us if item.warm is not None else math.inf)
    assert best.cold is not None
    assert best.warm is not None
    return f"{best.tag} {best.cold.median_us:.1f} us cold, {best.warm.median_us:.1f} us warm"


def _format_summary(trials: list[Trial]) -> str:
    counts = Counter(trial.state for trial in trials)
    return f"{len(trials)} trials: {', '.join(f'{count} {state}' for state, count in counts.items())}"


def _format_junit_report(trials: list[Trial]) -> str:
    from ..diagnose.report.ci import VerdictTestCase, make_junit_xml
    from ..tuning.trial.trial import STATES

    kinds = {state: state.replace(" ", "-") for state in STATES}
    states = {"right": "passed", "wrong": "failed", "refused": "failed"}
    return make_junit_xml(
        (
            VerdictTestCase(
                graph=f"{trial.graph} [{trial.data}, seed {trial.seed}]",
                target=trial.target,
                version=trial.cudnn,
                state=states.get(trial.state, "error"),
                code=kinds[trial.state],
                message=(trial.failures[0].words if trial.failures else trial.words) or trial.state,
                text=_format_trial(trial),
            )
            for trial in trials
        ),
        suite="cudnn-backend run",
    )
