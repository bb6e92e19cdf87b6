"""``Child`` processes: requests and answers, deadlines, exits, interruptions and forks. Loads no library."""

from __future__ import annotations

import gc
import itertools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from cudnn_backend_py import CudnnBackendError, EnvironmentNotReady, UsageError
from cudnn_backend_py.system import child
from cudnn_backend_py.system.child import (
    TIMED_OUT,
    Child,
    RestartingChildProcess,
    describe_exit_status,
    make_script_command,
)
from cudnn_backend_py.system.uninterrupted import run_uninterrupted
from tests.support.child import ROOT, run_code
from tests.support.misbehaving_children import answer_correctly

LIARS = answer_correctly.__module__
LONG = "x" * (4 << 20)  # more than a socket accepts at once


def start_child(name: str) -> Child:
    return Child.start(f"{LIARS}:{name}", {**os.environ, "PYTHONPATH": str(ROOT)})


def run_query(child: Child, word: str, limit_s: float = 60) -> list[dict[str, Any]]:
    return list(child.run_query({"word": word}, limit_s))


def count_open_files() -> int:
    """Return the number of open files, after garbage of earlier tests is collected."""
    gc.collect()
    return len(os.listdir("/proc/self/fd"))


def wait_until_count_equals(count: Callable[[], Any], before: Any) -> None:
    """Wait up to 30 seconds until ``count()`` equals ``before``."""
    deadline = time.monotonic() + 30
    while count() != before and time.monotonic() < deadline:
        os.sched_yield()  # a thread that starts or ends one is running
    assert count() == before


class Interruption(BaseException):
    """An exception raised by a signal handler."""


@contextmanager
def interrupt_after_seconds(seconds: float, act: Any = None) -> Iterator[None]:
    """After some seconds, raise ``Interruption`` in a signal handler, or call ``act`` if given."""

    def handle_alarm(_number: int, _frame: FrameType | None) -> None:
        if act is None:
            raise Interruption
        act()

    before = signal.signal(signal.SIGALRM, handle_alarm)
    try:
        signal.setitimer(signal.ITIMER_REAL, seconds)
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_successive_requests_are_answered() -> None:
    with start_child("answer_correctly") as child:
        for word in ("one", LONG, "two"):
            assert run_query(child, word) == [{"first": word}, {"second": word}]
            assert child.is_usable


def test_an_answer_to_another_request_is_refused() -> None:
    with start_child("answer_with_an_earlier_number") as child:
        with pytest.raises(CudnnBackendError, match="answer-damaged: a child process sent answer number 0, but"):
            run_query(child, "one")
        with pytest.raises(UsageError, match="child-not-usable"):
            run_query(child, "two")


@pytest.mark.parametrize("line", ["no JSON", "", "7", "[]", "null", '{"number": "1"}', "[" * 100_000, "\xff", "{}"])
def test_a_damaged_answer_is_refused(line: str) -> None:
    with start_child("answer_with_damaged_json") as child, pytest.raises(CudnnBackendError, match="answer-damaged"):
        run_query(child, line)
    assert not child.is_usable


def test_an_endless_line_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cudnn_backend_py.system.child._LONGEST_BYTES", 1 << 20)
    with (
        start_child("answer_with_an_endless_line") as child,
        pytest.raises(CudnnBackendError, match="a line of more than 1048576 bytes"),
    ):
        run_query(child, "one")


def test_printed_output_of_a_child_is_no_answer_and_exit_is_reported() -> None:
    with start_child("print_to_stdout_and_stderr") as child:
        assert run_query(child, "talk") == []
        assert run_query(child, "die") == []
        assert child.ending == describe_exit_status(-signal.SIGRTMIN - 3)
        assert child.last_words.splitlines() == ["die on stdout", "die on stderr"]
        assert not child.is_usable


def test_an_exception_in_the_child_is_raised_in_the_parent() -> None:
    with start_child("raise_error") as child:
        with pytest.raises(CudnnBackendError, match="judging-failed: KeyError: 'one'"):
            run_query(child, "one")
        assert child.is_usable


def test_a_request_answered_in_a_fork_leaves_no_state_in_the_child() -> None:
    with start_child("answer_request_count_in_fork") as child:
        said = [run_query(child, word) for word in ("here", "there", "there", "here")]
        assert said == [[{"count": 1}], [{"count": 2}], [{"count": 2}], [{"count": 2}]]
        with pytest.raises(CudnnBackendError, match="judging-failed: KeyError: 'in a fork'"):
            run_query(child, "raise")
        assert run_query(child, "there") == [{"count": 3}]
        assert child.is_usable
        run_query(child, "die")
        assert child.ending == describe_exit_status(-signal.SIGRTMIN - 3)
    with start_child("answer_request_count_in_fork") as child:
        run_query(child, "exit")
        assert child.ending == "exit code 1"


def test_a_restarting_child_starts_again_after_an_exit_or_interruption() -> None:
    starts: list[int] = []

    def make_environment() -> dict[str, str]:
        starts.append(1)
        return {**os.environ, "PYTHONPATH": str(ROOT)}

    with RestartingChildProcess(f"{LIARS}:answer_request_count_in_fork", make_environment) as child:
        assert not starts
        assert list(child.run_query({"word": "here"}, 60)) == [{"count": 1}]
        assert list(child.run_query({"word": "here"}, 60)) == [{"count": 2}]
        assert (child.is_usable, child.ending, len(starts)) == (True, "", 1)
        list(child.run_query({"word": "die"}, 60))
        assert (child.is_usable, child.ending) == (False, describe_exit_status(-signal.SIGRTMIN - 3))
        assert list(child.run_query({"word": "here"}, 60)) == [{"count": 1}]
        assert (child.ending, len(starts)) == ("", 2)
        assert next(child.run_query({"word": "here"}, 60)) == {"count": 2}  # and is queried no further
        assert list(child.run_query({"word": "here"}, 60)) == [{"count": 1}]
        child.end()
        assert list(child.run_query({"word": "here"}, 60)) == [{"count": 1}]
        assert len(starts) == 4


def test_a_child_that_exits_at_start_reports_the_reason() -> None:
    for name, words in (("exit_at_start", "no child today"), ("nobody", "has no attribute 'nobody'")):
        with start_child(name) as child:
            assert run_query(child, "one") == []
            assert child.ending in ("exit code 1", "exit code 70")
            assert words in child.last_words


def test_a_child_without_executable_raises_environment_not_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    before = count_open_files()
    monkeypatch.setattr("sys.executable", "/nowhere/python")
    with pytest.raises(EnvironmentNotReady, match="child-not-started"):
        start_child("answer_correctly")
    assert count_open_files() == before


def test_a_request_can_time_out_while_it_is_written() -> None:
    with start_child("answer_correctly") as child:
        run_query(child, "one")
        os.kill(child._process.pid, signal.SIGSTOP)
        assert run_query(child, LONG, 0.2) == []
        assert child.ending == TIMED_OUT


@pytest.mark.parametrize("word", ["short", LONG])
def test_an_interrupted_request_terminates_the_child(word: str) -> None:
    with start_child("answer_correctly") as child:
        run_query(child, "one")
        os.kill(child._process.pid, signal.SIGSTOP)
        with pytest.raises(Interruption), interrupt_after_seconds(0.1):
            run_query(child, word)
        os.kill(child._process.pid, signal.SIGCONT)
        with pytest.raises(UsageError, match="child-not-usable"):
            run_query(child, "two")
    assert child._process.returncode == -signal.SIGKILL


def test_a_partly_read_answer_terminates_the_child() -> None:
    with start_child("answer_correctly") as child:
        for _line in child.run_query({"word": "one"}, 60):
            break
        with pytest.raises(UsageError, match="child-not-usable"):
            run_query(child, "two")


def test_an_interrupted_start_or_end_leaks_no_file_or_process() -> None:
    start_child("answer_correctly").end()
    before = count_open_files()
    for step in range(40):
        with (
            suppress(Interruption),
            interrupt_after_seconds(0.0001 * (1 + step)),
        ):  # it may come before there is anything to start
            try:
                child = start_child("answer_correctly")
                child.end()
            except Interruption:
                child = None  # type: ignore[assignment]
    wait_until_count_equals(lambda: (count_open_files(), list_child_pids()), (before, set()))


@contextmanager
def interrupt_after_c_calls(calls: int) -> Iterator[None]:
    """Raise ``Interruption`` after ``calls`` C functions have returned in this thread, as a signal handler might."""
    left = itertools.count(calls, -1)

    def interrupt_at_return(_frame: FrameType, event: str, _function: object) -> None:
        if event == "c_return" and next(left) == 0:
            sys.setprofile(None)
            raise Interruption

    sys.setprofile(interrupt_at_return)
    try:
        yield
    finally:
        sys.setprofile(None)


def test_an_interrupted_exit_check_leaks_no_file_or_process() -> None:
    start_child("answer_correctly").end()
    before = count_open_files(), list_child_pids()
    for calls in range(60):
        child = start_child("answer_correctly")
        os.kill(child._process.pid, signal.SIGKILL)
        with suppress(Interruption), interrupt_after_c_calls(calls):
            assert list(child.run_query({"word": "one"}, 60)) == []
            assert not child.is_usable
        child.end()
        assert (count_open_files(), list_child_pids()) == before, calls


@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_an_interrupted_finalizer_leaks_no_file_or_process(monkeypatch: pytest.MonkeyPatch) -> None:
    start_child("answer_correctly").end()
    before = count_open_files(), list_child_pids()
    monkeypatch.setattr(sys, "unraisablehook", lambda _what: None)  # Python reports it there
    for calls in range(30):
        child = start_child("answer_correctly")
        with suppress(Interruption), interrupt_after_c_calls(calls):
            del child
        # Each start of a process waits for those with a finalizer that did not run.
        wait_until_count_equals(
            lambda: subprocess.run("true", check=True) and (count_open_files(), list_child_pids()), before
        )


def list_child_pids() -> set[int]:
    """Return the ids of the child processes of this process, including those not yet waited for."""
    return {
        int(number)
        for task in Path("/proc/self/task").glob("*/children")
        if task.is_file()
        for number in task.read_text().split()
    }


def test_an_unreferenced_child_is_terminated() -> None:
    child = start_child("answer_correctly")
    run_query(child, "one")
    process = child._process
    del child
    gc.collect()
    assert process.returncode == -signal.SIGKILL


def test_ending_a_child_in_a_fork_does_not_terminate_the_child() -> None:
    child = start_child("answer_correctly")
    run_query(child, "one")
    before = count_open_files()
    if (forked := os.fork()) == 0:
        code = 1
        try:
            held = count_open_files()
            usable = child.is_usable
            child.end()
            code = 0 if (held, usable) == (before - 3, False) else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(forked, 0)[1]) == 0
    assert run_query(child, "two") == [{"first": "two"}, {"second": "two"}]
    child.end()


FORKS = """
import os, sys
from tests.pure.system.test_child import run_query, start_child
child = start_child("answer_correctly")
run_query(child, "one")
if (forked := os.fork()) == 0:
    sys.exit()  # with what the interpreter does at its end
assert os.waitpid(forked, 0)[1] == 0
assert len(run_query(child, "two")) == 2
print("answered")
"""


def test_the_exit_of_a_forked_process_does_not_terminate_the_child() -> None:
    done = run_code(FORKS)
    assert (done.stdout, done.stderr) == ("answered\n", "")


def test_only_the_parent_gets_the_answer_if_a_handler_forks_during_a_request() -> None:
    child, parent = start_child("answer_correctly"), os.getpid()
    run_query(child, "one")
    forked = []

    def fork_and_record_pid() -> None:
        if pid := os.fork():
            forked.append(pid)
            os.kill(child._process.pid, signal.SIGCONT)

    os.kill(child._process.pid, signal.SIGSTOP)
    code = 1
    try:
        with interrupt_after_seconds(0.1, fork_and_record_pid):
            answer = run_query(child, "two")
    except UsageError as error:
        code = 0 if error.code == "child-not-usable" else 2
    finally:
        if os.getpid() != parent:
            os._exit(code)
    assert answer == [{"first": "two"}, {"second": "two"}]
    assert [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in forked] == [0]
    child.end()


def test_run_uninterrupted_delays_exceptions_of_signal_handlers() -> None:
    done = []

    def raise_signal_and_continue() -> None:
        os.kill(os.getpid(), signal.SIGALRM)
        time.sleep(0.2)
        done.append("begun")

    with pytest.raises(Interruption), interrupt_after_seconds(60):
        run_uninterrupted(raise_signal_and_continue)
    assert done == ["begun"]


def test_run_uninterrupted_continues_in_parent_if_handler_forks() -> None:
    parent, forked = os.getpid(), []

    def fork_and_record_pid() -> None:
        if pid := os.fork():
            forked.append(pid)

    def raise_signal_and_wait_for_fork() -> str:
        os.kill(parent, signal.SIGALRM)
        while not forked:
            os.sched_yield()
        return "begun"

    code = 1
    try:
        with interrupt_after_seconds(60, fork_and_record_pid):
            assert run_uninterrupted(raise_signal_and_wait_for_fork) == "begun"
    except UsageError as error:
        code = 0 if error.code == "child-not-usable" else 2
    finally:
        if os.getpid() != parent:
            os._exit(code)
    assert [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in forked] == [0]


@pytest.mark.parametrize(
    ("code", "text"),
    [(0, "exit code 0"), (3, "exit code 3"), (-11, "SIGSEGV"), (-40, "signal 40"), (-99, "signal 99")],
)
def test_exit_codes_and_signals_are_described(code: int, text: str) -> None:
    assert describe_exit_status(code) == text


TELL = "import cudnn_backend_py, json, sys; print(json.dumps([cudnn_backend_py.__file__, sys.argv, sys.path]))"


def test_script_command_ignores_modules_in_the_working_folder(tmp_path: Path) -> None:
    package = tmp_path / "cudnn_backend_py"
    package.mkdir()
    (package / "__init__.py").write_text("raise SystemExit('another package')")
    (tmp_path / "json.py").write_text("raise SystemExit('another json')")
    script = tmp_path / "folder" / "script.py"
    script.parent.mkdir()
    script.write_text(TELL)
    done = subprocess.run(
        make_script_command(script, "a", "-b"), cwd=tmp_path, capture_output=True, text=True, check=True
    )
    home, arguments, path = json.loads(done.stdout)
    assert home == str(ROOT / "cudnn_backend_py" / "__init__.py")
    assert arguments == [str(script), "a", "-b"]
    assert not {"", ".", str(tmp_path), str(script.parent)} & set(path)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_terminating_a_process_terminates_its_child_command(number: int) -> None:
    code = f"""
import os, signal, sys
signal.signal({int(number)}, signal.SIG_DFL)  # whoever started the tests may ignore it, as nohup does
from {child.__name__} import run_command
run_command([sys.executable, "-c", "import os, time; print(os.getpid(), flush=True); time.sleep(600)"], os.environ)
"""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        assert process.stdout is not None
        inner = int(process.stdout.readline())
        process.send_signal(number)
        assert process.stdout.read() == ""  # until the last reference is gone
        assert process.wait(60) == -number
    assert not Path(f"/proc/{inner}").exists()


@pytest.mark.parametrize("kind", ["command", "child"])
def test_killing_a_process_kills_the_child_commands_it_started(tmp_path: Path, kind: str) -> None:
    start_slowly = {
        "command": f"child.run_command(child.make_call_command('{LIARS}:hang_in_parent_and_fork'), os.environ)",
        "child": f"kept = child.Child.start('{LIARS}:hang_in_parent_and_fork', os.environ); time.sleep(600)",
    }
    said = tmp_path / "numbers"
    code = f"import os, time\nfrom cudnn_backend_py.system import child\n{start_slowly[kind]}\n"
    given = {**os.environ, "PYTHONPATH": str(ROOT), "LINGER": str(said)}
    with subprocess.Popen([sys.executable, "-c", code], env=given, cwd=ROOT) as process:
        wait_until_count_equals(lambda: said.exists() and said.read_text().endswith("\n"), True)
        process.kill()
    inner, forked = said.read_text().split()
    try:
        wait_until_count_equals(lambda: is_process_running(inner), False)
        if kind == "child":  # it has its own process group
            wait_until_count_equals(lambda: is_process_running(forked), False)
    finally:
        for number in filter(is_process_running, (inner, forked)):
            os.kill(int(number), signal.SIGKILL)


def is_process_running(number: str) -> bool:
    """Return whether a process exists and is not a zombie."""
    with suppress(FileNotFoundError, ProcessLookupError):
        return Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def test_an_interrupted_command_is_terminated() -> None:
    def raise_interrupted_error(_number: int, _frame: FrameType | None) -> None:
        raise InterruptedError

    before = signal.signal(signal.SIGALRM, raise_interrupted_error)
    signal.setitimer(signal.ITIMER_REAL, 1)
    try:
        with pytest.raises(InterruptedError):
            child.run_command([sys.executable, "-c", "import time; time.sleep(600)"], os.environ)
    finally:
        signal.signal(signal.SIGALRM, before)
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
