"""Run attention with scores far below 0 in every row on this process's GPU, and compare with float64.

Then the log-sum-exp of a row is near the level of its scores. A kernel that uses a score of 0 instead of -inf
computes exp(0 - lse), which overflows if the level is below -88.7, minus the logarithm of the largest float32.

``python -m tools.records.deep_scores logs/NAME.json`` runs all cases and writes the record.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import subprocess
import sys
import time
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cudnn_backend_py import CudnnBackendError, DataType, Graph, open_target, reference
from cudnn_backend_py.graph.attention import Attention, sdpa_backward, sdpa_forward
from cudnn_backend_py.graph.formats import round_to_data_type
from cudnn_backend_py.info import make_measurement_record_header, write_record
from cudnn_backend_py.known_issues import KnownIssueWarning, find_known_issues
from cudnn_backend_py.system.child import ONE_THREAD
from cudnn_backend_py.target import Target
from tools.campaign.plan_check import build_plan_or_get_refusal, run_plan

__all__ = ["SCORE_LEVELS", "VeryLowScoresCase", "make_very_low_scores_cases", "run_very_low_scores_case"]

SCORE_LEVELS = (-20.0, -80.0, -87.0, -90.0, -120.0, -1e3, -1e4)
MASK_NAMES = ("none", "causal", "padding", "shorter", "bias", "causal bias", "deep bias")
ATTENTION_SHAPES = (
    (64, 64), (128, 128), (192, 192), (320, 320), (64, 192), (192, 64), (128, 192), (100, 72), (128, 100),
    (1, 64), (1, 97), (1, 128),
)  # fmt: skip
ERROR_LIMITS = {DataType.HALF: 5e-3, DataType.BFLOAT16: 2e-2}  # relative error of a whole output
RECORD_KIND = "deep-scores"
WORKER_COUNT = 20
_CASES_PER_CHILD = 24  # cases per child process
_LAST_CASE_LIMIT_S = 8.0  # time limit of a case that was started before the deadline
NO_TIME_LIMIT_S = 86_400.0  # no limit: poll() accepts no more than 24 days
FloatArray = NDArray[np.float64]


@dataclass(frozen=True)
class VeryLowScoresCase:
    """An attention graph to run with scores at several levels below 0."""

    backward: bool
    unified: bool
    mask: str
    seq_q: int
    seq_kv: int
    head_dim: int
    data_type: str

    @property
    def name(self) -> str:
        """All fields as one line of text."""
        form = "unified" if self.unified else "composite"
        sizes = f"{self.seq_q}x{self.seq_kv} d{self.head_dim} {self.data_type}"
        return f"{'backward' if self.backward else 'forward'} {form} {self.mask} {sizes}"

    def problem(self) -> Attention:
        """Return the attention problem of the case."""
        options: dict[str, Any] = {"padding": self.mask in ("padding", "shorter")}
        if "causal" in self.mask:
            options["right_bound"] = 0
        if "bias" in self.mask:
            options["bias"] = (1, 1, self.seq_q, self.seq_kv)
        return Attention(
            batch=1, heads=2, seq_q=self.seq_q, seq_kv=self.seq_kv, head_dim=self.head_dim, layout="bhsd", stats=True,
            data_type=DataType[self.data_type], **options,
        )  # fmt: skip

    def graph(self, version: tuple[int, ...]) -> Graph:
        """Return the graph of the case for a cuDNN version."""
        make = sdpa_backward if self.backward else sdpa_forward
        form: Any = "unified" if self.unified else "composite"
        known = version if self.unified else (9, 19, 0)
        return make(self.problem(), implementation=form, version=known, allow_hazards=True)  # type: ignore[arg-type]


def make_very_low_scores_cases(version: tuple[int, ...]) -> list[VeryLowScoresCase]:
    """Return the cases to run with a cuDNN version; cases in unified form only since 9.21."""
    forms = (False, True) if version >= (9, 21, 0) else (False,)
    sizes = ((s_q, s_kv, d) for (s_q, s_kv), d in itertools.product(ATTENTION_SHAPES, (64, 128)))
    return [
        VeryLowScoresCase(backward, unified, mask, *size, kind)
        for size, mask, kind, unified, backward in itertools.product(
            sizes, MASK_NAMES, ("HALF", "BFLOAT16"), forms, (False, True)
        )
    ]


def _make_inputs_with_low_scores(case: VeryLowScoresCase, level: float) -> tuple[dict[str, FloatArray], dict[str, Any]]:
    """Return Q, K, V, dO and bias with every score near `level`, and keyword arguments of the float64 reference."""
    draw = np.random.default_rng([int(-level), case.seq_q, case.seq_kv])
    kind, scale = DataType[case.data_type], case.head_dim**-0.5
    sizes = {"q": case.seq_q, "do": case.seq_q, "k": case.seq_kv, "v": case.seq_kv}
    numbers = {name: draw.normal(size=(1, 2, size, case.head_dim)) for name, size in sizes.items()}
    numbers["q"] *= 0.1
    numbers["k"] *= 0.1
    deep_bias = case.mask == "deep bias"
    part = np.sqrt(-level / scale)
    if not deep_bias:
        numbers["q"][..., 0], numbers["k"][..., 0] = part, -part
    options: dict[str, Any] = {}
    if "bias" in case.mask:
        numbers["bias"] = 0.1 * draw.normal(size=(1, 1, case.seq_q, case.seq_kv)) + (level if deep_bias else 0.0)
    numbers = {name: round_to_data_type(values, kind) for name, values in numbers.items()}
    if "bias" in numbers:
        options["bias"] = numbers["bias"]
    if "causal" in case.mask:
        options["right_bound"] = 0
    if case.problem().padding:
        less = 5 if case.mask == "shorter" and case.seq_kv > 5 else 0
        options |= {"seq_len_q": np.array([case.seq_q]), "seq_len_kv": np.array([case.seq_kv - less])}
    return numbers, options


def _compute_reference_outputs(
    case: VeryLowScoresCase, numbers: dict[str, FloatArray], options: dict[str, Any]
) -> dict[str, FloatArray]:
    """Return the reference outputs; for a backward pass also add O and the statistics to ``numbers``."""
    q, k, v, do = (numbers[name] for name in ("q", "k", "v", "do"))
    made = reference.forward(q, k, v, **options)
    if not case.backward:
        return {"o": made.o, "stats": made.stats}
    numbers["o"] = round_to_data_type(made.o, DataType[case.data_type])
    numbers["stats"] = made.stats.astype(np.float32).astype(np.float64)
    back = reference.backward(q, k, v, numbers["o"], do, numbers["stats"], **options)
    return {"dq": back.dq, "dk": back.dk, "dv": back.dv}


def run_very_low_scores_case(case: VeryLowScoresCase, target: Target) -> dict[str, Any]:
    """Run a case at every level; return "agrees", or the wrong outputs and their known issues."""
    version = target.library.version
    graph = case.graph(version)
    found: dict[str, Any] = {"name": case.name, "case": astuple(case)}
    found["faults"] = sorted({fault.code for fault in find_known_issues(graph, target.sm, version)})
    answer = build_plan_or_get_refusal(graph, target)
    if answer.plan is None:
        return found | {"outcome": "refused", "words": answer.words[-200:]}
    found["engine"], found["levels"] = answer.engine, {}
    try:
        for level in SCORE_LEVELS:
            found["levels"][f"{level:g}"] = _run_and_compare(case, graph, answer.plan, level)
    except CudnnBackendError as error:
        return found | {"outcome": "failed", "words": str(error)[:200]}
    finally:
        answer.plan.close()
    wrong = any(said != "agrees" for said in found["levels"].values())
    return found | {"outcome": "differs" if wrong else "agrees"}


def _run_and_compare(case: VeryLowScoresCase, graph: Graph, plan: Any, level: float) -> str:
    numbers, options = _make_inputs_with_low_scores(case, level)
    wanted = _compute_reference_outputs(case, numbers, options)
    lengths = {name: options[name].reshape(1, 1, 1, 1) for name in ("seq_len_q", "seq_len_kv") if name in options}
    given: dict[str | int, Any] = {}
    for tensor in graph.variant_pack_tensors:
        values = (numbers | lengths).get(tensor.name)
        if values is not None and not tensor.by_value:
            given[tensor.uid] = values if values.shape == tensor.dims else values.swapaxes(-1, -2)
            if values.shape == tensor.dims and tensor.rank == 4 and tensor.strides[-2] == 1 < tensor.strides[-1]:
                given[tensor.uid] = values.swapaxes(-1, -2)  # a square tensor that the graph describes as transposed
    results, beyond = run_plan(plan, given)
    words = [f"{name}: memory after it is written" for name in beyond]
    limit = ERROR_LIMITS[DataType[case.data_type]] + abs(level) * 2.0**-20  # scores are float32
    for name, want in wanted.items():
        rows = np.ones(want.shape[2], np.bool_)
        length = lengths.get("seq_len_kv" if name in ("dk", "dv") else "seq_len_q")
        if length is not None:
            rows[int(length.item()) :] = False
        got, want = results[name][:, :, rows], want[:, :, rows]
        lost = ~np.isfinite(got) & np.isfinite(want)
        if lost.any():
            words.append(f"{name}: {int(lost.sum())} of {lost.size} are no numbers")
            continue
        if name in ("dq", "dk"):  # the first column of Q and K sets the level; its gradient cancels
            got, want = got[..., 1:], want[..., 1:]
        kept = np.isfinite(want)
        size = max(float(np.sqrt(np.mean(np.square(want[kept])))), 1e-3)
        off = float(np.sqrt(np.mean(np.square(got[kept] - want[kept])))) / size
        if off > limit:
            words.append(f"{name}: off by {off:.2g}")
    return "; ".join(words) or "agrees"


# runs in child processes


def run_cases_in_children(
    cases: Iterable[VeryLowScoresCase], workers: int = WORKER_COUNT, seconds: float = NO_TIME_LIMIT_S
) -> Iterator[dict[str, Any]]:
    """Yield the results of cases from child processes, a few cases each, until the deadline."""
    todo, until = list(cases), time.monotonic() + seconds
    parts = [todo[start : start + _CASES_PER_CHILD] for start in range(0, len(todo), _CASES_PER_CHILD)]
    with ThreadPoolExecutor(workers) as pool:
        for found in pool.map(lambda part: _run_case_groups_in_children(part, until), parts):
            yield from found


def _run_case_groups_in_children(cases: list[VeryLowScoresCase], until: float) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    while len(found) < len(cases) and (seconds := until - time.monotonic()) > 0:
        left = json.dumps([astuple(case) for case in cases[len(found) :]])
        options = ["--cases", left, "--seconds", str(seconds)]
        child = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-m", "tools.records.deep_scores", *options],
            env={**os.environ, **ONE_THREAD}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        try:
            said, errors = child.communicate(timeout=seconds + _LAST_CASE_LIMIT_S)
        except subprocess.TimeoutExpired:
            child.kill()
            said, errors = child.communicate()
        found += [json.loads(line) for line in said.splitlines() if line.startswith("{")]
        if child.returncode and len(found) < len(cases):
            name, ended = cases[len(found)].name, "timed out" if child.returncode < 0 else "crashed"
            found.append({"name": name, "faults": [], "outcome": ended, "words": errors[-300:]})
    return found


def make_low_scores_record(found: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the data to store in logs/: counts of cases, and every case that does not agree with the reference."""
    wrong = [item for item in found if item["outcome"] not in ("agrees", "refused")]
    facts = ("cudnn_backend_py", "python", "cudnn", "built for CUDA", "driver version", "gpus")
    return {
        **make_measurement_record_header(RECORD_KIND, facts),
        "levels": SCORE_LEVELS,
        "outcomes": dict(Counter(item["outcome"] for item in found)),
        "engines": dict(Counter(item.get("engine", "").partition("_")[0] for item in found)),
        "named": dict(Counter(", ".join(item["faults"]) or "nothing names it" for item in wrong)),
        "refused": dict(Counter(item["words"][-120:] for item in found if item["outcome"] == "refused")),
        "wrong": [{key: value for key, value in item.items() if key != "case"} for item in wrong],
    }


def main() -> None:
    """Run the cases that a parent process passes, or run all cases and write a record."""
    parser = argparse.ArgumentParser(description="Run attention with scores far below 0 on this GPU.")
    parser.add_argument("record", nargs="?", type=Path)
    parser.add_argument("--cases", help="cases as JSON, for a child process")
    parser.add_argument("--every", type=int, default=1, help="run only every n-th case")
    parser.add_argument("--workers", type=int, default=WORKER_COUNT)
    parser.add_argument(
        "--seconds", type=float, default=NO_TIME_LIMIT_S, help="seconds after which no further case is started"
    )
    arguments = parser.parse_args()
    warnings.simplefilter("ignore", KnownIssueWarning)
    target = open_target()
    if arguments.cases:
        until = time.monotonic() + arguments.seconds
        for one in json.loads(arguments.cases):
            if time.monotonic() > until:
                return
            said = run_very_low_scores_case(VeryLowScoresCase(*one), target)
            print(json.dumps(said), flush=True)
            if said["outcome"] == "failed":  # the context may be lost: another child runs the rest
                return
        return
    cases = make_very_low_scores_cases(target.library.version)[:: arguments.every]
    target.close()
    random.Random(0).shuffle(cases)  # so that cases of every kind run before the time is over
    record = make_low_scores_record(list(run_cases_in_children(cases, arguments.workers, arguments.seconds)))
    write_record(record, arguments.record)
    print(json.dumps({key: record[key] for key in ("outcomes", "named", "engines")}))


if __name__ == "__main__":
    main()
