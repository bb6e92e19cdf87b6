"""Every known issue of attention (cuDNN accepts the graph, the result is wrong) as a small problem.

Run it from the root of the repository, because the problems are in ``tests/known_issues``:

python -m examples.attention_known_issues                  # a table of issues; with a GPU, the result of each
python -m examples.attention_known_issues dsink-dropout    # one issue
python -m examples.attention_known_issues dsink-dropout --here    # in this process, for a debugger or compute-sanitizer
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Column, Table

from cudnn_backend_py import CudnnBackendError, DataType, Graph, attention, reference
from cudnn_backend_py.graph import Tensor
from cudnn_backend_py.graph.formats import decode, encode, round_to_data_type
from cudnn_backend_py.interpreter.philox import dropout_mask
from cudnn_backend_py.known_issues import FAULTS
from tests.known_issues import BASE_OPTIONS, EXAMPLES, Reproduction

Array = NDArray[np.float64]
Arrays = dict[str | int, NDArray[Any]]


# Keyed by the known issue's code; a suffix after a colon distinguishes several reproductions of one issue.
REPRODUCTIONS: dict[str, Reproduction] = {
    f"{issue.code}:{name}" if name else issue.code: made
    for issue in attention.HAZARDS
    for name, made in EXAMPLES[issue.code].reproductions.items()
    if isinstance(made, Reproduction)
}

# The same for the other known issues, and for the graphs that work around an issue; used by tests.
OTHERS: dict[str, Reproduction] = {
    f"{row.code}:{name}" if name else row.code: made
    for row in FAULTS
    for examples in (EXAMPLES[row.code],)
    for name, made in {**({} if row.refused else examples.reproductions), "fixed": examples.fixed}.items()
    if isinstance(made, Reproduction)
}

POISON = -80.0  # initial value of output memory; every data type can represent it
FACTORS = {"s": 64.0, "dp": 16.0, "o": 4.0, "dq": 4.0, "dk": 4.0}  # FP8 scales other than 1
ROUNDING = {
    DataType.HALF: 1e-3,
    DataType.FP8_E4M3: 0.06,
}  # relative Frobenius errors up to which a difference is rounding


def get_reproduction(name: str) -> Reproduction:
    """Return the options and direction of a reproduction, or of a graph that works around the issue."""
    return REPRODUCTIONS.get(name) or OTHERS[name]


def make_reproduction_problem(name: str) -> attention.Attention:
    """Return the attention problem of a reproduction."""
    return attention.Attention(**{**BASE_OPTIONS, **get_reproduction(name).options})


def make_reproduction_graph(name: str, *, allow_hazards: bool = True) -> Graph:
    """Return the graph of a reproduction, which this package refuses to build without `allow_hazards`."""
    backward, _, implementation, version = get_reproduction(name)
    make = attention.sdpa_backward if backward else attention.sdpa_forward
    return make(
        make_reproduction_problem(name), implementation=implementation, version=version, allow_hazards=allow_hazards
    )


class ReferenceData:
    """Random inputs for every tensor of a problem, and the float64 reference of its outputs."""

    def __init__(self, p: attention.Attention, backward: bool) -> None:
        self.p = p
        rng = np.random.default_rng(0)
        short = np.arange(p.batch)[::-1] if p.padding else np.zeros(p.batch, int)  # the last sequence is the longest
        self.lengths, self.lengths_kv = np.maximum(1, p.seq_q - 31 * short), p.seq_kv - 17 * short
        self.values: dict[str, Any] = {
            name: round_to_data_type(rng.standard_normal(p.dims(name)), p.data_type) for name in ("q", "k", "v", "do")
        }
        self.inputs = [self.values[name] for name in ("q", "k", "v")]
        if p.page_size is not None:  # the pages are in order
            self.inputs[1:] = [self._add_page_table(name) for name in ("k", "v")]
        for name in ("q", "k", "v", "o", "stats"):
            starts = np.concatenate([[0], np.cumsum(self.get_sequence_lengths(name))])
            self.values[f"ragged_{name}"] = (starts * p.strides(name)[2]).reshape(-1, 1, 1, 1)
        for name in ("q", "k", "v", "do", "dv", *FACTORS):
            self.values[f"scale_{name}"] = np.full((1, 1, 1, 1), FACTORS.get(name, 1.0))
            self.values[f"descale_{name}"] = 1 / self.values[f"scale_{name}"]
        self.expected = (
            self._compute_backward_reference(self._make_reference_options(rng))
            if backward
            else self._compute_forward_reference(self._make_reference_options(rng))
        )

    def _add_page_table(self, name: str) -> Array:
        """Add the page table of K or V, and return its pages as one tensor [b, h, s, d]."""
        p = self.p
        pages, heads, size, dim = p.dims(name)
        self.values[f"page_table_{name}"] = np.arange(pages).reshape(p.batch, 1, -1, 1)
        whole: Array = self.values[name].reshape(p.batch, -1, heads, size, dim).swapaxes(1, 2)
        return whole.reshape(p.batch, heads, -1, dim)[:, :, : p.seq_kv]

    def get_sequence_lengths(self, name: str) -> NDArray[np.int64]:
        """Return the sequence lengths of a tensor."""
        found: NDArray[np.int64] = self.lengths_kv if name.removeprefix("d") in ("k", "v") else self.lengths
        return found

    def _make_reference_options(self, rng: np.random.Generator) -> dict[str, Any]:
        """Add the inputs that the problem's options need and return the options of the reference."""
        p, values = self.p, self.values
        scores = (p.batch, p.heads, p.seq_q, p.seq_kv)
        options: dict[str, Any] = {name: getattr(p, name) for name in ("left_bound", "right_bound", "alignment")}
        if p.padding:
            lengths = {"seq_len_q": self.lengths, "seq_len_kv": self.lengths_kv}
            values |= {name: value.reshape(-1, 1, 1, 1) for name, value in lengths.items()}
            options |= lengths
        if p.bias is not None:
            options["bias"] = values["bias"] = round_to_data_type(rng.standard_normal(p.bias), p.data_type)
        if p.alibi:
            options["alibi_slopes"] = values["alibi_slopes"] = reference.alibi_slopes(p.heads)
        if p.sink:
            options["sink"] = values["sink"] = rng.standard_normal((1, p.heads, 1, 1)).astype(np.float32)
        if p.dropout:
            values["dropout_seed"] = values["dropout_offset"] = np.full((1, 1, 1, 1), 7)
            options |= {"dropout_mask": dropout_mask(7, 7, scores, 1 - p.dropout), "dropout_scale": 1 / (1 - p.dropout)}
        if p.dropout_mask:
            values["dropout_mask"], values["dropout_scale"] = rng.integers(0, 2, scores), np.full((1, 1, 1, 1), 2.0)
            options |= {"dropout_mask": values["dropout_mask"], "dropout_scale": 2.0}
        if isinstance(p.score_modifier, attention.SoftCap):
            options["score_modifier"] = ArraySoftCap(p.score_modifier.cap)
        return options

    def _compute_forward_reference(self, options: dict[str, Any]) -> dict[str, Array]:
        exact = reference.forward(*self.inputs, **options)
        found = {name: getattr(exact, name) for name in ("stats", "max", "sum_exp")}
        return found | {"o": exact.o * self._get_output_scale("o")}

    def _compute_backward_reference(self, options: dict[str, Any]) -> dict[str, Array]:
        """Return the reference of a backward pass; its inputs o and stats are those of the reference, rounded."""
        values, scale = self.values, self._get_output_scale("o")
        exact = reference.forward(*self.inputs, **options)
        values["o"], values["stats"] = round_to_data_type(exact.o * scale, self.p.data_type), exact.stats
        outputs = (values["o"] / scale, values["do"], values["stats"])
        gradient = reference.backward(*self.inputs, *outputs, **options)
        found = {name: getattr(gradient, name) * self._get_output_scale(name) for name in ("dq", "dk", "dv")}
        return found | ({} if gradient.dsink is None else {"dsink": gradient.dsink})

    def _get_output_scale(self, name: str) -> float:
        return FACTORS.get(name, 1.0) if self.p.is_fp8 else 1.0

    def make_buffer(self, tensor: Tensor) -> NDArray[Any]:
        """Return an array for `execute`: an encoded input, or an output filled with ``POISON``."""
        size = None if tensor.ragged_offset is None else int(self.values[tensor.ragged_offset.name].max())
        if tensor.name not in self.values:
            return encode(np.full(tensor.dims if size is None else size, POISON), tensor.data_type)
        value = self.values[tensor.name]
        if size is not None:
            offsets = self.values[tensor.ragged_offset.name] if tensor.ragged_offset else 0
            value = reference.ragged_pack(
                value, self.get_sequence_lengths(tensor.name), offsets, self.p.strides(tensor.name), size
            )
        elif tensor.name in ("k", "v") and tensor.strides != self.p.strides(tensor.name):  # s and d swapped
            value = value.swapaxes(2, 3)
        return encode(value, tensor.data_type)

    def decode_output(self, tensor: Tensor, memory: NDArray[Any]) -> Array:
        """Return the numbers of an output as a flat array, without rows after the end of a sequence."""
        got: Array = decode(memory, tensor.data_type)
        if tensor.ragged_offset is not None:
            offsets = self.values[tensor.ragged_offset.name]
            dims, strides = self.expected[tensor.name].shape, self.p.strides(tensor.name)
            got = reference.ragged_unpack(got, offsets, self.get_sequence_lengths(tensor.name), dims, strides)
        return self.select_rows_inside_lengths(tensor.name, got)

    def select_rows_inside_lengths(self, name: str, dense: Array) -> Array:
        """Return the rows inside the sequence lengths as a flat array."""
        if dense.shape[0] != self.p.batch:
            return dense.reshape(-1)
        real: Array = np.concatenate(
            [entry[:, :length].ravel() for entry, length in zip(dense, self.get_sequence_lengths(name), strict=True)]
        )
        return real


class ArraySoftCap:
    """The soft cap :class:`attention.SoftCap`, evaluated on NumPy arrays."""

    def __init__(self, cap: float) -> None:
        self.cap = cap

    def forward(self, score: Array) -> Array:
        """Return the capped scores."""
        return self.cap * np.tanh(score / self.cap)

    def backward(self, d_score: Array, score: Array) -> Array:
        """Return the gradient of the scores."""
        scaled: Array = d_score * (1 - np.tanh(score / self.cap) ** 2)
        return scaled


def compare_reproduction_with_reference(name: str, run: Callable[[Arrays], None]) -> str:
    """Compare the output of ``run`` for a reproduction with the reference; return the differences as text."""
    return compare_graph_results_with_reference(
        make_reproduction_graph(name),
        ReferenceData(make_reproduction_problem(name), get_reproduction(name).backward),
        run,
    )


def compare_graph_results_with_reference(made: Graph, numbers: ReferenceData, run: Callable[[Arrays], None]) -> str:
    """Compare the output of ``run`` for an attention graph with the expected numbers; return differences as text."""
    arrays: Arrays = {
        tensor.name: numbers.make_buffer(tensor)
        for tensor in made.variant_pack_tensors
        if not (tensor.scratch or tensor.by_value)
    }
    run(arrays)
    errors = {
        tensor.name: describe_error(
            numbers.decode_output(tensor, arrays[tensor.name]),
            numbers.select_rows_inside_lengths(tensor.name, numbers.expected[tensor.name]),
            numbers.p,
        )
        for tensor in made.outputs
        if tensor.name in numbers.expected
    }
    return "; ".join(f"{name}: {words}" for name, words in errors.items() if words) or "agrees"


def describe_error(got: Array, want: Array, p: attention.Attention) -> str:
    """Return the error of an output as text, empty if the output is right."""
    if (got == POISON).all():
        return "memory not written"
    if np.isnan(got).any():
        return f"NaN ({np.isnan(got).mean():.0%})"
    size = max(float(np.linalg.norm(want)), 0.01 * float(np.sqrt(want.size)))
    error = float(np.linalg.norm(got - want)) / size
    return "" if error <= ROUNDING[p.data_type] else f"relative error {error:.2g}"


def run_reproduction_in_this_process(name: str) -> str:
    """Run a reproduction on this process's GPU and return the result; the process may crash."""
    from cudnn_backend_py import EnvironmentNotReady, OperationGraph, build_plan, execute, open_target

    try:
        configs = OperationGraph(make_reproduction_graph(name), open_target()).heuristics("A").configs
        if not configs:
            return "refused by cuDNN"
        plan = build_plan(configs[0])
        return compare_reproduction_with_reference(name, lambda arrays: execute(plan, arrays))
    except EnvironmentNotReady:
        raise
    except CudnnBackendError as error:
        return "illegal address" if "ILLEGAL_ADDRESS" in str(error) else str(error)


def run_reproduction_in_child_process(name: str) -> str:
    """Run a reproduction in a child process, and return the result."""
    program = [sys.executable, "-m", "examples.attention_known_issues", name, "--here"]
    done = subprocess.run(program, cwd=Path(__file__).parents[1], capture_output=True, text=True, timeout=300)
    if done.returncode < 0:
        return f"process ended by signal {-done.returncode}"
    lines = (done.stdout if done.returncode == 0 else done.stderr).strip().splitlines()
    return lines[-1] if lines else f"exit code {done.returncode}"


def find_known_issue(name: str) -> attention.KnownIssue:
    """Return the known issue that a reproduction shows."""
    return next(issue for issue in FAULTS if issue.code == name.partition(":")[0])


def format_affected_versions(issue: attention.KnownIssue) -> str:
    """Return the cuDNN versions that have the issue, as text."""
    return issue.version_range_text.removeprefix("cuDNN ")


def make_known_issue_table(codes: Sequence[str]) -> Table:
    """Return a table of the known issues with these codes."""
    made = Table(Column("code", no_wrap=True), "what", "effect", "evidence", "versions", "seen on", show_lines=True)
    for issue in map(find_known_issue, codes):
        architectures = ", ".join(f"sm_{sm}" for sm in issue.sm)
        made.add_row(
            issue.code, issue.what, issue.effect, issue.evidence, format_affected_versions(issue), architectures
        )
    return made


def make_result_table(names: Sequence[str]) -> Table:
    """Run reproductions, and return a table of their results."""
    made = Table(Column("code", no_wrap=True), "what", "effect", "seen here", show_lines=True)
    with ThreadPoolExecutor(8) as pool:
        for name, words in zip(names, pool.map(run_reproduction_in_child_process, names), strict=True):
            made.add_row(name, find_known_issue(name).what, find_known_issue(name).effect, words)
    return made


def main() -> None:
    """Run the known issue with the given code, or all of attention; without a GPU, describe them."""
    from cudnn_backend_py import EnvironmentNotReady, open_target

    parser = argparse.ArgumentParser(description="What cuDNN accepts and then gets wrong.")
    known_names = {**REPRODUCTIONS, **OTHERS}
    parser.add_argument("name", metavar="CODE", nargs="?", choices=known_names, help=", ".join(REPRODUCTIONS))
    parser.add_argument("--here", action="store_true", help="run CODE in this process, which may crash")
    arguments = parser.parse_args()
    names = [arguments.name] if arguments.name else list(REPRODUCTIONS)
    if arguments.here:
        try:
            print(*map(run_reproduction_in_this_process, names), sep="\n")
        except EnvironmentNotReady as error:
            raise SystemExit(str(error)) from None
        return
    try:
        open_target().close()
    except EnvironmentNotReady as error:
        print(error)
        Console().print(make_known_issue_table(list(dict.fromkeys(name.partition(":")[0] for name in names))))
        return
    Console().print(make_result_table(names))


if __name__ == "__main__":
    main()
