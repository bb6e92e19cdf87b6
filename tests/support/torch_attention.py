"""Compare errors of this package's flash attention with errors of torch's flash backend on the same inputs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cudnn_backend_py import DataType, OperationGraph, attention, build_plan, execute, open_target, reference
from cudnn_backend_py.graph.formats import decode, encode, round_to_data_type

ATTENTION_SHAPES = (
    {"batch": 2, "heads": 4, "seq_q": 512, "head_dim": 64, "causal": True},
    {"batch": 2, "heads": 4, "seq_q": 512, "head_dim": 128, "causal": False},
    {"batch": 1, "heads": 8, "seq_q": 1024, "head_dim": 128, "causal": True},
)


def compare_with_torch_flash_attention() -> Iterator[dict[str, Any]]:
    """Yield for each type and shape the relative Frobenius errors of o, dq, dk and dv, of this package and of torch."""
    for data_type in (DataType.HALF, DataType.BFLOAT16):
        for shape in ATTENTION_SHAPES:
            yield _compute_errors_of_shape(data_type, shape)


def _compute_errors_of_shape(data_type: DataType, shape: dict[str, Any]) -> dict[str, Any]:
    rng = np.random.default_rng(8)
    dims = (shape["batch"], shape["heads"], shape["seq_q"], shape["head_dim"])
    q, k, v, d_o = (round_to_data_type(rng.standard_normal(dims), data_type) for _ in range(4))
    bound = 0 if shape["causal"] else None
    forward = reference.forward(q, k, v, right_bound=bound)
    gradient = reference.backward(q, k, v, forward.o, d_o, forward.stats, right_bound=bound)
    want = {"o": forward.o, "dq": gradient.dq, "dk": gradient.dk, "dv": gradient.dv}
    ours, theirs = (
        _run_package_attention(data_type, shape, q, k, v, d_o),
        _run_torch_attention(data_type, shape, q, k, v, d_o),
    )
    return {
        "data_type": data_type.name,
        **shape,
        "relative_frobenius_ours_and_torch": {
            name: [float(np.linalg.norm(found[name] - value) / np.linalg.norm(value)) for found in (ours, theirs)]
            for name, value in want.items()
        },
    }


def _run_package_attention(
    data_type: DataType, shape: dict[str, Any], *tensors: NDArray[np.float64]
) -> dict[str, NDArray[np.float64]]:
    target = open_target()
    q, k, v, d_o = (encode(tensor, data_type) for tensor in tensors)
    o = np.empty_like(q)
    stats = np.empty((*q.shape[:3], 1), np.float32)
    gradients = {name: np.empty_like(q) for name in ("dq", "dk", "dv")}
    forward = attention.sdpa_forward(**shape, data_type=data_type, stats=True)
    backward = attention.sdpa_backward(**shape, data_type=data_type)
    plans = [build_plan(OperationGraph(graph, target).heuristics("A").configs[0]) for graph in (forward, backward)]
    swapped = {"q": q, "k": k.swapaxes(2, 3)}
    execute(plans[0], {**swapped, "v": v, "o": o, "stats": stats})
    execute(plans[1], {**swapped, "v": v.swapaxes(2, 3), "o": o, "do": d_o, "stats": stats, **gradients})
    target.close()
    return {name: decode(value, data_type) for name, value in {"o": o, **gradients}.items()}


def _run_torch_attention(
    data_type: DataType, shape: dict[str, Any], *tensors: NDArray[np.float64]
) -> dict[str, NDArray[np.float64]]:
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel

    kind = torch.float16 if data_type is DataType.HALF else torch.bfloat16
    q, k, v, d_o = (torch.tensor(tensor, device="cuda").to(kind) for tensor in tensors)
    for tensor in (q, k, v):
        tensor.requires_grad_(True)
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        o = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=shape["causal"])
    o.backward(d_o)
    found = {"o": o, "dq": q.grad, "dk": k.grad, "dv": v.grad}
    return {name: value.detach().double().cpu().numpy() for name, value in found.items()}
