"""The commands ``plan`` (build, tune and compare plans) and ``cache``."""

from __future__ import annotations

import shlex
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ..command_line import Choice, Group
from ..errors import CudnnBackendError, CudnnStatusError, NotSupported
from ..system.user_folder import get_user_folder, measure_folder_bytes
from ..terminal import BorderlessTextTable
from .graph_file import load_graph_file
from .options import (
    GRAPH_FILE_PARAMETER,
    add_format_options,
    add_graph_option,
    add_repeatable_version_option,
    add_target_option,
    format_graph_option,
    make_seconds_option,
    parse_engine_option,
)
from .output import (
    NOT_JUDGED_EXIT_CODE,
    OutputFile,
    add_escaped_row,
    format_json,
    format_megabytes,
    make_json_saver,
    print_lines,
    print_or_write_table,
    print_warning,
    show_progress_line,
    write_or_print,
    write_or_print_report,
)
from .wheels import add_version_options, format_loaded_version_option, install_missing_versions

if TYPE_CHECKING:
    from ..graph import Graph

__all__ = ["cache_commands", "plan_commands"]

_CACHE_DISABLED_TEXT = "the plan cache is turned off (CUDNN_BACKEND_PLAN_CACHE is set to nothing)"


def _explain_missing_plan(graph: Graph, source: Sequence[str], target: str | None, error: CudnnBackendError) -> int:
    """Print why there is no plan; return 1 if cuDNN refuses the graph or the chosen config, 2 for another reason."""
    from ..diagnose import Query, judge
    from ..diagnose.report.summary import format_summary

    verdict = judge(Query(graph, target or "gpu", build=True))
    if verdict.exit_code:
        print_warning(format_summary(verdict).rstrip("\n"))
        return verdict.exit_code
    options = [*(["--target", target] if target else []), *format_loaded_version_option()]
    command = shlex.join(["cudnn-backend", "explain", *source, *options, "-v"])
    fix = f"other configs are supported: leave --engine, --knob and --mode out, or choose one that {command} lists"
    print_warning(
        CudnnBackendError(error.headline, code=error.code, cause=error.sections.get("cause"), fix=fix).render()
    )
    return 1 if error.code == "nothing-selected" else NOT_JUDGED_EXIT_CODE


@click.group("plan", cls=Group)
def plan_commands() -> None:
    """Build, tune and compare plans."""


@plan_commands.command("build")
@add_version_options
@click.argument("graph_file", metavar="GRAPH", type=GRAPH_FILE_PARAMETER)
@add_graph_option()
@add_target_option()
@click.option("--output", required=True, type=OutputFile(), help="Write the plan here; required.")
@click.option("--mode", default="A", show_default=True, help="Heuristics mode: A, B or FALLBACK.")
@click.option("--engine", metavar="ENGINE", help="Use this engine: its index, or a config's tag such as eng2_k24=7.")
@click.option("--knob", "knobs", multiple=True, metavar="KNOB=VALUE", help="Knob value of the engine; repeatable.")
def build_plan(
    graph_file: str,
    number: int | None,
    target: str | None,
    output: str,
    mode: str,
    engine: str | None,
    knobs: tuple[str, ...],
) -> None:
    """Build the plan of GRAPH ahead of time.

    It may be for a GPU that is not here. Exit code 1 if cuDNN does not support GRAPH, as explain says, or not
    with that engine; 2 if the plan cannot be had for another reason.
    """
    from ..plans.build import build as build_plan
    from ..plans.build import parse_knobs

    choices = parse_knobs(knobs) or None
    asked = load_graph_file(graph_file, number)
    try:
        with show_progress_line("building") as step:
            step(asked.name)
            built = build_plan(asked, target, mode=mode, engine=parse_engine_option(engine), knobs=choices)
    except (CudnnStatusError, NotSupported) as error:
        source = [graph_file, *format_graph_option(number)]
        raise SystemExit(_explain_missing_plan(asked, source, target, error)) from None
    built.save(output)
    print_lines(
        f"{output}: {built.tag} for {built.target.name} (sm_{built.target.sm}), needs {built.workspace_bytes} bytes of "
        "workspace"
    )


@click.group("cache", cls=Group)
def cache_commands() -> None:
    """List and remove what this package keeps on disk."""


@cache_commands.command("list")
@add_format_options("text", "json")
def list_cached_plans(style: str, output: str | None) -> None:
    """List the stored plans, and the sizes of this package's folders."""
    from ..plans.cache import default_cache

    kept = default_cache()
    entries = () if kept is None else kept.entries()
    if style == "json":
        folder = None if kept is None else str(kept.folder)
        folders = [
            {"folder": str(one), "size_bytes": size, "removed_by": how} for one, size, how in _list_package_folders()
        ]
        found = {"folder": folder, "plans": [asdict(entry) for entry in entries], "folders": folders}
        write_or_print_report(format_json(found), output)
    else:
        sizes = [
            f"{format_megabytes(size)} MB in {one}, removed by {how}"
            for one, size, how in _list_package_folders()
            if size
        ]
        count = _CACHE_DISABLED_TEXT if kept is None else f"{_format_plan_count(len(entries))} in {kept.folder}"
        table = BorderlessTextTable("graph", "plan", "target", "cuDNN", "MB", "last used")
        for entry in entries:
            used = time.strftime("%Y-%m-%d %H:%M", time.localtime(entry.used))
            size = format_megabytes(entry.size_bytes)
            add_escaped_row(table, entry.graph, entry.tag, entry.target, entry.cudnn, size, used)
        if entries:
            print_or_write_table(table, output, count, *sizes)
        else:
            write_or_print("".join(f"{line}\n" for line in (count, *sizes)), output)


@cache_commands.command("clear")
@click.option("--all", "everything", is_flag=True, help="Also delete answers, file digests and compiled extensions.")
@click.option(
    "--versions", is_flag=True, help="With --all, also delete the installed cuDNN versions, NVRTC and cuBLAS."
)
def clear_caches(everything: bool, versions: bool) -> None:
    """Delete the stored plans, and more with --all.

    With --all and --versions only the cases of the audit are left.
    """
    from ..plans.cache import default_cache

    if versions and not everything:
        raise click.UsageError("--versions applies only with --all: add --all, or leave --versions out")
    kept = default_cache()
    print_lines(
        _CACHE_DISABLED_TEXT if kept is None else f"{_format_plan_count(kept.clear())} removed from {kept.folder}"
    )
    if everything:
        for folder, size_bytes in _delete_recreatable_cache_folders():
            print_lines(f"{format_megabytes(size_bytes)} MB removed: {folder}")
    if versions:
        from ..versions import store

        for folder, size_bytes in store.clear():
            print_lines(f"{format_megabytes(size_bytes)} MB removed: {folder}")


def _format_plan_count(number: int) -> str:
    return f"{number} plan{'s' * (number != 1)}"


def _list_recreatable_cache_folders() -> list[Path]:
    from ..native.version_store import get_default_root

    folders = (get_user_folder("answers"), get_user_folder("torch"), get_default_root() / "digests")
    return [folder for folder in folders if folder.is_dir() and not folder.is_symlink()]


def _delete_recreatable_cache_folders() -> Iterator[tuple[Path, int]]:
    """Delete folders that can be recreated; yield each with its size in bytes."""
    import shutil

    for folder in _list_recreatable_cache_folders():
        size_bytes = measure_folder_bytes(folder)
        shutil.rmtree(folder)
        yield folder, size_bytes


def _list_package_folders() -> list[tuple[Path, int, str]]:
    """Return each existing folder of this package, its size in bytes, and the command that removes it."""
    from ..audit.case import get_default_case_folder
    from ..plans.cache import default_cache
    from ..versions import store

    kept = default_cache()
    ways = {one.path: f"cudnn-backend cudnn remove {one.name}" for one in store.list_installed()}
    ways |= dict.fromkeys(store.list_nvrtc_and_cublas_folders(), "cudnn-backend cache clear --all --versions")
    ways |= {} if kept is None else {Path(kept.folder): "cudnn-backend cache clear"}
    ways |= dict.fromkeys(_list_recreatable_cache_folders(), "cudnn-backend cache clear --all")
    ways[get_default_case_folder()] = "hand, file by file"
    return [(folder, measure_folder_bytes(folder), how) for folder, how in ways.items() if folder.is_dir()]


@plan_commands.command("tune")
@add_version_options
@click.argument("graph_file", metavar="GRAPH", type=GRAPH_FILE_PARAMETER)
@add_graph_option()
@make_seconds_option("--budget", default=30.0, help="For measuring.")
@click.option("--engines", is_flag=True, help="Also time configs that heuristics do not list.")
@click.option("--max-candidates", default=32, show_default=True, help="Maximum number of configs to time.")
@click.option("--output", type=OutputFile(), help="Write the figures here, as JSON.")
def tune_plan(
    graph_file: str, number: int | None, budget: float, engines: bool, max_candidates: int, output: str | None
) -> None:
    """Time the engine configs of GRAPH; keep the fastest.

    They are timed on the GPU of this machine, and what is fastest is the plan of GRAPH from then on.
    """
    from ..tuning.search import tune as tune_graph

    tune_graph(
        load_graph_file(graph_file, number),
        json_path=output,
        budget_s=budget,
        engines=engines,
        max_candidates=max_candidates,
    )


@plan_commands.command("compare")
@click.argument("log_file", metavar="[LOG]", required=False, type=click.Path(exists=True, dir_okay=False))
@click.option("--grid", type=Choice(["whole", "little"]), help="Shapes, without LOG.  [default: whole]")
@add_repeatable_version_option("the cuDNN of this process if not given, which 'default' also is")
@add_target_option(other="list its plans without timing them")
@click.option(
    "--configs", type=click.IntRange(1), default=2, show_default=True, help="Number of engine configs per version."
)
@click.option("--rounds", type=click.IntRange(5), default=11, show_default=True, help="Repetitions of GPU timing.")
@make_seconds_option("--limit", default=600.0, help="Start no measurement after this time.")
@add_format_options("text", "json", "markdown")
@click.option("--plot", type=OutputFile(), help="Write a plot to FILE (needs matplotlib).")
@click.option(
    "--resume",
    "resumed",
    metavar="JSON",
    type=click.Path(exists=True, dir_okay=False),
    help="Continue this record and keep its rows.",
)
def compare_attention(
    log_file: str | None,
    grid: str | None,
    versions: tuple[str, ...],
    target: str | None,
    configs: int,
    rounds: int,
    limit: float,
    style: str,
    output: str | None,
    plot: str | None,
    resumed: str | None,
) -> None:
    """Compare attention: cuDNN, torch's backends, flash-attn.

    cuDNN is compared by version and engine config, on the GPU of this machine. For 40 shapes, or for each graph of
    attention in LOG, a log of cuDNN: forward and backward, GPU and host time. Where there is no GPU, --target names
    the plans that would be compared. A JSON --output is written as it goes, and --resume goes on with it.
    """
    from ..diagnose.surveys.inputs import DEFAULT_VERSION
    from .compare.comparison import Comparison, run_compare_command

    if log_file and grid:
        raise click.UsageError("--grid cannot be combined with a LOG: leave one of them out")
    if plot and target:
        raise click.UsageError(
            "--plot draws measured times, but with --target nothing is measured: leave one of them out"
        )
    what = log_file or f"--grid={grid or 'whole'}"
    install_missing_versions(version for version in versions if version != DEFAULT_VERSION)
    wanted = Comparison(what, versions or (DEFAULT_VERSION,), target, configs, rounds, limit)
    keep = make_json_saver(output, style)
    text = run_compare_command(
        wanted, style, Path(plot) if plot else None, resumed, lambda record: keep(lambda: record)
    )
    put = write_or_print if style == "text" else write_or_print_report
    put(text, output)
