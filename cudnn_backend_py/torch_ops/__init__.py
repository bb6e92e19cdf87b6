"""cuDNN's attention as PyTorch operators, with autograd, fake tensors and ``torch.compile``.

Importing this module does not import torch: the operators ``cudnn_backend::sdpa_forward`` and
``cudnn_backend::sdpa_backward`` are defined when a function of it is first called, or when torch is there already.
It needs torch 2.4 or later.

:func:`attention` takes dense tensors, :func:`attention_varlen` packed tokens, :func:`attention_with_kvcache` paged K
and V; all three are one pair of operators.
"""

from __future__ import annotations

from .arguments import Scales
from .drop_in import scaled_dot_product_attention
from .extension import describe_extension
from .functions import attention, attention_varlen, attention_with_kvcache, clear_plans, set_shapes

__all__ = [
    "Scales",
    "attention",
    "attention_varlen",
    "attention_with_kvcache",
    "clear_plans",
    "describe_extension",
    "scaled_dot_product_attention",
    "set_shapes",
]
