"""One random graph: asked of cuDNN, run where a GPU is, compared with the interpreter."""

from __future__ import annotations

import random
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...errors import CudnnBackendError, CudnnStatusError
from ...execution.run import live_handle, variant_pack
from ...generated.enums import DataType, DescriptorType
from ...graph import Graph, Tensor
from ...graph.attention.recognize import read_attention
from ...graph.formats import is_integer, largest, round_to
from ...graph.interpret import interpret
from ...native.cuda import Memory
from ...plans.engine import EngineConfig, OperationGraph
from ...plans.plan import Plan, build_plan
from ...target import Target
from ..trial.bound import Arithmetic, Comparison, Expected, expect
from ..trial.data import from_memory, in_memory, make_inputs

__all__ = ["Asked", "Found", "ask", "judge_deviceless", "on_device"]

Numbers = NDArray[Any]
_ULP = {DataType.HALF: 2.0**-11, DataType.BFLOAT16: 2.0**-8, DataType.FP8_E4M3: 2.0**-4, DataType.FP8_E5M2: 2.0**-3}
HOSTILE = 8.0  # how many times wider the bound of hostile data is: terms of very different sizes
_GUARD, _MARK = 512, 0xA5  # bytes behind each tensor that nobody may write


@dataclass
class Asked:
    """What cuDNN said to a graph: a plan, or why there is none."""

    plan: Plan | None
    config: EngineConfig | None
    words: str = ""

    @property
    def engine(self) -> str:
        """Engine and knobs, empty if there is no plan."""
        return "" if self.config is None else self.config.tag

    def arithmetic(self) -> Arithmetic:
        """Return what the engine may do to numbers."""
        return Arithmetic.of(None if self.config is None else [note.name for note in self.config.numerical_notes])


@dataclass
class Found:
    """How results compare with what was expected.

    Attributes
    ----------
    comparisons
        One for each output that something can be said of.
    wrong
        What is wrong, in words; empty if nothing is.
    """

    comparisons: list[Comparison] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)


def ask(graph: Graph, target: Target, *, choice: random.Random | None = None, build: bool = True) -> Asked:
    """Return the plan of a graph: of the first engine config that can be built, or of any where `choice` says which.

    A refusal is an answer, with cuDNN's words. Without `build` only the support check is asked, and the plan is None.
    """
    words = ""
    try:
        question = OperationGraph(graph, target)
    except CudnnBackendError as error:
        return Asked(None, None, _words(error))
    for mode in ("A", "FALLBACK"):
        try:
            answer = question.heuristics(mode)
        except CudnnStatusError as error:
            words = _words(error)
            continue
        words = answer.answer.text.strip() or words
        configs = list(answer.configs)
        if choice is not None and len(configs) > 1 and choice.random() < 0.5:
            configs.insert(0, configs.pop(choice.randrange(len(configs))))
        for config in configs:
            if not build:
                return Asked(None, config)
            try:
                return Asked(build_plan(config), config)
            except CudnnStatusError as error:
                words = f"not built: {_words(error)}"
    return Asked(None, None, words or "no engine config")


def _words(error: CudnnBackendError) -> str:
    return str(getattr(error, "last_error", "") or error).strip()


def run(plan: Plan, inputs: Mapping[str | int, Numbers]) -> tuple[dict[str, Numbers], list[str]]:
    """Return what a plan writes, by name, and the names of tensors behind which memory was written.

    Outputs hold all ones before, which is NaN in every float type.

    Raises
    ------
    CudnnBackendError
        ``cuda-driver`` if a kernel failed: the context of this process is lost.
    """
    handle = live_handle(plan)
    written = {tensor.uid for tensor in plan.graph.outputs}
    held = _in_place(plan.graph, inputs)
    with Memory(handle.device or 0) as memory:
        placed: dict[str | int, Any] = {}
        spans: dict[int, tuple[Tensor, int]] = {}
        for tensor in plan.graph.variant_pack_tensors:
            if tensor.by_value:
                if tensor.uid in inputs:
                    placed[tensor.uid] = inputs[tensor.uid].reshape(-1)[0].item()
                continue
            image = _image(tensor, held.get(tensor.uid) if tensor.uid in written else inputs.get(tensor.uid))
            spans[tensor.uid] = (tensor, image.size)
            placed[tensor.uid] = memory.copy_in(np.concatenate([image, np.full(_GUARD, _MARK, np.uint8)]))
        pack = variant_pack(plan, placed, workspace_ptr=memory.allocate(plan.workspace_bytes))
        try:
            plan.descriptor.execute(handle, pack.descriptor)
        except CudnnStatusError:
            memory.synchronize(handle.stream)  # a kernel launched before what was refused may have failed
            raise
        memory.synchronize(handle.stream)
        results: dict[str, Numbers] = {}
        beyond: list[str] = []
        for uid, (tensor, size) in spans.items():
            back = np.empty(size + _GUARD, np.uint8)
            memory.copy_out(placed[uid], back)
            if (back[size:] != _MARK).any():
                beyond.append(tensor.name)
            if uid in written:
                results[tensor.name] = _numbers(tensor, back[:size])
    return results, beyond


def _in_place(graph: Graph, inputs: Mapping[str | int, Numbers]) -> dict[int, Numbers]:
    """Return what outputs hold before: what a concatenation finds in the memory of its result already."""
    found = {}
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


def _image(tensor: Tensor, numbers: Numbers | None) -> NDArray[np.uint8]:
    """Return the bytes of a tensor that holds these numbers; all ones without them."""
    image = np.full(tensor.span_bytes, 0xFF, np.uint8)
    if numbers is None:
        return image
    held = np.ascontiguousarray(in_memory(tensor, numbers)).reshape(-1).view(np.uint8)
    return held if held.size > image.size else np.concatenate([held, image[held.size :]])


def _numbers(tensor: Tensor, image: NDArray[np.uint8]) -> Numbers:
    kind = in_memory(tensor, np.zeros(tensor.dims)).dtype
    return from_memory(tensor, np.ascontiguousarray(image).view(kind))


def expectation(
    graph: Graph, kind: str, inputs: Mapping[str | int, Numbers], seed: int, arithmetic: Arithmetic | None
) -> dict[str, Expected]:
    """Return what may be expected of a graph.

    Of hostile data nothing is said where the exact result is none that is allowed, as where an operation between the
    others overflows, or numbers that cancel each other are large: what is right there hangs on every rounding.
    """
    expected = expect(graph, inputs, arithmetic=None if kind == "hostile" else arithmetic, seed=seed)
    if kind == "hostile":
        exact = interpret(graph, inputs)
        for name, item in expected.items():
            wide = replace(item, spread=HOSTILE * item.spread)
            held = round_to(exact[name].astype(float), item.tensor.data_type)
            center = round_to(item.center, item.tensor.data_type)
            with np.errstate(invalid="ignore"):
                near = np.abs(held - item.center) <= wide.bounds()
            near |= (held == center) | (np.isnan(held) & np.isnan(center))
            expected[name] = replace(wide, defined=item.defined & near)
    use = read_attention(graph)
    return expected if use is None else _of_attention(graph, use.backward, inputs, expected)


_ROWS = {"seq_len_q": ("o", "stats", "max", "sum_exp", "dq"), "seq_len_kv": ("dk", "dv")}


def _of_attention(
    graph: Graph, backward: bool, inputs: Mapping[str | int, Numbers], expected: dict[str, Expected]
) -> dict[str, Expected]:
    """Return what is expected of attention: nothing beyond the lengths, and gradients that are rounded twice.

    dS cancels where one key has all the probability: what is left are roundings of products of dO, V and K.
    """
    tensors = {tensor.name: tensor for tensor in graph.tensors}
    floor = 0.0
    if backward:
        sizes = [np.abs(inputs[tensors[name].uid]) for name in ("do", "v", "k") if name in tensors]
        floor = 2.0**-20 * float(np.prod([size[np.isfinite(size)].max(initial=0.0) for size in sizes]))
    for name, item in expected.items():
        spread, defined = 2 * item.spread, item.defined
        if backward:
            spread = spread + floor + np.abs(np.nan_to_num(item.center)) * _ULP.get(item.tensor.data_type, 0.0)
        for length, names in _ROWS.items():
            if name in names and length in tensors and item.tensor.ragged_offset is None:
                rows = np.arange(item.tensor.dims[2]).reshape(1, 1, -1, 1)
                defined = defined & (rows < inputs[tensors[length].uid].reshape(-1, 1, 1, 1))
        expected[name] = replace(item, spread=spread, defined=defined)
    return expected


def compare(expected: Mapping[str, Expected], results: Mapping[str, Numbers], beyond: list[str]) -> Found:
    """Return how results compare with what was expected of them."""
    found = Found([item.compare(results[name]) for name, item in expected.items()])
    found.wrong = [str(one) for one in found.comparisons if not one.right]
    found.wrong += [f"{name}: memory behind it is written" for name in beyond]
    return found


def _inputs(graph: Graph, kind: str, seed: int) -> dict[str | int, Numbers]:
    """Return made-up data; of hostile attention only the scores are, which every odd seed says."""
    return make_inputs(graph, kind, seed | 1 if kind == "hostile" else seed)


def judge_deviceless(graph: Graph, kind: str, seed: int) -> Found:
    """Return how an exact run of the interpreter compares with what is expected of a right kernel."""
    inputs = _inputs(graph, kind, seed)
    expected = expectation(graph, kind, inputs, seed, None)
    exact = interpret(graph, inputs)
    results: dict[str, Numbers] = {}
    for name, item in list(expected.items()):
        form = item.tensor.data_type
        if is_integer(form):  # cut in the one mode, rounded in the other
            del expected[name]
            continue
        results[name] = round_to(exact[name].astype(float), form)
        # Beyond the largest number the one mode saturates, and the other does as cuDNN converts.
        expected[name] = replace(item, defined=item.defined & ~(np.abs(exact[name]) > largest(form)))
    return compare(expected, results, [])


def on_device(plan: Plan, graph: Graph, kind: str, seed: int, arithmetic: Arithmetic) -> tuple[Found, dict[str, float]]:
    """Run a plan on data of a kind and compare; also the seconds of data, expectation and run."""
    began = time.perf_counter()
    inputs = _inputs(graph, kind, seed)
    made = time.perf_counter()
    results, beyond = run(plan, inputs)
    ran = time.perf_counter()
    expected = expectation(graph, kind, inputs, seed, arithmetic)
    if "dsink" in expected and not any(op.kind is DescriptorType.OPERATION_SDPA_BWD for op in graph.ops):
        # Kernels write the true gradient; the operations read literally have the opposite sign.
        expected["dsink"] = replace(expected["dsink"], center=-expected["dsink"].center)
    found = compare(expected, results, beyond)
    return found, {"data": made - began, "run": ran - made, "expect": time.perf_counter() - ran}
