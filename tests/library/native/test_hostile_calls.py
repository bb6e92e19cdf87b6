"""Hostile input to the calls compiled in C: they return, raise, or leave the call to Python.

``test_sanitized.py`` runs the same with AddressSanitizer and UndefinedBehaviorSanitizer.
"""

from __future__ import annotations

import ctypes
import gc
import itertools
import random
import sys
import threading
from typing import Any

import pytest

from cudnn_backend_py import Descriptor, DescriptorType, capi, library
from cudnn_backend_py.native.compiled import load_compiled_library
from cudnn_backend_py.native.driver import find_driver_stub
from cudnn_backend_py.native.fast_call import (
    NEEDS_PYTHON,
    PlanCallWithDict,
    PlanCallWithTuple,
    install_compiled_call_method,
)
from cudnn_backend_py.native.launch import Launcher
from cudnn_backend_py.plans.plan import Plan
from tests.library.native.test_fast_call import (
    RETURN_SUCCESS,
    STREAM,
    FakeDlpackBuffer,
    FakeDlpackFramework,
    buffers,
    framework,
    launcher,
    make_tuple_call,
    plan,
)

__all__ = ["framework", "launcher", "plan"]

HOSTILE_OBJECTS: list[Any] = [
    None, 0, 1, -1, 1 << 64, 1 << 200, 1.5, "x", b"x", (), [], {}, object, object(), len, sys, FakeDlpackBuffer, ...,
    True,
]  # fmt: skip
EXTREME_NUMBERS = [0, 1, -1, 2**31, 2**62, 2**63 - 1, -(2**63), 2**40]


def is_refused_or_left_to_python(status: int) -> bool:
    """Return whether a call was left to Python, or refused by cuDNN for lack of a handle."""
    return status == NEEDS_PYTHON or status >= 1000


@pytest.mark.parametrize(
    "given", [*HOSTILE_OBJECTS, (None,) * 4, (0, 1, 2, 3), (FakeDlpackBuffer,) * 4, buffers()[:3], list(buffers())]
)
def test_calls_with_invalid_arguments_are_left_to_python(
    plan: Plan, launcher: Launcher, framework: FakeDlpackFramework, given: Any
) -> None:
    call = make_tuple_call(plan, launcher, framework)
    for _ in range(3):
        assert call.go(given) == NEEDS_PYTHON


def test_a_call_with_too_many_buffers_does_not_crash(
    plan: Plan, launcher: Launcher, framework: FakeDlpackFramework
) -> None:
    assert is_refused_or_left_to_python(make_tuple_call(plan, launcher, framework).go(buffers() * 1000))


@pytest.mark.parametrize("seed", range(20))
def test_random_tensor_fields_do_not_crash(
    plan: Plan, launcher: Launcher, framework: FakeDlpackFramework, seed: int
) -> None:
    draw = random.Random(seed)
    call = make_tuple_call(plan, launcher, framework)
    for _ in range(100):
        rank = draw.choice([0, 1, 4, 64])
        row = [tuple(draw.choice(EXTREME_NUMBERS) for _ in range(rank)) for _ in range(2)]
        changes = {
            "data": draw.choice([0, 1, 2**63, 2**64 - 1]),
            "offset": draw.choice([0, 1, 2**64 - 1]),
            "code": draw.randrange(256),
            "bits": draw.randrange(256),
            "kind": draw.choice([-1, 0, 1, 2, 2**31 - 1]),
            "ordinal": draw.choice([-1, 0, 1, 2**31 - 1]),
        }
        kept = {name: value for name, value in changes.items() if draw.random() < 0.4}
        if draw.random() < 0.8:
            kept |= {"dims": row[0], "strides": draw.choice([row[1], None])}
        assert is_refused_or_left_to_python(call.go(buffers(**kept)))


def test_a_framework_with_raising_functions_is_handled(
    plan: Plan, launcher: Launcher, framework: FakeDlpackFramework
) -> None:
    call = make_tuple_call(plan, launcher, framework)
    framework.stream = 0  # another one
    assert call.go(buffers()) < 0
    framework.stream = STREAM
    assert call.go(buffers(is_readable=False)) == NEEDS_PYTHON


def test_recursive_calls_by_a_framework_are_handled(
    plan: Plan, launcher: Launcher, framework: FakeDlpackFramework
) -> None:
    depth = itertools.count()
    call: PlanCallWithTuple
    read = framework._fill_dltensor

    def call_again_and_read(buffer: FakeDlpackBuffer, out: Any) -> int:
        if next(depth) < 20:
            call.go(buffers(data=0x50000))
        return read(buffer, out)

    framework._fill_dltensor = call_again_and_read  # type: ignore[method-assign]
    framework.__init__()  # type: ignore[misc]
    call = make_tuple_call(plan, launcher, framework)
    assert is_refused_or_left_to_python(call.go(buffers()))


def test_threads_may_run_native_calls_concurrently(
    plan: Plan, launcher: Launcher, framework: FakeDlpackFramework
) -> None:
    call = make_tuple_call(plan, launcher, framework)
    answers: list[int] = []

    def call_repeatedly() -> None:
        answers.extend(call.go(buffers(data=0x40000 + 0x100 * number)) for number in range(100))

    threads = [threading.Thread(target=call_repeatedly) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(map(is_refused_or_left_to_python, answers))
    assert len(answers) == 400


def make_dict_call(
    plan: Plan, launcher: Launcher, framework: FakeDlpackFramework
) -> tuple[PlanCallWithDict, list[object]]:
    keys: list[object] = [object() for _ in launcher.uids]
    places = [(key, place) for place, key in enumerate(keys)] + [(uid, at) for at, uid in enumerate(launcher.uids)]
    call = PlanCallWithDict(
        library(),
        plan.descriptor.pointer,
        launcher.make_empty_pack(),
        launcher.filler,
        framework.exchange(),
        places,
        on_host=frozenset(),
        row=[0] * len(keys),
        own_offset=0,
    )
    return call, keys


def test_calls_with_invalid_buffer_dicts_are_left_to_python(
    plan: Plan, launcher: Launcher, framework: FakeDlpackFramework
) -> None:
    call, keys = make_dict_call(plan, launcher, framework)
    whole = dict.fromkeys(keys, 0x10000)
    for value in HOSTILE_OBJECTS:
        assert call.go(None, value, 0x10000) == NEEDS_PYTHON
        assert call.go(None, dict.fromkeys(keys, value), 0x10000) < 0 or value in (1, True)
        if not isinstance(value, int):
            assert call.go(value, whole, 0x10000) == NEEDS_PYTHON or value is None
        if value is not True and value != 1:
            assert call.go(None, whole, value) == NEEDS_PYTHON
        if type(value).__hash__ is not None:
            assert call.go(None, whole | {value: 0x10000}, 0x10000) == NEEDS_PYTHON or value in launcher.uids
    for count in (0, 1, 2, 4, 100):
        assert call.go(*[whole] * count) == NEEDS_PYTHON  # type: ignore[arg-type]


class FastCallable:
    """A callable with a compiled path that may take calls; its Python path returns how many arguments it got."""

    __slots__ = ("_fast",)

    def __init__(self, fast: object) -> None:
        self._fast = fast

    def __call__(self, *given: Any, **named: Any) -> tuple[int, int]:
        """Return the numbers of positional and keyword arguments."""
        return len(given), len(named)


install_compiled_call_method(FastCallable)


@pytest.mark.parametrize("fast", [*HOSTILE_OBJECTS, (1,), (None,), ([],)])
def test_a_callable_with_an_invalid_fast_call_is_handled(fast: object) -> None:
    called = FastCallable(fast)
    assert called(1, 2, x=3) == (2, 1)
    assert called(*range(10_000)) == (10_000, 0)
    assert called(1) == (1, 0)


def test_a_callable_without_its_fast_call_attribute_is_handled() -> None:
    called = FastCallable(None)
    del called._fast
    assert called(1, y=2) == (1, 1)
    with pytest.raises(TypeError):
        FastCallable.__call__(3)


@pytest.mark.parametrize("fast", [library().get_destructor_type("cudnnDestroy"), RETURN_SUCCESS, capi])
def test_a_fast_call_of_another_type_is_ignored(fast: object) -> None:
    assert FastCallable(fast)(1) == (1, 0)


def test_native_objects_are_destroyed_in_any_order_and_thread() -> None:
    end = library().get_destructor_type("cudnnBackendDestroyDescriptor")
    for arguments in ((), (1,), (1, 2, 3), ((), "x"), ((), -1), ((), 1 << 64)):
        with pytest.raises((TypeError, OverflowError)):
            end(*arguments)  # type: ignore[arg-type]
    nothing = ctypes.c_void_p()
    for _ in range(1000):
        end((nothing,), ctypes.addressof(nothing))
    made = [Descriptor(DescriptorType.TENSOR) for _ in range(400)]
    random.Random(1).shuffle(made)
    cycle: list[Any] = [made[:100]]
    cycle.append(cycle)
    threads = [threading.Thread(target=made[at : at + 100].clear) for at in range(100, 400, 100)]
    made.clear()
    del cycle
    for thread in threads:
        thread.start()
    gc.collect()
    for thread in threads:
        thread.join()


@pytest.mark.parametrize("error", [KeyError("mine"), KeyboardInterrupt(), RecursionError(), MemoryError()], ids=repr)
def test_callbacks_may_raise_recurse_and_drop_descriptors(error: BaseException) -> None:
    def raise_error(*_: object) -> None:
        raise error

    def recurse(*given: object) -> None:
        recurse(*given)

    def drop_descriptor(*_: object) -> None:
        Descriptor(DescriptorType.RNG)
        gc.collect()

    for callback in (raise_error, recurse, drop_descriptor):
        caught: BaseException | None = None
        capi.cudnnSetCallback(0, None)
        try:
            capi.cudnnSetCallback(0b1110, callback)
            Descriptor(DescriptorType.MATMUL).close()
        except (type(error), RecursionError) as raised:
            caught = raised
        finally:
            _remove_callback()
        assert (caught is error) if callback is raise_error else (caught is None) is (callback is drop_descriptor)


def _remove_callback() -> None:
    for _ in range(3):
        try:
            capi.cudnnSetCallback(0, None)
        except BaseException:  # its exception when it was called for this
            continue
        return


def test_functions_of_the_driver_stub_accept_null() -> None:
    """The stub checks the addresses it writes to and ignores its other arguments."""
    path = find_driver_stub()
    assert path is not None
    stub = ctypes.CDLL(str(path))
    for name in ("cuDriverGetVersion", "cuDeviceGetCount"):
        assert stub[name](None) == 1
    for name in ("cuGetErrorString", "cuGetErrorName"):
        assert stub[name](0, None) == 1
        text = ctypes.c_char_p()
        assert stub[name](-1, ctypes.byref(text)) == 0
        assert text.value
    for name in ("cuLibraryLoadData", "cuLibraryLoadFromFile", "cuLibraryGetKernel", "cuKernelGetFunction"):
        assert stub[name](*[None] * 8) == 1
        handle = ctypes.c_void_p()
        assert stub[name](ctypes.byref(handle), *[None] * 7) == 0
        assert handle.value
    assert stub.cuKernelGetAttribute(None, 0, None, 0) == 1
    assert stub.cuLibraryUnload(None) == 0
    assert stub.cuInit(0) == 100


def test_the_tests_use_the_compiled_library() -> None:
    assert load_compiled_library() is not None
