"""Exceptions raised while C runs: the caller gets each once and unchanged, and can continue.

Random ones are in ``tests/torture/interruptions.py``.
"""

from __future__ import annotations

import ctypes
import gc
import logging
import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from cudnn_backend_py import (
    Attr,
    Descriptor,
    DescriptorType,
    OperationGraph,
    UsageError,
    build_plan,
    capi,
    capture_log,
    library,
    open_target,
)
from cudnn_backend_py.graph.attention import sdpa_forward
from cudnn_backend_py.graph.guard import call_and_report_errors, collect_error_reports
from cudnn_backend_py.native.callbacks import get_stored_exceptions
from cudnn_backend_py.native.fast_call import HandleState, Launch
from cudnn_backend_py.native.launch import Launcher
from cudnn_backend_py.native.libcudnn import DescriptorPointer, HandlePointer
from cudnn_backend_py.native.log import _read_nul_terminated_lines
from tests.support.child import run_code


class DeadlineError(Exception):
    """An exception that a program raises when its time limit has passed."""


class SignalSender:
    """Sends this process a signal once; the signal's handler raises an exception."""

    def __init__(self, error: BaseException) -> None:
        self.error, self.is_sent = error, False

    def __call__(self, *_: object) -> Any:
        """Send the signal to this process; its handler runs at once."""
        if not self.is_sent:
            self.is_sent = True
            signal.raise_signal(signal.SIGUSR1)


@pytest.fixture
def install_raising_handler() -> Iterator[Callable[[BaseException], SignalSender]]:
    before = signal.getsignal(signal.SIGUSR1)

    def install_signal_handler(error: BaseException) -> SignalSender:
        def raise_in_signal_handler(_number: int, _frame: object) -> None:
            raise error

        signal.signal(signal.SIGUSR1, raise_in_signal_handler)
        return SignalSender(error)

    yield install_signal_handler
    signal.signal(signal.SIGUSR1, before)


ERRORS = [
    DeadlineError("mine"),
    KeyboardInterrupt(),
    SystemExit(3),
    TimeoutError("mine"),
    ValueError("mine"),
    RecursionError("mine"),
    MemoryError(),
]


@pytest.fixture(params=ERRORS, ids=lambda error: type(error).__name__)
def error(request: pytest.FixtureRequest) -> BaseException:
    given: BaseException = request.param
    given.__traceback__ = given.__context__ = None
    return given


@pytest.fixture
def call_on_message() -> Iterator[Callable[[Callable[[], object], str], None]]:
    """Yield a function that registers another function to be called when a log message has a given word."""

    def install_log_callback(function: Callable[[], object], word: str) -> None:
        gc.collect()  # descriptors of other tests end now, unnoticed

        def call_function_on_word(_severity: int, _user_data: int | None, _info: object, message: int) -> None:
            if word in _read_nul_terminated_lines(message):
                function()

        capi.cudnnSetCallback(0b1110, call_function_on_word)

    yield install_log_callback
    capi.cudnnSetCallback(0, None)
    assert get_stored_exceptions().pending_count.value == 0


class SingleRaiseCallback:
    """A callback that raises its exception only at the first call."""

    def __init__(self, error: BaseException) -> None:
        self.error, self.times = error, 0

    def __call__(self) -> None:
        self.times += 1
        if self.times == 1:
            raise self.error


def test_an_exception_in_a_callback_is_raised_once_unchanged(error: BaseException, call_on_message: Any) -> None:
    raising = SingleRaiseCallback(error)
    call_on_message(raising, "CUDNN_BACKEND_MATMUL_DESCRIPTOR")
    with pytest.raises(type(error)) as caught:
        Descriptor(DescriptorType.MATMUL)
    assert caught.value is error
    assert "__call__" in [entry.name for entry in caught.traceback]
    assert raising.times == 1
    Descriptor(DescriptorType.REDUCTION).close()


def test_a_signal_handlers_exception_in_a_callback_is_raised(
    error: BaseException, call_on_message: Any, install_raising_handler: Any
) -> None:
    call_on_message(install_raising_handler(error), "CUDNN_BACKEND_MATMUL_DESCRIPTOR")
    with pytest.raises(type(error)) as caught:
        Descriptor(DescriptorType.MATMUL)
    assert caught.value is error


def test_a_keyboard_interrupt_in_a_logger_is_raised() -> None:
    class Handler(logging.Handler):
        def emit(self, _record: logging.LogRecord) -> None:
            raise KeyboardInterrupt

    logger = logging.getLogger("interrupting")
    logger.addHandler(Handler())
    logger.setLevel(1)
    logger.propagate = False
    with pytest.raises(KeyboardInterrupt), capture_log(logger=logger):
        Descriptor(DescriptorType.MATMUL)


def test_an_exception_in_a_callback_is_raised_instead_of_the_status_error(call_on_message: Any) -> None:
    error = DeadlineError("mine")
    call_on_message(SingleRaiseCallback(error), "cudnnBackendFinalize")
    with pytest.raises(DeadlineError) as caught:
        Descriptor(DescriptorType.TENSOR).finalize()  # which cuDNN refuses
    assert caught.value is error


def test_callback_exceptions_are_raised_at_plan_build_and_launch(call_on_message: Any) -> None:
    graph = sdpa_forward(batch=1, heads=2, seq_q=128, head_dim=64, causal=True)
    config = OperationGraph(graph, open_target("sm90")).heuristics("A").configs[0]
    error = DeadlineError("mine")
    call_on_message(SingleRaiseCallback(error), "cudnnBackendFinalize")
    with pytest.raises(DeadlineError) as caught:
        build_plan(config)
    assert caught.value is error
    capi.cudnnSetCallback(0, None)
    plan = build_plan(config)
    launcher = Launcher(plan.descriptor, [tensor.uid for tensor in plan.graph.variant_pack_tensors])
    row = launcher.row(*[4096] * len(launcher.uids))
    pack = launcher.pack(row)
    launch = Launch(library(), HandleState(0, 1), 1, plan.descriptor.pointer, may_need_context_switch=False)
    launch._execute = _EXECUTE(make_cudnn_log_a_matmul)
    for word, call in (("CUDNN_BACKEND_MATMUL", launch.bind(pack)), ("SetAttribute", lambda: launcher.pack(row))):
        call_on_message(SingleRaiseCallback(error), word)
        with pytest.raises(DeadlineError) as caught:
            call()
        assert caught.value is error
        capi.cudnnSetCallback(0, None)


_EXECUTE = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)


def make_cudnn_log_a_matmul(*_: object) -> int:
    """Make cuDNN log a message about a matmul, as a launch with a handle would."""
    made = DescriptorPointer()
    create, destroy = (
        library().get_function_without_errcheck(f"cudnnBackend{verb}Descriptor") for verb in ("Create", "Destroy")
    )
    create(int(DescriptorType.MATMUL), ctypes.byref(made))
    destroy(made)
    return 0


def test_callback_exceptions_are_raised_at_descriptor_close(call_on_message: Any) -> None:
    made = Descriptor(DescriptorType.MATMUL)
    call_on_message(SingleRaiseCallback(error := DeadlineError("mine")), "cudnnBackendDestroyDescriptor")
    with pytest.raises(DeadlineError) as caught:
        made.close()
    assert caught.value is error
    assert made.closed


def test_each_thread_gets_the_exception_of_its_own_callback(call_on_message: Any) -> None:
    caught: dict[int, list[str]] = {}
    here, start = threading.local(), threading.Barrier(4)

    def raise_once_if_requested_by_this_thread() -> None:
        if vars(here).pop("is_armed", False):
            raise DeadlineError(str(threading.get_ident()))

    call_on_message(raise_once_if_requested_by_this_thread, "cudnnBackendCreateDescriptor")

    def create_descriptors() -> None:
        start.wait()
        for _ in range(20):
            here.is_armed = True
            try:
                Descriptor(DescriptorType.MATMUL)
            except DeadlineError as error:
                caught.setdefault(threading.get_ident(), []).append(str(error))
        start.wait()

    threads = [threading.Thread(target=create_descriptors) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert caught == {thread.ident: [str(thread.ident)] * 20 for thread in threads}


def test_callback_exceptions_are_raised_at_garbage_collection(call_on_message: Any) -> None:
    error = DeadlineError("mine")
    left = [Descriptor(DescriptorType.MATMUL)]
    call_on_message(SingleRaiseCallback(error), "cudnnBackendDestroyDescriptor")
    reached: list[int] = []

    def drop_descriptor() -> None:
        left.clear()
        for _ in range(100):
            pass
        reached.append(1)

    with pytest.raises(DeadlineError) as caught:
        drop_descriptor()
    assert caught.value is error
    assert not reached


class ValueWithConversionCallback:
    """A value that calls a function when it is converted to an integer or to a list."""

    ndim = 1

    def __init__(self, call: Callable[[], object]) -> None:
        self.call = call

    def __index__(self) -> int:
        self.call()
        return 1

    def __len__(self) -> int:
        self.call()
        return 1

    def tolist(self) -> list[int]:
        self.call()
        return [1]


@pytest.mark.parametrize("attribute", [Attr.TENSOR_UNIQUE_ID, Attr.TENSOR_DIMENSIONS])
def test_an_exception_of_a_signal_handler_in_a_conversion_is_raised(
    error: BaseException, install_raising_handler: Any, attribute: Attr
) -> None:
    sender = install_raising_handler(error)
    with pytest.raises(type(error)) as caught, Descriptor(DescriptorType.TENSOR) as made:
        made.set(attribute, ValueWithConversionCallback(sender))
    assert caught.value is error


def test_an_exception_in_a_value_conversion_is_a_usage_error(error: BaseException) -> None:
    made = Descriptor(DescriptorType.TENSOR)
    expected = UsageError if isinstance(error, Exception) else type(error)
    with pytest.raises(expected) as caught:
        made.set(Attr.TENSOR_UNIQUE_ID, ValueWithConversionCallback(SingleRaiseCallback(error)))
    assert error in (caught.value, caught.value.__cause__)


def test_signal_exceptions_in_diagnosis_rules_reach_the_caller(
    error: BaseException, install_raising_handler: Any
) -> None:
    sender = install_raising_handler(error)
    with pytest.raises(type(error)) as caught, collect_error_reports() as lines:
        call_and_report_errors("the rule x", None, sender)
    assert caught.value is error
    assert lines == []


def test_async_exceptions_from_other_threads_are_unchanged() -> None:
    def interrupt_set_calls(value: object) -> list[BaseException]:
        ended: list[BaseException] = []

        def set_repeatedly() -> None:
            made = Descriptor(DescriptorType.TENSOR)
            begun.set()
            try:
                while True:
                    made.set(Attr.TENSOR_UNIQUE_ID, value)
            except BaseException as error:
                ended.append(error)

        begun = threading.Event()
        thread = threading.Thread(target=set_repeatedly)
        thread.start()
        begun.wait()
        time.sleep(0.002)
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident or 0), ctypes.py_object(DeadlineError))
        thread.join()
        return ended

    class SlowIndex:
        def __index__(self) -> int:
            return sum(1 for _ in range(50)) - 49

    for _ in range(20):
        assert [type(error) for error in interrupt_set_calls(SlowIndex())] == [DeadlineError]


class ParameterWithRaisingConversion:
    """A parameter that ctypes would convert with Python code."""

    @property
    def _as_parameter_(self) -> object:
        raise KeyboardInterrupt


@pytest.mark.parametrize(
    "value", [ParameterWithRaisingConversion(), 7, None, HandlePointer(), "x"], ids=lambda value: type(value).__name__
)
def test_cudnn_functions_accept_only_their_own_pointer_types(value: object) -> None:
    with pytest.raises(UsageError) as caught:
        library().cudnnBackendFinalize(value)
    assert caught.value.code == "wrong-argument"
    assert "DescriptorPointer" in str(caught.value)


def test_arguments_that_ctypes_would_convert_are_refused() -> None:
    with pytest.raises(UsageError, match=r"argument 1 of cudnnGetErrorString .* Parameter") as caught:
        library().cudnnGetErrorString(ParameterWithRaisingConversion())
    assert caught.value.code == "wrong-argument"
    with pytest.raises(UsageError, match="takes 1 arguments, got 2"):
        library().cudnnBackendFinalize(DescriptorPointer(), 3)
    with pytest.raises(UsageError, match="cudnnBackendCreateDescriptor"):
        library().cudnnBackendCreateDescriptor(b"x", ctypes.byref(DescriptorPointer()))


def test_callback_exceptions_are_checked_only_while_installed() -> None:
    done = run_code(
        """
from cudnn_backend_py import capture_log, library
execute = library().get_unchecked_function("cudnnBackendExecute")
with capture_log():
    print(execute.errcheck is None)
print(execute.errcheck is None)
"""
    )
    assert done.stdout.split() == ["False", "True"]
