"""Run random attention problems on this GPU and compare the results with the float64 reference."""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cudnn_backend_py import CudnnStatusError, DataType, Graph, OperationGraph, build_plan, execute, open_target
from cudnn_backend_py.graph.attention import AttentionUse, Version, find_measured_issues
from cudnn_backend_py.graph.formats import decode, encode, get_storage_type
from cudnn_backend_py.known_issues import Form
from cudnn_backend_py.system.child import ONE_THREAD
from cudnn_backend_py.target import Target
from tests.support.attention_cases import (
    AttentionCase,
    add_expected_results,
    make_attention_case,
    make_random_attention_problem,
)

__all__ = ["MAX_FROBENIUS_ERRORS", "AttentionRun", "run_attention_case", "run_attention_cases"]

# Largest accepted relative Frobenius error of an output; measured rounding errors are far smaller.
MAX_FROBENIUS_ERRORS = {
    DataType.HALF: 1e-3,
    DataType.BFLOAT16: 8e-3,
    DataType.FP8_E4M3: 0.06,
    DataType.FP8_E5M2: 0.11,
}
CaseRequest = tuple[int, bool, bool | None, bool]  # number of the case, backward, fp8 (None: random), with known issues
MIN_ROOT_MEAN_SQUARE = 0.01  # smallest root mean square to which an error is relative


@dataclass
class AttentionRun:
    """The result of one graph of one case: engine, errors or refusal."""

    number: int
    backward: bool
    form: str
    data_type: str
    problem: str
    outcome: str  # "agrees", "differs", "refused", "hazard", "failed"
    engine: str = ""
    words: str = ""
    errors: dict[str, list[float]] = field(
        default_factory=dict
    )  # by output: largest error, and relative Frobenius error
    beyond: dict[str, str] = field(default_factory=dict)  # by output: content of elements that should not be written


@lru_cache(maxsize=1)
def _open_target() -> Target:
    return open_target()


def make_random_attention_case(
    number: int, version: Version, sm: int, *, backward: bool, fp8: bool | None = None, known_issues: bool = False
) -> AttentionCase:
    """Return random case `number` for a version and GPU, without reference results; by default without known issues."""
    rng = np.random.default_rng([number, backward, 7])
    while True:
        problem = make_random_attention_problem(rng, backward=backward, tiny=False, fp8=fp8)
        if known_issues or not any(
            find_measured_issues(
                AttentionUse(problem, backward, choose_composite_attention_form(number, version), version, sm)
            )
        ):
            break
    if problem.dropout:
        problem = replace(problem, rng_dump=bool(number % 4))
    return make_attention_case(problem, rng, backward=backward)


def choose_composite_attention_form(number: int, version: Version) -> Form:
    """Return the form of the composite graph for case `number`: both forms in turn where cuDNN has two."""
    return "single operations" if number % 2 and version >= (9, 21, 0) else "expanded"


def build_first_plan(graph: Graph) -> Any:
    """Return the plan of the first engine config that can be built, or cuDNN's message if there is none."""
    try:
        question = OperationGraph(graph, _open_target())
    except CudnnStatusError as error:
        return error.headline
    answer = question.heuristics("A", reasons=True)
    words = answer.answer.text.splitlines()[:1]
    for config in answer.configs:
        try:
            return build_plan(config)
        except CudnnStatusError as error:
            words.append(f"{config.tag}: {error.headline}")
    return " | ".join(words) or "no config"


def make_buffers(graph: Graph, numbers: dict[str, NDArray[np.float64]]) -> dict[str, NDArray[Any]]:
    """Return the arrays for `execute`: inputs encoded in their types, outputs filled with NaN."""
    arrays: dict[str, NDArray[Any]] = {}
    for tensor in graph.variant_pack_tensors:
        if tensor.name in numbers:
            arrays[tensor.name] = encode(numbers[tensor.name], tensor.data_type)
    return arrays


def execute_attention_case(case: AttentionCase, graph: Graph, plan: Any) -> dict[str, NDArray[np.float64]]:
    """Execute the plan of a case and return the outputs as float64 arrays."""
    arrays = make_buffers(graph, case.make_inputs_of_graph(graph))
    for tensor in graph.outputs:
        shape: Any = tensor.dims
        if tensor.ragged_offset is not None:
            shape = int(case.values[tensor.ragged_offset.name].max())
        arrays[tensor.name] = encode(np.full(shape, np.nan), tensor.data_type)
        assert arrays[tensor.name].dtype == get_storage_type(tensor.data_type)
    execute(plan, arrays)
    return {tensor.name: decode(arrays[tensor.name], tensor.data_type) for tensor in graph.outputs}


def run_attention_case(
    number: int, backward: bool, fp8: bool | None = None, known_issues: bool = False
) -> list[AttentionRun]:
    """Run the composite graph of a case, and the unified one if cuDNN has it; `known_issues` allows known issues."""
    version = _open_target().library.version
    case = make_random_attention_case(
        number, version, _open_target().sm, backward=backward, fp8=fp8, known_issues=known_issues
    )
    single = version if choose_composite_attention_form(number, version) == "single operations" else None
    forms = [("composite", single)]
    if not case.problem.dropout_mask and case.problem.scale != "none" and not case.problem.deterministic:
        forms.append(("unified", version))
    runs = []
    for form, chosen in forms:
        label = f"{form}{'' if chosen is None or form == 'unified' else ', single operations'}"
        run = AttentionRun(number, backward, label, case.problem.data_type.name, str(case.problem), "refused")
        shape: Form = "unified" if form == "unified" else choose_composite_attention_form(number, version)
        found = list(find_measured_issues(AttentionUse(case.problem, backward, shape, version, _open_target().sm)))
        if found and not known_issues:
            run.outcome, run.words = "hazard", found[0].code
            runs.append(run)
            continue
        try:
            _run_graph_and_compare_results(case, case.graph(form, chosen, allow_hazards=True), run)
        except Exception as error:  # an error is a result of the run, too
            run.outcome = "refused" if "newer-than-library" in getattr(error, "code", "") else "failed"
            run.words = f"{type(error).__name__}: {error}"[:600]
        runs.append(run)
        if run.outcome == "failed":
            break
    return runs


def _run_graph_and_compare_results(case: AttentionCase, graph: Graph, run: AttentionRun) -> None:
    plan = build_first_plan(graph)
    if isinstance(plan, str):
        run.words = plan
        return
    run.engine = plan.tag
    if not case.expected:
        add_expected_results(case)
    found = execute_attention_case(case, graph, plan)
    run.outcome = "agrees"
    if "rng_dump" in found:
        _compare_dropout_mask(case, found["rng_dump"], run)
    for name, want in case.expected.items():
        _compare_output(case, name, case.unpack_output(name, found[name]), want, run)


def _compare_dropout_mask(case: AttentionCase, dump: NDArray[np.float64], run: AttentionRun) -> None:
    """Compare the dumped dropout mask with the expected one, only in blocks inside the attention window."""
    assert case.mask is not None
    dumped = np.isfinite(dump)
    wrong = float((dump != case.mask)[dumped].mean()) if dumped.any() else 0.0
    run.errors["rng_dump"] = [wrong, wrong]
    if wrong or not dumped.any():
        run.outcome, run.words = "differs", "the dropout mask is not the one drawn by Philox"


def _compare_output(
    case: AttentionCase, name: str, got: NDArray[np.float64], want: NDArray[np.float64], run: AttentionRun
) -> None:
    where = case.make_mask_of_defined_elements(name)
    error = np.abs(got[where] - want[where])
    norm = max(float(np.linalg.norm(want[where])), MIN_ROOT_MEAN_SQUARE * float(np.sqrt(max(1, where.sum()))))
    relative = float(np.linalg.norm(error) / norm) if error.size else 0.0
    run.errors[name] = [float(error.max(initial=0.0)), relative]
    kind = DataType.HALF if name in ("stats", "max", "sum_exp") and not case.problem.is_fp8 else case.problem.data_type
    if not relative <= MAX_FROBENIUS_ERRORS[kind]:
        run.outcome = "differs"
    if not where.all():
        rest = got[~where]
        run.beyond[name] = " ".join(
            word
            for word, there in (
                ("untouched", np.isnan(rest).any()),
                ("zero", (rest == 0).any()),
                ("-inf", np.isneginf(rest).any()),
                ("inf", np.isposinf(rest).any()),
                ("numbers", (np.isfinite(rest) & (rest != 0)).any()),
            )
            if there
        )


def run_attention_cases(tasks: Iterable[CaseRequest], workers: int | None = None) -> list[AttentionRun]:
    """Run cases in child processes, each with its own CUDA context.

    A child that crashes, or loses its context by an illegal address, loses only its current case; another child
    continues with the rest.
    """
    waiting: queue.SimpleQueue[CaseRequest] = queue.SimpleQueue()
    for task in tasks:
        waiting.put(task)
    runs: list[AttentionRun] = []
    count = workers or min(14, os.cpu_count() or 1)
    with ThreadPoolExecutor(count) as pool:
        for done in [pool.submit(_run_queued_cases, waiting, runs) for _ in range(count)]:
            done.result()
    return sorted(runs, key=lambda run: (run.number, run.backward, run.form))


def _run_queued_cases(waiting: queue.SimpleQueue[CaseRequest], runs: list[AttentionRun]) -> None:
    """Pass cases to a child process until all are done; start another child after a crash."""
    child: subprocess.Popen[str] | None = None
    while True:
        try:
            task = waiting.get_nowait()
        except queue.Empty:
            break
        if child is None:
            command = [sys.executable, "-m", "tests.support.attention_runs"]
            environment = {**os.environ, **ONE_THREAD}
            child = subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        answer = _run_case_in_child(child, task)
        found = [AttentionRun(**record) for record in json.loads(answer)] if answer else []
        if not answer:
            words = f"the process died: {child.wait()}"
            found = [AttentionRun(task[0], task[1], "", "", "", "failed", words=words)]
        runs += found
        if any(run.outcome == "failed" for run in found):
            _stop_child(child)
            child = None
    if child is not None:
        _stop_child(child)


def _run_case_in_child(child: subprocess.Popen[str], task: CaseRequest) -> str:
    assert child.stdin is not None
    assert child.stdout is not None
    child.stdin.write(json.dumps(task) + "\n")
    child.stdin.flush()
    return child.stdout.readline()


def _stop_child(child: subprocess.Popen[str]) -> None:
    child.kill()
    for pipe in (child.stdin, child.stdout):
        if pipe is not None:
            pipe.close()
    child.wait()


def _run_attention_cases_from_stdin() -> None:
    """Run each case read from stdin, and print its results as one JSON line."""
    for line in sys.stdin:
        runs = run_attention_case(*json.loads(line))
        print(json.dumps([asdict(run) for run in runs]), flush=True)


if __name__ == "__main__":
    _run_attention_cases_from_stdin()
