"""The commands ``cudnn``: install, list, verify and remove cuDNN versions."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click
from rich.table import Column

from ..command_line import Choice, Group
from ..printable import printable
from ..system.user_folder import measure_folder_bytes
from ..terminal import BorderlessTextTable
from .options import InstalledVersionParameter, add_format_options
from .output import (
    NOT_JUDGED_EXIT_CODE,
    add_escaped_row,
    format_json,
    format_megabytes,
    print_lines,
    print_or_write_table,
    print_warning,
    show_progress_line,
    write_or_print,
    write_or_print_report,
)
from .wheels import LARGE_DOWNLOAD_BYTES, raise_system_exit_on_sigterm, warn_about_full_wheel

if TYPE_CHECKING:
    from ..versions.store import InstalledCudnn

__all__ = ["cudnn_commands"]

_CUDA_HELP = "CUDA major version of the wheel."


def _add_full_and_jit_options(function: Any) -> Any:
    """Add the options ``--full`` and ``--jit``, which choose the wheel of a version, to a command."""
    full = click.option("--full", "flavor", flag_value="full", help="The full wheel, some 1 GB.")
    jit = click.option("--jit", "flavor", flag_value="jit", help="The small wheel, without precompiled engines.")
    return full(jit(function))


def _parse_cuda_major(major: str | None) -> Literal["12", "13"] | None:
    return None if major is None else "12" if major == "12" else "13"


@click.group("cudnn", cls=Group)
def cudnn_commands() -> None:
    """Install, list, verify and remove cuDNN versions.

    They are next to each other in a private cache.
    """


@cudnn_commands.command("install")
@click.argument("version")
@click.option("--cuda", type=Choice(["12", "13"]), help=_CUDA_HELP)
@_add_full_and_jit_options
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

    with raise_system_exit_on_sigterm():
        size = 0 if yes else versions.find_download_size(version, flavor, cuda=_parse_cuda_major(cuda)) or 0
        if size > LARGE_DOWNLOAD_BYTES:
            warn_about_full_wheel(version, flavor, _parse_cuda_major(cuda))
            if sys.stdin.isatty() and sys.stderr.isatty():
                click.confirm(f"Download {format_megabytes(size)} MB for cuDNN {version}?", abort=True, err=True)
            else:
                print_warning(f"downloading {format_megabytes(size)} MB for cuDNN {version}")
        installed = versions.install(version, cuda=_parse_cuda_major(cuda), flavor=flavor, progress=not quiet)
    print_lines(
        f"cuDNN {installed.full_version_with_cuda} ({installed.flavor}) is at {installed.path}, "
        f"{format_megabytes(installed.size_bytes)} MB"
    )
    for folder in versions.list_folders(installed)[1:]:
        print_lines(f"it uses {folder}, {format_megabytes(measure_folder_bytes(folder))} MB")


@cudnn_commands.command("list")
@click.option("--available", is_flag=True, help="List what can be installed instead, from pip's package index.")
@add_format_options("text", "json")
def list_versions(available: bool, style: str, output: str | None) -> None:
    """List the installed cuDNN versions.

    With --available the versions that can be installed, each with its CUDA major and its wheels; a JIT wheel that
    cannot judge graphs is left out.
    """
    from ..versions import store as versions

    if available:
        _list_available_versions(style, output)
        return
    installed = versions.list_installed()
    if style == "json":
        write_or_print_report(format_json([_describe_version(item) for item in installed]), output)
        return
    table = BorderlessTextTable("version", "wheel", "MB", Column("path", no_wrap=True))
    for item in installed:
        add_escaped_row(
            table, item.full_version_with_cuda, item.flavor, format_megabytes(item.size_bytes), str(item.path)
        )
    shared = (
        f"used by these versions: {folder}, {format_megabytes(measure_folder_bytes(folder))} MB"
        for folder in versions.list_nvrtc_and_cublas_folders()
    )
    print_or_write_table(table, output, *shared)


def _list_available_versions(style: str, output: str | None) -> None:
    from ..versions import store as versions

    with show_progress_line("looking up versions"):
        found = versions.list_available()
    if style == "json":
        write_or_print_report(format_json([asdict(one) for one in found]), output)
        return
    there = {one.full_version_with_cuda for one in versions.list_installed()}
    table = BorderlessTextTable("version", "CUDA", "wheels", "")
    for one in found:
        mark = "installed" if f"{one.version}+cu{one.cuda}" in there else ""
        add_escaped_row(table, one.version, one.cuda, ", ".join(one.flavors), mark)
    print_or_write_table(table, output)


def _describe_version(item: InstalledCudnn) -> dict[str, Any]:
    facts = asdict(item) | {"version": item.full_version_with_cuda}
    return {key: str(value) if isinstance(value, Path) else value for key, value in facts.items()}


@cudnn_commands.command("verify")
@click.argument("wanted", nargs=-1, metavar="[VERSION...]", type=InstalledVersionParameter(stored=True))
@add_format_options("text", "json")
def verify_versions(wanted: tuple[str, ...], style: str, output: str | None) -> None:
    """Check that the files of installed cuDNN versions are unchanged.

    Every file is, byte for byte; without VERSION those of all there are. Those in the cache are checked, and if no
    VERSION is named also the one of this environment, by the RECORD of its wheel. Exit code 0 if all are whole, 1 if
    one is damaged, 2 if one could not be checked.
    """
    from ..versions import store as versions

    with show_progress_line("reading every file"):
        checked = versions.check_installed_versions(wanted, environment=not wanted)
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
@click.argument("wanted", nargs=-1, required=True, metavar="VERSION...", type=InstalledVersionParameter(stored=True))
@click.option("--cuda", type=Choice(["12", "13"]), help=_CUDA_HELP)
@_add_full_and_jit_options
def remove_version(wanted: tuple[str, ...], cuda: str | None, flavor: Literal["jit", "full"] | None) -> None:
    """Remove installed cuDNN versions."""
    from ..versions import store as versions

    for version in wanted:
        removed = versions.remove(version, cuda=_parse_cuda_major(cuda), flavor=flavor)
        print_lines(f"removed cuDNN {removed.full_version_with_cuda} ({removed.flavor})")
