"""The count of elements and the elements themselves are read for every readable attribute."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator

import pytest

from cudnn_backend_py import (
    Attr,
    AttributeType,
    CudnnBackendError,
    Descriptor,
    DescriptorType,
    OperationGraph,
    build_plan,
    capi,
    library,
    open_target,
)
from cudnn_backend_py.generated.attributes import get_attributes
from tests.support.typical_graphs import TYPICAL_GRAPHS

D = DescriptorType
GRAPHS_WITH_PLAN = ("convolution forward", "matmul")


def get_child_descriptors(of: Descriptor, attribute: Attr) -> tuple[Descriptor, ...]:
    found = of.get(attribute)
    return found if isinstance(found, tuple) else (found,)


def iterate_finalized_descriptors(name: str) -> Iterator[Descriptor]:
    """Yield finalized descriptors of many kinds, from a graph to its plan."""
    graph = OperationGraph(TYPICAL_GRAPHS[name].make(), open_target("h100"))
    yield graph.descriptor
    question = Descriptor(D.ENGINEHEUR).set(Attr.ENGINEHEUR_OPERATION_GRAPH, graph.descriptor)
    yield question.set(Attr.ENGINEHEUR_DEVICEPROP, graph.target.device).finalize()
    config = graph.heuristics().configs[0]
    yield config.descriptor
    engine = graph.engine(config.engine)
    yield engine
    yield from get_child_descriptors(config.descriptor, Attr.ENGINECFG_KNOB_CHOICES)
    yield from get_child_descriptors(engine, Attr.ENGINE_KNOB_INFO)
    yield build_plan(config).descriptor
    assert graph.target.device is not None
    yield graph.target.device
    tensor = Descriptor(D.TENSOR).set(Attr.TENSOR_DIMENSIONS, (1, 2, 3)).set(Attr.TENSOR_STRIDES, (6, 3, 1))
    yield tensor.set(Attr.TENSOR_UNIQUE_ID, 5).set(Attr.TENSOR_BYTE_ALIGNMENT, 16).finalize()


@pytest.mark.parametrize("name", GRAPHS_WITH_PLAN)
def test_getting_the_counted_elements_returns_every_element(name: str) -> None:
    seen: dict[str, int] = {}
    for descriptor in iterate_finalized_descriptors(name):
        for facts in get_attributes(descriptor.kind):
            element = facts.types[0]
            try:
                _, every = capi.cudnnBackendGetAttribute(descriptor, facts.attribute, element, facts.max_count or 64)
            except CudnnBackendError:
                continue
            count, none = capi.cudnnBackendGetAttribute(descriptor, facts.attribute, element, 0)
            held, values = (
                capi.cudnnBackendGetAttribute(descriptor, facts.attribute, element, count) if count else (0, ())
            )
            assert none == ()
            assert len(values) == len(every), facts.attribute.name
            if facts.attribute is not Attr.ENGINEHEUR_RESULTS:  # its count is that of the candidates
                assert count == held == descriptor.count(facts.attribute), facts.attribute.name
            seen[facts.attribute.name] = held
    assert seen["ENGINECFG_KNOB_CHOICES"] >= 1
    assert seen["ENGINEHEUR_OPERATION_GRAPH"] == 1
    assert seen["TENSOR_DIMENSIONS"] == 3
    assert seen["EXECUTION_PLAN_JSON_REPRESENTATION"] > 1000
    assert seen["ENGINE_KNOB_INFO"] > 1
    assert len(seen) > 30


def test_cudnn_itself_counts_no_knob_choices_of_a_config() -> None:
    """If this test fails, cuDNN counts knob choices correctly, and `Descriptor.count` needs no workaround."""
    config = OperationGraph(TYPICAL_GRAPHS["matmul"].make(), open_target("h100")).heuristics().configs[0].descriptor
    written = ctypes.c_int64(-1)
    arguments = (config.pointer, Attr.ENGINECFG_KNOB_CHOICES, AttributeType.BACKEND_DESCRIPTOR, 0)
    library().cudnnBackendGetAttribute(*arguments, ctypes.byref(written), None)
    assert written.value == 0
    assert len(get_child_descriptors(config, Attr.ENGINECFG_KNOB_CHOICES)) > 0


def test_get_with_a_count_of_two_returns_two_of_three_elements() -> None:
    tensor = Descriptor(D.TENSOR).set(Attr.TENSOR_DIMENSIONS, (1, 2, 3)).set(Attr.TENSOR_STRIDES, (6, 3, 1))
    tensor.set(Attr.TENSOR_UNIQUE_ID, 5).set(Attr.TENSOR_BYTE_ALIGNMENT, 16).finalize()
    assert capi.cudnnBackendGetAttribute(tensor, Attr.TENSOR_DIMENSIONS, AttributeType.INT64, 2) == (2, (1, 2))
