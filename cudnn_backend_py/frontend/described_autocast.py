"""Autocast for a described GPU, as torch's own casts only handle tensors of real devices.

The functions are those of torch's autocast (``ATen/autocast_mode.h``) under the names that a program calls them by.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

__all__ = ["select_autocast_type"]


def _split_names(text: str) -> frozenset[str]:
    return frozenset(text.split())


_LOWER_PRECISION_FUNCTIONS = _split_names(
    """conv1d conv2d conv3d conv_tbc conv_transpose1d conv_transpose2d conv_transpose3d convolution _convolution prelu
    addmm addmv addr matmul __matmul__ __rmatmul__ einsum mm mv linear addbmm baddbmm bmm chain_matmul multi_dot vecdot
    linalg_multi_dot linalg_vecdot lstm gru rnn_tanh rnn_relu lstm_cell gru_cell rnn_tanh_cell rnn_relu_cell
    scaled_dot_product_attention multi_head_attention_forward"""
)
_FLOAT32_FUNCTIONS = _split_names(
    """acos asin cosh erfinv exp expm1 log log10 log2 log1p reciprocal rsqrt sinh tan pow __pow__ __rpow__ __rdiv__
    softplus layer_norm rms_norm group_norm cosine_similarity poisson_nll_loss cosine_embedding_loss nll_loss
    hinge_embedding_loss kl_div l1_loss smooth_l1_loss huber_loss mse_loss margin_ranking_loss multilabel_margin_loss
    soft_margin_loss triplet_margin_loss multi_margin_loss binary_cross_entropy_with_logits cross_entropy dist pdist
    cdist renorm logsumexp interpolate upsample prod softmax softmin log_softmax cumprod cumsum norm vector_norm
    matrix_norm linalg_vector_norm linalg_matrix_norm sum"""
)
_WIDEST_TYPE_FUNCTIONS = _split_names(
    "addcdiv addcmul atan2 bilinear cross dot vdot grid_sample index_put tensordot scatter_add"
)


def select_autocast_type(name: str, tensors: list[torch.Tensor]) -> Callable[[torch.Tensor], torch.dtype] | None:
    """Return a function from a tensor to the type that autocast casts it to; None if the operation is not cast."""
    if (
        not torch.is_autocast_enabled("cuda")
        or name not in _LOWER_PRECISION_FUNCTIONS | _FLOAT32_FUNCTIONS | _WIDEST_TYPE_FUNCTIONS
    ):
        return None
    if name in _LOWER_PRECISION_FUNCTIONS:
        wanted = torch.get_autocast_dtype("cuda")
    elif name in _FLOAT32_FUNCTIONS or any(tensor.dtype == torch.float32 for tensor in tensors):
        wanted = torch.float32
    else:
        return None
    return lambda tensor: wanted if _is_autocast_eligible(tensor) else tensor.dtype


def _is_autocast_eligible(tensor: Any) -> bool:
    return bool(tensor.is_floating_point() and tensor.dtype in (torch.float16, torch.bfloat16, torch.float32))
