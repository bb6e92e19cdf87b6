"""``python -m cudnn_backend_py.frontend``: run a program written for cudnn-frontend."""

from __future__ import annotations

import contextlib
import os
import runpy
import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import click

from ..command_line import program_command
from ..errors import CudnnBackendError
from ..printable import printable
from ..system.nearest import suggest_most_similar_name
from ..system.python_file import is_python_file
from .as_cudnn import SUBMODULES, install, install_in_children, patch_torch_with_described_gpu
from .built_graphs import describe_built_graphs
from .errors import format_error
from .notebooks import is_notebook, read_cells, run_notebook

__all__ = ["FrontendRun", "main", "make_program_starter", "read_command_line"]

_PACKAGE_FOLDER = os.path.join(Path(__file__).parents[1], "")
_HINT = "\n-v before the program prints the whole traceback and all messages of cuDNN"
_HELP = """\
Run SCRIPT, a notebook, or the module after -m, with 'import cudnn' giving cudnn_backend_py.frontend.

\b
python -m cudnn_backend_py.frontend train.py --epochs 3
python -m cudnn_backend_py.frontend samples.ipynb
python -m cudnn_backend_py.frontend --target h100 -m pytest test_sdpa.py
"""


@dataclass(frozen=True)
class FrontendRun:
    """A program for cudnn-frontend with the settings to run it, such as the target; calling it runs the program.

    Attributes
    ----------
    start
        Runs the program alone.
    program
        The program and its arguments.
    target
        The described GPU to judge for.
    version
        The cuDNN version to load.
    children
        Whether ``import cudnn`` is this package's in child processes, too.
    """

    start: Callable[[], Any]
    program: Sequence[str]
    target: str | None
    version: str | None
    children: bool

    def __call__(self) -> None:
        """Run the program, and print what was built if it succeeds."""
        process = os.getpid()
        try:
            _run_program_with_replaced_cudnn(self.start, self.target, self.children)
        except SystemExit as done:
            if done.code:
                raise
            self._print_built_graphs(process)
            raise
        self._print_built_graphs(process)

    def _print_built_graphs(self, process: int) -> None:
        if os.getpid() != process:  # a forked child may come here, too
            return
        name = " ".join(self.program[: 2 if self.program[0] == "-m" else 1])
        purpose = f" for {self.target}" if self.target else ""
        with contextlib.suppress(OSError, ValueError, AttributeError):  # the program closed its standard error
            sys.stderr.write(f"cudnn_backend_py.frontend ran {printable(name)}{purpose}: {describe_built_graphs()}\n")


@program_command(_HELP, help_names=("--help",), options_metavar="[--target GPU] [--cudnn VERSION] [--children] [-v]")
@click.option(
    "--target",
    metavar="GPU",
    help="Judge for a described GPU (h100, sm80, a JSON file) up to execute; torch has that GPU, too.",
)
@click.option("--cudnn", "version", metavar="VERSION", help="Run with this installed cuDNN.")
@click.option("--children", is_flag=True, help="Also in the Python processes that the program starts.")
@click.option(
    "-v", "--verbose", is_flag=True, help="Where an error ends the program: all of cuDNN's messages and its traceback."
)
def _make_frontend_run(
    target: str | None, version: str | None, children: bool, verbose: bool, program: tuple[str, ...]
) -> FrontendRun:
    start = make_program_starter(program)
    shown = start if verbose else partial(_run_with_short_errors, start)
    return FrontendRun(shown, program, target, version, children)


def make_program_starter(program: Sequence[str]) -> Callable[[], Any]:
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
        raise click.UsageError(
            f"there is no option {first}{suggest_most_similar_name(first.lstrip('-'), known, prefix='--')}"
        )
    if not Path(first).exists():
        raise click.UsageError(f"there is no file {first}")
    if is_notebook(Path(first)):
        read_cells(Path(first))  # what is no notebook is no program that fails
        return lambda: run_notebook(first, *rest)
    if not is_python_file(first) or not Path(first).is_file():
        raise click.UsageError(
            f"{first} cannot be run: a script is a file named *.py, a notebook *.ipynb or its export as text; "
            "an installed command such as torchrun is run by -m and its module"
        )
    return lambda: _run_script(first, *rest)


def _run_program_with_replaced_cudnn(start: Callable[[], Any], target: str | None, children: bool) -> None:
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
        frames = [
            frame
            for frame in traceback.extract_tb(error.__traceback__)
            if not _is_file_of_this_package_or_runpy(frame.filename)
        ]
        if sys.excepthook in (sys.__excepthook__, traceback.print_exception):  # not one of the program
            sys.excepthook = partial(_print_short_error, error, frames)
        raise


def _is_file_of_this_package_or_runpy(name: str) -> bool:
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
        print(f"reached a point that needs a GPU: {error}", file=sys.stderr)


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


def read_command_line(arguments: Sequence[str] | None, name: str) -> FrontendRun | None:
    """Return the program given on a command line, to be called; None if only the help was printed.

    Raises
    ------
    click.ClickException
        For a wrong command line, or a program that does not exist.
    """
    words = sys.argv[1:] if arguments is None else list(arguments)
    run = _make_frontend_run.main(words, prog_name=name, standalone_mode=False)
    if not isinstance(run, FrontendRun):
        return None
    before = words[: len(words) - len(run.program)]
    if "--" not in before and any(word.partition("=")[0] == "--cudnn" for word in run.program):
        script = " ".join(run.program[: 2 if run.program[0] == "-m" else 1])
        raise click.UsageError(
            f"--cudnn must come before the program: {name} --cudnn VERSION {script}; "
            f"for an option of the program, write -- before it: {name} -- {script} --cudnn ..."
        )
    return run


def main(arguments: Sequence[str] | None = None, *, version_is_set: bool = False) -> None:
    """Run the program given on the command line; its exceptions propagate.

    Parameters
    ----------
    version_is_set
        Whether the environment names the library of ``--cudnn`` already.
    """
    try:
        run = read_command_line(arguments, "python -m cudnn_backend_py.frontend")
        if run is not None and run.version is not None and not version_is_set:
            from ..versions.judging_environment import make_version_environment

            os.environ.update(make_version_environment(run.version))
    except click.ClickException as error:
        error.show()
        raise SystemExit(error.exit_code) from None
    except CudnnBackendError as error:
        print(error.render(), file=sys.stderr)
        raise SystemExit(2) from None
    if run is not None:
        run()


if __name__ == "__main__":
    main()
