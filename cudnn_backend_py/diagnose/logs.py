"""Judge the graphs of a cuDNN log."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ..graph import Graph
from ..importers.graphs import UNNAMED, GraphSource, LoggedGraph, read_graphs, read_records_and_foreign_json
from ..importers.records import ForeignJson
from ..native.log import LogRecord
from ..printable import make_lines_printable, printable
from ..system.version import DESCRIBED_GPUS_SINCE, parse_version_numbers
from .explanation import explain
from .judges import GPU, Judge, Query
from .other_versions import add_version_remedy
from .report.summary import format_graph_line, format_summary
from .report.text import render_text
from .verdict import Outcome, Verdict

__all__ = ["LogReport", "report_log"]

_MAX_SHOWN_REASONS = 3  # the last ones, where no graph can be judged


@dataclass(frozen=True, slots=True)
class LogReport:
    """The graphs of a log, each with one verdict per target."""

    graphs: tuple[LoggedGraph, ...]
    verdicts: tuple[tuple[Verdict, ...], ...]
    finalized: int = 0  # descriptors, without an operation graph

    @property
    def exit_code(self) -> int:
        """The largest exit code of the verdicts; 2 without graphs, or if a graph to judge could not be rebuilt."""
        codes = [verdict.exit_code for asked in self.verdicts for verdict in asked]
        rebuilt = [item.graph is not None for item in self.graphs]
        lost = not all(rebuilt) if codes else not any(rebuilt)
        return max(codes, default=0) if not lost else 2

    def to_dict(self) -> dict[str, Any]:
        """Return the report as plain data."""
        return {
            "schema": "cudnn-backend-py/log",
            "version": 1,
            "graphs": [
                {**item.to_dict(), "verdicts": [verdict.to_dict() for verdict in asked]}
                for item, asked in zip(self.graphs, self.verdicts, strict=True)
            ],
        }

    def text(self, *, verbose: bool = True, search: str = "") -> str:
        """Return the report as text: for each graph its line in the log, then its verdicts.

        Whole graphs, and every engine config with cuDNN's reasons, only if `verbose`. `search` is a command line that
        finds remedies for the graph of the log that its options ``--graph`` and ``--target`` name.
        """
        if not self.graphs:
            if self.finalized:
                return (
                    f"The log is a part of a longer one: {self.finalized} descriptors are finalized in it, and no "
                    "operation graph. Give it up to the call that finalizes CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR.\n"
                )
            return "No graph found in the log. Set CUDNN_LOGLEVEL_DBG=3 before the program starts.\n"
        parts = []
        for number, (item, verdicts) in enumerate(zip(self.graphs, self.verdicts, strict=True), 1):
            paragraph = _format_graph_heading(number, item)
            parts.append(paragraph if verbose else paragraph.partition("\n")[0])
            if not verbose and not verdicts:
                parts[-1] += _format_graph_summary(item)
            for one in verdicts:
                parts.append(render_text(one) if verbose else format_summary(one))
                if search and one.outcome is Outcome.NOT_SUPPORTED and not one.has_version_remedy:
                    chosen = f" --graph {number}" * (len(self.graphs) > 1)
                    parts[-1] += f"{search}{chosen} --target {shlex.quote(one.target)}\n"
        if note := self._compare_versions():
            parts.append(note)
        if not verbose and not any(self.verdicts) and any(item.graph is not None for item in self.graphs):
            found = {_find_logged_architecture(item) for item in self.graphs} - {""}
            name = found.pop() if len(found) == 1 else "NAME"
            parts.append(f"No graph was judged: --target {name} explains each; -v shows what the log says.")
        return "\n".join(part.rstrip("\n") + "\n" for part in parts)

    def _compare_versions(self) -> str:
        """Return a line if the verdicts are of another cuDNN than the log, else an empty text."""
        judged = {one.cudnn for some in self.verdicts for one in some if one.outcome is not Outcome.NOT_JUDGED}
        logged = sorted({item.version for item in self.graphs if item.version})
        if not logged or not judged or all(name.partition("+")[0] in logged for name in judged):
            return ""
        said = f"The log is of cuDNN {', '.join(logged)}, the verdicts are of cuDNN {', '.join(sorted(judged))}"
        described = any(one.target != "gpu" for some in self.verdicts for one in some)
        nearest = max(logged, key=parse_version_numbers)
        if described and parse_version_numbers(nearest) < DESCRIBED_GPUS_SINCE:
            return f"{said}: --cudnn 9.8.0 is the oldest that judges for a described GPU."
        return f"{said}: --cudnn {nearest} judges with the cuDNN of the log."

    def __str__(self) -> str:
        return self.text()


def report_log(source: GraphSource, targets: Sequence[str] = (), *, explained: bool | None = None) -> LogReport:
    """Read a log, and explain its graphs on each target.

    Parameters
    ----------
    source
        As for :func:`read_graphs`.
    targets
        Names of described GPUs.
    explained
        Whether to explain: if not given, where there are targets. Without targets it is for the GPU of this process.

    Raises
    ------
    UsageError
        ``log-file``, ``unknown-target``.
    """
    finalized = 0

    def read_and_count_items() -> Iterator[LogRecord | ForeignJson]:
        nonlocal finalized
        for item in read_records_and_foreign_json(source):
            finalized += isinstance(item, LogRecord) and item.function == "cudnnBackendFinalize"
            yield item

    graphs = tuple(read_graphs(read_and_count_items()))
    asked: Sequence[str | None] = (targets or (None,)) if explained or (explained is None and targets) else ()
    with Judge() as judge:  # which starts no process until a verdict may differ by version

        def explain_with_version_remedy(graph: Graph, name: str | None) -> Verdict:
            verdict = explain(graph, name)
            return add_version_remedy(verdict, Query(graph, name or GPU), judge)

        verdicts = tuple(
            tuple(explain_with_version_remedy(item.graph, name) for name in asked) if item.graph is not None else ()
            for item in graphs
        )
    return LogReport(graphs, verdicts, finalized if not graphs else 0)


def _format_graph_summary(item: LoggedGraph) -> str:
    """Return a graph's operations and number of engine configs, or why it could not be rebuilt, with cuDNN's error."""
    if item.graph is None:
        lines = [] if item.fault is None else [item.fault.render()]
        lines += [f"  cudnn:  {reason}" for reason in item.reasons[-_MAX_SHOWN_REASONS:]]
        return "".join(f"\n{make_lines_printable(line)}" for line in lines)
    lines = [printable(format_graph_line(str(item.graph)))]
    if item.configs:
        refused = sum(config.state == "refused" for config in item.configs)
        lines.append(f"{len(item.configs)} engine configs in the log, {refused} of them refused")
    return "".join(f"\n  {line}" for line in lines)


def _find_logged_architecture(item: LoggedGraph) -> str:
    """Return the name of a target with the architecture that the log states; empty if it states none."""
    version = item.device.get("deviceVer")
    return f"sm{version // 10}" if isinstance(version, int) else ""


def _format_graph_heading(number: int, item: LoggedGraph) -> str:
    told = [f"cuDNN {item.version or 'of unknown version'}", f"line {item.line}"]
    told += [f"{item.count} times"] * (item.count > 1) + [f"executed {item.executions} times"] * (item.executions > 0)
    told += [f"thread {item.thread}"] * bool(item.thread)
    told += [f"heuristics {', '.join(item.modes)}"] * bool(item.modes)
    name = "no graph" if item.source in ("none", "error") else f"graph {number}"
    name += f", {item.graph.name}" if item.graph is not None and item.graph.name != UNNAMED else ""
    lines = [printable(f"{name}: {', '.join(told)}; from {_SOURCE_TITLES.get(item.source, item.source)}")]
    if item.device:
        known = ", ".join(f"{key} {value}" for key, value in item.device.items())
        lines.append(printable(f"  on {known}"))
    text = str(item.graph) if item.graph is not None else item.fault.render() if item.fault is not None else ""
    lines += [f"  {line}" for line in text.splitlines()]
    for config in item.configs:
        lines.append(printable(f"  {config.tag} {config.state}"))
        lines += [f"      {reason}" for reason in config.reasons]
    lines += [f"  {reason}" for reason in item.reasons]
    lines += [f"  note: {note}" for note in item.notes]
    return make_lines_printable("\n".join(lines)) + "\n"


_SOURCE_TITLES = {
    "json": "cuDNN's JSON",
    "descriptors": "the dumps of descriptors",
    "frontend": "the JSON of cuDNN's frontend",
    "own": "a file of this package",
    "none": "what else is in the log",
    "error": "what else is in the log",
}
