"""torch.func transforms of the attention operators equal those of a torch reference; kernels run on the CPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch", reason="did not run: torch is not installed, and the operators are torch's")
from torch.func import functionalize, grad, jacfwd, jacrev, jvp, vjp, vmap  # noqa: E402

from cudnn_backend_py import UsageError  # noqa: E402
from cudnn_backend_py.torch_ops import attention, attention_varlen, operators, transforms  # noqa: E402
from tests.support.host_attention import register_cpu_attention_kernels  # noqa: E402
from tests.support.torch_reference import Masks, compute_reference_attention  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch, which compiles for forward mode
B, H, S, D = 2, 4, 6, 8
Attend = Callable[..., Any]


@pytest.fixture(autouse=True)
def attention_passes() -> Iterator[list[str]]:
    with register_cpu_attention_kernels() as ran:
        yield ran


def make_random_tensor(*dims: int) -> Any:
    return torch.randn(dims, dtype=torch.float64)


def run_package_attention(q: Any, k: Any, v: Any, bias: Any = None, sink: Any = None) -> Any:
    return attention(q, k, v, bias=bias, sink=sink, causal=bias is None, soft_cap=3.0)


def run_torch_attention(q: Any, k: Any, v: Any, bias: Any = None, sink: Any = None) -> Any:
    masks = Masks(right_bound=0 if bias is None else None, soft_cap=3.0)
    return compute_reference_attention(q, k, v, masks, bias=bias, sink=sink)[0]


def check_against_reference(transform: Callable[[Attend], Any]) -> None:
    """Compare the results of a transform applied to the package's attention and to the reference."""
    found, want = (
        torch.utils._pytree.tree_leaves(transform(attend)) for attend in (run_package_attention, run_torch_attention)
    )
    assert len(found) == len(want) > 0
    for x, y in zip(found, want, strict=True):
        torch.testing.assert_close(x, y, rtol=1e-5, atol=1e-5)


@pytest.fixture
def qkv() -> Any:
    torch.manual_seed(0)
    return make_random_tensor(B, H, S, D), make_random_tensor(B, 2, S, D), make_random_tensor(B, 2, S, D)


def compute_sum_of_squares(attend: Attend, *given: Any) -> Any:
    return attend(*given).square().sum()


QKV_INDICES = (0, 1, 2)


def test_grad_vjp_and_jacrev_agree_with_the_reference(qkv: Any) -> None:
    check_against_reference(lambda attend: grad(partial(compute_sum_of_squares, attend), argnums=QKV_INDICES)(*qkv))
    check_against_reference(lambda attend: vjp(attend, *qkv)[1](torch.ones_like(qkv[0])))
    check_against_reference(lambda attend: jacrev(attend, argnums=QKV_INDICES)(*qkv))


@pytest.mark.parametrize("dims", [(1, H, S, S), (B, 1, S, S), (1, 1, 1, S)], ids=str)
def test_jacrev_with_respect_to_a_bias_agrees_with_the_reference(qkv: Any, dims: tuple[int, ...]) -> None:
    check_against_reference(lambda attend: jacrev(attend, argnums=(0, 3))(*qkv, make_seeded_random_tensor(dims)))


def make_seeded_random_tensor(dims: tuple[int, ...]) -> Any:
    torch.manual_seed(sum(dims))
    return make_random_tensor(*dims)


def test_jacrev_with_respect_to_a_sink_agrees_with_the_reference(qkv: Any) -> None:
    sink = torch.linspace(-1, 1, H)
    check_against_reference(
        lambda attend: jacrev(lambda q, x: attend(q, *qkv[1:], None, x), argnums=(0, 1))(qkv[0], sink)
    )
    check_against_reference(lambda attend: grad(lambda x: compute_sum_of_squares(attend, *qkv, None, x))(sink))


@pytest.mark.parametrize("in_dims", [(0, 0, 0), (0, None, 2), (None, 1, None)], ids=str)
def test_vmap_and_per_sample_gradients_agree_with_the_reference(in_dims: tuple[int | None, ...]) -> None:
    torch.manual_seed(1)
    samples = 3
    given = []
    for dim, heads in zip(in_dims, (H, 2, 2), strict=True):
        x = (
            make_random_tensor(B, heads, S, D)
            if dim is None
            else make_random_tensor(samples, B, heads, S, D).movedim(0, dim)
        )
        given.append(x)
    check_against_reference(lambda attend: vmap(attend, in_dims=in_dims)(*given))
    check_against_reference(
        lambda attend: vmap(grad(partial(compute_sum_of_squares, attend), argnums=QKV_INDICES), in_dims=in_dims)(*given)
    )
    check_against_reference(
        lambda attend: grad(lambda *x: vmap(attend, in_dims=in_dims)(*x).square().sum(), argnums=QKV_INDICES)(*given)
    )


def test_nested_vmap_agrees_with_the_reference() -> None:
    torch.manual_seed(2)
    q, k, v = make_random_tensor(3, 5, B, H, S, D), make_random_tensor(5, B, H, S, D), make_random_tensor(B, H, S, D)
    check_against_reference(lambda attend: vmap(vmap(attend, in_dims=(0, 0, None)), in_dims=(0, None, None))(q, k, v))


def test_vmap_over_biases_and_sinks_agrees_with_the_reference(qkv: Any) -> None:
    biases, sinks = make_random_tensor(3, 1, H, S, S), torch.randn(3, H)
    check_against_reference(lambda attend: vmap(lambda x: attend(*qkv, x))(biases))
    check_against_reference(lambda attend: vmap(grad(lambda x: compute_sum_of_squares(attend, *qkv, x)))(biases))
    check_against_reference(lambda attend: vmap(lambda x: attend(*qkv, None, x))(sinks))
    check_against_reference(lambda attend: vmap(grad(lambda x: compute_sum_of_squares(attend, *qkv, None, x)))(sinks))


def test_vmap_of_attention_varlen_agrees_with_single_calls() -> None:
    torch.manual_seed(3)
    starts = torch.tensor([0, 2, 5, 9], dtype=torch.int32)
    q, k, v = (make_random_tensor(3, 9, H, D) for _ in range(3))
    found = vmap(lambda *x: attention_varlen(*x, starts, None, 4, causal=True))(q, k, v)
    want = torch.stack([attention_varlen(*x, starts, None, 4, causal=True) for x in zip(q, k, v, strict=True)])
    torch.testing.assert_close(found, want)


def test_jacrev_runs_one_backward_pass_for_all_samples(attention_passes: list[str], qkv: Any) -> None:
    q, k, v = qkv
    jacrev(lambda x: run_package_attention(x, k, v))(q)
    assert attention_passes == ["forward", "backward"]


def test_backward_passes_of_many_samples_are_split(
    monkeypatch: pytest.MonkeyPatch, attention_passes: list[str], qkv: Any
) -> None:
    monkeypatch.setattr(transforms, "MOST_HEADS", 200 * B * H)
    check_against_reference(lambda attend: jacrev(attend)(*qkv))
    assert attention_passes == ["forward", "backward", "backward"]


def test_vmap_with_dropout_needs_a_randomness_option(qkv: Any) -> None:
    q, k, v = qkv
    samples = torch.stack([q, q])
    with pytest.raises(RuntimeError, match="randomness"):
        vmap(lambda x: attention(x, k, v, dropout=0.5))(samples)
    for randomness in ("same", "different"):
        vmap(lambda x: attention(x, k, v, dropout=0.5), randomness=randomness)(samples)


@pytest.mark.parametrize(
    ("transform", "words"),
    [
        (
            lambda attend, q: grad(lambda x: grad(lambda y: compute_sum_of_squares(attend, y))(x).sum())(q),
            "no second derivative",
        ),
        (lambda attend, q: jacrev(grad(lambda y: compute_sum_of_squares(attend, y)))(q), "no second derivative"),
        (lambda attend, q: jvp(attend, (q,), (q,)), "no forward-mode derivative"),
        (lambda attend, q: jacfwd(attend)(q), "no forward-mode derivative"),
    ],
)
def test_second_and_forward_mode_derivatives_are_refused(qkv: Any, transform: Any, words: str) -> None:
    q, k, v = qkv
    with pytest.raises(UsageError, match=words):
        transform(lambda x: run_package_attention(x, k, v), q)


def test_forward_mode_tangents_are_refused(qkv: Any) -> None:
    q, k, v = qkv
    with torch.autograd.forward_ad.dual_level():
        with pytest.raises(UsageError, match="no forward-mode derivative"):
            run_package_attention(torch.autograd.forward_ad.make_dual(q, q), k, v)
        run_package_attention(q, k, v)


def test_derivatives_inside_compiled_code_are_correct_or_refused(qkv: Any) -> None:
    """torch.compile either falls back to Python when tracing the derivative is refused, or raises the refusal."""
    q, k, v = qkv
    want = grad(lambda x: compute_sum_of_squares(run_package_attention, x, k, v))(q)
    for backend in ("eager", "aot_eager", "eager"):
        torch._dynamo.reset()
        step = torch.compile(grad(lambda x: compute_sum_of_squares(run_package_attention, x, k, v)), backend=backend)
        try:
            found = step(q)
        except UsageError as error:
            refusal = str(error)
        else:
            torch.testing.assert_close(found, want)
            refusal = "cannot trace a derivative"
        assert "cannot trace a derivative" in refusal
    differentiate = torch.compiler.disable(grad(lambda x: compute_sum_of_squares(run_package_attention, x, k, v)))
    torch.testing.assert_close(torch.compile(lambda x: differentiate(x) * 2, backend="eager")(q), want * 2)


def test_functionalize_equals_the_reference(qkv: Any) -> None:
    check_against_reference(lambda attend: functionalize(attend)(*qkv))


def test_autograd_without_transforms_agrees_with_the_reference(qkv: Any) -> None:
    def differentiate(attend: Attend) -> Any:
        inputs = [x.clone().requires_grad_(True) for x in qkv]
        return torch.autograd.grad(compute_sum_of_squares(attend, *inputs), inputs)

    check_against_reference(differentiate)
    assert operators.is_eager(torch, qkv) is False
