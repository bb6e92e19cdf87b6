"""Transforms of torch.func over attention on a GPU: gradients, Jacobians, and calls mapped over samples."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from cudnn_backend_py import UsageError
from cudnn_backend_py.torch_ops import attention, attention_varlen, scaled_dot_product_attention
from tests.support.torch_reference import Masks, frobenius_error, reference_attention

torch: Any = pytest.importorskip("torch", reason="did not run: torch is not installed, and the operators are torch's")
from torch.func import grad, jacrev, jvp, vjp, vmap  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch, which compiles for forward mode
B, H, S, D = 2, 4, 40, 64
SAMPLES = 3


def half(*dims: int) -> Any:
    return torch.randn(dims, device="cuda", dtype=torch.half)


def reference(q: Any, k: Any, v: Any) -> Any:
    return reference_attention(q, k, v, Masks(right_bound=0))[0]


def compare(transform: Callable[..., Any], ours: Callable[..., Any], *tensors: Any) -> None:
    """Compare what a transform returns for attention and for the reference in float64."""
    leaves = torch.utils._pytree.tree_leaves
    found = leaves(transform(ours)(*tensors))
    want = leaves(transform(reference)(*(x.double() for x in tensors)))
    assert len(found) == len(want) > 0
    assert max(frobenius_error(x, y) for x, y in zip(found, want, strict=True)) < 4e-3


@pytest.fixture(params=["attention", "drop-in"])
def ours(request: pytest.FixtureRequest) -> Callable[..., Any]:
    if request.param == "attention":
        return lambda q, k, v: attention(q, k, v, causal=True)
    return lambda q, k, v: scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)


def test_gradients_are_right(ours: Callable[..., Any]) -> None:
    tensors = half(B, H, S, D), half(B, 2, S, D), half(B, 2, S, D)
    weight = torch.randn(B, H, S, D, device="cuda")
    compare(lambda f: grad(lambda *x: (f(*x) * weight).sum(), argnums=(0, 1, 2)), ours, *tensors)
    compare(lambda f: lambda *x: vjp(f, *x)[1](weight.to(x[0].dtype)), ours, *tensors)


def test_jacobians_are_right(ours: Callable[..., Any]) -> None:
    compare(lambda f: jacrev(f, argnums=(0, 1, 2)), ours, half(1, 2, 8, 16), half(1, 2, 8, 16), half(1, 2, 8, 16))


@pytest.mark.parametrize("in_dims", [(0, 0, 0), (0, None, 2), (None, 1, None)], ids=str)
def test_mapped_calls_are_right(ours: Callable[..., Any], in_dims: tuple[int | None, ...]) -> None:
    given = []
    for dim, heads in zip(in_dims, (H, 2, 2), strict=True):
        x = half(B, heads, S, D) if dim is None else half(SAMPLES, B, heads, S, D).movedim(0, dim)
        given.append(x)
    compare(lambda f: vmap(f, in_dims=in_dims), ours, *given)

    def of_each(f: Callable[..., Any]) -> Any:
        return vmap(grad(lambda *x: f(*x).float().square().mean() * 1000, argnums=(0, 1, 2)), in_dims=in_dims)

    compare(of_each, ours, *given)


def test_mapped_packed_tokens_equal_single_calls() -> None:
    starts = torch.tensor([0, 20, 50, 90], device="cuda", dtype=torch.int32)
    q, k, v = (half(SAMPLES, 90, H, D) for _ in range(3))
    found = vmap(lambda *x: attention_varlen(*x, starts, None, 40, causal=True))(q, k, v)
    for index in range(SAMPLES):
        want = attention_varlen(q[index], k[index], v[index], starts, None, 40, causal=True)
        assert frobenius_error(found[index], want) < 1e-3


def test_other_derivatives_are_refused(ours: Callable[..., Any]) -> None:
    q, k, v = (half(B, H, S, D) for _ in range(3))
    with pytest.raises(UsageError, match="no second derivative"):
        grad(lambda x: grad(lambda y: ours(y, k, v).sum())(x).sum())(q)
    with pytest.raises(UsageError, match="no forward-mode derivative"):
        jvp(lambda x: ours(x, k, v), (q,), (q,))
    with torch.autograd.forward_ad.dual_level(), pytest.raises(UsageError, match="no forward-mode derivative"):
        ours(torch.autograd.forward_ad.make_dual(q, q), k, v)
