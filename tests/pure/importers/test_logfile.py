"""Import of graphs from cuDNN and cudnn-frontend log files: complete, interleaved, truncated, huge or malformed."""

from __future__ import annotations

import copy
import io
import json
import random
import re
import runpy
from pathlib import Path
from typing import Any

import pytest

from cudnn_backend_py import CudnnBackendError, DataType, Graph, GraphBuilder, GraphError, PointwiseMode, UsageError
from cudnn_backend_py.diagnose.logs import report_log
from cudnn_backend_py.generated.enums import Severity
from cudnn_backend_py.graph import Operation, graph_to_json
from cudnn_backend_py.importers.cudnn_json import graph_from_log_json
from cudnn_backend_py.importers.files import read_graphs_or_errors_from_file
from cudnn_backend_py.importers.frontend_json import graph_from_frontend_json, parse_number
from cudnn_backend_py.importers.graphs import LoggedConfig, LoggedGraph, read_graphs
from cudnn_backend_py.importers.records import MAX_LINE, LogFileRecord, read_log
from tests.support.child import ROOT, run_code
from tests.support.damaged_texts import mutate_json, mutate_text
from tests.support.logs import LOG_FOLDER, make_comparable_graph, read_log_text

TORCH = read_log_text("torch-attention-9.19.0.log.gz")
FORUM = read_log_text("forum-9.1.1.log.gz")
EXCERPT = read_log_text("forum-excerpt-9.1.1.log")
FRONTEND = read_log_text("torch-frontend-1.18.log")
FRONTEND_GRAPHS = [json.loads(line) for line in FRONTEND.splitlines() if line.startswith("{")]


def make_graph_of_forum_example() -> Graph:
    graph: Graph = runpy.run_path(str(ROOT / "examples" / "forum_two_matmul.py"), run_name="__log__")["graph"]()
    return graph


def read_log_records(*pieces: str | bytes) -> list[LogFileRecord]:
    return list(read_log(list(pieces)))


def read_log_graphs(text: str) -> list[LoggedGraph]:
    return list(read_graphs([text]))


def format_record(function: str, *lines: str, letter: str = "I", thread: int = 7) -> str:
    """Return the text of one log record in cuDNN's format."""
    low = letter.lower()
    body = "".join(f"{low}!     {line}\n" for line in lines)
    end = (
        f"{low}! Time: 2026-01-02T03:04:05.6 (0d+0h+0m+0s since start)\n{low}! Process=1; Thread={thread}; GPU=NULL;\n"
    )
    return f"\n{letter}! CuDNN (v91900 56) function {function}() called:\n{body}{end}\n"


# records


@pytest.mark.parametrize("encoding", ["utf-16", "utf-8-sig"])
def test_logs_in_utf_16_and_with_byte_order_mark_are_read(tmp_path: Path, encoding: str) -> None:
    """PowerShell's redirection writes UTF-16; some editors write a byte order mark before UTF-8."""
    path = tmp_path / "cudnn.log"
    path.write_bytes(TORCH.replace("\n", "\r\n").encode(encoding))
    assert [item.text for item in read_log(path)] == [item.text for item in read_log_records(TORCH)]


def test_a_truncated_gzip_log_is_read_up_to_the_truncation(tmp_path: Path) -> None:
    whole = (LOG_FOLDER / "torch-training-9.19.0.log.gz").read_bytes()
    path = tmp_path / "cudnn.log.gz"
    path.write_bytes(whole[: len(whole) * 3 // 4])
    found, want = list(read_log(path)), list(read_log(LOG_FOLDER / "torch-training-9.19.0.log.gz"))
    assert 25 < len(found) < len(want)
    assert found[:-1] == want[: len(found) - 1]


def test_fields_of_a_record_are_parsed() -> None:
    (found,) = read_log_records(
        format_record("cudnnCreate", "status: type=cudnnStatus_t; val=CUDNN_STATUS_SUCCESS (0);", letter="W")
    )
    assert (found.severity, found.function, found.version) == (Severity.WARNING, "cudnnCreate", 91900)
    assert (found.line, found.thread, found.process, found.whole) == (2, 7, 1, True)
    assert found.time == "2026-01-02T03:04:05.6"
    assert found.body == "    status: type=cudnnStatus_t; val=CUDNN_STATUS_SUCCESS (0);"


def test_every_record_of_the_sample_logs_is_found() -> None:
    for text in (TORCH, FORUM, EXCERPT):
        found = read_log_records(text)
        assert len(found) == len(re.findall(r"^[IWE]! CuDNN", text, re.MULTILINE))
        assert all(item.whole for item in found)
        assert [text.splitlines()[item.line - 1][3:] for item in found] == [item.text.splitlines()[0] for item in found]


def test_paths_streams_and_chunks_of_a_log_give_equal_records(tmp_path: Path) -> None:
    path = tmp_path / "cudnn.log"
    path.write_text(EXCERPT + "W! \N{SNOWMAN}\n", encoding="utf-8")
    data = path.read_bytes()
    want = read_log_records(EXCERPT)
    assert list(read_log(path)) == list(read_log(str(path))) == want
    assert list(read_log(io.BytesIO(data))) == list(read_log(io.StringIO(EXCERPT))) == want
    for size in (1, 2, 3, 7, 64, 1000):
        assert list(read_log(data[at : at + size] for at in range(0, len(data), size))) == want
    assert list(read_log(LOG_FOLDER / "forum-9.1.1.log.gz")) == read_log_records(FORUM)


def test_windows_line_ends_are_accepted() -> None:
    assert [item.text for item in read_log_records(EXCERPT.replace("\n", "\r\n"))] == [
        item.text for item in read_log_records(EXCERPT)
    ]


def test_error_names_the_unreadable_file(tmp_path: Path) -> None:
    (tmp_path / "broken.gz").write_bytes(b"\x1f\x8b not gzip")
    for path in (tmp_path / "absent.log", tmp_path, tmp_path / "broken.gz"):
        with pytest.raises(UsageError, match="cannot read the log") as caught:
            list(read_graphs(path))
        assert caught.value.code == "log-file"


def test_lines_that_cudnn_did_not_write_are_skipped() -> None:
    noise = "Hi! there\nI! am not cuDNN\nstep 3: loss 0.5\ni! nor is this\n[cudnn_frontend] INFO: x\n"
    lines = EXCERPT.splitlines(keepends=True)
    mixed = noise + "".join(f"{line}epoch {number}\n" for number, line in enumerate(lines))
    assert [item.text for item in read_log_records(mixed)] == [item.text for item in read_log_records(EXCERPT)]
    assert read_log_records(noise) == []


def test_interleaved_processes_are_separated_by_line_prefix() -> None:
    lines = EXCERPT.splitlines(), FORUM.splitlines()
    stamp = "2026-01-02T03:04:05.123Z "
    mixed = []
    for number in range(max(map(len, lines))):
        mixed += [f"{stamp}[rank{rank}]: {text[number]}" for rank, text in enumerate(lines) if number < len(text)]
    found = read_log_records("\n".join(mixed))
    assert {item.text for item in found} == {item.text for item in read_log_records(EXCERPT) + read_log_records(FORUM)}
    assert all(item.whole for item in found)
    assert read_comparable_graphs("\n".join(mixed)) == read_comparable_graphs(FORUM)


def read_comparable_graphs(text: str) -> list[Any]:
    return [make_comparable_graph(item.graph) for item in read_log_graphs(text) if item.graph is not None]


def test_an_interrupted_record_is_marked_incomplete() -> None:
    first, second = (
        format_record("cudnnCreate", "a: type=int; val=1;"),
        format_record("cudnnDestroy", "b: type=int; val=2;"),
    )
    head, tail = first.split("i! Time")
    found = read_log_records(head + second + "i! Time" + tail)
    assert [(item.function, item.whole) for item in found] == [
        ("cudnnCreate", False),
        ("cudnnDestroy", True),
        (None, False),
    ]
    assert (found[0].thread, found[1].thread, found[2].thread) == (0, 7, 7)


def test_interleaved_records_of_two_threads_are_separated() -> None:
    parts = [part for part in re.split(r"(?m)^(?=[IWE]! )", FORUM) if part.strip()]
    turns = "".join(part + part.replace("Thread=1;", "Thread=2;") for part in parts)
    (found,) = read_log_graphs(turns)
    assert found.count == 2
    assert found.graph is not None
    assert make_comparable_graph(found.graph) == make_comparable_graph(make_graph_of_forum_example())


# graphs


def test_torch_log_gives_forward_and_backward_graphs() -> None:
    forward, backward = read_log_graphs(TORCH)
    assert [len(item.graph.ops) if item.graph else None for item in (forward, backward)] == [14, 22]
    assert (forward.version, forward.source, forward.count, forward.executions) == ("9.19.0", "json", 1, 1)
    assert (forward.thread, backward.thread, forward.modes, backward.modes) == (1, 2, ("A",), ("A",))
    states = [[(config.tag, config.state) for config in item.configs] for item in (forward, backward)]
    assert states[0] == [
        ("eng2_k24=32", "refused"),
        ("eng2_k24=7", "executed"),
        ("eng1_k24=6", "named"),
        ("eng1_k24=5", "named"),
        ("eng1_k24=3", "named"),
    ]
    assert states[1] == [("eng6_k24=26", "executed"), ("eng7_k24=28", "named"), ("eng7_k24=26", "named")]
    refused = forward.configs[0].reasons
    assert refused[0].statement == "Kernel request for shared memory is exceeding the shared memory in the GPU"
    assert len(refused) == 5
    assert forward.device["deviceVer"] == 900
    assert forward.device["multiProcessorCount"] == 132


def test_the_device_is_not_read_before_its_descriptor_is_finalized() -> None:
    """The log of a described GPU begins with the device descriptor before its values are set."""
    empty = re.sub(r"deviceVer: type=int; val=\d+", "deviceVer: type=int; val=0", TORCH)
    (before, _), (after, _) = read_log_graphs(empty), read_log_graphs(empty + TORCH)
    assert before.device == {}
    assert after.device["deviceVer"] == 900


def test_scalar_values_are_read_from_the_execution_record() -> None:
    for item in read_log_graphs(TORCH):
        assert item.graph is not None
        values = {tensor.value for tensor in item.graph.tensors if tensor.by_value}
        assert values >= {0.125, float("-inf")}


def test_equal_graphs_of_a_log_are_merged_and_counted() -> None:
    forward, backward = read_log_graphs(TORCH + TORCH)
    assert (forward.count, forward.executions, backward.count) == (2, 2, 2)
    assert [len(item.configs) for item in (forward, backward)] == [5, 3]


def test_descriptor_log_of_cudnn_9_1_gives_the_forum_graph() -> None:
    """cuDNN 9.1 logs descriptors, not JSON; the log is from the program and cuDNN version of a forum post."""
    (found,) = read_log_graphs(FORUM)
    assert found.graph is not None
    assert make_comparable_graph(found.graph) == make_comparable_graph(make_graph_of_forum_example())
    assert (found.version, found.source, found.modes, found.notes) == ("9.1.1", "descriptors", ("A",), ())


def test_the_forum_excerpt_is_the_end_of_the_forum_log() -> None:
    def read_texts_without_addresses_and_times(text: str) -> list[str]:
        return [re.sub(r"0x[0-9a-f]+|Time: .*", "#", item.text) for item in read_log_records(text)]

    assert read_texts_without_addresses_and_times(FORUM)[-5:] == read_texts_without_addresses_and_times(EXCERPT)


def test_the_forum_excerpt_alone_reports_missing_parts() -> None:
    """The excerpt has the heuristics query; its tensors, operations and graph were logged earlier."""
    (found,) = read_log_graphs(EXCERPT)
    assert found.graph is None
    assert found.fault is not None
    assert found.fault.code == "log-graph"
    assert "0x1e5c2f0" in found.fault.headline
    assert (found.version, found.modes, found.thread) == ("9.1.1", ("A",), 1)
    assert report_log([EXCERPT]).exit_code == 2


def test_the_forum_log_followed_by_the_excerpt_gives_one_graph() -> None:
    """The excerpt repeats the end of the log, as a second run of the program would."""
    found = read_log_graphs(FORUM + EXCERPT)
    assert [make_comparable_graph(item.graph) for item in found if item.graph] == [
        make_comparable_graph(make_graph_of_forum_example())
    ]


def test_refusals_logged_without_a_graph_are_returned() -> None:
    config = '{"engineId":7,"smVersion":890,"knobChoices":{"CUDNN_KNOB_TYPE_KERNEL_CFG":25}}'
    lines = (
        f"engineConfig: type=json; val={config};",
        "Warning: CUDNN_STATUS_NOT_SUPPORTED_GRAPH_PATTERN; Reason: Multi-GEMM is only supported on Hopper at: x != y",
        "Warning: CUDNN_STATUS_NOT_SUPPORTED; Reason: finalize_internal()",
    )
    (found,) = read_log_graphs(format_record("cudnnBackendFinalize", *lines, letter="W"))
    assert found.fault is not None
    assert found.fault.sections["fix"] == "set CUDNN_LOGLEVEL_DBG=3"
    (one,) = found.configs
    assert (one.tag, one.state, len(one.reasons)) == ("eng7_k24=25", "refused", 2)


def test_a_log_of_all_calls_without_a_graph_shows_cudnns_error() -> None:
    line = "Error: CUDNN_STATUS_NOT_INITIALIZED; Reason: cudaGetDeviceCount(&count) != cudaSuccess"
    text = report_log([format_record("cudnnCreate"), format_record("cudnnCreate", line, letter="E")]).text(
        verbose=False
    )
    assert "the log has no graph before it" in text
    assert "make the graph without a handle, for a described GPU" in text
    assert "CUDNN_STATUS_NOT_INITIALIZED: cudaGetDeviceCount" in text
    for untrue in ("graph 1", "CUDNN_LOGLEVEL_DBG", "--target", "cudnn-backend log"):
        assert untrue not in text


def test_an_error_that_belongs_to_no_graph_is_a_note_of_the_first_graph() -> None:
    line = "Error: CUDNN_STATUS_NOT_INITIALIZED; Reason: cudaGetDeviceCount(&count) != cudaSuccess"
    before = format_record("cudnnCreate") + format_record("cudnnCreate", line, letter="E", thread=8)
    [graph] = read_log_graphs(text := read_log_text("forum-9.1.1.log.gz"))
    [found] = read_log_graphs(before + text)
    assert found.graph == graph.graph
    assert (*graph.notes, found.notes[-1]) == found.notes
    assert re.fullmatch(r"line \d+, of no graph: CUDNN_STATUS_NOT_INITIALIZED: cuda.*", found.notes[-1])


def test_graphs_of_attention_are_named_by_their_pattern() -> None:
    found = read_log_graphs(TORCH)
    assert [one.graph and one.graph.name for one in found] == ["attention forward", "attention backward"]
    assert report_log([TORCH]).text(verbose=False).startswith("graph 1, attention forward: cuDNN 9.19.0, ")
    (other,) = read_log_graphs(FORUM)
    assert other.graph is not None
    assert other.graph.name == "graph"
    assert report_log([FORUM]).text(verbose=False).startswith("graph 1: ")


@pytest.mark.parametrize("content", [b"\x7fELF\x02\x01", b"#!/bin/sh\nexec true\n"])
def test_a_program_given_as_a_log_is_not_read_but_offered_to_run(content: bytes, tmp_path: Path) -> None:
    program = tmp_path / "prog"
    program.write_bytes(content)
    with pytest.raises(GraphError, match="is a program") as raised:
        read_graphs_or_errors_from_file(str(program))
    assert f"cudnn-backend log -- {program} runs it" in raised.value.sections["fix"]


def test_a_name_without_its_suffix_gets_the_suggestion_of_the_file(tmp_path: Path) -> None:
    (tmp_path / "mine.py").touch()
    with pytest.raises(GraphError) as raised:
        read_graphs_or_errors_from_file(str(tmp_path / "mine"))
    assert raised.value.sections["fix"] == f"did you mean {tmp_path / 'mine.py'}?"
    with pytest.raises(GraphError) as raised:
        read_graphs_or_errors_from_file(str(tmp_path / "yours"))
    assert "fix" not in raised.value.sections


def test_a_warning_with_status_success_is_not_a_refusal() -> None:
    line = "Warning: CUDNN_STATUS_SUCCESS; Reason: cuDNN Library configuration is set to AUTO."
    assert read_log_graphs(format_record("cudnnBackendFinalize", line, letter="W")) == []


def test_errors_are_assigned_to_the_graph_of_their_thread() -> None:
    line = "Error: CUDNN_STATUS_BAD_PARAM; Reason: the plan is nonsense"
    (forum,) = read_log_graphs(FORUM + format_record("cudnnBackendFinalize", line, letter="E", thread=1))
    assert [str(reason) for reason in forum.reasons] == ["CUDNN_STATUS_BAD_PARAM: the plan is nonsense"]


def test_log_report_converts_to_text_and_json() -> None:
    report = report_log([TORCH])
    assert report.exit_code == 0
    text = str(report)
    assert "graph 1, attention forward: cuDNN 9.19.0, line" in text
    assert "eng2_k24=7 executed" in text
    data = json.loads(json.dumps(report.to_dict()))
    assert [item["configs"][-1]["tag"] for item in data["graphs"]] == ["eng1_k24=3", "eng7_k24=26"]
    assert report_log([""]).exit_code == 2
    assert "CUDNN_LOGLEVEL_DBG=3" in str(report_log([""]))
    part = "I! CuDNN (v91200 46) function cudnnBackendFinalize() called:\ni!     status: val=0;\n"
    assert "1 descriptors are finalized in it, and no operation graph" in str(report_log([part]))


def test_tag_of_a_config_omits_default_knobs() -> None:
    assert LoggedConfig(6, {"CUDNN_KNOB_TYPE_STAGES": -1, "CUDNN_KNOB_TYPE_KERNEL_CFG": 26}).tag == "eng6_k24=26"
    assert LoggedConfig(0, {}).tag == "eng0"


# JSON


def read_logged_operation_graph() -> dict[str, Any]:
    line = next(line for line in TORCH.splitlines() if '"operationGraph"' in line)
    found: dict[str, Any] = json.loads(line[line.index("{") :].rstrip(";"))
    return found


def make_invalid_operation_graph_json(change: str) -> dict[str, Any]:
    data = read_logged_operation_graph()
    graph = data["operationGraph"]
    match change:
        case "unknown operation":
            graph["nodes"][0]["operation"] = "CUDNN_BACKEND_OPERATION_TELEPORT_DESCRIPTOR"
        case "unknown key":
            graph["nodes"][0]["colour"] = "red"
        case "unknown tensor":
            graph["nodes"][0]["matA"] = "999"
        case "no dims":
            del graph["tensors"][0]["dim"]
        case "no nodes":
            del graph["nodes"]
        case "unknown type":
            graph["tensors"][0]["dataType"] = "CUDNN_DATA_QUAD"
        case "axis missing":
            del graph["nodes"][2]["axis"]
        case "uid":
            graph["tensors"][0]["name"] = "query"
    return data


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("unknown operation", "node has the unknown operation 'CUDNN_BACKEND_OPERATION_TELEPORT_DESCRIPTOR'"),
        ("unknown key", "has the unknown attribute colour: 'red'"),
        ("unknown tensor", "matA of node 0, CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR is tensor '999'"),
        ("no dims", "tensor '0' lacks dim"),
        ("no nodes", "no list 'nodes'"),
        ("unknown type", "'CUDNN_DATA_QUAD', which is not a known DataType"),
        ("axis missing", "does not contain the axis of the GEN_INDEX operation 'gen_index_2'"),
        ("uid", "a logged tensor must be named by its uid, got 'query'"),
    ],
)
def test_errors_name_invalid_parts_of_the_graph_json(change: str, words: str) -> None:
    with pytest.raises(GraphError) as caught:
        graph_from_log_json(make_invalid_operation_graph_json(change))
    assert caught.value.code == "log-graph"
    assert words in caught.value.headline


@pytest.mark.parametrize("pretty", [None, 1])
def test_a_file_with_one_json_graph_is_read(pretty: int | None) -> None:
    (found,) = read_log_graphs(json.dumps(read_logged_operation_graph(), indent=pretty))
    assert (found.source, found.version) == ("json", "9.19.0")
    assert found.graph is not None
    assert found.graph.ops == graph_from_log_json(read_logged_operation_graph()).ops
    assert found.graph.name == "attention forward"
    (other,) = read_log_graphs(json.dumps(FRONTEND_GRAPHS[0], indent=pretty))
    assert (other.source, other.version) == ("frontend", "9.19.0")
    assert other.graph == graph_from_frontend_json(FRONTEND_GRAPHS[0])


# cuDNN's frontend


def test_cudnn_frontend_log_gives_forward_and_backward_graphs() -> None:
    forward, backward = read_log_graphs(FRONTEND)
    assert [item.source for item in (forward, backward)] == ["frontend"] * 2
    assert forward.graph is not None
    assert backward.graph is not None
    assert forward.graph.tensor("q").strides == (262144, 32768, 64, 1)
    assert {tensor.name for tensor in backward.graph.outputs} == {"dq", "dk", "dv"}
    assert len(forward.graph.ops) == 14


def make_frontend_json(nodes: list[dict[str, Any]], **tensors: dict[str, Any]) -> dict[str, Any]:
    plain = {
        "data_type": None,
        "is_virtual": False,
        "is_pass_by_value": False,
        "reordering_type": "NONE",
    }
    records = {
        name: {"name": name, "uid": number, "uid_assigned": True, **plain, **given}
        for number, (name, given) in enumerate(tensors.items(), 10)
    }
    context = {"io_data_type": "HALF", "intermediate_data_type": "FLOAT", "compute_data_type": "FLOAT", "name": "mine"}
    return {"context": context, "nodes": nodes, "tensors": records}


MATMUL = {"tag": "MATMUL", "name": "mm", "inputs": {"A": "a", "B": "b"}, "outputs": {"C": "c"}}
RELU = {"tag": "POINTWISE", "name": "", "mode": "RELU_FWD", "inputs": {"IN_0": "c"}, "outputs": {"OUT_0": "d"}}
REDUCE = {"tag": "REDUCTION", "name": "max", "mode": "MAX", "inputs": {"X": "d"}, "outputs": {"Y": "y"}}
TENSORS: dict[str, dict[str, Any]] = {
    "a": {"dim": [2, 8, 64], "stride": [512, 64, 1]},
    "b": {"dim": [2, 64, 16], "stride": [1024, 1, 64]},
    "c": {"dim": [], "stride": [], "is_virtual": True},
    "d": {"dim": [], "stride": [], "is_virtual": True},
    "y": {"dim": [2, 8, 1], "stride": [8, 1, 1], "data_type": "FLOAT"},
}


def test_frontend_json_of_matmul_pointwise_and_reduction_is_read() -> None:
    graph = graph_from_frontend_json(make_frontend_json([MATMUL, RELU, REDUCE], **TENSORS))
    assert str(graph).splitlines()[-3:] == [
        "  c = matmul(a, b) : f32[2,8,16]",
        "  d = relu_fwd(c) : f32[2,8,16]",
        "  y = reduce_max(d) : f32[2,8,1]",
    ]
    assert [tensor.data_type for tensor in graph.tensors if tensor.name in "aby"] == [DataType.HALF] * 2 + [
        DataType.FLOAT
    ]
    assert graph.tensor("a").uid == 10


def test_tensors_of_frontend_json_may_be_a_list_and_named_by_uid() -> None:
    data = make_frontend_json([MATMUL, {**RELU, "inputs": {"IN_0": 12}}], **TENSORS)
    listed = {**data, "tensors": [{**record, "ragged_offset_multiplier": 1} for record in data["tensors"].values()]}
    assert graph_from_frontend_json(listed) == graph_from_frontend_json(data)
    for tensors in (None, "abc", ["a"], {"a": None}):
        with pytest.raises(GraphError, match="no nodes or no tensors"):
            graph_from_frontend_json({**data, "tensors": tensors})


def test_every_number_format_of_frontend_json_is_read() -> None:
    """cudnn-frontend writes a scalar as a number, as the hex digits of a float32, or with a type index."""
    for half in (0.5, "3F000000", {"index": 3, "value": "3F000000"}, {"index": 4, "value": 0.5}):
        relu, b = {**RELU, "relu_lower_clip": half}, {**TENSORS["b"], "dim": [1, 1, 1], "stride": [1, 1, 1]}
        add = {"tag": "POINTWISE", "name": "s", "mode": "MUL", "inputs": {"IN_0": "a", "IN_1": "b"},
               "outputs": {"OUT_0": "c"}}  # fmt: skip
        by_value = {"data_type": "FLOAT", "is_pass_by_value": True, "pass_by_value": half}
        graph = graph_from_frontend_json(make_frontend_json([add, relu], **{**TENSORS, "b": {**b, **by_value}}))
        assert (graph.ops[1].relu_lower_clip, graph.tensor("b").value) == (0.5, 0.5)
    assert parse_number("wrong") is parse_number(None) is parse_number({"index": 3}) is parse_number(True) is None


def test_error_names_an_unsupported_frontend_node() -> None:
    with pytest.raises(GraphError) as caught:
        graph_from_frontend_json(make_frontend_json([MATMUL, {"tag": "CONV_FPROP", "name": "conv"}], **TENSORS))
    assert caught.value.code == "frontend-json"
    assert caught.value.headline == "node 1 of the frontend graph is CONV_FPROP, which cannot be read"
    with pytest.raises(GraphError, match="SDPA_FWD next to 1 other nodes"):
        graph_from_frontend_json({**FRONTEND_GRAPHS[0], "nodes": [*FRONTEND_GRAPHS[0]["nodes"], MATMUL]})


@pytest.mark.parametrize(
    ("change", "modes"),
    [
        ({"right_bound": None, "causal_mask": False}, set()),
        ({"left_bound": 64}, {PointwiseMode.CMP_GE, PointwiseMode.CMP_GT}),
    ],
)
def test_diagonal_bounds_of_frontend_attention_are_read(change: dict[str, Any], modes: set[PointwiseMode]) -> None:
    data = copy.deepcopy(FRONTEND_GRAPHS[0])
    data["nodes"][0] |= change
    graph = graph_from_frontend_json(data)
    found = {getattr(op, "mode", None) for op in graph.ops}
    assert {mode for mode in found if mode and mode.name.startswith("CMP")} == modes


def test_a_ragged_tensor_in_frontend_json_is_refused() -> None:
    data = copy.deepcopy(FRONTEND_GRAPHS[0])
    data["tensors"][str(data["nodes"][0]["inputs"]["Q"])]["ragged_offset_uid"] = 7
    with pytest.raises(GraphError, match="is ragged, and graphs with ragged tensors cannot"):
        graph_from_frontend_json(data)
    plain = make_frontend_json([MATMUL], **{**TENSORS, "a": {**TENSORS["a"], "ragged_offset": "offsets"}})
    with pytest.raises(GraphError, match="'a' of the frontend graph is ragged"):
        graph_from_frontend_json(plain)


def test_unified_attention_in_frontend_json_becomes_one_operation() -> None:
    data = copy.deepcopy(FRONTEND_GRAPHS[0])
    data["nodes"][0] |= {"implementation": "UNIFIED", "right_bound": None, "causal_mask": False}
    (op,) = graph_from_frontend_json(data).ops
    assert isinstance(op, Operation)
    assert op.kind.name == "OPERATION_SDPA_FWD"


# cut off, hostile, enormous


def test_truncated_logs_give_no_wrong_graph() -> None:
    whole = {make_comparable_graph(item.graph) for item in read_log_graphs(TORCH) if item.graph is not None}
    for text, want in ((TORCH, whole), (FORUM, {make_comparable_graph(make_graph_of_forum_example())})):
        for cut in range(0, len(text), len(text) // 60):
            for part in (text[:cut], text[cut:]):
                for item in read_log_graphs(part):
                    assert item.graph is not None or item.fault is not None
                    if item.graph is not None and not item.notes:
                        assert make_comparable_graph(item.graph) in want


@pytest.mark.parametrize("seed", range(6))
def test_mutated_logs_raise_no_exception(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(120):
        text = mutate_text(rng, rng.choice([TORCH, FORUM, EXCERPT, FRONTEND]))
        for item in read_log_graphs(text):
            assert (item.graph is None) != (item.fault is None)
            json.dumps(item.to_dict())


@pytest.mark.parametrize("seed", range(6))
def test_mutated_json_raises_only_errors_of_this_package(seed: int) -> None:
    rng = random.Random(seed)
    readers = (
        (graph_from_log_json, read_logged_operation_graph()),
        *((graph_from_frontend_json, one) for one in FRONTEND_GRAPHS),
    )
    refused = 0
    for _ in range(120):
        read, data = rng.choice(readers)
        try:
            read(mutate_json(rng, data))
        except CudnnBackendError:
            refused += 1
    assert refused > 30


@pytest.mark.parametrize(
    "text",
    [
        '{"operationGraph":' + "[" * 50_000,
        format_record(
            "cudnnBackendFinalizeGraphVisualize", 'apiLog: type=json; val={"operationGraph":' + '{"a":' * 50_000
        ),
        format_record("cudnnBackendFinalize", *(" " * depth + "operation: type=X:" for depth in range(3000))),
        "I! CuDNN (v99999999999999999999 1) function cudnnCreate() called:\ni! Process=" + "9" * 5000 + "; Thread=1;\n",
        format_record("cudnnBackendFinalize", "descriptor: type="),
        '{"context":' * 1000,
        "i! " * 100_000,
        format_record("cudnnBackendFinalize", " " * 200_000 + "x: type=y; val=" + " " * 200_000),
    ],
    ids=["nested", "nested record", "deep dump", "numbers", "no type", "frontend", "marks", "spaces"],
)
def test_extreme_inputs_give_no_graph_and_no_exception(text: str) -> None:
    for item in read_log_graphs(text):
        assert item.graph is None


BIG = """
import resource
from cudnn_backend_py.importers.graphs import read_graphs
from tests.support.logs import read_log_text

torch, forum = read_log_text("torch-attention-9.19.0.log.gz"), read_log_text("forum-9.1.1.log.gz")
foreign = "step 12345: loss 0.125, 17.3 samples per second, everything is fine\\n" * 60000
never_ends = "I! CuDNN (v91900 56) function cudnnCreate() called:\\n" + "i!     x: type=int; val=1;\\n" * 40000
size = 0

def stream():
    global size
    for number in range(25):
        other = torch.replace("Thread=1;", f"Thread={number};").replace('"uid"', '"uid" ')
        for piece in (other, foreign, foreign, "x" * (1 << 20), never_ends, forum, "[r%d] " % number + forum, foreign):
            size += len(piece)
            yield piece

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024

list(read_graphs([torch, forum]))
before = peak()
found = list(read_graphs(stream()))
print(size >> 20, round(peak() - before), sum(item.count for item in found), len(found))
"""


def test_memory_use_does_not_grow_with_log_size() -> None:
    megabytes, grown, count, found = map(int, run_code(BIG).stdout.split())
    assert megabytes > 300
    assert grown < 60
    assert (found, count) == (3, 25 * 2 + 25 * 2)


def test_graphs_beyond_the_limit_are_returned_before_the_log_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cudnn_backend_py.importers.graphs.MAX_GRAPHS", 3)
    data = read_logged_operation_graph()
    texts = []
    for number in range(10):
        data["operationGraph"]["tensors"][0]["ptrAlignment"] = 1 << number
        texts.append(format_record("cudnnBackendFinalizeGraphVisualize", f"apiLog: type=json; val={json.dumps(data)};"))
    pieces = iter(texts)
    found = read_graphs(pieces)
    next(found)
    assert len(list(pieces)) == 6
    assert len(list(found)) == 3


def test_an_overlong_line_is_truncated() -> None:
    (found,) = read_log_records(format_record("cudnnCreate", "x" * (2 * MAX_LINE)))
    assert not found.whole
    assert len(found.text) < MAX_LINE


def test_the_error_for_a_graph_file_names_the_missing_schema_key(tmp_path: Path) -> None:
    g = GraphBuilder("graph")
    g.pointwise(PointwiseMode.RELU_FWD, g.tensor("x", (1, 8)), virtual=False)
    data = graph_to_json(g.graph())
    del data["schema"]
    path = tmp_path / "graph.json"
    path.write_text(json.dumps(data))
    [error] = read_graphs_or_errors_from_file(str(path))
    assert "the key 'schema' is missing" in str(error)
