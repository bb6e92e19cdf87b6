# Generated from cudnn_graph.h 9.28.0 and facts.toml. Do not edit.
# seal: sha256:c8cc6c98fc86534629573979731ca571926b92d7db3658c3ad2cdf07819392dc
# Command: python -m tools.codegen
"""Every function, struct and callback type of cudnn_graph.h, as data."""

from __future__ import annotations

from typing import NamedTuple


class Parameter(NamedTuple):
    """A parameter of a function or a field of a struct, with its C type."""

    name: str
    c_type: str


class Function(NamedTuple):
    """The prototype of a C function, with the cuDNN version that added it."""

    name: str
    returns: str
    parameters: tuple[Parameter, ...]
    since: tuple[int, int, int] | None
    deprecated: bool = False


def _parameters(**types: str) -> tuple[Parameter, ...]:
    return tuple(Parameter(name, c_type) for name, c_type in types.items())


FUNCTIONS = {
    function.name: function
    for function in (
        Function("cudnnGetVersion", "size_t", _parameters(), (9, 0, 0)),
        Function("cudnnGetMaxDeviceVersion", "size_t", _parameters(), (9, 0, 0)),
        Function("cudnnGetCudartVersion", "size_t", _parameters(), (9, 0, 0)),
        Function("cudnnGetErrorString", "const char *", _parameters(status="cudnnStatus_t"), (9, 0, 0)),
        Function("cudnnGetLastErrorString", "void", _parameters(message="char *", max_size="size_t"), (9, 0, 0)),
        Function(
            "cudnnQueryRuntimeError",
            "cudnnStatus_t",
            _parameters(
                handle="cudnnHandle_t", rstatus="cudnnStatus_t *", mode="cudnnErrQueryMode_t", tag="cudnnRuntimeTag_t *"
            ),
            (9, 0, 0),
            deprecated=True,
        ),
        Function(
            "cudnnGetProperty", "cudnnStatus_t", _parameters(type="libraryPropertyType", value="int *"), (9, 0, 0)
        ),
        Function("cudnnCreate", "cudnnStatus_t", _parameters(handle="cudnnHandle_t *"), (9, 0, 0)),
        Function("cudnnDestroy", "cudnnStatus_t", _parameters(handle="cudnnHandle_t"), (9, 0, 0)),
        Function(
            "cudnnSetStream", "cudnnStatus_t", _parameters(handle="cudnnHandle_t", streamId="cudaStream_t"), (9, 0, 0)
        ),
        Function(
            "cudnnGetStream", "cudnnStatus_t", _parameters(handle="cudnnHandle_t", streamId="cudaStream_t *"), (9, 0, 0)
        ),
        Function(
            "cudnnSetCallback",
            "cudnnStatus_t",
            _parameters(mask="unsigned", udata="void *", fptr="cudnnCallback_t"),
            (9, 0, 0),
        ),
        Function(
            "cudnnGetCallback",
            "cudnnStatus_t",
            _parameters(mask="unsigned *", udata="void **", fptr="cudnnCallback_t *"),
            (9, 0, 0),
        ),
        Function("cudnnGraphVersionCheck", "cudnnStatus_t", _parameters(), (9, 0, 0)),
        Function(
            "cudnnBackendCreateDescriptor",
            "cudnnStatus_t",
            _parameters(descriptorType="cudnnBackendDescriptorType_t", descriptor="cudnnBackendDescriptor_t *"),
            (9, 0, 0),
        ),
        Function(
            "cudnnBackendDestroyDescriptor",
            "cudnnStatus_t",
            _parameters(descriptor="cudnnBackendDescriptor_t"),
            (9, 0, 0),
        ),
        Function(
            "cudnnBackendInitialize",
            "cudnnStatus_t",
            _parameters(descriptor="cudnnBackendDescriptor_t"),
            (9, 0, 0),
            deprecated=True,
        ),
        Function(
            "cudnnBackendFinalize", "cudnnStatus_t", _parameters(descriptor="cudnnBackendDescriptor_t"), (9, 0, 0)
        ),
        Function(
            "cudnnBackendSetAttribute",
            "cudnnStatus_t",
            _parameters(
                descriptor="cudnnBackendDescriptor_t",
                attributeName="cudnnBackendAttributeName_t",
                attributeType="cudnnBackendAttributeType_t",
                elementCount="int64_t",
                arrayOfElements="const void *",
            ),
            (9, 0, 0),
        ),
        Function(
            "cudnnBackendGetAttribute",
            "cudnnStatus_t",
            _parameters(
                descriptor="cudnnBackendDescriptor_t",
                attributeName="cudnnBackendAttributeName_t",
                attributeType="cudnnBackendAttributeType_t",
                requestedElementCount="int64_t",
                elementCount="int64_t *",
                arrayOfElements="void *",
            ),
            (9, 0, 0),
        ),
        Function(
            "cudnnGetExecutionPlanWorkspaceSize",
            "cudnnStatus_t",
            _parameters(
                handle="cudnnHandle_t",
                executionPlan="cudnnBackendDescriptor_t",
                variantPack="cudnnBackendDescriptor_t",
                workspaceSizeInBytes="size_t *",
            ),
            (9, 23, 0),
        ),
        Function(
            "cudnnBackendExecute",
            "cudnnStatus_t",
            _parameters(
                handle="cudnnHandle_t", executionPlan="cudnnBackendDescriptor_t", variantPack="cudnnBackendDescriptor_t"
            ),
            (9, 0, 0),
        ),
        Function(
            "cudnnBackendPopulateCudaGraph",
            "cudnnStatus_t",
            _parameters(
                handle="cudnnHandle_t",
                executionPlan="cudnnBackendDescriptor_t",
                variantPack="cudnnBackendDescriptor_t",
                graph="cudaGraph_t",
            ),
            (9, 5, 0),
        ),
        Function(
            "cudnnBackendUpdateCudaGraph",
            "cudnnStatus_t",
            _parameters(
                handle="cudnnHandle_t",
                executionPlan="cudnnBackendDescriptor_t",
                variantPack="cudnnBackendDescriptor_t",
                graph="cudaGraph_t",
            ),
            (9, 5, 0),
        ),
    )
}
CALLBACKS = {
    function.name: function
    for function in (
        Function(
            "cudnnCallback_t",
            "void",
            _parameters(sev="cudnnSeverity_t", udata="void *", dbg="const cudnnDebug_t *", msg="const char *"),
            None,
        ),
    )
}
STRUCTS = {
    "cudnnDebug_t": _parameters(
        cudnn_version="unsigned",
        cudnnStatus="cudnnStatus_t",
        time_sec="unsigned",
        time_usec="unsigned",
        time_delta="unsigned",
        handle="cudnnHandle_t",
        stream="cudaStream_t",
        pid="unsigned long long",
        tid="unsigned long long",
        cudaDeviceId="int",
        reserved="int[15]",
    ),
    "cudnnFraction_t": _parameters(numerator="int64_t", denominator="int64_t"),
}
