"""``cudnn.experimental.ops``: grouped expert matmul on torch tensors; the names of other operators raise an error."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from ..decorators import graph_cache
from ..enums import data_type, heur_mode, moe_grouped_matmul_mode, to_data_type
from ..errors import make_attribute_not_set_error, make_kernel_not_offered_error
from ..graphs import pygraph
from ..wrapper import get_default_handle

__all__ = ["moe_grouped_matmul"]

_KERNEL_NAMES = ("layer_norm", "rms_norm", "swiglu_mlp")
_MODE_NAMES = {"none": (), "gather": ("token_index",), "scatter": ("token_index", "token_ks")}


def moe_grouped_matmul(
    token: Any,
    weight: Any,
    first_token_offset: Any,
    token_index: Any = None,
    token_ks: Any = None,
    mode: str = "none",
    top_k: int = 1,
) -> Any:
    """Multiply each token by the weights of its expert; return a new torch tensor [1, tokens, N], row-major.

    Parameters
    ----------
    token
        [1, tokens, K], 16-bit floats, those of one expert after those of another.
    weight
        [experts, K, N], K the fastest dim.
    first_token_offset
        [experts, 1, 1] int32: where the tokens of each expert begin.
    token_index, token_ks
        [1, tokens, 1] int32, for the modes ``gather`` (the first) and ``scatter`` (both).
    mode
        ``none``, ``gather`` or ``scatter``.
    top_k
        Experts per token, for ``scatter``.

    Raises
    ------
    ValueError
        For another mode, or a tensor that the mode needs.
    cudnnGraphNotSupportedError
        Where cuDNN has no engine for it; its ``verdict`` says why.

    Notes
    -----
    The graph of each kind of arguments is kept. C: ``CUDNN_BACKEND_OPERATION_MOE_GROUPED_MATMUL_DESCRIPTOR``.
    """
    given = {
        "token": token,
        "weight": weight,
        "first_token_offset": first_token_offset,
        "token_index": token_index,
        "token_ks": token_ks,
    }
    _check_mode(mode, given)
    tensors = {name: item for name, item in given.items() if item is not None}
    kinds = tuple((name, tuple(item.shape), tuple(item.stride()), item.dtype) for name, item in tensors.items())
    rows = token_index.shape[1] if mode == "gather" else token.shape[1]
    torch = import_module("torch")
    out = torch.empty((1, rows, weight.shape[2]), dtype=token.dtype, device=token.device)
    handle = get_default_handle()
    graph, workspace_bytes = _build_graph(kinds, mode, int(top_k), tuple(out.shape), str(token.device), handle)
    workspace = torch.empty(workspace_bytes, dtype=torch.uint8, device=token.device)
    graph.execute({**tensors, "out": out}, workspace, handle=handle)
    return out


def _check_mode(mode: str, given: dict[str, Any]) -> None:
    if mode not in _MODE_NAMES:
        raise make_attribute_not_set_error(f"mode {mode!r} is invalid", fix=f"use one of {', '.join(_MODE_NAMES)}")
    missing = [name for name in _MODE_NAMES[mode] if given[name] is None]
    if missing:
        raise make_attribute_not_set_error(
            f"mode {mode!r} requires {' and '.join(missing)}", fix="give an int32 tensor of dims [1, n, 1] for each"
        )


@graph_cache(lambda kinds, mode, top_k, out, device, handle: (kinds, mode, top_k, device))
def _build_graph(
    kinds: tuple[Any, ...], mode: str, top_k: int, out: tuple[int, ...], device: str, handle: Any
) -> tuple[pygraph, int]:
    """Return the built graph for these arguments and its workspace size; `device` is only part of the cache key."""
    kind = to_data_type(kinds[0][3])
    graph = pygraph(handle=handle, io_data_type=kind, compute_data_type=data_type.FLOAT)
    tensors: dict[str, Any] = {
        name: graph.tensor(dims, strides, dtype, name=name) for name, dims, strides, dtype in kinds
    }
    result = graph.moe_grouped_matmul(
        **tensors, mode=moe_grouped_matmul_mode[mode.upper()], top_k=top_k if mode == "scatter" else 0, name="moe"
    )
    result.set_name("out").set_output(True).set_data_type(kind).set_dim(out)
    result.set_stride([out[1] * out[2], out[2], 1])
    graph.build([heur_mode.A, heur_mode.FALLBACK])
    return graph, graph.get_workspace_size()


def __getattr__(name: str) -> Any:
    if name in _KERNEL_NAMES:
        raise make_kernel_not_offered_error(f"cudnn.experimental.ops.{name} is a kernel of cudnn-frontend's own")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
