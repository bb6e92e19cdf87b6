"""torch.func transforms of attention on a GPU: gradients, Jacobians, and calls mapped over samples."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from cudnn_backend_py import UsageError
from cudnn_backend_py.torch_ops import attention, attention_varlen, scaled_dot_product_attention
from tests.support.torch_reference import Masks, compute_frobenius_error, compute_reference_attention

torch: Any = pytest.importorskip("torch", reason="did not run: torch is not installed, and these tests need it")
from torch.func import grad, jacrev, jvp, vjp, vmap  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch, which compiles for forward mode
B, H, S, D = 2, 4, 40, 64
SAMPLE_COUNT = 3


def make_random_half(*dims: int) -> Any:
    return torch.randn(dims, device="cuda", dtype=torch.half)


def compute_float64_reference(q: Any, k: Any, v: Any) -> Any:
    return compute_reference_attention(q, k, v, Masks(right_bound=0))[0]


def compare_transform(transform: Callable[..., Any], attention_function: Callable[..., Any], *tensors: Any) -> None:
    """Compare a transform of attention with the same transform of the float64 reference."""
    leaves = torch.utils._pytree.tree_leaves
    found = leaves(transform(attention_function)(*tensors))
    want = leaves(transform(compute_float64_reference)(*(x.double() for x in tensors)))
    assert len(found) == len(want) > 0
    assert max(compute_frobenius_error(x, y) for x, y in zip(found, want, strict=True)) < 4e-3


@pytest.fixture(params=["attention", "drop-in"])
def attention_function(request: pytest.FixtureRequest) -> Callable[..., Any]:
    if request.param == "attention":
        return lambda q, k, v: attention(q, k, v, causal=True)
    return lambda q, k, v: scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)


def test_gradients_by_torch_func_are_right(attention_function: Callable[..., Any]) -> None:
    tensors = make_random_half(B, H, S, D), make_random_half(B, 2, S, D), make_random_half(B, 2, S, D)
    weight = torch.randn(B, H, S, D, device="cuda")
    compare_transform(
        lambda f: grad(lambda *x: (f(*x) * weight).sum(), argnums=(0, 1, 2)), attention_function, *tensors
    )
    compare_transform(lambda f: lambda *x: vjp(f, *x)[1](weight.to(x[0].dtype)), attention_function, *tensors)


def test_jacobians_are_right(attention_function: Callable[..., Any]) -> None:
    compare_transform(
        lambda f: jacrev(f, argnums=(0, 1, 2)),
        attention_function,
        make_random_half(1, 2, 8, 16),
        make_random_half(1, 2, 8, 16),
        make_random_half(1, 2, 8, 16),
    )


@pytest.mark.parametrize("in_dims", [(0, 0, 0), (0, None, 2), (None, 1, None)], ids=str)
def test_calls_mapped_by_vmap_are_right(
    attention_function: Callable[..., Any], in_dims: tuple[int | None, ...]
) -> None:
    given = []
    for dim, heads in zip(in_dims, (H, 2, 2), strict=True):
        x = (
            make_random_half(B, heads, S, D)
            if dim is None
            else make_random_half(SAMPLE_COUNT, B, heads, S, D).movedim(0, dim)
        )
        given.append(x)
    compare_transform(lambda f: vmap(f, in_dims=in_dims), attention_function, *given)

    def compute_gradient_of_each_sample(f: Callable[..., Any]) -> Any:
        return vmap(grad(lambda *x: f(*x).float().square().mean() * 1000, argnums=(0, 1, 2)), in_dims=in_dims)

    compare_transform(compute_gradient_of_each_sample, attention_function, *given)


def test_packed_attention_mapped_by_vmap_equals_single_calls() -> None:
    starts = torch.tensor([0, 20, 50, 90], device="cuda", dtype=torch.int32)
    q, k, v = (make_random_half(SAMPLE_COUNT, 90, H, D) for _ in range(3))
    found = vmap(lambda *x: attention_varlen(*x, starts, None, 40, causal=True))(q, k, v)
    for index in range(SAMPLE_COUNT):
        want = attention_varlen(q[index], k[index], v[index], starts, None, 40, causal=True)
        assert compute_frobenius_error(found[index], want) < 1e-3


def test_second_and_forward_mode_derivatives_are_refused(attention_function: Callable[..., Any]) -> None:
    q, k, v = (make_random_half(B, H, S, D) for _ in range(3))
    with pytest.raises(UsageError, match="no second derivative"):
        grad(lambda x: grad(lambda y: attention_function(y, k, v).sum())(x).sum())(q)
    with pytest.raises(UsageError, match="no forward-mode derivative"):
        jvp(lambda x: attention_function(x, k, v), (q,), (q,))
    with torch.autograd.forward_ad.dual_level(), pytest.raises(UsageError, match="no forward-mode derivative"):
        attention_function(torch.autograd.forward_ad.make_dual(q, q), k, v)
