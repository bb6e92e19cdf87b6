"""Command line of the compatibility runs, ``python -m tests.compat``; explained in the package's docstring."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from cudnn_backend_py.info import find_git_commit

from .compare import compare_runs, print_comparison, read_run
from .notebooks import read_run_facts, run_notebooks
from .run import REPOSITORY, RunOptions, make_environment, run_test_files
from .scope import TEST_FILES
from .surface import FACTS_FILE, read_public_api


def _find_our_commit() -> str:
    return find_git_commit(REPOSITORY)


@click.group()
def main() -> None:
    """Run cudnn-frontend's own tests with its module and with ours, and compare."""


@main.command("run")
@click.option("--module", type=click.Choice(["frontend", "cudnn"]), required=True, help="What is imported as cudnn.")
@click.option("--path", type=click.Path(path_type=Path, exists=True), help="The folder which holds the module cudnn.")
@click.option(
    "--tests", type=click.Path(path_type=Path, exists=True), required=True, help="cudnn-frontend's test/python."
)
@click.option("--tests-commit", default="unknown", help="Commit of the tests, for the record.")
@click.option("--our-commit", default=_find_our_commit, help="Which commit ours is, where git cannot say.")
@click.option("--target", help="A described GPU (h100, a100); without it, the GPU of this machine.")
@click.option("--cudnn", help="A cuDNN version of the cache, or the folder of a libcudnn.so.9.")
@click.option("--files", multiple=True, help="A test file; repeatable. By default all with tests of backend graphs.")
@click.option("--exclude", multiple=True, help="Leave a test file out; repeatable.")
@click.option("-m", "mark", default="L0", show_default=True, help="pytest's -m.")
@click.option(
    "-n", "workers", default=1, show_default=True, help="Number of worker processes; 0 runs without pytest-xdist."
)
@click.option("--sample", default=1, show_default=True, help="Run one test in N, chosen by a hash of its id.")
@click.option("--part", default=0, show_default=True, help="Number of the part that --sample runs, from 0 to N - 1.")
@click.option("--seed", default=0, show_default=True, help="Seed of the random problems of the tests.")
@click.option("--fast", is_flag=True, help="With --target: build no plans in the large test files.")
@click.option("--together", is_flag=True, help="Run all files in one pytest process, also the large ones.")
@click.option(
    "--limit", "limit_s", default=3600.0, show_default=True, help="Time limit of one pytest process in seconds."
)
@click.option("--out", type=click.Path(path_type=Path), required=True, help="Output file, one JSON line per test.")
def run_tests(
    files: tuple[str, ...], exclude: tuple[str, ...], tests: Path, path: Path | None, **options: object
) -> None:
    """Run the test files, each large one in its own pytest, and write one JSON line for each test."""
    there = tuple(
        name for name in TEST_FILES if (tests / name).exists()
    )  # newer versions moved or removed some of these files
    chosen = tuple(name for name in files or there if name not in exclude)
    plan = RunOptions(files=chosen, tests=tests.resolve(), path=path and path.resolve(), **options)  # type: ignore[arg-type]
    run_test_files(plan, Console())


@main.command("compare")
@click.argument("theirs", type=click.Path(path_type=Path, exists=True))
@click.argument("ours", type=click.Path(path_type=Path, exists=True))
@click.option("--out", type=click.Path(path_type=Path), help="Write the comparison as JSON.")
@click.option(
    "--exceptions/--no-exceptions", default=True, help="Whether tests must raise the same kinds of exceptions."
)
@click.option("--files", multiple=True, help="Compare this test file only; repeatable.")
@click.option(
    "--in-time",
    is_flag=True,
    help="Ignore tests for which a run had too little time or GPU memory; print their number.",
)
def compare_results(
    theirs: Path, ours: Path, out: Path | None, exceptions: bool, files: tuple[str, ...], in_time: bool
) -> None:
    """Print the tests with a worse result in OURS than in THEIRS; exit with 1 if there are any."""
    runs = [read_run(path) for path in (theirs, ours)]
    if files:
        runs = [(about, {key: row for key, row in rows.items() if row["file"] in files}) for about, rows in runs]
    late = {key for _, rows in runs for key, row in rows.items() if in_time and _is_out_of_time_or_memory(row)}
    runs = [(about, {key: row for key, row in rows.items() if key not in late}) for about, rows in runs]
    data = compare_runs(runs[0], runs[1], exceptions)
    if late:
        data["left out, of both, for want of time or memory"] = len(late)
    print_comparison(data, Console(width=None if sys.stdout.isatty() else 160))
    if out:
        out.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
    sys.exit(1 if data["total"]["worse"] else 0)


def _is_out_of_time_or_memory(row: Mapping[str, Any]) -> bool:
    """Return whether a test ended because of its time limit, or because other processes used the GPU memory."""
    memory = ("torch.OutOfMemoryError", "torch.cuda.OutOfMemoryError", "Insufficient GPU memory")
    return row["outcome"] == "not run" or str(row["reason"]).startswith(memory)


@main.command("notebooks")
@click.argument("folder", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.option("--module", type=click.Choice(["frontend", "cudnn"]), required=True, help="What is imported as cudnn.")
@click.option("--path", type=click.Path(path_type=Path, exists=True), help="The folder which holds the module cudnn.")
@click.option("--notebooks-commit", default="unknown", help="Commit of the notebooks, for the record.")
@click.option("--our-commit", default=_find_our_commit, help="Which commit ours is, where git cannot say.")
@click.option("--target", help="A described GPU (h100, a100); without it, the GPU of this machine.")
@click.option("--cudnn", help="A cuDNN version of the cache, or the folder of a libcudnn.so.9.")
@click.option("--limit", "limit_s", default=600.0, show_default=True, help="Time limit of one notebook in seconds.")
@click.option("--jobs", default=1, show_default=True, help="Number of notebooks to run at a time.")
@click.option("--out", type=click.Path(path_type=Path), required=True, help="Output file, as JSON.")
def run_notebook_folder(
    folder: Path,
    module: str,
    path: Path | None,
    notebooks_commit: str,
    our_commit: str,
    target: str | None,
    cudnn: str | None,
    limit_s: float,
    jobs: int,
    out: Path,
) -> None:
    """Run every notebook of FOLDER unchanged, and write the step that each one reached."""
    if target and module == "cudnn":
        raise click.UsageError("cudnn-frontend runs on the GPU of this machine only: --target is of our module")
    environment = make_environment(cudnn, path and path.resolve())
    about = read_run_facts(module, environment, target)
    ends = run_notebooks(folder, module, environment, target=target, limit_s=limit_s, jobs=jobs)
    about |= {"module": module, "notebooks commit": notebooks_commit, "our commit": our_commit}
    out.write_text(json.dumps({**about, "notebooks": ends}, indent=1) + "\n", encoding="utf-8")
    for name, said in ends.items():
        print(f"{name}: {said['end']}", *said.get("warned of", ()))


@main.command("facts")
@click.option(
    "--path", type=click.Path(path_type=Path, exists=True), required=True, help="Folder that contains the module cudnn."
)
def store_public_api(path: Path) -> None:
    """Read and store cudnn-frontend's public API; cudnn-frontend must be able to load cuDNN."""
    sys.path.insert(0, str(path))
    FACTS_FILE.write_text(json.dumps(read_public_api(import_module("cudnn")), indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(prog_name="python -m tests.compat")
