"""Each cudnn-frontend name in the table of docs/operations.md adds an operation of the kind in its row."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

import cudnn_backend_py.frontend as cudnn
from cudnn_backend_py import DescriptorType, Graph
from cudnn_backend_py.frontend.handles import set_default_target
from cudnn_backend_py.graph import Op
from tests.compat.programs import PROGRAMS, GraphMaker
from tests.support.typical_graphs import FRONTEND_METHODS, KINDS_WRITTEN_AS_SEVERAL_OPERATIONS

HALF, FLOAT = cudnn.data_type.HALF, cudnn.data_type.FLOAT


@pytest.fixture(autouse=True)
def set_target_b200() -> Iterator[None]:
    set_default_target("b200")
    yield
    set_default_target(None)


def add_bn_finalize(m: GraphMaker) -> Any:
    return m.graph.bn_finalize(
        *(m.add_float_tensor(1, 32, 1, 1) for _ in range(4)),
        m.add_scalar(),
        m.add_scalar(),
        *(m.add_float_tensor(1, 32, 1, 1) for _ in range(2)),
        m.add_scalar(),
    )


def add_pooling(m: GraphMaker) -> Any:
    return m.graph.resample(m.add_images()[0], [2, 2], [2, 2], [0, 0], [0, 0])


def add_rng(m: GraphMaker) -> Any:
    seed, offset = (m.add_tensor(1, 1, 1, 1, kind="INT64") for _ in range(2))
    made = m.graph.rng(seed, offset, cudnn.rng_distribution.BERNOULLI, 0.5)
    return made.set_dim([2, 4, 64, 64]).set_stride([4 * 64 * 64, 64 * 64, 64, 1]).set_data_type(FLOAT)


def add_paged_cache_load(m: GraphMaker) -> Any:
    table, length = m.add_tensor(2, 1, 4, 1, kind="INT32"), m.add_tensor(2, 1, 1, 1, kind="INT32")
    made = m.graph.paged_cache_load(m.add_tensor(8, 4, 32, 64), length, table)
    return made.set_dim([2, 4, 128, 64]).set_stride([4 * 128 * 64, 128 * 64, 64, 1])


def add_virtual_slice(m: GraphMaker) -> Any:
    """Add a slice of a virtual tensor; a slice of a tensor in memory would become an offset."""
    return m.graph.slice(m.graph.relu(m.add_tensor(2, 8, 16)), [slice(0, 1), slice(2, 6), slice(0, 16)])


def add_transpose(m: GraphMaker) -> Any:
    return PROGRAMS["transpose"](m).set_data_type(HALF)


def add_composite_attention(m: GraphMaker) -> Any:
    """Add forward attention as many operations; by default it would be one."""
    q, k, v = (m.add_tensor(2, 4, 64, 64) for _ in "qkv")
    many = cudnn.attention_implementation.COMPOSITE
    return m.graph.sdpa(q, k, v, is_inference=True, attn_scale=0.125, implementation=many)


MORE_PROGRAMS: dict[str, Callable[[GraphMaker], Any]] = {
    "bn_finalize": add_bn_finalize,
    "resample": add_pooling,
    "rng": add_rng,
    "paged_cache_load": add_paged_cache_load,
    "slice": add_virtual_slice,
    "transpose": add_transpose,
    "sdpa, many operations": add_composite_attention,
}


def iterate_operations(graph: Graph) -> Iterator[Op]:
    for op in graph.ops:
        yield op
        for inner in op.subgraphs():
            yield from iterate_operations(inner)


KINDS_AND_METHODS = [(kind, name) for kind, names in FRONTEND_METHODS.items() for name in names]


@pytest.mark.parametrize(("kind", "name"), KINDS_AND_METHODS, ids=lambda value: getattr(value, "name", str(value)))
def test_each_frontend_method_adds_the_documented_operation(kind: DescriptorType, name: str) -> None:
    programs = [
        (MORE_PROGRAMS.get(key) or make) for key, make in {**PROGRAMS, **MORE_PROGRAMS}.items() if key.startswith(name)
    ]
    found = set()
    for make in programs:
        m = GraphMaker(cudnn)
        make(m)
        try:
            m.graph.validate()
        except cudnn.cudnnGraphNotSupportedError:  # attention of one direction only
            continue
        found |= {op.kind for op in iterate_operations(m.graph.graph())}
    assert (kind in found) != (kind in KINDS_WRITTEN_AS_SEVERAL_OPERATIONS)
