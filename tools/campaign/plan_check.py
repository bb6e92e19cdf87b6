"""Build a plan for a random graph, run it, and compare its outputs with the interpreter's."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cudnn_backend_py.errors import CudnnBackendError, CudnnStatusError
from cudnn_backend_py.generated.enums import DescriptorType
from cudnn_backend_py.graph import Graph, Tensor
from cudnn_backend_py.graph.formats import get_largest_finite, is_integer, round_to_data_type
from cudnn_backend_py.interpreter import interpret
from cudnn_backend_py.interpreter.data import (
    convert_numbers_to_memory_image,
    make_inputs,
    read_numbers_from_memory_image,
)
from cudnn_backend_py.native.cuda import Memory
from cudnn_backend_py.plans.engine import EngineConfig, OperationGraph
from cudnn_backend_py.plans.plan import Plan, build_plan
from cudnn_backend_py.target import Target
from cudnn_backend_py.tuning.timing_buffers import TimingBuffers
from cudnn_backend_py.tuning.trial.bound import Arithmetic, Comparison, ExpectedOutput
from cudnn_backend_py.tuning.trial.expectation import compute_expectation

__all__ = [
    "OutputDifferences",
    "PlanOrRefusal",
    "build_plan_or_get_refusal",
    "compare_exact_and_perturbed_runs",
    "is_context_lost",
    "run_and_compare",
]

NumberArray = NDArray[Any]
_GUARD_BYTES = 512  # bytes after each tensor, to detect kernels that write past its end


@dataclass
class PlanOrRefusal:
    """A plan for a graph, or cuDNN's reason why there is none."""

    plan: Plan | None
    config: EngineConfig | None
    words: str = ""

    @property
    def engine(self) -> str:
        """Tag of the engine config, empty if there is none."""
        return "" if self.config is None else self.config.tag

    def get_arithmetic(self) -> Arithmetic:
        """Return the precision and tensor-core use that the engine's numerical notes allow."""
        return Arithmetic.from_notes(
            None if self.config is None else [note.name for note in self.config.numerical_notes]
        )


@dataclass
class OutputDifferences:
    """Comparison of outputs with the expected ones.

    Attributes
    ----------
    comparisons
        One for each output with an expected result.
    overrun_tensors
        Names of tensors with writes after their end.
    """

    comparisons: list[Comparison] = field(default_factory=list)
    overrun_tensors: list[str] = field(default_factory=list)

    @property
    def descriptions_of_wrong_outputs(self) -> list[str]:
        """The differences as text; empty if all outputs are right."""
        said = [str(one) for one in self.comparisons if not one.is_right]
        return said + [f"{name}: memory after it is written" for name in self.overrun_tensors]

    @property
    def names_of_wrong_outputs(self) -> list[str]:
        """Names of the wrong outputs."""
        return [one.output for one in self.comparisons if not one.is_right] + self.overrun_tensors

    @property
    def difference_kinds(self) -> set[str]:
        """Kinds of differences: "number" (single ones), "together" (all), "no number" (NaN, infinity), "memory"."""
        found = {
            "together" if not one.beyond else "number" if math.isfinite(one.got - one.wanted) else "no number"
            for one in self.comparisons
            if not one.is_right
        }
        return found | ({"memory"} if self.overrun_tensors else set())


def build_plan_or_get_refusal(
    graph: Graph,
    target: Target,
    *,
    choice: random.Random | None = None,
    build: bool = True,
    engine: int | None = None,
) -> PlanOrRefusal:
    """Return the plan of the first engine config that can be built, or of a random one with ``choice``.

    After a refusal, the result has cuDNN's message and no plan. Without `build`, only the support check runs, and the
    plan is None. With `engine`, only this engine is used.
    """
    words = ""
    try:
        question = OperationGraph(graph, target)
    except CudnnBackendError as error:
        return PlanOrRefusal(None, None, _format_error(error))
    for mode in ("A", "FALLBACK"):
        try:
            answer = question.heuristics(mode)
        except CudnnStatusError as error:
            words = _format_error(error)
            continue
        words = answer.answer.text.strip() or words
        configs = [config for config in answer.configs if engine in (None, config.engine)]
        if choice is not None and len(configs) > 1 and choice.random() < 0.5:
            configs.insert(0, configs.pop(choice.randrange(len(configs))))
        for config in configs:
            if not build:
                return PlanOrRefusal(None, config)
            try:
                return PlanOrRefusal(build_plan(config), config)
            except CudnnStatusError as error:
                words = f"not built: {_format_error(error)}"
    return PlanOrRefusal(None, None, words or "no engine config")


def _format_error(error: CudnnBackendError) -> str:
    return str(getattr(error, "last_error", "") or error).strip()


def run_plan(plan: Plan, inputs: Mapping[str | int, NumberArray]) -> tuple[dict[str, NumberArray], list[str]]:
    """Return the outputs of a plan by name, and the names of tensors written past their end.

    The output memory is filled with 0xFF bytes first, which are NaN in every float type.

    Raises
    ------
    CudnnBackendError
        ``cuda-driver`` if a kernel failed: the context of this process is lost.
    """
    graph = plan.graph
    written = {tensor.uid for tensor in graph.outputs}
    held: dict[str | int, NumberArray] = dict(inputs)
    held.update(_make_initial_outputs(graph, inputs))
    placed: dict[int, Any] = {}
    for tensor in graph.variant_pack_tensors:
        if not tensor.by_value:
            placed[tensor.uid] = _make_memory_content(tensor, held.get(tensor.uid))
        elif tensor.uid in held:
            placed[tensor.uid] = held[tensor.uid].reshape(-1)[0].item()
    stage = TimingBuffers(graph, plan.target, inputs=placed, guard_bytes=_GUARD_BYTES)
    try:
        stage.run(plan, stage.pack(plan))
        results = {
            tensor.name: read_numbers_from_memory_image(tensor, stage.read(tensor))
            for tensor in graph.variant_pack_tensors
            if tensor.uid in written
        }
        return results, stage.find_overwritten_guards()
    finally:
        with suppress(CudnnBackendError):  # after the CUDA context is lost, freeing memory fails as well
            stage.close()


def _make_initial_outputs(graph: Graph, inputs: Mapping[str | int, NumberArray]) -> dict[str | int, NumberArray]:
    """Return output data to set before a run: for a concatenation in place, the input that is already in the result."""
    found: dict[str | int, NumberArray] = {}
    for op in graph.ops:
        fields = op.parameters()
        index = fields.get("inplace_index")
        if op.kind is not DescriptorType.OPERATION_CONCAT or index is None or index < 0:
            continue
        parts, whole = dict(op.ports()), next(iter(op.outputs().values()))
        tensors = [tensor for port, tensor in parts.items() if port.startswith("input")]
        if tensors[index].uid not in inputs:
            continue
        numbers = np.full(whole.dims, np.nan)
        start = sum(tensor.dims[fields["axis"]] for tensor in tensors[:index])
        place: list[slice] = [slice(None)] * whole.rank
        place[fields["axis"]] = slice(start, start + tensors[index].dims[fields["axis"]])
        numbers[tuple(place)] = inputs[tensors[index].uid]
        found[whole.uid] = numbers
    return found


def _make_memory_content(tensor: Tensor, numbers: NumberArray | None) -> NDArray[np.uint8]:
    """Return the memory content of a tensor with these numbers; all bytes 0xFF for None."""
    image = np.full(tensor.span_bytes, 0xFF, np.uint8)
    if numbers is None:
        return image
    held = np.ascontiguousarray(convert_numbers_to_memory_image(tensor, numbers)).reshape(-1).view(np.uint8)
    return held if held.size > image.size else np.concatenate([held, image[held.size :]])


def compare_outputs(
    expected: Mapping[str, ExpectedOutput], results: Mapping[str, NumberArray], beyond: list[str]
) -> OutputDifferences:
    """Compare each output with its expected values; `beyond` lists the tensors written past their end."""
    return OutputDifferences([item.compare(results[name]) for name, item in expected.items()], beyond)


def _make_input_data(graph: Graph, kind: str, seed: int) -> dict[str | int, NumberArray]:
    """Return random input data of a kind, such as "hostile" (extreme values); equal seeds give equal data."""
    return make_inputs(graph, kind, seed | 1 if kind == "hostile" else seed)


def compare_exact_and_perturbed_runs(graph: Graph, kind: str, seed: int) -> OutputDifferences:
    """Compare the interpreter's exact outputs with its expected outputs, which allow for a kernel's rounding."""
    inputs = _make_input_data(graph, kind, seed)
    expected = compute_expectation(graph, kind, inputs, seed, None)
    exact = interpret(graph, inputs)
    results: dict[str, NumberArray] = {}
    for name, item in list(expected.items()):
        form = item.tensor.data_type
        if is_integer(form):  # one interpreter truncates, the other rounds
            del expected[name]
            continue
        results[name] = round_to_data_type(exact[name].astype(float), form)
        # Above the largest number of a type, one interpreter saturates, the other converts as cuDNN does.
        expected[name] = replace(item, defined=item.defined & ~(np.abs(exact[name]) > get_largest_finite(form)))
    return compare_outputs(expected, results, [])


def is_context_lost(device: int) -> bool:
    """Return whether a kernel of this process has failed, so that all later CUDA calls fail."""
    try:
        with Memory(device) as memory:
            memory.allocate(1)
            memory.synchronize(0)
    except CudnnBackendError:
        return True
    return False


def run_and_compare(
    plan: Plan, graph: Graph, kind: str, seed: int, arithmetic: Arithmetic
) -> tuple[OutputDifferences, dict[str, float]]:
    """Run a plan on one kind of data, compare its outputs, and time making data, the run and the expectation (s)."""
    began = time.perf_counter()
    inputs = _make_input_data(graph, kind, seed)
    made = time.perf_counter()
    results, beyond = run_plan(plan, inputs)
    ran = time.perf_counter()
    expected = compute_expectation(graph, kind, inputs, seed, arithmetic)
    if "dsink" in expected and not any(op.kind is DescriptorType.OPERATION_SDPA_BWD for op in graph.ops):
        # Kernels write the true gradient; the operations as written give the opposite sign.
        expected["dsink"] = replace(expected["dsink"], center=-expected["dsink"].center)
    found = compare_outputs(expected, results, beyond)
    return found, {"data": made - began, "run": ran - made, "expect": time.perf_counter() - ran}
