"""The command group ``cudnn-backend``, and the commands that manage targets and cuDNN versions."""

from __future__ import annotations

import shlex
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click
from rich.table import Column
from rich.text import Text

from ..command_line import Choice
from ..printable import printable
from ..system.user_folder import measure_folder_bytes
from ..terminal import WordTable
from .audit import audit_wrong_result
from .graph import graph_commands
from .options import InstalledVersionParameter, TargetParameter, add_format_options
from .output import (
    NOT_JUDGED_EXIT_CODE,
    MainCommandGroup,
    OutputFile,
    add_escaped_row,
    format_json,
    print_lines,
    print_or_write_table,
    print_warning,
    show_progress_line,
    write_or_print,
    write_or_print_report,
)
from .plans import PLAN_COMMANDS
from .reasons import explain_message
from .run import run_graphs
from .verdicts import VERDICT_COMMANDS
from .verify import verify_target
from .wheels import LARGE_DOWNLOAD_BYTES, add_version_options, end_on_sigterm

if TYPE_CHECKING:
    from ..target import Profile
    from ..versions.store import InstalledCudnn

__all__ = ["main"]


# The commands by the heading of the help they stand under.
HELP_SECTIONS = {
    "Verdicts": ("explain", "matrix", "diff", "check"),
    "Programs": ("why", "frontend", "log", "reasons", "audit"),
    "Graphs and plans": ("graph", "run", "plan"),
    "Setup": ("cudnn", "target", "cache", "doctor"),
}


@click.group(cls=MainCommandGroup, sections=HELP_SECTIONS, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="cudnn-backend-py")
@add_version_options
def main() -> None:
    """Script and understand cuDNN's graph engine."""


@main.command("doctor")
@add_format_options("text", "json")
@add_version_options
def run_doctor(style: str, output: str | None) -> None:
    """Show cuDNN, driver, GPUs and problems of the environment.

    Shows version and path of the library and how it was found, NVRTC, driver or driver stub, GPUs, installed versions
    and described GPUs, then the problems, each with its fix. Needs only Python's standard library. Exit code 0 if
    graphs can be judged and plans can be built, 1 if a problem prevents that.
    """
    from ..info import collect_info, has_problem, render_info

    facts = collect_info()
    if style == "json":
        write_or_print_report(format_json(facts), output)
    else:
        write_or_print(render_info(facts), output)
    raise SystemExit(has_problem(facts))


@main.group("target")
def target_commands() -> None:
    """List, show and verify described GPUs; read the available one."""


@target_commands.command("list")
@add_format_options("text", "json")
def list_targets(style: str, output: str | None) -> None:
    """List the described GPUs."""
    from ..target import list_profiles

    if style == "json":
        write_or_print_report(format_json([_describe_profile(profile) for profile in list_profiles()]), output)
        return
    table = WordTable("name", "GPU", "arch", "also called", "shared memory per block", "SMs")
    for profile in list_profiles():
        add_escaped_row(
            table,
            profile.name,
            profile.title,
            f"sm_{profile.sm}",
            ", ".join(profile.aliases),
            str(profile.properties["maxSharedMemoryPerBlockOptin"]),
            str(profile.properties["multiProcessorCount"]),
        )
    print_or_write_table(table, output)


def _describe_profile(profile: Profile) -> dict[str, Any]:
    names = {"name": profile.name, "title": profile.title, "sm": profile.sm, "aliases": list(profile.aliases)}
    return {**names, "properties": dict(profile.properties)}


@target_commands.command("show")
@click.argument("name", type=TargetParameter())
@click.option("--device-json", is_flag=True, help="Print only the JSON that cuDNN reads.")
@add_format_options("text", "json")
def show_target(name: str, device_json: bool, style: str, output: str | None) -> None:
    """Show a described GPU with the source of every number."""
    from ..target import find_profile

    profile = find_profile(name)
    if device_json:
        write_or_print_report(f"{profile.json()}\n", output)
        return
    if style == "json":
        sources = {"sources": dict(profile.sources), "citations": dict(profile.citations)}
        write_or_print_report(format_json(_describe_profile(profile) | sources), output)
        return
    title = Text(printable(f"{profile.title} ({profile.name})"))
    table = WordTable("property", "value", "source", title=title)
    for key, value in profile.properties.items():
        add_escaped_row(table, key, str(value), profile.sources.get(key, ""))
    print_or_write_table(table, output, *(f"{key}: {text}" for key, text in profile.citations.items()))


@target_commands.command("read")
@click.option("--device", "ordinal", default=0, show_default=True, help="Ordinal of the GPU.")
@click.option("--output", type=OutputFile(), help="Write it here, not to standard output.")
@add_version_options
def read_target(ordinal: int, output: str | None) -> None:
    """Print a GPU of this machine, as JSON that --target takes."""
    from ..target import read_device

    write_or_print_report(format_json(read_device(ordinal)), output)


target_commands.add_command(verify_target)

_CUDA_HELP = "CUDA major version of the wheel."


def _add_flavor_options(function: Any) -> Any:
    """Add ``--full`` and ``--jit``."""
    full = click.option("--full", "flavor", flag_value="full", help="The full wheel, some 1 GB.")
    jit = click.option("--jit", "flavor", flag_value="jit", help="The small wheel, without precompiled engines.")
    return full(jit(function))


def _parse_cuda_major(major: str | None) -> Literal["12", "13"] | None:
    return None if major is None else "12" if major == "12" else "13"


@main.group("cudnn")
def cudnn_commands() -> None:
    """Install, list, verify and remove cuDNN versions.

    They are next to each other in a private cache.
    """


@cudnn_commands.command("install")
@click.argument("version")
@click.option("--cuda", type=Choice(["12", "13"]), help=_CUDA_HELP)
@_add_flavor_options
@click.option("--quiet", is_flag=True, help="Show no progress bar.")
@click.option("--yes", is_flag=True, help="Fetch large wheels without asking.")
def install_version(
    version: str, cuda: str | None, flavor: Literal["jit", "full"] | None, quiet: bool, yes: bool
) -> None:
    """Install cuDNN VERSION: 9.27, 9.19.0, 9.26.0+cu13 or latest.

    Installs the small JIT wheel, or the full wheel where no JIT wheel can judge graphs. The JIT wheel has all engines
    for attention, and not all for convolutions and matmuls. Both can be installed; then the full wheel is used. NVRTC
    and, for full wheels, cuBLAS are installed too, unless pip has installed them. Downloads above 300 MB are confirmed
    at a terminal.
    """
    from ..versions import store as versions

    with end_on_sigterm():
        size = 0 if yes else versions.find_download_bytes(version, flavor, cuda=_parse_cuda_major(cuda)) or 0
        if size > LARGE_DOWNLOAD_BYTES:
            if sys.stdin.isatty() and sys.stderr.isatty():
                click.confirm(f"Download {size / 1e6:.0f} MB for cuDNN {version}?", abort=True, err=True)
            else:
                print_warning(f"downloading {size / 1e6:.0f} MB for cuDNN {version}")
        installed = versions.install(version, cuda=_parse_cuda_major(cuda), flavor=flavor, progress=not quiet)
    print_lines(
        f"cuDNN {installed.full_version_with_cuda} ({installed.flavor}) is at {installed.path}, "
        f"{installed.size_bytes / 1e6:.0f} MB"
    )
    for folder in versions.list_folders(installed)[1:]:
        print_lines(f"it uses {folder}, {measure_folder_bytes(folder) / 1e6:.0f} MB")
    if not installed.can_judge:
        print_warning(
            f"the JIT wheel of {installed.version_with_cuda} cannot judge graphs, because it lacks a library; "
            f"install the full wheel (cudnn-backend cudnn install {installed.version_with_cuda} --full)"
        )


@cudnn_commands.command("list")
@add_format_options("text", "json")
def list_versions(style: str, output: str | None) -> None:
    """List the installed versions."""
    from ..versions import store as versions

    installed = versions.list_installed()
    if style == "json":
        write_or_print_report(format_json([_describe_version(item) for item in installed]), output)
        return
    table = WordTable("version", "wheel", "MB", Column("path", no_wrap=True))
    for item in installed:
        add_escaped_row(table, item.full_version_with_cuda, item.flavor, f"{item.size_bytes / 1e6:.0f}", str(item.path))
    shared = (
        f"used by these versions: {folder}, {measure_folder_bytes(folder) / 1e6:.0f} MB"
        for folder in versions.list_shared_folders()
    )
    print_or_write_table(table, output, *shared)


def _describe_version(item: InstalledCudnn) -> dict[str, Any]:
    facts = asdict(item) | {"version": item.full_version_with_cuda}
    return {key: str(value) if isinstance(value, Path) else value for key, value in facts.items()}


@cudnn_commands.command("verify")
@click.argument("wanted", nargs=-1, metavar="[VERSION...]", type=InstalledVersionParameter())
@add_format_options("text", "json")
def verify_versions(wanted: tuple[str, ...], style: str, output: str | None) -> None:
    """Check that the files of installed cuDNN versions are unchanged.

    Every file is, byte for byte; without VERSION those of all there are. Those in the cache are checked, and if no
    VERSION is named also the one of this environment, by the RECORD of its wheel. Exit code 0 if all are whole, 1 if
    one is damaged, 2 if one could not be checked.
    """
    from ..versions import store as versions

    with show_progress_line("reading every file"):
        checked = versions.check_all(wanted, environment=not wanted)
    if style == "json":
        write_or_print_report(format_json([one.to_dict() for one in checked]), output)
    else:
        told: list[str] = []
        for one in checked:
            told.append(printable(f"{one.state + ':':<10} {one.name} {one.path}".rstrip()))
            told += [printable(f"  {item}") for item in one.differences]
            told += [f"  repair: {one.repair}"] if one.repair else []
        write_or_print("".join(f"{line}\n" for line in told), output)
    raise SystemExit(max((one.exit_code for one in checked), default=NOT_JUDGED_EXIT_CODE))


@cudnn_commands.command("remove")
@click.argument("version", type=InstalledVersionParameter())
@click.option("--cuda", type=Choice(["12", "13"]), help=_CUDA_HELP)
@_add_flavor_options
def remove_version(version: str, cuda: str | None, flavor: Literal["jit", "full"] | None) -> None:
    """Remove an installed version."""
    from ..versions import store as versions

    removed = versions.remove(version, cuda=_parse_cuda_major(cuda), flavor=flavor)
    print_lines(f"removed cuDNN {removed.full_version_with_cuda} ({removed.flavor})")


@main.command("record", hidden=True)
@add_version_options
@click.argument("folder", type=click.Path(file_okay=False))
@click.option("--pytest-arguments", default="tests/gpu", show_default=True, help="Arguments for pytest.")
def record_gpu_tests(folder: str, pytest_arguments: str) -> None:
    """Run the GPU tests; write a record into FOLDER (logs/)."""
    from ..testing.record import record_run

    try:
        arguments = shlex.split(pytest_arguments)
    except ValueError as error:
        raise click.BadParameter(f"{pytest_arguments!r}: {error}", param_hint="--pytest-arguments") from None
    done = record_run(Path(folder), arguments)
    for why, count in done.not_run.items():
        print_lines(printable(f"not run, {count} tests: {why}"))
    print_lines(f"record written to {done.path}")
    raise SystemExit(done.code if done.code in (0, 1) else NOT_JUDGED_EXIT_CODE)


@main.command("completion", hidden=True)
@click.argument("shell", type=Choice(["bash", "zsh", "fish"]))
def print_completion_script(shell: str) -> None:
    """Print the shell script that completes commands, targets and versions.

    Switch it on in this shell by: eval "$(cudnn-backend completion bash)", and for good in ~/.bashrc, or ~/.zshrc
    after compinit; for fish: cudnn-backend completion fish > ~/.config/fish/completions/cudnn-backend.fish
    """
    from click.shell_completion import get_completion_class

    chosen = get_completion_class(shell)
    assert chosen is not None
    source = chosen(main, {}, "cudnn-backend", "_CUDNN_BACKEND_COMPLETE").source()
    # For fish: explanations have commas, and what comes first, such as the newest version, stays first.
    source = source.replace('string split ","', 'string split --max 1 ","')
    write_or_print_report(source.replace("complete --no-files", "complete --keep-order --no-files") + "\n", None)


for command in (*VERDICT_COMMANDS, *PLAN_COMMANDS, graph_commands, run_graphs, audit_wrong_result, explain_message):
    main.add_command(command)

if __name__ == "__main__":
    main()
