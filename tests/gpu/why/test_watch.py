"""A program watched by `why` on a GPU: the backend torch selects at each call, compiled calls, backend times."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import pytest

from cudnn_backend_py.why import WhyReport, why_not_cudnn
from cudnn_backend_py.why.calls import BACKENDS
from tools.records import sdpa_grid

torch: Any = pytest.importorskip("torch", reason="did not run: torch is not installed, and these tests need it")
F = torch.nn.functional


@pytest.fixture(autouse=True)
def _ignore_warnings() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
        torch._dynamo.reset()


def compute_attention(q: Any, k: Any, v: Any) -> Any:
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def make_random_qkv(dtype: Any = torch.bfloat16, dim: int = 64, **how: Any) -> tuple[Any, Any, Any]:
    torch.manual_seed(0)
    return tuple(torch.randn(2, 8, 256, dim, device="cuda", dtype=dtype, **how) for _ in range(3))


def test_fake_tensors_give_the_same_sdpa_backend_as_real_ones() -> None:
    """`why` queries torch about compiled calls with fake tensors, so both kinds must give the same backend."""
    from cudnn_backend_py.why.calls import TorchCall
    from cudnn_backend_py.why.query_torch import (
        describe_tensor,
        query_backend_choice_with_fake_tensors,
        query_torch,
        read_switches,
    )

    compared = 0
    for case in sdpa_grid.make_sdpa_cases(160)[::2]:
        if "nested" in case or case["device"] != "cuda":
            continue
        made = sdpa_grid.make_sdpa_arguments(case, torch)
        with sdpa_grid.apply_backend_switches(case, torch):
            call = TorchCall(
                q=describe_tensor(made["q"]),
                k=describe_tensor(made["k"]),
                v=describe_tensor(made["v"]),
                mask=None if made["mask"] is None else describe_tensor(made["mask"]),
                dropout=made["dropout"],
                causal=made["causal"],
                gqa=made["gqa"],
                grad_enabled=torch.is_grad_enabled(),
                switches=read_switches(),
            )
            real = query_torch(made["q"], made["k"], made["v"], made["mask"], call)
        again = query_backend_choice_with_fake_tensors(call)
        assert (again.choice, again.cudnn) == (real.choice, real.cudnn), call
        compared += 1
    assert compared > 50


def _run_training_steps(compiled: bool) -> tuple[Any, Any]:
    from torch._dynamo.utils import counters

    torch._dynamo.reset()
    counters.clear()
    layer = torch.compile(compute_attention) if compiled else compute_attention
    q, k, v = make_random_qkv(requires_grad=True)
    for _ in range(3):
        out = layer(q, k, v)
        out.float().square().mean().backward()
    return (out.detach(), q.grad), (dict(counters["graph_break"]), counters["stats"]["unique_graphs"])


@pytest.mark.parametrize("compiled", [False, True])
def test_watching_a_program_does_not_change_its_training(compiled: bool) -> None:
    plain, seen = _run_training_steps(compiled), None
    with why_not_cudnn(run_query=False) as report:
        seen = _run_training_steps(compiled)
    assert seen[1] == plain[1]
    assert all(torch.equal(one, other) for one, other in zip(plain[0][:1], seen[0][:1], strict=True))
    assert torch.allclose(plain[0][1], seen[0][1], atol=1e-3)
    (one,) = report.findings
    assert (one.count, one.compiled, one.call.training) == (3, compiled, True)
    q, k, v = make_random_qkv(requires_grad=True)
    assert one.answer.choice == BACKENDS[torch._fused_sdp_choice(q, k, v, None, 0.0, True)]


def _map_calls_to_failed_conditions(report: WhyReport) -> dict[str, str]:
    return {one.call.q.dtype + str(one.call.q.dims[-1]): one.blocker.gate for one in report.blocked if one.blocker}


def test_failed_conditions_backend_switches_and_times_of_calls_are_reported() -> None:
    with why_not_cudnn(measure=True) as report:
        compute_attention(*make_random_qkv(torch.float32))
        compute_attention(*make_random_qkv(torch.float16, 20))
        with torch.autocast("cuda", dtype=torch.bfloat16):
            compute_attention(*make_random_qkv(torch.float32))
        with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.FLASH_ATTENTION):
            compute_attention(*make_random_qkv(torch.float16, 128))
    gates = _map_calls_to_failed_conditions(report)
    assert (gates["float3264"], gates["float1620"], gates["float16128"]) == ("dtype", "shapes", "disabled")
    cast = next(one for one in report.findings if one.call.autocast)
    assert cast.call.q.dtype == "bfloat16"
    assert cast.answer.choice is not None
    assert all(one.answer.words for one in report.blocked if one.blocker and one.blocker.gate != "order")
    assert all(one.side is not None and one.side.outcome == "supported" for one in report.findings), str(report)
    assert all({"cudnn", "flash"} <= set(one.times) for one in report.findings if one.call.q.dtype != "float32")


def test_calls_with_nested_tensors_get_a_verdict() -> None:
    with why_not_cudnn(run_query=False) as report:
        for layout in (torch.strided, torch.jagged):
            jagged = layout == torch.jagged
            parts = [
                torch.randn(*((length, 8, 64) if jagged else (8, length, 64)), device="cuda", dtype=torch.float16)
                for length in (200, 150)
            ]
            one = torch.nested.nested_tensor(parts, layout=layout)
            one = one.transpose(1, 2) if jagged else one
            F.scaled_dot_product_attention(one, one, one)
    assert {finding.call.q.form: finding.blocker and finding.blocker.gate for finding in report.findings} == {
        "nested": "nested",
        "jagged": "order",
    }
    assert all(finding.answer.choice not in (None, "cudnn") for finding in report.findings)
