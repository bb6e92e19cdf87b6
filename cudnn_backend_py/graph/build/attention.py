"""``GraphBuilder`` methods for the operations of attention; ``cudnn_backend_py.attention`` builds whole passes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from ...errors import GraphError
from ...generated.enums import DescriptorType, PointwiseMode
from ..ir import Tensor
from .base import (
    BuilderBase,
    Output,
    check_dims,
    check_equal_ranks,
    check_types,
    make_shape_error,
    make_strides_like,
    require_all_results,
    wrap_public_methods_of_mixin,
)

__all__ = ["AttentionOperations", "SdpaForwardOutputs", "SdpaGradients", "SoftmaxOutputs"]


class SoftmaxOutputs(NamedTuple):
    """Outputs of a softmax; None for those not requested."""

    y: Tensor
    stats: Tensor | None
    max: Tensor | None
    sum_exp: Tensor | None


class SdpaForwardOutputs(NamedTuple):
    """The output of attention and its statistics, None if not requested."""

    o: Tensor
    stats: Tensor | None


class SdpaGradients(NamedTuple):
    """The gradients of attention."""

    dq: Tensor
    dk: Tensor
    dv: Tensor
    dsink: Tensor | None
    dbias: Tensor | None


@wrap_public_methods_of_mixin
class AttentionOperations(BuilderBase):
    """Softmax, masks, rotary embeddings and whole attention; cuDNN supports most of them only within attention."""

    def softmax(
        self,
        x: Tensor,
        *,
        stats: Output = False,
        max: Output = False,
        sum_exp: Output = False,
        sink: Tensor | None = None,
        stats_log2: bool | None = None,
        **result: Any,
    ) -> SoftmaxOutputs:
        """Add the softmax over the last dim and return it, with the requested statistics of each row, [.., 1] float32.

        Parameters
        ----------
        stats, max, sum_exp
            max + log(sum of exp(x - max)), the maximum, and that sum.
        sink
            One more score of each row, which takes part in maximum and sum only; it broadcasts to the rows.
        stats_log2
            Whether the statistics are times log2(e).

        Raises
        ------
        GraphError
            ``operation-shape``.

        Notes
        -----
        C: ``CUDNN_BACKEND_OPERATION_SOFTMAX_DESCRIPTOR``, cuDNN 9.20 and later.
        """
        check_equal_ranks(2, x=x)
        rows = (*x.dims[:-1], 1)
        _check_broadcast(sink, rows, "sink", x=x)
        y = self._get_result_tensor("softmax", x.dims, result, strides=x.strides)
        check_dims(y, x.dims, "y", x=x)
        wanted = (("stats", stats), ("max", max), ("sum_exp", sum_exp))
        made = {port: self._make_optional_output(given, f"{y.name}.{port}", rows) for port, given in wanted}
        self._append_operation(
            DescriptorType.OPERATION_SOFTMAX, y.name, x=x, y=y, sink=sink, stats_log2=stats_log2, **made
        )
        return SoftmaxOutputs(y, **made)

    def diagonal_band_mask(
        self,
        x: Tensor,
        comparison: PointwiseMode,
        *,
        left_bound: Tensor | None = None,
        shift_right_bound: Tensor | None = None,
        fill: Tensor | float | None = None,
        seq_len_q: Tensor | None = None,
        seq_len_kv: Tensor | None = None,
        cu_seq_len_q: Tensor | None = None,
        cu_seq_len_kv: Tensor | None = None,
        **result: Any,
    ) -> Tensor:
        """Replace scores outside a diagonal band, and return them.

        Parameters
        ----------
        comparison
            CMP_GE keeps row + shift_right_bound (+ s_kv - s_q) >= column, CMP_GT column + left_bound (- s_kv + s_q) >
            row; what is in brackets where both lengths are given.
        left_bound, shift_right_bound
            One element each.
        fill
            What is outside: minus infinity unless given.
        seq_len_q, seq_len_kv, cu_seq_len_q, cu_seq_len_kv
            Real lengths [b, 1, 1, 1], or their running sums.

        Raises
        ------
        GraphError
            ``operation-shape``; ``wrong-argument`` for another comparison.

        Notes
        -----
        C: ``CUDNN_BACKEND_OPERATION_DIAGONAL_BAND_MASK_DESCRIPTOR``, cuDNN 9.20 and later.
        """
        check_equal_ranks(2, x=x)
        if comparison not in (PointwiseMode.CMP_GE, PointwiseMode.CMP_GT):
            raise GraphError(f"comparison is {comparison!r}, CMP_GE or CMP_GT is needed", code="wrong-argument")
        bounds = {"left_bound": left_bound, "shift_right_bound": shift_right_bound}
        lengths = {"seq_len_q": seq_len_q, "seq_len_kv": seq_len_kv}
        for port, item in {**bounds, **lengths}.items():
            _check_broadcast(item, (*x.dims[:-2], 1, 1), port, x=x)
        y = self._get_result_tensor("band_mask", x.dims, result, strides=x.strides)
        check_dims(y, x.dims, "y", x=x)
        self._append_operation(
            DescriptorType.OPERATION_DIAGONAL_BAND_MASK,
            y.name,
            x=x,
            y=y,
            comparison_mode=comparison,
            b=self._make_scalar_tensor(fill, "fill", x.rank),
            cu_seq_len_q=cu_seq_len_q,
            cu_seq_len_kv=cu_seq_len_kv,
            **bounds,
            **lengths,
        )
        return y

    def expand_band_matrix(
        self,
        x: Tensor,
        columns: int,
        *,
        lower_bandwidth: int,
        upper_bandwidth: int,
        axis: int = -1,
        pad_value: float | None = None,
        kv_token_offset: Tensor | None = None,
        speculative_mask: Tensor | None = None,
        **result: Any,
    ) -> Tensor:
        """Expand a band matrix, x [.., rows, lower + upper + 1], to [.., rows, columns], and return it.

        Element k of row i is at column i - lower + k, `pad_value` elsewhere: this package's reading, as the header
        does not say more.

        Raises
        ------
        GraphError
            ``operation-shape`` if the dim along `axis` is not lower + upper + 1.

        Notes
        -----
        C: ``CUDNN_BACKEND_OPERATION_EXPAND_BAND_MATRIX_DESCRIPTOR``, cuDNN 9.10 and later.
        """
        dims = _replace_axis_size(x, axis, columns)
        check_dims(x, _replace_axis_size(x, axis, _compute_band_width(lower_bandwidth, upper_bandwidth)), "x")
        y = self._get_result_tensor("expanded", dims, result, data_type=x.data_type, strides=make_strides_like(dims, x))
        check_dims(y, dims, "y", x=x)
        self._append_operation(
            DescriptorType.OPERATION_EXPAND_BAND_MATRIX,
            y.name,
            x=x,
            y=y,
            lower_bandwidth=lower_bandwidth,
            upper_bandwidth=upper_bandwidth,
            axis=axis % x.rank,
            pad_value=pad_value,
            kv_token_offset=kv_token_offset,
            speculative_mask=speculative_mask,
        )
        return y

    def contract_band_matrix(
        self,
        x: Tensor,
        *,
        lower_bandwidth: int,
        upper_bandwidth: int,
        axis: int = -1,
        pad_value: float | None = None,
        max_token_value: int | None = None,
        **result: Any,
    ) -> Tensor:
        """Extract the band of a matrix, x [.., rows, columns], as [.., rows, lower + upper + 1], and return it.

        The way back of :meth:`expand_band_matrix`; `pad_value` where the band leaves the matrix.

        Raises
        ------
        GraphError
            ``operation-shape``.

        Notes
        -----
        C: ``CUDNN_BACKEND_OPERATION_CONTRACT_BAND_MATRIX_DESCRIPTOR``, cuDNN 9.10 and later.
        """
        dims = _replace_axis_size(x, axis, _compute_band_width(lower_bandwidth, upper_bandwidth))
        y = self._get_result_tensor(
            "contracted", dims, result, data_type=x.data_type, strides=make_strides_like(dims, x)
        )
        check_dims(y, dims, "y", x=x)
        self._append_operation(
            DescriptorType.OPERATION_CONTRACT_BAND_MATRIX,
            y.name,
            x=x,
            y=y,
            lower_bandwidth=lower_bandwidth,
            upper_bandwidth=upper_bandwidth,
            axis=axis % x.rank,
            pad_value=pad_value,
            max_token_value=max_token_value,
        )
        return y

    def rope_forward(
        self,
        x: Tensor,
        freqs: Tensor,
        *,
        output_scale: float | None = None,
        rope_dim: int | None = None,
        **result: Any,
    ) -> Tensor:
        """Add a rotary position embedding of x [b, h, s, d] and return it.

        Parameters
        ----------
        freqs
            Angles [positions, 1, 1, rope_dim], float32, of s positions or more; cuDNN reads the first half of the
            columns. [1, 1, positions, rope_dim] is taken too.
        output_scale
            Factor of the whole result.
        rope_dim
            How many of the last elements of d are rotated; all unless given.

        Raises
        ------
        GraphError
            ``operation-shape``.

        Notes
        -----
        C: ``CUDNN_BACKEND_OPERATION_ROPE_FWD_DESCRIPTOR``, cuDNN 9.24 and later.
        """
        return self._add_rope(DescriptorType.OPERATION_ROPE_FWD, ("x", "y"), x, freqs, output_scale, rope_dim, result)

    def rope_backward(
        self,
        dy: Tensor,
        freqs: Tensor,
        *,
        output_scale: float | None = None,
        rope_dim: int | None = None,
        **result: Any,
    ) -> Tensor:
        """Add the gradient of :meth:`rope_forward` with respect to x, and return it.

        Raises
        ------
        GraphError
            ``operation-shape``.

        Notes
        -----
        C: ``CUDNN_BACKEND_OPERATION_ROPE_BWD_DESCRIPTOR``, cuDNN 9.24 and later.
        """
        return self._add_rope(
            DescriptorType.OPERATION_ROPE_BWD, ("dy", "dx"), dy, freqs, output_scale, rope_dim, result
        )

    def _add_rope(
        self,
        kind: DescriptorType,
        ports: tuple[str, str],
        x: Tensor,
        freqs: Tensor,
        output_scale: float | None,
        rope_dim: int | None,
        result: dict[str, Any],
    ) -> Tensor:
        check_types(Tensor, **{ports[0]: x, "freqs": freqs})
        if x.rank != 4 or freqs.rank != 4:
            headline = f"{x.name!r} has {x.rank} dims and {freqs.name!r} {freqs.rank}, but each must have 4"
            raise make_shape_error(f"{headline}: [b, h, s, d] and [s, 1, 1, rope_dim]", **{ports[0]: x, "freqs": freqs})
        width = rope_dim or x.dims[3]
        if not 0 < width <= x.dims[3] or width % 2:
            raise make_shape_error(
                f"rope_dim is {width}, an even number from 2 to the head dim {x.dims[3]} is needed", **{ports[0]: x}
            )
        positions = max(freqs.dims[0], freqs.dims[2])
        if freqs.dims not in ((positions, 1, 1, width), (1, 1, positions, width)) or positions < x.dims[2]:
            check_dims(freqs, (x.dims[2], 1, 1, width), "freqs", **{ports[0]: x})
        y = self._get_result_tensor("rope", x.dims, result, strides=x.strides)
        check_dims(y, x.dims, ports[1], **{ports[0]: x})
        fields = {ports[0]: x, ports[1]: y}
        self._append_operation(kind, y.name, **fields, freqs=freqs, output_scale=output_scale, rope_dim=rope_dim)
        return y

    def sdpa_forward(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *,
        scale: float | Tensor | None = None,
        stats: Output = False,
        fields: Mapping[str, Any] | None = None,
        **result: Any,
    ) -> SdpaForwardOutputs:
        """Add attention as one operation, softmax(scale * q @ k^T) @ v, and return o [b, h, s_q, d_v].

        Parameters
        ----------
        q, k, v
            [b, h, s_q, d], [b, h_k, s_kv, d] and [b, h_v, s_kv, d_v]; pages [pages, h, page size, d] where `fields`
            has a page table.
        stats
            The statistics of the softmax, [b, h, s_q, 1] float32.
        fields
            Further fields of the descriptor by name: lengths, page tables, block mask, dropout, factors of 8-bit
            floats, a sub-graph. ``attention.sdpa_forward(implementation="unified")`` fills them in.

        Raises
        ------
        GraphError
            ``operation-shape``, ``unknown-field``.

        Notes
        -----
        C: ``CUDNN_BACKEND_OPERATION_SDPA_FWD_DESCRIPTOR``, cuDNN 9.13 and later.
        """
        more = dict(fields or {})
        _check_heads(q, k, v, more)
        dims = (*q.dims[:3], v.dims[3])
        o = self._get_result_tensor("sdpa", dims, result, strides=make_strides_like(dims, q))
        check_dims(o, dims, "o", q=q, k=k, v=v)
        rows = self._make_optional_output(stats, f"{o.name}.stats", (*q.dims[:3], 1))
        factor = self._make_scalar_tensor(scale, "scale", 1)
        self._append_operation(
            DescriptorType.OPERATION_SDPA_FWD, o.name, q=q, k=k, v=v, o=o, scale=factor, stats=rows, **more
        )
        return SdpaForwardOutputs(o, rows)

    def sdpa_backward(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        o: Tensor,
        do: Tensor,
        stats: Tensor,
        *,
        scale: float | Tensor | None = None,
        dq: Output = True,
        dk: Output = True,
        dv: Output = True,
        dsink: Output = False,
        dbias: Tensor | None = None,
        name: str | None = None,
        fields: Mapping[str, Any] | None = None,
    ) -> SdpaGradients:
        """Add the gradients of :meth:`sdpa_forward` as one operation, and return them.

        Parameters
        ----------
        q, k, v, o, stats
            As of the forward pass, which wrote o and the statistics.
        do
            The gradient of o.
        dq, dk, dv
            In the dims and strides of q, k and v, in memory, of the builder's `io_type`.
        dsink
            Of a sink, which `fields` names.

        Raises
        ------
        GraphError
            ``operation-shape``, ``unknown-field``.

        Notes
        -----
        C: ``CUDNN_BACKEND_OPERATION_SDPA_BWD_DESCRIPTOR``, cuDNN 9.17 and later.
        """
        more = dict(fields or {})
        _check_heads(q, k, v, more)
        dims = (*q.dims[:3], v.dims[3])
        for port, item, wanted in (("o", o, dims), ("do", do, dims), ("stats", stats, (*q.dims[:3], 1))):
            check_dims(item, wanted, port, q=q, k=k, v=v)
        stem = name or self.make_unused_name("sdpa_backward")
        wanted_gradients = (("dq", dq, q), ("dk", dk, k), ("dv", dv, v))
        made = [
            self._make_optional_output(given, f"{stem}.{port}", item.dims, self.io_type, item.strides)
            for port, given, item in wanted_gradients
        ]
        gradients = require_all_results(made, "sdpa_backward")
        sink = self._make_optional_output(dsink, f"{stem}.dsink", (1, q.dims[1], 1, 1))
        self._append_operation(
            DescriptorType.OPERATION_SDPA_BWD,
            stem,
            q=q,
            k=k,
            v=v,
            o=o,
            d_o=do,
            stats=stats,
            scale=self._make_scalar_tensor(scale, "scale", 1),
            dsink=sink,
            dbias=dbias,
            **dict(zip(("dq", "dk", "dv"), gradients, strict=True)),
            **more,
        )
        return SdpaGradients(*gradients, sink, dbias)  # type: ignore[call-arg]


def _check_broadcast(tensor: Tensor | None, dims: tuple[int, ...], port: str, **others: Tensor) -> None:
    if tensor is None:
        return
    fits = tensor.rank == len(dims) and all(part in (1, size) for part, size in zip(tensor.dims, dims, strict=True))
    if not fits:
        raise make_shape_error(
            f"{port} {tensor.name!r} has dims {list(tensor.dims)}, which do not broadcast to {list(dims)}", **others
        )


def _compute_band_width(lower: int, upper: int) -> int:
    """Return the width of a band: the elements before and after the diagonal, and the diagonal itself."""
    if min(lower, upper) < 0:
        raise GraphError(
            f"lower_bandwidth is {lower} and upper_bandwidth {upper}, 0 or more is needed", code="wrong-argument"
        )
    return lower + upper + 1


def _replace_axis_size(x: Tensor, axis: int, size: int) -> tuple[int, ...]:
    """Return the dims of x with another size along `axis`, which must not be the first."""
    check_equal_ranks(2, x=x)
    if not axis % x.rank >= 1 or not -x.rank <= axis < x.rank:
        raise GraphError(f"axis is {axis}, 1 to {x.rank - 1} or {1 - x.rank} to -1 is needed", code="wrong-argument")
    dims = list(x.dims)
    dims[axis] = size
    return tuple(dims)


def _check_heads(q: Tensor, k: Tensor, v: Tensor, fields: Mapping[str, Any]) -> None:
    """Refuse mismatched heads, lengths and sizes of q, k and v; paged keys and values have lengths of their own."""
    check_types(Tensor, q=q, k=k, v=v)
    if any(item.rank != 4 for item in (q, k, v)):
        raise make_shape_error(
            f"q, k and v have {q.rank}, {k.rank} and {v.rank} dims, but each must have 4: b, h, s, d", q=q, k=k, v=v
        )
    wrong = None
    if q.dims[3] != k.dims[3]:
        wrong = f"head dim is {q.dims[3]} in {q.name!r} and {k.dims[3]} in {k.name!r}"
    elif q.dims[1] % k.dims[1] or q.dims[1] % v.dims[1]:
        wrong = f"{q.dims[1]} heads of {q.name!r} are no multiple of the {k.dims[1]} and {v.dims[1]} of keys and values"
    elif fields.get("page_table_k") is None and (q.dims[0] != k.dims[0] or k.dims[0] != v.dims[0]):
        wrong = f"batch is {q.dims[0]}, {k.dims[0]} and {v.dims[0]}"
    elif fields.get("page_table_k") is None and fields.get("page_table_v") is None and k.dims[2] != v.dims[2]:
        wrong = f"{k.name!r} has {k.dims[2]} positions, {v.name!r} {v.dims[2]}"
    if wrong:
        raise make_shape_error(wrong, q=q, k=k, v=v)
