"""The forward pass as matmul, pointwise and reduction operations."""

from __future__ import annotations

from typing import Any

from ...generated.enums import DataType, DescriptorType, PointwiseMode, ReduceTensorOp
from ...system.version import VersionTuple
from ..ir import Graph, Tensor, packed_strides
from .builder import AttentionBuilder
from .problem import Attention

__all__ = ["add_composite_forward", "build_composite_forward"]

_MODE = PointwiseMode


def build_composite_forward(p: Attention, version: VersionTuple | None) -> Graph:
    """Return the composite graph of the forward pass.

    Since cuDNN 9.21 masks and softmax are one operation each; before, and where no version is given, they are
    chains of pointwise operations and reductions, which newer versions support as well.
    """
    f = AttentionBuilder(p, "sdpa_forward", version)
    add_composite_forward(f)
    return f.g.graph()


def add_composite_forward(f: AttentionBuilder) -> None:
    """Add the operations of the forward pass."""
    p = f.p
    q, k, v = f.get_io_tensor("q"), _load_k(f), _load_v(f)
    if p.mx:
        q, k = f.dequantize(q, "descale_q", 3), f.dequantize(k, "descale_k", 2, transposed=True)
    score = f.matmul(q, k, "m=q n=kv", name="qk")
    score = f.add_product(score, f.scale())
    if p.is_fp8 and not p.mx:
        score = f.add_product(score, f.get_device_scalar("descale_q"), f.get_device_scalar("descale_k"))
    score = f.mask_outside_band(f.mask_padding(f.add_biases(f.apply_score_modifier(score))))

    dropout = f.add_dropout_factors()
    last = p.data_type if p.mx or not p.is_fp8 else DataType.FLOAT
    probabilities = _add_softmax(f, score, DataType.FLOAT if dropout else last)
    probabilities = f.add_product(probabilities, *dropout, data_type=last) if dropout else probabilities
    if p.mx:
        v = f.dequantize(v, "descale_v", 2)
    if p.is_fp8 and not p.mx:
        _write_fp8_output(f, probabilities, v)
    else:
        o = f.matmul(probabilities, v, "m=q k=kv", out=f.get_io_tensor("o"))
        if p.mx:
            f.write_amax("amax_o", o)


def _load_k(f: AttentionBuilder) -> Tensor:
    """Return K^T [b, h, d, s_kv], loaded from its pages if K is paged."""
    if not f.is_paged("k"):
        return f.get_io_tensor("k", transposed=True)
    p = f.p
    h, s, d = p.kv_heads, p.seq_kv, p.head_dim
    return _load_pages(f, "k", (p.batch, h, d, s), (d * s * h, d * s, 1, d))


def _load_v(f: AttentionBuilder) -> Tensor:
    """Return V [b, h, s_kv, d_v], loaded from its pages if V is paged."""
    if not f.is_paged("v"):
        return f.get_io_tensor("v")
    dims = (f.p.batch, f.p.v_heads, f.p.seq_kv, f.p.head_dim_v)
    return _load_pages(f, "v", dims, packed_strides(dims))


def _load_pages(f: AttentionBuilder, name: str, dims: tuple[int, ...], strides: tuple[int, ...]) -> Tensor:
    y = f.tensor(f"{name}_pages", dims, f.p.data_type, strides=strides, virtual=True)
    _, seq_kv = f.seq_lens
    f.g.operation(
        DescriptorType.OPERATION_PAGED_CACHE_LOAD,
        container=f.get_io_tensor(name),
        y=y,
        sequence=seq_kv,
        page_table=f.get_page_table(name),
    )
    return y


def _add_softmax(f: AttentionBuilder, score: Tensor, data_type: DataType) -> Tensor:
    """Add the softmax and return the probabilities; write the requested statistics."""
    if f.single_ops:
        y = f.tensor("p", score.dims, data_type, virtual=True)
        f.g.ops.append(f.make_softmax_operation(score, y))
        return y
    p = f.p
    top = f.reduction(
        ReduceTensorOp.MAX, score, f.row_dims, **_make_per_row_output_options(f, "max", p.max and not p.sink)
    )
    if p.sink:
        top = f.pointwise(
            _MODE.MAX, top, f.get_per_head_tensor("sink"), **_make_per_row_output_options(f, "max", p.max)
        )
    exp = f.pointwise(_MODE.EXP, f.pointwise(_MODE.SUB, score, top, name="shifted"), name="exp")
    total = f.add_sum(exp, f.row_dims, **_make_per_row_output_options(f, "sum_exp", p.sum_exp and not p.sink))
    if p.sink:
        share = f.pointwise(
            _MODE.EXP, f.pointwise(_MODE.SUB, f.get_per_head_tensor("sink"), top, name="sink_shifted"), name="sink_exp"
        )
        total = f.pointwise(_MODE.ADD, total, share, **_make_per_row_output_options(f, "sum_exp", p.sum_exp))
    if p.stats or not (p.max or p.sum_exp):
        f.pointwise(
            _MODE.ADD,
            top,
            f.pointwise(_MODE.LOG, total, name="log_sum"),
            **_make_per_row_output_options(f, "stats", p.stats),
        )
    return f.pointwise(_MODE.DIV, exp, total, name="p", data_type=data_type)


def _make_per_row_output_options(f: AttentionBuilder, name: str, wanted: bool) -> dict[str, Any]:
    """Return the output options of a per-row result: the tensor in memory if it is requested, else a name only."""
    return {"out": f.get_per_row_tensor(name)} if wanted else {"name": f"row_{name}"}


def _write_fp8_output(f: AttentionBuilder, probabilities: Tensor, v: Tensor) -> None:
    """Quantize the probabilities, multiply by V, and scale the result."""
    p = f.p
    f.write_amax("amax_s", probabilities)
    small = f.add_product(probabilities, f.get_device_scalar("scale_s"), data_type=p.data_type)
    raw = f.matmul(small, v, "m=q k=kv", name="o_raw")
    o = f.add_product(raw, f.get_device_scalar("descale_s"), f.get_device_scalar("descale_v"))
    f.pointwise(_MODE.MUL, o, f.get_device_scalar("scale_o"), out=f.get_io_tensor("o"))
    f.write_amax("amax_o", o)
