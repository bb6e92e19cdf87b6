"""``Attention``: one attention problem as a value, checked without cuDNN."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar

from ...errors import GraphError
from ...frozen import FrozenValue
from ...generated.enums import DataType
from ...printable import format_repr
from ..data_types import FP8_TYPES, find_type
from ..ir import Tensor
from ..rules import Rule, find_broken_rule
from ..tensor import LEAST, MOST

if TYPE_CHECKING:
    from ..builder import GraphBuilder

__all__ = [
    "Alignment",
    "Attention",
    "Implementation",
    "Scale",
    "ScoreModifier",
    "TensorLayout",
    "UncheckedAttention",
    "check_heads",
    "make_dense_problem",
    "make_problem_unless_given",
]

Alignment = Literal["top_left", "bottom_right"]
Implementation = Literal["auto", "composite", "unified"]
Scale = Literal["tensor", "none"]
Layout = Literal["bshd", "bhsd", "sbhd", "packed"]

MX_BLOCK = 32  # elements that share one scale in mxfp8


class ScoreModifier(Protocol):
    """A change of the scaled scores before bias and masks, as operations in the same graph."""

    def forward(self, g: GraphBuilder, score: Tensor) -> Tensor:
        """Add the operations and return the changed score; both are virtual float32 [b, h, s_q, s_kv]."""

    def backward(self, g: GraphBuilder, d_score: Tensor, score: Tensor) -> Tensor:
        """Return the gradient with respect to `score`; `d_score` is the gradient with respect to the changed score."""


class Attention(FrozenValue, kw_only=True, uncompared=("name",)):
    """O = dropout(softmax(mask(modify(scale * Q @ K^T) + bias + alibi))) @ V, with the layout of its tensors.

    Dims are b, h, s, d; strides are in elements. The same value describes the forward and the backward pass.

    Parameters
    ----------
    batch, heads, seq_q, head_dim
        b, h of Q and O, s of Q and O, d of Q and K.
    seq_kv, head_dim_v, kv_heads, v_heads
        s of K and V, d of V and O, h of K, h of V; as Q's if not given (``v_heads``: as K's). Fewer heads for K and V
        are grouped-query attention, one is multi-query attention.
    data_type, output_type
        Of Q, K, V (and dO); of O (and dQ, dK, dV), the same if not given. With FP8 types the scales, descales and
        amax tensors of cuDNN's fp8 pattern belong to the graph.
    mx
        Block-scaled fp8: each 32 elements along the contracted dim share one E8M0 scale.
    layout
        Of all tensors, or by name (``{"q": "bhsd", "k": (..strides..)}``): "bshd" (default), "bhsd", "sbhd", "packed"
        (b, s, 3, h, d: Q, K and V interleaved in one buffer, three pointers into it), or a tuple of strides.
    scale
        Factor of the scores: a number (1 / sqrt(head_dim) if not given), "tensor" for a device tensor ``scale``
        [1, 1, 1, 1] float32, "none" for no multiplication at all.
    left_bound, right_bound, causal, alignment
        Keep column j of row i only where ``j <= i + right_bound`` and ``j + left_bound > i``: the left bound counts
        the diagonal. ``causal`` is ``right_bound=0``. Where ``alignment`` is "bottom_right", i is counted from
        ``seq_kv - seq_q`` on (of this batch entry, with padding).
    padding
        Device tensors ``seq_len_q``, ``seq_len_kv`` [b, 1, 1, 1] int32 hold the real lengths.
    ragged, ragged_stats, offset_type
        Sequences are one after the other (THD): Q, K, V, O (and the gradients; the statistics with ``ragged_stats``)
        have ragged offsets ``ragged_q`` ... [b + 1, 1, 1, 1], in elements. Implies ``padding``.
    max_total_seq_q, max_total_seq_kv
        Backward, ragged: bound of the sum of the lengths, which makes the scratch tensors ragged and small.
    page_size, pages_k, pages_v
        Paged K and V: tokens per page (a power of two), and the pages each container holds: containers
        [pages, h, page_size, d], page tables ``page_table_k``, ``page_table_v`` [b, 1, ceil(s_kv / page_size), 1]
        int32. Needs ``padding``.
        The containers' layout is that of ``k`` and ``v``, with pages for b and the page for s.
    bias
        Dims of an additive ``bias`` of the data type, 1 where it broadcasts, such as ``(1, h, s_q, s_kv)``.
    dbias
        Backward: write ``dbias``, of the bias' dims.
    alibi
        Add ``slope[h] * (j - i)``, slopes in ``alibi_slopes`` [1, h, 1, 1] float32.
    score_modifier
        Change of the scaled scores, see :class:`ScoreModifier`.
    dropout, dropout_mask, seed_type, rng_dump
        Probability of dropping, by Philox with ``dropout_seed`` and ``dropout_offset`` [1, 1, 1, 1] of ``seed_type``;
        or, ``dropout_mask``, by a given mask ``dropout_mask`` [b, h, s_q, s_kv] of the data type and a factor
        ``dropout_scale`` [1, 1, 1, 1]. ``rng_dump`` writes the Philox mask [b, h, s_q, s_kv] float32, but
        not the tiles (of 128 x 128 and less) that bounds or lengths mask as a whole.
    sink
        One more logit per head, ``sink`` [1, h, 1, 1] float32, that takes probability but has no value.
    dsink
        Backward: write ``dsink``.
    stats, max, sum_exp
        Forward outputs [b, h, s_q, 1] float32: log of the sum of exponentials, row maximum, sum of exponentials.
    stats_log2
        Write ``stats`` times log2(e), as kernels do that fold it into their scale (cuDNN 9.27).
    block_mask
        ``block_mask`` [b, h, ceil(s_q / 128), ceil(ceil(s_kv / 128) / 8)] uint8, a bit per 128 x 128 block to keep.
    deterministic
        Backward: write dQ without the atomic float32 accumulator.

    Raises
    ------
    GraphError
        ``attention-heads``, ``attention-size``, ``attention-option`` (options that exclude or need each other),
        ``attention-layout``, naming the values found and needed.
    """

    batch: int
    heads: int
    seq_q: int
    head_dim: int
    seq_kv: int = None  # type: ignore[assignment]  # set in __post_init__
    head_dim_v: int = None  # type: ignore[assignment]  # set in __post_init__
    kv_heads: int = None  # type: ignore[assignment]  # set in __post_init__
    v_heads: int = None  # type: ignore[assignment]  # set in __post_init__
    data_type: DataType = DataType.HALF
    output_type: DataType | None = None
    mx: bool = False
    layout: Layout | Mapping[str, Layout | tuple[int, ...]] = "bshd"
    scale: float | Scale | None = None
    causal: bool = False
    left_bound: int | None = None
    right_bound: int | None = None
    alignment: Alignment = "top_left"
    padding: bool = False
    ragged: bool = False
    ragged_stats: bool = False
    offset_type: DataType = DataType.INT32
    max_total_seq_q: int | None = None
    max_total_seq_kv: int | None = None
    page_size: int | None = None
    pages_k: int | None = None
    pages_v: int | None = None
    bias: tuple[int, int, int, int] | None = None
    dbias: bool = False
    alibi: bool = False
    score_modifier: ScoreModifier | None = None
    dropout: float = 0.0
    dropout_mask: bool = False
    seed_type: DataType = DataType.INT64
    rng_dump: bool = False
    sink: bool = False
    dsink: bool = False
    stats: bool = False
    max: bool = False
    sum_exp: bool = False
    stats_log2: bool = False
    block_mask: bool = False
    deterministic: bool = False
    name: str = ""

    def __post_init__(self) -> None:
        self._set_default_sizes()
        if self.ragged:
            object.__setattr__(self, "padding", True)
        if self.causal and self.right_bound is None:
            object.__setattr__(self, "right_bound", 0)
        _check_problem(self)

    def _set_default_sizes(self) -> None:
        def set_default(name: str, value: Any) -> None:
            if getattr(self, name) is None:
                object.__setattr__(self, name, value)

        for name in ("data_type", "output_type"):
            if isinstance(kind := getattr(self, name), str):  # a name such as bf16
                object.__setattr__(self, name, kind if (found := find_type(kind)) is None else found)
        set_default("seq_kv", self.seq_q)
        set_default("head_dim_v", self.head_dim)
        set_default("kv_heads", self.heads)
        set_default("v_heads", self.kv_heads)
        set_default("output_type", self.data_type)

    @property
    def is_fp8(self) -> bool:
        """Whether Q, K and V are 8-bit floats."""
        return self.data_type in FP8_TYPES

    @property
    def scale_value(self) -> float | None:
        """The factor of the scores if it is a number."""
        if isinstance(self.scale, str):
            return None
        return 1 / math.sqrt(self.head_dim) if self.scale is None else float(self.scale)

    @property
    def pages_per_sequence(self) -> int:
        """Number of page table entries per sequence."""
        assert self.page_size is not None
        return -(-self.seq_kv // self.page_size)

    def dims(self, name: str) -> tuple[int, int, int, int]:
        """Return the dims b, h, s, d of ``q``, ``k``, ``v``, ``o``, a gradient (``dq``, ``do`` ...), or ``stats``.

        With pages, b and s of ``k`` and ``v`` are those of the container: pages, and tokens per page.
        """
        heads, seq, dim = {
            "q": (self.heads, self.seq_q, self.head_dim),
            "k": (self.kv_heads, self.seq_kv, self.head_dim),
            "v": (self.v_heads, self.seq_kv, self.head_dim_v),
            "o": (self.heads, self.seq_q, self.head_dim_v),
            "stats": (self.heads, self.seq_q, 1),
        }[name.removeprefix("d")]
        if self.page_size is not None and name in ("k", "v"):
            pages = self.pages_k if name == "k" else self.pages_v
            return (pages or self.batch * self.pages_per_sequence, heads, self.page_size, dim)
        return (self.batch, heads, seq, dim)

    def strides(self, name: str) -> tuple[int, int, int, int]:
        """Return the strides of one of these tensors over b, h, s, d, in elements."""
        chosen = self._get_tensor_layout(name)
        b, h, s, d = self.dims(name)
        if not isinstance(chosen, str):
            b_stride, h_stride, s_stride, d_stride = chosen
            return (b_stride, h_stride, s_stride, d_stride)
        if chosen == "packed" and name not in ("o", "do"):
            return (s * 3 * h * d, d, 3 * h * d, 1)
        if chosen == "bhsd":
            return (h * s * d, s * d, d, 1)
        if chosen == "sbhd":
            return (h * d, d, b * h * d, 1)
        return (s * h * d, d, h * d, 1)

    def _get_tensor_layout(self, name: str) -> Layout | tuple[int, ...]:
        if name == "stats":
            plain: Layout = "bshd" if self.ragged_stats else "bhsd"
            return plain if isinstance(self.layout, str) else self.layout.get(name, plain)
        if isinstance(self.layout, str):
            return self.layout
        return self.layout.get(name, self.layout.get(name.removeprefix("d"), "bshd"))


class UncheckedAttention(Attention):
    """An ``Attention`` that checks nothing: read from a graph, or checked by cudnn-frontend's rules instead.

    Sizes that are left out have their defaults; nothing else is filled in, and nothing is refused. cuDNN supports some
    problems that :class:`Attention` refuses.
    """

    def __post_init__(self) -> None:
        self._set_default_sizes()


class TensorLayout(FrozenValue):
    """Dims, strides in elements and data type of a tensor; the type is None if cuDNN does not have it."""

    dims: tuple[int, ...]
    strides: tuple[int, ...]
    data_type: DataType | None


def make_dense_problem(tensors: Mapping[str, TensorLayout], **options: Any) -> Attention:
    """Return the attention problem of dense tensors [b, h, s, d] with the given dims and strides.

    Parameters
    ----------
    tensors
        Q, K, V and the others of the pass by their names in :class:`Attention`. Lengths, bias, slopes, sinks and the
        gradients of the last two are options of the problem where they are among them.
    options
        The other fields of :class:`Attention`.

    Raises
    ------
    GraphError
        What :class:`Attention` refuses.
    """
    q, k, v = (tensors[name] for name in "qkv")
    bias: Any = tensors["bias"].dims if "bias" in tensors else None
    return Attention(
        batch=q.dims[0],
        heads=q.dims[1],
        seq_q=q.dims[2],
        head_dim=q.dims[3],
        seq_kv=k.dims[2],
        head_dim_v=v.dims[3],
        kv_heads=k.dims[1],
        v_heads=v.dims[1],
        data_type=q.data_type,  # type: ignore[arg-type]  # checked by Attention
        layout={name: x.strides for name, x in tensors.items() if name.removeprefix("d") in _LAID_OUT},
        padding="seq_len_q" in tensors,
        bias=bias,
        dbias="dbias" in tensors,
        alibi="alibi_slopes" in tensors,
        sink="sink" in tensors,
        dsink="dsink" in tensors,
        **options,
    )


_LAID_OUT = ("q", "k", "v", "o", "stats")  # the tensors whose layout the caller chooses, with their gradients


Problem = TypeVar("Problem")


def make_problem_unless_given(problem: Problem | None, kind: type[Problem], options: dict[str, Any]) -> Problem:
    """Return the given problem or, if it is None, a new `kind` from `options`; raise if both are given.

    Raises
    ------
    GraphError
        ``attention-option`` if both were given, and what the problem refuses.
    """
    if problem is None:
        return kind(**options)
    if options:
        raise GraphError(
            f"a problem is given, so {', '.join(options)} has no effect",
            code="attention-option",
            fix="use dataclasses.replace(problem, ...)",
        )
    return problem


_SIZES = ("batch", "heads", "seq_q", "head_dim", "seq_kv", "head_dim_v", "kv_heads", "v_heads")


def _make_option_rule(is_broken: Callable[[Attention], bool], message: Callable[[Attention], str]) -> Rule[Attention]:
    return Rule("attention-option", is_broken, message)


_OPTIONS = (
    _make_option_rule(
        lambda p: p.alignment not in ("top_left", "bottom_right"),
        lambda p: f"alignment {format_repr(p.alignment)} is neither top_left nor bottom_right",
    ),
    _make_option_rule(
        lambda p: isinstance(p.scale, str) and p.scale not in ("tensor", "none"),
        lambda p: f"scale {format_repr(p.scale)} is neither a number, tensor nor none",
    ),
    _make_option_rule(
        lambda p: p.causal and p.right_bound != 0,
        lambda p: f"causal means right_bound 0, got {p.right_bound}",
    ),
    _make_option_rule(
        lambda p: p.left_bound is not None and p.left_bound < 1,
        lambda p: f"left_bound is {p.left_bound}, 1 or more is needed",
    ),
    _make_option_rule(
        lambda p: p.right_bound is not None and p.right_bound < 0,
        lambda p: f"right_bound is {p.right_bound}, 0 or more is needed",
    ),
    _make_option_rule(
        lambda p: not 0 <= p.dropout < 1,
        lambda p: f"dropout is {p.dropout}, a probability of at least 0 and below 1 is needed",
    ),
    _make_option_rule(
        lambda p: p.dropout > 0 and p.dropout_mask,
        lambda p: "dropout by probability and by a given mask exclude each other",
    ),
    _make_option_rule(lambda p: p.rng_dump and not p.dropout, lambda p: "rng_dump needs dropout by probability"),
    _make_option_rule(lambda p: p.ragged_stats and not p.ragged, lambda p: "ragged_stats needs ragged"),
    _make_option_rule(lambda p: p.dbias and p.bias is None, lambda p: "dbias needs bias"),
    _make_option_rule(lambda p: p.dsink and not p.sink, lambda p: "dsink needs sink"),
    _make_option_rule(lambda p: p.mx and not p.is_fp8, lambda p: f"mx needs an fp8 data type, got {p.data_type.name}"),
    _make_option_rule(
        lambda p: (p.max_total_seq_q is not None or p.max_total_seq_kv is not None) and not p.ragged,
        lambda p: "max_total_seq_q and max_total_seq_kv need ragged",
    ),
    _make_option_rule(
        lambda p: p.page_size is not None and not p.padding,
        lambda p: "paged K and V need padding (seq_len_q, seq_len_kv)",
    ),
    _make_option_rule(
        lambda p: p.page_size is not None and (p.page_size < 1 or p.page_size & (p.page_size - 1) != 0),
        lambda p: f"page_size is {p.page_size}, a power of two is needed",
    ),
    _make_option_rule(
        lambda p: p.bias is not None and not _is_broadcastable(p.bias, _get_score_dims(p)),
        lambda p: f"bias has dims {format_repr(p.bias)}, each must be 1 or that of the scores {_get_score_dims(p)}",
    ),
)


def _make_error(headline: str, code: str) -> GraphError:
    return GraphError(headline, code=code, where="attention problem, checked before any cuDNN call")


def check_heads(heads: int, kv_heads: int, v_heads: int) -> None:
    """Check that groups of query heads can share the heads of keys and values.

    Raises
    ------
    GraphError
        ``attention-heads``.
    """
    for name, shared in (("kv_heads", kv_heads), ("v_heads", v_heads)):
        if shared < 1 or heads % shared:
            raise _make_error(
                f"{heads} query heads cannot share {shared} key/value heads ({name}): a multiple is needed",
                "attention-heads",
            )


def _check_problem(p: Attention) -> None:
    for name in _SIZES:
        value = getattr(p, name)
        if not _is_int(value) or value < 1:
            raise _make_error(f"{name} is {format_repr(value)}, an int of 1 or more is needed", "attention-size")
    for name, is_optional, is_fit, needed in _list_option_types():
        value = getattr(p, name)
        if not (is_optional if value is None else is_fit(value)):
            raise _make_error(f"{name} is {format_repr(value)}, {needed} is needed", "attention-option")
    check_heads(p.heads, p.kv_heads, p.v_heads)
    _check_layout(p)
    if rule := find_broken_rule(_OPTIONS, p):
        raise _make_error(rule.message(p), rule.code)


def _get_score_dims(p: Attention) -> tuple[int, int, int, int]:
    return (p.batch, p.heads, p.seq_q, p.seq_kv)


def _is_broadcastable(dims: tuple[int, ...], full: tuple[int, ...]) -> bool:
    """Return whether each dim is 1 or equals that of the full shape."""
    return len(dims) == len(full) and all(dim in (1, whole) for dim, whole in zip(dims, full, strict=True))


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and LEAST <= value <= MOST


def _is_bool(value: object) -> bool:
    return value in (0, 1) if isinstance(value, int) else type(value).__name__ in ("bool", "bool_")  # NumPy's


def _is_number(value: Any) -> bool:
    """Return whether a value is a Python or NumPy number within the range of float."""
    try:
        return not isinstance(value, (str, bytes)) and getattr(value, "shape", ()) == () and abs(float(value)) >= 0
    except (TypeError, ValueError, OverflowError):
        return False


# What options are, by the beginning of their annotation.
_KINDS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "int": (_is_int, "an int of 64 bits"),
    "bool": (_is_bool, "a bool"),
    "float | Scale": (lambda value: isinstance(value, str) or _is_number(value), "a number"),
    "float": (_is_number, "a number"),
    "DataType": (lambda value: isinstance(value, DataType), "a DataType"),
    "tuple": (lambda value: isinstance(value, (tuple, list)) and all(map(_is_int, value)), "a tuple of int"),
    "Layout": (lambda value: isinstance(value, (str, Mapping)), "a name, or a mapping of tensors to layouts,"),
}


@cache
def _list_option_types() -> list[tuple[str, bool, Callable[[Any], bool], str]]:
    """Return for each checked field: its name, whether None is allowed, its check, and the text of the needed type."""
    found = []
    for name, annotation in Attention.__annotations__.items():
        begin = next((begin for begin in _KINDS if annotation.startswith(begin)), None)
        found += [] if begin is None else [(name, "None" in annotation, *_KINDS[begin])]
    return found


def _check_layout(p: Attention) -> None:
    known = ("bshd", "bhsd", "sbhd", "packed")
    given: dict[str, Layout | tuple[int, ...]] = {}
    given.update({"": p.layout} if isinstance(p.layout, str) else p.layout)
    for name, layout in given.items():
        if name != "" and str(name).removeprefix("d") not in _LAID_OUT:
            raise _make_error(
                f"layout names a tensor {format_repr(name)}, known are q, k, v, o, their gradients, and stats",
                "attention-layout",
            )
        strides: tuple[int, ...] = layout if isinstance(layout, tuple) else ()
        if layout not in known and [type(stride) for stride in strides] != [int] * 4:
            raise _make_error(
                f"layout {format_repr(layout)} is neither of {', '.join(known)} nor four strides", "attention-layout"
            )
        packed = layout == "packed"
        if packed and not (p.heads == p.kv_heads == p.v_heads and p.head_dim == p.head_dim_v and p.seq_q == p.seq_kv):
            raise _make_error(
                "packed Q, K and V need equal heads, sequences and head dims, got "
                f"heads {p.heads}, {p.kv_heads}, {p.v_heads}, s {p.seq_q}, {p.seq_kv}, d {p.head_dim}, {p.head_dim_v}",
                "attention-layout",
            )
