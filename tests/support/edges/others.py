"""Cases of other operations: typical graphs with typical inputs, and random number generators."""

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
from tests.support import typical_graphs
from tests.support.edges.case import EDGE_CASES, IN_MEMORY, Array, EdgeCase, add_edge_case
from tests.support.interpreting import make_typical_inputs

__all__: list[str] = []

T = DataType


def _add_typical_graph_case(name: str) -> None:
    make = typical_graphs.TYPICAL_GRAPHS[name].make

    def make_inputs() -> dict[str, Array]:
        return {str(key): value for key, value in make_typical_inputs(make()).items()}

    EDGE_CASES[f"natural/{name}"] = EdgeCase(f"natural/{name}", make, make_inputs)


for _name in typical_graphs.TYPICAL_GRAPHS:
    _add_typical_graph_case(_name)


# random numbers


def _add_rng_case(distribution: RngDistribution, numbers: dict[str, float]) -> None:
    def build_rng(g: GraphBuilder) -> None:
        seed, offset = (g.tensor(name, (1, 1, 1, 1), T.INT64) for name in ("seed", "offset"))
        g.rng((2, 4, 128, 128), seed, offset, distribution=distribution, data_type=T.FLOAT, **numbers, **IN_MEMORY)

    one: dict[str, Callable[[], Array]] = {
        "seed": lambda: np.full((1, 1, 1, 1), 123456),
        "offset": lambda: np.full((1, 1, 1, 1), 1),
    }
    add_edge_case(f"rng/{distribution.name}/FLOAT", T.FLOAT, build_rng, **one)


_add_rng_case(RngDistribution.BERNOULLI, {"probability": 0.75})
_add_rng_case(RngDistribution.UNIFORM, {"minimum": -1.0, "maximum": 3.0})
_add_rng_case(RngDistribution.NORMAL, {"mean": 1.0, "standard_deviation": 2.0})


def _add_attention_rng_case(distribution: RngDistribution, numbers: dict[str, float]) -> None:
    """Add attention with dropout, where cuDNN supports RNG operations; `rng_dump` outputs the random numbers."""
    name = f"rng/attention {distribution.name}/HALF"

    def make_attention() -> Graph:
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
    EDGE_CASES[name] = EdgeCase(name, make_attention, lambda: {"dropout_seed": seed(), "dropout_offset": seed()})


_add_attention_rng_case(RngDistribution.BERNOULLI, {"bernoulli_dist_probability": 0.75})
_add_attention_rng_case(RngDistribution.UNIFORM, {"uniform_dist_minimum": -1.0, "uniform_dist_maximum": 3.0})
_add_attention_rng_case(RngDistribution.NORMAL, {"normal_dist_mean": 1.0, "normal_dist_standard_deviation": 2.0})
