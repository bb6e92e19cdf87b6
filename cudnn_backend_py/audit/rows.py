"""Check sampled rows of attention in float64 with torch on the same GPU, without waiting for it.

A row (batch, head, query) costs O(s * d). The first and the last row are always among them, and the first row that is
not all finite, if there is one: found by the GPU, as the rest is drawn by it. Of gradients, dQ is checked in rows, dK
and dV for one head of keys where its scores are at most :data:`MOST_SCORES`.

The bound is that of :mod:`~cudnn_backend_py.tuning.trial.bound`, with its unit roundoffs u(T) and its factors, written
out for attention instead of measured by shaking: :data:`SPREAD_FACTOR` times

* 2 u(T) of the result, once for its rounding;
* 2 u(T) of each probability (and of each dS), whose signs are random: the root of the sum of squares of the terms;
* the error of each score, 2^-24 (4 + 3 sqrt(d)) of the sum of the products' sizes, 2^-22 of the score and 2^-20 for the
  exponential, of each term: their plain sum;
* half the distance of the smallest float16, of other types the smallest normal float32, for each key: probabilities
  and gradients that vanish.

Of gradients twice that, and dP - delta moves by u(T) of the terms of delta, since O was rounded.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from ..generated.enums import DataType
from ..graph.formats import get_largest_finite
from ..torch_ops.arguments import OperatorOptions
from ..tuning.trial.bound import SPREAD_FACTOR
from ..tuning.trial.rules import ROUNDING_FACTOR, get_unit_roundoff

__all__ = ["FACTS", "MOST_SCORES", "SampledRows", "check_sampled_gradients", "check_sampled_output_rows"]

ROWS = 8  # drawn, also the first, the last and one that is not finite
MOST_GATHERED = 1 << 23  # elements of the keys of all rows together
MOST_SCORES = 1 << 22  # of one head of keys, for its gradients
_TINY = 2.0**-126  # below it float32 is denormal, which kernels may take for 0
FACTS = ("wrong", "head", "got", "wanted", "bound", "compared")

_TYPES = {
    torch.float16: DataType.HALF,
    torch.bfloat16: DataType.BFLOAT16,
    torch.float32: DataType.FLOAT,
}
Named = Mapping[str, Any]


@dataclass(frozen=True)
class _DataTypeLimits:
    """Unit roundoff, smallest and largest number of a call's data type, from which allowed errors are computed."""

    unit: float
    least: float
    largest: float

    @classmethod
    def from_dtype(cls, dtype: torch.dtype) -> _DataTypeLimits:
        kind = _TYPES[dtype]
        unit = get_unit_roundoff(kind)
        if kind is DataType.FLOAT and torch.backends.cuda.matmul.allow_tf32:
            unit = get_unit_roundoff(DataType.HALF)  # tensor cores read as many bits of TF32
        return cls(unit, 2.0**-25 if kind is DataType.HALF else _TINY, get_largest_finite(kind))


class SampledRows:
    """The rows of an attention call that are checked: their positions, and the inputs they depend on."""

    def __init__(self, named: Named, options: OperatorOptions, flat: Any) -> None:
        """Select rows by their indices among all rows, [rows] int64."""
        self.named, self.options, self.flat = named, options, flat
        q, k, v = named["q"], named["k"], named["v"]
        self.kind = _DataTypeLimits.from_dtype(q.dtype)
        self.dim = q.shape[-1]
        self.scale = 1.0 / math.sqrt(self.dim) if options.scale is None else options.scale
        if q.dim() == 3:
            self._locate_packed_rows(q)
        else:
            self._locate_dense_rows(q)
        self.k_head = self.h // (q.shape[1] // k.shape[1])
        self.v_head = self.h // (q.shape[1] // v.shape[1])
        if named.get("block_table") is not None:
            self._locate_paged_keys(named["block_table"], k)
        elif q.dim() == 3:
            self._locate_packed_keys(k)
        else:
            self.j = torch.arange(k.shape[2], device=q.device)
            lengths = named.get("seq_len_kv")
            self.len_kv = torch.full_like(self.b, k.shape[2]) if lengths is None else lengths.long()[self.b]

    def _locate_dense_rows(self, q: Any) -> None:
        _, heads, rows, _ = q.shape
        self.b, self.h, self.i = self.flat // (heads * rows), self.flat // rows % heads, self.flat % rows
        lengths = self.named.get("seq_len_q")
        self.len_q = torch.full_like(self.b, rows) if lengths is None else lengths.long()[self.b]

    def _locate_packed_rows(self, q: Any) -> None:
        starts = self.named["cu_seqlens_q"].long()
        token, self.h = self.flat // q.shape[1], self.flat % q.shape[1]
        self.b = (torch.searchsorted(starts, token, right=True) - 1).clamp(0, starts.numel() - 2)
        self.i = token - starts[self.b]
        self.len_q = starts[self.b + 1] - starts[self.b]

    def _locate_packed_keys(self, k: Any) -> None:
        starts = self.named["cu_seqlens_k"].long()
        longest = min(self.options.max_kv or k.shape[0], k.shape[0])
        self.j = torch.arange(longest, device=k.device)
        self.len_kv = (starts[self.b + 1] - starts[self.b]).clamp(max=longest)
        self._tokens = (starts[self.b][:, None] + self.j).clamp(max=k.shape[0] - 1)

    def _locate_paged_keys(self, table: Any, k: Any) -> None:
        page = k.shape[2]
        longest = table.shape[1] * page
        longest = min(longest, self.options.max_kv or longest)
        self.j = torch.arange(longest, device=k.device)
        self.len_kv = self.named["seq_len_kv"].long()[self.b].clamp(max=longest)
        last = ((self.len_kv - 1).clamp(min=0) // page)[:, None]
        self._pages = table.long()[self.b].gather(1, torch.minimum(self.j // page, last)).clamp(0, k.shape[0] - 1)

    @property
    def head_index_per_row(self) -> Any:
        """The index of each row's head, counted over the query heads of all sequences, [rows]."""
        return self.b * self.named["q"].shape[1] + self.h

    def select_query_rows(self, x: Any) -> Any:
        """Return the sampled rows of a tensor with Q's layout, [rows, d] float64."""
        rows = x[self.flat // x.shape[1], self.h] if x.dim() == 3 else x[self.b, self.h, self.i]
        return rows.double()

    def select_visible_keys(self, x: Any, head: Any) -> Any:
        """Return the keys or values visible to each row, [rows, keys, d] float64."""
        if self.named.get("block_table") is not None:
            found = x[self._pages, head[:, None], self.j % x.shape[2]]
        elif x.dim() == 3:
            found = x[self._tokens, head[:, None]]
        else:
            found = x[self.b, head]
        return found.double()

    def make_visibility_mask(self) -> Any:
        """Return the mask of visible keys, [rows, keys]."""
        options, j = self.options, self.j
        kept = (j < self.len_kv[:, None]) & (self.i < self.len_q)[:, None]
        row = (self.i + (self.len_kv - self.len_q if options.bottom_right else 0))[:, None]
        if options.right_bound is not None:
            kept = kept & (j <= row + options.right_bound)
        if options.left_bound is not None:
            kept = kept & (j + options.left_bound > row)
        return kept

    def compute_score_addend(self) -> Any:
        """Return the bias and ALiBi values added to the scores, [rows, keys]; 0 if there is neither."""
        named = self.named
        found: Any = 0.0
        bias, slopes = named.get("bias"), named.get("alibi_slopes")
        if bias is not None:
            at = [
                place if size > 1 else torch.zeros_like(place)
                for place, size in zip((self.b, self.h, self.i), bias.shape, strict=False)
            ]
            rows = bias[at[0], at[1], at[2]]
            rows = (
                torch.zeros_like(rows, dtype=torch.float64).masked_fill(~rows, -math.inf)
                if rows.dtype == torch.bool
                else rows.double()
            )
            found = rows if rows.shape[1] == 1 else rows[:, : len(self.j)]
        if slopes is not None:
            found = found + slopes.double()[self.h][:, None] * (self.j - self.i[:, None])
        return found


@dataclass(frozen=True)
class _Softmax:
    """Softmax probabilities of rows, their relative error bounds, and the slope of the soft cap."""

    p: Any
    error: Any
    slope: Any
    kept: Any
    total: Any


def _compute_softmax(rows: SampledRows, products: Any, sizes: Any) -> _Softmax:
    """Return the softmax probabilities of rows, computed from q . k and the sums of the absolute products."""
    options = rows.options
    scaled, slope = products * rows.scale, 1.0
    if options.soft_cap is not None:
        bent = torch.tanh(scaled / options.soft_cap)
        scaled, slope = options.soft_cap * bent, 1 - bent.square()
    kept = rows.make_visibility_mask()
    scores = (scaled + rows.compute_score_addend()).masked_fill(~kept, -math.inf)
    kept = kept & (scores > -math.inf)
    top = scores.amax(1, keepdim=True)
    sink = rows.named.get("sink")
    if sink is not None:
        sunk = sink.double()[rows.h][:, None]
        top = torch.maximum(top, sunk)
    top = top.masked_fill(~top.isfinite(), 0.0)
    powers = (scores - top).exp()
    total = powers.sum(1, keepdim=True)
    if sink is not None:
        total = total + (sunk - top).exp()
    error = 2.0**-24 * (4 + 3 * math.sqrt(rows.dim)) * abs(rows.scale) * sizes + 2.0**-20
    error = error + 2.0**-22 * scaled.abs().masked_fill(~kept, 0.0)
    return _Softmax((powers / total).masked_fill(total == 0, 0.0), error.masked_fill(~kept, 0.0), slope, kept, total)


def _compare_output(got: Any, wanted: Any, bound: Any, kind: _DataTypeLimits, defined: Any, heads: Any) -> Any:
    """Compare output elements with the expected ones on the GPU; return whether one is wrong, and the worst element.

    `heads` are, of each row or of all, the places of its head of queries among all of them.
    """
    got = got.double()
    said = defined & wanted.isfinite() & bound.isfinite() & (wanted.abs() + bound < kind.largest)
    off = ((got - wanted).abs() / bound).nan_to_num(nan=math.inf, posinf=math.inf)
    off = off.masked_fill(~said | (got == wanted), 0.0).flatten()
    worst = off.argmax().reshape(1)  # an index without dims would be brought to the host
    facts = (got.flatten()[worst], wanted.flatten()[worst], bound.flatten()[worst])
    head = heads.expand(len(got))[worst // got.shape[1]]
    return torch.cat([(off[worst] > 1).double(), head.double(), *facts, said.sum().double().reshape(1)])


def _find_non_finite_row(x: Any) -> Any:
    """Return the index of the first row with an infinite or NaN element, else 0, as a tensor of one element."""
    return (~x.isfinite()).any(-1).flatten().int().argmax().reshape(1)


def choose_rows_to_check(named: Named, output: Any, keys: int, generator: Any) -> Any:
    """Return the indices of rows to check: random rows, the first, the last, and one with infinite or NaN elements."""
    count = output.numel() // output.shape[-1]
    width = max(named["q"].shape[-1], named["v"].shape[-1])
    many = max(1, min(ROWS, MOST_GATHERED // max(1, keys * width) - 3))
    drawn = torch.randint(0, count, (many,), generator=generator, device=output.device)
    ends = torch.arange(2, device=output.device) * (count - 1)
    return torch.cat([drawn, ends, _find_non_finite_row(output)])


def count_max_visible_keys(named: Named, options: OperatorOptions) -> int:
    """Return the largest number of keys that can be visible to a row."""
    k, table = named["k"], named.get("block_table")
    if table is not None:
        most = table.shape[1] * k.shape[2]
        return int(min(most, options.max_kv or most))
    return int(min(options.max_kv or k.shape[0], k.shape[0]) if k.dim() == 3 else k.shape[2])


def check_sampled_output_rows(named: Named, options: OperatorOptions, o: Any, generator: Any) -> dict[str, Any]:
    """Check sampled rows of the output O on the current stream; return whether a row is wrong, and the worst one.

    Parameters
    ----------
    named, options
        As the operators of :mod:`~cudnn_backend_py.torch_ops` take them; the bias may be bool.
    o
        What was computed.
    generator
        Of the GPU, by which rows are drawn: not the program's.
    """
    rows = SampledRows(
        named, options, choose_rows_to_check(named, o, count_max_visible_keys(named, options), generator)
    )
    q, k, v = (
        rows.select_query_rows(named["q"]),
        rows.select_visible_keys(named["k"], rows.k_head),
        rows.select_visible_keys(named["v"], rows.v_head),
    )
    found = _compute_softmax(rows, *_compute_products_and_magnitudes(q, k))
    v = v.masked_fill(~found.kept[:, :, None], 0.0)
    wanted = _compute_weighted_sums(found.p, v)
    unit, sizes = ROUNDING_FACTOR * rows.kind.unit, v.abs()
    bound = unit * wanted.abs() + unit * _compute_weighted_sums(found.p.square(), v.square()).sqrt()
    bound = (
        bound + _compute_weighted_sums(found.p * found.error + rows.kind.least / found.total, sizes) + rows.kind.least
    )
    return {
        "o": _compare_output(
            rows.select_query_rows(o),
            wanted,
            SPREAD_FACTOR * bound,
            rows.kind,
            found.kept.any(1)[:, None],
            rows.head_index_per_row,
        )
    }


def _compute_products_and_magnitudes(q: Any, k: Any) -> tuple[Any, Any]:
    return (k @ q[:, :, None])[..., 0], (k.abs() @ q.abs()[:, :, None])[..., 0]


def _compute_weighted_sums(weights: Any, values: Any) -> Any:
    return (weights[:, None] @ values)[:, 0]


def check_sampled_gradients(
    named: Named, options: OperatorOptions, d_o: Any, gradients: Mapping[str, Any], generator: Any
) -> dict[str, Any]:
    """Check the gradients of Q, K and V on the current stream; return for each whether it is wrong, and where.

    Those of K and V are left out where there are more scores than :data:`MOST_SCORES`, or tokens are packed.
    """
    found: dict[str, Any] = {}
    if (dq := gradients.get("dq")) is not None:
        found["dq"] = _check_dq(named, options, d_o, dq, generator)
    q, k = named["q"], named["k"]
    if (
        q.dim() == 4
        and q.shape[1] // k.shape[1] * q.shape[2] * k.shape[2] <= MOST_SCORES
        and k.shape[1] == named["v"].shape[1]
    ):
        found |= _check_dk_and_dv_of_one_head(
            named, options, d_o, {name: gradients.get(name) for name in ("dk", "dv")}, generator
        )
    return found


@dataclass(frozen=True)
class _ScoreGradients:
    """The gradients of the scores (dS) of rows, with bounds of the random and systematic errors of their elements."""

    ds: Any
    apart: Any
    together: Any


def _compute_score_gradients(rows: SampledRows, found: _Softmax, dp: Any, sizes: Any) -> _ScoreGradients:
    """Return the gradients of the scores, computed from dO . V and the sums of the absolute products."""
    p, unit = found.p, rows.kind.unit
    dp = dp.masked_fill(~found.kept, 0.0)
    sizes = sizes.masked_fill(~found.kept, 0.0)
    delta = (p * dp).sum(1, keepdim=True)
    ds = p * (dp - delta)
    moved = unit * (p * sizes).sum(1, keepdim=True) + 2.0**-20 * delta.abs()  # delta is of an O that was rounded
    together = ds.abs() * found.error + p * (moved + 2.0**-20 * sizes) + rows.kind.least * (1 + sizes)
    return _ScoreGradients(
        (ds * found.slope).masked_fill(~found.kept, 0.0), ROUNDING_FACTOR * unit * ds.abs(), together
    )


def _check_dq(named: Named, options: OperatorOptions, d_o: Any, dq: Any, generator: Any) -> Any:
    rows = SampledRows(
        named, options, choose_rows_to_check(named, dq, count_max_visible_keys(named, options), generator)
    )
    k, v = rows.select_visible_keys(named["k"], rows.k_head), rows.select_visible_keys(named["v"], rows.v_head)
    found = _compute_softmax(rows, *_compute_products_and_magnitudes(rows.select_query_rows(named["q"]), k))
    slopes = _compute_score_gradients(rows, found, *_compute_products_and_magnitudes(rows.select_query_rows(d_o), v))
    k = k.masked_fill(~found.kept[:, :, None], 0.0)
    wanted = rows.scale * _compute_weighted_sums(slopes.ds, k)
    bound = ROUNDING_FACTOR * rows.kind.unit * wanted.abs() + rows.kind.least
    bound = bound + abs(rows.scale) * (
        _compute_weighted_sums(slopes.apart.square(), k.square()).sqrt()
        + _compute_weighted_sums(slopes.together, k.abs())
    )
    return _compare_output(
        rows.select_query_rows(dq),
        wanted,
        2 * SPREAD_FACTOR * bound,
        rows.kind,
        found.kept.any(1)[:, None],
        rows.head_index_per_row,
    )


def _check_dk_and_dv_of_one_head(
    named: Named, options: OperatorOptions, d_o: Any, gradients: Mapping[str, Any], generator: Any
) -> dict[str, Any]:
    """Check dK and dV of one key head, if possible one with infinite or NaN elements; return whether they are wrong."""
    q, k, v = named["q"], named["k"], named["v"]
    given = {name: x for name, x in gradients.items() if x is not None}
    if not given:
        return {}
    heads, group, count = k.shape[1], q.shape[1] // k.shape[1], q.shape[2]
    bad = sum((~x.isfinite()).flatten(2).any(-1).flatten().int() for x in given.values())
    drawn = torch.randint(0, bad.numel(), (1,), generator=generator, device=q.device)
    head = torch.where(bad.any(), bad.argmax(), drawn)
    b, one = head // heads, head % heads
    at = (b * q.shape[1] + one * group)[:, None] + torch.arange(group, device=q.device)[None]
    flat = (at.flatten()[:, None] * count + torch.arange(count, device=q.device)).flatten()
    rows = SampledRows(named, options, flat)
    absent = (rows.i >= rows.len_q)[:, None]
    queries, d_out = (rows.select_query_rows(x).masked_fill(absent, 0.0) for x in (q, d_o))
    keys, values = k[b, one][0].double(), v[b, one][0].double()
    found = _compute_softmax(rows, queries @ keys.T, queries.abs() @ keys.abs().T)
    slopes = _compute_score_gradients(rows, found, d_out @ values.T, d_out.abs() @ values.abs().T)
    facts: dict[str, Any] = {}
    unit, seen = ROUNDING_FACTOR * rows.kind.unit, (rows.j < rows.len_kv[0])[:, None]
    if "dv" in given:
        wanted, p = found.p.T @ d_out, found.p
        bound = unit * wanted.abs() + unit * (p.square().T @ d_out.square()).sqrt()
        bound = bound + (p * found.error).T @ d_out.abs() + rows.kind.least * (1 + d_out.abs().sum(0))
        facts["dv"] = _compare_output(
            given["dv"][b, one][0], wanted, 2 * SPREAD_FACTOR * bound, rows.kind, seen, rows.head_index_per_row[:1]
        )
    if "dk" in given:
        wanted = rows.scale * (slopes.ds.T @ queries)
        bound = (slopes.apart.square().T @ queries.square()).sqrt() + slopes.together.T @ queries.abs()
        bound = unit * wanted.abs() + abs(rows.scale) * bound + rows.kind.least
        facts["dk"] = _compare_output(
            given["dk"][b, one][0], wanted, 2 * SPREAD_FACTOR * bound, rows.kind, seen, rows.head_index_per_row[:1]
        )
    return facts
