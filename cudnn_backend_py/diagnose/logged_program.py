"""Run a program, in any language, with cuDNN's log enabled."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from ..errors import EnvironmentNotReady
from ..native.driver import SONAME, find_driver_stub, load_driver
from ..system.interruption import reraise_interruption

__all__ = ["run_program_with_cudnn_log"]


@contextmanager
def run_program_with_cudnn_log(
    program: Sequence[str], keep: str | None = None, *, quiet: bool = False
) -> Iterator[str]:
    """Run a program with ``CUDNN_LOGLEVEL_DBG=3``, and yield the path of the log of all its processes.

    The program has this process's input, output and error. How it ended is printed on standard error unless its exit
    code is 0. Where there is no CUDA driver, ``LD_LIBRARY_PATH`` gives the program the driver stub, as cuDNN's
    runtime-compiled engines need a ``libcuda.so.1``; it reports no GPU.

    Parameters
    ----------
    keep
        Where the log is kept; not given, it is deleted at the end.
    quiet
        Give the program standard error as its standard output, which is for the report.

    Raises
    ------
    EnvironmentNotReady
        ``program-not-started``.
    """
    with TemporaryDirectory(prefix="cudnn-log-") as folder:
        environment = {
            **{name: value for name, value in os.environ.items() if name not in _LOG_VARIABLES},
            "CUDNN_LOGLEVEL_DBG": "3",
            "CUDNN_LOGDEST_DBG": f"{folder}/cudnn-%i.log",
            **_add_driver_stub(folder),
        }
        _run_and_forward_signals(program, environment, sys.stderr.fileno() if quiet else None)
        log = Path(keep or f"{folder}/all.log")
        with log.open("wb") as whole:
            for part in sorted(Path(folder).glob("cudnn-*.log"), key=lambda path: path.stat().st_mtime):
                with part.open("rb") as file:
                    shutil.copyfileobj(file, whole)
        yield str(log)


_LOG_VARIABLES = ("CUDNN_LOGINFO_DBG", "CUDNN_LOGWARN_DBG", "CUDNN_LOGERR_DBG")


def _add_driver_stub(folder: str) -> dict[str, str]:
    """Return the variable with which a program finds the driver stub; empty where there is a driver or no stub."""
    stub = find_driver_stub()
    if stub is None or load_driver().kind == "real":
        return {}
    place = Path(folder, "driver")
    place.mkdir()
    (place / SONAME).symlink_to(stub)
    paths = [path for path in (os.environ.get("LD_LIBRARY_PATH"), str(place)) if path]
    return {"LD_LIBRARY_PATH": ":".join(paths)}


def _run_and_forward_signals(program: Sequence[str], environment: dict[str, str], stdout: int | None) -> None:
    try:
        child = subprocess.Popen(program, env=environment, stdout=stdout)
    except OSError as error:
        reraise_interruption(error)
        raise EnvironmentNotReady(
            f"{program[0]} cannot be started: {error.strerror or error}",
            code="program-not-started",
            fix="give the program as a shell would find it, with its arguments",
        ) from None
    while True:
        try:
            code = child.wait()
            break
        except KeyboardInterrupt:  # the terminal sends it to the program too, which may end in its own way
            continue
    if code:
        ending = signal.Signals(-code).name if -code in signal.valid_signals() else f"exit code {code}"
        sys.stderr.write(f"{program[0]} ended with {ending}; reading its log\n")
