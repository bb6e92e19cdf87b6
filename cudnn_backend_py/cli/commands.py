"""The command ``cudnn-backend``."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any, Literal

import click
from rich.table import Table
from rich.text import Text

from ..printable import printable
from .audit import add_audit
from .graph_file import load_graph_file
from .output import NOT_JUDGED, Commands, add_row, as_json, console, say, warn, write, write_report
from .plans import add_commands
from .run import add_run
from .verdicts import VERDICTS
from .wheels import with_version

__all__ = ["main"]


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="cudnn-backend-py")
@with_version
def main() -> None:
    """Script and understand cuDNN's graph engine. Exit codes: 0 yes, 1 no, 2 could not be judged, 130 interrupted."""


@main.command()
@click.option("--format", "style", type=click.Choice(["text", "json"]), default="text", show_default=True)
@with_version
def info(style: str) -> None:
    """Show library, version, path and how it was found, NVRTC, driver or stub, GPUs, known targets.

    What is wrong with the environment comes last, with its repair. Runs with Python's standard library alone.
    """
    from ..info import collect_info, render_info

    facts = collect_info()
    if style == "json":
        write_report(as_json(facts), None)
    else:
        write(render_info(facts), None)


@main.group()
def target() -> None:
    """List and show described GPUs; read the one at hand."""


@target.command("list")
def list_targets() -> None:
    """List the described GPUs."""
    from ..target import list_profiles

    table = Table("name", "GPU", "arch", "also called", "shared memory per block", "SMs")
    for profile in list_profiles():
        add_row(
            table,
            profile.name,
            profile.title,
            f"sm_{profile.sm}",
            ", ".join(profile.aliases),
            str(profile.properties["maxSharedMemoryPerBlockOptin"]),
            str(profile.properties["multiProcessorCount"]),
        )
    console().print(table)


@target.command("show")
@click.argument("name")
@click.option("--device-json", is_flag=True, help="Only what cuDNN is given.")
def show_target(name: str, device_json: bool) -> None:
    """Show a described GPU with the source of every number."""
    from ..target import find_profile

    profile = find_profile(name)
    if device_json:
        write_report(f"{profile.json()}\n", None)
        return
    title = Text(printable(f"{profile.title} ({profile.name})"))
    table = Table("property", "value", "source", title=title)
    for key, value in profile.properties.items():
        add_row(table, key, str(value), profile.sources.get(key, ""))
    console().print(table)
    for key, text in profile.citations.items():
        say(printable(f"{key}: {text}"))


@target.command("read")
@click.option("--device", "ordinal", default=0, show_default=True, help="Ordinal of the GPU.")
@with_version
def read_target(ordinal: int) -> None:
    """Print the properties of a GPU of this machine, as JSON that --target takes."""
    from ..target import read_device

    write_report(as_json(read_device(ordinal)), None)


def _with_flavor(function: Any) -> Any:
    """Add ``--full`` and ``--jit``."""
    full = click.option("--full", "flavor", flag_value="full", help="The full wheel, some 1 GB.")
    jit = click.option("--jit", "flavor", flag_value="jit", help="The small wheel, without engines compiled before.")
    return full(jit(function))


def _cuda(major: str | None) -> Literal["12", "13"] | None:
    return None if major is None else "12" if major == "12" else "13"


@main.group()
def cudnn() -> None:
    """Keep several cuDNN versions side by side in a private cache."""


@cudnn.command("install")
@click.argument("version")
@click.option("--cuda", type=click.Choice(["12", "13"]), help="CUDA major version of the wheel.")
@_with_flavor
@click.option("--quiet", is_flag=True, help="No progress bar.")
def install_version(version: str, cuda: str | None, flavor: Literal["jit", "full"] | None, quiet: bool) -> None:
    """Fetch cuDNN VERSION (9.19.0): the small jit wheel, or the full one where there is none.

    The jit wheel serves attention; its engines are not all that cuDNN has for convolutions and products. Both may be
    installed side by side, and the full one is then asked.
    """
    from ..versions import store as versions

    installed = versions.install(version, cuda=_cuda(cuda), flavor=flavor, progress=not quiet)
    say(
        f"cuDNN {installed.version} ({installed.flavor}, CUDA {installed.cuda}) is at {installed.path}, "
        f"{installed.size_bytes / 1e6:.0f} MB"
    )
    if (package := versions.missing_cublas(installed)) is not None:
        warn(
            f"it needs cuBLASLt too, which pip has not installed here: pip install {package}, unless the system has it"
        )


@cudnn.command("list")
def list_versions() -> None:
    """List the installed versions."""
    from ..versions import store as versions

    table = Table("version", "CUDA", "wheel", "MB", "path")
    for item in versions.list_installed():
        add_row(table, item.version, item.cuda, item.flavor, f"{item.size_bytes / 1e6:.0f}", str(item.path))
    console().print(table)


@cudnn.command("verify")
@click.argument("wanted", nargs=-1, metavar="[VERSION...]")
@click.option("--format", "style", type=click.Choice(["text", "json"]), default="text", show_default=True)
def verify_versions(wanted: tuple[str, ...], style: str) -> None:
    """Compare every file of cuDNN with what was installed, byte for byte; without VERSION of all there are.

    Those in the cache are checked, and if no VERSION is named also the one of this environment, by the RECORD of its
    wheel. Exit code 0 if all are whole, 1 if one is damaged, 2 if one could not be checked.
    """
    from ..versions import store as versions

    checked = versions.check_all(wanted, environment=not wanted)
    if style == "json":
        write_report(as_json([one.to_dict() for one in checked]), None)
    else:
        for one in checked:
            lines = [
                f"{one.state + ':':<10} {one.name} {one.path}".rstrip(),
                *(f"  {item}" for item in one.differences),
            ]
            say("\n".join([*map(printable, lines), *([f"  repair: {one.repair}"] if one.repair else [])]))
    raise SystemExit(max((one.exit_code for one in checked), default=NOT_JUDGED))


@cudnn.command("remove")
@click.argument("version")
@click.option("--cuda", type=click.Choice(["12", "13"]))
@_with_flavor
def remove_version(version: str, cuda: str | None, flavor: Literal["jit", "full"] | None) -> None:
    """Remove an installed version."""
    from ..versions import store as versions

    removed = versions.remove(version, cuda=_cuda(cuda), flavor=flavor)
    say(f"removed cuDNN {removed.version} ({removed.flavor}, CUDA {removed.cuda})")


@main.command()
@with_version
@click.argument("output", type=click.Path(file_okay=False))
@click.option("--pytest-arguments", default="tests/gpu", show_default=True, help="What pytest is given.")
def record(output: str, pytest_arguments: str) -> None:
    """Run the GPU tests and write a record of the run into the folder OUTPUT (logs/)."""
    from ..testing.record import record_run

    try:
        arguments = shlex.split(pytest_arguments)
    except ValueError as error:
        raise click.BadParameter(f"{pytest_arguments!r}: {error}", param_hint="--pytest-arguments") from None
    path, code = record_run(Path(output), arguments)
    say(f"record written to {path}")
    raise SystemExit(code if code in (0, 1) else NOT_JUDGED)


for command in VERDICTS:
    main.add_command(command)
add_commands(main, load_graph_file, with_version)
add_run(main, with_version)
add_audit(main)

if __name__ == "__main__":
    main()
