"""The commands ``target``: list, show and verify described GPUs, and read this machine's GPU."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click
from rich.text import Text

from ..command_line import Group
from ..printable import printable
from ..terminal import BorderlessTextTable
from .options import TargetParameter, add_format_options
from .output import OutputFile, add_escaped_row, format_json, print_or_write_table, write_or_print_report
from .verify import verify_target
from .wheels import add_version_options

if TYPE_CHECKING:
    from ..target import Profile

__all__ = ["target_commands"]


@click.group("target", cls=Group)
def target_commands() -> None:
    """List, show, verify described GPUs; read this machine's GPU."""


@target_commands.command("list")
@add_format_options("text", "json")
def list_targets(style: str, output: str | None) -> None:
    """List the described GPUs."""
    from ..target import list_profiles

    if style == "json":
        write_or_print_report(format_json([_describe_profile(profile) for profile in list_profiles()]), output)
        return
    table = BorderlessTextTable("name", "GPU", "arch", "also called", "shared memory per block", "SMs")
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
    table = BorderlessTextTable("property", "value", "source", title=title)
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
