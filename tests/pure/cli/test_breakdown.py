"""Breakdown of cuDNN logs into graphs, plans and executions (`log --breakdown`), compared with manual counts."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from datetime import datetime

import pytest
from click.testing import CliRunner

from cudnn_backend_py.cli.commands import main
from cudnn_backend_py.diagnose.breakdown import Breakdown, break_down_log
from tests.support.logs import LOG_FOLDER, read_log_text

TORCH_LOG = LOG_FOLDER / "torch-attention-9.19.0.log.gz"
FORUM_LOG = LOG_FOLDER / "forum-9.1.1.log.gz"


def test_breakdown_of_a_torch_log_equals_the_manual_count() -> None:
    """The log's lines 31, 99 and 525 create, plan and run the first graph; lines 547, 592 and 1246 the second."""
    found = break_down_log(TORCH_LOG)
    assert [(one.line, one.count, one.plans, one.executions) for one in found.graphs] == [(31, 1, 1, 1), (547, 1, 1, 1)]
    assert [one.plan_s for one in found.graphs] == [
        (pytest.approx(26.263514 - 26.223864),),
        (pytest.approx(28.844736 - 28.791329),),
    ]
    assert [one.run_s for one in found.graphs] == [
        pytest.approx(26.325987 - 26.223864),
        pytest.approx(28.923648 - 28.791329),
    ]
    assert [len(group.graphs) for group in found.groups] == [1, 1]  # a forward and a backward pass
    assert not any(group.advice for group in found.groups)


def test_breakdown_of_the_forum_log_has_one_graph_and_no_plan() -> None:
    """The logged program built one graph of two matmuls; the heuristics returned no engine config."""
    found = break_down_log(FORUM_LOG)
    assert [(one.line, one.count, one.plans, one.executions) for one in found.graphs] == [(1110, 1, 0, 0)]
    assert str(found).startswith("0 executions of 1 graph, 0 plans\n")
    assert "2 matmul" in str(found)


def test_breakdown_of_a_training_log_counts_plans_and_executions() -> None:
    """The log has six graphs (three lengths, forward and backward), each with one plan, run 8 times by the program."""
    found = break_down_log(LOG_FOLDER / "torch-training-9.19.0.log.gz")
    assert [(one.count, one.plans, one.executions) for one in found.graphs] == [(1, 1, 4 * 2)] * 6
    assert found.graphs[0].plan_s == (pytest.approx(41.212749 - 40.019645),)
    assert [group.graphs for group in found.groups] == [(1, 3, 5), (2, 4, 6)]
    assert all("serves all 3 shapes" in group.advice for group in found.groups)
    assert str(found).startswith("48 executions of 6 graphs, 6 plans; 2.972 s from graphs to their first runs\n")


def count_graphs_plans_and_seconds_in_log(text: str) -> tuple[list[tuple[int, int]], int, float]:
    """Return, from a log's text, the creations and runs of each graph, the number of plans, and the seconds.

    A graph is identified by its dims. The seconds are those between the creation and the first run of the graphs.
    """
    made: dict[tuple[str, ...], list[datetime]] = {}
    runs: dict[tuple[str, ...], list[datetime]] = {}
    plans = 0
    for record in text.split("I! CuDNN ")[1:]:
        dims = tuple(re.findall(r'"dim":\[[0-9,]+\]', record))
        when = re.search(r"^i! Time: (\S+)", record, re.MULTILINE)
        if "GraphVisualize() called" in record:
            assert when is not None
            held = runs if "function cudnnBackendExecute" in record else made
            held.setdefault(dims, []).append(datetime.fromisoformat(when[1]))
        plans += (
            "cudnnBackendFinalize() called" in record
            and "\ni!     descriptor: type=CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR" in record
        )
    seconds = sum((times[0] - made[dims][0]).total_seconds() for dims, times in runs.items())
    return [(len(times), len(runs.get(dims, ()))) for dims, times in made.items()], plans, seconds


@pytest.mark.parametrize("name", ["torch-attention-9.19.0.log.gz", "torch-training-9.19.0.log.gz"])
def test_breakdown_equals_counts_of_log_lines(name: str) -> None:
    """The expected counts do not use the package: they match records, dims of graphs and plan descriptors by text."""
    counts, plans, seconds = count_graphs_plans_and_seconds_in_log(read_log_text(name))
    found = break_down_log(LOG_FOLDER / name)
    assert [(one.count, one.executions) for one in found.graphs] == counts
    assert sum(one.plans for one in found.graphs) == plans == len(counts)
    assert sum(one.run_s or 0.0 for one in found.graphs) == pytest.approx(seconds, abs=1e-5)
    assert f"; {seconds:.3f} s from graphs to their first runs" in str(found)


def test_breakdown_of_the_forum_log_equals_its_descriptor_counts() -> None:
    text = read_log_text("forum-9.1.1.log.gz")
    kinds = re.findall(r"descriptorType: type=cudnnBackendDescriptorType_t; val=(CUDNN_BACKEND_\w+)", text)
    assert (
        kinds.count("CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR"),
        kinds.count("CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR"),
    ) == (1, 2)
    assert "EXECUTION_PLAN" not in text
    assert "Execute" not in text
    (one,) = break_down_log(FORUM_LOG).graphs
    assert one.graph is not None
    assert (one.count, one.plans, one.executions, len(one.graph.ops)) == (1, 0, 0, 2)


def _change_sequence_length(text: str, s: int) -> str:
    """Return the log of the same program at sequence length ``s``: other dims and strides, an hour later."""
    changes = {
        "[2,8,512,64]": f"[2,8,{s},64]",
        "[2,8,64,512]": f"[2,8,64,{s}]",
        "[2,8,512,512]": f"[2,8,{s},{s}]",
        "[2,8,512,1]": f"[2,8,{s},1]",
        "[2097152,262144,512,1]": f"[{8 * s * s},{s * s},{s},1]",
        "[262144,32768,64,1]": f"[{512 * s},{64 * s},64,1]",
        "[262144,32768,1,64]": f"[{512 * s},{64 * s},1,64]",
        "[4096,512,1,1]": f"[{8 * s},{s},1,1]",
        "T17:": "T18:",
    }
    for old, new in changes.items():
        text = text.replace(old, new)
    return text


def test_separate_plans_for_one_shape_class_are_reported() -> None:
    text = read_log_text(TORCH_LOG.name)
    first = text[: text.index("\nI! CuDNN (v91900 56) function cudnnSetStream() called:", 4000)]
    parts = [first, _change_sequence_length(first, 640), first]
    found = break_down_log(iter("\n".join(parts).splitlines(keepends=True)))
    assert [(one.count, one.plans, one.executions) for one in found.graphs if one.graph is not None] == [
        (2, 2, 2),
        (1, 1, 1),
    ], str(found)
    (group,) = found.groups
    assert (group.graphs, group.plans, group.executions) == ((1, 2), 3, 3)
    assert "serves all 2 shapes" in group.advice
    assert group.plan_s == pytest.approx(2 * (26.325987 - 26.223864) + 26.263514 - 26.223864)


def test_only_repeated_plans_of_one_config_count_as_avoidable() -> None:
    text = read_log_text(TORCH_LOG.name)
    first = text[: text.index("\nI! CuDNN (v91900 56) function cudnnSetStream() called:", 4000)]
    other = re.sub(r'(KERNEL_CFG(?:: type=int; val=|":))7\b', r"\g<1>4", first)
    assert other != first
    for parts, saved in (([first, other], 0), ([first, first], 1), ([first, other, first, other, first], 3)):
        (graph,) = break_down_log(iter("\n".join(parts).splitlines(keepends=True))).graphs
        assert (graph.plans, graph.repeated_plans) == (len(parts), saved)
    text = str(break_down_log(iter("\n".join([first, first]).splitlines(keepends=True))))
    assert "with PlanCache the plan of each config is built only once: 1 plan fewer" in text


OVERSIZED_RECORD_LENGTH, RECORD_LENGTH_LIMIT = 70_000, 65_536


def _truncate_records_as_for_large_graphs(text: str) -> str:
    """Return the log as if its graphs were large: cuDNN truncates records at 64 KiB, before time and thread."""

    def pad_record_beyond_the_length_limit(found: re.Match[str]) -> str:
        return found[1] + f"{found[2].count('dim')} " * OVERSIZED_RECORD_LENGTH + found[2]

    text = re.sub(r'("tensors":\[\{"name":")(.*)', pad_record_beyond_the_length_limit, text)
    for kind in ("OPERATIONGRAPH", "EXECUTION_PLAN"):
        line = f"i!     descriptor: type=CUDNN_BACKEND_{kind}_DESCRIPTOR:"
        text = text.replace(line, line + f"\ni!         one: type=int; val={'1' * OVERSIZED_RECORD_LENGTH};")
    records = re.split(r"(?m)^(?=[IWE]! CuDNN )", text)
    return "".join(one if len(one) < RECORD_LENGTH_LIMIT else one[:RECORD_LENGTH_LIMIT] + "\n\n\n" for one in records)


def test_graphs_with_truncated_records_are_counted() -> None:
    """cuDNN truncates log records at 64 KiB, so large graphs (201 operations with 9.24.1) cannot be read back."""
    found = break_down_log(
        iter(_truncate_records_as_for_large_graphs(read_log_text(TORCH_LOG.name)).splitlines(keepends=True))
    )
    assert [(one.count, one.plans, one.executions) for one in found.graphs] == [(1, 1, 1)] * 2
    assert all(one.fault is not None and "64 KiB" in one.fault.headline for one in found.graphs)


def test_a_plan_without_its_graph_is_counted() -> None:
    """The record of the plan's graph is missing, as if another process had written into it."""
    text = read_log_text(TORCH_LOG.name)
    at = text.index("\n", text.index("descriptor: type=CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR"))
    head = text.rindex("I! CuDNN", 0, at)
    found = break_down_log(iter(text[head:].splitlines(keepends=True)))
    assert [(one.count, one.plans) for one in found.graphs if one.fault is not None] == [(0, 1)]


def test_graphs_of_two_cudnn_versions_are_counted_separately() -> None:
    text = read_log_text(TORCH_LOG.name)
    other = text.replace("(v91900 ", "(v92000 ").replace('"cudnnVersion":91900', '"cudnnVersion":92000')
    found = break_down_log(iter((text + other).splitlines(keepends=True)))
    assert [(one.version, one.plans) for one in found.graphs] == [("9.19.0", 1)] * 2 + [("9.20.0", 1)] * 2
    assert [len(group.graphs) for group in found.groups] == [1] * 4
    assert "graph 3, line " in str(found)
    assert ", cuDNN 9.20.0: attention forward" in str(found)


def test_a_log_without_execute_calls_has_zero_executions() -> None:
    text = read_log_text(TORCH_LOG.name)
    found = break_down_log(iter(text[: text.index("function cudnnBackendExecute")].splitlines(keepends=True)))
    assert [one.executions for one in found.graphs] == [0]
    assert " s from graphs to their plans\n" in str(found)


def test_breakdown_reports_repeated_builds_of_a_graph() -> None:
    text = read_log_text(TORCH_LOG.name)
    found = break_down_log(iter((text + text).splitlines(keepends=True)))
    assert [group.plans for group in found.groups] == [2, 2]
    assert all("PlanCache" in group.advice for group in found.groups)


def test_log_command_prints_the_breakdown_as_text_and_json() -> None:
    run = CliRunner().invoke(main, ["log", str(TORCH_LOG), "--breakdown"])
    assert run.exit_code == 0
    assert run.stdout == str(break_down_log(TORCH_LOG))
    data = json.loads(CliRunner().invoke(main, ["log", str(FORUM_LOG), "--breakdown", "--format", "json"]).stdout)
    assert (data["schema"], len(data["graphs"])) == ("cudnn-backend-py/log-breakdown", 1)
    refused = CliRunner().invoke(main, ["log", str(FORUM_LOG), "--breakdown", "--target", "h100"])
    assert refused.exit_code == 2
    assert "does not judge" in refused.stderr


def test_breakdown_reports_known_issues_of_the_gpu_of_the_log() -> None:
    found = break_down_log(TORCH_LOG)
    assert len(found.faults) == len(found.graphs)
    nothing = Breakdown((replace(found.graphs[0], device={}),), (), ((),))
    assert "known issue" not in str(nothing)
    assert str(Breakdown((), (), ())).startswith("no graph found in the log")
