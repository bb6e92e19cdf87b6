"""C code that launches plans: buffers it reads, calls it leaves to Python. Without a handle, no kernel runs.

The framework is part of the test: DLPack's C functions as ctypes callbacks.
"""

from __future__ import annotations

import ctypes
import gc
import sys
import threading
import weakref
from dataclasses import dataclass, replace
from typing import Any

import pytest

from cudnn_backend_py import (
    CudnnBackendError,
    CudnnStatusError,
    DataType,
    GraphBuilder,
    OperationGraph,
    build_plan,
    open_target,
)
from cudnn_backend_py.execution.buffers import find_dlpack_exchange, get_dlpack_type_code
from cudnn_backend_py.execution.checks import get_buffer_requirements
from cudnn_backend_py.graph.attention import sdpa_forward
from cudnn_backend_py.native import fast_call as module
from cudnn_backend_py.native.fast_call import (
    NEEDS_PYTHON,
    STREAM_CHANGED,
    DlpackExchange,
    HandleState,
    Kernel,
    Launch,
    PlanCallWithTuple,
    load_compiled_library,
)
from cudnn_backend_py.native.launch import Launcher
from cudnn_backend_py.native.libcudnn import HandlePointer
from cudnn_backend_py.plans.plan import Plan

CUDA, HOST, FLOAT, BFLOAT, UINT = 2, 1, 2, 4, 1
NULL_HANDLE = 2000  # the thousand of CUDNN_STATUS_BAD_PARAM, cuDNN's answer to a null handle
STREAM = 4096


class DLTensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("kind", ctypes.c_int32),
        ("ordinal", ctypes.c_int32),
        ("rank", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("dims", ctypes.c_void_p),
        ("strides", ctypes.c_void_p),
        ("offset", ctypes.c_uint64),
    )


@dataclass(eq=False)
class FakeDlpackBuffer:
    data: int = 0x10000
    dims: tuple[int, ...] = (1, 2, 128, 64)
    strides: tuple[int, ...] | None = (128 * 2 * 64, 64, 128, 1)
    code: int = FLOAT
    bits: int = 16
    kind: int = CUDA
    ordinal: int = 0
    offset: int = 0
    is_readable: bool = True


class BufferSubclass(FakeDlpackBuffer):
    pass


RETURN_SUCCESS = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)(lambda *_: 0)
FETCH_FUNCTION_TYPE = ctypes.PYFUNCTYPE(None, ctypes.POINTER(ctypes.c_void_p), ctypes.c_int)
READ_FUNCTION_TYPE = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.POINTER(DLTensor))
CURRENT_STREAM_FUNCTION_TYPE = ctypes.PYFUNCTYPE(
    ctypes.c_int, ctypes.c_int32, ctypes.c_int32, ctypes.POINTER(ctypes.c_void_p)
)


class FakeDlpackFramework:
    """A framework that has DLPack's C functions for ``FakeDlpackBuffer``."""

    def __init__(self) -> None:
        self.stream = STREAM
        self.read, self.current = (
            READ_FUNCTION_TYPE(self._fill_dltensor),
            CURRENT_STREAM_FUNCTION_TYPE(self._current_stream),
        )
        self.arrays: list[Any] = []

    def _fill_dltensor(self, buffer: FakeDlpackBuffer, out: Any) -> int:
        if not buffer.is_readable:
            return -1
        row = ctypes.c_int64 * len(buffer.dims)
        dims, strides = row(*buffer.dims), None if buffer.strides is None else row(*buffer.strides)
        self.arrays += [dims, strides]
        out[0] = DLTensor(
            buffer.data,
            buffer.kind,
            buffer.ordinal,
            len(buffer.dims),
            buffer.code,
            buffer.bits,
            1,
            ctypes.addressof(dims),
            None if strides is None else ctypes.addressof(strides),
            buffer.offset,
        )
        return 0

    def _current_stream(self, kind: int, device: int, out: Any) -> int:
        assert (kind, device) == (CUDA, 0)
        out[0] = self.stream
        return 0

    def exchange(self) -> DlpackExchange:
        read, current = (int(ctypes.cast(call, ctypes.c_void_p).value or 0) for call in (self.read, self.current))
        return DlpackExchange(FakeDlpackBuffer, read, None, current)


@pytest.fixture(scope="module")
def plan() -> Plan:
    graph = sdpa_forward(batch=1, heads=2, seq_q=128, head_dim=64, causal=True)
    return build_plan(OperationGraph(graph, open_target("h100")).heuristics().configs[0])


@pytest.fixture
def framework() -> FakeDlpackFramework:
    return FakeDlpackFramework()


@pytest.fixture
def launcher(plan: Plan) -> Launcher:
    return Launcher(plan.descriptor, [tensor.uid for tensor in plan.graph.variant_pack_tensors])


def test_nothing_is_compiled_if_the_gil_is_disabled(monkeypatch: pytest.MonkeyPatch) -> None:
    assert load_compiled_library.__wrapped__() is not None
    monkeypatch.setattr(sys, "_is_gil_enabled", lambda: False, raising=False)
    assert load_compiled_library.__wrapped__() is None


def make_launch_without_handle(plan: Plan) -> Launch:
    """Return a launch on STREAM with a null handle, which cuDNN refuses."""
    return Launch(plan.target.library, HandleState(0, STREAM), STREAM, plan.descriptor.pointer)


def test_a_launch_keeps_the_handle_of_an_ended_thread(plan: Plan) -> None:
    def make_handle_state() -> tuple[weakref.ref[HandlePointer], HandleState]:
        pointer = HandlePointer(STREAM)
        return weakref.ref(pointer), HandleState.from_handle(pointer)

    gone, state = make_handle_state()
    launch = Launch(plan.target.library, state, STREAM, plan.descriptor.pointer)
    del state
    gc.collect()
    assert gone() is not None  # another thread with the number of the ended one may make this launch
    del launch
    gc.collect()
    assert gone() is None


def make_tuple_call(
    plan: Plan, launcher: Launcher, framework: FakeDlpackFramework, **changes: Any
) -> PlanCallWithTuple:
    tensors = [tensor for tensor in plan.graph.variant_pack_tensors if not tensor.by_value]
    return PlanCallWithTuple(
        make_launch_without_handle(plan),
        launcher.make_empty_pack(),
        launcher.filler,
        changes.pop("exchange", framework.exchange()),
        **{
            "given": len(tensors),
            "wanted": [get_buffer_requirements(tensor) for tensor in tensors],
            "tail": [4096] * (len(launcher.uids) - len(tensors)),
            "workspace": 0,
            "device": 0,
            "query_stream": True,
        }
        | changes,
    )


def buffers(**changes: Any) -> tuple[FakeDlpackBuffer, ...]:
    """Return four buffers, with the given changes made to the last one."""
    return (
        *(FakeDlpackBuffer(0x10000 * number) for number in range(1, 4)),
        FakeDlpackBuffer(**{"data": 0x40000} | changes),
    )


def is_tuple_call_launched(call: PlanCallWithTuple, given: Any) -> bool:
    status = call.go(given)
    return status // 1000 * 1000 == NULL_HANDLE and call.failed_function == "cudnnBackendExecute"


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"offset": 256},
        {"code": UINT},
        {"strides": None},
        {"dims": (2, 128, 128), "strides": (128 * 128, 128, 1)},
        {"strides": (0, 8192, 64, 1)},
    ],
)
def test_a_plan_is_launched_with_buffers_that_fit_its_tensors(
    plan: Plan, launcher: Launcher, framework: FakeDlpackFramework, changes: Any
) -> None:
    assert is_tuple_call_launched(make_tuple_call(plan, launcher, framework), buffers(**changes))


@pytest.mark.parametrize(
    "changes",
    [
        {"data": 0},
        {"data": 0x40002},
        {"offset": 2},
        {"kind": HOST},
        {"ordinal": 1},
        {"code": BFLOAT},
        {"bits": 32},
        {"dims": (1, 2, 127, 64)},
        {"strides": (0, 0, 0, 0)},
        {"dims": (0, 2, 128, 64)},
        {"is_readable": False},
    ],
)
def test_calls_with_mismatched_buffers_are_left_to_python(
    plan: Plan, launcher: Launcher, framework: FakeDlpackFramework, changes: Any
) -> None:
    call = make_tuple_call(plan, launcher, framework)
    assert call.go(buffers(**changes)) == NEEDS_PYTHON
    assert is_tuple_call_launched(call, buffers())


@pytest.mark.parametrize(("bits", "codes", "fits"), [(0, {UINT}, False), (0, {FLOAT}, True), (0, set(), True)])
def test_dlpack_type_codes_are_checked_even_if_bits_are_not(
    plan: Plan, launcher: Launcher, framework: FakeDlpackFramework, bits: int, codes: set[int], fits: bool
) -> None:
    wanted = [get_buffer_requirements(item) for item in plan.graph.variant_pack_tensors if not item.by_value]
    wanted[-1] = (*wanted[-1][:2], bits, frozenset(codes))
    call = make_tuple_call(plan, launcher, framework, wanted=wanted)
    assert is_tuple_call_launched(call, buffers()) == fits


def test_calls_with_objects_of_unknown_type_are_left_to_python(
    plan: Plan, launcher: Launcher, framework: FakeDlpackFramework
) -> None:
    call = make_tuple_call(plan, launcher, framework)
    for other in (BufferSubclass(0x40000), 0x40000, None):
        assert call.go((*buffers()[:3], other)) == NEEDS_PYTHON


def test_a_changed_framework_stream_prevents_the_launch(
    plan: Plan, launcher: Launcher, framework: FakeDlpackFramework
) -> None:
    call = make_tuple_call(plan, launcher, framework)
    framework.stream = 8192
    assert call.go(buffers()) == STREAM_CHANGED
    assert is_tuple_call_launched(make_tuple_call(plan, launcher, framework, query_stream=False), buffers())


def test_a_call_without_buffer_checks_reads_only_the_device(
    plan: Plan, launcher: Launcher, framework: FakeDlpackFramework
) -> None:
    call = make_tuple_call(plan, launcher, framework, wanted=None)
    assert is_tuple_call_launched(call, buffers(bits=32, data=0x40002, dims=(1,), strides=None))
    assert call.go(buffers(kind=HOST)) == NEEDS_PYTHON


def test_all_buffers_are_fetched_before_the_first_is_read(
    plan: Plan, launcher: Launcher, framework: FakeDlpackFramework
) -> None:
    fetched: list[Any] = []

    def fetch(objects: Any, count: int) -> None:
        assert not framework.arrays, "objects must be fetched before any is read"
        fetched.extend(ctypes.cast(objects[index], ctypes.py_object).value for index in range(count))

    function = FETCH_FUNCTION_TYPE(fetch)
    address = ctypes.cast(function, ctypes.c_void_p).value
    call = make_tuple_call(plan, launcher, framework, exchange=replace(framework.exchange(), fetch=address))
    given = buffers()
    assert is_tuple_call_launched(call, given)
    assert list(map(id, fetched)) == list(map(id, given))
    assert call.go((*given[:3], BufferSubclass())) == NEEDS_PYTHON
    assert len(fetched) == 4, "an object of another type must not be fetched"


def test_the_launch_function_keeps_its_tuple_call_alive(
    plan: Plan, launcher: Launcher, framework: FakeDlpackFramework
) -> None:
    go = make_tuple_call(plan, launcher, framework).go
    gc.collect()
    assert go(buffers(kind=HOST)) == NEEDS_PYTHON
    assert go(buffers()) // 1000 * 1000 == NULL_HANDLE


class FastCallable:
    """An object with calls that run in C where they can; it records the calls that are left to Python."""

    def __init__(self, fast: Any) -> None:
        self._fast = fast
        self.python_calls: list[Any] = []

    def __call__(self, *given: Any, **named: Any) -> str:
        """Record the arguments."""
        self.python_calls.append((given, named))
        return "by Python"


module.install_compiled_call_method(FastCallable)


def test_the_compiled_call_runs_instead_of_the_python_method(
    plan: Plan, launcher: Launcher, framework: FakeDlpackFramework
) -> None:
    call = make_tuple_call(plan, launcher, framework)
    quick, given = FastCallable(call.compiled_self), buffers()
    call._call.run.execute = ctypes.cast(RETURN_SUCCESS, ctypes.c_void_p).value
    assert quick(*given) is None
    assert (quick.python_calls, call._call.filled) == ([], 1)
    assert "Record the arguments." in (FastCallable.__call__.__doc__ or "")


def test_the_error_of_a_refused_launch_is_raised_once(
    plan: Plan, launcher: Launcher, framework: FakeDlpackFramework
) -> None:
    quick = FastCallable(make_tuple_call(plan, launcher, framework).compiled_self)
    with pytest.raises(CudnnStatusError) as caught:
        quick(*buffers())
    assert caught.value.function == "cudnnBackendExecute"
    assert quick.python_calls == []


def test_calls_unfit_for_compiled_code_run_the_python_method(
    plan: Plan, launcher: Launcher, framework: FakeDlpackFramework
) -> None:
    call = make_tuple_call(plan, launcher, framework)
    call._call.run.execute = ctypes.cast(RETURN_SUCCESS, ctypes.c_void_p).value
    quick, given = FastCallable(call.compiled_self), buffers()
    unfit = (*given[:3], FakeDlpackBuffer(kind=HOST))
    last: dict[str, Any] = {"last": given[3]}
    assert [quick(*given[:3], **last), quick(*given[:3]), quick(), quick(*unfit)] == ["by Python"] * 4
    assert quick.python_calls == [(given[:3], last), (given[:3], {}), ((), {}), (unfit, {})]
    other = threading.Thread(target=quick, args=given)
    other.start()
    other.join()
    assert quick.python_calls[4:] == [(given, {})], "a call from another thread must run the Python method"
    quick._fast = None
    assert quick(*given, more=1) == quick(*given) == "by Python"
    del quick._fast
    assert quick(*given) == "by Python"
    with pytest.raises(ZeroDivisionError):
        FastCallable(None)(*(1 / 0 for _ in range(2)))


def test_a_call_with_too_many_buffers_is_left_to_python(
    plan: Plan, launcher: Launcher, framework: FakeDlpackFramework
) -> None:
    call = make_tuple_call(plan, launcher, framework)
    call._call.given = 257
    assert call.go((FakeDlpackBuffer(),) * 257) == NEEDS_PYTHON


def test_variant_pack_is_refilled_after_a_refused_buffer(
    plan: Plan, launcher: Launcher, framework: FakeDlpackFramework
) -> None:
    call = make_tuple_call(plan, launcher, framework)
    row = (ctypes.c_uint64 * len(launcher.uids)).from_address(call._call.row)
    assert is_tuple_call_launched(call, buffers())
    assert call._call.filled
    # The first buffer is new, the last one refused: the pack must not count as having the buffers read so far.
    assert call.go((FakeDlpackBuffer(0x90000), *buffers(kind=HOST)[1:])) == NEEDS_PYTHON
    assert not call._call.filled
    assert is_tuple_call_launched(call, buffers())
    assert list(row[:4]) == [0x10000, 0x20000, 0x30000, 0x40000]
    assert call._call.filled


def test_cudnn_errors_while_filling_a_variant_pack_are_reported(
    plan: Plan, launcher: Launcher, framework: FakeDlpackFramework
) -> None:
    call = make_tuple_call(plan, launcher, framework)
    finalized = launcher.make_empty_pack()
    call._call.run.pack = plan.descriptor.pointer.value  # a finalized plan is no pack
    status = call.go(buffers())
    assert status > 0
    assert call.failed_function in module.FUNCTIONS[:3]
    call._call.run.pack = finalized.pointer.value
    assert is_tuple_call_launched(call, buffers())


@pytest.fixture(params=["compiled", "ctypes"])
def launch_implementation(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "ctypes":
        monkeypatch.setattr(module, "load_compiled_library", lambda: None)
        monkeypatch.setattr("cudnn_backend_py.native.launch.load_compiled_library", lambda: None)
    return str(request.param)


def make_dict_call(
    launcher: Launcher, framework: FakeDlpackFramework, keys: list[Any], **changes: Any
) -> module.PlanCallWithDict:
    """Return a call that takes a dict of four tensors by the given keys, or by the uids 1 to 4."""
    places = [(key, place) for place, key in enumerate(keys)] + [(place + 1, place) for place in range(4)]
    options = {"on_host": frozenset({3}), "row": [0] * len(launcher.uids)} | changes
    return launcher.make_dict_call(framework.exchange(), places, **options)


def is_dict_call_launched(call: module.PlanCallWithDict, given: Any, workspace: Any = None) -> bool:
    """Return whether C calls cudnnBackendExecute, which refuses the null handle."""
    answer = call.go(None, given, workspace)
    if answer == NEEDS_PYTHON:
        return False
    error = call.error(answer)
    assert isinstance(error, CudnnStatusError)
    assert (error.function, int(error.status) // 1000 * 1000) == ("cudnnBackendExecute", NULL_HANDLE)
    return True


def test_dict_keys_may_be_uids_and_values_addresses(plan: Plan, framework: FakeDlpackFramework) -> None:
    launcher, keys = Launcher(plan.descriptor, [1, 2, 3, 4]), [object() for _ in range(4)]
    call, four = make_dict_call(launcher, framework, keys), buffers()
    row = (ctypes.c_uint64 * 4).from_address(call._mapping.row)
    assert is_dict_call_launched(call, dict(zip(keys, four, strict=True)))
    assert list(row) == [0x10000, 0x20000, 0x30000, 0x40000]
    assert is_dict_call_launched(call, {4: 0x400, 3: FakeDlpackBuffer(0x300, offset=8), keys[1]: 0x200, 1: 0x100})
    assert list(row) == [0x100, 0x200, 0x308, 0x400]
    assert is_dict_call_launched(
        call, {**dict(zip(keys, four, strict=True)), keys[3]: FakeDlpackBuffer(0x900, kind=HOST)}
    )
    assert row[3] == 0x900


@pytest.mark.parametrize(
    "change",
    [
        {1: None},
        {1: -1},
        {1: 1 << 64},
        {1: 0},
        {1: "text"},
        {1: BufferSubclass()},
        {1: FakeDlpackBuffer(0)},
        {1: FakeDlpackBuffer(kind=HOST)},
        {1: FakeDlpackBuffer(is_readable=False)},
        {9: 0x100},
        {-1: 0x100},
        {1 << 70: 0x100},
        {"q": 0x100},
        {None: 0x100},
    ],
)
def test_calls_with_an_invalid_variant_pack_are_left_to_python(
    plan: Plan, framework: FakeDlpackFramework, change: dict[Any, Any]
) -> None:
    call = make_dict_call(Launcher(plan.descriptor, [1, 2, 3, 4]), framework, [object() for _ in range(4)])
    whole: dict[Any, Any] = {1: 0x100, 2: 0x200, 3: 0x300, 4: 0x400}
    assert is_dict_call_launched(call, whole)
    assert not is_dict_call_launched(call, whole | change)
    assert is_dict_call_launched(call, whole)
    for missing in whole:
        assert not is_dict_call_launched(call, {key: value for key, value in whole.items() if key != missing})
    assert not is_dict_call_launched(call, [1, 2, 3, 4])


def test_a_needed_workspace_must_be_on_the_device(plan: Plan, framework: FakeDlpackFramework) -> None:
    whole = {1: 0x100, 2: 0x200, 3: 0x300, 4: 0x400}
    launcher = Launcher(plan.descriptor, [1, 2, 3, 4])
    call = make_dict_call(launcher, framework, [object() for _ in range(4)], own_offset=0)
    for given, will_do in (
        (None, False),
        (0, False),
        (FakeDlpackBuffer(0x7000, kind=HOST), False),
        (FakeDlpackBuffer(0x8000), True),
    ):
        assert is_dict_call_launched(call, whole, given) is will_do
    assert call._mapping.workspace == 0x8000
    assert is_dict_call_launched(call, whole, 0x9000)
    assert call._mapping.workspace == 0x9000


def test_scratch_tensors_are_placed_relative_to_the_workspace(plan: Plan, framework: FakeDlpackFramework) -> None:
    launcher = Launcher(plan.descriptor, [1, 2, 3, 4, 5, 6])
    scratch = [(4, 0), (5, 256)]
    for own_offset, offset in ((512, 512), (None, None)):
        call = make_dict_call(launcher, framework, [object() for _ in range(4)], scratch=scratch, own_offset=own_offset)
        row = (ctypes.c_uint64 * 6).from_address(call._mapping.row)
        assert not is_dict_call_launched(call, {1: 0x100, 2: 0x200, 3: 0x300, 4: 0x400})
        for base in (0x7000, 0x9000):
            assert is_dict_call_launched(call, {1: 0x100, 2: 0x200, 3: 0x300, 4: 0x400}, base)
            assert list(row) == [0x100, 0x200, 0x300, 0x400, base, base + 256]
            assert call._mapping.workspace == (0 if offset is None else base + offset)


def test_a_dict_call_is_run_by_one_thread_at_a_time(plan: Plan, framework: FakeDlpackFramework) -> None:
    whole = {1: 0x100, 2: 0x200, 3: 0x300, 4: 0x400}
    call = make_dict_call(Launcher(plan.descriptor, [1, 2, 3, 4]), framework, [object() for _ in range(4)])
    call._mapping.busy = 1
    assert not is_dict_call_launched(call, whole)
    call._mapping.busy = 0
    assert is_dict_call_launched(call, whole)
    assert call._mapping.busy == 0


def test_cudnn_errors_while_filling_from_a_dict_are_reported(plan: Plan, framework: FakeDlpackFramework) -> None:
    call = make_dict_call(Launcher(plan.descriptor, [1, 2, 3, 4]), framework, [object() for _ in range(4)])
    call._mapping.to = plan.descriptor.pointer.value  # a finalized plan is no pack
    error = call.error(call.go(None, {1: 0x100, 2: 0x200, 3: 0x300, 4: 0x400}, None))
    assert isinstance(error, CudnnStatusError)
    assert error.function in module.FUNCTIONS[:3]
    assert not call._mapping.filled


def test_a_launch_with_a_bound_variant_pack_raises_status_errors(plan: Plan, launch_implementation: str) -> None:
    launcher = Launcher(plan.descriptor, [1, 2])
    step = make_launch_without_handle(plan).bind(launcher.pack(launcher.row(64, 64)))
    for _ in range(2):
        with pytest.raises(CudnnStatusError) as caught:
            step()
        assert caught.value.function == "cudnnBackendExecute"
        assert int(caught.value.status) // 1000 * 1000 == NULL_HANDLE


def test_a_launch_bound_to_a_variant_pack_sets_the_stream_first(
    plan: Plan, launcher: Launcher, framework: FakeDlpackFramework, launch_implementation: str
) -> None:
    """A null handle fails in cudnnSetStream, before the launch, and the recorded stream stays unchanged."""
    launch = make_launch_without_handle(plan)
    launch.handle.stream = 8192
    with pytest.raises(CudnnStatusError) as caught:
        launch.bind(launcher.pack(launcher.row(*[64] * len(launcher.uids))))()
    assert caught.value.function == "cudnnSetStream"
    assert int(caught.value.status) // 1000 * 1000 == NULL_HANDLE
    assert launch.handle.stream == 8192


def test_a_stream_that_the_handle_refuses_is_reported(
    plan: Plan, launcher: Launcher, framework: FakeDlpackFramework
) -> None:
    call = make_tuple_call(plan, launcher, framework)
    call._kept_objects[1][0].handle.stream = 8192
    assert call.go(buffers()) // 1000 * 1000 == NULL_HANDLE
    assert call.failed_function == "cudnnSetStream"


LAUNCH_KERNEL_FUNCTION_TYPE = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_void_p, *[ctypes.c_uint] * 7, *[ctypes.c_void_p] * 3
)


def launch_call_with_filled_variant_pack(call: PlanCallWithTuple) -> int:
    """Launch in C with the addresses and the workspace that the call already has."""
    return int(load_compiled_library().cudnn_backend_py_go(ctypes.c_void_p(call.address)))


def test_a_call_launches_with_addresses_set_in_its_variant_pack(plan: Plan, launcher: Launcher) -> None:
    call = PlanCallWithTuple(
        make_launch_without_handle(plan),
        launcher.make_empty_pack(),
        launcher.filler,
        None,
        given=0,
        wanted=None,
        tail=[4096] * len(launcher.uids),
        workspace=0,
        device=0,
        query_stream=False,
    )
    for _ in range(2):
        assert launch_call_with_filled_variant_pack(call) // 1000 * 1000 == NULL_HANDLE
        assert (call.failed_function, call._call.filled) == ("cudnnBackendExecute", 1)
    call._call.filled = 0
    call._call.run.pack = plan.descriptor.pointer.value  # a finalized plan is no pack
    assert launch_call_with_filled_variant_pack(call) > 0
    assert (call.failed_function in module.FUNCTIONS[:3], call._call.filled) == (True, 0)


@pytest.mark.parametrize("status", [0, 700])
def test_the_prepare_kernel_runs_before_the_plan_on_its_stream(
    plan: Plan, launcher: Launcher, framework: FakeDlpackFramework, status: int
) -> None:
    launched = []

    def launch(*arguments: Any) -> int:
        launched.append(arguments)
        return status

    function, parameters = LAUNCH_KERNEL_FUNCTION_TYPE(launch), (ctypes.c_void_p * 1)(64)
    kernel = Kernel(ctypes.cast(function, ctypes.c_void_p).value, 12, parameters, 3, 256)
    call = make_tuple_call(plan, launcher, framework, prepare=kernel)
    answer = call.go(buffers())
    assert launched == [(12, 3, 1, 1, 256, 1, 1, 0, STREAM, ctypes.addressof(parameters), None)]
    if status:
        assert (answer, call.failed_function) == (status, "cuLaunchKernel")
        with pytest.raises(CudnnBackendError, match=r"cuda-driver: cuLaunchKernel answered .*\(700\)"):
            make_launch_without_handle(plan)._raise_status_error(module.PREPARE, answer)
    else:
        assert (answer // 1000 * 1000, call.failed_function) == (NULL_HANDLE, "cudnnBackendExecute")


def test_variant_packs_are_filled_by_c_and_by_ctypes(plan: Plan, launch_implementation: str) -> None:
    """cuDNN accepts and finalizes the variant packs of both implementations."""
    launcher = Launcher(plan.descriptor, [1, 2])
    for number in range(3):
        key = (number,)
        pack = launcher.cache_pack(key, launcher.row(64, 128), 4096)
        assert launcher.find(key) is pack
    assert (launcher._compiled_fill is None) == (launch_implementation == "ctypes")


def test_buffer_requirements_follow_from_the_tensor() -> None:
    g = GraphBuilder("types")
    half = g.tensor("half", (1, 4, 64), data_type=DataType.HALF, alignment=64)
    *sizes, codes = get_buffer_requirements(half)
    assert sizes == [512, 64, 16]
    assert {FLOAT, UINT} <= codes
    assert not {BFLOAT, 0} & codes
    assert 17 in codes  # a type unknown when this was written
    _, _, bits, codes = get_buffer_requirements(g.tensor("fp8", (1, 4, 64), data_type=DataType.FP8_E4M3))
    assert bits == 8
    assert set(range(16)) <= codes
    span_bytes, _, bits, codes = get_buffer_requirements(g.tensor("mask", (1, 4, 64), data_type=DataType.BOOLEAN))
    assert (span_bytes, bits, frozenset(range(32)) - codes) == (32, 0, {get_dlpack_type_code("bool")})
    assert get_buffer_requirements(g.tensor("packed", (1, 4, 64), data_type=DataType.INT4))[2:] == (0, frozenset())


def test_frameworks_without_c_functions_have_no_fast_path() -> None:
    assert find_dlpack_exchange(FakeDlpackBuffer) is None
    assert find_dlpack_exchange(BufferSubclass) is None


def test_the_compiled_library_is_available() -> None:
    assert load_compiled_library() is not None
