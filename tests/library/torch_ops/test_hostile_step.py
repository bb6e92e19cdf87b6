"""Hostile input to the C++ code that runs torch operators: it answers, raises an error, or leaves calls to Python.

As in ``tests/gpu/torch_ops/test_compiled.py``, no kernel is launched. ``test_sanitized_step.py`` adds sanitizers.
"""

from __future__ import annotations

import itertools
import random
import threading
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch", reason="did not run: torch is not installed, and these tests need it")

from tests.gpu.torch_ops.conftest import step_module  # noqa: E402
from tests.gpu.torch_ops.test_compiled import (  # noqa: E402
    LAUNCH_ROW,
    SCALAR_ARGUMENTS,
    LaunchRecorder,
    get_function_address,
    launches,
    make_output_description,
    make_plan_description,
    operator_number,
    random_tensors,
    register_plan_in_compiled_step,
)

__all__ = ["launches", "operator_number", "random_tensors", "step_module"]

HOSTILE_OBJECTS: list[Any] = [
    None,
    0,
    -1,
    1 << 31,
    1 << 32,
    1 << 70,
    -(1 << 70),
    1.5,
    "x",
    "",
    b"",
    (),
    [],
    {},
    object(),
    int,
]
PARTS: list[Any] = [(None,), ((0, 0, 0, 0),), ((-1, 0, 0, 0),), ((0, 1, 99, 0),), ((9, 9, 9),)]
EXPECTED_ERRORS = (TypeError, ValueError, OverflowError, RuntimeError, IndexError)


def call_or_return_error(function: Any, *given: Any) -> Any:
    """Call a function of the torch operators' C++ module; return its result, or an error of EXPECTED_ERRORS."""
    try:
        return function(*given)
    except EXPECTED_ERRORS as error:
        return error


def test_calling_a_compiled_operator_handles_any_argument(
    step_module: Any, launches: LaunchRecorder, operator_number: int, random_tensors: Any
) -> None:
    register_plan_in_compiled_step(step_module, launches, operator_number, random_tensors)
    for value in HOSTILE_OBJECTS:
        assert step_module.call(value) is None
        for number in (operator_number, value):
            assert (
                call_or_return_error(step_module.call, number, *random_tensors, *SCALAR_ARGUMENTS[:2], value) is None
                or number == operator_number
            )
            assert step_module.call(number, *[value] * 7) is None
    for count in range(40):
        assert step_module.call(operator_number, *(random_tensors * 20)[:count]) is None
        assert step_module.call(operator_number, *random_tensors, *[None] * count) is None
    assert step_module.call() is None
    assert launches.seen == []


@pytest.mark.parametrize("seed", range(10))
def test_registering_plans_in_cpp_handles_any_argument(
    step_module: Any, launches: LaunchRecorder, operator_number: int, random_tensors: Any, seed: int
) -> None:
    draw = random.Random(seed)
    whole = make_plan_description(
        launches, (make_output_description(random_tensors[0]),), LAUNCH_ROW, pieces=(100, 50), own=1
    )
    for _ in range(300):
        plan = list(whole)
        for place in draw.sample(range(2, len(plan) - 1), draw.choice([0, 1, 2])):
            plan[place] = draw.choice(
                [*HOSTILE_OBJECTS, (None,), ((0, 0, 0, 0),), ((-1, 0, 0, 0),), ((0, 1, 99, 0),), ((9, 9, 9),)]
            )
        given: list[Any] = [tuple(plan), False, 0, operator_number, *random_tensors, *SCALAR_ARGUMENTS, False]
        if draw.random() < 0.5:
            given[draw.randrange(len(given))] = draw.choice(HOSTILE_OBJECTS)
        if draw.random() < 0.2:
            given = given[: draw.randrange(len(given))]
        if call_or_return_error(step_module.learn, *given) is True:
            call_or_return_error(step_module.call, operator_number, *random_tensors, *SCALAR_ARGUMENTS, False)
        step_module.forget(None)


def test_plans_with_invalid_tensor_indices_are_refused(
    step_module: Any, launches: LaunchRecorder, operator_number: int, random_tensors: Any
) -> None:
    made = (make_output_description(random_tensors[0]),)

    def is_refused(outputs: Any, row: Any, **more: Any) -> bool:
        plan = make_plan_description(launches, outputs, row, **more)
        return isinstance(
            call_or_return_error(
                step_module.learn, plan, False, 0, operator_number, *random_tensors, *SCALAR_ARGUMENTS, False
            ),
            RuntimeError,
        )

    assert not is_refused(made, LAUNCH_ROW)
    for row in (
        *(((at, 0, 0, 0),) for at in (-1, -(1 << 31))),
        *(((0, kind, index, 0),) for kind in (0, 1, 2) for index in (-1, 3, 99)),
        ((0, 7, 0, 0),),
        ((0, -1, 0, 0),),
    ):
        assert is_refused(made, row)
        assert is_refused(made, (), parameters=row)
    assert is_refused(made * 20, ())
    assert is_refused(made, (), pieces=(1,) * 30)
    assert is_refused(made, (), pieces=(1,), own=1)
    assert is_refused(made, (), own=0)
    for limits in (((-1, 0, 0),), ((12, 0, 0),), ((1 << 30, 0, 0),)):
        assert is_refused(made, (), limits=limits)
    for number in ((0, 1, -1), (0, 1, 12)):
        assert is_refused(((made[0][0], (number,), (1,), None),), ())


def test_plans_with_invalid_output_sizes_are_handled(
    step_module: Any, launches: LaunchRecorder, operator_number: int, random_tensors: Any
) -> None:
    for dims in ((-1,), (1 << 62, 1 << 62), (1 << 40, 1 << 40), (1 << 62,)):
        strides = (1,) * len(dims)
        for number in (dims, tuple((base, 1 << 62, 2) for base in dims)):
            plan = make_plan_description(launches, ((random_tensors[0], number, strides, None),), ())
            call_or_return_error(
                step_module.learn, plan, False, 0, operator_number, *random_tensors, *SCALAR_ARGUMENTS, False
            )
            made = call_or_return_error(step_module.call, operator_number, *random_tensors, *SCALAR_ARGUMENTS, False)
            assert isinstance(made, RuntimeError) or made is None or made.numel() == 0
            step_module.forget(None)
    for pieces in ((1 << 62,) * 4, (-1,), (-(1 << 63), 1)):
        plan = make_plan_description(launches, (make_output_description(random_tensors[0]),), (), pieces=pieces)
        assert step_module.learn(plan, False, 0, operator_number, *random_tensors, *SCALAR_ARGUMENTS, False)
        assert isinstance(
            call_or_return_error(step_module.call, operator_number, *random_tensors, *SCALAR_ARGUMENTS, False),
            RuntimeError,
        )
        step_module.forget(None)


def test_defining_an_operator_in_cpp_handles_any_argument(step_module: Any) -> None:
    for number, value in itertools.product(range(6), HOSTILE_OBJECTS):
        given: list[Any] = [3, 0b111, 0, (), (), -1]
        given[number] = value
        call_or_return_error(step_module.define, *given)
    for count in (-1, -(1 << 31), 13, 1 << 30):
        assert isinstance(call_or_return_error(step_module.define, count, 0, 0, (), ()), RuntimeError)
    assert isinstance(call_or_return_error(step_module.define, 1, 0b110, 0, (), ()), RuntimeError)
    for loose in ((-1, 0, 0, 0), (99, 0, 0, 0), (0, -1, 0, 0), (0, 0, -1, 0), (0, 0, 12, 0)):
        assert isinstance(call_or_return_error(step_module.define, 3, 0, 0, (loose,), ()), RuntimeError)
        assert isinstance(call_or_return_error(step_module.define, 3, 0, 0, (), (loose,)), RuntimeError)
    for of in (-2, 1 << 30):
        assert isinstance(call_or_return_error(step_module.define, 3, 0, 0, (), (), of), RuntimeError)


def test_operator_calls_with_too_few_dims_or_numbers_are_handled(
    step_module: Any, launches: LaunchRecorder, random_tensors: Any
) -> None:
    """Give a tensor fewer dims, or fewer numbers, than the operator was defined for."""
    for loose in ((0, 200, 0, 0), (6, 1, 0, 0), (9, 1, 0, 0), (18, 1, 0, 0), (2, 9, 1, 1 << 30)):
        number = step_module.define(3, 0, 0, (loose,), (loose,))
        plan = make_plan_description(launches, (make_output_description(random_tensors[0]),), LAUNCH_ROW)
        for given in (
            random_tensors,
            [x.flatten() for x in random_tensors],
            [x.reshape(1, 1, 2, 1, 8, 1, 4) for x in random_tensors],
        ):
            call_or_return_error(step_module.learn, plan, False, 0, number, *given, *SCALAR_ARGUMENTS, False)
            call_or_return_error(step_module.call, number, *given, *SCALAR_ARGUMENTS, False)
            call_or_return_error(step_module.call, number, *given, False)


def test_tensors_of_many_dims_are_handled(step_module: Any, launches: LaunchRecorder, operator_number: int) -> None:
    many = [torch.zeros([1] * 60) for _ in range(3)]
    plan = make_plan_description(launches, (make_output_description(many[0]),), LAUNCH_ROW)
    call_or_return_error(step_module.learn, plan, False, 0, operator_number, *many, *SCALAR_ARGUMENTS, False)
    call_or_return_error(step_module.call, operator_number, *many, *SCALAR_ARGUMENTS, False)


def test_python_functions_that_raise_or_return_anything_are_handled(
    step_module: Any, launches: LaunchRecorder, operator_number: int, random_tensors: Any
) -> None:
    class PythonFunctionError(Exception):
        pass

    error = PythonFunctionError("mine")

    def raise_error(*_: object) -> int:
        raise error

    register_plan_in_compiled_step(step_module, launches, operator_number, random_tensors, notice=raise_error)
    with pytest.raises(PythonFunctionError) as caught:
        step_module.call(operator_number, *random_tensors, *SCALAR_ARGUMENTS, False)
    assert caught.value is error
    step_module.forget(None)
    for answer in HOSTILE_OBJECTS:
        register_plan_in_compiled_step(
            step_module, launches, operator_number, random_tensors, notice=lambda *_, answer=answer: answer
        )
        call_or_return_error(step_module.call, operator_number, *random_tensors, *SCALAR_ARGUMENTS, False)
        step_module.forget(None)


def test_invalid_results_of_the_gradient_function_are_handled(
    step_module: Any, launches: LaunchRecorder, operator_number: int, random_tensors: Any
) -> None:
    class GradientFunctionError(Exception):
        pass

    for answer in (*HOSTILE_OBJECTS, (None,), (1, 2, 3), (None, None, "x")):
        given = [x.clone().requires_grad_() for x in random_tensors]
        plan = make_plan_description(
            launches,
            (make_output_description(random_tensors[0]), make_output_description(random_tensors[0])),
            LAUNCH_ROW,
        )
        assert step_module.learn(plan, False, 0, operator_number, *given, *SCALAR_ARGUMENTS, True)
        launches.differentiate = lambda *_, answer=answer: answer  # type: ignore[method-assign]
        functions = [launches.go, launches.current, launches.capturing]
        set_c_functions_of_cpp_module(step_module, functions, launches.differentiate)
        o = step_module.call(operator_number, *given, *SCALAR_ARGUMENTS, False)
        if o is not None:
            call_or_return_error(o.sum().backward)
    error = GradientFunctionError("mine")

    def raise_error(*_: object) -> None:
        raise error

    set_c_functions_of_cpp_module(step_module, [launches.go, launches.current, launches.capturing], raise_error)
    o = step_module.call(operator_number, *given, *SCALAR_ARGUMENTS, False)
    with pytest.raises(GradientFunctionError) as caught:
        o.sum().backward()
    assert caught.value is error


def set_c_functions_of_cpp_module(step_module: Any, functions: list[Any], differentiate: Any) -> None:
    """Give the torch operators' C++ module the addresses of the C functions that it calls."""
    step_module.connect(*map(get_function_address, functions), differentiate, "cpu")


def test_setting_c_functions_of_the_cpp_module_takes_any_argument(step_module: Any, launches: LaunchRecorder) -> None:
    functions = [launches.go, launches.current, launches.capturing]
    for value in HOSTILE_OBJECTS:
        call_or_return_error(step_module.connect, value)
        call_or_return_error(step_module.connect, 0, 0, 0, None, value)
    call_or_return_error(step_module.connect, 0, 0, 0, None, "no device")
    set_c_functions_of_cpp_module(step_module, functions, launches.differentiate)


def test_invalid_plan_tokens_are_handled(step_module: Any) -> None:
    for value in HOSTILE_OBJECTS:
        call_or_return_error(step_module.forget, value)
        call_or_return_error(step_module.used, value)


def test_threads_may_register_call_and_drop_plans_concurrently(
    step_module: Any, launches: LaunchRecorder, operator_number: int, random_tensors: Any
) -> None:
    ended: list[int] = []

    def register_call_or_drop_plan(seed: int) -> None:
        draw = random.Random(seed)
        for _ in range(200):
            match draw.randrange(4):
                case 0:
                    step_module.forget(None)
                case 1:
                    register_plan_in_compiled_step(step_module, launches, operator_number, random_tensors)
                case _:
                    step_module.call(operator_number, *random_tensors, *SCALAR_ARGUMENTS, False)
        ended.append(seed)

    threads = [threading.Thread(target=register_call_or_drop_plan, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(ended) == 4
