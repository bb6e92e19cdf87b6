"""Run the typical graphs of tests/support/typical_graphs.py on this machine's GPU, and compare with the interpreter.

``python -m tools.records.built_runs logs/NAME.json`` writes the record for docs/operations.md, each
graph run in its own process, because it may crash; ``python -m tools.records.built_runs --graph NAME`` runs one.
"""

from __future__ import annotations

import argparse
import json
import subprocess
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from cudnn_backend_py import (
    CudnnBackendError,
    CudnnStatusError,
    DataType,
    DescriptorType,
    Graph,
    NotSupported,
    OperationGraph,
    UsageError,
    build_plan,
    execute,
    interpret,
    open_target,
)
from cudnn_backend_py.graph import Operation
from cudnn_backend_py.graph.formats import encode
from cudnn_backend_py.info import make_measurement_record_header, write_record
from cudnn_backend_py.plans.engine import EngineConfig
from cudnn_backend_py.tuning.agreement import TOLERANCES, compare, get_tolerance
from tests.support.child import run_python
from tests.support.interpreting import make_typical_inputs
from tests.support.typical_graphs import TYPICAL_GRAPHS
from tools.records.operations_page import AGREES, REFUSED

__all__ = ["compute_error_limit", "run_graph", "run_typical_graph_in_child"]

RECORD_KIND = "operations"
WORKER_COUNT = 8
GRAPH_TIME_LIMIT_S = 90
MAX_MESSAGE_LENGTH = 1500  # characters kept of cuDNN's message


def compute_error_limit(graph: Graph, name: str) -> float:
    """Return the largest accepted relative error of an output, for the least precise type that the graph writes."""
    own = get_tolerance(graph.tensor(name), None)
    if graph.tensor(name).data_type not in TOLERANCES:
        return own
    written = [tensor.data_type for op in graph.ops for tensor in op.outputs().values()]
    return max([own, *(TOLERANCES[kind] for kind in written if kind in TOLERANCES)])


def run_graph(name: str) -> dict[str, Any]:
    """Run a graph and return the outcome: the plan and the errors of the outputs, or cuDNN's refusal."""
    graph = TYPICAL_GRAPHS[name].make()
    target = open_target()
    try:
        operation_graph = OperationGraph(graph, target)
        answers = [operation_graph.heuristics(mode) for mode in ("A", "FALLBACK")]
    except (CudnnStatusError, NotSupported, UsageError) as error:  # UsageError: the library lacks an operation
        return {"said": REFUSED, "words": str(error)[:MAX_MESSAGE_LENGTH]}
    configs = [config for answer in answers for config in answer.configs]
    if not configs:
        return {"said": REFUSED, "words": "\n".join(answer.answer.text for answer in answers)[:MAX_MESSAGE_LENGTH]}
    return _run_first_buildable_config(graph, configs, make_typical_inputs(graph))


def _run_first_buildable_config(graph: Graph, configs: list[EngineConfig], inputs: Mapping[Any, Any]) -> dict[str, Any]:
    """Run the first engine config that can be built, and compare its outputs."""
    words = ""
    for config in configs:
        try:
            plan = build_plan(config)
        except CudnnStatusError as error:
            words = words or str(error)
            continue
        given: dict[str | int, Any] = {
            name: encode(value, graph.tensor(str(name)).data_type) for name, value in inputs.items()
        }
        # Elements that the graph does not write remain NaN, as in the interpreter.
        got: dict[Any, Any] = {
            tensor.name: _make_placeholder_output(tensor.dims, tensor.data_type) for tensor in graph.outputs
        }
        _copy_concatenation_input(graph, given, got)
        execute(plan, {**given, **got})
        return {"plan": plan.tag, **_compare_outputs(graph, got, interpret(graph, inputs, rounding=True))}
    return {"said": "no plan is built", "words": words[:MAX_MESSAGE_LENGTH]}


def _make_placeholder_output(dims: tuple[int, ...], data_type: DataType) -> Any:
    return encode(np.full(dims, np.nan if data_type in TOLERANCES else 77.0), data_type)


def _copy_concatenation_input(graph: Graph, given: Mapping[Any, Any], got: Mapping[str, Any]) -> None:
    """For each concatenation in place, copy its in-place input into the result's memory before the run."""
    for op in graph.ops:
        if isinstance(op, Operation) and op.kind is DescriptorType.OPERATION_CONCAT:
            place, axis, inputs = op.fields["inplace_index"], op.fields["axis"], op.fields["input"]
            start = sum(tensor.dims[axis] for tensor in inputs[:place])
            part = np.moveaxis(got[op.fields["output"].name], axis, 0)
            part[start : start + inputs[place].dims[axis]] = np.moveaxis(given[inputs[place].name], axis, 0)


def _compare_outputs(graph: Graph, got: Mapping[str, Any], want: Mapping[str, Any]) -> dict[str, Any]:
    beyond, outputs = [], {}
    for tensor in graph.outputs:
        limit = compute_error_limit(graph, tensor.name)
        found = compare(encode(want[tensor.name], tensor.data_type), got[tensor.name], tensor.data_type)
        outputs[tensor.name] = {"relative": found.relative, "worst_row": found.worst_row, "limit": limit}
        if why := found.describe_excess(limit):
            beyond.append(f"{tensor.name}: {why}")
    return {"said": "; ".join(beyond) or AGREES, "outputs": outputs}


def run_typical_graph_in_child(name: str) -> dict[str, Any]:
    """Run a graph in a separate process and return the outcome."""
    try:
        done = run_python(
            ["-W", "ignore", "-m", "tools.records.built_runs", "--graph", name], timeout_s=GRAPH_TIME_LIMIT_S
        )
    except subprocess.TimeoutExpired:
        return {"said": "it does not end"}
    if done.code or not done.stdout:
        return {"said": "failed", "words": f"{done.ending}\n{done.stderr[-2000:]}"}
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> None:
    """Run one graph, or all and write a record."""
    parser = argparse.ArgumentParser(description="Run the graphs of docs/operations.md on this GPU.")
    parser.add_argument("record", nargs="?", type=Path)
    parser.add_argument("--graph", choices=TYPICAL_GRAPHS)
    arguments = parser.parse_args()
    if arguments.graph:
        try:
            print(json.dumps(run_graph(arguments.graph)))
        except CudnnBackendError as error:
            print(json.dumps({"said": "failed", "words": str(error)}))
        return
    facts = ("cudnn_backend_py", "python", "cudnn", "built for CUDA", "driver version", "gpus")
    with ThreadPoolExecutor(WORKER_COUNT) as pool:
        graphs = dict(zip(TYPICAL_GRAPHS, pool.map(run_typical_graph_in_child, TYPICAL_GRAPHS), strict=True))
    print(write_record({**make_measurement_record_header(RECORD_KIND, facts), "graphs": graphs}, arguments.record))


if __name__ == "__main__":
    main()
