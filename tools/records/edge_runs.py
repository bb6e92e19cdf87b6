"""Run edge cases of operations and random problems on this process's GPU, and compare with the interpreter.

``python -m tools.records.edge_runs logs/NAME.json`` runs all of them and writes the record for docs/operations.md.
With ``--output DIR`` results are stored: a line of JSON for each, and as NumPy files the elements of each output that
differ from the interpreter's, and an evenly spaced sample of the others.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cudnn_backend_py import CudnnBackendError, DataType, Graph, OperationGraph, PointwiseMode, build_plan, open_target
from cudnn_backend_py.execution.run import execute
from cudnn_backend_py.graph import Pointwise
from cudnn_backend_py.graph.data_types import DATA_TYPES
from cudnn_backend_py.graph.formats import decode, encode, get_largest_finite, get_storage_type, is_integer
from cudnn_backend_py.info import make_measurement_record_header, write_record
from cudnn_backend_py.interpreter import interpret
from cudnn_backend_py.known_issues import find_issues_explaining_failure
from cudnn_backend_py.plans.plan import Plan
from cudnn_backend_py.target import Target
from tests.support.edges import EDGE_CASES, REFUSED_EDGE_CASES, EdgeCase, make_edge_case_inputs

__all__ = [
    "RANDOM_PROBLEMS_PER_FAMILY",
    "list_random_problem_names",
    "make_record_of_edge_cases",
    "run_cases_in_children",
]

Array = NDArray[Any]
P, T = PointwiseMode, DataType
CaseRecord = dict[str, Any]
RECORD_KIND = "edges"
RANDOM_PROBLEMS_PER_FAMILY = 300  # problems of each family
MAX_TRIES = 20  # attempts per problem number, until cuDNN has an engine
MAX_ENGINES = 4  # engines per graph at most
FAMILIES_WITH_ONE_ENGINE = ("pointwise", "convert", "virtual")  # families of edge cases that are run on one engine


@lru_cache(maxsize=1)
def _get_target() -> Target:
    return open_target()


def build_plan_per_engine(graph: Graph, target: Target, most: int) -> list[Plan] | str:
    """Build one plan per engine from its first config that compiles; return cuDNN's message if there is none."""
    plans: dict[int, Plan] = {}
    words: list[str] = []
    try:
        question = OperationGraph(graph, target)
        for config in (config for mode in ("A", "FALLBACK") for config in question.heuristics(mode).configs):
            if config.engine in plans or len(plans) == most or len(words) > 3:
                continue
            try:
                plans[config.engine] = build_plan(config)
            except CudnnBackendError as error:
                words.append(f"{config.tag}: {str(error).splitlines()[0]}")
    except CudnnBackendError as error:
        return "refused: " + " ".join(str(error).split())[:200]
    if not plans:
        return "no plan: " + " | ".join(words) if words else "refused: no config"
    return list(plans.values())


def run_graph(graph: Graph, plan: Plan, values: dict[str, Array]) -> dict[str, Array]:
    """Run a plan and return the raw outputs; output memory is filled with 0x55 bytes first."""
    arrays: dict[str | int, Array] = {
        name: encode(value, graph.tensor(name).data_type) for name, value in values.items()
    }
    outputs: dict[Any, Array] = {}
    for tensor in graph.outputs:
        kind = get_storage_type(tensor.data_type)
        size = int(np.prod(tensor.dims)) * kind.itemsize
        outputs[tensor.name] = np.full(size, 0x55, np.uint8).view(kind).reshape(tensor.dims)
    execute(plan, {**arrays, **outputs})
    return outputs


# equality


def compute_number_spacing(values: Array, kind: DataType) -> Array:
    """Return the distance between adjacent numbers of a type at each value; 1 for integers."""
    forms = {T.FLOAT: (23, -126), T.HALF: (10, -14), T.BFLOAT16: (7, -126), T.DOUBLE: (52, -1022)}
    forms |= {T.FP8_E4M3: (3, -6), T.FP8_E5M2: (2, -14)}
    if kind not in forms:
        return np.ones(np.shape(values))
    bits, low = forms[kind]
    size = np.abs(np.where(np.isfinite(values), values, 0))
    exponent = np.floor(np.log2(np.maximum(size, 2.0**-1074)))
    return np.asarray(np.exp2(np.maximum(exponent, low) - bits))


def find_differences_from_interpreter(
    case: EdgeCase, graph: Graph, name: str, found: Array, want: Array, exact: Array, values: dict[str, Array]
) -> tuple[Array, str]:
    """Return where an output differs from the interpreter's, and a count for each kind of difference as text."""
    kind = graph.tensor(name).data_type
    exact, want, found = (np.asarray(item, np.float64) for item in (exact, want, found))
    compared, allowed = find_compared_elements_and_limits(case, graph, name, want, exact, values)
    nan, limit = np.isnan(found) != np.isnan(want), np.isinf(found) != np.isinf(want)
    sign = (found == want) & (np.signbit(found) != np.signbit(want))
    if case.approximation_bound or case.family != "pointwise":
        sign[...] = False  # zeros with different signs
    with np.errstate(all="ignore"):
        far = np.abs(found - want) > allowed + (compute_number_spacing(want, kind) if allowed.any() else 0.0)
        at_limit = (
            np.abs(want) >= get_largest_finite(kind) * (1 - 2.0**-7)
            if kind not in _INTEGER_TYPES
            else np.zeros(want.shape, bool)
        )
    limit &= ~(at_limit & bool(allowed.any()))
    masks = {"NaN": nan, "infinity": limit & ~nan, "sign": sign, "number": far & ~nan & ~limit}
    counts = {word: int((mask & compared).sum()) for word, mask in masks.items()}
    wrong = np.flatnonzero(compared & (nan | limit | sign | far))
    words = ", ".join(f"{word} {count}" for word, count in counts.items() if count)
    if words:
        at = np.unravel_index(wrong[0], want.shape)
        read = {key: float(value[at]) for key, value in values.items() if value.shape == want.shape}
        words += f" of {want.size}; first at {[int(i) for i in at]} {read}: {found[at]!r}, not {want[at]!r}"
    return wrong, words


def find_compared_elements_and_limits(
    case: EdgeCase, graph: Graph, name: str, want: Array, exact: Array, values: dict[str, Array]
) -> tuple[Array, Array]:
    """Return which elements are compared, and their allowed error in addition to one rounding of the result."""
    unit = 2.0**-23
    everywhere = np.ones(want.shape, np.bool_)
    if case.family in ("pointwise", "convert", "virtual"):
        if not case.approximation_bound:
            if isinstance(graph.ops[0], Pointwise) and graph.ops[0].mode is P.DIV:
                everywhere &= np.abs(np.broadcast_to(values["b"], want.shape)) < 2.0**126
                return everywhere, unit * np.abs(np.nan_to_num(exact, posinf=0, neginf=0))
            inexact = case.allowed_ulps * unit * np.abs(np.nan_to_num(exact, nan=0, posinf=0, neginf=0))
            return everywhere, np.asarray(inexact)
        x = np.abs(values["x"])
        dy = np.abs(values["dy"]) if "dy" in values else np.ones(x.shape)
        inside = (x <= 64) & (dy < 2.0**60) & (np.abs(exact) < 0.9 * get_largest_finite(graph.tensor(name).data_type))
        size = np.abs(exact) + np.maximum(1, x) * dy
        if isinstance(graph.ops[0], Pointwise) and graph.ops[0].mode is P.TAN:
            size = size * (1 + exact**2)
            inside &= np.abs(exact) < 1e3
        outside = np.isnan(values["x"]) | np.isnan(values.get("dy", values["x"]))
        return inside | outside, np.where(inside, np.nan_to_num(case.approximation_bound * unit * size), 0.0)
    finite = np.abs(want[np.isfinite(want)])
    top = min(float(finite.max(initial=0.0)), 1e4)
    if case.family in ("norm", "pool", "convolution", "matmul") and "hostile" in case.name:
        everywhere &= np.isfinite(want) & (np.abs(want) < 1e30)
        if case.family == "pool":
            everywhere &= _find_windows_without_nan(case, values)
    return everywhere, case.allowed_relative_error * unit * (top + np.abs(np.nan_to_num(want, posinf=0.0, neginf=0.0)))


def _find_windows_without_nan(case: EdgeCase, values: dict[Any, Array]) -> Array:
    """Return which pooling windows contain a number and no NaN; engines differ in their results for NaN."""
    graph = EDGE_CASES[case.name.replace("NOT_PROPAGATE", "PROPAGATE")].make()
    y = next(tensor for tensor in graph.outputs if not tensor.name.endswith(".idx"))
    made = interpret(graph, values)[y.name]
    return np.asarray(~np.isnan(made) & ~np.isneginf(made))


_INTEGER_TYPES = tuple(kind for kind in DataType if DATA_TYPES[kind].kind != "float")


# edge cases


def run_edge_case(case: EdgeCase, folder: Path | None = None) -> CaseRecord:
    """Run a case on each engine and report differences from the interpreter; store outputs in ``folder``."""
    graph = case.make()
    plans = build_plan_per_engine(graph, _get_target(), 1 if case.family in FAMILIES_WITH_ONE_ENGINE else MAX_ENGINES)
    if isinstance(plans, str):
        outcome, _, words = plans.partition(": ")
        return {"outcome": outcome, "words": words}
    values: dict[Any, Array] = {**make_edge_case_inputs(case, graph)}
    exact, want = (interpret(graph, values, rounding=rounding) for rounding in (False, True))
    record: CaseRecord = {"outcome": "agrees", "engines": [plan.tag.split("_")[0] for plan in plans], "elements": 0}
    kept: dict[str, Any] = {}
    for plan in plans:
        for name, raw in run_graph(graph, plan, values).items():
            kind = graph.tensor(name).data_type
            found = raw if is_integer(kind) else decode(raw, kind)
            wrong, words = find_differences_from_interpreter(case, graph, name, found, want[name], exact[name], values)
            record["elements"] += raw.size
            if words:
                record["outcome"] = "differs"
                record.setdefault("words", []).append(f"{plan.tag} {name}: {words}")
            if folder:
                spaced = np.arange(raw.size) if raw.size <= 1 << 13 else np.arange(0, raw.size, 61)
                kept[f"{plan.tag}:{name}:at"] = at = np.union1d(spaced, wrong[:1024]).astype(np.int32)
                kept[f"{plan.tag}:{name}:raw"] = raw.reshape(-1)[at]
    if folder:
        np.savez_compressed(folder / (re.sub("[^A-Za-z0-9.()=-]+", "_", case.name) + ".npz"), **kept)
    return record


# random problems


def list_random_problem_names(count: int) -> list[str]:
    """Return the names of random convolutions and norms, for :func:`run_cases_in_children`."""
    return [f"random/{family}/{number}" for number in range(count) for family in ("convolution", "norm")]


def run_random_operation_problem(name: str) -> CaseRecord:
    """Run the first problem that an engine supports of a seeded series; compare it with PyTorch and the interpreter."""
    import torch

    from tools.records.random_operations import (
        compute_largest_error_ratio,
        make_random_convolutions,
        make_random_norms,
    )

    torch.set_num_threads(1)
    _, family, number = name.split("/")
    draw = {"convolution": make_random_convolutions, "norm": make_random_norms}[family]
    passed_over: list[str] = []
    for problem in islice(draw(int(number)), MAX_TRIES):
        plans = build_plan_per_engine(problem.graph, _get_target(), 1)
        if isinstance(plans, str):
            passed_over.append(f"{problem.title}: {plans}"[:300])
            continue
        record: CaseRecord = {"title": problem.title, "engines": [plans[0].tag.split("_")[0]], "outcome": "agrees"}
        record |= {"refused": passed_over, "shares": {}}
        got = run_graph(problem.graph, plans[0], problem.inputs)
        inputs: dict[Any, Array] = {**problem.inputs}
        ours = interpret(problem.graph, inputs, rounding=True)
        for output, (want, size) in problem.reference().items():
            kind = problem.graph.tensor(output).data_type
            found = decode(got[output], kind)
            for against, wanted in (("PyTorch", want), ("the interpreter", ours[output])):
                share = compute_largest_error_ratio(found, wanted, size, problem, kind)
                record["shares"][kind.name] = max(record["shares"].get(kind.name, 0.0), share)
                if not share <= 1:
                    record["outcome"] = "differs"
                    record.setdefault("wrong", []).append(output)
                    record.setdefault("words", []).append(f"{output} from {against}: {share:.3g} of what is allowed")
        if record["outcome"] == "differs":
            record["faults"] = _find_known_issue_codes(problem.graph, plans[0], record["wrong"])
        return record
    return {"outcome": "refused", "words": f"all of {MAX_TRIES}", "refused": passed_over}


def _find_known_issue_codes(graph: Graph, plan: Plan, wrong: Sequence[str]) -> list[str]:
    """Return the codes of known issues that explain a plan's wrong outputs."""
    engine = int(plan.tag.partition("_")[0].removeprefix("eng"))
    target = plan.target
    return [
        row.code
        for row in find_issues_explaining_failure(
            graph, wrong, engine=engine, version=target.library.version, sm=target.sm
        )
    ]


# many problems, in child processes


def run_cases_in_children(
    names: Iterable[str], workers: int | None = None, folder: Path | None = None
) -> list[CaseRecord]:
    """Run cases and random problems in child processes, so that a crash affects only one of them."""
    waiting, records = list(names), list[CaseRecord]()
    count = workers or min(14, os.cpu_count() or 1)
    with ThreadPoolExecutor(count) as pool:
        for done in [pool.submit(_run_waiting_cases, waiting, records, folder) for _ in range(count)]:
            done.result()
    return records


def _run_waiting_cases(waiting: list[str], records: list[CaseRecord], folder: Path | None) -> None:
    child: subprocess.Popen[str] | None = None
    while True:
        try:
            name = waiting.pop(0)
        except IndexError:
            break
        if child is None:
            command = [sys.executable, "-W", "ignore", "-m", "tools.records.edge_runs", "--serve"]
            command += ["--output", str(folder)] if folder else []
            child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        answer = _run_case_in_child(child, name)
        if answer is None:
            records.append({"name": name, "outcome": "failed", "words": f"the process died: {child.wait()}"})
            child = None
            continue
        records.append({"name": name, **answer})
        if answer["outcome"] == "failed":  # the child's CUDA context may be lost
            _stop_child(child)
            child = None
    if child is not None:
        _stop_child(child)


def _run_case_in_child(child: subprocess.Popen[str], name: str) -> CaseRecord | None:
    assert child.stdin is not None
    assert child.stdout is not None
    try:
        child.stdin.write(name + "\n")
        child.stdin.flush()
        for line in child.stdout:
            if line.startswith(_RECORD_MARK):
                record: CaseRecord = json.loads(line.removeprefix(_RECORD_MARK))
                return record
    except BrokenPipeError:
        pass
    return None


_RECORD_MARK = "record: "


def _stop_child(child: subprocess.Popen[str]) -> None:
    child.kill()
    for pipe in (child.stdin, child.stdout):
        if pipe is not None:
            pipe.close()
    child.wait()


def _run_requested_cases(folder: Path | None) -> None:
    """Read names of cases from stdin, run each, and write its record as one line."""
    cases = EDGE_CASES | REFUSED_EDGE_CASES
    for line in sys.stdin:
        name = line.rstrip("\n")
        try:
            record = (
                run_random_operation_problem(name) if name.startswith("random/") else run_edge_case(cases[name], folder)
            )
        except Exception as error:  # a failing run is a result as well
            record = {"outcome": "failed", "words": f"{type(error).__name__}: {error}"[:600]}
        print(_RECORD_MARK + json.dumps(record), flush=True)


def make_record_of_edge_cases(records: Iterable[CaseRecord]) -> CaseRecord:
    """Return the record of a run: the results of all cases and random problems."""
    by_name = {record["name"]: record for record in records}
    cases = {
        name: _summarize_record_in_one_line(by_name[name])
        for name in (*EDGE_CASES, *REFUSED_EDGE_CASES)
        if name in by_name
    }
    problems = {
        name: _make_stored_random_case_record(record)
        for name, record in sorted(by_name.items())
        if name.startswith("random/")
    }
    facts = ("cudnn_backend_py", "python", "cudnn", "built for CUDA", "driver version", "gpus")
    return {
        **make_measurement_record_header(RECORD_KIND, facts),
        "elements": sum(record.get("elements", 0) for record in by_name.values()),
        "counts": dict(Counter(f"{name.split('/')[0]}: {item['outcome']}" for name, item in sorted(by_name.items()))),
        "cases": cases,
        "random": problems,
    }


def _summarize_record_in_one_line(record: CaseRecord) -> str:
    """Return one line of text on a case: the outcome, the engines that ran it, and the differences."""
    more = record.get("words", "") if record["outcome"] in ("differs", "failed") else ""
    return " ".join([record["outcome"], *record.get("engines", ()), *([str(more)[:600]] if more else [])])


def _make_stored_random_case_record(record: CaseRecord) -> CaseRecord:
    shares = {kind: float(f"{share:.3g}") for kind, share in record.get("shares", {}).items()}
    kept = ("title", "outcome", "engines", "faults", "words")
    passed_over = {"passed over": len(record["refused"])} if record.get("refused") else {}
    return {**{key: record[key] for key in kept if key in record}, "shares": shares, **passed_over}


def _record_edge_case_runs() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("record", nargs="?", type=Path)
    parser.add_argument("--output", type=Path, help="folder in which to store results")
    parser.add_argument("--serve", action="store_true", help="run the cases named on stdin, for a parent process")
    parser.add_argument("--workers", type=int)
    parser.add_argument(
        "--random", type=int, default=RANDOM_PROBLEMS_PER_FAMILY, help="number of random problems of each family"
    )
    given = parser.parse_args()
    if given.serve:
        _run_requested_cases(given.output)
        return
    if given.output:
        given.output.mkdir(parents=True, exist_ok=True)
    names = [*EDGE_CASES, *REFUSED_EDGE_CASES, *list_random_problem_names(given.random)]
    records = sorted(run_cases_in_children(names, given.workers, given.output), key=lambda record: str(record["name"]))
    if given.output:
        text = "".join(json.dumps(record) + "\n" for record in records)
        (given.output / "records.jsonl").write_text(text, encoding="utf-8")
    record = make_record_of_edge_cases(records)
    write_record(record, given.record)
    print(json.dumps(record["counts"], indent=1))


if __name__ == "__main__":
    _record_edge_case_runs()
