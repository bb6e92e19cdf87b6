"""Arguments of the attention operators: tensors by name, options, and checks of both. Imports no torch.

Real and fake kernels share :func:`check_call`. Dims of a traced program may be symbols: `decide` returns whether a
condition on them holds, and False where that is not known before the program runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from numbers import Integral, Real
from typing import Any, NamedTuple

from ..errors import UsageError
from ..execution.any_shape import POLICIES
from ..generated.enums import DataType
from ..graph.attention.problem import check_heads
from ..graph.data_types import DATA_TYPES, FP8_TYPES, HALF_TYPES

__all__ = [
    "ALIGNMENT",
    "SCALES",
    "TENSORS",
    "Decide",
    "OperatorOptions",
    "Scales",
    "check_call",
    "check_dims",
    "check_kv_pages_need_no_copy",
    "check_options",
    "check_output_tensor",
    "check_scales",
    "check_tensors",
    "get_data_type",
    "get_required_head_dim_multiple",
    "get_type_name",
    "has_supported_strides",
    "is_fp8",
]

# The tensors an operator takes, in its order; the first three must be there. Tokens are [b, h, s, d], or [t, h, d] with
# cu_seqlens; with a block_table k and v are pages, [pages, h, tokens of a page, d].
TENSORS = (
    "q",
    "k",
    "v",
    "bias",
    "seq_len_q",
    "seq_len_kv",
    "cu_seqlens_q",
    "cu_seqlens_k",
    "block_table",
    "alibi_slopes",
    "sink",
    "rng",
)
ALIGNMENT = 16  # bytes, of addresses and strides
Decide = Callable[[Any], bool]


class OperatorOptions(NamedTuple):
    """The options of a call of an attention operator, in the order of its schema."""

    scale: float | None
    dropout: float
    left_bound: int | None
    right_bound: int | None
    bottom_right: bool
    soft_cap: float | None
    deterministic: bool
    max_q: int | None = None  # packed tokens: the longest sequence
    max_kv: int | None = None  # packed tokens and pages: the longest sequence
    shapes: str = "exact"


class Scales(NamedTuple):
    """Scale factors of FP8 attention, each a float32 tensor of one element on the GPU.

    Q, K, V in memory times their ``descale`` are the numbers meant. Probabilities are rounded to 8 bits times
    ``scale_s``, which ``descale_s`` takes back; O is written times ``scale_o``. ``amax_s`` and ``amax_o``, which a call
    returns, are what the next call's ``scale_s`` and ``scale_o`` can be made from.
    """

    descale_q: Any
    descale_k: Any
    descale_v: Any
    descale_s: Any
    scale_s: Any
    scale_o: Any


SCALES = Scales._fields


_DATA_TYPES_BY_NAME = {DATA_TYPES[kind].torch[0]: kind for kind in (*HALF_TYPES, *FP8_TYPES) if DATA_TYPES[kind].torch}
_FP8_NAMES = frozenset(name for name, kind in _DATA_TYPES_BY_NAME.items() if kind in FP8_TYPES)


def get_type_name(x: Any) -> str:
    """Return the name of a tensor's type, such as ``float16``."""
    return str(x.dtype).removeprefix("torch.")


def get_data_type(x: Any) -> DataType | None:
    """Return cuDNN's data type for a tensor of a type allowed for Q, K, V; None for other types."""
    return _DATA_TYPES_BY_NAME.get(get_type_name(x))


def is_fp8(x: Any) -> bool:
    """Return whether a tensor holds 8-bit floats."""
    return get_type_name(x) in _FP8_NAMES


def has_supported_strides(x: Any) -> bool:
    """Return whether cuDNN supports a tensor's strides: head dim contiguous, the others multiples of 16 bytes."""
    size = x.element_size()
    return (x.stride(-1) == 1 or x.shape[-1] == 1) and all(
        dim == 1 or (stride > 0 and stride * size % ALIGNMENT == 0)
        for dim, stride in zip(x.shape[:-1], x.stride()[:-1], strict=True)
    )


def _make_tensor_error(headline: str, fix: str | None = None) -> UsageError:
    return UsageError(headline, code="torch-tensor", fix=fix)


def _make_option_error(headline: str, fix: str | None = None) -> UsageError:
    return UsageError(headline, code="torch-option", fix=fix)


def check_dims(count: int, meaning: str, fix: str | None = None, **tensors: Any) -> None:
    """Check that the arguments are tensors with the given number of dims.

    Raises
    ------
    UsageError
        ``torch-tensor``.
    """
    for name, x in tensors.items():
        dim = getattr(x, "dim", None)
        if dim is None:
            raise _make_tensor_error(f"{name} is {type(x).__name__}, a tensor is needed")
        if dim() != count:
            raise _make_tensor_error(f"{name} has {dim()} dims, {meaning} are needed", fix)


def _check_device(named: Mapping[str, Any]) -> None:
    """Check that Q, K and V are on the same CUDA device and have the same supported type."""
    q = named["q"]
    for name in "qkv":
        x = named[name]
        if x.device != q.device or x.device.type not in ("cuda", "meta"):
            other = "" if x is q else f", q on {q.device}"
            raise _make_tensor_error(f"{name} is on {x.device}{other}: one CUDA device is needed")
        if get_type_name(x) not in _DATA_TYPES_BY_NAME or x.dtype != q.dtype:
            other = "" if x is q else f", q {get_type_name(q)}"
            raise _make_tensor_error(
                f"{name} is {get_type_name(x)}{other}: float16 for all or bfloat16 for all is needed, or 8-bit floats"
            )


def check_scales(q: Any, scales: Any) -> tuple[Any, ...]:
    """Return the scale factors of FP8 attention as a tuple; empty for other data types.

    Raises
    ------
    UsageError
        ``torch-option`` if they are missing, or given for another type; ``torch-tensor``.
    """
    if not is_fp8(q):
        if scales is not None:
            raise _make_option_error(f"scales are only for 8-bit floats, but q is {get_type_name(q)}")
        return ()
    if scales is None:
        raise _make_option_error(
            f"q is {get_type_name(q)}: its scales are needed",
            fix="give scales=Scales(descale_q=..., ...), tensors of one float32 each",
        )
    if len(scales) != len(SCALES):
        raise _make_option_error(f"{len(scales)} scales are given, but {len(SCALES)} are needed: {', '.join(SCALES)}")
    return tuple(scales)


def _check_finite_number(name: str, value: Any) -> None:
    if isinstance(value, bool) or not (isinstance(value, Real) or _is_symbolic(value)) or value - value != 0:
        raise _make_option_error(f"{name} is {value!r}, a finite number is needed")


def _check_integer_option(name: str, value: Any, least: int, decide: Decide) -> None:
    is_count = not isinstance(value, bool) and (isinstance(value, Integral) or _is_symbolic(value))
    if not is_count or decide(value < least):
        raise _make_option_error(f"{name} is {value!r}, an int of {least} or more is needed")


def _is_symbolic(value: Any) -> bool:
    """Return whether a number is symbolic, as the dims that torch passes to a fake kernel."""
    return hasattr(value, "node")


def check_call(
    named: Mapping[str, Any], options: OperatorOptions, *, backward: bool = False, decide: Decide = bool
) -> None:
    """Check the tensors and options of a forward or backward pass; optional tensors may be None.

    Parameters
    ----------
    decide
        Returns whether a condition on dims holds; False where that is not known yet.

    Raises
    ------
    UsageError
        ``torch-tensor``, ``torch-option``.
    GraphError
        ``attention-heads``.
    """
    check_options(options, decide)
    _check_device(named)
    _check_dim_counts(named)
    check_tensors(named, decide)
    _check_head_counts(named, decide)
    _check_bias(named, options, decide)
    if backward:
        _check_gradients(named)


def check_options(options: OperatorOptions, decide: Decide = bool) -> None:
    """Check the values of the options of an attention operator.

    Raises
    ------
    UsageError
        ``torch-option``.
    """
    for name in ("scale", "soft_cap"):
        if getattr(options, name) is not None:
            _check_finite_number(name, getattr(options, name))
    if options.soft_cap is not None and options.soft_cap <= 0:
        raise _make_option_error(f"soft_cap is {options.soft_cap}, a number above 0 is needed")
    _check_finite_number("dropout", options.dropout)
    if not 0 <= options.dropout < 1:
        raise _make_option_error(f"dropout is {options.dropout}, a probability of at least 0 and below 1 is needed")
    for name, least in (("left_bound", 1), ("right_bound", 0), ("max_q", 0), ("max_kv", 0)):
        if getattr(options, name) is not None:
            _check_integer_option(name, getattr(options, name), least, decide)
    if options.shapes not in POLICIES:
        raise _make_option_error(f"shapes must be one of {', '.join(POLICIES)}, got {options.shapes!r}")


def _are_dims_different(dims: Iterable[Any], needed: Iterable[Any], decide: Decide) -> bool:
    found, wanted = list(dims), list(needed)
    return len(found) != len(wanted) or any(decide(x != y) for x, y in zip(found, wanted, strict=True))


def _check_dim_counts(named: Mapping[str, Any]) -> None:
    q, is_paged, is_packed = named["q"], named["block_table"] is not None, named["cu_seqlens_q"] is not None
    check_dims(3 if is_packed else 4, "t, h and d" if is_packed else "b, h, s and d", q=q)
    if is_paged:
        check_dims(4, "pages, h, tokens of a page and d", k=named["k"], v=named["v"])
    else:
        check_dims(q.dim(), "those of q", k=named["k"], v=named["v"])
        if (named["seq_len_q"] is None) != (named["seq_len_kv"] is None):
            given, other = sorted(("seq_len_q", "seq_len_kv"), key=lambda name: named[name] is None)
            raise _make_option_error(f"{given} is given without {other}", fix="give both or neither")
        if is_packed and named["cu_seqlens_k"] is None:
            raise _make_option_error("cu_seqlens_q is given without cu_seqlens_k", fix="give both or neither")


def check_tensors(named: Mapping[str, Any], decide: Decide = bool) -> None:
    """Check types, dims and device of a pass's tensors, given by name; optional tensors may be None.

    Raises
    ------
    UsageError
        ``torch-tensor``.
    """
    q, small, bias = named["q"], get_type_name(named["q"]), named["bias"]
    needed: dict[str, tuple[tuple[Any, ...], str]] = {
        **(_get_required_dims_of_packed_call(named) if q.dim() == 3 else _get_required_dims_of_dense_call(named)),
        "bias": (() if bias is None else tuple(bias.shape), small),  # its dims are checked with the problem
        "dropout_seed": ((4,), "int64"),
        "rng": ((4,), "int64"),
        **dict.fromkeys(SCALES, ((1,), "float32")),
    }
    for name in ("alibi_slopes", "sink"):
        needed[name] = ((q.shape[1],), "float32")
    for name, (dims, kind) in needed.items():
        x = named.get(name)
        if x is None:
            continue
        if not hasattr(x, "device"):
            raise _make_tensor_error(f"{name} is {type(x).__name__}, a tensor is needed")
        shape = tuple(x.shape) if name not in SCALES else (x.numel(),)
        if get_type_name(x) != kind or x.device != q.device or _are_dims_different(shape, dims, decide):
            raise _make_tensor_error(
                f"{name} is {get_type_name(x)} {list(x.shape)} on {x.device}, "
                f"{kind} {list(dims)} on {q.device} is needed"
            )
    if bias is not None and bias.dim() != 4:
        raise _make_tensor_error(f"bias has {bias.dim()} dims, [b or 1, h or 1, s_q or 1, s_kv or 1] is needed")
    for name in "qv":
        d, step = named[name].shape[-1], get_required_head_dim_multiple(q)
        if decide(d < 1) or decide(d % step != 0):
            raise _make_tensor_error(
                f"the head dim of {name} is {d}, a multiple of {step} is needed",
                "pad it with zeros, and keep the scale of the head dim without them",
            )
    table = named["block_table"]
    if table is not None:
        page = named["k"].shape[2]
        if decide(page < 1) or decide(page & (page - 1) != 0):
            raise _make_tensor_error(f"a page has {page} tokens, a power of two is needed")


def get_required_head_dim_multiple(q: Any) -> int:
    """Return the number of which head dims must be a multiple, for the type of this tensor."""
    return 16 if is_fp8(q) else 8


def check_kv_pages_need_no_copy(named: Mapping[str, Any]) -> None:
    """Check that strides and addresses of K and V pages allow their use without a copy.

    Raises
    ------
    UsageError
        ``torch-tensor``.
    """
    if named["block_table"] is None:
        return
    for name in "kv":
        if not has_supported_strides(named[name]) or named[name].data_ptr() % ALIGNMENT:
            raise _make_tensor_error(
                f"the pages of {name} have strides {list(named[name].stride())} and begin at address "
                f"{named[name].data_ptr():#x}: stride 1 for d is needed, and multiples of {ALIGNMENT} bytes for the "
                "other strides and the address",
                fix="allocate the cache with such strides: pages are used in place and not copied",
            )


def _check_head_counts(named: Mapping[str, Any], decide: Decide) -> None:
    heads, of_k, of_v = (named[name].shape[1] for name in "qkv")
    if any(decide(shared < 1) or decide(heads % shared != 0) for shared in (of_k, of_v)):
        check_heads(int(heads), int(of_k), int(of_v))


def _check_bias(named: Mapping[str, Any], options: OperatorOptions, decide: Decide) -> None:
    """Check that each dim of the bias is 1 or equals that of the scores."""
    q, k, bias = named["q"], named["k"], named["bias"]
    if bias is None:
        return
    max_q = options.max_q or 1
    scores = (q.shape[0], q.shape[1], q.shape[2], k.shape[2])
    if q.dim() == 3:
        scores = (named["cu_seqlens_q"].shape[0] - 1, q.shape[1], max_q, options.max_kv or max_q)
    if any(decide(x != 1) and decide(x != y) for x, y in zip(bias.shape, scores, strict=True)):
        raise _make_tensor_error(f"bias is {list(bias.shape)}, {list(scores)} is needed, or 1 in place of each dim")


def _check_gradients(named: Mapping[str, Any]) -> None:
    what = "8-bit floats" if is_fp8(named["q"]) else "paged K and V" if named["block_table"] is not None else ""
    if what:
        raise _make_option_error(
            f"the gradient of attention with {what} is not supported", fix="call it under torch.no_grad()"
        )


def check_output_tensor(out: Any, q: Any, v: Any, decide: Decide = bool) -> None:
    """Check that `out` has the dims, type and device of the output.

    Raises
    ------
    UsageError
        ``torch-tensor``.
    """
    dims = (*q.shape[:-1], v.shape[-1])
    if out.dtype != q.dtype or out.device != q.device or _are_dims_different(out.shape, dims, decide):
        raise _make_tensor_error(
            f"out is {get_type_name(out)} {list(out.shape)} on {out.device}, "
            f"{get_type_name(q)} {list(dims)} on {q.device} is "
            "needed"
        )


def _get_length_and_page_dims(named: Mapping[str, Any], batch: int) -> dict[str, tuple[tuple[Any, ...], str]]:
    """Return the required dims and types of sequence lengths, K and V pages, and the block table."""
    k, table = named["k"], named["block_table"]
    found: dict[str, tuple[tuple[Any, ...], str]] = {
        "seq_len_q": ((batch,), "int32"),
        "seq_len_kv": ((batch,), "int32"),
        "cu_seqlens_q": ((batch + 1,), "int32"),
        "cu_seqlens_k": ((batch + 1,), "int32"),
    }
    if table is not None:
        width = table.shape[1] if table.dim() == 2 else 0
        found["block_table"] = ((batch, width), "int32")
        d, (_, v_heads, _, d_v), small = named["q"].shape[-1], named["v"].shape, get_type_name(named["q"])
        found["k"] = ((*k.shape[:3], d), small)
        found["v"] = ((k.shape[0], v_heads, k.shape[2], d_v), small)
    return found


def _get_required_dims_of_dense_call(named: Mapping[str, Any]) -> dict[str, tuple[tuple[Any, ...], str]]:
    q, k, v = (named[name] for name in "qkv")
    (b, h, s_q, d), small = q.shape, get_type_name(q)
    d_v, paged = v.shape[3], named["block_table"] is not None
    found = _get_length_and_page_dims(named, b)
    if not paged:
        found |= {
            "k": ((b, k.shape[1], k.shape[2], d), small),
            "v": ((b, v.shape[1], k.shape[2], d_v), small),
        }
    rows, queries = ((b, h, s_q, 1), "float32"), ((b, h, s_q, d_v), small)
    return found | {"o": queries, "do": queries, "stats": rows}


def _get_required_dims_of_packed_call(named: Mapping[str, Any]) -> dict[str, tuple[tuple[Any, ...], str]]:
    q, k, v, cu = named["q"], named["k"], named["v"], named["cu_seqlens_q"]
    (t, h, d), small = q.shape, get_type_name(q)
    if cu.dim() != 1 or cu.shape[0] < 1:
        raise _make_tensor_error(f"cu_seqlens_q has shape {list(cu.shape)}, [b + 1] is needed")
    d_v, paged = v.shape[-1], named["block_table"] is not None
    found = _get_length_and_page_dims(named, cu.shape[0] - 1)
    if not paged:
        found |= {"k": ((k.shape[0], k.shape[1], d), small), "v": ((k.shape[0], v.shape[1], d_v), small)}
    return found | {"o": ((t, h, d_v), small), "do": ((t, h, d_v), small), "stats": ((h, t), "float32")}
