"""Hugging Face transformers models with the package's attention give the logits and gradients of eager attention."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch", reason="did not run: torch is not installed, and the operators are torch's")
pytest.importorskip("transformers", reason="did not run: transformers is not installed, the models are its own")

from cudnn_backend_py import UsageError  # noqa: E402
from cudnn_backend_py.torch_ops.transformers import register_transformers, transformers_attention  # noqa: E402
from tests.support.host_attention import register_cpu_attention_kernels  # noqa: E402
from tests.support.transformers_models import (  # noqa: E402
    DECODER_OPTIONS,
    DECODER_RUNS,
    ENCODER_OPTIONS,
    NamedTensors,
    make_decoder,
    make_encoder,
    run_encoder,
)

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")  # of transformers, about names to come


@pytest.fixture(autouse=True)
def attention_passes() -> Iterator[list[str]]:
    register_transformers()
    with register_cpu_attention_kernels() as ran:
        yield ran


def assert_same_results(found: NamedTensors, want: NamedTensors) -> None:
    assert found.keys() == want.keys()
    for name, x in want.items():
        torch.testing.assert_close(found[name], x, rtol=1e-4, atol=1e-4, msg=lambda text, name=name: f"{name}: {text}")


@pytest.mark.parametrize("run", DECODER_RUNS)
@pytest.mark.parametrize("name", DECODER_OPTIONS)
def test_decoder_agrees_with_eager_attention(name: str, run: str, attention_passes: list[str]) -> None:
    model = make_decoder(name)
    with torch.no_grad():
        want = DECODER_RUNS[run](model)
        model.set_attn_implementation("cudnn")
        found = DECODER_RUNS[run](model)
    assert_same_results(found, want)
    assert attention_passes.count("forward") >= model.config.num_hidden_layers
    assert ("backward" in attention_passes) is (run in ("training", "checkpointing"))


@pytest.mark.parametrize("name", ENCODER_OPTIONS)
def test_encoder_agrees_with_eager_attention(name: str, attention_passes: list[str]) -> None:
    model = make_encoder(name)
    with torch.no_grad():
        want = run_encoder(model)
        model.set_attn_implementation("cudnn")
        assert_same_results(run_encoder(model), want)
    assert attention_passes


def test_position_bias_is_added_to_the_mask() -> None:
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, 4, s, 16, dtype=torch.float64) for s in (5, 7, 7))
    bias, keep = torch.randn(1, 4, 5, 7, dtype=torch.float64), torch.rand(2, 1, 5, 7) > 0.3
    module = SimpleNamespace(is_causal=True)
    causal = torch.ones(5, 5, dtype=torch.bool).tril()
    sdpa = torch.nn.functional.scaled_dot_product_attention
    for mask, want in (
        (keep, sdpa(q, k, v, bias.masked_fill(~keep, -torch.inf))),
        (keep * 2.0, sdpa(q, k, v, bias + keep * 2.0)),
        (None, sdpa(q, k[:, :, :5], v[:, :, :5], bias[..., :5].masked_fill(~causal, -torch.inf))),
    ):
        found, weights = transformers_attention(module, q, k, v, mask, position_bias=bias)
        assert weights is None
        torch.testing.assert_close(found.transpose(1, 2), want.nan_to_num())


def test_request_for_attention_weights_is_refused() -> None:
    q = torch.randn(1, 2, 3, 16)
    with pytest.raises(UsageError, match="output_attentions requests attention weights"):
        transformers_attention(SimpleNamespace(), q, q, q, None, output_attentions=True)
