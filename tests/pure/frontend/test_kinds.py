"""Each cudnn-frontend name in the table of docs/operations.md adds an operation of the kind in its row."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

import cudnn_backend_py.frontend as cudnn
from cudnn_backend_py import DescriptorType, Graph
from cudnn_backend_py.frontend.handles import set_default_target
from cudnn_backend_py.graph import Op
from tests.compat.programs import PROGRAMS, Maker
from tests.support.built import FRONTEND, IN_PARTS

HALF, FLOAT = cudnn.data_type.HALF, cudnn.data_type.FLOAT


@pytest.fixture(autouse=True)
def b200() -> Iterator[None]:
    set_default_target("b200")
    yield
    set_default_target(None)


def _finalize(m: Maker) -> Any:
    return m.g.bn_finalize(
        *(m.f(1, 32, 1, 1) for _ in range(4)), m.one(), m.one(), *(m.f(1, 32, 1, 1) for _ in range(2)), m.one()
    )


def _pool(m: Maker) -> Any:
    return m.g.resample(m.images()[0], [2, 2], [2, 2], [0, 0], [0, 0])


def _rng(m: Maker) -> Any:
    seed, offset = (m.t(1, 1, 1, 1, kind="INT64") for _ in range(2))
    made = m.g.rng(seed, offset, cudnn.rng_distribution.BERNOULLI, 0.5)
    return made.set_dim([2, 4, 64, 64]).set_stride([4 * 64 * 64, 64 * 64, 64, 1]).set_data_type(FLOAT)


def _pages(m: Maker) -> Any:
    table, length = m.t(2, 1, 4, 1, kind="INT32"), m.t(2, 1, 1, 1, kind="INT32")
    made = m.g.paged_cache_load(m.t(8, 4, 32, 64), length, table)
    return made.set_dim([2, 4, 128, 64]).set_stride([4 * 128 * 64, 128 * 64, 64, 1])


def _slice(m: Maker) -> Any:
    """Slice a virtual tensor: for one in memory it would be an offset."""
    return m.g.slice(m.g.relu(m.t(2, 8, 16)), [slice(0, 1), slice(2, 6), slice(0, 16)])


def _transpose(m: Maker) -> Any:
    return PROGRAMS["transpose"](m).set_data_type(HALF)


def _softmax(m: Maker) -> Any:
    """Compute forward attention as many operations, which is one operation by default."""
    q, k, v = (m.t(2, 4, 64, 64) for _ in "qkv")
    many = cudnn.attention_implementation.COMPOSITE
    return m.g.sdpa(q, k, v, is_inference=True, attn_scale=0.125, implementation=many)


MORE: dict[str, Callable[[Maker], Any]] = {
    "bn_finalize": _finalize,
    "resample": _pool,
    "rng": _rng,
    "paged_cache_load": _pages,
    "slice": _slice,
    "transpose": _transpose,
    "sdpa, many operations": _softmax,
}


def _ops(graph: Graph) -> Iterator[Op]:
    for op in graph.ops:
        yield op
        for inner in op.subgraphs():
            yield from _ops(inner)


CELLS = [(kind, name) for kind, names in FRONTEND.items() for name in names]


@pytest.mark.parametrize(("kind", "name"), CELLS, ids=lambda value: getattr(value, "name", str(value)))
def test_the_name_adds_the_operation(kind: DescriptorType, name: str) -> None:
    programs = [(MORE.get(key) or make) for key, make in {**PROGRAMS, **MORE}.items() if key.startswith(name)]
    found = set()
    for make in programs:
        m = Maker(cudnn)
        make(m)
        try:
            m.g.validate()
        except cudnn.cudnnGraphNotSupportedError:  # attention of one direction only
            continue
        found |= {op.kind for op in _ops(m.g.graph())}
    assert (kind in found) != (kind in IN_PARTS)
