"""Models of transformers on a GPU: with this attention, logits and gradients are as near to float32 as eager's."""

from __future__ import annotations

from typing import Any

import pytest

torch: Any = pytest.importorskip("torch", reason="did not run: torch is not installed, and the operators are torch's")
pytest.importorskip("transformers", reason="did not run: transformers is not installed, the models are its own")

from cudnn_backend_py.torch_ops.transformers import register_transformers  # noqa: E402
from tests.support.figures import append_measurement_to_run_record  # noqa: E402
from tests.support.torch_reference import compute_frobenius_error  # noqa: E402
from tests.support.transformers_models import (  # noqa: E402
    DECODER_OPTIONS,
    DECODER_RUNS,
    ENCODER_OPTIONS,
    NamedTensors,
    make_decoder,
    make_encoder,
    run_encoder,
)

pytestmark = pytest.mark.filterwarnings("default::FutureWarning", "default::DeprecationWarning", "default::UserWarning")
CUDA_HALF = {"device": "cuda", "dtype": torch.half}


@pytest.fixture(autouse=True, scope="module")
def register_package_with_transformers() -> None:
    register_transformers()


def check_errors_against_eager_attention(found: NamedTensors, eager: NamedTensors, exact: NamedTensors) -> None:
    """Check that errors against float32 are at most three times those of eager attention in float16."""
    assert found.keys() == exact.keys()
    for name, want in exact.items():
        ours, theirs = (compute_frobenius_error(x[name], want.double()) for x in (found, eager))
        assert ours <= max(3 * theirs, 4e-3), (name, ours, theirs)


def run_model_with_each_attention(make: Any, name: str, run: Any) -> tuple[NamedTensors, NamedTensors, NamedTensors]:
    """Return the results with this attention, with eager attention, and with eager attention in float32."""
    with torch.no_grad():
        exact = run(make(name, device="cuda"))
        model = make(name, **CUDA_HALF)
        eager = run(model)
        model.set_attn_implementation("cudnn")
        return run(model), eager, exact


@pytest.mark.parametrize("name", DECODER_OPTIONS)
def test_decoder_is_as_exact_as_eager_attention(name: str) -> None:
    for run in DECODER_RUNS.values():
        check_errors_against_eager_attention(*run_model_with_each_attention(make_decoder, name, run))
    append_measurement_to_run_record("transformers models with equal results", **{name: len(DECODER_RUNS)})


@pytest.mark.parametrize("name", ENCODER_OPTIONS)
def test_encoder_is_as_exact_as_eager_attention(name: str) -> None:
    check_errors_against_eager_attention(*run_model_with_each_attention(make_encoder, name, run_encoder))


@pytest.mark.parametrize("name", ["llama", "gemma2", "gpt_oss"])
def test_compiled_model_agrees_with_uncompiled_model(name: str) -> None:
    torch._dynamo.reset()
    model = make_decoder(name, **CUDA_HALF)
    model.set_attn_implementation("cudnn")
    ids = torch.arange(3, 43, device="cuda").view(2, 20)
    mask = torch.ones_like(ids)
    mask[0, :6] = 0
    compiled = torch.compile(model, backend="aot_eager")
    with torch.no_grad():
        want, found = (call(ids, attention_mask=mask).logits[mask.bool()] for call in (model, compiled))
    assert compute_frobenius_error(found, want.double()) < 2e-3
