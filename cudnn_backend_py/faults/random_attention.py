"""Faults of attention that random graphs found, and variants of what they found, measured for this package."""

from __future__ import annotations

import dataclasses
from typing import Any

from ..generated.enums import DataType, DescriptorType, PointwiseMode, ReduceTensorOp, RngDistribution
from ..graph.attention.backward import composite_backward
from ..graph.attention.fault import BASE, Fault, Reproduction, Use
from ..graph.attention.forward import composite_forward
from ..graph.attention.problem import Attention
from ..graph.ir import Graph, Operation, Pointwise, Reduction, Tensor
from ..graph.replace import replace_tensors
from ..system.version import Window
from . import look

__all__ = ["RANDOM_ATTENTION"]

_D = DescriptorType
_SOURCE = "tests/gpu/graph/test_faults.py"
_BOTH = "measured with 9.19.0 and 9.28.0 on sm_90"


def _row_sums(graph: Graph) -> Tensor | None:
    """Return rowsum(dO * O) of a backward pass of many operations."""
    if len(look.matmuls(graph)) != 5:
        return None
    products = {op.y.uid for op in look.of_mode(graph, PointwiseMode.MUL) if op.y is not None and op.y.dims[3] > 1}
    sums = (op for op in graph.ops if isinstance(op, Reduction) and op.operator is ReduceTensorOp.ADD)
    return next((op.y for op in sums if op.y.dims[3] == 1 and op.x.uid in products), None)


def _row_sums_without_one(graph: Graph) -> bool:
    """A backward pass whose row sums go to memory as they are, or without dropout times another number than 1."""
    sums = _row_sums(graph)
    if sums is None:
        return False
    factors = [
        op.b.value
        for op in look.of_mode(graph, PointwiseMode.MUL)
        if op.x is not None and op.b is not None and op.x.uid == sums.uid and op.b.by_value
    ]
    dropped = any(look.of_kind(graph, _D.OPERATION_RNG))
    return not sums.virtual or (not dropped and any(value not in (None, 1.0) for value in factors))


def _scaled_below_0(graph: Graph) -> bool:
    """A forward pass whose scores are multiplied by a number that is not above 0."""
    factors = [op.fields["scale"] for op in look.of_kind(graph, _D.OPERATION_SDPA_FWD) if "scale" in op.fields]
    products = look.matmuls(graph)
    softmax = any(look.of_mode(graph, PointwiseMode.EXP)) or any(look.of_kind(graph, _D.OPERATION_SOFTMAX))
    if softmax and len(products) == 2:
        scaled = (op for op in look.of_mode(graph, PointwiseMode.MUL) if op.x is not None and op.b is not None)
        factors += [op.b for op in scaled if op.x is not None and op.x.uid == products[0].c.uid]
    return any(factor.by_value and factor.value is not None and factor.value <= 0 for factor in factors)


def _drawn_otherwise(graph: Graph) -> bool:
    """Attention with random numbers that are not zeros and ones."""
    return len(look.matmuls(graph)) > 1 and any(
        op.fields["rng"].fields.get("distribution", RngDistribution.BERNOULLI) is not RngDistribution.BERNOULLI
        for op in look.of_kind(graph, _D.OPERATION_RNG)
    )


def _fp8_ragged(use: Use) -> bool:
    return not use.backward and use.problem.is_fp8 and use.problem.ragged


def _fp8_backward_with_key_tail(use: Use) -> bool:
    """A backward pass in 8 bits whose last tile of keys is not full, and neither lengths nor a mask say so."""
    p = use.problem
    return use.backward and p.is_fp8 and not p.padding and p.right_bound is None and p.seq_kv % 128 != 0


# What they are shown with


def _factored(value: float | None) -> Graph:
    """Return a backward pass whose row sums are multiplied by a number, or by none."""
    graph = composite_backward(Attention(**BASE), None)
    sums = _row_sums(graph)
    assert sums is not None
    if value is not None:
        factor = graph.tensor("row_factor")
        return replace_tensors(graph, {factor.uid: dataclasses.replace(factor, value=value)})
    scratch = graph.tensor("softmax_sum")
    ops = [
        dataclasses.replace(op, y=scratch) if isinstance(op, Reduction) and op.y.uid == sums.uid else op
        for op in graph.ops
        if not (isinstance(op, Pointwise) and op.y is not None and op.y.uid == scratch.uid)
    ]
    return Graph(tuple(ops), graph.name)


def _scaled(value: float) -> Graph:
    return composite_forward(Attention(**BASE | {"scale": value, "right_bound": 0, "stats": True}), None)


def _drawn(distribution: RngDistribution, **facts: Any) -> Graph:
    """Return a forward pass whose dropout mask is drawn from a distribution, and written."""
    graph = composite_forward(Attention(**BASE | {"dropout": 0.25, "rng_dump": True, "stats": True}), None)
    ops = []
    for op in graph.ops:
        if isinstance(op, Operation) and op.kind is _D.OPERATION_RNG:
            rng = dataclasses.replace(op.fields["rng"], fields={"distribution": distribution, **facts})
            op = dataclasses.replace(op, fields={**op.fields, "rng": rng})
        ops.append(op)
    return Graph(tuple(ops), graph.name)


_FP8: dict[str, Any] = {"data_type": DataType.FP8_E4M3}


def _dbias_shared(use: Use) -> bool:
    """A backward pass that writes the gradient of a bias of one row or one key."""
    p = use.problem
    if not use.backward or not p.dbias or p.bias is None:
        return False
    return (p.bias[2] == 1 < p.seq_q) or (p.bias[3] == 1 < p.seq_kv)


RANDOM_ATTENTION: tuple[Fault, ...] = (
    Fault(
        "backward-row-sums",
        what=(
            "a backward pass of many operations whose row sums of dO * O are multiplied by no number, or, without "
            "dropout, by another than 1"
        ),
        effect="without one their memory is not written, and dQ and dK hang on what it held; another is taken for 1",
        fix="multiply the row sums by 1",
        source=_SOURCE,
        evidence=f"{_BOTH}: 18 of 18 graphs without a factor, whose rows stayed NaN",
        sm=(90,),
        graph=_row_sums_without_one,
        reproductions={"": lambda: _factored(None), "half": lambda: _factored(0.5)},
        unlike=lambda: _factored(1.0),
        cure=lambda: _factored(1.0),
    ),
    Fault(
        "scale-not-above-0",
        what="a forward pass whose scores are multiplied by 0 or less",
        effect=(
            "masks and the row maximum are taken before the factor: O is NaN and the statistics infinite in rows in "
            "which something is masked, with fp8 in all, and where scores lie 88 apart"
        ),
        fix="multiply Q by the sign; the backward pass is right",
        source=_SOURCE,
        evidence=f"{_BOTH}, composite and unified, also from a tensor in memory, which no graph shows",
        sm=(90,),
        depends_on="masks, and how far scores lie apart",
        graph=_scaled_below_0,
        reproductions={"": lambda: _scaled(-0.125), "zero": lambda: _scaled(0.0)},
        unlike=lambda: _scaled(0.125),
        cure=lambda: _scaled(0.125),
    ),
    Fault(
        "dropout-distribution",
        what="attention whose random numbers are UNIFORM or NORMAL",
        effect="they are zeros and ones as of BERNOULLI, with a probability that nobody gave: often all of them are 0",
        fix="use BERNOULLI, or give the mask",
        source=_SOURCE,
        evidence=f"{_BOTH}, with two distributions of each",
        sm=(90,),
        graph=_drawn_otherwise,
        reproductions={
            "": lambda: _drawn(RngDistribution.UNIFORM, uniform_dist_minimum=-2.0, uniform_dist_maximum=3.0),
            "normal": lambda: _drawn(RngDistribution.NORMAL, normal_dist_mean=5.0, normal_dist_standard_deviation=0.1),
        },
        unlike=lambda: _drawn(RngDistribution.BERNOULLI, bernoulli_dist_probability=0.75),
        cure=lambda: _drawn(RngDistribution.BERNOULLI, bernoulli_dist_probability=0.75),
    ),
    Fault(
        "fp8-ragged-no-query",
        what="a forward pass of ragged sequences with an fp8 data type",
        effect="a sequence without a query ends the CUDA context: an illegal instruction",
        fix="use 9.28.0 or later, or padding instead of ragged sequences, or leave such sequences out",
        source=_SOURCE,
        evidence=(
            "measured with 9.19.0 on sm_90: 6 of 6 graphs of E4M3, 1 of 5 of E5M2; 9.28.0 is right in 4 of 4; the "
            "versions between were not measured"
        ),
        sm=(90,),
        versions=Window(until=(9, 28, 0)),
        attention=_fp8_ragged,
        depends_on="lengths of 0",
        reproductions={"": Reproduction(False, _FP8 | {"ragged": True})},
        unlike=Reproduction(False, _FP8 | {"padding": True}),
        cure=Reproduction(False, _FP8 | {"padding": True}),
    ),
    Fault(
        "fp8-backward-key-tail",
        what="a backward pass with an fp8 data type, without padding and not causal, s_kv no multiple of 128",
        effect=(
            "the tile behind the last keys is not masked: its scores are 0 and its probabilities exp(-stats), which "
            "the largest of dP, dK and dV count: infinite or far too large where stats are below 0"
        ),
        fix="use 9.28.0 or later, or padding (seq_len_q, seq_len_kv)",
        source=_SOURCE,
        evidence=(
            "measured with 9.19.0 on sm_90: wrong with 9 sizes from 8 to 320, right with 128 and 256; 9.28.0 is right; "
            "the versions between were not measured"
        ),
        sm=(90,),
        versions=Window(until=(9, 28, 0)),
        attention=_fp8_backward_with_key_tail,
        depends_on="stats far below 0",
        reproductions={"": Reproduction(True, _FP8 | {"head_dim": 128, "seq_kv": 192})},
        unlike=Reproduction(True, _FP8 | {"head_dim": 128, "seq_kv": 256}),
        cure=Reproduction(True, _FP8 | {"head_dim": 128, "seq_kv": 192, "padding": True}),
    ),
    Fault(
        "dbias-of-shared-rows",
        what="a backward pass with dbias, whose bias all rows or all keys share",
        effect="dbias is written as if each row and key had its own, far behind its end: other tensors are overwritten",
        fix="give bias and dbias all rows and keys, and sum dbias over those that share one",
        source=_SOURCE,
        evidence=(
            "measured with 9.19.0 on sm_90: an illegal address by the graph of this shape and of a class of shapes, "
            "rows shared and keys shared, where nothing is mapped behind dbias; Q, K, V or O changed in 12 of 212 "
            "passes where something is"
        ),
        sm=(90,),
        attention=_dbias_shared,
        reproductions={
            "": Reproduction(True, {"bias": (1, 2, 1, 128), "dbias": True}),
            "keys": Reproduction(True, {"bias": (1, 2, 128, 1), "dbias": True}),
        },
        unlike=Reproduction(True, {"bias": (1, 1, 128, 128), "dbias": True}),
        cure=Reproduction(True, {"bias": (1, 2, 128, 128), "dbias": True}),
    ),
)
