"""Attention on the GPU: random problems compared with float64, dropout, determinism, memory, and torch's errors."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from collections import Counter, defaultdict
from dataclasses import asdict
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from cudnn_backend_py import DataType, Graph, OperationGraph, attention, build_plan, execute, open_target, reference
from cudnn_backend_py.graph.formats import decode, encode
from cudnn_backend_py.interpreter.philox import dropout_mask
from cudnn_backend_py.target import Target
from tests.support.attention_runs import MAX_FROBENIUS_ERRORS, AttentionRun, run_attention_cases
from tests.support.figures import append_measurement_to_run_record
from tests.support.gpu_requirements import (
    are_expectations_measured_on_this_gpu,
    find_first_engine_config,
    get_minimum_expected_count_on_this_gpu,
    skip_if_support_not_measured_on_this_gpu,
)
from tests.support.torch_attention import compare_with_torch_flash_attention

CASE_COUNT = 450
WRONG_OUTCOMES = ("differs", "failed")


@pytest.fixture(scope="module")
def gpu() -> Any:
    target = open_target()
    yield target
    target.close()


@pytest.fixture(scope="module")
def random_problem_runs() -> list[AttentionRun]:
    """Run every random problem, forward and backward, in each form that this cuDNN has for it."""
    found = run_attention_cases(
        [(number, backward, None, False) for number in range(CASE_COUNT) for backward in (False, True)]
    )
    for backward in (False, True):
        worst: dict[str, dict[str, list[float]]] = defaultdict(dict)
        for run in found:
            for name, (largest, relative) in run.errors.items() if run.backward is backward else ():
                held = worst[run.data_type].setdefault(name, [0.0, 0.0])
                worst[run.data_type][name] = [max(held[0], largest), max(held[1], relative)]
        outcomes = Counter(f"{run.form}: {run.outcome}" for run in found if run.backward is backward)
        append_measurement_to_run_record(
            f"random attention problems, {'backward' if backward else 'forward'}",
            problems=CASE_COUNT,
            outcomes=dict(sorted(outcomes.items())),
            largest_error_and_relative_frobenius=dict(worst),
            wrong=[asdict(run) for run in found if run.backward is backward and run.outcome in WRONG_OUTCOMES],
        )
    return found


@pytest.mark.parametrize("backward", [False, True], ids=["forward", "backward"])
def test_random_problems_agree_with_float64(random_problem_runs: list[AttentionRun], backward: bool) -> None:
    mine = [run for run in random_problem_runs if run.backward is backward]
    wrong = [run for run in mine if run.outcome in WRONG_OUTCOMES]
    assert not wrong, "\n".join(
        f"{run.number} {run.form} {run.engine} {run.words} {run.errors} {run.problem}" for run in wrong
    )
    composite = [run for run in mine if run.form.startswith("composite") and run.outcome == "agrees"]
    if not composite:
        skip_if_support_not_measured_on_this_gpu("no composite form of any random problem is supported")
    assert len(composite) >= get_minimum_expected_count_on_this_gpu("random attention problems that agree")
    assert {DataType[run.data_type] for run in composite} == set(
        MAX_FROBENIUS_ERRORS
    ) or not are_expectations_measured_on_this_gpu()


def test_composite_and_unified_attention_both_run_and_agree(random_problem_runs: list[AttentionRun]) -> None:
    """Both forms of a problem agree with the same float64 result, for at least the expected number of problems."""
    agreeing = defaultdict(set)
    for run in random_problem_runs:
        if run.outcome == "agrees":
            agreeing[run.number, run.backward].add(run.form)
    both = [forms for forms in agreeing.values() if "unified" in forms and len(forms) == 2]
    assert len(both) >= get_minimum_expected_count_on_this_gpu("random attention problems that agree in both forms")


# dropout

DROPOUT_PROBLEM = {"batch": 2, "heads": 4, "seq_q": 512, "head_dim": 64, "dropout": 0.1, "rng_dump": True}


def run_graph(graph: Graph, target: Target, arrays: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """Run the first plan of a graph; fill outputs with NaN first and return them."""
    plan = build_plan(find_first_engine_config(graph, target))
    outputs = {tensor.name: encode(np.full(tensor.dims, np.nan), tensor.data_type) for tensor in graph.outputs}
    if "s" in outputs:  # kernels of the backward pass read all of it, those of the forward pass write up to the lengths
        outputs["s"][...] = 0
    execute(plan, {**arrays, **outputs})
    return outputs


def make_dropout_inputs(seed: int, offset: int) -> dict[str, NDArray[Any]]:
    rng = np.random.default_rng(3)
    q, k, v = (rng.standard_normal((2, 4, 512, 64)).astype(np.float16) for _ in range(3))
    scalars = {"dropout_seed": seed, "dropout_offset": offset}
    return {
        "q": q,
        "k": k.swapaxes(2, 3),
        "v": v,
        **{name: np.full((1, 1, 1, 1), value, np.int64) for name, value in scalars.items()},
    }


def test_dropout_uses_philox_and_is_repeatable(gpu: Target) -> None:
    graph = attention.sdpa_forward(**DROPOUT_PROBLEM, stats=True)
    inputs = make_dropout_inputs(99, 5)
    first, again = run_graph(graph, gpu, inputs), run_graph(graph, gpu, inputs)
    for name, value in first.items():
        np.testing.assert_array_equal(value, again[name], err_msg=name)
    mask = first["rng_dump"]
    assert set(np.unique(mask)) == {0.0, 1.0}
    np.testing.assert_array_equal(mask, dropout_mask(99, 5, mask.shape, 0.9))
    sigma = np.sqrt(0.9 * 0.1 / (mask.size / 4))  # numbers of four rows may repeat
    assert abs(mask.mean() - 0.9) < 4 * sigma
    append_measurement_to_run_record(
        "dropout 0.1", keep_rate=float(mask.mean()), sigmas=float(abs(mask.mean() - 0.9) / sigma)
    )
    other = run_graph(graph, gpu, make_dropout_inputs(100, 5))["rng_dump"]
    assert 0.1 < (other != mask).mean() < 0.25


def test_the_backward_pass_draws_the_dropout_mask_of_the_forward_pass(gpu: Target) -> None:
    inputs = make_dropout_inputs(7, 64)
    forward = run_graph(attention.sdpa_forward(**DROPOUT_PROBLEM, stats=True), gpu, inputs)
    inputs |= {"o": forward["o"], "stats": forward["stats"], "v": inputs["v"].swapaxes(2, 3)}
    inputs["do"] = np.random.default_rng(4).standard_normal((2, 4, 512, 64)).astype(np.float16)
    backward = run_graph(attention.sdpa_backward(**DROPOUT_PROBLEM), gpu, inputs)
    np.testing.assert_array_equal(forward["rng_dump"], backward["rng_dump"])


# determinism


@pytest.mark.parametrize("options", [{}, {"causal": True, "kv_heads": 2}], ids=["full", "causal GQA"])
def test_deterministic_backward_repeats_bitwise(gpu: Target, options: dict[str, Any]) -> None:
    sizes = {"batch": 2, "heads": 8, "seq_q": 1024, "head_dim": 128, **options}
    graph = attention.sdpa_backward(**sizes, deterministic=True)
    rng = np.random.default_rng(5)
    arrays: dict[str, NDArray[Any]] = {}
    for tensor in graph.variant_pack_tensors:
        if tensor.name in ("q", "k", "v", "do", "o"):
            arrays[tensor.name] = rng.standard_normal(tensor.dims).astype(np.float16)
    arrays["stats"] = np.full((2, 8, 1024, 1), 9.0, np.float32)
    configs = OperationGraph(graph, gpu).heuristics("A").configs
    if not configs:
        skip_if_support_not_measured_on_this_gpu("no engine config for a deterministic backward pass")
    for config in configs:
        plan = build_plan(config)
        seen = set()
        for _ in range(20):
            outputs = {name: np.full(graph.tensor(name).dims, np.nan, np.float16) for name in ("dq", "dk", "dv")}
            execute(plan, {**arrays, **outputs})
            assert all(np.isfinite(value).all() for value in outputs.values())
            seen.add(b"".join(value.tobytes() for value in outputs.values()))
        assert len(seen) == 1, config.tag
    append_measurement_to_run_record(
        "deterministic backward", runs=20, configs=[config.tag for config in configs], **sizes
    )


# the small-sequence patterns


def make_small_inputs(graph: Graph, shared: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    rng = np.random.default_rng(6)
    written = {tensor.name for tensor in graph.outputs}
    for tensor in graph.variant_pack_tensors:
        if tensor.name in shared or tensor.name in written or tensor.scratch or tensor.value is not None:
            continue
        if tensor.name.startswith("seq_len"):
            value = rng.integers(40, 128, tensor.dims).astype(np.float64)
        elif tensor.name in ("mask", "dropout_mask"):
            value = (rng.random(tensor.dims) < 0.8).astype(np.float64)
        elif tensor.name == "dropout_scale":
            value = np.full(tensor.dims, 1.25)
        elif tensor.name.startswith("dropout_"):
            value = np.full(tensor.dims, 8.0)
        else:
            value = rng.standard_normal(tensor.dims)
        shared[tensor.name] = encode(value, tensor.data_type)
    dims = {tensor.name: tensor.dims for tensor in graph.variant_pack_tensors}
    taken = {name: value for name, value in shared.items() if name in dims}
    return {name: value if value.shape == dims[name] else value.swapaxes(2, 3) for name, value in taken.items()}


SMALL_SEQUENCE_PROBLEMS = {
    "no mask": {},
    "padding, causal": {"padding": True, "causal": True},
    "mask": {"mask": True},
    "bias": {"bias": (1, 4, 128, 128)},
    "given dropout mask": {"dropout_mask": True},
}


@pytest.mark.parametrize("options", SMALL_SEQUENCE_PROBLEMS.values(), ids=SMALL_SEQUENCE_PROBLEMS)
def test_small_sequence_patterns_agree_with_the_interpreter(gpu: Target, options: dict[str, Any]) -> None:
    sizes = {"batch": 2, "heads": 4, "seq_q": 128, **options}
    forward = attention.mha_fprop(**sizes)
    if gpu.library.version >= (9, 25, 0):
        assert OperationGraph(forward, gpu).heuristics("A").configs == []
        assert OperationGraph(attention.mha_bprop(**sizes), gpu).heuristics("A").configs == []
        return
    check_small_attention(gpu, sizes, options)


def check_small_attention(gpu: Target, sizes: dict[str, Any], options: dict[str, Any]) -> None:
    from cudnn_backend_py.interpreter import interpret

    forward, training = attention.mha_fprop(**sizes), attention.mha_fprop(**sizes, store_s=True)
    shared: dict[str, NDArray[Any]] = {}
    arrays = make_small_inputs(forward, shared)
    o = run_graph(forward, gpu, arrays)["o"]
    numbers = {t.name: decode(arrays[t.name], t.data_type) for t in forward.variant_pack_tensors if t.name in arrays}
    want = interpret(forward, dict(numbers))["o"]
    rows = mark_rows_within_length(arrays, want)
    error = float(np.linalg.norm((o.astype(np.float64) - want)[rows]) / np.linalg.norm(want[rows]))
    append_measurement_to_run_record(f"mha_fprop {options}", relative_frobenius=error)
    assert error < 2e-3
    trained = run_graph(training, gpu, arrays)
    np.testing.assert_allclose(trained["o"][rows].astype(np.float64), want[rows], atol=2e-2)
    backward = attention.mha_bprop(**sizes)
    shared["s"] = trained["s"]
    found = run_graph(backward, gpu, make_small_inputs(backward, shared))
    check_small_gradients(options, shared, found)


def check_small_gradients(
    options: dict[str, Any], arrays: dict[str, NDArray[Any]], found: dict[str, NDArray[Any]]
) -> None:
    """Compare gradients with the reference; if the option "mask" is set, only check that all numbers are finite."""
    if "mask" in options:
        assert all(np.isfinite(value).all() for value in found.values())
        return
    known: dict[str, Any] = {"right_bound": 0 if options.get("causal") else None}
    if "padding" in options:
        known |= {name: arrays[name].ravel() for name in ("seq_len_q", "seq_len_kv")}
    if "bias" in options:
        known["bias"] = arrays["bias"]
    if "dropout_mask" in options:
        known |= {"dropout_mask": arrays["dropout_mask"], "dropout_scale": 1.25}
    q, d_o = arrays["q"], arrays["do"]
    k, v = (arrays[name] if arrays[name].shape[3] == 64 else arrays[name].swapaxes(2, 3) for name in ("k", "v"))
    forward = reference.forward(q, k, v, **known)
    gradient = reference.backward(q, k, v, forward.o, d_o, forward.stats, **known)
    for name in ("dq", "dk", "dv"):
        want = getattr(gradient, name)
        lengths = arrays.get("seq_len_q" if name == "dq" else "seq_len_kv", np.full((2, 1, 1, 1), 128))
        rows = np.broadcast_to(np.arange(128)[None, None, :, None] < lengths, want.shape)
        error = float(np.linalg.norm((found[name] - want)[rows]) / np.linalg.norm(want[rows]))
        append_measurement_to_run_record(f"mha_bprop {options}", tensor=name, relative_frobenius=error)
        assert error < 5e-3, name


def mark_rows_within_length(arrays: dict[str, NDArray[Any]], value: NDArray[Any]) -> NDArray[np.bool_]:
    """Return a mask of the rows of an output that are within the sequence length."""
    rows = np.ones(value.shape, bool)
    if "seq_len_q" in arrays:
        rows &= np.arange(value.shape[2])[None, None, :, None] < arrays["seq_len_q"]
    return rows


# torch's results and tools


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="compares with torch, which is not installed")
def test_attention_errors_do_not_exceed_torch_flash_errors() -> None:
    for row in compare_with_torch_flash_attention():
        append_measurement_to_run_record("against torch's flash backend", **row)
        for name, (ours, theirs) in row["relative_frobenius_ours_and_torch"].items():
            assert ours <= 1.05 * theirs, (row, name)


@pytest.mark.skipif(shutil.which("compute-sanitizer") is None, reason="compute-sanitizer is not installed")
def test_compute_sanitizer_finds_no_error_in_attention() -> None:
    command = ["compute-sanitizer", "--tool", "memcheck", "--error-exitcode", "9", sys.executable]
    done = subprocess.run(
        [*command, "-m", "tests.support.compute_sanitizer_runs"],
        capture_output=True,
        text=True,
        check=False,
        env=dict(os.environ),
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
    assert "ERROR SUMMARY: 0 errors" in done.stdout
    append_measurement_to_run_record(
        "compute-sanitizer memcheck", cases=done.stdout.count("agrees"), summary="0 errors"
    )
