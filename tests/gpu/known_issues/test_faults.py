"""The rows of the table of faults that hold on the GPU available: each is wrong there, and its remedy is right.

A few child processes are queried about the graphs, one after another; one that dies, or whose CUDA context is lost, is
replaced. ``python -m tests.gpu.known_issues.test_faults NAME`` says as text what is seen of one.
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
from cudnn_backend_py.graph.formats import decode, encode, round_to
from cudnn_backend_py.interpreter import interpret
from cudnn_backend_py.interpreter.data import make_inputs
from cudnn_backend_py.known_issues import FAULTS, KnownIssue
from cudnn_backend_py.known_issues.sources import MEASURED_ON_GPU
from cudnn_backend_py.known_issues.table import FAULTS_BY_OPERATION
from cudnn_backend_py.plans.build import shared_target
from cudnn_backend_py.system.child import TIMED_OUT, Child, Say, serve
from cudnn_backend_py.target import Target
from examples import attention_known_issues
from tests.known_issues import EXAMPLES, graph_of
from tests.known_issues.convolution import one_convolution
from tests.support.child import ROOT
from tests.support.figures import add_figure
from tools.campaign.one import Asked, is_context_lost, on_device, run, run_query

from ...support.gpus import least, measured_here, measured_names

Array = NDArray[Any]
WORKERS = 8
ROWS: Mapping[str, KnownIssue] = {row.code: row for row in FAULTS}
RIGHT, NO_ENGINE = "agrees", "none of its engines is here"
TOO_NEW = ("attribute-newer-than-library", "descriptor-newer-than-library")  # forms of a graph that a version lacks
ENDED = {  # how a kernel ends the CUDA context
    "ILLEGAL_ADDRESS": "illegal address",
    "ILLEGAL_INSTRUCTION": "illegal instruction",
    "MISALIGNED_ADDRESS": "misaligned address",
    "EXECUTION_FAILED": "the kernel failed",
}


# What is run in a child process


def outcome(run: Callable[[], str]) -> str:
    """Return what a run says, or what it dies of."""
    try:
        return run()
    except CudnnBackendError as error:
        for status, words in ENDED.items():
            if status in str(error):
                return words
        return f"failed: {str(error).splitlines()[0]}"


def differs(got: Mapping[str, Array], want: Mapping[str, Array], limit: float = 0.01) -> str:
    """Return as text how outputs differ from what they should be."""
    words = []
    for name, wanted in want.items():
        found = np.asarray(got[name], np.float64)
        if np.isnan(found).any() and not np.isnan(wanted).any():
            words.append(f"{name}: NaN ({np.isnan(found).mean():.0%})")
        elif (error := float(np.linalg.norm(found - wanted) / max(float(np.linalg.norm(wanted)), 1e-6))) > limit:
            words.append(f"{name}: relative error {error:.2g}")
    return "; ".join(words) or RIGHT


def numbers(graph: Graph, seed: int = 0) -> dict[str, Array]:
    """Return numbers for what a graph reads."""
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
            made[tensor.name] = round_to(rng.standard_normal(tensor.dims), tensor.data_type)
    return made


def run_graph(graph: Graph, target: Target, values: Mapping[str, Array], engine: int | None = None) -> dict[str, Array]:
    """Return the outputs of a graph by the first config, or the first of an engine; before, they hold 77."""
    configs = OperationGraph(graph, target).heuristics("A").configs
    chosen = [config for config in configs if engine in (None, config.engine)]
    if not chosen:
        raise LookupError(f"no config of engine {engine}" if configs else "refused by cuDNN")
    arrays = {name: encode(value, graph.tensor(name).data_type) for name, value in values.items()}
    outputs = {tensor.name: encode(np.full(tensor.dims, 77.0), tensor.data_type) for tensor in graph.outputs}
    execute(build_plan(chosen[0]), {**arrays, **outputs})
    return {name: decode(array, graph.tensor(name).data_type) for name, array in outputs.items()}


def as_interpreted(graph: Graph, engine: int | None = None) -> str:
    """Return how what a graph computes differs from what its operations say."""
    values = numbers(graph)
    try:
        got = run_graph(graph, shared_target(), values, engine)
    except LookupError as error:
        return str(error)
    return differs(got, interpret(graph, values, rounding=True))


def row_graph(code: str, which: str) -> Graph:
    row = ROWS[code]
    return graph_of(EXAMPLES[row.code].cure if which == "cure" else EXAMPLES[row.code].reproductions[which])


def strongly_negative_scores(which: str) -> str:
    """A backward pass of rows whose logarithm of the sum of exponentials is about -120."""
    graph = row_graph("backward-key-tail", which)
    padding = which == "cure"
    dims = {"q": (2, 2, 128, 64), "k": (2, 2, 192, 64), "v": (2, 2, 192, 64), "do": (2, 2, 128, 64)}
    rng = np.random.default_rng(0)
    exact = {name: round_to(0.1 * rng.standard_normal(size), DataType.HALF) for name, size in dims.items()}
    exact["q"], exact["k"] = (
        round_to(exact["q"] + 4.0, DataType.HALF),
        round_to(exact["k"] - 4.0, DataType.HALF),
    )
    lengths: dict[str, Any] = {"seq_len_q": np.array([128, 128]), "seq_len_kv": np.array([192, 192])} if padding else {}
    forward = reference.forward(exact["q"], exact["k"], exact["v"], **lengths)
    o = round_to(forward.o, DataType.HALF)
    back = reference.backward(exact["q"], exact["k"], exact["v"], o, exact["do"], forward.stats, **lengths)
    values = exact | {"o": o, "stats": forward.stats}
    values |= {name: item.reshape(-1, 1, 1, 1) for name, item in lengths.items()}
    values |= {name: values[name].swapaxes(2, 3) for name in ("k", "v")}
    got = run_graph(graph, shared_target(), values)
    return differs(got, {"dq": back.dq}, limit=0.05)


def empty_sequence(length: int) -> str:
    """A padded forward pass, one sequence of which has no keys, or `length`."""
    graph = attention.sdpa_forward(batch=2, heads=2, seq_q=128, head_dim=64, padding=True, allow_hazards=True)
    values = numbers(graph)
    values |= {"seq_len_q": np.full((2, 1, 1, 1), 128), "seq_len_kv": np.array([128, length]).reshape(2, 1, 1, 1)}
    got = run_graph(graph, shared_target(), values)["o"]
    return f"o: NaN ({np.isnan(got).mean():.0%})" if np.isnan(got).any() else RIGHT


def shared_kernels(*, shared: bool) -> str:
    """A plan for longer sequences whose kernel comes from the cache that a plan for shorter ones filled."""
    target = shared_target()
    cache: Descriptor | None = None
    said = RIGHT
    for seq in (128, 512):
        graph = attention.sdpa_forward(
            batch=2, heads=2, seq_q=seq, head_dim=64, implementation="composite", allow_hazards=True
        )
        asked = OperationGraph(graph, target, dynamic_shapes=shared)
        if shared and cache is None:
            cache = Descriptor(DescriptorType.KERNEL_CACHE, on=target.library)
            cache.set(Attr.KERNEL_CACHE_OPERATION_GRAPH, asked.descriptor).finalize()
        plan = build_plan(asked.heuristics("A").configs[0], kernel_cache=cache)
        values = numbers(graph)
        out = {"o": encode(np.full((2, 2, seq, 64), np.nan), DataType.HALF)}
        execute(plan, {**{name: encode(item, DataType.HALF) for name, item in values.items()}, **out})
        exact = reference.forward(values["q"], values["k"].swapaxes(2, 3), values["v"])
        said = differs({"o": decode(out["o"], DataType.HALF)}, {"o": exact.o})
    return said


def several_depthwise() -> str:
    """Depthwise convolutions of different sizes one after another, each compared."""
    target = shared_target()
    for size in (56, 28, 14, 56, 7, 28):
        graph = one_convolution(DataType.HALF, (4, 64, size, size), (64, 1, 3, 3))
        values = numbers(graph, size)
        said = differs(run_graph(graph, target, values), interpret(graph, values, rounding=True))
        if said != RIGHT:
            return f"size {size}: {said}"
    return RIGHT


def broadcast_add() -> str:
    """A sum of [1, 2, 2] and [1, 2, 1] in float32."""
    g = GraphBuilder("sum", io_type=DataType.FLOAT)
    g.pointwise(PointwiseMode.ADD, g.tensor("a", (1, 2, 2)), g.tensor("b", (1, 2, 1)), name="y", virtual=False)
    return as_interpreted(g.graph())


def first_config(graph: Graph) -> Callable[[attention_known_issues.Arrays], None]:
    """Return a function that runs a graph."""
    configs = OperationGraph(graph, shared_target()).heuristics("A").configs
    return lambda arrays: execute(build_plan(configs[0]), arrays)


def gradient_of_q_apart(which: str) -> str:
    """A backward pass whose gradient of Q is in memory otherwise than Q."""
    graph = row_graph("bounded-total-apart", which)
    use = read_attention(graph)
    assert use is not None
    numbers = attention_known_issues.Numbers(use.problem, backward=True)
    starts = np.concatenate([[0], np.cumsum(numbers.lengths)])
    numbers.values["ragged_dq"] = (starts * use.problem.strides("dq")[2]).reshape(-1, 1, 1, 1)
    return attention_known_issues.compare_graph(graph, numbers, first_config(graph))


def tail_not_finite(which: str) -> str:
    """Keys and values with NaN after the end of a sequence, in its last page or, without pages, up to the longest."""
    row = ROWS["paged-tail-not-finite"]
    graph = graph_of(EXAMPLES[row.code].unlike if which == "padded" else EXAMPLES[row.code].reproductions[which])
    use = read_attention(graph)
    assert use is not None
    p = use.problem
    numbers = attention_known_issues.Numbers(p, backward=False)
    for name in ("k", "v"):
        memory = numbers.values[name]
        for entry, length in enumerate(numbers.lengths_kv):
            if p.page_size is None:
                memory[entry, :, length:] = np.nan
            elif length % p.page_size:
                pages = len(memory) // p.batch
                memory[entry * pages + length // p.page_size, :, length % p.page_size :] = np.nan
    return attention_known_issues.compare_graph(graph, numbers, first_config(graph))


def gathered(which: str) -> str:
    """A matmul of experts over rows that are gathered by indices."""
    graph = row_graph("moe-gather-32-bits", which)
    values = numbers(graph) | {"first": np.arange(0, 128, 32).reshape(4, 1, 1)}
    values["index"] = np.random.default_rng(1).integers(0, 64, (1, 128, 1))
    return differs(run_graph(graph, shared_target(), values), interpret(graph, values, rounding=True))


def compiled(which: str) -> str:
    """Whether any plan of bilinear resampling compiles."""
    graph = row_graph("bilinear-16-bits", which)
    configs = OperationGraph(graph, shared_target()).heuristics("A").configs
    for config in configs:
        try:
            build_plan(config)
        except CudnnStatusError:
            continue
        return RIGHT
    return f"no plan of {len(configs)} engine configs compiles"


def as_compared(graph: Graph, engines: Sequence[int] = (), kinds: Sequence[str] = ("uniform", "integers")) -> str:
    """Made-up data through cuDNN, on the first engine or on each of some, compared as a campaign does.

    Hostile data have an empty sequence.
    """
    words: list[str] = []
    plans = [run_query(graph, shared_target(), engine=engine) for engine in engines or (None,)]
    for asked in plans:
        for kind in kinds if asked.plan is not None else ():
            assert asked.plan is not None
            found, _ = on_device(asked.plan, graph, kind, 0, asked.arithmetic())
            words += found.wrong
    return "; ".join(words) or (RIGHT if any(asked.plan for asked in plans) else NO_ENGINE)


def norms_in_turn() -> str:
    """A norm with an operand, after one whose operand has other dims."""
    as_compared(row_graph("norm-operands-in-turn", "before"))
    return as_compared(row_graph("norm-operands-in-turn", ""))


def sums_split() -> str:
    """The gradient of a filter by the configs of engine 47 that split its sums: those proposed, or one by name."""
    graph = row_graph("filter-gradient-split", "")
    question, words, ran = OperationGraph(graph, shared_target()), list[str](), False
    configs = [config for config in question.heuristics("A").configs if config.engine == 47]
    configs = [config for config in configs if config.knobs.get(KnobType.SPLIT_K, 1) > 1]
    with suppress(CudnnBackendError):
        configs = configs or [question.config(47, {KnobType.SPLIT_K: 2})]
    for config in configs:
        with suppress(CudnnStatusError):
            asked = Asked(build_plan(config), config)
            assert asked.plan is not None
            found, _ = on_device(asked.plan, graph, "uniform", 0, asked.arithmetic())
            words, ran = words + found.wrong, True
    return "; ".join(words) or (RIGHT if ran else NO_ENGINE)


NOT_COMPARED = ("norm-operands-in-turn", "convolution-minus-infinity", "filter-gradient-split", "moe-gather-32-bits")
COMPARED = [
    row
    for operation, rows in FAULTS_BY_OPERATION.items()
    for row in rows
    if operation != "Attention" and row.step == "run" and row.source == MEASURED_ON_GPU and row.code not in NOT_COMPARED
]


def mask_drawn(which: str) -> str:
    """The random numbers that a forward pass writes."""
    graph = row_graph("dropout-distribution", which)
    asked = run_query(graph, shared_target())
    assert asked.plan is not None
    drawn = run(asked.plan, make_inputs(graph))[0]["rng_dump"]
    if np.isnan(drawn).any():
        return "it is not written"
    found, bits = set(np.unique(drawn).tolist()), which == "cure"
    return RIGHT if (found == {0.0, 1.0} if bits else len(found) > 2) else f"the numbers are {sorted(found)[:9]}"


RUNS: dict[str, Callable[[], str]] = {
    "stats-not-float": lambda: as_interpreted(row_graph("stats-not-float", "")),
    "stats-not-float:cure": lambda: as_interpreted(row_graph("stats-not-float", "cure")),
    "backward-key-tail": lambda: strongly_negative_scores(""),
    "backward-key-tail:cure": lambda: strongly_negative_scores("cure"),
    "zero-length-sequences": lambda: empty_sequence(0),
    "kernel-cache-of-attention": lambda: shared_kernels(shared=True),
    "kernel-cache-of-attention:cure": lambda: shared_kernels(shared=False),
    "bounded-total-apart": lambda: gradient_of_q_apart(""),
    "bounded-total-apart:cure": lambda: gradient_of_q_apart("cure"),
    "paged-tail-not-finite": lambda: tail_not_finite(""),
    "moe-gather-32-bits": lambda: gathered(""),
    "moe-gather-32-bits:cure": lambda: gathered("cure"),
    "bilinear-16-bits": lambda: compiled(""),
    "bilinear-16-bits:bfloat16": lambda: compiled("bfloat16"),
    "bilinear-16-bits:cure": lambda: compiled("cure"),
    **{
        f"{row.code}:{which}".removesuffix(":"): partial(as_compared, graph_of(made), row.engines)
        for row in COMPARED
        for which, made in EXAMPLES[row.code].reproductions.items()
    },
    **{f"{row.code}:cure": partial(as_compared, graph_of(EXAMPLES[row.code].cure)) for row in COMPARED},
    "backward-row-sums": lambda: as_compared(row_graph("backward-row-sums", ""), kinds=["uniform"]),
    "backward-row-sums:half": lambda: as_compared(row_graph("backward-row-sums", "half"), kinds=["uniform"]),
    "backward-row-sums:cure": lambda: as_compared(row_graph("backward-row-sums", "cure"), kinds=["uniform"]),
    "scale-not-above-0": lambda: as_compared(row_graph("scale-not-above-0", ""), kinds=["uniform"]),
    "scale-not-above-0:zero": lambda: as_compared(row_graph("scale-not-above-0", "zero"), kinds=["uniform"]),
    "scale-not-above-0:cure": lambda: as_compared(row_graph("scale-not-above-0", "cure"), kinds=["uniform"]),
    "dropout-distribution": lambda: mask_drawn(""),
    "dropout-distribution:normal": lambda: mask_drawn("normal"),
    "dropout-distribution:cure": lambda: mask_drawn("cure"),
    "fp8-ragged-no-query": lambda: as_compared(row_graph("fp8-ragged-no-query", ""), kinds=["hostile"]),
    "fp8-ragged-no-query:cure": lambda: as_compared(row_graph("fp8-ragged-no-query", "cure"), kinds=["hostile"]),
    "fp8-backward-key-tail": lambda: as_compared(row_graph("fp8-backward-key-tail", ""), kinds=["hostile"]),
    "fp8-backward-key-tail:cure": lambda: as_compared(row_graph("fp8-backward-key-tail", "cure"), kinds=["hostile"]),
    "convolution-minus-infinity": lambda: as_compared(row_graph("convolution-minus-infinity", ""), (47,), ["hostile"]),
    "convolution-minus-infinity:cure": lambda: as_compared(
        row_graph("convolution-minus-infinity", "cure"), kinds=["hostile"]
    ),
    "filter-gradient-split": sums_split,
    "filter-gradient-split:cure": lambda: as_compared(row_graph("filter-gradient-split", "cure")),
    "norm-operands-in-turn": norms_in_turn,
    "norm-operands-in-turn:cure": lambda: as_compared(row_graph("norm-operands-in-turn", "cure")),
    # what others report, or refuse without saying why: not known to show here
    "depthwise-sequence-of-shapes": several_depthwise,
    "matmul-with-gaps": lambda: as_interpreted(row_graph("matmul-with-gaps", ""), 11),
    "convolution-int8-relu": lambda: as_interpreted(row_graph("convolution-int8-relu", "")),
    "broadcast-add": broadcast_add,
    "padded-tail-not-finite": lambda: tail_not_finite("padded"),
}
ASKED = (
    "padded-tail-not-finite",
    "zero-length-sequences",
    "depthwise-sequence-of-shapes",
    "matmul-with-gaps",
    "convolution-int8-relu",
    "broadcast-add",
)
# fp8-alibi:backward was NaN once, next to a right bound; its reproduction is right with 9.19.0.
MEASURED_ATTENTION = ("sink-of-ragged-sequences", "decoding-ragged-stats", "decoding-ragged-stats:cure")
# What dbias-of-shared-rows overwrites is after the tensors that are looked at.
ASKED_ATTENTION = (
    "decoding-causal-groups",
    "backward-large-head-dims",
    "fp8-alibi:backward",
    "dbias-of-shared-rows",
    "dbias-of-shared-rows:keys",
)


# What was built before in a process decides; the others share processes.
ALONE = ("norm-", "kernel-cache-of-attention", "depthwise-sequence-of-shapes")
LIMIT_S, FIRST_S = 45.0, 60.0  # for one graph; and what the first of a process, which loads cuDNN, may take more


def say_what_is_seen() -> None:
    """In a child: answer what is seen of each graph that the parent names, and whether the CUDA context is lost."""

    def answer(asked: Mapping[str, Any], say: Say) -> None:
        name = asked["name"]
        words = outcome(RUNS[name]) if name in RUNS else attention_known_issues.run_here(name)
        say(seen=words, lost=is_context_lost(0))

    serve(answer)


def judge_in_child(child: Child, name: str, limit_s: float) -> str:
    """Return what a child sees of a graph, or how the child ended; one that is of no use any more is ended."""
    words, lost = "", False
    try:
        for line in child.run_query({"name": name}, limit_s):
            words, lost = line["seen"], line["lost"]
    except CudnnBackendError as error:
        words = f"failed: {error.headline}"
    if child.ending:
        words = "it does not end" if child.ending == TIMED_OUT else f"the process ends by {child.ending}"
    if lost or not child.usable:
        child.end()
    return words


def see_all(names: Sequence[str]) -> tuple[dict[str, str], dict[str, float]]:
    """Return what is seen of graphs, and the seconds that each took."""
    left: queue.SimpleQueue[str] = queue.SimpleQueue()
    for name in sorted(names, key=lambda name: not name.startswith(ALONE)):  # those first that start a process
        left.put(name)
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
    environment = {**os.environ, "PYTHONPATH": path}
    found: dict[str, str] = {}
    seconds: dict[str, float] = {}

    def work() -> None:
        child: Child | None = None
        while True:
            try:
                name = left.get_nowait()
            except queue.Empty:
                break
            began = time.monotonic()
            alone = name.startswith(ALONE)
            first = alone or child is None or not child.usable
            if first:
                if child is not None:
                    child.end()
                child = Child.start(f"{__name__}:say_what_is_seen", environment)
            assert child is not None
            found[name] = judge_in_child(child, name, LIMIT_S + (FIRST_S if first else 0.0))
            if alone:
                child.end()
            seconds[name] = round(time.monotonic() - began, 2)
        if child is not None:
            child.end()

    with ThreadPoolExecutor(WORKERS) as pool:
        for done in [pool.submit(work) for _ in range(WORKERS)]:
            done.result()
    return {name: found[name] for name in names}, seconds


# What holds here

RIGHT_SINCE = {"row-statistics-alone": (9, 28, 0), "paged-decoding-sink:longer": (9, 28, 0)}  # as their rows say


def holds(name: str, version: tuple[int, int, int], sm: int) -> bool:
    row = ROWS.get(name.partition(":")[0])  # None: reported, and no row
    right = name in RIGHT_SINCE and version >= RIGHT_SINCE[name]
    return not right and (row is None or row.holds_in(version, sm))


@pytest.fixture(scope="module")
def seen() -> dict[str, str]:
    """What is seen of every graph that is about this version and architecture, by name."""
    target = open_target()
    version, sm = target.library.version, target.sm
    target.close()
    refused = [*attention_known_issues.REPRODUCTIONS]
    refused += [name for name in attention_known_issues.OTHERS if name.endswith(":cure") and ROWS[name[:-5]].refused]
    names = [
        name
        for name in dict.fromkeys((*refused, *RUNS, *ASKED_ATTENTION, *MEASURED_ATTENTION))
        if holds(name, version, sm)
    ]
    every, seconds = see_all(names)
    found = {name: words for name, words in every.items() if words != NO_ENGINE and not words.startswith(TOO_NEW)}
    slowest = dict(sorted(seconds.items(), key=lambda item: -item[1])[:20])
    add_figure("faults on this GPU", version=".".join(map(str, version)), sm=sm, seen=found, slowest=slowest)
    return found


def test_what_holds_here_is_wrong(seen: dict[str, str]) -> None:
    certain = {name: words for name, words in seen.items() if name not in (*ASKED, *ASKED_ATTENTION)}
    wrong = {name: words for name, words in certain.items() if not name.endswith(":cure") and words != NO_ENGINE}
    unlike = [name for name, words in wrong.items() if words == RIGHT or words.startswith(("refused", "failed"))]
    if unlike and not measured_here():
        pytest.skip(f"did not run: these rows were measured on {measured_names()}, not here: {', '.join(unlike)}")
    assert unlike == []
    assert len(wrong) >= least("known issues that show")


def test_cures_are_right(seen: dict[str, str]) -> None:
    cures = {name: words for name, words in seen.items() if name.endswith(":cure")}
    assert len(cures) >= least("known issues with a fix that is right")
    if not measured_here():
        cures = {name: words for name, words in cures.items() if "NOT_SUPPORTED" not in words and words != "refused"}
    assert {name: words for name, words in cures.items() if words != RIGHT} == {}


def test_what_is_not_known_here_has_an_answer(seen: dict[str, str]) -> None:
    """Which it is is in the figures: a row of it is narrowed, or becomes a measured one."""
    asked = {name: words for name, words in seen.items() if name in (*ASKED, *ASKED_ATTENTION)}
    assert len(asked) >= least("known issues not known to show")
    assert all(asked.values())


if __name__ == "__main__":
    print(outcome(RUNS[sys.argv[1]]))
