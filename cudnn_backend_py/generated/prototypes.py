# Generated from cudnn_graph.h 9.28.0 and facts.toml. Do not edit.
# seal: sha256:9ebb97b95de3b39d423b1f4a4a57f7be579af28f6a3684f46d9a5ee5d603b326
# Command: python -m tools.codegen
"""Every function, struct and callback type of cudnn_graph.h, as data."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter of a function or a field of a struct, with its C type."""

    name: str
    c_type: str


@dataclass(frozen=True, slots=True)
class Function:
    """A C prototype."""

    name: str
    returns: str
    parameters: tuple[Parameter, ...]
    since: tuple[int, int, int] | None
    deprecated: bool


FUNCTIONS: dict[str, Function] = {
    "cudnnGetVersion": Function("cudnnGetVersion", "size_t", (), (9, 0, 0), False),
    "cudnnGetMaxDeviceVersion": Function("cudnnGetMaxDeviceVersion", "size_t", (), (9, 0, 0), False),
    "cudnnGetCudartVersion": Function("cudnnGetCudartVersion", "size_t", (), (9, 0, 0), False),
    "cudnnGetErrorString": Function(
        "cudnnGetErrorString", "const char *", (Parameter("status", "cudnnStatus_t"),), (9, 0, 0), False
    ),
    "cudnnGetLastErrorString": Function(
        "cudnnGetLastErrorString",
        "void",
        (
            Parameter("message", "char *"),
            Parameter("max_size", "size_t"),
        ),
        (9, 0, 0),
        False,
    ),
    "cudnnQueryRuntimeError": Function(
        "cudnnQueryRuntimeError",
        "cudnnStatus_t",
        (
            Parameter("handle", "cudnnHandle_t"),
            Parameter("rstatus", "cudnnStatus_t *"),
            Parameter("mode", "cudnnErrQueryMode_t"),
            Parameter("tag", "cudnnRuntimeTag_t *"),
        ),
        (9, 0, 0),
        True,
    ),
    "cudnnGetProperty": Function(
        "cudnnGetProperty",
        "cudnnStatus_t",
        (
            Parameter("type", "libraryPropertyType"),
            Parameter("value", "int *"),
        ),
        (9, 0, 0),
        False,
    ),
    "cudnnCreate": Function(
        "cudnnCreate", "cudnnStatus_t", (Parameter("handle", "cudnnHandle_t *"),), (9, 0, 0), False
    ),
    "cudnnDestroy": Function(
        "cudnnDestroy", "cudnnStatus_t", (Parameter("handle", "cudnnHandle_t"),), (9, 0, 0), False
    ),
    "cudnnSetStream": Function(
        "cudnnSetStream",
        "cudnnStatus_t",
        (
            Parameter("handle", "cudnnHandle_t"),
            Parameter("streamId", "cudaStream_t"),
        ),
        (9, 0, 0),
        False,
    ),
    "cudnnGetStream": Function(
        "cudnnGetStream",
        "cudnnStatus_t",
        (
            Parameter("handle", "cudnnHandle_t"),
            Parameter("streamId", "cudaStream_t *"),
        ),
        (9, 0, 0),
        False,
    ),
    "cudnnSetCallback": Function(
        "cudnnSetCallback",
        "cudnnStatus_t",
        (
            Parameter("mask", "unsigned"),
            Parameter("udata", "void *"),
            Parameter("fptr", "cudnnCallback_t"),
        ),
        (9, 0, 0),
        False,
    ),
    "cudnnGetCallback": Function(
        "cudnnGetCallback",
        "cudnnStatus_t",
        (
            Parameter("mask", "unsigned *"),
            Parameter("udata", "void **"),
            Parameter("fptr", "cudnnCallback_t *"),
        ),
        (9, 0, 0),
        False,
    ),
    "cudnnGraphVersionCheck": Function("cudnnGraphVersionCheck", "cudnnStatus_t", (), (9, 0, 0), False),
    "cudnnBackendCreateDescriptor": Function(
        "cudnnBackendCreateDescriptor",
        "cudnnStatus_t",
        (
            Parameter("descriptorType", "cudnnBackendDescriptorType_t"),
            Parameter("descriptor", "cudnnBackendDescriptor_t *"),
        ),
        (9, 0, 0),
        False,
    ),
    "cudnnBackendDestroyDescriptor": Function(
        "cudnnBackendDestroyDescriptor",
        "cudnnStatus_t",
        (Parameter("descriptor", "cudnnBackendDescriptor_t"),),
        (9, 0, 0),
        False,
    ),
    "cudnnBackendInitialize": Function(
        "cudnnBackendInitialize",
        "cudnnStatus_t",
        (Parameter("descriptor", "cudnnBackendDescriptor_t"),),
        (9, 0, 0),
        True,
    ),
    "cudnnBackendFinalize": Function(
        "cudnnBackendFinalize",
        "cudnnStatus_t",
        (Parameter("descriptor", "cudnnBackendDescriptor_t"),),
        (9, 0, 0),
        False,
    ),
    "cudnnBackendSetAttribute": Function(
        "cudnnBackendSetAttribute",
        "cudnnStatus_t",
        (
            Parameter("descriptor", "cudnnBackendDescriptor_t"),
            Parameter("attributeName", "cudnnBackendAttributeName_t"),
            Parameter("attributeType", "cudnnBackendAttributeType_t"),
            Parameter("elementCount", "int64_t"),
            Parameter("arrayOfElements", "const void *"),
        ),
        (9, 0, 0),
        False,
    ),
    "cudnnBackendGetAttribute": Function(
        "cudnnBackendGetAttribute",
        "cudnnStatus_t",
        (
            Parameter("descriptor", "cudnnBackendDescriptor_t"),
            Parameter("attributeName", "cudnnBackendAttributeName_t"),
            Parameter("attributeType", "cudnnBackendAttributeType_t"),
            Parameter("requestedElementCount", "int64_t"),
            Parameter("elementCount", "int64_t *"),
            Parameter("arrayOfElements", "void *"),
        ),
        (9, 0, 0),
        False,
    ),
    "cudnnGetExecutionPlanWorkspaceSize": Function(
        "cudnnGetExecutionPlanWorkspaceSize",
        "cudnnStatus_t",
        (
            Parameter("handle", "cudnnHandle_t"),
            Parameter("executionPlan", "cudnnBackendDescriptor_t"),
            Parameter("variantPack", "cudnnBackendDescriptor_t"),
            Parameter("workspaceSizeInBytes", "size_t *"),
        ),
        (9, 23, 0),
        False,
    ),
    "cudnnBackendExecute": Function(
        "cudnnBackendExecute",
        "cudnnStatus_t",
        (
            Parameter("handle", "cudnnHandle_t"),
            Parameter("executionPlan", "cudnnBackendDescriptor_t"),
            Parameter("variantPack", "cudnnBackendDescriptor_t"),
        ),
        (9, 0, 0),
        False,
    ),
    "cudnnBackendPopulateCudaGraph": Function(
        "cudnnBackendPopulateCudaGraph",
        "cudnnStatus_t",
        (
            Parameter("handle", "cudnnHandle_t"),
            Parameter("executionPlan", "cudnnBackendDescriptor_t"),
            Parameter("variantPack", "cudnnBackendDescriptor_t"),
            Parameter("graph", "cudaGraph_t"),
        ),
        (9, 5, 0),
        False,
    ),
    "cudnnBackendUpdateCudaGraph": Function(
        "cudnnBackendUpdateCudaGraph",
        "cudnnStatus_t",
        (
            Parameter("handle", "cudnnHandle_t"),
            Parameter("executionPlan", "cudnnBackendDescriptor_t"),
            Parameter("variantPack", "cudnnBackendDescriptor_t"),
            Parameter("graph", "cudaGraph_t"),
        ),
        (9, 5, 0),
        False,
    ),
}
CALLBACKS: dict[str, Function] = {
    "cudnnCallback_t": Function(
        "cudnnCallback_t",
        "void",
        (
            Parameter("sev", "cudnnSeverity_t"),
            Parameter("udata", "void *"),
            Parameter("dbg", "const cudnnDebug_t *"),
            Parameter("msg", "const char *"),
        ),
        None,
        False,
    )
}
STRUCTS: dict[str, tuple[Parameter, ...]] = {
    "cudnnDebug_t": (
        Parameter("cudnn_version", "unsigned"),
        Parameter("cudnnStatus", "cudnnStatus_t"),
        Parameter("time_sec", "unsigned"),
        Parameter("time_usec", "unsigned"),
        Parameter("time_delta", "unsigned"),
        Parameter("handle", "cudnnHandle_t"),
        Parameter("stream", "cudaStream_t"),
        Parameter("pid", "unsigned long long"),
        Parameter("tid", "unsigned long long"),
        Parameter("cudaDeviceId", "int"),
        Parameter("reserved", "int[15]"),
    ),
    "cudnnFraction_t": (
        Parameter("numerator", "int64_t"),
        Parameter("denominator", "int64_t"),
    ),
}
