"""The backward pass as matmul, pointwise, reduction and reshape operations: FlashAttention-2's recomputation."""

from __future__ import annotations

from typing import Any

from ...generated.enums import DataType, PointwiseMode
from ...system.version import VersionTuple
from ..ir import Graph, Tensor
from .builder import AttentionBuilder
from .problem import Attention

__all__ = ["add_composite_backward", "build_composite_backward"]

_MODE = PointwiseMode


def build_composite_backward(p: Attention, version: VersionTuple | None) -> Graph:
    """Return the composite graph of the backward pass: dQ, dK, dV (dbias, dsink) from Q, K, V, O, dO and stats.

    Scratch tensors (``softmax_sum``, ``dq_accum``, and with grouped heads and bounds ``dk_full``, ``dv_full``) are
    memory the kernels hand each other.
    """
    f = AttentionBuilder(p, "sdpa_backward", version)
    add_composite_backward(f)
    return f.g.graph()


def add_composite_backward(f: AttentionBuilder) -> None:
    """Add the operations of the backward pass."""
    (_BlockScaledBackward if f.p.mx else _Fp8Backward if f.p.is_fp8 else _HalfPrecisionBackward)(f).add_operations()


class _HalfPrecisionBackward:
    """Builds the backward pass for float16 and bfloat16."""

    def __init__(self, f: AttentionBuilder) -> None:
        self.f = f
        self.p = f.p
        self.q, self.do, self.o = f.get_io_tensor("q"), f.get_io_tensor("do"), f.get_io_tensor("o")
        self.do_of_rows = self.do
        self.k_t, self.v_t = f.get_io_tensor("k", transposed=True), f.get_io_tensor("v", transposed=True)
        self.dropout = f.add_dropout_factors()
        if f.p.dropout_mask:
            self.dropout = self.dropout[::-1]  # the mask first, as in the other form
        self.scale = f.scale()

    def add_operations(self) -> None:
        f = self.f
        probabilities = self.add_probabilities()
        dropped = f.add_product(probabilities, *self.dropout)
        self.write_dv(dropped)
        d_score = self.add_score_gradient(probabilities)
        self.write_dk(d_score)
        self.write_dq(d_score)

    # softmax, recomputed

    def add_raw_scores(self) -> Tensor:
        f = self.f
        score = f.matmul(self.q, self.k_t, "m=q n=kv", name="qk")
        return f.add_product(score, self.scale)

    def add_probabilities(self) -> Tensor:
        """Return exp(scores - stats)."""
        f = self.f
        self.score = score = self.add_raw_scores()
        score = f.add_biases(f.apply_score_modifier(score))
        # The statistics of an empty row are -inf: they are subtracted before its scores become -inf.
        score = self.add_stats_subtraction(score)
        return f.pointwise(_MODE.EXP, f.mask_outside_band(f.mask_padding(score)), name="p")

    def add_stats_subtraction(self, score: Tensor) -> Tensor:
        return self.f.pointwise(_MODE.SUB, score, self.f.get_per_row_tensor("stats"), name="minus_stats")

    def add_row_sums_of_o_times_do(self) -> Tensor:
        """Return rowsum(dO * O), FlashAttention-2's D."""
        f = self.f
        product = f.pointwise(_MODE.MUL, self.do_of_rows, self.o, name="do_o")
        return f.add_sum(product, f.row_dims, name="d")

    def write_dsink(self, row_sums: Tensor) -> None:
        f = self.f
        if not self.p.dsink:
            return
        share = f.pointwise(
            _MODE.EXP,
            f.pointwise(
                _MODE.SUB, f.get_per_head_tensor("sink"), f.get_per_row_tensor("stats"), name="sink_minus_stats"
            ),
        )
        product = f.add_product(share, row_sums)
        dsink = f.get_per_head_tensor("dsink")
        f.add_sum(product, dsink.dims, out=dsink)

    def add_score_gradient(self, probabilities: Tensor) -> Tensor:
        """Return the gradient of q @ k^T."""
        f, p = self.f, self.p
        row_sums = self.add_row_sums_of_o_times_do()
        self.write_dsink(row_sums)
        factor = self.get_dropout_factor_of_row_sums() or f.scalar(1.0, "row_factor")
        softmax_sum = f.pointwise(_MODE.MUL, row_sums, factor, out=self.make_softmax_sum_tensor())
        dp = f.matmul(self.do, self.v_t, "m=q n=kv", name="dp")
        mask, keep_scale = self.get_dropout_mask_and_scale()
        dp = f.add_product(dp, mask)
        dp = f.add_product(f.pointwise(_MODE.SUB, dp, softmax_sum), probabilities, keep_scale)
        if p.dbias:
            dbias = f.get_or_make_tensor("dbias", p.bias or f.score_dims, p.data_type)
            f.add_sum(dp, dbias.dims, out=dbias)
        return f.add_product(f.backpropagate_through_modifier(dp, self.score), self.scale)

    def get_dropout_factor_of_row_sums(self) -> Tensor | None:
        """Return the factor of the row sums: the inverse dropout factor; None without dropout."""
        if self.p.dropout_mask:
            return self.f.get_device_scalar("dropout_scale_inv")
        return self.f.scalar(self.f.keep_probability, "row_factor") if self.p.dropout else None

    def get_dropout_mask_and_scale(self) -> tuple[Tensor | None, Tensor | None]:
        """Return the factors of dP before and after the subtraction of the row sums: dropout mask and scale."""
        if not self.dropout:
            return None, None
        mask, scale = self.dropout
        return mask, scale

    # scratch memory

    def make_softmax_sum_tensor(self) -> Tensor:
        f, p = self.f, self.p
        options: dict[str, Any] = {"scratch": True}
        stats = f.get_per_row_tensor("stats")
        if stats.ragged_offset is not None and p.max_total_seq_q is not None:
            options |= {"strides": stats.strides, "ragged_offset": stats.ragged_offset}
        return f.tensor("softmax_sum", f.row_dims, DataType.FLOAT, **options)

    def _make_per_head_output_options(self, name: str, dims: tuple[int, ...], heads: int) -> dict[str, Any]:
        """Return the output options for dK or dV per query head, before the sum over each group of heads."""
        p, like = self.p, self.f.get_io_tensor(name)
        if p.max_total_seq_kv is None or like.ragged_offset is None:
            return {"name": f"{name}_full", "data_type": p.data_type}
        b, h, s, d = like.strides
        groups = p.heads // heads
        return {
            "out": self.f.tensor(
                f"{name}_full",
                dims,
                p.data_type,
                strides=(b * groups, h, s * groups, d),
                ragged_offset=like.ragged_offset,
                scratch=True,
            )
        }

    # gradients

    def _write_dk_or_dv(self, left: Tensor, right: Tensor, name: str, heads: int) -> None:
        """Write dK or dV: left^T @ right, summed over the query heads that share a key head."""
        f, p = self.f, self.p
        left_t = f.transpose(left, name=f"{name}_left", data_type=p.data_type)
        grouped = heads != p.heads
        dims = (*left_t.dims[:3], right.dims[3])
        result = self._make_per_head_output_options(name, dims, heads) if grouped else {"out": f.get_io_tensor(name)}
        full = f.matmul(left_t, right, "m=kv k=q", **result)
        if grouped:
            f.add_sum(full, f.get_io_tensor(name).dims, out=f.get_io_tensor(name))

    def write_dv(self, dropped: Tensor) -> None:
        self._write_dk_or_dv(dropped, self.do, "dv", self.p.v_heads)

    def write_dk(self, d_score: Tensor) -> None:
        self._write_dk_or_dv(d_score, self.q, "dk", self.p.kv_heads)

    def transpose_k_t_to_k(self) -> Tensor:
        """Return K [b, h, s_kv, d], transposed back from K^T, with K's strides."""
        b, h, d, s = self.k_t.strides
        return self.f.transpose(self.k_t, name="k_again", strides=(b, h, s, d))

    def write_dq(self, d_score: Tensor) -> None:
        f, p = self.f, self.p
        if p.deterministic or p.dbias:
            f.matmul(d_score, self.transpose_k_t_to_k(), "m=q k=kv", out=f.get_io_tensor("dq"))
            return
        dq = f.get_io_tensor("dq")
        options: dict[str, Any] = {"scratch": True}
        if p.max_total_seq_q is not None and dq.ragged_offset is not None:
            options |= {"strides": dq.strides, "ragged_offset": dq.ragged_offset}
        accumulator = f.tensor("dq_accum", p.dims("dq"), DataType.FLOAT, **options)
        f.matmul(d_score, self.transpose_k_t_to_k(), "m=q k=kv", out=accumulator)
        f.pointwise(_MODE.IDENTITY, accumulator, out=dq)


class _Fp8Backward(_HalfPrecisionBackward):
    """Builds the backward pass for 8-bit floats: each product is descaled, each result scaled and its amax written."""

    def add_raw_scores(self) -> Tensor:
        f = self.f
        return f.add_product(
            super().add_raw_scores(), f.get_device_scalar("descale_q"), f.get_device_scalar("descale_k")
        )

    def add_operations(self) -> None:
        f, p = self.f, self.p
        probabilities = self.add_probabilities()
        small = f.add_product(probabilities, *self.dropout, f.get_device_scalar("scale_s"), data_type=p.data_type)
        self._write_scaled_dk_or_dv(small, self.do, "dv", p.v_heads, ("descale_s", "descale_do"))
        d_score = self.add_score_gradient(probabilities)
        f.write_amax("amax_dp", d_score)
        small = f.add_product(d_score, f.get_device_scalar("scale_dp"), data_type=p.data_type)
        self._write_scaled_dk_or_dv(small, self.q, "dk", p.kv_heads, ("descale_dp", "descale_q"))
        self._write_scaled_gradient(
            "dq", f.matmul(small, self.transpose_k_t_to_k(), "m=q k=kv", name="dq_raw"), ("descale_dp", "descale_k")
        )

    def add_score_gradient(self, probabilities: Tensor) -> Tensor:
        f = self.f
        row_sums = f.add_product(
            self.add_row_sums_of_o_times_do(), f.get_device_scalar("descale_do"), f.get_device_scalar("descale_o")
        )
        self.write_dsink(row_sums)
        row_sums = f.add_product(row_sums, self.get_dropout_factor_of_row_sums())
        dp = f.matmul(self.do, self.v_t, "m=q n=kv", name="dp")
        mask, keep_scale = self.get_dropout_mask_and_scale()
        dp = f.add_product(dp, f.get_device_scalar("descale_do"), f.get_device_scalar("descale_v"), mask)
        dp = f.pointwise(_MODE.SUB, dp, row_sums)
        return f.add_product(dp, probabilities, keep_scale, self.scale)

    def _write_scaled_dk_or_dv(
        self, left: Tensor, right: Tensor, name: str, heads: int, factors: tuple[str, ...]
    ) -> None:
        f, p = self.f, self.p
        left_t = f.transpose(left, name=f"{name}_left", data_type=p.data_type)
        full = f.matmul(left_t, right, "m=kv k=q", name=f"{name}_full")
        if heads != p.heads:
            full = f.add_sum(full, p.dims(name), name=f"{name}_sum")
        self._write_scaled_gradient(name, full, factors)

    def _write_scaled_gradient(self, name: str, raw: Tensor, factors: tuple[str, ...]) -> None:
        """Descale a raw gradient, write its amax, and write it scaled."""
        f = self.f
        value = f.add_product(raw, *(f.get_device_scalar(factor) for factor in factors))
        f.pointwise(_MODE.MUL, value, f.get_device_scalar(f"scale_{name}"), out=f.get_io_tensor(name))
        f.write_amax(f"amax_{name}", value)


class _BlockScaledBackward(_HalfPrecisionBackward):
    """Builds the backward pass for block-scaled 8-bit floats.

    A tensor is given once per way its blocks are: ``q``, ``k``, ``do`` in blocks along d, ``q_t``, ``k_t``, ``do_t``
    in blocks along s; and O and dO in 16 bits for the row sums. Its kernel is the deterministic one of Blackwell, see
    :func:`~cudnn_backend_py.graph.attention.deterministic_config`.
    """

    def __init__(self, f: AttentionBuilder) -> None:
        super().__init__(f)
        p = f.p
        wide = DataType.BFLOAT16 if p.output_type in (None, p.data_type) else p.output_type
        assert wide is not None
        self.o, self.do_of_rows = f.make_tensor_like("o", "f16", wide), f.make_tensor_like("do", "f16", wide)
        self.q, self.do = f.dequantize(self.q, "descale_q", 3), f.dequantize(self.do, "descale_do", 3)
        self.k_t, self.v_t = (
            self._dequantize_transposed(self.k_t, "descale_k"),
            self._dequantize_transposed(self.v_t, "descale_v"),
        )

    def _dequantize_transposed(self, x: Tensor, scales: str) -> Tensor:
        return self.f.dequantize(x, scales, 2, transposed=True)

    def dequantize_along_sequence_axis(self, name: str) -> Tensor:
        """Return the dequantized values of ``q``, ``k`` or ``do`` from its copy with blocks along s."""
        f = self.f
        return f.dequantize(f.make_tensor_like(name, "t", self.p.data_type), f"descale_{name}_t", 2)

    def add_operations(self) -> None:
        f, p = self.f, self.p
        probabilities = self.add_probabilities()
        dropped = f.add_product(probabilities, *self.dropout)
        self._write_block_scaled_dk_or_dv(dropped, self.dequantize_along_sequence_axis("do"), "dv", p.v_heads)
        d_score = self.add_score_gradient(probabilities)
        self._write_block_scaled_dk_or_dv(d_score, self.dequantize_along_sequence_axis("q"), "dk", p.kv_heads)
        dq = f.matmul(d_score, self.dequantize_along_sequence_axis("k"), "m=q k=kv", out=f.get_io_tensor("dq"))
        f.write_amax("amax_dq", dq)

    def make_softmax_sum_tensor(self) -> Tensor:
        return self.f.tensor("softmax_sum", self.f.row_dims, DataType.FLOAT, virtual=True)

    def _write_block_scaled_dk_or_dv(self, left: Tensor, right: Tensor, name: str, heads: int) -> None:
        f, p = self.f, self.p
        left_t = f.transpose(left, name=f"{name}_left", data_type=p.data_type)
        if heads == p.heads:
            full = f.matmul(left_t, right, "m=kv k=q", out=f.get_io_tensor(name))
        else:
            raw = f.matmul(left_t, right, "m=kv k=q", name=f"{name}_full")
            full = f.add_sum(raw, p.dims(name), out=f.get_io_tensor(name))
        f.write_amax(f"amax_{name}", full)
