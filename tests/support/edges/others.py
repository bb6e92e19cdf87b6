"""One typical graph of each remaining kind, and random numbers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np

from cudnn_backend_py import DataType, DescriptorType, Graph, GraphBuilder, attention
from cudnn_backend_py.generated.enums import (
    RngDistribution,
)
from cudnn_backend_py.graph import Operation, Parameters
from tests.support import built
from tests.support.edges.case import CASES, OUT, Array, Edge, add
from tests.support.interpreting import inputs_of

__all__: list[str] = []

T = DataType


def _natural(name: str) -> None:
    make = built.BUILT[name].make

    def given() -> dict[str, Array]:
        return {str(key): value for key, value in inputs_of(make()).items()}

    CASES[f"natural/{name}"] = Edge(f"natural/{name}", make, given)


for _name in built.BUILT:
    _natural(_name)


# random numbers


def _rng(distribution: RngDistribution, numbers: dict[str, float]) -> None:
    def write(g: GraphBuilder) -> None:
        seed, offset = (g.tensor(name, (1, 1, 1, 1), T.INT64) for name in ("seed", "offset"))
        g.rng((2, 4, 128, 128), seed, offset, distribution=distribution, data_type=T.FLOAT, **numbers, **OUT)

    one: dict[str, Callable[[], Array]] = {
        "seed": lambda: np.full((1, 1, 1, 1), 123456),
        "offset": lambda: np.full((1, 1, 1, 1), 1),
    }
    add(f"rng/{distribution.name}/FLOAT", T.FLOAT, write, **one)


_rng(RngDistribution.BERNOULLI, {"probability": 0.75})
_rng(RngDistribution.UNIFORM, {"minimum": -1.0, "maximum": 3.0})
_rng(RngDistribution.NORMAL, {"mean": 1.0, "standard_deviation": 2.0})


def _attention_rng(distribution: RngDistribution, numbers: dict[str, float]) -> None:
    """Add attention, where cuDNN supports random numbers: with `rng_dump` it writes them."""
    name = f"rng/attention {distribution.name}/HALF"

    def make() -> Graph:
        whole = attention.sdpa_forward(batch=1, heads=2, seq_q=128, head_dim=64, dropout=0.25, rng_dump=True)
        fields = {"distribution": distribution, **numbers}
        ops = [
            replace(op, fields={**op.fields, "rng": Parameters(DescriptorType.RNG, fields)})
            if isinstance(op, Operation) and op.kind is DescriptorType.OPERATION_RNG
            else op
            for op in whole.ops
        ]
        return Graph(tuple(ops), name)

    seed = partial(np.full, (1, 1, 1, 1), 1234)
    CASES[name] = Edge(name, make, lambda: {"dropout_seed": seed(), "dropout_offset": seed()})


_attention_rng(RngDistribution.BERNOULLI, {"bernoulli_dist_probability": 0.75})
_attention_rng(RngDistribution.UNIFORM, {"uniform_dist_minimum": -1.0, "uniform_dist_maximum": 3.0})
_attention_rng(RngDistribution.NORMAL, {"normal_dist_mean": 1.0, "normal_dist_standard_deviation": 2.0})
