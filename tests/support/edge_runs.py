"""Cases at the edges of operations, run on the GPU of this process and compared with the interpreter.

``python -m tests.support.edge_runs --output DIR`` runs all of them in several processes and keeps what came out: a
line of JSON for each case, and an array for each output, whole or its differing and evenly spaced elements.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cudnn_backend_py import CudnnBackendError, DataType, Graph, OperationGraph, Plan, Target, build_plan, open_target
from cudnn_backend_py.execution import execute
from cudnn_backend_py.graph.formats import decode, encode, is_integer, storage_type
from cudnn_backend_py.graph.interpret import interpret
from tests.support.edges import CASES, Edge, inputs_of

Array = NDArray[Any]


@lru_cache(maxsize=1)
def _target() -> Target:
    return open_target()


def first_plan(graph: Graph, target: Target) -> Plan | str:
    """Return the plan of the first config that builds, or what refuses the graph."""
    words = []
    try:
        question = OperationGraph(graph, target)
        for mode in ("A", "FALLBACK"):
            for config in question.heuristics(mode).configs:
                try:
                    return build_plan(config)
                except CudnnBackendError as error:
                    words.append(f"{config.tag}: {str(error).splitlines()[0]}")
                    if len(words) > 2:
                        return "no plan: " + " | ".join(words)
    except CudnnBackendError as error:
        return "refused: " + " ".join(str(error).split())[:200]
    return "no plan: " + " | ".join(words) if words else "refused: no config"


def other_plans(graph: Graph, target: Target, first: Plan | str) -> list[Plan | str]:
    """Return a plan of each further engine that has one, up to three."""
    assert not isinstance(first, str)
    question = OperationGraph(graph, target)
    seen, plans = {first.tag.split("_")[0]}, list[Plan | str]()
    for mode in ("A", "FALLBACK"):
        for config in question.heuristics(mode).configs:
            engine = config.tag.split("_")[0]
            if engine in seen or len(plans) > 2:
                continue
            seen.add(engine)
            try:
                plans.append(build_plan(config))
            except CudnnBackendError:
                continue
    return plans


def run_graph(graph: Graph, plan: Plan, values: dict[str, Array]) -> dict[str, Array]:
    """Return the outputs as they lie in memory; before, every byte of them is 0x55."""
    arrays = {name: encode(value, graph.tensor(name).data_type) for name, value in values.items()}
    outputs = {}
    for tensor in graph.outputs:
        kind = storage_type(tensor.data_type)
        size = int(np.prod(tensor.dims)) * kind.itemsize
        outputs[tensor.name] = np.full(size, 0x55, np.uint8).view(kind).reshape(tensor.dims)
    execute(plan, {**arrays, **outputs})
    return outputs


def spacing(values: Array, kind: DataType) -> Array:
    """Return the distance of the numbers of a type around each value."""
    form = {DataType.FLOAT: (23, -126), DataType.HALF: (10, -14), DataType.BFLOAT16: (7, -126)}
    form |= {DataType.FP8_E4M3: (3, -6), DataType.FP8_E5M2: (2, -14), DataType.DOUBLE: (52, -1022)}
    if kind not in form:
        return np.full(np.shape(values), 0.0 if is_integer(kind) else np.inf)
    bits, low = form[kind]
    size = np.abs(np.where(np.isfinite(values), values, 0))
    exponent = np.floor(np.log2(np.maximum(size, 2.0**-1074)))
    return np.exp2(np.maximum(exponent, low) - bits)


def probe(case: Edge, folder: Path) -> dict[str, Any]:
    """Run one case, keep its outputs, and say how they differ from the interpreter's."""
    begin = time.perf_counter()
    record: dict[str, Any] = {"name": case.name}
    graph = case.make()
    plans = [first_plan(graph, _target())]
    if isinstance(plans[0], str):
        return record | {"outcome": plans[0]}
    values = inputs_of(case, graph)
    if case.name.split("/")[0] not in ("pointwise", "convert", "virtual"):
        plans += other_plans(graph, _target(), plans[0])
    record |= {"outcome": "ran", "plan_s": round(time.perf_counter() - begin, 2), "runs": {}}
    kept: dict[str, Array] = {}
    try:
        want = interpret(graph, values, rounding=True)
    except CudnnBackendError as error:
        record["interpreter"], want = str(error)[:300], {}
    for plan in plans:
        assert not isinstance(plan, str)
        got = run_graph(graph, plan, values)
        item: dict[str, Any] = {}
        record["runs"][plan.tag] = item
        for place, tensor in enumerate(graph.outputs):
            raw = got[tensor.name].reshape(-1)
            whole = raw.size <= 1 << 13
            chosen = np.arange(raw.size) if whole else np.union1d(np.arange(3200), np.arange(0, raw.size, 61))
            if tensor.name in want:
                chosen = np.union1d(chosen, _differing(item, tensor.name, raw, want[tensor.name], tensor.data_type))
            kept[f"{plan.tag}:{place}_at"] = chosen.astype(np.int32)
            kept[f"{plan.tag}:{place}_raw"] = raw[chosen]
    np.savez_compressed(folder / (re.sub("[^A-Za-z0-9.()=-]+", "_", case.name) + ".npz"), **kept)
    return record


def probe_random(name: str) -> dict[str, Any]:
    """Run a random problem, ``random/convolution/17``, and compare it with PyTorch and with the interpreter."""
    import torch

    from tests.support.random_operations import draw_convolution, draw_norm, measure

    torch.set_num_threads(1)
    _, family, number = name.split("/")
    record: dict[str, Any] = {"name": name, "refused": []}
    for problem in islice({"convolution": draw_convolution, "norm": draw_norm}[family](int(number)), 20):
        begin = time.perf_counter()
        plan = first_plan(problem.graph, _target())
        if isinstance(plan, str):
            record["refused"].append(f"{problem.title}: {plan}"[:300])
            continue
        record |= {"title": problem.title, "engine": plan.tag, "plan_s": round(time.perf_counter() - begin, 2)}
        got = run_graph(problem.graph, plan, problem.inputs)
        ours = interpret(problem.graph, problem.inputs, rounding=True)
        record["outputs"] = {}
        for output, (want, size) in problem.reference().items():
            kind = problem.graph.tensor(output).data_type
            found = decode(got[output], kind)
            record["outputs"][output] = [measure(found, want, size, kind), measure(found, ours[output], size, kind)]
        return record | {"outcome": "ran", "all_s": round(time.perf_counter() - begin, 2)}
    return record | {"outcome": "refused: all of 20"}


def _differing(record: dict[str, Any], name: str, raw: Array, wanted: Array, kind: DataType) -> Array:
    """Add to the record how an output differs, and return the places of up to 4096 elements that do."""
    found, want = decode(raw, kind), np.asarray(wanted, np.float64).reshape(-1)
    nan, limit = np.isnan(found) != np.isnan(want), np.isinf(found) != np.isinf(want)
    sign = (found == want) & (np.signbit(found) != np.signbit(want))
    with np.errstate(all="ignore"):
        error = np.where(found == want, 0.0, np.abs(found - want))
        error = np.where(np.isnan(found) & np.isnan(want), 0.0, error)
        ulps = np.where(np.isfinite(error), error, 0.0) / np.maximum(spacing(want, kind), 1e-320)
        if is_integer(kind) or kind is DataType.BOOLEAN:
            ulps = np.where(np.isfinite(error), error, 0.0)
    finite = ulps[np.isfinite(ulps)]
    item = {"nan": int(nan.sum()), "inf": int((limit & ~nan).sum()), "sign": int(sign.sum())}
    item |= {"max": float(finite.max(initial=0.0)), "over1": int((ulps > 1.001).sum()), "size": raw.size}
    item["over4"] = int((ulps > 4.001).sum())
    record.setdefault("outputs", {})[name] = item
    order = [np.flatnonzero(mask)[:768] for mask in (nan, limit, sign)]
    order.append(np.argsort(-ulps, kind="stable")[: min(768, int((ulps > 1.001).sum()))])
    return np.concatenate(order)


def _serve(folder: Path) -> None:
    for line in sys.stdin:
        name = line.rstrip("\n")
        try:
            record = probe_random(name) if name.startswith("random/") else probe(CASES[name], folder)
        except Exception as error:
            record = {"name": name, "outcome": f"failed: {type(error).__name__}: {error}"[:600]}
        print("RECORD " + json.dumps(record), flush=True)
        if "failed: " in record["outcome"] and (
            "cuda" in record["outcome"].lower() or "EXECUTION" in record["outcome"]
        ):
            os._exit(3)


def _work(waiting: list[str], records: list[dict[str, Any]], folder: Path, until: float) -> None:
    child: subprocess.Popen[str] | None = None
    while waiting and time.monotonic() < until:
        try:
            name = waiting.pop(0)
        except IndexError:
            break
        if child is None or child.poll() is not None:
            command = [sys.executable, "-m", "tests.support.edge_runs", "--serve", str(folder)]
            child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert child.stdin is not None
        assert child.stdout is not None
        try:
            child.stdin.write(name + "\n")
            child.stdin.flush()
            line = child.stdout.readline()
            while line and not line.startswith("RECORD "):
                line = child.stdout.readline()
        except BrokenPipeError:
            line = ""
        if line:
            records.append(json.loads(line.removeprefix("RECORD ")))
        else:
            records.append({"name": name, "outcome": f"failed: the process died: {child.wait()}"})
            child = None
    if child is not None:
        child.kill()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--output", type=Path)
    parser.add_argument("--serve", type=Path)
    parser.add_argument("--workers", type=int, default=14)
    parser.add_argument("--seconds", type=float, default=90.0)
    parser.add_argument("--only", default="")
    parser.add_argument("--random", type=int, default=300)
    given = parser.parse_args()
    if given.serve:
        _serve(given.serve)
        return
    folder: Path = given.output
    folder.mkdir(parents=True, exist_ok=True)
    names = [name for name in CASES if given.only in name]
    names += [f"random/{family}/{number}" for number in range(given.random) for family in ("convolution", "norm")]
    records: list[dict[str, Any]] = []
    until = time.monotonic() + given.seconds
    with ThreadPoolExecutor(given.workers) as pool:
        for done in [pool.submit(_work, names, records, folder, until) for _ in range(given.workers)]:
            done.result()
    records += [{"name": name, "outcome": "not reached"} for name in names]
    lines = [json.dumps(record) for record in sorted(records, key=lambda record: record["name"])]
    (folder / "records.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    counts: dict[str, int] = {}
    for record in records:
        key = f"{record['name'].split('/')[0]} {record['outcome'].split(':')[0]}"
        counts[key] = counts.get(key, 0) + 1
    print(json.dumps(counts, indent=1))


if __name__ == "__main__":
    main()
