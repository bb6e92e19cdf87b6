"""The graph of each known issue for this GPU gives wrong results, and the fixed graph gives right ones.

A few child processes run the graphs, one after another; one that dies, or loses its CUDA context, is
replaced. ``python -m tests.gpu.known_issues.test_known_issues_on_gpu NAME`` prints the outcome of one.
"""

from __future__ import annotations

import os
import queue
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from cudnn_backend_py import (
    CudnnBackendError,
    CudnnStatusError,
    DataType,
    Descriptor,
    DescriptorType,
    Graph,
    GraphBuilder,
    OperationGraph,
    PointwiseMode,
    attention,
    build_plan,
    execute,
    open_target,
    reference,
)
from cudnn_backend_py.generated.enums import AttributeName as Attr
from cudnn_backend_py.generated.enums import KnobType
from cudnn_backend_py.graph.attention.recognize import read_attention
from cudnn_backend_py.graph.formats import decode, encode, round_to_data_type
from cudnn_backend_py.interpreter import interpret
from cudnn_backend_py.interpreter.data import make_inputs
from cudnn_backend_py.known_issues import FAULTS, KnownIssue
from cudnn_backend_py.known_issues.sources import MEASURED_ON_GPU
from cudnn_backend_py.known_issues.table import FAULTS_BY_OPERATION
from cudnn_backend_py.plans.build import shared_target
from cudnn_backend_py.system.child import TIMED_OUT, Child
from cudnn_backend_py.system.serving import AnswerWriter, serve
from cudnn_backend_py.target import Target
from examples import attention_known_issues
from tests.known_issues import EXAMPLES, make_example_graph
from tests.known_issues.convolution import make_convolution
from tests.support.child import ROOT
from tests.support.figures import append_measurement_to_run_record
from tools.campaign.plan_check import (
    PlanOrRefusal,
    build_plan_or_get_refusal,
    is_context_lost,
    run_and_compare,
    run_plan,
)

from ...support.gpu_requirements import (
    are_expectations_measured_on_this_gpu,
    get_minimum_expected_count_on_this_gpu,
    list_measured_gpus,
)

Array = NDArray[Any]
WORKER_COUNT = 8
ISSUE_ROWS: Mapping[str, KnownIssue] = {row.code: row for row in FAULTS}
RIGHT, NO_ENGINE = "agrees", "none of its engines is here"
NEWER_FORM_CODES = (
    "attribute-newer-than-library",
    "descriptor-newer-than-library",
)  # forms of a graph that a version lacks
CONTEXT_ENDING_ERRORS = {  # errors with which a kernel ends the CUDA context
    "ILLEGAL_ADDRESS": "illegal address",
    "ILLEGAL_INSTRUCTION": "illegal instruction",
    "MISALIGNED_ADDRESS": "misaligned address",
    "EXECUTION_FAILED": "the kernel failed",
}


# Executed in a child process


def get_result_or_error_text(run: Callable[[], str]) -> str:
    """Return the result of a run, or the error that ended it."""
    try:
        return run()
    except CudnnBackendError as error:
        for status, words in CONTEXT_ENDING_ERRORS.items():
            if status in str(error):
                return words
        return f"failed: {str(error).splitlines()[0]}"


def describe_result_difference(got: Mapping[str, Array], want: Mapping[str, Array], limit: float = 0.01) -> str:
    """Describe how outputs differ from the expected ones."""
    words = []
    for name, wanted in want.items():
        found = np.asarray(got[name], np.float64)
        if np.isnan(found).any() and not np.isnan(wanted).any():
            words.append(f"{name}: NaN ({np.isnan(found).mean():.0%})")
        elif (error := float(np.linalg.norm(found - wanted) / max(float(np.linalg.norm(wanted)), 1e-6))) > limit:
            words.append(f"{name}: relative error {error:.2g}")
    return "; ".join(words) or RIGHT


def make_random_inputs(graph: Graph, seed: int = 0) -> dict[str, Array]:
    """Return random values for the tensors that a graph reads."""
    rng = np.random.default_rng(seed)
    written = {tensor.uid for tensor in graph.outputs}
    made: dict[str, Array] = {}
    for tensor in graph.variant_pack_tensors:
        if tensor.uid in written or tensor.by_value or tensor.scratch:
            continue
        if tensor.data_type is DataType.BOOLEAN:
            made[tensor.name] = rng.integers(0, 2, tensor.dims).astype(np.float64)
        elif tensor.data_type is DataType.INT8:
            made[tensor.name] = rng.integers(-3, 4, tensor.dims).astype(np.float64)
        else:
            made[tensor.name] = round_to_data_type(rng.standard_normal(tensor.dims), tensor.data_type)
    return made


def run_graph(graph: Graph, target: Target, values: Mapping[str, Array], engine: int | None = None) -> dict[str, Array]:
    """Run a graph by its first engine config (of `engine`, if given); outputs are filled with 77 before the run."""
    configs = OperationGraph(graph, target).heuristics("A").configs
    chosen = [config for config in configs if engine in (None, config.engine)]
    if not chosen:
        raise LookupError(f"no config of engine {engine}" if configs else "refused by cuDNN")
    arrays = {name: encode(value, graph.tensor(name).data_type) for name, value in values.items()}
    outputs = {tensor.name: encode(np.full(tensor.dims, 77.0), tensor.data_type) for tensor in graph.outputs}
    execute(build_plan(chosen[0]), {**arrays, **outputs})
    return {name: decode(array, graph.tensor(name).data_type) for name, array in outputs.items()}


def compare_with_interpreter(graph: Graph, engine: int | None = None) -> str:
    """Describe how the results of a graph differ from those of the interpreter."""
    values = make_random_inputs(graph)
    try:
        got = run_graph(graph, shared_target(), values, engine)
    except LookupError as error:
        return str(error)
    return describe_result_difference(got, interpret(graph, values, rounding=True))


def get_known_issue_example_graph(code: str, which: str) -> Graph:
    row = ISSUE_ROWS[code]
    return make_example_graph(EXAMPLES[row.code].fixed if which == "fixed" else EXAMPLES[row.code].reproductions[which])


def compare_dq_for_strongly_negative_scores(which: str) -> str:
    """Compare dQ of a backward pass with the reference, for rows with a log-sum-exp of about -120."""
    graph = get_known_issue_example_graph("backward-key-tail", which)
    padding = which == "fixed"
    dims = {"q": (2, 2, 128, 64), "k": (2, 2, 192, 64), "v": (2, 2, 192, 64), "do": (2, 2, 128, 64)}
    rng = np.random.default_rng(0)
    exact = {name: round_to_data_type(0.1 * rng.standard_normal(size), DataType.HALF) for name, size in dims.items()}
    exact["q"], exact["k"] = (
        round_to_data_type(exact["q"] + 4.0, DataType.HALF),
        round_to_data_type(exact["k"] - 4.0, DataType.HALF),
    )
    lengths: dict[str, Any] = {"seq_len_q": np.array([128, 128]), "seq_len_kv": np.array([192, 192])} if padding else {}
    forward = reference.forward(exact["q"], exact["k"], exact["v"], **lengths)
    o = round_to_data_type(forward.o, DataType.HALF)
    back = reference.backward(exact["q"], exact["k"], exact["v"], o, exact["do"], forward.stats, **lengths)
    values = exact | {"o": o, "stats": forward.stats}
    values |= {name: item.reshape(-1, 1, 1, 1) for name, item in lengths.items()}
    values |= {name: values[name].swapaxes(2, 3) for name in ("k", "v")}
    got = run_graph(graph, shared_target(), values)
    return describe_result_difference(got, {"dq": back.dq}, limit=0.05)


def describe_nan_in_padded_forward_pass(length: int) -> str:
    """Describe NaN in the output of a padded forward pass in which one sequence has `length` keys (may be 0)."""
    graph = attention.sdpa_forward(batch=2, heads=2, seq_q=128, head_dim=64, padding=True, allow_hazards=True)
    values = make_random_inputs(graph)
    values |= {"seq_len_q": np.full((2, 1, 1, 1), 128), "seq_len_kv": np.array([128, length]).reshape(2, 1, 1, 1)}
    got = run_graph(graph, shared_target(), values)["o"]
    return f"o: NaN ({np.isnan(got).mean():.0%})" if np.isnan(got).any() else RIGHT


def compare_plans_with_or_without_kernel_cache(*, shared: bool) -> str:
    """Compare plans for short, then long sequences with the reference, with or without a kernel cache."""
    target = shared_target()
    cache: Descriptor | None = None
    said = RIGHT
    for seq in (128, 512):
        graph = attention.sdpa_forward(
            batch=2, heads=2, seq_q=seq, head_dim=64, implementation="composite", allow_hazards=True
        )
        operation_graph = OperationGraph(graph, target, dynamic_shapes=shared)
        if shared and cache is None:
            cache = Descriptor(DescriptorType.KERNEL_CACHE, on=target.library)
            cache.set(Attr.KERNEL_CACHE_OPERATION_GRAPH, operation_graph.descriptor).finalize()
        plan = build_plan(operation_graph.heuristics("A").configs[0], kernel_cache=cache)
        values = make_random_inputs(graph)
        out = {"o": encode(np.full((2, 2, seq, 64), np.nan), DataType.HALF)}
        execute(plan, {**{name: encode(item, DataType.HALF) for name, item in values.items()}, **out})
        exact = reference.forward(values["q"], values["k"].swapaxes(2, 3), values["v"])
        said = describe_result_difference({"o": decode(out["o"], DataType.HALF)}, {"o": exact.o})
    return said


def run_depthwise_convolutions_in_turn() -> str:
    """Compare depthwise convolutions of different sizes, run one after another, with the interpreter."""
    target = shared_target()
    for size in (56, 28, 14, 56, 7, 28):
        graph = make_convolution(DataType.HALF, (4, 64, size, size), (64, 1, 3, 3))
        values = make_random_inputs(graph, size)
        said = describe_result_difference(run_graph(graph, target, values), interpret(graph, values, rounding=True))
        if said != RIGHT:
            return f"size {size}: {said}"
    return RIGHT


def compare_broadcast_add_with_interpreter() -> str:
    """Compare a float32 sum of tensors [1, 2, 2] and [1, 2, 1] with the interpreter."""
    g = GraphBuilder("sum", io_type=DataType.FLOAT)
    g.pointwise(PointwiseMode.ADD, g.tensor("a", (1, 2, 2)), g.tensor("b", (1, 2, 1)), name="y", virtual=False)
    return compare_with_interpreter(g.graph())


def make_first_config_runner(graph: Graph) -> Callable[[attention_known_issues.Arrays], None]:
    """Return a function that runs a graph by its first engine config."""
    configs = OperationGraph(graph, shared_target()).heuristics("A").configs
    return lambda arrays: execute(build_plan(configs[0]), arrays)


def compare_dq_written_in_another_layout_than_q(which: str) -> str:
    """Compare a backward pass that writes dQ in another layout than that of Q with the reference."""
    graph = get_known_issue_example_graph("bounded-total-apart", which)
    use = read_attention(graph)
    assert use is not None
    numbers = attention_known_issues.ReferenceData(use.problem, backward=True)
    starts = np.concatenate([[0], np.cumsum(numbers.lengths)])
    numbers.values["ragged_dq"] = (starts * use.problem.strides("dq")[2]).reshape(-1, 1, 1, 1)
    return attention_known_issues.compare_graph_results_with_reference(graph, numbers, make_first_config_runner(graph))


def compare_attention_with_nan_after_sequences(which: str) -> str:
    """Compare attention with NaN in K and V after each sequence's end, in the last page or in the padding."""
    row = ISSUE_ROWS["paged-tail-not-finite"]
    graph = make_example_graph(
        EXAMPLES[row.code].unaffected if which == "padded" else EXAMPLES[row.code].reproductions[which]
    )
    use = read_attention(graph)
    assert use is not None
    p = use.problem
    numbers = attention_known_issues.ReferenceData(p, backward=False)
    for name in ("k", "v"):
        memory = numbers.values[name]
        for entry, length in enumerate(numbers.lengths_kv):
            if p.page_size is None:
                memory[entry, :, length:] = np.nan
            elif length % p.page_size:
                pages = len(memory) // p.batch
                memory[entry * pages + length // p.page_size, :, length % p.page_size :] = np.nan
    return attention_known_issues.compare_graph_results_with_reference(graph, numbers, make_first_config_runner(graph))


def run_gathered_moe_matmul(which: str) -> str:
    """Compare an MoE matmul over rows gathered by indices with the interpreter."""
    graph = get_known_issue_example_graph("moe-gather-32-bits", which)
    values = make_random_inputs(graph) | {"first": np.arange(0, 128, 32).reshape(4, 1, 1)}
    values["index"] = np.random.default_rng(1).integers(0, 64, (1, 128, 1))
    return describe_result_difference(
        run_graph(graph, shared_target(), values), interpret(graph, values, rounding=True)
    )


def compile_bilinear_resampling(which: str) -> str:
    """Describe whether any plan of bilinear resampling compiles."""
    graph = get_known_issue_example_graph("bilinear-16-bits", which)
    configs = OperationGraph(graph, shared_target()).heuristics("A").configs
    for config in configs:
        try:
            build_plan(config)
        except CudnnStatusError:
            continue
        return RIGHT
    return f"no plan of {len(configs)} engine configs compiles"


def compare_with_interpreter_on_generated_data(
    graph: Graph, engines: Sequence[int] = (), kinds: Sequence[str] = ("uniform", "integers")
) -> str:
    """Run a graph on generated data, by the first engine or each of `engines`, and describe wrong results.

    This is the comparison of a campaign (tools/campaign). Hostile data have an empty sequence.
    """
    words: list[str] = []
    plans = [build_plan_or_get_refusal(graph, shared_target(), engine=engine) for engine in engines or (None,)]
    for answer in plans:
        for kind in kinds if answer.plan is not None else ():
            assert answer.plan is not None
            found, _ = run_and_compare(answer.plan, graph, kind, 0, answer.get_arithmetic())
            words += found.descriptions_of_wrong_outputs
    return "; ".join(words) or (RIGHT if any(answer.plan for answer in plans) else NO_ENGINE)


def compare_norm_after_run_with_other_operand_dims() -> str:
    """Compare a fused norm with the interpreter, after a run of such a norm with other operand dims."""
    compare_with_interpreter_on_generated_data(get_known_issue_example_graph("norm-operands-in-turn", "before"))
    return compare_with_interpreter_on_generated_data(get_known_issue_example_graph("norm-operands-in-turn", ""))


def run_filter_gradient_with_split_k() -> str:
    """Compare a filter gradient with the interpreter, for each config of engine 47 that has split-K."""
    graph = get_known_issue_example_graph("filter-gradient-split", "")
    question, words, ran = OperationGraph(graph, shared_target()), list[str](), False
    configs = [config for config in question.heuristics("A").configs if config.engine == 47]
    configs = [config for config in configs if config.knobs.get(KnobType.SPLIT_K, 1) > 1]
    with suppress(CudnnBackendError):
        configs = configs or [question.config(47, {KnobType.SPLIT_K: 2})]
    for config in configs:
        with suppress(CudnnStatusError):
            answer = PlanOrRefusal(build_plan(config), config)
            assert answer.plan is not None
            found, _ = run_and_compare(answer.plan, graph, "uniform", 0, answer.get_arithmetic())
            words, ran = words + found.descriptions_of_wrong_outputs, True
    return "; ".join(words) or (RIGHT if ran else NO_ENGINE)


CODES_WITH_OWN_RUN = (
    "norm-operands-in-turn",
    "convolution-minus-infinity",
    "filter-gradient-split",
    "moe-gather-32-bits",
)
ROWS_COMPARED_AS_CAMPAIGN = [
    row
    for operation, rows in FAULTS_BY_OPERATION.items()
    for row in rows
    if operation != "Attention"
    and row.step == "run"
    and row.source == MEASURED_ON_GPU
    and row.code not in CODES_WITH_OWN_RUN
]


def check_random_numbers_of_dropout(which: str) -> str:
    """Check whether a forward pass with dropout writes random numbers of the requested distribution."""
    graph = get_known_issue_example_graph("dropout-distribution", which)
    answer = build_plan_or_get_refusal(graph, shared_target())
    assert answer.plan is not None
    drawn = run_plan(answer.plan, make_inputs(graph))[0]["rng_dump"]
    if np.isnan(drawn).any():
        return "it is not written"
    found, bits = set(np.unique(drawn).tolist()), which == "fixed"
    return RIGHT if (found == {0.0, 1.0} if bits else len(found) > 2) else f"the numbers are {sorted(found)[:9]}"


RUN_BY_GRAPH: dict[str, Callable[[], str]] = {
    "stats-not-float": lambda: compare_with_interpreter(get_known_issue_example_graph("stats-not-float", "")),
    "stats-not-float:fixed": lambda: compare_with_interpreter(
        get_known_issue_example_graph("stats-not-float", "fixed")
    ),
    "backward-key-tail": lambda: compare_dq_for_strongly_negative_scores(""),
    "backward-key-tail:fixed": lambda: compare_dq_for_strongly_negative_scores("fixed"),
    "zero-length-sequences": lambda: describe_nan_in_padded_forward_pass(0),
    "kernel-cache-of-attention": lambda: compare_plans_with_or_without_kernel_cache(shared=True),
    "kernel-cache-of-attention:fixed": lambda: compare_plans_with_or_without_kernel_cache(shared=False),
    "bounded-total-apart": lambda: compare_dq_written_in_another_layout_than_q(""),
    "bounded-total-apart:fixed": lambda: compare_dq_written_in_another_layout_than_q("fixed"),
    "paged-tail-not-finite": lambda: compare_attention_with_nan_after_sequences(""),
    "moe-gather-32-bits": lambda: run_gathered_moe_matmul(""),
    "moe-gather-32-bits:fixed": lambda: run_gathered_moe_matmul("fixed"),
    "bilinear-16-bits": lambda: compile_bilinear_resampling(""),
    "bilinear-16-bits:bfloat16": lambda: compile_bilinear_resampling("bfloat16"),
    "bilinear-16-bits:fixed": lambda: compile_bilinear_resampling("fixed"),
    **{
        f"{row.code}:{which}".removesuffix(":"): partial(
            compare_with_interpreter_on_generated_data, make_example_graph(made), row.engines
        )
        for row in ROWS_COMPARED_AS_CAMPAIGN
        for which, made in EXAMPLES[row.code].reproductions.items()
    },
    **{
        f"{row.code}:fixed": partial(
            compare_with_interpreter_on_generated_data, make_example_graph(EXAMPLES[row.code].fixed)
        )
        for row in ROWS_COMPARED_AS_CAMPAIGN
    },
    "backward-row-sums": lambda: compare_with_interpreter_on_generated_data(
        get_known_issue_example_graph("backward-row-sums", ""), kinds=["uniform"]
    ),
    "backward-row-sums:half": lambda: compare_with_interpreter_on_generated_data(
        get_known_issue_example_graph("backward-row-sums", "half"), kinds=["uniform"]
    ),
    "backward-row-sums:fixed": lambda: compare_with_interpreter_on_generated_data(
        get_known_issue_example_graph("backward-row-sums", "fixed"), kinds=["uniform"]
    ),
    "scale-not-above-0": lambda: compare_with_interpreter_on_generated_data(
        get_known_issue_example_graph("scale-not-above-0", ""), kinds=["uniform"]
    ),
    "scale-not-above-0:zero": lambda: compare_with_interpreter_on_generated_data(
        get_known_issue_example_graph("scale-not-above-0", "zero"), kinds=["uniform"]
    ),
    "scale-not-above-0:fixed": lambda: compare_with_interpreter_on_generated_data(
        get_known_issue_example_graph("scale-not-above-0", "fixed"), kinds=["uniform"]
    ),
    "dropout-distribution": lambda: check_random_numbers_of_dropout(""),
    "dropout-distribution:normal": lambda: check_random_numbers_of_dropout("normal"),
    "dropout-distribution:fixed": lambda: check_random_numbers_of_dropout("fixed"),
    "fp8-ragged-no-query": lambda: compare_with_interpreter_on_generated_data(
        get_known_issue_example_graph("fp8-ragged-no-query", ""), kinds=["hostile"]
    ),
    "fp8-ragged-no-query:fixed": lambda: compare_with_interpreter_on_generated_data(
        get_known_issue_example_graph("fp8-ragged-no-query", "fixed"), kinds=["hostile"]
    ),
    "fp8-backward-key-tail": lambda: compare_with_interpreter_on_generated_data(
        get_known_issue_example_graph("fp8-backward-key-tail", ""), kinds=["hostile"]
    ),
    "fp8-backward-key-tail:fixed": lambda: compare_with_interpreter_on_generated_data(
        get_known_issue_example_graph("fp8-backward-key-tail", "fixed"), kinds=["hostile"]
    ),
    "convolution-minus-infinity": lambda: compare_with_interpreter_on_generated_data(
        get_known_issue_example_graph("convolution-minus-infinity", ""), (47,), ["hostile"]
    ),
    "convolution-minus-infinity:fixed": lambda: compare_with_interpreter_on_generated_data(
        get_known_issue_example_graph("convolution-minus-infinity", "fixed"), kinds=["hostile"]
    ),
    "filter-gradient-split": run_filter_gradient_with_split_k,
    "filter-gradient-split:fixed": lambda: compare_with_interpreter_on_generated_data(
        get_known_issue_example_graph("filter-gradient-split", "fixed")
    ),
    "norm-operands-in-turn": compare_norm_after_run_with_other_operand_dims,
    "norm-operands-in-turn:fixed": lambda: compare_with_interpreter_on_generated_data(
        get_known_issue_example_graph("norm-operands-in-turn", "fixed")
    ),
    # reported by others, or refused without a reason: not known to appear here
    "depthwise-sequence-of-shapes": run_depthwise_convolutions_in_turn,
    "matmul-with-gaps": lambda: compare_with_interpreter(get_known_issue_example_graph("matmul-with-gaps", ""), 11),
    "convolution-int8-relu": lambda: compare_with_interpreter(
        get_known_issue_example_graph("convolution-int8-relu", "")
    ),
    "broadcast-add": compare_broadcast_add_with_interpreter,
    "padded-tail-not-finite": lambda: compare_attention_with_nan_after_sequences("padded"),
}
UNMEASURED_GRAPHS = (
    "padded-tail-not-finite",
    "zero-length-sequences",
    "depthwise-sequence-of-shapes",
    "matmul-with-gaps",
    "convolution-int8-relu",
    "broadcast-add",
)
# fp8-alibi:backward was NaN once, next to a right bound; its reproduction is right with 9.19.0.
MEASURED_ATTENTION = ("sink-of-ragged-sequences", "decoding-ragged-stats", "decoding-ragged-stats:fixed")
# The memory that dbias-of-shared-rows overwrites is after the compared tensors.
UNMEASURED_ATTENTION = (
    "decoding-causal-groups",
    "backward-large-head-dims",
    "fp8-alibi:backward",
    "dbias-of-shared-rows",
    "dbias-of-shared-rows:keys",
)


# Earlier builds in the process decide; the other cases share processes.
GRAPHS_IN_OWN_PROCESS = ("norm-", "kernel-cache-of-attention", "depthwise-sequence-of-shapes")
LIMIT_S, FIRST_S = 45.0, 60.0  # for one graph; and additional time for the first of a process, which loads cuDNN


def serve_graph_outcomes_to_parent() -> None:
    """Serve requests in a child process: send each graph's outcome, and whether the CUDA context is lost."""

    def send_outcome(request: Mapping[str, Any], say: AnswerWriter) -> None:
        name = request["name"]
        words = (
            get_result_or_error_text(RUN_BY_GRAPH[name])
            if name in RUN_BY_GRAPH
            else attention_known_issues.run_reproduction_in_this_process(name)
        )
        say(seen=words, lost=is_context_lost(0))

    serve(send_outcome)


def get_graph_outcome_from_child(child: Child, name: str, limit_s: float) -> str:
    """Return the outcome of a graph in a child process, or how the child ended; end a child that cannot continue."""
    words, lost = "", False
    try:
        for line in child.run_query({"name": name}, limit_s):
            words, lost = line["seen"], line["lost"]
    except CudnnBackendError as error:
        words = f"failed: {error.headline}"
    if child.ending:
        words = "it does not end" if child.ending == TIMED_OUT else f"the process ends by {child.ending}"
    if lost or not child.is_usable:
        child.end()
    return words


def run_graphs_in_children(names: Sequence[str]) -> tuple[dict[str, str], dict[str, float]]:
    """Return the outcomes of graphs, and the seconds that each took."""
    left: queue.SimpleQueue[str] = queue.SimpleQueue()
    for name in sorted(
        names, key=lambda name: not name.startswith(GRAPHS_IN_OWN_PROCESS)
    ):  # first those that need a process
        left.put(name)
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
    environment = {**os.environ, "PYTHONPATH": path}
    found: dict[str, str] = {}
    seconds: dict[str, float] = {}

    def run_queued_graphs_in_a_child() -> None:
        child: Child | None = None
        while True:
            try:
                name = left.get_nowait()
            except queue.Empty:
                break
            began = time.monotonic()
            alone = name.startswith(GRAPHS_IN_OWN_PROCESS)
            first = alone or child is None or not child.is_usable
            if first:
                if child is not None:
                    child.end()
                child = Child.start(f"{__name__}:serve_graph_outcomes_to_parent", environment)
            assert child is not None
            found[name] = get_graph_outcome_from_child(child, name, LIMIT_S + (FIRST_S if first else 0.0))
            if alone:
                child.end()
            seconds[name] = round(time.monotonic() - began, 2)
        if child is not None:
            child.end()

    with ThreadPoolExecutor(WORKER_COUNT) as pool:
        for done in [pool.submit(run_queued_graphs_in_a_child) for _ in range(WORKER_COUNT)]:
            done.result()
    return {name: found[name] for name in names}, seconds


# Tests

FIXED_SINCE_VERSION = {
    "row-statistics-alone": (9, 28, 0),
    "paged-decoding-sink:longer": (9, 28, 0),
}  # according to their rows


def is_expected_to_be_wrong(name: str, version: tuple[int, int, int], sm: int) -> bool:
    row = ISSUE_ROWS.get(name.partition(":")[0])  # None: reported, without a row
    right = name in FIXED_SINCE_VERSION and version >= FIXED_SINCE_VERSION[name]
    return not right and (row is None or row.affects_version(version, sm))


@pytest.fixture(scope="module")
def outcomes() -> dict[str, str]:
    """Return the outcomes of all graphs for this version and architecture, by graph name."""
    target = open_target()
    version, sm = target.library.version, target.sm
    target.close()
    refused = [*attention_known_issues.REPRODUCTIONS]
    refused += [
        name
        for name in attention_known_issues.OTHERS
        if name.endswith(":fixed") and ISSUE_ROWS[name.removesuffix(":fixed")].refused
    ]
    names = [
        name
        for name in dict.fromkeys((*refused, *RUN_BY_GRAPH, *UNMEASURED_ATTENTION, *MEASURED_ATTENTION))
        if is_expected_to_be_wrong(name, version, sm)
    ]
    every, seconds = run_graphs_in_children(names)
    found = {
        name: words for name, words in every.items() if words != NO_ENGINE and not words.startswith(NEWER_FORM_CODES)
    }
    slowest = dict(sorted(seconds.items(), key=lambda item: -item[1])[:20])
    append_measurement_to_run_record(
        "faults on this GPU", version=".".join(map(str, version)), sm=sm, seen=found, slowest=slowest
    )
    return found


def test_known_issues_of_this_gpu_give_wrong_results(outcomes: dict[str, str]) -> None:
    certain = {
        name: words for name, words in outcomes.items() if name not in (*UNMEASURED_GRAPHS, *UNMEASURED_ATTENTION)
    }
    wrong = {name: words for name, words in certain.items() if not name.endswith(":fixed") and words != NO_ENGINE}
    unlike = [name for name, words in wrong.items() if words == RIGHT or words.startswith(("refused", "failed"))]
    if unlike and not are_expectations_measured_on_this_gpu():
        pytest.skip(f"did not run: these rows were measured on {list_measured_gpus()}, not here: {', '.join(unlike)}")
    assert unlike == []
    assert len(wrong) >= get_minimum_expected_count_on_this_gpu("known issues that show")


def test_graphs_with_known_issue_fixes_give_right_results(outcomes: dict[str, str]) -> None:
    fixed = {name: words for name, words in outcomes.items() if name.endswith(":fixed")}
    assert len(fixed) >= get_minimum_expected_count_on_this_gpu("known issues with a fix that is right")
    if not are_expectations_measured_on_this_gpu():
        fixed = {name: words for name, words in fixed.items() if "NOT_SUPPORTED" not in words and words != "refused"}
    assert {name: words for name, words in fixed.items() if words != RIGHT} == {}


def test_known_issues_not_yet_measured_on_this_gpu_are_run(outcomes: dict[str, str]) -> None:
    """Known issues without a measurement here are run and recorded, to show whether they also occur on this GPU."""
    unknown = {name: words for name, words in outcomes.items() if name in (*UNMEASURED_GRAPHS, *UNMEASURED_ATTENTION)}
    assert len(unknown) >= get_minimum_expected_count_on_this_gpu("known issues not known to show")
    assert all(unknown.values())


if __name__ == "__main__":
    print(get_result_or_error_text(RUN_BY_GRAPH[sys.argv[1]]))
