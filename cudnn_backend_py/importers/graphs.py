"""Rebuild the graphs of a cuDNN log, with their engine configs and the reasons why cuDNN refused these."""

from __future__ import annotations

import contextlib
import os
import re
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from itertools import chain
from typing import Any, cast

from ..errors import GraphError
from ..generated.enums import DescriptorType, HeurMode, Severity
from ..graph.attention.recognize import read_attention
from ..graph.ir import Graph
from ..graph.serial import graph_to_json
from ..native.log import LogRecord
from ..plans.choice import EngineChoice, read_logged_choice
from ..plans.refusals import Reason, read_refusals
from ..system.untrusted_files import parse_json
from ..system.version import Version
from .calls import DESCRIPTORS, ELEMENT, FIELD_OF, TRACKED, DescriptorCalls, parse_descriptor_dump
from .cudnn_json import graph_from_log_json, is_subgraph
from .frontend_json import graph_from_frontend_json
from .own_json import may_be_graph_or_plan_json, read_graph_from_own_json
from .records import MAX_STREAMS, ForeignJson, LruDict, Source, scan_log

__all__ = ["UNNAMED", "GraphSource", "LoggedConfig", "LoggedGraph", "read_graphs"]

UNNAMED = Graph.field_defaults["name"]  # the name of a graph that the log does not name
MAX_GRAPHS = 1000
MAX_OPERATIONS = 50_000  # of all graphs that are kept
CUDNN_LIMIT = 65_500  # characters: cuDNN cuts its own messages off at 64 KiB
_MAX_REASONS = 100
_KEPT = 60_000  # characters of the JSON of a graph that every message has which cuDNN cuts off

_DEVICE = re.compile(
    r"^ *(deviceName|deviceVer|multiProcessorCount|driverVer|maxSharedMemoryPerBlockOptin|totalGlobalMem): "
    r"type=\w+; val=(.*?);?$",
    re.MULTILINE,
)
_ATTRIBUTE = re.compile(r"^ *attributeName: type=\w+; val=(\w+)", re.MULTILINE)
_ENGINE = re.compile(r"^ *engine_id: type=int; val=(\d{1,9});", re.MULTILINE)
_KNOB = re.compile(r"^ *(CUDNN_KNOB_TYPE_\w+): type=int; val=(-?\d{1,9});", re.MULTILINE)
_ENGINE_KEY = '},"engine":'

GraphSource = Source | Iterable[LogRecord | ForeignJson]
_Key = tuple[str, bool, Graph | str | GraphError]  # version, of the frontend, graph or text of the fault


@dataclass(frozen=True, slots=True)
class LoggedConfig:
    """A logged engine config; ``state`` is ``named``, ``refused``, ``planned`` or ``executed``."""

    engine: int
    knobs: Mapping[str, int]
    state: str = "named"
    reasons: tuple[Reason, ...] = ()

    @property
    def tag(self) -> str:
        """Short text such as ``eng2_k24=7``, without knobs of -1, which the engine chose."""
        return EngineChoice.from_log(self.engine, self.knobs).tag

    def to_dict(self) -> dict[str, Any]:
        """Return the config as plain data."""
        reasons = [str(reason) for reason in self.reasons]
        return {
            "tag": self.tag,
            "engine": self.engine,
            "knobs": dict(self.knobs),
            "state": self.state,
            "reasons": reasons,
        }


@dataclass(slots=True)
class LoggedGraph:
    """A logged graph with everything the log contains about it.

    Attributes
    ----------
    graph, fault
        The graph, or why it could not be rebuilt.
    version
        Of the cuDNN that logged it, such as ``9.19.0``.
    line, thread, process
        Where the log has it first, and who made it.
    count, executions
        How often it was made an operation graph, and how often it ran.
    source
        ``json`` (cuDNN's), ``descriptors``, ``frontend`` (the JSON of cuDNN's frontend) or ``own`` (graph JSON, or a
        plan file, of this package); without a graph ``none``, or ``error`` if cuDNN's error belongs to none.
    modes
        Heuristics modes that were queried.
    configs
        Engine configs in the log's order.
    reasons
        What cuDNN says that belongs to no config.
    device
        What the log says of the GPU: ``deviceName``, ``deviceVer``, ``multiProcessorCount`` and the like.
    notes
        What of the graph the log does not say; for the first graph, cuDNN's errors that belong to no graph.
    plans, plan_s, run_s
        How many plans were requested; the seconds by the log's clock from the operation graph to each plan (the first
        ``MAX_GRAPHS`` of them; to its announcement where the log does not have the answer), and from the first
        operation graph, at ``made_at``, to the first run.
    repeated_plans
        How many of the plans have an engine config that had a plan before.
    """

    graph: Graph | None
    fault: GraphError | None
    version: str
    line: int
    source: str
    thread: int = 0
    process: int = 0
    count: int = 0
    executions: int = 0
    modes: tuple[str, ...] = ()
    configs: tuple[LoggedConfig, ...] = ()
    reasons: tuple[Reason, ...] = ()
    device: Mapping[str, int | str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    plans: int = 0
    repeated_plans: int = 0
    plan_s: tuple[float, ...] = ()
    run_s: float | None = None
    made_at: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the logged graph as plain data; ``graph`` is graph JSON."""
        return {
            "graph": None if self.graph is None else graph_to_json(self.graph),
            "fault": None if self.fault is None else self.fault.to_dict(),
            **{
                name: getattr(self, name)
                for name in ("version", "line", "source", "thread", "process", "count", "executions")
            },
            "modes": list(self.modes),
            "configs": [config.to_dict() for config in self.configs],
            "reasons": [str(reason) for reason in self.reasons],
            "device": dict(self.device),
            "notes": list(self.notes),
        }


def read_graphs(source: GraphSource) -> Iterator[LoggedGraph]:
    """Yield the graphs of a log in order; equal graphs of one cuDNN version are counted as one.

    They come when the log has been read to its end, or, with more than ``MAX_GRAPHS``, when one has to make room.
    Errors before the first graph are in its notes; if the log has no graph, they are an entry without a graph.

    Parameters
    ----------
    source
        As for :func:`read_log`, or records and JSON that were read or captured already. A file may also be one JSON:
        cuDNN's operation graph, a graph of cuDNN's frontend, graph JSON or a plan file, pretty-printed or not.

    Raises
    ------
    UsageError
        ``log-file``.
    """
    reader = _GraphReader()
    for item in read_records_and_foreign_json(source):
        reader.add_record_or_foreign_json(item)
        yield from reader.pop_graphs_beyond_limit()
    yield from reader.finish()


def read_records_and_foreign_json(source: GraphSource) -> Iterator[LogRecord | ForeignJson]:
    """Yield the records of a log and the JSON between them, from a file, text or records."""
    if isinstance(source, (str, os.PathLike)) or hasattr(source, "read"):
        yield from scan_log(source)  # type: ignore[arg-type]
        return
    items = iter(source)
    for item in items:
        if isinstance(item, (LogRecord, ForeignJson)):
            yield item
        else:
            yield from scan_log(cast("Iterable[str | bytes]", chain([item], items)))


_ERROR = "error"  # the source of an entry for errors that belong to no graph


def _make_log_graph_error(headline: str, fix: str | None = None) -> GraphError:
    return GraphError(headline, code="log-graph", fix=fix)


def _parse_json_or_none(text: str) -> Any:
    """Return the JSON value, None if the text is not JSON."""
    try:
        return parse_json(text, "a graph", code="log-graph")
    except GraphError:
        return None


@dataclass(slots=True)
class _LoggedThreadState:
    """The state of reading one thread's log: its descriptors, last graph and pending records."""

    calls: DescriptorCalls = field(default_factory=DescriptorCalls)
    graph: _Key | None = None  # of the one made last
    pending: tuple[LogRecord, Graph | GraphError, int] | None = None  # from a dump; its JSON may follow
    subgraphs: list[tuple[LogRecord, Any]] = field(default_factory=list)
    asked: LoggedConfig | None = None  # what the next record may refuse
    texts: LruDict[int, _Key] = field(default_factory=lambda: LruDict(16))
    planning: _Key | None = None  # the graph whose plan is being built
    made_at: str | None = None  # when its last operation graph was made


class _GraphReader:
    """Collects graphs from log records."""

    def __init__(self) -> None:
        self.graphs: OrderedDict[_Key, LoggedGraph] = OrderedDict()
        self.threads: LruDict[tuple[int, int], _LoggedThreadState] = LruDict(MAX_STREAMS)
        self.latest: LruDict[int, _Key] = LruDict(MAX_STREAMS)  # graph of a process
        self.devices: LruDict[int, dict[str, int | str]] = LruDict(MAX_STREAMS)
        self.operations = 0
        self.has_calls = False  # as a log of level 3 has from its start

    def pop_graphs_beyond_limit(self) -> Iterator[LoggedGraph]:
        while len(self.graphs) > MAX_GRAPHS or (self.operations > MAX_OPERATIONS and len(self.graphs) > 1):
            oldest = self.graphs.popitem(last=False)[1]
            self.operations -= len(oldest.graph.ops) if oldest.graph is not None else 0
            if oldest.source != _ERROR:
                yield _name_by_pattern(oldest)

    def finish(self) -> Iterator[LoggedGraph]:
        for thread in list(self.threads.items.values()):
            self._count_dumped_graph_without_json(thread)
            for record, _ in thread.subgraphs:
                self._add_graph(
                    record,
                    _make_log_graph_error("the log has this sub-graph, but not the graph that contains it"),
                    "json",
                )
        found = sorted(self.graphs.values(), key=lambda entry: entry.line)
        graphs = [entry for entry in found if entry.source != _ERROR]
        for entry in found if graphs else ():
            if entry.source == _ERROR:
                graphs[0].notes += tuple(f"line {entry.line}, of no graph: {reason}" for reason in entry.reasons)
        yield from map(_name_by_pattern, graphs or found)

    def add_record_or_foreign_json(self, item: LogRecord | ForeignJson) -> None:
        if isinstance(item, ForeignJson):
            self._read_foreign_json(item)
            return
        thread = self._get_thread_state(item)
        self.has_calls = self.has_calls or item.severity is Severity.INFO
        if "deviceVer: " in item.text:
            self._read_device_properties(item)
        if '"operationGraph"' in item.text:
            for line in item.text.splitlines():
                if '"operationGraph"' in line:
                    self._read_json_line(item, thread, line)
        if "Reason: " in item.text:
            self._read_refusal_reasons(item, thread)
        self._read_logged_call(item, thread)

    def _get_thread_state(self, item: LogRecord) -> _LoggedThreadState:
        """Return the state of the thread that logged a record; without a thread id, that of the only known thread."""
        if not (item.process or item.thread) and len(self.threads.items) == 1:
            return next(iter(self.threads.items.values()))
        thread = self.threads.get((item.process, item.thread))
        if thread is None:
            thread = _LoggedThreadState()
            if (lost := self.threads.store((item.process, item.thread), thread)) is not None:
                self._count_dumped_graph_without_json(lost)
        return thread

    # entries

    def _add_graph(
        self,
        record: LogRecord | ForeignJson,
        graph: Graph | GraphError,
        source: str,
        version: str | None = None,
        *,
        mark: int | None = None,
        made: bool = True,
    ) -> _Key:
        """Add a graph if it is new, with `made` count one finalization of it in the log, and return its key.

        `mark` distinguishes graphs that cannot be rebuilt for the same reason.
        """
        number = record.version if isinstance(record, LogRecord) else None
        said = _format_version(number) if version is None else version
        fault = graph if isinstance(graph, GraphError) else None
        key = (said, source == "frontend", graph if fault is None else str(fault) + f" {mark}" * (mark is not None))
        entry = self.graphs.get(key)
        if entry is None:
            process = getattr(record, "process", 0)
            self.operations += len(graph.ops) if isinstance(graph, Graph) else 0
            entry = self.graphs[key] = LoggedGraph(
                graph=graph if isinstance(graph, Graph) else None,
                fault=fault,
                version=said,
                line=getattr(record, "line", 0),
                source=source,
                thread=getattr(record, "thread", 0),
                process=process,
                device=self.devices.get(process) or {},
            )
        entry.count += made
        return key

    def _record_finalized_graph(self, record: LogRecord, thread: _LoggedThreadState, key: _Key) -> None:
        thread.graph = key
        thread.asked = None
        thread.made_at = record.time
        self.graphs[key].made_at = self.graphs[key].made_at or record.time
        self.latest.store(record.process, key)

    def _find_graph(self, record: LogRecord, thread: _LoggedThreadState) -> LoggedGraph | None:
        """Return the graph that a record refers to: the last one of its thread, else of its process, else None."""
        key = thread.graph or self.latest.get(record.process) or self.latest.get(0)
        return self.graphs.get(key) if key is not None else None

    def _count_dumped_graph_without_json(self, thread: _LoggedThreadState) -> None:
        """Count the graph of a descriptor dump if no JSON followed."""
        if thread.pending is None:
            return
        record, graph, unknown = thread.pending
        thread.pending = None
        key = self._add_graph(record, graph, "descriptors")
        if unknown and isinstance(graph, Graph):
            text = f"the log has no calls that built {unknown} tensors: reordering and ragged offsets are unknown"
            self.graphs[key].notes = (text,)
        self._record_finalized_graph(record, thread, key)

    # JSON

    def _read_foreign_json(self, item: ForeignJson) -> None:
        data = _parse_json_or_none(item.text)
        fields = data if isinstance(data, dict) else {}
        source, version = "frontend", fields.get("cudnn_backend_version")
        try:
            graph: Graph | GraphError
            if "operationGraph" in fields or "finalizeMode" in fields:
                graph = graph_from_log_json(_drop_scalar_values(fields))
                source, version = "json", _format_version(fields.get("cudnnVersion"))
            elif may_be_graph_or_plan_json(data):
                source = "own"
                graph = read_graph_from_own_json(data)
            else:
                graph = graph_from_frontend_json(data)
        except GraphError as error:
            graph = error
        self._add_graph(item, graph, source, version[:20] if isinstance(version, str) else "")

    def _read_json_line(self, record: LogRecord, thread: _LoggedThreadState, line: str) -> None:
        text = line[line.index("{") :].rstrip("; \r") if "{" in line else ""
        data = _parse_json_or_none(text)
        if not isinstance(data, dict):
            self._read_truncated_json(record, thread, hash(text.partition('"tensors"')[2][:_KEPT]))
            return
        body = text.partition('"tensors"')[2].rpartition(_ENGINE_KEY)[0]
        logged = read_logged_choice(data.get("engine"))
        if "engine" not in data:
            self._add_finalized_graph(record, thread, data, text.partition('"tensors"')[2].removesuffix("}"))
            return
        key = thread.texts.get(hash(body))
        if key is None or key not in self.graphs:
            key = self._find_graph_of_config(record, thread, data)
        thread.graph = key
        entry = self.graphs[key]
        executed = self._count_record_if_execution(record, entry)
        if executed:
            _add_scalar_values(entry, data)
        if logged is not None:
            _merge_engine_config(entry, LoggedConfig(*logged, state="executed" if executed else "named"))

    def _read_truncated_json(self, record: LogRecord, thread: _LoggedThreadState, mark: int) -> None:
        """Count a graph with logged JSON that is cut off, or its execution; `mark` is the hash of the rest."""
        function = record.function or ""
        if "EngineCfg" in function and self._find_graph(record, thread) is not None:
            return
        fault = _make_log_graph_error(
            "the JSON of a graph is cut off: cuDNN ends its messages at 64 KiB, or the log is cut off"
        )
        if "FinalizeGraph" in function:
            whole = thread.pending is not None and isinstance(thread.pending[1], Graph)
            if whole:
                self._count_dumped_graph_without_json(thread)
            else:
                thread.pending = None
                self._record_finalized_graph(record, thread, self._add_graph(record, fault, "json", mark=mark))
            if thread.graph is not None:
                thread.texts.store(mark, thread.graph)
            return
        key = thread.texts.get(mark)
        if key is None or key not in self.graphs:
            key = self._add_graph(record, fault, "json", mark=mark, made=False)
        thread.graph = key
        self._count_record_if_execution(record, self.graphs[key])

    def _count_record_if_execution(self, record: LogRecord, entry: LoggedGraph) -> bool:
        """Return whether a record is an execution, and count it."""
        if "Execute" not in (record.function or ""):
            return False
        entry.executions += 1
        if entry.executions == 1:
            entry.run_s = _compute_seconds_between(entry.made_at, record.time)
        return True

    def _add_finalized_graph(
        self, record: LogRecord, thread: _LoggedThreadState, data: dict[str, Any], body: str
    ) -> None:
        """Add the graph in the JSON that cuDNN logs on finalization, unless it is a sub-graph."""
        pending, thread.pending = thread.pending, None
        inner = thread.subgraphs[-1][1] if thread.subgraphs else None
        graph: Graph | GraphError
        try:
            graph = graph_from_log_json(_drop_scalar_values(data), inner)
        except GraphError as error:
            if error.code == "missing-producer" and is_subgraph(data):
                thread.subgraphs = [*thread.subgraphs[-7:], (record, data)]
                return
            graph = pending[1] if pending is not None and isinstance(pending[1], Graph) else error
        thread.subgraphs = []
        key = self._add_graph(record, graph, "json", _format_version(data.get("cudnnVersion")))
        if inner is None and _may_lack_subgraph(graph, data):
            self.graphs[key].notes = (
                "cuDNN logs the sub-graph of SDPA_BWD separately, and the log does not contain it",
            )
        thread.texts.store(hash(body), key)
        self._record_finalized_graph(record, thread, key)

    def _find_graph_of_config(self, record: LogRecord, thread: _LoggedThreadState, data: dict[str, Any]) -> _Key:
        """Return the key of the graph that an engine config belongs to; add the graph if it is new."""
        graph: Graph | GraphError
        try:
            graph = graph_from_log_json(_drop_scalar_values(data))
        except GraphError as error:
            graph = error
        version = _format_version(data.get("cudnnVersion"))
        last = thread.graph
        if (
            last is not None
            and last in self.graphs
            and (self.graphs[last].graph == graph or _may_lack_subgraph(graph, data))
        ):
            return last
        key = (version, False, str(graph) if isinstance(graph, GraphError) else graph)
        return key if key in self.graphs else self._add_graph(record, graph, "json", version)

    # what else records say

    def _read_device_properties(self, record: LogRecord) -> None:
        found: dict[str, int | str] = {}
        for key, value in _DEVICE.findall(record.text):
            number = value.lstrip("-")
            found[key] = int(value) if number.isdecimal() and len(number) < 20 else value.strip('"')[:200]
        if found.get("deviceVer") == 0:  # a description that is not finalized yet: the values follow
            found = {}
        self.devices.store(record.process, found)
        entry = self.graphs.get(self.latest.get(record.process) or ("", False, ""))
        if entry is not None and not entry.device:
            entry.device = found

    def _read_refusal_reasons(self, record: LogRecord, thread: _LoggedThreadState) -> None:
        lines = [line for line in record.text.splitlines() if _is_refusal_reason_line(line)]
        if not any(": CUDNN_STATUS_" in line for line in lines):
            return
        self._count_dumped_graph_without_json(thread)
        entry = self._find_graph(record, thread)
        if entry is None:
            if self.has_calls:
                text = "cuDNN reports an error, and the log has no graph before it"
            else:
                text = "the log has reasons of cuDNN, but not the graph that they refer to"
            fix = None if self.has_calls else "set CUDNN_LOGLEVEL_DBG=3"
            if "cudaGetDeviceCount" in record.text:
                fix = (
                    "no GPU was found, and cudnnCreate needs one: make the graph without a handle, for a described GPU "
                    "(CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR)"
                )
            source = _ERROR if self.has_calls else "none"
            entry = self.graphs[self._add_graph(record, _make_log_graph_error(text, fix), source, made=False)]
        for refusal in read_refusals("\n".join(lines)):
            config = thread.asked
            if refusal.engine is not None:
                config = LoggedConfig(refusal.engine, refusal.knobs)
            if config is not None:
                _merge_engine_config(entry, replace(config, state="refused", reasons=refusal.reasons))
            elif len(entry.reasons) < _MAX_REASONS:
                entry.reasons += tuple(reason for reason in refusal.reasons if reason not in entry.reasons)

    def _read_logged_call(self, record: LogRecord, thread: _LoggedThreadState) -> None:
        function = record.function
        text = record.text
        if function == "cudnnBackendSetAttribute":
            match = _ATTRIBUTE.search(text)
            if match is not None:
                self._read_set_attribute_call(record, thread, match[1], text[match.end() :])
        elif function == "cudnnBackendCreateDescriptor":
            kind = DESCRIPTORS.get(text.partition("; val=")[2].partition(" ")[0])
            if kind in TRACKED:
                self._count_dumped_graph_without_json(thread)
                thread.calls.record_create_call(kind)
        elif function == "cudnnBackendFinalize":
            self._read_finalize_call(record, thread)
        elif function == "cudnnBackendDestroyDescriptor":
            dump = parse_descriptor_dump(text) if getattr(record, "whole", True) else None
            if dump is not None and dump.kind in TRACKED:
                thread.calls.record_destroy_call(dump)

    def _read_set_attribute_call(
        self, record: LogRecord, thread: _LoggedThreadState, attribute: str, text: str
    ) -> None:
        if attribute in FIELD_OF and FIELD_OF[attribute][0] in TRACKED:
            thread.calls.record_set_attribute_call(attribute, text)
            return
        if not attribute.startswith("CUDNN_ATTR_ENGINEHEUR_"):
            return
        self._count_dumped_graph_without_json(thread)
        value = next((match[2] or "" for match in ELEMENT.finditer(text)), "")
        entry = self._find_graph(record, thread)
        if attribute.endswith("_OPERATION_GRAPH") and entry is None:
            text = f"the log has an operation graph at {value[:40]}, but not the calls that made it"
            self._record_finalized_graph(
                record,
                thread,
                self._add_graph(
                    record, _make_log_graph_error(text, "log from the start of the program"), "none", made=False
                ),
            )
        elif attribute.endswith("_MODE") and entry is not None:
            mode = _read_heuristics_mode(value)
            if mode not in entry.modes and len(entry.modes) < len(HeurMode.__members__):
                entry.modes += (mode,)

    def _read_finalize_call(self, record: LogRecord, thread: _LoggedThreadState) -> None:
        if "    descriptor: type=" not in record.text:  # the answer to the call before
            done = "val=CUDNN_STATUS_SUCCESS" in record.text
            thread.asked = None if done else thread.asked
            entry, thread.planning = self.graphs.get(thread.planning or ("", False, "")), None
            took = _compute_seconds_between(thread.made_at, record.time)
            if done and entry is not None and entry.plan_s and took is not None:
                entry.plan_s = (*entry.plan_s[:-1], took)  # where the log has it, the end of the building
            return
        whole = getattr(record, "whole", True)
        named = re.match(r"\w*", record.text.partition("descriptor: type=")[2])
        kind = DESCRIPTORS.get(named[0] if named else "")
        if kind in (DescriptorType.EXECUTION_PLAN, DescriptorType.ENGINECFG):
            self._read_plan(record, thread, kind)
            return
        if kind not in TRACKED or not whole:
            if kind is DescriptorType.OPERATIONGRAPH:
                thread.pending = (record, _make_log_graph_error("the dump of a graph is cut off in the log"), 0)
            return
        self._count_dumped_graph_without_json(thread)
        dump = parse_descriptor_dump(record.text)
        if dump is None:
            return
        if kind is not DescriptorType.OPERATIONGRAPH:
            thread.calls.record_finalize_call(dump, record.text)
            return
        graph: Graph | GraphError
        try:
            graph, unknown = thread.calls.rebuild_finalized_graph(dump, len(record.text) >= CUDNN_LIMIT)
        except GraphError as error:
            graph, unknown = error, 0
        thread.pending = (record, graph, unknown)

    def _read_plan(self, record: LogRecord, thread: _LoggedThreadState, kind: DescriptorType) -> None:
        entry = self._find_graph(record, thread)
        engine = _ENGINE.search(record.text)
        is_plan = kind is DescriptorType.EXECUTION_PLAN
        is_cut = is_plan and not getattr(record, "whole", True) and "engine_id: " not in record.text
        if engine is None and not is_cut:  # a plan that was loaded has an engine of -1
            return
        if entry is None and is_plan:
            text = "the log has a plan, but not its graph"
            key = self._add_graph(
                record, _make_log_graph_error(text, "log from the start of the program"), "none", made=False
            )
            entry = self.graphs[key]
        if entry is None:
            return
        if is_plan:
            entry.plans += 1
            if (took := _compute_seconds_between(thread.made_at, record.time)) is not None and len(
                entry.plan_s
            ) < MAX_GRAPHS:
                entry.plan_s += (took,)
                thread.planning = thread.graph or self.latest.get(record.process)
        if engine is None:
            return
        knobs = {name: int(value) for name, value in _KNOB.findall(record.text)}
        config = LoggedConfig(int(engine[1]), knobs, "planned" if is_plan else "named")
        thread.asked = config
        if is_plan and any(
            known.tag == config.tag and known.state in ("planned", "executed") for known in entry.configs
        ):
            entry.repeated_plans += 1
        _merge_engine_config(entry, config)


def _name_by_pattern(entry: LoggedGraph) -> LoggedGraph:
    """Name a graph of attention, where the log has no name of it."""
    if entry.graph is not None and entry.graph.name == UNNAMED and (use := read_attention(entry.graph)) is not None:
        entry.graph = replace(entry.graph, name=f"attention {'backward' if use.backward else 'forward'}")
    return entry


def _format_version(number: Any) -> str:
    """Return ``9.19.0`` for 91900."""
    if not isinstance(number, int) or isinstance(number, bool) or not 0 < number < 1_000_000:
        return ""
    return str(Version.from_number(number))


def _compute_seconds_between(begin: str | None, end: str | None) -> float | None:
    """Return the seconds between two log times; None if one is missing or invalid."""
    try:
        return (datetime.fromisoformat(end or "") - datetime.fromisoformat(begin or "")).total_seconds()
    except (ValueError, TypeError):
        return None


def _read_heuristics_mode(value: str) -> str:
    return next((mode.name for mode in HeurMode if value == str(mode.value)), value[:20])


def _is_refusal_reason_line(line: str) -> bool:
    if "Reason: " in line:
        return "CUDNN_STATUS_SUCCESS" not in line
    return '"engineId"' in line and '"operationGraph"' not in line


_STATES = ("named", "planned", "refused", "executed")


def _merge_engine_config(entry: LoggedGraph, config: LoggedConfig) -> None:
    """Add an engine config to a graph; for a known config, keep the more advanced state and the first reasons."""
    for index, known in enumerate(entry.configs):
        if known.tag == config.tag:
            state = max(known.state, config.state, key=_STATES.index)
            merged = replace(known, state=state, reasons=known.reasons or config.reasons)
            entry.configs = (*entry.configs[:index], merged, *entry.configs[index + 1 :])
            return
    if len(entry.configs) < MAX_GRAPHS:
        entry.configs += (config,)


def _drop_scalar_values(data: dict[str, Any]) -> dict[str, Any]:
    """Return cuDNN's JSON without values of host scalars, which differ between runs."""
    inner = data.get("operationGraph", data)
    if not isinstance(inner, dict) or not isinstance(inner.get("tensors"), list):
        return data
    tensors = [
        {key: value for key, value in item.items() if key != "value"} if isinstance(item, dict) else item
        for item in inner["tensors"]
    ]
    return {**inner, "tensors": tensors}


def _add_scalar_values(entry: LoggedGraph, data: dict[str, Any]) -> None:
    """Insert the values of host scalars, which cuDNN logs on execution."""
    if entry.executions > 1 or entry.graph is None or _may_lack_subgraph(entry.graph, data):
        return
    with contextlib.suppress(GraphError):
        entry.graph = graph_from_log_json(data)


def _may_lack_subgraph(graph: Graph | GraphError, data: dict[str, Any]) -> bool:
    """Return whether cuDNN may have omitted a sub-graph from the JSON, as for backward attention since 9.21."""
    number = data.get("cudnnVersion")
    if not isinstance(number, int) or number < 92100 or isinstance(graph, GraphError):
        return False
    return any(op.kind is DescriptorType.OPERATION_SDPA_BWD for op in graph.ops)
