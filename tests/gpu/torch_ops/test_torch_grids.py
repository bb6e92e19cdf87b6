"""This package's replacement of ``scaled_dot_product_attention``, on inputs and tolerances of torch's own tests.

The sizes are those of torch's test/test_transformers.py. As there, the reference is math in float32, and an error may
be a multiple of the error of math in the tensors' own type. Where an error is larger, that of torch's cuDNN path must
be too large as well. Only the samples of OpInfo have dropout: its mask is not a result of cuDNN, so no reference can
repeat it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import pytest

from cudnn_backend_py.torch_ops.drop_in import scaled_dot_product_attention
from tests.support.figures import append_measurement_to_run_record

torch: Any = pytest.importorskip("torch", reason="did not run: torch is not installed, and these tests need it")

# torch's factors for flash attention, and its factor for the gradient of a mask.
TOLERANCE_FACTORS = {"out": 4.0, "dq": 180.0, "dk": 16.0, "dv": 4.0, "dmask": 45.0}
RELATIVE_TOLERANCES = {"float16": 1e-3, "bfloat16": 1.6e-2}  # torch.testing's defaults
ABSOLUTE_TOLERANCE = 1e-3  # what test_transformers.py takes for both types
HEAD_COUNTS = ((4, 4), (16, 8), (10, 2))
TYPES = ("float16", "bfloat16")
DENSE_LENGTHS = tuple(itertools.product((4, 143, 2048), (4, 127, 579, 2048)))
MASKED_LENGTHS = ((4, 8), (64, 128), (152, 152), (256, 8), (312, 1024), (408, 512), (1024, 1024), (2048, 64))


class GridAttentionProblem(NamedTuple):
    """Sizes and options of one problem; `scale` None means 1 / sqrt(head_dim), `mask` has the dims of the mask."""

    batch: int
    heads: tuple[int, int]
    seq_q: int
    seq_kv: int
    head_dim: int
    kind: str
    causal: bool = False
    scale: float | None = None
    mask: tuple[int, ...] | None = None


@dataclass
class GridResult:
    """The largest error of a grid of problems, in units of torch's tolerance, and the problems that exceed it."""

    compared: int = 0
    worst: float = 0.0
    only_ours: list[str] = field(default_factory=list)
    both: int = 0
    not_offered_by_torch: int = 0


def list_dense_problems(seq_q: int, seq_kv: int) -> Iterator[GridAttentionProblem]:
    """Yield torch's cases without a mask."""
    for batch, heads, head_dim, kind, causal, is_scaled in itertools.product(
        (1, 8), HEAD_COUNTS, (8, 203, 256), TYPES, (False, True), (False, True)
    ):
        if not causal or seq_q == seq_kv:
            yield GridAttentionProblem(
                batch, heads, seq_q, seq_kv, head_dim, kind, causal, 1 / head_dim if is_scaled else None
            )


def list_masked_problems(seq_q: int, seq_kv: int) -> Iterator[GridAttentionProblem]:
    """Yield torch's cases with a mask that has a gradient."""
    for batch, head_dim, kind, is_scaled, leading in itertools.product(
        (1, 8), (8, 16, 32, 64, 72, 96, 128), TYPES, (False, True), ((), (4,), (1, 4))
    ):
        scale = 1 / head_dim if is_scaled else None
        yield GridAttentionProblem(
            batch, (4, 4), seq_q, seq_kv, head_dim, kind, False, scale, (*leading, seq_q, seq_kv)
        )


def make_random_attention_inputs(case: GridAttentionProblem) -> dict[str, Any]:
    """Return positive q, k and v, and the mask."""
    kind = getattr(torch, case.kind)
    (h_q, h_kv), d = case.heads, case.head_dim
    dims = {"q": (case.batch, h_q, case.seq_q, d), "k": (case.batch, h_kv, case.seq_kv, d)}
    dims["v"] = dims["k"]
    if case.mask:
        dims["mask"] = case.mask
    return {name: torch.rand(dim, device="cuda", dtype=kind, requires_grad=True) for name, dim in dims.items()}


def run_attention(function: Any, case: GridAttentionProblem, inputs: dict[str, Any], d_out: Any) -> dict[str, Any]:
    """Return the output and the gradients of the inputs."""
    options = {"attn_mask": inputs.get("mask"), "is_causal": case.causal, "scale": case.scale}
    q, k, v = inputs["q"], inputs["k"], inputs["v"]
    out = function(q, k, v, enable_gqa=case.heads[0] != case.heads[1], **options)
    gradients = torch.autograd.grad(out, tuple(inputs.values()), d_out.to(out.dtype))
    return {"out": out.detach()} | {f"d{name}": found for name, found in zip(inputs, gradients, strict=True)}


def compute_error_to_tolerance_ratio(found: Any, exact: Any, rounded: Any, factor: float, kind: str) -> float:
    """Return the largest error divided by torch's tolerance; torch accepts results up to 1."""
    ratio = torch.nan_to_num(((exact - rounded) / exact).abs(), nan=RELATIVE_TOLERANCES[kind])
    rtol = factor * max(ratio.max().item(), RELATIVE_TOLERANCES[kind])
    rtol = RELATIVE_TOLERANCES[kind] if rtol > 1e30 else rtol
    atol = factor * max((exact - rounded).abs().max().item(), ABSOLUTE_TOLERANCE)
    return float(((found.float() - exact).abs() / (atol + rtol * exact.abs())).max())


def compare_sdpa_replacement_with_exact_attention(
    run: Callable[..., dict[str, Any]], inputs: dict[str, Any], name: str, tally: GridResult
) -> None:
    """Compare our replacement with exact math; if beyond the tolerance, compare torch's cuDNN backend as well.

    ``run(function, inputs)`` returns the output and the gradients of the inputs by name.
    """
    from torch.nn.attention import SDPBackend, sdpa_kernel

    theirs = torch.nn.functional.scaled_dot_product_attention
    kind = str(inputs["q"].dtype).removeprefix("torch.")
    with sdpa_kernel(SDPBackend.MATH):
        rounded = run(theirs, inputs)
        exact = run(theirs, {part: x.detach().float().requires_grad_() for part, x in inputs.items()})

    def find_errors(found: dict[str, Any]) -> dict[str, float]:
        return {
            x: compute_error_to_tolerance_ratio(found[x], exact[x], rounded[x], TOLERANCE_FACTORS[x], kind)
            for x in exact
        }

    ours = find_errors(run(scaled_dot_product_attention, inputs))
    tally.compared += 1
    tally.worst = max(tally.worst, *ours.values())
    beyond = {x: error for x, error in ours.items() if not error <= 1}
    if not beyond:
        return
    try:
        with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
            cudnn = find_errors(run(theirs, inputs))
    except RuntimeError:  # torch refuses cuDNN for these sizes
        tally.not_offered_by_torch += 1
        return
    if all(not cudnn[x] <= 1 for x in beyond):
        tally.both += 1
        return
    tally.only_ours.append(f"{name}: ours {beyond}, torch with cuDNN {cudnn}")


def run_and_compare_grid_problem(case: GridAttentionProblem, tally: GridResult) -> None:
    """Run one problem of a grid on random inputs, compare it, and add the result to `tally`."""
    inputs = make_random_attention_inputs(case)
    d_out = torch.rand(case.batch, case.heads[0], case.seq_q, case.head_dim, device="cuda").to(inputs["q"].dtype)
    compare_sdpa_replacement_with_exact_attention(
        lambda function, x: run_attention(function, case, x, d_out), inputs, str(case), tally
    )


@pytest.mark.parametrize(("seq_q", "seq_kv"), DENSE_LENGTHS)
def test_dense_attention_grid_is_within_torch_tolerance(seq_q: int, seq_kv: int) -> None:
    torch.manual_seed(0)
    tally = GridResult()
    for case in list_dense_problems(seq_q, seq_kv):
        run_and_compare_grid_problem(case, tally)
    append_measurement_to_run_record(f"torch's dense grid, {seq_q}x{seq_kv}", **_summarize_grid_result(tally))
    assert tally.only_ours == []


@pytest.mark.parametrize(("seq_q", "seq_kv"), MASKED_LENGTHS)
def test_masked_attention_grid_is_within_torch_tolerance(seq_q: int, seq_kv: int) -> None:
    torch.manual_seed(0)
    tally = GridResult()
    for case in list_masked_problems(seq_q, seq_kv):
        run_and_compare_grid_problem(case, tally)
    append_measurement_to_run_record(f"torch's masked grid, {seq_q}x{seq_kv}", **_summarize_grid_result(tally))
    assert tally.only_ours == []


def _summarize_grid_result(tally: GridResult) -> dict[str, float]:
    return {
        "compared": tally.compared,
        "worst": tally.worst,
        "beyond, torch's cuDNN too": tally.both,
        "beyond, torch has no cuDNN path": tally.not_offered_by_torch,
        "beyond, only here": len(tally.only_ours),
    }


@pytest.mark.filterwarnings("ignore::DeprecationWarning:numba")  # which OpInfo imports if it is installed
@pytest.mark.filterwarnings("ignore::UserWarning")  # of torch, why it refuses cuDNN for a sample
@pytest.mark.parametrize("kind", TYPES)
def test_the_samples_of_opinfo_are_within_the_tolerance_of_torch(kind: str) -> None:
    pytest.importorskip("expecttest", reason="did not run: expecttest is not installed, and torch's OpInfo needs it")
    from torch.testing._internal.common_methods_invocations import op_db

    [info] = [op for op in op_db if op.name == "nn.functional.scaled_dot_product_attention"]
    tally = GridResult()
    for sample in info.sample_inputs("cuda", getattr(torch, kind), requires_grad=True):
        tensors = (sample.input, *sample.args, sample.kwargs.get("attn_mask"))
        inputs = {name: x for name, x in zip(("q", "k", "v", "mask"), tensors, strict=True) if x is not None}
        if sample.kwargs["dropout_p"]:
            found = run_opinfo_sample(scaled_dot_product_attention, inputs, sample.kwargs)
            assert all(x.isfinite().all() for x in found.values())
        else:
            run = partial(run_opinfo_sample, options=sample.kwargs)
            compare_sdpa_replacement_with_exact_attention(run, inputs, str(sample.summary()), tally)
    append_measurement_to_run_record(f"torch's OpInfo, {kind}", **_summarize_grid_result(tally))
    assert tally.only_ours == []
    assert tally.compared >= 13


def run_opinfo_sample(function: Any, inputs: dict[str, Any], options: dict[str, Any]) -> dict[str, Any]:
    """Return the output and the gradients of the inputs for a sample of OpInfo."""
    q, k, v, *_ = inputs.values()
    out = function(q, k, v, **options | {"attn_mask": inputs.get("mask")})
    gradients = torch.autograd.grad(out.sum(), tuple(inputs.values()))
    return {"out": out.detach()} | {f"d{name}": found for name, found in zip(inputs, gradients, strict=True)}
