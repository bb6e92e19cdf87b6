"""The C++ program of a forum thread in Python, call by call, with the same functions, attributes and values.

With a GPU it queries the FALLBACK heuristics and finalizes a plan for each config, as the C++ program does. With
``--target`` it uses a described GPU instead of a handle, which is possible since cuDNN 9.8, also in C++.
"""

from __future__ import annotations

import argparse

from cudnn_backend_py import (
    Attr,
    AttributeType,
    CudnnStatusError,
    DataType,
    Descriptor,
    DescriptorType,
    HeurMode,
    TensorReordering,
    capi,
    find_profile,
)


def make_tensor_descriptor(
    shape: list[int],
    strides: list[int],
    uid: str,
    data_type: DataType,
    byte_alignment: int,
    is_virtual: bool,
    reordering_fp16x16: bool = False,
) -> Descriptor:
    """Return a finalized tensor descriptor; `uid` is a letter, as in the thread."""
    desc = capi.cudnnBackendCreateDescriptor(DescriptorType.TENSOR)
    capi.cudnnBackendSetAttribute(desc, Attr.TENSOR_UNIQUE_ID, AttributeType.INT64, 1, [ord(uid)])
    capi.cudnnBackendSetAttribute(desc, Attr.TENSOR_DATA_TYPE, AttributeType.DATA_TYPE, 1, [data_type])
    capi.cudnnBackendSetAttribute(desc, Attr.TENSOR_BYTE_ALIGNMENT, AttributeType.INT64, 1, [byte_alignment])
    capi.cudnnBackendSetAttribute(desc, Attr.TENSOR_DIMENSIONS, AttributeType.INT64, len(shape), shape)
    capi.cudnnBackendSetAttribute(desc, Attr.TENSOR_STRIDES, AttributeType.INT64, len(strides), strides)
    capi.cudnnBackendSetAttribute(desc, Attr.TENSOR_IS_VIRTUAL, AttributeType.BOOLEAN, 1, [is_virtual])
    if reordering_fp16x16:
        capi.cudnnBackendSetAttribute(
            desc,
            Attr.TENSOR_REORDERING_MODE,
            AttributeType.TENSOR_REORDERING_MODE,
            1,
            [TensorReordering.F16x16],
        )
    capi.cudnnBackendFinalize(desc)
    return desc


def make_matmul_operation(a: Descriptor, b: Descriptor, c: Descriptor) -> Descriptor:
    """Return a finalized matmul operation c = a @ b with float compute type."""
    matmul_desc = capi.cudnnBackendCreateDescriptor(DescriptorType.MATMUL)
    capi.cudnnBackendSetAttribute(matmul_desc, Attr.MATMUL_COMP_TYPE, AttributeType.DATA_TYPE, 1, [DataType.FLOAT])
    capi.cudnnBackendFinalize(matmul_desc)
    op = capi.cudnnBackendCreateDescriptor(DescriptorType.OPERATION_MATMUL)
    element = AttributeType.BACKEND_DESCRIPTOR
    capi.cudnnBackendSetAttribute(op, Attr.OPERATION_MATMUL_DESC, element, 1, [matmul_desc])
    capi.cudnnBackendSetAttribute(op, Attr.OPERATION_MATMUL_ADESC, element, 1, [a])
    capi.cudnnBackendSetAttribute(op, Attr.OPERATION_MATMUL_BDESC, element, 1, [b])
    capi.cudnnBackendSetAttribute(op, Attr.OPERATION_MATMUL_CDESC, element, 1, [c])
    capi.cudnnBackendFinalize(op)
    return op


def main() -> None:
    """Make the calls of the C++ program's ``main()``."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--target", help="judge for this described GPU; otherwise a GPU is needed")
    name = parser.parse_args().target

    handle = capi.cudnnCreate() if name is None else None
    device = None
    if name is not None:
        text = find_profile(name).json()
        device = capi.cudnnBackendCreateDescriptor(DescriptorType.DEVICEPROP)
        capi.cudnnBackendSetAttribute(
            device, Attr.DEVICEPROP_JSON_REPRESENTATION, AttributeType.CHAR, len(text) + 1, text
        )
        capi.cudnnBackendFinalize(device)

    half = DataType.HALF
    query_desc = make_tensor_descriptor([1, 1, 10, 64], [640, 640, 64, 1], "q", half, 2, False)
    key_desc = make_tensor_descriptor([1, 1, 64, 10], [640, 640, 1, 64], "k", half, 2, False)
    value_desc = make_tensor_descriptor([1, 1, 10, 64], [640, 640, 64, 1], "v", half, 2, False)
    scores_desc = make_tensor_descriptor([1, 1, 10, 10], [100, 100, 10, 1], "s", half, 2, True, True)
    output_desc = make_tensor_descriptor([1, 1, 10, 64], [640, 640, 64, 1], "o", half, 2, False)

    ops = [
        make_matmul_operation(query_desc, key_desc, scores_desc),
        make_matmul_operation(scores_desc, value_desc, output_desc),
    ]
    element = AttributeType.BACKEND_DESCRIPTOR
    op_graph = capi.cudnnBackendCreateDescriptor(DescriptorType.OPERATIONGRAPH)
    capi.cudnnBackendSetAttribute(op_graph, Attr.OPERATIONGRAPH_OPS, element, len(ops), ops)
    if handle is not None:
        capi.cudnnBackendSetAttribute(op_graph, Attr.OPERATIONGRAPH_HANDLE, AttributeType.HANDLE, 1, [handle])
    capi.cudnnBackendFinalize(op_graph)

    heur_desc = capi.cudnnBackendCreateDescriptor(DescriptorType.ENGINEHEUR)
    capi.cudnnBackendSetAttribute(heur_desc, Attr.ENGINEHEUR_OPERATION_GRAPH, element, 1, [op_graph])
    capi.cudnnBackendSetAttribute(heur_desc, Attr.ENGINEHEUR_MODE, AttributeType.HEUR_MODE, 1, [HeurMode.FALLBACK])
    if device is not None:
        capi.cudnnBackendSetAttribute(heur_desc, Attr.ENGINEHEUR_DEVICEPROP, element, 1, [device])
    capi.cudnnBackendFinalize(heur_desc)

    count, _ = capi.cudnnBackendGetAttribute(heur_desc, Attr.ENGINEHEUR_RESULTS, element, 0)
    held, eng_cfgs = capi.cudnnBackendGetAttribute(heur_desc, Attr.ENGINEHEUR_RESULTS, element, count)
    print(f"{count} candidates, {held} engine configs left")
    if held == 0:
        print(capi.cudnnGetLastErrorString())

    for cfg in eng_cfgs:
        exec_plan = capi.cudnnBackendCreateDescriptor(DescriptorType.EXECUTION_PLAN)
        capi.cudnnBackendSetAttribute(exec_plan, Attr.EXECUTION_PLAN_ENGINE_CONFIG, element, 1, [cfg])
        if handle is not None:
            capi.cudnnBackendSetAttribute(exec_plan, Attr.EXECUTION_PLAN_HANDLE, AttributeType.HANDLE, 1, [handle])
        if device is not None:
            capi.cudnnBackendSetAttribute(exec_plan, Attr.EXECUTION_PLAN_DEVICEPROP, element, 1, [device])
        try:
            capi.cudnnBackendFinalize(exec_plan)
        except CudnnStatusError as error:
            print(error.render())
        else:
            print("success")


if __name__ == "__main__":
    main()
