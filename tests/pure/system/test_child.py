"""Child processes: numbered lines, a deadline, their ends, and their owners. Loads no library."""

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
    LastingChild,
    describe_ending,
    run_undisturbed,
    script_command,
)
from tests.support.child import ROOT, run_code
from tests.support.misbehaving_children import answer_correctly

LIARS = answer_correctly.__module__
LONG = "x" * (4 << 20)  # more than a socket accepts at once


def start(name: str) -> Child:
    return Child.start(f"{LIARS}:{name}", {**os.environ, "PYTHONPATH": str(ROOT)})


def run_query(child: Child, word: str, limit_s: float = 60) -> list[dict[str, Any]]:
    return list(child.run_query({"word": word}, limit_s))


def descriptors() -> int:
    """Return the number of open files, without garbage of earlier tests."""
    gc.collect()
    return len(os.listdir("/proc/self/fd"))


def settle(count: Callable[[], Any], before: Any) -> None:
    """Wait, for a limited time, until the counts are as before."""
    deadline = time.monotonic() + 30
    while count() != before and time.monotonic() < deadline:
        os.sched_yield()  # a thread that starts or ends one is running
    assert count() == before


class Interruption(BaseException):
    """An exception raised by a signal handler."""


@contextmanager
def alarm(seconds: float, act: Any = None) -> Iterator[None]:
    """Raise, or call a function, after some time."""

    def handler(_number: int, _frame: FrameType | None) -> None:
        if act is None:
            raise Interruption
        act()

    before = signal.signal(signal.SIGALRM, handler)
    try:
        signal.setitimer(signal.ITIMER_REAL, seconds)
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_requests_are_answered_one_after_the_other() -> None:
    with start("answer_correctly") as child:
        for word in ("one", LONG, "two"):
            assert run_query(child, word) == [{"first": word}, {"second": word}]
            assert child.usable


def test_a_line_of_another_request_is_no_answer() -> None:
    with start("answer_late") as child:
        with pytest.raises(CudnnBackendError, match="answer-damaged: a child process sent a line of the answer 0 inst"):
            run_query(child, "one")
        with pytest.raises(UsageError, match="child-not-usable"):
            run_query(child, "two")


@pytest.mark.parametrize("line", ["no JSON", "", "7", "[]", "null", '{"number": "1"}', "[" * 100_000, "\xff", "{}"])
def test_a_damaged_line_is_not_an_answer(line: str) -> None:
    with start("answer_with_damaged_json") as child, pytest.raises(CudnnBackendError, match="answer-damaged"):
        run_query(child, line)
    assert not child.usable


def test_a_line_without_an_end_is_abandoned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cudnn_backend_py.system.child._LONGEST_BYTES", 1 << 20)
    with (
        start("answer_without_end") as child,
        pytest.raises(CudnnBackendError, match="a line of more than 1048576 bytes"),
    ):
        run_query(child, "one")


def test_printed_text_of_a_child_is_no_answer_and_its_end_is_reported() -> None:
    with start("print_to_stdout_and_stderr") as child:
        assert run_query(child, "talk") == []
        assert run_query(child, "die") == []
        assert child.ending == describe_ending(-signal.SIGRTMIN - 3)
        assert child.last_words.splitlines() == ["die on stdout", "die on stderr"]
        assert not child.usable


def test_an_exception_in_the_child_is_raised_in_the_parent() -> None:
    with start("raise_error") as child:
        with pytest.raises(CudnnBackendError, match="judging-failed: KeyError: 'one'"):
            run_query(child, "one")
        assert child.usable


def test_a_forked_process_leaves_nothing_and_the_child_ends_like_it() -> None:
    with start("answer_from_fork") as child:
        said = [run_query(child, word) for word in ("here", "there", "there", "here")]
        assert said == [[{"count": 1}], [{"count": 2}], [{"count": 2}], [{"count": 2}]]
        with pytest.raises(CudnnBackendError, match="judging-failed: KeyError: 'in a fork'"):
            run_query(child, "raise")
        assert run_query(child, "there") == [{"count": 3}]
        assert child.usable
        run_query(child, "die")
        assert child.ending == describe_ending(-signal.SIGRTMIN - 3)
    with start("answer_from_fork") as child:
        run_query(child, "exit")
        assert child.ending == "exit code 1"


def test_a_lasting_child_is_started_again_after_an_end_or_interruption() -> None:
    starts: list[int] = []

    def environment() -> dict[str, str]:
        starts.append(1)
        return {**os.environ, "PYTHONPATH": str(ROOT)}

    with LastingChild(f"{LIARS}:answer_from_fork", environment) as child:
        assert not starts
        assert list(child.run_query({"word": "here"}, 60)) == [{"count": 1}]
        assert list(child.run_query({"word": "here"}, 60)) == [{"count": 2}]
        assert (child.usable, child.ending, len(starts)) == (True, "", 1)
        list(child.run_query({"word": "die"}, 60))
        assert (child.usable, child.ending) == (False, describe_ending(-signal.SIGRTMIN - 3))
        assert list(child.run_query({"word": "here"}, 60)) == [{"count": 1}]
        assert (child.ending, len(starts)) == ("", 2)
        assert next(child.run_query({"word": "here"}, 60)) == {"count": 2}  # and is queried no further
        assert list(child.run_query({"word": "here"}, 60)) == [{"count": 1}]
        child.end()
        assert list(child.run_query({"word": "here"}, 60)) == [{"count": 1}]
        assert len(starts) == 4


def test_a_child_that_does_not_start_reports_the_reason() -> None:
    for name, words in (("exit_at_start", "no child today"), ("nobody", "has no attribute 'nobody'")):
        with start(name) as child:
            assert run_query(child, "one") == []
            assert child.ending in ("exit code 1", "exit code 70")
            assert words in child.last_words


def test_a_child_that_cannot_be_started_raises_our_error(monkeypatch: pytest.MonkeyPatch) -> None:
    before = descriptors()
    monkeypatch.setattr("sys.executable", "/nowhere/python")
    with pytest.raises(EnvironmentNotReady, match="child-not-started"):
        start("answer_correctly")
    assert descriptors() == before


def test_time_runs_out_while_the_request_is_written() -> None:
    with start("answer_correctly") as child:
        run_query(child, "one")
        os.kill(child._process.pid, signal.SIGSTOP)
        assert run_query(child, LONG, 0.2) == []
        assert child.ending == TIMED_OUT


@pytest.mark.parametrize("word", ["short", LONG])
def test_an_interrupted_request_ends_the_child(word: str) -> None:
    with start("answer_correctly") as child:
        run_query(child, "one")
        os.kill(child._process.pid, signal.SIGSTOP)
        with pytest.raises(Interruption), alarm(0.1):
            run_query(child, word)
        os.kill(child._process.pid, signal.SIGCONT)
        with pytest.raises(UsageError, match="child-not-usable"):
            run_query(child, "two")
    assert child._process.returncode == -signal.SIGKILL


def test_a_half_read_answer_ends_the_child() -> None:
    with start("answer_correctly") as child:
        for _line in child.run_query({"word": "one"}, 60):
            break
        with pytest.raises(UsageError, match="child-not-usable"):
            run_query(child, "two")


def test_an_interrupted_start_or_end_leaves_nothing() -> None:
    start("answer_correctly").end()
    before = descriptors()
    for step in range(40):
        with suppress(Interruption), alarm(0.0001 * (1 + step)):  # it may come before there is anything to start
            try:
                child = start("answer_correctly")
                child.end()
            except Interruption:
                child = None  # type: ignore[assignment]
    settle(lambda: (descriptors(), children()), (before, set()))


@contextmanager
def raising_after(calls: int) -> Iterator[None]:
    """Raise after so many returns of C functions in this thread: at the places where a signal handler would."""
    left = itertools.count(calls, -1)

    def profile(_frame: FrameType, event: str, _function: object) -> None:
        if event == "c_return" and next(left) == 0:
            sys.setprofile(None)
            raise Interruption

    sys.setprofile(profile)
    try:
        yield
    finally:
        sys.setprofile(None)


def test_an_interrupted_check_of_a_child_leaves_nothing() -> None:
    start("answer_correctly").end()
    before = descriptors(), children()
    for calls in range(60):
        child = start("answer_correctly")
        os.kill(child._process.pid, signal.SIGKILL)
        with suppress(Interruption), raising_after(calls):
            assert list(child.run_query({"word": "one"}, 60)) == []
            assert not child.usable
        child.end()
        assert (descriptors(), children()) == before, calls


@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_a_child_collected_while_a_handler_raises_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    start("answer_correctly").end()
    before = descriptors(), children()
    monkeypatch.setattr(sys, "unraisablehook", lambda _what: None)  # Python reports it there
    for calls in range(30):
        child = start("answer_correctly")
        with suppress(Interruption), raising_after(calls):
            del child
        # Each start of a process waits for those with a finalizer that did not run.
        settle(lambda: subprocess.run("true", check=True) and (descriptors(), children()), before)


def children() -> set[int]:
    """Return the processes that this one has started, including those that have not been waited for."""
    return {
        int(number)
        for task in Path("/proc/self/task").glob("*/children")
        if task.is_file()
        for number in task.read_text().split()
    }


def test_a_child_without_references_is_ended() -> None:
    child = start("answer_correctly")
    run_query(child, "one")
    process = child._process
    del child
    gc.collect()
    assert process.returncode == -signal.SIGKILL


def test_a_forked_process_does_not_end_the_children_of_its_parent() -> None:
    child = start("answer_correctly")
    run_query(child, "one")
    before = descriptors()
    if (forked := os.fork()) == 0:
        code = 1
        try:
            held = descriptors()
            usable = child.usable
            child.end()
            code = 0 if (held, usable) == (before - 3, False) else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(forked, 0)[1]) == 0
    assert run_query(child, "two") == [{"first": "two"}, {"second": "two"}]
    child.end()


FORKS = """
import os, sys
from tests.pure.system.test_child import run_query, start
child = start("answer_correctly")
run_query(child, "one")
if (forked := os.fork()) == 0:
    sys.exit()  # with what the interpreter does at its end
assert os.waitpid(forked, 0)[1] == 0
assert len(run_query(child, "two")) == 2
print("answered")
"""


def test_the_end_of_a_forked_process_ends_no_other() -> None:
    done = run_code(FORKS)
    assert (done.stdout, done.stderr) == ("answered\n", "")


def test_a_handler_that_forks_during_a_request_leaves_it_to_the_parent() -> None:
    child, parent = start("answer_correctly"), os.getpid()
    run_query(child, "one")
    forked = []

    def forks() -> None:
        if pid := os.fork():
            forked.append(pid)
            os.kill(child._process.pid, signal.SIGCONT)

    os.kill(child._process.pid, signal.SIGSTOP)
    code = 1
    try:
        with alarm(0.1, forks):
            answer = run_query(child, "two")
    except UsageError as error:
        code = 0 if error.code == "child-not-usable" else 2
    finally:
        if os.getpid() != parent:
            os._exit(code)
    assert answer == [{"first": "two"}, {"second": "two"}]
    assert [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in forked] == [0]
    child.end()


def test_an_exception_of_a_handler_waits_for_the_end_of_a_start() -> None:
    done = []

    def begin() -> None:
        os.kill(os.getpid(), signal.SIGALRM)
        time.sleep(0.2)
        done.append("begun")

    with pytest.raises(Interruption), alarm(60):
        run_undisturbed(begin)
    assert done == ["begun"]


def test_a_handler_that_forks_during_a_start_leaves_it_to_the_parent() -> None:
    parent, forked = os.getpid(), []

    def forks() -> None:
        if pid := os.fork():
            forked.append(pid)

    def begin() -> str:
        os.kill(parent, signal.SIGALRM)
        while not forked:
            os.sched_yield()
        return "begun"

    code = 1
    try:
        with alarm(60, forks):
            assert run_undisturbed(begin) == "begun"
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
def test_endings_have_names(code: int, text: str) -> None:
    assert describe_ending(code) == text


TELL = "import cudnn_backend_py, json, sys; print(json.dumps([cudnn_backend_py.__file__, sys.argv, sys.path]))"


def test_a_script_imports_this_package_and_not_the_working_folder(tmp_path: Path) -> None:
    package = tmp_path / "cudnn_backend_py"
    package.mkdir()
    (package / "__init__.py").write_text("raise SystemExit('another package')")
    (tmp_path / "json.py").write_text("raise SystemExit('another json')")
    script = tmp_path / "folder" / "script.py"
    script.parent.mkdir()
    script.write_text(TELL)
    done = subprocess.run(script_command(script, "a", "-b"), cwd=tmp_path, capture_output=True, text=True, check=True)
    home, arguments, path = json.loads(done.stdout)
    assert home == str(ROOT / "cudnn_backend_py" / "__init__.py")
    assert arguments == [str(script), "a", "-b"]
    assert not {"", ".", str(tmp_path), str(script.parent)} & set(path)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_the_end_of_a_process_ends_its_command(number: int) -> None:
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
def test_the_command_of_a_killed_process_is_killed_too(tmp_path: Path, kind: str) -> None:
    begin = {
        "command": f"child.run_command(child.call_command('{LIARS}:hang_with_fork'), os.environ)",
        "child": f"kept = child.Child.start('{LIARS}:hang_with_fork', os.environ); time.sleep(600)",
    }
    said = tmp_path / "numbers"
    code = f"import os, time\nfrom cudnn_backend_py.system import child\n{begin[kind]}\n"
    given = {**os.environ, "PYTHONPATH": str(ROOT), "LINGER": str(said)}
    with subprocess.Popen([sys.executable, "-c", code], env=given, cwd=ROOT) as process:
        settle(lambda: said.exists() and said.read_text().endswith("\n"), True)
        process.kill()
    inner, forked = said.read_text().split()
    try:
        settle(lambda: is_running(inner), False)
        if kind == "child":  # it has its own process group
            settle(lambda: is_running(forked), False)
    finally:
        for number in filter(is_running, (inner, forked)):
            os.kill(int(number), signal.SIGKILL)


def is_running(number: str) -> bool:
    """Return whether a process exists and is not a zombie."""
    with suppress(FileNotFoundError, ProcessLookupError):
        return Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def test_an_interrupted_command_is_ended() -> None:
    def interrupt(_number: int, _frame: FrameType | None) -> None:
        raise InterruptedError

    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, 1)
    try:
        with pytest.raises(InterruptedError):
            child.run_command([sys.executable, "-c", "import time; time.sleep(600)"], os.environ)
    finally:
        signal.signal(signal.SIGALRM, before)
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
