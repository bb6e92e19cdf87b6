"""Read calls of torch's attention and of this package's operators into one form: named tensors and options."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from ..errors import CudnnBackendError
from ..graph import Graph
from ..graph.attention import sdpa_backward, sdpa_forward
from ..graph.attention.problem import TensorLayout
from ..system.version import parse_version_numbers
from ..torch_ops.arguments import TENSORS, OperatorOptions, get_data_type, has_supported_strides
from ..torch_ops.graphs import make_attention_problem
from ..torch_ops.operators import is_eager
from ..torch_ops.sequence_view import TOKEN_TENSORS, make_attention_problem_of_call, make_sequence_view_of_call

__all__ = [
    "READERS",
    "AttentionCall",
    "UncheckedCallError",
    "bind_arguments",
    "build_graph_of_call",
    "copy_tensor_bytes_to_host",
    "copy_with_strides",
]

_CAUSAL = 0


class UncheckedCallError(Exception):
    """Raised for an attention call that an audit cannot check; the message is the reason."""


@dataclass(frozen=True)
class AttentionCall:
    """The tensors and options of an attention call, named like the parameters of this package's operators.

    Attributes
    ----------
    named, options
        Tensors by the names of :data:`~cudnn_backend_py.torch_ops.arguments.TENSORS`, as [b, h, s, d], [t, h, d] or
        pages [pages, h, tokens, d]; and options. The bias of torch's function may be bool.
    given
        The objects of the call that Q, K and V were read from, by name: what gradients flow to.
    of_output
        What makes the output of the call that of the named tensors.
    """

    named: dict[str, Any]
    options: OperatorOptions
    given: dict[str, Any]
    of_output: Callable[[Any], Any]

    @property
    def is_dense(self) -> bool:
        """Whether the tensors are [b, h, s, d], without pages."""
        return self.named["q"].dim() == 4 and self.named.get("block_table") is None


@functools.cache
def _read_signature(function: Any) -> inspect.Signature:
    return inspect.signature(function)


def bind_arguments(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of a call by name, including defaults."""
    found = _read_signature(function).bind(*args, **kwargs)
    found.apply_defaults()
    return dict(found.arguments)


def _select_first_output(result: Any) -> Any:
    return result[0] if isinstance(result, tuple) else result


_SDPA = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal", "scale", "enable_gqa")
_SDPA_DEFAULTS = (None, None, None, None, 0.0, False, None, False)


def _read_sdpa_call(_original: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> AttentionCall:
    """Read a call of torch's ``scaled_dot_product_attention``, or of our function with the same arguments."""
    found: list[Any] = [
        args[at] if at < len(args) else kwargs.get(name, default)
        for at, (name, default) in enumerate(zip(_SDPA, _SDPA_DEFAULTS, strict=True))
    ]
    q, k, v, mask, dropout, causal, scale, _ = found
    given = {"q": q, "k": k, "v": v}
    _check_tensors_supported(*given.values())
    flat = q.dim() == 3
    if q.dim() not in (3, 4):
        raise UncheckedCallError(f"q has {q.dim()} dims; the audit checks q with 3 or 4 dims")
    if flat:
        q, k, v = (x.unsqueeze(1) for x in (q, k, v))
    if mask is not None:
        mask = mask.unsqueeze(1) if flat and mask.dim() == 3 else mask
        while mask.dim() < 4:
            mask = mask.unsqueeze(0)
    options = OperatorOptions(scale, dropout, None, _CAUSAL if causal else None, False, None, False)
    named = {"q": q, "k": k, "v": v, "bias": mask}
    return AttentionCall(named, options, given, (lambda o: o.unsqueeze(1)) if flat else lambda o: o)


def _read_call_of_package_operator(original: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> AttentionCall:
    """Read a call of this package's operators, with dense, packed or paged tensors."""
    found = bind_arguments(original, args, kwargs)
    if found.get("out") is not None and torch.is_grad_enabled() and found["out"].requires_grad:
        raise UncheckedCallError("the tensor of out= requires a gradient, which the audit does not check")
    paged = "k_cache" in found
    q, k, v = found["q"], found["k_cache" if paged else "k"], found["v_cache" if paged else "v"]
    given = {"q": q, "k": k, "v": v}
    _check_tensors_supported(*given.values())
    named = {name: _flatten_heads(found.get(name)) for name in ("seq_len_q", "seq_len_kv", "alibi_slopes", "sink")}
    named |= {"bias": found.get("bias"), "cu_seqlens_q": found.get("cu_seqlens_q")}
    named["cu_seqlens_k"] = found.get("cu_seqlens_k")
    turned = paged and named["cu_seqlens_q"] is None
    if paged:
        named |= {"block_table": found["block_table"], "seq_len_kv": _flatten_heads(found["cache_seqlens"])}
        q = q.transpose(1, 2) if turned else q
        k, v = (k.transpose(1, 2), v.transpose(1, 2)) if found["kv_layout"] == "NHD" else (k, v)
    elif named["cu_seqlens_q"] is not None and named["cu_seqlens_k"] is None:
        named["cu_seqlens_k"] = named["cu_seqlens_q"]
    max_q, max_kv = found.get("max_seqlen_q"), found.get("max_seqlen_k")
    options = OperatorOptions(
        found["scale"],
        found.get("dropout", 0.0),
        found["left_bound"],
        _CAUSAL if found["causal"] else found["right_bound"],
        found["alignment"] == "bottom_right",
        found["soft_cap"],
        bool(found.get("deterministic")),
        max_q,
        max_q if max_kv is None and not paged else max_kv,
    )
    named = {"q": q, "k": k, "v": v, **{name: x for name, x in named.items() if x is not None}}
    return AttentionCall(
        named, options, given, lambda o: _select_first_output(o).transpose(1, 2) if turned else _select_first_output(o)
    )


READERS = {"torch": _read_sdpa_call, "operators": _read_call_of_package_operator}


def _flatten_heads(x: Any) -> Any:
    return x if x is None or x.dim() == 1 else x.reshape(-1)


def _check_tensors_supported(*tensors: Any) -> None:
    q = tensors[0]
    if not is_eager(torch, tensors):
        on_gpu = isinstance(q, torch.Tensor) and q.is_cuda
        raise UncheckedCallError(
            "a torch mode, transform or tensor subclass is active" if on_gpu else "tensors are not on a GPU"
        )
    if any(x.is_nested or x.numel() == 0 for x in tensors):
        raise UncheckedCallError("a tensor is nested or empty, which the audit does not check")
    if q.dtype not in (torch.float16, torch.bfloat16, torch.float32):
        raise UncheckedCallError(f"the audit does not check attention in {str(q.dtype).removeprefix('torch.')}")


# for the case


def build_graph_of_call(
    call: AttentionCall, tensors: Mapping[str, Any], *, backward: bool, cudnn: str, sm: int
) -> tuple[Graph | None, dict[str, Any], str]:
    """Return the graph that this package's operators build for a call, and the call's tensors by graph name.

    Packed tokens are ragged sequences. Where there is no such graph it is None, and the last of the three says why.

    Parameters
    ----------
    tensors
        By name, those that are written too: of a pass that writes dQ, dK, dV also dO and O.
    """
    make = sdpa_backward if backward else sdpa_forward
    held = dict(tensors)
    try:
        if call.is_dense:
            held = {
                name: x if name in TOKEN_TENSORS[True] and has_supported_strides(x) else x.contiguous()
                for name, x in held.items()
            }
            facts = {
                name: TensorLayout(tuple(x.shape), tuple(x.stride()), get_data_type(x)) for name, x in held.items()
            }
            problem = make_attention_problem(facts, call.options, backward=backward)
        else:
            held = {name: _transpose_to_tokens_before_heads(name, x) for name, x in held.items()}
            named = {**dict.fromkeys((*TENSORS, *TOKEN_TENSORS[True], "stats")), **held}
            problem = replace(
                make_attention_problem_of_call(
                    backward, named, make_sequence_view_of_call(backward, named, call.options)
                ),
                ragged=held["q"].dim() == 3,
            )
            held = _convert_call_tensors_for_graph(held)
        numbers = parse_version_numbers(cudnn)
        graph = make(problem, version=(numbers[0], numbers[1], numbers[2]), sm=sm, allow_hazards=True)
        return graph, held, ""
    except (CudnnBackendError, AttributeError, AssertionError) as error:
        return None, held, f"cuDNN has no such attention: {error or 'another data type'}"


def _transpose_to_tokens_before_heads(name: str, x: Any) -> Any:
    """Return Q, O or a gradient stored with tokens before heads in memory; paged K and V keep their order."""
    if name in TOKEN_TENSORS[True] and x.dim() == 4:
        return x if name in ("k", "v") else x.transpose(1, 2).contiguous().transpose(1, 2)
    return x.contiguous()


_SIDES = {"q": "q", "o": "q", "do": "q", "dq": "q", "k": "k", "v": "k", "dk": "k", "dv": "k"}


def _convert_call_tensors_for_graph(held: Mapping[str, Any]) -> dict[str, Any]:
    """Return a call's tensors by name, with offsets, lengths and page tables in the form that the graph needs."""
    found = {name: x for name, x in held.items() if name not in ("cu_seqlens_q", "cu_seqlens_k", "block_table")}
    q = held["q"]
    starts = {side: held.get(f"cu_seqlens_{side}") for side in "qk"}
    for name, side in _SIDES.items():
        x, begin = held.get(name), starts[side]
        if x is not None and x.dim() == 3 and begin is not None:
            found[f"ragged_{name}"] = begin * (x.shape[1] * x.shape[2])
    for side, begin in starts.items():
        if begin is not None:
            found["seq_len_q" if side == "q" else "seq_len_kv"] = begin.diff()
    if (table := held.get("block_table")) is not None:
        found |= {"page_table_k": table, "page_table_v": table}
        if q.dim() == 4:
            found["seq_len_q"] = torch.full_like(held["seq_len_kv"], q.shape[2])
    return {name: x if name in TOKEN_TENSORS[True] else x.contiguous() for name, x in found.items()}


def copy_tensor_bytes_to_host(x: Any) -> Any:
    """Copy the bytes from a tensor's first to its last element to the host; wait for the GPU."""
    return np.asarray(view_memory_span(x).view(torch.uint8).cpu())


def view_memory_span(x: Any) -> Any:
    """Return a flat view of a tensor's memory from its first to its last element, with gaps."""
    last = sum((size - 1) * step for size, step in zip(x.shape, x.stride(), strict=True))
    return x.as_strided((1 + last,), (1,))


def copy_with_strides(x: Any) -> Any:
    """Return a copy of a tensor with the same strides."""
    return x.clone() if x.numel() == 0 else view_memory_span(x).clone().as_strided(x.shape, x.stride())
