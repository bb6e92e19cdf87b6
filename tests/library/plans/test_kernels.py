"""Data that the hash of an NVRTC kernel includes, and shared memory and stack sizes, on every architecture."""

from __future__ import annotations

import ctypes

import pytest

from cudnn_backend_py.native import library
from cudnn_backend_py.plans.kernels import Kernel

TABLE_SOURCE = "__device__ const int table[4] = {%d, 2, 3, 4};"
KERNEL_SOURCE = 'extern "C" __global__ void k(int* o, int** p, int i) { %s }'
STRUCT_SOURCE = "struct Tile { static constexpr int unused = %d, used = 16; };"
SOURCES_THAT_READ_DATA = {
    "an element": (TABLE_SOURCE, "o[0] = table[i & 3];"),
    "an address": ("__device__ int state[4] = {%d};", "p[0] = state + i;"),
    "what is written, too": ("__device__ int state = %d;", "atomicAdd(&state, i); o[0] = state;"),
    "of constant memory": ("__constant__ int table[4] = {%d, 2, 3, 4};", "o[0] = table[i & 3];"),
}
SOURCES_THAT_READ_NO_DATA = {
    "a member": (STRUCT_SOURCE, "o[0] = i * Tile::used;"),
    "a table of which the compiler took an element": (TABLE_SOURCE, "o[0] = i * table[2];"),
}
ARCHITECTURES = ("sm_75", "sm_80", "sm_89", "sm_90a", "sm_100a", "sm_120")


def compile_with_nvrtc(source: str, architecture: str, *options: bytes) -> Kernel:
    """Return the kernel k of a CUDA source, compiled by NVRTC."""
    assert library().nvrtc.path is not None
    nvrtc, program, size = ctypes.CDLL(library().nvrtc.path), ctypes.c_void_p(), ctypes.c_size_t()
    nvrtc.nvrtcCreateProgram(ctypes.byref(program), source.encode(), b"k.cu", 0, None, None)
    given = (f"--gpu-architecture={architecture}".encode(), *options)
    assert nvrtc.nvrtcCompileProgram(program, len(given), (ctypes.c_char_p * len(given))(*given)) == 0
    nvrtc.nvrtcGetCUBINSize(program, ctypes.byref(size))
    cubin = ctypes.create_string_buffer(size.value)
    nvrtc.nvrtcGetCUBIN(program, cubin)
    nvrtc.nvrtcDestroyProgram(ctypes.byref(program))
    return Kernel.from_cubin("k", cubin.raw)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_kernel_hash_includes_only_data_that_the_kernel_reads(architecture: str) -> None:
    for cases, same in ((SOURCES_THAT_READ_DATA, False), (SOURCES_THAT_READ_NO_DATA, True)):
        for what, (data, body) in cases.items():
            one, other = (
                compile_with_nvrtc(data % value + KERNEL_SOURCE % body, architecture).sha256 for value in (1, 77)
            )
            assert (one == other) is same, what
    data, body = SOURCES_THAT_READ_DATA["an element"]
    one, other = (
        compile_with_nvrtc(data % value + KERNEL_SOURCE % body, architecture, b"-G").sha256 for value in (1, 77)
    )
    assert one != other


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_shared_memory_and_stack_sizes_of_a_kernel_are_read(architecture: str) -> None:
    plain = compile_with_nvrtc(KERNEL_SOURCE % "o[0] = i;", architecture)
    assert (plain.shared_bytes, plain.local_bytes) == (0, 0)
    shared = "__shared__ int s[256]; s[threadIdx.x] = i; __syncthreads(); o[0] = s[i & 255];"
    taken_by_cuda = 0 if architecture in ("sm_75", "sm_80", "sm_89") else 1024
    assert compile_with_nvrtc(KERNEL_SOURCE % shared, architecture).shared_bytes == 1024 + taken_by_cuda
    array = "int a[64]; for (int n = 0; n < 64; ++n) a[n * i & 63] = o[n]; o[0] = a[o[1] & 63];"
    assert compile_with_nvrtc(KERNEL_SOURCE % array, architecture).local_bytes == 256
    many = "int a[96]; for (int n = 0; n < 96; ++n) a[n] = o[n]; __syncthreads(); "
    many += "for (int n = 0; n < 96; ++n) o[95 - n] = a[n] * i;"
    spilled = compile_with_nvrtc(KERNEL_SOURCE % many, architecture, b"--maxrregcount=32")
    assert spilled.registers <= 32
    assert spilled.local_bytes > 0
    assert spilled.architecture == architecture
