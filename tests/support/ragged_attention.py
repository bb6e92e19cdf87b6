"""Attention calls of a shape class on torch tensors, with float64 reference results per sequence."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from cudnn_backend_py import DataType
from cudnn_backend_py.execution.shape_class_plan import Sequences
from cudnn_backend_py.graph.attention import Attention, SoftCap

BatchLayout = Literal["packed", "dense", "padded"]
RESULT_NAMES = {False: ("o", "stats"), True: ("dq", "dk", "dv")}


@dataclass(frozen=True)
class ShapeClassCallProperties:
    """Common properties of the calls of one shape class."""

    heads: int = 4
    kv_heads: int = 2
    dim: int = 64
    data_type: DataType = DataType.HALF
    causal: bool = False
    left_bound: int | None = None
    bottom_right: bool = False
    cap: float | None = None
    sink: bool = False
    alibi: bool = False

    @property
    def result_tolerance(self) -> float:
        """Return the largest allowed error of a result, relative to its largest element."""
        return 6e-3 if self.data_type is DataType.HALF else 3e-2

    def make_problem_of_call(self, batch: int, q: int, kv: int) -> Attention:
        """Return the attention problem of a call with this batch size and these sequence lengths."""
        return Attention(
            batch=batch,
            heads=self.heads,
            kv_heads=self.kv_heads,
            seq_q=max(q, 1),
            seq_kv=max(kv, 1),
            head_dim=self.dim,
            data_type=self.data_type,
            causal=self.causal,
            left_bound=self.left_bound,
            alignment="bottom_right" if self.bottom_right else "top_left",
            score_modifier=None if self.cap is None else SoftCap(self.cap),
            sink=self.sink,
            alibi=self.alibi,
            stats=True,
        )


@dataclass
class ShapeClassCall:
    """The tensors and arguments of one call: packed tokens [t, h, d], or dense ones [b * s, h, d]."""

    kind: ShapeClassCallProperties
    mode: BatchLayout
    lens_q: list[int]
    lens_kv: list[int]
    seed: int = 0
    most: tuple[int, int] | None = None  # rows of a dense sequence of Q and K; by default the longest lengths
    buffers: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        torch = _import_torch()
        k, generator = self.kind, torch.Generator("cuda").manual_seed(self.seed)
        kind = torch.half if k.data_type is DataType.HALF else torch.bfloat16

        def make_random_tensor(*dims: int, dtype: Any = kind) -> Any:
            return torch.randn(*dims, device="cuda", generator=generator, dtype=torch.float32).to(dtype)

        tokens_q, tokens_kv = self.token_counts
        shapes = dict.fromkeys(("q", "do", "o", "dq"), (tokens_q, k.heads, k.dim))
        shapes |= dict.fromkeys(("k", "v", "dk", "dv"), (tokens_kv, k.kv_heads, k.dim))
        made = {name: make_random_tensor(*shapes[name]) for name in ("q", "k", "v", "do")}
        made |= {
            name: torch.full(shapes[name], torch.nan, device="cuda", dtype=kind) for name in ("o", "dq", "dk", "dv")
        }
        made["stats"] = torch.full((tokens_q, k.heads), torch.nan, device="cuda")
        if k.sink:
            made["sink"] = make_random_tensor(1, k.heads, 1, 1, dtype=torch.float32)
        if k.alibi:
            made["alibi_slopes"] = torch.rand(1, k.heads, 1, 1, device="cuda", generator=generator) * 0.1
        self.buffers = made

    @property
    def longest_lengths(self) -> tuple[int, int]:
        return self.most or (max(self.lens_q), max(self.lens_kv))

    @property
    def token_counts(self) -> tuple[int, int]:
        """Return the numbers of tokens of Q and of K stored in memory."""
        if self.mode == "packed":
            return max(1, sum(self.lens_q)), max(1, sum(self.lens_kv))
        batch = len(self.lens_q)
        return batch * self.longest_lengths[0], batch * self.longest_lengths[1]

    @property
    def problem(self) -> Attention:
        return self.kind.make_problem_of_call(len(self.lens_q), *self.longest_lengths)

    @property
    def sequences(self) -> Sequences:
        batch, (tokens_q, tokens_kv) = len(self.lens_q), self.token_counts
        if self.mode == "dense":
            return Sequences(batch, *self.longest_lengths)
        if self.mode == "padded":
            return Sequences(
                batch,
                *self.longest_lengths,
                len_q=make_int32_tensor(self.lens_q),
                len_kv=make_int32_tensor(self.lens_kv),
            )
        cu = [make_int32_tensor([0, *_compute_cumulative_sums(lens)]) for lens in (self.lens_q, self.lens_kv)]
        return Sequences(batch, *self.longest_lengths, cu_q=cu[0], cu_kv=cu[1], total_q=tokens_q, total_kv=tokens_kv)

    @property
    def offset_multipliers(self) -> dict[str, int]:
        q, kv = (1, 1) if self.mode == "packed" else self.longest_lengths
        of_kv = ("k", "v", "dk", "dv")
        return {name: x.stride(0) * (kv if name in of_kv else q) for name, x in self.buffers.items()}

    def iterate_result_errors(self, *, backward: bool) -> Iterator[tuple[str, float]]:
        """Yield the largest error of each result per sequence; padding rows must be zero."""
        for i in range(len(self.lens_q)):
            rows = self._select_rows_of_sequence(i)
            want = compute_reference_results(
                self.kind, {name: x[rows[name]] for name, x in self.buffers.items() if name in rows}, self
            )
            for name in RESULT_NAMES[backward]:
                yield name, compute_relative_error(self.buffers[name][rows[name]], want[name])
            if self.mode == "padded":
                yield from self._iterate_padding_errors(i, RESULT_NAMES[backward])

    def _iterate_padding_errors(self, i: int, names: tuple[str, ...]) -> Iterator[tuple[str, float]]:
        for name in names:
            is_kv = name in ("dk", "dv")
            most, own = self.longest_lengths[is_kv], (self.lens_kv if is_kv else self.lens_q)[i]
            rest = self.buffers[name][i * most + own : (i + 1) * most]
            wanted = -math.inf if name == "stats" else 0
            yield f"padding of {name}", 0.0 if bool((rest == wanted).all()) else math.inf

    def _select_rows_of_sequence(self, i: int) -> dict[str, slice]:
        found: dict[str, slice] = {}
        for is_kv, (lens, names) in enumerate(
            ((self.lens_q, ("q", "o", "do", "dq", "stats")), (self.lens_kv, ("k", "v", "dk", "dv")))
        ):
            start = sum(lens[:i]) if self.mode == "packed" else i * self.longest_lengths[is_kv]
            found |= dict.fromkeys(names, slice(start, start + lens[i]))
        return found


def compute_reference_results(
    kind: ShapeClassCallProperties, x: Mapping[str, Any], call: ShapeClassCall
) -> dict[str, Any]:
    """Return o, stats, dq, dk and dv of one sequence [s, h, d] in float64."""
    torch = _import_torch()
    q, k, v = (x[name].double().requires_grad_() for name in "qkv")
    groups = kind.heads // kind.kv_heads
    scores = torch.einsum("ihd,jhd->hij", q, k.repeat_interleave(groups, 1)) / math.sqrt(kind.dim)
    if kind.cap is not None:
        scores = kind.cap * torch.tanh(scores / kind.cap)
    rows, columns = torch.arange(len(q), device="cuda")[:, None], torch.arange(len(k), device="cuda")[None]
    if kind.alibi:
        scores = scores + call.buffers["alibi_slopes"].double().view(-1, 1, 1) * (columns - rows)
    shift = len(k) - len(q) if kind.bottom_right else 0
    if kind.causal:
        scores = scores.masked_fill(columns > rows + shift, -math.inf)
    if kind.left_bound is not None:
        scores = scores.masked_fill(columns + kind.left_bound <= rows + shift, -math.inf)
    logits = scores
    if kind.sink:
        more = call.buffers["sink"].double().view(-1, 1, 1).expand(-1, len(q), 1)
        logits = torch.cat([scores, more], 2)
    lowest = scores.new_full((kind.heads, len(q)), -math.inf)
    stats = torch.logsumexp(logits, 2) if logits.shape[2] else lowest
    p = torch.where(torch.isfinite(stats)[..., None], torch.exp(scores - stats[..., None]), 0.0)
    o = torch.einsum("hij,jhd->ihd", p, v.repeat_interleave(groups, 1))
    with warnings.catch_warnings():
        warnings.filterwarnings(
            "ignore", message="Attempting to run cuBLAS"
        )  # autograd's thread has no CUDA context yet
        gradients = torch.autograd.grad(o, (q, k, v), x["do"].double())
    found = {"o": o, "stats": stats.T} | dict(zip(("dq", "dk", "dv"), gradients, strict=True))
    return {name: torch.nan_to_num(value.detach(), neginf=-math.inf) for name, value in found.items()}


def compute_relative_error(found: Any, want: Any) -> float:
    """Return the largest error divided by the largest element; infinite if infinities or NaN differ."""
    torch = _import_torch()
    found, finite = found.double(), torch.isfinite(want)
    if not want.numel():
        return 0.0
    if bool((found[~finite] != want[~finite]).any()) or not bool(torch.isfinite(found[finite]).all()):
        return math.inf
    largest = max(1e-2, float(want[finite].abs().max()) if bool(finite.any()) else 0.0)
    return float((found - want)[finite].abs().max()) / largest if bool(finite.any()) else 0.0


def make_int32_tensor(values: list[int]) -> Any:
    return _import_torch().tensor(values, dtype=_import_torch().int32, device="cuda")


def _compute_cumulative_sums(values: list[int]) -> list[int]:
    return [sum(values[: i + 1]) for i in range(len(values))]


def _import_torch() -> Any:
    import torch

    return torch
