"""The torch operators' C++ code for known calls: calls that it recognizes, launches, and leaves to Python.

It is connected to tensors of the host and to functions of the test instead of a launch, so it runs wherever torch
and a C++ compiler are installed. The tests of the operators check that its results equal Python's.
"""

from __future__ import annotations

import ctypes
import gc
import threading
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch", reason="did not run: torch is not installed, and these tests need it")
from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402
from torch.overrides import TorchFunctionMode  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

from cudnn_backend_py.execution.buffers import find_dlpack_exchange  # noqa: E402
from cudnn_backend_py.native.fast_call import _PlanCallWithTupleStruct  # noqa: E402
from cudnn_backend_py.torch_ops.compiled import INPUT, NUMBER, OUTPUT, PIECE  # noqa: E402
from cudnn_backend_py.torch_ops.extension import Build  # noqa: E402

ROW_LENGTH = 6  # of a row
STREAM_ADDRESS = 4096
SCALAR_ARGUMENTS = (None, 0.5, "top_left")
Address = ctypes.c_void_p


class LaunchRecorder:
    """Fake launch and CUDA functions for the compiled step: they record the arguments of each launch."""

    def __init__(self) -> None:
        self.seen: list[tuple[list[int], int, int, list[int]]] = []
        self.status = 0
        self.stream, self.is_captured = STREAM_ADDRESS, 0
        self.requests: list[tuple[Any, ...]] = []  # gradients requested from Python
        self.parameters = (ctypes.c_int64 * 4)()
        self.go = ctypes.CFUNCTYPE(ctypes.c_int, Address)(self._launch)
        self.current = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_int32, ctypes.POINTER(Address))(
            self._get_current_stream
        )
        self.capturing = ctypes.CFUNCTYPE(ctypes.c_int, Address, ctypes.POINTER(ctypes.c_int))(self._get_capture_status)

    def _launch(self, address: int) -> int:
        call = _PlanCallWithTupleStruct.from_address(address)
        row = (ctypes.c_uint64 * ROW_LENGTH).from_address(call.row)
        self.seen.append((list(row), call.workspace or 0, call.filled, list(self.parameters)))
        call.filled = 1
        return self.status

    def _get_current_stream(self, _device: int, out: Any) -> int:
        out[0] = self.stream
        return 0

    def _get_capture_status(self, stream: int, out: Any) -> int:
        assert stream == self.stream
        out[0] = self.is_captured
        return 0

    def differentiate(self, number: int, tensors: tuple[Any, ...], numbers: tuple[Any, ...], wanted: int) -> Any:
        self.requests.append((number, len(tensors), numbers, wanted))
        return tuple(torch.full_like(x, index + 1) for index, x in enumerate(tensors[3:]))

    def fail(self, function: int, status: int) -> None:
        raise ValueError(f"function {function} answered {status}")


def get_function_address(function: Any) -> int | None:
    return ctypes.cast(function, Address).value


@pytest.fixture
def launches(step_module: Any) -> Iterator[LaunchRecorder]:
    made = LaunchRecorder()
    functions = (
        get_function_address(made.go),
        get_function_address(made.current),
        get_function_address(made.capturing),
    )
    step_module.connect(*functions, made.differentiate, "cpu")
    yield made
    step_module.forget(None)


@pytest.fixture
def operator_number(step_module: Any) -> int:
    """Define an operator of three tensors with gradients, the last of them optional, and return its number."""
    return int(step_module.define(3, 0b111, 0b100, (), ()))


@pytest.fixture
def random_tensors() -> Any:
    return torch.randn(3, 1, 2, 8, 4).unbind()


def make_plan_description(launches: LaunchRecorder, outputs: Any, row: Any, **more: Any) -> tuple[Any, ...]:
    """Return a plan's description as a tuple that the C++ code's ``learn`` accepts."""
    words = (ctypes.c_uint64 * ROW_LENGTH)()
    call = _PlanCallWithTupleStruct()
    call.row = ctypes.addressof(words)
    fail: Callable[..., Any] = launches.fail
    call.run.fail = id(fail)
    parts = {
        "limits": (),
        "parameters": (),
        "pieces": (),
        "own": -1,
        "copied": 0,
        "tokens": False,
        "token": 1,
        "cost": 0,
        "holds": None,
    }
    parts |= {"keeps": False, "notice": None}
    parts |= more
    return (
        *(ctypes.addressof(call), ctypes.addressof(launches.parameters), parts["limits"], outputs, row),
        *(parts["parameters"], parts["pieces"], parts["own"], parts["copied"], parts["tokens"], parts["token"]),
        *(parts["cost"], parts["keeps"], parts["notice"]),
        (call, words, fail, parts["holds"]),
    )


def make_output_description(x: Any) -> tuple[Any, ...]:
    return torch.empty(0, dtype=x.dtype), tuple(x.shape), tuple(x.stride()), None


LAUNCH_ROW = ((0, INPUT, 0, 0), (1, INPUT, 1, 0), (2, INPUT, 2, 16), (3, OUTPUT, 0, 0))


def register_plan_in_compiled_step(
    step_module: Any, launches: LaunchRecorder, operator_number: int, random_tensors: Any, **more: Any
) -> None:
    """Register a plan without statistics, so that the operators' C++ code launches later calls of it."""
    assert step_module.learn(
        make_plan_description(launches, (make_output_description(random_tensors[0]),), LAUNCH_ROW, **more),
        False,
        0,
        operator_number,
        *random_tensors,
        *SCALAR_ARGUMENTS,
        False,
    )


class DLTensor(ctypes.Structure):
    _fields_ = (
        ("data", Address),
        *((name, ctypes.c_int32) for name in ("kind", "ordinal", "rank")),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        *((name, ctypes.POINTER(ctypes.c_int64)) for name in ("dims", "strides")),
        ("offset", ctypes.c_uint64),
    )

    @property
    def as_tuple(self) -> tuple[Any, ...]:
        rows = self.dims[: self.rank], self.strides[: self.rank]
        return self.data, self.kind, self.code, self.bits, self.lanes, *rows, self.offset


def test_the_tensor_reader_and_dlpack_agree(
    step_module: Any, launches: LaunchRecorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "cudnn_backend_py.execution.buffers._compiled_readers", {}
    )  # a step that is in use reads in place
    found = find_dlpack_exchange(torch.Tensor)
    if found is None:
        pytest.skip("this torch has no C functions of DLPack")
    prototype = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.POINTER(DLTensor))
    address, fetch = step_module.reader()
    ours, dlpack = prototype(address), prototype(found.read)
    random_tensors = [
        *(torch.zeros(3, 5, 7).to(kind)[1:, ::2].transpose(0, 2) for kind in (torch.half, torch.bfloat16, torch.int32)),
        *(torch.zeros(4, dtype=kind) for kind in (torch.float8_e4m3fn, torch.uint8, torch.bool, torch.complex64)),
        torch.zeros(()),
        torch.zeros(2, 0),
        torch.zeros(2, requires_grad=True),
        torch.zeros(2, requires_grad=True) * 2,
    ]
    for x in random_tensors:
        mine, theirs = DLTensor(), DLTensor()
        assert ours(x, ctypes.byref(mine)) == dlpack(x, ctypes.byref(theirs)) == 0
        assert mine.as_tuple == theirs.as_tuple
    objects = (Address * len(random_tensors))(*map(id, random_tensors))
    ctypes.PYFUNCTYPE(None, ctypes.POINTER(Address), ctypes.c_int)(fetch)(objects, len(random_tensors))


def test_the_tensor_reader_refuses_all_but_plain_tensors(step_module: Any, launches: LaunchRecorder) -> None:
    read = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.POINTER(DLTensor))(step_module.reader()[0])
    inside: list[int] = []

    def read_in_transform(x: Any) -> Any:
        inside.append(read(x, ctypes.byref(DLTensor())))
        return x

    torch.vmap(read_in_transform)(torch.zeros(2, 3))
    with FakeTensorMode():
        read_in_transform(torch.zeros(2))
    for x in (
        torch.zeros(2, 3).to_sparse(),
        torch.zeros(2, dtype=torch.complex64).conj(),
        torch.zeros(2, device="meta"),
    ):
        read_in_transform(x)
    assert inside == [-1] * 5


def test_the_launch_arguments_have_the_addresses_of_the_call(
    step_module: Any, launches: LaunchRecorder, operator_number: int, random_tensors: Any
) -> None:
    row = (*LAUNCH_ROW, (4, PIECE, 0, 4), (5, PIECE, 1, 0))
    parameters = ((1, NUMBER, 0, 42), (2, PIECE, 1, 0))
    plan = make_plan_description(
        launches, (make_output_description(random_tensors[0]),), row, parameters=parameters, pieces=(100, 50), own=1
    )
    assert step_module.learn(plan, False, 0, operator_number, *random_tensors, *SCALAR_ARGUMENTS, False)
    o = step_module.call(operator_number, *random_tensors, *SCALAR_ARGUMENTS, False)
    assert (o.shape, o.stride(), o.dtype) == (
        random_tensors[0].shape,
        random_tensors[0].stride(),
        random_tensors[0].dtype,
    )
    ((found, workspace, filled, parameters_found),) = launches.seen
    q, k, v = (x.data_ptr() for x in random_tensors)
    assert found[:4] == [q, k, v + 16, o.data_ptr()]
    assert found[5] - found[4] == 128 - 4
    assert workspace == found[5]
    assert not filled
    assert parameters_found == [0, 42, found[5], 0]


def test_the_variant_pack_is_refilled_only_if_addresses_change(
    step_module: Any, launches: LaunchRecorder, operator_number: int, random_tensors: Any
) -> None:
    row = LAUNCH_ROW[:3]
    assert step_module.learn(
        make_plan_description(launches, (), row), False, 0, operator_number, *random_tensors, *SCALAR_ARGUMENTS, True
    )
    for given in (random_tensors, random_tensors, [x.clone() for x in random_tensors]):
        step_module.call(operator_number, *given, *SCALAR_ARGUMENTS, True)
    assert [filled for _, _, filled, _ in launches.seen] == [0, 1, 0]


def test_calls_without_a_registered_plan_are_left_to_python(
    step_module: Any, launches: LaunchRecorder, operator_number: int, random_tensors: Any
) -> None:
    register_plan_in_compiled_step(step_module, launches, operator_number, random_tensors)
    q, k, v = random_tensors

    def call_compiled_step(*given: Any, numbers: Any = SCALAR_ARGUMENTS) -> Any:
        return step_module.call(operator_number, *given, *numbers, False)

    assert call_compiled_step(q, k, v) is not None
    moved = torch.empty(q.numel() + 1)[1:].view(q.shape)
    for other in (q.transpose(1, 2).contiguous().transpose(1, 2), q[:, :1], q.double(), moved, None, 3):
        assert call_compiled_step(other, k, v) is None
    for numbers in (
        (None, 0.25, "top_left"),
        (None, 0.5, "bottom_right"),
        (1.0, 0.5, "top_left"),
        (None, q, "top_left"),
    ):
        assert call_compiled_step(q, k, v, numbers=numbers) is None
    assert step_module.call(operator_number, q, k, v, *SCALAR_ARGUMENTS, True) is None
    launches.stream += 1
    assert call_compiled_step(q, k, v) is None
    launches.stream -= 1
    launches.is_captured = 1
    assert call_compiled_step(q, k, v) is None
    launches.is_captured = 0
    found = []
    thread = threading.Thread(target=lambda: found.append(call_compiled_step(q, k, v)))
    thread.start()
    thread.join()
    assert found == [None]
    assert step_module.call(operator_number) is None
    assert step_module.call(99, q, k, v, *SCALAR_ARGUMENTS, False) is None


@pytest.mark.filterwarnings("ignore:.*torch.jit")
def test_traced_and_transformed_calls_are_left_to_python(
    step_module: Any, launches: LaunchRecorder, operator_number: int, random_tensors: Any
) -> None:
    class PassThroughDispatchMode(TorchDispatchMode):
        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return function(*args, **(kwargs or {}))

    class PassThroughFunctionMode(TorchFunctionMode):
        def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return function(*args, **(kwargs or {}))

    class DerivedTensor(torch.Tensor):
        pass

    register_plan_in_compiled_step(step_module, launches, operator_number, random_tensors)
    q, k, v = random_tensors

    def call_step_with_first_tensor(x: Any = q) -> Any:
        return step_module.call(operator_number, x, k, v, *SCALAR_ARGUMENTS, False)

    def check_that_step_does_not_launch(x: Any) -> Any:
        assert call_step_with_first_tensor(x) is None
        assert call_step_with_first_tensor() is None
        return x.sum()

    for context in (PassThroughDispatchMode(), PassThroughFunctionMode(), torch.device("meta"), torch.autocast("cpu")):
        with context:
            assert call_step_with_first_tensor() is None
    assert call_step_with_first_tensor(q.as_subclass(DerivedTensor)) is None
    assert call_step_with_first_tensor(torch.nn.Parameter(q, requires_grad=False)) is not None
    torch.func.vmap(check_that_step_does_not_launch)(q)
    torch.func.grad(check_that_step_does_not_launch)(q)
    torch.jit.trace(check_that_step_does_not_launch, q, check_trace=False)
    with torch.autograd.forward_ad.dual_level():
        assert call_step_with_first_tensor(torch.autograd.forward_ad.make_dual(q, q)) is None
    with torch.inference_mode():
        assert call_step_with_first_tensor().is_inference()
    assert call_step_with_first_tensor() is not None


def test_statistics_are_computed_for_gradients_and_returned_on_request(
    step_module: Any, launches: LaunchRecorder, operator_number: int, random_tensors: Any
) -> None:
    q, k, v = random_tensors
    q.requires_grad_()
    assert step_module.call(operator_number, q, k, v, *SCALAR_ARGUMENTS, False) is None
    stats = (torch.empty(0), (1, 2, 8, 1), (16, 8, 1, 1), float("-inf"))
    plan = make_plan_description(launches, (make_output_description(q), stats), (*LAUNCH_ROW, (4, OUTPUT, 1, 0)))
    assert step_module.learn(plan, False, 0, operator_number, q, k, v, *SCALAR_ARGUMENTS, True)
    o = step_module.call(operator_number, q, k, v, *SCALAR_ARGUMENTS, False)
    assert o.requires_grad
    o, found = step_module.call(operator_number, q, k, v, *SCALAR_ARGUMENTS, True)
    assert (found == float("-inf")).all()
    assert not found.requires_grad
    with torch.no_grad():
        assert step_module.call(operator_number, q, k, v, *SCALAR_ARGUMENTS, False) is None
    packed: list[Any] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: packed.append(x) or x, lambda x: x):
        step_module.call(operator_number, q, k, v, *SCALAR_ARGUMENTS, False)
    assert len(packed) == 5


@pytest.fixture
def teach_forward_call(
    step_module: Any, launches: LaunchRecorder, operator_number: int, random_tensors: Any
) -> Callable[..., Any]:
    """Register a forward plan with statistics in the operators' C++ code; return a function that calls it there."""
    q, k, v = random_tensors
    stats = (torch.empty(0), (1, 2, 8, 1), (16, 8, 1, 1), None)
    plan = make_plan_description(launches, (make_output_description(q), stats), (*LAUNCH_ROW, (4, OUTPUT, 1, 0)))
    assert step_module.learn(plan, False, 0, operator_number, q, k, v, *SCALAR_ARGUMENTS, True)
    return lambda *given: step_module.call(operator_number, *given, *SCALAR_ARGUMENTS, True)


def test_python_computes_gradients_until_a_plan_is_registered(
    step_module: Any, launches: LaunchRecorder, operator_number: int, random_tensors: Any, teach_forward_call: Any
) -> None:
    q, k, v = (x.detach().clone().requires_grad_(index < 2) for index, x in enumerate(random_tensors))
    d_o = torch.ones_like(q)
    o, stats = teach_forward_call(q, k, v)
    d_q, d_k = torch.autograd.grad(o, (q, k), d_o)
    assert ((d_q == 1) & (d_k == 2)).all()
    assert launches.requests == [(operator_number, 6, SCALAR_ARGUMENTS, 0)]
    row = ((0, INPUT, 0, 0), (1, INPUT, 1, 0), (2, INPUT, 2, 0), (3, INPUT, 3, 0), (4, OUTPUT, 0, 0), (5, OUTPUT, 1, 0))
    plan = make_plan_description(launches, (make_output_description(q), make_output_description(k)), row)
    assert step_module.learn(plan, True, 0, operator_number, d_o, o.detach(), stats, q, k, v, *SCALAR_ARGUMENTS)
    o, stats = teach_forward_call(q, k, v)
    d_q, d_k = torch.autograd.grad(o, (q, k), d_o)
    found = [x.data_ptr() for x in (d_o, o, stats, q, d_q, d_k)]
    assert launches.seen[-1][0] == found
    assert len(launches.requests) == 1
    # A gradient that is optional is another plan, and so are gradients of gradients.
    o, _ = teach_forward_call(q, k, v.requires_grad_())
    torch.autograd.grad(o, v, d_o)
    assert launches.requests[-1] == (operator_number, 6, SCALAR_ARGUMENTS, 0b100)
    v.requires_grad_(False)
    o, _ = teach_forward_call(q, k, v)
    torch.autograd.grad(o, q, d_o, create_graph=True)
    assert len(launches.requests) == 3
    o, _ = teach_forward_call(q, k, v)
    launches.status = 7
    with pytest.raises(ValueError, match="function 0 answered 7"):
        torch.autograd.grad(o, q, d_o)


def test_gradients_of_a_backward_pass_share_one_allocation(
    step_module: Any, launches: LaunchRecorder, operator_number: int, random_tensors: Any, teach_forward_call: Any
) -> None:
    """The gradients are separate aligned tensors in one allocation, which lives as long as one of them does."""
    q, k = (x.detach().clone().requires_grad_() for x in random_tensors[:2])
    v, d_o = random_tensors[2], torch.ones_like(q)
    o, stats = teach_forward_call(q, k, v)
    row = ((0, INPUT, 0, 0), (4, OUTPUT, 0, 0), (5, OUTPUT, 1, 0))
    rows_first = torch.empty(0), tuple(k.shape), (64, 4, 8, 1), 3.0
    plan = make_plan_description(launches, (make_output_description(q), rows_first), row)
    assert step_module.learn(plan, True, 0, operator_number, d_o, o.detach(), stats, q, k, v, *SCALAR_ARGUMENTS)
    d_q, d_k = torch.autograd.grad(o, (q, k), d_o)
    assert launches.requests == []
    assert launches.seen[-1][0][4:] == [d_q.data_ptr(), d_k.data_ptr()]
    assert d_k.data_ptr() - d_q.data_ptr() == 512 > d_q.nbytes
    assert (d_q.stride(), d_k.stride(), d_k.dtype) == (q.stride(), (64, 4, 8, 1), torch.float32)
    assert d_q.untyped_storage().data_ptr() == d_k.untyped_storage().data_ptr()
    assert not d_q._is_view()
    version = d_k._version
    d_q.add_(1)
    assert d_k._version == version
    del d_q
    assert (d_k == 3).all()


def test_autograd_still_checks_for_second_use_and_inplace_changes(
    launches: LaunchRecorder, random_tensors: Any, teach_forward_call: Any
) -> None:
    q, k, v = random_tensors
    q.requires_grad_()
    d_o = torch.ones_like(q)
    o, _ = teach_forward_call(q, k, v)
    o.backward(d_o)
    with pytest.raises(RuntimeError, match="second time"):
        o.backward(d_o)
    o, _ = teach_forward_call(q, k, v)
    k.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        o.backward(d_o)


def test_a_failed_launch_raises_an_error(
    step_module: Any, launches: LaunchRecorder, operator_number: int, random_tensors: Any
) -> None:
    register_plan_in_compiled_step(step_module, launches, operator_number, random_tensors)
    launches.status = 9
    with pytest.raises(ValueError, match="function 0 answered 9"):
        step_module.call(operator_number, *random_tensors, *SCALAR_ARGUMENTS, False)


def test_the_compiled_step_copies_inputs_that_the_plan_marks_for_copying(
    step_module: Any, launches: LaunchRecorder, operator_number: int, random_tensors: Any
) -> None:
    q, k, v = (x.transpose(1, 2) for x in random_tensors)
    plan = make_plan_description(launches, (make_output_description(q),), LAUNCH_ROW, copied=0b1)
    assert step_module.learn(plan, False, 0, operator_number, q, k, v, *SCALAR_ARGUMENTS, False)
    step_module.call(operator_number, q, k, v, *SCALAR_ARGUMENTS, False)
    found = launches.seen[-1][0]
    assert found[0] != q.data_ptr()
    assert found[1] == k.data_ptr()


DIM_CONDITIONS = ((0, 0, 0, 0), (1, 0, 1, 0), (2, 0, 1, 0), (3, 0, 2, -1))


def test_a_registered_plan_can_require_equal_dims(step_module: Any, launches: LaunchRecorder) -> None:
    operator_number = step_module.define(2, 0, 0, ((0, 0, 0, 0), (1, 0, 1, 0), (0, 0, 1, 0)), ())
    x, y = torch.randn(10, 4), torch.randn(12, 4)
    plan = make_plan_description(launches, (make_output_description(x),), ())
    assert not step_module.learn(plan, False, 0, operator_number, x, y, False)
    assert step_module.learn(plan, False, 0, operator_number, x, x, False)
    assert step_module.call(operator_number, y, y, False) is not None
    assert step_module.call(operator_number, x, y, False) is None


def test_calls_with_different_dims_share_a_registered_plan(step_module: Any, launches: LaunchRecorder) -> None:
    operator_number = step_module.define(3, 0, 0, DIM_CONDITIONS, ())
    x, y, z = (torch.randn(size, 4) for size in (10, 12, 12))

    def register_plan_up_to_size(most: int) -> None:
        outputs = ((x, ((0, 1, 0), 4), (4, 1), None),)
        row = ((0, INPUT, 0, 0), (1, OUTPUT, 0, 0), (2, NUMBER, 0, most), (3, PIECE, 1, 0), (4, PIECE, 2, 0))
        more = {"parameters": ((0, NUMBER, 0, (5, 2, 0)), (1, NUMBER, 0, (0, 1, 2))), "pieces": (0, (0, 64, 1), 8)}
        limits = ((0, 1, most), (2, 0, 100))
        plan = make_plan_description(launches, outputs, row, limits=limits, cost=most, token=most, **more)
        assert step_module.learn(plan, False, 0, operator_number, x, y, z, 50, True, False)

    def call_and_get_shape_and_launch_values(*given: Any) -> Any:
        o = step_module.call(operator_number, *given, True, False)
        return None if o is None else (tuple(o.shape), launches.seen[-1][0][2], launches.seen[-1][3][:2])

    register_plan_up_to_size(100)
    register_plan_up_to_size(20)
    wide = torch.randn(50, 4)
    assert call_and_get_shape_and_launch_values(x, y, z, 8) == ((10, 4), 20, [25, 7])
    assert call_and_get_shape_and_launch_values(wide, y, z, 8) == ((50, 4), 100, [105, 7])
    sizes = []
    for rows in (12, 24):
        call_and_get_shape_and_launch_values(wide, *[torch.randn(rows, 4)] * 2, 8)
        sizes.append(launches.seen[-1][0][4] - launches.seen[-1][0][3])
    assert sizes == [12 * 64, 24 * 64]
    assert call_and_get_shape_and_launch_values(wide, y, wide, 8) is None  # k and v of other lengths
    assert call_and_get_shape_and_launch_values(torch.randn(101, 4), y, z, 8) is None
    assert call_and_get_shape_and_launch_values(x, y, z, 102) is None
    assert call_and_get_shape_and_launch_values(x, y, z, 8.0) is None
    assert step_module.forget(20) == 1
    assert call_and_get_shape_and_launch_values(x, y, z, 8) == ((10, 4), 100, [25, 7])


def test_the_number_of_registered_plans_is_bounded(
    step_module: Any, launches: LaunchRecorder, operator_number: int, random_tensors: Any
) -> None:
    class PlanHolder:
        pass

    held = PlanHolder()
    gone = weakref.ref(held)
    register_plan_in_compiled_step(step_module, launches, operator_number, random_tensors, holds=held, token=2)
    del held
    assert step_module.used(2) > step_module.used(3) == 0
    for index in range(3000):
        plan = make_plan_description(launches, (make_output_description(random_tensors[0]),), ())
        assert step_module.learn(plan, False, 0, operator_number, *random_tensors, None, index, "top_left", False)
    gc.collect()
    assert gone() is None
    assert step_module.call(operator_number, *random_tensors, None, 2999, "top_left", False) is not None
    assert 1000 < step_module.forget(1) <= 2048
    assert step_module.forget(1) == 0


def test_plans_registered_by_ended_threads_are_released(
    step_module: Any, launches: LaunchRecorder, operator_number: int, random_tensors: Any
) -> None:
    class PlanHolder:
        pass

    def register_plan_in_a_thread(held: Any, token: int) -> None:
        thread = threading.Thread(
            target=register_plan_in_compiled_step,
            args=(step_module, launches, operator_number, random_tensors),
            kwargs={"holds": held, "token": token},
        )
        thread.start()
        thread.join()

    held = PlanHolder()
    gone = weakref.ref(held)
    register_plan_in_compiled_step(step_module, launches, operator_number, random_tensors, token=1)
    register_plan_in_a_thread(held, 2)
    del held
    for _ in range(1000):  # Python may join a thread before the system has ended it
        register_plan_in_a_thread(None, 3)
        gc.collect()
        if gone() is None:
            break
    assert gone() is None
    assert (step_module.forget(2), step_module.forget(1)) == (0, 1)
    assert step_module.forget(3) < 1000


def test_a_plan_is_not_released_during_its_launch(
    step_module: Any, launches: LaunchRecorder, operator_number: int, random_tensors: Any
) -> None:
    steps: list[str] = []
    begun, proceed = threading.Event(), threading.Event()

    def launch_slowly(_address: int) -> int:
        begun.set()
        proceed.wait(10)
        steps.append("launched")
        return 0

    slow = ctypes.CFUNCTYPE(ctypes.c_int, Address)(launch_slowly)
    step_module.connect(
        get_function_address(slow),
        get_function_address(launches.current),
        get_function_address(launches.capturing),
        launches.differentiate,
        "cpu",
    )

    def register_plan_and_call() -> None:
        register_plan_in_compiled_step(step_module, launches, operator_number, random_tensors)
        step_module.call(operator_number, *random_tensors, *SCALAR_ARGUMENTS, False)

    thread = threading.Thread(target=register_plan_and_call)
    thread.start()
    begun.wait(10)
    threading.Timer(0.2, proceed.set).start()
    assert step_module.forget(None) == 1
    steps.append("forgotten")
    thread.join()
    assert steps == ["launched", "forgotten"]


def test_the_compiled_step_build_command_names_its_source() -> None:
    build = Build.for_torch(torch)
    assert Path(build.command[-5]).name == "compiled.cpp"
