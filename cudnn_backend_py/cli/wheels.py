"""The options ``--cudnn``, ``--full`` and ``--jit``, which select the cuDNN version and its wheel."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any, Literal, NoReturn, TypeVar

import click

from ..errors import EnvironmentNotReady
from ..printable import printable
from ..system.version import DESCRIBED_GPUS_SINCE
from .options import InstalledVersionParameter
from .output import NOT_JUDGED_EXIT_CODE, format_megabytes, print_warning

if TYPE_CHECKING:
    from ..diagnose import Verdict
    from ..diagnose.surveys.matrix import Cell
    from ..native.version_store import Cuda

__all__ = [
    "LARGE_DOWNLOAD_BYTES",
    "add_version_options",
    "add_wheel_options",
    "find_cell_versions_without_engines",
    "find_versions_without_engines",
    "format_loaded_version_option",
    "install_missing_versions",
    "install_version_and_make_environment",
    "judge_again_with_full_wheels_if_needed",
    "list_available_versions",
    "raise_system_exit_on_sigterm",
    "warn_about_full_wheel",
]

LARGE_DOWNLOAD_BYTES = 300e6  # of a download: the user is asked at a terminal

_VERSION_OPTION, _FULL_OPTION, _JIT_OPTION = "--cudnn", "--full", "--jit"
_WHEEL_KEY = f"{__name__}:wheel"  # of a context: which wheel is wanted, "full", "jit" or None


def add_version_options(function: Any) -> Any:
    """Add ``--cudnn``, ``--full`` and ``--jit``: a child process runs the command with that cuDNN."""
    settings: dict[str, Any] = {"expose_value": False, "is_eager": True, "callback": _handle_version_option}
    version = click.option(
        *(_VERSION_OPTION, "cudnn_version"),
        type=InstalledVersionParameter(),
        help="Judge with this installed cuDNN, or latest; if not given, with the one that doctor names.",
        **settings,
    )
    full = click.option(
        _FULL_OPTION, "wheel", flag_value="full", help="With its full wheel; fetched if missing.", **settings
    )
    jit = click.option(
        _JIT_OPTION, "wheel", flag_value="jit", help="Use the small JIT wheel; never prompt.", **settings
    )
    return version(full(jit(function)))


def _handle_version_option(ctx: click.Context, parameter: click.Parameter, value: str | None) -> None:
    """Store ``--cudnn``, ``--full`` or ``--jit``; after all three, restart the command with the chosen version."""
    if ctx.resilient_parsing:
        return
    given = ctx.meta.setdefault(f"{__name__}:{ctx.command_path}", {})
    given[parameter.opts[0]] = value
    if given.keys() < {_VERSION_OPTION, _FULL_OPTION, _JIT_OPTION}:
        return
    wheel: Literal["full", "jit"] | None = given[_FULL_OPTION] or given[_JIT_OPTION]
    version = given[_VERSION_OPTION]
    if version is not None:
        from ..native.version_store import VersionRequest

        wheel = VersionRequest.parse(version, flavor=wheel).flavor
    ctx.meta[_WHEEL_KEY] = wheel or ctx.meta.get(_WHEEL_KEY)
    if version is None and (wheel != "jit" or (version := _find_loadable_version_unless_jit_wheel()) is None):
        return
    from ..native.find import LIBRARY_VARIABLE, NVRTC_VARIABLE
    from ..system.child import describe_exit_status, make_call_command, run_command
    from ..versions import store as versions
    from ..versions.judging_environment import read_judging_environment

    if given[_VERSION_OPTION] is None:
        environment = versions.make_environment_of_installed_cudnn(versions.require_installed(version, flavor=wheel))
    else:
        environment = _install_missing_wheel_and_make_environment(version, wheel, if_missing=wheel)
        if environment.get(LIBRARY_VARIABLE) == read_judging_environment(None).library:
            return  # this process loads it anyway
    command = make_call_command(
        "cudnn_backend_py.cli.commands:main", *_replace_version_option(sys.argv[1:], wheel, whole=ctx.parent is None)
    )
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # where it was ignored, every exit code would read 0
    child = run_command(command, environment)
    if child.returncode in (0, 1, NOT_JUDGED_EXIT_CODE, 130):
        raise SystemExit(child.returncode)
    from ..native.environment_problems import find_problem_explaining_crash

    ending = describe_exit_status(child.returncode)
    print_warning(f"COULD NOT BE JUDGED: the judging process of cuDNN {version} ended with {ending}")
    if (
        problem := find_problem_explaining_crash(
            environment.get(LIBRARY_VARIABLE, ""), environment.get(NVRTC_VARIABLE, "")
        )
    ) is not None:
        print_warning(printable(problem.headline) + (f"\nwhat to do: {problem.repair}" if problem.repair else ""))
    raise SystemExit(NOT_JUDGED_EXIT_CODE)


def _find_loadable_version_unless_jit_wheel() -> str | None:
    """Return the version of the cuDNN that this process would load; None if it is a JIT wheel, or there is none."""
    from ..diagnose.surveys.inputs import find_version_this_process_loads
    from ..native.find import find_cudnn_places

    path = next((place.path for place in find_cudnn_places() if place.path), "")
    return None if "/nvidia/cudnn_jit/" in path else find_version_this_process_loads()


def install_missing_versions(names: Iterable[str]) -> None:
    """Install named versions that are missing, as ``--cudnn`` of a command with one version does.

    Raises
    ------
    EnvironmentNotReady
        ``cudnn-version-not-found``, ``cudnn-version-not-installed``.
    """
    from ..native.version_store import VersionRequest

    small: Literal["jit"] | None = "jit" if click.get_current_context().meta.get(_WHEEL_KEY) == "jit" else None
    for name in names:
        wheel = VersionRequest.parse(name).flavor
        _install_missing_wheel_and_make_environment(name, wheel, if_missing=wheel or small)


def install_version_and_make_environment(version: str) -> dict[str, str]:
    """Return the environment of a child process that loads a cuDNN version, which is installed if it is missing."""
    from ..native.version_store import VersionRequest

    wheel = VersionRequest.parse(version).flavor
    return _install_missing_wheel_and_make_environment(version, wheel, if_missing=wheel)


def _install_missing_wheel_and_make_environment(
    version: str, wheel: Literal["full", "jit"] | None, *, if_missing: Literal["full", "jit"] | None
) -> dict[str, str]:
    """Return the environment of a child process that loads a version; install the wheel `if_missing` first."""
    from ..native.version_store import VersionRequest
    from ..versions.judging_environment import make_version_environment

    request = VersionRequest.parse(version, flavor=wheel)
    name = f"{request}-{wheel}" if wheel else str(request)
    try:
        return make_version_environment(name)
    except EnvironmentNotReady as error:
        if error.code not in ("cudnn-version-not-installed", "installed-files-changed"):
            raise
    _install_missing_version(version, if_missing)
    return make_version_environment(name)


def _install_missing_version(version: str, wheel: Literal["full", "jit"] | None) -> None:
    """Install a missing cuDNN version; ask the user before a large download."""
    from ..native.version_store import VersionRequest
    from ..versions import store as versions

    if (0,) < VersionRequest.parse(version).numbers < DESCRIBED_GPUS_SINCE[:2]:
        print_warning(f"cuDNN {version} judges only for the GPU of this machine: described GPUs need 9.8.0")
    try:
        size = versions.find_download_size(version, wheel) or 0
    except EnvironmentNotReady as error:
        if error.code == "cudnn-version-not-found":
            raise
        return  # no network: that it is not installed is said next
    if size > LARGE_DOWNLOAD_BYTES and wheel != "full":
        warn_about_full_wheel(version, wheel)
        if not (sys.stdin.isatty() and sys.stderr.isatty()):
            print_warning(
                f"{format_megabytes(size)} MB for cuDNN {version} are not downloaded without asking at a terminal"
            )
            return
        if not click.confirm(f"cuDNN {version} is not installed, download {format_megabytes(size)} MB?", err=True):
            return
    print_warning(f"installing cuDNN {version} ({format_megabytes(size)} MB)")
    with raise_system_exit_on_sigterm():
        versions.install(version, flavor=wheel)


def warn_about_full_wheel(
    version: str, wheel: Literal["full", "jit"] | None, cuda: Literal["12", "13"] | None = None
) -> None:
    """Say why a download is large and name a small one, if the version has no JIT wheel."""
    from ..native.version_store import VersionRequest
    from ..versions import store as versions

    if (small := versions.find_newest_version_with_jit_wheel(version, wheel, cuda=cuda)) is not None:
        request = VersionRequest.parse(version, cuda)
        named = f"cuDNN {version}" if request.numbers else "the newest cuDNN"
        newest = VersionRequest.parse(small, request.cuda)
        print_warning(
            f"{named} has no JIT wheel for CUDA {request.cuda or versions.find_default_cuda()}, only the full one; "
            f"the newest version with a JIT wheel is {small} (cudnn-backend cudnn install {newest.arguments})"
        )


@contextlib.contextmanager
def raise_system_exit_on_sigterm() -> Iterator[None]:
    """Raise SystemExit on SIGTERM in a block, so that unfinished downloads are removed first."""
    received: list[int] = []

    def exit_process(number: int, _frame: object) -> NoReturn:
        received.append(number)
        raise SystemExit

    before = signal.signal(signal.SIGTERM, exit_process)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
        if received:
            signal.raise_signal(received[0])


def format_loaded_version_option() -> tuple[str, ...]:
    """Return ``--cudnn=NAME`` if this process is set to load an installed cuDNN, else nothing."""
    library = os.environ.get("CUDNN_BACKEND_LIBRARY")
    return _format_version_option(library) if library else ()


@cache
def _format_version_option(library: str) -> tuple[str, ...]:
    from ..versions.store import list_installed

    return tuple(f"{_VERSION_OPTION}={item.name}" for item in list_installed() if str(item.library) == library)


_AnswerType = TypeVar("_AnswerType")


def add_wheel_options(function: Any) -> Any:
    """Add ``--full`` and ``--jit``, which select the wheels for versions that lack engines."""
    settings: dict[str, Any] = {"expose_value": False, "callback": _store_wheel_choice}
    full = click.option(
        _FULL_OPTION,
        "full",
        is_flag=True,
        help="Download full wheels without asking where engines are missing.",
        **settings,
    )
    jit = click.option(_JIT_OPTION, "jit", is_flag=True, help="Use the small JIT wheels; never prompt.", **settings)
    return full(jit(function))


def _store_wheel_choice(ctx: click.Context, parameter: click.Parameter, value: bool) -> None:
    if value:
        ctx.meta[_WHEEL_KEY] = parameter.name


def judge_again_with_full_wheels_if_needed(
    run_query: Callable[[dict[str, str]], _AnswerType],
    lacking: Callable[[_AnswerType], Iterable[str]],
    names: Iterable[str] = (),
) -> _AnswerType:
    """Run a query; if some cuDNN versions lacked engines, repeat it with the full wheels of these versions.

    Parameters
    ----------
    ask
        Given the wheel to take for the names of some versions.
    lacking
        The versions of an answer, by name, that lack engines.
    names
        The versions that are queried, where that is known before: with --jit their jit wheels are.
    """
    wheels: dict[str, str] = {}
    if click.get_current_context().meta.get(_WHEEL_KEY) == "jit":
        from ..diagnose.surveys.inputs import find_version_number
        from ..versions import store as versions

        for number in map(find_version_number, names):
            if _has_only_full_wheel(number) or versions.find_installed(number) is not None:
                wheels[number] = versions.require_installed(number, flavor="jit").name
    found = run_query(wheels)
    while more := _find_full_wheels(name for name in lacking(found) if name not in wheels):
        wheels |= more
        found = run_query(wheels)
    return found


def list_available_versions() -> tuple[str, ...]:
    """Return the cuDNN versions that graphs can be judged with; warn about installed ones that are skipped."""
    from ..diagnose.surveys.inputs import available_versions
    from ..versions import store as versions

    names = available_versions()
    useless = {one.version_with_cuda for one in versions.list_installed() if not one.can_judge} - set(names)
    for name in sorted(useless, key=versions.parse_version_numbers):
        print_warning(
            f"{name} is skipped, as its JIT wheel cannot judge graphs (cudnn-backend cudnn install {name} --full)"
        )
    context = click.get_current_context(silent=True)
    if context is None or context.meta.get(_WHEEL_KEY) != "jit":
        return names
    without = set(filter(_has_only_full_wheel, names))
    for name in without:
        print_warning(
            f"{name} is skipped, as only its full wheel is installed (cudnn-backend cudnn install {name} --jit)"
        )
    return tuple(name for name in names if name not in without)


def _has_only_full_wheel(version: str) -> bool:
    """Return whether a version would be judged with a full wheel, and has no installed JIT wheel."""
    from ..versions import store as versions

    if versions.find_installed(version, flavor="jit") is not None:
        return False
    return versions.find_installed(version) is not None or version == _find_loadable_version_unless_jit_wheel()


def _find_full_wheels(lacking: Iterable[str]) -> dict[str, str]:
    """Return the full wheels, by version, for versions that lack engines.

    Missing ones are downloaded with --full, or if the user agrees on the terminal.
    """
    wheel = click.get_current_context().meta.get(_WHEEL_KEY)
    found: dict[str, str] = {}
    missing: dict[str, Cuda | None] = {}
    requested = [name for name in dict.fromkeys(lacking) if not name.endswith(("-jit", "-full"))]
    if not requested:
        return found
    from ..versions import store as versions

    for name in requested if wheel != "jit" else ():
        if (there := versions.find_installed(name, flavor="full")) is not None:
            found[name] = there.name
        else:
            small = versions.find_installed(name, flavor="jit")
            missing[name] = None if small is None else small.cuda
    if missing and (wheel == "full" or _confirm_wheel_download(missing)):
        for name, cuda in missing.items():
            with raise_system_exit_on_sigterm():
                installed = versions.install(name, cuda=cuda, flavor="full")
            found[name] = installed.name
    return found


def _confirm_wheel_download(missing: Mapping[str, Literal["12", "13"] | None]) -> bool:
    """Ask the user on the terminal whether to download these full wheels, with their sizes."""
    from ..versions import store as versions

    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        return False
    shown = []
    for name, cuda in missing.items():
        size = versions.find_download_size(name, "full", cuda=cuda)
        shown.append(name if size is None else f"{name}, {format_megabytes(size)} MB")
    many, them = ("s", "them") if len(missing) > 1 else ("", "it")
    print_warning(
        f"cuDNN {' and '.join(missing)} has only some of its engines installed, and these refuse a graph; "
        f"the engines in the full wheel{many} might support it"
    )
    return click.confirm(f"fetch the full wheel{many} of cuDNN {' and '.join(shown)}, and use {them}?", err=True)


def find_versions_without_engines(verdicts: Iterable[Verdict]) -> list[str]:
    """Return the versions of the verdicts that could not be judged because engines were missing."""
    from ..diagnose.verdict import ENGINES_MISSING_CODE

    return [one.cudnn for one in verdicts if one.cause is not None and one.cause.code == ENGINES_MISSING_CODE]


def find_cell_versions_without_engines(cells: Iterable[tuple[str, Cell]]) -> list[str]:
    """Return the version numbers of the matrix cells that could not be judged because engines were missing."""
    from ..diagnose.surveys.inputs import find_version_number
    from ..diagnose.verdict import ENGINES_MISSING_CODE

    return [find_version_number(version) for version, cell in cells if cell.cause == ENGINES_MISSING_CODE]


def _replace_version_option(arguments: list[str], wheel: str | None, *, whole: bool) -> list[str]:
    """Replace ``--cudnn VERSION`` by ``--full`` or ``--jit``; with `whole`, only before the name of the command."""
    kept: list[str] = []
    rest = iter(arguments)
    for argument in rest:
        if argument == "--" or (whole and not argument.startswith("-")):  # what follows is somebody else's
            return [*kept, argument, *rest]
        name, given, _ = argument.partition("=")
        if name != _VERSION_OPTION:
            kept.append(argument)
            continue
        if not given:
            next(rest, None)
        kept += [f"--{wheel}"] if wheel else []
    return kept
