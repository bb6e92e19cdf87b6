"""Break down a program's cuDNN log: executions, graphs, plans, build times and shape classes."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..graph.attention.recognize import read_attention
from ..graph.ir import Graph
from ..importers.graphs import GraphSource, LoggedGraph, read_graphs
from ..known_issues import find_known_issues
from ..printable import printable
from ..system.version import Version

__all__ = ["Breakdown", "ShapeGroup", "break_down_log"]


@dataclass(frozen=True, slots=True)
class ShapeGroup:
    """Graphs of one cuDNN version that differ only in size: batch and lengths of attention, any dims of other graphs.

    ``graphs`` are their numbers in the log. ``advice`` says what would change, empty where one graph is alone.
    """

    name: str
    graphs: tuple[int, ...]
    plans: int
    executions: int
    plan_s: float
    advice: str = ""


@dataclass(frozen=True, slots=True)
class Breakdown:
    """The graphs of a log, grouped by shape class; ``faults`` lists the known issues of each graph, in the same order.

    Seconds are those of the log's own clock: from an operation graph to its plan, which is asking heuristics and
    building, and to its first run, with whatever the program did between.
    """

    graphs: tuple[LoggedGraph, ...]
    groups: tuple[ShapeGroup, ...]
    faults: tuple[tuple[str, ...], ...]

    def to_dict(self) -> dict[str, Any]:
        """Return the breakdown as plain data."""
        graphs = [
            {
                "number": number,
                "name": _format_graph_title(item),
                "line": item.line,
                "made": item.count,
                "plans": item.plans,
                "executions": item.executions,
                "plan_s": list(item.plan_s),
                "run_s": item.run_s,
                "faults": list(faults),
            }
            for number, (item, faults) in enumerate(zip(self.graphs, self.faults, strict=True), 1)
        ]
        groups = [
            {name: getattr(group, name) for name in ("name", "graphs", "plans", "executions", "plan_s", "advice")}
            for group in self.groups
        ]
        return {"schema": "cudnn-backend-py/log-breakdown", "version": 1, "graphs": graphs, "groups": groups}

    def __str__(self) -> str:
        if not self.graphs:
            return "no graph found in the log: set CUDNN_LOGLEVEL_DBG=3 before the program starts\n"
        runs, plans = sum(item.executions for item in self.graphs), sum(item.plans for item in self.graphs)
        seconds = sum(map(_sum_plan_seconds, self.graphs))
        heading = f"{_format_count(runs, 'execution')} of {_format_count(len(self.graphs), 'graph')}"
        heading += f", {_format_count(plans, 'plan')}"
        lines = [
            heading
            + f"; {seconds:.3f} s from graphs to {self._name_events_that_end_plan_times()}"
            * any(item.plan_s for item in self.graphs),
            "",
        ]
        versions = len({item.version for item in self.graphs if item.version})
        for number, (item, faults) in enumerate(zip(self.graphs, self.faults, strict=True), 1):
            by = f", cuDNN {item.version}" if versions > 1 and item.version else ""
            lines.append(f"graph {number}, line {item.line}{by}: {_format_graph_title(item)}")
            built = f"{_format_count(item.plans, 'plan')}{_format_plan_times(item)}"
            made = f"made {_format_count(item.count, 'time')}, {built}"
            lines.append(f"  {made}, executed {_format_count(item.executions, 'time')}")
            lines += [f"  known issue: {issue}" for issue in faults]
        for group in self.groups:
            if len(group.graphs) > 1:
                shapes = f"{len(group.graphs)} shapes of {group.name} (graphs {', '.join(map(str, group.graphs))})"
                lines += ["", f"{shapes} got {_format_count(group.plans, 'plan')}"]
            if group.advice:
                lines += [*[""] * (len(group.graphs) == 1), f"  possible saving: {group.advice}"]
        return "\n".join(printable(line) for line in lines) + "\n"

    def _name_events_that_end_plan_times(self) -> str:
        ran = {item.run_s is not None for item in self.graphs if item.plan_s}
        return "their first runs" if ran == {True} else "their plans" if ran == {False} else "their first runs or plans"


def break_down_log(source: GraphSource) -> Breakdown:
    """Read a cuDNN log and return its executions, plans and build times per graph and shape class.

    Raises
    ------
    UsageError
        ``log-file``.
    """
    graphs = tuple(read_graphs(source))
    return Breakdown(graphs, _group_by_shape_class(graphs), tuple(map(_find_issues_of_logged_graph, graphs)))


def _find_issues_of_logged_graph(item: LoggedGraph) -> tuple[str, ...]:
    number = item.device.get("deviceVer")
    if item.graph is None or not isinstance(number, int) or not re.fullmatch(r"\d+\.\d+\.\d+", item.version):
        return ()
    return tuple(map(str, find_known_issues(item.graph, number // 10, Version.from_text(item.version))))


def _sum_plan_seconds(item: LoggedGraph) -> float:
    """Return the seconds spent on a graph's plans: until its first run, plus the build time of each later plan."""
    first = max(item.plan_s[:1], default=0.0) if item.run_s is None else item.run_s
    return first + sum(item.plan_s[1:])


def _format_plan_times(item: LoggedGraph) -> str:
    if not item.plan_s:
        return ""
    said = ", ".join(f"{seconds:.3f}" for seconds in item.plan_s[:4]) + ", ..." * (len(item.plan_s) > 4)
    first = "" if item.run_s is None else f", first run after {item.run_s:.3f} s"
    return f" after {said} s{first}"


def _format_graph_title(item: LoggedGraph) -> str:
    if item.graph is None:
        return item.fault.headline if item.fault is not None else "a graph that could not be rebuilt"
    use = read_attention(item.graph)
    if use is not None:
        p, way = use.problem, "backward" if use.backward else "forward"
        sizes = f"b {p.batch}, h {p.heads}, s {p.seq_q} x {p.seq_kv}, d {p.head_dim}"
        return f"attention {way}, {p.data_type.name}, {sizes}"
    outputs = [tensor for tensor in item.graph.tensors if not tensor.virtual][-1:]
    return _format_operations(item.graph) + "".join(f" to {list(tensor.dims)}" for tensor in outputs)


def _format_operations(graph: Graph) -> str:
    counts = Counter(_format_operation_kind(op) for op in graph.ops)
    return " + ".join(f"{count} {kind}" if count > 1 else kind for kind, count in counts.items())


def _format_count(count: int, what: str) -> str:
    return f"{count} {what}" + "s" * (count != 1)


def _format_operation_kind(op: Any) -> str:
    kind = getattr(op, "kind", None)
    return (kind.name.removeprefix("OPERATION_") if kind is not None else type(op).__name__).lower()


def _make_shape_class_name_and_key(graph: Graph) -> tuple[str, object]:
    """Return the name of a graph's shape class, and a key for the properties that all its graphs share."""
    use = read_attention(graph)
    if use is not None:
        p = use.problem
        kept = (p.heads, p.kv_heads, p.head_dim, p.head_dim_v, p.data_type, p.left_bound, p.right_bound, p.padding)
        name = f"attention {'backward' if use.backward else 'forward'}, {p.data_type.name}, h {p.heads}, d {p.head_dim}"
        return name, (name, kept, p.ragged, p.dropout > 0, p.bias is not None, use.form)
    kinds = tuple(_format_operation_kind(op) for op in graph.ops)
    tensors = tuple((tensor.data_type, len(tensor.dims), tensor.virtual) for tensor in graph.tensors)
    return _format_operations(graph), (kinds, tensors)


def _group_by_shape_class(graphs: Sequence[LoggedGraph]) -> tuple[ShapeGroup, ...]:
    found: dict[tuple[str, str, object], list[int]] = {}
    for number, item in enumerate(graphs, 1):
        if item.graph is not None:
            found.setdefault((item.version, *_make_shape_class_name_and_key(item.graph)), []).append(number)
    return tuple(_make_shape_group(name, tuple(numbers), graphs) for (_, name, _), numbers in found.items())


def _make_shape_group(name: str, numbers: tuple[int, ...], graphs: Sequence[LoggedGraph]) -> ShapeGroup:
    items = [graphs[number - 1] for number in numbers]
    plans, seconds = sum(item.plans for item in items), sum(map(_sum_plan_seconds, items))
    return ShapeGroup(
        name, numbers, plans, sum(item.executions for item in items), seconds, _suggest_fewer_plans(items, name)
    )


def _suggest_fewer_plans(items: Sequence[LoggedGraph], name: str) -> str:
    again = sum(item.repeated_plans for item in items)
    built = sum(item.plans > 0 for item in items)
    if built > 1 and name.startswith("attention"):
        costs = [_sum_plan_seconds(item) for item in items]
        spared = sum(costs) - max(costs)
        saving = f"{_format_count(built - 1, 'plan')} fewer, {spared:.3f} s of this log"
        return (
            f"one plan for packed sequences of any lengths serves all {built} shapes where cuDNN supports it "
            f"(cudnn_backend_py.torch_ops, PlanPool): {saving}"
        )
    if again:
        return f"with PlanCache the plan of each config is built only once: {_format_count(again, 'plan')} fewer"
    if built > 1:
        return f"few padded sizes instead of {built} shapes, or plans kept on disk (PlanCache) for the next process"
    return ""
