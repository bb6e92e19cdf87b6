"""``scaled_dot_product_attention`` with torch's arguments: shapes are broadcast, and masks become a bias."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from ..errors import UsageError
from .arguments import get_type_name
from .compiled import DENSE, STEP
from .functions import Alignment, attention, default_shapes
from .operators import load_torch

__all__ = ["compute_attention_with_broadcasting", "convert_mask_to_bias", "scaled_dot_product_attention"]


def scaled_dot_product_attention(
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    """Compute ``torch.nn.functional.scaled_dot_product_attention`` with a plan of cuDNN.

    Its arguments and results are those of torch, with these limits:

    * Tensors are float16 or bfloat16, on one CUDA device. Nested tensors are refused: :func:`attention_varlen` takes
      their values and offsets.
    * A row that `attn_mask` leaves no key is 0, as of torch's math backend.
    * `dropout_p` draws another mask than torch from the same generator.
    * There is no second derivative, and no forward-mode derivative. ``torch.func.grad``, ``vjp``, ``jacrev`` and
      ``vmap`` work, but derivatives of ``torch.func`` not inside ``torch.compile``.

    Parameters
    ----------
    query, key, value
        [..., s_q, d], [..., s_kv, d] and [..., s_kv, d_v] of 2 dims or more, in any layout with d dense: strides are
        taken as they are, others are copied. The dims before the last two are broadcast. A head dim that is no
        multiple of 8 is padded.
    attn_mask
        Broadcast to [..., s_q, s_kv]: bool (True takes part), of the query's type, or float32, which is rounded to the
        query's type, finite numbers to finite ones. Or a ``torch.nn.attention.bias.CausalBias``. A mask that needs a
        gradient gets one.
    dropout_p
        Of at least 0 and at most 1.
    is_causal
        Row i sees the keys up to i. With `attn_mask`, a key must be allowed by both.
    scale
        Factor of the scores, 1 / sqrt(d) if not given; a number, or a tensor of no dims without a gradient, which is
        read back from the GPU.
    enable_gqa
        Let key and value have fewer heads, of which query's number is a multiple.

    Returns
    -------
    Tensor
        [..., s_q, d_v], laid out as `query`: [b, s, h, d] in memory if its heads are closer than its rows.

    Raises
    ------
    EnvironmentNotReady
        ``torch-missing``.
    UsageError
        ``torch-tensor`` for a tensor that cannot be taken, ``torch-option`` for an option, ``plan-in-capture``.
    GraphError
        ``attention-heads``, ``attention-hazard``: what cuDNN is known to get wrong.
    NotSupported
        What cuDNN refuses, such as a head dim above 256.
    """
    torch = load_torch()
    if not torch.compiler.is_compiling() and STEP.call is not None and attn_mask is None and not dropout_p:
        found = _run_by_compiled_launcher(torch, query, key, value, is_causal, scale, enable_gqa)
        if found is not None:
            return found
    _check_inputs(query=query, key=key, value=value)
    scale = None if scale is None else _read_number(torch, "scale", scale)
    dropout_p = _read_number(torch, "dropout_p", dropout_p)
    alignment: Alignment = "top_left"
    if attn_mask is not None and _is_causal_bias(torch, attn_mask):
        if is_causal:
            raise UsageError(
                "attn_mask is a CausalBias, so is_causal=True cannot be given as well", code="torch-option"
            )
        attn_mask, is_causal, alignment = None, True, _read_causal_bias(attn_mask, query, key)
    if torch.is_autocast_enabled("cuda"):
        kind = torch.get_autocast_dtype("cuda")
        query, key, value = query.to(kind), key.to(kind), value.to(kind)
    return compute_attention_with_broadcasting(
        torch,
        (query, key, value),
        attn_mask,
        enable_gqa=enable_gqa,
        dropout=dropout_p,
        causal=is_causal,
        alignment=alignment,
        scale=scale,
    )


def compute_attention_with_broadcasting(
    torch: Any, tensors: tuple[Any, Any, Any], mask: Any, *, enable_gqa: bool, dropout: float, **options: Any
) -> Any:
    """Compute attention of tensors with any number of dims; `options` are further options of :func:`attention`.

    Parameters
    ----------
    mask
        As torch's ``attn_mask``, or None.
    dropout
        As torch's ``dropout_p``: 1 is allowed.

    Raises
    ------
    UsageError
        ``torch-tensor``, ``torch-option``.
    """
    shapes = _BroadcastShapes.from_inputs(*tensors, enable_gqa)
    query, key, value = shapes.expand_inputs(*tensors)
    bias = None if mask is None else convert_mask_to_bias(torch, shapes.expand_mask(mask, query, key), query)
    o = attention(query, key, value, bias=bias, dropout=0.0 if dropout == 1 else dropout, **options)
    if dropout == 1:  # nothing is kept, and all gradients are 0
        o = o.nan_to_num() * 0
    return o if shapes.dims == 4 else o.reshape((*shapes.leading_dims, *o.shape[-2:]))


def convert_mask_to_bias(torch: Any, mask: Any, query: Any) -> Any:
    """Convert torch's attn_mask to a bias of the query's type, to be added to the scores.

    Raises
    ------
    UsageError
        ``torch-tensor``.
    """
    kind = query.dtype
    if mask.dtype == kind:
        return mask
    if mask.dtype == torch.bool:
        return torch.zeros_like(mask, dtype=kind).masked_fill(mask.logical_not(), -math.inf)
    if mask.dtype != torch.float32:
        raise UsageError(
            f"attn_mask must be bool, float32 or the query's {get_type_name(query)}, got {get_type_name(mask)}",
            code="torch-tensor",
        )
    limits = torch.finfo(kind)
    return torch.where(mask.isinf(), mask, mask.clamp(limits.min, limits.max)).to(kind)


class _BroadcastShapes(NamedTuple):
    """The dims to which query, key and value are broadcast, and how they become [b, h, s, d].

    Parameters
    ----------
    dims
        Of the result.
    batch, heads
        Its dims before the heads, and its heads; where there are less than 4 dims, nothing is a head.
    has_heads
        Whether the last dim but two is that of heads.
    keeps_heads
        Whether key and value keep their heads, which groups of query heads share.
    """

    dims: int
    batch: tuple[Any, ...]
    heads: Any
    has_heads: bool
    keeps_heads: bool

    @classmethod
    def from_inputs(cls, query: Any, key: Any, value: Any, enable_gqa: bool) -> _BroadcastShapes:
        """Return the dims to which the inputs are broadcast; raise if they cannot be."""
        named = {"query": query, "key": key, "value": value}
        dims = max(x.dim() for x in named.values())
        if enable_gqa:
            for name, x in named.items():
                if x.dim() < 3:
                    raise _make_tensor_error(f"{name} must have at least 3 dims for enable_gqa, got {x.dim()}")
        has_heads = enable_gqa or dims >= 4
        shapes = [_add_leading_dims(x, dims, has_heads).shape for x in named.values()]
        batch = tuple(
            _compute_broadcast_size([shape[axis] for shape in shapes], named, "dims before the last two")
            for axis in range(len(shapes[0]) - 3)
        )
        counts = [shape[-3] for shape in shapes]
        if enable_gqa:
            return cls(dims, batch, counts[0], has_heads, True)
        heads = _compute_broadcast_size(
            counts, named, "heads", "enable_gqa=True lets groups of query heads share key and value"
        )
        return cls(dims, batch, heads, has_heads, bool(counts[0] != 1 and counts[1] == 1 and counts[2] == 1))

    @property
    def leading_dims(self) -> tuple[Any, ...]:
        """All dims of the result except the last two."""
        whole = (*self.batch, self.heads) if self.has_heads else self.batch
        return whole[len(whole) - (self.dims - 2) :]

    def expand_inputs(self, query: Any, key: Any, value: Any) -> tuple[Any, ...]:
        """Return query, key and value, broadcast and reshaped to [b, h, s, d]."""
        return (
            self._expand(query, self.heads),
            *(self._expand(x, None if self.keeps_heads else self.heads) for x in (key, value)),
        )

    def _expand(self, x: Any, heads: Any) -> Any:
        x = _add_leading_dims(x, self.dims, self.has_heads)
        dims = (*self.batch, x.shape[-3] if heads is None else heads, *x.shape[-2:])
        x = x if tuple(x.shape) == dims else x.expand(dims)
        return x if len(dims) == 4 else x.flatten(0, -4)

    def expand_mask(self, mask: Any, query: Any, key: Any) -> Any:
        """Return a mask as [b or 1, h or 1, s_q, s_kv], for query and key of 4 dims."""
        if not hasattr(mask, "dim"):
            raise _make_tensor_error(f"attn_mask must be a tensor, got {type(mask).__name__}")
        whole = (*self.leading_dims, query.shape[2], key.shape[2])
        fits = mask.dim() <= len(whole)
        for mine, other in zip(reversed(mask.shape), reversed(whole), strict=False):
            fits = fits and (mine == 1 or mine == other)
        if not fits:
            raise _make_tensor_error(f"attn_mask is {list(mask.shape)}, which does not broadcast to {list(whole)}")
        mask = _add_leading_dims(mask, self.dims, self.has_heads)
        mask = mask.expand(*mask.shape[:-2], *whole[-2:])
        if mask.dim() == 4:
            return mask
        is_shared = all(dim == 1 for dim in mask.shape[:-3])
        return (mask if is_shared else mask.expand(*self.batch, *mask.shape[-3:])).flatten(0, -4)


def _add_leading_dims(x: Any, dims: int, has_heads: bool) -> Any:
    """Return `x` with leading dims of size 1 added: to `dims` dims, at least 4, with an axis of heads if missing."""
    for _ in range(dims - x.dim()):
        x = x.unsqueeze(0)
    if not has_heads:
        x = x.unsqueeze(-3)
    while x.dim() < 4:
        x = x.unsqueeze(0)
    return x


def _compute_broadcast_size(sizes: list[Any], named: dict[str, Any], what: str, fix: str | None = None) -> Any:
    found = 1
    for size in sizes:
        if size != 1:
            if found != 1 and found != size:
                dims = ", ".join(f"{name} {list(x.shape)}" for name, x in named.items())
                raise _make_tensor_error(f"the {what} of {dims} must be equal or 1, so that they broadcast", fix)
            found = size
    return found


def _check_inputs(**tensors: Any) -> None:
    for name, x in tensors.items():
        if not hasattr(x, "dim"):
            raise _make_tensor_error(f"{name} must be a tensor, got {type(x).__name__}")
        if x.is_nested:
            raise _make_tensor_error(
                f"{name} is a nested tensor, a dense one is needed",
                "give the values and offsets of the nested tensor to attention_varlen (no copy if it is jagged)",
            )
        if x.dim() < 2:
            raise _make_tensor_error(f"{name} must have at least 2 dims, got {x.dim()}")


def _read_number(torch: Any, name: str, value: Any) -> Any:
    """Return a number; if it is a tensor without dims, read its value from the GPU."""
    if isinstance(value, torch.Tensor):
        if value.dim() or value.requires_grad:
            what = "that requires a gradient" if value.requires_grad else f"of {value.dim()} dims"
            raise UsageError(f"{name} must be a number, got a tensor {what}", code="torch-option")
        value = value.item()
    return value


def _is_causal_bias(torch: Any, mask: Any) -> bool:
    if type(mask) is torch.Tensor or not hasattr(mask, "variant"):
        return False
    from torch.nn.attention.bias import CausalBias

    return isinstance(mask, CausalBias)


def _read_causal_bias(mask: Any, query: Any, key: Any) -> Alignment:
    given, needed = (mask.seq_len_q, mask.seq_len_kv), (query.shape[-2], key.shape[-2])
    if given != needed:
        raise _make_tensor_error(f"attn_mask is a CausalBias of {list(given)}, {list(needed)} is needed")
    is_square = needed[0] == needed[1]
    return "bottom_right" if mask.variant.name == "LOWER_RIGHT" and not is_square else "top_left"


def _make_tensor_error(headline: str, fix: str | None = None) -> UsageError:
    return UsageError(headline, code="torch-tensor", fix=fix)


def _run_by_compiled_launcher(torch: Any, q: Any, k: Any, v: Any, is_causal: bool, scale: Any, enable_gqa: bool) -> Any:
    """Run the call by C++ code and return the result; None if C++ code has no recipe for the call."""
    try:
        if not (enable_gqa or (q.dim() > 1 and q.size(1) == k.size(1) == v.size(1))):
            return None
    except (AttributeError, IndexError, RuntimeError):  # no tensors, of other dims, or nested
        return None
    right, is_deterministic = 0 if is_causal else None, torch._C._get_deterministic_algorithms()
    options = (scale, 0.0, None, right, False, None, is_deterministic, None, None, default_shapes(), False)
    return STEP.call(DENSE, q, k, v, None, None, None, None, None, None, None, None, None, *options)  # type: ignore[misc]
