"""Commands that judge logs, programs and many graphs: `log`, `why`, `matrix`, `check` and others."""

from __future__ import annotations

import math
import os
import shlex
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from ..command_line import Command
from ..errors import GraphError
from ..system.child import make_package_import_source
from ..system.untrusted_files import read_text
from ..terminal import open_console
from .explain import judge_and_search_remedies
from .graph_file import load_graph_file, load_graph_files, read_graphs_and_errors
from .options import (
    BUILD_HELP,
    GRAPH_FILE_PARAMETER,
    InstalledVersionParameter,
    add_format_options,
    add_graph_option,
    add_repeatable_version_option,
    add_target_option,
    make_seconds_option,
)
from .output import (
    NOT_JUDGED_EXIT_CODE,
    OutputFile,
    format_json,
    make_json_saver,
    print_lines,
    print_warning,
    show_progress_line,
    warn_that_cached_verdicts_log_nothing,
    warn_that_python_files_will_run,
    write_or_print,
    write_or_print_report,
)
from .wheels import (
    add_version_options,
    add_wheel_options,
    find_cell_versions_without_engines,
    find_versions_without_engines,
    format_loaded_version_option,
    install_missing_versions,
    install_version_and_make_environment,
    judge_again_with_full_wheels_if_needed,
    list_available_versions,
)

if TYPE_CHECKING:
    from rich.console import RenderableType

    from ..diagnose.report.ci import VerdictTestCase
    from ..diagnose.surveys.baseline import Baseline, CheckedVerdict
    from ..diagnose.surveys.upgrade import Upgrade
    from ..graph import Graph

__all__ = [
    "check_baseline",
    "compare_two_versions",
    "explain_torch_program",
    "make_attention_support_table",
    "read_log",
    "render_attention_support_page",
    "run_frontend_program",
    "show_verdict_matrix",
]


class _LogCommand(Command):
    """A command with a file, or a program after ``--``, which click alone would treat as a file."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the command line; arguments after ``--`` are kept for :func:`read_log`."""
        if "--" in args:
            place = args.index("--")
            args, ctx.meta[_PROGRAM_KEY] = args[:place], args[place + 1 :]
        try:
            return super().parse_args(ctx, args)
        except click.UsageError as error:
            if "extra argument" not in error.message:
                raise
            text = f"{error.message}; a program comes after --: cudnn-backend log -- PROGRAM [ARGUMENTS]"
            raise click.UsageError(text, error.ctx) from None

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        """Return the arguments for the usage line."""
        return ["[OPTIONS]", "FILE | -- PROGRAM [ARGUMENTS]..."]


_PROGRAM_KEY = f"{__name__}:program"


@click.command("log", cls=_LogCommand)
@click.argument("log_file", metavar="FILE", type=GRAPH_FILE_PARAMETER, required=False)
@add_target_option(many=True, other="explain each graph for it; with a PROGRAM, the GPU of this machine if not given")
@click.option("--explain/--list", "explained", default=None, help="Explain the graphs, or only list them.")
@click.option("--breakdown", is_flag=True, help="Show executions, plans, build times and shape classes instead.")
@click.option("--keep", metavar="LOG", type=click.Path(dir_okay=False), help="Keep the log of PROGRAM in this file.")
@click.option("-v", "--verbose", is_flag=True, help="Show whole graphs and every engine config with cuDNN's reasons.")
@add_format_options("text", "json")
@add_version_options
def read_log(
    log_file: str | None,
    targets: tuple[str, ...],
    explained: bool | None,
    breakdown: bool,
    keep: str | None,
    verbose: bool,
    style: str,
    output: str | None,
) -> None:
    """Explain the graphs in a cuDNN log or those of a program.

    FILE is what any program wrote with CUDNN_LOGLEVEL_DBG=3 or with the log of cuDNN's frontend, .gz or - for standard
    input, or any other file of graphs that is data. With -- PROGRAM the program, in any language, is run with cuDNN's
    log enabled. Exit code 0 if all graphs are supported or only listed, 1 if one is not, 2 if none could be read or
    judged.
    """
    program = click.get_current_context().meta.get(_PROGRAM_KEY)
    if (log_file is None) == (not program):
        raise click.UsageError("give a log FILE, or -- and a PROGRAM to run")
    if program:
        from ..diagnose.logged_program import run_program_with_cudnn_log

        with run_program_with_cudnn_log(program, keep, quiet=style == "json" and output is None) as file:
            if os.path.getsize(file) == 0:
                raise GraphError(
                    f"{program[0]} called no function of cuDNN's backend API, so there is no log",
                    code="log-file",
                    cause="the program uses another API or no cuDNN at all, ended before its first call, or has a "
                    "cuDNN older than 9",
                    fix=_format_library_path_command(program),
                )
            _write_log_report(
                file, keep, targets, _has_gpu() if explained is None else explained, breakdown, verbose, style, output
            )
    if keep is not None:
        raise click.UsageError(
            "--keep keeps the log of a PROGRAM that is run: leave --keep out, or give -- PROGRAM instead of FILE"
        )
    assert log_file is not None
    _write_log_report(
        log_file, log_file if log_file != "-" else None, targets, explained, breakdown, verbose, style, output
    )


def _format_library_path_command(program: Sequence[str]) -> str | None:
    """Return how a program finds the cuDNN and the NVRTC that this process would load; None if there is no cuDNN."""
    from ..versions.judging_environment import read_judging_environment

    setup = read_judging_environment(None)
    folders = dict.fromkeys(os.path.dirname(path) for path in (setup.library, setup.nvrtc) if path)
    if not setup.library:
        return None
    words = shlex.join([f"LD_LIBRARY_PATH={':'.join(folders)}", "cudnn-backend", "log", "--", *program])
    return f"if it did not find libcudnn.so.9: {words}"


def _has_gpu() -> bool | None:
    """Return True if the CUDA driver finds a GPU, else None."""
    from ..native import load_driver

    driver = load_driver()
    return True if driver.kind == "real" and driver.devices > 0 else None


def _write_log_report(
    file: str,
    kept: str | None,
    targets: tuple[str, ...],
    explained: bool | None,
    breakdown: bool,
    verbose: bool,
    style: str,
    output: str | None,
) -> NoReturn:
    from ..importers.files import open_graph_file

    source = open_graph_file(file)
    if breakdown:
        from ..diagnose.breakdown import break_down_log

        if targets or explained:
            raise click.UsageError("--breakdown does not judge graphs: leave out --target and --explain")
        found = break_down_log(source)
        _write_result(style, output, found)
        raise SystemExit(0 if any(item.graph is not None for item in found.graphs) else NOT_JUDGED_EXIT_CODE)
    from ..diagnose.logs import report_log

    with show_progress_line("reading the log"):
        report = report_log(source, targets, explained=explained)
    if style == "json":
        write_or_print_report(format_json(report.to_dict()), output)
    else:
        words = ["cudnn-backend", "explain", "--whatif", kept or "", *format_loaded_version_option()]
        write_or_print(report.text(verbose=verbose, search=shlex.join(words) if kept else ""), output)
    raise SystemExit(report.exit_code)


def _write_result(style: str, output: str | None, found: Any) -> None:
    """Write a result as text or JSON, to a file or standard output."""
    if style == "json":
        write_or_print_report(format_json(found.to_dict()), output)
    else:
        write_or_print(str(found), output)


@click.command(
    "why",
    cls=Command,
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False, "help_option_names": []},
    options_metavar="",  # they are among the arguments
)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="[OPTIONS] PROGRAM [ARGUMENTS]...")
def explain_torch_program(arguments: tuple[str, ...]) -> None:
    """Run a torch program, and report why cuDNN was not used.

    Of each call of its attention it says which backend torch chose, and what kept cuDNN out.
    The same as python -m cudnn_backend_py.why. The exit code is the program's.
    """
    from ..why.__main__ import read_command_line

    if read_command_line(arguments, "cudnn-backend why") is None:
        return
    load = f"{make_package_import_source()}\nfrom cudnn_backend_py.why.__main__ import main\nmain()"
    os.execv(sys.executable, [sys.executable, "-c", load, *arguments])  # exit code and signals are the program's


@click.command(
    "frontend",
    cls=Command,
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False, "help_option_names": []},
    options_metavar="",  # they are among the arguments
)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="[OPTIONS] PROGRAM [ARGUMENTS]...")
def run_frontend_program(arguments: tuple[str, ...]) -> None:
    """Run a program written for cudnn-frontend with this package.

    'import cudnn' gives cudnn_backend_py.frontend, with the reasons of every refusal; --target h100 judges for a
    described GPU. The same as python -m cudnn_backend_py.frontend, and --cudnn installs what is missing. The exit code
    is the program's.
    """
    from ..frontend.__main__ import read_command_line

    if (run := read_command_line(arguments, "cudnn-backend frontend")) is None:
        return
    version = InstalledVersionParameter().convert(run.version, None, None)
    environment = dict(os.environ) if version is None else install_version_and_make_environment(version)
    call = "from cudnn_backend_py.frontend.__main__ import main\nmain(version_is_set=True)"
    # The exit code and signals are the program's.
    os.execve(
        sys.executable, [sys.executable, "-c", f"{make_package_import_source()}\n{call}", *arguments], environment
    )


@click.command("matrix", cls=Command)
@click.argument("graph_files", nargs=-1, required=True, metavar="GRAPH...", type=GRAPH_FILE_PARAMETER)
@add_graph_option()
@add_target_option(many=True, other="one of each architecture from sm80 on if not given")
@add_repeatable_version_option("every installed version if not given, where other commands take one")
@click.option("--build/--no-build", default=False, show_default=True, help=BUILD_HELP)
@click.option("--since", "boundaries", is_flag=True, help="Find the first and last version that supports each GRAPH.")
@click.option("--every", is_flag=True, help="With --since, judge with all versions and infer nothing.")
@click.option("--install", is_flag=True, help="With --since, also install and judge versions in between.")
@click.option("--workers", type=click.IntRange(min=1), help="Judging processes; the number of cores if not given.")
@click.option("--fresh", is_flag=True, help="Judge again instead of using stored answers.")
@add_format_options("text", "json", "html", "markdown")
@add_wheel_options
def show_verdict_matrix(
    graph_files: tuple[str, ...],
    number: int | None,
    targets: tuple[str, ...],
    versions: tuple[str, ...],
    build: bool,
    boundaries: bool,
    every: bool,
    install: bool,
    workers: int | None,
    fresh: bool,
    style: str,
    output: str | None,
) -> None:
    """Judge every GRAPH on every target with every version.

    Answers are stored: a run that was stopped continues where it was. Exit code 0 if all graphs are supported, 1 if one
    is not, 2 if one could not be judged. With --since, 0 if some version supports each graph.
    """
    graphs = dict(load_graph_files(graph_files, number))
    if boundaries:
        if style in ("html", "markdown") or workers is not None:
            raise click.UsageError("--since cannot be combined with --format html or markdown, or --workers")
    elif every or install:
        option = "--every" if every else "--install"
        raise click.UsageError(f"{option} applies only with --since: add --since, or leave {option} out")
    if not fresh:
        warn_that_cached_verdicts_log_nothing()
    if boundaries:
        _show_supporting_version_ranges(graphs.values(), targets, versions, build, every, install, fresh, style, output)
    from ..diagnose.report.tables import format_verdict_matrix_markdown, render_as_text, render_verdict_matrix
    from ..diagnose.surveys.attention import TARGETS
    from ..diagnose.surveys.inputs import choose_wheels, find_exact_version_name, read_targets
    from ..diagnose.surveys.matrix import Matrix, matrix

    _install_missing_named_versions(versions)
    names = tuple(map(find_exact_version_name, versions)) or list_available_versions()

    def judge_matrix_with_wheels(wheels: dict[str, str]) -> Matrix:
        places = choose_wheels(names, wheels)
        return matrix(graphs, targets or TARGETS, places, build=build, workers=workers, fresh=fresh)

    def find_versions_without_engines(answers: Matrix) -> list[str]:
        return find_cell_versions_without_engines((version, cell) for (*_, version), cell in answers.cells.items())

    answers = judge_again_with_full_wheels_if_needed(judge_matrix_with_wheels, find_versions_without_engines, names)
    if style == "json":
        profiles = {name: getattr(one, "name", name) for name, one in read_targets(answers.targets).items()}
        write_or_print_report(format_json(answers.to_dict() | {"profiles": profiles}), output)
    elif style == "html":
        from ..diagnose.report.html import render_page

        write_or_print_report(render_page((), matrix=answers), output)
    elif style == "markdown":
        write_or_print_report(format_verdict_matrix_markdown(answers), output)
    elif output is not None:
        write_or_print(render_as_text(render_verdict_matrix(answers)), output)
    else:
        open_console().print(render_verdict_matrix(answers))
    raise SystemExit(answers.exit_code)


def _install_missing_named_versions(versions: Sequence[str]) -> None:
    from ..diagnose.surveys.inputs import DEFAULT_VERSION

    install_missing_versions(version for version in versions if version != DEFAULT_VERSION)


def _show_supporting_version_ranges(
    graphs: Iterable[Graph],
    targets: Sequence[str],
    versions: Sequence[str],
    build: bool,
    every: bool,
    install: bool,
    fresh: bool,
    style: str,
    output: str | None,
) -> NoReturn:
    """Find the first version that supports each graph on each target, and the first that refuses it again."""
    from ..diagnose.report.tables import render_as_text, render_supporting_version_range
    from ..diagnose.surveys.attention import TARGETS
    from ..diagnose.surveys.inputs import choose_wheels, find_exact_version_name
    from ..diagnose.surveys.since import Since, since

    _install_missing_named_versions(versions)
    names = tuple(map(find_exact_version_name, versions)) or list_available_versions()

    def judge_available_versions(graph: Graph, target: str) -> Since:
        def find_supporting_version_boundaries(wheels: dict[str, str]) -> Since:
            with show_progress_line() as step:
                step(f"{len(names)} versions")
                return since(graph, target, choose_wheels(names, wheels), build=build, every=every, fresh=fresh)

        return judge_again_with_full_wheels_if_needed(
            find_supporting_version_boundaries,
            lambda answer: find_cell_versions_without_engines(answer.asked.items()),
            names,
        )

    def find_supporting_version_range(graph: Graph, target: str) -> Since:
        nonlocal names
        while True:
            answer = judge_available_versions(graph, target)
            missing = answer.missing_before or answer.missing_after
            if not install or not missing:
                return answer
            middle = missing[(len(missing) - 1) // 2]
            install_missing_versions([middle])
            names = (*names, find_exact_version_name(middle))

    found = [find_supporting_version_range(graph, target) for graph in graphs for target in targets or TARGETS]
    if style == "json":
        data = [one.to_dict() for one in found]
        write_or_print_report(format_json(data if len(data) > 1 else data[0]), output)
    elif output is not None:
        write_or_print("\n".join(render_as_text(render_supporting_version_range(one)) for one in found), output)
    else:
        for one in found:
            open_console().print(render_supporting_version_range(one))
    raise SystemExit(max(one.exit_code for one in found))


@click.command("check", cls=Command)
@click.argument("file", metavar="FILE", type=click.Path(exists=True, dir_okay=False))
@click.option("--update", "updated", is_flag=True, help="Write the new verdicts into FILE.")
@click.option("--fresh", is_flag=True, help="Judge again instead of using stored answers.")
@click.option("-v", "--verbose", is_flag=True, help="Explain each change again, with every engine config.")
@add_format_options("text", "json", "junit", "github")
@add_wheel_options
def check_baseline(file: str, updated: bool, fresh: bool, verbose: bool, style: str, output: str | None) -> None:
    """Compare verdicts with a baseline.

    The baseline FILE is a TOML file of graphs, targets, versions and expected verdicts. Exit code 0 if nothing changed,
    1 if something did, 2 if something could not be judged; with --update, 0 if all could be written.
    """
    from ..diagnose.report.tables import render_baseline_check
    from ..diagnose.surveys import baseline

    settings = baseline.read_baseline(Path(file))
    warn_that_python_files_will_run((str(settings.path.parent / graph) for graph in settings.graphs.values()), file)
    if not fresh:
        warn_that_cached_verdicts_log_nothing()
    _install_missing_named_versions(settings.versions)

    def judge_baseline_with_wheels(wheels: dict[str, str]) -> list[baseline.CheckedVerdict]:
        put = baseline.update_baseline if updated else baseline.check_baseline
        return put(Path(file), load=load_graph_file, fresh=fresh, wheels=wheels)

    def find_versions_without_engines(found: list[baseline.CheckedVerdict]) -> list[str]:
        return find_cell_versions_without_engines((one.version, one.cell) for one in found if updated or one.changed)

    results = judge_again_with_full_wheels_if_needed(
        judge_baseline_with_wheels, find_versions_without_engines, settings.versions
    )
    _write_checked_verdicts(
        style,
        output,
        lambda: [one.to_dict() for one in results],
        [one.make_test_case() for one in results],
        {one.name: (Path(file).parent / one.graph).as_posix() for one in results},
        lambda: render_baseline_check(results, Path(file).name if updated else None),
    )
    if verbose and style == "text" and output is None:
        _explain_changed_verdicts(settings, [one for one in results if one.changed and one.cell.stage != "file"])
    if updated:
        raise SystemExit(0 if all(one.can_be_recorded for one in results) else NOT_JUDGED_EXIT_CODE)
    raise SystemExit(baseline.compute_baseline_exit_code(results))


def _explain_changed_verdicts(settings: Baseline, changed: Sequence[CheckedVerdict]) -> None:
    """Judge the graphs again that differ from the baseline, and print the full verdicts."""
    from ..diagnose import Judge, Query, render_text
    from ..diagnose.surveys.inputs import DEFAULT_VERSION

    with show_progress_line() as step, Judge(step=step) as judge:
        for one in changed:
            graph = load_graph_file(str(settings.path.parent / one.graph))
            version = None if one.version == DEFAULT_VERSION else one.version
            [verdict] = judge_and_search_remedies(
                [Query(graph, one.target, version, build=settings.build or None)], judge
            )
            print_lines(f"\n{render_text(verdict)}")


class _ComparedVersionParameter(InstalledVersionParameter):
    """A parameter for a cuDNN version; for a file, the error says that versions come before graph files."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the version."""
        if os.path.isfile(value):
            self.fail(f"{value} is a file, and OLD and NEW come first: cudnn-backend diff OLD NEW {value}", param, ctx)
        return super().convert(value, param, ctx)


@click.command("diff", cls=Command)
@click.argument("old", metavar="OLD", type=_ComparedVersionParameter())
@click.argument("new", metavar="NEW", type=_ComparedVersionParameter())
@click.argument("files", metavar="GRAPH...", nargs=-1, required=True, type=click.Path(exists=True, dir_okay=False))
@add_target_option(many=True)
@click.option("--time", "timed", is_flag=True, help="Run the graphs that changed on the GPU of this machine.")
@make_seconds_option("--limit", "limit_s", help="Start no graph after this time.")
@add_format_options("text", "json", "junit", "github")
@add_wheel_options
def compare_two_versions(
    old: str,
    new: str,
    files: tuple[str, ...],
    targets: tuple[str, ...],
    timed: bool,
    limit_s: float | None,
    style: str,
    output: str | None,
) -> None:
    """Compare two cuDNN versions on each GRAPH.

    OLD and NEW are versions (9.19.0), or latest; a missing one up to 300 MB is installed. Compares verdict, engine
    configs, first plan with its workspace, compiled code and build time, and known issues. GRAPH can be a log with many
    graphs. A JSON --output is written as it goes. Exit code 0 if nothing changed, 1 if something did, 2 if something
    could not be judged or was left out.
    """
    _compare_versions_on_files(files, (old, new), targets or ("gpu",), timed, limit_s, style, output)


def _compare_versions_on_files(
    files: tuple[str, ...],
    between: tuple[str, str],
    targets: tuple[str, ...],
    timed: bool,
    limit_s: float | None,
    style: str,
    output: str | None,
) -> NoReturn:
    from ..diagnose.report.tables import render_version_comparison
    from ..diagnose.surveys.inputs import find_exact_version_name
    from ..diagnose.surveys.upgrade import compare_versions

    if timed and "gpu" not in targets:
        raise click.UsageError("--time runs on the GPU of this machine: leave --target out, or name gpu")
    if "gpu" in targets:
        from ..native import load_driver
        from ..target import require_gpu

        words = shlex.join((*between, *files))
        require_gpu(load_driver(), fix=f"name a described GPU: cudnn-backend diff {words} --target l40s")
    _install_missing_named_versions(between)
    old, new = map(find_exact_version_name, between)
    until = math.inf if limit_s is None else time.monotonic() + limit_s
    write_early = make_json_saver(output, style)

    def save_partial_comparison(so_far: Callable[[], Upgrade]) -> None:
        write_early(lambda: so_far().to_dict())

    graphs: dict[str, Graph] = {}
    places: dict[str, str] = {}
    faults: list[GraphError] = []
    for file in files:
        for number, graph in read_graphs_and_errors(file):
            if isinstance(graph, GraphError):
                faults.append(graph)
                print_warning(
                    f"skipped, because it could not be rebuilt: graph {number or 1} of {file}: {graph.headline}"
                )
                continue
            name = graph.name if number is None else f"{Path(file).name}:{number}"
            if name in graphs:
                name = f"{file}:{name}"
            graphs[name], places[name] = graph, file
    if faults and not graphs:
        raise faults[0]

    def compare_versions_with_wheels(wheels: dict[str, str]) -> Upgrade:
        return compare_versions(graphs, targets, old, new, wheels=wheels, until=until, keep=save_partial_comparison)

    found = judge_again_with_full_wheels_if_needed(
        compare_versions_with_wheels,
        lambda answer: find_versions_without_engines(
            verdict for one in answer.changes for verdict in (one.old, one.new)
        ),
        (old, new),
    )
    if timed:
        from ..tuning.upgrade import time_changed_graphs

        with show_progress_line("timing") as step:
            found = time_changed_graphs(found, graphs, step=step, until=until, keep=save_partial_comparison)
    for line in found.unfinished_work:
        print_warning(line)
    _write_checked_verdicts(
        style,
        output,
        found.to_dict,
        [one.make_test_case(found.old, found.new) for one in found.changes],
        places,
        lambda: render_version_comparison(found),
    )
    raise SystemExit(found.exit_code or (NOT_JUDGED_EXIT_CODE if faults else 0))


def _write_checked_verdicts(
    style: str,
    output: str | None,
    data: Callable[[], Any],
    cases: Sequence[VerdictTestCase],
    files: Mapping[str, str],
    render: Callable[[], RenderableType],
) -> None:
    """Write the checked verdicts in the given format; `files` are the graph files by graph name."""
    from ..diagnose.report.ci import make_github_annotations, make_junit_xml
    from ..diagnose.report.tables import render_as_text

    if style == "json":
        write_or_print_report(format_json(data()), output)
    elif style == "junit":
        write_or_print_report(make_junit_xml(cases), output)
    elif style == "github":
        lines = make_github_annotations(cases, files=files)
        write_or_print_report("".join(f"{line}\n" for line in lines), output, annotations=True)
    elif output is not None:
        write_or_print(render_as_text(render()), output)
    else:
        open_console().print(render())


@click.command("attention-table", cls=Command)
@add_target_option(many=True, other="one of each architecture from sm80 on if not given")
@click.option("--row", "parts", multiple=True, metavar="TEXT", help="Only rows with this in their name; repeatable.")
@add_format_options("text", "json")
@add_version_options
def make_attention_support_table(
    targets: tuple[str, ...], parts: tuple[str, ...], style: str, output: str | None
) -> None:
    """Judge every option of attention on every architecture.

    Every architecture is judged unless --target names some. A row is named such as "forward: causal". Exit code 0, or 2
    if some cell could not be judged.
    """
    from ..diagnose.surveys.attention import TARGETS, attention_rows, support_table

    rows = [name for name in attention_rows() if not parts or any(part in name for part in parts)]
    if not rows:
        raise click.UsageError(
            f"no row has {' or '.join(map(repr, parts))} in its name; "
            f"a row is named such as {next(iter(attention_rows()))!r}"
        )
    with show_progress_line() as step:
        step(f"{len(rows)} rows of attention")
        table = support_table(targets or TARGETS, rows=rows)
    if style == "json":
        write_or_print_report(table.to_json(), output)
    else:
        from ..diagnose.report.tables import render_as_text, render_support_table

        write_or_print(render_as_text(render_support_table(table)), output)
    raise SystemExit(NOT_JUDGED_EXIT_CODE if any(cell.answer == "?" for cell in table.all_cells()) else 0)


@click.command("attention-page", cls=Command, hidden=True)
@click.argument("tables", nargs=-1, required=True, metavar="TABLE...", type=click.Path(exists=True, dir_okay=False))
@click.option("--output", type=OutputFile(), help="Write it here, not to standard output.")
def render_attention_support_page(tables: tuple[str, ...], output: str | None) -> None:
    """Render files of attention-table as one Markdown page.

    There is one TABLE for each cuDNN version.
    """
    from ..diagnose.report.attention_page import render_page
    from ..diagnose.surveys.attention import SupportTable

    read = [SupportTable.from_json(read_text(name, code="support-table-file")) for name in tables]
    write_or_print_report(render_page(read, files=tables), output)
