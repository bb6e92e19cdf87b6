"""Graphs read from cuDNN's own log equal the logged graphs and get the verdicts of the program that wrote the log."""

from __future__ import annotations

import json
import runpy
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from cudnn_backend_py import CudnnBackendError, Graph, OperationGraph, UsageError, capture_log, library, open_target
from cudnn_backend_py.diagnose import attention_rows
from cudnn_backend_py.diagnose.logs import report_log
from cudnn_backend_py.diagnose.surveys.attention import GRAPH_FORMS
from cudnn_backend_py.importers.graphs import LoggedGraph, read_graphs
from cudnn_backend_py.native.log import LogRecord
from tests.support.child import ROOT, make_older_cudnn_environment, run_code
from tests.support.logs import LOG_FOLDER, format_log_file, make_comparable_graph
from tests.support.operations import OPERATION_GRAPHS
from tests.support.varied_graphs import VARIED_GRAPHS

EXAMPLES = {
    path.stem: make
    for path in sorted((ROOT / "examples").glob("*.py"))
    if (make := runpy.run_path(str(path), run_name="__log__").get("graph")) is not None
}
ROWS = list(attention_rows())


def make_every_nth_attention_graph(every: int, version: tuple[int, int, int]) -> dict[str, Graph]:
    """Return the graphs of every n-th (`every`) attention test problem, in each form that `version` supports."""
    found = {}
    for number, name in enumerate(ROWS):
        for form in GRAPH_FORMS if number % every == 0 else ():
            try:
                found[f"{name}, {form}"] = attention_rows()[name].make_graph(form, version)
            except CudnnBackendError:
                continue
    return found


def log_graph(graph: Graph) -> list[LogRecord]:
    """Return the records that cuDNN logs while it accepts the graph."""
    with capture_log(this_thread_only=True) as log:
        OperationGraph(graph, open_target("h100"))
    return log.records


def read_single_graph(records: Iterable[LogRecord]) -> LoggedGraph:
    (found,) = read_graphs(records)
    return found


def assert_logged_graph_equals(graph: Graph, found: LoggedGraph) -> None:
    assert found.graph is not None, found.fault
    assert make_comparable_graph(found.graph) == make_comparable_graph(graph)


@pytest.mark.parametrize("name", OPERATION_GRAPHS)
def test_every_kind_of_operation_is_read_from_the_log(name: str) -> None:
    graph = OPERATION_GRAPHS[name]()
    found = read_single_graph(log_graph(graph))
    assert_logged_graph_equals(graph, found)
    assert (found.source, found.count, found.version) == ("json", 1, ".".join(map(str, library().version)))


@pytest.mark.parametrize("make", [*VARIED_GRAPHS.values(), *EXAMPLES.values()], ids=[*VARIED_GRAPHS, *EXAMPLES])
def test_varied_graphs_and_examples_are_read_from_the_log(make: Callable[[], Graph]) -> None:
    assert_logged_graph_equals(make(), read_single_graph(log_graph(make())))


def test_attention_graphs_are_read_from_the_log() -> None:
    graphs = make_every_nth_attention_graph(6, library().version)
    taken = 0
    for name, graph in graphs.items():
        try:
            records = log_graph(graph)
        except CudnnBackendError:
            continue
        found = read_single_graph(records)
        assert found.graph is not None, (name, found.fault)
        assert make_comparable_graph(found.graph) == make_comparable_graph(graph), name
        taken += 1
    assert taken > len(graphs) * 0.9


def test_a_backward_attention_gets_its_separately_logged_sub_graph() -> None:
    graph = attention_rows()["backward: causal"].make_graph("unified", library().version)
    records = log_graph(graph)
    assert_logged_graph_equals(graph, read_single_graph(records))
    first = next(
        index for index, record in enumerate(records) if record.function == "cudnnBackendFinalizeGraphVisualize"
    )
    alone = read_single_graph(records[first + 1 :])
    assert alone.notes == ("cuDNN logs the sub-graph of SDPA_BWD separately, and the log does not contain it",)


WITHOUT_JSON = [
    "flash f16 causal",
    "two matmul, reordered, s 10",
    "conv forward relu f16",
    "layer norm training",
    "reduce max",
]


@pytest.mark.parametrize("name", WITHOUT_JSON)
def test_a_log_without_json_is_read_from_calls_and_dumps(name: str) -> None:
    """Before cuDNN 9.5, logs have no JSON, and show the axis of gen_index and the reordering type only if set."""
    graph = VARIED_GRAPHS[name]()
    records = [record for record in log_graph(graph) if "Visualize" not in (record.function or "")]
    found = read_single_graph(records)
    assert found.source == "descriptors"
    assert_logged_graph_equals(graph, found)


@pytest.mark.parametrize("name", ["pointwise numbers", "rng seeded", "padded matmul", "paged cache", "slice", "concat"])
def test_without_json_constants_and_virtual_tensors_are_read_from_calls(name: str) -> None:
    graph = OPERATION_GRAPHS[name]()
    assert_logged_graph_equals(
        graph, read_single_graph(record for record in log_graph(graph) if "Visualize" not in (record.function or ""))
    )


def test_a_truncated_dump_is_completed_from_its_operations() -> None:
    graph = attention_rows()["backward: fp8, causal"].make_graph("composite", library().version)
    records = [record for record in log_graph(graph) if "Visualize" not in (record.function or "")]
    assert max(len(record.text) for record in records) > 65_000
    assert_logged_graph_equals(graph, read_single_graph(records))
    finalize = next(record for record in records if len(record.text) > 65_000)
    found = read_single_graph([finalize])
    assert found.fault is not None
    assert found.fault.code == "log-graph"


def test_a_dump_without_calls_reports_the_missing_axis() -> None:
    records = log_graph(VARIED_GRAPHS["flash f16 causal"]())
    dump = [record for record in records if "CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR:" in record.text]
    found = read_single_graph([next(record for record in dump if record.function == "cudnnBackendFinalize")])
    assert found.fault is not None
    assert found.fault.headline == "the log does not contain the axis of the GEN_INDEX operation 'gen_index_2'"


CHILD = """
import sys
from cudnn_backend_py import CudnnBackendError, OperationGraph, open_target
from tests.library.importers.test_log_graphs import build_graphs_for_9_19
target = open_target("h100")
for name, graph in build_graphs_for_9_19().items():
    try:
        OperationGraph(graph, target)
    except CudnnBackendError:
        print(name)
"""


def build_graphs_for_9_19() -> dict[str, Graph]:
    """Return the graphs that cuDNN 9.19 logs in this test: one per operation, varied ones, and attention."""
    made = {name: make() for name, make in {**OPERATION_GRAPHS, **VARIED_GRAPHS}.items()}
    return made | make_every_nth_attention_graph(8, (9, 19, 0))


def test_every_graph_is_read_from_a_log_file_of_9_19(tmp_path: Path) -> None:
    """cuDNN writes the graphs of one process into one file."""
    path = tmp_path / "cudnn.log"
    environment = make_older_cudnn_environment() | {"CUDNN_LOGLEVEL_DBG": "3", "CUDNN_LOGDEST_DBG": str(path)}
    refused = set(run_code(CHILD, environment=environment).stdout.splitlines())
    graphs = {name: graph for name, graph in build_graphs_for_9_19().items() if name not in refused}
    found = list(read_graphs(path))
    assert len(graphs) > 80
    assert {item.version for item in found} == {"9.19.0"}
    read = {make_comparable_graph(item.graph) for item in found if item.graph is not None}
    assert [name for name, graph in graphs.items() if make_comparable_graph(graph) not in read] == []
    assert sum(item.count for item in found if item.graph is not None) >= len(graphs)


def test_graphs_of_a_torch_log_get_the_logged_engine_configs() -> None:
    """On a described H100, 9.19 lists the same engine configs, in the same order, as it logged on a real H100."""
    code = """
import json
from cudnn_backend_py import OperationGraph, open_target
from cudnn_backend_py.importers.graphs import read_graphs
from tests.support.logs import LOG_FOLDER
answers = []
for item in read_graphs(LOG_FOLDER / "torch-attention-9.19.0.log.gz"):
    (mode,) = item.modes
    configs = OperationGraph(item.graph, open_target("h100")).heuristics(mode).configs
    answers.append([[config.tag for config in configs], [c.tag for c in item.configs if c.state != "refused"]])
print(json.dumps(answers))
"""
    answers = json.loads(run_code(code, environment=make_older_cudnn_environment()).stdout)
    assert answers == [
        [["eng2_k24=7", "eng1_k24=6", "eng1_k24=5", "eng1_k24=3"]] * 2,
        [["eng6_k24=26", "eng7_k24=28", "eng7_k24=26"]] * 2,
    ]


def test_explain_log_gives_a_verdict_for_each_logged_graph() -> None:
    report = report_log(LOG_FOLDER / "torch-attention-9.19.0.log.gz", ["h100"])
    assert report.exit_code == 0
    assert [[verdict.outcome.value for verdict in row] for row in report.verdicts] == [["supported"]] * 2
    assert json.loads(json.dumps(report.to_dict()))["graphs"][1]["verdicts"][0]["target"] == "h100-sxm"
    assert "SUPPORTED" in str(report)
    with pytest.raises(UsageError, match="unknown-target"):
        report_log(LOG_FOLDER / "torch-attention-9.19.0.log.gz", ["nowhere"])


def test_a_report_names_a_version_that_can_judge_the_graphs_of_an_older_log() -> None:
    """cuDNN 9.1 judges for no described GPU, and 9.8 is the first that does."""
    text = report_log(LOG_FOLDER / "forum-9.1.1.log.gz", ["sm89"]).text(verbose=False)
    assert "--cudnn 9.1.1" not in text
    assert "--cudnn 9.8.0 is the oldest" in text


def test_captured_records_and_a_log_file_give_the_same_graph() -> None:
    records = log_graph(VARIED_GRAPHS["matmul relu"]())
    (captured,), (filed,) = read_graphs(records), read_graphs([format_log_file(records)])
    assert captured.graph == filed.graph
    assert (captured.thread, captured.process) == (filed.thread, filed.process)
