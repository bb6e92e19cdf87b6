"""The command ``explain``: whether cuDNN supports a graph, and why."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

import click

from ..command_line import Command
from ..system.streams import prints_plain_text
from .graph_file import load_graph_file, load_graph_files
from .options import (
    BUILD_HELP,
    GRAPH_FILE_PARAMETER,
    add_format_options,
    add_graph_option,
    add_mode_option,
    add_target_option,
    format_graph_option,
    make_seconds_option,
    parse_engine_option,
)
from .output import (
    NOT_JUDGED_EXIT_CODE,
    format_json,
    print_lines,
    show_progress_line,
    write_or_print,
    write_or_print_report,
)
from .wheels import (
    add_version_options,
    find_versions_without_engines,
    format_loaded_version_option,
    judge_again_with_full_wheels_if_needed,
)

if TYPE_CHECKING:
    from ..diagnose import Judge, Query, Verdict
    from ..graph import Graph

__all__ = ["explain_graphs", "judge_and_search_remedies"]


@click.command("explain", cls=Command)
@click.argument("graph_files", metavar="GRAPH...", nargs=-1, required=True, type=GRAPH_FILE_PARAMETER)
@add_graph_option()
@add_target_option(many=True)
@add_mode_option
@click.option("--build/--no-build", default=None, help=f"{BUILD_HELP} The default of --whatif and of archives.")
@click.option("--whatif", is_flag=True, help="Find the smallest changes that make cuDNN support GRAPH; checks each.")
@make_seconds_option(
    "--budget", "budget_s", help="Time limit of --whatif; if not given, check a fixed number of changes."
)
@click.option(
    "--execute", is_flag=True, help="Also build and run the plan once on zeroed memory, on this machine's GPU."
)
@click.option("--every-engine", is_flag=True, help="Check all engines and knob values, not only what heuristics list.")
@click.option("--engine", metavar="ENGINE", help="Judge this engine alone, or the config of a tag such as eng2_k24=7.")
@click.option(
    "--code",
    metavar="FOLDER",
    type=click.Path(file_okay=False, writable=True, resolve_path=True),
    help="Also build a plan; write the machine code of its kernels to FOLDER, and its SASS with nvdisasm.",
)
@click.option("-v", "--verbose", is_flag=True, help="Show every engine config with cuDNN's reasons.")
@make_seconds_option("--limit", "limit_s", default=600, help="For each verdict.")
@click.option("--here", is_flag=True, help="Call cuDNN in this process; a crash of cuDNN ends it.")
@add_format_options("text", "json", "html", "junit", "github", "archive")
@add_version_options
def explain_graphs(
    graph_files: tuple[str, ...],
    number: int | None,
    targets: tuple[str, ...],
    modes: tuple[str, ...],
    build: bool | None,
    whatif: bool,
    budget_s: float | None,
    execute: bool,
    every_engine: bool,
    engine: str | None,
    code: str | None,
    verbose: bool,
    limit_s: float,
    here: bool,
    style: str,
    output: str | None,
) -> None:
    """Report whether cuDNN supports each GRAPH, and why.

    GRAPH is a Python file (.py) with a function graph(), which is run; a graph JSON, a plan file, or a log or JSON of
    cuDNN or of its frontend, which are read as data. Without --target it is judged for the GPU of this machine. The
    exit code is the largest of all graphs and targets. cuDNN is called in a child process, so that its crash is an
    answer; in this process with --here, or where CUDNN_LOGLEVEL_DBG requests cuDNN's log.

    With --whatif, exit code 0 also if a change was found, 1 if none was, and 2 if the search was not finished.
    --format archive writes a .tar.gz, .tgz or .zip with which others get the same answer: GRAPH as data, the verdict,
    cuDNN's log, and a Python and a C++ program. Its exit code is 0, whatever the verdict.
    """
    if budget_s is not None and not whatif:
        raise click.UsageError("--budget limits the time of --whatif: add --whatif, or leave --budget out")
    if whatif or style == "archive":
        option = "--whatif" if whatif else "--format archive"
        refused = {
            "more than one GRAPH": len(graph_files) > 1,
            "more than one --target": len(targets) > 1,
            "--execute": execute,
            "--every-engine": every_engine,
            "--engine": engine is not None,
            "--code": code is not None,
            "--here": here,
            f"--format {style}": style in ("junit", "github"),
        }
        if broken := [name for name, given in refused.items() if given]:
            raise click.UsageError(f"{option} cannot be combined with {' and '.join(broken)}")
        target = next(iter(targets), "gpu")
        if style == "archive":
            _write_reproduction_archive(
                load_graph_file(graph_files[0], number), target, modes, build is not False, limit_s, output
            )
        else:
            _show_remedies(graph_files[0], number, target, modes, build is not False, budget_s, limit_s, style, output)
        return
    if every_engine and engine is not None:
        raise click.UsageError("--every-engine checks all engines: leave it out, or leave --engine out")
    chosen = parse_engine_option(engine)
    if code is not None:
        os.makedirs(code, exist_ok=True)
    if execute and set(targets) - {"gpu"}:
        raise click.UsageError("--execute runs the plan on the GPU of this machine: leave --target out, or name gpu")
    if here or "CUDNN_LOGLEVEL_DBG" in os.environ:
        graphs = load_graph_files(graph_files, number)
        from ..diagnose.loading import load_library_in_thread

        with load_library_in_thread():
            from ..diagnose import explain

        modes = _choose_heuristics_modes(modes)
        verdicts = [
            explain(
                graph,
                name,
                mode=modes,
                build=build,
                execute=execute,
                shapes=True,
                every_engine=every_engine,
                code=code,
                engine=chosen,
            )
            for _, graph in graphs
            for name in targets or (None,)
        ]
        _write_verdicts(style, output, verdicts, graphs, verbose, code)
        raise SystemExit(max(verdict.exit_code for verdict in verdicts))
    from ..diagnose.processes import JudgingProcesses
    from ..versions.judging_environment import read_judging_environment

    names = targets or ("gpu",)
    with JudgingProcesses() as processes:
        processes.start(read_judging_environment(None), sees_gpu=names[0] == "gpu")
        graphs = load_graph_files(graph_files, number)
        from ..diagnose import Judge, Query

        modes = _choose_heuristics_modes(modes)

        def judge_in_children(wheels: dict[str, str]) -> list[Verdict]:
            version = next(iter(wheels.values()), None)
            with show_progress_line() as step:
                judge = Judge(limit_s=limit_s, step=step, processes=processes)
                questions = [
                    Query(
                        graph,
                        name,
                        version,
                        modes,
                        build,
                        execute,
                        shapes=True,
                        every_engine=every_engine,
                        code=code,
                        engine=chosen,
                    )
                    for _, graph in graphs
                    for name in names
                ]
                return judge_and_search_remedies(questions, judge)

        verdicts = judge_again_with_full_wheels_if_needed(judge_in_children, find_versions_without_engines)
        processes.kill()  # they end while the answer is written
        _write_verdicts(style, output, verdicts, graphs, verbose, code)
    raise SystemExit(max(verdict.exit_code for verdict in verdicts))


def _write_verdicts(
    style: str,
    output: str | None,
    verdicts: list[Verdict],
    graphs: Sequence[tuple[str, Graph]],
    verbose: bool,
    code: str | None,
) -> None:
    """Write or print the verdicts in a format, with styles where a terminal shows them; disassemble their code."""
    if style in ("json", "html") or verbose:
        verdicts = list(map(_add_framework_behavior, verdicts, _repeat_graphs_per_verdict(graphs, verdicts)))
    if style == "text" and output is None and (verbose or not prints_plain_text(sys.stdout)):
        _print_verdicts(verdicts, verbose)
    else:
        text = _format_verdicts(style, verdicts, graphs, verbose)
        if style == "text":
            write_or_print(text, output)
        else:
            write_or_print_report(text, output, annotations=style == "github")
    if code is not None:
        from .kernel_code import disassemble_kernels

        disassemble_kernels(verdicts, code)


def _write_reproduction_archive(
    graph: Graph, target: str, modes: tuple[str, ...], build: bool, limit_s: float, output: str | None
) -> None:
    """Write an archive that reproduces the verdict, and print its path."""
    from ..diagnose.report.archive import write_repro

    with show_progress_line() as step:
        step(graph.name)
        path = write_repro(graph, target, output, build=build, modes=_choose_heuristics_modes(modes), limit_s=limit_s)
    print_lines(str(path))


def _choose_heuristics_modes(modes: tuple[str, ...]) -> tuple[str, ...]:
    """Return the requested heuristics modes, or the default ones if none was requested."""
    if modes:
        return modes
    from ..diagnose.verdict import DEFAULT_MODES

    return tuple(mode.name for mode in DEFAULT_MODES)


def _print_verdicts(verdicts: Sequence[Verdict], verbose: bool) -> None:
    """Print verdicts, separated by empty lines, with the styles that a terminal shows."""
    from ..diagnose.report.summary import render_summary
    from ..diagnose.report.text import render_verdict
    from ..terminal import open_console

    console = open_console()
    for number, verdict in enumerate(verdicts):
        if number:
            console.print()
        console.print(render_verdict(verdict) if verbose else render_summary(verdict))


def _repeat_graphs_per_verdict(graphs: Sequence[tuple[str, Graph]], verdicts: Sequence[Verdict]) -> list[Graph]:
    """Return one graph per verdict; each file has one verdict per target, in order."""
    return [graph for _, graph in graphs for _ in range(len(verdicts) // len(graphs))]


def _add_framework_behavior(verdict: Verdict, graph: Graph) -> Verdict:
    """Add to a verdict what torch, TransformerEngine and cudnn-frontend would do with its graph."""
    from dataclasses import replace

    from ..diagnose import Outcome
    from ..system.version import Version
    from ..why.frameworks import describe_framework_decisions

    if verdict.outcome is Outcome.NOT_JUDGED:  # the target or the version may be unknown
        return verdict
    return replace(
        verdict, frameworks=describe_framework_decisions(graph, Version.from_text(verdict.cudnn), verdict.sm)
    )


def judge_and_search_remedies(questions: Sequence[Query], judge: Judge) -> list[Verdict]:
    """Judge graphs; for those that cuDNN refuses, also judge other cuDNN versions and changes of the graph."""
    answers = [judge.run_query(question) for question in questions]
    if any(verdict.may_differ_by_version for verdict in answers):
        from ..diagnose.other_versions import add_version_remedy
        from ..diagnose.remedies import add_remedy_with_same_cudnn_version

        answers = [
            add_remedy_with_same_cudnn_version(add_version_remedy(verdict, asked, judge), asked, judge)
            for verdict, asked in zip(answers, questions, strict=True)
        ]
    if any(verdict.lacks_good_remedy for verdict in answers):
        from ..diagnose.other_versions import add_newest_version_verdict
        from ..diagnose.remedies import search_and_add_remedy

        answers = [
            add_newest_version_verdict(search_and_add_remedy(verdict, asked, judge), asked, judge)
            for verdict, asked in zip(answers, questions, strict=True)
        ]
    return answers


def _format_verdicts(style: str, verdicts: list[Verdict], graphs: Sequence[tuple[str, Graph]], verbose: bool) -> str:
    """Return the verdicts as text in the given format; `graphs` are pairs of file name and graph."""
    if style == "html":
        from ..diagnose.report.html import render_page

        return render_page(verdicts, graphs=_repeat_graphs_per_verdict(graphs, verdicts))
    if style == "junit":
        from ..diagnose.report.ci import make_junit_xml

        return make_junit_xml(verdicts)
    if style == "github":
        from ..diagnose.report.ci import make_github_annotations

        files = {graph.name: file for file, graph in graphs}
        return "".join(f"{line}\n" for line in make_github_annotations(verdicts, files=files))
    if style == "text":
        if not verbose:
            from ..diagnose.report.summary import format_summary

            return "\n".join(format_summary(verdict) for verdict in verdicts)
        from ..diagnose import render_text

        return "\n".join(map(render_text, verdicts))
    data = [verdict.to_dict() for verdict in verdicts]
    return format_json(data if len(data) > 1 else data[0])


def _show_remedies(
    graph_file: str,
    number: int | None,
    target: str,
    modes: tuple[str, ...],
    build: bool,
    budget_s: float | None,
    limit_s: float,
    style: str,
    output: str | None,
) -> NoReturn:
    """Search and print the smallest changes that make cuDNN support a graph."""
    from ..diagnose import Judge, Outcome, Query, whatif
    from ..diagnose.other_versions import add_version_remedy
    from ..diagnose.remedy import Remedies
    from ..diagnose.report.tables import render_as_text, render_remedies

    graph = load_graph_file(graph_file, number)
    judged_modes = _choose_heuristics_modes(modes)
    full: str | None = None
    step: Callable[[str], object] = str
    with Judge(limit_s=limit_s, step=lambda text: step(text)) as judge:

        def judge_in_child(wheels: dict[str, str]) -> list[Verdict]:
            nonlocal full, step
            full = next(iter(wheels.values()), None)
            with show_progress_line() as step:
                return [judge.run_query(Query(graph, target, full, judged_modes, build))]

        [verdict] = judge_again_with_full_wheels_if_needed(judge_in_child, find_versions_without_engines)
        if style in ("json", "html"):
            verdict = _add_framework_behavior(verdict, graph)
        with show_progress_line() as step:
            step("changes of the graph")
            options: dict[str, Any] = {"version": full, "modes": judged_modes, "budget_s": budget_s, "build": build}
            remedies = Remedies(graph, ()) if verdict.supported else whatif(graph, target, judge=judge, **options)
            if not remedies and remedies.extent.finished and verdict.outcome is Outcome.NOT_SUPPORTED:
                # another version may support it for another target, or with a change
                verdict = add_version_remedy(verdict, Query(graph, target, full, judged_modes, build), judge)
    again = (
        ""
        if remedies.extent.finished
        else _format_longer_search_command([graph_file, *format_graph_option(number)], target, budget_s, modes, build)
    )
    if style == "html":
        from ..diagnose.report.html import render_page

        write_or_print_report(render_page([verdict], graphs=[graph], remedies=[remedies]), output)
    elif style == "json":
        found = [remedy.to_dict() for remedy in remedies]
        search = {**remedies.extent.to_dict(), "continue": again}
        write_or_print_report(format_json({"verdict": verdict.to_dict(), "remedies": found, "search": search}), output)
    elif output is not None:
        write_or_print(render_as_text(render_remedies(verdict, graph, remedies, again=again)), output)
    else:
        from ..terminal import open_console

        open_console().print(render_remedies(verdict, graph, remedies, again=again))
    unfinished = 0 if remedies.extent.finished else NOT_JUDGED_EXIT_CODE
    is_found = bool(remedies) or verdict.supported or verdict.has_version_remedy
    raise SystemExit(0 if is_found else max(verdict.exit_code, unfinished))


_BUDGET_FACTOR = 10  # times the budget that was too short
_DEFAULT_LONG_BUDGET_S = 60  # where there was none


def _format_longer_search_command(
    graph: Sequence[str], target: str, budget_s: float | None, modes: Sequence[str], build: bool
) -> str:
    """Return the command line that repeats the search with a longer time limit."""
    import shlex

    longer = _DEFAULT_LONG_BUDGET_S if budget_s is None else max(1.0, _BUDGET_FACTOR * budget_s)
    words = ["cudnn-backend", "explain", "--whatif", *graph, f"--target={target}", *format_loaded_version_option()]
    words += [*(f"--mode={mode}" for mode in modes), *(() if build else ("--no-build",)), f"--budget={longer:g}"]
    return shlex.join(words)
