"""Small random models of the transformers library, and runs of them that use all parts of attention."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import transformers
from transformers import AutoConfig, AutoModelForCausalLM, DynamicCache, StaticCache

__all__ = ["DECODER_OPTIONS", "DECODER_RUNS", "ENCODER_OPTIONS", "make_decoder", "make_encoder", "run_encoder"]

_VOCABULARY_SIZE = 120
_MODEL_SIZES: dict[str, Any] = {
    "vocab_size": _VOCABULARY_SIZE,
    "hidden_size": 128,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "pad_token_id": 0,
}
_HEAD_DIM_OPTION = {"head_dim": 32}
_SLIDING_WINDOW_OPTIONS = {"sliding_window": 8, "layer_types": ["sliding_attention", "full_attention"]}
_EXPERT_OPTIONS = {"num_local_experts": 4, "num_experts_per_tok": 2}
#: Causal language models: config options by type of model.
DECODER_OPTIONS: dict[str, dict[str, Any]] = {
    "llama": {},
    "mistral": {"sliding_window": 8},
    "mixtral": {"sliding_window": None, **_EXPERT_OPTIONS},
    "qwen2": {},
    "qwen3": _HEAD_DIM_OPTION,
    "gemma": _HEAD_DIM_OPTION,
    "gemma2": {
        **_HEAD_DIM_OPTION,
        **_SLIDING_WINDOW_OPTIONS,
        "query_pre_attn_scalar": 32,
        "attn_logit_softcapping": 2.0,
    },
    "gemma3_text": {**_HEAD_DIM_OPTION, **_SLIDING_WINDOW_OPTIONS, "query_pre_attn_scalar": 32},
    "gpt_oss": {**_HEAD_DIM_OPTION, **_SLIDING_WINDOW_OPTIONS, **_EXPERT_OPTIONS},
    "phi": {"partial_rotary_factor": 0.5},
    "phi3": {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 1.0}},
    "olmo2": {},
    "starcoder2": {"sliding_window": None},
    "cohere": {},
    "granite": {"attention_multiplier": 0.3},
    "stablelm": {},
    "gpt_neox": {},
    "opt": {"ffn_dim": 96, "word_embed_proj_dim": 128, "dropout": 0.0},
    "gpt2": {
        "n_embd": 128,
        "n_layer": 2,
        "n_head": 4,
        "n_positions": 256,
        **dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0),
    },
}
#: Encoder models: config options by class.
ENCODER_OPTIONS: dict[str, dict[str, Any]] = {
    "BertModel": _MODEL_SIZES,
    "RobertaModel": _MODEL_SIZES,
    "ViTModel": {**_MODEL_SIZES, "image_size": 32, "patch_size": 8},
    "WhisperModel": {
        "vocab_size": _VOCABULARY_SIZE,
        "d_model": 128,
        **dict.fromkeys(("encoder_layers", "decoder_layers"), 2),
        **dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads"), 4),
        **dict.fromkeys(("encoder_ffn_dim", "decoder_ffn_dim"), 96),
        "max_source_positions": 32,
        **dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id"), 1),
        "num_mel_bins": 16,
    },
}
NamedTensors = dict[str, Any]


def make_decoder(name: str, **where: Any) -> Any:
    """Return a random causal language model in evaluation mode; ``where`` are arguments of ``Module.to``."""
    torch.manual_seed(0)
    config = AutoConfig.for_model(name, **{**_MODEL_SIZES, **DECODER_OPTIONS[name]})
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").to(**where)
    for parameter in model.parameters():
        parameter.data.mul_(2)  # larger weights, so that scores differ more
    return model.eval()


def make_encoder(name: str, **where: Any) -> Any:
    """Return a random encoder model in evaluation mode; ``where`` are arguments of ``Module.to``."""
    torch.manual_seed(0)
    kind = getattr(transformers, name)
    return kind(kind.config_class(**ENCODER_OPTIONS[name], attn_implementation="eager")).to(**where).eval()


def _make_random_tokens(model: Any, padded: bool = True) -> tuple[Any, Any]:
    """Return token ids and attention mask [3, 20]; if ``padded``, two sentences begin with padding."""
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(3, _VOCABULARY_SIZE, (3, 20), generator=generator).to(model.device)
    mask = torch.ones_like(ids)
    if padded:
        mask[0, :6] = 0
        mask[2, :1] = 0
    return ids, mask


def _compute_prefill_logits(model: Any) -> NamedTensors:
    ids, mask = _make_random_tokens(model, padded=False)
    return {"logits": model(ids).logits, "masked": model(ids, attention_mask=mask).logits}


def _compute_padded_logits(model: Any) -> NamedTensors:
    ids, mask = _make_random_tokens(model)
    return {"logits": model(ids, attention_mask=mask).logits[mask.bool()]}


def _compute_decode_logits(model: Any, cache: Any, first: int) -> NamedTensors:
    """Return the logits of a prompt and of the following tokens, which are fed one at a time."""
    ids, mask = _make_random_tokens(model)
    found, begin = {}, 0
    for end in (first, *range(first + 1, ids.shape[1] + 1)):
        given = model(ids[:, begin:end], attention_mask=mask[:, :end], past_key_values=cache, use_cache=True)
        found[f"logits {begin}"] = given.logits[mask[:, begin:end].bool()]
        begin = end
    return found


def _compute_decode_logits_with_dynamic_cache(model: Any) -> NamedTensors:
    return _compute_decode_logits(model, DynamicCache(config=model.config), 12)


def _compute_decode_logits_with_static_cache(model: Any) -> NamedTensors:
    return _compute_decode_logits(model, StaticCache(config=model.config, max_cache_len=32), 12)


def _compute_chunked_prefill_logits(model: Any) -> NamedTensors:
    """Return the logits of a prompt, and of a chunk of several tokens that follows in the cache."""
    ids, mask = _make_random_tokens(model)
    cache, found = DynamicCache(config=model.config), {}
    for begin, end in ((0, 9), (9, 20)):
        given = model(ids[:, begin:end], attention_mask=mask[:, :end], past_key_values=cache, use_cache=True)
        found[f"logits {begin}"] = given.logits[mask[:, begin:end].bool()]
    return found


def _compute_loss_and_gradients(model: Any, *, checkpointing: bool = False) -> NamedTensors:
    """Return the loss and the gradients of all parameters."""
    ids, mask = _make_random_tokens(model)
    model.train()
    if checkpointing:
        model.gradient_checkpointing_enable()
    try:
        with torch.enable_grad():
            labels = ids.masked_fill(
                mask.cumsum(1) < 2, -100
            )  # do not train the prediction of the first token from padding
            loss = model(ids, attention_mask=mask, labels=labels, use_cache=False).loss
            loss.backward()
        found = {name: x.grad for name, x in model.named_parameters() if x.grad is not None}
    finally:
        model.zero_grad()
        model.eval()
        if checkpointing:
            model.gradient_checkpointing_disable()
    return {"loss": loss.detach(), **found}


def _compute_loss_and_gradients_with_checkpointing(model: Any) -> NamedTensors:
    return _compute_loss_and_gradients(model, checkpointing=True)


DECODER_RUNS: dict[str, Callable[[Any], NamedTensors]] = {
    "prefill": _compute_prefill_logits,
    "padding": _compute_padded_logits,
    "dynamic cache": _compute_decode_logits_with_dynamic_cache,
    "static cache": _compute_decode_logits_with_static_cache,
    "chunks": _compute_chunked_prefill_logits,
    "training": _compute_loss_and_gradients,
    "checkpointing": _compute_loss_and_gradients_with_checkpointing,
}


def run_encoder(model: Any) -> NamedTensors:
    """Return the outputs of an encoder model for padded tokens, an image or audio."""
    generator, kind = torch.Generator().manual_seed(2), type(model).__name__
    if kind == "ViTModel":
        pixels = torch.randn(2, 3, 32, 32, generator=generator).to(model.device, model.dtype)
        return {"states": model(pixel_values=pixels).last_hidden_state}
    ids, mask = _make_random_tokens(model)
    if kind == "WhisperModel":
        sound = torch.randn(3, 16, 64, generator=generator).to(model.device, model.dtype)
        return {"states": model(input_features=sound, decoder_input_ids=ids).last_hidden_state}
    return {"states": model(ids, attention_mask=mask).last_hidden_state[mask.bool()]}
