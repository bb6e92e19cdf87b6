# Generated from cudnn_graph.h 9.28.0 and facts.toml. Do not edit.
# seal: sha256:7adfcd1be67d30f83befcb428c3e2ad2687fb87e697af8d0c07562f1bf734c1b
# Command: python -m tools.codegen
"""Every function of cudnn_graph.h, as data."""

from __future__ import annotations

#: By name: C type of the result, those of the parameters, and the cuDNN version that added the function.
FUNCTIONS: dict[str, tuple[str, tuple[str, ...], tuple[int, int, int] | None]] = {
    "cudnnGetVersion": ("size_t", (), (9, 0, 0)),
    "cudnnGetMaxDeviceVersion": ("size_t", (), (9, 0, 0)),
    "cudnnGetCudartVersion": ("size_t", (), (9, 0, 0)),
    "cudnnGetErrorString": ("const char *", ("cudnnStatus_t",), (9, 0, 0)),
    "cudnnGetLastErrorString": ("void", ("char *", "size_t"), (9, 0, 0)),
    "cudnnQueryRuntimeError": (
        "cudnnStatus_t",
        ("cudnnHandle_t", "cudnnStatus_t *", "cudnnErrQueryMode_t", "cudnnRuntimeTag_t *"),
        (9, 0, 0),
    ),
    "cudnnGetProperty": ("cudnnStatus_t", ("libraryPropertyType", "int *"), (9, 0, 0)),
    "cudnnCreate": ("cudnnStatus_t", ("cudnnHandle_t *",), (9, 0, 0)),
    "cudnnDestroy": ("cudnnStatus_t", ("cudnnHandle_t",), (9, 0, 0)),
    "cudnnSetStream": ("cudnnStatus_t", ("cudnnHandle_t", "cudaStream_t"), (9, 0, 0)),
    "cudnnGetStream": ("cudnnStatus_t", ("cudnnHandle_t", "cudaStream_t *"), (9, 0, 0)),
    "cudnnSetCallback": ("cudnnStatus_t", ("unsigned", "void *", "cudnnCallback_t"), (9, 0, 0)),
    "cudnnGetCallback": ("cudnnStatus_t", ("unsigned *", "void **", "cudnnCallback_t *"), (9, 0, 0)),
    "cudnnGraphVersionCheck": ("cudnnStatus_t", (), (9, 0, 0)),
    "cudnnBackendCreateDescriptor": (
        "cudnnStatus_t",
        ("cudnnBackendDescriptorType_t", "cudnnBackendDescriptor_t *"),
        (9, 0, 0),
    ),
    "cudnnBackendDestroyDescriptor": ("cudnnStatus_t", ("cudnnBackendDescriptor_t",), (9, 0, 0)),
    "cudnnBackendInitialize": ("cudnnStatus_t", ("cudnnBackendDescriptor_t",), (9, 0, 0)),
    "cudnnBackendFinalize": ("cudnnStatus_t", ("cudnnBackendDescriptor_t",), (9, 0, 0)),
    "cudnnBackendSetAttribute": (
        "cudnnStatus_t",
        (
            "cudnnBackendDescriptor_t",
            "cudnnBackendAttributeName_t",
            "cudnnBackendAttributeType_t",
            "int64_t",
            "const void *",
        ),
        (9, 0, 0),
    ),
    "cudnnBackendGetAttribute": (
        "cudnnStatus_t",
        (
            "cudnnBackendDescriptor_t",
            "cudnnBackendAttributeName_t",
            "cudnnBackendAttributeType_t",
            "int64_t",
            "int64_t *",
            "void *",
        ),
        (9, 0, 0),
    ),
    "cudnnGetExecutionPlanWorkspaceSize": (
        "cudnnStatus_t",
        ("cudnnHandle_t", "cudnnBackendDescriptor_t", "cudnnBackendDescriptor_t", "size_t *"),
        (9, 23, 0),
    ),
    "cudnnBackendExecute": (
        "cudnnStatus_t",
        ("cudnnHandle_t", "cudnnBackendDescriptor_t", "cudnnBackendDescriptor_t"),
        (9, 0, 0),
    ),
    "cudnnBackendPopulateCudaGraph": (
        "cudnnStatus_t",
        ("cudnnHandle_t", "cudnnBackendDescriptor_t", "cudnnBackendDescriptor_t", "cudaGraph_t"),
        (9, 5, 0),
    ),
    "cudnnBackendUpdateCudaGraph": (
        "cudnnStatus_t",
        ("cudnnHandle_t", "cudnnBackendDescriptor_t", "cudnnBackendDescriptor_t", "cudaGraph_t"),
        (9, 5, 0),
    ),
}
