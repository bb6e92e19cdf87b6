"""A matrix product on the GPU by cuDNN's C functions (Level 0) alone: graph, plan, variant pack, execution.

Memory is given by address: here that of torch tensors, as cuda-python or any other library would give it.
"""

from __future__ import annotations

from cudnn_backend_py import Attr, AttributeType, DataType, Descriptor, DescriptorType, HeurMode, capi

M, N, K = 64, 128, 256
DIMS = {1: (1, M, K), 2: (1, K, N), 3: (1, M, N)}  # of A, B and C = A @ B, by unique id


def make_tensor_descriptor(uid: int) -> Descriptor:
    """Return the finalized descriptor of a row-major float16 tensor."""
    batch, rows, columns = DIMS[uid]
    desc = Descriptor(DescriptorType.TENSOR).set(Attr.TENSOR_UNIQUE_ID, uid).set(Attr.TENSOR_DATA_TYPE, DataType.HALF)
    desc.set(Attr.TENSOR_DIMENSIONS, (batch, rows, columns)).set(Attr.TENSOR_STRIDES, (rows * columns, columns, 1))
    return desc.set(Attr.TENSOR_BYTE_ALIGNMENT, 16).finalize()


def main() -> None:
    """Compute C = A @ B and compare it with torch."""
    try:
        import torch
    except ImportError:
        torch = None
    if torch is None or not torch.cuda.is_available():
        print("needs torch and a GPU")
        return

    handle = capi.cudnnCreate()
    a_desc, b_desc, c_desc = map(make_tensor_descriptor, DIMS)
    matmul = Descriptor(DescriptorType.MATMUL).set(Attr.MATMUL_COMP_TYPE, DataType.FLOAT).finalize()
    op = Descriptor(DescriptorType.OPERATION_MATMUL).set(Attr.OPERATION_MATMUL_DESC, matmul)
    op.set(Attr.OPERATION_MATMUL_ADESC, a_desc).set(Attr.OPERATION_MATMUL_BDESC, b_desc)
    op.set(Attr.OPERATION_MATMUL_CDESC, c_desc).finalize()
    graph = Descriptor(DescriptorType.OPERATIONGRAPH).set(Attr.OPERATIONGRAPH_OPS, op)
    graph.set(Attr.OPERATIONGRAPH_HANDLE, handle).finalize()
    heur = Descriptor(DescriptorType.ENGINEHEUR).set(Attr.ENGINEHEUR_OPERATION_GRAPH, graph)
    configs = heur.set(Attr.ENGINEHEUR_MODE, HeurMode.A).finalize().get(Attr.ENGINEHEUR_RESULTS)
    plan = Descriptor(DescriptorType.EXECUTION_PLAN).set(Attr.EXECUTION_PLAN_HANDLE, handle)
    plan.set(Attr.EXECUTION_PLAN_ENGINE_CONFIG, configs[0]).finalize()

    a = torch.randn(DIMS[1], device="cuda", dtype=torch.float16)
    b = torch.randn(DIMS[2], device="cuda", dtype=torch.float16)
    c = torch.empty(DIMS[3], device="cuda", dtype=torch.float16)
    size = plan.get(Attr.EXECUTION_PLAN_WORKSPACE_SIZE)
    workspace = torch.empty(max(1, size), device="cuda", dtype=torch.uint8)
    addresses = [a.data_ptr(), b.data_ptr(), c.data_ptr()]

    pack = capi.cudnnBackendCreateDescriptor(DescriptorType.VARIANT_PACK)
    capi.cudnnBackendSetAttribute(pack, Attr.VARIANT_PACK_UNIQUE_IDS, AttributeType.INT64, 3, [1, 2, 3])
    capi.cudnnBackendSetAttribute(pack, Attr.VARIANT_PACK_DATA_POINTERS, AttributeType.VOID_PTR, 3, addresses)
    workspaces = [workspace.data_ptr()]
    capi.cudnnBackendSetAttribute(pack, Attr.VARIANT_PACK_WORKSPACE, AttributeType.VOID_PTR, 1, workspaces)
    capi.cudnnBackendFinalize(pack)
    capi.cudnnSetStream(handle, torch.cuda.current_stream().cuda_stream)
    capi.cudnnBackendExecute(handle, plan, pack)

    wanted = a.float() @ b.float()
    error = ((c.float() - wanted).abs().max() / wanted.abs().max()).item()
    print(f"error of C {error:.1e} of its size, workspace {size} bytes")


if __name__ == "__main__":
    main()
