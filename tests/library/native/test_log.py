"""Capture of cuDNN's log as text and records; callbacks and log files of the program still get every message."""

from __future__ import annotations

import ctypes
import gc
import json
import logging
import os
import re
import threading
from pathlib import Path

import pytest

from cudnn_backend_py import (
    CudnnStatusError,
    DataType,
    Descriptor,
    DescriptorType,
    Graph,
    GraphBuilder,
    OperationGraph,
    capi,
    capture_log,
    library,
    open_target,
)
from cudnn_backend_py.generated.enums import Severity
from cudnn_backend_py.native import Log
from cudnn_backend_py.native.callbacks import LogCallback
from cudnn_backend_py.native.log import (
    LogRecord,
    _LogCallbackDispatcher,
    _read_nul_terminated_lines,
    _write_to_cudnn_log_destination,
)
from tests.support.child import ROOT, FinishedChild, make_older_cudnn_environment, run_python


def make_environment_without_cudnn_log(**changed: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("CUDNN_LOG")}
    return kept | changed


def make_graph_of_two_matmuls() -> Graph:
    g = GraphBuilder("two", io_type=DataType.HALF)
    s = g.matmul(g.tensor("q", (1, 16, 64)), g.tensor("k", (1, 64, 16)), data_type=DataType.HALF)
    g.matmul(s, g.tensor("v", (1, 16, 64)), name="o", virtual=False)
    return g.graph()


def make_cudnn_log_an_error() -> None:
    """Make cuDNN log an error."""
    with pytest.raises(CudnnStatusError):
        Descriptor(DescriptorType.TENSOR).finalize()


def list_logged_functions(log: Log) -> list[str | None]:
    return [record.function for record in log.records]


def test_log_records_have_source_time_and_message() -> None:
    with capture_log() as log:
        Descriptor(DescriptorType.MATMUL).close()
    first = log.records[0]
    assert first.function == "cudnnBackendCreateDescriptor"
    assert first.severity is Severity.INFO
    assert first.version == library().cudnnGetVersion()
    assert first.thread == threading.get_native_id()
    assert first.process == os.getpid()
    assert first.time is not None
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d+", first.time)
    assert f"CUDNN_BACKEND_MATMUL_DESCRIPTOR ({DescriptorType.MATMUL.value})" in first.text
    assert "cudnnBackendDestroyDescriptor" in list_logged_functions(log)


def test_log_text_contains_every_message_verbatim() -> None:
    with capture_log() as log:
        make_cudnn_log_an_error()
    assert log.text == "\n".join(record.text for record in log.records)
    assert "Tensor must have at least 1 dimension" in log.text


def test_refusal_reasons_of_a_log_are_read_innermost_first() -> None:
    with capture_log(Severity.ERROR) as log:
        make_cudnn_log_an_error()
    (record,) = log.records
    assert record.severity is Severity.ERROR
    reasons = record.reasons()
    assert reasons[0][0] == "CUDNN_STATUS_BAD_PARAM"
    assert reasons[0][1].startswith("Tensor must have at least 1 dimension")
    assert reasons[-1] == ("CUDNN_STATUS_BAD_PARAM", "ptrDesc->finalize()")


def test_log_levels_leave_out_less_severe_messages() -> None:
    heard = {}
    for level in (Severity.ERROR, Severity.WARNING, Severity.INFO):
        with capture_log(level) as log:
            make_cudnn_log_an_error()
            target = open_target("t4")
            OperationGraph(make_graph_of_two_matmuls(), target).heuristics("FALLBACK")
        heard[level] = {record.severity for record in log.records}
    assert heard == {
        Severity.ERROR: {Severity.ERROR},
        Severity.WARNING: {Severity.ERROR, Severity.WARNING},
        Severity.INFO: {Severity.ERROR, Severity.WARNING, Severity.INFO},
    }


def test_a_log_capture_has_the_operation_graphs_of_its_block() -> None:
    target = open_target("sm90")
    OperationGraph(make_graph_of_two_matmuls(), target)
    with capture_log() as log:
        OperationGraph(make_graph_of_two_matmuls(), target)
        OperationGraph(make_graph_of_two_matmuls(), target)
    graphs = log.operation_graphs()
    assert [len(graph["nodes"]) for graph in graphs] == [2, 2]
    assert [len(graph["tensors"]) for graph in graphs] == [5, 5]
    assert log.json("apiLog")


def test_invalid_json_in_a_log_message_is_left_out() -> None:
    with capture_log() as log:
        make_cudnn_log_an_error()
    assert log.json() == []


def test_log_captures_nest_and_end_in_any_order() -> None:
    outer, inner = capture_log(), capture_log(Severity.ERROR)
    heard_outer = outer.__enter__()
    Descriptor(DescriptorType.MATMUL)
    heard_inner = inner.__enter__()
    make_cudnn_log_an_error()
    outer.__exit__(None, None, None)
    count = len(heard_outer.records)
    make_cudnn_log_an_error()
    inner.__exit__(None, None, None)
    make_cudnn_log_an_error()
    assert len(heard_outer.records) == count > 4
    assert [record.severity for record in heard_inner.records] == [Severity.ERROR] * 2


def test_captured_log_records_stay_unchanged_after_the_capture() -> None:
    with capture_log() as log:
        Descriptor(DescriptorType.MATMUL)
    before = len(log.records)
    Descriptor(DescriptorType.MATMUL)
    assert len(log.records) == before > 0


def test_a_this_thread_only_log_capture_ignores_other_threads() -> None:
    def create_a_reduction() -> None:
        Descriptor(DescriptorType.REDUCTION)

    with capture_log() as everything, capture_log(this_thread_only=True) as mine:
        Descriptor(DescriptorType.MATMUL)
        thread = threading.Thread(target=create_a_reduction)
        thread.start()
        thread.join()
    assert "REDUCTION" in everything.text
    assert "REDUCTION" not in mine.text
    assert "MATMUL" in mine.text
    assert {record.thread for record in mine.records} == {threading.get_native_id()}


def test_cudnn_messages_are_forwarded_to_logging(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, "mine"), capture_log(logger="mine") as log:
        make_cudnn_log_an_error()
    assert [record.getMessage() for record in caplog.records] == [record.text for record in log.records]
    assert {record.levelno for record in caplog.records} == {logging.INFO, logging.ERROR}
    assert {record.name for record in caplog.records} == {"mine"}


def test_messages_are_forwarded_to_a_given_logger_object(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG), capture_log(logger=logging.getLogger("another")):
        Descriptor(DescriptorType.MATMUL)
    assert {record.name for record in caplog.records} == {"another"}


class RaisingFilter(logging.Filter):
    def filter(self, record: logging.LogRecord) -> bool:
        if "CUDNN_BACKEND_MATMUL" in record.getMessage():
            raise RuntimeError(f"no {record.name}")
        return True


def test_a_loggers_exception_is_raised_and_every_capture_gets_the_message(caplog: pytest.LogCaptureFixture) -> None:
    logger = logging.getLogger("bad")
    logger.addFilter(RaisingFilter())
    caplog.set_level(logging.INFO, "bad")
    with capture_log() as outer:
        with pytest.raises(RuntimeError, match="no bad"), capture_log(logger=logger) as log, capture_log() as inner:
            Descriptor(DescriptorType.MATMUL)
        Descriptor(DescriptorType.REDUCTION)
    assert "REDUCTION" in outer.text
    assert "REDUCTION" not in inner.text
    for heard in (outer, log, inner):
        assert "cudnnBackendCreateDescriptor" in list_logged_functions(heard)


def test_an_exception_ends_the_log_capture_and_propagates() -> None:
    with pytest.raises(KeyError), capture_log() as log:
        raise KeyError("mine")
    before = len(log.records)
    Descriptor(DescriptorType.MATMUL)
    assert len(log.records) == before


def test_a_user_callback_gets_all_messages_before_during_and_after_a_capture() -> None:
    heard: list[str] = []

    def user_callback(severity: int, user_data: int | None, _info: object, message: int) -> None:
        heard.append(f"{severity} {user_data} {ctypes.string_at(message).decode()}")

    def count_logged_descriptor_creations() -> int:
        return sum("cudnnBackendCreateDescriptor() called" in line for line in heard)

    capi.cudnnSetCallback(0b1110, user_callback, 4711)
    mask, user_data, address = capi.cudnnGetCallback()
    try:
        Descriptor(DescriptorType.MATMUL)
        alone = count_logged_descriptor_creations()
        with capture_log(Severity.ERROR) as log:
            Descriptor(DescriptorType.MATMUL)
            during = count_logged_descriptor_creations()
        Descriptor(DescriptorType.MATMUL)
        after = count_logged_descriptor_creations()
        assert (alone, during, after) == (2, 4, 6)  # cuDNN announces a call and its status
        assert {line.split()[1] for line in heard} == {"4711"}
        assert log.records == []
        assert capi.cudnnGetCallback() == (mask, user_data, address)
    finally:
        capi.cudnnSetCallback(0, None)


def test_a_user_callback_installed_during_a_log_capture_stays() -> None:
    heard: list[int] = []
    with capture_log():
        capi.cudnnSetCallback(0b1110, lambda severity, *_: heard.append(severity))
        theirs = capi.cudnnGetCallback()
    assert capi.cudnnGetCallback() == theirs
    Descriptor(DescriptorType.MATMUL)
    assert heard
    capi.cudnnSetCallback(0, None)


def test_an_exception_in_a_user_callback_is_raised_unchanged() -> None:
    error = ValueError("foreign")

    def user_callback(_severity: int, _user_data: int | None, _info: object, message: int) -> None:
        if "CUDNN_BACKEND_MATMUL" in _read_nul_terminated_lines(message):
            raise error

    with capture_log() as log:
        capi.cudnnSetCallback(0b1110, user_callback)
        try:
            with pytest.raises(ValueError, match="foreign") as caught:
                Descriptor(DescriptorType.MATMUL)
        finally:
            capi.cudnnSetCallback(0, None)
    assert caught.value is error
    assert "user_callback" in [entry.name for entry in caught.traceback]
    assert "cudnnBackendCreateDescriptor" in list_logged_functions(log)


REPLACE_CALLBACKS_PROGRAM = """
import threading
from cudnn_backend_py import CudnnBackendError, Descriptor, DescriptorType, capi, capture_log
heard = 0
def hear(*_):
    global heard
    heard += 1
def set_it():
    for number in range(6000):
        capi.cudnnSetCallback(14, lambda *_: hear(), number + 1)
def capture():
    for number in range(40):
        with capture_log() as log:
            Descriptor(DescriptorType.MATMUL).close()
        assert any("MATMUL" in record.text for record in log.records), log.text
def work():
    while any(thread.is_alive() for thread in others):
        try:
            Descriptor(DescriptorType.TENSOR).finalize()
        except CudnnBackendError:
            pass
others = [threading.Thread(target=call) for call in (set_it, set_it, set_it, capture)]
workers = [threading.Thread(target=work) for _ in range(2)]
for thread in others + workers:
    thread.start()
for thread in others + workers:
    thread.join()
capi.cudnnSetCallback(0, None)
print(heard)
"""


def test_threads_may_replace_callbacks_running_in_other_threads() -> None:
    """One thread may replace a callback while cuDNN runs it in another thread."""
    done = run_python(["-c", REPLACE_CALLBACKS_PROGRAM], environment=make_environment_without_cudnn_log())
    assert (done.code, done.stderr) == (0, "")
    assert int(done.stdout) > 100


def test_a_user_callback_and_a_log_capture_both_get_messages() -> None:
    heard: list[int] = []
    with capture_log() as log:
        capi.cudnnSetCallback(1 << Severity.ERROR, lambda severity, *_: heard.append(severity))
        make_cudnn_log_an_error()
        capi.cudnnSetCallback(0, None)
        make_cudnn_log_an_error()
    assert heard == [Severity.ERROR]
    assert sum(record.severity is Severity.ERROR for record in log.records) == 2


def test_a_callback_does_not_get_messages_of_its_own_calls() -> None:
    heard: list[str] = []

    def user_callback(_severity: int, _user_data: int | None, _info: object, message: int) -> None:
        heard.append(_read_nul_terminated_lines(message))
        Descriptor(DescriptorType.REDUCTION).close()

    capi.cudnnSetCallback(0b1110, user_callback)
    Descriptor(DescriptorType.MATMUL)
    capi.cudnnSetCallback(0, None)
    assert any("MATMUL" in text for text in heard)
    assert not any("REDUCTION" in text for text in heard)


def test_log_captures_share_one_cudnn_callback() -> None:
    """Repeated captures create no further callback and no further object that distributes log messages."""

    def count_live_callback_and_log_hub_objects() -> tuple[int, int]:
        gc.collect()
        objects = gc.get_objects()
        return sum(type(item) is LogCallback for item in objects), sum(
            type(item) is _LogCallbackDispatcher for item in objects
        )

    with capture_log():
        pass
    before = count_live_callback_and_log_hub_objects()
    for _ in range(50):
        with capture_log():
            pass
    assert count_live_callback_and_log_hub_objects() == before
    assert before[1] == 1


def test_strings_of_a_message_are_read_up_to_the_empty_string() -> None:
    memory = ctypes.create_string_buffer(b"one\0two \xff\0\0not this\0")
    assert _read_nul_terminated_lines(ctypes.addressof(memory)) == "one\ntwo \ufffd"
    assert LogCallback is not None


# The environment's own log, in child processes

LOGGING_PROGRAM = """
from cudnn_backend_py import Descriptor, DescriptorType, CudnnBackendError, capture_log
Descriptor(DescriptorType.MATMUL).close()      # before
with capture_log() as log:
    Descriptor(DescriptorType.REDUCTION).close()   # during
Descriptor(DescriptorType.RNG).close()         # after
with capture_log() as again:
    Descriptor(DescriptorType.RESAMPLE).close()    # during another one
try:
    Descriptor(DescriptorType.TENSOR).finalize()   # an error after
except CudnnBackendError:
    pass
import sys
words = [kind for kind in ("MATMUL", "REDUCTION", "RNG", "RESAMPLE", "TENSOR") if kind + "_DESC" in log.text]
again_words = [kind for kind in ("MATMUL", "REDUCTION", "RNG", "RESAMPLE", "TENSOR") if kind + "_DESC" in again.text]
open(sys.argv[1], "w").write(f"{words} {again_words}")
"""
LOGGED_KINDS = ("MATMUL", "REDUCTION", "RNG", "RESAMPLE", "TENSOR")
LOGGED_ERROR = "Tensor must have at least 1 dimension"


def run_with_log_variables(folder: Path, base: dict[str, str] | None = None, **variables: str) -> FinishedChild:
    """Run LOGGING_PROGRAM with environment variables, and check which messages it captured."""
    said = folder / "said"
    environment = (base or make_environment_without_cudnn_log()) | variables
    done = run_python(["-c", LOGGING_PROGRAM, str(said)], environment=environment, check=True)
    assert said.read_text() == "['REDUCTION'] ['RESAMPLE']"
    return done


def list_logged_descriptor_types(text: str) -> list[str]:
    """Return the types of the descriptors that a log shows being created, in order."""
    return re.findall(r"i!\s+descriptorType: .*?val=CUDNN_BACKEND_(\w+)_DESCRIPTOR", text)


@pytest.mark.parametrize("older", [False, True], ids=["newest", "9.19.0"])
def test_the_log_file_has_messages_before_during_and_after_capture_log(tmp_path: Path, older: bool) -> None:
    file = tmp_path / "cudnn.log"
    base = make_older_cudnn_environment() if older else None
    done = run_with_log_variables(tmp_path, base, CUDNN_LOGLEVEL_DBG="3", CUDNN_LOGDEST_DBG=str(file))
    text = file.read_text()
    assert list_logged_descriptor_types(text) == list(LOGGED_KINDS)
    assert "BAD_PARAM; Reason: " in text
    assert (done.stdout, done.stderr) == ("", "")


def test_forwarded_messages_have_cudnns_log_format(tmp_path: Path) -> None:
    file = tmp_path / "cudnn.log"
    run_with_log_variables(tmp_path, CUDNN_LOGLEVEL_DBG="3", CUDNN_LOGDEST_DBG=str(file))
    blocks = [block for block in file.read_text().split("\n\n") if "function cudnnBackendCreateDescriptor" in block]
    calls = [block for block in blocks if "descriptorType" in block]
    assert len(calls) == len(LOGGED_KINDS)
    shape = [re.sub(r"(?<=Time: ).*|\d+|_[A-Z]+(?=_DESC)", "#", block.strip()) for block in calls]
    assert set(shape) == {shape[0]}


@pytest.mark.parametrize(("destination", "stream"), [("stdout", "stdout"), ("stderr", "stderr"), (None, "stderr")])
def test_the_requested_output_stream_gets_every_message(tmp_path: Path, destination: str | None, stream: str) -> None:
    variables = {} if destination is None else {"CUDNN_LOGDEST_DBG": destination}
    done = run_with_log_variables(tmp_path, CUDNN_LOGLEVEL_DBG="3", **variables)
    text, other = (done.stdout, done.stderr) if stream == "stdout" else (done.stderr, done.stdout)
    assert sorted(list_logged_descriptor_types(text)) == sorted(LOGGED_KINDS)
    assert LOGGED_ERROR in text
    assert other == ""


def test_an_unwritable_destination_gives_one_warning_and_loses_no_record(tmp_path: Path) -> None:
    done = run_with_log_variables(tmp_path, CUDNN_LOGLEVEL_DBG="3", CUDNN_LOGDEST_DBG="/dev/full")
    assert done.stdout == ""
    assert [line.partition(" cannot be written")[0] for line in done.stderr.splitlines()] == [
        "CUDNN_LOGDEST_DBG=/dev/full"
    ]


@pytest.mark.parametrize(
    ("destination", "level", "warnings"),
    [
        ("/dev/full", "CUDNN_LOGLEVEL_DBG", 1),
        ("/no such folder/cudnn.log", "CUDNN_LOGLEVEL_DBG", 1),
        ("/", "CUDNN_LOGINFO_DBG", 1),
        ("cudnn.log", "CUDNN_LOGLEVEL_DBG", 0),
    ],
)
def test_commands_work_with_any_log_destination(destination: str, level: str, warnings: int, tmp_path: Path) -> None:
    """`cudnn-backend explain` works even if cuDNN's log file cannot be opened, which would crash cuDNN."""
    words = ["-m", "cudnn_backend_py", "explain", "-v", str(ROOT / "examples" / "flash_forward.py"), "--target", "sm90"]
    environment = make_environment_without_cudnn_log(PYTHONPATH=str(ROOT), CUDNN_LOGDEST_DBG=destination) | {level: "3"}
    done = run_python(words, environment=environment, check=True, cwd=tmp_path)
    assert done.stdout.startswith("SUPPORTED, not built: ")
    assert "engine config passed: 4 of 15 left" in done.stdout
    assert len(done.stderr.splitlines()) == warnings, done.stderr


def test_a_log_destination_may_become_unwritable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "there"
    folder.mkdir()
    record = LogRecord(Severity.INFO, "words", 1, 2)
    for destination in ("cudnn.log", "another.log"):
        monkeypatch.setenv("CUDNN_LOGDEST_DBG", str(folder / destination))
        _write_to_cudnn_log_destination(record)
        assert "i! " not in (text := (folder / destination).read_text())
        assert "I! words" in text
    folder.rename(tmp_path / "moved")
    for _ in range(3):
        _write_to_cudnn_log_destination(record)
    assert [one.levelname for one in caplog.records] == ["WARNING"]
    assert "another.log cannot be written (No such file or directory)" in caplog.text


def test_the_log_level_of_the_environment_is_kept(tmp_path: Path) -> None:
    file = tmp_path / "cudnn.log"
    run_with_log_variables(tmp_path, CUDNN_LOGLEVEL_DBG="1", CUDNN_LOGDEST_DBG=str(file))
    text = file.read_text()
    assert list_logged_descriptor_types(text) == []
    assert LOGGED_ERROR in text


def test_the_log_file_name_may_contain_the_process_id(tmp_path: Path) -> None:
    run_with_log_variables(tmp_path, CUDNN_LOGLEVEL_DBG="3", CUDNN_LOGDEST_DBG=str(tmp_path / "cudnn-%i.log"))
    (file,) = tmp_path.glob("cudnn-*.log")
    assert re.fullmatch(r"cudnn-\d+\.log", file.name)
    assert list_logged_descriptor_types(file.read_text()) == list(LOGGED_KINDS)


@pytest.mark.parametrize("older", [False, True], ids=["newest", "9.19.0"])
def test_a_log_capture_prints_nothing_if_no_log_is_requested(tmp_path: Path, older: bool) -> None:
    """A capture must not make cuDNN print errors to stderr that it did not print before."""
    base = make_older_cudnn_environment() if older else None
    base = base and {name: value for name, value in base.items() if not name.startswith("CUDNN_LOG")}
    done = run_with_log_variables(tmp_path, base)
    assert (done.stdout, done.stderr) == ("", "")


def test_captured_operation_graphs_can_be_written_as_json() -> None:
    with capture_log() as log:
        OperationGraph(make_graph_of_two_matmuls(), open_target("sm90"))
    (value,) = log.operation_graphs()
    assert json.loads(json.dumps(value)) == value
