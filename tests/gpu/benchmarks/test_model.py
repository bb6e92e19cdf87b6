"""The benchmark's small language model: training, decoding with a K/V cache, attention that a library lacks."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="did not run: torch is not installed, and the model needs it")


@pytest.fixture(scope="module")
def small_work_amount() -> Any:
    from benchmarks.model.gpt import ModelSizes
    from benchmarks.model.measure import WorkAmount

    return WorkAmount(ModelSizes(2, 2, 16, 16, 256), 20, 128, 2, 64, 48, 3, 24, 3, 3)


@pytest.fixture(scope="module")
def torch_plain_measurements(small_work_amount: Any) -> Any:
    from benchmarks.model.measure import BATCH_LAYOUTS, measure_attention_provider

    begun: list[str] = []
    found: dict[str, Any] = {}
    for way in BATCH_LAYOUTS:
        found |= measure_attention_provider("torch plain", way, small_work_amount, "cpu", lambda: begun.append(way))  # noqa: B023
    assert begun == list(BATCH_LAYOUTS)
    return found


def test_the_loss_of_the_model_decreases(torch_plain_measurements: Any) -> None:
    for way in ("packed", "padded"):
        losses = torch_plain_measurements[way]["first epoch"]["losses"]
        assert losses[-1] < 0.9 * losses[0]


def test_packed_and_padded_models_start_with_the_same_weights(small_work_amount: Any) -> None:
    from benchmarks.model.gpt import Gpt, make_packed_batches, make_padded_batches

    one, two = (Gpt(small_work_amount.sizes, device="cpu").tokens.weight for _ in range(2))
    assert torch.equal(one, two)
    for batch in make_packed_batches(3, 128, 64, small_work_amount.sizes, 1, "cpu"):
        assert batch.cu is not None
        lengths = batch.cu.diff()
        assert (int(batch.cu[-1]), int(lengths.max()), len(lengths)) == (batch.real, batch.longest, batch.sequences)
    padded = make_padded_batches(3, 2, 64, small_work_amount.sizes, 1, "cpu")
    assert len({batch.longest for batch in padded}) == 3
    assert all(int((batch.targets >= 0).sum()) == batch.real for batch in padded)


def test_decoding_by_token_gives_the_logits_of_one_forward_pass(small_work_amount: Any) -> None:
    """Compare logits of decoding with a K/V cache, token by token, with logits of one pass over the whole text."""
    from benchmarks.model.attentions import TorchDefaultAttention
    from benchmarks.model.gpt import Gpt
    from benchmarks.model.measure import ServingRun

    model = Gpt(small_work_amount.sizes, device="cpu").float()
    plain = TorchDefaultAttention()
    served = ServingRun(small_work_amount, plain, model, "cpu")
    cache = served.cache
    cache.k, cache.v = ([memory.float() for memory in memories] for memories in (cache.k, cache.v))
    with torch.no_grad():
        served.prefill()
        for number in range(4):
            logits = served.decode(served.tails[number])
        prompts = served.prompts
        for row in range(prompts.sequences):
            begin, end = prompts.cu[row : row + 2].tolist()
            text = torch.cat([prompts.tokens[begin:end], served.tails[:4, row]])
            ends = torch.tensor([0, len(text)])
            whole = model(
                text,
                torch.arange(len(text)),
                lambda _, q, k, v: plain.attend_packed(q, k, v, ends, len(text)),  # noqa: B023
            )
            torch.testing.assert_close(logits[row], whole[-1], atol=1e-4, rtol=1e-4)


def test_attention_that_a_library_does_not_support_is_reported(small_work_amount: Any) -> None:
    from benchmarks.model.measure import measure_attention_provider

    packed, padded = (
        measure_attention_provider("torch flash", way, small_work_amount, "cpu", lambda: None)
        for way in ("packed", "padded")
    )
    assert set(packed) == {"packed"}
    assert "not measured" in packed["packed"]  # torch's flash for packed tokens has no CPU kernel
    assert padded["padded"]["first epoch"]["steps"] == 20


def test_packed_tokens_are_padded_and_unpadded() -> None:
    """Compare padded attention, run on the CPU instead of by cuDNN, with attention over the packed tokens."""
    from benchmarks.model.attentions import TorchCudnnAttention, TorchDefaultAttention

    class PaddedAttention(TorchCudnnAttention):
        attend_padded = TorchDefaultAttention.attend_padded

    cu = torch.tensor([0, 5, 6, 20], dtype=torch.int32)
    inputs = [torch.randn(20, 2, 16, dtype=torch.double, requires_grad=True) for _ in range(3)]
    found, want = (maker.attend_packed(*inputs, cu, 14) for maker in (PaddedAttention(), TorchDefaultAttention()))
    torch.testing.assert_close(found, want)
    given = torch.randn_like(want)
    for one, two in zip(*(torch.autograd.grad(o, inputs, given) for o in (found, want)), strict=True):
        torch.testing.assert_close(one, two)
