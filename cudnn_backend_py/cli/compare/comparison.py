"""Time attention on given shapes with cuDNN versions, engine configs, torch's backends and flash-attn.

Forward and backward: GPU time with the L2 cache flushed before each call, and host time of calls one after the other
where the GPU is not what they wait for. The contenders of one process take turns; each cuDNN version is queried in a
process of its own, on the same GPU right before. The fastest is marked, and so is what is as fast within noise. The
engine configs of all plans are reported; what torch runs is named by its version and by cuDNN's.
"""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from rich.table import Table

from ... import torch_ops
from ...diagnose.surveys.inputs import DEFAULT_VERSION
from ...errors import CudnnBackendError, GraphError, UsageError
from ...execution.any_shape import Shapes
from ...execution.plan_pool import get_shared_pool
from ...generated.enums import DataType
from ...graph import Graph
from ...graph.attention import Attention
from ...graph.attention.recognize import read_attention
from ...importers.files import open_graph_file
from ...importers.graphs import read_graphs
from ...info import make_measurement_record_header, write_record
from ...native.libcudnn import library
from ...plans.build import shared_target
from ...printable import printable
from ...system.streams import format_markdown_table, is_terminal
from ...system.typed_data import read_fields
from ...system.untrusted_files import read_json
from ...target import find_profile, require_gpu
from ...terminal import BorderlessTextTable, open_console, render_as_text
from ...tuning.statistics import Timing
from ...tuning.timed_plans import HOST_BATCHES, HOST_CALLS, BuiltPlans, PlanTimer
from .contenders import (
    TORCH_BACKENDS,
    make_buffers,
    make_flash_attn_calls,
    make_torch_calls,
    prepare_backward_call,
    prepare_torch_operators,
)
from .figures import RecordTables, draw_point_chart, load_figure_class
from .problems import DIRECTIONS, Direction, build_attention_graph, count_flops, format_attention_problem
from .timing import (
    KEEP_BUSY_US,
    make_batch_in_context,
    make_call_in_context,
    measure_gpu_times,
    measure_host_times,
    summarize_microseconds,
)

__all__ = [
    "FULL_GRID_TOKENS",
    "SMALL_GRID_TOKENS",
    "Comparison",
    "ComparisonCase",
    "draw_comparison",
    "find_fastest",
    "format_markdown",
    "format_text",
    "make_attention_grid",
    "make_cases_in_both_directions",
    "make_comparison_cases",
    "make_standard_attention_problems",
    "make_time_table",
    "read_attention_cases_from_log",
    "read_record",
    "run_compare_command",
    "run_comparison",
]

OUR_SHAPE_POLICIES: tuple[Shapes, ...] = ("exact", "any")
FULL_GRID_TOKENS = (1024, 16384)  # tokens of a batch
SMALL_GRID_TOKENS = (1024,)
SEQUENCE_LENGTHS = (128, 512, 2048, 8192)
HOST_BOUND_US = 100.0  # GPU time up to which host time is measured
MAX_SCORES = 1 << 30  # of torch's math, which keeps them all in memory, several times


# What is compared


@dataclass(frozen=True)
class ComparisonCase:
    """One row of a comparison: an attention problem or a graph, forward or backward.

    ``reason_without_torch`` is the reason why torch is not timed, empty where it is.
    """

    name: str
    direction: Direction
    problem: Attention | None = None
    graph: Graph | None = None
    reason_without_torch: str = ""

    def build_graph_for_version(self, plans: PlanTimer) -> Graph:
        """Return the case's graph for the cuDNN version and GPU of the timed plans."""
        if self.graph is not None:
            return self.graph
        assert self.problem is not None
        major, minor, patch = plans.child_properties["version"]
        return build_attention_graph(self.problem, self.direction, (major, minor, patch), plans.child_properties["sm"])


def make_attention_grid(
    tokens: tuple[int, ...] = FULL_GRID_TOKENS, sequences: tuple[int, ...] = SEQUENCE_LENGTHS
) -> Iterator[Attention]:
    """Yield attention problems: head dims 64 and 128, causal or not, few and many tokens, some with grouped heads."""
    for head_dim in (64, 128):
        heads = 2048 // head_dim
        for causal in (True, False):
            for total in tokens:
                for seq in sequences:
                    if seq <= total:
                        yield _make_dense_attention(total // seq, heads, seq, head_dim, causal=causal)
    for seq in sequences[1:]:
        if seq <= tokens[-1]:
            yield _make_dense_attention(tokens[-1] // seq, 16, seq, 128, causal=True, kv_heads=4)


def make_standard_attention_problems() -> Iterator[Attention]:
    """Yield 40 attention problems: the grid, head dims 96 and 256, float16, a long sequence, cross attention."""
    yield from make_attention_grid()
    for seq in SEQUENCE_LENGTHS[1:]:
        yield _make_dense_attention(16384 // seq, 32, seq, 64, kv_heads=8, data_type=DataType.HALF)
        yield _make_dense_attention(16384 // seq, 16, seq, 96, causal=True)
        yield _make_dense_attention(16384 // seq, 8, seq, 256, causal=True)
    yield _make_dense_attention(1, 16, 16384, 128, causal=True)
    yield _make_dense_attention(4, 16, 4096, 64, seq_kv=128)
    yield _make_dense_attention(2, 16, 1024, 128, seq_kv=8192)
    yield _make_dense_attention(64, 12, 197, 64, data_type=DataType.HALF)


def _make_dense_attention(batch: int, heads: int, seq_q: int, head_dim: int, **options: Any) -> Attention:
    """Return a dense problem in memory order (batch, sequence, heads, head dim), in bfloat16 by default."""
    options = {"data_type": DataType.BFLOAT16, **options}
    return Attention(batch=batch, heads=heads, seq_q=seq_q, head_dim=head_dim, **options)


SHAPE_GRIDS: dict[str, Callable[[], Iterable[Attention]]] = {
    "--grid=whole": make_standard_attention_problems,
    "--grid=little": lambda: make_attention_grid(SMALL_GRID_TOKENS, SEQUENCE_LENGTHS[:2]),
}


def make_comparison_cases(what: str) -> list[ComparisonCase]:
    """Return the cases to compare, as chosen on the command line: the grid, a small grid, or a cuDNN log.

    Raises
    ------
    UsageError
        ``log-file``; ``compare-no-attention`` where no graph of a log is attention.
    """
    grid = SHAPE_GRIDS.get(what)
    return read_attention_cases_from_log(what) if grid is None else make_cases_in_both_directions(grid())


def make_cases_in_both_directions(problems: Iterable[Attention]) -> list[ComparisonCase]:
    """Return a forward and a backward case for each problem."""
    return [
        ComparisonCase(format_attention_problem(problem), direction, problem)
        for problem in problems
        for direction in DIRECTIONS
    ]


def read_attention_cases_from_log(path: str) -> list[ComparisonCase]:
    """Return the distinct attention graphs of a cuDNN log.

    Raises
    ------
    UsageError
        ``log-file``; ``compare-no-attention`` where no graph of the log is attention.
    """
    found: list[ComparisonCase] = []
    graphs = list(read_graphs(open_graph_file(path)))
    for number, item in enumerate(graphs, 1):
        use = None if item.graph is None else read_attention(item.graph)
        if use is None:
            continue
        p = use.problem
        direction: Direction = "backward" if use.backward else "forward"
        plain, why = _convert_to_dense_attention(p)
        seq = f"{p.seq_q}/{p.seq_kv}" if p.seq_kv != p.seq_q else str(p.seq_q)
        name = (
            format_attention_problem(plain)
            if plain
            else f"b{p.batch} h{p.heads} s{seq} d{p.head_dim} {p.data_type.name.lower()}"
        )
        found.append(ComparisonCase(f"graph {number}: {name}", direction, plain, item.graph, why))
    if not found:
        faults = [item.fault.headline for item in graphs if item.fault is not None]
        raise UsageError(
            f"{path} has no attention among its {len(graphs)} logged graphs",
            code="compare-no-attention",
            cause=f"{len(faults)} could not be rebuilt, the first: {faults[0]}" if faults else None,
            fix="give the log that a program with attention writes with CUDNN_LOGLEVEL_DBG=3; "
            "the plans of a graph file are timed by 'cudnn-backend plan tune'",
        )
    return found


_PLAIN_TYPES = (DataType.HALF, DataType.BFLOAT16)
_OPTIONS_OF_NO_PLAIN_PROBLEM = (
    "padding",
    "ragged",
    "bias",
    "alibi",
    "score_modifier",
    "dropout",
    "dropout_mask",
    "sink",
    "block_mask",
)


def _convert_to_dense_attention(p: Attention) -> tuple[Attention | None, str]:
    """Return the equivalent dense problem that torch and flash-attn accept, or the reason why there is none."""
    options = [name for name in (*_OPTIONS_OF_NO_PLAIN_PROBLEM, "page_size") if getattr(p, name)]
    if p.left_bound is not None or p.right_bound not in (None, 0):
        options.append("a window")
    if p.right_bound == 0 and p.alignment != "top_left" and p.seq_q != p.seq_kv:
        options.append(f"causal from the {p.alignment.replace('_', ' ')}")
    if p.data_type not in _PLAIN_TYPES:
        options.append(p.data_type.name)
    if p.head_dim != p.head_dim_v or p.kv_heads != p.v_heads:
        options.append("values of another width")
    if options:
        return None, f"of torch's backends none is compared: {', '.join(options)}"
    more = {"kv_heads": p.kv_heads, "seq_kv": p.seq_kv, "data_type": p.data_type}
    return _make_dense_attention(p.batch, p.heads, p.seq_q, p.head_dim, causal=p.right_bound == 0, **more), ""


# Measuring


@dataclass(frozen=True)
class Comparison:
    """What to compare and how: cases, cuDNN versions, engine configs, rounds, time limit.

    Parameters
    ----------
    what
        The cases as a command line names them: ``--grid=whole``, ``--grid=little``, or a log of cuDNN.
    versions
        Installed cuDNN versions such as ``9.19.0``, or ``default`` for the one this process would load.
    target
        A described GPU, for which plans are named and nothing is timed; None for the GPU here.
    configs
        How many engine configs of each version.
    rounds
        Of GPU times.
    limit_s
        Seconds after which no case is begun.
    """

    what: str
    versions: Sequence[str] = (DEFAULT_VERSION,)
    target: str | None = None
    configs: int = 2
    rounds: int = 11
    limit_s: float = 600.0

    @property
    def command(self) -> str:
        """The command line that repeats the comparison."""
        versions = [f"--cudnn={name}" for name in self.versions if len(self.versions) > 1 or name != DEFAULT_VERSION]
        target = [] if self.target is None else [f"--target={self.target}"]
        much = [f"--configs={self.configs}", f"--rounds={self.rounds}", f"--limit={self.limit_s:g}"]
        return shlex.join(["cudnn-backend", "plan", "compare", self.what, *versions, *target, *much])


def _make_contenders_of_this_package(
    p: Attention, direction: Direction, buffers: Mapping[str, Any], plans: dict[str, str]
) -> Iterator[tuple[str, Callable[[], Any], Any]]:
    """Yield (name, call, context) for each way this package runs a problem; add each one's engine config to `plans`."""
    torch_ops.clear_plans()
    for shapes in OUR_SHAPE_POLICIES:
        q, k, v = (buffers[name].detach().clone() for name in "qkv")
        call: Callable[[], Any] = partial(torch_ops.attention, q, k, v, causal=p.causal, shapes=shapes)
        try:
            made = prepare_backward_call(call, (q, k, v), buffers) if direction == "backward" else call
            made()
        except CudnnBackendError:  # this shape has no class here
            continue
        plans[f"ours, {shapes}"] = _describe_latest_operator_plan()
        yield f"ours, {shapes}", made, None


def _describe_latest_operator_plan() -> str:
    """Return the engine config of the operators' latest plan, and the largest sizes if it serves many shapes."""
    pool = get_shared_pool()
    held = pool.find(pool.list_keys()[-1])
    if held is None or held.plan is None:
        return ""
    made = getattr(held.plan, "executable", held.plan)
    bounds = getattr(made, "bounds", None)
    return str(made.plan.tag) + ("" if bounds is None else f" for b, s_q, s_kv up to {', '.join(map(str, bounds))}")


def _make_torch_contenders(
    p: Attention, direction: Direction, plans: dict[str, str]
) -> dict[str, tuple[Callable[[], Any], Callable[[], Any]]]:
    """Return (call, context) by name for what runs on torch tensors; add our operators' engine configs to `plans`."""
    (buffers,) = make_buffers(p, direction)
    scores = p.batch * p.heads * p.seq_q * p.seq_kv
    backends = [name for name in TORCH_BACKENDS if name != "torch math" or scores <= MAX_SCORES]
    found: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {}
    for name, call, context in _make_contenders_of_this_package(p, direction, buffers, plans):
        found[name] = call, context or nullcontext
    for name, call, context in make_torch_calls(p, direction, buffers, backends):
        found[name] = call, context
    for name, call in make_flash_attn_calls(p, direction, buffers):
        found[name] = call, nullcontext
    return found


def _make_comparison_row(
    case: ComparisonCase, children: Mapping[str, PlanTimer], rounds: int, has_torch: bool
) -> dict[str, Any]:
    plans: dict[str, str] = {}
    notes = [case.reason_without_torch] if case.reason_without_torch else []
    clock = [time.perf_counter()]
    with ThreadPoolExecutor(max(1, len(children))) as pool:
        asked = {name: pool.submit(_build_plan, child, case) for name, child in children.items()}
        calls = {}
        if has_torch and case.problem is not None:
            calls = _make_torch_contenders(case.problem, case.direction, plans)
        built = {name: future.result() for name, future in asked.items()}
    clock.append(time.perf_counter())
    gpu: dict[str, dict[str, float]] = {}
    host: dict[str, dict[str, float]] = {}
    configs: dict[str, list[dict[str, Any]]] = {}
    for name, child in children.items():
        title = _format_cudnn_version_title(child)
        configs[title] = _time_built_configs(built[name], child, rounds)
        notes += [f"{title}: {built[name].refused}"] * (built[name].refused != "")
        for suffix, one in _select_first_and_fastest_config(configs[title]):
            gpu[title + suffix], plans[title + suffix] = one["gpu"], one["tag"]
            if "host" in one:
                host[title + suffix] = one["host"]
    clock.append(time.perf_counter())
    on_gpu = {name: make_call_in_context(context, call) for name, (call, context) in calls.items()}
    timed = measure_gpu_times(on_gpu, rounds, ahead_us=KEEP_BUSY_US) if on_gpu else {}
    gpu |= {name: summarize_microseconds(timing) for name, timing in timed.items()}
    short = {
        name: make_batch_in_context(context, call)
        for name, (call, context) in calls.items()
        if timed[name].median_us < HOST_BOUND_US
    }
    on_host = measure_host_times(short, HOST_BATCHES, HOST_CALLS) if short else {}
    host |= {name: summarize_microseconds(timing) for name, timing in on_host.items()}
    clock.append(time.perf_counter())
    spent = {
        what: round(to - at, 2) for what, at, to in zip(("build", "cuDNN", "torch"), clock, clock[1:], strict=False)
    }
    return {**_make_common_row_fields(case), "plans": plans, "gpu": gpu, "host": host, "fastest": find_fastest(gpu)} | {
        "configs": configs,
        "notes": notes,
        "seconds": spent,
    }


def _format_cudnn_version_title(child: PlanTimer) -> str:
    return f"cuDNN {child.child_properties['cudnn']}"


def _build_plan(child: PlanTimer, case: ComparisonCase) -> BuiltPlans:
    return child.build(case.build_graph_for_version(child))


def _time_built_configs(built: BuiltPlans, child: PlanTimer, rounds: int) -> list[dict[str, Any]]:
    """Time the built engine configs, and return them with their times."""
    times = child.measure(rounds, host_below_us=HOST_BOUND_US) if built.configs else []
    return [
        {**config, "gpu": summarize_microseconds(Timing.from_times(found["cold"]))}
        | ({"host": summarize_microseconds(Timing.from_times(found["host"]))} if found["host"] else {})
        for config, found in zip(built.configs, times, strict=False)
    ]


def _make_common_row_fields(case: ComparisonCase) -> dict[str, Any]:
    flops = {} if case.problem is None else {"flops": count_flops(case.problem, case.direction)}
    return {"shape": case.name, "direction": case.direction, **flops}


def _select_first_and_fastest_config(configs: Sequence[dict[str, Any]]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the heuristics' first config, and the fastest if it beats the first beyond noise."""
    if not configs:
        return
    yield "", configs[0]
    best = min(configs, key=lambda one: float(one["gpu"]["median_us"]))
    if Timing(**best["gpu"]).beats(Timing(**configs[0]["gpu"])):
        yield ", best config", best


def find_fastest(times: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return the implementation with the smallest median, and those that are slower only within noise."""
    if not times:
        return []
    first, *others = sorted(times, key=lambda name: times[name]["median_us"])
    best = Timing(**times[first])
    return [first, *(name for name in others if not best.beats(Timing(**times[name])))]


def _make_row_without_gpu(case: ComparisonCase, children: Mapping[str, PlanTimer]) -> dict[str, Any]:
    """Return the table row for a described GPU: the plans in the order of the heuristics, without times."""
    plans, notes = {}, [case.reason_without_torch] if case.reason_without_torch else []
    with ThreadPoolExecutor(len(children)) as pool:
        for child, built in pool.map(lambda child: (child, _build_plan(child, case)), children.values()):
            if built.refused:
                notes.append(f"{_format_cudnn_version_title(child)}: {built.refused}")
            else:
                plans[_format_cudnn_version_title(child)] = ", ".join(config["tag"] for config in built.configs)
    return {**_make_common_row_fields(case), "plans": plans, "notes": notes}


_RECORD_FIELDS = {"rows": tuple[Mapping[str, Any], ...], "seconds": float, "command": str}
_ROW_FIELDS = {"shape": str, "direction": str, "plans": Mapping[str, str], "notes": tuple[str, ...]}  # of every row
_TIMED_ROW_FIELDS = {
    "gpu": Mapping[str, Timing],
    "host": Mapping[str, Timing],
    "fastest": tuple[str, ...],
}  # of rows with times
_FIELDS_THAT_MUST_MATCH = (
    "schema",
    "gpu_name",
    "described",
    "torch",
    "torch_cudnn",
    "versions",
    "cases",
)  # of records in one


def read_record(path: str | Path) -> dict[str, Any]:
    """Return a record of an earlier comparison to continue.

    Raises
    ------
    UsageError
        ``compare-resume`` where the file is none.
    """
    try:
        found = read_json(path, code="compare-resume")
        parts = read_fields(_RECORD_FIELDS, found, f"the record {path}", code="compare-resume")
        read_fields({"resumed": tuple[Any, ...]}, {"resumed": [], **found}, f"the record {path}", code="compare-resume")
        for row in parts["rows"]:
            more: dict[str, Any] = {} if "described" in found else dict(_TIMED_ROW_FIELDS)
            more |= {"flops": float} if "flops" in row else {}
            read_fields(_ROW_FIELDS | more, row, f"a row of {path}", code="compare-resume")
        shlex.split(parts["command"])
    except ValueError as error:  # shlex's too
        said = error.headline if isinstance(error, GraphError | UsageError) else error
        raise UsageError(f"{path} is not a record of a comparison: {said}", code="compare-resume") from error
    return dict(found)


def _collect_reusable_rows(
    earlier: Mapping[str, Any], record: Mapping[str, Any]
) -> dict[tuple[str, str], dict[str, Any]]:
    """Return an earlier record's rows by shape and direction; raise if settings or GPU differ."""
    told = [
        {name: one.get(name) for name in _FIELDS_THAT_MUST_MATCH} | {"command": _split_command_without_limit(one)}
        for one in (earlier, record)
    ]
    for name, there in told[0].items():
        if there != told[1][name]:
            raise UsageError(
                f"the record to resume is of another comparison: its {name} is {there!r}, {told[1][name]!r} is needed",
                code="compare-resume",
                fix="resume with the options, GPU and versions of the record, or leave --resume out",
            )
    return {(row["shape"], row["direction"]): row for row in earlier["rows"]}


def _split_command_without_limit(record: Mapping[str, Any]) -> list[str]:
    return [word for word in shlex.split(record["command"]) if not word.startswith("--limit=")]


def run_comparison(
    wanted: Comparison,
    *,
    step: Callable[[str], object] = str,
    earlier: Mapping[str, Any] | None = None,
    keep: Callable[[RecordTables], object] = id,
) -> RecordTables:
    """Run a comparison and return its record: with times on a real GPU, only with plans for a described one.

    Parameters
    ----------
    step
        Called with the name of what is compared next.
    earlier
        The record of the same comparison that had come to its limit: its rows are kept, and not measured again.
    keep
        Called with the record so far after each row.

    Raises
    ------
    EnvironmentNotReady
        ``no-gpu`` where there is none and no target is named; ``cudnn-version-not-installed``.
    UsageError
        ``unknown-target``, ``compare-resume`` where `earlier` is of another comparison, GPU or version, and what
        :func:`make_comparison_cases` refuses.
    """
    cases = make_comparison_cases(wanted.what)
    if wanted.target is not None:
        find_profile(wanted.target)
    else:
        require_gpu(library().driver, fix="--target h100 lists the plans that would be compared")
    record = {
        **make_measurement_record_header(
            "compare", ("cudnn_backend_py", "python", "cudnn", "driver version", "compiled call")
        ),
        "command": wanted.command,
        "shapes": len({case.name for case in cases}),
        "cases": len(cases),
        **(_describe_torch_and_gpu() if wanted.target is None else {"described": find_profile(wanted.target).title}),
    }
    rows: list[dict[str, Any]] = []
    before: float = 0.0 if earlier is None else earlier["seconds"]
    began = time.perf_counter()

    def make_partial_record() -> RecordTables:
        return RecordTables(
            {**record, "rows": rows, "seconds": round(before + time.perf_counter() - began, 1)}, make_comparison_tables
        )

    with ExitStack() as held:
        children = {
            name: held.enter_context(
                PlanTimer(None if name == DEFAULT_VERSION else name, wanted.target, wanted.configs)
            )
            for name in dict.fromkeys(wanted.versions)
        }
        with ThreadPoolExecutor(len(children)) as pool:
            record["versions"] = list(pool.map(lambda child: child.child_properties["cudnn"], children.values()))
        kept = {}
        if earlier is not None:
            kept = _collect_reusable_rows(earlier, record)
            record["resumed"] = [*earlier.get("resumed", []), _describe_earlier_run(earlier)]
        for case in cases:
            if (row := kept.get((case.name, case.direction))) is not None:
                rows.append(row)
                continue
            if time.perf_counter() - began > wanted.limit_s:
                continue
            step(f"{case.name} {case.direction}")
            if wanted.target is not None:
                rows.append(_make_row_without_gpu(case, children))
            else:
                rows.append(_make_comparison_row(case, children, wanted.rounds, record["torch"] is not None))
                _release_torch_gpu_memory()
            keep(make_partial_record())
        return make_partial_record()


def _describe_earlier_run(record: Mapping[str, Any]) -> dict[str, Any]:
    """Describe the run with the record that is continued: date, commit, number of cores."""
    return {name: record.get(name) for name in ("date", "commit", "cores", "seconds")} | {"rows": len(record["rows"])}


def _describe_torch_and_gpu() -> dict[str, Any]:
    """Compile this package's torch operators, and describe torch and the GPU."""
    try:
        import torch
    except ImportError:
        torch = None
    if torch is None or not torch.cuda.is_available():
        return {"gpu_name": shared_target().profile.title, "torch": None}
    prepare_torch_operators()
    facts = {"gpu_name": torch.cuda.get_device_name(), "torch": torch.__version__}
    return {**facts, "torch_cudnn": torch.backends.cudnn.version()}


def _release_torch_gpu_memory() -> None:
    """Release torch's cached memory for other processes."""
    with suppress(ImportError):
        import torch

        torch.cuda.empty_cache()


# How it is reported


def _format_table_cells(row: Mapping[str, Any], what: str, names: list[str], mark: str) -> list[str]:
    cells = []
    for name in names:
        timing = row[what].get(name)
        text = "" if timing is None else f"{timing['median_us']:.1f}"
        cells.append(mark.format(text) if text and what == "gpu" and name in row["fastest"] else text)
    return cells


def _list_contender_names(record: Mapping[str, Any]) -> list[str]:
    return list(dict.fromkeys(name for row in record["rows"] for name in row["gpu"]))


def make_time_table(record: Mapping[str, Any], what: str = "gpu") -> Table:
    """Return the table of GPU times or host times."""
    names = _list_contender_names(record)
    table = BorderlessTextTable(title=f"{'GPU' if what == 'gpu' else 'Host'} time of attention, microseconds")
    table.add_column("")
    table.add_column("")
    for name in names:
        table.add_column(name, justify="right")
    for row in record["rows"]:
        table.add_row(row["shape"], row["direction"], *_format_table_cells(row, what, names, "{} *"))
    return table


def _format_reported_plans(row: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} `{plan}`" for name, plan in row["plans"].items())


def _format_machine(record: Mapping[str, Any]) -> str:
    facts = record["environment"]
    versions = " and ".join(record.get("versions") or [facts["cudnn"]])
    torch = f"torch {record['torch']}" if record.get("torch") else "no torch"
    return f"{record['gpu_name']}, cuDNN {versions}, {torch}, Python {facts['python']}, {record['date']}"


def _format_report_head(record: Mapping[str, Any], bold: str = "bold") -> list[str]:
    if "described" in record:
        return [
            f"Plans of {record['described']}, described: cuDNN {' and '.join(record['versions'])}, {record['date']}. "
            "Time is not judged: there is no such GPU here."
        ]
    told = f"{_format_machine(record)}. Microseconds: GPU time, L2 flushed / host time of a call; "
    return [f"{told}the fastest on the GPU is {bold}."]


def format_markdown(record: Mapping[str, Any]) -> str:
    """Return the record as a Markdown table of times, or of plans if it has no times, with the machine."""
    lines = [*_format_report_head(record), ""]
    if "described" in record:
        cells = [(row["shape"], row["direction"], _format_reported_plans(row)) for row in record["rows"]]
        lines += format_markdown_table(("shape", "direction", "plans"), cells)
    else:
        names = _list_contender_names(record)
        rows = []
        for row in record["rows"]:
            gpu, host = (_format_table_cells(row, what, names, "**{}**") for what in ("gpu", "host"))
            both = [f"{one} / {two}" if two else one for one, two in zip(gpu, host, strict=True)]
            rows.append((row["shape"], row["direction"], *both, _format_reported_plans(row)))
        lines += format_markdown_table(("shape", "direction", *names, "plans"), rows, right=names)
    lines += _format_uncompared_rows_by_reason(record, "* ")
    if "command" in record:
        lines += ["", f"`{record['command']}`"]
    return "\n".join(lines) + "\n"


def _format_uncompared_rows_by_reason(record: Mapping[str, Any], bullet: str) -> list[str]:
    """Return the rows that were not compared, grouped by reason."""
    counted: dict[str, list[str]] = {}
    for row in record["rows"]:
        for note in row.get("notes", ()):
            counted.setdefault(note, []).append(f"{row['shape']} {row['direction']}")
    lines = [
        f"{bullet}{note} ({rows[0] if len(rows) == 1 else f'{len(rows)} rows, the first {rows[0]}'})"
        for note, rows in counted.items()
    ]
    lines += [f"{bullet}{line}" for line in _format_unstarted_case_count(record)]
    return ["", *lines] if lines else []


def _format_unstarted_case_count(record: Mapping[str, Any]) -> list[str]:
    left = record.get("cases", 0) - len(record["rows"])
    return [f"{left} of {record.get('cases')} cases were not started: the time limit was reached"] if left > 0 else []


def make_comparison_tables(record: Mapping[str, Any]) -> list[Table]:
    """Return the tables of GPU and host times, if any, and of the plans."""
    plans = BorderlessTextTable("shape", "direction", "plans")
    for row in record["rows"]:
        plans.add_row(row["shape"], row["direction"], "\n".join(f"{a}: {b}" for a, b in row["plans"].items()))
    return [*(make_time_table(record, what) for what in ("gpu", "host") if "described" not in record), plans]


def format_text(record: Mapping[str, Any]) -> str:
    """Return tables, plans, versions, and the command line that repeats the comparison."""
    lines = (
        *_format_report_head(record, bold="marked *"),
        *_format_uncompared_rows_by_reason(record, ""),
        f"again: {record['command']}",
    )
    return render_as_text(*make_comparison_tables(record)) + "".join(f"{printable(line)}\n" for line in lines)


def _format_shape_with_plans(row: Mapping[str, Any]) -> str:
    """Return the shape of a row, and on the following lines the plan of each cuDNN version."""
    return "\n".join([row["shape"], *(plan for name, plan in row["plans"].items() if name.startswith("cuDNN "))])


def draw_comparison(record: Mapping[str, Any], path: Path) -> None:
    """Draw TFLOP/s by shape, one picture per direction; the suffix of the path gives the format.

    Raises
    ------
    EnvironmentNotReady
        ``matplotlib-missing``.
    """
    figures = {
        direction: {
            _format_shape_with_plans(row): {
                name: row["flops"] / timing["median_us"] / 1e6 for name, timing in row["gpu"].items()
            }
            for row in record["rows"]
            if row["direction"] == direction and "flops" in row
        }
        for direction in DIRECTIONS
    }
    title = f"{_format_machine(record)}\n{record['command']}"
    draw_point_chart({f"{name}, TFLOP/s": rows for name, rows in figures.items() if rows}, path, title)


def run_compare_command(
    wanted: Comparison,
    style: str,
    plot: Path | None,
    resumed: str | None = None,
    keep: Callable[[RecordTables], object] = id,
) -> str:
    """Run a comparison and return it as ``text``, ``json`` or ``markdown``; draw it if a path is given.

    Parameters
    ----------
    resumed, keep
        The path of the earlier record of :func:`run_comparison`, and what it calls after each row.

    Raises
    ------
    EnvironmentNotReady
        As :func:`run_comparison`; ``matplotlib-missing``, before anything is measured.
    UsageError
        As :func:`run_comparison` and :func:`read_record`.
    """
    earlier = None if resumed is None else read_record(resumed)
    if plot is not None:
        load_figure_class()
    console = open_console(stderr=True)
    with console.status("") if is_terminal(sys.stderr) else nullcontext() as status:
        step = str if status is None else lambda text: status.update(f"comparing {text}")
        record = run_comparison(wanted, step=step, earlier=earlier, keep=keep)
    for line in _format_unstarted_case_count(record):
        console.print(f"{line}; --resume continues the record")
    if plot is not None:
        draw_comparison(record, plot)
    if style == "json":
        return write_record(record, None) + "\n"
    return format_markdown(record) if style == "markdown" else format_text(record)
