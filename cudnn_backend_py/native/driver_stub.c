/* A stand-in for the CUDA driver on machines that have none.
 *
 * cuDNN's runtime-compiled engines resolve symbols of libcuda.so.1 before they judge or compile anything, even
 * for a GPU that is only described. This object has that SONAME and those symbols and nothing behind them:
 *
 *   - loading a compiled module answers success with a handle to nothing, so that an execution plan finalizes
 *     (its kernel has been compiled by NVRTC before and is kept in the plan);
 *   - everything that would need a device answers CUDA_ERROR_NO_DEVICE.
 *
 * Nothing can run on it. Where a real driver exists, only a process that uses no GPU may load it.
 */
#include <stddef.h>

#define CUDA_SUCCESS 0
#define CUDA_ERROR_INVALID_VALUE 1
#define CUDA_ERROR_NO_DEVICE 100
#define DRIVER_VERSION 13000 /* what cuDriverGetVersion answers: CUDA 13.0 */

typedef int CUresult;

/* How the package recognises its own stub. */
const char cudnn_backend_py_driver_stub[] = "cudnn_backend_py driver stub 1";

static int token; /* the address every opaque handle points to */

static CUresult give_handle(void **out) {
    if (out == NULL) return CUDA_ERROR_INVALID_VALUE;
    *out = &token;
    return CUDA_SUCCESS;
}

CUresult cuDriverGetVersion(int *version) {
    if (version == NULL) return CUDA_ERROR_INVALID_VALUE;
    *version = DRIVER_VERSION;
    return CUDA_SUCCESS;
}

CUresult cuGetErrorString(CUresult error, const char **text) {
    if (text == NULL) return CUDA_ERROR_INVALID_VALUE;
    *text = error == CUDA_SUCCESS ? "no error" : "no CUDA-capable device (cudnn_backend_py driver stub)";
    return CUDA_SUCCESS;
}

CUresult cuGetErrorName(CUresult error, const char **text) {
    if (text == NULL) return CUDA_ERROR_INVALID_VALUE;
    *text = error == CUDA_SUCCESS ? "CUDA_SUCCESS" : "CUDA_ERROR_NO_DEVICE";
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetCount(int *count) {
    if (count == NULL) return CUDA_ERROR_INVALID_VALUE;
    *count = 0;
    return CUDA_ERROR_NO_DEVICE;
}

/* Compiled code: accepted, never run. */
CUresult cuLibraryLoadData(void **library, const void *code, void **jit, void **jit_values, unsigned jit_count,
                           void **options, void **option_values, unsigned option_count) {
    (void)code, (void)jit, (void)jit_values, (void)jit_count;
    (void)options, (void)option_values, (void)option_count;
    return give_handle(library);
}

CUresult cuLibraryLoadFromFile(void **library, const char *file, void **jit, void **jit_values, unsigned jit_count,
                               void **options, void **option_values, unsigned option_count) {
    (void)file, (void)jit, (void)jit_values, (void)jit_count;
    (void)options, (void)option_values, (void)option_count;
    return give_handle(library);
}

CUresult cuLibraryGetKernel(void **kernel, void *library, const char *name) {
    (void)library, (void)name;
    return give_handle(kernel);
}

CUresult cuKernelGetFunction(void **function, void *kernel) {
    (void)kernel;
    return give_handle(function);
}

CUresult cuLibraryUnload(void *library) { return (void)library, CUDA_SUCCESS; }

CUresult cuKernelSetAttribute(int attribute, int value, void *kernel, int device) {
    return (void)attribute, (void)value, (void)kernel, (void)device, CUDA_SUCCESS;
}

CUresult cuKernelGetAttribute(int *value, int attribute, void *kernel, int device) {
    (void)attribute, (void)kernel, (void)device;
    if (value == NULL) return CUDA_ERROR_INVALID_VALUE;
    *value = 0;
    return CUDA_SUCCESS;
}

/* All of these need a device. */
#define NEEDS_DEVICE(name) \
    CUresult name(void) { return CUDA_ERROR_NO_DEVICE; }

NEEDS_DEVICE(cuInit)
NEEDS_DEVICE(cuDeviceGet)
NEEDS_DEVICE(cuDeviceGetAttribute)
NEEDS_DEVICE(cuCtxGetCurrent)
NEEDS_DEVICE(cuCtxPushCurrent)
NEEDS_DEVICE(cuCtxPushCurrent_v2)
NEEDS_DEVICE(cuCtxPopCurrent)
NEEDS_DEVICE(cuCtxPopCurrent_v2)
NEEDS_DEVICE(cuCtxGetLimit)
NEEDS_DEVICE(cuStreamGetCtx)
NEEDS_DEVICE(cuModuleLoadData)
NEEDS_DEVICE(cuModuleUnload)
NEEDS_DEVICE(cuModuleGetFunction)
NEEDS_DEVICE(cuFuncSetAttribute)
NEEDS_DEVICE(cuLinkCreate)
NEEDS_DEVICE(cuLinkCreate_v2)
NEEDS_DEVICE(cuLinkAddData)
NEEDS_DEVICE(cuLinkAddData_v2)
NEEDS_DEVICE(cuLinkComplete)
NEEDS_DEVICE(cuLinkDestroy)
NEEDS_DEVICE(cuLaunchKernel)
NEEDS_DEVICE(cuLaunchKernelEx)
NEEDS_DEVICE(cuLaunchCooperativeKernel)
NEEDS_DEVICE(cuOccupancyMaxPotentialClusterSize)
NEEDS_DEVICE(cuOccupancyMaxActiveClusters)
NEEDS_DEVICE(cuTensorMapEncodeTiled)
NEEDS_DEVICE(cuTensorMapEncodeIm2col)
