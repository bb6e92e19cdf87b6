"""Transforms of torch.func over attention: equal to those of a reference in torch, with kernels of the host."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch", reason="did not run: torch is not installed, and the operators are torch's")
from torch.func import functionalize, grad, jacfwd, jacrev, jvp, vjp, vmap  # noqa: E402

from cudnn_backend_py import UsageError  # noqa: E402
from cudnn_backend_py.torch_ops import attention, attention_varlen, operators, transforms  # noqa: E402
from tests.support.host_attention import host_kernels  # noqa: E402
from tests.support.torch_reference import Masks, reference_attention  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch, which compiles for forward mode
B, H, S, D = 2, 4, 6, 8
Attend = Callable[..., Any]


@pytest.fixture(autouse=True)
def passes() -> Iterator[list[str]]:
    with host_kernels() as ran:
        yield ran


def random(*dims: int) -> Any:
    return torch.randn(dims, dtype=torch.float64)


def ours(q: Any, k: Any, v: Any, bias: Any = None, sink: Any = None) -> Any:
    return attention(q, k, v, bias=bias, sink=sink, causal=bias is None, soft_cap=3.0)


def reference(q: Any, k: Any, v: Any, bias: Any = None, sink: Any = None) -> Any:
    masks = Masks(right_bound=0 if bias is None else None, soft_cap=3.0)
    return reference_attention(q, k, v, masks, bias=bias, sink=sink)[0]


def check(transform: Callable[[Attend], Any]) -> None:
    """Compare what a transform returns for attention and for the reference."""
    found, want = (torch.utils._pytree.tree_leaves(transform(attend)) for attend in (ours, reference))
    assert len(found) == len(want) > 0
    for x, y in zip(found, want, strict=True):
        torch.testing.assert_close(x, y, rtol=1e-5, atol=1e-5)


@pytest.fixture
def tensors() -> Any:
    torch.manual_seed(0)
    return random(B, H, S, D), random(B, 2, S, D), random(B, 2, S, D)


def loss(attend: Attend, *given: Any) -> Any:
    return attend(*given).square().sum()


ALL = (0, 1, 2)


def test_grad_vjp_and_jacrev(tensors: Any) -> None:
    check(lambda attend: grad(partial(loss, attend), argnums=ALL)(*tensors))
    check(lambda attend: vjp(attend, *tensors)[1](torch.ones_like(tensors[0])))
    check(lambda attend: jacrev(attend, argnums=ALL)(*tensors))


@pytest.mark.parametrize("dims", [(1, H, S, S), (B, 1, S, S), (1, 1, 1, S)], ids=str)
def test_jacrev_of_a_bias(tensors: Any, dims: tuple[int, ...]) -> None:
    check(lambda attend: jacrev(attend, argnums=(0, 3))(*tensors, random_of(dims)))


def random_of(dims: tuple[int, ...]) -> Any:
    torch.manual_seed(sum(dims))
    return random(*dims)


def test_jacrev_of_a_sink(tensors: Any) -> None:
    sink = torch.linspace(-1, 1, H)
    check(lambda attend: jacrev(lambda q, x: attend(q, *tensors[1:], None, x), argnums=(0, 1))(tensors[0], sink))
    check(lambda attend: grad(lambda x: loss(attend, *tensors, None, x))(sink))


@pytest.mark.parametrize("in_dims", [(0, 0, 0), (0, None, 2), (None, 1, None)], ids=str)
def test_vmap_and_gradients_of_each_sample(in_dims: tuple[int | None, ...]) -> None:
    torch.manual_seed(1)
    samples = 3
    given = []
    for dim, heads in zip(in_dims, (H, 2, 2), strict=True):
        x = random(B, heads, S, D) if dim is None else random(samples, B, heads, S, D).movedim(0, dim)
        given.append(x)
    check(lambda attend: vmap(attend, in_dims=in_dims)(*given))
    check(lambda attend: vmap(grad(partial(loss, attend), argnums=ALL), in_dims=in_dims)(*given))
    check(lambda attend: grad(lambda *x: vmap(attend, in_dims=in_dims)(*x).square().sum(), argnums=ALL)(*given))


def test_vmap_of_vmap() -> None:
    torch.manual_seed(2)
    q, k, v = random(3, 5, B, H, S, D), random(5, B, H, S, D), random(B, H, S, D)
    check(lambda attend: vmap(vmap(attend, in_dims=(0, 0, None)), in_dims=(0, None, None))(q, k, v))


def test_vmap_of_a_bias_and_of_sinks(tensors: Any) -> None:
    biases, sinks = random(3, 1, H, S, S), torch.randn(3, H)
    check(lambda attend: vmap(lambda x: attend(*tensors, x))(biases))
    check(lambda attend: vmap(grad(lambda x: loss(attend, *tensors, x)))(biases))
    check(lambda attend: vmap(lambda x: attend(*tensors, None, x))(sinks))
    check(lambda attend: vmap(grad(lambda x: loss(attend, *tensors, None, x)))(sinks))


def test_vmap_of_packed_tokens() -> None:
    torch.manual_seed(3)
    starts = torch.tensor([0, 2, 5, 9], dtype=torch.int32)
    q, k, v = (random(3, 9, H, D) for _ in range(3))
    found = vmap(lambda *x: attention_varlen(*x, starts, None, 4, causal=True))(q, k, v)
    want = torch.stack([attention_varlen(*x, starts, None, 4, causal=True) for x in zip(q, k, v, strict=True)])
    torch.testing.assert_close(found, want)


def test_samples_share_calls(passes: list[str], tensors: Any) -> None:
    q, k, v = tensors
    jacrev(lambda x: ours(x, k, v))(q)
    assert passes == ["forward", "backward"]


def test_backward_passes_of_many_samples_are_split(
    monkeypatch: pytest.MonkeyPatch, passes: list[str], tensors: Any
) -> None:
    monkeypatch.setattr(transforms, "MOST_HEADS", 200 * B * H)
    check(lambda attend: jacrev(attend)(*tensors))
    assert passes == ["forward", "backward", "backward"]


def test_vmap_decides_on_dropout(tensors: Any) -> None:
    q, k, v = tensors
    samples = torch.stack([q, q])
    with pytest.raises(RuntimeError, match="randomness"):
        vmap(lambda x: attention(x, k, v, dropout=0.5))(samples)
    for randomness in ("same", "different"):
        vmap(lambda x: attention(x, k, v, dropout=0.5), randomness=randomness)(samples)


@pytest.mark.parametrize(
    ("transform", "words"),
    [
        (lambda attend, q: grad(lambda x: grad(lambda y: loss(attend, y))(x).sum())(q), "no second derivative"),
        (lambda attend, q: jacrev(grad(lambda y: loss(attend, y)))(q), "no second derivative"),
        (lambda attend, q: jvp(attend, (q,), (q,)), "no forward-mode derivative"),
        (lambda attend, q: jacfwd(attend)(q), "no forward-mode derivative"),
    ],
)
def test_other_derivatives_are_refused(tensors: Any, transform: Any, words: str) -> None:
    q, k, v = tensors
    with pytest.raises(UsageError, match=words):
        transform(lambda x: ours(x, k, v), q)


def test_tangents_are_refused(tensors: Any) -> None:
    q, k, v = tensors
    with torch.autograd.forward_ad.dual_level():
        with pytest.raises(UsageError, match="no forward-mode derivative"):
            ours(torch.autograd.forward_ad.make_dual(q, q), k, v)
        ours(q, k, v)


def test_derivatives_in_compiled_code_are_right_or_refused(tensors: Any) -> None:
    """torch leaves such code to Python at the refusal, or raises it."""
    q, k, v = tensors
    want = grad(lambda x: loss(ours, x, k, v))(q)
    for backend in ("eager", "aot_eager", "eager"):
        torch._dynamo.reset()
        step = torch.compile(grad(lambda x: loss(ours, x, k, v)), backend=backend)
        try:
            found = step(q)
        except UsageError as error:
            refusal = str(error)
        else:
            torch.testing.assert_close(found, want)
            refusal = "cannot trace a derivative"
        assert "cannot trace a derivative" in refusal
    differentiate = torch.compiler.disable(grad(lambda x: loss(ours, x, k, v)))
    torch.testing.assert_close(torch.compile(lambda x: differentiate(x) * 2, backend="eager")(q), want * 2)


def test_functionalize_uses_the_operators(tensors: Any) -> None:
    check(lambda attend: functionalize(attend)(*tensors))


def test_gradients_without_transforms(tensors: Any) -> None:
    def differentiate(attend: Attend) -> Any:
        inputs = [x.clone().requires_grad_(True) for x in tensors]
        return torch.autograd.grad(loss(attend, *inputs), inputs)

    check(differentiate)
    assert operators.is_eager(torch, tensors) is False
