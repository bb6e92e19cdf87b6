"""The examples of operations run on this GPU and agree with the interpreter, or report which cuDNN they need."""

from __future__ import annotations

import importlib.util
import re

import pytest

from cudnn_backend_py import library
from tests.support.child import ROOT, run_python
from tests.support.figures import append_measurement_to_run_record
from tests.support.gpu_requirements import assert_program_succeeded

MAX_ERRORS = {  # of each output, relative to its size
    "conv_bias_relu": {"y": 2e-3},
    "layer_norm": {"y": 2e-3, "y.mean": 1e-5, "y.inv_variance": 1e-5},
    "batch_norm": {"y": 2e-3, "y.mean": 1e-5, "y.inv_variance": 1e-4, "y.next_mean": 1e-5, "y.next_var": 1e-4},
    "residual_block": {"y": 2e-3},
    "quantized_matmul": {"y": 4e-2, "amax": 1e-3},
    "moe_layer": {"y": 2e-3},
    "rope_attention": {"o": 3e-3},
}
NEEDED_VERSIONS = {"rope_attention": ((9, 24, 0), "CUDNN_BACKEND_OPERATION_ROPE_FWD_DESCRIPTOR needs cuDNN 9.24.0")}
REPORTED_ERROR_PATTERN = re.compile(r"error of (\S+) (\S+) of its size")


@pytest.mark.parametrize("name", MAX_ERRORS)
def test_example_results_agree_with_the_interpreter(name: str) -> None:
    since, words = NEEDED_VERSIONS.get(name, ((9, 0, 0), ""))
    done = run_python([str(ROOT / "examples" / f"{name}.py")])
    assert_program_succeeded(done)
    if library().version < since:
        assert words in done.stdout
        return
    found = {output: float(error) for output, error in REPORTED_ERROR_PATTERN.findall(done.stdout)}
    append_measurement_to_run_record("example", example=name, errors=found)
    assert set(found) == set(MAX_ERRORS[name])
    assert {output: error for output, error in found.items() if not error <= MAX_ERRORS[name][output]} == {}


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="the program uses memory of torch")
def test_the_level0_execute_example_runs_a_plan() -> None:
    done = run_python([str(ROOT / "examples" / "level0_execute.py")])
    assert_program_succeeded(done)
    [(_, error)] = REPORTED_ERROR_PATTERN.findall(done.stdout)
    append_measurement_to_run_record("example", example="level0_execute", errors={"C": float(error)})
    assert float(error) <= 2e-3
