"""cuDNN's log as text and as records, captured without setting environment variables.

cuDNN sends its log to ``CUDNN_LOGDEST_DBG`` or to one callback per process (``cudnnSetCallback``), never to both,
and giving the callback back makes it open the file again, which empties it, or print errors to stderr where no log
was requested (measured: 9.19, 9.28). So our callback, once installed, stays, and writes on to the environment's
destination in cuDNN's own form.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import os
import re
import threading
import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from ..errors import REASON_LINE, GraphError
from ..frozen import FrozenValue
from ..generated.enums import Severity
from ..printable import printable
from ..system.interruption import CALLED_BY_C, reraise_interruption
from ..system.untrusted_files import parse_json
from .callbacks import LogCallback, get_stored_exceptions
from .libcudnn import Library, library

if TYPE_CHECKING:
    import logging

__all__ = ["Log", "LogRecord", "capture_log", "get_log_hub"]

# As text: compiled when a log is first read.
_HEADER_PATTERN = r"CuDNN \(v(?P<version>\d+)(?: (?P<build>\d+))?\) function (?P<function>\w+)\(\) called:"
_TIME_PATTERN = r"(?m)^Time: (?P<time>\S+)"
_JSON_LINE_PATTERN = r"(?m)^\s*(?P<key>\w+): type=json; val=(?P<json>.*?);?$"

# CRITICAL, ERROR, WARNING and INFO of logging, which a program imports that has a logger.
_LOGGING_LEVELS = {Severity.FATAL: 50, Severity.ERROR: 40, Severity.WARNING: 30, Severity.INFO: 20}


class LogRecord(FrozenValue):
    """One message of cuDNN's log, verbatim in ``text``.

    ``thread`` and ``process`` are the system's ids; ``json()`` and ``reasons()`` read the parts that have structure.
    """

    severity: Severity
    text: str
    thread: int
    process: int

    @property
    def function(self) -> str | None:
        """The name of the cuDNN function that logged the message, e.g. ``cudnnBackendFinalize``."""
        match = re.search(_HEADER_PATTERN, self.text)
        return match["function"] if match else None

    @property
    def version(self) -> int | None:
        """cuDNN's version number, 92800 for 9.28.0."""
        match = re.search(_HEADER_PATTERN, self.text)
        return int(match["version"]) if match else None

    @property
    def time(self) -> str | None:
        """The ISO time of the message, as cuDNN wrote it."""
        match = re.search(_TIME_PATTERN, self.text)
        return match["time"] if match else None

    @property
    def body(self) -> str:
        """The message without its first line (function) and its last two (time and place)."""
        return "\n".join(self.text.splitlines()[1:-2])

    def json(self) -> list[tuple[str, Any]]:
        """Return the JSON values in the message with their keys, such as ``("apiLog", {...})``."""
        found = []
        for match in re.finditer(_JSON_LINE_PATTERN, self.text):
            with contextlib.suppress(GraphError):
                found.append((match["key"], parse_json(match["json"], "a log", code="log-graph")))
        return found

    def reasons(self) -> list[tuple[str, str]]:
        """Return the (status name, reason) lines in the message, in cuDNN's order."""
        return [(match["status"], match["text"]) for match in re.finditer(REASON_LINE, self.text)]


@dataclass(slots=True)
class Log:
    """cuDNN's log messages during a ``with`` block, as a growing list of records."""

    records: list[LogRecord] = field(default_factory=list)

    @property
    def text(self) -> str:
        """All messages, verbatim, one after the other."""
        return "\n".join(record.text for record in self.records)

    def json(self, key: str | None = None) -> list[Any]:
        """Return the JSON values that cuDNN logged in the block: all, or only those with this key."""
        return [value for record in self.records for name, value in record.json() if key in (None, name)]

    def operation_graphs(self) -> list[dict[str, Any]]:
        """Return each operation graph that was finalized in the block, as cuDNN describes it."""
        return [
            value["operationGraph"]
            for record in self.records
            if record.function == "cudnnBackendFinalizeGraphVisualize"
            for key, value in record.json()
            if key == "apiLog"
        ]


@dataclass(frozen=True, slots=True, weakref_slot=True, eq=False)
class _LogCapture:
    log: Log
    level: Severity
    thread: int | None
    logger: logging.Logger | None

    def store_if_wanted(self, record: LogRecord) -> bool:
        """Store a record if its severity and thread are wanted; return whether it must go to a logger, too."""
        is_wanted = record.severity <= self.level and self.thread in (None, record.thread)
        if is_wanted:
            self.log.records.append(record)
        return is_wanted and self.logger is not None

    def forward_to_logger(self, record: LogRecord) -> None:
        if self.logger is not None:
            self.logger.log(_LOGGING_LEVELS[record.severity], "%s", record.text)


class _Listener(FrozenValue):
    """The destination of cuDNN's messages other than captures: a Python function, a C function, or cuDNN's own log."""

    mask: int = 0
    user_data: int | None = None
    address: int | None = None
    function: Callable[[int, int | None, Any, int], object] | None = None


class _LogCallbackDispatcher:
    """The one log callback of the process and its receivers: captures, and the function the caller has set.

    cuDNN may be in it in any thread at any time, so it is made once and never freed. Once installed it stays: taking
    it back would empty the environment's log file, or, where no log was requested, leave cuDNN printing its errors to
    stderr. Only a callback of somebody else gets its place back.
    """

    def __init__(self, lib: Library) -> None:
        self._library = lib
        # What these make cuDNN say may raise, and must not leave the work half done.
        self._get_callback, self._set_callback = (
            lib.get_function_without_errcheck("cudnnGetCallback"),
            lib.get_function_without_errcheck("cudnnSetCallback"),
        )
        self._lock = threading.RLock()
        # Weakly: one whose block was left by an exception before it could be removed is gone, too.
        self._references: tuple[weakref.ref[_LogCapture], ...] = ()
        self._callback = get_stored_exceptions().make_log_callback(self._receive)
        self._address = ctypes.cast(self._callback, ctypes.c_void_p).value  # `self` keeps the callback
        self._former = _Listener()
        atexit.register(self._remove_callback)
        # A child must find the lock free, whatever another thread did when it was forked.
        os.register_at_fork(
            before=self._lock.acquire, after_in_parent=self._lock.release, after_in_child=self._lock.release
        )

    @property
    def _captures(self) -> tuple[_LogCapture, ...]:
        return tuple(capture for held in self._references if (capture := held()) is not None)

    def set_listener(self, mask: int, user_data: int | None, function: Callable[..., object] | None) -> None:
        """Set the function that receives messages of the severities in `mask`; None removes it but keeps captures."""
        with self._lock:
            if function is None:
                self._set_callback_and_active_flag(mask, user_data, LogCallback())
                self._former = self._query_listener()
            else:
                self._former = _Listener(mask, user_data, None, function)
            if function is not None or self._captures:
                self._install_callback()
        self._library.raise_stored_exception()

    def add_capture(self, capture: _LogCapture) -> None:
        with self._lock:
            listener = self._query_listener()
            if listener.address != self._address:
                self._former = listener
            self._references = (*map(weakref.ref, self._captures), weakref.ref(capture))
            self._install_callback()
        self._library.raise_stored_exception()

    def remove_capture(self, capture: _LogCapture) -> None:
        with self._lock:
            self._references = tuple(weakref.ref(item) for item in self._captures if item is not capture)
            if self._query_listener().address == self._address:  # no one else has taken over since
                former = self._former
                if former.address and not self._captures:
                    self._set_callback_and_active_flag(former.mask, former.user_data, LogCallback(former.address))
                else:
                    self._install_callback()
        self._library.raise_stored_exception()

    def _query_listener(self) -> _Listener:
        """Return the current receiver of cuDNN's messages."""
        mask, user_data, function = ctypes.c_uint(), ctypes.c_void_p(), ctypes.c_void_p()
        self._get_callback(ctypes.byref(mask), ctypes.byref(user_data), ctypes.byref(function))
        there: Any = LogCallback(function.value) if function.value else None
        return _Listener(mask.value, user_data.value, function.value, there)

    def _install_callback(self) -> None:
        mask = self._former.mask
        for capture in self._captures:
            mask |= sum(1 << level for level in range(1, capture.level + 1))
        self._set_callback_and_active_flag(mask, self._former.user_data, self._callback)

    def _set_callback_and_active_flag(self, mask: int, user_data: int | None, callback: Any) -> None:
        is_ours = callback is self._callback and mask != 0
        if is_ours:
            self._library.set_callback_active(True)
        self._set_callback(ctypes.c_uint(mask), ctypes.c_void_p(user_data), callback)
        if not is_ours:
            self._library.set_callback_active(False)

    def _remove_callback(self) -> None:
        """Remove the callback when the interpreter exits."""
        with contextlib.suppress(Exception):
            former = self._former
            environment = former.function is None and former.mask
            if not environment and self._query_listener().address == self._address:
                self._set_callback_and_active_flag(former.mask, former.user_data, LogCallback(former.address or 0))

    def _receive(self, severity: int, user_data: int | None, info: Any, message: int) -> None:
        """Receive a message from cuDNN. Exceptions are stored and raised again when the C function has returned."""
        former, captures = self._former, self._captures
        wanted = former.mask & 1 << severity
        calls: list[Callable[[], object]] = []
        if captures or (wanted and former.function is None):
            debug = info.contents
            record = LogRecord(Severity(severity), _read_nul_terminated_lines(message), debug.tid, debug.pid)
            if wanted and former.function is None:
                calls.append(partial(_write_to_cudnn_log_destination, record))
            calls += [
                partial(capture.forward_to_logger, record) for capture in captures if capture.store_if_wanted(record)
            ]
        if wanted and former.function is not None:
            calls.append(partial(former.function, severity, user_data, info, message))
        if calls:
            with contextlib.ExitStack() as stack:  # all are called, also where one raises
                for call in reversed(calls):
                    stack.callback(call)


CALLED_BY_C.add(_LogCallbackDispatcher._receive.__code__)


def _read_nul_terminated_lines(address: int) -> str:
    """Return cuDNN's message: NUL-terminated lines up to an empty one, valid only during the call."""
    lines = []
    while line := ctypes.string_at(address):
        lines.append(line.decode("utf-8", "replace"))
        address += len(line) + 1
    return "\n".join(lines)


def _write_to_cudnn_log_destination(record: LogRecord) -> None:
    """Write a message to the destination of ``CUDNN_LOGDEST_DBG`` (stderr by default), in cuDNN's own form."""
    destination = os.environ.get("CUDNN_LOGDEST_DBG") or "stderr"
    if destination in _unwritable_destinations:
        return
    letter = record.severity.name[0]
    first, *rest = record.text.splitlines() or [""]
    text = "\n".join([f"\n{letter}! {first}", *(f"{letter.lower()}! {line}" for line in rest), "\n"])
    try:
        if destination in ("stdout", "stderr"):
            os.write(1 if destination == "stdout" else 2, f"{text}\n".encode())
        else:
            with open(destination.replace("%i", str(os.getpid())), "a", encoding="utf-8") as stream:
                stream.write(text + "\n")
    except OSError as error:
        reraise_interruption(error)
        _unwritable_destinations.add(destination)
        import logging

        logging.getLogger(__name__).warning(
            "CUDNN_LOGDEST_DBG=%s cannot be written (%s): cuDNN's log is not written there any more",
            printable(destination),
            error.strerror,
        )


_unwritable_destinations: set[str] = (
    set()
)  # destinations that failed once: the warning is given once, not for each message


_hubs: dict[int, _LogCallbackDispatcher] = {}
_hubs_lock = threading.Lock()


def get_log_hub(lib: Library) -> _LogCallbackDispatcher:
    """Return the log callback dispatcher of a library; there is only one."""
    hub = _hubs.get(id(lib))
    if hub is None:
        with _hubs_lock:
            hub = _hubs.get(id(lib))
            if hub is None:
                hub = _hubs[id(lib)] = _LogCallbackDispatcher(lib)
    return hub


def capture_log(
    level: Severity = Severity.INFO,
    *,
    this_thread_only: bool = False,
    logger: logging.Logger | str | None = None,
    on: Library | None = None,
) -> AbstractContextManager[Log]:
    """Capture cuDNN's log during a block.

    C: ``cudnnSetCallback``. The environment is not touched: what ``CUDNN_LOGLEVEL_DBG`` and ``CUDNN_LOGDEST_DBG``
    request goes on, a callback somebody else installed still hears everything, and blocks may nest.

    Parameters
    ----------
    level
        The least severe messages wanted: ``Severity.ERROR``, ``WARNING`` or ``INFO``.
    this_thread_only
        Leave out what other threads caused.
    logger
        A ``logging`` logger (or its name) every message is forwarded to as well. What it raises is raised by the call
        whose message it was given, when cuDNN has returned.

    Yields
    ------
    Log
        Grows while the block runs and stays readable after it.
    """
    return _LogCaptureContext(level, this_thread_only, logger, on)


class _LogCaptureContext(AbstractContextManager[Log]):
    """Context manager that captures cuDNN's log during a block."""

    def __init__(
        self, level: Severity, this_thread_only: bool, logger: logging.Logger | str | None, on: Library | None
    ) -> None:
        self._arguments = level, this_thread_only, logger, on
        self._captures: list[tuple[_LogCallbackDispatcher, _LogCapture]] = []

    def __enter__(self) -> Log:
        level, this_thread_only, logger, on = self._arguments
        hub = get_log_hub(on or library())
        if isinstance(logger, str):
            import logging

            logger = logging.getLogger(logger)
        capture = _LogCapture(Log(), level, threading.get_native_id() if this_thread_only else None, logger)
        self._captures.append((hub, capture))
        hub.add_capture(capture)
        return capture.log

    def __exit__(self, *_exception: object) -> None:
        hub, capture = self._captures.pop()
        hub.remove_capture(capture)
