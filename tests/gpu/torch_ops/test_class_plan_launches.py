"""The operators' C++ code launches a new dense shape by a plan that it learned with another shape of its class.

Its launches must equal Python's. Tensors are the host's and no kernel runs: compared are outputs,
addresses, and the arguments of the kernel before the plan. Needs torch and a C++ compiler.
"""

from __future__ import annotations

import ctypes
import random
from collections.abc import Iterator
from contextlib import nullcontext
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch", reason="did not run: torch is not installed, and these tests need it")

from cudnn_backend_py.execution.shape_class_plan import Sequences, ShapeClassPlan, StreamTableMemory  # noqa: E402
from cudnn_backend_py.graph.attention.shape_class import (  # noqa: E402
    ShapeClassBounds,
    find_best_shape_class_bounds,
    make_shape_class_graph,
    make_shape_class_problem,
)
from cudnn_backend_py.native.fast_call import _PlanCallWithTupleStruct  # noqa: E402
from cudnn_backend_py.system.version import Version  # noqa: E402
from cudnn_backend_py.torch_ops import compiled  # noqa: E402
from cudnn_backend_py.torch_ops.arguments import TENSORS, OperatorOptions  # noqa: E402
from cudnn_backend_py.torch_ops.compiled import DENSE_CLASS, make_shape_class_recipe  # noqa: E402
from cudnn_backend_py.torch_ops.operators import _allocate_output, _allocate_stats  # noqa: E402
from cudnn_backend_py.torch_ops.sequence_view import (  # noqa: E402
    make_attention_problem_of_call,
    make_sequence_view_of_call,
)
from tests.gpu.torch_ops.test_compiled import LaunchRecorder, get_function_address  # noqa: E402

H, D = 4, 16
OPERATOR_OPTIONS = OperatorOptions(None, 0.0, None, 0, False, None, False, None, None, "any")
TENSOR_LAYOUTS = ("rows first", "heads first", "slices", "part of a longer buffer")
WORKSPACE_BYTES = 4096


class UnbuiltShapeClassPlan(ShapeClassPlan):
    """A plan for a class of shapes that has a graph but is not built."""

    def __init__(self, problem: Any, bounds: ShapeClassBounds, backward: bool) -> None:
        self.problem, self.bounds = make_shape_class_problem(problem, bounds, backward=backward), bounds
        self._read_graph(make_shape_class_graph(self.problem, backward, Version(9, 19, 0), 90), backward)
        self.plan = SimpleNamespace(workspace_bytes=WORKSPACE_BYTES)  # type: ignore[assignment]
        self._state = SimpleNamespace(
            stream=4096, context=0, launch=None, launcher=SimpleNamespace(make_empty_pack=lambda: None, filler=None)
        )

    def get_state(self) -> Any:
        return self._state

    def allocate_tables(self, stream: int) -> StreamTableMemory:
        assert stream == self._state.stream
        return StreamTableMemory(1 << 40, [])


class FakePreparedLaunchCall:
    """Placeholder for a prepared launch, with only the fields that the operators' C++ code reads and writes."""

    def __init__(self, *_given: Any, given: int, tail: Any, prepare: Any, **_more: Any) -> None:
        self.row = (ctypes.c_uint64 * (given + len(tail)))(*[0] * given, *tail)
        self.call = _PlanCallWithTupleStruct()
        self.call.row = ctypes.addressof(self.row)
        self.call.run.prepare = ctypes.cast(ctypes.addressof(self.row), type(self.call.run.prepare))
        self.address = ctypes.addressof(self.call)


class FakePrepareKernel:
    def __init__(self, _stream: int) -> None:
        self.row = ctypes.create_string_buffer(compiled.LengthsAndOffsetsKernel.size)  # type: ignore[attr-defined]

    size = 8 * 100

    def make_kernel_data(self, _blocks: int) -> Any:
        return None


class RecordedCompiledStep:
    """The operators' C++ code with one plan that a test registers, and a record of the launches that it makes."""

    def __init__(self, step_module: Any, launches: LaunchRecorder) -> None:
        self.module, self.launches = step_module, launches
        self.recipe: Any = None
        self.seen: list[tuple[list[int], list[int], bool]] = []
        self.make_sequence_view_of_call: tuple[int, int] | None = (
            None  # a place of the row, and the number of bytes to read there
        )
        self.bytes = b""
        self.go = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)(self._record_launch)
        operators = [step_module.define(len(TENSORS), 0b111, 0, (), ())]
        operators.append(step_module.define(len(TENSORS), 0b111, 0, (), (), operators[0]))
        self.dense, self.dense_class = operators

    def _record_launch(self, at: int) -> int:
        call, recipe = _PlanCallWithTupleStruct.from_address(at), self.recipe
        words = (ctypes.c_int64 * 100).from_address(recipe.prepared)
        if self.make_sequence_view_of_call is not None:
            self.bytes = ctypes.string_at(
                recipe.call.row[self.make_sequence_view_of_call[0]], self.make_sequence_view_of_call[1]
            )
        self.seen.append((list(recipe.call.row), list(words), bool(call.run.prepare)))
        return 0

    def teach(self, recipe: Any, backward: bool, inputs: Any, *more: Any) -> bool:
        self.recipe = recipe
        assert recipe.operator == DENSE_CLASS
        return bool(
            self.module.learn(
                recipe.to_tuple(), backward, 0, self.dense_class, *[x for _, x in inputs], *OPERATOR_OPTIONS, *more
            )
        )


@pytest.fixture
def step(step_module: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[RecordedCompiledStep]:
    launches = LaunchRecorder()
    made = RecordedCompiledStep(step_module, launches)
    monkeypatch.setattr(compiled, "PlanCallWithTuple", FakePreparedLaunchCall)
    monkeypatch.setattr(compiled, "LengthsAndOffsetsKernel", FakePrepareKernel)
    monkeypatch.setattr(compiled, "in_context", lambda _context: nullcontext())
    functions = (
        get_function_address(made.go),
        get_function_address(launches.current),
        get_function_address(launches.capturing),
    )
    step_module.connect(*functions, launches.differentiate, "cpu")
    yield made
    step_module.forget(None)


def make_random_tensor(layout: str, b: int, s: int, heads: int = H) -> Any:
    if layout == "rows first":
        return torch.randn(b, s, heads, D).half().transpose(1, 2)
    if layout == "heads first":
        return torch.randn(b, heads, s, D).half()
    if layout == "slices":
        return torch.randn(b, s, 3, heads, D).half()[:, :, 1].transpose(1, 2)
    return torch.randn(b, s + 7, heads, D).half()[:, :s].transpose(1, 2)


def map_tensors_by_name(inputs: Any, outputs: Any) -> dict[str, Any]:
    return dict.fromkeys(("stats", "dbias", "dsink")) | dict(inputs) | dict(outputs)


def make_forward_call(q: Any, k: Any, v: Any, stats: bool, lengths: Any = (None, None)) -> tuple[Any, Any]:
    given = dict.fromkeys(TENSORS) | {"q": q, "k": k, "v": v, "seq_len_q": lengths[0], "seq_len_kv": lengths[1]}
    outputs = {"o": _allocate_output(q, D)} | ({"stats": _allocate_stats(q)} if stats else {})
    return list(given.items()), list(outputs.items())


def make_backward_call(q: Any, k: Any, v: Any, d_o: Any) -> tuple[Any, Any]:
    inputs, outputs = make_forward_call(q, k, v, True)
    inputs = [("do", d_o), *outputs, *inputs]
    return inputs, [(f"d{name}", _allocate_output(x, D)) for name, x in (("q", q), ("k", k), ("v", v))]


class ShapeClassSelectedByPython:
    """The class of shapes that Python selects for a call, and the launch that Python makes for it."""

    def __init__(self, backward: bool, inputs: Any, outputs: Any) -> None:
        self.backward, named = backward, map_tensors_by_name(inputs, outputs)
        self.reading = make_sequence_view_of_call(backward, named, OPERATOR_OPTIONS)
        problem = make_attention_problem_of_call(backward, named, self.reading)
        self.problem, self.bounds = problem, find_best_shape_class_bounds(problem, self.reading.needed_bounds)
        self.plan = UnbuiltShapeClassPlan(problem, self.bounds, backward)

    def make_recipe(self, inputs: Any, outputs: Any) -> Any:
        return make_shape_class_recipe(
            *(self.plan, self.sequences(map_tensors_by_name(inputs, outputs), self.reading), self.reading.multipliers),
            *(inputs, outputs),
            options=OPERATOR_OPTIONS,
            bounds=self.bounds,
            heads_folded=self.reading.heads_folded,
            copied=self.reading.copied,
        )

    def sequences(self, named: Any, r: Any) -> Sequences:
        return Sequences(r.batch, r.max_q, r.max_kv, len_q=named["seq_len_q"], len_kv=named["seq_len_kv"])

    def accepts(self, inputs: Any, outputs: Any) -> bool:
        """Return whether Python would run a call by the plan of this class of shapes without copying tensors."""
        r = make_sequence_view_of_call(self.backward, map_tensors_by_name(inputs, outputs), OPERATOR_OPTIONS)
        return (
            r.related_plans == self.reading.related_plans
            and not r.copied
            and find_best_shape_class_bounds(self.problem, r.needed_bounds) == self.bounds
        )

    def check_that_launch_equals_python(self, inputs: Any, outputs: Any, made: Any, seen: Any) -> None:
        """Compare the outputs and the launch of the C++ code with those that Python makes."""
        row, words, _ = seen
        for (name, want), x in zip(outputs, made, strict=True):
            assert (x.shape, x.stride(), x.dtype) == (want.shape, want.stride(), want.dtype), name
        outputs = [(name, x) for (name, _), x in zip(outputs, made, strict=True)]
        named = map_tensors_by_name(inputs, outputs)
        r, plan = make_sequence_view_of_call(self.backward, named, OPERATOR_OPTIONS), self.plan
        given = [named[name].data_ptr() for name in plan.names]
        assert row[: len(given)] == given
        scratch, workspace = row[-len(plan.scratch) :] if plan.scratch else [], row[len(given)]
        tables = {name: (1 << 40) + offset for name, offset in plan.tables.items()}
        if named["seq_len_q"] is not None:
            tables = {name: workspace - min(plan.table_places) + offset for name, offset in plan.tables.items()}
        want = plan.make_arguments_of_table_kernel(
            self.sequences(named, r),
            (r.batch, r.max_q, r.max_kv),
            (0, _get_address(named["seq_len_q"]), 0, _get_address(named["seq_len_kv"])),
            r.multipliers,
            (0, 0, 0),
            tables,
            given,
        )
        assert words[: len(want)] == list(want)
        sizes = [x.bytes * x.count(self.sequences(named, r)) for x in plan.scratch]
        assert [b - a for a, b in pairwise(scratch)] == [-(-x // 128) * 128 for x in sizes[:-1]]


def _get_address(x: Any) -> int:
    return 0 if x is None else int(x.data_ptr())


def make_random_shapes(seed: str, count: int = 60) -> Iterator[tuple[int, int, int]]:
    rng = random.Random(seed)
    for _ in range(count):
        b = rng.choice((1, 3, 4, 4, 4, 4))
        s_q = rng.choice((1, 2, 33, 64, rng.randint(65, 128), rng.randint(65, 128)))
        yield b, s_q, rng.choice((1, 2, s_q, s_q, s_q, rng.randint(65, 128)))


@pytest.mark.parametrize("stats", [False, True])
@pytest.mark.parametrize("layout", TENSOR_LAYOUTS)
def test_the_compiled_forward_launch_equals_the_python_launch(
    step: RecordedCompiledStep, layout: str, stats: bool
) -> None:
    first = [make_random_tensor(layout, 4, 100) for _ in "qkv"]
    inputs, outputs = make_forward_call(*first, stats)
    found = ShapeClassSelectedByPython(False, inputs, outputs)
    assert step.teach(found.make_recipe(inputs, outputs), False, inputs, stats)
    served = 0
    for b, s_q, s_kv in make_random_shapes(layout):
        q, k, v = (
            make_random_tensor(layout, b, s_q),
            make_random_tensor(layout, b, s_kv),
            make_random_tensor(layout, b, s_kv),
        )
        inputs, outputs = make_forward_call(q, k, v, stats)
        made = step.module.call(step.dense, *[x for _, x in inputs], *OPERATOR_OPTIONS, stats)
        if made is not None:
            assert found.accepts(inputs, outputs), (b, s_q, s_kv)
            found.check_that_launch_equals_python(inputs, outputs, made if stats else (made,), step.seen[-1])
            served += 1
        else:
            is_usual = s_q > 1 and s_kv > 1 and (b > 1 or layout != "part of a longer buffer")
            assert not (is_usual and found.accepts(inputs, outputs)), (b, s_q, s_kv)
    assert served > 5


@pytest.mark.parametrize("layout", [*TENSOR_LAYOUTS, "slices, copied", "part of a longer buffer, copied"])
def test_the_compiled_backward_launch_equals_the_python_launch(step: RecordedCompiledStep, layout: str) -> None:
    is_copied, layout = layout.endswith("copied"), layout.removesuffix(", copied")

    def make_backward_tensors(b: int, s_q: int, s_kv: int) -> Any:
        q, k, v, d_o = (make_random_tensor(layout, b, s) for s in (s_q, s_kv, s_kv, s_q))
        if layout in ("slices", "part of a longer buffer") and not is_copied:
            q = q.transpose(1, 2).contiguous().transpose(1, 2)
        return q.requires_grad_(), k.requires_grad_(), v.requires_grad_(), d_o

    *first, d_o = make_backward_tensors(4, 100, 100)
    inputs, outputs = make_forward_call(*first, True)
    forward = ShapeClassSelectedByPython(False, inputs, outputs)
    taught = make_backward_call(*first, d_o)
    backward = ShapeClassSelectedByPython(True, *taught)
    served = 0
    for b, s_q, s_kv in [(4, 100, 100), *make_random_shapes(layout + "b")]:
        *given, d_o = make_backward_tensors(b, s_q, s_kv)
        inputs, outputs = make_forward_call(*given, True)
        assert step.teach(
            forward.make_recipe(*make_forward_call(*first, True)), False, make_forward_call(*first, True)[0], True
        )
        o = step.module.call(step.dense, *[x for _, x in inputs], *OPERATOR_OPTIONS, False)
        if o is None:
            continue
        detached = [(name, x if x is None else x.detach()) for name, x in taught[0]]
        assert step.teach(backward.make_recipe(*taught), True, detached)
        requested = len(step.launches.requests)
        step.make_sequence_view_of_call = backward.plan.names.index("q"), given[0].nbytes
        made = torch.autograd.grad(o, given, d_o)
        step.make_sequence_view_of_call = None
        if len(step.launches.requests) > requested:
            continue
        detached = [x.detach() for x in given]
        inputs, outputs = make_backward_call(*detached, d_o)
        row, words, _ = step.seen[-1]
        r = make_sequence_view_of_call(True, map_tensors_by_name(inputs, outputs), OPERATOR_OPTIONS)
        assert r.related_plans == backward.reading.related_plans
        assert r.copied == backward.reading.copied == (("q",) if is_copied else ())
        for (name, want), x in zip(outputs, made, strict=True):
            assert (x.shape, x.stride()) == (want.shape, want.stride()), name
        at = backward.plan.names.index("q")
        assert (row[at] != detached[0].data_ptr()) == is_copied
        tokens = detached[0].transpose(1, 2).contiguous() if layout != "heads first" else detached[0]
        assert step.bytes == tokens.numpy().tobytes()
        wanted = backward.plan.make_arguments_of_table_kernel(
            *(Sequences(r.batch, r.max_q, r.max_kv), (r.batch, r.max_q, r.max_kv), (0, 0, 0, 0), r.multipliers),
            (0, 0, 0),
            {name: (1 << 40) + offset for name, offset in backward.plan.tables.items()},
            row,
        )
        assert words[: len(wanted)] == list(wanted)
        places = row[len(row) - len(backward.plan.scratch) :]
        sizes = [x.bytes * x.count(Sequences(r.batch, r.max_q, r.max_kv)) for x in backward.plan.scratch]
        distances = [b - a for a, b in pairwise(places)]
        assert distances == [-(-size // 128) * 128 for size in sizes[:-1]]
        served += 1
    assert served > 5


def test_the_launch_uses_sequence_lengths_on_the_device(step: RecordedCompiledStep) -> None:
    def make_call_with_lengths(b: int, s: int) -> Any:
        lens = torch.full((b,), 5, dtype=torch.int32), torch.full((b,), 7, dtype=torch.int32)
        return make_forward_call(*[make_random_tensor("slices", b, s) for _ in "qkv"], True, lens)

    inputs, outputs = make_call_with_lengths(4, 100)
    found = ShapeClassSelectedByPython(False, inputs, outputs)
    assert not found.make_recipe(inputs, outputs).keeps_tables, "values of lengths may change between calls"
    assert step.teach(found.make_recipe(inputs, outputs), False, inputs, True)
    for b, s in ((4, 100), (4, 77), (4, 128), (4, 65)):
        inputs, outputs = make_call_with_lengths(b, s)
        made = step.module.call(step.dense, *[x for _, x in inputs], *OPERATOR_OPTIONS, True)
        found.check_that_launch_equals_python(inputs, outputs, made, step.seen[-1])


def test_the_prepare_kernel_is_skipped_if_the_shape_is_unchanged(step: RecordedCompiledStep) -> None:
    inputs, outputs = make_forward_call(*[make_random_tensor("rows first", 4, 100) for _ in "qkv"], False)
    found = ShapeClassSelectedByPython(False, inputs, outputs)
    assert step.teach(found.make_recipe(inputs, outputs), False, inputs, False)
    for s in (100, 100, 90, 90, 100):
        inputs, _ = make_forward_call(*[make_random_tensor("rows first", 4, s) for _ in "qkv"], False)
        assert step.module.call(step.dense, *[x for _, x in inputs], *OPERATOR_OPTIONS, False) is not None
    assert [prepared for _, _, prepared in step.seen] == [True, False, True, False, True]


def test_the_callback_about_launches_can_make_python_run_a_call(step: RecordedCompiledStep) -> None:
    notices: list[Any] = []
    answers = iter((2, 0, -1, 0, 5))

    def record_reported_launch(unreported: int, shape: tuple[int, int, int]) -> int:
        notices.append((unreported, shape))
        return next(answers)

    inputs, outputs = make_forward_call(*[make_random_tensor("rows first", 4, 100) for _ in "qkv"], False)
    recipe = ShapeClassSelectedByPython(False, inputs, outputs).make_recipe(inputs, outputs)
    assert step.teach(type(recipe)(**(vars(recipe) | {"notice": record_reported_launch})), False, inputs, False)

    def is_launched_by_compiled_step(s: int) -> bool:
        inputs, _ = make_forward_call(*[make_random_tensor("rows first", 4, s) for _ in "qkv"], False)
        return step.module.call(step.dense, *[x for _, x in inputs], *OPERATOR_OPTIONS, False) is not None

    assert [is_launched_by_compiled_step(s) for s in (100, 100, 100, 100, 90, 90, 100)] == [
        True,
        True,
        True,
        True,
        False,
        True,
        True,
    ]
    assert notices == [(0, (4, 100, 100)), (2, (4, 100, 100)), (0, (4, 90, 90)), (0, (4, 90, 90)), (0, (4, 100, 100))]


def test_an_exception_of_the_callback_about_launches_is_raised(step: RecordedCompiledStep) -> None:
    def raise_keyboard_interrupt(_unreported: int, _shape: Any) -> int:
        raise KeyboardInterrupt

    inputs, outputs = make_forward_call(*[make_random_tensor("rows first", 4, 100) for _ in "qkv"], False)
    recipe = ShapeClassSelectedByPython(False, inputs, outputs).make_recipe(inputs, outputs)
    assert step.teach(type(recipe)(**(vars(recipe) | {"notice": raise_keyboard_interrupt})), False, inputs, False)
    with pytest.raises(KeyboardInterrupt):
        step.module.call(step.dense, *[x for _, x in inputs], *OPERATOR_OPTIONS, False)
