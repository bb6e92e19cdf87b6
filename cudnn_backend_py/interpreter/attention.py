"""Evaluation of attention's operations: random masks, diagonal bands, softmax, fused forward and backward passes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import GraphError
from ..generated.enums import DataType, DescriptorType, PointwiseMode, RngDistribution
from ..generated.operations import DEFAULTS
from ..graph.formats import round_to_data_type
from ..graph.ir import Graph, Operation, Tensor
from .arithmetic import append_dims, make_length_mask, matmul
from .layout import dequantize, read_pages
from .run import Handler, Numbers, Run

__all__ = ["OPERATIONS", "compute_forward_results", "find_masked_scores"]

Floats = NDArray[np.float64]
_BLOCK = 128  # rows and columns of a block of the block mask


# random masks


def run_rng(run: Run, op: Operation) -> None:
    """Write random numbers: equal to cuDNN's for BERNOULLI, otherwise only equal in distribution.

    Zeros and ones are those of cuDNN's attention kernels. The numbers cuDNN draws for the other distributions are not
    known: where they matter, give them in `inputs` under the name of y.
    """
    y, facts = op.fields["y"], op.fields["rng"].fields
    drawn = run.read_given_output_value(y)
    if drawn is None:
        drawn = _make_random_numbers(run, op, facts.get("distribution", RngDistribution.BERNOULLI), facts)
    run.write_value(y, drawn)


def _make_random_numbers(run: Run, op: Operation, distribution: RngDistribution, facts: Mapping[str, Any]) -> Floats:
    seed, offset, dims = op.fields.get("seed", 0), op.fields["offset"], op.fields["y"].dims
    if distribution is RngDistribution.BERNOULLI:
        whole = (math.prod(dims[:-3]), *dims[-3:]) if len(dims) > 3 else (1,) * (4 - len(dims)) + dims
        mask = _make_random_dropout_mask(run, seed, offset, whole, facts.get("bernoulli_dist_probability", 0.5))
        return np.asarray(mask.reshape(dims))
    key = [_read_integer(run, item) % (1 << 64) for item in (seed, offset)]
    draw = np.random.Generator(np.random.Philox(key=np.array(key, np.uint64)))
    if distribution is RngDistribution.UNIFORM:
        return np.asarray(
            draw.uniform(facts.get("uniform_dist_minimum", 0.0), facts.get("uniform_dist_maximum", 1.0), dims)
        )
    mean, deviation = (facts.get(f"normal_dist_{name}", -1.0) for name in ("mean", "standard_deviation"))
    if deviation < 0:
        raise GraphError(
            f"a normal distribution has a standard deviation of {deviation}, 0 or more is needed",
            code="interpret-operation",
            where=f"operation {op.name!r}",
        )
    return np.asarray(draw.normal(mean, deviation, dims))


def _read_integer(run: Run, value: Tensor | int) -> int:
    return value if isinstance(value, int) else int(run.read_scalar(value))


def _make_random_dropout_mask(
    run: Run, seed: Tensor | int, offset: Tensor, dims: tuple[int, ...], probability: float
) -> Floats:
    drawn = run.rng(_read_integer(run, seed), _read_integer(run, offset), dims, probability)
    return np.asarray(drawn, dtype=np.float64)


# masks and softmax


def _read_sequence_lengths(run: Run, op: Operation, which: str) -> Numbers | None:
    """Return the sequence lengths [b, 1, 1, 1] of "q" or "kv", from the lengths or from their running sums."""
    lengths, sums = op.fields.get(f"seq_len_{which}"), op.fields.get(f"cu_seq_len_{which}")
    if lengths is not None:
        return append_dims(run.read_value(lengths), 4)
    return None if sums is None else np.diff(run.read_value(sums).reshape(-1)).reshape(-1, 1, 1, 1)


def run_diagonal_band_mask(run: Run, op: Operation) -> None:
    """Write x inside the diagonal band that the comparison selects, b (default -inf) outside.

    CMP_GE, the right bound: row + shift_right_bound (+ seq_len_kv - seq_len_q) >= column. CMP_GT, the left bound:
    column + left_bound (- seq_len_kv + seq_len_q) > row. What is in brackets applies where both lengths are given.
    """
    x = run.read_floats(op.fields["x"])
    rows, columns = np.arange(x.shape[-2]).reshape(-1, 1), np.arange(x.shape[-1])
    seq_q, seq_kv = _read_sequence_lengths(run, op, "q"), _read_sequence_lengths(run, op, "kv")
    diagonal = 0 if seq_q is None or seq_kv is None else seq_kv - seq_q

    def read_diagonal_bound(name: str) -> Numbers | int:
        tensor = op.fields.get(name)
        return 0 if tensor is None else append_dims(run.read_value(tensor), x.ndim)

    mode = op.fields["comparison_mode"]
    if mode is PointwiseMode.CMP_GE:
        keep = rows + diagonal + read_diagonal_bound("shift_right_bound") >= columns
    elif mode is PointwiseMode.CMP_GT:
        keep = columns + read_diagonal_bound("left_bound") - diagonal > rows
    else:
        raise GraphError(
            f"a diagonal band by {mode!r} cannot be interpreted, CMP_GE or CMP_GT is needed",
            code="interpret-operation",
            where=f"operation {op.name!r}",
        )
    outside = run.read_floats(op.fields["b"]) if "b" in op.fields else -np.inf
    run.write_value(op.fields["y"], np.where(keep, x, outside))


def run_softmax(run: Run, op: Operation) -> None:
    """Write y = exp(x - max) / sum over the last axis; max, sum_exp and stats = max + log(sum) if requested."""
    y, probabilities, sums = op.fields["y"], *_compute_softmax(run, op, run.read_floats(op.fields["x"]))
    run.row_sums[y.uid] = run.compute_softmax_numerator_factors(probabilities, sums)
    run.write_value(y, probabilities)


def _compute_softmax(run: Run, op: Operation | None, x: Floats) -> tuple[Floats, Floats]:
    """Return the softmax and its row sums, and write the requested statistics.

    A sink joins the maximum and the sum.
    """
    fields = {} if op is None else op.fields
    top = x.max(axis=-1, keepdims=True)
    if "sink" in fields:
        sink = run.read_floats(fields["sink"])
        top = np.maximum(top, sink)
    exp = run.round_to_type(np.exp(run.round_to_type(x - top, DataType.FLOAT)), DataType.FLOAT)
    total = exp.sum(axis=-1, keepdims=True)
    if "sink" in fields:
        total = total + np.exp(sink - top)
    total = run.round_to_type(total, DataType.FLOAT)
    stats = top + run.round_to_type(np.log(total), DataType.FLOAT)
    if fields.get("stats_log2"):
        stats = stats * math.log2(math.e)
    for name, value in (("max", top), ("sum_exp", total), ("stats", stats)):
        if name in fields:
            run.write_value(fields[name], value)
    return np.asarray(exp / total), total


# the fused passes


@dataclass
class _AttentionScores:
    """The operands Q, K and V of attention, and its scores before and after the masks, used by both passes."""

    q: Floats  # [b, h, s_q, d], 0 beyond the real lengths, as k and v
    k: Floats
    v: Floats
    factor: Floats  # of q @ k^T
    raw: Floats  # factor * q @ k^T [b, h, s_q, s_kv]
    masked: Floats  # after the sub-graph and the masks
    inside_q: NDArray[np.bool_]  # rows below the real length [b, 1, s_q, 1]
    inside_kv: NDArray[np.bool_]  # [b, 1, s_kv, 1]


def _compute_scores(run: Run, op: Operation) -> _AttentionScores:
    seq_q, seq_kv = _read_sequence_lengths(run, op, "q"), _read_sequence_lengths(run, op, "kv")
    q = _read_q_k_or_v(run, op, "q")
    k, v = _read_q_k_or_v(run, op, "k", seq_kv), _read_q_k_or_v(run, op, "v", seq_kv)
    inside_q, inside_kv = _make_row_length_mask(q, seq_q), _make_row_length_mask(k, seq_kv)
    q, k, v = np.where(inside_q, q, 0.0), np.where(inside_kv, k, 0.0), np.where(inside_kv, v, 0.0)
    factor = np.ones((1, 1, 1, 1))
    for name in ("scale", "descale_q", "descale_k"):
        if name in op.fields and not _is_block_scale(op.fields[name]):
            factor = factor * run.read_value(op.fields[name]).reshape(1, 1, 1, 1)
    raw = run.round_to_type(matmul(q, k.swapaxes(2, 3)), DataType.FLOAT)
    raw = run.round_to_type(raw * factor, DataType.FLOAT)
    masked = _apply_block_mask(run, op, raw)
    if "subgraph" in op.fields:
        masked = run.run_subgraph(*_get_score_subgraph_and_uids(op), masked).astype(np.float64)
    if seq_q is not None and seq_kv is not None:
        masked = np.where(inside_q & inside_kv.swapaxes(2, 3), masked, -np.inf)
    return _AttentionScores(q, k, v, factor, raw, masked, inside_q, inside_kv)


def _make_row_length_mask(x: Floats, lengths: Numbers | None) -> NDArray[np.bool_]:
    """Return which rows of x [b, h, s, d] are within the sequence lengths, [b, 1, s, 1]."""
    return make_length_mask((1, 1, x.shape[2], 1), 2, np.full((1, 1, 1, 1), x.shape[2]) if lengths is None else lengths)


def _get_score_subgraph_and_uids(op: Operation) -> tuple[Graph, int, int]:
    return op.fields["subgraph"], op.fields["subgraph_input_uid"], op.fields["subgraph_output_uid"]


def _is_block_scale(scale: Tensor) -> bool:
    return scale.data_type is DataType.FP8_E8M0


def _read_q_k_or_v(run: Run, op: Operation, name: str, lengths: Numbers | None = None) -> Floats:
    """Return q, k or v as [b, h, s, d], gathered from pages and dequantized if necessary."""
    values = run.read_floats(op.fields[name])
    table = op.fields.get(f"page_table_{name}")
    if table is not None:
        if lengths is None:
            raise GraphError(
                f"attention {op.name!r} has a page table but no seq_len_kv, the lengths of its sequences",
                code="interpret-input",
                where=f"operation {op.name!r}",
            )
        values = read_pages(run, op, values, table, lengths, _get_paged_seq_kv(op, table, values.shape[2]))
    scale = op.fields.get(f"descale_{name}")
    if scale is not None and _is_block_scale(scale):
        values = dequantize(run, op, values, scale)
    return values


def _get_paged_seq_kv(op: Operation, table: Tensor, page_size: int) -> int:
    """Return s_kv of paged keys: the last dim of the scores if known, else the capacity of the page table."""
    dims: tuple[int, ...] | None = None
    if "subgraph" in op.fields:
        dims = op.fields["subgraph"].tensor(op.fields["subgraph_input_uid"]).dims
    elif "softmax" in op.fields:
        dims = op.fields["softmax"].fields["x"].dims
    return table.dims[2] * page_size if dims is None else int(dims[3])


def _apply_block_mask(run: Run, op: Operation, score: Floats) -> Floats:
    """Mask the 128 x 128 blocks with a mask element of 0; uint8 masks have one bit per block.

    Assumed: the lowest bit is the first column.
    """
    mask = op.fields.get("block_mask")
    if mask is None:
        return score
    columns = math.ceil(score.shape[3] / _BLOCK)
    kept = run.read_value(mask)
    if mask.data_type is DataType.UINT8 and mask.dims[3] == math.ceil(columns / 8):
        kept = np.unpackbits(kept.astype(np.uint8), axis=3, bitorder="little")
    for axis in (2, 3):
        kept = np.repeat(kept, _BLOCK, axis)
    return np.where(kept[:, :, : score.shape[2], : score.shape[3]] != 0, score, -np.inf)


def _compute_dropout_factor(run: Run, op: Operation, dims: tuple[int, ...]) -> Floats | None:
    """Return the dropout mask divided by the keep probability; None without dropout.

    ``dropout_probability`` is that of dropping a score, as the header says of the backward pass.
    """
    drop = op.fields.get("dropout_probability", DEFAULTS[op.kind]["dropout_probability"])
    if not drop:
        return None
    keep = 1.0 - float(round_to_data_type(drop, DataType.FLOAT))
    dump = op.fields.get("dropout_rng_dump")
    name = f"{op.name}.dropout_mask" if dump is None else dump.name
    given = run.read_non_tensor_input(name) if dump is None else run.read_given_output_value(dump)
    if given is None:
        mask = _make_random_dropout_mask(run, op.fields["dropout_seed"], op.fields["dropout_offset"], dims, keep)
    else:
        mask = given.astype(np.float64)
    if mask.shape != dims:
        raise GraphError(
            f"the mask {name!r} has shape {mask.shape}, {dims} is needed",
            code="interpret-shape",
            where=f"operation {op.name!r}",
        )
    if dump is not None:
        run.write_value(dump, mask)
    return np.asarray(mask / keep)


def _multiply_scalars(run: Run, op: Operation, *names: str) -> float:
    return math.prod(float(run.read_scalar(op.fields[name])) for name in names if name in op.fields)


def run_sdpa_forward(run: Run, op: Operation) -> None:
    """Write O = dropout(softmax(padding(subgraph(block mask(scale * Q @ K^T))))) @ V.

    Padding applies where both lengths are given, and rows of O beyond them are 0. The fp8 factors apply where the
    composite pattern has them: amax_s before scale_s, amax_o before scale_o.
    """
    scores = _compute_scores(run, op)
    softmax = op.fields.get("softmax")
    probabilities, sums = _compute_softmax(
        run, softmax if softmax is not None else _make_softmax_for_sdpa_stats(op), scores.masked
    )
    sums = run.compute_softmax_numerator_factors(probabilities, sums)
    if softmax is not None:
        run.write_value(softmax.fields["x"], scores.masked)
        run.write_value(softmax.fields["y"], probabilities)
    mask = _compute_dropout_factor(run, op, probabilities.shape)
    if mask is not None:
        probabilities = probabilities * mask
    probabilities = np.where(scores.inside_q, probabilities, 0.0)
    _write_amax(run, op, "amax_s", probabilities)
    probabilities = run.round_numerators(
        probabilities * _multiply_scalars(run, op, "scale_s"), sums, op.fields["q"].data_type
    )
    o = run.round_to_type(matmul(probabilities, scores.v), DataType.FLOAT)
    names = [name for name in ("descale_s", "descale_v") if name in op.fields and not _is_block_scale(op.fields[name])]
    o = o * _multiply_scalars(run, op, *names)
    _write_amax(run, op, "amax_o", o)
    run.write_value(op.fields["o"], o * _multiply_scalars(run, op, "scale_o"))


def _make_softmax_for_sdpa_stats(op: Operation) -> Operation | None:
    """Return a softmax operation for the ``stats`` output of an SDPA operation, used before cuDNN 9.21."""
    stats = op.fields.get("stats")
    if stats is None:
        return None
    unused = op.fields["o"]
    return Operation(DescriptorType.OPERATION_SOFTMAX, op.name, {"x": unused, "y": unused, "stats": stats})


def _write_amax(run: Run, op: Operation, name: str, values: Floats) -> None:
    if name in op.fields:
        run.write_value(op.fields[name], np.full(op.fields[name].dims, np.abs(values).max()))


def run_sdpa_backward(run: Run, op: Operation) -> None:
    """Write dQ, dK, dV (dbias, dsink) from Q, K, V, O, dO and the statistics, with P = exp(scores - stats).

    A sub-graph is taken to change each score for itself; its slope is found by differences. dbias is the gradient
    after the sub-graph, which the header allows for additions and masks after the bias. dsink is the gradient of the
    sink's logit, -sum(exp(sink - stats) * rowsum(dO * O)).
    """
    s = _compute_scores(run, op)
    d_o, o, stats = (np.where(s.inside_q, run.read_floats(op.fields[name]), 0.0) for name in ("d_o", "o", "stats"))
    probabilities = np.where(s.masked == -np.inf, 0.0, np.exp(s.masked - stats))
    mask = _compute_dropout_factor(run, op, probabilities.shape)
    factor = np.ones(1) if mask is None else mask
    small, full = op.fields["q"].data_type, DataType.FLOAT

    def write_matmul_summed_over_heads(name: str, a: Floats, b: Floats, inside: NDArray[np.bool_]) -> None:
        """Write a @ b summed over the query heads that share a key head; 0 beyond the sequence lengths."""
        whole = run.round_to_type(matmul(a, b), full)
        batch, heads, *rest = op.fields[name].dims
        run.write_value(op.fields[name], np.where(inside, whole.reshape(batch, heads, -1, *rest).sum(axis=2), 0.0))

    rows = (d_o * o).sum(axis=3, keepdims=True)
    d_p = run.round_to_type(matmul(d_o, s.v.swapaxes(2, 3)), full) * factor
    d_masked = run.round_to_type(probabilities * (d_p - rows), full)
    d_score = run.round_to_type(d_masked * _compute_subgraph_derivative(run, op, s.raw) * s.factor, small)
    dropped = run.round_to_type(probabilities * factor, small)
    write_matmul_summed_over_heads("dv", dropped.swapaxes(2, 3), d_o, s.inside_kv)
    write_matmul_summed_over_heads("dk", d_score.swapaxes(2, 3), s.q, s.inside_kv)
    write_matmul_summed_over_heads("dq", d_score, s.k, s.inside_q)
    for name, values in (("dbias", d_masked), ("dsink", _compute_sink_gradient(run, op, stats, rows))):
        if name in op.fields:
            dims = op.fields[name].dims
            axes = tuple(axis for axis, dim in enumerate(dims) if dim == 1)
            if name == "dbias":  # its terms are in memory before the sum
                values = run.round_to_type(values, op.fields[name].data_type)
            run.write_value(op.fields[name], values.sum(axis=axes, keepdims=True))


def find_masked_scores(run: Run, op: Operation) -> NDArray[np.bool_]:
    """Return which scores a forward pass masks: by sub-graph, block mask or lengths."""
    return np.asarray(_compute_scores(run.copy_without_rounding(), op).masked == -np.inf)


def compute_forward_results(run: Run, op: Operation) -> tuple[Floats, Floats]:
    """Return O [b, h, s_q, d_v] and the statistics that the forward pass gives for a backward operation.

    Rows without a key are NaN.
    """
    s = _compute_scores(run, op)
    top = s.masked.max(axis=3, keepdims=True)
    stats = top + np.log(np.exp(s.masked - top).sum(axis=3, keepdims=True))
    if "sink" in op.fields:
        stats = np.logaddexp(np.where(np.isnan(stats), -np.inf, stats), run.read_floats(op.fields["sink"]))
    probabilities = np.where(s.masked == -np.inf, 0.0, np.exp(s.masked - stats))
    mask = _compute_dropout_factor(run, op, probabilities.shape)
    return matmul(probabilities if mask is None else probabilities * mask, s.v), stats


def _compute_sink_gradient(run: Run, op: Operation, stats: Floats, rows: Floats) -> Floats:
    sink = run.read_floats(op.fields["sink"]) if "sink" in op.fields else np.full((1, 1, 1, 1), -np.inf)
    return -np.exp(sink - stats) * rows


def _compute_subgraph_derivative(run: Run, op: Operation, score: Floats) -> Floats:
    """Return the derivative of the sub-graph at each score: fourth-order central differences, error 1e-12."""
    if "subgraph" not in op.fields:
        return np.ones(1)
    exact = run.copy_without_rounding()
    step = 1e-3
    far, near = (
        exact.run_subgraph(*_get_score_subgraph_and_uids(op), score + width)
        - exact.run_subgraph(*_get_score_subgraph_and_uids(op), score - width)
        for width in (2 * step, step)
    )
    slope = (8 * near - far) / (12 * step)
    return np.where(np.isfinite(slope), slope, 0.0)


OPERATIONS: dict[DescriptorType, Handler] = {
    DescriptorType.OPERATION_RNG: run_rng,
    DescriptorType.OPERATION_DIAGONAL_BAND_MASK: run_diagonal_band_mask,
    DescriptorType.OPERATION_SOFTMAX: run_softmax,
    DescriptorType.OPERATION_SDPA_FWD: run_sdpa_forward,
    DescriptorType.OPERATION_SDPA_BWD: run_sdpa_backward,
}
