"""The accuracy to expect from a run on random data, with special rules for attention and for extreme data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...graph import Graph
from ...graph.attention.recognize import read_attention
from ...graph.formats import round_to_data_type
from ...interpreter import interpret
from ...known_issues import AttentionUse
from .bound import Arithmetic, ExpectedOutput, compute_expected_outputs
from .perturbed_run import run_in_float32
from .rules import get_unit_roundoff

__all__ = ["compute_expectation"]

NumberArray = NDArray[Any]
HOSTILE_BOUND_FACTOR = 8.0  # how many times wider the bound of hostile data is: terms of very different sizes


def compute_expectation(
    graph: Graph, kind: str, inputs: Mapping[str | int, NumberArray], seed: int, arithmetic: Arithmetic | None
) -> dict[str, ExpectedOutput]:
    """Return the expected values of a graph's outputs, with error bounds for this kind of data.

    Of hostile data nothing is said where the exact result is none that is allowed, as where an operation between the
    others overflows, or numbers that cancel each other are large: what is right there hangs on every rounding. Outside
    attention the same holds of results in float32, step by step, with denormal numbers or 0 in their place.
    """
    use = read_attention(graph)
    expected = compute_expected_outputs(graph, inputs, arithmetic=None if kind == "hostile" else arithmetic, seed=seed)
    if kind == "hostile":
        others = [interpret(graph, inputs)] + ([] if use is not None else run_in_float32(graph, inputs))
        for name, item in expected.items():
            wide = replace(item, spread=HOSTILE_BOUND_FACTOR * item.spread)
            center = round_to_data_type(item.center, item.tensor.data_type)
            near = item.defined
            for results in others:
                held = round_to_data_type(results[name].astype(float), item.tensor.data_type)
                with np.errstate(invalid="ignore"):
                    inside = np.abs(held - item.center) <= wide.bounds()
                near = near & (inside | (held == center) | (np.isnan(held) & np.isnan(center)))
            expected[name] = replace(wide, defined=near)
    return expected if use is None else _adapt_expected_outputs_to_attention(graph, use, inputs, expected)


_OUTPUTS_WITH_LENGTH = {"seq_len_q": ("o", "stats", "max", "sum_exp", "dq"), "seq_len_kv": ("dk", "dv")}


def _adapt_expected_outputs_to_attention(
    graph: Graph, use: AttentionUse, inputs: Mapping[str | int, NumberArray], expected: dict[str, ExpectedOutput]
) -> dict[str, ExpectedOutput]:
    """Adapt the expected values to attention: no values beyond sequence lengths, gradients are rounded twice.

    dS cancels where one key has all the probability: what is left are roundings of products of dO, V and K. Forward,
    probabilities below the least normal float32 may be 0, each of them.
    """
    tensors, problem, backward = {tensor.name: tensor for tensor in graph.tensors}, use.problem, use.backward
    floor = 0.0
    if not backward and "v" in tensors:
        size = np.abs(inputs[tensors["v"].uid])
        floor = 2.0**-126 * problem.seq_kv / (1 - problem.dropout) * float(size[np.isfinite(size)].max(initial=0.0))
    if backward:
        sizes = [np.abs(inputs[tensors[name].uid]) for name in ("do", "v", "k") if name in tensors]
        floor = 2.0**-20 * float(np.prod([size[np.isfinite(size)].max(initial=0.0) for size in sizes]))
    for name, item in expected.items():
        spread, defined = 2 * item.spread + floor, item.defined
        if backward:
            spread = spread + np.abs(np.nan_to_num(item.center)) * get_unit_roundoff(item.tensor.data_type)
        for length, names in _OUTPUTS_WITH_LENGTH.items():
            if name in names and length in tensors and item.tensor.ragged_offset is None:
                rows = np.arange(item.tensor.dims[2]).reshape(1, 1, -1, 1)
                defined = defined & (rows < inputs[tensors[length].uid].reshape(-1, 1, 1, 1))
        expected[name] = replace(item, spread=spread, defined=defined)
    return expected
