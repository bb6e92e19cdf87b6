"""``python -m cudnn_backend_py.frontend``: run a program written for cudnn-frontend."""

from __future__ import annotations

import os
import runpy
import sys
import traceback
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import click

from ..command_line import program_command
from ..errors import CudnnBackendError
from ..system.nearest import suggest_nearest
from ..system.python_file import is_python_file
from .as_cudnn import SUBMODULES, install, install_in_children, patch_torch_with_described_gpu
from .errors import FrontendUsageError, format_error
from .notebooks import is_notebook, read_cells, run_notebook

__all__ = ["main", "read_command_line", "select_program"]

_PACKAGE_FOLDER = os.path.join(Path(__file__).parents[1], "")
_HINT = "\n-v before the program prints the whole traceback and all messages of cuDNN"
_HELP = """\
Run SCRIPT, a notebook, or the module after -m, with 'import cudnn' giving cudnn_backend_py.frontend.

\b
python -m cudnn_backend_py.frontend train.py --epochs 3
python -m cudnn_backend_py.frontend samples.ipynb
python -m cudnn_backend_py.frontend --target h100 -m pytest test_sdpa.py
"""


@program_command(_HELP, help_names=("--help",), options_metavar="[--target GPU] [--children] [-v]")
@click.option(
    "--target",
    metavar="GPU",
    help="Judge for a described GPU (h100, sm80, a JSON file) up to execute; torch has that GPU, too.",
)
@click.option("--children", is_flag=True, help="Also in the Python processes that the program starts.")
@click.option(
    "-v", "--verbose", is_flag=True, help="Where an error ends the program: all of cuDNN's messages and its traceback."
)
def _select_command(target: str | None, children: bool, verbose: bool, program: tuple[str, ...]) -> Callable[[], None]:
    start = select_program(program)
    return lambda: _run_as_frontend(start if verbose else partial(_run_with_short_errors, start), target, children)


def select_program(program: Sequence[str]) -> Callable[[], Any]:
    """Return a function that runs a program as ``__main__``: a script, a notebook, or a module given by ``-m``.

    Raises
    ------
    click.UsageError
        Where there is none.
    """
    first, *rest = program or ("",)
    if first == "-m":
        if not rest:
            raise click.UsageError("-m needs the name of a module")
        return lambda: _run_module(*rest)
    if not first:
        raise click.UsageError("a script, or -m with a module, is needed")
    if first.startswith("-"):
        context = click.get_current_context(silent=True)
        names = [name for one in context.command.params for name in one.opts] if context else []
        known = [name.lstrip("-") for name in names if name.startswith("--")]
        raise click.UsageError(f"there is no option {first}{suggest_nearest(first.lstrip('-'), known, prefix='--')}")
    if not Path(first).exists():
        raise click.UsageError(f"there is no {first}")
    if is_notebook(Path(first)):
        read_cells(Path(first))  # what is no notebook is no program that fails
        return lambda: run_notebook(first, *rest)
    if not is_python_file(first) or not Path(first).is_file():
        raise click.UsageError(
            f"{first} cannot be run: a script is a file named *.py, a notebook *.ipynb or its export as text; "
            "an installed command such as torchrun is run by -m and its module"
        )
    return lambda: _run_script(first, *rest)


def _run_as_frontend(start: Callable[[], Any], target: str | None, children: bool) -> None:
    try:
        install(target)
    except CudnnBackendError as error:
        print(error.render(), file=sys.stderr)
        sys.exit(2)
    if target is not None:
        patch_torch_with_described_gpu(target)
        start = partial(_run_until_execution, start)
    if not children:
        start()
        return
    with TemporaryDirectory(prefix="cudnn-frontend-") as folder:
        install_in_children(Path(folder), target)
        start()


def _run_with_short_errors(start: Callable[[], Any]) -> None:
    """Run a program; for an uncaught error of this package, print the program's own traceback lines and the verdict."""
    try:
        start()
    except CudnnBackendError as error:
        frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not _is_own_file(frame.filename)]
        if sys.excepthook in (sys.__excepthook__, traceback.print_exception):  # not one of the program
            sys.excepthook = partial(_print_short_error, error, frames)
        raise


def _is_own_file(name: str) -> bool:
    return name == "<frozen runpy>" or name.startswith(_PACKAGE_FOLDER)


def _print_short_error(
    expected: CudnnBackendError, frames: list[traceback.FrameSummary], kind: Any, error: BaseException, at: Any
) -> None:
    if error is not expected:  # one raised by the clean-up
        sys.__excepthook__(kind, error, at)
        return
    lines = ["Traceback (most recent call last):\n", *traceback.format_list(frames)] if frames else []
    hint = _HINT if "cudnn" in expected.sections else ""
    print(f"{''.join(lines)}{kind.__name__}: {format_error(expected)}{hint}", file=sys.stderr)


def _run_until_execution(start: Callable[[], Any]) -> None:
    """Run a program for a described GPU; reaching an execution, or a read of its results, counts as success."""
    try:
        start()
    except CudnnBackendError as error:
        if error.code != "plan-without-device":
            raise
        print(f"reached execute: {error.headline}", file=sys.stderr)
    except BaseException as error:
        if type(error).__name__ != "UnknownValuesError":
            raise
        print(f"reached {error}, which only a GPU computes", file=sys.stderr)


def _run_module(module: str, *arguments: str) -> None:
    sys.argv = [module, *arguments]
    package, _, part = module.partition(".")
    module = SUBMODULES.get(part, module) if package == "cudnn" else module
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def _run_script(script: str, *arguments: str) -> None:
    sys.argv = [script, *arguments]
    if not sys.flags.safe_path:
        sys.path[0] = os.path.dirname(os.path.realpath(script))
    runpy.run_path(script, run_name="__main__")


def read_command_line(arguments: Sequence[str] | None, name: str) -> Callable[[], None] | None:
    """Return a function that runs the program given on a command line; None if only the help was printed.

    Raises
    ------
    click.ClickException
        For a wrong command line, or a program that does not exist.
    """
    run = _select_command.main(arguments, prog_name=name, standalone_mode=False)
    return run if callable(run) else None


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the program given on the command line; its exceptions propagate."""
    try:
        run = read_command_line(arguments, "python -m cudnn_backend_py.frontend")
    except click.ClickException as error:
        error.show()
        raise SystemExit(error.exit_code) from None
    except FrontendUsageError as error:
        print(error.render(), file=sys.stderr)
        raise SystemExit(2) from None
    if run is not None:
        run()


if __name__ == "__main__":
    main()
