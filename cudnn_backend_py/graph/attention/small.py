"""Attention of short sequences: cuDNN's Mha-fprop and Mha-bprop patterns, which store S for the backward pass.

They are not the flash patterns of :func:`sdpa_forward`: sequences have at most 512 tokens, heads have 64 elements, and
the forward pass of a training step writes the whole matrix S, which the backward pass reads. S and dS are stored in
``TensorReordering.F16x16``, an order of elements that only these kernels know.

What cuDNN supports, as 9.14 and 9.19 answered (9.25 took the patterns out):

* The tensor given to the second matmul, and the by-value factors of K and of dropout, must be of the data type.
* Lengths are read where they are overrides of the matmuls, not where the mask compares with them.
* With padding the forward kernels write S up to the lengths only and the backward kernels read all of it: fill it with
  zeros once, or what was there (a NaN) reaches the gradients. Seen on an H100 with 9.19.
* The value that replaces masked scores is not read: the kernels have their own.
* Of two additions to the scores only one is read; one addition and one factor give the same kernel in either order.
* A mask that *selects* scores is not read at all, though the graph is accepted. Hence no such mask here: add ``bias``
  of large negative numbers instead.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any, Literal

from ...errors import GraphError
from ...generated.enums import DataType, PointwiseMode, ReduceTensorOp, TensorReordering
from ..data_types import HALF_TYPES
from ..ir import Graph, Tensor
from .builder import LOWEST, AttentionBuilder
from .problem import Attention, make_problem_unless_given

__all__ = ["SmallAttention", "mha_bprop", "mha_fprop"]

_MODE = PointwiseMode
_REORDERED = TensorReordering.F16x16


@dataclass(frozen=True, kw_only=True)
class SmallAttention:
    """S = dropout(softmax(mask(scores))), O = S @ V with scores = Q @ (scale * K)^T, for sequences of 512 at most.

    Names, dims (b, h, s, d) and layouts are those of :class:`Attention`; heads of K and V are those of Q, and the
    head dim of V is that of Q.

    Parameters
    ----------
    batch, heads, seq_q, seq_kv, head_dim
        b, h, s of Q and O, s of K and V (as Q's if not given), d. cuDNN supports d = 64 and lengths up to 512, in
        training multiples of 64: what it does not support is its verdict, not an error here.
    data_type
        HALF or BFLOAT16, of all tensors but the lengths and the random state.
    layout
        As in :class:`Attention`. Interleaved Q, K and V ("packed", or strides that say so) must be one buffer: the
        kernels take only the address of the first of them and find the others after it. They know such a layout by
        the stride of s alone, so other layouts of that stride ("sbhd" of a batch of 2 or 3) are refused here.
    scale
        g3, the factor of K: a number (1 / sqrt(head_dim) if not given), "none" for an empty g3.
    mask
        Multiply the scores by ``mask`` [b, h, s_q, s_kv] of the data type. A zero makes a score 0, not minus infinity.
    bias
        Dims of an additive ``bias`` of the data type, 1 where it broadcasts. Not together with ``mask``.
    padding
        ``seq_len_q``, ``seq_len_kv`` [b, 1, 1, 1] int32 hold the real lengths.
    causal
        Keep column j of row i only where j <= i.
    softmax
        Whether there is one.
    dropout, seed_type
        Probability of dropping, by Philox with ``dropout_seed`` and ``dropout_offset`` [1, 1, 1, 1] of ``seed_type``.
    dropout_mask
        Instead: ``dropout_mask`` [b, h, s_q, s_kv] of the data type, 1 where a probability is kept, and the by-value
        factor ``dropout_scale``, given at execution.
    dbias
        Backward: write ``dbias`` [1, h, s_q, s_kv], the sum over the batch; ``bias`` must have these dims.

    Raises
    ------
    GraphError
        ``attention-option`` (options that exclude or need each other), ``attention-size``, ``attention-layout``.
    """

    batch: int
    heads: int
    seq_q: int
    seq_kv: int = None  # type: ignore[assignment]  # set in __post_init__
    head_dim: int = 64
    data_type: DataType = DataType.HALF
    layout: Any = "bshd"
    scale: float | Literal["none"] | None = None
    mask: bool = False
    bias: tuple[int, int, int, int] | None = None
    padding: bool = False
    causal: bool = False
    softmax: bool = True
    dropout: float = 0.0
    dropout_mask: bool = False
    seed_type: DataType = DataType.INT64
    dbias: bool = False
    name: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        own = ("mask", "softmax")
        shared = [item.name for item in fields(self) if item.name not in own]
        problem = Attention(**{item: getattr(self, item) for item in shared})
        object.__setattr__(self, "_problem", problem)
        object.__setattr__(self, "seq_kv", problem.seq_kv)
        _refuse_if(
            self.data_type not in HALF_TYPES,
            f"data type {self.data_type.name} is neither HALF nor BFLOAT16",
        )
        _refuse_if(
            problem.scale == "tensor", "the scale must be a number or 'none': the pattern has no device tensor for it"
        )
        _refuse_if(
            self.mask and self.bias is not None,
            "mask and bias exclude each other: cuDNN uses the same kernel for (P + bias) * mask and P * mask + bias",
        )
        for item in ("q", "k", "v", "dq", "dk", "dv"):
            _check_layout(problem, item)
        whole = (1, self.heads, self.seq_q, self.seq_kv)
        _refuse_if(self.dbias and self.bias != whole, f"dbias needs a bias of dims {whole}, got {self.bias}")

    @property
    def problem(self) -> Attention:
        """This problem converted to an :class:`Attention`, without the options that ``Attention`` lacks."""
        problem: Attention = self.__dict__["_problem"]
        return problem


def _refuse_if(condition: bool, headline: str, fix: str | None = None) -> None:
    if condition:
        where = "small-sequence attention problem, checked before any cuDNN call"
        raise GraphError(headline, code="attention-option", where=where, fix=fix)


def _check_layout(p: Attention, name: str) -> None:
    """Refuse layouts in which the kernels would treat tensors in one buffer as interleaved."""
    _, h, s, d = p.dims(name)
    b_stride, _, s_stride, _ = p.strides(name)
    if s_stride in (2 * h * d, 3 * h * d) and s > 1 and b_stride != s * s_stride and p.batch > 1:
        raise GraphError(
            f"{name} has a stride of {s_stride} over s, which is {s_stride // (h * d)} times h * d: cuDNN's kernels "
            "take that for interleaved tensors, whatever the other strides",
            code="attention-layout",
            where="small-sequence attention problem, checked before any cuDNN call",
            fix=f"use another layout, or really interleave them (stride {s * s_stride} over b)",
        )


def mha_fprop(problem: SmallAttention | None = None, /, *, store_s: bool = False, **options: Any) -> Graph:
    """Return the Mha-fprop pattern: O = matmul(S = g4(P = matmul(Q, g3(K))), V).

    Tensors ``q``, ``k``, ``v``, ``o`` and what the options request. ``k`` has dims [b, h, d, s_kv] (the memory of
    [b, h, s_kv, d] by its strides): matmul wants it so. Rows beyond a real length are not defined in the results.

    Parameters
    ----------
    problem
        The problem, or None and its fields as `options`.
    store_s
        Training: write ``s`` [b, h, s_q, s_kv] of the data type, in ``TensorReordering.F16x16``, for
        :func:`mha_bprop`. It holds what comes before the factor 1 / (1 - dropout): the softmax, and with dropout (by
        Philox or by a given mask) the *sign bit* set where a probability was dropped. So \\|s\\| is the softmax and
        s > 0 the dropout mask; the operation as written, softmax * mask, is what the second matmul gets.
        Without it (inference) S is virtual and lengths need not be multiples of 64.

    Raises
    ------
    GraphError
        What :class:`SmallAttention` refuses; ``attention-option`` for `store_s` with neither softmax nor dropout.
    """
    p = make_problem_unless_given(problem, SmallAttention, options)
    drops = bool(p.dropout or p.dropout_mask)
    _refuse_if(
        store_s and not (p.softmax or drops),
        "store_s needs softmax or dropout, which produce S: without them cuDNN accepts the graph but does not write S",
    )
    f = AttentionBuilder(p.problem, "mha_fprop", None)
    q, k, v = f.get_io_tensor("q"), f.get_io_tensor("k", transposed=True), f.get_io_tensor("v")
    if p.scale != "none":
        factor = f.g.scalar(p.problem.scale_value, name="scale", data_type=p.data_type)
        k = f.pointwise(_MODE.MUL, k, factor, name="k_scaled", data_type=p.data_type, strides=k.strides)
    s_options = {"name": "s", "virtual": not store_s, "data_type": p.data_type, "reordering": _REORDERED}
    if not (p.mask or p.bias or p.padding or p.causal or p.softmax or drops):
        f.matmul(f.matmul(q, k, "m=q n=kv", **s_options), v, "m=q k=kv", out=f.get_io_tensor("o"))
        return f.g.graph()
    score = f.matmul(q, k, "m=q n=kv", name="p")
    last = {} if p.softmax or drops else s_options
    steps = [step for step, wanted in _list_score_operations(p) if wanted]
    for step in steps:
        score = step(f, score, **(last if step is steps[-1] else {}))
    if p.softmax:
        score = _add_softmax(f, score, **({"name": "probabilities", "data_type": p.data_type} if drops else s_options))
    if drops:
        score = _add_dropout(f, p, score, s_options)
    f.matmul(score, v, "m=q k=kv", out=f.get_io_tensor("o"))
    return f.g.graph()


def _list_score_operations(p: SmallAttention) -> tuple[tuple[Any, bool], ...]:
    """Return the possible operations on the scores in cuDNN's order, and for each whether this problem has it."""
    return (
        (_add_mask_multiplication, p.mask),
        (_add_bias, p.bias is not None),
        (_add_score_masks, p.padding or p.causal),
    )


def _add_mask_multiplication(f: AttentionBuilder, score: Tensor, **last: Any) -> Tensor:
    mask = f.get_or_make_tensor("mask", f.score_dims, f.p.data_type)
    return f.pointwise(_MODE.MUL, score, mask, **{"name": "p_masked", **last})


def _add_bias(f: AttentionBuilder, score: Tensor, **last: Any) -> Tensor:
    assert f.p.bias is not None
    return f.pointwise(
        _MODE.ADD, score, f.get_or_make_tensor("bias", f.p.bias, f.p.data_type), **{"name": "p_biased", **last}
    )


def _add_score_masks(f: AttentionBuilder, score: Tensor, **last: Any) -> Tensor:
    """Replace scores beyond the sequence lengths and above the diagonal by the lowest float.

    cuDNN knows a padding mask, and a causal mask as a padding mask with more operations: a causal mask alone is
    written with the whole lengths.
    """
    row, column = _add_row_and_column_indices(f, score)
    keep = _add_length_comparison(f, row, column, *_get_sequence_lengths(f))
    if f.p.causal:
        keep = f.pointwise(_MODE.LOGICAL_AND, keep, _add_diagonal_comparison(f, row, column), name="keep")
    lowest = f.g.scalar(LOWEST, name="lowest")
    return f.pointwise(_MODE.BINARY_SELECT, score, lowest, keep, **{"name": "p_selected", **last})


def _get_sequence_lengths(f: AttentionBuilder) -> tuple[Tensor, Tensor]:
    seq_q, seq_kv = f.seq_lens
    if seq_q is None or seq_kv is None:
        return f.g.scalar(f.p.seq_q, name="whole_seq_q"), f.g.scalar(f.p.seq_kv, name="whole_seq_kv")
    return seq_q, seq_kv


def _add_row_and_column_indices(f: AttentionBuilder, like: Tensor) -> tuple[Tensor, Tensor]:
    """Return the row and column index of every score."""
    return f.generate_index(like, 2, DataType.FLOAT), f.generate_index(like, 3, DataType.FLOAT)


def _add_length_comparison(f: AttentionBuilder, row: Tensor, column: Tensor, seq_q: Tensor, seq_kv: Tensor) -> Tensor:
    in_q, in_kv = f.pointwise(_MODE.CMP_LT, row, seq_q), f.pointwise(_MODE.CMP_LT, column, seq_kv)
    return f.pointwise(_MODE.LOGICAL_AND, in_q, in_kv, name="inside")


def _add_diagonal_comparison(f: AttentionBuilder, row: Tensor, column: Tensor) -> Tensor:
    return f.pointwise(_MODE.CMP_GE, row, column, name="below_diagonal")


def _add_softmax(f: AttentionBuilder, score: Tensor, **last: Any) -> Tensor:
    top = f.g.reduction(ReduceTensorOp.MAX, score, f.row_dims, name="row_max")
    exp = f.pointwise(_MODE.EXP, f.pointwise(_MODE.SUB, score, top, name="shifted"), name="exp")
    return f.pointwise(_MODE.DIV, exp, f.add_sum(exp, f.row_dims, name="row_sum"), **last)


def _add_dropout(f: AttentionBuilder, p: SmallAttention, probabilities: Tensor, s_options: dict[str, Any]) -> Tensor:
    """Multiply by the random or given dropout mask, which gives S, and by the dropout scale."""
    mask = f.get_or_make_tensor("dropout_mask", f.score_dims, p.data_type) if p.dropout_mask else f.add_philox_mask()
    s = f.pointwise(_MODE.MUL, probabilities, mask, **s_options)
    return f.pointwise(_MODE.MUL, s, _make_dropout_scale(f, p, p.data_type), name="s_scaled", data_type=p.data_type)


def _make_dropout_scale(f: AttentionBuilder, p: SmallAttention, data_type: DataType) -> Tensor:
    value = None if p.dropout_mask else 1.0 / f.keep_probability
    return f.g.scalar(value, name="dropout_scale", data_type=data_type)


def mha_bprop(problem: SmallAttention | None = None, /, **options: Any) -> Graph:
    """Return the Mha-bprop pattern: ``dq``, ``dk``, ``dv`` from ``q``, ``k``, ``v``, ``do`` and the ``s`` of fprop.

    dV = matmul(g5(S), dO), dP = matmul(dO, V^T), dS = g6(dP), dQ = matmul(dS, K), dK = matmul(g7(dS), Q), where
    g5 transposes S, multiplies by the dropout scale and takes the absolute value; g6 is the backward pass of dropout
    (the mask is S > 0), softmax (with \\|S\\|), scale and masks; g7 transposes. cuDNN knows this DAG as a whole: its g5
    has an absolute value also with dropout, where a mask would be expected.

    ``k`` has dims [b, h, s_kv, d], ``v`` [b, h, d, s_kv] by its strides. ``s`` [b, h, s_q, s_kv] is as
    :func:`mha_fprop` stored it. ``ds``, of the same dims and order, is memory between the kernels (dP in cuDNN's
    words). ``dbias`` is the sum of dS over the batch, divided by the scale.

    cuDNN wants dS written by a selection. Where there is no mask, what is selected by is \\|S\\| > 0, which changes
    nothing: where S is 0, dS is.

    Parameters
    ----------
    problem
        The problem given to :func:`mha_fprop`, or None and its fields as `options`.

    Raises
    ------
    GraphError
        What :class:`SmallAttention` refuses; ``attention-option`` without softmax or, with dbias, without a scale.
    """
    p = make_problem_unless_given(problem, SmallAttention, options)
    _refuse_if(not p.softmax, "the backward pattern needs a softmax, got softmax=False")
    f = AttentionBuilder(p.problem, "mha_bprop", None)
    q, k, v, do = (
        f.get_io_tensor("q"),
        f.get_io_tensor("k"),
        f.get_io_tensor("v", transposed=True),
        f.get_io_tensor("do"),
    )
    s = f.get_or_make_tensor("s", f.score_dims, p.data_type, reordering=_REORDERED)
    drop_scale = _make_dropout_scale(f, p, DataType.FLOAT) if p.dropout or p.dropout_mask else None

    s_t = _add_transpose(f, s, "s_transposed")  # g5
    if drop_scale is not None:
        s_t = f.pointwise(_MODE.MUL, s_t, drop_scale, name="s_scaled", data_type=p.data_type, strides=s_t.strides)
    s_t = f.pointwise(_MODE.ABS, s_t, name="s_absolute", data_type=p.data_type, strides=s_t.strides)
    f.matmul(s_t, do, "m=kv k=q", out=f.get_io_tensor("dv"))

    dp = f.matmul(do, v, "m=q n=kv", name="dp")
    ds = _add_score_gradient(f, p, s, dp, drop_scale)  # g6
    f.matmul(ds, k, "m=q k=kv", out=f.get_io_tensor("dq"))
    f.matmul(_add_transpose(f, ds, "ds_transposed"), q, "m=kv k=q", out=f.get_io_tensor("dk"))  # g7
    return f.g.graph()


def _add_transpose(f: AttentionBuilder, x: Tensor, name: str) -> Tensor:
    return f.transpose(x, name=name, data_type=f.p.data_type, strides=(*x.strides[:2], x.strides[3], x.strides[2]))


def _add_score_gradient(
    f: AttentionBuilder, p: SmallAttention, s: Tensor, dp: Tensor, drop_scale: Tensor | None
) -> Tensor:
    """Return dS in memory from dP, through dropout, softmax, scale and masks; write dbias if requested."""
    zero = f.g.scalar(0.0, name="zero")
    absolute = f.pointwise(_MODE.ABS, s, name="probabilities", data_type=p.data_type)
    if drop_scale is not None:
        kept = f.pointwise(_MODE.CMP_GT, s, zero, compute_type=DataType.FLOAT, name="kept")
        dp = f.pointwise(_MODE.MUL, dp, drop_scale, name="dp_scaled")
        dp = f.pointwise(_MODE.BINARY_SELECT, dp, zero, kept, name="dp_dropped")
    row_sum = f.add_sum(f.pointwise(_MODE.MUL, absolute, dp), f.row_dims, name="row_sum")
    ds = f.pointwise(_MODE.MUL, absolute, f.pointwise(_MODE.SUB, dp, row_sum), name="ds_unscaled")
    value = 1.0 if p.scale == "none" else p.problem.scale_value
    scale = f.g.scalar(value, name="scale")
    ds = f.pointwise(_MODE.MUL, ds, scale, name="ds_scaled")
    if p.mask:
        ds = f.pointwise(_MODE.MUL, ds, f.get_or_make_tensor("mask", f.score_dims, p.data_type), name="ds_masked")
    keep = _add_mask_of_score_gradient(f, ds, absolute, zero)
    out = f.get_or_make_tensor("ds", f.score_dims, p.data_type, reordering=_REORDERED, scratch=True)
    ds = f.pointwise(_MODE.BINARY_SELECT, ds, zero, keep, out=out)
    if p.dbias:
        total = f.add_sum(ds, (1, *f.score_dims[1:]), name="dbias_scaled")
        inverse = f.pointwise(_MODE.RECIPROCAL, scale, name="inverse_scale")
        f.pointwise(_MODE.MUL, total, inverse, name="dbias", virtual=False, data_type=p.data_type)
    return ds


def _add_mask_of_score_gradient(f: AttentionBuilder, ds: Tensor, absolute: Tensor, zero: Tensor) -> Tensor:
    """Return the mask of dS: true within lengths and diagonal; if there are no masks, true where S is not zero."""
    seq_q, seq_kv = f.seq_lens
    if not (f.p.padding or f.p.causal):
        return f.pointwise(_MODE.CMP_GT, absolute, zero, compute_type=DataType.FLOAT, name="not_zero")
    row, column = _add_row_and_column_indices(f, ds)
    if seq_q is None or seq_kv is None:
        return _add_diagonal_comparison(f, row, column)
    keep = _add_length_comparison(f, row, column, seq_q, seq_kv)
    if not f.p.causal:
        return keep
    return f.pointwise(_MODE.LOGICAL_AND, keep, _add_diagonal_comparison(f, row, column), name="keep")
