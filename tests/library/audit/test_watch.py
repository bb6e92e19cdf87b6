"""Attention calls that are not sampled are counted, passed on unchanged, and invisible to compilers."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch", reason="did not run: torch is not installed, and these tests need it")

from cudnn_backend_py.audit import audit  # noqa: E402
from cudnn_backend_py.audit.budget import Budget  # noqa: E402
from cudnn_backend_py.audit.case import CaseFolder  # noqa: E402
from cudnn_backend_py.audit.report import AuditReport  # noqa: E402
from cudnn_backend_py.audit.watch import RunningAudit  # noqa: E402
from cudnn_backend_py.why.wrapping import FunctionWrapper, _make_wrapper  # noqa: E402

F = torch.nn.functional


def make_random_qkv() -> list[Any]:
    return [torch.randn(1, 2, 8, 4) for _ in range(3)]


@pytest.mark.parametrize(("every", "first"), [(1, 0), (7, 0), (7, 5), (1000, 3)])
def test_all_attention_calls_are_counted_by_the_audit(every: int, first: int, tmp_path: Path) -> None:
    given = make_random_qkv()
    with audit(folder=tmp_path, every=every, first=first, cost=1e-12) as report:  # no further sample is ever paid for
        for _ in range(50):
            F.scaled_dot_product_attention(*given, is_causal=True)
    assert report.calls == 50
    assert not report.sampled
    due = sum(report.unjudged.values()) + sum(report.passed_over.values())
    assert (due == 50) if every == 1 else (max(1, first) <= due < 50)
    assert dict(report.unjudged) == ({"tensors are not on a GPU": first} if first else {})


def test_calls_during_an_audit_pause_are_not_counted_or_sampled(tmp_path: Path) -> None:
    report = AuditReport()
    watch = RunningAudit(1, 1e-12, CaseFolder(tmp_path), report)
    original = F.scaled_dot_product_attention
    watch.start()
    try:
        F.scaled_dot_product_attention(*make_random_qkv())
        with watch.pause():
            assert F.scaled_dot_product_attention is original
            F.scaled_dot_product_attention(*make_random_qkv())
            elapsed = watch._budget.elapsed_s
            assert watch._budget.elapsed_s == elapsed
        F.scaled_dot_product_attention(*make_random_qkv())
    finally:
        watch.stop()
    assert F.scaled_dot_product_attention is original
    assert report.calls == 2
    assert isinstance(watch._budget, Budget)


def test_an_audit_does_not_change_how_a_program_is_compiled(tmp_path: Path) -> None:
    from torch._dynamo.utils import counters

    def compute_scaled_attention(q: Any, k: Any, v: Any) -> Any:
        return F.scaled_dot_product_attention(q * 2, k, v, is_causal=True) + 1

    given, compilations = make_random_qkv(), []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own
        for audited in (False, True):
            torch._dynamo.reset()
            counters.clear()
            compiled = torch.compile(compute_scaled_attention, backend="eager", fullgraph=True)
            if audited:
                with audit(folder=tmp_path, every=2) as report:
                    results = [compiled(*given) for _ in range(3)]
                assert report.calls == 0
            else:
                results = [compiled(*given) for _ in range(3)]
            compilations.append((dict(counters["frames"]), counters["stats"]["unique_graphs"]))
            assert all(torch.equal(result, results[0]) for result in results)
        torch._dynamo.reset()
    assert compilations[0] == compilations[1]


def return_mixed_arguments(a: int, /, b: int, c: int = 3, *d: int, e: int, f: int = 6, **g: int) -> tuple[Any, ...]:
    return a, b, c, d, e, f, g


def return_keyword_arguments(a: int, b: int = 2, *, c: int, d: int = 4) -> tuple[Any, ...]:
    return a, b, c, d


def return_plain_arguments(a: int, b: int = 2, c: int = 3) -> tuple[Any, ...]:
    return a, b, c


def return_positional_arguments(a: int, b: int = 1, /) -> tuple[Any, ...]:
    return a, b


def return_variadic_arguments(*args: int, **kwargs: int) -> tuple[Any, ...]:
    return args, kwargs


@pytest.mark.parametrize(
    ("function", "given", "named"),
    [
        (return_mixed_arguments, (1, 2), {"e": 5}),
        (return_mixed_arguments, (1, 2, 3, 4, 5), {"e": 5, "f": 0, "z": 9}),
        (return_keyword_arguments, (1,), {"c": 3}),
        (return_keyword_arguments, (), {"a": 0, "b": 5, "c": 3, "d": 1}),
        (return_plain_arguments, (1,), {"c": 5}),
        (return_plain_arguments, (1, 2, 4), {}),
        (return_positional_arguments, (7,), {}),
        (return_variadic_arguments, (1, 2), {"x": 1}),
        ("a b c".split, (None,), {"maxsplit": 1}),
    ],
)
def test_the_audit_passes_arguments_on_unchanged(
    function: Callable[..., Any], given: tuple[Any, ...], named: dict[str, Any]
) -> None:
    around = FunctionWrapper(lambda original, args, kwargs: ("seen", original(*args, **kwargs)))
    around.remaining_unrecorded_calls = 2
    wrapper = _make_wrapper(function, around)
    wanted = function(*given, **named)
    assert [wrapper(*given, **named) for _ in range(3)] == [wanted, wanted, ("seen", wanted)]
    assert around.remaining_unrecorded_calls == 0
    if function is return_plain_arguments:
        own, its = (inspect.signature(one, follow_wrapped=False).parameters for one in (wrapper, function))
        assert [(p.name, p.kind, p.default) for p in own.values()] == [
            (p.name, p.kind, p.default) for p in its.values()
        ]
