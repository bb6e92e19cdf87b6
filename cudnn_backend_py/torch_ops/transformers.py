"""cuDNN's attention as an attention implementation of Hugging Face transformers, which is imported on use."""

from __future__ import annotations

from typing import Any

from ..errors import EnvironmentNotReady, UsageError
from .drop_in import compute_attention_with_broadcasting
from .operators import load_torch

__all__ = ["register_transformers", "transformers_attention"]


def register_transformers(name: str = "cudnn") -> None:
    """Register :func:`transformers_attention` with transformers, for ``attn_implementation="cudnn"``.

    Masks are made as for ``"sdpa"``: boolean, and left out where ``is_causal`` says the same. A name that has no mask
    function registered gets no masks at all from transformers, so padding would be attended to.

    Parameters
    ----------
    name
        Of the attention implementation.

    Raises
    ------
    EnvironmentNotReady
        ``transformers-missing``: 4.56 or later is needed.
    """
    try:
        from transformers import AttentionInterface
        from transformers.masking_utils import AttentionMaskInterface, sdpa_mask
    except ImportError as error:
        raise EnvironmentNotReady(
            f"transformers with registries of attention and masks cannot be imported: {error}",
            code="transformers-missing",
            fix="pip install 'transformers>=4.56'",
        ) from error
    AttentionInterface.register(name, transformers_attention)
    AttentionMaskInterface.register(name, sdpa_mask)


def transformers_attention(
    module: Any,
    query: Any,
    key: Any,
    value: Any,
    attention_mask: Any,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    softcap: float | None = None,
    s_aux: Any = None,
    position_bias: Any = None,
    **others: Any,
) -> tuple[Any, None]:
    """Return the attention output [b, s_q, h, d_v] for a transformers module, and None instead of weights.

    Key and value may have fewer heads than query. What `others` holds, such as a sliding window, is in the mask.

    Parameters
    ----------
    attention_mask
        [b, 1 or h, s_q, s_kv], bool (True takes part) or added to the scores; None lets `is_causal` decide.
    is_causal
        Of the module, if not given. It counts for more than one row without a mask: row i sees the keys up to i.
    softcap
        Scores become ``softcap * tanh(score / softcap)``.
    s_aux
        Attention sinks, [h].
    position_bias
        [1 or b, h, s_q, s_kv], added to the scores.

    Raises
    ------
    UsageError
        ``torch-option`` where the weights are requested; and as of :func:`~cudnn_backend_py.torch_ops.attention`.
    """
    if others.get("output_attentions"):
        raise UsageError(
            "output_attentions requests attention weights, which fused attention does not store",
            code="torch-option",
            fix='take attn_implementation="eager" for them',
        )
    torch = load_torch()
    rows, keys = query.shape[2], key.shape[2]
    causal = (
        rows > 1 and attention_mask is None and (getattr(module, "is_causal", True) if is_causal is None else is_causal)
    )
    if causal and keys > rows:  # the rest of a static cache, which is empty
        key, value = key[:, :, :rows], value[:, :, :rows]
        position_bias = None if position_bias is None else position_bias[..., :rows]
    o = compute_attention_with_broadcasting(
        torch,
        (query, key, value),
        _add_masks(torch, position_bias, attention_mask),
        enable_gqa=query.shape[1] != key.shape[1],
        dropout=dropout,
        causal=causal,
        scale=scaling,
        soft_cap=softcap,
        sink=None if s_aux is None else s_aux.reshape(-1).float(),
    )
    return o.transpose(1, 2).contiguous(), None


def _add_masks(torch: Any, bias: Any, mask: Any) -> Any:
    """Combine a bias and a mask into one mask; either may be None."""
    if bias is None or mask is None:
        return mask if bias is None else bias
    return bias.masked_fill(mask.logical_not(), -torch.inf) if mask.dtype == torch.bool else bias + mask
