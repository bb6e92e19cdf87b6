"""Child processes that run this package: numbered queries, deadlines, and descriptions of how a process ended.

A child imports this package from where its parent has it, and nothing from the working folder. What the user names in
``PYTHONPATH`` or ``LD_LIBRARY_PATH`` is the user's choice and holds in the child as well.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import functools
import itertools
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from io import FileIO
from pathlib import Path
from typing import Any, Self

from ..errors import CudnnBackendError, EnvironmentNotReady
from .serving import LIFELINE, PATIENCE_S
from .uninterrupted import make_child_not_usable_error, run_uninterrupted

__all__ = [
    "ONE_THREAD",
    "TIMED_OUT",
    "Child",
    "RestartingChildProcess",
    "describe_exit_status",
    "make_call_command",
    "make_module_command",
    "make_package_import_source",
    "make_script_command",
    "poll_process",
    "run_command",
]

# For a child that computes with NumPy next to others: threads of its products wait for each other by turning. That
# takes cores from the others and, where these are busy, five times the processor time.
ONE_THREAD = dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1")
TIMED_OUT = "timed out"  # how a child ended whose time was over
NOT_BEGUN = 70  # exit code of a child that did not come to the function it was started for

_HOME = Path(__file__).absolute().parents[1]
_PACKAGE = __name__.partition(".")[0]
_LONGEST_BYTES = 64 << 20  # of a line
_PIECE_BYTES = 1 << 18
_SAID = 2000  # characters of what a child wrote to stderr that are kept
_ALIVE_S = 1.0  # between two looks whether a silent child still lives
_PAUSE_S = 0.002  # between two looks at a child that is ending
_LONGEST_S = 1e6

# how a child is started


def make_package_import_source() -> str:
    """Return Python source that imports this copy of the package, whatever other copies are installed."""
    return f"""\
import sys
from importlib.util import module_from_spec, spec_from_file_location

if {_PACKAGE!r} not in sys.modules:
    home = {str(_HOME)!r}
    spec = spec_from_file_location({_PACKAGE!r}, home + "/__init__.py", submodule_search_locations=[home])
    sys.modules[{_PACKAGE!r}] = module_from_spec(spec)
    spec.loader.exec_module(sys.modules[{_PACKAGE!r}])
"""


_CALL = """\
from {package}.system.serving import let_system_kill_process_with_parent
let_system_kill_process_with_parent()
sys.argv[0] = {program!r}
module, name = {function!r}.split(":")
try:
    __import__(module)
    call = getattr(sys.modules[module], name)
except BaseException:
    import traceback

    traceback.print_exc()
    sys.exit({not_begun})
call()
"""


def make_call_command(function: str, *arguments: str, program: str = "cudnn-backend") -> list[str]:
    """Return the command that calls a function of this package in a new Python.

    Parameters
    ----------
    function
        ``module:function``; it is called without arguments.
    arguments, program
        ``sys.argv[1:]`` and ``sys.argv[0]`` of the new process.
    """
    call = _CALL.format(package=_PACKAGE, function=function, program=program, not_begun=NOT_BEGUN)
    return [*_make_python_command(), "-c", make_package_import_source() + call, *arguments]


def make_script_command(script: str | os.PathLike[str], *arguments: str) -> list[str]:
    """Return the command that runs a Python file in a new Python with this copy of the package."""
    return make_call_command(f"{__name__}:run_script", *arguments, program=os.path.abspath(script))


def make_module_command(module: str, *arguments: str) -> list[str]:
    """Return the command that runs a module of another package (``pytest``) in a new Python."""
    return [*_make_python_command(), "-m", module, *arguments]


def _make_python_command() -> list[str]:
    """Return the command of this Python without the working folder on its import path."""
    flags = sys.flags
    return [sys.executable, "-P", *(["-E"] * bool(flags.ignore_environment)), *(["-s"] * bool(flags.no_user_site))]


def run_script() -> None:
    """Run the Python file ``sys.argv[0]``."""
    runpy.run_path(sys.argv[0], run_name="__main__")


def describe_exit_status(code: int) -> str:
    """Describe a process's exit status: ``exit code 3``, ``SIGSEGV``, ``signal 40``."""
    if code >= 0:
        return f"exit code {code}"
    try:
        return signal.Signals(-code).name
    except ValueError:  # a real-time signal
        return f"signal {-code}"


def poll_process(process: subprocess.Popen[bytes]) -> int | None:
    """Return the return code of a process as ``Popen.returncode`` does, None while it runs.

    ``Popen.poll`` would also take its end from the system, and an exception of a signal's handler in it can leave its
    lock held: whoever waits for the process then waits for ever.
    """
    if process.returncode is not None:
        return process.returncode
    try:
        found = os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:  # who ignores SIGCHLD is not told
        return 0
    if found is None:
        return None
    return found.si_status if found.si_code == os.CLD_EXITED else -found.si_status


class _ParentExitPipe:
    """A pipe shared with the child: when this process closes its end or dies, the system kills the child.

    So it ends with this process, however that ended, and not with the thread that started it.
    """

    def __init__(self) -> None:
        reading, writing = os.pipe()
        self.theirs, self.ours = FileIO(reading, "r"), FileIO(writing, "w")

    def start(self, command: list[str], environment: Mapping[str, str], **given: Any) -> subprocess.Popen[bytes]:
        """Start the child with its end of the pipe."""
        with self.theirs as end:
            said = {**environment, LIFELINE: str(end.fileno())}
            return subprocess.Popen(command, env=said, pass_fds=(end.fileno(),), **given)


def run_command(
    command: list[str], environment: Mapping[str, str], *, captured: bool = False
) -> subprocess.CompletedProcess[bytes]:
    """Run a command to its end like ``subprocess.run``; signals that end this process also end the command.

    For the main thread: no other may set handlers of signals.
    """
    passed: list[int] = []
    streams = subprocess.PIPE if captured else None
    lifeline = _ParentExitPipe()
    with lifeline.ours, lifeline.start(command, environment, stdout=streams, stderr=streams) as process:

        def forward_signal(number: int, _frame: object) -> None:
            passed.append(number)
            process.send_signal(number)

        ours = [one for one in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(one) is signal.SIG_DFL]
        try:
            for one in ours:
                signal.signal(one, forward_signal)
            output, errors = process.communicate()
        except BaseException:
            process.kill()
            raise
        finally:
            for one in ours:
                signal.signal(one, signal.SIG_DFL)
    if passed:
        signal.raise_signal(passed[0])
    return subprocess.CompletedProcess(command, process.returncode, output, errors)


# the parent's side

_numbers = itertools.count(1)
_children: set[weakref.ref[Child]] = set()  # for a forked process to disown


def _redirect_cudnn_log_to_stderr(environment: Mapping[str, str]) -> tuple[Mapping[str, str], bool]:
    """Redirect cuDNN's log to stderr in a child's environment; return it, and whether cuDNN will log to stderr.

    A log on standard output goes there too: that is for reports.
    """
    levels = ("CUDNN_LOGLEVEL_DBG", "CUDNN_LOGINFO_DBG", "CUDNN_LOGWARN_DBG", "CUDNN_LOGERR_DBG")
    wanted = any(environment.get(name, "0") != "0" for name in levels)
    if not wanted or environment.get("CUDNN_LOGDEST_DBG") not in ("stdout", "stderr"):
        return environment, False
    return {**environment, "CUDNN_LOGDEST_DBG": "stderr"}, True


class Child:
    """A process that answers queries one at a time, in JSON lines with the query's number.

    An exception, a time limit or a fork that interrupts a query leaves the child unusable: it is never queried again,
    so that an answer can be missing, but never be that of another query. A child without references is ended. In a
    forked process the children of the parent cannot be used, and are left alone.

    Attributes
    ----------
    ending
        How the process ended while it was queried: ``SIGSEGV``, ``exit code 1``, ``TIMED_OUT``; empty if it did not.
    last_words
        The end of what it had written to stdout and stderr by then, since it was started or last answered.
    """

    def __init__(self, function: str, environment: Mapping[str, str]) -> None:
        try:
            self._start(function, environment)
        except OSError as error:
            what = f"no child process can be started: {error}"
            raise EnvironmentNotReady(what, code="child-not-started", where=str(sys.executable)) from error

    def _start(self, function: str, environment: Mapping[str, str]) -> None:
        self.ending = ""
        self.last_words = ""
        self._asked = False  # a question whose answer is not complete
        self._read = bytearray()
        with contextlib.ExitStack() as undo:
            self._socket, theirs = socket.socketpair()
            undo.callback(self._socket.close)
            with theirs:
                self._socket.setblocking(False)
                theirs.setblocking(True)
                self._errors = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115  # closed by end()
                undo.callback(self._errors.close)
                fcntl.fcntl(self._errors, fcntl.F_SETFL, os.O_APPEND)  # so that it can be emptied while it is written
                environment, is_logged = _redirect_cudnn_log_to_stderr(environment)
                lifeline = _ParentExitPipe()
                self._lifeline = lifeline.ours
                undo.callback(self._lifeline.close)
                self._process = lifeline.start(
                    make_call_command(function),
                    environment,
                    stdin=theirs.fileno(),
                    stdout=self._errors,
                    stderr=None if is_logged else self._errors,
                    process_group=0,  # Ctrl-C is for the parent, which ends its children
                )
            undo.pop_all()
        held = (self._socket, self._errors, self._lifeline)
        release = functools.partial(_release_child, os.getpid(), self._process, held)
        self._release_child = weakref.finalize(
            self, run_uninterrupted, release
        )  # also where no end() but the collector asks
        _children.difference_update([one for one in list(_children) if one() is None])
        _children.add(weakref.ref(self))

    @classmethod
    def start(cls, function: str, environment: Mapping[str, str]) -> Self:
        """Start a process that calls a function of this package, which must call :func:`serve`.

        Raises
        ------
        EnvironmentNotReady
            ``child-not-started``: no process, file or socket could be had.
        """
        return run_uninterrupted(lambda: cls(function, environment))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.end()

    @property
    def is_usable(self) -> bool:
        """Whether the process can be queried: alive, a child of this process, without a query in progress."""
        return self._is_ready_for_query() and poll_process(self._process) is None

    def _is_ready_for_query(self) -> bool:
        return self._release_child.alive and not self._asked and not self.ending

    def kill(self) -> None:
        """Kill the process without waiting for its end; no more queries are possible."""
        if self._release_child.alive:  # and is no copy in a forked process
            self._asked = True
            run_uninterrupted(lambda: _kill_process(self._process))

    def end(self) -> None:
        """Kill the process and release its resources; harmless when repeated."""
        run_uninterrupted(self._release_child)

    def run_query(self, asked: Mapping[str, Any], limit_s: float) -> Iterator[dict[str, Any]]:
        """Send a query; yield the process's messages until it has answered, ended or timed out (see ``ending``).

        Raises
        ------
        CudnnBackendError
            ``judging-failed``: an exception there. ``answer-damaged``: what came is no line of the answer.
        UsageError
            ``child-not-usable``: a query was interrupted, or this process was forked meanwhile.
        """
        try:
            yield from self._send_query(asked, limit_s)
        except (OSError, ValueError):
            if self._release_child.alive:
                raise
            raise make_child_not_usable_error() from None  # what it is queried through was closed in a fork

    def _send_query(self, asked: Mapping[str, Any], limit_s: float) -> Iterator[dict[str, Any]]:
        if not self._is_ready_for_query():
            raise make_child_not_usable_error()
        self._asked = True
        deadline = time.monotonic() + limit_s
        number = next(_numbers)
        line = json.dumps({"number": number, "limit_s": min(limit_s, _LONGEST_S), "asked": asked}).encode() + b"\n"
        for said in self._exchange_lines(line, deadline):
            answer = _parse_answer_line(said, number)
            if "done" in answer or "failed" in answer:
                self._asked = False
                os.ftruncate(self._errors.fileno(), 0)
            if "done" in answer:
                return
            if "failed" in answer:
                raise CudnnBackendError(str(answer["failed"]), code="judging-failed", more=str(answer.get("more", "")))
            yield answer
        self.last_words = self._read_last_output()
        self.ending = self._await_exit_status(deadline)

    def _read_last_output(self) -> str:
        errors = self._errors.fileno()
        text = os.pread(errors, 4 * _SAID, max(0, os.fstat(errors).st_size - 4 * _SAID)).decode(errors="replace")
        return text[-_SAID:].strip()

    def _await_exit_status(self, deadline: float) -> str:
        while time.monotonic() < deadline:
            if (code := poll_process(self._process)) is not None:
                return describe_exit_status(code)
            time.sleep(_PAUSE_S)
        return TIMED_OUT

    def _exchange_lines(self, unsent: bytes, deadline: float) -> Iterator[bytes]:
        """Send a line to the process; yield each line it writes until it ends or times out."""
        searched = 0
        while (left := deadline - time.monotonic()) > 0:
            end = self._read.find(b"\n", searched)
            if end >= 0:
                line = bytes(self._read[:end])
                del self._read[: end + 1]
                searched = 0
                yield line
                continue
            searched = len(self._read)
            if searched > _LONGEST_BYTES:
                raise _make_damaged_answer_error(
                    f"a child process sent a line of more than {_LONGEST_BYTES} bytes", bytes(self._read[:_SAID])
                )
            waiting = select.poll()
            waiting.register(self._socket, select.POLLIN | (select.POLLOUT if unsent else 0))
            if not waiting.poll(min(left, _ALIVE_S) * 1000) and poll_process(self._process) is None:
                continue
            try:
                unsent = unsent and unsent[self._socket.send(unsent, socket.MSG_NOSIGNAL) :]
            except OSError as error:  # or an exception of a signal's handler, which has no number
                if error.errno not in (errno.EAGAIN, errno.EPIPE, errno.ECONNRESET):
                    raise
            try:
                piece = self._socket.recv(_PIECE_BYTES)
            except OSError as error:
                if error.errno not in (errno.EAGAIN, errno.ECONNRESET):
                    raise
                if error.errno == errno.ECONNRESET or poll_process(self._process) is not None:
                    return
            else:
                if not piece:
                    return
                self._read += piece

    def _release_child_in_forked_process(self) -> None:
        """In a forked process: close the copied file descriptors, and leave the child process to the parent."""
        self._release_child.detach()
        for held in (self._socket, self._errors, self._lifeline):
            held.close()
        self._process.returncode = 0  # so that Popen does not look for it


class RestartingChildProcess:
    """A child process that is started on the first query, and restarted if it ended or a query was interrupted.

    A context manager. Not for several threads.

    Parameters
    ----------
    function
        As :meth:`Child.start` takes it.
    environment
        Called before each start.

    Attributes
    ----------
    ending, last_words
        Those of :class:`Child`, of the process that was queried last.
    """

    def __init__(self, function: str, environment: Callable[[], Mapping[str, str]]) -> None:
        self._function, self._environment = function, environment
        self._child: Child | None = None
        self.ending = self.last_words = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.end()

    @property
    def is_usable(self) -> bool:
        """Whether the process that answered the previous query can also answer the next one."""
        return self._child is not None and self._child.is_usable

    def end(self) -> None:
        """End the process; harmless when repeated. The next query starts another one."""
        child, self._child = self._child, None
        if child is not None:
            child.end()

    def run_query(self, asked: Mapping[str, Any], limit_s: float) -> Iterator[dict[str, Any]]:
        """Send a query to the process, starting it if needed, and yield its messages; see ``ending``.

        Raises
        ------
        EnvironmentNotReady, CudnnBackendError, UsageError
            As :meth:`Child.start` and :meth:`Child.ask`.
        """
        if not self.is_usable:
            self.end()
            self._child = Child.start(self._function, self._environment())
        child = self._child
        assert child is not None
        self.ending = self.last_words = ""
        yield from child.run_query(asked, limit_s)
        if child.ending:
            self.ending, self.last_words = child.ending, child.last_words
            self.end()


def _release_child(owner: int, process: subprocess.Popen[bytes], held: tuple[socket.socket | FileIO, ...]) -> None:
    if os.getpid() != owner:
        return
    _kill_process(process)
    for one in held:
        one.close()
    # Where the system cannot say when it is gone, wait() looks again and again, up to 50 ms apart.
    with contextlib.suppress(OSError), FileIO(os.pidfd_open(process.pid)) as ended:
        select.select([ended], [], [], PATIENCE_S)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(PATIENCE_S)


def _kill_process(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # its own group, which has its forks as well


def _release_children_in_fork() -> None:
    for held in list(_children):
        if (child := held()) is not None:
            child._release_child_in_forked_process()
    _children.clear()


os.register_at_fork(after_in_child=_release_children_in_fork)


def _parse_answer_line(line: bytes, number: int) -> dict[str, Any]:
    """Parse one line of the answer to the query with this number."""
    try:
        said = json.loads(line)
    except (ValueError, RecursionError):
        raise _make_damaged_answer_error("a child process sent a line that is not JSON", line) from None
    found = said.pop("number", None) if isinstance(said, dict) else None
    if found != number:
        raise _make_damaged_answer_error(
            f"a child process sent answer number {found!r}, but number {number} was expected", line
        )
    answer: dict[str, Any] = said
    return answer


def _make_damaged_answer_error(what: str, line: bytes) -> CudnnBackendError:
    return CudnnBackendError(
        what,
        code="answer-damaged",
        fix="run it again; if the error stays, report it with this text",
        more=line[:_SAID].decode(errors="replace"),
    )
