"""Bad input, one row per case: it raises our exception with its code and the value found, and the process survives."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from cudnn_backend_py import (
    Attr,
    AttributeType,
    CudnnBackendError,
    CudnnStatusError,
    DataType,
    Descriptor,
    DescriptorType,
    EnvironmentNotReady,
    Graph,
    GraphBuilder,
    GraphError,
    Handle,
    HeurMode,
    OperationGraph,
    Status,
    UsageError,
    build_plan,
    capi,
    execute,
    explain,
    open_target,
)
from cudnn_backend_py.generated.attributes import get_attribute_facts, get_attributes
from cudnn_backend_py.generated.enums import KnobType, PointwiseMode
from tests.support.child import make_older_cudnn_environment, run_code

D = DescriptorType
UNCREATABLE = D.INTERMEDIATE_INFO


def tensor(uid: int = 1, *, finalize: bool = True, **changes: Any) -> Descriptor:
    """Return a tensor descriptor of 2 x 8 x 64 halfs, valid except for the given changes."""
    made = Descriptor(D.TENSOR)
    values = {
        Attr.TENSOR_DATA_TYPE: DataType.HALF,
        Attr.TENSOR_UNIQUE_ID: uid,
        Attr.TENSOR_DIMENSIONS: (2, 8, 64),
        Attr.TENSOR_STRIDES: (512, 64, 1),
        Attr.TENSOR_BYTE_ALIGNMENT: 16,
    } | {Attr[name]: value for name, value in changes.items()}
    for attribute, value in values.items():
        made.set(attribute, value)
    return made.finalize() if finalize else made


def close(descriptor: Descriptor) -> Descriptor:
    descriptor.close()
    return descriptor


def make_square_matmul_graph() -> Graph:
    g = GraphBuilder("matmul")
    g.matmul(g.tensor("a", (1, 64, 64)), g.tensor("b", (1, 64, 64)), name="c", virtual=False)
    return g.graph()


def make_setter(attribute: Attr, value: Any, **options: Any) -> Callable[[], Any]:
    """Return a call that sets one attribute of a new descriptor of its kind."""
    kind = get_attribute_facts(attribute).owner
    return lambda: Descriptor(kind).set(attribute, value, **options)


def make_operation_graph_descriptor() -> Descriptor:
    return OperationGraph(make_square_matmul_graph(), open_target("sm90")).descriptor


def make_device_json(name: str) -> str:
    return json.dumps({**open_target("sm90").profile.properties, "deviceName": name})


def make_graph_function(**changes: Any) -> Callable[[], Any]:
    def make_graph() -> Graph:
        g = GraphBuilder()
        g.pointwise(PointwiseMode.RELU_FWD, g.tensor("huge", **changes), virtual=False)
        return g.graph()

    return make_graph


def finalize_descriptor_twice() -> None:
    tensor().finalize()


def make_plan_and_variant_pack() -> tuple[Descriptor, Descriptor]:
    graph = OperationGraph(make_square_matmul_graph(), open_target("sm90"))
    plan = build_plan(graph.heuristics("A").configs[0]).descriptor
    pack = Descriptor(D.VARIANT_PACK).set(Attr.VARIANT_PACK_UNIQUE_IDS, (1, 2, 3))
    return plan, pack.set(Attr.VARIANT_PACK_DATA_POINTERS, (4096, 8192, 12288)).finalize()


def make_execute_call(handle: Any, change: Callable[[Descriptor, Descriptor], tuple[Any, Any]]) -> Callable[[], Any]:
    return lambda: capi.cudnnBackendExecute(handle, *change(*make_plan_and_variant_pack()))


def close_plan_or_variant_pack(descriptors: tuple[Descriptor, Descriptor], index: int) -> tuple[Descriptor, Descriptor]:
    descriptors[index].close()
    return descriptors


class ForeignHandle:
    """An object that has the attributes of a handle but is not a handle."""

    pointer = 4096
    owner = 4096


Row = tuple[Callable[[], Any], type[CudnnBackendError], str, str]

ROWS: dict[str, Row] = {
    # values
    "float for an integer": (make_setter(Attr.TENSOR_UNIQUE_ID, 1.5), UsageError, "wrong-element-type", "1.5"),
    "bool for an integer": (make_setter(Attr.TENSOR_UNIQUE_ID, True), UsageError, "wrong-element-type", "True"),
    "text for an integer": (make_setter(Attr.TENSOR_UNIQUE_ID, "1"), UsageError, "wrong-element-type", "'1'"),
    "none for an integer": (make_setter(Attr.TENSOR_UNIQUE_ID, None), UsageError, "wrong-element-type", "None"),
    "integer of 65 bits": (make_setter(Attr.TENSOR_UNIQUE_ID, 1 << 64), UsageError, "integer-overflow", str(1 << 64)),
    "integer of 33 bits": (
        make_setter(Attr.ENGINE_SM_COUNT_TARGET, 1 << 32), UsageError, "integer-overflow", "32 bits",
    ),
    "integer for a bool": (make_setter(Attr.TENSOR_IS_VIRTUAL, 1), UsageError, "wrong-element-type", "1"),
    "text for a float": (make_setter(Attr.POINTWISE_ELU_ALPHA, "1.0"), UsageError, "wrong-element-type", "'1.0'"),
    "unknown enum number": (make_setter(Attr.TENSOR_DATA_TYPE, 4711), UsageError, "unknown-enumerator", "4711"),
    "member of another enum": (
        make_setter(Attr.TENSOR_DATA_TYPE, HeurMode.A), UsageError, "wrong-element-type", "HeurMode",
    ),
    "knob as text": (make_setter(Attr.KNOB_CHOICE_KNOB_TYPE, "SPLIT_K"), UsageError, "wrong-element-type", "SPLIT_K"),
    "three numbers for a fraction": (
        make_setter(Attr.RESAMPLE_STRIDES, [(1, 2, 3)], type=AttributeType.FRACTION),
        UsageError, "wrong-element-type", r"\(1, 2, 3\)",
    ),
    "negative address": (make_setter(Attr.VARIANT_PACK_WORKSPACE, -1), UsageError, "integer-overflow", "-1"),
    "bytes for text": (
        make_setter(Attr.DEVICEPROP_JSON_REPRESENTATION, b"{}"),
        UsageError, "wrong-element-type", "JSON_REPRESENTATION",
    ),
    "text with NUL": (
        make_setter(Attr.DEVICEPROP_JSON_REPRESENTATION, "a\0b"), UsageError, "wrong-element-type", "NUL",
    ),
    "element type the attribute does not take": (
        make_setter(Attr.TENSOR_UNIQUE_ID, 1, type=AttributeType.FLOAT), UsageError, "wrong-element-type", "FLOAT",
    ),
    "element type that is none": (
        make_setter(Attr.TENSOR_UNIQUE_ID, 1, type=3), UsageError, "wrong-element-type", "got 3",
    ),
    "element type to get that is none": (
        lambda: tensor().get(Attr.TENSOR_UNIQUE_ID, type=AttributeType.BACKEND_DESCRIPTOR),
        UsageError, "wrong-element-type", "BACKEND_DESCRIPTOR",
    ),
    "element type to count that is none": (
        lambda: tensor().count(Attr.TENSOR_DIMENSIONS, AttributeType.CHAR), UsageError, "wrong-element-type", "CHAR",
    ),
    # counts
    "no elements": (make_setter(Attr.TENSOR_DIMENSIONS, ()), UsageError, "wrong-element-count", "got 0"),
    "nine dims": (make_setter(Attr.TENSOR_DIMENSIONS, (1,) * 9), UsageError, "wrong-element-count", "got 9"),
    "two for one": (make_setter(Attr.TENSOR_UNIQUE_ID, (1, 2)), UsageError, "wrong-element-count", "got 2"),
    "empty operation graph": (make_setter(Attr.OPERATIONGRAPH_OPS, []), UsageError, "wrong-element-count", "got 0"),
    "capi set, count too large": (
        lambda: capi.cudnnBackendSetAttribute(
            Descriptor(D.TENSOR), Attr.TENSOR_UNIQUE_ID, AttributeType.INT64, 2, [1]
        ),
        UsageError, "wrong-element-count", "the count is 2, but 1",
    ),
    "capi set, count negative": (
        lambda: capi.cudnnBackendSetAttribute(
            Descriptor(D.TENSOR), Attr.TENSOR_UNIQUE_ID, AttributeType.INT64, -1, [1]
        ),
        UsageError, "wrong-element-count", "count .*-1",
    ),
    "capi set, no sequence": (
        lambda: capi.cudnnBackendSetAttribute(
            Descriptor(D.TENSOR), Attr.TENSOR_UNIQUE_ID, AttributeType.INT64, 1, 1  # type: ignore[arg-type]
        ),
        UsageError, "wrong-argument", "got 1",
    ),
    "capi get, count negative": (
        lambda: capi.cudnnBackendGetAttribute(tensor(), Attr.TENSOR_DIMENSIONS, AttributeType.INT64, -2),
        UsageError, "wrong-element-count", "-2",
    ),
    "capi get, count as text": (
        lambda: capi.cudnnBackendGetAttribute(
            tensor(), Attr.TENSOR_DIMENSIONS, AttributeType.INT64, "3"  # type: ignore[arg-type]
        ),
        UsageError, "wrong-argument", "'3'",
    ),
    # attributes
    "attribute of another descriptor": (
        lambda: Descriptor(D.TENSOR).set(Attr.MATMUL_COMP_TYPE, DataType.FLOAT),
        UsageError, "attribute-of-another-descriptor", "CUDNN_BACKEND_MATMUL_DESCRIPTOR, not of",
    ),
    "attribute of another descriptor, get": (
        lambda: tensor().get(Attr.MATMUL_COMP_TYPE), UsageError, "attribute-of-another-descriptor", "MATMUL",
    ),
    "attribute as number": (
        lambda: Descriptor(D.TENSOR).set(900, 16),  # type: ignore[arg-type]
        UsageError, "unknown-enumerator", "900 is not an AttributeName",
    ),
    "attribute by its C name": (
        lambda: Descriptor(D.TENSOR).set("CUDNN_ATTR_TENSOR_UNIQUE_ID", 16),  # type: ignore[arg-type]
        UsageError, "unknown-enumerator", "Attr.TENSOR_UNIQUE_ID",
    ),
    "value by its C name": (
        lambda: Descriptor(D.TENSOR).set(Attr.TENSOR_DATA_TYPE, "CUDNN_DATA_HALF"),
        UsageError, "wrong-element-type", "DataType.HALF",
    ),
    "descriptor type by its C name": (
        lambda: Descriptor("CUDNN_BACKEND_TENSOR_DESCRIPTOR"),  # type: ignore[arg-type]
        UsageError, "unknown-enumerator", "DescriptorType.TENSOR",
    ),
    "read-only attribute": (
        make_setter(Attr.ENGINEHEUR_RESULTS, []),
        UsageError, "attribute-read-only", "ENGINEHEUR_RESULTS is read-only",
    ),
    "descriptor type as number": (
        lambda: Descriptor(17),  # type: ignore[arg-type]
        UsageError, "unknown-enumerator", "17 is not a DescriptorType",
    ),
    # states
    "set after finalize": (
        lambda: tensor().set(Attr.TENSOR_UNIQUE_ID, 2), UsageError, "descriptor-finalized", "UNIQUE_ID cannot be set",
    ),
    "finalize twice": (finalize_descriptor_twice, UsageError, "descriptor-finalized", "already finalized"),
    "initialize after finalize": (
        lambda: capi.cudnnBackendInitialize(tensor()), UsageError, "descriptor-finalized", "TENSOR",
    ),
    "set after close": (
        lambda: close(Descriptor(D.TENSOR)).set(Attr.TENSOR_UNIQUE_ID, 1), UsageError, "descriptor-closed", "TENSOR",
    ),
    "get after close": (
        lambda: close(tensor()).get(Attr.TENSOR_UNIQUE_ID), UsageError, "descriptor-closed", "TENSOR",
    ),
    "count after close": (
        lambda: close(tensor()).count(Attr.TENSOR_DIMENSIONS), UsageError, "descriptor-closed", "TENSOR",
    ),
    "finalize after close": (
        lambda: close(tensor(finalize=False)).finalize(), UsageError, "descriptor-closed", "TENSOR",
    ),
    "initialize after close": (
        lambda: capi.cudnnBackendInitialize(close(Descriptor(D.TENSOR))), UsageError, "descriptor-closed", "TENSOR",
    ),
    "get before finalize": (
        lambda: tensor(finalize=False).get(Attr.TENSOR_UNIQUE_ID), CudnnStatusError, "cudnn-status", "NOT_INITIALIZED",
    ),
    # children
    "none as child": (make_setter(Attr.OPERATION_MATMUL_ADESC, None), UsageError, "wrong-element-type", "None"),
    "zero as child": (make_setter(Attr.OPERATION_MATMUL_ADESC, 0), UsageError, "wrong-element-type", "0"),
    "address as child": (make_setter(Attr.OPERATION_MATMUL_ADESC, 4096), UsageError, "wrong-element-type", "4096"),
    "foreign object as child": (
        make_setter(Attr.OPERATION_MATMUL_ADESC, object()), UsageError, "wrong-element-type", "object object",
    ),
    "closed child": (
        lambda: Descriptor(D.OPERATION_MATMUL).set(Attr.OPERATION_MATMUL_ADESC, close(tensor())),
        UsageError, "descriptor-closed", "TENSOR",
    ),
    "unfinalized child": (
        lambda: Descriptor(D.OPERATION_MATMUL).set(Attr.OPERATION_MATMUL_ADESC, tensor(finalize=False)),
        UsageError, "child-not-finalized", "ADESC is not finalized",
    ),
    "child of a wrong kind": (
        lambda: Descriptor(D.OPERATION_MATMUL).set(Attr.OPERATION_MATMUL_ADESC, make_operation_graph_descriptor()),
        UsageError, "wrong-descriptor-kind", "kind TENSOR, got OPERATIONGRAPH",
    ),
    "tensor for an operation graph": (
        lambda: Descriptor(D.ENGINEHEUR).set(Attr.ENGINEHEUR_OPERATION_GRAPH, tensor()),
        UsageError, "wrong-descriptor-kind", "kind OPERATIONGRAPH, got TENSOR",
    ),
    "itself as child": (
        lambda: (lambda t: t.set(Attr.TENSOR_RAGGED_OFFSET_DESC, t))(Descriptor(D.TENSOR)),
        UsageError, "descriptor-cycle", "cannot contain itself",
    ),
    # handles and running
    "none as handle": (make_setter(Attr.OPERATIONGRAPH_HANDLE, None), UsageError, "wrong-element-type", "None"),
    "address as handle": (make_setter(Attr.OPERATIONGRAPH_HANDLE, 4096), UsageError, "wrong-element-type", "4096"),
    "foreign handle": (
        make_setter(Attr.EXECUTION_PLAN_HANDLE, ForeignHandle()), UsageError, "wrong-element-type", "ForeignHandle",
    ),
    "handle without a GPU": (Handle, CudnnStatusError, "cudnn-status", "cudnnCreate answered NOT_INITIALIZED"),
    "live target without a GPU": (open_target, EnvironmentNotReady, "no-gpu", "no GPU in this process"),
    "execute with no handle": (
        make_execute_call(None, lambda *both: both), UsageError, "null-pointer", "Handle is needed, got None",
    ),
    "execute with handle 0": (
        make_execute_call(0, lambda *both: both), UsageError, "null-pointer", "Handle is needed, got 0",
    ),
    "execute with a foreign handle": (
        make_execute_call(ForeignHandle(), lambda *both: both), UsageError, "wrong-argument", "ForeignHandle",
    ),
    "execute with no plan": (
        make_execute_call(None, lambda _plan, pack: (None, pack)), UsageError, "null-pointer", "got None",
    ),
    "execute with a closed plan": (
        make_execute_call(None, lambda *both: close_plan_or_variant_pack(both, 0)),
        UsageError,
        "descriptor-closed",
        "EXECUTION_PLAN",
    ),
    "execute with a closed variant pack": (
        make_execute_call(None, lambda *both: close_plan_or_variant_pack(both, 1)),
        UsageError,
        "descriptor-closed",
        "VARIANT_PACK",
    ),
    "execute with both exchanged": (
        make_execute_call(None, lambda plan, pack: (pack, plan)), UsageError, "wrong-descriptor-kind", "EXECUTION_PLAN",
    ),
    "execute with an open variant pack": (
        make_execute_call(None, lambda plan, _: (plan, Descriptor(D.VARIANT_PACK))),
        UsageError, "descriptor-not-finalized", "VARIANT_PACK",
    ),
    "workspace size with no handle": (
        lambda: capi.cudnnGetExecutionPlanWorkspaceSize(None, *make_plan_and_variant_pack()),  # type: ignore[arg-type]
        UsageError, "null-pointer", "Handle is needed",
    ),
    "null cudaGraph": (
        lambda: capi.cudnnBackendPopulateCudaGraph(None, *make_plan_and_variant_pack(), 0),  # type: ignore[arg-type]
        UsageError, "null-pointer", "cudaGraph_t needs an address, got 0",
    ),
    "no cudaGraph": (
        lambda: capi.cudnnBackendUpdateCudaGraph(None, *make_plan_and_variant_pack(), None),  # type: ignore[arg-type]
        UsageError, "null-pointer", "cudaGraph_t needs an address, got None",
    ),
    "none as descriptor": (
        lambda: capi.cudnnBackendFinalize(None),  # type: ignore[arg-type]
        UsageError, "null-pointer", "Descriptor is needed, got None",
    ),
    "zero as descriptor": (
        lambda: capi.cudnnBackendDestroyDescriptor(0),  # type: ignore[arg-type]
        UsageError, "null-pointer", "got 0",
    ),
    "address as descriptor": (
        lambda: capi.cudnnBackendInitialize(4096),  # type: ignore[arg-type]
        UsageError, "wrong-argument", "4096",
    ),
    "none as handle, destroy": (
        lambda: capi.cudnnDestroy(None),  # type: ignore[arg-type]
        UsageError, "null-pointer", "Handle is needed",
    ),
    "descriptor as handle": (
        lambda: capi.cudnnSetStream(tensor(), 0),  # type: ignore[arg-type]
        UsageError, "wrong-argument", "Handle is needed, got <Descriptor",
    ),
    "status as text": (
        lambda: capi.cudnnGetErrorString("3000"),  # type: ignore[arg-type]
        UsageError, "wrong-argument", "'3000'",
    ),
    "status beyond C": (lambda: capi.cudnnGetErrorString(1 << 40), UsageError, "integer-overflow", str(1 << 40)),
    "callback that is none": (
        lambda: capi.cudnnSetCallback(15, "print"),  # type: ignore[arg-type]
        UsageError, "wrong-argument", "'print'",
    ),
    "plan of a described target run": (
        lambda: execute(
            build_plan(OperationGraph(make_square_matmul_graph(), open_target("sm90")).heuristics("A").configs[0]), {}
        ),
        EnvironmentNotReady, "plan-without-device", "described target",
    ),
    # measured known issues: each of these crashes cuDNN 9.28 if it gets there
    "device name of 256 bytes": (
        lambda: Descriptor(D.DEVICEPROP).set(Attr.DEVICEPROP_JSON_REPRESENTATION, make_device_json("n" * 256)),
        UsageError, "device-name-too-long", "at most 255 bytes, got 256",
    ),
    "device name of 128 letters and 256 bytes": (
        lambda: Descriptor(D.DEVICEPROP).set(Attr.DEVICEPROP_JSON_REPRESENTATION, make_device_json("é" * 128)),
        UsageError, "device-name-too-long", "got 256",
    ),
    "second device name too long": (
        make_setter(Attr.DEVICEPROP_JSON_REPRESENTATION, f'{{"deviceName":"{"n" * 300}","deviceName":"short"}}'),
        UsageError, "device-name-too-long", "got 300",
    ),
    "JSON nested too deep": (
        make_setter(Attr.EXECUTION_PLAN_JSON_REPRESENTATION, "[" * 1_000_000), UsageError, "not-json", "recursion",
    ),
    "JSON cut off": (
        make_setter(Attr.KERNEL_CACHE_JSON_REPRESENTATION, '{"a":'), UsageError, "not-json", "is not JSON",
    ),
    "override shapes": (
        make_setter(Attr.VARIANT_PACK_OVERRIDE_SHAPES, 4096), UsageError, "attribute-takes-cpp-object", "std::vector",
    ),
    "override strides": (
        make_setter(Attr.VARIANT_PACK_OVERRIDE_STRIDES, 4096),
        UsageError, "attribute-takes-cpp-object", "std::vector",
    ),
    "constant by address": (
        make_setter(Attr.TENSOR_CONSTANT_VALUE, 4096), UsageError, "constant-not-bytes", "4096",
    ),
    "empty engine config": (
        lambda: Descriptor(D.ENGINECFG).finalize(), UsageError, "attribute-missing", "ENGINECFG_ENGINE",
    ),
    "empty execution plan": (
        lambda: Descriptor(D.EXECUTION_PLAN).finalize(), UsageError, "attribute-missing", "ENGINE_CONFIG or",
    ),
    "plan from JSON on no device": (
        lambda: Descriptor(D.EXECUTION_PLAN).set(Attr.EXECUTION_PLAN_JSON_REPRESENTATION, "{}").finalize(),
        UsageError, "attribute-missing", "neither .*HANDLE nor .*DEVICEPROP",
    ),
    "operation graph with a wrong mode": (
        lambda: Descriptor(D.OPERATIONGRAPH)
        .set(Attr.OPERATIONGRAPH_MODE, 0)
        .set(Attr.OPERATIONGRAPH_OPS, make_pointwise_operation())
        .finalize(),
        UsageError, "graph-mode-mismatch", "CONV_FORWARD",
    ),
    "operation graph without operations": (
        lambda: Descriptor(D.OPERATIONGRAPH).set(Attr.OPERATIONGRAPH_MODE, 0).finalize(),
        UsageError, "attribute-missing", "OPERATIONGRAPH_OPS",
    ),
    "concatenation of nothing": (
        lambda: Descriptor(D.OPERATION_CONCAT).set(Attr.OPERATION_CONCAT_AXIS, 3).finalize(),
        UsageError, "attribute-missing", "INPUT_DESCS",
    ),
    "concatenation axis beyond 32 bits": (
        make_setter(Attr.OPERATION_CONCAT_AXIS, 1 << 40), UsageError, "axis-out-of-range", str(1 << 40),
    ),
    "blocks of no elements": (
        lambda: Descriptor(DescriptorType.OPERATION_BLOCK_SCALE_DEQUANTIZE).set(
            Attr.OPERATION_BLOCK_SCALE_DEQUANTIZE_BLOCK_SIZE, (1, 0)
        ),
        UsageError, "block-size-not-positive", "must be at least 1, got",
    ),
    "spatial dims of a convolution beyond all dims": (
        make_setter(Attr.CONVOLUTION_SPATIAL_DIMS, 2**31 - 1), UsageError, "spatial-dims-out-of-range", "at most 8",
    ),
    "spatial dims of a resample beyond all dims": (
        make_setter(Attr.RESAMPLE_SPATIAL_DIMS, 9), UsageError, "spatial-dims-out-of-range", "at most 8",
    ),
    "reading a ragged offset": (
        lambda: tensor().get(Attr.TENSOR_RAGGED_OFFSET_DESC), UsageError, "attribute-not-readable", "RAGGED_OFFSET",
    ),
    "counting same topology": (
        lambda: make_operation_graph_descriptor().count(Attr.OPERATIONGRAPH_IS_SAME_TOPOLOGY),
        UsageError, "attribute-not-readable", "IS_SAME_TOPOLOGY",
    ),
    # sizes
    "tensor size overflow, Level 0": (
        lambda: tensor(TENSOR_DIMENSIONS=(1 << 40, 1 << 40, 1), TENSOR_STRIDES=(1 << 40, 1, 1)),
        UsageError, "tensor-size-overflow", "does not fit 64 bits",
    ),
    "tensor reach overflow, Level 0": (
        lambda: tensor(TENSOR_DIMENSIONS=(2, 2, 2), TENSOR_STRIDES=(1 << 62, 1 << 62, 1)),
        UsageError, "tensor-size-overflow", "does not fit 64 bits",
    ),
    "negative dims, Level 0": (
        lambda: tensor(TENSOR_DIMENSIONS=(-2, 8, 64)), CudnnStatusError, "cudnn-status", "BAD_PARAM",
    ),
    "dims and strides of different length, Level 0": (
        lambda: tensor(TENSOR_STRIDES=(64, 1)), CudnnStatusError, "cudnn-status", "BAD_PARAM",
    ),
    "tensor size overflow, Level 1": (
        make_graph_function(dims=(1 << 40, 1 << 40)), GraphError, "tensor-size-overflow", "'huge'",
    ),
    "negative dim, Level 1": (
        make_graph_function(dims=(4, -3), strides=(3, 1)), GraphError, "dim-not-positive", "'huge' has a dim of -3",
    ),
    # Level 1 queries
    "unknown target": (lambda: open_target("sm_nothing"), UsageError, "unknown-target", "sm_nothing"),
    "unknown heuristics mode": (
        lambda: explain(make_square_matmul_graph(), "sm90", mode="C"), UsageError, "unknown-enumerator", "'C'",
    ),
    "engine out of range": (
        lambda: OperationGraph(make_square_matmul_graph(), open_target("sm90")).config(10**6),
        CudnnStatusError, "cudnn-status", "NOT_SUPPORTED",
    ),
    "knob out of range": (
        lambda: OperationGraph(make_square_matmul_graph(), open_target("sm90")).config(1, {KnobType.SPLIT_K: -(10**9)}),
        CudnnStatusError, "cudnn-status", "ENGINECFG",
    ),
}  # fmt: skip


def make_pointwise_operation() -> Descriptor:
    pointwise = Descriptor(D.POINTWISE).set(Attr.POINTWISE_MODE, PointwiseMode.RELU_FWD).finalize()
    made = Descriptor(D.OPERATION_POINTWISE).set(Attr.OPERATION_POINTWISE_PW_DESCRIPTOR, pointwise)
    return made.set(Attr.OPERATION_POINTWISE_XDESC, tensor(1)).set(Attr.OPERATION_POINTWISE_YDESC, tensor(2)).finalize()


@pytest.fixture(scope="module", autouse=True)
def _check_process_survives() -> Iterator[None]:
    """Check, after all cases of this module, that the same process can still judge a graph."""
    yield
    assert explain(make_square_matmul_graph(), "sm90").supported


@pytest.mark.parametrize(("call", "kind", "code", "words"), ROWS.values(), ids=ROWS)
def test_bad_input_is_refused(call: Callable[[], Any], kind: type[CudnnBackendError], code: str, words: str) -> None:
    with pytest.raises(CudnnBackendError, match=words) as caught:
        call()
    assert type(caught.value) is kind or (kind is CudnnStatusError and isinstance(caught.value, kind))
    assert caught.value.code == code


def _list_attributes_of_each_type() -> Iterator[Any]:
    seen: set[AttributeType] = set()
    for kind in D:
        for facts in get_attributes(kind):
            if facts.role != "output" and facts.types[0] not in seen and kind is not UNCREATABLE:
                seen.add(facts.types[0])
                yield pytest.param(kind, facts.attribute, max(1, facts.min_count), id=facts.types[0].name)


@pytest.mark.parametrize(("kind", "attribute", "count"), [*_list_attributes_of_each_type()])
@pytest.mark.parametrize("wrong", [object(), 1 + 2j, b"bytes", {"a": 1}, print], ids=lambda value: type(value).__name__)
def test_each_attribute_refuses_a_wrong_element_type(kind: D, attribute: Attr, count: int, wrong: Any) -> None:
    with pytest.raises(UsageError, match=r"is not |takes text|std::vector|takes the bytes") as caught:
        Descriptor(kind).set(attribute, [wrong] * count)
    assert caught.value.code in ("wrong-element-type", "attribute-takes-cpp-object", "constant-not-bytes")


@pytest.mark.parametrize("kind", [kind for kind in D if kind is not UNCREATABLE], ids=lambda kind: kind.name)
def test_every_descriptor_type_refuses_use_after_close(kind: D) -> None:
    descriptor = close(Descriptor(kind))
    descriptor.close()
    assert descriptor.closed
    calls: list[Callable[[], Any]] = [descriptor.finalize]
    calls += [lambda facts=facts: descriptor.get(facts.attribute) for facts in get_attributes(kind)[:3]]
    for call in calls:
        with pytest.raises(UsageError) as caught:
            call()
        assert caught.value.code in ("descriptor-closed", "attribute-not-readable")


def test_a_refused_attribute_value_leaves_a_descriptor_usable() -> None:
    made = tensor(finalize=False)
    for value in ("x", 1.5, (1, 2), None):
        with pytest.raises(UsageError):
            made.set(Attr.TENSOR_UNIQUE_ID, value)
    assert made.finalize().get(Attr.TENSOR_UNIQUE_ID) == 1


def test_backend_initialize_clears_attributes_of_a_descriptor() -> None:
    made = tensor(finalize=False)
    capi.cudnnBackendInitialize(made)
    with pytest.raises(CudnnStatusError, match="BAD_PARAM"):
        made.finalize()


def test_a_closed_child_of_an_open_parent_stays_alive() -> None:
    x, y = tensor(1), tensor(2)
    pointwise = Descriptor(D.POINTWISE).set(Attr.POINTWISE_MODE, PointwiseMode.RELU_FWD).finalize()
    operation = Descriptor(D.OPERATION_POINTWISE).set(Attr.OPERATION_POINTWISE_PW_DESCRIPTOR, pointwise)
    operation.set(Attr.OPERATION_POINTWISE_XDESC, x).set(Attr.OPERATION_POINTWISE_YDESC, y)
    for child in (x, y, pointwise):
        child.close()
    graph = Descriptor(D.OPERATIONGRAPH).set(Attr.OPERATIONGRAPH_OPS, [operation.finalize()])
    operation.close()
    graph.finalize()
    target = open_target("sm90")
    question = Descriptor(D.ENGINEHEUR).set(Attr.ENGINEHEUR_OPERATION_GRAPH, graph)
    graph.close()
    question.set(Attr.ENGINEHEUR_MODE, HeurMode.A).set(Attr.ENGINEHEUR_DEVICEPROP, target.device).finalize()
    target.close()
    configs = question.get(Attr.ENGINEHEUR_RESULTS)
    question.close()
    assert configs
    assert configs[0].get(Attr.ENGINECFG_ENGINE).get(Attr.ENGINE_GLOBAL_INDEX) >= 0


def test_device_name_of_255_bytes_is_accepted() -> None:
    device = Descriptor(D.DEVICEPROP).set(Attr.DEVICEPROP_JSON_REPRESENTATION, make_device_json("n" * 255)).finalize()
    assert json.loads(device.get(Attr.DEVICEPROP_JSON_REPRESENTATION))["deviceName"] == "n" * 255


def test_constant_of_a_tensor_is_accepted_as_bytes() -> None:
    constant = tensor(
        3,
        TENSOR_DATA_TYPE=DataType.FLOAT,
        TENSOR_IS_BY_VALUE=True,
        TENSOR_DIMENSIONS=(1,),
        TENSOR_STRIDES=(1,),
        TENSOR_CONSTANT_VALUE=struct.pack("f", math.pi),
    )
    assert constant.finalized


def test_status_error_has_function_descriptor_and_last_error() -> None:
    with pytest.raises(CudnnStatusError) as caught:
        Descriptor(D.TENSOR).finalize()
    assert caught.value.status is Status.BAD_PARAM
    assert caught.value.function == "cudnnBackendFinalize"
    assert caught.value.descriptor is D.TENSOR
    assert "Tensor must have at least 1 dimension" in caught.value.last_error


NEWER = """
from cudnn_backend_py import Attr, Descriptor, DescriptorType, UsageError, capi, library
from cudnn_backend_py.native import library as load
def code(call):
    try:
        call()
    except UsageError as error:
        return f"{error.code}: {error.headline}"
print(library().version_text)
print(code(lambda: Descriptor(DescriptorType.OPERATION_ROPE_FWD)))
print(code(lambda: Descriptor(DescriptorType.ENGINE).set(Attr.ENGINE_SHARED_MEMORY_LIMIT, 1)))
print(code(lambda: load().cudnnGetExecutionPlanWorkspaceSize))
"""


def test_errors_name_features_newer_than_the_library() -> None:
    lines = run_code(NEWER, environment=make_older_cudnn_environment()).stdout.splitlines()
    assert lines == [
        "9.19.0",
        "descriptor-newer-than-library: CUDNN_BACKEND_OPERATION_ROPE_FWD_DESCRIPTOR needs cuDNN 9.24.0, "
        "the loaded library is 9.19.0",
        "attribute-newer-than-library: CUDNN_ATTR_ENGINE_SHARED_MEMORY_LIMIT needs cuDNN 9.28.0, "
        "the loaded library is 9.19.0",
        "function-newer-than-library: cudnnGetExecutionPlanWorkspaceSize needs cuDNN 9.23.0, "
        "the loaded library is 9.19.0",
    ]
