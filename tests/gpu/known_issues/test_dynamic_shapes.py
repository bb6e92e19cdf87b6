"""One plan for many shapes: which of cuDNN's methods of changing a plan's shape agree with a float64 reference.

Two methods: a kernel cache shared by plans with dynamic shapes, and override shapes in the variant pack. Each is tested
with attention, as many operations and as one, forward and backward, and with a matrix product as the control. A case
runs in a separate process, because an illegal address ends it. To run one, or to list them without CASE:

    python -m tests.gpu.known_issues.test_dynamic_shapes CASE

Buffers are several times as large as they need to be, so that reads and writes of a kernel outside of them
become visible: results are compared with those of the requested shape, then with those of every mix of that shape
and the one the plan was built for. A wrong case is run again in memory of exactly its size.
"""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pytest
from numpy.typing import NDArray

from cudnn_backend_py import (
    CudnnBackendError,
    DataType,
    Descriptor,
    DescriptorType,
    Graph,
    GraphBuilder,
    OperationGraph,
    build_plan,
    open_target,
    reference,
)
from cudnn_backend_py.execution.checks import make_scalar_array
from cudnn_backend_py.execution.stream_state import get_live_handle
from cudnn_backend_py.generated.enums import AttributeName as Attr
from cudnn_backend_py.graph.attention import Attention, sdpa_backward, sdpa_forward
from cudnn_backend_py.graph.attention.known_issue import AttentionUse, Sharing
from cudnn_backend_py.known_issues import FAULTS, find_issues_of_attention_or_graph
from cudnn_backend_py.native.cuda import Memory, Timer
from cudnn_backend_py.native.launch import Launcher, Overrides
from cudnn_backend_py.plans.engine import EngineConfig
from cudnn_backend_py.plans.plan import Plan
from cudnn_backend_py.target import Target
from tests.support.child import ROOT, run_python
from tests.support.figures import append_measurement_to_run_record

Array = NDArray[Any]
Dims = tuple[int, ...]

WORKER_COUNT = 12
AGREES = "agrees"
REFUSED = "refused"
MAX_FROBENIUS_ERROR = 0.01  # relative error (Frobenius) beyond rounding
WORKSPACE_BYTES = 64 << 20  # more than any plan here reports: the shape it was built for does not reveal the need

BUILT_SHAPE = {
    "batch": 2,
    "seq_q": 256,
    "seq_kv": 256,
}  # the shape a plan is built for; SHAPE_CHANGES are the executed ones
SHAPE_CHANGES: dict[str, dict[str, int]] = {
    "as built": {},
    "fewer batches": {"batch": 1},
    "more batches": {"batch": 4},
    "shorter": {"seq_q": 128, "seq_kv": 128},
    "shorter, odd": {"seq_q": 100, "seq_kv": 100},
    "longer": {"seq_q": 512, "seq_kv": 512},
    "shorter q": {"seq_q": 128},
    "longer q": {"seq_q": 512},
    "shorter kv": {"seq_kv": 128},
    "longer kv": {"seq_kv": 512},
    "fewer and longer": {"batch": 1, "seq_q": 512, "seq_kv": 512},
    "many and longer": {"batch": 9, "seq_q": 1000, "seq_kv": 700},
}
COMMON_CHANGES = ("as built", "fewer batches", "more batches", "shorter", "longer")
ATTENTION_OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "causal": {"causal": True},
    "stats": {"stats": True},
    "groups": {"kv_heads": 1},
    "padding": {"padding": True},
    "ragged": {"ragged": True},
    "paged": {"padding": True, "page_size": 64},
    "heads first": {"layout": "bhsd"},
    "ragged, causal": {"ragged": True, "causal": True},
    "ragged, last keys": {"ragged": True, "causal": True, "alignment": "bottom_right"},
    "ragged, window": {"ragged": True, "causal": True, "left_bound": 100},
    "ragged, groups": {"ragged": True, "kv_heads": 1},
    "ragged, stats": {"ragged": True, "stats": True, "ragged_stats": True},
    "ragged, paged": {"ragged": True, "page_size": 64},
    "ragged, sink": {"ragged": True, "sink": True},
}
FORWARD_ONLY_OPTIONS = ("stats", "paged", "ragged, stats", "ragged, paged", "ragged, sink")
MATMUL_SHAPE = {"batch": 4, "m": 256, "n": 256, "k": 256}
MATMUL_SHAPE_CHANGES: dict[str, dict[str, int]] = {
    "as built": {},
    "fewer batches": {"batch": 2},
    "more batches": {"batch": 8},
    **{f"shorter {name}": {name: 128} for name in "mnk"},
    **{f"longer {name}": {name: 512} for name in "mnk"},
}


class ShapeChangeCase(NamedTuple):
    """The parameters of a test case; joined to one text they are also its name.

    ``tensors`` is which get other dims and strides: those in memory, all of the graph, all except statistics and
    lengths, or those in memory with K in rows (the composite form has it transposed). ``strides`` is the layout
    of the tensors at execution: "dense" in their new dims, "as built" with the strides the plan was built for, "heads
    first" with the dims it was built for and other strides.
    """

    change_method: Sharing
    form: str
    direction: str
    change: str
    options: str = "plain"
    tensors: str = "memory"
    strides: str = "dense"
    config: int = 0

    @property
    def name(self) -> str:
        """The name of the case: its fields, joined by slashes."""
        return "/".join(map(str, self))


def list_shape_change_cases(way: Sharing) -> Iterator[ShapeChangeCase]:
    """Yield the cases for a method of changing the shape."""
    for change in MATMUL_SHAPE_CHANGES:
        yield ShapeChangeCase(way, "matmul", "forward", change)
    for form in ("composite", "unified"):
        for direction in ("forward", "backward"):
            for change in SHAPE_CHANGES:
                yield ShapeChangeCase(way, form, direction, change)
            for options in ATTENTION_OPTIONS:
                if options != "plain" and not (direction == "backward" and options in FORWARD_ONLY_OPTIONS):
                    for change in COMMON_CHANGES:
                        yield ShapeChangeCase(way, form, direction, change, options)
            for config in (1, 2, 3):
                for change in COMMON_CHANGES:
                    yield ShapeChangeCase(way, form, direction, change, config=config)
        if way == "override shapes" and form == "composite":
            for options in ("plain", "causal", "padding"):
                for change in (*COMMON_CHANGES, "shorter q", "shorter kv"):
                    yield ShapeChangeCase(way, form, "forward", change, options, tensors="k as rows")
        if way == "override shapes":
            for options in ("plain", "stats", "padding", "ragged"):
                for change in COMMON_CHANGES[1:]:
                    yield ShapeChangeCase(way, form, "forward", change, options, tensors="all")
            for change in COMMON_CHANGES[1:]:
                yield ShapeChangeCase(way, form, "forward", change, "stats", tensors="q, k, v and o")
            for options in ATTENTION_OPTIONS:
                if options.startswith("ragged"):
                    for change in ("longer q", "shorter kv", "fewer and longer", "many and longer"):
                        yield ShapeChangeCase(way, form, "forward", change, options)
            for change in ("fewer batches", "shorter", "shorter q", "shorter kv"):
                yield ShapeChangeCase(way, form, "forward", change, strides="as built")
            yield ShapeChangeCase(way, form, "forward", "as built", strides="heads first")
            yield ShapeChangeCase(way, form, "forward", "as built", tensors="all", strides="heads first")


# Problems: their graphs, and the data of their tensors


@dataclass(frozen=True)
class ProblemTensorLayouts:
    """The layouts of a problem's tensors by name, and the names of the written tensors."""

    dims: Mapping[str, Dims]
    strides: Mapping[str, Dims]
    written_tensors: tuple[str, ...]

    def count_spanned_elements(self, name: str) -> int:
        """Return the number of elements in memory from a tensor's first element to its last."""
        return 1 + sum((n - 1) * s for n, s in zip(self.dims[name], self.strides[name], strict=True))

    def view(self, name: str, arena: Array) -> Array:
        """Return a tensor as a strided view of its buffer."""
        step = arena.itemsize
        return np.lib.stride_tricks.as_strided(
            arena, self.dims[name], tuple(stride * step for stride in self.strides[name])
        )


def make_matmul_graph(sizes: Mapping[str, int]) -> Graph:
    """Return c = a @ b in float16."""
    b, m, n, k = (sizes[name] for name in ("batch", "m", "n", "k"))
    g = GraphBuilder("matmul", io_type=DataType.HALF)
    g.matmul(g.tensor("a", (b, m, k)), g.tensor("b", (b, k, n)), name="c", virtual=False)
    return g.graph()


def make_matmul_tensor_layouts(graph: Graph) -> ProblemTensorLayouts:
    tensors = {name: graph.tensor(name) for name in "abc"}
    return ProblemTensorLayouts(
        {name: tensor.dims for name, tensor in tensors.items()},
        {name: tensor.strides for name, tensor in tensors.items()},
        ("c",),
    )


def make_attention_problem(case: ShapeChangeCase, change: Mapping[str, int], layout: Any = None) -> Attention:
    """Return the attention problem of a case, with the sizes in `change` instead of those of the built shape."""
    options = dict(ATTENTION_OPTIONS[case.options])
    if case.direction == "backward":
        options.pop("stats", None)
    if layout is not None:
        options["layout"] = layout
    return Attention(**{"heads": 2, "head_dim": 64, **BUILT_SHAPE, **change, **options})


def make_attention_graph(case: ShapeChangeCase, problem: Attention, target: Target) -> Graph:
    make = sdpa_backward if case.direction == "backward" else sdpa_forward
    form: Any = case.form
    return make(problem, implementation=form, version=target.library.version, sm=target.sm, allow_hazards=True)


def list_read_and_written_tensor_names(case: ShapeChangeCase) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the names of the data tensors that the kernel reads, and of those that it writes."""
    if case.direction == "backward":
        return ("q", "k", "v", "o", "do", "stats"), ("dq", "dk", "dv")
    return ("q", "k", "v"), ("o", "stats") if ATTENTION_OPTIONS[case.options].get("stats") else ("o",)


def make_attention_tensor_layouts(case: ShapeChangeCase, p: Attention) -> ProblemTensorLayouts:
    read, written = list_read_and_written_tensor_names(case)
    names = (*read, *written)
    return ProblemTensorLayouts(
        {name: p.dims(name) for name in names}, {name: p.strides(name) for name in names}, written
    )


def make_length_and_offset_tensors(p: Attention) -> dict[str, Array]:
    """Return the length and offset tensors of a problem; ragged sequences start where dense ones would."""
    made: dict[str, Any] = {}
    if p.padding:
        rng = np.random.default_rng(1)
        made["seq_len_q"] = rng.integers(p.seq_q // 2, p.seq_q + 1, p.batch)
        made["seq_len_kv"] = rng.integers(p.seq_kv // 2, p.seq_kv + 1, p.batch)
    if p.ragged:
        for name in ("q", "k", "v", "o", "stats"):
            made[f"ragged_{name}"] = np.arange(p.batch + 1) * p.strides(name)[0]
    if p.page_size is not None:
        pages = np.arange(p.batch * p.pages_per_sequence).reshape(p.batch, 1, -1, 1)
        made |= {"page_table_k": pages, "page_table_v": pages}
    small = {name: np.asarray(value, np.int32) for name, value in made.items()}
    return small | ({"sink": np.linspace(-1, 1, p.heads, dtype=np.float32).reshape(1, -1, 1, 1)} if p.sink else {})


def compute_expected_attention(case: ShapeChangeCase, p: Attention, views: Mapping[str, Array]) -> dict[str, Array]:
    """Return the expected outputs of a problem, in float64, from views of its inputs."""
    held = make_length_and_offset_tensors(p)
    options: dict[str, Any] = {name: getattr(p, name) for name in ("left_bound", "right_bound", "alignment")} | {
        name: value for name, value in held.items() if name.startswith("seq_len")
    }
    q, k, v = (views[name].astype(np.float64) for name in "qkv")
    if p.page_size is not None:
        k, v = (reference.gather_pages(x, held["page_table_k"], p.seq_kv) for x in (k, v))
    forward = reference.forward(q, k, v, **options)
    if case.direction == "forward":
        return {"o": forward.o, "stats": forward.stats}
    o, do = (views[name].astype(np.float64) for name in ("o", "do"))
    back = reference.backward(q, k, v, o, do, views["stats"].astype(np.float64), **options)
    return {"dq": back.dq, "dk": back.dk, "dv": back.dv}


# Executed in a separate process


def describe_output_difference(got: Mapping[str, Array], want: Mapping[str, Array], keep: Mapping[str, Array]) -> str:
    """Describe how outputs differ from the expected ones; `keep` selects rows that are not padding."""
    words = []
    for name, found in got.items():
        real = np.broadcast_to(keep.get(name, np.True_), found.shape)
        found, wanted = np.where(real, found, 0.0).astype(np.float64), np.where(real, want[name], 0.0)
        if np.isnan(found).any():
            words.append(f"{name}: not written ({np.isnan(found).sum() / real.sum():.0%})")
        elif (
            error := float(np.linalg.norm(found - wanted) / max(float(np.linalg.norm(wanted)), 1e-6))
        ) > MAX_FROBENIUS_ERROR:
            words.append(f"{name}: relative error {error:.2g}")
    return "; ".join(words) or AGREES


@dataclass
class ChangedShapeRun:
    """A plan that is built for one shape and run with another shape."""

    case: ShapeChangeCase
    target: Target

    def __post_init__(self) -> None:
        case = self.case
        if case.form == "matmul":
            self.sizes = [MATMUL_SHAPE, {**MATMUL_SHAPE, **MATMUL_SHAPE_CHANGES[case.change]}]
            self.graphs = [make_matmul_graph(sizes) for sizes in self.sizes]
            self.tensors = [make_matmul_tensor_layouts(graph) for graph in self.graphs]
            return
        built = make_attention_problem(case, {})
        change = SHAPE_CHANGES[case.change]
        layout: Any = None
        if case.strides == "as built":
            layout = {name: built.strides(name) for name in ("q", "k", "v", "o")}
        elif case.strides == "heads first":
            layout = "bhsd"
        self.problems = [built, make_attention_problem(case, change, layout)]
        self.graphs = [make_attention_graph(case, p, self.target) for p in self.problems]
        self.tensors = [make_attention_tensor_layouts(case, p) for p in self.problems]

    def config(self, graph: Graph) -> EngineConfig:
        """Return the heuristics' engine config that the case names, for a graph that allows changed shapes.

        Raises
        ------
        LookupError
            There is none.
        """
        cached = self.case.change_method == "kernel cache"
        operation_graph = OperationGraph(graph, self.target, dynamic_shapes=cached, override_shapes=not cached)
        found = operation_graph.heuristics("A")
        if len(found.configs) <= self.case.config:
            why = [line for line in found.answer.text.splitlines() if "Reason" in line]
            raise LookupError(f"{REFUSED}: {len(found.configs)} configs{': ' + why[0].strip() if why else ''}")
        return found.configs[self.case.config]

    def plans(self) -> tuple[Plan, dict[str, float]]:
        """Return the plan to run, and the milliseconds of its build."""
        figures: dict[str, float] = {}

        def build_plan_and_record_build_time(
            name: str, config: EngineConfig, kernels: Descriptor | None = None
        ) -> Plan:
            start = time.perf_counter()
            made = build_plan(config, kernel_cache=kernels)
            figures[name] = round((time.perf_counter() - start) * 1e3, 2)
            return made

        first = self.config(self.graphs[0])
        if self.case.change_method == "override shapes":
            return build_plan_and_record_build_time("built_ms", first), figures
        kernels = Descriptor(DescriptorType.KERNEL_CACHE, on=self.target.library)
        if self.target.library.version >= (9, 10, 0):
            kernels.set(Attr.KERNEL_CACHE_OPERATION_GRAPH, first.graph.descriptor)
        kernels.finalize()
        build_plan_and_record_build_time("built_ms", first, kernels)
        return build_plan_and_record_build_time("from_cache_ms", self.config(self.graphs[1]), kernels), figures

    def make_override_shapes(self) -> Overrides | None:
        """Return the override shapes for the variant pack (uids, dims, strides), or None with a kernel cache."""
        if self.case.change_method == "kernel cache":
            return None
        graph, which = self.graphs[1], self.case.tensors
        named = graph.tensors if which == "all" else [t for t in graph.variant_pack_tensors if not t.by_value]
        if which == "q, k, v and o":
            named = [tensor for tensor in named if tensor.name in ("q", "k", "v", "o")]
        if which == "k as rows":
            p = self.problems[1]
            dims = [p.dims("k") if t.name == "k" else t.dims for t in named]
            return [t.uid for t in named], dims, [p.strides("k") if t.name == "k" else t.strides for t in named]
        return [t.uid for t in named], [t.dims for t in named], [t.strides for t in named]

    # numbers

    def iterate_mixed_shapes(self) -> Iterator[tuple[str, ProblemTensorLayouts, dict[str, Any]]]:
        """Yield the requested shape, then each shape that mixes its sizes with those that the plan was built for.

        Strides of a tensor are those of one of the two, or those of a dense tensor of the mixed dims.
        """
        case = self.case
        keys = [*MATMUL_SHAPE] if case.form == "matmul" else [*BUILT_SHAPE]
        sizes = self.sizes if case.form == "matmul" else [{key: getattr(p, key) for key in keys} for p in self.problems]
        changed = [key for key in keys if sizes[0][key] != sizes[1][key]]
        outcomes: list[ProblemTensorLayouts] = []
        for of_strides in ("run", "built", "dense"):
            for which in itertools.product((1, 0), repeat=len(changed)):
                mixed = {**sizes[1], **{key: sizes[at][key] for key, at in zip(changed, which, strict=True)}}
                problem: Any = mixed
                if case.form == "matmul":
                    tensors = make_matmul_tensor_layouts(make_matmul_graph(mixed))
                else:
                    problem = made = make_attention_problem(case, mixed)
                    tensors = make_attention_tensor_layouts(case, made)
                if of_strides != "dense":
                    strides = self.tensors[of_strides == "run"].strides
                    tensors = ProblemTensorLayouts(tensors.dims, strides, tensors.written_tensors)
                if tensors not in outcomes:
                    outcomes.append(tensors)
                    changes = [f"{key} {mixed[key]}" for key in changed]
                    yield ", ".join([*changes, f"strides {of_strides}"]), tensors, {"problem": problem}

    def expected(self, tensors: ProblemTensorLayouts, problem: Any, arenas: Mapping[str, Array]) -> dict[str, Array]:
        """Return the expected results, in float64, for the given tensors and their sizes."""
        views = {name: tensors.view(name, arenas[name]) for name in tensors.dims if name not in tensors.written_tensors}
        if self.case.form == "matmul":
            return {"c": views["a"].astype(np.float64) @ views["b"].astype(np.float64)}
        return compute_expected_attention(self.case, problem, views)

    def find_unpadded_rows(self) -> dict[str, Array]:
        """Return which rows of the outputs are not padding."""
        if self.case.form == "matmul" or not self.problems[1].padding:
            return {}
        p = self.problems[1]
        held = make_length_and_offset_tensors(p)
        rows = {
            end: (np.arange(n) < held[f"seq_len_{end}"][:, None])[:, None, :, None]
            for end, n in (("q", p.seq_q), ("kv", p.seq_kv))
        }
        return {name: rows["kv" if name in ("dk", "dv") else "q"] for name in self.tensors[1].written_tensors}

    def make_buffers(self, *, tight: bool) -> dict[str, Array]:
        """Return a buffer for each tensor, with its data; outputs are filled with NaN."""
        rng = np.random.default_rng(0)
        run = self.tensors[1]
        made: dict[str, Array] = {}
        for name in run.dims:
            kind = np.float32 if name == "stats" else np.float16
            spans = (
                [run.count_spanned_elements(name)]
                if tight
                else [4 * one.count_spanned_elements(name) for one in self.tensors]
            )
            size = max(spans)
            written = name in run.written_tensors
            made[name] = np.full(size, np.nan, kind) if written else rng.standard_normal(size).astype(kind)
        if self.case.form != "matmul" and self.case.direction == "backward":
            forward = compute_expected_attention(
                self.case._replace(direction="forward"),
                self.problems[1],
                {name: run.view(name, made[name]) for name in "qkv"},
            )
            for name in ("o", "stats"):
                run.view(name, made[name])[...] = forward[name]
        return made

    # running

    def launch(
        self, plan: Plan, arenas: Mapping[str, Array], *, timed: bool
    ) -> tuple[dict[str, Array], dict[str, float]]:
        """Run the plan once, and return its output buffers, and times in microseconds if `timed`."""
        handle = get_live_handle(plan)
        tensors = self.graphs[1].variant_pack_tensors
        small = {} if self.case.form == "matmul" else make_length_and_offset_tensors(self.problems[1])
        figures: dict[str, float] = {}
        with Memory(handle.device or 0) as memory:
            holds: list[Array] = []
            addresses = []
            for tensor in tensors:
                if tensor.by_value:
                    holds.append(make_scalar_array(tensor, tensor.value))
                    addresses.append(int(holds[-1].ctypes.data))
                elif tensor.name in arenas:
                    addresses.append(memory.copy_to_device(arenas[tensor.name]))
                elif tensor.name in small:
                    addresses.append(memory.copy_to_device(small[tensor.name]))
                else:
                    addresses.append(memory.zeros(4 * max(tensor.span_bytes, 1 << 20)))
            workspace = memory.zeros(WORKSPACE_BYTES)
            launcher = Launcher(plan.descriptor, [tensor.uid for tensor in tensors])
            row, overrides = launcher.row(*addresses), self.make_override_shapes()
            pack = launcher.pack(row, workspace, overrides)
            launcher.run(handle, pack)
            memory.synchronize(handle.stream)
            found = {}
            for tensor, address in zip(tensors, addresses, strict=True):
                if tensor.name in self.tensors[1].written_tensors:
                    found[tensor.name] = np.empty_like(arenas[tensor.name])
                    memory.copy_to_host(address, found[tensor.name])
            if timed:
                figures["gpu_us"] = measure_gpu_us(
                    lambda: launcher.run(handle, pack), handle.device or 0, handle.stream
                )
                figures["pack_us"] = measure_host_us(lambda: launcher.pack(row, workspace, overrides))
                if overrides is not None:
                    figures["pack_without_us"] = measure_host_us(lambda: launcher.pack(row, workspace))
                figures |= self.time_plan_built_for_the_shape(launcher.row(*addresses), workspace, memory)
        return found, figures

    def time_plan_built_for_the_shape(self, row: bytes, workspace: int, memory: Memory) -> dict[str, float]:
        """Return the build time and run time of a plan that is built for the requested shape itself."""
        graph = self.graphs[1]
        config = OperationGraph(graph, self.target).heuristics("A").configs[0]
        start = time.perf_counter()
        plan = build_plan(config)
        built_ms = (time.perf_counter() - start) * 1e3
        handle = get_live_handle(plan)
        launcher = Launcher(plan.descriptor, [tensor.uid for tensor in graph.variant_pack_tensors])
        pack = launcher.pack(row, workspace)
        taken = measure_gpu_us(lambda: launcher.run(handle, pack), handle.device or 0, handle.stream)
        memory.synchronize(handle.stream)
        return {"exact_built_ms": round(built_ms, 2), "exact_gpu_us": taken}

    def compare(self, arenas: Mapping[str, Array], found: Mapping[str, Array]) -> dict[str, Any]:
        """Return whether a run's results are right, and if not, for which mix of old and new sizes they would be."""
        said: dict[str, Any] = {}
        run = self.tensors[1]
        iterate_mixed_shapes = self.iterate_mixed_shapes()
        _, _, requested = next(iterate_mixed_shapes)
        want = self.expected(run, requested["problem"] if self.case.form == "matmul" else self.problems[1], arenas)
        got = {name: run.view(name, found[name]) for name in run.written_tensors}
        said["said"] = describe_output_difference(got, want, self.find_unpadded_rows())
        for name in run.written_tensors:
            mine = np.zeros(found[name].size, bool)
            run.view(name, mine)[...] = True
            if outside := int((~np.isnan(found[name]) & ~mine).sum()):
                words = f"{name}: {outside} elements outside of it written"
                said["said"] = words if said["said"] == AGREES else f"{said['said']}; {words}"
        if said["said"] != AGREES and not self.find_unpadded_rows():
            said["as_if"] = [
                words
                for words, tensors, mixed in iterate_mixed_shapes
                if all(tensors.count_spanned_elements(name) <= arenas[name].size for name in tensors.dims)
                and describe_output_difference(
                    {name: tensors.view(name, found[name]) for name in run.written_tensors},
                    self.expected(tensors, mixed["problem"], arenas),
                    {},
                )
                == AGREES
            ]
        return said


def measure_gpu_us(call: Any, device: int, stream: int, calls: int = 50) -> float:
    """Return the GPU time of a call, averaged over several calls."""
    for _ in range(5):
        call()
    with Timer(device, 2) as timer:
        timer.record(0, stream)
        for _ in range(calls):
            call()
        timer.record(1, stream)
        return round(timer.measure_microseconds(0, 1) / calls, 2)


def measure_host_us(call: Any, calls: int = 300) -> float:
    """Return the host time of a call."""
    start = time.perf_counter()
    for _ in range(calls):
        call()
    return round((time.perf_counter() - start) / calls * 1e6, 2)


def iterate_partial_outcomes(case: ShapeChangeCase) -> Iterator[dict[str, Any]]:
    """Yield the outcome of a case in parts, so that a crash of the process loses only the later parts."""
    run = ChangedShapeRun(case, open_target())
    try:
        plan, figures = run.plans()
    except LookupError as error:
        yield {"said": str(error)}
        return
    except CudnnBackendError as error:
        yield {"said": f"{REFUSED}: {str(error).splitlines()[0]}"}
        return
    yield {"config": plan.tag, **figures}
    arenas = run.make_buffers(tight=False)
    found, figures = run.launch(plan, arenas, timed=False)
    said = run.compare(arenas, found)
    yield said
    if said["said"] == AGREES:
        yield run.launch(plan, arenas, timed=True)[1]
        return
    arenas = run.make_buffers(tight=True)
    found, _ = run.launch(plan, arenas, timed=False)
    yield {"in_memory_of_its_size": run.compare(arenas, found)["said"]}


def print_outcome(case: ShapeChangeCase) -> None:
    """Print the outcome of a case, a line of JSON for each part."""
    try:
        for bit in iterate_partial_outcomes(case):
            print(json.dumps(bit), flush=True)
    except CudnnBackendError as error:
        text = str(error)
        print(json.dumps({"failed": "illegal address" if "ILLEGAL_ADDRESS" in text else text.splitlines()[0]}))


def run_case_in_child(case: ShapeChangeCase) -> dict[str, Any]:
    """Return the outcome of a case in a separate process."""
    outcomes: dict[str, Any] = {}
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}  # as many processes run as there are cores
    try:
        module = "tests.gpu.known_issues.test_dynamic_shapes"
        done = run_python(
            ["-m", module, case.name], cwd=ROOT, environment=environment, timeout_s=300
        )  # of a second on an idle machine
    except subprocess.TimeoutExpired:
        return {"said": "it does not end"}
    for line in done.stdout.splitlines():
        if line.startswith("{"):
            outcomes |= json.loads(line)
    if done.code:
        outcomes["ended"] = (
            f"{done.ending}: {done.stderr.strip().splitlines()[-1][:300] if done.stderr.strip() else ''}"
        )
    return outcomes | {"said": outcomes.get("said") or outcomes.get("failed") or outcomes.get("ended") or "nothing"}


# Tests


def get_problem_key(case: ShapeChangeCase) -> tuple[Any, ...]:
    """Return the fields of a case that identify its problem, without the change of shape."""
    return (*case[:3], case.options, case.config)


@pytest.fixture(scope="module")
def outcomes() -> dict[ShapeChangeCase, dict[str, Any]]:
    """Return the outcomes of all cases, run in child processes, and store them in the measurement record."""
    target = open_target()
    version, sm = target.library.version, target.sm
    target.close()
    ways: list[Sharing] = ["kernel cache"]
    if version >= (9, 21, 0):
        ways.append("override shapes")
    all_cases = [case for way in ways for case in list_shape_change_cases(way)]
    with ThreadPoolExecutor(WORKER_COUNT) as pool:
        first = [case for case in all_cases if case[3] == "as built" and case[5:7] == ("memory", "dense")]
        found = dict(zip(first, pool.map(run_case_in_child, first), strict=True))
        refused = {get_problem_key(case) for case, said in found.items() if said["said"].startswith(REFUSED)}
        rest = [case for case in all_cases if case not in found and get_problem_key(case) not in refused]
        found |= zip(rest, pool.map(run_case_in_child, rest), strict=True)
    words = {case.name: said for case, said in found.items()}
    append_measurement_to_run_record("one plan for many shapes", version=".".join(map(str, version)), sm=sm, seen=words)
    return found


def supported_outcomes(outcomes: Mapping[ShapeChangeCase, Mapping[str, Any]]) -> dict[ShapeChangeCase, str]:
    """Return the outcomes of the cases that cuDNN does not refuse."""
    return {case: said["said"] for case, said in outcomes.items() if not said["said"].startswith(REFUSED)}


def test_matmul_plans_run_with_changed_shapes_are_right(outcomes: dict[ShapeChangeCase, dict[str, Any]]) -> None:
    """Matmuls are the control: they show that both methods of changing the shape work."""
    controls = {case.name: said for case, said in supported_outcomes(outcomes).items() if case.form == "matmul"}
    assert len(controls) >= len(MATMUL_SHAPE_CHANGES)
    assert {name: said for name, said in controls.items() if said != AGREES} == {}


def test_a_plan_is_right_for_the_shape_it_was_built_for(outcomes: dict[ShapeChangeCase, dict[str, Any]]) -> None:
    """Cases of composite graphs with override shapes are excluded: the known issue table covers them."""
    same = {
        case.name: said
        for case, said in supported_outcomes(outcomes).items()
        if case.change == "as built"
        and case.strides == "dense"
        and (case.change_method == "kernel cache" or case.form != "composite")
    }
    assert same
    assert {name: said for name, said in same.items() if said != AGREES} == {}


def test_override_shapes_of_ragged_sequences_are_right(outcomes: dict[ShapeChangeCase, dict[str, Any]]) -> None:
    """Override shapes are cuDNN's only method by which one attention plan serves many shapes."""
    ragged = {
        case.name: said
        for case, said in supported_outcomes(outcomes).items()
        if case.change_method == "override shapes" and ATTENTION_OPTIONS.get(case.options, {}).get("ragged")
    }
    assert {name: said for name, said in ragged.items() if said != AGREES} == {}


def test_every_wrong_outcome_is_in_the_known_issue_table(outcomes: dict[ShapeChangeCase, dict[str, Any]]) -> None:
    target = open_target()
    unknown = {}
    for case, said in supported_outcomes(outcomes).items():
        if case.form != "matmul" and said != AGREES:
            form: Any = "unified" if case.form == "unified" else "single operations"
            use = AttentionUse(make_attention_problem(case, {}), case.direction == "backward", form)
            issues = find_issues_of_attention_or_graph(
                use, version=target.library.version, sm=target.sm, sharing=case.change_method
            )
            if not list(issues):
                unknown[case.name] = said
    target.close()
    assert unknown == {}


def test_the_known_issues_with_changed_shapes_appear_on_this_gpu(
    outcomes: dict[ShapeChangeCase, dict[str, Any]],
) -> None:
    """Each known issue of changed shapes on this version and architecture must cause a wrong result here."""
    target = open_target()
    wrong = {case.change_method for case, said in supported_outcomes(outcomes).items() if said != AGREES}
    holding = {row.sharing for row in FAULTS if row.sharing and row.affects_version(target.library.version, target.sm)}
    target.close()
    assert holding <= wrong


def parse_case(name: str) -> ShapeChangeCase:
    """Return the case with this name."""
    *words, config = name.split("/")
    return ShapeChangeCase._make([*words, int(config)])


if __name__ == "__main__":
    if len(sys.argv) > 1:
        print_outcome(parse_case(sys.argv[1]))
    else:
        ways: tuple[Sharing, ...] = ("kernel cache", "override shapes")
        print(*(case.name for way in ways for case in list_shape_change_cases(way)), sep="\n")
