"""Raise exceptions at random points inside running calls: ``python -m tests.support.interruptions SEED COUNT``.

An interruption is an exception that a signal handler, a trace or profile function, another thread or a user's callback
raises during a call. It must reach the caller as the same object, and leave no changed state. An interruption that was
not raised before the call ended is not counted.
"""

from __future__ import annotations

import ctypes
import inspect
import itertools
import json
import linecache
import logging
import random
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any

from cudnn_backend_py import (
    Attr,
    CudnnBackendError,
    DataType,
    Descriptor,
    DescriptorType,
    Graph,
    GraphBuilder,
    OperationGraph,
    build_plan,
    capi,
    capture_log,
    explain,
    library,
    open_target,
)
from cudnn_backend_py.graph.attention import sdpa_forward
from cudnn_backend_py.native.callbacks import get_stored_exceptions

__all__ = ["INTERRUPTION_METHODS", "WORK_FUNCTIONS", "Interruption", "TimeLimitException", "interrupt_randomly"]

WorkFunction = Callable[[], object]


class TimeLimitException(Exception):
    """A time limit of a program, raised as an ``Exception``."""


class TimeLimitBaseException(BaseException):
    """A time limit that ``except Exception`` does not catch."""


# Not ValueError: Python's logging handles it as an error of its own.
EXCEPTION_TYPES: tuple[type[BaseException], ...] = (
    TimeLimitException,
    TimeLimitBaseException,
    KeyboardInterrupt,
    TimeoutError,
    MemoryError,
)
TEST_EXCEPTION_TYPES: tuple[type[BaseException], ...] = (TimeLimitException, TimeLimitBaseException, KeyboardInterrupt)


def make_matmul_graph() -> Graph:
    g = GraphBuilder("product", io_type=DataType.HALF)
    g.matmul(g.tensor("a", (2, 64, 64)), g.tensor("b", (2, 64, 64)), virtual=False, name="c")
    return g.graph()


class CustomIndexInteger:
    """An integer class with its own ``__index__``, which runs Python code when it is read."""

    def __init__(self, value: int) -> None:
        self.value = value

    def __index__(self) -> int:
        return self.value


class CustomIndexIntegerSequence:
    """A sequence class with its own ``tolist``, which returns `CustomIndexInteger` items."""

    ndim = 1

    def __init__(self, *values: int) -> None:
        self.values = [CustomIndexInteger(value) for value in values]

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, index: int) -> CustomIndexInteger:
        return self.values[index]

    def tolist(self) -> list[Any]:
        return list(self.values)


def _make_tensor_descriptor(uid: Any = 1, dims: Any = (2, 8, 64), strides: Any = (512, 64, 1)) -> Descriptor:
    made = Descriptor(DescriptorType.TENSOR).set(Attr.TENSOR_DATA_TYPE, DataType.HALF)
    made.set(Attr.TENSOR_UNIQUE_ID, uid).set(Attr.TENSOR_BYTE_ALIGNMENT, 16)
    return made.set(Attr.TENSOR_DIMENSIONS, dims).set(Attr.TENSOR_STRIDES, strides).finalize()


def create_and_release_descriptors() -> object:
    """Create, read and release descriptors, some of them refused."""
    for uid in range(1, 9):
        with _make_tensor_descriptor(uid) as made:
            assert made.get(Attr.TENSOR_DIMENSIONS) == (2, 8, 64)
        with suppress(CudnnBackendError):
            Descriptor(DescriptorType.TENSOR).finalize()
    return None


def set_attributes_from_custom_number_types() -> object:
    """Set attributes from values of classes with their own conversion methods."""
    for uid in range(1, 9):
        made = _make_tensor_descriptor(
            CustomIndexInteger(uid), CustomIndexIntegerSequence(2, 8, 64), CustomIndexIntegerSequence(512, 64, 1)
        )
        assert made.get(Attr.TENSOR_UNIQUE_ID) == uid
    return None


def call_c_functions() -> object:
    """Call functions of cuDNN's C API to create, set, finalize and destroy a descriptor, eight times."""
    for _ in range(8):
        made = capi.cudnnBackendCreateDescriptor(DescriptorType.MATMUL)
        attribute = Attr.MATMUL_COMP_TYPE
        capi.cudnnBackendSetAttribute(
            made, attribute, made._get_attribute_facts(attribute).types[0], 1, [DataType.FLOAT]
        )
        capi.cudnnBackendFinalize(made)
        capi.cudnnGetLastErrorString()
        capi.cudnnBackendDestroyDescriptor(made)
    return None


def capture_query_log() -> object:
    """Capture the log of a heuristics query."""
    with capture_log():
        return len(OperationGraph(make_matmul_graph(), open_target("sm90")).heuristics("A").configs)


def query_refusal_reasons() -> object:
    """Query the reasons of a refusal, as `explain` does."""
    found = OperationGraph(make_matmul_graph(), open_target("sm89")).heuristics("A", reasons=True)
    return found.candidates, len(found.configs), found.answer.text


def forward_log_to_python_logger() -> object:
    """Forward cuDNN's log to a logger."""
    with capture_log(logger="tests.interruptions"):
        return _make_tensor_descriptor(7).get(Attr.TENSOR_UNIQUE_ID)


def explain_refused_graph() -> object:
    """Explain a refused graph in this process."""
    graph = sdpa_forward(batch=2, heads=4, seq_q=512, head_dim=20, causal=True, implementation="composite")
    return explain(graph, "sm89")


def explain_supported_graph() -> object:
    """Explain a supported graph in this process."""
    return explain(make_matmul_graph(), "sm90")


def build_one_plan() -> object:
    """Build a plan and read its workspace size."""
    config = OperationGraph(make_matmul_graph(), open_target("sm90")).heuristics("A").configs[0]
    plan = build_plan(config)
    try:
        return plan.workspace_bytes
    finally:
        plan.close()


def build_plan_with_log() -> object:
    """Build a plan while the log is captured."""
    with capture_log():
        return build_one_plan()


WORK_FUNCTIONS: dict[str, WorkFunction] = {
    work.__name__: work
    for work in (
        create_and_release_descriptors,
        set_attributes_from_custom_number_types,
        call_c_functions,
        capture_query_log,
        query_refusal_reasons,
        forward_log_to_python_logger,
        explain_refused_graph,
        explain_supported_graph,
        build_one_plan,
        build_plan_with_log,
    )
}
SLOW_WORK_NAMES = ("explain_refused_graph", "build_one_plan", "build_plan_with_log")  # too slow with a trace function


class Interruption:
    """One exception to raise, and the place where it was raised."""

    def __init__(self, kind: type[BaseException]) -> None:
        self.kind = kind
        self.fired: BaseException | None = None
        self.where = ""

    def raise_once(self, frame: FrameType | None = None) -> None:
        """Raise the exception, unless it was raised before."""
        if self.fired is None:
            self.fired = self.kind("shot")
            names = []
            while frame is not None and len(names) < 12:
                names.append(f"{frame.f_code.co_qualname}:{frame.f_lineno}")
                frame = frame.f_back
            self.where = " < ".join(names)
            raise self.fired


@contextmanager
def interrupt_by_signal(
    interruption: Interruption, length_s: float, _events: int, draw: random.Random
) -> Iterator[None]:
    """Raise the exception from a timer signal."""
    signal.signal(signal.SIGALRM, lambda _number, frame: interruption.raise_once(frame))
    signal.setitimer(signal.ITIMER_REAL, max(1e-6, length_s * draw.random()))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def _is_leaving_block(frame: FrameType, event: str, given: object) -> bool:
    """Return whether Python is leaving a ``with`` block or generator, where a signal handler cannot raise."""
    if event == "c_call":
        return getattr(given, "__name__", "") in ("__exit__", "release")
    if (
        event == "return" and frame.f_code.co_flags & inspect.CO_GENERATOR
    ):  # the generator may be in the middle of its deletion
        return True
    line = linecache.getline(frame.f_code.co_filename, frame.f_lineno)
    return event in ("line", "call") and line.lstrip().startswith(("with ", "def __exit__"))


def _make_hook_raising_at_event(interruption: Interruption, number: int) -> Callable[..., Any]:
    left = itertools.count(number, -1)

    def raise_at_chosen_event(frame: FrameType, event: str, given: object) -> Any:
        if next(left) <= 0 and interruption.fired is None and not _is_leaving_block(frame, event, given):
            interruption.raise_once(frame)
        return raise_at_chosen_event

    return raise_at_chosen_event


@contextmanager
def interrupt_by_trace(
    interruption: Interruption, _length_s: float, events: int, draw: random.Random
) -> Iterator[None]:
    """Raise the exception at a random line."""
    sys.settrace(_make_hook_raising_at_event(interruption, draw.randrange(events)))
    try:
        yield
    finally:
        sys.settrace(None)


@contextmanager
def interrupt_by_profile(
    interruption: Interruption, _length_s: float, events: int, draw: random.Random
) -> Iterator[None]:
    """Raise the exception at the start or end of a random function of Python or C."""
    sys.setprofile(_make_hook_raising_at_event(interruption, draw.randrange(events // 2 + 1)))
    try:
        yield
    finally:
        sys.setprofile(None)


@contextmanager
def interrupt_by_callback(
    interruption: Interruption, _length_s: float, _events: int, draw: random.Random
) -> Iterator[None]:
    """Raise the exception in the user's log callback, at a random message."""
    hook = _make_hook_raising_at_event(interruption, draw.randrange(40))
    capi.cudnnSetCallback(0b1110, lambda *_: hook(sys._getframe(), "", None))
    try:
        yield
    finally:
        interruption.fired = interruption.fired or TimeLimitException()  # raise no further exception
        capi.cudnnSetCallback(0, None)


@contextmanager
def interrupt_by_logger(
    interruption: Interruption, _length_s: float, _events: int, draw: random.Random
) -> Iterator[None]:
    """Raise the exception in the user's logger, at a random message."""
    hook = _make_hook_raising_at_event(interruption, draw.randrange(12))

    class RaisingFilter(logging.Filter):
        def filter(self, record: logging.LogRecord) -> bool:
            hook(sys._getframe(), "", record)
            return True

    raising, logger = RaisingFilter(), logging.getLogger("tests.interruptions")
    logger.setLevel(logging.INFO)
    logger.propagate = False
    logger.addHandler(logging.NullHandler())
    logger.addFilter(raising)
    try:
        yield
    finally:
        logger.removeFilter(raising)


InterruptionMethod = Callable[[Interruption, float, int, random.Random], Any]
INTERRUPTION_METHODS: dict[str, InterruptionMethod] = {
    "signal": interrupt_by_signal,
    "trace": interrupt_by_trace,
    "profile": interrupt_by_profile,
    "callback": interrupt_by_callback,
    "logger": interrupt_by_logger,
}


def _measure_duration_and_trace_events(work: WorkFunction) -> tuple[Any, float, int]:
    """Run the work; return its result, its duration, and the number of trace events."""
    work()
    began = time.perf_counter()
    answer = work()
    length = time.perf_counter() - began
    count = itertools.count()

    def count_event(*_: object) -> Any:
        next(count)
        return count_event

    events = 0
    if work.__name__ not in SLOW_WORK_NAMES:
        sys.settrace(count_event)
        try:
            work()
        finally:
            sys.settrace(None)
        events = next(count)
    return answer, length, events


def _interrupt_thread(work: WorkFunction, length_s: float, draw: random.Random) -> tuple[bool, str]:
    """Raise the exception in a thread from another thread; return whether the work was running, and the outcome."""
    ended: list[str] = []
    begun = threading.Event()

    def run_work() -> None:
        is_late = False
        try:
            begun.set()
            work()
            library().raise_stored_exception()  # an exception stored while C code ran
            is_late = True
            while True:  # wait for the exception, which is now late
                time.sleep(0)
        except TimeLimitException:
            ended.append("late" if is_late else "arrived")
        except BaseException as error:
            ended.append("late" if is_late else f"wrong type: {type(error).__name__}: {error}"[:300])

    thread = threading.Thread(target=run_work)
    thread.start()
    begun.wait()
    time.sleep(length_s * draw.random())
    number = ctypes.c_ulong(thread.ident or 0)
    ctypes.pythonapi.PyThreadState_SetAsyncExc(number, ctypes.py_object(TimeLimitException))
    thread.join(20)
    if thread.is_alive():
        while thread.is_alive():  # the exception was lost: end the endless loop
            ctypes.pythonapi.PyThreadState_SetAsyncExc(number, ctypes.py_object(SystemExit))
            thread.join(0.1)
        return True, "lost"
    return ended != ["late"], ended[0]


def _find_leftover_state() -> str:
    """Return a description of wrong state after an interruption, such as a stored exception, or an empty text."""
    if get_stored_exceptions().pending_count.value:
        return "an exception still waits"
    with capture_log() as log:
        Descriptor(DescriptorType.MATMUL).close()
    said = [record.function for record in log.records]
    if "cudnnBackendCreateDescriptor" not in said or "cudnnBackendDestroyDescriptor" not in said:
        return f"a capture hears {said}"
    return ""


def interrupt_randomly(
    seed: int, count: int, methods: tuple[str, ...] = (), works: tuple[str, ...] = ()
) -> dict[str, Any]:
    """Interrupt calls at random, and return counts and the text of each failure."""
    draw = random.Random(seed)
    counts: Counter[str] = Counter()
    failures: list[str] = []
    unraisable: list[str] = []
    pythons: list[object] = []  # exceptions lost in weak reference callbacks of Python's own library

    def record_unraisable(one: Any) -> None:
        is_pythons = getattr(one.object, "__module__", "") in ("_weakrefset", "weakref")
        (pythons if is_pythons else unraisable).append(f"{one.exc_type.__name__} in {one.object!r}")

    sys.unraisablehook = record_unraisable
    measured: dict[str, tuple[Any, float, int]] = {}
    for _ in range(count):
        method = draw.choice(methods or (*INTERRUPTION_METHODS, "thread"))
        name = "forward_log_to_python_logger" if method == "logger" else draw.choice(works or tuple(WORK_FUNCTIONS))
        if method in ("trace", "profile") and name in SLOW_WORK_NAMES:
            method = "signal"
        if name not in measured:
            measured[name] = _measure_duration_and_trace_events(WORK_FUNCTIONS[name])
        want, length_s, events = measured[name]
        counts["aimed"] += 1
        unraisable.clear()
        if method == "thread":
            in_time, became = _interrupt_thread(WORK_FUNCTIONS[name], length_s, draw)
            where = ""
        else:
            interruption = Interruption(draw.choice(EXCEPTION_TYPES if method != "profile" else TEST_EXCEPTION_TYPES))
            caught: BaseException | None = None
            answer: object = None
            in_time = False
            try:
                with INTERRUPTION_METHODS[method](interruption, length_s, events, draw):
                    answer = WORK_FUNCTIONS[name]()
                    in_time = interruption.fired is not None
                library().raise_stored_exception()  # an exception stored while C code ran
            except BaseException as error:
                caught, in_time = error, True
            where = f"{interruption.kind.__name__} in {interruption.where}"
            if caught is not None and caught is interruption.fired:
                became = "arrived"
            elif caught is not None:
                became = f"wrong type: {type(caught).__name__}: {caught}"[:300]
            elif in_time:
                became = "lost" if answer == want else f"lost, and another answer: {answer!r}"[:400]
            else:
                became = "not fired" if answer == want else "another answer, not fired"
        if pythons:
            became, in_time = "lost by Python's own weak references", False
            counts[became] += 1
            pythons.clear()
        if in_time:
            counts["fired"] += 1
            counts[f"fired by {method}"] += 1
            counts[f"fired at {name}"] += 1
            counts[became.partition(":")[0]] += 1
        wrong = became not in ("arrived", "late", "not fired", "lost by Python's own weak references")
        if wrong or unraisable:
            failures.append(f"{method} at {name}: {became}; {unraisable}; {where}")
        while logging._lock._is_owned():  # type: ignore[attr-defined]  # Python's own: taken before its ``try``
            logging._lock.release()  # type: ignore[attr-defined]
            counts["locks that Python's logging kept"] += 1
        if out_of_order := _find_leftover_state():
            counts["out of order"] += 1
            failures.append(f"{method} at {name}: {became}; then {out_of_order}; {where}")
    return {"counts": dict(counts), "failures": failures}


def main() -> None:
    """Interrupt calls with the seed and count of the command line, and print the result as JSON."""
    seed, count, *rest = sys.argv[1:]
    methods = tuple(rest[0].split(",")) if rest and rest[0] else ()
    print(
        json.dumps(
            interrupt_randomly(int(seed), int(count), methods, tuple(rest[1].split(",")) if len(rest) > 1 else ())
        )
    )


if __name__ == "__main__":
    main()
